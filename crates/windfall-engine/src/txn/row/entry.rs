//! Entries of secondary indexes: their form, and those that a caller supplies.
//!
//! **Purpose.** The key of an entry is its *index part*, then the row's key. The index part of most indexes is made of
//! the row's value, and ends with a terminator ([`secondary`]). Of other indexes the caller supplies it with each
//! change of a row, as bytes that are stored as they are, with a payload that covering reads return. Of others an
//! extractor makes it ([`extract`](super::extract)): a composite key and its end, also with a payload.
//!
//! **Invariants.** An entry comes apart where it was put together (tests: `supplied_entries_come_apart_again`,
//! `entries_are_in_order_and_come_apart_again`, `extracted_entries_are_in_order_and_each_is_there_once`).
//!
//! **Reasons.** The index parts that a caller supplies must be self-delimiting: none is a proper prefix of another one.
//! Then entries are in the order of their index parts, and of their rows' keys where these are equal. The engine could
//! check it only against all other entries. It refuses an entry with the bytes of another row's, which would otherwise
//! be taken for it; apart from that, entries are then in the order of their bytes, and a unique index also refuses an
//! index part that begins another one.
//!
//! # The value of an entry
//!
//! In an index with terminators it is empty, and in one with extracted entries it is the payload. In an index with
//! supplied entries it is empty as well if the index part
//! has the *usual length* of the index and there is no payload (an index may be without payloads), and else:
//!
//! | size | field |
//! | --- | --- |
//! | 2 | length of the index part |
//! | | payload |

use super::secondary;
use crate::{
    composite,
    error::{Owner, Result, UsageError},
    ids::IndexNumber,
};

/// Bytes of the length in the value of a supplied entry.
const LENGTH_BYTES: usize = 2;

/// The greatest length of a payload in bytes, if pages have at least 8 KiB. In smaller pages a value, with the length
/// of the index part, has at most a quarter of the page.
pub const PAYLOAD_MAX: usize = 1024;
/// The greatest length of the value of an entry in bytes.
pub const ENTRY_VALUE_MAX: usize = LENGTH_BYTES + PAYLOAD_MAX;

/// Returns the greatest length of a payload in a tree in which a value has at most `inline_limit` bytes.
pub(super) fn payload_limit(inline_limit: usize) -> usize {
    PAYLOAD_MAX.min(inline_limit - LENGTH_BYTES)
}

/// How the entries of a secondary tree come apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EntryForm {
    /// The index part is made of the row's value, and ends with a terminator.
    #[default]
    Terminated,
    /// The caller supplies the index part. It usually has this length in bytes.
    Supplied {
        /// The usual length.
        usual: u16,
        /// Whether entries may have a payload.
        payloads: bool,
    },
    /// An extractor makes the index part, which is a composite key with its end.
    Composite,
}

/// The parts of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryParts<'e> {
    /// The index part, as it is stored.
    pub index: &'e [u8],
    /// The key of the row.
    pub row: &'e [u8],
    /// The payload.
    pub payload: &'e [u8],
}

impl EntryForm {
    /// Takes an entry apart, given its key and its value. Returns `None` for one that is not valid.
    pub fn split<'e>(self, key: &'e [u8], value: &'e [u8]) -> Option<EntryParts<'e>> {
        let (length, payload) = match self {
            Self::Terminated => {
                let index = secondary::index_part_of(key).filter(|_| value.is_empty())?;
                return Some(EntryParts { index, row: &key[index.len()..], payload: &[] });
            }
            Self::Composite => {
                let (index, row) = composite::split_at_end(key)?;
                return Some(EntryParts { index, row, payload: value });
            }
            Self::Supplied { usual, .. } if value.is_empty() => (usual, &[][..]),
            Self::Supplied { usual, payloads } => {
                let (length, payload) = value.split_first_chunk::<LENGTH_BYTES>()?;
                let length = u16::from_le_bytes(*length);
                if length == usual && payload.is_empty() || !payloads && !payload.is_empty() {
                    return None;
                }
                (length, payload)
            }
        };
        let (index, row) = key.split_at_checked(length.into())?;
        Some(EntryParts { index, row, payload })
    }

    /// Returns the index key of an index part: the bytes from which that was made, or that the caller has supplied. It
    /// is the beginning of the index part, and `buffer` is empty afterwards, unless it had to be copied there.
    pub fn index_key<'e>(self, index: &'e [u8], buffer: &'e mut Vec<u8>) -> &'e [u8] {
        match self {
            Self::Terminated => secondary::unescape(index, buffer),
            Self::Supplied { .. } => {
                buffer.clear();
                index
            }
            Self::Composite => {
                buffer.clear();
                index.strip_suffix(&[composite::END]).unwrap_or(index)
            }
        }
    }

    /// Returns whether entries may have a payload.
    pub fn has_payloads(self) -> bool {
        match self {
            Self::Terminated => false,
            Self::Supplied { payloads, .. } => payloads,
            Self::Composite => true,
        }
    }

    /// Returns the length of the stored index key in an index part of this length: all of it but a terminator.
    pub fn key_bytes(self, index_bytes: usize) -> usize {
        match self {
            Self::Terminated => index_bytes.saturating_sub(secondary::END.len()),
            Self::Supplied { .. } => index_bytes,
            Self::Composite => index_bytes.saturating_sub(1),
        }
    }

    /// Returns the lower bound of the entries with this index key and greater ones. For supplied and extracted entries
    /// it may be any first bytes of them.
    pub fn start_of(self, index_key: &[u8]) -> Vec<u8> {
        match self {
            Self::Terminated => secondary::prefix_of(index_key),
            Self::Supplied { .. } | Self::Composite => index_key.to_vec(),
        }
    }

    /// As [`EntryForm::start_of`], into `out`, which it replaces.
    pub fn start_into(self, index_key: &[u8], out: &mut Vec<u8>) {
        out.clear();
        match self {
            Self::Terminated => secondary::prefix_into(index_key, out),
            Self::Supplied { .. } | Self::Composite => out.extend_from_slice(index_key),
        }
    }

    /// Returns the lower bound of the entries with greater index keys; `None` if there are no greater ones.
    pub fn end_of(self, index_key: &[u8]) -> Option<Vec<u8>> {
        end_of_prefix(self.start_of(index_key))
    }

    /// As [`EntryForm::end_of`], into `out`, which it replaces. Returns whether there are greater ones.
    pub fn end_into(self, index_key: &[u8], out: &mut Vec<u8>) -> bool {
        self.start_into(index_key, out);
        raise_prefix(out)
    }

    /// Returns the value of an entry.
    pub fn value_of(self, index: &[u8], payload: &[u8]) -> Vec<u8> {
        match self {
            Self::Terminated => Vec::new(),
            Self::Composite => payload.to_vec(),
            Self::Supplied { usual, .. } if index.len() == usize::from(usual) && payload.is_empty() => {
                Vec::new()
            }
            Self::Supplied { .. } => {
                let length = u16::try_from(index.len()).expect("the key limit is below 64 KiB");
                [&length.to_le_bytes(), payload].concat()
            }
        }
    }
}

/// Returns the lower bound of the keys above all that begin with these bytes; `None` if there are no greater ones.
pub fn end_of_prefix(mut prefix: Vec<u8>) -> Option<Vec<u8>> {
    raise_prefix(&mut prefix).then_some(prefix)
}

/// As [`end_of_prefix`], in place. Returns whether there are greater ones.
fn raise_prefix(prefix: &mut Vec<u8>) -> bool {
    let Some(last) = prefix.iter().rposition(|byte| *byte != 0xff) else { return false };
    prefix.truncate(last + 1);
    prefix[last] += 1;
    true
}

/// An entry of a row that the caller supplies, in an index that does not make its entries itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuppliedEntry<'a> {
    /// The key in the index: any bytes, in the order of `memcmp`. They must be self-delimiting: no key of the index is
    /// the beginning of another one. A fixed length does it, or a terminator that the rest does not contain. It may be
    /// as long as the key of a row: 3,072 bytes with pages of 16 KiB.
    pub key: &'a [u8],
    /// Bytes that are stored with it: at most 1,024, with pages of 4 KiB at most 1,022; none in an index without
    /// payloads ([`IndexOptions::without_payload`](../windfall/struct.IndexOptions.html#method.without_payload)).
    pub payload: &'a [u8],
    /// Whether a unique index accepts the entry whatever other rows have: for NULL. Other entries of the same key must
    /// say so, too.
    pub may_repeat: bool,
}

impl<'a> SuppliedEntry<'a> {
    /// Returns an entry with this key, without payload.
    pub fn new(key: &'a [u8]) -> Self {
        Self { key, payload: &[], may_repeat: false }
    }

    /// Gives it a payload.
    #[must_use]
    pub fn payload(self, payload: &'a [u8]) -> Self {
        Self { payload, ..self }
    }

    /// Allows other rows to have the same key in a unique index.
    #[must_use]
    pub fn may_repeat(self) -> Self {
        Self { may_repeat: true, ..self }
    }
}

/// An index of a table, by its name or by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexRef<'a> {
    /// The name that it has now.
    Name(&'a str),
    /// Its number ([`Table::index_number`](../windfall/struct.Table.html#method.index_number)).
    Number(IndexNumber),
}

impl<'a> From<&'a str> for IndexRef<'a> {
    fn from(name: &'a str) -> Self {
        Self::Name(name)
    }
}

impl From<IndexNumber> for IndexRef<'_> {
    fn from(number: IndexNumber) -> Self {
        Self::Number(number)
    }
}

/// The entry of a row in an index before and after a change. Several are given in any order; that of the indexes in the
/// definition of the table costs least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuppliedChange<'a> {
    /// The index.
    pub index: IndexRef<'a>,
    /// The entry before; `None` if the row is not in the index. That it is not is the caller's word: an entry that is
    /// left out here stays in the index, and leads to no row.
    pub old: Option<SuppliedEntry<'a>>,
    /// The entry after; `None` if the row is not in the index.
    pub new: Option<SuppliedEntry<'a>>,
}

impl<'a> SuppliedChange<'a> {
    /// Returns a change of the entry in this index.
    pub fn new(
        index: impl Into<IndexRef<'a>>,
        old: Option<SuppliedEntry<'a>>,
        new: Option<SuppliedEntry<'a>>,
    ) -> Self {
        Self { index: index.into(), old, new }
    }
}

/// An entry of a row as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key: the index part, then the row's key.
    pub key: Vec<u8>,
    /// The length of the index part.
    pub index_bytes: usize,
    /// The value.
    pub value: Vec<u8>,
    /// Whether no other row may have the same index part.
    pub is_unique: bool,
}

impl Entry {
    /// Returns an entry with this key and value; `None` if it is not valid.
    pub fn of_stored(form: EntryForm, key: Vec<u8>, value: Vec<u8>, is_unique: bool) -> Option<Self> {
        let index_bytes = form.split(&key, &value)?.index.len();
        Some(Self { key, index_bytes, value, is_unique })
    }

    /// Returns the entry of a row with this index key, which is made of its value.
    pub fn terminated(index_key: &[u8], row: &[u8], is_unique: bool) -> Self {
        let key = secondary::entry_key(index_key, row);
        Self { index_bytes: key.len() - row.len(), key, value: Vec::new(), is_unique }
    }

    /// Returns the entry of a row that the caller has supplied.
    ///
    /// # Errors
    /// [`UsageError::PayloadTooLong`], [`UsageError::PayloadNotStored`].
    pub fn supplied(
        supplied: &SuppliedEntry<'_>,
        row: &[u8],
        form: EntryForm,
        is_unique: bool,
        inline_limit: usize,
        owner: impl FnOnce() -> Owner,
    ) -> Result<Self> {
        let SuppliedEntry { key, payload, may_repeat } = *supplied;
        if !payload.is_empty() && !form.has_payloads() {
            return Err(UsageError::PayloadNotStored { owner: owner() }.into());
        }
        let limit = payload_limit(inline_limit);
        if payload.len() > limit {
            let length = payload.len();
            return Err(UsageError::PayloadTooLong { owner: owner(), length, limit }.into());
        }
        // A key that is too long is refused by its length with the row's key.
        let value = if key.len() > usize::from(u16::MAX) { Vec::new() } else { form.value_of(key, payload) };
        let entry = [key, row].concat();
        Ok(Self { key: entry, index_bytes: key.len(), value, is_unique: is_unique && !may_repeat })
    }

    /// Returns the index part.
    pub fn index_part(&self) -> &[u8] {
        &self.key[..self.index_bytes]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(length: usize) -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..length)
    }

    proptest! {
        #[test]
        fn supplied_entries_come_apart_again(index in bytes(8), row in bytes(8), payload in bytes(4), usual in 0..8u16) {
            let form = EntryForm::Supplied { usual, payloads: !payload.is_empty() };
            let supplied = SuppliedEntry { key: &index, payload: &payload, may_repeat: false };
            let entry = Entry::supplied(&supplied, &row, form, true, 1024, || Owner::Unknown).unwrap();
            prop_assert_eq!(entry.index_part(), &index[..]);
            let parts = EntryParts { index: &index, row: &row, payload: &payload };
            prop_assert_eq!(form.split(&entry.key, &entry.value), Some(parts));
            let is_usual = index.len() == usize::from(usual) && payload.is_empty();
            prop_assert_eq!(entry.value.is_empty(), is_usual);
        }

        #[test]
        fn the_entries_of_an_index_key_are_between_its_bounds(one in bytes(6), other in bytes(6), row in bytes(4)) {
            let supplied = EntryForm::Supplied { usual: 1, payloads: true };
            for form in [EntryForm::Terminated, supplied, EntryForm::Composite] {
                let entry = [form.start_of(&other), row.clone()].concat();
                let (start, end) = (form.start_of(&one), form.end_of(&one));
                let mut again = vec![7];
                form.start_into(&one, &mut again);
                prop_assert_eq!(&again, &start);
                prop_assert_eq!(form.end_into(&one, &mut again).then_some(again), end.clone());
                let is_between = start <= entry && end.as_ref().is_none_or(|end| entry < *end);
                prop_assert_eq!(is_between, entry.starts_with(&start), "{:?}: {:?} in {:?}", form, entry, (start, end));
            }
        }

        #[test]
        fn any_bytes_are_an_entry_or_none(key in bytes(8), value in bytes(4), usual in 0..8u16) {
            let supplied = [true, false].map(|payloads| EntryForm::Supplied { usual, payloads });
            for form in [EntryForm::Terminated, EntryForm::Composite].into_iter().chain(supplied) {
                let Some(EntryParts { index, row, payload }) = form.split(&key, &value) else { continue };
                prop_assert!(payload.is_empty() || form.has_payloads());
                prop_assert_eq!([index, row].concat(), &key[..]);
                prop_assert_eq!(form.value_of(index, payload), &value[..]);
            }
        }
    }

    #[test]
    fn a_payload_that_is_too_long_is_refused() {
        let form = EntryForm::Supplied { usual: 1, payloads: true };
        for (page, limit) in [(4096, 1022), (8192, 1024), (65_536, 1024)] {
            let made = |length| {
                let supplied = SuppliedEntry { key: b"k", payload: &vec![1; length], may_repeat: false };
                Entry::supplied(&supplied, b"r", form, false, page / 4, || Owner::Unknown)
            };
            assert_eq!(made(limit).unwrap().value.len(), limit + LENGTH_BYTES);
            let error = made(limit + 1).unwrap_err().to_string();
            assert!(error.contains(&limit.to_string()), "{error}");
        }
    }

    #[test]
    fn a_payload_in_an_index_without_is_refused_and_is_damage() {
        let form = EntryForm::Supplied { usual: 1, payloads: false };
        let of = |key, payload| {
            let supplied = SuppliedEntry { key, payload, may_repeat: false };
            Entry::supplied(&supplied, b"r", form, false, 1024, || Owner::Unknown)
        };
        assert!(of(b"k", b"").unwrap().value.is_empty());
        assert_eq!(of(b"key", b"").unwrap().value, [3, 0]);
        let error = of(b"k", b"p").unwrap_err().to_string();
        assert!(error.contains("without_payload"), "{error}");
        assert_eq!(form.split(b"kr", &[1, 0, b'p']), None);
    }
}
