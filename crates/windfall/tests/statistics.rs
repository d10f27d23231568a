//! The statistics for the plan of a query: numbers of rows, pages and levels.

#![allow(clippy::unwrap_used, reason = "a test panics")]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
};

use rand::{Rng, SeedableRng, rngs::SmallRng};
use windfall::{
    Database, Error, IndexOptions, Options, Table, TableOptions, TransactionOptions, Work, work_so_far,
};
use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

mod common;
use common::{key, new_database};

fn options() -> Options {
    Options::default().page_size(4096).buffer_pool_size(8 << 20)
}

fn open(disk: &SimulatedDisk, env: &SimulatedEnv) -> Database {
    Database::open_on(Arc::new(disk.clone()), Arc::new(env.clone()), &options(), &|_| {}).unwrap()
}

/// Opens the database again: after a crash, or after a close.
fn reopened(disk: &SimulatedDisk, db: Database, crashes: bool) -> (SimulatedDisk, Database) {
    if crashes {
        disk.crash();
        drop(db);
    } else {
        db.close().unwrap();
    }
    opened_again(if crashes { disk.restart(Survive::Everything) } else { disk.next_process() })
}

/// Opens the database on a disk that another process has left, and lets the rollbacks end.
fn opened_again(disk: SimulatedDisk) -> (SimulatedDisk, Database) {
    let env = SimulatedEnv::new(2);
    let db = open(&disk, &env);
    env.run_workers(2_000);
    assert_eq!(db.metrics().rollbacks_pending, 0);
    (disk, db)
}

fn counted(table: &Table) -> u64 {
    table.rows().unwrap().count() as u64
}

/// A model of a table, and the calls that change both.
struct Rows {
    db: Database,
    table: Table,
    model: BTreeMap<u32, u8>,
    random: SmallRng,
}

impl Rows {
    /// Makes one call of any kind, alone or in a transaction, which may fail.
    fn change(&mut self, trx: Option<&windfall::Transaction>) {
        let (n, first) = (self.random.random_range(0..60), self.random.random_range(0..40));
        let value = vec![first; [5, 40, 9_000][self.random.random_range(0..3)]];
        let kind = self.random.random_range(0..4);
        let is_taken = self.model.iter().any(|(other, taken)| *other != n && *taken == first);
        let exists = self.model.contains_key(&n);
        let done = match trx {
            Some(trx) => apply(&trx.table(&self.table), kind, n, &value),
            None => apply(&self.table, kind, n, &value),
        };
        let expected = match kind {
            0 => !exists && !is_taken,
            1 => !is_taken,
            2 => exists && !is_taken,
            _ => true,
        };
        assert_eq!(done.is_ok(), expected, "{kind} of {n}: {done:?}");
        match (kind, expected) {
            (_, false) => {}
            (3, true) => drop(self.model.remove(&n)),
            (_, true) => drop(self.model.insert(n, first)),
        }
    }

    fn step(&mut self) {
        match self.random.random_range(0..20) {
            0 => {
                self.db.truncate_table("t").unwrap();
                self.model.clear();
            }
            1..=4 => self.transaction(),
            _ => self.change(None),
        }
        assert_eq!(self.table.row_count().unwrap(), self.model.len() as u64);
    }

    /// A transaction of several calls, of which some or all are rolled back.
    fn transaction(&mut self) {
        let trx = self.db.begin(TransactionOptions::default());
        let before = self.model.clone();
        self.change(Some(&trx));
        trx.savepoint("s").unwrap();
        let within = self.model.clone();
        (0..3).for_each(|_| self.change(Some(&trx)));
        assert_eq!(self.table.row_count().unwrap(), self.model.len() as u64, "uncommitted rows count");
        if self.random.random() {
            trx.rollback_to("s").unwrap();
            self.model = within;
            assert_eq!(self.table.row_count().unwrap(), self.model.len() as u64);
        }
        if self.random.random() {
            trx.rollback().unwrap();
            self.model = before;
        } else {
            trx.commit().unwrap();
        }
    }
}

fn apply<A: windfall::Access>(table: &Table<A>, kind: u32, n: u32, value: &[u8]) -> Result<(), Error> {
    match kind {
        0 => table.insert(&key(n), value),
        1 => table.put(&key(n), value),
        2 => table.update(&key(n), value),
        _ => table.delete(&key(n)).map(drop),
    }
}

#[test]
fn the_number_of_rows_follows_every_change() {
    for seed in 0..8 {
        let (disk, env) = (SimulatedDisk::new(seed), SimulatedEnv::new(seed));
        let db = open(&disk, &env);
        let unique = IndexOptions::on_value(0..1).unique();
        let table = db.create_table("t", TableOptions::default().index("first", unique)).unwrap();
        let random = SmallRng::seed_from_u64(seed);
        let mut rows = Rows { db, table, model: BTreeMap::new(), random };
        for _ in 0..400 {
            rows.step();
            env.run_workers(1);
        }
        let Rows { db, table, model, .. } = rows;
        drop(table);
        let (_disk, db) = reopened(&disk, db, seed % 2 == 0);
        assert_eq!(db.table("t").unwrap().row_count().unwrap(), model.len() as u64);
    }
}

/// Rows of a table that is so large that it is not counted.
const LARGE: u32 = 40_000;

#[test]
fn a_close_keeps_the_number_of_rows() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = open(&disk, &env);
    let rows = (0..LARGE).map(|n| Ok((key(n).to_vec(), vec![1; 20])));
    let table = db.create_table_from("t", TableOptions::default(), rows).unwrap();
    assert_eq!(table.row_count().unwrap(), u64::from(LARGE));
    (0..7).for_each(|n| assert!(table.delete(&key(n)).unwrap()));
    table.insert(&key(LARGE), b"new").unwrap();
    drop(table);
    let (_disk, db) = reopened(&disk, db, false);
    assert_eq!(db.table("t").unwrap().row_count().unwrap(), u64::from(LARGE) - 6);
}

#[test]
fn a_crash_loses_few_changes_of_the_number_of_rows() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = open(&disk, &env);
    let rows = (0..LARGE).map(|n| Ok((key(n).to_vec(), vec![1; 20])));
    let table = db.create_table_from("t", TableOptions::default(), rows).unwrap();
    let mut crashed = Vec::new();
    // A crash at the next operation on the disk, now and then.
    let crash_soon = |n: u32| {
        let next = disk.operations() + 1;
        let taken = disk.take_crash_points();
        if n.is_multiple_of(499) {
            disk.record_crash_points(next..=next);
        }
        taken
    };
    for n in LARGE..LARGE + 2_000 {
        crashed.extend(crash_soon(n));
        table.insert(&key(n), &[1; 20]).unwrap();
        env.run_workers(1);
    }
    // These are rolled back after the crash.
    let trx = db.begin(TransactionOptions::default());
    let within = trx.table(&table);
    for n in 0..3_000 {
        crashed.extend(crash_soon(n));
        assert!(within.delete(&key(n)).unwrap());
        env.run_workers(1);
    }
    assert_eq!(table.row_count().unwrap(), u64::from(LARGE) - 1_000);
    db.checkpoint().unwrap();
    crashed.extend(crash_soon(1));
    drop((within, table));
    core::mem::forget(trx);
    let (_disk, db) = reopened(&disk, db, true);
    assert_eq!(assert_nearly_counted(&db), u64::from(LARGE) + 2_000);
    assert!(crashed.len() >= 8, "{} crash points", crashed.len());
    let mut states = BTreeSet::new();
    for (n, (_, disk)) in crashed.into_iter().enumerate() {
        let survive = if n % 2 == 0 { Survive::Everything } else { Survive::Random(n as u64) };
        let (_disk, db) = opened_again(disk.restart(survive));
        states.insert(assert_nearly_counted(&db));
    }
    assert!(states.len() >= 4, "the crashes leave {states:?} rows");
}

/// Asserts that the number of rows of the table is nearly that which a scan finds, and returns the latter.
fn assert_nearly_counted(db: &Database) -> u64 {
    let table = db.table("t").unwrap();
    let (found, rows) = (table.row_count().unwrap(), counted(&table));
    assert!(found.abs_diff(rows) <= rows / 512, "{found} instead of {rows} rows");
    rows
}

#[test]
fn a_small_table_is_counted_after_a_crash() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = open(&disk, &env);
    let table = db.create_table("t", TableOptions::default()).unwrap();
    (0..15).for_each(|n| table.insert(&key(n), b"v").unwrap());
    drop(table);
    let (_disk, db) = reopened(&disk, db, true);
    let table = db.table("t").unwrap();
    table.insert(&key(90), b"v").unwrap();
    assert_eq!(table.row_count().unwrap(), 16, "fewer than a stripe holds were never in the header");
    assert!(table.delete(&key(90)).unwrap());
    assert_eq!(table.row_count().unwrap(), 15);
}

#[test]
fn changes_during_counts_leave_a_small_error() {
    let (folder, mut db) = new_database(options()).unwrap();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    (0..2_000).for_each(|n| table.insert(&key(n), b"v").unwrap());
    drop(table);
    for round in 1..=6 {
        // The first question after an opening counts the rows.
        db.close().unwrap();
        db = Database::open(folder.path(), options()).unwrap();
        let table = db.table("t").unwrap();
        let (is_over, begun) = (AtomicBool::new(false), Barrier::new(4));
        thread::scope(|scope| {
            for first in [1 << 29, 1 << 30] {
                let (table, is_over, begun) = (&table, &is_over, &begun);
                scope.spawn(move || {
                    table.put(&key(first), b"v").unwrap();
                    begun.wait();
                    for n in (1..200).cycle().take_while(|_| !is_over.load(SeqCst)) {
                        table.put(&key(first + round * 200 + n), b"v").unwrap();
                        table.delete(&key(first + round * 200 + n - 1)).unwrap();
                    }
                });
            }
            let counters = [(); 2].map(|()| {
                scope.spawn(|| {
                    begun.wait();
                    (0..4).map(|_| table.row_count().unwrap()).max()
                })
            });
            let found = counters.map(|counter| counter.join().unwrap());
            is_over.store(true, SeqCst);
            assert!(found.iter().all(|found| *found >= Some(2_000)), "{found:?}");
        });
        // The writers have few rows at a time.
        let (found, rows) = (table.row_count().unwrap(), counted(&table));
        assert!(found.abs_diff(rows) <= 400, "{found} instead of {rows} rows in round {round}");
    }
}

#[test]
fn rows_are_counted_during_truncations() {
    let (_folder, db) = new_database(options()).unwrap();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let counter = scope.spawn(|| {
            let mut most = 0;
            while !is_over.load(SeqCst) {
                most = most.max(table.row_count().unwrap());
            }
            most
        });
        for _ in 0..100 {
            (0..20).for_each(|n| table.insert(&key(n), b"v").unwrap());
            db.truncate_table("t").unwrap();
        }
        is_over.store(true, SeqCst);
        assert!(counter.join().unwrap() <= 20);
    });
    assert_eq!(table.row_count().unwrap(), 0);
}

#[test]
fn pages_and_levels_are_those_of_the_trees() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = open(&disk, &env);
    let by_first = TableOptions::default().index("first", IndexOptions::on_value(0..1));
    let table = db.create_table("t", by_first).unwrap();
    let index = table.index("first").unwrap();
    assert_eq!([table.pages().unwrap(), index.pages().unwrap()], [0, 0]);
    assert_eq!([table.height().unwrap(), index.height().unwrap()], [0, 0]);
    table.insert(&key(0), &[1; 20]).unwrap();
    // The allocation map and the root.
    assert_eq!([table.pages().unwrap(), index.pages().unwrap()], [2, 2]);
    assert_eq!([table.height().unwrap(), index.height().unwrap()], [1, 1]);
    table.insert(&key(1), &vec![1; 40_000]).unwrap();
    let chain = 40_000_u64.div_ceil(4096 - 48);
    assert_eq!([table.pages().unwrap(), index.pages().unwrap()], [2 + chain, 2]);
    (2..1_000).for_each(|n| table.insert(&key(n), &[1; 200]).unwrap());
    assert!(table.pages().unwrap() >= 2 + chain + 998 * 200 / 4096, "{}", table.pages().unwrap());
    assert!(index.pages().unwrap() < table.pages().unwrap());
    assert_eq!(table.height().unwrap(), 2);
    db.checkpoint().unwrap();
    db.drop_table("t").unwrap();
    for gone in [table.pages().unwrap_err(), index.pages().unwrap_err(), table.row_count().unwrap_err()] {
        assert!(matches!(gone, Error::TableDropped(_)), "{gone:?}");
    }
}

#[test]
fn a_table_has_the_information_that_the_list_has() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = open(&disk, &env);
    let by_first = TableOptions::default().index("first", IndexOptions::on_value(0..1));
    let table = db.create_table("t", by_first).unwrap();
    db.create_table("t and more", TableOptions::default()).unwrap();
    let is_listed = || {
        let listed = db.tables_with_prefix("t").unwrap().swap_remove(0);
        assert_eq!(table.info().unwrap(), listed);
        listed
    };
    assert_eq!((is_listed().resident_pages, is_listed().file_bytes), (0, 0));
    (0..100).for_each(|n| table.insert(&key(n), &[1; 500]).unwrap());
    assert!(is_listed().dirty_pages > 10);
    db.checkpoint().unwrap();
    let info = is_listed();
    assert!(info.dirty_pages == 0 && info.file_bytes > 50_000 && info.indexes == ["first"], "{info:?}");
    let trx = db.begin(TransactionOptions::default());
    assert_eq!(trx.table(&table).info().unwrap(), info);
    let temporary = db.create_temporary_table("temporary", TableOptions::default()).unwrap();
    temporary.insert(b"key", b"value").unwrap();
    let info = temporary.info().unwrap();
    assert_eq!((&*info.name, info.resident_pages, info.file_bytes), ("temporary", 2, 0));
    db.drop_table("t").unwrap();
    assert!(matches!(table.info().unwrap_err(), Error::TableDropped(_)));
}

/// The number follows every change, and is counted again after an opening.
#[test]
fn the_number_of_pages_is_exact_after_a_crash() {
    for seed in 0..4 {
        let (mut disk, env) = (SimulatedDisk::new(seed), SimulatedEnv::new(seed));
        let mut db = open(&disk, &env);
        let unique = IndexOptions::on_value(0..1).unique();
        db.create_table("t", TableOptions::default().index("first", unique)).unwrap();
        let mut model = BTreeMap::new();
        for round in 0..3 {
            let table = db.table("t").unwrap();
            let pages =
                |table: &Table| [table.pages(), table.index("first").unwrap().pages()].map(Result::unwrap);
            let counted = pages(&table);
            let random = SmallRng::seed_from_u64(seed * 10 + round);
            let mut rows = Rows { db, table, model, random };
            (0..100).for_each(|_| rows.step());
            let table;
            Rows { db, table, model, .. } = rows;
            db.checkpoint().unwrap();
            let before = work_so_far();
            let followed = pages(&table);
            let work = work_so_far() - before;
            assert_eq!((work.of(Work::Frame), work.of(Work::Latch)), (0, 0), "a page is read: {work:?}");
            assert!(round > 0 || followed != counted, "nothing has changed");
            drop(table);
            // Without its workers: purge frees pages.
            disk.crash();
            drop(db);
            disk = disk.restart(Survive::Everything);
            db = open(&disk, &SimulatedEnv::new(2));
            assert_eq!(pages(&db.table("t").unwrap()), followed, "seed {seed}, round {round}");
        }
    }
}

/// Creates a table of so many rows with an index, whose entries are in another order.
fn sampled(db: &Database, rows: u32) -> Table {
    let options = TableOptions::default().index("i", IndexOptions::on_value(0..4));
    let table = db.create_table("sampled", options).unwrap();
    for n in 0..rows {
        table.insert(&key(n), &[&key(!n)[..], &[7; 100]].concat()).unwrap();
    }
    table
}

#[test]
fn a_sample_of_all_leaves_is_exact() {
    let (_folder, db) = new_database(options()).unwrap();
    let table = sampled(&db, 2_000);
    // What is not committed counts, and long values are empty.
    let trx = db.begin(TransactionOptions::default());
    trx.table(&table).delete(&key(7)).unwrap();
    trx.table(&table).insert(&key(5_000), &[9; 9_000]).unwrap();
    let mut rows = Vec::new();
    let leaves = table
        .sample_leaves(100_000, |leaf, stands_for| {
            assert!((stands_for - 1.0).abs() < 1e-9);
            rows.extend(leaf.iter().map(|(key, value)| (key.to_vec(), value.to_vec())));
            true
        })
        .unwrap();
    assert!(leaves > 50, "{leaves}");
    let mut expected: Vec<_> = trx.table(&table).rows().unwrap().map(Result::unwrap).collect();
    expected.last_mut().unwrap().1.clear();
    assert_eq!(rows, expected);
    let mut entries = Vec::new();
    let index = trx.table(&table).index("i").unwrap();
    index
        .sample_leaves(100_000, |leaf, _| {
            entries.extend(leaf.iter().map(|entry| (entry.index_key.to_vec(), entry.key.to_vec())));
            true
        })
        .unwrap();
    let expected = index.keys::<&[u8]>(..).unwrap().map(Result::unwrap);
    assert_eq!(entries, expected.map(|entry| (entry.index_key, entry.key)).collect::<Vec<_>>());
    assert_eq!(table.sample_leaves(0, |_, _| true).unwrap(), 0);
    let empty = db.create_table("empty", TableOptions::default()).unwrap();
    assert_eq!(empty.sample_leaves(9, |_, _| true).unwrap(), 0);
}

#[test]
fn a_sample_costs_a_descent_for_each_leaf() {
    let (_folder, db) = new_database(options()).unwrap();
    let table = sampled(&db, 3_000);
    let frames = || work_so_far().of(Work::Frame);
    for asked in [1, 10, 40] {
        let (before, mut estimate) = (frames(), 0.0);
        let leaves = table
            .sample_leaves(asked, |leaf, stands_for| {
                estimate += stands_for * leaf.len() as f64;
                true
            })
            .unwrap();
        let frames = frames() - before;
        assert!((1..=u64::from(asked)).contains(&leaves), "{leaves} of {asked}");
        assert_eq!(frames, u64::from(asked) * u64::from(table.height().unwrap()));
        assert!(asked < 40 || (1_500.0..6_000.0).contains(&estimate), "{estimate}");
    }
    let mut leaves = 0;
    let ended = table.sample_leaves(40, |_, _| {
        leaves += 1;
        leaves < 3
    });
    assert_eq!((ended.unwrap(), leaves), (3, 3));
}

#[test]
fn a_sample_has_each_row_at_most_once() {
    let (_folder, db) = new_database(options()).unwrap();
    let table = sampled(&db, 1_000);
    let mut random = SmallRng::seed_from_u64(8);
    for _ in 0..20 {
        let mut last: Option<Vec<u8>> = None;
        table
            .sample_leaves(60, |leaf, _| {
                for (key, _) in leaf.iter() {
                    assert!(last.as_ref().is_none_or(|last| **last < *key), "{last:?}, then {key:?}");
                    last = Some(key.to_vec());
                }
                // Leaves around the sample split and merge.
                for _ in 0..20 {
                    let n = random.random_range(0..1_200u32);
                    let value = [&key(!n)[..], &vec![7; random.random_range(0..700)]].concat();
                    if random.random() {
                        table.put(&key(n), &value).unwrap();
                    } else {
                        table.delete(&key(n)).unwrap();
                    }
                }
                true
            })
            .unwrap();
    }
}

#[test]
fn a_sample_ends_when_its_table_is_dropped() {
    let (_folder, db) = new_database(options()).unwrap();
    let table = sampled(&db, 1_000);
    let index = table.index("i").unwrap();
    let mut visited = 0;
    let sampled = table.sample_leaves(10, |_, _| {
        visited += 1;
        db.drop_table("sampled").unwrap();
        true
    });
    assert!(matches!(sampled, Err(Error::TableDropped(_))), "{sampled:?}");
    assert_eq!(visited, 1);
    assert!(matches!(index.sample_leaves(10, |_, _| true), Err(Error::TableDropped(_))));
}

#[test]
fn an_interrupt_ends_a_sample() {
    let (_folder, db) = new_database(options()).unwrap();
    let table = sampled(&db, 1_000);
    let trx = db.begin(TransactionOptions::default());
    let (handle, mut visited) = (trx.interrupt_handle(), 0);
    let sampled = trx.table(&table).sample_leaves(10, |_, _| {
        visited += 1;
        handle.interrupt();
        true
    });
    assert!(sampled.is_err() && visited == 1, "{sampled:?} after {visited}");
}
