//! A handle that makes one transaction after the other.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use windfall::{
    Batch, Cursor, Database, Error, FlushLog, Isolation, Lock, Result, StatementEnd, Table, TableOptions,
    Transaction, TransactionOptions,
    error::{LockError, TransactionError},
};

use super::{await_lock_wait, begin, calls, database, pairs, rows, table};

fn options(level: Isolation) -> TransactionOptions {
    TransactionOptions::default().isolation(level)
}

fn refusal<T: core::fmt::Debug>(done: Result<T>) -> TransactionError {
    match done {
        Err(Error::Transaction(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// Lets two transactions wait for each other. Returns whether the first one is the victim, which rolls back.
fn deadlock(db: &Database, table: &Table, one: &Transaction, other: &Transaction) -> bool {
    one.table(table).put(b"deadlock 1", b"d5").unwrap();
    other.table(table).put(b"deadlock 2", b"d6").unwrap();
    let victims = thread::scope(|scope| {
        let waits = scope.spawn(|| one.table(table).put(b"deadlock 2", b"d7"));
        await_lock_wait(db, &waits);
        let closes = other.table(table).put(b"deadlock 1", b"d8");
        [waits.join().unwrap(), closes].map(|done| match done {
            Ok(()) => false,
            Err(Error::Lock(LockError::Deadlock(_))) => true,
            other => panic!("{other:?}"),
        })
    });
    assert!(victims[0] != victims[1], "{victims:?}");
    victims[0]
}

#[test]
fn the_handle_of_an_ended_transaction_names_the_cure() {
    let db = database();
    let table = table(&db);
    let mut trx = begin(&db, Isolation::RepeatableRead);
    for commits in [true, false] {
        trx.table(&table).put(b"a", b"x1").unwrap();
        if commits { trx.commit_and_keep(FlushLog::Lazy).map(drop) } else { trx.rollback_and_keep() }
            .unwrap();
        for refused in [
            trx.table(&table).get(b"a").map(drop),
            trx.table(&table).put(b"b", b"y2"),
            trx.table(&table).get_for_update(b"a").map(drop),
            trx.begin_statement(),
            trx.savepoint("s"),
            trx.prepare(b"xid"),
            trx.commit_statement(FlushLog::Lazy).map(drop),
            trx.commit_and_keep(FlushLog::Lazy).map(drop),
            trx.rollback_and_keep(),
        ] {
            let error = refusal(refused);
            assert!(error.to_string().contains("restart its handle"), "{error}");
        }
        assert_eq!((db.locks(), db.views().len()), (Vec::new(), 0), "it holds nothing");
        trx.restart(TransactionOptions::default()).unwrap();
        assert_eq!(trx.id(), None, "it has neither changed nor locked anything");
        assert!(!trx.holds_locks().unwrap());
    }
    trx.commit().unwrap();
    assert_eq!(rows(&table), pairs([("a", "x1")]));
}

#[test]
fn an_open_transaction_is_not_restarted() {
    let db = database();
    let table = table(&db);
    let mut trx = begin(&db, Isolation::RepeatableRead);
    trx.table(&table).put(b"a", b"x1").unwrap();
    assert_eq!(refusal(trx.restart(TransactionOptions::default())), TransactionError::NotEnded);
    trx.begin_statement().unwrap();
    assert_eq!(refusal(trx.restart(TransactionOptions::default())), TransactionError::NotEnded);
    assert_eq!(refusal(trx.commit_and_keep(FlushLog::Lazy)), TransactionError::StatementInProgress);
    assert_eq!(refusal(trx.rollback_and_keep()), TransactionError::StatementInProgress);
    trx.table(&table).put(b"b", b"y2").unwrap();
    trx.end_statement(StatementEnd::Undo).unwrap();
    trx.commit().unwrap();
    assert_eq!(rows(&table), pairs([("a", "x1")]));
}

#[test]
fn cursors_of_the_former_transaction_are_refused_after_a_restart() {
    let db = database();
    let table = table(&db);
    for n in 0..50u8 {
        table.put(&[n], &[n, n]).unwrap();
    }
    let session = db.session();
    let temporary = session.create_temporary_table("t", TableOptions::default()).unwrap();
    (0..50).for_each(|n| temporary.put(&[n], b"").unwrap());
    for &level in Isolation::ALL {
        let mut trx = begin(&db, level);
        let in_trx = trx.table(&table);
        let index = in_trx.index("first").unwrap();
        let (new, new_locking) = (in_trx.cursor().unwrap(), in_trx.cursor_for_update().unwrap());
        let mut cursors = vec![
            new,
            new_locking,
            in_trx.cursor().unwrap(),
            in_trx.cursor_for_share().unwrap(),
            trx.table(&temporary).cursor().unwrap(),
        ];
        // These have rows that were read ahead, and a view.
        cursors[2..].iter_mut().for_each(|cursor| assert!(cursor.next().unwrap()));
        let mut of_index =
            [index.cursor().unwrap(), index.key_cursor().unwrap(), index.cursor_for_update().unwrap()];
        of_index[..2].iter_mut().for_each(|cursor| assert!(cursor.next().unwrap()));
        let (mut range, mut range_of_index) = (in_trx.rows().unwrap(), index.range::<&[u8]>(..).unwrap());
        range.next().unwrap().unwrap();
        range_of_index.next().unwrap().unwrap();
        trx.commit_and_keep(FlushLog::Lazy).unwrap();
        let committed =
            |done: Result<bool>| assert_eq!(refusal(done), TransactionError::Committed, "{level:?}");
        for cursor in &mut cursors {
            committed(cursor.next());
        }
        trx.restart(options(level)).unwrap();
        let former = |error| assert_eq!(error, TransactionError::Former, "{level:?}");
        let is_refused = |cursor: &mut Cursor| {
            former(refusal(cursor.next()));
            former(refusal(cursor.prev()));
            former(refusal(cursor.seek(windfall::Seek::First)));
            former(refusal(cursor.next_batch(&mut Batch::default())));
        };
        cursors.iter_mut().for_each(is_refused);
        for cursor in &mut of_index {
            former(refusal(cursor.next()));
            former(refusal(cursor.seek(windfall::Seek::First)));
        }
        former(refusal(range.next().unwrap()));
        former(refusal(range_of_index.next().unwrap()));
        assert!(!trx.holds_locks().unwrap(), "a cursor of the former transaction has locked in this one");
        // Also while a call of this one would be refused, and after its end.
        trx.table(&table).put(&[60], b"zz").unwrap();
        former(refusal(cursors[0].next()));
        trx.rollback_and_keep().unwrap();
        former(refusal(cursors[3].next()));
        drop(cursors);
        drop((of_index, range, range_of_index));
        assert_eq!(db.views().len(), 0);
    }
}

#[test]
fn savepoints_of_the_former_transaction_are_refused_after_a_restart() {
    let db = database();
    let table = table(&db);
    let mut trx = begin(&db, Isolation::RepeatableRead);
    let former = trx.set_savepoint().unwrap();
    trx.savepoint("s").unwrap();
    trx.begin_statement().unwrap();
    let in_statement = trx.set_savepoint().unwrap();
    trx.table(&table).put(b"a", b"x1").unwrap();
    trx.commit_statement(FlushLog::Lazy).unwrap();
    trx.restart(TransactionOptions::default()).unwrap();
    let refuses = |trx: &Transaction| {
        for savepoint in [&former, &in_statement] {
            assert_eq!(refusal(trx.rollback_to_savepoint(savepoint)), TransactionError::StaleSavepoint);
            assert_eq!(refusal(trx.release_savepoint(savepoint)), TransactionError::StaleSavepoint);
        }
        assert!(matches!(refusal(trx.rollback_to("s")), TransactionError::NoSavepoint(_)));
    };
    refuses(&trx);
    let own = [trx.set_savepoint().unwrap(), trx.set_savepoint().unwrap()];
    assert!(own.iter().all(|own| *own != former && *own != in_statement));
    trx.table(&table).put(b"b", b"y2").unwrap();
    refuses(&trx);
    trx.rollback_to_savepoint(&own[0]).unwrap();
    trx.commit().unwrap();
    assert_eq!(rows(&table), pairs([("a", "x1")]));
}

#[test]
fn a_prepared_transaction_survives_the_restart_of_its_handle() {
    let db = database();
    let table = table(&db);
    let mut trx = begin(&db, Isolation::RepeatableRead);
    for (name, key, value) in [(b"one", b"a", b"x1"), (b"two", b"b", b"y2")] {
        trx.table(&table).put(key, value).unwrap();
        trx.prepare(name).unwrap();
        trx.restart(options(Isolation::RepeatableRead).lock_wait(core::time::Duration::ZERO)).unwrap();
    }
    let prepared = || db.prepared().into_iter().map(|known| (known.xid, known.in_use)).collect::<Vec<_>>();
    assert_eq!(prepared(), [(b"one".to_vec(), false), (b"two".to_vec(), false)]);
    let locked = trx.table(&table).put(b"a", b"z3");
    assert!(matches!(locked, Err(Error::Lock(LockError::Busy(_)))), "{locked:?}");
    trx.table(&table).put(b"c", b"z3").unwrap();
    db.commit_prepared(b"one").unwrap();
    db.rollback_prepared(b"two").unwrap();
    trx.rollback_and_keep().unwrap();
    assert_eq!(prepared(), []);
    assert_eq!(rows(&table), pairs([("a", "x1")]));
    trx.restart(TransactionOptions::default()).unwrap();
    trx.table(&table).put(b"b", b"y4").unwrap();
    trx.prepare(b"two").unwrap();
    // It is committed through its handle, which then begins another one.
    trx.commit_and_keep(FlushLog::Lazy).unwrap();
    trx.restart(TransactionOptions::default()).unwrap();
    assert_eq!(rows(&trx.table(&table)), pairs([("a", "x1"), ("b", "y4")]));
}

#[test]
fn a_deadlock_victim_restarts_with_new_locks() {
    let db = database();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let mut both = [begin(&db, Isolation::ReadCommitted), begin(&db, Isolation::ReadCommitted)];
    for round in 0..4u8 {
        let first_is_victim = deadlock(&db, &table, &both[0], &both[1]);
        let [victim, survivor] = if first_is_victim { [0, 1] } else { [1, 0] };
        assert!(matches!(refusal(both[victim].begin_statement()), TransactionError::RolledBack(_)));
        both[victim].restart(options(Isolation::ReadCommitted)).unwrap();
        both[victim].table(&table).put(&[round], b"").unwrap();
        // The new transaction has the table locked, and so has the survivor.
        for trx in &both {
            let of = |held: &windfall::HeldLock| {
                Some(held.trx) == trx.id() && matches!(held.lock, Lock::Table(..))
            };
            assert_eq!(db.locks().iter().filter(|held| of(held)).count(), 1, "{:?}", db.locks());
        }
        both[survivor].commit_and_keep(FlushLog::Lazy).unwrap();
        both[survivor].restart(options(Isolation::ReadCommitted)).unwrap();
        both[victim].commit_and_keep(FlushLog::Lazy).unwrap();
        both[victim].restart(options(Isolation::ReadCommitted)).unwrap();
        assert_eq!(table.rows().unwrap().count(), 2 + usize::from(round) + 1);
    }
}

#[test]
fn a_handle_is_restarted_after_a_call_has_panicked() {
    let db = database();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let temporary = db.create_temporary_table("t", TableOptions::default()).unwrap();
    let mut trx = begin(&db, Isolation::RepeatableRead);
    for of in [&table, &*temporary] {
        trx.table(&temporary).put(b"a", b"x1").unwrap();
        trx.table(&table).put(b"a", b"x1").unwrap();
        trx.table(&table).get(b"b").unwrap();
        trx.savepoint("s").unwrap();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let mut source = calls::From(Some(|| panic!("a source panics")));
            trx.table(of).put_stream(b"b", calls::LONG, &mut source)
        }));
        assert!(panicked.is_err());
        assert!(matches!(refusal(trx.begin_statement()), TransactionError::RolledBack(_)));
        trx.restart(TransactionOptions::default()).unwrap();
        assert!(matches!(refusal(trx.rollback_to("s")), TransactionError::NoSavepoint(_)));
        assert_eq!((db.views().len(), db.locks()), (0, Vec::new()));
        assert_eq!(table.rows().unwrap().count() + temporary.rows().unwrap().count(), 0);
    }
}

#[test]
fn a_handle_is_restarted_on_any_thread() {
    let db = database();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let mut trx = begin(&db, Isolation::RepeatableRead);
    for n in 0..20u8 {
        trx.begin_statement().unwrap();
        trx.table(&table).put(&[n], b"").unwrap();
        trx = thread::scope(|scope| {
            let next = scope.spawn(|| {
                trx.commit_statement(FlushLog::Lazy).unwrap();
                trx.restart(TransactionOptions::default()).unwrap();
                assert_eq!(trx.table(&table).rows().unwrap().count(), usize::from(n) + 1);
                trx
            });
            next.join().unwrap()
        });
    }
}

#[test]
fn an_interrupt_of_the_former_transaction_does_not_concern_the_next() {
    let db = database();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    table.put(b"a", b"x1").unwrap();
    let holder = begin(&db, Isolation::ReadCommitted);
    let mut trx = db.begin(options(Isolation::ReadCommitted).tag(7));
    trx.table(&table).put(b"own", b"").unwrap();
    let former = trx.id().unwrap();
    db.interrupt(former);
    trx.commit_and_keep(FlushLog::Lazy).unwrap();
    trx.restart(options(Isolation::ReadCommitted)).unwrap();
    trx.table(&table).put(b"own", b"").unwrap();
    assert_ne!(trx.id(), Some(former));
    db.interrupt(former);
    holder.table(&table).put(b"a", b"x2").unwrap();
    let tags = db.transactions().into_iter().map(|info| (info.id, info.tag)).collect::<BTreeMap<_, _>>();
    assert_eq!(tags[&trx.id().unwrap()], 7, "the tag is kept");
    thread::scope(|scope| {
        let waits = scope.spawn(|| trx.table(&table).put(b"a", b"x3"));
        await_lock_wait(&db, &waits);
        db.interrupt(former);
        assert!(!waits.is_finished() && !db.lock_waits().is_empty(), "it still waits");
        holder.commit().unwrap();
        waits.join().unwrap().unwrap();
    });
    // The handle belongs to the session, not to a transaction.
    let handle = trx.interrupt_handle();
    handle.interrupt();
    trx.commit_and_keep(FlushLog::Lazy).unwrap();
    trx.restart(options(Isolation::ReadCommitted).tag(8)).unwrap();
    let holder = begin(&db, Isolation::ReadCommitted);
    holder.table(&table).put(b"a", b"x4").unwrap();
    let interrupted = trx.table(&table).put(b"a", b"x5");
    assert!(matches!(interrupted, Err(Error::Lock(LockError::Interrupted))), "{interrupted:?}");
    handle.clear();
    holder.commit().unwrap();
    trx.table(&table).put(b"a", b"x5").unwrap();
    assert_eq!(db.transactions()[0].tag, 8);
    trx.set_tag(0).unwrap();
    trx.commit_and_keep(FlushLog::Lazy).unwrap();
    trx.restart(options(Isolation::ReadCommitted)).unwrap();
    trx.table(&table).put(b"a", b"x6").unwrap();
    assert_eq!(db.transactions()[0].tag, 0, "the tag was removed");
}

#[test]
fn each_transaction_of_a_handle_has_its_own_options_and_view() {
    let db = database();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let mut trx = db.begin(TransactionOptions::default().read_only());
    let mut kept = Vec::new();
    for round in 0..6u8 {
        let level = Isolation::ALL[usize::from(round) % Isolation::ALL.len()];
        table.put(b"a", &[round]).unwrap();
        assert_eq!(trx.table(&table).get(b"a").unwrap(), Some(vec![round]), "the view is a new one");
        assert_eq!(refusal(trx.table(&table).put(b"b", b"")), TransactionError::ReadOnly);
        // Its view stays in use after the transaction.
        let mut cursor = trx.table(&table).cursor().unwrap();
        assert!(cursor.next().unwrap());
        kept.push(cursor);
        trx.commit_and_keep(FlushLog::Lazy).unwrap();
        trx.restart(options(level)).unwrap();
        assert_eq!(trx.isolation(), level);
        trx.table(&table).put(b"b", b"").unwrap();
        trx.commit_and_keep(FlushLog::Lazy).unwrap();
        trx.restart(TransactionOptions::default().consistent_snapshot()).unwrap();
        table.put(b"a", b"later").unwrap();
        assert_eq!(
            trx.table(&table).get(b"a").unwrap(),
            Some(vec![round]),
            "the view is that of the restart"
        );
        trx.rollback_and_keep().unwrap();
        trx.restart(TransactionOptions::default().read_only()).unwrap();
    }
    drop(kept);
    trx.commit_and_keep(FlushLog::Lazy).unwrap();
    assert_eq!(db.views().len(), 0);
}

/// The plain reads of the other levels have none to take.
#[test]
fn a_snapshot_at_the_beginning_is_taken_at_levels_that_have_one() {
    let db = database();
    for level in Isolation::ALL {
        let views = usize::from(matches!(level, Isolation::RepeatableRead | Isolation::Snapshot));
        let mut trx = db.begin(options(*level).consistent_snapshot());
        assert_eq!(db.views().len(), views, "{level:?}");
        trx.commit_and_keep(FlushLog::Lazy).unwrap();
        trx.restart(options(*level).consistent_snapshot()).unwrap();
        assert_eq!(db.views().len(), views, "{level:?}, after a restart");
    }
}

#[test]
fn a_commit_ends_the_only_statement_of_its_transaction() {
    let db = database();
    let table = table(&db);
    let mut trx = begin(&db, Isolation::ReadCommitted);
    assert_eq!(refusal(trx.commit_statement(FlushLog::Lazy)), TransactionError::NoStatement);
    trx.begin_statement().unwrap();
    trx.begin_statement().unwrap();
    trx.table(&table).put(b"a", b"x1").unwrap();
    assert_eq!(refusal(trx.commit_statement(FlushLog::Lazy)), TransactionError::StatementInProgress);
    trx.end_statement(StatementEnd::Keep).unwrap();
    let lsn = trx.commit_statement(FlushLog::Lazy).unwrap();
    assert!(lsn.is_some() && lsn <= Some(db.log_end()));
    assert_eq!(rows(&table), pairs([("a", "x1")]));
    trx.restart(options(Isolation::ReadCommitted)).unwrap();
    trx.begin_statement().unwrap();
    trx.table(&table).get(b"a").unwrap();
    assert_eq!(db.views().len(), 1);
    assert_eq!(trx.commit_statement(FlushLog::Sync).unwrap(), None, "nothing was logged");
    assert_eq!(db.views().len(), 0, "its view ends with it");
    trx.restart(options(Isolation::ReadCommitted)).unwrap();
    trx.table(&table).put(b"b", b"y2").unwrap();
    trx.prepare(b"xid").unwrap();
    assert_eq!(refusal(trx.commit_statement(FlushLog::Lazy)), TransactionError::Prepared);
    trx.rollback().unwrap();
}

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// What a handle has in the model.
#[derive(Debug)]
enum Modelled {
    Open { level: Isolation, snapshot: Option<Rows>, changed: Rows },
    Prepared,
    Ended,
}

/// One table, two handles, and what was committed.
struct World {
    db: Database,
    table: Table,
    committed: Rows,
    prepared: BTreeMap<Vec<u8>, Rows>,
    names: u8,
}

impl World {
    fn write(&mut self, trx: &Transaction, modelled: &mut Modelled, key: Vec<u8>, value: Vec<u8>) {
        let Modelled::Open { changed, .. } = modelled else {
            assert!(trx.table(&self.table).put(&key, &value).is_err(), "{modelled:?}");
            return;
        };
        match trx.table(&self.table).put(&key, &value) {
            Ok(()) => drop(changed.insert(key, value)),
            Err(Error::Lock(LockError::Busy(_))) => {
                assert!(self.prepared.values().any(|rows| rows.contains_key(&key)), "{key:?} is locked");
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn read(&self, trx: &Transaction, modelled: &mut Modelled) {
        let Modelled::Open { level, snapshot, changed } = modelled else {
            assert!(trx.table(&self.table).rows().is_err() || trx.table(&self.table).get(b"").is_err());
            return;
        };
        let mut expected = match level {
            Isolation::ReadCommitted => self.committed.clone(),
            _ => snapshot.get_or_insert_with(|| self.committed.clone()).clone(),
        };
        expected.extend(changed.clone());
        let found: Rows = trx.table(&self.table).rows().unwrap().map(Result::unwrap).collect();
        assert_eq!(found, expected);
    }

    fn end(&mut self, trx: &mut Transaction, modelled: &mut Modelled, commits: bool) {
        let ended =
            if commits { trx.commit_and_keep(FlushLog::Lazy).map(drop) } else { trx.rollback_and_keep() };
        match core::mem::replace(modelled, Modelled::Ended) {
            Modelled::Open { changed, .. } => {
                ended.unwrap();
                self.committed.extend(changed.into_iter().filter(|_| commits));
            }
            Modelled::Prepared => {
                ended.unwrap();
                let name = vec![self.names];
                let changed = self.prepared.remove(&name).expect("it is the last one that was prepared");
                self.committed.extend(changed.into_iter().filter(|_| commits));
            }
            Modelled::Ended => assert!(ended.is_err()),
        }
    }
}

/// Every restart begins a transaction that sees what one of a new handle would see, and that changes what it would.
#[test]
fn restarted_transactions_behave_as_new_ones() {
    for seed in 0..12 {
        let mut rng = StdRng::seed_from_u64(seed);
        let db = database();
        let table = db.create_table("t", TableOptions::default()).unwrap();
        let mut world = World { db, table, committed: Rows::new(), prepared: BTreeMap::new(), names: 0 };
        let no_wait = |level| options(level).lock_wait(core::time::Duration::ZERO);
        let mut handles = [0, 1].map(|_| {
            let level = Isolation::RepeatableRead;
            let modelled = Modelled::Open { level, snapshot: None, changed: Rows::new() };
            (world.db.begin(no_wait(level)), modelled, Vec::<Cursor>::new())
        });
        for _ in 0..400 {
            let at = rng.random_range(0..2);
            let (trx, modelled, former) = &mut handles[at];
            match rng.random_range(0..20) {
                0..6 => {
                    let (key, value) = (vec![at as u8, rng.random_range(0..6)], vec![rng.random()]);
                    world.write(trx, modelled, key, value);
                }
                6..10 => world.read(trx, modelled),
                10 | 11 => world.end(trx, modelled, rng.random_bool(0.6)),
                12 => {
                    let savepoint =
                        matches!(modelled, Modelled::Open { .. }).then(|| trx.set_savepoint().unwrap());
                    if let (Some(savepoint), Modelled::Open { changed, .. }) = (savepoint, &mut *modelled) {
                        let before = changed.clone();
                        trx.table(&world.table).put(&[at as u8, 99], b"undone").ok();
                        trx.rollback_to_savepoint(&savepoint).unwrap();
                        *changed = before;
                    }
                }
                13 => {
                    if let Modelled::Open { changed, .. } = &mut *modelled
                        && world.prepared.len() < 3
                    {
                        world.names += 1;
                        trx.prepare(&[world.names]).unwrap();
                        world.prepared.insert(vec![world.names], core::mem::take(changed));
                        *modelled = Modelled::Prepared;
                        // Its handle is the only one that may end it, until the next restart.
                        if rng.random_bool(0.5) {
                            world.end(trx, modelled, rng.random_bool(0.5));
                        }
                        if matches!(modelled, Modelled::Prepared) {
                            restart(trx, modelled, Isolation::RepeatableRead);
                        }
                    }
                }
                14 => {
                    if let Some((name, changed)) = world.prepared.pop_first() {
                        if rng.random_bool(0.5) {
                            world.db.commit_prepared(&name).unwrap();
                            world.committed.extend(changed);
                        } else {
                            world.db.rollback_prepared(&name).unwrap();
                        }
                    }
                }
                15..18 => {
                    let level = [Isolation::ReadCommitted, Isolation::RepeatableRead][rng.random_range(0..2)];
                    if matches!(modelled, Modelled::Open { .. }) {
                        former.extend(trx.table(&world.table).cursor().ok());
                        assert_eq!(refusal(trx.restart(no_wait(level))), TransactionError::NotEnded);
                        continue;
                    }
                    restart(trx, modelled, level);
                    for mut cursor in former.drain(..) {
                        assert_eq!(refusal(cursor.next()), TransactionError::Former);
                    }
                }
                18 => {
                    let [(one, of_one, _), (other, of_other, _)] = &mut handles;
                    let (Modelled::Open { .. }, Modelled::Open { .. }) = (&of_one, &of_other) else {
                        continue;
                    };
                    for trx in [&*one, &*other] {
                        trx.set_lock_wait_timeout(None);
                    }
                    let first_is_victim = deadlock(&world.db, &world.table, one, other);
                    for trx in [&*one, &*other] {
                        trx.set_lock_wait_timeout(Some(core::time::Duration::ZERO));
                    }
                    let ((victim, of_victim), of_survivor) =
                        if first_is_victim { ((one, of_one), of_other) } else { ((other, of_other), of_one) };
                    *of_victim = Modelled::Ended;
                    let Modelled::Open { changed, .. } = of_survivor else { unreachable!() };
                    let values = if first_is_victim { ["d8", "d6"] } else { ["d5", "d7"] };
                    changed.insert(b"deadlock 1".to_vec(), values[0].into());
                    changed.insert(b"deadlock 2".to_vec(), values[1].into());
                    restart(victim, of_victim, Isolation::ReadCommitted);
                    // Otherwise the next deadlock would wait for the rows of this one.
                    let at = usize::from(first_is_victim);
                    let (trx, modelled, _) = &mut handles[at];
                    world.end(trx, modelled, true);
                }
                _ => {
                    // A new handle begins as the restarted one does.
                    drop(core::mem::replace(trx, world.db.begin(no_wait(Isolation::ReadCommitted))));
                    let level = Isolation::ReadCommitted;
                    *modelled = Modelled::Open { level, snapshot: None, changed: Rows::new() };
                    former.clear();
                }
            }
        }
        drop(handles);
        for (name, _) in core::mem::take(&mut world.prepared) {
            world.db.rollback_prepared(&name).unwrap();
        }
        let found: Rows = world.table.rows().unwrap().map(Result::unwrap).collect();
        assert_eq!(found, world.committed, "seed {seed}");
        assert_eq!(world.db.check().unwrap().findings, Vec::<String>::new());
        assert_eq!((world.db.locks(), world.db.views().len()), (Vec::new(), 0));
    }
}

fn restart(trx: &mut Transaction, modelled: &mut Modelled, level: Isolation) {
    trx.restart(options(level).lock_wait(core::time::Duration::ZERO)).unwrap();
    *modelled = Modelled::Open { level, snapshot: None, changed: Rows::new() };
}
