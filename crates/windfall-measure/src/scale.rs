//! The scale of a measurement.
//!
//! **Purpose.** Every measurement has three sizes: one that shows that it runs, one for two cores and some minutes, and
//! the one that a claim is about.
//!
//! **Invariants.** Each scale has its own name (test: `a_scale_is_found_by_its_name`); the scales are ordered by size.

use serde::{Deserialize, Serialize};

/// The scale of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// Shows that it runs, in seconds; its numbers prove nothing.
    Quick,
    /// Fits two cores and 24 GiB of memory; all measurements take some minutes.
    Default,
    /// As published, or as a claim states.
    Full,
}

impl Scale {
    /// All scales.
    pub const ALL: [Self; 3] = [Self::Quick, Self::Default, Self::Full];

    /// Returns one of three values, by scale.
    pub fn pick<T>(self, quick: T, default: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Default => default,
            Self::Full => full,
        }
    }

    /// Returns its name.
    pub fn text(self) -> &'static str {
        self.pick("quick", "default", "full")
    }

    /// Returns the scale of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scale| scale.text() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_is_found_by_its_name() {
        assert_eq!(Scale::ALL.map(|scale| Scale::named(scale.text())), Scale::ALL.map(Some));
        assert_eq!(Scale::named("large"), None);
    }
}
