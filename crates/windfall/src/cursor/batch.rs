//! Rows in batches.
//!
//! **Purpose.** Each step of a cursor checks the database, the transaction, its view and the table. A batch does so
//! once for all rows that were read ahead, also by the entries of an index, and copies them into memory of the caller.
//!
//! **Invariants.** A batch has the rows that single steps would find (test: `batches_are_steps`), with a condition as
//! well (test: `batches_with_a_condition_are_steps`), at most [`BATCH_ROWS`] and no more than its caller wants (checked
//! by `cursor/batch.rs::is_full`). No row beyond them is read (test: `a_batch_of_one_row_reads_one_row`) or locked
//! (test: `a_locking_batch_locks_no_more_rows_than_it_may_have`). Afterwards the cursor is at the last of them, also if
//! the range has ended behind it (test: `batches_are_steps`). After an error a batch has no rows (test:
//! `a_batch_that_fails_has_no_rows`).

use super::{At, Condition, Cursor, Entries, EntryRef, Move, Reader, Seek, Wanted, is_row_of_view, split};
use crate::{
    error::{Result, UsageError},
    get_one::TakenLock,
    ids::TrxId,
    sync::LongWork,
    txn::{EntryAndRow, FoundEntry, Visibility},
};

/// The most rows of a batch.
pub const BATCH_ROWS: usize = 64;
/// A batch ends after this many bytes: 64 long values would take any amount of memory.
const BATCH_BYTES: usize = 256 << 10;
/// The most steps back to the last row of a batch: behind it, a condition may have passed over any number of entries.
const STEPS_BACK: usize = 16;

/// Rows that [`Cursor::next_batch`] has read, in the order of the steps. Used again, it keeps its memory.
#[derive(Debug, Default)]
pub struct Batch {
    rows: Vec<PlacedRow>,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct PlacedRow {
    /// The place of the key in `bytes`; the value follows.
    start: usize,
    value: usize,
    end: usize,
    releasable: Option<TakenLock>,
}

/// What takes the rows of a batch.
pub(crate) trait Sink {
    /// Returns whether it has a condition on entries.
    fn has_condition(&self) -> bool;

    /// Evaluates the condition on an entry, in the version that the read returns. Without one every entry holds.
    fn evaluate(&mut self, key: &[u8], value: &[u8]) -> Result<Condition>;

    /// Takes a row, with the lock on it that may be released. Returns whether the batch is full.
    fn push(&mut self, row: EntryRef<'_>, releasable: Option<TakenLock>) -> Result<bool>;
}

/// The outcome of taking the rows that were read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ahead {
    /// The batch is full.
    Full,
    /// The condition has ended it.
    Ended,
    /// More must be read.
    Passed,
}

/// Returns whether a batch has enough rows.
pub(crate) fn is_full(rows: usize, at_most: usize, bytes: &[u8]) -> bool {
    debug_assert!(rows <= at_most && at_most <= BATCH_ROWS, "a batch of {at_most} rows has {rows}");
    rows == at_most || bytes.len() >= BATCH_BYTES
}

/// Refuses a number of rows that no batch has.
///
/// # Errors
/// [`UsageError::BatchRows`].
pub(crate) fn check_rows(at_most: usize) -> Result<()> {
    if (1..=BATCH_ROWS).contains(&at_most) {
        Ok(())
    } else {
        Err(UsageError::BatchRows { rows: at_most, most: BATCH_ROWS }.into())
    }
}

impl Batch {
    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the key and the value of the row at this place.
    pub fn get(&self, place: usize) -> Option<(&[u8], &[u8])> {
        let row = self.rows.get(place)?;
        Some((&self.bytes[row.start..row.value], &self.bytes[row.value..row.end]))
    }

    /// Returns the rows, each with its key and its value.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        self.rows.iter().map(|row| (&self.bytes[row.start..row.value], &self.bytes[row.value..row.end]))
    }

    pub(crate) fn clear(&mut self) {
        self.rows.clear();
        self.bytes.clear();
    }

    #[inline]
    pub(crate) fn push(&mut self, key: &[u8], value: &[u8], releasable: Option<TakenLock>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        let (value, end) = (start + key.len(), self.bytes.len());
        self.rows.push(PlacedRow { start, value, end, releasable });
    }
}

impl Cursor {
    /// Moves up over the next rows and copies them into `batch`: at most 64, fewer if they are long, and none past the
    /// end of the range. Returns their number; 0 if there is no further row. They are the rows that as many calls of
    /// [`Cursor::next`] would find, at a fraction of the cost of each. The cursor is then at the last of them, or, if
    /// there are none, past the end.
    ///
    /// A locking cursor locks all rows of the batch, and [`Cursor::unlock_row_of`] releases the locks that are not
    /// wanted. A batch ends with a row that was read without a lock ([`Cursor::semi_consistent`]).
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-batch-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{Batch, TableOptions};
    ///
    /// let towns = db.create_table("towns", TableOptions::default())?;
    /// for (town, people) in [("Basel", "177595"), ("Genoa", "560688"), ("Oslo", "717710")] {
    ///     towns.insert(town.as_bytes(), people.as_bytes())?;
    /// }
    /// let (mut cursor, mut batch, mut digits) = (towns.cursor()?, Batch::default(), 0);
    /// while cursor.next_batch(&mut batch)? > 0 {
    ///     digits += batch.iter().map(|(_, people)| people.len()).sum::<usize>();
    /// }
    /// assert_eq!(digits, 18);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Cursor::seek`]. There are no rows then; those that a locking cursor has locked stay locked.
    pub fn next_batch(&mut self, batch: &mut Batch) -> Result<usize> {
        self.take_rows(Move::Next, BATCH_ROWS, batch)
    }

    /// As [`Cursor::next_batch`], but at most `at_most` rows, from 1 to [`BATCH_ROWS`]: nothing beyond them is read or
    /// locked. A program that does not know how many rows it needs asks for 1, 4, 16 and then 64.
    ///
    /// # Errors
    /// As [`Cursor::next_batch`]; another number of rows ([`UsageError::BatchRows`]), and the cursor stays where it is.
    pub fn next_batch_of(&mut self, batch: &mut Batch, at_most: usize) -> Result<usize> {
        self.take_rows(Move::Next, at_most, batch)
    }

    /// As [`Cursor::next_batch`], but moves down: the last row is the first one of the batch.
    ///
    /// # Errors
    /// As [`Cursor::next_batch`].
    pub fn prev_batch(&mut self, batch: &mut Batch) -> Result<usize> {
        self.take_rows(Move::Prev, BATCH_ROWS, batch)
    }

    /// As [`Cursor::next_batch_of`], but moves down: the last row is the first one of the batch.
    ///
    /// # Errors
    /// As [`Cursor::next_batch_of`].
    pub fn prev_batch_of(&mut self, batch: &mut Batch, at_most: usize) -> Result<usize> {
        self.take_rows(Move::Prev, at_most, batch)
    }

    /// Releases the lock on the row at this place of a batch, which this cursor has read last, as
    /// [`Cursor::unlock_row`] does.
    ///
    /// # Errors
    /// As [`Cursor::unlock_row`].
    pub fn unlock_row_of(&mut self, batch: &mut Batch, place: usize) -> Result<bool> {
        let releasable = batch.rows.get_mut(place).and_then(|row| row.releasable.take());
        match (releasable, batch.get(place)) {
            (Some(lock), Some((key, _))) => self.unlock(lock, key),
            _ => Ok(false),
        }
    }

    fn take_rows(&mut self, step: Move<'static>, at_most: usize, batch: &mut Batch) -> Result<usize> {
        batch.clear();
        check_rows(at_most)?;
        let done = self.try_take_rows(step, at_most, batch);
        done.inspect_err(|_| batch.clear())?;
        Ok(batch.len())
    }

    fn try_take_rows(&mut self, step: Move<'static>, at_most: usize, batch: &mut Batch) -> Result<()> {
        let is_full = self.take(step, &mut Rows { batch, at_most })?;
        match batch.iter().last() {
            Some((key, row)) if !is_full => self.return_to(step, EntryRef { key, value: &[], row }),
            _ => Ok(()),
        }
    }

    /// Makes steps, and passes each row to `sink`, until that has enough. Returns `false` if there is no further row.
    pub(crate) fn take(&mut self, step: Move<'static>, sink: &mut impl Sink) -> Result<bool> {
        loop {
            let is_there = if sink.has_condition() {
                self.go(step, Wanted::if_holds(&mut |key, value| sink.evaluate(key, value)))?
            } else {
                self.go(step, Wanted::within(&|_| true))?
            };
            if !is_there {
                return Ok(false);
            }
            let found = match self.form {
                None => self.row().map(|(key, row)| EntryRef { key, value: &[], row }),
                Some(_) => self.entry(),
            };
            let is_full = sink.push(found.expect("a step has found a row"), self.releasable)?;
            self.releasable = None;
            if is_full || self.was_semi_consistent() {
                return Ok(true);
            }
            match self.take_ahead(step, sink)? {
                Ahead::Full => return Ok(true),
                Ahead::Ended => return Ok(false),
                Ahead::Passed => {}
            }
        }
    }

    /// As [`Cursor::take`], as long as rows were read ahead.
    fn take_ahead(&mut self, step: Move<'static>, sink: &mut impl Sink) -> Result<Ahead> {
        if !self.reads_by_view() {
            return Ok(Ahead::Passed);
        }
        let taken = match self.reader.clone() {
            Reader::InTransaction(scope, _) => {
                let call = scope.begin_call()?;
                let is_current = self.is_current(&call.inner);
                let taken = if is_current {
                    self.push_ahead(step, call.inner.own(), sink)
                } else {
                    Ok(Ahead::Passed)
                };
                call.finish(taken)
            }
            _ => self.push_ahead(step, None, sink),
        };
        self.checked(taken)
    }

    fn push_ahead(&mut self, step: Move<'static>, own: Option<TrxId>, sink: &mut impl Sink) -> Result<Ahead> {
        if !self.may_go_ahead() {
            return self.push_rows_ahead(step, own, sink);
        }
        self.tree.space().check_live()?;
        let Self { entries, view: Some(view), at, form, .. } = self else { return Ok(Ahead::Passed) };
        let up = matches!(step, Move::Next);
        while let Some((header, key, stored)) = entries.peek(up) {
            if !is_row_of_view(view, header) {
                return Ok(Ahead::Passed);
            }
            let (value, row) = if form.is_none() { (&[][..], stored) } else { (stored, &[][..]) };
            let condition = if header.is_deleted() { Condition::Fails } else { sink.evaluate(key, value)? };
            let is_row = condition == Condition::Holds;
            let is_full = is_row && sink.push(EntryRef { key, value, row }, None)?;
            entries.go_to_peeked(up);
            *at = if is_row { At::Row } else { At::Nothing };
            if is_full {
                return Ok(Ahead::Full);
            }
            if condition == Condition::Ends {
                return Ok(Ahead::Ended);
            }
        }
        Ok(Ahead::Passed)
    }

    /// As [`Cursor::push_ahead`], for entries of an index with their rows: one pass through the gate for all of them.
    fn push_rows_ahead(
        &mut self,
        step: Move<'static>,
        own: Option<TrxId>,
        sink: &mut impl Sink,
    ) -> Result<Ahead> {
        let Self { engine, table, tree, entries, view, at, form, fields, owner, long, entry_value, .. } =
            self;
        let (Some(view), Some(form)) = (view, *form) else { return Ok(Ahead::Passed) };
        let call = table.enter()?;
        tree.space().check_live()?;
        let visibility = Visibility::View(view, own);
        let (versions, space) = (engine.transactions.versions(), tree.space().id());
        let up = matches!(step, Move::Next);
        let mut work = LongWork::default();
        while let Some((header, key, value)) = entries.peek(up) {
            work.step()?;
            if !is_row_of_view(view, header) {
                return Ok(Ahead::Passed);
            }
            let mut condition =
                if header.is_deleted() { Condition::Fails } else { sink.evaluate(key, value)? };
            if condition == Condition::Holds {
                let row = split(form, (key, value), space, || owner.clone())?.row;
                let entry = FoundEntry { index: tree, entry: key, header, value, row };
                let out = EntryAndRow { fields: *fields, entry: entry_value, row: long };
                condition = match versions.get_by_entry(&call.clustered, entry, visibility, out)? {
                    false => Condition::Fails,
                    // This transaction has changed the entry since it was read ahead.
                    true if entry_value != value => sink.evaluate(key, entry_value)?,
                    true => Condition::Holds,
                };
            }
            let is_row = condition == Condition::Holds;
            let is_full = is_row && sink.push(EntryRef { key, value: entry_value, row: long }, None)?;
            entries.go_to_peeked(up);
            *at = if is_row { At::CopiedRow } else { At::Nothing };
            if is_full {
                return Ok(Ahead::Full);
            }
            if condition == Condition::Ends {
                return Ok(Ahead::Ended);
            }
        }
        Ok(Ahead::Passed)
    }

    /// Moves back to the row that the last step of a batch has found, past which the range has ended.
    pub(crate) fn return_to(&mut self, step: Move<'static>, last: EntryRef<'_>) -> Result<()> {
        let back = self.find_back(step, last);
        self.checked(back)
    }

    fn find_back(&mut self, step: Move<'static>, last: EntryRef<'_>) -> Result<()> {
        let _call = self.table.enter()?;
        self.tree.space().check_live()?;
        self.beyond = None;
        let up = matches!(step, Move::Next);
        let is_passed =
            |entries: &Entries| if up { entries.key() <= last.key } else { entries.key() >= last.key };
        let back = if up { Move::Prev } else { Move::Next };
        let there = Move::To(if up { Seek::AtMost(last.key) } else { Seek::AtLeast(last.key) });
        let mut steps = 0;
        while if steps < STEPS_BACK { back } else { there }.make(&mut self.entries)? {
            if is_passed(&self.entries) {
                if self.entries.key() == last.key {
                    self.at = At::CopiedRow;
                    self.long.clear();
                    self.long.extend_from_slice(last.row);
                    self.entry_value.clear();
                    self.entry_value.extend_from_slice(last.value);
                }
                return Ok(());
            }
            steps += 1;
            debug_assert!(steps <= STEPS_BACK, "a seek has not led back to the last row of a batch");
        }
        Ok(())
    }
}

/// The rows of a table, into a batch.
struct Rows<'b> {
    batch: &'b mut Batch,
    at_most: usize,
}

impl Sink for Rows<'_> {
    fn has_condition(&self) -> bool {
        false
    }

    fn evaluate(&mut self, _key: &[u8], _value: &[u8]) -> Result<Condition> {
        Ok(Condition::Holds)
    }

    #[inline]
    fn push(
        &mut self,
        EntryRef { key, row, .. }: EntryRef<'_>,
        releasable: Option<TakenLock>,
    ) -> Result<bool> {
        self.batch.push(key, row, releasable);
        Ok(is_full(self.batch.rows.len(), self.at_most, &self.batch.bytes))
    }
}
