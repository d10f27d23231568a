//! Growing and shrinking the pool while it is in use.
//!
//! **Purpose.** Descriptors and address space are reserved for the largest pool, so the size is a number: the frames
//! below it are in use. Frames that were never used are not touched: the pool takes them one after the other.
//!
//! **Invariants.** A frame beyond the size is retired when it comes free (test:
//! `a_shrinking_pool_gets_every_frame_back`). Its version has grown before its page bytes return to the operating
//! system, so no reader validates the zeroes that it then reads (test:
//! `no_reader_validates_a_page_that_was_returned_to_the_system`). A retired frame is in no list (test:
//! `a_growing_pool_gets_each_retired_frame_once`). A thread that retires a frame checks the size again afterwards; a
//! thread that grows the pool sets the size before it looks for retired frames (test:
//! `a_growing_pool_gets_each_retired_frame_once`). In the same way, a thread that takes a frame that was never used
//! checks the size afterwards, and a thread that shrinks the pool sets the size before it reads how many frames are in
//! use (test: `a_shrinking_pool_gets_every_frame_back`).

use super::{
    BufferPool, MIN_FRAMES,
    arena::FrameNo,
    frame::{DIRTY, RETIRED, WRITING},
};
use crate::{
    error::{Result, UsageError},
    ids::SpaceId,
    sync::atomic::Ordering::{Acquire, SeqCst},
};

/// The frames beyond the size that a step examines.
const FRAMES_PER_STEP: u32 = 4096;

/// The position of a round over the frames beyond the size.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    /// The size of the pool at the start of the round.
    limit: u32,
    at: u32,
    /// Whether frames before `at` stayed in use.
    left: bool,
}

impl BufferPool {
    /// Sets the number of frames. Growing takes effect at once; the page cleaner shrinks the pool in the background.
    ///
    /// # Errors
    /// When the number is out of range.
    pub fn resize(&self, frames: usize) -> Result<()> {
        let most = self.arena.count();
        if !(MIN_FRAMES..=most).contains(&frames) {
            let what = format!("{frames} pages: this pool can have {MIN_FRAMES} to {most}");
            return Err(UsageError::Option { name: "buffer_pool_size", what: what.into() }.into());
        }
        let frames = frames as u32;
        let old = self.limit.swap(frames, SeqCst);
        for frame in (old..frames.min(self.used.load(Acquire))).map(FrameNo) {
            self.bring_back(frame);
        }
        if self.limit.load(SeqCst) < self.used.load(SeqCst) {
            self.shrinking.store(true, SeqCst);
        }
        // Frames that were never used are available now, too.
        self.notify_freed();
        self.cleaner_wake.notify();
        Ok(())
    }

    /// Returns a frame that was never used. The pool may have shrunk meanwhile: the caller must check the size again.
    pub(super) fn unused(&self) -> Option<FrameNo> {
        let take = |used: u32| (used < self.limit.load(Acquire)).then_some(used + 1);
        self.used.fetch_update(SeqCst, Acquire, take).ok().map(FrameNo)
    }

    /// Returns the number of frames that were never used and are below the size.
    pub(super) fn unused_count(&self) -> usize {
        self.limit.load(Acquire).saturating_sub(self.used.load(Acquire)) as usize
    }

    /// Retires a frame beyond the pool's size that has come free.
    pub(super) fn retire(&self, frame: FrameNo) {
        #[cfg(not(feature = "model"))]
        debug_assert!(
            self.arena.frame(frame).tag().space == SpaceId::NONE,
            "{frame:?} is retired and holds a page"
        );
        self.arena.release(frame, FrameNo(frame.0 + 1));
        let before = self.arena.frame(frame).set(RETIRED);
        debug_assert!(before & (DIRTY | WRITING | RETIRED) == 0, "{frame:?} is retired twice, or in use");
        if frame.0 < self.limit.load(SeqCst) {
            self.bring_back(frame);
        }
    }

    fn bring_back(&self, frame: FrameNo) {
        let before = self.arena.frame(frame).clear(RETIRED);
        if before & RETIRED != 0 {
            debug_assert!(before & (DIRTY | WRITING) == 0, "{frame:?} was retired with a page to be written");
            self.free_empty(frame);
        }
    }

    /// Frees some frames beyond the pool's size. Dirty ones are passed to `dirty`, to be written first. Returns whether
    /// some are still in use.
    pub(super) fn shrink(&self, dirty: &mut dyn FnMut(FrameNo)) -> bool {
        // A thread that shrinks the pool meanwhile sets this flag again.
        if !self.shrinking.swap(false, SeqCst) {
            return false;
        }
        let (limit, used) = (self.limit.load(Acquire), self.used.load(Acquire));
        let mut round = *self.shrink_round.lock();
        if round.limit != limit || round.at >= used {
            round = Round { limit, at: limit, left: false };
            // All of them at once: frames are pushed on top of the list, so those beyond the size would stay at its
            // bottom.
            self.free.take_all(&self.arena, &mut |frame| self.free_empty(frame));
        }
        debug_assert!(round.at >= limit, "frames within the size of the pool are given up");
        let end = used.min(round.at.saturating_add(FRAMES_PER_STEP));
        for frame in (round.at..end).map(FrameNo) {
            let descriptor = self.arena.frame(frame);
            if descriptor.is(RETIRED) {
                continue;
            }
            if descriptor.tag().space != SpaceId::NONE && descriptor.is(DIRTY | WRITING) {
                dirty(frame);
                round.left = true;
            } else if self.evict(frame) {
                self.free_empty(frame);
            } else {
                round.left = true;
            }
        }
        round.at = end;
        *self.shrink_round.lock() = round;
        let more = round.left || end < used;
        if more {
            self.shrinking.store(true, SeqCst);
        }
        more
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Access, Durability, test_pool::new_pool};
    use crate::{
        buffer::frame::RETIRED,
        ids::{Lsn, PageNo, SpaceId},
    };

    #[test]
    fn no_reader_validates_a_page_that_was_returned_to_the_system() {
        let (_, pool) = new_pool(128);
        let space = pool.attach(SpaceId(100), Durability::Temporary);
        let read = |page| pool.read(&space, page, Access::Point).unwrap();
        let readings: Vec<_> = (0..100)
            .map(PageNo)
            .map(|page| {
                pool.latch_for_format(&space, page).unwrap().page().set_u64(64, 7);
                read(page)
            })
            .collect();
        pool.resize(64).unwrap();
        while pool.clean_step(Lsn::ZERO).unwrap() {}
        let is_retired = |no| pool.arena.frame(no).is(RETIRED);
        assert!(readings.iter().filter(|reading| is_retired(reading.frame)).count() > 20);
        for reading in &readings {
            let value = reading.page().u64(64);
            assert!(!is_retired(reading.frame) || value == 0, "its memory is still in use");
            assert!(value == 7 || !reading.is_valid(), "a reader takes zeroes for its page");
        }
    }
}
