//! Reads of one row by its index key.
//!
//! **Purpose.** The row that has a key of a unique index is read with one descent in the index and one among the rows,
//! into memory of the caller: without a cursor.
//!
//! **Invariants.** The row is the first one that a range of the same key returns (test:
//! `one_row_is_the_first_of_its_range`). Without a read view an entry is taken as it is only if its last writer had
//! ended before the entry was read, and so is its row; otherwise a view decides (test:
//! `one_row_is_found_while_its_key_moves_between_rows`). That there is no row is taken from a single leaf without
//! entries of the key, or from a view, which keeps the entries that it sees from purge (test:
//! `one_row_is_found_while_its_key_moves_between_rows`).
//!
//! A locking read locks the row that it returns, and no gap: while that is locked no other row gets its key if the
//! index is unique (test: `a_row_found_by_its_unique_key_is_locked_and_no_gap`). At SERIALIZABLE the gap before its
//! entry is locked as well, because the key may repeat (test: `a_serializable_read_of_one_row_is_repeatable`). If there
//! is no row, levels that lock gaps lock the range of the key and look again (test:
//! `a_missing_unique_key_stays_missing`). The other levels look again with a view if there were entries of the key,
//! because it may have moved to another row meanwhile (test: `one_row_is_found_while_its_key_moves_between_rows`). A
//! semi-consistent read reads the version that a cursor would read (test:
//! `a_semi_consistent_read_by_an_index_key_is_that_of_a_cursor`).

use core::{mem::swap, ops::Bound};

use super::{Index, IndexEntry};
use crate::{
    catalog::TableSchema,
    cursor::{intention, may_read_committed, read_committed_by_entry, split},
    error::{Error, Result, TransactionError},
    get_one::{HeldBefore, TakenLock},
    ids::TrxId,
    page::EntryHeader,
    scope::{Inner, RowCall, RowLock, Scope},
    sync::LongWork,
    transaction::LockWaitPolicy,
    tree::LookUp,
    tx_table::{Access, SemiConsistentRead, TxIndex},
    txn::{
        EntryAndRow, FoundEntry, ReadView, Stop, Trx, Visibility,
        locks::{PlainRead, RowMode},
        row::{self, EntryOfRow, LockingRead},
    },
};

/// A row that was read by its index key ([`Index::get_one`]), or locked by its key
/// ([`TxTable::get_one_for_share`](crate::TxTable::get_one_for_share)). Used again, it keeps its memory.
#[derive(Debug, Default)]
pub struct OneRow {
    /// The first bytes of the entries with the index key.
    prefix: Vec<u8>,
    /// The entry, with the value that the read sees.
    entry: LookUp,
    /// Another version of the value of the entry.
    version: Vec<u8>,
    /// The value of the row.
    row: Vec<u8>,
    /// The index key, if the entry has it in another form.
    unescaped: Vec<u8>,
    /// The lock that the read has taken, if it may be released.
    lock: Option<TakenLock>,
    /// The key of the row that is locked.
    locked: Vec<u8>,
}

impl OneRow {
    /// Forgets the lock of the read before. Returns the buffer of the value, and the place of the lock.
    pub(crate) fn begin_locking(&mut self) -> (&mut Vec<u8>, &mut Option<TakenLock>) {
        self.lock = None;
        (&mut self.row, &mut self.lock)
    }

    /// Keeps the key of the row, if its lock may be released. Returns the value.
    pub(crate) fn note_locked_row(&mut self, key: &[u8]) -> &[u8] {
        if self.lock.is_some() {
            self.locked.clear();
            self.locked.extend_from_slice(key);
        }
        &self.row
    }

    /// Returns the lock that may be released, and the key of its row.
    pub(crate) fn taken_lock(&self) -> Option<(TakenLock, &[u8])> {
        self.lock.map(|lock| (lock, &self.locked[..]))
    }

    /// Forgets the lock, which was released.
    pub(crate) fn forget_lock(&mut self) {
        self.lock = None;
    }
}

/// The outcome of a look at the entries of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Looked {
    /// The row is locked and read.
    Found,
    /// There is no row.
    None,
    /// Others have locked a row, which is passed over.
    Skipped,
    /// Others have locked the row, and its last committed version is read.
    Committed,
    /// There is none, but another row may have got the key meanwhile.
    Unsure,
}

/// How a read locks the row.
#[derive(Clone, Copy)]
struct Locking {
    lock: RowLock,
    /// Whether it reads the last committed version of a row that others have locked.
    reads_committed: bool,
}

/// How much of the entries of a key is locked against inserts.
#[derive(PartialEq, Eq)]
enum LockedGap {
    None,
    /// Up to this entry.
    UpTo(Vec<u8>),
    All,
}

impl LockedGap {
    fn reaches(&self, entry: &[u8]) -> bool {
        match self {
            Self::None => false,
            Self::UpTo(last) => entry <= last.as_slice(),
            Self::All => true,
        }
    }
}

impl<A: Access> Index<A> {
    /// Reads the row with this index key: the first one that [`Index::get`] would return, without an iterator. In a
    /// unique index there is no other one, except for keys that may repeat
    /// ([`SuppliedEntry::may_repeat`](crate::SuppliedEntry::may_repeat)). It is lent from `one`, which keeps its
    /// memory: after a few calls a plain read allocates nothing. If the caller supplies the entries, the index key may
    /// be any first bytes of them, as for a range.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-get-one-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{IndexOptions, OneRow, TableOptions};
    ///
    /// let by_plate = TableOptions::default().index("plate", IndexOptions::on_value(0..5).unique());
    /// let cars = db.create_table("cars", by_plate)?;
    /// cars.insert(b"1", b"AB123 red")?;
    /// cars.insert(b"2", b"CD456 blue")?;
    /// let (plates, mut car) = (cars.index("plate")?, OneRow::default());
    /// let found = plates.get_one(b"CD456", &mut car)?.map(|car| (car.key, car.value));
    /// assert_eq!(found, Some((&b"2"[..], &b"CD456 blue"[..])));
    /// assert_eq!(plates.get_one(b"EF789", &mut car)?, None);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`IndexCursor::seek`](crate::IndexCursor::seek).
    pub fn get_one<'b>(&self, index_key: &[u8], one: &'b mut OneRow) -> Result<Option<IndexEntry<'b>>> {
        self.read_one(index_key, false, None, one)
    }

    /// As [`Index::get_one`], but reads only the entry, as [`Index::keys`] does: the row's value is empty.
    ///
    /// # Errors
    /// As [`Index::get_one`].
    pub fn get_one_key<'b>(&self, index_key: &[u8], one: &'b mut OneRow) -> Result<Option<IndexEntry<'b>>> {
        self.read_one(index_key, true, None, one)
    }

    fn read_one<'b>(
        &self,
        index_key: &[u8],
        covers: bool,
        lock: Option<RowLock>,
        one: &'b mut OneRow,
    ) -> Result<Option<IndexEntry<'b>>> {
        one.lock = None;
        self.form.start_into(index_key, &mut one.prefix);
        if !self.find_one(covers, lock, one).map_err(|error| error.of(|_| self.owner()))? {
            return Ok(None);
        }
        self.lend(covers, one).map(Some)
    }

    /// Lends the row that was found.
    fn lend<'b>(&self, covers: bool, one: &'b mut OneRow) -> Result<IndexEntry<'b>> {
        let OneRow { entry, row, unescaped, lock, locked, .. } = one;
        let parts = split(self.form, (entry.key(), entry.value()), self.tree.space().id(), || self.owner())?;
        if lock.is_some() {
            locked.clear();
            locked.extend_from_slice(parts.row);
        }
        let index_key = self.form.index_key(parts.index, unescaped);
        let value = if covers { &[] } else { &row[..] };
        Ok(IndexEntry { index_key, key: parts.row, payload: parts.payload, value })
    }

    fn find_one(&self, covers: bool, lock: Option<RowLock>, one: &mut OneRow) -> Result<bool> {
        self.table.engine.check_open()?;
        if let Some(scope) = self.table.scope()? {
            let mut call = scope.begin_call()?;
            let found = self.find_one_in_transaction(scope, &mut call.inner, covers, lock, one);
            return call.finish(found);
        }
        debug_assert!(lock.is_none(), "a row is locked outside of a transaction");
        if self.table.is_temporary() {
            return self.find_one_seen(Visibility::Newest, covers, one);
        }
        self.find_one_committed(None, covers, one)
    }

    fn find_one_in_transaction(
        &self,
        scope: &Scope,
        inner: &mut Inner,
        covers: bool,
        lock: Option<RowLock>,
        one: &mut OneRow,
    ) -> Result<bool> {
        if self.table.is_temporary() {
            return self.find_one_seen(Visibility::Newest, covers, one);
        }
        let own = inner.own();
        let lock = match (lock, scope.isolation().plain_read()) {
            (Some(lock), _) => lock,
            (None, PlainRead::Locking) => RowMode::Shared.into(),
            (None, PlainRead::Newest) => return self.find_one_seen(Visibility::Newest, covers, one),
            (None, PlainRead::Committed) if !scope.keeps_view(inner) => {
                return self.find_one_committed(own, covers, one);
            }
            (None, PlainRead::Committed | PlainRead::Snapshot) => {
                return self.find_one_seen(Visibility::View(scope.view(inner), own), covers, one);
            }
        };
        Ok(self.lock_one(scope, inner, lock, false, one)? != SemiConsistentRead::Missing)
    }

    /// Locks and reads the row, or reads its last committed version if others have locked it and that is wanted.
    fn lock_one(
        &self,
        scope: &Scope,
        inner: &mut Inner,
        lock: RowLock,
        reads_committed: bool,
        one: &mut OneRow,
    ) -> Result<SemiConsistentRead> {
        scope.check_known(inner, || Ok(self.tree.space().created_at()), || self.owner())?;
        let (mut gap, mut before) = (LockedGap::None, HeldBefore::a_read(scope, lock, false));
        let call = scope.row_call(inner, self.table.kind(), lock.lock_timeout(scope));
        let how = Locking { lock, reads_committed };
        let read = call.run(|call| self.try_lock_one(call, scope, how, (&mut gap, &mut before), one))?;
        one.lock = before.taken(inner).filter(|_| read == SemiConsistentRead::Locked);
        Ok(read)
    }

    /// Reads what is committed now, or is of transaction `own`.
    fn find_one_committed(&self, own: Option<TrxId>, covers: bool, one: &mut OneRow) -> Result<bool> {
        if let Some(found) = self.find_one_final(own, covers, one)? {
            return Ok(found);
        }
        loop {
            let view = self.table.engine.transactions.versions().view();
            match self.find_one_seen(Visibility::View(&view, own), covers, one) {
                // The view was created for this read only, so the read can be repeated.
                Err(Error::Transaction(TransactionError::ViewEnded)) => {}
                done => return done,
            }
        }
    }

    /// As [`Index::find_one_committed`], if the first entry of the key and its row are of transactions that have ended.
    /// Returns `None` if that is not known.
    fn find_one_final(&self, own: Option<TrxId>, covers: bool, one: &mut OneRow) -> Result<Option<bool>> {
        let call = self.table.inner.enter()?;
        self.tree.space().check_live()?;
        // Before the entry is read: the versions of all transactions that have ended by now are final.
        let oldest = self.table.engine.transactions.active().oldest();
        let is_final = |header: EntryHeader| {
            (header.trx < oldest || Some(header.trx) == own) && !header.is_deleted() && header.is_plain()
        };
        let OneRow { prefix, entry, row, .. } = one;
        let Some(header) = self.tree.first_with(prefix, entry)? else {
            return Ok((entry.leaves() == 1).then_some(false));
        };
        if !is_final(header) || covers {
            return Ok(is_final(header).then_some(true));
        }
        let parts = split(self.form, (entry.key(), entry.value()), self.tree.space().id(), || self.owner())?;
        let header = call.clustered.get_into(parts.row, row)?;
        Ok(header.is_some_and(is_final).then_some(true))
    }

    fn find_one_seen(&self, visibility: Visibility<'_>, covers: bool, one: &mut OneRow) -> Result<bool> {
        let found = self.find_one_visible(visibility, covers, one);
        match visibility {
            Visibility::View(view, _) => view.held(found),
            Visibility::Newest => found,
        }
    }

    fn find_one_visible(&self, visibility: Visibility<'_>, covers: bool, one: &mut OneRow) -> Result<bool> {
        let call = self.table.inner.enter()?;
        self.tree.space().check_live()?;
        visibility.check_known(self.tree.space().created_at(), || self.owner())?;
        let versions = self.table.engine.transactions.versions();
        let OneRow { prefix, entry, version, row, .. } = one;
        let mut next = self.tree.first_with(prefix, entry)?;
        let mut work = LongWork::default();
        while let Some(header) = next {
            let is_seen = visibility.sees(header.trx);
            if is_seen && !header.is_deleted() && covers {
                return Ok(true);
            }
            if !is_seen || !header.is_deleted() {
                let parts = (entry.key(), entry.value());
                let parts = split(self.form, parts, self.tree.space().id(), || self.owner())?;
                let (index, value) = (&*self.tree, entry.value());
                let found = FoundEntry { index, entry: entry.key(), header, value, row: parts.row };
                let out = EntryAndRow { fields: self.table.fields, entry: version, row };
                if versions.get_by_entry(&call.clustered, found, visibility, out)? {
                    swap(version, entry.value_mut());
                    return Ok(true);
                }
            }
            work.step()?;
            next = self.tree.next_with(prefix, entry)?;
        }
        Ok(false)
    }

    /// Attempts to lock and read the row. Returns `None` if the table was truncated before it was locked.
    fn try_lock_one(
        &self,
        call: &mut RowCall<'_>,
        scope: &Scope,
        how: Locking,
        (gap, before): (&mut LockedGap, &mut HeldBefore),
        one: &mut OneRow,
    ) -> Result<Option<SemiConsistentRead>, Stop> {
        let space = self.table.lock_table(call, intention(how.lock.mode))?;
        let trx = call.attempt()?;
        let entered = self.table.inner.enter()?;
        if entered.clustered.space().id() != space {
            return Ok(None);
        }
        self.tree.space().check_live()?;
        // A row before the one that was found would be found the next time. Only a serializable read is repeatable in
        // spite of other rows with the key.
        let is_serializable = scope.plain_read_lock().is_some();
        let mut view = None;
        loop {
            match self.look_and_lock(trx, &entered, (how, before), view.as_ref(), one)? {
                Looked::Found if is_serializable && !gap.reaches(one.entry.key()) => {
                    let upper = Bound::Included(one.entry.key());
                    row::lock_range(trx, &self.tree, Bound::Included(&one.prefix), upper)?;
                    *gap = LockedGap::UpTo(one.entry.key().to_vec());
                }
                Looked::Found => return Ok(Some(SemiConsistentRead::Locked)),
                Looked::Committed => return Ok(Some(SemiConsistentRead::Committed)),
                Looked::None | Looked::Unsure if *gap == LockedGap::All => {
                    return Ok(Some(SemiConsistentRead::Missing));
                }
                Looked::None | Looked::Unsure if scope.locks_gaps() => {
                    let end = row::entry::end_of_prefix(one.prefix.clone());
                    let upper = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
                    row::lock_range(trx, &self.tree, Bound::Included(&one.prefix), upper)?;
                    *gap = LockedGap::All;
                }
                Looked::Skipped | Looked::None => return Ok(Some(SemiConsistentRead::Missing)),
                Looked::Unsure => view = Some(self.table.engine.transactions.versions().view()),
            }
        }
    }

    /// Looks at the entries of the key, and locks and reads the first row that has one.
    fn look_and_lock(
        &self,
        trx: &mut Trx<'_>,
        entered: &TableSchema,
        (Locking { lock, reads_committed }, before): (Locking, &mut HeldBefore),
        view: Option<&ReadView>,
        one: &mut OneRow,
    ) -> Result<Looked, Stop> {
        let (tree, OneRow { prefix, entry, version, row, .. }) = (&*self.tree, one);
        let mut next = tree.first_with(prefix, entry)?;
        // Entries of several leaves are of one moment only if a view keeps them from purge.
        let mut is_sure = view.is_some() || next.is_none() && entry.leaves() <= 1;
        let (mut has_skipped, mut work) = (false, LongWork::default());
        while let Some(header) = next {
            let has_left = |trx: &Trx<'_>| row::has_left(trx, tree, entry.key(), || self.owner());
            if header.is_deleted() && has_left(trx)? {
                is_sure &= Some(header.trx) == trx.id() || view.is_some_and(|view| view.sees(header.trx));
            } else {
                let parts = (entry.key(), entry.value());
                let key = split(self.form, parts, tree.space().id(), || self.owner())?.row;
                let found = EntryOfRow { tree, key: entry.key(), value: &mut *version };
                let read =
                    LockingRead { mode: lock.mode, fields: Some(self.table.fields), entry: Some(found) };
                before.note(trx, &entered.clustered, key);
                let read = row::read_locked(trx, &entered.clustered, key, read, row, || self.owner());
                match read {
                    Ok(true) => {
                        swap(version, entry.value_mut());
                        return Ok(Looked::Found);
                    }
                    // An entry that a caller has left behind, without a row, does not leave the key.
                    Ok(false) => is_sure &= !has_left(trx)?,
                    Err(Stop::Blocked(_)) if has_left(trx)? => is_sure = false,
                    Err(Stop::Blocked(_)) if lock.wait_policy == LockWaitPolicy::SkipLocked => {
                        has_skipped = true;
                    }
                    Err(Stop::Blocked(_)) if reads_committed => {
                        let versions = self.table.engine.transactions.versions();
                        let out = EntryAndRow { fields: self.table.fields, entry: version, row };
                        let (rows, found) = (&entered.clustered, (tree, self.form, entry.key()));
                        if read_committed_by_entry(versions, rows, found, trx.id(), out, || self.owner())? {
                            swap(version, entry.value_mut());
                            return Ok(Looked::Committed);
                        }
                        // Its change may have been committed since the lock was refused.
                        is_sure &= !has_left(trx)?;
                    }
                    Err(stop) => return Err(stop),
                }
            }
            work.step()?;
            next = tree.next_with(prefix, entry)?;
        }
        let is_held = view.is_none_or(|view| !view.is_ended());
        Ok(match is_sure && is_held {
            _ if has_skipped => Looked::Skipped,
            true => Looked::None,
            false => Looked::Unsure,
        })
    }
}

impl TxIndex<'_> {
    /// As [`Index::get_one`], and locks the row as [`TxTable::get_for_share`](crate::TxTable::get_for_share) does: its
    /// newest version is returned. No gap is locked, so in an index that is not unique other rows may get the key. If
    /// there is no row with this key, at levels that lock gaps no row gets it before the transaction has ended.
    /// [`TxIndex::unlock_row`] releases the lock.
    ///
    /// # Errors
    /// As [`Index::get_one`] and [`TxTable::get_for_share`](crate::TxTable::get_for_share).
    pub fn get_one_for_share<'b>(
        &self,
        index_key: &[u8],
        one: &'b mut OneRow,
    ) -> Result<Option<IndexEntry<'b>>> {
        self.table.check_may_lock()?;
        self.read_one(index_key, false, Some(self.table.lock(RowMode::Shared)), one)
    }

    /// As [`TxIndex::get_one_for_share`], but with an exclusive lock.
    ///
    /// # Errors
    /// As [`TxIndex::get_one_for_share`].
    pub fn get_one_for_update<'b>(
        &self,
        index_key: &[u8],
        one: &'b mut OneRow,
    ) -> Result<Option<IndexEntry<'b>>> {
        self.table.check_may_lock()?;
        self.read_one(index_key, false, Some(self.table.lock(RowMode::Exclusive)), one)
    }

    /// As [`TxIndex::get_one_for_update`], but at [`Isolation::ReadUncommitted`] and [`Isolation::ReadCommitted`] a row
    /// that others have locked is not waited for: its last committed version is read, without a lock, as by a
    /// [semi-consistent](crate::IndexCursor::semi_consistent) cursor. If that is wanted,
    /// [`TxIndex::get_one_for_update`] waits for the lock. A row that others have inserted with this key and not
    /// committed is passed over. Returns the row as well; `None` if it is [missing](SemiConsistentRead::Missing).
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-one-semi-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{IndexOptions, Isolation, OneRow, SemiConsistentRead, TableOptions, TransactionOptions};
    ///
    /// let by_plate = TableOptions::default().index("plate", IndexOptions::on_value(0..5).unique());
    /// let cars = db.create_table("cars", by_plate)?;
    /// cars.insert(b"1", b"AB123 red")?;
    /// let options = TransactionOptions::default().isolation(Isolation::ReadCommitted);
    /// let (other, trx) = (db.begin(options), db.begin(options));
    /// other.table(&cars).update(b"1", b"AB123 blue")?;
    ///
    /// let (plates, mut car) = (trx.table(&cars).index("plate")?, OneRow::default());
    /// let (read, found) = plates.get_one_for_update_semi_consistent(b"AB123", &mut car)?;
    /// assert_eq!((read, found.map(|car| car.value)), (SemiConsistentRead::Committed, Some(&b"AB123 red"[..])));
    /// # drop((other, trx));
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`TxIndex::get_one_for_share`].
    ///
    /// [`Isolation::ReadUncommitted`]: crate::Isolation::ReadUncommitted
    /// [`Isolation::ReadCommitted`]: crate::Isolation::ReadCommitted
    pub fn get_one_for_update_semi_consistent<'b>(
        &self,
        index_key: &[u8],
        one: &'b mut OneRow,
    ) -> Result<(SemiConsistentRead, Option<IndexEntry<'b>>)> {
        self.table.check_may_lock()?;
        let lock = self.table.lock(RowMode::Exclusive);
        one.lock = None;
        self.form.start_into(index_key, &mut one.prefix);
        let read = self.read_semi_consistent(lock, one).map_err(|error| error.of(|_| self.owner()))?;
        if read == SemiConsistentRead::Missing {
            return Ok((read, None));
        }
        self.lend(false, one).map(|row| (read, Some(row)))
    }

    fn read_semi_consistent(&self, lock: RowLock, one: &mut OneRow) -> Result<SemiConsistentRead> {
        self.table.engine.check_open()?;
        let scope = self.table.holder()?;
        let mut call = scope.begin_call()?;
        let inner = &mut call.inner;
        let read = if self.table.is_temporary() {
            let is_there = self.find_one_seen(Visibility::Newest, false, one);
            is_there.map(|is_there| SemiConsistentRead::of(is_there, SemiConsistentRead::Locked))
        } else {
            self.lock_one(scope, inner, lock, may_read_committed(scope, lock), one)
        };
        call.finish(read)
    }
}
