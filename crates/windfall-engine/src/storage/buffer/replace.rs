//! Page replacement: a frame comes from the free list, then from dropped tablespaces, then from CLOCK.
//!
//! **Purpose.** CLOCK (clock sweep) keeps its state in the descriptors, so a drop has no list to unlink pages from. A
//! page that a scan read in is evicted at the hand's first visit unless it was used again. A page of a look-up is
//! spared once, and one that is used again twice.
//!
//! **Invariants.** The last free frames are reserved for threads that roll a change back or drop a tablespace
//! ([`with_reserved_frames`]) (test: `the_last_free_frames_are_for_work_that_makes_room`). So other threads give up
//! while some frames are left, when dirty pages cannot be written, and their changes can be rolled back. No thread
//! waits for a frame without limit, not even for a rollback: the frames that could come free may be latched by callers
//! that wait themselves (test: `a_long_value_that_finds_no_frame_has_changed_nothing`).
//!
//! The foreground examines a bounded number of frames and writes none (test:
//! `a_caller_examines_a_bounded_number_of_frames_and_writes_none`). When it finds few free ones it wakes the cleaner
//! (test: `a_caller_that_finds_a_frame_itself_wakes_the_cleaner`), and when it finds no clean victim either it waits
//! for a frame. The last clean pages are not victims, so that a descent can keep its path in memory (test:
//! `a_look_up_ends_where_all_other_pages_wait_to_be_written`). A victim is claimed by its latch, and then its tag and
//! state are checked (checked by `buffer/replace.rs::evict`).

use core::cell::Cell;

use super::{
    BufferPool,
    arena::FrameNo,
    frame::{DIRTY, RETIRED, WRITING},
};
use crate::{
    error::{Error, Result, UsageError},
    ids::{PageId, SpaceId},
    sync::{
        atomic::{
            AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
        },
        thread_local,
        work::{self, Work},
    },
};

/// The frames that the foreground examines before it waits for the cleaner.
const FOREGROUND_REACH_FRAMES: usize = 4096;
/// The fruitless rounds of the cleaner in a row, some ten seconds, after which a waiter gives up: every frame is
/// latched by waiters, or no page can be written.
pub(super) const FRUITLESS_ROUNDS_MAX: u64 = 5_000;

/// The maximum number of reserved frames.
const RESERVED_MAX: usize = 8;

/// The maximum number of clean pages that are kept when all others wait to be written.
const CLEAN_LEFT: u64 = 8;

thread_local! {
    /// Whether this thread may take reserved frames.
    static MAY_USE_RESERVED: Cell<bool> = Cell::default();
}

/// Runs a rollback, or work that makes room, with access to the reserved frames.
pub fn with_reserved_frames<T>(run: impl FnOnce() -> T) -> T {
    let before = MAY_USE_RESERVED.replace(true);
    let result = run();
    MAY_USE_RESERVED.set(before);
    result
}

/// Counts the rounds of the cleaner that have no effect, which limits how long a caller waits for a frame. The number
/// of wakeups does not limit it: a change of the pool's size wakes the caller, and need not free a frame.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// Rounds without effect. One round may count as several.
    fruitless: AtomicU64,
    /// The value of `fruitless` at the last round with effect.
    fruitless_at_last_effect: AtomicU64,
    /// Frames that callers got, also between the rounds.
    handed_out: AtomicU64,
    /// The value of `handed_out` at the end of the last round.
    handed_out_before: AtomicU64,
}

impl Rounds {
    /// Ends a round of the only cleaner. Returns whether it was fruitless.
    pub(super) fn end(&self, is_fruitful: bool, counts_as: u64) -> bool {
        debug_assert!(counts_as > 0, "a fruitless round counts as none");
        let handed_out = self.handed_out.load(Relaxed);
        let none_handed_out = self.handed_out_before.swap(handed_out, Relaxed) == handed_out;
        if is_fruitful || !none_handed_out {
            self.fruitless_at_last_effect.store(self.fruitless.load(Relaxed), Release);
            return false;
        }
        self.fruitless.fetch_add(counts_as, Release);
        true
    }

    /// Returns whether a caller that began to wait at this number of fruitless rounds should give up.
    fn is_exhausted_since(&self, began: u64) -> bool {
        let since = began.max(self.fruitless_at_last_effect.load(Acquire));
        self.fruitless.load(Acquire) > since + FRUITLESS_ROUNDS_MAX
    }
}

impl BufferPool {
    /// Returns a frame that holds nothing and is in no list.
    pub(super) fn allocate(&self) -> Result<FrameNo> {
        let began = self.rounds.fruitless.load(Acquire);
        loop {
            // Read before the first attempt: a frame that comes free after an attempt ends the wait.
            let freed = self.frames_freed.load(Acquire);
            if let Some(frame) = self.allocate_at_once() {
                return Ok(frame);
            }
            self.wait_for_frame(freed, began)?;
        }
    }

    /// Allocates a frame without a wait; `None` if no frame is available.
    pub(super) fn allocate_at_once(&self) -> Option<FrameNo> {
        let frame = self.find_frame();
        if frame.is_some() && !MAY_USE_RESERVED.get() {
            self.rounds.handed_out.fetch_add(1, Relaxed);
        }
        frame
    }

    fn find_frame(&self) -> Option<FrameNo> {
        loop {
            let free = self.may_take_free().then(|| self.free.pop(&self.arena).or_else(|| self.unused()));
            if let Some(frame) = free.flatten() {
                if frame.0 >= self.limit.load(SeqCst) {
                    self.retire(frame);
                    continue;
                }
                #[cfg(not(feature = "model"))]
                debug_assert!(
                    self.arena.frame(frame).tag().space == SpaceId::NONE,
                    "{frame:?} was free and holds a page"
                );
                self.wake_cleaner_if_short();
                return Some(frame);
            }
            if self.reclaim_some() > 0 {
                continue;
            }
            return self
                .clock(&mut { FOREGROUND_REACH_FRAMES }, &mut |_| {})
                .inspect(|_| self.wake_cleaner_if_short());
        }
    }

    /// Returns whether this thread may take one of the free frames.
    fn may_take_free(&self) -> bool {
        MAY_USE_RESERVED.get() || self.free_frames() > self.reserved_frames()
    }

    /// Returns whether a clean page may be evicted for another one. A descent needs the parent while the child is read
    /// in. If only few clean pages are left, each read evicts the page that led to it, for ever if nothing is written.
    fn has_clean_to_spare(&self) -> bool {
        let limit = self.limit.load(Relaxed);
        let not_clean = self.counters.dirty.load(Relaxed) + self.free_frames() as u64;
        MAY_USE_RESERVED.get()
            || u64::from(limit).saturating_sub(not_clean) > u64::from(limit / 16).min(CLEAN_LEFT)
    }

    /// Returns the number of reserved frames.
    pub(super) fn reserved_frames(&self) -> usize {
        // The cleaner keeps more than these ready, or no other thread would ever get one.
        let few = self.limit.load(Relaxed) as usize / 16;
        let wanted = self.wanted_free();
        let reserved = few.min(wanted / 2).min(RESERVED_MAX);
        debug_assert!(reserved < wanted, "all {wanted} frames that the cleaner keeps are reserved");
        reserved
    }

    fn wake_cleaner_if_short(&self) {
        if self.free_frames() < self.wanted_free() / 2 {
            self.cleaner_wake.notify();
        }
    }

    /// Returns the number of frames that hold nothing.
    pub(super) fn free_frames(&self) -> usize {
        self.free.len() + self.unused_count()
    }

    /// Waits until frames have come free since the count was `freed`, for a caller that began to wait at the fruitless
    /// round `began`.
    fn wait_for_frame(&self, freed: u64, began: u64) -> Result<()> {
        self.counters.frame_waits.fetch_add(1, Relaxed);
        let given_up = || self.rounds.is_exhausted_since(began);
        self.frame_waiters.fetch_add(1, SeqCst);
        self.cleaner_wake.notify();
        self.context.env.wait(&self.frame_freed, &mut || {
            self.frames_freed.load(Acquire) != freed || self.context.health.is_poisoned() || given_up()
        });
        let waiters = self.frame_waiters.fetch_sub(1, SeqCst);
        debug_assert!(waiters > 0, "a thread has waited for a frame and was not counted");
        self.context.health.check()?;
        if self.frames_freed.load(Acquire) == freed && given_up() {
            let failure = self.flush_error.lock().clone();
            return Err(failure.unwrap_or_else(|| self.too_small()));
        }
        Ok(())
    }

    fn too_small(&self) -> Error {
        UsageError::PoolTooSmall { frames: self.limit.load(Relaxed) as usize }.into()
    }

    /// Returns an error for more than half of all frames: with nearly all of them latched, each page of a descent
    /// evicts the page that led to it, and the descent never ends.
    ///
    /// # Errors
    /// [`UsageError::PoolTooSmall`].
    pub(crate) fn check_may_hold(&self, pages: usize) -> Result<()> {
        if pages > self.limit.load(Relaxed) as usize / 2 { Err(self.too_small()) } else { Ok(()) }
    }

    /// Returns whether a thread waits for a frame and the cleaner's next round may find one: not if pages cannot be
    /// written.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.frame_waiters.load(SeqCst) > 0 && self.flush_error.lock().is_none()
    }

    /// Returns how many free frames the cleaner keeps ready.
    pub(super) fn wanted_free(&self) -> usize {
        (self.limit.load(Relaxed) as usize / 32).clamp(8, 4096)
    }

    /// Moves the hand over at most `reach` frames, and decrements `reach` for each. Returns the first clean victim,
    /// removed from its page table. Dirty pages that may be evicted are passed to `dirty`.
    pub(super) fn clock(&self, reach: &mut usize, dirty: &mut dyn FnMut(FrameNo)) -> Option<FrameNo> {
        let limit = u64::from(self.limit.load(Acquire).min(self.used.load(Acquire)));
        if limit == 0 {
            return None;
        }
        // Three sweeps bring every counter to zero; more would find nothing new.
        for _ in 0..(*reach).min(limit as usize * 3 + 1) {
            *reach -= 1;
            let frame = FrameNo((self.hand.fetch_add(1, AcqRel) % limit) as u32);
            work::count(Work::ListEntry);
            let descriptor = self.arena.frame(frame);
            if descriptor.tag().space == SpaceId::NONE || !descriptor.pass_hand() {
                continue;
            }
            if descriptor.is(DIRTY | WRITING) {
                dirty(frame);
            } else if self.has_clean_to_spare() && self.evict(frame) {
                return Some(frame);
            }
        }
        None
    }

    /// Evicts a clean page. Returns whether the caller owns the frame now.
    pub(super) fn evict(&self, frame: FrameNo) -> bool {
        let descriptor = self.arena.frame(frame);
        if !descriptor.latch.try_exclusive() {
            return false;
        }
        let PageId { space: id, page } = descriptor.tag();
        if id == SpaceId::NONE || descriptor.is(DIRTY | WRITING | RETIRED) {
            descriptor.latch.release_unchanged();
            return false;
        }
        let space = self.directory.at(descriptor.slot(), id);
        debug_assert!(space.is_some(), "{frame:?} holds a page of a tablespace that left the directory");
        if let Some(space) = space {
            let removed =
                space.pages.remove(page, frame, &self.reclaimer.empty_chunks, &crossbeam_epoch::pin());
            space.page_removed();
            debug_assert!(
                removed || cfg!(feature = "model") || space.is_dropped(),
                "{frame:?} is evicted, and the page table of its live tablespace does not name it"
            );
            if space.is_dropped() {
                work::count(Work::Reclaimed);
                self.counters.reclaimed.fetch_add(1, Relaxed);
            } else {
                work::count(Work::Evicted);
                self.counters.evictions.fetch_add(1, Relaxed);
            }
        }
        let was_dirty = descriptor.clear_tag();
        debug_assert!(!was_dirty, "{frame:?} is evicted with a change that is only in the log");
        descriptor.latch.release_changed();
        true
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use windfall_sim::{SimulatedDisk, SimulatedEnv};

    use super::{super::test_pool::new_pool, *};
    use crate::{
        buffer::{Access, Durability},
        engine::test_engine,
        ids::{Lsn, PageNo},
        options::Options,
        page::{PageOp, PageType},
        sync::Arc,
    };

    #[test]
    fn a_few_frames_are_kept_and_the_cleaner_wants_more_than_these() {
        for (frames, kept, wanted) in [(64, 4, 8), (1024, 8, 32), (100_000, 8, 3125)] {
            let (_, pool) = new_pool(frames);
            assert_eq!((pool.reserved_frames(), pool.wanted_free()), (kept, wanted), "{frames} frames");
            assert_eq!(pool.bookkeeping_per_frame(), 64 + 4 + 16);
        }
    }

    #[test]
    fn a_caller_that_finds_a_frame_itself_wakes_the_cleaner() {
        let options = Options::default().page_size(4096).buffer_pool_size(128 * 4096);
        let engine = test_engine::open(&SimulatedDisk::new(1), Arc::new(SimulatedEnv::new(1)), &options);
        let pool = &engine.pool;
        let space = pool.attach(SpaceId(100), Durability::Temporary);
        for page in 0..200 {
            drop(pool.latch_for_format(&space, PageNo(page)).unwrap());
        }
        pool.flush_all().unwrap();
        while pool.free_frames() > 0 {
            with_reserved_frames(|| pool.allocate()).unwrap();
        }
        // The cleaner found nothing to free, and sleeps. Now there is a clean page that is not in use.
        pool.cleaner_wake.timed_wait(Duration::ZERO);
        let waits = pool.counters.frame_waits.load(Relaxed);
        pool.allocate().unwrap();
        assert_eq!(pool.counters.frame_waits.load(Relaxed), waits, "the caller waited for the cleaner");
        assert!(
            pool.cleaner_wake.is_notified(),
            "every caller looks for frames itself while the cleaner sleeps"
        );
    }

    #[test]
    fn the_last_free_frames_are_for_work_that_makes_room() {
        let (_, pool) = new_pool(64);
        let space = pool.attach(SpaceId(100), Durability::Temporary);
        for page in 0..200 {
            drop(pool.latch_for_format(&space, PageNo(page)).unwrap());
            assert!(pool.free_frames() >= pool.reserved_frames(), "after page {page}");
        }
        while pool.free_frames() > 0 {
            with_reserved_frames(|| pool.allocate()).unwrap();
        }
    }

    #[test]
    fn frames_come_from_the_free_list_then_from_drops_and_then_from_live_trees() {
        let (_, pool) = new_pool(64);
        let [live, dropped] = [100, 101].map(|id| pool.attach(SpaceId(id), Durability::Temporary));
        for space in [&live, &dropped] {
            (0..20).for_each(|page| drop(pool.latch_for_format(space, PageNo(page)).unwrap()));
        }
        pool.detach(&dropped, None);
        let is_any_free = || pool.free_frames() > pool.reserved_frames();
        let taken = || [&pool.counters.reclaimed, &pool.counters.evictions].map(|count| count.load(Relaxed));
        while is_any_free() {
            pool.allocate().unwrap();
            assert_eq!(taken(), [0, 0], "there were free frames");
        }
        // A few at a time: they come by way of the free list.
        pool.allocate().unwrap();
        assert_eq!(taken(), [20, 0], "there were frames of a dropped tablespace");
        while is_any_free() {
            pool.allocate().unwrap();
        }
        assert_eq!(taken(), [20, 0]);
        pool.allocate().unwrap();
        assert_eq!(taken(), [20, 1]);
        assert_eq!((live.resident(), dropped.resident()), (19, 0));
    }

    /// Fills a pool with dirty pages, as far as frames can be had without a wait.
    fn fill_with_dirty_pages(pool: &BufferPool, pages: u32) {
        let space = pool.attach(SpaceId(100), Durability::Temporary);
        for page in (0..pages).map(PageNo) {
            let mut latched = pool.latch_for_format(&space, page).unwrap();
            PageOp::Format { kind: PageType::Leaf, level: 0 }.apply(latched.page(), latched.id()).unwrap();
            latched.mark_dirty(&space, Lsn(1));
        }
    }

    #[test]
    fn a_caller_examines_a_bounded_number_of_frames_and_writes_none() {
        let frames = 2 * FOREGROUND_REACH_FRAMES;
        let (disk, pool) = new_pool(frames);
        fill_with_dirty_pages(&pool, (frames - pool.reserved_frames()) as u32);
        let (operations, hand) = (disk.operations(), pool.hand.load(Relaxed));
        assert!(pool.allocate_at_once().is_none(), "all pages are dirty");
        let examined = pool.hand.load(Relaxed) - hand;
        assert!((1..=FOREGROUND_REACH_FRAMES as u64).contains(&examined), "{examined} frames are examined");
        assert_eq!((disk.operations(), pool.counters.writes.load(Relaxed)), (operations, 0));
    }

    #[test]
    fn the_foreground_waits_for_the_cleaner_and_writes_no_page() {
        let options = Options::default().page_size(4096).buffer_pool_size(128 * 4096);
        let engine = test_engine::open(&SimulatedDisk::new(1), Arc::new(SimulatedEnv::new(1)), &options);
        let counters = &engine.pool.counters;
        let count = || [&counters.writes, &counters.foreground_writes].map(|count| count.load(Relaxed));
        let before = count();
        fill_with_dirty_pages(&engine.pool, 1000);
        let waits = counters.frame_waits.load(Relaxed);
        let [written, in_the_foreground] = [0, 1].map(|n| count()[n] - before[n]);
        assert!(waits > 0 && written >= 1000 - 128, "{waits} waits, {written} pages written");
        assert_eq!(in_the_foreground, 0);
    }

    #[test]
    fn a_reader_notices_the_eviction_of_its_page() {
        let (_, pool) = new_pool(64);
        let space = pool.attach(SpaceId(100), Durability::Temporary);
        let id = PageId { space: space.id(), page: PageNo(3) };
        drop(pool.latch_for_format(&space, id.page).unwrap());
        let reading = pool.read(&space, id.page, Access::Point).unwrap();
        assert!(reading.is_valid() && pool.latch(reading.frame, id).is_some());
        assert!(pool.evict(reading.frame));
        assert!(!reading.is_valid(), "the read is valid, and its frame was evicted");
        assert!(pool.latch(reading.frame, id).is_none(), "the frame is latched, and the page is not in it");
    }
}
