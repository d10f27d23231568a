//! Names, tables and DDL.
//!
//! **Purpose.** Decides what exists. Every statement is one change of records in the system tree, in one
//! mini-transaction, with one durable commit, whatever number of tables it concerns.
//!
//! **Invariants.** A crash finds a statement wholly done or not begun: everything it needs is made before the one
//! group that counts, and everything it leaves behind is found by its absence from the records. No latch and no lock
//! is held across the wait for the log: only the claim on the names, and the closed gate of the table itself.
//!
//! **May touch.** `system`, `transaction`, `store`, `buffer`, `log`.
//!
//! The way of a drop ([`Catalog::drop_tables`]): claim the names; close the gates, which waits for row calls under way
//! in these very tables; remove the records and log the drop as one group; wait for the log as a commit does; mark each
//! tablespace dropped and push it on the reclaimer's queue ([`BufferPool::detach`](crate::buffer::BufferPool::detach));
//! push the table on the queue of what is freed in the background (`retired`). That is all.

mod build;
mod building;
mod bulk;
mod ddl;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod key;
mod load;
mod names;
mod numbers;
mod record;
mod retired;
mod runs;
mod table;
mod terms;
#[cfg(test)]
mod tests;

pub use ddl::{Catalog, DropReport, IndexDefinition, TableDefinition};
pub use key::{KeyPart, KeySpec};
pub use load::{Order, Rows};
pub use numbers::Numbers;
pub use record::{IndexRecord, TableRecord};
pub use table::{Call, Shape, Table};
pub use terms::Terms;
