//! Locks that are watched: who held one, for what, how long, and who waited meanwhile.
//!
//! **Purpose.** The stall of a drop is the time for which somebody holds a mutex that everybody needs. So the pool's
//! locks say so themselves: [`Mutex`] and [`RwLock`] note every hold and every wait, by the [`Role`] of the thread and
//! its [`Purpose`].
//!
//! **Invariants.** Watching is not to make the holds longer that it measures: a look-up of a page is timed once in
//! [`SAMPLED`] times and counted for all of them, unless somebody had to wait; everything else is timed always. What is
//! noted is noted after the lock was given back, waits as well.
//!
//! A wait names one holder: who had left his name when it began, or, if it lasts for longer than [`BRIEFLY`], then. The
//! name is left behind taking the lock, so that of a short wait may be that of the holder before; a long one is never
//! put down to him. Of several who share a lock it is one of those who may hold it for long, if there is one. If others get the lock before who waits, their holds are part of his wait.
//!
//! **May touch.** The clock.
//!
//! The locks themselves are those of `parking_lot`: who does not get one spins a little, then sleeps until it is given
//! back. So did the mutexes of the servers.

mod mutex;
mod record;
mod rwlock;

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::{
    cell::Cell,
    sync::OnceLock,
    time::{Duration, Instant},
};

pub use mutex::{Guard, Mutex};
pub use record::{Held, Report, Times, Waited};
use record::{Record, Who};
pub use rwlock::{ReadGuard, RwLock, WriteGuard};
use serde::{Deserialize, Serialize};

/// One brief hold in so many is timed.
pub const SAMPLED: u64 = 64;

/// A wait that lasts for longer names who holds the lock then.
pub const BRIEFLY: Duration = Duration::from_micros(50);

/// What a thread is in an experiment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Reads and writes rows.
    #[default]
    Client,
    /// Makes and drops tables.
    Dropper,
    /// Writes pages, in the background.
    Cleaner,
}

/// What a lock is held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// Finds a page that is in memory.
    Lookup,
    /// Makes a page the youngest of the LRU list.
    Young,
    /// Enters a page into the flush list.
    Dirty,
    /// Asks the hash index.
    Search,
    /// Enters a page's keys into the hash index, changes or removes them.
    Hash,
    /// Takes or makes a free frame, and enters a page that is being read or made.
    Load,
    /// Finds pages to write, and notes that they were.
    Flush,
    /// Changes the dictionary.
    Dictionary,
    /// Forgets a dropped tablespace.
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

    /// Whether this is done so often, and so quickly, that only some of it is timed.
    fn is_brief(self) -> bool {
        matches!(self, Self::Lookup | Self::Young | Self::Dirty | Self::Search)
    }
}

thread_local! {
    static ROLE: Cell<Role> = const { Cell::new(Role::Client) };
    /// For each purpose: one that takes turns with another would hide it.
    static TICKS: [Cell<u64>; Purpose::ALL.len()] = const { [const { Cell::new(0) }; Purpose::ALL.len()] };
}

/// Says what the calling thread is, from now on.
pub fn play(role: Role) {
    ROLE.set(role);
}

/// The time since the first question for it.
pub fn now() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

/// How a hold is counted: for how many it stands, or not at all.
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
    who: Who,
    since: Duration,
    weight: u64,
    /// For whom it was waited before, and how long.
    waited: Option<(Who, Duration)>,
}

/// The ways to take a lock.
struct Ways<A, B, C> {
    at_once: A,
    /// Within [`BRIEFLY`].
    soon: B,
    at_last: C,
}

/// What a lock has beside itself.
#[derive(Debug)]
struct Notes {
    name: &'static str,
    holder: AtomicU8,
    record: parking_lot::Mutex<Record>,
}

impl Notes {
    fn new(name: &'static str) -> Self {
        Self { name, holder: AtomicU8::new(Who::NOBODY.0), record: parking_lot::Mutex::default() }
    }

    /// Leaves the name of who has got the lock.
    #[inline]
    fn sign(&self, purpose: Purpose) {
        self.holder.store(Who::this(purpose).0, Relaxed);
    }

    /// The same of one of several who share it: who holds it briefly does not hide one who may hold it for long.
    #[inline]
    fn sign_shared(&self, purpose: Purpose) {
        if !purpose.is_brief() || Who(self.holder.load(Relaxed)).is_brief() {
            self.sign(purpose);
        }
    }

    /// Takes that name back, if it is still there.
    #[inline]
    fn unsign(&self, who: Who) {
        if !who.is_brief() {
            let _ = self.holder.compare_exchange(who.0, Who::NOBODY.0, Relaxed, Relaxed);
        }
    }

    /// Takes the lock, at once or after a wait. Gives the hold if it is to be timed.
    #[inline]
    fn take<G>(
        &self,
        purpose: Purpose,
        ways: Ways<impl FnOnce() -> Option<G>, impl FnOnce() -> Option<G>, impl FnOnce() -> G>,
    ) -> (G, Option<Hold>) {
        let (inner, waited) = match (ways.at_once)() {
            Some(inner) => (inner, None),
            None => self.wait(ways.soon, ways.at_last),
        };
        let hold = |weight| Hold { who: Who::this(purpose), since: now(), weight, waited };
        (inner, weight(purpose, waited.is_some()).map(hold))
    }

    #[cold]
    fn wait<G>(
        &self,
        soon: impl FnOnce() -> Option<G>,
        at_last: impl FnOnce() -> G,
    ) -> (G, Option<(Who, Duration)>) {
        let holder = || Who(self.holder.load(Relaxed));
        let (mut named, start) = (holder(), now());
        let inner = soon().unwrap_or_else(|| {
            named = holder();
            at_last()
        });
        (inner, Some((named, now().saturating_sub(start))))
    }

    /// Gives the lock back and notes the hold, and the wait before it. How long it was is asked before: who wakes
    /// another may have to wait for a processor.
    #[inline]
    fn give<G>(&self, inner: G, hold: Option<Hold>) {
        let took = hold.map(|hold| {
            self.unsign(hold.who);
            now().saturating_sub(hold.since)
        });
        drop(inner);
        if let (Some(hold), Some(took)) = (hold, took) {
            let mut record = self.record.lock();
            record.held(hold.who, hold.weight, took);
            if let Some((holder, waited)) = hold.waited {
                record.waited(hold.who, holder, waited);
            }
        }
    }

    fn report(&self) -> Report {
        self.record.lock().report(self.name)
    }

    fn reset(&self) {
        *self.record.lock() = Record::default();
    }
}

/// A guard that notes its hold when it goes.
macro_rules! guard {
    ($name:ident, $inner:ident, $doc:literal) => {
        #[doc = $doc]
        #[derive(Debug)]
        pub struct $name<'a, T> {
            notes: &'a Notes,
            /// Gone only while the guard goes.
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
                self.notes.give(self.inner.take(), self.hold);
            }
        }
    };
    ($name:ident, $inner:ident, mut, $doc:literal) => {
        guard!($name, $inner, $doc);

        impl<T> core::ops::DerefMut for $name<'_, T> {
            fn deref_mut(&mut self) -> &mut T {
                self.inner.as_mut().expect("a guard that is there holds its lock")
            }
        }
    };
}
use guard;
