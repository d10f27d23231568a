//! The locks of the reference: shared and exclusive row locks, and gap locks, which only block inserts. Waiters are
//! served in order of arrival, except that owners of a lock on the row come first.

use std::collections::BTreeMap;

use super::{Key, TrxId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub key: Key,
    pub exclusive: bool,
    /// The row does not exist yet.
    pub insert: bool,
}

#[derive(Default)]
pub(super) struct Locks {
    /// For each row: the owners of its locks, and whether they are exclusive.
    rows: BTreeMap<Key, Vec<(TrxId, bool)>>,
    gaps: Vec<(TrxId, Key, Key)>,
    /// The waiting transactions and their requests, in order of arrival.
    waiting: Vec<(TrxId, Request)>,
}

impl Locks {
    pub(super) fn holds(&self, trx: TrxId, key: Key) -> bool {
        self.rows.get(&key).is_some_and(|locks| locks.iter().any(|lock| lock.0 == trx))
    }

    pub(super) fn count(&self, trx: TrxId) -> usize {
        self.rows.values().flatten().filter(|lock| lock.0 == trx).count()
    }

    /// Requests a lock. Returns whether it was granted; otherwise the transaction waits.
    pub(super) fn take(&mut self, trx: TrxId, request: Request) -> bool {
        // A call that continues may request another lock, which then goes to the end of the queue.
        self.waiting.retain(|known| known.0 != trx || known.1 == request);
        if self.blockers(trx, request).next().is_some() {
            if self.waiting.iter().all(|known| known.0 != trx) {
                self.waiting.push((trx, request));
            }
            return false;
        }
        self.waiting.retain(|known| known.0 != trx);
        let locks = self.rows.entry(request.key).or_default();
        match locks.iter_mut().find(|lock| lock.0 == trx) {
            Some(lock) => lock.1 |= request.exclusive,
            None => locks.push((trx, request.exclusive)),
        }
        true
    }

    fn blockers(&self, trx: TrxId, request: Request) -> impl Iterator<Item = TrxId> {
        let Request { key, exclusive, insert } = request;
        let rows = self.rows.get(&key).into_iter().flatten();
        let rows = rows.filter(move |lock| lock.0 != trx && (lock.1 || exclusive)).map(|lock| lock.0);
        let gaps =
            self.gaps.iter().filter(move |gap| insert && gap.0 != trx && (gap.1..=gap.2).contains(&key));
        let upgrades = self.holds(trx, key);
        let before = self.waiting.iter().take_while(move |known| known.0 != trx);
        let before =
            before.filter(move |(_, other)| !upgrades && other.key == key && (other.exclusive || exclusive));
        rows.chain(gaps.map(|gap| gap.0)).chain(before.map(|known| known.0))
    }

    /// Returns the wait cycle that this transaction closes, with itself first.
    pub(super) fn cycle(&self, trx: TrxId) -> Vec<TrxId> {
        // Each with the index of its predecessor.
        let mut reached: Vec<(TrxId, usize)> = vec![(trx, 0)];
        let mut at = 0;
        while at < reached.len() {
            let one = reached[at].0;
            if let Some((_, request)) = self.waiting.iter().find(|known| known.0 == one) {
                for blocker in self.blockers(one, *request) {
                    if blocker == trx {
                        let mut cycle = Vec::new();
                        let mut back = at;
                        while back > 0 {
                            cycle.push(reached[back].0);
                            back = reached[back].1;
                        }
                        cycle.push(trx);
                        cycle.reverse();
                        return cycle;
                    }
                    if reached.iter().all(|known| known.0 != blocker) {
                        reached.push((blocker, at));
                    }
                }
            }
            at += 1;
        }
        Vec::new()
    }

    /// Locks the gaps of a range. A range that grows is one lock.
    pub(super) fn add_gap(&mut self, trx: TrxId, first: Key, last: Key) {
        match self.gaps.iter_mut().find(|gap| gap.0 == trx && gap.1 == first) {
            Some(gap) => gap.2 = gap.2.max(last),
            None => self.gaps.push((trx, first, last)),
        }
    }

    pub(super) fn release_row(&mut self, trx: TrxId, key: Key) {
        if let Some(locks) = self.rows.get_mut(&key) {
            locks.retain(|lock| lock.0 != trx);
        }
    }

    pub(super) fn release(&mut self, trx: TrxId) {
        self.rows.retain(|_, locks| {
            locks.retain(|lock| lock.0 != trx);
            !locks.is_empty()
        });
        self.gaps.retain(|gap| gap.0 != trx);
        self.waiting.retain(|known| known.0 != trx);
    }
}
