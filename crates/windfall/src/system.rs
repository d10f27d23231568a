//! The system tree: what the database knows of itself.
//!
//! **Purpose.** Keys and values in the tablespace [`SpaceId::CATALOG`], for the floors above: tables, undo slices, files.
//!
//! **Invariants.** A record is there or not: changes are redo-only and belong to one group of the log, whatever their
//! number. Several records are changed under the latches of all their leaves, which are taken in the order of the keys, and
//! only after every leaf was seen to have room. Whoever finds its leaves and whoever merges take turns: a merge holds the
//! inner node that the way to the next leaf leads through, and would wait for the leaf that is held already.
//!
//! **May touch.** `store`, `tree`, `mtr`.
//!
//! # Keys
//!
//! | first byte | the rest | value |
//! | --- | --- | --- |
//! | `t` | a table's name | the table's record, see `catalog` |
//! | `u` | stream (1 byte), slice (8 bytes, big-endian) | the slice's tablespace, 8 bytes |
//! | `f` | tablespace (8 bytes, big-endian) | empty: its file was made |

use crossbeam_queue::SegQueue;
use smallvec::SmallVec;

use crate::{
    buffer::BufferPool,
    error::{CorruptError, Error, Result},
    ids::{SpaceId, TrxId, UndoPos},
    mtr::Mtr,
    page::EntryHeader,
    store::Tree,
    sync::{Arc, Mutex, Rank},
    tree::{Beside, Located, Seek, hash::HashBudget},
};

/// The first byte of table records.
pub const TABLE: u8 = b't';
/// The first byte of undo slice records.
pub const UNDO: u8 = b'u';
/// The first byte of file records.
pub const FILE: u8 = b'f';

/// The header of records: every reader sees them.
const HEADER: EntryHeader = EntryHeader { trx: TrxId::NONE, flags: 0, undo: UndoPos::NONE };

/// What the change of a record takes in the log at most, besides its key and value.
const CHANGE: usize = 48;
/// What a record takes in a leaf beside its key and value, and a little more.
const ENTRY: usize = 48;

/// A change of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    key: Vec<u8>,
    /// The new value; `None` removes the record.
    value: Option<Vec<u8>>,
}

impl Change {
    /// Writes a record, whether there is one or not.
    pub fn put(key: Vec<u8>, value: Vec<u8>) -> Self {
        Self { key, value: Some(value) }
    }

    /// What the change takes in the log at most, in bytes.
    pub fn log_bytes(&self) -> usize {
        self.value.as_ref().map_or(CHANGE, |value| CHANGE + self.key.len() + value.len())
    }

    /// Removes a record, if there is one.
    pub fn remove(key: Vec<u8>) -> Self {
        Self { key, value: None }
    }
}

/// The system tree.
#[derive(Debug)]
pub struct SystemTree {
    tree: Tree,
    /// The turn of the writers: merging leaves must not meet a change that has some of them latched.
    writing: Mutex<()>,
    /// Keys whose leaves hold little since they were removed: whoever removes does not stop to merge.
    sparse: SegQueue<Vec<u8>>,
}

impl SystemTree {
    /// The system tree in its tablespace, which the pool knows.
    pub fn new(pool: Arc<BufferPool>, budget: Arc<HashBudget>) -> Self {
        let space =
            pool.space(SpaceId::CATALOG).expect("the pool knows the system tablespace before anything else");
        Self {
            tree: Tree::new(pool, space, budget),
            writing: Mutex::new(Rank::System, ()),
            sparse: SegQueue::new(),
        }
    }

    /// The tree, for checks.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// An error that says that a record here is damaged.
    pub fn damaged(&self, what: &str) -> Error {
        CorruptError::Structure { space: SpaceId::CATALOG, what: what.into() }.into()
    }

    /// A record's value.
    ///
    /// # Errors
    /// Damage, I/O.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        Ok(self.tree.get_into(key, &mut value)?.map(|_| value))
    }

    /// Visits the records whose key begins so, in order, until `visit` says no.
    ///
    /// # Errors
    /// Damage, I/O.
    pub fn scan(&self, prefix: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let mut cursor = self.tree.cursor();
        let mut more = cursor.seek(Seek::AtLeast(prefix))?;
        while more && cursor.key().starts_with(prefix) && visit(cursor.key(), cursor.value()) {
            more = cursor.next()?;
        }
        Ok(())
    }

    /// How many records with keys and values of this length together may be put at once.
    pub fn most_puts(&self, length: usize) -> usize {
        self.tree.inline_limit() / (length + ENTRY)
    }

    /// Changes records within `mtr`, which holds no page yet. The changes are put in order; no key may be named twice.
    ///
    /// # Errors
    /// Damage, I/O; a record that is too long. Nothing was changed then.
    pub fn change(&self, mtr: &mut Mtr<'_>, changes: &mut [Change]) -> Result<()> {
        let _turn = self.writing.lock();
        changes.sort_by(|a, b| a.key.cmp(&b.key));
        // All that is put may come into one leaf.
        let put =
            |change: &Change| change.value.as_ref().map_or(0, |value| value.len() + change.key.len() + ENTRY);
        let room = changes.iter().map(put).sum::<usize>();
        let mut places = loop {
            if let Some(places) = self.locate(mtr, changes, room)? {
                break places;
            }
        };
        // From the last to the first: a change moves only the slots behind it.
        for change in changes.iter().rev() {
            let mut place = places.pop().expect("one for each change");
            match (&change.value, place.header()) {
                (Some(value), Some(_)) => place.replace(mtr, HEADER, value),
                (Some(value), None) => place.insert(mtr, HEADER, value),
                (None, Some(_)) => {
                    if place.remove(mtr) {
                        self.sparse.push(change.key.clone());
                    }
                }
                (None, None) => {}
            }
        }
        Ok(())
    }

    /// Latches the leaves of all changes, in order. `None` when one of them had no room and was split instead.
    fn locate<'k>(
        &self,
        mtr: &mut Mtr<'_>,
        changes: &'k [Change],
        room: usize,
    ) -> Result<Option<SmallVec<[Located<'k, BufferPool>; 1]>>> {
        let mut places: SmallVec<[Located<'k, BufferPool>; 1]> = SmallVec::with_capacity(changes.len());
        for change in changes {
            let room = change.value.as_ref().map(|_| room);
            let beside = places.last().and_then(|last| self.tree.seek_beside(mtr, last, &change.key, room));
            match beside {
                Some(Beside::Place(place)) => places.push(place),
                Some(Beside::NoRoom) => {
                    mtr.unlatch_all();
                    self.tree.seek_for_change(mtr, &change.key, room)?.release(mtr);
                    return Ok(None);
                }
                None => places.push(self.tree.seek_for_change(mtr, &change.key, room)?),
            }
        }
        Ok(Some(places))
    }

    /// Runs something while nobody changes the tree.
    pub fn at_rest<T>(&self, run: impl FnOnce(&Tree) -> T) -> T {
        let _turn = self.writing.lock();
        run(&self.tree)
    }

    /// Merges leaves that removals have left nearly empty, a few of them. Says whether there may be more.
    ///
    /// # Errors
    /// Damage, I/O.
    pub fn tidy_step(&self) -> Result<bool> {
        for _ in 0..16 {
            let Some(key) = self.sparse.pop() else { return Ok(false) };
            let _turn = self.writing.lock();
            self.tree.maintain(&key)?;
        }
        Ok(true)
    }
}
