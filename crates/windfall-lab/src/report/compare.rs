//! A comparison of two results.
//!
//! **Purpose.** Shows the differences in speed, run by run: the same experiment, system and setting.
//!
//! **Invariants.** A run that is in only one of the results is named, not left out (test:
//! `runs_that_are_in_both_are_held_against_each_other`). No line is wider than 100 columns (test:
//! `runs_that_are_in_both_are_held_against_each_other`).

use std::fmt::Write as _;

use windfall_measure::{
    Grid,
    flat::Figure,
    units::{short, time, times},
};

use super::{
    concurrent::gap_near,
    loops::{x3_short, x4_setting},
    over_time::rate,
    style::{full, gigabytes},
    text::say,
};
use crate::results::{Load, Results};

/// A number of a run.
#[derive(Clone, Copy, Debug)]
enum Value {
    /// Nanoseconds.
    Time(f64),
    /// Per second.
    Rate(f64),
    /// A number.
    Count(f64),
}

impl Value {
    fn number(self) -> f64 {
        match self {
            Self::Time(v) | Self::Rate(v) | Self::Count(v) => v,
        }
    }

    fn text(self) -> String {
        match self {
            Self::Time(ns) => time(ns),
            Self::Rate(rate) => format!("{}/s", short(rate)),
            Self::Count(n) => short(n),
        }
    }
}

/// A run: its experiment, system and setting, and its numbers by name.
#[derive(Clone, Debug)]
struct Run {
    experiment: &'static str,
    system: String,
    setting: String,
    numbers: Vec<(&'static str, Value)>,
}

impl Run {
    fn is(&self, other: &Self) -> bool {
        self.experiment == other.experiment && self.system == other.system && self.setting == other.setting
    }

    fn name(&self) -> String {
        let setting = if self.setting.is_empty() { String::new() } else { format!(" ({})", self.setting) };
        format!("{}: {}{setting}", self.experiment, self.system)
    }
}

fn of_load(load: &Load) -> Vec<(&'static str, Value)> {
    vec![
        ("rate", Value::Rate(rate(load))),
        ("p99.99", Value::Time(load.latency.p9999_us * 1e3)),
        ("longest stall", Value::Time(load.longest_ns())),
    ]
}

fn runs(r: &Results) -> Vec<Run> {
    let mut all = Vec::new();
    let mut add = |experiment, system, setting: String, numbers: Vec<(&'static str, Value)>| {
        all.push(Run { experiment, system: full(system), setting, numbers });
    };
    let time = |ns: u64| Value::Time(ns as f64);
    let drops = |drops: bool| if drops { "drops" } else { "no drops" };
    for run in r.x1.iter().flat_map(|x| &x.runs) {
        for (with, load) in [(false, &run.without), (true, &run.with)] {
            add("X1", run.system, format!("{}:1, {}", run.lru_to_flush, drops(with)), of_load(load));
        }
    }
    for (x2, run) in r.x2.iter().flat_map(|x2| x2.runs.iter().map(move |run| (x2, run))) {
        add("X2", run.system, gigabytes(run.fill_gb), vec![("a drop", Value::Time(x2.each_drop(run)))]);
    }
    for run in r.x3.iter().flat_map(|x| &x.runs) {
        let p99 = Value::Time(run.latency.p99_us * 1e3);
        add("X3", run.system, x3_short(run), vec![("drop all", time(run.drop_ns)), ("p99", p99)]);
    }
    for run in r.x4.iter().flat_map(|x| &x.runs) {
        add("X4", run.system, x4_setting(run), vec![("a drop", Value::Time(run.each_drop()))]);
    }
    for run in r.x5.iter().flat_map(|x| &x.runs) {
        add("X5", run.system, gigabytes(run.pool_gb), vec![("100 tables", Value::Time(run.for_100()))]);
    }
    for run in r.x6.iter().flat_map(|x| &x.runs) {
        add("X6", run.system, drops(run.drops).into(), of_load(&run.load));
    }
    for run in r.x7.iter().flat_map(|x| &x.runs) {
        let mut numbers = vec![("gap", Value::Time(gap_near(&run.load)))];
        numbers.extend(run.load.longest_drop_ns().map(|ns| ("drop", Value::Time(ns))));
        add("X7", run.system, String::new(), numbers);
    }
    for run in r.x8.iter().flat_map(|x| &x.runs) {
        let numbers = vec![
            ("until gone", Value::Rate(run.rate_during)),
            ("gone after", time(run.gone_after_ns)),
            ("longest gap", Value::Time(gap_near(&run.load))),
        ];
        add("X8", run.system, String::new(), numbers);
    }
    for factor in r.x9.iter().flat_map(|x| &x.factors) {
        for statement in &factor.statements {
            let number = |figure, of: fn(f64) -> Value| {
                Some((Figure::text(figure), of(statement.cost(figure)?.large)))
            };
            let numbers = [
                number(Figure::Instructions, Value::Count),
                number(Figure::Freed, Value::Count),
                number(Figure::Time, Value::Time),
            ];
            all.push(Run {
                experiment: "X9",
                system: factor.id.clone(),
                setting: format!("{}, {}", statement.name, factor.amounts[1]),
                numbers: numbers.into_iter().flatten().collect(),
            });
        }
    }
    all
}

/// Returns a comparison of two results for the terminal.
pub fn compare(one: &Results, two: &Results, names: [&str; 2]) -> String {
    let (a, b) = (runs(one), runs(two));
    let mut text = String::new();
    for (letter, name, of) in [("A", names[0], one), ("B", names[1], two)] {
        let said = format!("{letter}: {name}, scale {}, {}", of.scale, of.machine.line());
        say(&mut text, &said);
    }
    for (what, a, b) in [("scales", &one.scale, &two.scale), ("versions", &one.version, &two.version)] {
        if a != b {
            let said = "a difference may come from that alone";
            say(&mut text, &format!("They are of different {what}, {a} and {b}: {said}."));
        }
    }
    let mut of = "";
    let mut grid: Option<Grid> = None;
    let flush = |text: &mut String, grid: &mut Option<Grid>| {
        if let Some(grid) = grid.take() {
            let _ = write!(text, "{}", grid.text());
        }
    };
    for run in &a {
        let Some(other) = b.iter().find(|o| o.is(run)) else { continue };
        if run.experiment != of {
            flush(&mut text, &mut grid);
            of = run.experiment;
            let _ = writeln!(text, "\n{of}");
        }
        let grid = grid.get_or_insert_with(|| Grid::new(["system", "setting", "", ">A", ">B", ">B / A"]));
        for (n, (name, value)) in run.numbers.iter().enumerate() {
            let Some((_, theirs)) = other.numbers.iter().find(|(o, _)| o == name) else { continue };
            let first = |text: &String| if n == 0 { text.clone() } else { String::new() };
            grid.line([
                first(&run.system),
                first(&run.setting),
                (*name).to_owned(),
                value.text(),
                theirs.text(),
                times(theirs.number() / value.number()),
            ]);
        }
    }
    flush(&mut text, &mut grid);
    if of.is_empty() {
        text.push_str("\nNo run is in both.\n");
    }
    for (letter, mine, others) in [("A", &a, &b), ("B", &b, &a)] {
        let alone: Vec<&Run> = mine.iter().filter(|run| !others.iter().any(|o| o.is(run))).collect();
        if !alone.is_empty() {
            let _ = writeln!(text, "\nOnly in {letter}:");
            for run in alone {
                let _ = writeln!(text, "  {}", run.name());
            }
        }
    }
    text
}
