//! The steps of a history. A step names tables, transactions and cursors by small numbers, which are resolved when it
//! is executed. So a history without some of its steps still makes sense.

use windfall::Isolation;

use super::value::{Key, Value};

/// The owner of a call: the slot of its transaction, or `None` for a call outside of transactions.
pub(crate) type Party = Option<u8>;
/// The index of a table, modulo the number of tables.
pub(crate) type Pick = u8;

/// The most transactions that are open at a time.
pub(crate) const SLOTS: u8 = 5;
/// The most cursors and ranges that are open at a time.
pub(crate) const CURSORS: u8 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Which {
    First,
    Unique,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteMode {
    Insert,
    Put,
    Update,
    Delete,
}

/// The action of a locking read at a locked row: it is refused, because calls do not wait here, or it skips the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Locking {
    pub exclusive: bool,
    pub skips: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    Get,
    Contains,
    Stream,
}

/// A call on one row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Write { table: Pick, key: Key, value: Value, mode: WriteMode },
    Get { table: Pick, key: Key, read: Read },
    Lock { table: Pick, key: Key, locking: Locking },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Commit,
    RollBack,
    Drop,
}

/// The tree that a cursor reads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Over {
    Rows,
    Index(Which),
    /// Only keys.
    Keys(Which),
}

/// An iterator over a range, or a cursor without limits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    /// From one key (or index key) to another, both included or both excluded; `None` is all.
    Range(Option<(u8, u8, bool)>),
    Cursor,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Move {
    Next,
    Prev,
    First,
    Last,
    AtLeast(u8),
    Above(u8),
    AtMost(u8),
    Below(u8),
}

#[derive(Clone, Debug)]
pub(crate) enum Ddl {
    Create { name: u8, first: bool, unique: bool },
    CreateTemporary { first: bool, unique: bool },
    DropTemporary,
    Drop { name: u8 },
    DropTwo { one: u8, other: u8 },
    Truncate { name: u8 },
    Rename { from: u8, to: u8 },
    Swap { one: u8, other: u8 },
    CreateIndex { name: u8, which: Which },
    DropIndex { name: u8, which: Which },
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Begin {
        slot: u8,
        level: Isolation,
        read_only: bool,
        snapshot: bool,
    },
    End {
        slot: u8,
        how: End,
    },
    Savepoint {
        slot: u8,
        name: u8,
    },
    RollBackTo {
        slot: u8,
        name: u8,
    },
    Release {
        slot: u8,
        name: u8,
    },
    Prepare {
        slot: u8,
        name: u8,
    },
    EndPrepared {
        name: u8,
        commits: bool,
    },
    Call {
        by: Party,
        call: Call,
    },
    BeginStatement {
        slot: u8,
    },
    EndStatement {
        slot: u8,
        undo: bool,
    },
    /// Several calls in a closure as one statement, which is rolled back if one of them is refused, or at its end.
    Statement {
        slot: u8,
        calls: Vec<Call>,
        fails: bool,
    },
    /// A write with a value from a source that makes a call of its own: at its first bytes, or late, when the change is
    /// in progress.
    Nested {
        by: Party,
        table: Pick,
        key: Key,
        value: Value,
        late: bool,
        inner: (Party, Call),
    },
    /// A call, while the transaction at `ending` ends just after the call has found a row of it.
    Race {
        slot: u8,
        call: Call,
        ending: u8,
        commits: bool,
    },
    Open {
        place: u8,
        by: Party,
        table: Pick,
        over: Over,
        shape: Shape,
        locking: Option<Locking>,
    },
    Move {
        place: u8,
        to: Move,
        times: u8,
    },
    Close {
        place: u8,
    },
    /// Reads all rows of a table, in every way.
    Look {
        by: Party,
        table: Pick,
    },
    Ddl(Ddl),
    /// Steps of the background workers.
    Settle(u8),
    Checkpoint,
    Check {
        live: bool,
    },
    /// The machine loses power. A random part of what was not synced survives, by this seed.
    Crash(u8),
    /// The database is closed cleanly and opened again.
    Reopen,
}
