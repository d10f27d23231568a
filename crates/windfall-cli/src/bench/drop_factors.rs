//! `bench drop`, third part: what the cost of a drop does not depend on.
//!
//! **Purpose.** Compares what [`factors`] has measured with the bound, a claim for each factor and kind of figure, and
//! what others noticed with what they did without drops.
//!
//! **Invariants.** The bound is the same for all: [`FLAT`]. What cannot keep it is said in README's limits, and fails
//! here. Others are compared by rank tests, over all factors together, as their load is the same beside each, and for
//! each factor by itself; there the chance that is taken for a difference is shared by all that are compared.
//!
//! **May touch.** `factors`, `windfall-measure`.

use windfall_measure::{
    Scale,
    flat::{self, FLAT, Factor, Figure},
};

use super::{
    foreground::CHANCE,
    harness::{Bench, Bound},
};
use crate::{
    factors::{self, Owned},
    failure::Result,
};

/// The figures of a claim: the one that grew most is compared.
const CLAIMS: [(&str, &[Figure]); 4] = [
    ("instructions", &[Figure::Instructions]),
    ("counts", &[Figure::PageFaults, Figure::Work]),
    ("memory", &[Figure::Allocations, Figure::Allocated, Figure::Frees, Figure::Freed]),
    ("time", &[Figure::Time, Figure::ThreadTime]),
];
/// How many system calls a group of thousands of tables may have for each of its tables, while a smaller one and every
/// other statement has none: its lists are megabytes, some 400 bytes for each table, and the allocator gets 128 KiB
/// at a time from the system. That is 0.003, and as many again.
const CALLS_FOR_LISTS: f64 = 0.006;
/// How many times as long as the longest gap of all windows without a drop one with a drop may be.
const LONGEST: f64 = 2.0;

/// Measures.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.size(Scale::Full, Scale::Quick);
    let asked = Owned::of(&bench.options.only)?;
    let folder = bench.database("factors");
    let measured = factors::measure(&asked, &folder, scale, bench.options.seed, &|what| bench.say(what))?;
    for factor in &measured {
        for (name, figures) in CLAIMS {
            let flat = figures.iter().filter(|figure| factor.is_flat(**figure));
            let worst = flat.filter_map(|figure| factor.worst(*figure)).max_by(f64::total_cmp);
            // There are none where no figure is to be flat, or a statement has too many steps to be stepped.
            if let Some(worst) = worst {
                bench.claim(format!("{}-{name}", factor.id), worst, Bound::AtMost(FLAT));
            }
        }
    }
    let (large_group, smaller): (Vec<_>, Vec<_>) =
        measured.iter().partition(|factor| factor.id == Owned::LargeGroup.id());
    bench.claim("factors-system-calls-but-log", largest(smaller, Figure::SystemCalls), Bound::AtMost(0.0));
    bench.claim(
        "factors-calls-and-waits-but-log",
        largest(&measured, Figure::CallsAndWaits),
        Bound::AtMost(0.0),
    );
    if !large_group.is_empty() {
        bench.claim(
            "large-group-system-calls-but-log",
            largest(large_group, Figure::SystemCalls),
            Bound::AtMost(CALLS_FOR_LISTS),
        );
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
            for figure in figures {
                let worst = factor.worst(*figure).unwrap_or_default();
                bench.fact(format!("{}-{}, which cannot be flat", factor.id, figure.text()), worst);
            }
            bench.fact(format!("{}: why", factor.id), why.as_str());
        }
    }
    bench.table("what the cost of a drop does not depend on", flat::costs(&measured));
    bench.table("what others noticed of drops with much", flat::noticed(&measured));
    bench.fact("factors", serde_json::to_value(&measured)?);
    Ok(())
}

/// The most of a figure that any statement of these factors has.
fn largest<'a>(factors: impl IntoIterator<Item = &'a Factor>, figure: Figure) -> f64 {
    let figures: Vec<f64> = factors.into_iter().filter_map(|factor| factor.largest(figure)).collect();
    flat::largest(&figures)
}

/// What others noticed.
fn others(bench: &mut Bench, measured: &[Factor]) {
    for (who, gaps) in ["readers", "writers"].into_iter().zip(flat::together(measured)) {
        bench.claim(format!("factors-{who}-chance-of-equal-gap"), gaps.chance(), Bound::AtLeast(CHANCE));
        for (kind, gaps) in [("without drops", &gaps.without), ("with drops", &gaps.with)] {
            let name = format!("longest gap of {who} of another table, {kind}");
            bench.fact(format!("{name}, median µs"), windfall_measure::median(gaps) / 1e3);
            bench.fact(format!("{name}, of all windows, µs"), flat::largest(gaps) / 1e3);
        }
    }
    let all = flat::together(measured);
    for factor in measured {
        let pairs = || [&factor.others.readers, &factor.others.writers].into_iter().zip(&all);
        let chance = pairs().map(|(gaps, _)| gaps.chance()).fold(1.0, f64::min);
        let shared = CHANCE / (2 * measured.len()) as f64;
        bench.claim(format!("{}-others-chance-of-equal-gap", factor.id), chance, Bound::AtLeast(shared));
        let longest = pairs().map(|(gaps, all)| flat::largest(&gaps.with) / flat::largest(&all.without));
        bench.claim(
            format!("{}-others-longest-gap", factor.id),
            longest.fold(0.0, f64::max),
            Bound::AtMost(LONGEST),
        );
    }
    let waits = measured.iter().map(|factor| factor.others.waits_on_drops).sum::<u64>();
    bench.claim("factors-waits-on-dropping-threads", waits as f64, Bound::AtMost(0.0));
}
