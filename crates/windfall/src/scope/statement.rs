//! Parts of a transaction that are rolled back by themselves: statements and savepoints.
//!
//! **Purpose.** A statement is several calls that take effect together: its end keeps their changes or undoes them, and
//! the transaction stays open. It begins and ends by calls, or around a closure ([`Scope::atomically`]). Its state is
//! that of the transaction, not of a guard, so a statement may begin on one thread and end on another.
//!
//! **Invariants.** Statements nest (checked by `scope/statement.rs::close_statement`). Only its closure ends the
//! statement of a closure (test: `a_statement_of_a_closure_is_ended_by_the_closure_only`), and the end of the
//! transaction ends all statements (test: `the_end_of_a_transaction_ends_its_statements`). Savepoints that were set
//! before a statement are hidden until it ends, because it could not be rolled back after a rollback to one of them
//! (test: `a_statement_leaves_savepoints_as_it_found_them_when_it_fails`).
//!
//! At `Isolation::ReadCommitted` all plain reads in a statement, and in those within it, use one view, which the
//! first of them takes (test: `a_statement_at_read_committed_reads_one_snapshot`). The end of the outermost statement,
//! or of the transaction, releases it (test: `the_view_of_a_statement_ends_with_it`).
//!
//! A savepoint has a number that no other one of its transaction has or had (checked by
//! `scope/statement.rs::set_savepoint`), and a transaction that sets one has a serial number that no other transaction
//! of the process has. So a value that names both ([`Savepoint`]) leads to its savepoint or to none (test:
//! `a_savepoint_is_accepted_while_it_exists_and_by_its_transaction_only`). The savepoints of a list are in the order of
//! their numbers, and of their positions (checked by `scope/statement.rs::place_of`). A savepoint with a name is found
//! by that, and has a number all the same (test: `nested_statements_and_savepoints_behave_as_copies_of_the_rows`).

use core::mem;

use smallvec::SmallVec;

use super::{Inner, Phase, Scope, is_in_call};
use crate::{
    error::{Result, TransactionError},
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicU64, Ordering::Relaxed},
        thread,
    },
    transaction::{Savepoint, StatementEnd},
    txn::Savepoint as Position,
};

/// The serial number of the next transaction that sets a savepoint. Zero is none.
static NEXT_SERIAL: AtomicU64 = AtomicU64::new(1);

/// The savepoints that can be used, in the order in which they were set.
pub(super) type SetSavepoints = Vec<SetSavepoint>;

/// A savepoint that was set.
#[derive(Debug)]
pub(super) struct SetSavepoint {
    /// The number of the savepoint among those of its transaction.
    number: u64,
    name: Option<Arc<str>>,
    at: Position,
}

/// The part of the transaction by which a savepoint is found.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SavepointId<'a> {
    Value(Savepoint),
    Name(&'a str),
}

/// The numbers of the savepoints of a transaction.
#[derive(Debug, Default)]
pub(super) struct SavepointNumbers {
    /// The serial number of the transaction, once it has set a savepoint.
    serial: Option<u64>,
    /// How many were set.
    set: u64,
}

impl SavepointNumbers {
    /// Begins the numbers of another transaction. It gets a serial number of its own, so it accepts none of before.
    pub(super) fn restart(&mut self) {
        *self = Self::default();
    }

    fn next(&mut self) -> Savepoint {
        let serial = *self.serial.get_or_insert_with(|| NEXT_SERIAL.fetch_add(1, Relaxed));
        self.set += 1;
        Savepoint { transaction: serial, number: self.set }
    }
}

/// What ends a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndedBy {
    /// [`Scope::end_statement`].
    Call,
    /// The end of a closure.
    Closure {
        /// Whether the transaction is bound to the thread of the closure.
        binds: bool,
    },
}

/// A statement in progress.
#[derive(Debug)]
struct Statement {
    /// The number of the statement among those of its transaction.
    number: u64,
    start: Position,
    /// The savepoints that were set before it.
    hidden: SetSavepoints,
    ended_by: EndedBy,
}

/// The statements of a transaction that are in progress.
#[derive(Debug, Default)]
pub(super) struct Statements {
    /// The outermost one first.
    open: SmallVec<[Statement; 1]>,
    /// The number of statements that have begun.
    begun: u64,
    /// The thread of a closure that was run from within a call: calls of other threads are refused meanwhile.
    bound_to: Option<usize>,
}

impl Statements {
    /// Returns whether none is in progress.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Refuses a call of another thread than the one that the transaction is bound to.
    ///
    /// # Errors
    /// [`TransactionError::Busy`].
    pub(super) fn check_thread(&self) -> Result<()> {
        assert!(
            self.bound_to.is_none() || !self.is_empty(),
            "a transaction is bound to a thread, and no statement is in progress"
        );
        if self.bound_to.is_some_and(|bound_to| bound_to != thread::number()) {
            return Err(TransactionError::Busy.into());
        }
        Ok(())
    }

    /// Refuses the end of the transaction, or its prepare, while a statement is in progress.
    ///
    /// # Errors
    /// [`TransactionError::StatementInProgress`].
    pub(super) fn check_none(&self) -> Result<()> {
        if self.is_empty() { Ok(()) } else { Err(TransactionError::StatementInProgress.into()) }
    }

    /// Refuses the end of the transaction unless one statement is in progress that a call has begun and no other one.
    ///
    /// # Errors
    /// [`TransactionError::NoStatement`], [`TransactionError::StatementInProgress`].
    pub(super) fn check_only(&self) -> Result<()> {
        match &self.open[..] {
            [only] if only.ended_by == EndedBy::Call => Ok(()),
            [.., last] if last.ended_by == EndedBy::Call => Err(TransactionError::StatementInProgress.into()),
            _ => Err(TransactionError::NoStatement.into()),
        }
    }

    /// Discards all of them, because the transaction has ended.
    pub(super) fn discard(&mut self) {
        self.open.clear();
        self.bound_to = None;
    }
}

impl Scope {
    /// Begins a statement within those that are in progress.
    pub(crate) fn begin_statement(&self) -> Result<()> {
        self.call(|inner| {
            inner.open_statement(EndedBy::Call);
            Ok(())
        })
    }

    /// Ends the innermost statement. Waits first until a call in progress on another thread has ended.
    pub(crate) fn end_statement(&self, end: StatementEnd) -> Result<()> {
        let inner = self.lock_for_end()?;
        inner.statements.check_thread()?;
        inner.check_accepts_calls()?;
        match inner.statements.open.last() {
            Some(last) if last.ended_by == EndedBy::Call => {}
            _ => return Err(TransactionError::NoStatement.into()),
        }
        let at = inner.statements.open.len() - 1;
        self.end_statement_at(inner, at, end)
    }

    /// Ends the statement at this place, and those within it ([`Inner::close_statement`]).
    fn end_statement_at(&self, mut inner: MutexGuard<'_, Inner>, at: usize, end: StatementEnd) -> Result<()> {
        let start = inner.close_statement(at, end);
        if !self.keeps_view(&inner) {
            inner.release_view();
        }
        match end {
            StatementEnd::Keep => Ok(()),
            StatementEnd::Undo => {
                let mut call = self.begin_call_on(inner)?;
                let done = self.running(&mut call.inner).rollback_to(&start);
                call.finish(done)
            }
        }
    }

    /// Runs a closure as a statement, which is undone if the closure fails or panics.
    pub(crate) fn atomically<T>(&self, run: impl FnOnce() -> Result<T>) -> Result<T> {
        let binds = is_in_call();
        let number = self.call(|inner| {
            let binds = binds && inner.statements.bound_to.is_none();
            Ok(inner.open_statement(EndedBy::Closure { binds }))
        })?;
        let mut statement = OfClosure { scope: self, number, is_over: false };
        let done = run();
        statement.end(if done.is_ok() { StatementEnd::Keep } else { StatementEnd::Undo })?;
        done
    }

    /// Sets a savepoint. One of the same name is removed.
    pub(crate) fn set_savepoint(&self, name: Option<&str>) -> Result<Savepoint> {
        self.call(|inner| {
            let at = inner.trx.savepoint();
            if name.is_some() {
                inner.savepoints.retain(|known| known.name.as_deref() != name);
            }
            let value = inner.savepoint_numbers.next();
            debug_assert!(
                inner
                    .savepoints
                    .last()
                    .is_none_or(|last| { last.number < value.number && !at.is_before(&last.at) }),
                "a savepoint is set before an earlier one"
            );
            let name = name.map(Arc::from);
            inner.savepoints.push(SetSavepoint { number: value.number, name, at });
            Ok(value)
        })
    }

    /// Rolls back to a savepoint, and removes those after it.
    pub(crate) fn rollback_to(&self, savepoint: SavepointId<'_>) -> Result<()> {
        self.call(|inner| {
            let place = inner.place_of(savepoint)?;
            inner.savepoints.truncate(place + 1);
            let at = inner.savepoints[place].at.clone();
            debug_assert!(!inner.trx.savepoint().is_before(&at), "a savepoint is ahead of its undo");
            self.running(inner).rollback_to(&at)
        })
    }

    /// Removes a savepoint, and if it was given by its name, those after it.
    pub(crate) fn release(&self, savepoint: SavepointId<'_>) -> Result<()> {
        self.call(|inner| {
            let place = inner.place_of(savepoint)?;
            match savepoint {
                SavepointId::Value(_) => drop(inner.savepoints.remove(place)),
                SavepointId::Name(_) => inner.savepoints.truncate(place),
            }
            Ok(())
        })
    }
}

/// The statement of a closure. It is undone unless it is ended before, also on a panic.
struct OfClosure<'s> {
    scope: &'s Scope,
    number: u64,
    is_over: bool,
}

impl OfClosure<'_> {
    /// Ends the statement. Waits first until a call in progress on another thread has ended.
    fn end(&mut self, end: StatementEnd) -> Result<()> {
        self.is_over = true;
        let scope = self.scope;
        // Within a call this cannot deadlock: other threads hold the mutex only to check whether they may continue.
        let inner = if is_in_call() { scope.inner.lock_out_of_order() } else { scope.inner.lock() };
        if let Some(at) = inner.statements.open.iter().position(|known| known.number == self.number) {
            return scope.end_statement_at(inner, at, end);
        }
        debug_assert!(!matches!(inner.phase, Phase::Open), "the statement of a closure has ended before it");
        match end {
            StatementEnd::Keep => inner.check_active(),
            // The error of the closure says more.
            StatementEnd::Undo => Ok(()),
        }
    }
}

impl Drop for OfClosure<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            // An error of the rollback has ended the transaction, or stopped the database.
            let _ = self.end(StatementEnd::Undo);
        }
    }
}

impl Inner {
    /// Begins a statement. Returns its number.
    fn open_statement(&mut self, ended_by: EndedBy) -> u64 {
        debug_assert!(matches!(self.phase, Phase::Open), "a statement begins and its transaction has ended");
        if ended_by == (EndedBy::Closure { binds: true }) {
            self.statements.bound_to = Some(thread::number());
        }
        let number = self.statements.begun;
        self.statements.begun += 1;
        let (start, hidden) = (self.trx.savepoint(), mem::take(&mut self.savepoints));
        self.statements.open.push(Statement { number, start, hidden, ended_by });
        number
    }

    /// Removes the statement at this place, and those within it, except those of closures, which another thread runs.
    /// Returns its start. If it is kept, its savepoints become those of what is around it.
    fn close_statement(&mut self, at: usize, end: StatementEnd) -> Position {
        let open = &mut self.statements.open;
        let is_of_closure = |statement: &Statement| statement.ended_by != EndedBy::Call;
        let within = open[at + 1..].iter().position(is_of_closure).map_or(open.len(), |n| at + 1 + n);
        let closed: SmallVec<[Statement; 1]> = open.drain(at..within).collect();
        if closed[0].ended_by == (EndedBy::Closure { binds: true }) {
            debug_assert!(
                self.statements.bound_to == Some(thread::number()),
                "a statement ends on another thread than the one it has bound its transaction to"
            );
            self.statements.bound_to = None;
        }
        assert!(
            closed.windows(2).all(|pair| !pair[1].start.is_before(&pair[0].start)),
            "a statement has begun before the one around it"
        );
        let savepoints = open.get_mut(at).map_or(&mut self.savepoints, |within| &mut within.hidden);
        let mut first = Position::default();
        for Statement { start, hidden, .. } in closed.into_iter().rev() {
            let set = mem::replace(savepoints, hidden);
            if end == StatementEnd::Keep {
                savepoints
                    .retain(|known| known.name.is_none() || set.iter().all(|again| again.name != known.name));
                savepoints.extend(set);
            }
            first = start;
        }
        first
    }

    fn place_of(&self, savepoint: SavepointId<'_>) -> Result<usize> {
        let place = match savepoint {
            SavepointId::Name(name) => {
                let place = self.savepoints.iter().position(|known| known.name.as_deref() == Some(name));
                place.ok_or_else(|| TransactionError::NoSavepoint(name.into()))
            }
            SavepointId::Value(value) => {
                debug_assert!(
                    self.savepoints.is_sorted_by_key(|known| known.number),
                    "a savepoint was set after a later one"
                );
                let is_own = self.savepoint_numbers.serial == Some(value.transaction);
                let place = self.savepoints.binary_search_by_key(&value.number, |known| known.number);
                place.ok().filter(|_| is_own).ok_or(TransactionError::StaleSavepoint)
            }
        };
        Ok(place?)
    }
}
