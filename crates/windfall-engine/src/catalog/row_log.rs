//! The row log of an index build: notes of changes to a table while secondary trees of it are being filled (`InnoDB`:
//! online log).
//!
//! **Purpose.** Row calls run while the trees are filled, and do not write to them. They note here the index entries
//! that their change affects, and so do rollbacks; the builder that fills the trees applies these entries again. For
//! the trees whose entries a function of the builder's caller makes they note the row instead, once for all of them,
//! with the first bytes of its value, and the builder's thread calls the function.
//!
//! **Invariants.** A change of a row notes the entries of the value before and of the value after (tests:
//! `rows_change_while_an_index_is_built`, `rows_are_noted_as_they_are_where_a_function_makes_the_entries`), under the
//! row's key latch and before it changes anything; so the builder,
//! which takes the note and then the latch, finds the result of the change. A rollback holds no key latch, and notes
//! both sides (test: `transactions_of_every_kind_go_on_while_an_index_is_built`) after its change of the row: so a note
//! of it is applied after that change, and notes taken after the rollback has ended miss nothing of it. An entry that
//! stays the same is not noted, unless the index cannot hold an entry of the row's new value (test:
//! `a_row_whose_index_key_is_out_of_reach_is_refused_whenever_it_comes`), and a change notes those of each index (test:
//! `a_change_is_noted_for_each_index_whose_entry_it_changes`). Notes take at most [`NOTES_LIMIT_BYTES`]
//! bytes, plus what the calls and rollbacks in progress add (test:
//! `changes_that_are_faster_than_the_index_build_wait_for_room`). A later call waits outside the gate, and the builder
//! never waits for such a call without applying notes from time to time (test:
//! `changes_that_are_faster_than_the_index_build_wait_for_room`).

use std::collections::BTreeSet;

use smallvec::SmallVec;

use super::key::KeySpec;
use crate::{
    env::Env,
    error::{Error, LockError, Result},
    store::Tree,
    sync::{
        Arc, Event, InterruptibleWait, Mutex, Rank,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    txn::{Follower, entry_key},
};

/// The limit of notes, in bytes, while the rows are collected and loaded.
pub(super) const NOTES_LIMIT_BYTES: usize = 64 << 20;
/// The overhead of a note in bytes.
pub(super) const NOTE_OVERHEAD_BYTES: usize = 64;

/// Bytes of the length of a row's key in its note.
const ROW_KEY_LENGTH_BYTES: usize = 2;

/// Returns the note of a row with a value that begins with these bytes.
fn note_of_row(row: &[u8], value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(row.len()).expect("the key limit is below 64 KiB");
    [&length.to_le_bytes(), row, value].concat()
}

/// Returns the key of a noted row, and the first bytes of its value.
pub(super) fn row_of_note(note: &[u8]) -> (&[u8], &[u8]) {
    let (length, rest) =
        note.split_first_chunk::<ROW_KEY_LENGTH_BYTES>().expect("a note of a row has a length");
    rest.split_at(u16::from_le_bytes(*length).into())
}

/// A note: what has changed, and the bytes of an entry, or the row with the first bytes of its value.
pub(super) type Note = (Noted, Vec<u8>);

/// What a note is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Noted {
    /// An entry of the tree with this place among those that are filled.
    Entry(usize),
    /// A row, of which a function makes the entries.
    Row,
}

/// A secondary tree that is being filled.
#[derive(Debug)]
pub(super) struct FilledTree {
    pub(super) tree: Arc<Tree>,
    /// How entries are made; `None` if rows are noted instead.
    pub(super) key: Option<KeySpec>,
}

/// The notes of changes to a table, and the secondary trees that are being filled.
#[derive(Debug)]
pub struct RowLog {
    filled: Vec<FilledTree>,
    notes: Mutex<BTreeSet<Note>>,
    bytes: AtomicUsize,
    /// Set if a rollback could not read what it has changed.
    lost: Mutex<Option<Error>>,
    /// Set when notes are no longer applied.
    ended: AtomicBool,
    /// The bytes of notes at which changes of rows begin to wait.
    limit: AtomicUsize,
    room: Arc<Event>,
    env: Arc<dyn Env>,
}

impl RowLog {
    /// Returns a log without notes. A change of a row waits once there are `limit` bytes of notes.
    pub(super) fn new(filled: Vec<FilledTree>, limit: usize, env: Arc<dyn Env>) -> Self {
        Self {
            filled,
            notes: Mutex::new(Rank::Leaf, BTreeSet::new()),
            bytes: AtomicUsize::new(0),
            lost: Mutex::new(Rank::Leaf, None),
            ended: AtomicBool::new(false),
            limit: AtomicUsize::new(limit),
            room: Arc::default(),
            env,
        }
    }

    /// Returns the trees that are being filled.
    pub fn trees(&self) -> impl Iterator<Item = &Arc<Tree>> {
        self.filled.iter().map(|filled| &filled.tree)
    }

    /// Notes that a row is about to change. The caller must hold the row's key latch.
    pub fn note(&self, row: &[u8], before: Option<&[u8]>, after: Option<&[u8]>) {
        let mut noted = SmallVec::<[Note; 4]>::new();
        for (n, filled) in self.filled.iter().enumerate() {
            let Some(key) = &filled.key else { continue };
            // Of two values with the same entry, one may be allowed, and the index key of the other may extend
            // beyond the bytes that an index reads.
            let fits = after.is_none_or(|after| key.whole_key_of(after).is_ok());
            let entries = [before, after].map(|value| Some(entry_key(&key.key_of(value?), row)));
            if entries[0] != entries[1] || !fits {
                noted.extend(entries.into_iter().flatten().map(|entry| (Noted::Entry(n), entry)));
            }
        }
        if before != after && self.filled.iter().any(|filled| filled.key.is_none()) {
            let rows = [before, after].map(|value| value.map(|value| note_of_row(row, value)));
            noted.extend(rows.into_iter().flatten().map(|row| (Noted::Row, row)));
        }
        if noted.is_empty() {
            return;
        }
        let mut notes = self.notes.lock();
        for note in noted {
            let length = note.1.len() + NOTE_OVERHEAD_BYTES;
            if notes.insert(note) {
                self.bytes.fetch_add(length, Relaxed);
            }
        }
        #[cfg(not(feature = "model"))]
        debug_assert!(self.bytes.load(Relaxed) >= notes.len() * NOTE_OVERHEAD_BYTES, "a note is not counted");
    }

    /// Takes all current notes.
    pub(super) fn take(&self) -> BTreeSet<Note> {
        self.take_some(usize::MAX)
    }

    /// Takes at most this many notes, those with the lowest keys.
    pub(super) fn take_some(&self, most: usize) -> BTreeSet<Note> {
        let taken: BTreeSet<Note> = {
            let mut notes = self.notes.lock();
            if notes.len() <= most {
                self.bytes.store(0, Relaxed);
                core::mem::take(&mut *notes)
            } else {
                let taken: BTreeSet<Note> = core::iter::from_fn(|| notes.pop_first()).take(most).collect();
                let bytes: usize = taken.iter().map(|(_, bytes)| bytes.len() + NOTE_OVERHEAD_BYTES).sum();
                debug_assert!(
                    self.bytes.load(Relaxed) >= bytes,
                    "more bytes of notes are taken than were counted"
                );
                self.bytes.fetch_sub(bytes, Relaxed);
                taken
            }
        };
        self.room.notify();
        taken
    }

    /// Returns the number of notes.
    pub(super) fn count(&self) -> usize {
        self.notes.lock().len()
    }

    /// Returns the bytes of notes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Returns an error if a change could not be noted.
    pub(super) fn check_notes(&self) -> Result<()> {
        self.lost.lock().clone().map_or(Ok(()), Err)
    }

    /// Sets the bytes of notes at which changes of rows begin to wait.
    pub(super) fn limit(&self, bytes: usize) {
        self.limit.store(bytes, Relaxed);
        self.room.notify();
    }

    /// Returns whether a change of a row should wait for room.
    pub(super) fn is_full(&self) -> bool {
        self.bytes() >= self.limit.load(Relaxed) && !self.ended.load(SeqCst)
    }

    /// Waits for room. Must not be called inside a gate.
    pub(super) fn wait_for_room(&self) {
        self.env.wait(&self.room, &mut || !self.is_full());
    }

    /// As [`RowLog::wait_for_room`], for a call that the interrupt of its thread may end.
    ///
    /// # Errors
    /// [`LockError::Interrupted`].
    pub(super) fn wait_for_room_interruptibly(&self) -> Result<(), LockError> {
        let waiting = InterruptibleWait::begin(&self.room);
        self.env.wait(&self.room, &mut || !self.is_full() || waiting.is_interrupted());
        if self.is_full() && waiting.is_interrupted() { Err(LockError::Interrupted) } else { Ok(()) }
    }

    /// Ends the notes: the trees are filled, or the build has failed.
    pub(super) fn end(&self) {
        self.ended.store(true, SeqCst);
        self.room.notify();
    }
}

#[cfg(feature = "testing")]
impl RowLog {
    /// Takes all current notes, which are then not applied. Returns their number.
    pub fn lose_notes(&self) -> usize {
        self.take().len()
    }

    /// Returns the number of notes.
    pub fn noted(&self) -> usize {
        self.count()
    }

    /// Returns the bytes of notes. Takes no lock.
    pub fn noted_bytes(&self) -> usize {
        self.bytes()
    }

    /// Returns whether a change of a row is waiting for room.
    pub fn is_room_awaited(&self) -> bool {
        self.room.has_waiters()
    }
}

impl Follower for RowLog {
    fn note(&self, row: &[u8], before: Option<&[u8]>, after: Option<&[u8]>) {
        Self::note(self, row, before, after);
    }

    fn note_unreadable(&self, error: Error) {
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
    use windfall_sim::SimulatedEnv;

    use super::*;
    use crate::{catalog::KeyPart, engine::test_engine::lone_tree};

    /// Returns a log for indexes with these keys.
    fn row_log(tree: &Arc<Tree>, keys: &[Option<KeySpec>]) -> RowLog {
        let filled = keys.iter().map(|key| FilledTree { tree: tree.clone(), key: key.clone() }).collect();
        RowLog::new(filled, NOTES_LIMIT_BYTES, Arc::new(SimulatedEnv::new(1)))
    }

    fn key_of(offset: u32) -> KeySpec {
        KeySpec { parts: vec![KeyPart::Value { offset, length: 1 }] }
    }

    fn bytes_of(notes: BTreeSet<Note>) -> Vec<Vec<u8>> {
        notes.into_iter().map(|(_, bytes)| bytes).collect()
    }

    #[test]
    fn a_change_is_noted_for_each_index_whose_entry_it_changes() {
        type Value = Option<&'static [u8]>;
        let (tree, _engine) = lone_tree();
        let row_log = row_log(&tree, &[Some(key_of(0)), None, Some(key_of(1)), None]);
        let of = |notes: BTreeSet<Note>| notes.into_iter().map(|(noted, _)| noted).collect::<Vec<_>>();
        let (first, third) = (Noted::Entry(0), Noted::Entry(2));
        let cases: [(Value, Value, &[Noted]); 6] = [
            (None, Some(b"ab."), &[first, third, Noted::Row]),
            (Some(b"ab."), Some(b"ac."), &[third, third, Noted::Row, Noted::Row]),
            (Some(b"ac."), Some(b"bc."), &[first, first, Noted::Row, Noted::Row]),
            (Some(b"bc."), Some(b"bc!"), &[Noted::Row, Noted::Row]),
            (Some(b"bc!"), Some(b"bc!"), &[]),
            (Some(b"bc!"), None, &[first, third, Noted::Row]),
        ];
        for (before, after, expected) in cases {
            row_log.note(b"row", before, after);
            assert_eq!(of(row_log.take()), expected, "{before:?} becomes {after:?}");
        }
        assert_eq!((row_log.count(), row_log.bytes()), (0, 0));
    }

    #[test]
    fn old_and_new_index_keys_are_noted_once_and_unchanged_ones_are_not() {
        let (tree, _engine) = lone_tree();
        let row_log = row_log(&tree, &[Some(key_of(0))]);
        row_log.note(b"row", None, Some(b"a1"));
        row_log.note(b"row", Some(b"a1"), Some(b"a2"));
        row_log.note(b"row", Some(b"a2"), Some(b"b"));
        row_log.note(b"row", Some(b"b"), None);
        let bytes = row_log.bytes();
        assert_eq!(bytes, 2 * (entry_key(b"a", b"row").len() + NOTE_OVERHEAD_BYTES));
        assert_eq!(bytes_of(row_log.take()), [entry_key(b"a", b"row"), entry_key(b"b", b"row")]);
        assert_eq!(row_log.bytes(), 0);
        for key in [b"c", b"d", b"e"] {
            row_log.note(b"row", None, Some(key));
        }
        assert_eq!(bytes_of(row_log.take_some(2)), [entry_key(b"c", b"row"), entry_key(b"d", b"row")]);
        assert_eq!(
            (row_log.count(), row_log.bytes()),
            (1, entry_key(b"e", b"row").len() + NOTE_OVERHEAD_BYTES)
        );
        row_log.bytes.store(NOTES_LIMIT_BYTES, Relaxed);
        assert!(row_log.is_full());
        row_log.end();
        row_log.wait_for_room();
    }

    #[test]
    fn rows_are_noted_as_they_are_where_a_function_makes_the_entries() {
        let (tree, _engine) = lone_tree();
        let row_log = row_log(&tree, &[None]);
        row_log.note(b"row", None, Some(b"a"));
        row_log.note(b"row", Some(b"a"), Some(b"a"));
        row_log.note(b"row", Some(b"a"), Some(b""));
        row_log.note(b"ro", Some(b"wb"), None);
        let notes = row_log.take();
        let rows: Vec<_> = notes.iter().map(|(_, note)| row_of_note(note)).collect();
        assert_eq!(rows, [(&b"ro"[..], &b"wb"[..]), (b"row", b""), (b"row", b"a")]);
        row_log.note(b"row", Some(b"a"), Some(b"a"));
        assert_eq!((row_log.count(), row_log.bytes()), (0, 0));
    }
}
