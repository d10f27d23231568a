//! An undo stream: an endless sequence of bytes, cut into slices that are tablespaces of their own.
//!
//! **Purpose.** Undo records are appended by the mini-transactions that make the changes, read back by rollback and
//! purge, and removed when their slice is dropped as a whole.
//!
//! **Invariants.** A position is never used twice (checked by `undo/stream.rs::write`). There is one appender at a time
//! ([`Stream::lock`]) (by type). It locks the stream before any page (checked by `sync/lock.rs::take`), then latches
//! the leaf, then the undo pages ([`Appender::prepare`], which may fail), and then applies the changes
//! ([`Appender::write`], which cannot fail). The page after the page in use is formatted and empty, so a forward reader
//! finds the end without requesting a page that was never created (test: `a_record_may_end_where_its_page_ends`). After
//! a restart, existing slices are no longer written, except to mark records as undone: the first append begins a new
//! slice (test: `after_a_restart_purge_skips_no_record_because_of_a_missing_one`).
//!
//! The purge worker creates the next slice once the current one is half full (test: `a_writer_finds_its_slices_made`).
//! So no writer waits for the system tree, which a statement may be changing; only a writer that fills a slice faster
//! creates the next one itself (test: `a_writer_finds_its_slices_made`). The newest slice is never dropped (checked by
//! `undo/stream.rs::drop_slice`), because it holds the end position of the stream. For a slice that this process has
//! filled it is known whether anything in it must be purged: if not, purge skips it as a whole (test:
//! `slices_with_nothing_to_purge_go_unread`). Slices of a temporary stream are not logged (test:
//! `temporary_rows_leave_nothing_in_the_log`), and vanish with the process (test: `temporary_tables_leave_nothing`).
//!
//! # Undo page, byte by byte
//!
//! | offset | size | field |
//! | --- | --- | --- |
//! | 0 | 28 | page header, type 5 |
//! | 28 | 2 | bytes of the stream in this page |
//! | 30 | 2 | where in them the first record begins, plus one; 0 when none begins here |
//! | 32 | | those bytes |
//!
//! Page `n` of slice `s` holds the bytes from `(s * SLICE_PAGES + n) * (page size - 32)` on. The system tree has a
//! record per slice: key `"u"`, the stream (1), the slice (8, big-endian); value: the tablespace (8).

use core::time::Duration;
use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::{
    position::{STREAM_BYTES, undo_pos},
    purge_state::StreamPurge,
    readers::Readers,
    record::UndoRecord,
};
use crate::{
    buffer::{BufferPool, Durability, SharedPage, Space},
    error::{CorruptError, Error, Owner, Result},
    failpoint::Failpoint,
    ids::{PageNo, SpaceId, TrxId, UndoPos},
    log::{Log, Record},
    mtr::{Mtr, Slot},
    page::{
        Access, PageOp, PageType,
        undo::{DATA, FIRST, USED},
    },
    store::Tree,
    sync::{
        Arc, Event, Mutex, MutexGuard, Rank,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    system::{Change, SystemTree, UNDO},
    tree::hash::{HashBudget, TreeHash},
    txn::mvcc::Ids,
};

/// Pages of a slice.
pub(crate) const SLICE_PAGES: u64 = 64;

/// The start of a stream: position 0 of stream 0 would be the word that stands for no position.
const BEGIN: u64 = 8;

/// Bytes of the length and the state before each record.
pub(in crate::txn) const HEAD: usize = 5;
/// The largest buffer that a stream keeps for its next record, in bytes.
const KEPT_RECORD_BYTES_MAX: usize = 1 << 16;
/// Bytes of log for an operation on an undo page, in addition to the bytes that it writes.
const LOG_BYTES_PER_OPERATION: usize = 48;
/// The state of a record that was undone.
pub(super) const ROLLED_BACK: u8 = 1;
/// The limit for a record, in bytes: a row's keys and value are much shorter.
const MAX_RECORD_BYTES: usize = 16 << 20;

/// The context that streams share.
#[derive(Debug)]
pub(in crate::txn) struct UndoContext {
    /// The pages.
    pub pool: Arc<BufferPool>,
    /// The system tree, in which slices are registered.
    pub system: Arc<SystemTree>,
    /// Assigns the ids of their tablespaces.
    pub ids: Arc<Ids>,
    /// Wakes the purge worker.
    pub purge_wake: Arc<Event>,
    /// The number of slices, without those of temporary streams.
    pub slices: AtomicU64,
    /// Signals that one of them was dropped.
    pub slice_dropped: Arc<Event>,
    /// For the trees that rollback and purge access: they have no hash index.
    no_hash: Arc<HashBudget>,
    /// The points at which a test makes a change or purge fail.
    pub failpoint: Failpoint,
}

impl UndoContext {
    /// Returns the context of the streams of a database, of which there are none so far.
    pub(in crate::txn) fn new(pool: Arc<BufferPool>, system: Arc<SystemTree>, ids: Arc<Ids>) -> Self {
        Self {
            pool,
            system,
            ids,
            purge_wake: Arc::new(Event::new()),
            slices: AtomicU64::new(0),
            slice_dropped: Arc::default(),
            no_hash: Arc::new(HashBudget::new(0)),
            failpoint: Failpoint::default(),
        }
    }

    /// Returns the log.
    pub(in crate::txn) fn log(&self) -> &Log {
        &self.pool.context().log
    }

    /// Returns the time of the environment.
    pub(in crate::txn) fn now(&self) -> Duration {
        self.pool.context().env.now()
    }

    /// Returns the tree in a tablespace, unless it was dropped.
    pub(in crate::txn) fn tree(&self, space: SpaceId) -> Option<Tree> {
        let space = self.pool.space(space).filter(|space| !space.is_dropped())?;
        Some(Tree::new(self.pool.clone(), space, TreeHash::new(self.no_hash.clone())))
    }
}

/// A stream.
#[derive(Debug)]
pub struct Stream {
    pub(super) context: Arc<UndoContext>,
    number: u8,
    durability: Durability,
    slices: Mutex<BTreeMap<u64, Arc<Space>>>,
    tail: Mutex<End>,
    /// The position up to which records are readable, or will be once a latch is released.
    end: AtomicU64,
    /// The summaries of full slices that this process has written.
    sealed: Mutex<BTreeMap<u64, SliceSummary>>,
    /// The state of purge in this stream.
    pub(super) purge: StreamPurge,
    /// The readers of a temporary stream.
    pub(super) readers: Readers,
}

/// The end of a stream.
#[derive(Debug)]
struct End {
    /// The position of the next record.
    next: u64,
    /// The newest slice.
    newest: Option<(u64, Arc<Space>)>,
    /// The slice that is being written, and its summary.
    open: Option<(u64, SliceSummary)>,
    /// The buffer of an earlier record.
    spare: Vec<u8>,
}

/// The summary of a slice, for purge to skip it without reading it.
#[derive(Clone, Copy, Debug)]
pub(super) struct SliceSummary {
    /// The youngest transaction with a record in it.
    pub youngest: TrxId,
    /// Whether none of its records leaves anything to purge.
    pub leaves_nothing: bool,
}

/// A record as it is stored in the stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stored {
    /// Whether the change was undone.
    pub rolled_back: bool,
    /// The record, for [`UndoRecord::decode`].
    pub bytes: Vec<u8>,
    /// The position after it.
    pub next: u64,
}

/// The right to append.
#[derive(Debug)]
pub struct Appender<'s> {
    stream: &'s Stream,
    end: MutexGuard<'s, End>,
}

/// Latched room for one record.
#[derive(Debug)]
pub struct Place {
    at: u64,
    pieces: SmallVec<[Piece; 2]>,
    /// Pages to be formatted.
    fresh: Vec<Slot>,
    /// Whether the record is the first one to reach a half of its slice.
    reaches_half: bool,
}

#[derive(Debug)]
struct Piece {
    slot: Slot,
    offset: usize,
    length: usize,
}

pub(in crate::txn) fn key_of(stream: u8, slice: u64) -> Vec<u8> {
    [&[UNDO, stream][..], &slice.to_be_bytes()].concat()
}

/// Returns the stream and the slice of a system record's key.
pub(in crate::txn) fn slice_of(key: &[u8]) -> Option<(u8, u64)> {
    let [UNDO, stream, slice @ ..] = key else { return None };
    Some((*stream, u64::from_be_bytes(slice.try_into().ok()?)))
}

/// Returns the bytes of a slice, for a page size.
fn slice_bytes_of(page_size: usize) -> u64 {
    SLICE_PAGES * (page_size - DATA) as u64
}

/// Returns whether a stream may have a slice of this number, so that the following slices have positions, too.
pub(super) fn may_exist(slice: u64, page_size: usize) -> bool {
    slice < STREAM_BYTES / slice_bytes_of(page_size)
}

impl Stream {
    /// Returns a stream with its existing slices.
    pub(in crate::txn) fn new(
        context: Arc<UndoContext>,
        number: u8,
        durability: Durability,
        slices: BTreeMap<u64, Arc<Space>>,
    ) -> Self {
        let slice_bytes = slice_bytes_of(context.pool.page_size());
        debug_assert!(
            slices.keys().all(|slice| may_exist(*slice, context.pool.page_size())),
            "a stream has a slice without a place in it"
        );
        let next = slices.last_key_value().map_or(BEGIN, |(slice, _)| (slice + 1) * slice_bytes);
        let newest = slices.last_key_value().map(|(slice, space)| (*slice, space.clone()));
        let oldest = slices.first_key_value().map_or(BEGIN, |(slice, _)| slice * slice_bytes);
        Self {
            context,
            number,
            durability,
            slices: Mutex::new(Rank::Leaf, slices),
            tail: Mutex::new(Rank::Undo, End { next, newest, open: None, spare: Vec::new() }),
            end: AtomicU64::new(next),
            sealed: Mutex::new(Rank::Leaf, BTreeMap::new()),
            purge: StreamPurge::new(oldest),
            readers: Readers::default(),
        }
    }

    /// Returns its number.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Returns whether it is logged.
    pub fn durability(&self) -> Durability {
        self.durability
    }

    fn page_bytes(&self) -> u64 {
        (self.context.pool.page_size() - DATA) as u64
    }

    /// Returns the bytes per slice.
    pub(in crate::txn) fn slice_bytes(&self) -> u64 {
        slice_bytes_of(self.context.pool.page_size())
    }

    /// Returns the summary of a slice; `None` for one that is being written, or was written by another process.
    pub(super) fn sealed(&self, slice: u64) -> Option<SliceSummary> {
        self.sealed.lock().get(&slice).copied()
    }

    /// Returns the undo position of a byte of this stream.
    pub(in crate::txn) fn undo_pos(&self, at: u64) -> UndoPos {
        undo_pos(self.number, at)
    }

    /// Returns the position of the next record.
    pub(in crate::txn) fn end(&self) -> u64 {
        self.end.load(Acquire)
    }

    pub(super) fn space(&self, slice: u64) -> Option<Arc<Space>> {
        self.slices.lock().get(&slice).cloned()
    }

    /// Returns the slices, oldest first.
    pub fn slices(&self) -> Vec<(u64, SpaceId)> {
        self.slices.lock().iter().map(|(slice, space)| (*slice, space.id())).collect()
    }

    /// Returns the tablespaces of its slices while none is being created or dropped.
    pub(super) fn stable_slices(&self) -> impl Iterator<Item = SpaceId> {
        let _dropping = self.purge.state.lock();
        let _making = self.lock();
        self.slices().into_iter().map(|(_, space)| space)
    }

    /// Returns whether no record of a table before this position is still to be purged, or can still be rolled back.
    /// Waits for the current step of purge.
    pub(in crate::txn) fn is_purged_of(&self, table: SpaceId, before: u64) -> bool {
        self.purge.is_done_with(table, before)
    }

    /// Schedules the purge of the records of a transaction that purge had skipped and that has ended.
    pub(in crate::txn) fn schedule_walk(&self, trx: TrxId, last: UndoPos) {
        self.purge.schedule_walk(trx, last);
    }

    /// Checks the progress of purge.
    ///
    /// # Panics
    /// An invariant is violated.
    #[cfg(any(test, feature = "testing"))]
    pub(in crate::txn) fn check_invariants(&self) {
        self.purge.check_invariants(|| self.end());
    }

    /// Returns the bytes that wait for purge.
    pub fn behind(&self) -> u64 {
        self.end().saturating_sub(self.purge.state.lock().at)
    }

    /// Waits for the right to append. Must be called without a latch.
    pub fn lock(&self) -> Appender<'_> {
        Appender { stream: self, end: self.tail.lock() }
    }

    /// Returns whether no thread is appending.
    pub(in crate::txn) fn is_free(&self) -> bool {
        self.tail.try_lock().is_some()
    }

    /// Returns whether the newest slice is half full, and no thread is appending.
    pub(in crate::txn) fn needs_next_slice(&self) -> bool {
        self.tail.try_lock().is_some_and(|end| self.is_half_full(&end))
    }

    fn is_half_full(&self, end: &End) -> bool {
        let (in_use, within) = (end.next / self.slice_bytes(), end.next % self.slice_bytes());
        within >= self.slice_bytes() / 2 && end.newest.as_ref().is_some_and(|(newest, _)| *newest == in_use)
    }

    /// Creates the next slice in advance, if the newest one is half full and no thread is appending: a new writer
    /// meanwhile picks another stream. Must be called without a latch.
    ///
    /// # Errors
    /// As [`Appender::reserve`].
    pub(in crate::txn) fn create_next_slices(&self) -> Result<()> {
        let Some(mut end) = self.tail.try_lock() else { return Ok(()) };
        if self.is_half_full(&end) {
            let next = end.next / self.slice_bytes() + 1;
            end.newest = Some((next, self.make_slice(next)?));
        }
        Ok(())
    }

    fn damaged(&self, at: u64, what: &str) -> Error {
        let what = format!("undo stream {} at byte {at}: {what}", self.number);
        match self.space(at / self.slice_bytes()) {
            Some(space) => {
                let (owner, space) = (Owner::Unknown, space.id());
                CorruptError::Structure { owner, space, what: what.into() }.into()
            }
            // The system tree has the records of the slices.
            None => self.context.system.damaged(&what),
        }
    }

    /// Returns the slice, the page, and the offset in the page's bytes.
    pub(super) fn locate(&self, at: u64) -> (u64, PageNo, usize) {
        let in_slice = at % self.slice_bytes();
        (
            at / self.slice_bytes(),
            PageNo((in_slice / self.page_bytes()) as u32),
            (in_slice % self.page_bytes()) as usize,
        )
    }

    /// Returns the record at a position. `None` if one of its slices was dropped: the record was purged.
    ///
    /// # Errors
    /// Damage, I/O.
    pub(in crate::txn) fn record(&self, at: u64) -> Result<Option<Stored>> {
        self.record_from(StreamReader { stream: self, at, page: None })
    }

    fn record_from(&self, mut reader: StreamReader<'_>) -> Result<Option<Stored>> {
        let at = reader.at;
        let mut bytes = Vec::new();
        if !reader.read(HEAD, &mut bytes)? {
            return Ok(None);
        }
        let length = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
        let rolled_back = bytes[4] == ROLLED_BACK;
        if !(HEAD..=MAX_RECORD_BYTES).contains(&length) {
            return Err(self.damaged(at, "a record has no sensible length"));
        }
        bytes.clear();
        bytes.reserve_exact(length - HEAD);
        if !reader.read(length - HEAD, &mut bytes)? {
            return Ok(None);
        }
        Ok(Some(Stored { rolled_back, bytes, next: at + length as u64 }))
    }

    /// Decodes a record that was read at a position.
    ///
    /// # Errors
    /// Damage.
    pub(in crate::txn) fn decode(&self, at: u64, stored: &Stored) -> Result<UndoRecord> {
        UndoRecord::decode(&stored.bytes).map_err(|what| self.damaged(at, what))
    }

    /// Returns the transaction of a record that was read at a position.
    ///
    /// # Errors
    /// Damage.
    pub(in crate::txn) fn trx_of(&self, at: u64, stored: &Stored) -> Result<TrxId> {
        UndoRecord::trx_of(&stored.bytes).map_err(|what| self.damaged(at, what))
    }

    /// Returns the first record at or after a position, and its position. `at` must be the end of a record or the start
    /// of a slice. Skips dropped slices, and records that are partly in such a slice: they were purged. Returns
    /// `None` at the end.
    ///
    /// # Errors
    /// Damage, I/O.
    pub(in crate::txn) fn next_record(&self, mut at: u64) -> Result<Option<(u64, Stored)>> {
        loop {
            if at >= self.end() {
                return Ok(None);
            }
            let (slice, page, offset) = self.locate(at);
            let found = self.slices.lock().range(slice..).next().map(|(n, space)| (*n, space.clone()));
            let Some((existing, space)) = found else { return Ok(None) };
            let reader = if at.is_multiple_of(self.slice_bytes()) || existing != slice {
                let first = self.first_record(existing, &space)?;
                if first.is_some_and(|first| first >= self.end()) {
                    // A record that is being written does not count yet.
                    return Ok(None);
                }
                first.map(|at| StreamReader { stream: self, at, page: None })
            } else {
                let page = self.context.pool.share(&space, page, Access::Scan)?;
                let is_there = offset < page.page().u16(USED) as usize;
                is_there.then_some(StreamReader { stream: self, at, page: Some(page) })
            };
            if let Some(reader) = reader {
                let at = reader.at;
                if let Some(stored) = self.record_from(reader)? {
                    return Ok(Some((at, stored)));
                }
            }
            at = (existing + 1) * self.slice_bytes();
        }
    }

    /// Reads the rest of the slice from this position on into the pool, so that a scan waits only once. Does nothing
    /// for the slice that is being written. A failed read is repeated, and reported, by the scan.
    pub(in crate::txn) fn read_ahead(&self, at: u64) {
        let (slice, first, _) = self.locate(at);
        if slice >= self.end() / self.slice_bytes() {
            return;
        }
        let Some(space) = self.space(slice) else { return };
        let wanted: Vec<_> =
            (first.0..SLICE_PAGES as u32).map(|page| (space.clone(), PageNo(page))).collect();
        let pool = &self.context.pool;
        if let Err(error) = pool.read_ahead(&mut *pool.context().disk.queue(), &wanted) {
            tracing::debug!(target: "windfall::undo", %error, "undo was not read ahead");
        }
    }

    fn first_record(&self, slice: u64, space: &Arc<Space>) -> Result<Option<u64>> {
        for page in 0..SLICE_PAGES {
            let shared = self.context.pool.share(space, PageNo(page as u32), Access::Scan)?;
            let (used, first) = (shared.page().u16(USED), shared.page().u16(FIRST));
            if first > 0 {
                let base = slice * self.slice_bytes() + page * self.page_bytes();
                return Ok(Some(base + u64::from(first) - 1));
            }
            if used == 0 {
                break;
            }
        }
        Ok(None)
    }

    /// Latches the page for the mark that a record is undone, in the mini-transaction that undoes it. Undo pages are
    /// latched after trees.
    ///
    /// # Errors
    /// I/O. The mini-transaction is unchanged then.
    pub(in crate::txn) fn latch_mark(&self, mtr: &mut Mtr<'_>, at: u64) -> Result<(Slot, PageOp<'static>)> {
        debug_assert!(at < self.end(), "a record is marked that the stream does not have");
        let (slice, page, offset) = self.locate(at + 4);
        let space =
            self.space(slice).ok_or_else(|| self.damaged(at, "the slice of a record in use is missing"))?;
        let slot = mtr.latch(&space, page)?;
        Ok((slot, PageOp::Write { at: (DATA + offset) as u32, bytes: &[ROLLED_BACK] }))
    }

    /// Drops a slice as a whole: its record in the system tree and its tablespace, in one log group. The newest slice
    /// is not dropped.
    ///
    /// # Errors
    /// I/O; nothing has changed then.
    pub(in crate::txn) fn drop_slice(&self, slice: u64) -> Result<bool> {
        let space = {
            let slices = self.slices.lock();
            match slices.get(&slice) {
                Some(space) if slices.range(slice + 1..).next().is_some() => space.clone(),
                _ => return Ok(false),
            }
        };
        let mut end = None;
        let mut changes = [Change::remove(key_of(self.number, slice))];
        if self.durability == Durability::Logged {
            let mut mtr = Mtr::begin(&self.context.pool)?;
            self.context.system.change(&mut mtr, &mut changes)?;
            mtr.record(&Record::Drop { spaces: vec![space.id()].into() });
            end = mtr.commit()?;
        }
        let mut slices = self.slices.lock();
        let dropped = slices.remove(&slice);
        let has_newer = slices.range(slice..).next().is_some();
        drop(slices);
        assert!(dropped.is_some(), "a slice is dropped once");
        assert!(has_newer, "the newest slice of a stream is never dropped");
        self.sealed.lock().remove(&slice);
        self.context.pool.detach(&space, end);
        if self.durability == Durability::Logged {
            self.context.slices.fetch_sub(1, Relaxed);
            self.context.slice_dropped.notify();
        }
        Ok(true)
    }

    /// Creates a slice: its first page, then its record in the system tree. Between the two it is an unreferenced
    /// tablespace, which is removed after a crash like any other.
    fn make_slice(&self, slice: u64) -> Result<Arc<Space>> {
        let context = &self.context;
        let space = context.pool.attach(context.ids.space()?, self.durability);
        let made = self.format_slice(&space).and_then(|()| match self.durability {
            Durability::Temporary => Ok(()),
            Durability::Logged => self.register(slice, &space),
        });
        if made.is_err() {
            let mut end = None;
            if self.durability == Durability::Logged
                && let Ok(mut mtr) = Mtr::begin(&context.pool)
            {
                mtr.record(&Record::Drop { spaces: vec![space.id()].into() });
                end = mtr.commit()?;
            }
            context.pool.detach(&space, end);
        }
        made?;
        let mut slices = self.slices.lock();
        assert!(
            slices.last_key_value().is_none_or(|(newest, _)| *newest < slice),
            "slice {slice} of stream {} is created below an existing one",
            self.number
        );
        slices.insert(slice, space.clone());
        drop(slices);
        if self.durability == Durability::Logged {
            self.context.slices.fetch_add(1, Relaxed);
        }
        Ok(space)
    }

    fn format_slice(&self, space: &Arc<Space>) -> Result<()> {
        let mut mtr = Mtr::begin(&self.context.pool)?;
        let page = mtr.latch_fresh(space, PageNo::HEADER)?;
        mtr.apply(page, &PageOp::Format { kind: PageType::Undo, level: 0 });
        space.set_has_pages();
        mtr.commit()?;
        Ok(())
    }

    fn register(&self, slice: u64, space: &Space) -> Result<()> {
        let mut mtr = Mtr::begin(&self.context.pool)?;
        let record = Change::put(key_of(self.number, slice), space.id().0.to_le_bytes().to_vec());
        self.context.system.change(&mut mtr, &mut [record])?;
        mtr.commit()?;
        Ok(())
    }
}

/// Reads forward from a position, and keeps the current page.
struct StreamReader<'s> {
    stream: &'s Stream,
    at: u64,
    page: Option<SharedPage<'s>>,
}

impl StreamReader<'_> {
    /// Appends the next `length` bytes of the stream to `out`. Returns `false` if a slice of them was dropped.
    fn read(&mut self, length: usize, out: &mut Vec<u8>) -> Result<bool> {
        let stream = self.stream;
        let mut left = length;
        while left > 0 {
            let (slice, page, offset) = stream.locate(self.at);
            let shared = if let Some(page) = &self.page {
                page
            } else {
                let Some(space) = stream.space(slice) else { return Ok(false) };
                self.page.insert(stream.context.pool.share(&space, page, Access::Scan)?)
            };
            let used = shared.page().u16(USED) as usize;
            let n = left.min(stream.page_bytes() as usize - offset);
            if shared.page().page_type() != PageType::Undo as u8 || offset + n > used {
                return Err(stream.damaged(self.at, "a record is cut short"));
            }
            shared.page().append_to(DATA + offset, n, out);
            self.at += n as u64;
            left -= n;
            if offset + n == stream.page_bytes() as usize {
                self.page = None;
            }
        }
        Ok(true)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.durability == Durability::Temporary {
            for space in self.slices.lock().values() {
                self.context.pool.detach(space, None);
            }
        }
    }
}

impl Place {
    /// Returns the log that writing the record takes at most, in addition to its bytes.
    pub(crate) fn log_overhead(&self) -> usize {
        LOG_BYTES_PER_OPERATION * (self.pieces.len() + self.fresh.len())
    }
}

impl Appender<'_> {
    /// Returns the position of the next record.
    pub fn position(&self) -> UndoPos {
        self.stream.undo_pos(self.end.next)
    }

    /// Returns whether the stream is logged.
    pub fn durability(&self) -> Durability {
        self.stream.durability
    }

    /// Returns whether it is the end of this stream.
    pub fn is_of(&self, stream: &Stream) -> bool {
        core::ptr::eq(self.stream, stream)
    }

    /// Ensures that a record of up to `bytes` bytes has slices to be written to. Must be called without a latch.
    ///
    /// # Errors
    /// I/O, a full disk; nothing has changed then.
    pub fn reserve(&mut self, bytes: usize) -> Result<()> {
        let stream = self.stream;
        let last = (self.end.next + (HEAD + bytes) as u64) / stream.slice_bytes();
        let mut slice = match &self.end.newest {
            Some((newest, _)) => newest + 1,
            None => self.end.next / stream.slice_bytes(),
        };
        while slice <= last {
            self.end.newest = Some((slice, stream.make_slice(slice)?));
            slice += 1;
        }
        debug_assert!(
            self.end.newest.as_ref().is_some_and(|(newest, _)| *newest >= last),
            "the last slice of a reserved record does not exist"
        );
        Ok(())
    }

    /// Returns a buffer to which the next record is to be appended: it holds what comes before a record.
    pub fn new_record(&mut self) -> Vec<u8> {
        let mut record = core::mem::take(&mut self.end.spare);
        record.clear();
        record.resize(HEAD, 0);
        record
    }

    /// Latches the pages for a record of `bytes` bytes, which were reserved. The leaf is latched already.
    ///
    /// # Errors
    /// I/O. The mini-transaction is unchanged then.
    pub fn prepare(&mut self, mtr: &mut Mtr<'_>, bytes: usize) -> Result<Place> {
        let stream = self.stream;
        let mut place =
            Place { at: self.end.next, pieces: SmallVec::new(), fresh: Vec::new(), reaches_half: false };
        let mut at = self.end.next;
        let mut left = HEAD + bytes;
        while left > 0 {
            let (slice, page, offset) = stream.locate(at);
            let space =
                stream.space(slice).ok_or_else(|| stream.damaged(at, "its slice was not reserved"))?;
            let slot = mtr.latch(&space, page)?;
            place.reaches_half |= offset == 0 && u64::from(page.0).is_multiple_of(SLICE_PAGES / 2);
            if (offset == 0 || at == BEGIN) && u64::from(page.0) + 1 < SLICE_PAGES {
                place.fresh.push(mtr.latch_fresh(&space, PageNo(page.0 + 1))?);
            }
            let length = left.min(stream.page_bytes() as usize - offset);
            place.pieces.push(Piece { slot, offset, length });
            at += length as u64;
            left -= length;
        }
        debug_assert!(
            place.pieces.iter().map(|piece| piece.length).sum::<usize>() == HEAD + bytes,
            "the pieces of a place are as long as its record"
        );
        Ok(place)
    }

    /// Updates the summaries of the slices that hold a record.
    fn note(&mut self, at: u64, record: &[u8]) {
        let trx = UndoRecord::trx_of(record).expect("it was encoded just now");
        let leaves_nothing = UndoRecord::leaves_nothing(record);
        let [first, last] = [at, self.end.next - 1].map(|at| at / self.stream.slice_bytes());
        for slice in first..=last {
            let of = |seen: SliceSummary| SliceSummary {
                youngest: seen.youngest.max(trx),
                leaves_nothing: seen.leaves_nothing && leaves_nothing,
            };
            self.end.open = Some(match self.end.open.take() {
                Some((open, seen)) if open == slice => (slice, of(seen)),
                before => {
                    if let Some((full, seen)) = before {
                        debug_assert!(full < slice, "slices are filled in order");
                        self.stream.sealed.lock().insert(full, seen);
                    }
                    (slice, SliceSummary { youngest: trx, leaves_nothing })
                }
            });
        }
    }

    /// Writes a record into its place, from the buffer of [`Appender::new_record`]. Returns its position.
    pub fn write(&mut self, mtr: &mut Mtr<'_>, place: Place, mut bytes: Vec<u8>) -> UndoPos {
        debug_assert!(place.at == self.end.next, "a record is written at the end of its stream");
        debug_assert!(self.stream.end() == place.at, "readers see the end of the stream");
        debug_assert!(bytes.len() <= MAX_RECORD_BYTES, "a record would be read back as damaged");
        let length = (bytes.len() as u32).to_le_bytes();
        bytes[..length.len()].copy_from_slice(&length);
        for slot in place.fresh {
            mtr.apply(slot, &PageOp::Format { kind: PageType::Undo, level: 0 });
        }
        let mut rest = &bytes[..];
        for (n, piece) in place.pieces.iter().enumerate() {
            let (now, later) = rest.split_at(piece.length);
            rest = later;
            let write = PageOp::UndoWrite { at: piece.offset as u16, begins: n == 0, bytes: now };
            mtr.apply(piece.slot, &write);
        }
        debug_assert!(rest.is_empty(), "the place is as long as the record");
        self.end.next = place.at + bytes.len() as u64;
        let last = (self.end.next - 1) / self.stream.slice_bytes();
        debug_assert!(
            self.end.newest.as_ref().is_some_and(|(newest, _)| last <= *newest),
            "a record lies in slices that were reserved"
        );
        self.note(place.at, &bytes[HEAD..]);
        if bytes.capacity() <= KEPT_RECORD_BYTES_MAX {
            self.end.spare = bytes;
        }
        self.stream.end.store(self.end.next, Release);
        if place.reaches_half {
            // A full slice can be purged, or the next slice must be created.
            self.stream.context.purge_wake.notify();
        }
        self.stream.undo_pos(place.at)
    }
}
