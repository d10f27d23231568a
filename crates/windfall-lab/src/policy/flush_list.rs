//! `flush-list`: `MySQL` does not scan the LRU list any more.
//!
//! **Purpose.** `MySQL` 5.5.23 to the end of 5.5.
//!
//! **Invariants.** A drop takes the steps below and no others, as their counts show (test:
//! `flush_list_pauses_after_each_batch`). The pages stay in the LRU list as clean ones that are never looked up, and
//! age; their entries in the hash index are removed when they are evicted: nothing is scanned for them (test:
//! `flush_list_pauses_after_each_batch`).
//!
//! **Steps.** For each instance:
//! 1. Takes the buffer pool mutex and that of the flush list.
//! 2. Scans the flush list and removes each dirty page of the tablespace unwritten. After 1,024 of these releases both
//!    mutexes, yields the processor, and takes them again.
//! 3. If a page was being written: releases them, waits 20 ms, and begins again, until no dirty page is left.
//!
//! **Source.** `buf_LRU_flush_or_remove_pages(id, BUF_REMOVE_FLUSH_NO_WRITE)`, as described in the article of June
//! 2012; bugs 51325 and 64284.

use windfall::ids::SpaceId;

use super::{DropPolicy, Steps};
use crate::pool::{ClassicPool, Era, Space};

/// The policy.
#[derive(Debug)]
pub struct FlushList;

impl DropPolicy for FlushList {
    fn era(&self) -> Era {
        Era::Mysql55
    }

    fn remove_tablespace(&self, pool: &ClassicPool, space: &Space, _: &[SpaceId]) -> Steps {
        let mut steps = Steps::default();
        pool.instances().iter().for_each(|instance| steps.remove_dirty(pool, instance, space.id));
        steps
    }
}
