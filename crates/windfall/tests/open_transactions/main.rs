//! Random histories of open transactions, on one thread in a drawn order, held against a model that knows what each
//! level of isolation allows and which lock keeps whom out.
//!
//! Up to five transactions of all levels are open beside calls of their own. Nothing waits for a lock: what would wait
//! is refused, and the model says whether it is. Every outcome is judged: a success where the lock of another
//! transaction is in the way, a refusal that nothing gives a reason for, and a value that the level does not allow end
//! the history. It is told in as few steps as show it, with the command that makes them again.

#![allow(clippy::unwrap_used, reason = "a test panics")]

mod case;
#[path = "../changed_env/mod.rs"]
mod changed_env;
mod counts;
mod draw;
#[path = "../guard/mod.rs"]
mod guard;
mod history;
mod model;
mod outcome;
mod over;
#[path = "../soak/mod.rs"]
mod soak;
mod steps;
mod value;
mod world;

use std::{
    env::var,
    ops::Range,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Instant,
};

use case::{Case, VARIABLE};
use counts::Counts;
use guard::{AGAIN, Guard};

/// How long a history is.
const STEPS: usize = 300;

/// Runs a case. What is wrong is told in few steps, with the command that makes them again.
fn run(guard: &Guard, case: &Case) -> Counts {
    guard.run(&case.command(), || {
        case.run().unwrap_or_else(|wrong| {
            let (text, command) = case.report(&wrong);
            panic!("{text}{AGAIN}{command}\n")
        })
    })
}

/// Runs the histories of these seeds, on all processors.
fn run_all(seeds: Range<u64>) -> Counts {
    let (next, all) = (AtomicU64::new(seeds.start), Mutex::new(Counts::default()));
    let work = || {
        let guard = Guard::new();
        loop {
            let seed = next.fetch_add(1, SeqCst);
            if seed >= seeds.end {
                return;
            }
            let counts = run(&guard, &Case::new(seed, STEPS));
            all.lock().unwrap().merge(counts);
        }
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        for worker in (0..threads).map(|_| scope.spawn(work)).collect::<Vec<_>>() {
            if let Err(panic) = worker.join() {
                // Nobody begins another one.
                next.store(seeds.end, SeqCst);
                std::panic::resume_unwind(panic);
            }
        }
    });
    all.into_inner().unwrap()
}

/// Enough for every bug that is planted for this net, and little to run.
#[test]
fn first_histories_are_judged() {
    let counts = run_all(0..600);
    println!("{} outcomes", counts.total());
}

#[test]
fn histories_are_judged_and_every_kind_of_outcome_occurs() {
    let counts = run_all(10_000..13_500);
    println!("{}{} outcomes", counts.table(), counts.total());
    let rare = counts.rarer_than(counts::AT_LEAST);
    assert!(rare.is_empty(), "these outcomes occur too seldom, or never: {rare:#?}");
}

/// The canary runs this with a bug planted: how many histories find it.
#[test]
#[ignore = "it finds nothing but what was planted"]
fn how_many_histories_find_it() {
    std::panic::set_hook(Box::new(|_| {}));
    let seeds = 0..300;
    let found = seeds.clone().filter(|seed| Case::new(*seed, STEPS).run().is_err()).count();
    println!("found in {found} of {} histories", seeds.count());
}

#[test]
#[ignore = "for the soak"]
fn soak() {
    soak::soak("outcomes", |seed, _: Instant| run(&Guard::new(), &Case::new(seed, STEPS)).total());
}

/// The case in the variable, as a failure's command has it.
#[test]
#[ignore = "a case from a failure's command"]
fn one_case_again() {
    let case: Case = var(VARIABLE).unwrap().parse().unwrap();
    if let Err(wrong) = case.run() {
        panic!("step {}: {}{AGAIN}{}\n", wrong.at, wrong.what, case.command());
    }
}

#[test]
fn a_case_is_read_back_from_what_a_failure_says() {
    let whole = Case::new(7, 300);
    let part = Case { only: Some([1, 5, 12].into()), ..whole.clone() };
    for case in [whole, part] {
        assert_eq!(guard::read_back(&case.command()).parse(), Ok(case));
    }
}
