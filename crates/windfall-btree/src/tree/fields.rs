//! Fields: values that are stored as several fields, the long ones in overflow chains of their own.
//!
//! **Purpose.** A change of one field need not write the others again if they are long: an entry with the flag
//! [`EntryHeader::FIELDS`] holds the short fields and, for each other one, the reference to its chain.
//!
//! **Invariants.** The parser accepts any bytes and never panics (test:
//! `no_input_that_is_known_and_no_mutant_of_one_breaks_a_target`), and what it accepts has one stored form (test:
//! `fields_have_one_stored_form`). A list of at most [`fields_limit`] fields fits into an entry, however long they are
//! (test: `a_list_of_the_most_fields_fits_an_entry`).
//!
//! # Layout, byte by byte
//!
//! | size | field |
//! | --- | --- |
//! | 1 | number of fields, 1 to 64 |
//! | 2 each | bits 0 to 14, length in the entry; bit 15, an overflow reference, whose length is 20 |
//! | | the fields, or the references to their chains |
//!
//! **Source.** `InnoDB` stores the longest columns of a row off-page until the row fits into its page (`btr0cur.cc`),
//! and an update keeps the references of those that it does not change.

use super::overflow::{OverflowRef, VALUE_BYTES_MAX};
use crate::page::EntryHeader;

/// The maximum number of fields that a value is stored as.
pub const FIELDS_MAX: usize = 64;

/// Bytes of the length of a field.
const LENGTH: usize = 2;
/// The field is in an overflow chain.
const IS_CHAIN: u16 = 1 << 15;

/// A field as its entry stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredField<'a> {
    /// In the entry.
    Inline(&'a [u8]),
    /// In a chain.
    Chain(OverflowRef),
}

impl StoredField<'_> {
    /// Returns the length of the field in bytes.
    pub fn length(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Chain(chain) => chain.length,
        }
    }

    /// Returns the bytes that the field takes in the entry, without its length.
    pub fn stored(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::Chain(_) => OverflowRef::SIZE,
        }
    }
}

/// The fields of an entry, in order.
#[derive(Clone, Debug)]
pub struct StoredFields<'a> {
    lengths: &'a [u8],
    contents: &'a [u8],
}

impl<'a> StoredFields<'a> {
    /// Parses the value of an entry with the flag [`EntryHeader::FIELDS`]; `None` if it is not a list of fields.
    pub fn parse(value: &'a [u8]) -> Option<Self> {
        let (count, rest) = value.split_first()?;
        let count = usize::from(*count);
        let (lengths, contents) = rest.split_at_checked(count * LENGTH)?;
        let mut bytes = 0;
        for length in lengths.as_chunks().0 {
            let length = u16::from_le_bytes(*length);
            if length & IS_CHAIN != 0 && length != IS_CHAIN | OverflowRef::SIZE as u16 {
                return None;
            }
            bytes += usize::from(length & !IS_CHAIN);
        }
        let fields = Self { lengths, contents };
        if !(1..=FIELDS_MAX).contains(&count) || bytes != contents.len() {
            return None;
        }
        let length = fields.clone().try_fold(0u64, |sum, field| sum.checked_add(field.length()))?;
        (length < VALUE_BYTES_MAX).then_some(fields)
    }
}

impl StoredFields<'_> {
    /// Returns the offset of the first field in a value that was parsed.
    pub fn contents_at(value: &[u8]) -> usize {
        1 + usize::from(value[0]) * LENGTH
    }
}

impl<'a> Iterator for StoredFields<'a> {
    type Item = StoredField<'a>;

    fn next(&mut self) -> Option<StoredField<'a>> {
        let (length, lengths) = self.lengths.split_first_chunk()?;
        let length = u16::from_le_bytes(*length);
        let (content, contents) = self.contents.split_at(usize::from(length & !IS_CHAIN));
        *self = Self { lengths, contents };
        Some(match OverflowRef::from_bytes(content) {
            Some(chain) if length & IS_CHAIN != 0 => StoredField::Chain(chain),
            _ => StoredField::Inline(content),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = self.lengths.len() / LENGTH;
        (count, Some(count))
    }
}

impl ExactSizeIterator for StoredFields<'_> {}

/// Encodes the value of an entry with the flag [`EntryHeader::FIELDS`].
pub fn encode_fields(fields: &[StoredField<'_>]) -> Vec<u8> {
    assert!((1..=FIELDS_MAX).contains(&fields.len()), "{} fields are not stored as a list", fields.len());
    let mut value = Vec::with_capacity(stored_bytes(fields.iter()));
    value.push(fields.len() as u8);
    for field in fields {
        let is_chain = matches!(field, StoredField::Chain(_));
        debug_assert!(field.stored() < usize::from(IS_CHAIN), "a field is too long for an entry");
        let length = field.stored() as u16 | if is_chain { IS_CHAIN } else { 0 };
        value.extend_from_slice(&length.to_le_bytes());
    }
    for field in fields {
        match field {
            StoredField::Inline(bytes) => value.extend_from_slice(bytes),
            StoredField::Chain(chain) => value.extend_from_slice(&chain.to_bytes()),
        }
    }
    debug_assert!(
        StoredFields::parse(&value).is_some_and(|stored| stored.eq(fields.iter().copied())),
        "fields would be read back as others"
    );
    value
}

/// Returns the bytes of the value of an entry with these fields.
fn stored_bytes<'f>(fields: impl Iterator<Item = &'f StoredField<'f>>) -> usize {
    1 + fields.map(|field| LENGTH + field.stored()).sum::<usize>()
}

/// Returns the maximum number of fields of a value in a tree in which an entry takes a value of at most this length.
pub fn fields_limit(inline_limit: usize) -> usize {
    FIELDS_MAX.min((inline_limit - 1) / (LENGTH + OverflowRef::SIZE))
}

/// Chooses the fields that get chains: the longest ones in the entry, until the rest fits. Returns their numbers.
pub fn fields_for_chains(fields: &[StoredField<'_>], inline_limit: usize) -> Vec<usize> {
    debug_assert!(fields.len() <= fields_limit(inline_limit), "there are more fields than an entry takes");
    let mut bytes = stored_bytes(fields.iter());
    let mut inline: Vec<(usize, usize)> = fields
        .iter()
        .enumerate()
        .filter(|(_, field)| matches!(field, StoredField::Inline(_)) && field.stored() > OverflowRef::SIZE)
        .map(|(n, field)| (field.stored(), n))
        .collect();
    inline.sort_unstable();
    let mut chosen = Vec::new();
    while bytes > inline_limit {
        let Some((stored, n)) = inline.pop() else { break };
        bytes -= stored - OverflowRef::SIZE;
        chosen.push(n);
    }
    debug_assert!(bytes <= inline_limit, "references to chains take more bytes than an entry has");
    chosen
}

/// The overflow chains to which an entry refers, in order.
#[derive(Clone, Debug)]
pub enum Chains<'a> {
    /// That of the whole value, or none.
    OfValue(Option<OverflowRef>),
    /// Those of fields.
    OfFields(StoredFields<'a>),
}

impl<'a> Chains<'a> {
    /// Returns the chains of an entry with this header and value; `None` if the value makes no sense.
    pub fn of(header: EntryHeader, value: &'a [u8]) -> Option<Self> {
        if header.has_fields() {
            StoredFields::parse(value).map(Self::OfFields)
        } else if header.is_overflow() {
            OverflowRef::from_bytes(value).map(|chain| Self::OfValue(Some(chain)))
        } else {
            Some(Self::OfValue(None))
        }
    }
}

impl Iterator for Chains<'_> {
    type Item = OverflowRef;

    fn next(&mut self) -> Option<OverflowRef> {
        match self {
            Self::OfValue(chain) => chain.take(),
            Self::OfFields(fields) => fields.find_map(|field| match field {
                StoredField::Chain(chain) => Some(chain),
                StoredField::Inline(_) => None,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{ids::PageNo, page::node::inline_limit};

    fn chain(n: u32) -> OverflowRef {
        OverflowRef { length: 5000, stamp: n.into(), first: PageNo(n) }
    }

    #[test]
    fn a_list_of_the_most_fields_fits_an_entry() {
        for page_size in [4096, 16384, 65536] {
            let limit = inline_limit(page_size);
            let long = vec![7; limit];
            let mut fields = vec![StoredField::Inline(&long); fields_limit(limit)];
            let chosen = fields_for_chains(&fields, limit);
            for n in chosen {
                fields[n] = StoredField::Chain(chain(n as u32));
            }
            assert!(encode_fields(&fields).len() <= limit);
        }
    }

    #[test]
    fn the_longest_fields_get_chains_and_no_more_than_needed() {
        let (short, middle, long) = (vec![1; 400], vec![2; 600], vec![3; 900]);
        let fields = [&short, &long, &middle].map(|bytes| StoredField::Inline(bytes));
        assert_eq!(fields_for_chains(&fields, 1024), [1, 2]);
        assert_eq!(fields_for_chains(&fields, 1100), [1]);
        assert_eq!(fields_for_chains(&fields, 4096), [0; 0]);
    }

    #[test]
    fn the_chains_of_an_entry_are_found_in_each_form() {
        let header = |flags| EntryHeader { flags, ..EntryHeader::default() };
        let of = |flags, value: &[u8]| Chains::of(header(flags), value).map(Iterator::collect::<Vec<_>>);
        assert_eq!(of(0, b"value"), Some(vec![]));
        assert_eq!(of(EntryHeader::OVERFLOW, &chain(4).to_bytes()), Some(vec![chain(4)]));
        assert_eq!(of(EntryHeader::OVERFLOW, b"value"), None);
        let fields = [StoredField::Chain(chain(1)), StoredField::Inline(b"x"), StoredField::Chain(chain(2))];
        assert_eq!(of(EntryHeader::FIELDS, &encode_fields(&fields)), Some(vec![chain(1), chain(2)]));
        assert_eq!(of(EntryHeader::FIELDS, b"\x05value"), None);
    }

    proptest! {
        #[test]
        fn fields_have_one_stored_form(value in prop::collection::vec(any::<u8>(), 0..40), count in 0..3u8) {
            let value = [&[count], &value[..]].concat();
            if let Some(fields) = StoredFields::parse(&value) {
                prop_assert_eq!(fields.len(), usize::from(count));
                prop_assert_eq!(encode_fields(&fields.collect::<Vec<_>>()), value);
            }
        }

        #[test]
        fn fields_come_back(fields in prop::collection::vec(prop::option::of(0..50usize), 1..20)) {
            let bytes = [9; 50];
            let field = |n: &Option<usize>| n.map_or(StoredField::Chain(chain(7)), |n| StoredField::Inline(&bytes[..n]));
            let fields: Vec<_> = fields.iter().map(field).collect();
            let value = encode_fields(&fields);
            prop_assert!(StoredFields::parse(&value).unwrap().eq(fields));
            prop_assert!(StoredFields::parse(&value[..value.len() - 1]).is_none());
            let with_more = [&value[..], b"more"].concat();
            prop_assert!(StoredFields::parse(&with_more).is_none());
        }
    }
}
