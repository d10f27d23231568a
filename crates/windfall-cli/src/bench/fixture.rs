//! Tables, threads and children for benchmarks.
//!
//! **Purpose.** Tables of a given size, small used tables, threads that all do the same, children that are killed at
//! the end of this process.
//!
//! **Method.** A table is filled in key order, by one thread.

use std::{
    thread,
    time::{Duration, Instant},
};

use windfall_measure::Random;

use crate::{
    engine::{self, Database, Table},
    failure::{Failure, Result},
};

/// Bytes per megabyte (MiB).
pub(super) const MB: u64 = 1 << 20;
/// Bytes per gigabyte (GiB).
pub(super) const GB: u64 = 1 << 30;
/// The value of a row in tables that are used for their calls.
pub(super) const SMALL: [u8; 100] = [7; 100];
/// The bytes of a value in tables that are used for their size.
pub(super) const VALUE: usize = 1_000;
/// The approximate bytes of a row in these tables.
pub(super) const ROW: u64 = 1_040;
/// The longest time that purge may take to catch up.
const PURGED_WITHIN: Duration = Duration::from_mins(1);

/// Creates a table without secondary trees.
pub(super) fn table(db: &Database, name: &str) -> Result<Table> {
    Ok(db.create_table(name, engine::with_metadata(Vec::new()))?)
}

/// Creates a table of `count` small rows.
pub(super) fn small(db: &Database, name: &str, count: u64) -> Result<Table> {
    let table = table(db, name)?;
    for id in 0..count {
        table.insert(&id.to_be_bytes(), &SMALL)?;
    }
    Ok(table)
}

/// Inserts rows `from..to` into a table that is used for its size.
pub(super) fn rows(table: &Table, from: u64, to: u64) -> Result<()> {
    let mut random = Random::new(from, to);
    let mut value = vec![0; VALUE];
    for id in from..to {
        // Random enough that a page cannot be predicted, and cheaper to generate than to store.
        value[..8].copy_from_slice(&random.bits().to_le_bytes());
        table.insert(&id.to_be_bytes(), &value)?;
    }
    Ok(())
}

/// Creates a table of about `bytes` bytes; returns its number of rows as well.
pub(super) fn big(db: &Database, name: &str, bytes: u64) -> Result<(Table, u64)> {
    let (table, count) = (table(db, name)?, bytes / ROW);
    rows(&table, 0, count)?;
    Ok((table, count))
}

/// Creates a small table and writes and reads its rows: it has dirty pages and, if there is a hash index, entries
/// there.
pub(super) fn used(db: &Database, name: &str, count: u64) -> Result<()> {
    let table = small(db, name, count)?;
    for _ in 0..2 {
        for id in 0..count {
            std::hint::black_box(table.get(&id.to_be_bytes())?);
        }
    }
    Ok(())
}

/// Runs threads that do the same with different numbers; returns their results, or the first failure.
pub(super) fn threads<T: Send>(count: usize, work: impl Fn(usize) -> Result<T> + Sync) -> Result<Vec<T>> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|n| {
                let work = &work;
                scope.spawn(move || work(n))
            })
            .collect();
        let join = |t: thread::ScopedJoinHandle<'_, Result<T>>| {
            t.join().map_err(|_| Failure::message("a thread of the benchmark panicked")).flatten()
        };
        // Every thread is waited for, also after a failure.
        threads.into_iter().map(join).collect::<Vec<_>>().into_iter().collect()
    })
}

/// Returns the word for on or off.
pub(super) fn with(on: bool) -> &'static str {
    if on { "with" } else { "without" }
}

/// Waits until purge has processed all undo.
pub(super) fn await_purge(db: &Database) -> Result<()> {
    let start = Instant::now();
    while db.metrics().history_bytes > 0 {
        if start.elapsed() > PURGED_WITHIN {
            return Err(Failure::message("purge does not catch up"));
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Closes a database.
pub(super) fn close(db: Database) -> Result<()> {
    Ok(db.close()?)
}
