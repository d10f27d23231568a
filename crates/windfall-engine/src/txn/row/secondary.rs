//! The keys of secondary entries.
//!
//! **Purpose.** A secondary entry that is made of the row's value is a key without a value: the index key, then the
//! row's clustered key, so that rows with equal index keys are adjacent, in the order of their clustered keys.
//!
//! **Invariants.** The order of entries is the order of index keys, then of clustered keys (test:
//! `entries_are_in_order_and_come_apart_again`). The bytes of the index key are stored as they are, except that zero
//! becomes `00 ff`; `00 00` ends the index key (test: `entries_are_in_order_and_come_apart_again`). So no encoded index
//! key is a prefix of another one.

/// The terminator of an index part.
pub(super) const END: [u8; 2] = [0, 0];
const ZERO: [u8; 2] = [0, 0xff];

/// Returns the prefix of all entries of an index key: its escaped form and the terminator.
pub fn prefix_of(index_key: &[u8]) -> Vec<u8> {
    prefix_with_room(index_key, 0)
}

/// Returns that prefix with capacity for `more` further bytes: exact if no byte is zero, because entries are collected
/// by the million.
fn prefix_with_room(index_key: &[u8], more: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(index_key.len() + END.len() + more);
    prefix_into(index_key, &mut out);
    out
}

/// Appends the prefix of all entries of an index key.
pub fn prefix_into(index_key: &[u8], out: &mut Vec<u8>) {
    escape(index_key, out);
    out.extend_from_slice(&END);
}

/// Appends the escaped form without the terminator: a prefix of the entries of all index keys that begin with these
/// bytes, except for a zero at their end.
pub fn escape(index_key: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    for byte in index_key {
        if *byte == 0 {
            out.extend_from_slice(&ZERO);
        } else {
            out.push(*byte);
        }
    }
    debug_assert!(
        !out[start..].windows(END.len()).any(|pair| pair == END),
        "the escaped form of an index key contains its terminator"
    );
}

/// Returns the key of a secondary entry.
pub fn entry_key(index_key: &[u8], clustered_key: &[u8]) -> Vec<u8> {
    let mut out = prefix_with_room(index_key, clustered_key.len());
    out.extend_from_slice(clustered_key);
    debug_assert!(
        index_key_of(&out).len() + clustered_key.len() == out.len(),
        "an entry does not come apart where its index key ends"
    );
    out
}

/// Returns the prefix that the entries of this entry's index key share: the escaped form and the terminator. Returns
/// `None` if it is not a valid entry.
pub fn index_part_of(entry: &[u8]) -> Option<&[u8]> {
    let mut at = 0;
    loop {
        at += entry[at..].iter().position(|byte| *byte == 0)?;
        match entry.get(at + 1) {
            Some(0) => return Some(&entry[..at + END.len()]),
            Some(0xff) => at += ZERO.len(),
            _ => return None,
        }
    }
}

/// As [`index_part_of`], for an entry that was made here.
pub fn index_key_of(entry: &[u8]) -> &[u8] {
    index_part_of(entry).unwrap_or(entry)
}

/// Returns the index key of a valid index part. It is copied into `buffer` if it contains a zero byte; otherwise it is
/// the beginning of the index part, and `buffer` is empty afterwards.
pub fn unescape<'e>(index_part: &'e [u8], buffer: &'e mut Vec<u8>) -> &'e [u8] {
    let escaped = index_part.strip_suffix(&END).unwrap_or(index_part);
    buffer.clear();
    if !escaped.contains(&0) {
        return escaped;
    }
    buffer.extend_from_slice(escaped);
    // The byte behind each zero is no part of the key.
    let mut is_behind_zero = false;
    buffer.retain(|byte| {
        let is_kept = !is_behind_zero;
        is_behind_zero = is_kept && *byte == 0;
        is_kept
    });
    buffer
}

/// Returns the index key and the clustered key of an entry; `None` if it is not a valid entry.
pub fn split(entry: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let index_part = index_part_of(entry)?;
    Some((unescape(index_part, &mut Vec::new()).to_vec(), &entry[index_part.len()..]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![Just(0u8), Just(0xff), Just(1), any::<u8>()];
        prop::collection::vec(byte, 0..8)
    }

    proptest! {
        #[test]
        fn entries_are_in_order_and_come_apart_again(a in key(), b in key(), row_a in key(), row_b in key()) {
            let (one, two) = (entry_key(&a, &row_a), entry_key(&b, &row_b));
            prop_assert_eq!(one.cmp(&two), (&a, &row_a).cmp(&(&b, &row_b)));
            prop_assert_eq!(split(&one), Some((a.clone(), &row_a[..])));
            prop_assert_eq!(index_key_of(&one), prefix_of(&a));
            let mut buffer = vec![1];
            let prefix = prefix_of(&a);
            prop_assert_eq!(unescape(&prefix, &mut buffer), &a[..]);
            prop_assert_eq!(&buffer[..], if a.contains(&0) { &a[..] } else { &[] });
            prop_assert_eq!(one.starts_with(&prefix_of(&b)), a == b);
        }
    }
}
