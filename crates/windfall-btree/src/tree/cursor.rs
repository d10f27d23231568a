//! Cursors: entries in key order, in both directions.
//!
//! **Purpose.** A cursor copies a batch of entries from one leaf, validates the copy, and then returns the entries one
//! by one without accessing a page. The first batch after a seek is small, because most seeks need few entries; each
//! further one is larger, up to a whole leaf. For a batch of half a leaf or more the page is copied as it is, and the
//! values are lent from that copy.
//!
//! **Invariants.** A batch is the content of the tree in a key range at one moment: all entries in `[low, high)`, where
//! the bounds are the leaf's fences or the key at which the copy was cut short (test:
//! `readers_and_cursors_during_splits_and_merges`). So an entry may be older than a change that was committed since its
//! batch was copied. The next batch begins exactly at a bound (test:
//! `a_cursor_survives_splits_and_merges_between_its_calls`). A key that is present throughout is returned exactly once,
//! in order, and no key is returned twice, despite splits, merges and deletes between batches (test:
//! `readers_and_cursors_during_splits_and_merges`). A cursor holds no latch, neither between calls nor within them
//! (test: `a_cursor_survives_splits_and_merges_between_its_calls`). A cursor that is restricted to limits treats the
//! tree as if it had no other entries, and copies no others (test: `a_cursor_stays_within_its_limits`). Where a fence
//! of the leaf is cut, the cursor descends twice, to have it whole (test: `behaves_as_a_map_4k`).
//!
//! **Access.** Batches after the second are read as [`Access::Scan`]: a short range counts as a look-up, a long one as
//! a scan.

use core::ops::{Bound, Deref};

use super::{
    Tree,
    descent::{Bounds, Target},
    store::{Access, PageStore, Reading},
};
use crate::{
    error::Result,
    keys::Limits,
    page::{EntryHeader, Node, node::NODE_HEADER},
};

/// The target of a seek.
#[derive(Clone, Copy, Debug)]
pub enum Seek<'k> {
    /// The first entry.
    First,
    /// The last entry.
    Last,
    /// The first entry at or above the key.
    AtLeast(&'k [u8]),
    /// The first entry above the key.
    Above(&'k [u8]),
    /// The last entry at or below the key.
    AtMost(&'k [u8]),
    /// The last entry below the key.
    Below(&'k [u8]),
}

/// Entries of the first batch after a seek; each further batch takes four times as many. Two, because a look-up by a
/// unique key needs one and often asks for the next one, and a copied entry costs a tenth of a descent.
const FIRST_BATCH: usize = 2;
/// Entries of the largest batch that is read as a look-up: the second one.
const SHORT_RANGE: usize = 4 * FIRST_BATCH;
/// A batch ends after this many bytes: keys with a long common prefix take much more memory than their leaf does.
const BATCH_BYTES: usize = 256 << 10;

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The range of the key in `bytes`.
    key: (u32, u32),
    /// The range of the value in `bytes` or, if the page was copied, in `page`.
    value: (u32, u32),
    header: EntryHeader,
}

/// Entries copied from a leaf, in key order, and the key range that they cover.
#[derive(Debug, Default)]
struct Batch {
    bytes: Vec<u8>,
    /// The bytes of the page; it keeps its length for the next copy.
    page: Vec<u8>,
    /// Whether the page was copied for this batch.
    has_page: bool,
    entries: Vec<Entry>,
    low: Vec<u8>,
    high: Vec<u8>,
    /// Whether the range ends at `high`, and not above every key.
    is_bounded: bool,
}

/// A position in a tree. Between calls it consists only of copied keys and entries. After an error it must be sought
/// again. `T` is a reference to the tree, borrowed or counted.
#[derive(Debug)]
pub struct Cursor<T> {
    tree: T,
    limits: Limits,
    batch: Batch,
    /// Index of the current entry in the batch, plus one; 0 is before the first, `entries.len() + 1` after the last.
    at: usize,
    limit: usize,
    sought: bool,
    /// Whether the cursor is at the key `batch.low`, whose entry was discarded. Otherwise an empty batch is a range
    /// without entries.
    is_at_low: bool,
}

/// The buffers of a cursor that was dropped, for another one, of any tree.
#[derive(Debug, Default)]
pub struct CursorMemory {
    limits: Limits,
    batch: Batch,
}

impl Batch {
    fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }

    /// Returns the key at which the range ends; `None` is above every key.
    fn high(&self) -> Option<&[u8]> {
        self.is_bounded.then_some(&self.high[..])
    }

    /// Makes it an empty batch that ends where it begins.
    fn end_at_low(&mut self) {
        self.clear();
        self.high.clone_from(&self.low);
        self.is_bounded = true;
    }

    /// Makes it an empty batch that begins where it ends, if it is bounded.
    fn begin_at_high(&mut self) {
        self.clear();
        self.low.clone_from(&self.high);
    }

    /// Prepares the copy of at most this many of a leaf's entries.
    fn begin_copy(&mut self, node: Node<'_>, entries: usize) {
        self.clear();
        self.has_page = entries > 0 && 2 * entries >= node.count();
        if self.has_page {
            self.page.resize(node.page().len(), 0);
            node.page().read(0, &mut self.page);
        } else if let Some(each) = node.live_bytes().checked_div(node.count()) {
            // Once, and not with each entry. In a new cursor nothing is reserved yet.
            let bytes = entries * (node.prefix_len() + each);
            self.bytes.reserve(bytes.min(BATCH_BYTES));
            self.entries.reserve(entries);
        }
    }

    #[inline]
    fn copy(&mut self, node: Node<'_>, slot: usize) {
        let start = self.bytes.len() as u32;
        if self.has_page {
            let place = node.place_of(slot);
            // The ranges of a torn or damaged page may lie outside of it.
            let bytes = |at: usize, length: usize| self.page.get(at..at + length).unwrap_or(&[]);
            self.bytes.extend_from_slice(bytes(NODE_HEADER, node.prefix_len()));
            self.bytes.extend_from_slice(bytes(place.suffix.0, place.suffix.1));
            let end = (place.value.0 + place.value.1).min(self.page.len());
            let value = (place.value.0.min(end) as u32, end as u32);
            self.entries.push(Entry { key: (start, self.bytes.len() as u32), value, header: place.header });
            return;
        }
        let (key, header) = node.entry_into(slot, &mut self.bytes);
        let (middle, end) = (start + key as u32, self.bytes.len() as u32);
        self.entries.push(Entry { key: (start, middle), value: (middle, end), header });
    }

    #[inline]
    fn key(&self, entry: &Entry) -> &[u8] {
        &self.bytes[entry.key.0 as usize..entry.key.1 as usize]
    }

    #[inline]
    fn value(&self, entry: &Entry) -> &[u8] {
        let bytes = if self.has_page { &self.page } else { &self.bytes };
        &bytes[entry.value.0 as usize..entry.value.1 as usize]
    }

    /// Copies the entries at or above `low` and below `until` from the leaf of `low`. Returns whether the copy is
    /// valid. `bounds` are those of a leaf with a cut fence.
    fn fill_up(
        &mut self,
        node: Node<'_>,
        bounds: Option<&Bounds>,
        until: Option<&[u8]>,
        limit: usize,
        is_valid: impl Fn() -> bool,
    ) -> bool {
        let (first, _) = node.find(&self.low);
        debug_assert!(until.is_none_or(|until| *until > self.low[..]), "a batch would end where it begins");
        // `until` is above `low`, and so not below the leaf.
        let until = until.filter(|until| match bounds {
            Some(Bounds { upper, .. }) => upper.as_deref().is_none_or(|upper| *until < upper),
            None => node.contains(until) == Some(true),
        });
        let stop = until.map_or(node.count(), |until| node.find(until).0);
        self.begin_copy(node, stop.saturating_sub(first).min(limit));
        let mut end = first;
        while end < stop && end - first < limit && self.bytes.len() < BATCH_BYTES {
            self.copy(node, end);
            end += 1;
        }
        self.high.clear();
        self.is_bounded = match until {
            _ if end < stop => {
                node.key_into(end, &mut self.high);
                true
            }
            Some(until) => {
                self.high.extend_from_slice(until);
                true
            }
            None => match bounds {
                Some(Bounds { upper, .. }) => {
                    self.high.extend_from_slice(upper.as_deref().unwrap_or(&[]));
                    upper.is_some()
                }
                None => node.upper_into(&mut self.high),
            },
        };
        is_valid()
    }

    /// Copies the entries below `high` and at or above `from` from the leaf below `high`. Returns whether the copy is
    /// valid. `bounds` are those of a leaf with a cut fence.
    fn fill_down(
        &mut self,
        node: Node<'_>,
        bounds: Option<&Bounds>,
        from: &[u8],
        limit: usize,
        is_valid: impl Fn() -> bool,
    ) -> bool {
        // `high` is at most the leaf's upper fence, which begins with the prefix like every key of the leaf.
        let end = self.high().map_or(node.count(), |high| node.find(high).0);
        debug_assert!(self.high().is_none_or(|high| from < high), "a batch would begin where it ends");
        // `from` is below `high`, and so not above the leaf.
        let from = Some(from).filter(|from| match bounds {
            Some(Bounds { lower, .. }) => *from >= lower.as_slice(),
            None => node.contains(from) == Some(true),
        });
        let stop = from.map_or(0, |from| node.find(from).0);
        self.begin_copy(node, end.saturating_sub(stop).min(limit));
        let mut first = end;
        while first > stop && end - first < limit && self.bytes.len() < BATCH_BYTES {
            first -= 1;
            self.copy(node, first);
        }
        self.entries.reverse();
        self.low.clear();
        match from {
            _ if first > stop => node.key_into(first, &mut self.low),
            Some(from) => self.low.extend_from_slice(from),
            None => match bounds {
                Some(Bounds { lower, .. }) => self.low.extend_from_slice(lower),
                None => node.lower_into(&mut self.low),
            },
        }
        is_valid()
    }
}

impl<S: PageStore> Tree<S> {
    /// Creates an unpositioned cursor: [`Cursor::next`] goes to the first entry, [`Cursor::prev`] to the last.
    pub fn cursor(&self) -> Cursor<&Self> {
        Cursor::new(self)
    }
}

impl<S: PageStore, T: Deref<Target = Tree<S>>> Cursor<T> {
    /// Creates an unpositioned cursor.
    pub fn new(tree: T) -> Self {
        let (limits, batch) = (Limits::default(), Batch::default());
        Self { tree, limits, batch, at: 0, limit: FIRST_BATCH, sought: false, is_at_low: false }
    }

    /// Drops the cursor, and returns its buffers.
    pub fn into_memory(self) -> CursorMemory {
        CursorMemory { limits: self.limits, batch: self.batch }
    }

    /// Makes the cursor use these buffers, and resets it. Its limits stay.
    pub fn use_memory(&mut self, CursorMemory { mut limits, batch }: CursorMemory) {
        let (lower, upper) = self.limits.bounds();
        limits.set(lower, upper);
        (self.limits, self.batch) = (limits, batch);
        self.reset();
    }

    /// Restricts the cursor to limits and resets it.
    pub fn set_limits(&mut self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) {
        self.limits.set(lower, upper);
        self.reset();
    }

    /// Returns the limits of the cursor.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Makes the cursor unpositioned, like a new one; the limits stay.
    pub fn reset(&mut self) {
        self.batch.clear();
        (self.at, self.limit, self.sought, self.is_at_low) = (0, FIRST_BATCH, false, false);
    }

    /// Returns whether the cursor is unpositioned.
    pub fn is_new(&self) -> bool {
        !self.sought
    }

    /// Moves to the target. Returns whether there is such an entry; if not, the cursor is beyond that end.
    ///
    /// # Errors
    /// The errors of [`PageStore::read`].
    pub fn seek(&mut self, to: Seek<'_>) -> Result<bool> {
        self.reset();
        self.sought = true;
        let Batch { low, high, is_bounded, .. } = &mut self.batch;
        let (bound, key) = match to {
            Seek::First => (&mut *low, &[][..]),
            Seek::AtLeast(key) | Seek::Above(key) => (&mut *low, key),
            Seek::AtMost(key) | Seek::Below(key) => (high, key),
            Seek::Last => {
                *is_bounded = false;
                return self.down();
            }
        };
        bound.clear();
        bound.extend_from_slice(key);
        if matches!(to, Seek::Above(_) | Seek::AtMost(_)) {
            // The least key above it.
            bound.push(0);
        }
        if matches!(to, Seek::AtMost(_) | Seek::Below(_)) {
            *is_bounded = true;
            return self.down();
        }
        if low[..] < *self.limits.from() {
            low.clear();
            low.extend_from_slice(self.limits.from());
        }
        // An empty batch, from which the cursor can move either way.
        self.batch.end_at_low();
        self.next()
    }

    /// Moves to the next entry. Returns whether there is one; if not, the cursor is after the last.
    ///
    /// # Errors
    /// The errors of [`PageStore::read`].
    #[expect(clippy::should_implement_trait, reason = "a cursor goes both ways and lends what it is at")]
    pub fn next(&mut self) -> Result<bool> {
        if !self.sought {
            return self.seek(Seek::First);
        }
        if self.at < self.batch.entries.len() {
            self.at += 1;
            return Ok(true);
        }
        loop {
            if !self.batch.is_bounded || self.limits.ends_at(&self.batch.high) {
                if self.batch.is_bounded && self.batch.entries.is_empty() {
                    self.batch.begin_at_high();
                }
                self.at = self.batch.entries.len() + 1;
                return Ok(false);
            }
            // The range after the last batch begins where that batch ended.
            self.batch.begin_at_high();
            if !self.fill(true)? {
                self.batch.clear();
                self.batch.is_bounded = false;
                self.at = 1;
                return Ok(false);
            }
            if !self.batch.entries.is_empty() {
                self.at = 1;
                return Ok(true);
            }
        }
    }

    /// Moves to the previous entry. Returns whether there is one; if not, the cursor is before the first.
    ///
    /// # Errors
    /// The errors of [`PageStore::read`].
    pub fn prev(&mut self) -> Result<bool> {
        if !self.sought {
            return self.seek(Seek::Last);
        }
        if self.at > 1 {
            self.at -= 1;
            return Ok(true);
        }
        self.at = 0;
        if self.limits.begins_at(Some(&self.batch.low)) {
            if self.batch.entries.is_empty() {
                self.batch.end_at_low();
            }
            return Ok(false);
        }
        self.batch.end_at_low();
        self.down()
    }

    /// Moves to the last entry below the upper bound of the batch.
    fn down(&mut self) -> Result<bool> {
        if let Some(to) = self.limits.to()
            && self.batch.high().is_none_or(|high| to < high)
        {
            self.batch.high.clear();
            self.batch.high.extend_from_slice(to);
            self.batch.is_bounded = true;
        }
        if self.limits.begins_at(self.batch.high()) {
            self.batch.low.clear();
            self.batch.low.extend_from_slice(self.limits.from());
            self.batch.end_at_low();
            return Ok(false);
        }
        loop {
            if !self.fill(false)? {
                self.batch.low.clear();
                self.batch.clear();
                self.at = 0;
                return Ok(false);
            }
            self.at = self.batch.entries.len();
            if self.at > 0 {
                return Ok(true);
            }
            if self.limits.begins_at(Some(&self.batch.low)) {
                return Ok(false);
            }
            self.batch.end_at_low();
        }
    }

    /// Fills the batch upwards from its lower bound or downwards from its upper bound. Returns `false` if the tree has
    /// no page.
    fn fill(&mut self, up: bool) -> Result<bool> {
        self.is_at_low = false;
        let access = if self.limit <= SHORT_RANGE { Access::Point } else { Access::Scan };
        // An invalid copy has overwritten only the other bound.
        loop {
            let batch = &mut self.batch;
            let target = if up { Target::Key(&batch.low) } else { Target::Below(batch.high()) };
            let Some((path, bounds)) = self.tree.reach_with_fences(target, 0, access)? else {
                return Ok(false);
            };
            let (node, bounds) = (Node::new(path.node.page()), bounds.as_ref());
            let is_valid = || path.node.is_valid();
            let (from, to) = (self.limits.from(), self.limits.to());
            let is_copy_valid = if up {
                batch.fill_up(node, bounds, to, self.limit, is_valid)
            } else {
                batch.fill_down(node, bounds, from, self.limit, is_valid)
            };
            if is_copy_valid {
                // The bounds of damaged nodes could make the cursor loop for ever.
                let advances = match batch.high() {
                    Some(high) => batch.low[..] < *high || !up && batch.low.is_empty(),
                    None => true,
                };
                if !advances {
                    let page = node.page().id().page;
                    return Err(self
                        .tree
                        .damaged(page, "it does not reach beyond the key that it was found by"));
                }
                debug_assert!(batch.entries.len() <= self.limit, "a batch has more entries than its limit");
                self.limit = self.limit.saturating_mul(4);
                return Ok(true);
            }
        }
    }

    /// Discards the copied entries: the next step reads the tree again, from the cursor's position. Until then there is
    /// no current entry: the batch is empty and its range contains only the current key. The next batch is smaller.
    ///
    /// # Errors
    /// The errors of [`PageStore::read`].
    pub fn discard_batch(&mut self) -> Result<()> {
        if !self.sought || self.is_at_low {
            return Ok(());
        }
        // It was maybe too large: one that is discarded at each step should have few entries.
        self.limit = (self.limit / 16).max(FIRST_BATCH);
        if self.at > self.batch.entries.len() {
            if self.batch.is_bounded {
                // After the last entry within the limits.
                self.batch.begin_at_high();
                self.at = 0;
                return Ok(());
            }
            // There is no key above all others to serve as a bound.
            self.down()?;
            self.at = self.batch.entries.len() + 1;
            return Ok(());
        }
        let Batch { bytes, low, entries, .. } = &mut self.batch;
        if let Some(entry) = self.at.checked_sub(1).and_then(|at| entries.get(at)) {
            low.clear();
            low.extend_from_slice(&bytes[entry.key.0 as usize..entry.key.1 as usize]);
            self.batch.end_at_low();
            // The least key above it.
            self.batch.high.push(0);
            self.is_at_low = true;
        } else {
            self.batch.end_at_low();
        }
        self.at = 0;
        Ok(())
    }

    /// Returns the header of the next entry in this direction if it was already copied: then the step reads nothing.
    pub fn ahead(&self, up: bool) -> Option<EntryHeader> {
        let at = if up { self.at } else { self.at.checked_sub(2)? };
        self.batch.entries.get(at).map(|entry| entry.header)
    }

    /// Returns the next entry in this direction if it was already copied: its header, its key and its value.
    #[inline]
    pub fn peek(&self, up: bool) -> Option<(EntryHeader, &[u8], &[u8])> {
        let at = if up { self.at } else { self.at.checked_sub(2)? };
        let entry = self.batch.entries.get(at)?;
        Some((entry.header, self.batch.key(entry), self.batch.value(entry)))
    }

    /// Moves to the entry that [`Cursor::peek`] returns.
    #[inline]
    pub fn go_to_peeked(&mut self, up: bool) {
        debug_assert!(self.ahead(up).is_some(), "a cursor moves to an entry that it has not copied");
        self.at = if up { self.at + 1 } else { self.at - 1 };
    }

    fn entry(&self) -> Option<&Entry> {
        self.batch.entries.get(self.at.wrapping_sub(1))
    }

    /// Returns the current entry's key; empty if there is no current entry.
    pub fn key(&self) -> &[u8] {
        self.entry().map_or(&[], |entry| self.batch.key(entry))
    }

    /// Returns the current entry's value; empty if there is no current entry.
    pub fn value(&self) -> &[u8] {
        self.entry().map_or(&[], |entry| self.batch.value(entry))
    }

    /// Returns the current entry's version header; `None` if there is no current entry. Delete-marked entries are
    /// returned like others.
    pub fn header(&self) -> Option<EntryHeader> {
        self.entry().map(|entry| entry.header)
    }
}
