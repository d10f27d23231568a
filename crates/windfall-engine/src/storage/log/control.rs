//! The control file: where recovery begins.
//!
//! **Purpose.** Two slots of 4 KiB, written in turn, so that a torn write costs at most the newer of the two records.
//! Each holds a sequence number and a checksum; the valid one with the larger number is the current one. In little
//! endian:
//!
//! | bytes | field |
//! | --- | --- |
//! | 0..8 | magic `WINDFALL` |
//! | 8..12 | format version |
//! | 12..16 | page size |
//! | 16..32 | uuid of the database |
//! | 32..40 | sequence number of this write |
//! | 40..44 | incarnation of the log |
//! | 44..48 | flags; bit 0: shut down cleanly; bit 1: the file of the system tablespace was made |
//! | 48..56 | LSN at which the incarnation begins |
//! | 56..64 | low-water mark: recovery reads the log from this LSN |
//! | 64..72 | LSN of the checkpoint's record |
//! | 72..80 | LSN up to which the log was durable |
//! | 80..88 | all tablespace ids assigned so far are below this |
//! | 88..96 | all transaction ids assigned so far are below this |
//! | 4092..4096 | CRC-32C of bytes 0..4092 |
//!
//! A damaged slot is the trace of a write that a crash interrupted, or of bit rot. The other slot is used then, and is
//! the newest record unless the log proves otherwise: the flag [`Control::alone`] reports this to the reader of the
//! log.
//!
//! Magic, version and checksum keep their places in every later version, so that a newer file is distinguished from a
//! damaged one.
//!
//! **Invariants.** A slot is durable before the other one is overwritten: opening rewrites the slot that it has read
//! and syncs it (test: `the_record_that_was_found_survives_a_torn_write_of_the_next`), and a failed sync poisons the
//! database (test: `a_failing_write_poisons`).

use super::frame::{self, LOG_BLOCK_BYTES};
use crate::{
    disk::{Disk, FileName, Folder},
    error::{CorruptError, DiskError, Result},
    health::Health,
    ids::Lsn,
    sync::Arc,
};

const MAGIC: &[u8; 8] = b"WINDFALL";
/// The version of the whole database format.
pub const FORMAT_VERSION: u32 = 3;

/// The content of the control file.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Control {
    /// The size of a page in bytes.
    pub page_size: u32,
    /// The UUID of the database.
    pub uuid: [u8; 16],
    /// The incarnation of the log, incremented at every opening.
    pub incarnation: u32,
    /// The LSN at which this incarnation begins. Everything before it is durable.
    pub incarnation_start: Lsn,
    /// The low-water mark: recovery reads the log from here.
    pub low_water_mark: Lsn,
    /// The LSN of the last checkpoint's record.
    pub checkpoint: Lsn,
    /// The position up to which the log was durable when this was written.
    pub durable: Lsn,
    /// All tablespace ids assigned so far are below this.
    pub space_ceiling: u64,
    /// All transaction ids assigned so far are below this.
    pub trx_ceiling: u64,
    /// Whether the database was shut down cleanly and has not been opened since.
    pub clean: bool,
    /// Whether the file of the system tablespace was created: nothing else shows that it is lost.
    pub system_made: bool,
    /// Whether the other slot is damaged, and may have been the newer one. Not stored in the file.
    pub alone: bool,
}

impl Control {
    pub(super) fn encode(&self, sequence: u64) -> [u8; LOG_BLOCK_BYTES] {
        let mut slot = [0; LOG_BLOCK_BYTES];
        let mut put = |at: usize, bytes: &[u8]| slot[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, MAGIC);
        put(8, &FORMAT_VERSION.to_le_bytes());
        put(12, &self.page_size.to_le_bytes());
        put(16, &self.uuid);
        put(32, &sequence.to_le_bytes());
        put(40, &self.incarnation.to_le_bytes());
        put(44, &(u32::from(self.clean) | u32::from(self.system_made) << 1).to_le_bytes());
        let longs = [
            self.incarnation_start.0,
            self.low_water_mark.0,
            self.checkpoint.0,
            self.durable.0,
            self.space_ceiling,
            self.trx_ceiling,
        ];
        for (n, value) in longs.into_iter().enumerate() {
            put(48 + 8 * n, &value.to_le_bytes());
        }
        frame::seal(&mut slot);
        slot
    }

    /// Returns the content of a slot and its sequence number, or what is wrong with it.
    fn decode(slot: &[u8; LOG_BLOCK_BYTES]) -> Result<(u64, Self), Damage> {
        if !slot.starts_with(MAGIC) {
            return Err(Damage::Foreign);
        }
        if !frame::sealed(slot) {
            return Err(Damage::Checksum);
        }
        let int = |at: usize| u32::from_le_bytes(core::array::from_fn(|n| slot[at + n]));
        let long = |at: usize| u64::from_le_bytes(core::array::from_fn(|n| slot[at + n]));
        if int(8) != FORMAT_VERSION {
            return Err(Damage::Version(int(8)));
        }
        let control = Self {
            page_size: int(12),
            uuid: core::array::from_fn(|n| slot[16 + n]),
            incarnation: int(40),
            clean: int(44) & 1 == 1,
            system_made: int(44) & 2 == 2,
            incarnation_start: Lsn(long(48)),
            low_water_mark: Lsn(long(56)),
            checkpoint: Lsn(long(64)),
            durable: Lsn(long(72)),
            space_ceiling: long(80),
            trx_ceiling: long(88),
            alone: false,
        };
        Ok((long(32), control))
    }
}

enum Damage {
    Foreign,
    Checksum,
    Version(u32),
}

/// The control file of an open database.
#[derive(Debug)]
pub struct ControlFile {
    disk: Arc<dyn Disk>,
    health: Health,
    sequence: u64,
    control: Control,
}

impl ControlFile {
    /// Creates the control file of a new database, with both slots, durably. This must be the last step of creating a
    /// database, because a folder with this file is a database. The file gets its name when it is complete.
    ///
    /// # Errors
    /// Errors of the disk; no database exists then.
    pub fn create(disk: Arc<dyn Disk>, health: Health, control: Control) -> Result<Self> {
        debug_assert!(
            Control::decode(&control.encode(0)).is_ok_and(|(_, back)| back == control),
            "the first record would be read back as another one"
        );
        let file = FileName::NewControl;
        disk.create(file)?;
        for sequence in 0..2 {
            disk.write(file, offset(sequence), &control.encode(sequence))?;
        }
        disk.sync(file)?;
        disk.rename(file, FileName::Control)?;
        if let Err(error) = disk.sync_folder(Folder::Root) {
            // Otherwise a later opening would rely on the name, which may not be durable.
            let _ = disk.remove(FileName::Control);
            return Err(error.into());
        }
        Ok(Self { disk, health, sequence: 1, control })
    }

    /// Reads the control file and makes the record that it has read durable.
    ///
    /// # Errors
    /// [`CorruptError::File`] when it is missing, foreign, of another version, or damaged in both slots.
    pub fn open(disk: Arc<dyn Disk>, health: Health) -> Result<Self> {
        let (sequence, control) = Self::read(disk.as_ref())?;
        // The next write relies on this slot. Bytes written by a killed process may be in the page cache only, and
        // after a failed sync another sync does not make the same bytes durable.
        disk.write(FileName::Control, offset(sequence), &control.encode(sequence))?;
        disk.sync(FileName::Control)?;
        Ok(Self { disk, health, sequence, control })
    }

    fn read(disk: &dyn Disk) -> Result<(u64, Control)> {
        let wrong =
            |what: String| CorruptError::File { file: disk.path(FileName::Control), what: what.into() };
        let mut newest: Option<(u64, Control)> = None;
        let (mut ours, mut damaged, mut version, mut misplaced) = (false, false, None, false);
        for place in 0..2 {
            let mut slot = [0; LOG_BLOCK_BYTES];
            match disk.read(FileName::Control, offset(place), &mut slot) {
                Err(DiskError::Missing { .. }) => {
                    return Err(wrong(
                        "the control file is missing: this folder holds no Windfall database; check the path, or \
                         restore the whole folder from a backup"
                            .into(),
                    )
                    .into());
                }
                other => other?,
            };
            match Control::decode(&slot) {
                Ok(found) => {
                    ours = true;
                    misplaced |= found.0 % 2 != place;
                    if newest.as_ref().is_none_or(|(n, _)| *n < found.0) {
                        newest = Some(found);
                    }
                }
                Err(Damage::Foreign) => damaged = true,
                Err(Damage::Checksum) => (ours, damaged) = (true, true),
                Err(Damage::Version(found)) => version = Some(found),
            }
        }
        // A slot of another version is not an older record to skip: a program of that version has written the database
        // since.
        let what = match (version, newest) {
            (Some(found), _) => format!(
                "the database has format version {found}; this program reads version {FORMAT_VERSION}: open it with \
                 the program version that wrote it"
            ),
            // A record in the wrong slot may have overwritten a newer one, and the next write would overwrite the
            // evidence that there was one.
            (None, Some((sequence, mut control))) if !(damaged && misplaced) => {
                control.alone = damaged;
                return Ok((sequence, control));
            }
            (None, _) if ours => {
                "both copies of the control record are damaged: restore the database from a backup".into()
            }
            (None, _) => "this is not the control file of a Windfall database: check the path".into(),
        };
        Err(wrong(what).into())
    }

    /// Returns the current content.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Changes the content, durably.
    ///
    /// # Errors
    /// A failure poisons the database, because the content of the file is then unknown.
    pub fn update(&mut self, change: impl FnOnce(&mut Control)) -> Result<()> {
        self.health.check()?;
        let mut control = self.control.clone();
        change(&mut control);
        // The damaged slot is the next to be written.
        control.alone = false;
        let before = &self.control;
        debug_assert!(
            (control.uuid, control.page_size) == (before.uuid, before.page_size),
            "the record would be that of another database"
        );
        debug_assert!(control.low_water_mark >= before.low_water_mark, "the low-water mark moves back");
        debug_assert!(
            control.incarnation >= before.incarnation
                && control.incarnation_start >= before.incarnation_start,
            "the log goes back to an earlier incarnation"
        );
        debug_assert!(
            control.space_ceiling >= before.space_ceiling,
            "the ceiling of tablespace ids falls, and ids would be assigned twice"
        );
        debug_assert!(
            control.trx_ceiling >= before.trx_ceiling,
            "the ceiling of transaction ids falls, and ids would be assigned twice"
        );
        // No real database writes this often: only a forged sequence number is that large.
        let sequence = self.sequence.checked_add(1);
        let sequence =
            sequence.ok_or_else(|| self.health.poison("the control file was written too often"))?;
        debug_assert!(
            Control::decode(&control.encode(sequence))
                .is_ok_and(|(number, back)| number == sequence && back == control),
            "the record would be read back as another one"
        );
        let written = self.disk.write(FileName::Control, offset(sequence), &control.encode(sequence));
        written
            .and_then(|()| self.disk.sync(FileName::Control))
            .map_err(|error| self.health.poison(&error.to_string()))?;
        (self.sequence, self.control) = (sequence, control);
        Ok(())
    }
}

fn offset(sequence: u64) -> u64 {
    sequence % 2 * LOG_BLOCK_BYTES as u64
}
