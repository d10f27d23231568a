//! Windfall: a transactional B+tree storage engine. Dropping a table costs the same however much of it the buffer pool
//! holds, and delays no other query.
//!
//! A [`Database`] is a folder. It has tables, a [`Table`] has rows, which are keys with values, and an [`Index`] finds
//! rows by parts of their values. All three are handles: clone them, and use them from any thread. A transaction,
//! a cursor, a load or an alteration has one user at a time, which may be another thread for each call.
//!
//! ```
//! use windfall::{Database, IndexOptions, Options, TableOptions};
//!
//! # fn main() -> windfall::Result<()> {
//! # let folder = std::env::temp_dir().join(format!("windfall-crate-page-{}", std::process::id()));
//! let db = Database::open(&folder, Options::default().buffer_pool_size(64 << 20))?;
//! // The first two bytes of a value are the country.
//! let towns = db.create_table("towns", TableOptions::default().index("country", IndexOptions::on_value(0..2)))?;
//! towns.insert(b"Basel", b"CH177595")?;
//! towns.insert(b"Torino", b"IT841600")?;
//! assert_eq!(towns.get(b"Basel")?.as_deref(), Some(&b"CH177595"[..]));
//! let italian: Vec<_> = towns.index("country")?.get(b"IT")?.collect::<windfall::Result<_>>()?;
//! assert_eq!(italian[0].key, b"Torino");
//! # db.close()?;
//! # std::fs::remove_dir_all(&folder).ok();
//! # Ok(())
//! # }
//! ```
//!
//! # Transactions
//!
//! A call on a table is a transaction of its own: atomic over the table and its indexes, and durable when it returns,
//! as [`Options::flush_log_at_trx_commit`] says. [`Database::begin`] begins a [`Transaction`] of many calls, at one of
//! the levels of [`Isolation`]; [`Transaction::table`] returns the table's handle in it, a [`TxTable`].
//!
//! ```
//! use windfall::{Database, Options, TableOptions, TransactionOptions};
//!
//! # fn main() -> windfall::Result<()> {
//! # let folder = std::env::temp_dir().join(format!("windfall-crate-page-2-{}", std::process::id()));
//! # let db = Database::open(&folder, Options::default().buffer_pool_size(16 << 20))?;
//! let stock = db.create_table("stock", TableOptions::default())?;
//! stock.put(b"apples", b"3")?;
//! let trx = db.begin(TransactionOptions::default());
//! let in_trx = trx.table(&stock);
//! assert_eq!(in_trx.get_for_update(b"apples")?.as_deref(), Some(&b"3"[..]));
//! in_trx.put(b"apples", b"2")?;
//! assert_eq!(stock.get(b"apples")?.as_deref(), Some(&b"3"[..])); // not committed yet
//! trx.commit()?;
//! # db.close()?;
//! # std::fs::remove_dir_all(&folder).ok();
//! # Ok(())
//! # }
//! ```
//!
//! The victim of a deadlock is rolled back, with the error [`error::LockError::Deadlock`]: begin it again.
//!
//! # Keys of several parts
//!
//! A key is bytes, in the order of `memcmp`. [`CompositeKey`] makes one of several values, in their order.
//!
//! ```
//! use windfall::{CompositeKey, CompositePart, Database, Options, TableOptions};
//!
//! # fn main() -> windfall::Result<()> {
//! # let folder = std::env::temp_dir().join(format!("windfall-crate-page-4-{}", std::process::id()));
//! # let db = Database::open(&folder, Options::default().buffer_pool_size(16 << 20))?;
//! let orders = db.create_table("orders", TableOptions::default())?;
//! // By customer, and for each the latest first.
//! let key = |customer: &str, day: u32| CompositeKey::of((customer, CompositePart::descending_of(day)));
//! for (customer, day) in [("Ada", 20_260_104), ("Ada", 20_261_128), ("Adam", 20_260_301)] {
//!     orders.insert(&key(customer, day), b"")?;
//! }
//! let mut of_ada = orders.range(CompositeKey::of(("Ada",)).within())?;
//! let (latest, _) = of_ada.next().expect("Ada has orders")?;
//! assert_eq!(latest, *key("Ada", 20_261_128));
//! let parts: Vec<_> = CompositeKey::parts(&latest).collect::<windfall::Result<_>>()?;
//! assert_eq!(parts, ["Ada".into(), CompositePart::descending_of(20_261_128)]);
//! assert_eq!(of_ada.count(), 1);
//! # db.close()?;
//! # std::fs::remove_dir_all(&folder).ok();
//! # Ok(())
//! # }
//! ```
//!
//! # Drops
//!
//! [`Database::drop_table`], [`Database::truncate_table`] and [`Database::drop_index`] unlink what they drop. Frames,
//! memory and files are freed in the background, in small steps. [`DropReport`] has the counted work of the statement.
//!
//! ```
//! use windfall::{Database, Options, TableOptions};
//!
//! # fn main() -> windfall::Result<()> {
//! # let folder = std::env::temp_dir().join(format!("windfall-crate-page-3-{}", std::process::id()));
//! # let db = Database::open(&folder, Options::default().buffer_pool_size(16 << 20))?;
//! let day = db.create_table("2026-11-26", TableOptions::default())?;
//! day.insert(b"1", b"an event")?;
//! let report = db.drop_table("2026-11-26")?;
//! assert_eq!(report.trees, 1);
//! assert!(day.get(b"1").is_err());
//! # db.close()?;
//! # std::fs::remove_dir_all(&folder).ok();
//! # Ok(())
//! # }
//! ```
//!
//! # Where to find what
//!
//! - [`Options`]: the buffer pool, the log, durability, limits. [`Metrics`]: what the engine has done, and has yet to
//!   do.
//! - [`Range`], [`Cursor`], [`IndexRange`], [`IndexCursor`]: rows in order. [`Table::get_many`]: rows by many keys.
//!   [`Session`], [`TemporaryTable`]: temporary tables.
//! - [`error`]: one type for each family of operations, all converted into [`Error`]. A message names the object, and
//!   the remedy if there is one.
//! - [`disk`] and [`mod@env`]: what [`Database::open_on`] takes instead of a folder and the clock, for simulations.
//!
//! **Purpose.** The API. The engine behind it is the crate `windfall-engine`; ARCHITECTURE.md is for its developers.
//! The examples of README.md are tests of this crate.
//!
//! **Invariants.** Every type that a public item mentions can be named from here, and `public-items.txt` lists the
//! items (test: `the_list_has_every_public_item`).
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod alteration;
mod auto_increment;
mod check;
mod cursor;
mod database;
mod ddl_group;
mod fields;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod get_many;
mod get_one;
mod index;
mod interrupt;
mod load;
mod metrics;
mod range;
mod sample;
mod scope;
mod session;
mod table;
#[cfg(test)]
mod tests;
mod transaction;
mod tx_table;

#[cfg(feature = "fuzz")]
use windfall_base::fuzz_input;
use windfall_base::{composite, keys, sync};
pub use windfall_base::{error, row};
use windfall_btree::{page, tree};
use windfall_engine::{buffer, catalog, engine, log, options, store, tablespace, txn};

pub use alteration::TableAlteration;
pub use catalog::{DropReport, MadeEntry};
pub use check::{CheckReport, CheckedTree};
pub use composite::{CompositeKey, CompositePart, CompositeParts, CompositeValue};
pub use cursor::{BATCH_ROWS, Batch, Condition, Cursor, CursorMemory, Seek};
pub use database::{Database, IndexOptions, TableInfo, TableOptions};
pub use ddl_group::{DdlGroup, TableChanges};
pub use error::{Error, Result};
pub use get_many::Values;
pub use ids::IndexNumber;
pub use index::{
    Index, IndexBatch, IndexCursor, IndexEntry, IndexItem, IndexKey, IndexRange, IndexRow, OneRow,
};
pub use interrupt::InterruptHandle;
pub use keys::{Key, KeyRange};
pub use load::{LoadOptions, TableLoad};
pub use log::FlushLog;
pub use metrics::Metrics;
pub use options::Options;
pub use range::Range;
pub use session::{Scratch, Session, TemporaryLoad, TemporaryTable, TemporaryTableInfo};
pub use sync::{
    CountingAllocator, Event, Phase, Progress,
    work::{Work, WorkCounts, so_far as work_so_far},
};
pub use table::Table;
pub use transaction::{Isolation, LockWaitPolicy, Savepoint, StatementEnd, Transaction, TransactionOptions};
pub use tx_table::{Access, AutoCommit, InTransaction, SemiConsistentRead, TxIndex, TxTable};
pub use txn::{
    ExtractedEntries, FieldChange, IndexRef, SuppliedChange, SuppliedEntry, UndoLimitAction,
    locks::{
        Deadlock, DeadlockMember, HeldLock, Lock, LockParty, LockWaitObserver, ObservedWait, RowMode,
        RowName, TableMode, WaitOutcome, Waiting,
    },
    mvcc::listing::{TransactionInfo, TransactionState, ViewInfo},
    trx::prepared::PreparedTransaction,
};

/// The files of a database: [`Database::open_on`] takes any [`Disk`](disk::Disk).
pub mod disk {
    #[cfg(feature = "fuzz")]
    pub(crate) use windfall_base::disk::fuzz;
    pub use windfall_base::disk::{
        Action, BLOCK_BYTES, Completion, Disk, FileName, Folder, IoBuffer, Queue, RealDisk, RealDiskOptions,
        Request,
    };
}

/// Clock, randomness and background workers: [`Database::open_on`] takes any [`Env`](env::Env).
pub mod env {
    pub use windfall_base::env::{Check, Env, Next, RealEnv, Step, Worker, WorkerClass};
}

/// Numbers of tablespaces, pages and transactions, and positions in the log.
pub mod ids {
    pub(crate) use windfall_base::ids::pages_of;
    pub use windfall_base::ids::{IndexNumber, Lsn, PageId, PageNo, SpaceId, TrxId};
}

/// The examples of README.md.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
