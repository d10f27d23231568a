//! The appearance of a system.
//!
//! **Purpose.** Each of the eight policies has a colour, dashes and a shape, the same in every graph, and one name.
//!
//! **Invariants.** No graph distinguishes systems by colour alone: each has a shape of its own (test:
//! `each_system_has_its_own_colour_and_shape`).

use windfall_measure::{svg::Shape, units::count};

use crate::system::{PolicyName, System};

/// Returns the class of a policy's colour.
pub(super) fn class(policy: PolicyName) -> &'static str {
    ["c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8"][policy as usize]
}

/// Returns the shape of a policy's marks.
pub(super) fn shape(policy: PolicyName) -> Shape {
    [
        Shape::Plus,
        Shape::Square,
        Shape::Triangle,
        Shape::Diamond,
        Shape::Down,
        Shape::Cross,
        Shape::Bar,
        Shape::Circle,
    ][policy as usize]
}

/// Returns the classes of a policy's marks.
pub(super) fn dot(policy: PolicyName) -> String {
    format!("dot own {}", class(policy))
}

/// Returns the classes of a policy's mark in a legend; the last one is the shape.
pub(super) fn legend_class(policy: PolicyName) -> String {
    format!("{} {}", dot(policy), shape(policy).name())
}

/// The form of the names of a graph's systems: only differences among them are named.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Names {
    /// Whether some have the hash index on.
    some: bool,
    /// Whether some have it off.
    none: bool,
    /// Whether some have several instances.
    instances: bool,
}

impl Names {
    /// Returns the form for these systems.
    pub(super) fn of(systems: impl IntoIterator<Item = System>) -> Self {
        systems.into_iter().fold(Self::default(), |names, system| Self {
            some: names.some || system.hash_index,
            none: names.none || !system.hash_index,
            instances: names.instances || system.instances > 1,
        })
    }

    /// Returns the name of a system among them.
    pub(super) fn label(self, system: System) -> String {
        let mut name = system.policy.text().to_owned();
        if self.some && self.none && system.hash_index {
            name.push_str(", hash");
        }
        if self.instances && system.instances > 1 {
            name = format!("{name}, {} inst.", system.instances);
        }
        name
    }

    /// Returns the name with that of the server.
    pub(super) fn heading(self, system: System) -> String {
        format!("{}: {}", self.label(system), system.policy.version())
    }

    /// Returns whether the hash index was on, as a sentence.
    pub(super) fn hash_said(self) -> &'static str {
        match (self.some, self.none) {
            (true, true) => "Those with \", hash\" after their name have the adaptive hash index on.",
            (true, false) => "The adaptive hash index is on in all of these runs.",
            (false, _) => "The adaptive hash index is off in all of these runs.",
        }
    }
}

/// Returns the name with all settings, for tables.
pub(super) fn full(system: System) -> String {
    Names { some: true, none: true, instances: true }.label(system)
}

/// Formats gigabytes.
pub(super) fn gigabytes(gb: f64) -> String {
    format!("{} GB", decimals(gb))
}

/// Formats a number without trailing zeros.
pub(super) fn decimals(x: f64) -> String {
    if x >= 1_000.0 {
        return count(x.round() as u64);
    }
    let text = format!("{x:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a time in nanoseconds for an axis.
pub(super) fn axis_time(ns: f64) -> String {
    match ns {
        _ if ns <= 0.0 => "0".into(),
        _ if ns < 1e3 => format!("{} ns", decimals(ns)),
        _ if ns < 1e6 => format!("{} µs", decimals(ns / 1e3)),
        _ if ns < 1e9 => format!("{} ms", decimals(ns / 1e6)),
        _ => format!("{} s", decimals(ns / 1e9)),
    }
}

/// Formats a rate for an axis.
pub(super) fn axis_rate(rate: f64) -> String {
    match rate {
        _ if rate >= 1e6 => format!("{}M/s", decimals(rate / 1e6)),
        _ if rate >= 1e3 => format!("{}k/s", decimals(rate / 1e3)),
        _ if rate <= 0.0 => "0".into(),
        _ => format!("{}/s", decimals(rate)),
    }
}

/// Formats a ratio for an axis.
pub(super) fn axis_times(ratio: f64) -> String {
    if ratio <= 0.0 { "0".into() } else { format!("{}×", decimals(ratio)) }
}
