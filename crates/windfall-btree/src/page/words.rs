//! A page as a slice of atomic words, and the few ways to read and write it.
//!
//! **Purpose.** Optimistic readers race with writers by design. In Rust a race is defined only between atomic accesses
//! of the same size. Pages are therefore `[AtomicU64]`, and every access is a relaxed load or store of a whole word;
//! smaller fields are extracted from words. This needs no `unsafe`, and on x86 a relaxed load is a `mov`.
//!
//! **Invariants.** Writers hold the page's exclusive latch (checked by `tree/testpool.rs::apply`), so no other writer
//! interferes with the read-modify-write of a word for a small field. Readers without a latch validate before they
//! trust a value (test: `readers_and_cursors_during_splits_and_merges`). Read accessors stay inside the page whatever
//! offsets a torn read produced: they never panic, they clamp (test: `reads_never_leave_the_page`).

use core::cmp::Ordering as Order;

use crate::{
    memory::{WORD, store_words},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// A page's words. Copies are cheap and refer to the same memory.
#[derive(Clone, Copy)]
pub struct Page<'a> {
    words: &'a [AtomicU64],
}

impl core::fmt::Debug for Page<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Page({:?}, type {}, {:?})", self.id(), self.page_type(), self.lsn())
    }
}

/// Returns the words of a page of this many bytes, all zero, in memory outside the pool.
pub fn blank(page_size: usize) -> Box<[AtomicU64]> {
    debug_assert!(page_size.is_multiple_of(8), "a page of {page_size} bytes is not made of whole words");
    (0..page_size / 8).map(|_| AtomicU64::new(0)).collect()
}

impl<'a> Page<'a> {
    /// Creates a page over these words.
    #[inline]
    pub fn new(words: &'a [AtomicU64]) -> Self {
        Self { words }
    }

    /// Returns the words.
    #[inline]
    pub fn words(self) -> &'a [AtomicU64] {
        self.words
    }

    /// Returns the page size in bytes.
    #[inline]
    pub fn len(self) -> usize {
        self.words.len() * 8
    }

    /// Returns false: a page has at least a header.
    pub fn is_empty(self) -> bool {
        self.words.is_empty()
    }

    #[inline]
    fn word(self, n: usize) -> u64 {
        // An offset from a torn read may point anywhere: bytes past the end read as zero.
        self.words.get(n).map_or(0, |w| w.load(Relaxed))
    }

    #[inline]
    fn put(self, n: usize, value: u64, mask: u64) {
        let word = &self.words[n];
        word.store(word.load(Relaxed) & !mask | value & mask, Relaxed);
    }

    /// Reads eight bytes at any offset, aligned or not; bytes past the end read as zero.
    #[inline]
    pub fn u64(self, at: usize) -> u64 {
        // Without a branch: records begin anywhere, so it would often be predicted wrongly.
        let shift = at % 8 * 8;
        self.word(at / 8) >> shift | self.word(at / 8 + 1) << 1 << (63 - shift)
    }

    /// Reads the four bytes at a multiple of four.
    #[inline]
    pub(crate) fn aligned_u32(self, at: usize) -> u32 {
        debug_assert!(at.is_multiple_of(4), "a half of a word does not begin at byte {at}");
        (self.word(at / 8) >> (at % 8 * 8)) as u32
    }

    /// Reads four bytes.
    #[inline]
    pub fn u32(self, at: usize) -> u32 {
        self.u64(at) as u32
    }

    /// Reads two bytes.
    #[inline]
    pub fn u16(self, at: usize) -> u16 {
        self.u64(at) as u16
    }

    /// Reads one byte.
    #[inline]
    pub fn u8(self, at: usize) -> u8 {
        (self.word(at / 8) >> (at % 8 * 8)) as u8
    }

    #[inline]
    fn set_bits(self, at: usize, value: u64, bytes: usize) {
        let mask = if bytes == 8 { u64::MAX } else { (1 << (bytes * 8)) - 1 };
        let shift = at % 8 * 8;
        self.put(at / 8, value << shift, mask << shift);
        if at % 8 + bytes > 8 {
            self.put(at / 8 + 1, value >> (64 - shift), mask >> (64 - shift));
        }
    }

    /// Writes eight bytes at any offset.
    #[inline]
    pub fn set_u64(self, at: usize, value: u64) {
        self.set_bits(at, value, 8);
    }

    /// Writes four bytes.
    #[inline]
    pub fn set_u32(self, at: usize, value: u32) {
        self.set_bits(at, value.into(), 4);
    }

    /// Writes two bytes.
    #[inline]
    pub(crate) fn set_u16(self, at: usize, value: u16) {
        self.set_bits(at, value.into(), 2);
    }

    /// Writes one byte.
    #[inline]
    pub fn set_u8(self, at: usize, value: u8) {
        self.set_bits(at, value.into(), 1);
    }

    /// Copies bytes out; bytes past the end read as zero.
    pub fn read(self, at: usize, out: &mut [u8]) {
        let words = self.words.get(at / 8..).unwrap_or(&[]);
        if at.is_multiple_of(8) {
            return read_words(words, out);
        }
        let shift = at % 8 * 8;
        // No iteration depends on the one before, although each word is loaded twice.
        let mut done = 0;
        for (chunk, pair) in out.chunks_exact_mut(8).zip(words.windows(2)) {
            let [low, high] = [&pair[0], &pair[1]].map(|word| word.load(Relaxed));
            chunk.copy_from_slice(&(low >> shift | high << (64 - shift)).to_le_bytes());
            done += 8;
        }
        // The last bytes, and those past the end of the page.
        while done < out.len() {
            let n = (out.len() - done).min(8);
            out[done..done + n].copy_from_slice(&self.u64(at + done).to_le_bytes()[..n]);
            done += n;
        }
    }

    /// Appends bytes to `out`. A length from a torn read is cut at the page's end.
    #[inline]
    pub fn append_to(self, at: usize, len: usize, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + len.min(self.len().saturating_sub(at)), 0);
        self.read(at, &mut out[start..]);
    }

    /// Copies bytes in. The range must lie within the page.
    pub fn write(self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len(), "a write of {} bytes at {at} leaves the page", bytes.len());
        let head = bytes.len().min((8 - at % 8) % 8);
        let (head, rest) = bytes.split_at(head);
        self.set_few(at, head);
        let at = at + head.len();
        let whole = rest.len() / WORD;
        let (chunks, rest) = rest.split_at(whole * WORD);
        store_words(&self.words[at / WORD..][..whole], chunks);
        self.set_few(at + chunks.len(), rest);
    }

    /// Writes fewer than eight bytes, all in one word.
    fn set_few(self, at: usize, bytes: &[u8]) {
        debug_assert!(
            bytes.len() < WORD && at % WORD + bytes.len() <= WORD,
            "{} bytes at {at} are not a part of one word",
            bytes.len()
        );
        if !bytes.is_empty() {
            let value = word_of(bytes);
            let mask = (1 << (8 * bytes.len())) - 1;
            self.put(at / 8, value << (at % 8 * 8), mask << (at % 8 * 8));
        }
    }

    /// Moves the halves of words from `first` to before `end` up by one half. Both count halves, from the page's first.
    pub(crate) fn move_halves_up(self, first: usize, end: usize) {
        let mut to = end;
        if to > first && to.is_multiple_of(2) {
            self.set_u32(to * 4, self.u32((to - 1) * 4));
            to -= 1;
        }
        // Now `to` is the second half of its word. Each word is loaded once.
        let pairs = (to - first) / 2;
        if pairs > 0 {
            let (last, words) = (&self.words[to / 2], &self.words[to / 2 - pairs..to / 2]);
            let (mut place, mut above) = (last, last.load(Relaxed));
            for word in words.iter().rev() {
                let below = word.load(Relaxed);
                place.store(above << 32 | below >> 32, Relaxed);
                (place, above) = (word, below);
            }
            to -= 2 * pairs;
        }
        if to > first {
            self.set_u32(to * 4, self.u32((to - 1) * 4));
        }
    }

    /// Moves the halves of words from `first` to before `end` down by one half. Both count halves, from the page's
    /// first; `first` is not 0.
    pub(crate) fn move_halves_down(self, first: usize, end: usize) {
        let mut from = first;
        if from < end && from.is_multiple_of(2) {
            self.set_u32((from - 1) * 4, self.u32(from * 4));
            from += 1;
        }
        // Now `from` is the second half of its word. Each word is loaded once.
        let pairs = end.saturating_sub(from) / 2;
        if pairs > 0 {
            let (first, words) = (&self.words[from / 2], &self.words[from / 2 + 1..][..pairs]);
            let (mut place, mut below) = (first, first.load(Relaxed));
            for word in words {
                let above = word.load(Relaxed);
                place.store(below >> 32 | above << 32, Relaxed);
                (place, below) = (word, above);
            }
            from += 2 * pairs;
        }
        if from < end {
            self.set_u32((from - 1) * 4, self.u32(from * 4));
        }
    }

    /// Clears a range.
    pub fn fill_zero(self, at: usize, len: usize) {
        let end = at + len;
        debug_assert!(end <= self.len(), "a range of {len} bytes at {at} leaves the page");
        let (first, last) = (at.next_multiple_of(WORD).min(end), (end / WORD * WORD).max(at));
        (at..first).for_each(|at| self.set_u8(at, 0));
        if first < last {
            // Several stores in each turn of the loop: they are not made into wider ones.
            let (lines, rest) = self.words[first / WORD..last / WORD].as_chunks::<8>();
            for line in lines {
                for word in line {
                    word.store(0, Relaxed);
                }
            }
            for word in rest {
                word.store(0, Relaxed);
            }
        }
        (first.max(last)..end).for_each(|at| self.set_u8(at, 0));
    }

    /// Compares `len` bytes at `at` with `other`, in memcmp order; a prefix sorts first.
    #[inline]
    pub fn compare(self, at: usize, len: usize, other: &[u8]) -> Order {
        let common = len.min(other.len());
        let (chunks, rest) = other[..common].as_chunks::<8>();
        let mut at = at;
        for chunk in chunks {
            match self.u64(at).swap_bytes().cmp(&u64::from_be_bytes(*chunk)) {
                Order::Equal => at += 8,
                different => return different,
            }
        }
        if !rest.is_empty() {
            // Compare both sides as numbers of the remaining bytes.
            let unused = 64 - 8 * rest.len();
            let theirs = word_of(rest).swap_bytes() >> unused;
            match (self.u64(at).swap_bytes() >> unused).cmp(&theirs) {
                Order::Equal => {}
                different => return different,
            }
        }
        len.cmp(&other.len())
    }

    /// Returns how many leading bytes two ranges of `len` bytes, at `a` and at `b`, have in common.
    #[inline]
    pub(crate) fn common_prefix(self, a: usize, b: usize, len: usize) -> usize {
        for at in (0..len).step_by(8) {
            let difference = self.u64(a + at) ^ self.u64(b + at);
            if difference != 0 {
                return len.min(at + difference.trailing_zeros() as usize / 8);
            }
        }
        len
    }

    /// Copies the whole of another page of the same size.
    pub fn copy_from(self, other: Page<'_>) {
        debug_assert_eq!(self.len(), other.len(), "a page is copied to one of another size");
        for (to, from) in self.words.iter().zip(other.words) {
            to.store(from.load(Relaxed), Relaxed);
        }
    }
}

/// Returns fewer than eight bytes as the low bytes of a word.
#[inline]
fn word_of(bytes: &[u8]) -> u64 {
    let (mut word, mut rest) = (0, bytes);
    // Each part is in front of those that were read before.
    if rest.len() & 1 != 0
        && let Some((head, [last])) = rest.split_last_chunk()
    {
        (word, rest) = (u64::from(*last), head);
    }
    if rest.len() & 2 != 0
        && let Some((head, last)) = rest.split_last_chunk()
    {
        (word, rest) = (word << 16 | u64::from(u16::from_le_bytes(*last)), head);
    }
    rest.first_chunk().map_or(word, |first| word << 32 | u64::from(u32::from_le_bytes(*first)))
}

/// Copies words out: one load and one store for eight bytes.
fn read_words(words: &[AtomicU64], out: &mut [u8]) {
    let whole = (out.len() / 8).min(words.len());
    let (copied, rest) = out.split_at_mut(whole * 8);
    let (chunks, _) = copied.as_chunks_mut::<8>();
    for (chunk, word) in chunks.iter_mut().zip(words) {
        *chunk = word.load(Relaxed).to_le_bytes();
    }
    rest.fill(0);
    if let Some(word) = words.get(whole) {
        let n = rest.len().min(8);
        rest[..n].copy_from_slice(&word.load(Relaxed).to_le_bytes()[..n]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_as_bytes_do(
            writes in prop::collection::vec((0usize..250, prop::collection::vec(any::<u8>(), 0..40)), 1..20),
            at in 0usize..256, len in 0usize..64, other in prop::collection::vec(any::<u8>(), 0..64),
            from in 0usize..256,
        ) {
            let words = blank(256);
            let page = Page::new(&words);
            let mut model = vec![0u8; 256];
            for (at, bytes) in &writes {
                let bytes = &bytes[..bytes.len().min(256 - at)];
                page.write(*at, bytes);
                model[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            let mut all = vec![0; 256];
            page.read(0, &mut all);
            prop_assert_eq!(&all, &model);
            for (word, bytes) in words.iter().zip(model.as_chunks().0) {
                prop_assert_eq!(word.load(Relaxed), u64::from_le_bytes(*bytes));
            }
            let len = len.min(256 - at);
            let mut cut = Vec::new();
            page.append_to(at, len, &mut cut);
            prop_assert_eq!(&cut[..], &model[at..at + len]);
            prop_assert_eq!(page.compare(at, len, &other), model[at..at + len].cmp(&other[..]));
            prop_assert_eq!(page.compare(at, len, &cut), Order::Equal);
            let same = model[at..at + len].iter().zip(&model[from..]).take_while(|(a, b)| a == b).count();
            prop_assert_eq!(page.common_prefix(at, from, len.min(256 - from)), same);
            page.fill_zero(at, len);
            model[at..at + len].fill(0);
            page.read(0, &mut all);
            prop_assert_eq!(&all, &model);
        }

        #[test]
        fn halves_move_as_memmove_moves_them(first in 1usize..63, end in 1usize..64, up in any::<bool>()) {
            let words: Vec<AtomicU64> = (0..32).map(|n| AtomicU64::new((2 * n + 1) << 32 | (2 * n))).collect();
            let mut model: Vec<u32> = (0..64).collect();
            let (page, end) = (Page::new(&words), end.clamp(first, 63));
            if up {
                page.move_halves_up(first, end);
                model.copy_within(first..end, first + 1);
            } else {
                page.move_halves_down(first, end);
                model.copy_within(first..end, first - 1);
            }
            let moved: Vec<u32> = (0..64).map(|n| page.u32(4 * n)).collect();
            prop_assert_eq!(moved, model);
        }

        #[test]
        fn small_fields_cross_words(at in 0usize..24, value in any::<u64>()) {
            let words: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(u64::MAX)).collect();
            let page = Page::new(&words);
            page.set_u64(at, value);
            prop_assert_eq!(page.u64(at), value);
            page.set_u32(at, !value as u32);
            prop_assert_eq!(page.u32(at), !value as u32);
            page.set_u16(at + 3, value as u16);
            prop_assert_eq!(page.u16(at + 3), value as u16);
            for n in (0..at).chain(at + 8..32) {
                prop_assert_eq!(page.u8(n), 0xff);
            }
        }

        #[test]
        fn reads_never_leave_the_page(at in any::<u16>(), len in any::<u16>()) {
            let words: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(7)).collect();
            let page = Page::new(&words);
            let mut out = Vec::new();
            page.append_to(at.into(), len.into(), &mut out);
            prop_assert!(out.len() <= 32);
            let _ = (page.u64(at.into()), page.u32(at.into()), page.u16(at.into()), page.u8(at.into()));
            let _ = page.compare(at.into(), len.into(), b"0123456789");
        }
    }
}
