//! Page access.
//!
//! **Purpose.** Finds a page by the page hash, pins it, makes it young if that is due, and reads it in from its file
//! if it is not in the pool.
//!
//! **Invariants.** A page is in the page hash if and only if it is in the LRU list (test:
//! `a_tree_larger_than_the_pool_matches_the_model`), because it enters both in one step. It is latched exclusively
//! until it is read in, so that threads that look it up meanwhile wait for the latch (checked by
//! `pool/access.rs::load`). A dead page is not returned: it is freed, and the page is read in again (test:
//! `a_truncated_tablespace_has_none_of_its_old_pages`).

use core::{cell::Cell, sync::atomic::Ordering::Relaxed};
use std::thread;

use windfall::{
    disk::FileName,
    error::{CorruptError, Result},
    ids::{PageId, PageNo},
};
use windfall_btree::{
    page::{self, Access, Node, Page},
    tree::store,
};
use windfall_engine::lab::{Latch, Version};

use super::{
    ClassicPool, Handle,
    descriptor::{IO, SYNTHETIC, UNVERIFIED},
    era::Part,
    space::PendingIo,
};
use crate::watch::{Purpose, assert_not_held};

thread_local! {
    /// The last frame that this thread accessed.
    static LAST: Cell<u32> = const { Cell::new(0) };
}

/// A pinned frame: it keeps its page.
#[derive(Debug)]
pub(super) struct Pin<'a> {
    pub pool: &'a ClassicPool,
    pub frame: u32,
}

impl Clone for Pin<'_> {
    fn clone(&self) -> Self {
        self.pool.frames[self.frame as usize].pin();
        Self { ..*self }
    }
}

impl Drop for Pin<'_> {
    #[inline]
    fn drop(&mut self) {
        self.pool.frames[self.frame as usize].unpin();
    }
}

impl<'a> Pin<'a> {
    pub(super) fn latch(&self) -> &'a Latch {
        self.pool.latch(self.frame)
    }

    pub(super) fn page(&self) -> Page<'a> {
        self.pool.page(self.frame)
    }
}

/// An optimistic read of a page, without a latch.
#[derive(Clone, Debug)]
pub struct Reading<'a> {
    pub(super) pin: Pin<'a>,
    pub(super) version: Version,
}

impl store::Reading for Reading<'_> {
    #[inline]
    fn page(&self) -> Page<'_> {
        self.pin.page()
    }

    #[inline]
    fn is_valid(&self) -> bool {
        self.pin.latch().is(self.version)
    }

    fn is_unverified(&self) -> bool {
        self.pin.pool.frames[self.pin.frame as usize].is(UNVERIFIED)
    }

    fn mark_verified(&self) {
        self.pin.pool.frames[self.pin.frame as usize].clear(UNVERIFIED);
    }
}

/// A page under a shared latch.
#[derive(Debug)]
pub struct Shared<'a> {
    pin: Pin<'a>,
}

impl store::Shared for Shared<'_> {
    fn page(&self) -> Page<'_> {
        self.pin.page()
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        self.pin.latch().unshare();
    }
}

impl ClassicPool {
    #[inline]
    pub(super) fn latch(&self, frame: u32) -> &Latch {
        self.memory.latch(frame)
    }

    /// Waits for a page latch and takes it exclusively.
    pub(super) fn await_exclusive(&self, frame: u32) {
        assert_not_held();
        self.latch(frame).exclusive();
    }

    pub(super) fn look_at<'a>(
        &'a self,
        handle: &Handle,
        page: PageNo,
        access: Access,
    ) -> Result<Reading<'a>> {
        let id = handle.in_file(page);
        loop {
            let pin = self.fix(handle, page, access)?;
            let Some(version) = pin.latch().version_while(|| true) else { continue };
            // The read of the page may have failed.
            if self.frames[pin.frame as usize].tag() == id {
                LAST.set(pin.frame);
                return Ok(Reading { pin, version });
            }
        }
    }

    pub(super) fn latch_shared(&self, handle: &Handle, page: PageNo, access: Access) -> Result<Shared<'_>> {
        loop {
            let pin = self.fix(handle, page, access)?;
            if !pin.latch().share_while(|| true) {
                continue;
            }
            let shared = Shared { pin };
            if self.frames[shared.pin.frame as usize].tag() == handle.in_file(page) {
                return Ok(shared);
            }
        }
    }

    /// Latches a page exclusively. The caller must release the latch.
    pub(super) fn latch_exclusive(&self, handle: &Handle, page: PageNo) -> Result<Pin<'_>> {
        loop {
            let pin = self.fix(handle, page, Access::Point)?;
            self.await_exclusive(pin.frame);
            if self.frames[pin.frame as usize].tag() == handle.in_file(page) {
                return Ok(pin);
            }
            pin.latch().release_unchanged();
        }
    }

    /// Latches a page exclusively without reading it in: the caller formats it.
    pub(super) fn latch_fresh(&self, handle: &Handle, page: PageNo) -> Result<Pin<'_>> {
        loop {
            if let Some(pin) = self.find(handle, page)? {
                self.await_exclusive(pin.frame);
                if self.frames[pin.frame as usize].tag() == handle.in_file(page) {
                    return Ok(pin);
                }
                pin.latch().release_unchanged();
            } else if let Some(pin) = self.enter(handle, page, Access::Point, 0)? {
                pin.page().fill_zero(0, self.options.page_size);
                return Ok(pin);
            }
        }
    }

    /// Pins a page, and reads it in if necessary.
    #[inline]
    fn fix(&self, handle: &Handle, page: PageNo, access: Access) -> Result<Pin<'_>> {
        loop {
            if let Some(pin) = self.find(handle, page)? {
                if access == Access::Point {
                    self.make_young_if_due(handle.in_file(page), pin.frame);
                }
                return Ok(pin);
            }
            self.load(handle, page, access)?;
        }
    }

    /// Pins a page that is in the pool. The caller then waits for its latch.
    #[inline]
    fn find(&self, handle: &Handle, page: PageNo) -> Result<Option<Pin<'_>>> {
        assert_not_held();
        let id = handle.in_file(page);
        loop {
            handle.check_live()?;
            let Some(frame) = self.instance_of(id).pin(&self.frames, id, Purpose::Lookup) else {
                return Ok(None);
            };
            let pin = Pin { pool: self, frame };
            if self.frames[frame as usize].version() == handle.version() {
                debug_assert!(
                    !self.frames[frame as usize].is(SYNTHETIC),
                    "a page without contents is looked up"
                );
                return Ok(Some(pin));
            }
            // A page of an older version of the tablespace: it is dead, and occupies the place of the new page.
            drop(pin);
            if !self.free_dead(frame, id) {
                thread::yield_now();
            }
        }
    }

    /// Moves a page to the front of the LRU list if that is due.
    #[inline]
    fn make_young_if_due(&self, id: PageId, frame: u32) {
        let instance = self.instance_of(id);
        if instance.lru.is_to_be_made_young(&self.frames[frame as usize]) {
            let _held = instance.lock(&[Part::Lru], Purpose::Young);
            // The read of the page may have failed, and the page was removed again.
            if self.frames[frame as usize].tag() == id {
                instance.lru.make_young(&self.frames, frame);
            }
        }
    }

    /// Enters a page that is not in the pool with an empty frame, latched exclusively. Returns `None` if another
    /// thread has entered it first.
    fn enter(&self, handle: &Handle, page: PageNo, access: Access, state: u32) -> Result<Option<Pin<'_>>> {
        self.context.health.check()?;
        let id = handle.in_file(page);
        let instance = self.instance_of(id);
        let frame = self.allocate_frame(instance)?;
        let descriptor = &self.frames[frame as usize];
        debug_assert_eq!(
            descriptor.hashed.load(Relaxed),
            0,
            "the hash index refers to a frame that is used again"
        );
        // No other thread can hold it.
        self.latch(frame).exclusive();
        let held = instance.lock(&[Part::Lru], Purpose::Load);
        let latched = held.latch_page(id);
        if instance.pages.find(&self.frames, id).is_some() {
            drop((latched, held));
            self.latch(frame).release_unchanged();
            self.free_frame(instance, frame);
            return Ok(None);
        }
        descriptor.set_tag(id, handle.version(), state);
        descriptor.pin();
        instance.pages.insert(&self.frames, frame);
        // A page that is created, not read in, enters at the young end: it is in use.
        instance.lru.insert(&self.frames, frame, access == Access::Point && state & IO == 0);
        drop((latched, held));
        let pin = Pin { pool: self, frame };
        // A drop refuses handles before it searches for pages: either it has found this page, or this check sees the
        // drop.
        if let Err(error) = handle.check_live() {
            self.abandon(pin, id);
            return Err(error);
        }
        Ok(Some(pin))
    }

    /// Reads a page in, unless another thread is doing so.
    #[cold]
    fn load(&self, handle: &Handle, page: PageNo, access: Access) -> Result<()> {
        let pending_io = PendingIo::new(handle.space.clone());
        let Some(pin) = self.enter(handle, page, access, IO | UNVERIFIED)? else { return Ok(()) };
        let id = handle.in_file(page);
        let file = FileName::Data(id.space);
        let read = self.context.disk.read_page(file, self.offset(id.page), pin.page().words());
        debug_assert!(!pin.latch().try_share(), "a page was not latched while it was read in");
        let sound = read.map_err(Into::into).and_then(|()| self.verify(handle.in_tree(page), id, pin.page()));
        if let Err(error) = sound {
            self.abandon(pin, id);
            return Err(error);
        }
        self.counters.reads.fetch_add(1, Relaxed);
        self.frames[pin.frame as usize].clear(IO);
        pin.latch().release_changed();
        drop(pending_io);
        Ok(())
    }

    fn verify(&self, id: PageId, in_file: PageId, page: Page<'_>) -> Result<()> {
        let sound = page.verify(id).and_then(|()| page::check_header(page));
        sound.map_err(|what| {
            let file = self.context.disk.path(FileName::Data(in_file.space));
            CorruptError::Page { file, page: id, lsn: page.lsn(), what: what.into() }.into()
        })
    }

    /// Removes a page that is latched exclusively and has no contents.
    fn abandon(&self, pin: Pin<'_>, id: PageId) {
        let instance = self.instance_of(id);
        let descriptor = &self.frames[pin.frame as usize];
        let held = instance.lock(&[Part::Lru], Purpose::Load);
        let latched = held.latch_page(id);
        // The drop may have removed it already.
        if descriptor.tag() == id {
            instance.pages.remove(&self.frames, pin.frame);
            instance.lru.remove(&self.frames, pin.frame);
            descriptor.clear_tag();
        }
        drop((latched, held));
        pin.latch().release_changed();
        let frame = pin.frame;
        drop(pin);
        // Threads that wait for the latch hold pins: the frame is freed when the last pin is released.
        self.free_when_unpinned(instance, frame);
    }

    /// Counts that the hash index could have found this leaf, and adds the leaf to it if that is due. Called after a
    /// descent that followed a failed look-up in the index; the caller has pinned the leaf.
    pub(super) fn hash_if_due(&self, handle: &Handle, leaf: PageNo) {
        let frame = LAST.get();
        let descriptor = &self.frames[frame as usize];
        if descriptor.tag() != handle.in_file(leaf) {
            return;
        }
        let page = self.page(frame);
        if self.hash.count_missed_help(descriptor, Node::new(page).count()) && self.latch(frame).try_share() {
            self.hash.build(&self.frames, frame, page);
            self.latch(frame).unshare();
        }
    }
}
