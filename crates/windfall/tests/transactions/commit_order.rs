//! The order of commits: each commit in it notes a position, and snapshots are taken between two of them.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
};

use windfall::{
    Database, FlushLog, Isolation, Result, TableOptions, TransactionOptions,
    env::RealEnv,
    error::{Error, TransactionError, UsageError},
    ids::Lsn,
};
use windfall_sim::SimulatedDisk;

use super::{begin, database, options};

fn snapshot(db: &Database) -> windfall::Transaction {
    let level = TransactionOptions::default().isolation(Isolation::Snapshot);
    db.begin(level.consistent_snapshot())
}

fn is_refused<T: core::fmt::Debug>(done: &Result<T>) -> bool {
    matches!(done, Err(Error::Usage(UsageError::StatementInCall)))
}

#[test]
fn a_snapshot_between_ordered_commits_sees_those_that_were_noted() {
    const WRITERS: u32 = 3;
    const COMMITS: u32 = 150;
    let db = database();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    // The coordinator's own log: the rows of the commits in their order.
    let noted: Mutex<Vec<(u32, Option<Lsn>)>> = Mutex::default();
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (db, table, noted) = (&db, &table, &noted);
                scope.spawn(move || {
                    let mut trx = begin(db, Isolation::RepeatableRead);
                    for n in 0..COMMITS {
                        let row = n * WRITERS + writer;
                        trx.table(table).insert(&row.to_be_bytes(), b"").unwrap();
                        if n % 3 == 0 {
                            trx.prepare_with(&row.to_be_bytes(), FlushLog::Lazy).unwrap();
                        }
                        let end = trx.commit_ordered(FlushLog::Lazy, |end| {
                            // A snapshot must not be possible between this commit and its note.
                            thread::yield_now();
                            noted.lock().unwrap().push((row, end));
                        });
                        assert_eq!(
                            noted.lock().unwrap().iter().find(|(of, _)| *of == row),
                            Some(&(row, end.unwrap()))
                        );
                        trx.restart(TransactionOptions::default()).unwrap();
                    }
                })
            })
            .collect();
        let reader = scope.spawn(|| {
            let mut snapshots = 0;
            while !ended.load(SeqCst) || snapshots < 2 {
                let (reader, position) = db
                    .between_ordered_commits(|| {
                        let reader = snapshot(&db);
                        thread::yield_now();
                        (reader, noted.lock().unwrap().len())
                    })
                    .unwrap();
                let seen: Vec<_> = reader.table(&table).rows().unwrap().map(|row| row.unwrap().0).collect();
                let mut expected: Vec<_> = noted.lock().unwrap()[..position]
                    .iter()
                    .map(|(row, _)| row.to_be_bytes().to_vec())
                    .collect();
                expected.sort();
                assert!(seen == expected, "{} rows are seen at position {position}", seen.len());
                snapshots += 1;
            }
        });
        for writer in writers {
            writer.join().unwrap();
        }
        ended.store(true, SeqCst);
        reader.join().unwrap();
    });
    let noted = noted.into_inner().unwrap();
    assert_eq!(noted.len() as u32, WRITERS * COMMITS);
    assert!(noted.is_sorted_by_key(|(_, end)| end.unwrap()), "the order is not that of the log");
    db.close().unwrap();
}

#[test]
fn other_commits_take_their_places_while_one_becomes_durable() {
    let disk = SimulatedDisk::new(3);
    let env = Arc::new(RealEnv::default());
    let db = Database::open_on(Arc::new(disk.clone()), env, &options(), &|_| {}).unwrap();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    disk.hold_log_syncs(true);
    let order = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let durable = scope.spawn(|| {
            let mut trx = begin(&db, Isolation::RepeatableRead);
            trx.table(&table).insert(b"a", b"").unwrap();
            trx.commit_ordered(FlushLog::Sync, |_| order.lock().unwrap().push("first")).unwrap();
        });
        while disk.held_log_syncs() == 0 {
            assert!(!durable.is_finished(), "the commit did not wait for its sync");
            thread::yield_now();
        }
        let mut trx = begin(&db, Isolation::RepeatableRead);
        trx.table(&table).insert(b"b", b"").unwrap();
        trx.commit_ordered(FlushLog::Lazy, |_| order.lock().unwrap().push("second")).unwrap();
        db.between_ordered_commits(|| order.lock().unwrap().push("between")).unwrap();
        assert!(!durable.is_finished(), "the sync was not held");
        disk.hold_log_syncs(false);
    });
    assert_eq!(order.into_inner().unwrap(), ["first", "second", "between"]);
    db.close().unwrap();
}

#[test]
fn the_order_is_not_waited_for_from_within_it() {
    let db = database();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let mut other = begin(&db, Isolation::RepeatableRead);
    other.table(&table).insert(b"a", b"").unwrap();
    let mut trx = begin(&db, Isolation::RepeatableRead);
    trx.table(&table).insert(b"b", b"").unwrap();
    trx.commit_ordered(FlushLog::Lazy, |_| {
        assert!(is_refused(&other.commit_ordered(FlushLog::Lazy, |_| panic!("it ran"))));
        assert!(is_refused(&db.between_ordered_commits(|| ())));
    })
    .unwrap();
    db.between_ordered_commits(|| {
        assert!(is_refused(&other.commit_ordered(FlushLog::Lazy, |_| panic!("it ran"))));
        assert!(is_refused(&db.between_ordered_commits(|| ())));
        // What the closure is for.
        trx.restart(TransactionOptions::default().isolation(Isolation::Snapshot).consistent_snapshot())
            .unwrap();
    })
    .unwrap();
    // Refused, it is as it was.
    other.table(&table).insert(b"c", b"").unwrap();
    other.commit_ordered(FlushLog::Lazy, |end| assert!(end.is_some())).unwrap();
    assert_eq!(trx.table(&table).rows().unwrap().count(), 1, "its snapshot was not taken in the closure");
    trx.rollback().unwrap();
    db.close().unwrap();
}

#[test]
fn a_commit_that_fails_notes_nothing() {
    let db = database();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let mut trx = begin(&db, Isolation::RepeatableRead);
    trx.table(&table).insert(b"a", b"").unwrap();
    trx.begin_statement().unwrap();
    let refused = trx.commit_ordered(FlushLog::Lazy, |_| panic!("it ran"));
    assert!(matches!(refused, Err(Error::Transaction(TransactionError::StatementInProgress))), "{refused:?}");
    trx.rollback().unwrap_err();
    // One that has logged nothing has a place in the order, and no position.
    let mut noted = None;
    let mut reader = snapshot(&db);
    reader.table(&table).get(b"a").unwrap();
    reader.commit_ordered(FlushLog::Sync, |end| noted = Some(end)).unwrap();
    assert_eq!(noted, Some(None));
    db.close().unwrap();
}
