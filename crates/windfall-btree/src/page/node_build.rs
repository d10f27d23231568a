//! A whole node as a list: the input of splits, merges and bulk loads, which build nodes from it.
//!
//! **Purpose.** [`NodeList`] collects records with their whole keys. Its *image* for a node is what the log has and the
//! node's heap becomes: the records in their stored form ([`record`](super::record)), one after the other in key order,
//! with nothing between them. [`NodeImage`] reads it.
//!
//! **Invariants.** Records are added in ascending order of their keys (checked by `page/node_build.rs::push`), all
//! within the fences with which the node is then built (test: `behaves_as_a_map_4k`). All are records of a leaf, or all
//! of an inner node (checked by `page/node_build.rs::close`).

use super::{
    node::{Node, SLOT},
    record::{EntryHeader, Record},
};
use crate::ids::PageNo;

/// The part of a record that is not bytes.
#[derive(Clone, Copy, Debug)]
enum Body {
    Leaf(EntryHeader),
    Inner(PageNo),
}

/// A record in a list.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Start of the key in the bytes of the list, its end, where the value begins, and the end of that.
    at: [u32; 3],
    body: Body,
}

/// Records in key order, with whole keys.
#[derive(Clone, Debug, Default)]
pub struct NodeList {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

impl NodeList {
    /// Appends a leaf's record.
    pub fn push_leaf(&mut self, key: &[u8], header: EntryHeader, value: &[u8]) {
        self.push(key, value, Body::Leaf(header));
    }

    /// Appends an inner node's record.
    pub(crate) fn push_inner(&mut self, key: &[u8], child: PageNo) {
        self.push(key, &[], Body::Inner(child));
    }

    fn push(&mut self, key: &[u8], value: &[u8], body: Body) {
        debug_assert!(
            self.entries.is_empty() || self.key(self.entries.len() - 1) < key,
            "records are not added in the order of their keys"
        );
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.close(start, start + key.len(), body);
    }

    /// Adds the record whose key and value were appended to the bytes.
    fn close(&mut self, start: usize, middle: usize, body: Body) {
        debug_assert!(
            self.entries.last().is_none_or(|last| {
                matches!((last.body, body), (Body::Leaf(_), Body::Leaf(_)) | (Body::Inner(_), Body::Inner(_)))
            }),
            "records of leaves and of inner nodes are in one list"
        );
        self.entries.push(Entry { at: [start as u32, middle as u32, self.bytes.len() as u32], body });
    }

    /// Appends the records of slots `from..to` of a node. The node must not change meanwhile. Of the key of an inner
    /// node's slot 0 only the stored part of the lower fence is known: enough for the first record of a list.
    pub(crate) fn push_node(&mut self, node: Node<'_>, from: usize, to: usize) {
        debug_assert!(from <= to && to <= node.count(), "slots {from} to {to} are not all in the node");
        for slot in from..to {
            let start = self.bytes.len();
            if node.is_leaf() {
                let (key, header) = node.entry_into(slot, &mut self.bytes);
                self.close(start, start + key, Body::Leaf(header));
            } else {
                node.key_into(slot, &mut self.bytes);
                self.close(start, self.bytes.len(), Body::Inner(node.child(slot)));
            }
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
        let [start, middle, _] = self.entries[n].at;
        &self.bytes[start as usize..middle as usize]
    }

    /// Returns a record, with a prefix of this length cut off its key. The first record of an inner node has no suffix.
    pub(crate) fn record(&self, n: usize, prefix: usize) -> Record<'_> {
        // During a bulk load the newest key may lack the present prefix; if it stays in the node, the prefix shrinks.
        let suffix = self.key(n).get(prefix..).unwrap_or(&[]);
        let Entry { at: [_, middle, end], body } = self.entries[n];
        match body {
            Body::Leaf(header) => {
                Record::Leaf { header, suffix, value: &self.bytes[middle as usize..end as usize] }
            }
            Body::Inner(child) => Record::Inner { child, suffix: if n == 0 { &[] } else { suffix } },
        }
    }

    /// Moves the last record to another list, which then contains only that record.
    pub(crate) fn move_last(&mut self, to: &mut Self) {
        to.clear();
        if let Some(Entry { at: [start, middle, end], body }) = self.entries.pop() {
            to.bytes.extend_from_slice(&self.bytes[start as usize..end as usize]);
            to.entries.push(Entry { at: [0, middle - start, end - start], body });
            self.bytes.truncate(start as usize);
        }
    }

    /// Returns the bytes of slots and records, with a prefix of this length cut off.
    pub(crate) fn bytes(&self, prefix: usize) -> usize {
        (0..self.len()).map(|n| self.bytes_of(n, prefix)).sum()
    }

    /// Returns the bytes of one record and its slot, with a prefix of this length cut off.
    pub(crate) fn bytes_of(&self, n: usize, prefix: usize) -> usize {
        SLOT + self.record(n, prefix).bytes()
    }

    /// Returns the image for a node whose fences have a common prefix of this length.
    pub fn image(&self, prefix: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.bytes.len() + self.entries.len() * 8);
        for n in 0..self.len() {
            debug_assert!(
                n == 0 && matches!(self.entries[0].body, Body::Inner(_))
                    || self.key(n).get(..prefix) == self.key(self.len() - 1).get(..prefix),
                "a prefix is cut off a key that does not begin with it"
            );
            self.record(n, prefix).encode(&mut out);
        }
        out
    }
}

/// An iterator over the records of an image: the offset of each, and the record.
#[derive(Clone, Debug)]
pub(crate) struct NodeImage<'a> {
    leaf: bool,
    rest: &'a [u8],
    at: usize,
}

impl<'a> NodeImage<'a> {
    /// Creates an iterator over the image of a leaf or an inner node.
    pub(super) fn new(leaf: bool, image: &'a [u8]) -> Self {
        Self { leaf, rest: image, at: 0 }
    }
}

impl<'a> Iterator for NodeImage<'a> {
    type Item = Result<(usize, Record<'a>), &'static str>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let found = Record::decode(self.leaf, self.rest).map(|(record, rest)| {
            let at = self.at;
            self.at += self.rest.len() - rest.len();
            self.rest = rest;
            (at, record)
        });
        if found.is_err() {
            self.rest = &[];
        }
        Some(found)
    }
}
