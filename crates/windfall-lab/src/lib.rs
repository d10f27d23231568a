//! The lab: the buffer pools of history under Windfall's tree, and what they did at a drop.
//!
//! **Purpose.** Fifteen years of DROP TABLE on one machine, in one run. The tree is Windfall's own, written against the
//! traits of [`windfall::tree::store`]; what keeps its pages here is a classic buffer pool, with the lists, mutexes and
//! the global hash index of the servers of 2005 to 2021, and with the way each of them forgot a dropped table.
//!
//! **Invariants.** Nothing of this is in the engine: `windfall` does not know this crate. A room imports from rooms
//! below it only: [`watch`], [`pool`], [`system`], [`policy`], [`results`], [`server`], [`seam`], [`workload`],
//! [`experiment`], [`report`].
//!
//! **May touch.** The library `windfall` with its feature `lab`, and `windfall-measure`.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![allow(clippy::cast_sign_loss, reason = "what is cast here are sizes and times, and not negative")]

pub mod experiment;
pub mod policy;
pub mod pool;
pub mod report;
pub mod results;
pub mod seam;
pub mod server;
pub mod system;
#[cfg(test)]
mod testing;
pub mod watch;
pub mod workload;
