//! The disk and the environment of simulations, for tests of the storage engine Windfall.
//!
//! **Purpose.** The engine runs on them as on a real disk and a real clock; the simulated environment runs it on one
//! thread. A test plans failures itself.
//!
//! **Invariants.** Everything random comes from a seed: crashes and torn writes (test:
//! `a_seed_decides_the_order_of_completions`), and the order of background steps (test: `a_seed_decides_the_order`).
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod disk;
mod env;

pub use disk::{Fault, SimulatedDisk, Survive};
pub use env::SimulatedEnv;
