//! `bench foreground`: the effect of a drop on other clients.
//!
//! **Purpose.** Clients make calls at times fixed in advance (an open-loop load of 60 % of the engine's capacity), so
//! that a stall shows in every call that it delays. The 100 ms after each drop are compared with equal windows without
//! a drop. First the calls are separate reads and updates, then transactions of both.
//!
//! **Invariants.** The test is sensitive, which is a claim, too: in a third kind of windows every client is stalled at
//! the drop (a planted hold), for 1 ms unless `--plant-hold-us` sets another time, and the test must find these windows
//! different from those without drops (test: `foreground_finds_a_planted_hold`).
//!
//! **Method.** A latency counts from the scheduled start of the call. Runs with and without drops alternate. "No
//! difference" means a rank test over windows at a significance level of 1 %: of their p99, of their longest gap (time
//! without a finished call), and of the longest gap at the drop itself. The last is needed because in 100 ms a busy
//! machine often preempts a client for longer than a short stall lasts, but seldom in the first millisecond.
//!
//! **What is counted as a wait.** Waits of other threads for any lock or latch that the dropping thread holds, and for
//! the gate of a table that it truncates or drops an index from, of which there are none here. Not counted are waits
//! for the table or the name that is dropped, and waits for the log: a thread that waits for a dropping thread that
//! writes the log for a group commit would otherwise have to write it itself. The latencies include these waits, too.

use std::{
    hint::black_box,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use windfall::TransactionOptions;
use windfall_measure::{Latency, Pace, Random, Timeline, median, p_value};

use super::{
    fixture::{self, MB},
    harness::{Bench, Bound},
};
use crate::{
    args::Commit,
    engine::{self, Database, Setup, Table},
    failure::{Failure, Result},
};

/// The length of a window.
const WINDOW: Duration = Duration::from_millis(100);
/// The interval at the drop.
const NEAR: Duration = Duration::from_millis(1);
/// The shortest gap in that interval that counts as a stall: half of the planted hold of 1 ms. A shorter gap is no more
/// than the processor time of the drop itself.
const SHORTEST_STALL: Duration = Duration::from_micros(500);
/// The period of the windows.
const PERIOD: Duration = Duration::from_millis(250);
/// The share of the capacity that is used.
const LOAD: f64 = 0.6;
/// Probabilities below this are a significant difference.
pub(super) const SIGNIFICANCE_LEVEL: f64 = 0.01;

/// Runs the benchmark.
pub(super) fn run(bench: &mut Bench) {
    bench.part("calls", |bench| measure(bench, Load::Calls));
    bench.part("transactions", |bench| measure(bench, Load::Transactions));
}

/// The load of the clients.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    /// Three reads to one update.
    Calls,
    /// Three reads to one update, as one transaction.
    Transactions,
}

impl Load {
    /// Returns the name of a measurement under this load.
    fn of(self, name: &str) -> String {
        match self {
            Self::Calls => name.to_owned(),
            Self::Transactions => format!("transactions-{name}"),
        }
    }

    fn in_words(self, name: &str) -> String {
        match self {
            Self::Calls => name.to_owned(),
            Self::Transactions => format!("transactions: {name}"),
        }
    }
}

/// Measures the effects under this load.
fn measure(bench: &mut Bench, load: Load) -> Result<()> {
    let rows = bench.size(1_000_000, 20_000);
    let db = Setup::with_pool(2048 * MB)
        .commit(Commit::Lazy)
        .log(2048 * MB)
        .open(&bench.database(&load.of("foreground")))?;
    bench.say("loading");
    let table = fixture::small(&db, "rows", rows)?;
    engine::set_commit(&db, Commit::Write);
    let threads = bench.machine().cores.max(2);
    let setting = Setting {
        db: &db,
        table: &table,
        load,
        rows,
        threads,
        planted_hold: Duration::from_micros(bench.options.plant_hold_us),
    };
    let kinds = [Kind::Without, Kind::Drops, Kind::Stalled];
    let interval = setting.interval(bench)?;
    bench.fact(load.in_words("threads"), threads);

    let (turns, windows) = bench.size((10, 20), (3, 8));
    let mut seen = kinds.map(|_| Windows::default());
    let waits_before = engine::waits_on_drops(&db);
    for turn in 0..turns {
        bench.say(&format!("turn {} of {turns}", turn + 1));
        for kind in &kinds[1..] {
            for n in 0..windows {
                fixture::used(&db, &kind.victim(n), 1_000)?;
            }
        }
        for (n, (kind, seen)) in kinds.into_iter().zip(&mut seen).enumerate() {
            let drops = |window, stall: &dyn Fn()| {
                match kind {
                    Kind::Without => return Ok(()),
                    Kind::Drops => {}
                    Kind::Stalled => stall(),
                }
                db.drop_table(&kind.victim(window))?;
                Ok(())
            };
            seen.extend(setting.turn(interval, windows, turn + 1_000 * n as u32, drops)?);
        }
    }
    let waits = engine::waits_on_drops(&db).zip(waits_before).map(|(after, before)| after - before);
    let [without, with, stalled] = &seen;
    for (name, of) in [("without drops", without), ("with drops", with), ("with a planted hold", stalled)] {
        let name = load.in_words(name);
        of.report(bench, &name);
        let stalls = of.gap_at_drop.iter().filter(|gap| **gap > 0.0).count();
        bench.fact(
            format!("{name}: windows with a gap of 0.5 ms at the drop, share"),
            stalls as f64 / of.gap_at_drop.len() as f64,
        );
    }
    bench.fact(load.in_words("windows of each kind"), with.p99.len());
    bench.fact(load.in_words("planted hold, µs"), bench.options.plant_hold_us);
    let p_values = |of: &Windows| {
        [(&without.p99, &of.p99), (&without.gap, &of.gap), (&without.gap_at_drop, &of.gap_at_drop)]
            .map(|(without, of)| p_value(without, of))
    };
    let [p99, gap, gap_at_drop] = p_values(with);
    bench.claim(load.of("chance-of-equal-p99"), p99, Bound::AtLeast(SIGNIFICANCE_LEVEL));
    bench.claim(load.of("chance-of-equal-gap"), gap, Bound::AtLeast(SIGNIFICANCE_LEVEL));
    bench.claim(load.of("chance-of-equal-gap-at-the-drop"), gap_at_drop, Bound::AtLeast(SIGNIFICANCE_LEVEL));
    let [p99, gap, gap_at_drop] = p_values(stalled);
    bench.fact(load.in_words("with a planted hold: chance of equal p99"), p99);
    bench.fact(load.in_words("with a planted hold: chance of equal gap"), gap);
    bench.fact(load.in_words("with a planted hold: chance of equal gap at the drop"), gap_at_drop);
    bench.claim(
        load.of("planted-hold-is-flagged"),
        p99.min(gap).min(gap_at_drop),
        Bound::AtMost(SIGNIFICANCE_LEVEL),
    );
    bench.claim_no_drop_waits(&load.of("waits-on-dropping-threads"), waits);
    fixture::close(db)
}

/// The kind of a window.
#[derive(Clone, Copy)]
enum Kind {
    /// Nothing but the calls.
    Without,
    /// A table is dropped at its beginning.
    Drops,
    /// A table is dropped at the beginning of the window, and every client is stalled.
    Stalled,
}

impl Kind {
    /// Returns the name of the table that is dropped in a window.
    fn victim(self, window: u32) -> String {
        format!("{}_{window}", if matches!(self, Self::Stalled) { "stalled" } else { "small" })
    }
}

/// Results of windows, one number each, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Windows {
    pub p99: Vec<f64>,
    pub gap: Vec<f64>,
    /// The longest gap near the drop; 0 if it was too short for a stall.
    gap_at_drop: Vec<f64>,
}

impl Windows {
    pub(super) fn extend(&mut self, other: Self) {
        self.p99.extend(other.p99);
        self.gap.extend(other.gap);
        self.gap_at_drop.extend(other.gap_at_drop);
    }

    pub(super) fn report(&self, bench: &mut Bench, name: &str) {
        bench.fact(format!("{name}: p99 of a window, median µs"), median(&self.p99) / 1e3);
        bench.fact(format!("{name}: longest gap of a window, median µs"), median(&self.gap) / 1e3);
        let most = self.gap.iter().copied().fold(0.0, f64::max);
        bench.fact(format!("{name}: longest gap of all windows, µs"), most / 1e3);
    }
}

/// The setting of a measurement.
pub(super) struct Setting<'a> {
    pub db: &'a Database,
    pub table: &'a Table,
    pub load: Load,
    pub rows: u64,
    pub threads: usize,
    pub planted_hold: Duration,
}

impl Setting<'_> {
    /// Executes one call or transaction.
    fn call(&self, random: &mut Random) -> Result<()> {
        let value = [random.bits() as u8; 100];
        let mut key = || random.below(self.rows).to_be_bytes();
        match self.load {
            Load::Calls => {
                let key = key();
                if random.below(4) == 0 {
                    self.table.update(&key, &value)?;
                } else {
                    black_box(self.table.get(&key)?);
                }
            }
            Load::Transactions => {
                let trx = self.db.begin(TransactionOptions::default());
                let table = trx.table(self.table);
                for _ in 0..3 {
                    black_box(table.get(&key())?);
                }
                table.update(&key(), &value)?;
                trx.commit()?;
            }
        }
        Ok(())
    }

    /// Returns the mean interval between two calls of a client.
    pub(super) fn interval(&self, bench: &mut Bench) -> Result<Duration> {
        bench.say("measuring what the engine can do");
        let capacity = self.capacity(bench.seconds(5.0, 0.5))?;
        bench.fact(self.load.in_words("capacity, per second"), capacity);
        Ok(Duration::from_secs_f64(self.threads as f64 / (capacity * LOAD)))
    }

    /// Returns the calls per second without a pause between them.
    fn capacity(&self, time: Duration) -> Result<f64> {
        let rates = fixture::threads(self.threads, |n| {
            let mut random = Random::new(1, n as u64);
            super::harness::rate(time, || self.call(&mut random))
        })?;
        Ok(rates.iter().sum())
    }

    /// Runs the clients for some windows. `at` is called at the start of each window, and may stall the clients.
    pub(super) fn turn(
        &self,
        interval: Duration,
        windows: u32,
        seed: u32,
        mut at: impl FnMut(u32, &dyn Fn()) -> Result<()> + Send,
    ) -> Result<Windows> {
        let length = PERIOD * (windows + 1);
        let (start, stop, stalled_until) = (Instant::now(), AtomicBool::new(false), AtomicU64::new(0));
        let now = || start.elapsed().as_nanos() as u64;
        let window_at = |n: u32| (PERIOD * (n + 1)).as_nanos() as u64;
        let (records, dropped) = thread::scope(|scope| {
            let dropper = scope.spawn(|| -> Result<Vec<u64>> {
                let mut begun = Vec::new();
                for n in 0..windows {
                    thread::sleep(Duration::from_nanos(window_at(n).saturating_sub(now())));
                    begun.push(now());
                    if !stop.load(Relaxed) {
                        at(n, &|| stalled_until.store(now() + self.planted_hold.as_nanos() as u64, Relaxed))?;
                    }
                }
                Ok(begun)
            });
            let records = fixture::threads(self.threads, |t| {
                let client =
                    Client { setting: self, interval, length, windows, start, stalled_until: &stalled_until };
                let record = client.run(Random::new(u64::from(seed), t as u64));
                if record.is_err() {
                    stop.store(true, Relaxed);
                }
                record
            });
            (records, dropper.join())
        });
        let begun = dropped.map_err(|_| Failure::message("the dropping thread panicked"))??;
        let mut together = Windows::default();
        let records = records?;
        let mut timeline = Timeline::new(length);
        for record in &records {
            timeline.add(&record.timeline);
        }
        let gap = |from: u64, of: Duration| {
            timeline.longest_gap_within(from, from + of.as_nanos() as u64).length_ns
        };
        for (n, begun) in (0..windows).zip(begun) {
            let mut times = Latency::default();
            for record in &records {
                times.add(&record.windows[n as usize]);
            }
            together.p99.push(times.percentile(99.0) as f64);
            together.gap.push(gap(window_at(n), WINDOW) as f64);
            let near = gap(begun, NEAR);
            together.gap_at_drop.push(if near < SHORTEST_STALL.as_nanos() as u64 {
                0.0
            } else {
                near as f64
            });
        }
        Ok(together)
    }
}

/// A client with a schedule.
struct Client<'a> {
    setting: &'a Setting<'a>,
    interval: Duration,
    length: Duration,
    windows: u32,
    start: Instant,
    stalled_until: &'a AtomicU64,
}

/// The records of a client.
struct Record {
    timeline: Timeline,
    windows: Vec<Latency>,
}

impl Client<'_> {
    fn run(&self, mut random: Random) -> Result<Record> {
        let mut record = Record {
            timeline: Timeline::new(self.length),
            windows: vec![Latency::default(); self.windows as usize],
        };
        let (period, window) = (PERIOD.as_nanos() as u64, WINDOW.as_nanos() as u64);
        let mut pace = Pace::new(self.start, self.interval);
        loop {
            let due = pace.next_due(&mut random);
            if due >= self.length.as_nanos() as u64 {
                return Ok(record);
            }
            pace.wait_until(due);
            pace.wait_until(self.stalled_until.load(Relaxed));
            self.setting.call(&mut random)?;
            let end = pace.now();
            record.timeline.finished(end);
            let within = due.checked_sub(period).filter(|since| since % period < window);
            if let Some(times) = within.and_then(|since| record.windows.get_mut((since / period) as usize)) {
                times.record(end - due);
            }
        }
    }
}
