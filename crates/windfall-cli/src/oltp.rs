//! Sysbench's `oltp_read_write`.
//!
//! **Purpose.** One transaction of it: 10 point reads; 4 ranges of 100 rows (read, summed, sorted, distinct); an update
//! of the indexed column and one of another; a delete and an insert of the same row; the commit.
//!
//! **Method.** The isolation level is the default, [`Isolation::RepeatableRead`](windfall::Isolation::RepeatableRead).
//! A deadlock victim, or a transaction after a lock timeout, rolls back.

use std::{
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use windfall::{
    TransactionOptions, TxTable,
    error::{Error, LockError, Result as Called},
};
use windfall_measure::{Random, sbtest};

use crate::{
    engine::{Database, IndexOptions, Table, TableOptions},
    failure::{Failure, Result},
};

/// Rows per range.
pub(crate) const RANGE: u32 = 100;

/// The kinds of calls.
pub(crate) const KINDS: [&str; 6] = ["point read", "range of 100", "update", "delete", "insert", "commit"];
const POINT: usize = 0;
const RANGES: usize = 1;
const UPDATE: usize = 2;
const DELETE: usize = 3;
const INSERT: usize = 4;
const COMMIT: usize = 5;

/// An observer of each call.
pub(crate) trait Observer {
    /// Executes a call of a kind, which is an index of [`KINDS`].
    fn call<T>(&mut self, kind: usize, call: impl FnOnce() -> Called<T>) -> Called<T>;
}

/// An observer that records nothing.
pub(crate) struct Unobserved;

impl Observer for Unobserved {
    #[inline]
    fn call<T>(&mut self, _kind: usize, call: impl FnOnce() -> Called<T>) -> Called<T> {
        call()
    }
}

/// The database and table of the transactions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mix<'a> {
    /// The database.
    pub db: &'a Database,
    /// The table, with ids 1 to `rows`.
    pub table: &'a Table,
    /// The highest id in the table.
    pub rows: u32,
}

impl Mix<'_> {
    /// Executes one transaction. Returns whether it committed; otherwise a deadlock or a lock timeout rolled it back.
    pub(crate) fn transaction(&self, random: &mut Random, observer: &mut impl Observer) -> Result<bool> {
        match self.attempt(random, observer) {
            Ok(()) => Ok(true),
            Err(Error::Lock(LockError::Deadlock(_) | LockError::TimedOut { .. })) => Ok(false),
            Err(other) => Err(Failure::Engine(other)),
        }
    }

    fn attempt(&self, random: &mut Random, observer: &mut impl Observer) -> Called<()> {
        let trx = self.db.begin(TransactionOptions::default());
        let table = &trx.table(self.table);
        for _ in 0..10 {
            let key = self.key(random);
            observer.call(POINT, || table.get(&key).map(black_box))?;
        }
        for part in [read, sum, sorted, distinct] {
            let first = self.id(random);
            observer.call(RANGES, || part(table, first))?;
        }
        let key = self.key(random);
        observer
            .call(UPDATE, || change(table, &key, |row| sbtest::set_k(row, sbtest::k(row).wrapping_add(1))))?;
        let key = self.key(random);
        let mut c = [0; sbtest::C.end - sbtest::C.start];
        sbtest::fill(&mut c, random);
        observer.call(UPDATE, || change(table, &key, |row| row[sbtest::C].copy_from_slice(&c)))?;
        let key = self.key(random);
        let row = sbtest::value(self.rows, random);
        observer.call(DELETE, || table.delete(&key))?;
        observer.call(INSERT, || table.insert(&key, &row))?;
        observer.call(COMMIT, || trx.commit().map(drop))
    }

    fn id(&self, random: &mut Random) -> u32 {
        random.below(u64::from(self.rows)) as u32 + 1
    }

    fn key(&self, random: &mut Random) -> [u8; 4] {
        sbtest::key(self.id(random))
    }
}

/// Creates the table with its index on `k` and loads rows 1 to `rows`, counting them.
pub(crate) fn load(db: &Database, rows: u32, seed: u64, done: &AtomicU64) -> Result<Table> {
    let options = TableOptions::default()
        .index("k_1", IndexOptions::on_value(sbtest::K.start as u32..sbtest::K.end as u32));
    let table = db.create_table(sbtest::SBTEST, options)?;
    let mut random = Random::new(seed, 0);
    for id in 1..=rows {
        table.insert(&sbtest::key(id), &sbtest::value(rows, &mut random))?;
        done.fetch_add(1, Relaxed);
    }
    Ok(table)
}

/// Changes a row under an exclusive lock.
fn change(table: &TxTable<'_>, key: &[u8], how: impl FnOnce(&mut [u8])) -> Called<()> {
    let Some(mut row) = table.get_for_update(key)? else { return Ok(()) };
    how(&mut row);
    table.update(key, &row)
}

/// Calls `each` with the values of [`RANGE`] ids, as far as they exist, and returns their number.
fn range(table: &TxTable<'_>, first: u32, mut each: impl FnMut(&[u8])) -> Called<usize> {
    let mut rows = table.range(sbtest::key(first)..sbtest::key(first + RANGE))?;
    let mut count = 0;
    while let Some((_, value)) = rows.next_ref()? {
        each(value);
        count += 1;
    }
    Ok(count)
}

fn read(table: &TxTable<'_>, first: u32) -> Called<usize> {
    range(table, first, |row| {
        black_box(&row[sbtest::C]);
    })
}

fn sum(table: &TxTable<'_>, first: u32) -> Called<usize> {
    let mut sum = 0_u64;
    let count = range(table, first, |row| sum += u64::from(sbtest::k(row)))?;
    black_box(sum);
    Ok(count)
}

/// Reads column `c` of a range, and orders it by `order`.
fn ordered(table: &TxTable<'_>, first: u32, order: impl FnOnce(&mut Vec<&[u8]>)) -> Called<usize> {
    let mut bytes = Vec::with_capacity(RANGE as usize * sbtest::C.len());
    let count = range(table, first, |row| bytes.extend_from_slice(&row[sbtest::C]))?;
    let mut columns = bytes.chunks_exact(sbtest::C.len()).collect();
    order(&mut columns);
    black_box(columns);
    Ok(count)
}

fn sorted(table: &TxTable<'_>, first: u32) -> Called<usize> {
    ordered(table, first, |columns| columns.sort_unstable())
}

fn distinct(table: &TxTable<'_>, first: u32) -> Called<usize> {
    ordered(table, first, |columns| {
        columns.sort_unstable();
        columns.dedup();
    })
}
