//! One measured run: clients, drops, samples of the pool.
//!
//! **Purpose.** The same run with and without drops: without drops, the windows open at the same times, but nothing is
//! dropped in them.
//!
//! **Method.** A window opens just before the call of its drop. The pool is sampled ten times a second, by a thread
//! that is not a client.

use std::{
    sync::atomic::Ordering::Relaxed,
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;
use windfall_measure::{Latency, Random};

use super::clients::{Client, Record, Shared};
use crate::{
    engine::{self, Database, DropWork, Table},
    failure::{Failure, Result},
    oltp::Mix,
};

/// The interval between samples of the pool.
pub(crate) const SAMPLE: Duration = Duration::from_millis(100);

/// A table to drop.
#[derive(Clone, Debug)]
pub(crate) struct Victim {
    /// The name of the table.
    pub name: String,
    /// Whether it is the big one.
    pub big: bool,
}

/// The parameters of a run.
pub(crate) struct Plan<'a> {
    /// The database.
    pub db: &'a Database,
    /// The table of the clients.
    pub table: &'a Table,
    /// The highest id in the table.
    pub rows: u32,
    /// The number of clients.
    pub threads: u32,
    /// The length of the run.
    pub length: Duration,
    /// The random seed.
    pub seed: u64,
    /// Times at which windows open.
    pub marks: &'a [Duration],
    /// The table that is dropped in each window; nothing is dropped if this is empty.
    pub victims: &'a [Victim],
}

/// A drop.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Dropped {
    /// The table.
    pub table: String,
    /// Whether it was the big one.
    pub big: bool,
    /// The time of the drop, in nanoseconds since the start of the run.
    pub at_ns: u64,
    /// The duration of the call in nanoseconds.
    pub took_ns: u64,
    /// The counted work.
    pub work: DropWork,
    /// Dirty frames of the pool just before.
    pub dirty_before: u64,
}

/// The contents of the pool.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Sample {
    /// The time of the sample, in nanoseconds since the start of the run.
    pub at_ns: u64,
    /// Free frames.
    pub free: u64,
    /// Frames of clean pages.
    pub clean: u64,
    /// Frames of dirty pages.
    pub dirty: u64,
    /// Frames of dropped tables.
    pub dropped: u64,
}

/// The results of a run.
#[derive(Debug)]
pub(crate) struct Phase {
    /// The length of the run.
    pub length: Duration,
    /// The merged records of the clients.
    pub record: Record,
    /// Times at which the windows opened, in nanoseconds.
    pub windows: Vec<u64>,
    /// The drops.
    pub drops: Vec<Dropped>,
    /// The pool over time.
    pub pool: Vec<Sample>,
    /// Number of waits of other threads for a lock or latch that a dropping thread held, if this build counts them.
    pub waits: Option<u64>,
}

impl Phase {
    /// Returns the latencies of all calls inside drop windows.
    pub(crate) fn inside(&self) -> Latency {
        together(&self.record.inside)
    }

    /// Returns the latencies of all calls outside drop windows.
    pub(crate) fn outside(&self) -> Latency {
        together(&self.record.outside)
    }

    /// Returns the calls per second over the whole run.
    pub(crate) fn rate(&self) -> f64 {
        self.record.timeline.count() as f64 / self.length.as_secs_f64()
    }

    /// Returns the longest time within windows in which no client finished a call, in nanoseconds.
    pub(crate) fn longest_in_windows(&self) -> u64 {
        let window = super::clients::WINDOW.as_nanos() as u64;
        let longest = |&w: &u64| self.record.timeline.longest_gap_within(w, w + window).length_ns;
        self.windows.iter().map(longest).max().unwrap_or(0)
    }

    /// Returns the calls per second inside windows.
    pub(crate) fn rate_inside(&self) -> f64 {
        let window = super::clients::WINDOW.as_nanos() as u64;
        let count: u64 = self.windows.iter().map(|&w| self.record.timeline.count_within(w, w + window)).sum();
        count as f64 / (self.windows.len().max(1) as f64 * super::clients::WINDOW.as_secs_f64())
    }
}

fn together(times: &[Latency]) -> Latency {
    times.iter().fold(Latency::default(), |mut all, part| {
        all.add(part);
        all
    })
}

/// Executes a run. `tick` is called about ten times a second with the time since its start.
pub(crate) fn run(plan: &Plan<'_>, tick: &dyn Fn(Duration)) -> Result<Phase> {
    let waits_before = engine::waits_on_drops(plan.db);
    let shared = Shared::new();
    let shared = &shared;
    let mut pool = Vec::new();
    let (record, dropped) = thread::scope(|scope| {
        let clients: Vec<_> = (0..plan.threads)
            .map(|n| {
                let random = Random::new(plan.seed, 100 + u64::from(n));
                let mix = Mix { db: plan.db, table: plan.table, rows: plan.rows };
                let client = Client::new(mix, random, shared, plan.length);
                scope.spawn(move || {
                    let result = client.run();
                    // A client that fails ends the run: the load of the others would be different.
                    if result.is_err() {
                        shared.stop.store(true, Relaxed);
                    }
                    result
                })
            })
            .collect();
        let dropper = scope.spawn(move || drops(plan, shared));
        while !shared.stop.load(Relaxed) {
            let now = shared.start.elapsed();
            if now >= plan.length {
                shared.stop.store(true, Relaxed);
                break;
            }
            pool.push(sample(plan.db, now));
            tick(now);
            thread::sleep(SAMPLE.min(plan.length.saturating_sub(now)));
        }
        let mut record = Record::new(plan.length);
        let mut failure = None;
        for client in clients {
            match client.join().map_err(|_| Failure::message("a client of the demo panicked")).flatten() {
                Ok(part) => record.add(&part),
                Err(e) => failure = Some(e),
            }
        }
        let dropped = dropper.join().map_err(|_| Failure::message("the dropping thread panicked")).flatten();
        failure.map_or(Ok((record, dropped)), Err)
    })?;
    let (windows, drops) = dropped?;
    let waits = engine::waits_on_drops(plan.db).zip(waits_before).map(|(after, before)| after - before);
    Ok(Phase { length: plan.length, record, windows, drops, pool, waits })
}

fn sample(db: &Database, now: Duration) -> Sample {
    let metrics = db.metrics();
    Sample {
        at_ns: now.as_nanos() as u64,
        free: metrics.pool_free,
        clean: metrics.pool_clean,
        dirty: metrics.pool_dirty,
        dropped: metrics.pool_dropped,
    }
}

/// Opens the windows, and drops the table of each.
fn drops(plan: &Plan<'_>, shared: &Shared) -> Result<(Vec<u64>, Vec<Dropped>)> {
    let (mut windows, mut dropped) = (Vec::new(), Vec::new());
    for (n, &mark) in plan.marks.iter().enumerate() {
        if !wait_until(shared, mark) {
            break;
        }
        let dirty_before = plan.db.metrics().pool_dirty;
        let at_ns = shared.now();
        shared.window.store(at_ns, Relaxed);
        windows.push(at_ns);
        if let Some(victim) = plan.victims.get(n) {
            let start = Instant::now();
            let work = engine::drop_counted(plan.db, &[&victim.name])?;
            let took_ns = start.elapsed().as_nanos() as u64;
            let Victim { name, big } = victim.clone();
            dropped.push(Dropped { table: name, big, at_ns, took_ns, work, dirty_before });
        }
    }
    Ok((windows, dropped))
}

/// Waits until a time of the run; returns `false` if the run ends before.
fn wait_until(shared: &Shared, mark: Duration) -> bool {
    while !shared.stop.load(Relaxed) {
        let left = mark.saturating_sub(shared.start.elapsed());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(Duration::from_millis(20)));
    }
    false
}
