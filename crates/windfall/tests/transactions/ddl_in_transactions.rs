//! DDL statements in the name of a transaction that has changed their tables.

use std::{thread, time::Duration};

use windfall::{
    Database, DdlGroup, Error, HeldLock, InterruptHandle, Isolation, Lock, Result, RowMode, StatementEnd,
    TableChanges, TableMode, TableOptions, Transaction, TransactionOptions,
    env::Env,
    error::{LockError, SchemaError, TransactionError, UsageError},
};
use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

use super::{await_lock_wait, begin, calls, database, pairs, rows, simulated, table, waits::scripted};

const SECOND: Duration = Duration::from_secs(1);

type Fill = fn(&mut DdlGroup) -> &mut DdlGroup;
type Rows = Vec<(Vec<u8>, Vec<u8>)>;

/// Statements on table `t`, and whether it keeps its rows.
const STATEMENTS: [(&str, Fill, Keeps); 8] = [
    ("drop", |group| group.drop_table("t"), Keeps::Nothing),
    ("truncate", |group| group.truncate_table("t"), Keeps::Table("t")),
    ("rename", |group| group.rename_table("t", "moved"), Keeps::Rows("moved")),
    ("swap", |group| group.swap_tables("t", "other"), Keeps::Rows("other")),
    ("drop of an index", |group| group.drop_index("t", "second"), Keeps::Rows("t")),
    (
        "alteration",
        |group| {
            let changes =
                TableChanges::default().rename_index("second", "2").metadata(vec![7; 9000]).numbers(9);
            group.alter_table("t", changes.name("moved"))
        },
        Keeps::Rows("moved"),
    ),
    (
        "another table of the name",
        |group| group.drop_table("t").create_table("t", TableOptions::default()),
        Keeps::Table("t"),
    ),
    ("truncation and rename", |group| group.truncate_table("t").rename_table("t", "u"), Keeps::Table("u")),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeps {
    Nothing,
    /// An empty table of this name.
    Table(&'static str),
    /// The rows, in a table of this name.
    Rows(&'static str),
}

fn commit_in(db: &Database, trx: &Transaction, fill: Fill) -> Result<()> {
    let mut group = db.ddl();
    fill(&mut group);
    group.commit_in(trx).map(drop)
}

fn contents(db: &Database, name: &str) -> Rows {
    db.table(name).unwrap().rows().unwrap().map(Result::unwrap).collect()
}

fn assert_sound(db: &Database, what: &str) {
    let report = db.check().unwrap();
    assert_eq!((report.findings, report.uncompared), (Vec::<String>::new(), Vec::new()), "{what}");
}

/// Creates table `t` with two rows, and table `other`, and changes both in a transaction.
fn changed(db: &Database) -> Transaction {
    let (t, other) = (table(db), db.create_table("other", TableOptions::default()).unwrap());
    t.insert(b"a", b"x1").unwrap();
    t.insert(b"b", b"x2").unwrap();
    other.insert(b"o", b"old").unwrap();
    let trx = begin(db, Isolation::ReadCommitted);
    trx.savepoint("first").unwrap();
    let within = trx.table(&t);
    within.insert(b"c", b"y3").unwrap();
    within.put(b"a", &[b'y'; 3000]).unwrap();
    within.delete(b"b").unwrap();
    trx.savepoint("second").unwrap();
    within.put(b"c", b"z4").unwrap();
    trx.table(&other).put(b"o", b"new").unwrap();
    trx
}

/// Nothing is waited for, and each end of the transaction leaves what it should.
#[test]
fn a_statement_in_the_name_of_a_transaction_is_not_undone_and_leaves_its_other_changes() {
    type End = fn(&Database, Transaction);
    let ends: [(&str, bool, End); 6] = [
        ("commit", true, |_, trx| trx.commit().map(drop).unwrap()),
        ("rollback", false, |_, trx| trx.rollback().unwrap()),
        ("a dropped handle", false, |_, trx| drop(trx)),
        ("savepoints", false, |_, trx| {
            trx.rollback_to("second").unwrap();
            trx.rollback_to("first").unwrap();
            trx.commit().unwrap();
        }),
        ("a prepared one, committed", true, |db, trx| {
            trx.prepare(b"x").unwrap();
            drop(trx);
            db.commit_prepared(b"x").unwrap();
        }),
        ("a prepared one, rolled back", false, |db, trx| {
            trx.prepare(b"x").unwrap();
            trx.rollback().unwrap();
            assert!(db.prepared().is_empty());
        }),
    ];
    for (name, fill, keeps) in STATEMENTS {
        for (how, commits, end) in ends {
            let what = format!("{name}, {how}");
            let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
            let db = simulated(&disk, &env);
            let trx = changed(&db);
            commit_in(&db.with_ddl_timeout(Duration::ZERO), &trx, fill).unwrap();
            end(&db, trx);
            env.run_workers(300);
            let kept = if commits {
                vec![(b"a".to_vec(), vec![b'y'; 3000]), (b"c".to_vec(), b"z4".to_vec())]
            } else {
                pairs([("a", "x1"), ("b", "x2")])
            };
            match keeps {
                Keeps::Nothing => assert!(db.table("t").is_err(), "{what}"),
                Keeps::Table(name) => {
                    assert_eq!(contents(&db, name), [], "{what}");
                    assert_eq!(db.table(name).unwrap().row_count().unwrap(), 0, "{what}");
                }
                Keeps::Rows(name) => {
                    assert_eq!(rows(&db.table(name).unwrap()), kept, "{what}");
                    assert_eq!(db.table(name).unwrap().row_count().unwrap(), 2, "{what}");
                }
            }
            let other = if name == "swap" { "t" } else { "other" };
            let value = if commits { "new" } else { "old" };
            assert_eq!(contents(&db, other), pairs([("o", value)]), "{what}");
            assert!(db.locks().is_empty(), "{what}");
            assert_sound(&db, &what);
            drop(db);
            let db = simulated(&disk, &SimulatedEnv::new(2));
            assert_eq!(contents(&db, other), pairs([("o", value)]), "{what}, opened again");
            assert_sound(&db, &what);
        }
    }
}

/// The transaction goes on, also with the tables that the statement has changed.
#[test]
fn a_transaction_goes_on_after_a_statement_in_its_name() {
    for (name, fill, keeps) in STATEMENTS {
        let db = database();
        let trx = changed(&db);
        let mut cursor = trx.table(&db.table("t").unwrap()).cursor_for_update().unwrap();
        assert!(cursor.next().unwrap());
        trx.begin_statement().unwrap();
        trx.table(&db.table("t").unwrap()).put(b"d", b"w5").unwrap();
        commit_in(&db, &trx, fill).unwrap();
        let goes_on = cursor.next();
        if let Keeps::Rows(_) = keeps {
            assert!(goes_on.unwrap(), "{name}");
        } else {
            assert!(matches!(goes_on, Err(Error::TableDropped(_))), "{name}: {goes_on:?}");
        }
        trx.end_statement(StatementEnd::Undo).unwrap();
        if let Keeps::Table(table) | Keeps::Rows(table) = keeps {
            let table = db.table(table).unwrap();
            let here = trx.set_savepoint().unwrap();
            trx.table(&table).insert(b"e", b"v6").unwrap();
            trx.rollback_to_savepoint(&here).unwrap();
            trx.table(&table).insert(b"f", b"u7").unwrap();
            assert_eq!(trx.table(&table).get(b"f").unwrap().as_deref(), Some(&b"u7"[..]));
            // Others wait for it, as for any change.
            let busy = db.with_ddl_timeout(Duration::ZERO).drop_table(table.name()).unwrap_err();
            assert!(matches!(busy, Error::Lock(LockError::Busy(_))), "{name}: {busy}");
        }
        trx.commit().unwrap();
        if let Keeps::Table(table) = keeps {
            assert_eq!(contents(&db, table), pairs([("f", "u7")]), "{name}");
        }
        assert_sound(&db, name);
    }
}

#[test]
fn a_statement_in_the_name_of_a_transaction_waits_for_all_others() {
    for (name, fill, _) in STATEMENTS {
        let (db, script, clock) = scripted();
        let trx = changed(&db);
        let reader = begin(&db, Isolation::RepeatableRead);
        assert!(reader.table(&db.table("t").unwrap()).get_for_share(b"zz").unwrap().is_none());
        let (before, began) = (db.locks(), clock.now());
        let refused = commit_in(&db.with_ddl_timeout(Duration::ZERO), &trx, fill).unwrap_err();
        let Error::Lock(LockError::Busy(blockers)) = &refused else { panic!("{name}: {refused}") };
        assert_eq!(blockers.ids(), [reader.id().unwrap()], "{name}");
        trx.set_lock_wait_timeout(Some(3 * SECOND));
        let refused = commit_in(&db, &trx, fill).unwrap_err();
        assert!(matches!(refused, Error::Lock(LockError::TimedOut { .. })), "{name}: {refused}");
        assert_eq!((clock.now().saturating_sub(began), db.locks()), (3 * SECOND, before), "{name}");
        assert_eq!(rows(&trx.table(&db.table("t").unwrap())).len(), 2, "{name}: nothing has changed");
        script.then(SECOND, move || drop(reader));
        commit_in(&db, &trx, fill).unwrap();
        assert_eq!(clock.now().saturating_sub(began), 4 * SECOND, "{name}");
        trx.commit().unwrap();
        assert_sound(&db, name);
    }
}

/// The other statement has the name of the table, and waits for the transaction.
#[test]
fn a_wait_for_a_name_of_a_statement_that_waits_for_the_transaction_ends_with_its_time() {
    let db = database();
    let trx = changed(&db);
    thread::scope(|scope| {
        let truncated = scope.spawn(|| db.truncate_table("t"));
        await_lock_wait(&db, &truncated);
        trx.set_lock_wait_timeout(Some(Duration::from_millis(20)));
        let refused = commit_in(&db, &trx, |group| group.drop_table("t")).unwrap_err();
        let Error::Lock(LockError::TimedOut { blockers, .. }) = &refused else { panic!("{refused}") };
        assert!(blockers.ids().is_empty() && db.last_deadlock().is_none(), "{refused}");
        trx.set_lock_wait_timeout(None);
        trx.table(&db.table("t").unwrap()).put(b"c", b"y5").unwrap();
        assert!(!truncated.is_finished(), "it waits for the transaction");
        trx.commit().unwrap();
        truncated.join().unwrap().unwrap();
    });
    assert!(contents(&db, "t").is_empty());
    assert_eq!(contents(&db, "other"), pairs([("o", "new")]));
}

#[test]
fn a_deadlock_of_a_statement_rolls_back_the_transaction_in_the_name_of_which_it_runs() {
    let db = database();
    let t = table(&db);
    let trx = db.begin(TransactionOptions::default().deadlock_priority(-1));
    trx.table(&t).insert(b"a", b"x1").unwrap();
    let other = begin(&db, Isolation::ReadCommitted);
    other.table(&t).insert(b"b", b"x2").unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| other.table(&t).put(b"a", b"y3"));
        await_lock_wait(&db, &waits);
        let refused = commit_in(&db, &trx, |group| group.drop_table("t")).unwrap_err();
        assert!(matches!(refused, Error::Lock(LockError::Deadlock(_))), "{refused}");
        waits.join().unwrap().unwrap();
    });
    let ended = trx.table(&t).get(b"a");
    assert!(matches!(ended, Err(Error::Transaction(TransactionError::RolledBack(_)))), "{ended:?}");
    other.commit().unwrap();
    assert_eq!(rows(&t), pairs([("a", "y3"), ("b", "x2")]));
    assert_sound(&db, "after a deadlock");
}

/// A call that waits for a lock in what is dropped learns it at once, and all other locks are as before.
#[test]
fn the_locks_after_a_statement_are_those_before_it() {
    for (name, fill, keeps) in STATEMENTS {
        let db = database();
        let trx = changed(&db);
        let (t, other) = (db.table("t").unwrap(), db.table("other").unwrap());
        let by_index = trx.table(&t).index("first").unwrap();
        assert!(by_index.range_for_share("q".."r").unwrap().next().is_none());
        assert!(
            trx.table(&t).lock_wait_policy(windfall::LockWaitPolicy::NoWait).get_for_share(b"zz").is_ok()
        );
        let before = db.locks();
        let failing = commit_in(&db, &trx, |group| group.truncate_table("t").rename_table("other", "t"));
        assert!(matches!(failing, Err(Error::Schema(SchemaError::TableExists(_)))), "{failing:?}");
        assert_eq!(db.locks(), before, "{name}: nothing was locked");
        thread::scope(|scope| {
            let waits = scope.spawn(|| t.put(b"a", b"q9"));
            await_lock_wait(&db, &waits);
            let before = db.locks();
            commit_in(&db, &trx, fill).unwrap();
            if let Keeps::Rows(_) = keeps {
                let own = |held: &HeldLock| Some(held.trx) == trx.id();
                let is_exclusive = |lock: &Lock| matches!(lock, Lock::Table(_, TableMode::Exclusive));
                let locks = db.locks();
                assert!(
                    !locks.iter().any(|held| own(held) && is_exclusive(&held.lock)),
                    "{name}: the table is still locked exclusively: {locks:?}"
                );
                // The call was the victim of the statement's deadlock with it, and started again.
                let waits_for_row = || db.lock_waits().iter().any(|wait| matches!(wait.lock, Lock::Row(..)));
                while !waits_for_row() {
                    assert!(!waits.is_finished(), "{name}: it has changed a row that is locked");
                    thread::yield_now();
                }
                let after = (db.locks(), db.lock_waits().len());
                trx.rollback_to("first").unwrap();
                trx.commit().unwrap();
                waits.join().unwrap().unwrap();
                assert_eq!(after, (before, 1), "{name}: the row is still locked, and no more than before");
            } else {
                let done = waits.join().unwrap();
                match keeps {
                    // It goes on with the empty table.
                    Keeps::Table(_) if name != "another table of the name" => done.unwrap(),
                    _ => assert!(matches!(done, Err(Error::TableDropped(_))), "{name}: {done:?}"),
                }
                let left = db.locks();
                assert!(
                    left.len() < before.len() && left.iter().all(|lock| before.contains(lock)),
                    "{left:?}"
                );
                trx.commit().unwrap();
            }
        });
        assert!(db.locks().is_empty(), "{name}");
        drop(other);
        assert_sound(&db, name);
    }
}

#[test]
fn a_statement_in_the_name_of_a_transaction_is_interrupted() {
    let (db, script, clock) = scripted();
    let trx = changed(&db);
    let holder = begin(&db, Isolation::ReadCommitted);
    holder.table(&db.table("t").unwrap()).put(b"other", b"q9").unwrap();
    let drops: Fill = |group| group.drop_table("t");
    let of_session = InterruptHandle::new();
    // The handle of the database, as long as the transaction has none of its own.
    for is_of_session in [true, false] {
        let (handle, session) = if is_of_session {
            (of_session.clone(), db.with_interrupt(&of_session))
        } else {
            (trx.interrupt_handle(), db.clone())
        };
        for is_set in [true, false] {
            let (began, by_other) = (clock.now(), handle.clone());
            if is_set {
                handle.interrupt();
            } else {
                script.then(SECOND, move || by_other.interrupt());
            }
            let done = commit_in(&session, &trx, drops);
            assert!(matches!(done, Err(Error::Lock(LockError::Interrupted))), "{done:?}");
            let waited = if is_set { Duration::ZERO } else { SECOND };
            assert_eq!(clock.now().saturating_sub(began), waited);
            handle.clear();
        }
    }
    drop(holder);
    commit_in(&db, &trx, drops).unwrap();
    trx.commit().unwrap();
    assert_sound(&db, "after interrupts");
}

#[test]
fn a_statement_in_the_name_of_a_transaction_that_cannot_have_one_is_refused() {
    let (db, another) = (database(), database());
    let trx = changed(&db);
    let drops: Fill = |group| group.drop_table("t");
    let refused = commit_in(&another, &trx, drops);
    assert!(matches!(refused, Err(Error::Transaction(TransactionError::OtherDatabase))), "{refused:?}");
    let reader = db.begin(TransactionOptions::default().read_only());
    let refused = commit_in(&db, &reader, drops);
    assert!(matches!(refused, Err(Error::Transaction(TransactionError::ReadOnly))), "{refused:?}");
    // From within a call, of this transaction or of another one.
    let outer = begin(&db, Isolation::ReadCommitted);
    let mut from = calls::From(Some(|| {
        let refused = commit_in(&db, &trx, drops);
        assert!(matches!(refused, Err(Error::Usage(UsageError::StatementInCall))), "{refused:?}");
        let refused = commit_in(&db, &outer, drops);
        assert!(matches!(refused, Err(Error::Transaction(TransactionError::Busy))), "{refused:?}");
    }));
    outer.table(&db.table("other").unwrap()).put_stream(b"long", calls::LONG, &mut from).unwrap();
    outer.commit().unwrap();
    trx.prepare(b"x").unwrap();
    let refused = commit_in(&db, &trx, drops);
    assert!(matches!(refused, Err(Error::Transaction(TransactionError::Prepared))), "{refused:?}");
    trx.rollback().unwrap();
    assert_eq!(rows(&db.table("t").unwrap()), pairs([("a", "x1"), ("b", "x2")]));
}

/// A transaction with an older read view does not see a truncated table; it can still change it, unless its view is
/// strict.
#[test]
fn a_view_from_before_a_truncation_does_not_see_the_table() {
    for isolation in [Isolation::RepeatableRead, Isolation::Snapshot] {
        let db = database();
        let t = table(&db);
        let trx = begin(&db, isolation);
        trx.table(&t).insert(b"a", b"x1").unwrap();
        assert!(trx.table(&t).get(b"a").unwrap().is_some());
        commit_in(&db, &trx, |group| group.truncate_table("t")).unwrap();
        let unseen = trx.table(&t).get(b"a");
        assert!(matches!(unseen, Err(Error::Transaction(TransactionError::TableChanged(_)))), "{unseen:?}");
        let added = trx.table(&t).insert(b"b", b"x2");
        assert_eq!(added.is_ok(), isolation == Isolation::RepeatableRead, "{added:?}");
        assert!(trx.table(&t).duplicate_lock(RowMode::Shared).name() == "t");
        trx.commit().unwrap();
        assert_eq!(rows(&t).len(), usize::from(isolation == Isolation::RepeatableRead));
        assert_sound(&db, "after a truncation");
    }
}

/// At each operation of the statement and of what follows, up to the end of the transaction and after it.
#[test]
fn a_statement_in_the_name_of_a_transaction_crashes_at_every_operation() {
    type End = fn(Transaction) -> bool;
    let ends: [(&str, End); 3] = [
        ("commit", |trx| {
            trx.commit().unwrap();
            true
        }),
        ("rollback", |trx| {
            trx.rollback().unwrap();
            false
        }),
        ("prepare", |trx| {
            trx.prepare(b"x").unwrap();
            false
        }),
    ];
    let (mut before, mut between, mut after) = (0, 0, 0);
    for (name, fill, keeps) in STATEMENTS {
        for (how, end) in ends {
            let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
            let db = simulated(&disk, &env);
            let trx = changed(&db);
            db.checkpoint().unwrap();
            let from = disk.operations() + 1;
            disk.record_crash_points(from..=u64::MAX);
            commit_in(&db, &trx, fill).unwrap();
            let carried_out = disk.operations();
            let other = if name == "swap" { "t" } else { "other" };
            trx.table(&db.table(other).unwrap()).put(b"p", b"later").unwrap();
            env.run_workers(20);
            let commits = end(trx);
            let ended = disk.operations();
            env.run_workers(100);
            db.checkpoint().unwrap();
            drop(db);
            for (operation, crashed) in disk.take_crash_points() {
                let survive = [Survive::Nothing, Survive::Everything, Survive::Random(operation)];
                let what = format!("{name}, {how} at {operation}");
                let env = SimulatedEnv::new(operation);
                let db = simulated(&crashed.restart(survive[operation as usize % 3]), &env);
                let mut is_committed = false;
                if !db.prepared().is_empty() {
                    is_committed = operation.is_multiple_of(2);
                    if is_committed {
                        db.commit_prepared(b"x").unwrap();
                    } else {
                        db.rollback_prepared(b"x").unwrap();
                    }
                } else if commits {
                    let found = |name| db.table(name).is_ok_and(|table| table.get(b"p").unwrap().is_some());
                    is_committed = found("t") || found("other");
                    assert!(is_committed || operation <= ended, "{what}: its end was durable");
                }
                env.run_workers(300);
                let has_ended = match keeps {
                    Keeps::Nothing => db.table("t").is_err(),
                    Keeps::Table("t") => contents(&db, "t").is_empty(),
                    Keeps::Rows("t") => db.table("t").unwrap().index("second").is_err(),
                    Keeps::Rows("other") => !contents(&db, "other").iter().any(|(key, _)| key == b"o"),
                    Keeps::Table(name) | Keeps::Rows(name) => db.table(name).is_ok(),
                };
                assert!(has_ended || operation <= carried_out, "{what}: the statement was durable");
                assert!(has_ended || !is_committed, "{what}");
                let kept = if is_committed {
                    vec![(b"a".to_vec(), vec![b'y'; 3000]), (b"c".to_vec(), b"z4".to_vec())]
                } else {
                    pairs([("a", "x1"), ("b", "x2")])
                };
                match keeps {
                    _ if !has_ended => assert_eq!(rows(&db.table("t").unwrap()), kept, "{what}"),
                    Keeps::Nothing => {}
                    Keeps::Table(name) => assert_eq!(contents(&db, name), [], "{what}"),
                    Keeps::Rows(name) => assert_eq!(rows(&db.table(name).unwrap()), kept, "{what}"),
                }
                let other = if has_ended { other } else { "other" };
                let values: &[(&str, &str)] =
                    if is_committed { &[("o", "new"), ("p", "later")] } else { &[("o", "old")] };
                assert_eq!(contents(&db, other), pairs(values.iter().copied()), "{what}");
                assert_sound(&db, &what);
                let count = match operation {
                    _ if !has_ended => &mut before,
                    _ if operation <= ended => &mut between,
                    _ => &mut after,
                };
                *count += 1;
            }
        }
    }
    assert!(before > 20 && between > 100 && after > 100, "{before}, {between}, {after}");
}
