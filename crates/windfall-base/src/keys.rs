//! Keys in their order.
//!
//! **Purpose.** Ranges of keys, as they are asked for, in the one form in which the floors keep them.
//!
//! **Invariants.** Between a key and the same with a zero byte behind it there is no other key, so each bound is the
//! first key that is in or the first that is out.
//!
//! **May touch.** Nothing.

use core::{fmt, ops::Bound};

/// A key, as an end of a range.
pub type Key = Box<[u8]>;

/// The keys from one on, up to another one that is not among them. By default these are all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key; the empty one is below every other.
    pub from: Key,
    /// The first key behind it; none if it has no end.
    pub to: Option<Key>,
}

/// The least key above this one.
pub fn successor(key: &[u8]) -> Key {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next.into()
}

impl KeyRange {
    /// The keys between these bounds.
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

    /// Whether no key can be in it.
    pub fn is_empty(&self) -> bool {
        self.begins_at(self.to.as_deref())
    }

    /// Whether there is nothing in it from this key on.
    pub fn ends_at(&self, key: &[u8]) -> bool {
        self.to.as_deref().is_some_and(|to| to <= key)
    }

    /// Whether there is nothing in it below this key; none is above all keys.
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
