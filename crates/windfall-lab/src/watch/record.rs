//! The recorded holds and waits of a lock.
//!
//! **Purpose.** Totals of holds and waits by role and purpose.
//!
//! **Invariants.** There is one total of holds per combination of role and purpose, and at most one of waits per pair
//! of such combinations (by type): so the memory is bounded.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use super::{Purpose, ROLE, Role};

/// The number of values of [`RoleAndPurpose`].
pub(super) const KINDS: usize = Role::ALL.len() * Purpose::ALL.len();

/// The role and the purpose of a lock holder or waiter, as one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RoleAndPurpose(pub u8);

impl RoleAndPurpose {
    pub(super) fn this(purpose: Purpose) -> Self {
        Self((ROLE.get() as usize * Purpose::ALL.len() + purpose as usize) as u8)
    }

    fn role(self) -> Role {
        Role::ALL[usize::from(self.0) / Purpose::ALL.len()]
    }

    pub(super) fn purpose(self) -> Purpose {
        Purpose::ALL[usize::from(self.0) % Purpose::ALL.len()]
    }
}

/// A count, a total time and a maximum time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// The number of holds or waits.
    pub count: u64,
    /// The total time, in nanoseconds.
    pub total_ns: u64,
    /// The longest time, in nanoseconds.
    pub longest_ns: u64,
}

impl Times {
    fn add(&mut self, weight: u64, took: Duration) {
        let ns = took.as_nanos() as u64;
        self.count += weight;
        self.total_ns += weight * ns;
        self.longest_ns = self.longest_ns.max(ns);
    }
}

impl Times {
    /// Adds the values of another lock.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.total_ns += other.total_ns;
        self.longest_ns = self.longest_ns.max(other.longest_ns);
    }
}

/// The time for which a role held the lock for a purpose.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// The role of the holder.
    pub role: Role,
    /// The purpose of the hold.
    pub purpose: Purpose,
    /// The hold times.
    #[serde(flatten)]
    pub times: Times,
}

/// The time for which one role waited for another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Waited {
    /// The role of the waiter.
    pub role: Role,
    /// The purpose of the waiter.
    pub purpose: Purpose,
    /// The role of the holder that was seen for the longest part of the wait.
    pub holder: Role,
    /// The purpose of that holder.
    pub held_for: Purpose,
    /// The wait times.
    #[serde(flatten)]
    pub times: Times,
}

/// The recorded holds and waits of a lock.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The name of the lock.
    pub name: &'static str,
    /// The holds; combinations that never held the lock are left out.
    pub holds: Vec<Held>,
    /// The waits.
    pub waits: Vec<Waited>,
}

impl Report {
    /// Returns the longest hold for this purpose.
    pub fn longest(&self, purpose: Purpose) -> Duration {
        let of = self.holds.iter().filter(|held| held.purpose == purpose);
        Duration::from_nanos(of.map(|held| held.times.longest_ns).max().unwrap_or(0))
    }

    /// Returns the number of holds for this purpose.
    pub fn count(&self, purpose: Purpose) -> u64 {
        self.holds.iter().filter(|held| held.purpose == purpose).map(|held| held.times.count).sum()
    }
}

/// The totals of one lock.
#[derive(Debug, Default)]
pub(super) struct Record {
    holds: Option<Box<[Times; KINDS]>>,
    /// By waiter and holder.
    waits: BTreeMap<(u8, u8), Times>,
}

impl Record {
    pub(super) fn held(&mut self, holder: RoleAndPurpose, weight: u64, took: Duration) {
        let holds = self.holds.get_or_insert_with(|| Box::new([Times::default(); KINDS]));
        holds[usize::from(holder.0)].add(weight, took);
    }

    pub(super) fn waited(&mut self, waiter: RoleAndPurpose, holder: RoleAndPurpose, took: Duration) {
        self.waits.entry((waiter.0, holder.0)).or_default().add(1, took);
    }

    pub(super) fn report(&self, name: &'static str) -> Report {
        let holds = self.holds.iter().flat_map(|holds| (0..).map(RoleAndPurpose).zip(holds.iter()));
        let held = |(holder, times): (RoleAndPurpose, &Times)| Held {
            role: holder.role(),
            purpose: holder.purpose(),
            times: *times,
        };
        let waited = |(&(waiter, holder), times): (&(u8, u8), &Times)| Waited {
            role: RoleAndPurpose(waiter).role(),
            purpose: RoleAndPurpose(waiter).purpose(),
            holder: RoleAndPurpose(holder).role(),
            held_for: RoleAndPurpose(holder).purpose(),
            times: *times,
        };
        Report {
            name,
            holds: holds.filter(|(_, times)| times.count > 0).map(held).collect(),
            waits: self.waits.iter().map(waited).collect(),
        }
    }
}
