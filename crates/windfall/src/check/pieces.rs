//! A table under check, in pieces between which calls and statements go on.
//!
//! **Purpose.** Holds a table's trees for so many pages at a time: first those that the tree reaches, then its
//! allocation maps, each of which is compared with what was reached. What is only judgement comes after each hold.
//!
//! **Invariants.** A hold looks at no more pages than a piece has, and those on the way to one leaf; of the allocation
//! maps it compares as many as that, and no more than gives a piece of suspects. A check remembers which pages of one
//! tree it has reached, less than half a byte for each, and the suspects of one piece.
//!
//! Whoever allocates or frees a page changes it. So a page that the tree and its map see differently, and that has
//! not changed since the first piece, was neither allocated nor freed since; and a tree that leads to a page does so
//! until then: it is no matter of when the one and the other were looked at. Of a page that has changed nothing is
//! said. Nor is anything of a page of a long value if at any piece a version was still needed: what a rollback has
//! put back, after the tree was walked, has not changed.
//!
//! **May touch.** What `check` may touch.

use core::time::Duration;
use std::collections::BTreeMap;

use super::{CheckReport, CheckedTree};
use crate::{
    buffer::Space,
    engine::Engine,
    error::{CorruptError, Error, Owner, Result},
    ids::{Lsn, PageNo, SpaceId, pages_of},
    page::{Access, PageType},
    store::Tree,
    sync::{Arc, Event},
    tablespace,
    transaction::rest::AtRest,
    tree::{PageSet, Walk},
};

/// For how long a table is left to others between two looks, at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A table under check.
pub struct Pieces<'a> {
    engine: &'a Engine,
    /// How many pages are looked at while others wait.
    piece: usize,
    /// Those that were there at the first piece.
    trees: BTreeMap<SpaceId, Stage>,
    /// How many pieces there were.
    so_far: u32,
    /// The log's end when the first one began: what changed later may be as it should be and look otherwise.
    since: Lsn,
    /// For how long the last one held up others.
    held: Duration,
    /// At none of them a version waited for purge, or a transaction could take something back.
    purged: bool,
    /// What a test does during a piece.
    #[cfg(test)]
    pub amid: Option<Box<dyn FnMut() + 'a>>,
    /// Of the last piece.
    suspects: Vec<Suspect>,
}

/// How far the check of a tree has come.
enum Stage {
    Walk(Walk),
    Maps(Maps),
    Ended,
}

/// A comparison of the pages that were reached with the allocation maps.
struct Maps {
    reached: PageSet,
    /// The first page that was not compared, divided by 64.
    at: u32,
    /// Whether it lies behind the last map.
    is_behind: bool,
}

/// A page that the tree and the allocation map see differently.
struct Suspect {
    space: Arc<Space>,
    owner: Owner,
    page: PageNo,
    /// In use and not reached; else the other way round.
    is_lost: bool,
    /// Nothing but the rows needs pages.
    purged: bool,
}

impl<'a> Pieces<'a> {
    pub fn new(engine: &'a Engine, piece: usize) -> Self {
        let (trees, suspects) = (BTreeMap::new(), Vec::new());
        Self {
            engine,
            piece,
            trees,
            so_far: 0,
            since: Lsn::ZERO,
            held: Duration::ZERO,
            purged: true,
            #[cfg(test)]
            amid: None,
            suspects,
        }
    }

    /// Checks piece after piece, until one says that it was the last.
    pub fn run(
        mut self,
        report: &mut CheckReport,
        mut piece: impl FnMut(&mut Self, &mut CheckReport) -> bool,
    ) {
        while !piece(&mut self, report) {
            self.judge(report);
            self.pause();
        }
        self.judge(report);
    }

    /// Whether there is but one piece, of everything.
    pub fn are_one(&self) -> bool {
        self.piece == usize::MAX
    }

    /// Does what holds up others.
    pub fn hold<T>(&mut self, run: impl FnOnce(&mut Self) -> T) -> T {
        let from = self.engine.env.now();
        let result = run(self);
        self.held = self.engine.env.now().saturating_sub(from);
        result
    }

    /// Checks some pages more, while nothing changes these trees, and this is known of them. Says whether that was the
    /// last piece.
    pub fn go_on(&mut self, report: &mut CheckReport, trees: &[(Owner, &Tree)], rest: AtRest) -> bool {
        self.purged &= rest.is_purged;
        if self.so_far == 0 {
            self.since = self.engine.log.end();
            let begun = |(_, tree): &(Owner, &Tree)| (tree.space().id(), Stage::Walk(Walk::default()));
            self.trees = trees.iter().map(begun).collect();
        }
        self.so_far += 1;
        #[cfg(test)]
        if let Some(amid) = &mut self.amid {
            amid();
        }
        let (mut left, mut counts, mut has_ended) = (self.piece, Vec::new(), true);
        for (owner, tree) in trees {
            let id = tree.space().id();
            let Some(stage) = self.trees.remove(&id) else { continue };
            let stage = self.go_on_with(report, (owner, tree), stage, &mut left, &mut counts);
            let stage = stage.unwrap_or_else(|error| {
                report.finding(match error {
                    Error::Corrupt(CorruptError::Structure { .. }) => error.of(|_| owner.clone()).to_string(),
                    error => format!("{}: {error}", owner.tree(id)),
                });
                Stage::Ended
            });
            has_ended &= matches!(stage, Stage::Ended);
            self.trees.insert(id, stage);
        }
        // Counts of different times are not compared.
        if self.so_far == 1
            && let Some(((table @ Owner::Table(_), rows), indexes)) = counts.split_first()
        {
            let differing = indexes.iter().filter(|(_, entries)| entries != rows);
            match (rest.has_whole_rows, table) {
                (false, Owner::Table(name)) if !indexes.is_empty() => {
                    report.uncompared.push(name.to_string());
                }
                _ => report.findings.extend(differing.map(|(index, entries)| {
                    format!("{table}: {rows} rows, but {entries} entries in {index}")
                })),
            }
        }
        has_ended
    }

    /// The same for one of them. Gives how far it has come, and adds the number of its entries to `counts` when it has
    /// been walked to its end.
    fn go_on_with(
        &mut self,
        report: &mut CheckReport,
        (owner, tree): (&Owner, &Tree),
        stage: Stage,
        left: &mut usize,
        counts: &mut Vec<(Owner, u64)>,
    ) -> Result<Stage> {
        let mut maps = match stage {
            stage if *left == 0 => return Ok(stage),
            Stage::Ended => return Ok(Stage::Ended),
            Stage::Maps(maps) => maps,
            Stage::Walk(mut walk) => {
                if !tree.check_piece(&mut walk, left)? {
                    return Ok(Stage::Walk(walk));
                }
                let found = walk.finish();
                // Asked behind the look: whoever has written has begun.
                let (trx, page) = found.newest;
                if !self.engine.transactions.has_begun(trx) {
                    let (owner, space) = (owner.clone(), tree.space().id());
                    let what =
                        format!("page {page}: an entry is of transaction {trx}, which has not begun").into();
                    report.finding(CorruptError::Structure { owner, space, what }.to_string());
                }
                let entries = found.entries - found.deleted;
                counts.push((owner.clone(), entries));
                let (table, index) = owner.names();
                report.trees.push(CheckedTree {
                    table: table.to_owned(),
                    index: index.map(ToOwned::to_owned),
                    space: tree.space().id().0,
                    entries,
                    deleted: found.deleted,
                    height: found.height,
                    pages: found.pages.len() as u64,
                });
                Maps { reached: found.pages, at: 0, is_behind: false }
            }
        };
        let has_ended = self.compare(&mut maps, owner, tree.space(), left)?;
        Ok(if has_ended { Stage::Ended } else { Stage::Maps(maps) })
    }

    /// Compares some of the pages that were reached with the allocation maps. Says whether these were the last.
    fn compare(
        &mut self,
        maps: &mut Maps,
        owner: &Owner,
        space: &Arc<Space>,
        left: &mut usize,
    ) -> Result<bool> {
        let pool = &self.engine.pool;
        let words = tablespace::pages_a_map(pool.page_size()) / 64;
        while !maps.is_behind || maps.reached.next(maps.at).is_some() {
            if *left == 0 {
                return Ok(false);
            }
            *left -= 1;
            let (mut used, mut is_last) = (Vec::new(), true);
            if !maps.is_behind {
                let group = tablespace::group(pool, space, maps.at / words)?;
                (used, is_last) = (group.used, !group.has_next);
            }
            // The map itself is in no tree.
            used.first_mut().into_iter().for_each(|word| *word &= !1);
            let first = maps.at / words * words;
            loop {
                // What is neither used nor reached is most of a small tree's map: it is passed over as a whole.
                let is_used = used.iter().skip((maps.at - first) as usize).position(|word| *word != 0);
                let next = is_used.map(|ahead| maps.at + ahead as u32);
                let next = next.into_iter().chain(maps.reached.next(maps.at)).min();
                let Some(at) = next.filter(|at| *at < first + words) else {
                    maps.at = first + words;
                    maps.is_behind |= is_last;
                    break;
                };
                maps.at = at;
                let used = used.get((at - first) as usize).copied().unwrap_or(0);
                let before = self.suspects.len();
                for page in pages_of(maps.at, used ^ maps.reached.word(maps.at)) {
                    let is_lost = used & 1 << (page.0 % 64) != 0;
                    let (space, owner) = (space.clone(), owner.clone());
                    let purged = self.purged;
                    self.suspects.push(Suspect { space, owner, page, is_lost, purged });
                }
                *left = left.saturating_sub(self.suspects.len() - before);
                maps.at += 1;
                if *left == 0 && self.suspects.len() > before {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Tells of the suspects of the last piece, which holds up nobody any more.
    pub fn judge(&mut self, report: &mut CheckReport) {
        for Suspect { space, owner, page, is_lost, purged } in core::mem::take(&mut self.suspects) {
            let is_told = match self.engine.pool.share(&space, page, Access::Scan) {
                // All of it was looked at at once.
                _ if self.so_far == 1 && (purged || !is_lost) => true,
                Ok(shared) => {
                    let page = shared.page();
                    // One of a long value may be an older version's.
                    let is_needed = is_lost && !purged && page.page_type() == PageType::Overflow as u8;
                    page.lsn() <= self.since && !is_needed
                }
                Err(_) => self.so_far == 1 && !space.is_dropped(),
            };
            if is_told {
                let how =
                    if is_lost { "in use and nothing leads to it" } else { "in the tree and not in use" };
                report.finding(format!("{}: page {page} is {how}", owner.tree(space.id())));
            }
        }
    }

    /// Leaves the table to others for as long as it was held, or a while.
    fn pause(&self) {
        let (env, health) = (&self.engine.env, &self.engine.pool.ground().health);
        // The clock may have jumped, and whoever waits has come in long before.
        env.wait_for(&Event::new(), self.held.min(LONGEST_PAUSE), &mut || health.is_poisoned());
    }
}
