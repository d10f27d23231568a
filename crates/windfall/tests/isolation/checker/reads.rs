//! Anomalies of a read that do not depend on the order of transactions: it shows a version that never existed, or it
//! contradicts earlier reads and writes of its own transaction. The remaining reads are evidence about other
//! transactions.

use rustc_hash::FxHashMap;

use super::{
    super::{
        client::{Key, Level, Lock},
        history::{Transaction, What},
    },
    Kind, Report,
    facts::{Facts, NOTHING},
};

/// A read of a key that its transaction had not written before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    pub transaction: usize,
    pub step: usize,
    pub key: Key,
    /// The last element of the version.
    pub version: u64,
    pub lock: Lock,
    /// There was no row.
    pub absent: bool,
    /// The read covered more than this key.
    pub range: bool,
}

/// The reads and writes of one key by a transaction so far.
#[derive(Default)]
struct Known<'h> {
    /// The value before its own writes: it was read with a lock, or a change of it would have ended the transaction.
    held: Option<&'h [u64]>,
    /// The value in the snapshot.
    seen: Option<&'h [u64]>,
    own: Vec<u64>,
    /// The transaction has deleted the row.
    gone: bool,
}

struct Check<'f, 'h, 'r> {
    facts: &'f Facts<'h>,
    report: &'r mut Report,
    /// The position in a list's order of the first element from a transaction that did not happen.
    aborted: FxHashMap<Key, usize>,
    reads: Vec<Read>,
}

/// Judges all reads, and returns those that are evidence about other transactions, by transaction and step.
pub(super) fn check(facts: &Facts<'_>, report: &mut Report) -> Vec<Read> {
    let mut aborted = FxHashMap::default();
    for (key, order) in &facts.orders {
        if let Some(at) = order.iter().position(|item| facts.writer(*item).is_none()) {
            aborted.insert(*key, at);
        }
    }
    let mut check = Check { facts, report, aborted, reads: Vec::new() };
    for n in 0..facts.history.transactions.len() {
        check.transaction(n);
    }
    check.reads
}

/// Returns whether the value of a read cannot change until the transaction ends, or the transaction can no longer write
/// to it.
pub(super) fn is_held(level: Level, lock: Lock) -> bool {
    lock != Lock::Plain || matches!(level, Level::Snapshot | Level::Serializable)
}

impl<'h> Check<'_, 'h, '_> {
    fn transaction(&mut self, n: usize) {
        let transaction: &'h Transaction = self.facts.transaction(n);
        let mut known: FxHashMap<Key, Known<'h>> = FxHashMap::default();
        for (at, step) in transaction.steps.iter().enumerate() {
            match &step.what {
                What::Put(key, item) => {
                    let known = known.entry(*key).or_default();
                    (known.own, known.gone) = (vec![*item], false);
                }
                What::Delete(key, item) => {
                    let known = known.entry(*key).or_default();
                    (known.own, known.gone) = (vec![*item], true);
                }
                What::Append(key, item) => known.entry(*key).or_default().own.push(*item),
                What::Read { first, last, lock, rows } => {
                    let all = self.facts.keys.partition_point(|key| key < first)
                        ..self.facts.keys.partition_point(|key| key <= last);
                    let mut rows = rows.iter().peekable();
                    for key in &self.facts.keys[all] {
                        let row = rows.next_if(|row| row.0 == *key);
                        let value = row.map_or(&[][..], |row| &row.1);
                        let read = Read {
                            transaction: n,
                            step: at,
                            key: *key,
                            version: NOTHING,
                            lock: *lock,
                            absent: row.is_none(),
                            range: first != last,
                        };
                        self.read(known.entry(*key).or_default(), read, value);
                    }
                    if let Some((key, _)) = rows.next() {
                        self.report.add(Kind::Garbage, || {
                            format!("T{n} {}: the row {key} was not asked for there", step.what)
                        });
                    }
                }
            }
        }
    }

    fn read(&mut self, known: &mut Known<'h>, read: Read, value: &'h [u64]) {
        let Read { transaction: n, step, key, lock, .. } = read;
        let transaction = self.facts.transaction(n);
        let description = || format!("T{n} {} (T{n}: {transaction})", transaction.steps[step].what);
        let level = transaction.level;
        if !known.own.is_empty() {
            let must = if known.gone { &[][..] } else { &known.own };
            let Some(before) = value.strip_suffix(must).filter(|_| !known.gone || value.is_empty()) else {
                self.report
                    .add(Kind::OwnWrite, || format!("key {key} must end with {must:?}: {}", description()));
                return;
            };
            if !self.facts.lists.contains(&key) {
                return;
            }
            match known.held {
                Some(held) if held != before => self.report.add(Kind::Unrepeatable, || {
                    format!("below its own writes key {key} must be {held:?}: {}", description())
                }),
                _ => known.held = Some(before),
            }
            self.external(read, before, false);
            return;
        }
        let last = value.last().copied().unwrap_or(NOTHING);
        if self.facts.writes.get(&last).is_some_and(|write| write.transaction == n && write.key == key) {
            self.report.add(Kind::OwnWrite, || {
                format!("it had not written {last} to key {key} yet: {}", description())
            });
            return;
        }
        let must = if is_held(level, lock) {
            // Without gap locks a row may be inserted.
            if value.is_empty() && level <= Level::ReadCommitted {
                known.held
            } else {
                known.held.replace(value)
            }
        } else if level == Level::RepeatableRead {
            known.seen.replace(value)
        } else {
            known.held
        };
        if let Some(must) = must
            && must != value
        {
            self.report
                .add(Kind::Unrepeatable, || format!("key {key} must still be {must:?}: {}", description()));
        }
        self.external(Read { version: last, ..read }, value, true);
    }

    /// Judges what was read of other transactions. `counts` is whether it is a whole version.
    fn external(&mut self, read: Read, value: &[u64], counts: bool) {
        let Read { transaction: n, step, key, .. } = read;
        let facts = self.facts;
        let transaction = facts.transaction(n);
        let description = || format!("T{n} {}", transaction.steps[step].what);
        let order = facts.orders.get(&key).copied().unwrap_or_default();
        let begins = order.starts_with(value);
        if !begins && !facts.judge(key, value, self.report, &description) {
            return;
        }
        // At this level everything else may be seen.
        if transaction.level == Level::ReadUncommitted {
            if counts && read.lock != Lock::Plain {
                self.reads.push(read);
            }
            return;
        }
        let aborted = if begins {
            self.aborted.get(&key).filter(|at| **at < value.len()).map(|at| value[*at])
        } else {
            value.iter().copied().find(|item| facts.writer(*item).is_none())
        };
        if let Some(item) = aborted
            && let Some(write) = facts.writes.get(&item)
        {
            let writer = write.transaction;
            self.report.add(Kind::AbortedRead, || {
                let what = facts.transaction(writer);
                format!(
                    "T{writer}, which wrote {item}, did not commit, and {} (T{writer}: {what})",
                    description()
                )
            });
            return;
        }
        if let Some(write) = value.last().and_then(|item| facts.writes.get(item))
            && !write.last
        {
            let (writer, item) = (write.transaction, value.last().copied().unwrap_or(NOTHING));
            self.report.add(Kind::IntermediateRead, || {
                let what = facts.transaction(writer);
                format!("T{writer} wrote on after {item}, and {} (T{writer}: {what})", description())
            });
        }
        if !begins && facts.lists.contains(&key) {
            self.report.add(Kind::IncompatibleOrder, || {
                format!("key {key} was {order:?} elsewhere, and {}", description())
            });
            return;
        }
        if counts {
            self.reads.push(read);
        }
    }
}
