//! `bench drop`, third part: the factors that the cost of a drop does not depend on.
//!
//! **Purpose.** Compares the measurements of [`factors`] with bounds, one claim per factor and kind of figure, and the
//! effects on other clients with windows without drops.
//!
//! **Method.** The bound is [`flat::FLAT`] for all figures, with much in the table and with much in another table,
//! except for time with much in another table ([`flat::FLAT_TIME_BESIDE`]). A figure that cannot meet this bound has
//! its own, documented in README's limits. For times there are two claims: the mean of the smaller half of the times is
//! within the bound, and a rank test of all times finds them no longer than the bound allows. The effects on other
//! clients are compared by rank tests, too: readers and writers over all factors together, because their load is the
//! same with each, and the longer gap of both per factor. If each factor makes a claim, the significance level is
//! divided by their number (Bonferroni).

use windfall_measure::{
    Scale,
    flat::{self, Cost, Factor, Figure},
};

use super::{
    foreground::SIGNIFICANCE_LEVEL,
    harness::{Bench, Bound},
};
use crate::{
    factors::{self, FactorKind},
    failure::Result,
};

/// The figures of a claim; the one with the largest ratio is compared.
const CLAIMS: [(&str, &[Figure]); 4] = [
    ("instructions", &[Figure::Instructions]),
    ("counts", &[Figure::PageFaults, Figure::Work]),
    ("memory", &[Figure::Allocations, Figure::Allocated, Figure::Frees, Figure::Freed]),
    ("time", &[Figure::Time, Figure::ThreadTime]),
];
/// The bytes that the allocator gets from the system at a time for the lists of a group of tables: it may make one
/// system call to get each piece, and one to return it. A statement on one table makes none.
const A_PIECE: f64 = 131_072.0;
/// The share of statements that may wait: the worker that merges pages of the system tree excludes writers, and may be
/// preempted meanwhile.
const WAITS: f64 = 0.001;
/// Number of statements of one kind with one amount that may wait.
const WAITS_OF_A_KIND: f64 = 2.0;
/// The minimum ratio of a factor's amount in a database with much of it to that in one with little.
const SEEN: f64 = 10.0;
/// The maximum ratio of the longest gap with a drop to the longest gap of all windows without one.
const MAX_GAP_RATIO: f64 = 2.0;

/// Runs this part.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.size(Scale::Full, Scale::Quick);
    let asked = FactorKind::among(&bench.options.only);
    let folder = bench.database("factors");
    let (seed, plant) = (bench.options.seed, bench.options.plant_cost);
    let measured = factors::measure(&asked, &folder, scale, seed, plant, &|what| bench.say(what))?;
    for factor in &measured {
        flat_figures(bench, factor);
        let bound = factor.time_bound();
        let p_values = factor.statements.iter().map(|statement| statement.p_value(bound));
        let statements = factor.statements.len();
        let shared = SIGNIFICANCE_LEVEL / (statements * measured.len()) as f64;
        bench.claim(
            format!("{}-time-chance-of-no-longer", factor.id),
            p_values.fold(1.0, f64::min),
            Bound::AtLeast(shared),
        );
        if let Some((_, [little, much])) = factor.seen {
            bench.claim(
                format!("{}-seen", factor.id),
                much as f64 / little.max(1) as f64,
                Bound::AtLeast(SEEN),
            );
        }
    }
    let (groups, single): (Vec<_>, Vec<_>) =
        asked.iter().zip(&measured).partition(|(owned, _)| owned.is_group());
    if !single.is_empty() {
        let single = single.into_iter().map(|(_, factor)| factor);
        bench.claim("factors-system-calls-but-log", most(single, Figure::SystemCalls), Bound::AtMost(0.0));
    }
    bench.claim("factors-calls-but-log", most(&measured, Figure::Calls), Bound::AtMost(0.0));
    let (mut waits, mut most_waits, mut statements) = (0.0, 0.0_f64, 0.0);
    for (of_sides, timed) in measured.iter().flat_map(Factor::waits) {
        waits += of_sides.iter().sum::<f64>();
        most_waits = most_waits.max(flat::largest(&of_sides));
        statements += of_sides.len() as f64 * timed;
    }
    // One wait is always allowed.
    let share = waits / f64::max(statements, 1.0 / WAITS);
    bench.claim("factors-waits-of-a-statement", share, Bound::AtMost(WAITS));
    bench.claim("factors-waits-of-a-kind-of-statement", most_waits, Bound::AtMost(WAITS_OF_A_KIND));
    for (owned, group) in groups {
        let tables = owned.amounts(scale)[1] as f64;
        let of_drop = |figure| group.statements[0].cost(figure).map_or(0.0, |cost| cost.large);
        let pieces = 1.0 + of_drop(Figure::Allocated) * tables / A_PIECE;
        let calls = of_drop(Figure::SystemCalls) / pieces;
        bench.claim(format!("{}-system-calls-for-a-piece-of-memory", group.id), calls, Bound::AtMost(2.0));
    }
    others(bench, &measured);
    for factor in &measured {
        let [from, to] = &factor.amounts;
        let per = factor.per.as_ref().map(|per| format!(", for each {per}")).unwrap_or_default();
        let seen =
            factor.seen.as_ref().map(|(what, [little, much])| format!("; {what}: {little} and {much}"));
        bench.fact(
            format!("{}: {}", factor.id, factor.what),
            format!("{from} and {to}{per}{}", seen.unwrap_or_default()),
        );
        if let Some((figures, why)) = &factor.grows {
            let figures: Vec<&str> = figures.iter().map(|(figure, _)| figure.text()).collect();
            bench.fact(
                format!("{}: why it has bounds of its own for {}", factor.id, figures.join(" and ")),
                why.as_str(),
            );
        }
    }
    bench.table("what the cost of a drop does not depend on", flat::costs(&measured));
    bench.table("what others noticed of drops with much", flat::effects_on_clients(&measured));
    bench.fact("factors", serde_json::to_value(&measured)?);
    Ok(())
}

/// Claims that the figures of a factor are flat, per kind of figure, or within their own bounds.
fn flat_figures(bench: &mut Bench, factor: &Factor) {
    for (name, figures) in CLAIMS {
        let (own, usual): (Vec<Figure>, Vec<Figure>) =
            figures.iter().partition(|figure| factor.own_bounds(**figure).is_some());
        // The figures with the usual bounds make one claim, by the largest ratio.
        let own = own.into_iter().map(|figure| (figure.text(), vec![figure]));
        for (name, figures) in own.chain([(name, usual)]) {
            let Some(first) = figures.first() else { continue };
            for (suffix, ratio, bound) in factor.growths(*first) {
                let most =
                    figures.iter().filter_map(|figure| factor.most(*figure, ratio)).max_by(f64::total_cmp);
                // There are no instructions if no statement was single-stepped.
                if let Some(most) = most {
                    bench.claim(format!("{}-{name}{suffix}", factor.id), most, Bound::AtMost(bound));
                }
            }
        }
    }
}

/// Returns the largest value of a figure over all statements of these factors.
fn most<'a>(factors: impl IntoIterator<Item = &'a Factor>, figure: Figure) -> f64 {
    let figures: Vec<f64> =
        factors.into_iter().filter_map(|factor| factor.most(figure, Cost::largest)).collect();
    flat::largest(&figures)
}

/// Compares the effects on other clients. Of each window the longer gap of the two clients counts: the thread that
/// drops or spins, and the background threads, share the processor of one of the clients, and the scheduler decides
/// which one. The gaps of the two are shown separately.
fn others(bench: &mut Bench, measured: &[Factor]) {
    for (who, gaps) in ["readers", "writers"].into_iter().zip(flat::together(measured)) {
        for (kind, gaps) in [("without drops", &gaps.without), ("with drops", &gaps.with)] {
            let name = format!("longest gap of {who} of another table, {kind}");
            bench.fact(format!("{name}, median µs"), windfall_measure::median(gaps) / 1e3);
            bench.fact(format!("{name}, of all windows, µs"), flat::largest(gaps) / 1e3);
        }
    }
    let [readers, writers] = flat::together(measured);
    let all = readers.longer(&writers);
    bench.claim("factors-others-chance-of-equal-gap", all.p_value(), Bound::AtLeast(SIGNIFICANCE_LEVEL));
    for factor in measured {
        let gaps = factor.others.readers.longer(&factor.others.writers);
        let shared = SIGNIFICANCE_LEVEL / measured.len() as f64;
        bench.claim(
            format!("{}-others-chance-of-equal-gap", factor.id),
            gaps.p_value(),
            Bound::AtLeast(shared),
        );
        let longest = flat::largest(&gaps.with) / flat::largest(&all.without);
        bench.claim(format!("{}-others-longest-gap", factor.id), longest, Bound::AtMost(MAX_GAP_RATIO));
    }
    let waits =
        measured.iter().filter_map(|factor| factor.others.waits_on_drops).reduce(|sum, waits| sum + waits);
    bench.claim_no_drop_waits("factors-waits-on-dropping-threads", waits);
}
