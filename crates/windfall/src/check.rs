//! Checking a whole database.
//!
//! **Purpose.** Verifies every page of every data file by its checksum, every tree by its order, every page against the
//! allocation map, and every file against the records. Lists the findings by file and page.
//!
//! **Invariants.** The check makes a checkpoint, which writes dirty pages, and changes nothing else (test:
//! `a_check_makes_a_checkpoint_and_changes_nothing`). Opening the database has deleted data files that no record names,
//! and keeps a list of them: the check reports which of them a drop or a crash may have left, and which this database
//! never created (test: `a_check_distinguishes_orphans_of_a_crash_from_leaks`). Foreign files are reported and left
//! alone (test: `leaked_missing_and_foreign_files_are_reported`).
//!
//! While a table's trees are read, the check holds the metadata lock of its name, its gate (`sync::Gate`, a drain lock)
//! is closed, and neither rollback nor purge changes it, so that no change in progress looks like damage (test:
//! `workers_continue_with_other_tables_during_a_check`). A quiesced table blocks calls and statements on it, and the
//! rollbacks of its changes ([`quiesce`]); rollbacks in other tables (test:
//! `a_rollback_in_other_tables_does_not_wait_for_a_check`) and purge of them continue (test:
//! `purge_passes_over_any_number_of_records_of_the_table_under_check`). Unfinished work in the table is not reported as
//! damage either:
//! - Unreferenced long values are skipped while a reader, or a transaction that has not ended, may need versions of
//!   this table (test: `rolled_back_changes_keep_their_long_values_until_the_transaction_has_ended`).
//! - If a crash or a failed rollback has interrupted the change of a row, the rows are not compared with the entries of
//!   the indexes (test: `versions_cut_off_by_a_failed_rollback_are_not_reported_as_damage`). The check waits for such a
//!   rollback before it closes the table, but no longer than a call would wait for a lock; if it is still pending then,
//!   the report says that the table was not compared (test:
//!   `a_check_waits_for_a_rollback_as_long_as_a_call_for_a_lock`). A rollback that makes no progress is not waited for
//!   (test: `a_check_does_not_wait_for_a_rollback_that_cannot_go_on`).
//!
//! A check that runs concurrently with other work proceeds piece by piece ([`pieces`]), and releases the table in
//! between (test: `a_check_piece_of_a_large_tree_is_as_short_as_of_a_small_one`). Its findings hold for the moment of
//! each piece: for a table of several pieces it does not report what only a check of the whole table at one moment
//! could prove, which is whether the counts of rows and entries are equal, and whether a page is lost that has changed
//! meanwhile, or one of a long value while purge lags (test:
//! `a_value_that_a_rollback_puts_back_between_two_pieces_is_not_lost`). A table that is created or renamed after the
//! check has begun is skipped (test: `a_check_during_renames_finds_the_table_of_every_file`), and so is a tree that is
//! created for a table after the table's first piece (test:
//! `a_check_finds_nothing_during_concurrent_work_and_blocks_no_thread`). Findings never end the check (test:
//! `damage_is_found_during_a_transaction_with_long_values`). An interrupt does, also within a piece (test:
//! `an_interrupt_ends_a_check_in_a_piece_and_between_two`).
//!
//! Statements continue while files are compared with the records, and a file that is reported belongs to nothing,
//! whatever happened meanwhile (test: `no_statement_makes_a_file_look_unowned`): a tablespace first belongs to a
//! statement that creates it, then to a table, then it is dropped; it is entered in the next of these lists before it
//! leaves the previous one. So the files are listed first, and then the lists are read in that order.

mod extracted;
mod pieces;
mod table;
#[cfg(test)]
mod tests;

use core::iter::once;
use std::collections::BTreeSet;

use crate::{
    buffer::{Durability, FileState, Space},
    catalog::{self, Catalog, IndexRecord},
    disk::{FileName, Folder},
    engine::Engine,
    error::{Owner, Result},
    ids::{PageId, PageNo, SpaceId},
    page::{Page, blank},
    sync::{Arc, LongWork, Phase, ReportedWork},
    txn::{
        EntryForm, Extraction,
        trx::{
            background_rollback,
            quiesce::{self, Quiesced},
        },
    },
};
use pieces::{Pieces, TableTree};

/// The number of pages that one piece of a live check examines while calls on the table wait.
pub(crate) const CHECK_PAGES_PER_STEP: usize = 256;

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Each tree that was checked.
    pub trees: Vec<CheckedTree>,
    /// The number of pages of data files with a verified checksum.
    pub pages: u64,
    /// Descriptions of the damage that was found; empty if there is none.
    pub findings: Vec<String>,
    /// Tables with rows that were not compared with the entries of their indexes: a change that a crash interrupted
    /// could not be rolled back yet.
    pub uncompared: Vec<String>,
    /// Data files of dropped and temporary tables, and of creations that never committed, that a crash has left and
    /// that are being deleted.
    pub pending: Vec<String>,
    /// Files in the folders of the database that do not belong to it.
    pub foreign: Vec<String>,
    /// Whether the callback of [`Table::check`](crate::Table::check) has ended the check: not everything was examined.
    pub cancelled: bool,
}

/// A tree that was checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckedTree {
    /// The table; the system tree has none.
    pub table: String,
    /// The index; none for the rows themselves (the clustered index), and for metadata.
    pub index: Option<String>,
    /// Whether it has the metadata of the table, which are too long for the table's record.
    pub is_metadata: bool,
    /// The tablespace.
    pub space: SpaceId,
    /// Live entries.
    pub entries: u64,
    /// Delete-marked entries.
    pub deleted: u64,
    /// The number of levels of the tree.
    pub height: u32,
    /// The pages of the tree, without allocation maps.
    pub pages: u64,
    /// The leaves among them.
    pub leaves: u64,
    /// The bytes of the leaves that entries take, with what a page needs to find them.
    pub leaf_bytes: u64,
    /// The bytes of the leaves that entries could take.
    pub leaf_capacity: u64,
}

impl CheckReport {
    /// Returns whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.findings.is_empty()
    }

    fn finding(&mut self, what: impl Into<String>) {
        self.findings.push(what.into());
    }
}

/// Checks the database. While a table is examined, calls on it wait, for `piece` pages at a time.
pub(crate) fn check(engine: &Engine, piece: usize) -> Result<CheckReport> {
    Catalog::check_outside()?;
    let mut report = CheckReport::default();
    engine.checkpointer.checkpoint_all(false)?;
    let mut named = BTreeSet::from([SpaceId::SYSTEM]);
    // The pages are examined in the trees and in the files.
    let page_size = engine.pool.page_size() as u64;
    let lengths = engine.disk.list(Folder::Data)?.into_iter().map(|file| engine.disk.len(file));
    let in_files = lengths.map(|length| Ok(length?.unwrap_or(0) / page_size)).sum::<Result<u64>>()?;
    let mut work = ReportedWork::begin(Phase::Pages, 2 * in_files)?;
    Pieces::new(engine, piece).run(&mut report, |pieces, report| {
        let rest = Quiesced { is_purged: true, has_whole_rows: true };
        Ok(engine.system.with_writers_excluded(|tree| {
            let whole = TableTree { owner: Owner::Unknown, tree, has_all_rows: true, extraction: None };
            pieces.timed(|pieces| pieces.check_next(report, &[whole], rest))
        }))
    })?;
    // One limit for all waits for rollbacks together.
    let until = engine.env.now() + engine.transactions.lock_wait();
    for (name, table) in engine.catalog.tables() {
        let left = until.saturating_sub(engine.env.now());
        background_rollback::await_progressing_rollbacks(&engine.transactions, table.space(), left)?;
        let mut examined = 0;
        Pieces::new(engine, piece).run(&mut report, |pieces, report| {
            let is_last = check_some(engine, &name, pieces, report, &mut named)?;
            work.advance(pieces.examined() - examined)?;
            examined = pieces.examined();
            Ok(is_last)
        })?;
    }
    named.extend(engine.transactions.streams().spaces());
    check_files(engine, &mut report, &named, &mut work)?;
    report.foreign = engine.disk.foreign()?.iter().map(|path| path.display().to_string()).collect();
    Ok(report)
}

/// Checks a piece of a table. Returns whether it was the last.
fn check_some(
    engine: &Engine,
    name: &Arc<str>,
    pieces: &mut Pieces<'_>,
    report: &mut CheckReport,
    named: &mut BTreeSet<SpaceId>,
) -> Result<bool> {
    block_table(engine, name, pieces, named, |pieces, trees, rest| pieces.check_next(report, trees, rest))
}

/// Runs `piece` with the trees of the table of this name, which is quiesced. Returns its result: whether it was the
/// last piece.
fn block_table<'a>(
    engine: &Engine,
    name: &Arc<str>,
    pieces: &mut Pieces<'a>,
    named: &mut BTreeSet<SpaceId>,
    piece: impl FnOnce(&mut Pieces<'a>, &[TableTree<'_>], Quiesced) -> bool,
) -> Result<bool> {
    let check = |table: &catalog::Table| with_trees(engine, name, table, pieces, named, piece);
    // A table that no longer exists needs no check.
    Ok(engine.catalog.alone(name, check)?.unwrap_or(true))
}

/// Runs `piece` with the trees of a table whose gate is closed, and which is quiesced here.
fn with_trees<'a>(
    engine: &Engine,
    name: &Arc<str>,
    table: &catalog::Table,
    pieces: &mut Pieces<'a>,
    named: &mut BTreeSet<SpaceId>,
    piece: impl FnOnce(&mut Pieces<'a>, &[TableTree<'_>], Quiesced) -> bool,
) -> bool {
    let schema = table.schema();
    named.extend(schema.record.spaces());
    let of_table = once((Owner::Table(name.clone()), true, None));
    let of_metadata = once((Owner::Metadata(name.clone()), false, None));
    let owners = of_table
        .chain(schema.record.indexes.iter().map(|index| of_index(engine, name, index)))
        .chain(of_metadata);
    let tree =
        |((owner, has_all_rows, extraction), tree)| TableTree { owner, tree, has_all_rows, extraction };
    let trees: Vec<_> = owners.zip(schema.trees().map(|tree| &**tree)).map(tree).collect();
    // A check in one piece waits for purge, too.
    let catches_up = pieces.is_single_piece();
    let space = schema.clustered.space();
    pieces.timed(|pieces| {
        let check = |rest| piece(pieces, &trees, rest);
        quiesce::with_table_quiesced(&engine.transactions, space, catches_up, check)
    })
}

/// The index that a tree is, whether each row has one entry in it, and the extraction of its entries.
type OfIndex<'t> = (Owner, bool, Option<(Extraction<'t>, bool)>);

fn of_index<'t>(engine: &'t Engine, table: &Arc<str>, index: &'t IndexRecord) -> OfIndex<'t> {
    let owner = Owner::Index { table: table.clone(), index: index.name.clone() };
    let extractor = index.extractor.as_ref();
    let extraction = extractor.map(|extractor| (engine.catalog.extractors().of(extractor), index.unique));
    (owner, index.form == EntryForm::Terminated, extraction)
}

/// Verifies every page of every data file, and that the files are those that the records name.
fn check_files(
    engine: &Engine,
    report: &mut CheckReport,
    named: &BTreeSet<SpaceId>,
    work: &mut ReportedWork,
) -> Result<()> {
    let path = |id: &SpaceId| engine.disk.path(FileName::Data(*id)).display().to_string();
    for id in &engine.orphans.pending {
        if engine.disk.len(FileName::Data(*id))?.is_some() {
            report.pending.push(path(id));
        }
    }
    for id in &engine.orphans.leaked {
        report.finding(format!(
            "{}: no table had this file when the database was opened, and this database never made it; it is deleted",
            path(id)
        ));
    }
    let files = engine.disk.list(Folder::Data)?;
    let mut files: Vec<SpaceId> = files
        .into_iter()
        .filter_map(|file| if let FileName::Data(id) = file { Some(id) } else { None })
        .collect();
    for id in &files {
        let live = engine.pool.space(*id).filter(|space| !space.is_dropped());
        if let Some(space) = live.filter(|space| space.durability() == Durability::Logged) {
            let mut ended = Ok(());
            check_pages(engine, report, &space, &mut |pages| {
                ended = work.advance(pages);
                ended.is_ok()
            })?;
            ended?;
        }
    }
    files.retain(|id| !named.contains(id));
    for id in unowned(engine, files, || {}) {
        report.finding(format!("{}: no table has this file", path(&id)));
    }
    named.iter().try_for_each(|id| report_missing(engine, report, *id))
}

/// Reports a file that is missing.
fn report_missing(engine: &Engine, report: &mut CheckReport, id: SpaceId) -> Result<()> {
    let file = FileName::Data(id);
    let Some(space) = engine.pool.space(id) else { return Ok(()) };
    if space.file() == FileState::Durable && engine.disk.len(file)?.is_none() && !space.is_dropped() {
        report.finding(format!("{} is missing", engine.disk.path(file).display()));
    }
    Ok(())
}

/// Returns the tablespaces among `files`, listed earlier, that belong to nothing. Calls `between` between any two
/// reads.
fn unowned(engine: &Engine, mut files: Vec<SpaceId>, mut between: impl FnMut()) -> Vec<SpaceId> {
    between();
    if files.is_empty() {
        return files;
    }
    // In this order: each tablespace is entered in the next list before it leaves the previous one.
    let making = engine.catalog.making();
    files.retain(|id| !making.contains(id));
    between();
    let tables = engine.catalog.tables();
    let named: BTreeSet<SpaceId> = tables
        .iter()
        .flat_map(|(_, table)| table.with_schema(|schema| schema.spaces().collect::<Vec<_>>()))
        .collect();
    files.retain(|id| !named.contains(id));
    between();
    let undo = engine.transactions.streams().stable_spaces();
    files.retain(|id| !undo.contains(id));
    between();
    files.retain(|id| !may_be_dropped(engine, *id));
    files
}

/// Returns whether a tablespace is temporary, or was dropped, or may have been dropped.
fn may_be_dropped(engine: &Engine, id: SpaceId) -> bool {
    match engine.pool.space(id) {
        Some(space) => space.is_dropped() || space.durability() == Durability::Temporary,
        // The pool hands a dropped tablespace to the deleter before it lowers its own count, and the deleter deletes
        // the file before it lowers its count.
        None => {
            engine.pool.occupancy().dropped_pending > 0
                || engine.deleter.deletions().pending_files > 0
                || matches!(engine.disk.len(FileName::Data(id)), Ok(None))
        }
    }
}

/// Verifies the pages of a file. A page that is being written is read again. Calls `go_on` with the number of pages
/// after some pages each. Returns `false` if that has ended it.
///
/// # Errors
/// [`LockError::Interrupted`](crate::error::LockError::Interrupted).
fn check_pages(
    engine: &Engine,
    report: &mut CheckReport,
    space: &Arc<Space>,
    go_on: &mut dyn FnMut(u64) -> bool,
) -> Result<bool> {
    let file = FileName::Data(space.id());
    let page_size = engine.pool.page_size();
    let length = match engine.disk.len(file) {
        Ok(length) => length.unwrap_or(0),
        Err(error) => {
            report.finding(error.to_string());
            return Ok(true);
        }
    };
    let words = blank(page_size);
    let page = Page::new(&words);
    let look = |id: PageId| -> Result<()> {
        engine.disk.read_page(file, u64::from(id.page.0) * page_size as u64, page.words())?;
        // Preallocated space is zero.
        if page.is_zero() { Ok(()) } else { engine.pool.verify(id, page) }
    };
    let pages = u32::try_from(length / page_size as u64).unwrap_or(u32::MAX);
    let some = CHECK_PAGES_PER_STEP as u32;
    for number in 0..pages {
        let id = PageId { space: space.id(), page: PageNo(number) };
        report.pages += 1;
        if let Err(error) = look(id).or_else(|_| engine.pool.between_writes(|| look(id))) {
            if space.is_dropped() {
                return Ok(true);
            }
            report.finding(error.to_string());
        }
        let is_last = number + 1 == pages;
        if is_last || (number + 1).is_multiple_of(some) {
            LongWork::check()?;
            if !go_on(u64::from(number % some + 1)) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}
