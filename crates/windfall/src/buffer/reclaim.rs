//! The frames of dropped tablespaces: the first to be used again.
//!
//! **Purpose.** A dropped tablespace's page table is a chain of frames nobody needs. Whoever needs a frame and finds
//! the free list empty takes some from here, before any live page is evicted; a background step takes the rest.
//!
//! **Invariants.** A call looks at a bounded number of entries, so that nobody pays for a whole table. A frame is taken
//! by its latch and its tag: a frame that is latched by someone else waits in `latecomers` and is tried again. A
//! dropped page is never written: its dirty mark goes with its tag. Freeing the dirty set and the table's memory is
//! left to the background.
//!
//! **May touch.** The rest of `buffer`.

use std::collections::VecDeque;

use crossbeam_queue::SegQueue;

use super::{BufferPool, FileState, arena::FrameNo, space::Space};
use crate::{
    ids::{PageId, PageNo},
    sync::{
        Arc, Bug, Mutex, Rank,
        atomic::{
            AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
        planted,
        work::{self, Work},
    },
};

/// How many places of a dropped page table one call looks at.
const PLACES_A_CALL: usize = 512;
/// How many steps without a frame one call takes: among many empty tablespaces it leaves the rest to the background.
const ROUNDS_A_CALL: usize = 1024;
/// How many frames one call takes.
const FRAMES_A_CALL: usize = 64;
/// How many tablespaces without frames one step takes leave of.
const SPACES_A_STEP: usize = 32;

/// Dropped tablespaces whose frames are still to be used again.
#[derive(Debug)]
pub struct Reclaimer {
    inbox: SegQueue<Arc<Space>>,
    queue: Mutex<VecDeque<Dropped>>,
    /// Dropped tablespaces under way, to be asked without a lock.
    pending: AtomicUsize,
    /// Dropped tablespaces that nobody has taken over yet for their files.
    unfinished: AtomicUsize,
    /// Those whose frames are all back; their memory is freed in the background.
    finished: SegQueue<Arc<Space>>,
}

#[derive(Debug)]
struct Dropped {
    space: Arc<Space>,
    /// Where the drain goes on; `None` at its end.
    at: Option<PageNo>,
    latecomers: Vec<(PageNo, FrameNo)>,
}

impl Default for Reclaimer {
    fn default() -> Self {
        Self {
            inbox: SegQueue::new(),
            queue: Mutex::new(Rank::Pool, VecDeque::new()),
            pending: AtomicUsize::new(0),
            unfinished: AtomicUsize::new(0),
            finished: SegQueue::new(),
        }
    }
}

impl Reclaimer {
    /// Takes over a tablespace that was marked dropped. All that a drop does to the pool is this; it does not even wake
    /// the background step, which looks by itself now and then.
    pub fn push(&self, space: Arc<Space>) {
        self.unfinished.fetch_add(1, SeqCst);
        self.pending.fetch_add(1, Relaxed);
        self.inbox.push(space);
    }

    /// How many dropped tablespaces still have frames to give back.
    pub fn pending(&self) -> usize {
        self.pending.load(Relaxed)
    }

    /// How many are not handed over yet, how many frames they still hold, and how many of these were dirty, at most.
    pub fn pending_frames(&self) -> (usize, usize, usize) {
        let mut queue = self.queue.lock();
        self.empty_inbox(&mut queue);
        let frames = |dropped: &Dropped| {
            let resident = dropped.space.resident() as usize;
            (resident, dropped.space.dirty_pages().min(resident))
        };
        let sum = |(all, dirty): (usize, usize), (a, d)| (all + a, dirty + d);
        let (all, dirty) = queue.iter().map(frames).fold((0, 0), sum);
        (self.unfinished.load(SeqCst), all, dirty)
    }

    fn empty_inbox(&self, queue: &mut VecDeque<Dropped>) {
        while let Some(space) = self.inbox.pop() {
            queue.push_back(Dropped { space, at: Some(PageNo(0)), latecomers: Vec::new() });
        }
    }
}

impl BufferPool {
    /// Frees some frames of dropped tablespaces into the free list. Gives how many; zero when there is none to be had.
    pub(super) fn reclaim_some(&self) -> usize {
        let reclaimer = &self.reclaimer;
        if reclaimer.pending() == 0 {
            return 0;
        }
        let mut queue = reclaimer.queue.lock();
        reclaimer.empty_inbox(&mut queue);
        // Every round either moves on in a table, ends one, or finds one whose last frames are all latched.
        let (mut busy, mut rounds) = (0, 0);
        while busy < queue.len()
            && rounds < ROUNDS_A_CALL
            && let Some(mut dropped) = queue.pop_front()
        {
            rounds += 1;
            // The mark came first: a page that comes now is taken out by whoever brings it.
            let freed = if dropped.space.resident() == 0 {
                (dropped.at, dropped.latecomers) = (None, Vec::new());
                0
            } else {
                self.drain(&mut dropped)
            };
            if dropped.at.is_some() {
                queue.push_front(dropped);
            } else if dropped.latecomers.is_empty() {
                reclaimer.pending.fetch_sub(1, Relaxed);
                reclaimer.finished.push(dropped.space);
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
        let earlier = core::mem::take(&mut dropped.latecomers);
        let latecomers = &mut dropped.latecomers;
        let mut take = |page, frame| match self.take_dropped(frame, PageId { space: id, page }) {
            Taken::Freed => {
                dropped.space.page_went();
                freed += 1;
            }
            Taken::Gone => {}
            Taken::Busy if planted(Bug::LatecomerForgotten) => {}
            Taken::Busy => latecomers.push((page, frame)),
        };
        for (page, frame) in earlier {
            take(page, frame);
        }
        if let Some(from) = dropped.at {
            let mut left = FRAMES_A_CALL;
            dropped.at = dropped.space.pages.drain(from, PLACES_A_CALL, guard, |page, frame| {
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
        if descriptor.tag() != id && !planted(Bug::DrainWithoutTag) {
            descriptor.latch.release_unchanged();
            return Taken::Gone;
        }
        self.free_latched(frame);
        Taken::Freed
    }

    /// One background step: gives frames back, and frees the memory of tablespaces that have none left. Those that have
    /// a file go to `finished`. Says whether there may be more to do.
    pub fn reclaim_step(&self, finished: &mut dyn FnMut(Arc<Space>)) -> bool {
        let freed = self.reclaim_some();
        let popped = core::iter::from_fn(|| self.reclaimer.finished.pop());
        let spaces: Vec<Arc<Space>> = popped.take(SPACES_A_STEP).collect();
        if spaces.is_empty() {
            return freed > 0;
        }
        // Whoever makes a tablespace known waits for this: once for many.
        self.directory.remove(&spaces);
        for space in spaces {
            // The set may be large; the space itself lives on while handles do.
            let dirty = core::mem::take(&mut *space.dirty.lock());
            drop(dirty);
            if self.file_of_dropped(&space) != FileState::None {
                finished(space);
            }
            self.reclaimer.unfinished.fetch_sub(1, SeqCst);
        }
        true
    }
}

enum Taken {
    Freed,
    /// The frame holds another page by now.
    Gone,
    /// Someone has it latched.
    Busy,
}

#[cfg(test)]
mod tests {
    use super::{super::test_pool::new_pool, *};
    use crate::{
        buffer::{Access, Durability, Occupancy},
        error::Error,
        ids::{Lsn, SpaceId},
    };

    fn dropped(pool: &BufferPool, id: u64, pages: usize, dirty: usize) -> Arc<Space> {
        let space = pool.attach(SpaceId(id), Durability::Temporary);
        for page in 0..pages {
            let mut latched = pool.fresh(&space, PageNo(page as u32)).unwrap();
            if page < dirty {
                latched.mark_dirty(&space, Lsn(1));
            }
        }
        pool.detach(&space, Lsn::ZERO);
        space
    }

    #[test]
    fn a_call_takes_as_many_frames_as_it_may_and_the_next_goes_on() {
        let (_, pool) = new_pool(512);
        let pages = 2 * FRAMES_A_CALL + 10;
        let space = dropped(&pool, 100, pages, 0);
        let freed: Vec<usize> =
            core::iter::from_fn(|| Some(pool.reclaim_some()).filter(|freed| *freed > 0)).collect();
        assert_eq!(freed, [FRAMES_A_CALL, FRAMES_A_CALL, 10]);
        assert_eq!((space.resident(), pool.counters.reclaimed.load(Relaxed)), (0, pages as u64));
        assert_eq!(pool.reclaimer.pending(), 0);
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
    fn a_frame_that_someone_has_latched_comes_back_when_he_lets_go() {
        let (_, pool) = new_pool(64);
        let space = pool.attach(SpaceId(100), Durability::Temporary);
        (0..20).for_each(|page| drop(pool.fresh(&space, PageNo(page)).unwrap()));
        let latched = pool.share(&space, PageNo(7), Access::Point).unwrap();
        pool.detach(&space, Lsn::ZERO);
        let drain = || {
            while pool.reclaim_step(&mut |_| panic!("it has no file")) {}
            (space.resident(), pool.reclaimer.pending())
        };
        assert_eq!(drain(), (1, 1));
        drop(latched);
        assert_eq!(drain(), (0, 0));
    }

    #[test]
    fn what_comes_behind_a_drop_goes_at_once() {
        let (_, pool) = new_pool(64);
        let known = dropped(&pool, 100, 5, 0);
        let unknown = Arc::new(Space::new(SpaceId(101), Durability::Temporary));
        pool.detach(&unknown, Lsn::ZERO);
        for (space, pages) in [(&known, 5), (&unknown, 0)] {
            let come = pool.install(space, PageNo(9), Access::Point);
            assert!(matches!(come, Err(Error::TableDropped(_))));
            assert_eq!(space.resident(), pages);
        }
        assert!(pool.space(unknown.id()).is_none(), "nobody would ever take it out again");
    }
}
