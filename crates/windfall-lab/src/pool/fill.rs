//! A pool of any size, as bookkeeping only.
//!
//! **Purpose.** The cost of a list scan depends on the length of the list and on the order of its entries in memory,
//! not on the contents of the pages. So a pool of hundreds of gigabytes fits on a small machine: all descriptors, the
//! page hash and the lists are real, and the bytes of the pages are address space that is never touched.
//!
//! **Invariants.** Such a page is in the pool like one that was read in, or changed, and is never looked up (checked by
//! `pool/access.rs::find`). A dirty one is never written and needs no log: its first change is [`Lsn::MAX`], so it is
//! at the head of the flush list, newer than all pages that were really changed (test:
//! `clean_pages_come_last_in_the_flush_list`). It is evicted when it has become old, as if it had been written by then
//! (test: `real_pages_coexist_with_synthetic_ones_and_replace_them`). The order of the lists is determined by a seed
//! and not by the frame numbers, as it is in a pool that has been in use (test:
//! `lists_are_as_long_as_was_asked_for_and_in_an_order_of_chance`).

use std::sync::Arc;

use windfall::{
    error::{Result, UsageError},
    ids::{Lsn, PageId, PageNo, SpaceId},
};
use windfall_measure::Random;

use super::{
    ClassicPool, Space,
    descriptor::{DIRTY, SYNTHETIC},
    era::Part,
};
use crate::watch::Purpose;

/// Pages that are entered before the locks of the lists are released.
const BATCH: u64 = 10_000;
/// Tables that own the pages.
const TABLES: u64 = 100;
/// The stream of random numbers for the first instance's order.
const STREAM: u64 = 0xf111;

impl ClassicPool {
    /// Enters this many pages of tables created for them, of which `dirty`, evenly spread, are dirty. `new_id` numbers
    /// the tables.
    ///
    /// # Errors
    /// There are not enough free frames.
    pub fn add_bookkeeping_pages(
        &self,
        new_id: impl Fn() -> SpaceId,
        pages: u64,
        dirty: u64,
        seed: u64,
    ) -> Result<()> {
        let tables: Vec<Arc<Space>> = (0..TABLES).map(|_| Space::new(new_id(), false)).collect();
        for table in &tables {
            self.attach(table);
        }
        let each = pages.div_ceil(TABLES).max(1);
        let number = |n: u64| {
            let space = &tables[(n / each) as usize];
            (PageId { space: space.id, page: PageNo((n % each) as u32) }, space.version())
        };
        let is_dirty = |n: u64| n * dirty / pages < (n + 1) * dirty / pages;
        let mut orders: Vec<[Vec<u32>; 2]> = self.instances.iter().map(|_| Default::default()).collect();
        for first in (0..pages).step_by(BATCH as usize) {
            let mut held: Vec<_> =
                self.instances.iter().map(|i| i.lock(&[Part::Lru], Purpose::Load)).collect();
            for held in &mut held {
                held.acquire(Part::Free);
            }
            for n in first..pages.min(first + BATCH) {
                let ((id, version), is_dirty) = (number(n), is_dirty(n));
                let (at, instance) = self.numbered_instance_of(id);
                let [all, changed] = &mut orders[at];
                let Some(frame) = instance.free.pop(&self.frames) else {
                    let what = format!("{pages} pages do not fit into a pool of {}", self.frames.len());
                    return Err(UsageError::Other(what.into()).into());
                };
                let descriptor = &self.frames[frame as usize];
                descriptor.set_tag(id, version, SYNTHETIC | if is_dirty { DIRTY } else { 0 });
                let latched = held[at].latch_page(id);
                instance.pages.insert(&self.frames, frame);
                drop(latched);
                all.push(frame);
                if is_dirty {
                    descriptor.set_oldest(Lsn::MAX);
                    changed.push(frame);
                }
            }
        }
        for (at, (instance, [all, changed])) in self.instances.iter().zip(&mut orders).enumerate() {
            let mut random = Random::new(seed, STREAM + at as u64);
            random.shuffle(all);
            random.shuffle(changed);
            let mut held = instance.lock(&[Part::Lru], Purpose::Load);
            instance.lru.extend(&self.frames, all);
            held.acquire(Part::Flush);
            for &frame in &*changed {
                instance.flush.insert(&self.frames, frame);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;
    use crate::{
        pool::{Era, PoolOptions},
        testing::{check_pool, get, new_space, pool, put, tree},
    };

    fn filled(seed: u64) -> Arc<ClassicPool> {
        let options = PoolOptions {
            era: Era::Mysql55,
            instances: 3,
            frames: 10_000,
            page_size: 4096,
            hash_index: false,
            dirty_percent: 90,
        };
        let (_, pool) = pool(options);
        let next = Cell::new(1_000);
        let new_id = || SpaceId(next.replace(next.get() + 1));
        pool.add_bookkeeping_pages(new_id, 9_000, 3_000, seed).unwrap();
        pool
    }

    #[test]
    fn lists_are_as_long_as_was_asked_for_and_in_an_order_of_chance() {
        let pool = filled(1);
        assert_eq!(pool.occupancy(), [9_000, 3_000, 1_000]);
        let order = |pool: &ClassicPool| -> Vec<u32> {
            pool.instances().iter().flat_map(|i| i.lru.from_oldest(pool.frames())).collect()
        };
        let lru = order(&pool);
        let next_to_each_other = lru.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) < 10).count();
        assert!(next_to_each_other < 300, "{next_to_each_other} of 9000");
        assert_eq!(order(&filled(1)), lru);
        assert_ne!(order(&filled(2)), lru);
        for instance in pool.instances() {
            let old = instance
                .frames
                .clone()
                .filter(|&f| pool.frames()[f as usize].is(crate::pool::descriptor::OLD));
            assert_eq!(old.count(), instance.lru.old_len() as usize);
            assert!(instance.lru.old_len().abs_diff(instance.lru.len() * 3 / 8) <= 21);
        }
    }

    #[test]
    fn real_pages_coexist_with_synthetic_ones_and_replace_them() {
        let pool = filled(1);
        let rows = tree(&pool, &new_space(&pool, 20), 100);
        let low_water_mark = pool.context().log.low_water_mark();
        for n in 0..12_000_u32 {
            put(&rows, &n.to_be_bytes(), &[1; 1000]);
            if n % 100 == 0 {
                pool.clean().unwrap();
            }
        }
        let left = |pool: &ClassicPool| {
            let synthetic = pool.frames().iter().filter(|d| d.is(SYNTHETIC) && d.is(DIRTY));
            (synthetic.count() as u64, pool.occupancy()[1])
        };
        assert!(left(&pool).0 < 3_000, "they have become old as the others do");
        // They are neither waited for nor written: they have no files. And they do not hold back the log.
        pool.flush_all().unwrap();
        let (synthetic, dirty) = left(&pool);
        assert_eq!((synthetic, synthetic > 1_000), (dirty, true));
        assert!(pool.context().log.low_water_mark() > low_water_mark);
        (0..12_000_u32)
            .step_by(11)
            .for_each(|n| assert_eq!(get(&rows, &n.to_be_bytes()), Some(vec![1; 1000])));
        check_pool(&pool);
    }

    #[test]
    fn more_than_fits_is_refused() {
        let pool = filled(1);
        let error = pool.add_bookkeeping_pages(|| SpaceId(5_000), 1_001, 0, 1).unwrap_err();
        assert!(error.to_string().contains("do not fit"), "{error}");
    }
}
