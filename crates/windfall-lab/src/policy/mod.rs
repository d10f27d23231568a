//! The drop policies: how a pool removes a dropped tablespace, one file per policy.
//!
//! **Purpose.** A [`DropPolicy`] is what a server of its time did to its buffer pool when a tablespace was dropped:
//! the locks that it held and for how long, the lists that it scanned, and the time at which pages were freed. The
//! head of each file lists the steps, the version, and the source; [`Steps`] counts them.
//!
//! **Invariants.** Before a policy runs, the tablespace refuses its handles; afterwards no page of it is ever returned
//! to a reader or written, whether it was freed or not (test: `no_dropped_page_is_served_or_written`).
//!
//! **Policies.**
//!
//! | policy | version | the pool at a drop |
//! | --- | --- | --- |
//! | [`lru_scan`] | `MySQL` before 5.5.23 | two scans of the LRU list under the pool mutex |
//! | [`lazy_mark`] | Percona Server 5.1 and 5.5 | one scan that marks pages, then one for the hash index |
//! | [`flush_list`] | `MySQL` 5.5.23 | scans of the flush list, with pauses |
//! | [`flush_list_ahi`] | `MySQL` 5.6.2 to 5.6.12 | a scan of the LRU list for the hash index before that |
//! | [`extent_ahi`] | `MySQL` 8.0 to 8.0.22 | each page of the table is looked up; then both lists are scanned |
//! | [`stale_version`] | `MySQL` 8.0.23 | a new version; a scan only for the hash index |
//! | [`detach`] | Windfall | nothing |

pub mod detach;
pub mod extent_ahi;
pub mod flush_list;
pub mod flush_list_ahi;
pub mod lazy_mark;
pub mod lru_scan;
pub mod stale_version;
mod steps;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod threads;

use core::fmt::Debug;

pub use steps::Steps;

use windfall::ids::SpaceId;

use self::{
    extent_ahi::ExtentAhi, flush_list::FlushList, flush_list_ahi::FlushListAhi, lazy_mark::LazyMark,
    lru_scan::LruScan, stale_version::StaleVersion,
};
use crate::{
    pool::{ClassicPool, Era, Space},
    system::PolicyName,
};

/// Returns the policy of this name; `None` for Windfall's.
pub fn of(name: PolicyName) -> Option<Box<dyn DropPolicy>> {
    let policy: Box<dyn DropPolicy> = match name {
        PolicyName::LruScanOnce => Box::new(LruScan { scans: 1, era: Era::Mysql51 }),
        PolicyName::LruScan => Box::new(LruScan { scans: 2, era: Era::Mysql55 }),
        PolicyName::LazyMark => Box::new(LazyMark::default()),
        PolicyName::FlushList => Box::new(FlushList),
        PolicyName::FlushListAhi => Box::new(FlushListAhi),
        PolicyName::ExtentAhi => Box::new(ExtentAhi),
        PolicyName::StaleVersion => Box::new(StaleVersion),
        PolicyName::Detach => return None,
    };
    Some(policy)
}

/// The work of a server on its buffer pool at a drop.
pub trait DropPolicy: Send + Sync + Debug {
    /// Returns the version that determines the locks of the pool.
    fn era(&self) -> Era;

    /// Removes a tablespace that is dropped or was truncated in place, and the trees that it had, from the pool. Waits
    /// for pages of it that are in use. Returns the counted steps.
    fn remove_tablespace(&self, pool: &ClassicPool, space: &Space, trees: &[SpaceId]) -> Steps;

    /// Returns whether this is done under the mutex of the dictionary, which every statement takes.
    fn holds_dictionary(&self) -> bool {
        true
    }

    /// Returns whether a truncation keeps the tablespace and gives it a new version, instead of dropping it and
    /// creating another one.
    fn truncates_in_place(&self) -> bool {
        false
    }
}
