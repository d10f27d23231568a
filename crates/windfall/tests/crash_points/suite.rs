//! The crash enumeration: it runs histories, takes every disk operation as a crash point, and calls a function
//! ([`Judge`]) that checks what is left.

use std::time::Instant;

use windfall::FlushLog;
use windfall_sim::{SimulatedDisk, Survive};

use crate::{
    case::{Case, History, Script},
    guard::{Guard, mix},
    history::{
        Live, Model, Step, files, mixed_script, observe, open, script_of_groups, script_of_high_trees,
    },
};

/// The callback for a crash: the operation, the disk that it has left, and the states that may be there.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(u64, &SimulatedDisk, &[Model]);

/// Checks what a crash has left: the disk, the seed, the states that may be there, and the name of the case. Panics if
/// something is wrong.
pub(crate) type Judge = fn(&SimulatedDisk, u64, &[Model], &str);

/// The outcome of one run of the database, from its first open to its crash or end.
struct RunState {
    /// The final state if it is certain, otherwise all states that are possible.
    may: Vec<Model>,
    operations: u64,
}

impl History {
    /// Returns the script of a run. Runs before the last are shorter.
    pub(crate) fn script(&self, run: u32) -> Vec<Step> {
        let steps = if run < self.before { self.steps.min(150) } else { self.steps };
        let script = match self.script {
            Script::Mixed => mixed_script,
            Script::High => script_of_high_trees,
            Script::Groups => script_of_groups,
        };
        script(self.seed ^ u64::from(run) << 32, steps)
    }

    /// Executes the runs before the last, each to its crash. Returns the disk and the possible states at the start of
    /// the last.
    fn run_earlier(&self) -> (SimulatedDisk, Vec<Model>) {
        let (mut disk, mut may) = (SimulatedDisk::new(self.seed), vec![Model::default()]);
        for run in 0..self.before {
            let luck = mix(&[self.seed, u64::from(run), 1]);
            disk.crash_at(20 + luck % 300);
            may = self.run_and_crash(&disk, run, may, &mut |_, _, _| {}).may;
            let survive =
                [Survive::Nothing, Survive::Everything, Survive::Random(luck)][(luck >> 32) as usize % 3];
            disk = disk.restart(survive);
        }
        (disk, may)
    }

    /// Executes the last run and visits the crashes at these operations. Returns the number of operations.
    pub(crate) fn run(&self, crashes: core::ops::RangeInclusive<u64>, visit: Visit<'_>) -> u64 {
        let (disk, may) = self.run_earlier();
        disk.record_crash_points(crashes);
        self.run_and_crash(&disk, self.before, may, visit).operations
    }

    /// Executes one run, which a crash of the disk may end. The possible states are first the one that was acknowledged
    /// as durable, then the state after each later step. The last is the state that the step in progress would have
    /// made.
    fn run_and_crash(
        &self,
        disk: &SimulatedDisk,
        run: u32,
        mut may: Vec<Model>,
        visit: Visit<'_>,
    ) -> RunState {
        let mut visit_all = |may: &[Model]| {
            for (operation, crashed) in disk.take_crash_points() {
                visit(operation, &crashed, may);
            }
        };
        let script = self.script(run);
        let mut live: Option<Live> = None;
        let mut model = Model::default();
        let reopen = 60 + mix(&[self.seed, u64::from(run), 2]) as usize % 60;
        for (n, step) in script.iter().enumerate() {
            if n % reopen == reopen - 1
                && let Some(open) = live.take()
            {
                let done = open.close();
                visit_all(&may);
                match done {
                    Ok(()) => may = vec![model.clone()],
                    Err(error) => assert!(disk.is_crashed(), "closing: {error}"),
                }
            }
            if live.is_none() {
                let opened = open(disk, self.seed.wrapping_add(n as u64));
                visit_all(&may);
                match opened {
                    Ok(opened) => {
                        opened.db.set_flush_log_at_trx_commit(self.mode);
                        if n == 0 && run == 0 {
                            // A database that does not exist yet is empty.
                        } else {
                            match observe(&opened.db) {
                                Ok(seen) => {
                                    assert!(may.contains(&seen), "opened, {seen:?} is none of {may:?}");
                                    model = seen.clone();
                                    may = vec![seen];
                                }
                                Err(error) => assert!(disk.is_crashed(), "looking: {error}"),
                            }
                        }
                        live = Some(opened);
                    }
                    Err(error) => assert!(disk.is_crashed(), "opening: {error}"),
                }
            }
            let Some(open) = live.as_mut().filter(|_| !disk.is_crashed()) else { break };
            let after = model.after(step);
            let done = open.apply(step);
            if let Some(after) = &after {
                may.extend(model.in_progress(step).into_iter().chain([after.clone()]));
            }
            visit_all(&may);
            match (after, done) {
                (None, done) => assert!(done.is_err(), "{step:?} should have been refused"),
                (Some(_), Err(error)) => assert!(disk.is_crashed(), "{step:?}: {error}"),
                (Some(after), Ok(())) => {
                    if self.mode == FlushLog::Sync || matches!(step, Step::Checkpoint) {
                        may = vec![after.clone()];
                    }
                    model = after;
                }
            }
        }
        if let Some(live) = live {
            // A run before the last may end here, too.
            let looked = observe(&live.db).and_then(|seen| Ok((seen, live.come_to_rest()?)));
            match looked {
                Ok((seen, findings)) => {
                    assert!(seen == model, "without any crash: {seen:?} is not {model:?}");
                    assert_eq!(findings, Vec::<String>::new(), "without any crash");
                }
                Err(error) => assert!(disk.is_crashed(), "at the end: {error}"),
            }
            let closed = live.close();
            visit_all(&may);
            match closed {
                Ok(()) => {
                    let found = files::read(&disk.survivor(Survive::Everything));
                    let found =
                        found.unwrap_or_else(|error| panic!("without any crash, in the files: {error}"));
                    assert!(found == model, "without any crash, in the files: {found:?} is not {model:?}");
                }
                Err(error) => assert!(disk.is_crashed(), "closing at the end: {error}"),
            }
        }
        RunState { may, operations: disk.operations() }
    }
}

/// Opens what a crash has left, lets the workers run, and closes: all that a recovery does.
fn recover(disk: &SimulatedDisk, seed: u64) {
    if let Ok(live) = open(disk, seed) {
        live.env.run_workers(40);
        let _ = live.close();
    }
}

/// Returns the disk that the crashes of a case leave. `crash_point` is the disk at its first crash.
pub(crate) fn left(crashed: &SimulatedDisk, case: &Case) -> SimulatedDisk {
    left_by(crashed, case).0
}

/// As [`left`], and also returns how many of the later crashes were reached before the end of their recovery.
fn left_by(crashed: &SimulatedDisk, case: &Case) -> (SimulatedDisk, u64) {
    let mut came = 0;
    let mut disk = crashed.restart(case.crashes[0].1);
    if let Some(group) = case.group {
        files::end_log(&disk, group);
    }
    for (operation, survive) in &case.crashes[1..] {
        disk.record_crash_points(*operation..=*operation);
        recover(&disk, case.history.seed);
        // A recovery that ends before its crash point leaves its final state.
        let next = disk.take_crash_points().pop().map(|(_, crashed)| crashed);
        came += u64::from(next.is_some());
        disk = next.unwrap_or_else(|| disk.clone()).restart(*survive);
    }
    (disk, came)
}

/// Returns the number of operations of a recovery from this state.
pub(crate) fn operations_of_recovery(crashed: &SimulatedDisk, case: &Case) -> u64 {
    let disk = left(crashed, case);
    recover(&disk, case.history.seed);
    disk.operations()
}

fn in_time(until: Option<Instant>) -> bool {
    until.is_none_or(|until| Instant::now() < until)
}

/// Runs and judges crash cases, and counts them.
pub(crate) struct Suite {
    judge: Judge,
    guard: Guard,
    /// After this time the rest of a history still runs, but its crashes are not checked.
    pub until: Option<Instant>,
    /// Operations at which a history was crashed.
    pub operations: u64,
    /// Operations at which a recovery was crashed.
    pub of_recoveries: u64,
    /// Ends of log groups at which a history was crashed.
    pub groups: u64,
    /// Disks that were checked: several per crash point.
    pub cases: u64,
}

impl Suite {
    pub(crate) fn new(judge: Judge) -> Self {
        Self { judge, guard: Guard::new(), until: None, operations: 0, of_recoveries: 0, groups: 0, cases: 0 }
    }

    /// Judges a case with its first crash at `crash_point`. Returns how many of the later crashes were reached.
    fn judge(&mut self, crashed: &SimulatedDisk, may: &[Model], case: &Case) -> u64 {
        let came = self.guard.run(&case.command(), || {
            let (disk, came) = left_by(crashed, case);
            (self.judge)(&disk, case.history.seed, may, &case.to_string());
            came
        });
        self.cases += 1;
        came
    }

    /// Crashes a history at every n-th operation (`every`). At each, nothing survives, then everything, then `random`
    /// times a random part. In some of these the recovery is crashed, and in some of those the next recovery, too.
    pub(crate) fn crash_everywhere(&mut self, history: History, every: u64, random: u64) {
        self.visit(history, every, |suite, operation, crashed, may| {
            suite.operations += 1;
            suite.crash_at(history, operation, crashed, may, random);
        });
    }

    /// Runs a history and visits the crash at every n-th operation.
    fn visit(
        &mut self,
        history: History,
        every: u64,
        mut at: impl FnMut(&mut Self, u64, &SimulatedDisk, &[Model]),
    ) {
        let (guard, whole) = (self.guard.clone(), Case { history, crashes: Vec::new(), group: None });
        guard.run(&whole.command(), || {
            history.run(1..=u64::MAX, &mut |operation, crashed, may| {
                if in_time(self.until) && operation % every == history.seed % every {
                    at(self, operation, crashed, may);
                }
            })
        });
    }

    fn crash_at(
        &mut self,
        history: History,
        operation: u64,
        crashed: &SimulatedDisk,
        may: &[Model],
        random: u64,
    ) {
        let luck = |n: u64| mix(&[history.seed, operation, n]);
        let random = (0..random).map(|n| Survive::Random(luck(n)));
        for (n, survive) in [Survive::Nothing, Survive::Everything].into_iter().chain(random).enumerate() {
            let luck = luck(100 + n as u64);
            let mut crashes = vec![(operation, survive)];
            if luck.is_multiple_of(3) {
                crashes.push((1 + (luck >> 8) % 60, Survive::Random(luck >> 4)));
                if (luck / 3).is_multiple_of(4) {
                    crashes.push((1 + (luck >> 16) % 40, Survive::Random(luck >> 5)));
                }
            }
            self.of_recoveries += self.judge(crashed, may, &Case { history, crashes, group: None });
        }
    }

    /// Crashes every n-th recovery at each of its operations.
    pub(crate) fn crash_recoveries(&mut self, history: History, every: u64) {
        self.visit(history, every, |suite, operation, crashed, may| {
            suite.operations += 1;
            let luck = mix(&[history.seed, operation]);
            let ways = [Survive::Nothing, Survive::Everything, Survive::Random(luck)];
            let first = (operation, ways[luck as usize % 3]);
            let case = Case { history, crashes: vec![first], group: None };
            // The command that repeats a failure here has a crash point that is never reached.
            let whole = Case { crashes: vec![first, (u64::MAX, Survive::Everything)], ..case.clone() };
            let operations = suite.guard.run(&whole.command(), || operations_of_recovery(crashed, &case));
            let until = suite.until;
            for again in (1..=operations).take_while(|_| in_time(until)) {
                suite.of_recoveries += 1;
                for survive in [Survive::Nothing, Survive::Everything, Survive::Random(luck ^ again)] {
                    suite.judge(
                        crashed,
                        may,
                        &Case { crashes: vec![first, (again, survive)], ..case.clone() },
                    );
                }
            }
        });
    }

    /// Crashes a history after each group that was written together with the next one. If one thread logs several
    /// groups and writes them at once, another thread may have written the first of them alone.
    pub(crate) fn crash_between_groups(&mut self, history: History) {
        // The log before the first operation was durable long ago.
        let mut end = u64::MAX;
        self.visit(history, 1, |suite, operation, crashed, may| {
            let ends = files::group_ends(&crashed.survivor(Survive::Everything));
            let new = ends.iter().filter(|group| **group > end);
            for group in new.filter(|group| Some(*group) != ends.last()) {
                suite.groups += 1;
                let crashes = vec![(operation, Survive::Everything)];
                suite.judge(crashed, may, &Case { history, crashes, group: Some(*group) });
            }
            end = ends.last().copied().unwrap_or_default();
        });
    }

    /// Returns the sum of all crash points.
    pub(crate) fn crash_points(&self) -> u64 {
        self.operations + self.of_recoveries + self.groups
    }

    /// Runs one case again. A case without a crash is its whole history.
    pub(crate) fn again(&mut self, case: &Case) {
        let at = case.crashes.first().map_or(0, |(operation, _)| *operation);
        let mut found = case.crashes.is_empty();
        self.guard.clone().run(&case.command(), || {
            case.history.run(at..=at, &mut |_, crashed, may| {
                found = true;
                self.judge(crashed, may, case);
            })
        });
        assert!(found, "the history has fewer operations");
    }
}
