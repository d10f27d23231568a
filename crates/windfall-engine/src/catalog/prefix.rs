//! Statements on all tables whose names begin with a prefix.
//!
//! **Purpose.** A program that keeps the tables of one schema, tenant or day below a prefix lists, drops or truncates
//! them by it. The work depends on the tables with the prefix, and not on those without: only the part of the system
//! tree with their records is read.
//!
//! **Invariants.** A drop or truncation changes all tables in one group of the log, so a crash leaves all of them or
//! none (test: `a_crash_leaves_all_tables_of_a_prefix_or_none`). It affects every table that had the prefix when the
//! statement began and has it when the metadata locks are held: a table that is renamed from one such name to another
//! while the statement waits for the locks is found again (test: `a_rename_within_a_prefix_evades_no_drop`). A table
//! that has lost the prefix or was dropped meanwhile is left out, and its name is unlocked (test:
//! `a_rename_within_a_prefix_evades_no_drop`). One that is created or gets the prefix meanwhile may be left out (test:
//! `tables_of_a_prefix_come_and_go_while_they_are_listed`). Temporary tables have no record, so no prefix names them
//! (test: `statements_by_prefix_affect_no_other_table`). From the locks on, the statement takes the steps of a drop or
//! truncation of tables by name, with the same waits (test: `a_drop_by_prefix_waits_as_any_drop`).
//!
//! **Size of the group.** The records of all tables change in one mini-transaction. Its group of the log takes up to
//! 16 bytes for the record of a dropped table, and for that of a truncated one 48, its key and its value; and 8 for
//! each tree of the table. It must fit a quarter of the log buffer. All leaves with the records are latched at once,
//! and may be half of the pool. Beyond these bounds the statement is refused before it changes anything (test:
//! `a_group_that_does_not_fit_the_log_buffer_is_refused_whole`).

use super::{
    ddl_options::DdlOptions,
    names::MetadataLock,
    state::{Catalog, record_key},
    statement::{DropReport, Dropped},
    table::Table,
};
use crate::{error::Result, sync::Arc};

impl Catalog {
    /// Returns the tables whose names begin with this prefix, in order of name. A table that is renamed meanwhile, from
    /// one such name to another, is listed under one of them.
    ///
    /// # Errors
    /// Damage of the system tree, I/O.
    pub fn tables_with_prefix(&self, prefix: &str) -> Result<Vec<(Arc<str>, Arc<Table>)>> {
        self.names.with_prefix(prefix, |visit| {
            let mut damaged = false;
            self.system.scan(&record_key(prefix), &mut |key, _| {
                let name = core::str::from_utf8(&key[1..]).ok();
                name.into_iter().for_each(&mut *visit);
                damaged = name.is_none();
                !damaged
            })?;
            if damaged { Err(self.system.damaged("a table's record is damaged")) } else { Ok(()) }
        })
    }

    /// Drops all tables with this prefix as one step; without one, does nothing.
    ///
    /// # Errors
    /// As [`Catalog::drop_tables`]; too many tables for one group of the log.
    pub fn drop_tables_with_prefix(&self, prefix: &str, options: DdlOptions) -> Result<DropReport> {
        self.on_prefix(prefix, options, |locked| self.drop_locked(locked, options))
    }

    /// Truncates all tables with this prefix as one step; without one, does nothing.
    ///
    /// # Errors
    /// As [`Catalog::truncate_table`]; too many tables for one group of the log.
    pub fn truncate_tables_with_prefix(&self, prefix: &str, options: DdlOptions) -> Result<DropReport> {
        self.on_prefix(prefix, options, |locked| self.truncate_locked(locked, options))
    }

    /// Takes the metadata locks on all tables with a prefix, and runs a statement on them. Its report counts the work
    /// from there on.
    fn on_prefix(
        &self,
        prefix: &str,
        options: DdlOptions,
        run: impl FnOnce(MetadataLock<'_>) -> Result<Dropped>,
    ) -> Result<DropReport> {
        Self::check_outside()?;
        loop {
            let listed = self.tables_with_prefix(prefix)?;
            let names: Vec<&str> = listed.iter().map(|(name, _)| &**name).collect();
            // Tests let other statements run here.
            self.pause.pass();
            let mut locked = self.lock_names(&names, options)?;
            if self.has_evaded(prefix, &listed, &locked)? {
                continue;
            }
            locked.unlock_unused();
            debug_assert!(
                locked.tables().all(|(name, table)| name.starts_with(prefix) && table.is_some()),
                "a statement on a prefix has locked another name"
            );
            if locked.tables().next().is_none() {
                return Ok(DropReport::default());
            }
            return DropReport::of(|| run(locked));
        }
    }

    /// Returns whether one of the listed tables was given another name with the prefix that is not locked.
    fn has_evaded(
        &self,
        prefix: &str,
        listed: &[(Arc<str>, Arc<Table>)],
        locked: &MetadataLock<'_>,
    ) -> Result<bool> {
        let mut moved: Vec<*const Table> = listed
            .iter()
            .filter(|(name, table)| !locked.has(name, table))
            .map(|(_, table)| Arc::as_ptr(table))
            .collect();
        if moved.is_empty() {
            return Ok(false);
        }
        moved.sort_unstable();
        let has_moved = |table: &Arc<Table>| moved.binary_search(&Arc::as_ptr(table)).is_ok();
        let now = self.tables_with_prefix(prefix)?;
        Ok(now.iter().any(|(name, table)| has_moved(table) && !locked.has(name, table)))
    }
}
