//! Checking a table in pieces, between which calls and statements continue.
//!
//! **Purpose.** Blocks a table's trees for a limited number of pages at a time (a piece): first the pages that the tree
//! reaches, then its allocation maps, each of which is compared with the pages reached. Work that needs no blocking
//! follows each piece.
//!
//! **Invariants.** A piece examines a bounded number of pages, plus those on the way to one leaf; it compares at most
//! that many allocation maps, and stops when it has found that many suspects (test:
//! `a_check_piece_of_a_large_tree_is_as_short_as_of_a_small_one`). A check stores which pages it has reached of one
//! tree only, and the suspects of one piece (checked by `check/pieces.rs::check_piece`). The former take less than half
//! a byte for each page (test: `adjacent_pages_take_less_than_half_a_byte_each`).
//!
//! Allocating or freeing a page changes it, so if tree and map disagree about a page that has not changed since the
//! first piece, the page was neither allocated nor freed since (test: `a_lost_page_is_reported_by_a_live_check_too`);
//! and a tree that references a page does so until the page is freed: it does not matter when each of them was read.
//! Nothing is reported about a page that has changed (test:
//! `a_check_finds_nothing_during_concurrent_work_and_blocks_no_thread`). Nor is anything reported about a page of a
//! long value if a version was still needed during any piece: a rollback can make the tree reference such a page again
//! after the walk, without a change of the page itself (test:
//! `a_value_that_a_rollback_puts_back_between_two_pieces_is_not_lost`).

use core::time::Duration;
use std::collections::BTreeMap;

use super::{CheckReport, CheckedTree, extracted};
use crate::{
    buffer::Space,
    engine::Engine,
    error::{CorruptError, Error, LockError, Owner, Result},
    ids::{Lsn, PageNo, SpaceId, pages_of},
    page::{Access, PageType},
    store::Tree,
    sync::{Arc, Event, LongWork},
    tablespace,
    tree::{PageSet, Walk},
    txn::{Extraction, trx::quiesce::Quiesced},
};

/// The longest time for which a table is released between two pieces.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A tree of a table under check.
#[derive(Debug)]
pub(super) struct TableTree<'t> {
    /// The table, or its index.
    pub owner: Owner,
    pub tree: &'t Tree,
    /// Whether each row of the table has one entry here: not in an index of which the caller supplies the entries or an
    /// extractor makes them.
    pub has_all_rows: bool,
    /// The extraction of the entries of an index, and whether it is unique.
    pub extraction: Option<(Extraction<'t>, bool)>,
}

/// A table under check.
pub(super) struct Pieces<'a> {
    engine: &'a Engine,
    /// Pages examined while other work waits.
    piece: usize,
    /// The trees that existed at the first piece.
    trees: BTreeMap<SpaceId, Stage>,
    /// The number of pieces so far.
    so_far: u32,
    /// The number of pages examined in all pieces so far.
    examined: u64,
    /// The log's end when the first piece began: pages changed later may look inconsistent although they are correct.
    since: Option<Lsn>,
    /// The time for which the last piece blocked other work.
    blocked_for: Duration,
    /// Whether in all pieces so far no version waited for purge, and no transaction could roll back.
    purged: bool,
    /// The suspects of the last piece.
    suspects: Vec<Suspect>,
    /// Whether an interrupt has ended the walk along a tree.
    is_interrupted: bool,
}

/// The progress of the check of a tree.
enum Stage {
    Walk(Walk),
    Maps(Maps),
    Ended,
}

impl Stage {
    /// Returns whether it stores pages that were reached.
    fn has_reached_some(&self) -> bool {
        match self {
            Self::Walk(walk) => walk.has_begun(),
            Self::Maps(maps) => !maps.reached.is_empty(),
            Self::Ended => false,
        }
    }
}

/// A comparison of the pages reached with the allocation maps.
struct Maps {
    reached: PageSet,
    /// The first page that was not compared, divided by 64.
    at: u32,
    /// Whether `at` is past the pages of the last map.
    is_past_last_map: bool,
}

/// A page about which the tree and the allocation map disagree.
struct Suspect {
    space: Arc<Space>,
    owner: Owner,
    page: PageNo,
    /// Whether it is allocated and not reached; otherwise it is reached and not allocated.
    is_lost: bool,
    /// Whether no old version needs pages: only the current rows do.
    purged: bool,
}

impl<'a> Pieces<'a> {
    pub(super) fn new(engine: &'a Engine, piece: usize) -> Self {
        let (trees, suspects) = (BTreeMap::new(), Vec::new());
        Self {
            engine,
            piece,
            trees,
            so_far: 0,
            examined: 0,
            since: None,
            blocked_for: Duration::ZERO,
            purged: true,
            suspects,
            is_interrupted: false,
        }
    }

    /// Checks piece after piece, until one reports that it was the last.
    ///
    /// # Errors
    /// [`LockError::Interrupted`]: not everything was examined.
    pub(super) fn run(
        mut self,
        report: &mut CheckReport,
        mut piece: impl FnMut(&mut Self, &mut CheckReport) -> Result<bool>,
    ) -> Result<()> {
        loop {
            let is_last = piece(&mut self, report)?;
            if self.is_interrupted {
                return Err(LockError::Interrupted.into());
            }
            self.report_suspects(report);
            if is_last {
                return Ok(());
            }
            LongWork::check()?;
            self.pause();
        }
    }

    /// Returns the number of pages, and allocation maps, that were examined so far.
    pub(super) fn examined(&self) -> u64 {
        self.examined
    }

    /// Returns whether everything is checked in a single piece.
    pub(super) fn is_single_piece(&self) -> bool {
        self.piece == usize::MAX
    }

    /// Runs work that blocks others, and records its duration.
    pub(super) fn timed<T>(&mut self, run: impl FnOnce(&mut Self) -> T) -> T {
        let from = self.engine.env.now();
        let result = run(self);
        self.blocked_for = self.engine.env.now().saturating_sub(from);
        result
    }

    /// Checks some more pages, while nothing changes these trees; `rest` describes their state. Returns whether that
    /// was the last piece.
    pub(super) fn check_next(
        &mut self,
        report: &mut CheckReport,
        trees: &[TableTree<'_>],
        rest: Quiesced,
    ) -> bool {
        self.begin_piece(trees, rest);
        self.check_piece(report, trees, rest)
    }

    /// Begins a piece: pages that change from now on are changed during it.
    pub(super) fn begin_piece(&mut self, trees: &[TableTree<'_>], rest: Quiesced) {
        debug_assert!(self.suspects.is_empty(), "the suspects of the last piece were not reported");
        self.purged &= rest.is_purged;
        if self.so_far == 0 {
            self.since = Some(self.engine.log.end());
            let begun = |tree: &TableTree<'_>| (tree.tree.space().id(), Stage::Walk(Walk::default()));
            self.trees = trees.iter().map(begun).collect();
        }
        self.so_far += 1;
    }

    /// Checks the pages of a piece. Returns whether it was the last.
    pub(super) fn check_piece(
        &mut self,
        report: &mut CheckReport,
        trees: &[TableTree<'_>],
        rest: Quiesced,
    ) -> bool {
        let (mut left, mut counts, mut has_ended) = (self.piece, Vec::new(), true);
        for table_tree in trees {
            let TableTree { owner, tree, .. } = table_tree;
            let id = tree.space().id();
            let Some(stage) = self.trees.remove(&id) else { continue };
            let stage = self.check_piece_of(report, table_tree, stage, &mut left, &mut counts);
            let stage = stage.unwrap_or_else(|error| {
                report.finding(match error {
                    Error::Lock(LockError::Interrupted) => {
                        self.is_interrupted = true;
                        return Stage::Ended;
                    }
                    Error::Corrupt(CorruptError::Structure { .. }) => error.of(|_| owner.clone()).to_string(),
                    error => format!("{}: {error}", owner.tree(id)),
                });
                Stage::Ended
            });
            if self.is_interrupted {
                break;
            }
            has_ended &= matches!(stage, Stage::Ended);
            self.trees.insert(id, stage);
        }
        self.examined += (self.piece - left) as u64;
        debug_assert!(
            self.trees.values().filter(|stage| stage.has_reached_some()).count() <= 1,
            "the pages reached of several trees are stored"
        );
        debug_assert!(
            self.suspects.len() <= self.piece.saturating_add(63),
            "{} suspects are more than a piece of {} pages",
            self.suspects.len(),
            self.piece
        );
        // Counts of different times are not compared.
        if self.so_far == 1
            && !self.is_interrupted
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
        // As with the counts: the entries are compared with rows of the same moment.
        if self.so_far == 1 && has_ended && !self.is_interrupted && rest.has_whole_rows {
            self.compare_extracted(report, trees);
        }
        has_ended
    }

    /// Compares the entries of indexes with what their extractors make of the rows.
    fn compare_extracted(&mut self, report: &mut CheckReport, trees: &[TableTree<'_>]) {
        for index in trees {
            let Some(extraction) = index.extraction else { continue };
            match extracted::compare(&trees[0], index, extraction) {
                Ok(difference) => report.findings.extend(difference),
                Err(Error::Lock(LockError::Interrupted)) => {
                    self.is_interrupted = true;
                    return;
                }
                Err(error) => report.finding(error.of(|_| index.owner.clone()).to_string()),
            }
        }
    }

    /// Checks some more pages of one tree. Returns its progress, and adds the number of its entries to `counts` when
    /// its walk has ended.
    fn check_piece_of(
        &mut self,
        report: &mut CheckReport,
        &TableTree { ref owner, tree, has_all_rows, .. }: &TableTree<'_>,
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
                // Checked after the walk: any transaction that had written by then has begun.
                let (trx, page) = found.newest;
                if !self.engine.transactions.has_begun(trx) {
                    let (owner, space) = (owner.clone(), tree.space().id());
                    let what =
                        format!("page {page}: an entry is of transaction {trx}, which has not begun").into();
                    report.finding(CorruptError::Structure { owner, space, what }.to_string());
                }
                let entries = found.entries - found.deleted;
                if has_all_rows {
                    counts.push((owner.clone(), entries));
                }
                let is_metadata = matches!(owner, Owner::Metadata(_));
                let (table, index) = owner.names();
                report.trees.push(CheckedTree {
                    table: table.to_owned(),
                    index: index.map(ToOwned::to_owned),
                    is_metadata,
                    space: tree.space().id(),
                    entries,
                    deleted: found.deleted,
                    height: found.height,
                    pages: found.pages.len() as u64,
                    leaves: found.leaves,
                    leaf_bytes: found.leaf_bytes,
                    leaf_capacity: found.leaf_capacity,
                });
                Maps { reached: found.pages, at: 0, is_past_last_map: false }
            }
        };
        let (space, mut in_use) = (tree.space(), 0);
        let has_ended = self.compare(&mut maps, owner, space, left, &mut in_use)?;
        // In one piece every map was read once, and at the moment of the count.
        if has_ended
            && self.so_far == 1
            && let Some(counted) = tablespace::counted_pages(space).filter(|counted| *counted != in_use)
        {
            report.finding(format!(
                "{}: {in_use} pages are in use, but {counted} are counted: the next opening counts them again",
                owner.tree(space.id())
            ));
        }
        Ok(if has_ended { Stage::Ended } else { Stage::Maps(maps) })
    }

    /// Compares some of the pages reached with the allocation maps. Returns whether these were the last. Adds the pages
    /// in use of each map that it reads to `in_use`.
    fn compare(
        &mut self,
        maps: &mut Maps,
        owner: &Owner,
        space: &Arc<Space>,
        left: &mut usize,
        in_use: &mut u64,
    ) -> Result<bool> {
        let pool = &self.engine.pool;
        let words = tablespace::pages_a_map(pool.page_size()) / 64;
        while !maps.is_past_last_map || maps.reached.next(maps.at).is_some() {
            if *left == 0 {
                return Ok(false);
            }
            *left -= 1;
            let (mut used, mut is_last) = (Vec::new(), true);
            if !maps.is_past_last_map {
                let group = tablespace::group(pool, space, maps.at / words)?;
                (used, is_last) = (group.used, !group.has_next);
                *in_use += used.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
            }
            // The map itself is in no tree.
            used.first_mut().into_iter().for_each(|word| *word &= !1);
            let first = maps.at / words * words;
            loop {
                // Most pages of a small tree's map are neither allocated nor reached: they are skipped in one step.
                let is_used = used.iter().skip((maps.at - first) as usize).position(|word| *word != 0);
                let next = is_used.map(|ahead| maps.at + ahead as u32);
                let next = next.into_iter().chain(maps.reached.next(maps.at)).min();
                let Some(at) = next.filter(|at| *at < first + words) else {
                    maps.at = first + words;
                    maps.is_past_last_map |= is_last;
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

    /// Reports the suspects of the last piece, after other work is no longer blocked.
    pub(super) fn report_suspects(&mut self, report: &mut CheckReport) {
        for Suspect { space, owner, page, is_lost, purged } in core::mem::take(&mut self.suspects) {
            let is_reported = match self.engine.pool.share(&space, page, Access::Scan) {
                // Everything was examined at once.
                _ if self.so_far == 1 && (purged || !is_lost) => true,
                Ok(shared) => {
                    let page = shared.page();
                    // A page of a long value may belong to an older version.
                    let is_needed = is_lost && !purged && page.page_type() == PageType::Overflow as u8;
                    self.since.is_some_and(|since| page.lsn() <= since) && !is_needed
                }
                Err(_) => self.so_far == 1 && !space.is_dropped(),
            };
            if is_reported {
                let how =
                    if is_lost { "in use and nothing leads to it" } else { "in the tree and not in use" };
                report.finding(format!("{}: page {page} is {how}", owner.tree(space.id())));
            }
        }
    }

    /// Releases the table to other work for as long as it was blocked, up to a limit.
    fn pause(&self) {
        let (env, health) = (&self.engine.env, &self.engine.pool.context().health);
        // There is a limit because the clock may have jumped; waiting calls enter the table long before it expires.
        env.wait_for(&Event::new(), self.blocked_for.min(LONGEST_PAUSE), &mut || health.is_poisoned());
    }
}
