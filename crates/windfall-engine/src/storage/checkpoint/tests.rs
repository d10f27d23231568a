//! Checkpoints without concurrent work.
//!
//! **Purpose.** What a checkpoint records, whatever workers do before and after it.
//!
//! **Method.** There is no worker: the tests make each step.

use super::*;
use crate::{buffer::test_pool::new_pool, health::Health};

/// No transactions: a checkpoint finds none unfinished.
pub(crate) struct NoTransactions;

impl TransactionNotes for NoTransactions {
    fn note(&self, _: &mut GroupWriter) -> Option<Lsn> {
        None
    }

    fn ceilings(&self) -> (u64, u64) {
        (1000, 1000)
    }
}

/// The workers end after the last checkpoint of a shutdown, and may be about to make another one.
#[test]
fn no_checkpoint_comes_after_that_of_a_clean_shutdown() {
    let (disk, pool) = new_pool(64);
    let control = || ControlFile::open(Arc::new(disk.clone()), Health::new()).unwrap();
    let checkpointer = Checkpointer::new(pool, control());
    checkpointer.end_recovery(Arc::new(NoTransactions));
    checkpointer.checkpoint(false).unwrap();
    assert!(!control().control().clean);
    checkpointer.checkpoint(true).unwrap();
    let recorded = control().control().clone();
    assert!(recorded.clean);
    checkpointer.checkpoint(false).unwrap();
    assert_eq!(*control().control(), recorded);
}
