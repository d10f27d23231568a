//! Tables, threads and children for benchmarks.
//!
//! **Purpose.** Tables of a size, small used tables, threads that all do the same, children that do not outlive us.
//!
//! **Invariants.** A table that is made here is filled in the order of its keys, by one thread.
//!
//! **May touch.** `engine`, `windfall-measure`, child processes.

use std::thread;

use windfall_measure::Random;

use crate::{
    engine::{self, Database, Table},
    failure::{Failure, Result},
};

/// So many bytes.
pub const MB: u64 = 1 << 20;
/// So many bytes.
pub const GB: u64 = 1 << 30;
/// The value of a row of the tables that are there for their calls.
pub const SMALL: [u8; 100] = [7; 100];
/// The bytes of a value of the tables that are there for their size.
pub const VALUE: usize = 1_000;
/// What a row of them takes, about.
pub const ROW: u64 = 1_040;

/// A table without secondary trees.
pub fn table(db: &Database, name: &str) -> Result<Table> {
    Ok(db.create_table(name, engine::with_metadata(Vec::new()))?)
}

/// A table of so many small rows.
pub fn small(db: &Database, name: &str, count: u64) -> Result<Table> {
    let table = table(db, name)?;
    for id in 0..count {
        table.insert(&id.to_be_bytes(), &SMALL)?;
    }
    Ok(table)
}

/// Rows `from..to` of a table that is there for its size.
pub fn rows(table: &Table, from: u64, to: u64) -> Result<()> {
    let mut random = Random::new(from, to);
    let mut value = vec![0; VALUE];
    for id in from..to {
        // Enough chance that a page cannot be guessed, not so much that making it costs more than storing it.
        value[..8].copy_from_slice(&random.bits().to_le_bytes());
        table.insert(&id.to_be_bytes(), &value)?;
    }
    Ok(())
}

/// A table of about so many bytes; returns how many rows it has.
pub fn big(db: &Database, name: &str, bytes: u64) -> Result<(Table, u64)> {
    let (table, count) = (table(db, name)?, bytes / ROW);
    rows(&table, 0, count)?;
    Ok((table, count))
}

/// A small table whose rows were written and read: it has dirty pages and, where there is a hash index, entries there.
pub fn used(db: &Database, name: &str, count: u64) -> Result<()> {
    let table = small(db, name, count)?;
    for _ in 0..2 {
        for id in 0..count {
            std::hint::black_box(table.get(&id.to_be_bytes())?);
        }
    }
    Ok(())
}

/// Threads that do the same with different numbers; their results, or the first failure.
pub fn threads<T: Send>(count: usize, work: impl Fn(usize) -> Result<T> + Sync) -> Result<Vec<T>> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|n| {
                let work = &work;
                scope.spawn(move || work(n))
            })
            .collect();
        let join = |t: thread::ScopedJoinHandle<'_, Result<T>>| {
            t.join().map_err(|_| Failure::said("a thread of the benchmark panicked")).flatten()
        };
        // Every thread is waited for, also after a failure.
        threads.into_iter().map(join).collect::<Vec<_>>().into_iter().collect()
    })
}

/// A word for what is on or off.
pub fn with(on: bool) -> &'static str {
    if on { "with" } else { "without" }
}

/// Closes a database.
pub fn close(db: Database) -> Result<()> {
    Ok(db.close()?)
}
