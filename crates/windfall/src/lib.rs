//! Windfall: a transactional B+tree storage engine. Dropping a table costs the same however much of it the buffer pool
//! holds, and delays no other query.
//!
//! **Purpose.** The modules of the engine. They form layers: a module imports only from layers below its own
//! (ARCHITECTURE.md lists them, lowest first).
//!
//! **Invariants.** docs/invariants.md lists them, each with the tests that hold it.
//!
//! The examples of README.md are tests of this crate.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod auto_increment;
pub mod buffer;
pub mod catalog;
pub mod check;
pub mod checkpoint;
pub mod cursor;
pub mod database;
pub mod engine;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod index;
mod load;
pub mod log;
pub mod metrics;
pub mod mtr;
pub mod options;
pub mod range;
pub mod recovery;
pub(crate) mod scope;
pub mod session;
pub mod store;
pub mod system;
pub mod table;
pub mod tablespace;
pub mod transact;
pub mod transaction;

#[cfg(feature = "fuzz")]
use windfall_base::fuzz_input;
pub use windfall_base::{disk, env, error, health, ids, keys, memory, row, sync};
use windfall_btree::{page, tree};

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
pub use session::{Scratch, Session};
pub use sync::CountingAllocator;
pub use table::Table;
pub use transact::{IfLocked, Isolation, Transaction, TransactionOptions};
pub use transaction::AtUndoLimit;

/// The examples of README.md.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
