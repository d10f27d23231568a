//! A disk that becomes full at any moment: a call that needs space fails and has changed nothing, other calls work, and
//! all calls work again once there is space.

mod changed_env;
mod guard;
mod time_limit;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

use changed_env::{Change, Changed};
use guard::whole;
use time_limit::wait_until;
use windfall::{
    Database, Error, FlushLog, IndexOptions, Options, Result, Table, TableOptions, TransactionOptions,
    env::{Env, RealEnv, Step, Worker, WorkerClass},
    error::DiskError,
};
use windfall_base::sync::Event;
use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

const PAGE: u64 = 4096;
/// Longer than the log, and longer than the pool.
const LONG: u64 = 2 << 20;

fn options() -> Options {
    Options::default()
        .page_size(PAGE as usize)
        .buffer_pool_size(200 * PAGE)
        .log_size(1 << 20)
        .log_buffer_size(64 << 10)
}

fn open(disk: &SimulatedDisk, env: Arc<dyn Env>) -> Result<Database> {
    Database::open_on(Arc::new(disk.clone()), env, &options(), &|_| {})
}

fn is_full(error: &Error) -> bool {
    matches!(error, Error::Disk(DiskError::Full { .. }))
}

fn put_long(table: &Table, key: &[u8], fill: u8) -> Result<()> {
    table.put_stream(key, LONG, &mut std::io::Read::take(std::io::repeat(fill), LONG))
}

/// Creates a database with rows, among them a long value, and a table that can be dropped.
fn made(seed: u64) -> (SimulatedDisk, SimulatedEnv, Database) {
    let (disk, env) = (SimulatedDisk::new(seed), SimulatedEnv::new(seed));
    let db = open(&disk, Arc::new(env.clone())).expect("a database");
    for name in ["t", "other"] {
        let options = TableOptions::default().index("i", IndexOptions::on_value(0..40));
        let table = db.create_table(name, options).expect("a table");
        for n in 0..100u8 {
            table.insert(&[n], &[n; 300]).expect("a row");
        }
    }
    // Files are created and recorded, so that none of that happens at the crash points below.
    let rest = || {
        db.checkpoint().expect("a checkpoint");
        env.run_workers(100);
        db.checkpoint().expect("a checkpoint");
    };
    rest();
    put_long(&db.table("t").expect("a table"), b"long", 1).expect("a long row");
    rest();
    (disk, env, db)
}

#[test]
fn a_long_value_and_a_disk_that_becomes_full_at_every_moment() {
    let _again = whole("full_disk", "a_long_value_and_a_disk_that_becomes_full_at_every_moment");
    let operations = {
        let (disk, _env, db) = made(0);
        let before = disk.operations();
        put_long(&db.table("t").expect("a table"), b"long", 2).expect("a long row");
        disk.operations() - before
    };
    let mut failures = 0;
    for (seed, moment) in (0..operations + 20).step_by((operations / 120).max(1) as usize).enumerate() {
        let what = format!("full at operation {moment} of {operations}");
        let (disk, env, db) = made(0);
        let (table, other) = (db.table("t").expect(&what), db.table("other").expect(&what));
        disk.full_from(Some(disk.operations() + moment));
        let done = put_long(&table, b"long", 2);
        if let Err(error) = &done {
            assert!(is_full(error), "{what}: {error}");
            failures += 1;
        }
        if seed % 2 == 0 {
            env.run_workers(50);
        }
        // Calls that need no space, except a frame while all frames wait to be written, and calls that free space.
        let fill = if done.is_ok() { 2 } else { 1 };
        match table.get(b"long") {
            Ok(value) => assert_eq!(value, Some(vec![fill; LONG as usize]), "{what}"),
            Err(error) => assert!(is_full(&error), "{what}: {error}"),
        }
        let refused = (0..200u8).find_map(|n| other.put(&[n], &[n; 200]).err());
        assert!(refused.as_ref().is_none_or(is_full), "{what}: {refused:?}");
        let drop_first = seed % 3 == 0;
        if drop_first {
            db.drop_table("other").expect(&what);
        }
        if seed % 5 == 0 {
            // Or the power is lost before there is space.
            drop((table, other, db, env));
            let disk = disk.restart(Survive::Random(seed as u64));
            let db = open(&disk, Arc::new(SimulatedEnv::new(1))).expect(&what);
            let table = db.table("t").expect(&what);
            assert_eq!(table.get(b"long").expect(&what), Some(vec![fill; LONG as usize]), "{what}");
            assert_eq!(db.check().expect(&what).findings, Vec::<String>::new(), "{what}");
            continue;
        }
        disk.full_from(None);
        env.run_workers(300);
        assert_eq!(table.get(b"long").expect(&what), Some(vec![fill; LONG as usize]), "{what}");
        put_long(&table, b"long", 3).expect(&what);
        for n in 0..100u8 {
            table.put(&[n], &[n; 500]).expect(&what);
        }
        if !drop_first {
            db.drop_table("other").expect(&what);
        }
        assert_eq!(table.get(b"long").expect(&what), Some(vec![3; LONG as usize]), "{what}");
        env.run_workers(100);
        assert_eq!(db.check().expect(&what).findings, Vec::<String>::new(), "{what}");
        db.close().expect(&what);
    }
    assert!(failures > 8, "{failures} failures");
}

/// The rows of a table before deletions, and the entries of its index.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Made {
    Loaded,
    IndexLoaded,
    Inserted,
}

/// The first change of a short entry that was loaded or inserted makes it longer, and may split its leaf. Such a
/// deletion needs more log than others, and is refused on a full disk while others are not. The row then stays in the
/// table and in the index.
#[test]
fn deletions_of_loaded_rows_on_a_full_disk_are_whole_or_refused() {
    let _again = whole("full_disk", "deletions_of_loaded_rows_on_a_full_disk_are_whole_or_refused");
    let value = |n: u32| [n.wrapping_mul(0x9e37_79b9).to_be_bytes(); 2].concat();
    let rows: BTreeMap<_, _> = (0..2000).map(|n: u32| (n.to_be_bytes().to_vec(), value(n))).collect();
    let kinds =
        [(Made::Loaded, false), (Made::Loaded, true), (Made::IndexLoaded, false), (Made::Inserted, false)];
    for (made, in_transaction) in kinds {
        let mut mixed = 0;
        // The disk is full from several places in a segment of the log on.
        for before in (0..40).step_by(4) {
            let what = format!("{made:?}, in a transaction: {in_transaction}, {before} other rows");
            let (disk, env) = (SimulatedDisk::new(before), SimulatedEnv::new(before));
            let db = open(&disk, Arc::new(env.clone())).expect("a database");
            let index = IndexOptions::on_value(0..4);
            let table = if made == Made::Loaded {
                let source = rows.clone().into_iter().map(Ok);
                db.create_table_from("t", TableOptions::default().index("i", index), source).expect("a table")
            } else {
                let table = db.create_table("t", TableOptions::default()).expect("a table");
                if made == Made::Inserted {
                    db.create_index("t", "i", index.clone()).expect("an index");
                }
                for (key, value) in &rows {
                    table.insert(key, value).expect("a row");
                }
                if made == Made::IndexLoaded {
                    db.create_index("t", "i", index).expect("an index");
                }
                table
            };
            for _ in 0..2 {
                db.checkpoint().expect("a checkpoint");
                env.run_workers(100);
            }
            let other = db.create_table("other", TableOptions::default()).expect("a table");
            (0..before).for_each(|n| other.insert(&n.to_be_bytes(), &[7; 2000]).expect("a row"));
            disk.full_from(Some(disk.operations()));
            let (mut left, mut refused, mut later) = (rows.clone(), 0, 0);
            let mut note = |key: &Vec<u8>, done: Result<bool>| match done {
                Ok(found) => {
                    assert!(found && left.remove(key).is_some(), "{what}");
                    later += u32::from(refused > 0);
                }
                Err(error) => {
                    assert!(is_full(&error), "{what}: {error}");
                    refused += 1;
                }
            };
            if in_transaction {
                let trx = db.begin(TransactionOptions::default());
                let within = trx.table(&table);
                // More of them have more undo than log is reserved for.
                rows.keys().take(60).for_each(|key| note(key, within.delete(key)));
                drop(within);
                trx.rollback().expect(&what);
                left.clone_from(&rows);
            } else {
                for key in rows.keys() {
                    note(key, table.delete(key));
                }
            }
            assert!(refused > 0, "{what}");
            mixed += later;
            let assert_rows = |expected: &BTreeMap<_, _>| {
                let found: BTreeMap<_, _> = table.rows().expect(&what).collect::<Result<_>>().expect(&what);
                assert!(found == *expected, "{what}: {} rows, {} expected", found.len(), expected.len());
                let index = table.index("i").expect(&what);
                let found: BTreeMap<_, _> = index
                    .range::<&[u8]>(..)
                    .expect(&what)
                    .map(|row| row.map(|row| (row.key, row.value)))
                    .collect::<Result<_>>()
                    .expect(&what);
                assert!(found == *expected, "{what}: {} rows, {} expected", found.len(), expected.len());
            };
            assert_rows(&left);
            disk.full_from(None);
            env.run_workers(300);
            for key in left.keys() {
                assert!(table.delete(key).expect(&what), "{what}");
            }
            assert_rows(&BTreeMap::new());
            assert_eq!(db.check().expect(&what).findings, Vec::<String>::new(), "{what}");
            db.close().expect(&what);
        }
        assert!(
            mixed > 0 || made != Made::Loaded || in_transaction,
            "no deletion was done after one was refused"
        );
    }
}

/// Threads with rows that grow and shrink, a log of small segments, and a disk that is full from time to time.
#[test]
fn many_threads_and_a_disk_that_is_full_now_and_then() {
    let _again = whole("full_disk", "many_threads_and_a_disk_that_is_full_now_and_then");
    for round in 0..4u64 {
        let disk = SimulatedDisk::new(round);
        let db = open(&disk, Arc::new(RealEnv::default())).expect("a database");
        db.set_flush_log_at_trx_commit(FlushLog::Write);
        let options = TableOptions::default().index("i", IndexOptions::on_value(0..40));
        let table = db.create_table("t", options).expect("a table");
        let (stop, refused) = (AtomicBool::new(false), AtomicU64::new(0));
        let rows: BTreeMap<Vec<u8>, Vec<u8>> = thread::scope(|scope| {
            let writers: Vec<_> = (0..5u8)
                .map(|thread| {
                    let (table, stop, refused) = (&table, &stop, &refused);
                    scope.spawn(move || {
                        let mut rows = BTreeMap::new();
                        let mut n = 0u64;
                        while !stop.load(SeqCst) {
                            n += 1;
                            let key = vec![thread, (n * 7 % 40) as u8];
                            let length = [10, 300, 900, 40, 12_000][(n * 13 % 5) as usize];
                            let value = vec![(n % 251) as u8; length];
                            let done = if n.is_multiple_of(9) {
                                table.delete(&key).map(|_| drop(rows.remove(&key)))
                            } else {
                                table.put(&key, &value).map(|()| drop(rows.insert(key, value)))
                            };
                            if let Err(error) = done {
                                assert!(is_full(&error), "{error}");
                                refused.fetch_add(1, SeqCst);
                            }
                        }
                        rows
                    })
                })
                .collect();
            for turn in 0..12 {
                disk.full_from((turn % 2 == 0).then_some(1));
                thread::sleep(Duration::from_millis(40 + 10 * round));
            }
            disk.full_from(Some(1));
            wait_until("a call that the full disk refuses", || refused.load(SeqCst) > 0);
            stop.store(true, SeqCst);
            writers.into_iter().flat_map(|writer| writer.join().expect("a writer")).collect()
        });
        disk.full_from(None);
        let found: BTreeMap<_, _> = table.rows().expect("rows").collect::<Result<_>>().expect("rows");
        assert!(found == rows, "round {round}: {} rows, {} expected", found.len(), rows.len());
        // The log checks once per second whether there is space again.
        wait_until("a log that sees that there is room", || table.put(b"at last", b"there is room").is_ok());
        assert_eq!(db.check().expect("a check").findings, Vec::<String>::new(), "round {round}");
        db.close().expect("a clean end");
    }
}

/// Each worker has executed its first step before the opening continues.
#[derive(Debug)]
struct Eager;

impl Change for Eager {
    fn spawn(
        &self,
        env: &dyn Env,
        name: &'static str,
        class: WorkerClass,
        wake: Arc<Event>,
        mut step: Step,
    ) -> Result<Worker> {
        let (sender, receiver) = mpsc::channel();
        let step = move || {
            let next = step();
            let _ = sender.send(());
            next
        };
        let worker = env.spawn(name, class, wake, Box::new(step));
        receiver.recv().expect("a first step");
        worker
    }
}

/// Returns an environment of real threads with [`Eager`] workers.
fn eager() -> Arc<dyn Env> {
    Arc::new(Changed { env: Arc::new(RealEnv::default()), change: Eager })
}

/// A process dies during the cleanup after a drop, and by then other files have filled the disk: opening the database
/// must succeed, and it frees space.
#[test]
fn a_full_disk_keeps_no_database_shut() {
    let _again = whole("full_disk", "a_full_disk_keeps_no_database_shut");
    // All of the history is in the first segment of the log: there is no old segment to recycle.
    let open = |disk: &SimulatedDisk, env: Arc<dyn Env>| {
        let options =
            Options::default().page_size(PAGE as usize).buffer_pool_size(200 * PAGE).log_size(64 << 20);
        Database::open_on(Arc::new(disk.clone()), env, &options, &|_| {})
    };
    let cut = |moment: Option<u64>| {
        let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
        let db = open(&disk, Arc::new(env.clone())).expect("a database");
        for name in ["t", "other"] {
            let options = TableOptions::default().index("i", IndexOptions::on_value(0..1));
            db.create_table(name, options).expect("a table").put(b"k", b"v").expect("a row");
        }
        for _ in 0..2 {
            db.checkpoint().expect("a checkpoint");
            env.run_workers(100);
        }
        let before = disk.operations();
        disk.crash_at(moment.map_or(u64::MAX, |moment| before + moment));
        let _ = db.drop_table("other");
        env.run_workers(2_000);
        let operations = disk.operations() - before;
        drop((db, env));
        (disk, operations)
    };
    let (_, operations) = cut(None);
    for (moment, chance) in (1..=operations).flat_map(|moment| (0..6).map(move |chance| (moment, chance))) {
        let what = format!("crash at operation {moment} of {operations}, chance {chance}");
        let disk = cut(Some(moment)).0.restart(Survive::Random(chance));
        disk.full_from(Some(0));
        let db = open(&disk, eager()).expect(&what);
        assert_eq!(db.table("t").expect(&what).get(b"k").expect(&what).as_deref(), Some(&b"v"[..]), "{what}");
        db.drop_table("t").expect(&what);
        disk.full_from(None);
        assert_eq!(db.check().expect(&what).findings, Vec::<String>::new(), "{what}");
    }
    assert!(operations > 5, "{operations} operations");
}

/// Nearly all pages are dirty and cannot be written. A look-up in the remaining frames succeeds or returns an error. It
/// never loops because each page that is read in replaces the page that led to it.
#[test]
fn a_look_up_ends_where_all_other_pages_wait_to_be_written() {
    let _again = whole("full_disk", "a_look_up_ends_where_all_other_pages_wait_to_be_written");
    let disk = SimulatedDisk::new(1);
    let options = Options::default()
        .page_size(PAGE as usize)
        .buffer_pool_size(96 * PAGE)
        .log_size(1 << 20)
        .log_buffer_size(64 << 10);
    let env = SimulatedEnv::new(1);
    let db = Database::open_on(Arc::new(disk.clone()), Arc::new(env.clone()), &options, &|_| {})
        .expect("a database");
    // The keys are so long that the tree is high.
    let key = |n: u32| format!("{:08x}{n:.>600}", (n / 12).wrapping_mul(0x9e37_79b9)).into_bytes();
    let table = db.create_table("t", TableOptions::default()).expect("a table");
    for n in 0..600 {
        table.insert(&key(n), &[1; 300]).expect("a row");
    }
    db.checkpoint().expect("a checkpoint");
    env.run_workers(100);
    disk.full_from(Some(0));
    db.set_flush_log_at_trx_commit(FlushLog::Lazy);
    // These rows need new pages, which take space.
    let refused = (600..2000).find_map(|n| table.insert(&key(n), &[2; 300]).err());
    assert!(refused.is_some_and(|error| is_full(&error)), "the disk is not full");
    // This must not hang.
    for n in (0..600).step_by(25) {
        match table.get(&key(n)) {
            Ok(value) => assert!(value.is_some(), "row {n} is gone"),
            Err(error) => assert!(is_full(&error), "row {n}: {error}"),
        }
    }
    disk.full_from(None);
    env.run_workers(300);
    assert!((0..600).all(|n| table.get(&key(n)).expect("a row").is_some()));
    assert_eq!(db.check().expect("a check").findings, Vec::<String>::new());
}

/// A crash ends the log between the groups of a row change, and meanwhile other files have filled the disk. The
/// unfinished change must be rolled back all the same.
#[test]
fn a_row_that_was_cut_keeps_no_database_shut_on_a_full_disk() {
    let _again = whole("full_disk", "a_row_that_was_cut_keeps_no_database_shut_on_a_full_disk");
    let mut unfinished = 0;
    for seed in 0..150u64 {
        let (disk, env) = (SimulatedDisk::new(seed), SimulatedEnv::new(seed));
        let db = open(&disk, Arc::new(env.clone())).expect("a database");
        let index = |from: u32| IndexOptions::on_value(from..from + 100);
        let definition =
            TableOptions::default().index("a", index(0)).index("b", index(100)).index("c", index(200));
        let table = db.create_table("t", definition).expect("a table");
        let value = |n: u64| vec![n as u8; if n.is_multiple_of(2) { 1000 } else { 300 }];
        for n in 0..60u64 {
            table.put(&(n % 7).to_be_bytes(), &value(n)).expect("a row");
        }
        for _ in 0..2 {
            db.checkpoint().expect("a checkpoint");
            env.run_workers(100);
        }
        db.set_flush_log_at_trx_commit(FlushLog::Lazy);
        // This brings the end of the log close to the end of a segment for some seeds.
        for n in 60..80 + seed {
            table.put(&(n % 7).to_be_bytes(), &value(n)).expect("a row");
        }
        disk.crash_at(disk.operations() + 1 + seed % 3);
        db.set_flush_log_at_trx_commit(FlushLog::Sync);
        let _ = table.put(b"last", b"");
        drop((table, db, env));
        let disk = disk.restart(Survive::Random(seed));
        let what = format!("seed {seed}");
        // In a simulation no rollback runs before a thread waits.
        let aside = open(&disk.survivor(Survive::Everything), Arc::new(SimulatedEnv::new(0))).expect(&what);
        unfinished += aside.metrics().rollbacks_pending;
        drop(aside);
        disk.full_from(Some(0));
        let (shared, env) = (Arc::new(disk.clone()), eager());
        let db = Database::open_on(shared, env, &options(), &|_| {}).expect(&what);
        wait_until("a rollback on a full disk", || db.metrics().rollbacks_pending == 0);
        for (key, found) in db.table("t").expect(&what).rows().expect(&what).map(|row| row.expect(&what)) {
            assert!(found.windows(2).all(|pair| pair[0] == pair[1]), "{what}: {key:?}");
        }
        disk.full_from(None);
        assert_eq!(db.check().expect(&what).findings, Vec::<String>::new(), "{what}");
    }
    assert!(unfinished > 10, "{unfinished} of 150 had something to take back");
}

/// A close on a full disk cannot create the file of a new table, and fails. The log has space: it becomes durable all
/// the same, with the changes that no commit has waited for.
#[test]
fn a_close_on_a_full_disk_keeps_changes_that_no_commit_waited_for() {
    for level in [FlushLog::Lazy, FlushLog::Write] {
        let (disk, env) = (SimulatedDisk::new(3), SimulatedEnv::new(3));
        let db = open(&disk, Arc::new(env)).expect("a database");
        let table = db.create_table("t", TableOptions::default()).expect("a table");
        let put = |range: core::ops::Range<u32>| {
            range.for_each(|n| table.put(&n.to_be_bytes(), &[n as u8; 100]).expect("a row"));
        };
        put(0..200);
        db.set_flush_log_at_trx_commit(level);
        disk.full_from(Some(0));
        // From now on the file counts as failing: of its pages only the oldest is tried, whose changes are in the log.
        let refused = db.checkpoint().expect_err("a full disk");
        assert!(is_full(&refused), "{level:?}: {refused}");
        put(200..210);
        let closed = db.close().expect_err("a full disk");
        assert!(is_full(&closed), "{level:?}: {closed}");
        drop(table);
        let disk = disk.restart(Survive::Nothing);
        disk.full_from(None);
        let db = open(&disk, Arc::new(SimulatedEnv::new(4))).expect("a database");
        let rows = db.table("t").expect("a table").rows().expect("rows").count();
        assert_eq!(rows, 210, "{level:?}");
    }
}
