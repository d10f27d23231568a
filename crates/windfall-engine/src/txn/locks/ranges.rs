//! The range locks of one transaction in a tree, which keep others from inserting.
//!
//! **Purpose.** A scan locks the gaps between the rows that it has read, piece by piece; a lookup that finds nothing
//! locks one key. This set answers whether a key is in any of the ranges.
//!
//! **Invariants.** No two ranges overlap or touch: they are merged (test: `ranges_are_sets_of_keys`). None is empty
//! (checked by `locks/ranges.rs::lock`).

use core::ops::Bound;
use std::collections::BTreeMap;

use crate::keys::{Key, KeyRange};

/// Returns whether a range with this end, or without an end, contains or touches the key.
fn reaches(to: Option<&Key>, key: &[u8]) -> bool {
    to.is_none_or(|to| **to >= *key)
}

/// Returns whether a range with this end, or without an end, contains all keys up to this bound.
fn ends_at(end: Option<&Key>, upper: Bound<&[u8]>) -> bool {
    match (end, upper) {
        (None, _) => true,
        (Some(_), Bound::Unbounded) => false,
        (Some(end), Bound::Included(upper)) => *upper < **end,
        (Some(end), Bound::Excluded(upper)) => *upper <= **end,
    }
}

fn to_range((from, to): (&Key, &Option<Key>)) -> KeyRange {
    KeyRange { from: from.clone(), to: to.clone() }
}

/// Ranges: the first key of each, and the first key after it.
#[derive(Debug, Default)]
pub(super) struct Ranges(BTreeMap<Key, Option<Key>>);

impl Ranges {
    /// Adds a range.
    pub(super) fn lock(&mut self, KeyRange { mut from, mut to }: KeyRange) {
        debug_assert!(to.as_ref().is_none_or(|to| from < *to), "no range is empty");
        // A scan upwards makes its range longer with each step.
        let next = self.0.range::<Key, _>((Bound::Excluded(&from), Bound::Unbounded)).next();
        if next.is_none_or(|(next, _)| !reaches(to.as_ref(), next))
            && let Some((_, end)) = self.0.range_mut::<Key, _>(..=&from).next_back()
            && reaches(end.as_ref(), &from)
        {
            if end.is_some() && to.as_ref().is_none_or(|to| end.as_ref().is_some_and(|end| end < to)) {
                *end = to;
            }
            return;
        }
        while let Some((first, end)) = self.last_begun(to.as_ref())
            && reaches(end.as_ref(), &from)
        {
            if *first <= from && (end.is_none() || to.is_some() && *end >= to) {
                return;
            }
            let first = first.clone();
            let end = self.0.remove(&first).flatten();
            to = end.zip(to).map(|(end, to)| end.max(to));
            from = from.min(first);
        }
        debug_assert!(
            self.0.range::<Key, _>(..&from).next_back().is_none_or(|(_, end)| !reaches(end.as_ref(), &from)),
            "a range touches the one before it, and is not merged with it"
        );
        debug_assert!(
            self.0.range::<Key, _>(&from..).next().is_none_or(|(next, _)| !reaches(to.as_ref(), next)),
            "a range touches the one after it, and is not merged with it"
        );
        self.0.insert(from, to);
    }

    /// Returns the last range that begins at or before this key.
    fn last_begun(&self, key: Option<&Key>) -> Option<(&Key, &Option<Key>)> {
        match key {
            Some(key) => self.0.range::<Key, _>(..=key).next_back(),
            None => self.0.last_key_value(),
        }
    }

    /// Returns whether the key is in one of the ranges.
    pub(super) fn cover(&self, key: &[u8]) -> bool {
        self.at(key).is_some()
    }

    /// Returns whether one of the ranges contains all keys between these bounds.
    pub(super) fn cover_all(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
        let (Bound::Included(key) | Bound::Excluded(key)) = lower else {
            return self
                .0
                .first_key_value()
                .is_some_and(|(from, end)| from.is_empty() && ends_at(end.as_ref(), upper));
        };
        let is_successor = |from: &Key| from.strip_prefix(key).is_some_and(|rest| rest == [0]);
        let begins_behind = match lower {
            Bound::Excluded(_) => self.0.range::<[u8], _>((lower, Bound::Unbounded)).next(),
            _ => None,
        };
        let begun = match begins_behind.filter(|(from, _)| is_successor(from)) {
            Some(range) => Some(range),
            None => self.0.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back(),
        };
        begun.is_some_and(|(_, end)| ends_at(end.as_ref(), upper))
    }

    /// Returns the range that contains this key.
    pub(super) fn around(&self, key: &[u8]) -> Option<KeyRange> {
        self.at(key).map(to_range)
    }

    fn at(&self, key: &[u8]) -> Option<(&Key, &Option<Key>)> {
        let begun = self.0.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back();
        begun.filter(|(_, end)| end.as_ref().is_none_or(|end| *key < **end))
    }

    /// Returns the number of ranges.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the ranges in key order.
    pub(super) fn iter(&self) -> impl Iterator<Item = KeyRange> {
        self.0.iter().map(to_range)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn range(lower: Bound<&str>, upper: Bound<&str>) -> Option<KeyRange> {
        Some(KeyRange::new(lower.map(str::as_bytes), upper.map(str::as_bytes)))
            .filter(|range| !range.is_empty())
    }

    #[test]
    fn a_bound_is_in_or_out() {
        use Bound::{Excluded, Included, Unbounded};
        let covers = |lower, upper, key: &str| {
            let mut ranges = Ranges::default();
            if let Some(range) = range(lower, upper) {
                ranges.lock(range);
            }
            ranges.cover(key.as_bytes())
        };
        assert!(covers(Included("b"), Included("d"), "b") && covers(Included("b"), Included("d"), "d"));
        assert!(!covers(Excluded("b"), Excluded("d"), "b") && !covers(Excluded("b"), Excluded("d"), "d"));
        assert!(covers(Excluded("b"), Excluded("d"), "b\0") && covers(Excluded("b"), Excluded("d"), "c"));
        assert!(!covers(Included("b"), Included("d"), "d\0") && !covers(Included("b"), Included("d"), "a"));
        assert!(covers(Unbounded, Excluded("d"), "") && covers(Excluded("d"), Unbounded, "\u{7f}"));
        assert!(covers(Included("c"), Included("c"), "c") && !covers(Included("c"), Excluded("c"), "c"));
        assert!(!covers(Excluded("d"), Included("b"), "c"), "nothing is between them");
        assert_eq!(range(Excluded("b"), Excluded("b\0")), None, "no key is between a key and the next");
    }

    #[test]
    fn pieces_that_touch_are_one() {
        use Bound::{Excluded, Included, Unbounded};
        let mut ranges = Ranges::default();
        for (lower, upper) in [
            (Included("b"), Excluded("d")),
            (Excluded("d"), Excluded("f")),
            (Included("h"), Included("h")),
            (Included("d"), Included("d")),
            (Excluded("h"), Unbounded),
        ] {
            ranges.lock(range(lower, upper).unwrap());
        }
        let texts: Vec<String> = ranges.iter().map(|range| range.to_string()).collect();
        assert_eq!(texts, ["from \"b\" to before \"f\"", "from \"h\" on"]);
        ranges.lock(range(Unbounded, Unbounded).unwrap());
        assert_eq!(ranges.len(), 1);
        assert_eq!(ranges.around(b"x").unwrap().to_string(), "from \"\" on");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        /// Compares with a set of keys: the keys of one byte, and the immediate successor of each.
        #[test]
        fn ranges_are_sets_of_keys(
            locked in prop::collection::vec((0u8..12, 0u8..12, 0u8..3, 0u8..3), 0..20),
        ) {
            let keys: Vec<Vec<u8>> = (0..12).flat_map(|n| [vec![n], vec![n, 0]]).collect();
            let (mut ranges, mut set) = (Ranges::default(), BTreeSet::new());
            for (a, b, lower, upper) in locked {
                let (a, b) = ([a], [b]);
                let bound = |kind, key| match kind {
                    0 => Bound::Included(key),
                    1 => Bound::Excluded(key),
                    _ => Bound::Unbounded,
                };
                let (lower, upper) = (bound(lower, &a[..]), bound(upper, &b[..]));
                let inside = |key: &&Vec<u8>| {
                    let above = match lower {
                        Bound::Included(a) => key[..] >= *a,
                        Bound::Excluded(a) => key[..] > *a,
                        Bound::Unbounded => true,
                    };
                    above && match upper {
                        Bound::Included(b) => key[..] <= *b,
                        Bound::Excluded(b) => key[..] < *b,
                        Bound::Unbounded => true,
                    }
                };
                set.extend(keys.iter().filter(inside).cloned());
                let range = KeyRange::new(lower, upper);
                if !range.is_empty() {
                    let has_all = |known: KeyRange| {
                        let ends = known.to.is_none_or(|end| range.to.as_ref().is_some_and(|to| *to <= end));
                        known.from <= range.from && ends
                    };
                    prop_assert_eq!(ranges.cover_all(lower, upper), ranges.iter().any(has_all));
                    ranges.lock(range);
                    prop_assert!(ranges.cover_all(lower, upper));
                }
                let all: Vec<KeyRange> = ranges.iter().collect();
                let apart = |two: &[KeyRange]| two[0].to.as_ref().is_some_and(|to| *to < two[1].from);
                prop_assert!(all.windows(2).all(apart), "two that touch: {:?}", all);
            }
            for key in &keys {
                prop_assert_eq!(ranges.cover(key), set.contains(key), "key {:?}", key);
                prop_assert_eq!(ranges.around(key).is_some(), set.contains(key));
            }
        }
    }
}
