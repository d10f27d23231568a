//! The clients: sysbench's read/write mix as single calls.
//!
//! **Purpose.** Each client goes round: 10 point reads; 4 ranges of 100 rows (read, summed, sorted, distinct); an
//! update of the indexed column and one of another; a delete and an insert of the same row. It records every call.
//!
//! **Invariants.** A call is inside a drop window if any part of it is. Two clients that meet at a row are normal: a
//! row that is not there at the moment is counted, as is one that is there already.
//!
//! **May touch.** `engine`, `measure`.

use std::{
    hint::black_box,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use windfall::error::{Error, SchemaError};

use super::sbtest;
use crate::{
    engine::Table,
    failure::{Failure, Result},
    measure::{Latency, Random, Timeline},
};

/// How long after a drop its window ends.
pub const WINDOW: Duration = Duration::from_millis(100);
/// Rows of a range.
const RANGE: u32 = 100;

/// The kinds of calls.
pub const KINDS: [&str; 5] = ["point read", "range of 100", "update", "delete", "insert"];
const POINT: usize = 0;
const RANGES: usize = 1;
const UPDATE: usize = 2;
const DELETE: usize = 3;
const INSERT: usize = 4;

/// What the threads of a run share.
#[derive(Debug)]
pub struct Shared {
    /// When the run began.
    pub start: Instant,
    /// When the last drop window opened, in nanoseconds of the run.
    pub window: AtomicU64,
    /// Set when everyone is to stop.
    pub stop: AtomicBool,
}

impl Shared {
    /// A run that begins now.
    pub fn new() -> Self {
        Self { start: Instant::now(), window: AtomicU64::new(u64::MAX), stop: AtomicBool::new(false) }
    }

    /// The time of the run in nanoseconds.
    pub fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

/// What a client has recorded.
#[derive(Clone, Debug)]
pub struct Record {
    /// When calls finished.
    pub timeline: Timeline,
    /// Times of calls inside drop windows, by kind.
    pub inside: [Latency; 5],
    /// Times of the other calls, by kind.
    pub outside: [Latency; 5],
    /// Calls that met a row which another client had just taken away or put there.
    pub met: u64,
}

impl Record {
    /// Nothing recorded.
    pub fn new(length: Duration) -> Self {
        Self {
            timeline: Timeline::new(length),
            inside: Default::default(),
            outside: Default::default(),
            met: 0,
        }
    }

    /// Adds what another client has recorded.
    pub fn add(&mut self, other: &Self) {
        self.timeline.add(&other.timeline);
        for (mine, theirs) in self.inside.iter_mut().zip(&other.inside) {
            mine.add(theirs);
        }
        for (mine, theirs) in self.outside.iter_mut().zip(&other.outside) {
            mine.add(theirs);
        }
        self.met += other.met;
    }
}

/// One client.
pub struct Client<'a> {
    table: &'a Table,
    rows: u32,
    random: Random,
    shared: &'a Shared,
    record: Record,
}

impl<'a> Client<'a> {
    /// A client of a table with ids 1 to `rows`.
    pub fn new(table: &'a Table, rows: u32, random: Random, shared: &'a Shared, length: Duration) -> Self {
        Self { table, rows, random, shared, record: Record::new(length) }
    }

    /// Works until told to stop.
    pub fn run(mut self) -> Result<Record> {
        while !self.shared.stop.load(Relaxed) {
            self.round()?;
        }
        Ok(self.record)
    }

    /// One transaction of sysbench's `oltp_read_write`, call by call.
    fn round(&mut self) -> Result<()> {
        let table = self.table;
        for _ in 0..10 {
            let key = sbtest::key(self.id());
            self.call(POINT, || table.get(&key).map(|row| usize::from(black_box(row).is_some())))?;
        }
        for part in [read, sum, sorted, distinct] {
            let first = sbtest::key(self.id());
            self.call(RANGES, || part(table, &first))?;
        }
        let key = sbtest::key(self.id());
        self.call(UPDATE, || {
            let Some(mut row) = table.get(&key)? else { return Ok(0) };
            let k = sbtest::k(&row).wrapping_add(1);
            sbtest::set_k(&mut row, k);
            table.update(&key, &row).map(|()| 1)
        })?;
        let key = sbtest::key(self.id());
        let mut c = [0; sbtest::C.end - sbtest::C.start];
        sbtest::fill(&mut c, &mut self.random);
        self.call(UPDATE, || {
            let Some(mut row) = table.get(&key)? else { return Ok(0) };
            row[sbtest::C].copy_from_slice(&c);
            table.update(&key, &row).map(|()| 1)
        })?;
        let key = sbtest::key(self.id());
        let row = sbtest::value(self.rows, &mut self.random);
        self.call(DELETE, || table.delete(&key).map(usize::from))?;
        self.call(INSERT, || table.insert(&key, &row).map(|()| 1))
    }

    fn id(&mut self) -> u32 {
        self.random.below(u64::from(self.rows)) as u32 + 1
    }

    /// Makes a call, which says how many rows it met, and records it.
    #[inline]
    fn call(&mut self, kind: usize, call: impl FnOnce() -> windfall::error::Result<usize>) -> Result<()> {
        let start = self.shared.now();
        let rows = match call() {
            Ok(rows) => rows,
            Err(Error::Schema(SchemaError::NoRow(_) | SchemaError::DuplicateKey(_))) => 0,
            Err(other) => return Err(Failure::Engine(other)),
        };
        let end = self.shared.now();
        let window = self.shared.window.load(Relaxed);
        let inside = end >= window && start < window.saturating_add(WINDOW.as_nanos() as u64);
        let times = if inside { &mut self.record.inside } else { &mut self.record.outside };
        times[kind].record(end - start);
        self.record.timeline.finished(end);
        self.record.met += u64::from(rows == 0);
        Ok(())
    }
}

/// Calls `each` with up to [`RANGE`] rows, and says how many there were.
fn range(table: &Table, first: &[u8], mut each: impl FnMut(Vec<u8>)) -> windfall::error::Result<usize> {
    let mut count = 0;
    for row in table.range(first..)?.take(RANGE as usize) {
        each(row?.1);
        count += 1;
    }
    Ok(count)
}

fn read(table: &Table, first: &[u8]) -> windfall::error::Result<usize> {
    range(table, first, |row| {
        black_box(row);
    })
}

fn sum(table: &Table, first: &[u8]) -> windfall::error::Result<usize> {
    let mut sum = 0_u64;
    let count = range(table, first, |row| sum += u64::from(sbtest::k(&row)))?;
    black_box(sum);
    Ok(count)
}

fn sorted(table: &Table, first: &[u8]) -> windfall::error::Result<usize> {
    let mut rows = Vec::with_capacity(RANGE as usize);
    let count = range(table, first, |row| rows.push(row))?;
    rows.sort_unstable_by(|a, b| a[sbtest::C].cmp(&b[sbtest::C]));
    black_box(rows);
    Ok(count)
}

fn distinct(table: &Table, first: &[u8]) -> windfall::error::Result<usize> {
    let mut rows = Vec::with_capacity(RANGE as usize);
    let count = range(table, first, |row| rows.push(row))?;
    rows.sort_unstable_by(|a, b| a[sbtest::C].cmp(&b[sbtest::C]));
    rows.dedup_by(|a, b| a[sbtest::C] == b[sbtest::C]);
    black_box(rows);
    Ok(count)
}
