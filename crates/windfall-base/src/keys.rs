//! Ranges of keys, in byte order.
//!
//! **Purpose.** The one representation of a range of keys that all layers use; and [`Limits`], those of a cursor, which
//! keep their memory.
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

    /// Returns whether the range contains no key below this key; `None` is above all keys.
    pub fn begins_at(&self, key: Option<&[u8]>) -> bool {
        key.is_some_and(|key| key <= &*self.from)
    }
}

/// A range of keys that is often replaced by another one, and keeps its memory. The default is all keys.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    from: Vec<u8>,
    to: Vec<u8>,
    has_end: bool,
}

impl Limits {
    /// Replaces the range with that between these bounds.
    pub fn set(&mut self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) {
        let Self { from, to, has_end } = self;
        from.clear();
        match lower {
            Bound::Included(key) => from.extend_from_slice(key),
            Bound::Excluded(key) => {
                from.extend_from_slice(key);
                from.push(0);
            }
            Bound::Unbounded => {}
        }
        to.clear();
        *has_end = upper != Bound::Unbounded;
        match upper {
            Bound::Included(key) => {
                to.extend_from_slice(key);
                to.push(0);
            }
            Bound::Excluded(key) => to.extend_from_slice(key),
            Bound::Unbounded => {}
        }
    }

    /// Returns the first key; the empty key is below every other.
    pub fn from(&self) -> &[u8] {
        &self.from
    }

    /// Returns the first key after the range; `None` if it has no end.
    pub fn to(&self) -> Option<&[u8]> {
        self.has_end.then_some(&self.to[..])
    }

    /// Returns the range as bounds.
    pub fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (Bound::Included(&self.from), self.to().map_or(Bound::Unbounded, Bound::Excluded))
    }

    /// Returns whether the range contains no key at or above this key.
    pub fn ends_at(&self, key: &[u8]) -> bool {
        self.to().is_some_and(|to| to <= key)
    }

    /// Returns whether the range contains no key below this key; `None` is above all keys.
    pub fn begins_at(&self, key: Option<&[u8]>) -> bool {
        key.is_some_and(|key| key <= &self.from[..])
    }

    /// Returns the part of a range between two bounds that lies in this range.
    pub fn clip<'k>(
        &'k self,
        lower: Bound<&'k [u8]>,
        upper: Bound<&'k [u8]>,
    ) -> (Bound<&'k [u8]>, Bound<&'k [u8]>) {
        let lower = match lower {
            Bound::Included(key) | Bound::Excluded(key) if *key >= self.from[..] => lower,
            _ => Bound::Included(&self.from[..]),
        };
        let upper = match (upper, self.to()) {
            (Bound::Included(key), Some(to)) if key < to => upper,
            (Bound::Excluded(key), Some(to)) if key <= to => upper,
            (_, Some(to)) => Bound::Excluded(to),
            (_, None) => upper,
        };
        (lower, upper)
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
