//! Interleavings of ordered commits, their notes, and snapshots between them.

use super::*;
use crate::{
    ids::TrxId,
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
        model::{explore, spawn},
    },
};

/// Three transactions, of which the bits of `visible` are those that have committed. The log of the application is a
/// number of which the decimal digits are the transactions in the order of the notes.
#[derive(Default)]
struct Shared {
    order: CommitOrder,
    visible: AtomicU64,
    noted: AtomicU64,
}

impl Shared {
    /// Commits. Returns the transactions that were visible just before.
    fn commit(&self, trx: TrxId) -> u64 {
        let commit = || Ok::<_, ()>(self.visible.fetch_or(1 << trx.0, SeqCst));
        // The application is alone in its callback: it needs no step of its own that is atomic.
        let note = |_: &u64| self.noted.store(self.noted.load(Relaxed) * 10 + trx.0, Relaxed);
        self.order.commit(commit, note).unwrap()
    }

    /// Returns the transactions that a snapshot sees, and those that are noted, in their order.
    fn snapshot(&self) -> (u64, Vec<u64>) {
        self.order.between(|| {
            let visible = self.visible.load(SeqCst);
            let mut noted = self.noted.load(Relaxed);
            let mut in_order = Vec::new();
            while noted > 0 {
                in_order.insert(0, noted % 10);
                noted /= 10;
            }
            (visible, in_order)
        })
    }
}

/// Three transactions commit in an order, while another thread takes snapshots between two commits.
///
/// Catches: a commit that gives up its place before it is noted; a snapshot that does not wait for a note.
#[test]
fn commits_are_noted_in_the_order_in_which_they_become_visible() {
    explore(4000, &["NotedOutOfOrder", "SnapshotOutOfOrder"], || {
        let shared = Arc::new(Shared::default());
        let writers = [1, 2, 3].map(|trx| {
            let shared = shared.clone();
            spawn(move || shared.commit(TrxId(trx)))
        });
        for _ in 0..3 {
            let (visible, noted) = shared.snapshot();
            let of_log = noted.iter().fold(0, |all, trx| all | 1 << trx);
            assert_eq!(visible, of_log, "a snapshot sees other commits than the log has");
        }
        let before = writers.map(|writer| writer.join().unwrap());
        let (_, noted) = shared.snapshot();
        assert_eq!(noted.len(), 3, "a commit is not noted");
        let mut visible = 0;
        for trx in noted {
            assert_eq!(before[trx as usize - 1], visible, "the log has another order than the commits");
            visible |= 1 << trx;
        }
    });
}
