//! Memory from the system: mappings, zeroed words and bytes in them, and the size of a cheap request.
//!
//! **Purpose.** A large area costs nothing before it is touched, and a part of it can be returned to the system. The
//! buffer pool and the hash indexes are such areas. Small memory comes from the allocator; [`queue_block_is_small`]
//! keeps the requests of statements below the size from which the allocator does additional work. This is one of the
//! few modules with `unsafe`.
//!
//! **Invariants.** A fresh mapping reads as zero (test: `words_are_zero_and_go_in_steps`), and so does a part that was
//! returned (test: `discarded_memory_reads_as_zero`). Words are accessed as atomics only, so any thread may read and
//! write them (by type). Freeing words in steps needs exclusive ownership (by type). A new mapping is counted as
//! [`Work::MapCall`] (test: `large_areas_cost_a_call_each_to_make`).
#![expect(unsafe_code, reason = "Rust does not manage mapped memory")]

use core::{
    ops::{Deref, Range},
    ptr::{self, NonNull},
    slice,
};

use rustix::{
    io::Result,
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap},
};

use crate::sync::{
    atomic::{AtomicU64, Ordering::Relaxed},
    work::{self, Work},
};

/// Bytes of a word.
pub const WORD: usize = 8;

/// A multiple of every page size of the system: a mapping may be cut only at multiples of it.
const GRANULE_BYTES: usize = 64 << 10;

/// Areas of at least this many bytes are mapped, smaller ones are on the heap: each mapping is a structure of the
/// kernel, of which a process may have some tens of thousands.
const MAPPED_FROM_BYTES: usize = 512 << 10;

/// Returns whether a block of a queue of `T` (`SegQueue` of crossbeam) is a small request to the allocator. For a
/// larger request glibc consolidates its free lists, which costs the statement that needs the block up to 40,000
/// instructions. So statements pass only small items to the background through a queue.
pub const fn queue_block_is_small<T>() -> bool {
    // `BLOCK_CAP` of crossbeam, and the bytes that an entry takes in addition to its item.
    const ENTRIES: usize = 31;
    const ENTRY_BYTES: usize = 8;
    // In each block: the pointer to the next block.
    const NEXT: usize = 8;
    // The largest request, in bytes, for which glibc does not consolidate.
    const SMALL: usize = 1000;
    ENTRIES * (size_of::<T>() + ENTRY_BYTES) + NEXT <= SMALL
}

/// Stores bytes into the first words, little-endian; the words after them become zero.
#[inline]
pub fn store_words(words: &[AtomicU64], bytes: &[u8]) {
    debug_assert!(bytes.len() <= words.len() * WORD, "{} bytes for {} words", bytes.len(), words.len());
    let (chunks, rest) = bytes.as_chunks::<WORD>();
    let (whole, after) = words.split_at(chunks.len());
    for (word, chunk) in whole.iter().zip(chunks) {
        word.store(u64::from_le_bytes(*chunk), Relaxed);
    }
    let [part, zero @ ..] = after else { return };
    let mut last = [0; WORD];
    last[..rest.len()].copy_from_slice(rest);
    part.store(u64::from_le_bytes(last), Relaxed);
    for word in zero {
        word.store(0, Relaxed);
    }
}

/// A private anonymous mapping. Bytes that were never written read as zero.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is the address of memory that belongs to this value alone; each access to the memory is justified where it
// is made.
unsafe impl Send for Mapping {}
// SAFETY: as above; through a shared reference only the address and the length are read, and advice is given.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves this many bytes of address space. The first write to each page allocates its memory.
    ///
    /// # Errors
    /// When the system does not grant that much address space.
    pub fn new(bytes: usize) -> Result<Self> {
        work::count(Work::MapCall);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh anonymous mapping at an address of the system's choice affects no other memory.
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        let start = NonNull::new(start.cast()).expect("the system maps nothing at address zero");
        Ok(Self { start, bytes })
    }

    /// Returns the address of the first byte, aligned to the system's pages. It is valid as long as the mapping.
    /// [`Mapping::discard`] may write zeroes there at any time.
    #[inline]
    pub fn start<T>(&self) -> *mut T {
        self.start.as_ptr().cast()
    }

    /// Asks for huge pages, which avoid most of the address translation of random reads. Without them everything still
    /// works.
    pub fn prefer_huge_pages(&self) {
        work::count(Work::MapCall);
        // SAFETY: advice on our own mapping; it changes no content.
        let _ = unsafe { madvise(self.start(), self.bytes, Advice::LinuxHugepage) };
    }

    /// Returns the memory of a part, in bytes, to the system: it reads as zero from now on. The caller ensures that
    /// concurrent readers do not rely on its content.
    pub fn discard(&self, part: Range<usize>) {
        assert!(part.start <= part.end && part.end <= self.bytes, "a part beyond the mapping");
        work::count(Work::MapCall);
        // SAFETY: a part of our own mapping. Its content is lost, which the caller has asked for; it stays valid memory
        // that reads as zero.
        let _ =
            unsafe { madvise(self.start.as_ptr().add(part.start).cast(), part.len(), Advice::LinuxDontNeed) };
    }

    /// Cuts off the end and returns it to the system.
    fn shrink(&mut self, bytes: usize) {
        assert!(bytes < self.bytes && bytes.is_multiple_of(GRANULE_BYTES), "a mapping is cut between pages");
        work::count(Work::MapCall);
        // SAFETY: the end of our own mapping, which is borrowed exclusively: no reference points there.
        let _ = unsafe { munmap(self.start.as_ptr().add(bytes).cast(), self.bytes - bytes) };
        self.bytes = bytes;
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        work::count(Work::MapCall);
        // SAFETY: our own mapping, to which no reference is left, since references borrow the value that owns it.
        let _ = unsafe { munmap(self.start(), self.bytes) };
    }
}

/// Words, initially zero; their initial number is a power of two.
#[derive(Debug)]
pub struct Words {
    memory: Memory,
    words: NonNull<[AtomicU64]>,
}

#[derive(Debug)]
enum Memory {
    /// Allocated on the heap: `words` is a leaked box.
    Heap,
    Mapped(Mapping),
    /// All words were freed; none is left.
    Freed,
}

// SAFETY: the words are atomics that belong to this value alone.
unsafe impl Send for Words {}
// SAFETY: as above; any thread may access atomics.
unsafe impl Sync for Words {}

impl Words {
    /// Returns this many zeroed words. Below [half a MiB](MAPPED_FROM_BYTES) they are zeroed here, otherwise by the
    /// system when they are touched, so the cost is bounded. `None` when the system has no address space left.
    pub fn new(count: usize) -> Option<Self> {
        assert!(count.is_power_of_two(), "{count} words");
        let bytes = count * size_of::<AtomicU64>();
        if bytes < MAPPED_FROM_BYTES {
            let words: Box<[AtomicU64]> = (0..count).map(|_| AtomicU64::new(0)).collect();
            let words = NonNull::from(Box::leak(words));
            return Some(Self { memory: Memory::Heap, words });
        }
        let mapping = Mapping::new(bytes).ok()?;
        let start = NonNull::new(mapping.start()).expect("a mapping has an address");
        Some(Self { memory: Memory::Mapped(mapping), words: NonNull::slice_from_raw_parts(start, count) })
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.words.len() * size_of::<AtomicU64>()
    }

    /// Frees about this many bytes, from the end; words on the heap are freed all at once. Returns the number of bytes
    /// freed; zero when none were left.
    pub fn free_some(&mut self, bytes: usize) -> usize {
        debug_assert!(bytes > 0, "a step that frees nothing never ends");
        let before = self.bytes();
        let left = before.saturating_sub(bytes.next_multiple_of(GRANULE_BYTES));
        match &mut self.memory {
            Memory::Mapped(mapping) if left > 0 => {
                mapping.shrink(left);
                let words = left / size_of::<AtomicU64>();
                self.words = NonNull::slice_from_raw_parts(self.words.cast(), words);
            }
            _ => self.free(),
        }
        debug_assert!(before == 0 || self.bytes() < before, "a step has freed nothing of {before} bytes");
        before - self.bytes()
    }

    fn free(&mut self) {
        let words = core::mem::replace(&mut self.words, NonNull::from(&mut []));
        if matches!(core::mem::replace(&mut self.memory, Memory::Freed), Memory::Heap) {
            // SAFETY: it was leaked from a box in `new`, and `Heap` means that it was not freed since.
            drop(unsafe { Box::from_raw(words.as_ptr()) });
        }
    }
}

impl Deref for Words {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the words are a leaked box, the first words of a live mapping, or an empty slice; each is aligned.
        // They are freed only through an exclusive reference. Zeroed memory is a valid `AtomicU64`.
        unsafe { slice::from_raw_parts(self.words.as_ptr().cast(), self.words.len()) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        self.free();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_bytes_are_followed_by_zeros() {
        let bytes: Vec<u8> = (1..=24).collect();
        for len in 0..=bytes.len() {
            let words: Vec<AtomicU64> = (0..3).map(|_| AtomicU64::new(u64::MAX)).collect();
            store_words(&words, &bytes[..len]);
            let stored: Vec<u8> = words.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect();
            assert_eq!((&stored[..len], &stored[len..]), (&bytes[..len], &[0; 24][len..]));
        }
    }

    #[test]
    fn words_are_zero_and_go_in_steps() {
        for count in [1024, MAPPED_FROM_BYTES / 8 / 2, MAPPED_FROM_BYTES / 8, 4 * MAPPED_FROM_BYTES / 8] {
            let mut words = Words::new(count).unwrap();
            assert_eq!((words.len(), words.bytes()), (count, 8 * count));
            assert!(words.iter().all(|word| word.load(Relaxed) == 0));
            words.iter().for_each(|word| word.store(7, Relaxed));
            let step = MAPPED_FROM_BYTES / 2;
            let mut freed = Vec::new();
            while !words.is_empty() {
                freed.push(words.free_some(step));
                assert!(words.iter().all(|word| word.load(Relaxed) == 7));
            }
            assert_eq!(freed.iter().sum::<usize>(), 8 * count);
            assert!(freed.iter().all(|freed| *freed <= step), "{freed:?}");
            assert_eq!(words.free_some(step), 0);
        }
    }

    #[test]
    fn large_areas_cost_a_call_each_to_make() {
        let before = work::so_far();
        let words = Words::new(1 << 30).unwrap();
        assert_eq!((work::so_far() - before).of(Work::MapCall), 1);
        words[1 << 29].store(1, Relaxed);
        assert_eq!(words[1 << 28].load(Relaxed), 0);
    }

    #[test]
    fn discarded_memory_reads_as_zero() {
        let mapping = Mapping::new(4 * GRANULE_BYTES).unwrap();
        let byte = |n: usize| {
            // SAFETY: within the mapping, to which no other code has a pointer.
            unsafe { &mut *mapping.start::<u8>().add(n) }
        };
        *byte(GRANULE_BYTES) = 1;
        *byte(3 * GRANULE_BYTES) = 2;
        mapping.discard(GRANULE_BYTES..2 * GRANULE_BYTES);
        assert_eq!((*byte(GRANULE_BYTES), *byte(3 * GRANULE_BYTES)), (0, 2));
    }
}
