//! Prints a cycle: its edges in words, then its transactions.

use core::fmt::Write as _;

use super::{
    facts::{Facts, NOTHING},
    points::{Edge, Part, Point, Points, Why},
};

/// The most characters per transaction: one that reads everything would fill pages.
const LONGEST: usize = 600;

pub(super) fn cycle(facts: &Facts<'_>, points: &Points, cycle: &[Edge]) -> String {
    // The text begins with a transaction. Moments between two transactions are printed with the second.
    let start =
        cycle.iter().position(|edge| points.all[edge.from as usize].part != Part::Moment).unwrap_or(0);
    let edges = cycle[start..].iter().chain(&cycle[..start]);
    let is_timed = cycle.iter().any(|edge| edge.why == Why::Time);
    let mut text = String::from(if is_timed { "a cycle, by the clock" } else { "a cycle" });
    let mut transactions = Vec::new();
    // The transaction before the current run of moments.
    let mut from = points.all[cycle[start].from as usize];
    for edge in edges {
        let begin = points.all[edge.from as usize];
        if begin.part != Part::Moment {
            from = begin;
            if !transactions.contains(&from.transaction) {
                transactions.push(from.transaction);
            }
        }
        let to = points.all[edge.to as usize];
        if to.part == Part::Moment {
            continue;
        }
        let (one, two) = (from.transaction, to.transaction);
        let (key, (before, after)) = (edge.key, edge.versions);
        let found = if before == NOTHING { "no row".into() } else { format!("{before}") };
        let why = match edge.why {
            Why::Own => "it is the same transaction".into(),
            Why::Time => "the one had ended when the other began".into(),
            Why::Write => format!("T{one} wrote {before} to key {key}, T{two} wrote {after} after that (ww)"),
            Why::Read => format!("T{one} wrote {before} to key {key}, T{two} read that (wr)"),
            Why::Miss => format!("T{one} read {found} at key {key}, T{two} wrote {after} after that (rw)"),
            Why::PredicateMiss => {
                format!(
                    "T{one} found no row {key} where it looked for several, T{two} wrote {after} there (rw)"
                )
            }
        };
        let _ = write!(text, "\n  {} was before {}: {why}", name(from), name(to));
    }
    for n in transactions {
        let line = facts.transaction(n).to_string();
        let cut = line.chars().take(LONGEST).collect::<String>();
        let _ = write!(text, "\n  T{n}: {cut}{}", if cut.len() < line.len() { " ..." } else { "" });
    }
    text
}

fn name(point: Point) -> String {
    let n = point.transaction;
    match point.part {
        Part::Read(step) => format!("T{n}'s call {}", step + 1),
        Part::Snapshot => format!("T{n}'s snapshot"),
        Part::Commit => format!("T{n}'s commit"),
        Part::All | Part::Moment => format!("T{n}"),
    }
}
