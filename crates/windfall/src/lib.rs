//! Windfall: a transactional B+tree storage engine. Dropping a table costs the same however much of it the buffer pool
//! holds, and delays no other query.
//!
//! **Purpose.** The API: databases, tables, indexes, transactions, sessions, options, metrics and checks. The engine
//! behind it is the crate `windfall-engine`.
//!
//! **Invariants.** docs/invariants.md lists them, each with the tests that hold it.
//!
//! The examples of README.md are tests of this crate.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod auto_increment;
mod check;
mod cursor;
mod database;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod index;
mod load;
mod metrics;
mod range;
mod scope;
mod session;
mod table;
#[cfg(test)]
mod tests;
mod transact;

#[cfg(feature = "fuzz")]
use windfall_base::fuzz_input;
use windfall_base::keys;
pub use windfall_base::{disk, env, error, ids, row, sync};
use windfall_btree::{page, tree};
use windfall_engine::{buffer, catalog, engine, log, options, recovery, store, tablespace, transaction};

pub use catalog::DropReport;
pub use check::CheckReport;
pub use cursor::{Cursor, Seek};
pub use database::{Database, IndexOptions, TableInfo, TableOptions};
pub use error::{Error, Result};
pub use index::{Index, IndexCursor, IndexKey, IndexRange, IndexRow};
pub use log::FlushLog;
pub use metrics::Metrics;
pub use options::Options;
pub use range::Range;
pub use recovery::{Phase, Progress};
pub use session::{Scratch, Session};
pub use sync::CountingAllocator;
pub use table::Table;
pub use transact::{IfLocked, Isolation, Transaction, TransactionOptions};
pub use transaction::{
    AtUndoLimit,
    listing::{TransactionInfo, TransactionState, ViewInfo},
    locks::{Deadlock, HeldLock, Lock, RowMode, TableMode, Waiting},
    prepared::PreparedTransaction,
};

/// The examples of README.md.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
