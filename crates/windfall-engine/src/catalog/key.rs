//! Index keys: how they are made from a row's value, and which definitions are accepted.
//!
//! **Purpose.** The key of a row in a secondary tree is the concatenation of parts, without separators. So two rows
//! with different parts could have one key: fields "a" and "bc", and "ab" and "c". A definition that allows this is
//! refused when the index is created ([`KeySpec::check`]).
//!
//! **Invariants.**
//! - A part is taken as far as the value contains it: bytes past the value's end are left out, and a missing field is
//!   empty (checked by `catalog/key.rs::parts_of`). A key is the concatenation of the parts of one value in order
//!   (test: `indexes_are_made_of_fields`).
//! - *The rule*: a part may precede another one only if it has its full length in every value in which the other one is
//!   not empty (test: `keys_are_equal_only_where_all_parts_are_and_have_their_order`). A range of bytes has its full
//!   length in values that reach to its end, and is not empty in those that reach beyond its first byte; a field never
//!   has a full length, and is not empty only in values with a header for it and a byte after the header (test:
//!   `every_refused_key_definition_is_ambiguous`).
//! - Keys are equal only where all parts are, and their order is that of the parts, one after the other (test:
//!   `keys_are_equal_only_where_all_parts_are_and_have_their_order`).
//! - An index from before this rule keeps working: its record is read, its rows can be changed, it can be truncated
//!   with its table and dropped, and only the creation of one is refused (test:
//!   `a_table_with_an_ambiguous_index_from_before_can_be_used`).
//!
//! **Reasons.** The rule is enough: take two rows and the first part in which they differ. All parts before it are
//! equal. If the two differ at some byte, so do the keys, at that byte. If not, one is a prefix of the other, and so is
//! shorter than its full length: everything that follows in that row is empty, and its key is a prefix of the other
//! one.

use core::fmt;

use crate::{
    error::{Owner, Result, SchemaError, UsageError},
    row,
    txn::{EntryForm, mvcc::value::INDEXED_BYTES},
};

/// The source of one part of a secondary key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyPart {
    /// Bytes of the row's value. Bytes past its end are left out.
    Value {
        /// The offset of the first byte.
        offset: u32,
        /// The number of bytes.
        length: u32,
    },
    /// A field of a value that was made by [`row::encode`]. A missing field is empty.
    Field {
        /// The number of the field, from zero.
        number: u32,
    },
}

/// The definition of the key of a secondary tree: a concatenation of parts of a row.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct KeySpec {
    /// The parts.
    pub parts: Vec<KeyPart>,
}

impl KeyPart {
    fn of<'v>(&self, value: &'v [u8]) -> &'v [u8] {
        match *self {
            Self::Value { offset, length } => {
                let start = (offset as usize).min(value.len());
                let end = start.saturating_add(length as usize).min(value.len());
                &value[start..end]
            }
            Self::Field { number } => row::field(value, number as usize).unwrap_or_default(),
        }
    }

    /// Returns the least length of a value that contains all of the part; `None` if that depends on more than the
    /// length.
    fn is_full_from(&self) -> Option<u64> {
        match *self {
            Self::Value { length: 0, .. } => Some(0),
            Self::Value { offset, length } => Some(u64::from(offset) + u64::from(length)),
            Self::Field { .. } => None,
        }
    }

    /// Returns the least length of a value in which the part can be non-empty; `None` if the part is always empty.
    fn is_empty_below(&self) -> Option<u64> {
        match *self {
            Self::Value { length: 0, .. } => None,
            Self::Value { offset, .. } => Some(u64::from(offset) + 1),
            Self::Field { number } => Some(row::least_with_field(u64::from(number))),
        }
    }

    /// Returns the full length of a range of bytes.
    fn full_length(&self) -> usize {
        match *self {
            Self::Value { length, .. } => length as usize,
            Self::Field { .. } => usize::MAX,
        }
    }

    /// Returns whether the part has its full length wherever `other` is not empty.
    fn may_precede(&self, other: &Self) -> bool {
        let Some(other) = other.is_empty_below() else { return true };
        self.is_full_from().is_some_and(|full| full <= other)
    }
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Value { offset, length } => {
                write!(f, "bytes {offset}..{} of the value", u64::from(offset) + u64::from(length))
            }
            Self::Field { number } => write!(f, "field {number}"),
        }
    }
}

impl KeySpec {
    /// As [`KeySpec::check`], and refuses parts of an index of which the entries are not made of them.
    ///
    /// # Errors
    /// [`SchemaError::AmbiguousKey`], [`UsageError::Option`].
    pub(super) fn check_for(&self, form: EntryForm, index: &str) -> Result<()> {
        if form != EntryForm::Terminated && !self.parts.is_empty() {
            let (name, maker) = match form {
                EntryForm::Composite => ("IndexOptions::extracted", "an extractor makes"),
                _ => ("IndexOptions::supplied", "the caller supplies"),
            };
            let what = format!("{maker} the entries of index {index}: leave out the parts of the value");
            return Err(UsageError::Option { name, what: what.into() }.into());
        }
        self.check(index)
    }

    /// Refuses a definition that could give different rows the same key, or keys a different order than their parts.
    ///
    /// # Errors
    /// [`SchemaError::AmbiguousKey`].
    pub fn check(&self, index: &str) -> Result<()> {
        for (n, part) in self.parts.iter().enumerate() {
            let follows = self.parts[n + 1..].iter().position(|other| !part.may_precede(other));
            if let Some(follows) = follows {
                let next = n + 1 + follows;
                return Err(SchemaError::AmbiguousKey {
                    index: index.into(),
                    part: n + 1,
                    what: part.to_string().into(),
                    next: next + 1,
                    next_what: self.parts[next].to_string().into(),
                }
                .into());
            }
        }
        Ok(())
    }

    /// Returns the key of a row with a value that begins with `start`, which has at most [`INDEXED_BYTES`] bytes.
    ///
    /// # Errors
    /// A part of the key lies after these bytes.
    pub fn whole_key_of(&self, start: &[u8]) -> Result<Vec<u8>> {
        self.parts_of_whole(start).map(joined)
    }

    /// Returns the parts of the key of a row with a value that begins with `start`, which has at most [`INDEXED_BYTES`]
    /// bytes.
    ///
    /// # Errors
    /// A part of the key lies after these bytes.
    pub(super) fn parts_of_whole<'v>(&self, start: &'v [u8]) -> Result<impl Iterator<Item = &'v [u8]>> {
        let is_behind = |part: &KeyPart| match *part {
            KeyPart::Value { offset, length } => offset as usize + length as usize > INDEXED_BYTES,
            KeyPart::Field { number } => {
                (number as usize) < row::count(start) && row::field(start, number as usize).is_none()
            }
        };
        if start.len() >= INDEXED_BYTES && self.parts.iter().any(is_behind) {
            return Err(UsageError::IndexedPartTooFar { owner: Owner::Unknown, limit: INDEXED_BYTES }.into());
        }
        Ok(self.parts_of(start))
    }

    /// Returns the key of a row with this value. Bytes of a part after the end of `value` are left out.
    pub fn key_of(&self, value: &[u8]) -> Vec<u8> {
        joined(self.parts_of(value))
    }

    fn parts_of<'v>(&self, value: &'v [u8]) -> impl Iterator<Item = &'v [u8]> {
        debug_assert!(
            self.parts.iter().all(|part| {
                let length = value.len() as u64;
                let bytes = part.of(value).len();
                let is_full =
                    part.is_full_from().is_none_or(|full| length < full || bytes == part.full_length());
                is_full && (bytes == 0 || part.is_empty_below().is_some_and(|least| length >= least))
            }),
            "a part of a key is shorter or longer than the rule for definitions assumes"
        );
        self.parts.iter().map(|part| part.of(value))
    }
}

fn joined<'v>(parts: impl Iterator<Item = &'v [u8]>) -> Vec<u8> {
    let mut key = Vec::new();
    parts.for_each(|part| key.extend_from_slice(part));
    key
}

/// Refuses a statement on rows that exist without a function that makes the entries of an index, if the caller supplies
/// these, and with one for any other index.
///
/// # Errors
/// [`UsageError::EntriesUnknown`], [`UsageError::EntryNotSupplied`].
pub(super) fn check_makes_entries(
    table: &str,
    index: &str,
    form: EntryForm,
    has_function: bool,
) -> Result<()> {
    let owner = || Owner::Index { table: table.into(), index: index.into() };
    match (form, has_function) {
        (EntryForm::Terminated | EntryForm::Composite, false) | (EntryForm::Supplied { .. }, true) => Ok(()),
        (EntryForm::Terminated | EntryForm::Composite, true) => {
            Err(UsageError::EntryNotSupplied { owner: owner() }.into())
        }
        (EntryForm::Supplied { .. }, false) => Err(UsageError::EntriesUnknown { owner: owner() }.into()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(offset: u32, length: u32) -> KeyPart {
        KeyPart::Value { offset, length }
    }

    fn field(number: u32) -> KeyPart {
        KeyPart::Field { number }
    }

    fn spec(parts: &[KeyPart]) -> KeySpec {
        KeySpec { parts: parts.to_vec() }
    }

    /// Returns the parts of a row, computed in another way than by the key.
    fn parts_of(spec: &KeySpec, value: &[u8]) -> Vec<Vec<u8>> {
        let part = |part: &KeyPart| match *part {
            KeyPart::Value { offset, length } => {
                value.iter().skip(offset as usize).take(length as usize).copied().collect()
            }
            KeyPart::Field { number } => match row::field(value, number as usize) {
                Some(field) => field.to_vec(),
                None => Vec::new(),
            },
        };
        spec.parts.iter().map(part).collect()
    }

    fn part() -> impl Strategy<Value = KeyPart> {
        prop_oneof![
            3 => (0u32..14, 0u32..6).prop_map(|(offset, length)| bytes(offset, length)),
            1 => (0u32..3).prop_map(field),
        ]
    }

    /// Generates accepted definitions: parts that may not follow are left out.
    fn accepted() -> impl Strategy<Value = KeySpec> {
        (prop::collection::vec(part(), 0..8), any::<bool>()).prop_map(|(mut parts, sorts)| {
            if sorts {
                parts.sort_by_key(|part| part.is_full_from().unwrap_or(u64::MAX));
            }
            let mut spec = KeySpec::default();
            for part in parts {
                spec.parts.push(part);
                if spec.check("i").is_err() {
                    spec.parts.pop();
                }
            }
            spec
        })
    }

    fn small(length: usize) -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(0u8..3, 0..length)
    }

    /// Generates rows, and values that are no rows.
    fn value() -> impl Strategy<Value = Vec<u8>> {
        let row = prop::collection::vec(small(4), 0..4).prop_map(|fields| row::encode(&fields));
        let cut = (row, 0usize..24).prop_map(|(mut row, keep)| {
            row.truncate(keep);
            row
        });
        prop_oneof![
            small(24),
            cut.boxed(),
            prop::collection::vec(small(4), 0..4).prop_map(|f| row::encode(&f))
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn keys_are_equal_only_where_all_parts_are_and_have_their_order(
            spec in accepted(),
            values in prop::collection::vec(value(), 2..12),
        ) {
            for one in &values {
                for two in &values {
                    let keys = (spec.key_of(one), spec.key_of(two));
                    let parts = (parts_of(&spec, one), parts_of(&spec, two));
                    prop_assert_eq!(keys.0.cmp(&keys.1), parts.0.cmp(&parts.1), "{:?}: {:?}, {:?}", spec, one, two);
                }
            }
        }
    }

    /// Returns all values of up to six bytes of two kinds, and rows with fields that are prefixes of others, some with
    /// more bytes after them.
    fn all_values() -> Vec<Vec<u8>> {
        let fields: [&[u8]; 6] = [b"", b"a", b"b", b"ab", b"ba", b"aa"];
        let rows = fields.iter().flat_map(|one| {
            let two = fields.iter().map(move |two| row::encode(&[one, two]));
            let three =
                fields.iter().flat_map(move |two| fields.map(|three| row::encode(&[one, *two, three])));
            two.chain(three).chain([row::encode(&[one])])
        });
        let short = (0u32..7).flat_map(|length| {
            (0u32..1 << length).map(move |bits| (0..length).map(|n| b'a' + (bits >> n & 1) as u8).collect())
        });
        let rows: Vec<Vec<u8>> = rows.collect();
        let longer = rows.iter().map(|row| [row, &b"a"[..]].concat()).collect::<Vec<_>>();
        rows.into_iter().chain(longer).chain(short).collect()
    }

    /// For every definition of two parts that is refused, two rows prove that it is ambiguous.
    #[test]
    fn every_refused_key_definition_is_ambiguous() {
        let values = all_values();
        let ranges = (0..4).flat_map(|offset| (0..4).map(move |length| bytes(offset, length)));
        let parts: Vec<KeyPart> = ranges.chain((0..3).map(field)).chain([bytes(4, 8)]).collect();
        let (mut refused, mut accepted) = (0, 0);
        for one in &parts {
            for two in &parts {
                let spec = spec(&[*one, *two]);
                if spec.check("i").is_ok() {
                    accepted += 1;
                    continue;
                }
                refused += 1;
                let shown = values.iter().any(|one| {
                    values.iter().any(|two| {
                        let keys = spec.key_of(one).cmp(&spec.key_of(two));
                        keys != parts_of(&spec, one).cmp(&parts_of(&spec, two))
                    })
                });
                assert!(shown, "{spec:?} is refused, and orders all rows");
            }
        }
        assert!(refused > 100 && accepted > 100, "{refused} refused, {accepted} accepted");
    }

    #[test]
    fn the_error_names_index_and_parts_and_the_cure() {
        let refused = |parts: &[KeyPart]| spec(parts).check("by_name").unwrap_err().to_string();
        let two = refused(&[field(1), field(0)]);
        for said in ["index by_name", "part 1 (field 1)", "part 2 (field 0)", "put part 1 last"] {
            assert!(two.contains(said), "{two}");
        }
        let third = refused(&[bytes(0, 2), bytes(4, 0), bytes(6, 2), bytes(2, 2)]);
        assert!(third.contains("part 3 (bytes 6..8 of the value)") && third.contains("part 4"), "{third}");
        let far = refused(&[bytes(u32::MAX, u32::MAX), bytes(u32::MAX, 1)]);
        assert!(far.contains("bytes 4294967295..8589934590"), "{far}");
        // A value with a second field has a header of ten bytes and a byte after it.
        spec(&[bytes(0, 4), bytes(4, 7), field(1)]).check("i").unwrap();
        assert!(refused(&[bytes(0, 12), field(1)]).contains("part 2 (field 1)"));
    }
}
