//! The locks of a pool's parts, by version.
//!
//! **Purpose.** A drop stalls the threads that need the locks that it holds. So the versions differ here before they
//! differ in what a drop does. Nothing else in the pool depends on the version.
//!
//! **Invariants.** The locks of a version are those of the table below (test:
//! `the_locks_of_each_era_match_the_module_doc`).
//!
//! **Locks.** Each instance of a pool has its own set.
//!
//! | version | page hash | LRU list | free list | flush list |
//! | --- | --- | --- | --- | --- |
//! | `MySQL` 5.0, 5.1 | pool mutex | pool mutex | pool mutex | pool mutex |
//! | `MySQL` 5.5 | pool mutex | pool mutex | pool mutex | flush list mutex |
//! | `XtraDB` 5.1, 5.5 | one latch | LRU list mutex | free list mutex | flush list mutex |
//! | `MySQL` 5.6, 5.7 | 16 latches | pool mutex | pool mutex | flush list mutex |
//! | `MySQL` 8.0 | 16 latches | LRU list mutex | free list mutex | flush list mutex |

use serde::Serialize;

/// A version, as far as its locks are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Era {
    /// `MySQL` 5.0 and 5.1.
    Mysql51,
    /// `MySQL` 5.5.
    Mysql55,
    /// Percona's `XtraDB` 5.1 and 5.5.
    Xtradb,
    /// `MySQL` 5.6 and 5.7.
    Mysql56,
    /// `MySQL` 8.0.
    Mysql80,
}

/// A part of a pool instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The page hash: the frame that holds a page.
    Pages,
    /// The LRU list: pages by last use.
    Lru,
    /// The free list: empty frames.
    Free,
    /// The flush list: dirty pages by first change.
    Flush,
}

/// A lock of a pool instance, in lock order. A latch of the page hash comes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lock {
    /// The mutex of the instance.
    Pool,
    /// The mutex of the LRU list.
    LruList,
    /// The mutex of the free list.
    FreeList,
    /// The mutex of the flush list.
    FlushList,
    /// The latch of a part of the page hash.
    PageHash,
}

impl Era {
    /// Returns the lock that guards a part.
    pub fn lock_of(self, part: Part) -> Lock {
        let by_latch = !matches!(self, Self::Mysql51 | Self::Mysql55);
        let split = matches!(self, Self::Xtradb | Self::Mysql80);
        match part {
            Part::Pages if by_latch => Lock::PageHash,
            Part::Lru if split => Lock::LruList,
            Part::Free if split => Lock::FreeList,
            Part::Flush if self != Self::Mysql51 => Lock::FlushList,
            _ => Lock::Pool,
        }
    }

    /// Returns the number of latches of the page hash, if it has any: a power of two.
    pub fn page_hash_latches(self) -> usize {
        if matches!(self, Self::Mysql56 | Self::Mysql80) { 16 } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_locks_of_each_era_match_the_module_doc() {
        use Lock::{FlushList, FreeList, LruList, PageHash, Pool};
        let table = [
            (Era::Mysql51, [Pool, Pool, Pool, Pool], 1),
            (Era::Mysql55, [Pool, Pool, Pool, FlushList], 1),
            (Era::Xtradb, [PageHash, LruList, FreeList, FlushList], 1),
            (Era::Mysql56, [PageHash, Pool, Pool, FlushList], 16),
            (Era::Mysql80, [PageHash, LruList, FreeList, FlushList], 16),
        ];
        for (era, locks, latches) in table {
            let parts = [Part::Pages, Part::Lru, Part::Free, Part::Flush];
            assert_eq!(parts.map(|part| era.lock_of(part)), locks, "{era:?}");
            assert_eq!(era.page_hash_latches(), latches, "{era:?}");
        }
    }
}
