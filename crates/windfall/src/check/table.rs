//! Checking one table ([`Table::check`]).
//!
//! **Purpose.** The check of the trees and the files of one table while all other work continues, with progress, until
//! a callback ends it.
//!
//! **Invariants.** The table is blocked for one piece at a time, as by a live check of all tables, and no other table
//! is (test: `the_check_of_a_table_reports_its_damage_and_no_other`). Between the pieces its own handles may be used,
//! also by the callback, which holds nothing (test: `a_table_may_be_used_by_the_callback_of_its_check`). The check
//! follows the table when it is renamed, and ends when it is dropped (test:
//! `the_check_of_a_table_follows_a_rename_and_ends_with_a_drop`).

use std::collections::BTreeSet;

use super::{CHECK_PAGES_PER_STEP, CheckReport, check_pages, pieces::Pieces, report_missing, with_trees};
use crate::{
    catalog::Catalog,
    disk::FileName,
    error::{Error, Owner, Result, UsageError},
    sync::{Phase, Progress},
    table::Table,
    tablespace,
    txn::trx::background_rollback,
};

impl Table {
    /// Checks this table while other calls run: the pages of its trees, those of its files, and its allocation maps.
    /// The table is blocked for a few hundred pages at a time, as by [`Database::check_live`], which describes what is
    /// not reported for a table in use. Other tables are not blocked, and no checkpoint is made. A DDL statement on the
    /// table that builds an index is waited for.
    ///
    /// `go_on` is called after each piece with the progress ([`Phase::Pages`]), and may use the database. If it returns
    /// `false`, the check ends: the report has what was found so far, and [`CheckReport::cancelled`] is set.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-check-table-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// let stock = db.create_table("stock", windfall::TableOptions::default())?;
    /// stock.insert(b"apples", b"3")?;
    /// let report = stock.check(|progress| {
    ///     println!("{} of {} pages", progress.done, progress.total);
    ///     true // false ends the check
    /// })?;
    /// assert!(report.is_sound() && !report.cancelled);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The table was dropped, also by a statement during the check; it is temporary; the call is made within a row
    /// call. Damage is not an error: it is in the report.
    ///
    /// [`Database::check_live`]: crate::Database::check_live
    pub fn check(&self, mut go_on: impl FnMut(Progress) -> bool) -> Result<CheckReport> {
        let engine = &*self.engine;
        engine.check_open()?;
        Catalog::check_outside()?;
        let owner = Owner::Table(self.name().into());
        if self.is_temporary() {
            return Err(UsageError::TemporaryCheck(owner).into());
        }
        let (mut report, mut named) = (CheckReport::default(), BTreeSet::new());
        let page_size = engine.pool.page_size() as u64;
        let mut progress = Progress::new(Phase::Pages, 0, 0);
        for tree in self.inner.schema().trees() {
            let space = tree.space();
            let in_file = engine.disk.len(FileName::Data(space.id()))?.unwrap_or(0) / page_size;
            // Damage of a map is found later.
            progress.total += in_file + tablespace::count_pages(&engine.pool, space).unwrap_or(0);
        }
        let space = self.inner.space();
        background_rollback::await_progressing_rollbacks(
            &engine.transactions,
            space,
            engine.transactions.lock_wait(),
        )?;
        let mut may_go_on = |progress: &mut Progress, pages: u64| {
            progress.done += pages;
            progress.total = progress.total.max(progress.done);
            go_on(*progress)
        };
        let (mut is_dropped, mut examined) = (false, 0);
        Pieces::new(engine, CHECK_PAGES_PER_STEP).run(&mut report, |pieces, report| {
            let (named, before) = (&mut named, examined);
            let done = engine.catalog.alone_with(&self.inner, self.name(), |name| {
                with_trees(engine, name, &self.inner, pieces, named, |pieces, trees, rest| {
                    pieces.check_next(report, trees, rest)
                })
            })?;
            is_dropped = done.is_none();
            examined = pieces.examined();
            let is_last = done.unwrap_or(true);
            report.cancelled = !is_dropped && !may_go_on(&mut progress, examined - before);
            Ok(is_last || report.cancelled)
        })?;
        for id in &named {
            let Some(space) = engine.pool.space(*id).filter(|space| !space.is_dropped()) else {
                continue;
            };
            if report.cancelled {
                break;
            }
            let verified =
                check_pages(engine, &mut report, &space, &mut |pages| may_go_on(&mut progress, pages))?;
            report.cancelled = !verified;
            report_missing(engine, &mut report, *id)?;
        }
        if is_dropped {
            return Err(Error::TableDropped(owner));
        }
        // Damage of a table that a statement drops meanwhile is none.
        self.enter()?;
        Ok(report)
    }
}
