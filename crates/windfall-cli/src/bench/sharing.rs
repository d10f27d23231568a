//! How many syncs of the log the commits of eight threads make.
//!
//! **Purpose.** Commits that come while a sync is under way share the next one. How many come depends on the disk:
//! where a sync is over before another thread has something to commit, there is nothing to share.
//!
//! **Invariants.** A bound is set where a sync lasts as long as what all threads do between two of their commits.
//! Elsewhere the ratio is a fact, and says why it is no claim. What is compared is measured in turns, by one thread.
//!
//! **May touch.** `engine`, `windfall-measure`.

use std::time::Instant;

use windfall_measure::median;

use super::harness::{Bench, Bound};
use crate::{
    args::Commit,
    engine::{self, Database},
    failure::Result,
};

/// How many threads commit.
pub const THREADS: usize = 8;

/// What a commit takes of a thread that is alone.
#[derive(Clone, Copy, Debug)]
pub struct Alone {
    /// One that is written, in microseconds.
    written_us: f64,
    /// What the sync adds to that, in microseconds.
    sync_us: f64,
}

impl Alone {
    /// Measures so many commits of each kind, each with a number of its own. From then on commits are synced.
    pub fn measure(db: &Database, count: usize, commit: impl Fn(usize) -> Result<()>) -> Result<Self> {
        let (mut written, mut synced) = (Vec::new(), Vec::new());
        for n in 0..count {
            for (number, mode, times) in
                [(2 * n, Commit::Write, &mut written), (2 * n + 1, Commit::Sync, &mut synced)]
            {
                engine::set_commit(db, mode);
                let start = Instant::now();
                commit(number)?;
                times.push(start.elapsed().as_nanos() as f64 / 1e3);
            }
        }
        let written_us = median(&written);
        Ok(Self { written_us, sync_us: (median(&synced) - written_us).max(0.0) })
    }

    /// Whether all other threads come to their next commit while a sync is under way, one after another if need be.
    fn can_share(self) -> bool {
        self.sync_us >= THREADS as f64 * self.written_us
    }

    /// Compares the syncs of eight threads with their commits, or says why that shows nothing here.
    pub fn judge(self, bench: &mut Bench, id: &str, what: &str, syncs: u64, commits: u64) {
        let Self { written_us, sync_us } = self;
        bench.fact(format!("a {what} that is written, 1 thread, median µs"), written_us);
        bench.fact(format!("a sync of the log for a {what}, 1 thread, median µs"), sync_us);
        let ratio = syncs as f64 / commits as f64;
        if self.can_share() {
            bench.claim(id, ratio, Bound::AtMost(0.25));
        } else {
            let why = format!(
                "{ratio:.2}, and no claim: a sync of the log takes {sync_us:.1} µs here and a {what} without one \
                 {written_us:.1} µs, so few of {THREADS} threads come while one is under way"
            );
            bench.fact(id, why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_claimed_of_a_disk_whose_syncs_are_over_at_once() {
        let can_share = |written_us, sync_us| Alone { written_us, sync_us }.can_share();
        assert!(can_share(20.0, 1000.0) && can_share(20.0, 160.0));
        assert!(!can_share(20.0, 159.0) && !can_share(20.0, 0.0));
    }
}
