//! Instrumented locks: the holder of a lock, its purpose, the hold time, and the waiters.
//!
//! **Purpose.** A drop stalls other threads for the time for which it holds a mutex that all of them need. So the
//! pool's locks record this themselves: [`Mutex`] and [`RwLock`] record every hold and every wait, by the [`Role`] of
//! the thread and its [`Purpose`].
//!
//! **Invariants.** Of brief holds, such as page look-ups, one in [`SAMPLED`] is timed and counted for all of them
//! (test: `brief_holds_are_counted_by_samples`), because instrumentation must not lengthen the holds that it measures.
//! A hold that began with a wait is always timed (test: `a_wait_names_no_previous_holder`), and so is every hold that
//! is not brief (test: `brief_holds_are_counted_by_samples`). A hold is recorded after the lock is released (test:
//! `a_hold_is_recorded_after_the_release`). A wait names one holder: the one that was seen to hold the lock for the
//! longest total time during the wait (test: `a_wait_for_several_holders_names_the_one_with_the_longest_part`).
//!
//! **Waiting.** The locks themselves are those of `parking_lot`: a thread that does not get the lock spins briefly,
//! then sleeps until the release. The mutexes of the servers did the same. A thread that waits for long wakes from time
//! to time and reads the holder of the lock. The interval doubles each time, so the cost is small compared to the wait.
//! Each wakeup costs the thread its place in the queue of waiters; there are thirteen in the first second.

mod holder_name;
mod mutex;
mod record;
mod rwlock;

use std::{
    cell::Cell,
    hint,
    sync::OnceLock,
    time::{Duration, Instant},
};

use holder_name::HolderName;
pub use mutex::{Guard, Mutex};
pub use record::{Held, Report, Times, Waited};
use record::{KINDS, Record, RoleAndPurpose};
pub use rwlock::{ReadGuard, RwLock, WriteGuard};
use serde::{Deserialize, Serialize};

/// One brief hold in this many is timed.
pub const SAMPLED: u64 = 64;
/// Spins of a thread that finds a lock taken and no holder's name, until either changes.
const SPINS: u32 = 100;
/// A waiting thread reads the holder's name after this time, then after twice that, and so on.
const LOOK: Duration = Duration::from_micros(100);

/// The role of a thread in an experiment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Reads and writes rows.
    #[default]
    Client,
    /// Creates and drops tables.
    Dropper,
    /// Writes pages in the background.
    Cleaner,
}

/// The purpose for which a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// Finds a page that is in memory.
    Lookup,
    /// Moves a page to the young end of the LRU list.
    Young,
    /// Adds a page to the flush list.
    Dirty,
    /// Searches the hash index.
    Search,
    /// Adds a page's keys to the hash index, changes or removes them.
    Hash,
    /// Takes or creates a free frame, and adds a page that is being read in or created.
    Load,
    /// Finds pages to write, and marks them as written.
    Flush,
    /// Changes the data dictionary.
    Dictionary,
    /// Removes a dropped tablespace from the pool.
    Drop,
}

impl Role {
    const ALL: [Self; 3] = [Self::Client, Self::Dropper, Self::Cleaner];
}

impl Purpose {
    const ALL: [Self; 9] = [
        Self::Lookup,
        Self::Young,
        Self::Dirty,
        Self::Search,
        Self::Hash,
        Self::Load,
        Self::Flush,
        Self::Dictionary,
        Self::Drop,
    ];

    /// Returns whether holds for this purpose are so frequent and so short that only a sample is timed.
    fn is_brief(self) -> bool {
        matches!(self, Self::Lookup | Self::Young | Self::Dirty | Self::Search)
    }
}

thread_local! {
    static ROLE: Cell<Role> = const { Cell::new(Role::Client) };
    /// One counter per purpose: if two purposes alternated on a shared counter, one of them might never be sampled.
    static TICKS: [Cell<u64>; Purpose::ALL.len()] = const { [const { Cell::new(0) }; Purpose::ALL.len()] };
    /// The locks that this thread holds, by [`Order`]; counted in debug builds only.
    static HELD: [Cell<u32>; 3] = const { [const { Cell::new(0) }; 3] };
}

/// The place of a lock in the order in which a thread acquires them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Before the page latches.
    BeforePages,
    /// After the page latches: no thread waits for one of these while it holds such a lock.
    AfterPages,
    /// Last of all.
    Last,
}

impl Order {
    /// Returns the number of such locks that this thread holds.
    fn held(self) -> u32 {
        HELD.with(|held| held[self as usize].get())
    }

    /// Counts an acquisition.
    #[inline]
    fn acquired(self) {
        if cfg!(debug_assertions) {
            HELD.with(|held| held[self as usize].set(self.held() + 1));
        }
    }

    /// Counts a release.
    #[inline]
    fn released(self) {
        if cfg!(debug_assertions) {
            HELD.with(|held| held[self as usize].set(self.held() - 1));
        }
    }
}

/// Asserts that this thread holds a lock of the pool, which guards what it is about to use.
#[inline]
pub(crate) fn assert_held(what: &str) {
    debug_assert!(Order::AfterPages.held() + Order::Last.held() > 0, "{what} is used without its lock");
}

/// Asserts that this thread holds no lock of the pool, so that it may wait for a page latch.
#[inline]
pub(crate) fn assert_not_held() {
    debug_assert!(
        Order::AfterPages.held() + Order::Last.held() == 0,
        "a thread that holds a lock of the pool may have to wait for a page latch"
    );
}

/// Sets the role of the calling thread from now on.
pub fn set_role(role: Role) {
    ROLE.set(role);
}

/// Returns the time since the first call of this function.
pub fn now() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

/// Returns the number of holds that this hold counts for, or `None` if it is not timed.
fn weight(purpose: Purpose, waited: bool) -> Option<u64> {
    if waited || !purpose.is_brief() {
        return Some(1);
    }
    let tick =
        TICKS.with(|ticks| ticks[purpose as usize].replace(ticks[purpose as usize].get().wrapping_add(1)));
    tick.is_multiple_of(SAMPLED).then_some(SAMPLED)
}

/// A hold that is being timed.
#[derive(Clone, Copy, Debug)]
struct Hold {
    holder: RoleAndPurpose,
    since: Duration,
    weight: u64,
    /// The wait before the hold.
    wait: Option<Wait>,
}

/// A wait that is over.
#[derive(Clone, Copy, Debug)]
struct Wait {
    holder: RoleAndPurpose,
    took: Duration,
}

/// The bookkeeping next to a lock.
#[derive(Debug)]
struct Stats {
    name: &'static str,
    order: Order,
    holder_name: HolderName,
    record: parking_lot::Mutex<Record>,
}

impl Stats {
    fn new(name: &'static str, order: Order) -> Self {
        Self { name, order, holder_name: HolderName::default(), record: parking_lot::Mutex::default() }
    }

    /// Acquires the lock, at once or by attempts with a timeout. Returns the hold if it must be timed.
    #[inline]
    fn take<G>(
        &self,
        owner: RoleAndPurpose,
        at_once: impl Fn() -> Option<G>,
        within: impl Fn(Duration) -> Option<G>,
    ) -> (G, Option<Hold>) {
        debug_assert_eq!(Order::Last.held(), 0, "{}: a lock is taken after one that comes last", self.name);
        let (inner, wait) = match at_once() {
            Some(inner) => (inner, None),
            None => self.wait(at_once, within, now),
        };
        self.order.acquired();
        let weight = weight(owner.purpose(), wait.is_some());
        (inner, weight.map(|weight| Hold { holder: owner, since: now(), weight, wait }))
    }

    #[cold]
    fn wait<G>(
        &self,
        at_once: impl Fn() -> Option<G>,
        within: impl Fn(Duration) -> Option<G>,
        now: impl Fn() -> Duration,
    ) -> (G, Option<Wait>) {
        let start = now();
        // The holder may be about to write its name, or to release the lock.
        let mut spins = 0..SPINS;
        let mut got = None;
        while got.is_none() && self.holder_name.holder().is_none() && spins.next().is_some() {
            hint::spin_loop();
            got = at_once();
        }
        let (mut held_by, mut timeout) = ([Duration::ZERO; KINDS], LOOK);
        let inner = loop {
            if let Some(inner) = got {
                break inner;
            }
            let (holder, since) = (self.holder_name.holder(), now());
            got = within(timeout);
            if let Some(holder) = holder {
                held_by[usize::from(holder.0)] += now().saturating_sub(since);
            }
            timeout *= 2;
        };
        let longest = (0..)
            .map(RoleAndPurpose)
            .zip(held_by)
            .max_by_key(|(_, time)| *time)
            .filter(|(_, time)| !time.is_zero());
        // If no holder was seen, it was a brief one: the last to take the lock, because this thread has not written
        // its name yet.
        let holder = longest.map_or_else(|| self.holder_name.last(), |(holder, _)| holder);
        (inner, Some(Wait { holder, took: now().saturating_sub(start) }))
    }

    /// Records a hold, and the wait before it, after the lock was released.
    #[inline]
    fn record_hold(&self, hold: Hold, took: Duration) {
        // The record's own lock is held for a moment only, and never by a thread that waits for the instrumented lock.
        let mut record = self.record.lock();
        record.held(hold.holder, hold.weight, took);
        if let Some(wait) = hold.wait {
            record.waited(hold.holder, wait.holder, wait.took);
        }
    }

    fn report(&self) -> Report {
        self.record.lock().report(self.name)
    }

    fn reset(&self) {
        *self.record.lock() = Record::default();
    }
}

/// A guard that records its hold when it is dropped. The hold time is read before the release, because the woken
/// thread may have to wait for a processor.
macro_rules! guard {
    ($name:ident, $inner:ident, $doc:literal, $leave:expr) => {
        #[doc = $doc]
        #[derive(Debug)]
        pub struct $name<'a, T> {
            stats: &'a Stats,
            /// `None` only while the guard is being dropped.
            inner: Option<parking_lot::$inner<'a, T>>,
            hold: Option<Hold>,
        }

        impl<T> core::ops::Deref for $name<'_, T> {
            type Target = T;

            fn deref(&self) -> &T {
                self.inner.as_ref().expect("a guard that is there holds its lock")
            }
        }

        impl<T> Drop for $name<'_, T> {
            #[inline]
            fn drop(&mut self) {
                let took = self.hold.map(|hold| now().saturating_sub(hold.since));
                ($leave)(&self.stats.holder_name, self.hold);
                drop(self.inner.take());
                self.stats.order.released();
                if let (Some(hold), Some(took)) = (self.hold, took) {
                    self.stats.record_hold(hold, took);
                }
            }
        }
    };
    (mut $name:ident, $inner:ident, $doc:literal, $leave:expr) => {
        guard!($name, $inner, $doc, $leave);

        impl<T> core::ops::DerefMut for $name<'_, T> {
            fn deref_mut(&mut self) -> &mut T {
                self.inner.as_mut().expect("a guard that is there holds its lock")
            }
        }
    };
}
use guard;

#[cfg(test)]
mod tests {
    use core::cell::{Cell, RefCell};

    use super::*;

    /// Attempts fail one after the other, while other threads hold the lock for some attempts each. The last attempt,
    /// which ends with the release, is the longest one, but shorter than the total time of another holder.
    #[test]
    fn a_wait_for_several_holders_names_the_one_with_the_longest_part() {
        let stats = Stats::new("pool", Order::AfterPages);
        let others = [Purpose::Drop, Purpose::Drop, Purpose::Flush, Purpose::Drop, Purpose::Load];
        let (clock, tried) = (Cell::new(Duration::from_secs(7)), RefCell::new(Vec::new()));
        let enter = |purpose| stats.holder_name.enter_alone(RoleAndPurpose::this(purpose));
        let within = |time: Duration| {
            let mut tried = tried.borrow_mut();
            tried.push(time);
            let next = others.get(tried.len());
            clock.set(clock.get() + if next.is_some() { time } else { time * 9 / 16 });
            next.copied().map(enter).is_none().then_some(())
        };
        enter(others[0]);
        let ((), wait) = stats.wait(|| None, within, || clock.get());
        let wait = wait.unwrap();
        // One, two and eight units belong to the drop, four to another holder, and nine to the last one.
        assert_eq!(wait.holder.purpose(), Purpose::Drop);
        assert_eq!(wait.took, LOOK * (1 + 2 + 4 + 8 + 9));
        assert_eq!(tried.into_inner(), [1, 2, 4, 8, 16].map(|times| LOOK * times));
    }
}
