//! Pages between the log and the disk.
//!
//! **Purpose.** The log, the buffer pool, checkpoints, mini-transactions, tablespaces and their files, the store of a
//! tree's pages, the system tree, and recovery. The crate re-exports these modules at its root. The folder is not one
//! layer: `recovery` is above the catalog, and `txn::locks` below the log (ARCHITECTURE.md).
//!
//! **Invariants.** Nothing here depends on tables, or on transactions beyond their ids (test:
//! `the_workspace_keeps_the_house_rules`); a tablespace has two values for the layers above, the stamp of its creation
//! and the lock of a check.

pub mod buffer;
pub mod checkpoint;
pub mod log;
pub mod mtr;
pub mod recovery;
pub mod store;
pub mod system;
pub mod tablespace;
