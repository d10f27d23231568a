//! The effect of a long-lived read view on other clients, in `bench transactions`.
//!
//! **Purpose.** Two threads update rows as fast as they can while a transaction that has read something stays open. Its
//! read view keeps undo from purge. The benchmark measures the slowdown of the updates, the memory, and the time until
//! the undo is purged after the view has ended. A long run (`--long`) measures whether the updates become slower as the
//! view grows older.
//!
//! **Method.** The rate with the view is compared with that before it, in one run. The load continues after the view
//! has ended: purge must be faster than the load. The pool holds all entries that the load leaves in the trees while
//! the view exists: if they were on disk, both load and purge would wait for reads. An update of a column without an
//! index changes no index key, an update of `k` does. In a long run the rate in the thirtieth minute of the view is
//! compared with that in its first.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use windfall::TransactionOptions;
use windfall_measure::{Random, resident_bytes, resident_of_mapping, sbtest};

use super::{
    fixture::{self, GB, MB},
    harness::{Bench, Bound},
    transactions::load,
};
use crate::{
    engine::{Database, Table},
    failure::{Failure, Result},
};

/// Number of threads that update.
const THREADS: usize = 2;
/// The interval at which the size of undo is sampled.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);
/// Seconds until the undo must be purged if no key has changed.
const PURGED_WITHIN: f64 = 5.0;

/// The age in minutes at which a long run compares.
const AGED: u32 = 30;
/// The least rate in the last minute of a long run, relative to that in the first: the rest is noise.
const AGED_OVER_YOUNG: f64 = 0.95;

/// Runs this part.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    with_rows(bench, "views", compare)
}

/// Runs the part of a long run.
pub(super) fn run_aged(bench: &mut Bench) -> Result<()> {
    with_rows(bench, "aged-view", compare_aged)
}

/// Measures on a table of sysbench that fits the pool, with what the updates leave in it.
fn with_rows(
    bench: &mut Bench,
    name: &str,
    measure: impl FnOnce(&mut Bench, &Setting<'_>) -> Result<()>,
) -> Result<()> {
    let rows = bench.size(200_000, 2_000);
    let (db, table) = load(bench, name, rows, bench.size(4 * GB, 256 * MB))?;
    measure(bench, &Setting { db: &db, table: &table, rows })?;
    drop(table);
    fixture::close(db)
}

/// Names the updates of the two measurements.
fn names(changes_keys: bool) -> (&'static str, &'static str) {
    if changes_keys { ("keys change", "keys-change") } else { ("no key changes", "no-key-changes") }
}

fn compare_aged(bench: &mut Bench, setting: &Setting<'_>) -> Result<()> {
    for changes_keys in [false, true] {
        let (what, id) = names(changes_keys);
        bench.say(&format!("with a read view that grows old, {what}"));
        let LongRun { young, aged, kept } = setting.measure_aged(bench, changes_keys)?;
        bench.fact(format!("{what}: updates per second in the first minute of a read view"), young);
        bench.fact(format!("{what}: updates per second in its minute {AGED}"), aged);
        bench.fact(format!("{what}: undo that it keeps by then, bytes"), kept);
        let claim = format!("throughput-beside-aged-view-over-young-{id}");
        bench.claim(claim, aged / young, Bound::AtLeast(AGED_OVER_YOUNG));
    }
    Ok(())
}

fn compare(bench: &mut Bench, setting: &Setting<'_>) -> Result<()> {
    for changes_keys in [false, true] {
        let (what, id) = names(changes_keys);
        bench.say(&format!("with an old read view, {what}"));
        let measured = setting.measure_with_view(bench, changes_keys)?;
        bench.fact(format!("{what}: updates per second before the read view"), measured.before);
        bench.fact(format!("{what}: updates per second with it"), measured.beside);
        bench.fact(format!("{what}: undo that it keeps, bytes"), measured.kept);
        bench.fact(
            format!("{what}: memory that the read view needs in addition to the pool, bytes"),
            measured.memory,
        );
        bench.fact(format!("{what}: seconds until its undo was purged"), measured.purged_after);
        bench.claim(
            format!("throughput-beside-old-view-{id}"),
            measured.beside / measured.before,
            Bound::AtLeast(0.8),
        );
        bench.claim(
            format!("memory-beside-old-view-over-pool-{id}"),
            measured.memory / measured.pool,
            Bound::AtMost(0.01),
        );
        if changes_keys {
            bench.claim("purge-over-garbage", measured.purge_over_garbage, Bound::AtLeast(1.5));
            bench.claim("undo-rises-while-purged", measured.rises, Bound::AtMost(0.0));
        } else {
            bench.claim("seconds-until-undo-is-gone", measured.purged_after, Bound::AtMost(PURGED_WITHIN));
        }
    }
    Ok(())
}

struct Setting<'a> {
    db: &'a Database,
    table: &'a Table,
    rows: u32,
}

/// Measurements during a view and after it.
#[derive(Debug, Default)]
struct Measured {
    before: f64,
    beside: f64,
    pool: f64,
    kept: f64,
    memory: f64,
    purged_after: f64,
    purge_over_garbage: f64,
    rises: f64,
}

/// Measurements of a long run: the rates in two minutes of a view, and the bytes of undo at the end.
#[derive(Debug)]
struct LongRun {
    young: f64,
    aged: f64,
    kept: f64,
}

impl Setting<'_> {
    /// Updates random rows, each in its own transaction, until `stop` is set.
    fn update(&self, changes_keys: bool, seed: u64, stop: &AtomicBool, done: &AtomicU64) -> Result<()> {
        let mut random = Random::new(seed, 7);
        while !stop.load(Relaxed) {
            let key = sbtest::key(random.below(u64::from(self.rows)) as u32 + 1);
            if let Some(mut row) = self.table.get(&key)? {
                if changes_keys {
                    sbtest::set_k(&mut row, random.bits() as u32);
                } else {
                    row[sbtest::C].fill(b'0' + (random.bits() % 10) as u8);
                }
                self.table.update(&key, &row)?;
            }
            done.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    fn measure_with_view(&self, bench: &Bench, changes_keys: bool) -> Result<Measured> {
        self.under_load(bench, changes_keys, |stop, done| self.watch(bench, stop, done))
    }

    fn measure_aged(&self, bench: &Bench, changes_keys: bool) -> Result<LongRun> {
        fixture::await_purge(self.db)?;
        self.under_load(bench, changes_keys, |stop, done| {
            let minute = bench.seconds(60.0, 0.2);
            thread::sleep(bench.seconds(5.0, 0.1));
            let before = self.db.metrics().undo_bytes as f64;
            let view = self.db.begin(TransactionOptions::default().read_only());
            view.table(self.table).get(&sbtest::key(1))?;
            let begun = Instant::now();
            let young = Self::rate(done, minute);
            // An updating thread that has failed ends it early.
            while begun.elapsed() < minute * (AGED - 1) && !stop.load(Relaxed) {
                thread::sleep(SAMPLE_INTERVAL.min(minute));
            }
            let aged = Self::rate(done, minute);
            let kept = self.db.metrics().undo_bytes as f64 - before;
            view.commit()?;
            Ok(LongRun { young, aged, kept })
        })
    }

    /// Measures while the threads update.
    fn under_load<T>(
        &self,
        bench: &Bench,
        changes_keys: bool,
        measure: impl FnOnce(&AtomicBool, &AtomicU64) -> Result<T>,
    ) -> Result<T> {
        let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let clients: Vec<_> = (0..THREADS)
                .map(|n| {
                    let (stop, done) = (&stop, &done);
                    let seed = bench.options.seed + n as u64;
                    scope.spawn(move || {
                        self.update(changes_keys, seed, stop, done).inspect_err(|_| stop.store(true, Relaxed))
                    })
                })
                .collect();
            let measured = measure(&stop, &done);
            stop.store(true, Relaxed);
            let joined = clients.into_iter().map(|client| {
                client.join().map_err(|_| Failure::message("an updating thread panicked")).flatten()
            });
            joined.collect::<Vec<_>>().into_iter().collect::<Result<()>>()?;
            measured
        })
    }

    /// Measures the updates per second for some time.
    fn rate(done: &AtomicU64, time: Duration) -> f64 {
        let (start, before) = (Instant::now(), done.load(Relaxed));
        thread::sleep(time);
        (done.load(Relaxed) - before) as f64 / start.elapsed().as_secs_f64()
    }

    fn watch(&self, bench: &Bench, stop: &AtomicBool, done: &AtomicU64) -> Result<Measured> {
        let undo = || self.db.metrics().undo_bytes as f64;
        let pool = self.db.metrics().pool_frames * self.db.metrics().page_size;
        // Without the pool, which fills up over time in any case.
        let resident = || resident_bytes().saturating_sub(resident_of_mapping(pool).unwrap_or(0)) as f64;
        // The pool must reach a steady state, too.
        thread::sleep(bench.seconds(5.0, 0.1));
        let mut measured =
            Measured { before: Self::rate(done, bench.seconds(15.0, 0.2)), ..Measured::default() };
        measured.pool = pool as f64;
        let (usual, memory) = (undo(), resident());

        let view = self.db.begin(TransactionOptions::default().read_only());
        view.table(self.table).get(&sbtest::key(1))?;
        let held = Instant::now();
        measured.beside = Self::rate(done, bench.seconds(60.0, 0.5));
        measured.kept = undo() - usual;
        measured.memory = (resident() - memory).max(0.0);
        // The undo that the load generates per second.
        let garbage = measured.kept / held.elapsed().as_secs_f64();
        view.commit()?;

        let (end, most) = (Instant::now(), bench.seconds(300.0, 2.0));
        let mut last = undo();
        // The undo that the load generates between two samples, and the slices that it has just begun, do not count as
        // a rise.
        let step = garbage * SAMPLE_INTERVAL.as_secs_f64()
            + (THREADS as u64 * self.db.metrics().page_size * 64) as f64;
        while end.elapsed() < most && !stop.load(Relaxed) {
            thread::sleep(SAMPLE_INTERVAL);
            let now = undo();
            measured.rises += f64::from(u8::from(now > last + step));
            last = now;
            if now <= usual + step {
                break;
            }
        }
        measured.purged_after = end.elapsed().as_secs_f64();
        measured.purge_over_garbage = 1.0 + (measured.kept / measured.purged_after) / garbage.max(1.0);
        Ok(measured)
    }
}
