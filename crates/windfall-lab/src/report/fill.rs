//! X2: drops by pool fill.
//!
//! **Purpose.** Compares the published times with ours as ratios, and shows how they grow with the fill, and the
//! tables dropped per second over time.
//!
//! **Method.** A growth compares a system with itself.

use windfall_measure::{
    page::Graph,
    svg::{Drawing, Panel, Scale, Shape, round_up},
    units::{count, time, times},
};

use super::{
    draw::{Bottom, Cell, Curve, Curves, Multiples, decades},
    published,
    ranking::{self, Measured, ends},
    section::Section,
    style::{self, Names, axis_rate, axis_time, axis_times, decimals, gigabytes},
};
use crate::{
    results::{X2, X2Run},
    system::System,
};

/// The number of points of a line of tables dropped per second.
const BINS: usize = 40;

/// Returns the values in order, without duplicates.
pub(super) fn distinct(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut all: Vec<f64> = values.into_iter().collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    all
}

/// Returns the systems in order, without duplicates.
pub(super) fn systems(all: impl IntoIterator<Item = System>) -> Vec<System> {
    let mut all: Vec<System> = all.into_iter().collect();
    all.sort();
    all.dedup();
    all
}

/// Returns the section of the page.
pub(super) fn section(x2: &X2) -> Section {
    let mut section = Section::new(
        "x2",
        "drops by how full the pool is",
        &format!(
            "{} tables are made, then dropped one after the other, with this many gigabytes in the pool. The setting of \
             2011: {}.",
            count(u64::from(x2.tables)),
            published::X2_SOURCE
        ),
    );
    let names = Names::of(x2.runs.iter().map(|r| r.system));
    section.setting(names.hash_said());
    if let Some(pages) = x2.runs.iter().map(|r| r.pages).max() {
        section.bookkeeping(&format!("The pool is filled with up to {} pages of bookkeeping", count(pages)));
    }
    let here: Vec<Measured> = x2
        .runs
        .iter()
        .map(|r| Measured { system: r.system, setting: gigabytes(r.fill_gb), time: r.drop_ns as f64 })
        .collect();
    let pairs = ranking::pairs(&published::X2, &here);
    ranking::part(&mut section, "Published ratios beside ours", published::X2_SOURCE, &pairs);
    section.graph("growth", growth(x2, names));
    section.graph("times", absolute(x2, names));
    section.graph("rates", over_time(x2, names));
    section
}

/// Draws the times as multiples of those with the least fill: published, and here, on one linear scale.
fn growth(x2: &X2, names: Names) -> Option<Graph> {
    let fills = distinct(x2.runs.iter().map(|r| r.fill_gb));
    let least = fills.first()?;
    if fills.len() < 2 {
        return None;
    }
    let settings: Vec<String> = fills.iter().map(|&gb| gigabytes(gb)).collect();
    let place = |setting: &str| settings.iter().position(|s| s == setting);
    let mut here = Vec::new();
    let mut grown = Vec::new();
    for system in systems(x2.runs.iter().map(|r| r.system)) {
        let of = |gb: f64| {
            let run = x2.runs.iter().find(|r| r.system == system && (r.fill_gb - gb).abs() < 1e-9);
            run.map(|r| r.drop_ns as f64)
        };
        let Some(first) = of(*least).filter(|&t| t > 0.0) else { continue };
        let points: Vec<_> =
            fills.iter().enumerate().filter_map(|(n, &gb)| Some((n, of(gb)? / first))).collect();
        grown.push((names.label(system), points.last().map_or(1.0, |p| p.1)));
        here.push(own(system, names, points, times));
    }
    let mut old: Vec<Curve> = Vec::new();
    let mut policies: Vec<_> = published::X2.iter().map(|p| p.policy).collect();
    policies.sort_unstable();
    policies.dedup();
    for policy in policies {
        let of = || published::X2.iter().filter(|p| p.policy == policy);
        let Some(first) = of().find(|p| p.setting == settings[0]) else { continue };
        let points = of().filter_map(|p| Some((place(p.setting)?, p.seconds / first.seconds))).collect();
        old.push(own(System::of(policy), Names::default(), points, times));
    }
    let most = here.iter().chain(&old).flat_map(|c| &c.points).map(|p| p.1).fold(1.0, f64::max);
    let scale = Scale::linear(0.0, round_up(most * 1.05));
    let mut panels = Vec::new();
    if !old.is_empty() {
        panels.push(("published".to_owned(), scale, old));
    }
    panels.push(("here".to_owned(), scale, here));
    let by_fill = fills.last().map_or(1.0, |last| last / least);
    let drawings = Curves {
        about: "Growth of the time of drops with the fill of the pool",
        columns: [panels.len(), 1],
        height: 190.0,
        left_label: axis_times,
        settings: fills.iter().map(|&gb| decimals(gb)).collect(),
        unit: "GB filled",
        named: true,
    }
    .draw(panels);
    Some(Graph {
        title: "How it grows with the fill".into(),
        legend: Vec::new(),
        drawings,
        caption: format!(
            "The time of each system as a multiple of its own at {}. A time that is proportional to the fill ends at {}. \
             {}",
            gigabytes(*least),
            times(by_fill),
            ends("Here it has grown", &grown, times)
        ),
    })
}

/// Returns a curve in the style of its system.
pub(super) fn own(system: System, names: Names, points: Vec<(usize, f64)>, hint: fn(f64) -> String) -> Curve {
    let hashed = if system.hash_index { " hollow" } else { "" };
    Curve {
        name: names.label(system),
        class: style::class(system.policy).to_owned(),
        dot: format!("{}{hashed}", style::dot(system.policy)),
        shape: style::shape(system.policy),
        points,
        hint,
    }
}

fn absolute(x2: &X2, names: Names) -> Option<Graph> {
    let fills = distinct(x2.runs.iter().map(|r| r.fill_gb));
    x2.runs.first()?;
    let curves: Vec<Curve> = systems(x2.runs.iter().map(|r| r.system))
        .into_iter()
        .map(|system| {
            let of =
                |gb: f64| x2.runs.iter().find(move |r| r.system == system && (r.fill_gb - gb).abs() < 1e-9);
            let points = fills.iter().enumerate().filter_map(|(n, &gb)| Some((n, of(gb)?.drop_ns as f64)));
            own(system, names, points.collect(), time)
        })
        .collect();
    let fullest = fills.last().copied().unwrap_or(0.0);
    let at_full: Vec<(String, f64)> = x2
        .runs
        .iter()
        .filter(|r| (r.fill_gb - fullest).abs() < 1e-9)
        .map(|r| (names.label(r.system), r.drop_ns as f64))
        .collect();
    Some(Graph {
        title: format!("The time to drop {} tables here", count(u64::from(x2.tables))),
        legend: Vec::new(),
        drawings: both_axes("Time to drop all tables by fill", &fills, "GB filled", curves),
        caption: format!(
            "The same times on both axes; the second goes by factors of ten. {}",
            ends(&format!("With {}", gigabytes(fullest)), &at_full, time)
        ),
    })
}

/// Draws times on a linear and on a logarithmic axis.
pub(super) fn both_axes(about: &str, gigabytes_set: &[f64], unit: &str, curves: Vec<Curve>) -> [Drawing; 2] {
    let values = || curves.iter().flat_map(|c| &c.points).map(|p| p.1);
    let linear = Scale::linear(0.0, round_up(values().fold(1.0, f64::max) * 1.05));
    let log = decades(values());
    Curves {
        about,
        columns: [2, 1],
        height: 210.0,
        left_label: axis_time,
        settings: gigabytes_set.iter().map(|&gb| decimals(gb)).collect(),
        unit,
        named: true,
    }
    .draw(vec![
        ("linear axis".to_owned(), linear, curves.clone()),
        ("logarithmic axis".to_owned(), log, curves),
    ])
}

/// Returns the tables dropped per second, in intervals of the run.
fn rates(run: &X2Run) -> Vec<(f64, f64)> {
    let ended = &run.ended_ns;
    let Some(&end) = ended.last().filter(|&&end| end > 0) else { return Vec::new() };
    // Each interval has the same number of tables: its rate is exact, even if the drops differ.
    let each = ended.len().div_ceil(BINS).max(1);
    let mut from = 0;
    let mut points = Vec::new();
    for part in ended.chunks(each) {
        let to = part[part.len() - 1];
        let rate = part.len() as f64 / ((to - from).max(1) as f64 / 1e9);
        points.push((from as f64 / end as f64, rate));
        points.push((to as f64 / end as f64, rate));
        from = to;
    }
    points
}

fn over_time(x2: &X2, names: Names) -> Option<Graph> {
    let fills = distinct(x2.runs.iter().map(|r| r.fill_gb));
    let shapes = [Shape::Circle, Shape::Square, Shape::Triangle, Shape::Diamond, Shape::Down];
    let y = decades(x2.runs.iter().flat_map(rates).map(|p| p.1));
    let x = Scale::linear(0.0, 100.0);
    let mut cells = Vec::new();
    let mut slowed = Vec::new();
    for system in systems(x2.runs.iter().map(|r| r.system)) {
        let mut lines = Vec::new();
        for run in x2.runs.iter().filter(|r| r.system == system) {
            let points: Vec<_> = rates(run).into_iter().map(|(x, y)| (x * 100.0, y)).collect();
            let n = fills.iter().position(|&gb| (gb - run.fill_gb).abs() < 1e-9).unwrap_or(0);
            let Some(&(_, last)) = points.last() else { continue };
            if n + 1 == fills.len() {
                slowed.push((names.label(system), last / points[0].1));
            }
            lines.push((points, shapes[n % shapes.len()], gigabytes(run.fill_gb)));
        }
        if lines.is_empty() {
            continue;
        }
        let class = style::class(system.policy);
        let draw = move |panel: &mut Panel| {
            for (points, shape, name) in &lines {
                panel.line(&format!("line own plain {class}"), points.iter().copied());
                let every = (points.len() / 6).max(1);
                for &(x, y) in points.iter().skip(every / 2).step_by(every) {
                    let hint = format!("{name}: {}", axis_rate(y));
                    panel.mark(*shape, &style::dot(system.policy), (x, y), &hint);
                }
            }
        };
        cells.push(Cell { heading: names.heading(system), x, y, draw: Box::new(draw) });
    }
    if cells.is_empty() {
        return None;
    }
    let drawings = Multiples {
        about: "Tables dropped per second over time",
        columns: [if cells.len() > 1 { 2 } else { 1 }, 1],
        height: 96.0,
        right: 18.0,
        left_label: axis_rate,
        bottom: Bottom::Numbers(|v| format!("{v:.0}%")),
        unit: "of the time until the last table was dropped",
    }
    .draw(&cells);
    let legend = fills.iter().enumerate().map(|(n, &gb)| {
        (format!("dot none {}", shapes[n % shapes.len()].name()), format!("{} filled", gigabytes(gb)))
    });
    Some(Graph {
        title: "Tables dropped per second, over time".into(),
        legend: legend.collect(),
        drawings,
        caption: format!(
            "All panels have the same left scale, by factors of ten; each line goes from the first to the last drop of its \
             run. {}",
            ends(
                "At the end, as a multiple of the rate at the beginning, with the most filled",
                &slowed,
                times
            )
        ),
    })
}
