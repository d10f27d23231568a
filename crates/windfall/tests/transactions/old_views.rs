//! What an old read view costs others: their calls do the same work however old it is.
//!
//! A call that walks the versions of a row, or a step of purge that walks the undo which the view keeps, would do more
//! work with each transaction since. The work of workers is part of that of the calls, because the simulation runs both
//! on one thread.

use std::{ops::Bound, sync::Arc};

use windfall::{
    Batch, Database, IndexBatch, IndexOptions, Isolation, OneRow, Options, Result, Seek, Table, TableOptions,
    Transaction,
    env::{Check, Env},
};
use windfall_base::sync::work::{Work, WorkCounts, so_far};
use windfall_sim::{SimulatedDisk, SimulatedEnv};

use super::{
    begin,
    changed_env::{Change, Changed},
};

const ROWS: u32 = 200;
/// The rows of a scan, and of a batch.
const SCANNED: usize = 20;
/// The calls of each kind that are counted.
const CALLS: u32 = 2_000;
/// The age of the young view, and that of the old one, in transactions.
const AGES: [u32; 2] = [2_000, 60_000];

/// The checks of invariants walk all that there is, which is no work of calls.
#[derive(Debug)]
struct WithoutChecks;

impl Change for WithoutChecks {
    fn at_yield_points(&self, _env: &dyn Env, _check: Check) {}
}

/// How the index keys of a row change with its updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keys {
    Stay,
    /// Between four keys, so that entries come back that were deleted.
    Alternate,
    /// Each update gives the row a key that no row has had.
    AreNew,
}

/// A number that differs for each row and change, in no order.
fn scattered(n: u32) -> u32 {
    let n = (n ^ n >> 16).wrapping_mul(0x7feb_352d);
    (n ^ n >> 15).wrapping_mul(0x846c_a68b)
}

/// A table whose rows are updated in turn, next to a view.
struct World {
    env: SimulatedEnv,
    db: Database,
    table: Table,
    keys: Keys,
    /// The updates until now.
    updates: u32,
    view: Transaction,
}

impl World {
    fn new(keys: Keys) -> Self {
        let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
        let options = Options::default()
            .page_size(16384)
            .buffer_pool_size(64 << 20)
            .log_size(64 << 20)
            .log_buffer_size(1 << 20);
        let unchecked = Changed { env: Arc::new(env.clone()), change: WithoutChecks };
        let db = Database::open_on(Arc::new(disk), Arc::new(unchecked), &options, &|_| {}).unwrap();
        let with_index = TableOptions::default().index("k", IndexOptions::on_value(0..8));
        let table = db.create_table("t", with_index).unwrap();
        let view = begin(&db, Isolation::RepeatableRead);
        let mut world = Self { env, db, table, keys, updates: 0, view };
        for n in 0..ROWS {
            world.table.insert(&n.to_be_bytes(), &world.value(n, 0)).unwrap();
        }
        assert!(world.view.table(&world.table).contains(&[0; 4]).unwrap());
        world.update(ROWS);
        world
    }

    /// The value of a row after this number of its updates: its index key and a number.
    fn value(&self, row: u32, round: u32) -> [u8; 24] {
        let key = match self.keys {
            Keys::Stay => u64::from(row),
            Keys::Alternate => u64::from(row) << 2 | u64::from(round % 4),
            Keys::AreNew => u64::from(scattered(row + round * ROWS)),
        };
        let mut value = [7; 24];
        value[..8].copy_from_slice(&key.to_be_bytes());
        value[8..12].copy_from_slice(&round.to_be_bytes());
        value
    }

    /// The current index key of a row.
    fn key(&self, row: u32) -> [u8; 8] {
        let round = self.updates / ROWS + u32::from(row < self.updates % ROWS);
        self.value(row, round)[..8].try_into().unwrap()
    }

    /// Updates this number of rows, each in a transaction of its own, half of them by a call alone.
    fn update(&mut self, updates: u32) {
        for _ in 0..updates {
            let (row, round) = (self.updates % ROWS, self.updates / ROWS + 1);
            let (key, value) = (row.to_be_bytes(), self.value(row, round));
            if self.updates.is_multiple_of(2) {
                self.table.update(&key, &value).unwrap();
            } else {
                let trx = begin(&self.db, Isolation::RepeatableRead);
                let within = trx.table(&self.table);
                assert!(within.get_for_update(&key).unwrap().is_some());
                within.update(&key, &value).unwrap();
                trx.commit().unwrap();
            }
            self.updates += 1;
            self.env.run_workers(2);
        }
    }

    /// Returns the work of updates, and that of each kind of read, outside of transactions and in one.
    fn work(&mut self) -> Vec<(&'static str, WorkCounts)> {
        let before = so_far();
        self.update(CALLS);
        let mut all = vec![("update", so_far() - before)];
        let trx = begin(&self.db, Isolation::RepeatableRead);
        let within = trx.table(&self.table);
        let mut count = |what, read: &mut dyn FnMut(u32) -> Result<()>| {
            let before = so_far();
            (0..CALLS).try_for_each(|n| read(n % (ROWS - SCANNED as u32))).unwrap();
            all.push((what, so_far() - before));
        };
        let mut value = Vec::new();
        count("point read", &mut |n| {
            self.table.get_into(&n.to_be_bytes(), &mut value).map(|found| assert!(found))
        });
        count("point read in a transaction", &mut |n| {
            within.get_into(&n.to_be_bytes(), &mut value).map(|found| assert!(found))
        });
        let (index, index_within) = (self.table.index("k").unwrap(), within.index("k").unwrap());
        let mut one = OneRow::default();
        count("index read", &mut |n| {
            index.get_one(&self.key(n), &mut one).map(|row| assert_eq!(row.unwrap().key, n.to_be_bytes()))
        });
        count("index read in a transaction", &mut |n| {
            index_within
                .get_one(&self.key(n), &mut one)
                .map(|row| assert_eq!(row.unwrap().key, n.to_be_bytes()))
        });
        let (mut cursor, mut batch) = (within.cursor().unwrap(), Batch::default());
        count("scan", &mut |n| {
            cursor.set_range((Bound::Included(n.to_be_bytes()), Bound::Unbounded));
            assert_eq!(cursor.next_batch_of(&mut batch, SCANNED)?, SCANNED);
            Ok(())
        });
        // A range of an index has the entries of rows that have left it: a read passes over those that a view keeps.
        if self.keys != Keys::AreNew {
            let (mut cursor, mut batch) = (index_within.cursor().unwrap(), IndexBatch::default());
            count("index scan", &mut |n| {
                assert!(cursor.seek(Seek::AtLeast(&self.key(n)))?);
                assert_eq!(cursor.next_batch_of(&mut batch, SCANNED)?, SCANNED);
                Ok(())
            });
        }
        all
    }
}

/// The most work next to an old view, given that next to a young one. Splits and the rounds of workers vary a little.
fn bound(kind: Work, young: u64) -> u64 {
    match kind {
        // The cleaner walks the dirty pages. Index keys that are new are on more of them in a larger index: one more
        // for each update, at most.
        Work::ListEntry => young + u64::from(CALLS),
        _ => young + young / 20 + 10,
    }
}

#[test]
fn calls_next_to_a_view_do_the_same_work_however_old_it_is() {
    for keys in [Keys::Stay, Keys::Alternate, Keys::AreNew] {
        let mut world = World::new(keys);
        let [(height, young), (height_then, old)] = AGES.map(|age| {
            world.update(age - world.updates);
            assert!(world.db.metrics().oldest_view >= u64::from(age), "the view is not that old");
            let work = world.work();
            (world.table.index("k").unwrap().height().unwrap(), work)
        });
        assert_eq!(height, height_then, "a descent in the index is longer, whatever the age of the view");
        for ((what, young), (_, old)) in young.into_iter().zip(old) {
            for kind in [Work::Frame, Work::Latch, Work::ListEntry, Work::Lock, Work::Read] {
                let [young, old] = [young, old].map(|counts| counts.of(kind));
                assert!(
                    old <= bound(kind, young),
                    "{what}, index keys: {keys:?}, {kind:?}: {old} next to an old view, {young} next to a young one"
                );
            }
        }
        // The view still sees what it has seen first.
        let seen = world.view.table(&world.table).get(&[0; 4]).unwrap();
        assert_eq!(seen.as_deref(), Some(&world.value(0, 0)[..]));
    }
}
