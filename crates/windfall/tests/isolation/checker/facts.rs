//! The writer of each version, the transactions that happened, and the order of the elements of each list.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    super::{
        client::{Key, Level},
        history::{History, Outcome, Transaction, What},
    },
    Kind, Report,
};

/// The version of a key before its first write: there is no row.
pub(super) const NOTHING: u64 = 0;

#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    pub transaction: usize,
    pub key: Key,
    /// Whether it is its transaction's last write to this key.
    pub last: bool,
    /// The row is deleted.
    pub deletes: bool,
}

pub(super) struct Facts<'h> {
    pub history: &'h History,
    pub writes: FxHashMap<u64, Write>,
    /// By transaction: whether it committed, or a read has returned a write of it that only a commit makes visible.
    pub happened: Vec<bool>,
    pub lists: FxHashSet<Key>,
    /// The elements of each list in order, taken from the longest read that, at its level, must show a committed
    /// version.
    pub orders: FxHashMap<Key, &'h [u64]>,
    /// All keys, in order.
    pub keys: Vec<Key>,
}

impl<'h> Facts<'h> {
    pub(super) fn of(history: &'h History, report: &mut Report) -> Self {
        let mut facts = Self {
            history,
            writes: FxHashMap::default(),
            happened: history.transactions.iter().map(|t| t.outcome == Outcome::Committed).collect(),
            lists: FxHashSet::default(),
            orders: FxHashMap::default(),
            keys: Vec::new(),
        };
        facts.index();
        let seen = facts.longest();
        for item in facts.orders.values().flat_map(|order| order.iter()).copied().chain(seen) {
            if let Some(write) = facts.writes.get(&item)
                && history.transactions[write.transaction].outcome == Outcome::Unknown
            {
                facts.happened[write.transaction] = true;
            }
        }
        facts.judge_orders(report);
        facts
    }

    pub(super) fn transaction(&self, n: usize) -> &'h Transaction {
        &self.history.transactions[n]
    }

    /// Returns the transaction that wrote a version, if it happened.
    pub(super) fn writer(&self, item: u64) -> Option<usize> {
        let writer = self.writes.get(&item)?.transaction;
        self.happened[writer].then_some(writer)
    }

    fn index(&mut self) {
        let mut keys = FxHashSet::default();
        let mut last = FxHashMap::default();
        for (n, transaction) in self.history.transactions.iter().enumerate() {
            last.clear();
            for step in &transaction.steps {
                let (key, item) = match &step.what {
                    What::Append(key, item) => {
                        self.lists.insert(*key);
                        (*key, *item)
                    }
                    What::Put(key, item) | What::Delete(key, item) => (*key, *item),
                    What::Read { rows, .. } => {
                        keys.extend(rows.iter().map(|row| row.0));
                        continue;
                    }
                };
                keys.insert(key);
                let deletes = matches!(step.what, What::Delete(..));
                let write = Write { transaction: n, key, last: true, deletes };
                let twice = self.writes.insert(item, write);
                assert!(twice.is_none() && item != NOTHING, "{item} does not identify its writer");
                if let Some(before) = last.insert(key, item) {
                    self.writes.entry(before).and_modify(|write| write.last = false);
                }
            }
        }
        self.keys = keys.into_iter().collect();
        self.keys.sort_unstable();
    }

    /// Finds the longest reads of all lists, and returns the versions that were read of registers.
    fn longest(&mut self) -> Vec<u64> {
        let mut seen = Vec::new();
        for transaction in &self.history.transactions {
            // Reads at this level may show versions that were never committed.
            if transaction.level == Level::ReadUncommitted {
                continue;
            }
            let mut own = FxHashSet::default();
            for step in &transaction.steps {
                match &step.what {
                    What::Put(key, _) | What::Append(key, _) | What::Delete(key, _) => {
                        own.insert(*key);
                    }
                    What::Read { rows, .. } => {
                        for (key, value) in rows {
                            // With the transaction's own writes in it, it is a version only if the transaction
                            // committed.
                            if own.contains(key) && transaction.outcome != Outcome::Committed {
                                continue;
                            }
                            if self.lists.contains(key) {
                                let order = self.orders.entry(*key).or_default();
                                if order.len() < value.len() {
                                    *order = value;
                                }
                            } else {
                                seen.extend(value);
                            }
                        }
                    }
                }
            }
        }
        seen
    }

    /// Judges each order once, and not at each read that is a prefix of it. A transaction has read all of its elements.
    fn judge_orders(&self, report: &mut Report) {
        for (key, order) in &self.orders {
            self.judge(*key, order, report, &|| "the longest read of it".into());
        }
    }

    /// Returns whether these are elements of the key, each once.
    pub(super) fn judge(
        &self,
        key: Key,
        value: &[u64],
        report: &mut Report,
        who: &dyn Fn() -> String,
    ) -> bool {
        if value.len() > 1 && !self.lists.contains(&key) {
            report.add(Kind::Garbage, || format!("key {key}: {}: {value:?} is no single value", who()));
            return false;
        }
        let mut known = FxHashSet::default();
        for item in value {
            match self.writes.get(item) {
                Some(Write { deletes: true, .. }) | None => report
                    .add(Kind::Garbage, || format!("key {key}: {}: {item} of {value:?} has no write", who())),
                Some(write) if write.key != key => report.add(Kind::OtherKey, || {
                    let writer = write.transaction;
                    format!("key {key}: {}: T{writer} wrote {item} of {value:?} to key {}", who(), write.key)
                }),
                Some(_) if !known.insert(item) => report
                    .add(Kind::Duplicate, || format!("key {key}: {}: {item} is twice in {value:?}", who())),
                Some(_) => continue,
            }
            return false;
        }
        true
    }
}
