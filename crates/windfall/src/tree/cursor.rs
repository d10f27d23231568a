//! Cursors: entries in key order, both ways.
//!
//! **Purpose.** A cursor copies a batch of entries out of one leaf, validates the copy, and then gives them out one by
//! one without looking at a page. The first batch after a seek is small, since most seeks want few entries; each
//! further one is larger, up to a whole leaf.
//!
//! **Invariants.** A batch is what the tree held in a key range at one moment: all entries in `[low, high)`, the bounds
//! being the leaf's fences or the key at which the copy was cut short. The next batch begins exactly at a bound, so
//! whatever splits, merges and deletes happen between batches, a key that is present throughout is given exactly once,
//! in order, and no key is given twice. No latch is held between calls, and none within them. An entry may be older
//! than a change that was committed since its batch was copied.
//!
//! A cursor may be kept within limits; to it the tree has no other entries, and it copies no others.
//!
//! Leaves after the first are read as [`Access::Scan`]: a short range is a look-up, a long one passes by.
//!
//! **May touch.** What `tree` may touch.

use core::ops::Deref;

use super::{
    Tree,
    descent::Toward,
    store::{Access, PageStore, Reading},
};
use crate::{
    error::Result,
    keys::{KeyRange, successor},
    page::{EntryHeader, Node},
};

/// Where a cursor is to go.
#[derive(Clone, Copy, Debug)]
pub enum Seek<'k> {
    /// To the first entry.
    First,
    /// To the last entry.
    Last,
    /// To the first entry at or above the key.
    AtLeast(&'k [u8]),
    /// To the first entry above the key.
    Above(&'k [u8]),
    /// To the last entry at or below the key.
    AtMost(&'k [u8]),
    /// To the last entry below the key.
    Below(&'k [u8]),
}

/// Entries of the first batch after a seek; each further batch takes four times as many.
const FIRST_BATCH: usize = 8;
/// A batch ends when it has copied so many bytes: keys with a long common prefix are much longer than their leaf.
const BATCH_BYTES: usize = 256 << 10;

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: (u32, u32),
    value: (u32, u32),
    header: EntryHeader,
}

/// Entries copied from a leaf, in key order, and the range that they are all of.
#[derive(Debug, Default)]
struct Batch {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    low: Vec<u8>,
    /// `None` is above every key.
    high: Option<Vec<u8>>,
}

/// A position in a tree, between calls held by nothing but the keys it has seen. After an error it must be sought anew.
/// `T` is a reference to the tree, borrowed or counted.
#[derive(Debug)]
pub struct Cursor<T> {
    tree: T,
    limits: KeyRange,
    batch: Batch,
    /// The current entry of the batch, plus one; 0 is before the first, `entries.len() + 1` behind the last.
    at: usize,
    limit: usize,
    sought: bool,
}

impl Batch {
    fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }

    fn copy(&mut self, node: Node<'_>, slot: usize) {
        let start = self.bytes.len() as u32;
        let middle = start + node.entry_into(slot, &mut self.bytes) as u32;
        let end = self.bytes.len() as u32;
        self.entries.push(Entry { key: (start, middle), value: (middle, end), header: node.header(slot) });
    }

    fn bytes(&self, (start, end): (u32, u32)) -> &[u8] {
        &self.bytes[start as usize..end as usize]
    }

    /// Copies what lies at or above `low` from its leaf, and below `until`. Says whether the copy counts.
    fn fill_up(
        &mut self,
        node: Node<'_>,
        until: Option<&[u8]>,
        limit: usize,
        is_valid: impl Fn() -> bool,
    ) -> bool {
        self.clear();
        let (first, _) = node.find(&self.low);
        // It lies above `low`, and so not below the leaf.
        let until = until.filter(|until| node.contains(until));
        let stop = until.map_or(node.count(), |until| node.find(until).0);
        let mut end = first;
        while end < stop && end - first < limit && self.bytes.len() < BATCH_BYTES {
            self.copy(node, end);
            end += 1;
        }
        let mut high = self.high.take().unwrap_or_default();
        high.clear();
        let bounded = match until {
            _ if end < stop => {
                node.key_into(end, &mut high);
                true
            }
            Some(until) => {
                high.extend_from_slice(until);
                true
            }
            None => node.upper_into(&mut high),
        };
        self.high = bounded.then_some(high);
        is_valid()
    }

    /// Copies what lies below `high` from its leaf, and at or above `from`. Says whether the copy counts.
    fn fill_down(&mut self, node: Node<'_>, from: &[u8], limit: usize, is_valid: impl Fn() -> bool) -> bool {
        self.clear();
        // At most the leaf's upper fence, which begins with the prefix like every key of the leaf.
        let end = self.high.as_ref().map_or(node.count(), |high| node.find(high).0);
        // It lies below `high`, and so not above the leaf.
        let from = Some(from).filter(|from| node.contains(from));
        let stop = from.map_or(0, |from| node.find(from).0);
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
            None => node.lower_into(&mut self.low),
        }
        is_valid()
    }
}

impl<S: PageStore> Tree<S> {
    /// A cursor that is nowhere yet: [`Cursor::next`] goes to the first entry, [`Cursor::prev`] to the last.
    pub fn cursor(&self) -> Cursor<&Self> {
        Cursor::new(self)
    }
}

impl<S: PageStore, T: Deref<Target = Tree<S>>> Cursor<T> {
    /// A cursor that is nowhere yet.
    pub fn new(tree: T) -> Self {
        let (limits, batch) = (KeyRange::default(), Batch::default());
        Self { tree, limits, batch, at: 0, limit: FIRST_BATCH, sought: false }
    }

    /// Keeps it within limits; it is nowhere then.
    pub fn keep_within(&mut self, limits: KeyRange) {
        self.limits = limits;
        self.reset();
    }

    /// What it is kept within.
    pub fn limits(&self) -> &KeyRange {
        &self.limits
    }

    /// Takes it to nowhere, like a new one with its limits.
    pub fn reset(&mut self) {
        self.batch.clear();
        (self.at, self.limit, self.sought) = (0, FIRST_BATCH, false);
    }

    /// Whether it is nowhere yet.
    pub fn is_new(&self) -> bool {
        !self.sought
    }

    /// Goes there. Says whether there is such an entry; if not, the cursor is beyond that end.
    ///
    /// # Errors
    /// Those of [`PageStore::read`].
    pub fn seek(&mut self, to: Seek<'_>) -> Result<bool> {
        self.reset();
        self.sought = true;
        let low = match to {
            Seek::First => Vec::new(),
            Seek::AtLeast(key) => key.to_vec(),
            Seek::Above(key) => successor(key).into(),
            Seek::Last => return self.down(None),
            Seek::AtMost(key) => return self.down(Some(successor(key).into())),
            Seek::Below(key) => return self.down(Some(key.to_vec())),
        };
        let low = low.max(self.limits.from.to_vec());
        // A batch of nothing, from which it goes either way.
        self.batch.low.clone_from(&low);
        self.batch.high = Some(low);
        self.next()
    }

    /// Goes to the next entry. Says whether there is one; if not, the cursor is behind the last.
    ///
    /// # Errors
    /// Those of [`PageStore::read`].
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
            // The range behind the last batch begins where that one ended.
            let Some(high) = self.batch.high.take_if(|high| !self.limits.ends_at(high)) else {
                if let (Some(high), true) = (&self.batch.high, self.batch.entries.is_empty()) {
                    self.batch.low.clone_from(high);
                }
                self.at = self.batch.entries.len() + 1;
                return Ok(false);
            };
            self.batch.low = high;
            if !self.fill(true)? {
                self.batch.clear();
                self.at = 1;
                return Ok(false);
            }
            if !self.batch.entries.is_empty() {
                self.at = 1;
                return Ok(true);
            }
        }
    }

    /// Goes to the entry before. Says whether there is one; if not, the cursor is before the first.
    ///
    /// # Errors
    /// Those of [`PageStore::read`].
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
                self.batch.high = Some(self.batch.low.clone());
            }
            return Ok(false);
        }
        let high = core::mem::take(&mut self.batch.low);
        self.down(Some(high))
    }

    /// Goes to the last entry below a key.
    fn down(&mut self, mut high: Option<Vec<u8>>) -> Result<bool> {
        if let Some(to) = self.limits.to.as_deref()
            && high.as_ref().is_none_or(|high| to < &**high)
        {
            high = Some(to.to_vec());
        }
        if self.limits.begins_at(high.as_deref()) {
            self.batch.low = self.limits.from.to_vec();
            self.batch.high = Some(self.batch.low.clone());
            return Ok(false);
        }
        loop {
            self.batch.high = high;
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
            high = Some(core::mem::take(&mut self.batch.low));
        }
    }

    /// Fills the batch from its lower bound upwards or from its upper bound downwards. `false`: the tree has no page.
    fn fill(&mut self, up: bool) -> Result<bool> {
        let access = if self.limit == FIRST_BATCH { Access::Point } else { Access::Scan };
        // A copy that did not count has overwritten the other bound only.
        loop {
            let batch = &mut self.batch;
            let toward = if up { Toward::Key(&batch.low) } else { Toward::Below(batch.high.as_deref()) };
            let Some(path) = self.tree.reach(toward, 0, access)? else { return Ok(false) };
            let node = Node::new(path.node.page());
            let is_valid = || path.node.is_valid();
            let KeyRange { from, to } = &self.limits;
            let counts = if up {
                batch.fill_up(node, to.as_deref(), self.limit, is_valid)
            } else {
                batch.fill_down(node, from, self.limit, is_valid)
            };
            if counts {
                // Whoever follows the bounds of damaged nodes may go in circles.
                let gets_on = match &batch.high {
                    Some(high) => batch.low < *high || !up && batch.low.is_empty(),
                    None => true,
                };
                if !gets_on {
                    let page = node.page().id().page;
                    return Err(self
                        .tree
                        .damaged(page, "it does not reach beyond the key that it was found by"));
                }
                self.limit = self.limit.saturating_mul(4);
                return Ok(true);
            }
        }
    }

    /// Forgets what was read: the next step looks at the tree anew, from where the cursor is. Until then it is at no
    /// entry: its batch is an empty one that reaches from its key to behind it.
    ///
    /// # Errors
    /// Those of [`PageStore::read`].
    pub fn forget_ahead(&mut self) -> Result<()> {
        if !self.sought || self.at == 0 && self.batch.entries.is_empty() {
            return Ok(());
        }
        let Batch { bytes, low, high, entries } = &mut self.batch;
        if self.at > entries.len() {
            if let Some(high) = high {
                // Behind the last entry of its limits.
                low.clone_from(high);
                self.batch.clear();
                self.at = 0;
                return Ok(());
            }
            // No key is a bound behind all others.
            self.down(None)?;
            self.at = self.batch.entries.len() + 1;
            return Ok(());
        }
        if let Some(entry) = self.at.checked_sub(1).and_then(|at| entries.get(at)) {
            low.clear();
            low.extend_from_slice(&bytes[entry.key.0 as usize..entry.key.1 as usize]);
            *high = Some(successor(low).into());
        } else {
            *high = Some(low.clone());
        }
        self.batch.clear();
        self.at = 0;
        Ok(())
    }

    /// The header of the entry to which a step leads, if that entry was read already: then the step reads nothing.
    pub fn ahead(&self, up: bool) -> Option<EntryHeader> {
        let at = if up { self.at } else { self.at.checked_sub(2)? };
        self.batch.entries.get(at).map(|entry| entry.header)
    }

    fn entry(&self) -> Option<&Entry> {
        self.batch.entries.get(self.at.wrapping_sub(1))
    }

    /// The current entry's key; empty when the cursor is at none.
    pub fn key(&self) -> &[u8] {
        self.entry().map_or(&[], |entry| self.batch.bytes(entry.key))
    }

    /// The current entry's value; empty when the cursor is at none.
    pub fn value(&self) -> &[u8] {
        self.entry().map_or(&[], |entry| self.batch.bytes(entry.value))
    }

    /// The current entry's version header; `None` when the cursor is at none. Entries that are marked as deleted are
    /// given like others.
    pub fn header(&self) -> Option<EntryHeader> {
        self.entry().map(|entry| entry.header)
    }
}
