//! Ranges of keys, in byte order.
//!
//! **Purpose.** The one representation of a range of keys that all layers use.
//!
//! **Invariants.** Each bound is stored as the first key inside the range or the first key after it, because no key
//! lies between a key and that key with a zero byte appended (test: `a_bound_is_in_or_out`).

use core::{fmt, ops::Bound};

/// A key, as a bound of a range.
pub type Key = Box<[u8]>;

/// The keys from one key (inclusive) to another (exclusive). The default is all keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key; the empty key is below every other.
    pub from: Key,
    /// The first key after the range; `None` if the range has no end.
    pub to: Option<Key>,
}

/// Bytes of a key that a message shows.
const BYTES_SHOWN: usize = 32;

/// Returns a key for a message, shortened.
pub fn shown(key: &[u8]) -> String {
    let start = key[..key.len().min(BYTES_SHOWN)].escape_ascii();
    if key.len() > BYTES_SHOWN {
        format!("\"{start}\"... ({} bytes)", key.len())
    } else {
        format!("\"{start}\"")
    }
}

/// Returns the least key above this one.
pub fn successor(key: &[u8]) -> Key {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next.into()
}

impl KeyRange {
    /// Returns the range between these bounds.
    pub fn new(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Self {
        let from = match lower {
            Bound::Included(key) => key.into(),
            Bound::Excluded(key) => successor(key),
            Bound::Unbounded => Key::default(),
        };
        let to = match upper {
            Bound::Included(key) => Some(successor(key)),
            Bound::Excluded(key) => Some(key.into()),
            Bound::Unbounded => None,
        };
        Self { from, to }
    }

    /// Returns whether the range contains no key.
    pub fn is_empty(&self) -> bool {
        self.begins_at(self.to.as_deref())
    }

    /// Returns whether the range contains no key at or above this key.
    pub fn ends_at(&self, key: &[u8]) -> bool {
        self.to.as_deref().is_some_and(|to| to <= key)
    }

    /// Returns the part of a range between two bounds that lies in this range.
    pub fn clip<'k>(
        &'k self,
        lower: Bound<&'k [u8]>,
        upper: Bound<&'k [u8]>,
    ) -> (Bound<&'k [u8]>, Bound<&'k [u8]>) {
        let lower = match lower {
            Bound::Included(key) | Bound::Excluded(key) if *key >= *self.from => lower,
            _ => Bound::Included(&*self.from),
        };
        let upper = match (upper, &self.to) {
            (Bound::Included(key), Some(to)) if *key < **to => upper,
            (Bound::Excluded(key), Some(to)) if *key <= **to => upper,
            (_, Some(to)) => Bound::Excluded(&**to),
            (_, None) => upper,
        };
        (lower, upper)
    }

    /// Returns whether the range contains no key below this key; `None` is above all keys.
    pub fn begins_at(&self, key: Option<&[u8]>) -> bool {
        key.is_some_and(|key| key <= &*self.from)
    }
}

impl fmt::Display for KeyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from \"{}\" ", self.from.escape_ascii())?;
        match &self.to {
            Some(to) => write!(f, "to before \"{}\"", to.escape_ascii()),
            None => f.write_str("on"),
        }
    }
}
