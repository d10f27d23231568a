//! What a transaction asks for, and how that is told.
//!
//! **Purpose.** The names of rows, the locks on tables, rows and ranges of keys, and how long somebody waits for one.
//!
//! **Invariants.** A row is named by its key and not by a hash of it: a conflict that is none would be a deadlock that
//! is none.
//!
//! **May touch.** `ids`, `keys`, `error`.

use core::{fmt, time::Duration};

use super::{mode::RowMode, mode::TableMode};
use crate::{
    error::InTheWay,
    ids::{SpaceId, TrxId},
    keys::KeyRange,
};

/// A row, or a key of an index, that is there or not.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowName {
    /// The tablespace of the tree.
    pub space: SpaceId,
    /// The whole key.
    pub key: Box<[u8]>,
}

/// What a transaction asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A table, by the tablespace of its clustered tree.
    Table(SpaceId, TableMode),
    /// A row.
    Row(RowName, RowMode),
    /// That no range of another transaction keeps this key out. It leaves no lock behind.
    Insert(RowName),
}

impl Wanted {
    /// In which tablespace it lies.
    pub fn space(&self) -> SpaceId {
        match self {
            Self::Table(space, _) => *space,
            Self::Row(row, _) | Self::Insert(row) => row.space,
        }
    }

    /// The key, unless it is a table.
    pub fn key(&self) -> Option<&[u8]> {
        match self {
            Self::Table(..) => None,
            Self::Row(row, _) | Self::Insert(row) => Some(&row.key),
        }
    }
}

/// How long somebody waits for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Not at all.
    NoWait,
    /// So long at most.
    AtMost(Duration),
    /// Until it is served, or told why not.
    Forever,
}

impl Patience {
    /// As an option tells it: so long at most, and not at all for zero.
    pub fn of(at_most: Duration) -> Self {
        if at_most.is_zero() { Self::NoWait } else { Self::AtMost(at_most) }
    }
}

/// The waits of one call: together they last no longer than its patience.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    patience: Patience,
    so_far: Duration,
}

impl Waits {
    /// Those of a call that has not waited yet.
    pub fn new(patience: Patience) -> Self {
        Self::after(Duration::ZERO, patience)
    }

    /// Those of a call that has waited so long.
    pub fn after(so_far: Duration, patience: Patience) -> Self {
        Self { patience, so_far }
    }

    /// How long the next wait may last.
    pub fn left(&self) -> Patience {
        match self.patience {
            Patience::AtMost(most) => Patience::AtMost(most.saturating_sub(self.so_far)),
            other => other,
        }
    }

    /// One has lasted so long.
    pub fn add(&mut self, waited: Duration) {
        self.so_far += waited;
    }

    /// How long the call has waited.
    pub fn so_far(&self) -> Duration {
        self.so_far
    }
}

/// A lock, as listings and reports tell it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lock {
    /// On a table, by the tablespace of its clustered tree.
    Table(SpaceId, TableMode),
    /// On a row.
    Row(RowName, RowMode),
    /// Against inserts by others.
    Range(SpaceId, KeyRange),
    /// The right to insert: it is waited for, and never held.
    Insert(RowName),
}

impl From<Wanted> for Lock {
    fn from(wanted: Wanted) -> Self {
        match wanted {
            Wanted::Table(space, mode) => Self::Table(space, mode),
            Wanted::Row(row, mode) => Self::Row(row, mode),
            Wanted::Insert(row) => Self::Insert(row),
        }
    }
}

/// A lock that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// By whom.
    pub trx: TrxId,
    /// Which one.
    pub lock: Lock,
}

/// A transaction that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Who.
    pub trx: TrxId,
    /// What for.
    pub lock: Lock,
    /// Since when, by the clock of the environment.
    pub since: Duration,
    /// Whom it waits for: holders, then those who came before.
    pub behind: InTheWay,
}

impl fmt::Debug for RowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for RowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" of tablespace {}", self.key.escape_ascii(), self.space)
    }
}

impl fmt::Display for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(space, mode) => write!(f, "table of tablespace {space}, {mode}"),
            Self::Row(row, mode) => write!(f, "row {row}, {mode}"),
            Self::Range(space, range) => write!(f, "keys {range} of tablespace {space}, against inserts"),
            Self::Insert(row) => write!(f, "key {row}, to insert it"),
        }
    }
}
