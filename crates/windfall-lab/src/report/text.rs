//! The tables for the terminal.
//!
//! **Purpose.** One or two tables per experiment, for use without a browser.
//!
//! **Invariants.** No line is wider than 100 columns (test: `tables_fit_the_terminal`).

use std::fmt::Write as _;

use windfall_measure::{
    Grid, flat,
    units::{bytes, count, short, time, times, wrapped},
};

use super::{
    concurrent::gap_near,
    loops::{x3_short, x4_setting},
    over_time::rate,
    significance,
    stalls::settings,
    style::{full, gigabytes},
};
use crate::results::{Load, Results, X1, X2, X3, X4, X5, X6, X7, X8};

/// The title of the second table of X1.
const COMPARISON: &str = "X1: chances that the 100 ms after a drop would be this much worse by accident";
/// The maximum width of a line.
pub(super) const WIDTH: usize = 100;

/// Returns the tables of all experiments.
pub fn text(results: &Results) -> String {
    let mut text = String::new();
    let r = results;
    let tables = [
        r.x1.as_ref().map(|x| (x1_title(x), x1(x))),
        r.x1.as_ref().and_then(|x| Some((COMPARISON, significance::grid(x)?))),
        r.x2.as_ref().map(|x| {
            ("X2: dropping all tables, by how full the pool is (pages are bookkeeping alone)", x2(x))
        }),
        r.x3.as_ref().map(|x| ("X3: many small tables", x3(x))),
        r.x4.as_ref()
            .map(|x| ("X4: make and drop in a loop (filled: with pages that are bookkeeping alone)", x4(x))),
        r.x5.as_ref()
            .map(|x| ("X5: 100 tables made and dropped, by pool (pages are bookkeeping alone)", x5(x))),
        r.x6.as_ref().map(|x| {
            ("X6: partitions dropped during inserts (other tables' pages are bookkeeping alone)", x6(x))
        }),
        r.x7.as_ref().map(|x| ("X7: a table dropped that is in the hash index", x7(x))),
        r.x8.as_ref().map(|x| ("X8: a large file dropped during durable commits", x8(x))),
        r.x9.as_ref().map(|x| {
            let title = "X9: what the cost of a drop does not depend on (Windfall; cost with much to cost with little)";
            (title, flat::ratios(&x.factors))
        }),
        r.x9.as_ref().map(|x| ("X9: what others noticed of drops with much", flat::effects_on_clients(&x.factors))),
    ];
    for (title, grid) in tables.into_iter().flatten() {
        let _ = writeln!(text, "{title}\n\n{}", grid.text());
    }
    say(&mut text, &results.machine.line());
    text
}

/// Adds a sentence, wrapped to the maximum width.
pub(super) fn say(text: &mut String, sentence: &str) {
    for line in wrapped(sentence, WIDTH) {
        let _ = writeln!(text, "{line}");
    }
}

/// Returns the title of X1, with the remark about its pages.
fn x1_title(x1: &X1) -> &'static str {
    if x1.bookkeeping_pages > 0 {
        "X1: drops during reads and writes (quiet: without drops; some pages are bookkeeping alone)"
    } else {
        "X1: drops during reads and writes (quiet: the same without drops)"
    }
}

fn ns(value: u64) -> String {
    time(value as f64)
}

fn of(load: Option<&Load>, get: impl Fn(&Load) -> String) -> String {
    load.map_or_else(|| "-".into(), get)
}

fn x1(x1: &X1) -> Grid {
    let headings = ["system", ">LRU:flush", ">per s", ">quiet", ">p99.99", ">quiet", ">stall", ">quiet"];
    let mut grid = Grid::new(headings);
    let far = |l: &Load| time(l.latency.p9999_us * 1e3);
    let stall = |l: &Load| time(l.longest_ns());
    let rate = |l: &Load| short(rate(l));
    for s in settings(&x1.runs) {
        let (with, without) = (s.both.with, s.both.without);
        grid.line([
            full(s.both.system),
            format!("{}:1", s.ratio),
            of(with, rate),
            of(without, rate),
            of(with, far),
            of(without, far),
            of(with, stall),
            of(without, stall),
        ]);
    }
    grid
}

fn x2(x2: &X2) -> Grid {
    let mut grid = Grid::new(["system", ">filled", ">make all", ">drop all", ">tables/s", ">LRU walked"]);
    for run in &x2.runs {
        grid.line([
            full(run.system),
            gigabytes(run.fill_gb),
            ns(run.create_ns),
            ns(run.drop_ns),
            short(f64::from(x2.tables) / (run.drop_ns as f64 / 1e9).max(1e-9)),
            count(run.steps.lru_walked),
        ]);
    }
    grid
}

fn x3(x3: &X3) -> Grid {
    let mut grid = Grid::new(["system", "tables x threads", ">drop all", ">p50", ">p99", ">max"]);
    let us = |us: f64| time(us * 1e3);
    for run in &x3.runs {
        let l = run.latency;
        grid.line([
            full(run.system),
            x3_short(run),
            ns(run.drop_ns),
            us(l.p50_us),
            us(l.p99_us),
            us(l.max_us),
        ]);
    }
    grid
}

fn x4(x4: &X4) -> Grid {
    let mut grid = Grid::new(["system", "setting", ">loops", ">together", ">a loop", ">a drop"]);
    for run in &x4.runs {
        grid.line([
            full(run.system),
            x4_setting(run),
            count(u64::from(run.loops)),
            ns(run.total_ns),
            time(run.each_loop()),
            time(run.each_drop()),
        ]);
    }
    grid
}

fn x5(x5: &X5) -> Grid {
    let mut grid = Grid::new(["system", ">pool", ">LRU entries", ">tables", ">for 100", ">p50", ">max"]);
    for run in &x5.runs {
        let l = run.drop_latency;
        grid.line([
            full(run.system),
            gigabytes(run.pool_gb),
            count(run.lru_entries),
            count(u64::from(run.tables)),
            time(run.for_100()),
            time(l.p50_us * 1e3),
            time(l.max_us * 1e3),
        ]);
    }
    grid
}

fn x6(x6: &X6) -> Grid {
    let mut grid = Grid::new(["system", "drops", ">inserts/s", ">p99.99", ">longest gap", ">in use, last"]);
    for run in &x6.runs {
        grid.line([
            full(run.system),
            if run.drops { "yes" } else { "no" }.into(),
            short(rate(&run.load)),
            time(run.load.latency.p9999_us * 1e3),
            time(run.load.longest_ns()),
            run.used_bytes.last().map_or_else(|| "-".into(), |&b| bytes(b as f64)),
        ]);
    }
    grid
}

fn x7(x7: &X7) -> Grid {
    let mut grid = Grid::new(["system", ">pages", ">entries", ">drop", ">gap near it", ">p99 near it"]);
    for run in &x7.runs {
        grid.line([
            full(run.system),
            count(run.pages),
            count(run.entries),
            run.load.longest_drop_ns().map_or_else(|| "-".into(), time),
            time(gap_near(&run.load)),
            time(run.load.latency_near.p99_us * 1e3),
        ]);
    }
    grid
}

fn x8(x8: &X8) -> Grid {
    let headings = ["system", ">before/s", ">during/s", ">ratio", ">drop", ">gone after", ">longest gap"];
    let mut grid = Grid::new(headings);
    for run in &x8.runs {
        grid.line([
            full(run.system),
            short(run.rate_before),
            short(run.rate_during),
            times(run.rate_during / run.rate_before),
            run.load.marks.first().map_or_else(|| "-".into(), |m| ns(m.took_ns)),
            ns(run.gone_after_ns),
            time(gap_near(&run.load)),
        ]);
    }
    grid
}
