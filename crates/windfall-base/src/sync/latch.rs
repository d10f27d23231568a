//! The hybrid latch of a frame: optimistic, shared, exclusive.
//!
//! **Purpose.** Readers of inner pages take no latch at all: they note a version, read, and validate that the version
//! is unchanged (optimistic read). Writers, and readers that must not be disturbed, take the latch. The idea is that of
//! `LeanStore`'s hybrid latch (Leis, Haubenschild, Neumann 2019).
//!
//! **Invariants.** The version grows with every exclusive release that changed something (test:
//! `an_unchanged_release_keeps_the_version`), and is never reset: not when the frame gets another page (test:
//! `a_reader_notices_the_eviction_of_its_page`), not when the pool shrinks. After 2^48 changes of one frame (a year of
//! ten million per second) it wraps around (test: `a_version_that_overflows_leaves_no_shared_latch`). A version says
//! nothing about *which* page the frame holds: the tag must be read under the version that is validated (test:
//! `no_thread_takes_a_page_for_another`).
//!
//! Latches belong to frames, but their acquisition order is defined on pages: a waiter never waits for the holder of
//! another page that was read into the frame, because that holder may itself wait for a page of the waiter (test:
//! `an_exclusive_latch_waits_for_no_page_that_came_into_the_frame`). So a waiter supplies a check whether the frame
//! still holds its page (`wanted`), which is repeated whenever the latch changes hands.
//!
//! **Layout.** The word: bit 63 exclusive, bit 62 a thread is parked, bits 48 to 61 the number of sharers, bits 0 to 47
//! the version.

use super::{
    drop_mark::DropMark,
    machine::{
        self, SPINS,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
            fence,
        },
    },
};

const EXCLUSIVE: u64 = 1 << 63;
const PARKED: u64 = 1 << 62;
const SHARE: u64 = 1 << 48;
const SHARERS: u64 = PARKED - SHARE;
const VERSION: u64 = SHARE - 1;
const _: () = assert!(EXCLUSIVE ^ PARKED ^ SHARERS ^ VERSION == u64::MAX, "two parts of the word overlap");

/// The latch. Zeroed memory is an open latch of version 0.
#[derive(Debug, Default)]
pub struct Latch {
    /// The bits above.
    word: AtomicU64,
    drop_mark: DropMark,
}

/// The version that an optimistic reader noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(u64);

impl Latch {
    /// Returns the version, if no thread holds the latch exclusively.
    #[inline]
    pub fn version(&self) -> Option<Version> {
        let word = self.word.load(Acquire);
        (word & EXCLUSIVE == 0).then_some(Version(word & VERSION))
    }

    /// Returns the version, after waiting for an exclusive holder to release; `None` when the frame is not `wanted` any
    /// more.
    #[inline]
    pub fn version_while(&self, wanted: impl Fn() -> bool) -> Option<Version> {
        loop {
            if let Some(version) = self.version() {
                return Some(version);
            }
            if !self.wait(EXCLUSIVE, &wanted) {
                return None;
            }
        }
    }

    /// Returns whether nothing has changed since the version was noted.
    #[inline]
    pub fn is(&self, version: Version) -> bool {
        // The reader's loads come before this load: if they saw a later change, this load sees that the latch was
        // taken.
        fence(Acquire);
        self.word.load(Relaxed) & (EXCLUSIVE | VERSION) == version.0
    }

    fn take(&self, word: u64) -> bool {
        debug_assert!(word & EXCLUSIVE == 0, "a latch is taken that a thread holds exclusively");
        let taken = self.word.compare_exchange_weak(word, word | EXCLUSIVE, Acquire, Relaxed).is_ok();
        if taken {
            // A thread that sees one of our changes sees that the latch was taken.
            fence(Release);
            self.drop_mark.taken();
        }
        taken
    }

    /// Takes the latch exclusively if no thread holds it.
    pub fn try_exclusive(&self) -> bool {
        loop {
            let word = self.word.load(Relaxed);
            if word & (EXCLUSIVE | SHARERS) != 0 {
                return false;
            }
            if self.take(word) {
                return true;
            }
        }
    }

    /// Takes the latch exclusively if nothing has changed since the version was noted and no thread holds it.
    #[inline]
    pub fn try_exclusive_at(&self, version: Version) -> bool {
        loop {
            let word = self.word.load(Relaxed);
            if word & (EXCLUSIVE | SHARERS) != 0 || word & VERSION != version.0 {
                return false;
            }
            if self.take(word) {
                return true;
            }
        }
    }

    /// Waits for the latch and takes it exclusively.
    pub fn exclusive(&self) {
        let taken = self.exclusive_while(|| true);
        debug_assert!(taken, "an unconditional wait ended without the latch");
    }

    /// Waits for the latch and takes it exclusively, unless the frame is not `wanted` any more. Returns whether it was
    /// taken.
    #[must_use]
    pub fn exclusive_while(&self, wanted: impl Fn() -> bool) -> bool {
        while !self.try_exclusive() {
            if !self.wait(EXCLUSIVE | SHARERS, &wanted) {
                return false;
            }
        }
        true
    }

    /// Releases the exclusive latch after a change: the version grows.
    pub fn release_changed(&self) {
        self.drop_mark.given();
        let word = self.word.fetch_add(1u64.wrapping_sub(EXCLUSIVE), Release);
        debug_assert!(word & EXCLUSIVE != 0, "released a latch that was not held");
        debug_assert!(word & SHARERS == 0, "a latch was shared while a thread held it exclusively");
        if word & PARKED != 0 {
            self.wake();
        }
        if word & VERSION == VERSION {
            self.carry();
        }
    }

    /// Removes the carry of the version into the sharers: the version has wrapped around, once in 2^48 changes of a
    /// frame.
    #[cold]
    fn carry(&self) {
        let word = self.word.fetch_sub(SHARE, Release);
        debug_assert!(word & SHARERS != 0, "the carry of a version was removed before");
        if word & PARKED != 0 && word & SHARERS == SHARE {
            self.wake();
        }
    }

    /// Releases the exclusive latch when nothing was changed: optimistic reads in progress stay valid.
    pub fn release_unchanged(&self) {
        self.drop_mark.given();
        let word = self.word.fetch_and(!EXCLUSIVE, Release);
        debug_assert!(word & EXCLUSIVE != 0, "released a latch that was not held");
        debug_assert!(word & SHARERS == 0, "a latch was shared while a thread held it exclusively");
        if word & PARKED != 0 {
            self.wake();
        }
    }

    /// Takes the latch shared if no thread holds it exclusively.
    pub fn try_share(&self) -> bool {
        loop {
            let word = self.word.load(Relaxed);
            if word & EXCLUSIVE != 0 {
                return false;
            }
            debug_assert!(word & SHARERS != SHARERS, "too many sharers");
            if self.word.compare_exchange_weak(word, word + SHARE, Acquire, Relaxed).is_ok() {
                self.drop_mark.shared();
                return true;
            }
        }
    }

    /// Waits for the latch and takes it shared, unless the frame is not `wanted` any more. Returns whether it was
    /// taken.
    #[must_use]
    pub fn share_while(&self, wanted: impl Fn() -> bool) -> bool {
        while !self.try_share() {
            if !self.wait(EXCLUSIVE, &wanted) {
                return false;
            }
        }
        true
    }

    /// Releases a shared latch.
    pub fn unshare(&self) {
        self.drop_mark.unshared();
        let word = self.word.fetch_sub(SHARE, Release);
        debug_assert!(word & SHARERS != 0, "released a latch that was not shared");
        debug_assert!(word & EXCLUSIVE == 0, "a latch was held exclusively while a thread shared it");
        if word & PARKED != 0 && word & SHARERS == SHARE {
            self.wake();
        }
    }

    /// Waits until none of the bits is set, or for a shorter time. Returns `false` if it finds the frame not `wanted`
    /// any more; otherwise the caller must check the latch again.
    fn wait(&self, bits: u64, wanted: &impl Fn() -> bool) -> bool {
        for _ in 0..SPINS {
            if self.word.load(Relaxed) & bits == 0 {
                return true;
            }
            machine::spin_loop();
        }
        if !wanted() {
            return false;
        }
        self.drop_mark.waited();
        let word = self.word.load(Relaxed);
        if word & bits == 0 || self.word.compare_exchange(word, word | PARKED, Relaxed, Relaxed).is_err() {
            return true;
        }
        // The parked bit that is seen here may be another waiter's by now. No wakeup is lost in either case. If a
        // thread has removed our page from the frame and released the latch before the bit was set, `wanted` reads its
        // change and returns false. If it does so later, it finds the bit set and wakes this thread.
        let validate = || {
            let word = self.word.load(Acquire);
            word & bits != 0 && word & PARKED != 0 && wanted()
        };
        machine::park(self.key(), validate);
        true
    }

    fn wake(&self) {
        self.word.fetch_and(!PARKED, Relaxed);
        machine::unpark_all(self.key());
    }

    fn key(&self) -> usize {
        core::ptr::from_ref(self) as usize
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    #[test]
    fn readers_never_see_half_a_change() {
        let shared = Arc::new((Latch::default(), AtomicU64::new(0), AtomicU64::new(0)));
        let rounds = 20_000;
        let writers: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || {
                    for _ in 0..rounds {
                        shared.0.exclusive();
                        let n = shared.1.load(Relaxed) + 1;
                        shared.1.store(n, Relaxed);
                        shared.2.store(n, Relaxed);
                        shared.0.release_changed();
                    }
                })
            })
            .collect();
        let readers: Vec<_> = (0..2)
            .map(|latched| {
                let shared = shared.clone();
                thread::spawn(move || {
                    loop {
                        let (a, b) = if latched == 1 {
                            assert!(shared.0.share_while(|| true));
                            let pair = (shared.1.load(Relaxed), shared.2.load(Relaxed));
                            shared.0.unshare();
                            pair
                        } else {
                            let version = shared.0.version_while(|| true).unwrap();
                            let pair = (shared.1.load(Relaxed), shared.2.load(Relaxed));
                            if !shared.0.is(version) {
                                continue;
                            }
                            pair
                        };
                        assert_eq!(a, b);
                        if a == 2 * rounds {
                            return;
                        }
                    }
                })
            })
            .collect();
        for thread in writers.into_iter().chain(readers) {
            thread.join().unwrap();
        }
        assert_eq!(shared.1.load(Relaxed), 2 * rounds);
    }

    #[test]
    #[cfg(feature = "drop-waits")]
    fn a_wait_for_a_page_that_a_drop_reads_is_counted() {
        use super::super::{drop_mark::waits_on_drops, work};
        let (latch, before) = (Latch::default(), waits_on_drops());
        thread::scope(|scope| {
            work::in_drop(|| {
                assert!(latch.share_while(|| true));
                scope.spawn(|| {
                    latch.exclusive();
                    latch.release_unchanged();
                });
                let start = std::time::Instant::now();
                while waits_on_drops() == before {
                    assert!(start.elapsed() < core::time::Duration::from_mins(10), "no wait was counted");
                    thread::yield_now();
                }
                latch.unshare();
            });
        });
    }

    #[test]
    fn a_version_that_overflows_leaves_no_shared_latch() {
        let latch = Latch { word: AtomicU64::new(VERSION), drop_mark: DropMark::default() };
        let last = latch.version().unwrap();
        assert!(latch.try_exclusive());
        latch.release_changed();
        assert!(!latch.is(last));
        assert!(latch.try_exclusive(), "it is shared for ever");
        latch.release_unchanged();
    }

    #[test]
    fn an_unchanged_release_keeps_the_version() {
        let latch = Latch::default();
        let version = latch.version().unwrap();
        assert!(latch.try_exclusive());
        assert!(!latch.is(version) && !latch.try_share() && latch.version().is_none());
        latch.release_unchanged();
        assert!(latch.is(version) && latch.try_exclusive_at(version));
        latch.release_changed();
        assert!(!latch.is(version) && !latch.try_exclusive_at(version));
        assert!(latch.try_share());
        assert!(!latch.try_exclusive() && latch.try_share());
        latch.unshare();
        latch.unshare();
        assert!(latch.try_exclusive());
    }
}
