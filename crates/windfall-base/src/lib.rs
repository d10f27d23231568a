//! The base of every layer of the storage engine Windfall.
//!
//! **Purpose.** Typed identifiers, keys and rows, errors, synchronisation, memory, and the environment of the engine
//! (clock, randomness, workers, files). Nothing here depends on the format of a page. Errors, ranks of locks and kinds
//! of work are lists for all layers: they name things of the layers above, and use nothing of them.
//!
//! **Invariants.** This crate is not a public API: `windfall` re-exports what users need (test:
//! `the_list_has_every_public_item`).
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod composite;
pub mod disk;
pub mod env;
pub mod error;
pub mod failpoint;
#[cfg(feature = "fuzz")]
pub mod fuzz_input;
pub mod health;
pub mod ids;
pub mod keys;
pub mod memory;
pub mod row;
pub mod sync;

pub use error::{Error, Result};
