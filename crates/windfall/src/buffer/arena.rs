//! The memory of the pool: page bytes and frame descriptors, reserved for the largest pool, touched as used.
//!
//! **Purpose.** Frames are type-stable: a frame's memory stays a frame's memory for the life of the pool, so that a
//! reader with a stale frame number reads something harmless and finds out by tag and version.
//!
//! **Invariants.** Both areas are mapped for the largest pool at creation and unmapped at the end. A page that was
//! given back to the system reads as zero. The version in a descriptor's latch is never reset.
//!
//! **May touch.** `page`, `sync`; the system's memory mapping. One of the few places with `unsafe`.

use core::{ptr, slice};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::frame::Frame;
use crate::{
    error::{Result, UsageError},
    page::Page,
    sync::atomic::AtomicU64,
};

/// The number of a frame in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameNo(pub u32);

/// The two areas.
#[derive(Debug)]
pub struct Arena {
    pages: *mut AtomicU64,
    frames: *mut Frame,
    page_size: usize,
    count: usize,
}

// SAFETY: the areas hold atomics only, which any thread may reach through `&Arena`; the pointers are never handed out
// other than as references bound to the arena's life.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

fn reserve<T>(bytes: usize) -> Result<*mut T> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh anonymous mapping at an address of the system's choice disturbs nothing.
    let mapped = unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) };
    let mapped = mapped.map_err(|e| UsageError::Option {
        name: "buffer_pool_max_size",
        what: format!("the system does not reserve {bytes} bytes of address space ({e}): choose less").into(),
    })?;
    Ok(mapped.cast())
}

impl Arena {
    /// Reserves room for `count` frames of `page_size` bytes.
    ///
    /// # Errors
    /// When the system does not give so much address space.
    pub fn new(count: usize, page_size: usize) -> Result<Self> {
        let pages = reserve(count * page_size)?;
        // The arena frees what it has, should the second reservation fail.
        let mut arena = Self { pages, frames: ptr::null_mut(), page_size, count };
        arena.frames = reserve(count * size_of::<Frame>())?;
        // Huge pages spare most of the address translation of random reads; without them all still works.
        // SAFETY: advice on our own mapping; it changes no content.
        let _ = unsafe { madvise(arena.pages.cast(), count * page_size, Advice::LinuxHugepage) };
        Ok(arena)
    }

    /// How many frames there is room for.
    pub fn count(&self) -> usize {
        self.count
    }

    /// A frame's descriptor.
    #[inline]
    pub fn frame(&self, no: FrameNo) -> &Frame {
        assert!((no.0 as usize) < self.count, "a frame number beyond the arena");
        // SAFETY: in range, aligned (the mapping is page-aligned, a `Frame` has 64 bytes), and a `Frame` consists of
        // atomics for which the zeroed memory of the mapping is a valid state.
        unsafe { &*self.frames.add(no.0 as usize) }
    }

    /// A frame's page.
    #[inline]
    pub fn page(&self, no: FrameNo) -> Page<'_> {
        assert!((no.0 as usize) < self.count, "a frame number beyond the arena");
        // SAFETY: in range and aligned; the memory is only ever reached as `AtomicU64`, or by the system in a read into
        // an exclusively latched frame.
        let words = unsafe {
            let words = self.page_size / 8;
            slice::from_raw_parts(self.pages.add(no.0 as usize * words), words)
        };
        Page::new(words)
    }

    /// Gives the page bytes of these frames back to the system; they read as zero from now on.
    pub fn release(&self, from: FrameNo, to: FrameNo) {
        let (from, to) = (from.0 as usize, (to.0 as usize).min(self.count));
        if from < to {
            // SAFETY: a range of our own mapping. Readers under way see zeroes, which they then do not validate: the
            // pool has made the versions of these frames grow before.
            let _ = unsafe {
                madvise(
                    self.pages.add(from * self.page_size / 8).cast(),
                    (to - from) * self.page_size,
                    Advice::LinuxDontNeed,
                )
            };
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: our own mappings, to which no reference is left, since references borrow the arena.
        unsafe {
            let _ = munmap(self.pages.cast(), self.count * self.page_size);
            if !self.frames.is_null() {
                let _ = munmap(self.frames.cast(), self.count * size_of::<Frame>());
            }
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
