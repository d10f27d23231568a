//! Checking a whole database.
//!
//! **Purpose.** Every page of every data file by its checksum, every tree by its order, every page by the allocation
//! map, every file by the records: what is wrong is listed, by file and page.
//!
//! **Invariants.** The check changes nothing but that dirty pages are written. Opening has done more: it has recovered,
//! and it deletes data files that no record names. Of those it has kept a list, and the check tells which of them a
//! drop or a crash may have left, and which this database never made. Files that are not ours are told and left alone.
//! While a table's trees are read its name is claimed, its gate is closed and purge stands still, so that no change
//! under way looks like damage, and no version that waits for purge like a lost page; where a reader keeps such
//! versions from purge, long values that nothing leads to may be theirs and are passed over. A check beside others does
//! that a piece at a time ([`pieces`]), and leaves the table to them in between; what it says is of the moment of each
//! piece, and what only a look at everything at once could tell of a table of several pieces it does not say: whether
//! rows and entries are as many, and whether a page that has changed meanwhile is lost, or one of a long value while
//! purge is behind. A table that is made, or gets another name, after the check has begun is passed over, and so is a
//! tree that its table gets after its first piece. What is found never ends the check.
//!
//! **May touch.** `engine` and what is below.

mod pieces;

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
    sync::Arc,
};
use pieces::Pieces;

/// How many pages of a table are looked at while its calls wait, if others are to go on.
pub(crate) const PIECE: usize = 256;

/// What a check has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Each tree that was checked.
    pub trees: Vec<CheckedTree>,
    /// Pages of data files whose checksum was verified.
    pub pages: u64,
    /// What is wrong. Empty when nothing is.
    pub findings: Vec<String>,
    /// Data files of dropped and of temporary tables, and of what was never committed, that a crash has left and that
    /// are being deleted.
    pub pending: Vec<String>,
    /// Files in the folders of the database that are not its own.
    pub foreign: Vec<String>,
}

/// A tree that was checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckedTree {
    /// The table; the system tree has none.
    pub table: String,
    /// The index; none for the rows themselves.
    pub index: Option<String>,
    /// The tablespace.
    pub space: u64,
    /// Live entries.
    pub entries: u64,
    /// Entries that are marked as deleted.
    pub deleted: u64,
    /// Levels of the tree.
    pub height: u32,
    /// Its pages, allocation maps not counted.
    pub pages: u64,
}

impl CheckReport {
    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.findings.is_empty()
    }

    fn finding(&mut self, what: impl Into<String>) {
        self.findings.push(what.into());
    }
}

/// Checks the database. While a table is looked at, its calls wait: `piece` pages at a time.
pub(crate) fn check(engine: &Engine, piece: usize) -> Result<CheckReport> {
    Catalog::check_outside()?;
    let mut report = CheckReport::default();
    engine.checkpointer.checkpoint_all(false)?;
    let mut named = BTreeSet::from([SpaceId::CATALOG]);
    Pieces::new(engine, piece).run(&mut report, |pieces, report| {
        engine
            .system
            .at_rest(|tree| pieces.hold(|pieces| pieces.go_on(report, &[(Owner::Unknown, tree)], true)))
    });
    for (name, _) in engine.catalog.tables() {
        Pieces::new(engine, piece)
            .run(&mut report, |pieces, report| check_some(engine, &name, pieces, report, &mut named));
    }
    named.extend(engine.transactions.streams().spaces());
    check_files(engine, &mut report, &named)?;
    report.foreign = engine.disk.foreign()?.iter().map(|path| path.display().to_string()).collect();
    Ok(report)
}

/// Checks a piece of a table. Says whether it was the last.
fn check_some(
    engine: &Engine,
    name: &Arc<str>,
    pieces: &mut Pieces<'_>,
    report: &mut CheckReport,
    named: &mut BTreeSet<SpaceId>,
) -> bool {
    let check = |table: &catalog::Table| {
        let shape = table.shape();
        named.extend(shape.record.spaces());
        let of_index = |index: &IndexRecord| Owner::Index { table: name.clone(), index: index.name.clone() };
        let owners = once(Owner::Table(name.clone())).chain(shape.record.indexes.iter().map(of_index));
        let trees: Vec<_> = owners.zip(shape.trees().map(|tree| &**tree)).collect();
        pieces.hold(|pieces| {
            // All of it at once waits for purge, too.
            let catches_up = pieces.are_one();
            engine.transactions.with_purge_at_rest(catches_up, |purged| pieces.go_on(report, &trees, purged))
        })
    };
    // If the table is gone it is nobody's trouble.
    engine.catalog.alone(name, check).unwrap_or(true)
}

/// Verifies every page of every data file, and that the files are those that the records name.
fn check_files(engine: &Engine, report: &mut CheckReport, named: &BTreeSet<SpaceId>) -> Result<()> {
    let path = |id: &SpaceId| engine.disk.path(FileName::Data(*id)).display().to_string();
    for id in &engine.leftovers.pending {
        if engine.disk.len(FileName::Data(*id))?.is_some() {
            report.pending.push(path(id));
        }
    }
    for id in &engine.leftovers.leaked {
        report.finding(format!(
            "{}: no table had this file when the database was opened, and this database never made it; it is deleted",
            path(id)
        ));
    }
    for file in engine.disk.list(Folder::Data)? {
        let FileName::Data(id) = file else { continue };
        let live = engine.pool.space(id).filter(|space| !space.is_dropped());
        if let Some(space) = live.filter(|space| space.durability() == Durability::Logged) {
            check_pages(engine, report, &space);
        }
        // Statements go on: what they do between two looks is seen by one more.
        if !named.contains(&id) && !(0..3).any(|_| is_explained(engine, id)) {
            report.finding(format!("{}: no table has this file", engine.disk.path(file).display()));
        }
    }
    for id in named {
        let file = FileName::Data(*id);
        let Some(space) = engine.pool.space(*id) else { continue };
        if space.file() == FileState::Made && engine.disk.len(file)?.is_none() && !space.is_dropped() {
            report.finding(format!("{} is missing", engine.disk.path(file).display()));
        }
    }
    Ok(())
}

/// Whether there is a reason for a file that no table had when the tables were looked at.
fn is_explained(engine: &Engine, id: SpaceId) -> bool {
    match engine.pool.space(id) {
        Some(space) if space.is_dropped() || space.durability() == Durability::Temporary => true,
        // First this: one that is named by now is found with its table.
        Some(_) if engine.catalog.is_loading(id) => true,
        Some(_) => {
            // A statement that makes a tree has claimed its table: this waits for the outcome, or finds the tree with
            // the table.
            let tables = engine.catalog.tables();
            let current = tables.iter().filter_map(|(name, _)| engine.catalog.table(name).ok());
            let mut spaces = current.flat_map(|table| table.look(|shape| shape.spaces().collect::<Vec<_>>()));
            spaces.any(|space| space == id) || engine.transactions.streams().spaces().contains(&id)
        }
        // The pool hands a tablespace over before it counts it as gone, and the deleter deletes the file before it
        // does.
        None => {
            engine.pool.occupancy().dropped_pending > 0
                || engine.deleter.deletions().pending_files > 0
                || matches!(engine.disk.len(FileName::Data(id)), Ok(None))
        }
    }
}

/// Verifies the pages of a file. One that is being written is looked at again.
fn check_pages(engine: &Engine, report: &mut CheckReport, space: &Arc<Space>) {
    let file = FileName::Data(space.id());
    let page_size = engine.pool.page_size();
    let length = match engine.disk.len(file) {
        Ok(length) => length.unwrap_or(0),
        Err(error) => return report.finding(error.to_string()),
    };
    let words = blank(page_size);
    let page = Page::new(&words);
    let look = |id: PageId| -> Result<()> {
        engine.disk.read_page(file, u64::from(id.page.0) * page_size as u64, page)?;
        // Room made ahead is zero.
        if page.is_zero() { Ok(()) } else { engine.pool.verify(id, page) }
    };
    let pages = u32::try_from(length / page_size as u64).unwrap_or(u32::MAX);
    for number in 0..pages {
        let id = PageId { space: space.id(), page: PageNo(number) };
        report.pages += 1;
        if let Err(error) = look(id).or_else(|_| engine.pool.between_writes(|| look(id))) {
            if space.is_dropped() {
                return;
            }
            report.finding(error.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        database::{Database, TableOptions},
        disk::simulated::SimulatedDisk,
        env::SimulatedEnv,
        mtr::Mtr,
        options::Options,
        page::PageType,
        sync::work::{self, Work},
        tablespace,
    };

    #[test]
    fn a_lost_page_is_told_beside_others_too() {
        let options = Options::default()
            .page_size(4096)
            .buffer_pool_size(4096 * 4096)
            .log_size(4 << 20)
            .log_buffer_size(256 << 10);
        let (disk, env) = (Arc::new(SimulatedDisk::new(1)), Arc::new(SimulatedEnv::new(1)));
        let db = Database::open_on(disk, env, &options, &|_| {}).unwrap();
        let table = db.create_table("t", TableOptions::default()).unwrap();
        for n in 0..6000u32 {
            table.put(&n.to_be_bytes(), &[n as u8; 300]).unwrap();
        }
        let pages = |report: &CheckReport| report.trees.iter().map(|tree| tree.pages).max().unwrap();
        let [whole, pieces] = [db.check().unwrap(), db.check_live().unwrap()];
        assert!(pages(&whole) > 3 * PIECE as u64 / 2, "it is one piece");
        assert_eq!((&whole.findings, &whole.trees), (&Vec::new(), &pieces.trees));
        assert_eq!(pieces.findings, whole.findings);

        let engine = &db.engine;
        let space = engine.catalog.table("t").unwrap().shape().clustered.space().clone();
        let mut mtr = Mtr::begin(&engine.pool).unwrap();
        tablespace::allocate(&mut mtr, &space, PageType::Leaf, 0, PageNo::ROOT).unwrap();
        mtr.commit().unwrap();
        for report in [db.check().unwrap(), db.check_live().unwrap()] {
            assert!(
                matches!(&report.findings[..], [one] if one.contains("is in use and nothing leads to it")),
                "{:?}",
                report.findings
            );
        }
    }

    /// Counted, not timed: what is looked at while a table's calls wait depends on no size.
    #[test]
    fn a_hold_of_a_large_tree_is_as_short_as_that_of_a_small_one() {
        let options = Options::default().page_size(4096).buffer_pool_size(4096 * 4096).log_size(128 << 20);
        let (disk, env) = (Arc::new(SimulatedDisk::new(1)), Arc::new(SimulatedEnv::new(1)));
        let db = Database::open_on(disk, env.clone(), &options, &|_| {}).unwrap();
        let table = db.create_table("t", TableOptions::default()).unwrap();
        for n in 0..3000u32 {
            table.put(&n.to_be_bytes(), &[n as u8; 1000]).unwrap();
        }
        for n in 0..5u8 {
            table.put_stream(&[b'l', n], 40_000_000, &mut std::io::repeat(n)).unwrap();
            db.checkpoint().unwrap();
            env.settle(200);
        }
        let engine = &db.engine;
        let space = engine.catalog.table("t").unwrap().shape().clustered.space().clone();
        let lost = 1000;
        for _ in 0..lost {
            let mut mtr = Mtr::begin(&engine.pool).unwrap();
            tablespace::allocate(&mut mtr, &space, PageType::Leaf, 0, PageNo::ROOT).unwrap();
            mtr.commit().unwrap();
        }
        let (mut report, mut named) = (CheckReport::default(), BTreeSet::new());
        let mut pieces = Pieces::new(engine, PIECE);
        let (mut holds, mut longest, mut most_told) = (0u64, 0, 0);
        loop {
            let before = work::so_far();
            let has_ended = check_some(engine, &"t".into(), &mut pieces, &mut report, &mut named);
            longest = longest.max((work::so_far() - before).of(Work::Frame));
            let told = report.findings.len();
            pieces.judge(&mut report);
            most_told = most_told.max(report.findings.len() - told);
            holds += 1;
            if has_ended {
                break;
            }
        }
        let tree = &report.trees[0];
        assert!(tree.pages > 50_000, "{tree:?}");
        assert_eq!(report.findings.len(), lost, "{:?}", report.findings.first());
        let bound = PIECE as u64 + u64::from(tree.height);
        assert!(longest <= bound, "{longest} pages in one hold");
        assert!(most_told <= PIECE + 64, "{most_told} pages suspected in one hold");
        assert!(holds >= tree.pages / bound, "{holds} holds");
    }
}
