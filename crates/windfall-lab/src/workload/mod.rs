//! What clients do, and how it is recorded.
//!
//! **Purpose.** The same clients on every server: sysbench's read/write mix ([`oltp`]), recorded query by query, with
//! statements amid it ([`load`]).
//!
//! **Invariants.** A query that fails ends the run.
//!
//! **May touch.** `server`, `results`, `windfall-measure`.

pub mod load;
pub mod oltp;
