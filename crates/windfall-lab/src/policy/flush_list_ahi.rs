//! `flush-list-ahi`: the regression of 5.6.
//!
//! **Purpose.** `MySQL` 5.6.2 to 5.6.12, three times as slow as 5.5.
//!
//! **Invariants.** A drop takes the steps below, as their counts show (test:
//! `flush_list_ahi_restarts_its_walk_after_each_batch`). So the LRU list is scanned even for a table that has no page,
//! with the hash index on or off (test: `flush_list_ahi_walks_the_lru_list_first`).
//!
//! **Steps.** For each instance:
//! 1. Takes the buffer pool mutex and scans the LRU list for hashed pages of the tablespace. At 1,024 of them, and at
//!    the end, releases the mutex and removes their entries, each page looked up and latched. After 1,024 begins the
//!    scan again.
//! 2. What [`flush_list`](super::flush_list) does.
//!
//! **Source.** Bug 69316, `buf_LRU_drop_page_hash_for_tablespace`; fixed in 5.6.13.

use windfall::ids::SpaceId;

use super::{DropPolicy, Steps};
use crate::pool::{ClassicPool, Era, Space};

/// The policy.
#[derive(Debug)]
pub struct FlushListAhi;

impl DropPolicy for FlushListAhi {
    fn era(&self) -> Era {
        Era::Mysql56
    }

    fn remove_tablespace(&self, pool: &ClassicPool, space: &Space, _: &[SpaceId]) -> Steps {
        let mut steps = Steps::default();
        for instance in pool.instances() {
            steps.remove_hash_entries_by_lru(pool, instance, space);
            steps.remove_dirty(pool, instance, space.id);
        }
        steps
    }
}
