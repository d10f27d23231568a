//! A test of whether the windows after drops differ from windows without drops.
//!
//! **Purpose.** Compares the 100 ms after each drop of X1 with the same times without drops, by rank: longest gap,
//! p99.99, and rate.
//!
//! **Invariants.** A probability below [`SIGNIFICANCE_LEVEL`] is a difference, and with few windows nothing is claimed
//! (test: `stalls_are_differences_and_few_windows_show_nothing`).
//!
//! **Method.** The windows of both kinds are from one process, in alternating phases.

use windfall_measure::{Grid, p_value};

use super::{section::Section, style::full};
use crate::results::{Load, Window, X1, X1Run};

/// Probabilities below this are a difference.
const SIGNIFICANCE_LEVEL: f64 = 0.01;
/// With fewer windows of a kind than this nothing is compared.
const FEWEST: usize = 8;

/// The headings of [`lines`].
const HEADINGS: [&str; 6] = ["system", ">windows", ">longest gap", ">p99.99", ">queries/s", ">told apart"];

/// A system compared with its baseline: the probabilities that windows with a drop would be this much worse by
/// accident.
#[derive(Clone, Copy, Debug)]
struct Comparison<'a> {
    run: &'a X1Run,
    /// The probabilities for the longest gap, for p99.99 and for the rate.
    p_values: [f64; 3],
}

impl<'a> Comparison<'a> {
    /// Compares a run with its baseline; `None` if there are too few windows.
    fn of(run: &'a X1Run) -> Option<Self> {
        let is_enough = run.with.windows.len().min(run.without.windows.len()) >= FEWEST;
        let compare = |of: fn(&Window) -> f64| {
            let values = |load: &Load| load.windows.iter().map(of).collect::<Vec<f64>>();
            p_value(&values(&run.without), &values(&run.with))
        };
        let p_values =
            || [compare(|w| w.gap_ns as f64), compare(|w| w.p9999_ns as f64), compare(|w| -w.rate)];
        is_enough.then(|| Self { run, p_values: p_values() })
    }

    /// Returns the system, with the ratio of the LRU list to the flush list.
    fn name(&self) -> String {
        format!("{}, {}:1", full(self.run.system), self.run.lru_to_flush)
    }

    /// Returns whether a drop shows in one of the three values.
    fn differs(&self) -> bool {
        self.p_values.iter().any(|&p_value| p_value < SIGNIFICANCE_LEVEL)
    }
}

/// Returns all systems that have enough windows.
fn all(x1: &X1) -> impl Iterator<Item = Comparison<'_>> {
    x1.runs.iter().filter_map(Comparison::of)
}

/// Returns a line per system.
fn lines(x1: &X1) -> Vec<Vec<String>> {
    let text = |p_value: f64| if p_value < 0.001 { "< 0.001".into() } else { format!("{p_value:.3}") };
    let line = |comparison: Comparison<'_>| {
        let windows = comparison.run.with.windows.len();
        let differs = if comparison.differs() { "yes" } else { "no" };
        let mut line = vec![comparison.name(), windows.to_string()];
        line.extend(comparison.p_values.map(text));
        line.push(differs.into());
        line
    };
    all(x1).map(line).collect()
}

/// Returns the table for the terminal, if it has any lines.
pub(super) fn grid(x1: &X1) -> Option<Grid> {
    let lines = lines(x1);
    let mut grid = (!lines.is_empty()).then(|| Grid::new(HEADINGS))?;
    for line in lines {
        grid.line(line);
    }
    Some(grid)
}

/// Adds the comparison to a section of the page.
pub(super) fn part(section: &mut Section, x1: &X1) {
    section.says(&said(x1));
    section.folded(
        "Chances that windows after drops would be this much worse by accident",
        &[(&HEADINGS.map(|heading| heading.trim_start_matches('>')), lines(x1))],
    );
}

/// Returns the result in a sentence.
fn said(x1: &X1) -> String {
    let names = |differs: bool| -> Vec<String> {
        all(x1).filter(|c| c.differs() == differs).map(|c| c.name()).collect()
    };
    let sentence = |text: &str, names: Vec<String>| {
        if names.is_empty() { String::new() } else { format!("{text} {}. ", names.join(", ")) }
    };
    sentence("A drop shows in the 100 ms after it with", names(true))
        + &sentence("These cannot be distinguished from the same times without drops with", names(false))
}
