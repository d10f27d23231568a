//! Rows of several fields in one value.
//!
//! **Purpose.** A value may be any bytes. A user that needs fields can encode them with this module, and a secondary
//! tree can then take its key from a field (`KeyPart::Field` of `windfall`).
//!
//! **Invariants.** Reading accepts any bytes and never panics (test:
//! `no_input_that_is_known_and_no_mutant_of_one_breaks_a_target`). The format is the number of fields (`u16`), the end
//! of each field counted from the first field's start (`u32` each), the fields; numbers are little-endian (test:
//! `a_row_is_its_number_of_fields_their_ends_and_the_fields`).

/// Encodes several fields as one value.
///
/// # Panics
/// With more than 65,535 fields, or more than 4 GiB in all.
pub fn encode<F: AsRef<[u8]>>(fields: &[F]) -> Vec<u8> {
    let mut value = Vec::new();
    encode_ends(fields.iter().map(|field| field.as_ref().len() as u64), &mut value);
    for field in fields {
        value.extend_from_slice(field.as_ref());
    }
    debug_assert!(
        fields.last().is_none_or(|last| field(&value, fields.len() - 1) == Some(last.as_ref())),
        "the last field would be read back as another one"
    );
    value
}

/// Returns the length of a value with fields of these lengths, in bytes.
#[doc(hidden)]
pub fn encoded_bytes(lengths: impl Iterator<Item = u64>) -> u64 {
    lengths.fold(2, |bytes, length| bytes.saturating_add(4).saturating_add(length))
}

/// Appends what precedes the fields of a value: their number, and the end of each.
///
/// # Panics
/// As [`encode`].
#[doc(hidden)]
pub fn encode_ends(lengths: impl ExactSizeIterator<Item = u64>, value: &mut Vec<u8>) {
    let count = u16::try_from(lengths.len()).expect("at most 65,535 fields");
    value.extend_from_slice(&count.to_le_bytes());
    let mut end = 0u32;
    for length in lengths {
        let length = u32::try_from(length).ok();
        end = length.and_then(|length| end.checked_add(length)).expect("at most 4 GiB");
        value.extend_from_slice(&end.to_le_bytes());
    }
}

fn end(value: &[u8], number: usize) -> Option<usize> {
    let at = 2 + number * 4;
    let bytes = value.get(at..at + 4)?;
    Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize)
}

/// Returns the number of fields according to the header.
pub fn count(value: &[u8]) -> usize {
    value.first_chunk().map_or(0, |count| usize::from(u16::from_le_bytes(*count)))
}

/// Returns a field of a value, by its number from zero; `None` if there is none. An index treats a missing field as
/// empty.
pub fn field(value: &[u8], number: usize) -> Option<&[u8]> {
    let count = count(value);
    if number >= count {
        return None;
    }
    let start = if number == 0 { 0 } else { end(value, number - 1)? };
    let fields = value.get(2 + count * 4..)?;
    fields.get(start..end(value, number)?)
}

/// A set of fields of a row, by their numbers from zero, and how much of the row is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FieldSet {
    fields: u64,
    /// The number of bytes that are read of a value with pages of its own; `u32::MAX` is all.
    most: u32,
}

impl FieldSet {
    /// No field.
    pub const NONE: Self = Self { fields: 0, most: u32::MAX };
    /// All fields.
    pub const ALL: Self = Self { fields: u64::MAX, most: u32::MAX };

    /// Returns the set of the first fields.
    pub const fn first(count: usize) -> Self {
        if count < 64 { Self { fields: (1 << count) - 1, ..Self::ALL } } else { Self::ALL }
    }

    /// Returns the set with a field more.
    ///
    /// # Panics
    /// If the number is not below 64.
    #[must_use]
    pub const fn with(self, number: usize) -> Self {
        assert!(number < 64, "a set of fields has no field of such a number");
        Self { fields: self.fields | 1 << number, ..self }
    }

    /// Returns the set with a field less.
    #[must_use]
    pub const fn without(self, number: usize) -> Self {
        if number < 64 { Self { fields: self.fields & !(1 << number), ..self } } else { self }
    }

    /// Returns whether the field is in the set.
    pub const fn contains(self, number: usize) -> bool {
        number < 64 && self.fields & 1 << number != 0
    }

    /// Returns the same set, of which only the first `bytes` bytes are needed: the value of a row that has pages of its
    /// own is read up to there, whether it was written field by field or not, and is cut off. A shorter one, and one
    /// that has no pages of its own, is read whole. A field that is cut off does not exist for [`field`].
    #[must_use]
    pub const fn cut_at(self, bytes: u32) -> Self {
        Self { most: bytes, ..self }
    }

    /// Returns the number of bytes that are needed, if not all of them are.
    #[doc(hidden)]
    pub const fn needed(self) -> Option<usize> {
        if self.most == u32::MAX { None } else { Some(self.most as usize) }
    }
}

/// Returns the least length of a value that has bytes in the field of this number: the header with the ends of this
/// field and of all before it, and one byte after the header.
#[doc(hidden)]
pub fn least_with_field(number: u64) -> u64 {
    2 + 4 * (number + 1) + 1
}

/// Fuzzing: any value as a row.
#[cfg(feature = "fuzz")]
pub mod fuzz {
    use super::{count, encode, field};

    /// Checks that a value with all its fields keeps them when it is encoded again.
    pub fn row(value: &[u8]) {
        let fields: Option<Vec<&[u8]>> = (0..count(value)).map(|n| field(value, n)).collect();
        assert_eq!(field(value, count(value)), None);
        let Some(fields) = fields else { return };
        let again = encode(&fields);
        assert!(again.len() <= value.len().max(2), "fields overlap");
        assert_eq!(count(&again), fields.len());
        for (n, expected) in fields.iter().enumerate() {
            assert_eq!(field(&again, n), Some(*expected));
        }
    }

    /// Returns rows to begin with.
    pub fn row_seeds() -> Vec<Vec<u8>> {
        let one = encode(&[b"one"]);
        vec![encode::<&[u8]>(&[]), encode(&[&b""[..], b"two", b"three"]), [&one[..], b"more"].concat(), one]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_set_has_the_fields_that_it_was_given() {
        let numbers = |set: FieldSet| (0..70).filter(|n| set.contains(*n)).collect::<Vec<_>>();
        assert_eq!(numbers(FieldSet::NONE), [0; 0]);
        assert_eq!(numbers(FieldSet::ALL), (0..64).collect::<Vec<_>>());
        assert_eq!(FieldSet::first(64), FieldSet::ALL);
        assert_eq!(numbers(FieldSet::first(3).without(1).without(63).without(64)), [0, 2]);
        assert_eq!(numbers(FieldSet::first(2).with(63).with(5)), [0, 1, 5, 63]);
    }

    #[test]
    fn a_row_is_its_number_of_fields_their_ends_and_the_fields() {
        assert_eq!(encode(&[&b"a"[..], b"", b"bcd"]), b"\x03\0\x01\0\0\0\x01\0\0\0\x04\0\0\0abcd");
        let long = [7; 0x0102];
        assert_eq!(encode(&[&long]), [&b"\x01\0\x02\x01\0\0"[..], &long].concat());
    }

    proptest! {
        #[test]
        fn fields_come_back(fields in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..10)) {
            let value = encode(&fields);
            prop_assert_eq!(count(&value), fields.len());
            for (n, expected) in fields.iter().enumerate() {
                prop_assert_eq!(field(&value, n), Some(&expected[..]));
            }
            prop_assert_eq!(field(&value, fields.len()), None);
        }
    }
}
