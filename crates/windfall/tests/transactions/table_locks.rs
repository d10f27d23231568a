//! Locks on whole tables.

use std::{
    io::{self, Read},
    sync::mpsc,
    thread,
    time::Duration,
};

use windfall::{
    Database, Error, Isolation, Lock, LockWaitPolicy, Result, Table, TableMode, TableOptions, Transaction,
    TransactionOptions, TxTable,
    error::{LockError, TransactionError, UsageError},
};
use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

use super::{
    LEVELS, await_lock_wait, begin, database, pairs, rows, simulated, table,
    waits::{scripted, scripted_on},
};

type LockTable = fn(&TxTable<'_>) -> Result<()>;

/// Both locks, and whether each is exclusive.
const LOCKS: [(LockTable, bool); 2] =
    [(|table| table.lock_shared(), false), (|table| table.lock_exclusive(), true)];

fn is_busy<T: core::fmt::Debug>(done: &Result<T>) -> bool {
    matches!(done, Err(Error::Lock(LockError::Busy(_))))
}

/// Returns the modes in which a transaction has locked tables.
fn table_locks(db: &Database, trx: &Transaction) -> Vec<TableMode> {
    let held = db.locks().into_iter().filter(|held| Some(held.trx) == trx.id());
    held.filter_map(|held| if let Lock::Table(_, mode) = held.lock { Some(mode) } else { None }).collect()
}

/// Begins a transaction that waits for no lock.
fn impatient(db: &Database) -> Transaction {
    let options = TransactionOptions::default().isolation(Isolation::ReadCommitted);
    db.begin(options.lock_wait(Duration::ZERO))
}

/// Locks a table in a transaction that another thread has begun.
fn locked(trx: Transaction, table: &Table, lock: LockTable) -> Transaction {
    lock(&trx.table(table)).unwrap();
    trx
}

/// Waits until as many calls wait for locks.
fn await_waits(db: &Database, waits: usize) {
    while db.lock_waits().len() != waits {
        thread::yield_now();
    }
}

#[test]
fn a_change_outside_of_transactions_waits_for_the_lock_of_a_table() {
    type Change = fn(&Table) -> Result<()>;
    let changes: [(&str, Change); 4] = [
        ("insert", |table| table.insert(b"b", b"x2")),
        ("put", |table| table.put(b"a", b"x2")),
        ("update", |table| table.update(b"a", b"x2")),
        ("delete", |table| table.delete(b"a").map(drop)),
    ];
    for (lock, is_exclusive) in LOCKS {
        for (name, change) in changes {
            let db = database();
            let table = table(&db);
            table.insert(b"a", b"x1").unwrap();
            let trx = begin(&db, Isolation::RepeatableRead);
            lock(&trx.table(&table)).unwrap();
            let mode = if is_exclusive { TableMode::Exclusive } else { TableMode::Shared };
            assert_eq!(table_locks(&db, &trx), [mode]);
            thread::scope(|scope| {
                let changed = scope.spawn(|| change(&table));
                await_lock_wait(&db, &changed);
                let [wait] = &db.lock_waits()[..] else { panic!("{name}: one call waits") };
                assert_eq!(wait.blockers.ids(), [trx.id().unwrap()], "{name}");
                assert!(matches!(wait.lock, Lock::Table(_, TableMode::IntentionExclusive)), "{name}");
                // Plain reads go on, and the transaction changes rows itself.
                assert_eq!(rows(&table), pairs([("a", "x1")]), "{name}");
                trx.table(&table).insert(b"c", b"x3").unwrap();
                trx.commit().unwrap();
                changed.join().unwrap().unwrap();
            });
            assert!(table.get(b"a").unwrap().as_deref() != Some(b"x1") || name == "insert", "{name}");
            assert_eq!((db.locks().len(), db.lock_waits().len()), (0, 0), "{name}");
            change(&table).ok();
            assert_eq!(db.check().unwrap().findings, Vec::<String>::new(), "{name}");
        }
    }
}

#[test]
fn a_change_outside_of_transactions_waits_as_long_as_for_any_lock() {
    let (db, script, clock) = scripted();
    let table = table(&db);
    let trx = begin(&db, Isolation::ReadCommitted);
    trx.table(&table).lock_shared().unwrap();
    let began = windfall::env::Env::now(&clock);
    let error = table.put(b"a", b"x1").unwrap_err();
    let Error::Lock(LockError::TimedOut { blockers, waited }) = &error else { panic!("{error}") };
    assert_eq!((blockers.ids(), *waited), (&[trx.id().unwrap()][..], Duration::from_secs(20)));
    assert_eq!(windfall::env::Env::now(&clock).saturating_sub(began), *waited);
    script.then(Duration::from_secs(1), move || drop(trx));
    table.put(b"a", b"x1").unwrap();
    assert_eq!(windfall::env::Env::now(&clock).saturating_sub(began), *waited + Duration::from_secs(1));
    assert!(db.locks().is_empty());
}

/// What another transaction can do while one has locked the table.
#[test]
fn a_table_lock_keeps_out_what_it_should() {
    type Use = fn(&TxTable<'_>) -> Result<()>;
    // Whether it goes on next to a shared lock, and next to an exclusive one.
    let uses: [(&str, Use, [bool; 2]); 9] = [
        ("read", |t| t.get(b"a").map(drop), [true, true]),
        ("scan", |t| t.rows()?.try_for_each(|row| row.map(drop)), [true, true]),
        ("shared lock on a row", |t| t.get_for_share(b"a").map(drop), [true, false]),
        ("lock on a row that is missing", |t| t.get_for_share(b"z").map(drop), [true, false]),
        ("exclusive lock on a row", |t| t.get_for_update(b"a").map(drop), [false, false]),
        ("change", |t| t.put(b"b", b"x2"), [false, false]),
        ("deletion of nothing", |t| t.delete(b"z").map(drop), [false, false]),
        ("shared lock", |t| t.lock_shared(), [true, false]),
        ("exclusive lock", |t| t.lock_exclusive(), [false, false]),
    ];
    for level in LEVELS {
        for (lock, is_exclusive) in LOCKS {
            for (name, go, goes_on) in uses {
                let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
                let db = simulated(&disk, &env);
                let table = table(&db);
                table.insert(b"a", b"x1").unwrap();
                let holder = begin(&db, Isolation::ReadCommitted);
                lock(&holder.table(&table)).unwrap();
                let options = TransactionOptions::default().isolation(level).lock_wait(Duration::ZERO);
                let other = db.begin(options);
                let done = go(&other.table(&table));
                let locks_rows = level == Isolation::Serializable && matches!(name, "read" | "scan");
                let goes_on = goes_on[usize::from(is_exclusive)] && !(locks_rows && is_exclusive);
                assert!(
                    done.is_ok() == goes_on && (goes_on || is_busy(&done)),
                    "{name}, {level:?}: {done:?}"
                );
                drop(holder);
                go(&other.table(&table)).unwrap();
                // And the other way round: the table can be locked next to what the other one has locked, or not.
                let beside = impatient(&db);
                let (within, is_read) =
                    (beside.table(&table), matches!(name, "read" | "scan") && !locks_rows);
                let is_shared = matches!(name, "shared lock" | "shared lock on a row") || locks_rows;
                let is_shared = is_shared || name == "lock on a row that is missing";
                assert_eq!(within.lock_shared().is_ok(), is_read || is_shared, "{name}, {level:?}");
                assert_eq!(within.lock_exclusive().is_ok(), is_read, "{name}, {level:?}");
            }
        }
    }
}

#[test]
fn a_table_lock_lasts_until_the_transaction_ends() {
    type Undo = fn(&Transaction, &Table) -> Result<()>;
    type End = fn(&Database, Transaction);
    let undoes: [Undo; 3] = [
        |trx, table| {
            trx.savepoint("here")?;
            trx.table(table).lock_exclusive()?;
            trx.rollback_to("here")
        },
        |trx, table| {
            trx.begin_statement()?;
            trx.table(table).lock_exclusive()?;
            trx.end_statement(windfall::StatementEnd::Undo)
        },
        |trx, table| {
            trx.table(table).lock_exclusive()?;
            assert!(trx.table(table).update(b"missing", b"x1").is_err());
            Ok(())
        },
    ];
    let ends: [End; 4] = [
        |_, trx| trx.commit().map(drop).unwrap(),
        |_, trx| trx.rollback().unwrap(),
        |_, trx| drop(trx),
        |db, trx| {
            trx.prepare(b"xid").unwrap();
            drop(trx);
            assert!(is_busy(&db.with_ddl_timeout(Duration::ZERO).drop_table("t")));
            db.commit_prepared(b"xid").unwrap();
        },
    ];
    for undo in undoes {
        for end in ends {
            let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
            let db = simulated(&disk, &env);
            let table = table(&db);
            let trx = begin(&db, Isolation::RepeatableRead);
            undo(&trx, &table).unwrap();
            assert_eq!(table_locks(&db, &trx), [TableMode::Exclusive]);
            assert!(trx.holds_locks().unwrap());
            let other = impatient(&db);
            assert!(is_busy(&other.table(&table).get_for_share(b"a")));
            trx.table(&table).put(b"a", b"x1").unwrap();
            end(&db, trx);
            other.table(&table).lock_exclusive().unwrap();
            drop(other);
            table.put(b"b", b"x2").unwrap();
            assert!(db.locks().is_empty());
        }
    }
}

#[test]
fn a_shared_lock_becomes_an_exclusive_one_when_no_other_transaction_has_it() {
    let db = database();
    let table = table(&db);
    let [one, other] = [(); 2].map(|()| begin(&db, Isolation::ReadCommitted));
    for trx in [&one, &other] {
        trx.table(&table).lock_shared().unwrap();
    }
    thread::scope(|scope| {
        let upgraded = scope.spawn(|| locked(one, &table, |t| t.lock_exclusive()));
        await_lock_wait(&db, &upgraded);
        // A change waits behind it, and the upgrade passes it.
        let changed = scope.spawn(|| table.put(b"a", b"x1"));
        await_waits(&db, 2);
        other.commit().unwrap();
        let one = upgraded.join().unwrap();
        assert_eq!(table_locks(&db, &one), [TableMode::Exclusive]);
        one.table(&table).lock_shared().unwrap();
        assert_eq!(table_locks(&db, &one), [TableMode::Exclusive]);
        one.commit().unwrap();
        changed.join().unwrap().unwrap();
    });
    // Two upgrades wait for each other.
    let [one, other] = [(); 2].map(|()| begin(&db, Isolation::ReadCommitted));
    for trx in [&one, &other] {
        trx.table(&table).lock_shared().unwrap();
    }
    thread::scope(|scope| {
        let upgraded = scope.spawn(|| one.table(&table).lock_exclusive());
        await_lock_wait(&db, &upgraded);
        let refused = other.table(&table).lock_exclusive();
        assert!(matches!(refused, Err(Error::Lock(LockError::Deadlock(_)))), "{refused:?}");
        upgraded.join().unwrap().unwrap();
    });
}

#[test]
fn a_deadlock_of_table_and_row_locks_is_broken() {
    for is_victim in [false, true] {
        let db = database();
        let table = table(&db);
        table.insert(b"a", b"x1").unwrap();
        let priority = if is_victim { 1 } else { -1 };
        let one = db.begin(TransactionOptions::default().deadlock_priority(priority));
        let other = db.begin(TransactionOptions::default());
        one.table(&table).get_for_update(b"a").unwrap();
        other.table(&table).put(b"b", b"x2").unwrap();
        thread::scope(|scope| {
            let locked = scope.spawn(|| one.table(&table).lock_shared());
            await_lock_wait(&db, &locked);
            let read = other.table(&table).get_for_update(b"a");
            let is_deadlock = |error: Error| matches!(error, Error::Lock(LockError::Deadlock(_)));
            if is_victim {
                assert!(read.is_err_and(is_deadlock));
                locked.join().unwrap().unwrap();
            } else {
                assert!(locked.join().unwrap().is_err_and(is_deadlock));
                read.unwrap();
            }
        });
        let deadlock = db.last_deadlock().unwrap();
        assert!(deadlock.to_string().contains("table"), "{deadlock}");
    }
}

/// Starts a change outside of transactions that waits for a row which a transaction has locked.
fn change_that_waits<T>(
    then: impl for<'s> FnOnce(&'s thread::Scope<'s, '_>, &'s Database, &'s Table, Transaction) -> T,
) {
    let db = database();
    let table = table(&db);
    table.insert(b"a", b"x1").unwrap();
    let holder = db.begin(TransactionOptions::default().deadlock_priority(-1));
    holder.table(&table).get_for_update(b"a").unwrap();
    thread::scope(|scope| {
        let changed = scope.spawn(|| table.put(b"a", b"y2"));
        await_lock_wait(&db, &changed);
        thread::scope(|inner| then(inner, &db, &table, holder));
        changed.join().unwrap().unwrap();
    });
    assert_eq!((table.get(b"a").unwrap().as_deref(), db.locks().len()), (Some(&b"y2"[..]), 0));
}

/// So that a transaction which has the whole table meets no call that was granted a row.
#[test]
fn a_call_outside_of_transactions_waits_for_a_row_with_the_table_locked() {
    change_that_waits(|scope, db, table, holder| {
        let [wait] = &db.lock_waits()[..] else { panic!("one call waits") };
        assert!(matches!(wait.lock, Lock::Row(..)), "{wait:?}");
        let locked_tables =
            |held: &windfall::HeldLock| held.trx == wait.trx && matches!(held.lock, Lock::Table(..));
        assert_eq!(db.locks().iter().filter(|held| locked_tables(held)).count(), 1);
        let trx = begin(db, Isolation::ReadCommitted);
        let waits = scope.spawn(|| locked(trx, table, |t| t.lock_exclusive()));
        await_waits(db, 2);
        holder.commit().unwrap();
        let trx = waits.join().unwrap();
        let within = trx.table(table).lock_wait_policy(LockWaitPolicy::NoWait);
        assert_eq!(within.get_for_update(b"a").unwrap().as_deref(), Some(&b"y2"[..]));
        trx.commit().unwrap();
    });
}

/// The transaction that has the row locks the table. The call, which waits for the row and has locked the table, too,
/// starts again, whatever the priority of the transaction.
#[test]
fn a_call_outside_of_transactions_is_the_victim_of_a_deadlock_and_starts_again() {
    change_that_waits(|_, db, table, holder| {
        holder.table(table).lock_exclusive().unwrap();
        assert!(db.last_deadlock().is_some());
        let waits_for_table = || db.lock_waits().iter().any(|wait| matches!(wait.lock, Lock::Table(..)));
        while !waits_for_table() {
            thread::yield_now();
        }
        let within = holder.table(table).lock_wait_policy(LockWaitPolicy::NoWait);
        assert_eq!(within.get_for_update(b"a").unwrap().as_deref(), Some(&b"x1"[..]));
        holder.commit().unwrap();
    });
}

/// Transactions that recovery has found unfinished have no lock on the table, and still change its rows.
#[test]
fn a_table_lock_waits_for_rollbacks_in_the_background() {
    const ROWS: u16 = 300;
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = simulated(&disk, &env);
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let keys = || (0..ROWS).map(u16::to_be_bytes);
    for key in keys() {
        table.insert(&key, b"before").unwrap();
    }
    let unfinished = begin(&db, Isolation::RepeatableRead);
    for key in keys() {
        unfinished.table(&table).put(&key, b"unfinished").unwrap();
    }
    let id = unfinished.id().unwrap();
    db.checkpoint().unwrap();
    disk.crash();
    let crashed = disk.restart(Survive::Everything);
    drop((unfinished, table, db));
    let (db, script, clock) = scripted_on(crashed);
    let table = db.table("t").unwrap();
    for (lock, _) in LOCKS {
        let trx = begin(&db, Isolation::ReadUncommitted);
        let within = trx.table(&table);
        let blocked = |refused: Result<()>| match refused {
            Err(Error::Lock(LockError::Busy(blockers))) => (blockers, Duration::ZERO),
            Err(Error::Lock(LockError::TimedOut { blockers, waited })) => (blockers, waited),
            refused => panic!("{refused:?}"),
        };
        let (blockers, waited) = blocked(lock(&within.lock_wait_policy(LockWaitPolicy::NoWait)));
        assert_eq!((blockers.ids(), waited), (&[id][..], Duration::ZERO));
        let (blockers, waited) = blocked(lock(&within));
        assert_eq!((blockers.ids(), waited), (&[id][..], Duration::from_secs(20)));
        let handle = trx.interrupt_handle();
        handle.interrupt();
        let refused = lock(&within);
        assert!(matches!(refused, Err(Error::Lock(LockError::Interrupted))), "{refused:?}");
        assert_eq!(table_locks(&db, &trx), []);
        // It is not announced any more, either.
        table.put(b"other", b"1").unwrap();
        assert!(db.locks().is_empty());
    }
    assert_eq!(db.metrics().rollbacks_pending, 1);
    let workers = clock.clone();
    script.then(Duration::from_secs(1), move || workers.run_workers(2000));
    let trx = begin(&db, Isolation::ReadUncommitted);
    trx.table(&table).lock_exclusive().unwrap();
    assert_eq!(db.metrics().rollbacks_pending, 0);
    for key in keys() {
        assert_eq!(trx.table(&table).get(&key).unwrap().as_deref(), Some(&b"before"[..]));
    }
}

#[test]
fn statements_wait_for_a_table_lock_and_it_for_them() {
    type Statement = fn(&Database) -> Result<()>;
    let statements: [(&str, Statement); 3] = [
        ("drop", |db| db.drop_table("t").map(drop)),
        ("truncate", |db| db.truncate_table("t").map(drop)),
        ("rename", |db| db.rename_table("t", "moved").map(drop)),
    ];
    for (lock, _) in LOCKS {
        for (name, statement) in statements {
            let db = database();
            let table = table(&db);
            table.insert(b"a", b"x1").unwrap();
            let trx = begin(&db, Isolation::ReadCommitted);
            lock(&trx.table(&table)).unwrap();
            let refused = statement(&db.with_ddl_timeout(Duration::ZERO));
            assert!(is_busy(&refused), "{name}: {refused:?}");
            // Another one waits behind the statement, and finds what that has left.
            let other = begin(&db, Isolation::ReadCommitted);
            let within = other.table(&table);
            thread::scope(|scope| {
                let done = scope.spawn(|| statement(&db));
                await_lock_wait(&db, &done);
                let locked = scope.spawn(|| lock(&within));
                await_waits(&db, 2);
                trx.commit().unwrap();
                done.join().unwrap().unwrap();
                let locked = locked.join().unwrap();
                if name == "drop" {
                    assert!(matches!(locked, Err(Error::TableDropped(_))), "{locked:?}");
                    assert_eq!(table_locks(&db, &other), []);
                    return;
                }
                locked.unwrap();
                assert_eq!(table_locks(&db, &other).len(), 1, "{name}");
                let left = if name == "rename" { pairs([("a", "x1")]) } else { Vec::new() };
                assert_eq!(rows(&table), left, "{name}");
                let refused = impatient(&db).table(&table).put(b"b", b"x2");
                assert!(is_busy(&refused), "{name}: {refused:?}");
            });
            drop(other);
            assert!(db.locks().is_empty(), "{name}: {:?}", db.locks());
        }
    }
}

#[test]
fn a_statement_of_the_transaction_itself_releases_the_lock_of_what_it_drops() {
    for truncates in [false, true] {
        let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
        let db = simulated(&disk, &env);
        let table = table(&db);
        let trx = begin(&db, Isolation::ReadCommitted);
        trx.table(&table).lock_exclusive().unwrap();
        let mut group = db.ddl();
        if truncates {
            group.truncate_table("t");
        } else {
            group.drop_table("t").create_table("t", TableOptions::default());
        }
        group.commit_in(&trx).unwrap();
        assert_eq!(table_locks(&db, &trx), []);
        let table = db.table("t").unwrap();
        table.put(b"a", b"x1").unwrap();
        // It can lock the table again.
        trx.table(&table).lock_shared().unwrap();
        assert!(is_busy(&impatient(&db).table(&table).put(b"b", b"x2")));
        trx.commit().unwrap();
        table.put(b"b", b"x2").unwrap();
    }
}

#[test]
fn after_a_crash_a_prepared_transaction_has_intention_locks_alone() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = simulated(&disk, &env);
    let (changed, read) = (table(&db), db.create_table("read", TableOptions::default()).unwrap());
    let trx = begin(&db, Isolation::RepeatableRead);
    trx.table(&changed).lock_exclusive().unwrap();
    trx.table(&read).lock_shared().unwrap();
    trx.table(&changed).put(b"a", b"x1").unwrap();
    trx.prepare(b"xid").unwrap();
    assert!(is_busy(&impatient(&db).table(&read).put(b"r", b"1")));
    disk.crash();
    let crashed = disk.restart(Survive::Everything);
    drop((trx, changed, read, db));
    let db = simulated(&crashed, &env);
    let (changed, read) = (db.table("t").unwrap(), db.table("read").unwrap());
    let locks: Vec<_> = db.locks().into_iter().map(|held| held.lock).collect();
    assert!(matches!(locks[..], [Lock::Table(_, TableMode::IntentionExclusive)]), "{locks:?}");
    read.put(b"r", b"1").unwrap();
    changed.put(b"b", b"x2").unwrap();
    let other = impatient(&db);
    assert!(is_busy(&other.table(&changed).lock_shared()));
    db.commit_prepared(b"xid").unwrap();
    other.table(&changed).lock_shared().unwrap();
    assert_eq!(rows(&changed), pairs([("a", "x1"), ("b", "x2")]));
}

/// The source of a value that says that it is read, and then gives nothing until it may.
struct Slow {
    reads: Option<mpsc::Sender<()>>,
    may_end: mpsc::Receiver<()>,
}

impl Read for Slow {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if let Some(reads) = self.reads.take() {
            reads.send(()).unwrap();
            self.may_end.recv().unwrap();
        }
        out.fill(7);
        Ok(out.len())
    }
}

/// A call outside of transactions that began before the lock is waited for: it is inside the gate, and has no lock.
#[test]
fn a_call_in_progress_is_waited_for() {
    let db = database();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    table.insert(b"a", b"x1").unwrap();
    let ((reads, is_read), (end, may_end)) = (mpsc::channel(), mpsc::channel());
    let trx = begin(&db, Isolation::ReadCommitted);
    let within = trx.table(&table);
    let handle = trx.interrupt_handle();
    thread::scope(|scope| {
        // Dropped by a panic, it ends the call in progress.
        let end = end;
        let written =
            scope.spawn(|| table.put_stream(b"long", 100_000, &mut Slow { reads: Some(reads), may_end }));
        is_read.recv().unwrap();
        trx.set_lock_wait_timeout(Some(Duration::from_millis(1)));
        let Err(Error::Lock(LockError::TimedOut { blockers, .. })) = within.lock_shared() else {
            panic!("the call in progress is waited for")
        };
        assert!(blockers.ids().is_empty());
        assert!(is_busy(&within.lock_wait_policy(LockWaitPolicy::NoWait).lock_exclusive()));
        trx.set_lock_wait_timeout(None);
        handle.interrupt();
        let interrupted = within.lock_shared();
        assert!(matches!(interrupted, Err(Error::Lock(LockError::Interrupted))), "{interrupted:?}");
        handle.clear();
        let interrupter = scope.spawn(|| {
            thread::sleep(Duration::from_millis(5));
            handle.interrupt();
            handle.clear();
        });
        let interrupted = within.lock_shared();
        // Withdrawn before the wait began, if this thread was late.
        assert!(
            matches!(interrupted, Err(Error::Lock(LockError::Interrupted))) || interrupter.is_finished(),
            "{interrupted:?}"
        );
        interrupter.join().unwrap();
        assert_eq!(table_locks(&db, &trx), []);
        let locked = scope.spawn(|| within.lock_shared());
        // Others go on meanwhile.
        for n in 0..10u8 {
            assert_eq!(rows_of(&table), [b"a"]);
            assert!(
                impatient(&db).table(&table).put(&[n], b"").is_ok() || !table_locks(&db, &trx).is_empty()
            );
        }
        assert!(!locked.is_finished());
        end.send(()).unwrap();
        written.join().unwrap().unwrap();
        locked.join().unwrap().unwrap();
    });
    assert_eq!(table_locks(&db, &trx), [TableMode::Shared]);
    assert_eq!(table.get(b"long").unwrap().map(|value| value.len()), Some(100_000));
}

/// Plain reads are such calls, so a request that does not wait for locks waits for a moment for them.
#[test]
fn a_call_in_progress_is_waited_for_without_a_wait_for_locks() {
    for lock_wait in [Duration::ZERO, Duration::from_millis(1)] {
        for ends in [true, false] {
            let (db, script, _) = scripted();
            let table = db.create_table("t", TableOptions::default()).unwrap();
            let ((reads, is_read), (end, may_end)) = (mpsc::channel(), mpsc::channel());
            let trx = db.begin(TransactionOptions::default().lock_wait(lock_wait));
            let long = table.clone();
            let source = Slow { reads: Some(reads), may_end };
            let written = thread::spawn(move || long.put_stream(b"long", 100_000, &mut { source }).unwrap());
            is_read.recv().unwrap();
            let after = Duration::from_millis(if ends { 60 } else { 160 });
            let (over, is_over) = mpsc::channel();
            script.then(after, move || {
                end.send(()).unwrap();
                written.join().unwrap();
                over.send(()).unwrap();
            });
            let locked = trx.table(&table).lock_exclusive();
            if ends {
                locked.unwrap();
                continue;
            }
            let error = locked.unwrap_err();
            let is_right = match &error {
                Error::Lock(LockError::Busy(_)) => lock_wait.is_zero(),
                Error::Lock(LockError::TimedOut { .. }) => !lock_wait.is_zero(),
                _ => false,
            };
            assert!(is_right && error.to_string().contains("calls in progress on the table"), "{error}");
            assert_eq!(table_locks(&db, &trx), []);
            trx.set_lock_wait_timeout(Some(Duration::from_secs(1)));
            trx.table(&table).lock_exclusive().unwrap();
            is_over.recv().unwrap();
        }
    }
}

fn rows_of(table: &Table) -> Vec<Vec<u8>> {
    table.rows().unwrap().map(|row| row.unwrap().0).collect()
}

/// The source of a value that tries to lock a table.
struct Locking<'t>(&'t TxTable<'t>);
impl Read for Locking<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let refused = self.0.lock_shared();
        assert!(matches!(refused, Err(Error::Usage(UsageError::StatementInCall))), "{refused:?}");
        out.fill(7);
        Ok(out.len())
    }
}

#[test]
fn a_table_lock_is_refused_where_a_lock_on_a_row_is() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = simulated(&disk, &env);
    let (table, other_db) = (table(&db), simulated(&SimulatedDisk::new(2), &env));
    let read_only = db.begin(TransactionOptions::default().read_only());
    let strict = begin(&db, Isolation::Snapshot);
    strict.table(&table).get(b"a").unwrap();
    let late = db.create_table("late", TableOptions::default()).unwrap();
    let elsewhere = begin(&other_db, Isolation::ReadCommitted);
    let refusals = [
        (read_only.table(&table).lock_shared(), "read-only"),
        (strict.table(&late).lock_exclusive(), "newer than the view"),
        (elsewhere.table(&table).lock_shared(), "another database"),
    ];
    for (refused, what) in refusals {
        let Err(Error::Transaction(error)) = &refused else { panic!("{what}: {refused:?}") };
        assert!(
            matches!(
                error,
                TransactionError::ReadOnly
                    | TransactionError::TableChanged(_)
                    | TransactionError::OtherDatabase
            ),
            "{what}: {error}"
        );
    }
    assert!(db.locks().is_empty(), "{:?}", db.locks());
    late.put(b"a", b"x1").unwrap();
    let trx = begin(&db, Isolation::ReadCommitted);
    db.drop_table("late").unwrap();
    let refused = trx.table(&late).lock_shared();
    assert!(matches!(refused, Err(Error::TableDropped(_))), "{refused:?}");
    assert!(db.locks().is_empty(), "{:?}", db.locks());
    drop((strict, trx));
    // From within the source of a value, the call itself would be waited for.
    let trx = begin(&db, Isolation::ReadCommitted);
    table.put_stream(b"long", 10_000, &mut Locking(&trx.table(&table))).unwrap();
    trx.table(&table).lock_shared().unwrap();
    let session = db.session();
    let temporary = session.create_temporary_table("own", TableOptions::default()).unwrap();
    read_only.table(&temporary).lock_exclusive().unwrap();
    trx.table(&temporary).lock_exclusive().unwrap();
    temporary.put(b"a", b"1").unwrap();
    assert_eq!(table_locks(&db, &trx), [TableMode::Shared]);
}

/// Changes outside of transactions, changes in transactions, and transactions that lock the table and read it twice,
/// or exclusively and add one to all rows.
#[test]
fn nothing_changes_in_a_table_that_is_locked() {
    const ROWS: u8 = 4;
    let db = database();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let number = |value: &[u8]| u32::from_be_bytes(value.try_into().unwrap());
    for key in 0..ROWS {
        table.put(&[key], &0u32.to_be_bytes()).unwrap();
    }
    let all = |table: &TxTable<'_>| -> Result<Vec<u32>> {
        table.range_for_share::<&[u8]>(..)?.map(|row| row.map(|(_, value)| number(&value))).collect()
    };
    let again = |run: &dyn Fn(&Transaction) -> Result<()>| loop {
        let trx = begin(&db, Isolation::ReadCommitted);
        match run(&trx) {
            Ok(()) => return trx.commit().map(drop).unwrap(),
            Err(Error::Lock(LockError::Deadlock(_))) => {}
            Err(error) => panic!("{error}"),
        }
    };
    thread::scope(|scope| {
        for thread in 0..2u8 {
            let (table, all) = (&table, &all);
            scope.spawn(move || {
                for n in 0..200u32 {
                    table.put(&[(thread + n as u8) % ROWS], &n.to_be_bytes()).unwrap();
                }
            });
            scope.spawn(move || {
                for n in 0..60 {
                    again(&|trx| {
                        let within = trx.table(table);
                        if n % 3 == 0 {
                            within.lock_exclusive()?;
                            let before = all(&within)?;
                            for (key, value) in before.iter().enumerate() {
                                within.put(&[key as u8], &(value + 1).to_be_bytes())?;
                            }
                            let after = all(&within)?;
                            assert!(
                                before.iter().map(|value| value + 1).eq(after),
                                "another one has changed a row"
                            );
                            return Ok(());
                        }
                        within.lock_shared()?;
                        let before: Vec<_> = table.rows()?.collect::<Result<_>>()?;
                        thread::yield_now();
                        let after: Vec<_> = table.rows()?.collect::<Result<_>>()?;
                        assert_eq!(before, after, "another one has changed a row");
                        Ok(())
                    });
                }
            });
        }
        let table = &table;
        scope.spawn(move || {
            for n in 0..100u8 {
                again(&|trx| {
                    let within = trx.table(table);
                    within.put(&[n % ROWS], &[0; 4])?;
                    within.put(&[(n + 1) % ROWS], &[0; 4])
                });
            }
        });
    });
    assert!(db.locks().is_empty() && db.lock_waits().is_empty());
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}
