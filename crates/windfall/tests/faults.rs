//! Fault enumeration of the whole engine: the scripted histories of the crash tests, with every single disk operation
//! failing once, or from then on. The history continues. Then the database is opened again, from the files as readers
//! see them and from what a loss of power leaves. A model decides what must be there, and what was acknowledged.
//!
//! A failure is reported with a command that runs the one case again (`one_case_again`).

#![allow(clippy::unwrap_used, reason = "a test panics")]

mod guard;
mod history;
mod soak;

use std::{env::var, fmt, str::FromStr, time::Instant};

use guard::{Guard, mix, read_back};
use history::{
    Live, Many, Model, Step, files, mixed_script, observe, open_with, options, script, script_of_groups,
    verify_with,
};
use windfall::{
    Error, FlushLog, Options,
    disk::{Disk, FileName, Folder},
    error::{DiskError, IoOp, LockError, TransactionError},
};
use windfall_sim::{Fault, SimulatedDisk, Survive};

const VARIABLE: &str = "WINDFALL_FAULT";
/// The length of a history.
const STEPS: usize = 70;
/// After this number of steps the database is closed and opened again, so that faults hit recovery, too.
const REOPEN: usize = 23;

const FAULTS: [Fault; 6] =
    [Fault::WriteFails, Fault::ReadFails, Fault::SyncFails, Fault::SyncFull, Fault::Full, Fault::TornPage];
const MODES: [FlushLog; 3] = [FlushLog::Sync, FlushLog::Write, FlushLog::Lazy];

/// The fault and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    seed: u64,
    mode: FlushLog,
    fault: Fault,
    /// The n-th operation to which the fault applies.
    n: u64,
    lasting: bool,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, mode, fault, n, lasting } = self;
        write!(f, "{seed} {mode:?} {fault:?} {n} {}", if *lasting { "lasting" } else { "once" })
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split_whitespace().collect();
        let [seed, mode, fault, n, how_long] = parts[..] else {
            return Err(format!("{text:?} is not SEED MODE FAULT N once|lasting"));
        };
        let number = |text: &str| text.parse::<u64>().map_err(|error| format!("{text:?}: {error}"));
        let mode = MODES.into_iter().find(|known| format!("{known:?}") == mode);
        let fault = FAULTS.into_iter().find(|known| format!("{known:?}") == fault);
        let lasting = match how_long {
            "once" => false,
            "lasting" => true,
            _ => return Err(format!("{how_long:?} is neither once nor lasting")),
        };
        Ok(Self {
            seed: number(seed)?,
            mode: mode.ok_or_else(|| format!("{text:?} has none of {MODES:?}"))?,
            fault: fault.ok_or_else(|| format!("{text:?} has none of {FAULTS:?}"))?,
            n: number(n)?,
            lasting,
        })
    }
}

impl Case {
    fn fails_syncs(&self) -> bool {
        matches!(self.fault, Fault::SyncFails | Fault::SyncFull)
    }

    fn command(&self) -> String {
        format!(
            "{VARIABLE}='{self}' cargo test -p windfall --test faults -- --exact --ignored --nocapture one_case_again"
        )
    }
}

/// A history with a fault.
struct History {
    case: Case,
    disk: SimulatedDisk,
    live: Option<Live>,
    /// The current state, if it is certain.
    model: Model,
    /// The states that may be there after a loss of power: the one that was acknowledged as durable, then the state
    /// after each later step.
    may: Vec<Model>,
    /// Whether a call has reported that the database has stopped.
    stopped: bool,
    options: Options,
}

/// Returns whether an operation may fail with this error: the error of the disk, the stopped database, or a rollback in
/// the background that lasts as long as the fault.
fn is_told(error: &Error) -> bool {
    matches!(
        error,
        Error::Poisoned(_)
            | Error::Disk(DiskError::Io { .. } | DiskError::Full { .. })
            | Error::Transaction(TransactionError::RollingBack { .. })
            | Error::Lock(LockError::TimedOut { .. })
    )
}

impl History {
    fn new(case: Case) -> Self {
        let disk = SimulatedDisk::new(case.seed);
        disk.fail_nth(case.n, case.fault, case.lasting);
        Self::on(disk, case, options(), vec![Model::default()])
    }

    /// Starts a history by opening this disk, which may be in any of these states.
    fn on(disk: SimulatedDisk, case: Case, options: Options, may: Vec<Model>) -> Self {
        let model = may[0].clone();
        let mut history = Self { case, disk, live: None, model, may, stopped: false, options };
        history.open();
        history
    }

    /// Opens the database, twice if the fault prevents it. The database stays closed while the fault lasts.
    fn open(&mut self) {
        for _ in 0..2 {
            if self.names_in_doubt() {
                return;
            }
            let failures = self.disk.failures();
            match open_with(&self.disk, self.case.seed, &self.options) {
                Ok(live) => {
                    live.db.set_flush_log_at_trx_commit(self.case.mode);
                    let has_failed = self.case.fails_syncs() && self.disk.failures() > failures;
                    // Recovery works without a new doublewrite file if there is no space for one.
                    let is_needed = self.case.fault != Fault::SyncFull
                        || self.disk.failed() != Some((IoOp::Sync, FileName::NewDoublewrite));
                    assert!(!has_failed || !is_needed, "opened although a sync had failed");
                    self.live = Some(live);
                    return self.settle();
                }
                Err(error) => {
                    assert!(
                        self.disk.failures() > failures || self.names_in_doubt(),
                        "it cannot be opened: {error}"
                    );
                    assert!(is_told(&error), "opening fails with {error:?}");
                }
            }
        }
        assert!(
            self.case.lasting || self.names_in_doubt(),
            "it cannot be opened after a fault that has passed"
        );
    }

    /// Determines the state after an opening: it is certain from now on.
    fn settle(&mut self) {
        let live = self.live.as_ref().unwrap();
        match observe(&live.db) {
            Ok(seen) => {
                assert!(self.may.contains(&seen), "opened, {seen:?}\nis none of {:?}", self.may);
                self.model = seen.clone();
                self.may = vec![seen];
                self.stopped = false;
            }
            Err(error) => {
                assert!(is_told(&error) && self.disk.failures() > 0, "{error:?}");
                self.live = None;
            }
        }
    }

    fn close(&mut self) {
        let Some(live) = self.live.take() else { return };
        match live.close() {
            Ok(()) => {
                assert!(!self.stopped, "closed in good order although the database had stopped");
                self.may = vec![self.model.clone()];
            }
            Err(error) => {
                assert!(self.disk.failures() > 0 && is_told(&error), "closing fails with {error:?}");
                if !matches!(error, Error::Poisoned(_)) {
                    // The log has all changes that could not be written to data files.
                    self.may = vec![self.model.clone()];
                }
            }
        }
    }

    /// Returns whether it is unknown which file names are durable. The database cannot repair that: the file system
    /// must be checked and mounted again, which is the loss of power here.
    fn names_in_doubt(&self) -> bool {
        matches!(self.disk.failed(), Some((IoOp::SyncFolder, _)))
    }

    fn step(&mut self, step: &Step) {
        let Some(live) = &mut self.live else { return };
        let failures = self.disk.failures();
        let in_use =
            self.case.fails_syncs().then(|| files::segments_in_use(&self.disk, live.db.metrics().log_age));
        let done = live.apply(step);
        let sync_failed = self.case.fails_syncs() && self.disk.failures() > failures;
        let stops = sync_failed && {
            let next = live.db.checkpoint();
            // A failed sync of a log segment that is being prepared, even one that recycles an old segment, or of a
            // larger doublewrite file, only discards that file. Any other failed sync stops the database.
            let low_water_mark = files::segments_in_use(&self.disk, 0).start;
            let is_needed =
                |start: u64| start >= low_water_mark && in_use.as_ref().is_some_and(|some| start < some.end);
            let is_new = match self.disk.failed() {
                Some((IoOp::Sync, FileName::Log(start))) => !is_needed(start),
                Some((IoOp::Sync, file)) => file == FileName::NewDoublewrite,
                _ => false,
            };
            let stops = matches!(next, Err(Error::Poisoned(_)));
            assert!(stops || is_new, "{step:?}: after a failed sync of {:?}: {next:?}", self.disk.failed());
            stops
        };
        match (self.model.after(step), done) {
            (None, Ok(())) => panic!("{step:?} should have been refused"),
            (None, Err(error)) => {
                assert!(
                    matches!(error, Error::Schema(_)) || is_told(&error) && self.disk.failures() > 0,
                    "{step:?}: {error:?}"
                );
                self.stopped |= matches!(error, Error::Poisoned(_));
            }
            // These steps acknowledge nothing.
            (_, Ok(())) if matches!(step, Step::Settle | Step::EndTemporary(_)) => {}
            (Some(after), Ok(())) => {
                assert!(!self.stopped, "{step:?} is acknowledged after the end");
                if self.case.mode == FlushLog::Sync || matches!(step, Step::Checkpoint) {
                    self.may.clear();
                }
                self.may.push(after.clone());
                self.model = after;
            }
            (Some(after), Err(error)) => {
                assert!(self.disk.failures() > 0 && is_told(&error), "{step:?}: {error:?}");
                if matches!(error, Error::Poisoned(_)) {
                    // The first step that returns this error may have reached the log.
                    if !self.stopped {
                        self.may.push(after);
                    }
                    self.stopped = true;
                } else {
                    assert!(!self.stopped, "{step:?} does not say that the database has stopped: {error:?}");
                    self.look(step);
                }
            }
        }
        self.stopped |= stops;
    }

    /// Asserts that a step that failed without stopping the database has changed nothing.
    fn look(&self, step: &Step) {
        let live = self.live.as_ref().unwrap();
        match observe(&live.db) {
            Ok(seen) => assert!(
                seen == self.model,
                "{step:?} has failed, and there is\n{seen:?}\nin place of\n{:?}",
                self.model
            ),
            Err(error) => assert!(is_told(&error), "{step:?}: {error:?}"),
        }
    }

    fn end(mut self) {
        let Case { seed, n, .. } = self.case;
        let survive = [Survive::Nothing, Survive::Everything, Survive::Random(n)][n as usize % 3];
        let mut power_lost = (self.disk.survivor(survive), self.may.clone());
        if let (Some(Live { db, .. }), false) = (&self.live, self.stopped) {
            self.disk.clear_faults();
            match observe(db) {
                // Work in the background has met the fault after the last step that could report it.
                Err(Error::Poisoned(_)) if self.disk.failures() > 0 => {}
                seen => {
                    let seen = seen.unwrap();
                    assert!(seen == self.model, "at the end {seen:?}\nis not {:?}", self.model);
                    assert_eq!(db.check().unwrap().findings, Vec::<String>::new(), "at the end");
                    if n.is_multiple_of(2) {
                        power_lost = (self.disk.survivor(survive), vec![self.model.clone()]);
                    }
                }
            }
        }
        self.may.push(self.model.clone());
        let next = self.disk.next_process();
        // The disk now belongs to the next process.
        self.live = None;
        verify_with(&power_lost.0, seed, &self.options, &power_lost.1, "after a loss of power");
        // Some of these cases lose power later.
        if self.names_in_doubt() {
            return;
        }
        // The content that the next process has read must survive a loss of power after it, too.
        let Live { db, env, .. } = open_with(&next, seed, &self.options)
            .unwrap_or_else(|error| panic!("in the next process: {error}"));
        let seen = observe(&db).unwrap_or_else(|error| panic!("in the next process: {error}"));
        assert!(self.may.contains(&seen), "in the next process {seen:?}\nis none of {:?}", self.may);
        if n.is_multiple_of(2) {
            db.checkpoint().unwrap();
            env.run_workers(50);
        }
        verify_with(
            &next.restart(Survive::Nothing),
            seed,
            &self.options,
            &[seen],
            "in the next process, and then the power is lost",
        );
    }
}

/// Runs a history. Returns whether its fault has occurred.
fn run(case: Case) -> bool {
    let mut history = History::new(case);
    // The history ends soon after the fault, or continues to the end of its script.
    let after = [1, 7, usize::MAX][(case.n / 3) as usize % 3];
    let mut left = after;
    // In some histories groups of statements meet the faults.
    let script = if case.seed % 8 == 4 { script_of_groups } else { mixed_script };
    for (n, step) in script(case.seed, STEPS).iter().enumerate() {
        if n % REOPEN == REOPEN - 1 {
            history.close();
            history.open();
        }
        history.step(step);
        if history.disk.failures() > 0 {
            left -= 1;
        }
        if left == 0 {
            break;
        }
    }
    let came = history.disk.failures() > 0;
    history.end();
    came
}

/// Runs a history for every n-th operation to which the fault applies, from the n of `first` on. Returns the number of
/// cases.
fn enumerate(first: Case, every: u64, until: Option<Instant>) -> u64 {
    let guard = Guard::new();
    let cases = (first.n..).step_by(every as usize).map(|n| Case { n, ..first });
    let comes = |case: &Case| guard.run(&case.command(), || run(*case));
    cases.take_while(|_| until.is_none_or(|end| Instant::now() < end)).take_while(comes).count() as u64
}

/// Histories with every commit mode.
const HISTORIES: [(u64, FlushLog); 5] = [
    (1, FlushLog::Write),
    (2, FlushLog::Sync),
    (3, FlushLog::Lazy),
    (4, FlushLog::Sync),
    (8, FlushLog::Write),
];
/// More histories, for faults that apply to few operations.
const MORE_HISTORIES: [(u64, FlushLog); 2] = [(9, FlushLog::Sync), (10, FlushLog::Lazy)];

/// Runs both kinds of a fault, once and lasting, in each of these histories.
fn all(fault: Fault, histories: &[(u64, FlushLog)]) -> u64 {
    let mut cases = 0;
    for &(seed, mode) in histories {
        for lasting in [false, true] {
            cases += enumerate(Case { seed, mode, fault, n: 1, lasting }, 1, None);
        }
    }
    println!("{fault:?}: {cases} cases");
    cases
}

#[test]
fn every_write_fails() {
    assert!(all(Fault::WriteFails, &HISTORIES) > 400, "too few to mean anything");
}

#[test]
fn every_read_fails() {
    assert!(all(Fault::ReadFails, &HISTORIES) > 400, "too few to mean anything");
}

#[test]
fn every_sync_fails() {
    assert!(all(Fault::SyncFails, &HISTORIES) > 400, "too few to mean anything");
}

#[test]
fn every_sync_finds_the_disk_full() {
    assert!(all(Fault::SyncFull, &HISTORIES) > 400, "too few to mean anything");
}

#[test]
fn the_disk_is_full_at_every_write() {
    assert!(all(Fault::Full, &HISTORIES) > 400, "too few to mean anything");
}

#[test]
fn every_page_is_torn_by_a_write_that_fails() {
    let histories = [&HISTORIES[..], &MORE_HISTORIES].concat();
    assert!(all(Fault::TornPage, &histories) > 400, "too few to mean anything");
}

/// Cases in which the soak has found something.
#[test]
fn cases_that_the_soak_has_found() {
    let case = |seed, mode, fault, n| Case { seed, mode, fault, n, lasting: true };
    let cases = [
        // A write of the log in the background stops the database, and the last step would have been refused in any
        // case: this test assumed that the database was still running.
        case(1_795_774_119, FlushLog::Sync, Fault::Full, 105),
        // Closing failed to write pages, and left changes that no commit had waited for out of the log.
        case(1_795_775_253, FlushLog::Lazy, Fault::Full, 32),
        // A call in a transaction could not roll back its changes, and tried it once more without the row's key latch.
        case(1_795_778_377, FlushLog::Lazy, Fault::SyncFull, 25),
        // The sync of a larger doublewrite file failed, so the old one stayed: this test expected that to stop the
        // database.
        Case { lasting: false, ..case(1_795_808_874, FlushLog::Lazy, Fault::SyncFails, 22) },
    ];
    for case in cases {
        assert!(Guard::new().run(&case.command(), || run(case)), "the fault does not occur");
    }
}

/// The disk is full for a while, from any step on. The database does not stop, and it works again when there is space.
#[test]
fn the_disk_is_full_for_a_while() {
    let (mut refused, guard) = (0, Guard::new());
    let again = "cargo test -p windfall --test faults -- --exact the_disk_is_full_for_a_while";
    for (seed, mode) in [(5, FlushLog::Sync), (6, FlushLog::Lazy)] {
        let script = script(seed, 120);
        for from in 0..script.len() {
            refused += guard.run(&format!("{again} # seed {seed}, full at step {from}"), || {
                let fault = Fault::Full;
                let mut history = History::new(Case { seed, mode, fault, n: u64::MAX, lasting: false });
                for (n, step) in script.iter().enumerate() {
                    let room = [0, 4096, 40_000][from % 3];
                    match n.checked_sub(from) {
                        Some(0) => history.disk.set_capacity(Some(history.disk.used() + room)),
                        Some(25) => history.disk.set_capacity(None),
                        _ => {}
                    }
                    history.step(step);
                    assert!(
                        !history.stopped,
                        "seed {seed}, full at step {from}: {step:?} has stopped the database"
                    );
                }
                let failures = history.disk.failures();
                history.disk.set_capacity(None);
                history.end();
                failures
            });
        }
    }
    assert!(refused > 400, "{refused} failures are too few to mean anything");
}

/// The most pages that are written at a time.
const BATCH: usize = 128;
/// A table with a file that fails, and one with a file that does not. The steps of a script use neither.
const BAD: &str = "bad";
const GOOD: &str = "good";

/// A history in which a file fails from some step on, while more of its pages are dirty than a batch holds.
struct BadFile {
    history: History,
    file: FileName,
    /// The faults of the file.
    faults: &'static [Fault],
    /// The end of the log after the first change of a page that stays dirty.
    first: u64,
    /// Crashes that were judged, and those after which the database opened although the file still failed.
    crashes: usize,
    opened: usize,
}

impl BadFile {
    /// Returns the steps that write all rows of the table with the value of this round, three to a page.
    fn rows(round: u8) -> impl Iterator<Item = Step> {
        (0..9).map(move |part| {
            let row = |n: usize| (format!("row {n:03}").into_bytes(), vec![round; 1000]);
            Step::Transaction(Box::new(Many::puts(BAD, (part * 60..(part + 1) * 60).map(row))))
        })
    }

    fn begin(case: Case, faults: &'static [Fault]) -> Self {
        let options = options().buffer_pool_size(1024 * 4096).log_size(8 << 20);
        let disk = SimulatedDisk::new(case.seed);
        let mut history = History::on(disk, case, options, vec![Model::default()]);
        for step in script(case.seed, 25) {
            history.step(&step);
        }
        // Pages of temporary tables are never written by a checkpoint.
        history.step(&Step::EndTemporary(None));
        history.step(&Step::Checkpoint);
        let files = |history: &History| history.disk.list(Folder::Data).unwrap();
        let before = files(&history);
        for step in [BAD, GOOD].map(|table| Step::Create(table.into(), "")).into_iter().chain(Self::rows(0)) {
            history.step(&step);
        }
        history.step(&Step::Checkpoint);
        let new = files(&history).into_iter().filter(|file| !before.contains(file));
        let file = new.max_by_key(|file| files::leaves(&history.disk, *file)).unwrap();
        assert!(files::leaves(&history.disk, file) > BATCH, "the table is too small");
        Self { history, file, faults, first: u64::MAX, crashes: 0, opened: 0 }
    }

    fn fail(&self, disk: &SimulatedDisk) {
        for fault in self.faults {
            disk.fail_always_on(self.file, *fault);
        }
    }

    /// Executes a step. The database must continue, and the low-water mark must stay below the changes that are not
    /// written.
    fn step(&mut self, step: &Step) {
        self.history.step(step);
        assert!(!self.history.stopped, "{step:?} has stopped the database");
        assert!(
            files::low_water_mark(&self.history.disk) <= self.first,
            "the low-water mark has passed what is not written"
        );
    }

    fn dirty(&self) -> usize {
        self.history.live.as_ref().unwrap().db.metrics().pool_dirty as usize
    }

    /// Tries to write all pages, and returns how many are still dirty.
    fn write_pages(&mut self) -> usize {
        for _ in 0..4 {
            let failures = self.history.disk.failures();
            let done = self.history.live.as_ref().unwrap().db.checkpoint();
            assert!(self.history.disk.failures() > failures, "the file was not tried");
            let error = done.expect_err("pages are not written").to_string();
            assert!(error.contains(&self.file.to_string()), "{error}");
            self.step(&Step::Settle);
        }
        self.dirty()
    }

    /// Changes all pages of the file, which cannot be written. All other pages can.
    fn let_it_fail(&mut self) {
        self.fail(&self.history.disk);
        for (n, step) in Self::rows(1).enumerate() {
            self.step(&step);
            if n == 0 {
                let age = self.history.live.as_ref().unwrap().db.metrics().log_age;
                self.first = files::low_water_mark(&self.history.disk) + age;
            }
        }
        let dirty = self.write_pages();
        assert!(dirty > BATCH, "{dirty} dirty pages fit into a batch");
        let value = b"is written although another file takes no writes".to_vec();
        self.step(&Step::Put(GOOD.into(), b"a row".into(), value.clone()));
        assert_eq!(self.write_pages(), dirty, "pages of other files are dirty");
        // The value is durable in the other file. The failing file may not be readable.
        let disk = self.history.disk.survivor(Survive::Nothing);
        let has_value = |file: FileName| {
            let mut bytes = vec![0; disk.len(file).unwrap().unwrap() as usize];
            disk.read(file, 0, &mut bytes).is_ok() && bytes.windows(value.len()).any(|bytes| bytes == value)
        };
        let files = disk.list(Folder::Data).unwrap();
        assert!(files.into_iter().any(|file| file != self.file && has_value(file)), "it is in no file");
    }

    /// Judges what a crash has left, both with the file repaired and with the file still failing.
    fn judge(&mut self, left: &dyn Fn(Survive) -> SimulatedDisk, what: &str) {
        let Case { seed, .. } = self.history.case;
        for (n, survive) in
            [Survive::Nothing, Survive::Everything, Survive::Random(seed)].into_iter().enumerate()
        {
            let (options, may) = (self.history.options.clone(), self.history.may.clone());
            verify_with(&left(survive), seed, &options, &may, &format!("{what}, {survive} survives"));
            let disk = left(survive);
            self.fail(&disk);
            let case = Case { lasting: true, ..self.history.case };
            let mut again = History::on(disk, case, options.clone(), may);
            self.crashes += 1;
            self.opened += usize::from(again.live.is_some());
            let put = Step::Put(GOOD.into(), b"another row".into(), what.into());
            for step in [Step::Settle, put, Step::Checkpoint, Step::Settle] {
                again.step(&step);
            }
            let survive = [Survive::Everything, Survive::Random(seed + 1), Survive::Nothing][n];
            let what = format!("{what}, opened while the file fails, and {survive} survives the next crash");
            verify_with(&again.disk.restart(survive), seed, &options, &again.may, &what);
        }
    }

    /// Continues the script. The power is lost after some steps and during the writing of pages.
    fn continue_working(&mut self) {
        for (n, step) in script(self.history.case.seed, 41).iter().skip(25).enumerate() {
            self.step(step);
            if n % 8 == 7 {
                let disk = self.history.disk.clone();
                self.judge(&|survive| disk.survivor(survive), &format!("after {step:?}"));
            }
        }
        let disk = self.history.disk.clone();
        disk.record_crash_points(disk.operations() + 1..=u64::MAX);
        self.write_pages();
        // The durable content still is durable, and nothing was added.
        let crash_points = disk.take_crash_points();
        for (operation, crash_point) in crash_points.iter().step_by(crash_points.len() / 3 + 1) {
            self.judge(
                &|survive| crash_point.survivor(survive),
                &format!("during a checkpoint, at {operation}"),
            );
        }
    }

    /// Ends the history in one of three ways: the file becomes writable, or its table is dropped, or another process
    /// opens the database while the file still fails.
    fn end(mut self) -> (usize, usize) {
        let judged = (self.crashes, self.opened);
        match self.history.case.seed % 3 {
            0 => {
                let (disk, file) = (self.history.disk.next_process(), self.file);
                self.fail(&disk);
                self.history.live = None;
                let Self { history: History { case, options, mut may, model, .. }, .. } = self;
                may.push(model);
                let again = History::on(disk, Case { lasting: true, ..case }, options.clone(), may);
                let what = format!("another process came while {file} failed");
                verify_with(&again.disk.restart(Survive::Nothing), case.seed, &options, &again.may, &what);
                return judged;
            }
            1 => self.history.disk.clear_faults(),
            _ => self.step(&Step::Drop(vec![BAD.into()])),
        }
        let first = core::mem::replace(&mut self.first, u64::MAX);
        self.step(&Step::EndTemporary(None));
        for _ in 0..4 {
            self.step(&Step::Settle);
            self.history.live.as_ref().unwrap().db.checkpoint().unwrap();
        }
        assert_eq!(self.dirty(), 0, "pages that can be written are dirty");
        assert!(
            files::low_water_mark(&self.history.disk) > first,
            "the low-water mark stays below what is written, or dropped"
        );
        self.history.end();
        judged
    }
}

/// One file takes no writes and has more dirty pages than a batch of page writing holds. All other files are written,
/// and after any crash no committed change is lost.
#[test]
fn a_file_that_fails_has_more_dirty_pages_than_a_batch() {
    const FAULTS: [&[Fault]; 3] =
        [&[Fault::WriteFails], &[Fault::TornPage], &[Fault::WriteFails, Fault::ReadFails]];
    let (guard, again) = (Guard::new(), "cargo test -p windfall --test faults -- --exact");
    let name = "a_file_that_fails_has_more_dirty_pages_than_a_batch";
    for (n, faults) in FAULTS.into_iter().enumerate() {
        for (mode, seed) in [(FlushLog::Sync, n as u64), (FlushLog::Lazy, n as u64 + 4)] {
            let case = Case { seed, mode, fault: faults[0], n: u64::MAX, lasting: false };
            let (crashes, opened) = guard.run(&format!("{again} {name} # {faults:?}, {case}"), || {
                let mut bad = BadFile::begin(case, faults);
                bad.let_it_fail();
                bad.continue_working();
                bad.end()
            });
            println!("{faults:?}, {mode:?}: {crashes} crashes, {opened} times opened while the file fails");
            if !faults.contains(&Fault::ReadFails) {
                assert_eq!(opened, crashes, "a file that takes no writes keeps the database closed");
            }
        }
    }
}

/// Runs the case in the variable `WINDFALL_FAULT`, as a failure prints it.
#[test]
#[ignore = "needs a case"]
fn one_case_again() {
    let case: Case = var(VARIABLE).expect("a case in WINDFALL_FAULT").parse().unwrap();
    let came = Guard::new().run(&case.command(), || run(case));
    println!("nothing is wrong with {case}{}", if came { "" } else { ", which has fewer operations" });
}

/// Runs new cases until the time is over.
#[test]
#[ignore = "runs for a given time"]
fn soak() {
    soak::soak("faults", |seed, end| {
        let luck = |n| mix(&[seed, n]);
        let case = Case {
            seed,
            mode: MODES[luck(1) as usize % MODES.len()],
            fault: FAULTS[luck(2) as usize % FAULTS.len()],
            n: 1 + luck(3) % 5,
            lasting: luck(4).is_multiple_of(2),
        };
        enumerate(case, 1 + luck(5) % 5, Some(end))
    });
}

#[test]
fn a_case_is_read_as_it_is_written() {
    for (fault, mode) in FAULTS.into_iter().flat_map(|fault| MODES.map(|mode| (fault, mode))) {
        let case = Case { seed: 7, mode, fault, n: 99, lasting: mode == FlushLog::Sync };
        assert_eq!(read_back(&case.command()).parse(), Ok(case));
    }
    for wrong in ["7 Sync Full 3", "7 Never Full 3 once", "7 Sync Rust 3 once", "7 Sync Full 3 twice"] {
        assert!(wrong.parse::<Case>().is_err(), "{wrong}");
    }
}
