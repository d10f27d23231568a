//! Lock owners.
//!
//! **Purpose.** A [`LockOwner`] is the handle of a lock owner, shared by its transaction, its waiters, and the queues
//! in which it holds or requests locks. It has the list of what it holds, so that its end finds its locks in their
//! shards.
//!
//! **Invariants.** The list has the rows that it holds, and the tablespaces in which it has locks of a table or of
//! ranges, each once (checked by `locks/shards.rs::check_invariants`). It changes under the mutex of the shard of the
//! lock, and under its own (by type). Nothing enters it after the end (test:
//! `no_request_waits_for_a_transaction_that_has_ended`). A lock owner is `resolved` from the moment in which the
//! outcome of its wait is known until it waits again (checked by `locks/owner.rs::resolve`), and changes that under
//! the mutex of the shard of the lock that it waits for (test: `a_release_reaches_waiters_of_each_shard`). The thread
//! that resolves it queues it to be woken once its mutexes are free (test:
//! `every_end_of_a_wait_wakes_the_waiting_thread`).

use core::{fmt, mem};

use smallvec::SmallVec;

use super::isolation::Isolation;
use crate::{
    ids::{SpaceId, TrxId},
    sync::{
        Arc, Event, Mutex, Rank, Wake,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
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
    pub deadlock_priority: i64,
    /// The range locks of transactions with the same number do not block each other's inserts; 0 for none.
    pub ordering_group: u64,
    /// The isolation level, for lists.
    pub isolation: Option<Isolation>,
}

impl OwnerOptions {
    /// The options of an owner that is the victim of every deadlock that it is part of.
    pub(crate) const VICTIM: Self =
        Self { tag: 0, deadlock_priority: i64::MIN, ordering_group: 0, isolation: None };
    /// The lowest priority of a transaction.
    pub const MIN_PRIORITY: i64 = i64::MIN + 1;
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
    /// Returns whether range locks of a lock owner block it.
    pub(super) fn is_blocked_by(self, holder: &LockOwner) -> bool {
        let group = holder.ordering_group;
        self.trx != Some(holder.id) && (group == 0 || group != self.ordering_group)
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
    /// An `i64`.
    deadlock_priority: AtomicU64,
    ordering_group: u64,
    /// Rows changed.
    changed: AtomicU64,
    /// The thread of the last call of its transaction; none if it accepts no more calls. For messages only: a thread
    /// may serve many sessions.
    thread: AtomicUsize,
    /// Changes under the mutex of `held`.
    ended: AtomicBool,
    held: Mutex<HeldLocks>,
    /// The number of the last interrupt that arrived outside of a wait; 0 if there was none.
    interrupted: AtomicU64,
    /// Interrupts up to this number are ignored.
    forgotten: AtomicU64,
    /// It is in a queue.
    waits: AtomicBool,
    resolved: AtomicBool,
    /// A transaction may have come into the way of its wait since the last list for the observer. Changes under the
    /// mutex of the shard.
    outdated: AtomicBool,
    event: Event,
}

impl LockOwner {
    pub(super) fn new(id: TrxId, options: OwnerOptions) -> Self {
        let OwnerOptions { tag, deadlock_priority, ordering_group, isolation: _ } = options;
        Self {
            id,
            tag: AtomicU64::new(tag),
            deadlock_priority: AtomicU64::new(deadlock_priority.cast_unsigned()),
            ordering_group,
            changed: AtomicU64::new(0),
            thread: AtomicUsize::new(NO_THREAD),
            ended: AtomicBool::new(false),
            held: Mutex::new(Rank::Leaf, HeldLocks::default()),
            interrupted: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            waits: AtomicBool::new(false),
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

    /// Returns whether the transaction has begun to release its locks.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(SeqCst)
    }

    /// Notes the end of the transaction, and returns what it holds. From now on it gets no lock.
    pub(super) fn end(&self) -> HeldLocks {
        let mut held = self.held.lock();
        self.ended.store(true, SeqCst);
        mem::take(&mut *held)
    }

    /// Adds a row to the list of what it holds, unless it has ended. Returns whether it was added.
    pub(super) fn note_row(&self, row: impl FnOnce() -> HeldRow) -> bool {
        let mut held = self.held.lock();
        let may_lock = !self.ended.load(Relaxed);
        if may_lock {
            held.rows.push(row());
        }
        may_lock
    }

    /// Removes a row from the list, from the end of which it is not far.
    pub(super) fn forget_row(&self, space: SpaceId, key: &[u8]) {
        let mut held = self.held.lock();
        let at = held.rows.iter().rposition(|row| row.space == space && *row.key == *key);
        debug_assert!(at.is_some() || self.has_ended(), "a row that is held is in the list of its holder");
        if let Some(at) = at {
            held.rows.swap_remove(at);
        }
    }

    /// Adds a tablespace to the list of those in which it holds a table or ranges.
    pub(super) fn note_space(&self, space: SpaceId) {
        let mut held = self.held.lock();
        debug_assert!(!self.has_ended(), "{} has ended and locks nothing", self.id);
        if !held.spaces.contains(&space) {
            held.spaces.push(space);
        }
    }

    /// Removes a tablespace in which it holds neither the table nor ranges any more.
    pub(super) fn forget_space(&self, space: SpaceId) {
        self.held.lock().spaces.retain(|other| *other != space);
    }

    /// Keeps the announcement of a lock on a whole table, by the tablespace of its rows, until it has released that.
    pub(crate) fn keep_announcement(&self, space: SpaceId, announcement: Box<dyn Announcement>) {
        let mut held = self.held.lock();
        debug_assert!(!self.has_ended(), "{} has ended and locks nothing", self.id);
        debug_assert!(
            held.spaces.contains(&space),
            "an announcement is kept, and {} has no lock on table {space}",
            self.id
        );
        held.announcements.push((space, announcement));
    }

    /// Returns whether it keeps the announcement of a lock on a whole table.
    pub(crate) fn has_announced(&self, space: SpaceId) -> bool {
        self.held.lock().announcements.iter().any(|(known, _)| *known == space)
    }

    /// Removes the announcements of locks on a table, and returns them.
    pub(super) fn take_announcements(&self, space: SpaceId) -> Vec<(SpaceId, Box<dyn Announcement>)> {
        self.held.lock().announcements.extract_if(.., |(known, _)| *known == space).collect()
    }

    /// Removes the rows of a tablespace from the list, and returns them.
    pub(super) fn take_rows(&self, space: SpaceId) -> Vec<HeldRow> {
        let mut held = self.held.lock();
        let (taken, kept) = mem::take(&mut held.rows).into_iter().partition(|row| row.space == space);
        held.rows = kept;
        taken
    }

    /// Returns whether it holds nothing.
    pub(super) fn holds_nothing(&self) -> bool {
        let held = self.held.lock();
        held.rows.is_empty() && held.spaces.is_empty()
    }

    /// Returns the number of rows that it holds, and the tablespaces in which it holds tables or ranges.
    pub(super) fn held_counts(&self) -> (u64, SmallVec<[SpaceId; 2]>) {
        let held = self.held.lock();
        (held.rows.len() as u64, held.spaces.clone())
    }

    /// Returns the number of rows that it holds.
    pub(in crate::txn) fn held_rows(&self) -> u64 {
        self.held.lock().rows.len() as u64
    }

    /// Returns how often a row is in the list.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn times_listed(&self, space: SpaceId, key: &[u8]) -> usize {
        self.held.lock().rows.iter().filter(|row| row.space == space && *row.key == *key).count()
    }

    /// Returns the tag of its transaction; 0 if it has none.
    pub(super) fn tag(&self) -> u64 {
        self.tag.load(Relaxed)
    }

    /// Returns its priority among the members of a deadlock.
    pub(super) fn deadlock_priority(&self) -> i64 {
        self.deadlock_priority.load(Relaxed).cast_signed()
    }

    /// Returns the number of rows changed, as reported by the transaction.
    pub(in crate::txn) fn changed(&self) -> u64 {
        self.changed.load(Relaxed)
    }

    /// Notes that it begins to wait. Its request is not in a queue yet.
    pub(super) fn begin_wait(&self) {
        self.resolved.store(false, SeqCst);
        self.outdated.store(false, SeqCst);
        self.waits.store(true, SeqCst);
    }

    /// Returns whether it waits: its request is, or is about to be, in a queue. Under the mutex of the shard of the
    /// request, which has left the queue if not.
    pub(super) fn waits(&self) -> bool {
        self.waits.load(SeqCst)
    }

    /// Notes that the outcome of its wait is known.
    fn resolve(&self) {
        debug_assert!(cfg!(feature = "model") || self.waits(), "the wait of {} ends twice", self.id);
        self.waits.store(false, SeqCst);
        self.resolved.store(true, SeqCst);
    }

    /// Notes that the list for the observer is complete.
    pub(super) fn begin_report(&self) {
        self.outdated.store(false, SeqCst);
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

/// The place of a lock in the lock table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    /// The number of its shard.
    pub shard: u32,
    /// The hash of its key; 0 for a table or a range.
    pub hash: u64,
}

/// A row that is held.
#[derive(Debug)]
pub(super) struct HeldRow {
    pub spot: Spot,
    pub space: SpaceId,
    pub key: Arc<[u8]>,
}

/// What a lock owner holds.
#[derive(Debug, Default)]
pub(super) struct HeldLocks {
    /// In the order in which they were granted, unless some were released.
    pub rows: Vec<HeldRow>,
    /// The tablespaces in which it holds the table, or ranges.
    pub spaces: SmallVec<[SpaceId; 2]>,
    /// The announcements of its locks on whole tables.
    pub announcements: Vec<(SpaceId, Box<dyn Announcement>)>,
}

/// Announces, until it is dropped, that a transaction has locked a whole table or is about to: a change outside of
/// transactions locks the table first.
pub(crate) trait Announcement: fmt::Debug + Send + Sync {}

/// The lock owners that must be woken when the mutexes of a step are free.
#[derive(Debug, Default)]
pub(super) struct Wakes {
    woken: Vec<Arc<LockOwner>>,
    /// There is an observer of waits.
    is_observed: bool,
}

impl Wakes {
    /// Marks waits from now on as outdated.
    pub(super) fn observe(&mut self) {
        self.is_observed = true;
    }

    /// Returns whether there is an observer of waits.
    pub(super) fn is_observed(&self) -> bool {
        self.is_observed
    }

    /// Ends a wait, whose request has left its queue already.
    pub(super) fn resolve(&mut self, owner: Arc<LockOwner>) {
        owner.resolve();
        self.woken.push(owner);
    }

    /// Marks waits as outdated: another transaction may have come into their way.
    pub(super) fn outdate<'a>(&mut self, waiters: impl IntoIterator<Item = &'a Arc<LockOwner>>) {
        debug_assert!(self.is_observed, "waits are marked for an observer, and there is none");
        for owner in waiters {
            debug_assert!(owner.waits(), "{} does not wait, and its wait is outdated", owner.id);
            if !owner.outdated.swap(true, SeqCst) {
                self.woken.push(owner.clone());
            }
        }
    }

    /// Returns the lock owners that must be woken.
    pub(super) fn take_woken(&mut self) -> Vec<Arc<LockOwner>> {
        mem::take(&mut self.woken)
    }
}
