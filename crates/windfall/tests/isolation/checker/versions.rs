//! The order of the versions of a key. For a list, its elements show the order. For a register, the version that a
//! transaction writes is after the version that it has read. Writers of a key also exclude each other until they have
//! ended. So a version is after another one if its commit began when the other had committed.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    super::{
        client::{Key, Level, Lock},
        history::{Moment, Outcome},
    },
    Kind, Report,
    facts::{Facts, NOTHING},
    reads::{Read, is_held},
};

/// The versions that are known to be after a version of a key.
#[derive(Default)]
pub(super) struct Order {
    pub after: FxHashMap<(Key, u64), Vec<u64>>,
}

impl Order {
    fn add(&mut self, key: Key, before: u64, after: u64) {
        let all = self.after.entry((key, before)).or_default();
        if before != after && !all.contains(&after) {
            all.push(after);
        }
    }

    pub(super) fn after(&self, key: Key, version: u64) -> &[u64] {
        self.after.get(&(key, version)).map_or(&[], Vec::as_slice)
    }
}

pub(super) fn order(facts: &Facts<'_>, reads: &[Read], report: &mut Report) -> Order {
    let mut order = Order::default();
    for (key, elements) in &facts.orders {
        let mut before = NOTHING;
        for item in elements.iter().filter(|item| facts.writer(**item).is_some()) {
            order.add(*key, before, *item);
            before = *item;
        }
    }
    lost_appends(facts, reads, report);
    let replaced = replaced(facts, reads, report);
    registers(facts, &replaced, &mut order);
    order
}

/// A list that was read after an append had ended must contain it. An element that no list contains is in no order.
fn lost_appends(facts: &Facts<'_>, reads: &[Read], report: &mut Report) {
    // The begin of the last reader of each list, and the reader.
    let mut read_at: FxHashMap<Key, (Moment, usize)> = FxHashMap::default();
    for read in reads.iter().filter(|read| facts.lists.contains(&read.key)) {
        let transaction = facts.transaction(read.transaction);
        // A snapshot may be as old as the transaction.
        let at = (transaction.begin, read.transaction);
        let latest = read_at.entry(read.key).or_insert(at);
        *latest = at.max(*latest);
    }
    let known: FxHashSet<u64> = facts.orders.values().flat_map(|order| order.iter().copied()).collect();
    let mut lost: Vec<_> = facts
        .writes
        .iter()
        .filter(|(item, write)| facts.lists.contains(&write.key) && !known.contains(item))
        .filter(|(item, _)| facts.writer(**item).is_some())
        .collect();
    lost.sort_unstable_by_key(|(item, _)| **item);
    for (item, write) in lost {
        let writer = facts.transaction(write.transaction);
        if let Some((begin, reader)) = read_at.get(&write.key)
            && writer.end.1 < *begin
        {
            report.add(Kind::LostAppend, || {
                let (n, key) = (write.transaction, write.key);
                format!("T{reader} began after T{n}, and {item} is in no list of key {key} (T{n}: {writer})")
            });
        }
    }
}

/// For each transaction that happened: the last version of a key that it read before its first write to it, and the
/// last version that it wrote.
struct Replaced {
    key: Key,
    read: u64,
    wrote: u64,
}

fn replaced(facts: &Facts<'_>, reads: &[Read], report: &mut Report) -> Vec<Replaced> {
    // The last version that each transaction wrote to each key.
    let mut wrote: FxHashMap<(usize, Key), u64> = FxHashMap::default();
    for (item, write) in
        facts.writes.iter().filter(|(item, write)| write.last && facts.writer(**item).is_some())
    {
        wrote.insert((write.transaction, write.key), *item);
    }
    let mut replaced: FxHashMap<(usize, Key), (u64, bool)> = FxHashMap::default();
    for read in reads {
        let level = facts.transaction(read.transaction).level;
        // An uncommitted version that was read may never have existed. Without gap locks, a row may have been inserted
        // and deleted.
        let is_held = is_held(level, read.lock) && (!read.absent || level > Level::ReadCommitted);
        if (level == Level::ReadUncommitted && read.lock == Lock::Plain)
            || !wrote.contains_key(&(read.transaction, read.key))
        {
            continue;
        }
        let entry = replaced.entry((read.transaction, read.key)).or_insert((read.version, is_held));
        // A read that holds the row is more certain than an earlier plain read.
        if !entry.1 {
            *entry = (read.version, is_held);
        }
    }
    let mut all: Vec<_> = replaced.into_iter().collect();
    all.sort_unstable();
    // Two transactions that replace the same version, and held it.
    let mut holders: FxHashMap<(Key, u64), usize> = FxHashMap::default();
    for ((n, key), (version, _)) in all.iter().filter(|(_, (_, is_held))| *is_held) {
        if let Some(other) = holders.insert((*key, *version), *n) {
            report.add(Kind::LostUpdate, || {
                let (one, two) = (facts.transaction(other), facts.transaction(*n));
                format!(
                    "T{other} and T{n} both replaced version {version} of key {key} (T{other}: {one}) (T{n}: {two})"
                )
            });
        }
    }
    all.into_iter().map(|((n, key), (read, _))| Replaced { key, read, wrote: wrote[&(n, key)] }).collect()
}

fn registers(facts: &Facts<'_>, replaced: &[Replaced], order: &mut Order) {
    let mut later: FxHashSet<u64> = FxHashSet::default();
    for Replaced { key, read, wrote } in replaced.iter().filter(|r| !facts.lists.contains(&r.key)) {
        if *read == NOTHING || facts.writer(*read).is_some() {
            order.add(*key, *read, *wrote);
            later.insert(*wrote);
        }
    }
    let mut versions: FxHashMap<Key, Vec<(Moment, Moment, u64)>> = FxHashMap::default();
    for (item, write) in &facts.writes {
        if write.last && !facts.lists.contains(&write.key) && facts.writer(*item).is_some() {
            let transaction = facts.transaction(write.transaction);
            let begin = match transaction.outcome {
                Outcome::Committed => transaction.end.0,
                _ => transaction.begin,
            };
            versions.entry(write.key).or_default().push((transaction.end.1, begin, *item));
        }
    }
    for (key, mut all) in versions {
        // Sorted by end, with the last begin among the versions up to each one.
        all.sort_unstable();
        let mut last_begin = 0;
        let begins: Vec<Moment> = all
            .iter()
            .map(|(_, begin, _)| {
                last_begin = last_begin.max(*begin);
                last_begin
            })
            .collect();
        for (_, begin, item) in &all {
            let ended = all.partition_point(|(end, ..)| end < begin);
            let Some(last_begin) = begins[..ended].last() else {
                if !later.contains(item) {
                    order.add(key, NOTHING, *item);
                }
                continue;
            };
            // A version is skipped if another one began after its end and ended before this one began: the order
            // follows through that one.
            for (_, _, before) in all[..ended].iter().rev().take_while(|(end, ..)| end >= last_begin) {
                order.add(key, *before, *item);
            }
        }
    }
}
