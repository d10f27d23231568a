//! Segment files: where a position of the stream lies, and the life of the files.
//!
//! **Purpose.** The stream is cut into segments of a fixed size, numbered from 0. Each begins with a sealed header of 4 KiB:
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
//! **Invariants.** Header and name of a segment are durable before the first frame is written to it. A segment that is
//! used again gets its header under its old name, is synced, and is renamed then: at no moment is a file with a
//! wrong header found under a number that counts.
//!
//! **May touch.** `ids`, `error`, `disk`, `sync`.

use super::frame::{self, BLOCK};
use crate::{
    disk::{Disk, FileName, Folder},
    error::{DiskError, Result},
    ids::Lsn,
    sync::{
        Arc, Mutex, Rank,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

const MAGIC: &[u8; 8] = b"WINDLOG1";
const VERSION: u32 = 1;
/// How many segments below the floor are kept to be used again; more are removed.
const KEPT: usize = 2;

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

    fn header(self, uuid: &[u8; 16], number: u64) -> [u8; BLOCK] {
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

/// The files.
#[derive(Debug)]
pub(super) struct Segments {
    disk: Arc<dyn Disk>,
    uuid: [u8; 16],
    geometry: Geometry,
    /// Segments below this number are ready to be written.
    prepared: AtomicU64,
    files: Mutex<Files>,
}

impl Segments {
    /// Takes over the files of a log that is needed from `floor` on and ends at `end`. Makes durable what lies between, and
    /// removes what lies beyond.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        uuid: [u8; 16],
        geometry: Geometry,
        floor: Lsn,
        end: Lsn,
    ) -> Result<Self> {
        let first = geometry.number(floor);
        // At the very beginning of a segment nothing in its file counts yet.
        let in_use = geometry.number(end) + u64::from(end > geometry.start(geometry.number(end)));
        let mut retired = Vec::new();
        for file in disk.list(Folder::Log)? {
            let FileName::Log(number) = file else { continue };
            if number >= in_use.max(first) {
                disk.remove(file)?;
            } else if number < first {
                retired.push(number);
            } else {
                disk.sync(file)?;
            }
        }
        disk.sync_folder(Folder::Log)?;
        let files = Mutex::new(Rank::LogFiles, Files { first, retired });
        Ok(Self { disk, uuid, geometry, prepared: AtomicU64::new(in_use.max(first)), files })
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
        let (name, size) = (FileName::Log(number), self.geometry.segment_size);
        let header = self.geometry.header(&self.uuid, number);
        // Only a file of full size is used again: another would not hold its space reserved.
        let again = match files.retired.last() {
            Some(&old) if self.disk.len(FileName::Log(old))? == Some(size) => files.retired.pop(),
            _ => None,
        };
        if let Some(old) = again {
            let old = FileName::Log(old);
            self.disk.write(old, 0, &header)?;
            self.disk.sync(old)?;
            self.disk.rename(old, name)?;
        } else {
            self.disk.create(name)?;
            self.disk.preallocate(name, 0, size)?;
            self.disk.write(name, 0, &header)?;
            self.disk.sync(name)?;
        }
        self.disk.sync_folder(Folder::Log)?;
        self.prepared.store(number + 1, SeqCst);
        Ok(true)
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

    /// Removes one file that is needed neither now nor soon. Says whether there was one.
    pub(super) fn remove_one(&self) -> Result<bool> {
        let mut files = self.files.lock();
        if files.retired.len() <= KEPT {
            return Ok(false);
        }
        let number = files.retired.remove(0);
        match self.disk.remove(FileName::Log(number)) {
            Err(DiskError::Missing { .. }) => {}
            other => other?,
        }
        Ok(true)
    }
}
