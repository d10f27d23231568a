//! Entries that an index build has deferred ([`Deferred`]).
//!
//! **Purpose.** The index would have to be refused because of these entries, but the changes of their rows may still
//! roll back: they are applied again.
//!
//! **Invariants.** Each entry is there once (checked by `index_build/deferred.rs::put`), and the oldest is taken first
//! (test: `deferred_entries_are_checked_again_in_turn`).

use std::collections::{BTreeSet, VecDeque};

use super::super::{entry_maker::EntryKey, row_log::NOTE_OVERHEAD_BYTES};

/// Deferred entries.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    /// Each with the place of its tree among those that are filled.
    pub(super) entries: BTreeSet<(usize, EntryKey)>,
    /// The entries of `entries`, the oldest first.
    order: VecDeque<(usize, EntryKey)>,
    pub(super) bytes: usize,
}

impl Deferred {
    pub(super) fn put(&mut self, tree: usize, entry: &EntryKey) {
        let entry = (tree, entry.clone());
        if !self.entries.contains(&entry) {
            self.bytes += entry.1.bytes.len() + NOTE_OVERHEAD_BYTES;
            self.order.push_back(entry.clone());
            self.entries.insert(entry);
        }
        debug_assert!(self.entries.len() == self.order.len(), "the order has each deferred entry once");
    }

    /// Takes the oldest one. If it took them in the order of their keys, a steady supply of new entries with higher
    /// keys could starve the others.
    pub(super) fn take_next(&mut self) -> Option<(usize, EntryKey)> {
        let next = self.order.pop_front()?;
        let was_there = self.entries.remove(&next);
        debug_assert!(was_there, "an entry in the order is deferred");
        self.bytes -= next.1.bytes.len() + NOTE_OVERHEAD_BYTES;
        debug_assert!(!self.entries.is_empty() || self.bytes == 0, "bytes are counted of no deferred entry");
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deferred_entries_are_checked_again_in_turn() {
        let mut deferred = Deferred::default();
        // Those of several trees are in one queue.
        let entry = |n: u32| (n as usize % 3, EntryKey::new(&n.to_be_bytes(), 2));
        let entries = |from: u32| (from..from + 50).map(entry);
        let put = |deferred: &mut Deferred, entry: &(usize, EntryKey)| deferred.put(entry.0, &entry.1);
        entries(1000).for_each(|entry| put(&mut deferred, &entry));
        // For each one that is taken and deferred again, a new one arrives: with a higher key than all others, or a
        // lower one.
        for (from, there) in [(2000, 50), (0, 100)] {
            let mut look_again = |entry: (usize, EntryKey)| {
                let next = deferred.take_next().unwrap();
                put(&mut deferred, &next);
                put(&mut deferred, &next);
                put(&mut deferred, &entry);
                next
            };
            let seen: BTreeSet<_> = (from..from + there).map(|n| look_again(entry(n))).collect();
            assert!(entries(1000).all(|entry| seen.contains(&entry)), "{from}: some were passed over");
        }
        assert_eq!(deferred.bytes, 200 * (4 + NOTE_OVERHEAD_BYTES));
        assert_eq!(core::iter::from_fn(|| deferred.take_next()).count(), 200);
        assert_eq!((deferred.bytes, deferred.entries.len()), (0, 0));
    }
}
