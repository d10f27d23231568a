//! Checks of the log's invariants, for simulations.
//!
//! **Purpose.** As `buffer::invariants`, which calls them.
//!
//! **Invariants.** A position out of order is found at the next yield point (test:
//! `a_simulation_finds_a_violated_invariant_at_its_next_yield_point`).
//!
//! **Design.** Positions are read from the lowest to the highest, and they only grow: so what is read later is at least
//! what it was when the earlier one was read.

use super::{Log, ring::Ring, segments::Segments};
use crate::{ids::Lsn, sync::atomic::Ordering::SeqCst};

impl Log {
    /// Checks the order of the log's positions, the free part of the ring, and the segments.
    ///
    /// # Panics
    /// An invariant is violated.
    pub(crate) fn check_invariants(&self) {
        let low = Lsn(self.low_water_mark.load(SeqCst));
        let (durable, written, end) = (self.durable(), self.written(), self.end());
        assert!(low <= end, "the low-water mark {low} is above the end of the log, {end}");
        assert!(durable <= written, "the log is durable up to {durable}, and written up to {written}");
        assert!(written <= end, "the log is written up to {written}, and ends at {end}");
        let buffered = end.0 - written.0;
        assert!(
            buffered <= self.ring.capacity(),
            "{buffered} bytes are in a ring of {}",
            self.ring.capacity()
        );
        self.check_ring(end, buffered);
        self.segments.check_invariants(low, written);
    }
}

impl Log {
    /// Checks the free part of the ring, unless the log is being appended to or written.
    fn check_ring(&self, end: Lsn, buffered: u64) {
        let Some(_writer) = self.writer.try_lock() else { return };
        let used = self.ring.first_used(end, self.ring.capacity() - buffered);
        if let Some(at) = used.filter(|_| self.end() == end) {
            panic!("the free word of the ring at {at} is not zero");
        }
    }
}

impl Ring {
    /// Returns a word that is not zero among the first ones of the part that no frame uses, from `from` on, and the
    /// last one.
    fn first_used(&self, from: Lsn, bytes: u64) -> Option<Lsn> {
        const FIRST: u64 = 64;
        let words = bytes / 8;
        let mut places = (0..words.min(FIRST)).chain(words.checked_sub(1)).map(|n| Lsn(from.0 + 8 * n));
        places.find(|at| self.is_published(*at))
    }
}

impl Segments {
    /// Checks that no segment that is needed is retired, and that the log is written to prepared segments alone.
    fn check_invariants(&self, low_water_mark: Lsn, written: Lsn) {
        let Some(files) = self.files.try_lock() else { return };
        let (first, last) = {
            let chain = self.chain.lock();
            (chain.front().copied(), chain.back().copied())
        };
        assert!(
            first.is_none_or(|first| first.start <= low_water_mark),
            "the segment of the low-water mark {low_water_mark} is retired: {first:?} is the first"
        );
        assert!(
            files.retired.iter().all(|old| first.is_none_or(|first| old.start < first.start)),
            "{first:?} and later ones are needed: {:?}",
            files.retired
        );
        assert!(
            self.is_ready(written) && last.is_none_or(|last| self.is_ready(last.end())),
            "the log is written up to {written}, and prepared segments end with {last:?}"
        );
    }
}

#[cfg(test)]
impl Log {
    /// Moves the low-water mark above the end of the log.
    pub(crate) fn misplace_low_water_mark(&self) {
        self.low_water_mark.store(self.end().0 + 8, SeqCst);
    }
}
