//! The disk and the environment of simulations, for tests of the storage engine Windfall.
//!
//! **Purpose.** The engine runs on them as on a real disk and a real clock; the simulated environment runs it on one
//! thread. Everything random comes from a seed: crashes, torn writes, and the order of background steps. A test plans
//! failures itself.
//!
//! **Invariants.** Each module states its own.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod disk;
mod env;

pub use disk::{Fault, SimulatedDisk, Survive};
pub use env::SimulatedEnv;
