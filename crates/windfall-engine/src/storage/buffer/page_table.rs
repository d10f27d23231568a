//! A tablespace's page table: maps each resident page to its frame.
//!
//! **Purpose.** The tablespace owns its mapping. Dropping the tablespace detaches the table with all frames that it
//! names: the detached table *is* the list of frames to be reused. This module is one of the few places with `unsafe`.
//!
//! **Invariants.** An entry is set by compare-and-swap from empty and cleared by compare-and-swap or swap, so only one
//! thread clears it (test: `a_drain_and_inserters_share_no_entry`). The memory is in proportion to the resident pages:
//! eight entries inline, then one chunk of 56, then a radix tree of chunks of 512 (tests: `an_empty_table_is_small`,
//! `a_page_table_is_freed_in_steps`). A radix chunk that becomes empty is unlinked, and is queued in the pool's
//! [`EmptyChunks`] when no reader can be in it (tests:
//! `chunks_that_evictions_have_emptied_are_freed_in_the_background`, `empty_chunks_that_wait_are_bounded`).
//!
//! The thread that detects the end of the epoch, which may be any reader, moves up to 512 chunks to that queue and
//! frees none (test: `empty_chunks_are_freed_by_no_reader`). The background worker frees them, and an eviction frees
//! two when more than 1024 are queued (2 MiB) (tests: `chunks_that_evictions_have_emptied_are_freed_in_the_background`,
//! `empty_chunks_that_wait_are_bounded`). Chunks that arrive after the pool was dropped are freed with the last of them
//! (by type). A chunk increments its entry count *before* an entry is set and decrements it after the entry is cleared
//! (test: `a_chunk_is_removed_only_with_its_last_entry`). The count of a chunk that was given up is `DEAD`, and no page
//! is entered into it any more (checked by `buffer/page_table.rs::check_below`).

use crossbeam_epoch::{Atomic, Guard, Owned, Shared};
use crossbeam_queue::SegQueue;

use super::arena::FrameNo;
use crate::{
    ids::PageNo,
    sync::{
        Arc, OnceLock,
        atomic::{
            AtomicU32,
            Ordering::{AcqRel, Acquire, Relaxed, SeqCst},
        },
        work::{self, Work},
    },
};

const INLINE: usize = 8;
const SMALL: usize = 56;
const CHUNK_ENTRIES: usize = 512;
const CHUNK_BITS: u32 = CHUNK_ENTRIES.trailing_zeros();
/// The count of a chunk that was given up.
const DEAD: u32 = u32::MAX;
/// The maximum number of empty chunks that may be queued for the background worker.
const QUEUED_MAX: usize = 1024;
/// The chunks that an eviction frees when it queues one beyond that limit: more than one, so that the queue becomes
/// shorter.
const FREED_ABOVE: usize = 2;

/// Frame number plus one; zero is empty.
type Entry = AtomicU32;

struct Leaf {
    count: AtomicU32,
    entries: [Entry; CHUNK_ENTRIES],
}

struct Inner {
    /// The number of levels of inner nodes below this one.
    level: u32,
    children: [Atomic<Node>; CHUNK_ENTRIES],
}

enum Node {
    Leaf(Box<Leaf>),
    Inner(Box<Inner>),
}

/// Chunks that have lost their last page while their tables are in use, and that no reader can be in.
#[derive(Debug, Default)]
pub(super) struct EmptyChunks(SegQueue<Box<Node>>);

impl EmptyChunks {
    /// Frees at most `most` chunks, and returns how many.
    pub(super) fn free_some(&self, most: usize) -> usize {
        (0..most).map_while(|_| self.0.pop()).count()
    }

    /// Returns how many chunks wait to be freed.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes over a chunk that was unlinked, when no reader can be in it any more.
    fn take_over(self: &Arc<Self>, chunk: Shared<'_, Node>, guard: &Guard) {
        debug_assert!(!chunk.is_null(), "a chunk was unlinked by two threads");
        let chunks = self.clone();
        // SAFETY: the caller has unlinked the chunk from its only place by a swap, and no other thread does. A
        // reader that has found it before holds a guard, and this runs when those guards are dropped. The chunk and the
        // queue may be sent to the thread that runs it.
        unsafe { guard.defer_unchecked(move || chunks.0.push(chunk.into_owned().into_box())) };
        if self.0.len() > QUEUED_MAX {
            self.free_some(FREED_ABOVE);
        }
    }
}

/// The page table.
pub(super) struct PageTable {
    inline: [Entry; INLINE],
    small: OnceLock<Box<[Entry; SMALL]>>,
    /// An inner node, once there is a page beyond the small ones. The tree grows in height and never shrinks.
    root: Atomic<Node>,
}

impl core::fmt::Debug for PageTable {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("PageTable")
    }
}

fn empty<const N: usize>() -> [Entry; N] {
    [const { AtomicU32::new(0) }; N]
}

fn decode(value: u32) -> Option<FrameNo> {
    value.checked_sub(1).map(FrameNo)
}

fn new_inner(level: u32, first: Shared<'_, Node>) -> Owned<Node> {
    let inner = Inner { level, children: [const { Atomic::null() }; CHUNK_ENTRIES] };
    inner.children[0].store(first, Relaxed);
    Owned::new(Node::Inner(Box::new(inner)))
}

/// Returns the index of the child under an inner node of this level.
fn child_index(level: u32, page: PageNo) -> usize {
    (page.0 >> (CHUNK_BITS * (level + 1))) as usize % CHUNK_ENTRIES
}

/// Returns the highest page that a tree with a root of this level can hold.
fn reach(level: u32) -> u32 {
    u32::try_from((1u64 << (CHUNK_BITS * (level + 2))) - 1).unwrap_or(u32::MAX)
}

impl Default for PageTable {
    fn default() -> Self {
        Self { inline: empty(), small: OnceLock::new(), root: Atomic::null() }
    }
}

impl PageTable {
    /// Returns the frame that holds the page. Without a latch this is a hint: the caller must check the frame's tag.
    #[inline]
    pub(super) fn get(&self, page: PageNo) -> Option<FrameNo> {
        let n = page.0 as usize;
        if n < INLINE {
            return decode(self.inline[n].load(Acquire));
        }
        if n < INLINE + SMALL {
            return decode(self.small.get()?[n - INLINE].load(Acquire));
        }
        // Only chunks need the guard: the entries before them are freed with the table only.
        let guard = &crossbeam_epoch::pin();
        let leaf = self.find(page, guard)?;
        decode(leaf.entries[n % CHUNK_ENTRIES].load(Acquire))
    }

    #[inline]
    fn find<'g>(&self, page: PageNo, guard: &'g Guard) -> Option<&'g Leaf> {
        let mut node = self.root.load(Acquire, guard);
        // The first node is the root, the only one that determines the highest page in the tree.
        // SAFETY: nodes are unlinked before they are freed, and freed only when every guard from before is released.
        if let Some(Node::Inner(root)) = unsafe { node.as_ref() }
            && page.0 > reach(root.level)
        {
            return None;
        }
        loop {
            // SAFETY: as above.
            match unsafe { node.as_ref() }? {
                Node::Leaf(leaf) => return Some(leaf),
                Node::Inner(inner) => {
                    node = inner.children[child_index(inner.level, page)].load(Acquire, guard);
                }
            }
        }
    }

    /// Enters a page, unless it has an entry.
    ///
    /// # Errors
    /// The frame that holds the page.
    pub(super) fn insert(
        &self,
        page: PageNo,
        frame: FrameNo,
        empty_chunks: &Arc<EmptyChunks>,
        guard: &Guard,
    ) -> Result<(), FrameNo> {
        let n = page.0 as usize;
        let set = |entry: &Entry| {
            entry
                .compare_exchange(0, frame.0 + 1, SeqCst, Acquire)
                .map(drop)
                .map_err(|held| FrameNo(held - 1))
        };
        if n < INLINE {
            return set(&self.inline[n]);
        }
        if n < INLINE + SMALL {
            return set(&self.small.get_or_init(|| Box::new(empty()))[n - INLINE]);
        }
        loop {
            let leaf = self.find_or_grow(page, guard);
            let mut count = leaf.count.load(Relaxed);
            // Announce the entry before it is set, unless the chunk was given up meanwhile.
            while count != DEAD {
                match leaf.count.compare_exchange_weak(count, count + 1, AcqRel, Relaxed) {
                    Ok(_) => {
                        let result = set(&leaf.entries[n % CHUNK_ENTRIES]);
                        if result.is_err() {
                            self.leave(leaf, page, empty_chunks, guard);
                        }
                        return result;
                    }
                    Err(now) => count = now,
                }
            }
        }
    }

    /// Removes a page, if that frame holds it. Returns whether it did.
    pub(super) fn remove(
        &self,
        page: PageNo,
        frame: FrameNo,
        empty_chunks: &Arc<EmptyChunks>,
        guard: &Guard,
    ) -> bool {
        let n = page.0 as usize;
        let unset = |entry: &Entry| entry.compare_exchange(frame.0 + 1, 0, SeqCst, Acquire).is_ok();
        if n < INLINE {
            return unset(&self.inline[n]);
        }
        if n < INLINE + SMALL {
            return self.small.get().is_some_and(|small| unset(&small[n - INLINE]));
        }
        let Some(leaf) = self.find(page, guard) else { return false };
        let removed = unset(&leaf.entries[n % CHUNK_ENTRIES]);
        if removed {
            self.leave(leaf, page, empty_chunks, guard);
        }
        removed
    }

    /// Decrements the chunk's count of entries. If it becomes zero, gives up the chunk.
    fn leave(&self, leaf: &Leaf, page: PageNo, empty_chunks: &Arc<EmptyChunks>, guard: &Guard) {
        let gives_up = || leaf.count.compare_exchange(0, DEAD, AcqRel, Relaxed).is_ok();
        let count = leaf.count.fetch_sub(1, AcqRel);
        debug_assert!(count != 0 && count != DEAD, "{page:?} leaves a chunk that does not count it");
        if count != 1 || !gives_up() {
            return;
        }
        // No entry is added to the chunk any more, and this thread alone unlinks it.
        let mut node = self.root.load(Acquire, guard);
        // SAFETY: nodes are unlinked before they are freed, and freed only when every guard from before is released.
        while let Some(Node::Inner(inner)) = unsafe { node.as_ref() } {
            let child = &inner.children[child_index(inner.level, page)];
            if inner.level == 0 {
                // Only the thread that marked it `DEAD` gets here.
                empty_chunks.take_over(child.swap(Shared::null(), AcqRel, guard), guard);
                return;
            }
            node = child.load(Acquire, guard);
        }
    }

    fn find_or_grow<'g>(&self, page: PageNo, guard: &'g Guard) -> &'g Leaf {
        let mut root = self.root.load(Acquire, guard);
        loop {
            // SAFETY: the root is never freed before the table is.
            let level = match unsafe { root.as_ref() } {
                Some(Node::Inner(inner)) if page.0 <= reach(inner.level) => break,
                Some(Node::Inner(inner)) => inner.level + 1,
                _ => 0,
            };
            // A taller root with the current one as its first child, or the first root.
            match self.root.compare_exchange(root, new_inner(level, root), AcqRel, Acquire, guard) {
                Ok(new) => root = new,
                Err(lost) => root = lost.current,
            }
        }
        let mut node = root;
        loop {
            // SAFETY: as in `find`.
            match unsafe { node.deref() } {
                Node::Leaf(leaf) => return leaf,
                Node::Inner(inner) => {
                    let child = &inner.children[child_index(inner.level, page)];
                    let mut next = child.load(Acquire, guard);
                    if next.is_null() {
                        let new = match inner.level.checked_sub(1) {
                            None => Owned::new(Node::Leaf(Box::new(Leaf {
                                count: AtomicU32::new(0),
                                entries: empty(),
                            }))),
                            Some(level) => new_inner(level, Shared::null()),
                        };
                        next = match child.compare_exchange(next, new, AcqRel, Acquire, guard) {
                            Ok(new) => new,
                            Err(lost) => lost.current,
                        };
                    }
                    // A chunk that was unlinked between the two loads: load again.
                    if !next.is_null() {
                        node = next;
                    }
                }
            }
        }
    }

    /// Removes the entries from `from` on and passes them to `take`, until `take` returns false or `most` positions of
    /// the table were examined. Returns where to continue; `None` at the end of the table. Never frees a chunk: this is
    /// for a detached table.
    pub(super) fn drain(
        &self,
        from: PageNo,
        most: usize,
        guard: &Guard,
        mut take: impl FnMut(PageNo, FrameNo) -> bool,
    ) -> Option<PageNo> {
        let mut at = u64::from(from.0);
        let mut looked = 0;
        let mut entry = |at: u64, entry: &Entry| {
            decode(entry.swap(0, SeqCst)).is_none_or(|frame| take(PageNo(at as u32), frame))
        };
        while u32::try_from(at).is_ok() {
            if looked >= most {
                return Some(PageNo(at as u32));
            }
            looked += 1;
            work::count(Work::ListEntry);
            let n = at as usize;
            if n < INLINE {
                at += 1;
                if !entry(at - 1, &self.inline[n]) {
                    return Some(PageNo(at as u32));
                }
            } else if n < INLINE + SMALL {
                at += 1;
                if self.small.get().is_some_and(|small| !entry(at - 1, &small[n - INLINE])) {
                    return Some(PageNo(at as u32));
                }
            } else if let Some(leaf) = self.find(PageNo(at as u32), guard) {
                at += 1;
                if !entry(at - 1, &leaf.entries[n % CHUNK_ENTRIES]) {
                    return Some(PageNo(at as u32));
                }
            } else {
                let next = self.skip(at, guard)?;
                debug_assert!(next >= at, "the drain of a page table goes back from {at} to {next}");
                at = next;
            }
        }
        None
    }

    /// Returns the first page after the empty subtree that would hold `at`; `None` beyond the highest page of the tree.
    fn skip(&self, at: u64, guard: &Guard) -> Option<u64> {
        let mut node = self.root.load(Acquire, guard);
        // SAFETY: as in `find`.
        let Node::Inner(root) = (unsafe { node.as_ref() })? else { return None };
        if at > u64::from(reach(root.level)) {
            return None;
        }
        loop {
            // SAFETY: as in `find`.
            let Some(Node::Inner(inner)) = (unsafe { node.as_ref() }) else { return Some(at) };
            let child = inner.children[child_index(inner.level, PageNo(at as u32))].load(Acquire, guard);
            if child.is_null() {
                let span = 1u64 << (CHUNK_BITS * (inner.level + 1));
                return Some((at / span + 1) * span);
            }
            node = child;
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl PageTable {
    /// Checks that every node is at its place, and that each chunk counts its entries. A drain leaves the counts as
    /// they are, so in a detached table they may be too high. Passes all entries to `see`, in the order of their pages.
    ///
    /// # Panics
    /// An invariant is violated.
    pub(super) fn check_invariants(&self, is_detached: bool, mut see: impl FnMut(PageNo, FrameNo)) {
        let small = self.small.get().map_or(&[][..], |small| &small[..]);
        for (n, entry) in (0..).zip(self.inline.iter().chain(small)) {
            if let Some(frame) = decode(entry.load(Acquire)) {
                see(PageNo(n), frame);
            }
        }
        let guard = &crossbeam_epoch::pin();
        check_below(self.root.load(Acquire, guard), None, 0, is_detached, guard, &mut see);
    }
}

/// Checks the nodes from this one on. `above` is the level of its parent, and `first` is the first page below it.
#[cfg(any(test, feature = "testing"))]
fn check_below(
    node: Shared<'_, Node>,
    above: Option<u32>,
    first: u64,
    is_detached: bool,
    guard: &Guard,
    see: &mut dyn FnMut(PageNo, FrameNo),
) {
    // SAFETY: as in `find`.
    match unsafe { node.as_ref() } {
        None => {}
        Some(Node::Inner(inner)) => {
            let is_in_place = above.is_none_or(|above| above == inner.level + 1);
            assert!(is_in_place, "an inner node of level {} is below one of level {above:?}", inner.level);
            let span = 1 << (CHUNK_BITS * (inner.level + 1));
            for (n, child) in (0..).zip(&inner.children) {
                let child = child.load(Acquire, guard);
                check_below(child, Some(inner.level), first + n * span, is_detached, guard, see);
            }
        }
        Some(Node::Leaf(leaf)) => {
            assert!(above == Some(0), "the chunk of page {first} is below an inner node of level {above:?}");
            let mut set = 0;
            for (page, entry) in (first..).zip(&leaf.entries) {
                let Some(frame) = decode(entry.load(Acquire)) else { continue };
                assert!(
                    page >= (INLINE + SMALL) as u64,
                    "page {page} has an entry in a chunk, and one outside"
                );
                set += 1;
                see(PageNo(u32::try_from(page).expect("a page number has 32 bits")), frame);
            }
            let count = leaf.count.load(Acquire);
            assert!(count != DEAD, "the chunk of page {first} was given up and is in the table");
            assert!(
                count == set || is_detached && count > set,
                "the chunk of page {first} has {set} entries and counts {count}"
            );
        }
    }
}

impl PageTable {
    /// Frees some chunks of a table that no other thread can reach any more, whatever is in them. Returns whether there
    /// are more.
    pub(super) fn free_some(&mut self, most: usize) -> bool {
        let mut left = most;
        !free_below(&self.root, &mut left)
    }
}

/// Frees nodes that only this thread can reach, leaves first, until `left` is used up. Returns whether the whole
/// subtree is freed.
fn free_below(place: &Atomic<Node>, left: &mut usize) -> bool {
    // SAFETY: the caller has the table exclusively: no reader is left.
    let guard = unsafe { crossbeam_epoch::unprotected() };
    let node = place.load(Relaxed, guard);
    // SAFETY: a node that is linked was not freed.
    if let Some(Node::Inner(inner)) = unsafe { node.as_ref() }
        && !inner.children.iter().all(|child| free_below(child, left))
    {
        return false;
    }
    if node.is_null() {
        return true;
    }
    if *left == 0 {
        return false;
    }
    *left -= 1;
    place.store(Shared::null(), Relaxed);
    // SAFETY: every node is linked once, and this one is not any more.
    drop(unsafe { node.into_owned() });
    true
}

impl Drop for PageTable {
    fn drop(&mut self) {
        let more = self.free_some(usize::MAX);
        debug_assert!(!more, "a part of the table is not freed");
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::{BTreeMap, BTreeSet},
        sync::Mutex,
        thread,
        time::{Duration, Instant},
    };

    use proptest::prelude::*;

    use super::*;

    impl PageTable {
        fn put(&self, page: PageNo, frame: FrameNo, guard: &Guard) -> Result<(), FrameNo> {
            self.insert(page, frame, &Arc::default(), guard)
        }

        fn take(&self, page: PageNo, frame: FrameNo, guard: &Guard) -> bool {
            self.remove(page, frame, &Arc::default(), guard)
        }
    }

    /// Returns a table with a page outside of chunks and one in a chunk, and that chunk.
    fn with_a_chunk(guard: &Guard) -> (PageTable, &Leaf) {
        let table = PageTable::default();
        table.put(PageNo(3), FrameNo(7), guard).unwrap();
        table.put(PageNo(600), FrameNo(8), guard).unwrap();
        let leaf: *const Leaf = table.find(PageNo(600), guard).unwrap();
        // SAFETY: the chunk does not move with the table, and the guard keeps it.
        (table, unsafe { &*leaf })
    }

    #[test]
    fn the_check_sees_each_entry_once() {
        let guard = &crossbeam_epoch::pin();
        let (table, _) = with_a_chunk(guard);
        table.put(PageNo(u32::MAX), FrameNo(9), guard).unwrap();
        let mut seen = Vec::new();
        table.check_invariants(false, |page, frame| seen.push((page.0, frame.0)));
        assert_eq!(seen, [(3, 7), (600, 8), (u32::MAX, 9)]);
        table.drain(PageNo(0), usize::MAX, guard, |_, _| true);
        table.check_invariants(true, |page, _| panic!("{page:?} was removed"));
    }

    #[test]
    #[should_panic(expected = "has 1 entries and counts 2")]
    fn a_wrong_count_of_a_chunk_is_found() {
        let guard = &crossbeam_epoch::pin();
        let (table, leaf) = with_a_chunk(guard);
        leaf.count.fetch_add(1, AcqRel);
        table.check_invariants(false, |_, _| {});
    }

    #[test]
    #[should_panic(expected = "was given up and is in the table")]
    fn a_dead_chunk_in_the_table_is_found() {
        let guard = &crossbeam_epoch::pin();
        let (table, leaf) = with_a_chunk(guard);
        leaf.count.store(DEAD, SeqCst);
        table.check_invariants(false, |_, _| {});
    }

    #[test]
    fn an_empty_table_is_small() {
        assert!(size_of::<PageTable>() <= 64, "{} bytes", size_of::<PageTable>());
    }

    fn page() -> impl Strategy<Value = u32> {
        prop_oneof![0..80u32, 500..600u32, 260_000..265_000u32, any::<u32>()]
    }

    proptest! {
        #[test]
        fn behaves_as_a_map(ops in prop::collection::vec((page(), 0..1000u32, any::<bool>()), 1..300), most in 1..700usize) {
            let table = PageTable::default();
            let mut model = BTreeMap::new();
            let guard = &crossbeam_epoch::pin();
            for (page, frame, insert) in ops {
                if insert {
                    let expected = model.get(&page).copied().map_or(Ok(()), |f| Err(FrameNo(f)));
                    prop_assert_eq!(table.put(PageNo(page), FrameNo(frame), guard), expected);
                    model.entry(page).or_insert(frame);
                } else {
                    prop_assert!(!table.take(PageNo(page), FrameNo(5000), guard));
                    let held = model.remove(&page);
                    prop_assert_eq!(table.take(PageNo(page), FrameNo(held.unwrap_or(0)), guard), held.is_some());
                }
                prop_assert_eq!(table.get(PageNo(page)), model.get(&page).copied().map(FrameNo));
            }
            let mut drained = Vec::new();
            let mut at = Some(PageNo(0));
            while let Some(from) = at {
                at = table.drain(from, most, guard, |page, frame| {
                    drained.push((page.0, frame.0));
                    drained.len() % 3 != 0
                });
            }
            prop_assert_eq!(drained, model.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_page_table_is_freed_in_steps() {
        let mut table = PageTable::default();
        let guard = &crossbeam_epoch::pin();
        let pages = [3, 70, 600, 1_500, 300_000, 300_001, 90_000_000, u32::MAX];
        for page in pages {
            table.put(PageNo(page), FrameNo(1), guard).unwrap();
        }
        let mut steps = 1;
        while table.free_some(2) {
            steps += 1;
        }
        // 13 nodes: a leaf each for pages 70, 600, 1500, 300,000, 90,000,000 and the last one, below four inner nodes
        // of level 0, two of level 1 and the root.
        assert_eq!(steps, 6 + 1, "two nodes a step");
        assert!(pages[2..].iter().all(|page| table.get(PageNo(*page)).is_none()));
        assert!(!table.free_some(usize::MAX));
    }

    #[test]
    fn chunks_come_and_go_under_concurrent_use() {
        let table = PageTable::default();
        thread::scope(|scope| {
            for t in 0..3u32 {
                let table = &table;
                scope.spawn(move || {
                    // Every thread owns some pages of each chunk, and empties and fills them again.
                    for round in 0..300 {
                        for n in 0..40u32 {
                            let page = PageNo(1000 + n * 97 * 3 + t);
                            table.put(page, FrameNo(round * 3 + t), &crossbeam_epoch::pin()).unwrap();
                        }
                        for n in 0..40u32 {
                            let page = PageNo(1000 + n * 97 * 3 + t);
                            let guard = &crossbeam_epoch::pin();
                            assert_eq!(table.get(page), Some(FrameNo(round * 3 + t)));
                            assert!(table.take(page, FrameNo(round * 3 + t), guard));
                            assert_eq!(table.get(page), None);
                        }
                    }
                });
            }
        });
        assert_eq!(table.drain(PageNo(0), usize::MAX, &crossbeam_epoch::pin(), |_, _| true), None);
    }

    /// Fills `count` chunks with one page each, and empties them.
    fn empty_chunks(table: &PageTable, chunks: &Arc<EmptyChunks>, count: usize) {
        for n in 0..count {
            let (page, guard) = (PageNo((n * CHUNK_ENTRIES + CHUNK_ENTRIES) as u32), &crossbeam_epoch::pin());
            table.insert(page, FrameNo(1), chunks, guard).unwrap();
            assert!(table.remove(page, FrameNo(1), chunks, guard));
        }
    }

    /// Waits until all chunks that were emptied are queued to be freed: no reader has freed one.
    fn await_chunks(chunks: &Arc<EmptyChunks>, count: usize) {
        let began = Instant::now();
        while chunks.len() < count {
            assert!(
                began.elapsed() < Duration::from_mins(10),
                "{} chunks of {count} can be freed",
                chunks.len()
            );
            crossbeam_epoch::pin().flush();
            thread::yield_now();
        }
        assert_eq!(chunks.len(), count);
    }

    #[test]
    fn empty_chunks_are_freed_by_no_reader() {
        let (table, chunks) = (PageTable::default(), Arc::new(EmptyChunks::default()));
        thread::scope(|scope| {
            scope.spawn(|| {
                empty_chunks(&table, &chunks, 700);
                // Pushes the deferred chunks in this thread's bag, too.
                crossbeam_epoch::pin().flush();
            });
            // Every 128th of these checks whether something can be freed.
            for _ in 0..50_000 {
                assert_eq!(table.get(PageNo(u32::MAX)), None);
            }
        });
        await_chunks(&chunks, 700);
        let freed: Vec<usize> =
            core::iter::from_fn(|| Some(chunks.free_some(300)).filter(|freed| *freed > 0)).collect();
        assert_eq!((freed, chunks.len()), (vec![300, 300, 100], 0));
    }

    /// If the background worker does not run, each thread that empties a chunk frees two, and no more.
    #[test]
    fn empty_chunks_that_wait_are_bounded() {
        let (table, chunks) = (PageTable::default(), Arc::new(EmptyChunks::default()));
        // While this guard is held no epoch ends, so chunks are queued only where the test waits for them.
        let empty = |count| {
            let _guard = crossbeam_epoch::pin();
            empty_chunks(&table, &chunks, count);
        };
        empty(QUEUED_MAX);
        await_chunks(&chunks, QUEUED_MAX);
        empty(FREED_ABOVE * 50 + 1);
        await_chunks(&chunks, QUEUED_MAX + FREED_ABOVE * 50 + 1);
        empty(50);
        assert_eq!(chunks.len(), QUEUED_MAX + 1);
        await_chunks(&chunks, QUEUED_MAX + 1 + 50);
    }

    #[test]
    fn a_drain_and_inserters_share_no_entry() {
        let table = PageTable::default();
        let seen = Mutex::new(BTreeSet::new());
        thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..20_000u32 {
                    table.put(PageNo(n), FrameNo(n), &crossbeam_epoch::pin()).unwrap();
                }
            });
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let guard = &crossbeam_epoch::pin();
                        table.drain(PageNo(0), usize::MAX, guard, |_, frame| {
                            assert!(seen.lock().unwrap().insert(frame), "{frame:?} was taken twice");
                            true
                        });
                    }
                });
            }
        });
        table.drain(PageNo(0), usize::MAX, &crossbeam_epoch::pin(), |_, f| seen.lock().unwrap().insert(f));
        assert_eq!(seen.lock().unwrap().len(), 20_000);
    }
}
