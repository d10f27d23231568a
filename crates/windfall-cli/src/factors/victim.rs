//! A table that is dropped, with a given amount of a factor.
//!
//! **Purpose.** Creates the table, and keeps the objects that must exist until its statement is over.
//!
//! **Method.** Apart from the factor, tables are alike. After its victim each side creates a counterpart, which has the
//! amount of the factor that is in another table.

use std::{any::Any, hint::black_box, thread, time::Duration};

use windfall::{DropReport, Seek, Transaction, TransactionOptions};

use super::{
    database::{Side, index, load, options},
    factor::{FactorKind, Kind},
};
use crate::{
    engine::Table,
    failure::{Failure, Result},
};

/// Rows of a table if the factor is not rows.
const ROWS: u64 = 10;
/// Rows per page if their values have this length.
const PAGE_ROWS: u64 = 15;
const PAGE_VALUE: usize = 1_000;
/// The length of a long value: some overflow pages.
const LONG: usize = 64 << 10;
/// Maximum number of passes over all rows until a hash index has grown.
const PASSES: u32 = 1_000;
/// Bytes per entry of a hash index.
const HASH_ENTRY: u64 = 8;

/// A table, or a group of them.
pub(super) struct Victim {
    names: Vec<String>,
    kept: Vec<Box<dyn Any>>,
    /// A transaction with a read view that ends just before the statement.
    until_dropped: Option<Transaction>,
}

impl Victim {
    /// Creates a victim, after the previous one is completely freed.
    pub(super) fn make(side: &mut Side, kind: Kind) -> Result<Self> {
        side.wait_until_purged()?;
        Self::with(side, kind, side.amount)
    }

    /// Creates its counterpart, which stays until the statement is over.
    pub(super) fn counterpart(side: &mut Side, kind: Kind) -> Result<Self> {
        Self::with(side, kind, side.in_other_table)
    }

    fn with(side: &mut Side, kind: Kind, n: u64) -> Result<Self> {
        side.lazy_commits();
        let name = side.name();
        let mut victim = Self { names: vec![name.clone()], kept: Vec::new(), until_dropped: None };
        let factor = side.factor;
        let indexes = factor.indexes(kind, n);
        let usual = |side: &Side| load(&side.db, &name, ROWS, 16, indexes);
        match factor {
            FactorKind::Rows => drop(load(&side.db, &name, n, 20, indexes)?),
            FactorKind::DirtyPages => drop(load(&side.db, &name, n * PAGE_ROWS, PAGE_VALUE, indexes)?),
            FactorKind::CleanPages => {
                load(&side.db, &name, n * PAGE_ROWS, PAGE_VALUE, indexes)?;
                side.db.checkpoint()?;
            }
            FactorKind::OpenFile | FactorKind::ClosedFile => {
                let rows = n * PAGE_ROWS / 16_384;
                load(&side.db, &name, rows, PAGE_VALUE, indexes)?;
                side.db.checkpoint()?;
                if factor == FactorKind::ClosedFile {
                    side.close_files()?;
                }
            }
            FactorKind::HashIndex => hash(side, &name, n)?,
            FactorKind::LongValues => {
                let table = usual(side)?;
                for row in 0..n {
                    table.insert(&(ROWS + row).to_be_bytes(), &vec![row as u8; LONG])?;
                }
            }
            FactorKind::History | FactorKind::Purge => {
                let rows = if factor == FactorKind::Purge { n } else { ROWS };
                let table = load(&side.db, &name, rows, 16, indexes)?;
                let view = side.db.begin(TransactionOptions::default().consistent_snapshot());
                black_box(view.table(&table).get(&0_u64.to_be_bytes())?);
                for change in 0..n {
                    let key = (change % rows).to_be_bytes();
                    if factor == FactorKind::Purge {
                        table.delete(&key)?;
                    } else {
                        table.update(&key, &change.to_be_bytes().repeat(2))?;
                    }
                }
                if factor == FactorKind::Purge {
                    victim.until_dropped = Some(view);
                } else {
                    victim.kept.push(Box::new(view));
                }
            }
            FactorKind::Handles | FactorKind::NoHandle => {
                let table = usual(side)?;
                for _ in 0..n {
                    victim.kept.push(Box::new((table.clone(), table.index(&index(0))?)));
                }
            }
            FactorKind::Cursors => {
                let table = usual(side)?;
                for _ in 0..n {
                    let trx = side.db.begin(TransactionOptions::default().consistent_snapshot());
                    let within = trx.table(&table);
                    let (mut cursor, mut range) = (within.cursor()?, within.rows()?);
                    cursor.seek(Seek::First)?;
                    range.next_ref()?;
                    victim.kept.push(Box::new((cursor, range, trx)));
                }
            }
            FactorKind::Prepared => {
                let table = usual(side)?;
                for row in 0..n {
                    let trx = side.db.begin(TransactionOptions::default());
                    trx.table(&table).put(&(row % ROWS).to_be_bytes(), &[7; 16])?;
                    trx.prepare(b"ends")?;
                    trx.commit()?;
                }
            }
            FactorKind::Group | FactorKind::LargeGroup => {
                side.db.create_table(&name, options(0))?.insert(b"row", b"value")?;
                for _ in 1..n {
                    let name = side.name();
                    side.db.create_table(&name, options(0))?.insert(b"row", b"value")?;
                    victim.names.push(name);
                }
            }
            FactorKind::Indexes | FactorKind::Catalog => drop(usual(side)?),
        }
        side.write_commits();
        Ok(victim)
    }

    /// Creates a small victim, which is dropped before or after the measured statement.
    pub(super) fn small(side: &mut Side) -> Result<Self> {
        let name = side.name();
        load(&side.db, &name, ROWS, 16, 2)?;
        Ok(Self { names: vec![name], kept: Vec::new(), until_dropped: None })
    }

    /// Returns whether its pages were dirty and are no longer: the page cleaner writes what has been dirty for long.
    pub(super) fn is_written(side: &Side) -> bool {
        let dirty = side.amount.max(side.in_other_table);
        side.factor == FactorKind::DirtyPages && side.db.metrics().pool_dirty < dirty
    }

    /// Makes its pages dirty again: one row in each of them gets another last byte.
    pub(super) fn dirty_again(&self, side: &Side) -> Result<()> {
        side.lazy_commits();
        for name in &self.names {
            let table = side.db.table(name)?;
            let mut value = Vec::new();
            for row in (0u64..).step_by(PAGE_ROWS as usize).map(u64::to_be_bytes) {
                if !table.get_into(&row, &mut value)? {
                    break;
                }
                *value.last_mut().ok_or_else(|| Failure::message("a row of a victim has no value"))? ^= 1;
                table.update(&row, &value)?;
            }
        }
        side.write_commits();
        Ok(())
    }

    /// Releases what is kept until the statement begins.
    pub(super) fn release(&mut self) {
        self.until_dropped = None;
    }

    /// Returns the arguments of a statement.
    pub(super) fn names(&self) -> Vec<&str> {
        self.names.iter().map(String::as_str).collect()
    }

    /// Removes what is left of it after a statement, if there was one.
    pub(super) fn remove(mut self, side: &Side, done: Option<Kind>) -> Result<()> {
        self.kept.clear();
        self.release();
        if done != Some(Kind::Drop) {
            side.db.drop_tables(&self.names())?;
        }
        Ok(())
    }
}

/// Runs a statement.
pub(super) fn run(side: &Side, kind: Kind, names: &[&str]) -> windfall::Result<DropReport> {
    match (kind, names) {
        (Kind::Drop, [name]) => side.db.drop_table(name),
        (Kind::Drop, names) => side.db.drop_tables(names),
        (Kind::Truncate, names) => side.db.truncate_table(names[0]),
        (Kind::DropIndex, names) => side.db.drop_index(names[0], "i0"),
    }
}

/// Creates a table and grows its hash index to `bytes` bytes by point reads of its rows.
fn hash(side: &Side, name: &str, bytes: u64) -> Result<()> {
    let before = side.db.metrics().hash_index_bytes;
    // A tree of one page has no hash index: this table has several pages.
    let rows = bytes / HASH_ENTRY / 4;
    let table = load(&side.db, name, rows, 16, 0)?;
    for _ in 0..PASSES {
        read_all(&table, rows)?;
        if side.db.metrics().hash_index_bytes >= before + bytes {
            return Ok(());
        }
        // A background thread may do the growth.
        thread::sleep(Duration::from_millis(1));
    }
    Err(Failure::message(format!("a hash index of {bytes} bytes has not grown")))
}

/// Reads all rows once, with one thread per processor.
fn read_all(table: &Table, rows: u64) -> Result<()> {
    let threads = thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let part = |t: u64| -> Result<()> {
        let mut value = Vec::new();
        for row in rows * t / threads..rows * (t + 1) / threads {
            black_box(table.get_into(&row.to_be_bytes(), &mut value)?);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|t| scope.spawn(move || part(t))).collect();
        let mut done = vec![part(0)];
        let panicked = |_| Err(Failure::message("a thread that reads has panicked"));
        done.extend(others.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)));
        done.into_iter().collect()
    })
}
