//! What a lock has seen.
//!
//! **Purpose.** Sums by who and for what, of holds and of waits.
//!
//! **Invariants.** Bounded: there are as many sums as roles and purposes.
//!
//! **May touch.** The names of `watch`.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use super::{Purpose, ROLE, Role};

/// How many there are of [`Who`].
pub const KINDS: usize = Role::ALL.len() * Purpose::ALL.len();

/// Who does something, and what for, as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Who(pub u8);

impl Who {
    pub fn this(purpose: Purpose) -> Self {
        Self((ROLE.get() as usize * Purpose::ALL.len() + purpose as usize) as u8)
    }

    fn role(self) -> Role {
        Role::ALL[usize::from(self.0) / Purpose::ALL.len()]
    }

    pub fn purpose(self) -> Purpose {
        Purpose::ALL[usize::from(self.0) % Purpose::ALL.len()]
    }
}

/// How often, how long together, and how long at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// How often.
    pub count: u64,
    /// How long together, in nanoseconds.
    pub total_ns: u64,
    /// The longest, in nanoseconds.
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
    /// Adds those of another lock.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.total_ns += other.total_ns;
        self.longest_ns = self.longest_ns.max(other.longest_ns);
    }
}

/// How long somebody has held the lock for something.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// Who.
    pub role: Role,
    /// What for.
    pub purpose: Purpose,
    /// How long.
    #[serde(flatten)]
    pub times: Times,
}

/// How long somebody has waited for somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Waited {
    /// Who waited.
    pub role: Role,
    /// What for.
    pub purpose: Purpose,
    /// Who had the lock meanwhile, as far as was seen for the longest part.
    pub holder: Role,
    /// What for.
    pub held_for: Purpose,
    /// How long.
    #[serde(flatten)]
    pub times: Times,
}

/// What a lock has seen.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The lock.
    pub name: &'static str,
    /// The holds, who never held it left out.
    pub holds: Vec<Held>,
    /// The waits.
    pub waits: Vec<Waited>,
}

impl Report {
    /// The longest time for which it was held for this.
    pub fn longest(&self, purpose: Purpose) -> Duration {
        let of = self.holds.iter().filter(|held| held.purpose == purpose);
        Duration::from_nanos(of.map(|held| held.times.longest_ns).max().unwrap_or(0))
    }

    /// How often it was held for this.
    pub fn count(&self, purpose: Purpose) -> u64 {
        self.holds.iter().filter(|held| held.purpose == purpose).map(|held| held.times.count).sum()
    }
}

/// What is noted.
#[derive(Debug, Default)]
pub struct Record {
    holds: Option<Box<[Times; KINDS]>>,
    /// By who waited and for whom.
    waits: BTreeMap<(u8, u8), Times>,
}

impl Record {
    pub fn held(&mut self, who: Who, weight: u64, took: Duration) {
        let holds = self.holds.get_or_insert_with(|| Box::new([Times::default(); KINDS]));
        holds[usize::from(who.0)].add(weight, took);
    }

    pub fn waited(&mut self, who: Who, holder: Who, took: Duration) {
        self.waits.entry((who.0, holder.0)).or_default().add(1, took);
    }

    pub fn report(&self, name: &'static str) -> Report {
        let holds = self.holds.iter().flat_map(|holds| (0..).map(Who).zip(holds.iter()));
        let held =
            |(who, times): (Who, &Times)| Held { role: who.role(), purpose: who.purpose(), times: *times };
        let waited = |(&(who, holder), times): (&(u8, u8), &Times)| Waited {
            role: Who(who).role(),
            purpose: Who(who).purpose(),
            holder: Who(holder).role(),
            held_for: Who(holder).purpose(),
            times: *times,
        };
        Report {
            name,
            holds: holds.filter(|(_, times)| times.count > 0).map(held).collect(),
            waits: self.waits.iter().map(waited).collect(),
        }
    }
}
