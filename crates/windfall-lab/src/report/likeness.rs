//! Whether those who work can tell a drop from none.
//!
//! **Purpose.** The 100 ms behind each drop of X1 are held against the same times without drops, by rank: longest gap,
//! p99.99, and rate.
//!
//! **Invariants.** A chance below [`CHANCE`] is a difference, and few windows claim nothing. The windows of both kinds
//! are of one process, in phases that took turns.
//!
//! **May touch.** `results`, `look`, `section`, `windfall-measure`.

use windfall_measure::{Grid, chance_of_larger};

use super::{look::full, section::Section};
use crate::results::{Load, Window, X1, X1Run};

/// Chances below this are a difference.
const CHANCE: f64 = 0.01;
/// Fewer windows of a kind than this are not compared.
const FEWEST: usize = 8;

/// The headings of [`lines`].
const HEADINGS: [&str; 6] = ["system", ">windows", ">longest gap", ">p99.99", ">queries/s", ">told apart"];

/// A system held against its baseline: the chances that windows with a drop would be this much worse by accident.
#[derive(Clone, Copy, Debug)]
struct Likeness<'a> {
    run: &'a X1Run,
    /// Of the longest gap, of p99.99, of the rate.
    chances: [f64; 3],
}

impl<'a> Likeness<'a> {
    /// None if there are too few windows.
    fn of(run: &'a X1Run) -> Option<Self> {
        let is_enough = run.with.windows.len().min(run.without.windows.len()) >= FEWEST;
        let chance = |of: fn(&Window) -> f64| {
            let values = |load: &Load| load.windows.iter().map(of).collect::<Vec<f64>>();
            chance_of_larger(&values(&run.without), &values(&run.with))
        };
        let chances = || [chance(|w| w.gap_ns as f64), chance(|w| w.p9999_ns as f64), chance(|w| -w.rate)];
        is_enough.then(|| Self { run, chances: chances() })
    }

    /// The system, with entries of the LRU list for each of the flush list.
    fn name(&self) -> String {
        format!("{}, {}:1", full(self.run.system), self.run.lru_to_flush)
    }

    /// Whether a drop shows in one of them.
    fn is_told_apart(&self) -> bool {
        self.chances.iter().any(|&chance| chance < CHANCE)
    }
}

/// All systems that have enough windows.
fn all(x1: &X1) -> impl Iterator<Item = Likeness<'_>> {
    x1.runs.iter().filter_map(Likeness::of)
}

/// A line for each system.
fn lines(x1: &X1) -> Vec<Vec<String>> {
    let chance = |chance: f64| if chance < 0.001 { "< 0.001".into() } else { format!("{chance:.3}") };
    let line = |like: Likeness<'_>| {
        let windows = like.run.with.windows.len();
        let told = if like.is_told_apart() { "yes" } else { "no" };
        let mut line = vec![like.name(), windows.to_string()];
        line.extend(like.chances.map(chance));
        line.push(told.into());
        line
    };
    all(x1).map(line).collect()
}

/// The table for the terminal, if there is anything in it.
pub fn grid(x1: &X1) -> Option<Grid> {
    let lines = lines(x1);
    let mut grid = (!lines.is_empty()).then(|| Grid::new(HEADINGS))?;
    for line in lines {
        grid.line(line);
    }
    Some(grid)
}

/// The part of the page.
pub fn part(section: &mut Section, x1: &X1) {
    section.says(&said(x1));
    section.folded(
        "Chances that windows behind drops would be this much worse by accident",
        &[(&HEADINGS.map(|heading| heading.trim_start_matches('>')), lines(x1))],
    );
}

/// What to see, in a sentence.
fn said(x1: &X1) -> String {
    let names = |told: bool| -> Vec<String> {
        all(x1).filter(|like| like.is_told_apart() == told).map(|like| like.name()).collect()
    };
    let sentence = |text: &str, names: Vec<String>| {
        if names.is_empty() { String::new() } else { format!("{text} {}. ", names.join(", ")) }
    };
    sentence("A drop shows in the 100 ms behind it with", names(true))
        + &sentence("These cannot be told from the same times without drops with", names(false))
}
