//! Changes of one page, as applied and as logged.
//!
//! **Purpose.** A change is a value: the running engine applies it to a page and logs it; recovery decodes it and
//! applies it by the same code. Redo is *physiological*: physical to a page, logical within it.
//!
//! **Invariants.** The result of applying depends only on the page's content and the operation (test:
//! `behaves_as_a_map_4k`). Applying an operation decoded from the log never panics: if it does not fit the page, that
//! is an error (test: `no_input_that_is_known_and_no_mutant_of_one_breaks_a_target`).
//!
//! # The logged form, byte by byte
//!
//! One byte for the kind, then the fields in this order. Numbers are little-endian. A *string* is 4 bytes length, then
//! that many bytes. A *fence* is 2 bytes length, then that many bytes; the length `0xffff` means that there is none. A
//! *record* is in its stored form (see [`record`](super::record)).
//!
//! | kind | operation | fields |
//! | --- | --- | --- |
//! | 1 | format | page type (1), level (1) |
//! | 2 | write | offset (4), string |
//! | 3 | leaf insert | slot (2), leaf's record |
//! | 4 | leaf replace | slot (2), leaf's record with an empty suffix |
//! | 5 | leaf header | slot (2), leaf's record with an empty suffix and no value |
//! | 6 | inner insert | slot (2), inner node's record |
//! | 7 | node remove | slot (2) |
//! | 8 | node keep | first slot kept (2), first slot after them (2), lower fence, upper fence |
//! | 9 | node build | level (1), lower fence, upper fence, image string (see [`node_build`](super::node_build)) |
//! | 10 | leaf freeze | transaction (6) |
//! | 11 | undo write | offset behind the header (2), whether a record begins there (1), string |

use super::{
    Page, PageType,
    fence::Fence,
    node_change,
    record::{EntryHeader, Record},
    undo,
};
use crate::ids::{PageId, PageNo, TrxId};

/// One change of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageOp<'a> {
    /// Clears the page and sets its type. The previous content of the page does not matter.
    Format {
        /// The new type of the page.
        kind: PageType,
        /// The level of the page in the tree.
        level: u8,
    },
    /// Overwrites bytes.
    Write {
        /// The first byte's offset in the page.
        at: u32,
        /// The new bytes.
        bytes: &'a [u8],
    },
    /// Appends bytes to an undo page.
    UndoWrite {
        /// The offset of the bytes among those of the page.
        at: u16,
        /// Whether a record begins with them.
        begins: bool,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Inserts a record into a leaf.
    LeafInsert {
        /// The slot of the record; the records from there on move up.
        slot: u16,
        /// The version header of the record.
        header: EntryHeader,
        /// The key after the node's common prefix.
        suffix: &'a [u8],
        /// The value.
        value: &'a [u8],
    },
    /// Replaces the version header and the value of a leaf's record, in place if the new record takes no more bytes.
    LeafReplace {
        /// The slot of the record.
        slot: u16,
        /// The new version header.
        header: EntryHeader,
        /// The new value.
        value: &'a [u8],
    },
    /// Replaces the version header of a leaf's record: delete mark, transaction, undo position. In place if the new
    /// record takes no more bytes.
    LeafHeader {
        /// The slot of the record.
        slot: u16,
        /// The new version header.
        header: EntryHeader,
    },
    /// Freezes the records of a leaf: those of versions of older transactions lose their header (see
    /// [`record`](super::record)). The slots stay.
    LeafFreeze {
        /// The versions of transactions below this one are frozen; at most [`TrxId::MAX`].
        below: TrxId,
    },
    /// Inserts a child into an inner node.
    InnerInsert {
        /// The slot of the child; the children from there on move up.
        slot: u16,
        /// The child.
        child: PageNo,
        /// The child's lower fence after the node's common prefix.
        suffix: &'a [u8],
    },
    /// Removes a slot of a node.
    NodeRemove {
        /// The slot; those after it move down.
        slot: u16,
    },
    /// Reduces a node to a range of its slots, with narrower fences.
    NodeKeep {
        /// The first slot that is kept, and the first after them that is removed.
        slots: [u16; 2],
        /// The new lower fence.
        lower: Fence<&'a [u8]>,
        /// The new upper fence.
        upper: Option<Fence<&'a [u8]>>,
    },
    /// Makes the page a node with these records. The previous content of the page does not matter.
    NodeBuild {
        /// The level of the node in the tree; 0 is a leaf.
        level: u8,
        /// The lower fence.
        lower: Fence<&'a [u8]>,
        /// The upper fence.
        upper: Option<Fence<&'a [u8]>>,
        /// The records, in the form of [`NodeImage`](super::node_build::NodeImage).
        image: &'a [u8],
    },
}

const FORMAT: u8 = 1;
const WRITE: u8 = 2;
const LEAF_INSERT: u8 = 3;
const LEAF_REPLACE: u8 = 4;
const LEAF_HEADER: u8 = 5;
const INNER_INSERT: u8 = 6;
const NODE_REMOVE: u8 = 7;
const NODE_KEEP: u8 = 8;
const NODE_BUILD: u8 = 9;
const LEAF_FREEZE: u8 = 10;
const UNDO_WRITE: u8 = 11;

const SHORT: &str = "a page operation is cut short";

/// The length of a fence that does not exist.
const NO_FENCE: u16 = u16::MAX;
/// A bit of the length of a fence: it is cut, and its checksum follows.
const CUT: u16 = 1 << 15;

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    debug_assert!(u32::try_from(bytes.len()).is_ok(), "a string is too long for its length field");
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn put_fence(out: &mut Vec<u8>, fence: Option<Fence<&[u8]>>) {
    let Some(Fence { bytes, checksum }) = fence else {
        out.extend_from_slice(&NO_FENCE.to_le_bytes());
        return;
    };
    let length = bytes.len() as u16 | checksum.map_or(0, |_| CUT);
    debug_assert!(bytes.len() < CUT.into() && length != NO_FENCE, "a fence is too long for its length field");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(bytes);
    if let Some(checksum) = checksum {
        out.extend_from_slice(&checksum.to_le_bytes());
    }
}

/// Appends a leaf's record.
fn put_record(out: &mut Vec<u8>, header: EntryHeader, suffix: &[u8], value: &[u8]) {
    Record::Leaf { header, suffix, value }.encode(out);
}

/// Reads logged fields one after the other.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn chunk<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let (chunk, rest) = self.0.split_first_chunk().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*chunk)
    }

    fn u16(&mut self) -> Result<u16, &'static str> {
        self.chunk().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, &'static str> {
        self.chunk().map(u32::from_le_bytes)
    }

    fn record(&mut self, leaf: bool) -> Result<Record<'a>, &'static str> {
        let (record, rest) = Record::decode(leaf, self.0)?;
        self.0 = rest;
        Ok(record)
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], &'static str> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(SHORT)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn bytes(&mut self) -> Result<&'a [u8], &'static str> {
        let len = self.u32()?;
        self.take(len as usize)
    }

    fn fence(&mut self) -> Result<Option<Fence<&'a [u8]>>, &'static str> {
        let length = self.u16()?;
        if length == NO_FENCE {
            return Ok(None);
        }
        let bytes = self.take((length & !CUT).into())?;
        let checksum = if length & CUT == 0 { None } else { Some(self.u32()?) };
        Ok(Some(Fence { bytes, checksum }))
    }
}

impl<'a> PageOp<'a> {
    /// Returns whether applying ignores the page's previous content, so that recovery need not read the page.
    pub fn overwrites_page(&self) -> bool {
        matches!(self, Self::Format { .. } | Self::NodeBuild { .. })
    }

    /// Appends the logged form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let from = out.len();
        match *self {
            Self::Format { kind, level } => out.extend_from_slice(&[FORMAT, kind as u8, level]),
            Self::Write { at, bytes } => {
                out.push(WRITE);
                out.extend_from_slice(&at.to_le_bytes());
                put_bytes(out, bytes);
            }
            Self::LeafInsert { slot, header, suffix, value } => {
                out.push(LEAF_INSERT);
                out.extend_from_slice(&slot.to_le_bytes());
                put_record(out, header, suffix, value);
            }
            Self::LeafReplace { slot, header, value } => {
                out.push(LEAF_REPLACE);
                out.extend_from_slice(&slot.to_le_bytes());
                put_record(out, header, &[], value);
            }
            Self::LeafHeader { slot, header } => {
                out.push(LEAF_HEADER);
                out.extend_from_slice(&slot.to_le_bytes());
                put_record(out, header, &[], &[]);
            }
            Self::UndoWrite { at, begins, bytes } => {
                out.push(UNDO_WRITE);
                out.extend_from_slice(&at.to_le_bytes());
                out.push(begins.into());
                put_bytes(out, bytes);
            }
            Self::LeafFreeze { below } => {
                out.push(LEAF_FREEZE);
                out.extend_from_slice(&below.0.to_le_bytes()[..6]);
            }
            Self::InnerInsert { slot, child, suffix } => {
                out.push(INNER_INSERT);
                out.extend_from_slice(&slot.to_le_bytes());
                Record::Inner { child, suffix }.encode(out);
            }
            Self::NodeRemove { slot } => {
                out.push(NODE_REMOVE);
                out.extend_from_slice(&slot.to_le_bytes());
            }
            Self::NodeKeep { slots, lower, upper } => {
                out.push(NODE_KEEP);
                for slot in slots {
                    out.extend_from_slice(&slot.to_le_bytes());
                }
                put_fence(out, Some(lower));
                put_fence(out, upper);
            }
            Self::NodeBuild { level, lower, upper, image } => {
                out.extend_from_slice(&[NODE_BUILD, level]);
                put_fence(out, Some(lower));
                put_fence(out, upper);
                put_bytes(out, image);
            }
        }
        debug_assert!(
            PageOp::decode(&out[from..]) == Ok((*self, &[])),
            "the operation would be read back as another one"
        );
    }

    /// Decodes a logged form. Returns the operation and the bytes that follow it.
    ///
    /// # Errors
    /// A description of the defect in the bytes.
    pub fn decode(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), &'static str> {
        let mut fields = Fields(bytes);
        let [tag] = fields.chunk()?;
        let op = match tag {
            FORMAT => {
                let [kind, level] = fields.chunk()?;
                Self::Format { kind: PageType::from_u8(kind).ok_or("an unknown page type")?, level }
            }
            WRITE => Self::Write { at: fields.u32()?, bytes: fields.bytes()? },
            LEAF_INSERT | LEAF_REPLACE | LEAF_HEADER | INNER_INSERT => {
                let slot = fields.u16()?;
                match (tag, fields.record(tag != INNER_INSERT)?) {
                    (LEAF_INSERT, Record::Leaf { header, suffix, value }) => {
                        Self::LeafInsert { slot, header, suffix, value }
                    }
                    (LEAF_REPLACE, Record::Leaf { header, suffix: [], value }) => {
                        Self::LeafReplace { slot, header, value }
                    }
                    (LEAF_HEADER, Record::Leaf { header, suffix: [], value: [] }) => {
                        Self::LeafHeader { slot, header }
                    }
                    (_, Record::Inner { child, suffix }) => Self::InnerInsert { slot, child, suffix },
                    _ => return Err("a page operation has a record that says too much"),
                }
            }
            NODE_REMOVE => Self::NodeRemove { slot: fields.u16()? },
            NODE_KEEP => Self::NodeKeep {
                slots: [fields.u16()?, fields.u16()?],
                lower: fields.fence()?.ok_or("a node without a lower fence")?,
                upper: fields.fence()?,
            },
            NODE_BUILD => {
                let [level] = fields.chunk()?;
                Self::NodeBuild {
                    level,
                    lower: fields.fence()?.ok_or("a node without a lower fence")?,
                    upper: fields.fence()?,
                    image: fields.bytes()?,
                }
            }
            LEAF_FREEZE => {
                let mut below = [0; 8];
                below[..6].copy_from_slice(&fields.chunk::<6>()?);
                Self::LeafFreeze { below: TrxId(u64::from_le_bytes(below)) }
            }
            UNDO_WRITE => Self::UndoWrite {
                at: fields.u16()?,
                begins: match fields.chunk()? {
                    [0] => false,
                    [1] => true,
                    _ => return Err("neither yes nor no"),
                },
                bytes: fields.bytes()?,
            },
            _ => return Err("an unknown page operation"),
        };
        Ok((op, fields.0))
    }

    /// Applies the operation to the page.
    ///
    /// # Errors
    /// A description of why the operation does not fit; the page is then unchanged.
    pub fn apply(&self, page: Page<'_>, id: PageId) -> Result<(), &'static str> {
        match *self {
            Self::Format { kind, level } => page.format(id, kind, level),
            Self::Write { at, bytes } => {
                if at as usize + bytes.len() > page.len() {
                    return Err("a write beyond the end of the page");
                }
                page.write(at as usize, bytes);
            }
            Self::LeafInsert { slot, header, suffix, value } => {
                return node_change::leaf_insert(page, slot, header, suffix, value);
            }
            Self::LeafReplace { slot, header, value } => {
                return node_change::leaf_replace(page, slot, header, value);
            }
            Self::LeafHeader { slot, header } => return node_change::leaf_header(page, slot, header),
            Self::LeafFreeze { below } => return node_change::leaf_freeze(page, below),
            Self::UndoWrite { at, begins, bytes } => return undo::write(page, at, begins, bytes),
            Self::InnerInsert { slot, child, suffix } => {
                return node_change::inner_insert(page, slot, child, suffix);
            }
            Self::NodeRemove { slot } => return node_change::remove(page, slot),
            Self::NodeKeep { slots, lower, upper } => {
                return node_change::keep(page, id, slots, (lower, upper));
            }
            Self::NodeBuild { level, lower, upper, image } => {
                return node_change::build(page, id, level, (lower, upper), image);
            }
        }
        Ok(())
    }
}
