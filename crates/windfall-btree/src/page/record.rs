//! Records of nodes: the header of an entry, and the bytes that a node and the log store.
//!
//! **Purpose.** A short entry costs few bytes more than its key and its value: lengths take one byte where that is
//! enough, nothing is padded, and the version header takes only what it has to say.
//!
//! **Invariants.** A record has one stored form, which follows from its header and its lengths alone; any other form is
//! refused, in the log (test: `any_bytes_are_a_record_in_its_stored_form_or_none`) and by
//! [`check_entries`](super::check_entries) (test: `a_record_in_another_form_is_refused`). So replay needs nothing but
//! the operation and the page. A record that a torn read finds is parsed from one word (by type), and its lengths are
//! at most [`LENGTH_MAX`] (checked by `page/record.rs::length`).
//!
//! # The stored form, byte by byte
//!
//! A *length* below 128 is one byte; a greater one is two: `0x80` plus its high seven bits, then its low byte.
//!
//! | record of a leaf: size | field |
//! | --- | --- |
//! | 1 | info: bits 0 and 1 form, bit 2 deleted, bit 3 overflow reference, bit 4 a value follows, bit 5 fields, bits 6 and 7 zero |
//! | 1 or 2 | length of the suffix |
//! | 0 to 2 | length of the value, at least 1; absent unless bit 4 of the info is set |
//! | | suffix |
//! | | value |
//! | 0, 6 or 14 | header: transaction (6) in forms 1 and 2, undo position (8) in form 2 |
//!
//! | record of an inner node: size | field |
//! | --- | --- |
//! | 1 or 2 | length of the suffix |
//! | 4 | page number of the child |
//! | | suffix; none in slot 0, whose key is the lower fence |
//!
//! The **form** of a header is 2 if the entry is delete-marked, or if suffix and value have [`HEADER_ALWAYS`] bytes or
//! more. Otherwise it is 0 if transaction and undo position are 0, 1 if only the undo position is, and else 2. What a
//! form leaves out is 0.
//!
//! # Frozen records
//!
//! A record is *frozen* when a version that every reader sees loses transaction and undo position
//! ([`PageOp::LeafFreeze`](super::PageOp::LeafFreeze)): it then is as one that no transaction has written
//! ([`EntryHeader::UNVERSIONED`]), and keeps its key, its value and its other flags. Only a live record whose header
//! takes bytes and would take none is frozen: a delete-marked one keeps its header, which purge needs to recognise it,
//! and a long one would gain nothing (test: `a_freeze_removes_the_headers_of_old_live_records_and_no_others`). Which
//! transactions are old enough is decided by the tree ([`freeze`](crate::tree::freeze)), and logged.

use super::Page;
use crate::ids::{PageNo, TrxId, UndoPos};

/// Bytes of suffix and value from which on a record always has its whole header. A long record gains little from a
/// header that is left out, and would have to move when it is changed for the first time.
pub(crate) const HEADER_ALWAYS: usize = 96;
/// The greatest length of a suffix or a value that a record can state, in bytes.
pub(crate) const LENGTH_MAX: usize = 0x7fff;
/// Bytes of a whole header.
pub(crate) const HEADER_MAX: usize = 14;

/// A record of no more bytes is put together before it is written to a page.
const SHORT_BYTES: usize = 48;

const FORM: u8 = 3;
const DELETED: u8 = 1 << 2;
const OVERFLOW: u8 = 1 << 3;
const HAS_VALUE: u8 = 1 << 4;
const FIELDS: u8 = 1 << 5;
const UNUSED: u8 = !0x3f;

/// Bytes of a header, by its form. There is no form 3.
const HEADER_BYTES: [usize; 4] = [0, 6, HEADER_MAX, 0];
const NO_FORM: u8 = 3;

const SHORT: &str = "a record is cut short";
const OTHER_FORM: &str = "a record is not in its stored form";

/// The version header of an index entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct EntryHeader {
    /// The transaction that wrote this version; at most [`TrxId::MAX`].
    pub trx: TrxId,
    /// Some of [`EntryHeader::KNOWN_FLAGS`].
    pub flags: u16,
    /// Position of the undo record that describes the previous version.
    pub undo: UndoPos,
}

impl EntryHeader {
    /// The entry is delete-marked.
    pub const DELETED: u16 = 1;
    /// The value is a reference to an overflow chain.
    pub const OVERFLOW: u16 = 2;
    /// The value is a list of fields ([`StoredFields`](crate::tree::StoredFields)).
    pub const FIELDS: u16 = 4;
    /// All flags. An entry has at most one of the last two.
    pub const KNOWN_FLAGS: u16 = Self::DELETED | Self::OVERFLOW | Self::FIELDS;

    /// The header of an entry without versions, which every reader sees.
    pub const UNVERSIONED: Self = Self { trx: TrxId(0), flags: 0, undo: UndoPos(0) };

    /// Creates the header of an ordinary version.
    pub fn new(trx: TrxId, undo: UndoPos) -> Self {
        Self { trx, flags: 0, undo }
    }

    /// Returns the header of this version for an entry that was inserted: no version precedes it, so no undo record is
    /// ever looked up for it.
    #[must_use]
    pub fn of_insert(self) -> Self {
        debug_assert!(!self.is_deleted(), "a delete-marked entry is inserted");
        Self { undo: UndoPos(0), ..self }
    }

    /// Returns the header of this version once every reader sees it, whatever its transaction.
    #[must_use]
    pub(crate) fn frozen(self) -> Self {
        Self { flags: self.flags, ..Self::UNVERSIONED }
    }

    /// Returns whether an undo record has the version before this one.
    pub fn has_undo(self) -> bool {
        self.undo != UndoPos(0)
    }

    /// Returns whether the entry is delete-marked.
    pub fn is_deleted(self) -> bool {
        self.flags & Self::DELETED != 0
    }

    /// Returns whether the value is a reference to an overflow chain.
    pub fn is_overflow(self) -> bool {
        self.flags & Self::OVERFLOW != 0
    }

    /// Returns whether the value is a list of fields.
    pub fn has_fields(self) -> bool {
        self.flags & Self::FIELDS != 0
    }

    /// Returns whether the value itself is in the entry.
    #[inline]
    pub fn is_plain(self) -> bool {
        self.flags & (Self::OVERFLOW | Self::FIELDS) == 0
    }

    /// Returns the form in which a record with this many bytes of suffix and value stores the header.
    fn form(self, bytes: usize) -> u8 {
        match (self.trx, self.undo) {
            _ if self.is_deleted() || bytes >= HEADER_ALWAYS => 2,
            (TrxId(0), UndoPos(0)) => 0,
            (_, UndoPos(0)) => 1,
            _ => 2,
        }
    }

    /// Returns the bytes that the header takes in a record with this many bytes of suffix and value.
    pub(crate) fn bytes(self, bytes: usize) -> usize {
        HEADER_BYTES[usize::from(self.form(bytes))]
    }

    /// Returns the info of a record with this header and these lengths.
    fn info(self, suffix: usize, value: usize) -> u8 {
        debug_assert!(
            self.flags & !Self::KNOWN_FLAGS == 0,
            "flags {:#x} of an entry have no place in its record",
            self.flags
        );
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        self.form(suffix + value)
            | bit(self.is_deleted(), DELETED)
            | bit(self.is_overflow(), OVERFLOW)
            | bit(self.has_fields(), FIELDS)
            | bit(value > 0, HAS_VALUE)
    }

    /// Returns the stored header. The first [`EntryHeader::bytes`] of them are written.
    fn stored(self) -> [u8; HEADER_MAX] {
        debug_assert!(self.trx <= TrxId::MAX, "transaction {} does not fit the header of an entry", self.trx);
        let mut stored = [0; HEADER_MAX];
        stored[..6].copy_from_slice(&self.trx.0.to_le_bytes()[..6]);
        stored[6..].copy_from_slice(&self.undo.0.to_le_bytes());
        stored
    }
}

/// Returns the bytes that a length takes.
const fn length_bytes(length: usize) -> usize {
    if length < 0x80 { 1 } else { 2 }
}

/// Returns the bytes of a leaf's record whose header takes `header` bytes.
pub(crate) const fn leaf_bytes(header: usize, suffix: usize, value: usize) -> usize {
    let value_length = if value == 0 { 0 } else { length_bytes(value) };
    1 + length_bytes(suffix) + value_length + suffix + value + header
}

/// Returns the bytes of an inner node's record.
pub(crate) const fn inner_bytes(suffix: usize) -> usize {
    length_bytes(suffix) + 4 + suffix
}

/// Appends a length to the first bytes of `start`, of which there are `at`.
fn push_length(start: &mut [u8; 6], at: &mut usize, length: usize) {
    let [high, low] = (length as u16).to_be_bytes();
    let bytes = if length < 0x80 { [low, 0] } else { [0x80 | high, low] };
    start[*at..*at + 2].copy_from_slice(&bytes);
    *at += length_bytes(length);
}

/// Returns the part before the suffix of a leaf's record, and its bytes.
fn leaf_start(header: EntryHeader, suffix: usize, value: usize) -> ([u8; 6], usize) {
    let (mut start, mut at) = ([header.info(suffix, value), 0, 0, 0, 0, 0], 1);
    push_length(&mut start, &mut at, suffix);
    if value > 0 {
        push_length(&mut start, &mut at, value);
    }
    (start, at)
}

/// Returns the part before the suffix of an inner node's record, and its bytes.
fn inner_start(child: PageNo, suffix: usize) -> ([u8; 6], usize) {
    let (mut start, mut at) = ([0; 6], 0);
    push_length(&mut start, &mut at, suffix);
    start[at..at + 4].copy_from_slice(&child.0.to_le_bytes());
    (start, at + 4)
}

/// Reads a length from the low bytes of a word. Returns it, and the bytes that it takes.
#[inline]
fn length(word: u64) -> (usize, usize) {
    let (first, second) = ((word & 0xff) as usize, (word >> 8 & 0xff) as usize);
    let (length, bytes) = if first < 0x80 { (first, 1) } else { ((first & 0x7f) << 8 | second, 2) };
    debug_assert!(length <= LENGTH_MAX, "a record states a length of {length} bytes");
    (length, bytes)
}

/// The part of a record before its suffix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fixed {
    /// 0 in an inner node.
    info: u8,
    /// The bytes of this part.
    pub start: usize,
    /// Length of the suffix.
    pub suffix: usize,
    /// Length of the value; 0 in an inner node.
    pub value: usize,
}

impl Fixed {
    /// Parses a leaf's record, of which these are the first eight bytes.
    #[inline]
    pub(super) fn leaf(word: u64) -> Self {
        let info = word as u8;
        let (suffix, bytes) = length(word >> 8);
        let start = 1 + bytes;
        if info & HAS_VALUE == 0 {
            return Self { info, start, suffix, value: 0 };
        }
        let (value, bytes) = length(word >> (8 * start));
        Self { info, start: start + bytes, suffix, value }
    }

    /// Parses an inner node's record, of which these are the first eight bytes.
    #[inline]
    pub(super) fn inner(word: u64) -> Self {
        let (suffix, bytes) = length(word);
        Self { info: 0, start: bytes + 4, suffix, value: 0 }
    }

    /// Returns the offset of the header in the record.
    #[inline]
    fn header_at(self) -> usize {
        self.start + self.suffix + self.value
    }

    /// Returns the bytes of the header.
    pub(super) fn header_bytes(self) -> usize {
        HEADER_BYTES[usize::from(self.info & FORM)]
    }

    /// Returns the bytes of the record.
    #[inline]
    pub(super) fn bytes(self) -> usize {
        self.header_at() + self.header_bytes()
    }

    /// Returns the header of a leaf's record; `word` returns the eight bytes at an offset in the record.
    #[inline]
    fn header_from(self, word: impl Fn(usize) -> u64) -> EntryHeader {
        let (form, at) = (self.info & FORM, self.header_at());
        let trx = if matches!(form, 1 | 2) { word(at) & TrxId::MAX.0 } else { 0 };
        let undo = if form == 2 { word(at + 6) } else { 0 };
        let fields = if self.info & FIELDS == 0 { 0 } else { EntryHeader::FIELDS };
        let flags = u16::from(self.info >> 2) & (EntryHeader::DELETED | EntryHeader::OVERFLOW) | fields;
        EntryHeader { trx: TrxId(trx), flags, undo: UndoPos(undo) }
    }

    /// Returns the header of the leaf's record at this offset.
    #[inline]
    pub(super) fn header(self, page: Page<'_>, at: usize) -> EntryHeader {
        self.header_from(|offset| page.u64(at + offset))
    }

    /// Returns whether the leaf's record at this offset is frozen by an operation for the versions of transactions
    /// below this one.
    pub(super) fn is_frozen_below(self, below: TrxId, page: Page<'_>, at: usize) -> bool {
        self.header_bytes() > 0 && {
            let header = self.header(page, at);
            header.trx < below && header.frozen().bytes(self.suffix + self.value) == 0
        }
    }

    /// Appends the leaf's record at this offset as it is when it is frozen.
    pub(super) fn append_frozen(self, page: Page<'_>, at: usize, out: &mut Vec<u8>) {
        out.push(self.header(page, at).frozen().info(self.suffix, self.value));
        page.append_to(at + 1, self.header_at() - 1, out);
    }

    /// Returns the part before the suffix of the record at this offset when its suffix lacks the first `cut` bytes, the
    /// bytes of that part, and the offset at which the record then ends: its header may take fewer bytes.
    pub(super) fn cut(
        self,
        leaf: bool,
        (page, at): (Page<'_>, usize),
        cut: usize,
    ) -> ([u8; 6], usize, usize) {
        let (suffix, end) = (self.suffix - cut, at + self.header_at());
        if leaf {
            let header = self.header(page, at);
            let (start, bytes) = leaf_start(header, suffix, self.value);
            (start, bytes, end + header.bytes(suffix + self.value))
        } else {
            let (start, bytes) = inner_start(child_of(page.u64(at)), suffix);
            (start, bytes, end)
        }
    }

    /// Appends the record at this offset as it is behind another prefix: its suffix lacks the first `cut` bytes, and
    /// begins with `added` instead.
    pub(super) fn append_behind(
        self,
        leaf: bool,
        (page, at): (Page<'_>, usize),
        (cut, added): (usize, &[u8]),
        out: &mut Vec<u8>,
    ) {
        if cut == 0 && added.is_empty() {
            return page.append_to(at, self.bytes(), out);
        }
        let suffix = added.len() + self.suffix - cut;
        debug_assert!(suffix <= LENGTH_MAX, "a record is longer than it can state");
        let header = leaf.then(|| self.header(page, at));
        let (start, bytes) = match header {
            Some(header) => leaf_start(header, suffix, self.value),
            None => inner_start(child_of(page.u64(at)), suffix),
        };
        out.extend_from_slice(&start[..bytes]);
        out.extend_from_slice(added);
        page.append_to(at + self.start + cut, self.suffix - cut + self.value, out);
        if let Some(header) = header {
            out.extend_from_slice(&header.stored()[..header.bytes(suffix + self.value)]);
        }
    }

    /// Changes the header of the leaf's record at this offset to one that takes no more bytes.
    pub(super) fn set_header(self, page: Page<'_>, at: usize, header: EntryHeader) {
        let bytes = header.bytes(self.suffix + self.value);
        debug_assert!(bytes <= self.header_bytes(), "a header is written beyond the end of its record");
        page.set_u8(at, header.info(self.suffix, self.value));
        page.write(at + self.header_at(), &header.stored()[..bytes]);
    }

    /// Returns whether a leaf's record has a known info byte that fits its lengths: then a change of its header leaves
    /// the bytes before the header as they are.
    pub(super) fn is_known(self) -> bool {
        let has_value = self.info & HAS_VALUE != 0;
        let has_both = self.info & (OVERFLOW | FIELDS) == OVERFLOW | FIELDS;
        self.info & FORM != NO_FORM && self.info & UNUSED == 0 && !has_both && has_value == (self.value > 0)
    }

    /// Returns whether a leaf's record with this header is in its stored form.
    fn is_form_of(self, header: EntryHeader) -> bool {
        self.is_known()
            && self.info == header.info(self.suffix, self.value)
            && self.bytes() == leaf_bytes(self.header_bytes(), self.suffix, self.value)
    }

    /// Checks that the record at this offset is in its stored form.
    ///
    /// # Errors
    /// It is in another one.
    pub(super) fn check(self, leaf: bool, page: Page<'_>, at: usize) -> Result<(), &'static str> {
        let is_right = if leaf {
            self.is_form_of(self.header(page, at))
        } else {
            self.bytes() == inner_bytes(self.suffix)
        };
        if is_right { Ok(()) } else { Err(OTHER_FORM) }
    }
}

/// Returns the child in an inner node's record, of which these are the first eight bytes.
#[inline]
pub(super) fn child_of(word: u64) -> PageNo {
    PageNo((word >> (8 * length(word).1)) as u32)
}

/// A record of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record<'a> {
    /// Of a leaf.
    Leaf {
        /// The version header.
        header: EntryHeader,
        /// The key after the node's common prefix.
        suffix: &'a [u8],
        /// The value.
        value: &'a [u8],
    },
    /// Of an inner node.
    Inner {
        /// The child.
        child: PageNo,
        /// The child's lower fence after the node's common prefix.
        suffix: &'a [u8],
    },
}

impl<'a> Record<'a> {
    /// Returns the suffix.
    pub(super) fn suffix(&self) -> &'a [u8] {
        match self {
            Self::Leaf { suffix, .. } | Self::Inner { suffix, .. } => suffix,
        }
    }

    /// Returns whether the record can state its lengths.
    pub(super) fn has_lengths(&self) -> bool {
        match self {
            Self::Leaf { suffix, value, .. } => suffix.len() <= LENGTH_MAX && value.len() <= LENGTH_MAX,
            Self::Inner { suffix, .. } => suffix.len() <= LENGTH_MAX,
        }
    }

    /// Returns the bytes of the stored form.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Leaf { header, suffix, value } => {
                leaf_bytes(header.bytes(suffix.len() + value.len()), suffix.len(), value.len())
            }
            Self::Inner { suffix, .. } => inner_bytes(suffix.len()),
        }
    }

    /// Returns the part before the suffix, and its bytes.
    fn start(&self) -> ([u8; 6], usize) {
        match self {
            Self::Leaf { header, suffix, value } => leaf_start(*header, suffix.len(), value.len()),
            Self::Inner { child, suffix } => inner_start(*child, suffix.len()),
        }
    }

    /// Passes the pieces of the stored form to `put`, one after the other.
    fn put(&self, mut put: impl FnMut(&[u8])) {
        debug_assert!(self.has_lengths(), "a record is longer than it can state");
        let (start, bytes) = self.start();
        put(&start[..bytes]);
        put(self.suffix());
        if let Self::Leaf { header, suffix, value } = self {
            put(value);
            put(&header.stored()[..header.bytes(suffix.len() + value.len())]);
        }
    }

    /// Appends the stored form.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        self.put(|piece| out.extend_from_slice(piece));
    }

    /// Writes the stored form into a page.
    pub(super) fn write(&self, page: Page<'_>, at: usize) {
        let (mut at, bytes) = (at, self.bytes());
        if bytes <= SHORT_BYTES {
            // One write is cheaper than one of each piece.
            let (mut stored, mut end) = ([0; SHORT_BYTES], 0);
            self.put(|piece| {
                stored[end..end + piece.len()].copy_from_slice(piece);
                end += piece.len();
            });
            return page.write(at, &stored[..bytes]);
        }
        self.put(|piece| {
            page.write(at, piece);
            at += piece.len();
        });
    }

    /// Decodes a stored form. Returns the record and the bytes that follow it.
    ///
    /// # Errors
    /// The bytes end before the record, or it is in another form than it should be.
    pub(crate) fn decode(leaf: bool, bytes: &'a [u8]) -> Result<(Self, &'a [u8]), &'static str> {
        let word = |at: usize| {
            let rest = bytes.get(at..).unwrap_or(&[]);
            rest.first_chunk().map_or_else(
                || rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
                |chunk| u64::from_le_bytes(*chunk),
            )
        };
        let fixed = if leaf { Fixed::leaf(word(0)) } else { Fixed::inner(word(0)) };
        let (record, rest) = bytes.split_at_checked(fixed.bytes()).ok_or(SHORT)?;
        let (suffix, value) = record[fixed.start..fixed.header_at()].split_at(fixed.suffix);
        if leaf {
            let header = fixed.header_from(word);
            let is_form = fixed.is_form_of(header);
            return if is_form { Ok((Self::Leaf { header, suffix, value }, rest)) } else { Err(OTHER_FORM) };
        }
        if fixed.bytes() != inner_bytes(suffix.len()) {
            return Err(OTHER_FORM);
        }
        Ok((Self::Inner { child: child_of(word(0)), suffix }, rest))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::blank, *};

    fn header() -> impl Strategy<Value = EntryHeader> {
        let trx = prop_oneof![Just(0), 1..=TrxId::MAX.0];
        let undo = prop_oneof![Just(0), any::<u64>()];
        (trx, 0..6u16, undo).prop_map(|(trx, flags, undo)| EntryHeader {
            trx: TrxId(trx),
            flags,
            undo: UndoPos(undo),
        })
    }

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let long = prop::sample::select(vec![95, 96, 127, 128, 129, 255, 256, 1000]);
        prop_oneof![4 => (0usize..100).boxed(), 1 => long.boxed()]
            .prop_flat_map(|len| prop::collection::vec(any::<u8>(), len))
    }

    proptest! {
        #[test]
        fn a_record_has_one_stored_form(
            header in header(), suffix in bytes(), value in bytes(), child in any::<u32>(), at in 40usize..2000,
        ) {
            let (suffix, value) = (&suffix[..], &value[..]);
            let words = blank(8192);
            let page = Page::new(&words);
            for record in
                [Record::Leaf { header, suffix, value }, Record::Inner { child: PageNo(child), suffix }]
            {
                let leaf = matches!(record, Record::Leaf { .. });
                let mut stored = Vec::new();
                record.encode(&mut stored);
                prop_assert_eq!(stored.len(), record.bytes());
                prop_assert_eq!(Record::decode(leaf, &stored), Ok((record, &[][..])));
                for cut in [0, 1, stored.len() / 2, stored.len() - 1] {
                    prop_assert!(Record::decode(leaf, &stored[..cut]).is_err(), "{cut} bytes");
                }
                stored.push(7);
                prop_assert_eq!(Record::decode(leaf, &stored), Ok((record, &[7][..])));
                record.write(page, at);
                let mut written = Vec::new();
                page.append_to(at, record.bytes(), &mut written);
                // Behind a longer and a shorter prefix.
                for (cut, added) in [(suffix.len() / 2, &b""[..]), (suffix.len(), b""), (0, b"prefix"), (0, b"")] {
                    let key = [added, &suffix[cut..]].concat();
                    let other = match record {
                        Record::Leaf { .. } => Record::Leaf { header, suffix: &key, value },
                        Record::Inner { child, .. } => Record::Inner { child, suffix: &key },
                    };
                    let (mut expected, mut moved) = (Vec::new(), Vec::new());
                    other.encode(&mut expected);
                    let word = page.u64(at);
                    let fixed = if leaf { Fixed::leaf(word) } else { Fixed::inner(word) };
                    fixed.append_behind(leaf, (page, at), (cut, added), &mut moved);
                    prop_assert_eq!(moved, expected);
                }
                prop_assert_eq!(&written[..], &stored[..record.bytes()]);
                let fixed = if leaf { Fixed::leaf(page.u64(at)) } else { Fixed::inner(page.u64(at)) };
                prop_assert_eq!(fixed.check(leaf, page, at), Ok(()));
                prop_assert_eq!(fixed.bytes(), record.bytes());
                if leaf {
                    prop_assert_eq!(fixed.header(page, at), header);
                }
            }
            // An entry that no transaction has written costs two bytes, and one more for a value.
            let plain = Record::Leaf { header: EntryHeader::UNVERSIONED, suffix: &[1; 8], value: &[] };
            prop_assert_eq!(plain.bytes(), 10);
        }

        #[test]
        fn any_bytes_are_a_record_in_its_stored_form_or_none(
            bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0..40u8], 0..60), leaf in any::<bool>(),
        ) {
            if let Ok((record, rest)) = Record::decode(leaf, &bytes) {
                let mut stored = Vec::new();
                record.encode(&mut stored);
                prop_assert_eq!(&stored[..], &bytes[..bytes.len() - rest.len()]);
            }
        }
    }
}
