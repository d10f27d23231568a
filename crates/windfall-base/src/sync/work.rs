//! Counted work: the operations of a thread, by kind.
//!
//! **Purpose.** A drop's cost is counted, not timed: frames touched, latches and locks taken, list entries walked,
//! system calls made, memory allocated and freed. The counters are updated where the work is done (frame access, latch,
//! lock, `Disk`, allocator), never in the code that is measured.
//!
//! **Invariants.** Counters belong to a thread and only grow, so a measurement is the difference of two [`WorkCounts`]
//! (test: `a_scope_counts_its_own_thread_only`). Work on pages of the system tree is counted separately from work on
//! other pages, by the page's tablespace (test: `a_writer_finds_its_slices_made`).

use core::cell::Cell;

use super::machine::thread_local;

/// The kinds of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Work {
    /// A frame of the system tree, which has the records of tables, was accessed.
    SystemTreeFrame,
    /// Any other frame was accessed.
    Frame,
    /// A latch on a page of the system tree was taken.
    SystemTreeLatch,
    /// A latch on any other page was taken.
    Latch,
    /// An entry of a list, set or page table outside the system tree was walked.
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
    /// The thread, outside any drop, waited for something that a dropping thread held: its part of
    /// [`waits_on_drops`](super::drop_mark::waits_on_drops).
    #[cfg(feature = "drop-waits")]
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

/// Counts of work by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WorkCounts([u64; KINDS]);

impl WorkCounts {
    /// Returns the count of one kind.
    pub fn of(&self, kind: Work) -> u64 {
        self.0[kind as usize]
    }
}

impl core::ops::Sub for WorkCounts {
    type Output = Self;
    #[inline]
    fn sub(self, earlier: Self) -> Self {
        Self(core::array::from_fn(|n| self.0[n] - earlier.0[n]))
    }
}

thread_local! {
    static COUNTS: [Cell<u64>; KINDS] = const { [const { Cell::new(0) }; KINDS] };
    static IN_DROP: Cell<bool> = const { Cell::new(false) };
    static BACKGROUND: Cell<bool> = const { Cell::new(false) };
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
    IN_DROP.get()
}

/// Returns what this thread has done since it began.
#[inline]
pub fn so_far() -> WorkCounts {
    COUNTS.with(|counts| WorkCounts(core::array::from_fn(|n| counts[n].get())))
}

/// Runs a drop and counts its work.
#[inline]
pub fn in_drop<T>(run: impl FnOnce() -> T) -> (T, WorkCounts) {
    let before = so_far();
    let scope = DropScope::begin();
    let result = run();
    drop(scope);
    (result, so_far() - before)
}

/// A drop by this thread: until this is dropped, what the thread takes is marked as held by a drop
/// ([`DropMark`](super::drop_mark::DropMark)).
#[derive(Debug)]
#[must_use = "the drop ends when this is dropped"]
pub struct DropScope(());

impl DropScope {
    /// Begins a drop.
    #[inline]
    pub fn begin() -> Self {
        debug_assert!(!is_dropping(), "a drop begins within another drop");
        IN_DROP.set(true);
        Self(())
    }
}

impl Drop for DropScope {
    #[inline]
    fn drop(&mut self) {
        IN_DROP.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
