//! The calls and answers of a database session. Scripts and loads use any implementation through this trait, and the
//! history is recorded here.

use core::fmt;

pub(crate) type Key = u64;
/// A list; a register is a list of one. Each number is written once in a history, so it identifies its writer.
pub(crate) type Value = Vec<u64>;
pub(crate) type Row = (Key, Value);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    ReadUncommitted,
    ReadCommitted,
    /// With `InnoDB`'s meaning: plain reads see a snapshot, everything else the newest version.
    RepeatableRead,
    /// Strict: a row that has changed since the snapshot can be neither changed nor locked.
    Snapshot,
    Serializable,
}

impl Level {
    pub(crate) const ALL: [Self; 5] = [
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

/// The lock that a read takes on the rows that it finds, until the end of its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lock {
    /// As a plain read of its level: SERIALIZABLE locks as `Shared`, the others lock nothing.
    Plain,
    Shared,
    Exclusive,
}

/// The rows of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    pub first: Key,
    pub last: Key,
    pub test: Test,
}

/// The condition on the first number of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    Any,
    Is(u64),
    MultipleOf(u64),
}

impl Rows {
    pub(crate) fn key(key: Key) -> Self {
        Self::between(key, key)
    }

    pub(crate) fn between(first: Key, last: Key) -> Self {
        Self { first, last, test: Test::Any }
    }

    pub(crate) fn with(test: Test) -> Self {
        Self { first: 0, last: Key::MAX, test }
    }

    pub(crate) fn holds(&self, value: &Value) -> bool {
        match self.test {
            Test::Any => true,
            Test::Is(number) => value[0] == number,
            Test::MultipleOf(number) => value[0].is_multiple_of(number),
        }
    }
}

/// Returns whether a call that picks rows keeps the lock of one with this value.
pub(crate) fn is_wanted(value: &Value) -> bool {
    value[value.len() - 1].is_multiple_of(2)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Set(u64),
    Add(u64),
    Delete,
}

/// A call of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Begin(Level),
    Read(Rows, Lock),
    /// Locks the rows, and unlocks those that are [not wanted](is_wanted): they are read, each at a moment of its own.
    /// At levels without gap locks only.
    Pick(Rows),
    /// Writes a register, whether the row exists or not.
    Put(Key, u64),
    /// Appends to the newest list; a missing row is an empty list.
    Append(Key, u64),
    /// Deletes a register; if there is no row, the answer is no rows. The number represents the deletion in a history.
    Delete(Key, u64),
    /// Changes all these rows in one statement, which searches the newest versions.
    Change(Rows, Change),
    Commit,
    Rollback,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    Rows(Vec<Row>),
    /// The rows that were read, in their order, and whether each is locked.
    Picked(Vec<(Row, bool)>),
    /// The call waits for another transaction. [`Client::answer`] returns its result.
    Waits,
    /// The transaction is over and was rolled back.
    Refused(Refusal),
    /// The transaction is over for the client, which got no answer to its commit: its outcome is unknown.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Deadlock,
    /// A row has changed since the snapshot.
    Changed,
}

/// A session. If calls block, a thread executes them for the session, and a call without an answer after a short time
/// waits. An implementation with one thread per session may block instead, and never returns [`Answer::Waits`].
pub(crate) trait Client {
    /// Makes a call. No call may be made while one waits.
    fn call(&mut self, call: &Call) -> Answer;

    /// Returns the result of the waiting call, or [`Answer::Waits`] as long as it waits.
    fn answer(&mut self) -> Answer;
}
