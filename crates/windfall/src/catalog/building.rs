//! What changes in a table while a secondary tree of it is being filled.
//!
//! **Purpose.** Row calls go on while the tree is filled, and do not write to it. They note here which of its entries
//! their change concerns, and so do rollbacks; whoever fills the tree looks at these entries again.
//!
//! **Invariants.** A change of a row notes the entries of the value before and of the value after, under the row's
//! turn and before it changes anything; so the builder, which takes the note and then the turn, finds what became of
//! the change. A rollback has no turn, and notes both sides behind its change of the row: what is taken of the notes
//! from then on is looked at afterwards, and the notes that are taken when the rollback has ended miss nothing of it.
//! A row whose entry stays the same is not noted, unless there can be no entry of its new value. Notes are no more than
//! [`MOST`] bytes and what the calls and rollbacks under way add: a later one waits, outside the gate, and the builder
//! never waits for it without a look at the notes now and then.
//!
//! **May touch.** `error`, `key`, `store`, `transaction`, `env`, `sync`.

use std::collections::BTreeSet;

use super::key::KeySpec;
use crate::{
    env::Env,
    error::{Error, Result},
    store::Tree,
    sync::{
        Arc, Bug, Event, Mutex, Rank,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
        planted,
    },
    transaction::{Follower, entry_key},
};

/// Bytes of notes that are kept at most, while the rows are collected and loaded.
pub(super) const MOST: usize = 64 << 20;
/// What a note takes beside its bytes.
pub(super) const NOTE: usize = 64;

/// A secondary tree that is being filled.
#[derive(Debug)]
pub struct Building {
    tree: Arc<Tree>,
    key: KeySpec,
    notes: Mutex<BTreeSet<Vec<u8>>>,
    bytes: AtomicUsize,
    /// A rollback could not say what it has changed.
    lost: Mutex<Option<Error>>,
    /// Nobody looks at the notes any more.
    ended: AtomicBool,
    /// From so many bytes on who changes a row waits.
    limit: AtomicUsize,
    room: Event,
    env: Arc<dyn Env>,
}

impl Building {
    /// Nothing is noted yet; from so many bytes of notes on a change of a row waits.
    pub(super) fn new(tree: Arc<Tree>, key: KeySpec, limit: usize, env: Arc<dyn Env>) -> Self {
        Self {
            tree,
            key,
            notes: Mutex::new(Rank::Leaf, BTreeSet::new()),
            bytes: AtomicUsize::new(0),
            lost: Mutex::new(Rank::Leaf, None),
            ended: AtomicBool::new(false),
            limit: AtomicUsize::new(limit),
            room: Event::new(),
            env,
        }
    }

    /// The tree that is being filled.
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// Notes that a row is about to change. The row's lock is held.
    pub fn note(&self, row: &[u8], before: Option<&[u8]>, after: Option<&[u8]>) {
        let entry = |value: Option<&[u8]>| value.map(|value| entry_key(&self.key.key_of(value), row));
        // Where the key lies behind what an index looks at, values of one entry may have one or not.
        let fits = after.is_none_or(|after| self.key.whole_key_of(after).is_ok())
            || planted(Bug::KeyOutOfReachNotNoted);
        let (before, after) = (entry(before), entry(after));
        if before == after && fits {
            return;
        }
        let mut notes = self.notes.lock();
        for entry in [before, after].into_iter().flatten() {
            let length = entry.len() + NOTE;
            if notes.insert(entry) {
                self.bytes.fetch_add(length, Relaxed);
            }
        }
    }

    /// Takes the notes of this moment.
    pub(super) fn take(&self) -> BTreeSet<Vec<u8>> {
        self.take_some(usize::MAX)
    }

    /// Takes so many of the notes of this moment, the lowest, or all of them.
    pub(super) fn take_some(&self, most: usize) -> BTreeSet<Vec<u8>> {
        let taken: BTreeSet<Vec<u8>> = {
            let mut notes = self.notes.lock();
            if notes.len() <= most {
                self.bytes.store(0, Relaxed);
                core::mem::take(&mut *notes)
            } else {
                let taken: BTreeSet<Vec<u8>> = core::iter::from_fn(|| notes.pop_first()).take(most).collect();
                let bytes = taken.iter().map(|entry| entry.len() + NOTE).sum();
                self.bytes.fetch_sub(bytes, Relaxed);
                taken
            }
        };
        self.room.notify();
        taken
    }

    /// How many notes there are.
    pub(super) fn count(&self) -> usize {
        self.notes.lock().len()
    }

    /// Bytes of notes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Whether all was noted that has changed.
    pub(super) fn check_track(&self) -> Result<()> {
        self.lost.lock().clone().map_or(Ok(()), Err)
    }

    /// Lets so many notes come before who changes a row waits.
    pub(super) fn limit(&self, bytes: usize) {
        self.limit.store(bytes, Relaxed);
        self.room.notify();
    }

    /// Whether a change of a row should wait for room.
    pub(super) fn is_full(&self) -> bool {
        self.bytes() >= self.limit.load(Relaxed) && !self.ended.load(SeqCst)
    }

    /// Waits for room. The caller is inside no gate.
    pub(super) fn wait_for_room(&self) {
        self.env.wait(&self.room, &mut || !self.is_full());
    }

    /// Whether a change of a row waits for room.
    #[cfg(test)]
    pub(super) fn is_room_awaited(&self) -> bool {
        self.room.has_waiters()
    }

    /// The tree is filled, or given up.
    pub(super) fn end(&self) {
        self.ended.store(true, SeqCst);
        self.room.notify();
    }
}

impl Follower for Building {
    fn note(&self, row: &[u8], before: Option<&[u8]>, after: Option<&[u8]>) {
        Self::note(self, row, before, after);
    }

    fn lose_track(&self, error: Error) {
        self.lost.lock().get_or_insert(error);
    }

    fn is_full(&self) -> bool {
        Self::is_full(self)
    }

    fn wait_for_room(&self) {
        Self::wait_for_room(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::KeyPart;

    #[test]
    fn both_sides_of_a_change_are_noted_once_and_what_stays_is_not() {
        let (tree, _) = crate::catalog::tests::lone_tree();
        let key = KeySpec { parts: vec![KeyPart::Value { offset: 0, length: 1 }] };
        let building = Building::new(tree, key, MOST, Arc::new(windfall_sim::SimulatedEnv::new(1)));
        building.note(b"row", None, Some(b"a1"));
        building.note(b"row", Some(b"a1"), Some(b"a2"));
        building.note(b"row", Some(b"a2"), Some(b"b"));
        building.note(b"row", Some(b"b"), None);
        let bytes = building.bytes();
        assert_eq!(bytes, 2 * (entry_key(b"a", b"row").len() + NOTE));
        assert_eq!(Vec::from_iter(building.take()), [entry_key(b"a", b"row"), entry_key(b"b", b"row")]);
        assert_eq!(building.bytes(), 0);
        for key in [b"c", b"d", b"e"] {
            building.note(b"row", None, Some(key));
        }
        assert_eq!(Vec::from_iter(building.take_some(2)), [entry_key(b"c", b"row"), entry_key(b"d", b"row")]);
        assert_eq!((building.count(), building.bytes()), (1, entry_key(b"e", b"row").len() + NOTE));
        building.bytes.store(MOST, Relaxed);
        assert!(building.is_full());
        building.end();
        building.wait_for_room();
    }
}
