//! What a session of a database can be asked, and what it answers: scripts and loads drive through this trait whatever
//! stands behind it, and the history is recorded at it.

use core::fmt;

pub type Key = u64;
/// A list; a register is a list of one. Each number is written once in a history, so it tells who wrote it.
pub type Value = Vec<u64>;
pub type Row = (Key, Value);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    ReadUncommitted,
    ReadCommitted,
    /// With `InnoDB`'s meaning: plain reads see a snapshot, all else the newest.
    RepeatableRead,
    /// Strict: what has changed since the snapshot is neither changed nor locked.
    Snapshot,
    Serializable,
}

impl Level {
    pub const ALL: [Self; 5] = [
        Self::ReadUncommitted,
        Self::ReadCommitted,
        Self::RepeatableRead,
        Self::Snapshot,
        Self::Serializable,
    ];
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReadUncommitted => "READ UNCOMMITTED",
            Self::ReadCommitted => "READ COMMITTED",
            Self::RepeatableRead => "REPEATABLE READ",
            Self::Snapshot => "SNAPSHOT",
            Self::Serializable => "SERIALIZABLE",
        })
    }
}

/// How a read locks what it finds, until the end of its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// As a plain read of its level does: SERIALIZABLE locks as `Shared`, the others lock nothing.
    Plain,
    Shared,
    Exclusive,
}

/// The rows that a call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    pub first: Key,
    pub last: Key,
    pub test: Test,
}

/// What the first number of a row must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    Any,
    Is(u64),
    MultipleOf(u64),
}

impl Rows {
    pub fn key(key: Key) -> Self {
        Self::between(key, key)
    }

    pub fn between(first: Key, last: Key) -> Self {
        Self { first, last, test: Test::Any }
    }

    pub fn with(test: Test) -> Self {
        Self { first: 0, last: Key::MAX, test }
    }

    pub fn holds(&self, value: &Value) -> bool {
        match self.test {
            Test::Any => true,
            Test::Is(number) => value[0] == number,
            Test::MultipleOf(number) => value[0].is_multiple_of(number),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Set(u64),
    Add(u64),
    Delete,
}

/// A call of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Begin(Level),
    Read(Rows, Lock),
    /// Writes a register, whether the row is there or not.
    Put(Key, u64),
    /// Appends to the newest list; a row that is not there is an empty one.
    Append(Key, u64),
    /// Deletes a register; with no row there the answer is no rows. The number stands for it in a history.
    Delete(Key, u64),
    /// Changes all these rows, as one statement: they are looked for among the newest.
    Change(Rows, Change),
    Commit,
    Rollback,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    Rows(Vec<Row>),
    /// The call waits for another transaction: [`Client::answer`] says what comes of it.
    Waits,
    /// The transaction is over: nothing of it stays.
    Refused(Refusal),
    /// The transaction is over, and the client does not know how it ended.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Deadlock,
    /// A row has changed since the snapshot.
    Changed,
}

/// A session. Where a call blocks, a thread makes it for the session, and what it has not answered within a moment
/// waits; who gives each session a thread of its own may block instead, and never says so.
pub trait Client {
    /// Asks for something. No call may be made while one waits.
    fn call(&mut self, call: &Call) -> Answer;

    /// What has become of the call that waits: [`Answer::Waits`] as long as it does.
    fn answer(&mut self) -> Answer;
}
