//! What runs a case of a net: a failure is told with the command that runs the case again, and no case hangs.

#![allow(clippy::unwrap_used, reason = "a test panics")]

use core::time::Duration;
use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Instant,
};

/// A case takes well below a second.
const LIMIT: Duration = Duration::from_mins(2);
/// What stands before the command in the text of a failure.
pub const AGAIN: &str = "\nagain: ";

/// Tells what is wrong with a case so that it can be run again, and lets none hang.
#[derive(Clone)]
pub struct Guard {
    watched: Arc<Mutex<Option<(Instant, String)>>>,
    /// The watch ends with the last of them.
    _watch: mpsc::Sender<()>,
}

impl Guard {
    pub fn new() -> Self {
        let watched = Arc::new(Mutex::new(None::<(Instant, String)>));
        let (watch, end) = mpsc::channel::<()>();
        let watching = watched.clone();
        thread::spawn(move || {
            while end.recv_timeout(Duration::from_secs(1)) == Err(mpsc::RecvTimeoutError::Timeout) {
                if let Some((since, command)) = &*watching.lock().unwrap()
                    && since.elapsed() > LIMIT
                {
                    eprintln!("it does not come to its end{AGAIN}{command}");
                    // A thread that never ends cannot be waited for.
                    std::process::exit(101);
                }
            }
        });
        Self { watched, _watch: watch }
    }

    /// Runs something of a case. A panic is told with the command that runs the case again.
    pub fn run<T>(&self, command: &str, run: impl FnOnce() -> T) -> T {
        let before = self.watched.lock().unwrap().replace((Instant::now(), command.to_owned()));
        let result = catch_unwind(AssertUnwindSafe(run));
        *self.watched.lock().unwrap() = before.map(|(_, command)| (Instant::now(), command));
        result.unwrap_or_else(|panic| {
            let what = panic.downcast_ref::<String>().map(String::as_str);
            let what = what.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
            if what.contains(AGAIN) {
                // Told already, by who knew more of it.
                resume_unwind(panic);
            }
            panic!("{what}{AGAIN}{command}\n")
        })
    }
}

/// Runs a net with ever new seeds on all processors, for `WINDFALL_SOAK_SECONDS`, from `WINDFALL_SOAK_SEED` on. A net is
/// given a seed and the time at which it ends, and says how many cases it has run.
pub fn soak(what: &str, net: impl Fn(u64, Instant) -> u64 + Sync) {
    let number = |name: &str, default: u64| {
        std::env::var(name)
            .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
    };
    let (seconds, seed) = (number("WINDFALL_SOAK_SECONDS", 20), number("WINDFALL_SOAK_SEED", 1_000_000));
    let start = Instant::now();
    let end = start + Duration::from_secs(seconds);
    let (next, cases, failed) = (AtomicU64::new(seed), AtomicU64::new(0), AtomicBool::new(false));
    let work = || {
        while Instant::now() < end && !failed.load(SeqCst) {
            let seed = next.fetch_add(1, SeqCst);
            match catch_unwind(AssertUnwindSafe(|| net(seed, end))) {
                Ok(count) => drop(cases.fetch_add(count, SeqCst)),
                Err(_) => failed.store(true, SeqCst),
            }
        }
    };
    let tell = || {
        let (seeds, cases) = (next.load(SeqCst) - seed, cases.load(SeqCst));
        println!("{:4} s: {cases} {what} in {seeds} histories", start.elapsed().as_secs());
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut told = Instant::now();
        while !workers.iter().all(thread::ScopedJoinHandle::is_finished) {
            thread::sleep(Duration::from_millis(100));
            if told.elapsed() > Duration::from_secs(5) {
                told = Instant::now();
                tell();
            }
        }
    });
    tell();
    assert!(!failed.load(SeqCst), "see above for the command that runs the case again");
}
