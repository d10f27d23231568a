//! `bench drop`, second part: the time of a drop.
//!
//! **Purpose.** The time of a drop in a nearly empty pool and in a full one, of an empty table and of a big one, of
//! many tables in one step and by many threads concurrently.
//!
//! **Method.** Compared values are measured alternately, so that disturbances of the machine affect both.

use std::{hint::black_box, time::Instant};

use windfall_measure::{median, quantile};

use super::{
    fixture::{self, GB, MB},
    harness::{Bench, Bound},
    sharing::{SingleThread, THREADS},
};
use crate::{
    args::Commit,
    engine::{self, Database, Setup},
    failure::Result,
};

/// Runs this part.
pub(super) fn run(bench: &mut Bench) {
    bench.part("full-over-empty-pool", fills);
    bench.part("big-over-empty-table", big_table);
    bench.part("syncs-of-a-group-drop", group);
    bench.part("syncs-per-drop-8-threads", together);
}

/// Drops a table and returns the time in nanoseconds.
fn timed(db: &Database, name: &str) -> Result<f64> {
    let start = Instant::now();
    db.drop_table(name)?;
    Ok(start.elapsed().as_nanos() as f64)
}

/// Drops alternately in a pool with little in it and in one with much.
fn fills(bench: &mut Bench) -> Result<()> {
    let sizes = bench.size([64 * MB, 8 * GB], [2 * MB, 32 * MB]);
    let drops = bench.size(200, 16);
    let mut open = Vec::new();
    for size in sizes {
        bench.say(&format!("filling a pool with {} MB", size / MB));
        let setup = Setup::with_pool(size + size / 4 + 64 * MB).commit(Commit::Write).log(2 * GB);
        let db = setup.open(&bench.database(&format!("fill-{size}")))?;
        fixture::big(&db, "ballast", size)?;
        open.push(db);
    }
    for threads in [1, 8] {
        let by = if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
        bench.say(&format!("{drops} drops in turns, {by}"));
        let each = drops / threads;
        let mut times = [Vec::new(), Vec::new()];
        for db in &open {
            for n in 0..each * threads {
                fixture::used(db, &format!("small_{n}"), 1_000)?;
            }
        }
        for part in fixture::threads(threads, |t| {
            let mut times = [Vec::new(), Vec::new()];
            for n in t * each..(t + 1) * each {
                for (db, times) in open.iter().zip(&mut times) {
                    times.push(timed(db, &format!("small_{n}"))?);
                }
            }
            Ok(times)
        })? {
            for (all, part) in times.iter_mut().zip(part) {
                all.extend(part);
            }
        }
        for (size, times) in sizes.iter().zip(&times) {
            let name = format!("drop with {} MB in the pool, {by}", size / MB);
            bench.fact(format!("{name}, median µs"), median(times) / 1e3);
            bench.fact(format!("{name}, p99 µs"), quantile(times, 0.99) / 1e3);
        }
        let ratio = median(&times[1]) / median(&times[0]);
        bench.claim(format!("full-over-empty-pool-{threads}-threads"), ratio, Bound::AtMost(1.2));
    }
    for db in open {
        fixture::close(db)?;
    }
    Ok(())
}

/// Drops a big table that is completely in the pool, alternating with an empty one.
fn big_table(bench: &mut Bench) -> Result<()> {
    let size = bench.size(4 * GB, 8 * MB);
    let times = bench.size(9, 3);
    let setup = Setup::with_pool(size + size / 4 + 64 * MB).commit(Commit::Write).log(2 * GB);
    let db = setup.open(&bench.database("big-table"))?;
    let (mut big, mut empty) = (Vec::new(), Vec::new());
    for n in 1..=times {
        bench.say(&format!("a table of {} MB, {n} of {times}", size / MB));
        // Both have the same age, so that neither is more in the processor's caches.
        fixture::table(&db, "empty")?;
        fixture::big(&db, "big", size)?;
        let mut turns = [("big", &mut big), ("empty", &mut empty)];
        turns.rotate_left(n % 2);
        for (name, into) in turns {
            // Each is preceded by the same work; the last of it is a read of its table.
            for _ in 0..10 {
                fixture::used(&db, "before", 100)?;
                db.drop_table("before")?;
            }
            black_box(db.table(name)?.get(&0_u64.to_be_bytes())?);
            into.push(timed(&db, name)?);
        }
    }
    bench.fact(format!("drop of a table of {} MB, median µs", size / MB), median(&big) / 1e3);
    bench.fact("drop of an empty table, median µs", median(&empty) / 1e3);
    bench.claim("big-over-empty-table", median(&big) / median(&empty), Bound::AtMost(1.2));
    fixture::close(db)
}

/// Drops many tables in one atomic step.
fn group(bench: &mut Bench) -> Result<()> {
    let count = bench.size(1_000, 50);
    bench.say(&format!("{count} tables in one step"));
    let db = Setup::with_pool(256 * MB).commit(Commit::Lazy).open(&bench.database("group"))?;
    let names: Vec<String> = (0..count).map(|n| format!("t_{n}")).collect();
    for name in &names {
        fixture::used(&db, name, 10)?;
    }
    engine::set_commit(&db, Commit::Sync);
    // Otherwise the sync of the drop also covers what was logged before, perhaps in another segment.
    db.flush_log()?;
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let before = db.metrics().log_syncs;
    let start = Instant::now();
    db.drop_tables(&names)?;
    bench.fact(format!("drop of {count} tables in one step, ms"), start.elapsed().as_secs_f64() * 1e3);
    let syncs = db.metrics().log_syncs - before;
    bench.claim("syncs-of-a-group-drop", syncs as f64, Bound::AtMost(1.0));
    fixture::close(db)
}

/// Drops durably with eight threads, which share their syncs.
fn together(bench: &mut Bench) -> Result<()> {
    let (each, count) = bench.size((200, 100), (10, 5));
    bench.say("eight threads drop durably");
    let db = Setup::with_pool(256 * MB).commit(Commit::Lazy).open(&bench.database("together"))?;
    for n in 0..THREADS * each {
        fixture::used(&db, &format!("t_{n}"), 10)?;
    }
    for n in 0..2 * count {
        fixture::used(&db, &format!("alone_{n}"), 10)?;
    }
    let drop_table = |name: &str| -> Result<()> {
        db.drop_table(name)?;
        Ok(())
    };
    let single_thread = SingleThread::measure(&db, count, |n| drop_table(&format!("alone_{n}")))?;
    let before = db.metrics().log_syncs;
    fixture::threads(THREADS, |t| {
        (t * each..(t + 1) * each).try_for_each(|n| drop_table(&format!("t_{n}")))
    })?;
    let syncs = db.metrics().log_syncs - before;
    single_thread.compare(bench, "syncs-per-drop-8-threads", "drop", syncs, (THREADS * each) as u64);
    fixture::close(db)
}
