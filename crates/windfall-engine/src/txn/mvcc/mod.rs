//! Multi-version concurrency control: which transactions have ended, and what a reader sees.
//!
//! **Purpose.** Ids of transactions, the table of active transactions, snapshots of it, read views, and the values of
//! entries. Older versions of rows are found by undo records, which is the layer above (`undo::versions`).
//!
//! **Invariants.** A version is visible to a reader if its transaction had ended when the reader's view was made, or is
//! the reader's own (test: `a_change_is_seen_by_its_own_transaction_alone`). Nothing here depends on undo records
//! (test: `the_workspace_keeps_the_house_rules`).

pub mod active;
pub mod ids;
pub mod listing;
mod pins;
pub mod snapshot;
pub mod value;
pub mod view;
pub mod visibility;

pub(in crate::txn) use active::Outcome;
pub use active::{Active, CurrentVersion};
pub use ids::Ids;
pub use snapshot::Snapshot;
pub use view::ReadView;
pub use visibility::Visibility;
