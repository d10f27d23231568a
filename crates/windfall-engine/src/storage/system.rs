//! The system tree: the metadata of the database.
//!
//! **Purpose.** Keys and values in the tablespace [`SpaceId::SYSTEM`], for the layers above: tables, undo slices,
//! files.
//!
//! **Invariants.** A change of records is atomic: changes are redo-only and belong to one group of the log, whatever
//! their number (test: `batched_changes_of_records_match_a_map`). Several records are changed under the latches of all
//! their leaves (checked by `storage/system.rs::change_with`). The leaves are latched in key order (checked by
//! `storage/system.rs::change_with`), and no record changes before every leaf was seen to have room (checked by
//! `storage/mtr.rs::unlatch`). A mutex excludes merges while a writer latches its leaves, because a merge holds the
//! inner node on the path to the next leaf, and would wait for the leaf that the writer holds already (test:
//! `a_merge_waits_for_the_writer_of_the_tree`).
//!
//! **Locks of a drop.** The writer mutex until the drop has latched its leaves, and the leaves until its group is in
//! the log buffer. Meanwhile a drop may wait for a page that is not in memory and for room in the log buffer. It never
//! waits for the log to be written or synced, nor for a thread outside this tree. Readers take neither the mutex nor
//! these latches. Besides statements and background workers, only a writer that must make its own undo slice waits for
//! the drop. The purge worker makes slices ahead to avoid that. Mutex and latches are marked for the count of waits on
//! drops ([`DropMark`](crate::sync::drop_mark::DropMark)).
//!
//! # Keys
//!
//! | first byte | the rest | value |
//! | --- | --- | --- |
//! | `t` | a table's name | the table's record, see `catalog` |
//! | `u` | stream (1 byte), slice (8 bytes, big-endian) | the slice's tablespace, 8 bytes |
//! | `f` | tablespace (8 bytes, big-endian) | empty: its file was made |

use crossbeam_queue::{ArrayQueue, SegQueue};
use smallvec::SmallVec;

use crate::{
    buffer::BufferPool,
    error::{CorruptError, Error, Owner, Result},
    ids::SpaceId,
    memory,
    mtr::Mtr,
    page::EntryHeader,
    store::Tree,
    sync::{Arc, Mutex, Rank},
    tree::{
        Adjacent, Located, PendingMerges, Room, Seek,
        hash::{HashBudget, TreeHash},
    },
};

/// The first byte of table records.
pub const TABLE: u8 = b't';
/// The first byte of undo slice records.
pub(crate) const UNDO: u8 = b'u';
/// The first byte of file records.
pub const FILE: u8 = b'f';

/// The header of records: every reader sees them.
const HEADER: EntryHeader = EntryHeader::UNVERSIONED;

/// The maximum number of log bytes of a record's change, besides its key and value.
const CHANGE: usize = 48;
/// The maximum number of log bytes of a record's removal: the page and the slot.
const REMOVAL: usize = 16;
/// The bytes of a record in a leaf besides its key and value, rounded up.
const ENTRY: usize = 48;
/// The bytes by which the length of a value can grow with the value.
const LENGTH_FIELD: usize = 2;

/// The capacity of the queue for changes that leave one sparse leaf.
const SINGLE: usize = 256;

/// The nodes that one step considers for a merge.
const NODES_PER_STEP: usize = 16;

/// The positions of changes: usually there is one.
type Places<'k> = SmallVec<[Located<'k, BufferPool>; 1]>;

/// The length of the longest key that takes no memory elsewhere.
pub const KEY_ON_STACK: usize = 64;

/// A key. Most are short.
pub type Key = SmallVec<[u8; KEY_ON_STACK]>;

/// A change of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    key: Key,
    /// The new value; `None` removes the record.
    value: Option<Vec<u8>>,
}

impl Change {
    /// Creates a change that inserts a record or replaces the existing one.
    pub fn put(key: impl Into<Key>, value: Vec<u8>) -> Self {
        Self { key: key.into(), value: Some(value) }
    }

    /// Returns the maximum number of log bytes that the change can take.
    pub fn log_bytes(&self) -> usize {
        self.value.as_ref().map_or(REMOVAL, |value| CHANGE + self.key.len() + value.len())
    }

    /// Creates a change that removes a record, if it exists.
    pub fn remove(key: impl Into<Key>) -> Self {
        Self { key: key.into(), value: None }
    }
}

const _: () = assert!(memory::queue_block_is_small::<Vec<Key>>());

/// The system tree.
#[derive(Debug)]
pub struct SystemTree {
    tree: Tree,
    /// Serializes the writers: no leaves may be merged while a change has some of them latched.
    writing: Mutex<()>,
    /// Leaves that removals have left nearly empty: the change itself does not merge them.
    sparse: SparseLeaves,
}

/// Keys of leaves that changes have left nearly empty, one for each leaf of a change.
#[derive(Debug)]
struct SparseLeaves {
    /// Keys of changes with one such leaf. A push requests no memory, so the drop of a table requests none for it.
    single: ArrayQueue<Key>,
    /// Keys of changes with several such leaves, and of others while `single` is full.
    several: SegQueue<Vec<Key>>,
}

impl Default for SparseLeaves {
    fn default() -> Self {
        Self { single: ArrayQueue::new(SINGLE), several: SegQueue::new() }
    }
}

impl SparseLeaves {
    fn push(&self, mut keys: SmallVec<[Key; 1]>) {
        let keys = match (keys.len(), keys.pop()) {
            (1, Some(key)) => match self.single.push(key) {
                Ok(()) => return,
                Err(key) => vec![key],
            },
            (_, Some(last)) => keys.into_iter().chain([last]).collect(),
            (_, None) => return,
        };
        self.several.push(keys);
    }

    /// Moves the recorded leaves to the pending merges: all single leaves, so that the queue does not fill up while a
    /// large group is being merged, and those of one change with several.
    fn move_to(&self, pending: &mut PendingMerges) {
        let several = if pending.is_empty() { self.several.pop() } else { None };
        several.iter().flatten().for_each(|key| pending.push_leaf(key.to_vec()));
        core::iter::from_fn(|| self.single.pop()).for_each(|key| pending.push_leaf(key.to_vec()));
    }
}

impl SystemTree {
    /// Returns the system tree in its tablespace, which must be in the pool's directory.
    pub fn new(pool: Arc<BufferPool>, budget: Arc<HashBudget>) -> Self {
        let space =
            pool.space(SpaceId::SYSTEM).expect("the system tablespace is attached before anything else");
        Self {
            tree: Tree::new(pool, space, TreeHash::new(budget)),
            writing: Mutex::new(Rank::System, ()),
            sparse: SparseLeaves::default(),
        }
    }

    /// Returns the tree, for checks.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Returns the error for a damaged record in this tree.
    pub fn damaged(&self, what: &str) -> Error {
        CorruptError::Structure { owner: Owner::Unknown, space: SpaceId::SYSTEM, what: what.into() }.into()
    }

    /// Returns a record's value.
    ///
    /// # Errors
    /// Damage, I/O.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        Ok(self.tree.get_into(key, &mut value)?.map(|_| value))
    }

    /// Visits the records with keys that begin with `prefix`, in key order, until `visit` returns false.
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

    /// Returns the maximum number of records that one change may put, each with `length` bytes of key and value
    /// together.
    pub(crate) fn most_puts(&self, length: usize) -> usize {
        self.tree.inline_limit() / (length + ENTRY)
    }

    /// Changes records within `mtr`, which must hold no page yet. No key may occur twice. Sorts the changes by key, and
    /// moves some keys out: on success, the changes must not be used again.
    ///
    /// # Errors
    /// Damage, I/O; a record that is too long, more leaves than the pool can hold. Nothing was changed then.
    pub fn change(&self, mtr: &mut Mtr<'_>, changes: &mut [Change]) -> Result<()> {
        self.change_with(mtr, changes, |_| Ok(()))
    }

    /// As [`SystemTree::change`], and calls `also` when nothing of it can fail any more and nothing has changed, to
    /// change pages of other trees in the same mini-transaction.
    ///
    /// # Errors
    /// As [`SystemTree::change`]; that of `also`.
    pub fn change_with(
        &self,
        mtr: &mut Mtr<'_>,
        changes: &mut [Change],
        also: impl FnOnce(&mut Mtr<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut values = changes.iter().filter_map(|change| change.value.as_ref());
        values.try_for_each(|value| self.tree.check_inline(value.len()))?;
        debug_assert!(
            mtr.latched(SpaceId::SYSTEM).next().is_none(),
            "a mini-transaction has latched pages of the system tree before its change"
        );
        let _turn = self.writing.lock();
        changes.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        debug_assert!(
            changes.windows(2).all(|pair| pair[0].key < pair[1].key),
            "a record is changed twice by one change"
        );
        let mut places = Places::with_capacity(changes.len());
        while !self.locate(mtr, changes, &mut places)? {
            places.clear();
        }
        assert!(places.len() == changes.len(), "{} places for {} changes", places.len(), changes.len());
        also(mtr)?;
        let logged = mtr.logged();
        // From the last to the first: a change moves only the slots after it.
        let (mut sparse, mut noted) = (SmallVec::<[usize; 1]>::new(), None);
        for (at, change) in changes.iter().enumerate().rev() {
            let mut place = places.pop().expect("one for each change");
            let leaf = place.leaf();
            match (&change.value, place.header()) {
                (Some(value), Some(_)) => {
                    place.replace(mtr, HEADER, value);
                }
                (Some(value), None) => place.insert(mtr, HEADER, value),
                (None, Some(_)) => {
                    if place.remove(mtr) && noted != Some(leaf) {
                        noted = Some(leaf);
                        sparse.push(at);
                    }
                }
                (None, None) => {}
            }
        }
        drop(places);
        debug_assert!(
            mtr.logged() - logged <= changes.iter().map(Change::log_bytes).sum(),
            "the changes take more of the log than was reserved for them"
        );
        if !sparse.is_empty() {
            self.sparse.push(sparse.into_iter().map(|at| core::mem::take(&mut changes[at].key)).collect());
        }
        Ok(())
    }

    /// Latches the leaves of all changes in key order, each with room for everything that is put into it, and adds the
    /// places. Returns `false` when a leaf had too little room and was split instead.
    fn locate<'k>(&self, mtr: &mut Mtr<'_>, changes: &'k [Change], places: &mut Places<'k>) -> Result<bool> {
        // The bytes that the changes so far add to the leaf of the last position.
        let mut put = 0;
        for change in changes {
            let value = change.value.as_ref().map(Vec::len);
            let room = |put| value.map_or(Room::Keep, |value| Room::Value(put + value));
            let adjacent = match places.last() {
                Some(last) => self.tree.seek_adjacent(mtr, last, &change.key, room(put))?,
                None => None,
            };
            match adjacent {
                Some(Adjacent::Place(place)) => places.push(place),
                Some(Adjacent::NoRoom) => {
                    mtr.unlatch_all();
                    self.tree.make_room(&change.key, room(put))?;
                    return Ok(false);
                }
                None => {
                    mtr.check_may_latch()?;
                    places.push(self.tree.seek_for_change(mtr, &change.key, room(0))?);
                    put = 0;
                }
            }
            let Some(value) = value else { continue };
            put += match places.last().and_then(|place| place.value_len(mtr)) {
                None => value + change.key.len() + ENTRY,
                // The present record makes room for its replacement, so a truncation of many tables splits no leaves.
                Some(present) if value > present => value - present + LENGTH_FIELD,
                Some(_) => 0,
            };
        }
        Ok(true)
    }

    /// Runs `run` while no thread changes the tree.
    pub fn with_writers_excluded<T>(&self, run: impl FnOnce(&Tree) -> T) -> T {
        let _turn = self.writing.lock();
        run(&self.tree)
    }

    /// Considers a few nodes that removals have left nearly empty, and merges at most one pair of nodes: a statement
    /// that changes the tree meanwhile waits for one merge, however many are pending. Returns whether there may be more
    /// to merge.
    ///
    /// # Errors
    /// Damage, I/O. The node at fault is considered again after the next removal from its leaf.
    pub(crate) fn tidy_step(&self, pending: &mut PendingMerges) -> Result<bool> {
        for _ in 0..NODES_PER_STEP {
            self.sparse.move_to(pending);
            if pending.is_empty() {
                return Ok(false);
            }
            let _turn = self.writing.lock();
            if self.tree.maintain_step(pending)? {
                break;
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use windfall_sim::{SimulatedDisk, SimulatedEnv};

    use super::*;
    use crate::{
        engine::{
            Engine,
            test_engine::{self, check_system_tree},
        },
        env::Env,
        options::Options,
    };

    fn open(disk: &SimulatedDisk, env: Arc<dyn Env>) -> Engine {
        let options = Options::default().page_size(4096).buffer_pool_size(256 * 4096).log_size(4 << 20);
        test_engine::open(disk, env, &options)
    }

    fn change(engine: &Engine, changes: &mut [Change]) -> Result<()> {
        let _room = engine.log.admit(256 << 10)?;
        let mut mtr = Mtr::begin(&engine.pool)?;
        engine.system.change(&mut mtr, changes)?;
        mtr.commit().map(drop)
    }

    /// Merges all that can be merged, a step at a time. Returns the most pages that one step has freed.
    fn tidy(engine: &Engine, mut pending: PendingMerges) -> usize {
        let (system, mut most) = (&engine.system, 0);
        let pages = || system.tree().check().unwrap().pages.len();
        let mut before = pages();
        while system.tidy_step(&mut pending).unwrap() {
            let after = pages();
            most = most.max(before - after);
            before = after;
        }
        most
    }

    fn key(n: u64) -> Vec<u8> {
        format!("x{n:03}").into_bytes()
    }

    #[test]
    fn batched_changes_of_records_match_a_map() {
        let disk = SimulatedDisk::new(3);
        let engine = open(&disk, Arc::new(SimulatedEnv::new(3)));
        let chance = SimulatedEnv::new(7);
        let limit = engine.system.tree().inline_limit() as u64;
        let mut model = BTreeMap::new();
        for _ in 0..400 {
            let mut batch = BTreeMap::new();
            for _ in 0..=chance.random() % 6 {
                // Some are as long as a record can be, and several of them meet in one leaf.
                let length = if chance.random().is_multiple_of(3) { limit } else { chance.random() % 200 };
                let value = (!chance.random().is_multiple_of(3))
                    .then(|| vec![chance.random() as u8; length as usize]);
                batch.insert(key(chance.random() % 60), value);
            }
            // At most two long ones: a leaf must hold everything that is put into it.
            let long = batch.values().flatten().filter(|value| value.len() > 200).count();
            if long > 2 {
                continue;
            }
            let mut changes: Vec<Change> = batch
                .iter()
                .rev()
                .map(|(key, value)| match value {
                    Some(value) => Change::put(key.clone(), value.clone()),
                    None => Change::remove(key.clone()),
                })
                .collect();
            change(&engine, &mut changes).unwrap();
            for (key, value) in batch {
                match value {
                    Some(value) => drop(model.insert(key, value)),
                    None => drop(model.remove(&key)),
                }
            }
            if chance.random().is_multiple_of(8) {
                tidy(&engine, PendingMerges::default());
            }
        }
        let look = |engine: &Engine| {
            let mut found = BTreeMap::new();
            engine
                .system
                .scan(b"x", &mut |key, value| {
                    found.insert(key.to_vec(), value.to_vec());
                    true
                })
                .unwrap();
            found
        };
        assert!(look(&engine) == model && !model.is_empty());
        let (first, value) = model.first_key_value().unwrap();
        assert_eq!(engine.system.get(first).unwrap().as_ref(), Some(value));
        assert_eq!(engine.system.get(b"x none").unwrap(), None);
        check_system_tree(&engine);

        // A record that is too long changes nothing, whatever other changes come with it.
        let mut changes = [
            Change::put(key(1), b"changed".to_vec()),
            Change::put(key(2), vec![0; limit as usize + 1]),
            Change::remove(first.clone()),
        ];
        let error = change(&engine, &mut changes).unwrap_err();
        assert!(error.to_string().contains("bytes"), "{error}");
        assert!(look(&engine) == model);
        engine.close().unwrap();
        assert!(look(&open(&disk, Arc::new(SimulatedEnv::new(4)))) == model);
    }

    #[test]
    fn every_noted_leaf_becomes_pending() {
        let sparse = SparseLeaves::default();
        let (singles, groups) = (SINGLE + 20, 3);
        (0..singles).for_each(|n| sparse.push([key(n as u64).into()].into_iter().collect()));
        (0..groups).for_each(|n| sparse.push([key(n).into(), key(n + 1).into()].into_iter().collect()));
        sparse.push(SmallVec::new());
        let mut pending = PendingMerges::default();
        sparse.move_to(&mut pending);
        assert!(
            pending.len() > SINGLE && sparse.single.is_empty(),
            "the queue of single leaves has room again"
        );
        let mut moved = pending.len();
        while !sparse.several.is_empty() {
            pending = PendingMerges::default();
            sparse.move_to(&mut pending);
            moved += pending.len();
        }
        assert_eq!(moved, singles + 2 * groups as usize);
    }

    #[test]
    fn leaves_that_a_change_has_emptied_are_noted_once_and_merged_one_at_a_time() {
        let engine = open(&SimulatedDisk::new(2), Arc::new(SimulatedEnv::new(2)));
        let (records, a_put) = (300, 20);
        for from in (0..records).step_by(a_put) {
            let put = |n| Change::put(key(n), vec![0; 100]);
            change(&engine, &mut (from..from + a_put as u64).map(put).collect::<Vec<_>>()).unwrap();
        }
        let system = &engine.system;
        tidy(&engine, PendingMerges::default());
        let mut changes: Vec<Change> = (1..records).map(|n| Change::remove(key(n))).collect();
        change(&engine, &mut changes).unwrap();
        // A record takes 128 bytes in its leaf, and leaves are at least half full.
        let leaves = records as usize * 128 / (4096 / 2);
        let mut pending = PendingMerges::default();
        system.sparse.move_to(&mut pending);
        let noted = pending.len();
        assert!((2..=leaves).contains(&noted), "{noted} keys of at most {leaves} leaves");
        assert_eq!(tidy(&engine, pending), 1, "a statement waits for as many merges as one step makes");
        check_system_tree(&engine);
    }

    /// A thread that waits for a lock that it holds itself violates the lock order.
    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "lock order: System taken while System is held")]
    fn a_merge_waits_for_the_writer_of_the_tree() {
        let engine = open(&SimulatedDisk::new(1), Arc::new(SimulatedEnv::new(1)));
        let mut pending = PendingMerges::default();
        pending.push_leaf(key(1));
        let _ = engine.system.with_writers_excluded(|_| engine.system.tidy_step(&mut pending));
    }

    #[test]
    fn a_scan_ends_when_its_visitor_stops_it() {
        let engine = open(&SimulatedDisk::new(1), Arc::new(SimulatedEnv::new(1)));
        let mut changes: Vec<Change> = (0..9).map(|n| Change::put(key(n), vec![n as u8])).collect();
        assert!(changes[0].log_bytes() > Change::remove(key(0)).log_bytes());
        change(&engine, &mut changes).unwrap();
        let mut seen = Vec::new();
        engine
            .system
            .scan(b"x", &mut |_, value| {
                seen.push(value[0]);
                value[0] < 4
            })
            .unwrap();
        assert_eq!(seen, [0, 1, 2, 3, 4]);
    }

    /// The writer mutex and the leaf latches are two things to wait for, and waits for both are counted.
    #[test]
    #[cfg(feature = "drop-waits")]
    fn a_wait_for_a_latch_that_a_drop_holds_is_counted() {
        use std::thread;

        use crate::env::RealEnv;
        use crate::sync::{
            Event,
            atomic::{AtomicBool, Ordering::SeqCst},
            drop_mark, work,
        };

        let disk = SimulatedDisk::new(1);
        let engine = open(&disk, Arc::new(RealEnv::default()));
        change(&engine, &mut [Change::put(key(0), vec![0])]).unwrap();
        for holds_turn in [true, false] {
            let (holding, event) = (AtomicBool::new(false), Event::new());
            let before = drop_mark::waits_on_drops();
            let counted = || drop_mark::waits_on_drops() > before;
            thread::scope(|scope| {
                scope.spawn(|| {
                    work::in_drop(|| {
                        let system = &engine.system;
                        let hold = || {
                            holding.store(true, SeqCst);
                            event.notify();
                            let limit = core::time::Duration::from_secs(20);
                            assert!(event.wait_for(limit, counted), "the wait is not counted");
                        };
                        if holds_turn {
                            return system.with_writers_excluded(|_| hold());
                        }
                        let mut mtr = Mtr::begin(&engine.pool).unwrap();
                        system.change(&mut mtr, &mut [Change::put(key(1), vec![1])]).unwrap();
                        hold();
                        mtr.commit().unwrap();
                    })
                });
                event.wait(|| holding.load(SeqCst));
                let waiter = scope.spawn(|| change(&engine, &mut [Change::put(key(2), vec![2])]));
                while !waiter.is_finished() {
                    event.notify();
                    thread::yield_now();
                }
                waiter.join().unwrap().unwrap();
            });
            assert!(counted());
        }
    }
}
