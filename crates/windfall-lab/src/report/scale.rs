//! X5: drops by pool size.
//!
//! **Purpose.** Shows the bars of the article as curves, on a linear and on a logarithmic axis, the times of the
//! previous version as a multiple, and the lengths of the lists that had to be scanned.
//!
//! **Invariants.** Where fewer tables than 100 were dropped, the time shown is that for 100 (test:
//! `the_time_of_fewer_tables_is_that_for_100`).

use windfall_measure::{
    page::Graph,
    svg::Scale,
    units::{count, time, times},
};

use super::{
    draw::{Curves, decades},
    fill::{both_axes, distinct, own, systems},
    published,
    ranking::ends,
    section::Section,
    style::{Names, axis_times, decimals, gigabytes},
};
use crate::{
    results::{X5, X5Run},
    system::{PolicyName, System},
};

/// Returns the time of the policy before 8.0.23 as a multiple of a run with the same pool, if that policy was run.
pub(super) fn before_over<'a>(run: &X5Run, runs: impl IntoIterator<Item = &'a X5Run>) -> Option<f64> {
    let before = System { policy: PolicyName::ExtentAhi, ..run.system };
    let is_same = |r: &&X5Run| r.system == before && (r.pool_gb - run.pool_gb).abs() < 1e-9;
    let ratio = runs.into_iter().find(is_same)?.for_100() / run.for_100();
    Some(ratio).filter(|ratio| *ratio > 0.0 && ratio.is_finite())
}

/// Returns the section of the page.
pub(super) fn section(x5: &X5) -> Section {
    let mut section = Section::new(
        "x5",
        "drops by how large the pool is",
        &format!(
            "100 empty tables are made and dropped by {} threads beside one that fills the pool; with the hash index on \
             each has rows, which are looked up before. The setting of 2021: {}.",
            x5.threads,
            published::X5_SOURCE
        ),
    );
    if let Some(pages) = x5.runs.iter().map(|r| r.pages).max() {
        section.bookkeeping(&format!("The pools are up to {} pages of bookkeeping", count(pages)));
    }
    let fewer = x5.runs.iter().map(|r| r.tables).filter(|&n| n < 100).min();
    if let Some(fewer) = fewer {
        section.says(&format!(
            "Where drops take long fewer tables were dropped, {fewer} at least; the times are those for 100."
        ));
    }
    let rounds = x5.runs.iter().map(|r| r.rounds).max().filter(|&rounds| rounds > 1);
    if let Some(rounds) = rounds {
        section.says(&format!(
            "Where they take milliseconds the tables were made and dropped {rounds} times; the time is the median."
        ));
    }
    for hash_index in [false, true] {
        let runs: Vec<&X5Run> = x5.runs.iter().filter(|r| r.system.hash_index == hash_index).collect();
        let [times, ratios] = if hash_index { ["times-hash", "ratios-hash"] } else { ["times", "ratios"] };
        section.graph(times, times_by_pool(&runs, hash_index));
        section.graph(ratios, ratio(&runs, hash_index));
    }
    let pools = distinct(x5.runs.iter().map(|r| r.pool_gb));
    let lists = pools.iter().filter_map(|&gb| {
        let of = x5.runs.iter().filter(|r| (r.pool_gb - gb).abs() < 1e-9);
        let run = of.max_by_key(|r| (r.lru_entries, r.flush_entries))?;
        Some([gigabytes(gb), count(run.pages), count(run.lru_entries), count(run.flush_entries)].to_vec())
    });
    let lists: Vec<_> = lists.collect();
    if !lists.is_empty() {
        section.html("<h3>The lists before the first drop</h3>\n");
        section.html(&windfall_measure::page::table(
            &["pool", "pages", "entries of LRU lists", "of flush lists"],
            lists,
        ));
        section
            .says("What the query of the article shows: the entries that a drop had to walk before 8.0.23.");
    }
    section
}

fn hash_said(hash_index: bool) -> &'static str {
    if hash_index { "hash index on" } else { "hash index off" }
}

fn times_by_pool(runs: &[&X5Run], hash_index: bool) -> Option<Graph> {
    runs.first()?;
    let names = Names::of(runs.iter().map(|r| r.system));
    let pools = distinct(runs.iter().map(|r| r.pool_gb));
    let mut grown = Vec::new();
    let curves = systems(runs.iter().map(|r| r.system)).into_iter().map(|system| {
        let of = |gb: f64| runs.iter().find(|r| r.system == system && (r.pool_gb - gb).abs() < 1e-9);
        let points: Vec<_> =
            pools.iter().enumerate().filter_map(|(n, &gb)| Some((n, of(gb)?.for_100()))).collect();
        if let (Some(first), Some(last)) = (points.first(), points.last())
            && (first.0, last.0) == (0, pools.len() - 1)
            && first.1 > 0.0
        {
            grown.push((names.label(system), last.1 / first.1));
        }
        own(system, names, points, time)
    });
    let drawings = both_axes("Time for 100 tables by pool", &pools, "GB of pool", curves.collect());
    let largest = pools.last().copied().unwrap_or(0.0);
    let at_most = runs.iter().filter(|r| (r.pool_gb - largest).abs() < 1e-9);
    let at_most: Vec<_> = at_most.map(|r| (names.label(r.system), r.for_100())).collect();
    let from = pools.first().copied().unwrap_or(0.0);
    Some(Graph {
        title: format!("The time to make and drop 100 tables, {}", hash_said(hash_index)),
        legend: Vec::new(),
        drawings,
        caption: format!(
            "The same times on both axes; the second goes by factors of ten. {} {}",
            ends(&format!("With a pool of {}", gigabytes(largest)), &at_most, time),
            if pools.len() > 1 {
                let what = format!("Grown from {} to {} by", gigabytes(from), gigabytes(largest));
                ends(&what, &grown, times)
            } else {
                String::new()
            }
        ),
    })
}

/// Draws the times of the policy before 8.0.23 as multiples of those of the later ones, by pool.
fn ratio(runs: &[&X5Run], hash_index: bool) -> Option<Graph> {
    let pools = distinct(runs.iter().map(|r| r.pool_gb));
    let mut curves = Vec::new();
    let mut said = Vec::new();
    for policy in [PolicyName::StaleVersion, PolicyName::Detach] {
        let ratio = |gb: f64| {
            let of = runs.iter().find(|r| r.system.policy == policy && (r.pool_gb - gb).abs() < 1e-9)?;
            before_over(of, runs.iter().copied())
        };
        let points: Vec<_> = pools.iter().enumerate().filter_map(|(n, &gb)| Some((n, ratio(gb)?))).collect();
        let Some(most) = points.iter().max_by(|a, b| a.1.total_cmp(&b.1)) else { continue };
        said.push(format!("up to {} as long as {policy} ({})", times(most.1), gigabytes(pools[most.0])));
        let system = runs.iter().map(|r| r.system).find(|s| s.policy == policy)?;
        let names = Names::of([system]);
        curves.push((most.1, own(system, names, points, times)));
    }
    let most = curves.iter().map(|c| c.0).fold(published::X5_UP_TO, f64::max);
    let here = curves.iter().find(|c| c.1.name == PolicyName::StaleVersion.text()).map(|c| c.0);
    if curves.is_empty() {
        return None;
    }
    let mut all: Vec<_> = curves.into_iter().map(|c| c.1).collect();
    let line = (0..pools.len()).map(|n| (n, published::X5_UP_TO)).collect();
    all.push(super::draw::Curve {
        name: "published, most".into(),
        class: "c1 beside".into(),
        dot: "dot hollow".into(),
        shape: windfall_measure::svg::Shape::Square,
        points: line,
        hint: times,
    });
    let values = all.iter().flat_map(|c| &c.points).map(|p| p.1).chain([1.0]);
    let log = decades(values);
    let linear = Scale::linear(0.0, windfall_measure::svg::round_up(most * 1.05));
    let drawings = Curves {
        about: "How many times as long extent-ahi takes",
        columns: [2, 1],
        height: 190.0,
        left_label: axis_times,
        settings: pools.iter().map(|&gb| decimals(gb)).collect(),
        unit: "GB of pool",
        named: true,
    }
    .draw(vec![("linear axis".to_owned(), linear, all.clone()), ("logarithmic axis".to_owned(), log, all)]);
    let verdict = match here {
        Some(here) if here >= published::X5_UP_TO => " Against stale-version that is no less than published.",
        Some(here) if here <= 1.1 => " The published order does not reproduce here.",
        Some(_) => " Against stale-version that is less than published.",
        None => "",
    };
    Some(Graph {
        title: format!("extent-ahi as a multiple of what came after it, {}", hash_said(hash_index)),
        legend: Vec::new(),
        drawings,
        caption: format!(
            "Published: up to {} between MySQL 8.0.22 and 8.0.23. Here extent-ahi takes {}.{verdict}",
            times(published::X5_UP_TO),
            said.join(", and ")
        ),
    })
}
