//! The load of the clients over time.
//!
//! **Purpose.** Draws rates and gaps of a load: per system one panel with the statements and one without, on one
//! scale.
//!
//! **Invariants.** An interval of a thinned line has the mean of its rates, and the longest of its gaps (test:
//! `thinned_lines_keep_means_and_the_longest_gaps`).

use windfall_measure::{
    page::Graph,
    svg::{Panel, Scale, Shape, round_up},
    units::{short, time},
};

use super::{
    draw::{Bottom, Cell, Multiples, curve, decades, lowest, thinned},
    ranking::ends,
    style::{self, Names, axis_rate, axis_time, decimals},
};
use crate::{results::Load, system::System};

/// A system with the loads with statements and without.
#[derive(Clone, Copy, Debug)]
pub(super) struct Both<'a> {
    /// The system.
    pub system: System,
    /// The load with statements.
    pub with: Option<&'a Load>,
    /// The load without statements.
    pub without: Option<&'a Load>,
}

impl<'a> Both<'a> {
    /// Returns the loads that exist.
    pub(super) fn loads(&self) -> impl Iterator<Item = &'a Load> + use<'a> {
        [self.with, self.without].into_iter().flatten()
    }
}

/// The values of a load that are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Finished queries per second.
    Rates,
    /// The longest time without a finished query.
    Gaps,
}

/// The labels of a graph over time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words<'a> {
    /// The title.
    pub title: &'a str,
    /// The finished items: `queries`.
    pub things: &'a str,
    /// The meaning of the vertical lines: `a table of 1,000 rows is dropped`.
    pub mark: &'a str,
    /// The heading of a panel without them: `without drops`.
    pub baseline: &'a str,
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::MAX, f64::min)
}

/// Returns whether the longest gap overlaps a statement, or the 100 ms after its start.
fn is_at_a_mark(load: &Load) -> bool {
    let gap = load.longest_gap;
    let end = gap.from_ns + gap.length_ns;
    load.marks.iter().any(|m| end > m.at_ns && gap.from_ns < m.at_ns + m.took_ns.max(100_000_000))
}

/// Returns the mean rate of a load.
pub(super) fn rate(load: &Load) -> f64 {
    load.queries as f64 / (load.length_ns as f64 / 1e9).max(1e-9)
}

fn values(load: &Load, what: What) -> (Vec<f64>, f64) {
    let interval = load.interval_ns as f64 / 1e9;
    match what {
        What::Rates => thinned(&load.rates, interval, mean),
        What::Gaps => thinned(&load.gaps_ns, interval, most),
    }
}

/// Draws lines at the starts of the statements, and the longest stall.
pub(super) fn marks(panel: &mut Panel, load: &Load, values: &[f64], interval_s: f64) {
    for (n, mark) in load.marks.iter().enumerate() {
        let at = mark.at_ns as f64 / 1e9;
        let hint = format!("{at:.2} s: number {} took {}", n + 1, time(mark.took_ns as f64));
        panel.vertical("drop", at, &hint);
    }
    let gap = load.longest_gap;
    let at = gap.from_ns as f64 / 1e9;
    let top = values.get((at / interval_s.max(1e-9)) as usize).copied().unwrap_or(0.0);
    let text = format!("longest stall {}", time(gap.length_ns as f64));
    panel.vertical("stall-line", at, &text);
    panel.mark(Shape::Arrow, "stall", (at, top), &format!("{text}, from {at:.2} s"));
    panel.label((at, f64::MAX), "note", &text);
}

/// Draws the graph.
pub(super) fn graph(runs: &[Both<'_>], what: What, words: Words<'_>) -> Option<Graph> {
    let loads = || runs.iter().flat_map(Both::loads);
    loads().next()?;
    let names = Names::of(runs.iter().map(|r| r.system));
    let length = loads().map(|l| l.length_ns as f64 / 1e9).fold(0.0, f64::max);
    let x = Scale::linear(0.0, length);
    let all = || loads().flat_map(|l| values(l, what).0);
    let y = match what {
        What::Rates => Scale::linear(0.0, round_up(all().fold(1.0, f64::max) * 1.1)),
        What::Gaps => decades(all().chain(loads().map(|l| l.longest_gap.length_ns as f64))),
    };
    let paired = runs.iter().any(|r| r.with.is_some() && r.without.is_some());
    let cell = |heading: String, class: &'static str, load: &'_ Load| {
        let (load, (values, interval)) = (load.clone(), values(load, what));
        let is_thinned = what == What::Rates && values.len() < load.rates.len();
        let low = if is_thinned { thinned(&load.rates, 1.0, least).0 } else { Vec::new() };
        Cell {
            heading,
            x,
            y,
            draw: Box::new(move |panel: &mut Panel| {
                curve(panel, class, &values, 0.0, interval);
                lowest(panel, class, &low, interval);
                marks(panel, &load, &values, interval);
            }),
        }
    };
    let mut cells = Vec::new();
    for run in runs {
        let class = style::class(run.system.policy);
        if let Some(load) = run.with {
            cells.push(cell(names.heading(run.system), class, load));
        }
        if let Some(load) = run.without {
            cells.push(cell(format!("{}, {}", names.label(run.system), words.baseline), class, load));
        }
    }
    let drawings = Multiples {
        about: words.title,
        columns: [if paired || cells.len() > 1 { 2 } else { 1 }, 1],
        height: 96.0,
        right: 14.0,
        left_label: if what == What::Rates { axis_rate } else { axis_time },
        bottom: Bottom::Numbers(decimals),
        unit: "seconds of the run",
    }
    .draw(&cells);
    Some(Graph {
        title: words.title.to_owned(),
        legend: vec![
            ("drop".into(), words.mark.to_owned()),
            ("stall".into(), format!("the longest time in which no {} finished", words.things)),
        ],
        drawings,
        caption: caption(runs, names, what, words),
    })
}

fn caption(runs: &[Both<'_>], names: Names, what: What, words: Words<'_>) -> String {
    let of = |get: &dyn Fn(&Both<'_>) -> Option<f64>| -> Vec<(String, f64)> {
        runs.iter().filter_map(|r| Some((names.label(r.system), get(r)?))).collect()
    };
    let same = if runs.len() > 1 || runs.iter().any(|r| r.loads().count() > 1) {
        "All panels have the same scale. "
    } else {
        ""
    };
    let interval = runs.iter().flat_map(Both::loads).map(|l| values(l, what).1).fold(0.0, f64::max);
    let each = time(interval * 1e9);
    match what {
        What::Rates => {
            let kept = of(&|r| {
                let (with, without) = (r.with?, r.without?);
                Some(with.rate_near() / without.rate_near()).filter(|share| share.is_finite())
            });
            let kept = ends(
                &format!("Rate in the 100 ms after a line, as a share of the same times {}", words.baseline),
                &kept,
                |share| format!("{}%", short(share * 100.0)),
            );
            let alone = of(&|r| {
                let with = r.with.filter(|l| !l.marks.is_empty())?;
                Some(with.rate_near() / rate(with)).filter(|share| share.is_finite())
            });
            let said = if kept.is_empty() {
                ends("Rate in the 100 ms after a line, as a share of the mean of the run", &alone, |share| {
                    format!("{}%", short(share * 100.0))
                })
            } else {
                kept
            };
            let is_thinned =
                runs.iter().flat_map(Both::loads).any(|l| values(l, what).0.len() < l.rates.len());
            let lowest = if is_thinned { ", with the lowest of its parts as a light line" } else { "" };
            format!(
                "{same}Mean rate of each {each}{lowest}; a system that stalls all clients at a line has a notch there. {said}"
            )
        }
        What::Gaps => {
            let stall = |l: &Load| l.longest_gap.length_ns as f64;
            let with = ends("Longest time in which nothing finished", &of(&|r| r.with.map(stall)), time);
            let quiet = of(&|r| r.without.map(stall));
            let quiet = ends(&format!("The same {}", words.baseline), &quiet, time);
            let text = format!(
                "{same}The longest gap that began in each {each}, by factors of ten; a drop that stalls all clients \
                 has a peak at its line. {with} {quiet}"
            );
            let of = |at: bool| -> Vec<String> {
                let with = runs.iter().filter(|r| r.with.is_some_and(|l| !l.marks.is_empty()));
                let with = with.filter(|r| r.with.is_some_and(|l| is_at_a_mark(l) == at));
                with.map(|r| names.label(r.system)).collect()
            };
            let (at, elsewhere) = (of(true), of(false));
            let mut text = text.trim_end().to_owned();
            if !at.is_empty() {
                text = format!("{text} The longest one stands at a line with {}.", at.join(", "));
            }
            if !elsewhere.is_empty() {
                text = format!("{text} It stands elsewhere with {}.", elsewhere.join(", "));
            }
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinned_lines_keep_means_and_the_longest_gaps() {
        let numbers: Vec<f64> = (0..1_000).map(f64::from).collect();
        let load = Load {
            interval_ns: 100_000_000,
            rates: numbers.clone(),
            gaps_ns: numbers.iter().rev().copied().collect(),
            ..Load::default()
        };
        let (rates, interval_s) = values(&load, What::Rates);
        assert_eq!((rates.len(), &rates[..2]), (334, &[1.0, 4.0][..]));
        assert!((interval_s - 0.3).abs() < 1e-9, "{interval_s}");
        assert_eq!(values(&load, What::Gaps).0[..2], [999.0, 996.0][..]);
    }
}
