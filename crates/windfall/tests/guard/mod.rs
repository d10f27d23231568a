//! The guard of a test case: a failure is reported with the command that runs the case again, and no case hangs. A lock
//! that is held for ten minutes is reported with its holder.

#![allow(clippy::unwrap_used, reason = "a test panics")]
#![allow(dead_code, reason = "a file of tests needs a part of it")]

use core::time::Duration;
use std::{
    io::{self, Write as _},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    process,
    sync::{Arc, Mutex, Weak, mpsc},
    thread,
    time::Instant,
};

use windfall::env::Env;
use windfall_base::sync::Watchdog;
use windfall_sim::SimulatedEnv;

/// A case normally takes well below a second. A busy machine may give a process next to no time for minutes.
const LIMIT: Duration = Duration::from_mins(10);
/// No thread holds a lock, a latch or a gate as long as this.
const HELD_MOST: Duration = Duration::from_mins(10);
/// The command that runs under a guard, and its start time.
type RunningCase = Mutex<Option<(Instant, String)>>;
/// The entries of all guards: a lock that a thread holds may belong to any case in progress.
static ALL: Mutex<Vec<Weak<RunningCase>>> = Mutex::new(Vec::new());
/// The text before the command in the message of a failure.
pub(crate) const AGAIN: &str = "\nagain: ";

/// Reports a failed case so that it can be run again, and lets none hang.
#[derive(Clone)]
pub(crate) struct Guard {
    watched: Arc<RunningCase>,
    /// The watch ends when the last clone is dropped.
    _watch: mpsc::Sender<()>,
}

impl Guard {
    pub(crate) fn new() -> Self {
        Self::with_limit(LIMIT)
    }

    /// Creates a guard for cases that take longer.
    pub(crate) fn with_limit(limit: Duration) -> Self {
        let watched = Arc::new(Mutex::new(None));
        let (watch, end) = mpsc::channel::<()>();
        let watching = watched.clone();
        {
            let mut all = ALL.lock().unwrap();
            all.retain(|case| case.strong_count() > 0);
            all.push(Arc::downgrade(&watched));
        }
        thread::spawn(move || {
            let mut watchdog = Watchdog::default();
            while end.recv_timeout(Duration::from_secs(1)) == Err(mpsc::RecvTimeoutError::Timeout) {
                let held = watchdog.poll(HELD_MOST);
                let Some((since, command)) = watching.lock().unwrap().clone() else { continue };
                // The process ends, because a thread that never ends cannot be joined.
                if !held.is_empty() {
                    let held = held.join("; ");
                    end_process(&format!("{held}, in one of the running cases:{}", all_under_way()));
                }
                if since.elapsed() > limit {
                    end_process(&format!("it does not end{AGAIN}{command}"));
                }
            }
        });
        Self { watched, _watch: watch }
    }

    /// Runs a part of a case. A panic is reported with the command that runs the case again.
    pub(crate) fn run<T>(&self, command: &str, run: impl FnOnce() -> T) -> T {
        let before = self.watched.lock().unwrap().replace((Instant::now(), command.to_owned()));
        let result = catch_unwind(AssertUnwindSafe(run));
        *self.watched.lock().unwrap() = before.map(|(_, command)| (Instant::now(), command));
        result.unwrap_or_else(|panic| {
            let what = panic.downcast_ref::<String>().map(String::as_str);
            let what = what.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
            if what.contains(AGAIN) {
                // A nested guard, with a more specific command, has already reported it.
                resume_unwind(panic);
            }
            panic!("{what}{AGAIN}{command}\n")
        })
    }
}

/// Ends the process with a message. `eprintln` would buffer it until the end of the test, which is never reached.
fn end_process(why: &str) -> ! {
    let _ = writeln!(io::stderr(), "{why}");
    process::exit(101);
}

/// Returns the commands of all cases in progress.
fn all_under_way() -> String {
    let guards: Vec<Arc<RunningCase>> = ALL.lock().unwrap().iter().filter_map(Weak::upgrade).collect();
    let commands = guards.iter().filter_map(|case| Some(case.lock().unwrap().as_ref()?.1.clone()));
    commands.fold(String::new(), |all, command| all + AGAIN + &command)
}

/// Returns the case between the quotes of a command, as a failure prints it.
pub(crate) fn read_back(command: &str) -> String {
    let payload = catch_unwind(|| Guard::new().run(command, || panic!("on purpose"))).expect_err("it panics");
    let (_, command) =
        payload.downcast_ref::<String>().expect("a text").split_once(AGAIN).expect("a command");
    command.split('\'').nth(1).expect("a case").to_owned()
}

/// The guard of a test that makes all its cases itself: as long as this lives, a failure is reported with the command
/// that runs it again, and a hang is ended.
pub(crate) struct Whole {
    command: String,
    _guard: Guard,
}

pub(crate) fn whole(file: &str, test: &str) -> Whole {
    let command = format!("cargo test -p windfall --test {file} -- --exact --nocapture {test}");
    let guard = Guard::new();
    *guard.watched.lock().unwrap() = Some((Instant::now(), command.clone()));
    Whole { command, _guard: guard }
}

impl Drop for Whole {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}{}", AGAIN.trim_start(), self.command);
        }
    }
}

/// Returns a pseudo-random number that follows from others.
pub(crate) fn mix(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |sum, part| SimulatedEnv::new(sum ^ part).random())
}
