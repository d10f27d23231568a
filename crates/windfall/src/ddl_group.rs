//! Several DDL statements as one atomic step ([`DdlGroup`]).
//!
//! **Purpose.** Collects statements, and commits them with one record in the log and one sync.
//!
//! **Invariants.** Nothing happens before the commit: a group that is dropped, or refused, has changed nothing (test:
//! `a_group_that_is_refused_has_changed_nothing`). All of a committed group is visible and durable at once (tests:
//! `a_group_is_visible_as_one_step`, `groups_crash_at_every_operation`).

use tracing::debug;

use crate::{
    catalog::{DdlStatement, DropReport},
    database::{Database, TableOptions},
    error::Result,
};

/// DDL statements that take effect as one step: [`DdlGroup::commit`] makes all of them visible and durable at once, or
/// none of them. Created by [`Database::ddl`].
///
/// A statement sees the effects of those before it: a table may be renamed, and another one get its name; a table may
/// be dropped and created again, or created and dropped. Nothing is checked before the commit, which locks all names,
/// waits as the statements alone would ([`Database::drop_table`]), and refuses all of them if one of them must be
/// refused. Meanwhile other threads use the tables as they are. A thread that has seen one effect of the group sees all
/// of them.
///
/// An index cannot be added in a group, because it is filled while the table is in use: [`Database::create_index`] is a
/// statement of its own. A new table may have indexes.
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
#[derive(Clone, Debug)]
#[must_use = "a group that is not committed changes nothing"]
pub struct DdlGroup {
    db: Database,
    statements: Vec<DdlStatement>,
}

impl Database {
    /// Begins a group of DDL statements, which take effect as one step when it is committed.
    pub fn ddl(&self) -> DdlGroup {
        DdlGroup { db: self.clone(), statements: Vec::new() }
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
        self.add(DdlStatement::DropIndex { table: table.into(), index: name.into() })
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
    /// there was something to change.
    ///
    /// # Errors
    /// That of the first statement that must be refused: [`SchemaError::NoTable`] and [`SchemaError::TableExists`] name
    /// the table, as the statements before have left the names. If both of a rename apply, its source is named. A lock
    /// timeout, as for [`Database::drop_table`]; [`UsageError::StatementTooLong`] or [`UsageError::PoolTooSmall`] if
    /// there are too many tables. Nothing has changed then.
    ///
    /// [`SchemaError::NoTable`]: crate::error::SchemaError::NoTable
    /// [`SchemaError::TableExists`]: crate::error::SchemaError::TableExists
    /// [`UsageError::StatementTooLong`]: crate::error::UsageError::StatementTooLong
    /// [`UsageError::PoolTooSmall`]: crate::error::UsageError::PoolTooSmall
    pub fn commit(self) -> Result<DropReport> {
        let Self { db, statements } = self;
        db.engine.check_open()?;
        let report = db.engine.catalog.run_group(&statements, db.ddl_options())?;
        assert!(report.trees == 0 || report.lsn.is_some(), "trees were dropped without a record in the log");
        let lsn = report.lsn.map(|lsn| lsn.0);
        debug!(statements = statements.len(), trees = report.trees, lsn, "a group of statements");
        Ok(report)
    }
}
