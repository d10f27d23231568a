//! The graphs of the report.
//!
//! **Purpose.** Calls per second, the longest gaps, latencies, drop times, the pool: each a drawing with a caption.
//!
//! **Method.** The runs with and without drops are one above the other on the same scales. A caption explains what to
//! see with the numbers of this run, and claims nothing that they do not show.

use std::time::Duration;

use windfall_measure::{
    GRAPH_INTERVAL, Latency, PERCENTILES, median,
    page::Graph,
    svg::{Drawing, Panel, Scale, Shape, Width, round_up},
    units::{bytes, count, short, time},
};

use crate::demo::{
    phase::{Phase, Sample},
    summary::Summary,
};

/// The height of one panel.
const HEIGHT: f64 = 150.0;
/// The space above a panel for its heading.
const ABOVE: f64 = 30.0;
/// The space below an axis.
const BELOW: f64 = 40.0;
const MB: f64 = 1_048_576.0;
const GB: f64 = 1_073_741_824.0;
/// The maximum number of points of a line.
const POINTS: u64 = 1_500;

/// Returns all graphs.
pub(super) fn all(summary: &Summary) -> Vec<Graph> {
    vec![rate(summary), gaps(summary), latency(summary), drop_times(summary), pool(summary)]
}

/// Draws two panels, the run with drops above the one without.
fn above_each_other(
    about: &str,
    summary: &Summary,
    y: Scale,
    draw: impl Fn(&mut Panel, &Phase, bool),
) -> [Drawing; 2] {
    let x = Scale::linear(0.0, summary.sizes.run_seconds);
    [Width::Wide, Width::Narrow].map(|width| {
        let mut with = Panel::new(width, ABOVE, HEIGHT, x, y);
        with.heading("With drops");
        draw(&mut with, &summary.drops, true);
        let mut without = Panel::new(width, with.bottom() + BELOW + ABOVE, HEIGHT, x, y);
        without.heading("The same without drops");
        draw(&mut without, &summary.baseline, false);
        let height = without.bottom() + BELOW;
        for panel in [&mut with, &mut without] {
            panel.bottom_axis("seconds of the run", short_seconds);
        }
        Drawing::new(width, height, about, [with, without])
    })
}

fn short_seconds(s: f64) -> String {
    if s.fract() == 0.0 { format!("{s:.0}") } else { format!("{s:.1}") }
}

/// Returns the interval that one point of a line represents.
fn interval(length: Duration) -> Duration {
    let least = GRAPH_INTERVAL;
    let points = (length.as_millis() / least.as_millis()) as u64;
    least * points.div_ceil(POINTS).max(1) as u32
}

/// Draws a vertical line at each drop.
fn drop_lines(panel: &mut Panel, phase: &Phase) {
    for drop in &phase.drops {
        let hint = format!(
            "{:.2} s: {} dropped in {}",
            drop.at_ns as f64 / 1e9,
            drop.table,
            time(drop.took_ns as f64)
        );
        let class = if drop.big { "drop big" } else { "drop" };
        panel.vertical(class, drop.at_ns as f64 / 1e9, &hint);
    }
}

fn drop_legend(summary: &Summary) -> Vec<(String, String)> {
    vec![
        (
            "drop".into(),
            format!("a table of {} rows is dropped", short(f64::from(summary.options.small_rows))),
        ),
        ("drop big".into(), format!("the {} table is dropped", bytes(summary.sizes.big as f64))),
    ]
}

/// Returns the values of intervals as a step line.
fn steps(values: &[f64], interval: Duration) -> impl Iterator<Item = (f64, f64)> {
    let s = interval.as_secs_f64();
    values.iter().enumerate().flat_map(move |(n, &v)| [(n as f64 * s, v), ((n + 1) as f64 * s, v)])
}

/// Draws the values of intervals, with the area below them.
fn curve(panel: &mut Panel, values: &[f64], interval: Duration, with: bool) {
    let points: Vec<_> = steps(values, interval).map(|(x, y)| (x, 0.0, y)).collect();
    panel.area(if with { "fill with" } else { "fill without" }, &points);
    panel.line(if with { "line with" } else { "line without" }, steps(values, interval));
}

fn rate(summary: &Summary) -> Graph {
    let interval = interval(summary.drops.length);
    let rates = |p: &Phase| p.record.timeline.rates(interval);
    let most = rates(&summary.drops).into_iter().chain(rates(&summary.baseline)).fold(1.0, f64::max);
    let y = Scale::linear(0.0, round_up(most * 1.08));
    let about = "Calls per second over time, with drops and without";
    let drawings = above_each_other(about, summary, y, |panel, phase, with| {
        panel.left_axis(|v| {
            if v >= 1000.0 { format!("{}k/s", short_seconds(v / 1000.0)) } else { format!("{v:.0}/s") }
        });
        let values = rates(phase);
        curve(panel, &values, interval, with);
        drop_lines(panel, phase);
        let gap = phase.record.timeline.longest_gap();
        let at = gap.from_ns as f64 / 1e9;
        let top = values.get((at / interval.as_secs_f64()) as usize).copied().unwrap_or(0.0);
        let text = format!("longest stall {}", time(gap.length_ns as f64));
        panel.vertical("stall-line", at, &text);
        panel.mark(Shape::Arrow, "stall", (at, top), &format!("{text}, from {at:.2} s"));
        panel.label((at, f64::MAX), "note", &text);
    });
    let (with, without) = (summary.drops.rate(), summary.baseline.rate());
    Graph {
        title: "Calls per second".into(),
        legend: drop_legend(summary),
        drawings,
        caption: format!(
            "Calls that all {} clients finished, in each {}. A stall would be a notch below a vertical line. With drops \
             {} calls per second, in the {} ms after a drop {}; without drops {}, in the same windows {}.",
            summary.options.threads,
            time(interval.as_nanos() as f64),
            short(with),
            crate::demo::clients::WINDOW.as_millis(),
            short(summary.drops.rate_inside()),
            short(without),
            short(summary.baseline.rate_inside()),
        ),
    }
}

fn gaps(summary: &Summary) -> Graph {
    let interval = interval(summary.drops.length);
    let of = |p: &Phase| -> Vec<f64> {
        p.record.timeline.gap_per(interval).into_iter().map(|ns| ns / 1e6).collect()
    };
    let most = of(&summary.drops).into_iter().chain(of(&summary.baseline)).fold(0.1, f64::max);
    let y = Scale::linear(0.0, round_up(most * 1.12));
    let about = "Longest time in which no client finished a call, with drops and without";
    let drawings = above_each_other(about, summary, y, |panel, phase, with| {
        panel.left_axis(|v| format!("{} ms", short_number(v)));
        let values = of(phase);
        curve(panel, &values, interval, with);
        drop_lines(panel, phase);
        let gap = phase.record.timeline.longest_gap();
        let (at, long) = (gap.from_ns as f64 / 1e9, gap.length_ns as f64 / 1e6);
        panel.mark(Shape::Arrow, "stall", (at, long), &format!("from {at:.3} s"));
        panel.label((at, long), "note", &format!("{} at {at:.1} s", time(gap.length_ns as f64)));
    });
    let longest = |p: &Phase| p.record.timeline.longest_gap().length_ns;
    let near = summary.drops.longest_in_windows();
    Graph {
        title: "The longest time in which no client finished anything".into(),
        legend: drop_legend(summary),
        drawings,
        caption: format!(
            "The longest gap that began in each {}. If drops held up the clients, the peaks would stand at the vertical \
             lines. Longest: {} with drops ({} in the windows after drops), {} without.",
            time(interval.as_nanos() as f64),
            time(longest(&summary.drops) as f64),
            time(near as f64),
            time(longest(&summary.baseline) as f64),
        ),
    }
}

fn short_number(v: f64) -> String {
    let text = format!("{v:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn latency(summary: &Summary) -> Graph {
    let (inside, outside) = (summary.drops.inside(), summary.drops.outside());
    let mut baseline = summary.baseline.inside();
    baseline.add(&summary.baseline.outside());
    let lines: [(&str, Shape, &str, &Latency); 3] = [
        ("none", Shape::Square, "run without drops", &baseline),
        ("with", Shape::Triangle, "with drops, outside the windows", &outside),
        ("inside", Shape::Circle, "with drops, in the 100 ms after each", &inside),
    ];
    let us = |l: &Latency, percent| l.percentile(percent) as f64 / 1e3;
    let all = || lines.iter().flat_map(|(.., l)| PERCENTILES.iter().map(move |&(_, p)| us(l, p)));
    let y = Scale::decades(all().fold(f64::MAX, f64::min), all().fold(0.0, f64::max));
    let x = Scale::linear(-0.3, PERCENTILES.len() as f64 - 0.7);
    let drawings = [Width::Wide, Width::Narrow].map(|width| {
        let mut panel = Panel::new(width, 14.0, 240.0, x, y);
        panel.left_axis(|v| time(v * 1e3));
        for (class, shape, name, times) in lines {
            let points = PERCENTILES.iter().enumerate().map(|(n, &(_, p))| (n as f64, us(times, p)));
            panel.line(&format!("line {class}"), points.clone());
            for ((n, y), (percentile, _)) in points.zip(PERCENTILES) {
                let hint = format!("{name}: {percentile} {}", time(y * 1e3));
                panel.mark(shape, &format!("dot {class}"), (n, y), &hint);
            }
        }
        panel.bottom_axis("share of the calls that took no longer", |v| {
            PERCENTILES
                .get(v as usize)
                .filter(|_| v.fract() == 0.0)
                .map_or_else(String::new, |p| p.0.to_owned())
        });
        let height = panel.bottom() + BELOW;
        Drawing::new(width, height, "Latency percentiles inside and outside drop windows", [panel])
    });
    let worst =
        |l: &Latency| format!("{} and {}", time(l.percentile(99.0) as f64), time(l.percentile(99.9) as f64));
    Graph {
        title: "How long calls took".into(),
        legend: lines
            .iter()
            .rev()
            .map(|&(class, _, name, _)| (dot_class(class).into(), name.to_owned()))
            .collect(),
        drawings,
        caption: format!(
            "Each line is the latency of all calls; the left axis goes by factors of ten. If the lines lie on each \
             other, a call cannot tell whether a table was just dropped. p99 and p99.9: {} in the windows ({} calls), \
             {} outside them, {} without drops.{}",
            worst(&inside),
            count(inside.count()),
            worst(&outside),
            worst(&baseline),
            crowd(summary),
        ),
    }
}

/// Returns a note that explains slow calls on a machine with fewer cores than clients.
fn crowd(summary: &Summary) -> String {
    let (clients, cores) = (summary.options.threads, summary.machine.cores);
    if (clients as usize) <= cores {
        return String::new();
    }
    format!(
        " {clients} clients share {cores} cores here: the time in which a client waits for a core is in its calls."
    )
}

fn dot_class(class: &str) -> &'static str {
    match class {
        "inside" => "dot inside circle",
        "with" => "dot with triangle",
        _ => "dot none square",
    }
}

fn drop_times(summary: &Summary) -> Graph {
    let drops = &summary.drops.drops;
    let us = |ns: u64| ns as f64 / 1e3;
    let all = || drops.iter().map(|d| us(d.took_ns));
    let y = Scale::decades(all().fold(f64::MAX, f64::min), all().fold(1.0, f64::max));
    let x = Scale::linear(0.0, summary.sizes.run_seconds);
    let drawings = [Width::Wide, Width::Narrow].map(|width| {
        let mut panel = Panel::new(width, 14.0, 170.0, x, y);
        panel.left_axis(|v| time(v * 1e3));
        for drop in drops {
            let at = (drop.at_ns as f64 / 1e9, us(drop.took_ns));
            let hint = format!("{}: {}", drop.table, time(drop.took_ns as f64));
            let (shape, class) =
                if drop.big { (Shape::Square, "dot inside") } else { (Shape::Circle, "dot with") };
            panel.mark(shape, class, at, &hint);
            if drop.big {
                panel.label(
                    at,
                    "note",
                    &format!("{}: {}", bytes(summary.sizes.big as f64), time(drop.took_ns as f64)),
                );
            }
        }
        panel.bottom_axis("seconds of the run", short_seconds);
        let height = panel.bottom() + BELOW;
        Drawing::new(width, height, "How long each drop took", [panel])
    });
    let small: Vec<f64> = drops.iter().filter(|d| !d.big).map(|d| d.took_ns as f64).collect();
    let big = drops.iter().find(|d| d.big);
    let page = summary.page_size as f64;
    Graph {
        title: "How long the drops took".into(),
        legend: vec![
            (
                "dot with circle".into(),
                format!("a table of {} rows", short(f64::from(summary.options.small_rows))),
            ),
            (
                "dot inside square".into(),
                format!("the {} table, all in the pool", bytes(summary.sizes.big as f64)),
            ),
        ],
        drawings,
        caption: format!(
            "The time of the call, {}. Small tables: median {}, longest {}.{}",
            match summary.options.flush_log_at_trx_commit {
                crate::args::Commit::Sync => "with the sync of the log that makes the drop durable",
                _ => "without a sync of the log",
            },
            time(median(&small)),
            time(small.iter().copied().fold(0.0, f64::max)),
            big.map_or_else(String::new, |b| format!(
                " The big one, with {} of dirty pages in the pool just before: {}.",
                bytes(b.dirty_before as f64 * page),
                time(b.took_ns as f64)
            )),
        ),
    }
}

/// A part of the contents of the pool.
type Part = fn(&Sample) -> u64;

fn pool(summary: &Summary) -> Graph {
    let (unit, name) = if summary.sizes.pool >= 2 << 30 { (GB, "GiB") } else { (MB, "MiB") };
    let page = summary.page_size as f64 / unit;
    let total = summary.sizes.pool as f64 / unit;
    let y = Scale::linear(0.0, total);
    let drawings = above_each_other("What the buffer pool held over time", summary, y, |panel, phase, _| {
        panel.left_axis(|v| format!("{} {name}", short_number(v)));
        let mut below = vec![0.0; phase.pool.len()];
        let layers: [(&str, Part); 4] = [
            ("fill dirty", |s| s.dirty),
            ("fill clean", |s| s.clean),
            ("fill dropped", |s| s.dropped),
            ("fill free", |s| s.free),
        ];
        for (class, of) in layers {
            let points: Vec<_> = phase
                .pool
                .iter()
                .zip(&mut below)
                .map(|(sample, low)| {
                    let from = *low;
                    *low += of(sample) as f64 * page;
                    (sample.at_ns as f64 / 1e9, from, *low)
                })
                .collect();
            panel.area(class, &points);
        }
        drop_lines(panel, phase);
    });
    let before_big = summary.drops.drops.iter().find(|d| d.big).map_or(0, |d| d.at_ns);
    let at = |from: u64| summary.drops.pool.iter().find(|s| s.at_ns >= from);
    let usable = |s: &Sample| (s.free + s.dropped) as f64 * summary.page_size as f64;
    let before = summary.drops.pool.iter().rev().find(|s| s.at_ns < before_big).map_or(0.0, usable);
    let after = at(before_big).map_or(0.0, usable);
    Graph {
        title: "What the buffer pool held".into(),
        legend: [
            ("fill free", "free"),
            ("fill dropped", "pages of dropped tables, taken before any live page"),
            ("fill clean", "clean pages"),
            ("fill dirty", "dirty pages"),
        ]
        .map(|(class, text)| (class.to_owned(), text.to_owned()))
        .into(),
        drawings,
        caption: format!(
            "Frames by what they hold. At the drop of the big table its frames become usable at once: free or dropped \
             were {} before it and {} in the next sample.",
            bytes(before),
            bytes(after)
        ),
    }
}
