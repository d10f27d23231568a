//! An alteration of a table in two steps ([`TableAlteration`]).
//!
//! **Purpose.** A server builds indexes while transactions that do not know them write, and then, with its own
//! exclusive metadata lock, makes them visible together with its new metadata in a step that is short.
//!
//! **Invariants.** The handle owns all that it needs, and any thread may use it (by type). While it is there, no call
//! of others waits because of it (test: `writers_between_the_steps_of_an_alteration_do_not_wait`). It has changed
//! nothing until it is finished (test: `an_alteration_that_is_dropped_has_changed_nothing`), and then all of it, or
//! nothing (test: `an_alteration_in_two_steps_crashes_at_every_operation`). A step that fails leaves it as it was, and
//! can be repeated (test: `a_second_step_that_has_failed_is_repeated`).

use tracing::debug;

use crate::{
    catalog::{BuiltIndexes, DdlStatement, DropReport, MadeEntry, MakeEntryOf},
    database::Database,
    ddl_group::{DdlGroup, TableChanges},
    error::{Result, UsageError},
    sync::Arc,
};

/// An alteration of a table whose new indexes are built and not published. Created by [`Database::build_indexes`];
/// [`TableAlteration::finish`] makes all of it visible as one step, and nothing has happened if it is dropped.
///
/// While it is open, which may be as long as the application likes, calls and transactions neither see its indexes nor
/// supply entries for them, and none of them waits for it. What they change is noted for the indexes: up to 8 MiB in
/// memory, and as much for each thread that is writing notes to disk; the rest is in temporary files of 8 MiB or more.
/// [`TableAlteration::catch_up`] applies the notes. All notes together, in memory and on disk, have 1 GiB: an entry or
/// a row's key and first bytes, and 64 bytes for each. A change that would exceed this, or a file that cannot be
/// written, makes the alteration fail, not the change: no further change is noted, and the next call of the alteration
/// gets the error ([`UsageError::TooManyNotes`]).
///
/// Other DDL statements on the table go on as well. A statement that changes, truncates or drops the table ends the
/// alteration, whose calls are then refused ([`SchemaError::DefinitionChanged`]), and one that renames it keeps it from
/// being finished; a server keeps such statements away by its own metadata lock. Only statements that build indexes of
/// the same table are refused ([`UsageError::AlterationOpen`]).
///
/// [`UsageError::TooManyNotes`]: crate::error::UsageError::TooManyNotes
/// [`UsageError::AlterationOpen`]: crate::error::UsageError::AlterationOpen
/// [`SchemaError::DefinitionChanged`]: crate::error::SchemaError::DefinitionChanged
///
/// # Examples
/// ```
/// # fn main() -> windfall::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("windfall-alteration-{}", std::process::id()));
/// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
/// use windfall::{IndexOptions, TableChanges, TableOptions};
///
/// let people = db.create_table("people", TableOptions::default())?;
/// people.insert(b"1", b"Ada")?;
/// let changes = TableChanges::default().add_index("by_name", IndexOptions::on_value(0..20));
/// let mut built = db.build_indexes("people", changes)?;
/// people.insert(b"2", b"Bob")?; // others write, and do not know the index
/// assert!(people.index("by_name").is_err());
/// built.catch_up()?;
/// built.finish(TableChanges::default().metadata(b"version 2".to_vec()))?;
/// assert_eq!(people.index("by_name")?.get(b"Bob")?.count(), 1);
/// assert_eq!(people.metadata()?, b"version 2");
/// # db.close()?;
/// # std::fs::remove_dir_all(folder).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the indexes are dropped unless the alteration is finished"]
pub struct TableAlteration {
    name: Arc<str>,
    /// `None` once it is finished.
    pub(crate) inner: Option<BuiltIndexes>,
    // The last handle of the database, possibly: dropped last.
    pub(crate) db: Database,
}

impl Database {
    /// Builds new indexes of a table, the first step of an alteration in two steps: fills them in one scan of the
    /// table, while calls on it continue as during [`Database::create_index`], and does not publish them. It waits for
    /// no transaction. The other changes are checked, and made by [`TableAlteration::finish`].
    ///
    /// Until it returns, other DDL statements on the table wait, and changes that are faster than the build may wait
    /// for it; from then on neither.
    ///
    /// # Errors
    /// The changes add no index ([`UsageError::NothingToBuild`]); another
    /// alteration of the table is open; those of [`Database::alter_table`]. Nothing has changed then.
    pub fn build_indexes(&self, name: &str, changes: TableChanges) -> Result<TableAlteration> {
        self.build(name, changes, None)
    }

    /// As [`Database::build_indexes`], with indexes of which the caller supplies the entries: `make` makes the entry of
    /// a row that exists in the index of the given name, as for [`Database::alter_table_with`].
    ///
    /// # Errors
    /// As [`Database::build_indexes`] and [`Database::create_index_with`].
    pub fn build_indexes_with(
        &self,
        name: &str,
        changes: TableChanges,
        make: impl FnMut(&str, &[u8], &[u8], &mut MadeEntry) -> Result<bool>,
    ) -> Result<TableAlteration> {
        self.build(name, changes, Some(&mut of_any_table(make)))
    }

    fn build(
        &self,
        name: &str,
        changes: TableChanges,
        make: Option<&mut MakeEntryOf<'_>>,
    ) -> Result<TableAlteration> {
        self.engine.check_open()?;
        let changes = changes.changes;
        let inner =
            self.statement(|_, ddl| self.engine.catalog.begin_alteration(name, changes, make, ddl))?;
        debug!(target: "windfall::ddl", table = name, indexes = inner.indexes().len(), "indexes built");
        Ok(TableAlteration { name: inner.name().clone(), inner: Some(inner), db: self.clone() })
    }
}

impl TableAlteration {
    /// Returns the name of the table, as it was when the indexes were built.
    pub fn table_name(&self) -> &str {
        &self.name
    }

    /// Returns how many notes of changes are not yet applied: entries, or rows for indexes of which the caller supplies
    /// the entries. Zero once it is finished.
    pub fn noted(&self) -> u64 {
        self.inner.as_ref().map_or(0, |inner| inner.noted() as u64)
    }

    /// Returns the error of a step of an alteration that is finished.
    pub(crate) fn finished(&self) -> UsageError {
        UsageError::AlterationFinished(self.name.clone())
    }

    /// Applies what others have changed since the last step, until little is left, or no less becomes left because
    /// others change rows as fast. It waits for no other call, and may be called any number of times, so that
    /// [`TableAlteration::finish`] has little to do. It is interrupted, and reports its progress, as a statement of the
    /// database handle.
    ///
    /// # Errors
    /// A row does not fit a new index, such as one with a key that another row has in a unique index; the table was
    /// changed, truncated or dropped; there were too many notes; an interrupt
    /// ([`LockError::Interrupted`](crate::error::LockError::Interrupted)); I/O. What was not applied stays noted, so
    /// the call can be repeated once the cause is gone.
    pub fn catch_up(&mut self) -> Result<()> {
        self.catch_up_made(None)
    }

    /// As [`TableAlteration::catch_up`], with the function that makes the entries which the caller supplies.
    ///
    /// # Errors
    /// As [`TableAlteration::catch_up`], and those of the function.
    pub fn catch_up_with(
        &mut self,
        make: impl FnMut(&str, &[u8], &[u8], &mut MadeEntry) -> Result<bool>,
    ) -> Result<()> {
        self.catch_up_made(Some(&mut of_any_table(make)))
    }

    fn catch_up_made(&mut self, make: Option<&mut MakeEntryOf<'_>>) -> Result<()> {
        self.db.engine.check_open()?;
        let finished = self.finished();
        let Self { inner, db, .. } = self;
        let inner = inner.as_mut().ok_or(finished)?;
        db.statement(|_, _| inner.catch_up(make))
    }

    /// Publishes the indexes, and makes the other changes of the alteration and these further ones, in one atomic step
    /// with one durable commit: the second step. Where both set something, such as the metadata, the further ones
    /// count. Applies what is still noted, waits for the transactions that have changed the table, or used it if there
    /// are other changes than new indexes, and has then little to do while calls on the table wait. Changes outside of
    /// transactions may wait during that. The handle then has nothing left to do.
    ///
    /// # Errors
    /// As [`TableAlteration::catch_up`] and [`Database::alter_table`]; the table has another name
    /// ([`SchemaError::NoTable`](crate::error::SchemaError::NoTable)); the alteration is finished
    /// ([`UsageError::AlterationFinished`]). Nothing has changed then, nothing waits for the alteration, and what
    /// others change is noted on: after a lock timeout or an interrupt call it again, or drop the alteration.
    pub fn finish(&mut self, changes: TableChanges) -> Result<DropReport> {
        self.finish_made(changes, None)
    }

    /// As [`TableAlteration::finish`], with the function that makes the entries which the caller supplies.
    ///
    /// # Errors
    /// As [`TableAlteration::finish`], and those of the function.
    pub fn finish_with(
        &mut self,
        changes: TableChanges,
        make: impl FnMut(&str, &[u8], &[u8], &mut MadeEntry) -> Result<bool>,
    ) -> Result<DropReport> {
        self.finish_made(changes, Some(&mut of_any_table(make)))
    }

    fn finish_made(
        &mut self,
        changes: TableChanges,
        make: Option<&mut MakeEntryOf<'_>>,
    ) -> Result<DropReport> {
        self.db.engine.check_open()?;
        let finished = self.finished();
        let built = self.inner.as_mut().ok_or(finished)?;
        let statements = [statement_of(built, 0, changes)];
        let built = core::slice::from_mut(built);
        let report =
            self.db.statement(|catalog, ddl| catalog.finish_alterations(&statements, built, make, ddl))?;
        self.inner = None;
        Ok(DdlGroup::committed(&statements, report))
    }
}

/// Returns the statement that finishes an alteration with further changes, which has this place in its group.
pub(crate) fn statement_of(built: &BuiltIndexes, place: usize, changes: TableChanges) -> DdlStatement {
    DdlStatement::Finish {
        name: built.name().to_string(),
        place,
        indexes: built.indexes().to_vec(),
        changes: built.changes_and(changes.changes),
    }
}

/// Returns a function that makes entries as one of the statements on one table, whatever the table.
pub(crate) fn of_any_table(
    mut make: impl FnMut(&str, &[u8], &[u8], &mut MadeEntry) -> Result<bool>,
) -> impl FnMut(&str, &str, &[u8], &[u8], &mut MadeEntry) -> Result<bool> {
    move |_, index, row, value, entry| make(index, row, value, entry)
}
