//! The lab: historical buffer pools under Windfall's tree, and what they do at a DROP TABLE.
//!
//! **Purpose.** Runs fifteen years of DROP TABLE on one machine, in one run. The tree is Windfall's own, written
//! against the traits of [`windfall_btree::tree::store`]. Its pages are kept by a classic buffer pool, with the lists,
//! the mutexes and the global hash index of the servers of 2005 to 2021. Each policy removes a dropped table from the
//! pool as one of those servers did.
//!
//! **Invariants.** None of this is in the engine: `windfall` does not depend on this crate (by type). A module imports
//! only from modules before it in this list: [`watch`], [`pool`], [`system`], [`policy`], [`results`], [`server`],
//! [`seam`], [`workload`], [`experiment`], [`report`].
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
