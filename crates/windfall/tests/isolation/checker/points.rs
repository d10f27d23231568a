//! The guarantees of a level, as points in time at which parts of a transaction happened, and the order between points.
//!
//! | level | points |
//! | --- | --- |
//! | READ UNCOMMITTED | its commit, at which its writes and locking reads happened; plain reads are no evidence |
//! | READ COMMITTED | one for each read, in their order, then its commit |
//! | REPEATABLE READ | one for all plain reads of rows that it has not written: its snapshot; then its commit |
//! | SNAPSHOT | the same, and every version that it replaces was committed before its snapshot |
//! | SERIALIZABLE | one |
//!
//! Each point is between two moments that its client has recorded. The points of all transactions have one order, and
//! Adya's definitions follow. READ UNCOMMITTED has no cycle of writes (G0). READ COMMITTED has no cycle of writes and
//! reads (G1c), and no read sees a part of a commit, or less than the previous read. REPEATABLE READ has no read skew
//! (G-single) and no phantom among the plain reads of rows that a transaction does not write, nor among the rows that
//! it locks. It allows lost updates and write skew through the plain read, because the read is at another point than
//! the write. A plain read after an own write is at neither point. SNAPSHOT has neither lost updates nor any cycle
//! without two adjacent misses (G-nonadjacent). SERIALIZABLE has no cycle (G2).

use super::{
    super::{
        client::{Key, Level, Lock},
        history::{Moment, Outcome, Step, What},
    },
    facts::{Facts, NOTHING},
    reads::Read,
    versions::Order,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Read(usize),
    Snapshot,
    Commit,
    /// The whole transaction, at one point.
    All,
    /// A moment that belongs to no transaction. The points before it had ended by then.
    Moment,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub transaction: usize,
    pub part: Part,
}

/// Why a point is before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Why {
    /// Both belong to the same transaction.
    Own,
    /// The first had ended when the second began.
    Time,
    /// The second overwrote what the first wrote (ww).
    Write,
    /// The second read what the first wrote (wr).
    Read,
    /// The second overwrote what the first read (rw).
    Miss,
    /// The first found no row where the second wrote one, in a read of several rows.
    PredicateMiss,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    pub from: u32,
    pub to: u32,
    pub why: Why,
    pub key: Key,
    /// The versions: the earlier one and, with two writers, the later one.
    pub versions: (u64, u64),
}

pub(super) struct Points {
    pub all: Vec<Point>,
    /// Sorted by their start.
    pub edges: Vec<Edge>,
    /// The index of the first edge of each point, and after the last point the end of the edges.
    pub begins: Vec<usize>,
}

impl Points {
    pub(super) fn edges(&self, point: u32) -> &[Edge] {
        &self.edges[self.begins[point as usize]..self.begins[point as usize + 1]]
    }
}

/// The points of a transaction that happened.
#[derive(Clone, Copy)]
struct Of {
    snapshot: Option<u32>,
    commit: u32,
}

#[derive(Default)]
struct Connect {
    points: Vec<Point>,
    edges: Vec<Edge>,
    /// The two moments between which each point is.
    spans: Vec<(Moment, Moment)>,
}

pub(super) fn connect(facts: &Facts<'_>, reads: &[Read], order: &Order) -> Points {
    let mut connect = Connect::default();
    let mut of: Vec<Option<Of>> = vec![None; facts.happened.len()];
    // For each read, the point at which it saw its version, and the point up to which the version cannot change.
    let mut places: Vec<Option<(u32, u32)>> = vec![None; reads.len()];
    let mut at = 0;
    for (n, of) in of.iter_mut().enumerate() {
        let end = at + reads[at..].partition_point(|read| read.transaction == n);
        if facts.happened[n] {
            *of = Some(connect.transaction(facts, n, &reads[at..end], &mut places[at..end]));
        }
        at = end;
    }
    connect.writes(facts, order, &of);
    for (read, (sees, holds)) in reads.iter().zip(places).filter_map(|(read, place)| Some((read, place?))) {
        let Read { transaction: n, key, version, absent, range, .. } = *read;
        if let Some(writer) = facts.writer(version).filter(|writer| *writer != n)
            && let Some(of) = of[writer]
        {
            connect.edge(of.commit, sees, Why::Read, key, (version, NOTHING));
        }
        let why = if absent && range { Why::PredicateMiss } else { Why::Miss };
        for next in order.after(key, version) {
            let writer = facts.writer(*next).filter(|writer| *writer != n);
            if let Some(of) = writer.and_then(|writer| of[writer]) {
                connect.edge(holds, of.commit, why, key, (version, *next));
            }
        }
    }
    connect.times();
    connect.finish()
}

impl Connect {
    fn point(&mut self, transaction: usize, part: Part, span: (Moment, Moment)) -> u32 {
        self.points.push(Point { transaction, part });
        self.spans.push(span);
        self.points.len() as u32 - 1
    }

    fn edge(&mut self, from: u32, to: u32, why: Why, key: Key, versions: (u64, u64)) {
        if from != to {
            self.edges.push(Edge { from, to, why, key, versions });
        }
    }

    fn bare(&mut self, from: u32, to: u32, why: Why) {
        self.edge(from, to, why, 0, (NOTHING, NOTHING));
    }

    fn transaction(
        &mut self,
        facts: &Facts<'_>,
        n: usize,
        reads: &[Read],
        places: &mut [Option<(u32, u32)>],
    ) -> Of {
        let transaction = facts.transaction(n);
        let level = transaction.level;
        let is_plain = |step: &&Step| matches!(step.what, What::Read { lock: Lock::Plain, .. });
        let (part, begin) = match level {
            Level::Serializable => (Part::All, transaction.begin),
            _ if transaction.outcome == Outcome::Committed => (Part::Commit, transaction.end.0),
            _ => (Part::Commit, transaction.begin),
        };
        let commit = self.point(n, part, (begin, transaction.end.1));
        let mut snapshot = None;
        if matches!(level, Level::RepeatableRead | Level::Snapshot)
            && let Some(first) = transaction.steps.iter().find(is_plain)
        {
            // Some databases create it when the transaction begins.
            let point = self.point(n, Part::Snapshot, (transaction.begin, first.end));
            self.bare(point, commit, Why::Own);
            snapshot = Some(point);
        }
        let mut last: Option<(usize, u32)> = None;
        for (read, place) in reads.iter().zip(places) {
            *place = match (level, read.lock) {
                // At these levels gaps are not locked.
                (Level::ReadUncommitted | Level::ReadCommitted, Lock::Shared | Lock::Exclusive)
                    if read.absent =>
                {
                    None
                }
                (Level::ReadUncommitted, Lock::Plain) => None,
                (Level::ReadCommitted, Lock::Plain) => {
                    let point = match last {
                        Some((at, point)) if at == read.step => point,
                        before => {
                            let step = &transaction.steps[read.step];
                            let point = self.point(n, Part::Read(read.step), (step.begin, step.end));
                            if let Some((_, before)) = before {
                                self.bare(before, point, Why::Own);
                            }
                            last = Some((read.step, point));
                            point
                        }
                    };
                    Some((point, point))
                }
                (Level::Snapshot, Lock::Shared | Lock::Exclusive) => {
                    Some((snapshot.unwrap_or(commit), commit))
                }
                (Level::Serializable, _) | (_, Lock::Shared | Lock::Exclusive) => Some((commit, commit)),
                (_, Lock::Plain) => snapshot.map(|point| (point, point)),
            };
        }
        if let Some((_, point)) = last {
            self.bare(point, commit, Why::Own);
        }
        Of { snapshot, commit }
    }

    fn writes(&mut self, facts: &Facts<'_>, order: &Order, of: &[Option<Of>]) {
        for ((key, before), all) in &order.after {
            let Some((one, first)) = facts.writer(*before).and_then(|one| Some((one, of[one]?))) else {
                continue;
            };
            for after in all {
                let Some((two, second)) = facts.writer(*after).and_then(|two| Some((two, of[two]?))) else {
                    continue;
                };
                if one != two {
                    let strict = facts.transaction(two).level == Level::Snapshot;
                    let to = second.snapshot.filter(|_| strict).unwrap_or(second.commit);
                    self.edge(first.commit, to, Why::Write, *key, (*before, *after));
                }
            }
        }
    }

    /// Adds the order by the clock: a transaction that had ended before another began was before it. One moment per end
    /// represents all transactions that had ended by then.
    fn times(&mut self) {
        let mut ends: Vec<(Moment, u32)> = (0..).zip(&self.spans).map(|(n, span)| (span.1, n)).collect();
        ends.retain(|(end, _)| *end != Moment::MAX);
        ends.sort_unstable();
        let spans = core::mem::take(&mut self.spans);
        let first = self.points.len() as u32;
        for (n, (_, point)) in (first..).zip(&ends) {
            self.points.push(Point { transaction: usize::MAX, part: Part::Moment });
            self.bare(*point, n, Why::Time);
            if n > first {
                self.bare(n - 1, n, Why::Time);
            }
        }
        for (point, (begin, _)) in (0..).zip(&spans) {
            let ended = ends.partition_point(|(end, _)| end < begin) as u32;
            if ended > 0 {
                self.bare(first + ended - 1, point, Why::Time);
            }
        }
    }

    fn finish(mut self) -> Points {
        // Sorted, independent of the order of the hash tables: the same history has the same report.
        self.edges.sort_unstable_by_key(|edge| (edge.from, edge.to, edge.why, edge.key, edge.versions));
        let mut begins = vec![0; self.points.len() + 1];
        for edge in &self.edges {
            begins[edge.from as usize + 1] += 1;
        }
        for n in 1..begins.len() {
            begins[n] += begins[n - 1];
        }
        Points { all: self.points, edges: self.edges, begins }
    }
}
