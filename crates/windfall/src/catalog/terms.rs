//! The terms on which a statement is made.
//!
//! **Purpose.** When it is durable, and how long it waits for those who are at its tables: statements, which have
//! claimed the names, and transactions, which have locks.
//!
//! **Invariants.** The time is that of the statement: whatever it waits for, and however often.
//!
//! **May touch.** `log`.

use core::time::Duration;

use crate::log::FlushLog;

/// The terms of one statement.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// When it is durable.
    pub flush: FlushLog,
    /// Until when it waits, by the clock of the environment, if that was asked for. Else it waits for other statements
    /// as long as they take, which may build an index, and for transactions as long as is set for all.
    pub until: Option<Duration>,
}
