//! Long values: chains of overflow pages in the tree's own tablespace.
//!
//! **Purpose.** Values longer than [`Tree::inline_limit`], up to 4 GiB, are written and read as streams, page by page.
//! The entry then holds an [`OverflowRef`] in place of the value, and a flag in its header.
//!
//! **Invariants.** A page is linked in the mini-transaction that allocates it, so a chain can be walked from its first
//! page at any time, however little of it is written yet (test:
//! `a_chain_can_be_walked_and_freed_however_far_it_was_written`). A chain is freed from its second page on, in bounded
//! steps, and its first page last: after a crash at any point, a walk from the first page finds the rest (test:
//! `a_chain_can_be_walked_and_freed_however_far_it_was_written`). A caller that has logged the first page (in undo) can
//! thus free the whole chain, and no page is freed twice (checked by `tree/testpool.rs::free`). Each page carries the
//! chain's stamp and its place in the chain (checked by `tree/overflow.rs::flush`). If a reader's chain was freed and
//! the pages used again, the reader gets an error and not another value's bytes (test:
//! `a_reader_never_takes_another_value_for_its_own`).
//!
//! A chain belongs to the version of an entry, and the caller that frees it must ensure that no reader can still need
//! that version (test: `a_value_of_a_temporary_table_that_is_read_is_that_of_the_beginning`). So a reader that finds
//! its chain freed nevertheless should read the entry again.
//!
//! # Layout of an overflow page, byte by byte
//!
//! | offset | size | field |
//! | --- | --- | --- |
//! | 0 | 28 | page header, type 4 |
//! | 28 | 4 | the next page of the chain; `0xffff_ffff` in the last |
//! | 32 | 8 | stamp of the chain |
//! | 40 | 4 | place in the chain; 0 in the first page |
//! | 44 | 4 | bytes of the value in this page |
//! | 48 | | those bytes |
//!
//! # An overflow reference, in an entry's value
//!
//! | offset | size | field |
//! | --- | --- | --- |
//! | 0 | 8 | total length in bytes |
//! | 8 | 8 | stamp of the chain |
//! | 16 | 4 | first page |

use core::ops::Deref;

use super::{
    Parts, Tree,
    store::{Access, MiniTransaction, PageStore, Reading, Shared},
};
use crate::{
    error::{Owner, Result, UsageError},
    ids::{Lsn, PageNo},
    page::{Page, PageOp, PageType},
};

const NEXT: usize = 28;
const STAMP: usize = 32;
const PLACE: usize = 40;
const LEN: usize = 44;
const DATA: usize = 48;

/// The maximum length of a value, in bytes.
pub const VALUE_BYTES_MAX: u64 = 4 << 30;

/// The stored reference to a long value, in place of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverflowRef {
    /// The value's length in bytes.
    pub length: u64,
    /// The chain's stamp, chosen by its writer. It must differ from that of any earlier chain with the same first page.
    pub stamp: u64,
    /// The first page of the chain.
    pub first: PageNo,
}

impl OverflowRef {
    /// Bytes of the stored form.
    pub const SIZE: usize = 20;

    /// Encodes the stored form.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.stamp.to_le_bytes());
        bytes[16..].copy_from_slice(&self.first.0.to_le_bytes());
        bytes
    }

    /// Decodes the stored form; `None` if the bytes are not one.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (length, rest) = bytes.split_first_chunk()?;
        let (stamp, rest) = rest.split_first_chunk()?;
        Some(Self {
            length: u64::from_le_bytes(*length),
            stamp: u64::from_le_bytes(*stamp),
            first: PageNo(u32::from_le_bytes(rest.try_into().ok()?)),
        })
    }
}

/// The header fields of an overflow page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub next: PageNo,
    stamp: u64,
    place: u32,
    pub len: usize,
}

impl Link {
    /// Reads the fields. `None` if the page is not at this place of this chain, or its fields are invalid.
    pub(super) fn of(page: Page<'_>, stamp: u64, place: u32) -> Option<Self> {
        let link = Self {
            next: PageNo(page.u32(NEXT)),
            stamp: page.u64(STAMP),
            place: page.u32(PLACE),
            len: page.u32(LEN) as usize,
        };
        let fits = page.page_type() == PageType::Overflow as u8
            && link.stamp == stamp
            && link.place == place
            && link.len <= capacity(page.len());
        fits.then_some(link)
    }

    /// Returns the place that an overflow page itself records.
    pub(super) fn place_of(page: Page<'_>) -> u32 {
        page.u32(PLACE)
    }

    fn to_bytes(self) -> [u8; DATA - NEXT] {
        let mut bytes = [0; DATA - NEXT];
        bytes[..4].copy_from_slice(&self.next.0.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.stamp.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.place.to_le_bytes());
        bytes[16..].copy_from_slice(&(self.len as u32).to_le_bytes());
        bytes
    }
}

/// Returns the bytes of a value that fit a page.
pub(super) const fn capacity(page_size: usize) -> usize {
    page_size - DATA
}

/// Writes a long value chunk by chunk.
#[derive(Debug)]
pub struct OverflowWriter<'t, S: PageStore> {
    tree: &'t Tree<S>,
    stamp: u64,
    first: PageNo,
    last: PageNo,
    /// The place of the last page.
    place: u32,
    length: u64,
    /// Bytes not written to a page yet.
    pending: Vec<u8>,
    chunks: Parts,
}

impl<S: PageStore> Tree<S> {
    /// Begins a chain: allocates its first page, empty, in the caller's mini-transaction, so that the caller can record
    /// the page in undo in the same group. `mtr` must hold no allocation map and, if the tree has no root yet, nothing
    /// at all of this tablespace. The writer must be used only after that mini-transaction is committed.
    ///
    /// # Errors
    /// The errors of [`MiniTransaction::allocate`].
    pub fn begin_overflow(
        &self,
        mtr: &mut S::MiniTransaction<'_>,
        stamp: u64,
    ) -> Result<OverflowWriter<'_, S>> {
        self.ensure_root()?;
        let page = mtr.allocate(&self.space, PageType::Overflow, 0, PageNo::ROOT)?;
        let link = Link { next: PageNo::NONE, stamp, place: 0, len: 0 };
        mtr.apply(page, &PageOp::Write { at: NEXT as u32, bytes: &link.to_bytes() });
        debug_assert!(Link::of(mtr.page(page), stamp, 0).is_some(), "a chain does not begin with its page");
        let first = mtr.page_no(page);
        Ok(OverflowWriter {
            tree: self,
            stamp,
            first,
            last: first,
            place: 0,
            length: 0,
            pending: Vec::new(),
            chunks: Parts::default(),
        })
    }

    /// Reads a long value from its beginning.
    pub fn read_overflow(&self, value: OverflowRef) -> OverflowReader<&Self> {
        OverflowReader::new(self, value)
    }

    /// Returns whether this page is still the first of the chain with this stamp. A caller that might free a chain
    /// twice checks it here.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn has_overflow(&self, first: PageNo, stamp: u64) -> Result<bool> {
        let page = self.store.share(&self.space, first, Access::Scan)?;
        Ok(Link::of(page.page(), stamp, 0).is_some())
    }

    /// Frees up to `at_most` pages of a chain after its first, in one mini-transaction of its own. Returns their
    /// number; if it is zero, [`Tree::free_overflow`] may follow. The operation can be repeated after a crash.
    ///
    /// # Errors
    /// The errors of the store; damage if the page is not the first of such a chain.
    pub fn shorten_overflow(&self, first: PageNo, stamp: u64, at_most: usize) -> Result<usize> {
        let mut mtr = self.store.begin()?;
        let anchor = mtr.latch(&self.space, first)?;
        let mut link = self.link(mtr.page(anchor), first, stamp, 0)?;
        // An earlier step may have freed the places before, so the place of the second page is read from the page.
        let mut expected = None;
        let mut freed = Vec::new();
        while freed.len() < at_most && link.next != PageNo::NONE {
            let no = link.next;
            let page = mtr.latch(&self.space, no)?;
            let place = expected.unwrap_or_else(|| Link::place_of(mtr.page(page)));
            if place == 0 {
                // It leads back to a first page, which only the owner of the chain frees.
                return Err(self.damaged(no, NOT_THE_CHAIN));
            }
            link = self.link(mtr.page(page), no, stamp, place)?;
            expected = Some(place + 1);
            freed.push(page);
        }
        if freed.is_empty() {
            return Ok(0);
        }
        // In ascending order, because allocation maps are latched in that order, all of them before the first change.
        freed.sort_unstable_by_key(|page| mtr.page_no(*page));
        let freeing = freed.into_iter().map(|page| mtr.prepare_free(&self.space, page));
        let freeing = freeing.collect::<Result<Vec<_>>>()?;
        mtr.apply(anchor, &PageOp::Write { at: NEXT as u32, bytes: &link.next.0.to_le_bytes() });
        let freed = freeing.len();
        debug_assert!(freed <= at_most, "more pages of a chain are freed than was asked for");
        for page in freeing {
            mtr.free(&self.space, page);
        }
        mtr.commit()?;
        Ok(freed)
    }

    /// Frees the first page of a chain that was shortened to only that page, in the caller's mini-transaction, together
    /// with the caller's own record of the chain.
    ///
    /// # Errors
    /// The errors of the store; damage if the page is not the first of such a chain, or not the only one.
    pub fn free_overflow(&self, mtr: &mut S::MiniTransaction<'_>, first: PageNo, stamp: u64) -> Result<()> {
        let page = mtr.latch(&self.space, first)?;
        let link = self.link(mtr.page(page), first, stamp, 0)?;
        if link.next != PageNo::NONE {
            return Err(self.damaged(first, "an overflow chain is freed before it was shortened"));
        }
        let page = mtr.prepare_free(&self.space, page)?;
        mtr.free(&self.space, page);
        Ok(())
    }

    fn link(&self, page: Page<'_>, no: PageNo, stamp: u64, place: u32) -> Result<Link> {
        Link::of(page, stamp, place).ok_or_else(|| self.damaged(no, NOT_THE_CHAIN))
    }
}

const NOT_THE_CHAIN: &str = "it is not the page of the overflow chain that was expected";

impl<S: PageStore> OverflowWriter<'_, S> {
    /// Returns the first page of the chain.
    pub fn first(&self) -> PageNo {
        self.first
    }

    /// Appends a chunk. Each page, once full, is written in a mini-transaction of its own. If no buffer frame is free,
    /// that is detected before anything has changed.
    ///
    /// # Errors
    /// The errors of the store; [`UsageError::ValueTooLong`]. The chain can then only be freed, and every further call
    /// fails with [`UsageError::Incomplete`].
    pub fn write(&mut self, chunk: &[u8]) -> Result<()> {
        self.chunks.begin()?;
        self.append(chunk)?;
        self.chunks.end();
        Ok(())
    }

    fn append(&mut self, mut chunk: &[u8]) -> Result<()> {
        let whole = capacity(self.tree.store.page_size());
        let length = self.length + chunk.len() as u64;
        if length > VALUE_BYTES_MAX {
            return Err(
                UsageError::ValueTooLong { owner: Owner::Unknown, length, limit: VALUE_BYTES_MAX }.into()
            );
        }
        self.length = length;
        while !chunk.is_empty() {
            let (now, later) = chunk.split_at(chunk.len().min(whole - self.pending.len()));
            self.pending.extend_from_slice(now);
            chunk = later;
            if self.pending.len() == whole {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Writes the remaining bytes. Returns the reference, and the LSN after the group of these bytes if there was one.
    ///
    /// # Errors
    /// [`UsageError::Incomplete`] if a call of [`OverflowWriter::write`] has failed; those of the store.
    pub fn finish(mut self) -> Result<(OverflowRef, Option<Lsn>)> {
        self.chunks.check()?;
        let lsn = if self.pending.is_empty() { None } else { self.flush()? };
        debug_assert_eq!(
            u64::from(self.place) + 1,
            self.length.div_ceil(capacity(self.tree.store.page_size()) as u64).max(1),
            "an overflow chain has not the number of pages that its length needs"
        );
        Ok((OverflowRef { length: self.length, stamp: self.stamp, first: self.first }, lsn))
    }

    /// Writes the pending bytes, at most a page. Everything that can fail comes before the first change.
    fn flush(&mut self) -> Result<Option<Lsn>> {
        let tree = self.tree;
        debug_assert!(!self.pending.is_empty(), "a page of a chain is written without a byte");
        debug_assert!(
            self.pending.len() <= capacity(tree.store.page_size()),
            "more bytes wait than a page of a chain takes"
        );
        let mut mtr = tree.begin_long()?;
        let last = mtr.latch(&tree.space, self.last)?;
        // The first page was created empty; every later last page is full.
        let is_empty = self.place == 0 && tree.link(mtr.page(last), self.last, self.stamp, 0)?.len == 0;
        let (page, place) = if is_empty {
            (last, 0)
        } else {
            let next = mtr.allocate(&tree.space, PageType::Overflow, 0, PageNo(self.last.0 + 1))?;
            let no = mtr.page_no(next);
            mtr.apply(last, &PageOp::Write { at: NEXT as u32, bytes: &no.0.to_le_bytes() });
            (next, self.place + 1)
        };
        let link = Link { next: PageNo::NONE, stamp: self.stamp, place, len: self.pending.len() };
        mtr.apply(page, &PageOp::Write { at: NEXT as u32, bytes: &link.to_bytes() });
        mtr.apply(page, &PageOp::Write { at: DATA as u32, bytes: &self.pending });
        debug_assert!(
            Link::of(mtr.page(page), self.stamp, place).is_some_and(|link| link.len == self.pending.len()),
            "a page of a chain does not have the place and the length that were written"
        );
        (self.last, self.place) = (mtr.page_no(page), place);
        self.pending.clear();
        mtr.commit()
    }
}

/// Reads a long value piece by piece. `T` is a reference to the tree, borrowed or counted.
#[derive(Debug)]
pub struct OverflowReader<T> {
    tree: T,
    stamp: u64,
    page: PageNo,
    place: u32,
    /// Offset in the page's part of the value at which to continue.
    at: usize,
    left: u64,
}

impl<S: PageStore, T: Deref<Target = Tree<S>>> OverflowReader<T> {
    /// Creates a reader at the value's beginning.
    pub fn new(tree: T, value: OverflowRef) -> Self {
        Self { tree, stamp: value.stamp, page: value.first, place: 0, at: 0, left: value.length }
    }

    /// Returns the number of bytes still to be read.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Reads some bytes; returns 0 only at the end of the value, or if `out` is empty.
    ///
    /// # Errors
    /// The errors of [`PageStore::read`]; damage if the chain ends early or is not the one expected. After a concurrent
    /// change the latter means that the entry should be read again.
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        if self.left == 0 || out.is_empty() {
            return Ok(0);
        }
        loop {
            if self.page == PageNo::NONE {
                return Err(self.tree.damaged(self.page, "an overflow chain ends before its value"));
            }
            let reading = self.tree.store.read(&self.tree.space, self.page, Access::Scan)?;
            let Some(link) = Link::of(reading.page(), self.stamp, self.place) else {
                if reading.is_valid() {
                    return Err(self.tree.damaged(self.page, NOT_THE_CHAIN));
                }
                continue;
            };
            let left = usize::try_from(self.left).unwrap_or(usize::MAX);
            let n = link.len.saturating_sub(self.at).min(out.len()).min(left);
            reading.page().read(DATA + self.at, &mut out[..n]);
            if !reading.is_valid() {
                continue;
            }
            self.at += n;
            self.left -= n as u64;
            if self.at >= link.len {
                self.page = link.next;
                self.place += 1;
                self.at = 0;
            }
            if n > 0 {
                return Ok(n);
            }
        }
    }

    /// Appends the rest of the value to `out`.
    ///
    /// # Errors
    /// As [`OverflowReader::read`]; a value that does not fit in memory.
    pub fn read_to_end(&mut self, out: &mut Vec<u8>) -> Result<()> {
        let whole = self.left;
        let piece = capacity(self.tree.store.page_size());
        while self.left > 0 {
            let start = out.len();
            let more = piece.min(usize::try_from(self.left).unwrap_or(piece));
            // In small steps, so that a damaged length does not cause a large allocation.
            out.try_reserve(more)
                .map_err(|_| UsageError::OutOfMemory { owner: Owner::Unknown, bytes: whole })?;
            out.resize(start + more, 0);
            match self.read(&mut out[start..]) {
                Ok(n) => out.truncate(start + n),
                Err(error) => {
                    out.truncate(start);
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}
