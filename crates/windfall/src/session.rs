//! Temporary tables: those of a session, and those of no session.
//!
//! **Purpose.** Temporary tables and scratch trees are tablespaces of their own. Only their session can find them, or
//! the owner of a table that belongs to none; they are neither logged nor checkpointed, and are dropped at the cost of
//! a drop: each on request, all of them when the session ends.
//!
//! **Invariants.** A call on a temporary table writes no redo for it and waits for no room in the log, whatever it
//! changes (test: `temporary_rows_ask_for_no_room_in_the_log`). The call itself purges the old versions that it leaves,
//! before it returns (test: `a_read_view_does_not_keep_old_versions_of_temporary_tables`). The change is already made
//! by then, so a failure of purge does not fail the call (test: `a_change_that_was_made_is_not_reported_as_failed`).
//! Only handles outlive a session; their calls then return [`Error::TableDropped`]
//! (test: `the_end_of_a_session_waits_for_calls_on_a_scratch_tree_that_is_going`).

use std::collections::BTreeMap;

#[cfg(doc)]
use crate::error::UsageError;
use crate::{
    alteration::of_any_table,
    catalog::{self, Catalog, DropReport, LoadedValue, MadeEntry, MakeEntryOf},
    database::TableOptions,
    ddl_group::TableChanges,
    engine::Engine,
    error::{Error, Result, SchemaError},
    interrupt::InterruptHandle,
    load::LoadOptions,
    sync::{Arc, Interruptible, Mutex, Rank},
    table::Table,
    txn::{Stream, SuppliedChange},
};

/// The state that the tables of a session share.
#[derive(Debug)]
pub(crate) struct SessionUndo {
    stream: Arc<Stream>,
    /// The scratch trees in use, by table id.
    scratches: Mutex<BTreeMap<u64, Arc<catalog::Table>>>,
}

impl SessionUndo {
    fn begin(engine: &Engine) -> Arc<Self> {
        let stream = Arc::new(engine.transactions.streams().temporary());
        Arc::new(Self { stream, scratches: Mutex::new(Rank::Session, BTreeMap::new()) })
    }

    /// Returns the undo of the session's temporary tables.
    pub(crate) fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }
}

/// A session with temporary tables. When it is dropped, it waits for the calls on its tables and drops the tables. So
/// the source of a value of such a table must not drop it.
#[derive(Debug)]
pub struct Session {
    engine: Arc<Engine>,
    undo: Arc<SessionUndo>,
    tables: Mutex<BTreeMap<String, Table>>,
}

impl Session {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        let undo = SessionUndo::begin(&engine);
        Self { engine, undo, tables: Mutex::new(Rank::Session, BTreeMap::new()) }
    }

    /// Creates a temporary table, which only this session can find by its name. It does not shadow a permanent table of
    /// the same name.
    ///
    /// # Errors
    /// The session already has a table of this name.
    pub fn create_temporary_table(&self, name: &str, options: TableOptions) -> Result<Table> {
        self.engine.check_open()?;
        let mut tables = self.tables.lock();
        if tables.contains_key(name) {
            return Err(SchemaError::TableExists(name.into()).into());
        }
        let table = self.engine.catalog.temporary_table(&options.definition)?;
        let table = Table::temporary(self.engine.clone(), name, table, self.undo.clone());
        self.engine.catalog.name_temporary(&table.inner, &table.name);
        let before = tables.insert(name.to_owned(), table.clone());
        debug_assert!(before.is_none(), "two temporary tables of a session have the name {name}");
        Ok(table)
    }

    /// Creates an unnamed tree for intermediate results. It is dropped with the returned handle, or with the session.
    ///
    /// # Errors
    /// The log accepts no more records: the allocation of tablespace ids is logged.
    pub fn scratch(&self) -> Result<Scratch> {
        self.engine.check_open()?;
        let table = self.engine.catalog.temporary_table(&TableOptions::default().definition)?;
        let id = table.with_schema(|schema| schema.record.id);
        let before = self.undo.scratches.lock().insert(id, table.clone());
        assert!(before.is_none(), "two scratch trees of a session have the id {id}");
        let undo = self.undo.clone();
        Ok(Scratch {
            undo: undo.clone(),
            table: Table::temporary(self.engine.clone(), "(scratch)", table, undo),
        })
    }

    /// Returns the session's temporary table of this name.
    ///
    /// # Errors
    /// There is no table of this name.
    pub fn temporary_table(&self, name: &str) -> Result<Table> {
        self.tables.lock().get(name).cloned().ok_or_else(|| SchemaError::NoTable(name.into()).into())
    }

    /// Drops a temporary table. Waits for the calls on it that are in progress.
    ///
    /// # Errors
    /// There is no table of this name; the call comes from within the source of a value.
    pub fn drop_temporary_table(&self, name: &str) -> Result<DropReport> {
        Catalog::check_outside()?;
        let table = self.tables.lock().remove(name).ok_or_else(|| SchemaError::NoTable(name.into()))?;
        let report = self.engine.catalog.drop_temporary(&table.inner);
        assert!(report.lsn.is_none(), "the drop of a temporary table is logged");
        Ok(report)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for table in self.tables.get_mut().values() {
            self.engine.catalog.drop_temporary(&table.inner);
        }
        // A scratch tree that is being dropped at this moment is here, too: dropping it again waits for the calls
        // inside it.
        for table in core::mem::take(&mut *self.undo.scratches.lock()).values() {
            self.engine.catalog.drop_temporary(table);
        }
        // No call is inside a table of this session any more, and handles that are left keep nothing alive.
        self.engine.transactions.streams().drop_temporary(&self.undo.stream);
    }
}

/// A temporary table that belongs to no session ([`Database::create_temporary_table`]). Any thread may use it, one
/// after the other: one call or transaction at a time. No rows, ranges or tables are locked, and reads return the
/// newest rows, so another thread would see the changes of a transaction that has not ended. It is dropped with this
/// value, after the calls on it: so the source of a value of the table must not drop it. Handles of it, which are
/// clones of the [`Table`] that this dereferences to, return
/// [`Error::TableDropped`] from then on.
///
/// [`Database::create_temporary_table`]: crate::Database::create_temporary_table
#[derive(Debug)]
pub struct TemporaryTable {
    undo: Arc<SessionUndo>,
    /// What interrupts its loads and alterations, if the handle that has created it has one.
    interrupt: Option<InterruptHandle>,
    table: Table,
}

impl TemporaryTable {
    pub(crate) fn create(
        engine: Arc<Engine>,
        name: &str,
        options: &TableOptions,
        interrupt: Option<InterruptHandle>,
    ) -> Result<Self> {
        engine.check_open()?;
        let table = engine.catalog.temporary_table(&options.definition)?;
        let undo = SessionUndo::begin(&engine);
        let table = Table::temporary(engine, name, table, undo.clone());
        table.engine.catalog.name_temporary(&table.inner, &table.name);
        Ok(Self { undo, interrupt, table })
    }

    fn interruptible(&self) -> Option<Interruptible> {
        self.interrupt.as_ref().map(InterruptHandle::enter)
    }

    /// Gives the table another name, which messages use from now on. Nothing is looked up by it: any number of tables
    /// may have it.
    pub fn rename(&mut self, name: &str) {
        self.table.name = name.into();
        self.table.engine.catalog.name_temporary(&self.table.inner, &self.table.name);
    }

    /// Changes the table in several ways at once, as [`Database::alter_table`] does: indexes are dropped, renamed and
    /// added, the metadata replaced, the next numbers set, and the table renamed. Handles of the table remain valid.
    /// Waits for the calls on it that are in progress, and others wait until it is altered.
    ///
    /// # Errors
    /// An index is missing, or its definition or its name is refused; two rows have the same key in a new unique index;
    /// an index takes its entries from the caller; an index is added, and a transaction that has changed rows of the
    /// table has not ended ([`UsageError::TemporaryInUse`]), or the call is interrupted
    /// ([`Database::with_interrupt`](crate::Database::with_interrupt)); I/O. The table is unchanged then.
    ///
    /// [`Database::alter_table`]: crate::Database::alter_table
    pub fn alter(&mut self, changes: TableChanges) -> Result<DropReport> {
        self.alter_made(changes, None)
    }

    /// As [`TemporaryTable::alter`], with new indexes of which the caller supplies the entries, as for
    /// [`Database::alter_table_with`](crate::Database::alter_table_with).
    ///
    /// # Errors
    /// As [`TemporaryTable::alter`]; those of `make`, which cannot call the table ([`UsageError::CallInAlteration`]).
    pub fn alter_with(
        &mut self,
        changes: TableChanges,
        make: impl FnMut(&str, &[u8], &[u8], &mut MadeEntry) -> Result<bool>,
    ) -> Result<DropReport> {
        self.alter_made(changes, Some(&mut of_any_table(make)))
    }

    fn alter_made(
        &mut self,
        TableChanges { changes }: TableChanges,
        make: Option<&mut MakeEntryOf<'_>>,
    ) -> Result<DropReport> {
        let Table { engine, name, inner, .. } = &self.table;
        engine.check_open()?;
        let _interruptible = self.interruptible();
        let report = engine.catalog.alter_temporary(name, inner, &changes, make)?;
        assert!(report.lsn.is_none(), "the alteration of a temporary table is logged");
        if let Some(name) = &changes.name {
            self.rename(name);
        }
        Ok(report)
    }

    /// Begins to load rows, in the order of their keys, into the table, which is empty: the fast way to fill it. The
    /// table gets all of them when the load is finished, and may be used until then. Its counters continue.
    ///
    /// # Errors
    /// The table has rows, or such as a transaction that has not ended has deleted; an interrupt; I/O.
    pub fn load(&mut self) -> Result<TemporaryLoad> {
        self.load_with(LoadOptions::default())
    }

    /// As [`TemporaryTable::load`], with rows in any order.
    ///
    /// # Errors
    /// As [`TemporaryTable::load`].
    pub fn load_unsorted(&mut self) -> Result<TemporaryLoad> {
        self.load_with(LoadOptions::default().unsorted())
    }

    /// As [`TemporaryTable::load`], with the rows and the memory that the options state.
    ///
    /// # Errors
    /// As [`TemporaryTable::load`].
    pub fn load_with(&mut self, options: LoadOptions) -> Result<TemporaryLoad> {
        let Table { engine, name, inner, .. } = &self.table;
        engine.check_open()?;
        let _interruptible = self.interruptible();
        let load = engine.catalog.begin_temporary_load(name, inner, options.limits)?;
        Ok(TemporaryLoad { inner: load, interrupt: self.interrupt.clone(), engine: engine.clone() })
    }

    /// Removes all rows, at the cost of a drop. Handles of the table remain valid. Waits for the calls on it that are
    /// in progress, but not for transactions: what they have changed in it is gone.
    ///
    /// # Errors
    /// The log accepts no more records: the allocation of tablespace ids is logged. The call comes from within the
    /// source of a value. The table is unchanged then.
    pub fn truncate(&mut self) -> Result<DropReport> {
        self.table.engine.check_open()?;
        let report = self.table.engine.catalog.truncate_temporary(&self.table.inner)?;
        assert!(report.lsn.is_none(), "the truncation of a temporary table is logged");
        Ok(report)
    }
}

/// A load of rows into an empty temporary table, which [`TemporaryTable::load`] begins. It owns all that it needs, and
/// any thread may go on with it. When it is dropped before it was finished, the rows are discarded.
#[derive(Debug)]
#[must_use = "the rows are discarded unless the load is finished"]
pub struct TemporaryLoad {
    inner: catalog::TemporaryLoad,
    /// That of the table.
    interrupt: Option<InterruptHandle>,
    // The last handle of the database, possibly: dropped last.
    engine: Arc<Engine>,
}

impl TemporaryLoad {
    /// Adds a row, with its entries in the indexes of which the caller supplies them, as
    /// [`TableLoad::push`](crate::TableLoad::push).
    ///
    /// # Errors
    /// As [`TableLoad::push`](crate::TableLoad::push).
    pub fn push(&mut self, key: &[u8], value: &[u8], entries: &[SuppliedChange<'_>]) -> Result<()> {
        self.push_value(key, LoadedValue::Whole(value.to_vec()), entries)
    }

    /// As [`TemporaryLoad::push`], with the fields of the row, as for [`Table::insert_fields`].
    ///
    /// # Errors
    /// As [`TemporaryLoad::push`].
    pub fn push_fields(
        &mut self,
        key: &[u8],
        fields: &[&[u8]],
        entries: &[SuppliedChange<'_>],
    ) -> Result<()> {
        self.push_value(key, LoadedValue::Fields(fields), entries)
    }

    fn push_value(
        &mut self,
        key: &[u8],
        value: LoadedValue<'_>,
        entries: &[SuppliedChange<'_>],
    ) -> Result<()> {
        self.engine.check_open()?;
        let _interruptible = self.interrupt.as_ref().map(InterruptHandle::enter);
        self.inner.push(key.to_vec(), value, Some(entries))
    }

    /// Gives the rows to the table that the load was begun for, as one step. Waits for the calls on it that are in
    /// progress.
    ///
    /// # Errors
    /// Two rows have the same key, also in a unique index; the table was altered or truncated since the load began
    /// ([`SchemaError::DefinitionChanged`]), or is another one ([`UsageError::LoadOfOtherTable`]); it has got rows
    /// ([`SchemaError::NotEmpty`]), or a transaction that has not ended has changed it
    /// ([`UsageError::TemporaryInUse`]); an interrupt; I/O. The table is unchanged then, and the rows are discarded.
    pub fn finish(self, table: &mut TemporaryTable) -> Result<()> {
        // Dropped in reverse: the engine last.
        let Self { engine, interrupt, inner } = self;
        engine.check_open()?;
        let _interruptible = interrupt.as_ref().map(InterruptHandle::enter);
        inner.finish(&table.name, &table.inner)
    }
}

/// Information about a temporary table ([`Database::temporary_tables`](crate::Database::temporary_tables)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemporaryTableInfo {
    /// The name of the table, which others may have as well.
    pub name: String,
    /// The number of its rows.
    pub rows: u64,
    /// Its pages, which are all in the buffer pool, with those of its indexes.
    pub resident_pages: u64,
}

impl TemporaryTableInfo {
    pub(crate) fn all(engine: &Engine) -> Result<Vec<Self>> {
        let mut all = Vec::new();
        for (name, table) in engine.catalog.temporary_tables() {
            let rows = match table.row_count() {
                Err(Error::TableDropped(_)) => continue,
                rows => rows?,
            };
            let resident = |schema: &catalog::TableSchema| {
                schema.trees().map(|tree| u64::from(tree.space().resident())).sum()
            };
            all.push(Self { name: name.to_string(), rows, resident_pages: table.with_schema(resident) });
        }
        Ok(all)
    }
}

impl core::ops::Deref for TemporaryTable {
    type Target = Table;

    fn deref(&self) -> &Table {
        &self.table
    }
}

impl Drop for TemporaryTable {
    fn drop(&mut self) {
        self.table.engine.catalog.drop_temporary(&self.table.inner);
        // No call is inside the table any more.
        self.table.engine.transactions.streams().drop_temporary(&self.undo.stream);
    }
}

/// A tree for intermediate results.
#[derive(Debug)]
pub struct Scratch {
    undo: Arc<SessionUndo>,
    table: Table,
}

impl core::ops::Deref for Scratch {
    type Target = Table;

    fn deref(&self) -> &Table {
        &self.table
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Within the source of a value, perhaps of this very tree, nothing can be dropped: the session's end drops it.
        if Catalog::check_outside().is_err() {
            return;
        }
        self.table.engine.catalog.drop_temporary(&self.table.inner);
        // Not earlier: the session's end waits for the calls on the trees in this map, which need the session's undo.
        self.undo.scratches.lock().remove(&self.table.inner.with_schema(|schema| schema.record.id));
    }
}

#[cfg(test)]
mod tests {
    use windfall_sim::{SimulatedDisk, SimulatedEnv};

    use super::*;
    use crate::{Database, Options};

    #[test]
    fn a_change_that_was_made_is_not_reported_as_failed() {
        let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
        let options = Options::default().buffer_pool_size(4 << 20);
        let db = Database::open_on(Arc::new(disk), Arc::new(env), &options, &|_| {}).unwrap();
        let session = db.session();
        let table = session.create_temporary_table("t", TableOptions::default()).unwrap();
        table.put(b"row", &vec![1; 100_000]).unwrap();
        let pages = || {
            let space = table.inner.with_schema(|schema| schema.clustered.space().clone());
            crate::tablespace::pages_in_use(&table.engine.pool, &space).unwrap().len()
        };
        let before = pages();
        // A change passes two of the fault injection points, purge the third.
        table.engine.transactions.fail_at(3);
        table.put(b"row", &vec![2; 100_000]).unwrap();
        assert_eq!(table.get(b"row").unwrap(), Some(vec![2; 100_000]));
        assert!(pages() > before, "purge has continued");
        // The next call purges, even if it fails itself.
        table.insert(b"row", b"").unwrap_err();
        assert_eq!(pages(), before);
        table.engine.transactions.fail_at(2);
        table.put(b"row", &vec![3; 100_000]).unwrap_err();
        assert_eq!((pages(), table.get(b"row").unwrap()), (before, Some(vec![2; 100_000])));
    }

    #[test]
    fn from_within_a_source_nothing_temporary_is_dropped() {
        /// Drops the tables that its own value is written to.
        struct Source<'a>(&'a Session, Option<Scratch>);

        impl std::io::Read for Source<'_> {
            fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
                let refused = self.0.drop_temporary_table("t").unwrap_err();
                assert!(refused.to_string().contains("source"), "{refused}");
                self.1 = None;
                out.fill(1);
                Ok(out.len())
            }
        }

        let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
        let options = Options::default().buffer_pool_size(4 << 20);
        let db = Database::open_on(Arc::new(disk), Arc::new(env), &options, &|_| {}).unwrap();
        let session = db.session();
        let table = session.create_temporary_table("t", TableOptions::default()).unwrap();
        table.put_stream(b"row", 100, &mut Source(&session, None)).unwrap();
        assert_eq!(table.get(b"row").unwrap(), Some(vec![1; 100]));
        session.drop_temporary_table("t").unwrap();
        let scratch = session.scratch().unwrap();
        let handle = Table::clone(&scratch);
        handle.put_stream(b"row", 100, &mut Source(&session, Some(scratch))).unwrap();
        drop(session);
        assert!(matches!(handle.get(b"row"), Err(Error::TableDropped(_))), "it went with the session");
    }

    #[test]
    fn the_end_of_a_session_waits_for_calls_on_a_scratch_tree_that_is_going() {
        use std::{sync::mpsc, thread, time::Duration};

        /// In the middle of a long value, it waits for a signal to continue.
        struct Source(mpsc::Sender<()>, mpsc::Receiver<()>, usize);

        impl std::io::Read for Source {
            fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
                self.2 += out.len();
                if self.2 > 50_000 && self.0.send(()).is_ok() {
                    let _ = self.1.recv_timeout(Duration::from_mins(1));
                    self.0 = mpsc::channel().0;
                }
                out.fill(1);
                Ok(out.len())
            }
        }

        let folder = tempfile::tempdir().unwrap();
        let db = Database::open(folder.path(), Options::default().buffer_pool_size(4 << 20)).unwrap();
        let session = db.session();
        let scratch = session.scratch().unwrap();
        let handle = Table::clone(&scratch);
        let ((inside, is_inside), (resume, resumed)) = (mpsc::channel(), mpsc::channel());
        thread::scope(|scope| {
            let call = handle.clone();
            let call =
                scope.spawn(move || call.put_stream(b"row", 1_000_000, &mut Source(inside, resumed, 0)));
            is_inside.recv().unwrap();
            scope.spawn(move || drop(scratch));
            while handle.get(b"none").is_ok() {
                thread::yield_now();
            }
            let ended = scope.spawn(move || drop(session));
            // The drop must not end, but nothing shows that it has begun to wait.
            thread::sleep(Duration::from_millis(100));
            assert!(!ended.is_finished(), "the session has ended, with the undo of a running call");
            resume.send(()).unwrap();
            call.join().unwrap().unwrap();
        });
        assert!(matches!(handle.get(b"row"), Err(Error::TableDropped(_))), "it went with the session");
        db.create_table("t", TableOptions::default()).unwrap().insert(b"the database", b"works").unwrap();
    }
}
