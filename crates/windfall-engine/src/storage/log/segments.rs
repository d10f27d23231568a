//! Segment files: mapping positions of the stream to files, and the files' life cycle.
//!
//! **Purpose.** The stream is cut into segments of a fixed size, numbered from 0. Each begins with a sealed header of
//! 4 KiB:
//!
//! | bytes | field |
//! | --- | --- |
//! | 0..8 | magic `WINDLOG1` |
//! | 8..12 | format version |
//! | 16..32 | uuid of the database |
//! | 32..40 | number of the segment |
//! | 40..48 | LSN of its first byte |
//! | 48..56 | segment size in bytes, header included |
//! | 4092..4096 | CRC-32C of bytes 0..4092 |
//!
//! Segments are prepared ahead, with their space preallocated; those below the low-water mark are renamed and
//! recycled.
//!
//! **When a sync fails** the system may have dropped the pages that it could not write and marked the file clean: the
//! next sync of the file succeeds, and the bytes are lost all the same. So no sync is tried again. If a segment that
//! holds a part of the stream fails, the database stops (`writer`). A segment that is being prepared holds nothing
//! yet: its file is removed, and the next attempt begins with another file, every byte of which must be written again;
//! until then operations get the error. If the file cannot be removed, or if the sync of the folder fails, after which
//! the set of durable names is unknown, the database stops. The next opening reads bytes that may not be durable: so
//! everything above the position that was certainly durable is rewritten before it is synced.
//!
//! **Invariants.** Header and name of a segment are durable before the first frame is written to it. A recycled segment
//! gets its header under its old name, is synced, and is then renamed: a file with a wrong header is never found under
//! the number of a segment in use.

use std::collections::BTreeSet;

use super::frame::{self, LOG_BLOCK_BYTES};
use crate::{
    disk::{Disk, FileName, Folder},
    error::{DiskError, Result},
    health::Health,
    ids::Lsn,
    sync::{
        Arc, Mutex, Rank,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

const MAGIC: &[u8; 8] = b"WINDLOG1";
const VERSION: u32 = 1;
/// Segments below the low-water mark kept for recycling; more are removed.
const SEGMENTS_TO_RECYCLE: usize = 2;
/// The maximum length of one rewrite, in bytes.
const REWRITE_BYTES: u64 = 1 << 20;

/// The arithmetic of positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    segment_size: u64,
}

/// Returns the number of the segment that contains a position.
pub fn segment_of(segment_size: u64, at: Lsn) -> u64 {
    Geometry::new(segment_size).number(at)
}

impl Geometry {
    /// Returns the arithmetic for segments of this many bytes, header included: a multiple of 4 KiB, and more than 4
    /// KiB.
    pub(super) fn new(segment_size: u64) -> Self {
        let block = LOG_BLOCK_BYTES as u64;
        assert!(segment_size > block && segment_size.is_multiple_of(block), "a segment of impossible size");
        Self { segment_size }
    }

    fn room(self) -> u64 {
        self.segment_size - LOG_BLOCK_BYTES as u64
    }

    /// Returns the number of the segment that contains a position.
    pub(super) fn number(self, at: Lsn) -> u64 {
        at.0 / self.room()
    }

    /// Returns the first position of a segment; the last possible one when there is no such segment.
    pub(super) fn start(self, number: u64) -> Lsn {
        Lsn(number.saturating_mul(self.room()))
    }

    /// Returns the offset of a position in its file.
    pub(super) fn offset(self, at: Lsn) -> u64 {
        LOG_BLOCK_BYTES as u64 + at.0 % self.room()
    }

    /// Returns the number of bytes from a position to the end of its segment.
    pub(super) fn left(self, at: Lsn) -> u64 {
        self.room() - at.0 % self.room()
    }

    pub(super) fn header(self, uuid: &[u8; 16], number: u64) -> [u8; LOG_BLOCK_BYTES] {
        let mut block = [0; LOG_BLOCK_BYTES];
        block[..8].copy_from_slice(MAGIC);
        block[8..12].copy_from_slice(&VERSION.to_le_bytes());
        block[16..32].copy_from_slice(uuid);
        block[32..40].copy_from_slice(&number.to_le_bytes());
        block[40..48].copy_from_slice(&self.start(number).0.to_le_bytes());
        block[48..56].copy_from_slice(&self.segment_size.to_le_bytes());
        frame::seal(&mut block);
        block
    }

    /// Checks a segment's header and returns what is wrong with it, if anything.
    pub(super) fn check(
        self,
        disk: &dyn Disk,
        uuid: &[u8; 16],
        number: u64,
    ) -> Result<Option<&'static str>, DiskError> {
        let mut found = [0; LOG_BLOCK_BYTES];
        match disk.read(FileName::Log(number), 0, &mut found) {
            Err(DiskError::Missing { .. }) => return Ok(Some("the segment is missing")),
            other => other?,
        };
        Ok(if found == self.header(uuid, number) {
            None
        } else if !frame::sealed(&found) || !found.starts_with(MAGIC) {
            Some("the header of the segment is damaged")
        } else if found[16..32] != uuid[..] {
            Some("the segment belongs to another database")
        } else {
            Some("the header of the segment is not that of this segment")
        })
    }
}

#[derive(Debug)]
pub(super) struct Files {
    /// The lowest number of a segment that may still be needed.
    pub(super) first: u64,
    /// Numbers of segments below the low-water mark that still have files.
    pub(super) retired: Vec<u64>,
}

/// Takes over a segment above the end of the log. Returns whether it was a valid one.
fn take_over(disk: &dyn Disk, geometry: Geometry, uuid: &[u8; 16], number: u64) -> Result<bool, DiskError> {
    let file = FileName::Log(number);
    if disk.len(file)? != Some(geometry.segment_size) || geometry.check(disk, uuid, number)?.is_some() {
        return Ok(false);
    }
    // As for the rest of the log: its sync may have failed, and readable bytes need not be durable.
    if disk.write(file, 0, &geometry.header(uuid, number)).is_err() {
        return Ok(false);
    }
    disk.sync(file)?;
    Ok(true)
}

/// Rewrites a part of the stream in place.
fn write_again(disk: &dyn Disk, geometry: Geometry, from: Lsn, end: Lsn) -> Result<(), DiskError> {
    assert!(from <= end, "the log ends below the position that was durable");
    let (mut at, mut bytes) = (from, Vec::new());
    while at < end {
        let (file, offset) = (FileName::Log(geometry.number(at)), geometry.offset(at));
        bytes.resize((end.0 - at.0).min(geometry.left(at)).min(REWRITE_BYTES) as usize, 0);
        let read = disk.read(file, offset, &mut bytes)?;
        if read < bytes.len() {
            return Err(DiskError::Missing { path: disk.path(file) });
        }
        disk.write(file, offset, &bytes)?;
        at.0 += read as u64;
    }
    assert!(at == end, "another part of the log was rewritten");
    Ok(())
}

/// The segment files.
#[derive(Debug)]
pub(super) struct Segments {
    disk: Arc<dyn Disk>,
    health: Health,
    uuid: [u8; 16],
    geometry: Geometry,
    /// Segments below this number are ready to be written.
    prepared: AtomicU64,
    pub(super) files: Mutex<Files>,
}

impl Segments {
    /// Takes over the files of a log that is needed from `low_water_mark` on, was certainly durable up to `known`, and
    /// ends at `end`. Makes the range in between durable. Above it are segments that were prepared for reservations.
    /// The rollback of unfinished transactions now requests that space again, perhaps on a full disk. So these segments
    /// are kept as far as they are valid.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        health: Health,
        uuid: [u8; 16],
        geometry: Geometry,
        low_water_mark: Lsn,
        known: Lsn,
        end: Lsn,
    ) -> Result<Self> {
        assert!(low_water_mark <= known, "the low-water mark is above the position that was durable");
        // A sync of an earlier process may have failed: its bytes would stay readable and never become durable.
        write_again(&*disk, geometry, known, end)?;
        let first = geometry.number(low_water_mark);
        // If the log ends at the very beginning of a segment, nothing in that file is needed yet.
        let in_use = geometry.number(end) + u64::from(end > geometry.start(geometry.number(end)));
        assert!(first <= in_use, "the low-water mark is above the end of the log");
        let (mut retired, mut ahead) = (Vec::new(), BTreeSet::new());
        for file in disk.list(Folder::Log)? {
            let FileName::Log(number) = file else { continue };
            if number >= in_use.max(first) {
                ahead.insert(number);
            } else if number < first {
                retired.push(number);
            } else {
                disk.sync(file)?;
            }
        }
        let mut prepared = in_use.max(first);
        while ahead.contains(&prepared) && take_over(&*disk, geometry, &uuid, prepared)? {
            ahead.remove(&prepared);
            prepared += 1;
        }
        ahead.into_iter().try_for_each(|number| disk.remove(FileName::Log(number)))?;
        disk.sync_folder(Folder::Log)?;
        let files = Mutex::new(Rank::LogFiles, Files { first, retired });
        Ok(Self { disk, health, uuid, geometry, prepared: AtomicU64::new(prepared), files })
    }

    /// Returns the arithmetic of positions.
    pub(super) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Returns whether a segment can be written at once.
    pub(super) fn is_ready(&self, number: u64) -> bool {
        self.prepared.load(SeqCst) > number
    }

    /// Prepares segments until this one can be written.
    pub(super) fn ready(&self, number: u64) -> Result<()> {
        while self.prepared.load(SeqCst) <= number {
            self.prepare(number)?;
        }
        Ok(())
    }

    /// Prepares the next segment if it is not above `up_to`. Returns whether it did.
    pub(super) fn prepare(&self, up_to: u64) -> Result<bool> {
        let mut files = self.files.lock();
        let number = self.prepared.load(SeqCst);
        if number > up_to {
            return Ok(false);
        }
        assert!(number >= files.first, "segment {number} is prepared below the low-water mark");
        // Only a file of full size is recycled: another one would not have its space reserved.
        let again = match files.retired.last() {
            Some(&old) if self.disk.len(FileName::Log(old))? == Some(self.geometry.segment_size) => {
                files.retired.pop()
            }
            _ => None,
        };
        assert!(again.is_none_or(|old| old < files.first), "a segment is recycled that may be needed");
        if let Err(error) = self.make(number, again) {
            // It may already have its new name.
            self.remove_unusable(number, &error)?;
            if let Some(old) = again
                && !self.remove_unusable(old, &error)?
            {
                files.retired.push(old);
            }
            return Err(error.into());
        }
        self.disk.sync_folder(Folder::Log).map_err(|error| self.health.poison(&error.to_string()))?;
        debug_assert!(!files.retired.contains(&number), "segment {number} is prepared and may be removed");
        self.prepared.store(number + 1, SeqCst);
        Ok(true)
    }

    /// Creates a segment, out of an old file if one is to be recycled.
    fn make(&self, number: u64, again: Option<u64>) -> Result<(), DiskError> {
        let (name, header) = (FileName::Log(number), self.geometry.header(&self.uuid, number));
        if let Some(old) = again.map(FileName::Log) {
            self.disk.write(old, 0, &header)?;
            self.disk.sync(old)?;
            return self.disk.rename(old, name);
        }
        self.disk.create(name)?;
        self.disk.preallocate(name, 0, self.geometry.segment_size)?;
        self.disk.write(name, 0, &header)?;
        self.disk.sync(name)
    }

    /// Removes a file that could not be made a segment. Returns whether it is removed; it must be if its sync failed.
    fn remove_unusable(&self, number: u64, error: &DiskError) -> Result<bool> {
        match self.disk.remove(FileName::Log(number)) {
            Ok(()) | Err(DiskError::Missing { .. }) => Ok(true),
            Err(stays) if error.is_sync_failure() => {
                Err(self.health.poison(&format!("{error}; and then: {stays}")))
            }
            Err(_) => Ok(false),
        }
    }

    /// Retires the segments that are wholly below the low-water mark.
    pub(super) fn retire(&self, low_water_mark: Lsn) {
        let first = self.geometry.number(low_water_mark);
        let mut files = self.files.lock();
        assert!(first <= self.prepared.load(SeqCst), "a segment is retired that was never prepared");
        while files.first < first {
            let number = files.first;
            files.retired.push(number);
            files.first += 1;
        }
    }

    /// Removes one file that is not needed now or soon. Returns whether there was one. A file that could not be
    /// removed moves to the end of the list: it is recycled, or removed later.
    pub(super) fn remove_one(&self) -> Result<bool> {
        let mut files = self.files.lock();
        if files.retired.len() <= SEGMENTS_TO_RECYCLE {
            return Ok(false);
        }
        let number = files.retired.remove(0);
        assert!(number < files.first, "segment {number} is removed and may be needed");
        match self.disk.remove(FileName::Log(number)) {
            Ok(()) | Err(DiskError::Missing { .. }) => Ok(true),
            Err(error) => {
                files.retired.push(number);
                Err(error.into())
            }
        }
    }
}
