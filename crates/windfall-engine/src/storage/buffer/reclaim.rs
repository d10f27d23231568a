//! Reclaiming the frames of dropped tablespaces, which are reused first.
//!
//! **Purpose.** A dropped tablespace's page table is a list of frames that are not needed. A thread that needs a frame
//! and finds the free list empty takes some from here, before any live page is evicted. A background step takes the
//! rest, and frees the memory that the tablespace leaves: its dirty set and its page table.
//!
//! **Invariants.** A call examines a bounded number of entries and of tablespaces, whatever the size of a table and the
//! number of dropped tables (tests: `a_reclaim_call_frees_a_bounded_number_of_frames`,
//! `a_call_takes_in_a_bounded_number_of_tablespaces`). A frame is taken by its latch and its tag (test:
//! `a_drain_takes_no_frame_that_was_reused`): a frame that another thread has latched is kept in `busy_frames` and
//! tried again (test: `a_latched_frame_is_freed_when_its_latch_is_released`). A page of a dropped tablespace is not
//! copied for writing any more, and its dirty bit is cleared with its tag (test: `a_dropped_page_is_not_written`). Only
//! the background step frees memory, a bounded amount per step (test:
//! `a_dropped_tablespace_is_freed_in_steps_once_unreferenced`). That includes chunks that evictions have emptied
//! ([`EmptyChunks`]), unless too many wait (tests: `chunks_that_evictions_have_emptied_are_freed_in_the_background`,
//! `empty_chunks_that_wait_are_bounded`). The reclaimer keeps a tablespace until nothing else has a reference, so no
//! other thread ever drops the last reference to a tablespace that was in the pool's directory (test:
//! `a_dropped_tablespace_is_freed_in_steps_once_unreferenced`).

use std::collections::VecDeque;

use crossbeam_queue::SegQueue;

use super::{BufferPool, FileState, arena::FrameNo, dirty::DirtySet, page_table::EmptyChunks, space::Space};
use crate::{
    ids::{PageId, PageNo},
    memory,
    sync::{
        Arc, Mutex, Rank,
        atomic::{
            AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
        work::{self, Work},
    },
};

/// The positions of a dropped page table that one call examines.
const PLACES_PER_CALL: usize = 512;
/// The maximum number of rounds without a frame in one call: among many empty tablespaces it leaves the rest to the
/// background step.
const ROUNDS_PER_CALL: usize = 1024;
/// The frames that one call takes.
const FRAMES_PER_CALL: usize = 64;
/// The newly dropped tablespaces that one call takes from the inbox.
const ARRIVALS_PER_CALL: usize = 64;
/// The tablespaces without frames that one step removes from the pool, and those with references elsewhere that it
/// checks.
const SPACES_PER_STEP: usize = 32;
/// The entries of dirty sets that one step frees.
const DIRTY_PER_STEP: usize = 4096;
/// The chunks of one page table that one step frees, and the chunks emptied by evictions.
const CHUNKS_PER_STEP: usize = 128;

const _: () = assert!(memory::queue_block_is_small::<(Arc<Space>, usize)>());

/// Dropped tablespaces with frames to be reclaimed.
#[derive(Debug)]
pub(super) struct Reclaimer {
    /// Newly dropped tablespaces that no call has taken yet, with the number of frames that they had.
    inbox: SegQueue<(Arc<Space>, usize)>,
    queue: Mutex<VecDeque<Dropped>>,
    /// The number of dropped tablespaces that still have frames, to be read without a lock.
    pending: AtomicUsize,
    /// The number of dropped tablespaces that were not yet handed over to have their files deleted.
    not_handed_over: AtomicUsize,
    /// The frames that the pending tablespaces still hold, as of the last check of each.
    frames: AtomicUsize,
    /// The dirty ones among these frames, without those of tablespaces in the inbox.
    dirty: AtomicUsize,
    /// Tablespaces with all frames freed.
    without_frames: SegQueue<Arc<Space>>,
    /// The memory of tablespaces without frames that is still to be freed.
    memory_to_free: Mutex<PendingFree>,
    /// Emptied chunks of page tables that are in use.
    pub empty_chunks: Arc<EmptyChunks>,
}

#[derive(Debug)]
struct Dropped {
    space: Arc<Space>,
    /// The page at which the drain continues; `None` at its end.
    at: Option<PageNo>,
    busy_frames: Vec<(PageNo, FrameNo)>,
    /// The tablespace's part of [`Reclaimer::frames`] and [`Reclaimer::dirty`].
    frames: usize,
    dirty: usize,
}

/// Memory of tablespaces with all frames freed.
#[derive(Debug, Default)]
struct PendingFree {
    dirty: VecDeque<DirtySet>,
    spaces: VecDeque<Arc<Space>>,
}

impl PendingFree {
    /// Frees some memory. Returns whether it did: a tablespace with references elsewhere is left alone.
    fn free_some(&mut self) -> bool {
        if let Some(dirty) = self.dirty.front_mut() {
            if !dirty.free_some(DIRTY_PER_STEP) {
                self.dirty.pop_front();
            }
            return true;
        }
        let mut freed = false;
        for _ in 0..self.spaces.len().min(SPACES_PER_STEP) {
            let Some(mut space) = self.spaces.pop_front() else { break };
            let Some(owned) = Arc::get_mut(&mut space) else {
                self.spaces.push_back(space);
                continue;
            };
            assert!(owned.is_dropped(), "tablespace {} is freed and was not dropped", owned.id());
            assert!(owned.resident() == 0, "tablespace {} is freed and has pages in frames", owned.id());
            freed = true;
            if owned.pages.free_some(CHUNKS_PER_STEP) {
                self.spaces.push_front(space);
                break;
            }
        }
        freed
    }
}

impl Default for Reclaimer {
    fn default() -> Self {
        Self {
            inbox: SegQueue::new(),
            queue: Mutex::new(Rank::Pool, VecDeque::new()),
            pending: AtomicUsize::new(0),
            not_handed_over: AtomicUsize::new(0),
            frames: AtomicUsize::new(0),
            dirty: AtomicUsize::new(0),
            without_frames: SegQueue::new(),
            memory_to_free: Mutex::new(Rank::Leaf, PendingFree::default()),
            empty_chunks: Arc::default(),
        }
    }
}

impl Reclaimer {
    /// Takes over a tablespace that was marked dropped. This is all that a drop does to the pool. It does not even wake
    /// the background step, which checks by itself from time to time.
    pub(super) fn push(&self, space: Arc<Space>) {
        assert!(space.is_dropped(), "tablespace {} is to be reclaimed and was not dropped", space.id());
        self.not_handed_over.fetch_add(1, SeqCst);
        self.pending.fetch_add(1, Relaxed);
        let frames = space.resident() as usize;
        self.frames.fetch_add(frames, Relaxed);
        self.inbox.push((space, frames));
    }

    /// Returns the number of dropped tablespaces that still have frames to free.
    pub(super) fn pending(&self) -> usize {
        self.pending.load(Relaxed)
    }

    /// Returns the number of tablespaces that are not handed over yet, the frames that they still hold, and how many of
    /// these were dirty. Pages that are read in and evicted meanwhile make it inexact; if more than a few tablespaces
    /// are new, their dirty frames are counted later.
    pub(super) fn pending_frames(&self) -> (usize, usize, usize) {
        self.take_in(&mut self.queue.lock());
        (self.not_handed_over.load(SeqCst), self.frames.load(Relaxed), self.dirty.load(Relaxed))
    }

    fn take_in(&self, queue: &mut VecDeque<Dropped>) {
        let arrivals = core::iter::from_fn(|| self.inbox.pop());
        for (space, frames) in arrivals.take(ARRIVALS_PER_CALL) {
            let dirty = space.dirty_pages().min(frames);
            self.dirty.fetch_add(dirty, Relaxed);
            queue.push_back(Dropped { space, at: Some(PageNo(0)), busy_frames: Vec::new(), frames, dirty });
        }
    }

    /// Recounts the frames that a tablespace holds.
    fn recount(&self, dropped: &mut Dropped) {
        let frames = dropped.space.resident() as usize;
        let dirty = dropped.dirty.min(frames);
        // Other threads may have read in pages after the drop, which are removed at once.
        self.frames.fetch_add(frames.wrapping_sub(dropped.frames), Relaxed);
        let counted = self.dirty.fetch_sub(dropped.dirty - dirty, Relaxed);
        debug_assert!(counted >= dropped.dirty, "dirty frames that were dropped were not counted");
        (dropped.frames, dropped.dirty) = (frames, dirty);
    }
}

impl BufferPool {
    /// Moves some frames of dropped tablespaces to the free list. Returns how many; zero when there are none.
    pub(super) fn reclaim_some(&self) -> usize {
        let reclaimer = &self.reclaimer;
        if reclaimer.pending() == 0 {
            return 0;
        }
        let mut queue = reclaimer.queue.lock();
        reclaimer.take_in(&mut queue);
        // Every round advances in a table, finishes one, or finds one with only latched frames left.
        let (mut busy, mut rounds) = (0, 0);
        while busy < queue.len()
            && rounds < ROUNDS_PER_CALL
            && let Some(mut dropped) = queue.pop_front()
        {
            rounds += 1;
            // The tablespace was marked before: a thread that enters a page now removes it itself.
            let freed = if dropped.space.resident() == 0 {
                (dropped.at, dropped.busy_frames) = (None, Vec::new());
                0
            } else {
                self.drain(&mut dropped)
            };
            reclaimer.recount(&mut dropped);
            if dropped.at.is_some() {
                queue.push_front(dropped);
            } else if dropped.busy_frames.is_empty() {
                let counted = reclaimer.frames.fetch_sub(dropped.frames, Relaxed);
                debug_assert!(counted >= dropped.frames, "frames that were dropped were not counted");
                let counted = reclaimer.dirty.fetch_sub(dropped.dirty, Relaxed);
                debug_assert!(counted >= dropped.dirty, "dirty frames that were dropped were not counted");
                let pending = reclaimer.pending.fetch_sub(1, Relaxed);
                assert!(pending > 0, "a dropped tablespace that has lost its frames was not pending");
                reclaimer.without_frames.push(dropped.space);
            } else {
                busy += 1;
                queue.push_back(dropped);
            }
            if freed > 0 {
                self.counters.reclaimed.fetch_add(freed as u64, Relaxed);
                work::add(Work::Reclaimed, freed as u64);
                return freed;
            }
        }
        0
    }

    fn drain(&self, dropped: &mut Dropped) -> usize {
        let guard = &crossbeam_epoch::pin();
        let id = dropped.space.id();
        let mut freed = 0;
        let earlier = core::mem::take(&mut dropped.busy_frames);
        let busy_frames = &mut dropped.busy_frames;
        let mut take = |page, frame| match self.take_dropped(frame, PageId { space: id, page }) {
            Taken::Freed => {
                dropped.space.page_removed();
                freed += 1;
            }
            Taken::Gone => {}
            Taken::Busy => busy_frames.push((page, frame)),
        };
        for (page, frame) in earlier {
            take(page, frame);
        }
        if let Some(from) = dropped.at {
            let mut left = FRAMES_PER_CALL;
            dropped.at = dropped.space.pages.drain(from, PLACES_PER_CALL, guard, |page, frame| {
                take(page, frame);
                left -= 1;
                left > 0
            });
        }
        freed
    }

    fn take_dropped(&self, frame: FrameNo, id: PageId) -> Taken {
        let descriptor = self.arena.frame(frame);
        if descriptor.tag() != id {
            return Taken::Gone;
        }
        if !descriptor.latch.try_exclusive() {
            return Taken::Busy;
        }
        if descriptor.tag() != id {
            descriptor.latch.release_unchanged();
            return Taken::Gone;
        }
        self.free_latched(frame);
        Taken::Freed
    }

    /// Runs one background step: frees frames, and some of the memory of tablespaces without frames and of emptied
    /// chunks. Tablespaces with a file are passed to `take_file`. Returns whether there may be more to do.
    pub(crate) fn reclaim_step(&self, take_file: &mut dyn FnMut(Arc<Space>)) -> bool {
        let reclaimed = self.reclaim_some() > 0;
        let popped = core::iter::from_fn(|| self.reclaimer.without_frames.pop());
        let spaces: Vec<Arc<Space>> = popped.take(SPACES_PER_STEP).collect();
        // In each step, so that freeing does not wait for arrivals to end.
        let freed = self.reclaimer.memory_to_free.lock().free_some();
        // Chunks that readers could still be in are queued when the epoch advances.
        crossbeam_epoch::pin().flush();
        let freed = self.reclaimer.empty_chunks.free_some(CHUNKS_PER_STEP) > 0 || freed;
        if spaces.is_empty() {
            return reclaimed || freed;
        }
        // Threads that attach a tablespace wait for this lock, so it is taken once for many.
        self.directory.remove(&spaces);
        for space in spaces {
            // The set may be large, and no thread looks for these pages any more. The tablespace itself stays in memory
            // as long as it has handles.
            let dirty = core::mem::take(&mut *space.dirty.lock());
            if self.file_of_dropped(&space) != FileState::None {
                take_file(space.clone());
            }
            let not_handed_over = self.reclaimer.not_handed_over.fetch_sub(1, SeqCst);
            assert!(not_handed_over > 0, "tablespace {} is handed over twice", space.id());
            let mut memory_to_free = self.reclaimer.memory_to_free.lock();
            if !dirty.is_empty() {
                memory_to_free.dirty.push_back(dirty);
            }
            memory_to_free.spaces.push_back(space);
        }
        true
    }
}

enum Taken {
    Freed,
    /// The frame holds another page by now.
    Gone,
    /// Another thread has latched it.
    Busy,
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::{thread, time::Instant};

    use super::{super::test_pool::new_pool, *};
    use crate::{
        buffer::{Access, Durability, Occupancy, frame::DIRTY},
        error::Error,
        ids::{Lsn, SpaceId},
    };

    fn dropped(pool: &BufferPool, id: u64, pages: usize, dirty: usize) -> Arc<Space> {
        let space = pool.attach(SpaceId(id), Durability::Temporary);
        for page in 0..pages {
            let mut latched = pool.latch_for_format(&space, PageNo(page as u32)).unwrap();
            if page < dirty {
                latched.mark_dirty(&space, Lsn(1));
            }
        }
        pool.detach(&space, None);
        space
    }

    #[test]
    fn a_reclaim_call_frees_a_bounded_number_of_frames() {
        let (_, pool) = new_pool(512);
        let pages = 2 * FRAMES_PER_CALL + 10;
        let space = dropped(&pool, 100, pages, 0);
        let freed: Vec<usize> =
            core::iter::from_fn(|| Some(pool.reclaim_some()).filter(|freed| *freed > 0)).collect();
        assert_eq!(freed, [FRAMES_PER_CALL, FRAMES_PER_CALL, 10]);
        assert_eq!((space.resident(), pool.counters.reclaimed.load(Relaxed)), (0, pages as u64));
        assert_eq!(pool.reclaimer.pending(), 0);
    }

    #[test]
    fn a_dropped_page_is_not_written() {
        let (_, pool) = new_pool(64);
        let space = dropped(&pool, 100, 5, 5);
        let pages = (0..5).map(|page| (space.clone(), PageNo(page)));
        assert_eq!(pool.flush(pages).unwrap(), 0);
        while pool.reclaim_step(&mut |_| panic!("it has no file")) {}
        assert_eq!(pool.counters.writes.load(Relaxed), 0);
        assert!((0..5).all(|no| !pool.arena.frame(FrameNo(no)).is(DIRTY)), "a free frame is dirty");
    }

    #[test]
    fn dropped_frames_are_counted_until_they_are_back() {
        let (_, pool) = new_pool(512);
        let spaces =
            [(100, 30, 4), (101, 20, 5), (102, 0, 0)].map(|(id, n, dirty)| dropped(&pool, id, n, dirty));
        let counts = || {
            let Occupancy { free, dirty, dropped, dropped_pending, .. } = pool.occupancy();
            (free, dirty, dropped, dropped_pending)
        };
        assert_eq!((counts(), pool.reclaimer.pending_frames()), ((462, 0, 50, 3), (3, 50, 9)));
        while pool.reclaim_step(&mut |_| panic!("none of them has a file")) {}
        assert_eq!((counts(), pool.counters.dirty.load(Relaxed)), ((512, 0, 0, 0), 0));
        assert!(spaces.iter().all(|space| space.resident() == 0));
    }

    #[test]
    fn a_call_takes_in_a_bounded_number_of_tablespaces() {
        let (_, pool) = new_pool(1024);
        let group = 2 * ARRIVALS_PER_CALL + 5;
        let spaces: Vec<_> = (0..group).map(|n| dropped(&pool, 100 + n as u64, 3, 1)).collect();
        assert_eq!(pool.reclaim_some(), 3);
        assert_eq!(pool.reclaimer.inbox.len(), group - ARRIVALS_PER_CALL);
        // All frames are counted although most tablespaces are still in the inbox.
        assert_eq!(pool.occupancy().dropped, 3 * (group - 1));
        while pool.reclaim_step(&mut |_| panic!("none of them has a file")) {}
        assert_eq!((pool.reclaimer.pending_frames(), pool.free_frames()), ((0, 0, 0), 1024));
        assert!(spaces.iter().all(|space| space.resident() == 0));
    }

    #[test]
    fn a_dropped_tablespace_is_freed_in_steps_once_unreferenced() {
        let (_, pool) = new_pool(64);
        let space = pool.attach(SpaceId(100), Durability::Logged);
        // Each page is in a leaf of the page table of its own.
        let pages = CHUNKS_PER_STEP as u32 + 50;
        for page in 1..=pages {
            let guard = &crossbeam_epoch::pin();
            space.pages.insert(PageNo(512 * page), FrameNo(0), &Arc::default(), guard).unwrap();
            space.dirty.lock().insert(PageNo(page), Lsn(u64::from(page)));
        }
        for page in pages..pages + 2 * DIRTY_PER_STEP as u32 {
            space.dirty.lock().insert(PageNo(page), Lsn(u64::from(page)));
        }
        space.pages.drain(PageNo(0), usize::MAX, &crossbeam_epoch::pin(), |_, _| true);
        drop(pool.latch_for_format(&space, PageNo(1)).unwrap());
        pool.detach(&space, None);
        let steps = || core::iter::from_fn(|| pool.reclaim_step(&mut |_| {}).then_some(())).count();
        // One step for the frame, one for the directory, three for the dirty set. The page table stays as long as there
        // is a handle.
        assert_eq!(steps(), 2 + 3);
        assert_eq!(pool.reclaimer.memory_to_free.lock().spaces.len(), 1);
        drop(space);
        assert_eq!(steps(), 2);
        assert_eq!(pool.reclaimer.memory_to_free.lock().spaces.len(), 0);
    }

    #[test]
    fn chunks_that_evictions_have_emptied_are_freed_in_the_background() {
        let (_, pool) = new_pool(64);
        let space = pool.attach(SpaceId(100), Durability::Temporary);
        // Each page is in a chunk of its own.
        for page in (1..=40).map(|n| PageNo(512 * n)) {
            drop(pool.latch_for_format(&space, page).unwrap());
            assert!(pool.evict(space.pages.get(page).unwrap()));
        }
        let chunks = &pool.reclaimer.empty_chunks;
        // Each chunk that waits for readers holds a reference to its queue.
        let began = Instant::now();
        while Arc::strong_count(chunks) > 1 || chunks.len() > 0 {
            assert!(began.elapsed() < Duration::from_mins(10), "{} chunks wait", chunks.len());
            pool.reclaim_step(&mut |_| panic!("it has no file"));
            thread::yield_now();
        }
        assert_eq!(pool.free_frames() + space.resident() as usize, 64 - 40);
    }

    #[test]
    fn a_latched_frame_is_freed_when_its_latch_is_released() {
        let (_, pool) = new_pool(64);
        let space = pool.attach(SpaceId(100), Durability::Temporary);
        (0..20).for_each(|page| drop(pool.latch_for_format(&space, PageNo(page)).unwrap()));
        let latched = pool.share(&space, PageNo(7), Access::Point).unwrap();
        pool.detach(&space, None);
        let drain = || {
            while pool.reclaim_step(&mut |_| panic!("it has no file")) {}
            (space.resident(), pool.reclaimer.pending())
        };
        assert_eq!(drain(), (1, 1));
        drop(latched);
        assert_eq!(drain(), (0, 0));
    }

    #[test]
    fn a_page_that_arrives_after_a_drop_is_removed_at_once() {
        let (_, pool) = new_pool(64);
        let known = dropped(&pool, 100, 5, 0);
        let unknown = Arc::new(Space::new(SpaceId(101), Durability::Temporary));
        pool.detach(&unknown, None);
        for (space, pages) in [(&known, 5), (&unknown, 0)] {
            let come = pool.install(space, PageNo(9), Access::Point);
            assert!(matches!(come, Err(Error::TableDropped(_))));
            assert_eq!(space.resident(), pages);
        }
        assert!(pool.space(unknown.id()).is_none(), "it would stay there for ever");
    }
}
