//! The steps that all DDL statements have in common.
//!
//! **Purpose.** Waits for the calls and transactions that use the tables of a statement, commits its records as one
//! group of the log, and gives up the trees that no record names any more.
//!
//! **Invariants.** A tablespace is detached after the group that drops it is committed, with the durability that
//! `flush_log_at_trx_commit` demands (test: `a_drop_that_fails_has_touched_nothing`). A group that is too long is
//! refused before a page is changed (test: `a_group_that_does_not_fit_the_log_buffer_is_refused_whole`).

use core::time::Duration;

use smallvec::SmallVec;

use super::{
    ddl_options::DdlOptions,
    names::MetadataLock,
    plan::{NextNumber, Plan},
    state::Catalog,
    table::Table,
};
use crate::{
    buffer::with_reserved_frames,
    env::Env,
    error::{Result, UsageError},
    health::Health,
    ids::{Lsn, SpaceId},
    log::{FlushLog, LOG_OVERHEAD_BYTES, Record},
    mtr::Mtr,
    store::Tree,
    sync::{
        Arc, Closed,
        work::{self, WorkCounts},
    },
    system::Change,
    tablespace,
    txn::{
        StatementLock,
        locks::{LockOwner, TableMode},
    },
};

/// The maximum number of log bytes of a ceiling.
const CEILING_BYTES: usize = 48;

/// The result of a drop.
#[derive(Clone, Debug, Default)]
pub struct DropReport {
    /// The number of tablespaces that were dropped.
    pub trees: usize,
    /// The work of the calling thread, from the first access to the catalog to the last push.
    pub work: WorkCounts,
    /// The LSN after the drop's group in the log; `None` for a temporary table, because its drop is not logged.
    pub lsn: Option<Lsn>,
}

impl DropReport {
    /// Runs a statement that drops trees, and reports it with the work of this thread.
    pub(super) fn of(statement: impl FnOnce() -> Result<Dropped>) -> Result<Self> {
        Self::counted(|| {
            let _drop = work::DropScope::begin();
            statement()
        })
    }

    /// Runs a statement that may drop trees, and reports it with the work of this thread.
    pub(super) fn counted(statement: impl FnOnce() -> Result<Dropped>) -> Result<Self> {
        let before = work::so_far();
        let Dropped { trees, lsn } = statement()?;
        Ok(Self { trees, work: work::so_far() - before, lsn })
    }
}

/// The tables and trees that a statement has dropped.
pub(super) struct Dropped {
    pub(super) trees: usize,
    /// The end of its group in the log.
    pub(super) lsn: Option<Lsn>,
}

/// A statement that is to be finished in memory: it is in the log, or row calls note for it what they change. If a
/// panic keeps it from being finished, the database is poisoned, because memory is not what it should be from then on.
#[derive(Debug)]
#[must_use = "the database is poisoned unless the statement is finished"]
pub(super) struct UnfinishedStatement<'a>(&'a Health);

impl UnfinishedStatement<'_> {
    /// Marks the statement as finished.
    pub(super) fn finished(self) {
        core::mem::forget(self);
    }
}

impl Drop for UnfinishedStatement<'_> {
    fn drop(&mut self) {
        self.0.poison("a statement was left unfinished");
    }
}

/// What a statement needs of the log and the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effort {
    /// It waits for room as other work does.
    NeedsRoom,
    /// It drops trees and creates no table: it may use what is reserved for work that makes room.
    MakesRoom,
}

impl Effort {
    /// That of a statement that drops these trees and creates no table.
    pub(super) fn of(dropped: &[SpaceId]) -> Self {
        if dropped.is_empty() { Self::NeedsRoom } else { Self::MakesRoom }
    }
}

impl Catalog {
    /// Closes the gates of the tables of a plan that end or get another record, while no transaction has locked any of
    /// them, or any that gets another name. The returned locks block transactions that request locks on these tables.
    ///
    /// The names remain visible during a wait. In the common case there is no such transaction, and the only cost is a
    /// check.
    pub(super) fn close_gates<'c, 't>(
        &'c self,
        metadata_lock: &MetadataLock<'_>,
        plan: &Plan<'_, 't>,
        options: DdlOptions,
    ) -> Result<(SmallVec<[Closed<'t>; 1]>, Option<StatementLock<'c>>)> {
        if plan.closing.is_empty() && plan.moved.is_empty() {
            return Ok((SmallVec::new(), None));
        }
        let closing = || plan.closing.iter().map(|closing| closing.table);
        let all = || closing().map(|table| &**table).chain(plan.moved.iter().copied());
        let mut lock = if self.are_locked(all()) {
            Some(self.lock_out(metadata_lock, all(), plan.in_name_of, options)?)
        } else {
            None
        };
        loop {
            let closed = Table::close_all(closing(), self.time_limit(options))?;
            debug_assert!(
                closed.len() == closing().count()
                    && closed.iter().zip(closing()).all(|(closed, table)| closed.is_of(table.gate())),
                "a table's gate is not closed, or a closed gate is that of another table"
            );
            // A transaction that has locked one since the check has changed something, or is about to.
            if lock.is_some() || !self.are_locked(closing().map(|table| &**table)) {
                return Ok((closed, lock));
            }
            drop(closed);
            lock = Some(self.lock_out(metadata_lock, all(), plan.in_name_of, options)?);
        }
    }

    /// Returns whether transactions have locked any of these tables.
    fn are_locked<'t>(&self, tables: impl Iterator<Item = &'t Table>) -> bool {
        self.transactions.lock_manager().is_any_table_locked(tables.map(Table::space))
    }

    /// Waits for the transactions that have locked tables under this statement's metadata lock, except that in the name
    /// of which it runs, and then locks these tables exclusively.
    #[cold]
    fn lock_out<'c, 't>(
        &'c self,
        metadata_lock: &MetadataLock<'_>,
        tables: impl Iterator<Item = &'t Table> + Clone,
        in_name_of: Option<&Arc<LockOwner>>,
        options: DdlOptions,
    ) -> Result<StatementLock<'c>> {
        metadata_lock.downgrade();
        let spaces = tables.clone().map(Table::space);
        let wait = self.wait_left(options);
        let lock = match in_name_of {
            None => self.transactions.lock_tables(spaces, TableMode::Exclusive, wait)?,
            Some(owner) => {
                let trees = |table: &Table| {
                    table.with_schema(|schema| {
                        schema.trees().map(|tree| tree.space().clone()).collect::<Vec<_>>()
                    })
                };
                self.transactions.lock_tables_for(owner, spaces, tables.flat_map(trees).collect(), wait)?
            }
        };
        metadata_lock.upgrade();
        Ok(lock)
    }

    /// Returns when a statement gives up, if it has a time limit, and the clock for that.
    pub(super) fn time_limit(&self, options: DdlOptions) -> Option<(Duration, &dyn Env)> {
        options.until.map(|until| (until, &*self.pool.context().env))
    }

    /// Returns how long a statement may still wait for transactions.
    pub(super) fn wait_left(&self, options: DdlOptions) -> Duration {
        let left = options.until.map(|until| until.saturating_sub(self.pool.context().env.now()));
        left.unwrap_or_else(|| self.transactions.lock_wait())
    }

    pub(super) fn unfinished_statement(&self) -> UnfinishedStatement<'_> {
        UnfinishedStatement(&self.pool.context().health)
    }

    /// Changes records and sets the ceilings of counters as one group, together with the drop record of `dropped`, and
    /// waits for the log.
    pub(super) fn change_with_numbers(
        &self,
        changes: &mut [Change],
        numbers: &[NextNumber<'_>],
        dropped: &[SpaceId],
        effort: Effort,
        mode: FlushLog,
    ) -> Result<(Option<Lsn>, UnfinishedStatement<'_>)> {
        let log = &self.pool.context().log;
        // All of it is one group: whether it fits must be known before the first page is changed.
        let dropping = size_of_val(dropped) + 1 + size_of::<u64>();
        let bytes =
            changes.iter().map(Change::log_bytes).sum::<usize>() + numbers.len() * CEILING_BYTES + dropping;
        if bytes > log.max_group() {
            let (tables, limit) = (changes.len(), log.max_group());
            return Err(UsageError::StatementTooLong { tables, bytes, limit }.into());
        }
        let bytes = bytes as u64 + LOG_OVERHEAD_BYTES;
        let _room = match effort {
            Effort::NeedsRoom => log.admit(bytes)?,
            // It frees space on disk and in the log: it waits for no space, and is not refused for lack of it.
            Effort::MakesRoom => log.admit_freeing(bytes)?,
        };
        let mut mtr = Mtr::begin(&self.pool)?;
        let set_numbers = |mtr: &mut Mtr<'_>| {
            if numbers.is_empty() {
                return Ok(());
            }
            let of = |number: &NextNumber<'_>| (number.tree.space().clone(), number.kind, number.next);
            tablespace::set_ceilings(mtr, &numbers.iter().map(of).collect::<SmallVec<[_; 1]>>())
        };
        let mut change = |mtr: &mut Mtr<'_>| self.system.change_with(mtr, changes, set_numbers);
        match effort {
            Effort::NeedsRoom => change(&mut mtr)?,
            Effort::MakesRoom => with_reserved_frames(|| change(&mut mtr))?,
        }
        if !dropped.is_empty() {
            mtr.record(&Record::Drop { spaces: dropped.into() });
        }
        debug_assert!(mtr.logged() as u64 <= bytes, "a statement logs more than it has reserved");
        let end = mtr.commit()?;
        // Logged but not yet durable: tests run background steps here, to find any that should have waited for
        // durability.
        self.pool.context().env.yield_point();
        self.pool.context().log.await_flush(end, mode)?;
        Ok((end, self.unfinished_statement()))
    }

    /// Detaches the tablespace of a tree from the pool, once its drop is logged.
    pub(super) fn detach(&self, tree: &Tree, lsn: Option<Lsn>) {
        let is_first = self.pool.detach(tree.space(), lsn);
        debug_assert!(is_first, "tablespace {} is dropped twice", tree.space().id());
    }
}
