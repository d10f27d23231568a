//! The system's allocator, with counters for what each thread allocates and frees.
//!
//! **Purpose.** Freeing is work like any other: a drop that frees the memory of a table in the foreground takes time in
//! proportion to the table's size, and no other counter shows it. A program that needs these counts makes this its
//! allocator, and `DropReport` of `windfall` reports them.
//!
//! **Invariants.** Every call goes to the system's allocator unchanged, so memory has the alignment and the content
//! that its contract requires (test: `memory_has_the_requested_alignment_and_content`). The counters are plain
//! thread-local cells without a destructor, so counting allocates nothing and works at any time of a thread's life (by
//! type).
#![expect(unsafe_code, reason = "an allocator is unsafe by its contract")]

use std::alloc::{GlobalAlloc, Layout, System};

use super::work::{self, Work};

/// The system's allocator, which counts [`Work::Allocation`], [`Work::AllocatedBytes`], [`Work::Free`] and
/// [`Work::FreedBytes`] of each thread.
///
/// ```
/// use windfall_base::sync::{
///     CountingAllocator,
///     work::{self, Work},
/// };
///
/// #[global_allocator]
/// static ALLOCATOR: CountingAllocator = CountingAllocator;
///
/// let before = work::so_far();
/// drop(std::hint::black_box(vec![0u8; 1000]));
/// let counts = work::so_far() - before;
/// assert_eq!((counts.of(Work::AllocatedBytes), counts.of(Work::FreedBytes)), (1000, 1000));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingAllocator;

fn allocated(bytes: usize) {
    work::count(Work::Allocation);
    work::add(Work::AllocatedBytes, bytes as u64);
}

fn freed(bytes: usize) {
    work::count(Work::Free);
    work::add(Work::FreedBytes, bytes as u64);
}

// SAFETY: every method passes its arguments to the system's allocator, which fulfils the contract; counting touches
// only cells of the thread, and neither allocates nor panics.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        allocated(layout.size());
        // SAFETY: the caller upholds the contract that the system's allocator requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        allocated(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        allocated(size);
        freed(layout.size());
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        freed(layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[cfg(test)]
mod tests {
    use core::slice;

    use super::*;

    #[test]
    fn memory_has_the_requested_alignment_and_content() {
        let memory = CountingAllocator;
        let of = |size, align| Layout::from_size_align(size, align).unwrap();
        for (layout, longer) in [(of(100, 4096), 5000), (of(5000, 64), 100), (of(1 << 20, 8), 4 << 20)] {
            let kept = layout.size().min(longer);
            // SAFETY: the layouts have a size; each block is used within its size and freed once, with its layout.
            unsafe {
                // Memory that was used before, as the allocator passes it on.
                let dirty: [*mut u8; 4] = [(); 4].map(|()| memory.alloc(layout));
                for block in dirty {
                    assert_eq!(block.addr() % layout.align(), 0);
                    block.write_bytes(7, layout.size());
                }
                for block in dirty {
                    memory.dealloc(block, layout);
                }
                let block = memory.alloc_zeroed(layout);
                assert_eq!(block.addr() % layout.align(), 0);
                assert!(slice::from_raw_parts(block, layout.size()).iter().all(|byte| *byte == 0));
                block.write_bytes(9, layout.size());
                let block = memory.realloc(block, layout, longer);
                assert_eq!(block.addr() % layout.align(), 0);
                assert!(slice::from_raw_parts(block, kept).iter().all(|byte| *byte == 9));
                block.write_bytes(1, longer);
                memory.dealloc(block, of(longer, layout.align()));
            }
        }
    }
}
