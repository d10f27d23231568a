//! Undo: the records of changes, their rollback and their purge.
//!
//! **Purpose.** Each row change writes an undo record (`record`) to a stream (`stream`; `directory` has all of them).
//! The record is read by readers of older versions (`versions`, `entry_versions`), by rollback (`rollback`), and by
//! purge (`purge`), which removes delete-marked entries and old values of committed transactions, and drops the undo
//! itself.
//!
//! **Invariants.** Nothing here depends on transactions as such, only on their ids: `mvcc` answers which of them have
//! ended (test: `the_workspace_keeps_the_house_rules`). The state of a transaction as a whole is in the layer above
//! (`trx`) (test: `the_workspace_keeps_the_house_rules`).

pub mod chains;
pub mod directory;
pub mod entry_versions;
pub(crate) mod followers;
pub mod limit;
mod pass;
pub mod position;
pub mod purge;
mod purge_state;
mod readers;
pub mod record;
pub mod rollback;
pub mod stream;
pub mod temporary;
pub mod versions;

pub use directory::Streams;
pub use entry_versions::{EntryAndRow, FoundEntry};
pub use followers::{Follower, Followers, Following};
pub use limit::{UndoLimit, UndoLimitAction};
pub use purge::Purge;
pub use stream::Stream;
pub(in crate::txn) use stream::UndoContext;
pub use temporary::TemporaryRead;
pub use versions::Versions;
