//! Several DDL statements as one atomic step ([`DdlGroup`]), and several changes of a table as one statement
//! ([`TableChanges`]).
//!
//! **Purpose.** Collects statements, and commits them with one record in the log and one sync.
//!
//! **Invariants.** Nothing happens before the commit: a group that is dropped, or refused, has changed nothing (test:
//! `a_group_that_is_refused_has_changed_nothing`). One that was refused can be committed again, with its alterations
//! (test: `a_second_step_that_has_failed_is_repeated`). All of a committed group is visible and durable at once (tests:
//! `a_group_is_visible_as_one_step`, `groups_crash_at_every_operation`, `an_alteration_crashes_at_every_operation`).
//!
//! A group in the name of a transaction is no part of it: no rollback undoes the group, and whatever ends the
//! transaction, by request or by a crash, finds the rest of its changes as it has left them (tests:
//! `a_statement_in_the_name_of_a_transaction_is_not_undone_and_leaves_its_other_changes`,
//! `a_statement_in_the_name_of_a_transaction_crashes_at_every_operation`). Changes in a tree that the group has dropped
//! are passed over by rollback and purge (test: `rows_of_a_dropped_table_are_passed_over`). The group is a call of the
//! transaction: no other call of it is in progress meanwhile (test:
//! `a_statement_in_the_name_of_a_transaction_that_cannot_have_one_is_refused`).

use tracing::debug;

use crate::{
    alteration::{TableAlteration, of_any_table, statement_of},
    catalog::{self, BuiltIndexes, DdlStatement, DropReport, MadeEntry, MakeEntryOf},
    database::{Database, IndexOptions, TableOptions},
    error::{Result, TransactionError, UsageError},
    sync::Arc,
    tablespace::CounterKind,
    transaction::Transaction,
};

/// Changes of a table, for [`Database::alter_table`] and [`DdlGroup::alter_table`]. They take effect in the order of
/// the methods here, whatever the order of the calls: so an index can be dropped and added with another definition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "changes that are passed to no statement change nothing"]
pub struct TableChanges {
    pub(crate) changes: catalog::TableChanges,
}

impl TableChanges {
    /// Drops a secondary index.
    pub fn drop_index(mut self, name: &str) -> Self {
        self.changes.drop_indexes.push(name.into());
        self
    }

    /// Renames a secondary index. Several are renamed at once, so two may exchange their names. Handles of the index
    /// stay valid.
    pub fn rename_index(mut self, from: &str, to: &str) -> Self {
        self.changes.rename_indexes.push((from.into(), to.into()));
        self
    }

    /// Adds a secondary index. Several are filled in one scan of the table, while it is in use, as
    /// [`Database::create_index`] fills one.
    pub fn add_index(mut self, name: &str, options: IndexOptions) -> Self {
        self.changes.add_indexes.push(options.definition(name));
        self
    }

    /// Replaces the metadata, which may have 1 MiB ([`TableOptions::metadata`]).
    pub fn metadata(mut self, metadata: Vec<u8>) -> Self {
        self.changes.metadata = Some(metadata);
        self
    }

    /// Sets the next auto-increment value, also to a lower one, as [`Table::set_numbers`](crate::Table::set_numbers).
    pub fn numbers(mut self, next: u64) -> Self {
        self.changes.numbers[CounterKind::AutoIncrement as usize] = Some(next);
        self
    }

    /// Sets the next row id, as [`Table::set_row_ids`](crate::Table::set_row_ids).
    pub fn row_ids(mut self, next: u64) -> Self {
        self.changes.numbers[CounterKind::RowId as usize] = Some(next);
        self
    }

    /// Renames the table.
    pub fn name(mut self, name: &str) -> Self {
        self.changes.name = Some(name.into());
        self
    }
}

/// DDL statements that take effect as one step: [`DdlGroup::commit`] makes all of them visible and durable at once, or
/// none of them. Created by [`Database::ddl`].
///
/// A statement sees the effects of those before it: a table may be renamed, and another one get its name; a table may
/// be dropped and created again, or created and dropped. Nothing is checked before the commit, which locks all names,
/// waits as the statements alone would ([`Database::drop_table`]), and refuses all of them if one of them must be
/// refused. Meanwhile other threads use the tables as they are. A thread that has seen one effect of the group by a
/// name, a row or an index sees all of them; short metadata that it reads by a handle, and a list of tables that is
/// being made at that moment, may be partly of before.
///
/// An index cannot be added to a table that may have rows ([`UsageError::IndexInGroup`]), because it is filled while
/// the table is in use: [`Database::alter_table`] does that as a statement of its own. A table that the group creates
/// or truncates may get indexes. Indexes that were built before, of any number of tables, are published by
/// [`DdlGroup::finish`].
///
/// The group takes one group of the log, which must fit a quarter of [`Options::log_buffer_size`].
///
/// # Examples
/// A table is replaced by another one, and the old one kept under a new name:
/// ```
/// # fn main() -> windfall::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("windfall-ddl-group-{}", std::process::id()));
/// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
/// use windfall::TableOptions;
///
/// db.create_table("orders", TableOptions::default())?;
/// db.create_table("orders new", TableOptions::default())?.insert(b"1", b"an order")?;
/// let mut group = db.ddl();
/// group.rename_table("orders", "orders old").rename_table("orders new", "orders");
/// group.create_table("log", TableOptions::default());
/// group.commit()?;
/// assert_eq!(db.table("orders")?.get(b"1")?.as_deref(), Some(&b"an order"[..]));
/// assert_eq!(db.tables()?.len(), 3);
/// # db.close()?;
/// # std::fs::remove_dir_all(folder).ok();
/// # Ok(())
/// # }
/// ```
///
/// [`Options::log_buffer_size`]: crate::Options::log_buffer_size
/// [`UsageError::IndexInGroup`]: crate::error::UsageError::IndexInGroup
#[derive(Debug)]
#[must_use = "a group that is not committed changes nothing"]
pub struct DdlGroup {
    statements: Vec<DdlStatement>,
    /// The alterations that statements finish.
    built: Vec<BuiltIndexes>,
    /// Why one of them cannot be finished.
    refused: Option<UsageError>,
    // The last handle of the database, possibly: dropped last.
    db: Database,
}

impl Database {
    /// Begins a group of DDL statements, which take effect as one step when it is committed.
    ///
    /// A group of one statement also returns where that ends in the log ([`DropReport::lsn`]), which is durable with
    /// the call or, with a lazy flush mode, later ([`Database::await_durable`]). So do all statements that return a
    /// [`DropReport`]. No LSN is returned by [`Database::create_table`], [`Database::rename_table`] and
    /// [`Database::swap_tables`], which may be groups of one statement; by [`Database::create_index`] and
    /// [`Database::create_index_with`], in place of which [`Database::alter_table`] and [`Database::alter_table_with`]
    /// add an index; and by [`Database::create_table_from`] and [`TableLoad::finish`](crate::TableLoad::finish), after
    /// which the end of the log ([`Database::log_end`]) is far enough.
    pub fn ddl(&self) -> DdlGroup {
        DdlGroup { statements: Vec::new(), built: Vec::new(), refused: None, db: self.clone() }
    }

    /// Changes a table in any number of ways, in one atomic step with one durable commit. Waits as
    /// [`Database::drop_table`] does; calls on the table wait until the changes are durable, and then continue. Returns
    /// how many trees were dropped.
    ///
    /// New indexes are filled first, all in one scan of the table, while calls on it continue as during
    /// [`Database::create_index`]. The memory of the sorts, and of what is noted meanwhile, is bounded as that for one
    /// index. Then the statement waits for the transactions that have changed the table,
    /// or used it if there are other changes than new indexes, and all changes take effect at once.
    ///
    /// # Errors
    /// There is no table or index of a name, or a new name is taken or not allowed; the metadata are too long; a lock
    /// timeout; an index cannot be made, as for [`Database::create_index`]. Nothing has changed then, except that some
    /// numbers of a counter that was to be set may be skipped.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-alter-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{IndexOptions, TableChanges, TableOptions};
    ///
    /// let options = TableOptions::default().index("by_town", IndexOptions::on_value(0..6));
    /// let people = db.create_table("people", options)?;
    /// people.insert(b"1", b"Basel Ada")?;
    /// let changes = TableChanges::default().rename_index("by_town", "by_city").metadata(vec![1; 100_000]);
    /// let changes = changes.add_index("by_name", IndexOptions::on_value(6..20).unique());
    /// db.alter_table("people", changes.numbers(1000).name("persons"))?;
    /// assert_eq!(people.index("by_name")?.get(b"Ada")?.count(), 1);
    /// assert_eq!(db.table("persons")?.metadata()?.len(), 100_000);
    /// assert_eq!(people.next_number()?, 1000);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    pub fn alter_table(&self, name: &str, changes: TableChanges) -> Result<DropReport> {
        self.alter(name, changes.changes, None)
    }

    /// As [`Database::alter_table`], with new indexes of which the caller supplies the entries: `make` makes the entry
    /// of a row that exists in the index of the given name, as for [`Database::create_index_with`]. It is not called
    /// for other new indexes.
    ///
    /// # Errors
    /// As [`Database::alter_table`] and [`Database::create_index_with`].
    pub fn alter_table_with(
        &self,
        name: &str,
        changes: TableChanges,
        make: impl FnMut(&str, &[u8], &[u8], &mut MadeEntry) -> Result<bool>,
    ) -> Result<DropReport> {
        self.alter(name, changes.changes, Some(&mut of_any_table(make)))
    }

    pub(crate) fn alter(
        &self,
        name: &str,
        changes: catalog::TableChanges,
        make: Option<&mut MakeEntryOf<'_>>,
    ) -> Result<DropReport> {
        self.engine.check_open()?;
        let indexes = changes.add_indexes.len();
        let report = self.statement(|catalog, ddl| catalog.alter_table(name, changes, make, ddl))?;
        assert!(report.trees == 0 || report.lsn.is_some(), "trees were dropped without a record in the log");
        let lsn = report.lsn.map(|lsn| lsn.0);
        debug!(target: "windfall::ddl", table = name, indexes, trees = report.trees, lsn, "altered");
        Ok(report)
    }
}

impl DdlGroup {
    fn add(&mut self, statement: DdlStatement) -> &mut Self {
        self.statements.push(statement);
        self
    }

    /// Creates an empty table, as [`Database::create_table`].
    pub fn create_table(&mut self, name: &str, options: TableOptions) -> &mut Self {
        self.add(DdlStatement::Create { name: name.into(), definition: options.definition })
    }

    /// Drops a table, as [`Database::drop_table`].
    pub fn drop_table(&mut self, name: &str) -> &mut Self {
        self.add(DdlStatement::Drop { name: name.into(), if_exists: false })
    }

    /// Drops a table if it exists.
    pub fn drop_table_if_exists(&mut self, name: &str) -> &mut Self {
        self.add(DdlStatement::Drop { name: name.into(), if_exists: true })
    }

    /// Removes all rows of a table, as [`Database::truncate_table`].
    pub fn truncate_table(&mut self, name: &str) -> &mut Self {
        self.add(DdlStatement::Truncate { name: name.into() })
    }

    /// Renames a table, as [`Database::rename_table`].
    pub fn rename_table(&mut self, from: &str, to: &str) -> &mut Self {
        self.add(DdlStatement::Rename { from: from.into(), to: to.into() })
    }

    /// Swaps the names of two tables, as [`Database::swap_tables`].
    pub fn swap_tables(&mut self, a: &str, b: &str) -> &mut Self {
        self.add(DdlStatement::Swap { a: a.into(), b: b.into() })
    }

    /// Drops a secondary index, as [`Database::drop_index`].
    pub fn drop_index(&mut self, table: &str, name: &str) -> &mut Self {
        self.alter_table(table, TableChanges::default().drop_index(name))
    }

    /// Changes a table, as [`Database::alter_table`], except that it adds an index only if the group creates or
    /// truncates the table; otherwise [`DdlGroup::commit`] fails ([`UsageError::IndexInGroup`]). A table with rows gets
    /// an index as part of a group in two steps: [`Database::build_indexes`] before the group, and
    /// [`DdlGroup::finish`].
    ///
    /// [`UsageError::IndexInGroup`]: crate::error::UsageError::IndexInGroup
    pub fn alter_table(&mut self, name: &str, changes: TableChanges) -> &mut Self {
        self.add(DdlStatement::Alter { name: name.into(), changes: changes.changes })
    }

    /// Finishes an alteration in two steps, as [`TableAlteration::finish`], with further changes of the table. Several
    /// tables get their indexes and all other changes as one step, and at the same time as what else the group does.
    /// The table must have the name that it had when its indexes were built, as the statements before leave the names.
    pub fn finish(&mut self, alteration: TableAlteration, changes: TableChanges) -> &mut Self {
        let finished = alteration.finished();
        let TableAlteration { inner, db, .. } = alteration;
        match inner {
            Some(built) if Arc::ptr_eq(&db.engine, &self.db.engine) => {
                let statement = statement_of(&built, self.built.len(), changes);
                self.built.push(built);
                self.add(statement)
            }
            Some(built) => {
                self.refused.get_or_insert(UsageError::AlterationOfOther(built.name().clone()));
                self
            }
            None => {
                self.refused.get_or_insert(finished);
                self
            }
        }
    }

    /// Returns the number of statements so far.
    pub fn len(&self) -> usize {
        self.statements.len()
    }

    /// Returns whether there is no statement yet.
    pub fn is_empty(&self) -> bool {
        self.statements.is_empty()
    }

    /// Runs the statements as one step. Returns how many trees were dropped, and where the group ends in the log, if
    /// there was something to change. The group is empty then, and takes other statements.
    ///
    /// # Errors
    /// That of the first statement that must be refused: [`SchemaError::NoTable`] and [`SchemaError::TableExists`] name
    /// the table, as the statements before have left the names. If both of a rename apply, its source is named. A lock
    /// timeout, as for [`Database::drop_table`]; [`UsageError::StatementTooLong`] or [`UsageError::PoolTooSmall`] if
    /// there are too many tables. Those of [`TableAlteration::finish`], if the group finishes alterations; one of them
    /// takes entries from the caller, which has to pass a function ([`DdlGroup::commit_with`]). Nothing has changed
    /// then, and the group is as before: after a lock timeout or an interrupt commit it again, or drop it together with
    /// its alterations.
    ///
    /// [`SchemaError::NoTable`]: crate::error::SchemaError::NoTable
    /// [`SchemaError::TableExists`]: crate::error::SchemaError::TableExists
    /// [`UsageError::StatementTooLong`]: crate::error::UsageError::StatementTooLong
    /// [`UsageError::PoolTooSmall`]: crate::error::UsageError::PoolTooSmall
    pub fn commit(&mut self) -> Result<DropReport> {
        self.commit_made(None)
    }

    /// As [`DdlGroup::commit`], of a group that finishes alterations. `make` makes the entries of rows that have
    /// changed since indexes were built of which the caller supplies the entries: it gets the names of the table and of
    /// the index, the key of a row and its value, as in [`Database::build_indexes_with`].
    ///
    /// # Errors
    /// As [`DdlGroup::commit`], and those of the function.
    pub fn commit_with(
        &mut self,
        mut make: impl FnMut(&str, &str, &[u8], &[u8], &mut MadeEntry) -> Result<bool>,
    ) -> Result<DropReport> {
        self.commit_made(Some(&mut make))
    }

    fn commit_made(&mut self, make: Option<&mut MakeEntryOf<'_>>) -> Result<DropReport> {
        let Self { db, statements, built, refused } = self;
        db.engine.check_open()?;
        if let Some(refused) = refused {
            return Err(refused.clone().into());
        }
        let report = db.statement(|catalog, ddl| catalog.finish_alterations(statements, built, make, ddl))?;
        built.clear();
        Ok(Self::committed(&core::mem::take(statements), report))
    }

    /// As [`DdlGroup::commit`], in the name of an open transaction, which may have changed and locked the tables: its
    /// own locks are not waited for, those of all others are. So `CREATE TABLE ... SELECT` drops its table when it has
    /// failed, in the middle of the transaction that has filled it.
    ///
    /// The statements are not a part of the transaction: they are committed when the call returns, and durable then if
    /// the flush mode of the database says so of a commit
    /// ([`Options::flush_log_at_trx_commit`](crate::Options::flush_log_at_trx_commit)), else once the log is durable up
    /// to [`DropReport::lsn`]. No rollback, to a savepoint or of all, undoes them. What the transaction has changed in
    /// a table or index that they drop, or a table that they truncate, is gone, whether it commits or rolls back; rows
    /// in a renamed or altered table are committed and rolled back as before. The transaction keeps its other locks,
    /// and its savepoints and statement in progress. Its cursors on a dropped or truncated table fail as those of
    /// others do, and if it has a read view from before, it reads a truncated table, or one that the group creates, no
    /// more ([`TransactionError::TableChanged`]), and at [`Isolation::Snapshot`](crate::Isolation::Snapshot) it cannot
    /// change it either: begin such a transaction without a view.
    ///
    /// All waits together last as long as [`Database::with_ddl_timeout`] says for the database of this group, else as
    /// long as the transaction waits for locks; also the wait for another statement that has one of the names. That may
    /// itself be waiting for this transaction, because it has changed or locked the table. Only here can a transaction
    /// be part of a cycle that is not detected as a deadlock: the time limit ends it with [`LockError::TimedOut`],
    /// which names no transaction. The transaction goes on, and the other statement waits until it ends. A statement by
    /// itself, as [`Database::drop_table`], waits for a transaction of the same thread as for any other. This call is
    /// interrupted as the transaction is ([`Transaction::interrupt_handle`]); if that has no handle, by that of the
    /// database ([`Database::with_interrupt`]).
    ///
    /// An index cannot be added in the name of a transaction, except to a table that the group creates or truncates:
    /// [`Database::alter_table`] waits for the end of all that have changed the table. Nor is an alteration in two
    /// steps finished in the name of one.
    ///
    /// # Errors
    /// As [`DdlGroup::commit`]. Nothing has changed then, and the transaction goes on, except after a deadlock
    /// ([`LockError::Deadlock`]), which rolls it back. Another call of the transaction is in progress; it is read-only,
    /// is prepared or has ended; it belongs to another database.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-ddl-in-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{TableOptions, TransactionOptions};
    ///
    /// let trx = db.begin(TransactionOptions::default());
    /// let copy = db.create_table("copy", TableOptions::default())?;
    /// trx.table(&copy).insert(b"1", b"a row")?;
    /// let mut undo = db.ddl();
    /// undo.drop_table("copy");
    /// undo.commit_in(&trx)?; // `drop_table` alone would wait for the transaction
    /// trx.commit()?;
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`LockError::Deadlock`]: crate::error::LockError::Deadlock
    /// [`LockError::TimedOut`]: crate::error::LockError::TimedOut
    /// [`TransactionError::TableChanged`]: crate::error::TransactionError::TableChanged
    pub fn commit_in(&mut self, transaction: &Transaction) -> Result<DropReport> {
        let Self { statements, built, refused, db } = self;
        if let Some(refused) = refused {
            return Err(refused.clone().into());
        }
        if let Some(built) = built.first() {
            let (table, index) = (built.name().clone(), built.indexes()[0].name.clone());
            return Err(UsageError::IndexInGroup { table, index }.into());
        }
        let scope = &*transaction.scope;
        if !Arc::ptr_eq(&scope.engine, &db.engine) {
            return Err(TransactionError::OtherDatabase.into());
        }
        let report = db.statement_in(scope, |catalog, lock_owner, ddl| {
            catalog.run_group_for(statements, lock_owner, ddl)
        })?;
        Ok(Self::committed(&core::mem::take(statements), report))
    }

    pub(crate) fn committed(statements: &[DdlStatement], report: DropReport) -> DropReport {
        assert!(report.trees == 0 || report.lsn.is_some(), "trees were dropped without a record in the log");
        let lsn = report.lsn.map(|lsn| lsn.0);
        debug!(
            target: "windfall::ddl",
            statements = statements.len(), trees = report.trees, lsn, "a group of statements",
        );
        report
    }
}
