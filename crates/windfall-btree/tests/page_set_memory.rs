//! The memory that a set of pages takes. It is counted by an allocator, which a program has once.

use windfall_base::{
    ids::PageNo,
    sync::{
        CountingAllocator,
        work::{self, Work},
    },
};
use windfall_btree::tree::PageSet;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn adjacent_pages_take_less_than_half_a_byte_each() {
    for pages in [10_000, 1_000_000] {
        let before = work::so_far();
        let set: PageSet = (0..pages).map(PageNo).collect();
        let work = work::so_far() - before;
        let bytes = work.of(Work::AllocatedBytes) - work.of(Work::FreedBytes);
        assert!(2 * bytes < set.len() as u64, "{bytes} bytes for {pages} pages");
    }
}
