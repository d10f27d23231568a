//! The doublewrite file: a page is on disk twice while it is being written, so that a torn write is survived.
//!
//! **Purpose.** A page write is not atomic: a crash may leave half of it. So a batch of pages goes to this file first,
//! which is synced before the pages are written to their places. Redo then needs only pages that are whole. Pages of
//! temporary tablespaces do not go here: their files are never synced, and nothing of them counts behind a crash.
//!
//! **Invariants.** There is one batch at a time: the next begins when the pages of the last are durable in their
//! places, or are among its own, because their writes failed. The file has two halves for batches to take turns: what
//! the last batch may have torn stays whole here until the next one is. The header block names the pages of the batch
//! with their LSNs; a copy counts only if it is just the one that the header names, and of two the younger, so copies
//! left over from earlier batches can never bring old content back; beside a half that cannot be read one may be
//! outdated, and recovery asks the floor of the log. What cannot be read is no header, and no copy: a device may leave
//! a sector so whose write a loss of power has cut off. Batches are numbered, so it is known which of two whole headers
//! is the later one: what only the earlier one names was durable in its place before the later one was written. A batch
//! of which a crash has left a copy that is not whole never came to the pages' places; a copy that a device has damaged
//! since the crash looks just so.
//!
//! What recovery finds here need not be durable, and a sync does not prove that it is: if an earlier one has failed,
//! the system shows what it has lost. So before recovery relies on copies it writes them to a new file, which takes the
//! place of this one when it is durable. This one is not written for that: as long as no page has been written, the
//! next opening finds the same copies, whatever fails or is cut off, or after a crash of the machine those of them that
//! were durable before. In two cases it stays, and it and its name are synced, which is enough unless a sync has failed
//! before:
//!
//! - A part of it cannot be read. That may have the only whole copy of a page, and be read one day.
//! - A full disk has no room for the new file: it would keep a database closed in which a drop could make room.
//!
//! **May touch.** `disk`, `page`.
//!
//! # File format
//!
//! Two halves, each with room for [`PAGES`] pages. In each:
//!
//! | offset | size | field |
//! | --- | --- | --- |
//! | 0 | 8 | `"WFDBLWR1"` |
//! | 8 | 4 | CRC-32C of the bytes from 12 to the end of the header |
//! | 12 | 4 | page size |
//! | 16 | 4 | pages in the batch |
//! | 20 | 4 | number of the batch; zero when it is not known which one it was |
//! | 24 | 24 each | tablespace, page LSN (8 bytes each), page number, zero (4 bytes each) |
//! | header size | page size each | the copies |
//!
//! The header has as many 4 KiB blocks as [`PAGES`] entries need.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    disk::{Action, Disk, FileName, Folder, IoBuffer, Queue, Request},
    error::{DiskError, Result},
    ids::{Lsn, PageId, PageNo, SpaceId},
    page::Page,
    sync::{Bug, atomic::AtomicU64, planted},
};

/// The most pages of a batch.
pub const PAGES: usize = 128;
pub(super) const MAGIC: &[u8; 8] = b"WFDBLWR1";
pub(super) const ENTRIES_AT: usize = 24;
pub(super) const ENTRY: usize = 24;
pub(super) const HEADER: usize = (ENTRIES_AT + PAGES * ENTRY).next_multiple_of(4096);

/// The doublewrite file.
#[derive(Debug, Default)]
pub struct Doublewrite {
    /// The half that the next batch takes over, 0 or 1.
    turn: u64,
    /// The number of the last batch.
    number: u32,
    /// Of the last batch, to be used again: new memory for each would be cleared by the system, page by page.
    buffer: IoBuffer,
}

/// Bytes of one half.
pub(super) fn half(page_size: usize) -> u64 {
    (HEADER + PAGES * page_size) as u64
}

/// Bytes of a page as words, to be looked at as a page.
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
    /// Makes the file, with room for two batches. Its name is durable when the folder is synced.
    ///
    /// # Errors
    /// I/O.
    pub fn create(disk: &dyn Disk, page_size: usize) -> Result<()> {
        reserve(disk, FileName::Doublewrite, page_size)?;
        disk.sync(FileName::Doublewrite)?;
        Ok(())
    }

    /// Removes a new file that an opening has left that failed or was cut off. If that cannot be done it stays, which
    /// takes only room: it is never read, and the next one is made in its place.
    pub fn remove_new(disk: &dyn Disk) {
        let file = FileName::NewDoublewrite;
        let remove = || if disk.len(file)?.is_some() { disk.remove(file) } else { Ok(()) };
        if let Err(error) = remove() {
            tracing::warn!(%error, "a new doublewrite file that is not needed is not removed");
        }
    }

    /// Makes durable what was read of the file, before anything relies on it: in a new file, which takes its place.
    ///
    /// # Errors
    /// I/O. No page may be written then. The next opening finds what this one has found, or, if the machine crashes
    /// before the new name is durable, what was durable of it before.
    pub fn make_durable(disk: &dyn Disk, copies: &Copies, page_size: usize) -> Result<(), DiskError> {
        let file = FileName::NewDoublewrite;
        let replace = || {
            reserve(disk, file, page_size)?;
            let mut halves = (0..).zip(&copies.read);
            halves.try_for_each(|(turn, bytes)| disk.write(file, turn * half(page_size), bytes))?;
            // Some file systems look for space only now.
            if !planted(Bug::CopiesFoundNotSynced) {
                disk.sync(file)?;
            }
            disk.rename(file, FileName::Doublewrite)
        };
        let is_replaced = if copies.unread.is_some() {
            false
        } else {
            match replace() {
                Err(error) if error.is_of_space() => {
                    tracing::warn!(%error, "what is found in the doublewrite file is synced only");
                    Self::remove_new(disk);
                    false
                }
                replaced => replaced.map(|()| true)?,
            }
        };
        if !is_replaced {
            disk.sync(FileName::Doublewrite)?;
        }
        // In any case: an opening that was killed may have given the file its name, which is not durable yet.
        disk.sync_folder(Folder::Root)
    }

    /// The next batch takes over this half, and has the number behind this one.
    pub(super) fn go_on(&mut self, half: u64, number: u32) {
        (self.turn, self.number) = (half, number);
    }

    /// Writes the copies of a batch and makes them durable. A failure leaves the batch before as it was.
    pub(super) fn write(
        &mut self,
        disk: &dyn Disk,
        queue: &mut dyn Queue,
        pages: &[(PageId, &IoBuffer)],
        page_size: usize,
    ) -> Result<(), DiskError> {
        debug_assert!(pages.len() <= PAGES, "a batch of {} pages", pages.len());
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
            let copy = HEADER + n * page_size;
            bytes[copy..copy + page_size].copy_from_slice(&page.bytes()[..page_size]);
        }
        let crc = crc32c::crc32c(&bytes[12..HEADER]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        queue.submit(vec![Request {
            token: 0,
            file: FileName::Doublewrite,
            offset: self.turn * half(page_size),
            action: Action::Write,
            buffer,
        }]);
        while queue.pending() > 0 {
            for done in queue.complete(true) {
                self.buffer = done.buffer;
                done.result?;
            }
        }
        if !planted(Bug::CopiesNotSynced) {
            disk.sync(FileName::Doublewrite)?;
        }
        self.go_on(1 - self.turn, number);
        Ok(())
    }

    /// The copies that are whole.
    ///
    /// # Errors
    /// I/O. A header or a copy that is not whole, or cannot be read, is none: then the batch never reached the pages'
    /// places.
    pub fn copies(disk: &dyn Disk, page_size: usize) -> Result<Copies> {
        let mut copies = Copies::default();
        if disk.len(FileName::Doublewrite)?.is_some() {
            for turn in 0..2 {
                collect(disk, page_size, turn, &mut copies)?;
            }
        }
        Ok(copies)
    }
}

/// Makes a file with room for two batches.
fn reserve(disk: &dyn Disk, file: FileName, page_size: usize) -> Result<(), DiskError> {
    disk.create(file)?;
    disk.preallocate(file, 0, 2 * half(page_size))
}

/// The number of the batch that follows. None has zero.
fn following(number: u32) -> u32 {
    number.wrapping_add(1).max(1)
}

/// The youngest copy of a page.
#[derive(Debug)]
pub struct CopyFound {
    /// The LSN of the page.
    pub lsn: Lsn,
    /// The page.
    pub bytes: Vec<u8>,
    /// The LSNs of the page's copies, by their halves.
    pub lsns: [Option<Lsn>; 2],
}

/// What is found in the file.
#[derive(Debug, Default)]
pub struct Copies {
    /// The youngest copy of each page: among them are those of all pages that may be torn in their places.
    pub pages: BTreeMap<PageId, CopyFound>,
    /// The half of which something cannot be read. It may have had a younger copy.
    pub unread: Option<u64>,
    /// The numbers of the batches, by their halves.
    numbers: [Option<u32>; 2],
    /// The pages of the batches, by their halves. A copy of one of them need not be whole.
    named: [BTreeSet<PageId>; 2],
    /// What was read of the halves: their headers, and the copies that these name.
    read: [Vec<u8>; 2],
}

impl Copies {
    /// The half of the later batch, if that is known.
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

    /// Whether a page was durable in its place before the last batch came to the places of its pages, and is not of
    /// that batch. That is the later batch, or the earlier one if a crash has left copies of the later one that are not
    /// whole.
    pub fn was_durable_before_last_batch(&self, id: &PageId) -> bool {
        self.later().is_some_and(|later| {
            let has = |half: usize| self.named[half].contains(id);
            !has(later) || (!has(1 - later) && !self.is_whole(later))
        })
    }

    /// Whether every copy that a half names is whole.
    fn is_whole(&self, half: usize) -> bool {
        let has_copy = |id| self.pages.get(id).is_some_and(|found| found.lsns[half].is_some());
        self.named[half].iter().all(has_copy)
    }

    /// A number of which no batch in the file has one behind it, whether its half can be read or not: the two batches
    /// have neighbouring numbers.
    pub fn last_number(&self) -> u32 {
        let later = self.later().unwrap_or_default();
        self.numbers[later].or(self.numbers[1 - later]).map_or(0, following)
    }

    /// Reads from a half of the file. Says whether all of it is there and can be read.
    fn read(&mut self, disk: &dyn Disk, turn: u64, offset: u64, out: &mut [u8]) -> Result<bool> {
        match disk.read(FileName::Doublewrite, offset, out) {
            Ok(got) => Ok(got == out.len()),
            Err(error) if error.is_of_read() => {
                tracing::warn!(%error, "a part of the doublewrite file cannot be read");
                self.unread = Some(turn);
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Collects the copies of one half.
fn collect(disk: &dyn Disk, page_size: usize, turn: u64, copies: &mut Copies) -> Result<()> {
    let start = turn * half(page_size);
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
    let count = (u32::from_le_bytes(field(&header, 16)) as usize).min(PAGES);
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
            // Bytes that no batch has written may name a page twice.
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
    use windfall_sim::SimulatedDisk;

    use super::*;
    const SIZE: usize = 4096;

    /// A page that says of itself what it is, and its LSN.
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
        // From before batches had numbers, and where a half cannot be read.
        assert_eq!(found([Some(0), Some(0)], None), (None, 1));
        assert_eq!(found([Some(0), Some(7)], None).0, None);
        assert_eq!(found([Some(7), Some(8)], Some(1)), (None, 8));
        assert_eq!(found([None, Some(7)], Some(0)), (None, 8));
    }

    #[test]
    fn batches_have_numbers_that_rise() {
        let disk = SimulatedDisk::new(1);
        let mut file = Doublewrite::default();
        Doublewrite::create(&disk, SIZE).unwrap();
        for (half, number) in [(0, 1), (1, 2), (0, 3)] {
            let (id, page) = sealed(1, u64::from(number));
            file.write(&disk, &mut *disk.queue(), &[(id, &page)], SIZE).unwrap();
            let copies = Doublewrite::copies(&disk, SIZE).unwrap();
            assert_eq!((copies.numbers[half], copies.later()), (Some(number), Some(half)));
        }
    }

    /// A page that the later batch names was not durable in its place, unless that batch never came to its places.
    #[test]
    fn pages_that_were_durable_before_the_last_batch_are_known() {
        let disk = SimulatedDisk::new(1);
        let mut file = Doublewrite::default();
        Doublewrite::create(&disk, SIZE).unwrap();
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
        let last = half(SIZE) + HEADER as u64 + SIZE as u64 - 8;
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
        Doublewrite::create(&disk, SIZE).unwrap();
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
        // Of the second batch one copy is torn, and one is whole and another page's, or of another time.
        let put = |n: usize, bytes: &[u8]| {
            let at = half(SIZE) + (HEADER + n * SIZE) as u64;
            disk.write(FileName::Doublewrite, at, bytes).unwrap();
        };
        let mut torn = sealed(1, 20).1;
        torn.bytes_mut()[600] ^= 1;
        put(0, torn.bytes());
        put(1, sealed(2, 23).1.bytes());
        put(2, sealed(9, 22).1.bytes());
        assert_eq!(found(), [(1, 10), (2, 11), (3, 12), (4, 13)]);
    }
}
