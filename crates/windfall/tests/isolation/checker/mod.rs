//! Decides whether the levels of a history allow it. The anomalies are those of Adya's thesis (1999), found with the
//! method of Elle (Kingsbury and Alvaro, 2020). The reads determine the order of the versions of a key, and these
//! orders determine which transaction must have been before which. A transaction that must have been before itself is
//! an anomaly.
//!
//! The guarantees of a level are expressed as *points* (`points`): moments at which parts of a transaction happened. A
//! history is correct if all its points can be put in one order in which every read sees the last write before it. An
//! anomaly is a cycle of points, and is named by its edges. Anomalies that need no order are found read by read
//! (`reads`).

mod absent;
mod cycles;
mod facts;
mod points;
mod reads;
mod versions;
mod words;

use core::fmt;

use super::history::History;
use facts::Facts;

/// The number of anomalies of a kind that are reported in full, because one fault often causes many.
const MAX_REPORTED: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A row that was not requested, or a value that no transaction wrote.
    Garbage,
    /// A version that was written to another key.
    OtherKey,
    /// An element that is twice in a list.
    Duplicate,
    /// A transaction does not see what it wrote itself, or sees what it has not written yet.
    OwnWrite,
    /// Two lists, neither of which is a prefix of the other, or writes with a contradictory order.
    IncompatibleOrder,
    /// A committed element is in no list.
    LostAppend,
    /// A row is missing that no transaction had deleted.
    Vanished,
    /// G0: writes of two transactions that are before each other.
    WriteCycle,
    /// G1a.
    AbortedRead,
    /// G1b.
    IntermediateRead,
    /// G1c: reads and writes put transactions before each other.
    CircularFlow,
    /// A read that must repeat an earlier result shows another one.
    Unrepeatable,
    /// P4: a version was replaced by a transaction that had not seen it.
    LostUpdate,
    /// G-single: only a part of another transaction is seen.
    ReadSkew,
    /// G-nonadjacent: as G-single, with several transactions that miss each other's writes, but no two of them
    /// adjacent.
    LongFork,
    /// G2-item.
    WriteSkew,
    /// G2: a row was missing in a range that a transaction had read.
    Phantom,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Garbage => "garbage",
            Self::OtherKey => "another key's version",
            Self::Duplicate => "duplicate",
            Self::OwnWrite => "own write not seen as it was",
            Self::IncompatibleOrder => "incompatible orders",
            Self::LostAppend => "lost append",
            Self::Vanished => "vanished row",
            Self::WriteCycle => "G0, write cycle",
            Self::AbortedRead => "G1a, aborted read",
            Self::IntermediateRead => "G1b, intermediate read",
            Self::CircularFlow => "G1c, circular information flow",
            Self::Unrepeatable => "a read that cannot be repeated",
            Self::LostUpdate => "P4, lost update",
            Self::ReadSkew => "G-single, read skew",
            Self::LongFork => "G-nonadjacent, long fork",
            Self::WriteSkew => "G2-item, write skew",
            Self::Phantom => "G2, phantom",
        }
    }
}

/// Something that a level forbids, with a text that names transactions by their position in the history.
#[derive(Clone, Debug)]
pub(crate) struct Anomaly {
    pub kind: Kind,
    pub text: String,
}

/// All anomalies of a history.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub anomalies: Vec<Anomaly>,
}

impl Report {
    fn add(&mut self, kind: Kind, text: impl FnOnce() -> String) {
        let reported = self.anomalies.iter().filter(|anomaly| anomaly.kind == kind).count();
        if reported < MAX_REPORTED {
            self.anomalies.push(Anomaly { kind, text: text() });
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.anomalies.is_empty()
    }

    pub(crate) fn has(&self, kind: Kind) -> bool {
        self.anomalies.iter().any(|anomaly| anomaly.kind == kind)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for anomaly in &self.anomalies {
            writeln!(f, "{}: {}", anomaly.kind.name(), anomaly.text)?;
        }
        Ok(())
    }
}

/// Searches a history for everything that its levels forbid.
pub(crate) fn check(history: &History) -> Report {
    let mut report = Report::default();
    let facts = Facts::of(history, &mut report);
    let mut reads = reads::check(&facts, &mut report);
    absent::resolve(&facts, &mut reads, &mut report);
    let order = versions::order(&facts, &reads, &mut report);
    let points = points::connect(&facts, &reads, &order);
    cycles::find(&facts, &points, &mut report);
    report
}
