//! Mutexes and read-write locks with a rank.
//!
//! **Purpose.** Two locks taken in both orders by two threads are a deadlock waiting for its night. Every lock has a
//! rank; a thread takes locks in rising rank only.
//!
//! **Invariants.** [`Rank`] is the whole order, as ARCHITECTURE.md tells it. In debug builds each thread remembers the
//! ranks that it holds, and an acquisition out of order panics with both names.
//!
//! **May touch.** `work`, to count acquisitions.

use core::ops::{Deref, DerefMut};

use super::{
    Note, What, machine,
    work::{self, DropMark, Work},
};

/// The order in which locks may be taken: a later one while an earlier one is held, never the other way round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Rank {
    /// A call of a transaction.
    Scope,
    /// A session's temporary tables.
    Session,
    /// Tables that get other names, against listings of names.
    Moves,
    /// The names of open tables.
    Names,
    /// A row's lock.
    Row,
    /// Whether transactions are being taken back.
    RollBack,
    /// The purge of an undo stream.
    Purge,
    /// A checkpoint in progress.
    Checkpoint,
    /// A page cleaner's round.
    Cleaner,
    /// An undo stream.
    Undo,
    /// A change of the system tree.
    System,
    /// The table of active transactions.
    Transactions,
    /// The making of a tablespace's file.
    File,
    /// A latch on a page. Pages have an order of their own: parent before child, left before right, the
    /// tree before the undo page, the allocation map last.
    Page,
    /// The reclaimer's queue, the floor's heap.
    Pool,
    /// A tablespace's dirty set.
    Dirty,
    /// The tablespaces by id.
    Spaces,
    /// The leader of the log's syncs.
    LogSync,
    /// The log writer.
    LogWrite,
    /// The log's segment list.
    LogFiles,
    /// Changes of the disk, against its release.
    Disk,
    /// The disk's handle cache.
    Handles,
    /// A leaf lock: nothing is taken while it is held.
    Leaf,
}

#[cfg(debug_assertions)]
mod order {
    use std::cell::RefCell;

    use super::{super::machine::thread_local, Rank};

    thread_local! {
        static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
    }

    pub fn take(rank: Rank, try_only: bool) {
        // While a panic unwinds, the first message is the one to keep.
        if std::thread::panicking() {
            return;
        }
        HELD.with_borrow_mut(|held| {
            if let Some(top) = held.iter().max().filter(|_| !try_only) {
                // Page latches nest among themselves in an order of their own.
                assert!(
                    *top < rank || (*top == Rank::Page && rank == Rank::Page),
                    "lock order: {rank:?} taken while {top:?} is held"
                );
            }
            held.push(rank);
        });
    }

    pub fn swap(other: Vec<Rank>) -> Vec<Rank> {
        HELD.replace(other)
    }

    pub fn give(rank: Rank) {
        HELD.with_borrow_mut(|held| {
            if let Some(at) = held.iter().rposition(|r| *r == rank) {
                held.remove(at);
            }
        });
    }
}

/// A note that this thread holds a lock of this rank, for locks that are not built here (page latches).
/// It stays with the thread that made it.
#[derive(Debug)]
pub struct Held {
    #[cfg_attr(
        not(debug_assertions),
        expect(dead_code, reason = "the order is asserted in debug builds only")
    )]
    rank: Rank,
    _note: Note,
}

impl Held {
    /// Notes a blocking acquisition and asserts its place in the order.
    #[inline]
    pub fn take(rank: Rank) -> Self {
        #[cfg(debug_assertions)]
        order::take(rank, false);
        Self { rank, _note: Note::new(What::Lock(rank)) }
    }

    /// Notes an acquisition that did not wait, which cannot deadlock.
    #[inline]
    pub fn tried(rank: Rank) -> Self {
        #[cfg(debug_assertions)]
        order::take(rank, true);
        Self { rank, _note: Note::new(What::Lock(rank)) }
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        order::give(self.rank);
    }
}

/// Runs something as if on a thread of its own, as far as the order of locks goes: a simulation has one thread.
pub fn as_another_thread<T>(run: impl FnOnce() -> T) -> T {
    #[cfg(debug_assertions)]
    let mine = order::swap(Vec::new());
    let result = run();
    #[cfg(debug_assertions)]
    order::swap(mine);
    result
}

/// That a lock is held from inside a drop, as long as it is.
#[derive(Debug)]
struct Marked<'a>(Option<&'a DropMark>);

impl<'a> Marked<'a> {
    fn new(mark: &'a DropMark) -> Self {
        Self(mark.taken().then_some(mark))
    }
}

impl Drop for Marked<'_> {
    fn drop(&mut self) {
        if let Some(mark) = self.0 {
            mark.given();
        }
    }
}

/// That a lock is shared from inside a drop, as long as it is.
#[derive(Debug)]
struct Shared<'a>(Option<&'a DropMark>);

impl<'a> Shared<'a> {
    fn new(mark: &'a DropMark) -> Self {
        Self(mark.shared().then_some(mark))
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        if let Some(mark) = self.0 {
            mark.unshared();
        }
    }
}

/// A mutex with a rank. A panic while it is held does not poison it: the engine's own poison is stickier.
#[derive(Debug)]
pub struct Mutex<T> {
    rank: Rank,
    mark: DropMark,
    inner: machine::Mutex<T>,
}

/// What [`Mutex::lock`] gives.
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    /// Given back before the mutex is.
    _marked: Marked<'a>,
    inner: machine::MutexGuard<'a, T>,
    _held: Held,
}

impl<T> Mutex<T> {
    /// A mutex of this rank.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self { rank, mark: DropMark::new(), inner: machine::const_mutex(value) }
    }

    /// Waits for the mutex.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let held = Held::take(self.rank);
        work::count(Work::Lock);
        let inner = self.inner.try_lock().unwrap_or_else(|| {
            self.mark.waited();
            self.inner.lock()
        });
        MutexGuard { _marked: Marked::new(&self.mark), inner, _held: held }
    }

    /// Waits for the mutex, whatever the thread holds. The caller says why those who hold the mutex now wait for
    /// nothing that this thread holds.
    pub fn lock_out_of_order(&self) -> MutexGuard<'_, T> {
        let inner = self.inner.try_lock().unwrap_or_else(|| {
            self.mark.waited();
            self.inner.lock()
        });
        work::count(Work::Lock);
        MutexGuard { _marked: Marked::new(&self.mark), inner, _held: Held::tried(self.rank) }
    }

    /// Takes the mutex if nobody holds it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let inner = self.inner.try_lock()?;
        work::count(Work::Lock);
        Some(MutexGuard { _marked: Marked::new(&self.mark), inner, _held: Held::tried(self.rank) })
    }

    /// Whether somebody holds the mutex, or did a moment ago.
    pub fn is_locked(&self) -> bool {
        self.inner.is_locked()
    }

    /// The value, when nobody else can hold the mutex.
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

/// What [`RwLock::read`] gives.
#[derive(Debug)]
pub struct RwLockReadGuard<'a, T> {
    _shared: Shared<'a>,
    inner: machine::RwLockReadGuard<'a, T>,
    _held: Held,
}

/// What [`RwLock::write`] gives.
#[derive(Debug)]
pub struct RwLockWriteGuard<'a, T> {
    _marked: Marked<'a>,
    inner: machine::RwLockWriteGuard<'a, T>,
    _held: Held,
}

impl<T> RwLock<T> {
    /// A read-write lock of this rank.
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
        RwLockReadGuard { _shared: Shared::new(&self.mark), inner, _held: held }
    }

    /// Shared access, unless a thread has exclusive access or waits for it.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let inner = self.inner.try_read()?;
        work::count(Work::Lock);
        Some(RwLockReadGuard { _shared: Shared::new(&self.mark), inner, _held: Held::tried(self.rank) })
    }

    /// Waits for exclusive access.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let held = Held::take(self.rank);
        work::count(Work::Lock);
        let inner = self.inner.try_write().unwrap_or_else(|| {
            self.mark.waited();
            self.inner.write()
        });
        RwLockWriteGuard { _marked: Marked::new(&self.mark), inner, _held: held }
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
    use super::*;

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
    fn trying_out_of_order_is_allowed_because_it_cannot_wait() {
        let a = Mutex::new(Rank::Session, 1);
        let b = Mutex::new(Rank::Leaf, 2);
        let _b = b.lock();
        assert!(a.try_lock().is_some());
    }
}
