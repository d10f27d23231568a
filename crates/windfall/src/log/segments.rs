//! Segment files: where a position of the stream lies, and the life of the files.
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
//! Segments are prepared ahead, with their space reserved; those below the floor are renamed and used again.
//!
//! **When a sync fails** the system may have dropped the pages that it could not write and call the file clean: the
//! next sync of it works, and the bytes are lost all the same. So no sync is tried again. A segment that holds a part
//! of the stream stops the database (`writer`). One that is being prepared holds nothing yet: its file is removed, and
//! the next attempt begins with another one, every byte of which has to be written anew; till then operations are told.
//! If it cannot be removed, or if it is the sync of the folder that fails, after which nobody knows which names there
//! are, the database stops. And whoever opens it again reads what may not be durable: so all that lies behind what was
//! certainly durable is written once more before it is synced.
//!
//! **Invariants.** Header and name of a segment are durable before the first frame is written to it. A segment that is
//! used again gets its header under its old name, is synced, and is renamed then: at no moment is a file with a
//! wrong header found under a number that counts.
//!
//! **May touch.** `ids`, `error`, `health`, `disk`, `sync`.

use std::collections::BTreeSet;

use super::frame::{self, BLOCK};
use crate::{
    disk::{Disk, FileName, Folder},
    error::{DiskError, Result},
    health::Health,
    ids::Lsn,
    sync::{
        Arc, Bug, Mutex, Rank,
        atomic::{AtomicU64, Ordering::SeqCst},
        planted,
    },
};

const MAGIC: &[u8; 8] = b"WINDLOG1";
const VERSION: u32 = 1;
/// How many segments below the floor are kept to be used again; more are removed.
const KEPT: usize = 2;
/// The most that is written again at once, in bytes.
const CHUNK: u64 = 1 << 20;

/// The arithmetic of positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    segment_size: u64,
}

/// The segment in which a position lies.
pub fn segment_of(segment_size: u64, at: Lsn) -> u64 {
    Geometry::new(segment_size).number(at)
}

impl Geometry {
    /// For segments of this many bytes, header included: a multiple of 4 KiB, more than one.
    pub(super) fn new(segment_size: u64) -> Self {
        Self { segment_size }
    }

    fn room(self) -> u64 {
        self.segment_size - BLOCK as u64
    }

    /// The segment in which a position lies.
    pub(super) fn number(self, at: Lsn) -> u64 {
        at.0 / self.room()
    }

    /// The first position of a segment; the last possible one when there is no such segment.
    pub(super) fn start(self, number: u64) -> Lsn {
        Lsn(number.saturating_mul(self.room()))
    }

    /// Where in its file a position lies.
    pub(super) fn offset(self, at: Lsn) -> u64 {
        BLOCK as u64 + at.0 % self.room()
    }

    /// How many bytes there are from a position to the end of its segment.
    pub(super) fn left(self, at: Lsn) -> u64 {
        self.room() - at.0 % self.room()
    }

    pub(super) fn header(self, uuid: &[u8; 16], number: u64) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        block[..8].copy_from_slice(MAGIC);
        block[8..12].copy_from_slice(&VERSION.to_le_bytes());
        block[16..32].copy_from_slice(uuid);
        block[32..40].copy_from_slice(&number.to_le_bytes());
        block[40..48].copy_from_slice(&self.start(number).0.to_le_bytes());
        block[48..56].copy_from_slice(&self.segment_size.to_le_bytes());
        frame::seal(&mut block);
        block
    }

    /// Looks at a segment's header: what is wrong with it, if anything.
    pub(super) fn check(
        self,
        disk: &dyn Disk,
        uuid: &[u8; 16],
        number: u64,
    ) -> Result<Option<&'static str>, DiskError> {
        let mut found = [0; BLOCK];
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
struct Files {
    /// The lowest number whose content may still be needed.
    first: u64,
    /// Numbers below the floor whose files are still there.
    retired: Vec<u64>,
}

/// Takes over a segment behind the end of the log. Says whether it was one.
fn take_over(disk: &dyn Disk, geometry: Geometry, uuid: &[u8; 16], number: u64) -> Result<bool, DiskError> {
    let file = FileName::Log(number);
    if disk.len(file)? != Some(geometry.segment_size) || geometry.check(disk, uuid, number)?.is_some() {
        return Ok(false);
    }
    // As for the rest of the log: its sync may have failed, and what can be read is not durable for that.
    let write = || disk.write(file, 0, &geometry.header(uuid, number));
    if !planted(Bug::HeaderNotWrittenAgain) && write().is_err() {
        return Ok(false);
    }
    disk.sync(file)?;
    Ok(true)
}

/// Writes a part of the stream to where it lies already.
fn write_again(disk: &dyn Disk, geometry: Geometry, from: Lsn, end: Lsn) -> Result<(), DiskError> {
    let (mut at, mut bytes) = (from, Vec::new());
    while at < end {
        let (file, offset) = (FileName::Log(geometry.number(at)), geometry.offset(at));
        bytes.resize((end.0 - at.0).min(geometry.left(at)).min(CHUNK) as usize, 0);
        let read = disk.read(file, offset, &mut bytes)?;
        if read < bytes.len() {
            return Err(DiskError::Missing { path: disk.path(file) });
        }
        disk.write(file, offset, &bytes)?;
        at.0 += read as u64;
    }
    Ok(())
}

/// The files.
#[derive(Debug)]
pub(super) struct Segments {
    disk: Arc<dyn Disk>,
    health: Health,
    uuid: [u8; 16],
    geometry: Geometry,
    /// Segments below this number are ready to be written.
    prepared: AtomicU64,
    files: Mutex<Files>,
}

impl Segments {
    /// Takes over the files of a log that is needed from `floor` on, was certainly durable up to `known`, and ends at
    /// `end`. Makes durable what lies between. Beyond lie segments that were prepared: what was promised then, for
    /// taking back what is unfinished, is asked for again now, perhaps on a full disk. They stay as far as they are
    /// whole.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        health: Health,
        uuid: [u8; 16],
        geometry: Geometry,
        floor: Lsn,
        known: Lsn,
        end: Lsn,
    ) -> Result<Self> {
        // A sync of an earlier process may have failed: what it left would stay readable and never become durable.
        write_again(&*disk, geometry, known, end)?;
        let first = geometry.number(floor);
        // At the very beginning of a segment nothing in its file counts yet.
        let in_use = geometry.number(end) + u64::from(end > geometry.start(geometry.number(end)));
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

    /// The arithmetic.
    pub(super) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Whether a segment can be written at once.
    pub(super) fn is_ready(&self, number: u64) -> bool {
        self.prepared.load(SeqCst) > number
    }

    /// Makes sure that a segment can be written.
    pub(super) fn ready(&self, number: u64) -> Result<()> {
        while self.prepared.load(SeqCst) <= number {
            self.prepare(number)?;
        }
        Ok(())
    }

    /// Prepares the next segment if it is not above `up_to`. Says whether it did.
    pub(super) fn prepare(&self, up_to: u64) -> Result<bool> {
        let mut files = self.files.lock();
        let number = self.prepared.load(SeqCst);
        if number > up_to {
            return Ok(false);
        }
        // Only a file of full size is used again: another would not hold its space reserved.
        let again = match files.retired.last() {
            Some(&old) if self.disk.len(FileName::Log(old))? == Some(self.geometry.segment_size) => {
                files.retired.pop()
            }
            _ => None,
        };
        if let Err(error) = self.make(number, again) {
            // It may have had its new name already.
            self.throw_away(number, &error)?;
            if let Some(old) = again
                && !self.throw_away(old, &error)?
            {
                files.retired.push(old);
            }
            return Err(error.into());
        }
        self.disk.sync_folder(Folder::Log).map_err(|error| self.health.poison(&error.to_string()))?;
        self.prepared.store(number + 1, SeqCst);
        Ok(true)
    }

    /// Makes a segment, out of an old file if one is to be used again.
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

    /// Removes a file of which no segment could be made. Says whether it is gone; it has to be if its sync has failed.
    fn throw_away(&self, number: u64, error: &DiskError) -> Result<bool> {
        match self.disk.remove(FileName::Log(number)) {
            Ok(()) | Err(DiskError::Missing { .. }) => Ok(true),
            Err(stays) if error.is_of_sync() => {
                Err(self.health.poison(&format!("{error}; and then: {stays}")))
            }
            Err(_) => Ok(false),
        }
    }

    /// Gives up what lies wholly below the floor.
    pub(super) fn retire(&self, floor: Lsn) {
        let first = self.geometry.number(floor);
        let mut files = self.files.lock();
        while files.first < first {
            let number = files.first;
            files.retired.push(number);
            files.first += 1;
        }
    }

    /// Removes one file that is needed neither now nor soon. Says whether there was one. What could not be removed
    /// comes last: it is used again, or removed later.
    pub(super) fn remove_one(&self) -> Result<bool> {
        let mut files = self.files.lock();
        if files.retired.len() <= KEPT {
            return Ok(false);
        }
        let number = files.retired.remove(0);
        match self.disk.remove(FileName::Log(number)) {
            Ok(()) | Err(DiskError::Missing { .. }) => Ok(true),
            Err(error) => {
                files.retired.push(number);
                Err(error.into())
            }
        }
    }
}
