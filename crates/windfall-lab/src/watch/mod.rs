//! Locks that are watched: who held one, for what, how long, and who waited meanwhile.
//!
//! **Purpose.** The stall of a drop is the time for which somebody holds a mutex that everybody needs. So the pool's
//! locks say so themselves: [`Mutex`] and [`RwLock`] note every hold and every wait, by the [`Role`] of the thread and
//! its [`Purpose`].
//!
//! **Invariants.** Watching is not to make the holds longer that it measures: a look-up of a page is timed once in
//! [`SAMPLED`] times and counted for all of them, unless somebody had to wait; everything else is timed always. What is
//! noted is noted after the lock was given back. A wait names one who had the lock meanwhile: whoever was seen to have
//! it for the longest part, all looks together.
//!
//! **May touch.** The clock.
//!
//! The locks themselves are those of `parking_lot`: who does not get one spins a little, then sleeps until it is given
//! back. So did the mutexes of the servers. Who sleeps for long wakes now and then to look who has the lock, after
//! twice the time of the last look, so that this costs nothing beside the wait. With each look he gives up his turn
//! among those who wait: thirteen times in a second.

mod mutex;
mod record;
mod rwlock;
mod sign;

use std::{
    cell::Cell,
    hint,
    sync::OnceLock,
    time::{Duration, Instant},
};

pub use mutex::{Guard, Mutex};
pub use record::{Held, Report, Times, Waited};
use record::{KINDS, Record, Who};
pub use rwlock::{ReadGuard, RwLock, WriteGuard};
use serde::{Deserialize, Serialize};
use sign::Sign;

/// One brief hold in so many is timed.
pub const SAMPLED: u64 = 64;
/// Who finds a lock taken and nobody's name looks so often at once for either to change.
const SPINS: u32 = 100;
/// Who waits looks again after this time who has the lock, then after twice that, and so on.
const LOOK: Duration = Duration::from_micros(100);

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
    /// What was waited for before it.
    wait: Option<Wait>,
}

/// A wait that is over.
#[derive(Clone, Copy, Debug)]
struct Wait {
    holder: Who,
    took: Duration,
}

/// What a lock has beside itself.
#[derive(Debug)]
struct Notes {
    name: &'static str,
    sign: Sign,
    record: parking_lot::Mutex<Record>,
}

impl Notes {
    fn new(name: &'static str) -> Self {
        Self { name, sign: Sign::default(), record: parking_lot::Mutex::default() }
    }

    /// Takes the lock, at once or by attempts that wait for so long. Gives the hold if it is to be timed.
    #[inline]
    fn take<G>(
        &self,
        who: Who,
        at_once: impl Fn() -> Option<G>,
        within: impl Fn(Duration) -> Option<G>,
    ) -> (G, Option<Hold>) {
        let (inner, wait) = match at_once() {
            Some(inner) => (inner, None),
            None => self.wait(at_once, within, now),
        };
        let weight = weight(who.purpose(), wait.is_some());
        (inner, weight.map(|weight| Hold { who, since: now(), weight, wait }))
    }

    #[cold]
    fn wait<G>(
        &self,
        at_once: impl Fn() -> Option<G>,
        within: impl Fn(Duration) -> Option<G>,
        now: impl Fn() -> Duration,
    ) -> (G, Option<Wait>) {
        let start = now();
        // Who has it may be about to sign, or to give it back.
        let mut spins = 0..SPINS;
        let mut got = None;
        while got.is_none() && self.sign.holder().is_none() && spins.next().is_some() {
            hint::spin_loop();
            got = at_once();
        }
        let (mut had_it, mut stretch) = ([Duration::ZERO; KINDS], LOOK);
        let inner = loop {
            if let Some(inner) = got {
                break inner;
            }
            let (holder, since) = (self.sign.holder(), now());
            got = within(stretch);
            if let Some(holder) = holder {
                had_it[usize::from(holder.0)] += now().saturating_sub(since);
            }
            stretch *= 2;
        };
        let longest =
            (0..).map(Who).zip(had_it).max_by_key(|(_, time)| *time).filter(|(_, time)| !time.is_zero());
        // If nobody was seen it was one of those who do not stay, and who took it last: we have not signed yet.
        let holder = longest.map_or_else(|| self.sign.last(), |(holder, _)| holder);
        (inner, Some(Wait { holder, took: now().saturating_sub(start) }))
    }

    /// Notes a hold, and the wait before it, that is over: the lock was given back.
    #[inline]
    fn note(&self, hold: Hold, took: Duration) {
        // The record's own lock is held for a moment only, and by nobody who waits for this one.
        let mut record = self.record.lock();
        record.held(hold.who, hold.weight, took);
        if let Some(wait) = hold.wait {
            record.waited(hold.who, wait.holder, wait.took);
        }
    }

    fn report(&self) -> Report {
        self.record.lock().report(self.name)
    }

    fn reset(&self) {
        *self.record.lock() = Record::default();
    }
}

/// A guard that notes its hold when it goes. How long that was is asked before the lock is given back: who wakes
/// another may have to wait for a processor.
macro_rules! guard {
    ($name:ident, $inner:ident, $doc:literal, $leave:expr) => {
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
                let took = self.hold.map(|hold| now().saturating_sub(hold.since));
                ($leave)(&self.notes.sign, self.hold);
                drop(self.inner.take());
                if let (Some(hold), Some(took)) = (self.hold, took) {
                    self.notes.note(hold, took);
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

    /// One attempt after the other fails, while others have the lock for some attempts each. The last attempt, in which
    /// the lock is given back, is the longest one, but not as long as those together in which somebody else had it.
    #[test]
    fn a_wait_for_one_after_the_other_names_who_was_there_for_the_longest_part() {
        let notes = Notes::new("pool");
        let others = [Purpose::Drop, Purpose::Drop, Purpose::Flush, Purpose::Drop, Purpose::Load];
        let (clock, tried) = (Cell::new(Duration::from_secs(7)), RefCell::new(Vec::new()));
        let sign = |purpose| notes.sign.enter_alone(Who::this(purpose));
        let within = |time: Duration| {
            let mut tried = tried.borrow_mut();
            tried.push(time);
            let next = others.get(tried.len());
            clock.set(clock.get() + if next.is_some() { time } else { time * 9 / 16 });
            next.copied().map(sign).is_none().then_some(())
        };
        sign(others[0]);
        let ((), wait) = notes.wait(|| None, within, || clock.get());
        let wait = wait.unwrap();
        // One, two and eight parts are the drop's, four another one's, and nine of the last.
        assert_eq!(wait.holder.purpose(), Purpose::Drop);
        assert_eq!(wait.took, LOOK * (1 + 2 + 4 + 8 + 9));
        assert_eq!(tried.into_inner(), [1, 2, 4, 8, 16].map(|times| LOOK * times));
    }
}
