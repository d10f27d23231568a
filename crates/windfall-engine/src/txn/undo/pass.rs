//! The records of an undo page, for a pass in the order of the stream.
//!
//! **Purpose.** Most records leave nothing to purge, above all those of inserts. Purge passes over them without a copy,
//! a look-up of a page and a decoding for each.
//!
//! **Invariants.** Only whole records of one page are returned; a record that reaches into the next page is read by
//! [`Stream::next_record`] (test: `records_that_leave_nothing_are_passed_by_the_page`). A copy serves one step, and the
//! state of a record that a step purges does not change any more: its transaction had ended before the step made the
//! copy (checked by `undo/purge.rs::pass`).

use super::{
    record::UndoRecord,
    stream::{HEAD, ROLLED_BACK, Stored, Stream},
};
use crate::{
    error::Result,
    ids::{SpaceId, TrxId},
    page::{
        Access, PageType,
        undo::{DATA, USED},
    },
};

/// A copy of the end of an undo page.
#[derive(Debug, Default)]
pub(super) struct PageRecords {
    bytes: Vec<u8>,
    /// The position of the first byte.
    from: u64,
}

/// A record in such a copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct InPage<'a> {
    /// Its position, and that after it.
    pub at: [u64; 2],
    /// Its transaction.
    pub trx: TrxId,
    /// The table of the record.
    pub table: SpaceId,
    rolled_back: bool,
    bytes: &'a [u8],
}

impl InPage<'_> {
    /// Returns whether the record leaves nothing to purge.
    pub(super) fn leaves_nothing(&self) -> bool {
        UndoRecord::leaves_nothing(self.bytes)
    }

    /// Returns its position, and a copy.
    pub(super) fn stored(&self) -> (u64, Stored) {
        let [at, next] = self.at;
        (at, Stored { rolled_back: self.rolled_back, bytes: self.bytes.to_vec(), next })
    }
}

impl PageRecords {
    /// Copies the page of a position, from there on, unless the position lies in the present copy. `at` must be the end
    /// of a record. Returns whether it was copied.
    ///
    /// # Errors
    /// Damage, I/O.
    pub(super) fn fill(&mut self, stream: &Stream, at: u64) -> Result<bool> {
        if self.rest(at).is_some_and(|rest| !rest.is_empty()) {
            return Ok(false);
        }
        self.bytes.clear();
        self.from = at;
        if at >= stream.end() {
            return Ok(false);
        }
        let (slice, page, offset) = stream.locate(at);
        // A record that reaches into a slice ends behind its begin.
        let Some(space) = stream.space(slice).filter(|_| !at.is_multiple_of(stream.slice_bytes())) else {
            return Ok(false);
        };
        let shared = stream.context.pool.share(&space, page, Access::Scan)?;
        let used = usize::from(shared.page().u16(USED));
        if shared.page().page_type() == PageType::Undo as u8 {
            shared.page().append_to(DATA + offset, used.saturating_sub(offset), &mut self.bytes);
        }
        Ok(true)
    }

    fn rest(&self, at: u64) -> Option<&[u8]> {
        self.bytes.get(usize::try_from(at.checked_sub(self.from)?).ok()?..)
    }

    /// Returns the record at a position, if the copy has all of it.
    pub(super) fn record(&self, at: u64) -> Option<InPage<'_>> {
        let rest = self.rest(at)?;
        let (length, _) = rest.split_first_chunk()?;
        let length = u32::from_le_bytes(*length) as usize;
        let (state, bytes) = rest.get(..length)?.get(HEAD - 1..)?.split_first()?;
        let (trx, table) = UndoRecord::head_of(bytes).ok()?;
        Some(InPage { at: [at, at + length as u64], trx, table, rolled_back: *state == ROLLED_BACK, bytes })
    }
}
