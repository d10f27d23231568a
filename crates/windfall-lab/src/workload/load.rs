//! A run of clients, with statements amid it.
//!
//! **Purpose.** Clients work for a time, one thread makes statements at times that were fixed before, and what the
//! clients noticed becomes a [`Load`].
//!
//! **Invariants.** Each client records into instruments of its own. A window is the 100 ms behind a statement's begin;
//! without statements it is there at the same times. A query is in a window if any part of it is.
//!
//! **May touch.** What `workload` may touch.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use windfall::error::{Result, UsageError};
use windfall_measure::{Latency, Random, STRETCH, Timeline};

use crate::{
    results::{Load, Mark},
    server::{Dropped, Server},
    watch::{self, Role},
};

/// How long after a statement's begin its window ends.
pub const WINDOW: Duration = Duration::from_millis(100);

/// What is run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Client threads.
    pub threads: u32,
    /// How long.
    pub length: Duration,
    /// When statements are made, from the begin of the run.
    pub marks: Vec<Duration>,
    /// Where the random numbers begin.
    pub seed: u64,
}

impl Plan {
    /// Statements every so often, the first one after that time, the last one with its window within the run.
    pub fn every(threads: u32, length: Duration, pause: Duration, seed: u64) -> Self {
        let last = length.saturating_sub(2 * WINDOW);
        let marks = (1..u32::MAX).map(|n| pause * n).take_while(|&at| at <= last).collect();
        Self { threads, length, marks, seed }
    }
}

/// What the threads of a run share.
#[derive(Debug)]
struct Shared {
    start: Instant,
    /// When the last window opened, in nanoseconds of the run.
    window: AtomicU64,
    stop: AtomicBool,
}

impl Shared {
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

/// Records the queries of one client.
#[derive(Debug)]
pub struct Recorder<'a> {
    shared: &'a Shared,
    timeline: Timeline,
    all: Latency,
    near: Latency,
}

impl<'a> Recorder<'a> {
    fn new(shared: &'a Shared, length: Duration) -> Self {
        Self { shared, timeline: Timeline::new(length), all: Latency::default(), near: Latency::default() }
    }

    /// Makes a query.
    ///
    /// # Errors
    /// Those of the query.
    #[inline]
    pub fn query<T>(&mut self, query: impl FnOnce() -> Result<T>) -> Result<T> {
        let start = self.shared.now();
        let done = query()?;
        let end = self.shared.now();
        let window = self.shared.window.load(Relaxed);
        self.all.record(end - start);
        if end >= window && start < window.saturating_add(WINDOW.as_nanos() as u64) {
            self.near.record(end - start);
        }
        self.timeline.finished(end);
        Ok(done)
    }
}

/// One client's work: called again and again.
pub type Client<'a> = dyn Fn(&mut Random, &mut Recorder<'_>) -> Result<()> + Sync + 'a;

/// One statement by its number; nothing in a run without statements.
pub type Statement<'a> = dyn FnMut(usize) -> Result<Option<Dropped>> + Send + 'a;

/// Runs it.
///
/// # Errors
/// The first query or statement that fails.
pub fn run<S: Server>(
    server: &S,
    plan: &Plan,
    client: &Client<'_>,
    statement: &mut Statement<'_>,
) -> Result<Load> {
    server.reset_locks();
    let shared =
        &Shared { start: Instant::now(), window: AtomicU64::new(u64::MAX), stop: AtomicBool::new(false) };
    let (recorded, statements) = thread::scope(|scope| {
        let clients: Vec<_> = (0..plan.threads)
            .map(|n| {
                scope.spawn(move || {
                    let mut random = Random::new(plan.seed, 1_000 + u64::from(n));
                    let mut recorder = Recorder::new(shared, plan.length);
                    let mut result = Ok(());
                    while result.is_ok() && !shared.stop.load(Relaxed) {
                        result = client(&mut random, &mut recorder);
                    }
                    if result.is_err() {
                        shared.stop.store(true, Relaxed);
                    }
                    result.map(|()| recorder)
                })
            })
            .collect();
        let statements = scope.spawn(move || {
            watch::play(Role::Dropper);
            let made = make_statements(plan, shared, statement);
            sleep_until(shared, plan.length);
            shared.stop.store(true, Relaxed);
            made
        });
        let recorded: Vec<_> = clients.into_iter().map(thread::ScopedJoinHandle::join).collect();
        (recorded, statements.join())
    });
    let panicked = |_| UsageError::Other("a thread of the experiment has panicked".into()).into();
    let mut sum = Recorder::new(shared, plan.length);
    for recorder in recorded {
        let recorder = recorder.map_err(panicked).flatten()?;
        sum.timeline.add(&recorder.timeline);
        sum.all.add(&recorder.all);
        sum.near.add(&recorder.near);
    }
    let (windows, marks) = statements.map_err(panicked).flatten()?;
    Ok(told(server, plan, &sum, &windows, marks))
}

fn told<S: Server>(server: &S, plan: &Plan, sum: &Recorder<'_>, windows: &[u64], marks: Vec<Mark>) -> Load {
    let timeline = &sum.timeline;
    let window = WINDOW.as_nanos() as u64;
    let near: u64 = windows.iter().map(|&at| timeline.count_within(at, at + window)).sum();
    let near_seconds = windows.len() as f64 * WINDOW.as_secs_f64();
    Load {
        length_ns: plan.length.as_nanos() as u64,
        stretch_ns: STRETCH.as_nanos() as u64,
        rates: timeline.rates(STRETCH),
        gaps_ns: timeline.gap_per(STRETCH),
        longest_gap: timeline.longest_gap(),
        queries: timeline.count(),
        latency: (&sum.all).into(),
        latency_near: (&sum.near).into(),
        rate_near: if windows.is_empty() { 0.0 } else { near as f64 / near_seconds },
        gaps_near_ns: windows
            .iter()
            .map(|&at| timeline.longest_gap_within(at, at + window).length_ns)
            .collect(),
        marks,
        locks: server.locks(),
    }
}

/// Sleeps until a time of the run, or until somebody has stopped it. Says whether the run goes on.
fn sleep_until(shared: &Shared, at: Duration) -> bool {
    loop {
        let left = at.saturating_sub(shared.start.elapsed());
        if left.is_zero() || shared.stop.load(Relaxed) {
            return !shared.stop.load(Relaxed);
        }
        thread::sleep(left.min(Duration::from_millis(50)));
    }
}

/// Opens the windows, and makes a statement in each.
fn make_statements(
    plan: &Plan,
    shared: &Shared,
    statement: &mut Statement<'_>,
) -> Result<(Vec<u64>, Vec<Mark>)> {
    let (mut windows, mut marks) = (Vec::new(), Vec::new());
    for (n, &at) in plan.marks.iter().enumerate() {
        if !sleep_until(shared, at) {
            break;
        }
        let at_ns = shared.now();
        shared.window.store(at_ns, Relaxed);
        windows.push(at_ns);
        let made = statement(n).inspect_err(|_| shared.stop.store(true, Relaxed))?;
        if let Some(Dropped { steps, took }) = made {
            marks.push(Mark { at_ns, took_ns: took.as_nanos() as u64, steps });
        }
    }
    Ok((windows, marks))
}
