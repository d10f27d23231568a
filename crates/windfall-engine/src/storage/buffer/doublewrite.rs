//! The doublewrite file: a page is on disk twice while it is being written, so a torn write does not destroy it.
//!
//! **Purpose.** A page write is not atomic: a crash may leave half of it. So a batch of pages is written to this file
//! first and synced, before the pages are written to their data files. Redo then needs to handle only whole pages.
//! Pages of temporary tablespaces are not copied here: their files are never synced, and their content is not needed
//! after a crash.
//!
//! **Invariants.** There is one batch at a time (checked by `buffer/doublewrite.rs::write`). The next one begins when
//! each page of the last is durable in its data file, or is in the next batch as well, because its write failed (test:
//! `all_pages_that_are_torn_are_in_every_batch`). The file has two halves, which batches use in turn (test:
//! `batches_have_numbers_that_rise`): pages that the last batch may have torn stay whole here until the next batch is
//! durable (test: `a_page_torn_by_a_failed_write_stays_whole_in_the_doublewrite_file`).
//!
//! The header block names the pages of the batch with their LSNs, a copy is used only if it is exactly the page that
//! the header names, and of two copies the newer one is used: copies left over from earlier batches never bring old
//! content back (test: `a_copy_counts_if_it_is_the_one_that_the_header_names`). If one half cannot be read, a copy in
//! the other half may be outdated, and recovery checks it against the log's low-water mark (test:
//! `a_page_is_not_restored_from_a_copy_that_may_be_outdated`). A header or a copy that cannot be read is treated as
//! missing, because a device may leave a sector unreadable if a loss of power interrupts its write (test:
//! `a_copy_that_cannot_be_read_is_none`).
//!
//! Batches are numbered, so the later one of two whole headers can be determined (test:
//! `the_later_batch_is_known_by_its_number`). So a page that only the earlier header names was durable in its data file
//! before the later batch was written. If a crash has left a copy of a batch that is not whole, the batch never reached
//! the data files (test: `pages_that_were_durable_before_the_last_batch_are_known`).
//!
//! Before recovery relies on copies it writes them to a new file, which replaces this one when it is durable (test:
//! `copies_whose_sync_has_failed_are_durable_before_the_next_batch`). This file is not overwritten in the process: as
//! long as no page has been written, the next opening finds the same copies, whatever fails or is interrupted (test:
//! `copies_are_durable_whichever_sync_of_an_opening_has_failed`). After a crash of the machine it finds those of them
//! that were durable before (test: `pages_with_copies_that_a_killed_process_did_not_sync_are_written_again`). In two
//! cases this file stays, and the file and its name are synced, which is enough unless a sync has failed before:
//!
//! - A part of it cannot be read: that part may hold the only whole copy of a page, and may become readable again
//!   (test: `a_half_that_cannot_be_read_stays_where_it_is`).
//! - A full disk has no room for the new file (test: `a_disk_without_room_for_a_new_file_keeps_no_database_closed`).
//!
//! **Reasons.** The copies that recovery finds here need not be durable, and a sync does not prove that they are: if an
//! earlier sync has failed, the operating system still shows the data that it has lost. A copy that a device has
//! damaged since the crash looks like one of a batch that is not whole. If a full disk were an error, the database
//! could not be opened, and no drop could make room.
//!
//! **Room.** The file of a new database has room for batches of [`SMALLEST_ROOM`] pages. When a larger one comes, a new
//! file with the copies of both halves and more room replaces this one ([`Doublewrite::make_room`]; test:
//! `the_file_grows_for_a_large_batch_and_keeps_its_copies`). Without space for it the batches stay small, so a full
//! disk does not keep pages from being written; it is tried again after some batches (test:
//! `without_space_the_batches_stay_small`). The name of a new file is durable before a batch relies on it, also if the
//! rename has reported a failure (test: `a_rename_that_reports_a_failure_and_happens_is_noticed`).
//!
//! # File format
//!
//! Two halves, one behind the other, of the same size: the header, and room for copies. The room is the number of pages
//! for which half of the file's length suffices, at most [`BATCH_PAGES`]. In each half:
//!
//! | offset | size | field |
//! | --- | --- | --- |
//! | 0 | 8 | `"WFDBLWR1"` |
//! | 8 | 4 | CRC-32C of the bytes from 12 to the end of the header |
//! | 12 | 4 | page size |
//! | 16 | 4 | pages in the batch |
//! | 20 | 4 | number of the batch; zero when it is unknown |
//! | 24 | 24 each | tablespace, page LSN (8 bytes each), page number, zero (4 bytes each) |
//! | header size | page size each | the copies |
//!
//! The header has as many 4 KiB blocks as [`BATCH_PAGES`] entries need.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    disk::{Action, Disk, FileName, Folder, IoBuffer, Queue, Request},
    error::{DiskError, Result},
    ids::{Lsn, PageId, PageNo, SpaceId},
    page::Page,
    sync::atomic::AtomicU64,
};

/// The maximum number of pages in a batch.
pub(crate) const BATCH_PAGES: usize = 128;
/// The room of a new database's file, in pages of a batch.
pub(crate) const SMALLEST_ROOM: usize = 2;
/// The rooms that a file may grow to.
const ROOMS: [usize; 2] = [16, BATCH_PAGES];
/// When the file could not be made as large as a batch, this number of larger batches pass until it is tried again: on
/// a full disk an attempt costs more than a small batch.
const BATCHES_BETWEEN_ATTEMPTS: u32 = 64;
pub(super) const MAGIC: &[u8; 8] = b"WFDBLWR1";
pub(super) const ENTRIES_AT: usize = 24;
pub(super) const ENTRY: usize = 24;
pub(super) const HEADER: usize = (ENTRIES_AT + BATCH_PAGES * ENTRY).next_multiple_of(4096);

/// The doublewrite file.
#[derive(Debug, Default)]
pub struct Doublewrite {
    /// The half that the next batch overwrites, 0 or 1.
    turn: u64,
    /// The number of the last batch.
    number: u32,
    /// The room of the file, in pages of a batch; zero while it is unknown.
    room: usize,
    /// If the last attempt to make the file larger has failed, the number of batches that pass until the next one.
    pause: Option<u32>,
    /// The buffer of the last batch, reused: the operating system would clear new memory for each batch, page by page.
    buffer: IoBuffer,
}

/// Returns the size of one half in bytes.
pub(super) fn half(page_size: usize, room: usize) -> u64 {
    (HEADER + room * page_size) as u64
}

/// Returns the room of the file, in pages of a batch. A file that is missing or too short has none.
fn room_of(disk: &dyn Disk, page_size: usize) -> Result<usize, DiskError> {
    let half = disk.len(FileName::Doublewrite)?.unwrap_or_default() / 2;
    Ok(((half as usize).saturating_sub(HEADER) / page_size).min(BATCH_PAGES))
}

/// Converts the bytes of a page to words, so that they can be accessed as a `Page`.
pub fn words(bytes: &[u8]) -> Vec<AtomicU64> {
    let word = |chunk: &[u8]| chunk.iter().rev().fold(0, |w, b| w << 8 | u64::from(*b));
    bytes.chunks(8).map(|chunk| AtomicU64::new(word(chunk))).collect()
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

impl Doublewrite {
    /// Creates the file, with room for two batches of this many pages. Its name becomes durable when the folder is
    /// synced.
    ///
    /// # Errors
    /// I/O.
    pub fn create(disk: &dyn Disk, page_size: usize, room: usize) -> Result<()> {
        reserve(disk, FileName::Doublewrite, page_size, room)?;
        disk.sync(FileName::Doublewrite)?;
        Ok(())
    }

    /// Returns whether there is a file, with room for at least one page.
    ///
    /// # Errors
    /// I/O.
    pub(crate) fn has_room(disk: &dyn Disk, page_size: usize) -> Result<bool, DiskError> {
        Ok(room_of(disk, page_size)? > 0)
    }

    /// Removes a new file that a failed or interrupted opening, or a failed growth, has left. If that fails, the file
    /// stays and only takes space: it is never read, and the next new file replaces it.
    pub(crate) fn remove_new(disk: &dyn Disk) {
        let file = FileName::NewDoublewrite;
        let remove = || if disk.len(file)?.is_some() { disk.remove(file) } else { Ok(()) };
        if let Err(error) = remove() {
            tracing::warn!(
                target: "windfall::storage",
                %error, "a new doublewrite file that is not needed cannot be removed",
            );
        }
    }

    /// Makes the copies that were read durable before recovery relies on them: in a new file, which replaces this one.
    ///
    /// # Errors
    /// I/O. No page may be written then. The next opening finds the same copies as this one. If the machine crashes
    /// before the new name is durable, it finds those that were durable before.
    pub(crate) fn make_durable(disk: &dyn Disk, copies: &Copies, page_size: usize) -> Result<(), DiskError> {
        let room = room_of(disk, page_size)?.max(SMALLEST_ROOM);
        let is_replaced = if copies.unread.is_some() {
            false
        } else {
            match replace(disk, &copies.read, page_size, room) {
                Err(error) if error.is_no_space() => {
                    tracing::warn!(
                        target: "windfall::storage",
                        %error, "no new doublewrite file: the old one is synced instead",
                    );
                    Self::remove_new(disk);
                    false
                }
                replaced => replaced.map(|()| true)?,
            }
        };
        if !is_replaced {
            disk.sync(FileName::Doublewrite)?;
        }
        // In any case, because an opening that was killed may have renamed the file without making the new name
        // durable.
        disk.sync_folder(Folder::Root)
    }

    /// Makes room for a batch of this many pages, in a new file with the copies of this one. Returns the room that
    /// there is: less if there is no space for the new file, or if it could not be made.
    ///
    /// # Errors
    /// The name of the new file may not be durable: the next batch may be lost.
    pub(super) fn make_room(
        &mut self,
        disk: &dyn Disk,
        page_size: usize,
        pages: usize,
    ) -> Result<usize, DiskError> {
        let (room, pages) = (self.room(disk, page_size)?, pages.min(BATCH_PAGES));
        if pages <= room {
            return Ok(room);
        }
        if let Some(batches @ 1..) = &mut self.pause {
            *batches -= 1;
            return Ok(room);
        }
        if let Err(error) = grow(disk, page_size, room, pages) {
            if self.pause.is_none() {
                tracing::warn!(
                    target: "windfall::storage",
                    %error, "the doublewrite file cannot be made larger: batches stay small",
                );
            }
            Self::remove_new(disk);
        }
        // A rename that has failed may have taken effect all the same.
        disk.sync_folder(Folder::Root)?;
        self.room = 0;
        let room = self.room(disk, page_size)?;
        self.pause = (room < pages).then_some(BATCHES_BETWEEN_ATTEMPTS);
        Ok(room)
    }

    /// Returns the room of the file, in pages of a batch.
    pub(super) fn room(&mut self, disk: &dyn Disk, page_size: usize) -> Result<usize, DiskError> {
        if self.room == 0 {
            self.room = room_of(disk, page_size)?;
        }
        Ok(self.room)
    }

    /// Sets the half that the next batch overwrites, and the number of the last batch.
    pub(super) fn set_position(&mut self, half: u64, number: u32) {
        assert!(half < 2, "the doublewrite file has two halves, and no half {half}");
        (self.turn, self.number) = (half, number);
    }

    /// Writes the copies of a batch and makes them durable. A failure leaves the previous batch as it was.
    pub(super) fn write(
        &mut self,
        disk: &dyn Disk,
        queue: &mut dyn Queue,
        pages: &[(PageId, &IoBuffer)],
        page_size: usize,
    ) -> Result<(), DiskError> {
        let room = self.room(disk, page_size)?;
        assert!((1..=room).contains(&pages.len()), "a batch of {} pages, and room for {room}", pages.len());
        debug_assert!(
            pages.iter().map(|(id, _)| id).collect::<BTreeSet<_>>().len() == pages.len(),
            "a batch has two copies of a page"
        );
        let mut buffer = core::mem::take(&mut self.buffer);
        buffer.resize(HEADER + pages.len() * page_size);
        let bytes = buffer.bytes_mut();
        bytes[..HEADER].fill(0);
        bytes[..8].copy_from_slice(MAGIC);
        bytes[12..16].copy_from_slice(&(page_size as u32).to_le_bytes());
        bytes[16..20].copy_from_slice(&(pages.len() as u32).to_le_bytes());
        let number = following(self.number);
        bytes[20..24].copy_from_slice(&number.to_le_bytes());
        for (n, (id, page)) in pages.iter().enumerate() {
            let at = ENTRIES_AT + n * ENTRY;
            bytes[at..at + 8].copy_from_slice(&id.space.0.to_le_bytes());
            bytes[at + 8..at + 16].copy_from_slice(&page.bytes()[16..24]);
            bytes[at + 16..at + 20].copy_from_slice(&id.page.0.to_le_bytes());
            debug_assert!(
                page.bytes()[8..16] == id.space.0.to_le_bytes()
                    && page.bytes()[24..28] == id.page.0.to_le_bytes(),
                "the copy that is listed as {id} is of another page"
            );
            debug_assert!(
                page.bytes()[..4] == crc32c::crc32c(&page.bytes()[4..page_size]).to_le_bytes(),
                "the copy of {id} has no checksum, and would not be found whole"
            );
            let copy = HEADER + n * page_size;
            bytes[copy..copy + page_size].copy_from_slice(&page.bytes()[..page_size]);
        }
        let crc = crc32c::crc32c(&bytes[12..HEADER]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        debug_assert!(queue.pending() == 0, "a batch begins while another one is being written");
        queue.submit(vec![Request {
            token: 0,
            file: FileName::Doublewrite,
            offset: self.turn * half(page_size, room),
            action: Action::Write,
            buffer,
        }]);
        while queue.pending() > 0 {
            for done in queue.complete(true) {
                self.buffer = done.buffer;
                done.result?;
            }
        }
        disk.sync(FileName::Doublewrite)?;
        self.set_position(1 - self.turn, number);
        Ok(())
    }

    /// Returns the copies that are whole.
    ///
    /// # Errors
    /// I/O. A header or a copy that is not whole, or cannot be read, is not an error: its batch never reached the data
    /// files.
    pub fn copies(disk: &dyn Disk, page_size: usize) -> Result<Copies> {
        let mut copies = Copies::default();
        let room = room_of(disk, page_size)?;
        if room > 0 {
            for turn in 0..2 {
                collect(disk, page_size, room, turn, &mut copies)?;
            }
        }
        Ok(copies)
    }
}

/// Replaces the file by one with room for a batch of this many pages, or for fewer if the disk has no space for that.
fn grow(disk: &dyn Disk, page_size: usize, room: usize, pages: usize) -> Result<(), DiskError> {
    let half_bytes = half(page_size, room);
    let read = |turn: u64| {
        let mut bytes = vec![0; half_bytes as usize];
        disk.read(FileName::Doublewrite, turn * half_bytes, &mut bytes)?;
        Ok::<_, DiskError>(bytes)
    };
    let halves = [read(0)?, read(1)?];
    let enough = ROOMS.into_iter().find(|more| *more >= pages).unwrap_or(BATCH_PAGES);
    let mut larger = ROOMS.into_iter().rev().filter(|more| (room + 1..=enough).contains(more)).peekable();
    while let Some(more) = larger.next() {
        match replace(disk, &halves, page_size, more) {
            Err(error) if error.is_no_space() && larger.peek().is_some() => {}
            done => return done,
        }
    }
    Ok(())
}

/// Creates a file with room for two batches.
fn reserve(disk: &dyn Disk, file: FileName, page_size: usize, room: usize) -> Result<(), DiskError> {
    disk.create(file)?;
    disk.preallocate(file, 0, 2 * half(page_size, room))
}

/// Replaces the file by a durable one with this room and this beginning of each half. The new name is not durable yet.
fn replace(disk: &dyn Disk, halves: &[Vec<u8>; 2], page_size: usize, room: usize) -> Result<(), DiskError> {
    assert!(
        halves.iter().all(|bytes| bytes.len() as u64 <= half(page_size, room)),
        "more was read than a half of the doublewrite file has"
    );
    let file = FileName::NewDoublewrite;
    reserve(disk, file, page_size, room)?;
    let mut halves = (0..).zip(halves);
    halves.try_for_each(|(turn, bytes)| disk.write(file, turn * half(page_size, room), bytes))?;
    // Some file systems allocate the space only now.
    disk.sync(file)?;
    disk.rename(file, FileName::Doublewrite)
}

/// Returns the number of the next batch. No batch has number zero.
fn following(number: u32) -> u32 {
    number.wrapping_add(1).max(1)
}

/// The newest copy of a page.
#[derive(Debug)]
pub struct CopyFound {
    /// The LSN of the page.
    pub lsn: Lsn,
    /// The bytes of the page.
    pub bytes: Vec<u8>,
    /// The LSNs of the page's copies, by half.
    pub lsns: [Option<Lsn>; 2],
}

/// The content of the file.
#[derive(Debug, Default)]
pub struct Copies {
    /// The newest copy of each page. It includes all pages that may be torn in their data files.
    pub pages: BTreeMap<PageId, CopyFound>,
    /// The half of which a part cannot be read. It may have had a newer copy.
    pub unread: Option<u64>,
    /// The numbers of the batches, by half.
    numbers: [Option<u32>; 2],
    /// The pages that the headers name, by half. A copy of one of them need not be whole.
    named: [BTreeSet<PageId>; 2],
    /// The bytes that were read, by half: the header, and the copies that it names.
    read: [Vec<u8>; 2],
}

impl Copies {
    /// Returns the half of the later batch, if that is known.
    pub fn later(&self) -> Option<usize> {
        match self.numbers {
            _ if self.unread.is_some() => None,
            [Some(0), _] | [_, Some(0)] => None,
            [Some(one), Some(other)] => {
                (one != other).then_some(usize::from(one.wrapping_sub(other) > u32::MAX / 2))
            }
            [one, other] => one.map(|_| 0).or(other.map(|_| 1)),
        }
    }

    /// Returns whether a page was durable in its data file before the last batch was written to the data files, and is
    /// not in that batch. The last batch is the later one, or the earlier one if a crash has left copies of the later
    /// one that are not whole.
    pub(crate) fn was_durable_before_last_batch(&self, id: &PageId) -> bool {
        self.later().is_some_and(|later| {
            let has = |half: usize| self.named[half].contains(id);
            !has(later) || (!has(1 - later) && !self.is_whole(later))
        })
    }

    /// Returns whether every copy that a half names is whole.
    fn is_whole(&self, half: usize) -> bool {
        let has_copy = |id| self.pages.get(id).is_some_and(|found| found.lsns[half].is_some());
        self.named[half].iter().all(has_copy)
    }

    /// Returns a number such that no batch in the file has the one after it, even if a half cannot be read: the two
    /// batches have consecutive numbers.
    pub(crate) fn last_number(&self) -> u32 {
        let later = self.later().unwrap_or_default();
        self.numbers[later].or(self.numbers[1 - later]).map_or(0, following)
    }

    /// Reads from a half of the file. Returns whether all bytes exist and can be read.
    fn read(&mut self, disk: &dyn Disk, turn: u64, offset: u64, out: &mut [u8]) -> Result<bool> {
        match disk.read(FileName::Doublewrite, offset, out) {
            Ok(got) => Ok(got == out.len()),
            Err(error) if error.is_read_error() => {
                tracing::warn!(
                    target: "windfall::storage",
                    %error, "a part of the doublewrite file cannot be read",
                );
                self.unread = Some(turn);
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Collects the copies of one half.
fn collect(disk: &dyn Disk, page_size: usize, room: usize, turn: u64, copies: &mut Copies) -> Result<()> {
    let start = turn * half(page_size, room);
    let mut header = vec![0; HEADER];
    let is_read = copies.read(disk, turn, start, &mut header)?;
    copies.read[turn as usize].extend_from_slice(&header);
    if !is_read
        || header[..8] != *MAGIC
        || u32::from_le_bytes(field(&header, 8)) != crc32c::crc32c(&header[12..])
        || u32::from_le_bytes(field(&header, 12)) as usize != page_size
    {
        return Ok(());
    }
    copies.numbers[turn as usize] = Some(u32::from_le_bytes(field(&header, 20)));
    let count = (u32::from_le_bytes(field(&header, 16)) as usize).min(room);
    for n in 0..count {
        let at = ENTRIES_AT + n * ENTRY;
        let id = PageId {
            space: SpaceId(u64::from_le_bytes(field(&header, at))),
            page: PageNo(u32::from_le_bytes(field(&header, at + 16))),
        };
        let lsn = Lsn(u64::from_le_bytes(field(&header, at + 8)));
        copies.named[turn as usize].insert(id);
        let mut bytes = vec![0; page_size];
        let is_read = copies.read(disk, turn, start + (HEADER + n * page_size) as u64, &mut bytes)?;
        copies.read[turn as usize].extend_from_slice(&bytes);
        if !is_read {
            continue;
        }
        let words = words(&bytes);
        let page = Page::new(&words);
        if page.verify(id).is_ok() && page.lsn() == lsn {
            let found =
                copies.pages.entry(id).or_insert(CopyFound { lsn, bytes: Vec::new(), lsns: [None; 2] });
            // Bytes that were not written as a batch may name a page twice.
            let of_half = &mut found.lsns[turn as usize];
            *of_half = (*of_half).max(Some(lsn));
            if found.lsn <= lsn {
                (found.lsn, found.bytes) = (lsn, bytes);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use windfall_sim::{Fault, SimulatedDisk, Survive};

    use super::*;
    use crate::error::IoOp;

    const SIZE: usize = 4096;
    const ROOM: usize = 4;

    /// Returns a page with a valid header: its id and its LSN.
    fn sealed(page: u32, lsn: u64) -> (PageId, IoBuffer) {
        let id = PageId { space: SpaceId(20), page: PageNo(page) };
        let words = words(&[0; SIZE]);
        let made = Page::new(&words);
        made.set_u64(8, id.space.0);
        made.set_u64(16, lsn);
        made.set_u32(24, page);
        made.seal();
        let (mut bytes, mut buffer) = (Vec::new(), IoBuffer::new(SIZE));
        made.append_to(0, SIZE, &mut bytes);
        buffer.bytes_mut()[..SIZE].copy_from_slice(&bytes);
        (id, buffer)
    }

    #[test]
    fn the_later_batch_is_known_by_its_number() {
        let found = |numbers, unread| {
            let copies = Copies { unread, numbers, ..Copies::default() };
            (copies.later(), copies.last_number())
        };
        assert_eq!(found([None; 2], None), (None, 0));
        assert_eq!(found([Some(7), None], None), (Some(0), 8));
        assert_eq!(found([None, Some(7)], None), (Some(1), 8));
        assert_eq!(found([Some(7), Some(8)], None), (Some(1), 9));
        assert_eq!(found([Some(9), Some(8)], None), (Some(0), 10));
        assert_eq!(found([Some(1), Some(u32::MAX)], None), (Some(0), 2));
        assert_eq!(found([Some(u32::MAX), Some(u32::MAX - 1)], None), (Some(0), 1));
        // From before batches had numbers, and with a half that cannot be read.
        assert_eq!(found([Some(0), Some(0)], None), (None, 1));
        assert_eq!(found([Some(0), Some(7)], None).0, None);
        assert_eq!(found([Some(7), Some(8)], Some(1)), (None, 8));
        assert_eq!(found([None, Some(7)], Some(0)), (None, 8));
    }

    #[test]
    fn batches_have_numbers_that_rise() {
        let disk = SimulatedDisk::new(1);
        let mut file = Doublewrite::default();
        Doublewrite::create(&disk, SIZE, ROOM).unwrap();
        for (half, number) in [(0, 1), (1, 2), (0, 3)] {
            let (id, page) = sealed(1, u64::from(number));
            file.write(&disk, &mut *disk.queue(), &[(id, &page)], SIZE).unwrap();
            let copies = Doublewrite::copies(&disk, SIZE).unwrap();
            assert_eq!((copies.numbers[half], copies.later()), (Some(number), Some(half)));
        }
    }

    /// A page that the later batch names was not durable in its data file, unless that batch never reached the data
    /// files.
    #[test]
    fn pages_that_were_durable_before_the_last_batch_are_known() {
        let disk = SimulatedDisk::new(1);
        let mut file = Doublewrite::default();
        Doublewrite::create(&disk, SIZE, ROOM).unwrap();
        for pages in [[1, 2], [2, 3]] {
            let batch = pages.map(|page| sealed(page, 10));
            let pages = batch.each_ref().map(|(id, page)| (*id, page));
            file.write(&disk, &mut *disk.queue(), &pages, SIZE).unwrap();
        }
        let durable =
            |copies: &Copies| [1, 2, 3].map(|page| copies.was_durable_before_last_batch(&sealed(page, 10).0));
        let copies = Doublewrite::copies(&disk, SIZE).unwrap();
        assert!(copies.is_whole(1));
        assert_eq!(durable(&copies), [true, false, false]);
        let last = half(SIZE, ROOM) + HEADER as u64 + SIZE as u64 - 8;
        assert!(disk.corrupt(FileName::Doublewrite, last, 1));
        let copies = Doublewrite::copies(&disk, SIZE).unwrap();
        assert!(!copies.is_whole(1));
        assert_eq!(durable(&copies), [true, false, true]);
        let lsns: Vec<_> =
            copies.pages.values().map(|found| found.lsns.map(|lsn| lsn.map(|lsn| lsn.0))).collect();
        assert_eq!(lsns, [[Some(10), None], [Some(10), None], [None, Some(10)]]);
    }

    #[test]
    fn a_copy_counts_if_it_is_the_one_that_the_header_names() {
        let disk = SimulatedDisk::new(1);
        let mut file = Doublewrite::default();
        Doublewrite::create(&disk, SIZE, ROOM).unwrap();
        let batch = |lsns: [u64; 4]| (1..).zip(lsns).map(|(page, lsn)| sealed(page, lsn)).collect::<Vec<_>>();
        let found = || {
            let copies = Doublewrite::copies(&disk, SIZE).unwrap();
            copies.pages.into_iter().map(|(id, found)| (id.page.0, found.lsn.0)).collect::<Vec<_>>()
        };
        for lsns in [[10, 11, 12, 13], [20, 21, 22, 9]] {
            let batch = batch(lsns);
            let pages: Vec<_> = batch.iter().map(|(id, page)| (*id, page)).collect();
            file.write(&disk, &mut *disk.queue(), &pages, SIZE).unwrap();
        }
        assert_eq!(found(), [(1, 20), (2, 21), (3, 22), (4, 13)], "the youngest of each page");
        // In the second batch one copy is torn, one is of another LSN, and one is of another page.
        let put = |n: usize, bytes: &[u8]| {
            let at = half(SIZE, ROOM) + (HEADER + n * SIZE) as u64;
            disk.write(FileName::Doublewrite, at, bytes).unwrap();
        };
        let mut torn = sealed(1, 20).1;
        torn.bytes_mut()[600] ^= 1;
        put(0, torn.bytes());
        put(1, sealed(2, 23).1.bytes());
        put(2, sealed(9, 22).1.bytes());
        assert_eq!(found(), [(1, 10), (2, 11), (3, 12), (4, 13)]);
    }

    /// Two batches in a file with room for two pages, which must become larger for a third one.
    fn about_to_grow() -> (SimulatedDisk, Doublewrite) {
        let (disk, mut file) = (SimulatedDisk::new(1), Doublewrite::default());
        Doublewrite::create(&disk, SIZE, SMALLEST_ROOM).unwrap();
        disk.sync_folder(Folder::Root).unwrap();
        write_batch(&disk, &mut file, 1..3, 10).unwrap();
        write_batch(&disk, &mut file, 2..4, 11).unwrap();
        (disk, file)
    }

    fn write_batch(
        disk: &SimulatedDisk,
        file: &mut Doublewrite,
        pages: core::ops::Range<u32>,
        lsn: u64,
    ) -> Result<usize, DiskError> {
        let room = file.make_room(disk, SIZE, pages.len())?;
        let batch: Vec<_> = pages.take(room).map(|page| sealed(page, lsn)).collect();
        let pages: Vec<_> = batch.iter().map(|(id, page)| (*id, page)).collect();
        file.write(disk, &mut *disk.queue(), &pages, SIZE)?;
        Ok(room)
    }

    fn found(disk: &SimulatedDisk) -> Vec<(u32, u64)> {
        let pages = Doublewrite::copies(disk, SIZE).unwrap().pages;
        pages.into_iter().map(|(id, found)| (id.page.0, found.lsn.0)).collect()
    }

    #[test]
    fn the_file_grows_for_a_large_batch_and_keeps_its_copies() {
        let small = [(1, 10), (2, 11), (3, 11)];
        let operations = {
            let (disk, mut file) = about_to_grow();
            assert_eq!(disk.len(FileName::Doublewrite).unwrap(), Some(2 * half(SIZE, SMALLEST_ROOM)));
            let before = disk.operations();
            assert_eq!(file.make_room(&disk, SIZE, 5).unwrap(), ROOMS[0]);
            assert_eq!(found(&disk), small);
            assert_eq!(write_batch(&disk, &mut file, 5..10, 12).unwrap(), ROOMS[0]);
            assert_eq!(found(&disk)[..], [(2, 11), (3, 11), (5, 12), (6, 12), (7, 12), (8, 12), (9, 12)]);
            let operations = before + 1..=disk.operations();
            assert_eq!(write_batch(&disk, &mut file, 0..200, 13).unwrap(), BATCH_PAGES);
            assert_eq!(Doublewrite::default().room(&disk, SIZE).unwrap(), BATCH_PAGES);
            operations
        };
        // Whatever step is the last: the copies of the last batch are there, and those of the one before it until the
        // new batch is durable.
        for at in operations {
            let (disk, mut file) = about_to_grow();
            disk.crash_at(at);
            write_batch(&disk, &mut file, 5..10, 12).unwrap_err();
            for survive in
                [Survive::Nothing, Survive::Everything, Survive::Random(at), Survive::Random(at + 1)]
            {
                let left = found(&disk.restart(survive));
                assert!(left.contains(&(2, 11)) && left.contains(&(3, 11)), "operation {at}: {left:?}");
            }
        }
    }

    #[test]
    fn without_space_the_batches_stay_small() {
        let (disk, mut file) = about_to_grow();
        disk.set_capacity(Some(disk.used()));
        assert_eq!(write_batch(&disk, &mut file, 5..10, 12).unwrap(), SMALLEST_ROOM);
        assert_eq!(found(&disk), [(2, 11), (3, 11), (5, 12), (6, 12)]);
        assert_eq!(disk.len(FileName::NewDoublewrite).unwrap(), None);
        // It is not tried with each batch.
        disk.set_capacity(None);
        let before = disk.operations();
        for n in 0..BATCHES_BETWEEN_ATTEMPTS {
            assert_eq!(write_batch(&disk, &mut file, 5..10, 13 + u64::from(n)).unwrap(), SMALLEST_ROOM);
        }
        assert_eq!(disk.operations() - before, 2 * u64::from(BATCHES_BETWEEN_ATTEMPTS), "a write and a sync");
        assert_eq!(write_batch(&disk, &mut file, 5..10, 99).unwrap(), ROOMS[0]);
        // There is no pause any more.
        assert_eq!(write_batch(&disk, &mut file, 5..105, 100).unwrap(), BATCH_PAGES);
    }

    #[test]
    fn with_little_space_the_file_grows_as_far_as_it_can() {
        let (disk, mut file) = about_to_grow();
        disk.set_capacity(Some(disk.used() + 2 * half(SIZE, ROOMS[0])));
        assert_eq!(write_batch(&disk, &mut file, 5..105, 12).unwrap(), ROOMS[0]);
        assert_eq!(found(&disk).len(), 2 + ROOMS[0]);
        disk.set_capacity(None);
        for _ in 0..BATCHES_BETWEEN_ATTEMPTS {
            assert_eq!(file.make_room(&disk, SIZE, 100).unwrap(), ROOMS[0]);
        }
        assert_eq!(file.make_room(&disk, SIZE, 100).unwrap(), BATCH_PAGES);
    }

    /// Batches are written to the file that has the name, where the next opening looks for them.
    #[test]
    fn a_rename_that_reports_a_failure_and_happens_is_noticed() {
        for fault in [Fault::LateFailure, Fault::Fails] {
            let (disk, mut file) = about_to_grow();
            // The file is created, its space is reserved, both halves are written, and it is synced.
            disk.fail_nth(if fault == Fault::Fails { 6 } else { 1 }, fault, false);
            let room = if fault == Fault::Fails { SMALLEST_ROOM } else { ROOMS[0] };
            assert_eq!(file.make_room(&disk, SIZE, 5).unwrap(), room, "{fault:?}");
            assert_eq!(disk.failed(), Some((IoOp::Rename, FileName::NewDoublewrite)), "{fault:?}");
            let pages: Vec<_> = (5..5 + room as u32).map(|page| sealed(page, 12)).collect();
            let pages: Vec<_> = pages.iter().map(|(id, page)| (*id, page)).collect();
            file.write(&disk, &mut *disk.queue(), &pages, SIZE).unwrap();
            for survive in [Survive::Nothing, Survive::Everything] {
                let left = found(&disk.survivor(survive));
                assert_eq!(left.len(), 2 + room, "{fault:?}, {survive}: {left:?}");
                assert!(left.starts_with(&[(2, 11), (3, 11), (5, 12)]), "{fault:?}, {survive}: {left:?}");
            }
        }
    }
}
