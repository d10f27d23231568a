//! The ways to forget a dropped tablespace, a file for each.
//!
//! **Purpose.** A [`DropPolicy`] is what a server of its time did to its buffer pool when a tablespace was dropped:
//! which lock, held how long, which list, which pages freed when. The head of each file tells the steps, the version,
//! and the source; [`Steps`] counts them.
//!
//! **Invariants.** Before a policy is asked the tablespace refuses its handles; afterwards no page of it is ever given
//! to a reader or written, whether it was freed or not. What the steps say is counted where it is done.
//!
//! **May touch.** [`pool`](crate::pool), [`system`](crate::system) for the names, [`watch`](crate::watch), and of
//! `windfall` the ids and what it tells of a drop.
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

/// The policy of this name; none for Windfall's.
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

/// What a server of its time did to its buffer pool at a drop.
pub trait DropPolicy: Send + Sync + Debug {
    /// The version whose locks the pool has.
    fn era(&self) -> Era;

    /// Forgets a tablespace that is dropped or was truncated in place, and the trees that it had, and says what was
    /// done for it. Waits for pages of it that are in use.
    fn forget(&self, pool: &ClassicPool, space: &Space, trees: &[SpaceId]) -> Steps;

    /// Whether it is done under the mutex of the dictionary, which every statement takes.
    fn holds_dictionary(&self) -> bool {
        true
    }

    /// Whether a truncation keeps the tablespace and gives it a new version, instead of dropping it and making another
    /// one.
    fn truncates_in_place(&self) -> bool {
        false
    }
}
