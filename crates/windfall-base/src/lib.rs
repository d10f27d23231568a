//! What every layer of the storage engine Windfall stands on.
//!
//! **Purpose.** The numbers that name things, keys and rows, errors, synchronisation, memory, and the world around the
//! engine (clock, randomness, workers, files). Nothing here knows a page.
//!
//! **Invariants.** Each module states its own. This crate is no public API: `windfall` gives out what users need.
//!
//! **May touch.** Nothing of the engine.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod disk;
pub mod env;
pub mod error;
pub mod health;
pub mod ids;
pub mod keys;
pub mod memory;
pub mod row;
pub mod sync;

pub use error::{Error, Result};
