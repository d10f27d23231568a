//! X6, X7 and X8: drops during inserts, during reads, and during durable commits.
//!
//! **Purpose.** Rates and gaps around drops that are large in one respect: partitions, pages in the hash index, bytes
//! on the disk. No published figures are shown with these, because none exist.

use windfall_measure::{
    median,
    page::{Graph, table},
    svg::{Panel, Scale, Shape, round_up},
    units::{bytes, count, short, things, time, times},
};

use super::{
    draw::{Bottom, Cell, Mark, Multiples, Row, Rows, curve, decades, thinned},
    fill::systems,
    over_time::{self, Both, What, Words},
    ranking::ends,
    section::Section,
    style::{self, Names, axis_rate, axis_time, decimals},
};
use crate::results::{self, Load, X6, X6Run, X7, X8, X8Run};

/// Returns the longest gap near the statements; the longest of all if there is no statement.
pub(super) fn gap_near(load: &Load) -> f64 {
    load.windows.iter().map(|window| window.gap_ns).max().map_or_else(|| load.longest_ns(), |ns| ns as f64)
}

/// Returns the interval between drops of partitions in seconds: the median of all times between two drops of a run.
fn every(x6: &X6) -> Option<f64> {
    let seconds = |m: &[results::Mark]| m[1].at_ns.saturating_sub(m[0].at_ns) as f64 / 1e9;
    let between: Vec<f64> = x6.runs.iter().flat_map(|r| r.load.marks.windows(2)).map(seconds).collect();
    (!between.is_empty()).then(|| median(&between))
}

/// Returns the section of X6.
pub(super) fn x6_section(x6: &X6) -> Section {
    let mut section = Section::new(
        "x6",
        "retention",
        &format!(
            "{} fill the newest partition of a time series. The oldest is dropped{}, so that {} are kept; without drops \
             all stay.",
            things(u64::from(x6.threads), "thread"),
            every(x6).map_or_else(String::new, |s| format!(" every {} s", short(s))),
            x6.kept
        ),
    );
    let names = Names::of(x6.runs.iter().map(|r| r.system));
    section.setting(names.hash_said());
    // The number of pages is in no result; that they are bookkeeping is true for every run of this experiment.
    section.bookkeeping("The pool is full of other tables' pages, as bookkeeping");
    let of = |drops: bool, system| x6.runs.iter().find(|r| r.system == system && r.drops == drops);
    let all = systems(x6.runs.iter().map(|r| r.system));
    let both: Vec<Both<'_>> = all
        .iter()
        .map(|&system| Both {
            system,
            with: of(true, system).map(|r| &r.load),
            without: of(false, system).map(|r| &r.load),
        })
        .collect();
    let words = |title| Words {
        title,
        things: "insert",
        mark: "the oldest partition is dropped",
        baseline: "without drops",
    };
    section.graph("rates", over_time::graph(&both, What::Rates, words("Inserts per second")));
    section.graph(
        "gaps",
        over_time::graph(&both, What::Gaps, words("The longest time in which no insert finished")),
    );
    section.graph("in-use", in_use(x6, names));
    section
}

/// Returns bytes as an axis label: the steps of the axis are round in decimal units.
fn axis_bytes(n: f64) -> String {
    match n {
        _ if n >= 1e9 => format!("{} GB", decimals((n / 1e7).round() / 100.0)),
        _ if n >= 1e6 => format!("{} MB", decimals((n / 1e5).round() / 10.0)),
        _ if n > 0.0 => format!("{} kB", decimals((n / 1e2).round() / 10.0)),
        _ => "0".into(),
    }
}

fn in_use(x6: &X6, names: Names) -> Option<Graph> {
    let most = x6.runs.iter().flat_map(|r| &r.used_bytes).max().copied()? as f64;
    // A size was recorded at each new partition: once a second, at full scale.
    let step = every(x6).filter(|&s| s > 0.0).unwrap_or(1.0);
    let seconds = x6.runs.iter().map(|r| r.used_bytes.len()).max()?.saturating_sub(1).max(1) as f64 * step;
    let (x, y) = (Scale::linear(0.0, seconds), Scale::linear(0.0, round_up(most * 1.05)));
    let points = |run: &X6Run| -> Vec<(f64, f64)> {
        (0..).map(|n| f64::from(n) * step).zip(run.used_bytes.iter().map(|&b| b as f64)).collect()
    };
    let mut ended = Vec::new();
    let mut cells = Vec::new();
    for system in systems(x6.runs.iter().map(|r| r.system)) {
        let lines: Vec<(bool, Vec<(f64, f64)>)> =
            x6.runs.iter().filter(|r| r.system == system).map(|r| (r.drops, points(r))).collect();
        if let Some(&(_, last)) = lines.iter().find(|l| l.0).and_then(|l| l.1.last()) {
            ended.push((names.label(system), last));
        }
        let class = style::class(system.policy);
        let draw = move |panel: &mut Panel| {
            for (drops, points) in &lines {
                let line = if *drops { format!("line own plain {class}") } else { "line none".into() };
                panel.line(&line, points.iter().copied());
                if let Some(&last) = points.last() {
                    let shape = if *drops { Shape::Circle } else { Shape::Square };
                    let dot = if *drops { style::dot(system.policy) } else { "dot none".into() };
                    panel.mark(shape, &dot, last, &axis_bytes(last.1));
                }
            }
        };
        cells.push(Cell { heading: names.heading(system), x, y, draw: Box::new(draw) });
    }
    let drawings = Multiples {
        about: "Bytes in use by all partitions over time",
        columns: [if cells.len() > 1 { 2 } else { 1 }, 1],
        height: 96.0,
        right: 18.0,
        left_label: axis_bytes,
        bottom: Bottom::Numbers(decimals),
        unit: "seconds of the run",
    }
    .draw(&cells);
    Some(Graph {
        title: "Bytes in use by all partitions".into(),
        legend: vec![
            ("dot with circle".into(), "with drops".into()),
            ("dot none square".into(), "without".into()),
        ],
        drawings,
        caption: format!(
            "All panels have the same scale. They show the size of the files when everything is written. A line that stays level is space that dropped partitions give back. {}",
            ends("At the end of the run with drops", &ended, axis_bytes)
        ),
    })
}

/// Returns the section of X7.
pub(super) fn x7_section(x7: &X7) -> Section {
    let mut section = Section::new(
        "x7",
        "the storm of the hash index",
        &format!(
            "A table is dropped all of whose pages are in the hash index, while {} read another one.",
            things(u64::from(x7.threads), "thread")
        ),
    );
    let names = Names::of(x7.runs.iter().map(|r| r.system));
    section.setting(names.hash_said());
    let mut rows = Vec::new();
    let (mut values, mut drops, mut gaps) = (Vec::new(), Vec::new(), Vec::new());
    for run in &x7.runs {
        let gap = gap_near(&run.load);
        let policy = run.system.policy;
        let gap_hint = format!("longest gap in the 100 ms after the drop: {}", time(gap));
        let mut marks =
            vec![Mark { value: gap, shape: Shape::Square, class: "dot hollow".into(), hint: gap_hint }];
        gaps.push((names.label(run.system), gap));
        let took = run.load.longest_drop_ns();
        if let Some(took) = took {
            let hint = format!("the drop took {}", time(took));
            let class = style::dot(policy);
            marks.push(Mark { value: took, shape: Shape::Circle, class, hint });
            drops.push((names.label(run.system), took));
        }
        values.extend(marks.iter().map(|m| m.value));
        let note = format!("{} / {}", took.map_or_else(|| "-".into(), time), time(gap));
        rows.push(Row::Line {
            name: names.label(run.system),
            class: style::class(policy).into(),
            marks,
            note,
        });
    }
    if !rows.is_empty() {
        let drawings = Rows {
            about: "Drop times and the longest gaps",
            scale: decades(values),
            label: axis_time,
            unit: "by factors of ten",
            from: None,
            between: true,
        }
        .draw(&rows);
        section.graph(
            "times",
            Some(Graph {
                title: "How long the drop took, and how long the clients stood".into(),
                legend: vec![
                    ("dot with circle".into(), "time of the drop".into()),
                    (
                        "dot hollow square".into(),
                        "longest time in which no query finished, near the drop".into(),
                    ),
                ],
                drawings,
                caption: format!(
                    "At the end of a line: the drop / the gap. {} {}",
                    ends("The drop", &drops, time),
                    ends("The gap", &gaps, time)
                ),
            }),
        );
    }
    let both: Vec<Both<'_>> =
        x7.runs.iter().map(|r| Both { system: r.system, with: Some(&r.load), without: None }).collect();
    let words =
        |title| Words { title, things: "query", mark: "the table is dropped", baseline: "without drops" };
    section.graph("rates", over_time::graph(&both, What::Rates, words("Queries per second around the drop")));
    let lines = x7.runs.iter().map(|r| {
        let of = r
            .load
            .marks
            .iter()
            .fold((0, 0), |sum, m| (sum.0 + m.steps.unhashed, sum.1 + m.steps.hash_entries));
        vec![style::full(r.system), count(r.pages), count(r.entries), count(of.0), count(of.1)]
    });
    let lines: Vec<_> = lines.collect();
    section.folded(
        "What was in the hash index, and what the drop removed from it",
        &[(&["", "pages of the table", "entries before", "pages unhashed", "entries removed"], lines)],
    );
    section
}

/// Returns the section of X8.
pub(super) fn x8_section(x8: &X8) -> Section {
    let mut section = Section::new(
        "x8",
        "the large file",
        &format!(
            "A table with a file of {} is dropped while {} commit durably.",
            bytes(x8.file_bytes as f64),
            things(u64::from(x8.threads), "thread")
        ),
    );
    let names = Names::of(x8.runs.iter().map(|r| r.system));
    section.setting(names.hash_said());
    section.graph("commits", around(x8, names));
    let lines = x8.runs.iter().map(|r| {
        let took = r.load.marks.first().map_or_else(|| "-".into(), |m| time(m.took_ns as f64));
        vec![
            style::full(r.system),
            short(r.rate_before),
            short(r.rate_during),
            times(r.rate_during / r.rate_before),
            took,
            time(r.gone_after_ns as f64),
            time(gap_near(&r.load)),
        ]
    });
    let lines: Vec<_> = lines.collect();
    if !lines.is_empty() {
        section.html(&table(
            &["", "commits/s before", "until gone", "ratio", "drop", "file gone after", "longest gap"],
            lines,
        ));
    }
    section
}

/// Returns the shown range of time in seconds: from some time before the drop to as long after the file's deletion.
fn window(run: &X8Run) -> (f64, f64) {
    let length = run.load.length_ns as f64 / 1e9;
    let at = run.load.marks.first().map_or(0.0, |m| m.at_ns as f64 / 1e9);
    let gone = run.gone_after_ns as f64 / 1e9;
    let beside = (gone * 0.5).max(1.0);
    ((at - beside).max(0.0), (at + gone + beside).min(length))
}

fn around(x8: &X8, names: Names) -> Option<Graph> {
    // All panels show the same length of time: that of the run with the longest range.
    let before =
        x8.runs.iter().map(|r| r.load.marks.first().map_or(0.0, |m| m.at_ns as f64 / 1e9) - window(r).0);
    let before = before.fold(0.0, f64::max);
    let behind =
        x8.runs.iter().map(|r| window(r).1 - r.load.marks.first().map_or(0.0, |m| m.at_ns as f64 / 1e9));
    let x = Scale::linear(-before, behind.fold(1.0, f64::max));
    let (from, to) = (-before, x8.runs.iter().map(|r| window(r).1).fold(1.0, f64::max));
    let most = x8.runs.iter().flat_map(|r| r.load.rates.iter().copied()).fold(1.0, f64::max);
    let y = Scale::linear(0.0, round_up(most * 1.1));
    let mut cells = Vec::new();
    let (mut kept, mut gone_after) = (Vec::new(), Vec::new());
    for run in &x8.runs {
        let at = run.load.marks.first().map_or(0.0, |m| m.at_ns as f64 / 1e9);
        let interval = run.load.interval_ns as f64 / 1e9;
        let skip = (((at + from) / interval.max(1e-9)).ceil().max(0.0)) as usize;
        let shown: Vec<f64> = run
            .load
            .rates
            .iter()
            .copied()
            .enumerate()
            .filter(|(n, _)| *n >= skip && (*n as f64) * interval < at + to)
            .map(|(_, v)| v)
            .collect();
        let (values, interval_shown) =
            thinned(&shown, interval, |part| part.iter().sum::<f64>() / part.len().max(1) as f64);
        let start = skip as f64 * interval - at;
        let gone = run.gone_after_ns as f64 / 1e9;
        kept.push((names.label(run.system), run.rate_during / run.rate_before * 100.0));
        gone_after.push((names.label(run.system), run.gone_after_ns as f64));
        let class = style::class(run.system.policy);
        let said = format!("gone after {}", time(run.gone_after_ns as f64));
        let draw = move |panel: &mut Panel| {
            curve(panel, class, &values, start, interval_shown);
            panel.vertical("drop", 0.0, "the drop begins");
            panel.vertical("gone", gone, &said);
            panel.label((gone, f64::MAX), "note", &said);
        };
        cells.push(Cell { heading: names.heading(run.system), x, y, draw: Box::new(draw) });
    }
    if cells.is_empty() {
        return None;
    }
    kept.retain(|k| k.1.is_finite());
    let drawings = Multiples {
        about: "Commits per second around the drop of a large file",
        columns: [if cells.len() > 1 { 2 } else { 1 }, 1],
        height: 96.0,
        right: 18.0,
        left_label: axis_rate,
        bottom: Bottom::Numbers(|v| if v < 0.0 { format!("-{}", decimals(-v)) } else { decimals(v) }),
        unit: "seconds from the begin of the drop",
    }
    .draw(&cells);
    Some(Graph {
        title: "Commits per second around the drop".into(),
        legend: vec![
            ("drop".into(), "the drop begins".into()),
            ("gone".into(), "the file is gone from the disk".into()),
        ],
        drawings,
        caption: format!(
            "All panels have the same scale. Between the lines the file system frees the blocks of the file. {} {}",
            ends("Commits per second until it is gone, as a share of those before", &kept, |v| format!(
                "{}%",
                short(v)
            )),
            ends("Until the file is gone", &gone_after, time)
        ),
    })
}
