//! The report of a demo: one page that needs nothing but a browser.
//!
//! **Purpose.** Graphs on the same scales, each with a caption, the tables of their figures, and how they were made.
//!
//! **Invariants.** The page loads nothing: no script, no font, no address (test: `a_demo_leaves_a_report`). It is
//! readable on light and dark backgrounds, on wide and narrow screens (test: `a_demo_leaves_a_report`).

mod graphs;

use std::fmt::Write as _;

use windfall_measure::{
    Latency, PERCENTILES, median,
    page::{made_by, table, tiles},
    svg::escape,
    units::{bytes, count, short, time},
};

use crate::{
    demo::{
        clients::WINDOW,
        summary::{Summary, percentiles},
    },
    oltp::KINDS,
};

/// Returns the page.
pub(crate) fn page(summary: &Summary) -> String {
    let mut body = opening(summary);
    for graph in graphs::all(summary) {
        let _ = write!(body, "<section>\n<h2>{}</h2>\n{}</section>\n", escape(&graph.title), graph.figure());
    }
    body.push_str(&tables(summary));
    body.push_str(&made(summary));
    windfall_measure::page::page("Windfall: tables dropped under load", &body)
}

fn opening(summary: &Summary) -> String {
    let (drops, baseline) = (&summary.drops, &summary.baseline);
    let stall = |p: &crate::demo::phase::Phase| time(p.record.timeline.longest_gap().length_ns as f64);
    let big = bytes(summary.sizes.big as f64);
    let header = format!(
        "<header>\n<p class=\"brand\">Windfall {}</p>\n<h1>Tables dropped under load</h1>\n<p class=\"lead\">{} tables \
         were dropped, one of them {big} large and wholly in the buffer pool, while {} clients worked on another \
         table. The longest time in which no client finished a call: <strong>{}</strong> with drops, \
         <strong>{}</strong> in the same run without.</p>\n</header>\n",
        env!("CARGO_PKG_VERSION"),
        drops.drops.len(),
        summary.options.threads,
        stall(drops),
        stall(baseline),
    );
    let (small, big_took) = summary.drop_times();
    let (sum, _) = summary.work();
    let p999 = |times: Latency| time(times.percentile(99.9) as f64);
    let figures = [
        ("Calls per second", short(drops.rate()), format!("without drops {}", short(baseline.rate()))),
        (
            "p99.9 in the 100 ms after drops",
            p999(drops.inside()),
            format!("in the same windows without drops {}", p999(baseline.inside())),
        ),
        (
            "A drop of a small table, median",
            if small.is_empty() { "-".into() } else { time(median(&small)) },
            big_took.map_or_else(String::new, |b| format!("the {big} table {}", time(b))),
        ),
        (
            "Frames, latches, list entries",
            count(sum.outside_system_tree()),
            "touched by all drops together, outside the system tree".into(),
        ),
    ];
    header + &tiles(figures)
}

fn tables(summary: &Summary) -> String {
    let mut html = String::from("<section>\n<h2>The work of the drops, counted</h2>\n");
    let (sum, most) = summary.work();
    let lines = most.fields().into_iter().zip(sum.fields());
    html.push_str(&table(
        &["", "most of one drop", "all drops"],
        lines.map(|((name, most), (_, sum))| vec![name.to_owned(), count(most), count(sum)]),
    ));
    let waits = summary.drops.waits.map(|waits| {
        format!(
            " Other threads waited {} times for a lock or latch that a dropping thread held.",
            count(waits)
        )
    });
    let _ = writeln!(
        html,
        "<p>Counted where the work happens, in the dropping thread, not in the code of the drop.{}</p>\n</section>",
        waits.unwrap_or_default()
    );

    html.push_str("<section>\n<h2>Latencies in figures</h2>\n");
    let headings: Vec<&str> = ["", "calls"].into_iter().chain(PERCENTILES.iter().map(|p| p.0)).collect();
    let line = |name: String, times: &Latency| {
        [name, count(times.count())].into_iter().chain(percentiles(times)).collect()
    };
    html.push_str(&table(
        &headings,
        summary.latencies().iter().map(|(name, times)| line(name.clone(), times)),
    ));
    let _ =
        writeln!(html, "<p>By kind of call, in the {} ms after drops and outside:</p>", WINDOW.as_millis());
    let record = &summary.drops.record;
    let kinds = KINDS.iter().enumerate().flat_map(|(n, kind)| {
        [
            line(format!("{kind}, in windows"), &record.inside[n]),
            line(format!("{kind}, outside"), &record.outside[n]),
        ]
    });
    html.push_str(&table(&headings, kinds));
    html + "</section>\n"
}

fn made(summary: &Summary) -> String {
    let o = &summary.options;
    let durability = match o.flush_log_at_trx_commit {
        crate::args::Commit::Lazy => "0: the log is written and synced about once a second",
        crate::args::Commit::Sync => "1: the log is synced before a commit is acknowledged",
        crate::args::Commit::Write => "2: the log is written at every commit and synced about once a second",
    };
    let lines = [
        ("Machine", summary.machine.line()),
        (
            "Clients",
            format!(
                "{} threads in the same process, each with one transaction after the other: 10 point reads, 4 ranges of 100 \
                 rows, 2 updates, a delete and an insert, on random rows, and the commit",
                o.threads
            ),
        ),
        (
            "Their table",
            format!(
                "sbtest1 of sysbench: {} rows of 188 bytes, a secondary index on k",
                count(u64::from(o.rows))
            ),
        ),
        (
            "Dropped tables",
            format!(
                "{}, every {} s: {} rows each, as in MySQL bug report 56332; one of {}, a row of each of its pages changed \
                 just before each run",
                summary.drops.drops.len(),
                o.drop_every,
                count(u64::from(o.small_rows)),
                bytes(summary.sizes.big as f64)
            ),
        ),
        (
            "Buffer pool",
            format!("{}, pages of {}", bytes(summary.sizes.pool as f64), bytes(summary.page_size as f64)),
        ),
        ("flush_log_at_trx_commit", durability.to_owned()),
        (
            "Prepared in",
            format!(
                "{} for loading, {} for the small tables",
                time(summary.prepared.load_seconds * 1e9),
                time(summary.prepared.small_seconds * 1e9)
            ),
        ),
        ("Runs", format!("{} s each, the one without drops first", short(summary.sizes.run_seconds))),
    ];
    made_by(lines, &summary.command())
}
