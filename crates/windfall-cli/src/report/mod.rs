//! The report of a demo: one page that needs nothing but a browser.
//!
//! **Purpose.** Graphs on the same scales, each with a sentence that says what to see, the tables behind them, and what
//! made them.
//!
//! **Invariants.** The page loads nothing: no script, no font, no address. It reads on light and dark, wide and narrow.
//!
//! **May touch.** `demo` for its results, `oltp`, `windfall-measure`.

mod graphs;

use std::fmt::Write as _;

use windfall_measure::{
    Latency, PERCENTILES, median,
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

/// The page.
pub fn page(summary: &Summary) -> String {
    let mut html = String::from("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    html.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    html.push_str("<meta name=\"color-scheme\" content=\"light dark\">\n");
    html.push_str("<title>Windfall: tables dropped under load</title>\n<style>\n");
    html.push_str(include_str!("style.css"));
    html.push_str("</style>\n</head>\n<body>\n<main>\n");
    html.push_str(&opening(summary));
    for graph in graphs::all(summary) {
        let mut key = String::new();
        for (class, text) in &graph.key {
            let _ = write!(key, "<li>{}{}</li>", swatch(class), escape(text));
        }
        let _ = write!(
            html,
            "<section>\n<h2>{}</h2>\n<figure>\n<ul class=\"key\">{key}</ul>\n{}{}<figcaption>{}</figcaption>\n\
             </figure>\n</section>\n",
            escape(graph.title),
            graph.drawings[0],
            graph.drawings[1],
            escape(&graph.caption)
        );
    }
    html.push_str(&tables(summary));
    html.push_str(&made_by(summary));
    html.push_str("</main>\n</body>\n</html>\n");
    html
}

/// A sample of a class, for the key of a graph.
fn swatch(class: &str) -> String {
    let drawing = if class.starts_with("drop") {
        format!("<line class=\"{class}\" x1=\"8\" x2=\"8\" y1=\"1\" y2=\"15\"/>")
    } else if class.starts_with("fill") {
        format!("<rect class=\"{class}\" x=\"2\" y=\"3\" width=\"12\" height=\"10\"/>")
    } else {
        let shape = match class.rsplit(' ').next() {
            Some("circle") => "M3.5 8a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0Z",
            Some("triangle") => "M8 3l5 9h-10Z",
            _ => "M4 4h8v8h-8Z",
        };
        format!("<path class=\"{class}\" d=\"{shape}\"/>")
    };
    format!("<svg class=\"swatch\" viewBox=\"0 0 16 16\" aria-hidden=\"true\">{drawing}</svg>")
}

fn opening(summary: &Summary) -> String {
    let (drops, baseline) = (&summary.drops, &summary.baseline);
    let stall = |p: &crate::demo::phase::Phase| time(p.record.timeline.longest_gap().length_ns as f64);
    let big = bytes(summary.sizes.big as f64);
    let mut html = format!(
        "<header>\n<p class=\"brand\">Windfall {}</p>\n<h1>Tables dropped under load</h1>\n<p class=\"lead\">{} tables \
         were dropped, one of them {big} large and wholly in the buffer pool, while {} clients worked on another \
         table. The longest time in which no client finished a call: <strong>{}</strong> with drops, \
         <strong>{}</strong> in the same run without.</p>\n</header>\n<dl class=\"tiles\">\n",
        env!("CARGO_PKG_VERSION"),
        drops.drops.len(),
        summary.options.threads,
        stall(drops),
        stall(baseline),
    );
    let (small, big_took) = summary.drop_times();
    let (sum, _) = summary.work();
    let p999 = |times: Latency| time(times.percentile(99.9) as f64);
    let tiles = [
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
            count(sum.outside_catalog()),
            "touched by all drops together, outside the catalog".into(),
        ),
    ];
    for (name, value, beside) in tiles {
        let _ = writeln!(
            html,
            "<div><dt>{}</dt><dd class=\"value\">{}</dd><dd>{}</dd></div>",
            escape(name),
            escape(&value),
            escape(&beside)
        );
    }
    html + "</dl>\n"
}

/// A table; the first column is of names, the others of numbers.
fn table(headings: &[&str], lines: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut html = String::from("<div class=\"scroll\"><table>\n<thead><tr>");
    for heading in headings {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escape(heading));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for line in lines {
        html.push_str("<tr>");
        for (n, cell) in line.iter().enumerate() {
            let cell = escape(cell);
            let _ = if n == 0 {
                write!(html, "<th scope=\"row\">{cell}</th>")
            } else {
                write!(html, "<td>{cell}</td>")
            };
        }
        html.push_str("</tr>\n");
    }
    html + "</tbody>\n</table></div>\n"
}

fn tables(summary: &Summary) -> String {
    let mut html = String::from("<section>\n<h2>The work of the drops, counted</h2>\n");
    let (sum, most) = summary.work();
    let lines = most.fields().into_iter().zip(sum.fields());
    html.push_str(&table(
        &["", "most of one drop", "all drops"],
        lines.map(|((name, most), (_, sum))| vec![name.to_owned(), count(most), count(sum)]),
    ));
    let _ = writeln!(
        html,
        "<p>Counted where the work happens, in the dropping thread, not in the code of the drop. Other threads waited \
         {} times for a lock or latch that a dropping thread held.</p>\n</section>",
        count(summary.drops.waits)
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

fn made_by(summary: &Summary) -> String {
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
    let mut html = String::from("<section>\n<h2>What made this page</h2>\n<dl class=\"made\">\n");
    for (name, value) in lines {
        let _ = writeln!(html, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(&value));
    }
    let _ = write!(
        html,
        "</dl>\n<p>The same again:</p>\n<pre><code>{}</code></pre>\n</section>\n",
        escape(&summary.command())
    );
    html
}
