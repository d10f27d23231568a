//! The tables of docs/history.md, in Markdown.
//!
//! **Purpose.** docs/history.md shows figures of a run. The tables are generated here, so that any run of the lab
//! produces the same tables with its own figures.
//!
//! **Invariants.** The first line of a table names the experiment and the scale (test:
//! `the_chapter_has_the_tables_that_are_written`).
//!
//! **Method.** A table contains the systems as they were published: at the ratio of the article, in one pool instance.
//! The count of a drop's entries is the mean over the drops of a run.

use windfall_measure::{
    median,
    units::{count, short, time, times},
};

use super::{
    concurrent::gap_near,
    fill::{distinct, systems},
    published::{self, Published},
    scale::before_over,
};
use crate::{
    policy::Steps,
    results::{Load, Mark, Results, X1, X1Run, X2, X3, X3Run, X4, X4Run, X5, X5Run, X6, X7, X8},
    system::{PolicyName, System},
};

/// Entries of the LRU list per entry of the flush list in the table of X1: the ratio of the article.
const RATIO: u32 = 3;
/// The text of an empty cell.
const NONE: &str = "-";

/// A table: its headings, and a line per system.
struct Table {
    heads: &'static [&'static str],
    lines: Vec<Vec<String>>,
}

impl Table {
    fn text(&self, id: &str, scale: &str) -> String {
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
        };
        let mut text = format!("<!-- {id}: scale {scale} -->\n| | {} |\n", self.heads.join(" | "));
        text += &line(&mut ["---"].into_iter().chain(self.heads.iter().map(|_| "---:")));
        for cells in &self.lines {
            text += &line(&mut cells.iter().map(String::as_str));
        }
        text
    }
}

/// Returns a table for each experiment in the results, with the name of its file.
pub fn tables(r: &Results) -> Vec<(String, String)> {
    let all = [
        ("x1", r.x1.as_ref().map(x1)),
        ("x2", r.x2.as_ref().map(x2)),
        ("x3", r.x3.as_ref().map(x3)),
        ("x4", r.x4.as_ref().map(x4)),
        ("x5", r.x5.as_ref().map(x5)),
        ("x6", r.x6.as_ref().map(x6)),
        ("x7", r.x7.as_ref().map(x7)),
        ("x8", r.x8.as_ref().map(x8)),
    ];
    let there =
        all.into_iter().filter_map(|(id, table)| Some((id, table.filter(|table| !table.lines.is_empty())?)));
    there.map(|(id, table)| (format!("{id}-table.md"), table.text(id, &r.scale))).collect()
}

fn name(system: System) -> String {
    format!("`{}`{}", system.policy, if system.hash_index { ", hash on" } else { "" })
}

fn per_cent(part: f64) -> String {
    if part.is_finite() { format!("{} %", short(100.0 * part)) } else { NONE.into() }
}

/// Returns the median of the longest gaps after the drops.
fn usual_gap(load: &Load) -> String {
    let gaps: Vec<f64> = load.windows.iter().map(|window| window.gap_ns as f64).collect();
    if gaps.is_empty() { NONE.into() } else { time(median(&gaps)) }
}

/// Returns the mean count per drop.
fn each(all: u64, drops: u64) -> String {
    let mean = all as f64 / drops.max(1) as f64;
    if mean < 100.0 && mean > 0.0 { short(mean) } else { count(mean.round() as u64) }
}

fn steps(marks: &[Mark], of: fn(&Steps) -> u64) -> String {
    each(marks.iter().map(|mark| of(&mark.steps)).sum(), marks.len() as u64)
}

/// Formats a time, if there is one.
fn maybe(ns: Option<f64>) -> String {
    ns.map_or(NONE.into(), time)
}

/// Returns a line for each system that has one.
fn lines(
    all: impl IntoIterator<Item = System>,
    line: impl FnMut(System) -> Option<Vec<String>>,
) -> Vec<Vec<String>> {
    systems(all).into_iter().filter_map(line).collect()
}

/// Returns a published time as a multiple of another one.
fn published(all: &[Published], policy: PolicyName, setting: &str, base: (PolicyName, &str)) -> Option<f64> {
    let find = |policy, setting: &str| all.iter().find(|p| p.policy == policy && p.setting == setting);
    Some(find(policy, setting)?.seconds / find(base.0, base.1)?.seconds)
}

fn x1(x1: &X1) -> Table {
    let runs = || x1.runs.iter().filter(|r| r.lru_to_flush == RATIO && r.system.instances == 1);
    let line = |system| {
        let X1Run { with, without, .. } = runs().find(|r| r.system == system)?;
        Some(vec![
            name(system),
            usual_gap(with),
            time(with.longest_ns()),
            time(without.longest_ns()),
            per_cent(with.rate_near() / without.rate_near()),
            steps(&with.marks, |s| s.lru_walked),
            steps(&with.marks, |s| s.flush_walked),
        ])
    };
    Table {
        heads: &[
            "gap at a drop, median",
            "longest stall",
            "without drops",
            "rate after a drop",
            "LRU walked",
            "flush list walked",
        ],
        lines: lines(runs().map(|r| r.system), line),
    }
}

fn x2(x2: &X2) -> Table {
    let fills = distinct(x2.runs.iter().map(|r| r.fill_gb));
    let line = |system: System| {
        let of = |fill: &f64| x2.runs.iter().find(|r| r.system == system && (r.fill_gb - fill).abs() < 1e-9);
        let (least, most) = (of(fills.first()?)?, of(fills.last()?)?);
        let [from, to] = [least, most].map(|run| x2.each_drop(run));
        let grown = published(&published::X2, system.policy, "104 GB", (system.policy, "21 GB"));
        Some(vec![
            name(system),
            time(from),
            time(to),
            times(to / from),
            grown.map_or(NONE.into(), times),
            each(most.steps.lru_walked, x2.tables.into()),
        ])
    };
    Table {
        heads: &[
            "a drop, least filled",
            "most filled",
            "grown by",
            "published growth",
            "LRU entries walked, most filled",
        ],
        lines: lines(x2.runs.iter().map(|r| r.system), line),
    }
}

fn x3(x3: &X3) -> Table {
    let line = |system| {
        let of = || x3.runs.iter().filter(move |r| r.system == system);
        let drop = |on: &str, threads: u32| {
            maybe(of().find(|r| r.on == on && r.threads == threads).map(X3Run::each_drop))
        };
        let walked = of().next().map(|r| each(r.steps.lru_walked, r.tables.into()))?;
        Some(vec![name(system), drop("disk", 1), drop("disk", 8), drop("tmpfs", 1), drop("tmpfs", 8), walked])
    };
    Table {
        heads: &[
            "a drop on disk, 1 thread",
            "8 threads",
            "in memory, 1 thread",
            "8 threads",
            "LRU entries walked",
        ],
        lines: lines(x3.runs.iter().map(|r| r.system), line),
    }
}

fn x4(x4: &X4) -> Table {
    let line = |system: System| {
        let find = |on: &str, filled: bool| {
            x4.runs.iter().find(|r| r.system == system && r.on == on && (r.fill_gb > 0.0) == filled)
        };
        let drop = |on, filled| maybe(find(on, filled).map(X4Run::each_drop));
        let loops = ["disk", "tmpfs"]
            .map(|on| published(&published::X4, system.policy, on, (PolicyName::FlushList, on)));
        let said = match loops {
            [Some(_), Some(_)] if system.policy == PolicyName::FlushList => "1".into(),
            [Some(disk), Some(memory)] => format!("{}, {}", times(disk), times(memory)),
            _ => NONE.into(),
        };
        let walked = find("disk", true).map_or(NONE.into(), |r| each(r.steps.lru_walked, r.loops.into()));
        Some(vec![name(system), said, drop("disk", false), drop("tmpfs", false), drop("disk", true), walked])
    };
    Table {
        heads: &[
            "published loops to those of 5.5.32, disk and ramdisk",
            "a drop, empty pool, disk",
            "in memory",
            "filled pool",
            "LRU entries walked, filled",
        ],
        lines: lines(x4.runs.iter().map(|r| r.system), line),
    }
}

fn x5(x5: &X5) -> Table {
    let line = |system: System| {
        let runs = || x5.runs.iter().filter(move |r| r.system == system);
        let by_pool = |a: &&X5Run, b: &&X5Run| a.pool_gb.total_cmp(&b.pool_gb);
        let (least, most) = (runs().min_by(by_pool)?, runs().max_by(by_pool)?);
        let came_after = system.policy > PolicyName::ExtentAhi;
        let ahead = runs().filter(|_| came_after).filter_map(|run| before_over(run, &x5.runs));
        Some(vec![
            name(system),
            time(least.for_100()),
            time(most.for_100()),
            times(most.for_100() / least.for_100()),
            ahead.max_by(f64::total_cmp).map_or(NONE.into(), times),
            each(
                most.steps.lru_walked + most.steps.flush_walked,
                u64::from(most.tables) * u64::from(most.rounds),
            ),
        ])
    };
    let with = |hash_index| {
        let of = x5.runs.iter().map(|r| r.system).filter(move |system| system.hash_index == hash_index);
        lines(of, line)
    };
    Table {
        heads: &[
            "100 tables, smallest pool",
            "largest pool",
            "grown by",
            "`extent-ahi` takes, at most",
            "entries walked, largest pool",
        ],
        lines: [with(false), with(true)].concat(),
    }
}

fn x6(x6: &X6) -> Table {
    let line = |system| {
        let load = |drops| x6.runs.iter().find(|r| r.system == system && r.drops == drops).map(|r| &r.load);
        let (with, without) = (load(true)?, load(false)?);
        Some(vec![
            name(system),
            per_cent(with.rate_near() / without.rate_near()),
            usual_gap(with),
            time(with.longest_ns()),
            time(without.longest_ns()),
        ])
    };
    Table {
        heads: &["rate after a drop", "gap at a drop, median", "longest gap", "without drops"],
        lines: lines(x6.runs.iter().map(|r| r.system), line),
    }
}

fn x7(x7: &X7) -> Table {
    let line = |system| {
        let load = &x7.runs.iter().find(|r| r.system == system)?.load;
        // All systems have it on.
        let name = name(System { hash_index: false, ..system });
        Some(vec![
            name,
            maybe(load.longest_drop_ns()),
            time(gap_near(load)),
            steps(&load.marks, |s| s.unhashed),
        ])
    };
    Table {
        heads: &["the drop", "gap of the others", "pages unhashed by it"],
        lines: lines(x7.runs.iter().map(|r| r.system), line),
    }
}

fn x8(x8: &X8) -> Table {
    let line = |system| {
        let run = x8.runs.iter().find(|r| r.system == system)?;
        Some(vec![
            name(system),
            maybe(run.load.longest_drop_ns()),
            time(run.gone_after_ns as f64),
            per_cent(run.rate_during / run.rate_before),
            time(gap_near(&run.load)),
        ])
    };
    Table {
        heads: &[
            "the DROP",
            "the file is gone after",
            "commits per second until then, of those before",
            "longest gap near it",
        ],
        lines: lines(x8.runs.iter().map(|r| r.system), line),
    }
}
