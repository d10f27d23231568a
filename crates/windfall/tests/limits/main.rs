//! Limits of the process and of the machine: what runs out is an error of who asks for it, or no error at all, and
//! nothing is lost; what goes on for long takes no more than its share.
//!
//! Each case runs in a process of its own, which sets its limits for itself and can be measured. `WINDFALL_LIMITS=long`
//! runs it in full, `WINDFALL_LIMITS_SEED` draws it again.

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
#[path = "../patience/mod.rs"]
mod patience;
mod pool;
#[path = "../soak/mod.rs"]
mod soak;

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
/// What a stage says when it has come to its end.
const DONE: &str = "the stage is done";
const SCALE: &str = "WINDFALL_LIMITS";
const SEED: &str = "WINDFALL_LIMITS_SEED";
/// Names a file that says how many cases a soak has begun: the next call of it goes on there.
const TURNS: &str = "WINDFALL_LIMITS_TURNS";

/// What begins a line that says that not all was run.
const LESS: &str = "SKIPPED: ";
/// How often that was said by the cases of this process.
static LESS_RUN: AtomicU64 = AtomicU64::new(0);

/// The cases that have more to show in full, or with another seed.
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

/// A part of a case in full may have a slow disk.
const LIMIT_IN_FULL: Duration = Duration::from_mins(30);

/// Whether a case is run in full.
fn in_full() -> bool {
    var(SCALE).is_ok_and(|scale| scale == "long")
}

/// The size of a case: the usual one, or that in full.
fn sized<T>(usual: T, full: T) -> T {
    if in_full() { full } else { usual }
}

/// What draws a case.
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

/// A stage of a test, as the process that is for it sees it.
struct Case {
    test: &'static str,
    folder: PathBuf,
    guard: Guard,
}

impl Case {
    /// Does a part of the case, which does not take long, and says how long.
    fn part<T>(&self, what: &str, run: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let done = self.guard.run(&again(self.test), run);
        println!("    {what}: {:.1} s", start.elapsed().as_secs_f64());
        done
    }
}

/// Says that a stage has come to its end, and kills the process.
fn die() -> ! {
    println!("{DONE}");
    kill_process(getpid(), Signal::KILL).unwrap();
    unreachable!("it is dead")
}

/// Whether this process is one of those that a test runs for itself.
fn is_a_stage() -> bool {
    var(CASE).is_ok()
}

/// Runs a test of this file again in other processes, one after the other, each for one stage on the same folder.
fn in_processes_of_its_own(test: &'static str, stages: &[&dyn Fn(&Case)]) {
    in_processes_on(&std::env::temp_dir(), test, stages);
}

/// As [`in_processes_of_its_own`], with the folder of the case in this one.
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

/// A process that has said that it is done is a good one, also if it has ended by its own hand then. What it tells is
/// told.
fn check(test: &str, run: &Output, done: &str, again: &str) {
    let said = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
    let killed = run.status.signal() == Some(Signal::KILL.as_raw());
    let good = said.contains(done) && (run.status.success() || killed);
    assert!(good, "{test}: {:?}\n{said}\nagain: {again}", run.status);
    let is_told = |line: &&str| line.starts_with("    ") || line.starts_with(LESS);
    said.lines().filter(is_told).for_each(|line| println!("{line}"));
    LESS_RUN.fetch_add(said.lines().filter(|line| line.starts_with(LESS)).count() as u64, SeqCst);
}

/// Says that the machine lets less be run than there is to run.
fn tell_less(what: &str) {
    // Past the capture of tests that pass.
    let _ = writeln!(io::stderr(), "{LESS}{what}");
}

fn limit(resource: Resource, most: u64) {
    let maximum = getrlimit(resource).maximum;
    setrlimit(resource, Rlimit { current: Some(most), maximum }).unwrap();
}

/// Small sizes, and commits that nobody waits for.
fn small() -> Options {
    Options::default()
        .buffer_pool_size(8 << 20)
        .log_size(8 << 20)
        .log_buffer_size(1 << 20)
        .flush_log_at_trx_commit(FlushLog::Lazy)
}

/// What the system says of this process, in bytes: `VmRSS` is the memory that it has, `VmHWM` the most that it had.
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

/// The cases in full, ever drawn anew: all of them before any comes again, over all calls of a soak.
#[test]
#[ignore = "takes as long as it is told to"]
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
