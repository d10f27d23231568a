//! `flush-list-ahi`: the regression of 5.6.
//!
//! **Purpose.** `MySQL` 5.6.2 to 5.6.12, three times as slow as 5.5.
//!
//! **Invariants.** The steps, for each instance:
//! 1. Takes the buffer pool mutex and walks the LRU list for pages of the tablespace that are hashed. At 1,024 of them,
//!    and at the end, gives the mutex back and removes their entries, each looked up and latched; after 1,024 begins
//!    the walk anew.
//! 2. What [`flush_list`](super::flush_list) does.
//!
//! So the LRU list is walked for a table that has no page, with the hash index on or off.
//!
//! **May touch.** What `policy` may touch.
//!
//! Source: bug 69316, `buf_LRU_drop_page_hash_for_tablespace`; mended in 5.6.13.

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

    fn forget(&self, pool: &ClassicPool, space: &Space, _: &[SpaceId]) -> Steps {
        let mut steps = Steps::default();
        for instance in pool.instances() {
            steps.unhash_by_lru(pool, instance, space);
            steps.unflush(pool, instance, space.id);
        }
        steps
    }
}
