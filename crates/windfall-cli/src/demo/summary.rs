//! The results of a demo.
//!
//! **Purpose.** The results of both runs, as JSON and as tables on the terminal.
//!
//! **Invariants.** The JSON contains what each graph of the report shows: calls per second, gaps, latencies, drops, the
//! pool (test: `the_numbers_of_a_demo_hang_together`).

use std::fmt::Write as _;

use serde_json::{Value, json};
use windfall_measure::{
    GRAPH_INTERVAL, Latency, Machine, PERCENTILES, median,
    units::{bytes, count, short, things, time},
};

use super::{
    Prepared, Sizes,
    clients::WINDOW,
    phase::{Phase, SAMPLE},
};
use crate::{args::DemoArgs, engine::DropWork, oltp::KINDS, output::Grid};

/// The results of a demo.
#[derive(Debug)]
pub(crate) struct Summary {
    /// The options of the call.
    pub options: DemoArgs,
    /// The sizes.
    pub sizes: Sizes,
    /// Bytes per page.
    pub page_size: u64,
    /// The machine.
    pub machine: Machine,
    /// The durations of the preparations.
    pub prepared: Prepared,
    /// The run without drops.
    pub baseline: Phase,
    /// The run with drops.
    pub drops: Phase,
}

impl Summary {
    /// Returns the command that repeats the same demo.
    pub(crate) fn command(&self) -> String {
        let o = &self.options;
        format!(
            "windfall demo --seconds {} --threads {} --rows {} --pool {} --big-table {} --drop-every {} --small-rows {} \
             --flush-log-at-trx-commit {} --seed {}",
            o.seconds,
            o.threads,
            o.rows,
            self.sizes.pool,
            self.sizes.big,
            o.drop_every,
            o.small_rows,
            o.flush_log_at_trx_commit.number(),
            o.seed
        )
    }

    /// Returns the counted work of all drops: the sum, and the maximum of one.
    pub(crate) fn work(&self) -> (DropWork, DropWork) {
        let (mut sum, mut most) = (DropWork::default(), DropWork::default());
        for drop in &self.drops.drops {
            sum.add(&drop.work);
            most.raise_to(&drop.work);
        }
        (sum, most)
    }

    /// Returns the times of the drops of small tables in nanoseconds, and of the big one.
    pub(crate) fn drop_times(&self) -> (Vec<f64>, Option<f64>) {
        let (big, small): (Vec<_>, Vec<_>) = self.drops.drops.iter().partition(|d| d.big);
        let ns = |d: &&super::phase::Dropped| d.took_ns as f64;
        (small.iter().map(ns).collect(), big.iter().map(ns).next())
    }

    /// Returns all results as JSON.
    pub(crate) fn json(&self) -> Value {
        let (sum, most) = self.work();
        json!({
            "command": self.command(),
            "version": env!("CARGO_PKG_VERSION"),
            "machine": self.machine,
            "page_size": self.page_size,
            "sizes": self.sizes,
            "prepared": self.prepared,
            "window_ms": WINDOW.as_millis() as u64,
            "sample_ms": SAMPLE.as_millis() as u64,
            "with_drops": phase_json(&self.drops),
            "without_drops": phase_json(&self.baseline),
            "drop_work": { "sum": sum, "most_of_one": most },
        })
    }

    /// Returns the tables for the terminal.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("\n{}\n\n", self.machine.line());
        let mut grid = Grid::new(["", ">with drops", ">without"]);
        let runs = [&self.drops, &self.baseline];
        let mut line = |name: &str, of: &dyn Fn(&Phase) -> String| {
            grid.line([name.to_owned(), of(runs[0]), of(runs[1])]);
        };
        line("calls per second", &|p| short(p.rate()));
        line("  in the 100 ms windows", &|p| short(p.rate_inside()));
        line("longest time without a finished call", &|p| {
            time(p.record.timeline.longest_gap().length_ns as f64)
        });
        line("  in the windows", &|p| time(p.longest_in_windows() as f64));
        if self.drops.waits.is_some() {
            line("waits for a lock or latch of a dropping thread", &|p| {
                p.waits.map(count).unwrap_or_default()
            });
        }
        let _ = writeln!(text, "{}", grid.text());

        let headings = ["latency"].into_iter().chain(PERCENTILES.iter().map(|_| ">"));
        let mut grid = Grid::new(headings);
        grid.line(std::iter::once("").chain(PERCENTILES.iter().map(|p| p.0)));
        for (name, times) in self.latencies() {
            grid.line(std::iter::once(name).chain(percentiles(&times)));
        }
        let _ = writeln!(text, "{}", grid.text());

        let (small, big) = self.drop_times();
        if !small.is_empty() {
            let drops = things(small.len() as u64, "drop");
            let _ = writeln!(text, "{drops} of small tables: median {}", time(median(&small)));
        }
        if let Some(big) = big {
            let _ = writeln!(
                text,
                "the {} table, in the pool and dirty: {}",
                bytes(self.sizes.big as f64),
                time(big)
            );
        }
        let (sum, most) = self.work();
        let mut grid = Grid::new(["counted work of the drops", ">most of one", ">all"]);
        for ((name, most), (_, sum)) in most.fields().into_iter().zip(sum.fields()) {
            grid.line([name.to_owned(), count(most), count(sum)]);
        }
        let _ = write!(text, "\n{}", grid.text());
        text
    }

    /// Returns the four latency distributions that are compared, with their names.
    pub(crate) fn latencies(&self) -> [(String, Latency); 4] {
        [
            ("with drops, in windows".into(), self.drops.inside()),
            ("with drops, outside".into(), self.drops.outside()),
            ("without, same windows".into(), self.baseline.inside()),
            ("without, outside".into(), self.baseline.outside()),
        ]
    }
}

/// Formats the percentiles.
pub(crate) fn percentiles(times: &Latency) -> impl Iterator<Item = String> {
    PERCENTILES.iter().map(|&(_, p)| time(times.percentile(p) as f64))
}

fn phase_json(phase: &Phase) -> Value {
    let timeline = &phase.record.timeline;
    let kinds: Vec<Value> = KINDS
        .iter()
        .enumerate()
        .map(|(n, kind)| {
            json!({ "kind": kind, "inside": phase.record.inside[n].json(), "outside": phase.record.outside[n].json() })
        })
        .collect();
    json!({
        "seconds": phase.length.as_secs_f64(),
        "calls": timeline.count(),
        "calls_per_second": phase.rate(),
        "calls_per_second_in_windows": phase.rate_inside(),
        "calls_per_second_each_100_ms": timeline.rates(GRAPH_INTERVAL),
        "longest_gap_ms_each_100_ms":
            timeline.gap_per(GRAPH_INTERVAL).iter().map(|ns| ns / 1e6).collect::<Vec<_>>(),
        "longest_gap": timeline.longest_gap(),
        "longest_gap_in_windows_ns": phase.longest_in_windows(),
        "windows_ns": phase.windows,
        "latency": { "inside": phase.inside().json(), "outside": phase.outside().json(), "by_kind": kinds },
        "drops": phase.drops,
        "waits_of_others_during_drops": phase.waits,
        "transactions_rolled_back": phase.record.rolled_back,
        "pool": phase.pool,
    })
}
