//! Lock owners.
//!
//! **Purpose.** A [`LockOwner`] is the handle of a lock owner, shared by its transaction and its waiters.
//! [`LockOwners`] is the set of lock owners that hold or request locks, with the wait of each.
//!
//! **Invariants.** The state of a wait changes under the mutex of the lock table (by type). A lock owner is `resolved`
//! from the moment in which the outcome of its wait is known until it waits again (checked by
//! `locks/owner.rs::take_woken`). The thread that resolves it queues it to be woken once the mutex is free (test:
//! `every_end_of_a_wait_wakes_the_waiting_thread`).

use core::{mem, time::Duration};
use std::collections::{BTreeMap, BTreeSet};

use super::{queue::Place, request::LockRequest};
use crate::{
    error::LockError,
    ids::{SpaceId, TrxId},
    sync::{
        Arc, Event, Wake,
        atomic::{
            AtomicBool, AtomicU32, AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
        thread,
    },
};

/// The beginning of a call of a transaction. A change or statement outside of transactions has the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallStart {
    /// The number of its thread.
    thread: Option<usize>,
    /// The number of the last interrupt before it.
    interrupts: u64,
}

impl CallStart {
    pub(super) fn new(interrupts: u64) -> Self {
        Self { thread: Some(thread::number()), interrupts }
    }

    /// Returns the beginning of a further call of the same statement.
    pub(crate) fn on_this_thread(self) -> Self {
        Self { thread: Some(thread::number()), ..self }
    }
}

/// What a user has set for a transaction that others may have to wait for. A change or statement outside of
/// transactions has the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerOptions {
    /// The number by which the user finds the transaction in lists; 0 for none.
    pub tag: u64,
    /// The member of a deadlock with the lowest priority is the victim.
    pub deadlock_priority: i32,
    /// The range locks of transactions with the same number do not block each other's inserts; 0 for none.
    pub ordering_group: u64,
}

impl OwnerOptions {
    /// The options of an owner that is the victim of every deadlock that it is part of.
    pub(crate) const VICTIM: Self = Self { tag: 0, deadlock_priority: i32::MIN, ordering_group: 0 };
    /// The lowest priority of a transaction.
    pub const MIN_PRIORITY: i32 = i32::MIN + 1;
}

/// The transaction for which a request to insert is checked.
#[derive(Clone, Copy, Debug)]
pub struct Inserter {
    /// Its id, if it has one.
    pub trx: Option<TrxId>,
    /// The ordering group ([`OwnerOptions::ordering_group`]).
    pub ordering_group: u64,
}

impl From<Option<TrxId>> for Inserter {
    /// Returns an inserter without an ordering group.
    fn from(trx: Option<TrxId>) -> Self {
        Self { trx, ordering_group: 0 }
    }
}

impl Inserter {
    /// Returns whether range locks of an owner with this ordering group block it.
    pub(super) fn is_blocked_by(self, holder: TrxId, ordering_group: u64) -> bool {
        self.trx != Some(holder) && (ordering_group == 0 || ordering_group != self.ordering_group)
    }
}

/// Stands for no thread.
const NO_THREAD: usize = usize::MAX;

/// A lock owner: a transaction or statement that requests locks, or a transaction with writes that others wait for.
#[derive(Debug)]
pub struct LockOwner {
    id: TrxId,
    /// The tag of its transaction; 0 for none.
    tag: AtomicU64,
    /// An `i32`.
    deadlock_priority: AtomicU32,
    ordering_group: u64,
    /// Rows changed.
    changed: AtomicU64,
    /// The thread of the last call of its transaction; none if it accepts no more calls. For messages only: a thread
    /// may serve many sessions.
    thread: AtomicUsize,
    ended: AtomicBool,
    /// The number of the last interrupt that arrived outside of a wait; 0 if there was none.
    interrupted: AtomicU64,
    /// Interrupts up to this number are ignored.
    forgotten: AtomicU64,
    resolved: AtomicBool,
    /// A transaction may have come into the way of its wait since the last list for the observer. Changes under the
    /// mutex of the lock table.
    outdated: AtomicBool,
    event: Event,
}

impl LockOwner {
    pub(super) fn new(id: TrxId, options: OwnerOptions) -> Self {
        let OwnerOptions { tag, deadlock_priority, ordering_group } = options;
        Self {
            id,
            tag: AtomicU64::new(tag),
            deadlock_priority: AtomicU32::new(deadlock_priority.cast_unsigned()),
            ordering_group,
            changed: AtomicU64::new(0),
            thread: AtomicUsize::new(NO_THREAD),
            ended: AtomicBool::new(false),
            interrupted: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            resolved: AtomicBool::new(false),
            outdated: AtomicBool::new(false),
            event: Event::new(),
        }
    }

    /// Returns the id of its transaction or statement.
    pub fn id(&self) -> TrxId {
        self.id
    }

    /// Changes the options of its transaction, except for the ordering group.
    pub(crate) fn set_options(&self, options: OwnerOptions) {
        assert!(
            options.ordering_group == self.ordering_group,
            "the ordering group of transaction {} changes while it has locks",
            self.id
        );
        self.tag.store(options.tag, Relaxed);
        self.deadlock_priority.store(options.deadlock_priority.cast_unsigned(), Relaxed);
    }

    /// Returns it as the transaction that requests an insert.
    pub(super) fn inserter(&self) -> Inserter {
        Inserter { trx: Some(self.id), ordering_group: self.ordering_group }
    }

    /// Adds changed rows to its weight. Of the transactions on a cycle with the lowest priority, the one that has
    /// changed and locked the least is the deadlock victim.
    pub(crate) fn add_weight(&self, rows: u64) {
        self.changed.fetch_add(rows, Relaxed);
    }

    /// Returns whether the transaction has begun to release its locks. Must be called under the mutex of the lock
    /// table.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(SeqCst)
    }

    pub(super) fn set_ended(&self) {
        self.ended.store(true, SeqCst);
    }

    /// Ends the next wait before it begins, by the interrupt of this number.
    pub(super) fn interrupt_next(&self, number: u64) {
        self.interrupted.store(number, SeqCst);
    }

    /// Begins a call of its transaction.
    pub fn begin_call(&self, call: CallStart) {
        if let Some(thread) = call.thread {
            self.thread.store(thread, Relaxed);
        }
        self.forget_interrupts(call.interrupts);
    }

    /// Notes that its transaction accepts no more calls, or ends.
    pub(crate) fn forget_thread(&self) {
        self.thread.store(NO_THREAD, Relaxed);
    }

    /// Returns the thread of the last call of its transaction. `None` for a change or statement outside of
    /// transactions.
    pub(super) fn thread(&self) -> Option<usize> {
        Some(self.thread.load(Relaxed)).filter(|thread| *thread != NO_THREAD)
    }

    /// Ignores interrupts up to this number, which came before the current call ([`LockManager::interrupts`]). Called
    /// by the transaction itself.
    ///
    /// [`LockManager::interrupts`]: super::LockManager::interrupts
    pub(crate) fn forget_interrupts(&self, up_to: u64) {
        if self.forgotten.load(SeqCst) < up_to {
            self.forgotten.store(up_to, SeqCst);
        }
        #[cfg(not(feature = "model"))]
        debug_assert!(
            self.forgotten.load(SeqCst) >= up_to,
            "an interrupt from before the call ends a wait of it"
        );
    }

    /// Returns whether the next wait ends before it begins.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.load(SeqCst) > self.forgotten.load(SeqCst)
    }

    /// As [`LockOwner::is_interrupted`], and clears the interrupt. Called by the transaction itself.
    pub(crate) fn take_interrupt(&self) -> bool {
        let number = self.interrupted.load(SeqCst);
        let is_interrupted = number > self.forgotten.load(SeqCst);
        self.forget_interrupts(number);
        is_interrupted
    }

    /// Returns whether the outcome of the wait is known.
    pub(super) fn is_resolved(&self) -> bool {
        self.resolved.load(SeqCst)
    }

    /// Returns whether the list for the observer must be made again.
    pub(super) fn is_outdated(&self) -> bool {
        self.outdated.load(SeqCst)
    }

    pub(super) fn event(&self) -> &Event {
        &self.event
    }
}

impl Wake for LockOwner {
    fn wake(&self) {
        self.event.notify();
    }
}

/// A lock request that waits.
#[derive(Debug)]
pub(super) struct Wait {
    pub wanted: LockRequest,
    pub place: Place,
    pub started_at: Duration,
}

/// The lock table's entry of a lock owner that holds or requests locks.
#[derive(Debug)]
pub(super) struct OwnerState {
    lock_owner: Arc<LockOwner>,
    /// The tablespaces in which it has locks, or had locks that were released.
    pub spaces: BTreeSet<SpaceId>,
    pub wait: Option<Wait>,
    /// The outcome of the last wait, until the waiter takes it.
    pub outcome: Option<Result<(), LockError>>,
}

impl OwnerState {
    /// Returns the thread of the last call of its transaction.
    pub(super) fn thread(&self) -> Option<usize> {
        self.lock_owner.thread()
    }

    /// Returns the tag of its transaction; 0 if it has none.
    pub(super) fn tag(&self) -> u64 {
        self.lock_owner.tag.load(Relaxed)
    }

    /// Returns its priority among the members of a deadlock.
    pub(super) fn deadlock_priority(&self) -> i32 {
        self.lock_owner.deadlock_priority.load(Relaxed).cast_signed()
    }

    /// Returns it as the transaction that requests an insert.
    pub(super) fn inserter(&self) -> Inserter {
        self.lock_owner.inserter()
    }

    /// Returns the number of rows changed, as reported by the transaction.
    pub(super) fn changed(&self) -> u64 {
        self.lock_owner.changed.load(Relaxed)
    }
}

/// All lock owners that hold or request locks.
#[derive(Debug, Default)]
pub(super) struct LockOwners {
    all: BTreeMap<TrxId, OwnerState>,
    tickets: u64,
    woken: Vec<Arc<LockOwner>>,
    /// There is an observer of waits.
    is_observed: bool,
}

impl LockOwners {
    /// Marks waits from now on as outdated.
    pub(super) fn observe(&mut self) {
        self.is_observed = true;
    }

    /// Returns whether there is an observer of waits.
    pub(super) fn is_observed(&self) -> bool {
        self.is_observed
    }

    /// Marks waits as outdated: another transaction may have come into their way.
    pub(super) fn outdate(&mut self, waiters: impl IntoIterator<Item = TrxId>) {
        debug_assert!(self.is_observed, "waits are marked for an observer, and there is none");
        for trx in waiters {
            let owner = self.all.get(&trx).filter(|owner| owner.wait.is_some());
            debug_assert!(owner.is_some(), "{trx} does not wait, and its wait is outdated");
            if let Some(OwnerState { lock_owner, .. }) = owner
                && !lock_owner.outdated.swap(true, SeqCst)
            {
                self.woken.push(lock_owner.clone());
            }
        }
    }

    /// Returns whether a transaction waits and its list for the observer is to be made, and notes that it is complete.
    pub(super) fn begin_report(&mut self, trx: TrxId) -> bool {
        let waiting = self.all.get(&trx).filter(|owner| self.is_observed && owner.wait.is_some());
        let Some(OwnerState { lock_owner, .. }) = waiting else { return false };
        if lock_owner.outdated.swap(false, SeqCst) {
            self.woken.retain(|woken| woken.id != trx);
        }
        true
    }

    /// Returns the entry of a lock owner, and creates it if needed.
    pub(super) fn enter(&mut self, lock_owner: &Arc<LockOwner>) -> &mut OwnerState {
        self.all.entry(lock_owner.id).or_insert_with(|| OwnerState {
            lock_owner: lock_owner.clone(),
            spaces: BTreeSet::new(),
            wait: None,
            outcome: None,
        })
    }

    /// Returns the entry of a lock owner, if it has one.
    pub(super) fn get(&self, trx: TrxId) -> Option<&OwnerState> {
        self.all.get(&trx)
    }

    /// Returns the entry of a lock owner, if it has one, mutable.
    pub(super) fn get_mut(&mut self, trx: TrxId) -> Option<&mut OwnerState> {
        self.all.get_mut(&trx)
    }

    /// Returns the tag of a transaction; 0 if it has none, or is not a lock owner.
    pub(super) fn tag(&self, trx: TrxId) -> u64 {
        self.get(trx).map_or(0, OwnerState::tag)
    }

    /// Removes a lock owner that has no locks left.
    pub(super) fn remove(&mut self, trx: TrxId) {
        let owner = self.all.remove(&trx);
        debug_assert!(owner.is_none_or(|p| p.wait.is_none()), "a transaction ends when its calls have");
    }

    /// Returns all lock owners, by id.
    pub(super) fn iter(&self) -> impl Iterator<Item = (TrxId, &OwnerState)> {
        self.all.iter().map(|(trx, owner)| (*trx, owner))
    }

    /// Returns the key that a lock owner waits to insert, and the owner as its inserter.
    pub(super) fn awaited_insert(&self, trx: TrxId) -> Option<(Inserter, &[u8])> {
        let owner = self.get(trx)?;
        match &owner.wait.as_ref()?.wanted {
            LockRequest::Insert(row) => Some((owner.inserter(), &row.key)),
            LockRequest::Table(..) | LockRequest::Row(..) => None,
        }
    }

    /// Returns the waiting request of a lock owner.
    pub(super) fn wait_of(&self, trx: TrxId) -> Option<&Wait> {
        self.get(trx)?.wait.as_ref()
    }

    /// Returns a ticket number larger than all before.
    pub(super) fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// Begins a wait.
    pub(super) fn begin_wait(&mut self, lock_owner: &Arc<LockOwner>, wait: Wait) {
        lock_owner.resolved.store(false, SeqCst);
        lock_owner.outdated.store(false, SeqCst);
        let owner = self.enter(lock_owner);
        debug_assert!(owner.wait.is_none(), "a lock owner waits for one lock at a time");
        debug_assert!(Arc::ptr_eq(&owner.lock_owner, lock_owner), "a wait is that of the owner in the table");
        owner.wait = Some(wait);
        owner.outcome = None;
    }

    /// Ends a wait with this outcome. It has left its queue already.
    pub(super) fn end_wait(&mut self, trx: TrxId, outcome: Result<(), LockError>) {
        debug_assert!(self.all.contains_key(&trx), "the wait of an unknown lock owner ends");
        if let Some(owner) = self.all.get_mut(&trx) {
            debug_assert!(owner.outcome.is_none(), "a wait has one outcome");
            owner.wait = None;
            owner.outcome = Some(outcome);
            owner.lock_owner.resolved.store(true, SeqCst);
            self.woken.push(owner.lock_owner.clone());
        }
    }

    /// Ends a wait by granting a lock in this tablespace.
    pub(super) fn grant(&mut self, trx: TrxId, space: SpaceId) {
        debug_assert!(
            self.wait_of(trx).is_some_and(|wait| wait.wanted.space() == space),
            "a lock is granted to an owner that waits for one there"
        );
        self.end_wait(trx, Ok(()));
        if let Some(owner) = self.all.get_mut(&trx) {
            debug_assert!(
                !owner.lock_owner.has_ended(),
                "a lock is granted to transaction {trx}, which has ended"
            );
            owner.spaces.insert(space);
        }
    }

    /// Returns the lock owners that must be woken.
    pub(super) fn take_woken(&mut self) -> Vec<Arc<LockOwner>> {
        let woken = mem::take(&mut self.woken);
        #[cfg(not(feature = "model"))]
        debug_assert!(
            woken.iter().all(|lock_owner| lock_owner.is_resolved() || lock_owner.is_outdated()),
            "a lock owner is woken that has nothing to do"
        );
        woken
    }
}
