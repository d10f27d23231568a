//! Decides whether a history is one that its levels allow. The anomalies are those of Adya's thesis (1999), found in
//! the way of Elle (Kingsbury and Alvaro, 2020): from what was read follows in which order the versions of a key came,
//! from that who must have been before whom, and what must have been before itself is an anomaly.
//!
//! What a level promises is said by *points* (`points`): moments at which parts of a transaction happened. A history is
//! right if all its points can be put in one order, in which every read sees what was written last before it. An
//! anomaly is a cycle of points, and named by the edges on it; what needs no order is found read by read (`reads`).

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

/// So many of a kind are told in full: what is wrong once is often wrong everywhere.
const TOLD: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A row that was not asked for, or a value that nobody wrote.
    Garbage,
    /// A version that was written to another key.
    OtherKey,
    /// The same element twice in a list.
    Duplicate,
    /// A transaction does not see what it wrote itself, or sees what it has not written yet.
    OwnWrite,
    /// Two lists of which neither begins with the other, or writes whose order contradicts itself.
    IncompatibleOrder,
    /// An element that was committed is in no list.
    LostAppend,
    /// A row is missing that nobody had deleted.
    Vanished,
    /// G0: writes of transactions that are before each other.
    WriteCycle,
    /// G1a.
    AbortedRead,
    /// G1b.
    IntermediateRead,
    /// G1c: what they wrote and read puts transactions before each other.
    CircularFlow,
    /// A read that has to show what was there before shows something else.
    Unrepeatable,
    /// P4: a version was replaced by someone who had not seen it.
    LostUpdate,
    /// G-single: a part of another transaction is seen.
    ReadSkew,
    /// G-nonadjacent: as G-single, with several transactions that do not see each other, but no two of them in a row.
    LongFork,
    /// G2-item.
    WriteSkew,
    /// G2: a row was missing where somebody had looked.
    Phantom,
}

impl Kind {
    pub fn name(self) -> &'static str {
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

/// Something that a level forbids, in words that name transactions by their place in the history.
#[derive(Clone, Debug)]
pub struct Anomaly {
    pub kind: Kind,
    pub text: String,
}

/// All that is wrong with a history.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub anomalies: Vec<Anomaly>,
}

impl Report {
    fn add(&mut self, kind: Kind, text: impl FnOnce() -> String) {
        let told = self.anomalies.iter().filter(|anomaly| anomaly.kind == kind).count();
        if told < TOLD {
            self.anomalies.push(Anomaly { kind, text: text() });
        }
    }

    pub fn is_empty(&self) -> bool {
        self.anomalies.is_empty()
    }

    pub fn has(&self, kind: Kind) -> bool {
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

/// Looks for everything that a history of these levels may not have.
pub fn check(history: &History) -> Report {
    let mut report = Report::default();
    let facts = Facts::of(history, &mut report);
    let mut reads = reads::check(&facts, &mut report);
    absent::resolve(&facts, &mut reads, &mut report);
    let order = versions::order(&facts, &reads, &mut report);
    let points = points::connect(&facts, &reads, &order);
    cycles::find(&facts, &points, &mut report);
    report
}
