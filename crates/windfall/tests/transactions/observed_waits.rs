//! The observer of lock waits, ordering groups and the deadlock priority, as a replica uses them that runs transactions
//! side by side and commits them in the order of the primary.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use windfall::{
    Database, Error, IndexOptions, InterruptHandle, Isolation, Lock, LockParty, LockWaitObserver,
    ObservedWait, Result, RowMode, TableMode, TableOptions, Transaction, TransactionOptions, WaitOutcome,
    env::RealEnv,
    error::{LockError, TransactionError, UsageError},
};
use windfall_sim::SimulatedDisk;

use super::{
    await_lock_wait, options,
    time_limit::{HANG, wait_until},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Begins,
    Changed,
    Ended(WaitOutcome),
}

type Act = dyn Fn(Stage, &ObservedWait) + Send + Sync;

/// Notes all calls, and acts in each.
#[derive(Default)]
struct Observer {
    calls: Mutex<Vec<(Stage, ObservedWait)>>,
    act: OnceLock<Box<Act>>,
}

impl Observer {
    fn note(&self, stage: Stage, wait: &ObservedWait) {
        self.calls.lock().unwrap().push((stage, wait.clone()));
        self.act.get().into_iter().for_each(|act| act(stage, wait));
    }

    fn act(&self, act: impl Fn(Stage, &ObservedWait) + Send + Sync + 'static) {
        assert!(self.act.set(Box::new(act)).is_ok());
    }

    fn calls(&self) -> Vec<(Stage, ObservedWait)> {
        core::mem::take(&mut self.calls.lock().unwrap())
    }
}

impl LockWaitObserver for Observer {
    fn wait_begins(&self, wait: &ObservedWait) {
        self.note(Stage::Begins, wait);
    }

    fn blockers_changed(&self, wait: &ObservedWait) {
        self.note(Stage::Changed, wait);
    }

    fn wait_ended(&self, wait: &ObservedWait, outcome: WaitOutcome) {
        self.note(Stage::Ended(outcome), wait);
    }
}

fn observed() -> (Database, Arc<Observer>) {
    let observer = Arc::new(Observer::default());
    let options = options().lock_wait_timeout(HANG).lock_wait_observer(observer.clone());
    let (disk, env) = (Arc::new(SimulatedDisk::new(1)), Arc::new(RealEnv::default()));
    (Database::open_on(disk, env, &options, &|_| {}).unwrap(), observer)
}

fn tagged(tag: u64) -> TransactionOptions {
    TransactionOptions::default().isolation(Isolation::ReadCommitted).tag(tag)
}

fn party(trx: &Transaction, tag: u64) -> LockParty {
    LockParty { trx: trx.id().unwrap(), tag }
}

/// The transactions of a primary, by the position of each in its order, from 1 on.
struct Replica {
    state: Mutex<ReplicaState>,
    changed: Condvar,
    kills: Vec<InterruptHandle>,
}

struct ReplicaState {
    /// The last transaction that is committed.
    committed: u64,
    /// Those that must roll back and begin again.
    killed: Vec<bool>,
    /// Those that have made their changes once, or were ended before.
    attempted: Vec<bool>,
    retries: u64,
}

impl Replica {
    fn new(count: usize) -> Arc<Self> {
        let none = vec![false; count + 1];
        let state = ReplicaState { committed: 0, killed: none.clone(), attempted: none, retries: 0 };
        let kills = (0..=count).map(|_| InterruptHandle::new()).collect();
        Arc::new(Self { state: Mutex::new(state), changed: Condvar::new(), kills })
    }

    /// Waits until a state is reached.
    fn until<'s>(
        &self,
        state: MutexGuard<'s, ReplicaState>,
        is_reached: impl Fn(&ReplicaState) -> bool,
    ) -> MutexGuard<'s, ReplicaState> {
        let (state, late) = self.changed.wait_timeout_while(state, HANG, |state| !is_reached(state)).unwrap();
        assert!(!late.timed_out(), "the replica hangs");
        state
    }

    /// A transaction does not wait for later ones: these could not commit before it.
    fn resolve(&self, stage: Stage, wait: &ObservedWait) {
        let later = wait.blockers.iter().filter(|blocker| blocker.tag > wait.waiter.tag);
        for LockParty { tag, .. } in later.filter(|_| !matches!(stage, Stage::Ended(_))) {
            self.state.lock().unwrap().killed[*tag as usize] = true;
            self.kills[*tag as usize].interrupt();
            self.changed.notify_all();
        }
    }

    /// Applies a transaction of the primary: again, until it commits in its turn.
    fn apply(&self, db: &Database, number: u64, changes: impl Fn(&Transaction) -> Result<()>) {
        loop {
            self.state.lock().unwrap().killed[number as usize] = false;
            self.kills[number as usize].clear();
            let priority = -number.cast_signed();
            let options = tagged(number).ordering_group(1).deadlock_priority(priority);
            let trx = db.with_interrupt(&self.kills[number as usize]).begin(options);
            let done = changes(&trx);
            let mut state = self.state.lock().unwrap();
            state.attempted[number as usize] = true;
            self.changed.notify_all();
            match done {
                Ok(()) => {
                    state = self
                        .until(state, |state| state.committed + 1 == number || state.killed[number as usize]);
                    if !state.killed[number as usize] {
                        trx.commit().unwrap();
                        state.committed = number;
                        self.changed.notify_all();
                        return;
                    }
                }
                Err(Error::Lock(LockError::Interrupted | LockError::Deadlock(_))) => {}
                Err(error) => panic!("transaction {number}: {error}"),
            }
            state.retries += 1;
            drop(state);
            drop(trx);
        }
    }
}

/// The second transaction has locked a row before the first one needs it, and waits for its turn to commit.
#[test]
fn a_replica_interrupts_a_later_transaction_that_is_in_the_way_of_an_earlier_one() {
    let (db, observer) = observed();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let replica = Replica::new(2);
    let resolver = replica.clone();
    observer.act(move |stage, wait| resolver.resolve(stage, wait));
    let (sender, has_locked) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            replica.apply(&db, 2, |trx| {
                trx.table(&table).put(b"a", b"second")?;
                let _ = sender.send(());
                Ok(())
            });
        });
        has_locked.recv().unwrap();
        replica.apply(&db, 1, |trx| trx.table(&table).put(b"a", b"first"));
    });
    assert_eq!(table.get(b"a").unwrap().as_deref(), Some(&b"second"[..]));
    assert_eq!((replica.state.lock().unwrap().retries, db.metrics().lock_timeouts), (1, 0));
    let calls = observer.calls();
    let of_first: Vec<_> = calls.iter().filter(|(_, wait)| wait.waiter.tag == 1).collect();
    assert!(
        matches!(of_first[..], [(Stage::Begins, first), (Stage::Ended(WaitOutcome::Granted), _)]
            if first.blockers.iter().map(|blocker| blocker.tag).eq([2])),
        "{calls:?}"
    );
}

/// Many transactions that conflict have the effects of their order.
#[test]
fn a_replica_commits_in_order_without_timeouts() {
    const COUNT: u64 = 120;
    let (db, observer) = observed();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let replica = Replica::new(COUNT as usize);
    let resolver = replica.clone();
    observer.act(move |stage, wait| resolver.resolve(stage, wait));
    let keys = |number: u64| [number % 3, (number * 7) % 4, (number * 5) % 2].map(|key| [key as u8]);
    // At this level a row that does not exist is not locked.
    (0..4).for_each(|key| table.put(&[key], b"").unwrap());
    let next = AtomicU64::new(1);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, SeqCst);
                    if number > COUNT {
                        break;
                    }
                    replica.apply(&db, number, |trx| {
                        let table = trx.table(&table);
                        // Of two transactions the later one comes first.
                        if number % 2 == 1 {
                            let state = replica.state.lock().unwrap();
                            drop(replica.until(state, |state| state.attempted[number as usize + 1]));
                        }
                        keys(number).iter().try_for_each(|key| {
                            let mut list = table.get_for_update(key)?.unwrap_or_default();
                            list.push(number as u8);
                            table.put(key, &list)
                        })
                    });
                }
            });
        }
    });
    let mut expected = BTreeMap::<Vec<u8>, Vec<u8>>::new();
    for number in 1..=COUNT {
        for key in keys(number) {
            expected.entry(key.to_vec()).or_default().push(number as u8);
        }
    }
    let rows: Result<BTreeMap<_, _>> = table.rows().unwrap().collect();
    assert_eq!(rows.unwrap(), expected);
    assert_eq!(db.metrics().lock_timeouts, 0);
    let calls = observer.calls();
    let count = |is: fn(&Stage) -> bool| calls.iter().filter(|(stage, _)| is(stage)).count();
    let begun = count(|stage| *stage == Stage::Begins);
    assert_eq!(begun, count(|stage| matches!(stage, Stage::Ended(_))));
    assert!(begun > 0 && replica.state.lock().unwrap().retries > 0, "no transaction has waited");
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}

/// Runs a statement with ever longer timeouts, until it does not end before the statement waits at all.
fn times_out(statement: &dyn Fn(Duration) -> Result<()>) {
    for milliseconds in (0..).map(|n| 1 << n) {
        match statement(Duration::from_millis(milliseconds)) {
            Err(Error::Lock(LockError::TimedOut { .. })) => return,
            Err(Error::Lock(LockError::Busy(_))) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Holders of a row, earlier waiters and a DDL statement, and a call outside of transactions.
#[test]
fn all_in_the_way_are_named_with_their_tags() {
    let (db, observer) = observed();
    let db = &db;
    let table = db.create_table("t", TableOptions::default()).unwrap();
    table.put(b"a", b"").unwrap();
    let holders: Vec<_> = (1..=12).map(|tag| db.begin(tagged(tag))).collect();
    for holder in &holders {
        holder.table(&table).get_for_share(b"a").unwrap();
    }
    let mut expected: Vec<_> = (1..).zip(&holders).map(|(tag, holder)| party(holder, tag)).collect();
    let waiter = db.begin(tagged(77));
    waiter.table(&table).put(b"own", b"").unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.table(&table).put(b"a", b"1"));
        wait_until("the callback", || !observer.calls.lock().unwrap().is_empty());
        let (stage, wait) = observer.calls().remove(0);
        assert_eq!((stage, wait.waiter), (Stage::Begins, party(&waiter, 77)));
        assert_eq!(wait.blockers, expected);
        assert!(matches!(&wait.lock, Lock::Row(row, RowMode::Exclusive) if *row.key == *b"a"));
        // An index waits at its end for all that have used the table.
        let (began, ended) = {
            times_out(&|at_most| {
                let index = IndexOptions::on_value(0..1);
                scope
                    .spawn(move || db.with_ddl_timeout(at_most).create_index("t", "i", index))
                    .join()
                    .unwrap()
            });
            let calls = observer.calls();
            (calls[0].0, calls[calls.len() - 1].0)
        };
        assert_eq!((began, ended), (Stage::Begins, Stage::Ended(WaitOutcome::TimedOut)));
        // A statement waits for all of them, and has no tag; its thread is that of the session.
        times_out(&|at_most| {
            scope.spawn(move || db.with_ddl_timeout(at_most).drop_table("t").map(drop)).join().unwrap()
        });
        let calls = observer.calls();
        let [(Stage::Begins, begins), (Stage::Ended(WaitOutcome::TimedOut), ended)] = &calls[..] else {
            panic!("{calls:?}")
        };
        expected.push(party(&waiter, 77));
        assert_eq!((begins, begins.waiter.tag), (ended, 0));
        assert_eq!(begins.blockers, expected);
        assert!(matches!(begins.lock, Lock::Table(_, TableMode::Exclusive)));
        drop(holders);
        waits.join().unwrap().unwrap();
    });
    observer.calls();
    let outside = thread::scope(|scope| {
        let waits = scope.spawn(|| table.put(b"a", b"2"));
        await_lock_wait(db, &waits);
        waiter.commit().unwrap();
        waits.join().unwrap()
    });
    outside.unwrap();
    let stages: Vec<_> = observer.calls().iter().map(|(stage, wait)| (*stage, wait.waiter.tag)).collect();
    assert_eq!(stages, [(Stage::Begins, 0), (Stage::Ended(WaitOutcome::Granted), 0)]);
}

/// What a callback may do, and what is refused.
#[test]
fn a_callback_waits_for_no_lock_and_runs_no_statement() {
    let (db, observer) = observed();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    for key in [b"a", b"b"] {
        table.put(key, b"").unwrap();
    }
    let (holder, waiter) = (db.begin(tagged(1)), Arc::new(db.begin(tagged(2))));
    holder.table(&table).put(b"a", b"1").unwrap();
    let (of_db, of_table, other) = (db.clone(), table.clone(), db.begin(tagged(3)));
    let (of_waiter, holder_id) = (waiter.clone(), holder.id().unwrap());
    observer.act(move |stage, wait| {
        assert_eq!(of_db.lock_waits().len(), usize::from(stage == Stage::Begins));
        assert!(of_db.transactions().len() >= 2 && !of_db.locks().is_empty());
        assert_eq!(of_table.get(b"a").unwrap().as_deref(), Some(&b""[..]));
        let waits: [(&str, Result<()>); 3] = [
            ("outside of transactions", of_table.put(b"a", b"2")),
            ("another transaction", other.table(&of_table).put(b"a", b"2")),
            ("a locking read", other.table(&of_table).get_for_share(b"a").map(drop)),
        ];
        for (name, done) in waits {
            assert!(matches!(done, Err(Error::Usage(UsageError::WaitInCall { .. }))), "{name}: {done:?}");
        }
        let statements: [(&str, Result<()>); 3] = [
            ("drop", of_db.drop_table("t").map(drop)),
            ("create", of_db.create_table("new", TableOptions::default()).map(drop)),
            ("rename", of_db.rename_table("t", "u")),
        ];
        for (name, done) in statements {
            assert!(matches!(done, Err(Error::Usage(UsageError::StatementInCall))), "{name}: {done:?}");
        }
        let own = of_waiter.table(&of_table).put(b"c", b"");
        assert!(matches!(own, Err(Error::Transaction(TransactionError::Busy))), "{own:?}");
        other.table(&of_table).put(b"b", b"3").unwrap();
        if stage == Stage::Begins {
            assert!(of_db.interrupt(holder_id), "it is not in a call: that has no effect");
            assert!(of_db.interrupt(wait.waiter.trx));
        }
    });
    let done = waiter.table(&table).put(b"a", b"2");
    assert!(matches!(done, Err(Error::Lock(LockError::Interrupted))), "{done:?}");
    let stages: Vec<_> = observer.calls().iter().map(|(stage, _)| *stage).collect();
    assert_eq!(stages, [Stage::Begins, Stage::Ended(WaitOutcome::Interrupted)]);
    holder.commit().unwrap();
    waiter.table(&table).put(b"a", b"2").unwrap();
}

/// The call fails with the panic, its transaction rolls back, and everything else goes on.
#[test]
fn a_panic_of_an_observer_rolls_back_the_transaction_alone() {
    let (db, observer) = observed();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    observer.act(|stage, _| assert!(stage != Stage::Begins, "a defect"));
    let (holder, waiter) = (db.begin(tagged(1)), db.begin(tagged(2)));
    holder.table(&table).put(b"a", b"1").unwrap();
    waiter.table(&table).put(b"b", b"2").unwrap();
    let caught = catch_unwind(AssertUnwindSafe(|| waiter.table(&table).put(b"a", b"2")));
    assert!(caught.is_err());
    let after = waiter.table(&table).put(b"c", b"");
    assert!(matches!(after, Err(Error::Transaction(TransactionError::RolledBack(_)))), "{after:?}");
    holder.table(&table).put(b"b", b"1").unwrap();
    holder.commit().unwrap();
    assert!(db.lock_waits().is_empty() && db.locks().is_empty());
    let stages: Vec<_> = observer.calls().iter().map(|(stage, _)| *stage).collect();
    assert_eq!(stages, [Stage::Begins, Stage::Ended(WaitOutcome::Interrupted)]);
    let statement = catch_unwind(AssertUnwindSafe(|| {
        let trx = db.begin(tagged(3));
        trx.table(&table).put(b"d", b"").unwrap();
        let done = db.drop_table("t");
        drop(trx);
        done
    }));
    assert!(statement.is_err());
    assert_eq!(table.rows().unwrap().count(), 2);
    db.drop_table("t").unwrap();
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}

/// Gap locks of a group do not block its inserts: those of reads of ranges, of missing rows, and of an index.
#[test]
fn gap_locks_do_not_block_an_ordering_group() {
    let (db, _) = observed();
    db.set_lock_wait_timeout(Duration::ZERO);
    let table = super::table(&db);
    for (key, value) in [(b"a", b"x1"), (b"c", b"x2")] {
        table.insert(key, value).unwrap();
    }
    let begin = |group| db.begin(TransactionOptions::default().ordering_group(group));
    let (one, other, rival, free) = (begin(5), begin(5), begin(6), begin(0));
    let in_one = one.table(&table);
    assert_eq!(in_one.range_for_update(&b"a"[..]..=b"c").unwrap().count(), 2);
    assert_eq!(in_one.get_for_update(b"k").unwrap(), None);
    let by_index = in_one.index("first").unwrap();
    assert_eq!(by_index.range_for_share(&b"y"[..]..=b"z").unwrap().count(), 0);
    let is_busy = |done: &Result<()>| matches!(done, Err(Error::Lock(LockError::Busy(_))));
    for trx in [&rival, &free] {
        for (key, value) in [(b"b", b"q5"), (b"k", b"q6"), (b"m", b"y7")] {
            let done = trx.table(&table).insert(key, value);
            assert!(is_busy(&done), "{done:?}");
        }
    }
    let done = table.insert(b"b", b"q5");
    assert!(is_busy(&done), "outside of transactions: {done:?}");
    let in_other = other.table(&table);
    for (key, value) in [(b"b", b"q5"), (b"k", b"q6"), (b"m", b"y7")] {
        in_other.insert(key, value).unwrap();
    }
    // Rows, and keys of unique indexes, block within the group, and so does what the other one has inserted.
    for done in [in_other.put(b"a", b"x8"), in_one.put(b"b", b"x9"), in_one.insert(b"n", b"x5")] {
        assert!(is_busy(&done), "{done:?}");
    }
    // No group is no group.
    assert_eq!(free.table(&table).get_for_update(b"z").unwrap(), None);
    let done = [begin(0), begin(5)].map(|trx| trx.table(&table).insert(b"z", b"p4"));
    assert!(done.iter().all(is_busy), "{done:?}");
    // A transaction without a group, or of another one, sees no phantom.
    assert_eq!(rival.table(&table).range_for_share(&b"x"[..]..).unwrap().count(), 0);
    assert!(is_busy(&in_other.insert(b"y", b"r3")));
    drop((one, rival, free));
    other.commit().unwrap();
    assert_eq!(super::rows(&table).len(), 5);
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}

/// The priority of a transaction may be changed until the cycle is closed.
#[test]
fn the_deadlock_priority_can_be_changed() {
    for (of_one, one_is_victim) in [(i64::MIN, true), (-1, true), (1, false)] {
        let (db, _) = observed();
        let table = db.create_table("t", TableOptions::default()).unwrap();
        let (one, other) = (db.begin(tagged(1).deadlock_priority(5)), db.begin(tagged(2)));
        // It has more, so that its weight alone would spare it.
        for key in [b"a", b"c", b"d"] {
            one.table(&table).put(key, b"").unwrap();
        }
        other.table(&table).put(b"b", b"").unwrap();
        one.set_deadlock_priority(of_one).unwrap();
        let is_victim = |done: Result<()>| match done {
            Ok(()) => false,
            Err(Error::Lock(LockError::Deadlock(_))) => true,
            done => panic!("{done:?}"),
        };
        thread::scope(|scope| {
            let waits = scope.spawn(|| one.table(&table).put(b"b", b"1"));
            await_lock_wait(&db, &waits);
            let busy = one.set_deadlock_priority(0);
            assert!(matches!(busy, Err(Error::Transaction(TransactionError::Busy))), "{busy:?}");
            let closes = is_victim(other.table(&table).put(b"a", b"2"));
            assert_eq!((is_victim(waits.join().unwrap()), closes), (one_is_victim, !one_is_victim));
        });
        let member = db.last_deadlock().unwrap().cycle.into_iter().find(|member| member.tag == 1).unwrap();
        assert_eq!(member.deadlock_priority, of_one.max(i64::MIN + 1), "the lowest is that of statements");
        let after = if one_is_victim { &one } else { &other }.set_deadlock_priority(0);
        assert!(matches!(after, Err(Error::Transaction(TransactionError::RolledBack(_)))), "{after:?}");
    }
}
