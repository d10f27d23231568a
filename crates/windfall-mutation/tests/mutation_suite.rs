//! The mutation suite: each planted bug makes the test suites fail that must notice it.
//!
//! The tests of `make test` run in the copy of the source that has the bugs. They are built once, before any time
//! limit starts, and each runs in a process of its own: with each bug its suites must fail, and without any bug they
//! must pass. Bugs that are left to a model are proven in the run of that model. Here they are counted, and
//! where another suite finds them as reliably, it must fail, too. With `WINDFALL_BUG` only that bug runs.

#![allow(clippy::unwrap_used, reason = "a test panics")]

use core::time::Duration;
use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Instant,
};

use windfall_mutation::{Bug, Suite, VARIABLE, bugs, plant_in_target, workspace};

/// The packages with unit tests, and that of the fuzz targets.
const PACKAGES: [&str; 5] =
    ["windfall", "windfall-base", "windfall-btree", "windfall-engine", "windfall-fuzz"];

/// Fixed seeds for the suites that draw other cases in each run. They do not determine when a process is killed, or
/// which thread comes first. And fewer cases than in `make test`: they must be enough to find the bugs.
const SETTINGS: [(&str, &str); 3] =
    [("KILL_SEED", "1"), ("CONCURRENT_SEED", "1"), ("WINDFALL_ISOLATION_SEEDS", "4")];

/// Longer than the slowest suite takes concurrently with other tests: a suite that does not end has failed, too.
const TIME_LIMIT: Duration = Duration::from_mins(15);
/// On a busy machine the limit is this factor times the duration of the same suite without a bug, if that is more.
const SLOWER: f64 = 20.0;

/// The program that runs the fuzz targets, its one test of them, and the variable that selects a target.
const FUZZ_PROGRAM: &str = "held";
const FUZZ_TEST: &str = "no_input_that_is_known_and_no_mutant_of_one_breaks_a_target";
const FUZZ_TARGET: &str = "WINDFALL_FUZZ_TARGET";

/// Returns the copy of the workspace that has the bugs.
fn copy() -> &'static Path {
    static COPY: OnceLock<PathBuf> = OnceLock::new();
    COPY.get_or_init(|| plant_in_target().unwrap().0)
}

/// The bug of this run, if it is for one alone.
fn chosen() -> Option<String> {
    env::var(VARIABLE).ok().inspect(|name| {
        assert!(bugs().iter().any(|bug| bug.name == *name), "there is no bug called {name}");
    })
}

/// The bugs that this run tests, each with its suites.
fn chosen_bugs() -> Vec<(String, Suite)> {
    let chosen = chosen();
    let bugs = bugs().into_iter().filter(|bug| chosen.as_ref().is_none_or(|chosen| *chosen == bug.name));
    bugs.flat_map(|Bug { name, found_by, .. }| found_by.into_iter().map(move |suite| (name.clone(), suite)))
        .collect()
}

/// Returns the package whose unit tests are in a module.
fn package_of(path: &str) -> &'static str {
    let module = path.split(['/', ':']).next().unwrap_or_default();
    let has = |package: &&str| {
        let src = workspace().unwrap().join("crates").join(package).join("src");
        src.join(module).exists() || src.join(format!("{module}.rs")).exists()
    };
    PACKAGES.into_iter().rev().find(has).unwrap_or("windfall")
}

/// Returns a suite's program, and what its arguments select.
fn program_of(suite: &Suite) -> (String, &str) {
    match suite {
        Suite::Tests { target, filter } => (target.clone(), filter),
        Suite::Units(filter) => (package_of(filter).replace('-', "_"), filter),
        Suite::Fuzz(_) => (FUZZ_PROGRAM.into(), FUZZ_TEST),
        Suite::Model(_) => unreachable!("a model is proven in its own run"),
    }
}

/// Builds the programs of the suites, and returns them by the name of their target. The unit tests are in those of the
/// libraries.
fn programs() -> BTreeMap<String, PathBuf> {
    let mut targets = BTreeSet::from([FUZZ_PROGRAM.to_owned()]);
    for suite in bugs().into_iter().flat_map(|bug| bug.found_by) {
        if let Suite::Tests { target, .. } = suite {
            targets.insert(target);
        }
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--no-run", "--message-format", "json", "--lib"]);
    cargo.args(PACKAGES.iter().flat_map(|package| ["-p", package]));
    cargo.args(targets.iter().flat_map(|target| ["--test", target]));
    let built = cargo.current_dir(copy()).stderr(Stdio::inherit()).output().unwrap();
    assert!(built.status.success(), "the suites do not build");
    // A path in JSON is quoted as it is, unless it contains a quote or a backslash.
    let field = |line: &str, name: &str| {
        let (_, rest) = line.split_once(&format!("\"{name}\":\""))?;
        Some(rest.split_once('"')?.0.to_owned())
    };
    let output = String::from_utf8(built.stdout).unwrap();
    output
        .lines()
        .filter_map(|line| {
            let program = field(line, "executable")?;
            // The name of the target, which is after the name in the package's id.
            let name = field(line.split_once("\"target\":")?.1, "name")?;
            Some((name, PathBuf::from(program)))
        })
        .collect()
}

/// The outcome of a run.
struct Outcome {
    passed: bool,
    /// The first failure, in one line.
    what: String,
    seconds: f64,
}

/// Returns the folder in which a suite runs: that of its package, in the copy.
fn folder_of(suite: &Suite) -> PathBuf {
    let package = match suite {
        Suite::Units(filter) => package_of(filter),
        Suite::Fuzz(_) => "windfall-fuzz",
        Suite::Tests { .. } | Suite::Model(_) => "windfall",
    };
    copy().join("crates").join(package)
}

/// Runs a suite, with a bug or without any.
fn run(
    programs: &BTreeMap<String, PathBuf>,
    suite: &Suite,
    bug: Option<&str>,
    time_limit: Duration,
) -> Outcome {
    let (program, filter) = program_of(suite);
    // The output may be long, and the child must not block because no reader empties a pipe.
    let (out, err) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    let mut command = Command::new(&programs[&program]);
    command.arg(filter).current_dir(folder_of(suite)).env("RUST_BACKTRACE", "0").env_remove(VARIABLE);
    command.envs(SETTINGS);
    if let Suite::Fuzz(target) = suite {
        command.env(FUZZ_TARGET, target);
    }
    if let Some(bug) = bug {
        command.env(VARIABLE, bug);
    }
    command.stdout(out.try_clone().unwrap()).stderr(err.try_clone().unwrap());
    let begin = Instant::now();
    let mut run = command.spawn().unwrap();
    let status = loop {
        if let Some(status) = run.try_wait().unwrap() {
            break Some(status);
        }
        if begin.elapsed() > time_limit {
            run.kill().unwrap();
            run.wait().unwrap();
            break None;
        }
        thread::sleep(Duration::from_millis(20));
    };
    let seconds = begin.elapsed().as_secs_f64();
    let Some(status) = status else {
        return Outcome { passed: false, what: "it does not end".into(), seconds };
    };
    let read = |mut file: fs::File| {
        let mut bytes = Vec::new();
        std::io::Seek::rewind(&mut file).unwrap();
        std::io::Read::read_to_end(&mut file, &mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let output = read(out) + &read(err);
    assert!(
        output.contains("\nrunning ") && !output.contains("\nrunning 0 tests"),
        "{suite:?} is no test:\n{output}"
    );
    let panic = output.lines().skip_while(|line| !line.contains("panicked at ")).nth(1);
    let what = match panic {
        Some(what) => what.chars().take(100).collect(),
        None if output.contains("it does not end") => "it does not end".into(),
        None => format!("{status}"),
    };
    // A failure is a failed test, or the end of the process by a signal of its own or by its watchdog. Anything else,
    // such as a signal from outside, is an error of this suite.
    let failed = panic.is_some() && output.contains("test result: FAILED");
    let is_of_its_own =
        |signal| [libc::SIGABRT, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGTRAP].contains(&signal);
    let ended =
        !status.success() && !output.contains("test result: ") && status.signal().is_none_or(is_of_its_own);
    assert!(status.success() || failed || ended, "{suite:?} with {bug:?} ends strangely:\n{output}");
    Outcome { passed: status.success(), what, seconds }
}

/// Returns the command that runs it again.
fn command(suite: &Suite, bug: Option<&str>) -> String {
    let bug = bug.map_or(String::new(), |bug| format!("{VARIABLE}={bug} "));
    let settings = SETTINGS.map(|(name, seed)| format!("{name}={seed}")).join(" ");
    let test = match suite {
        Suite::Tests { target, filter } => format!("-p windfall --test {target} -- {filter}"),
        Suite::Units(filter) => format!("-p {} --lib -- {filter}", package_of(filter)),
        Suite::Fuzz(_) => format!("-p windfall-fuzz --test {FUZZ_PROGRAM}"),
        Suite::Model(_) => unreachable!("a model is proven in its own run"),
    };
    let target =
        if let Suite::Fuzz(target) = suite { format!("{FUZZ_TARGET}={target} ") } else { String::new() };
    format!("cd {} && {settings} {target}{bug}cargo test {test}", copy().display())
}

/// The build stage of `make test` runs this: the next test then finds the programs built.
#[test]
fn the_suites_are_built() {
    for (program, path) in programs() {
        assert!(path.exists(), "{program} is not there");
    }
}

#[test]
fn every_planted_bug_is_found_and_without_them_the_suites_pass() {
    let planted = chosen_bugs().into_iter().filter(|(_, suite)| !matches!(suite, Suite::Model(_)));
    let mut runs: Vec<(Option<String>, Suite)> = planted.map(|(bug, suite)| (Some(bug), suite)).collect();
    let suites: BTreeSet<Suite> = runs.iter().map(|(_, suite)| suite.clone()).collect();
    // The runs without a bug come first, because they take longest.
    runs.splice(0..0, suites.into_iter().map(|suite| (None, suite)));
    let programs = programs();
    let next = AtomicUsize::new(0);
    // The duration of each suite without a bug.
    let usual: Mutex<BTreeMap<&Suite, f64>> = Mutex::new(BTreeMap::new());
    let work = || {
        let mut wrong = Vec::new();
        while let Some((bug, suite)) = runs.get(next.fetch_add(1, SeqCst)) {
            let bug = bug.as_deref();
            let known = usual.lock().unwrap().get(suite).copied().unwrap_or(0.0);
            let time_limit = TIME_LIMIT.max(Duration::from_secs_f64(SLOWER * known));
            let outcome = run(&programs, suite, bug, time_limit);
            if bug.is_none() {
                usual.lock().unwrap().insert(suite, outcome.seconds);
            }
            let (program, mut filter) = program_of(suite);
            if let Suite::Fuzz(target) = suite {
                filter = target;
            }
            let name = bug.unwrap_or("without a bug");
            let what = if outcome.passed { "passes" } else { &outcome.what };
            let line = format!("{name:24} {:6.1} s  {program} {filter}: {what}", outcome.seconds);
            println!("{line}");
            if outcome.passed == bug.is_some() {
                wrong.push(format!("{line}\n    {}", command(suite, bug)));
            }
        }
        wrong
    };
    let wrong: Vec<String> = thread::scope(|scope| {
        let workers: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert!(
        wrong.is_empty(),
        "a suite passes with a bug in the engine, or fails without one:\n{}",
        wrong.join("\n")
    );
}

/// The effect of these two lock bugs depends on the order of calls. The seed of a history determines that order, so the
/// number of histories that find the bug is the same in each run.
#[test]
fn bugs_of_locks_are_found_by_many_histories() {
    let chosen = chosen();
    let bugs = [("RowNotLocked", 100), ("EndedWriterLocks", 10)];
    let bugs = bugs.into_iter().filter(|(bug, _)| chosen.as_ref().is_none_or(|chosen| chosen == bug));
    let program = &programs()["open_transactions"];
    for (bug, at_least) in bugs {
        let mut command = Command::new(program);
        command.args(["--exact", "--ignored", "--nocapture", "how_many_histories_find_it"]);
        let run = command.current_dir(copy().join("crates/windfall")).env(VARIABLE, bug).output().unwrap();
        let output = String::from_utf8_lossy(&run.stdout).into_owned();
        let found = output.split_once("found in ").and_then(|(_, rest)| rest.split_once(' '));
        let found = found.and_then(|(count, _)| count.parse::<u64>().ok()).expect("it prints how many");
        println!("{bug} is found in {found} of 300 histories");
        assert!(found >= at_least, "{bug} is found in {found} histories, and has to be in {at_least}");
    }
}

/// `sync::model::explore` runs a scenario that names a bug with that bug, and the scenario must then fail.
#[test]
fn a_scenario_names_each_bug_that_is_left_to_the_models() {
    for (bug, suite) in chosen_bugs() {
        let Suite::Model(path) = suite else { continue };
        let src = workspace().unwrap().join("crates").join(package_of(&path)).join("src");
        let [file, folder] = [src.join(format!("{path}.rs")), src.join(&path).join("interleavings.rs")];
        let is_file = path.contains("interleavings") && file.exists();
        let text = fs::read_to_string(if is_file { file } else { folder }).unwrap();
        assert!(text.contains(&format!("\"{bug}\"")), "{bug} is in no scenario of {path}");
    }
}

#[test]
fn the_documentation_counts_the_bugs_and_names_none_that_does_not_exist() {
    let text = fs::read_to_string(workspace().unwrap().join("docs/testing.md")).unwrap();
    let (_, section) = text.split_once("\n## The mutation suite\n").expect("a section on this suite");
    let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
    let bugs = bugs();
    let is_of_models = |bug: &&Bug| bug.found_by.iter().any(|suite| matches!(suite, Suite::Model(_)));
    let models = bugs.iter().filter(is_of_models);
    let (left, both) = (models.clone().count(), models.filter(|bug| bug.found_by.len() > 1).count());
    let counts = format!("{} bugs, of which {left} are left to models, and {both} of these", bugs.len());
    assert!(section.split_whitespace().collect::<Vec<_>>().join(" ").contains(&counts), "it says: {counts}");
    let names: BTreeSet<String> = bugs.into_iter().map(|bug| bug.name).collect();
    let quoted = section.split('`').skip(1).step_by(2);
    let unknown: Vec<&str> = quoted
        .filter(|word| word.starts_with(char::is_uppercase) && word.chars().any(char::is_lowercase))
        .filter(|word| word.chars().all(char::is_alphanumeric) && !names.contains(*word))
        .collect();
    assert!(unknown.is_empty(), "no bugs: {unknown:?}");
}
