//! The disk and the environment of simulations, for tests of the storage engine Windfall.
//!
//! **Purpose.** The engine runs on them as on a real disk and a real clock, but on one thread. Everything random comes
//! from a seed: crashes, torn writes, failures, and the order of background steps.
//!
//! **Invariants.** Each module states its own.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod disk;
mod env;

pub use disk::{Fault, SimulatedDisk, Survive};
pub use env::SimulatedEnv;
