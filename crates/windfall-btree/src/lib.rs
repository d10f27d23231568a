//! The B+tree of the storage engine Windfall.
//!
//! **Purpose.** The page format and the logged changes of pages (`page`), and the tree (`tree`): an algorithm over
//! pages, written against the traits of [`tree::store`]. The engine's buffer pool and mini-transactions implement these
//! traits; any other pool can, too.
//!
//! **Invariants.** Nothing here depends on the log, the pool or transactions, of which a version header is only a value
//! that the tree stores for its users: Cargo enforces that (by type). Nothing here depends on files or the clock
//! either: of `windfall-base` it imports only the modules that are named below (test:
//! `the_workspace_keeps_the_house_rules`). This crate is not a public API: `windfall` exports what users need of it
//! (test: `the_list_has_every_public_item`).
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod page;
pub mod tree;

#[cfg(feature = "fuzz")]
use windfall_base::fuzz_input;
use windfall_base::{error, ids, keys, memory, sync};
