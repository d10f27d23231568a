//! The options of a DDL statement ([`DdlOptions`]).
//!
//! **Purpose.** When the statement is durable, and how long it waits for others that use its tables: statements with
//! metadata locks on the names, and transactions with locks.
//!
//! **Invariants.** The time limit is one for the whole statement, whatever it waits for and how often (test:
//! `a_statement_whose_time_is_over_between_two_waits_has_timed_out`).

use core::time::Duration;

use crate::log::FlushLog;

/// The options of one DDL statement.
#[derive(Clone, Copy, Debug)]
pub struct DdlOptions {
    /// When it is durable.
    pub flush: FlushLog,
    /// The deadline of its waits, by the clock of the environment, if one was set. Otherwise it waits for other
    /// statements, which may be building an index, without a limit, and for transactions up to the lock timeout of the
    /// database.
    pub until: Option<Duration>,
}
