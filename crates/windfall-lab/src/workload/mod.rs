//! The work of the clients, and its recording.
//!
//! **Purpose.** The same clients on every server: sysbench's read/write mix ([`oltp`]), recorded query by query, with
//! statements during it ([`load`]).
//!
//! **Invariants.** A query that fails ends the run (test: `a_failing_client_ends_the_run`).

pub mod load;
pub mod oltp;
