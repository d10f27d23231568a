//! Many transactions at the same time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use windfall::{
    Access, Database, Error, Isolation, Table, TableOptions, TransactionOptions,
    env::RealEnv,
    error::{LockError, SchemaError},
};
use windfall_sim::{Fault, SimulatedDisk, Survive};

use super::{begin, database, options, pairs, rows, table};

const ACCOUNTS: u64 = 12;

fn amount(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().unwrap())
}

fn bank(db: &Database) -> Table {
    let table = db.create_table("accounts", TableOptions::default()).unwrap();
    for n in 0..ACCOUNTS {
        table.put(&n.to_be_bytes(), &1000u64.to_le_bytes()).unwrap();
    }
    table
}

/// Moves an amount from one account to another, while other transfers run in between.
fn transfer(db: &Database, table: &Table, level: Isolation, from: u64, to: u64) -> windfall::Result<()> {
    let trx = begin(db, level);
    let within = trx.table(table);
    for (account, sign) in [(from, 0), (to, 1)] {
        let key = account.to_be_bytes();
        let now = amount(&within.get_for_update(&key)?.unwrap());
        let after = if sign == 0 { now.wrapping_sub(7) } else { now.wrapping_add(7) };
        within.put(&key, &after.to_le_bytes())?;
        // Lets other threads run in between, on any number of cores.
        thread::yield_now();
    }
    trx.commit().map(drop)
}

fn total(table: &Table<impl Access>) -> u64 {
    table.rows().unwrap().fold(0, |sum, row| sum.wrapping_add(amount(&row.unwrap().1)))
}

/// There are deadlocks all the time, and every read view has the same total.
#[test]
fn no_money_is_made_or_lost() {
    for &level in Isolation::ALL {
        let db = database();
        let table = bank(&db);
        let deadlocks = AtomicU64::new(0);
        thread::scope(|scope| {
            for n in 0..6u64 {
                let (db, table, deadlocks) = (&db, &table, &deadlocks);
                scope.spawn(move || {
                    let mut draw = n;
                    for _ in 0..250 {
                        draw = draw
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1_442_695_040_888_963_407);
                        let (from, to) = ((draw >> 33) % ACCOUNTS, (draw >> 45) % ACCOUNTS);
                        loop {
                            match transfer(db, table, level, from, to) {
                                Ok(()) => break,
                                Err(Error::Lock(LockError::Deadlock(_))) => {
                                    deadlocks.fetch_add(1, SeqCst);
                                }

                                Err(Error::Transaction(_)) if level == Isolation::Snapshot => {}
                                Err(error) => panic!("{level:?}: {error}"),
                            }
                        }
                    }
                });
            }
            for _ in 0..40 {
                assert_eq!(total(&table), 1000 * ACCOUNTS, "{level:?}");
                let trx = begin(&db, Isolation::RepeatableRead);
                let within = trx.table(&table);
                assert_eq!(total(&within), 1000 * ACCOUNTS, "{level:?}");
                assert_eq!(total(&within), 1000 * ACCOUNTS, "{level:?}");
            }
        });
        assert_eq!(total(&table), 1000 * ACCOUNTS, "{level:?}");
        assert!(deadlocks.load(SeqCst) > 0, "{level:?}: there was no deadlock");
        assert!(db.last_deadlock().is_some());
        assert_eq!((db.locks(), db.lock_waits()), (Vec::new(), Vec::new()));
        assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
    }
}

#[test]
fn a_thousand_wait_for_one_row() {
    let db = database();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    table.put(b"row", &0u64.to_le_bytes()).unwrap();
    let holder = begin(&db, Isolation::RepeatableRead);
    holder.table(&table).get_for_update(b"row").unwrap();
    thread::scope(|scope| {
        for n in 0..1000 {
            let (db, table) = (&db, &table);
            let thread = thread::Builder::new().stack_size(256 << 10);
            let work = move || {
                // Calls outside of transactions, and transactions.
                if n % 2 == 0 {
                    table.put(b"other", b"1").unwrap();
                }
                let trx = begin(db, Isolation::ReadCommitted);
                let within = trx.table(table);
                let now = amount(&within.get_for_update(b"row").unwrap().unwrap());
                within.put(b"row", &(now + 1).to_le_bytes()).unwrap();
                trx.commit().unwrap();
            };
            thread.spawn_scoped(scope, work).unwrap();
        }
        while db.lock_waits().len() < 1000 {
            thread::sleep(Duration::from_millis(5));
        }
        holder.commit().unwrap();
    });
    assert_eq!(amount(&table.get(b"row").unwrap().unwrap()), 1000);
}

#[test]
fn a_lock_timeout_fails_the_call_but_not_the_transaction() {
    let db = database();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let holder = begin(&db, Isolation::RepeatableRead);
    holder.table(&table).put(b"row", b"1").unwrap();
    let options = TransactionOptions::default().lock_wait(Duration::from_millis(40));
    let waiter = db.begin(options);
    let within = waiter.table(&table);
    within.put(b"mine", b"2").unwrap();
    for call in [within.put(b"row", b"2").map(drop), within.get_for_share(b"row").map(drop)] {
        let error = call.unwrap_err();
        assert!(matches!(error, Error::Lock(LockError::TimedOut { .. })), "{error}");
        assert!(error.to_string().contains(&holder.id().unwrap().to_string()), "{error}");
    }
    waiter.commit().unwrap();
    holder.commit().unwrap();
    assert_eq!(table.rows().unwrap().count(), 2);
}

/// The wait of a transaction, of a call outside of transactions, and of a statement can be interrupted. A transaction
/// keeps its changes.
#[test]
fn a_wait_is_interrupted_from_another_thread() {
    let interrupted = |done: windfall::Result<()>| {
        assert!(matches!(done, Err(Error::Lock(LockError::Interrupted))), "{done:?}");
    };
    let db = database();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let holder = begin(&db, Isolation::RepeatableRead);
    holder.table(&table).put(b"row", b"1").unwrap();
    let waiter = begin(&db, Isolation::RepeatableRead);
    let within = waiter.table(&table);
    within.put(b"mine", b"2").unwrap();
    let calls: [&(dyn Fn() -> windfall::Result<()> + Sync); 3] =
        [&|| within.get_for_update(b"row").map(drop), &|| table.delete(b"row").map(drop), &|| {
            db.drop_table("t").map(drop)
        }];
    for call in calls {
        thread::scope(|scope| {
            let waits = scope.spawn(call);
            while db.lock_waits().is_empty() {
                thread::sleep(Duration::from_millis(1));
            }
            assert!(db.interrupt(db.lock_waits()[0].trx));
            interrupted(waits.join().unwrap());
        });
    }
    // The interrupt comes before the wait, but within the statement, and takes effect once.
    let number = waiter.id().unwrap();
    interrupted(waiter.atomically(|| {
        assert!(db.interrupt(number));
        within.put(b"another", b"2")?;
        within.put(b"row", b"2")
    }));
    within.put(b"another", b"2").unwrap();
    holder.commit().unwrap();
    within.put(b"row", b"2").unwrap();
    waiter.commit().unwrap();
    assert!(!db.interrupt(number), "it has ended");
    assert_eq!(table.rows().unwrap().count(), 3);
    let metrics = db.metrics();
    assert_eq!(metrics.lock_wait_classes.iter().sum::<u64>(), metrics.lock_waits);
    assert_eq!(metrics.lock_waits, 3);
}

#[test]
fn a_call_from_within_a_source_waits_for_no_lock() {
    struct Source<'a>(&'a Database, &'a Table);
    impl std::io::Read for Source<'_> {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            let alone = self.1.put(b"row", b"2").unwrap_err();
            assert!(alone.to_string().contains("source"), "{alone}");
            let trx = begin(self.0, Isolation::RepeatableRead);
            let within = trx.table(self.1).get_for_update(b"row").unwrap_err();
            assert!(within.to_string().contains("source"), "{within}");
            out.fill(1);
            Ok(out.len())
        }
    }
    let db = database();
    let (table, other) =
        ["t", "other"].map(|name| db.create_table(name, TableOptions::default()).unwrap()).into();
    let holder = begin(&db, Isolation::RepeatableRead);
    holder.table(&other).put(b"row", b"1").unwrap();
    table.put_stream(b"long", 50_000, &mut Source(&db, &other)).unwrap();
    holder.commit().unwrap();
    assert_eq!(table.get(b"long").unwrap(), Some(vec![1; 50_000]));
}

/// Every wait for a lock, with any timeout, ends with an error when the database is closed or stops.
#[test]
fn a_wait_for_a_lock_gets_an_error_when_the_database_is_closed_or_stops() {
    for stops in [false, true] {
        let (disk, env) = (SimulatedDisk::new(1), Arc::new(RealEnv::default()));
        let options = options().lock_wait_timeout(Duration::MAX);
        let db = Database::open_on(Arc::new(disk.clone()), env, &options, &|_| {}).unwrap();
        let table = table(&db);
        table.put(b"a", b"x1").unwrap();
        let holder = begin(&db, Isolation::RepeatableRead);
        holder.table(&table).put(b"a", b"x2").unwrap();
        thread::scope(|scope| {
            let (db, table) = (&db, &table);
            let waiting = [
                scope.spawn(|| begin(db, Isolation::RepeatableRead).table(table).put(b"a", b"x3")),
                scope.spawn(|| table.put(b"a", b"x4")),
                scope.spawn(|| db.drop_table("t").map(drop)),
            ];
            while db.lock_waits().len() < waiting.len() {
                thread::sleep(Duration::from_millis(2));
            }
            if stops {
                disk.fail_nth(1, Fault::SyncFails, true);
                assert!(matches!(table.put(b"b", b"y5"), Err(Error::Poisoned(_))));
            } else {
                db.clone().close().unwrap();
            }
            for waiting in waiting {
                match waiting.join().unwrap() {
                    Err(Error::Poisoned(why)) if stops => assert!(why.contains("sync"), "{why}"),
                    Err(Error::Closed) if !stops => {}
                    other => panic!("stops: {stops}: {other:?}"),
                }
            }
            // No new wait begins, either.
            let late = begin(db, Isolation::RepeatableRead).table(table).put(b"a", b"x6");
            assert!(matches!(late, Err(Error::Poisoned(_) | Error::Closed)), "{late:?}");
        });
    }
}

/// The log of a commit cannot be written or synced: the commit survives completely or not at all, and every call gets
/// the error.
#[test]
fn a_commit_that_the_disk_refuses_fails_all_active_transactions() {
    for (seed, fault) in (0..).zip([Fault::SyncFails, Fault::Fails, Fault::WriteFails].repeat(4)) {
        let (disk, env) = (SimulatedDisk::new(seed), Arc::new(RealEnv::default()));
        let options = options().lock_wait_timeout(Duration::MAX);
        let db = Database::open_on(Arc::new(disk.clone()), env.clone(), &options, &|_| {}).unwrap();
        let table = table(&db);
        table.put(b"a", b"x1").unwrap();
        let [failing, beside, prepared] = [(); 3].map(|()| begin(&db, Isolation::RepeatableRead));
        failing.table(&table).put(b"a", b"y2").unwrap();
        failing.table(&table).put(b"b", b"z3").unwrap();
        beside.table(&table).put(b"c", b"w4").unwrap();
        prepared.table(&table).put(b"d", b"v5").unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let trx = begin(&db, Isolation::RepeatableRead);
                // It may get the row from a commit that is not durable yet, and its own commit is not durable before
                // that one.
                trx.table(&table).put(b"a", b"u6").and_then(|()| trx.commit())
            });
            while db.lock_waits().is_empty() {
                thread::sleep(Duration::from_millis(1));
            }
            disk.fail_nth(1, fault, true);
            let assert_poisoned =
                |done: windfall::Result<()>| assert!(matches!(done, Err(Error::Poisoned(_))), "{done:?}");
            assert_poisoned(failing.commit().map(drop));
            assert_poisoned(waiting.join().unwrap().map(drop));
            assert_poisoned(prepared.prepare(b"xid"));
            assert_poisoned(beside.table(&table).put(b"c", b"w7"));
            assert_poisoned(beside.rollback());
            assert_poisoned(
                begin(&db, Isolation::RepeatableRead).commit().and_then(|_| table.put(b"e", b"t8")),
            );
        });
        drop((prepared, table, db));
        disk.clear_faults();
        let disk = disk.restart(Survive::Random(seed));
        let db = Database::open_on(Arc::new(disk), env, &options, &|_| {}).unwrap();
        let found = rows(&db.table("t").unwrap());
        // Nothing survives, or the transaction that failed first, or also the one that waited for it.
        let either =
            [pairs([("a", "x1")]), pairs([("a", "y2"), ("b", "z3")]), pairs([("a", "u6"), ("b", "z3")])];
        assert!(either.contains(&found), "seed {seed}, {fault:?}: {found:?}");
        assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
        assert!(db.prepared().is_empty());
    }
}

/// A call that was refused because of a row has read that row, so the row cannot change afterwards.
#[test]
fn a_row_for_which_a_unique_index_has_refused_another_one_stays() {
    for level in [Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Serializable] {
        let db = database();
        let table = table(&db);
        table.put(b"a", b"x1").unwrap();
        table.put(b"b", b"x2").unwrap();
        let options = TransactionOptions::default().isolation(level).lock_wait(Duration::ZERO);
        let (trx, other) = (db.begin(options), db.begin(options));
        let within = trx.table(&table);
        let is_refused = |done: windfall::Result<()>| {
            assert!(matches!(done, Err(Error::Schema(SchemaError::DuplicateKey { .. }))), "{done:?}");
        };
        is_refused(within.insert(b"c", b"y1"));
        let is_busy = |done: windfall::Result<()>| {
            assert!(matches!(done, Err(Error::Lock(LockError::Busy(_)))), "{done:?}");
        };
        is_busy(other.table(&table).delete(b"a").map(drop));
        drop(other);
        is_refused(within.insert(b"c", b"y1"));
        is_busy(db.begin(options).table(&table).update(b"a", b"x3"));
        // Here another transaction has changed the row before. Only the conflicting row is locked.
        let earlier = db.begin(options);
        earlier.table(&table).update(b"b", b"z2").unwrap();
        is_busy(within.insert(b"c", b"y2"));
        earlier.commit().unwrap();
        is_refused(within.insert(b"c", b"y2"));
        trx.commit().unwrap();
        table.put(b"a", b"w5").unwrap();
        assert_eq!((db.locks(), db.check().unwrap().findings), (Vec::new(), Vec::<String>::new()));
    }
}
