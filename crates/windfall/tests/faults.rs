//! Fault enumeration of the whole engine: the scripted histories of the crash tests, with every single operation of
//! the disk failing once, or from then on. The history goes on; then the database is opened again, from what readers
//! see and from what a loss of power leaves. A model decides what must be there, and what was acknowledged.
//!
//! What is wrong is told with a command that runs the one case again (`one_case_again`).

#![allow(clippy::unwrap_used, reason = "a test panics")]

mod guard;
mod history;
mod soak;

use std::{env::var, fmt, str::FromStr, time::Instant};

use guard::{Guard, mix, read_back};
use history::{Live, Model, Step, files, observe, open, script, verify};
use windfall::{
    Error, FlushLog,
    disk::{
        FileName,
        simulated::{Fault, SimulatedDisk, Survive},
    },
    error::{DiskError, LockError, TransactionError},
};

const VARIABLE: &str = "WINDFALL_FAULT";
/// The length of a history.
const STEPS: usize = 70;
/// After so many steps the database is closed and opened again, so that faults meet recovery, too.
const REOPEN: usize = 23;

const FAULTS: [Fault; 6] =
    [Fault::WriteFails, Fault::ReadFails, Fault::SyncFails, Fault::SyncFull, Fault::Full, Fault::TornPage];
const MODES: [FlushLog; 3] = [FlushLog::Sync, FlushLog::Write, FlushLog::Lazy];

/// What fails, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    seed: u64,
    mode: FlushLog,
    fault: Fault,
    /// The n-th operation that the fault fits.
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
    /// What is there, as long as nothing is in doubt.
    model: Model,
    /// What may be there after a loss of power: what was acknowledged as durable, then what each step since has made of
    /// it.
    may: Vec<Model>,
    /// Whether the database was told to have stopped.
    stopped: bool,
}

/// Whether an operation may fail so: with what the disk said, because the database has stopped, or because something is
/// taken back in the background for as long as the disk says so.
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
        let mut history = Self {
            case,
            disk,
            live: None,
            model: Model::default(),
            may: vec![Model::default()],
            stopped: false,
        };
        history.open();
        history
    }

    /// Opens the database, again if it is the fault that keeps it closed. It stays closed while that lasts.
    fn open(&mut self) {
        for _ in 0..2 {
            if self.names_in_doubt() {
                return;
            }
            let failures = self.disk.failures();
            match open(&self.disk, self.case.seed) {
                Ok(live) => {
                    live.db.set_flush_log_at_trx_commit(self.case.mode);
                    let made = self.case.fails_syncs() && self.disk.failures() > failures;
                    assert!(!made, "opened although a sync had failed");
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

    /// After an opening: what was in doubt is so no more.
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
                    // What could not be written the log has.
                    self.may = vec![self.model.clone()];
                }
            }
        }
    }

    /// Whether nobody knows which names are durable. That is no business of the database: the file system has to be
    /// checked and mounted again, which is the loss of power here.
    fn names_in_doubt(&self) -> bool {
        matches!(self.disk.failed(), Some(("sync the folder of", _)))
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
            // A segment of the log that is being prepared is thrown away, be it out of one that is needed no more; all
            // else stops the database.
            let floor = files::segments_in_use(&self.disk, 0).start;
            let is_needed =
                |number: u64| number >= floor && in_use.as_ref().is_some_and(|some| number < some.end);
            let is_new =
                matches!(self.disk.failed(), Some(("sync", FileName::Log(number))) if !is_needed(number));
            let stops = matches!(next, Err(Error::Poisoned(_)));
            assert!(stops || is_new, "{step:?}: after a failed sync of {:?}: {next:?}", self.disk.failed());
            stops
        };
        match (self.model.after(step), done) {
            (None, Ok(())) => panic!("{step:?} should have been refused"),
            (None, Err(error)) => assert!(
                matches!(error, Error::Schema(_)) || is_told(&error) && self.disk.failures() > 0,
                "{step:?}: {error:?}"
            ),
            // No acknowledgement.
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
                    // It may have come as far as the log, the first that is told so.
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

    /// What has failed without stopping the database has changed nothing.
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
            self.disk.mend();
            let seen = observe(db).unwrap();
            assert!(seen == self.model, "at the end {seen:?}\nis not {:?}", self.model);
            assert_eq!(db.check().unwrap().findings, Vec::<String>::new(), "at the end");
            if n.is_multiple_of(2) {
                power_lost = (self.disk.survivor(survive), vec![self.model.clone()]);
            }
        }
        self.may.push(self.model.clone());
        let next = self.disk.next_process();
        // The disk is the next process's by now.
        self.live = None;
        verify(&power_lost.0, seed, &power_lost.1, "after a loss of power");
        // Some of these lose the power later on.
        if self.names_in_doubt() {
            return;
        }
        // What the next process reads, it says: so that has to be there after the power is lost behind it, too.
        let Live { db, env, .. } =
            open(&next, seed).unwrap_or_else(|error| panic!("in the next process: {error}"));
        let seen = observe(&db).unwrap_or_else(|error| panic!("in the next process: {error}"));
        assert!(self.may.contains(&seen), "in the next process {seen:?}\nis none of {:?}", self.may);
        if n.is_multiple_of(2) {
            db.checkpoint().unwrap();
            env.settle(50);
        }
        verify(
            &next.restart(Survive::Nothing),
            seed,
            &[seen],
            "in the next process, and then the power is lost",
        );
    }
}

/// Runs a history. Says whether its fault has come.
fn run(case: Case) -> bool {
    let mut history = History::new(case);
    // A fault may be the last thing that happens, or come amid it all.
    let after = [1, 7, usize::MAX][(case.n / 3) as usize % 3];
    let mut left = after;
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

/// Lets the operations fail that the fault of this case fits, from its own on every so manieth. Gives the number of
/// cases.
fn enumerate(first: Case, every: u64, until: Option<Instant>) -> u64 {
    let guard = Guard::new();
    let cases = (first.n..).step_by(every as usize).map(|n| Case { n, ..first });
    let comes = |case: &Case| guard.run(&case.command(), || run(*case));
    cases.take_while(|_| until.is_none_or(|end| Instant::now() < end)).take_while(comes).count() as u64
}

/// Histories with every way to commit.
const HISTORIES: [(u64, FlushLog); 5] = [
    (1, FlushLog::Sync),
    (2, FlushLog::Sync),
    (3, FlushLog::Lazy),
    (4, FlushLog::Write),
    (8, FlushLog::Write),
];
/// More of them, for what few operations are struck by.
const MORE_HISTORIES: [(u64, FlushLog); 2] = [(9, FlushLog::Sync), (10, FlushLog::Lazy)];

/// Both ways to fail, in each of these histories.
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

/// There is no room for a while, wherever that begins. Nothing stops, and work goes on when there is room again.
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

/// The case in the variable `WINDFALL_FAULT`, as a failure tells it.
#[test]
#[ignore = "needs a case"]
fn one_case_again() {
    let case: Case = var(VARIABLE).expect("a case in WINDFALL_FAULT").parse().unwrap();
    let came = Guard::new().run(&case.command(), || run(case));
    println!("nothing is wrong with {case}{}", if came { "" } else { ", which has fewer operations" });
}

/// Ever new faults.
#[test]
#[ignore = "takes as long as it is told to"]
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
