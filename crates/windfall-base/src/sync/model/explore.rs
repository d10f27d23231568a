//! Runs a scenario in many orders of its threads.
//!
//! **Purpose.** Runs the same orders each time, as many as requested, or a single one to replay a failure. In a source
//! with planted bugs it then verifies that the scenario can fail: with each of its bugs it must fail.
//!
//! **Invariants.** A scenario is the same in each run except for the order of its threads: it uses no random numbers of
//! its own, and reads no clock, which is verified by repeating the first runs (test:
//! `a_scenario_that_is_not_repeatable_is_refused`). A bug that the scenario names and does not find fails the test, and
//! so does a failure that its schedule does not replay (checked by `sync/model/explore.rs::check_bug_is_found`).
//!
//! **Method.** Each bug is planted in a process of its own, because a run that fails leaves threads and epoch pins that
//! are never ended.

use core::any::type_name;
use std::{
    env, fs,
    io::Write,
    process::{Command, Output},
};

use shuttle::{
    Config, Runner,
    scheduler::{
        PctScheduler, RandomScheduler, ReplayScheduler, Scheduler, UncontrolledNondeterminismCheckScheduler,
    },
    thread::JoinHandle,
};

/// The planted bugs that this source has: none, except in the copy that the mutation suite makes.
const BUGS: &[&str] = &[];
/// Requires that the source has planted bugs, so that a run that is to prove the scenarios cannot run elsewhere.
const PROVE: &str = "WINDFALL_MODEL_BUGS";
/// The bug of this process.
const BUG: &str = "WINDFALL_BUG";
/// Multiplies the usual number of runs.
const FACTOR: &str = "WINDFALL_MODEL_FACTOR";
/// The only schedule to run, or the name of a file that contains it.
const REPLAY: &str = "WINDFALL_MODEL_REPLAY";
/// The text that the scheduler prints before and after a failing schedule.
const SCHEDULE: [&str; 2] = ["failing schedule:\n\"\n", "\n\"\n"];
/// A seed for other orders than the usual ones.
const OTHER: &str = "WINDFALL_MODEL_SEED";
/// An arbitrary constant, so that a failure that was found once is found again.
const SEED: u64 = 0x0f1e_2d3c;
/// The number of runs that are repeated to verify that they are repeatable.
const REPEATED: usize = 5;
/// The stack of a scenario's thread, in bytes: what a test build needs for a call chain down to the disk.
const STACK: usize = 256 << 10;

/// Starts a thread of a scenario.
pub fn spawn<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    shuttle::thread::spawn(run)
}

/// Prints how to replay a failure, after the failure itself was printed. It holds the name of the test.
struct Advice(&'static str);

impl Drop for Advice {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let bug = env::var(BUG).map_or(String::new(), |bug| format!("{BUG}={bug} "));
            eprintln!(
                "\nput the failing schedule above into a file and replay it, in {}:\n    {bug}{REPLAY}=FILE cargo test \
                 -p windfall-engine -p windfall-base --features model --lib -- --exact {}\n",
                env!("CARGO_MANIFEST_DIR"),
                self.0
            );
        }
    }
}

/// Returns the name of the test in which a scenario is a closure.
fn test_of<S>(_: &S) -> &'static str {
    let path = type_name::<S>();
    let path = path.split_once("::").map_or(path, |(_crate, path)| path);
    path.split_once("::{{closure}}").map_or(path, |(test, _)| test)
}

fn run(scheduler: impl Scheduler + 'static, scenario: &(impl Fn() + Clone + Send + Sync + 'static)) {
    let mut config = Config::new();
    config.stack_size = STACK;
    config.silence_warnings = true;
    config.ungraceful_shutdown_config.immediately_return_on_panic = true;
    let scenario = scenario.clone();
    Runner::new(scheduler, config).run(move || {
        super::begin();
        scenario();
    });
}

/// Runs the scenario in about this many orders. Half of them choose the thread at random at every step. The other half
/// have few thread switches at random places (PCT: Burckhardt, Kothari, Musuvathi, Nagarakatte 2010), which finds
/// failures that need long uninterrupted stretches. In a source with planted bugs it then repeats this with each of
/// these bugs in turn, named as in `crates/windfall-mutation/bugs`; each must be found within as many orders.
pub fn explore(runs: usize, bugs: &[&str], scenario: impl Fn() + Clone + Send + Sync + 'static) {
    let test = test_of(&scenario);
    let advice = Advice(test);
    let planted = env::var(BUG).ok();
    let is_to_have_bugs = planted.is_some() || env::var_os(PROVE).is_some();
    assert!(
        !is_to_have_bugs || !BUGS.is_empty(),
        "this source has no planted bugs: `cargo run -p windfall-mutation` makes a copy that has"
    );
    for bug in bugs {
        assert!(
            BUGS.is_empty() || BUGS.contains(bug),
            "{test} names {bug}, and there is no bug of this name"
        );
    }
    if let Some(bug) = &planted {
        assert!(bugs.contains(&&**bug), "{bug} is none of {bugs:?}, which {test} is for");
    }
    if let Ok(schedule) = env::var(REPLAY) {
        let schedule = fs::read_to_string(&schedule).unwrap_or(schedule);
        return run(ReplayScheduler::new_from_encoded(&schedule), &scenario);
    }
    let factor: usize = env::var(FACTOR).ok().and_then(|factor| factor.parse().ok()).unwrap_or(1);
    let runs = runs * factor;
    let other = env::var(OTHER).ok().and_then(|seed| seed.parse().ok());
    let seed = other.unwrap_or(SEED);
    let random = RandomScheduler::new_from_seed(seed, REPEATED);
    run(UncontrolledNondeterminismCheckScheduler::new(random), &scenario);
    run(RandomScheduler::new_from_seed(seed, runs / 2), &scenario);
    for depth in 1..=4 {
        run(PctScheduler::new_from_seed(seed, depth, runs / 8), &scenario);
    }
    drop(advice);
    // Only the usual orders must find the bugs.
    if !BUGS.is_empty() && planted.is_none() && other.is_none() {
        for bug in bugs {
            check_bug_is_found(test, bug);
        }
    }
}

/// Runs a test with a bug, and checks that it fails and that the schedule that it prints replays the failure.
fn check_bug_is_found(test: &str, bug: &str) {
    let found = with_bug(test, bug, None);
    let output = output_of(&found);
    let schedule = output.split_once(SCHEDULE[0]).and_then(|(_, rest)| rest.split_once(SCHEDULE[1]));
    let failed = !found.status.success();
    let Some((schedule, _)) = schedule.filter(|_| failed) else {
        panic!("{test} does not find {bug}: {}\n{output}", found.status);
    };
    let again = with_bug(test, bug, Some(schedule));
    assert!(
        !again.status.success() && place(&output_of(&again)) == place(&output),
        "{test} finds {bug}, and its schedule does not replay that: {output}\nand again: {}",
        output_of(&again)
    );
}

fn with_bug(test: &str, bug: &str, schedule: Option<&str>) -> Output {
    let mut command = Command::new(env::current_exe().expect("the path of the test program is available"));
    command.args(["--exact", test, "--nocapture"]).env(BUG, bug);
    // An endless loop has a schedule that is too long for an environment variable.
    let mut file = tempfile::NamedTempFile::new().expect("there is room for a schedule");
    if let Some(schedule) = schedule {
        file.write_all(schedule.as_bytes()).expect("there is room for a schedule");
        command.env(REPLAY, file.path());
    }
    command.output().expect("the test program can be started")
}

/// Returns the output of a test.
fn output_of(test: &Output) -> String {
    String::from_utf8_lossy(&[&test.stdout[..], &test.stderr].concat()).into_owned()
}

/// Returns the place of the first panic.
fn place(output: &str) -> Option<&str> {
    output.split_once("panicked at ").and_then(|(_, rest)| rest.lines().next())
}
