//! Notes of a row log on disk ([`NoteRun`]).
//!
//! **Purpose.** Between the two steps of an alteration nothing applies the notes of changes. Those that exceed the
//! memory are written to a temporary tablespace, as one sequence of bytes in pieces.
//!
//! **Invariants.** A run that is read has the notes with which it was written (test:
//! `notes_of_any_length_are_read_as_they_were_written`). The writer is a thread that changes rows: no interrupt of its
//! calls ends the write (test: `notes_of_any_length_are_read_as_they_were_written`). A run is dropped when it was read
//! or is given up (by type), and by a crash, as every temporary tablespace is (test:
//! `an_alteration_in_two_steps_crashes_at_every_operation`).

use std::collections::BTreeSet;

use super::{
    row_log::{Note, Noted, bytes_of},
    runs::{RUN_FILL_PERCENT, Run},
};
use crate::{
    buffer::BufferPool,
    error::{CorruptError, Owner, Result},
    ids::SpaceId,
    page::EntryHeader,
    store::Tree,
    sync::{Arc, Interrupt},
    tree::hash::HashBudget,
};

/// The number in place of a tree's, for a note of a row with the first bytes of its value. Those of the readings go
/// down from it.
const OF_ROW: u32 = u32::MAX;
/// The least such number.
const LEAST_OF_ROW: u32 = OF_ROW / 2;

/// Notes on disk.
#[derive(Debug)]
pub(super) struct NoteRun {
    run: Run,
    count: usize,
    bytes: usize,
}

/// The pieces of a run that is being written.
struct Pieces<'a> {
    loader: crate::tree::BulkLoader<&'a Tree>,
    piece: Vec<u8>,
    length: usize,
    number: u32,
}

impl Pieces<'_> {
    fn put(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(self.length - self.piece.len()));
            self.piece.extend_from_slice(now);
            bytes = later;
            if self.piece.len() == self.length {
                self.end()?;
            }
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        self.loader.push(&self.number.to_be_bytes(), EntryHeader::default(), &self.piece)?;
        self.piece.clear();
        self.number += 1;
        Ok(())
    }
}

impl NoteRun {
    /// Writes notes to a run, in a tablespace with this new id.
    ///
    /// # Errors
    /// I/O, a full disk.
    pub(super) fn write(pool: &Arc<BufferPool>, space: SpaceId, notes: &BTreeSet<Note>) -> Result<Self> {
        let _uninterrupted = Interrupt::leave();
        let run = Run::new(pool, &Arc::new(HashBudget::new(0)), space);
        let loader = run.tree.bulk_load(RUN_FILL_PERCENT)?;
        let length = run.tree.inline_limit();
        let mut pieces = Pieces { loader, piece: Vec::with_capacity(length), length, number: 0 };
        for (noted, bytes) in notes {
            let number = |place| u32::try_from(place).expect("a table has fewer indexes");
            let place = match *noted {
                Noted::Entry(place) => number(place),
                Noted::Row => OF_ROW,
                Noted::Read(reading) => OF_ROW - 1 - number(reading),
            };
            let length = bytes.len() as u64;
            pieces.put(&place.to_le_bytes())?;
            pieces.put(&length.to_le_bytes())?;
            pieces.put(bytes)?;
        }
        if !pieces.piece.is_empty() {
            pieces.end()?;
        }
        pieces.loader.finish()?;
        Ok(Self { run, count: notes.len(), bytes: notes.iter().map(bytes_of).sum() })
    }

    /// Returns the number of its notes.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Returns the bytes of its notes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reads its notes.
    ///
    /// # Errors
    /// Damage, I/O.
    pub(super) fn read(self) -> Result<BTreeSet<Note>> {
        let (mut bytes, mut notes) = (Vec::new(), BTreeSet::new());
        let mut cursor = self.run.tree.cursor();
        while cursor.next()? {
            bytes.extend_from_slice(cursor.value());
            let mut rest = &bytes[..];
            while let Some((note, later)) = first_note(rest) {
                notes.insert(note);
                rest = later;
            }
            let used = bytes.len() - rest.len();
            bytes.drain(..used);
        }
        if bytes.is_empty() && notes.len() == self.count {
            return Ok(notes);
        }
        let what =
            format!("{} notes of changes were written, and {} are read", self.count, notes.len()).into();
        Err(CorruptError::Structure { owner: Owner::Unknown, space: self.run.tree.space().id(), what }.into())
    }
}

/// Returns the first note of a sequence, unless it continues in the next piece, and the rest.
fn first_note(bytes: &[u8]) -> Option<(Note, &[u8])> {
    let (place, rest) = bytes.split_first_chunk::<4>()?;
    let (length, rest) = rest.split_first_chunk::<8>()?;
    let (note, rest) = rest.split_at_checked(u64::from_le_bytes(*length) as usize)?;
    let noted = match u32::from_le_bytes(*place) {
        OF_ROW => Noted::Row,
        place @ LEAST_OF_ROW.. => Noted::Read((OF_ROW - 1 - place) as usize),
        place => Noted::Entry(place as usize),
    };
    Some(((noted, note.to_vec()), rest))
}

#[cfg(test)]
mod tests {
    use windfall_sim::{SimulatedDisk, SimulatedEnv};

    use super::*;
    use crate::{engine::test_engine::open, options::Options};

    #[test]
    fn notes_of_any_length_are_read_as_they_were_written() {
        let options = Options::default().page_size(4096).buffer_pool_size(64 * 4096).log_size(4 << 20);
        let engine = open(&SimulatedDisk::new(1), Arc::new(SimulatedEnv::new(1)), &options);
        let space = || engine.transactions.ids().space().unwrap();
        let limit = engine.system.tree().inline_limit();
        let interrupt = Arc::new(Interrupt::default());
        let _entered = interrupt.enter();
        interrupt.interrupt();
        let lengths = [0, 1, limit - 13, limit - 12, limit - 11, limit, 3 * limit, 100_000];
        for all in [&lengths[..], &lengths[..1], &[][..]] {
            let of = |n: usize, length: usize| match n % 4 {
                0 => (Noted::Row, vec![n as u8; length]),
                1 => (Noted::Read(n / 4), vec![n as u8; length]),
                n => (Noted::Entry(n), vec![n as u8; length]),
            };
            let notes: BTreeSet<Note> = all.iter().enumerate().map(|(n, length)| of(n, *length)).collect();
            let run = NoteRun::write(&engine.pool, space(), &notes).unwrap();
            assert_eq!(run.count(), notes.len());
            assert!(run.read().unwrap() == notes);
        }
    }
}
