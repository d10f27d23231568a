//! The records of a log group.
//!
//! **Purpose.** A group is a sequence of records: changes of pages, and the few facts that recovery needs besides them.
//!
//! **Invariants.** The decoder accepts any bytes and never panics (test:
//! `no_input_that_is_known_and_no_mutant_of_one_breaks_a_target`). A page record names its page; consecutive changes of
//! one page repeat only a byte (test: `consecutive_changes_of_a_page_name_it_once`). A thread keeps a buffer for its
//! next group: after its first group, one of at most [`GROUP_BUFFER_BYTES`] bytes requests no memory (test:
//! `a_thread_keeps_a_small_buffer_after_a_group_of_any_size`).

use core::{cell::Cell, mem};
use std::borrow::Cow;

use super::frame;
use crate::{
    ids::{PageId, PageNo, SpaceId, TrxId, UndoPos},
    page::PageOp,
    sync::thread_local,
};

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A page changed.
    Page {
        /// The page.
        id: PageId,
        /// The change.
        op: PageOp<'a>,
    },
    /// Tablespaces were dropped.
    Drop {
        /// The ids of the tablespaces.
        spaces: Cow<'a, [SpaceId]>,
    },
    /// A tablespace's file exists durably.
    FileMade {
        /// The tablespace.
        space: SpaceId,
    },
    /// All ids assigned so far are below these.
    Ceilings {
        /// For tablespaces.
        space: SpaceId,
        /// For transactions.
        trx: TrxId,
    },
    /// A transaction wrote its first undo record here.
    TrxBegin {
        /// The transaction.
        trx: TrxId,
        /// The first undo record of the transaction.
        first: UndoPos,
    },
    /// The transactions that were active at a checkpoint, each with its first undo record. Recovery uses only the one
    /// at the position that the control file records.
    TrxTable {
        /// The transactions.
        active: Vec<(TrxId, UndoPos)>,
    },
    /// A transaction is prepared (XA): its work is complete, and it commits or rolls back only on request. In a group
    /// with a [`Record::TrxTable`] it was prepared at the checkpoint, and is used only if that table is.
    TrxPrepare {
        /// The transaction.
        trx: TrxId,
        /// The XID of the transaction, at most 255 bytes; empty when it is rolling back after all.
        xid: Cow<'a, [u8]>,
    },
    /// A transaction committed, or its rollback is complete.
    TrxEnd {
        /// The transaction.
        trx: TrxId,
        /// The undo stream that it wrote to.
        stream: u8,
    },
}

const PAGE: u8 = 1;
const SAME_PAGE: u8 = 2;
const DROP: u8 = 3;
const FILE_MADE: u8 = 4;
const CEILINGS: u8 = 5;
const TRX_BEGIN: u8 = 6;
const TRX_END: u8 = 7;
const TRX_TABLE: u8 = 8;
const TRX_PREPARE: u8 = 9;

/// The size of a thread's buffer, in bytes: it suffices for most groups, and for the drop of a table with 60 indexes.
const GROUP_BUFFER_BYTES: usize = 1024;
/// The largest buffer that a thread keeps for its next group, in bytes.
const KEPT_BUFFER_BYTES_MAX: usize = 4096;

thread_local! {
    /// The buffer of an earlier group of this thread.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Appends records to a group.
#[derive(Debug, Default)]
pub struct GroupWriter {
    bytes: Vec<u8>,
    page: Option<PageId>,
}

impl GroupWriter {
    /// Returns whether nothing was appended.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the group so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the size of the group in the log, in bytes.
    pub fn log_bytes(&self) -> u64 {
        frame::span(self.bytes.len()) as u64
    }

    /// Returns the buffer, at first the one that the thread has kept.
    fn buffer(&mut self) -> &mut Vec<u8> {
        if self.bytes.capacity() == 0 {
            self.bytes = SPARE.try_with(Cell::take).unwrap_or_default();
            debug_assert!(self.bytes.is_empty(), "the kept buffer has records of another group");
            self.bytes.reserve(GROUP_BUFFER_BYTES);
        }
        &mut self.bytes
    }

    /// Appends a change of a page.
    pub fn page(&mut self, id: PageId, op: &PageOp<'_>) {
        self.buffer();
        if self.page == Some(id) {
            self.bytes.push(SAME_PAGE);
        } else {
            self.bytes.push(PAGE);
            self.bytes.extend_from_slice(&id.space.0.to_le_bytes());
            self.bytes.extend_from_slice(&id.page.0.to_le_bytes());
            self.page = Some(id);
        }
        op.encode(&mut self.bytes);
    }

    /// Appends any record.
    pub fn push(&mut self, record: &Record<'_>) {
        let out = self.buffer();
        let from = out.len();
        let mut put = |tag: u8, words: &[u64]| {
            out.push(tag);
            for word in words {
                out.extend_from_slice(&word.to_le_bytes());
            }
        };
        match record {
            Record::Page { id, op } => self.page(*id, op),
            Record::Drop { spaces } => {
                put(DROP, &[spaces.len() as u64]);
                for space in spaces.iter() {
                    out.extend_from_slice(&space.0.to_le_bytes());
                }
            }
            Record::FileMade { space } => put(FILE_MADE, &[space.0]),
            Record::Ceilings { space, trx } => put(CEILINGS, &[space.0, trx.0]),
            Record::TrxBegin { trx, first } => put(TRX_BEGIN, &[trx.0, first.0]),
            Record::TrxTable { active } => {
                put(TRX_TABLE, &[active.len() as u64]);
                for (trx, first) in active {
                    out.extend_from_slice(&trx.0.to_le_bytes());
                    out.extend_from_slice(&first.0.to_le_bytes());
                }
            }
            Record::TrxPrepare { trx, xid } => {
                put(TRX_PREPARE, &[trx.0]);
                debug_assert!(u8::try_from(xid.len()).is_ok(), "the length is a byte");
                out.push(xid.len() as u8);
                out.extend_from_slice(xid);
            }
            Record::TrxEnd { trx, stream } => put(TRX_END, &[trx.0, u64::from(*stream)]),
        }
        // Reading back the record of a drop would request memory, which a drop does not.
        debug_assert!(
            matches!(record, Record::Page { .. } | Record::Drop { .. })
                || GroupReader::new(&self.bytes[from..]).eq([Ok(record.clone())]),
            "the record would be read back as another one: {record:?}"
        );
    }
}

impl Drop for GroupWriter {
    fn drop(&mut self) {
        let mut bytes = mem::take(&mut self.bytes);
        if bytes.capacity() == 0 {
            return;
        }
        if bytes.capacity() > KEPT_BUFFER_BYTES_MAX {
            // This large group requests the buffer of the next one, too.
            bytes = Vec::with_capacity(GROUP_BUFFER_BYTES);
        }
        bytes.clear();
        debug_assert!(bytes.capacity() <= KEPT_BUFFER_BYTES_MAX, "a thread keeps a large buffer");
        // A thread that is ending keeps no buffer.
        let _ = SPARE.try_with(|spare| spare.set(bytes));
    }
}

/// Reads a group's records.
#[derive(Clone, Debug)]
pub struct GroupReader<'a> {
    bytes: &'a [u8],
    page: Option<PageId>,
}

impl<'a> GroupReader<'a> {
    /// Returns a reader of this group's records.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, page: None }
    }

    fn word(&mut self) -> Result<u64, &'static str> {
        let (word, rest) = self.bytes.split_first_chunk().ok_or("a record is cut short")?;
        self.bytes = rest;
        Ok(u64::from_le_bytes(*word))
    }

    fn record(&mut self) -> Result<Record<'a>, &'static str> {
        let (&tag, rest) = self.bytes.split_first().ok_or("a record is cut short")?;
        self.bytes = rest;
        Ok(match tag {
            PAGE | SAME_PAGE => {
                if tag == PAGE {
                    let space = SpaceId(self.word()?);
                    let (page, rest) = self.bytes.split_first_chunk().ok_or("a record is cut short")?;
                    self.bytes = rest;
                    self.page = Some(PageId { space, page: PageNo(u32::from_le_bytes(*page)) });
                }
                let id = self.page.ok_or("a change of no page")?;
                let (op, rest) = PageOp::decode(self.bytes)?;
                self.bytes = rest;
                Record::Page { id, op }
            }
            DROP => {
                let count = self.word()?;
                if count > self.bytes.len() as u64 / 8 {
                    return Err("a record is cut short");
                }
                Record::Drop {
                    spaces: (0..count).map(|_| self.word().map(SpaceId)).collect::<Result<_, _>>()?,
                }
            }
            FILE_MADE => Record::FileMade { space: SpaceId(self.word()?) },
            CEILINGS => {
                let (space, trx) = (SpaceId(self.word()?), TrxId(self.word()?));
                if space > SpaceId::MAX || trx > TrxId::MAX {
                    return Err("an impossible ceiling");
                }
                Record::Ceilings { space, trx }
            }
            TRX_BEGIN => Record::TrxBegin { trx: TrxId(self.word()?), first: UndoPos(self.word()?) },
            TRX_TABLE => {
                let count = self.word()?;
                if count > self.bytes.len() as u64 / 16 {
                    return Err("a record is cut short");
                }
                let mut active = Vec::with_capacity(count as usize);
                for _ in 0..count {
                    active.push((TrxId(self.word()?), UndoPos(self.word()?)));
                }
                Record::TrxTable { active }
            }
            TRX_PREPARE => {
                let trx = TrxId(self.word()?);
                let (length, rest) = self.bytes.split_first().ok_or("a record is cut short")?;
                let (xid, rest) =
                    rest.split_at_checked(usize::from(*length)).ok_or("a record is cut short")?;
                self.bytes = rest;
                Record::TrxPrepare { trx, xid: xid.into() }
            }
            TRX_END => Record::TrxEnd {
                trx: TrxId(self.word()?),
                stream: self.word()?.try_into().map_err(|_| "an impossible stream")?,
            },
            _ => return Err("an unknown record"),
        })
    }
}

impl<'a> Iterator for GroupReader<'a> {
    type Item = Result<Record<'a>, &'static str>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        let before = self.bytes.len();
        let record = self.record();
        debug_assert!(self.bytes.len() < before, "a record takes at least one byte");
        if record.is_err() {
            self.bytes = &[];
        }
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PageType;

    #[test]
    fn records_come_back() {
        let id = |n| PageId { space: SpaceId(n), page: PageNo(3) };
        let format = PageOp::Format { kind: PageType::Leaf, level: 0 };
        let records = vec![
            Record::Page { id: id(7), op: format },
            Record::Page { id: id(7), op: PageOp::Write { at: 40, bytes: b"abc" } },
            Record::Page { id: id(8), op: format },
            Record::Drop { spaces: vec![SpaceId(7), SpaceId(9)].into() },
            Record::FileMade { space: SpaceId(8) },
            Record::Ceilings { space: SpaceId(100), trx: TrxId(200) },
            Record::TrxBegin { trx: TrxId(5), first: UndoPos(99) },
            Record::TrxTable { active: vec![(TrxId(5), UndoPos(99)), (TrxId(7), UndoPos(120))] },
            Record::TrxPrepare { trx: TrxId(5), xid: b"name"[..].into() },
            Record::TrxPrepare { trx: TrxId(5), xid: b""[..].into() },
            Record::TrxEnd { trx: TrxId(5), stream: 3 },
        ];
        let mut writer = GroupWriter::default();
        for record in &records {
            writer.push(record);
        }
        let back: Vec<_> = GroupReader::new(writer.bytes()).map(Result::unwrap).collect();
        assert_eq!(back, records);
        for cut in 0..writer.bytes().len() {
            let _ = GroupReader::new(&writer.bytes()[..cut]).count();
        }
    }

    #[test]
    fn consecutive_changes_of_a_page_name_it_once() {
        let op = PageOp::Write { at: 40, bytes: b"abc" };
        let mut encoded = Vec::new();
        op.encode(&mut encoded);
        let mut writer = GroupWriter::default();
        let mut bytes_of = |page: u32| {
            let before = writer.bytes().len();
            writer.page(PageId { space: SpaceId(7), page: PageNo(page) }, &op);
            writer.bytes().len() - before - encoded.len()
        };
        assert_eq!([3, 3, 3, 4, 3, 3].map(&mut bytes_of), [13, 1, 1, 13, 13, 1]);
    }

    #[test]
    fn a_thread_keeps_a_small_buffer_after_a_group_of_any_size() {
        let spare = || {
            SPARE.with(|spare| {
                let bytes = spare.take();
                let found = (bytes.len(), bytes.capacity(), bytes.as_ptr());
                spare.set(bytes);
                found
            })
        };
        for size in [3, KEPT_BUFFER_BYTES_MAX * 2, 3] {
            let mut writer = GroupWriter::default();
            let op = PageOp::Write { at: 40, bytes: &vec![7; size] };
            writer.page(PageId { space: SpaceId(1), page: PageNo(2) }, &op);
            drop(writer);
            let (length, capacity, kept) = spare();
            assert_eq!(length, 0);
            let mut writer = GroupWriter::default();
            writer.push(&Record::FileMade { space: SpaceId(1) });
            assert_eq!(writer.bytes().as_ptr(), kept, "the next group has another buffer");
            drop(writer);
            assert!(
                (GROUP_BUFFER_BYTES..=KEPT_BUFFER_BYTES_MAX).contains(&capacity),
                "{capacity} bytes kept after a group of {size}"
            );
        }
    }
}
