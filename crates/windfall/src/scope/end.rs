//! The end of a transaction, and the beginning of the next one in the same state.
//!
//! **Purpose.** Commit, rollback and prepare, and the drop of the handle. The state of a transaction that has ended is
//! used again, so that a session which makes one transaction after the other allocates nothing for each.
//!
//! **Invariants.** A transaction that begins in the state of another one finds no view, lock, savepoint, statement or
//! undo of it (checked by `scope/end.rs::restart`), and a prepared one that was in it is found by its name (test:
//! `a_prepared_transaction_survives_the_restart_of_its_handle`). A transaction that is open is never replaced (test:
//! `an_open_transaction_is_not_restarted`). The number of the transaction changes under the mutex that calls hold (by
//! type). So a call of the former one has ended before it.
//!
//! Callbacks of the order of commits run one at a time, in the order in which the commits become visible, and no
//! snapshot that is taken between ordered commits is taken between a commit and its callback (test:
//! `a_snapshot_between_ordered_commits_sees_those_that_were_noted`). The order is held after the state of a transaction
//! and not the other way round (checked by `sync/lock.rs::take`), so a call of the transaction in progress is not
//! waited for within it.
//!
//! The end of a transaction does the same work whatever it has changed in temporary tables (test:
//! `a_commit_does_the_same_work_whatever_was_changed_in_temporary_tables`): a worker purges what is left there.

use super::{Inner, Phase, Scope, is_in_call, run_as_call};
use crate::{
    engine::Engine,
    error::{Result, TransactionError, UsageError},
    ids::Lsn,
    log::FlushLog,
    sync::{
        Arc, MutexGuard,
        atomic::Ordering::{Relaxed, SeqCst},
    },
    transaction::TransactionOptions,
    txn::{Suspended, trx::prepared::Prepared},
};

/// What a commit does with the statement in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenStatement {
    /// The commit is refused.
    Refuse,
    /// Its changes are kept, and it ends with the transaction.
    Keep,
}

/// Refuses to wait for the order of commits from within a call, which may be the callback of a thread that holds it.
fn check_is_in_no_call() -> Result<()> {
    if is_in_call() { Err(UsageError::StatementInCall.into()) } else { Ok(()) }
}

/// Runs `run` between two commits of the order.
pub(crate) fn between_ordered_commits<T>(engine: &Engine, run: impl FnOnce() -> T) -> Result<T> {
    engine.check_open()?;
    check_is_in_no_call()?;
    Ok(engine.commit_order.between(|| run_as_call(run)))
}

impl Scope {
    /// Rolls back, and keeps the reason for the errors of later calls.
    pub(super) fn rollback_because(&self, inner: &mut Inner, why: Arc<str>) -> Result<()> {
        let before = core::mem::replace(&mut inner.phase, Phase::RolledBack(Some(why)));
        let done = self.resume(inner).rollback().map(drop);
        if let Phase::Prepared(xid) = before {
            self.engine.transactions.prepared().remove(&xid);
        }
        self.discard_state(inner);
        done
    }

    /// Drops what a transaction that has ended has for its reads and rollbacks, and schedules the purge of what it has
    /// left in temporary tables.
    pub(super) fn discard_state(&self, inner: &mut Inner) {
        assert!(
            matches!(inner.phase, Phase::Committed | Phase::RolledBack(_)),
            "a transaction that is still open loses its view, its savepoints and its statements"
        );
        inner.release_view();
        inner.savepoints.clear();
        inner.statements.discard();
        inner.changed.clear();
        inner.tables.clear();
        for undo in inner.sessions.drain(..) {
            self.engine.transactions.purge().schedule_temporary(undo.stream());
        }
    }

    /// Locks the state for the end of the transaction or of a statement. Waits until a call in progress on another
    /// thread has ended, except from within a call.
    pub(super) fn lock_for_end(&self) -> Result<MutexGuard<'_, Inner>> {
        if is_in_call() {
            Ok(self.inner.try_lock().ok_or(TransactionError::Busy)?)
        } else {
            Ok(self.inner.lock())
        }
    }

    /// Ends the transaction, prepared or not. Waits first until a call in progress on another thread has ended.
    fn end<T>(&self, open: OpenStatement, run: impl FnOnce(&mut Inner) -> Result<T>) -> Result<T> {
        let mut inner = self.lock_for_end()?;
        inner.check_active()?;
        match open {
            OpenStatement::Refuse => inner.statements.check_none()?,
            OpenStatement::Keep => {
                inner.check_accepts_calls()?;
                inner.statements.check_thread()?;
                inner.statements.check_only()?;
            }
        }
        self.engine.check_open()?;
        inner.trx.accept_no_calls();
        run(&mut inner)
    }

    pub(crate) fn commit(&self, mode: FlushLog, open: OpenStatement) -> Result<Option<Lsn>> {
        let end = self.end(open, |inner| self.commit_locked(inner))?;
        self.await_log(end, mode)?;
        Ok(end)
    }

    /// Commits at a place in the order of commits, where it runs `note`. Others take their places while this commit
    /// becomes durable.
    pub(crate) fn commit_ordered(
        &self,
        mode: FlushLog,
        note: impl FnOnce(Option<Lsn>),
    ) -> Result<Option<Lsn>> {
        check_is_in_no_call()?;
        let end = self.end(OpenStatement::Refuse, |inner| {
            let commit = || self.commit_locked(inner);
            self.engine.commit_order.commit(commit, |end| run_as_call(|| note(*end)))
        })?;
        self.await_log(end, mode)?;
        Ok(end)
    }

    /// Logs the end of the transaction and makes its changes visible.
    fn commit_locked(&self, inner: &mut Inner) -> Result<Option<Lsn>> {
        if inner.trx.has_nothing_to_end() && matches!(inner.phase, Phase::Open) {
            inner.phase = Phase::Committed;
            self.discard_state(inner);
            return Ok(None);
        }
        let mut trx = self.resume(inner);
        let end = trx.commit();
        match (&end, &inner.phase) {
            (Ok(_), Phase::Prepared(xid)) => self.engine.transactions.prepared().remove(xid),
            (Ok(_), _) => {}
            // It stays prepared, as its coordinator expects.
            (Err(_), Phase::Prepared(_)) => {
                inner.trx = trx.suspend();
                return end;
            }
            (Err(_), _) => drop(trx),
        }
        inner.phase = match &end {
            Ok(_) => Phase::Committed,
            Err(error) => Phase::RolledBack(Some(error.to_string().into())),
        };
        self.discard_state(inner);
        end
    }

    fn await_log(&self, end: Option<Lsn>, mode: FlushLog) -> Result<()> {
        self.engine.await_log(end, mode)?;
        self.engine.env.yield_point();
        Ok(())
    }

    pub(crate) fn prepare(&self, xid: &[u8], mode: FlushLog) -> Result<()> {
        Prepared::check_name(xid)?;
        let xid = Arc::from(xid);
        let end = self.call(|inner| {
            inner.statements.check_none()?;
            let prepared = self.engine.transactions.prepared();
            let mut trx = self.running(inner);
            prepared.enter(&xid, trx.ensure_id()?)?;
            let end = trx.prepare(&xid).inspect_err(|_| prepared.remove(&xid))?;
            drop(trx);
            inner.trx.accept_no_calls();
            inner.phase = Phase::Prepared(xid);
            // A prepared transaction reads no more.
            inner.release_view();
            inner.savepoints.clear();
            Ok(end)
        })?;
        self.await_log(end, mode)
    }

    pub(crate) fn rollback(&self) -> Result<()> {
        let (revoked, done) = self.end(OpenStatement::Refuse, |inner| {
            let mut trx = self.resume(inner);
            let revoked = trx.revoke_prepare();
            inner.trx = trx.suspend();
            Ok((revoked?, self.rollback_because(inner, "`rollback` was called".into())))
        })?;
        // After a crash the coordinator must not find the transaction prepared again.
        self.await_log(revoked, self.engine.flush_mode())?;
        done
    }

    /// Marks that the handle was dropped. Rolls back, or, if a call is in progress, the end of that call does.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, SeqCst);
        self.end_if_abandoned();
    }

    pub(super) fn end_if_abandoned(&self) {
        if self.abandoned.load(SeqCst)
            && let Some(mut inner) = self.inner.try_lock()
        {
            match &inner.phase {
                Phase::Open => {
                    // An error of the rollback is reported to transactions that need its rows, or it has stopped the
                    // database.
                    let _ = self.rollback_because(&mut inner, "its handle was dropped".into());
                }
                Phase::Prepared(_) => self.leave_prepared(&mut inner),
                Phase::PreparedWithoutHandle | Phase::Committed | Phase::RolledBack(_) => {}
            }
        }
    }

    /// Leaves a prepared transaction to its coordinator.
    fn leave_prepared(&self, inner: &mut Inner) {
        debug_assert!(inner.statements.is_empty(), "a transaction is prepared within a statement");
        let Phase::Prepared(xid) = core::mem::replace(&mut inner.phase, Phase::PreparedWithoutHandle) else {
            unreachable!("a transaction that is not prepared is left to a coordinator")
        };
        self.engine.transactions.prepared().put_back(&xid, core::mem::take(&mut inner.trx));
        inner.sessions.clear();
        inner.changed.clear();
        inner.tables.clear();
    }

    /// Begins another transaction in the state of one that has ended or is prepared. Waits first until a call of that
    /// one on another thread has ended.
    pub(crate) fn restart(&self, options: TransactionOptions) -> Result<()> {
        let mut guard = self.lock_for_end()?;
        let inner = &mut *guard;
        match &inner.phase {
            Phase::Open => return Err(TransactionError::NotEnded.into()),
            Phase::Prepared(_) => self.leave_prepared(inner),
            // A call that has panicked has left its state.
            Phase::Committed | Phase::RolledBack(_) if !inner.has_no_state() => self.discard_state(inner),
            Phase::Committed | Phase::RolledBack(_) | Phase::PreparedWithoutHandle => {}
        }
        assert!(
            inner.has_no_state() && inner.trx.id().is_none(),
            "a transaction begins with what belongs to the one before it"
        );
        let mut owner = options.owner();
        if owner.tag == 0 {
            owner.tag = inner.owner.tag;
        }
        (inner.owner, inner.trx) = (owner, Suspended::new(owner));
        inner.savepoint_numbers.restart();
        if self.id().is_some() {
            self.id.store(0, SeqCst);
        }
        self.isolation.store(options.isolation as usize, Relaxed);
        self.read_only.store(options.read_only, Relaxed);
        self.lock_wait.set(options.lock_wait);
        self.generation.fetch_add(1, Relaxed);
        inner.phase = Phase::Open;
        if options.wants_view() {
            self.view(inner);
        }
        Ok(())
    }
}

impl Inner {
    /// Returns whether nothing of a transaction is left that its calls have made.
    fn has_no_state(&self) -> bool {
        self.view.is_none()
            && self.tables.is_empty()
            && self.changed.is_empty()
            && self.savepoints.is_empty()
            && self.sessions.is_empty()
            && self.statements.is_empty()
    }
}
