//! The readers of long values of a session's temporary tables.
//!
//! **Purpose.** A temporary table has no read views: a reader of a long value is registered here, with the stream of
//! its session (`temporary`).
//!
//! **Invariants.** Readers are kept in the order in which they began, so the first one has the oldest snapshot.

use std::collections::BTreeMap;

use crate::{
    sync::{Arc, Mutex, Rank},
    txn::mvcc::Snapshot,
};

/// The readers of long values of a session's temporary tables, in the order in which they began.
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
        let before = entered.readers.insert(number, snapshot);
        debug_assert!(before.is_none(), "two readers have one number");
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
