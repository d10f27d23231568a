//! `bench foreground`: what the others notice of a drop.
//!
//! **Purpose.** Clients call at times that were fixed before (an open loop at 60 % of what the engine can do), so that
//! a hold shows in every call that it delays. The 100 ms after each drop are compared with equal windows in which
//! nothing was dropped.
//!
//! **Invariants.** A latency counts from the time at which the call was to begin. Runs with and without drops take
//! turns. "Not to be told apart" is a rank test over windows at a chance of 1 %, of their p99 and of their longest gap.
//! With `--plant-hold-us` every client is held up at each drop, and the claims are to fail.
//!
//! **May touch.** `engine`, `measure`.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use super::{
    fixture::{self, MB},
    harness::{Bench, Bound},
};
use crate::{
    args::Commit,
    engine::{self, Database, Setup, Table},
    failure::{Failure, Result},
    measure::{Latency, Random, Timeline, chance_of_larger, median},
};

/// The length of a window.
const WINDOW: Duration = Duration::from_millis(100);
/// From one window to the next.
const PERIOD: Duration = Duration::from_millis(250);
/// The share of the capacity that is used.
const LOAD: f64 = 0.6;
/// Chances below this are a difference.
const CHANCE: f64 = 0.01;

/// Measures.
pub fn run(bench: &mut Bench) -> Result<()> {
    let rows = bench.size(1_000_000, 20_000);
    let db = Setup::with_pool(2048 * MB)
        .commit(Commit::Lazy)
        .log(2048 * MB)
        .open(&bench.database("foreground"))?;
    bench.say("loading");
    let table = fixture::small(&db, "rows", rows)?;
    engine::set_commit(&db, Commit::Write);
    let threads = bench.machine().cores.max(2);
    let field = Field {
        db: &db,
        table: &table,
        rows,
        threads,
        hold: Duration::from_micros(bench.options.plant_hold_us),
    };
    bench.say("measuring what the engine can do");
    let capacity = field.capacity(bench.seconds(5.0, 0.5))?;
    let interval = Duration::from_secs_f64(threads as f64 / (capacity * LOAD));
    bench.fact("capacity, calls per second", capacity);
    bench.fact("threads", threads);

    let (turns, windows) = bench.size((10, 20), (4, 4));
    let (mut without, mut with) = (Windows::default(), Windows::default());
    let waits = db.metrics().drop_waits;
    for turn in 0..turns {
        bench.say(&format!("turn {} of {turns}", turn + 1));
        for n in 0..windows {
            fixture::used(&db, &format!("small_{n}"), 1_000)?;
        }
        without.extend(field.turn(interval, windows, false, turn)?);
        with.extend(field.turn(interval, windows, true, turn + 1_000)?);
    }
    let waits = db.metrics().drop_waits - waits;
    for (name, of) in [("without drops", &without), ("with drops", &with)] {
        bench.fact(format!("{name}: p99 of a window, median µs"), median(&of.p99) / 1e3);
        bench.fact(format!("{name}: longest gap of a window, median µs"), median(&of.gap) / 1e3);
        bench.fact(
            format!("{name}: longest gap of all windows, µs"),
            of.gap.iter().copied().fold(0.0, f64::max) / 1e3,
        );
    }
    bench.fact("windows of each kind", with.p99.len());
    bench.fact("planted hold, µs", bench.options.plant_hold_us);
    bench.claim("chance-of-equal-p99", chance_of_larger(&without.p99, &with.p99), Bound::AtLeast(CHANCE));
    bench.claim("chance-of-equal-gap", chance_of_larger(&without.gap, &with.gap), Bound::AtLeast(CHANCE));
    bench.claim("waits-on-dropping-threads", waits as f64, Bound::AtMost(0.0));
    fixture::close(db)
}

/// What windows have shown, one number each, in nanoseconds.
#[derive(Debug, Default)]
struct Windows {
    p99: Vec<f64>,
    gap: Vec<f64>,
}

impl Windows {
    fn extend(&mut self, other: Self) {
        self.p99.extend(other.p99);
        self.gap.extend(other.gap);
    }
}

/// Where it is measured.
struct Field<'a> {
    db: &'a Database,
    table: &'a Table,
    rows: u64,
    threads: usize,
    hold: Duration,
}

impl Field<'_> {
    /// One call: three reads to one update.
    fn call(&self, random: &mut Random) -> Result<()> {
        let key = random.below(self.rows).to_be_bytes();
        if random.below(4) == 0 {
            self.table.update(&key, &[random.bits() as u8; 100])?;
        } else {
            std::hint::black_box(self.table.get(&key)?);
        }
        Ok(())
    }

    /// Calls per second without a pause between them.
    fn capacity(&self, time: Duration) -> Result<f64> {
        let rates = fixture::threads(self.threads, |n| {
            let mut random = Random::new(1, n as u64);
            super::harness::rate(time, || self.call(&mut random))
        })?;
        Ok(rates.iter().sum())
    }

    /// A stretch of time with windows, in which tables are dropped or not.
    fn turn(&self, interval: Duration, windows: u32, drops: bool, seed: u32) -> Result<Windows> {
        let length = PERIOD * (windows + 1);
        let (start, stop, held) = (Instant::now(), AtomicBool::new(false), AtomicU64::new(0));
        let now = || start.elapsed().as_nanos() as u64;
        let window_at = |n: u32| (PERIOD * (n + 1)).as_nanos() as u64;
        let (records, dropped) = thread::scope(|scope| {
            let dropper = scope.spawn(|| -> Result<()> {
                for n in 0..windows {
                    thread::sleep(Duration::from_nanos(window_at(n).saturating_sub(now())));
                    if drops && !stop.load(Relaxed) {
                        held.store(now() + self.hold.as_nanos() as u64, Relaxed);
                        self.db.drop_table(&format!("small_{n}"))?;
                    }
                }
                Ok(())
            });
            let records = fixture::threads(self.threads, |t| {
                let client = Client { field: self, interval, length, windows, start, held: &held };
                let record = client.run(Random::new(u64::from(seed), t as u64));
                if record.is_err() {
                    stop.store(true, Relaxed);
                }
                record
            });
            (records, dropper.join())
        });
        dropped.map_err(|_| Failure::said("the dropping thread panicked"))??;
        let mut together = Windows::default();
        let records = records?;
        let mut timeline = Timeline::new(length);
        for record in &records {
            timeline.add(&record.timeline);
        }
        for n in 0..windows {
            let mut times = Latency::default();
            for record in &records {
                times.add(&record.windows[n as usize]);
            }
            together.p99.push(times.percentile(99.0) as f64);
            let from = window_at(n);
            together
                .gap
                .push(timeline.longest_gap_within(from, from + WINDOW.as_nanos() as u64).length_ns as f64);
        }
        Ok(together)
    }
}

/// A client with a timetable.
struct Client<'a> {
    field: &'a Field<'a>,
    interval: Duration,
    length: Duration,
    windows: u32,
    start: Instant,
    held: &'a AtomicU64,
}

/// What a client has recorded.
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
        let mut intended = 0.0;
        loop {
            // Independent clients come at random times: the pauses between them are exponential.
            intended -= self.interval.as_nanos() as f64 * (1.0 - random.unit()).ln();
            let due = intended as u64;
            if due >= self.length.as_nanos() as u64 {
                return Ok(record);
            }
            self.wait_until(due);
            self.wait_until(self.held.load(Relaxed));
            self.field.call(&mut random)?;
            let end = self.now();
            record.timeline.finished(end);
            let within = due.checked_sub(period).filter(|since| since % period < window);
            if let Some(times) = within.and_then(|since| record.windows.get_mut((since / period) as usize)) {
                times.record(end - due);
            }
        }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Sleeps while there is time, and gives way for the rest: a sleep ends too late by some 50 µs.
    fn wait_until(&self, due: u64) {
        loop {
            let left = due.saturating_sub(self.now());
            match left {
                0 => return,
                n if n > 200_000 => thread::sleep(Duration::from_nanos(n - 100_000)),
                _ => thread::yield_now(),
            }
        }
    }
}
