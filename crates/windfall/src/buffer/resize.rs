//! Growing and shrinking the pool while it is in use.
//!
//! **Purpose.** Descriptors and address space are reserved for the largest pool, so the size is a number: the frames
//! below it are in use. Frames that were never used are not touched: the pool takes them one after the other.
//!
//! **Invariants.** A frame beyond the size is retired when it comes free; its version has grown before its page bytes
//! go back to the system, so no reader validates what is then zero. A retired frame is in no list. Who retires a frame
//! looks at the size again afterwards, who grows the pool sets the size before it looks for retired frames. The same
//! holds for who takes a frame that was never used, and who makes the pool smaller and looks how many are in use.
//!
//! **May touch.** The rest of `buffer`.

use super::{
    BufferPool, SMALLEST,
    arena::FrameNo,
    frame::{DIRTY, RETIRED, WRITING},
};
use crate::{
    error::{Result, UsageError},
    ids::SpaceId,
    sync::{
        Bug,
        atomic::Ordering::{Acquire, SeqCst},
        planted,
    },
};

/// How many frames beyond the size a step looks at.
const FRAMES_A_STEP: u32 = 4096;

/// How far a round over the frames beyond the size has come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Round {
    /// The size that it is for.
    limit: u32,
    at: u32,
    /// Whether frames stayed in use behind it.
    left: bool,
}

impl BufferPool {
    /// Sets the number of frames. Growing is at once; shrinking goes on in the background, by the page cleaner.
    ///
    /// # Errors
    /// When the number is out of range.
    pub fn resize(&self, frames: usize) -> Result<()> {
        let most = self.arena.count();
        if !(SMALLEST..=most).contains(&frames) {
            let what = format!("{frames} pages: this pool can have {SMALLEST} to {most}");
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
        // Frames that were never used are to be had now, too.
        self.tell_freed();
        self.cleaner_wake.notify();
        Ok(())
    }

    /// A frame that was never used. The pool may have become smaller meanwhile: the caller looks at the size again.
    pub(super) fn unused(&self) -> Option<FrameNo> {
        let take = |used: u32| (used < self.limit.load(Acquire)).then_some(used + 1);
        self.used.fetch_update(SeqCst, Acquire, take).ok().map(FrameNo)
    }

    /// Frames that were never used and may be.
    pub(super) fn unused_count(&self) -> usize {
        self.limit.load(Acquire).saturating_sub(self.used.load(Acquire)) as usize
    }

    /// A frame beyond the pool's size has come free.
    pub(super) fn retire(&self, frame: FrameNo) {
        self.arena.release(frame, FrameNo(frame.0 + 1));
        self.arena.frame(frame).set(RETIRED);
        if frame.0 < self.limit.load(SeqCst) && !planted(Bug::RetiredForGood) {
            self.bring_back(frame);
        }
    }

    fn bring_back(&self, frame: FrameNo) {
        if self.arena.frame(frame).clear(RETIRED) & RETIRED != 0 {
            self.give(frame);
        }
    }

    /// Frees some frames beyond the pool's size. Dirty ones are told to `dirty`, to be written first. Says whether some
    /// are still in use.
    pub(super) fn shrink(&self, dirty: &mut dyn FnMut(FrameNo)) -> bool {
        // Whoever makes the pool smaller meanwhile says so again.
        if !self.shrinking.swap(false, SeqCst) {
            return false;
        }
        let (limit, used) = (self.limit.load(Acquire), self.used.load(Acquire));
        let mut round = *self.shrink_round.lock();
        if round.limit != limit || round.at >= used {
            round = Round { limit, at: limit, left: false };
            // All of them at once: what is given back comes on top, and the others lie below.
            self.free.take_all(&self.arena, &mut |frame| self.give(frame));
        }
        let end = used.min(round.at.saturating_add(FRAMES_A_STEP));
        for frame in (round.at..end).map(FrameNo) {
            let descriptor = self.arena.frame(frame);
            if descriptor.is(RETIRED) {
                continue;
            }
            if descriptor.tag().space != SpaceId::NONE && descriptor.is(DIRTY | WRITING) {
                dirty(frame);
                round.left = true;
            } else if self.evict(frame) {
                self.give(frame);
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
