//! The mutation suite: each planted bug of `windfall-base/src/sync/bug.rs` makes one of the test suites fail.
//!
//! It runs the tests of `make test` unchanged. They are built once, before any time limit starts, and each runs in a
//! process of its own: with each bug its suite must fail, and without any bug the suite must pass. Bugs that are left
//! to a model are proven in the run of that model. Here they are counted, and where another suite finds them as
//! reliably, it must fail, too. With `WINDFALL_CANARY` only that bug runs.

#![allow(clippy::unwrap_used, reason = "a test panics")]

use core::time::Duration;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Instant,
};

use windfall_base::sync::{
    Bug,
    bug::{VARIABLE, chosen},
};

/// The test suite that must catch a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Suite {
    /// A test in a file of `tests`, or all tests with this prefix.
    Tests(&'static str, &'static str),
    /// Unit tests next to the code.
    Units(&'static str),
    /// A fuzz target, with its inputs and their mutants.
    Fuzz(&'static str),
    /// A file of model scenarios, one of which names the bug.
    Models(&'static str),
}

use Suite::{Fuzz, Models, Tests, Units};

const CUTS: Suite = Tests("cuts", "first_lives_are_cut_at_every_operation");
const GROUPS: Suite = Tests("cuts", "lives_are_cut_between_the_groups_of_a_write");
/// One thread in a random order of calls, which is the same in each run.
const HISTORIES: Suite = Tests("open_transactions", "first_histories_are_judged");

fn suite(bug: Bug) -> Suite {
    match bug {
        Bug::ControlOverwritten
        | Bug::ControlNotSynced
        | Bug::CommitNotAwaited
        | Bug::TornTailTaken
        | Bug::LogNotSynced
        | Bug::DataNotSynced
        | Bug::FolderNotSynced
        | Bug::CopiesNotSynced
        | Bug::DirtyPageForgotten
        | Bug::PageNotFreed
        | Bug::ChainLeaked
        | Bug::SpaceReused
        | Bug::TransactionReused
        | Bug::RollbackForgotten
        | Bug::IndexNotDropped
        | Bug::AutoIncrementForgotten
        | Bug::TornPageKept
        | Bug::ReplayedTwice
        | Bug::DeletionForgotten => CUTS,
        Bug::ViewTooNew | Bug::GapNotLocked | Bug::PurgeIgnoresViews | Bug::UndoUsedAgain => {
            Tests("isolation", "histories_of_the_engine_are_accepted")
        }
        Bug::PreparedNotNoted | Bug::PreparedForgotten => {
            Tests("transactions", "prepared::what_is_prepared_survives_every_crash")
        }
        Bug::PreparedDuringRollback => Tests("transactions", "prepared::a_partly_rolled_back_transaction"),
        Bug::PreparedUnlocked => Tests("transactions", "prepared::after_a_crash"),
        Bug::HandedOverUnseen => Tests("transactions", "background::an_index_waits"),
        Bug::SplitInTwoGroups | Bug::EntriesNotRolledBack => GROUPS,
        Bug::CommitNotWritten => Tests("kill", "what_was_acknowledged_survives_kills"),
        Bug::FailedWriteForgotten => Tests("faults", "every_page_is_torn_by_a_write_that_fails"),
        Bug::PreviousMapKept => Tests("limits", "maps::threads_in_a_tree_of_several_maps"),
        Bug::RowNotLocked => HISTORIES,
        Bug::ChecksumIgnored => Tests("damage", "bits_flip_at_rest"),
        Bug::SystemTreeForgotten => Tests("damage", "files_are_gone"),
        Bug::DropBeforeLog => Tests("crash", "a_drop_that_fails_has_touched_nothing"),
        Bug::ReservationUncovered => {
            Tests("full_disk", "a_long_value_and_a_disk_that_becomes_full_at_every_moment")
        }
        Bug::ControlNotWrittenAgain => Units("storage::log::tests::control::the_record_that_was_found"),
        Bug::HeaderNotWrittenAgain => Units("storage::log::tests::segments::a_segment_that_is_taken_over"),
        Bug::KilledWritesNotSynced => Units(
            "storage::recovery::tests::what_a_killed_process_has_written_is_durable_before_anything_is_written",
        ),
        Bug::CopiesFoundNotSynced => Units("storage::recovery::tests::unsynced::"),
        Bug::FoundDoneNotDirty => Units(
            "storage::recovery::tests::a_page_that_is_found_done_is_written_again_before_the_low_water_mark_passes",
        ),
        Bug::HashTableFreedAtOnce => Units("tree::hash::tests::a_table_is_freed_in_steps"),
        Bug::TornCopyForgotten => Units("storage::recovery::tests::a_torn_page_that_is_latched"),
        Bug::PlaceNotTried => Units("storage::buffer::flush::tests::many_files_that_take_no_writes"),
        Bug::HintBelieved => Units("tree::tests::values::"),
        Bug::MoveUnlisted => Units("catalog::names::tests::what_has_a_name_all_the_time_is_listed"),
        Bug::LeftoversUnseen => Tests("live_check", "an_open_transaction_keeps"),
        Bug::CutOffUnseen => Tests("transactions", "background::a_check_waits_for_a_rollback"),
        Bug::TemporaryReadersUnseen => Tests("transactions", "temporary::a_value_of_a_temporary_table"),
        Bug::RollbackNotNoted => Units("tests::statements::beside::transactions_of_every_kind"),
        Bug::KeyOutOfReachNotNoted => {
            Units("tests::statements::beside::a_row_whose_index_key_is_out_of_reach")
        }
        Bug::GateLeftOpen => Units("tests::statements::exclusive_access_to_a_table"),
        Bug::LoadLeftBehind => Units("tests::load::what_is_refused"),
        Bug::EndedViewBelieved => Tests("transactions", "undo_limit::the_oldest_view_is_ended"),
        Bug::UndoNotReserved => Units("txn::tests::purge::"),
        Bug::WriteBeyondThePage | Bug::KeyOutsideTheFences => Fuzz("redo"),
        Bug::CountBelieved => Fuzz("log-records"),
        Bug::RestOfRecordIgnored => Fuzz("table-record"),
        Bug::VersionKept
        | Bug::LatchDespiteSharers
        | Bug::UpgradeOfAnyVersion
        | Bug::LastSharerWakesNone
        | Bug::NotifierPassesTheMutex
        | Bug::NapForgetsTheRing
        | Bug::GateLooksBeforeItCounts
        | Bug::LeaverWakesNone
        | Bug::ClosingGateHoldsAll
        | Bug::GatesClosedOneByOne => Models("sync"),
        Bug::GroupSeenEarly
        | Bug::DurableBeforeTheSync
        | Bug::WrittenMeanwhileIsDurable
        | Bug::LeaderWakesNone
        | Bug::SpaceGivenBeforeItIsClear
        | Bug::FailureIsForgotten
        | Bug::SlotsBeforeTheEnd
        | Bug::ReservationReadsEndFirst => Models("storage/log"),
        Bug::LookWithoutTag
        | Bug::LatchWithoutTag
        | Bug::WaitForWhateverCame
        | Bug::HeaderMadeTwice
        | Bug::EvictionKeepsVersion
        | Bug::ChunkGoesUnderAnEntry => Models("storage/buffer/interleavings/pages"),
        Bug::FrameBeyondTheSize | Bug::RetiredForGood | Bug::HeadWithoutCount => {
            Models("storage/buffer/interleavings/frames")
        }
        Bug::LateInstall
        | Bug::DropLeavesItUnknown
        | Bug::DrainWithoutTag
        | Bug::LatecomerForgotten
        | Bug::CopyWithoutTag
        | Bug::FailedWriteWithoutTag
        | Bug::FailedSyncOfDropped
        | Bug::FileAfterTheDeleter => Models("storage/buffer/interleavings/drops"),
        Bug::CleanWhenCopied | Bug::PagesBeforeTheLog | Bug::LowWaterMarkIgnoresUnregistered => {
            Models("storage/buffer/interleavings/low_water_mark")
        }
        Bug::HalfAChangeWritten => Models("storage/buffer/interleavings/stops"),
        Bug::FileGoesBeforeTheDrop => Models("storage/tablespace"),
        Bug::LocksPublishedLate | Bug::ServedAndNotWoken | Bug::EndedWriterLocks => Models("txn/locks"),
        Bug::LowWaterMarkBeforeTheLog | Bug::EndNotNoted | Bug::LogCutBeforeTheControlFile => {
            Models("checkpoint")
        }
        Bug::RecordedBeforeItIsLogged => Models("engine/files"),
        Bug::CeilingNotLoggedYet | Bug::AutoIncrementEndsLate => Models("catalog/auto_increment"),
    }
}

/// Returns a second suite that also catches a bug that is left to a model: in every run, and quickly.
fn beside(bug: Bug) -> Option<Suite> {
    Some(match bug {
        Bug::PagesBeforeTheLog | Bug::LowWaterMarkBeforeTheLog => CUTS,
        Bug::FileGoesBeforeTheDrop => Tests("crash", "a_drop_that_is_not_durable_leaves_its_table_whole"),
        Bug::HeaderMadeTwice => Tests("database", "the_first_rows_of_a_table_may_come_at_the_same_time"),
        Bug::VersionKept | Bug::LatchDespiteSharers | Bug::UpgradeOfAnyVersion => {
            Units("sync::latch::tests::an_unchanged_release_keeps_the_version")
        }
        Bug::NapForgetsTheRing => Units("sync::event::tests::a_nap_is_a_nap"),
        Bug::FailureIsForgotten => Units("storage::log::tests::a_failing_sync_stops_the_database"),
        Bug::LowWaterMarkIgnoresUnregistered => Units(
            "storage::buffer::low_water_mark::tests::an_older_change_may_be_registered_after_a_younger_one",
        ),
        Bug::EvictionKeepsVersion | Bug::LatchWithoutTag => {
            Units("storage::buffer::replace::tests::a_reader_notices_the_eviction_of_its_page")
        }
        Bug::LatecomerForgotten => {
            Units("storage::buffer::reclaim::tests::a_latched_frame_is_freed_when_its_latch_is_released")
        }
        Bug::LateInstall | Bug::DropLeavesItUnknown => {
            Units("storage::buffer::reclaim::tests::a_page_that_arrives_after_a_drop_is_removed_at_once")
        }
        Bug::EndedWriterLocks => {
            Units("txn::locks::tests::rules::the_lock_of_a_writer_is_made_explicit_until_it_ends")
        }
        Bug::FileAfterTheDeleter => Units("storage::buffer::flush::tests::what_was_dropped_gets_no_file"),
        _ => return None,
    })
}

/// Returns whether the histories of open transactions must also catch a bug that is left to another test.
fn is_met_by_histories(bug: Bug) -> bool {
    matches!(
        bug,
        Bug::EndedWriterLocks
            | Bug::GapNotLocked
            | Bug::ViewTooNew
            | Bug::PurgeIgnoresViews
            | Bug::UndoUsedAgain
            | Bug::EntriesNotRolledBack
            | Bug::PreparedNotNoted
            | Bug::PreparedForgotten
            | Bug::PreparedUnlocked
            | Bug::PreparedDuringRollback
            | Bug::RollbackForgotten
    )
}

/// Returns all suites that must catch a bug.
fn suites(bug: Bug) -> impl Iterator<Item = Suite> {
    let histories = is_met_by_histories(bug).then_some(HISTORIES);
    core::iter::once(suite(bug)).chain(beside(bug)).chain(histories)
}

impl Suite {
    /// Returns the path of the suite, and the part of it that runs.
    fn place(self) -> (String, &'static str) {
        match self {
            Tests(target, test) => {
                let file = format!("tests/{target}.rs");
                let is_file = package().join(&file).exists();
                (if is_file { file } else { format!("tests/{target}") }, test)
            }
            Units(tests) => (format!("{}src", prefix(tests)), tests),
            Fuzz(target) => ("crates/windfall-fuzz/tests/held.rs".into(), target),
            Models(path) => {
                let src = format!("{}src", prefix(path));
                let file = format!("{src}/{path}.rs");
                let is_file = path.contains("interleavings") && workspace_path(&file).exists();
                (if is_file { file } else { format!("{src}/{path}/interleavings.rs") }, "the model")
            }
        }
    }
}

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The packages below this one.
const BELOW: [&str; 3] = ["windfall-base", "windfall-btree", "windfall-engine"];

/// Returns the package that a module, or a test in it, belongs to.
fn package_of(path: &str) -> &'static str {
    let module = path.split(['/', ':']).next().unwrap_or_default();
    let is_in = |below: &&str| {
        let src = package().join("..").join(below).join("src");
        src.join(module).exists() || src.join(format!("{module}.rs")).exists()
    };
    BELOW.into_iter().find(is_in).unwrap_or("windfall")
}

/// Returns the path prefix of a module that is not in this package.
fn prefix(path: &str) -> String {
    let package = package_of(path);
    if BELOW.contains(&package) { format!("crates/{package}/") } else { String::new() }
}

/// Returns the full path of a place, which begins with `crates` unless it is in this package.
fn workspace_path(place: &str) -> PathBuf {
    let from = if place.starts_with("crates/") { "../.." } else { "" };
    package().join(from).join(place)
}

/// The bugs that this run tests, each with its suites.
fn bugs() -> Vec<(Bug, Suite)> {
    let bugs = Bug::ALL.iter().copied().filter(|bug| chosen().is_none_or(|chosen| chosen == *bug));
    bugs.flat_map(|bug| suites(bug).map(move |suite| (bug, suite))).collect()
}

/// Fixed seeds for the suites that draw other cases in each run. They do not determine when a process is killed, or
/// which thread comes first.
const SEEDS: [(&str, &str); 2] = [("KILL_SEED", "1"), ("CONCURRENT_SEED", "1")];

/// Longer than the slowest suite takes: a suite that does not end has failed, too.
const PATIENCE: Duration = Duration::from_mins(5);
/// On a busy machine the limit is this factor times the duration of the same suite without a bug, if that is more.
const SLOWER: f64 = 20.0;

/// The program that runs the fuzz targets, its one test of them, and the variable that selects a target.
const HELD: &str = "held";
const NO_INPUT: &str = "no_input_that_is_known_and_no_mutant_of_one_breaks_a_target";
const TARGET: &str = "WINDFALL_FUZZ_TARGET";

/// Builds the programs of the tests and returns them by the name of their target. The unit tests are in those of the
/// libraries.
fn programs() -> BTreeMap<String, PathBuf> {
    let targets: BTreeSet<&str> = Bug::ALL
        .iter()
        .flat_map(|bug| suites(*bug))
        .filter_map(|suite| if let Tests(target, _) = suite { Some(target) } else { None })
        .collect();
    let targets = targets.into_iter().flat_map(|target| ["--test", target]);
    let mut programs = built("windfall", ["--lib"].into_iter().chain(targets));
    programs.extend(BELOW.iter().flat_map(|below| built(below, ["--lib"].into_iter())));
    programs.extend(built("windfall-fuzz", ["--test", HELD].into_iter()));
    programs
}

/// Returns the feature of a package that compiles the planted bugs in.
fn feature(package: &str) -> &'static str {
    if BELOW.contains(&package) { "windfall-base/canary" } else { "windfall/canary" }
}

/// Builds some targets of a package with the planted bugs in the engine, and returns their programs.
fn built<'a>(of: &str, targets: impl Iterator<Item = &'a str>) -> BTreeMap<String, PathBuf> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "-p", of, "--features", feature(of)]);
    cargo.args(["--no-run", "--message-format", "json"]).args(targets);
    let built = cargo.current_dir(package()).stderr(Stdio::inherit()).output().unwrap();
    assert!(built.status.success(), "the nets do not build");
    // A path in JSON is quoted as it is, unless it contains a quote or a backslash.
    let field = |line: &str, name: &str| {
        let (_, rest) = line.split_once(&format!("\"{name}\":\""))?;
        Some(rest.split_once('"')?.0.to_owned())
    };
    let told = String::from_utf8(built.stdout).unwrap();
    told.lines()
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

/// Runs a suite, with a bug or without any.
fn run(programs: &BTreeMap<String, PathBuf>, suite: Suite, bug: Option<Bug>, patience: Duration) -> Outcome {
    let (target, filter): (String, _) = match suite {
        Tests(target, filter) => (target.into(), filter),
        Units(filter) => (package_of(filter).replace('-', "_"), filter),
        Fuzz(_) => (HELD.into(), NO_INPUT),
        Models(_) => unreachable!("a model proves itself"),
    };
    // The output may be long, and the child must not block because no reader empties a pipe.
    let (out, err) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    let mut command = Command::new(&programs[&target]);
    command.arg(filter).current_dir(package()).env("RUST_BACKTRACE", "0").env_remove(VARIABLE);
    command.envs(SEEDS);
    if let Fuzz(target) = suite {
        command.env(TARGET, target);
    }
    if let Some(bug) = bug {
        command.env(VARIABLE, format!("{bug:?}"));
    }
    command.stdout(out.try_clone().unwrap()).stderr(err.try_clone().unwrap());
    let begin = Instant::now();
    let mut run = command.spawn().unwrap();
    let status = loop {
        if let Some(status) = run.try_wait().unwrap() {
            break Some(status);
        }
        if begin.elapsed() > patience {
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
    let told = read(out) + &read(err);
    assert!(
        told.contains("\nrunning ") && !told.contains("\nrunning 0 tests"),
        "{suite:?} is no test:\n{told}"
    );
    let panic = told.lines().skip_while(|line| !line.contains("panicked at ")).nth(1);
    let what = match panic {
        Some(what) => what.chars().take(100).collect(),
        None if told.contains("it does not come to its end") => "it does not come to its end".into(),
        None => format!("{status}"),
    };
    // A failure is a failed test, or the end of the process by a signal or its watchdog. Anything else is an error of
    // this suite.
    let failed = panic.is_some() && told.contains("test result: FAILED");
    let ended = !status.success() && !told.contains("test result: ");
    assert!(status.success() || failed || ended, "{suite:?} with {bug:?} ends strangely:\n{told}");
    Outcome { passed: status.success(), what, seconds }
}

/// Returns the command that runs it again.
fn command(suite: Suite, bug: Option<Bug>) -> String {
    let chosen = bug.map_or(String::new(), |bug| format!("{VARIABLE}={bug:?} "));
    let seeds = SEEDS.map(|(name, seed)| format!("{name}={seed}")).join(" ");
    let tests = |package, target: &str, filter| {
        let feature = feature(package);
        format!("{seeds} {chosen}cargo test -p {package} --features {feature} {target} -- {filter}")
    };
    match suite {
        Tests(target, filter) => tests("windfall", &format!("--test {target}"), filter),
        Units(filter) => tests(package_of(filter), "--lib", filter),
        Fuzz(target) => format!(
            "{TARGET}={target} {chosen}cargo test -p windfall-fuzz --features windfall/canary --test {HELD}"
        ),
        Models(_) => unreachable!("a model proves itself"),
    }
}

/// The build stage of `make test` runs this: the next test then finds the programs built.
#[test]
fn the_nets_are_built() {
    for (program, path) in programs() {
        assert!(path.exists(), "{program} is not there");
    }
}

#[test]
fn every_planted_bug_is_caught_and_without_them_the_nets_pass() {
    let planted = bugs().into_iter().filter(|(_, suite)| !matches!(suite, Models(_)));
    let mut runs: Vec<(Option<Bug>, Suite)> = planted.map(|(bug, suite)| (Some(bug), suite)).collect();
    let suites: BTreeSet<Suite> = runs.iter().map(|(_, suite)| *suite).collect();
    // The runs without a bug come first, because they take longest.
    runs.splice(0..0, suites.into_iter().map(|suite| (None, suite)));
    let programs = programs();
    let next = AtomicUsize::new(0);
    // The duration of each suite without a bug.
    let usual: Mutex<BTreeMap<Suite, f64>> = Mutex::new(BTreeMap::new());
    let work = || {
        let mut wrong = Vec::new();
        while let Some((bug, suite)) = runs.get(next.fetch_add(1, SeqCst)) {
            let known = usual.lock().unwrap().get(suite).copied().unwrap_or(0.0);
            let patience = PATIENCE.max(Duration::from_secs_f64(SLOWER * known));
            let outcome = run(&programs, *suite, *bug, patience);
            if bug.is_none() {
                usual.lock().unwrap().insert(*suite, outcome.seconds);
            }
            let (place, test) = suite.place();
            let name = bug.map_or("without a bug".into(), |bug| format!("{bug:?}"));
            let what = if outcome.passed { "passes" } else { &outcome.what };
            let line = format!("{name:24} {:6.1} s  {place} {test}: {what}", outcome.seconds);
            println!("{line}");
            if outcome.passed == bug.is_some() {
                wrong.push(format!("{line}\n    {}", command(*suite, *bug)));
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
        "a net passes with a bug in the engine, or fails without one:\n{}",
        wrong.join("\n")
    );
}

/// The effect of these two lock bugs depends on the order of calls. The seed of a history determines that order, so the
/// number of histories that find the bug is the same in each run.
#[test]
fn bugs_of_locks_are_found_by_many_histories() {
    let bugs = [(Bug::RowNotLocked, 100), (Bug::EndedWriterLocks, 10)];
    let bugs = bugs.into_iter().filter(|(bug, _)| chosen().is_none_or(|chosen| chosen == *bug));
    let program = &programs()["open_transactions"];
    for (bug, at_least) in bugs {
        let mut command = Command::new(program);
        command.args(["--exact", "--ignored", "--nocapture", "how_many_histories_find_it"]);
        let run = command.current_dir(package()).env(VARIABLE, format!("{bug:?}")).output().unwrap();
        let told = String::from_utf8_lossy(&run.stdout).into_owned();
        let found = told.split_once("found in ").and_then(|(_, rest)| rest.split_once(' '));
        let found = found.and_then(|(count, _)| count.parse::<u64>().ok()).expect("it says how many");
        println!("{bug:?} is found in {found} of 300 histories");
        assert!(found >= at_least, "{bug:?} is found in {found} histories, and has to be in {at_least}");
    }
}

/// `sync::model::explore` runs a scenario that names a bug with that bug, and the scenario must then fail.
#[test]
fn a_scenario_names_each_bug_that_is_left_to_the_models() {
    for (bug, suite) in bugs().into_iter().filter(|(_, suite)| matches!(suite, Models(_))) {
        let text = fs::read_to_string(workspace_path(&suite.place().0)).unwrap();
        assert!(text.contains(&format!("Bug::{bug:?}")), "{bug:?} is in no scenario of {suite:?}");
    }
}

#[test]
fn the_documentation_has_this_list() {
    let is_of_models = |bug: &&Bug| matches!(suite(**bug), Models(_));
    let models = Bug::ALL.iter().filter(is_of_models).count();
    let both = Bug::ALL.iter().filter(|bug| beside(**bug).is_some()).count();
    let mut list = format!(
        "{} bugs: {} are caught by tests, {models} by models, of which {both} by tests as well.\n\n\
         | bug | what is wrong | caught by |\n| --- | --- | --- |\n",
        Bug::ALL.len(),
        Bug::ALL.len() - models
    );
    for bug in Bug::ALL {
        let places = suites(*bug).map(Suite::place).map(|(place, test)| format!("`{place}`: {test}"));
        let places: Vec<String> = places.collect();
        let what = bug.what().trim().trim_end_matches('.');
        writeln!(list, "| `{bug:?}` | {what} | {} |", places.join("; ")).unwrap();
    }
    let text = fs::read_to_string(package().join("../../docs/testing.md")).unwrap();
    let (_, section) = text.split_once("\n## The canary\n").expect("docs/testing.md has a section on this");
    let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
    assert!(section.contains(&list), "docs/testing.md must have this list:\n\n{list}");
    // Every other bug name in the section must exist.
    let names: BTreeSet<String> = Bug::ALL.iter().map(|bug| format!("{bug:?}")).collect();
    let quoted = section.split('`').skip(1).step_by(2);
    let unknown: Vec<&str> = quoted
        .filter(|word| word.starts_with(char::is_uppercase) && word.chars().any(char::is_lowercase))
        .filter(|word| word.chars().all(char::is_alphanumeric) && !names.contains(*word))
        .collect();
    assert!(unknown.is_empty(), "no bugs: {unknown:?}");
}
