//! Bulk load of rows into an empty table that exists ([`TableLoad`]).
//!
//! **Purpose.** The caller pushes the rows, with the entries that it supplies, into new trees. In the end the table
//! gets these in place of its empty ones, as a truncation gives it new trees. Nothing is locked until then.
//!
//! **Invariants.** The table gets all rows in one step, or none (test:
//! `a_crash_during_a_load_of_a_table_leaves_all_or_nothing`). When it gets them it is empty (test:
//! `a_load_that_fails_leaves_the_table_as_it_was`), no transaction has changed it (test:
//! `a_load_waits_for_transactions_that_have_changed_the_table`), and no change of it is still to be rolled back (test:
//! `a_load_waits_for_rollbacks_in_the_background`). So no row of others is lost, nor one whose deletion is not
//! committed. Its counters continue (test: `numbers_continue_after_a_load`).

use core::fmt;

use smallvec::SmallVec;

use super::{
    ddl_options::DdlOptions,
    filled::{Filled, FilledAside},
    names::MetadataLock,
    plan::{Closing, NextNumber, Plan},
    record::{Metadata, TableRecord},
    state::{Catalog, new_space, no_table, record_key},
    statement::{DropReport, Dropped},
    table::{Table, TableSchema},
    table_load::{LoadLimits, LoadedValue, TableLoader},
};
use crate::{
    error::{Error, LockError, Owner, Result, SchemaError},
    ids::SpaceId,
    store::Tree,
    sync::{Arc, Closed, InterruptibleWait, LongWork},
    system::Change,
    tablespace::CounterKind,
    tree::Seek,
    txn::{StatementLock, SuppliedChange, trx::background_rollback},
};

/// A load of rows into an empty table. What was pushed is discarded unless the load is finished.
#[must_use = "the rows are discarded unless the load is finished"]
pub struct TableLoad {
    catalog: Arc<Catalog>,
    name: Arc<str>,
    table: Arc<Table>,
    /// The record that the table gets.
    record: TableRecord,
    /// Its new clustered tree.
    clustered: Arc<Tree>,
    loader: TableLoader,
    filled: FilledAside,
}

impl fmt::Debug for TableLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TableLoad({}, {} rows)", self.name, self.loader.rows())
    }
}

/// Returns whether a tree has no live row.
fn is_empty(clustered: &Tree) -> Result<bool> {
    let mut cursor = clustered.cursor();
    let (mut more, mut work) = (cursor.seek(Seek::First)?, LongWork::default());
    while more {
        work.step()?;
        if cursor.header().is_some_and(|header| !header.is_deleted()) {
            return Ok(false);
        }
        more = cursor.next()?;
    }
    Ok(true)
}

impl Catalog {
    /// Begins to load rows into an empty table.
    ///
    /// # Errors
    /// [`SchemaError::NoTable`], [`SchemaError::NotEmpty`]; damage, I/O.
    pub fn begin_load(self: &Arc<Self>, name: &str, limits: LoadLimits) -> Result<TableLoad> {
        let table = self.table(name)?;
        let before: TableSchema = {
            let owned = |error: Error| error.of(|_| Owner::Table(name.into()));
            let call = table.enter().map_err(owned)?;
            if !is_empty(&call.clustered).map_err(owned)? {
                return Err(SchemaError::NotEmpty(name.into()).into());
            }
            (*call).clone()
        };
        let mut record = before.record.clone();
        record.version += 1;
        self.renew_trees(&mut record)?;
        // Long metadata stay in their tree.
        let filled_record = TableRecord { metadata: Metadata::default(), ..record.clone() };
        let schema = self.schema(filled_record, &mut |id| Ok(new_space(id)))?;
        let mut filled = Filled::new(self);
        filled.add(&schema)?;
        let clustered = schema.clustered.clone();
        let loader = TableLoader::new(self, name, schema, limits).replacing(&before);
        let (catalog, filled) = (self.clone(), filled.aside(self));
        Ok(TableLoad { catalog, name: name.into(), table, record, clustered, loader, filled })
    }
}

impl Catalog {
    /// As [`Catalog::close_gates`], of a table that no transaction has changed which is still to be rolled back: such
    /// ones have no lock on the table.
    fn close_clear_gates<'c, 't>(
        &'c self,
        metadata_lock: &MetadataLock<'_>,
        plan: &Plan<'_, 't>,
        space: SpaceId,
        options: DdlOptions,
    ) -> Result<(SmallVec<[Closed<'t>; 1]>, Option<StatementLock<'c>>)> {
        loop {
            let closed_and_lock = self.close_gates(metadata_lock, plan, options)?;
            if self.transactions.rollbacks().are_clear_of(space) {
                return Ok(closed_and_lock);
            }
            drop(closed_and_lock);
            metadata_lock.downgrade();
            let waiting = InterruptibleWait::polled();
            background_rollback::await_rollbacks(
                &self.transactions,
                space,
                self.wait_left(options),
                &mut || {
                    if waiting.is_interrupted() { Err(LockError::Interrupted.into()) } else { Ok(false) }
                },
            )?;
            metadata_lock.upgrade();
        }
    }
}

impl TableLoad {
    /// Adds a row, with the entries that the caller supplies.
    ///
    /// # Errors
    /// A key that is not greater than the last, with rows in order; entries that are missing or wrong; keys, payloads
    /// and values that are too long: the row is not added. Any other error, such as a full disk: every further call
    /// fails with [`Incomplete`](crate::error::UsageError::Incomplete).
    pub fn push(
        &mut self,
        key: Vec<u8>,
        value: LoadedValue<'_>,
        supplied: Option<&[SuppliedChange<'_>]>,
    ) -> Result<()> {
        self.loader.push(key, value, supplied)
    }

    /// Gives the table the rows. Waits for transactions that have locked or changed it, also for those that are rolled
    /// back in the background.
    ///
    /// # Errors
    /// Two rows have one key, also in a unique index; the table was dropped or renamed, it has got rows, or its
    /// definition has changed; a lock timeout; errors of the log. The table is unchanged then, and the rows are
    /// discarded.
    pub fn finish(self, options: DdlOptions) -> Result<DropReport> {
        let Self { catalog, name, table, record, clustered, loader, mut filled } = self;
        let filled = filled.again();
        let rows = loader.rows();
        loader.finish()?;
        DropReport::of(|| {
            let metadata_lock = catalog.lock_names(&[&name], options)?;
            let Some(now) = metadata_lock.table(&name) else { return Err(no_table(&name).into()) };
            let version = now.with_schema(|schema| schema.record.version);
            if !Arc::ptr_eq(now, &table) || version + 1 != record.version {
                return Err(SchemaError::DefinitionChanged(name.clone()).into());
            }
            if rows == 0 {
                return Ok(Dropped::NOTHING);
            }
            let spaces: Vec<_> = filled.spaces().cloned().collect();
            let plan = Plan {
                filled: &spaces,
                records: &mut [Change::put(record_key(&name), record.encode())],
                closing: &mut [Closing { table: &table, record: Some(Box::new(record)) }],
                ..Plan::default()
            };
            let (closed, lock) = catalog.close_clear_gates(&metadata_lock, &plan, table.space(), options)?;
            let owned = |error: Error| error.of(|_| Owner::Table(name.clone()));
            if !is_empty(&table.closed_schema(&closed[0]).clustered).map_err(owned)? {
                return Err(SchemaError::NotEmpty(name.clone()).into());
            }
            let mut numbers = Vec::new();
            let next = table.next_numbers(&closed[0]).map_err(owned)?;
            for (kind, next) in CounterKind::ALL.into_iter().zip(next) {
                // A table of which no number was requested has no ceiling.
                if next > 1 {
                    let tree = clustered.clone();
                    numbers.push(NextNumber { table: Some(&*table), tree, kind, next });
                }
            }
            let plan = Plan { numbers: &numbers, ..plan };
            let done = catalog.carry_out_closed(&metadata_lock, plan, closed, lock, options)?;
            let dropped = catalog.publish(metadata_lock, done, &[]);
            filled.named();
            Ok(dropped)
        })
    }
}
