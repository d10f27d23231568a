//! Statements that begin and end by calls.

use std::{
    collections::BTreeMap,
    sync::{Mutex, mpsc::channel},
    thread,
    time::Duration,
};

use proptest::prelude::*;
use windfall::{
    Error, Isolation, Result, Savepoint, Seek, StatementEnd, TableOptions,
    error::{LockError, TransactionError},
};

use super::{await_lock_wait, begin, calls, database, pairs, rows, table, time_limit::HANG};

fn is_none(done: Result<()>) {
    assert!(matches!(done, Err(Error::Transaction(TransactionError::NoStatement))), "{done:?}");
}

fn is_in_progress(done: Result<()>) {
    assert!(matches!(done, Err(Error::Transaction(TransactionError::StatementInProgress))), "{done:?}");
}

#[test]
fn a_statement_is_kept_or_undone() {
    let db = database();
    let table = table(&db);
    let session = db.session();
    let temporary = session.create_temporary_table("t", TableOptions::default()).unwrap();
    let trx = begin(&db, Isolation::RepeatableRead);
    let (within, beside) = (trx.table(&table), trx.table(&temporary));
    let put = |key: &str, value: &str| {
        within.put(key.as_bytes(), value.as_bytes()).unwrap();
        beside.put(key.as_bytes(), value.as_bytes()).unwrap();
    };
    let holds = |expected: &[(&str, &str)]| {
        assert_eq!(rows(&within), pairs(expected.iter().copied()));
        let found: Vec<_> = beside.rows().unwrap().map(Result::unwrap).collect();
        assert_eq!(found, pairs(expected.iter().copied()));
    };
    is_none(trx.end_statement(StatementEnd::Keep));
    put("a", "x1");
    trx.begin_statement().unwrap();
    put("a", "y2");
    trx.begin_statement().unwrap();
    put("b", "z3");
    within.put(b"c", b"z3").unwrap_err();
    trx.end_statement(StatementEnd::Undo).unwrap();
    holds(&[("a", "y2")]);
    trx.begin_statement().unwrap();
    put("c", "w4");
    trx.end_statement(StatementEnd::Keep).unwrap();
    holds(&[("a", "y2"), ("c", "w4")]);
    trx.end_statement(StatementEnd::Undo).unwrap();
    holds(&[("a", "x1")]);
    is_none(trx.end_statement(StatementEnd::Undo));
    // What was undone is locked.
    db.set_lock_wait_timeout(Duration::ZERO);
    assert!(matches!(table.put(b"c", b"w4"), Err(Error::Lock(LockError::Busy(_)))));
    trx.begin_statement().unwrap();
    put("d", "v5");
    trx.end_statement(StatementEnd::Keep).unwrap();
    trx.commit().unwrap();
    assert_eq!(rows(&table), pairs([("a", "x1"), ("d", "v5")]));
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}

/// As with a thread pool, in which each call of a session may be made by another thread.
#[test]
fn a_statement_may_begin_and_end_on_different_threads() {
    let db = database();
    let table = table(&db);
    let trx = begin(&db, Isolation::RepeatableRead);
    let elsewhere = |run: &(dyn Fn() + Sync)| thread::scope(|scope| scope.spawn(run).join().unwrap());
    elsewhere(&|| trx.begin_statement().unwrap());
    elsewhere(&|| trx.table(&table).put(b"a", b"x1").unwrap());
    trx.begin_statement().unwrap();
    trx.table(&table).put(b"b", b"y2").unwrap();
    db.set_lock_wait_timeout(Duration::ZERO);
    let own = |done: Result<()>| match done {
        Err(Error::Lock(LockError::Busy(blockers))) => blockers.own(),
        other => panic!("{other:?}"),
    };
    assert_eq!(own(table.put(b"b", b"z3")), trx.id(), "the last call was made by this thread");
    elsewhere(&|| trx.savepoint("here").unwrap());
    assert_eq!(own(table.put(b"b", b"z3")), None);
    elsewhere(&|| trx.end_statement(StatementEnd::Undo).unwrap());
    elsewhere(&|| trx.end_statement(StatementEnd::Keep).unwrap());
    trx.commit().unwrap();
    assert_eq!(rows(&table), pairs([("a", "x1")]));
}

#[test]
fn a_transaction_is_not_ended_within_a_statement() {
    let db = database();
    let table = table(&db);
    for statements in 1..3 {
        let started = || {
            let trx = begin(&db, Isolation::RepeatableRead);
            trx.table(&table).put(b"a", b"x1").unwrap();
            for _ in 0..statements {
                trx.begin_statement().unwrap();
                trx.table(&table).put(b"b", b"y2").unwrap();
            }
            trx
        };
        // The handle is gone, so nothing could end the statement: all of it is rolled back.
        is_in_progress(started().commit().map(drop));
        assert_eq!((rows(&table), db.locks(), db.transactions()), (Vec::new(), Vec::new(), Vec::new()));
        is_in_progress(started().rollback());
        assert_eq!((rows(&table), db.locks(), db.transactions()), (Vec::new(), Vec::new(), Vec::new()));
        drop(started());
        assert_eq!((rows(&table), db.locks(), db.transactions()), (Vec::new(), Vec::new(), Vec::new()));
        let trx = started();
        is_in_progress(trx.prepare(b"xid"));
        assert!(db.prepared().is_empty());
        for _ in 0..statements {
            trx.end_statement(StatementEnd::Keep).unwrap();
        }
        trx.prepare(b"xid").unwrap();
        let refused = [trx.begin_statement(), trx.end_statement(StatementEnd::Keep)];
        for refused in refused {
            assert!(matches!(refused, Err(Error::Transaction(TransactionError::Prepared))), "{refused:?}");
        }
        trx.commit().unwrap();
        assert_eq!(rows(&table), pairs([("a", "x1"), ("b", "y2")]));
        table.delete(b"a").unwrap();
        table.delete(b"b").unwrap();
    }
}

/// Returns whether this error says that a deadlock has rolled the transaction back.
fn is_over(done: Result<()>) -> bool {
    match done {
        Err(Error::Transaction(TransactionError::RolledBack(why))) => why.contains("deadlock"),
        _ => false,
    }
}

#[test]
fn the_end_of_a_transaction_ends_its_statements() {
    for of_closure in [false, true] {
        let db = database();
        let table = db.create_table("t", TableOptions::default()).unwrap();
        let (trx, other) = (begin(&db, Isolation::ReadCommitted), begin(&db, Isolation::ReadCommitted));
        let (within, beside) = (trx.table(&table), trx.table(&table));
        for key in 10..20u8 {
            other.table(&table).put(&[key], b"").unwrap();
        }
        thread::scope(|scope| {
            let calls = || {
                within.put(&[1], b"").unwrap();
                trx.begin_statement().unwrap();
                trx.begin_statement().unwrap();
                within.put(&[2], b"").unwrap();
                let waits = scope.spawn(|| other.table(&table).put(&[1], b""));
                await_lock_wait(&db, &waits);
                // It has changed less than the other one.
                let deadlock = within.put(&[10], b"");
                assert!(matches!(deadlock, Err(Error::Lock(LockError::Deadlock(_)))), "{deadlock:?}");
                waits.join().unwrap().unwrap();
                for end in [StatementEnd::Keep, StatementEnd::Undo, StatementEnd::Keep] {
                    assert!(is_over(trx.end_statement(end)));
                }
                assert!(is_over(trx.begin_statement()) && is_over(beside.put(&[3], b"")));
            };
            if of_closure {
                let kept = trx.atomically(|| {
                    calls();
                    Ok(())
                });
                assert!(is_over(kept), "the closure has kept the error to itself");
            } else {
                calls();
            }
        });
        assert!(is_over(trx.commit().map(drop)));
        other.commit().unwrap();
        assert_eq!(table.rows().unwrap().count(), 11);
    }
}

#[test]
fn a_statement_of_a_closure_is_ended_by_the_closure_only() {
    let db = database();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let trx = begin(&db, Isolation::RepeatableRead);
    let within = trx.table(&table);
    let keys = || within.rows().unwrap().map(|row| row.unwrap().0[0]).collect::<Vec<u8>>();
    trx.begin_statement().unwrap();
    within.put(b"1", b"").unwrap();
    trx.atomically(|| {
        within.put(b"2", b"")?;
        is_none(trx.end_statement(StatementEnd::Undo));
        trx.savepoint("first")?;
        trx.begin_statement()?;
        within.put(b"3", b"")?;
        trx.savepoint("second")?;
        trx.end_statement(StatementEnd::Undo)?;
        trx.begin_statement()?;
        within.put(b"4", b"")?;
        // It is left to the closure.
        trx.begin_statement()?;
        trx.savepoint("third")?;
        within.put(b"5", b"")
    })
    .unwrap();
    assert_eq!(keys(), b"1245");
    assert!(trx.rollback_to("second").is_err(), "it was set in what was undone");
    trx.rollback_to("third").unwrap();
    assert_eq!(keys(), b"124");
    let failed = trx.atomically(|| {
        trx.begin_statement()?;
        trx.rollback_to("first")
    });
    assert!(matches!(failed, Err(Error::Transaction(TransactionError::NoSavepoint(_)))), "it is hidden");
    trx.rollback_to("first").unwrap();
    assert_eq!(keys(), b"12");
    // A closure that another thread runs meanwhile is a statement of its own, whichever of the two ends first.
    let (ended, may_end) = channel();
    let may_end = Mutex::new(may_end);
    thread::scope(|scope| {
        let (begun, has_begun) = channel();
        let outer = trx.atomically(|| {
            within.put(b"6", b"")?;
            let trx = &trx;
            let other = scope.spawn(move || {
                trx.atomically(|| {
                    begun.send(()).unwrap();
                    may_end.lock().unwrap().recv_timeout(HANG).unwrap();
                    trx.table(&table).put(b"7", b"")?;
                    trx.table(&table).insert(b"7", b"")
                })
            });
            has_begun.recv_timeout(HANG).unwrap();
            Ok(other)
        });
        ended.send(()).unwrap();
        assert!(calls::is_duplicate(&outer.unwrap().join().unwrap()));
    });
    assert_eq!(keys(), b"126");
    trx.end_statement(StatementEnd::Undo).unwrap();
    assert_eq!(keys(), b"");
    trx.commit().unwrap();
}

#[test]
fn the_end_of_a_statement_waits_for_the_call_of_another_thread() {
    for end in [StatementEnd::Keep, StatementEnd::Undo] {
        let db = database();
        let table = db.create_table("t", TableOptions::default()).unwrap();
        let (trx, blocker) = (begin(&db, Isolation::ReadCommitted), begin(&db, Isolation::ReadCommitted));
        blocker.table(&table).put(b"b", b"").unwrap();
        trx.begin_statement().unwrap();
        trx.table(&table).put(b"a", b"").unwrap();
        let mut cursor = trx.table(&table).cursor_for_update().unwrap();
        thread::scope(|scope| {
            let call = scope.spawn(move || cursor.seek(Seek::AtLeast(b"b")));
            await_lock_wait(&db, &call);
            // From within a call it does not wait, because that call may be what the other one waits for.
            let around = begin(&db, Isolation::ReadCommitted);
            let mut from = calls::From(Some(|| {
                let busy = trx.end_statement(end);
                assert!(matches!(busy, Err(Error::Transaction(TransactionError::Busy))), "{busy:?}");
            }));
            around.table(&table).put_stream(b"other", calls::LONG, &mut from).unwrap();
            around.rollback().unwrap();
            let trx = &trx;
            let ends = scope.spawn(move || trx.end_statement(end));
            // A refusal would be immediate. Nothing reports that the end waits; if it has not got that far, the test
            // still holds.
            thread::sleep(Duration::from_millis(30));
            blocker.commit().unwrap();
            assert!(call.join().unwrap().unwrap());
            ends.join().unwrap().unwrap();
        });
        trx.commit().unwrap();
        assert_eq!(table.contains(b"a").unwrap(), end == StatementEnd::Keep);
    }
}

/// A call that panics ends the transaction.
#[test]
fn a_panic_of_a_call_ends_all_statements() {
    let db = database();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let trx = begin(&db, Isolation::RepeatableRead);
    let within = trx.table(&table);
    trx.begin_statement().unwrap();
    within.put(b"a", b"").unwrap();
    let mut from = calls::From(Some(|| panic!("on purpose")));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        trx.atomically(|| within.put_stream(b"b", calls::LONG, &mut from))
    }));
    assert!(panicked.is_err());
    let over = trx.end_statement(StatementEnd::Keep);
    assert!(matches!(over, Err(Error::Transaction(TransactionError::RolledBack(_)))), "{over:?}");
    assert!(trx.commit().is_err());
    assert_eq!(table.rows().unwrap().count(), 0);
}

fn is_stale(done: &Result<()>) -> bool {
    matches!(done, Err(Error::Transaction(TransactionError::StaleSavepoint)))
}

/// A value is one of 16 bytes, and is refused wherever another one could be meant.
#[test]
fn a_savepoint_is_accepted_while_it_exists_and_by_its_transaction_only() {
    let db = database();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let (trx, other) = (begin(&db, Isolation::RepeatableRead), begin(&db, Isolation::RepeatableRead));
    let within = trx.table(&table);
    assert_eq!(size_of::<Savepoint>(), 16);
    let first = trx.set_savepoint().unwrap();
    assert_eq!(Savepoint::from_bytes(first.to_bytes()), first);
    // The first savepoint of another transaction, of another database, too.
    let (far, not_begun) = (database(), begin(&db, Isolation::RepeatableRead));
    let in_far = begin(&far, Isolation::RepeatableRead);
    let others = [other.set_savepoint().unwrap(), in_far.set_savepoint().unwrap()];
    for (value, trx) in
        [(first, &other), (first, &in_far), (first, &not_begun), (others[0], &trx), (others[1], &trx)]
    {
        assert!(
            is_stale(&trx.rollback_to_savepoint(&value)) && is_stale(&trx.release_savepoint(&value)),
            "{value:?}"
        );
    }
    for bytes in [[0; 16], [0xff; 16], first.to_bytes().map(|byte| byte ^ 1)] {
        assert!(is_stale(&trx.rollback_to_savepoint(&Savepoint::from_bytes(bytes))), "{bytes:?}");
    }
    within.put(b"a", b"").unwrap();
    let second = trx.set_savepoint().unwrap();
    within.put(b"b", b"").unwrap();
    // One without changes between is another savepoint nevertheless.
    let third = trx.set_savepoint().unwrap();
    trx.savepoint("fourth").unwrap();
    trx.release_savepoint(&second).unwrap();
    assert!(is_stale(&trx.rollback_to_savepoint(&second)), "it was released");
    within.put(b"c", b"").unwrap();
    trx.rollback_to_savepoint(&third).unwrap();
    trx.rollback_to_savepoint(&third).unwrap();
    assert!(trx.rollback_to("fourth").is_err(), "it was rolled back over");
    assert!(within.contains(b"b").unwrap() && !within.contains(b"c").unwrap());
    // In a statement, whose own savepoint stays with it or goes.
    for end in [StatementEnd::Keep, StatementEnd::Undo] {
        trx.begin_statement().unwrap();
        assert!(is_stale(&trx.rollback_to_savepoint(&third)), "the statement began after it");
        let inner = trx.set_savepoint().unwrap();
        within.put(b"d", b"").unwrap();
        trx.rollback_to_savepoint(&inner).unwrap();
        trx.end_statement(end).unwrap();
        assert_eq!(trx.rollback_to_savepoint(&inner).is_ok(), end == StatementEnd::Keep);
        trx.rollback_to_savepoint(&third).unwrap();
        assert!(is_stale(&trx.rollback_to_savepoint(&inner)), "it was rolled back over, or undone");
    }
    trx.rollback_to_savepoint(&first).unwrap();
    assert!(is_stale(&trx.rollback_to_savepoint(&third)));
    assert_eq!(within.rows().unwrap().count(), 0);
    // No number is used again.
    let fifth = trx.set_savepoint().unwrap();
    assert!([first, second, third].iter().all(|known| *known != fifth));
    trx.prepare(b"x").unwrap();
    let prepared = trx.rollback_to_savepoint(&fifth);
    assert!(matches!(prepared, Err(Error::Transaction(TransactionError::Prepared))), "{prepared:?}");
    trx.rollback().unwrap();
}

#[derive(Clone, Debug)]
enum Op {
    Put(u8),
    Delete(u8),
    Begin,
    End(StatementEnd),
    Savepoint(u8),
    RollBackTo(u8),
    Release(u8),
    /// Sets a savepoint without a name.
    Mark,
    /// One of all that were ever set, counted from the last.
    RollBackToMark(u8),
    ReleaseMark(u8),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..6u8).prop_map(Op::Put),
        2 => (0..6u8).prop_map(Op::Delete),
        4 => Just(Op::Begin),
        2 => Just(Op::End(StatementEnd::Keep)),
        2 => Just(Op::End(StatementEnd::Undo)),
        3 => (0..2u8).prop_map(Op::Savepoint),
        2 => (0..2u8).prop_map(Op::RollBackTo),
        1 => (0..2u8).prop_map(Op::Release),
        3 => Just(Op::Mark),
        3 => (0..6u8).prop_map(Op::RollBackToMark),
        2 => (0..6u8).prop_map(Op::ReleaseMark),
    ]
}

/// The rows and the savepoints, each with the rows at that time. A statement keeps a copy of all of it.
#[derive(Clone, Debug, Default)]
struct State {
    rows: BTreeMap<u8, u8>,
    savepoints: Vec<(Set, BTreeMap<u8, u8>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    Named(u8),
    Mark(Savepoint),
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    /// The model copies the rows at the beginning of each statement, and at each savepoint.
    #[test]
    fn nested_statements_and_savepoints_behave_as_copies_of_the_rows(ops in prop::collection::vec(op(), 0..60)) {
        let db = database();
        let table = db.create_table("t", TableOptions::default()).unwrap();
        let trx = begin(&db, Isolation::RepeatableRead);
        let within = trx.table(&table);
        let (mut now, mut around, mut marks) = (State::default(), Vec::<State>::new(), Vec::new());
        for (n, op) in ops.iter().enumerate() {
            let place = |now: &State, set| now.savepoints.iter().position(|(known, _)| *known == set);
            let mark = |back: u8| *marks.iter().rev().nth(back.into()).unwrap_or(&Savepoint::from_bytes([0; 16]));
            match *op {
                Op::Put(key) => {
                    within.put(&[key], &[n as u8]).unwrap();
                    now.rows.insert(key, n as u8);
                }
                Op::Delete(key) => {
                    prop_assert_eq!(within.delete(&[key]).unwrap(), now.rows.remove(&key).is_some());
                }
                Op::Begin => {
                    trx.begin_statement().unwrap();
                    around.push(now.clone());
                    now.savepoints.clear();
                }
                Op::End(end) => match around.pop() {
                    None => is_none(trx.end_statement(end)),
                    Some(before) => {
                        trx.end_statement(end).unwrap();
                        if end == StatementEnd::Undo {
                            now = before;
                        } else {
                            let set = core::mem::replace(&mut now.savepoints, before.savepoints);
                            now.savepoints.retain(|(known, _)| !set.iter().any(|(again, _)| again == known));
                            now.savepoints.extend(set);
                        }
                    }
                },
                Op::Savepoint(name) => {
                    trx.savepoint(&name.to_string()).unwrap();
                    now.savepoints.retain(|(known, _)| *known != Set::Named(name));
                    now.savepoints.push((Set::Named(name), now.rows.clone()));
                }
                Op::RollBackTo(name) => {
                    let done = trx.rollback_to(&name.to_string());
                    let place = place(&now, Set::Named(name));
                    prop_assert_eq!(done.is_ok(), place.is_some());
                    if let Some(place) = place {
                        now.savepoints.truncate(place + 1);
                        now.rows = now.savepoints[place].1.clone();
                    }
                }
                Op::Release(name) => {
                    let done = trx.release(&name.to_string());
                    let place = place(&now, Set::Named(name));
                    prop_assert_eq!(done.is_ok(), place.is_some());
                    now.savepoints.truncate(place.unwrap_or(now.savepoints.len()));
                }
                Op::Mark => {
                    let mark = trx.set_savepoint().unwrap();
                    prop_assert!(!marks.contains(&mark));
                    marks.push(mark);
                    now.savepoints.push((Set::Mark(mark), now.rows.clone()));
                }
                Op::RollBackToMark(back) => {
                    let done = trx.rollback_to_savepoint(&mark(back));
                    let place = place(&now, Set::Mark(mark(back)));
                    prop_assert!(place.is_some() && done.is_ok() || place.is_none() && is_stale(&done));
                    if let Some(place) = place {
                        now.savepoints.truncate(place + 1);
                        now.rows = now.savepoints[place].1.clone();
                    }
                }
                Op::ReleaseMark(back) => {
                    let done = trx.release_savepoint(&mark(back));
                    let place = place(&now, Set::Mark(mark(back)));
                    prop_assert!(place.is_some() && done.is_ok() || place.is_none() && is_stale(&done));
                    place.map(|place| now.savepoints.remove(place));
                }
            }
            let found: BTreeMap<u8, u8> =
                within.rows().unwrap().map(Result::unwrap).map(|(key, value)| (key[0], value[0])).collect();
            prop_assert_eq!(&found, &now.rows, "after step {} of {:?}", n, ops);
        }
        let is_open = !around.is_empty();
        let done = trx.commit();
        prop_assert_eq!(done.is_err(), is_open);
        prop_assert_eq!(table.rows().unwrap().count(), if is_open { 0 } else { now.rows.len() });
    }
}
