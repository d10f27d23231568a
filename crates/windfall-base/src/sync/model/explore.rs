//! Runs a scenario in many orders.
//!
//! **Purpose.** The same orders each time, as many as are asked for; and one of them alone, to replay a failure. Then
//! it is proven that the scenario can fail: with each bug that it is for, it does.
//!
//! **Invariants.** A scenario is the same in each run but for the order of its threads: it draws no chance of its own,
//! and reads no clock. The first runs are repeated to see that this holds. A run that fails leaves threads and pins
//! behind that nobody ends; so a bug is planted in a process of its own.
//!
//! **May touch.** The scheduler; four variables of the environment; processes, of this very program.

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

use crate::sync::{
    Bug,
    bug::{self, VARIABLE as BUG},
};

/// How many times as many runs as usual.
const FACTOR: &str = "WINDFALL_MODEL_FACTOR";
/// A schedule to run and no other, or the name of a file with it.
const REPLAY: &str = "WINDFALL_MODEL_REPLAY";
/// What the scheduler prints before and behind a failing schedule.
const SCHEDULE: [&str; 2] = ["failing schedule:\n\"\n", "\n\"\n"];
/// Other orders than the usual ones.
const OTHER: &str = "WINDFALL_MODEL_SEED";
/// Any number: what was found once is found again.
const SEED: u64 = 0x0f1e_2d3c;
/// How many runs are repeated to see that they can be.
const REPEATED: usize = 5;
/// The stack of a thread of a scenario, in bytes: what a test build needs for a way down to the disk.
const STACK: usize = 256 << 10;

/// Starts a thread of a scenario.
pub fn spawn<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    shuttle::thread::spawn(run)
}

/// Says how to replay, once the failure itself has been told. It knows the name of the test.
struct Advice(&'static str);

impl Drop for Advice {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let bug = env::var(BUG).map_or(String::new(), |bug| format!("{BUG}={bug} "));
            eprintln!(
                "\nput the failing schedule above into a file and replay it:\n    {bug}{REPLAY}=FILE cargo test -p \
                 windfall --features model --lib -- --exact {}\n",
                self.0
            );
        }
    }
}

/// The name of the test in which a scenario is a closure.
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

/// Runs the scenario in about so many orders: half of them drawn at random at every step, half with few changes of
/// threads at places drawn at random (PCT: Burckhardt, Kothari, Musuvathi, Nagarakatte 2010), which finds what takes
/// long stretches undisturbed. Then plants each of these bugs, of which each has to be found in as many.
pub fn explore(runs: usize, bugs: &[Bug], scenario: impl Fn() + Clone + Send + Sync + 'static) {
    let test = test_of(&scenario);
    let advice = Advice(test);
    let planted = bug::chosen();
    if let Some(bug) = planted {
        assert!(bugs.contains(&bug), "{bug:?} is none of {bugs:?}, which {test} is for");
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
    // That the usual orders find them is what counts.
    if planted.is_none() && other.is_none() {
        for bug in bugs {
            prove(test, *bug);
        }
    }
}

/// Runs a test with a bug, and sees that it fails, and that what it prints to replay the failure does that.
fn prove(test: &str, bug: Bug) {
    let found = with_bug(test, bug, None);
    let told = said(&found);
    let schedule = told.split_once(SCHEDULE[0]).and_then(|(_, rest)| rest.split_once(SCHEDULE[1]));
    let failed = !found.status.success();
    let Some((schedule, _)) = schedule.filter(|_| failed) else {
        panic!("{test} is blind to {bug:?}: {}\n{told}", found.status);
    };
    let again = with_bug(test, bug, Some(schedule));
    assert!(
        !again.status.success() && place(&said(&again)) == place(&told),
        "{test} finds {bug:?}, and its schedule does not replay that: {told}\nand again: {}",
        said(&again)
    );
}

fn with_bug(test: &str, bug: Bug, schedule: Option<&str>) -> Output {
    let mut command = Command::new(env::current_exe().expect("a test knows its program"));
    command.args(["--exact", test, "--nocapture"]).env(BUG, format!("{bug:?}"));
    // An endless loop has a schedule that is too long for a variable.
    let mut file = tempfile::NamedTempFile::new().expect("there is room for a schedule");
    if let Some(schedule) = schedule {
        file.write_all(schedule.as_bytes()).expect("there is room for a schedule");
        command.env(REPLAY, file.path());
    }
    command.output().expect("this very program runs")
}

/// What a test has said.
fn said(test: &Output) -> String {
    String::from_utf8_lossy(&[&test.stdout[..], &test.stderr].concat()).into_owned()
}

/// Where the first panic was.
fn place(told: &str) -> Option<&str> {
    told.split_once("panicked at ").and_then(|(_, rest)| rest.lines().next())
}
