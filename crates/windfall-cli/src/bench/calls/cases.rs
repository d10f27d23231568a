//! The kinds of calls that `bench calls` measures.
//!
//! **Purpose.** A table of rows of 190 bytes, and for each kind of call a function that makes many of them.
//!
//! **Invariants.** Every row that a call looks for exists, and every call that is made is checked to have found or
//! changed it (test: `calls`).
//!
//! **Method.** What a function prepares, such as a cursor, it prepares before the first call that is measured. The keys
//! of an index are in no order that the keys of the rows have.

use std::hint::black_box;

use windfall::{
    FlushLog, IndexCursor, IndexOptions, Seek, SuppliedChange, SuppliedEntry, TransactionOptions,
};
use windfall_measure::Random;

use super::{super::fixture, handler};
use crate::{
    engine::{self, Database, Table},
    failure::{Failure, Result},
};

/// The bytes of a row: a key of 4 bytes, and the value.
pub(super) const ROW: usize = 190;
/// The bytes of a value: columns of 4 bytes, of which the first ones are indexed, and the rest.
pub(super) const VALUE: usize = ROW - 4;
/// The place of the plain column, which is in no index.
pub(super) const PLAIN: usize = 100;
/// Locking reads of one transaction, and statements.
pub(super) const IN_TRANSACTION: u64 = 100;

/// The indexes of the table of a case, each on a column of its own.
#[derive(Clone, Copy, Debug)]
pub(super) enum Indexes {
    /// This many, of which the engine makes the entries.
    Made(u32),
    /// One, of which the caller supplies the entries.
    Supplied,
}

/// A kind of call.
#[derive(Debug)]
pub(super) struct Case {
    /// Its name, also that of the part of the benchmark.
    pub id: &'static str,
    /// What is done, for readers.
    pub what: &'static str,
    /// The most nanoseconds of processor time that a call may take; none if the case only explains another one.
    pub budget_ns: Option<f64>,
    /// The indexes of the table.
    pub indexes: Indexes,
    /// The number of calls of a timed round, and of those whose instructions are counted.
    pub calls: [u64; 2],
    /// Prepares the calls.
    pub prepare: fn(&Caller) -> Result<Calls<'_>>,
}

/// Makes as many calls as it is asked for. It continues where it has ended before.
pub(super) type Calls<'a> = Box<dyn FnMut(u64) -> Result<()> + 'a>;

/// Some of the counted calls have a rare cost: a step of a scan reads ahead, and an insert splits a leaf of 72 rows.
const READS: [u64; 2] = [200_000, 100];
const STEPS: [u64; 2] = [400_000, 1_000];
const WRITES: [u64; 2] = [30_000, 144];

/// All cases.
pub(super) const CASES: [Case; 22] = [
    Case {
        id: "point-read-ascending",
        what: "point read by key, keys ascending",
        budget_ns: Some(180.0),
        indexes: Indexes::Made(1),
        calls: READS,
        prepare: |caller| Ok(caller.point_reads(caller.ascending())),
    },
    Case {
        id: "point-read-random",
        what: "point read by key, keys random",
        budget_ns: Some(600.0),
        indexes: Indexes::Made(1),
        calls: READS,
        prepare: |caller| Ok(caller.point_reads(caller.random())),
    },
    Case {
        id: "scan",
        what: "scan: the next row of a cursor",
        budget_ns: Some(50.0),
        indexes: Indexes::Made(1),
        calls: STEPS,
        prepare: scan,
    },
    Case {
        id: "scan-batch",
        what: "scan: rows in batches of 64, for each row",
        budget_ns: None,
        indexes: Indexes::Made(1),
        calls: STEPS,
        prepare: handler::rows,
    },
    Case {
        id: "seek-again",
        what: "cursor: repositioned by a seek, and its first row",
        budget_ns: Some(350.0),
        indexes: Indexes::Made(1),
        calls: READS,
        prepare: seek_again,
    },
    Case {
        id: "seek-new-cursor",
        what: "cursor: a new one, its seek, and its first row",
        budget_ns: Some(450.0),
        indexes: Indexes::Made(1),
        calls: READS,
        prepare: |caller| Ok(seek_new(caller)),
    },
    Case {
        id: "range-again",
        what: "cursor: restricted to another range, and its first row",
        budget_ns: None,
        indexes: Indexes::Made(1),
        calls: READS,
        prepare: handler::range_again,
    },
    Case {
        id: "index-entry-and-row",
        what: "index scan: the next entry and its row",
        budget_ns: Some(700.0),
        indexes: Indexes::Made(1),
        calls: READS,
        prepare: |caller| entries(caller.table.index("column_0")?.cursor()?),
    },
    Case {
        id: "index-entry-alone",
        what: "index scan: the next entry alone (covering)",
        budget_ns: Some(50.0),
        indexes: Indexes::Made(1),
        calls: STEPS,
        prepare: |caller| entries(caller.table.index("column_0")?.key_cursor()?),
    },
    Case {
        id: "index-batch-alone",
        what: "index scan: entries alone in batches of 64, for each entry",
        budget_ns: None,
        indexes: Indexes::Made(1),
        calls: STEPS,
        prepare: handler::entries,
    },
    Case {
        id: "locking-read",
        what: "locking read by key, a hundred in each transaction",
        budget_ns: Some(500.0),
        indexes: Indexes::Made(1),
        calls: READS,
        prepare: |caller| Ok(locking_reads(caller)),
    },
    Case {
        id: "locking-read-lent",
        what: "the same, and the row is lent",
        budget_ns: Some(500.0),
        indexes: Indexes::Made(1),
        calls: READS,
        prepare: |caller| Ok(handler::lent_locking_reads(caller)),
    },
    Case {
        id: "update-plain-column",
        what: "update of a column that is in no index; one index",
        budget_ns: Some(950.0),
        indexes: Indexes::Made(1),
        calls: WRITES,
        prepare: |caller| Ok(updates(caller)),
    },
    Case {
        id: "update-with-plain-column",
        what: "the same as a statement, in a transaction of a hundred; entries supplied",
        budget_ns: None,
        indexes: Indexes::Supplied,
        calls: WRITES,
        prepare: |caller| handler::updates(caller, false),
    },
    Case {
        id: "update-with-index-key",
        what: "the same of the column that is in the index",
        budget_ns: None,
        indexes: Indexes::Supplied,
        calls: WRITES,
        prepare: |caller| handler::updates(caller, true),
    },
    Case {
        id: "insert",
        what: "insert, no index",
        budget_ns: Some(1_300.0),
        indexes: Indexes::Made(0),
        calls: WRITES,
        prepare: |caller| Ok(inserts(caller)),
    },
    Case {
        id: "insert-1-index",
        what: "insert, one index",
        budget_ns: None,
        indexes: Indexes::Made(1),
        calls: WRITES,
        prepare: |caller| Ok(inserts(caller)),
    },
    Case {
        id: "insert-2-indexes",
        what: "insert, two indexes",
        budget_ns: None,
        indexes: Indexes::Made(2),
        calls: WRITES,
        prepare: |caller| Ok(inserts(caller)),
    },
    Case {
        id: "insert-with-1-index",
        what: "insert as a statement, in a transaction of a hundred; one index, entries supplied",
        budget_ns: None,
        indexes: Indexes::Supplied,
        calls: WRITES,
        prepare: handler::inserts,
    },
    Case {
        id: "begin-get-end",
        what: "begin, point read, and end of a transaction",
        budget_ns: Some(300.0),
        indexes: Indexes::Made(1),
        calls: READS,
        prepare: |caller| Ok(begin_get_end(caller)),
    },
    Case {
        id: "restart-get-end",
        what: "the same as a statement, with one handle for all transactions",
        budget_ns: Some(300.0),
        indexes: Indexes::Made(1),
        calls: READS,
        prepare: |caller| Ok(restart_get_end(caller)),
    },
    Case {
        id: CREATE_DROP,
        what: "create and drop of an empty table",
        budget_ns: None,
        indexes: Indexes::Made(0),
        calls: [2_000, 40],
        prepare: |caller| Ok(create_drop(caller)),
    },
];

/// The case that is compared with the writes of the log.
pub(super) const CREATE_DROP: &str = "create-drop";

/// The database, and its table with all of its rows.
#[derive(Debug)]
pub(super) struct Caller {
    pub db: Database,
    pub table: Table,
    /// The number of rows.
    pub rows: u32,
    /// The seed of random keys.
    pub seed: u64,
}

/// Returns what makes a call as many times as it is asked for.
pub(super) fn repeated<'a>(mut call: impl FnMut() -> Result<()> + 'a) -> Calls<'a> {
    Box::new(move |calls| (0..calls).try_for_each(|_| call()))
}

/// Returns the error of a call that has not found what it should.
pub(super) fn lost() -> Failure {
    Failure::message("a row that was loaded is missing")
}

/// Returns another number, a different one for each number, in no order.
fn scattered(mut id: u32) -> u32 {
    for factor in [0x7feb_352d, 0x846c_a68b] {
        id = (id ^ id >> 16).wrapping_mul(factor);
    }
    id ^ id >> 16
}

/// Writes the value of the row with a number: its indexed columns. Returns the first of them.
pub(super) fn write_value(id: u32, value: &mut [u8; VALUE]) -> u32 {
    let first = scattered(id);
    value[..4].copy_from_slice(&first.to_be_bytes());
    value[4..8].copy_from_slice(&scattered(!first).to_be_bytes());
    first
}

impl Caller {
    /// Creates the table with some indexes, and inserts its rows in the order of their keys.
    pub(super) fn load(db: Database, rows: u32, indexes: Indexes, seed: u64) -> Result<Self> {
        let mut options = engine::with_metadata(Vec::new());
        match indexes {
            Indexes::Made(count) => {
                for n in 0..count {
                    let column = IndexOptions::on_value(4 * n..4 * (n + 1));
                    options = options.index(&format!("column_{n}"), column);
                }
            }
            Indexes::Supplied => options = options.index("column_0", IndexOptions::supplied(4)),
        }
        let table = db.create_table("rows", options)?;
        let mut value = [7; VALUE];
        for id in 0..rows {
            let (first, key) = (write_value(id, &mut value).to_be_bytes(), id.to_be_bytes());
            match indexes {
                Indexes::Made(_) => table.insert(&key, &value)?,
                Indexes::Supplied => {
                    let new = Some(SuppliedEntry::new(&first));
                    table.insert_with(&key, &value, &[SuppliedChange::new("column_0", None, new)])?;
                }
            }
        }
        Ok(Self { db, table, rows, seed })
    }

    /// Returns the keys of rows in their order, from the first after the last.
    pub(super) fn ascending(&self) -> impl FnMut() -> [u8; 4] + use<> {
        let (mut next, rows) = (0, self.rows);
        move || {
            let key = next;
            next = if key + 1 == rows { 0 } else { key + 1 };
            key.to_be_bytes()
        }
    }

    /// Returns random keys of rows.
    fn random(&self) -> impl FnMut() -> [u8; 4] + use<> {
        let (mut random, rows) = (Random::new(self.seed, 0), u64::from(self.rows));
        move || (random.below(rows) as u32).to_be_bytes()
    }

    fn point_reads<'a>(&'a self, mut key: impl FnMut() -> [u8; 4] + 'a) -> Calls<'a> {
        let mut value = Vec::new();
        repeated(move || {
            if !self.table.get_into(&key(), &mut value)? {
                return Err(lost());
            }
            black_box(&value);
            Ok(())
        })
    }
}

fn scan(caller: &Caller) -> Result<Calls<'_>> {
    let mut cursor = caller.table.cursor()?;
    cursor.seek(Seek::First)?;
    Ok(repeated(move || {
        if !cursor.next()? && !cursor.seek(Seek::First)? {
            return Err(lost());
        }
        black_box(cursor.row());
        Ok(())
    }))
}

fn seek_again(caller: &Caller) -> Result<Calls<'_>> {
    let (mut cursor, mut key) = (caller.table.cursor()?, caller.ascending());
    Ok(repeated(move || {
        if !cursor.seek(Seek::AtLeast(&key()))? {
            return Err(lost());
        }
        black_box(cursor.row());
        Ok(())
    }))
}

fn seek_new(caller: &Caller) -> Calls<'_> {
    let mut key = caller.ascending();
    repeated(move || {
        let mut cursor = caller.table.cursor()?;
        if !cursor.seek(Seek::AtLeast(&key()))? {
            return Err(lost());
        }
        black_box(cursor.row());
        Ok(())
    })
}

/// Returns the steps of a cursor over an index.
fn entries<'a>(mut cursor: IndexCursor) -> Result<Calls<'a>> {
    cursor.seek(Seek::First)?;
    Ok(repeated(move || {
        if !cursor.next()? && !cursor.seek(Seek::First)? {
            return Err(lost());
        }
        black_box(cursor.row());
        Ok(())
    }))
}

fn locking_reads(caller: &Caller) -> Calls<'_> {
    let mut key = caller.ascending();
    Box::new(move |calls| {
        let mut left = calls;
        while left > 0 {
            let some = left.min(IN_TRANSACTION);
            let trx = caller.db.begin(TransactionOptions::default());
            let table = trx.table(&caller.table);
            for _ in 0..some {
                black_box(table.get_for_update(&key())?.ok_or_else(lost)?);
            }
            trx.commit()?;
            left -= some;
        }
        Ok(())
    })
}

fn updates(caller: &Caller) -> Calls<'_> {
    let (mut key, mut value, mut round) = (caller.ascending(), [7; VALUE], 0_u64);
    repeated(move || {
        let key = key();
        write_value(u32::from_be_bytes(key), &mut value);
        round += 1;
        value[PLAIN..PLAIN + 8].copy_from_slice(&round.to_be_bytes());
        caller.table.update(&key, &value)?;
        Ok(())
    })
}

fn inserts(caller: &Caller) -> Calls<'_> {
    let (mut next, mut value) = (caller.rows, [7; VALUE]);
    repeated(move || {
        write_value(next, &mut value);
        caller.table.insert(&next.to_be_bytes(), &value)?;
        next += 1;
        Ok(())
    })
}

fn begin_get_end(caller: &Caller) -> Calls<'_> {
    let (mut key, mut value) = (caller.ascending(), Vec::new());
    repeated(move || {
        let trx = caller.db.begin(TransactionOptions::default());
        if !trx.table(&caller.table).get_into(&key(), &mut value)? {
            return Err(lost());
        }
        black_box(&value);
        trx.commit()?;
        Ok(())
    })
}

fn restart_get_end(caller: &Caller) -> Calls<'_> {
    let (mut key, mut value) = (caller.ascending(), Vec::new());
    let mut trx = caller.db.begin(TransactionOptions::default());
    repeated(move || {
        trx.begin_statement()?;
        if !trx.table(&caller.table).get_into(&key(), &mut value)? {
            return Err(lost());
        }
        black_box(&value);
        trx.commit_statement(FlushLog::Lazy)?;
        trx.restart(TransactionOptions::default())?;
        Ok(())
    })
}

fn create_drop(caller: &Caller) -> Calls<'_> {
    repeated(move || {
        fixture::table(&caller.db, "t")?;
        caller.db.drop_table("t")?;
        Ok(())
    })
}
