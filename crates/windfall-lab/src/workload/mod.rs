//! What clients do, and how it is recorded.
//!
//! **Purpose.** The same clients on every server: sysbench's read/write mix ([`oltp`]), recorded query by query, with
//! statements amid it ([`load`]).
//!
//! **Invariants.** A query that fails ends the run.
//!
//! **May touch.** `server`, `results`, `watch`, `windfall-measure`, and of `windfall` the tree, the log and the errors.

pub mod load;
pub mod oltp;
