//! Who has to know of the rows that are taken back.
//!
//! **Purpose.** A call tells the builder of an index which row it is about to change, inside its table's gate. A
//! rollback passes no gate: the one of a transaction, to a savepoint, of a statement, in the background or by a
//! coordinator. What has to follow the rows of a table is entered here, and is told of each row that was taken back.
//!
//! **Invariants.** A row is taken back first, and then it is looked up who follows its table; a follower is entered
//! first, and looks at the rows then. Both have a sequentially consistent fence between the two steps, and one of
//! these is the first. If it is the rollback's, the follower finds the row as it was before; if it is the follower's,
//! it is told. A transaction that ends, has told all that it had to tell.
//!
//! **May touch.** `store`, `page`, `error`, `sync`, `read`.

use core::fmt;
use std::collections::BTreeMap;

use super::{Transactions, read};
use crate::{
    error::{Error, Result},
    ids::SpaceId,
    page::EntryHeader,
    store::Tree,
    sync::{
        Arc, Bug, Mutex, Rank,
        atomic::{
            AtomicUsize,
            Ordering::{Relaxed, SeqCst},
            fence,
        },
        planted,
    },
};

/// What follows the rows of a table.
pub trait Follower: Send + Sync + fmt::Debug {
    /// A row was taken back: the first bytes of its value before that and behind it, as index keys are made of;
    /// `None` where there is no such row.
    fn note(&self, row: &[u8], before: Option<&[u8]>, after: Option<&[u8]>);

    /// A row was taken back, and what it was cannot be read.
    fn lose_track(&self, error: Error);

    /// Whether it has been told of more than it should have.
    fn is_full(&self) -> bool;

    /// Waits until it is not.
    fn wait_for_room(&self);
}

/// The followers.
#[derive(Debug)]
pub struct Followers {
    count: AtomicUsize,
    /// By the clustered tree of their table: there is one index at a time that is added to it.
    by_table: Mutex<BTreeMap<SpaceId, Arc<dyn Follower>>>,
}

/// A follower that is entered, until this is dropped.
#[derive(Debug)]
#[must_use = "it follows as long as this is there"]
pub struct Following<'a> {
    followers: &'a Followers,
    table: SpaceId,
}

impl Drop for Following<'_> {
    fn drop(&mut self) {
        let mut by_table = self.followers.by_table.lock();
        let follower = by_table.remove(&self.table);
        self.followers.count.store(by_table.len(), SeqCst);
        drop(by_table);
        // What it was told of may be much, and is not freed under the lock.
        drop(follower);
    }
}

/// An entry of a row: its header, and its value as it is stored. None is there for a row that is not.
pub(super) type Version = Option<(EntryHeader, Vec<u8>)>;

impl Followers {
    pub(super) fn new() -> Self {
        Self { count: AtomicUsize::new(0), by_table: Mutex::new(Rank::Leaf, BTreeMap::new()) }
    }

    /// What follows a table. While there is none anywhere it is a fence and a load.
    pub(super) fn of(&self, table: SpaceId) -> Option<Arc<dyn Follower>> {
        fence(SeqCst);
        if self.count.load(Relaxed) == 0 { None } else { self.by_table.lock().get(&table).cloned() }
    }
}

impl Transactions {
    /// Enters what follows a table, by its clustered tree. Rows that it reads from now on are as they were taken
    /// back, or it is told.
    pub fn follow(&self, table: SpaceId, follower: Arc<dyn Follower>) -> Following<'_> {
        let followers = &self.followers;
        let mut by_table = followers.by_table.lock();
        let before = by_table.insert(table, follower);
        debug_assert!(before.is_none(), "a statement has the table's name to itself");
        followers.count.store(by_table.len(), SeqCst);
        drop(by_table);
        fence(SeqCst);
        Following { followers, table }
    }

    /// A row was taken back: what it was before that, and what it is since.
    pub(super) fn tell_taken_back(&self, tree: &Tree, key: &[u8], undone: Version, restored: Version) {
        let Some(follower) = self.followers.of(tree.space().id()).filter(|_| !planted(Bug::RollbackNotNoted))
        else {
            return;
        };
        // Of a long value that was taken back the chain stays until the transaction has ended. That of the restored one
        // may go as soon as another transaction has changed the row, which then is what counts.
        let undone = undone.map(|(header, mut value)| -> Result<Vec<u8>> {
            read::indexed_of(tree, header, &mut value)?;
            Ok(value)
        });
        let restored = restored.map(|(header, mut value)| -> Result<Option<Vec<u8>>> {
            Ok(read::resolve_indexed(tree, key, header, &mut value)?.then_some(value))
        });
        match (undone.transpose(), restored.transpose()) {
            (Ok(undone), Ok(restored)) => {
                follower.note(key, undone.as_deref(), restored.flatten().as_deref());
            }
            (Err(error), _) | (_, Err(error)) => follower.lose_track(error),
        }
    }
}
