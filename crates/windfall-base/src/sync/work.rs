//! Counted work: what a thread has done, by kind.
//!
//! **Purpose.** A drop's cost is counted, not timed: frames touched, latches and locks taken, list entries walked,
//! system calls made, memory allocated and freed. The counters are updated where the work is done (frame access, latch,
//! lock, `Disk`, allocator), never in the code that is measured.
//!
//! **Invariants.** Counters belong to a thread and only grow. A measurement is a difference of two [`Counts`]. Work on
//! the catalog's pages is counted separately from work on other pages, by the page's tablespace.

use core::cell::Cell;

use super::machine::{
    atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    thread_local,
};

/// The kinds of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Work {
    /// A frame of the catalog was accessed.
    CatalogFrame,
    /// Any other frame was accessed.
    Frame,
    /// A latch on a page of the catalog was taken.
    CatalogLatch,
    /// A latch on any other page was taken.
    Latch,
    /// An entry of a list, set or page table outside the catalog was walked.
    ListEntry,
    /// A mutex or read-write lock was taken.
    Lock,
    /// The log was written.
    LogWrite,
    /// The log was synced.
    LogSync,
    /// A data file was read; counts calls.
    Read,
    /// A data file was written; counts calls.
    Write,
    /// A file other than the log, or a directory, was synced.
    Sync,
    /// Any other file-system call: create, open, truncate, rename, remove.
    FileCall,
    /// A live page was evicted to make room.
    Evicted,
    /// A frame was taken from a dropped tablespace.
    Reclaimed,
    /// A call that maps, unmaps or advises memory.
    MapCall,
    /// The thread was about to sleep until another thread wakes it; counts calls.
    Wait,
    /// Sleeping threads were woken; counts calls.
    Wake,
    /// The thread, outside any drop, waited for something that a dropping thread held: its part of [`waits_on_drops`].
    WaitOnDrop,
    /// Memory was allocated; counts calls. This and the next three are counted by
    /// [`CountingAllocator`](super::CountingAllocator), if the program uses it.
    Allocation,
    /// The amount of memory allocated, in bytes.
    AllocatedBytes,
    /// Memory was freed; counts calls.
    Free,
    /// The amount of memory freed, in bytes.
    FreedBytes,
}

/// The number of kinds.
const KINDS: usize = Work::FreedBytes as usize + 1;

/// Counts by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts([u64; KINDS]);

impl Counts {
    /// Returns the count of one kind.
    pub fn of(&self, kind: Work) -> u64 {
        self.0[kind as usize]
    }
}

impl core::ops::Sub for Counts {
    type Output = Self;
    #[inline]
    fn sub(self, earlier: Self) -> Self {
        Self(core::array::from_fn(|n| self.0[n] - earlier.0[n]))
    }
}

thread_local! {
    static COUNTS: [Cell<u64>; KINDS] = const { [const { Cell::new(0) }; KINDS] };
    static SCOPE: Cell<bool> = const { Cell::new(false) };
    static BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

/// How often threads outside a drop waited for what a dropping thread held.
static WAITS_ON_DROPS: AtomicU64 = AtomicU64::new(0);

/// The number of threads that hold a lock or latch from inside a drop. Each lock and latch has one, so that a waiting
/// thread can find out whether a drop is the reason.
#[derive(Debug, Default)]
pub struct DropMark(AtomicU32);

impl DropMark {
    /// Returns a mark that is held by no dropping thread.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Records that this thread has taken the lock of this mark. No other thread has the lock or writes the mark
    /// meanwhile. Returns whether this was recorded, and must be undone.
    #[inline]
    pub fn taken(&self) -> bool {
        let dropping = SCOPE.get();
        if dropping {
            self.0.store(1, Relaxed);
        }
        dropping
    }

    /// As [`DropMark::taken`], when other threads may have taken the lock, too.
    #[inline]
    pub fn shared(&self) -> bool {
        let dropping = SCOPE.get();
        if dropping {
            self.0.fetch_add(1, Relaxed);
        }
        dropping
    }

    /// Undoes [`DropMark::taken`]: this thread is about to release the lock.
    #[inline]
    pub fn given(&self) {
        self.0.store(0, Relaxed);
    }

    /// Undoes [`DropMark::shared`]: this thread is about to release the lock.
    #[inline]
    pub fn unshared(&self) {
        self.0.fetch_sub(1, Relaxed);
    }

    /// As [`DropMark::given`], when a lock that is taken in a drop is released in the same drop.
    #[inline]
    pub fn given_in_drop(&self) {
        if SCOPE.get() {
            self.given();
        }
    }

    /// As [`DropMark::unshared`], when a lock that is shared in a drop is released in the same drop.
    #[inline]
    pub fn unshared_in_drop(&self) {
        if SCOPE.get() {
            self.unshared();
        }
    }

    /// Counts a wait that this thread is about to begin.
    pub fn waited(&self) {
        count(Work::Wait);
        if self.0.load(Relaxed) > 0 {
            waited_on_drop();
        }
    }
}

/// Counts one piece of work of this thread.
#[inline]
pub fn count(kind: Work) {
    add(kind, 1);
}

/// Counts several pieces of work.
#[inline]
pub fn add(kind: Work, n: u64) {
    COUNTS.with(|counts| {
        let cell = &counts[kind as usize];
        cell.set(cell.get() + n);
    });
}

/// Runs a step of a background worker, so that its work is not counted as foreground work.
pub fn in_background<T>(run: impl FnOnce() -> T) -> T {
    struct Step(bool);
    impl Drop for Step {
        fn drop(&mut self) {
            BACKGROUND.set(self.0);
        }
    }
    let _step = Step(BACKGROUND.replace(true));
    run()
}

/// Returns whether this thread runs a step of a background worker.
pub fn is_background() -> bool {
    BACKGROUND.get()
}

/// Returns whether this thread is inside a drop.
pub fn is_dropping() -> bool {
    SCOPE.get()
}

/// Counts that this thread waits, or has waited, for what a dropping thread holds.
pub fn waited_on_drop() {
    if !is_dropping() {
        count(Work::WaitOnDrop);
        WAITS_ON_DROPS.fetch_add(1, Relaxed);
    }
}

/// Returns how often a thread outside any drop waited for something that a dropping thread held: a lock, a latch, or
/// the gate of a table that survives, being truncated or having lost an index. A truncation, and the drop of an index,
/// count as drops here.
///
/// Not counted:
/// - waits at the gate of a table that is dropped. They delay no query on another table, and end with
///   [`TableDropped`](crate::Error::TableDropped);
/// - waits for the metadata lock that a drop holds on a name. Only a statement that asks for this very name can wait;
/// - waits for the log. Every commit waits for it, and one sync serves all, a drop's among them; and the thread that
///   writes it out waits until every earlier group, which may be a drop's, is copied into its buffer.
pub fn waits_on_drops() -> u64 {
    WAITS_ON_DROPS.load(Relaxed)
}

/// Returns what this thread has done since it began.
#[inline]
pub fn so_far() -> Counts {
    COUNTS.with(|counts| Counts(core::array::from_fn(|n| counts[n].get())))
}

/// Runs a drop and counts its work.
#[inline]
pub fn in_drop<T>(run: impl FnOnce() -> T) -> (T, Counts) {
    struct Scope;
    impl Drop for Scope {
        fn drop(&mut self) {
            SCOPE.set(false);
        }
    }
    let before = so_far();
    SCOPE.set(true);
    let scope = Scope;
    let result = run();
    drop(scope);
    (result, so_far() - before)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_step_that_panics_does_not_leave_its_thread_in_the_background() {
        assert!(!is_background());
        let step = || in_background(|| panic!("on purpose, in the background: {}", is_background()));
        assert!(std::panic::catch_unwind(step).is_err());
        assert!(!is_background());
    }

    #[test]
    fn a_scope_counts_its_own_thread_only() {
        count(Work::Frame);
        let ((), counts) = in_drop(|| {
            count(Work::Frame);
            add(Work::Write, 3);
            std::thread::spawn(|| count(Work::Frame)).join().unwrap();
        });
        assert_eq!((counts.of(Work::Frame), counts.of(Work::Write), counts.of(Work::Sync)), (1, 3, 0));
    }
}
