//! Statements concurrent with transactions.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc::channel,
    },
    thread,
    time::{Duration, Instant},
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    span::{Attributes, Id, Record},
};
use windfall::{
    Database, Error, IndexOptions, Isolation, Result, Table, TableChanges, TableOptions, TransactionOptions,
    error::LockError,
};

use super::{await_lock_wait, begin, database, pairs, rows, table, time_limit::HANG};

type Statement = fn(&Database) -> Result<()>;

const STATEMENTS: [(&str, Statement); 6] = [
    ("drop", |db| db.drop_table("t").map(drop)),
    ("truncate", |db| db.truncate_table("t").map(drop)),
    ("rename", |db| db.rename_table("t", "u")),
    ("swap", |db| db.swap_tables("t", "other")),
    ("create index", |db| db.create_index("t", "late", IndexOptions::on_value(0..2))),
    ("drop index", |db| db.drop_index("t", "second").map(drop)),
];

#[test]
fn a_statement_waits_only_for_transactions_that_have_changed_its_table() {
    for (name, statement) in STATEMENTS {
        let db = database();
        let table = table(&db);
        db.create_table("other", TableOptions::default()).unwrap();
        let unrelated = db.create_table("unrelated", TableOptions::default()).unwrap();
        let (busy, idle) = (begin(&db, Isolation::RepeatableRead), begin(&db, Isolation::RepeatableRead));
        idle.table(&unrelated).put(b"a", b"1").unwrap();
        idle.table(&table).get(b"a").unwrap();
        busy.table(&table).put(b"a", b"x1").unwrap();
        thread::scope(|scope| {
            let within = busy.table(&table);
            let (done, is_done) = channel();
            let statement = scope.spawn({
                let db = db.clone();
                move || {
                    statement(&db).unwrap();
                    done.send(()).unwrap();
                }
            });
            while db.lock_waits().is_empty() {
                assert!(!statement.is_finished(), "{name} did not wait");
                thread::yield_now();
            }
            // Calls outside of transactions continue, and so does the transaction that the statement waits for.
            table.put(b"b", b"y2").unwrap();
            assert_eq!(db.table("t").unwrap().get(b"b").unwrap(), Some(b"y2".to_vec()));
            within.put(b"c", b"z3").unwrap();
            assert!(is_done.try_recv().is_err(), "{name} did not wait");
            busy.commit().unwrap();
            is_done.recv_timeout(HANG).unwrap();
        });
        idle.commit().unwrap();
        assert_eq!(db.check().unwrap().findings, Vec::<String>::new(), "{name}");
        assert_eq!((db.locks(), db.lock_waits()), (Vec::new(), Vec::new()), "{name}");
    }
}

#[test]
fn a_statement_that_has_timed_out_names_the_blocking_transaction() {
    for (name, statement) in STATEMENTS {
        let db = database();
        let table = table(&db);
        db.create_table("other", TableOptions::default()).unwrap();
        let trx = begin(&db, Isolation::RepeatableRead);
        let within = trx.table(&table);
        within.put(b"a", b"x1").unwrap();
        for lock_wait in [Duration::ZERO, Duration::from_millis(30)] {
            db.set_lock_wait_timeout(lock_wait);
            let error = statement(&db).unwrap_err();
            let is_timeout = matches!(error, Error::Lock(LockError::TimedOut { .. } | LockError::Busy(_)));
            let text = error.to_string();
            assert!(is_timeout && text.contains(&trx.id().unwrap().to_string()), "{name}: {text}");
        }
        // The refused statement has no effect.
        within.put(b"b", b"x2").unwrap();
        trx.commit().unwrap();
        assert_eq!(rows(&table), pairs([("a", "x1"), ("b", "x2")]), "{name}");
        statement(&db).unwrap();
    }
}

/// Returns the errors of a change and of statements that wait for a transaction which has changed their table.
fn refusals(db: &Database, table: &Table) -> Vec<String> {
    let mut texts = Vec::new();
    for lock_wait in [Duration::ZERO, Duration::from_millis(30)] {
        db.set_lock_wait_timeout(lock_wait);
        texts.push(table.put(b"a", b"y2").unwrap_err().to_string());
        texts.extend(STATEMENTS.map(|(_, statement)| statement(db).unwrap_err().to_string()));
    }
    texts
}

/// Most likely the call was meant to be part of that transaction.
#[test]
fn a_wait_of_a_thread_for_its_own_transaction_is_reported_as_such() {
    let db = database();
    let table = table(&db);
    db.create_table("other", TableOptions::default()).unwrap();
    let trx = begin(&db, Isolation::RepeatableRead);
    trx.table(&table).put(b"a", b"x1").unwrap();
    let own = format!("last call of transaction {} was made by this thread", trx.id().unwrap());
    let is_own = |text: &String| text.contains(&own) && text.contains("`Transaction::table`");
    let texts = refusals(&db, &table);
    assert!(texts.iter().all(is_own), "{texts:?}");
    // Another transaction of the thread may belong to another session.
    let second = db.begin(TransactionOptions::default().lock_wait(Duration::ZERO));
    let busy = second.table(&table).put(b"a", b"y2").unwrap_err().to_string();
    assert!(!busy.contains("this thread") && busy.contains(&trx.id().unwrap().to_string()), "{busy}");
    drop(second);
    // The last call counts, whatever it is.
    thread::scope(|scope| scope.spawn(|| trx.table(&table).get(b"a").map(drop)).join().unwrap()).unwrap();
    let texts = refusals(&db, &table);
    assert!(!texts.iter().any(|text| text.contains("this thread")), "{texts:?}");
    trx.table(&table).get(b"a").unwrap();
    assert!(refusals(&db, &table).iter().all(is_own));
    trx.rollback().unwrap();
    // A transaction of another thread.
    let trx = thread::scope(|scope| {
        let begun = scope.spawn(|| {
            let trx = begin(&db, Isolation::RepeatableRead);
            trx.table(&table).put(b"a", b"x1").map(|()| trx)
        });
        begun.join().unwrap().unwrap()
    });
    let texts = refusals(&db, &table);
    assert!(!texts.iter().any(|text| text.contains("this thread")), "{texts:?}");
    // A prepared transaction accepts no more calls, with a handle and without one.
    trx.table(&table).put(b"a", b"x1").unwrap();
    assert!(refusals(&db, &table).iter().any(|text| text.contains("this thread")));
    trx.prepare(b"xid").unwrap();
    let prepared = refusals(&db, &table);
    drop(trx);
    let texts = [prepared, refusals(&db, &table)].concat();
    assert!(!texts.iter().any(|text| text.contains("this thread")), "{texts:?}");
    db.commit_prepared(b"xid").unwrap();
    assert_eq!(rows(&table), pairs([("a", "x1")]));
}

/// Counts warnings.
struct Warnings(Arc<AtomicUsize>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, SeqCst);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn a_wait_of_a_thread_for_its_own_transaction_begins_with_a_warning() {
    let db = database();
    let table = table(&db);
    let trx = begin(&db, Isolation::RepeatableRead);
    // An insert into a locked range waits, too.
    assert!(trx.table(&table).range_for_share(&b"a"[..]..).unwrap().next().is_none());
    let warnings = Arc::new(AtomicUsize::new(0));
    let refused = |lock_wait| {
        db.set_lock_wait_timeout(lock_wait);
        let error =
            tracing::subscriber::with_default(Warnings(warnings.clone()), || table.insert(b"b", b"x1"));
        let text = error.unwrap_err().to_string();
        assert!(text.contains("this thread"), "{text}");
        warnings.swap(0, SeqCst)
    };
    assert_eq!(refused(Duration::from_millis(30)), 1);
    assert_eq!(refused(Duration::ZERO), 0, "it does not wait");
}

#[test]
fn a_deadlock_of_a_transaction_and_a_statement_is_broken() {
    let db = database();
    let table = table(&db);
    let other = db.create_table("other", TableOptions::default()).unwrap();
    let (first, second) = (begin(&db, Isolation::RepeatableRead), begin(&db, Isolation::RepeatableRead));
    first.table(&table).put(b"a", b"x1").unwrap();
    second.table(&other).put(b"a", b"x1").unwrap();
    thread::scope(|scope| {
        // It has one table, and waits for the other.
        let dropping = scope.spawn(|| db.drop_tables(&["other", "t"]));
        while db.lock_waits().is_empty() {
            thread::yield_now();
        }
        let done = second.table(&table).put(b"b", b"y2");
        first.commit().unwrap();
        if done.is_ok() {
            second.commit().unwrap();
        }
        let dropped = dropping.join().unwrap();
        assert!(done.is_ok() || dropped.is_ok(), "{done:?}, {dropped:?}");
    });
}

#[test]
fn a_group_of_alterations_that_is_a_deadlock_victim_waits_again() {
    let db = database();
    let [one, other] = ["one", "other"].map(|name| db.create_table(name, TableOptions::default()).unwrap());
    let mut group = db.ddl();
    for name in ["one", "other"] {
        let index = TableChanges::default().add_index("i", IndexOptions::on_value(0..2));
        group.finish(db.build_indexes(name, index).unwrap(), TableChanges::default());
    }
    let trx = begin(&db, Isolation::RepeatableRead);
    trx.table(&other).put(b"a", b"x1").unwrap();
    thread::scope(|scope| {
        // It has one table, and waits for the other.
        let altering = scope.spawn(|| group.commit());
        while db.lock_waits().is_empty() {
            thread::yield_now();
        }
        trx.table(&one).put(b"a", b"x2").unwrap();
        trx.commit().unwrap();
        altering.join().unwrap().unwrap();
    });
    assert_eq!(db.metrics().deadlocks, 1);
    for (table, value) in [(one, b"x2"), (other, b"x1")] {
        assert_eq!(table.index("i").unwrap().get(value).unwrap().count(), 1);
    }
}

#[test]
fn a_wait_for_a_row_of_a_dropped_table_gets_an_error() {
    let db = database();
    let table = table(&db);
    table.put(b"a", b"x1").unwrap();
    let trx = begin(&db, Isolation::RepeatableRead);
    trx.table(&table).put(b"a", b"x2").unwrap();
    thread::scope(|scope| {
        let alone = scope.spawn(|| table.put(b"a", b"x3"));
        while db.lock_waits().is_empty() {
            thread::yield_now();
        }
        let dropping = scope.spawn(|| db.drop_table("t"));
        while db.lock_waits().len() < 2 {
            thread::yield_now();
        }
        trx.commit().unwrap();
        dropping.join().unwrap().unwrap();
        // The call ran before the drop or after it.
        let done = alone.join().unwrap();
        assert!(matches!(done, Ok(()) | Err(Error::TableDropped(_))), "{done:?}");
    });
    assert!(matches!(table.get(b"a"), Err(Error::TableDropped(_))));
}

#[test]
fn a_statement_waits_as_long_as_it_is_asked_to() {
    let db = database();
    let table = table(&db);
    db.create_table("other", TableOptions::default()).unwrap();
    let trx = begin(&db, Isolation::RepeatableRead);
    trx.table(&table).put(b"a", b"x1").unwrap();
    for (_, statement) in STATEMENTS {
        refuses(&db, statement);
    }
    refuses(&db, |db| db.drop_tables(&["other", "t"]).map(drop));
    trx.commit().unwrap();
    assert_eq!(db.tables().unwrap().len(), 2);
    assert_eq!(db.table("t").unwrap().get(b"a").unwrap(), Some(b"x1".to_vec()));
    db.with_ddl_timeout(Duration::ZERO).drop_table("t").unwrap();
}

/// Asserts that a statement is refused, at once or after its time.
fn refuses(db: &Database, statement: Statement) {
    let refused = statement(&db.with_ddl_timeout(Duration::ZERO));
    assert!(matches!(refused, Err(Error::Lock(LockError::Busy(_)))), "{refused:?}");
    let began = Instant::now();
    let refused = statement(&db.with_ddl_timeout(Duration::from_millis(40)));
    assert!(matches!(refused, Err(Error::Lock(LockError::TimedOut { .. }))), "{refused:?}");
    let waited = began.elapsed();
    assert!(waited >= Duration::from_millis(40), "{waited:?}");
}

#[test]
fn a_statement_waits_for_another_one_as_long_as_it_is_asked_to() {
    let db = database();
    let (more, rows) = channel::<u8>();
    thread::scope(|scope| {
        let loading = scope.spawn(|| {
            let rows = rows.into_iter().map(|n| Ok((vec![n], b"x".to_vec())));
            db.create_table_from("t", TableOptions::default(), rows)
        });
        more.send(1).unwrap();
        // As soon as the load has the metadata lock on the name, the name is taken.
        while db
            .with_ddl_timeout(Duration::ZERO)
            .drop_table("t")
            .is_err_and(|error| matches!(error, Error::Schema(_)))
        {
            thread::yield_now();
        }
        refuses(&db, |db| db.drop_table("t").map(drop));
        refuses(&db, |db| db.create_table("t", TableOptions::default()).map(drop));
        let patient = scope.spawn(|| db.drop_table("t"));
        more.send(2).unwrap();
        drop(more);
        assert!(loading.join().unwrap().is_ok());
        patient.join().unwrap().unwrap();
    });
}

/// An index build that waits for one transaction does not block another one for longer than one turn in the table's
/// queue.
#[test]
fn an_index_that_waits_for_a_transaction_holds_up_no_other() {
    let db = database();
    let table = table(&db);
    (0..100).for_each(|n| table.put(&[n], &[b'a' + n % 20, n]).unwrap());
    let old = begin(&db, Isolation::RepeatableRead);
    old.table(&table).update(&[0], b"y\xf0").unwrap();
    thread::scope(|scope| {
        let building = scope.spawn(|| db.create_index("t", "late", IndexOptions::on_value(0..2).unique()));
        await_lock_wait(&db, &building);
        // It waits, and a later transaction waits for at most one turn of the statement in the table's queue, whether
        // it commits, rolls back, or rolls back to a savepoint.
        for n in 1..60 {
            let trx = begin(&db, Isolation::ReadCommitted);
            let within = trx.table(&table);
            assert_eq!(within.get_for_update(&[n]).unwrap().unwrap()[1], n);
            within.update(&[n], &[b'z', n]).unwrap();
            trx.savepoint("here").unwrap();
            assert!(within.delete(&[n]).unwrap());
            match n % 3 {
                0 => trx.commit().map(drop).unwrap(),
                1 => trx.rollback().unwrap(),
                _ => {
                    trx.rollback_to("here").unwrap();
                    trx.commit().unwrap();
                }
            }
            assert!(!building.is_finished(), "it did not wait");
        }
        let waiting = db.lock_waits();
        assert_eq!(
            waiting.iter().map(|wait| wait.blockers.ids().to_vec()).collect::<Vec<_>>(),
            [[old.id().unwrap()]]
        );
        old.rollback().unwrap();
        building.join().unwrap().unwrap();
    });
    assert_eq!(db.lock_waits(), Vec::new());
    let by_index = table.index("late").unwrap().range::<&[u8]>(..).unwrap().count();
    assert_eq!((by_index, rows(&table).len()), (81, 81));
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}

/// The wait of an index build can be interrupted, and the interrupted build leaves nothing.
#[test]
fn an_index_that_waits_can_be_interrupted() {
    let db = database();
    let table = table(&db);
    table.put(b"a", b"x1").unwrap();
    let old = begin(&db, Isolation::RepeatableRead);
    old.table(&table).put(b"b", b"x2").unwrap();
    thread::scope(|scope| {
        let building = scope.spawn(|| db.create_index("t", "late", IndexOptions::on_value(0..2)));
        let id = loop {
            if let Some(wait) = db.lock_waits().first() {
                break wait.trx;
            }
            thread::yield_now();
        };
        assert!(db.interrupt(id));
        let refused = building.join().unwrap();
        assert!(matches!(refused, Err(Error::Lock(LockError::Interrupted))), "{refused:?}");
    });
    assert!(table.index("late").is_err());
    old.table(&table).put(b"c", b"x3").unwrap();
    old.commit().unwrap();
    db.create_index("t", "late", IndexOptions::on_value(0..2)).unwrap();
}
