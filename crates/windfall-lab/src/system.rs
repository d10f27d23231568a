//! The systems that are compared, by name.
//!
//! **Purpose.** A [`System`] is a policy with the settings that an experiment varies; commands, results and reports
//! use the same names.
//!
//! **Invariants.** [`PolicyName::ALL`] has every policy, in the order of the years (test:
//! `policies_are_in_the_order_of_their_years`).

use core::fmt;

use serde::{Deserialize, Serialize};

/// The name of a drop policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyName {
    /// One scan of the LRU list under the pool mutex.
    LruScanOnce,
    /// Two scans of the LRU list under the pool mutex.
    LruScan,
    /// Lazy drop: marks pages in the LRU list.
    LazyMark,
    /// A scan of the flush list only.
    FlushList,
    /// A scan of the LRU list for the hash index, then of the flush list.
    FlushListAhi,
    /// Look-ups of the table's pages for the hash index, then scans of both lists.
    ExtentAhi,
    /// A new version of the tablespace.
    StaleVersion,
    /// Windfall's detach.
    Detach,
}

impl PolicyName {
    /// All policies.
    pub const ALL: [Self; 8] = [
        Self::LruScanOnce,
        Self::LruScan,
        Self::LazyMark,
        Self::FlushList,
        Self::FlushListAhi,
        Self::ExtentAhi,
        Self::StaleVersion,
        Self::Detach,
    ];

    /// Returns the name as commands and reports use it.
    pub fn text(self) -> &'static str {
        match self {
            Self::LruScanOnce => "lru-scan-once",
            Self::LruScan => "lru-scan",
            Self::LazyMark => "lazy-mark",
            Self::FlushList => "flush-list",
            Self::FlushListAhi => "flush-list-ahi",
            Self::ExtentAhi => "extent-ahi",
            Self::StaleVersion => "stale-version",
            Self::Detach => "detach",
        }
    }

    /// Returns the versions that had this policy.
    pub fn version(self) -> &'static str {
        match self {
            Self::LruScanOnce => "MySQL 5.0.77",
            Self::LruScan => "MySQL 5.0.87 to 5.5.22",
            Self::LazyMark => "Percona Server 5.1.56 to 5.5.24",
            Self::FlushList => "MySQL 5.5.23 to 5.5",
            Self::FlushListAhi => "MySQL 5.6.2 to 5.6.12",
            Self::ExtentAhi => "MySQL 8.0 to 8.0.22",
            Self::StaleVersion => "MySQL 8.0.23",
            Self::Detach => "Windfall",
        }
    }

    /// Returns the year of its introduction.
    pub fn year(self) -> u16 {
        match self {
            Self::LruScanOnce | Self::LruScan => 2009,
            Self::LazyMark => 2011,
            Self::FlushList => 2012,
            Self::FlushListAhi => 2013,
            Self::ExtentAhi => 2018,
            Self::StaleVersion => 2021,
            Self::Detach => 2026,
        }
    }

    /// Returns a short description of the work in the pool at a drop.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::LruScanOnce => "walks the LRU list under the pool mutex",
            Self::LruScan => "walks the LRU list twice under the pool mutex",
            Self::LazyMark => "marks pages along the LRU list, then scans all frames for the hash index",
            Self::FlushList => "walks the flush list, with pauses",
            Self::FlushListAhi => "walks the LRU list for the hash index, then the flush list",
            Self::ExtentAhi => {
                "looks each page of the table up, then walks both lists under the LRU list mutex"
            }
            Self::StaleVersion => "changes a number; with the hash index walks the LRU list",
            Self::Detach => "unlinks the tablespace",
        }
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// A policy with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct System {
    /// The drop policy.
    pub policy: PolicyName,
    /// Whether the adaptive hash index is on.
    pub hash_index: bool,
    /// Instances of the buffer pool; Windfall's has none, and ignores this value.
    pub instances: u32,
}

impl System {
    /// Creates a system with one instance and no hash index.
    pub fn of(policy: PolicyName) -> Self {
        Self { policy, hash_index: false, instances: 1 }
    }

    /// Returns the same system with the hash index.
    #[must_use]
    pub fn hashed(self) -> Self {
        Self { hash_index: true, ..self }
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.policy)?;
        if self.hash_index {
            f.write_str(", hash index")?;
        }
        if self.instances > 1 {
            write!(f, ", {} instances", self.instances)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_in_the_order_of_their_years() {
        assert!(PolicyName::ALL.is_sorted_by_key(|policy| policy.year()));
        assert!(PolicyName::ALL.iter().enumerate().all(|(n, policy)| *policy as usize == n));
        assert_eq!(PolicyName::ALL.last(), Some(&PolicyName::Detach), "it is the last variant");
    }
}
