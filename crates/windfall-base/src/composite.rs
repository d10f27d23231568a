//! Composite keys: several values in one key, which compares as they do ([`CompositeKey`]).
//!
//! **Purpose.** A key is bytes, and keys are in the order of `memcmp`. This module encodes NULL, booleans, integers,
//! texts and bytes so that this order is that of the values, part by part, each ascending or descending.
//!
//! **Invariants.**
//! - Keys compare as their parts do, one after the other (test: `keys_have_the_order_of_their_parts`).
//! - A part is not the beginning of another one (test: `no_part_is_the_beginning_of_another_one`). So no key is the
//!   beginning of another one with as many parts.
//! - Decoding accepts any bytes and never panics; parts that it accepts have one encoded form (test:
//!   `no_input_that_is_known_and_no_mutant_of_one_breaks_a_target`).
//! - The first byte of a part is neither `00` nor `ff` (test: `the_encoded_form_is_the_documented_one`). So `00` may
//!   end a key, and a key with `ff` appended is above all keys that begin with its parts.
//!
//! # Format
//!
//! | part | bytes |
//! | --- | --- |
//! | NULL | `10` |
//! | false, true | `18`, `19` |
//! | zero | `30` |
//! | a positive integer | `30` + n, then its n bytes, big-endian, the first of them not zero |
//! | a negative integer | `30` - n, then the n bytes of its absolute value, as above, inverted |
//! | text, bytes | `50`, `58`, then the bytes, where `00` becomes `00 ff`, then `00 00` |
//! | a descending part | all bytes of the part, inverted |

use core::{cmp::Ordering, fmt, ops::Deref};
use std::borrow::Cow;

use crate::{
    error::{Result, UsageError},
    keys::shown,
};

/// Ends a key where something follows it.
pub const END: u8 = 0;
const NULL: u8 = 0x10;
const FALSE: u8 = 0x18;
const TRUE: u8 = 0x19;
const ZERO: u8 = 0x30;
const TEXT: u8 = 0x50;
const BYTES: u8 = 0x58;

/// The most bytes of an integer.
const INTEGER_BYTES: usize = size_of::<i128>();
const LEAST: u8 = ZERO - INTEGER_BYTES as u8;
const GREATEST: u8 = ZERO + INTEGER_BYTES as u8;
/// From here on the first bytes are those of descending parts.
const FIRST_DESCENDING: u8 = 0x80;

/// The value of a part of a composite key. Values of different kinds are in the order of this list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CompositeValue<'a> {
    /// NULL: below all values.
    Null,
    /// `false` is below `true`.
    Bool(bool),
    /// An integer, whatever its type was.
    Integer(i128),
    /// A text, in the order of its UTF-8 bytes, which is that of its code points.
    Text(Cow<'a, str>),
    /// Bytes. Those of a collation order texts otherwise than by code points.
    Bytes(Cow<'a, [u8]>),
}

/// A part of a composite key. Where two keys have parts of both directions, the ascending one is below the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CompositePart<'a> {
    /// The value.
    pub value: CompositeValue<'a>,
    /// Whether keys are in descending order of this part: higher values come first, and NULL last.
    pub is_descending: bool,
}

impl CompositePart<'_> {
    /// NULL. It comes before all values, and after them in a descending part.
    pub const NULL: Self = Self { value: CompositeValue::Null, is_descending: false };

    /// Makes the part descending.
    #[must_use]
    pub fn descending(self) -> Self {
        Self { is_descending: true, ..self }
    }

    /// Returns whether it is NULL.
    pub fn is_null(&self) -> bool {
        self.value == CompositeValue::Null
    }

    /// Returns a descending part with this value.
    pub fn descending_of(value: impl Into<Self>) -> Self {
        value.into().descending()
    }
}

impl PartialOrd for CompositePart<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for CompositePart<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_value = self.value.cmp(&other.value);
        let in_direction = if self.is_descending { by_value.reverse() } else { by_value };
        self.is_descending.cmp(&other.is_descending).then(in_direction)
    }
}

impl fmt::Display for CompositePart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            CompositeValue::Null => f.write_str("NULL"),
            CompositeValue::Bool(value) => write!(f, "{value}"),
            CompositeValue::Integer(value) => write!(f, "{value}"),
            CompositeValue::Text(value) => write!(f, "{value:?}"),
            CompositeValue::Bytes(value) => write!(f, "b\"{}\"", value.escape_ascii()),
        }?;
        f.write_str(if self.is_descending { " descending" } else { "" })
    }
}

impl<'a> From<CompositeValue<'a>> for CompositePart<'a> {
    fn from(value: CompositeValue<'a>) -> Self {
        Self { value, is_descending: false }
    }
}

macro_rules! parts_of {
    ($($from:ty: $value:ident => $made:expr;)*) => {
        $(impl<'a> From<$from> for CompositePart<'a> {
            fn from($value: $from) -> Self {
                Self::from($made)
            }
        })*
    };
}

parts_of! {
    bool: value => CompositeValue::Bool(value);
    i8: value => CompositeValue::Integer(value.into());
    i16: value => CompositeValue::Integer(value.into());
    i32: value => CompositeValue::Integer(value.into());
    i64: value => CompositeValue::Integer(value.into());
    i128: value => CompositeValue::Integer(value);
    u8: value => CompositeValue::Integer(value.into());
    u16: value => CompositeValue::Integer(value.into());
    u32: value => CompositeValue::Integer(value.into());
    u64: value => CompositeValue::Integer(value.into());
    &'a str: value => CompositeValue::Text(Cow::Borrowed(value));
    &'a String: value => CompositeValue::Text(Cow::Borrowed(value));
    String: value => CompositeValue::Text(Cow::Owned(value));
    &'a [u8]: value => CompositeValue::Bytes(Cow::Borrowed(value));
    &'a Vec<u8>: value => CompositeValue::Bytes(Cow::Borrowed(value));
    Vec<u8>: value => CompositeValue::Bytes(Cow::Owned(value));
}

impl<'a, const N: usize> From<&'a [u8; N]> for CompositePart<'a> {
    fn from(value: &'a [u8; N]) -> Self {
        Self::from(CompositeValue::Bytes(Cow::Borrowed(value)))
    }
}

/// `None` is NULL.
impl<'a, T: Into<CompositePart<'a>>> From<Option<T>> for CompositePart<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::NULL, Into::into)
    }
}

/// Parts of a composite key: a tuple of up to eight values or parts, or a slice of parts.
pub trait CompositeParts {
    /// Appends them to a key.
    fn append_to(self, key: &mut CompositeKey);
}

impl CompositeParts for () {
    fn append_to(self, _: &mut CompositeKey) {}
}

impl CompositeParts for &[CompositePart<'_>] {
    fn append_to(self, key: &mut CompositeKey) {
        for part in self {
            append(part, true, &mut key.bytes);
        }
    }
}

macro_rules! tuples {
    ($($of:ident)+) => {
        impl<'a, $($of: Into<CompositePart<'a>>),+> CompositeParts for ($($of,)+) {
            #[expect(non_snake_case, reason = "a variable has the name of its type")]
            fn append_to(self, key: &mut CompositeKey) {
                let ($($of,)+) = self;
                $(key.push($of);)+
            }
        }
    };
}

tuples!(A);
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E);
tuples!(A B C D E F);
tuples!(A B C D E F G);
tuples!(A B C D E F G H);

/// A key of several parts, in the order of which keys are: by the first part, where that is equal by the second, and so
/// on. ("a", "bc") and ("ab", "c") are two keys.
///
/// It is for the keys of rows, for entries of an index that an extractor makes or the caller supplies, and for the
/// bounds of reads of both. All keys of one table or index should have parts of the same kinds and directions. In an
/// index of which the caller supplies the entries, they must have the same number of parts: they are self-delimiting
/// then.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CompositeKey {
    bytes: Vec<u8>,
}

impl CompositeKey {
    /// Returns a key without parts. As a bound it is below all keys.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a key of these parts.
    pub fn of(parts: impl CompositeParts) -> Self {
        let mut key = Self::new();
        parts.append_to(&mut key);
        key
    }

    /// Appends a part.
    #[must_use]
    pub fn and<'a>(mut self, part: impl Into<CompositePart<'a>>) -> Self {
        self.push(part);
        self
    }

    /// Appends a part.
    pub fn push<'a>(&mut self, part: impl Into<CompositePart<'a>>) {
        append(&part.into(), true, &mut self.bytes);
    }

    /// Removes all parts, and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Returns the bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Returns the first key above all keys that begin with these parts: a bound after them, or a lower bound that
    /// passes over them.
    pub fn above(&self) -> Vec<u8> {
        [&self.bytes[..], &[u8::MAX]].concat()
    }

    /// Returns the range of keys that begin with these parts, this key included.
    pub fn within(&self) -> core::ops::Range<Vec<u8>> {
        self.bytes.clone()..self.above()
    }

    /// Returns the range of keys that begin with these parts, and then have a part that begins with this text, or with
    /// these bytes. A value of another kind stands for itself.
    pub fn within_prefix<'a>(&self, start: impl Into<CompositePart<'a>>) -> core::ops::Range<Vec<u8>> {
        let mut from = self.bytes.clone();
        append(&start.into(), false, &mut from);
        // Only a descending zero ends with ff, of all that an unfinished part may end with, and parts begin lower.
        let mut to = from.clone();
        let last = to.iter().rposition(|byte| *byte != u8::MAX).expect("the first byte of a part is not ff");
        to.truncate(last + 1);
        to[last] += 1;
        from..to
    }

    /// Returns the parts of a key, one after the other. After an error there are none.
    ///
    /// # Errors
    /// [`UsageError::NoCompositeKey`]: the bytes are none that a composite key has.
    pub fn parts(key: &[u8]) -> impl Iterator<Item = Result<CompositePart<'_>>> {
        let mut left = key;
        core::iter::from_fn(move || {
            if left.is_empty() {
                return None;
            }
            let at = key.len() - left.len();
            let part = take_part(&mut left);
            if part.is_err() {
                left = &[];
            }
            let no_key = |what| UsageError::NoCompositeKey { key: shown(key).into(), at, what }.into();
            Some(part.map_err(no_key))
        })
    }
}

impl Deref for CompositeKey {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsRef<[u8]> for CompositeKey {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for CompositeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        for (n, part) in Self::parts(&self.bytes).flatten().enumerate() {
            write!(f, "{}{part}", if n == 0 { "" } else { ", " })?;
        }
        f.write_str(")")
    }
}

/// Appends a part; without `whole`, a text or bytes without their end.
fn append(part: &CompositePart<'_>, whole: bool, out: &mut Vec<u8>) {
    let start = out.len();
    match &part.value {
        CompositeValue::Null => out.push(NULL),
        CompositeValue::Bool(value) => out.push(if *value { TRUE } else { FALSE }),
        CompositeValue::Integer(value) => append_integer(*value, out),
        CompositeValue::Text(text) => append_bytes(TEXT, text.as_bytes(), whole, out),
        CompositeValue::Bytes(bytes) => append_bytes(BYTES, bytes, whole, out),
    }
    if part.is_descending {
        out[start..].iter_mut().for_each(|byte| *byte = !*byte);
    }
    debug_assert!(
        ![END, u8::MAX].contains(&out[start]) && (out[start] >= FIRST_DESCENDING) == part.is_descending,
        "the first byte of a part is of another one"
    );
}

fn append_integer(value: i128, out: &mut Vec<u8>) {
    let magnitude = value.unsigned_abs();
    let unused = magnitude.leading_zeros() as usize / 8;
    let length = (INTEGER_BYTES - unused) as u8;
    out.push(if value < 0 { ZERO - length } else { ZERO + length });
    let inverted = if value < 0 { !magnitude } else { magnitude };
    out.extend_from_slice(&inverted.to_be_bytes()[unused..]);
}

fn append_bytes(kind: u8, bytes: &[u8], whole: bool, out: &mut Vec<u8>) {
    out.push(kind);
    for byte in bytes {
        out.push(*byte);
        if *byte == 0 {
            out.push(u8::MAX);
        }
    }
    if whole {
        out.extend_from_slice(&[0, 0]);
    }
}

/// Takes the first part.
fn take_part<'a>(left: &mut &'a [u8]) -> Result<CompositePart<'a>, &'static str> {
    let (part, rest) = split_part(left).ok_or("a part is unknown, or has no end")?;
    *left = rest;
    let is_descending = part[0] >= FIRST_DESCENDING;
    let inverted = if is_descending { u8::MAX } else { 0 };
    let kind = part[0] ^ inverted;
    let value = match kind {
        NULL => CompositeValue::Null,
        FALSE | TRUE => CompositeValue::Bool(kind == TRUE),
        TEXT | BYTES => {
            let escaped = &part[1..part.len() - 2];
            let bytes = if is_descending || escaped.contains(&0) {
                Cow::Owned(unescape(escaped, inverted)?)
            } else {
                Cow::Borrowed(escaped)
            };
            match (kind, bytes) {
                (BYTES, bytes) => CompositeValue::Bytes(bytes),
                (_, Cow::Borrowed(bytes)) => {
                    CompositeValue::Text(Cow::Borrowed(str::from_utf8(bytes).map_err(|_| NOT_UTF8)?))
                }
                (_, Cow::Owned(bytes)) => {
                    CompositeValue::Text(Cow::Owned(String::from_utf8(bytes).map_err(|_| NOT_UTF8)?))
                }
            }
        }
        _ => CompositeValue::Integer(integer(&part[1..], kind < ZERO, inverted)?),
    };
    Ok(CompositePart { value, is_descending })
}

const NOT_UTF8: &str = "a text is not UTF-8";

fn unescape(escaped: &[u8], inverted: u8) -> Result<Vec<u8>, &'static str> {
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut from = escaped.iter().map(|byte| byte ^ inverted);
    while let Some(byte) = from.next() {
        bytes.push(byte);
        if byte == 0 && from.next() != Some(u8::MAX) {
            return Err("a zero byte of a text or of bytes is not marked as one");
        }
    }
    Ok(bytes)
}

/// Returns an integer with these bytes.
fn integer(bytes: &[u8], is_negative: bool, inverted: u8) -> Result<i128, &'static str> {
    let inverted = if is_negative { !inverted } else { inverted };
    let magnitude = bytes.iter().fold(0u128, |value, byte| value << 8 | u128::from(byte ^ inverted));
    if bytes.first().is_some_and(|byte| byte ^ inverted == 0) {
        return Err("an integer has more bytes than it needs");
    }
    let value = if is_negative { 0i128.checked_sub_unsigned(magnitude) } else { magnitude.try_into().ok() };
    value.ok_or("an integer is out of range")
}

/// Splits bytes after their first part, without a check of what the part contains; `None` if they begin with none. Such
/// a part has at least its first byte, and a text or bytes have their end as well.
fn split_part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let first = *bytes.first()?;
    let inverted = if first >= FIRST_DESCENDING { u8::MAX } else { 0 };
    let length = match first ^ inverted {
        NULL | FALSE | TRUE => 1,
        kind @ LEAST..=GREATEST => 1 + usize::from(kind.abs_diff(ZERO)),
        TEXT | BYTES => {
            let mut at = 1;
            loop {
                at += bytes[at..].iter().position(|byte| byte ^ inverted == 0)?;
                if bytes.get(at + 1)? ^ inverted == 0 {
                    break at + 2;
                }
                at += 2;
            }
        }
        _ => return None,
    };
    bytes.split_at_checked(length)
}

/// Splits bytes after the [`END`] of the key with which they begin; `None` if they begin with none. What the parts
/// contain is not checked.
pub fn split_at_end(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut left = bytes;
    while *left.first()? != END {
        left = split_part(left)?.1;
    }
    bytes.split_at_checked(bytes.len() - left.len() + 1)
}

/// Fuzzing: any bytes as a composite key.
#[cfg(feature = "fuzz")]
pub mod fuzz {
    use super::{CompositeKey, CompositePart, END, Result, split_at_end};

    /// Checks that parts that are accepted have these bytes alone.
    pub fn composite(data: &[u8]) {
        let parts: Result<Vec<CompositePart<'_>>> = CompositeKey::parts(data).collect();
        if let Ok(parts) = parts {
            let key = CompositeKey::of(&parts[..]);
            assert_eq!(key.as_ref(), data);
            let ended = [data, &[END], data].concat();
            assert_eq!(split_at_end(&ended), Some((&ended[..=data.len()], data)));
        }
        if let Some((key, rest)) = split_at_end(data) {
            assert_eq!([key, rest].concat(), data);
            assert_eq!(key.last(), Some(&END));
            assert_eq!(split_at_end(key), Some((key, &[][..])));
        }
    }

    /// Returns keys with parts of every kind.
    pub fn composite_seeds() -> Vec<Vec<u8>> {
        let parts: [CompositePart<'_>; 9] = [
            CompositePart::NULL,
            false.into(),
            true.into(),
            0.into(),
            1000.into(),
            (-70_000).into(),
            i128::MIN.into(),
            "text\0".into(),
            b"\0\xff".into(),
        ];
        let ended = [&CompositeKey::of(("a", 7))[..], &[END], b"row"].concat();
        let descending = parts.clone().map(CompositePart::descending);
        let one = parts.iter().chain(&descending).map(|part| CompositeKey::of((part.clone(),)).into_bytes());
        one.chain([&parts, &descending].map(|parts| CompositeKey::of(&parts[..]).into_bytes()))
            .chain([ended])
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value() -> impl Strategy<Value = CompositeValue<'static>> {
        let byte = || prop_oneof![Just(0u8), Just(1), Just(0x7f), Just(0xff), any::<u8>()];
        let edge = (0u32..128, -2i128..=2).prop_map(|(bit, near)| (1i128 << bit).wrapping_add(near));
        let integer =
            prop_oneof![any::<i128>(), edge.clone(), edge.prop_map(i128::wrapping_neg), -300i128..300];
        let text =
            prop::collection::vec(prop_oneof![Just('\0'), Just('a'), Just('\u{7f}'), any::<char>()], 0..4);
        prop_oneof![
            1 => Just(CompositeValue::Null),
            1 => any::<bool>().prop_map(CompositeValue::Bool),
            3 => integer.prop_map(CompositeValue::Integer),
            2 => text.prop_map(|text| CompositeValue::Text(text.into_iter().collect())),
            2 => prop::collection::vec(byte(), 0..4).prop_map(|bytes| CompositeValue::Bytes(bytes.into())),
        ]
    }

    /// Keys of one index: the same kinds need not be at one place, but the same directions.
    fn directions() -> impl Strategy<Value = Vec<bool>> {
        prop::collection::vec(any::<bool>(), 4)
    }

    fn key_of(
        values: &[CompositeValue<'static>],
        directions: &[bool],
    ) -> (Vec<CompositePart<'static>>, CompositeKey) {
        let part = |(value, is_descending): (&CompositeValue<'static>, &bool)| CompositePart {
            value: value.clone(),
            is_descending: *is_descending,
        };
        let parts: Vec<_> = values.iter().zip(directions).map(part).collect();
        let key = CompositeKey::of(&parts[..]);
        (parts, key)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn keys_have_the_order_of_their_parts(
            directions in directions(),
            one in prop::collection::vec(value(), 0..4),
            two in prop::collection::vec(value(), 0..4),
        ) {
            // Not by the order of parts: values compare as in a tuple, each in its direction.
            let by_values = one.iter().zip(&two).zip(&directions).map(|((one, two), is_descending)| {
                if *is_descending { two.cmp(one) } else { one.cmp(two) }
            });
            let expected = by_values.fold(Ordering::Equal, Ordering::then).then(one.len().cmp(&two.len()));
            let ((parts, one), (other_parts, two)) = (key_of(&one, &directions), key_of(&two, &directions));
            prop_assert_eq!(one.cmp(&two), expected, "{:?} {:?}", one, two);
            prop_assert_eq!(parts.cmp(&other_parts), expected);
        }

        #[test]
        fn parts_come_back(directions in directions(), values in prop::collection::vec(value(), 0..4)) {
            let (parts, key) = key_of(&values, &directions);
            let back: Vec<_> = CompositeKey::parts(&key).collect::<Result<_>>().unwrap();
            prop_assert_eq!(back, parts);
        }

        #[test]
        fn no_part_is_the_beginning_of_another_one(one in value(), two in value(), is_descending in any::<bool>()) {
            let (_, one_key) = key_of(core::slice::from_ref(&one), &[is_descending]);
            let (_, two_key) = key_of(core::slice::from_ref(&two), &[is_descending]);
            prop_assert_eq!(one_key.starts_with(&two_key), one == two);
        }

        #[test]
        fn a_range_has_the_keys_that_begin_with_its_parts(
            directions in directions(),
            start in prop::collection::vec(value(), 0..3),
            key in prop::collection::vec(value(), 0..4),
            prefix in value(),
        ) {
            let (start_parts, start) = key_of(&start, &directions);
            let (parts, key) = key_of(&key, &directions);
            prop_assert_eq!(start.within().contains(&key.to_vec()), parts.starts_with(&start_parts));
            let last = CompositePart { value: prefix, is_descending: directions[start_parts.len()] };
            let begins = |part: &CompositePart<'_>| match (&part.value, &last.value) {
                (CompositeValue::Text(text), CompositeValue::Text(start)) => text.starts_with(&**start),
                (CompositeValue::Bytes(bytes), CompositeValue::Bytes(start)) => bytes.starts_with(start),
                (value, start) => value == start,
            };
            let is_in = parts.starts_with(&start_parts) && parts.get(start_parts.len()).is_some_and(begins);
            prop_assert_eq!(start.within_prefix(last.clone()).contains(&key.to_vec()), is_in);
        }
    }

    #[test]
    fn the_encoded_form_is_the_documented_one() {
        let cases: [(CompositePart<'_>, &[u8]); 14] = [
            (CompositePart::NULL, b"\x10"),
            (false.into(), b"\x18"),
            (true.into(), b"\x19"),
            (0.into(), b"\x30"),
            (1.into(), b"\x31\x01"),
            (256u64.into(), b"\x32\x01\x00"),
            ((-1).into(), b"\x2f\xfe"),
            ((-256).into(), b"\x2e\xfe\xff"),
            (i128::MIN.into(), b"\x20\x7f\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
            (i128::MAX.into(), b"\x40\x7f\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
            ("a\0".into(), b"\x50a\0\xff\0\0"),
            (b"\xff".into(), b"\x58\xff\0\0"),
            (CompositePart::NULL.descending(), b"\xef"),
            (CompositePart::descending_of("a\0"), b"\xaf\x9e\xff\0\xff\xff"),
        ];
        for (part, bytes) in cases {
            assert_eq!(&*CompositeKey::of((part.clone(),)), bytes, "{part}");
        }
        let first: Vec<u8> = [NULL, FALSE, TRUE, LEAST, GREATEST, TEXT, BYTES].into();
        assert!(first.iter().all(|byte| ![END, !END].contains(byte) && *byte < FIRST_DESCENDING));
    }

    #[test]
    fn bytes_that_are_no_key_are_refused_with_the_place() {
        let refused: [(&[u8], usize, &str); 9] = [
            (b"\0", 0, "unknown"),
            (b"\x10\xff", 1, "unknown"),
            (b"\x41", 0, "unknown"),
            (b"\x32\x01", 0, "no end"),
            (b"\x31\x00", 0, "more bytes than it needs"),
            (b"\x10\x50a\0", 1, "no end"),
            (b"\x58a\0\x01\0\0", 0, "not marked"),
            (b"\x50\xff\0\0", 0, "UTF-8"),
            (b"\x40\xff\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 0, "out of range"),
        ];
        for (bytes, at, what) in refused {
            let error = CompositeKey::parts(bytes).find_map(Result::err).unwrap().to_string();
            assert!(error.contains(what) && error.contains(&format!("byte {at}")), "{error}");
            assert!(CompositeKey::parts(bytes).last().unwrap().is_err(), "nothing follows an error");
        }
        let shown = format!(
            "{:?}",
            CompositeKey::of((1, CompositePart::descending_of("x"), b"\0", true, None::<u8>))
        );
        assert_eq!(shown, r#"(1, "x" descending, b"\x00", true, NULL)"#);
    }
}
