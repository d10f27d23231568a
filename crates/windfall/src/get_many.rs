//! Reads of many rows by their keys in one call.
//!
//! **Purpose.** A join or a fetch of rows by the keys that an index has returned reads many rows at random. One call
//! for all enters the table, the transaction and the read view once, and reads in the order of the keys, so that rows
//! of one page are read one after the other.
//!
//! **Invariants.** All values are of one moment, except in a locking read and at levels that read without a view
//! (test: `many_rows_are_read_by_their_keys_at_one_moment`). A locking read locks the rows in the order of their keys
//! (test: `reads_of_many_rows_do_not_deadlock_with_each_other`). After an error there are no values
//! (test: `many_rows_are_read_by_their_keys_at_one_moment`). A read with a limit of bytes reads the first keys in their
//! order, at least one, and neither reads nor locks a row behind them (test: `a_read_of_many_rows_ends_at_its_limit`).

use crate::{
    error::Result,
    get_one::TakenLock,
    scope::{Inner, RowLock, Scope},
    sync::LongWork,
    table::Table,
    tx_table::{Access, TxTable},
    txn::{Visibility, locks::RowMode},
};

/// The value of the row with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// It was not read.
    Unread,
    /// There is no such row.
    NoRow,
    /// From the first to before the second of the bytes.
    Row(usize, usize),
}

/// The values of the rows that [`Table::get_many`] has read, in the order of the keys that it was called with. Used
/// again, it keeps its memory.
#[derive(Debug, Default)]
pub struct Values {
    bytes: Vec<u8>,
    /// For each key the place of its value in `bytes`.
    places: Vec<Place>,
    /// The number of keys that were read.
    read: usize,
    /// A read ends when it has so many bytes of values.
    byte_limit: Option<usize>,
    /// The places of the keys in the order in which they are read.
    order: Vec<usize>,
    /// The value that is being read.
    value: Vec<u8>,
    locks: Vec<PlacedLock>,
    /// For each key the place in `locks` of the lock on its row, if it may be released.
    lock_places: Vec<Option<usize>>,
}

/// A lock that a locking read has taken and may release.
#[derive(Debug)]
struct PlacedLock {
    lock: TakenLock,
    /// The place of the row's key in `bytes`.
    key: (usize, usize),
    /// The number of keys for which the program may want the row.
    wanted: usize,
}

impl Values {
    /// Returns values with a limit: a read ends when those that it has read have this many bytes, after one key at
    /// least. The keys are read in their order, equal ones in that of the list: of keys in that order the first
    /// [`Values::keys_read`] were read. Read the others by another call, which reads at another moment unless the
    /// transaction keeps its snapshot.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-get-some-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{TableOptions, Values};
    ///
    /// let images = db.create_table("images", TableOptions::default())?;
    /// (0..10u8).try_for_each(|n| images.insert(&[n], &vec![n; 500_000]))?;
    /// let (mut values, mut calls) = (Values::with_byte_limit(1 << 20), 0);
    /// let mut keys: &[[u8; 1]] = &[[1], [3], [5], [7], [9]];
    /// while !keys.is_empty() {
    ///     images.get_many(keys, &mut values)?;
    ///     keys = &keys[values.keys_read()..];
    ///     calls += 1;
    /// }
    /// assert_eq!(calls, 2);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_byte_limit(bytes: usize) -> Self {
        Self { byte_limit: Some(bytes), ..Self::default() }
    }

    /// Returns the number of keys that were read: all of them, unless a limit of bytes has ended the read.
    pub fn keys_read(&self) -> usize {
        self.read
    }

    /// Returns whether the key at this place was read.
    pub fn is_read(&self, place: usize) -> bool {
        self.places.get(place).is_some_and(|place| *place != Place::Unread)
    }

    fn value_at(&self, place: Place) -> Option<&[u8]> {
        match place {
            Place::Row(start, end) => Some(&self.bytes[start..end]),
            Place::Unread | Place::NoRow => None,
        }
    }

    /// Returns the value of the row with the key at this place; `None` if there is no such row, or no such place, or it
    /// was not read ([`Values::is_read`]).
    pub fn get(&self, place: usize) -> Option<&[u8]> {
        self.value_at(*self.places.get(place)?)
    }

    /// Returns the number of keys, also of those that were not read.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns the values in the order of the keys, `None` for each key without a row or that was not read.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Option<&[u8]>> {
        self.places.iter().map(|place| self.value_at(*place))
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.places.clear();
        self.read = 0;
        self.locks.clear();
        self.lock_places.clear();
    }

    /// Gives up the row of the key at this place. Returns the lock on it and its key once it was given up for all keys.
    fn give_up(&mut self, place: usize) -> Option<(TakenLock, &[u8])> {
        let PlacedLock { lock, key, wanted } =
            &mut self.locks[self.lock_places.get_mut(place).and_then(Option::take)?];
        *wanted -= 1;
        (*wanted == 0).then(|| (*lock, &self.bytes[key.0..key.1]))
    }

    /// Reads the values of these keys in their order, each by `read`, which returns whether there is a row, and the
    /// lock that it has taken. Returns the number of rows.
    fn read<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        mut read: impl FnMut(&[u8], &mut Vec<u8>) -> Result<(bool, Option<TakenLock>)>,
    ) -> Result<usize> {
        let Self { bytes, places, read: keys_read, byte_limit, order, value, locks, lock_places } = self;
        let limit = byte_limit.unwrap_or(usize::MAX);
        places.resize(keys.len(), Place::Unread);
        order.clear();
        order.extend(0..keys.len());
        // Equal keys in the order of their places: which of them are read before a limit is then defined.
        order.sort_unstable_by_key(|place| (keys[*place].as_ref(), *place));
        let (mut rows, mut value_bytes, mut work) = (0, 0, LongWork::default());
        for place in order {
            if *keys_read > 0 && value_bytes >= limit {
                break;
            }
            work.step()?;
            let key = keys[*place].as_ref();
            let (is_there, taken) = read(key, value)?;
            *keys_read += 1;
            if !is_there {
                places[*place] = Place::NoRow;
                continue;
            }
            places[*place] = Place::Row(bytes.len(), bytes.len() + value.len());
            bytes.extend_from_slice(value);
            value_bytes += value.len();
            rows += 1;
            if let Some(lock) = taken {
                let key = (bytes.len(), bytes.len() + key.len());
                bytes.extend_from_slice(keys[*place].as_ref());
                locks.push(PlacedLock { lock, key, wanted: 0 });
            }
            // Equal keys follow each other, and the first one has the lock.
            if let Some(last) = locks.last_mut()
                && bytes[last.key.0..last.key.1] == *key
            {
                last.wanted += 1;
                lock_places.resize(keys.len(), None);
                lock_places[*place] = Some(locks.len() - 1);
            }
        }
        debug_assert!(
            rows == places.iter().filter(|place| matches!(place, Place::Row(..))).count(),
            "a row is counted that has no value, or the reverse"
        );
        Ok(rows)
    }
}

impl<A: Access> Table<A> {
    /// Reads the rows with these keys, in any order and repeated or not, into `values`. Returns the number of rows that
    /// there are. All are read as one plain read, of one moment, and in the order of their keys, which is faster than
    /// one by one. With [`Values::with_byte_limit`] a call may end before it has read all of them.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-get-many-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{TableOptions, Values};
    ///
    /// let towns = db.create_table("towns", TableOptions::default())?;
    /// for (town, people) in [("Basel", "177595"), ("Genoa", "560688"), ("Oslo", "717710")] {
    ///     towns.insert(town.as_bytes(), people.as_bytes())?;
    /// }
    /// let mut people = Values::default();
    /// assert_eq!(towns.get_many(&["Oslo", "Rome", "Basel"], &mut people)?, 2);
    /// assert_eq!(people.get(0), Some(&b"717710"[..]));
    /// assert_eq!((people.get(1), people.get(2)), (None, Some(&b"177595"[..])));
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Table::get`]. There are no values then.
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: &[K], values: &mut Values) -> Result<usize> {
        self.read_many(keys, None, values)
    }

    fn read_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        lock: Option<RowLock>,
        values: &mut Values,
    ) -> Result<usize> {
        values.clear();
        self.try_read_many(keys, lock, values).map_err(|error| {
            values.clear();
            self.with_owner(error)
        })
    }

    fn try_read_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        lock: Option<RowLock>,
        values: &mut Values,
    ) -> Result<usize> {
        self.engine.check_open()?;
        if let Some(scope) = self.scope()? {
            let mut call = scope.begin_call()?;
            let rows = self.read_many_in_transaction(scope, &mut call.inner, keys, lock, values);
            return call.finish(rows);
        }
        debug_assert!(lock.is_none(), "rows are locked outside of a transaction");
        if self.is_temporary() {
            return self.read_many_in(keys, Visibility::Newest, values);
        }
        let view = self.engine.transactions.versions().view();
        self.read_many_in(keys, Visibility::View(&view, None), values)
    }

    fn read_many_in_transaction<K: AsRef<[u8]>>(
        &self,
        scope: &Scope,
        inner: &mut Inner,
        keys: &[K],
        lock: Option<RowLock>,
        values: &mut Values,
    ) -> Result<usize> {
        if self.is_temporary() {
            return self.read_many_in(keys, Visibility::Newest, values);
        }
        if let Some(lock) = lock.or_else(|| scope.plain_read_lock().map(RowLock::from)) {
            return values.read(keys, |key, value| self.read_and_note(scope, inner, key, lock, value));
        }
        match scope.view_of_plain_read(inner) {
            Some(view) => self.read_many_in(keys, Visibility::View(&view, inner.own()), values),
            None => self.read_many_in(keys, Visibility::Newest, values),
        }
    }

    fn read_many_in<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        visibility: Visibility<'_>,
        values: &mut Values,
    ) -> Result<usize> {
        let (call, versions) = (self.inner.enter()?, self.engine.transactions.versions());
        visibility.check_known(call.clustered.space().created_at(), || self.owner())?;
        values.read(keys, |key, value| {
            let is_there = versions.get_in(&call.clustered, key, visibility, Some(self.fields), value)?;
            Ok((is_there, None))
        })
    }
}

impl TxTable<'_> {
    /// Reads and locks the rows with these keys (shared), in the order of their keys, each as
    /// [`TxTable::get_for_share`] does. Returns the number of rows that there are. [`TxTable::unlock_row_of`] releases
    /// the lock on one of them.
    ///
    /// # Errors
    /// As [`TxTable::get_for_share`]. There are no values then, and the rows that were locked before stay locked.
    pub fn get_many_for_share<K: AsRef<[u8]>>(&self, keys: &[K], values: &mut Values) -> Result<usize> {
        self.get_many_for(keys, RowMode::Shared, values)
    }

    /// As [`TxTable::get_many_for_share`], but each row is locked as [`TxTable::get_for_update`] does.
    ///
    /// # Errors
    /// As [`TxTable::get_many_for_share`].
    pub fn get_many_for_update<K: AsRef<[u8]>>(&self, keys: &[K], values: &mut Values) -> Result<usize> {
        self.get_many_for(keys, RowMode::Exclusive, values)
    }

    /// Releases the lock on the row with the key at this place of `values`, which a locking read of this transaction
    /// has read, as [`TxTable::unlock_row`] does. Returns whether it was released. A row whose key was passed several
    /// times stays locked until this was called for the place of each of them.
    ///
    /// # Errors
    /// As [`TxTable::unlock_row`].
    pub fn unlock_row_of(&self, values: &mut Values, place: usize) -> Result<bool> {
        match values.give_up(place) {
            Some((lock, key)) => self.release(lock, key),
            None => Ok(false),
        }
    }

    fn get_many_for<K: AsRef<[u8]>>(&self, keys: &[K], mode: RowMode, values: &mut Values) -> Result<usize> {
        values.clear();
        self.check_may_lock()?;
        self.read_many(keys, Some(self.lock(mode)), values)
    }
}
