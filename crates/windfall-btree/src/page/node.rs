//! A node of a tree within a page: its layout, and how it is read.
//!
//! **Purpose.** Slotted pages with fence keys, prefix truncation and key heads, so that a search touches few cache
//! lines and allocates nothing.
//!
//! **Invariants.** A node holds the keys of `[lower fence, upper fence)`, strictly ascending as byte strings in memcmp
//! order (test: `behaves_as_a_map_4k`). Each key begins with the common prefix of both fences, which only the lower
//! fence stores (test: `a_header_has_the_prefix_of_its_fences_and_no_other`). Of a long fence only a part is stored
//! ([`fence`](super::fence)); then the node alone cannot tell of every key whether it lies within the fences (test:
//! `a_cut_fence_leaves_open_only_keys_that_begin_as_it_does`). Slot 0 of an inner node has the lower fence as its key,
//! so the child for a key is in the last slot with a key that is not greater (test:
//! `a_search_finds_what_a_sorted_set_finds`). Reads use relaxed word accesses and tolerate a page that changes
//! meanwhile or is damaged: they never panic and never loop, they clamp (test: `reads_never_leave_the_page`). Their
//! result must not be used before version validation (test: `readers_and_cursors_during_splits_and_merges`).
//!
//! # Layout, byte by byte
//!
//! All numbers are little-endian. Records begin at any byte, slots at a multiple of 8.
//!
//! | offset | size | field |
//! | --- | --- | --- |
//! | 0 | 28 | page header; type 2 (leaf) or 3 (inner), level 0 for a leaf; flags at offset 6, 2 bytes: see below |
//! | 28 | 2 | number of slots *n* |
//! | 30 | 2 | heap: bytes taken by records, live and dead |
//! | 32 | 2 | garbage: bytes of the heap that belong to no record |
//! | 34 | 2 | length of the common prefix in bytes |
//! | 36 | 2 | bytes of the lower fence, its checksum included; an empty lower fence is below every key |
//! | 38 | 2 | bytes of the upper fence without the common prefix; 0 if there is none, and then every key is below it |
//! | 40 | | lower fence, then the upper fence without the common prefix, then zeros up to a whole word |
//! | *s* | 4*n* | slots in key order, directly after the fences |
//! | … | … | free space |
//! | *h* | | the heap of records, growing downwards from the page's end |
//!
//! A freshly formatted page, in which bytes 28 to 39 are zero, is thus an empty node without fences. Bit 0 of the
//! **flags** is set if the node has an upper fence, bits 1 and 2 if the lower and the upper fence are *cut*
//! ([`fence`](super::fence)): then the checksum follows the part that is stored. Bits 8 to 15 are the *skip*.
//!
//! A **slot** is half a word. From the most significant bits: 16 bits *head*, 16 bits offset of the record. The head is
//! the first two bytes of the key after the prefix (its *suffix*) and after the skip, big-endian, padded with zeros. In
//! slot 0 of an inner node, which no search compares, it is zero. Records are described in [`record`](super::record).
//!
//! The **skip** is a number of leading bytes that all suffixes share, except that of an inner node's slot 0; they may
//! share more. It lets heads distinguish keys where the fences give no prefix: in the root, and in the first and the
//! last node of each level. It is computed again when a node is built, when an insert makes the number of slots a power
//! of two, and when an inserted key lacks the shared bytes. It is then the length of the common prefix of the first and
//! the last such suffix, at most 255. It is 0 in a node without such a slot.

use core::cmp::Ordering as Order;

use super::{
    Page, PageType,
    fence::{CHECKSUM, Fence, Fences, are_same},
    record::{EntryHeader, Fixed, child_of},
};
use crate::{
    ids::PageNo,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// Bytes before the fences.
pub(crate) const NODE_HEADER: usize = 40;
/// Bytes of a slot.
pub(crate) const SLOT: usize = 4;

pub(super) const FLAGS: usize = 6;
pub(super) const HAS_UPPER: u16 = 1;
pub(super) const LOWER_IS_CUT: u16 = 2;
pub(super) const UPPER_IS_CUT: u16 = 4;
pub(super) const SKIP: usize = 7;
pub(super) const COUNT: usize = 28;
pub(super) const HEAP: usize = 30;
pub(super) const GARBAGE: usize = 32;
pub(super) const PREFIX: usize = 34;
pub(super) const LOWER_LEN: usize = 36;
pub(super) const UPPER_LEN: usize = 38;

/// Returns the maximum length of one part of a key, in bytes, for this page size: of a row's key, and of an index key.
pub const fn key_part_limit(page_size: usize) -> usize {
    page_size * 3 / 16
}

/// Returns the maximum length of a key, in bytes, for this page size: of two parts, and the two bytes that may separate
/// them.
pub const fn key_limit(page_size: usize) -> usize {
    2 * key_part_limit(page_size) + 2
}

/// Returns the maximum length of a value in a leaf, in bytes; longer ones are stored in overflow pages.
pub const fn inline_limit(page_size: usize) -> usize {
    page_size / 4
}

/// Returns the length of the longest common prefix.
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Returns the head of a suffix, as slots store it.
#[inline]
pub(crate) fn head_of(suffix: &[u8]) -> u16 {
    match suffix {
        [] => 0,
        [first] => u16::from(*first) << 8,
        [first, second, ..] => u16::from_be_bytes([*first, *second]),
    }
}

/// Returns whether both are true; `None` if the known ones are, and not both are known.
#[inline]
fn both(a: Option<bool>, b: Option<bool>) -> Option<bool> {
    if a == Some(false) || b == Some(false) { Some(false) } else { a.and(b) }
}

/// Compares a cut fence, of which this many bytes are stored, with a key. `compare` compares its first bytes.
#[cold]
fn compare_cut(stored: usize, key: &[u8], compare: impl Fn(usize, &[u8]) -> Order) -> Option<Order> {
    match compare(stored, &key[..key.len().min(stored)]) {
        // The fence is longer than what is stored of it.
        Order::Equal if key.len() > stored => None,
        Order::Equal => Some(Order::Greater),
        order => Some(order),
    }
}

/// A slot's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(pub u32);

impl Slot {
    pub(super) fn new(head: u16, record: usize) -> Self {
        debug_assert!(u16::try_from(record).is_ok(), "the offset of a record does not fit its slot");
        Self(u32::from(head) << 16 | record as u32)
    }
    #[inline]
    pub(super) fn head(self) -> u16 {
        (self.0 >> 16) as u16
    }
    /// Returns the record's offset in bytes.
    #[inline]
    pub(super) fn record(self) -> usize {
        self.0 as u16 as usize
    }
}

/// The number of words of a cache line.
const LINE: usize = 8;

/// Returns the first of `count` slots, two in each of these words, with a head that is not below `head`.
#[inline]
fn lower_bound(words: &[AtomicU64], count: usize, head: u16) -> usize {
    // The head of the first slot of a word.
    let is_below = |word: &AtomicU64| ((word.load(Relaxed) >> 16) as u16) < head;
    // A leaf is rarely in the CPU cache. Loading one slot of each 64-byte line at once costs one memory latency; a
    // binary search pays one at every step. Of many lines, first only every eighth.
    let steps: &[usize] = if words.len() > 32 * LINE { &[8 * LINE, LINE, 1] } else { &[LINE, 1] };
    let (mut from, mut to) = (0, words.len());
    for step in steps {
        let samples = words.get(from..to).unwrap_or(&[]).iter().step_by(*step);
        let below: usize = samples.map(|word| usize::from(is_below(word))).sum();
        let Some(last) = below.checked_sub(1) else { return (2 * from).min(count) };
        from += last * step;
        to = to.min(from + step);
    }
    // The first slot of word `from` is below.
    let second = words.get(from).map_or(0, |word| (word.load(Relaxed) >> 48) as u16);
    (2 * from + 1 + usize::from(second < head)).min(count)
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

/// Where the parts of an entry are in its page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryPlace {
    /// Offset and length of the key after the prefix of the node.
    pub(crate) suffix: (usize, usize),
    /// Offset and length of the value.
    pub(crate) value: (usize, usize),
    /// The version header.
    pub(crate) header: EntryHeader,
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

    /// Limits the number of slots to the room in the page.
    #[inline]
    fn clamped(self) -> Self {
        let room = self.page.len().saturating_sub(self.slots_at()) / SLOT;
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
    pub(super) fn slot(self, slot: usize) -> Slot {
        Slot(if slot < self.count() { self.page.aligned_u32(self.slots_at() + slot * SLOT) } else { 0 })
    }

    /// Returns the part of a record before its suffix.
    #[inline]
    pub(super) fn fixed(self, slot: Slot) -> Fixed {
        let word = self.page.u64(slot.record());
        if self.is_leaf() { Fixed::leaf(word) } else { Fixed::inner(word) }
    }

    /// Returns offset in the page and length of a slot's suffix.
    #[inline]
    fn suffix_range(self, slot: usize) -> (usize, usize) {
        if slot < self.first_slot() {
            let prefix = self.prefix_len();
            return (NODE_HEADER + prefix, self.lower_len().saturating_sub(prefix));
        }
        let slot = self.slot(slot);
        let fixed = self.fixed(slot);
        (slot.record() + fixed.start, fixed.suffix)
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
            let (last, _) = self.suffix_range(self.count().saturating_sub(1));
            match self.page.compare(last, skip, shared) {
                Order::Equal => rest = rest_of,
                Order::Greater => return (start, false),
                Order::Less => return (self.count(), false),
            }
        }
        let head = head_of(rest);
        let words = self.slots_at() / 8..self.slots_at() / 8 + self.count().div_ceil(2);
        // The head of an inner node's slot 0 is below every other.
        let first = lower_bound(self.page.words().get(words).unwrap_or(&[]), self.count(), head).max(start);
        if first < self.count() && self.slot(first).head() == head {
            self.find_among(first, suffix, head)
        } else {
            (first, false)
        }
    }

    /// Returns whether a slot has exactly this key, which must lie within the fences.
    #[inline]
    pub fn is_at(self, slot: usize, key: &[u8]) -> bool {
        let suffix = key.get(self.prefix_len()..).unwrap_or(&[]);
        slot < self.count()
            && self.slot(slot).head() == head_of(suffix.get(self.skip()..).unwrap_or(&[]))
            && {
                let (at, len) = self.suffix_range(slot);
                self.page.compare(at, len, suffix) == Order::Equal
            }
    }

    /// Returns whether a slot has exactly this key, or the key belongs before it and behind the slot before, which
    /// needs no look at the fences: then the node is that of the key. `None` for other keys, and if only an upper
    /// fence could tell.
    pub(crate) fn is_at_or_before(self, slot: usize, key: &[u8]) -> Option<bool> {
        if !self.is_leaf() || !self.has_prefix_of(key) {
            return None;
        }
        if self.is_at(slot, key) {
            return Some(true);
        }
        let suffix = &key[self.prefix_len()..];
        let order = |slot| {
            let (at, len) = self.suffix_range(slot);
            self.page.compare(at, len, suffix)
        };
        let is_above = slot > 0 && slot <= self.count() && order(slot - 1) == Order::Less;
        let is_below = if slot < self.count() { order(slot) == Order::Greater } else { !self.has_upper() };
        (is_above && is_below).then_some(false)
    }

    /// Continues [`Node::find`] among the slots from `first` on, which has an equal head.
    #[inline]
    fn find_among(self, first: usize, suffix: &[u8], head: u16) -> (usize, bool) {
        // Few slots have an equal head, and most often one. A bound of their run is found by the heads alone; a record
        // is read only to compare its key.
        let (mut end, mut step) = (first + 1, 1);
        while end < self.count() && self.slot(end).head() == head {
            end += step;
            step *= 2;
        }
        let (mut low, mut high) = (first, end.min(self.count()));
        while low < high {
            let middle = low.midpoint(high);
            match self.slot(middle).head().cmp(&head).then_with(|| self.compare(middle, suffix)) {
                Order::Less => low = middle + 1,
                Order::Equal => return (middle, true),
                Order::Greater => high = middle,
            }
        }
        (low, false)
    }

    /// Compares a slot's suffix, known to be equal up to the head's end, with another suffix.
    #[inline]
    fn compare(self, slot: usize, suffix: &[u8]) -> Order {
        let (at, len) = self.suffix_range(slot);
        let known = self.skip() + 2;
        match suffix.get(known..) {
            Some(rest) if len > known => self.page.compare(at + known, len - known, rest),
            // One of them ends within the head: equal heads then differ only in trailing zeros.
            _ => len.cmp(&suffix.len()),
        }
    }

    /// Computes the head of a slot for this skip.
    pub(super) fn head_with(self, n: usize, skip: usize) -> u16 {
        let (at, len) = self.suffix_range(n);
        if n < self.first_slot() {
            return 0;
        }
        let head = self.page.u16(at + skip).swap_bytes();
        match len.saturating_sub(skip) {
            0 => 0,
            1 => head & 0xff00,
            _ => head,
        }
    }

    /// Computes the best skip for the present keys.
    pub(super) fn best_skip(self) -> usize {
        let (first, last) = (self.first_slot(), self.count().saturating_sub(1));
        if self.count() <= first {
            return 0;
        }
        let [(a, len), (b, other)] = [first, last].map(|slot| self.suffix_range(slot));
        self.page.common_prefix(a, b, len.min(other).min(255))
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
        let separator = |slot| {
            let mut key = Vec::new();
            self.key_into(slot, &mut key);
            Fence { bytes: key, checksum: None }
        };
        let lower = if slot == 0 { self.lower_fence() } else { separator(slot) };
        let upper = if slot + 1 < self.count() { Some(separator(slot + 1)) } else { self.upper_fence() };
        child.has_fences((lower.as_deref(), upper.as_ref().map(Fence::as_deref)))
    }

    /// Returns the child in a slot of an inner node.
    #[inline]
    pub fn child(self, slot: usize) -> PageNo {
        child_of(self.page.u64(self.slot(slot).record()))
    }

    /// Returns the version header in a slot of a leaf.
    #[inline]
    pub fn header(self, slot: usize) -> EntryHeader {
        let slot = self.slot(slot);
        self.fixed(slot).header(self.page, slot.record())
    }

    /// Returns whether the record of a slot of a leaf can be given this header without taking more bytes.
    pub(crate) fn takes_header(self, slot: usize, header: EntryHeader) -> bool {
        let fixed = self.fixed(self.slot(slot));
        header.bytes(fixed.suffix + fixed.value) <= fixed.header_bytes()
    }

    /// Returns offset in the page and length of the value in a slot of a leaf.
    #[inline]
    pub(crate) fn value_range(self, slot: usize) -> (usize, usize) {
        let slot = self.slot(slot);
        let fixed = self.fixed(slot);
        (slot.record() + fixed.start + fixed.suffix, fixed.value)
    }

    /// Returns where the parts of an entry are in the page of a leaf. After a torn read they may lie outside.
    #[inline]
    pub(crate) fn place_of(self, slot: usize) -> EntryPlace {
        let slot = self.slot(slot);
        let fixed = self.fixed(slot);
        let at = slot.record() + fixed.start;
        EntryPlace {
            suffix: (at, fixed.suffix),
            value: (at + fixed.suffix, fixed.value),
            header: fixed.header(self.page, slot.record()),
        }
    }

    /// Appends the value in a slot of a leaf. Returns the version header.
    #[inline]
    pub(crate) fn version_into(self, slot: usize, out: &mut Vec<u8>) -> EntryHeader {
        let slot = self.slot(slot);
        let (fixed, at) = (self.fixed(slot), slot.record());
        self.page.append_to(at + fixed.start + fixed.suffix, fixed.value, out);
        fixed.header(self.page, at)
    }

    /// Appends the value in a slot of a leaf.
    #[inline]
    pub fn value_into(self, slot: usize, out: &mut Vec<u8>) {
        let (at, len) = self.value_range(slot);
        self.page.append_to(at, len, out);
    }

    /// Appends the key and then the value in a slot of a leaf. Returns the length of the key, which never exceeds the
    /// appended bytes, even after a torn read, and the version header.
    #[inline]
    pub(crate) fn entry_into(self, slot: usize, out: &mut Vec<u8>) -> (usize, EntryHeader) {
        let start = out.len();
        self.page.append_to(NODE_HEADER, self.prefix_len(), out);
        // The value lies right after the rest of the key.
        let slot = self.slot(slot);
        let fixed = self.fixed(slot);
        self.page.append_to(slot.record() + fixed.start, fixed.suffix + fixed.value, out);
        let key = (self.prefix_len() + fixed.suffix).min(out.len() - start);
        (key, fixed.header(self.page, slot.record()))
    }

    /// Appends a slot's key after the prefix.
    pub(crate) fn suffix_into(self, slot: usize, out: &mut Vec<u8>) {
        let (at, len) = self.suffix_range(slot);
        self.page.append_to(at, len, out);
    }

    /// Appends a slot's whole key; for slot 0 of an inner node what is stored of the lower fence, without a checksum.
    pub fn key_into(self, slot: usize, out: &mut Vec<u8>) {
        self.page.append_to(NODE_HEADER, self.prefix_len(), out);
        self.suffix_into(slot, out);
    }

    /// Returns the offset of the slots, which follow the fences.
    #[inline]
    pub(super) fn slots_at(self) -> usize {
        NODE_HEADER + (usize::from(self.lower) + usize::from(self.upper)).next_multiple_of(8)
    }

    /// Returns the length of what is stored of the lower fence, without a checksum.
    #[inline]
    fn lower_len(self) -> usize {
        let checksum = if self.flags & LOWER_IS_CUT == 0 { 0 } else { CHECKSUM };
        usize::from(self.lower).saturating_sub(checksum)
    }

    /// Appends what is stored of the lower fence, without a checksum.
    pub(crate) fn lower_into(self, out: &mut Vec<u8>) {
        self.page.append_to(NODE_HEADER, self.lower_len(), out);
    }

    /// Returns the lower fence.
    pub(crate) fn lower_fence(self) -> Fence<Vec<u8>> {
        let mut bytes = Vec::new();
        self.lower_into(&mut bytes);
        let checksum =
            (self.flags & LOWER_IS_CUT != 0).then(|| self.page.u32(NODE_HEADER + self.lower_len()));
        Fence { bytes, checksum }
    }

    /// Returns offset in the page and length of what is stored of the upper fence behind the common prefix, without a
    /// checksum, if there is such a fence.
    #[inline]
    fn upper_range(self) -> Option<(usize, usize)> {
        let checksum = if self.flags & UPPER_IS_CUT == 0 { 0 } else { CHECKSUM };
        let len = usize::from(self.upper).saturating_sub(checksum);
        self.has_upper().then_some((NODE_HEADER + usize::from(self.lower), len))
    }

    /// Appends what is stored of the upper fence, without a checksum, if there is one. Returns whether there is.
    pub(crate) fn upper_into(self, out: &mut Vec<u8>) -> bool {
        let range = self.upper_range();
        if let Some((at, len)) = range {
            self.page.append_to(NODE_HEADER, self.prefix_len(), out);
            self.page.append_to(at, len, out);
        }
        range.is_some()
    }

    /// Returns the upper fence, if there is one.
    pub(crate) fn upper_fence(self) -> Option<Fence<Vec<u8>>> {
        let (at, len) = self.upper_range()?;
        let mut bytes = Vec::new();
        self.upper_into(&mut bytes);
        let checksum = (self.flags & UPPER_IS_CUT != 0).then(|| self.page.u32(at + len));
        Some(Fence { bytes, checksum })
    }

    /// Returns whether its fences can be these.
    pub(crate) fn has_fences(self, fences: Fences<'_>) -> bool {
        let (lower, upper) = (self.lower_fence(), self.upper_fence());
        are_same((lower.as_deref(), upper.as_ref().map(Fence::as_deref)), fences)
    }

    /// Returns whether a fence is cut.
    #[inline]
    pub(crate) fn has_cut_fence(self) -> bool {
        self.flags & (LOWER_IS_CUT | UPPER_IS_CUT) != 0
    }

    /// Compares the lower fence with a key; `None` if it is cut and the key begins with what is stored of it.
    #[inline]
    fn compare_lower(self, key: &[u8]) -> Option<Order> {
        let compare = |len, key: &[u8]| self.page.compare(NODE_HEADER, len, key);
        if self.flags & LOWER_IS_CUT == 0 {
            Some(compare(self.lower.into(), key))
        } else {
            compare_cut(self.lower_len(), key, compare)
        }
    }

    /// Compares the upper fence, which is above every key if there is none, with a key; `None` as with the lower fence.
    #[inline]
    fn compare_upper(self, key: &[u8]) -> Option<Order> {
        let Some((at, len)) = self.upper_range() else { return Some(Order::Greater) };
        let prefix = self.prefix_len();
        let compare = |len: usize, key: &[u8]| {
            let (shared, rest) = key.split_at_checked(prefix).unwrap_or((key, &[]));
            let order = self.page.compare(NODE_HEADER, prefix, shared);
            order.then_with(|| self.page.compare(at, len.saturating_sub(prefix), rest))
        };
        if self.flags & UPPER_IS_CUT == 0 {
            Some(compare(prefix + len, key))
        } else {
            compare_cut(prefix + len, key, compare)
        }
    }

    /// Returns whether the common prefix is all that the fences share.
    pub(super) fn has_whole_prefix(self) -> bool {
        let (prefix, lower) = (self.prefix_len(), self.lower_len());
        match self.upper_range() {
            None => prefix == 0,
            Some((at, len)) => {
                let most = lower.min(prefix + len);
                prefix <= most && self.page.common_prefix(NODE_HEADER + prefix, at, most - prefix) == 0
            }
        }
    }

    /// Returns whether the node has an upper fence: the last of its level has none.
    pub(crate) fn has_upper(self) -> bool {
        self.flags & HAS_UPPER != 0
    }

    /// Returns whether the flags are those that a node can have, with room for the checksums of cut fences.
    pub(super) fn has_known_flags(self) -> bool {
        let has = |flag, length| self.flags & flag == 0 || usize::from(length) >= CHECKSUM;
        self.flags & 0xff & !(HAS_UPPER | LOWER_IS_CUT | UPPER_IS_CUT) == 0
            && has(LOWER_IS_CUT, self.lower)
            && has(UPPER_IS_CUT, self.upper)
            && (self.has_upper() || self.flags & UPPER_IS_CUT == 0)
    }

    /// Returns whether the node has a fence that excludes keys: the root has none.
    pub(crate) fn has_fence(self) -> bool {
        self.lower > 0 || self.has_upper()
    }

    /// Returns whether a key lies within the fences; `None` if a cut fence leaves that open.
    #[inline]
    pub fn contains(self, key: &[u8]) -> Option<bool> {
        let above = self.compare_lower(key).map(|order| order != Order::Greater);
        both(above, self.compare_upper(key).map(|order| order == Order::Greater))
    }

    /// Returns whether the keys just below this one lie within the fences; `None` if a cut fence leaves that open. No
    /// key is below the empty key; for it the first node returns true.
    pub(crate) fn contains_below(self, key: &[u8]) -> Option<bool> {
        let above = if self.lower == 0 { Some(Order::Less) } else { self.compare_lower(key) };
        both(
            above.map(|order| order == Order::Less),
            self.compare_upper(key).map(|order| order != Order::Less),
        )
    }

    /// Returns whether a key begins with the common prefix: enough to trust a slot that was found for it.
    #[inline]
    pub(crate) fn has_prefix_of(self, key: &[u8]) -> bool {
        key.get(..self.prefix_len())
            .is_some_and(|prefix| self.page.compare(NODE_HEADER, prefix.len(), prefix) == Order::Equal)
    }

    /// Compares two suffixes, each given by its offset in the page and its length.
    pub(super) fn compare_ranges(self, (from, len): (usize, usize), (to, other): (usize, usize)) -> Order {
        let shared = self.page.common_prefix(from, to, len.min(other));
        if shared < len.min(other) {
            self.page.u8(from + shared).cmp(&self.page.u8(to + shared))
        } else {
            len.cmp(&other)
        }
    }

    /// Returns the bytes that the record of a slot takes.
    pub(crate) fn record_bytes(self, slot: usize) -> usize {
        self.fixed(self.slot(slot)).bytes()
    }

    /// Returns the bytes that are free for slots and records, including those of dead records.
    pub(crate) fn free_bytes(self) -> usize {
        let free = self.page.len().saturating_sub(self.slots_at()) + usize::from(self.page.u16(GARBAGE));
        free.saturating_sub(self.count() * SLOT + usize::from(self.page.u16(HEAP)))
    }

    /// Returns the bytes that slots and live records take.
    pub(crate) fn live_bytes(self) -> usize {
        let used = self.count() * SLOT + usize::from(self.page.u16(HEAP));
        used.saturating_sub(self.page.u16(GARBAGE).into())
    }

    /// Returns the bytes that a node of this page size has for slots, records and fences.
    pub fn capacity(self) -> usize {
        self.page.len().saturating_sub(NODE_HEADER)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::{
        super::{EntryHeader, NodeList, PageOp, blank, fence::shortened},
        *,
    };
    use crate::ids::{PageId, SpaceId};

    proptest! {
        /// Keys of which few bytes differ, some of them behind the end of what is stored.
        #[test]
        fn a_cut_fence_leaves_open_only_keys_that_begin_as_it_does(
            keys in prop::collection::btree_set((
                prop::sample::select(vec![0usize, 255, 256, 257, 600]), prop::collection::vec(0u8..3, 0..5),
                prop::sample::select(vec![0usize, 255, 256, 257]),
            ), 3..20), has_upper in any::<bool>(), at in any::<prop::sample::Index>(),
        ) {
            let key = |(n, middle, m): (usize, Vec<u8>, usize)| [&[1].repeat(n)[..], &middle, &[2].repeat(m)].concat();
            let keys: Vec<_> = keys.into_iter().map(key).collect::<BTreeSet<_>>().into_iter().collect();
            prop_assume!(keys.len() >= 3);
            let first = at.index(keys.len() - 1);
            let (lower, upper) = (Fence::whole(&keys[first][..]), Fence::whole(&keys[keys.len() - 1][..]));
            let whole = (lower, has_upper.then_some(upper));
            let (lower, upper) = shortened(whole, 4096);
            let words = blank(4096);
            let page = Page::new(&words);
            let build = PageOp::NodeBuild { level: 0, lower, upper, image: &[] };
            prop_assert_eq!(build.apply(page, PageId { space: SpaceId(77), page: PageNo(3) }), Ok(()));
            let node = Node::new(page);
            let (stored_lower, stored_upper) = (node.lower_fence(), node.upper_fence());
            prop_assert_eq!(stored_lower.as_deref(), lower);
            prop_assert_eq!(stored_upper.as_ref().map(Fence::as_deref), upper);
            prop_assert_eq!(node.has_cut_fence(), (lower, upper) != whole);
            for (n, key) in keys.iter().enumerate() {
                let is_open = |fence: Fence<&[u8]>| {
                    fence.checksum.is_some() && key.len() > fence.bytes.len() && key.starts_with(fence.bytes)
                };
                let is_open = is_open(lower) || upper.is_some_and(is_open);
                let is_below_upper = !has_upper || n + 1 < keys.len();
                let expected = [first <= n && is_below_upper, first < n || n == 0 && keys[first].is_empty()];
                for (found, expected) in [node.contains(key), node.contains_below(key)].into_iter().zip(expected) {
                    prop_assert!(found == Some(expected) || found.is_none() && is_open, "{n}: {found:?}, {expected}");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// From no slot to thousands, with heads that are unique and heads that many slots share.
        #[test]
        fn a_search_finds_what_a_sorted_set_finds(
            keys in prop_oneof![
                prop::collection::btree_set(prop::collection::vec(any::<u8>(), 0..4), 0..3000),
                prop::collection::btree_set(prop::collection::vec(0u8..3, 0..9), 0..3000),
                (0u32..3000).prop_map(|n| (0..n).map(|n| n.to_be_bytes().to_vec()).collect()),
            ],
            others in prop::collection::vec(prop_oneof![
                prop::collection::vec(any::<u8>(), 0..5), prop::collection::vec(0u8..3, 0..10),
            ], 100), leaf in any::<bool>(),
        ) {
            let words = blank(65_536);
            let page = Page::new(&words);
            // The key of an inner node's first child is the lower fence.
            let keys: BTreeSet<Vec<u8>> = keys.into_iter().chain((!leaf).then(Vec::new)).collect();
            let mut list = NodeList::default();
            for (n, key) in keys.iter().enumerate() {
                if leaf {
                    list.push_leaf(key, EntryHeader::UNVERSIONED, &[]);
                } else {
                    list.push_inner(key, PageNo(n as u32));
                }
            }
            let image = list.image(0);
            let build = PageOp::NodeBuild { level: u8::from(!leaf), lower: Fence::whole(&[]), upper: None, image: &image };
            prop_assert_eq!(build.apply(page, PageId { space: SpaceId(77), page: PageNo(3) }), Ok(()));
            let node = Node::new(page);
            prop_assert_eq!(node.count(), keys.len());
            for key in keys.iter().chain(&others) {
                let expected = (keys.range(..key.clone()).count(), keys.contains(key));
                if leaf || !key.is_empty() {
                    prop_assert_eq!(node.find(key), expected, "{:x?}", key);
                }
                if !leaf {
                    let child = expected.0 + usize::from(expected.1) - 1;
                    prop_assert_eq!(node.child(node.child_slot(key)), PageNo(child as u32));
                }
            }
        }
    }
}
