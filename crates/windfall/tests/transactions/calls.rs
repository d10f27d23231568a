//! Calls that overlap: statements and ends of transactions from within calls, and concurrently with calls of other
//! threads.

use std::{
    io::{self, Read, Write},
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
    time::Duration,
};

use windfall::{
    Database, Error, Isolation, Result, Seek, Table, TableOptions, Transaction,
    error::{SchemaError, TransactionError},
};

use super::{await_lock_wait, begin, database, pairs, rows, table};

/// A source and a sink that run an action at the first read or write.
pub(crate) struct From<F>(pub Option<F>);

impl<F: FnOnce()> Read for From<F> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if let Some(run) = self.0.take() {
            run();
        }
        out.fill(1);
        Ok(out.len())
    }
}

impl<F: FnOnce()> Write for From<F> {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        if let Some(run) = self.0.take() {
            run();
        }
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// In bytes: the value needs overflow pages.
pub(crate) const LONG: u64 = 20_000;

/// Runs an action from within calls: a source and a sink of a transaction, and a source outside of transactions.
fn within_calls(db: &Database, around: &Table, run: impl Fn(&str)) {
    let trx = begin(db, Isolation::ReadCommitted);
    let within = trx.table(around);
    within.put_stream(b"long", LONG, &mut From(Some(|| run("source")))).unwrap();
    within.read_stream(b"long", &mut From(Some(|| run("sink")))).unwrap();
    trx.commit().unwrap();
    around.put_stream(b"long", LONG, &mut From(Some(|| run("source of a single call")))).unwrap();
}

fn is_busy<T: core::fmt::Debug>(done: &Result<T>) -> bool {
    matches!(done, Err(Error::Transaction(TransactionError::Busy)))
}

pub(crate) fn is_duplicate<T: core::fmt::Debug>(done: &Result<T>) -> bool {
    matches!(done, Err(Error::Schema(SchemaError::DuplicateKey { .. })))
}

#[test]
fn a_statement_may_be_made_from_within_a_call_of_another_transaction() {
    let db = database();
    let (around, table) = (db.create_table("around", TableOptions::default()).unwrap(), table(&db));
    within_calls(&db, &around, |place| {
        let trx = begin(&db, Isolation::RepeatableRead);
        let within = trx.table(&table);
        trx.atomically(|| within.put(b"kept", b"a1")).unwrap();
        let failed = trx.atomically(|| {
            within.put(b"gone", b"b2")?;
            within.insert(b"kept", b"c3")
        });
        assert!(is_duplicate(&failed), "{place}: {failed:?}");
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            trx.atomically(|| -> Result<()> {
                trx.atomically(|| within.put(b"gone", b"b2"))?;
                panic!("on purpose")
            })
        }));
        assert!(panicked.is_err());
        assert_eq!(rows(&within), pairs([("kept", "a1")]), "{place}");
        trx.commit().unwrap();
        assert!(table.delete(b"kept").unwrap());
    });
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}

#[test]
fn a_statement_from_within_a_call_keeps_the_calls_of_other_threads_out() {
    let db = database();
    let around = db.create_table("around", TableOptions::default()).unwrap();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    within_calls(&db, &around, |place| {
        let trx = begin(&db, Isolation::ReadCommitted);
        let (within, same_row) = (trx.table(&table), trx.table(&around));
        let on_another_thread =
            |run: &(dyn Fn() -> Result<()> + Sync)| thread::scope(|scope| scope.spawn(run).join().unwrap());
        trx.atomically(|| {
            within.put(b"1", b"")?;
            // It would wait for the call that the statement is made from, and the end of the statement would wait for
            // it.
            assert!(is_busy(&on_another_thread(&|| same_row.put(b"long", b""))), "{place}");
            trx.atomically(|| within.put(b"2", b""))?;
            assert!(is_busy(&on_another_thread(&|| within.put(b"3", b""))), "{place}");
            Ok(())
        })
        .unwrap();
        on_another_thread(&|| within.put(b"4", b"")).unwrap();
        trx.rollback().unwrap();
    });
    assert_eq!(table.rows().unwrap().count(), 0);
}

#[test]
fn the_end_of_a_transaction_waits_for_the_call_of_another_thread() {
    for commits in [true, false] {
        let db = database();
        let table = table(&db);
        let (trx, blocker) = (begin(&db, Isolation::ReadCommitted), begin(&db, Isolation::ReadCommitted));
        trx.table(&table).put(b"a", b"x1").unwrap();
        blocker.table(&table).put(b"b", b"y2").unwrap();
        // It does not borrow the transaction.
        let mut cursor = trx.table(&table).cursor_for_update().unwrap();
        thread::scope(|scope| {
            let call = scope.spawn(move || cursor.seek(Seek::AtLeast(b"b")));
            await_lock_wait(&db, &call);
            let end = scope.spawn(move || if commits { trx.commit().map(drop) } else { trx.rollback() });
            // A refusal would be immediate. Nothing reports that the end waits; if it has not got that far, the test
            // still holds.
            thread::sleep(Duration::from_millis(30));
            blocker.commit().unwrap();
            assert!(call.join().unwrap().unwrap());
            end.join().unwrap().unwrap();
        });
        let after = if commits { pairs([("a", "x1"), ("b", "y2")]) } else { pairs([("b", "y2")]) };
        assert_eq!(rows(&table), after);
    }
}

/// The other call may be waiting for the call from within which the transaction is ended.
#[test]
fn an_end_from_within_a_call_waits_for_no_call_of_another_thread() {
    let db = database();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    table.put_stream(b"long", LONG, &mut From(Some(|| {}))).unwrap();
    let ends: [fn(Transaction) -> Result<()>; 2] = [|trx| trx.commit().map(drop), Transaction::rollback];
    for (end, from_source) in ends.into_iter().flat_map(|end| [(end, true), (end, false)]) {
        let (trx, blocker) = (begin(&db, Isolation::ReadCommitted), begin(&db, Isolation::ReadCommitted));
        blocker.table(&table).put(b"a", b"x1").unwrap();
        trx.table(&table).put(b"own", b"y2").unwrap();
        let mut cursor = trx.table(&table).cursor_for_update().unwrap();
        thread::scope(|scope| {
            let call = scope.spawn(|| cursor.seek(Seek::AtLeast(b"a")));
            await_lock_wait(&db, &call);
            let around = begin(&db, Isolation::ReadCommitted);
            let mut from = From(Some(move || assert!(is_busy(&end(trx)))));
            if from_source {
                around.table(&table).put_stream(b"other", LONG, &mut from).unwrap();
            } else {
                around.table(&table).read_stream(b"long", &mut from).unwrap();
            }
            around.rollback().unwrap();
            blocker.commit().unwrap();
            assert!(call.join().unwrap().unwrap());
        });
        // The call in progress was the last one: its end has rolled the transaction back.
        let over = cursor.next();
        assert!(matches!(over, Err(Error::Transaction(TransactionError::RolledBack(_)))), "{over:?}");
        assert!(table.delete(b"a").unwrap() && !table.contains(b"own").unwrap());
    }
}

#[test]
fn a_statement_prepares_nothing() {
    let db = database();
    let table = table(&db);
    let trx = begin(&db, Isolation::RepeatableRead);
    let within = trx.table(&table);
    within.put(b"a", b"x1").unwrap();
    let failed: Result<()> = trx.atomically(|| {
        within.put(b"b", b"y2")?;
        trx.atomically(|| trx.prepare(b"xid"))
    });
    assert!(failed.is_err_and(|error| error.to_string().contains("statement")));
    assert!(db.prepared().is_empty());
    assert_eq!(rows(&within), pairs([("a", "x1")]));
    trx.prepare(b"xid").unwrap();
    drop(trx);
    db.commit_prepared(b"xid").unwrap();
    assert_eq!(rows(&table), pairs([("a", "x1")]));
}
