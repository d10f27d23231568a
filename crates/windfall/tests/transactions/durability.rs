//! When commits are durable: positions of the log, and callbacks for them.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use windfall::{
    Database, Error, FlushLog, Isolation, Result, Table, TableOptions,
    env::{Env, RealEnv, Step, Worker, WorkerClass},
    error::UsageError,
    ids::Lsn,
};
use windfall_base::sync::Event;
use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

use super::{
    begin, calls,
    changed_env::{Change, Changed},
    database, options, simulated,
    time_limit::HANG,
};

/// Commits a row, and leaves it to a later sync to make that durable. Returns its position.
fn commit_lazily(db: &Database, table: &Table, key: u8) -> Lsn {
    let trx = begin(db, Isolation::RepeatableRead);
    trx.table(table).put(&[key], b"value").unwrap();
    trx.commit_with(FlushLog::Lazy).unwrap().expect("it has changed a row")
}

#[test]
fn a_commit_is_durable_from_its_position_on() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = simulated(&disk, &env);
    let t = db.create_table("t", TableOptions::default()).unwrap();
    let (first, second) = (commit_lazily(&db, &t, 1), commit_lazily(&db, &t, 2));
    assert!(db.durable_lsn() < first && first < second && second <= db.log_end());
    let rows_after_a_crash = || {
        let left = simulated(&disk.survivor(Survive::Nothing), &SimulatedEnv::new(2));
        left.table("t").unwrap().rows().unwrap().count()
    };
    assert_eq!(rows_after_a_crash(), 0);
    db.await_durable(second).unwrap();
    assert!(db.durable_lsn() >= second);
    assert_eq!(rows_after_a_crash(), 2);
    let trx = begin(&db, Isolation::RepeatableRead);
    assert_eq!(trx.table(&t).get(&[1]).unwrap(), Some(b"value".to_vec()));
    assert_eq!(trx.commit().unwrap(), None, "it has logged nothing");
    t.put(&[3], b"alone").unwrap();
    db.await_durable(db.log_end()).unwrap();
    assert_eq!(rows_after_a_crash(), 3);
}

#[test]
fn a_position_beyond_the_log_is_refused() {
    let db = database();
    let end = db.log_end();
    let beyond = Lsn(end.0 + 8);
    for refused in [db.await_durable(beyond), db.when_durable(beyond, |_| unreachable!("it was refused"))] {
        assert!(
            matches!(refused, Err(Error::Usage(UsageError::BeyondLog { lsn, .. })) if lsn == beyond),
            "{refused:?}"
        );
    }
    db.clone().close().unwrap();
    let closed = db.when_durable(end, |_| unreachable!("it was refused"));
    assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
}

/// After each step of the workers the power may be lost: the rows of all commits that were reported are there.
#[test]
fn a_commit_that_was_reported_survives_a_crash() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = simulated(&disk, &env);
    let t = db.create_table("t", TableOptions::default()).unwrap();
    let reported = Arc::new(Mutex::new(Vec::new()));
    let (mut crashes, mut unreported) = (0, 0);
    for key in 0..40u8 {
        let trx = begin(&db, Isolation::RepeatableRead);
        trx.table(&t).put(&[key], b"value").unwrap();
        let mode = if key % 8 == 7 { FlushLog::Sync } else { FlushLog::Lazy };
        let lsn = trx.commit_with(mode).unwrap().expect("it has changed a row");
        let of_callback = reported.clone();
        db.when_durable(lsn, move |outcome| {
            outcome.unwrap();
            of_callback.lock().unwrap().push(key);
        })
        .unwrap();
        env.run_workers(40);
        let reported = reported.lock().unwrap().clone();
        assert!(reported.is_sorted(), "{reported:?}");
        unreported += usize::from(reported.len() <= usize::from(key));
        let left = simulated(&disk.survivor(Survive::Nothing), &SimulatedEnv::new(u64::from(key)));
        let left = left.table("t").unwrap();
        for key in reported {
            assert!(left.contains(&[key]).unwrap(), "the commit of row {key} was reported, and is lost");
            crashes += 1;
        }
    }
    assert!(crashes > 100 && unreported > 10, "{crashes} rows, {unreported} commits not reported at once");
    // The last ones become durable without a sync that was asked for.
    env.run_workers(1_000);
    assert_eq!(*reported.lock().unwrap(), (0..40).collect::<Vec<u8>>());
}

/// A callback of the background thread commits, and waits for other commits.
#[test]
fn a_callback_may_use_the_database() {
    let db = database();
    let t = db.create_table("t", TableOptions::default()).unwrap();
    let (sender, done) = channel();
    for key in 0..20u8 {
        let (of_callback, table, sender) = (db.clone(), t.clone(), sender.clone());
        let lsn = commit_lazily(&db, &t, key);
        db.when_durable(lsn, move |outcome| {
            let trx = begin(&of_callback, Isolation::RepeatableRead);
            trx.table(&table).put(&[key, 1], b"copy").unwrap();
            trx.commit().unwrap();
            sender.send(outcome.is_ok()).unwrap();
        })
        .unwrap();
    }
    drop(sender);
    assert_eq!(done.iter().collect::<Vec<_>>(), [true; 20]);
    assert_eq!(t.rows().unwrap().count(), 40);
}

#[test]
fn a_close_reports_what_is_durable() {
    let db = database();
    let t = db.create_table("t", TableOptions::default()).unwrap();
    let succeeded = Arc::new(AtomicU64::new(0));
    for key in 0..100u8 {
        let lsn = commit_lazily(&db, &t, key);
        let succeeded = succeeded.clone();
        let count = move |outcome: Result<()>| {
            succeeded.fetch_add(u64::from(outcome.is_ok()), SeqCst);
        };
        db.when_durable(lsn, count).unwrap();
    }
    db.close().unwrap();
    assert_eq!(succeeded.load(SeqCst), 100, "closing makes everything durable");
}

/// It closes the database, or drops the last handle. What else is to be called is called after it, in order.
#[test]
fn a_callback_may_close_the_database() {
    for (drops, seed) in [false, true].into_iter().flat_map(|drops| (0..4).map(move |seed| (drops, seed))) {
        let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(seed));
        let db = simulated(&disk, &env);
        let t = db.create_table("t", TableOptions::default()).unwrap();
        let first = commit_lazily(&db, &t, 1);
        db.await_durable(first).unwrap();
        let later = commit_lazily(&db, &t, 2);
        assert!(first <= db.durable_lsn() && later > db.durable_lsn());
        let (sender, called) = channel();
        let (closes, of_closing) = (db.clone(), sender.clone());
        db.when_durable(first, move |outcome| {
            outcome.unwrap();
            of_closing.send("closing begins").unwrap();
            if drops {
                drop(closes);
            } else {
                closes.close().unwrap();
            }
            of_closing.send("closing ends").unwrap();
        })
        .unwrap();
        for (lsn, what) in [(later, "later"), (first, "beside")] {
            let sender = sender.clone();
            db.when_durable(lsn, move |outcome| {
                outcome.unwrap();
                sender.send(what).unwrap();
            })
            .unwrap();
        }
        drop((db, t));
        env.run_workers(100);
        let called: Vec<_> = called.try_iter().collect();
        assert_eq!(called, ["closing begins", "closing ends", "beside", "later"], "{drops}, seed {seed}");
        let left = simulated(&disk.survivor(Survive::Nothing), &SimulatedEnv::new(2));
        assert_eq!(left.table("t").unwrap().rows().unwrap().count(), 2);
    }
}

/// The first close waits for the callback, so a close within the callback must not wait for the first one.
#[test]
fn a_close_within_a_callback_does_not_wait_for_another_one() {
    let is_refused = |done: &Result<()>| matches!(done, Err(Error::Closed));
    // The thread that closes calls it.
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = simulated(&disk, &env);
    let t = db.create_table("t", TableOptions::default()).unwrap();
    let (sender, closed) = channel();
    let closes = db.clone();
    db.when_durable(commit_lazily(&db, &t, 1), move |_| sender.send(closes.close()).unwrap()).unwrap();
    db.close().unwrap();
    let closed = closed.try_recv();
    assert!(closed.as_ref().is_ok_and(is_refused), "{closed:?}");
    // The background thread calls it.
    let db = database();
    let (sender, closed) = channel();
    let closes = db.clone();
    db.when_durable(Lsn::ZERO, move |_| {
        while closes.tables().is_ok() {
            thread::yield_now();
        }
        sender.send(closes.close()).unwrap();
    })
    .unwrap();
    db.close().unwrap();
    let closed = closed.recv_timeout(HANG);
    assert!(closed.as_ref().is_ok_and(is_refused), "{closed:?}");
}

/// The source of a value closes the database, on the thread that then calls what waits.
#[test]
fn a_close_within_a_call_calls_the_callbacks() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = simulated(&disk, &env);
    let t = db.create_table("t", TableOptions::default()).unwrap();
    let (sender, called) = channel();
    db.when_durable(commit_lazily(&db, &t, 1), move |outcome| sender.send(outcome).unwrap()).unwrap();
    let mut from = calls::From(Some(|| db.clone().close().unwrap()));
    let ended = t.put_stream(b"long", calls::LONG, &mut from);
    assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    assert!(matches!(called.try_recv(), Ok(Ok(()))));
}

/// The first start of the worker for callbacks waits until the test lets it fail.
#[derive(Debug)]
struct FirstStartFails(Mutex<Option<(Sender<()>, Receiver<()>)>>);

impl Change for FirstStartFails {
    fn spawn(
        &self,
        env: &dyn Env,
        name: &'static str,
        class: WorkerClass,
        wake: Arc<Event>,
        step: Step,
    ) -> Result<Worker> {
        let first = (name == "notifications").then(|| self.0.lock().unwrap().take()).flatten();
        if let Some((begins, may_fail)) = first {
            begins.send(()).unwrap();
            may_fail.recv_timeout(HANG).unwrap();
            return Err(UsageError::NoThread { worker: name, error: "on purpose".into() }.into());
        }
        env.spawn(name, class, wake, step)
    }
}

#[test]
fn a_callback_is_called_although_a_concurrent_start_of_its_worker_fails() {
    let ((begins, has_begun), (lets_fail, may_fail)) = (channel(), channel());
    let change = FirstStartFails(Mutex::new(Some((begins, may_fail))));
    let env = Arc::new(Changed { env: Arc::new(RealEnv::default()), change });
    let db = Database::open_on(Arc::new(SimulatedDisk::new(1)), env, &options(), &|_| {}).unwrap();
    let (sender, called) = channel();
    thread::scope(|scope| {
        let refused = scope.spawn(|| db.when_durable(Lsn::ZERO, |_| unreachable!("it was refused")));
        has_begun.recv_timeout(HANG).unwrap();
        let accepted =
            scope.spawn(|| db.when_durable(Lsn::ZERO, move |outcome| sender.send(outcome).unwrap()));
        // Nothing reports that it waits; if it has not got that far, the test still holds.
        thread::sleep(Duration::from_millis(30));
        lets_fail.send(()).unwrap();
        let refused = refused.join().unwrap();
        assert!(matches!(refused, Err(Error::Usage(UsageError::NoThread { .. }))), "{refused:?}");
        accepted.join().unwrap().unwrap();
    });
    called.recv_timeout(HANG).unwrap().unwrap();
}
