//! Isolation, as clients see it. A *history* records the clients' calls and answers, and the *checker* decides whether
//! their levels allow it. *Scripts* state the outcome of single cases for each level (those of Hermitage, with
//! `InnoDB`'s outcomes). Both work with any implementation of the trait [`client::Client`]. One is a *reference* that
//! keeps the guarantees of the levels, or violates them on request: the checker must accept its correct histories, and
//! find what is wrong with the others.

#![allow(clippy::unwrap_used, reason = "a test panics")]

mod anomalies;
mod case;
#[path = "../changed_env/mod.rs"]
mod changed_env;
mod checker;
mod client;
mod engine;
mod faults;
#[path = "../guard/mod.rs"]
mod guard;
mod hermitage;
mod history;
mod load;
mod reference;
mod script;
#[path = "../soak/mod.rs"]
mod soak;
#[path = "../time_limit/mod.rs"]
mod time_limit;

use std::{
    env::var,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};

use case::{Case, VARIABLE};
use checker::check;
use client::Level;
use guard::{AGAIN, Guard, mix};
use history::History;
use load::Shape;
use reference::Fault;

/// The variable with the number of the engine's histories of each kind.
const COUNT: &str = "WINDFALL_ISOLATION_SEEDS";

const SHAPES: [Shape; 2] = [Shape::Lists, Shape::Registers];

#[test]
fn histories_of_the_reference_are_accepted() {
    let guard = Guard::new();
    let levels = Level::ALL.map(Some).into_iter().chain([None, None]);
    let mut histories = 0;
    for (n, level) in (0..).zip(levels) {
        for shape in SHAPES {
            for seed in 0..150 {
                let case = Case { seed: n * 1000 + seed, shape, level, fault: None, transactions: 60 };
                guard.run(&case.command(), || judge(&case));
                histories += 1;
            }
        }
    }
    assert!(histories > 2000);
}

/// A history that threads record together is judged like that of one thread. The scheduling of threads decides whether
/// a fault shows in one history, but it shows in one of many.
#[test]
fn histories_of_threads_are_judged_alike() {
    let history = |shape, seed, fault| {
        let case = Case { seed, shape, level: Some(Level::RepeatableRead), fault, transactions: 2_000 };
        (check(&case.history_of_threads()), case)
    };
    for shape in SHAPES {
        for seed in 0..2 {
            let (report, case) = history(shape, seed, None);
            assert!(report.is_empty(), "{case}: {report}");
        }
        for fault in [Fault::VersionTooOld, Fault::DirtyRead] {
            let shows = (0..50).any(|seed| !history(shape, seed, Some(fault)).0.is_empty());
            assert!(shows, "{fault:?} with {shape:?} shows in none of fifty");
        }
    }
}

/// Returns a history of the engine, with four threads. In every second one leaves are frozen at once, and in every
/// third one the entries of the indexes are supplied.
fn history_of_the_engine(shape: Shape, levels: &[Level], seed: u64) -> History {
    let supplies = seed % 3 == 1;
    let db = if supplies { engine::database_of_supplied_entries() } else { engine::database() };
    let eager = seed.is_multiple_of(2);
    let clients = (0..4).map(|_| engine::Session::of_all_ways(&db, eager, supplies)).collect();
    load::run_on_threads(clients, &load::Load::new(shape, levels).with_picks(), 300, seed)
}

/// With transactions of each level, and of all levels together, the clients see only what their levels allow.
#[test]
fn histories_of_the_engine_are_accepted() {
    let seeds = var(COUNT).map_or(60, |seeds| seeds.parse().unwrap());
    let levels = Level::ALL.map(|level| vec![level]).into_iter().chain([Level::ALL.to_vec()]);
    let kinds: Vec<_> = levels.flat_map(|levels| SHAPES.map(|shape| (levels.clone(), shape))).collect();
    // A history of each kind comes first: what is wrong with one level is found early.
    for seed in 0..seeds {
        for (levels, shape) in &kinds {
            let again =
                format!("{COUNT}={seeds} cargo test -p windfall --test isolation -- histories_of_the_engine");
            let history = Guard::new().run(&again, || history_of_the_engine(*shape, levels, seed));
            let report = check(&history);
            assert!(report.is_empty(), "{levels:?}, {shape:?}, seed {seed}: {report}");
        }
    }
}

/// Runs new histories of the engine until the time is over. The machine decides how its threads interleave.
#[test]
#[ignore = "runs for a given time"]
fn soak() {
    soak::soak("transactions", |seed, _| {
        let luck = |n| mix(&[seed, n]) as usize;
        let shape = SHAPES[luck(1) % SHAPES.len()];
        let levels =
            Level::ALL.get(luck(2) % (Level::ALL.len() + 1)).map_or(Level::ALL.to_vec(), |one| vec![*one]);
        let again = format!(
            "WINDFALL_SOAK_SEED={seed} cargo test -p windfall --test isolation -- --exact --ignored --nocapture soak"
        );
        Guard::new().run(&again, || {
            let history = history_of_the_engine(shape, &levels, seed);
            let report = check(&history);
            assert!(report.is_empty(), "{levels:?}, {shape:?}, seed {seed}: {report}");
        });
        4 * 300
    });
}

fn judge(case: &Case) {
    let report = check(&case.history());
    assert!(report.is_empty(), "{report}");
}

/// Runs the case in the variable `WINDFALL_ISOLATION`, as a failure prints it.
#[test]
#[ignore = "needs a case"]
fn one_case_again() {
    let case: Case = var(VARIABLE).expect("a case in WINDFALL_ISOLATION").parse().unwrap();
    judge(&case);
    println!("nothing is wrong with {case}");
}

/// For correct histories and for histories with anomalies.
#[test]
fn the_time_of_a_check_grows_with_the_history_and_no_faster() {
    let faults = [None, None, Some(Fault::ReadNotLocked), Some(Fault::WriteLockReleasedEarly)];
    for (shape, fault) in SHAPES.into_iter().cycle().zip(faults) {
        let transactions = if fault.is_none() { 100_000 } else { 30_000 };
        let time_of = |transactions| {
            let case = Case { seed: 7, shape, level: None, fault, transactions };
            let history = case.history();
            let start = processor_time();
            let report = check(&history);
            let time = processor_time().saturating_sub(start);
            assert_eq!(report.is_empty(), fault.is_none(), "{report}");
            println!("{case}: {time:?}");
            time
        };
        let (quarter, whole) = (time_of(transactions / 4), time_of(transactions));
        assert!(whole < quarter * 10, "{quarter:?} for a quarter, {whole:?} for all of it");
    }
}

/// Returns the processor time of this thread, which does not depend on other threads.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[test]
fn a_case_is_read_as_it_is_written() {
    for fault in Fault::ALL.map(Some).into_iter().chain([None]) {
        for level in Level::ALL.map(Some).into_iter().chain([None]) {
            for shape in SHAPES {
                let case = Case { seed: u64::MAX, shape, level, fault, transactions: 5 };
                assert_eq!(case.to_string().parse(), Ok(case));
            }
        }
    }
    for wrong in ["seed", "seed=x", "level=Never", "colour=red"] {
        assert!(wrong.parse::<Case>().is_err(), "{wrong}");
    }
}

#[test]
fn a_failure_names_the_command_that_runs_its_case_again() {
    let guard = Guard::new();
    let fails = |case: &Case| {
        let run = AssertUnwindSafe(|| guard.run(&case.command(), || judge(case)));
        catch_unwind(run).expect_err("it has a fault").downcast_ref::<String>().expect("a text").clone()
    };
    let (level, fault) = (Some(Level::Snapshot), Some(Fault::ViewTooNew));
    let cases = (0..20).map(|seed| Case { seed, shape: Shape::Lists, level, fault, transactions: 60 });
    let case = cases.into_iter().find(|case| !check(&case.history()).is_empty()).expect("it is found");
    let message = fails(&case);
    let (_, command) = message.split_once(AGAIN).expect("a command");
    let text = command.split('\'').nth(1).expect("a case");
    assert_eq!(command.trim(), case.command());
    // It is the same history to the last moment, and the same message.
    assert_eq!(fails(&text.parse().unwrap()), message);
}
