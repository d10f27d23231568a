//! Segment files: mapping positions of the stream to files, and the files' life cycle.
//!
//! **Purpose.** The stream is cut into segments. Each is a file named by the LSN of its first byte, and begins with a
//! sealed header of 4 KiB, which is no part of the stream:
//!
//! | bytes | field |
//! | --- | --- |
//! | 0..8 | magic `WINDLOG1` |
//! | 8..12 | format version |
//! | 16..32 | uuid of the database |
//! | 32..40 | LSN of its first byte |
//! | 40..48 | segment size in bytes, header included |
//! | 4092..4096 | CRC-32C of bytes 0..4092 |
//!
//! A segment ends where it is full, or before that where the next one begins. So the segment of a position is the one
//! with the greatest start that is not above it. The *chain* is the segments from the low-water mark on: those in use,
//! and then those that are prepared ahead.
//!
//! **Sizes.** The first segment has [`SMALLEST_SEGMENT_BYTES`], and each further one twice the size of the one before,
//! up to the largest size, which the size of the log determines. A single large reservation gets a segment as large as
//! it needs. So a small database has a small log, and under load nearly all segments are of the largest size. The
//! background worker prepares segments by bytes (`space`): there may be none ahead while the current one has room.
//! Retired segments of the size that the next one will have are renamed and recycled; the others are removed.
//!
//! **The idle cut** ([`Segments::cut`]) makes the log small again. At a position where everything is written and
//! durable, it makes a segment of [`SMALLEST_SEGMENT_BYTES`] that begins there, durably, and only then removes the
//! segments ahead: at any time there is space for work that makes room (test:
//! `a_crash_during_a_cut_leaves_space_for_work_that_makes_room`). The current segment ends there, far below its size,
//! and is retired once the low-water mark reaches that position. A crash may leave any of these states, and each is a
//! correct log:
//!
//! | state | the next opening |
//! | --- | --- |
//! | the new segment has no valid header | removes it; the log continues in the old one and those ahead of it |
//! | the new segment is complete | takes it over, because it begins at the end of the log; removes those ahead |
//! | some segments ahead are removed, others are not | the same |
//!
//! A cut that fails removes the new segment, durably, before anything is written to the old one beyond it (test:
//! `a_cut_that_fails_leaves_the_log_as_it_was`). A file that could not be made a segment and could not be removed
//! begins at the end of the chain: the next segment replaces it, and a cut, after which other segments reach beyond it,
//! removes it first.
//!
//! **When a sync fails** the system may have dropped the pages that it could not write and marked the file clean: the
//! next sync of the file succeeds, and the bytes are lost all the same. So no sync is tried again. If a segment that
//! holds a part of the stream fails, the database stops (`writer`). A segment that is being prepared holds nothing yet:
//! its file is removed, and the next attempt begins with another file, every byte of which must be written again; until
//! then operations get the error. If the file cannot be removed, or if the sync of the folder fails, after which the
//! set of durable names is unknown, the database stops. The next opening reads bytes that may not be durable: so
//! everything above the position that was certainly durable is rewritten before it is synced.
//!
//! **Invariants.** Header and name of a segment are durable before the first frame is written to it (tests:
//! `a_segment_counts_only_once_it_is_durable`, `a_segment_that_is_taken_over_is_durable_before_it_is_used`). A recycled
//! segment gets its header under its old name, is synced, and is then renamed: a crash leaves no file with its new name
//! and an old header (test: `a_recycled_file_has_its_header_before_its_name`). Nothing is written at or above
//! `prepared_end`, the end of the chain (checked by `log/invariants.rs::check_invariants`). It falls only in a cut, and
//! a reservation that a cut does not see, sees that it has fallen: both store first and load afterwards, sequentially
//! consistently (test: `a_reservation_during_a_cut_is_kept_on_a_full_disk`). No other file has a name within the range
//! of a segment that is written (tests: `every_step_of_a_cut_may_be_the_last`,
//! `a_file_that_stayed_at_the_end_of_the_chain_is_removed_before_a_cut`).

use std::collections::{BTreeSet, VecDeque};

use super::{
    frame::{self, LOG_BLOCK_BYTES},
    space::EMERGENCY_RESERVE_BYTES,
};
use crate::{
    disk::{Disk, FileName, Folder},
    error::{CorruptError, DiskError, Error, Result},
    health::Health,
    ids::Lsn,
    sync::{
        Arc, Mutex, Rank,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

const MAGIC: &[u8; 8] = b"WINDLOG1";
const VERSION: u32 = 2;
/// The size of the first segment, if the largest is not smaller, and of one that a cut makes, in bytes: room for the
/// bytes kept for work that makes room (`space`), and for a few small changes.
pub(super) const SMALLEST_SEGMENT_BYTES: u64 = 128 << 10;
/// The limit of a segment's size, in bytes.
pub(super) const SEGMENT_BYTES_LIMIT: u64 = 1 << 40;
/// Positions are below this: far beyond what any log reaches, so sums of positions and lengths do not overflow.
pub(super) const LSN_LIMIT: u64 = 1 << 62;
/// Retired segments of the next size that are kept for recycling; more are removed.
const SEGMENTS_TO_RECYCLE: usize = 2;
/// The maximum length of one rewrite, in bytes.
const REWRITE_BYTES: u64 = 1 << 20;
const BLOCK: u64 = LOG_BLOCK_BYTES as u64;
const _: () =
    assert!(SMALLEST_SEGMENT_BYTES > EMERGENCY_RESERVE_BYTES + BLOCK, "no cut would have the bytes kept");

/// A segment file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// The position of its first byte.
    pub(super) start: Lsn,
    /// The size of the file in bytes, header included.
    pub(super) size: u64,
}

impl Segment {
    pub(super) fn file(self) -> FileName {
        FileName::Log(self.start.0)
    }

    /// Returns the position behind its last byte, if the next segment does not begin before that.
    pub(super) fn end(self) -> Lsn {
        Lsn(self.start.0 + self.size.saturating_sub(BLOCK))
    }

    /// Returns the offset of a position in the file.
    pub(super) fn offset(self, at: Lsn) -> u64 {
        debug_assert!(self.start <= at && at <= self.end(), "the position {at} is not in {self:?}");
        BLOCK + at.0 - self.start.0
    }

    /// Returns the number of bytes from a position to the end.
    pub(super) fn left(self, at: Lsn) -> u64 {
        self.end().0.saturating_sub(at.0)
    }

    pub(super) fn header(self, uuid: &[u8; 16]) -> [u8; LOG_BLOCK_BYTES] {
        let mut block = [0; LOG_BLOCK_BYTES];
        block[..8].copy_from_slice(MAGIC);
        block[8..12].copy_from_slice(&VERSION.to_le_bytes());
        block[16..32].copy_from_slice(uuid);
        block[32..40].copy_from_slice(&self.start.0.to_le_bytes());
        block[40..48].copy_from_slice(&self.size.to_le_bytes());
        frame::seal(&mut block);
        block
    }

    /// Reads the header of the segment that begins at a position. Returns the segment, or what is wrong with it.
    pub(super) fn read(
        disk: &dyn Disk,
        uuid: &[u8; 16],
        start: Lsn,
    ) -> Result<Result<Self, &'static str>, DiskError> {
        let mut found = [0; LOG_BLOCK_BYTES];
        match disk.read(FileName::Log(start.0), 0, &mut found) {
            Err(DiskError::Missing { .. }) => return Ok(Err("the segment is missing")),
            other => other?,
        };
        let size = u64::from_le_bytes(core::array::from_fn(|n| found[40 + n]));
        let segment = Self { start, size };
        Ok(if !frame::sealed(&found) || !found.starts_with(MAGIC) {
            Err("the header of the segment is damaged")
        } else if found[16..32] != uuid[..] {
            Err("the segment belongs to another database")
        } else if found != segment.header(uuid) || !is_possible_size(size) {
            Err("the header of the segment is not that of this segment")
        } else {
            Ok(segment)
        })
    }
}

/// Returns whether a segment can have this size, in bytes.
pub(super) fn is_possible_size(size: u64) -> bool {
    size > BLOCK && size.is_multiple_of(BLOCK) && size <= SEGMENT_BYTES_LIMIT
}

/// Returns the segment files in the order of their starts. The sizes are the lengths of the files.
pub(super) fn list(disk: &dyn Disk) -> Result<Vec<Segment>, DiskError> {
    let mut found = Vec::new();
    for file in disk.list(Folder::Log)? {
        if let FileName::Log(start) = file
            && start < LSN_LIMIT
            && let Some(size) = disk.len(file)?
        {
            found.push(Segment { start: Lsn(start), size: size.min(SEGMENT_BYTES_LIMIT) });
        }
    }
    found.sort_unstable_by_key(|segment| segment.start);
    Ok(found)
}

/// Returns the index of the segment that contains a position, if it reaches that far, and of the one before it if not.
/// `None` if all begin above it.
pub(super) fn find(segments: &[Segment], at: Lsn) -> Option<usize> {
    segments.partition_point(|segment| segment.start <= at).checked_sub(1)
}

/// Returns the name of the segment file that contains a position, or should.
pub fn file_of(disk: &dyn Disk, at: Lsn) -> FileName {
    let all = list(disk).unwrap_or_default();
    find(&all, at).map_or(FileName::Log(at.0), |n| all[n].file())
}

/// The outcome of a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// The log continues in a segment of the smallest size.
    Small,
    /// Nothing was done: more is reserved than a segment of the smallest size has.
    Reserved,
    /// Nothing was done: a segment begins at the end of the log.
    BetweenSegments,
}

/// What the mutex of the files protects, apart from the files themselves.
#[derive(Debug)]
pub(super) struct Files {
    /// Segments below the low-water mark that still have files.
    pub(super) retired: Vec<Segment>,
}

/// Takes over the segment that begins at a position above the end of the log, if it is a valid one.
fn take_over(disk: &dyn Disk, uuid: &[u8; 16], start: Lsn) -> Result<Option<Segment>, DiskError> {
    let Ok(segment) = Segment::read(disk, uuid, start)? else { return Ok(None) };
    // As for the rest of the log: its sync may have failed, and readable bytes need not be durable.
    if disk.len(segment.file())? != Some(segment.size)
        || disk.write(segment.file(), 0, &segment.header(uuid)).is_err()
    {
        return Ok(None);
    }
    disk.sync(segment.file())?;
    Ok(Some(segment))
}

/// Rewrites a part of the stream in place.
fn write_again(disk: &dyn Disk, chain: &VecDeque<Segment>, from: Lsn, end: Lsn) -> Result<(), DiskError> {
    assert!(from <= end, "the log ends below the position that was durable");
    let (mut at, mut bytes) = (from, Vec::new());
    while at < end {
        let missing = |at: Lsn| DiskError::Missing { path: disk.path(FileName::Log(at.0)) };
        let (segment, limit) = locate(chain, at).filter(|(_, limit)| at < *limit).ok_or(missing(at))?;
        let (file, offset) = (segment.file(), segment.offset(at));
        bytes.resize((end.min(limit).0 - at.0).min(REWRITE_BYTES) as usize, 0);
        let read = disk.read(file, offset, &mut bytes)?;
        if read < bytes.len() {
            return Err(missing(segment.start));
        }
        disk.write(file, offset, &bytes)?;
        at.0 += read as u64;
    }
    assert!(at == end, "another part of the log was rewritten");
    Ok(())
}

/// Returns the segment of a chain that contains a position, and where its part of the stream ends. The position may be
/// that end, if no segment begins there.
fn locate(chain: &VecDeque<Segment>, at: Lsn) -> Option<(Segment, Lsn)> {
    let after = chain.partition_point(|segment| segment.start <= at);
    let segment = *chain.get(after.checked_sub(1)?)?;
    let limit = chain.get(after).map_or(segment.end(), |next| next.start.min(segment.end()));
    Some((segment, limit))
}

/// The segment files.
#[derive(Debug)]
pub(super) struct Segments {
    disk: Arc<dyn Disk>,
    health: Health,
    uuid: [u8; 16],
    /// The size of the largest segments, in bytes.
    largest: u64,
    /// The log can be written below this position. Zero during a cut.
    prepared_end: AtomicU64,
    /// The segments from the low-water mark on. Changed under `files` alone; a separate mutex, so that the writer does
    /// not wait while files are made and removed.
    pub(super) chain: Mutex<VecDeque<Segment>>,
    /// Held while files are made, removed and retired.
    pub(super) files: Mutex<Files>,
}

impl Segments {
    /// Takes over the files of a log that is needed from `low_water_mark` on, was certainly durable up to `known`, and
    /// ends at `end`. Makes the range in between durable. Above it are segments that were prepared for reservations.
    /// The rollback of unfinished transactions now requests that space again, perhaps on a full disk. So these segments
    /// are kept as far as they are valid. Further ones have at most `largest` bytes, header included.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        health: Health,
        uuid: [u8; 16],
        largest: u64,
        low_water_mark: Lsn,
        known: Lsn,
        end: Lsn,
    ) -> Result<Self> {
        assert!(is_possible_size(largest), "segments of {largest} bytes are impossible");
        assert!(low_water_mark <= known, "the low-water mark is above the position that was durable");
        let all = list(&*disk)?;
        // A segment that begins at the end of the log holds nothing yet, and one that ends at the low-water mark is
        // needed no more.
        let is_below = |segment: &Segment| segment.start < low_water_mark && segment.end() <= low_water_mark;
        let first = find(&all, low_water_mark).map_or(0, |n| n + usize::from(is_below(&all[n])));
        let in_use = first..all.partition_point(|segment| segment.start < end).max(first);
        let mut chain = VecDeque::new();
        for Segment { start, .. } in &all[in_use.clone()] {
            // The reader of the log has accepted it.
            let segment = Segment::read(&*disk, &uuid, *start)?.map_err(|what| CorruptError::Log {
                file: disk.path(FileName::Log(start.0)),
                lsn: *start,
                what: what.into(),
            })?;
            chain.push_back(segment);
        }
        // A sync of an earlier process may have failed: its bytes would stay readable and never become durable.
        write_again(&*disk, &chain, known, end)?;
        chain.iter().try_for_each(|segment| disk.sync(segment.file()))?;
        let retired = all[..first].to_vec();
        let mut removed: BTreeSet<FileName> = disk.list(Folder::Log)?.into_iter().collect();
        for segment in chain.iter().chain(&retired) {
            removed.remove(&segment.file());
        }
        // A cut may have made a segment that begins right at the end.
        let mut next = take_over(&*disk, &uuid, end)?;
        let prepared = chain.back().map_or(end, |last| last.end());
        if next.is_none() && prepared > end {
            next = take_over(&*disk, &uuid, prepared)?;
        }
        while let Some(segment) = next {
            removed.remove(&segment.file());
            chain.push_back(segment);
            next = take_over(&*disk, &uuid, segment.end())?;
        }
        removed.into_iter().try_for_each(|file| disk.remove(file))?;
        disk.sync_folder(Folder::Log)?;
        let prepared_end = AtomicU64::new(chain.back().map_or(end, |last| last.end()).0);
        let chain = Mutex::new(Rank::Leaf, chain);
        let files = Mutex::new(Rank::LogFiles, Files { retired });
        Ok(Self { disk, health, uuid, largest, prepared_end, chain, files })
    }

    /// Returns whether the log can be written at once below this position.
    pub(super) fn is_ready(&self, upto: Lsn) -> bool {
        self.prepared_end.load(SeqCst) >= upto.0
    }

    /// Prepares segments until the log can be written below this position.
    pub(super) fn ready(&self, upto: Lsn) -> Result<()> {
        while !self.is_ready(upto) {
            self.prepare(upto)?;
        }
        Ok(())
    }

    /// Returns the segment that contains a position below the end of the chain.
    pub(super) fn locate(&self, at: Lsn) -> Segment {
        let found = locate(&self.chain.lock(), at);
        debug_assert!(found.is_some_and(|(_, limit)| at < limit), "no segment is prepared at {at}");
        found.map_or(Segment { start: at, size: self.largest }, |(segment, _)| segment)
    }

    /// Returns the number of bytes that are to be prepared beyond the end of the log, apart from reservations.
    pub(super) fn wanted_ahead(&self, end: Lsn) -> u64 {
        locate(&self.chain.lock(), end).map_or(0, |(segment, _)| self.wanted_ahead_in(segment))
    }

    /// As [`Segments::wanted_ahead`], while the log ends in this segment: half of it. So a small one, once half full,
    /// is followed by a larger one before it is full. One from a time of larger segments counts as one of today.
    pub(super) fn wanted_ahead_in(&self, current: Segment) -> u64 {
        current.size.min(self.largest) / 2
    }

    /// Returns the size of all segments of the chain, in bytes.
    pub(super) fn total(&self) -> u64 {
        self.chain.lock().iter().map(|segment| segment.size).sum()
    }

    /// Returns the segment to be prepared next, if the log is to be written up to this position.
    fn next(&self, upto: Lsn) -> Segment {
        let last = self.chain.lock().back().copied();
        let start = last.map_or_else(|| Lsn(self.prepared_end.load(SeqCst)), Segment::end);
        let doubled = last.map_or(0, |last| last.size * 2);
        let asked =
            upto.0.saturating_sub(start.0).saturating_add(BLOCK).min(self.largest).next_power_of_two();
        Segment { start, size: doubled.max(SMALLEST_SEGMENT_BYTES).max(asked).min(self.largest) }
    }

    /// Prepares the next segment if the log cannot be written up to this position. Returns whether it did.
    pub(super) fn prepare(&self, upto: Lsn) -> Result<bool> {
        let mut files = self.files.lock();
        if self.is_ready(upto) {
            return Ok(false);
        }
        let next = self.next(upto);
        // Only a file of full size is recycled: another one would not have its space reserved.
        let again = match files.retired.iter().rposition(|old| old.size == next.size) {
            Some(n) if self.disk.len(files.retired[n].file())? == Some(next.size) => {
                Some(files.retired.remove(n))
            }
            _ => None,
        };
        assert!(again.is_none_or(|old| old.start < next.start), "a segment is recycled that may be needed");
        if let Err(error) = self.make(next, again) {
            // It may already have its new name. If it stays there, the next attempt or a cut replaces or removes it.
            self.remove_unusable(next, &error)?;
            if let Some(old) = again
                && !self.remove_unusable(old, &error)?
            {
                files.retired.push(old);
            }
            return Err(error.into());
        }
        self.sync_folder()?;
        debug_assert!(!files.retired.contains(&next), "{next:?} is prepared and may be removed");
        self.chain.lock().push_back(next);
        self.prepared_end.store(next.end().0, SeqCst);
        Ok(true)
    }

    fn sync_folder(&self) -> Result<()> {
        self.disk.sync_folder(Folder::Log).map_err(|error| self.health.poison(&error.to_string()))
    }

    /// Creates a segment, out of an old file if one is to be recycled.
    fn make(&self, new: Segment, again: Option<Segment>) -> Result<(), DiskError> {
        let (name, header) = (new.file(), new.header(&self.uuid));
        if let Some(old) = again.map(Segment::file) {
            self.disk.write(old, 0, &header)?;
            self.disk.sync(old)?;
            return self.disk.rename(old, name);
        }
        self.disk.create(name)?;
        self.disk.preallocate(name, 0, new.size)?;
        self.disk.write(name, 0, &header)?;
        self.disk.sync(name)
    }

    /// Removes a file that could not be made a segment. Returns whether it is removed; it must be if its sync failed.
    fn remove_unusable(&self, segment: Segment, error: &DiskError) -> Result<bool> {
        match self.remove(segment) {
            Ok(()) => Ok(true),
            Err(stays) if error.is_sync_failure() => {
                Err(self.health.poison(&format!("{error}; and then: {stays}")))
            }
            Err(_) => Ok(false),
        }
    }

    /// Removes a file, if it is there.
    fn remove(&self, segment: Segment) -> Result<(), DiskError> {
        match self.disk.remove(segment.file()) {
            Err(DiskError::Missing { .. }) => Ok(()),
            done => done,
        }
    }

    /// Ends the current segment at a position, the end of the log, where everything is written and durable, and
    /// continues with one of the smallest size, unless it and those ahead are as small, and few. The caller is the
    /// writer of the log. `needed` returns the end of the reserved range.
    ///
    /// # Errors
    /// I/O: the chain is as it was, perhaps with fewer segments ahead, but still up to `needed`. If that is impossible,
    /// because a file that has to be removed stays, the database stops.
    pub(super) fn cut(&self, at: Lsn, needed: &dyn Fn() -> Lsn) -> Result<Cut> {
        let _files = self.files.lock();
        let new = Segment { start: at, size: SMALLEST_SEGMENT_BYTES };
        let (is_small, ahead) = {
            let chain = self.chain.lock();
            let in_use = chain.partition_point(|segment| segment.start < at);
            let rest = || chain.range(in_use.saturating_sub(1)..).map(|segment| segment.size);
            let is_small = rest().all(|size| size <= new.size) && rest().sum::<u64>() <= 2 * new.size;
            (is_small, chain.range(in_use..).copied().collect::<Vec<_>>())
        };
        if is_small {
            return Ok(Cut::Small);
        }
        if ahead.first().is_some_and(|next| next.start == at) {
            return Ok(Cut::BetweenSegments);
        }
        // A reservation adds itself first and loads this afterwards: what is not counted in `needed` has to wait.
        self.prepared_end.store(0, SeqCst);
        let reserved = needed();
        let done = if reserved <= new.end() {
            self.replace_ahead(new, &ahead, reserved).map(|()| Cut::Small)
        } else {
            Ok(Cut::Reserved)
        };
        let end = self.chain.lock().back().map_or(at, |last| last.end());
        self.prepared_end.store(end.0, SeqCst);
        done
    }

    /// Makes the segment with which the log continues at its end, and then removes those ahead: the last one first, so
    /// that the rest is a chain at any time. `reserved` is the end of the reserved range.
    fn replace_ahead(&self, new: Segment, ahead: &[Segment], reserved: Lsn) -> Result<()> {
        let end = || self.chain.lock().back().map_or(new.start, |last| last.end());
        // Later segments will reach beyond the end of the chain, where a file may be that could not be made a segment.
        self.remove(Segment { start: end(), size: 0 })?;
        if let Err(error) = self.make(new, None) {
            return Err(self.undo_cut(new, error));
        }
        // Before those ahead go: a crash must leave the new segment, or the space that they have.
        self.sync_folder()?;
        for segment in ahead.iter().rev() {
            if let Err(error) = self.remove(*segment) {
                let error = self.undo_cut(new, error);
                return Err(if end() < reserved { self.health.poison(&error.to_string()) } else { error });
            }
            let last = self.chain.lock().pop_back();
            debug_assert!(last == Some(*segment), "{last:?} is ahead, and not {segment:?}");
        }
        self.sync_folder()?;
        self.chain.lock().push_back(new);
        Ok(())
    }

    /// Removes the new segment of a cut that has failed: the log continues in the old one, within which no other one
    /// may begin. Returns the error.
    fn undo_cut(&self, new: Segment, error: DiskError) -> Error {
        if let Err(stays) = self.remove(new) {
            return self.health.poison(&format!("{error}; and then: {stays}"));
        }
        self.sync_folder().err().unwrap_or_else(|| error.into())
    }

    /// Retires the segments that are wholly below the low-water mark.
    pub(super) fn retire(&self, low_water_mark: Lsn) {
        let mut files = self.files.lock();
        let mut chain = self.chain.lock();
        while chain.get(1).is_some_and(|next| next.start <= low_water_mark) {
            files.retired.extend(chain.pop_front());
        }
    }

    /// Removes one file that is not needed now or soon. Returns whether there was one. A file that could not be
    /// removed moves to the end of the list: it is recycled, or removed later.
    pub(super) fn remove_one(&self) -> Result<bool> {
        let mut files = self.files.lock();
        let next = self.next(Lsn::ZERO).size;
        let mut fit = 0;
        let is_kept = |old: &Segment| {
            fit += usize::from(old.size == next);
            old.size == next && fit <= SEGMENTS_TO_RECYCLE
        };
        let kept: Vec<bool> = files.retired.iter().rev().map(is_kept).collect();
        let Some(n) = kept.iter().rev().position(|kept| !kept) else { return Ok(false) };
        let old = files.retired.remove(n);
        assert!(
            self.chain.lock().front().is_none_or(|first| old.start < first.start),
            "{old:?} is removed and may be needed"
        );
        match self.remove(old) {
            Ok(()) => Ok(true),
            Err(error) => {
                files.retired.push(old);
                Err(error.into())
            }
        }
    }
}
