//! The page hash: one hash from page ids to frames over all tablespaces.
//!
//! **Purpose.** Buckets of frames, chained through the descriptors.
//!
//! **Invariants.** A thread that reads or changes a bucket holds a lock of the pool (checked by
//! `watch/mod.rs::assert_held`), namely that of the bucket, which the caller has acquired.

use windfall::ids::PageId;

use super::descriptor::{Descriptor, Link};
use crate::watch::assert_held;

/// The page hash of a pool instance.
#[derive(Debug)]
pub struct PageHash {
    /// The length is a power of two.
    buckets: Box<[Link]>,
}

impl PageHash {
    /// Creates a hash for about this many pages.
    pub fn new(frames: usize) -> Self {
        let buckets = (frames.max(8) * 2).next_power_of_two();
        Self { buckets: (0..buckets).map(|_| Link::default()).collect() }
    }

    /// Returns the number of a page's bucket.
    #[inline]
    pub fn bucket(&self, id: PageId) -> usize {
        // Consecutive pages are in consecutive buckets, and each tablespace begins at a pseudo-random bucket.
        let first = id.space.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        first.wrapping_add(id.page.0.into()) as usize & (self.buckets.len() - 1)
    }

    /// Returns the frame that holds a page.
    #[inline]
    pub fn find(&self, frames: &[Descriptor], id: PageId) -> Option<u32> {
        assert_held("the page hash");
        let mut at = self.buckets[self.bucket(id)].get();
        while let Some(frame) = at.filter(|&frame| frames[frame as usize].tag() != id) {
            at = frames[frame as usize].chain.get();
        }
        at
    }

    /// Adds a frame, whose tag must be set.
    pub fn insert(&self, frames: &[Descriptor], frame: u32) {
        assert_held("the page hash");
        let descriptor = &frames[frame as usize];
        let bucket = &self.buckets[self.bucket(descriptor.tag())];
        descriptor.chain.set(bucket.get());
        bucket.set(Some(frame));
    }

    /// Removes a frame, whose tag must still be set.
    pub fn remove(&self, frames: &[Descriptor], frame: u32) {
        assert_held("the page hash");
        let descriptor = &frames[frame as usize];
        let mut link = &self.buckets[self.bucket(descriptor.tag())];
        while let Some(other) = link.get() {
            if other == frame {
                link.set(descriptor.chain.get());
                return;
            }
            link = &frames[other as usize].chain;
        }
        unreachable!("{} is not in the page hash", descriptor.tag());
    }
}

#[cfg(test)]
mod tests {
    use windfall::ids::{PageNo, SpaceId};

    use super::*;
    use crate::testing::lock_of_pool;

    #[test]
    fn pages_are_found_until_they_are_removed() {
        let _held = lock_of_pool();
        let frames: Vec<Descriptor> = (0..1_000).map(|_| Descriptor::default()).collect();
        let hash = PageHash::new(100);
        let id = |n: u32| PageId { space: SpaceId(u64::from(n % 7) + 16), page: PageNo(n / 7) };
        for n in 0..1_000 {
            frames[n as usize].set_tag(id(n), 0, 0);
            hash.insert(&frames, n);
        }
        for n in (0..1_000).step_by(3) {
            hash.remove(&frames, n);
        }
        for n in 0..1_000 {
            assert_eq!(hash.find(&frames, id(n)), (n % 3 != 0).then_some(n));
        }
    }

    #[test]
    fn the_pages_of_one_table_and_of_many_are_spread() {
        for tables in [1_u32, 7, 100] {
            let hash = PageHash::new(1 << 12);
            let mut filled = vec![0; 1 << 13];
            for page in 0..(1 << 12) / tables {
                for space in 0..tables {
                    filled[hash
                        .bucket(PageId { space: SpaceId(u64::from(space) + 99), page: PageNo(page) })] += 1;
                }
            }
            let most = filled.iter().max();
            assert!(filled.iter().all(|&n| n < 10), "{tables} tables: {most:?} pages in one bucket");
        }
    }
}
