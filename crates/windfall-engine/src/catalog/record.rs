//! A table's record in the system tree.
//!
//! **Purpose.** One record names everything a table consists of: its trees, each a tablespace, and how their keys are
//! made. A statement that creates, changes or drops a table changes one record.
//!
//! **Invariants.** Decoding accepts any bytes and never panics; a record that it accepts has exactly one stored form,
//! and names each tree once; a record of a later format is refused, not interpreted (test:
//! `no_input_that_is_known_and_no_mutant_of_one_breaks_a_target`).
//!
//! # Format
//!
//! All numbers are little-endian; `bytes` and `text` are a `u32` length and the bytes.
//!
//! | field | type |
//! | --- | --- |
//! | record format, 2 | `u8` |
//! | table id: does not change when the table is truncated or renamed | `u64` |
//! | version: grows with every change of the definition | `u64` |
//! | clustered tree's tablespace | `u64` |
//! | metadata of the application | `bytes`; or the length `0xffff_ffff`, and the `u64` tablespace of a tree with it |
//! | number of secondary trees | `u16` |
//! | each: name `text`, tablespace `u64`, unique `u8`, form of its entries `u8` | |
//! | form 0: number of key parts `u16`, each: kind `u8`, two `u32` | |
//! | form 1, supplied entries: usual length of the index part `u16` | |
//! | form 2, extracted entries: name of the extractor `text` | |

use std::collections::BTreeSet;

use super::key::{KeyPart, KeySpec};
use crate::{ids::SpaceId, sync::Arc, txn::EntryForm};

const FORMAT: u8 = 2;

/// The length that stands for metadata in a tree of its own.
const LONG: u32 = u32::MAX;

/// Bytes that the application stores with a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Metadata {
    /// In the record.
    Inline(Vec<u8>),
    /// In a tree of its own.
    Long(SpaceId),
}

impl Default for Metadata {
    fn default() -> Self {
        Self::Inline(Vec::new())
    }
}

impl Metadata {
    /// Returns the tablespace of its tree.
    pub(super) fn space(&self) -> Option<SpaceId> {
        match self {
            Self::Inline(_) => None,
            Self::Long(space) => Some(*space),
        }
    }
}

/// A secondary tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexRecord {
    /// The name of the index, unique within the table.
    pub name: Arc<str>,
    /// The tablespace of the index.
    pub space: SpaceId,
    /// Whether no two rows may have the same key.
    pub unique: bool,
    /// How its entries come apart.
    pub form: EntryForm,
    /// The name of the extractor that makes the entries.
    pub extractor: Option<Arc<str>>,
    /// The parts of the index key; none if the entries are not made of them.
    pub key: KeySpec,
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableRecord {
    /// The table's id; it does not change when the table is truncated or renamed.
    pub id: u64,
    /// Grows with every change of the definition.
    pub version: u64,
    /// The clustered tree's tablespace.
    pub clustered: SpaceId,
    /// Bytes that the application stores with the table.
    pub metadata: Metadata,
    /// The secondary trees.
    pub indexes: Vec<IndexRecord>,
}

struct RecordReader<'a>(&'a [u8]);

impl<'a> RecordReader<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()? as usize;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

impl TableRecord {
    /// Returns every tablespace of the table, the clustered one first, that of the metadata last.
    pub fn spaces(&self) -> impl Iterator<Item = SpaceId> {
        let indexes = self.indexes.iter().map(|index| index.space);
        core::iter::once(self.clustered).chain(indexes).chain(self.metadata.space())
    }

    /// Returns whether it names this tablespace.
    pub(super) fn names(&self, space: SpaceId) -> bool {
        self.spaces().any(|named| named == space)
    }

    /// Returns the stored form.
    pub fn encode(&self) -> Vec<u8> {
        // The exact length: 64 bytes per index would be more than most need, and every change of a definition would pay
        // for it.
        let of_index = |index: &IndexRecord| {
            let of_extractor = index.extractor.as_ref().map_or(0, |extractor| 2 + extractor.len());
            16 + index.name.len() + of_extractor + 9 * index.key.parts.len()
        };
        let of_metadata = match &self.metadata {
            Metadata::Inline(bytes) => bytes.len(),
            Metadata::Long(_) => size_of::<u64>(),
        };
        let length = 31 + of_metadata + self.indexes.iter().map(of_index).sum::<usize>();
        let mut out = Vec::with_capacity(length);
        out.push(FORMAT);
        for word in [self.id, self.version, self.clustered.0] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        match &self.metadata {
            Metadata::Inline(bytes) => put_bytes(&mut out, bytes),
            Metadata::Long(space) => {
                out.extend_from_slice(&LONG.to_le_bytes());
                out.extend_from_slice(&space.0.to_le_bytes());
            }
        }
        out.extend_from_slice(&(self.indexes.len() as u16).to_le_bytes());
        for index in &self.indexes {
            put_bytes(&mut out, index.name.as_bytes());
            out.extend_from_slice(&index.space.0.to_le_bytes());
            out.push(u8::from(index.unique));
            debug_assert!(
                index.form == EntryForm::Terminated || index.key.parts.is_empty(),
                "the entries of an index are not made of the value, and made of it as well"
            );
            match index.form {
                EntryForm::Supplied { usual, payloads } => {
                    out.push(if payloads { 1 } else { 3 });
                    out.extend_from_slice(&usual.to_le_bytes());
                }
                EntryForm::Composite => {
                    out.push(2);
                    put_bytes(&mut out, index.extractor.as_deref().unwrap_or_default().as_bytes());
                }
                EntryForm::Terminated => {
                    out.push(0);
                    out.extend_from_slice(&(index.key.parts.len() as u16).to_le_bytes());
                }
            }
            for part in &index.key.parts {
                let (kind, a, b) = match *part {
                    KeyPart::Value { offset, length } => (0, offset, length),
                    KeyPart::Field { number } => (1, number, 0),
                };
                out.push(kind);
                out.extend_from_slice(&a.to_le_bytes());
                out.extend_from_slice(&b.to_le_bytes());
            }
        }
        debug_assert_eq!(out.len(), length, "the length of a record was computed wrong");
        // Without a request for memory: a truncation makes a bounded number of them.
        debug_assert!(
            self.indexes.iter().enumerate().all(|(n, index)| {
                let is_other = |other: &IndexRecord| other.space != index.space && other.name != index.name;
                index.space != self.clustered
                    && Some(index.space) != self.metadata.space()
                    && self.indexes[..n].iter().all(is_other)
            }) && self.metadata.space() != Some(self.clustered),
            "the record of table {} names a tree or an index twice, and would be refused as damaged",
            self.id
        );
        out
    }

    /// Decodes the stored form; returns `None` if it is damaged or of a later format.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = RecordReader(bytes);
        if from.u8()? != FORMAT {
            return None;
        }
        let (id, version, clustered) = (from.u64()?, from.u64()?, SpaceId(from.u64()?));
        let metadata = match from.0.first_chunk() {
            Some(length) if u32::from_le_bytes(*length) == LONG => {
                from.u32()?;
                Metadata::Long(SpaceId(from.u64()?))
            }
            _ => Metadata::Inline(from.bytes()?.to_vec()),
        };
        let mut indexes = Vec::new();
        for _ in 0..from.u16()? {
            let name = core::str::from_utf8(from.bytes()?).ok()?.into();
            let space = SpaceId(from.u64()?);
            let unique = match from.u8()? {
                0 => false,
                1 => true,
                _ => return None,
            };
            let mut parts = Vec::new();
            let mut extractor = None;
            let (form, count) = match from.u8()? {
                0 => (EntryForm::Terminated, from.u16()?),
                form @ (1 | 3) => (EntryForm::Supplied { usual: from.u16()?, payloads: form == 1 }, 0),
                2 => {
                    extractor = Some(core::str::from_utf8(from.bytes()?).ok()?.into());
                    (EntryForm::Composite, 0)
                }
                _ => return None,
            };
            for _ in 0..count {
                let (kind, a, b) = (from.u8()?, from.u32()?, from.u32()?);
                parts.push(match kind {
                    0 => KeyPart::Value { offset: a, length: b },
                    1 if b == 0 => KeyPart::Field { number: a },
                    _ => return None,
                });
            }
            indexes.push(IndexRecord { name, space, unique, form, extractor, key: KeySpec { parts } });
        }
        let record = Self { id, version, clustered, metadata, indexes };
        (from.0.is_empty() && record.names_each_tree_once()).then_some(record)
    }

    fn names_each_tree_once(&self) -> bool {
        if self.indexes.is_empty() {
            return self.metadata.space() != Some(self.clustered);
        }
        let spaces: BTreeSet<_> = self.spaces().collect();
        let names: BTreeSet<_> = self.indexes.iter().map(|index| &index.name).collect();
        spaces.len() == self.spaces().count() && names.len() == self.indexes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_and_a_cut_one_does_not() {
        let index = |n: u64, parts: Vec<KeyPart>| IndexRecord {
            name: format!("index {n}").into(),
            space: SpaceId(n),
            unique: n.is_multiple_of(2),
            form: match n {
                93 => EntryForm::Supplied { usual: 300, payloads: true },
                95 => EntryForm::Supplied { usual: 4, payloads: false },
                94 => EntryForm::Composite,
                _ => EntryForm::Terminated,
            },
            extractor: (n == 94).then(|| "tags".into()),
            key: KeySpec { parts },
        };
        let parts = vec![KeyPart::Value { offset: 3, length: 4 }, KeyPart::Field { number: 9 }];
        let record = TableRecord {
            id: 4,
            version: 7,
            clustered: SpaceId(90),
            metadata: Metadata::Inline(b"anything".to_vec()),
            indexes: vec![
                index(91, parts),
                index(92, vec![]),
                index(93, vec![]),
                index(94, vec![]),
                index(95, vec![]),
            ],
        };
        let long = TableRecord { metadata: Metadata::Long(SpaceId(96)), ..record.clone() };
        for record in [record, long] {
            comes_back(&record);
        }
    }

    fn comes_back(record: &TableRecord) {
        let bytes = record.encode();
        assert_eq!(TableRecord::decode(&bytes).as_ref(), Some(record));
        let spaces = record.spaces().map(|space| space.0).collect::<Vec<_>>();
        assert_eq!(spaces, (90..90 + spaces.len() as u64).collect::<Vec<_>>());
        for cut in 0..bytes.len() {
            assert_eq!(TableRecord::decode(&bytes[..cut]), None);
        }
    }
}
