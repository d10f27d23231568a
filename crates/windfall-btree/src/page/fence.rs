//! Fences: the keys between which the keys of a node lie, as the node stores them.
//!
//! **Purpose.** A key may take more than a third of a page, and a node has two fences. So a node stores of a long fence
//! only the beginning, and a checksum: two fences always leave room for records.
//!
//! **Invariants.** A node stores the common prefix of its fences, and of the rest of each fence at most [`rest_limit`]
//! bytes: a longer fence is *cut*, and the CRC-32C of the whole fence is stored with it (test:
//! `fences_are_shortened_behind_their_prefix`). Of two fences that are known in part, the prefix is that of the known
//! parts (test: `what_is_said_of_cut_fences_is_true_of_whole_ones`).
//!
//! **Reasons.** A long prefix costs no room: the records of the node lack it.

use super::node::common_prefix;

/// Bytes of the checksum of a cut fence.
pub(super) const CHECKSUM: usize = 4;

/// Returns the maximum number of bytes that a node stores of a fence behind the common prefix, without the checksum.
pub(crate) const fn rest_limit(page_size: usize) -> usize {
    page_size / 16
}

/// A fence as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence<B> {
    /// The fence, or the beginning of a cut one, which is longer.
    pub bytes: B,
    /// The CRC-32C of the whole fence, if it is cut.
    pub checksum: Option<u32>,
}

/// Both fences of a node; no upper one is above every key.
pub(crate) type Fences<'a> = (Fence<&'a [u8]>, Option<Fence<&'a [u8]>>);

impl<'a> Fence<&'a [u8]> {
    /// Creates a fence that is known as a whole.
    pub fn whole(bytes: &'a [u8]) -> Self {
        Self { bytes, checksum: None }
    }

    /// Returns the bytes that the fence takes, except those of the prefix.
    fn bytes_behind(self, prefix: usize) -> usize {
        self.bytes.len() - prefix + if self.checksum.is_some() { CHECKSUM } else { 0 }
    }

    /// Returns the fence with no more than this many bytes.
    fn shortened(self, length: usize) -> Self {
        if self.bytes.len() <= length {
            return self;
        }
        let checksum = self.checksum.unwrap_or_else(|| crc32c::crc32c(self.bytes));
        Self { bytes: &self.bytes[..length], checksum: Some(checksum) }
    }

    /// Returns whether this can be the same fence as another one.
    pub(crate) fn is_same(self, other: Self) -> bool {
        match (self.checksum, other.checksum) {
            (None, None) => self.bytes == other.bytes,
            (Some(a), Some(b)) => {
                a == b && (self.bytes.starts_with(other.bytes) || other.bytes.starts_with(self.bytes))
            }
            (Some(_), None) => other.is_same(self),
            (None, Some(checksum)) => {
                self.bytes.len() > other.bytes.len()
                    && self.bytes.starts_with(other.bytes)
                    && crc32c::crc32c(self.bytes) == checksum
            }
        }
    }

    /// Returns whether this can be below another fence.
    pub(crate) fn can_be_below(self, other: Self) -> bool {
        match other.checksum {
            // It is greater than its beginning.
            Some(_) => self.bytes <= other.bytes || self.bytes.starts_with(other.bytes),
            None => self.bytes < other.bytes,
        }
    }
}

impl Fence<Vec<u8>> {
    /// Borrows it.
    pub(crate) fn as_deref(&self) -> Fence<&[u8]> {
        Fence { bytes: &self.bytes, checksum: self.checksum }
    }
}

/// Returns whether these can be the same fences as others.
pub(crate) fn are_same(one: Fences<'_>, other: Fences<'_>) -> bool {
    one.0.is_same(other.0)
        && match (one.1, other.1) {
            (Some(one), Some(other)) => one.is_same(other),
            (one, other) => one.is_none() && other.is_none(),
        }
}

/// Returns the length of the prefix that a node with these fences cuts off its keys.
pub(crate) fn prefix_of((lower, upper): Fences<'_>) -> usize {
    upper.map_or(0, |upper| common_prefix(lower.bytes, upper.bytes))
}

/// Returns the fences as a node stores them.
pub(crate) fn shortened((lower, upper): Fences<'_>, page_size: usize) -> Fences<'_> {
    let most = prefix_of((lower, upper)) + rest_limit(page_size);
    (lower.shortened(most), upper.map(|upper| upper.shortened(most)))
}

/// Returns whether a node can store the fences as they are.
pub(super) fn are_short((lower, upper): Fences<'_>, page_size: usize) -> bool {
    let most = prefix_of((lower, upper)) + rest_limit(page_size);
    lower.bytes.len() <= most && upper.is_none_or(|upper| upper.bytes.len() <= most)
}

/// Returns the bytes that fences take in a node.
pub(crate) fn fence_bytes(fences: Fences<'_>, page_size: usize) -> usize {
    let prefix = prefix_of(fences);
    let limit = rest_limit(page_size);
    let length = |fence: Fence<&[u8]>| {
        let rest = fence.bytes.len() - prefix;
        if rest > limit { limit + CHECKSUM } else { fence.bytes_behind(prefix) }
    };
    (prefix + length(fences.0) + fences.1.map_or(0, length)).next_multiple_of(8)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: usize = 4096;

    #[test]
    fn fences_are_shortened_behind_their_prefix() {
        let key = |prefix: usize, rest: u8, length: usize| [vec![1; prefix], vec![rest; length]].concat();
        for (prefix, lengths, expected) in [
            (0, [256, 256], [256, 256]),
            (0, [257, 3], [256, 3]),
            (700, [256, 300], [956, 956]),
            (700, [0, 257], [700, 956]),
        ] {
            let (lower, upper) = (key(prefix, 2, lengths[0]), key(prefix, 3, lengths[1]));
            let whole = (Fence::whole(&lower[..]), Some(Fence::whole(&upper[..])));
            let short = shortened(whole, SIZE);
            assert_eq!(are_short(whole, SIZE), lengths.into_iter().all(|length| length <= 256));
            assert!(are_short(short, SIZE));
            for (n, (whole, short)) in
                [(whole.0, short.0), (whole.1.unwrap(), short.1.unwrap())].into_iter().enumerate()
            {
                assert_eq!(*short.bytes, whole.bytes[..expected[n]]);
                let is_cut = expected[n] < whole.bytes.len();
                assert_eq!(short.checksum, is_cut.then(|| crc32c::crc32c(whole.bytes)));
                assert!(short.is_same(whole) && whole.is_same(short) && short.is_same(short));
            }
        }
        // Without an upper fence there is no prefix.
        let lower = key(300, 0, 0);
        assert_eq!(shortened((Fence::whole(&lower), None), SIZE).0.bytes.len(), 256);
    }

    proptest! {
        /// Keys of which few bytes differ, known as far as may be.
        #[test]
        fn what_is_said_of_cut_fences_is_true_of_whole_ones(
            keys in prop::collection::btree_set((
                prop::sample::select(vec![0usize, 1, 254, 255, 256, 257, 300]), prop::collection::vec(0u8..3, 0..6),
            ), 2),
            known in prop::array::uniform2(prop::sample::select(vec![0usize, 1, 255, 256, 257, 258, 301, 900])),
        ) {
            let mut keys: Vec<_> = keys.into_iter().map(|(n, rest)| [&[1].repeat(n)[..], &rest].concat()).collect();
            keys.sort();
            keys.dedup();
            prop_assume!(keys.len() == 2);
            let whole = [0, 1].map(|n| Fence::whole(&keys[n][..]));
            let cut = [0, 1].map(|n| whole[n].shortened(known[n]));
            prop_assert!(cut[0].can_be_below(cut[1]));
            for n in [0, 1] {
                prop_assert!(cut[n].is_same(whole[n]) && !cut[n].is_same(cut[1 - n]));
                prop_assert!(!cut[n].is_same(whole[1 - n]) && !whole[n].is_same(cut[1 - n]));
            }
            prop_assert!(!whole[1].can_be_below(whole[0]) && !whole[0].can_be_below(whole[0]));
            let fences = (cut[0], Some(cut[1]));
            let prefix = prefix_of(fences);
            prop_assert!(keys[1].starts_with(&keys[0][..prefix]));
            let (lower, upper) = shortened(fences, SIZE);
            prop_assert_eq!(prefix_of((lower, upper)), prefix);
            let bytes = prefix + lower.bytes_behind(prefix) + upper.unwrap().bytes_behind(prefix);
            prop_assert_eq!(fence_bytes(fences, SIZE), bytes.next_multiple_of(8));
            prop_assert_eq!(fence_bytes((lower, upper), SIZE), bytes.next_multiple_of(8));
            prop_assert!(bytes <= prefix + 2 * (rest_limit(SIZE) + CHECKSUM));
        }
    }
}
