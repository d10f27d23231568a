//! Windfall: a transactional B+tree storage engine in which dropping a table costs the same whatever the buffer pool
//! holds, and no other query notices.
//!
//! **Purpose.** The floors, lowest first; a module imports only from floors below its own (ARCHITECTURE.md).
//!
//! **Invariants.** ARCHITECTURE.md lists them, each with the tests that hold it.
//!
//! **May touch.** Everything: this is the whole house.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod buffer;
pub mod checkpoint;
pub mod disk;
pub mod env;
pub mod error;
pub mod health;
pub mod ids;
pub mod log;
pub mod mtr;
pub mod page;
pub mod recovery;
pub mod store;
pub mod sync;
pub mod system;
pub mod tablespace;
pub mod transaction;
pub mod tree;
