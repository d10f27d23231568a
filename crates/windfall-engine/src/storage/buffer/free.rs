//! The free list: frames that hold nothing.
//!
//! **Purpose.** A lock-free stack, linked through the descriptors.
//!
//! **Invariants.** A frame is in the list at most once; the thread that pops it owns it (test:
//! `a_frame_has_one_owner_at_a_time`). The head carries a count of its changes, so that equal heads mean an unchanged
//! list (the ABA problem of Treiber's stack, 1986) (test: `a_free_frame_has_one_owner`).

use super::arena::{Arena, FrameNo};
#[cfg(not(feature = "model"))]
use crate::ids::SpaceId;
use crate::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed},
};

/// Returns the upper half of the head that follows this one.
fn next_count(head: u64) -> u64 {
    (head >> 32).wrapping_add(1) << 32
}

/// The list. The head has the count of changes in the upper half, and the frame number plus one in the lower.
#[derive(Debug, Default)]
pub(super) struct FreeList {
    head: AtomicU64,
    count: AtomicUsize,
}

impl FreeList {
    /// Adds a frame that holds nothing.
    pub(super) fn push(&self, arena: &Arena, frame: FrameNo) {
        // In a model, a load would be a step of its schedule.
        #[cfg(not(feature = "model"))]
        debug_assert!(
            arena.frame(frame).tag().space == SpaceId::NONE,
            "{frame:?} is added to the free list and holds a page"
        );
        let mut head = self.head.load(Acquire);
        loop {
            arena.frame(frame).next_free.store(head as u32, Relaxed);
            let new = next_count(head) | u64::from(frame.0 + 1);
            match self.head.compare_exchange_weak(head, new, AcqRel, Acquire) {
                Ok(_) => {
                    debug_assert!(head as u32 != frame.0 + 1, "{frame:?} is in the free list twice");
                    break;
                }
                Err(now) => head = now,
            }
        }
        self.count.fetch_add(1, Relaxed);
    }

    /// Removes and returns a frame.
    pub(super) fn pop(&self, arena: &Arena) -> Option<FrameNo> {
        let mut head = self.head.load(Acquire);
        loop {
            let frame = FrameNo((head as u32).checked_sub(1)?);
            let next = arena.frame(frame).next_free.load(Relaxed);
            let new = next_count(head) | u64::from(next);
            match self.head.compare_exchange_weak(head, new, AcqRel, Acquire) {
                Ok(_) => {
                    debug_assert!(next != head as u32, "{frame:?} is linked to itself in the free list");
                    debug_assert!(next as usize <= arena.count(), "{frame:?} is linked to no frame");
                    self.count.fetch_sub(1, Relaxed);
                    return Some(frame);
                }
                Err(now) => head = now,
            }
        }
    }

    /// Removes every frame that is in the list now, and passes each to `take`.
    pub(super) fn take_all(&self, arena: &Arena, take: &mut dyn FnMut(FrameNo)) {
        let mut next = self
            .head
            .fetch_update(AcqRel, Acquire, |head| Some(next_count(head)))
            .unwrap_or_else(|head| head) as u32;
        while let Some(frame) = next.checked_sub(1).map(FrameNo) {
            // Read before `take` is called: afterwards the link belongs to the new owner.
            next = arena.frame(frame).next_free.load(Relaxed);
            debug_assert!(next != frame.0 + 1, "{frame:?} is linked to itself in the free list");
            self.count.fetch_sub(1, Relaxed);
            take(frame);
        }
    }

    /// Returns the frame that was added last.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn first(&self) -> Option<FrameNo> {
        (self.head.load(Acquire) as u32).checked_sub(1).map(FrameNo)
    }

    /// Returns the number of frames; concurrent calls may make it inexact for a moment.
    pub(super) fn len(&self) -> usize {
        // A pop may decrement the count before the push that it follows has incremented it.
        self.count.load(Relaxed).min(usize::MAX / 2)
    }
}

#[cfg(test)]
impl FreeList {
    /// Counts one frame less than there are.
    pub(super) fn miscount(&self) {
        self.count.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_frame_has_one_owner_at_a_time() {
        let arena = Arena::new(64, 4096).unwrap();
        let list = FreeList::default();
        (0..64).for_each(|n| list.push(&arena, FrameNo(n)));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let mine: Vec<_> = (0..5).map_while(|_| list.pop(&arena)).collect();
                        for frame in &mine {
                            assert!(arena.frame(*frame).latch.try_exclusive(), "{frame:?} has two owners");
                        }
                        for frame in mine {
                            arena.frame(frame).latch.release_changed();
                            list.push(&arena, frame);
                        }
                    }
                });
            }
        });
        assert_eq!(list.len(), 64);
        let mut taken = Vec::new();
        list.take_all(&arena, &mut |frame| {
            taken.push(frame.0);
            list.push(&arena, frame);
        });
        taken.sort_unstable();
        assert!(taken.into_iter().eq(0..64));
        assert_eq!(list.len(), 64);
        assert_eq!(core::iter::from_fn(|| list.pop(&arena)).count(), 64);
    }
}
