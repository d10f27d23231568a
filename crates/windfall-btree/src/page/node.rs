//! A node of a tree within a page: its layout, and how it is read.
//!
//! **Purpose.** Slotted pages with fence keys, prefix truncation and key heads, so that a search touches few cache
//! lines and allocates nothing.
//!
//! **Invariants.** Keys are byte strings in memcmp order. A node holds the keys of `[lower fence, upper fence)`,
//! strictly ascending (test: `behaves_as_a_map_4k`). Each key begins with the common prefix of both fences, which only
//! the lower fence stores (test: `a_header_has_the_prefix_of_its_fences_and_no_other`). Slot 0 of an inner node has the
//! lower fence as its key, so the child for a key is in the last slot with a key that is not greater (test:
//! `behaves_as_a_map_4k`). Reads use relaxed word accesses and tolerate a page that changes meanwhile or is damaged:
//! they never panic and never loop, they clamp (test: `reads_never_leave_the_page`). Their result must not be used
//! before version validation (test: `readers_and_cursors_during_splits_and_merges`).
//!
//! # Layout, byte by byte
//!
//! All numbers are little-endian. A *word* is 8 bytes; records and fences begin at whole words.
//!
//! | offset | size | field |
//! | --- | --- | --- |
//! | 0 | 28 | page header; type 2 (leaf) or 3 (inner), level 0 for a leaf; flags at offset 6, 2 bytes: see below |
//! | 28 | 2 | number of slots *n* |
//! | 30 | 2 | heap: words taken by records, live and dead |
//! | 32 | 2 | garbage: words of the heap to which no slot refers |
//! | 34 | 2 | length of the common prefix in bytes |
//! | 36 | 2 | length of the lower fence in bytes; an empty lower fence is below every key |
//! | 38 | 2 | length of the upper fence in bytes; 0 if there is none, and then every key is below it |
//! | 40 | | lower fence, padded with zeros to whole words, then the upper fence, padded likewise |
//! | *s* | 8*n* | slots in key order, directly after the fences |
//! | … | … | free space |
//! | *h* | | the heap of records, growing downwards from the page's end |
//!
//! A freshly formatted page, in which bytes 28 to 39 are zero, is thus an empty node without fences. Bit 0 of the
//! **flags** is set if the node has an upper fence; bits 8 to 15 are the *skip*.
//!
//! A **slot** is one word. From the most significant bits: 32 bits *head*, 16 bits offset of the record in words, 16
//! bits length of the key after the prefix (its *suffix*). The head is the first four bytes of the suffix after the
//! skip, big-endian, padded with zeros. In slot 0 of an inner node, which no search compares, it is zero.
//!
//! The **skip** is a number of leading bytes that all suffixes share, except that of an inner node's slot 0; they may
//! share more. It lets heads distinguish keys where the fences give no prefix: in the root, and in the first and the
//! last node of each level. It is computed again when a node is built, when an insert makes the number of slots a power
//! of two, and when an inserted key lacks the shared bytes. It is then the length of the common prefix of the first and
//! the last such suffix, at most 255, and 0 if that is less than two. It is 0 in a node without such a slot.
//!
//! | record of a leaf: offset | size | field |
//! | --- | --- | --- |
//! | 0 | 6 | transaction of the version |
//! | 6 | 2 | flags: bit 0 deleted, bit 1 the value is a reference to an overflow chain |
//! | 8 | 8 | undo position of the version |
//! | 16 | 2 | length of the value *v* |
//! | 18 | | suffix, then value, then zeros up to a whole word |
//!
//! | record of an inner node: offset | size | field |
//! | --- | --- | --- |
//! | 0 | 4 | page number of the child |
//! | 4 | | suffix, then zeros up to a whole word |

use core::cmp::Ordering as Order;

use super::{Page, PageType};
use crate::{
    ids::{PageNo, TrxId, UndoPos},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// Bytes before the fences.
pub(crate) const NODE_HEADER: usize = 40;
/// Bytes of a leaf's record before the suffix.
pub(crate) const LEAF_RECORD: usize = 18;
/// Bytes of an inner node's record before the suffix.
pub(crate) const INNER_RECORD: usize = 4;

pub(super) const FLAGS: usize = 6;
pub(super) const HAS_UPPER: u16 = 1;
pub(super) const SKIP: usize = 7;
pub(super) const COUNT: usize = 28;
pub(super) const HEAP: usize = 30;
pub(super) const GARBAGE: usize = 32;
pub(super) const PREFIX: usize = 34;
pub(super) const LOWER_LEN: usize = 36;
pub(super) const UPPER_LEN: usize = 38;

/// Returns the maximum length of a key, in bytes, for this page size.
pub const fn key_limit(page_size: usize) -> usize {
    page_size * 3 / 16
}

/// Returns the maximum length of a value in a leaf, in bytes; longer ones are stored in overflow pages.
pub const fn inline_limit(page_size: usize) -> usize {
    page_size / 4
}

/// Returns the words of the heap that a record of this many bytes takes.
pub(crate) const fn record_words(fixed: usize, suffix: usize, value: usize) -> usize {
    (fixed + suffix + value).div_ceil(8)
}

/// Returns the length of the longest common prefix.
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Returns the head of a suffix, as slots store it.
#[inline]
pub(crate) fn head_of(suffix: &[u8]) -> u32 {
    if let Some(bytes) = suffix.first_chunk::<4>() {
        u32::from_be_bytes(*bytes)
    } else {
        let mut bytes = [0; 4];
        bytes[..suffix.len()].copy_from_slice(suffix);
        u32::from_be_bytes(bytes)
    }
}

/// The version header of an index entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct EntryHeader {
    /// The transaction that wrote this version; at most [`TrxId::MAX`].
    pub trx: TrxId,
    /// [`EntryHeader::DELETED`] and [`EntryHeader::OVERFLOW`].
    pub flags: u16,
    /// Position of the undo record that describes the previous version.
    pub undo: UndoPos,
}

impl EntryHeader {
    /// The entry is delete-marked.
    pub const DELETED: u16 = 1;
    /// The value is a reference to an overflow chain.
    pub const OVERFLOW: u16 = 2;

    /// The header of an entry without versions, which every reader sees.
    pub const UNVERSIONED: Self = Self { trx: TrxId(0), flags: 0, undo: UndoPos(0) };

    /// Creates the header of an ordinary version.
    pub fn new(trx: TrxId, undo: UndoPos) -> Self {
        Self { trx, flags: 0, undo }
    }

    /// Returns whether the entry is delete-marked.
    pub fn is_deleted(self) -> bool {
        self.flags & Self::DELETED != 0
    }

    /// Returns whether the value is a reference to an overflow chain.
    pub fn is_overflow(self) -> bool {
        self.flags & Self::OVERFLOW != 0
    }

    pub(super) fn words(self) -> [u64; 2] {
        debug_assert!(self.trx <= TrxId::MAX, "transaction {} does not fit the header of an entry", self.trx);
        [self.trx.0 & TrxId::MAX.0 | u64::from(self.flags) << 48, self.undo.0]
    }

    pub(super) fn from_words(words: [u64; 2]) -> Self {
        Self { trx: TrxId(words[0] & TrxId::MAX.0), flags: (words[0] >> 48) as u16, undo: UndoPos(words[1]) }
    }
}

/// A slot's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(pub u64);

impl Slot {
    pub(super) fn new(head: u32, record: usize, suffix_len: usize) -> Self {
        debug_assert!(record.is_multiple_of(8), "a record does not begin at a whole word");
        debug_assert!(u16::try_from(suffix_len).is_ok(), "the length of a suffix does not fit its slot");
        Self(u64::from(head) << 32 | ((record / 8) as u64) << 16 | suffix_len as u64)
    }
    #[inline]
    pub(super) fn head(self) -> u32 {
        (self.0 >> 32) as u32
    }
    /// Returns the record's offset in bytes.
    #[inline]
    pub(super) fn record(self) -> usize {
        (self.0 >> 16) as u16 as usize * 8
    }
    #[inline]
    pub(super) fn suffix_len(self) -> usize {
        self.0 as u16 as usize
    }
}

/// Returns the first slot with a head that is not below `head`.
#[inline]
fn lower_bound(slots: &[AtomicU64], head: u32) -> usize {
    let is_below = |slot: &AtomicU64| Slot(slot.load(Relaxed)).head() < head;
    if slots.len() > 256 {
        return slots.partition_point(is_below);
    }
    // A leaf is rarely in the CPU cache. Loading one slot of each 64-byte line at once costs one memory latency; a
    // binary search pays one at every step.
    let below: usize = slots.iter().step_by(8).map(|slot| usize::from(is_below(slot))).sum();
    let Some(block) = below.checked_sub(1) else { return 0 };
    let block = block * 8;
    let rest = slots.get(block + 1..slots.len().min(block + 8)).unwrap_or(&[]);
    block + 1 + rest.iter().map(|slot| usize::from(is_below(slot))).sum::<usize>()
}

/// A node, as of the moment when its header was read.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    page: Page<'a>,
    kind: u8,
    level: u8,
    flags: u16,
    count: u16,
    prefix: u16,
    lower: u16,
    upper: u16,
}

impl<'a> Node<'a> {
    /// Reads the page as a node. [`Node::is_leaf`] and [`Node::is_inner`] return whether it is one.
    #[inline]
    pub fn new(page: Page<'a>) -> Self {
        // Three loads for the whole header.
        let (first, counts, lengths) = (page.u64(0), page.u64(24), page.u64(32));
        Self {
            page,
            kind: (first >> 32) as u8,
            level: (first >> 40) as u8,
            flags: (first >> 48) as u16,
            count: (counts >> 32) as u16,
            prefix: (lengths >> 16) as u16,
            lower: (lengths >> 32) as u16,
            upper: (lengths >> 48) as u16,
        }
        .clamped()
    }

    /// Limits the number of slots to the words of the page.
    #[inline]
    fn clamped(self) -> Self {
        let room = (self.page.len() / 8).saturating_sub(self.slots_at() / 8);
        Self { count: self.count.min(room as u16), ..self }
    }

    /// Returns the page.
    pub fn page(self) -> Page<'a> {
        self.page
    }

    /// Returns whether the page is a leaf.
    #[inline]
    pub fn is_leaf(self) -> bool {
        self.kind == PageType::Leaf as u8
    }

    /// Returns whether the page is an inner node.
    #[inline]
    pub(crate) fn is_inner(self) -> bool {
        self.kind == PageType::Inner as u8
    }

    /// Returns the level; 0 is a leaf.
    #[inline]
    pub fn level(self) -> u8 {
        self.level
    }

    /// Returns the number of slots.
    #[inline]
    pub fn count(self) -> usize {
        self.count.into()
    }

    /// Returns the length of the common prefix.
    #[inline]
    pub(crate) fn prefix_len(self) -> usize {
        self.prefix.into()
    }

    #[inline]
    fn slots(self) -> &'a [AtomicU64] {
        let first = self.slots_at() / 8;
        self.page.words().get(first..first + self.count()).unwrap_or(&[])
    }

    #[inline]
    pub(super) fn slot(self, slot: usize) -> Slot {
        Slot(self.slots().get(slot).map_or(0, |word| word.load(Relaxed)))
    }

    /// Returns the bytes of a record before its suffix.
    #[inline]
    pub(super) fn fixed(self) -> usize {
        if self.is_leaf() { LEAF_RECORD } else { INNER_RECORD }
    }

    /// Returns the skip, in bytes.
    #[inline]
    pub(super) fn skip(self) -> usize {
        (self.flags >> 8).into()
    }

    /// Returns the first slot that searches compare: slot 0 of an inner node, the lower fence, needs no comparison.
    #[inline]
    pub(super) fn first_slot(self) -> usize {
        usize::from(self.is_inner())
    }

    /// Returns the slot where a key is, or would be inserted, and whether it is there. The key must lie within the
    /// fences. In an inner node the lower fence itself is reported as absent, with its place after slot 0.
    #[inline]
    pub fn find(self, key: &[u8]) -> (usize, bool) {
        let suffix = key.get(self.prefix_len()..).unwrap_or(&[]);
        let skip = self.skip();
        let start = self.first_slot();
        let mut rest = suffix;
        if skip > 0 {
            let (shared, rest_of) = suffix.split_at_checked(skip).unwrap_or((suffix, &[]));
            let last = self.slot(self.count().saturating_sub(1));
            match self.page.compare(last.record() + self.fixed(), skip, shared) {
                Order::Equal => rest = rest_of,
                Order::Greater => return (start, false),
                Order::Less => return (self.count(), false),
            }
        }
        let head = head_of(rest);
        let slots = self.slots().get(start..).unwrap_or(&[]);
        let first = lower_bound(slots, head);
        match slots.get(first).map(|slot| Slot(slot.load(Relaxed))) {
            Some(slot) if slot.head() == head => self.find_among(start + first, suffix, head),
            _ => (start + first, false),
        }
    }

    /// Returns whether a slot has exactly this key, which must lie within the fences.
    #[inline]
    pub fn is_at(self, slot: usize, key: &[u8]) -> bool {
        let suffix = key.get(self.prefix_len()..).unwrap_or(&[]);
        let at = self.slot(slot);
        slot < self.count()
            && at.head() == head_of(suffix.get(self.skip()..).unwrap_or(&[]))
            && self.page.compare(at.record() + self.fixed(), at.suffix_len(), suffix) == Order::Equal
    }

    /// Continues [`Node::find`] among the slots from `first` on with an equal head.
    #[inline]
    fn find_among(self, first: usize, suffix: &[u8], head: u32) -> (usize, bool) {
        // The head is nearly always unique: check one slot before searching for the end of the run.
        match self.compare(self.slot(first), suffix) {
            Order::Equal => return (first, true),
            Order::Greater => return (first, false),
            Order::Less => {}
        }
        let mut low = first + 1;
        let mut high = low
            + self
                .slots()
                .get(low..)
                .unwrap_or(&[])
                .partition_point(|s| Slot(s.load(Relaxed)).head() <= head);
        while low < high {
            let middle = low.midpoint(high);
            match self.compare(self.slot(middle), suffix) {
                Order::Less => low = middle + 1,
                Order::Equal => return (middle, true),
                Order::Greater => high = middle,
            }
        }
        (low, false)
    }

    /// Compares a slot's suffix, known to be equal up to the head's end, with another suffix.
    #[inline]
    fn compare(self, slot: Slot, suffix: &[u8]) -> Order {
        let len = slot.suffix_len();
        let known = self.skip() + 4;
        match suffix.get(known..) {
            Some(rest) if len > known => {
                self.page.compare(slot.record() + self.fixed() + known, len - known, rest)
            }
            // One of them ends within the head: equal heads then differ only in trailing zeros.
            _ => len.cmp(&suffix.len()),
        }
    }

    /// Computes the head of a slot for this skip.
    pub(super) fn head_with(self, n: usize, skip: usize) -> u32 {
        let slot = self.slot(n);
        let left = slot.suffix_len().saturating_sub(skip);
        if n < self.first_slot() || left == 0 {
            return 0;
        }
        let head = self.page.u32(slot.record() + self.fixed() + skip).swap_bytes();
        if left < 4 { head & !(u32::MAX >> (8 * left)) } else { head }
    }

    /// Computes the best skip for the present keys.
    pub(super) fn best_skip(self) -> usize {
        let (first, last) = (self.first_slot(), self.count().saturating_sub(1));
        if self.count() <= first {
            return 0;
        }
        let (first, last) = (self.slot(first), self.slot(last));
        let longest = first.suffix_len().min(last.suffix_len()).min(255);
        let (a, b) = (first.record() + self.fixed(), last.record() + self.fixed());
        let shared = self.page.common_prefix(a, b, longest);
        if shared < 2 { 0 } else { shared }
    }

    /// Returns the slot of the child to which a key belongs.
    #[inline]
    pub(crate) fn child_slot(self, key: &[u8]) -> usize {
        let (slot, found) = self.find(key);
        if found { slot } else { slot.saturating_sub(1) }
    }

    /// Returns the slot of the child that contains the keys just below `key`; without a key, the last slot.
    pub(crate) fn child_slot_below(self, key: Option<&[u8]>) -> usize {
        key.map_or(self.count(), |key| self.find(key).0).saturating_sub(1)
    }

    /// Returns whether a page is the child in this slot: a node of the level below, with the separators on both sides
    /// of the slot as its fences.
    pub(crate) fn is_parent_of(self, slot: usize, child: Node<'_>) -> bool {
        if child.level().checked_add(1) != Some(self.level()) || child.is_leaf() != (child.level() == 0) {
            return false;
        }
        let (mut here, mut there) = (Vec::new(), Vec::new());
        self.key_into(slot, &mut here);
        child.lower_into(&mut there);
        if here != there {
            return false;
        }
        here.clear();
        there.clear();
        let is_last = slot + 1 >= self.count();
        let has_upper = if is_last {
            self.upper_into(&mut here)
        } else {
            self.key_into(slot + 1, &mut here);
            true
        };
        has_upper == child.upper_into(&mut there) && here == there
    }

    /// Returns the child in a slot of an inner node.
    #[inline]
    pub fn child(self, slot: usize) -> PageNo {
        PageNo(self.page.u32(self.slot(slot).record()))
    }

    /// Returns the version header in a slot of a leaf.
    #[inline]
    pub fn header(self, slot: usize) -> EntryHeader {
        let at = self.slot(slot).record();
        EntryHeader::from_words([self.page.u64(at), self.page.u64(at + 8)])
    }

    /// Returns offset in the page and length of the value in a slot of a leaf.
    #[inline]
    pub(crate) fn value_range(self, slot: usize) -> (usize, usize) {
        let slot = self.slot(slot);
        let at = slot.record();
        (at + LEAF_RECORD + slot.suffix_len(), self.page.u16(at + 16).into())
    }

    /// Appends the value in a slot of a leaf.
    #[inline]
    pub fn value_into(self, slot: usize, out: &mut Vec<u8>) {
        let (at, len) = self.value_range(slot);
        self.page.append_to(at, len, out);
    }

    /// Appends the key and then the value in a slot of a leaf. Returns the length of the key, which never exceeds the
    /// appended bytes, even after a torn read.
    #[inline]
    pub(crate) fn entry_into(self, slot: usize, out: &mut Vec<u8>) -> usize {
        let start = out.len();
        self.page.append_to(NODE_HEADER, self.prefix_len(), out);
        // The value lies right after the rest of the key.
        let slot = self.slot(slot);
        let at = slot.record();
        let value = usize::from(self.page.u16(at + 16));
        self.page.append_to(at + LEAF_RECORD, slot.suffix_len() + value, out);
        (self.prefix_len() + slot.suffix_len()).min(out.len() - start)
    }

    /// Appends a slot's key after the prefix.
    pub(crate) fn suffix_into(self, slot: usize, out: &mut Vec<u8>) {
        let slot = self.slot(slot);
        self.page.append_to(slot.record() + self.fixed(), slot.suffix_len(), out);
    }

    /// Appends a slot's whole key.
    pub fn key_into(self, slot: usize, out: &mut Vec<u8>) {
        self.page.append_to(NODE_HEADER, self.prefix_len(), out);
        self.suffix_into(slot, out);
    }

    /// Returns the offset of the slots, which follow the fences.
    #[inline]
    pub(super) fn slots_at(self) -> usize {
        NODE_HEADER
            + usize::from(self.lower).next_multiple_of(8)
            + usize::from(self.upper).next_multiple_of(8)
    }

    /// Appends the lower fence.
    pub(crate) fn lower_into(self, out: &mut Vec<u8>) {
        self.page.append_to(NODE_HEADER, self.lower.into(), out);
    }

    /// Returns offset in the page and length of the upper fence, if there is one.
    fn upper_range(self) -> Option<(usize, usize)> {
        let at = NODE_HEADER + usize::from(self.lower).next_multiple_of(8);
        self.has_upper().then_some((at, self.upper.into()))
    }

    /// Appends the upper fence, if there is one, and returns whether there is.
    pub(crate) fn upper_into(self, out: &mut Vec<u8>) -> bool {
        let range = self.upper_range();
        if let Some((at, len)) = range {
            self.page.append_to(at, len, out);
        }
        range.is_some()
    }

    /// Returns the length of the common prefix of the fences, as they are.
    pub(super) fn prefix_of_fences(self) -> usize {
        self.upper_range()
            .map_or(0, |(at, len)| self.page.common_prefix(NODE_HEADER, at, len.min(self.lower.into())))
    }

    /// Returns whether the node has an upper fence: the last of its level has none.
    pub(crate) fn has_upper(self) -> bool {
        self.flags & HAS_UPPER != 0
    }

    /// Returns whether the node has a fence that excludes keys: the root has none.
    pub(crate) fn has_fence(self) -> bool {
        self.lower > 0 || self.has_upper()
    }

    /// Returns whether a key lies within the fences.
    pub fn contains(self, key: &[u8]) -> bool {
        self.page.compare(NODE_HEADER, self.lower.into(), key) != Order::Greater
            && self.upper_range().is_none_or(|(at, len)| self.page.compare(at, len, key) == Order::Greater)
    }

    /// Returns whether the keys just below this one lie within the fences. No key is below the empty key; for it the
    /// first node returns true.
    pub(crate) fn contains_below(self, key: &[u8]) -> bool {
        (self.lower == 0 || self.page.compare(NODE_HEADER, self.lower.into(), key) == Order::Less)
            && self.upper_range().is_none_or(|(at, len)| self.page.compare(at, len, key) != Order::Less)
    }

    /// Returns whether a key begins with the common prefix: enough to trust a slot that was found for it.
    #[inline]
    pub(crate) fn has_prefix_of(self, key: &[u8]) -> bool {
        key.get(..self.prefix_len())
            .is_some_and(|prefix| self.page.compare(NODE_HEADER, prefix.len(), prefix) == Order::Equal)
    }

    /// Compares the suffixes of two slots.
    pub(super) fn compare_slots(self, a: usize, b: usize) -> Order {
        let (a, b) = (self.slot(a), self.slot(b));
        let [(from, len), (to, other)] = [a, b].map(|slot| (slot.record() + self.fixed(), slot.suffix_len()));
        let shared = self.page.common_prefix(from, to, len.min(other));
        if shared < len.min(other) {
            self.page.u8(from + shared).cmp(&self.page.u8(to + shared))
        } else {
            len.cmp(&other)
        }
    }

    /// Returns the words that the record of a slot takes.
    pub(crate) fn words_of(self, slot: usize) -> usize {
        let slot = self.slot(slot);
        let value = if self.is_leaf() { self.page.u16(slot.record() + 16).into() } else { 0 };
        record_words(self.fixed(), slot.suffix_len(), value)
    }

    /// Returns the words that are free for slots and records, including those of dead records.
    pub(crate) fn free_words(self) -> usize {
        let free = self.page.len().saturating_sub(self.slots_at()) / 8 + usize::from(self.page.u16(GARBAGE));
        free.saturating_sub(self.count() + usize::from(self.page.u16(HEAP)))
    }

    /// Returns the words that slots and live records take.
    pub(crate) fn live_words(self) -> usize {
        (self.count() + usize::from(self.page.u16(HEAP))).saturating_sub(self.page.u16(GARBAGE).into())
    }

    /// Returns the words that a node of this page size has for slots, records and fences.
    pub fn capacity(self) -> usize {
        self.page.len().saturating_sub(NODE_HEADER) / 8
    }
}
