//! Random histories of open transactions, on one thread in a drawn order, held against a model that knows what each
//! level of isolation allows and which lock keeps whom out.

#![allow(clippy::unwrap_used, reason = "a test panics")]

mod case;
#[path = "../changed_env/mod.rs"]
mod changed_env;
mod counts;
mod draw;
mod history;
mod model;
mod outcome;
mod steps;
mod value;
mod world;

use case::{Case, VARIABLE};

#[test]
fn try_it() {
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let from = number("FROM", 1);
    let (to, many) = (number("TO", from + 20), number("STEPS", 300) as usize);
    let (show, mut shown) = (number("SHOW", 3), 0);
    let mut counts = counts::Counts::default();
    let mut failed = 0;
    std::panic::set_hook(Box::new(|_| {}));
    for seed in from..to {
        let case = Case::new(seed, many);
        match case.run() {
            Ok(more) => counts.merge(more),
            Err(wrong) => {
                failed += 1;
                println!("seed {seed} step {}: {}", wrong.at, wrong.what);
                if shown < show {
                    shown += 1;
                    println!("{}\n", case.report(&wrong));
                }
            }
        }
    }
    println!("{}", counts.table());
    println!("{failed} failed of {}; {} outcomes", to - from, counts.total());
}

/// The case in the variable.
#[test]
#[ignore = "a case from a failure's command"]
fn one_case_again() {
    let case: Case = std::env::var(VARIABLE).unwrap().parse().unwrap();
    if let Err(wrong) = case.run() {
        panic!("step {}: {}", wrong.at, wrong.what);
    }
}
