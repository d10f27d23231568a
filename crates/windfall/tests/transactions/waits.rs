//! Waits for locks: how long they last, what ends them, and which locks they leave.
//!
//! There is one thread. A wait passes at once on a simulated clock, and a script performs the actions of other
//! transactions during it.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use windfall::{
    Database, Error, IndexOptions, Isolation, Lock, Result, RowMode, StatementEnd, Table, TableOptions,
    Transaction, TransactionOptions, TxTable, env::Env, error::LockError,
};
use windfall_base::sync::{Event, as_another_thread};
use windfall_sim::{SimulatedDisk, SimulatedEnv};

use super::{
    begin,
    calls::{From, LONG, is_duplicate},
    changed_env::{Change, Changed},
    options, pairs, rows, table,
};

/// The lock timeout of these tests, as in [`options`].
const LOCK_WAIT: Duration = Duration::from_secs(20);

type Action = Box<dyn FnOnce() + Send>;

/// Waits that pass at once on a simulated clock, and the actions of others during them. Each action has its delay since
/// the begin of the wait, or since the previous action.
#[derive(Clone, Default)]
pub(super) struct Script(Arc<Mutex<VecDeque<(Duration, Action)>>>);

impl core::fmt::Debug for Script {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Script of {}", self.0.lock().unwrap().len())
    }
}

#[derive(Debug)]
struct Scripted {
    script: Script,
    clock: SimulatedEnv,
}

impl Change for Scripted {
    /// Only waits let time pass.
    fn yield_point(&self, _: &dyn Env) {}

    fn wait_unhindered(&self, _: &dyn Env, _: &Event, at_most: Duration, ready: &mut dyn FnMut() -> bool) {
        let end = self.clock.now() + at_most;
        while !ready() && self.clock.now() < end {
            let left = end.saturating_sub(self.clock.now());
            let next = self.script.0.lock().unwrap().pop_front_if(|(after, _)| {
                let comes = *after < left;
                if !comes {
                    *after -= left;
                }
                comes
            });
            self.clock.advance(next.as_ref().map_or(left, |(after, _)| *after));
            if let Some((_, action)) = next {
                as_another_thread(action);
            }
        }
    }
}

impl Script {
    pub(super) fn then(&self, after: Duration, action: impl FnOnce() + Send + 'static) {
        self.0.lock().unwrap().push_back((after, Box::new(action)));
    }
}

pub(super) fn scripted() -> (Database, Script, SimulatedEnv) {
    scripted_on(SimulatedDisk::new(1))
}

/// As [`scripted`], on a disk that may have a database.
pub(super) fn scripted_on(disk: SimulatedDisk) -> (Database, Script, SimulatedEnv) {
    let (clock, script) = (SimulatedEnv::new(1), Script::default());
    let change = Scripted { script: script.clone(), clock: clock.clone() };
    let env = Arc::new(Changed { env: Arc::new(clock.clone()), change });
    let db = Database::open_on(Arc::new(disk), env, &options(), &|_| {}).unwrap();
    (db, script, clock)
}

/// Returns the modes in which a transaction has locked rows, in any tree.
pub(super) fn row_locks(db: &Database, trx: &Transaction) -> Vec<RowMode> {
    let held = db.locks().into_iter().filter(|held| Some(held.trx) == trx.id());
    held.filter_map(|held| if let Lock::Row(_, mode) = held.lock { Some(mode) } else { None }).collect()
}

/// A call that fails after a wait leaves the same locks as one that fails without a wait.
#[test]
fn a_call_that_fails_after_a_wait_leaves_no_lock_that_it_would_not_have_without() {
    type Call = fn(&TxTable<'_>) -> Result<()>;
    let calls: [(&str, bool, Call); 6] = [
        ("insert of a key that has come", true, |t| t.insert(b"a", b"y2")),
        ("insert of an index key that has come", true, |t| t.insert(b"b", b"y1")),
        ("insert of a key and an index key", true, |t| t.insert(b"a", b"y1")),
        ("update of a row that has gone", false, |t| t.update(b"a", b"y2")),
        ("delete of a row that has gone", false, |t| t.delete(b"a").map(drop)),
        ("read of a row that has gone", false, |t| t.get_for_update(b"a").map(drop)),
    ];
    for (name, commits, call) in calls {
        for level in [Isolation::ReadCommitted, Isolation::RepeatableRead] {
            let (db, script, _) = scripted();
            let table = table(&db);
            let first = begin(&db, Isolation::ReadCommitted);
            first.table(&table).insert(b"a", b"x1").unwrap();
            let (waits, does_not) = (begin(&db, level), begin(&db, level));
            script.then(Duration::from_secs(1), move || {
                if commits { first.commit().map(drop) } else { first.rollback() }.unwrap();
            });
            let after_a_wait = call(&waits.table(&table));
            assert!(db.metrics().lock_waits > 0, "{name}");
            let locked = row_locks(&db, &waits);
            // Other calls get the error at once, at a level that locks nothing.
            let third = db.begin(
                TransactionOptions::default().isolation(Isolation::ReadCommitted).lock_wait(Duration::ZERO),
            );
            if commits {
                for (key, value) in [(b"c", b"z1"), (b"a", b"z3")] {
                    let result = third.table(&table).insert(key, value);
                    assert!(is_duplicate(&result), "{name}, {level:?}: {result:?}");
                }
                third.table(&table).get_for_share(b"a").unwrap();
            }
            third.rollback().unwrap();
            waits.rollback().unwrap();
            let at_once = call(&does_not.table(&table));
            assert_eq!(after_a_wait.is_err(), at_once.is_err(), "{name}, {level:?}");
            assert_eq!(locked, row_locks(&db, &does_not), "{name}, {level:?}");
            does_not.rollback().unwrap();
        }
    }
}

#[test]
fn a_request_after_a_call_that_fails_is_granted() {
    let (db, script, _) = scripted();
    let table = table(&db);
    let (first, second) = (begin(&db, Isolation::ReadCommitted), begin(&db, Isolation::ReadCommitted));
    first.table(&table).insert(b"a", b"x1").unwrap();
    script.then(Duration::from_secs(1), move || first.commit().map(drop).unwrap());
    assert!(is_duplicate(&second.table(&table).insert(b"a", b"y2")));
    // A lock upgrade.
    let third = begin(&db, Isolation::ReadCommitted);
    let within = third.table(&table);
    within.get_for_share(b"a").unwrap();
    second.rollback().unwrap();
    let (second, fourth) = (begin(&db, Isolation::ReadCommitted), begin(&db, Isolation::ReadCommitted));
    let done = second.table(&table);
    fourth.table(&table).get_for_share(b"a").unwrap();
    script.then(Duration::from_secs(1), move || drop(fourth));
    table.put(b"b", b"x3").unwrap();
    assert!(is_duplicate(&within.update(b"a", b"y3")));
    assert_eq!(
        row_locks(&db, &third),
        [RowMode::Shared; 2],
        "it had one before, and the other is on the row in the way"
    );
    let fourth = begin(&db, Isolation::ReadCommitted);
    fourth.table(&table).get_for_share(b"a").unwrap();
    script.then(Duration::from_secs(1), move || drop(fourth));
    assert!(matches!(within.put(b"a", b"y1"), Ok(())), "an upgrade, and the key is its own");
    assert_eq!(row_locks(&db, &third), [RowMode::Exclusive, RowMode::Shared]);
    script.then(Duration::from_secs(1), move || third.rollback().unwrap());
    done.update(b"a", b"z2").unwrap();
    second.commit().unwrap();
    assert_eq!(rows(&table), pairs([("a", "z2"), ("b", "x3")]));
}

/// An insert that only reports a duplicate does not wait for shared locks on the row.
#[test]
fn an_insert_reports_a_duplicate_of_a_row_that_others_share() {
    for (indexed, level) in Isolation::ALL.iter().flat_map(|level| [(true, *level), (false, *level)]) {
        let (db, _, _) = scripted();
        let table = if indexed { table(&db) } else { db.create_table("t", TableOptions::default()).unwrap() };
        table.put(b"a", b"x1").unwrap();
        let (sharer, holder) = (begin(&db, Isolation::ReadCommitted), begin(&db, Isolation::ReadCommitted));
        let options = TransactionOptions::default().isolation(level).lock_wait(Duration::ZERO);
        let trx = db.begin(options);
        let within = trx.table(&table);
        sharer.table(&table).get_for_share(b"a").unwrap();
        assert!(is_duplicate(&within.insert(b"a", b"y2")), "{level:?}");
        let is_refused = |done: Result<()>| matches!(done, Err(Error::Lock(LockError::Busy(_))));
        assert!(is_refused(within.put(b"a", b"y2")) && is_refused(within.delete(b"a").map(drop)));
        trx.rollback().unwrap();
        sharer.commit().unwrap();
        holder.table(&table).get_for_update(b"a").unwrap();
        let trx = db.begin(options);
        assert!(is_refused(trx.table(&table).insert(b"a", b"y2")), "{level:?}: it may be about to go");
    }
}

#[test]
fn the_waits_of_one_call_last_no_longer_together_than_one() {
    type Call = fn(&Transaction, &Table) -> Result<()>;
    let calls: [(&str, Call); 4] = [
        ("two index keys", |trx, t| trx.table(t).put(b"3", b"aY")),
        ("two index keys, alone", |_, t| t.put(b"3", b"aY")),
        ("a cursor over rows that go", |trx, t| trx.table(t).cursor_for_update()?.next().map(drop)),
        ("a range of them", |trx, t| trx.table(t).range_for_share::<&[u8]>(..)?.next().transpose().map(drop)),
    ];
    for (name, call) in calls {
        let (db, script, clock) = scripted();
        let unique = |at: u32| IndexOptions::on_value(at..at + 1).unique();
        let options = TableOptions::default().index("first", unique(0)).index("second", unique(1));
        let table = db.create_table("t", options).unwrap();
        let holders = [(b"1", b"aX"), (b"2", b"bY")].map(|(key, value)| {
            let trx = begin(&db, Isolation::ReadCommitted);
            trx.table(&table).insert(key, value).unwrap();
            trx
        });
        let [first, second] = holders;
        script.then(LOCK_WAIT * 3 / 4, move || first.rollback().unwrap());
        script.then(LOCK_WAIT / 2, move || second.rollback().unwrap());
        let began = clock.now();
        let trx = begin(&db, Isolation::RepeatableRead);
        match call(&trx, &table) {
            Err(Error::Lock(LockError::TimedOut { waited, .. })) => {
                assert_eq!(waited, LOCK_WAIT, "{name}");
            }
            other => panic!("{name}: {other:?}"),
        }
        assert_eq!(clock.now(), began + LOCK_WAIT, "{name}");
        // The next call has the full timeout again.
        call(&trx, &table).unwrap();
    }
}

#[test]
fn an_interrupt_ends_no_later_call_or_statement() {
    let (db, script, _) = scripted();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let blocker = begin(&db, Isolation::ReadCommitted);
    blocker.table(&table).put(b"a", b"").unwrap();
    let trx = begin(&db, Isolation::ReadCommitted);
    let within = trx.table(&table);
    within.put(b"own", b"").unwrap();
    let id = trx.id().unwrap();
    let is_interrupted = |done: Result<()>| match done {
        Err(Error::Lock(LockError::Interrupted)) => true,
        Err(Error::Lock(LockError::TimedOut { .. })) => false,
        other => panic!("{other:?}"),
    };
    let blocked = || is_interrupted(within.put(b"a", b""));
    let interrupt = || assert!(db.interrupt(id));
    // Between two calls: before the transaction has locked anything, and later.
    interrupt();
    assert!(!blocked(), "the call began later");
    interrupt();
    assert!(!blocked(), "the call began later");
    // During a call: before its wait, and in it.
    let streamed = |action: &dyn Fn()| within.put_stream(b"a", LONG, &mut From(Some(action)));
    assert!(is_interrupted(streamed(&interrupt)), "it was about to wait");
    assert!(!blocked(), "an interrupt ends one call");
    let asked = db.clone();
    script.then(Duration::from_secs(1), move || assert!(asked.interrupt(id)));
    assert!(blocked());
    assert!(!blocked(), "an interrupt ends one call");
    // During a call that does not wait.
    within.put_stream(b"b", LONG, &mut From(Some(interrupt))).unwrap();
    assert!(!blocked(), "it came too late");
    // Between the calls of a statement.
    let statement = trx.atomically(|| {
        within.put(b"c", b"")?;
        interrupt();
        within.put(b"d", b"")?;
        trx.atomically(|| within.put(b"a", b""))
    });
    assert!(is_interrupted(statement));
    let statement = trx.atomically(|| {
        within.put(b"e", b"")?;
        interrupt();
        Ok(())
    });
    statement.unwrap();
    assert!(!blocked(), "it came too late");
    trx.begin_statement().unwrap();
    interrupt();
    within.put(b"f", b"").unwrap();
    assert!(blocked(), "the statement is in progress");
    assert!(!blocked(), "an interrupt ends one call");
    interrupt();
    trx.end_statement(StatementEnd::Undo).unwrap();
    assert!(!blocked(), "it came too late");
    assert!(!is_interrupted(trx.atomically(|| within.put(b"a", b""))));
    trx.commit().unwrap();
    assert!(!db.interrupt(id));
    drop(blocker);
    let keys: Vec<_> = table.rows().unwrap().map(|row| row.unwrap().0).collect();
    assert_eq!(keys, [&b"b"[..], b"e", b"own"]);
}

#[test]
fn the_lock_timeout_of_a_transaction_can_be_changed_at_any_time() {
    const SECOND: Duration = Duration::from_secs(1);
    let (db, script, clock) = scripted();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let blocker = begin(&db, Isolation::ReadCommitted);
    blocker.table(&table).put(b"a", b"").unwrap();
    let trx = Arc::new(db.begin(TransactionOptions::default().lock_wait(SECOND)));
    let wait_of = |trx: &Transaction| {
        let began = clock.now();
        let refused = trx.table(&table).put(b"a", b"");
        let waited = clock.now().saturating_sub(began);
        match refused {
            Err(Error::Lock(LockError::Busy(_))) => assert!(waited.is_zero()),
            Err(Error::Lock(LockError::TimedOut { waited: reported, .. })) => assert_eq!(reported, waited),
            other => panic!("{other:?}"),
        }
        waited
    };
    assert_eq!(wait_of(&trx), SECOND);
    for at_most in [3 * SECOND, Duration::ZERO, LOCK_WAIT * 2, Duration::from_micros(1)] {
        trx.set_lock_wait_timeout(Some(at_most));
        assert_eq!(wait_of(&trx), at_most);
    }
    trx.set_lock_wait_timeout(Some(Duration::from_nanos(1)));
    assert_eq!(wait_of(&trx), Duration::from_micros(1), "only zero does not wait");
    trx.set_lock_wait_timeout(None);
    assert_eq!(wait_of(&trx), LOCK_WAIT);
    db.set_lock_wait_timeout(2 * SECOND);
    assert_eq!(wait_of(&trx), 2 * SECOND);
    // During a wait, it is changed for the next one.
    trx.set_lock_wait_timeout(Some(3 * SECOND));
    let changed = trx.clone();
    script.then(SECOND, move || changed.set_lock_wait_timeout(Some(SECOND)));
    assert_eq!((wait_of(&trx), wait_of(&trx)), (3 * SECOND, SECOND));
    assert_eq!(wait_of(&begin(&db, Isolation::ReadCommitted)), 2 * SECOND, "others keep theirs");
    trx.set_lock_wait_timeout(Some(Duration::MAX));
    script.then(1000 * LOCK_WAIT, move || blocker.commit().map(drop).unwrap());
    trx.table(&table).put(b"a", b"").unwrap();
    drop(trx);
}

#[test]
fn the_time_of_a_statement_is_not_that_of_each_of_its_tables() {
    let (db, script, clock) = scripted();
    let names = ["t1", "t2", "t3", "t4"];
    for name in names {
        let trx = begin(&db, Isolation::RepeatableRead);
        trx.table(&db.create_table(name, TableOptions::default()).unwrap()).put(b"a", b"").unwrap();
        // Each transaction ends in time for its own table, but all of them together do not.
        script.then(LOCK_WAIT * 2 / 3, move || trx.commit().map(drop).unwrap());
    }
    let began = clock.now();
    let dropped = db.drop_tables(&names);
    assert!(matches!(dropped, Err(Error::Lock(LockError::TimedOut { .. }))), "{dropped:?}");
    assert_eq!(clock.now().saturating_sub(began), LOCK_WAIT);
}
