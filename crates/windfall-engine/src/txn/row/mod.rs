//! Rows: changes and locking reads of a transaction.
//!
//! **Purpose.** A row change (`change`) is planned (`plan`), writes a long value (`long_value`), and then changes the
//! clustered entry (`clustered`) and the secondary entries. `locking_read` reads rows that then stay unchanged until
//! the transaction ends. A call that is blocked by another transaction waits at a point where it holds nothing
//! (`conflict`).
//!
//! **Invariants.** The functions here work for one running transaction (by type) and use all layers below; no layer
//! below depends on them (test: `the_workspace_keeps_the_house_rules`).

mod change;
mod clustered;
pub mod conflict;
mod edit;
pub mod entry;
mod extract;
mod locking_read;
mod long_value;
mod new_fields;
mod plan;
mod row_lock;
pub mod secondary;
mod target;

pub use change::{Changed, change};
pub use conflict::{Attempts, Blocked, SingleCall, Stop, retry};
pub use edit::{Edit, FieldChange, Mode, Value};
pub use entry::{ENTRY_VALUE_MAX, Entry, EntryForm, EntryParts, IndexRef, SuppliedChange, SuppliedEntry};
pub use extract::{Extract, ExtractedEntries, Extraction, Extractors};
pub use locking_read::{EntryOfRow, LockingRead, has_left, lock_range, read_final_entry, read_locked};
pub use plan::{check_length, entries_of_new_row};
pub use row_lock::{held_before, lock_table, lock_table_if_blocked, unlock_row};
pub use target::{IndexKeys, KeysOf, RowTarget, Secondary, Watch};
