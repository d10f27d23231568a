//! `detach`: Windfall.
//!
//! **Purpose.** The product's own pool, which needs no policy from here: [`windfall::buffer::BufferPool::detach`].
//!
//! **Invariants.** The steps:
//! 1. The tablespace is marked as dropped, one store, and pushed on the reclaimer's queue.
//!
//! Nothing in the pool is looked at, with the hash index on or off. The tablespace's own page table is the chain of its
//! frames, which are the next that anybody takes; its hash index goes with it, and its file is deleted in paced steps
//! in the background.
//!
//! **May touch.** The engine's counted work, and what it tells of a drop.
//!
//! What the engine counted while it dropped is told in the same [`Steps`] as for the others: entries of lists, frames,
//! and latches of pages, which stand for look-ups, because that is how the engine comes to a page. Those of the
//! catalog, which is a tree like the others' dictionary, are left out as theirs are.

use windfall::{DropReport, sync::work::Work};

use super::Steps;

/// What a drop did to the pool, as the engine counted it.
pub fn steps(report: &DropReport) -> Steps {
    Steps {
        lru_walked: report.work.of(Work::ListEntry),
        frames_scanned: report.work.of(Work::Frame),
        looked_up: report.work.of(Work::Latch),
        ..Steps::default()
    }
}
