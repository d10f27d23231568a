//! Reading many pages at once.
//!
//! **Purpose.** Recovery and purge can determine in advance which pages they need. Requesting them in one batch keeps
//! the disk busy.
//!
//! **Invariants.** As for a single read, a page is latched exclusively from its entry into the page table until its
//! content is verified (checked by `buffer/read_ahead.rs::read_ahead`). A page with a failed read is removed again, and
//! a thread that needs it reads it itself and gets the error (test:
//! `a_page_that_cannot_be_read_and_has_no_copy_is_named`).

use super::{BufferPool, ExclusivePage, FileState, Space, doublewrite::words, frame::UNVERIFIED};
use crate::{
    disk::{Action, FileName, IoBuffer, Queue, Request},
    error::{DiskError, Result},
    ids::{PageId, PageNo},
    page::{Access, Page},
    sync::{Arc, atomic::Ordering::Relaxed},
};

/// The maximum number of pages in one batch, so that a small pool is not flooded.
pub const READ_AHEAD_PAGES: usize = 64;

impl BufferPool {
    /// Reads those of the pages that are not in the pool: at most [`READ_AHEAD_PAGES`], at most an eighth of the pool,
    /// and only as many as get frames without a wait.
    ///
    /// # Errors
    /// When the database is poisoned, or no frame is available. A page that cannot be read is not an error here.
    pub(crate) fn read_ahead(&self, queue: &mut dyn Queue, wanted: &[(Arc<Space>, PageNo)]) -> Result<()> {
        let most = READ_AHEAD_PAGES.min(self.limit.load(Relaxed) as usize / 8);
        let mut under_way: Vec<Option<(&Arc<Space>, ExclusivePage<'_>)>> = Vec::new();
        let mut requests = Vec::new();
        for (space, page) in wanted.iter().take(most) {
            let id = PageId { space: space.id(), page: *page };
            let resident = space.pages.get(*page).is_some();
            if resident || space.is_dropped() || space.file() == FileState::None {
                continue;
            }
            let (is_first, mut is_out) = (under_way.is_empty(), false);
            let frame = || {
                if is_first {
                    return self.allocate().map(Some);
                }
                // A thread that needs one of the latched pages waits for this thread, so this thread must not wait.
                let frame = self.allocate_at_once();
                is_out = frame.is_none();
                Ok(frame)
            };
            let mut latched = match self.enter(space, *page, Access::Scan, frame) {
                Ok(Some(latched)) => latched,
                Ok(None) if is_out => break,
                Ok(None) => continue,
                // The pages requested so far were not read: they must leave the pool.
                Err(error) => {
                    for (space, latched) in under_way.into_iter().flatten() {
                        self.abandon(space, latched.id().page, latched.hand_over());
                    }
                    return Err(error);
                }
            };
            latched.changed();
            requests.push(Request {
                token: under_way.len() as u64,
                file: FileName::Data(id.space),
                offset: self.offset(*page),
                action: Action::Read,
                buffer: IoBuffer::new(self.page_size),
            });
            under_way.push(Some((space, latched)));
        }
        assert!(queue.pending() == 0, "the queue has requests of an earlier batch in progress");
        assert!(requests.len() == under_way.len(), "a page is latched and not requested");
        queue.submit(requests);
        while queue.pending() > 0 {
            for done in queue.complete(true) {
                let Some((space, latched)) = under_way[done.token as usize].take() else { continue };
                let id = latched.id();
                let bytes = words(done.buffer.bytes());
                let content = Page::new(&bytes[..self.page_size / 8]);
                #[cfg(not(feature = "model"))]
                debug_assert!(
                    self.arena.frame(latched.frame).latch.version().is_none(),
                    "{id} can be read before its content is verified"
                );
                if done.result.is_ok() && self.verify(id, content).is_ok() {
                    latched.page().copy_from(content);
                    self.arena.frame(latched.frame).set(UNVERIFIED);
                    self.counters.reads.fetch_add(1, Relaxed);
                    self.counters.reads_ahead.fetch_add(1, Relaxed);
                } else {
                    self.abandon(space, id.page, latched.hand_over());
                }
                if let Err(error @ DiskError::Panicked { .. }) = done.result {
                    self.context.health.poison(&error.to_string());
                }
            }
        }
        debug_assert!(under_way.iter().all(Option::is_none), "a page was requested and never read");
        self.context.health.check()
    }
}
