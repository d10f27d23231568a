//! The locks of one tablespace.
//!
//! **Purpose.** Everything that is locked in a tablespace hangs here: the lock of its table, those of rows, ranges, and
//! those who wait to insert. A drop has the lock of its table to itself, so nothing else is left by then.
//!
//! **Invariants.** `held` names the rows of which a transaction is a holder, and no others. A row's queue is there as
//! long as somebody holds the row. Who waits is served in the step in which what was in the way has gone.
//!
//! **May touch.** `ids`, `keys`, `error`, `sync`.

use core::{ops::Bound::Included, time::Duration};
use std::collections::{BTreeMap, BTreeSet};

use super::{
    locker::{Locker, Parties, Wait},
    mode::{RowMode, TableMode},
    queue::{Place, Queue},
    ranges::Ranges,
    request::{HeldLock, Lock, RowName, Wanted},
};
use crate::{
    error::InTheWay,
    ids::{SpaceId, TrxId},
    keys::KeyRange,
    sync::Arc,
};

/// A key of the tree, which those who hold its row share.
type Key = Arc<[u8]>;

/// The locks.
#[derive(Debug)]
pub struct Space {
    id: SpaceId,
    table: Queue,
    rows: BTreeMap<Key, Queue>,
    held: BTreeMap<TrxId, BTreeSet<Key>>,
    ranges: BTreeMap<TrxId, Ranges>,
    inserters: BTreeSet<TrxId>,
}

/// How many rows are locked, how many transactions have ranges, and whether the table is locked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub rows: u64,
    pub ranges: u64,
    pub tables: u64,
}

fn row<'a>(rows: &'a mut BTreeMap<Key, Queue>, key: &[u8]) -> Option<(&'a Key, &'a mut Queue)> {
    rows.range_mut::<[u8], _>((Included(key), Included(key))).next()
}

fn row_or_new<'a>(rows: &'a mut BTreeMap<Key, Queue>, key: &[u8]) -> (&'a Key, &'a mut Queue) {
    if !rows.contains_key(key) {
        rows.insert(key.into(), Queue::default());
    }
    row(rows, key).expect("it was just made, or there before")
}

impl Space {
    /// A tablespace without locks.
    pub fn new(id: SpaceId) -> Self {
        Self {
            id,
            table: Queue::default(),
            rows: BTreeMap::new(),
            held: BTreeMap::new(),
            ranges: BTreeMap::new(),
            inserters: BTreeSet::new(),
        }
    }

    /// Takes what is wanted, if nobody is in the way.
    pub fn take(&mut self, me: &Arc<Locker>, wanted: &Wanted, parties: &mut Parties) -> bool {
        let trx = me.id();
        let taken = match wanted {
            Wanted::Table(_, mode) => self.table.take(trx, *mode),
            Wanted::Row(row, mode) => {
                let (key, queue) = row_or_new(&mut self.rows, &row.key);
                let taken = queue.take(trx, (*mode).into());
                if taken {
                    let key = key.clone();
                    self.held.entry(trx).or_default().insert(key);
                }
                taken
            }
            Wanted::Insert(row) => return !self.is_held_out(Some(trx), &row.key),
        };
        if taken {
            parties.enter(me).spaces.insert(self.id);
        }
        taken
    }

    /// Waits for what was not to be had.
    pub fn join(&mut self, me: &Arc<Locker>, wanted: Wanted, since: Duration, parties: &mut Parties) {
        let (trx, ticket) = (me.id(), parties.ticket());
        let place = match &wanted {
            Wanted::Table(_, mode) => self.table.join(trx, *mode, ticket),
            Wanted::Row(row, mode) => {
                row_or_new(&mut self.rows, &row.key).1.join(trx, (*mode).into(), ticket)
            }
            Wanted::Insert(_) => {
                self.inserters.insert(trx);
                Place::NONE
            }
        };
        parties.begin_wait(me, Wait { wanted, place, since });
    }

    /// Waits no more. Who stood behind may be served.
    pub fn leave(&mut self, trx: TrxId, wait: &Wait, parties: &mut Parties) {
        match &wait.wanted {
            Wanted::Table(..) => {
                self.table.leave(wait.place);
                self.serve_table(parties);
            }
            Wanted::Row(name, _) => {
                if let Some((_, queue)) = row(&mut self.rows, &name.key) {
                    queue.leave(wait.place);
                }
                self.serve_row(&name.key, parties);
            }
            Wanted::Insert(_) => drop(self.inserters.remove(&trx)),
        }
    }

    /// Whether those who come later pass by who waits for the table.
    pub fn set_yielding(&mut self, place: Place, yields: bool, parties: &mut Parties) {
        self.table.set_yielding(place, yields);
        if yields {
            self.serve_table(parties);
        }
    }

    fn serve_table(&mut self, parties: &mut Parties) {
        self.table.serve(|trx| parties.serve(trx, self.id));
    }

    fn serve_row(&mut self, key: &[u8], parties: &mut Parties) {
        let Some((key, queue)) = row(&mut self.rows, key) else { return };
        queue.serve(|trx| {
            self.held.entry(trx).or_default().insert(key.clone());
            parties.serve(trx, self.id);
        });
        if queue.is_empty() {
            let key = key.clone();
            self.rows.remove(&key);
        }
    }

    /// Lets those go on whose keys no range holds out any more.
    fn serve_inserters(&mut self, parties: &mut Parties) {
        let is_free = |trx: &TrxId| {
            let key = parties.wait_of(*trx).and_then(|wait| wait.wanted.key());
            key.is_none_or(|key| !self.is_held_out(Some(*trx), key))
        };
        let free: Vec<TrxId> = self.inserters.iter().copied().filter(is_free).collect();
        for trx in free {
            self.inserters.remove(&trx);
            parties.settle(trx, Ok(()));
        }
    }

    /// Whether a range of somebody else keeps this key out.
    pub fn is_held_out(&self, me: Option<TrxId>, key: &[u8]) -> bool {
        self.ranges.iter().any(|(trx, ranges)| Some(*trx) != me && ranges.cover(key))
    }

    /// Whether somebody else holds the row.
    pub fn is_held(&self, me: Option<TrxId>, key: &[u8]) -> bool {
        self.rows.get(key).is_some_and(|queue| queue.holders().any(|(trx, _)| Some(trx) != me))
    }

    /// Whether nobody else keeps others from sharing the row.
    pub fn may_share(&self, me: Option<TrxId>, key: &[u8]) -> bool {
        self.rows.get(key).is_none_or(|queue| {
            queue.holders().all(|(trx, modes)| Some(trx) == me || !modes.conflict(TableMode::Shared))
        })
    }

    /// A transaction that has written a row holds it.
    pub fn make_explicit(&mut self, holder: &Arc<Locker>, key: &[u8], parties: &mut Parties) {
        let trx = holder.id();
        let (name, queue) = row_or_new(&mut self.rows, key);
        if queue.held_by(trx).cover(TableMode::Exclusive) {
            return;
        }
        queue.hold(trx, TableMode::Exclusive);
        let name = name.clone();
        let party = parties.enter(holder);
        party.spaces.insert(self.id);
        // If it is in this very queue, it stands before those now who wait for it.
        if let Some(Wait { wanted: Wanted::Row(wanted, mode), place, .. }) = &mut party.wait
            && wanted.space == self.id
            && *wanted.key == *key
        {
            queue.leave(*place);
            *place = queue.join(trx, (*mode).into(), place.ticket());
        }
        self.held.entry(trx).or_default().insert(name);
        self.serve_row(key, parties);
    }

    /// Locks a range for a transaction.
    pub fn lock_range(&mut self, me: &Arc<Locker>, range: KeyRange, parties: &mut Parties) {
        parties.enter(me).spaces.insert(self.id);
        self.ranges.entry(me.id()).or_default().lock(range);
    }

    /// How a transaction holds a row, if it does.
    pub fn held_mode(&self, trx: TrxId, key: &[u8]) -> Option<RowMode> {
        let held = self.rows.get(key)?.held_by(trx);
        held.iter().last().map(row_mode)
    }

    /// Gives one row back, or what is stronger than this mode, and serves who waited for that.
    pub fn ease_row(&mut self, trx: TrxId, key: &[u8], to: Option<RowMode>, parties: &mut Parties) {
        let Some((_, queue)) = row(&mut self.rows, key) else { return };
        if let Some(mode) = to {
            if queue.ease(trx, mode.into()) {
                self.serve_row(key, parties);
            }
        } else if queue.give_back(trx) {
            if let Some(held) = self.held.get_mut(&trx) {
                held.remove(key);
                if held.is_empty() {
                    self.held.remove(&trx);
                }
            }
            self.serve_row(key, parties);
        }
    }

    /// Gives back what a transaction has here, so many rows at most: the table last, which stands above the rows. Says
    /// whether that was all.
    pub fn give_back(&mut self, trx: TrxId, rows: &mut usize, parties: &mut Parties) -> bool {
        if self.ranges.remove(&trx).is_some() {
            self.serve_inserters(parties);
        }
        while let Some(key) = self.held.get_mut(&trx).and_then(BTreeSet::pop_first) {
            if let Some(queue) = self.rows.get_mut(&key) {
                queue.give_back(trx);
            }
            self.serve_row(&key, parties);
            *rows = rows.saturating_sub(1);
            if *rows == 0 {
                return false;
            }
        }
        self.held.remove(&trx);
        if self.table.give_back(trx) {
            self.serve_table(parties);
        }
        true
    }

    /// The queue in which somebody stands who wants this; none for who wants to insert.
    pub fn queue(&self, wanted: &Wanted) -> Option<(&Queue, TableMode)> {
        match wanted {
            Wanted::Table(_, mode) => Some((&self.table, *mode)),
            Wanted::Row(row, mode) => Some((self.rows.get(&*row.key)?, (*mode).into())),
            Wanted::Insert(_) => None,
        }
    }

    /// Who has ranges here.
    pub fn ranges(&self) -> impl Iterator<Item = (TrxId, &Ranges)> {
        self.ranges.iter().map(|(trx, ranges)| (*trx, ranges))
    }

    /// Who is in the way of somebody who wants this, and stands there, or last if he does not wait.
    pub fn in_the_way(&self, trx: TrxId, wanted: &Wanted, place: Option<Place>) -> InTheWay {
        if let Some((queue, mode)) = self.queue(wanted) {
            let place = place.unwrap_or_else(|| queue.place(trx, u64::MAX));
            let holders = queue.holders_against(trx, mode);
            return InTheWay::new(holders.chain(queue.waiters_against(place, mode, 0)));
        }
        let key = wanted.key().unwrap_or_default();
        let others = self.ranges().filter(|(other, ranges)| *other != trx && ranges.cover(key));
        InTheWay::new(others.map(|(other, _)| other))
    }

    /// What somebody holds that keeps another one from having this; none if he only stands before him.
    pub fn held_against(&self, holder: TrxId, wanted: &Wanted) -> Option<Lock> {
        if let Some((queue, mode)) = self.queue(wanted) {
            let rival = queue.held_by(holder).iter().filter(|held| held.conflicts(mode)).last()?;
            return Some(match wanted.key() {
                None => Lock::Table(self.id, rival),
                Some(key) => Lock::Row(self.name(key), row_mode(rival)),
            });
        }
        let range = self.ranges.get(&holder)?.around(wanted.key()?)?;
        Some(Lock::Range(self.id, range))
    }

    fn name(&self, key: &[u8]) -> RowName {
        RowName { space: self.id, key: key.into() }
    }

    /// How many locks a transaction holds here.
    pub fn held_by(&self, trx: TrxId) -> u64 {
        let rows = self.held.get(&trx).map_or(0, BTreeSet::len);
        let ranges = self.ranges.get(&trx).map_or(0, Ranges::len);
        (self.table.held_by(trx).iter().count() + rows + ranges) as u64
    }

    /// How many locks are held here.
    pub fn held(&self) -> u64 {
        let table: usize = self.table.holders().map(|(_, modes)| modes.iter().count()).sum();
        let rows: usize = self.held.values().map(BTreeSet::len).sum();
        let ranges: usize = self.ranges.values().map(Ranges::len).sum();
        (table + rows + ranges) as u64
    }

    /// Every lock that is held here.
    pub fn listing(&self) -> impl Iterator<Item = HeldLock> {
        let table = self.table.holders().flat_map(move |(trx, modes)| {
            modes.iter().map(move |mode| HeldLock { trx, lock: Lock::Table(self.id, mode) })
        });
        let rows = self.rows.iter().flat_map(move |(key, queue)| {
            queue.holders().flat_map(move |(trx, modes)| {
                let lock = move |mode| Lock::Row(self.name(key), row_mode(mode));
                modes.iter().map(move |mode| HeldLock { trx, lock: lock(mode) })
            })
        });
        let ranges = self.ranges.iter().flat_map(move |(trx, ranges)| {
            ranges.iter().map(move |range| HeldLock { trx: *trx, lock: Lock::Range(self.id, range) })
        });
        table.chain(rows).chain(ranges)
    }

    /// What is counted for those who only want to know whether there is anything at all.
    pub fn counts(&self) -> Counts {
        Counts {
            rows: self.rows.len() as u64,
            ranges: self.ranges.len() as u64,
            tables: u64::from(!self.table.is_empty()),
        }
    }

    /// Whether nothing is locked or waited for.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty() && self.rows.is_empty() && self.ranges.is_empty() && self.inserters.is_empty()
    }
}

/// A row has no intentions.
fn row_mode(mode: TableMode) -> RowMode {
    if mode == TableMode::Exclusive { RowMode::Exclusive } else { RowMode::Shared }
}
