//! The memory of the pool: page bytes and frame descriptors, reserved for the largest pool, touched as used.
//!
//! **Purpose.** Frames are type-stable: the memory of a frame is used as that frame for the lifetime of the pool. A
//! reader with a stale frame number reads valid memory, and detects the change by the frame's tag and version. This
//! module is one of the few places with `unsafe`.
//!
//! **Invariants.** Both areas are mapped for the largest pool at creation and unmapped at the end (by type). A page
//! that was returned to the operating system reads as zero (test:
//! `a_reservation_of_hundreds_of_gigabytes_costs_nothing_until_touched`). The version in a descriptor's latch is never
//! reset (by type).

use core::slice;

use super::frame::Frame;
use crate::{
    error::{Result, UsageError},
    memory::Mapping,
    page::Page,
    sync::atomic::AtomicU64,
};

/// The number of a frame in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FrameNo(pub u32);

/// The two areas. They hold atomics only, which any thread may access through `&Arena`. Their addresses leave the arena
/// only as references bound to its lifetime.
#[derive(Debug)]
pub(crate) struct Arena {
    pages: Mapping,
    frames: Mapping,
    page_size: usize,
    count: usize,
}

fn reserve(bytes: usize) -> Result<Mapping> {
    let mapped = Mapping::new(bytes).map_err(|e| UsageError::Option {
        name: "buffer_pool_max_size",
        what: format!("the system does not reserve {bytes} bytes of address space ({e}): choose less").into(),
    })?;
    Ok(mapped)
}

impl Arena {
    /// Reserves address space for `count` frames with pages of `page_size` bytes.
    ///
    /// # Errors
    /// When the operating system does not grant this much address space.
    pub(crate) fn new(count: usize, page_size: usize) -> Result<Self> {
        let pages = reserve(count * page_size)?;
        let frames = reserve(count * size_of::<Frame>())?;
        pages.prefer_huge_pages();
        Ok(Self { pages, frames, page_size, count })
    }

    /// Returns the number of frames that there is room for.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Returns a frame's descriptor.
    #[inline]
    pub(crate) fn frame(&self, no: FrameNo) -> &Frame {
        assert!((no.0 as usize) < self.count, "a frame number beyond the arena");
        // SAFETY: in range, aligned (the mapping is page-aligned, a `Frame` has 64 bytes), and a `Frame` consists of
        // atomics for which the zeroed memory of the mapping is a valid state.
        unsafe { &*self.frames.start::<Frame>().add(no.0 as usize) }
    }

    /// Returns a frame's page.
    #[inline]
    pub(crate) fn page(&self, no: FrameNo) -> Page<'_> {
        assert!((no.0 as usize) < self.count, "a frame number beyond the arena");
        // SAFETY: in range and aligned; the memory is only ever accessed as `AtomicU64`, or by the operating system in
        // a read into an exclusively latched frame.
        let words = unsafe {
            let words = self.page_size / 8;
            slice::from_raw_parts(self.pages.start::<AtomicU64>().add(no.0 as usize * words), words)
        };
        Page::new(words)
    }

    /// Returns the page bytes of these frames to the operating system; they read as zero from now on. Concurrent
    /// readers see zeroes, which fail their validation: the pool has raised the versions of these frames before.
    pub(crate) fn release(&self, from: FrameNo, to: FrameNo) {
        let (from, to) = (from.0 as usize, (to.0 as usize).min(self.count));
        if from < to {
            self.pages.discard(from * self.page_size..to * self.page_size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_of_hundreds_of_gigabytes_costs_nothing_until_touched() {
        let arena = Arena::new(450 << 16, 16_384).unwrap();
        let last = FrameNo(arena.count() as u32 - 1);
        arena.page(last).set_u64(8, 77);
        assert_eq!(arena.page(last).u64(8), 77);
        assert!(arena.frame(last).latch.try_exclusive());
        arena.release(last, FrameNo(u32::MAX));
        assert_eq!(arena.page(last).u64(8), 0);
    }
}
