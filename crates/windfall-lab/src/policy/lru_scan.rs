//! `lru-scan`: the stall of 2010.
//!
//! **Purpose.** `MySQL` before 5.5.23: 5.0.77 with one scan, 5.0.87 to 5.1 and 5.5.15 with two.
//!
//! **Invariants.** A drop takes the steps below and no others, as their counts show (test:
//! `lru_scan_walks_the_whole_list_under_the_pool_mutex`). A page in use is waited for (test:
//! `a_page_in_use_is_waited_for`).
//!
//! **Steps.** For each instance:
//! 1. Takes the buffer pool mutex, which every page look-up takes, and holds it for all that follows.
//! 2. With two scans: scans the LRU list and removes the entries of each page of the tablespace from the hash index.
//! 3. Scans the LRU list and frees each page of the tablespace, dirty ones unwritten. (With one scan its hash entries
//!    are removed here.)
//! 4. If a page was in use: releases the mutex, waits 20 ms, and begins again.
//!
//! **Cost.** One or two scans of all pages in the pool, whatever the size of the table.
//!
//! **Source.** `buf_LRU_invalidate_tablespace`. Bug 56332 describes its second scan, and the article on Lazy Drop Table
//! of June 2012 its mutex.

use core::sync::atomic::Ordering::Relaxed;

use windfall::ids::SpaceId;

use super::{DropPolicy, Steps};
use crate::{
    pool::{ClassicPool, Era, Space, era::Part, instance::Instance},
    watch::Purpose,
};

/// The policy.
#[derive(Debug)]
pub struct LruScan {
    /// The number of scans of the LRU list: 1 or 2.
    pub scans: u32,
    /// [`Era::Mysql51`] or [`Era::Mysql55`].
    pub era: Era,
}

impl DropPolicy for LruScan {
    fn era(&self) -> Era {
        self.era
    }

    fn remove_tablespace(&self, pool: &ClassicPool, space: &Space, _: &[SpaceId]) -> Steps {
        let mut steps = Steps::default();
        for instance in pool.instances() {
            while !self.sweep(pool, instance, space, &mut steps) {
                steps.wait_for_users();
            }
        }
        steps
    }
}

impl LruScan {
    fn sweep(&self, pool: &ClassicPool, instance: &Instance, space: &Space, steps: &mut Steps) -> bool {
        let mut held = instance.lock(&[Part::Lru], Purpose::Drop);
        if self.scans == 2 {
            for frame in instance.lru.from_oldest(pool.frames()) {
                steps.lru_walked += 1;
                let descriptor = &pool.frames()[frame as usize];
                if descriptor.space() == space.id && descriptor.hashed.load(Relaxed) > 0 {
                    steps.count_unhashed(pool.try_remove_hash_entries(frame));
                }
            }
        }
        steps.free_pages(pool, instance, &mut held, space.id)
    }
}
