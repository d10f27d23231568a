//! Checks of the pool's invariants, for simulations.
//!
//! **Purpose.** A simulation has the pool and the log check themselves at every yield point, from the moment at which
//! the pool exists: recovery included. These are checks that an assertion at one place cannot make, because they
//! concern several structures, or every moment and not only a change. Only tests, and builds with the feature
//! `testing`, have this module.
//!
//! **Invariants.** A check changes nothing and waits for nothing: a part that is locked is skipped, because the holder
//! may be in the middle of a change, and so is a frame with a held latch, which may be changing from one page to
//! another (test: `a_check_changes_nothing_and_waits_for_nothing`).

use std::collections::{BTreeMap, BTreeSet};

use super::{
    BufferPool,
    arena::{Arena, FrameNo},
    dirty::DirtySet,
    frame::{DIRTY, WRITING},
    free::FreeList,
    space::Space,
};
use crate::{
    ids::{PageId, PageNo, SpaceId},
    sync::{Arc, atomic::Ordering::Relaxed},
};

impl BufferPool {
    /// Has the simulation, if there is one, check the log and the pool at every yield point.
    pub(crate) fn check_at_yield_points(self: &Arc<Self>) {
        let pool = Arc::downgrade(self);
        let check = move || {
            let Some(pool) = pool.upgrade() else { return false };
            // A stopped database may have stopped in the middle of a change.
            if pool.context.health.check().is_ok() {
                pool.context.log.check_invariants();
                pool.check_invariants();
            }
            true
        };
        self.context.env.at_yield_points(Box::new(check));
    }

    /// Checks the free list, the mapping of pages to frames in both directions, and the dirty sets.
    ///
    /// # Panics
    /// An invariant is violated.
    fn check_invariants(&self) {
        let free = self.free.frames(&self.arena);
        for frame in &free {
            let (frame, tag) = (self.arena.frame(*frame), self.arena.frame(*frame).tag());
            assert!(tag.space == SpaceId::NONE, "a frame in the free list holds {tag}");
            assert!(!frame.is(DIRTY | WRITING), "a frame in the free list is dirty or being written");
        }
        let Some(spaces) = self.directory.try_all() else { return };
        let spaces: BTreeMap<SpaceId, Arc<Space>> =
            spaces.into_iter().map(|space| (space.id(), space)).collect();
        for no in (0..self.used.load(Relaxed)).map(FrameNo) {
            self.check_frame(no, &spaces);
        }
        for space in spaces.values() {
            self.check_page_table(space);
            self.check_dirty_set(space);
        }
    }

    /// Checks that each entry of a page table names a frame that holds the page, and that all entries are counted.
    fn check_page_table(&self, space: &Space) {
        let (used, mut entries) = (self.used.load(Relaxed), 0);
        space.pages.check_invariants(space.is_dropped(), |page, no| {
            entries += 1;
            let id = PageId { space: space.id(), page };
            assert!(no.0 < used, "the page table names {no:?} for {id}, which was never used");
            let frame = self.arena.frame(no);
            let (Some(version), tag) = (frame.latch.version(), frame.tag()) else { return };
            let is_changing = !frame.latch.is(version);
            assert!(tag == id || is_changing, "the page table names {no:?} for {id}, and it holds {tag}");
        });
        let resident = space.resident();
        assert!(
            entries == resident || space.is_dropped(),
            "{entries} pages of tablespace {} are resident, and {resident} are counted",
            space.id()
        );
    }

    /// Checks that the page of a frame is one of a known tablespace. If that is live, its page table must name the
    /// frame, and its dirty set must have the page if it is dirty.
    fn check_frame(&self, no: FrameNo, spaces: &BTreeMap<SpaceId, Arc<Space>>) {
        let frame = self.arena.frame(no);
        let (Some(version), id) = (frame.latch.version(), frame.tag()) else { return };
        if id.space == SpaceId::NONE || !frame.latch.is(version) {
            return;
        }
        let Some(space) = spaces.get(&id.space) else {
            panic!("{no:?} holds {id}, and the directory does not have its tablespace");
        };
        if space.is_dropped() {
            return;
        }
        let named = space.pages.get(id.page);
        assert!(named == Some(no), "{no:?} holds {id}, and the page table names {named:?}");
        let Some(dirty) = space.dirty.try_lock() else { return };
        // A frame is marked clean before its page leaves the set, and dirty under an exclusive latch.
        let (is_dirty, since) = (frame.is(DIRTY), frame.oldest());
        let waits = dirty.waiting.contains(&(since, id.page));
        if is_dirty && frame.latch.is(version) {
            assert!(waits, "{id} is dirty since {since}, and does not wait to be written");
        }
    }

    /// Checks that the pages that wait to be written are dirty in their frames since the recorded LSN.
    fn check_dirty_set(&self, space: &Arc<Space>) {
        let Some(dirty) = space.dirty.try_lock() else { return };
        dirty.check_invariants();
        if space.is_dropped() {
            return;
        }
        for &(since, page) in &dirty.waiting {
            let Some(no) = space.pages.get(page) else {
                panic!("{page:?} of tablespace {} is dirty and in no frame", space.id());
            };
            let frame = self.arena.frame(no);
            if frame.latch.version().is_some() && !frame.is(WRITING) {
                assert!(
                    frame.is(DIRTY),
                    "{page:?} of tablespace {} waits to be written and is clean",
                    space.id()
                );
                assert!(
                    frame.oldest() == since,
                    "{page:?} of tablespace {} is dirty since {}, and waits since {since}",
                    space.id(),
                    frame.oldest()
                );
            }
        }
    }
}

impl DirtySet {
    /// Checks that each page is at most once among those that wait, and among those that are being written.
    fn check_invariants(&self) {
        for set in [&self.waiting, &self.writing] {
            let pages: BTreeSet<PageNo> = set.iter().map(|(_, page)| *page).collect();
            assert!(pages.len() == set.len(), "a page is twice in the dirty set: {set:?}");
        }
    }
}

impl FreeList {
    /// Returns all frames in the list, each once.
    fn frames(&self, arena: &Arena) -> Vec<FrameNo> {
        let mut frames = Vec::new();
        let mut next = self.first();
        while let Some(frame) = next {
            assert!(frames.len() < arena.count(), "the free list is longer than the arena: it has a cycle");
            frames.push(frame);
            next = arena.frame(frame).next_free.load(Relaxed).checked_sub(1).map(FrameNo);
        }
        assert!(
            frames.len() == self.len(),
            "the free list has {} frames and counts {}",
            frames.len(),
            self.len()
        );
        frames
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Durability, Space, test_pool::new_pool},
        *,
    };
    use crate::ids::Lsn;

    #[test]
    fn a_new_pool_keeps_its_invariants() {
        new_pool(64).1.check_invariants();
    }

    #[test]
    #[should_panic(expected = "a page is twice in the dirty set")]
    fn a_page_that_is_dirty_since_two_lsns_is_found() {
        let mut set = DirtySet::default();
        set.insert(PageNo(1), Lsn(10));
        set.insert(PageNo(1), Lsn(20));
        set.check_invariants();
    }

    #[test]
    #[should_panic(expected = "is dirty and in no frame")]
    fn a_dirty_page_without_a_frame_is_found() {
        let (_disk, pool) = new_pool(64);
        let space = Arc::new(Space::new(SpaceId(30), Durability::Logged));
        pool.directory.slot_of(&space).unwrap();
        space.dirty.lock().insert(PageNo(1), Lsn(10));
        pool.check_invariants();
    }

    /// Returns a pool with a tablespace, and a frame that is latched and holds a page of it.
    fn with_a_page() -> (Arc<BufferPool>, Arc<Space>, FrameNo) {
        let (_disk, pool) = new_pool(64);
        let space = Arc::new(Space::new(SpaceId(30), Durability::Logged));
        let page = pool.latch_for_format(&space, PageNo(100)).unwrap();
        let no = space.pages.get(PageNo(100)).unwrap();
        pool.check_invariants();
        drop(page);
        pool.check_invariants();
        (pool, space, no)
    }

    #[test]
    fn a_check_changes_nothing_and_waits_for_nothing() {
        let (pool, space, no) = with_a_page();
        let state = || format!("{pool:?} {:?}", pool.arena.frame(no));
        let before = state();
        pool.check_invariants();
        assert_eq!(state(), before);
        // A wait would be one of this thread for itself.
        let page = pool.exclusive(&space, PageNo(100)).unwrap();
        let dirty = space.dirty.lock();
        pool.check_invariants();
        pool.directory.locked(|| pool.check_invariants());
        drop((dirty, page));
    }

    #[test]
    #[should_panic(expected = "for page 101 of tablespace 30, and it holds page 100 of tablespace 30")]
    fn an_entry_for_a_frame_with_another_page_is_found() {
        let (pool, space, no) = with_a_page();
        let guard = &crossbeam_epoch::pin();
        space.pages.insert(PageNo(101), no, &pool.reclaimer.empty_chunks, guard).unwrap();
        pool.check_invariants();
    }

    #[test]
    #[should_panic(expected = "1 pages of tablespace 30 are resident, and 2 are counted")]
    fn a_wrong_count_of_resident_pages_is_found() {
        let (pool, space, _) = with_a_page();
        space.page_entered();
        pool.check_invariants();
    }

    #[test]
    #[should_panic(expected = "the free list has 2 frames and counts 1")]
    fn a_wrong_count_of_free_frames_is_found() {
        let (_disk, pool) = new_pool(64);
        for no in 0..2 {
            pool.free.push(&pool.arena, FrameNo(no));
        }
        pool.free.miscount();
        pool.check_invariants();
    }
}
