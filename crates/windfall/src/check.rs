//! Checking a whole database.
//!
//! **Purpose.** Every page of every data file by its checksum, every tree by its order, every page by the allocation map, every
//! file by the records: what is wrong is listed, by file and page.
//!
//! **Invariants.** Nothing is changed but that dirty pages are written and purge catches up. While a table's trees are read its name is claimed and
//! its gate is closed, so that no change under way looks like damage and no statement finds its gate opened. What is found never ends the check.
//!
//! **May touch.** `engine` and what is below.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    buffer::{FileState, Space},
    catalog::Shape,
    disk::{FileName, Folder},
    engine::Engine,
    error::{Error, Result},
    ids::{PageId, PageNo, SpaceId},
    page::Page,
    store::Tree,
    sync::{Arc, atomic::AtomicU64},
    tablespace,
};

/// How long a table waits for purge to catch up, in steps: while others write, purge never ends.
const PURGE_STEPS: usize = 10_000;

/// What a check has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Each tree that was checked.
    pub trees: Vec<CheckedTree>,
    /// Pages of data files whose checksum was verified.
    pub pages: u64,
    /// What is wrong. Empty when nothing is.
    pub findings: Vec<String>,
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
    let mut report = CheckReport::default();
    engine.checkpointer.checkpoint_all(false)?;
    let mut named = BTreeSet::from([SpaceId::CATALOG]);
    check_tree(engine, &mut report, "", None, engine.system.tree());
    for (name, _) in engine.catalog.tables() {
        let checked: Option<Result<()>> = engine.catalog.alone(&name, |shape| {
            // Nobody adds to what purge has to do here; what it has not freed would look like leaked pages.
            for _ in 0..PURGE_STEPS {
                if !engine.transactions.purge_step()? {
                    break;
                }
            }
            named.extend(shape.record.spaces());
            check_table(engine, &mut report, &name, shape);
            Ok(())
        });
        checked.unwrap_or(Ok(()))?;
    }
    named.extend(engine.transactions.streams().spaces());
    check_files(engine, &mut report, &named)?;
    Ok(report)
}

fn check_table(engine: &Engine, report: &mut CheckReport, name: &str, shape: &Shape) {
    let rows = check_tree(engine, report, name, None, &shape.clustered);
    for (index, tree) in shape.record.indexes.iter().zip(&shape.secondaries) {
        let entries = check_tree(engine, report, name, Some(&index.name), tree);
        if let (Some(rows), Some(entries)) = (rows, entries)
            && rows != entries
        {
            report
                .finding(format!("table {name}: {rows} rows, but {entries} entries in index {}", index.name));
        }
    }
}

/// Checks a tree against itself and against its allocation map. Gives the live entries, when the tree can be read.
fn check_tree(
    engine: &Engine,
    report: &mut CheckReport,
    table: &str,
    index: Option<&str>,
    tree: &Tree,
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
        Ok(used) => compare_pages(engine, report, &what, tree.space(), &found.pages, &used),
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
    let deleting =
        engine.deleter.deletions().pending_files > 0 || engine.pool.occupancy().dropped_pending > 0;
    for file in engine.disk.list(Folder::Data)? {
        let FileName::Data(id) = file else { continue };
        let live = engine.pool.space(id).filter(|space| !space.is_dropped());
        match live {
            Some(space) if named.contains(&id) => check_pages(engine, report, &space)?,
            _ if deleting => {}
            _ => report.finding(format!("{}: no table has this file", engine.disk.path(file).display())),
        }
    }
    for id in named {
        let space = engine.pool.space(*id).filter(|space| !space.is_dropped());
        if space.is_some_and(|space| space.file() == FileState::Made)
            && engine.disk.len(FileName::Data(*id))?.is_none()
        {
            report.finding(format!("{} is missing", engine.disk.path(FileName::Data(*id)).display()));
        }
    }
    Ok(())
}

fn check_pages(engine: &Engine, report: &mut CheckReport, space: &Arc<Space>) -> Result<()> {
    let file = FileName::Data(space.id());
    let page_size = engine.pool.page_size();
    let length = engine.disk.len(file)?.unwrap_or(0);
    let words: Vec<AtomicU64> = (0..page_size / 8).map(|_| AtomicU64::new(0)).collect();
    let mut bad: BTreeMap<u32, Error> = BTreeMap::new();
    for number in 0..(length / page_size as u64) as u32 {
        let page = Page::new(&words);
        engine.disk.read_page(file, u64::from(number) * page_size as u64, page)?;
        report.pages += 1;
        // Room made ahead is zero.
        if page.is_zero() {
            continue;
        }
        let id = PageId { space: space.id(), page: PageNo(number) };
        if let Err(error) = engine.pool.verify(id, page) {
            bad.insert(number, error);
        }
    }
    for error in bad.into_values() {
        report.finding(error.to_string());
    }
    Ok(())
}
