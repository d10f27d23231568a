//! Checking a whole database.
//!
//! **Purpose.** Every page of every data file by its checksum, every tree by its order, every page by the allocation
//! map, every file by the records: what is wrong is listed, by file and page.
//!
//! **Invariants.** The check changes nothing but that dirty pages are written. Opening has done more: it has recovered, and
//! it deletes data files that no record names. Of those it has kept a list, and the check tells which of them a drop
//! or a crash may have left, and which this database never made. Files that are not ours are told and left alone.
//! While a table's trees are read its name is claimed, its gate is closed and purge stands still, so that no change
//! under way looks like damage, and no version that waits for purge like a lost page; where a reader keeps such
//! versions from purge, long values that nothing leads to may be theirs and are passed over. What is found never ends
//! the check.
//!
//! **May touch.** `engine` and what is below.

use std::collections::BTreeSet;

use crate::{
    buffer::{Durability, FileState, Space},
    catalog::{Catalog, Shape},
    disk::{FileName, Folder},
    engine::Engine,
    error::Result,
    ids::{PageId, PageNo, SpaceId},
    page::{Access, Page, PageType},
    store::Tree,
    sync::{Arc, atomic::AtomicU64},
    tablespace,
};

/// What a check has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Each tree that was checked.
    pub trees: Vec<CheckedTree>,
    /// Pages of data files whose checksum was verified.
    pub pages: u64,
    /// What is wrong. Empty when nothing is.
    pub findings: Vec<String>,
    /// Data files of dropped and of temporary tables, and of what was never committed, that a crash has left and that are
    /// being deleted.
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

/// Checks the database.
pub(crate) fn check(engine: &Engine) -> Result<CheckReport> {
    Catalog::check_outside()?;
    let mut report = CheckReport::default();
    engine.checkpointer.checkpoint_all(false)?;
    let mut named = BTreeSet::from([SpaceId::CATALOG]);
    engine.system.at_rest(|tree| check_tree(engine, &mut report, "", None, tree, true));
    for (name, _) in engine.catalog.tables() {
        engine.catalog.alone(&name, |table| {
            let shape = table.shape();
            named.extend(shape.record.spaces());
            engine
                .transactions
                .with_purge_at_rest(|purged| check_table(engine, &mut report, &name, &shape, purged));
        });
    }
    named.extend(engine.transactions.streams().spaces());
    check_files(engine, &mut report, &named)?;
    report.foreign = engine.disk.foreign()?.iter().map(|path| path.display().to_string()).collect();
    Ok(report)
}

fn check_table(engine: &Engine, report: &mut CheckReport, name: &str, shape: &Shape, purged: bool) {
    let rows = check_tree(engine, report, name, None, &shape.clustered, purged);
    for (index, tree) in shape.record.indexes.iter().zip(&shape.secondaries) {
        let entries = check_tree(engine, report, name, Some(&index.name), tree, purged);
        if let (Some(rows), Some(entries)) = (rows, entries)
            && rows != entries
        {
            report
                .finding(format!("table {name}: {rows} rows, but {entries} entries in index {}", index.name));
        }
    }
}

/// Checks a tree against itself and against its allocation map; `purged` says that no version waits for purge. Gives the
/// live entries, when the tree can be read.
fn check_tree(
    engine: &Engine,
    report: &mut CheckReport,
    table: &str,
    index: Option<&str>,
    tree: &Tree,
    purged: bool,
) -> Option<u64> {
    let what = match (table, index) {
        ("", _) => "the system tree".to_owned(),
        (table, None) => format!("table {table}"),
        (table, Some(index)) => format!("index {index} of table {table}"),
    };
    let found = match tree.check() {
        Ok(found) => found,
        Err(error) => {
            report.finding(format!("{what}: {error}"));
            return None;
        }
    };
    match tablespace::pages_in_use(&engine.pool, tree.space()) {
        Ok(mut used) => {
            if !purged {
                used.retain(|page| {
                    found.pages.binary_search(page).is_ok() || !is_overflow(engine, tree, *page)
                });
            }
            compare_pages(engine, report, &what, tree.space(), &found.pages, &used);
        }
        Err(error) => report.finding(format!("{what}: {error}")),
    }
    report.trees.push(CheckedTree {
        table: table.to_owned(),
        index: index.map(str::to_owned),
        space: tree.space().id().0,
        entries: found.entries - found.deleted,
        deleted: found.deleted,
        height: found.height,
        pages: found.pages.len() as u64,
    });
    Some(found.entries - found.deleted)
}

/// Whether a page is one of a long value, which an older version may need.
fn is_overflow(engine: &Engine, tree: &Tree, page: PageNo) -> bool {
    let shared = engine.pool.share(tree.space(), page, Access::Scan);
    shared.is_ok_and(|shared| shared.page().page_type() == PageType::Overflow as u8)
}

fn compare_pages(
    engine: &Engine,
    report: &mut CheckReport,
    what: &str,
    space: &Arc<Space>,
    reached: &[PageNo],
    used: &[PageNo],
) {
    let maps = tablespace::pages_a_map(engine.pool.page_size());
    let used: BTreeSet<u32> =
        used.iter().map(|page| page.0).filter(|page| !page.is_multiple_of(maps)).collect();
    let reached: BTreeSet<u32> = reached.iter().map(|page| page.0).collect();
    let space = space.id();
    for page in used.difference(&reached) {
        report
            .finding(format!("{what}: page {page} of tablespace {space} is in use and nothing leads to it"));
    }
    for page in reached.difference(&used) {
        report.finding(format!("{what}: page {page} of tablespace {space} is in the tree and not in use"));
    }
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
        Some(_) => {
            // A statement that makes a tree has claimed its table: this waits for the outcome, or finds the tree with
            // the table.
            let tables = engine.catalog.tables();
            let current = tables.iter().filter_map(|(name, _)| engine.catalog.table(name).ok());
            let mut spaces = current.flat_map(|table| table.look(|shape| shape.spaces().collect::<Vec<_>>()));
            spaces.any(|space| space == id) || engine.transactions.streams().spaces().contains(&id)
        }
        // The pool hands a tablespace over before it counts it as gone, and the deleter deletes the file before it does.
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
    let words: Vec<AtomicU64> = (0..page_size / 8).map(|_| AtomicU64::new(0)).collect();
    let page = Page::new(&words);
    let look = |id: PageId| -> Result<()> {
        engine.disk.read_page(file, u64::from(id.page.0) * page_size as u64, page)?;
        // Room made ahead is zero.
        if page.is_zero() { Ok(()) } else { engine.pool.verify(id, page) }
    };
    for number in 0..(length / page_size as u64) as u32 {
        let id = PageId { space: space.id(), page: PageNo(number) };
        report.pages += 1;
        if let Err(error) = look(id).or_else(|_| look(id)).or_else(|_| look(id)) {
            if space.is_dropped() {
                return;
            }
            report.finding(error.to_string());
        }
    }
}
