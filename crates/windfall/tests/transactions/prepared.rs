//! Two-phase commit.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
};

use windfall::{
    Database, Error, FlushLog, Isolation, Table, TableOptions,
    error::{LockError, TransactionError},
};
use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

use super::{begin, guard::whole, options, pairs, rows, simulated, table, time_limit::wait_until};

fn names(db: &Database) -> Vec<(Vec<u8>, bool)> {
    db.prepared().into_iter().map(|one| (one.xid, one.in_use)).collect()
}

fn end(db: &Database, xid: &[u8], commits: bool) {
    let done = if commits { db.commit_prepared(xid).map(drop) } else { db.rollback_prepared(xid) };
    done.unwrap();
}

fn database() -> (SimulatedDisk, SimulatedEnv, Database) {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = simulated(&disk, &env);
    (disk, env, db)
}

#[test]
fn it_does_nothing_more_and_ends_by_its_handle() {
    let (_, env, db) = database();
    let t = table(&db);
    t.put(b"a", b"x1").unwrap();
    for commits in [true, false] {
        let trx = begin(&db, Isolation::RepeatableRead);
        let within = trx.table(&t);
        within.put(b"a", b"y1").unwrap();
        within.put(b"b", b"z2").unwrap();
        trx.savepoint("here").unwrap();
        trx.prepare(b"first").unwrap();
        assert_eq!(names(&db), [(b"first".to_vec(), true)]);
        let refused = |done: Result<(), Error>| {
            assert!(matches!(done, Err(Error::Transaction(TransactionError::Prepared))), "{done:?}");
        };
        refused(within.put(b"c", b"c3"));
        refused(within.get(b"a").map(drop));
        refused(trx.savepoint("there"));
        refused(trx.rollback_to("here"));
        refused(trx.prepare(b"again"));
        let in_use = |done| {
            assert!(matches!(done, Err(Error::Transaction(TransactionError::InUse { .. }))), "{done:?}");
        };
        in_use(db.commit_prepared(b"first").map(drop));
        in_use(db.rollback_prepared(b"first"));
        assert_eq!(rows(&t), pairs([("a", "x1")]), "others see it");
        if commits {
            trx.commit().unwrap();
        } else {
            trx.rollback().unwrap();
        }
        let expected = if commits { pairs([("a", "y1"), ("b", "z2")]) } else { pairs([("a", "x1")]) };
        assert_eq!((rows(&t), names(&db)), (expected, Vec::new()));
        t.put(b"a", b"x1").unwrap();
        t.delete(b"b").unwrap();
    }
    env.run_workers(300);
    assert_eq!(db.metrics().active_transactions, 0);
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}

#[test]
fn a_prepared_transaction_outlives_its_handle() {
    let (_, env, db) = database();
    let t = table(&db);
    db.set_lock_wait_timeout(core::time::Duration::from_millis(100));
    for commits in [true, false] {
        let trx = begin(&db, Isolation::RepeatableRead);
        trx.table(&t).put(b"a", b"y1").unwrap();
        trx.prepare(b"first").unwrap();
        let id = trx.id();
        drop(trx);
        env.run_workers(100);
        let listed = db.prepared();
        assert_eq!((listed[0].id, listed[0].in_use), (id.unwrap(), false));
        // Its row stays locked, and so does its table.
        assert!(matches!(t.put(b"a", b"w1"), Err(Error::Lock(LockError::TimedOut { .. }))));
        let refused = db.drop_table("t");
        assert!(matches!(refused, Err(Error::Lock(LockError::TimedOut { .. }))), "{refused:?}");
        let other = begin(&db, Isolation::RepeatableRead);
        let taken = other.prepare(b"first");
        assert!(matches!(taken, Err(Error::Transaction(TransactionError::NameTaken { .. }))), "{taken:?}");
        other.table(&t).put(b"of its own", b"q5").unwrap();
        other.rollback().unwrap();
        end(&db, b"first", commits);
        assert_eq!(rows(&t), if commits { pairs([("a", "y1")]) } else { Vec::new() });
        let gone = db.commit_prepared(b"first");
        assert!(matches!(gone, Err(Error::Transaction(TransactionError::NotPrepared { .. }))), "{gone:?}");
        t.put(b"a", b"x1").unwrap();
        t.delete(b"a").unwrap();
    }
    db.drop_table("t").unwrap();
}

#[test]
fn names_are_checked_and_errors_show_them() {
    let (_, _, db) = database();
    let trx = begin(&db, Isolation::RepeatableRead);
    assert!(trx.prepare(b"").unwrap_err().to_string().contains("0 bytes"));
    assert!(trx.prepare(&[7; 256]).unwrap_err().to_string().contains("256 bytes"));
    trx.prepare(&[7; 255]).unwrap();
    trx.commit().unwrap();
    let unknown = db.rollback_prepared(b"\0one").unwrap_err().to_string();
    assert!(unknown.contains("\"\\x00one\""), "{unknown}");
}

#[test]
fn a_transaction_without_changes_can_be_prepared() {
    let (_, _, db) = database();
    let t = table(&db);
    t.put(b"a", b"x1").unwrap();
    let trx = begin(&db, Isolation::Serializable);
    assert!(trx.table(&t).get(b"a").unwrap().is_some());
    trx.prepare(b"reader").unwrap();
    drop(trx);
    assert_eq!(names(&db), [(b"reader".to_vec(), false)]);
    db.commit_prepared(b"reader").unwrap();
    db.drop_table("t").unwrap();
}

/// Temporary tables take part until their session ends.
#[test]
fn temporary_tables_take_part() {
    for ends in [false, true] {
        for commits in [false, true] {
            let (_, _, db) = database();
            let t = table(&db);
            let session = db.session();
            let own = session.create_temporary_table("own", TableOptions::default()).unwrap();
            own.put(b"k", b"before").unwrap();
            let trx = begin(&db, Isolation::RepeatableRead);
            trx.table(&own).put(b"k", b"within").unwrap();
            trx.table(&t).put(b"a", b"y1").unwrap();
            trx.prepare(b"both").unwrap();
            drop(trx);
            if ends {
                drop(session);
            }
            end(&db, b"both", commits);
            assert_eq!(t.get(b"a").unwrap().is_some(), commits);
            if !ends {
                let expected = if commits { b"within".to_vec() } else { b"before".to_vec() };
                assert_eq!(own.get(b"k").unwrap(), Some(expected));
                own.put(b"k", b"after").unwrap();
            }
        }
    }
}

/// Many transactions are prepared, and then committed in the coordinator's order, with one sync for each phase.
#[test]
fn a_coordinator_syncs_once_for_many() {
    let (disk, _, db) = database();
    let t = db.create_table("t", TableOptions::default()).unwrap();
    let mut all: Vec<_> = (0..50u8)
        .map(|n| {
            let trx = begin(&db, Isolation::RepeatableRead);
            trx.table(&t).put(&[n], &[n]).unwrap();
            trx
        })
        .collect();
    let syncs = || db.metrics().log_syncs;
    let before = syncs();
    for (n, trx) in all.iter().enumerate() {
        trx.prepare_with(&[n as u8], FlushLog::Lazy).unwrap();
    }
    db.flush_log().unwrap();
    let prepared = syncs() - before;
    // All of them are prepared after a crash at this point.
    let left = simulated(&disk.survivor(Survive::Nothing), &SimulatedEnv::new(2));
    assert_eq!((left.prepared().len(), left.table("t").unwrap().rows().unwrap().count()), (50, 0));
    let before = syncs();
    // In reverse order, and each commit is visible at once.
    while let Some(trx) = all.pop() {
        trx.commit_with(FlushLog::Lazy).unwrap();
        assert_eq!(t.rows().unwrap().count(), 50 - all.len());
    }
    db.flush_log().unwrap();
    let committed = syncs() - before;
    assert!(prepared <= 2 && committed <= 2, "{prepared} syncs for 50 prepares, {committed} for 50 commits");
    let left = simulated(&disk.survivor(Survive::Nothing), &SimulatedEnv::new(2));
    assert_eq!((left.prepared().len(), left.table("t").unwrap().rows().unwrap().count()), (0, 50));
}

/// A coordinator that recovers ends transactions by their names, and syncs once.
#[test]
fn prepared_transactions_are_ended_by_name_with_one_sync() {
    let (disk, _, db) = database();
    let t = db.create_table("t", TableOptions::default()).unwrap();
    for n in 0..20u8 {
        let trx = begin(&db, Isolation::RepeatableRead);
        trx.table(&t).put(&[n], &[n]).unwrap();
        trx.prepare_with(&[n], FlushLog::Lazy).unwrap();
    }
    db.flush_log().unwrap();
    let left = || {
        let left = simulated(&disk.survivor(Survive::Nothing), &SimulatedEnv::new(2));
        (left.prepared().len(), left.table("t").unwrap().rows().unwrap().count())
    };
    let end_all = |from: u8, mode| {
        for n in from..from + 10 {
            if n % 2 == 0 {
                let end = db.commit_prepared_with(&[n], mode).unwrap().unwrap();
                assert!(end <= db.log_end());
            } else {
                db.rollback_prepared_with(&[n], mode).unwrap();
            }
        }
    };
    let before = db.metrics().log_syncs;
    end_all(0, FlushLog::Lazy);
    assert_eq!(left(), (20, 0), "one of them is durable");
    db.flush_log().unwrap();
    let syncs = db.metrics().log_syncs - before;
    assert!(syncs <= 2, "{syncs} syncs for 10 transactions");
    assert_eq!(left(), (10, 5));
    db.set_flush_log_at_trx_commit(FlushLog::Lazy);
    end_all(10, FlushLog::Sync);
    assert_eq!(left(), (0, 10), "the mode of the database counts");
}

/// The record that a coordinator has of a transaction.
#[derive(Clone, Copy, Debug)]
enum Known {
    /// The transaction was begun, and may be in the middle of its preparation.
    Begun,
    Prepared,
    /// The transaction was asked to commit (`true`) or to roll back.
    Ending(bool),
    Ended(bool),
}

/// Each transaction changes its rows in two tables, is prepared, waits with or without its handle, and is committed or
/// rolled back. Row changes, statements and checkpoints run in between. After a crash at any operation of the disk,
/// including operations of recovery, a coordinator asks for the prepared transactions, and ends each in either way.
#[test]
fn prepared_transactions_survive_every_crash_and_ended_ones_stay_ended() {
    let test = "prepared::prepared_transactions_survive_every_crash_and_ended_ones_stay_ended";
    let _again = whole("transactions", test);
    let (mut points, mut found_prepared, mut found_ended) = (0, 0, 0);
    for seed in 1..4 {
        let disk = SimulatedDisk::new(seed);
        disk.record_crash_points(1..=u64::MAX);
        let (env, chance) = (SimulatedEnv::new(seed), SimulatedEnv::new(seed ^ 0xc0));
        let draw = |n: u64| windfall::env::Env::random(&chance) % n;
        let db = simulated(&disk, &env);
        let (one, two) = (table(&db), db.create_table("two", TableOptions::default()).unwrap());
        drop(disk.take_crash_points());
        let mut known: BTreeMap<u8, Known> = BTreeMap::new();
        let mut visit = |known: &BTreeMap<u8, Known>| {
            for (operation, crash_point) in disk.take_crash_points() {
                for survive in [Survive::Nothing, Survive::Everything, Survive::Random(operation)] {
                    let what = format!("seed {seed}, operation {operation}, {survive:?}");
                    let (prepared, ended) =
                        judge(crash_point.restart(survive), seed + operation, known, &what);
                    found_prepared += prepared;
                    found_ended += ended;
                    points += 1;
                }
            }
        };
        for n in 0..16u8 {
            let trx = begin(&db, Isolation::ALL[usize::from(n) % Isolation::ALL.len()]);
            // Runs a step of the transaction, during which the coordinator's record of it is `now`.
            let mut turn = |now: Known, step: &mut dyn FnMut()| {
                known.insert(n, now);
                step();
                visit(&known);
            };
            turn(Known::Begun, &mut || {
                let (one, two) = (trx.table(&one), trx.table(&two));
                one.put(&[n], &[n, n]).unwrap();
                two.put(&[n], &vec![n; if n % 4 == 0 { 9_000 } else { 50 }]).unwrap();
                one.put(&[n, 0], &[n, 100 + n]).unwrap();
                if draw(3) == 0 {
                    db.checkpoint().unwrap();
                }
                trx.prepare(&[n]).unwrap();
            });
            turn(Known::Prepared, &mut || {
                two.put(b"beside", &[n; 200]).unwrap();
                match draw(4) {
                    0 => db.checkpoint().unwrap(),
                    1 => drop(db.create_table(&format!("more {n}"), TableOptions::default()).unwrap()),
                    _ => env.run_workers(draw(40) as usize),
                }
            });
            let (commits, by_name) = (draw(3) > 0, draw(2) == 0);
            let mut trx = Some(trx);
            turn(Known::Ending(commits), &mut || {
                let trx = trx.take().unwrap();
                match (by_name, commits) {
                    (false, true) => trx.commit().map(drop).unwrap(),
                    (false, false) => trx.rollback().unwrap(),
                    (true, true) => {
                        drop(trx);
                        db.commit_prepared(&[n]).unwrap();
                    }
                    (true, false) => {
                        drop(trx);
                        db.rollback_prepared(&[n]).unwrap();
                    }
                }
            });
            turn(Known::Ended(commits), &mut || {
                env.run_workers(draw(20) as usize);
                if draw(4) == 0 {
                    db.checkpoint().unwrap();
                }
            });
        }
    }
    println!("{points} crashes left {found_prepared} prepared and {found_ended} ended");
    assert!(
        points > 1_000 && found_prepared > 200 && found_ended > 200,
        "{found_prepared} and {found_ended} of {points}"
    );
}

/// Returns the disk after a crash with a prepared transaction that has changed a row of each table.
fn cut_when_prepared() -> SimulatedDisk {
    let (disk, _, db) = database();
    let tables = ["one", "two"].map(|name| db.create_table(name, TableOptions::default()).unwrap());
    for table in &tables {
        table.put(b"a", b"before").unwrap();
    }
    let trx = begin(&db, Isolation::RepeatableRead);
    for table in &tables {
        trx.table(table).put(b"a", b"after").unwrap();
    }
    trx.prepare(b"first").unwrap();
    db.checkpoint().unwrap();
    disk.crash();
    disk.restart(Survive::Everything)
}

#[test]
fn after_a_crash_its_rows_and_tables_are_locked_until_its_end() {
    for commits in [true, false] {
        let (disk, env) = (cut_when_prepared(), SimulatedEnv::new(2));
        let db = simulated(&disk, &env);
        db.set_lock_wait_timeout(core::time::Duration::from_millis(100));
        env.run_workers(500);
        let id = db.prepared()[0].id;
        let refused = |what: &str, done: Result<(), Error>| match done {
            Err(Error::Lock(LockError::TimedOut { blockers, .. })) => {
                assert_eq!(blockers.ids(), [id], "{what}");
            }
            done => panic!("{what}: {done:?}"),
        };
        let index = || windfall::IndexOptions::on_value(0..1);
        for name in ["one", "two"] {
            let table = db.table(name).unwrap();
            assert_eq!(table.get(b"a").unwrap(), Some(b"before".to_vec()));
            refused("put", table.put(b"a", b"other"));
            refused("drop", db.drop_table(name).map(drop));
            refused("truncate", db.truncate_table(name).map(drop));
            refused("index", db.create_index(name, "i", index()));
            table.put(b"b", b"beside").unwrap();
        }
        end(&db, b"first", commits);
        for name in ["one", "two"] {
            let expected = if commits { b"after".to_vec() } else { b"before".to_vec() };
            assert_eq!(db.table(name).unwrap().get(b"a").unwrap(), Some(expected));
        }
        db.create_index("one", "i", index()).unwrap();
        db.truncate_table("two").unwrap();
        db.drop_tables(&["one", "two"]).unwrap();
    }
}

/// On a full disk it is rolled back, or it stays prepared and keeps its name.
#[test]
fn a_full_disk_leaves_it_prepared_or_lets_it_go() {
    let (mut stayed, mut went, mut handed_over) = (0, 0, 0);
    for seed in 0..40 {
        let (disk, env) = (cut_when_prepared(), SimulatedEnv::new(seed));
        let db = simulated(&disk, &env);
        let table = db.create_table("filler", TableOptions::default()).unwrap();
        // This puts the end of the log at different places in a segment.
        (0..seed * 7).for_each(|n| table.put(&n.to_be_bytes(), &[1; 900]).unwrap());
        disk.full_from(Some(0));
        for n in 0..10_000_u64 {
            if table.put(&n.to_be_bytes(), &[2; 3000]).is_err() {
                break;
            }
        }
        let is_listed = match db.rollback_prepared(b"first") {
            Ok(()) => false,
            Err(Error::Transaction(TransactionError::RollingBack { .. })) => {
                // Its tables are free, except for statements that must find no unfinished change in them.
                disk.full_from(None);
                db.set_lock_wait_timeout(core::time::Duration::ZERO);
                let refused = db.create_index("one", "i", windfall::IndexOptions::on_value(0..1));
                assert!(matches!(refused, Err(Error::Lock(LockError::Busy(_)))), "seed {seed}: {refused:?}");
                db.drop_table("two").unwrap();
                handed_over += 1;
                false
            }
            Err(Error::Disk(_)) => true,
            Err(error) => panic!("seed {seed}: {error}"),
        };
        assert_eq!(!db.prepared().is_empty(), is_listed);
        (stayed, went) = (stayed + u64::from(is_listed), went + u64::from(!is_listed));
        let other = begin(&db, Isolation::RepeatableRead);
        assert_eq!(other.prepare(b"first").is_err(), is_listed);
        drop(other);
        disk.full_from(None);
        env.run_workers(2_000);
        if is_listed {
            db.rollback_prepared(b"first").unwrap();
        }
        assert_eq!(db.table("one").unwrap().get(b"a").unwrap(), Some(b"before".to_vec()));
        db.check().unwrap();
    }
    println!("{stayed} stayed prepared, {went} were rolled back, {handed_over} of them in the background");
    assert!(handed_over > 0);
}

/// The number of rows that a transaction changes so that its rollback is longer than the log buffer.
const ROWS: u16 = 2_000;

/// After its prepare, a transaction of any size commits on a full disk, by its handle or its name, and after a crash.
#[test]
fn a_prepared_transaction_commits_on_a_full_disk() {
    for (rows, seed) in [1, 4 * ROWS].into_iter().flat_map(|rows| (0..6).map(move |seed| (rows, seed))) {
        let what = format!("{rows} rows, seed {seed}");
        let (disk, env, db) = database();
        let [t, filler] = ["t", "filler"].map(|name| db.create_table(name, TableOptions::default()).unwrap());
        (0..rows).for_each(|n| t.insert(&n.to_be_bytes(), &[1; 100]).unwrap());
        let trx = begin(&db, Isolation::RepeatableRead);
        let within = trx.table(&t);
        (0..rows).for_each(|n| within.put(&n.to_be_bytes(), &[2; 100]).unwrap());
        drop(within);
        trx.prepare(b"first").unwrap();
        // This puts the end of the log at different places in a segment.
        (0..seed * 7).for_each(|n: u64| filler.put(&n.to_be_bytes(), &[1; 900]).unwrap());
        let fill = |disk: &SimulatedDisk, filler: &Table| {
            disk.full_from(Some(0));
            (0..10_000_u64).find_map(|n| filler.put(&n.to_be_bytes(), &[3; 3000]).err()).expect("a full disk")
        };
        let (db, env) = match seed % 3 {
            0 => {
                fill(&disk, &filler);
                trx.commit().unwrap_or_else(|error| panic!("{what}: {error}"));
                (db, env)
            }
            1 => {
                drop(trx);
                fill(&disk, &filler);
                db.commit_prepared(b"first").unwrap_or_else(|error| panic!("{what}: {error}"));
                (db, env)
            }
            _ => {
                drop(trx);
                let (disk, env) = (disk.survivor(Survive::Everything), SimulatedEnv::new(seed));
                let db = simulated(&disk, &env);
                fill(&disk, &db.table("filler").unwrap());
                db.commit_prepared(b"first").unwrap_or_else(|error| panic!("{what}: {error}"));
                disk.full_from(None);
                (db, env)
            }
        };
        disk.full_from(None);
        env.run_workers(500);
        let t = db.table("t").unwrap();
        assert!((0..rows).all(|n| t.get(&n.to_be_bytes()).unwrap() == Some(vec![2; 100])), "{what}");
    }
}

/// The rollback of the transaction is longer than the log buffer: a part of it is durable when the rest is not.
#[test]
fn a_partly_rolled_back_transaction_is_not_prepared_any_more() {
    let _again = whole("transactions", "prepared::a_partly_rolled_back_transaction_is_not_prepared_any_more");
    let (disk, _, db) = database();
    let t = db.create_table("t", TableOptions::default()).unwrap();
    (0..ROWS).for_each(|n| t.insert(&n.to_be_bytes(), &[1; 100]).unwrap());
    let trx = begin(&db, Isolation::RepeatableRead);
    let within = trx.table(&t);
    (0..ROWS).for_each(|n| within.put(&n.to_be_bytes(), &[2; 100]).unwrap());
    trx.prepare(b"long").unwrap();
    drop(within);
    drop(trx);
    disk.record_crash_points(1..=u64::MAX);
    db.rollback_prepared(b"long").unwrap();
    let (mut prepared, mut not) = (0, 0);
    for (operation, crash_point) in disk.take_crash_points() {
        for survive in [Survive::Nothing, Survive::Everything, Survive::Random(operation)] {
            let what = format!("operation {operation}, {survive:?}");
            let env = SimulatedEnv::new(operation);
            let db = simulated(&crash_point.restart(survive), &env);
            let is_prepared = !db.prepared().is_empty();
            if is_prepared {
                db.commit_prepared(b"long").unwrap();
                prepared += 1;
            } else {
                env.run_workers(2_000);
                not += 1;
            }
            let expected = if is_prepared { [2; 100] } else { [1; 100] };
            let rows: Vec<_> = db.table("t").unwrap().rows().unwrap().map(Result::unwrap).collect();
            assert_eq!(rows.len(), usize::from(ROWS), "{what}");
            assert!(rows.iter().all(|(_, value)| *value == expected), "{what}: it ended in part");
            assert_eq!(db.metrics().active_transactions, 0, "{what}");
        }
    }
    assert!(prepared > 0 && not > 2, "{prepared} crashes found it prepared, {not} did not");
}

/// Checks what a crash has left of the transactions with these records. Returns how many are prepared, and how many
/// have ended.
fn judge(mut disk: SimulatedDisk, luck: u64, known: &BTreeMap<u8, Known>, what: &str) -> (u64, u64) {
    // Recovery crashes, too.
    for round in 0..luck % 3 {
        disk.crash_at(1 + (luck >> 8) % 50);
        let env = SimulatedEnv::new(luck);
        let shared = (Arc::new(disk.clone()), Arc::new(env.clone()));
        if let Ok(db) = Database::open_on(shared.0, shared.1, &options(), &|_| {}) {
            env.run_workers(20);
            drop(db);
        }
        disk = disk.restart(Survive::Random(luck ^ round));
    }
    let env = SimulatedEnv::new(luck);
    let db = simulated(&disk, &env);
    let prepared: Vec<u8> = db.prepared().iter().map(|one| one.xid[0]).collect();
    let tables = [db.table("t").unwrap(), db.table("two").unwrap()];
    let is_there = |n: u8| {
        let found = [tables[0].get(&[n]).unwrap(), tables[1].get(&[n]).unwrap()].map(|row| row.is_some());
        assert_eq!(found[0], found[1], "{what}: transaction {n} is there in part");
        assert_eq!(found[0], tables[0].get(&[n, 0]).unwrap().is_some(), "{what}: {n} is there in part");
        found[0]
    };
    for (n, known) in known {
        let (is_prepared, is_there) = (prepared.contains(n), is_there(*n));
        assert!(!(is_prepared && is_there), "{what}: {n} is prepared, and seen");
        match known {
            Known::Begun => assert!(!is_there, "{what}: {n} was committed"),
            Known::Prepared => assert!(is_prepared, "{what}: {n} was prepared, and is lost"),
            Known::Ending(commits) => {
                assert!(is_prepared || is_there == *commits, "{what}: {n} ended otherwise");
            }
            Known::Ended(commits) => {
                assert!(!is_prepared && is_there == *commits, "{what}: {n} has ended otherwise");
            }
        }
    }
    // The coordinator ends the prepared transactions, and all background work finishes.
    for (turn, n) in (luck..).zip(&prepared) {
        if turn % 2 == 0 {
            db.commit_prepared(&[*n]).unwrap();
        } else {
            db.rollback_prepared(&[*n]).unwrap();
        }
        assert_eq!(is_there(*n), turn % 2 == 0, "{what}: {n} has not ended as requested");
    }
    env.run_workers(400);
    assert_eq!(db.metrics().active_transactions, 0, "{what}");
    for table in &tables {
        table.put(&[0], &[0, 250]).unwrap();
    }
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new(), "{what}");
    (prepared.len() as u64, (known.len() - prepared.len()) as u64)
}

/// Each step of the cursor is refused, and holds the state of the transaction for a moment.
#[test]
fn a_step_of_a_cursor_that_is_refused_keeps_no_dropped_transaction() {
    let db = super::database();
    let t = db.create_table("t", TableOptions::default()).unwrap();
    for n in 0..500u32 {
        let xid = n.to_be_bytes();
        let trx = begin(&db, Isolation::ReadCommitted);
        trx.table(&t).put(&xid, b"value").unwrap();
        let mut cursor = trx.table(&t).cursor().unwrap();
        trx.prepare_with(&xid, FlushLog::Lazy).unwrap();
        let (steps, enough) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
        thread::scope(|scope| {
            scope.spawn(|| {
                while steps.fetch_add(1, SeqCst) < enough.load(SeqCst) {
                    cursor.next().unwrap_err();
                }
            });
            while steps.load(SeqCst) < 100 {
                thread::yield_now();
            }
            drop(trx);
            // A step that is in progress leaves it to be ended by its name.
            wait_until("a transaction without a handle", || db.prepared().iter().all(|one| !one.in_use));
            db.commit_prepared(&xid).unwrap();
            enough.store(0, SeqCst);
        });
    }
}
