//! `bench create-drop`: many tables that are created and dropped.
//!
//! **Purpose.** A small table that is dropped before a checkpoint costs log writes and nothing else. A hundred thousand
//! tables cost little memory, open fast, and make no call wait for log space.
//!
//! **Method.** The bare loop writes the same number of times and the same number of bytes as the engine did, to a file
//! in the same folder.

use std::{
    fs::{self, File},
    io::Write as _,
    path::Path,
    time::Instant,
};

use windfall_measure::{Latency, resident_bytes};

use super::{
    fixture::{self, MB},
    harness::{Bench, Bound},
};
use crate::{
    args::Commit,
    engine::{Database, Setup},
    failure::Result,
};

/// Runs the benchmark.
pub(super) fn run(bench: &mut Bench) {
    bench.part("files-of-small-tables", no_file);
    bench.part("create-drop-over-bare-loop", rate);
    bench.part("many-empty-tables", many_empty);
    bench.part("many-small-tables", many_small);
}

/// Checks that small tables create no data file.
fn no_file(bench: &mut Bench) -> Result<()> {
    let db = Setup::with_pool(256 * MB).commit(Commit::Write).open(&bench.database("no-file"))?;
    let before = db.metrics().files_created;
    let count = bench.size(1_000, 50);
    for n in 0..count {
        let name = format!("t_{n}");
        fixture::used(&db, &name, 100)?;
        db.drop_table(&name)?;
    }
    let made = db.metrics().files_created - before;
    bench.claim("files-of-small-tables", made as f64, Bound::AtMost(0.0));
    fixture::close(db)
}

/// The rates of pairs of statements that create and drop a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pairs {
    /// Pairs per second.
    pub engine_rate: f64,
    /// The same number of writes of the log, of the same number of bytes, in pairs per second.
    pub bare_rate: f64,
    /// Writes of the log for each pair.
    pub writes: f64,
    /// Bytes of such a write.
    pub bytes: u64,
}

/// Creates and drops a table in a loop, and then repeats only the writes of the log, to a file of this name.
pub(super) fn pairs(db: &Database, count: u32, path: &Path) -> Result<Pairs> {
    let before = db.metrics();
    let start = Instant::now();
    for _ in 0..count {
        fixture::table(db, "t")?;
        db.drop_table("t")?;
    }
    let engine_rate = f64::from(count) / start.elapsed().as_secs_f64();
    let after = db.metrics();
    let writes = (after.log_writes - before.log_writes).max(1);
    let bytes = (after.log_bytes - before.log_bytes).div_ceil(writes);

    let mut file = File::create(path)?;
    let buffer = vec![7; bytes as usize];
    let start = Instant::now();
    for _ in 0..writes {
        file.write_all(&buffer)?;
    }
    let bare_rate = f64::from(count) / start.elapsed().as_secs_f64();
    fs::remove_file(path)?;
    Ok(Pairs { engine_rate, bare_rate, writes: writes as f64 / f64::from(count), bytes })
}

/// Compares creating and dropping with a loop that only repeats the writes of the log.
fn rate(bench: &mut Bench) -> Result<()> {
    bench.say("create and drop in a loop");
    let count = bench.size(20_000, 200);
    let db = Setup::with_pool(256 * MB).commit(Commit::Write).open(&bench.database("loop"))?;
    let Pairs { engine_rate, bare_rate, writes, bytes } = pairs(&db, count, &bench.database("bare.log"))?;
    fixture::close(db)?;
    bench.fact("create and drop, pairs per second", engine_rate);
    bench.fact("the same log writes alone, pairs per second", bare_rate);
    bench.fact("log writes per pair", writes);
    bench.fact("bytes per log write", bytes);
    bench.claim("create-drop-over-bare-loop", engine_rate / bare_rate, Bound::AtLeast(0.3));
    Ok(())
}

/// Measures the memory of many empty tables, and the time to open the database.
fn many_empty(bench: &mut Bench) -> Result<()> {
    let count = bench.size(100_000, 500);
    bench.say(&format!("{count} empty tables"));
    let path = bench.database("empty");
    let setup = Setup::with_pool(512 * MB).commit(Commit::Lazy);
    let db = setup.open(&path)?;
    let before = resident_bytes();
    for n in 0..count {
        fixture::table(&db, &format!("t_{n}"))?;
    }
    let grown = resident_bytes().saturating_sub(before);
    bench.claim("megabytes-of-empty-tables", grown as f64 / 1e6, Bound::AtMost(300.0));
    fixture::close(db)?;
    let start = Instant::now();
    let db = setup.open(&path)?;
    let seconds = start.elapsed().as_secs_f64();
    std::hint::black_box(db.table(&format!("t_{}", count - 1))?.get(b"k")?);
    bench.claim("seconds-to-open", seconds, Bound::AtMost(5.0));
    fixture::close(db)?;
    Ok(fs::remove_dir_all(&path)?)
}

/// Fills tables of ten rows with a relatively small log: checkpoints must create files, and no call waits for that.
fn many_small(bench: &mut Bench) -> Result<()> {
    let count = bench.size(100_000, 500);
    bench.say(&format!("{count} tables of 10 rows with a small log"));
    let setup = Setup::with_pool(2048 * MB).commit(Commit::Write).log(32 * MB);
    let db = setup.open(&bench.database("small"))?;
    let mut times = Latency::default();
    let mut timed = |call: &mut dyn FnMut() -> Result<()>| -> Result<()> {
        let start = Instant::now();
        call()?;
        times.record(start.elapsed().as_nanos() as u64);
        Ok(())
    };
    for n in 0..count {
        let mut table = None;
        timed(&mut || {
            table = Some(fixture::table(&db, &format!("t_{n}"))?);
            Ok(())
        })?;
        let table = table.expect("made just before");
        for id in 0..10_u32 {
            timed(&mut || Ok(table.insert(&id.to_be_bytes(), &fixture::SMALL)?))?;
        }
    }
    bench.fact("calls, p99.9 µs", times.percentile(99.9) as f64 / 1e3);
    bench.fact("files made", db.metrics().files_created);
    bench.claim("longest-call-ms", times.max() as f64 / 1e6, Bound::AtMost(100.0));
    fixture::close(db)
}
