//! The state of a transaction.
//!
//! **Purpose.** The state from which the next call continues a transaction, or from which it is rolled back.
//!
//! **Invariants.** A transaction with an id is in the table of active transactions until it has ended (checked by
//! `trx/running.rs::suspend`). The records of a transaction form a chain per stream, and the state has the last record
//! of each (checked by `trx/running.rs::write_undo`). A transaction that is prepared has records, and its id (checked
//! by `trx/state.rs::found`). From its prepare on, log is reserved for its end, so that its commit needs no space on
//! the disk (test: `a_prepared_transaction_commits_without_any_free_log`).

use smallvec::SmallVec;

use crate::{
    ids::{SpaceId, TrxId, UndoPos},
    sync::Arc,
    txn::{
        locks::{CallStart, LockManager, LockOwner, OwnerOptions},
        mvcc::{Active, active::Ending},
        undo::{Stream, position::stream_of},
    },
};

/// The log that the full rollback of a transaction needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RollbackLog {
    /// At most this many bytes.
    Bytes(u64),
    /// Recovery has found the transaction and has not read its records.
    Unknown,
}

impl Default for RollbackLog {
    fn default() -> Self {
        Self::Bytes(0)
    }
}

impl RollbackLog {
    /// Returns the bytes, if they are known and at most this many.
    pub(super) fn within(self, most: u64) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(bytes).filter(|bytes| *bytes <= most),
            Self::Unknown => None,
        }
    }

    /// Adds the need of further changes, or of a prepare.
    pub(super) fn add(&mut self, more: u64) {
        if let Self::Bytes(bytes) = self {
            *bytes += more;
        }
    }
}

/// The point at which the rollback of a transaction continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::txn) enum RollbackFrom {
    /// Nothing was undone.
    Begin,
    /// At this logged record.
    Record(UndoPos),
    /// All records are undone, and the end is still to be logged.
    End,
}

/// A transaction between two calls: the state that is needed to continue it or to roll it back.
#[derive(Debug, Default)]
pub struct Suspended {
    /// The id of the transaction, once it has written or locked anything, and the flag by which it announces that it is
    /// about to log its end.
    pub(super) identity: Option<(TrxId, Ending)>,
    /// The stream of its logged records, and the last of them, once one is written.
    pub(super) logged: Option<(u8, Option<UndoPos>)>,
    /// The streams of temporary tables that the transaction has used, each with its last record, once one is written.
    pub(super) temporary: SmallVec<[(Arc<Stream>, Option<UndoPos>); 1]>,
    /// The number of records that it has written.
    pub(super) records: u64,
    /// The number of those that name an entry which was not in its tree before, or was delete-marked there.
    pub(super) added: u64,
    /// The number of partial rollbacks.
    pub(super) rolled_back: u64,
    /// The beginning of its current call or statement.
    pub(super) call: CallStart,
    /// The log that its full rollback needs.
    pub(super) rollback_log: RollbackLog,
    /// The part of that which stays reserved between two calls, in bytes; if the transaction is prepared, at least what
    /// its end needs.
    pub(super) reserved_bytes: u64,
    /// The tables that it has changed, by their clustered trees, except temporary ones.
    pub(super) touched: SmallVec<[SpaceId; 2]>,
    /// Whether the transaction is prepared, and that is logged.
    pub(super) prepared: bool,
    /// Whether it is one call outside of transactions, of which the user knows no transaction.
    pub(super) is_single_call: bool,
    /// What its lock owner is created with.
    pub(super) options: OwnerOptions,
    /// The lock owner of the transaction, once it has requested a lock.
    pub(super) lock_owner: Option<Arc<LockOwner>>,
}

impl Suspended {
    /// Returns a transaction that has not begun, with options.
    pub fn new(options: OwnerOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Makes it one call outside of transactions: unless it changes something, it counts neither as committed nor as
    /// rolled back.
    #[must_use]
    pub fn of_single_call(self) -> Self {
        Self { is_single_call: true, ..self }
    }

    /// Returns a transaction that recovery has found unfinished, with its last record, if one was found, and the tables
    /// that it has changed. The log that its rollback needs is unknown.
    pub(in crate::txn) fn found(
        active: &Active,
        id: TrxId,
        last: Option<UndoPos>,
        touched: impl IntoIterator<Item = SpaceId>,
        prepared: bool,
    ) -> Self {
        let logged = last.map(|pos| (stream_of(pos), last));
        let ending = active.ending(id).expect("an unfinished transaction is active");
        let (identity, touched) = (Some((id, ending)), touched.into_iter().collect());
        debug_assert!(!prepared || last.is_some(), "transaction {id} is prepared and has no records");
        Self { identity, logged, rollback_log: RollbackLog::Unknown, touched, prepared, ..Self::default() }
    }

    /// Returns the tables that it has changed, by their clustered trees, except temporary ones.
    pub(in crate::txn) fn touched(&self) -> &[SpaceId] {
        &self.touched
    }

    /// Returns whether a coordinator may decide about it: it is prepared, or has logged nothing that it could lose.
    pub(super) fn may_wait_for_decision(&self) -> bool {
        self.prepared || self.logged.is_none_or(|(_, last)| last.is_none())
    }

    /// Returns its id; `None` while it has neither written nor locked.
    pub fn id(&self) -> Option<TrxId> {
        self.identity.as_ref().map(|(id, _)| *id)
    }

    /// Returns whether it has neither written nor locked anything and keeps nothing reserved: its end has no effect.
    pub fn has_nothing_to_end(&self) -> bool {
        debug_assert!(
            self.identity.is_some() || self.records == 0 && self.lock_owner.is_none(),
            "a transaction without an id has written or locked something"
        );
        self.identity.is_none() && self.reserved_bytes == 0
    }

    /// Returns the number of partial rollbacks.
    pub fn rolled_back(&self) -> u64 {
        self.rolled_back
    }

    /// Returns whether it has locks in the lock table, or has written anything. What was rolled back counts, because
    /// its rows stay locked.
    pub fn holds_locks(&self, locks: &LockManager) -> bool {
        self.records > 0 || self.lock_owner.as_ref().is_some_and(|lock_owner| locks.holds_any(lock_owner))
    }

    /// Changes its options, except for the ordering group.
    pub fn change_options(&mut self, active: &Active, change: impl FnOnce(&mut OwnerOptions)) {
        change(&mut self.options);
        if let Some(id) = self.id() {
            active.set_options(id, self.options);
        }
    }

    /// Begins a call or statement on this thread: interrupts of an earlier one no longer apply.
    pub fn begin_call(&mut self, locks: &LockManager) {
        self.call = locks.begin_call();
        self.lock_owner.iter().for_each(|lock_owner| lock_owner.begin_call(self.call));
    }

    /// Begins a further call of its statement on this thread.
    pub fn continue_statement(&mut self) {
        self.call = self.call.on_this_thread();
        self.lock_owner.iter().for_each(|lock_owner| lock_owner.begin_call(self.call));
    }

    /// Notes that it accepts no more calls, or ends.
    pub fn accept_no_calls(&self) {
        self.lock_owner.iter().for_each(|lock_owner| lock_owner.forget_thread());
    }

    /// Returns the current position in its undo.
    pub fn savepoint(&self) -> Savepoint {
        Savepoint {
            logged: self.logged.and_then(|(_, last)| last),
            temporary: self.temporary.iter().map(|(_, last)| *last).collect(),
            records: self.records,
        }
    }
}

/// A position in a transaction's undo: the changes after it can be rolled back.
#[derive(Clone, Debug, Default)]
pub struct Savepoint {
    pub(super) logged: Option<UndoPos>,
    pub(super) temporary: SmallVec<[Option<UndoPos>; 1]>,
    pub(super) records: u64,
}

impl Savepoint {
    /// Returns whether fewer records had been written at this savepoint than at the other one.
    pub fn is_before(&self, other: &Self) -> bool {
        self.records < other.records
    }
}
