//! How large a measurement is.
//!
//! **Purpose.** Everything that is measured comes in three sizes: one that shows that it runs, one for two cores and
//! some minutes, and the one that a claim is about.
//!
//! **Invariants.** Each scale has its own name, and larger ones come later.
//!
//! **May touch.** Nothing.

use serde::{Deserialize, Serialize};

/// How large everything is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// Shows that it runs, in seconds; proves nothing.
    Quick,
    /// Fits two cores and 24 GiB, and some minutes for all.
    Default,
    /// As it was published, or as a claim says.
    Full,
}

impl Scale {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Quick, Self::Default, Self::Full];

    /// One of three, by scale.
    pub fn pick<T>(self, quick: T, default: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Default => default,
            Self::Full => full,
        }
    }

    /// Its name.
    pub fn text(self) -> &'static str {
        self.pick("quick", "default", "full")
    }

    /// The one of this name.
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
