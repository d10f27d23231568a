//! Rollbacks that continue while the database is open.

use std::{sync::Arc, time::Duration};

use windfall::{
    Database, Error, IndexOptions, Isolation, Table, TableOptions, TransactionState,
    disk::{Disk, FileName, Folder},
    env::Env,
    error::{LockError, TransactionError},
    ids::SpaceId,
};
use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

use super::{begin, options, simulated, table};

const ROWS: u16 = 2_000;

/// Creates two tables, and crashes in the middle of a transaction that has changed or deleted all rows of the first.
fn crash_during_a_long_transaction() -> SimulatedDisk {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = simulated(&disk, &env);
    for name in ["t", "other"] {
        let definition = TableOptions::default().index("first", IndexOptions::on_value(0..1));
        let table = db.create_table(name, definition).unwrap();
        (0..ROWS).for_each(|n| table.insert(&n.to_be_bytes(), &[1; 100]).unwrap());
    }
    let trx = begin(&db, Isolation::RepeatableRead);
    let within = trx.table(&db.table("t").unwrap());
    for n in 0..ROWS {
        let key = n.to_be_bytes();
        if n % 3 == 0 { within.delete(&key).map(drop).unwrap() } else { within.put(&key, &[2; 100]).unwrap() }
    }
    within.insert(b"new", &[2; 100]).unwrap();
    db.checkpoint().unwrap();
    disk.crash();
    drop(within);
    drop((trx, db));
    disk.restart(Survive::Everything)
}

/// Returns whether the rows are those from before the transaction, by key and by index.
fn is_as_before(table: &Table) -> bool {
    let rows: Vec<_> = table.rows().unwrap().map(Result::unwrap).collect();
    let index = table.index("first").unwrap();
    let by_index = index.range::<&[u8]>(..).unwrap().map(Result::unwrap).filter(|row| row.value == [1; 100]);
    rows.len() == usize::from(ROWS)
        && rows.iter().all(|(_, value)| *value == [1; 100])
        && by_index.count() == rows.len()
}

/// Opens the database with a log so small that it reserves no rollback space for a long transaction.
fn with_a_small_log(disk: &SimulatedDisk, env: &SimulatedEnv) -> Database {
    let options = options().log_size(1 << 20);
    Database::open_on(Arc::new(disk.clone()), Arc::new(env.clone()), &options, &|_| {}).unwrap()
}

fn run_until_idle(db: &Database, env: &SimulatedEnv) {
    env.run_workers(2_000);
    let metrics = db.metrics();
    assert_eq!((metrics.rollbacks_pending, metrics.active_transactions), (0, 0));
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}

#[test]
fn a_list_shows_the_active_transactions_and_their_states() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = simulated(&disk, &env);
    let t = table(&db);
    let states = |db: &Database| -> Vec<TransactionState> {
        db.transactions().into_iter().map(|one| one.state).collect()
    };
    let open = begin(&db, Isolation::RepeatableRead);
    assert_eq!((states(&db), db.views()), (Vec::new(), Vec::new()), "it has done nothing");
    open.table(&t).get(b"a").unwrap();
    open.table(&t).put(b"a", b"x1").unwrap();
    let prepared = begin(&db, Isolation::ReadCommitted);
    prepared.table(&t).put(b"b", b"y2").unwrap();
    prepared.prepare(b"one").unwrap();
    env.advance(Duration::from_secs(100));
    let listed = db.transactions();
    assert_eq!(listed.iter().map(|one| Some(one.id)).collect::<Vec<_>>(), [open.id(), prepared.id()]);
    assert!(listed.iter().all(|one| one.has_changes && one.age >= Duration::from_secs(100)), "{listed:?}");
    let levels = listed.iter().map(|one| one.isolation).collect::<Vec<_>>();
    assert_eq!(levels, [Some(Isolation::RepeatableRead), Some(Isolation::ReadCommitted)]);
    let both = [TransactionState::Open, TransactionState::Prepared(b"one".to_vec())];
    assert_eq!(states(&db), both);
    let views = db.views();
    assert!(views[0].ids_since == 2 && views[0].age >= Duration::from_secs(100), "{views:?}");
    assert_eq!(views.len(), 1, "READ COMMITTED keeps none");
    db.flush_log().unwrap();
    // A transaction that a crash has left unfinished is rolled back, and a prepared one waits.
    let (disk, env) = (disk.restart(Survive::Nothing), SimulatedEnv::new(2));
    let again = simulated(&disk, &env);
    let both = [TransactionState::RollingBack, TransactionState::Prepared(b"one".to_vec())];
    assert_eq!(states(&again), both);
    env.run_workers(300);
    assert_eq!(states(&again), both[1..]);
    assert_eq!(again.transactions()[0].isolation, None, "no crash keeps it");
    again.rollback_prepared(b"one").unwrap();
    assert_eq!(states(&again), []);
    drop((t, open, prepared));
}

#[test]
fn a_list_has_the_locks_and_changes_of_each_transaction() {
    let db = simulated(&SimulatedDisk::new(1), &SimulatedEnv::new(1));
    let t = db.create_table("t", TableOptions::default()).unwrap();
    (0..10u8).for_each(|n| t.put(&[n], b"value").unwrap());
    let (one, other) = (begin(&db, Isolation::ReadCommitted), begin(&db, Isolation::Serializable));
    (0..3u8).for_each(|n| assert!(one.table(&t).get_for_update(&[n]).unwrap().is_some()));
    other.table(&t).get(&[9]).unwrap();
    (5..9u8).for_each(|n| other.table(&t).put(&[n], b"changed").unwrap());
    let counts = || db.transactions().iter().map(|one| (one.row_locks, one.changes)).collect::<Vec<_>>();
    assert_eq!(counts(), [(3, 0), (1, 4)]);
    assert!(one.table(&t).delete(&[0]).unwrap());
    assert_eq!(counts()[0].1, 1);
    one.commit().unwrap();
    assert_eq!(counts(), [(1, 4)]);
}

#[test]
fn commits_and_rollbacks_are_counted() {
    let db = simulated(&SimulatedDisk::new(1), &SimulatedEnv::new(1));
    let t = db.create_table("t", TableOptions::default()).unwrap();
    let counts = || {
        let metrics = db.metrics();
        [metrics.commits, metrics.rollbacks, metrics.prepared_transactions]
    };
    let mut before = counts();
    let mut have_risen = |by: [u64; 3]| {
        let now = counts();
        assert_eq!(now, core::array::from_fn(|n| before[n] + by[n]));
        before = [now[0], now[1], before[2]];
    };
    let changed = |key: u8| {
        let trx = begin(&db, Isolation::RepeatableRead);
        trx.table(&t).put(&[key], b"value").unwrap();
        trx
    };
    t.put(b"a", b"alone").unwrap();
    have_risen([1, 0, 0]);
    changed(1).commit().unwrap();
    have_risen([1, 0, 0]);
    changed(2).rollback().unwrap();
    drop(changed(3));
    have_risen([0, 2, 0]);
    let reader = begin(&db, Isolation::RepeatableRead);
    reader.table(&t).get(b"a").unwrap();
    reader.commit().unwrap();
    have_risen([0, 0, 0]);
    let (kept, lost) = (changed(4), changed(5));
    kept.prepare(b"kept").unwrap();
    lost.prepare(b"lost").unwrap();
    have_risen([0, 0, 2]);
    kept.commit().unwrap();
    drop(lost);
    have_risen([1, 0, 1]);
    db.rollback_prepared(b"lost").unwrap();
    have_risen([0, 1, 0]);
}

/// Whether or not they have looked at the row before they would have written undo.
#[test]
fn calls_without_an_effect_are_not_counted() {
    let db = simulated(&SimulatedDisk::new(1), &SimulatedEnv::new(1));
    let options = [TableOptions::default(), TableOptions::default().index("i", IndexOptions::on_value(0..1))];
    for (name, options) in ["plain", "indexed"].into_iter().zip(options) {
        let t = db.create_table(name, options).unwrap();
        t.put(b"a", b"value").unwrap();
        t.put(b"b", b"value").unwrap();
        let counts = || [db.metrics().commits, db.metrics().rollbacks];
        let before = counts();
        assert!(!t.delete(b"missing").unwrap());
        t.update(b"missing", b"value").unwrap_err();
        t.insert(b"a", b"value").unwrap_err();
        t.change_key_with(b"missing", b"c", b"value", &[]).unwrap_err();
        assert_eq!(counts(), before, "{name}");
        // A call that does not get a lock.
        let trx = begin(&db, Isolation::RepeatableRead);
        trx.table(&t).get_for_update(b"a").unwrap();
        db.set_lock_wait_timeout(Duration::ZERO);
        t.put(b"a", b"other").unwrap_err();
        t.delete(b"a").unwrap_err();
        t.change_key_with(b"a", b"c", b"value", &[]).unwrap_err();
        assert_eq!(counts(), before, "{name}");
        trx.commit().unwrap();
        assert_eq!(counts(), [before[0] + 1, before[1]], "{name}");
        // The deletion is made and rolled back.
        t.change_key_with(b"a", b"b", b"value", &[]).unwrap_err();
        assert_eq!(counts(), [before[0] + 1, before[1] + 1], "{name}");
        assert!(t.delete(b"a").unwrap());
        t.change_key_with(b"b", b"c", b"value", &[]).unwrap();
        assert_eq!(counts(), [before[0] + 3, before[1] + 1], "{name}");
    }
}

#[test]
fn the_database_is_open_while_unfinished_transactions_are_rolled_back() {
    let (disk, env) = (crash_during_a_long_transaction(), SimulatedEnv::new(2));
    let db = simulated(&disk, &env);
    let (table, other) = (db.table("t").unwrap(), db.table("other").unwrap());
    assert_eq!(db.metrics().rollbacks_pending, 1, "opening has waited for it");
    // Readers see the old rows, and other tables are not affected.
    assert!(is_as_before(&table) && is_as_before(&other));
    other.put(b"new", &[3; 100]).unwrap();
    assert_eq!(db.metrics().rollbacks_pending, 1, "the test has looked too late");
    // A call that needs its rows waits.
    table.put(&[0, 0], &[1; 100]).unwrap();
    table.delete(b"new").unwrap();
    assert_eq!(db.metrics().rollbacks_pending, 0);
    assert!(is_as_before(&table));
    run_until_idle(&db, &env);
    db.close().unwrap();
}

#[test]
fn an_index_build_waits_only_for_unfinished_transactions_on_its_table() {
    let (disk, env) = (crash_during_a_long_transaction(), SimulatedEnv::new(2));
    let db = simulated(&disk, &env);
    db.set_lock_wait_timeout(Duration::ZERO);
    let refused = db.create_index("t", "more", IndexOptions::on_value(1..2));
    assert!(matches!(refused, Err(Error::Lock(LockError::Busy(_)))), "{refused:?}");
    db.set_lock_wait_timeout(Duration::from_secs(100));
    // The search for the tables that it has changed comes first.
    db.create_index("other", "more", IndexOptions::on_value(1..2)).unwrap();
    assert_eq!(db.metrics().rollbacks_pending, 1, "it has waited for all of it");
    db.create_index("t", "more", IndexOptions::on_value(1..2)).unwrap();
    assert_eq!(db.metrics().rollbacks_pending, 0);
    let count = db.table("t").unwrap().index("more").unwrap().range::<&[u8]>(..).unwrap().count();
    assert_eq!(count, usize::from(ROWS));
    run_until_idle(&db, &env);
    db.close().unwrap();
}

#[test]
fn a_drop_and_a_truncation_wait_for_nothing_that_was_unfinished() {
    for truncates in [false, true] {
        let (disk, env) = (crash_during_a_long_transaction(), SimulatedEnv::new(2));
        let db = simulated(&disk, &env);
        if truncates {
            db.truncate_table("t").unwrap()
        } else {
            db.drop_table("t").unwrap()
        };
        assert_eq!(db.metrics().rollbacks_pending, 1, "it has waited");
        if truncates {
            let table = db.table("t").unwrap();
            table.insert(b"new", b"row").unwrap();
            assert_eq!(table.rows().unwrap().count(), 1);
        }
        run_until_idle(&db, &env);
        db.close().unwrap();
    }
}

#[test]
fn closing_leaves_the_rest_to_the_next_opening() {
    let (mut disk, mut openings) = (crash_during_a_long_transaction(), 0);
    loop {
        let env = SimulatedEnv::new(openings);
        let db = simulated(&disk, &env);
        let left = db.metrics().rollbacks_pending;
        assert!(is_as_before(&db.table("t").unwrap()));
        for _ in 0..45 {
            env.step(None);
        }
        // By a clean close, or by a crash.
        if openings % 2 == 0 {
            db.close().unwrap();
        } else {
            disk.crash();
            drop(db);
            disk = disk.restart(Survive::Nothing);
        }
        if left == 0 {
            break;
        }
        openings += 1;
    }
    assert!(openings >= 2, "it was taken back at once");
    let db = simulated(&disk, &SimulatedEnv::new(9));
    assert!(is_as_before(&db.table("t").unwrap()));
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}

#[test]
fn a_page_that_cannot_be_read_holds_up_one_rollback_and_nothing_else() {
    for drops in [false, true] {
        let (disk, env) = (crash_during_a_long_transaction(), SimulatedEnv::new(2));
        let aside = simulated(&disk.survivor(Survive::Everything), &SimulatedEnv::new(0));
        let report = aside.check().unwrap();
        let file = FileName::Data(report.trees.iter().find(|tree| tree.table == "t").unwrap().space);
        drop(aside);
        // Every access needs the root, so the bad page is one of the leaves.
        let bad = 8 * 4096;
        disk.make_unreadable(file, bad);
        let db = simulated(&disk, &env);
        env.run_workers(2_000);
        assert_eq!(db.metrics().rollbacks_pending, 1, "it continued without the page");
        let other = db.table("other").unwrap();
        let trx = begin(&db, Isolation::RepeatableRead);
        trx.table(&other).put(b"new", &[1; 100]).unwrap();
        trx.rollback().unwrap();
        assert!(is_as_before(&other));
        if drops {
            db.drop_table("t").unwrap();
        } else {
            disk.make_readable(file, bad);
        }
        env.run_workers(5_000);
        run_until_idle(&db, &env);
        assert!(drops || is_as_before(&db.table("t").unwrap()));
        db.close().unwrap();
    }
}

/// An unreadable page of undo affects only the transactions that may have records in it.
#[test]
fn a_search_that_cannot_go_on_holds_up_no_other_rollback() {
    let (disk, env) = (crash_during_a_long_transaction(), SimulatedEnv::new(2));
    let aside = simulated(&disk.survivor(Survive::Everything), &SimulatedEnv::new(0));
    let trees: Vec<SpaceId> = aside.check().unwrap().trees.iter().map(|tree| tree.space).collect();
    drop(aside);
    let undo = disk.list(Folder::Data).unwrap().into_iter().filter(
        |file| matches!(file, FileName::Data(space) if *space != SpaceId::SYSTEM && !trees.contains(space)),
    );
    let undo: Vec<FileName> = undo.collect();
    assert!(!undo.is_empty());
    let pages = || undo.iter().flat_map(|file| (0..64).map(|page| (*file, page * 4096)));
    let db = with_a_small_log(&disk, &env);
    pages().for_each(|(file, offset)| disk.make_unreadable(file, offset));
    env.run_workers(2_000);
    assert_eq!(db.metrics().rollbacks_pending, 1, "the search needs none of these pages");
    let other = db.table("other").unwrap();
    let trx = begin(&db, Isolation::RepeatableRead);
    let within = trx.table(&other);
    // In several rounds, so that its rollback is longer than a log segment.
    for round in 0..4 {
        (0..ROWS).for_each(|n| within.put(&n.to_be_bytes(), &[3 + round; 100]).unwrap());
    }
    disk.full_from(Some(0));
    let done = trx.rollback();
    assert!(matches!(done, Err(Error::Transaction(TransactionError::RollingBack { .. }))), "{done:?}");
    assert_eq!(db.metrics().rollbacks_pending, 2);
    disk.full_from(None);
    env.run_workers(10_000);
    assert_eq!(db.metrics().rollbacks_pending, 1, "it waits for the search");
    other.put(&[0, 0], &[1; 100]).unwrap();
    assert!(is_as_before(&other));
    pages().for_each(|(file, offset)| disk.make_readable(file, offset));
    env.run_workers(10_000);
    run_until_idle(&db, &env);
    assert!(is_as_before(&db.table("t").unwrap()));
}

/// In a simulation everything runs on one thread: no call may wait for something further up its own stack.
#[test]
fn a_check_during_a_rollback_with_a_view_that_holds_up_purge_comes_to_an_end() {
    for seed in 0..20 {
        let (disk, env) = (crash_during_a_long_transaction(), SimulatedEnv::new(seed));
        let db = simulated(&disk, &env);
        let (table, other) = (db.table("t").unwrap(), db.table("other").unwrap());
        let reader = begin(&db, Isolation::RepeatableRead);
        assert_eq!(reader.table(&other).get(&[0, 0]).unwrap(), Some(vec![1; 100]));
        (0..50u16).for_each(|n| other.put(&n.to_be_bytes(), &[3; 100]).unwrap());
        // Both tables have changes that must be rolled back.
        let trx = begin(&db, Isolation::ReadCommitted);
        for n in 100..110u16 {
            trx.table(&other).put(&n.to_be_bytes(), &[4; 100]).unwrap();
        }
        for check in [Database::check, Database::check_live] {
            assert_eq!(check(&db).unwrap().findings, Vec::<String>::new(), "seed {seed}");
        }
        trx.rollback().unwrap();
        assert_eq!(reader.table(&other).get(&[0, 0]).unwrap(), Some(vec![1; 100]));
        drop(reader);
        run_until_idle(&db, &env);
        assert!(is_as_before(&table));
    }
}

/// If rows cannot be compared with entries, because an interrupted change is not rolled back yet, the check reports
/// that, and it is no finding.
#[test]
fn a_check_waits_for_a_rollback_as_long_as_a_call_for_a_lock() {
    let (disk, env) = (crash_during_a_long_transaction(), SimulatedEnv::new(2));
    let db = simulated(&disk, &env);
    db.set_lock_wait_timeout(Duration::ZERO);
    let report = db.check_live().unwrap();
    assert_eq!(report.findings, Vec::<String>::new());
    // The search for the tables that it has changed has not run yet.
    assert_eq!((report.uncompared, db.metrics().rollbacks_pending), (vec!["other".into(), "t".into()], 1));
    db.set_lock_wait_timeout(Duration::from_secs(100));
    let report = db.check_live().unwrap();
    assert_eq!((report.findings, report.uncompared), (Vec::new(), Vec::new()));
    assert_eq!(db.metrics().rollbacks_pending, 0);
    run_until_idle(&db, &env);
}

#[test]
fn a_check_does_not_wait_for_a_rollback_that_cannot_go_on() {
    let (disk, env) = (crash_during_a_long_transaction(), SimulatedEnv::new(2));
    let aside = simulated(&disk.survivor(Survive::Everything), &SimulatedEnv::new(0));
    let report = aside.check().unwrap();
    let file = FileName::Data(report.trees.iter().find(|tree| tree.table == "t").unwrap().space);
    drop(aside);
    disk.make_unreadable(file, 8 * 4096);
    let db = simulated(&disk, &env);
    db.set_lock_wait_timeout(Duration::from_secs(10_000));
    for check in [Database::check, Database::check_live] {
        let report = check(&db).unwrap();
        // The findings are the damage of this page, and nothing else.
        assert!(!report.findings.is_empty());
        let is_of_the_page =
            |finding: &String| finding.contains(&file.to_string()) || finding.contains("page 8");
        assert!(report.findings.iter().all(is_of_the_page), "{:?}", report.findings);
        assert_eq!(db.metrics().rollbacks_pending, 1);
    }
    assert!(env.now() < Duration::from_secs(1_000), "{:?}", env.now());
}

/// A transaction with more undo than the log reserves rollback space for, on a full disk.
#[test]
fn a_rollback_stopped_by_a_full_disk_resumes_when_space_is_free() {
    let (mut handed_over, mut at_once) = (0, 0);
    for seed in 0..30 {
        let (disk, env) = (SimulatedDisk::new(seed), SimulatedEnv::new(seed));
        let db = with_a_small_log(&disk, &env);
        let table = db
            .create_table("t", TableOptions::default().index("first", IndexOptions::on_value(0..1)))
            .unwrap();
        (0..ROWS).for_each(|n| table.insert(&n.to_be_bytes(), &[1; 100]).unwrap());
        let trx = begin(&db, Isolation::RepeatableRead);
        let within = trx.table(&table);
        (0..ROWS).for_each(|n| within.put(&n.to_be_bytes(), &[2; 100]).unwrap());
        if seed % 2 == 0 {
            trx.savepoint("here").unwrap();
            within.put(b"new", &[2; 100]).unwrap();
        }
        disk.full_from(Some(0));
        match trx.rollback() {
            Ok(()) => at_once += 1,
            Err(Error::Transaction(TransactionError::RollingBack { .. })) => {
                handed_over += 1;
                assert_eq!(db.metrics().rollbacks_pending, 1);
                // None of its changes is visible, and its rows stay locked.
                assert!(is_as_before(&table));
            }
            Err(error) => panic!("seed {seed}: {error}"),
        }
        env.run_workers(100);
        if seed % 3 == 0 {
            // A drop frees space, and waits for no rollback.
            db.drop_table("t").unwrap();
        }
        disk.full_from(None);
        env.run_workers(3_000);
        if seed % 3 == 0 {
            run_until_idle(&db, &env);
            continue;
        }
        table.put(&[0, 0], &[1; 100]).unwrap();
        assert!(is_as_before(&table), "seed {seed}");
        run_until_idle(&db, &env);
        db.close().unwrap();
    }
    assert!(handed_over > 0, "{at_once} of 30 found room on a full disk");
}
