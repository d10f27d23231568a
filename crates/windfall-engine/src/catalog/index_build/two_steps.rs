//! An alteration in two steps ([`BuiltIndexes`]).
//!
//! **Purpose.** The first step fills the trees of new indexes while transactions write. The second makes the indexes
//! visible, together with all other changes of the alteration, in one group of the log, alone or with other statements.
//! Between the two a server waits for its own exclusive metadata lock: transactions that do not know the indexes go on,
//! and what they change is noted. Those notes can be applied at any time in between (*catching up*).
//!
//! **Invariants.** Until the second step the indexes are neither seen nor demanded (test:
//! `writers_between_the_steps_of_an_alteration_do_not_wait`), and no other call waits because the alteration is open
//! (test: `writers_between_the_steps_of_an_alteration_do_not_wait`), not even on the thread that has built the indexes:
//! it holds no metadata lock, no lock of a transaction, and no gate (by type). After the second step each row has its
//! entries (test: `an_alteration_in_two_steps_is_made_while_rows_change`), and so do the rows of several tables that
//! one group alters (test: `alterations_of_several_tables_are_finished_in_one_group`). A group that waits for its
//! tables goes on to apply the notes of all of them (test: `a_group_that_waits_for_its_tables_catches_up`), and changes
//! that are faster wait for room meanwhile, so few are left to the time under the locks (test:
//! `changes_faster_than_a_waiting_alteration_wait_for_room`). The indexes
//! and the other changes are there together after a crash, or none of them (tests:
//! `an_alteration_in_two_steps_crashes_at_every_operation`, `alterations_of_several_tables_are_finished_in_one_group`).
//! An alteration that is dropped has changed nothing, and leaves nothing (test:
//! `an_alteration_that_is_dropped_has_changed_nothing`). After an error of either step, such as an interrupt or a lock
//! timeout, what was not applied is still noted, and changes wait for no room, so that the alteration can go on with
//! that step or another one (tests: `an_interrupt_ends_each_step_of_an_alteration`,
//! `a_second_step_that_has_failed_is_repeated`).
//!
//! Other statements on the table do not wait for an open alteration, which may last as long as its owner likes, and do
//! not fail because of it (test: `an_alteration_of_a_table_that_was_changed_is_refused`). One that changes the table,
//! truncates or drops it ends the alteration: that can only be dropped then (test:
//! `an_alteration_of_a_table_that_was_changed_is_refused`). A table that was renamed is not found any more (test:
//! `an_alteration_of_a_table_that_was_changed_is_refused`). So what it would publish belongs to the definition for
//! which it was built. The exception is a statement that builds indexes: it would note changes for two builds, and is
//! refused (test: `an_alteration_of_a_table_that_was_changed_is_refused`).

use super::{
    super::{
        ddl_options::DdlOptions,
        filled::Filled,
        group::TableChanges,
        key,
        names::MetadataLock,
        plan::{Done, Plan},
        record::IndexRecord,
        state::Catalog,
        table::Table,
    },
    BuildFailed, IndexBuild, IndexFiller, MakeEntryOf, NewIndexes,
};
use crate::{
    error::{Result, SchemaError},
    ids::SpaceId,
    store::Tree,
    sync::{Arc, is_inside},
    txn::{EntryForm, locks::TableMode},
};

/// New indexes that are filled and that no record names yet. They are dropped with this, unless they are published.
#[derive(Debug)]
#[must_use = "the indexes are dropped unless they are published"]
pub struct BuiltIndexes {
    new: NewIndexes,
    /// The trees, until they are published or dropped.
    trees: Vec<Arc<Tree>>,
    /// The changes of the alteration, which adds these indexes.
    changes: TableChanges,
    are_published: bool,
    catalog: Arc<Catalog>,
}

impl Drop for BuiltIndexes {
    fn drop(&mut self) {
        let catalog = &self.catalog;
        self.new.row_log.end();
        // Changes are noted no more in any case. If another statement has the name, or calls would be waited for that
        // wait for this one, the ended log stays in the schema until the next statement replaces it.
        if !self.are_published
            && self.new.is_current()
            && !is_inside()
            && let Some(metadata_lock) = catalog.names.try_lock(&self.new.name)
            && metadata_lock.has(&self.new.name, &self.new.table)
        {
            self.new.end_notes(&*catalog.pool.context().env);
        }
        let filled = Filled::again(catalog, core::mem::take(&mut self.trees));
        if self.are_published {
            filled.named();
        }
    }
}

impl BuiltIndexes {
    /// Returns the name of the table.
    pub fn name(&self) -> &Arc<str> {
        &self.new.name
    }

    /// Returns the table.
    pub(in super::super) fn table(&self) -> &Arc<Table> {
        &self.new.table
    }

    /// Returns whether no statement has changed the table since the indexes were built.
    pub(in super::super) fn is_current(&self) -> bool {
        self.new.is_current()
    }

    /// Returns the indexes.
    pub fn indexes(&self) -> &[IndexRecord] {
        &self.new.indexes
    }

    /// Returns the tablespaces of their trees.
    pub(in super::super) fn spaces(&self) -> impl Iterator<Item = SpaceId> {
        self.new.indexes.iter().map(|index| index.space)
    }

    /// Returns the trees.
    pub(in super::super) fn trees(&self) -> &[Arc<Tree>] {
        &self.trees
    }

    /// Returns the changes of the alteration, without the indexes, together with further ones.
    pub fn changes_and(&self, more: TableChanges) -> TableChanges {
        self.changes.clone().and(more)
    }

    /// Returns the number of notes that are not applied.
    pub fn noted(&self) -> usize {
        self.new.row_log.count()
    }

    /// Refuses a step without a function that makes the entries of rows, if the caller supplies those of an index. A
    /// function that none of the indexes needs is not called.
    ///
    /// # Errors
    /// [`EntriesUnknown`](crate::error::UsageError::EntriesUnknown).
    pub(in super::super) fn check_function(&self, has_function: bool) -> Result<()> {
        let needs_it = |index: &&IndexRecord| matches!(index.form, EntryForm::Supplied { .. });
        self.new.indexes.iter().filter(needs_it).try_for_each(|index| {
            key::check_makes_entries(&self.new.name, &index.name, index.form, has_function)
        })
    }

    /// Marks the indexes as those of a record.
    pub(in super::super) fn published(&mut self) {
        self.are_published = true;
    }

    /// Applies what was noted since the last step, until little is left or no less becomes left.
    ///
    /// # Errors
    /// As [`Catalog::begin_alteration`]; the table was changed, truncated or dropped: the indexes can only be dropped
    /// then; a run that cannot be read: so it is then, too. What was not applied otherwise stays noted. The call comes
    /// from within the source of a value or another function that a call runs.
    pub fn catch_up(&mut self, make: Option<&mut MakeEntryOf<'_>>) -> Result<()> {
        let catalog = self.catalog.clone();
        Catalog::check_outside()?;
        self.check_function(make.is_some())?;
        self.new.check_current()?;
        let done = catalog.fill_with(&mut [&mut self.new], make, |fillers| {
            fillers.iter().try_for_each(|filler| filler.owned(filler.apply_deferred()))?;
            IndexFiller::catch_up(fillers)
        });
        done.map_err(|failed| {
            let error = failed.end();
            // The reason for which its pages are no longer there.
            self.new.check_current().err().unwrap_or(error)
        })
    }
}

impl NewIndexes {
    fn check_current(&self) -> Result<()> {
        if self.is_current() {
            return Ok(());
        }
        Err(SchemaError::DefinitionChanged(self.name.clone()).into())
    }

    /// Gives the row log the tablespaces for all its runs, in place of those that were read: the threads that write
    /// runs request none.
    pub(super) fn provide(&self, catalog: &Catalog) -> Result<()> {
        let lacks = self.row_log.lacks(self.bounds.runs);
        let spaces = (0..lacks).map(|_| catalog.transactions.ids().space()).collect::<Result<_>>()?;
        self.row_log.provide(spaces);
        Ok(())
    }
}

impl Catalog {
    /// Fills the trees of new indexes of a table, with which [`DdlStatement::Finish`](super::super::DdlStatement) then
    /// alters it.
    ///
    /// # Errors
    /// As [`Catalog::alter_table`]; the changes add no index; another alteration of the table has built indexes.
    pub fn begin_alteration(
        self: &Arc<Self>,
        name: &str,
        changes: TableChanges,
        make: Option<&mut MakeEntryOf<'_>>,
        options: DdlOptions,
    ) -> Result<BuiltIndexes> {
        let mut filled = Filled::new(self);
        let built =
            self.with_build(name, &changes, make.is_some(), options, &mut filled, |metadata_lock, build| {
                self.reported(build, || self.fill_and_leave(metadata_lock, build, make, options))
                    .map_err(BuildFailed::end)
            });
        // The metadata lock is released by now.
        Ok(BuiltIndexes {
            new: built?,
            trees: filled.set_aside(),
            changes: changes.without_new_indexes(),
            are_published: false,
            catalog: self.clone(),
        })
    }

    fn fill_and_leave(
        &self,
        metadata_lock: &MetadataLock<'_>,
        build: &IndexBuild<'_>,
        make: Option<&mut MakeEntryOf<'_>>,
        options: DdlOptions,
    ) -> Result<NewIndexes, BuildFailed> {
        metadata_lock.downgrade();
        let mut new = NewIndexes::begin(self, build, options)?;
        let pool = self.pool.clone();
        let done =
            self.fill_with(&mut [&mut new], make, |fillers| fillers.iter().try_for_each(IndexFiller::fill));
        let not_provided = |error| BuildFailed { error, panic: None };
        // Before changes wait no more: the first of them may have to write a run.
        let done = done.and_then(|()| new.provide(self).map_err(not_provided));
        let bounds = new.bounds;
        new.row_log.wait_no_more(pool, bounds.run, bounds.run.saturating_mul(bounds.runs));
        match done {
            Ok(()) => {
                new.are_filled = true;
                Ok(new)
            }
            Err(failed) => {
                new.end_notes(&*self.pool.context().env);
                Err(failed)
            }
        }
    }

    /// Carries out a plan that names the trees of alterations.
    pub(in super::super) fn carry_out_alterations<'c>(
        &'c self,
        metadata_lock: &MetadataLock<'_>,
        plan: Plan<'_, '_>,
        built: &mut [BuiltIndexes],
        make: Option<&mut MakeEntryOf<'_>>,
        (mode, options): (TableMode, DdlOptions),
    ) -> Result<Done<'c>> {
        metadata_lock.downgrade();
        let mut all: Vec<_> = built.iter_mut().map(|built| &mut built.new).collect();
        let done = self.fill_with(&mut all, make, |fillers| {
            IndexFiller::catch_up(fillers)?;
            self.carry_out_built(metadata_lock, plan, fillers, mode, options)
        });
        if done.is_err() {
            // The alterations are still open, and the limits of the last round do not last.
            for built in &*built {
                built.new.row_log.limit(usize::MAX);
            }
        }
        done.map_err(BuildFailed::end)
    }
}
