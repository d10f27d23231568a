//! The log buffer: a ring between the appending threads and the writer.
//!
//! **Purpose.** Appenders copy their frames in at positions they have reserved, in any order, without a lock. The
//! writer finds the finished prefix by walking from frame to frame.
//!
//! **Invariants.** A word is zero from the moment its space becomes available until its owner writes it (test:
//! `a_full_ring_loses_and_mixes_nothing`). An owner stores the first word of its frame last, so that a thread that sees
//! it sees the rest (test: `an_acknowledged_commit_is_written_and_no_thread_waits_for_ever`); that word is never zero
//! (checked by `log/ring.rs::put`). So a non-zero first word means a complete frame. Only the writer clears, and only
//! what it has consumed (test: `a_full_ring_loses_and_mixes_nothing`). The memory of a part of a large ring is
//! allocated when that part is first used (test: `a_ring_of_gigabytes_costs_nothing_until_it_is_used`).

use super::frame::{HEADER, Header, span};
use crate::{
    error::{Result, UsageError},
    ids::Lsn,
    memory::Words,
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, SeqCst},
    },
};

/// The ring buffer.
pub(super) struct Ring {
    words: Words,
}

impl core::fmt::Debug for Ring {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Ring({} bytes)", self.capacity())
    }
}

impl Ring {
    /// Creates a ring of this many bytes, a power of two.
    ///
    /// # Errors
    /// [`UsageError::Option`] when that much memory is not available.
    pub(super) fn new(bytes: usize) -> Result<Self> {
        assert!(bytes.is_power_of_two() && bytes >= 4096, "the log buffer's size is a power of two");
        let words = Words::new(bytes / 8).ok_or_else(|| UsageError::Option {
            name: "log_buffer_size",
            what: format!("{bytes} bytes of address space are not available: choose less").into(),
        })?;
        assert!(words.len() * 8 == bytes, "the ring has another size than was asked for");
        Ok(Self { words })
    }

    /// Returns the size in bytes.
    pub(super) fn capacity(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    fn index(&self, at: Lsn) -> usize {
        (at.0 / 8) as usize & (self.words.len() - 1)
    }

    /// Returns the words from `at` on: up to the ring's end, and the rest from its beginning.
    fn range(&self, at: Lsn, words: usize) -> (&[AtomicU64], &[AtomicU64]) {
        debug_assert!(at.0.is_multiple_of(8), "a range of the ring begins within a word");
        debug_assert!(words <= self.words.len(), "a range is longer than the ring");
        let from = self.index(at);
        let first = words.min(self.words.len() - from);
        (&self.words[from..from + first], &self.words[..words - first])
    }

    /// Stores a frame and makes it visible. The caller owns the space.
    pub(super) fn put(&self, header: &Header, payload: &[u8]) {
        debug_assert!(header.payload() == payload.len(), "the header is that of another payload");
        debug_assert!(header.span() as u64 <= self.capacity(), "the frame is larger than the ring");
        let [first, second, third] = header.words();
        let word = |n: u64| &self.words[self.index(Lsn(header.lsn.0 + 8 * n))];
        debug_assert!(first as u32 != 0, "a complete frame would not be seen");
        // In a model, a load would be a step of its schedule.
        #[cfg(not(feature = "model"))]
        debug_assert!(word(0).load(Relaxed) == 0, "the space of the frame was not cleared");
        #[cfg(not(feature = "model"))]
        debug_assert!(
            word(header.span() as u64 / 8 - 1).load(Relaxed) == 0,
            "the space of the frame was not cleared up to its end"
        );
        word(1).store(second, Relaxed);
        word(2).store(third, Relaxed);
        let (whole, rest) = payload.as_chunks::<8>();
        let (low, high) = self.range(Lsn(header.lsn.0 + HEADER as u64), whole.len());
        let (first_part, second_part) = whole.split_at(low.len());
        for (cells, chunks) in [(low, first_part), (high, second_part)] {
            for (cell, chunk) in cells.iter().zip(chunks) {
                cell.store(u64::from_le_bytes(*chunk), Relaxed);
            }
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            word(3 + whole.len() as u64).store(u64::from_le_bytes(last), Relaxed);
        }
        // Sequentially consistent with the loads of the threads that wait for it.
        word(0).store(first, SeqCst);
    }

    /// Returns whether the frame that begins here is complete.
    pub(super) fn is_published(&self, at: Lsn) -> bool {
        self.words[self.index(at)].load(SeqCst) != 0
    }

    /// Returns the end of the complete frames from `from` on, at most one revolution of the ring.
    pub(super) fn published(&self, from: Lsn) -> Lsn {
        let mut at = from;
        while at.0 - from.0 < self.capacity() {
            let first = self.words[self.index(at)].load(Acquire);
            if first == 0 {
                break;
            }
            at.0 += span((first as u32 as usize).saturating_sub(HEADER)) as u64;
        }
        debug_assert!(at.0 - from.0 <= self.capacity(), "complete frames take more than the whole ring");
        at
    }

    /// Copies bytes out; both numbers are multiples of 8.
    pub(super) fn copy_out(&self, at: Lsn, bytes: usize, out: &mut Vec<u8>) {
        debug_assert!(bytes.is_multiple_of(8), "a part of a word is copied");
        out.resize(bytes, 0);
        let (low, high) = self.range(at, bytes / 8);
        let (chunks, _) = out.as_chunks_mut::<8>();
        let (first, second) = chunks.split_at_mut(low.len());
        for (cells, chunks) in [(low, first), (high, second)] {
            for (cell, chunk) in cells.iter().zip(chunks) {
                *chunk = cell.load(Relaxed).to_le_bytes();
            }
        }
    }

    /// Clears consumed space. The space becomes available only afterwards, by a store with release ordering.
    pub(super) fn clear(&self, at: Lsn, bytes: usize) {
        debug_assert!(bytes.is_multiple_of(8), "a part of a word is cleared");
        let (low, high) = self.range(at, bytes / 8);
        for word in low.iter().chain(high) {
            word.store(0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::frame::Seed;

    #[test]
    fn a_ring_of_gigabytes_costs_nothing_until_it_is_used() {
        let (ring, seed) = (Ring::new(1 << 38).unwrap(), Seed::new(&[1; 16]));
        let far = Lsn(200 << 30);
        assert!(!ring.is_published(far));
        ring.put(&Header::new(seed, far, 1, Lsn::ZERO, b"far"), b"far");
        assert!(ring.is_published(far));
    }

    #[test]
    fn only_whole_frames_are_seen_and_the_turn_of_the_ring_is_no_obstacle() {
        let (ring, seed) = (Ring::new(4096).unwrap(), Seed::new(&[1; 16]));
        let mut at = Lsn(4096 - 16);
        for n in 0..200usize {
            let payload = vec![n as u8 | 1; n % 37];
            let next = Lsn(at.0 + span(payload.len()) as u64);
            let later = Header::new(seed, next, 1, Lsn::ZERO, b"later");
            ring.put(&later, b"later");
            assert_eq!(ring.published(at), at, "the frame before is missing");
            let header = Header::new(seed, at, 1, Lsn::ZERO, &payload);
            ring.put(&header, &payload);
            let end = Lsn(next.0 + later.span() as u64);
            assert_eq!(ring.published(at), end);
            let mut out = Vec::new();
            ring.copy_out(at, (end.0 - at.0) as usize, &mut out);
            assert_eq!(Header::decode(&out), Some(header));
            assert!(header.holds(seed, &out));
            ring.clear(at, out.len());
            at = end;
        }
    }
}
