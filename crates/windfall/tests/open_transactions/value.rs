//! Keys and values of the histories. Every value is written once, so a value that is read identifies its write.

use core::fmt;

use windfall::RowMode;

/// A row's key: one of [`KEYS`], one byte each.
pub(crate) type Key = u8;

/// Few keys, so that transactions conflict.
pub(crate) const KEYS: u8 = 9;
/// Index keys of the first index.
pub(crate) const FIRSTS: u8 = 3;
/// Index keys of the unique index.
pub(crate) const UNIQUES: u8 = 10;

/// Returns the bytes of a key.
pub(crate) fn key_bytes(key: Key) -> [u8; 1] {
    [b'a' + key]
}

/// Returns the key with these bytes.
pub(crate) fn key_of(bytes: &[u8]) -> Option<Key> {
    let [byte] = bytes else { return None };
    byte.checked_sub(b'a').filter(|key| *key < KEYS)
}

/// A value. Its first byte is the key of one index, the second that of the unique one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Value {
    pub first: u8,
    pub unique: u8,
    /// The number of its write.
    pub stamp: u32,
    /// In bytes. A value that is longer than a quarter of a page needs overflow pages.
    pub length: u32,
}

/// Returns the mode in which a write of this value locks the row that it conflicts with.
pub(crate) fn duplicate_lock(value: Value) -> RowMode {
    if value.stamp.is_multiple_of(3) { RowMode::Exclusive } else { RowMode::Shared }
}

/// Bytes of a value before its padding.
const HEAD: usize = 6;

impl Value {
    pub(crate) fn bytes(self) -> Vec<u8> {
        let mut bytes = vec![b'0' + self.first, b'A' + self.unique];
        bytes.extend(self.stamp.to_be_bytes());
        let padding = (0..(self.length as usize).saturating_sub(HEAD)).map(|n| self.pad(n));
        bytes.extend(padding);
        bytes
    }

    fn pad(self, at: usize) -> u8 {
        (self.stamp as usize * 31 + at / 7) as u8
    }

    /// Returns the value with these bytes, if all of them are as they were written.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        let (head, padding) = bytes.split_first_chunk::<HEAD>()?;
        let value = Self {
            first: head[0].checked_sub(b'0')?,
            unique: head[1].checked_sub(b'A')?,
            stamp: u32::from_be_bytes([head[2], head[3], head[4], head[5]]),
            length: bytes.len() as u32,
        };
        padding.iter().enumerate().all(|(n, byte)| *byte == value.pad(n)).then_some(value)
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, unique, stamp, length } = self;
        write!(f, "#{stamp}({first}{}, {length} bytes)", (b'A' + unique) as char)
    }
}
