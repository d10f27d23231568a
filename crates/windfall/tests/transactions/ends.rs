//! The end of transactions: all of their changes stay, or none.

use std::panic::{AssertUnwindSafe, catch_unwind};

use windfall::{
    Error, Isolation, TableOptions, TransactionOptions,
    error::{SchemaError, TransactionError},
};
use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

use super::{begin, database, pairs, rows, simulated, table};

#[test]
fn all_of_it_stays_or_nothing() {
    for &level in Isolation::ALL {
        let db = database();
        let (table, other) = (table(&db), db.create_table("other", TableOptions::default()).unwrap());
        table.put(b"a", b"x1").unwrap();
        for commits in [false, true] {
            let trx = begin(&db, level);
            let (within, beside) = (trx.table(&table), trx.table(&other));
            within.put(b"a", b"y2").unwrap();
            within.insert(b"b", b"z3").unwrap();
            beside.insert(b"k", &vec![7; 20_000]).unwrap();
            assert!(within.delete(b"a").unwrap());
            within.insert(b"a", b"w4").unwrap();
            assert_eq!(rows(&within), pairs([("a", "w4"), ("b", "z3")]), "it sees what it did");
            assert_eq!(rows(&table), pairs([("a", "x1")]), "no other reader does");
            assert_eq!(other.get(b"k").unwrap(), None);
            if commits { trx.commit().map(drop) } else { trx.rollback() }.unwrap();
            let after = if commits { pairs([("a", "w4"), ("b", "z3")]) } else { pairs([("a", "x1")]) };
            assert_eq!(rows(&table), after, "{level:?}");
            assert_eq!(other.contains(b"k").unwrap(), commits);
        }
        assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
        assert_eq!((db.locks(), db.lock_waits()), (Vec::new(), Vec::new()), "it holds nothing any more");
    }
}

#[test]
fn dropping_the_handle_rolls_back_the_transaction() {
    let db = database();
    let table = table(&db);
    let trx = begin(&db, Isolation::RepeatableRead);
    let within = trx.table(&table);
    within.put(b"a", b"x1").unwrap();
    within.get_for_update(b"b").unwrap();
    let mut left = within.rows().unwrap();
    drop(trx);
    assert_eq!(rows(&table), []);
    let error = left.next().unwrap().unwrap_err();
    assert!(matches!(&error, Error::Transaction(TransactionError::RolledBack(_))), "{error}");
    assert!(error.to_string().contains("handle was dropped") && error.to_string().contains("begin another"));
    table.put(b"b", b"y2").unwrap();
}

#[test]
fn a_failed_call_rolls_back_only_its_own_changes() {
    let db = database();
    let table = table(&db);
    table.put(b"taken", b"x1").unwrap();
    let trx = begin(&db, Isolation::RepeatableRead);
    let within = trx.table(&table);
    within.put(b"a", b"x2").unwrap();
    let duplicate = within.put(b"b", b"y1").unwrap_err();
    assert!(matches!(duplicate, Error::Schema(SchemaError::DuplicateKey { .. })), "{duplicate}");
    // Several calls as one statement.
    let failed = trx.atomically(|| {
        within.put(b"c", b"z3")?;
        within.delete(b"a")?;
        within.insert(b"taken", b"z4")
    });
    assert!(matches!(failed, Err(Error::Schema(SchemaError::DuplicateKey { .. }))), "{failed:?}");
    assert_eq!(rows(&within), pairs([("a", "x2"), ("taken", "x1")]));
    // A savepoint that was set in it is removed with it.
    let failed = trx.atomically(|| {
        within.put(b"c", b"z5")?;
        trx.savepoint("inside")?;
        within.insert(b"taken", b"z6")
    });
    assert!(failed.is_err() && trx.rollback_to("inside").is_err());
    trx.atomically(|| within.put(b"c", b"z3")).unwrap();
    let mut left = within.rows().unwrap();
    trx.commit().unwrap();
    let over = left.next().unwrap().unwrap_err();
    assert!(over.to_string().contains("was committed"), "{over}");
    assert_eq!(rows(&table), pairs([("a", "x2"), ("c", "z3"), ("taken", "x1")]));
}

#[test]
fn savepoints_nest_and_move() {
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
    put("a", "x1");
    trx.savepoint("one").unwrap();
    put("b", "x2");
    trx.savepoint("two").unwrap();
    put("a", "x3");
    within.delete(b"b").unwrap();
    trx.savepoint("three").unwrap();
    put("c", "x4");
    trx.rollback_to("two").unwrap();
    assert_eq!(rows(&within), pairs([("a", "x1"), ("b", "x2")]));
    assert_eq!(beside.get(b"a").unwrap(), Some(b"x1".to_vec()));
    assert_eq!(beside.get(b"c").unwrap(), None);
    let gone = trx.rollback_to("three").unwrap_err();
    assert!(gone.to_string().contains("\"three\""), "{gone}");
    put("d", "x5");
    // A second time, and then on from there.
    trx.rollback_to("two").unwrap();
    put("e", "x6");
    trx.savepoint("one").unwrap();
    put("f", "x7");
    trx.release("two").unwrap();
    assert!(trx.release("two").is_err() && trx.rollback_to("two").is_err());
    // It had moved to a place after the other one, and was removed with it.
    assert!(trx.rollback_to("one").is_err());
    trx.commit().unwrap();
    let left = pairs([("a", "x1"), ("b", "x2"), ("e", "x6"), ("f", "x7")]);
    assert_eq!(rows(&table), left);
    assert_eq!(temporary.rows().unwrap().map(Result::unwrap).collect::<Vec<_>>(), left);
    drop(session);
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}

#[test]
fn a_statement_leaves_savepoints_as_it_found_them_when_it_fails() {
    let db = database();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let trx = begin(&db, Isolation::RepeatableRead);
    let within = trx.table(&table);
    let keys = || within.rows().unwrap().map(|row| row.unwrap().0[0]).collect::<Vec<u8>>();
    let is_none = |done: windfall::Result<()>| {
        assert!(matches!(done, Err(Error::Transaction(TransactionError::NoSavepoint(_)))), "{done:?}");
    };
    within.put(b"1", b"").unwrap();
    trx.savepoint("before").unwrap();
    within.put(b"2", b"").unwrap();
    let failed = trx.atomically(|| {
        trx.savepoint("early")?;
        // After a rollback to a point before its beginning, the statement itself could not be rolled back.
        is_none(trx.rollback_to("before"));
        is_none(trx.release("before"));
        within.put(b"3", b"")?;
        trx.savepoint("before")?;
        within.put(b"4", b"")?;
        trx.rollback_to("before")?;
        assert_eq!(keys(), b"123");
        within.insert(b"1", b"")
    });
    assert!(matches!(failed, Err(Error::Schema(_))));
    assert_eq!(keys(), b"12");
    is_none(trx.rollback_to("early"));
    trx.rollback_to("before").unwrap();
    assert_eq!(keys(), b"1");
    // If the statement succeeds, its savepoints become those of the transaction, and replace others of the same name.
    trx.savepoint("outer").unwrap();
    let done = trx.atomically(|| {
        within.put(b"5", b"")?;
        trx.atomically(|| trx.savepoint("before"))?;
        is_none(trx.rollback_to("outer"));
        within.put(b"6", b"")
    });
    done.unwrap();
    trx.rollback_to("before").unwrap();
    assert_eq!(keys(), b"15");
    // A panic also rolls it back.
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        trx.atomically(|| -> windfall::Result<()> {
            within.put(b"7", b"")?;
            panic!("on purpose")
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(keys(), b"15");
    trx.rollback_to("outer").unwrap();
    assert_eq!(keys(), b"1");
    trx.commit().unwrap();
    assert_eq!(table.rows().unwrap().count(), 1);
}

#[test]
fn rows_stay_locked_when_they_are_rolled_back_to_a_savepoint() {
    let db = database();
    let table = table(&db);
    let trx = begin(&db, Isolation::ReadCommitted);
    let within = trx.table(&table);
    trx.savepoint("here").unwrap();
    within.put(b"a", b"x1").unwrap();
    trx.rollback_to("here").unwrap();
    let other = db.begin(TransactionOptions::default().lock_wait(core::time::Duration::ZERO));
    let busy = other.table(&table).put(b"a", b"y2").unwrap_err();
    assert!(
        matches!(busy, Error::Lock(_)) && busy.to_string().contains(&trx.id().unwrap().to_string()),
        "{busy}"
    );
    trx.rollback().unwrap();
    other.table(&table).put(b"a", b"y2").unwrap();
    other.commit().unwrap();
    assert_eq!(rows(&table), pairs([("a", "y2")]));
}

#[test]
fn after_a_crash_open_transactions_are_rolled_back_and_committed_ones_stay() {
    for seed in 0..20 {
        let (disk, env) = (SimulatedDisk::new(seed), SimulatedEnv::new(seed));
        let db = simulated(&disk, &env);
        let t = table(&db);
        t.put(b"old", b"o1").unwrap();
        let (first, second) = (begin(&db, Isolation::RepeatableRead), begin(&db, Isolation::ReadCommitted));
        let (one, two) = (first.table(&t), second.table(&t));
        for n in 0..40u8 {
            one.put(&[b'a', n], &[1, 100 + n]).unwrap();
            if n == 10 {
                first.savepoint("here").unwrap();
            }
            two.put(&[b'b', n], &[2, 200u8.wrapping_add(n)]).unwrap();
        }
        one.put(b"old", b"p1").unwrap();
        first.rollback_to("here").unwrap();
        one.put(b"last", b"q2").unwrap();
        if seed % 3 == 0 {
            db.checkpoint().unwrap();
            env.run_workers(50);
        }
        drop(two);
        second.commit().unwrap();
        if seed % 2 == 0 {
            env.run_workers(100);
        }
        disk.crash();
        drop(one);
        drop((first, t, db));
        let survive = [Survive::Nothing, Survive::Everything, Survive::Random(seed)][seed as usize % 3];
        let disk = disk.restart(survive);
        let db = simulated(&disk, &SimulatedEnv::new(seed));
        let t = db.table("t").unwrap();
        let found = rows(&t);
        assert_eq!(found.len(), 41, "seed {seed}");
        assert_eq!(t.get(b"old").unwrap(), Some(b"o1".to_vec()));
        assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
        db.close().unwrap();
    }
}

#[test]
fn a_transaction_that_is_open_at_the_close_is_rolled_back_by_the_next_opening() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = simulated(&disk, &env);
    let t = table(&db);
    t.put(b"a", b"x1").unwrap();
    let trx = begin(&db, Isolation::RepeatableRead);
    let within = trx.table(&t);
    within.put(b"a", b"y1").unwrap();
    db.clone().close().unwrap();
    assert!(matches!(within.put(b"b", b"z3"), Err(Error::Closed)));
    drop(within);
    assert!(matches!(trx.commit(), Err(Error::Closed)));
    drop((t, db));
    let db = simulated(&disk, &SimulatedEnv::new(2));
    assert_eq!(rows(&db.table("t").unwrap()), pairs([("a", "x1")]));
}

#[test]
fn a_read_only_transaction_changes_and_locks_nothing() {
    let db = database();
    let table = table(&db);
    table.put(b"a", b"x1").unwrap();
    let trx = db.begin(TransactionOptions::default().read_only());
    let within = trx.table(&table);
    assert_eq!(within.get(b"a").unwrap(), Some(b"x1".to_vec()));
    let refused = [
        within.put(b"a", b"y1").unwrap_err(),
        within.delete(b"a").unwrap_err(),
        within.get_for_update(b"a").unwrap_err(),
        within.range_for_share::<&[u8]>(..).unwrap_err(),
    ];
    for error in refused {
        assert!(matches!(&error, Error::Transaction(TransactionError::ReadOnly)), "{error}");
    }
    trx.commit().unwrap();
}

#[test]
fn a_transaction_does_one_call_at_a_time() {
    struct Source<'a>(&'a windfall::TxTable<'a>, u8);
    impl std::io::Read for Source<'_> {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            let busy = self.0.put(b"other", b"y2").unwrap_err();
            assert!(matches!(&busy, Error::Transaction(TransactionError::Busy)), "{busy}");
            out.fill(self.1);
            Ok(out.len())
        }
    }
    let db = database();
    let table = table(&db);
    let trx = begin(&db, Isolation::RepeatableRead);
    let within = trx.table(&table);
    within.put_stream(b"a", 100_000, &mut Source(&within, 5)).unwrap();
    let mut read = Vec::new();
    within.read_stream(b"a", &mut read).unwrap();
    assert!(read == vec![5; 100_000]);
    trx.commit().unwrap();
    assert_eq!(table.get(b"a").unwrap(), Some(read));
}

#[test]
fn a_transaction_of_another_database_is_refused() {
    let (db, other) = (database(), database());
    let table = table(&db);
    let trx = begin(&other, Isolation::RepeatableRead);
    let within = trx.table(&table);
    for error in [
        within.put(b"a", b"x1").unwrap_err(),
        within.get(b"a").unwrap_err(),
        within.rows().unwrap_err(),
        within.get_for_update(b"a").unwrap_err(),
    ] {
        assert!(matches!(&error, Error::Transaction(TransactionError::OtherDatabase)), "{error}");
    }
}

#[test]
fn a_session_may_end_during_a_rollback() {
    let db = database();
    let kept = db.create_table("kept", TableOptions::default()).unwrap();
    for round in 0..60u32 {
        let session = db.session();
        let temporary = session.create_temporary_table("t", TableOptions::default()).unwrap();
        let trx = begin(&db, Isolation::RepeatableRead);
        let (within, beside) = (trx.table(&temporary), trx.table(&kept));
        for n in 0..150u32 {
            within.put(&n.to_be_bytes(), &vec![1; if n % 10 == 0 { 5000 } else { 300 }]).unwrap();
        }
        beside.put(b"row", &round.to_be_bytes()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || drop(session));
            if round % 2 == 0 {
                trx.rollback().unwrap();
            } else {
                trx.commit().unwrap();
            }
        });
        // Every other transaction is rolled back.
        let expected = (round > 0).then(|| (round - u32::from(round % 2 == 0)).to_be_bytes().to_vec());
        assert_eq!(kept.get(b"row").unwrap(), expected, "round {round}");
    }
}

#[test]
fn there_are_no_more_transactions_than_a_checkpoint_can_name() {
    let db = database();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let mut open = Vec::new();
    let refused = loop {
        let trx = begin(&db, Isolation::ReadCommitted);
        match trx.table(&table).put(&(open.len() as u32).to_be_bytes(), b"1") {
            Ok(()) => open.push(trx),
            Err(error) => break error,
        }
        assert!(open.len() < 10_000, "there is no end to them");
    };
    assert!(refused.to_string().contains("log_buffer_size"), "{refused}");
    db.checkpoint().unwrap();
    open.pop().unwrap().commit().unwrap();
    table.put(b"continues", b"1").unwrap();
    for trx in open {
        trx.rollback().unwrap();
    }
    assert_eq!(table.rows().unwrap().count(), 2);
}
