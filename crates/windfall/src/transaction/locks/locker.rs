//! Transactions, as the lock table knows them.
//!
//! **Purpose.** A [`Locker`] is what a transaction holds in its hands, and what others hold of it. [`Parties`] is who
//! has locks or wants one, and what each waits for.
//!
//! **Invariants.** What changes about a wait changes under the mutex of the lock table. A locker is `settled` from the
//! moment in which it is known how its wait ends until it waits again; whoever settles it leaves it to be woken when
//! the mutex is free.
//!
//! **May touch.** `ids`, `error`, `sync`.

use core::{mem, time::Duration};
use std::collections::{BTreeMap, BTreeSet};

use super::{queue::Place, request::Wanted};
use crate::{
    error::LockError,
    ids::{SpaceId, TrxId},
    sync::{
        Arc, Event,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
};

/// A transaction that takes locks, or whose writes are to be waited for.
#[derive(Debug)]
pub struct Locker {
    id: TrxId,
    /// Rows changed.
    changed: AtomicU64,
    ended: AtomicBool,
    /// The number of the last interrupt that met no wait; 0 if there was none.
    interrupted: AtomicU64,
    /// Interrupts up to this number are of no account any more.
    forgotten: AtomicU64,
    settled: AtomicBool,
    event: Event,
}

impl Locker {
    pub(super) fn new(id: TrxId) -> Self {
        Self {
            id,
            changed: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            interrupted: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            settled: AtomicBool::new(false),
            event: Event::new(),
        }
    }

    /// Whose it is.
    pub fn id(&self) -> TrxId {
        self.id
    }

    /// The transaction has changed so many rows more. Of those in a deadlock, who has changed and locked least gives
    /// way.
    pub fn add_weight(&self, rows: u64) {
        self.changed.fetch_add(rows, Relaxed);
    }

    /// Whether the transaction has begun to give its locks back. Said under the mutex of the lock table.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(SeqCst)
    }

    pub(super) fn set_ended(&self) {
        self.ended.store(true, SeqCst);
    }

    /// The next wait is to end before it begins, by the interrupt of this number.
    pub(super) fn interrupt_next(&self, number: u64) {
        self.interrupted.store(number, SeqCst);
    }

    /// Interrupts up to this number came before the call that is under way ([`Locks::interrupts`]). For the transaction
    /// itself.
    ///
    /// [`Locks::interrupts`]: super::Locks::interrupts
    pub fn forget_interrupts(&self, up_to: u64) {
        if self.forgotten.load(SeqCst) < up_to {
            self.forgotten.store(up_to, SeqCst);
        }
    }

    /// Whether the next wait is to end before it begins.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.load(SeqCst) > self.forgotten.load(SeqCst)
    }

    /// As [`Locker::is_interrupted`]; it is not any more. For the transaction itself.
    pub fn take_interrupt(&self) -> bool {
        let number = self.interrupted.load(SeqCst);
        let is_interrupted = number > self.forgotten.load(SeqCst);
        self.forget_interrupts(number);
        is_interrupted
    }

    /// Whether it is known how the wait ends.
    pub(super) fn is_settled(&self) -> bool {
        self.settled.load(SeqCst)
    }

    pub(super) fn event(&self) -> &Event {
        &self.event
    }
}

/// What somebody waits for.
#[derive(Debug)]
pub struct Wait {
    pub wanted: Wanted,
    pub place: Place,
    pub since: Duration,
}

/// A transaction that has locks or wants one.
#[derive(Debug)]
pub struct Party {
    locker: Arc<Locker>,
    /// Where it has locks, or had some that it gave back.
    pub spaces: BTreeSet<SpaceId>,
    pub wait: Option<Wait>,
    /// How the last wait has ended, until it hears of it.
    pub outcome: Option<Result<(), LockError>>,
}

impl Party {
    /// Rows changed, as it says itself.
    pub fn changed(&self) -> u64 {
        self.locker.changed.load(Relaxed)
    }
}

/// Everybody who has locks or wants one.
#[derive(Debug, Default)]
pub struct Parties {
    all: BTreeMap<TrxId, Party>,
    tickets: u64,
    woken: Vec<Arc<Locker>>,
}

impl Parties {
    /// A transaction, which is entered if it is new.
    pub fn enter(&mut self, locker: &Arc<Locker>) -> &mut Party {
        self.all.entry(locker.id).or_insert_with(|| Party {
            locker: locker.clone(),
            spaces: BTreeSet::new(),
            wait: None,
            outcome: None,
        })
    }

    /// A transaction, if it was entered.
    pub fn get(&self, trx: TrxId) -> Option<&Party> {
        self.all.get(&trx)
    }

    /// The same, to change it.
    pub fn get_mut(&mut self, trx: TrxId) -> Option<&mut Party> {
        self.all.get_mut(&trx)
    }

    /// Takes a transaction out that has nothing any more.
    pub fn remove(&mut self, trx: TrxId) {
        let party = self.all.remove(&trx);
        debug_assert!(party.is_none_or(|p| p.wait.is_none()), "a transaction ends when its calls have");
    }

    /// Everybody, by id.
    pub fn iter(&self) -> impl Iterator<Item = (TrxId, &Party)> {
        self.all.iter().map(|(trx, party)| (*trx, party))
    }

    /// What a transaction waits for.
    pub fn wait_of(&self, trx: TrxId) -> Option<&Wait> {
        self.get(trx)?.wait.as_ref()
    }

    /// Larger than all before.
    pub fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// A transaction waits from here on.
    pub fn begin_wait(&mut self, locker: &Arc<Locker>, wait: Wait) {
        locker.settled.store(false, SeqCst);
        let party = self.enter(locker);
        party.wait = Some(wait);
        party.outcome = None;
    }

    /// A wait ends so. It is no concern of a queue any more.
    pub fn settle(&mut self, trx: TrxId, outcome: Result<(), LockError>) {
        if let Some(party) = self.all.get_mut(&trx) {
            party.wait = None;
            party.outcome = Some(outcome);
            party.locker.settled.store(true, SeqCst);
            self.woken.push(party.locker.clone());
        }
    }

    /// A wait ends with a lock in this tablespace.
    pub fn serve(&mut self, trx: TrxId, space: SpaceId) {
        self.settle(trx, Ok(()));
        if let Some(party) = self.all.get_mut(&trx) {
            party.spaces.insert(space);
        }
    }

    /// Those who are to be woken.
    pub fn take_woken(&mut self) -> Vec<Arc<Locker>> {
        mem::take(&mut self.woken)
    }
}
