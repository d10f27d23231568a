//! X1: the effect of drops on clients.
//!
//! **Purpose.** Shows queries per second, gaps, latencies, and the settings that readers of the article requested; each
//! run with its baseline.
//!
//! **Method.** The graphs of all systems are of one setting, which is named; the others are in the comparison of
//! settings.

use std::collections::BTreeSet;

use windfall_measure::{
    page::Graph,
    svg::{Panel, Scale, Shape},
    units::{count, time, times},
};

use super::{
    draw::{Bottom, Cell, Curve, Curves, Multiples, decades},
    locks,
    over_time::{self, Both, What, Words},
    published,
    ranking::{self, Measured, ends},
    section::Section,
    significance,
    style::{self, Names, axis_time, decimals},
};
use crate::{
    results::{Load, Percentiles, X1, X1Run},
    system::{PolicyName, System},
};

/// The names of the percentiles on an axis.
pub(super) const NAMES: [&str; 6] = ["p50", "p95", "p99", "p99.9", "p99.99", "max"];

/// Returns percentiles in nanoseconds, in the order of [`NAMES`].
pub(super) fn nanoseconds(p: &Percentiles) -> [f64; 6] {
    [p.p50_us, p.p95_us, p.p99_us, p.p999_us, p.p9999_us, p.max_us].map(|us| us * 1e3)
}

/// A system with a setting, and its loads with drops and without.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting<'a> {
    /// The loads.
    pub both: Both<'a>,
    /// Entries of the LRU list per entry of the flush list.
    pub ratio: u32,
}

impl<'a> Setting<'a> {
    fn of(run: &'a X1Run) -> Self {
        let both = Both { system: run.system, with: Some(&run.with), without: Some(&run.without) };
        Self { both, ratio: run.lru_to_flush }
    }
}

/// Returns all settings, in the order of the systems.
pub(super) fn settings(runs: &[X1Run]) -> Vec<Setting<'_>> {
    let mut all: Vec<Setting<'_>> = runs.iter().map(Setting::of).collect();
    all.sort_by_key(|s| (s.both.system, s.ratio));
    all
}

/// Returns the setting with which all systems are shown: the ratio that most systems have (of several such ratios 3:1,
/// as published), and the least number of instances that a system has.
fn reference<'a>(all: &[Setting<'a>]) -> (u32, Vec<Both<'a>>) {
    let systems = |ratio: u32| all.iter().filter(|s| s.ratio == ratio).count();
    let ratio = all.iter().map(|s| s.ratio).max_by_key(|&r| (systems(r), r == 3, u32::MAX - r)).unwrap_or(3);
    let least = |system: System| {
        let same = |s: &&Setting<'_>| {
            let of = s.both.system;
            of.policy == system.policy && of.hash_index == system.hash_index && s.ratio == ratio
        };
        all.iter().filter(same).map(|s| s.both.system.instances).min()
    };
    let is_shown =
        |s: &&Setting<'_>| s.ratio == ratio && Some(s.both.system.instances) == least(s.both.system);
    (ratio, all.iter().filter(is_shown).map(|s| s.both).collect())
}

/// Returns the section of the page.
pub(super) fn section(x1: &X1) -> Section {
    let mut section = Section::new(
        "x1",
        "stalls under load",
        &format!(
            "{} client threads read and write a table of {} rows; every {} s a table of {} rows is dropped. {} pages are \
             in the pool. The setting of 2012: {}.",
            x1.threads,
            count(x1.rows),
            decimals(x1.drop_every_s),
            count(x1.victim_rows),
            count(x1.pages),
            published::X1_SOURCE
        ),
    );
    let all = settings(&x1.runs);
    let (ratio, shown) = reference(&all);
    let names = Names::of(shown.iter().map(|r| r.system));
    section.setting(&format!(
        "The graphs of all systems are with {ratio} entries of the LRU list for each of the flush list; Windfall has no \
         such lists, and the bookkeeping in its pool is clean. {}",
        names.hash_said()
    ));
    section.says("Longest stall: the longest time in which no client finished a query.");
    if x1.bookkeeping_pages > 0 {
        section.bookkeeping(&format!(
            "{} of the pool's {} pages are bookkeeping alone",
            count(x1.bookkeeping_pages),
            count(x1.pages)
        ));
    }
    let mark = format!("a table of {} rows is dropped", count(x1.victim_rows));
    let words = |title| Words { title, things: "query", mark: &mark, baseline: "without drops" };
    section.graph("rates", over_time::graph(&shown, What::Rates, words("Queries per second")));
    section.graph(
        "stalls",
        over_time::graph(&shown, What::Gaps, words("The longest time in which no client finished anything")),
    );
    section.graph("latencies", latencies(&shown, names));
    significance::part(&mut section, x1);
    published_stalls(&mut section, &shown);
    section.graph("locks", locks::graph(&shown, names));
    locks::tables(&mut section, &shown, names);
    section.graph(
        "by-ratio",
        by_setting(
            &all,
            "By the ratio of LRU list to flush list",
            "entries of the LRU list for one of the flush list",
            |s| s.ratio,
            |s| format!("{}:1", s.ratio),
            |s, least| s.both.system.instances == least,
        ),
    );
    section.graph(
        "by-instances",
        by_setting(
            &all,
            "By the number of pool instances",
            "instances of the buffer pool",
            |s| s.both.system.instances,
            |s| s.both.system.instances.to_string(),
            move |s, _| s.ratio == ratio,
        ),
    );
    section
}

fn published_stalls(section: &mut Section, shown: &[Both<'_>]) {
    let here: Vec<Measured> = shown
        .iter()
        .filter_map(|r| {
            Some(Measured { system: r.system, setting: "longest stall".into(), time: r.with?.longest_ns() })
        })
        .collect();
    let pairs = ranking::pairs(&published::X1, &here);
    let title = "The longest stalls, published and here, as ratios";
    ranking::part(section, title, published::X1_SOURCE, &pairs);
    if !pairs.is_empty() {
        section.says(
            "The published stalls were counted in whole seconds, from queries per second: 6, 2 and 1. Those here are \
             known to the nanosecond.",
        );
    }
}

/// Draws the latencies of each system: all queries, those near drops, and the baseline.
fn latencies(runs: &[Both<'_>], names: Names) -> Option<Graph> {
    let loads = || runs.iter().flat_map(Both::loads);
    let values = || {
        let of = |l: &Load| nanoseconds(&l.latency).into_iter().chain(nanoseconds(&l.latency_near));
        loads().flat_map(move |l| of(l).chain([l.longest_ns()]).collect::<Vec<_>>())
    };
    loads().next()?;
    let y = decades(values());
    let x = Scale::linear(-0.2, NAMES.len() as f64 - 0.8);
    let cell = |run: &Both<'_>| {
        let class = style::class(run.system.policy);
        let (with, without) = (run.with.cloned(), run.without.cloned());
        let system = run.system;
        let draw = move |panel: &mut Panel| {
            let line = |panel: &mut Panel, of: &Percentiles, line: &str, shape, dot: &str, what: &str| {
                if of.count == 0 {
                    return;
                }
                let points = (0..).map(f64::from).zip(nanoseconds(of));
                panel.line(line, points.clone());
                for ((n, ns), name) in points.zip(NAMES) {
                    panel.mark(shape, dot, (n, ns), &format!("{what}: {name} {}", time(ns)));
                }
            };
            if let Some(load) = &without {
                line(panel, &load.latency, "line none", Shape::Square, "dot none", "without drops");
            }
            if let Some(load) = &with {
                let (own, dot) = (format!("line own plain {class}"), style::dot(system.policy));
                let beside = format!("line own beside {class}");
                let hollow = format!("{dot} hollow");
                line(panel, &load.latency, &beside, Shape::Triangle, &hollow, "with drops, all");
                line(panel, &load.latency_near, &own, Shape::Circle, &dot, "in the 100 ms after drops");
                let at = (x_of_stall(), load.longest_ns());
                panel.mark(Shape::Arrow, "stall", at, &format!("longest stall {}", time(load.longest_ns())));
            }
        };
        Cell { heading: names.heading(run.system), x, y, draw: Box::new(draw) }
    };
    let cells: Vec<Cell<'_>> = runs.iter().map(cell).collect();
    let drawings = Multiples {
        about: "Latency percentiles of each system",
        columns: [if cells.len() > 1 { 2 } else { 1 }, 1],
        height: 132.0,
        right: 22.0,
        left_label: axis_time,
        bottom: Bottom::Names(NAMES.map(str::to_owned).to_vec()),
        unit: "share of the queries that took no longer",
    }
    .draw(&cells);
    let of = |which: &dyn Fn(&Load) -> f64, none: bool| -> Vec<(String, f64)> {
        let loads = runs.iter().filter_map(|r| Some((names.label(r.system), r.with?)));
        loads.filter(|(_, l)| none || l.latency_near.count > 0).map(|(name, l)| (name, which(l))).collect()
    };
    let far = of(&|l| l.latency.p9999_us * 1e3, true);
    let near = of(&|l| l.latency_near.p99_us * 1e3, false);
    Some(Graph {
        title: "How long queries took".into(),
        legend: vec![
            ("dot with circle".into(), "running in the 100 ms after a drop".into()),
            ("dot hollow triangle".into(), "all of the run with drops".into()),
            ("dot none square".into(), "run without drops".into()),
            ("stall".into(), "longest stall of all clients".into()),
        ],
        drawings,
        caption: format!(
            "All panels have the same scale, by factors of ten. Where the lines lie on each other a query cannot tell \
             whether a table was dropped. {} {}",
            ends("p99.99 of the whole run with drops", &far, time),
            ends("p99 after drops", &near, time)
        ),
    })
}

/// Returns the place of the stall: a little to the right of the longest latency.
fn x_of_stall() -> f64 {
    NAMES.len() as f64 - 0.85
}

/// Draws the longest stall and p99.99 by a setting, with a panel per system.
fn by_setting(
    all: &[Setting<'_>],
    title: &str,
    unit: &str,
    value: impl Fn(&Setting<'_>) -> u32,
    name: impl Fn(&Setting<'_>) -> String,
    belongs: impl Fn(&Setting<'_>, u32) -> bool,
) -> Option<Graph> {
    let least = |s: &Setting<'_>| {
        let of = all.iter().map(|o| o.both.system).filter(|o| o.policy == s.both.system.policy);
        of.map(|o| o.instances).min().unwrap_or(1)
    };
    let used: Vec<&Setting<'_>> =
        all.iter().filter(|s| s.both.with.is_some() && belongs(s, least(s))).collect();
    let mut places: Vec<(u32, String)> = used.iter().map(|s| (value(s), name(s))).collect();
    places.sort();
    places.dedup();
    if places.len() < 2 {
        return None;
    }
    let place = |s: &Setting<'_>| places.iter().position(|p| p.0 == value(s)).unwrap_or(0);
    let without_instances = |s: &Setting<'_>| System { instances: 1, ..s.both.system };
    let mut systems: Vec<System> = used.iter().map(|s| without_instances(s)).collect();
    systems.dedup();
    // A system that was run with only one value shows no change. Windfall, which has no instances, is shown
    // nevertheless.
    let values = |system: System| {
        let of = used.iter().filter(|s| without_instances(s) == system).map(|s| value(s));
        of.collect::<BTreeSet<u32>>().len()
    };
    systems.retain(|&system| values(system) > 1 || system == System::of(PolicyName::Detach));
    let names = Names::of(systems.iter().copied());
    let far = |l: &Load| l.latency.p9999_us * 1e3;
    let loads = || used.iter().filter_map(|s| s.both.with);
    let y = decades(loads().flat_map(|l| [l.longest_ns(), far(l)]));
    let mut change = Vec::new();
    let panels = systems.iter().map(|&system| {
        let of = || used.iter().filter(|s| without_instances(s) == system);
        let class = style::class(system.policy);
        let points = |get: &dyn Fn(&Load) -> f64| -> Vec<(usize, f64)> {
            let mut points: Vec<_> = of().filter_map(|s| Some((place(s), get(s.both.with?)))).collect();
            points.sort_by_key(|p| p.0);
            points
        };
        let stalls = points(&Load::longest_ns);
        if let (Some(first), Some(last)) = (stalls.first(), stalls.last())
            && first.0 != last.0
            && first.1 > 0.0
        {
            change.push((names.label(system), last.1 / first.1));
        }
        let curve = |points, line: &str, dot: String, shape| Curve {
            name: String::new(),
            class: format!("{class} {line}"),
            dot,
            shape,
            points,
            hint: time,
        };
        let dot = style::dot(system.policy);
        let curves = vec![
            curve(points(&far), "beside", format!("{dot} hollow"), Shape::Triangle),
            curve(stalls, "plain", dot, Shape::Circle),
        ];
        (names.label(system), y, curves)
    });
    let panels: Vec<_> = panels.collect();
    let drawings = Curves {
        about: title,
        columns: [4.min(panels.len()), 2.min(panels.len())],
        height: 104.0,
        left_label: axis_time,
        settings: places.iter().map(|p| p.1.clone()).collect(),
        unit,
        named: false,
    }
    .draw(panels);
    let (first, last) = (&places[0].1, &places[places.len() - 1].1);
    Some(Graph {
        title: title.to_owned(),
        legend: vec![
            ("dot with circle".into(), "longest stall".into()),
            ("dot hollow triangle".into(), "p99.99 of all queries".into()),
        ],
        drawings,
        caption: format!(
            "All panels have the same scale, by factors of ten. {}",
            ends(&format!("Longest stall at {last}, as a multiple of that at {first}"), &change, times)
        ),
    })
}
