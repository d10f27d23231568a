//! The fuzz target of the doublewrite file.
//!
//! **Purpose.** Reads a file with two halves, with headers and copies that match each other or do not.
//!
//! **Invariants.** A copy that is returned is whole, is the page that the header names, and is the newest such copy
//! (checked by `buffer/fuzz.rs::doublewrite`).

use std::collections::BTreeMap;

use windfall_sim::SimulatedDisk;

use super::doublewrite::{BATCH_PAGES, Doublewrite, ENTRIES_AT, ENTRY, HEADER, MAGIC, half};
use crate::{
    disk::{Disk, FileName},
    fuzz_input::Input,
    ids::{Lsn, PageId, PageNo, SpaceId},
    page::{
        Page,
        fuzz::{SIZE, bytes, words},
    },
};

/// The leading bytes of a copy that come from the input.
const HEAD: usize = 32;

/// Builds a doublewrite file, and checks that exactly the expected copies are found.
pub fn doublewrite(data: &[u8]) {
    let mut input = Input(data);
    let disk = SimulatedDisk::new(1);
    let file = FileName::Doublewrite;
    let mut written = Doublewrite::create(&disk, SIZE, BATCH_PAGES).is_ok();
    let mut expected: BTreeMap<PageId, Lsn> = BTreeMap::new();
    for turn in 0..2 {
        let start = turn * half(SIZE, BATCH_PAGES);
        let (flags, entries, said) = (input.u8(), input.u8() % 5, input.u16());
        let mut header = vec![0; HEADER];
        header[..8].copy_from_slice(if flags & 1 == 1 { b"anything" } else { MAGIC });
        header[12..16].copy_from_slice(&((SIZE as u32) << (flags >> 1 & 1)).to_le_bytes());
        header[16..20].copy_from_slice(&u32::from(said).to_le_bytes());
        let counts = flags % 8 == 0;
        for n in 0..usize::from(entries) {
            let at = ENTRIES_AT + n * ENTRY;
            let (wrong, entry, head) = (input.u8(), input.take(20), input.take(HEAD));
            header[at..at + entry.len()].copy_from_slice(entry);
            let words = words(head);
            let page = Page::new(&words);
            let field = |at: usize| {
                let bytes: [u8; 8] = core::array::from_fn(|n| entry.get(at + n).copied().unwrap_or(0));
                u64::from_le_bytes(bytes)
            };
            let id = PageId { space: SpaceId(field(0)), page: PageNo(field(16) as u32) };
            let lsn = Lsn(field(8));
            if wrong & 1 == 0 {
                page.set_u64(8, id.space.0);
                page.set_u64(16, lsn.0);
                page.set_u32(24, id.page.0);
            }
            if wrong & 2 == 0 {
                page.seal();
            }
            let is_whole = page.u32(0) == page.checksum() && page.id() == id && page.lsn() == lsn;
            if counts && n < usize::from(said) && is_whole {
                let youngest = expected.entry(id).or_insert(lsn);
                *youngest = lsn.max(*youngest);
            }
            written &= disk.write(file, start + (HEADER + n * SIZE) as u64, &bytes(page)).is_ok();
        }
        let crc = crc32c::crc32c(&header[12..]) ^ u32::from(flags >> 2 & 1);
        header[8..12].copy_from_slice(&crc.to_le_bytes());
        written &= disk.write(file, start, &header).is_ok();
    }
    assert!(written, "the disk takes everything");
    let copies = Doublewrite::copies(&disk, SIZE).unwrap_or_default().pages;
    let found: BTreeMap<PageId, Lsn> = copies.iter().map(|(id, found)| (*id, found.lsn)).collect();
    assert_eq!(found, expected);
    for (id, found) in copies {
        let words = words(&found.bytes);
        let page = Page::new(&words);
        assert!(found.bytes.len() == SIZE && page.verify(id) == Ok(()) && page.lsn() == found.lsn);
        assert_eq!(found.lsns.iter().max(), Some(&Some(found.lsn)), "a copy of {id} is in no half");
    }
}

/// Returns files of two batches: with the same page in both, a torn copy, a wrong header.
pub fn doublewrite_seeds() -> Vec<Vec<u8>> {
    let copy = |wrong: u8, space: u64, lsn: u64, page: u32| {
        [&[wrong][..], &space.to_le_bytes(), &lsn.to_le_bytes(), &page.to_le_bytes(), &[7; HEAD]].concat()
    };
    let batch = |flags: u8, copies: &[Vec<u8>]| {
        let said = copies.len() as u16;
        [&[flags, said as u8][..], &said.to_le_bytes(), &copies.concat()].concat()
    };
    let first = batch(0, &[copy(0, 20, 800, 3), copy(0, 20, 900, 4), copy(2, 21, 900, 1)]);
    let second = batch(0, &[copy(0, 20, 1000, 3), copy(1, 22, 100, 9)]);
    vec![
        [&first[..], &second].concat(),
        [&second[..], &first].concat(),
        [first.clone(), batch(4, &[copy(0, 20, 5000, 3)])].concat(),
        [first, batch(2, &[copy(0, 20, 5000, 3)])].concat(),
    ]
}
