//! `detach`: Windfall.
//!
//! **Purpose.** The product's own pool, which needs no policy from here. The work that the engine counts during a drop
//! is reported in the same [`Steps`] as for the other policies: list entries, frames, and page latches. Latches stand
//! for look-ups, because the engine reaches a page through its latch. Work in the catalog, which is a tree like the
//! dictionary of the other servers, is left out, as theirs is.
//!
//! **Invariants.** Nothing in the pool is examined, with the hash index on or off (test:
//! `x2_to_x5_count_the_steps_of_the_policies`).
//!
//! **Steps.**
//! 1. The tablespace is marked as dropped, by one store, and pushed on the reclaimer's queue.
//!
//! The tablespace's own page table lists its frames, which are the next ones to be reused. Its hash index is removed
//! with it, and its file is deleted in paced steps in the background.

use windfall::{DropReport, Work};

use super::Steps;

/// Returns the steps of a drop as the engine counted them.
pub fn steps(report: &DropReport) -> Steps {
    Steps {
        lru_walked: report.work.of(Work::ListEntry),
        frames_scanned: report.work.of(Work::Frame),
        looked_up: report.work.of(Work::Latch),
        ..Steps::default()
    }
}
