//! `stale-version`: a drop changes a version number.
//!
//! **Purpose.** `MySQL` 8.0.23, and 8.0.21 for undo tablespaces.
//!
//! **Invariants.** A drop takes the steps below and no others, as their counts show (test:
//! `stale_version_scans_for_hashed_pages_only`). A truncation keeps the tablespace, whose old pages readers no longer
//! see (test: `a_truncated_tablespace_has_none_of_its_old_pages`).
//!
//! **Steps.**
//! 1. The tablespace has a new version or is dropped; no list is scanned. A page with the old version is stale: readers
//!    do not see it, eviction treats it as free, the cleaner drops it unwritten.
//! 2. With the hash index on, if any page of the table is hashed: for each instance, scans the LRU list under its mutex
//!    for the hashed pages of the tablespace, in batches of 1,024; each page of a batch is looked up and latched, and
//!    its hash entries are removed.
//!
//! **Source.** "A 250x improvement to tablespace truncation in `MySQL` Server 8.0.23", which says that the hash index
//! is left as it was. That a table without hashed pages is dropped without the scan is shown by measurements of 9.7,
//! and bugs 107308 and 113312 describe the other case.

use windfall::ids::SpaceId;

use super::{DropPolicy, Steps};
use crate::pool::{ClassicPool, Era, Space};

/// The policy.
#[derive(Debug)]
pub struct StaleVersion;

impl DropPolicy for StaleVersion {
    fn era(&self) -> Era {
        Era::Mysql80
    }

    fn holds_dictionary(&self) -> bool {
        false
    }

    fn remove_tablespace(&self, pool: &ClassicPool, space: &Space, trees: &[SpaceId]) -> Steps {
        let mut steps = Steps::default();
        let hash = pool.hash_index();
        if hash.is_on() && trees.iter().any(|&tree| hash.has_entries_of(tree)) {
            pool.instances()
                .iter()
                .for_each(|instance| steps.remove_hash_entries_by_lru(pool, instance, space));
        }
        steps
    }

    fn truncates_in_place(&self) -> bool {
        true
    }
}
