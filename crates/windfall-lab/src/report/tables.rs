//! The tables of the chapter, in Markdown.
//!
//! **Purpose.** docs/history.md shows figures of a run. They are taken from it here, so that whoever runs the lab has
//! the same tables with his own.
//!
//! **Invariants.** A table holds the systems as they were published: at the ratio of the article, in one pool instance.
//! Its first line says the experiment and the scale. A drop's count of entries is the mean of a run's drops.
//!
//! **May touch.** `results`, `system`, `amid`, `fill`, `published`, `scale`, `windfall-measure`.

use windfall_measure::{
    median,
    units::{count, short, time, times},
};

use super::{
    amid::gap_near,
    fill::{distinct, systems},
    published::{self, Published},
    scale::for_100,
};
use crate::{
    policy::Steps,
    results::{Load, Mark, Results, X1, X2, X3, X4, X5, X5Run, X6, X7, X8},
    system::{PolicyName, System},
};

/// Entries of the LRU list for each of the flush list in the table of X1: the ratio of the article.
const RATIO: u32 = 3;
/// What stands where there is nothing.
const NONE: &str = "-";

/// A table: its headings, and a line for each system.
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

/// A table for each experiment that is there, by the name of its file.
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

/// The median of the longest gaps behind the drops.
fn usual_gap(load: &Load) -> String {
    let gaps: Vec<f64> = load.windows.iter().map(|window| window.gap_ns as f64).collect();
    if gaps.is_empty() { NONE.into() } else { time(median(&gaps)) }
}

fn longest(load: &Load) -> String {
    time(load.longest_gap.length_ns as f64)
}

/// What each of so many drops did.
fn each(all: u64, drops: u64) -> String {
    let mean = all as f64 / drops.max(1) as f64;
    if mean < 100.0 && mean > 0.0 { short(mean) } else { count(mean.round() as u64) }
}

fn steps(marks: &[Mark], of: fn(&Steps) -> u64) -> String {
    each(marks.iter().map(|mark| of(&mark.steps)).sum(), marks.len() as u64)
}

fn took(marks: &[Mark]) -> String {
    marks.iter().map(|mark| mark.took_ns).max().map_or(NONE.into(), |ns| time(ns as f64))
}

/// A published time as a multiple of another one.
fn published(all: &[Published], policy: PolicyName, setting: &str, base: (PolicyName, &str)) -> Option<f64> {
    let find = |policy, setting: &str| all.iter().find(|p| p.policy == policy && p.setting == setting);
    Some(find(policy, setting)?.seconds / find(base.0, base.1)?.seconds)
}

fn x1(x1: &X1) -> Table {
    let mut runs: Vec<_> =
        x1.runs.iter().filter(|r| r.lru_to_flush == RATIO && r.system.instances == 1).collect();
    runs.sort_by_key(|r| r.system);
    let lines = runs.into_iter().map(|r| {
        vec![
            name(r.system),
            usual_gap(&r.with),
            longest(&r.with),
            longest(&r.without),
            per_cent(r.with.rate_near() / r.without.rate_near()),
            steps(&r.with.marks, |s| s.lru_walked),
            steps(&r.with.marks, |s| s.flush_walked),
        ]
    });
    Table {
        heads: &[
            "gap at a drop, median",
            "longest stall",
            "without drops",
            "rate behind a drop",
            "LRU walked",
            "flush list walked",
        ],
        lines: lines.collect(),
    }
}

fn x2(x2: &X2) -> Table {
    let fills = distinct(x2.runs.iter().map(|r| r.fill_gb));
    let line = |system: System| {
        let of = |fill: &f64| x2.runs.iter().find(|r| r.system == system && (r.fill_gb - fill).abs() < 1e-9);
        let (least, most) = (of(fills.first()?)?, of(fills.last()?)?);
        let drop = |ns: u64| time(ns as f64 / f64::from(x2.tables.max(1)));
        let grown = published(&published::X2, system.policy, "104 GB", (system.policy, "21 GB"));
        Some(vec![
            name(system),
            drop(least.drop_ns),
            drop(most.drop_ns),
            times(most.drop_ns as f64 / least.drop_ns as f64),
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
        lines: systems(x2.runs.iter().map(|r| r.system)).into_iter().filter_map(line).collect(),
    }
}

fn x3(x3: &X3) -> Table {
    let line = |system: System| {
        let of = || x3.runs.iter().filter(move |r| r.system == system);
        let drop = |on: &str, threads: u32| {
            let run = of().find(|r| r.on == on && r.threads == threads);
            run.map_or(NONE.into(), |r| time(r.drop_ns as f64 / f64::from(r.tables.max(1))))
        };
        let walked = of().next().map_or(NONE.into(), |r| each(r.steps.lru_walked, r.tables.into()));
        vec![name(system), drop("disk", 1), drop("disk", 8), drop("tmpfs", 1), drop("tmpfs", 8), walked]
    };
    Table {
        heads: &[
            "a drop on disk, 1 thread",
            "8 threads",
            "in memory, 1 thread",
            "8 threads",
            "LRU entries walked",
        ],
        lines: systems(x3.runs.iter().map(|r| r.system)).into_iter().map(line).collect(),
    }
}

fn x4(x4: &X4) -> Table {
    let line = |system: System| {
        let find = |on: &str, filled: bool| {
            x4.runs.iter().find(|r| r.system == system && r.on == on && (r.fill_gb > 0.0) == filled)
        };
        let drop = |on: &str, filled: bool| {
            find(on, filled).map_or(NONE.into(), |r| time(r.drop_ns as f64 / f64::from(r.loops.max(1))))
        };
        let loops = ["disk", "tmpfs"]
            .map(|on| published(&published::X4, system.policy, on, (PolicyName::FlushList, on)));
        let said = match loops {
            [Some(_), Some(_)] if system.policy == PolicyName::FlushList => "1".into(),
            [Some(disk), Some(memory)] => format!("{}, {}", times(disk), times(memory)),
            _ => NONE.into(),
        };
        let walked = find("disk", true).map_or(NONE.into(), |r| each(r.steps.lru_walked, r.loops.into()));
        vec![name(system), said, drop("disk", false), drop("tmpfs", false), drop("disk", true), walked]
    };
    Table {
        heads: &[
            "published loops to those of 5.5.32, disk and ramdisk",
            "a drop, empty pool, disk",
            "in memory",
            "filled pool",
            "LRU entries walked, filled",
        ],
        lines: systems(x4.runs.iter().map(|r| r.system)).into_iter().map(line).collect(),
    }
}

fn x5(x5: &X5) -> Table {
    let mut all = systems(x5.runs.iter().map(|r| r.system));
    all.sort_by_key(|system| system.hash_index);
    let line = |system: System| {
        let mut runs: Vec<&X5Run> = x5.runs.iter().filter(|r| r.system == system).collect();
        runs.sort_by(|a, b| a.pool_gb.total_cmp(&b.pool_gb));
        let (least, most) = (runs.first()?, runs.last()?);
        let before = System { policy: PolicyName::ExtentAhi, ..system };
        let ratio = |run: &&X5Run| {
            let same = |r: &&X5Run| r.system == before && (r.pool_gb - run.pool_gb).abs() < 1e-9;
            Some(for_100(x5.runs.iter().find(same)?) / for_100(run))
        };
        let came_after = system.policy > before.policy;
        let ahead = runs.iter().filter(|_| came_after).filter_map(ratio).max_by(f64::total_cmp);
        Some(vec![
            name(system),
            time(for_100(least)),
            time(for_100(most)),
            times(for_100(most) / for_100(least)),
            ahead.map_or(NONE.into(), times),
            each(
                most.steps.lru_walked + most.steps.flush_walked,
                u64::from(most.tables) * u64::from(most.rounds),
            ),
        ])
    };
    Table {
        heads: &[
            "100 tables, smallest pool",
            "largest pool",
            "grown by",
            "`extent-ahi` takes, at most",
            "entries walked, largest pool",
        ],
        lines: all.into_iter().filter_map(line).collect(),
    }
}

fn x6(x6: &X6) -> Table {
    let line = |system: System| {
        let load = |drops| x6.runs.iter().find(|r| r.system == system && r.drops == drops).map(|r| &r.load);
        let (with, without) = (load(true)?, load(false)?);
        Some(vec![
            name(system),
            per_cent(with.rate_near() / without.rate_near()),
            usual_gap(with),
            longest(with),
            longest(without),
        ])
    };
    Table {
        heads: &["rate behind a drop", "gap at a drop, median", "longest gap", "without drops"],
        lines: systems(x6.runs.iter().map(|r| r.system)).into_iter().filter_map(line).collect(),
    }
}

fn x7(x7: &X7) -> Table {
    let line = |r: &crate::results::X7Run| {
        let marks = &r.load.marks;
        let name = name(System { hash_index: false, ..r.system });
        vec![name, took(marks), time(gap_near(&r.load)), steps(marks, |s| s.unhashed)]
    };
    let mut runs: Vec<_> = x7.runs.iter().collect();
    runs.sort_by_key(|r| r.system);
    Table {
        heads: &["the drop", "gap of the others", "pages unhashed by it"],
        lines: runs.into_iter().map(line).collect(),
    }
}

fn x8(x8: &X8) -> Table {
    let mut runs: Vec<_> = x8.runs.iter().collect();
    runs.sort_by_key(|r| r.system);
    let lines = runs.into_iter().map(|r| {
        vec![
            name(r.system),
            took(&r.load.marks),
            time(r.gone_after_ns as f64),
            per_cent(r.rate_during / r.rate_before),
            time(gap_near(&r.load)),
        ]
    });
    Table {
        heads: &[
            "the DROP",
            "the file is gone after",
            "commits per second until then, of those before",
            "longest gap near it",
        ],
        lines: lines.collect(),
    }
}
