//! The lists of a pool instance, linked through the descriptors.
//!
//! **Purpose.** The LRU list with its midpoint, the flush list in the order of the first change, the free list.
//!
//! **Invariants.** A thread that changes a list holds a lock of the pool (checked by `watch/mod.rs::assert_held`),
//! namely that of the list, which the caller has acquired. About [`OLD_SHARE`] of the frames of the LRU list, those
//! from the midpoint to the old end, have the mark [`OLD`] (test: `the_older_part_is_three_eighths`). The LSNs of the
//! flush list descend from head to tail (test: `changed_pages_are_ordered_by_their_first_change`).
//!
//! *Midpoint insertion*: a page that is read in enters the list three eighths from its end, so that a scan does not
//! evict the pages in use (test: `a_page_of_a_scan_leaves_before_those_in_use`). It moves to the front when it is used
//! again, but not if it is among the youngest quarter of the young part anyway (`buf_page_peek_if_young`) (test:
//! `only_pages_off_the_front_are_made_young`). So most look-ups do not need the list's lock.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use windfall::ids::Lsn;

use super::descriptor::{Descriptor, Link, OLD};
use crate::watch::assert_held;

/// The share of the old part, in 1,024ths: three eighths.
const OLD_SHARE: u32 = 3 * 1024 / 8;
/// The permitted deviation of the old part's length.
const TOLERANCE: u32 = 20;
/// A shorter list has no old part.
const SHORTEST: u32 = 512;

const YOUNGER: usize = 0;
const OLDER: usize = 1;

/// Pages by their last use.
#[derive(Debug, Default)]
pub struct Lru {
    youngest: Link,
    oldest: Link,
    /// The first frame of the old part.
    midpoint: Link,
    length: AtomicU32,
    old_length: AtomicU32,
    /// The number of evicted pages: a clock that shows whether a page is among the youngest.
    clock: AtomicU32,
}

impl Lru {
    /// Returns the number of frames.
    pub fn len(&self) -> u32 {
        self.length.load(Relaxed)
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of frames of the old part.
    pub fn old_len(&self) -> u32 {
        self.old_length.load(Relaxed)
    }

    /// Iterates from the oldest to the youngest. The next frame is read before a frame is returned, so the returned
    /// one may be removed.
    pub fn from_oldest<'a>(&self, frames: &'a [Descriptor]) -> impl Iterator<Item = u32> + use<'a> {
        let mut next = self.oldest.get();
        core::iter::from_fn(move || {
            let frame = next?;
            next = frames[frame as usize].lru[YOUNGER].get();
            Some(frame)
        })
    }

    /// Inserts a frame at the midpoint, or at the young end.
    pub fn insert(&self, frames: &[Descriptor], frame: u32, young: bool) {
        let before = if young { None } else { self.midpoint.get() };
        match before {
            Some(midpoint) => {
                self.link(frames, frame, frames[midpoint as usize].lru[YOUNGER].get(), Some(midpoint));
                frames[frame as usize].set(OLD);
                self.old_length.fetch_add(1, Relaxed);
                self.midpoint.set(Some(frame));
            }
            None => self.link(frames, frame, None, self.youngest.get()),
        }
        frames[frame as usize].used_at.store(self.clock.load(Relaxed), Relaxed);
        self.balance(frames);
    }

    /// Inserts many frames at the young end; the last one becomes the youngest.
    pub fn extend(&self, frames: &[Descriptor], order: &[u32]) {
        let length = self.len() + order.len() as u32;
        let old = if length < SHORTEST { 0 } else { Self::old_of(length) };
        self.grow_old(frames, old.min(self.len()));
        for &frame in order {
            // The midpoint moves now, while the descriptor is in the processor's cache: later it would be fetched
            // again.
            let is_old = self.old_len() < old && self.midpoint.get() == self.youngest.get();
            self.link(frames, frame, None, self.youngest.get());
            frames[frame as usize].used_at.store(self.clock.load(Relaxed), Relaxed);
            if is_old {
                self.grow_old(frames, self.old_len() + 1);
            }
        }
        self.balance(frames);
    }

    /// Removes a frame.
    pub fn remove(&self, frames: &[Descriptor], frame: u32) {
        assert_held("the LRU list");
        let descriptor = &frames[frame as usize];
        let [younger, older] = &descriptor.lru;
        let (younger, older) = (younger.get(), older.get());
        if descriptor.clear(OLD) & OLD != 0 {
            if self.midpoint.get() == Some(frame) {
                self.midpoint.set(older);
            }
            self.old_length.fetch_sub(1, Relaxed);
        }
        match younger {
            Some(younger) => frames[younger as usize].lru[OLDER].set(older),
            None => self.youngest.set(older),
        }
        match older {
            Some(older) => frames[older as usize].lru[YOUNGER].set(younger),
            None => self.oldest.set(younger),
        }
        self.length.fetch_sub(1, Relaxed);
        self.balance(frames);
    }

    /// Counts an eviction.
    pub fn tick(&self) {
        self.clock.fetch_add(1, Relaxed);
    }

    /// Returns whether the page is so far from the front that moving it is worth the cost. Needs no lock.
    #[inline]
    pub fn is_to_be_made_young(&self, descriptor: &Descriptor) -> bool {
        let clock = self.clock.load(Relaxed);
        // Until a page is evicted the order does not matter.
        if clock == 0 {
            return false;
        }
        let young = u64::from(self.len()) * u64::from(1024 - OLD_SHARE) / (1024 * 4);
        descriptor.is(OLD) || u64::from(clock.wrapping_sub(descriptor.used_at.load(Relaxed))) >= young
    }

    /// Moves a frame to the front.
    pub fn make_young(&self, frames: &[Descriptor], frame: u32) {
        self.remove(frames, frame);
        self.insert(frames, frame, true);
    }

    fn link(&self, frames: &[Descriptor], frame: u32, younger: Option<u32>, older: Option<u32>) {
        assert_held("the LRU list");
        frames[frame as usize].lru[YOUNGER].set(younger);
        frames[frame as usize].lru[OLDER].set(older);
        match younger {
            Some(younger) => frames[younger as usize].lru[OLDER].set(Some(frame)),
            None => self.youngest.set(Some(frame)),
        }
        match older {
            Some(older) => frames[older as usize].lru[YOUNGER].set(Some(frame)),
            None => self.oldest.set(Some(frame)),
        }
        self.length.fetch_add(1, Relaxed);
    }

    /// Returns the target length of the old part of a list of this length.
    fn old_of(length: u32) -> u32 {
        (u64::from(length) * u64::from(OLD_SHARE) / 1024) as u32
    }

    /// Moves the midpoint towards the young end until the old part has the wanted length.
    fn grow_old(&self, frames: &[Descriptor], wanted: u32) {
        while self.old_len() < wanted {
            let younger = match self.midpoint.get() {
                Some(midpoint) => frames[midpoint as usize].lru[YOUNGER].get(),
                None => self.oldest.get(),
            };
            let Some(younger) = younger else { return };
            frames[younger as usize].set(OLD);
            self.midpoint.set(Some(younger));
            self.old_length.fetch_add(1, Relaxed);
        }
    }

    /// Moves the midpoint to its target position.
    fn balance(&self, frames: &[Descriptor]) {
        let length = self.len();
        if length < SHORTEST {
            while let Some(frame) = self.midpoint.get() {
                self.midpoint.set(frames[frame as usize].lru[OLDER].get());
                frames[frame as usize].clear(OLD);
                self.old_length.fetch_sub(1, Relaxed);
            }
            return;
        }
        let wanted = Self::old_of(length);
        if self.old_len() + TOLERANCE < wanted {
            self.grow_old(frames, wanted - TOLERANCE);
        }
        while self.old_len() > wanted + TOLERANCE {
            let Some(midpoint) = self.midpoint.get() else { return };
            frames[midpoint as usize].clear(OLD);
            self.midpoint.set(frames[midpoint as usize].lru[OLDER].get());
            self.old_length.fetch_sub(1, Relaxed);
        }
    }
}

/// Dirty pages in the order of their first change, the newest at the head. Pages that are bookkeeping only, with a
/// first change of [`Lsn::MAX`], form a block at the head.
#[derive(Debug, Default)]
pub struct Flush {
    newest: Link,
    oldest: Link,
    /// The oldest frame of that block: the one next to the other pages.
    oldest_synthetic: Link,
    length: AtomicU32,
}

impl Flush {
    /// Returns the number of frames.
    pub fn len(&self) -> u32 {
        self.length.load(Relaxed)
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates from the first change to the last. The next frame is read before a frame is returned.
    pub fn from_oldest<'a>(&self, frames: &'a [Descriptor]) -> impl Iterator<Item = u32> + use<'a> {
        let mut next = self.oldest.get();
        core::iter::from_fn(move || {
            let frame = next?;
            next = frames[frame as usize].flush[YOUNGER].get();
            Some(frame)
        })
    }

    /// Returns the frame with the next newer first change.
    pub fn newer(&self, frames: &[Descriptor], frame: u32) -> Option<u32> {
        frames[frame as usize].flush[YOUNGER].get()
    }

    /// Returns the frame with the oldest first change.
    pub fn oldest(&self) -> Option<u32> {
        self.oldest.get()
    }

    /// Inserts a frame by its [`Descriptor::oldest`]. Log groups end almost in the order in which they began, so the
    /// search is short.
    pub fn insert(&self, frames: &[Descriptor], frame: u32) {
        assert_held("the flush list");
        let lsn = frames[frame as usize].oldest();
        let (mut newer, mut older) = (None, self.newest.get());
        match self.oldest_synthetic.get() {
            Some(synthetic) if lsn < Lsn::MAX => {
                (newer, older) = (Some(synthetic), frames[synthetic as usize].flush[OLDER].get());
            }
            None if lsn == Lsn::MAX => self.oldest_synthetic.set(Some(frame)),
            _ => {}
        }
        while let Some(other) = older.filter(|&other| frames[other as usize].oldest() > lsn) {
            (newer, older) = (Some(other), frames[other as usize].flush[OLDER].get());
        }
        frames[frame as usize].flush[YOUNGER].set(newer);
        frames[frame as usize].flush[OLDER].set(older);
        match newer {
            Some(newer) => frames[newer as usize].flush[OLDER].set(Some(frame)),
            None => self.newest.set(Some(frame)),
        }
        match older {
            Some(older) => frames[older as usize].flush[YOUNGER].set(Some(frame)),
            None => self.oldest.set(Some(frame)),
        }
        self.length.fetch_add(1, Relaxed);
    }

    /// Removes a frame.
    pub fn remove(&self, frames: &[Descriptor], frame: u32) {
        assert_held("the flush list");
        let [newer, older] = &frames[frame as usize].flush;
        let (newer, older) = (newer.get(), older.get());
        if self.oldest_synthetic.get() == Some(frame) {
            self.oldest_synthetic.set(newer);
        }
        match newer {
            Some(newer) => frames[newer as usize].flush[OLDER].set(older),
            None => self.newest.set(older),
        }
        match older {
            Some(older) => frames[older as usize].flush[YOUNGER].set(newer),
            None => self.oldest.set(newer),
        }
        self.length.fetch_sub(1, Relaxed);
    }

    /// Iterates from the first change to the last, without the pages that are bookkeeping only.
    pub fn changed<'a>(&self, frames: &'a [Descriptor]) -> impl Iterator<Item = u32> + use<'a> {
        self.from_oldest(frames).take_while(|&frame| frames[frame as usize].oldest() < Lsn::MAX)
    }

    /// Returns the LSN of the oldest change that is not in the files; `None` if there is none.
    pub fn oldest_change(&self, frames: &[Descriptor]) -> Option<Lsn> {
        self.oldest.get().map(|frame| frames[frame as usize].oldest()).filter(|lsn| *lsn < Lsn::MAX)
    }
}

/// Empty frames: those that were freed, then those that were never used.
#[derive(Debug)]
pub struct Free {
    first: Link,
    length: AtomicU32,
    next_unused: AtomicU32,
    end: u32,
}

impl Free {
    /// Creates a list in which all of these frames are unused.
    pub fn new(frames: core::ops::Range<u32>) -> Self {
        let (first, length) = (Link::default(), AtomicU32::new(0));
        Self { first, length, next_unused: AtomicU32::new(frames.start), end: frames.end }
    }

    /// Returns the number of free frames.
    pub fn len(&self) -> u32 {
        self.length.load(Relaxed) + self.end - self.next_unused.load(Relaxed)
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes a free frame.
    pub fn pop(&self, frames: &[Descriptor]) -> Option<u32> {
        assert_held("the free list");
        if let Some(frame) = self.first.get() {
            self.first.set(frames[frame as usize].chain.get());
            self.length.fetch_sub(1, Relaxed);
            return Some(frame);
        }
        let unused = self.next_unused.load(Relaxed);
        (unused < self.end).then(|| {
            self.next_unused.store(unused + 1, Relaxed);
            unused
        })
    }

    /// Adds a free frame.
    pub fn push(&self, frames: &[Descriptor], frame: u32) {
        assert_held("the free list");
        debug_assert_eq!(
            frames[frame as usize].hashed.load(Relaxed),
            0,
            "a frame is freed that the hash index refers to"
        );
        frames[frame as usize].chain.set(self.first.get());
        self.first.set(Some(frame));
        self.length.fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::lock_of_pool;

    fn frames(count: u32) -> Vec<Descriptor> {
        (0..count).map(|_| Descriptor::default()).collect()
    }

    /// Asserts that exactly the frames from the midpoint to the old end are marked as old.
    fn check(lru: &Lru, frames: &[Descriptor]) {
        let order: Vec<u32> = lru.from_oldest(frames).collect();
        assert_eq!(order.len(), lru.len() as usize);
        let old = lru.old_len() as usize;
        assert!(order[..old].iter().all(|&f| frames[f as usize].is(OLD)), "an old frame is not marked");
        assert!(!order[old..].iter().any(|&f| frames[f as usize].is(OLD)), "a young frame is marked as old");
        if lru.len() >= SHORTEST {
            let wanted = lru.len() * 3 / 8;
            assert!(lru.old_len().abs_diff(wanted) <= TOLERANCE + 1, "{} of {}", lru.old_len(), lru.len());
        }
    }

    #[test]
    fn the_older_part_is_three_eighths() {
        let _held = lock_of_pool();
        let frames = frames(5_000);
        let lru = Lru::default();
        for frame in 0..5_000 {
            lru.insert(&frames, frame, frame % 3 == 0);
            if frame % 97 == 0 {
                check(&lru, &frames);
            }
        }
        for frame in 0..5_000 {
            match frame % 4 {
                0 => lru.make_young(&frames, frame),
                1 | 2 => lru.remove(&frames, frame),
                _ => continue,
            }
            if frame % 97 == 0 {
                check(&lru, &frames);
            }
        }
        assert_eq!(lru.len(), 2_500);
        (0..5_000).filter(|f| f % 4 == 0 || f % 4 == 3).for_each(|f| lru.remove(&frames, f));
        assert!(lru.is_empty() && lru.old_len() == 0 && lru.from_oldest(&frames).next().is_none());
    }

    #[test]
    fn a_page_of_a_scan_leaves_before_those_in_use() {
        let _held = lock_of_pool();
        let frames = frames(1_000);
        let lru = Lru::default();
        (0..900).for_each(|frame| lru.insert(&frames, frame, true));
        lru.insert(&frames, 950, false);
        let at = lru.from_oldest(&frames).position(|frame| frame == 950).unwrap();
        assert!((300..=380).contains(&at), "it is the {at}th to go");
    }

    #[test]
    fn only_pages_off_the_front_are_made_young() {
        let _held = lock_of_pool();
        let frames = frames(1_000);
        let lru = Lru::default();
        (0..1_000).for_each(|frame| lru.insert(&frames, frame, true));
        assert!(!lru.is_to_be_made_young(&frames[0]), "nothing was evicted yet");
        lru.tick();
        assert!(lru.is_to_be_made_young(&frames[0]), "it is old");
        assert!(!lru.is_to_be_made_young(&frames[999]), "it is the youngest");
        (0..200).for_each(|_| lru.tick());
        assert!(lru.is_to_be_made_young(&frames[999]), "others came meanwhile");
        lru.make_young(&frames, 999);
        assert!(!lru.is_to_be_made_young(&frames[999]));
    }

    #[test]
    fn changed_pages_are_ordered_by_their_first_change() {
        let _held = lock_of_pool();
        let frames = frames(10);
        let flush = Flush::default();
        for (frame, lsn) in [(3, 30), (1, 10), (4, 40), (2, 20), (5, 25)] {
            frames[frame as usize].set_oldest(Lsn(lsn));
            flush.insert(&frames, frame);
        }
        let order = || flush.from_oldest(&frames).collect::<Vec<u32>>();
        assert_eq!(order(), [1, 2, 5, 3, 4]);
        flush.remove(&frames, 1);
        flush.remove(&frames, 5);
        flush.remove(&frames, 4);
        assert_eq!((order(), flush.oldest_change(&frames)), (vec![2, 3], Some(Lsn(20))));
        flush.remove(&frames, 2);
        flush.remove(&frames, 3);
        assert!(flush.is_empty() && flush.oldest_change(&frames).is_none());
    }

    #[test]
    fn clean_pages_come_last_in_the_flush_list() {
        let _held = lock_of_pool();
        let frames = frames(20);
        let flush = Flush::default();
        let enter = |frame: u32, lsn| {
            frames[frame as usize].set_oldest(lsn);
            flush.insert(&frames, frame);
        };
        enter(1, Lsn(10));
        (10..15).for_each(|frame| enter(frame, Lsn::MAX));
        enter(2, Lsn(30));
        enter(3, Lsn(20));
        let order = || flush.from_oldest(&frames).collect::<Vec<u32>>();
        assert_eq!(order(), [1, 3, 2, 10, 11, 12, 13, 14]);
        assert_eq!(flush.changed(&frames).collect::<Vec<u32>>(), [1, 3, 2]);
        for frame in [1, 2, 3, 10, 12] {
            flush.remove(&frames, frame);
        }
        assert_eq!((order(), flush.oldest_change(&frames)), (vec![11, 13, 14], None));
        enter(4, Lsn(40));
        assert_eq!((order(), flush.oldest_change(&frames)), (vec![4, 11, 13, 14], Some(Lsn(40))));
        for frame in [11, 13, 14] {
            flush.remove(&frames, frame);
        }
        enter(5, Lsn(50));
        enter(15, Lsn::MAX);
        assert_eq!(order(), [4, 5, 15]);
    }

    #[test]
    fn every_frame_is_free_once() {
        let _held = lock_of_pool();
        let frames = frames(10);
        let free = Free::new(4..7);
        assert_eq!(free.len(), 3);
        let mut taken: Vec<u32> = core::iter::from_fn(|| free.pop(&frames)).collect();
        assert_eq!((free.is_empty(), &taken[..]), (true, &[4, 5, 6][..]));
        free.push(&frames, 5);
        free.push(&frames, 4);
        taken = core::iter::from_fn(|| free.pop(&frames)).collect();
        assert_eq!(taken, [4, 5]);
    }
}
