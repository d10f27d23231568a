//! Mutexes and read-write locks with a rank.
//!
//! **Purpose.** Two locks that two threads take in opposite orders deadlock sooner or later. Every lock has a rank, and
//! a thread takes locks only in rising rank.
//!
//! **Invariants.** [`Rank`] is the whole order, as documented in ARCHITECTURE.md (test:
//! `the_ranks_are_documented_in_their_order`). In debug builds each thread records the ranks that it holds, and an
//! acquisition out of order panics with both names (test: `falling_ranks_panic`).

use core::ops::{Deref, DerefMut};

use super::{
    HeldObject, HoldNote,
    drop_mark::{DropMark, Marked, MarkedShared},
    machine,
    work::{self, Work},
};

/// The order in which locks may be taken: a later one while an earlier one is held, never the reverse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Rank {
    /// A call of a transaction.
    Scope,
    /// The order of commits that other threads are to agree on.
    CommitOrder,
    /// A session's temporary tables.
    Session,
    /// Renames of tables, against listings of names.
    Renames,
    /// The names of open tables.
    Names,
    /// The wait for a row's key latch, for a transactional lock, or for undo space.
    Row,
    /// Rollback and purge outside of a table's gate, against a check that has quiesced the table.
    RollBack,
    /// The purge of an undo stream.
    Purge,
    /// A checkpoint in progress.
    Checkpoint,
    /// A page cleaner's batch.
    Cleaner,
    /// The right to append to an undo stream.
    Undo,
    /// A change of the system tree.
    System,
    /// The table of active transactions.
    Transactions,
    /// The creation of a tablespace's file.
    File,
    /// A latch on a page. Pages have an order of their own: parent before child, left before right, the tree before the
    /// undo page, the allocation map last.
    Page,
    /// A slot of a thread that appends to the log, until the pages of the group are registered dirty.
    Append,
    /// The reclaimer's queue, the heap of dirty tablespaces.
    Pool,
    /// A tablespace's dirty set.
    Dirty,
    /// The directory of tablespaces by id.
    Spaces,
    /// The leader of the log's syncs.
    LogSync,
    /// The log writer.
    LogWrite,
    /// The log's segment list.
    LogFiles,
    /// Changes on the disk, against its release.
    Disk,
    /// The disk's cache of handles.
    Handles,
    /// The start of a background worker in an open database.
    Workers,
    /// The transactions that wait for locks.
    LockWaits,
    /// A shard of the lock table.
    LockShard,
    /// A leaf lock: no other lock is taken while it is held.
    Leaf,
}

#[cfg(debug_assertions)]
impl Rank {
    /// All ranks, in their order.
    pub(super) const ALL: [Self; 28] = [
        Self::Scope,
        Self::CommitOrder,
        Self::Session,
        Self::Renames,
        Self::Names,
        Self::Row,
        Self::RollBack,
        Self::Purge,
        Self::Checkpoint,
        Self::Cleaner,
        Self::Undo,
        Self::System,
        Self::Transactions,
        Self::File,
        Self::Page,
        Self::Append,
        Self::Pool,
        Self::Dirty,
        Self::Spaces,
        Self::LogSync,
        Self::LogWrite,
        Self::LogFiles,
        Self::Disk,
        Self::Handles,
        Self::Workers,
        Self::LockWaits,
        Self::LockShard,
        Self::Leaf,
    ];
}

#[cfg(debug_assertions)]
mod order {
    use std::cell::RefCell;

    use super::{super::machine::thread_local, Rank};

    /// The locks that a thread holds: how many of each rank. A bit of the mask is set for each rank that is held.
    struct HeldRanks {
        mask: u32,
        counts: [u32; Rank::ALL.len()],
    }

    const _: () = {
        assert!(Rank::ALL.len() <= u32::BITS as usize, "the mask has a bit for each rank");
        assert!(Rank::ALL.len() == Rank::Leaf as usize + 1, "all ranks are listed, up to the last");
        let mut n = 0;
        while n < Rank::ALL.len() {
            assert!(Rank::ALL[n] as usize == n, "the ranks are listed in their order");
            n += 1;
        }
    };

    impl HeldRanks {
        const NONE: Self = Self { mask: 0, counts: [0; Rank::ALL.len()] };

        fn top(&self) -> Option<Rank> {
            self.mask.checked_ilog2().map(|top| Rank::ALL[top as usize])
        }
    }

    thread_local! {
        static HELD: RefCell<HeldRanks> = const { RefCell::new(HeldRanks::NONE) };
    }

    pub(super) fn take(rank: Rank, try_only: bool) {
        HELD.with_borrow_mut(|held| {
            if let Some(top) = held.top()
                && !try_only
            {
                // Page latches nest among themselves in an order of their own. While a panic unwinds, its own message
                // must not be replaced by another one.
                assert!(
                    top < rank || (top == Rank::Page && rank == Rank::Page) || std::thread::panicking(),
                    "lock order: {rank:?} taken while {top:?} is held"
                );
            }
            held.mask |= 1 << rank as u32;
            held.counts[rank as usize] += 1;
        });
    }

    /// The ranks that this thread held, put aside until the drop: a panic may end what runs meanwhile.
    pub(super) struct SuspendedRanks(HeldRanks);

    impl SuspendedRanks {
        pub(super) fn new() -> Self {
            Self(HELD.replace(HeldRanks::NONE))
        }
    }

    impl Drop for SuspendedRanks {
        fn drop(&mut self) {
            HELD.replace(core::mem::replace(&mut self.0, HeldRanks::NONE));
        }
    }

    pub(super) fn release(rank: Rank) {
        HELD.with_borrow_mut(|held| {
            let count = &mut held.counts[rank as usize];
            debug_assert!(
                *count > 0 || std::thread::panicking(),
                "a thread releases a lock of rank {rank:?} that it does not hold"
            );
            *count = count.saturating_sub(1);
            if *count == 0 {
                held.mask &= !(1 << rank as u32);
            }
        });
    }
}

/// Records that this thread holds a lock of this rank, for locks that are not implemented here (page latches). It stays
/// with the thread that made it.
#[derive(Debug)]
pub struct Held {
    #[cfg_attr(
        not(debug_assertions),
        expect(dead_code, reason = "the order is asserted in debug builds only")
    )]
    rank: Rank,
    _note: HoldNote,
}

impl Held {
    /// Records a blocking acquisition and asserts its place in the order.
    #[inline]
    pub fn take(rank: Rank) -> Self {
        #[cfg(debug_assertions)]
        order::take(rank, false);
        Self { rank, _note: HoldNote::new(HeldObject::Lock(rank)) }
    }

    /// Records an acquisition that did not wait, which cannot deadlock.
    #[inline]
    pub fn tried(rank: Rank) -> Self {
        #[cfg(debug_assertions)]
        order::take(rank, true);
        Self { rank, _note: HoldNote::new(HeldObject::Lock(rank)) }
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        order::release(self.rank);
    }
}

/// Runs a closure as if on another thread, as far as the lock order is concerned: a simulation has only one thread.
pub fn as_another_thread<T>(run: impl FnOnce() -> T) -> T {
    #[cfg(debug_assertions)]
    let _mine = order::SuspendedRanks::new();
    run()
}

/// A mutex with a rank. A panic while it is held does not poison it: the engine has its own poisoning (`health`), which
/// is permanent.
#[derive(Debug)]
pub struct Mutex<T> {
    rank: Rank,
    mark: DropMark,
    inner: machine::Mutex<T>,
}

/// The guard of [`Mutex::lock`].
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    /// Dropped before the mutex is released.
    _marked: Marked<'a>,
    inner: machine::MutexGuard<'a, T>,
    _held: Held,
}

impl<T> Mutex<T> {
    /// Returns a mutex of this rank.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self { rank, mark: DropMark::new(), inner: machine::const_mutex(value) }
    }

    /// Waits for the mutex and takes it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let held = Held::take(self.rank);
        work::count(Work::Lock);
        let inner = self.inner.try_lock().unwrap_or_else(|| {
            self.mark.waited();
            self.inner.lock()
        });
        MutexGuard { _marked: self.mark.mark(), inner, _held: held }
    }

    /// Waits for the mutex and takes it, whatever the thread holds. The caller documents why the threads that hold the
    /// mutex then wait for nothing that this thread holds.
    pub fn lock_out_of_order(&self) -> MutexGuard<'_, T> {
        let inner = self.inner.try_lock().unwrap_or_else(|| {
            self.mark.waited();
            self.inner.lock()
        });
        work::count(Work::Lock);
        MutexGuard { _marked: self.mark.mark(), inner, _held: Held::tried(self.rank) }
    }

    /// Takes the mutex if no thread holds it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let inner = self.inner.try_lock()?;
        work::count(Work::Lock);
        Some(MutexGuard { _marked: self.mark.mark(), inner, _held: Held::tried(self.rank) })
    }

    /// Returns whether a thread holds the mutex, or held it a moment ago.
    pub fn is_locked(&self) -> bool {
        self.inner.is_locked()
    }

    /// Returns the value; no other thread can hold the mutex.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// A read-write lock with a rank.
#[derive(Debug)]
pub struct RwLock<T> {
    rank: Rank,
    mark: DropMark,
    inner: machine::RwLock<T>,
}

/// The guard of [`RwLock::read`].
#[derive(Debug)]
pub struct RwLockReadGuard<'a, T> {
    _shared: MarkedShared<'a>,
    inner: machine::RwLockReadGuard<'a, T>,
    _held: Held,
}

/// The guard of [`RwLock::write`].
#[derive(Debug)]
pub struct RwLockWriteGuard<'a, T> {
    _marked: Marked<'a>,
    inner: machine::RwLockWriteGuard<'a, T>,
    _held: Held,
}

impl<T> RwLock<T> {
    /// Returns a read-write lock of this rank.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self { rank, mark: DropMark::new(), inner: machine::const_rwlock(value) }
    }

    /// Waits for shared access.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let held = Held::take(self.rank);
        work::count(Work::Lock);
        let inner = self.inner.try_read().unwrap_or_else(|| {
            self.mark.waited();
            self.inner.read()
        });
        RwLockReadGuard { _shared: self.mark.mark_shared(), inner, _held: held }
    }

    /// Takes shared access, unless a thread has exclusive access or waits for it.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let inner = self.inner.try_read()?;
        work::count(Work::Lock);
        Some(RwLockReadGuard { _shared: self.mark.mark_shared(), inner, _held: Held::tried(self.rank) })
    }

    /// Waits for exclusive access.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let held = Held::take(self.rank);
        work::count(Work::Lock);
        let inner = self.inner.try_write().unwrap_or_else(|| {
            self.mark.waited();
            self.inner.write()
        });
        RwLockWriteGuard { _marked: self.mark.mark(), inner, _held: held }
    }
}

impl<T> Deref for RwLockReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

#[cfg(test)]
mod tests {
    #[cfg(debug_assertions)]
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    #[cfg(debug_assertions)]
    fn the_ranks_are_documented_in_their_order() {
        let document = include_str!("../../../../ARCHITECTURE.md");
        let (_, table) = document.split_once("| rank | what it ranks |\n| --- | --- |\n").unwrap();
        let rows = table.lines().map_while(|line| line.strip_prefix("| `"));
        let ranks: Vec<_> = rows.map(|row| row.split_once('`').unwrap().0).collect();
        assert_eq!(ranks, Rank::ALL.map(|rank| format!("{rank:?}")));
    }

    #[test]
    fn rising_ranks_are_fine() {
        let a = Mutex::new(Rank::Session, 1);
        let b = RwLock::new(Rank::Leaf, 2);
        let a = a.lock();
        let b = b.read();
        assert_eq!(*a + *b, 3);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "Session taken while Leaf is held")]
    fn falling_ranks_panic() {
        let a = Mutex::new(Rank::Session, 1);
        let b = Mutex::new(Rank::Leaf, 2);
        let _b = b.lock();
        let _a = a.lock();
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_panic_as_another_thread_leaves_this_one_its_ranks() {
        let a = Mutex::new(Rank::Session, 1);
        let b = Mutex::new(Rank::Leaf, 2);
        let panics = |run: &dyn Fn()| catch_unwind(AssertUnwindSafe(run)).is_err();
        let held = b.lock();
        assert!(panics(&|| as_another_thread(|| panic!("on purpose"))));
        assert!(panics(&|| drop(a.lock())), "Session was taken while Leaf is held");
        drop(held);
        drop(a.lock());
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_lock_that_is_taken_while_a_panic_unwinds_leaves_the_other_ranks() {
        struct LockOnDrop<'a>(&'a Mutex<i32>);
        impl Drop for LockOnDrop<'_> {
            fn drop(&mut self) {
                drop(self.0.lock());
            }
        }
        let [lower, held, other] = [Rank::Session, Rank::Leaf, Rank::Leaf].map(|rank| Mutex::new(rank, 1));
        let panics = |run: &dyn Fn()| catch_unwind(AssertUnwindSafe(run)).is_err();
        let guard = held.lock();
        assert!(panics(&|| {
            let _locks = LockOnDrop(&other);
            panic!("on purpose");
        }));
        assert!(panics(&|| drop(lower.lock())), "Session was taken while Leaf is held");
        drop(guard);
        drop(lower.lock());
    }

    #[test]
    fn trying_out_of_order_is_allowed_because_it_cannot_wait() {
        let a = Mutex::new(Rank::Session, 1);
        let b = Mutex::new(Rank::Leaf, 2);
        let _b = b.lock();
        assert!(a.try_lock().is_some());
    }
}
