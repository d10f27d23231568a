//! Replay of the log.
//!
//! **Purpose.** Applies the changes in the log to their pages. They are collected in batches, and each page is visited
//! once per batch, so that a page that does not stay in the pool is not read again for each of its changes.
//!
//! **Invariants.** Changes of a page are applied in the order in which they were logged (checked by
//! `recovery/replay.rs::visit`), and those of one group in the same batch: the first of them that is applied gives the
//! page the LSN by which the others would count as applied (checked by `recovery/replay.rs::push`). The memory of a
//! batch is requested once, whatever pages its changes are of (test:
//! `the_memory_of_a_batch_does_not_depend_on_its_pages`).

use super::{Files, Lost, Scan, damage, space_of};
use crate::{
    buffer::{BufferPool, READ_AHEAD_PAGES, Space},
    disk::{FileName, Queue},
    error::{CorruptError, DiskError, Error, Result},
    ids::{Lsn, PageId, PageNo, SpaceId},
    log::{Control, GroupReader, LogReader, Record},
    page::PageOp,
    sync::{Arc, Phase, Progress},
};

/// Bytes of changes, and of the entries that describe them, collected before their pages are visited.
pub(super) const REPLAY_BATCH_BYTES: usize = 32 << 20;

/// The bytes of log that a change takes at least.
const LOGGED_CHANGE_BYTES: usize = 10;

/// A change in a batch. Their order is that of pages, and for a page that of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Change {
    page: PageId,
    /// Its place in the bytes of the batch.
    at: u32,
    /// The previous content of the page does not matter.
    overwrites: bool,
    /// Start and end of its group.
    start: Lsn,
    end: Lsn,
}

/// Changes that are collected.
#[derive(Debug)]
struct Batch {
    /// The changes in their logged form.
    bytes: Vec<u8>,
    /// Most changes are so short that their entries here take more memory than they.
    changes: Vec<Change>,
    /// The end of the last group that was in an earlier batch.
    applied: Lsn,
}

impl Batch {
    /// Returns an empty batch for a log of this length.
    fn new(log_bytes: usize) -> Self {
        let changes = (log_bytes / LOGGED_CHANGE_BYTES).min(REPLAY_BATCH_BYTES / size_of::<Change>());
        Self {
            bytes: Vec::with_capacity(log_bytes.min(REPLAY_BATCH_BYTES)),
            changes: Vec::with_capacity(changes),
            applied: Lsn::ZERO,
        }
    }

    /// Adds a change of the group from `start` to `end`.
    fn push(&mut self, page: PageId, start: Lsn, end: Lsn, op: &PageOp<'_>) {
        debug_assert!(
            self.applied <= start && start < end,
            "a group is in two batches, or ends where it starts"
        );
        let at = u32::try_from(self.bytes.len()).expect("a batch and one more group are below 4 GiB");
        op.encode(&mut self.bytes);
        self.changes.push(Change { page, at, overwrites: op.overwrites_page(), start, end });
    }

    fn is_full(&self) -> bool {
        self.bytes.len() + size_of_val(&*self.changes) >= REPLAY_BATCH_BYTES
    }

    fn clear(&mut self) {
        self.applied = self.changes.iter().map(|change| change.end).max().unwrap_or(self.applied);
        self.bytes.clear();
        self.changes.clear();
    }

    /// Decodes a change.
    fn op(&self, change: &Change) -> Result<PageOp<'_>, &'static str> {
        PageOp::decode(&self.bytes[change.at as usize..]).map(|(op, _)| op)
    }
}

/// Returns the changes of each page, from the last one that overwrites it. The changes are sorted.
fn by_page(changes: &[Change]) -> impl Iterator<Item = &[Change]> {
    changes.chunk_by(|one, next| one.page == next.page).map(|changes| {
        let first = changes.iter().rposition(|change| change.overwrites);
        &changes[first.unwrap_or(0)..]
    })
}

struct Replay<'a> {
    pool: &'a BufferPool,
    scan: &'a Scan,
    files: &'a Files,
    lost: Lost,
    queue: Box<dyn Queue>,
}

/// Replays the log into the pool, up to the end that the scan found.
pub(super) fn replay(
    pool: &BufferPool,
    control: &Control,
    scan: &Scan,
    files: &Files,
    lost: Lost,
    progress: &dyn Fn(Progress),
) -> Result<Lost> {
    let disk = &pool.context().disk;
    let mut replay = Replay { pool, scan, files, lost, queue: disk.queue() };
    // A missing file may have been dropped below the low-water mark while its last pages were being written: then no
    // record names it any more. If one does, the missing file is reported when its tablespace is attached or changed.
    for space in scan.made.keys().filter(|space| files.contains(space)) {
        replay.space(*space)?;
    }
    let mut reader = LogReader::new(disk.clone(), control, control.low_water_mark)?.up_to(scan.end);
    let total = scan.end.0 - control.low_water_mark.0;
    let mut batch = Batch::new(usize::try_from(total).unwrap_or(usize::MAX));
    while let Some((start, end, group)) = reader.next_group()? {
        debug_assert!(control.low_water_mark <= start, "a group below the low-water mark is replayed");
        for record in GroupReader::new(group) {
            if let Record::Page { id, op } = record.map_err(|what| damage(disk.as_ref(), start, what))?
                && !scan.dropped.contains(id.space)
            {
                batch.push(id, start, end, &op);
            }
        }
        if batch.is_full() {
            replay.apply(&mut batch)?;
            progress(Progress::new(Phase::Replay, end.0 - control.low_water_mark.0, total));
        }
    }
    if reader.end() != scan.end {
        // The device returns other bytes than when the log was scanned.
        return Err(damage(disk.as_ref(), reader.end(), "it was whole here when it was scanned").into());
    }
    replay.apply(&mut batch)?;
    progress(Progress::new(Phase::Replay, total, total));
    Ok(replay.lost)
}

impl Replay<'_> {
    fn space(&self, id: SpaceId) -> Result<Arc<Space>> {
        space_of(self.pool, self.scan, self.files, id)
    }

    /// Applies the collected changes, and visits each page once. The batch is empty afterwards.
    fn apply(&mut self, batch: &mut Batch) -> Result<()> {
        batch.changes.sort_unstable();
        let mut work = Vec::with_capacity(READ_AHEAD_PAGES);
        let mut pages = by_page(&batch.changes).peekable();
        while pages.peek().is_some() {
            for changes in pages.by_ref().take(READ_AHEAD_PAGES) {
                let id = changes[0].page.space;
                match self.space(id) {
                    Ok(space) => work.push((space, changes)),
                    Err(error) => self.lose(id, error)?,
                }
            }
            let unknown = work.iter().filter(|(_, changes)| !changes[0].overwrites);
            let reads: Vec<_> =
                unknown.map(|(space, changes)| (space.clone(), changes[0].page.page)).collect();
            self.pool.read_ahead(&mut *self.queue, &reads)?;
            for (space, changes) in work.drain(..) {
                if let Err(error) = self.visit(&space, changes, batch) {
                    self.lose(space.id(), error)?;
                }
            }
        }
        drop(pages);
        batch.clear();
        Ok(())
    }

    /// Records damage of a tablespace: whether it matters is decided when the records of the system tree are read.
    fn lose(&mut self, space: SpaceId, error: Error) -> Result<()> {
        match error {
            Error::Corrupt(_) | Error::Disk(DiskError::Missing { .. }) => {
                self.lost.entry(space).or_insert(error);
                Ok(())
            }
            error => Err(error),
        }
    }

    /// Applies the changes of one page.
    fn visit(&self, space: &Arc<Space>, changes: &[Change], batch: &Batch) -> Result<()> {
        let Change { page: id, overwrites, start: since, .. } = changes[0];
        debug_assert!(space.id() == id.space, "the page belongs to another tablespace");
        debug_assert!(
            changes.is_sorted_by_key(|change| (change.page, change.end, change.at)),
            "changes of a page are applied in another order than they were logged"
        );
        let mut latched = if overwrites {
            self.pool.latch_for_format(space, id.page)?
        } else {
            self.pool.exclusive(space, id.page)?
        };
        if id.page == PageNo::HEADER {
            space.set_has_pages();
        }
        // The LSN as found: a group may change a page several times, and all its changes carry one LSN.
        let found = if overwrites { Lsn::ZERO } else { latched.page().lsn() };
        for change in changes.iter().filter(|change| change.end > found) {
            let page = latched.page();
            let damaged = |what: &str| {
                let file = self.pool.context().disk.path(FileName::Data(id.space));
                CorruptError::Page { file, page: id, lsn: page.lsn(), what: what.into() }
            };
            let op = batch.op(change).map_err(damaged)?;
            op.apply(page, id).map_err(damaged)?;
            page.set_lsn(change.end);
            latched.mark_dirty(space, since);
        }
        // Dirty from the first change on, whether replayed or not: what is read may not be durable, if a sync has
        // failed. So a page that was already up to date is rewritten, too, before the low-water mark of the log
        // passes.
        latched.mark_dirty(space, since);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PageType;

    const FORMAT: PageOp<'_> = PageOp::Format { kind: PageType::Leaf, level: 0 };

    fn write(at: u32) -> PageOp<'static> {
        PageOp::Write { at, bytes: b"x" }
    }

    fn page(space: u64, page: u32) -> PageId {
        PageId { space: SpaceId(space), page: PageNo(page) }
    }

    #[test]
    fn changes_of_a_page_are_together_from_its_last_overwriting_on() {
        let mut batch = Batch::new(1 << 20);
        let log = [
            (page(2, 5), write(1)),
            (page(1, 5), write(2)),
            (page(2, 5), FORMAT),
            (page(1, 4), write(3)),
            (page(2, 5), write(4)),
            (page(1, 5), write(5)),
        ];
        for (n, (page, op)) in (1..).zip(&log) {
            batch.push(*page, Lsn(10 * n), Lsn(10 * n + 9), op);
        }
        batch.changes.sort_unstable();
        let seen: Vec<Vec<_>> = by_page(&batch.changes)
            .map(|changes| changes.iter().map(|c| (c.page, c.start.0, batch.op(c).unwrap())).collect())
            .collect();
        let expected = [[3].as_slice(), &[1, 5], &[2, 4]].map(|numbers| {
            let logged = |n: &usize| (log[*n].0, 10 * (*n as u64 + 1), log[*n].1);
            numbers.iter().map(logged).collect::<Vec<_>>()
        });
        assert_eq!(seen, expected);
        batch.clear();
        assert_eq!(by_page(&batch.changes).count(), 0);
    }

    #[test]
    fn the_memory_of_a_batch_does_not_depend_on_its_pages() {
        let held = |batch: &Batch| (batch.bytes.capacity(), batch.changes.capacity());
        for pages in [1, 7, u32::MAX] {
            let mut batch = Batch::new(usize::MAX);
            let (requested, mut n) = (held(&batch), 0);
            assert!(requested.0 + requested.1 * size_of::<Change>() <= 2 * REPLAY_BATCH_BYTES);
            while !batch.is_full() {
                batch.push(page(1, n % pages), Lsn(n.into()), Lsn(u64::from(n) + 1), &write(7));
                n += 1;
            }
            assert!(n > 500_000, "{n}");
            assert_eq!(held(&batch), requested, "a batch with {pages} pages has requested more");
            batch.clear();
            assert_eq!(held(&batch), requested);
        }
    }
}
