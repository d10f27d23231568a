//! The number of log syncs for the commits of eight threads.
//!
//! **Purpose.** Commits that arrive during a sync share the next one (group commit). Their number depends on the
//! disk: if a sync ends before another thread has something to commit, there is nothing to share.
//!
//! **Invariants.** A bound applies where a sync lasts as long as the work of all threads between two of their commits;
//! elsewhere the ratio is a fact, with the reason why it is not a claim (test:
//! `nothing_is_claimed_of_a_disk_whose_syncs_are_over_at_once`).
//!
//! **Method.** Compared values are measured in turns, by one thread.

use std::time::Instant;

use windfall_measure::median;

use super::harness::{Bench, Bound};
use crate::{
    args::Commit,
    engine::{self, Database},
    failure::Result,
};

/// Number of committing threads.
pub(super) const THREADS: usize = 8;

/// The cost of a commit with a single thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct SingleThread {
    /// A commit that is only written, in microseconds.
    written_us: f64,
    /// The additional time of the sync, in microseconds.
    sync_us: f64,
}

impl SingleThread {
    /// Measures `count` commits of each kind, each with its own number. From then on commits are synced.
    pub(super) fn measure(db: &Database, count: usize, commit: impl Fn(usize) -> Result<()>) -> Result<Self> {
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

    /// Returns whether all other threads can reach their next commit during one sync, even if they run one after
    /// another.
    fn can_share(self) -> bool {
        self.sync_us >= THREADS as f64 * self.written_us
    }

    /// Compares the syncs of eight threads with their commits, or records why that shows nothing here.
    pub(super) fn compare(self, bench: &mut Bench, id: &str, what: &str, syncs: u64, commits: u64) {
        let Self { written_us, sync_us } = self;
        bench.fact(format!("a {what} that is written, 1 thread, median µs"), written_us);
        bench.fact(format!("a sync of the log for a {what}, 1 thread, median µs"), sync_us);
        let ratio = syncs as f64 / commits as f64;
        if self.can_share() {
            bench.claim(id, ratio, Bound::AtMost(0.25));
        } else {
            let why = format!(
                "{ratio:.2}, and no claim: a sync of the log takes {sync_us:.1} µs here and a {what} without one \
                 {written_us:.1} µs, so few of {THREADS} threads commit while one is in progress"
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
        let can_share = |written_us, sync_us| SingleThread { written_us, sync_us }.can_share();
        assert!(can_share(20.0, 1000.0) && can_share(20.0, 160.0));
        assert!(!can_share(20.0, 159.0) && !can_share(20.0, 0.0));
    }
}
