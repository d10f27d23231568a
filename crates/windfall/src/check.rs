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
//! versions from purge, long values that nothing leads to may be theirs and are passed over. A check beside others does
//! that a piece at a time, and leaves the table to them in between; what it says is of the moment of each piece, and what
//! only a look at everything at once could tell of a table of several pieces it does not say: whether rows and
//! entries are as many, and whether a page that has changed meanwhile is lost, or one of a long value while purge is behind.
//! What is found never ends the check.
//!
//! **May touch.** `engine` and what is below.

use core::{iter::once, time::Duration};
use std::collections::{BTreeMap, BTreeSet};

use crate::{
    buffer::{Durability, FileState, Space},
    catalog::Catalog,
    disk::{FileName, Folder},
    engine::Engine,
    error::Result,
    ids::{Lsn, PageId, PageNo, SpaceId},
    page::{Access, Page, PageType},
    store::Tree,
    sync::{Arc, Event, atomic::AtomicU64},
    tablespace,
    tree::Walk,
};

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

/// Checks the database. While a table is looked at, its calls wait: `piece` pages at a time.
pub(crate) fn check(engine: &Engine, piece: usize) -> Result<CheckReport> {
    Catalog::check_outside()?;
    let mut report = CheckReport::default();
    engine.checkpointer.checkpoint_all(false)?;
    let mut named = BTreeSet::from([SpaceId::CATALOG]);
    let mut system = Pieces::new(engine, piece);
    while !engine.system.at_rest(|tree| {
        system.hold();
        system.go_on(&mut report, "", &[(None, tree)], true)
    }) {
        system.pause();
    }
    system.judge(&mut report);
    for (name, _) in engine.catalog.tables() {
        let mut pieces = Pieces::new(engine, piece);
        // None when the table is gone: then it is nobody's trouble.
        while Some(false)
            == engine.catalog.alone(&name, |table| {
                pieces.hold();
                let shape = table.shape();
                named.extend(shape.record.spaces());
                let names = shape.record.indexes.iter().map(|index| Some(&*index.name));
                let trees = once(&shape.clustered).chain(&shape.secondaries);
                let trees: Vec<_> = once(None).chain(names).zip(trees.map(|tree| &**tree)).collect();
                let transactions = &engine.transactions;
                // All of it at once waits for purge, too.
                transactions.with_purge_at_rest(piece == usize::MAX, |purged| {
                    pieces.go_on(&mut report, &name, &trees, purged)
                })
            })
        {
            pieces.pause();
        }
        pieces.judge(&mut report);
    }
    named.extend(engine.transactions.streams().spaces());
    check_files(engine, &mut report, &named)?;
    report.foreign = engine.disk.foreign()?.iter().map(|path| path.display().to_string()).collect();
    Ok(report)
}

/// The trees of a table under check, in pieces between which calls and statements go on.
struct Pieces<'a> {
    engine: &'a Engine,
    piece: usize,
    /// Those that were there at the first piece.
    trees: BTreeMap<SpaceId, UnderCheck>,
    /// How many pieces there were.
    so_far: u32,
    /// The log's end when the first one began: what changed later may be as it should be and look otherwise.
    since: Lsn,
    /// Since when the last one held up others.
    held_from: Duration,
    /// Pages that the tree and the allocation map see differently.
    suspects: Vec<Suspect>,
}

#[derive(Default)]
struct UnderCheck {
    walk: Walk,
    has_ended: bool,
}

struct Suspect {
    space: Arc<Space>,
    page: PageNo,
    what: String,
}

impl<'a> Pieces<'a> {
    fn new(engine: &'a Engine, piece: usize) -> Self {
        let (trees, suspects) = (BTreeMap::new(), Vec::new());
        Self { engine, piece, trees, so_far: 0, since: Lsn::ZERO, held_from: Duration::ZERO, suspects }
    }

    /// From now on others are held up.
    fn hold(&mut self) {
        self.held_from = self.engine.env.now();
    }

    /// Checks some pages more, while nobody changes these trees; `purged` says that no version waits for purge. Says whether
    /// that was the last piece.
    fn go_on(
        &mut self,
        report: &mut CheckReport,
        table: &str,
        trees: &[(Option<&str>, &Tree)],
        purged: bool,
    ) -> bool {
        if self.so_far == 0 {
            self.since = self.engine.log.end();
            self.trees = trees.iter().map(|(_, tree)| (tree.space().id(), UnderCheck::default())).collect();
        }
        self.so_far += 1;
        let (mut left, mut counts) = (self.piece, Vec::new());
        for (index, tree) in trees {
            let Some(under_check) = self.trees.get_mut(&tree.space().id()) else { continue };
            if under_check.has_ended {
                continue;
            }
            if left == 0 {
                break;
            }
            let what = match (table, index) {
                ("", _) => "the system tree".to_owned(),
                (table, None) => format!("table {table}"),
                (table, Some(index)) => format!("index {index} of table {table}"),
            };
            match tree.check_piece(&mut under_check.walk, &mut left) {
                Ok(false) => break,
                Ok(true) => {
                    under_check.has_ended = true;
                    let found = core::mem::take(&mut under_check.walk).finish();
                    counts.push((*index, found.entries - found.deleted));
                    self.compare(report, what, tree, &found.pages, purged);
                    report.trees.push(CheckedTree {
                        table: table.to_owned(),
                        index: index.map(str::to_owned),
                        space: tree.space().id().0,
                        entries: found.entries - found.deleted,
                        deleted: found.deleted,
                        height: found.height,
                        pages: found.pages.len() as u64,
                    });
                }
                Err(error) => {
                    under_check.has_ended = true;
                    report.finding(format!("{what}: {error}"));
                }
            }
        }
        // Counts of different times are not compared.
        if self.so_far == 1
            && let Some(((None, rows), indexes)) = counts.split_first()
        {
            for (index, entries) in indexes.iter().filter(|(_, entries)| entries != rows) {
                let index = index.unwrap_or_default();
                report.finding(format!("table {table}: {rows} rows, but {entries} entries in index {index}"));
            }
        }
        let is_open = |tree: &Tree| self.trees.get(&tree.space().id()).is_some_and(|tree| !tree.has_ended);
        !trees.iter().any(|(_, tree)| is_open(tree))
    }

    /// Compares the pages that were reached with the allocation map.
    fn compare(
        &mut self,
        report: &mut CheckReport,
        what: String,
        tree: &Tree,
        found: &[PageNo],
        purged: bool,
    ) {
        let engine = self.engine;
        let used = match tablespace::pages_in_use(&engine.pool, tree.space()) {
            Ok(used) => used,
            Err(error) => return report.finding(format!("{what}: {error}")),
        };
        let maps = tablespace::pages_a_map(engine.pool.page_size());
        let used: BTreeSet<_> = used.into_iter().filter(|page| !page.0.is_multiple_of(maps)).collect();
        let reached: BTreeSet<_> = found.iter().copied().collect();
        let id = tree.space().id();
        let suspect = |page: &PageNo, how: &str| Suspect {
            space: tree.space().clone(),
            page: *page,
            what: format!("{what}: page {page} of tablespace {id} is {how}"),
        };
        let lost = used.difference(&reached).filter(|page| purged || !is_overflow(engine, tree, **page));
        self.suspects.extend(lost.map(|page| suspect(page, "in use and nothing leads to it")));
        let free = reached.difference(&used);
        self.suspects.extend(free.map(|page| suspect(page, "in the tree and not in use")));
    }

    /// Tells the suspects. If there were several pieces, only those that have not changed since the first: whoever
    /// allocates or frees a page changes it, so these were neither, and a tree that leads to a page does so until then.
    fn judge(self, report: &mut CheckReport) {
        for Suspect { space, page, what } in self.suspects {
            let is_old = || {
                let shared = self.engine.pool.share(&space, page, Access::Scan);
                shared.is_ok_and(|shared| shared.page().lsn() <= self.since)
            };
            if self.so_far == 1 || is_old() {
                report.finding(what);
            }
        }
    }

    /// Leaves the table to others for as long as it was held.
    fn pause(&self) {
        let (env, health) = (&self.engine.env, &self.engine.pool.ground().health);
        let took = env.now().saturating_sub(self.held_from);
        env.wait_for(&Event::new(), took, &mut || health.is_poisoned());
    }
}

/// Whether a page is one of a long value, which an older version may need.
fn is_overflow(engine: &Engine, tree: &Tree, page: PageNo) -> bool {
    let shared = engine.pool.share(tree.space(), page, Access::Scan);
    shared.is_ok_and(|shared| shared.page().page_type() == PageType::Overflow as u8)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        database::{Database, TableOptions},
        disk::simulated::SimulatedDisk,
        env::SimulatedEnv,
        mtr::Mtr,
        options::Options,
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
}
