//! Interrupts by a handle: which waits they end, and what goes on.

use std::{
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use windfall::{
    Database, Error, IndexOptions, InterruptHandle, Isolation, Result, StatementEnd, Table, TableChanges,
    TableOptions, TransactionOptions, TxTable,
    env::{Env, RealEnv},
    error::LockError,
};
use windfall_sim::SimulatedDisk;

use super::{begin, database, options, pairs, rows, table, waits::scripted};

const SECOND: Duration = Duration::from_secs(1);

fn is_interrupted<T: core::fmt::Debug>(done: &Result<T>) -> bool {
    matches!(done, Err(Error::Lock(LockError::Interrupted)))
}

/// Each wait for a lock is ended, by an interrupt that lasts and by one that is withdrawn at once. The handle is older
/// than the transaction's id.
#[test]
fn an_interrupted_transaction_continues() {
    type Call = fn(&TxTable<'_>) -> Result<()>;
    let calls: [(&str, Call); 6] = [
        ("a row that is being changed", |t| t.put(b"a", b"y1")),
        ("a row that is locked", |t| t.get_for_update(b"b").map(drop)),
        ("a locked range", |t| t.insert(b"bb", b"x7")),
        ("a range", |t| t.range_for_update::<&[u8]>(..)?.try_for_each(|row| row.map(drop))),
        ("a key of a unique index", |t| t.insert(b"new", b"x9")),
        ("a duplicate", |t| t.duplicate_lock(windfall::RowMode::Exclusive).insert(b"b", b"y8")),
    ];
    for (name, call) in calls {
        for withdraws in [false, true] {
            let (db, script, clock) = scripted();
            let table = table(&db);
            for row in [(b"a", b"x1"), (b"b", b"x2"), (b"c", b"x3")] {
                table.insert(row.0, row.1).unwrap();
            }
            let holder = begin(&db, Isolation::RepeatableRead);
            let in_holder = holder.table(&table);
            in_holder.put(b"a", b"x9").unwrap();
            in_holder.range_for_share(&b"b"[..]..=b"c").unwrap().for_each(drop);
            let trx = begin(&db, Isolation::ReadCommitted);
            let handle = trx.interrupt_handle();
            assert_eq!(trx.id(), None);
            let within = trx.table(&table);
            let by_other = handle.clone();
            script.then(SECOND, move || {
                by_other.interrupt();
                if withdraws {
                    by_other.clear();
                }
            });
            let began = clock.now();
            let done = call(&within);
            assert!(is_interrupted(&done), "{name}: {done:?}");
            assert_eq!((clock.now().saturating_sub(began), handle.is_set()), (SECOND, !withdraws), "{name}");
            // What need not wait goes on, and what must is refused at once.
            within.put(b"own", b"y5").unwrap();
            handle.interrupt();
            assert!(is_interrupted(&call(&within)), "{name}");
            assert_eq!((clock.now().saturating_sub(began), db.lock_waits().len()), (SECOND, 0), "{name}");
            handle.clear();
            script.then(SECOND, move || drop(holder));
            match call(&within) {
                Ok(()) | Err(Error::Schema(_)) => {}
                Err(error) => panic!("{name}: {error}"),
            }
            assert_eq!(clock.now().saturating_sub(began), 2 * SECOND, "{name}: it waited");
            trx.commit().unwrap();
            assert_eq!(table.get(b"own").unwrap().as_deref(), Some(&b"y5"[..]));
            assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
        }
    }
}

#[test]
fn an_interrupt_does_not_keep_a_transaction_from_its_end() {
    let db = database();
    let table = table(&db);
    let handle = InterruptHandle::new();
    let session = db.with_interrupt(&handle);
    handle.interrupt();
    let trx = begin(&session, Isolation::RepeatableRead);
    let within = trx.table(&table);
    within.put(b"a", b"x1").unwrap();
    trx.begin_statement().unwrap();
    within.put(b"b", b"x2").unwrap();
    let here = trx.set_savepoint().unwrap();
    within.put(b"c", b"x3").unwrap();
    trx.rollback_to_savepoint(&here).unwrap();
    trx.end_statement(StatementEnd::Keep).unwrap();
    trx.begin_statement().unwrap();
    within.delete(b"a").unwrap();
    trx.end_statement(StatementEnd::Undo).unwrap();
    trx.prepare(b"x").unwrap();
    trx.commit().unwrap();
    let other = begin(&session, Isolation::RepeatableRead);
    other.table(&table).put(b"d", b"x4").unwrap();
    other.rollback().unwrap();
    assert_eq!(rows(&table), pairs([("a", "x1"), ("b", "x2")]));
    // A handle is that of its transactions alone.
    let (holder, free) = (begin(&db, Isolation::ReadCommitted), begin(&db, Isolation::ReadCommitted));
    holder.table(&table).put(b"a", b"y1").unwrap();
    free.set_lock_wait_timeout(Some(Duration::ZERO));
    assert!(!free.interrupt_handle().is_set());
    let busy = free.table(&table).put(b"a", b"y2");
    assert!(matches!(busy, Err(Error::Lock(LockError::Busy(_)))), "{busy:?}");
}

/// A call from within the source of a value has the interrupt of its own transaction, or else that of the outer call.
#[test]
fn a_call_within_another_is_interrupted_by_its_own_handle() {
    let (db, script, clock) = scripted();
    let (table, other) = (table(&db), db.create_table("other", TableOptions::default()).unwrap());
    let holder = begin(&db, Isolation::ReadCommitted);
    holder.table(&table).put(b"a", b"x1").unwrap();
    let (outer, inner) = (begin(&db, Isolation::ReadCommitted), begin(&db, Isolation::ReadCommitted));
    let (of_outer, of_inner) = (outer.interrupt_handle(), inner.interrupt_handle());
    of_inner.interrupt();
    let mut from = super::calls::From(Some(|| assert!(inner.table(&other).put(b"k", b"1").is_ok())));
    outer.table(&other).put_stream(b"long", super::calls::LONG, &mut from).unwrap();
    // After the inner call the outer handle applies again, and not the inner one.
    script.then(SECOND, move || of_outer.interrupt());
    let began = clock.now();
    assert!(is_interrupted(&outer.table(&table).put(b"a", b"x2")));
    assert_eq!(clock.now().saturating_sub(began), SECOND);
    drop(holder);
}

/// Statements that wait for a transaction, before or while they wait.
#[test]
fn an_interrupt_ends_the_waits_of_every_statement() {
    type Statement = fn(&Database) -> Result<()>;
    let statements: [(&str, Statement); 9] = [
        ("drop", |db| db.drop_table("t").map(drop)),
        ("drop of two", |db| db.drop_tables(&["other", "t"]).map(drop)),
        ("drop by prefix", |db| db.drop_tables_with_prefix("t").map(drop)),
        ("truncate", |db| db.truncate_table("t").map(drop)),
        ("truncate by prefix", |db| db.truncate_tables_with_prefix("t").map(drop)),
        ("create index", |db| db.create_index("t", "late", IndexOptions::on_value(0..2))),
        ("drop index", |db| db.drop_index("t", "first").map(drop)),
        ("rename", |db| db.rename_table("t", "elsewhere")),
        ("swap", |db| db.swap_tables("t", "other")),
    ];
    for (name, statement) in statements {
        for is_set_before in [true, false] {
            let (db, script, clock) = scripted();
            let (table, _) = (table(&db), db.create_table("other", TableOptions::default()).unwrap());
            table.put(b"a", b"x1").unwrap();
            let trx = begin(&db, Isolation::ReadCommitted);
            trx.table(&table).put(b"a", b"x2").unwrap();
            let handle = InterruptHandle::new();
            let session = db.with_interrupt(&handle);
            if is_set_before {
                handle.interrupt();
            } else {
                let handle = handle.clone();
                script.then(SECOND, move || handle.interrupt());
            }
            let began = clock.now();
            let done = statement(&session);
            if done.is_ok() {
                assert!(matches!(name, "rename" | "swap"), "{name} waits for no transaction");
                continue;
            }
            assert!(is_interrupted(&done), "{name}: {done:?}");
            let waited = if is_set_before { Duration::ZERO } else { SECOND };
            assert_eq!(clock.now().saturating_sub(began), waited, "{name}");
            assert!(db.lock_waits().is_empty() && db.locks().iter().all(|lock| Some(lock.trx) == trx.id()));
            trx.table(&table).put(b"b", b"x3").unwrap();
            trx.commit().unwrap();
            handle.clear();
            statement(&session).unwrap();
            assert_eq!(db.check().unwrap().findings, Vec::<String>::new(), "{name}");
        }
    }
}

/// An index waits for a transaction, and other statements wait for the index, without a limit.
#[test]
fn an_interrupt_ends_the_wait_for_a_name() {
    let db = database();
    let table = table(&db);
    let old = begin(&db, Isolation::ReadCommitted);
    old.table(&table).put(b"a", b"x1").unwrap();
    let (builder, waiter) = (InterruptHandle::new(), InterruptHandle::new());
    let (building_db, waiting_db) = (db.with_interrupt(&builder), db.with_interrupt(&waiter));
    thread::scope(|scope| {
        let building = scope.spawn(|| building_db.create_index("t", "late", IndexOptions::on_value(0..2)));
        while db.lock_waits().is_empty() {
            thread::yield_now();
        }
        let unlimited = scope.spawn(|| waiting_db.drop_table("t"));
        let limited =
            scope.spawn(|| waiting_db.with_ddl_timeout(super::time_limit::HANG).truncate_table("t"));
        // Before the waits or during them: the outcome is the same.
        thread::sleep(Duration::from_millis(20));
        waiter.interrupt();
        for waits in [unlimited.join().unwrap(), limited.join().unwrap()] {
            assert!(is_interrupted(&waits), "{waits:?}");
        }
        assert!(!building.is_finished());
        builder.interrupt();
        assert!(is_interrupted(&building.join().unwrap()));
    });
    old.commit().unwrap();
    assert!(table.index("late").is_err());
    waiter.clear();
    waiting_db.drop_table("t").unwrap();
}

#[test]
fn an_interrupt_ends_the_wait_for_undo_space() {
    const LIMIT: u64 = 1 << 20;
    let options = options().undo_limit(LIMIT);
    let env = Arc::new(RealEnv::default());
    let db = Database::open_on(Arc::new(SimulatedDisk::new(5)), env, &options, &|_| {}).unwrap();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    table.put(b"row", b"").unwrap();
    let _view = db.begin(TransactionOptions::default().read_only().consistent_snapshot());
    db.set_lock_wait_timeout(Duration::ZERO);
    while table.put(b"row", &[1; 1000]).is_ok() {}
    let trx = begin(&db, Isolation::RepeatableRead);
    trx.set_lock_wait_timeout(Some(super::time_limit::HANG));
    let handle = trx.interrupt_handle();
    let before = db.metrics().undo_waits;
    thread::scope(|scope| {
        let waits = scope.spawn(|| trx.table(&table).put(b"row", b"1"));
        while db.metrics().undo_waits == before {
            thread::yield_now();
        }
        handle.interrupt();
        let done = waits.join().unwrap();
        assert!(is_interrupted(&done), "{done:?}");
    });
    trx.rollback().unwrap();
}

/// Runs `run` while a call outside of transactions, on another thread, waits for the source of the value of row `long`.
/// That call is inside the table's gate and has the key latch of the row.
fn during_a_call<T>(table: &Table, run: impl FnOnce() -> T) -> T {
    let (entered, is_inside) = mpsc::channel();
    let (leave, may_leave) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut from = super::calls::From(Some(|| {
                entered.send(()).unwrap();
                may_leave.recv().expect_err("it has been dropped");
            }));
            table.put_stream(b"long", super::calls::LONG, &mut from).unwrap();
        });
        is_inside.recv().unwrap();
        // Dropped by a panic, too: the call then ends.
        let _leaves = leave;
        run()
    })
}

/// Runs `call`, which waits, and interrupts it, before or while it waits. It fails; the handle is clear afterwards.
fn assert_interrupted<T: core::fmt::Debug + Send>(
    what: &str,
    handle: &InterruptHandle,
    call: impl Fn() -> Result<T> + Sync,
) {
    handle.interrupt();
    let done = call();
    assert!(is_interrupted(&done), "{what}: {done:?}");
    handle.clear();
    thread::scope(|scope| {
        let waits = scope.spawn(&call);
        // It waits by now, or will find the interrupt: the outcome is the same.
        thread::sleep(Duration::from_millis(10));
        assert!(!waits.is_finished(), "{what}: it has not waited");
        handle.interrupt();
        let done = waits.join().unwrap();
        assert!(is_interrupted(&done), "{what}: {done:?}");
    });
    handle.clear();
}

/// The wait of a statement for a call that is inside the table is ended, and by a time limit as well. Calls and
/// look-ups then go on, although that call is still inside.
#[test]
fn a_statement_that_gives_up_leaves_its_tables_open() {
    type Statement = fn(&Database) -> Result<()>;
    let statements: [(&str, Statement); 8] = [
        ("truncate", |db| db.truncate_table("t").map(drop)),
        ("create index", |db| db.create_index("t", "late", IndexOptions::on_value(0..2))),
        ("drop index", |db| db.drop_index("t", "late").map(drop)),
        ("build of indexes", |db| {
            let changes = TableChanges::default().add_index("later", IndexOptions::on_value(0..2));
            db.build_indexes("t", changes).map(drop)
        }),
        ("metadata", |db| db.alter_table("t", TableChanges::default().metadata(b"new".to_vec())).map(drop)),
        ("truncate by prefix", |db| db.truncate_tables_with_prefix("t").map(drop)),
        ("drop of two", |db| db.drop_tables(&["other", "t"]).map(drop)),
        ("drop", |db| db.drop_table("t").map(drop)),
    ];
    let db = database();
    let handle = InterruptHandle::new();
    let session = db.with_interrupt(&handle);
    for (name, statement) in statements {
        let table = db.table("t").or_else(|_| db.create_table("t", TableOptions::default())).unwrap();
        let other = db.table("other").or_else(|_| db.create_table("other", TableOptions::default())).unwrap();
        table.put(b"a", b"x1").unwrap();
        during_a_call(&table, || {
            let assert_open = |why: &str| {
                table.put(b"b", b"x2").unwrap();
                assert_eq!(table.get(b"a").unwrap().as_deref(), Some(&b"x1"[..]), "{name}: {why}");
                other.put(b"c", b"x3").unwrap();
                assert!(db.table("t").is_ok() && db.table("other").is_ok(), "{name}: {why}");
            };
            assert_interrupted(name, &handle, || statement(&session));
            assert_open("after an interrupt");
            let busy = statement(&db.with_ddl_timeout(Duration::ZERO));
            assert!(matches!(busy, Err(Error::Lock(LockError::Busy(_)))), "{name}: {busy:?}");
            let begun = Instant::now();
            let timed_out = statement(&db.with_ddl_timeout(Duration::from_millis(120)));
            assert!(begun.elapsed() >= Duration::from_millis(120), "{name}: {:?}", begun.elapsed());
            let Err(Error::Lock(LockError::TimedOut { waited, .. })) = &timed_out else {
                panic!("{name}: {timed_out:?}")
            };
            assert!(*waited > Duration::ZERO, "{name}: {waited:?}");
            assert!(timed_out.unwrap_err().to_string().contains("calls in progress"), "{name}");
            assert_open("after a timeout");
        });
        statement(&session).unwrap();
        assert_eq!(db.check().unwrap().findings, Vec::<String>::new(), "{name}");
    }
}

/// A build that has filled its index gives up, at its limit or by an interrupt, while a call stays on the table that
/// has begun meanwhile: the statement ends before the call does.
#[test]
fn an_index_build_gives_up_although_a_call_stays_on_the_table() {
    for by_interrupt in [false, true] {
        let db = database();
        let table = db.create_table("t", TableOptions::default()).unwrap();
        table.put(b"a", b"x1").unwrap();
        let handle = InterruptHandle::new();
        let session = if by_interrupt {
            db.with_interrupt(&handle)
        } else {
            db.with_ddl_timeout(Duration::from_millis(120))
        };
        let (entered, is_inside) = mpsc::channel();
        let (leave, may_leave) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let mut stays = Some(move || {
                entered.send(()).unwrap();
                may_leave.recv().expect_err("it has been dropped");
            });
            let _leaves = leave;
            let table = &table;
            let (ended, has_ended) = mpsc::channel::<()>();
            // Again and again: it ends the wait that is in progress.
            let handle = &handle;
            let mut interrupts = by_interrupt.then_some(move || {
                while has_ended.recv_timeout(Duration::from_millis(10)) == Err(RecvTimeoutError::Timeout) {
                    handle.interrupt();
                    handle.clear();
                }
            });
            let made = session.create_index_with("t", "i", IndexOptions::supplied(4), |_, value, entry| {
                if let Some(stays) = stays.take() {
                    let mut source = super::calls::From(Some(stays));
                    scope.spawn(move || table.put_stream(b"long", super::calls::LONG, &mut source).unwrap());
                    is_inside.recv().unwrap();
                    interrupts.take().map(|interrupts| scope.spawn(interrupts));
                }
                entry.key.extend_from_slice(value);
                Ok(true)
            });
            drop(ended);
            let is_right = match &made {
                Err(Error::Lock(LockError::TimedOut { .. })) => !by_interrupt,
                made => by_interrupt && is_interrupted(made),
            };
            assert!(is_right, "{made:?}");
            table.put(b"b", b"x2").unwrap();
        });
        assert!(table.index("i").is_err() && table.get(b"long").unwrap().is_some());
        assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
        db.create_index("t", "i", IndexOptions::on_value(0..1)).unwrap();
        assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
    }
}

/// Calls that meet a closed gate, look-ups of the name that a statement is deciding, and a check of its table.
#[test]
fn an_interrupt_ends_the_wait_at_a_gate() {
    type Call = fn(&TxTable<'_>) -> Result<()>;
    let calls: [(&str, Call); 5] = [
        ("get", |t| t.get(b"a").map(drop)),
        ("put", |t| t.put(b"a", b"x2")),
        ("locking read", |t| t.get_for_update(b"a").map(drop)),
        ("range", |t| t.range::<&[u8]>(..)?.try_for_each(|row| row.map(drop))),
        ("index", |t| t.index("first").map(drop)),
    ];
    let db = database();
    let (table, other) = (table(&db), db.create_table("other", TableOptions::default()).unwrap());
    table.put(b"a", b"x1").unwrap();
    let handle = InterruptHandle::new();
    let session = db.with_interrupt(&handle);
    let trx = begin(&session, Isolation::ReadCommitted);
    thread::scope(|scope| {
        let dropping = during_a_call(&table, || {
            let dropping = scope.spawn(|| db.drop_table("t"));
            let set = InterruptHandle::new();
            set.interrupt();
            // A look-up that would have to wait fails: the statement decides about the name.
            while db.with_interrupt(&set).table("t").is_ok() {
                thread::yield_now();
            }
            assert_interrupted("look-up", &handle, || session.table("t").map(drop));
            assert_interrupted("check", &handle, || session.check_live().map(drop));
            let closing = begin(&db.with_interrupt(&set), Isolation::ReadCommitted);
            while closing.table(&table).get(b"a").is_ok() {
                thread::yield_now();
            }
            for (name, call) in calls {
                assert_interrupted(name, &handle, || call(&trx.table(&table)));
            }
            dropping
        });
        // The transaction goes on. It has locked the table before it met the gate, so the drop waits for its end.
        trx.table(&other).put(b"k", b"1").unwrap();
        trx.commit().unwrap();
        dropping.join().unwrap().unwrap();
    });
    assert_eq!(other.get(b"k").unwrap().as_deref(), Some(&b"1"[..]));
}

/// The wait for the key latch of a row that another call is changing.
#[test]
fn an_interrupt_ends_the_wait_for_a_call_on_the_same_row() {
    type Call = fn(&TxTable<'_>) -> Result<()>;
    let calls: [(&str, Call); 4] = [
        ("put", |t| t.put(b"long", b"x2")),
        ("insert", |t| t.insert(b"long", b"x2")),
        ("delete", |t| t.delete(b"long").map(drop)),
        ("locking read", |t| t.get_for_update(b"long").map(drop)),
    ];
    let db = database();
    let table = table(&db);
    for (name, call) in calls {
        let trx = begin(&db, Isolation::RepeatableRead);
        let handle = trx.interrupt_handle();
        let within = trx.table(&table);
        within.put(b"own", name.as_bytes()).unwrap();
        during_a_call(&table, || {
            assert_interrupted(name, &handle, || call(&within));
            // The queue of the latch goes on without the call that has left it.
            thread::scope(|scope| {
                scope.spawn(|| table.put(b"other", b"x4").unwrap());
            });
        });
        table.put(b"long", b"x3").unwrap();
        trx.commit().unwrap();
        assert_eq!(table.get(b"own").unwrap().as_deref(), Some(name.as_bytes()));
        assert_eq!(table.get(b"long").unwrap().as_deref(), Some(&b"x3"[..]));
    }
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}
