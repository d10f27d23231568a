//! Names, tables and DDL.
//!
//! **Purpose.** Decides which tables exist. Every DDL statement is one change of records in the system tree, in one
//! mini-transaction with one durable commit, however many tables it affects.
//!
//! **Invariants.** After a crash a statement is either complete or not begun: everything that it needs is made before
//! the one group that commits it, and everything that it leaves is recognised later because no record names it (test:
//! `first_runs_crash_at_every_operation`). No latch and no mutex is held while it waits for the log (checked by
//! `sync/lock.rs::take`), only the metadata lock on the names, the closed gate of the table itself, and the table lock
//! if it had to wait for transactions.
//!
//! **Steps of a drop.** [`Catalog::drop_tables`] does the following: take the metadata lock on the names; wait for the
//! transactions that have locked one of the tables; close the gates, which waits for the row calls in progress in these
//! tables; remove the records and log the drop as one group; wait for the log as a commit does; mark each tablespace
//! dropped and push it to the reclaimer's queue ([`BufferPool::detach`](crate::buffer::BufferPool::detach)); push the
//! table to the queue of what is freed in the background (`retired`).
//!
//! Statements on all tables with a prefix take the same steps once they have found and locked the names (`prefix`).

mod auto_increment;
mod bulk;
mod ddl;
mod ddl_options;
mod definition;
mod entry_maker;
mod existing_load;
mod filled;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod group;
mod index_build;
mod key;
mod metadata;
mod names;
mod note_run;
pub mod pause;
mod plan;
mod prefix;
mod record;
mod retired;
mod row_count;
mod row_log;
mod runs;
mod state;
mod statement;
mod table;
mod table_load;
mod temporary;

pub use auto_increment::Counter;
pub use ddl_options::DdlOptions;
pub use definition::{IndexDefinition, TableDefinition};
pub use entry_maker::MadeEntry;
pub use existing_load::TableLoad;
pub use group::{DdlStatement, TableChanges};
pub use index_build::{BuiltIndexes, MakeEntryOf};
pub use key::{KeyPart, KeySpec};
pub use metadata::METADATA_LIMIT;
pub use record::{IndexRecord, Metadata, TableRecord};
pub use row_log::RowLog;
pub use state::Catalog;
pub use statement::DropReport;
pub use table::{Call, Secondaries, Table, TableSchema};
pub use table_load::{LoadLimits, LoadedValue, Order, Rows};
pub use temporary::TemporaryLoad;
