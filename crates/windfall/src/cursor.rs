//! Cursors: positions among rows.
//!
//! **Purpose.** A cursor over the live rows of a tree: it seeks, moves forward and backward, and lends the row at its
//! position.
//!
//! **Invariants.** A cursor holds no latch between two calls (test: `a_seek_reads_again`). It passes the table's gate
//! in each call that needs more than the entries that were read ahead (checked by `windfall/src/cursor.rs::make`). If
//! the tablespace that it began on was dropped, by a drop or a truncation, every further call fails with
//! [`Error::TableDropped`](crate::error::Error::TableDropped), whatever has replaced it (test:
//! `a_cursor_ends_with_its_table`). Rows are found in order, each once per direction (test:
//! `cursors_walk_like_a_model`). The row that the cursor lends does not change until the cursor moves (by type).
//!
//! The [`Reader`] decides what is visible: outside of a transaction a cursor takes a view at each seek, in a
//! transaction the isolation level decides which view it uses (test:
//! `a_snapshot_is_stable_while_rows_and_indexes_change`). So the rows that it returns between two seeks are of one
//! snapshot (test: `a_seek_reads_again`), except at levels that read without a view. A locking cursor (`locking`) reads
//! the newest version of each row (test: `a_locking_cursor_reads_the_newest_version_of_each_row`).
//!
//! A cursor finds what its own transaction has changed before each step, although it has read ahead (tests:
//! `an_open_cursor_finds_later_changes_of_its_transaction`, `steps_read_ahead_while_other_tables_change`), and one that
//! locks rows does, too (test: `an_open_locking_cursor_finds_later_changes_of_its_transaction`).
//!
//! The memory of a cursor that was dropped has buffers alone (by type): a cursor that uses it reads what a new one
//! reads, and no view stays open for it (test: `a_cursor_in_the_memory_of_another_one_is_like_a_new_one`).
//!
//! An interrupt ends a move that passes over any number of entries (test:
//! `an_interrupt_ends_a_move_over_many_entries`).

mod batch;
mod filter;
mod locking;
mod semi_consistent;

use core::ops::{Bound, RangeBounds};

use crate::{
    catalog::Table,
    engine::Engine,
    error::{CorruptError, Owner, Result},
    get_one::TakenLock,
    ids::{SpaceId, TrxId},
    page::EntryHeader,
    row::FieldSet,
    scope::{Inner, RowLock, Scope, ScopeRef, tables::SeenChanges},
    store::Tree,
    sync::{Arc, LongWork, is_inside},
    tree,
    txn::{
        EntryAndRow, EntryForm, EntryParts, FoundEntry, ReadView, Snapshot, Transactions, Visibility,
        mvcc::value,
    },
};

pub(crate) use batch::{Sink, check_rows, is_full};
pub(crate) use filter::Wanted;
pub(crate) use locking::intention;
use semi_consistent::LockedRows;
pub(crate) use semi_consistent::{may_read_committed, read_committed_by_entry};

pub use batch::{BATCH_ROWS, Batch};
pub use filter::Condition;

pub use crate::tree::Seek;

/// A position among the rows of a table, in the order of their keys.
///
/// A new cursor is not positioned: [`Cursor::next`] moves to the first row, [`Cursor::prev`] to the last. Past an end
/// it is at no row, and moves back in from there. After an error it is not positioned, like a new one.
///
/// The rows that it finds between two seeks are of one snapshot; in a transaction the isolation level decides of which
/// one. On top of it a step finds what the transaction itself has changed, inserted and deleted before the step, also
/// while the cursor is open. So a program that changes rows while it scans them meets a row again that it moves ahead
/// of the cursor, as by raising the index key by which it scans: it reads the keys first, and then changes the rows.
/// What the transaction has rolled back, to a savepoint or with a failed statement, is not returned any more. A cursor
/// that locks rows reads each in its newest version.
///
/// ```
/// # fn main() -> windfall::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("windfall-cursor-{}", std::process::id()));
/// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
/// use windfall::{Seek, TableOptions};
///
/// let towns = db.create_table("towns", TableOptions::default())?;
/// for town in ["Basel", "Genoa", "Oslo"] {
///     towns.insert(town.as_bytes(), b"")?;
/// }
/// let mut cursor = towns.cursor()?;
/// assert!(cursor.seek(Seek::AtLeast(b"C"))?);
/// assert_eq!(cursor.key(), Some(&b"Genoa"[..]));
/// assert!(cursor.prev()?);
/// assert_eq!(cursor.key(), Some(&b"Basel"[..]));
/// assert!(!cursor.prev()?);
/// # db.close()?;
/// # std::fs::remove_dir_all(folder).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Cursor {
    engine: Arc<Engine>,
    table: Arc<Table>,
    entries: Entries,
    tree: Arc<Tree>,
    /// The table or index that the tree belongs to.
    owner: Owner,
    reader: Reader,
    /// The view that it reads with, from one seek to the next.
    view: Option<Arc<ReadView>>,
    /// Whether a seek keeps the view, too: the cursor belongs to a range.
    keeps_view: bool,
    /// How the entries come apart, if the tree is that of an index.
    form: Option<EntryForm>,
    /// Whether only index entries are wanted: their rows are not read, unless they are locked.
    covers: bool,
    /// The fields that it reads of rows that are stored as fields.
    fields: FieldSet,
    /// Whether its range was locked as a whole.
    is_range_locked: bool,
    /// The transactions that had ended before the entries were read: for locking reads of an index.
    ended: Option<Snapshot>,
    /// The lock on the row at the position, if the cursor has taken it and may release it again.
    releasable: Option<TakenLock>,
    /// What a cursor that locks for update does with rows that others have locked.
    locked_rows: LockedRows,
    /// The step that has moved a locking cursor past an end.
    beyond: Option<Move<'static>>,
    /// The keys between which a locking cursor locks a gap: that of its position, and that of the next entry.
    gap: [Vec<u8>; 2],
    /// The changes of the transaction to the table at the time when entries were read ahead.
    seen: SeenChanges,
    at: At,
    /// The value of the row, if it is not the value in the entry: it was read from overflow pages, from undo, or by the
    /// key that an index entry contains.
    long: Vec<u8>,
    /// The value of the index entry by which that row was read.
    entry_value: Vec<u8>,
}

/// The memory of a cursor that was dropped ([`Cursor::into_memory`], [`IndexCursor::into_memory`]), for another one.
///
/// [`IndexCursor::into_memory`]: crate::IndexCursor::into_memory
#[derive(Debug, Default)]
pub struct CursorMemory {
    entries: tree::CursorMemory,
    long: Vec<u8>,
    entry_value: Vec<u8>,
    gap: [Vec<u8>; 2],
    /// The buffers of a cursor over an index.
    pub(crate) unescaped: Vec<u8>,
    pub(crate) bounds: [Vec<u8>; 2],
}

/// The reader of a cursor, which decides what is visible.
#[derive(Clone, Debug)]
pub(crate) enum Reader {
    /// The session of a temporary table, in a transaction or not: it sees its own changes.
    Session(Option<ScopeRef>),
    /// A call outside of transactions.
    Alone,
    /// A transaction, with the lock for each row if the read is a locking one.
    InTransaction(ScopeRef, Option<RowLock>),
}

/// A position among all entries of the tree, live rows or not.
type Entries = tree::Cursor<Arc<Tree>>;

/// The position of the cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Nothing,
    /// A row with its value in the entry.
    Row,
    /// A row with its value in `Cursor::long`.
    CopiedRow,
    /// The same, of a locking cursor: the last committed version of a row that others have locked.
    CommittedRow,
}

/// A borrowed entry of an index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryRef<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// The value of its row; empty if that was not read.
    pub row: &'a [u8],
}

/// One move of a cursor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Move<'k> {
    To(Seek<'k>),
    Next,
    Prev,
}

impl Move<'_> {
    fn make(self, entries: &mut Entries) -> Result<bool> {
        debug_assert!(is_inside() || self.is_read_ahead(entries), "a cursor reads a tree outside the gate");
        match self {
            Move::To(place) => entries.seek(place),
            Move::Next => entries.next(),
            Move::Prev => entries.prev(),
        }
    }

    /// Returns whether it leads to an entry that was read ahead.
    fn is_read_ahead(self, entries: &Entries) -> bool {
        match self {
            Move::To(_) => false,
            Move::Next => entries.ahead(true).is_some(),
            Move::Prev => entries.ahead(false).is_some(),
        }
    }

    /// Returns the step that continues in the same direction.
    pub(crate) fn on(self) -> Move<'static> {
        match self {
            Self::Next | Self::To(Seek::First | Seek::AtLeast(_) | Seek::Above(_)) => Move::Next,
            Self::Prev | Self::To(Seek::Last | Seek::AtMost(_) | Seek::Below(_)) => Move::Prev,
        }
    }
}

impl Cursor {
    pub(crate) fn new(
        engine: Arc<Engine>,
        table: Arc<Table>,
        tree: Arc<Tree>,
        owner: Owner,
        reader: Reader,
    ) -> Self {
        let entries = tree::Cursor::new(tree.clone());
        Self {
            engine,
            table,
            entries,
            tree,
            owner,
            reader,
            view: None,
            keeps_view: false,
            form: None,
            covers: false,
            fields: FieldSet::ALL,
            is_range_locked: false,
            ended: None,
            releasable: None,
            locked_rows: LockedRows::Await,
            beyond: None,
            gap: Default::default(),
            seen: SeenChanges::default(),
            at: At::Nothing,
            long: Vec::new(),
            entry_value: Vec::new(),
        }
    }

    /// Replaces the content of `key` with a key that is greater than any key in the tree.
    pub(crate) fn key_above_all(&self, key: &mut Vec<u8>) {
        key.clear();
        key.resize(self.tree.key_limit() + 1, 0xff);
    }

    /// Makes it a cursor over the entries of an index.
    pub(crate) fn of_index(self, form: EntryForm) -> Self {
        Self { form: Some(form), ..self }
    }

    /// Makes it read these fields of rows that are stored as fields.
    pub(crate) fn reading(self, fields: FieldSet) -> Self {
        Self { fields, ..self }
    }

    /// Makes it return the entries of its index without the values of their rows.
    pub(crate) fn of_entries_alone(self) -> Self {
        Self { covers: true, ..self }
    }

    /// Returns another cursor in the same range and with the same view. It is not positioned yet.
    pub(crate) fn another(&self) -> Self {
        let (engine, table, tree) = (self.engine.clone(), self.table.clone(), self.tree.clone());
        let mut new = Self::new(engine, table, tree, self.owner.clone(), self.reader.clone());
        let (lower, upper) = self.entries.limits().bounds();
        new.entries.set_limits(lower, upper);
        let Self { keeps_view, form, covers, fields, is_range_locked, .. } = *self;
        Self { view: self.view.clone(), keeps_view, form, covers, fields, is_range_locked, ..new }
    }

    /// Drops the cursor, and returns its memory, for a cursor in the next transaction. The memory keeps no transaction,
    /// read view, table or index, and can be kept for any time.
    pub fn into_memory(self) -> CursorMemory {
        let Self { entries, long, entry_value, gap, .. } = self;
        CursorMemory { entries: entries.into_memory(), long, entry_value, gap, ..CursorMemory::default() }
    }

    /// Makes the cursor use the memory of one that was dropped, of the same or of another table: then its first reads
    /// need not allocate. It is not positioned afterwards, like a new one.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-cursor-memory-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{CursorMemory, Seek, TableOptions, TransactionOptions};
    ///
    /// let towns = db.create_table("towns", TableOptions::default())?;
    /// towns.insert(b"Genoa", b"560688")?;
    /// let mut memory = CursorMemory::default();
    /// for _ in 0..2 {
    ///     let trx = db.begin(TransactionOptions::default());
    ///     let mut cursor = trx.table(&towns).cursor()?.with_memory(memory);
    ///     assert!(cursor.seek(Seek::AtLeast(b"C"))?);
    ///     memory = cursor.into_memory();
    /// }
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_memory(mut self, memory: CursorMemory) -> Self {
        self.use_memory(memory);
        self
    }

    /// As [`Cursor::with_memory`]. Returns the rest of the memory.
    pub(crate) fn use_memory(&mut self, memory: CursorMemory) -> CursorMemory {
        debug_assert!(!self.keeps_view, "the cursor of an iterator is given other memory");
        let CursorMemory { entries, long, entry_value, gap, unescaped, bounds } = memory;
        self.entries.use_memory(entries);
        (self.long, self.entry_value, self.gap) = (long, entry_value, gap);
        (self.at, self.beyond, self.ended, self.releasable) = (At::Nothing, None, None, None);
        CursorMemory { unescaped, bounds, ..CursorMemory::default() }
    }

    /// Restricts the cursor to the rows with keys in a range, as if the table had no others: nothing beyond the range
    /// is read or locked. The cursor is not positioned afterwards, like a new one: a step or a seek moves it to a row,
    /// and reads what is committed then, as a seek does. `..` is the range of all rows.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-set-range-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// let towns = db.create_table("towns", windfall::TableOptions::default())?;
    /// for name in ["Aarau", "Basel", "Bern", "Chur"] {
    ///     towns.insert(name.as_bytes(), b"")?;
    /// }
    /// let mut cursor = towns.cursor()?;
    /// for (letter, after, count) in [("A", "B", 1), ("B", "C", 2), ("D", "E", 0)] {
    ///     cursor.set_range(letter..after);
    ///     let mut found = 0;
    ///     while cursor.next()? {
    ///         found += 1;
    ///     }
    ///     assert_eq!(found, count);
    /// }
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// To look up many ranges, one cursor that is restricted again for each is cheaper than many cursors or
    /// [`Range`](crate::Range)s. A locking cursor locks row by row as it moves; [`Cursor::lock_range`] locks the whole
    /// range at once.
    pub fn set_range<K: AsRef<[u8]>>(&mut self, range: impl RangeBounds<K>) {
        self.restrict(range.start_bound().map(AsRef::as_ref), range.end_bound().map(AsRef::as_ref));
    }

    /// As [`Cursor::set_range`].
    pub(crate) fn restrict(&mut self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) {
        debug_assert!(!self.keeps_view, "the cursor of an iterator is restricted to another range");
        self.entries.set_limits(lower, upper);
        self.is_range_locked = false;
        (self.at, self.beyond, self.ended, self.releasable) = (At::Nothing, None, None, None);
    }

    /// Moves to the row that `to` describes. Returns whether there is such a row; if not, the cursor is past that end.
    ///
    /// # Errors
    /// The table was dropped or truncated; damage, I/O; the view was ended to limit undo
    /// ([`TransactionError::ViewEnded`](crate::error::TransactionError::ViewEnded)). In a transaction also its errors
    /// ([`TransactionError`](crate::error::TransactionError)), an interrupt of a move over many entries, and, if the
    /// cursor locks rows, a lock that is not granted ([`LockError`](crate::error::LockError)).
    pub fn seek(&mut self, to: Seek<'_>) -> Result<bool> {
        self.go(Move::To(to), Wanted::within(&|_| true))
    }

    /// Moves to the next row. Returns whether there is one; if not, the cursor is after the last.
    ///
    /// # Errors
    /// As [`Cursor::seek`].
    #[expect(clippy::should_implement_trait, reason = "a cursor goes both ways and lends what it is at")]
    pub fn next(&mut self) -> Result<bool> {
        self.go(Move::Next, Wanted::within(&|_| true))
    }

    /// Moves to the previous row. Returns whether there is one; if not, the cursor is before the first.
    ///
    /// # Errors
    /// As [`Cursor::seek`].
    pub fn prev(&mut self) -> Result<bool> {
        self.go(Move::Prev, Wanted::within(&|_| true))
    }

    /// Moves, and skips entries that are not live rows, or not wanted.
    #[inline]
    pub(crate) fn go(&mut self, to: Move<'_>, mut wanted: Wanted<'_>) -> Result<bool> {
        (self.at, self.releasable) = (At::Nothing, None);
        let found = self.find(to, &mut wanted);
        if self.at == At::Nothing {
            // What was locked on the way is not at the position.
            self.releasable = None;
        }
        debug_assert!(
            self.beyond.is_none() || self.at == At::Nothing,
            "a cursor is past an end and at a row"
        );
        self.checked(found)
    }

    /// Returns the result of a move. After an error the cursor is not positioned.
    #[inline]
    fn checked<T>(&mut self, moved: Result<T>) -> Result<T> {
        // Entries read ahead are valid only if the view still exists.
        let moved = match &self.view {
            Some(view) => view.held(moved),
            None => moved,
        };
        moved.map_err(|error| {
            self.entries.reset();
            self.beyond = None;
            self.at = At::Nothing;
            if !self.keeps_view {
                self.view = None;
            }
            error.of(|_| self.owner.clone())
        })
    }

    fn find(&mut self, to: Move<'_>, wanted: &mut Wanted<'_>) -> Result<bool> {
        self.engine.check_open()?;
        if let Some(found) = self.find_ahead(to, wanted)? {
            return Ok(found);
        }
        match self.reader.clone() {
            Reader::Session(None) => self.find_seen(to, None, wanted),
            Reader::Session(Some(scope)) => {
                let call = scope.begin_call()?;
                let found = self.find_in_session(&call.inner, to, wanted);
                call.finish(found)
            }
            Reader::Alone => {
                if self.needs_view(to) && !self.view.as_ref().is_some_and(|view| view.is_current()) {
                    self.take_view(self.engine.transactions.versions().view().into());
                }
                self.find_seen(to, None, wanted)
            }
            Reader::InTransaction(scope, lock) => {
                let mut call = scope.begin_call()?;
                let found = self.find_in_transaction(&scope, &mut call.inner, lock, to, wanted);
                call.finish(found)
            }
        }
    }

    /// Returns whether this move takes a new view, if it reads with one: a seek, or the first step.
    fn needs_view(&self, to: Move<'_>) -> bool {
        self.view.is_none() || (matches!(to, Move::To(_)) || self.entries.is_new()) && !self.keeps_view
    }

    fn find_in_session(&mut self, inner: &Inner, to: Move<'_>, wanted: &mut Wanted<'_>) -> Result<bool> {
        self.discard_outdated(inner)?;
        self.find_seen(to, None, wanted)
    }

    fn find_in_transaction(
        &mut self,
        scope: &Scope,
        inner: &mut Inner,
        lock: Option<RowLock>,
        to: Move<'_>,
        wanted: &mut Wanted<'_>,
    ) -> Result<bool> {
        if let Some(lock) = lock.or_else(|| scope.plain_read_lock().map(RowLock::from)) {
            if self.is_range_locked || !scope.locks_gaps() {
                self.discard_before_additions(inner)?;
            }
            let found = self.find_locked(scope, inner, lock, to, wanted)?;
            // If the view was ended, a row that is missing may have been purged.
            return scope.check_strict(inner).map(|()| found);
        }
        if self.needs_view(to)
            && let Some(view) = scope.view_of_plain_read(inner)
        {
            self.take_view(view);
        }
        self.discard_outdated(inner)?;
        self.find_seen(to, inner.own(), wanted)
    }

    /// Moves over entries that were read ahead, as long as the view alone decides their visibility. That needs no gate,
    /// only that the table and the transaction still exist. Returns `None` if more must be read.
    fn find_ahead(&mut self, to: Move<'_>, wanted: &mut Wanted<'_>) -> Result<Option<bool>> {
        let Some(view) = self.view.as_ref().filter(|_| self.may_go_ahead()) else { return Ok(None) };
        let up = match to {
            Move::To(_) => return Ok(None),
            Move::Next => true,
            Move::Prev => false,
        };
        if let Reader::InTransaction(scope, _) = &self.reader {
            let call = scope.begin_call()?;
            let is_current = self.is_current(&call.inner);
            if !call.finish(Ok(is_current))? {
                return Ok(None);
            }
        }
        self.tree.space().check_live()?;
        // They are those of one leaf: few enough for work that nothing interrupts.
        while let Some(header) = self.entries.ahead(up) {
            if !is_row_of_view(view, header) {
                break;
            }
            to.make(&mut self.entries)?;
            if !wanted.is_within(self.entries.key()) {
                return Ok(Some(false));
            }
            if !header.is_deleted() {
                match wanted.evaluate(self.entries.key(), self.entries.value())? {
                    Condition::Holds => {}
                    Condition::Fails => continue,
                    Condition::Ends => return Ok(Some(false)),
                }
                debug_assert!(self.beyond.is_none(), "a cursor that is past an end reads ahead");
                self.at = At::Row;
                return Ok(Some(true));
            }
        }
        Ok(None)
    }

    /// Returns whether the view alone decides which of the entries that were read ahead are rows, and no row is locked.
    fn may_go_ahead(&self) -> bool {
        let reads_entries_alone = self.covers || matches!(self.owner, Owner::Table(_));
        reads_entries_alone && self.reads_by_view()
    }

    /// Returns whether the view decides what is visible, and no row is locked.
    fn reads_by_view(&self) -> bool {
        let locks = match &self.reader {
            Reader::InTransaction(scope, lock) => lock.is_some() || scope.plain_read_lock().is_some(),
            Reader::Alone => false,
            Reader::Session(_) => return false,
        };
        self.view.is_some() && !locks
    }

    /// Discards the entries that were read ahead if the transaction has changed the table since, because they do not
    /// show that, or has rolled back a part of itself, which they may show.
    fn discard_outdated(&mut self, inner: &Inner) -> Result<()> {
        if !self.is_current(inner) {
            self.discard_batch()?;
            self.seen = self.changes(inner);
        }
        Ok(())
    }

    /// As [`Cursor::discard_outdated`], for a cursor that locks each row and reads it again: it passes over a row only
    /// if the entry was not there, or was no row's, when it read ahead. A row that the transaction has locked since, to
    /// change it, may be one of those; what the cursor has found it has locked itself.
    fn discard_before_additions(&mut self, inner: &Inner) -> Result<()> {
        let additions = inner.additions_to(self.table.space());
        if additions != self.seen {
            self.discard_batch()?;
            self.seen = additions;
        }
        Ok(())
    }

    /// Discards the entries that were read ahead. A cursor that is past an end reads the tree for that.
    fn discard_batch(&mut self) -> Result<()> {
        let _call = self.table.enter()?;
        self.tree.space().check_live()?;
        self.entries.discard_batch()
    }

    /// Returns whether the transaction has neither changed the table nor rolled back since entries were read ahead.
    fn is_current(&self, inner: &Inner) -> bool {
        self.changes(inner) == self.seen
    }

    fn changes(&self, inner: &Inner) -> SeenChanges {
        inner.changes_of(match self.reader {
            Reader::Session(_) => None,
            Reader::Alone | Reader::InTransaction(..) => Some(self.table.space()),
        })
    }

    fn take_view(&mut self, view: Arc<ReadView>) {
        debug_assert!(!self.keeps_view || self.view.is_none(), "the view of a range is replaced");
        self.view = Some(view);
    }

    fn find_seen(&mut self, to: Move<'_>, own: Option<TrxId>, wanted: &mut Wanted<'_>) -> Result<bool> {
        // During this call the table schema cannot change. If the tree was dropped before, its tablespace is marked so.
        let call = self.table.enter()?;
        self.tree.space().check_live()?;
        let visibility = self.view.as_ref().map_or(Visibility::Newest, |view| Visibility::View(view, own));
        visibility.check_known(self.tree.space().created_at(), || self.owner.clone())?;
        let Self { engine, tree, entries, long, entry_value, owner, form, covers, fields, .. } = self;
        let (transactions, space) = (&engine.transactions, tree.space().id());
        debug_assert!(
            form.is_none() == matches!(owner, Owner::Table(_)),
            "a cursor over rows takes them for entries of an index, or the reverse"
        );
        let on = to.on();
        let mut found = to.make(entries)?;
        let mut work = LongWork::default();
        while found && wanted.is_within(entries.key()) {
            let Some(header) = entries.header() else { break };
            let is_seen = visibility.sees(header.trx);
            if is_seen && !header.is_deleted() {
                match wanted.evaluate(entries.key(), entries.value())? {
                    Condition::Holds => {}
                    Condition::Fails => {
                        work.step()?;
                        found = on.make(entries)?;
                        continue;
                    }
                    Condition::Ends => return Ok(false),
                }
            }
            self.at = match *form {
                None => visible_row_at(transactions, tree, entries, visibility, *fields, long)?,
                Some(_) if is_seen && header.is_deleted() => At::Nothing,
                Some(_) if is_seen && *covers => At::Row,
                Some(form) => {
                    let (entry, value) = (entries.key(), entries.value());
                    let row = split(form, (entry, value), space, || owner.clone())?.row;
                    let entry = FoundEntry { index: tree, entry, header, value, row };
                    let out = EntryAndRow { fields: *fields, entry: entry_value, row: long };
                    let is_there =
                        transactions.versions().get_by_entry(&call.clustered, entry, visibility, out)?;
                    if is_there { At::CopiedRow } else { At::Nothing }
                }
            };
            if self.at != At::Nothing {
                // The version of the entry may be known only now: another transaction has changed it since, or this one
                // after it was read ahead.
                let is_evaluated = is_seen && (self.at == At::Row || *entry_value == entries.value());
                let condition = if form.is_none() || is_evaluated {
                    Condition::Holds
                } else {
                    wanted.evaluate(entries.key(), entry_value)?
                };
                if condition == Condition::Holds {
                    return Ok(true);
                }
                self.at = At::Nothing;
                if condition == Condition::Ends {
                    return Ok(false);
                }
            }
            work.step()?;
            found = on.make(entries)?;
        }
        Ok(false)
    }

    /// Returns the key and the value of the row at the cursor's position.
    #[inline]
    pub fn row(&self) -> Option<(&[u8], &[u8])> {
        let value = match self.at {
            At::Nothing => return None,
            At::Row => {
                debug_assert!(
                    self.entries.header().is_some_and(|header| !header.is_deleted() && header.is_plain()),
                    "a cursor is at a row that is deleted, or has its value elsewhere"
                );
                self.entries.value()
            }
            At::CopiedRow | At::CommittedRow => &self.long,
        };
        Some((self.entries.key(), value))
    }

    /// Returns the entry at the position of a cursor over an index.
    pub(crate) fn entry(&self) -> Option<EntryRef<'_>> {
        let (value, row) = match self.at {
            At::Nothing => return None,
            At::Row => (self.entries.value(), &[][..]),
            At::CopiedRow | At::CommittedRow if self.covers => (&self.entry_value[..], &[][..]),
            At::CopiedRow | At::CommittedRow => (&self.entry_value[..], &self.long[..]),
        };
        Some(EntryRef { key: self.entries.key(), value, row })
    }

    /// Returns the key of the row at the cursor's position.
    pub fn key(&self) -> Option<&[u8]> {
        self.row().map(|(key, _)| key)
    }

    /// Returns the value of the row at the cursor's position.
    pub fn value(&self) -> Option<&[u8]> {
        self.row().map(|(_, value)| value)
    }
}

/// Returns whether the view sees the version of an entry that was read ahead, as it is in the entry.
#[inline]
fn is_row_of_view(view: &ReadView, header: EntryHeader) -> bool {
    view.sees(header.trx) && (header.is_deleted() || header.is_plain())
}

/// Returns whether the entry at the position is a visible row, and where its value is; reads a value that is not in the
/// entry into `long`.
fn visible_row_at(
    transactions: &Transactions,
    tree: &Tree,
    entries: &Entries,
    visibility: Visibility<'_>,
    fields: FieldSet,
    long: &mut Vec<u8>,
) -> Result<At> {
    let Some(header) = entries.header() else { return Ok(At::Nothing) };
    if visibility.sees(header.trx) && (header.is_deleted() || header.is_plain()) {
        return Ok(if header.is_deleted() { At::Nothing } else { At::Row });
    }
    long.clear();
    long.extend_from_slice(entries.value());
    if let Visibility::Newest = visibility {
        let is_there = value::resolve(tree, entries.key(), header, fields, long)?;
        return Ok(if is_there { At::CopiedRow } else { At::Nothing });
    }
    let is_there =
        transactions.versions().value_in(tree, entries.key(), header, visibility, Some(fields), long)?;
    Ok(if is_there { At::CopiedRow } else { At::Nothing })
}

/// Takes an index entry apart, given its key and its value.
pub(crate) fn split<'e>(
    form: EntryForm,
    (key, value): (&'e [u8], &'e [u8]),
    space: SpaceId,
    owner: impl FnOnce() -> Owner,
) -> Result<EntryParts<'e>> {
    form.split(key, value).ok_or_else(|| {
        let what = "an entry of a secondary index makes no sense".into();
        CorruptError::Structure { owner: owner(), space, what }.into()
    })
}
