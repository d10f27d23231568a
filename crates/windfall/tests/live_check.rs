//! A check of everything, concurrently with eight writers, with tables that are created, dropped, truncated and
//! renamed, and with indexes that are built and dropped. It finds nothing, because nothing is wrong, and no call waits
//! for it for long. Next to transactions that have replaced or rolled back long values it also finds nothing: their
//! pages are in use.

#![allow(clippy::unwrap_used, reason = "a test panics")]

mod guard;
mod stress;
mod time_limit;

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    thread,
    time::{Duration, Instant},
};

use guard::Guard;
use stress::seconds;
use time_limit::HANG;
use windfall::{
    Database, Error, FlushLog, IndexOptions, Options, Table, TableOptions, TransactionOptions,
    error::SchemaError,
};
use windfall_sim::{SimulatedDisk, SimulatedEnv};

const PAGE: u64 = 4096;
const WRITERS: u32 = 8;
/// Tables that stay, with two writers each.
const TABLES: u32 = 4;
const KEYS: u32 = 3000;
/// Rows that exist before any thread begins: enough that a check of their table takes a while.
const ROWS: u32 = 40_000;
/// Rows of a table that is loaded: its index has more leaves than a piece of a check examines.
const LOADED: u32 = 80_000;
/// Threads that rename tables.
const RENAMERS: u32 = 3;
/// The number of checks that run only next to renames.
const CHECKS: u32 = 100;
/// The least number of calls that begin and end within a check, over all checks. The number of pages for which a check
/// holds a table is tested with the code that splits the check. A call that waited for a whole check would end after
/// it.
const WITHIN: u64 = 1000;

#[derive(Debug)]
struct World {
    db: Database,
    stop: AtomicBool,
    calls: AtomicU64,
    /// The calls that began and ended within one check.
    within: AtomicU64,
    /// Odd while a check is running: raised at its begin and at its end.
    checks: AtomicU64,
}

fn name(table: u32) -> String {
    format!("t{table}")
}

fn value(key: u32, version: u32) -> Vec<u8> {
    // Some values need overflow pages.
    let length = if version.is_multiple_of(97) { 9000 } else { 30 + version as usize % 200 };
    let mut value = vec![version as u8; length];
    value[..4].copy_from_slice(&version.to_be_bytes());
    value[4..8].copy_from_slice(&key.to_be_bytes());
    value
}

impl World {
    /// Creates a world. The tables that will be renamed exist already, and have files.
    fn new(db: Database) -> Self {
        for name in (0..RENAMERS).flat_map(|number| (0..2).map(move |n| format!("home{number}_{n}"))) {
            let table = db.create_table(&name, TableOptions::default()).unwrap();
            table.put(b"row", &value(0, 7)).unwrap();
        }
        db.checkpoint().unwrap();
        let (calls, within, checks) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        Self { db, stop: AtomicBool::new(false), calls, within, checks }
    }

    fn is_running(&self) -> bool {
        !self.stop.load(Relaxed)
    }

    /// Makes a row call and counts it.
    fn call<T>(&self, run: impl FnOnce() -> windfall::Result<T>) -> windfall::Result<T> {
        let before = self.checks.load(SeqCst);
        let result = run();
        let is_within = before % 2 == 1 && self.checks.load(SeqCst) == before;
        self.within.fetch_add(u64::from(is_within), Relaxed);
        self.calls.fetch_add(1, Relaxed);
        result
    }

    fn writer(&self, number: u32) {
        let table = self.db.table(&name(number % TABLES)).unwrap();
        let mut version = number;
        while self.is_running() {
            version = version.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let key = (version >> 8) % KEYS * WRITERS + number;
            let done = if version.is_multiple_of(5) {
                self.call(|| table.delete(&key.to_be_bytes()).map(drop))
            } else {
                self.call(|| table.put(&key.to_be_bytes(), &value(key, version)))
            };
            done.expect("no thread drops this table");
        }
    }

    /// Creates and drops tables.
    fn comings_and_goings(&self) {
        let fill =
            |table: &Table| (0..60u32).try_for_each(|n| table.put(&n.to_be_bytes(), &value(n, n * 97)));
        let mut n = 0;
        while self.is_running() {
            n += 1;
            let (name, other) = (format!("gone{}", n % 3), format!("renamed{n}"));
            let options = TableOptions::default().index("key", IndexOptions::on_value(4..8));
            let table = self.db.create_table(&name, options).unwrap();
            fill(&table).unwrap();
            if n % 7 == 0 {
                self.db.checkpoint().unwrap();
            }
            self.db.truncate_table(&name).unwrap();
            fill(&table).unwrap();
            if n % 2 == 0 {
                self.db.rename_table(&name, &other).unwrap();
                self.db.drop_table(&other).unwrap();
            } else {
                self.db.drop_table(&name).unwrap();
            }
        }
    }

    /// Swaps two small tables, and renames them back and forth.
    fn renames(&self, number: u32) {
        let names = |kind: &str| [0, 1].map(|n| format!("{kind}{number}_{n}"));
        let (home, away) = (names("home"), names("away"));
        while self.is_running() {
            for n in 0..2 {
                self.db.rename_table(&home[n], &away[n]).unwrap();
                self.db.rename_table(&away[n], &home[n]).unwrap();
            }
            self.db.swap_tables(&home[0], &home[1]).unwrap();
            self.calls.fetch_add(1, Relaxed);
        }
    }

    /// Builds and drops indexes on tables that are being written.
    fn indexes(&self) {
        let mut n = 0;
        while self.is_running() {
            n += 1;
            let table = name(n % TABLES);
            self.db.create_index(&table, "late", IndexOptions::on_value(0..4)).unwrap();
            match self.db.drop_index(&table, "late") {
                Ok(_) | Err(Error::Schema(SchemaError::NoIndex { .. })) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn a_check_finds_nothing_during_concurrent_work_and_blocks_no_thread() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options::default()
        .page_size(PAGE as usize)
        .buffer_pool_size(8192 * PAGE)
        .log_size(8 << 20)
        .log_buffer_size(1 << 20)
        .flush_log_at_trx_commit(FlushLog::Lazy);
    let db = Database::open(folder.path(), options).unwrap();
    for n in 0..TABLES {
        let options = TableOptions::default().index("version", IndexOptions::on_value(0..8).unique());
        let table = db.create_table(&name(n), options).unwrap();
        for key in 0..ROWS / TABLES {
            let key = u32::MAX - key;
            table.put(&key.to_be_bytes(), &value(key, 5)).unwrap();
        }
    }
    let world = Arc::new(World::new(db.clone()));
    let mut threads = Vec::new();
    let mut spawn = |run: Box<dyn FnOnce(&World) + Send>| {
        let world = world.clone();
        threads.push(thread::spawn(move || run(&world)));
    };
    (0..WRITERS).for_each(|n| spawn(Box::new(move |world| world.writer(n))));
    spawn(Box::new(World::comings_and_goings));
    spawn(Box::new(World::indexes));
    (0..RENAMERS).for_each(|n| spawn(Box::new(move |world| world.renames(n))));

    let (start, time) = (Instant::now(), seconds(8));
    let (mut checks, mut pages, mut trees) = (0, 0, 0);
    let again = "cargo test -p windfall --test live_check";
    Guard::with_limit(time + HANG).run(again, || {
        let is_enough = || start.elapsed() > time && world.within.load(Relaxed) >= WITHIN;
        while !is_enough() && threads.iter().all(|thread| !thread.is_finished()) {
            world.checks.fetch_add(1, SeqCst);
            let report = db.check_live().unwrap();
            world.checks.fetch_add(1, SeqCst);
            assert_eq!(report.findings, Vec::<String>::new(), "nothing is wrong");
            assert_eq!(report.foreign, Vec::<String>::new());
            (checks, pages, trees) = (checks + 1, pages + report.pages, trees + report.trees.len());
            thread::sleep(Duration::from_millis(50));
        }
        world.stop.store(true, SeqCst);
        let fine = threads.into_iter().flat_map(thread::JoinHandle::join).count();
        assert_eq!(fine, (WRITERS + RENAMERS) as usize + 2, "a thread has panicked");
    });
    println!(
        "{checks} checks of {trees} trees and {pages} pages, {} concurrent calls, {} of which were within one check",
        world.calls.load(SeqCst),
        world.within.load(SeqCst)
    );
    assert!(checks > 0 && trees >= 2 * TABLES as usize && pages > 1000);
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new(), "and nothing is in the end");
    db.close().unwrap();
}

/// The list of files and the names of tables are not read at one moment, and these tables are so small that each has
/// several names within a check.
#[test]
fn a_check_during_renames_finds_the_table_of_every_file() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options::default()
        .page_size(PAGE as usize)
        .buffer_pool_size(1024 * PAGE)
        .flush_log_at_trx_commit(FlushLog::Lazy);
    let world = Arc::new(World::new(Database::open(folder.path(), options).unwrap()));
    let renamers: Vec<_> = (0..RENAMERS)
        .map(|number| {
            let world = world.clone();
            thread::spawn(move || world.renames(number))
        })
        .collect();
    let again = "cargo test -p windfall --test live_check a_check_during_renames";
    Guard::with_limit(HANG).run(again, || {
        for n in 0..CHECKS {
            let report = world.db.check_live().unwrap();
            assert_eq!(report.findings, Vec::<String>::new(), "check {n}");
            assert!(renamers.iter().all(|thread| !thread.is_finished()), "a thread has panicked");
        }
        world.stop.store(true, SeqCst);
        let fine = renamers.into_iter().flat_map(thread::JoinHandle::join).count();
        assert_eq!(fine, RENAMERS as usize, "a thread has panicked");
    });
    println!("{CHECKS} checks during {} rounds of names", world.calls.load(SeqCst));
    assert_eq!(world.db.check().unwrap().findings, Vec::<String>::new());
}

/// Returns a value that needs overflow pages.
fn long(fill: u8) -> Vec<u8> {
    vec![fill; 50_000]
}

/// Creates a database with one thread, and a table of four long values.
fn with_long_values() -> (Database, SimulatedEnv, Table) {
    let options = Options::default()
        .page_size(PAGE as usize)
        .buffer_pool_size(1024 * PAGE)
        .log_size(8 << 20)
        .log_buffer_size(256 << 10);
    let (disk, env) = (Arc::new(SimulatedDisk::new(1)), SimulatedEnv::new(1));
    let db = Database::open_on(disk, Arc::new(env.clone()), &options, &|_| {}).unwrap();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    (0..4).for_each(|n| table.put(&[n], &long(n)).unwrap());
    (db, env, table)
}

/// Runs both checks, before and after purge has run.
fn assert_sound(db: &Database, env: &SimulatedEnv) {
    for _ in 0..2 {
        assert_eq!(db.check_live().unwrap().findings, Vec::<String>::new());
        assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
        env.run_workers(300);
    }
}

#[test]
fn an_open_transaction_keeps_the_long_values_that_it_has_replaced() {
    for commits in [false, true] {
        let (db, env, table) = with_long_values();
        let trx = db.begin(TransactionOptions::default());
        let within = trx.table(&table);
        within.put(&[0], &long(10)).unwrap();
        assert!(within.delete(&[1]).unwrap());
        within.put(&[2], b"short").unwrap();
        within.put(b"new", &long(11)).unwrap();
        assert_sound(&db, &env);
        if commits { trx.commit().map(drop) } else { trx.rollback() }.unwrap();
        assert_sound(&db, &env);
        assert_eq!(table.get(&[0]).unwrap(), Some(long(if commits { 10 } else { 0 })));
    }
}

#[test]
fn a_prepared_transaction_keeps_the_long_values_that_it_has_replaced() {
    for commits in [false, true] {
        let (db, env, table) = with_long_values();
        let trx = db.begin(TransactionOptions::default());
        trx.table(&table).put(&[0], &long(10)).unwrap();
        assert!(trx.table(&table).delete(&[1]).unwrap());
        trx.prepare(b"name").unwrap();
        // Its handle is dropped, and it waits for its coordinator.
        drop(trx);
        assert_sound(&db, &env);
        if commits { db.commit_prepared(b"name").map(drop) } else { db.rollback_prepared(b"name") }.unwrap();
        assert_sound(&db, &env);
        assert_eq!(table.contains(&[1]).unwrap(), !commits);
    }
}

#[test]
fn rolled_back_changes_keep_their_long_values_until_the_transaction_has_ended() {
    for commits in [false, true] {
        let (db, env, table) = with_long_values();
        let trx = db.begin(TransactionOptions::default());
        let within = trx.table(&table);
        within.put(&[0], &long(10)).unwrap();
        trx.savepoint("here").unwrap();
        within.put(&[0], &long(20)).unwrap();
        within.put(&[1], &long(21)).unwrap();
        within.put(b"new", &long(22)).unwrap();
        // Purge has run before the rollback in one case, and not in the other.
        if commits {
            env.run_workers(300);
        }
        trx.rollback_to("here").unwrap();
        assert_sound(&db, &env);
        within.put(&[3], &long(23)).unwrap();
        trx.rollback_to("here").unwrap();
        assert_sound(&db, &env);
        if commits { trx.commit().map(drop) } else { trx.rollback() }.unwrap();
        assert_sound(&db, &env);
        assert_eq!(table.get(&[0]).unwrap(), Some(long(if commits { 10 } else { 0 })));
    }
}

/// Each tree is larger than the number of pages that a piece of a live check examines.
#[test]
fn a_check_in_pieces_counts_every_leaf_once() {
    let options = Options::default().page_size(PAGE as usize).buffer_pool_size(4096 * PAGE);
    let (disk, env) = (Arc::new(SimulatedDisk::new(1)), SimulatedEnv::new(1));
    let db = Database::open_on(disk, Arc::new(env), &options, &|_| {}).unwrap();
    let indexed = TableOptions::default().index("value", IndexOptions::on_value(0..4));
    let rows = (0..LOADED).map(|n| Ok((n.to_be_bytes().to_vec(), [n.to_be_bytes(); 10].concat())));
    db.create_table_from("t", indexed, rows).unwrap();
    let whole = db.check().unwrap().trees;
    let of_table: Vec<_> = whole.iter().filter(|tree| tree.table == "t").collect();
    assert_eq!(of_table.iter().map(|tree| tree.entries).collect::<Vec<_>>(), [u64::from(LOADED); 2]);
    for (tree, shortest) in of_table.iter().zip([44, 8]) {
        assert!(tree.leaves > 256 && tree.leaves < tree.pages, "{tree:?}");
        assert!(tree.leaf_capacity <= tree.leaves * PAGE, "{tree:?}");
        assert!(tree.leaf_capacity >= tree.leaves * (PAGE - 256), "{tree:?}");
        assert!(tree.leaf_bytes > tree.entries * shortest, "{tree:?}");
        let fill = tree.leaf_bytes as f64 / tree.leaf_capacity as f64;
        assert!((0.8..1.0).contains(&fill), "a bulk load fills its leaves to {fill}");
    }
    assert_eq!(db.check_live().unwrap().trees, whole);
}
