//! The order of commits: each commit in it notes a position, and snapshots are taken between two of them.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
};

use windfall::{
    Database, FlushLog, Isolation, Result, TableOptions, TransactionOptions,
    env::{Env as _, RealEnv},
    error::{Error, TransactionError, UsageError},
    ids::Lsn,
};
use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

use super::{begin, database, guard::whole, options, simulated};

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

/// A coordinator's own log of the order of commits, and what it knows about the transactions in it.
#[derive(Default)]
struct Coordinator {
    order: Vec<u8>,
    /// The commits that are durable: those at the beginning of the order.
    durable: usize,
    /// The transactions that were prepared, durably.
    prepared: BTreeSet<u8>,
}

impl Coordinator {
    /// Checks what a crash has left, and ends the prepared transactions as the order says. Returns how many commits of
    /// the order were missing.
    fn judge(&self, disk: &SimulatedDisk, seed: u64, what: &str) -> usize {
        let env = SimulatedEnv::new(seed);
        let db = simulated(disk, &env);
        let table = db.table("t").unwrap();
        let rows = || -> Vec<u8> { table.rows().unwrap().map(|row| row.unwrap().0[0]).collect() };
        let sorted = |some: &[u8]| {
            let mut some = some.to_vec();
            some.sort_unstable();
            some
        };
        let found = rows();
        assert!(
            found.len() >= self.durable,
            "{what}: {} commits are durable, {found:?} are there",
            self.durable
        );
        let (first, rest) = self.order.split_at(found.len().min(self.order.len()));
        assert_eq!(found, sorted(first), "{what}: not the first of {:?}", self.order);
        let left: Vec<u8> = db.prepared().iter().map(|one| one.xid[0]).collect();
        let again: Vec<u8> = rest.iter().copied().filter(|n| self.prepared.contains(n)).collect();
        assert!(again.iter().all(|n| left.contains(n)), "{what}: of {again:?} only {left:?} are prepared");
        for n in &left {
            if rest.contains(n) {
                db.commit_prepared(&[*n]).unwrap();
            } else {
                db.rollback_prepared(&[*n]).unwrap();
            }
        }
        let ended = rest.iter().copied().filter(|n| left.contains(n));
        assert_eq!(rows(), sorted(&first.iter().copied().chain(ended).collect::<Vec<_>>()), "{what}");
        env.run_workers(200);
        assert_eq!(db.check().unwrap().findings, Vec::<String>::new(), "{what}");
        rest.len()
    }
}

/// Some of the transactions are prepared before, and some commits are not synced. After a crash at any operation the
/// commits that are there are the first of the order, and the coordinator can make up for others that were prepared.
#[test]
fn a_crash_leaves_the_beginning_of_the_order() {
    let _again = whole("transactions", "commit_order::a_crash_leaves_the_beginning_of_the_order");
    let (mut points, mut missing) = (0, 0);
    for seed in 1..4 {
        let disk = SimulatedDisk::new(seed);
        let (env, chance) = (SimulatedEnv::new(seed), SimulatedEnv::new(seed ^ 0xc0));
        let draw = |n: u64| (chance.random() % n) as usize;
        let db = simulated(&disk, &env);
        let table = db.create_table("t", TableOptions::default()).unwrap();
        db.checkpoint().unwrap();
        disk.record_crash_points(1..=u64::MAX);
        let mut coordinator = Coordinator::default();
        let mut visit = |coordinator: &Coordinator| {
            for (operation, crash_point) in disk.take_crash_points() {
                for survive in [Survive::Nothing, Survive::Everything, Survive::Random(operation)] {
                    let what = format!("seed {seed}, operation {operation}, {survive:?}");
                    missing += coordinator.judge(&crash_point.restart(survive), seed + operation, &what);
                    points += 1;
                }
            }
        };
        let mut open = Vec::new();
        for n in 0..40u8 {
            let trx = begin(&db, Isolation::ALL[usize::from(n) % Isolation::ALL.len()]);
            trx.table(&table).put(&[n], &vec![n; [20, 300, 5000][draw(3)]]).unwrap();
            open.push((n, trx));
            // They do not end in the order in which they began.
            if open.len() < 4 {
                continue;
            }
            let (n, mut trx) = open.swap_remove(draw(4));
            if draw(2) == 0 {
                trx.prepare(&[n]).unwrap();
                visit(&coordinator);
                coordinator.prepared.insert(n);
            }
            let mode = [FlushLog::Lazy, FlushLog::Lazy, FlushLog::Write, FlushLog::Sync][draw(4)];
            trx.commit_ordered(mode, |_| coordinator.order.push(n)).unwrap();
            visit(&coordinator);
            if mode == FlushLog::Sync {
                coordinator.durable = coordinator.order.len();
            }
            match draw(6) {
                0 => db.checkpoint().unwrap(),
                turns => env.run_workers(2 * turns),
            }
            visit(&coordinator);
        }
    }
    println!("{points} crashes, after which {missing} commits of the order were missing");
    assert!(points > 300 && missing > 300, "{points} crashes with {missing} missing commits");
}
