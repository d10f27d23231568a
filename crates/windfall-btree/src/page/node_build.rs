//! A whole node as a list: the input of splits, merges and bulk loads, which build nodes from it.
//!
//! **Purpose.** [`NodeList`] collects records with their whole keys; [`NodeImage`] is the logged form, without the
//! common prefix of the fences.
//!
//! **Invariants.** Records are added in ascending order of their keys, all within the fences with which the image is
//! then made.
//!
//! # The logged form
//!
//! | size | field |
//! | --- | --- |
//! | 2 | length of the suffix |
//! | 2 | length of the body |
//! | | suffix |
//! | | body: of a leaf 16 bytes version header and the value, of an inner node 4 bytes page number |
//!
//! once per record, in key order.

use super::node::{EntryHeader, INNER_RECORD, LEAF_RECORD, Node, common_prefix, record_words};
use crate::ids::PageNo;

/// Records in key order, with whole keys.
#[derive(Clone, Debug, Default)]
pub struct NodeList {
    bytes: Vec<u8>,
    /// Start of each record's key, start of its body, and its end.
    entries: Vec<(u32, u32, u32)>,
}

impl NodeList {
    /// Appends a leaf's record.
    pub fn push_leaf(&mut self, key: &[u8], header: EntryHeader, value: &[u8]) {
        let [a, b] = header.words();
        self.push(key, |out| {
            out.extend_from_slice(&a.to_le_bytes());
            out.extend_from_slice(&b.to_le_bytes());
            out.extend_from_slice(value);
        });
    }

    /// Appends an inner node's record.
    pub(crate) fn push_inner(&mut self, key: &[u8], child: PageNo) {
        self.push(key, |out| out.extend_from_slice(&child.0.to_le_bytes()));
    }

    fn push(&mut self, key: &[u8], body: impl FnOnce(&mut Vec<u8>)) {
        debug_assert!(
            self.entries.is_empty() || self.key(self.entries.len() - 1) < key,
            "records are not added in the order of their keys"
        );
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(key);
        let middle = self.bytes.len() as u32;
        body(&mut self.bytes);
        self.entries.push((start, middle, self.bytes.len() as u32));
    }

    /// Appends the records of slots `from..to` of a node. The node must not change meanwhile.
    pub(crate) fn push_node(&mut self, node: Node<'_>, from: usize, to: usize) {
        debug_assert!(from <= to && to <= node.count(), "slots {from} to {to} are not all in the node");
        for slot in from..to {
            let start = self.bytes.len() as u32;
            node.key_into(slot, &mut self.bytes);
            let middle = self.bytes.len() as u32;
            if node.is_leaf() {
                let [a, b] = node.header(slot).words();
                self.bytes.extend_from_slice(&a.to_le_bytes());
                self.bytes.extend_from_slice(&b.to_le_bytes());
                node.value_into(slot, &mut self.bytes);
            } else {
                self.bytes.extend_from_slice(&node.child(slot).0.to_le_bytes());
            }
            self.entries.push((start, middle, self.bytes.len() as u32));
        }
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Removes all records.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }

    /// Returns the key of a record.
    pub fn key(&self, n: usize) -> &[u8] {
        let (start, middle, _) = self.entries[n];
        &self.bytes[start as usize..middle as usize]
    }

    /// Returns the body of a record, in the logged form.
    pub fn body(&self, n: usize) -> &[u8] {
        let (_, middle, end) = self.entries[n];
        &self.bytes[middle as usize..end as usize]
    }

    /// Moves the last record to another list, which then contains only that record.
    pub(crate) fn move_last(&mut self, to: &mut Self) {
        to.clear();
        if let Some((start, middle, end)) = self.entries.pop() {
            to.bytes.extend_from_slice(&self.bytes[start as usize..end as usize]);
            to.entries.push((0, middle - start, end - start));
            self.bytes.truncate(start as usize);
        }
    }

    /// Returns the words of slots and records, with a prefix of this length cut off.
    pub fn words(&self, leaf: bool, prefix: usize) -> usize {
        self.entries.iter().map(|(start, middle, end)| 1 + words(leaf, prefix, *start, *middle, *end)).sum()
    }

    /// Returns the words of one record and its slot, with a prefix of this length cut off.
    pub(crate) fn words_of(&self, leaf: bool, prefix: usize, n: usize) -> usize {
        let (start, middle, end) = self.entries[n];
        1 + words(leaf, prefix, start, middle, end)
    }

    /// Returns the logged form for a node with these fences.
    pub fn image(&self, lower: &[u8], upper: Option<&[u8]>) -> Vec<u8> {
        let prefix = prefix_of(lower, upper);
        let mut out = Vec::with_capacity(self.bytes.len() + self.entries.len() * 4);
        for &(start, middle, end) in &self.entries {
            debug_assert!(
                self.bytes[start as usize..middle as usize].starts_with(&lower[..prefix]),
                "a prefix is cut off a key that does not begin with it"
            );
            let suffix = &self.bytes[start as usize + prefix..middle as usize];
            out.extend_from_slice(&(suffix.len() as u16).to_le_bytes());
            out.extend_from_slice(&((end - middle) as u16).to_le_bytes());
            out.extend_from_slice(suffix);
            out.extend_from_slice(&self.bytes[middle as usize..end as usize]);
        }
        out
    }
}

fn words(leaf: bool, prefix: usize, start: u32, middle: u32, end: u32) -> usize {
    let fixed = if leaf { LEAF_RECORD } else { INNER_RECORD };
    let value = (end - middle) as usize - if leaf { 16 } else { INNER_RECORD };
    // During a bulk load the newest key may lack the present prefix; if it stays in the node, the prefix shrinks.
    record_words(fixed, ((middle - start) as usize).saturating_sub(prefix), value)
}

/// Returns the length of the prefix that a node with these fences cuts off its keys.
pub(crate) fn prefix_of(lower: &[u8], upper: Option<&[u8]>) -> usize {
    upper.map_or(0, |upper| common_prefix(lower, upper))
}

/// Returns the words that fences take.
pub(crate) fn fence_words(lower: &[u8], upper: Option<&[u8]>) -> usize {
    lower.len().div_ceil(8) + upper.map_or(0, |upper| upper.len().div_ceil(8))
}

/// A record in logged form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ImageRecord<'a> {
    /// The key after the prefix.
    pub suffix: &'a [u8],
    /// The rest of the record; see the table of the module.
    pub body: &'a [u8],
}

/// An iterator over a node's records in logged form.
#[derive(Clone, Debug)]
pub(crate) struct NodeImage<'a>(pub &'a [u8]);

impl<'a> Iterator for NodeImage<'a> {
    type Item = Result<ImageRecord<'a>, &'static str>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let read = || {
            let (suffix_len, rest) = self.0.split_first_chunk()?;
            let (body_len, rest) = rest.split_first_chunk()?;
            let (suffix, rest) = rest.split_at_checked(u16::from_le_bytes(*suffix_len).into())?;
            let (body, rest) = rest.split_at_checked(u16::from_le_bytes(*body_len).into())?;
            Some((ImageRecord { suffix, body }, rest))
        };
        if let Some((record, rest)) = read() {
            self.0 = rest;
            Some(Ok(record))
        } else {
            self.0 = &[];
            Some(Err("a node's image is cut short"))
        }
    }
}
