//! Fault enumeration of the whole engine: the scripted histories of the crash tests, with every single operation of
//! the disk failing once, or from then on. The history goes on; then the database is opened again, from what readers
//! see and from what a loss of power leaves. A model decides what must be there, and what was acknowledged.

#![allow(clippy::unwrap_used, reason = "a test panics")]

mod history;

use std::{panic, sync::mpsc, thread, time::Duration};

use history::{Live, Model, Step, observe, open, script, verify};
use windfall::{
    Error, FlushLog,
    disk::{
        FileName,
        simulated::{Fault, SimulatedDisk, Survive},
    },
    error::DiskError,
};

/// A history takes well below a second.
const LIMIT: Duration = Duration::from_mins(1);
/// The length of a history.
const STEPS: usize = 70;
/// After so many steps the database is closed and opened again, so that faults meet recovery, too.
const REOPEN: usize = 23;

/// What fails, and when.
#[derive(Clone, Copy, Debug)]
struct Case {
    seed: u64,
    mode: FlushLog,
    fault: Fault,
    /// The n-th operation that the fault fits.
    n: u64,
    lasting: bool,
}

/// A history with a fault.
struct History {
    case: Case,
    disk: SimulatedDisk,
    live: Option<Live>,
    /// What is there, as long as nothing is in doubt.
    model: Model,
    /// What may be there after a loss of power: what was acknowledged as durable, then what each step since has made of it.
    may: Vec<Model>,
    /// Whether the database was told to have stopped.
    stopped: bool,
}

/// Whether an operation may fail so: with what the disk said, or because the database has stopped.
fn is_told(error: &Error) -> bool {
    matches!(error, Error::Poisoned(_) | Error::Disk(DiskError::Io { .. } | DiskError::Full { .. }))
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
                    let made = self.case.fault == Fault::SyncFails && self.disk.failures() > failures;
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

    /// Whether nobody knows which names are durable. That is no business of the database: the file system has to be checked
    /// and mounted again, which is the loss of power here.
    fn names_in_doubt(&self) -> bool {
        matches!(self.disk.failed(), Some(("sync the folder of", _)))
    }

    fn step(&mut self, step: &Step) {
        let Some(live) = &mut self.live else { return };
        let failures = self.disk.failures();
        let done = live.apply(step);
        let sync_failed = self.case.fault == Fault::SyncFails && self.disk.failures() > failures;
        let stops = sync_failed && {
            let next = live.db.checkpoint();
            // A segment of the log that is being prepared is thrown away; all else stops the database.
            let is_segment = matches!(self.disk.failed(), Some(("sync", FileName::Log(_))));
            let stops = matches!(next, Err(Error::Poisoned(_)));
            assert!(stops || is_segment, "{step:?}: after a failed sync: {next:?}");
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
fn run(case: Case, script: &[Step]) -> bool {
    let mut history = History::new(case);
    // A fault may be the last thing that happens, or come amid it all.
    let after = [1, 7, usize::MAX][(case.n / 3) as usize % 3];
    let mut left = after;
    for (n, step) in script.iter().enumerate() {
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

/// Runs a case with a limit of time. Says whether its fault has come, or what is wrong.
fn guarded(case: Case, script: &[Step]) -> Result<bool, String> {
    thread::scope(|scope| {
        let (done, outcome) = mpsc::channel();
        scope.spawn(move || {
            let result = panic::catch_unwind(panic::AssertUnwindSafe(|| run(case, script)));
            let _ = done.send(result);
        });
        match outcome.recv_timeout(LIMIT) {
            Ok(Ok(came)) => Ok(came),
            Ok(Err(panic)) => Err(match panic.downcast::<String>() {
                Ok(what) => *what,
                Err(panic) => panic.downcast_ref::<&str>().copied().unwrap_or_default().to_owned(),
            }),
            Err(_) => {
                eprintln!("{case:?} does not come to its end");
                // A thread that never ends cannot be waited for.
                std::process::exit(101)
            }
        }
    })
}

/// Lets every operation fail that the fault fits. Gives the number of cases.
fn enumerate(seed: u64, mode: FlushLog, fault: Fault, lasting: bool) -> u64 {
    let script = script(seed, STEPS);
    let mut wrong = Vec::new();
    let mut n = 0;
    loop {
        n += 1;
        let case = Case { seed, mode, fault, n, lasting };
        match guarded(case, &script) {
            Ok(true) => {}
            Ok(false) => break,
            Err(what) => wrong.push(format!("{case:?}: {what}")),
        }
        assert!(wrong.len() < 10, "{n} cases, wrong are\n{}", wrong.join("\n"));
    }
    assert!(wrong.is_empty(), "of {n} cases wrong are\n{}", wrong.join("\n"));
    n - 1
}

/// Both ways to fail, with every way to commit.
fn all(fault: Fault) -> u64 {
    let mut cases = 0;
    for (seed, mode) in [(1, FlushLog::Sync), (2, FlushLog::Sync), (3, FlushLog::Lazy), (4, FlushLog::Write)]
    {
        for lasting in [false, true] {
            cases += enumerate(seed, mode, fault, lasting);
        }
    }
    println!("{fault:?}: {cases} cases");
    cases
}

#[test]
fn every_write_fails() {
    assert!(all(Fault::WriteFails) > 400, "too few to mean anything");
}

#[test]
fn every_read_fails() {
    assert!(all(Fault::ReadFails) > 400, "too few to mean anything");
}

#[test]
fn every_sync_fails() {
    assert!(all(Fault::SyncFails) > 400, "too few to mean anything");
}

#[test]
fn the_disk_is_full_at_every_write() {
    assert!(all(Fault::Full) > 400, "too few to mean anything");
}

#[test]
fn every_page_is_torn_by_a_write_that_fails() {
    assert!(all(Fault::TornPage) > 400, "too few to mean anything");
}

/// There is no room for a while, wherever that begins. Nothing stops, and work goes on when there is room again.
#[test]
fn the_disk_is_full_for_a_while() {
    let mut refused = 0;
    for (seed, mode) in [(5, FlushLog::Sync), (6, FlushLog::Lazy)] {
        let script = script(seed, 120);
        for from in 0..script.len() {
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
            refused += history.disk.failures();
            history.disk.set_capacity(None);
            history.end();
        }
    }
    assert!(refused > 400, "{refused} failures are too few to mean anything");
}
