//! The row log of an index build: notes of changes to a table while secondary trees of it are being filled (`InnoDB`:
//! online log).
//!
//! **Purpose.** Row calls run while the trees are filled, and do not write to them. They note here the index entries
//! that their change affects, and so do rollbacks; the builder that fills the trees applies these entries again. For
//! the trees whose entries a function of the builder's caller makes they note the row instead, once for all of them,
//! with the first bytes of its value, and the builder's thread calls the function.
//!
//! *Chosen fields.* A tree may be built of chosen fields of any length (`IndexOptions::reading`). A note of a row then
//! has the bytes that a reader of these fields reads, once for all trees with the same fields. The entries that the
//! tree may have of the row are known from the value before alone: a map from rows to their entries would be a second
//! tree of the size of the index, and the chains of the value before are purged. So such notes are as long as the
//! fields. They count like all others, exactly: a build in one step makes changes wait, and one in two steps writes
//! runs and fails at the limit. A change that leaves the chosen fields in their chains reads and notes nothing. Where
//! it changes them, it reads those of before from their chains, and those of after as they were stored, before it
//! changes the entry. Before it reads them the log looks for room for all of them, given their lengths: so near the
//! limit it may fail for notes that are in memory already, or that turn out to be equal.
//!
//! *Between the steps of an alteration.* Once the trees are filled, an alteration in two steps is left open, and its
//! notes are applied only on request. Changes then wait for no room ([`RowLog::wait_no_more`]): the change with which
//! the notes in memory reach a bound writes them to a run on disk ([`NoteRun`]), as `InnoDB`'s writers write the blocks
//! of its online log. The bytes of all notes are bounded. A change that would exceed the bound, or whose run cannot be
//! written, makes the log *fail*: it notes nothing any more, and the alteration gets the error.
//!
//! **Invariants.** A change of a row notes the entries of the value before and of the value after (tests:
//! `rows_change_while_an_index_is_built`, `rows_are_noted_as_they_are_where_a_function_makes_the_entries`), under the
//! row's key latch and before it changes anything; so the builder,
//! which takes the note and then the latch, finds the result of the change. A rollback holds no key latch, and notes
//! both sides (test: `transactions_of_every_kind_go_on_while_an_index_is_built`) after its change of the row: so a note
//! of it is applied after that change, and notes taken after the rollback has ended miss nothing of it. An entry that
//! stays the same is not noted, unless the index cannot hold an entry of the row's new value (test:
//! `a_row_whose_index_key_is_out_of_reach_is_refused_whenever_it_comes`), and a change notes those of each index (test:
//! `a_change_is_noted_for_each_index_whose_entry_it_changes`). A row is noted once for all trees that are filled of the
//! same fields (test: `rows_are_noted_with_each_choice_of_fields`). Notes take at most [`NOTES_LIMIT_BYTES`]
//! bytes, plus what the calls and rollbacks in progress add (test:
//! `changes_that_are_faster_than_the_index_build_wait_for_room`). A later call waits outside the gate, and the builder
//! never waits for such a call without applying notes from time to time (test:
//! `changes_that_are_faster_than_the_index_build_wait_for_room`).
//!
//! Between the steps of an alteration no change and no rollback waits for another thread because of its notes (test:
//! `writers_between_the_steps_of_an_alteration_do_not_wait`), and none fails because of them (test:
//! `an_alteration_fails_and_its_writers_do_not`). Notes in memory take less than the bytes of one run, and each thread
//! that writes a run has as many, and what one change has added (test: `notes_beyond_the_memory_go_to_runs`). A log
//! fails for want of room with the first change that would bring its notes above the limit, and with none before but
//! for chosen fields (above), however long the notes are and however slow the disk is: in memory, in runs, being
//! written, and read but not yet applied, each with [`NOTE_OVERHEAD_BYTES`] (tests: `the_limit_of_notes_is_exact`,
//! `notes_that_were_read_and_not_applied_count_towards_the_limit`, `a_slow_write_of_a_run_keeps_no_writer_waiting`,
//! `values_of_several_mib_are_noted_up_to_the_limit`). Values of chosen fields for whose notes there is no room are not
//! read (tests: `values_beyond_the_limit_of_notes_are_not_read`,
//! `a_log_without_room_for_values_fails_before_they_are_read`). No more notes are taken at a time once they have
//! [`TAKEN_BYTES`] (test: `long_notes_are_taken_few_at_a_time`). A note is in memory, in a run, or with the thread that
//! moves it, and counted until it is taken (test: `notes_beyond_the_memory_go_to_runs`). A log that has failed or ended
//! keeps no notes (test: `notes_beyond_the_memory_go_to_runs`), and changes and rollbacks then read and note nothing
//! for it, although it may be in the schema for a while (test: `a_log_that_has_ended_costs_a_writer_nothing`). The
//! alteration of a failed log is never finished (test: `an_alteration_fails_and_its_writers_do_not`). Thus none is
//! being written once the gate is closed and the transactions have ended: a call writes a run inside its table's gate,
//! and a rollback before its transaction ends.

use std::collections::{BTreeSet, VecDeque};

use smallvec::SmallVec;

use super::{key::KeySpec, note_run::NoteRun};
use crate::{
    buffer::BufferPool,
    env::Env,
    error::{Error, LockError, Owner, Result, UsageError},
    ids::SpaceId,
    row::FieldSet,
    store::Tree,
    sync::{
        Arc, Event, InterruptibleWait, Mutex, MutexGuard, OnceLock, Rank,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    txn::{Follower, entry_key, mvcc::value::INDEXED},
};

/// The limit of notes, in bytes, while the rows are collected and loaded.
pub(super) const NOTES_LIMIT_BYTES: usize = 64 << 20;
/// The overhead of a note in bytes.
pub(super) const NOTE_OVERHEAD_BYTES: usize = 64;

/// Bytes of notes that are enough to be taken at a time.
const TAKEN_BYTES: usize = 1 << 20;

/// Bytes of the length of a row's key in its note.
const ROW_KEY_LENGTH_BYTES: usize = 2;

/// Returns the note of a row with a value that begins with these bytes.
fn note_of_row(row: &[u8], value: &[u8]) -> Vec<u8> {
    [&length_of_key(row), row, value].concat()
}

fn length_of_key(row: &[u8]) -> [u8; ROW_KEY_LENGTH_BYTES] {
    u16::try_from(row.len()).expect("the key limit is below 64 KiB").to_le_bytes()
}

/// Returns the key of a noted row, and the first bytes of its value.
pub(super) fn row_of_note(note: &[u8]) -> (&[u8], &[u8]) {
    let (length, rest) =
        note.split_first_chunk::<ROW_KEY_LENGTH_BYTES>().expect("a note of a row has a length");
    rest.split_at(u16::from_le_bytes(*length).into())
}

/// A note: what has changed, and the bytes of an entry, or the row with the first bytes of its value.
pub(super) type Note = (Noted, Vec<u8>);

/// Returns the bytes that a note counts.
pub(super) fn bytes_of((_, bytes): &Note) -> usize {
    bytes.len() + NOTE_OVERHEAD_BYTES
}

/// What a note is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Noted {
    /// An entry of the tree with this place among those that are filled.
    Entry(usize),
    /// A row with the first bytes of its value, of which a function makes the entries.
    Row,
    /// A row with the value that this one of the log's readings reads.
    Read(usize),
}

/// A secondary tree that is being filled.
#[derive(Debug)]
pub(super) struct FilledTree {
    pub(super) tree: Arc<Tree>,
    /// How entries are made; `None` if rows are noted instead.
    pub(super) key: Option<KeySpec>,
    /// The fields of which entries are made.
    pub(super) reading: FieldSet,
}

/// The notes of a log.
#[derive(Debug, Default)]
struct Notes {
    memory: BTreeSet<Note>,
    /// Notes of a run that was read, and those that could not be applied.
    read: BTreeSet<Note>,
    /// Their bytes.
    read_bytes: usize,
    /// The rest, oldest first.
    runs: VecDeque<NoteRun>,
    /// The bytes of notes in these runs, and in one that is being read.
    run_bytes: usize,
    /// Tablespaces for further runs.
    spaces: Vec<SpaceId>,
    /// What is being written to runs.
    writing: Writing,
}

/// The runs that threads are writing.
#[derive(Clone, Copy, Debug, Default)]
struct Writing {
    runs: usize,
    notes: usize,
    bytes: usize,
}

impl Writing {
    fn add(&mut self, run: Self) {
        *self =
            Self { runs: self.runs + run.runs, notes: self.notes + run.notes, bytes: self.bytes + run.bytes };
    }

    fn subtract(&mut self, run: Self) {
        *self =
            Self { runs: self.runs - run.runs, notes: self.notes - run.notes, bytes: self.bytes - run.bytes };
    }
}

impl Notes {
    /// Returns the bytes of notes that are not in memory, or were read.
    fn other_bytes(&self) -> usize {
        self.read_bytes + self.run_bytes + self.writing.bytes
    }

    fn count(&self) -> usize {
        let in_runs: usize = self.runs.iter().map(NoteRun::count).sum();
        self.memory.len() + self.read.len() + in_runs + self.writing.notes
    }
}

/// Where a log writes notes that exceed the memory.
#[derive(Debug)]
struct Disk {
    pool: Arc<BufferPool>,
    /// The bytes of notes in memory that are written at once.
    run: usize,
    /// The limit of the bytes of all notes.
    limit: usize,
}

/// The notes of changes to a table, and the secondary trees that are being filled.
#[derive(Debug)]
pub struct RowLog {
    filled: Vec<FilledTree>,
    /// The sets of fields with which rows are noted, besides the first bytes.
    readings: Vec<FieldSet>,
    notes: Mutex<Notes>,
    /// The bytes of notes in memory, but for those that were read.
    bytes: AtomicUsize,
    /// The bytes of all others. Changes under the mutex.
    other_bytes: AtomicUsize,
    /// Set once changes wait no more.
    disk: OnceLock<Disk>,
    /// Set if a rollback could not read what it has changed, or the log has failed.
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
        let mut readings = Vec::new();
        for FilledTree { reading, .. } in filled.iter().filter(|filled| filled.key.is_none()) {
            if *reading != INDEXED && !readings.contains(reading) {
                readings.push(*reading);
            }
        }
        Self {
            filled,
            readings,
            notes: Mutex::new(Rank::Leaf, Notes::default()),
            bytes: AtomicUsize::new(0),
            other_bytes: AtomicUsize::new(0),
            disk: OnceLock::new(),
            lost: Mutex::new(Rank::Leaf, None),
            ended: AtomicBool::new(false),
            limit: AtomicUsize::new(limit),
            room: Arc::default(),
            env,
        }
    }

    /// Returns whether it notes nothing any more. Costs a load.
    pub fn has_ended(&self) -> bool {
        self.ended.load(SeqCst)
    }

    /// Returns the trees that are being filled.
    pub fn trees(&self) -> impl Iterator<Item = &Arc<Tree>> {
        self.filled.iter().map(|filled| &filled.tree)
    }

    /// Returns whether rows are noted with chosen fields.
    pub fn reads_fields(&self) -> bool {
        !self.readings.is_empty()
    }

    /// Returns whether entries, or the first bytes of rows, are noted.
    pub fn notes_first_bytes(&self) -> bool {
        self.filled.iter().any(|filled| filled.key.is_some() || filled.reading == INDEXED)
    }

    /// Returns what the notes of rows for a tree are that is filled of these fields.
    pub(super) fn noted_with(&self, reading: FieldSet) -> Noted {
        self.readings.iter().position(|other| *other == reading).map_or(Noted::Row, Noted::Read)
    }

    /// Notes that a row is about to change. The caller must hold the row's key latch.
    pub fn note(&self, row: &[u8], before: Option<&[u8]>, after: Option<&[u8]>) {
        if self.has_ended() {
            return;
        }
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
        if self.filled.iter().any(|filled| filled.key.is_none() && filled.reading == INDEXED) {
            let sides = if before == after { [None; 2] } else { [before, after] };
            noted.extend(sides.into_iter().flatten().map(|value| (Noted::Row, note_of_row(row, value))));
        }
        self.add(noted);
    }

    /// Returns whether notes of a row with values of these lengths do not exceed the limit, whatever is in memory
    /// already. If they do, the log fails: values of any length are not read to find out that there is no room for
    /// them.
    fn has_room_for(&self, row: &[u8], values: &[u64]) -> bool {
        if self.has_ended() {
            return false;
        }
        let Some(disk) = self.disk.get() else { return true };
        let each = (ROW_KEY_LENGTH_BYTES + row.len() + NOTE_OVERHEAD_BYTES) as u64;
        let all = values.iter().fold(0, |all: u64, value| all.saturating_add(each).saturating_add(*value));
        let notes = self.notes.lock();
        let held = (self.bytes() + notes.other_bytes()) as u64;
        drop(notes);
        // `fail` takes the mutex, too.
        let has_room = held.saturating_add(all) <= disk.limit as u64;
        if !has_room {
            self.fail(disk.exceeded());
        }
        has_room
    }

    fn add(&self, noted: SmallVec<[Note; 4]>) {
        if noted.is_empty() {
            return;
        }
        let mut notes = self.notes.lock();
        // It may have ended, and been emptied, since.
        if self.has_ended() {
            return;
        }
        let disk = self.disk.get();
        for note in noted {
            let length = bytes_of(&note);
            let held = self.bytes() + notes.other_bytes();
            if let Some(disk) =
                disk.filter(|disk| held + length > disk.limit && !notes.memory.contains(&note))
            {
                drop(notes);
                return self.fail(disk.exceeded());
            }
            if notes.memory.insert(note) {
                self.bytes.fetch_add(length, Relaxed);
            }
        }
        #[cfg(not(feature = "model"))]
        debug_assert!(
            self.bytes.load(Relaxed) >= notes.memory.len() * NOTE_OVERHEAD_BYTES,
            "a note is not counted"
        );
        if let Some(disk) = disk.filter(|disk| self.bytes() >= disk.run) {
            self.write_run(disk, notes);
        }
    }

    /// Writes the notes in memory to a run. Others note meanwhile, and write runs of their own. While there is no
    /// tablespace, which does not last, the notes stay in memory.
    fn write_run(&self, disk: &Disk, mut notes: MutexGuard<'_, Notes>) {
        let Some(space) = notes.spaces.pop() else { return };
        let moved = core::mem::take(&mut notes.memory);
        let now = Writing { runs: 1, notes: moved.len(), bytes: self.bytes.swap(0, Relaxed) };
        notes.writing.add(now);
        self.count_others(&notes);
        drop(notes);
        let written = NoteRun::write(&disk.pool, space, &moved);
        let mut notes = self.notes.lock();
        notes.writing.subtract(now);
        match written {
            Ok(run) if !self.has_ended() => {
                debug_assert!(
                    run.bytes() == now.bytes,
                    "the bytes of the notes of a run are not those of the run"
                );
                notes.run_bytes += run.bytes();
                notes.runs.push_back(run);
                self.count_others(&notes);
            }
            // The log has ended meanwhile. The run is not dropped under the mutex.
            Ok(run) => {
                drop(notes);
                drop(run);
            }
            Err(error) => {
                drop(notes);
                self.fail(error);
            }
        }
    }

    /// Ends the notes with an error, which the alteration gets.
    fn fail(&self, error: Error) {
        self.lost.lock().get_or_insert(error);
        self.end();
    }

    /// From now on no change waits for room: notes beyond the memory go to runs. `run` is the bytes of notes that are
    /// written at once, and `limit` bounds the bytes of all. Tablespaces must be provided before.
    pub(super) fn wait_no_more(&self, pool: Arc<BufferPool>, run: usize, limit: usize) {
        let set = self.disk.set(Disk { pool, run, limit });
        assert!(set.is_ok(), "the changes of a table stop waiting twice");
        self.limit(usize::MAX);
    }

    /// Returns how many tablespaces it lacks for this number of runs.
    pub(super) fn lacks(&self, runs: usize) -> usize {
        let notes = self.notes.lock();
        let used = notes.runs.len() + notes.spaces.len() + notes.writing.runs;
        runs.saturating_sub(used)
    }

    /// Adds new tablespaces for runs.
    pub(super) fn provide(&self, spaces: Vec<SpaceId>) {
        self.notes.lock().spaces.extend(spaces);
    }

    /// Takes all current notes in memory, while there are no others.
    pub(super) fn take(&self) -> BTreeSet<Note> {
        let taken = {
            let mut notes = self.notes.lock();
            debug_assert!(
                notes.count() == notes.memory.len(),
                "notes are on disk, and those in memory are taken alone"
            );
            self.bytes.store(0, Relaxed);
            core::mem::take(&mut notes.memory)
        };
        self.room.notify();
        taken
    }

    /// Returns whether so many notes with so many bytes are as many as are taken at a time.
    pub(super) fn are_enough(count: usize, bytes: usize, most: usize) -> bool {
        count >= most || bytes >= TAKEN_BYTES
    }

    /// Takes at most this many notes: those of the oldest runs first, in the order of their keys. No more are taken
    /// once they have [`TAKEN_BYTES`]; but at least one is, if there is any.
    ///
    /// # Errors
    /// Damage, I/O: a run cannot be read.
    pub(super) fn take_some(&self, most: usize) -> Result<BTreeSet<Note>> {
        let (mut taken, mut taken_bytes) = (BTreeSet::new(), 0);
        let are_enough = |taken: &BTreeSet<Note>, bytes| Self::are_enough(taken.len(), bytes, most);
        loop {
            let mut notes = self.notes.lock();
            // A note of one run may be in the next one, too, and is taken once.
            while !are_enough(&taken, taken_bytes)
                && let Some(note) = notes.read.pop_first()
            {
                let bytes = bytes_of(&note);
                notes.read_bytes -= bytes;
                taken_bytes += bytes;
                taken.insert(note);
            }
            if are_enough(&taken, taken_bytes) {
                self.count_others(&notes);
                break;
            }
            if let Some(run) = notes.runs.pop_front() {
                drop(notes);
                let bytes = run.bytes();
                let read = run.read().inspect_err(|error| self.fail(error.clone()))?;
                let mut notes = self.notes.lock();
                // A log that has ended meanwhile counts nothing any more.
                if self.has_ended() {
                    drop(notes);
                } else {
                    notes.run_bytes -= bytes;
                    (notes.read, notes.read_bytes) = (read, bytes);
                }
                continue;
            }
            self.count_others(&notes);
            while !are_enough(&taken, taken_bytes)
                && let Some(note) = notes.memory.pop_first()
            {
                let bytes = bytes_of(&note);
                taken_bytes += bytes;
                let before = self.bytes.fetch_sub(bytes, Relaxed);
                debug_assert!(before >= bytes, "more bytes of notes are taken than were counted");
                taken.insert(note);
            }
            break;
        }
        self.room.notify();
        Ok(taken)
    }

    /// Takes back notes that could not be applied.
    pub(super) fn put_back(&self, notes: BTreeSet<Note>) {
        let mut held = self.notes.lock();
        if self.has_ended() {
            return;
        }
        for note in notes {
            let bytes = bytes_of(&note);
            if held.read.insert(note) {
                held.read_bytes += bytes;
            }
        }
        self.count_others(&held);
    }

    fn count_others(&self, notes: &Notes) {
        self.other_bytes.store(notes.other_bytes(), Relaxed);
    }

    /// Returns the number of notes.
    pub(super) fn count(&self) -> usize {
        self.notes.lock().count()
    }

    /// Returns the bytes of notes in memory.
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
        let bytes = self.bytes() + self.other_bytes.load(Relaxed);
        bytes >= self.limit.load(Relaxed) && !self.ended.load(SeqCst)
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

    /// Ends the notes, and frees them: the trees are filled, or the build has failed.
    pub(super) fn end(&self) {
        self.ended.store(true, SeqCst);
        let freed = {
            let mut notes = self.notes.lock();
            self.bytes.store(0, Relaxed);
            let writing = notes.writing;
            core::mem::replace(&mut *notes, Notes { writing, ..Notes::default() })
        };
        // Not under the mutex.
        drop(freed);
        self.room.notify();
    }
}

#[cfg(any(test, feature = "testing"))]
impl RowLog {
    /// Returns the number of runs on disk.
    pub fn runs(&self) -> usize {
        self.notes.lock().runs.len()
    }
}

impl Disk {
    fn exceeded(&self) -> Error {
        UsageError::TooManyNotes { owner: Owner::Unknown, limit: self.limit }.into()
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

    fn readings(&self) -> &[FieldSet] {
        &self.readings
    }

    fn notes_first_bytes(&self) -> bool {
        Self::notes_first_bytes(self)
    }

    fn has_room_for(&self, row: &[u8], values: &[u64]) -> bool {
        Self::has_room_for(self, row, values)
    }

    fn begin_note(&self, row: &[u8]) -> Vec<u8> {
        [&length_of_key(row), row].concat()
    }

    fn note_read(&self, reading: usize, before: Option<Vec<u8>>, after: Option<Vec<u8>>) {
        if before != after {
            let notes = [before, after].into_iter().flatten();
            self.add(notes.map(|note| (Noted::Read(reading), note)).collect());
        }
    }

    fn has_ended(&self) -> bool {
        Self::has_ended(self)
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
mod tests;
