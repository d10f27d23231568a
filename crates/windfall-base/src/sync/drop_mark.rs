//! Marks of locks, latches and gates that a thread holds from inside a drop.
//!
//! **Purpose.** With the feature `drop-waits` a thread that waits can find out whether a drop is the reason, and such
//! waits are counted: `make bench` and `make demo` show that there are none. Without the feature a mark has no
//! size, and its functions do nothing.
//!
//! **Invariants.** The mark of a lock or latch is set while it is held from inside a drop, and only then (test:
//! `a_guard_that_outlives_its_drop_clears_its_mark`). That of a gate says how it was closed last, and is read while it
//! is closed (test: `a_wait_for_a_drop_is_distinguished_from_one_for_another_statement`).

use core::marker::PhantomData;

#[cfg(feature = "drop-waits")]
use super::machine::atomic::{AtomicU64, Ordering::Relaxed};
use super::work::{self, Work};
use number::Number;

/// The number of waits of threads outside a drop for locks that a dropping thread held.
#[cfg(feature = "drop-waits")]
static WAITS_ON_DROPS: AtomicU64 = AtomicU64::new(0);

/// The number of threads that hold a lock or latch from inside a drop. Each lock and latch has one.
#[derive(Debug, Default)]
pub struct DropMark(Number);

#[cfg(feature = "drop-waits")]
mod number {
    use super::super::machine::atomic::{AtomicU32, Ordering::Relaxed};

    /// A number of threads.
    #[derive(Debug, Default)]
    pub(super) struct Number(AtomicU32);

    impl Number {
        pub(super) const fn new() -> Self {
            Self(AtomicU32::new(0))
        }

        #[inline]
        pub(super) fn store(&self, number: u32) {
            self.0.store(number, Relaxed);
        }

        #[inline]
        pub(super) fn add(&self, number: u32) {
            self.0.fetch_add(number, Relaxed);
        }

        #[inline]
        pub(super) fn is_zero(&self) -> bool {
            self.0.load(Relaxed) == 0
        }
    }
}

#[cfg(not(feature = "drop-waits"))]
mod number {
    /// No number: it takes no room and is always zero.
    #[derive(Debug, Default)]
    pub(super) struct Number;

    #[expect(clippy::unused_self, reason = "there is no number")]
    impl Number {
        pub(super) const fn new() -> Self {
            Self
        }

        #[inline]
        pub(super) fn store(&self, _: u32) {}

        #[inline]
        pub(super) fn add(&self, _: u32) {}

        #[inline]
        pub(super) fn is_zero(&self) -> bool {
            true
        }
    }
}

/// Marks a lock as held from inside a drop, as long as it is held.
#[derive(Debug)]
pub(super) struct Marked<'a> {
    #[cfg(feature = "drop-waits")]
    mark: Option<&'a DropMark>,
    _lock: PhantomData<&'a DropMark>,
}

/// Marks a lock as shared from inside a drop, as long as it is shared.
#[derive(Debug)]
pub(super) struct MarkedShared<'a> {
    #[cfg(feature = "drop-waits")]
    mark: Option<&'a DropMark>,
    _lock: PhantomData<&'a DropMark>,
}

impl DropMark {
    /// Returns a mark that is held by no dropping thread.
    pub const fn new() -> Self {
        Self(Number::new())
    }

    /// Returns whether this thread marks the locks that it holds.
    #[inline]
    fn is_marking() -> bool {
        cfg!(feature = "drop-waits") && work::is_dropping()
    }

    /// Returns whether a dropping thread holds the lock, or held it a moment ago.
    #[inline]
    pub(super) fn is_set(&self) -> bool {
        !self.0.is_zero()
    }

    /// Marks a lock that this thread has taken, if it is inside a drop. No other thread has the lock or writes the mark
    /// meanwhile.
    #[inline]
    pub(super) fn taken(&self) {
        if Self::is_marking() {
            self.0.store(1);
        }
    }

    /// As [`DropMark::taken`], when other threads may have taken the lock, too.
    #[inline]
    pub(super) fn shared(&self) {
        if Self::is_marking() {
            self.0.add(1);
        }
    }

    /// Undoes [`DropMark::taken`]: this thread is about to release the lock, in the same drop.
    #[inline]
    pub(super) fn given(&self) {
        if Self::is_marking() {
            self.0.store(0);
        }
    }

    /// Undoes [`DropMark::shared`]: this thread is about to release the lock, in the same drop.
    #[inline]
    pub(super) fn unshared(&self) {
        if Self::is_marking() {
            self.0.add(u32::MAX);
        }
    }

    /// Marks what this thread has closed, if it is inside a drop, or clears the mark of the last closer.
    #[inline]
    pub(super) fn set_by_this_thread(&self) {
        self.0.store(u32::from(Self::is_marking()));
    }

    /// As [`DropMark::taken`], until the guard is dropped, even if that is after the drop.
    #[inline]
    pub(super) fn mark(&self) -> Marked<'_> {
        self.taken();
        Marked {
            #[cfg(feature = "drop-waits")]
            mark: Self::is_marking().then_some(self),
            _lock: PhantomData,
        }
    }

    /// As [`DropMark::shared`], until the guard is dropped, even if that is after the drop.
    #[inline]
    pub(super) fn mark_shared(&self) -> MarkedShared<'_> {
        self.shared();
        MarkedShared {
            #[cfg(feature = "drop-waits")]
            mark: Self::is_marking().then_some(self),
            _lock: PhantomData,
        }
    }

    /// Counts a wait that this thread is about to begin.
    pub(super) fn waited(&self) {
        work::count(Work::Wait);
        if self.is_set() {
            waited_on_drop();
        }
    }
}

#[cfg(feature = "drop-waits")]
impl Drop for Marked<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(mark) = self.mark {
            mark.0.store(0);
        }
    }
}

#[cfg(feature = "drop-waits")]
impl Drop for MarkedShared<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(mark) = self.mark {
            mark.0.add(u32::MAX);
        }
    }
}

/// Counts that this thread waits, or has waited, for a lock that a dropping thread holds.
pub(super) fn waited_on_drop() {
    #[cfg(feature = "drop-waits")]
    if !work::is_dropping() {
        work::count(Work::WaitOnDrop);
        WAITS_ON_DROPS.fetch_add(1, Relaxed);
    }
}

/// Returns how often a thread outside any drop waited for something that a dropping thread held: a lock, a latch, or
/// the gate of a table that still exists, because it was truncated or has lost an index. Every statement that drops
/// trees counts as a drop here: a truncation, the drop of an index, and the replacement of long metadata, too; a rename
/// does not.
///
/// Not counted:
/// - waits at the gate of a table that is dropped. They delay no query on another table, and end with
///   [`TableDropped`](crate::Error::TableDropped);
/// - waits for the metadata lock that a drop holds on a name. Only a statement on the same name can wait;
/// - waits for the log. Every commit waits for it, and one sync serves all, a drop's among them; and the thread that
///   writes it out waits until every earlier group, which may be a drop's, is copied into its buffer.
#[cfg(feature = "drop-waits")]
pub fn waits_on_drops() -> u64 {
    WAITS_ON_DROPS.load(Relaxed)
}

#[cfg(all(test, feature = "drop-waits"))]
mod tests {
    use super::{
        super::work::{in_drop, so_far},
        *,
    };

    #[test]
    fn a_wait_for_a_dropping_thread_is_counted_for_the_waiting_thread() {
        let (mark, before) = (DropMark::new(), so_far());
        mark.waited();
        in_drop(|| mark.shared());
        in_drop(|| mark.waited());
        assert_eq!((so_far() - before).of(Work::WaitOnDrop), 0, "nothing was held, or by a drop itself");
        mark.waited();
        std::thread::spawn(|| assert_eq!(so_far().of(Work::WaitOnDrop), 0)).join().unwrap();
        assert_eq!((so_far() - before).of(Work::WaitOnDrop), 1);
    }

    #[test]
    fn a_guard_that_outlives_its_drop_clears_its_mark() {
        let mark = DropMark::new();
        let (guard, _) = in_drop(|| mark.mark());
        assert!(mark.is_set());
        drop(guard);
        let (guards, _) = in_drop(|| [mark.mark_shared(), mark.mark_shared()]);
        let [one, two] = guards;
        drop(one);
        assert!(mark.is_set());
        drop(two);
        assert!(!mark.is_set());
        drop(mark.mark());
    }
}
