//! The state that the calls of a transaction share.
//!
//! **Purpose.** Between two calls it keeps the transaction, its view, its statements and savepoints (`statement`), and
//! the tables that it has locked. It runs each call, which waits for locks outside the gate and then starts again.
//!
//! **Invariants.** One call at a time: a second call meanwhile is refused, even one of the same thread (test:
//! `a_transaction_does_one_call_at_a_time`). No call waits for a lock inside a table's gate: a blocked call leaves the
//! gate first ([`RowCall::run`]) (test: `the_waits_of_one_call_last_no_longer_together_than_one`). A table is locked
//! before its first change or locking read, so a DDL statement on the table finds all transactions that use it (test:
//! `a_statement_waits_only_for_transactions_that_have_changed_its_table`). A deadlock rolls back the transaction (test:
//! `the_transaction_with_the_lowest_priority_is_the_deadlock_victim`), any other lock error only the call (test:
//! `a_lock_timeout_fails_the_call_but_not_the_transaction`). The lock timeout bounds all waits of a call together
//! (test: `the_waits_of_one_call_last_no_longer_together_than_one`). An interrupt applies to the call or statement in
//! progress when it arrives, and to no later one (test: `an_interrupt_ends_no_later_call_or_statement`).
//!
//! The end of a statement (test: `the_end_of_a_statement_waits_for_the_call_of_another_thread`) or of the transaction
//! (test: `the_end_of_a_transaction_waits_for_the_call_of_another_thread`) waits for a call of another thread. Only a
//! thread that is in no call, of any transaction or table, waits for it, because such a thread holds nothing that the
//! other call could be waiting for (test: `an_end_from_within_a_call_waits_for_no_call_of_another_thread`). From within
//! a call (the source or the sink of a value), these ends are refused while another call is in progress (test:
//! `an_end_from_within_a_call_waits_for_no_call_of_another_thread`). The statement of a closure that is run there
//! refuses calls of other threads from its beginning, so its end has no call to wait for (test:
//! `a_statement_from_within_a_call_keeps_the_calls_of_other_threads_out`).
//!
//! The state serves one transaction after the other (test: `restarted_transactions_behave_as_new_ones`). What refers to
//! it longer than a borrow of the handle, a cursor, has the number of its transaction, and makes no call in a later one
//! (test: `cursors_of_the_former_transaction_are_refused_after_a_restart`).

pub(crate) mod end;
pub(crate) mod statement;
pub(crate) mod tables;

use core::{
    cell::Cell,
    ops::{Bound, Deref, DerefMut},
    time::Duration,
};

use smallvec::SmallVec;

use self::statement::{SavepointNumbers, SetSavepoints, Statements};
use crate::{
    catalog::{Catalog, DdlOptions},
    database::StatementOptions,
    engine::Engine,
    error::{Error, LockError, Owner, Result, TransactionError},
    ids::{SpaceId, TrxId},
    interrupt::InterruptHandle,
    session::SessionUndo,
    store::Tree,
    sync::{
        Arc, Interruptible, Mutex, MutexGuard, OnceLock, Rank,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
        is_inside, thread, thread_local,
    },
    transaction::{Isolation, LockWaitPolicy, TransactionOptions},
    txn::{
        ReadView, Rules, Savepoint, Stop, Suspended, Trx, Visibility,
        locks::{LockOwner, LockTimeout, LockWait, OwnerOptions, PlainRead, RowMode, TableMode, Waits},
        row,
    },
};

thread_local! {
    /// Calls in transactions that this thread is in, one within the other.
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

/// Marks that the thread is in a call of a transaction.
struct InCall {
    is_finished: bool,
    _interruptible: Option<Interruptible>,
}

impl InCall {
    fn enter(interrupt: Option<&InterruptHandle>) -> Self {
        CALLS.set(CALLS.get() + 1);
        Self { is_finished: false, _interruptible: interrupt.map(InterruptHandle::enter) }
    }

    fn finish(mut self) {
        self.is_finished = true;
    }
}

impl Drop for InCall {
    fn drop(&mut self) {
        debug_assert!(self.is_finished || thread::panicking(), "the result of a call was not passed on");
        debug_assert!(CALLS.get() > 0, "a thread ends a call and is in none");
        CALLS.set(CALLS.get() - 1);
    }
}

/// Runs a callback of the application, which then is within a call.
fn run_as_call<T>(run: impl FnOnce() -> T) -> T {
    let call = InCall::enter(None);
    let value = run();
    call.finish();
    value
}

/// Returns whether this thread is in a call, in a transaction or outside of one.
fn is_in_call() -> bool {
    CALLS.get() > 0 || is_inside()
}

/// The state that all calls of a transaction share: its options, and, under the mutex that each call holds, its
/// phase, view, savepoints and locked tables, and the [`Suspended`] transaction, which the call resumes as a [`Trx`].
#[derive(Debug)]
pub(crate) struct Scope {
    pub(crate) engine: Arc<Engine>,
    /// The number of transactions that had this state before the present one. It changes under the mutex.
    generation: AtomicU64,
    /// The isolation level, as its place in [`Isolation::ALL`].
    isolation: AtomicUsize,
    read_only: AtomicBool,
    /// The lock timeout of its calls, if it is not that of the database.
    lock_wait: LockWait,
    inner: Mutex<Inner>,
    /// What interrupts its calls, if anything does.
    interrupt: OnceLock<InterruptHandle>,
    /// The transaction's id, zero while it has none; readable also while a call is in progress.
    id: AtomicU64,
    /// Set when the handle is dropped.
    abandoned: AtomicBool,
}

#[derive(Debug)]
enum Phase {
    Open,
    /// Prepared under this name.
    Prepared(Arc<[u8]>),
    /// Prepared and without a handle: it waits for its coordinator.
    PreparedWithoutHandle,
    Committed,
    /// With the reason; without one, a call of it has panicked.
    RolledBack(Option<Arc<str>>),
}

/// The kind of table that a call changes or locks rows of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableKind {
    /// A permanent table, shared by all sessions.
    Shared,
    /// A temporary table of one session.
    Temporary,
}

/// The way in which a read locks its rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowLock {
    pub mode: RowMode,
    pub wait_policy: LockWaitPolicy,
}

impl From<RowMode> for RowLock {
    fn from(mode: RowMode) -> Self {
        Self { mode, wait_policy: LockWaitPolicy::Wait }
    }
}

impl RowLock {
    /// Returns the timeout for a lock of a row.
    pub(crate) fn lock_timeout(self, scope: &Scope) -> LockTimeout {
        if self.wait_policy == LockWaitPolicy::Wait { scope.lock_timeout() } else { LockTimeout::NoWait }
    }

    /// Returns whether there is a row, from the result of an attempt to read it: a skipped row counts as none.
    pub(crate) fn skip_locked(self, read: Result<bool, Stop>) -> Result<bool, Stop> {
        match read {
            Err(Stop::Blocked(_)) if self.wait_policy == LockWaitPolicy::SkipLocked => Ok(false),
            read => read,
        }
    }
}

/// The state that a call works on.
#[derive(Debug)]
pub(crate) struct Inner {
    phase: Phase,
    trx: Suspended,
    /// The options of the transaction as a lock owner.
    owner: OwnerOptions,
    /// The view of plain reads, if they keep one.
    view: Option<Arc<ReadView>>,
    /// A view that was released, for its memory.
    spare_view: Option<Arc<ReadView>>,
    /// The tables that are locked, and the lock modes.
    tables: SmallVec<[(SpaceId, TableMode); 4]>,
    /// The number of calls that have changed rows, and for each table the number of the last one; without a tablespace
    /// for all temporary tables.
    changes: u64,
    changed: SmallVec<[tables::ChangedTable; 2]>,
    savepoints: SetSavepoints,
    savepoint_numbers: SavepointNumbers,
    /// The sessions that own changed temporary tables.
    sessions: SmallVec<[Arc<SessionUndo>; 1]>,
    statements: Statements,
    /// The time that the call in progress has waited so far.
    waited: Duration,
}

impl Scope {
    pub(crate) fn new(
        engine: Arc<Engine>,
        options: TransactionOptions,
        interrupt: Option<InterruptHandle>,
    ) -> Self {
        let owner = options.owner();
        let TransactionOptions { isolation, read_only, lock_wait, is_single_call, .. } = options;
        let trx = Suspended::new(owner);
        let inner = Inner {
            phase: Phase::Open,
            trx: if is_single_call { trx.of_single_call() } else { trx },
            owner,
            view: None,
            spare_view: None,
            tables: SmallVec::new(),
            changes: 0,
            changed: SmallVec::new(),
            savepoints: SetSavepoints::new(),
            savepoint_numbers: SavepointNumbers::default(),
            sessions: SmallVec::new(),
            statements: Statements::default(),
            waited: Duration::ZERO,
        };
        let mut scope = Self {
            engine,
            generation: AtomicU64::new(0),
            isolation: AtomicUsize::new(isolation as usize),
            read_only: AtomicBool::new(read_only),
            lock_wait: LockWait::new(lock_wait),
            inner: Mutex::new(Rank::Scope, inner),
            interrupt: interrupt.map_or_else(OnceLock::new, OnceLock::from),
            id: AtomicU64::new(0),
            abandoned: AtomicBool::new(false),
        };
        if options.wants_view() {
            scope.inner.get_mut().view = Some(Arc::new(scope.engine.transactions.versions().view()));
        }
        scope
    }

    /// Runs a call on the transaction itself.
    fn call<T>(&self, run: impl FnOnce(&mut Inner) -> Result<T>) -> Result<T> {
        let mut call = self.begin_call()?;
        let done = run(&mut call.inner);
        call.finish(done)
    }

    /// Begins a call, or a part of one. Its result, also an error, must be passed to [`Call::finish`].
    pub(crate) fn begin_call(&self) -> Result<Call<'_>> {
        self.begin_call_if(|| Ok(()))
    }

    /// As [`Scope::begin_call`], if a check that is made with the state locked succeeds.
    fn begin_call_if(&self, check: impl FnOnce() -> Result<()>) -> Result<Call<'_>> {
        let inner = self.inner.try_lock().ok_or(TransactionError::Busy)?;
        let begun =
            check().and_then(|()| inner.statements.check_thread()).and_then(|()| self.begin_call_on(inner));
        if begun.is_err() {
            // The handle may have been dropped while this thread held the mutex.
            self.end_if_abandoned();
        }
        begun
    }

    fn begin_call_on<'s>(&'s self, mut inner: MutexGuard<'s, Inner>) -> Result<Call<'s>> {
        inner.check_accepts_calls()?;
        self.engine.check_open()?;
        inner.waited = Duration::ZERO;
        if inner.statements.is_empty() {
            inner.trx.begin_call(self.engine.transactions.lock_manager());
        } else {
            inner.trx.continue_statement();
        }
        Ok(Call { scope: self, inner, marker: InCall::enter(self.interrupt.get()) })
    }

    fn resume(&self, inner: &mut Inner) -> Trx<'_> {
        Trx::resume(&self.engine.transactions, core::mem::take(&mut inner.trx))
    }

    /// Takes the transaction itself out of the state of its calls, until the returned guard is dropped.
    pub(crate) fn running<'c>(&'c self, inner: &'c mut Inner) -> RunningTrx<'c> {
        // While the transaction is taken out of `inner`, no other call can continue it.
        let phase = core::mem::replace(&mut inner.phase, Phase::RolledBack(None));
        assert!(matches!(phase, Phase::Open), "a transaction makes a row call and is not open");
        // Without a view nothing was read yet, so nothing counts as changed since.
        let strict = self.strict_view(inner).cloned();
        let mut trx = self.resume(inner);
        trx.rules = Rules { gaps: self.locks_gaps(), strict, duplicate_lock: None };
        RunningTrx { scope: self, inner, trx, phase, was_panicking: thread::panicking() }
    }

    /// Begins the part of a call that changes or locks rows of a table.
    pub(crate) fn row_call<'c>(
        &'c self,
        inner: &'c mut Inner,
        kind: TableKind,
        lock_timeout: LockTimeout,
    ) -> RowCall<'c> {
        let mut trx = self.running(inner);
        if kind == TableKind::Temporary {
            // Its rows have no versions that a view could read.
            trx.rules.strict = None;
        }
        RowCall { start: trx.savepoint(), added_before: trx.added(), trx, space: None, lock_timeout }
    }

    /// Returns the isolation level.
    pub(crate) fn isolation(&self) -> Isolation {
        Isolation::ALL[self.isolation.load(Relaxed)]
    }

    /// Returns whether locking reads also lock gaps, so that missing rows stay missing.
    pub(crate) fn locks_gaps(&self) -> bool {
        self.isolation() >= Isolation::RepeatableRead
    }

    /// Returns the lock mode of plain reads, if they lock.
    pub(crate) fn plain_read_lock(&self) -> Option<RowMode> {
        (self.isolation().plain_read() == PlainRead::Locking).then_some(RowMode::Shared)
    }

    /// Returns how long a call waits for a lock.
    pub(crate) fn lock_timeout(&self) -> LockTimeout {
        LockTimeout::of(self.lock_wait.get().unwrap_or_else(|| self.engine.lock_wait()))
    }

    /// Runs DDL statements in the name of the transaction, as a call of it: with its lock owner, and its lock timeout
    /// unless the options have another. Its own locks do not block them.
    pub(crate) fn run_statement<T>(
        &self,
        options: StatementOptions,
        run: impl FnOnce(&Catalog, &Arc<LockOwner>, DdlOptions) -> Result<T>,
    ) -> Result<T> {
        self.check_may_change()?;
        let engine = &*self.engine;
        self.call(|inner| {
            let lock_owner = self.running(inner).lock_owner()?;
            // Another statement may hold a name and wait for this transaction: no wait is without a limit.
            let own_wait = || self.lock_wait.get().unwrap_or_else(|| engine.lock_wait());
            let wait = Some(options.wait.unwrap_or_else(own_wait));
            let options = StatementOptions { wait, ..options };
            let done = run(&engine.catalog, &lock_owner, options.begin(engine));
            // Tables may have other trees now: the next call on each requests its lock again.
            inner.tables.clear();
            done
        })
    }

    /// Changes the lock timeout of its calls; `None` is that of the database.
    pub(crate) fn set_lock_timeout(&self, at_most: Option<Duration>) {
        self.lock_wait.set(at_most);
    }

    /// Makes the waits of this thread those that its handle ends, if it has one, until the guard is dropped.
    pub(crate) fn interruptible(&self) -> Option<Interruptible> {
        self.interrupt.get().map(InterruptHandle::enter)
    }

    /// Returns the handle that interrupts the calls that begin from now on.
    pub(crate) fn interrupt_handle(&self) -> InterruptHandle {
        self.interrupt.get_or_init(InterruptHandle::new).clone()
    }

    /// Changes the options of the transaction as a lock owner, except for its ordering group.
    pub(crate) fn change_owner(&self, change: impl FnOnce(&mut OwnerOptions)) -> Result<()> {
        self.call(|inner| {
            change(&mut inner.owner);
            let owner = inner.owner;
            inner.trx.change_options(self.engine.transactions.active(), |options| *options = owner);
            Ok(())
        })
    }

    /// Returns whether the transaction has locks in the lock table, or has changed anything.
    pub(crate) fn holds_locks(&self) -> Result<bool> {
        let inner = self.inner.try_lock().ok_or(TransactionError::Busy)?;
        Ok(inner.trx.holds_locks(self.engine.transactions.lock_manager()))
    }

    /// Returns whether plain reads use one view, until the transaction ends or, at [`Isolation::ReadCommitted`], the
    /// outermost statement in progress.
    pub(crate) fn keeps_view(&self, inner: &Inner) -> bool {
        match self.isolation().plain_read() {
            PlainRead::Snapshot => true,
            PlainRead::Committed => !inner.statements.is_empty(),
            PlainRead::Newest | PlainRead::Locking => false,
        }
    }

    /// Returns the view that plain reads keep, and takes it if there is none yet.
    pub(crate) fn view<'i>(&self, inner: &'i mut Inner) -> &'i Arc<ReadView> {
        debug_assert!(self.keeps_view(inner), "a view is kept that no end would release");
        let Inner { view, spare_view, .. } = inner;
        view.get_or_insert_with(|| self.new_view(spare_view))
    }

    /// Returns a view of now, in the memory of a spare one if there is one.
    fn new_view(&self, spare: &mut Option<Arc<ReadView>>) -> Arc<ReadView> {
        if let Some(mut view) = spare.take()
            && let Some(of_before) = Arc::get_mut(&mut view)
        {
            of_before.renew();
            return view;
        }
        Arc::new(self.engine.transactions.versions().view())
    }

    /// Returns the view of a plain read that begins now, at levels that read with views.
    pub(crate) fn view_of_plain_read(&self, inner: &mut Inner) -> Option<Arc<ReadView>> {
        (self.isolation().plain_read() != PlainRead::Newest).then(|| self.view_of_read(inner))
    }

    /// Returns a view for a read that begins now.
    pub(crate) fn view_of_read(&self, inner: &mut Inner) -> Arc<ReadView> {
        if self.keeps_view(inner) {
            return self.view(inner).clone();
        }
        Arc::new(self.engine.transactions.versions().view())
    }

    /// Returns an error if a strict view, that of [`Isolation::Snapshot`], was ended to limit undo.
    pub(crate) fn check_strict(&self, inner: &Inner) -> Result<()> {
        self.strict_view(inner).map_or(Ok(()), |view| view.held(Ok(())))
    }

    /// Refuses to change or lock rows of a tree that was created or truncated after the strict view was taken.
    pub(crate) fn check_known(
        &self,
        inner: &Inner,
        created_at: impl FnOnce() -> Result<Option<TrxId>>,
        owner: impl FnOnce() -> Owner,
    ) -> Result<()> {
        match self.strict_view(inner) {
            Some(view) => Visibility::View(view, None).check_known(created_at()?, owner),
            None => Ok(()),
        }
    }

    /// Returns the strict view: rows that have changed since must be neither changed nor locked.
    pub(crate) fn strict_view<'i>(&self, inner: &'i Inner) -> Option<&'i Arc<ReadView>> {
        inner.view.as_ref().filter(|_| self.isolation() == Isolation::Snapshot)
    }
}

impl Scope {
    /// Records that temporary tables of a session are to be changed.
    pub(crate) fn uses(&self, inner: &mut Inner, undo: &Arc<SessionUndo>) {
        if !inner.sessions.iter().any(|known| Arc::ptr_eq(known, undo)) {
            inner.sessions.push(undo.clone());
        }
        self.engine.transactions.purge().keep_up_with_temporary(undo.stream());
    }

    /// Returns the transaction's id, if it has one.
    pub(crate) fn id(&self) -> Option<TrxId> {
        Some(self.id.load(SeqCst)).filter(|id| *id != 0).map(TrxId)
    }

    fn set_id(&self, id: Option<TrxId>) {
        debug_assert!(self.id().is_none_or(|known| id == Some(known)), "a transaction has changed its id");
        self.id.store(id.map_or(0, |id| id.0), SeqCst);
    }

    /// Refuses a change or lock in a read-only transaction.
    ///
    /// # Errors
    /// [`TransactionError::ReadOnly`].
    pub(crate) fn check_may_change(&self) -> Result<()> {
        if self.read_only.load(Relaxed) { Err(TransactionError::ReadOnly.into()) } else { Ok(()) }
    }

    /// Locks a range of keys against inserts, at levels that lock gaps.
    pub(crate) fn lock_range(
        &self,
        inner: &mut Inner,
        tree: &Tree,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> Result<()> {
        row::lock_range(&mut self.running(inner), tree, lower, upper)
    }
}

/// The state of a transaction, for what may outlive the transaction: its calls are refused when the state has become
/// that of another one.
#[derive(Clone, Debug)]
pub(crate) struct ScopeRef {
    scope: Arc<Scope>,
    generation: u64,
}

impl ScopeRef {
    /// Returns a reference to the present transaction of a handle.
    pub(crate) fn new(scope: &Arc<Scope>) -> Self {
        Self { scope: scope.clone(), generation: scope.generation.load(Relaxed) }
    }

    /// As [`Scope::begin_call`].
    pub(crate) fn begin_call(&self) -> Result<Call<'_>> {
        // The calls of the later transaction are not refused because of this one.
        self.check_generation()?;
        self.scope.begin_call_if(|| self.check_generation())
    }

    fn check_generation(&self) -> Result<()> {
        let is_same = self.scope.generation.load(Relaxed) == self.generation;
        if is_same { Ok(()) } else { Err(TransactionError::Former.into()) }
    }
}

impl Deref for ScopeRef {
    type Target = Scope;

    fn deref(&self) -> &Scope {
        &self.scope
    }
}

/// A call in progress. Its result must be passed to [`Call::finish`]; a call that panics is not finished.
#[must_use]
pub(crate) struct Call<'s> {
    scope: &'s Scope,
    pub inner: MutexGuard<'s, Inner>,
    marker: InCall,
}

impl Call<'_> {
    /// Ends the call with its result. A deadlock rolls back the transaction; so does a handle that was dropped
    /// meanwhile.
    pub(crate) fn finish<T>(self, done: Result<T>) -> Result<T> {
        let Self { scope, mut inner, marker } = self;
        marker.finish();
        if let Err(error @ Error::Lock(LockError::Deadlock(_))) = &done {
            scope.rollback_because(&mut inner, error.to_string().into())?;
        }
        drop(inner);
        scope.end_if_abandoned();
        done
    }
}

/// The transaction itself, which returns to the state of its calls when this is dropped. If the thread begins to panic
/// meanwhile, or if a part of the transaction could not be rolled back, the whole transaction rolls back.
pub(crate) struct RunningTrx<'c> {
    scope: &'c Scope,
    inner: &'c mut Inner,
    trx: Trx<'c>,
    phase: Phase,
    /// Whether the thread was unwinding before.
    was_panicking: bool,
}

impl<'c> Deref for RunningTrx<'c> {
    type Target = Trx<'c>;

    fn deref(&self) -> &Trx<'c> {
        &self.trx
    }
}

impl<'c> DerefMut for RunningTrx<'c> {
    fn deref_mut(&mut self) -> &mut Trx<'c> {
        &mut self.trx
    }
}

impl Drop for RunningTrx<'_> {
    fn drop(&mut self) {
        let Self { scope, inner, trx, phase, was_panicking } = self;
        if thread::panicking() && !*was_panicking {
            // The phase is `RolledBack` already, and the transaction rolls back when it is dropped.
            inner.statements.discard();
            inner.view = None;
            return;
        }
        debug_assert!(
            matches!(inner.phase, Phase::RolledBack(_)),
            "another call has continued a transaction that was taken out of its state"
        );
        scope.set_id(trx.id());
        let trx = core::mem::replace(trx, Trx::new(&scope.engine.transactions));
        if let Some(error) = trx.broken() {
            let why = format!("a part of it could not be rolled back: {error}");
            inner.phase = Phase::RolledBack(Some(why.into()));
            drop(trx);
            scope.discard_state(inner);
            return;
        }
        inner.trx = trx.suspend();
        core::mem::swap(&mut inner.phase, phase);
    }
}

/// The part of a call that changes or locks rows of a table. It makes attempts, each of which passes the gate of the
/// table and leaves it, until one is not blocked. A call that fails has changed nothing (or the whole
/// transaction is rolled back), and a call that has changed nothing keeps no more locks than if it had not waited.
pub(crate) struct RowCall<'c> {
    trx: RunningTrx<'c>,
    start: Savepoint,
    /// How many changes of the transaction had added entries to a tree.
    added_before: u64,
    /// The tablespace of the table; `None` for a temporary one.
    space: Option<SpaceId>,
    /// The limit on the time that the call waits for row locks.
    lock_timeout: LockTimeout,
}

impl<'c> RowCall<'c> {
    /// Locks the table, which cannot be truncated from then on, and refuses a table that was created or truncated after
    /// the strict view was taken.
    pub(crate) fn lock_table(
        &mut self,
        space: SpaceId,
        mode: TableMode,
        created_at: impl FnOnce() -> Result<Option<TrxId>>,
        owner: impl FnOnce() -> Owner,
    ) -> Result<()> {
        if !self.trx.inner.has_locked(space, mode) {
            self.trx.lock_table(space, mode)?;
        }
        self.space = Some(space);
        self.trx.scope.check_known(self.trx.inner, created_at, owner)
    }

    /// Runs the call: repeats the attempt until it has an outcome ([`row::retry`]).
    ///
    /// # Errors
    /// The errors of the attempt; lock errors.
    pub(crate) fn run<T>(mut self, attempt: impl FnMut(&mut Self) -> Result<Option<T>, Stop>) -> Result<T> {
        let done = row::retry(&mut self, attempt);
        let trx = &mut self.trx.trx;
        match &done {
            Ok(_) if trx.has_changed_since(&self.start) => {
                let adds = trx.added() != self.added_before;
                self.trx.inner.note_change(self.space, adds);
            }
            Ok(_) => trx.downgrade_waits(),
            // If the attempt could not roll back its changes, the whole transaction is rolled back.
            Err(_) if trx.broken().is_some() => {}
            Err(_) => {
                trx.rollback_to(&self.start)?;
                trx.downgrade_waits();
            }
        }
        done
    }

    /// Begins an attempt. Returns the transaction.
    ///
    /// # Errors
    /// [`TransactionError::ViewEnded`].
    pub(crate) fn attempt(&mut self) -> Result<&mut Trx<'c>, Stop> {
        self.trx.check_strict()?;
        Ok(&mut self.trx)
    }
}

impl<'c> row::Attempts<'c> for RowCall<'c> {
    // It cannot start the whole transaction again.
    const RESTARTS_AFTER_DEADLOCK: bool = false;

    fn trx(&mut self) -> &mut Trx<'c> {
        &mut self.trx
    }

    fn waits(&self) -> Waits {
        Waits::after(self.trx.inner.waited, self.lock_timeout)
    }

    fn set_waits(&mut self, waits: Waits) {
        self.trx.inner.waited = waits.so_far();
    }
}

impl Inner {
    fn check_active(&self) -> Result<()> {
        match &self.phase {
            Phase::Open | Phase::Prepared(_) => Ok(()),
            // There is no handle through which this error could be reported.
            Phase::PreparedWithoutHandle => Err(TransactionError::Prepared.into()),
            Phase::Committed => Err(TransactionError::Committed.into()),
            Phase::RolledBack(why) => {
                let why = why.clone().unwrap_or_else(|| "a call of it panicked".into());
                Err(TransactionError::RolledBack(why).into())
            }
        }
    }

    fn check_accepts_calls(&self) -> Result<()> {
        if let Phase::Prepared(_) = self.phase {
            return Err(TransactionError::Prepared.into());
        }
        self.check_active()
    }

    /// Returns the transaction's id, if it has one.
    pub(crate) fn own(&self) -> Option<TrxId> {
        self.trx.id()
    }

    /// Returns how often a part of the transaction was rolled back.
    pub(crate) fn rolled_back(&self) -> u64 {
        self.trx.rolled_back()
    }

    /// Releases the view of plain reads, and keeps its memory unless a cursor still reads with it.
    fn release_view(&mut self) {
        if let Some(mut view) = self.view.take()
            && let Some(released) = Arc::get_mut(&mut view)
        {
            released.release();
            self.spare_view = Some(view);
        }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        self.abandon();
        debug_assert!(
            !matches!(self.inner.get_mut().phase, Phase::Open),
            "a transaction is dropped and has not ended"
        );
    }
}
