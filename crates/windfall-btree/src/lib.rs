//! The B+tree of the storage engine Windfall.
//!
//! **Purpose.** The format of pages and the changes of them that are logged (`page`), and the tree (`tree`): an
//! algorithm over pages, written against the traits of [`tree::store`], which the engine's buffer pool and
//! mini-transactions implement, and so may any other pool.
//!
//! **Invariants.** Nothing here knows the log, the pool or transactions: Cargo prevents it. A version header is a value
//! that the tree carries. Nothing here knows files or the clock either: of `windfall-base` it imports only the modules
//! that are named below. This crate is no public API.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod page;
pub mod tree;

#[cfg(feature = "fuzz")]
use windfall_base::fuzz_input;
use windfall_base::{error, ids, keys, memory, sync};
