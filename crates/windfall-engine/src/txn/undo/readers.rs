//! The readers of long values of a session's temporary tables.
//!
//! **Purpose.** A temporary table has no read views: a reader of a long value is registered here, with the stream of
//! its session (`temporary`).
//!
//! **Invariants.** Readers are kept in the order in which they were registered (checked by `undo/readers.rs::enter`),
//! each with a snapshot that was made before (by type). So all transactions that the snapshot of the first one covers
//! had ended when any other was registered, and purge that keeps what the first one needs keeps what all need.

use std::collections::BTreeMap;

use crate::{
    sync::{Arc, Mutex, Rank},
    txn::mvcc::Snapshot,
};

/// The readers of long values of a session's temporary tables, in the order in which they were registered.
#[derive(Debug)]
pub(super) struct Readers(Mutex<Entered>);

#[derive(Debug, Default)]
struct Entered {
    next: u64,
    readers: BTreeMap<u64, Arc<Snapshot>>,
}

impl Default for Readers {
    fn default() -> Self {
        Self(Mutex::new(Rank::Leaf, Entered::default()))
    }
}

impl Readers {
    /// Registers a reader with its snapshot. Returns its number.
    pub(super) fn enter(&self, snapshot: Arc<Snapshot>) -> u64 {
        let mut entered = self.0.lock();
        let number = entered.next;
        entered.next += 1;
        entered.readers.insert(number, snapshot);
        debug_assert!(
            entered.readers.last_key_value().is_some_and(|(last, _)| *last == number),
            "a reader is not behind those that were registered before"
        );
        number
    }

    /// Removes a reader.
    pub(super) fn leave(&self, number: u64) {
        let removed = self.0.lock().readers.remove(&number);
        debug_assert!(removed.is_some(), "a reader leaves once");
    }

    /// Returns the snapshot of the oldest reader.
    pub(super) fn oldest(&self) -> Option<Arc<Snapshot>> {
        let entered = self.0.lock();
        entered.readers.first_key_value().map(|(_, snapshot)| snapshot.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TrxId;

    #[test]
    fn the_oldest_reader_is_the_first_that_was_registered() {
        let readers = Readers::default();
        let oldest = || readers.oldest().map(|snapshot| snapshot.covers_all_up_to(TrxId(4)));
        let numbers = [4, 5, 6].map(|high| readers.enter(Arc::new(Snapshot::new(Vec::new(), TrxId(high)))));
        assert_eq!(oldest(), Some(false));
        readers.leave(numbers[1]);
        assert_eq!(oldest(), Some(false));
        readers.leave(numbers[0]);
        assert_eq!(oldest(), Some(true));
        readers.leave(numbers[2]);
        assert_eq!(oldest(), None);
    }
}
