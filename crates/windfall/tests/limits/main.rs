//! Limits of the process and of the machine. If a resource is exhausted, the call that needs it returns an error, or
//! there is no error at all, and nothing is lost. Long-running work uses no more than its share.
//!
//! Each case runs in a process of its own, which sets its own limits and can be measured. `WINDFALL_LIMITS=long` runs
//! it in full, `WINDFALL_LIMITS_SEED` sets its seed.

#![allow(clippy::unwrap_used, reason = "a test panics")]

#[path = "../changed_env/mod.rs"]
mod changed_env;
mod clocks;
mod files;
mod full;
#[path = "../guard/mod.rs"]
mod guard;
mod keys;
mod long;
mod maps;
mod memory;
mod pool;
#[path = "../soak/mod.rs"]
mod soak;
#[path = "../time_limit/mod.rs"]
mod time_limit;

use std::{
    env::{current_exe, var, var_os},
    io::{self, Write},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use guard::{Guard, mix};
use rustix::process::{Resource, Rlimit, Signal, getpid, getrlimit, kill_process, setrlimit};
use windfall::{Database, FlushLog, Options};

const CASE: &str = "WINDFALL_LIMITS_CASE";
const FOLDER: &str = "WINDFALL_LIMITS_FOLDER";
const STAGE: &str = "WINDFALL_LIMITS_STAGE";
/// The line that a stage prints at its end.
const DONE: &str = "the stage is done";
const SCALE: &str = "WINDFALL_LIMITS";
const SEED: &str = "WINDFALL_LIMITS_SEED";
/// Names a file with the number of cases that soaks have begun: the next soak continues from there.
const TURNS: &str = "WINDFALL_LIMITS_TURNS";

/// The prefix of a line that reports an incomplete run.
const LESS: &str = "SKIPPED: ";
/// The number of these lines from the cases of this process.
static LESS_RUN: AtomicU64 = AtomicU64::new(0);

/// The cases that test more in a full run, or with another seed.
const CASES: [&str; 14] = [
    files::MANY_FILES,
    files::MANY_TABLES,
    memory::BOUNDED,
    memory::MANY_CALLS,
    pool::SMALL_POOL,
    keys::ORDERS,
    keys::LONG_KEYS,
    long::STREAMED,
    long::KILLED,
    maps::SEVERAL,
    clocks::SIMULATED,
    clocks::THREADS,
    full::FILE_SIZE,
    full::FILE_SYSTEM,
];

/// The time limit of a part in a full run, which may be on a slow disk.
const LIMIT_IN_FULL: Duration = Duration::from_mins(30);

/// Returns whether cases run in full.
fn in_full() -> bool {
    var(SCALE).is_ok_and(|scale| scale == "long")
}

/// Returns the size of a case: the usual one, or the full one.
fn sized<T>(usual: T, full: T) -> T {
    if in_full() { full } else { usual }
}

/// Returns the seed of a case.
fn seed() -> u64 {
    var(SEED).map_or(1, |seed| seed.parse().unwrap())
}

fn again(test: &str) -> String {
    command(test, in_full(), seed())
}

fn command(test: &str, in_full: bool, seed: u64) -> String {
    let scale = if in_full { format!("{SCALE}=long ") } else { String::new() };
    format!("{scale}{SEED}={seed} cargo test -p windfall --test limits -- --exact --nocapture {test}")
}

/// A stage of a test, inside its process.
struct Case {
    test: &'static str,
    folder: PathBuf,
    guard: Guard,
}

impl Case {
    /// Runs a part of the case under the guard, and prints its duration.
    fn part<T>(&self, what: &str, run: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let done = self.guard.run(&again(self.test), run);
        println!("    {what}: {:.1} s", start.elapsed().as_secs_f64());
        done
    }
}

/// Reports that a stage has reached its end, and kills the process.
fn die() -> ! {
    println!("{DONE}");
    kill_process(getpid(), Signal::KILL).unwrap();
    unreachable!("it is dead")
}

/// Returns whether this process is one that a test runs for itself.
fn is_a_stage() -> bool {
    var(CASE).is_ok()
}

/// Runs a test of this file again in other processes, one after the other, each for one stage on the same folder.
fn in_processes_of_its_own(test: &'static str, stages: &[&dyn Fn(&Case)]) {
    in_processes_on(&std::env::temp_dir(), test, stages);
}

/// As [`in_processes_of_its_own`], with the folder of the case below `above`.
fn in_processes_on(above: &Path, test: &'static str, stages: &[&dyn Fn(&Case)]) {
    if var(CASE).is_ok_and(|case| case == test) {
        let stage: usize = var(STAGE).unwrap().parse().unwrap();
        let guard = if in_full() { Guard::with_limit(LIMIT_IN_FULL) } else { Guard::new() };
        stages[stage](&Case { test, folder: var_os(FOLDER).unwrap().into(), guard });
        println!("{DONE}");
        return;
    }
    let folder = tempfile::tempdir_in(above).unwrap();
    for stage in 0..stages.len() {
        let mut command = Command::new(current_exe().unwrap());
        command.args([test, "--exact", "--nocapture"]);
        command.env(CASE, test).env(STAGE, stage.to_string()).env(FOLDER, folder.path());
        check(test, &command.output().unwrap(), DONE, &again(test));
    }
}

fn in_a_process_of_its_own(test: &'static str, run: impl Fn(&Case)) {
    in_processes_of_its_own(test, &[&run]);
}

/// Checks the result of a process. It must have reported that it is done, and may have killed itself afterwards. Prints
/// its report.
fn check(test: &str, run: &Output, done: &str, again: &str) {
    let said = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
    let killed = run.status.signal() == Some(Signal::KILL.as_raw());
    let good = said.contains(done) && (run.status.success() || killed);
    assert!(good, "{test}: {:?}\n{said}\nagain: {again}", run.status);
    let is_report = |line: &&str| line.starts_with("    ") || line.starts_with(LESS);
    said.lines().filter(is_report).for_each(|line| println!("{line}"));
    LESS_RUN.fetch_add(said.lines().filter(|line| line.starts_with(LESS)).count() as u64, SeqCst);
}

/// Reports that this machine allows only a part of the test.
fn tell_less(what: &str) {
    // On stderr, because the output of passing tests is captured.
    let _ = writeln!(io::stderr(), "{LESS}{what}");
}

fn limit(resource: Resource, most: u64) {
    let maximum = getrlimit(resource).maximum;
    setrlimit(resource, Rlimit { current: Some(most), maximum }).unwrap();
}

/// Returns options with small sizes, and with commits that wait for nothing.
fn small() -> Options {
    Options::default()
        .buffer_pool_size(8 << 20)
        .log_size(8 << 20)
        .log_buffer_size(1 << 20)
        .flush_log_at_trx_commit(FlushLog::Lazy)
}

/// Returns a figure of the system for this process, in bytes: `VmRSS` is its current memory, `VmHWM` its peak.
fn memory(what: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap();
    let number: String = line.chars().filter(char::is_ascii_digit).collect();
    number.parse::<u64>().unwrap() << 10
}

fn assert_sound(db: &Database, what: &str) {
    assert_eq!(
        db.check().unwrap_or_else(|error| panic!("{what}: {error}")).findings,
        Vec::<String>::new(),
        "{what}"
    );
}

/// Runs the cases in full, with new seeds, until the time is over. Each case runs once before any runs again, over all
/// calls of a soak.
#[test]
#[ignore = "runs for a given time"]
fn soak() {
    let turns = var_os(TURNS).map(PathBuf::from);
    let begun = turns.as_ref().and_then(|file| std::fs::read_to_string(file).ok()?.trim().parse().ok());
    let begun = Mutex::new(begun.unwrap_or(0));
    soak::soak("cases", |number, _end| {
        let test = {
            let mut begun = begun.lock().unwrap();
            *begun += 1;
            if let Some(file) = &turns {
                std::fs::write(file, begun.to_string()).unwrap();
            }
            CASES[(*begun - 1) % CASES.len()]
        };
        let seed = mix(&[number]);
        let again = command(test, true, seed);
        println!("{again}");
        let mut command = Command::new(current_exe().unwrap());
        command.args([test, "--exact", "--nocapture"]);
        command.env(SCALE, "long").env(SEED, seed.to_string());
        check(test, &command.output().unwrap(), "1 passed", &again);
        1
    });
    println!("{} cases had less to run than there is", LESS_RUN.load(SeqCst));
}
