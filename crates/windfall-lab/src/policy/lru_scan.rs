//! `lru-scan`: the stall of 2010.
//!
//! **Purpose.** `MySQL` before 5.5.23: 5.0.77 with one scan, 5.0.87 to 5.1 and 5.5.15 with two.
//!
//! **Invariants.** The steps, for each instance:
//! 1. Takes the buffer pool mutex, which every look-up of a page takes, and keeps it for all that follows.
//! 2. With two scans: walks the LRU list; of each page of the tablespace the entries are removed from the hash index.
//! 3. Walks the LRU list; each page of the tablespace is freed, dirty ones unwritten. (With one scan its hash entries
//!    are removed here.)
//! 4. If a page was in use: gives the mutex back, waits 20 ms, and begins anew.
//!
//! The cost is the number of pages in the pool, once or twice, whatever the table held.
//!
//! **May touch.** What `policy` may touch.
//!
//! Source: `buf_LRU_invalidate_tablespace`, as bug 56332 tells of its second call, and the article on Lazy Drop Table
//! of June 2012 of its mutex.

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
    /// How often the LRU list is walked: 1 or 2.
    pub scans: u32,
    /// [`Era::Mysql51`] or [`Era::Mysql55`].
    pub era: Era,
}

impl DropPolicy for LruScan {
    fn era(&self) -> Era {
        self.era
    }

    fn forget(&self, pool: &ClassicPool, space: &Space, _: &[SpaceId]) -> Steps {
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
        let mut held = instance.hold(&[Part::Lru], Purpose::Drop);
        if self.scans == 2 {
            for frame in instance.lru.from_oldest(pool.frames()) {
                steps.lru_walked += 1;
                let descriptor = &pool.frames()[frame as usize];
                if descriptor.space() == space.id && descriptor.hashed.load(Relaxed) > 0 {
                    steps.count_unhashed(pool.try_unhash(frame));
                }
            }
        }
        steps.free_pages(pool, instance, &mut held, space.id)
    }
}
