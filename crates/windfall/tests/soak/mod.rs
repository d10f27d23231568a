//! Runs a test suite for a given time.

#![allow(clippy::unwrap_used, reason = "a test panics")]

use core::time::Duration;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    thread,
    time::Instant,
};

/// Runs a test suite on all processors for `WINDFALL_SOAK_SECONDS`, with one seed after the other from
/// `WINDFALL_SOAK_SEED` on. The suite gets a seed and its end time, and returns the number of cases that it has run.
pub(crate) fn soak(what: &str, net: impl Fn(u64, Instant) -> u64 + Sync) {
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
    let report = || {
        let (seeds, cases) = (next.load(SeqCst) - seed, cases.load(SeqCst));
        println!("{:4} s: {cases} {what} in {seeds} histories", start.elapsed().as_secs());
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut last_report = Instant::now();
        while !workers.iter().all(thread::ScopedJoinHandle::is_finished) {
            thread::sleep(Duration::from_millis(100));
            if last_report.elapsed() > Duration::from_secs(5) {
                last_report = Instant::now();
                report();
            }
        }
    });
    report();
    assert!(!failed.load(SeqCst), "see above for the command that runs the case again");
}
