//! The report: one page, its graphs as files, tables for the terminal and for docs/history.md, and a comparison of two
//! results.
//!
//! **Purpose.** Shows the measurements that were published in fifteen years, repeated on one machine, and which
//! systems stall their clients. Each graph has a sentence that says what to see, on the page and in its own file.
//!
//! **Invariants.** Sentences are computed from the results and claim nothing beyond them: if a published order does not
//! show, the sentence says so (test: `an_order_that_does_not_show_is_said_to`). The page loads nothing (test:
//! `the_page_has_all_parts`). Every experiment may be missing (test: `parts_may_be_missing`).

#![allow(clippy::cast_sign_loss, reason = "what is cast here are places in drawings, and not negative")]

mod compare;
mod concurrent;
mod draw;
mod factors;
mod fill;
#[cfg(test)]
mod fixture;
mod locks;
mod loops;
mod over_time;
mod published;
mod ranking;
mod scale;
mod section;
mod significance;
mod stalls;
mod style;
mod tables;
#[cfg(test)]
mod tests;
mod text;

use std::fmt::Write as _;

pub use compare::compare;
use section::Section;
pub use tables::tables;
pub use text::text;
use windfall_measure::{
    page::{made_by, swatch},
    svg::escape,
    units::{bytes, count, date, things, time},
};

use crate::{
    results::{Results, X2, X3, X4, X5},
    system::{PolicyName, System},
};

/// Returns a section of the page for each experiment of the results.
fn sections(r: &Results) -> Vec<Section> {
    let parts = [
        r.x1.as_ref().map(stalls::section),
        r.x2.as_ref().map(fill::section),
        r.x3.as_ref().map(loops::x3_section),
        r.x4.as_ref().map(loops::x4_section),
        r.x5.as_ref().map(scale::section),
        r.x6.as_ref().map(concurrent::x6_section),
        r.x7.as_ref().map(concurrent::x7_section),
        r.x8.as_ref().map(concurrent::x8_section),
        r.x9.as_ref().map(factors::section),
    ];
    parts.into_iter().flatten().collect()
}

/// Returns the graphs of the page as separate files: SVG with names that begin with the experiment.
pub fn drawings(results: &Results) -> Vec<(String, String)> {
    let sections = sections(results).into_iter();
    let from = |id: &str| {
        let (scale, seed, date) = (&results.scale, results.seed, date(results.made_at));
        let machine = results.machine.line();
        format!("Made by windfall lab {id}, scale {scale}, seed {seed}, {date}; {machine}.")
    };
    sections
        .flat_map(|section| {
            let from = from(section.id);
            section.files(&from)
        })
        .collect()
}

/// Returns all systems of the results, in order.
fn systems(r: &Results) -> Vec<System> {
    let mut all: Vec<System> = Vec::new();
    all.extend(r.x1.iter().flat_map(|x| &x.runs).map(|run| run.system));
    all.extend(r.x2.iter().flat_map(|x| &x.runs).map(|run| run.system));
    all.extend(r.x3.iter().flat_map(|x| &x.runs).map(|run| run.system));
    all.extend(r.x4.iter().flat_map(|x| &x.runs).map(|run| run.system));
    all.extend(r.x5.iter().flat_map(|x| &x.runs).map(|run| run.system));
    all.extend(r.x6.iter().flat_map(|x| &x.runs).map(|run| run.system));
    all.extend(r.x7.iter().flat_map(|x| &x.runs).map(|run| run.system));
    all.extend(r.x8.iter().flat_map(|x| &x.runs).map(|run| run.system));
    fill::systems(all)
}

/// Returns the page: one file that needs only a browser.
pub fn page(results: &Results) -> String {
    let sections = sections(results);
    let systems = systems(results);
    let mut policies: Vec<PolicyName> = systems.iter().map(|s| s.policy).collect();
    policies.dedup();
    let mut body = format!(
        "<header>\n<p class=\"brand\">Windfall {} lab</p>\n<h1>What a DROP TABLE did to all other clients</h1>\n<p \
         class=\"lead\">The buffer pools of {}, as far as a drop goes: the same tree, rows and clients above each, on one \
         machine, in one run.</p>\n</header>\n",
        escape(&results.version),
        years(&policies)
    );
    if !policies.is_empty() {
        body.push_str(&legend(&policies));
    }
    body.push_str("<ul class=\"contents\">\n");
    for Section { id, title, .. } in &sections {
        let _ = writeln!(body, "<li><a href=\"#{id}\">{}: {title}</a></li>", id.to_uppercase());
    }
    body.push_str("</ul>\n");
    for section in &sections {
        body.push_str(&section.in_page());
    }
    let lines = [
        ("Machine", results.machine.line()),
        ("Scale", results.scale.clone()),
        ("Seed", results.seed.to_string()),
        ("Date", date(results.made_at)),
        ("It took", time(results.seconds * 1e9)),
        ("Version", results.version.clone()),
    ];
    body.push_str(&made_by(lines.into_iter().chain(settings(results)), &results.command));
    windfall_measure::page::page("Windfall lab: DROP TABLE through the years", &body)
}

/// Returns the settings of each experiment.
fn settings(r: &Results) -> Vec<(&'static str, String)> {
    let threads = |n: u32| things(u64::from(n), "thread");
    let list = |values: Vec<String>| {
        let mut once: Vec<String> = Vec::new();
        for value in values {
            if !once.contains(&value) {
                once.push(value);
            }
        }
        once.join("; ")
    };
    let x3 = |x: &X3| list(x.runs.iter().map(loops::x3_setting).collect());
    let x4 = |x: &X4| {
        format!(
            "{} loops: {}",
            count(u64::from(x.loops)),
            list(x.runs.iter().map(loops::x4_setting).collect())
        )
    };
    let fills = |x: &X2| fill::distinct(x.runs.iter().map(|r| r.fill_gb));
    let pools = |x: &X5| fill::distinct(x.runs.iter().map(|r| r.pool_gb));
    let gb = |values: Vec<f64>| values.into_iter().map(style::decimals).collect::<Vec<_>>().join(", ");
    let all = [
        r.x1.as_ref().map(|x| {
            let (rows, victim) = (count(x.rows), count(x.victim_rows));
            let every = style::decimals(x.drop_every_s);
            let pages =
                format!("{} pages, {} of them bookkeeping", count(x.pages), count(x.bookkeeping_pages));
            (
                "X1",
                format!(
                    "{}, {rows} rows, {pages}; {victim} rows dropped every {every} s",
                    threads(x.threads)
                ),
            )
        }),
        r.x2.as_ref()
            .map(|x| ("X2", format!("{} tables; {} GB filled", count(u64::from(x.tables)), gb(fills(x))))),
        r.x3.as_ref().map(|x| ("X3", x3(x))),
        r.x4.as_ref().map(|x| ("X4", x4(x))),
        r.x5.as_ref().map(|x| ("X5", format!("{}; pools of {} GB", threads(x.threads), gb(pools(x))))),
        r.x6.as_ref().map(|x| ("X6", format!("{}, {} partitions kept", threads(x.threads), x.kept))),
        r.x7.as_ref().map(|x| ("X7", threads(x.threads))),
        r.x8.as_ref()
            .map(|x| ("X8", format!("{}, a file of {}", threads(x.threads), bytes(x.file_bytes as f64)))),
        r.x9.as_ref().map(|x| ("X9", things(x.factors.len() as u64, "factor"))),
    ];
    all.into_iter().flatten().collect()
}

fn years(policies: &[PolicyName]) -> String {
    let years = || policies.iter().map(|p| p.year());
    match (years().min(), years().max()) {
        (Some(first), Some(last)) if first < last => format!("{first} to {last}"),
        (Some(only), _) => only.to_string(),
        _ => "the years".into(),
    }
}

/// Returns the legend: the systems with their colours and shapes.
fn legend(policies: &[PolicyName]) -> String {
    let mut html = String::from(
        "<div class=\"scroll\"><table class=\"systems\">\n<thead><tr><th scope=\"col\">policy</th><th \
         scope=\"col\">system</th><th scope=\"col\">what a drop does to the pool</th></tr></thead>\n<tbody>\n",
    );
    for &policy in policies {
        let _ = writeln!(
            html,
            "<tr><th scope=\"row\">{}{policy}</th><td>{} ({})</td><td>{}</td></tr>",
            swatch(&style::legend_class(policy)),
            policy.version(),
            policy.year(),
            escape(policy.in_words())
        );
    }
    html + "</tbody>\n</table></div>\n"
}
