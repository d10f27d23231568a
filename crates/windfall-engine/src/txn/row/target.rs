//! The trees of a table, for changes of its rows.
//!
//! **Purpose.** Everything that a row change needs of its table: the trees, how index keys are made of a value, and
//! which observer follows the changes.
//!
//! **Invariants.** The caller is inside the table's gate as long as it uses a target, which borrows the trees from the
//! pass through the gate (by type). The undo of a temporary table goes to the session's stream, and that of every other
//! table to a logged one (checked by `row/target.rs::durability`).

use smallvec::SmallVec;

use super::{entry::EntryForm, extract::Extraction};
use crate::{
    buffer::Durability,
    error::{Owner, Result},
    ids::IndexNumber,
    store::Tree,
    sync::Arc,
    txn::undo::{Follower, Stream},
};

/// A secondary tree.
#[derive(Clone, Copy, Debug)]
pub struct Secondary<'a> {
    /// The tree.
    pub tree: &'a Tree,
    /// Whether two rows may not have the same index key.
    pub unique: bool,
    /// Its place among those of the table.
    pub place: usize,
    /// The number of the index that it replaces, in a load.
    pub replaces: Option<IndexNumber>,
    /// The name of the index, by which a call supplies its entries, and for messages.
    pub name: &'a str,
    /// How its entries come apart, and whether the caller supplies them.
    pub form: EntryForm,
    /// The extraction of its entries, if an extractor makes them.
    pub extraction: Option<Extraction<'a>>,
}

impl Secondary<'_> {
    /// Returns the number of the index.
    pub(super) fn number(&self) -> IndexNumber {
        IndexNumber::new(self.tree.store().instance, self.tree.space().id(), self.place)
    }
}

/// The index keys of a row, one after the other. Those of most rows take no memory of their own.
#[derive(Clone, Debug, Default)]
pub struct IndexKeys {
    bytes: SmallVec<[u8; 48]>,
    /// For each index the end of its key in the bytes; `None` if there is none.
    ends: SmallVec<[Option<u32>; 4]>,
}

impl IndexKeys {
    /// Appends the key of the next index, which consists of these parts.
    pub fn push<'p>(&mut self, parts: impl IntoIterator<Item = &'p [u8]>) {
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        self.ends.push(Some(self.bytes.len() as u32));
    }

    /// Appends that the next index has no key.
    pub fn push_none(&mut self) {
        self.ends.push(None);
    }

    /// Returns the number of indexes.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there is no index.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the key of an index, if it has one.
    pub fn get(&self, n: usize) -> Option<&[u8]> {
        let end = *self.ends.get(n)?.as_ref()?;
        let start = self.ends[..n].iter().rev().find_map(|end| *end).unwrap_or(0);
        Some(&self.bytes[start as usize..end as usize])
    }
}

impl<K: AsRef<[u8]>> FromIterator<Option<K>> for IndexKeys {
    fn from_iter<I: IntoIterator<Item = Option<K>>>(keys: I) -> Self {
        let mut all = Self::default();
        for key in keys {
            match key {
                Some(key) => all.push([key.as_ref()]),
                None => all.push_none(),
            }
        }
        all
    }
}

/// Makes the index keys of a row from the first bytes of its value: one per secondary tree, none for an index that
/// does not contain the row, and for one with supplied or extracted entries. Any other index of a table contains all
/// its rows; but row changes, undo and purge do not rely on that, and their tests have rows that are in one index, in
/// another, in both or in none. So the change of a row may insert an entry without marking another one, and the
/// reverse, and rows that are not in a unique index may be equal.
pub type KeysOf<'a> = dyn Fn(&[u8]) -> Result<IndexKeys> + Sync + 'a;

/// Is called with a row change that is about to be made under the row's key latch: the row's key, and the first bytes
/// of its value before and after; `None` if there is no such row.
pub type Watch<'a> = dyn Fn(&[u8], Option<&[u8]>, Option<&[u8]>) + Sync + 'a;

/// The trees of a table.
#[derive(Clone, Copy)]
pub struct RowTarget<'a> {
    /// The table, for messages.
    pub name: &'a str,
    /// The clustered tree.
    pub clustered: &'a Tree,
    /// The secondary trees.
    pub secondaries: &'a [Secondary<'a>],
    /// Makes their index keys.
    pub keys_of: &'a KeysOf<'a>,
    /// For a temporary table: the session's stream.
    pub temporary: Option<&'a Arc<Stream>>,
    /// The observer of changes.
    pub watch: Option<&'a Watch<'a>>,
    /// The observer, if it reads chosen fields of long values.
    pub reads: Option<&'a dyn Follower>,
}

impl core::fmt::Debug for RowTarget<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "RowTarget({})", self.name)
    }
}

impl RowTarget<'_> {
    pub(super) fn durability(&self) -> Durability {
        debug_assert!(
            self.temporary.is_some() == (self.clustered.space().durability() == Durability::Temporary),
            "the undo of table {} is logged, and its rows are not, or the reverse",
            self.name
        );
        if self.temporary.is_some() { Durability::Temporary } else { Durability::Logged }
    }

    /// Returns whether something is made of the first bytes of a row's values: index keys, entries, notes.
    pub fn needs_bytes(&self) -> bool {
        let makes_entries = |secondary: &Secondary<'_>| {
            secondary.form == EntryForm::Terminated || secondary.extraction.is_some()
        };
        self.watch.is_some() || self.secondaries.iter().any(makes_entries)
    }

    pub(super) fn owner(&self) -> Owner {
        Owner::Table(self.name.into())
    }

    pub(super) fn owner_of(&self, secondary: &Secondary<'_>) -> Owner {
        self.owner_of_index(secondary.name)
    }

    pub(super) fn owner_of_index(&self, index: &str) -> Owner {
        Owner::Index { table: self.name.into(), index: index.into() }
    }
}
