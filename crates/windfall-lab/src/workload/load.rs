//! A run of clients, with statements during it.
//!
//! **Purpose.** Clients work for a time, and one thread executes statements at times fixed in advance. The recorded
//! queries become a [`Load`]: one for the phases with statements, and one for those without, if there are any.
//!
//! **Invariants.** Each client records into its own instruments (by type). Phases alternate while the clients continue,
//! and the pause between two of them belongs to neither (test: `phases_take_turns_and_a_stall_is_not_cut_at_the_end`).
//! A window is the 100 ms after the start of a statement (test:
//! `a_query_is_in_all_its_windows_and_in_the_phases_of_its_ends`); phases without statements have windows at the same
//! times (test: `phases_take_turns_and_a_stall_is_not_cut_at_the_end`). A query is in a window if any part of it is, so
//! it may be in several; it is in the phase in which it begins, and in that in which it ends (test:
//! `a_query_is_in_all_its_windows_and_in_the_phases_of_its_ends`). A phase lasts until the window of its last statement
//! is over and that statement has returned, however long that takes: no stall is cut off at the end of a run (test:
//! `phases_take_turns_and_a_stall_is_not_cut_at_the_end`).

use std::{
    cell::Cell,
    sync::atomic::{
        AtomicBool, AtomicU64, AtomicUsize,
        Ordering::{Acquire, Relaxed, Release},
    },
    thread,
    time::{Duration, Instant},
};

use windfall::error::{Result, UsageError};
use windfall_measure::{GRAPH_INTERVAL, Latency, Random, Timeline};

use crate::{
    results::{Load, LockSeen, Mark, Window},
    server::{Dropped, Server},
    watch::{self, Role},
};

/// The length of a window, from the start of a statement.
pub const WINDOW: Duration = Duration::from_millis(100);
/// The uncounted time before a phase.
const PAUSE: Duration = Duration::from_millis(200);

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Client threads.
    pub threads: u32,
    /// The length of a phase.
    pub length: Duration,
    /// The times of the statements, from the start of the phase.
    pub marks: Vec<Duration>,
    /// For each phase, whether statements are executed in it.
    pub phases: Vec<bool>,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl Plan {
    /// Creates a plan with one phase and a statement after each `pause`. The first one is executed after that time, and
    /// the window of the last one is within the phase.
    pub fn every(threads: u32, length: Duration, pause: Duration, seed: u64) -> Self {
        let last = length.saturating_sub(2 * WINDOW);
        let marks = (1..u32::MAX).map(|n| pause * n).take_while(|&at| at <= last).collect();
        Self { threads, length, marks, phases: vec![true], seed }
    }

    /// Returns the same plan with this many turns: a phase without statements, and one with them.
    #[must_use]
    pub fn in_turns(self, turns: u32) -> Self {
        Self { phases: (0..turns).flat_map(|_| [false, true]).collect(), ..self }
    }

    /// Returns the number of statements in all phases.
    pub fn statements(&self) -> usize {
        self.marks.len() * self.phases.iter().filter(|&&has_statements| has_statements).count()
    }

    fn windows(&self) -> usize {
        self.marks.len() * self.phases.len()
    }

    /// Returns the duration of a run if no statement takes longer than its phase.
    fn about(&self) -> Duration {
        (self.length + PAUSE + GRAPH_INTERVAL) * self.phases.len() as u32
    }
}

/// The kind of a query outside of the phases.
const OUTSIDE: u64 = 2;

/// The state that the threads of a run share.
#[derive(Debug)]
struct Shared {
    start: Instant,
    /// The kind of the current phase: 1 with statements, 0 without, or [`OUTSIDE`].
    kind: AtomicU64,
    /// The window that opened last.
    window: AtomicUsize,
    /// The opening time of each window of each phase, in nanoseconds of the run.
    opened: Box<[AtomicU64]>,
    stop: AtomicBool,
}

impl Shared {
    fn new(plan: &Plan) -> Self {
        Self {
            start: Instant::now(),
            kind: AtomicU64::new(OUTSIDE),
            window: AtomicUsize::new(0),
            opened: (0..plan.windows()).map(|_| AtomicU64::new(u64::MAX)).collect(),
            stop: AtomicBool::new(false),
        }
    }

    /// Opens a window now, and returns the time.
    fn open(&self, window: usize) -> u64 {
        self.open_at(window, self.now())
    }

    fn open_at(&self, window: usize, at_ns: u64) -> u64 {
        self.opened[window].store(at_ns, Relaxed);
        self.window.store(window, Release);
        at_ns
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

/// Records the queries of one client.
#[derive(Debug)]
pub struct Recorder<'a> {
    shared: &'a Shared,
    timeline: Timeline,
    /// The latencies without statements, and with them.
    kinds: [Latency; 2],
    /// The latencies per window.
    windows: Vec<Latency>,
}

impl<'a> Recorder<'a> {
    fn new(shared: &'a Shared, plan: &Plan) -> Self {
        let windows = vec![Latency::default(); plan.windows()];
        Self { shared, timeline: Timeline::growing(plan.about()), kinds: Default::default(), windows }
    }

    /// Runs and records a query.
    ///
    /// # Errors
    /// Errors of the query.
    #[inline]
    pub fn query<T>(&mut self, query: impl FnOnce() -> Result<T>) -> Result<T> {
        let (began_in, start) = (self.shared.kind.load(Relaxed), self.shared.now());
        let done = query()?;
        self.record(start, began_in, self.shared.now(), self.shared.kind.load(Relaxed));
        Ok(done)
    }

    /// Records a query from its start to its end, with the kinds of the phases at both times.
    #[inline]
    fn record(&mut self, start: u64, began_in: u64, end: u64, ended_in: u64) {
        self.timeline.finished(end);
        self.count_in(began_in, end - start);
        if ended_in != began_in {
            self.count_in(ended_in, end - start);
        }
        let until = self.windows.len().min(self.shared.window.load(Acquire) + 1);
        for (opened, times) in self.shared.opened[..until].iter().zip(&mut self.windows[..until]).rev() {
            let opened = opened.load(Relaxed);
            if start >= opened.saturating_add(ns(WINDOW)) {
                break;
            }
            if end >= opened {
                times.record(end - start);
            }
        }
    }

    fn count_in(&mut self, kind: u64, took: u64) {
        if let Some(times) = self.kinds.get_mut(kind as usize) {
            times.record(took);
        }
    }

    fn add(&mut self, other: &Self) {
        self.timeline.add(&other.timeline);
        self.kinds.iter_mut().zip(&other.kinds).for_each(|(mine, theirs)| mine.add(theirs));
        self.windows.iter_mut().zip(&other.windows).for_each(|(mine, theirs)| mine.add(theirs));
    }
}

/// The work of one client: called again and again.
pub type Client<'a> = dyn Fn(&mut Random, &mut Recorder<'_>) -> Result<()> + Sync + 'a;

/// Executes one statement, by its number, in phases with statements. It calls its second argument at the start of the
/// measured part, which opens the window; everything before that is preparation. Returns `None` if it has dropped
/// nothing.
pub type Statement<'a> = dyn FnMut(usize, &dyn Fn()) -> Result<Option<Dropped>> + Send + 'a;

/// The record of a phase.
struct Phase {
    has_statements: bool,
    from_ns: u64,
    to_ns: u64,
    /// The opening times of its windows.
    windows: Vec<u64>,
    marks: Vec<Mark>,
    locks: Vec<LockSeen>,
}

/// The results of a run.
#[derive(Debug)]
pub struct RunResult {
    /// The phases with statements.
    pub with: Load,
    /// The phases without statements.
    pub without: Load,
    /// The timeline of the last phase, from its start.
    pub last: Timeline,
}

/// Runs a plan.
///
/// # Errors
/// The first query or statement that fails.
pub fn run<S: Server>(
    server: &S,
    plan: &Plan,
    client: &Client<'_>,
    statement: &mut Statement<'_>,
) -> Result<RunResult> {
    let shared = &Shared::new(plan);
    let (recorded, phases) = thread::scope(|scope| {
        let clients: Vec<_> = (0..plan.threads)
            .map(|n| {
                scope.spawn(move || {
                    let mut random = Random::new(plan.seed, 1_000 + u64::from(n));
                    let mut recorder = Recorder::new(shared, plan);
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
        let phases = scope.spawn(move || {
            watch::set_role(Role::Dropper);
            let phases = run_phases(server, plan, shared, statement);
            shared.stop.store(true, Relaxed);
            phases
        });
        let recorded: Vec<_> = clients.into_iter().map(thread::ScopedJoinHandle::join).collect();
        (recorded, phases.join())
    });
    let panicked = |_| UsageError::Other("a thread of the experiment has panicked".into()).into();
    let mut sum = Recorder::new(shared, plan);
    for recorder in recorded {
        sum.add(&recorder.map_err(panicked).flatten()?);
    }
    let phases = phases.map_err(panicked).flatten()?;
    let last = phases.last().map(|phase| sum.timeline.part(phase.from_ns, phase.to_ns));
    let last = last.ok_or_else(|| UsageError::Other("a run has a phase".into()))?;
    Ok(RunResult {
        with: summarise(plan, &sum, &phases, true),
        without: summarise(plan, &sum, &phases, false),
        last,
    })
}

/// Runs the phases, one after the other.
fn run_phases<S: Server>(
    server: &S,
    plan: &Plan,
    shared: &Shared,
    statement: &mut Statement<'_>,
) -> Result<Vec<Phase>> {
    let (mut phases, mut executed) = (Vec::new(), 0);
    for (number, &has_statements) in plan.phases.iter().enumerate() {
        sleep_until(shared, shared.now() + ns(PAUSE));
        server.reset_locks();
        let from_ns = shared.now();
        shared.kind.store(has_statements.into(), Relaxed);
        let mut phase = Phase {
            has_statements,
            from_ns,
            to_ns: 0,
            windows: Vec::new(),
            marks: Vec::new(),
            locks: Vec::new(),
        };
        for (n, &at) in plan.marks.iter().enumerate() {
            sleep_until(shared, from_ns + ns(at));
            let window = number * plan.marks.len() + n;
            let opened = Cell::new(None);
            let open = || opened.set(Some(shared.open(window)));
            if has_statements && !shared.stop.load(Relaxed) {
                let dropped = statement(executed, &open)?;
                executed += 1;
                if let (Some(at_ns), Some(Dropped { steps, took })) = (opened.get(), dropped) {
                    phase.marks.push(Mark { at_ns: at_ns - from_ns, took_ns: ns(took), steps });
                }
            }
            if opened.get().is_none() {
                open();
            }
            phase.windows.extend(opened.get());
        }
        let last = phase.windows.last().map_or(0, |opened| opened + ns(WINDOW));
        let end = last.max(from_ns + ns(plan.length)).max(shared.now());
        // A whole number of intervals, so that the next phase begins with one.
        phase.to_ns = from_ns + (end - from_ns).next_multiple_of(ns(GRAPH_INTERVAL));
        sleep_until(shared, phase.to_ns);
        shared.kind.store(OUTSIDE, Relaxed);
        phase.locks = server.locks();
        phases.push(phase);
    }
    Ok(phases)
}

/// Returns the load of the phases of a kind, as one run in which they follow each other.
fn summarise(plan: &Plan, sum: &Recorder<'_>, phases: &[Phase], has_statements: bool) -> Load {
    let mut load = Load::new(&sum.kinds[usize::from(has_statements)]);
    let mut near = Latency::default();
    for (number, phase) in
        phases.iter().enumerate().filter(|(_, phase)| phase.has_statements == has_statements)
    {
        let line = sum.timeline.part(phase.from_ns, phase.to_ns);
        let windows = phase.windows.iter().zip(&sum.windows[number * plan.marks.len()..]);
        for (&opened, times) in windows {
            let (from, to) = (opened - phase.from_ns, opened - phase.from_ns + ns(WINDOW));
            near.add(times);
            load.windows.push(Window {
                at_ns: load.length_ns + from,
                rate: line.count_within(from, to) as f64 / WINDOW.as_secs_f64(),
                gap_ns: line.longest_gap_within(from, to).length_ns,
                p9999_ns: times.percentile(99.99),
            });
        }
        load.follow(&line, &phase.marks, &phase.locks);
    }
    load.latency_near = (&near).into();
    load
}

/// Sleeps until a time of the run, or until the run is stopped.
fn sleep_until(shared: &Shared, at_ns: u64) {
    loop {
        let left = Duration::from_nanos(at_ns.saturating_sub(shared.now()));
        if left.is_zero() || shared.stop.load(Relaxed) {
            return;
        }
        thread::sleep(left.min(Duration::from_millis(50)));
    }
}

fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    use parking_lot::Mutex;
    use tempfile::TempDir;
    use windfall::FlushLog;

    use super::*;
    use crate::{
        policy::Steps,
        server::{Start, classic::Classic, rows},
        system::{PolicyName, System},
        watch::SAMPLED,
    };

    const MS: u64 = 1_000_000;

    fn server(folder: &TempDir) -> Classic {
        let system = System::of(PolicyName::LruScan);
        Classic::start(&Start {
            system,
            folder: folder.path(),
            pages: 256,
            log: 64 << 20,
            flush: FlushLog::Write,
        })
        .unwrap()
    }

    /// Independent of the speed of the machine: times are only compared with lower bounds.
    #[test]
    fn phases_take_turns_and_a_stall_is_not_cut_at_the_end() {
        const STALL: Duration = Duration::from_millis(700);
        const CLIENTS: u32 = 2;
        let folder = TempDir::new().unwrap();
        let server = server(&folder);
        let table = server.create("t", false).unwrap();
        rows::put(&table.rows, b"key", b"value").unwrap();
        let (gate, at_gate) = (Mutex::new(()), AtomicU32::new(0));
        let client = |_: &mut Random, recorder: &mut Recorder<'_>| {
            recorder.query(|| {
                at_gate.fetch_add(1, SeqCst);
                drop(gate.lock());
                at_gate.fetch_sub(1, SeqCst);
                rows::get(&table.rows, b"key").map(drop)
            })
        };
        let pause = Duration::from_millis(200);
        let plan = Plan::every(CLIENTS, 2 * pause + pause, pause, 1).in_turns(2);
        assert_eq!((plan.marks.len(), plan.statements()), (2, 4));
        let mut executed = Vec::new();
        let result = run(&server, &plan, &client, &mut |n, begins| {
            executed.push(n);
            // Enough look-ups that some are timed.
            (0..2 * SAMPLED).try_for_each(|_| rows::get(&table.rows, b"key").map(drop))?;
            // All clients are in the middle of a query when the window opens.
            let closed = gate.lock();
            while at_gate.load(SeqCst) < CLIENTS {
                thread::yield_now();
            }
            begins();
            // The last statement of a phase lasts far beyond the end of the phase.
            if n % 2 == 1 {
                thread::sleep(STALL);
            }
            drop(closed);
            Ok(Some(Dropped { took: STALL, ..Dropped::default() }))
        });
        let RunResult { with, without, last } = result.unwrap();
        assert_eq!(executed, [0, 1, 2, 3]);
        assert_eq!((with.marks.len(), with.windows.len()), (4, 4));
        assert_eq!((without.marks.len(), without.windows.len()), (0, 4));
        assert!(with.windows.iter().zip(&with.marks).all(|(window, mark)| window.at_ns == mark.at_ns));
        assert!(with.longest_gap.length_ns >= 690 * MS, "{:?}", with.longest_gap);
        assert!(with.windows[1].gap_ns >= 690 * MS && with.windows[3].gap_ns >= 690 * MS);
        assert!(with.windows[3].p9999_ns >= 690 * MS, "{:?}", with.windows);
        assert!(with.length_ns >= 2 * (400 + 700) * MS && with.length_ns % (100 * MS) == 0);
        assert_eq!(with.rates.len() as u64, with.length_ns / (100 * MS));
        assert!(without.length_ns >= 2 * 600 * MS);
        assert!(last.length_ns() < with.length_ns && last.count() < with.queries);
        assert!(lookups(&with) >= 2 * SAMPLED);
    }

    /// Returns the number of look-ups recorded by the locks of the phases.
    fn lookups(load: &Load) -> u64 {
        let holds = load.locks.iter().flat_map(|lock| &lock.holds);
        holds.filter(|held| held.purpose == watch::Purpose::Lookup).map(|held| held.times.count).sum()
    }

    /// The records of the clients and the phases are combined by the kinds of the phases.
    #[test]
    fn each_kind_of_phases_has_its_own_queries_windows_and_locks() {
        let pause = Duration::from_millis(200);
        let plan = Plan::every(1, 3 * pause, pause, 1).in_turns(2);
        let shared = Shared::new(&plan);
        let mut recorder = Recorder::new(&shared, &plan);
        let lookups_of = |count| {
            let times = watch::Times { count, ..watch::Times::default() };
            let held = watch::Held { role: Role::Client, purpose: watch::Purpose::Lookup, times };
            vec![LockSeen { name: "pool".into(), holds: vec![held], waits: Vec::new() }]
        };
        let mut phases = Vec::new();
        for (number, &has_statements) in plan.phases.iter().enumerate() {
            let from_ns = number as u64 * 1000 * MS;
            let windows: Vec<u64> = plan.marks.iter().map(|&at| from_ns + ns(at)).collect();
            for (n, &at_ns) in windows.iter().enumerate() {
                shared.open_at(number * plan.marks.len() + n, at_ns);
                // After the start of each window: twenty queries in phases without statements, in others as many as
                // the number of the phase.
                for query in 1..=if has_statements { number as u64 } else { 20 } {
                    let start = at_ns + query * 3 * MS;
                    recorder.record(start, has_statements.into(), start + MS, has_statements.into());
                }
            }
            let marks = if has_statements {
                vec![Mark { at_ns: 0, took_ns: 1, steps: Steps::default() }]
            } else {
                Vec::new()
            };
            let locks = lookups_of(if has_statements { 3 } else { 5 });
            phases.push(Phase { has_statements, from_ns, to_ns: from_ns + 600 * MS, windows, marks, locks });
        }
        let [without, with] =
            [false, true].map(|has_statements| summarise(&plan, &recorder, &phases, has_statements));
        assert_eq!((without.queries, with.queries), (2 * 2 * 20, 2 + 2 * 3));
        assert_eq!((without.marks.len(), with.marks.len()), (0, 2));
        assert_eq!((lookups(&without), lookups(&with)), (2 * 5, 2 * 3));
        assert_eq!((without.length_ns, with.length_ns), (1200 * MS, 1200 * MS));
        let rates = |load: &Load| load.windows.iter().map(|window| window.rate).collect::<Vec<_>>();
        assert_eq!((rates(&without), rates(&with)), (vec![200.0; 4], vec![10.0, 10.0, 30.0, 30.0]));
        assert!((without.rate_near() - 200.0).abs() < 0.1 && (with.rate_near() - 20.0).abs() < 0.1);
        assert_eq!(
            with.windows.iter().map(|window| window.at_ns / MS).collect::<Vec<_>>(),
            [200, 400, 800, 1000]
        );
    }

    #[test]
    fn a_query_is_in_all_its_windows_and_in_the_phases_of_its_ends() {
        let pause = Duration::from_millis(200);
        let plan = Plan::every(1, 4 * pause, pause, 1);
        assert_eq!(plan.windows(), 3);
        let shared = Shared::new(&plan);
        let mut recorder = Recorder::new(&shared, &plan);
        let counts = |recorder: &Recorder<'_>| -> Vec<u64> {
            recorder.kinds.iter().chain(&recorder.windows).map(Latency::count).collect()
        };
        recorder.record(10 * MS, OUTSIDE, 11 * MS, OUTSIDE);
        assert_eq!(counts(&recorder), [0, 0, 0, 0, 0], "no phase, no window");
        shared.open_at(0, 20 * MS);
        recorder.record(15 * MS, 1, 25 * MS, 1);
        assert_eq!(counts(&recorder), [0, 1, 1, 0, 0]);
        recorder.record(119 * MS, 1, 125 * MS, 1);
        assert_eq!(counts(&recorder), [0, 2, 2, 0, 0], "it begins just before the window is over");
        recorder.record(120 * MS, 1, 125 * MS, 1);
        assert_eq!(counts(&recorder), [0, 3, 2, 0, 0], "the window is over");
        shared.open_at(1, 200 * MS);
        shared.open_at(2, 400 * MS);
        recorder.record(190 * MS, 1, 410 * MS, 0);
        assert_eq!(counts(&recorder), [1, 4, 2, 1, 1]);
        // With the clock of the run.
        shared.kind.store(1, Relaxed);
        recorder.query(|| Ok(())).unwrap();
        assert_eq!(counts(&recorder)[..2], [1, 5]);
    }

    #[test]
    fn a_failing_client_ends_the_run() {
        let folder = TempDir::new().unwrap();
        let server = server(&folder);
        let plan = Plan::every(2, Duration::from_mins(10), Duration::from_mins(1), 1);
        let failing = |_: &mut Random, _: &mut Recorder<'_>| {
            Err(windfall::error::Error::from(UsageError::Other("a client fails".into())))
        };
        let error = run(&server, &plan, &failing, &mut |_, _| Ok(None)).unwrap_err();
        assert!(error.to_string().contains("a client fails"), "{error}");
    }
}
