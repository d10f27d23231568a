//! The version that a read has seen if it found no row: the time before the first write, or one of the deletions. The
//! clock decides, as far as it can. A deletion that began to commit later was not seen, nor one after which another
//! write had committed before the read. If several are left, the read is no evidence about other transactions.

use rustc_hash::FxHashMap;

use super::{
    super::{
        client::{Key, Level, Lock},
        history::{Moment, Outcome, Transaction, What},
    },
    Kind, Report,
    facts::{Facts, NOTHING},
    reads::Read,
};

/// A version, and the moments between which it was committed.
struct Version {
    end: Moment,
    begin: Moment,
    item: u64,
    /// The latest begin of the versions up to this one, among those that are known to have happened.
    last_begin: Moment,
    /// The earliest begin of the versions from this one on.
    next_begin: Moment,
    deletes: bool,
}

/// Determines the versions of absent rows, and removes the reads with several candidates.
pub(super) fn resolve(facts: &Facts<'_>, reads: &mut Vec<Read>, report: &mut Report) {
    let versions = versions(facts);
    reads.retain_mut(|read| {
        let Some(versions) = versions.get(&read.key).filter(|_| read.absent) else { return true };
        let transaction = facts.transaction(read.transaction);
        let (from, to) = span(transaction, read);
        let ended = versions.partition_point(|version| version.end < from);
        let covered = ended.checked_sub(1).map_or(0, |last| versions[last].last_begin);
        let first = versions.partition_point(|version| version.end < covered);
        let begun = versions[first..].iter().take_while(|version| version.next_begin <= to);
        let deletions = begun.filter(|version| version.deletes && version.begin <= to);
        let mut fitting = deletions.map(|version| version.item).chain((covered == 0).then_some(NOTHING));
        match (fitting.next(), fitting.next()) {
            (Some(item), None) => read.version = item,
            (Some(_), Some(_)) => return false,
            (None, _) => {
                report.add(Kind::Vanished, || {
                    let (n, key, what) = (read.transaction, read.key, &transaction.steps[read.step].what);
                    format!("there was a row {key}, and no transaction had deleted it, when T{n} {what} (T{n}: {transaction})")
                });
                return false;
            }
        }
        true
    });
}

/// Returns the interval in which a read saw its version: a locking read sees the newest version, any other read the
/// version at its point.
fn span(transaction: &Transaction, read: &Read) -> (Moment, Moment) {
    let step = &transaction.steps[read.step];
    let is_plain = |what: &What| matches!(what, What::Read { lock: Lock::Plain, .. });
    match transaction.level {
        _ if read.lock != Lock::Plain => (step.begin, step.end),
        Level::ReadUncommitted | Level::ReadCommitted => (step.begin, step.end),
        Level::RepeatableRead | Level::Snapshot => {
            let first = transaction.steps.iter().find(|step| is_plain(&step.what)).unwrap_or(step);
            (transaction.begin, first.end)
        }
        Level::Serializable => (transaction.begin, transaction.end.1),
    }
}

/// Returns the versions of all keys that have deletions, sorted by the end of their commits.
fn versions(facts: &Facts<'_>) -> FxHashMap<Key, Vec<Version>> {
    let mut all: FxHashMap<Key, Vec<Version>> = FxHashMap::default();
    let deletions = facts.writes.values().filter(|write| write.deletes && write.last);
    for key in deletions.map(|write| write.key) {
        all.entry(key).or_default();
    }
    for (item, write) in facts.writes.iter().filter(|(_, write)| write.last) {
        let transaction = facts.transaction(write.transaction);
        if let Some(versions) = all.get_mut(&write.key)
            && transaction.outcome != Outcome::Aborted
        {
            let begin =
                if transaction.outcome == Outcome::Committed { transaction.end.0 } else { transaction.begin };
            let (item, deletes) = (*item, write.deletes);
            versions.push(Version {
                end: transaction.end.1,
                begin,
                item,
                last_begin: 0,
                next_begin: begin,
                deletes,
            });
        }
    }
    for versions in all.values_mut() {
        versions.sort_unstable_by_key(|version| (version.end, version.item));
        let mut last_begin = 0;
        for version in versions.iter_mut() {
            if facts.writer(version.item).is_some() {
                last_begin = last_begin.max(version.begin);
            }
            version.last_begin = last_begin;
        }
        let mut next_begin = Moment::MAX;
        for version in versions.iter_mut().rev() {
            next_begin = next_begin.min(version.begin);
            version.next_begin = next_begin;
        }
    }
    all
}
