//! The order of systems by time: published, and measured here.
//!
//! **Purpose.** Times of old machines cannot be compared with those of this one, but the ratios between two servers on
//! one machine can.
//!
//! **Invariants.** If an order does not show here, the report says so (test: `an_order_that_does_not_show_is_said_to`);
//! systems are compared with the same hash index setting.

use std::fmt::Write as _;

use windfall_measure::{
    page::Graph,
    svg::{Shape, escape},
    units::times,
};

use super::{
    draw::{Mark, Row, Rows, decades},
    published::Published,
    section::Section,
    style::{self, axis_times},
};
use crate::system::{PolicyName, System};

/// Two times that differ by less than this factor count as equal.
const EQUAL_WITHIN: f64 = 1.1;

/// A time that was measured here.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    /// The measured system.
    pub system: System,
    /// The setting, named as in the published figures.
    pub setting: String,
    /// The time.
    pub time: f64,
}

/// Two systems, published and here.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    /// The system that took longer, as published.
    pub slow: Published,
    /// The system that took less time, as published.
    pub fast: Published,
    /// Whether the hash index is on here.
    pub hash_index: bool,
    /// The ratio of the times, as published.
    pub published: f64,
    /// The ratio as measured here.
    pub here: f64,
}

/// The result of a comparison of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Two systems in the same order in both rankings, or equal in both.
    Same,
    /// The opposite order.
    Reverse,
    /// Published as different, equal here.
    EqualHere,
    /// Published as equal, different here.
    EqualPublished,
}

impl Pair {
    /// Returns the result of the comparison.
    pub(super) fn verdict(&self) -> Verdict {
        let equal_here = self.here < EQUAL_WITHIN && self.here > 1.0 / EQUAL_WITHIN;
        match (self.published < EQUAL_WITHIN, equal_here) {
            (true, true) => Verdict::Same,
            (true, false) => Verdict::EqualPublished,
            (false, true) => Verdict::EqualHere,
            (false, false) if self.here > 1.0 => Verdict::Same,
            (false, false) => Verdict::Reverse,
        }
    }

    fn names(&self) -> String {
        format!(
            "{} ({}) and {} ({})",
            self.slow.policy, self.slow.version, self.fast.policy, self.fast.version
        )
    }
}

/// Returns all pairs of published figures that were both measured here.
pub(super) fn pairs(published: &[Published], here: &[Measured]) -> Vec<Pair> {
    let find = |policy: PolicyName, setting: &str, hash_index: bool| {
        let of = here.iter().filter(|h| h.system.policy == policy && h.system.hash_index == hash_index);
        let of = of.filter(|h| h.setting == setting && h.time > 0.0);
        of.min_by_key(|h| h.system.instances).map(|h| h.time)
    };
    let mut all = Vec::new();
    for (n, one) in published.iter().enumerate() {
        for other in published[n + 1..].iter().filter(|o| o.setting == one.setting && o.policy != one.policy)
        {
            let (slow, fast) = if one.seconds < other.seconds { (other, one) } else { (one, other) };
            for hash_index in [false, true] {
                let time = |p: &Published| find(p.policy, p.setting, hash_index);
                if let (Some(a), Some(b)) = (time(slow), time(fast)) {
                    let ratio = slow.seconds / fast.seconds;
                    all.push(Pair { slow: *slow, fast: *fast, hash_index, published: ratio, here: a / b });
                }
            }
        }
    }
    all
}

/// Adds the graph of the pairs, and a list of those that do not show here.
pub(super) fn part(section: &mut Section, title: &str, source: &str, pairs: &[Pair]) {
    section.graph("published", graph(title, source, pairs));
    section.html(&differences(pairs));
    if pairs.is_empty() {
        section.says(
            "No published ratio can be held against these runs: the systems or the settings of the published ones are not \
             among them.",
        );
    }
}

/// Draws the pairs by setting. Returns `None` if there are none.
fn graph(title: &str, source: &str, pairs: &[Pair]) -> Option<Graph> {
    let first = pairs.first()?;
    let both = pairs.iter().any(|p| p.hash_index != first.hash_index);
    let mut rows = Vec::new();
    let mut of = String::new();
    for pair in pairs {
        let mut head = pair.slow.setting.to_owned();
        if both {
            head.push_str(if pair.hash_index { ", hash index on here" } else { ", hash index off here" });
        }
        if head != of {
            rows.push(Row::Head(head.clone()));
            of = head;
        }
        let mark = |value, shape, class: &str, what: &str| Mark {
            value,
            shape,
            class: class.to_owned(),
            hint: format!(
                "{what}: {} takes {} as long as {}",
                pair.slow.policy,
                times(value),
                pair.fast.policy
            ),
        };
        rows.push(Row::Line {
            name: format!("{} / {}", pair.slow.policy, pair.fast.policy),
            class: String::new(),
            marks: vec![
                mark(pair.published, Shape::Square, "dot hollow", "published"),
                mark(pair.here, Shape::Circle, "dot with", "here"),
            ],
            note: format!("{} published, {} here", times(pair.published), times(pair.here)),
        });
    }
    let values = pairs.iter().flat_map(|p| [p.published, p.here, 1.0]);
    let drawings = Rows {
        about: "Ratios of times, published and measured here",
        scale: decades(values),
        label: axis_times,
        unit: "times as long, by factors of ten",
        from: Some(1.0),
        between: true,
    }
    .draw(&rows);
    Some(Graph {
        title: title.to_owned(),
        legend: vec![
            ("dot hollow square".into(), format!("published: {source}")),
            ("dot with circle".into(), "measured here".into()),
        ],
        drawings,
        caption: summed(pairs),
    })
}

/// Returns the number of orders that hold, as a sentence.
fn summed(pairs: &[Pair]) -> String {
    let same = pairs.iter().filter(|p| p.verdict() == Verdict::Same).count();
    let far = |p: &&Pair| (p.published / p.here).ln().abs();
    let farthest = pairs.iter().max_by(|a, b| far(a).total_cmp(&far(b)));
    let farthest = farthest.map_or_else(String::new, |p| {
        format!(
            " The ratio that differs most: {} to {}, {} published, {} here ({}).",
            p.slow.policy,
            p.fast.policy,
            times(p.published),
            times(p.here),
            p.slow.setting
        )
    });
    format!(
        "Right of the line the first of two takes longer. {same} of {} published orders show here.{farthest}",
        pairs.len()
    )
}

/// Returns a list of the orders that do not show here; empty if all do.
pub(super) fn differences(pairs: &[Pair]) -> String {
    let mut html = String::new();
    for pair in pairs {
        let said = match pair.verdict() {
            Verdict::Same => continue,
            Verdict::Reverse => {
                format!(
                    "the other way round here: {} takes {} as long",
                    pair.fast.policy,
                    times(1.0 / pair.here)
                )
            }
            Verdict::EqualHere => format!("alike here ({})", times(pair.here)),
            Verdict::EqualPublished => format!("not alike here ({})", times(pair.here)),
        };
        let hash = if pair.hash_index { ", hash index on" } else { "" };
        let _ = writeln!(
            html,
            "<li><span class=\"differs\">Does not reproduce:</span> {}</li>",
            escape(&format!(
                "{}, {}{hash}: published as {}, {said}.",
                pair.names(),
                pair.slow.setting,
                if pair.published < EQUAL_WITHIN {
                    format!("alike ({})", times(pair.published))
                } else {
                    format!("{} to 1", times(pair.published))
                }
            ))
        );
    }
    if html.is_empty() { html } else { format!("<ul class=\"order\">\n{html}</ul>\n") }
}

/// Returns the systems with the lowest and the highest value, as a sentence; `what` describes the values.
pub(super) fn ends(what: &str, values: &[(String, f64)], show: impl Fn(f64) -> String) -> String {
    let by = |a: &&(String, f64), b: &&(String, f64)| a.1.total_cmp(&b.1);
    match (values.iter().max_by(by), values.iter().min_by(by)) {
        (Some(most), Some(_)) if values.len() == 1 => format!("{what}: {} {}.", most.0, show(most.1)),
        (Some(most), Some(least)) => {
            if most.1 < least.1 * 1.05 || most.1 <= 0.0 {
                let (least, most) = (show(least.1), show(most.1));
                let range = if least == most { least } else { format!("{least} to {most}") };
                return format!("{what}: alike with all ({range}).");
            }
            let ratio =
                if least.1 > 0.0 { format!(", {} as much", times(most.1 / least.1)) } else { String::new() };
            format!(
                "{what}: least with {} ({}), most with {} ({}{ratio}).",
                least.0,
                show(least.1),
                most.0,
                show(most.1)
            )
        }
        _ => String::new(),
    }
}

/// Creates a mark of a system.
pub(super) fn mark(policy: PolicyName, value: f64, hint: String) -> Mark {
    Mark { value, shape: style::shape(policy), class: style::dot(policy), hint }
}
