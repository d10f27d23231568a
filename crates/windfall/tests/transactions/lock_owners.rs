//! Transactions as lock owners: the tags by which lists name them, their priorities in deadlocks, and whether they hold
//! locks.

use std::{thread, time::Duration};

use windfall::{
    Database, Error, IndexOptions, Isolation, Lock, Result, TableOptions, TransactionOptions,
    error::{Blockers, LockError, Owner, TransactionError},
};

use super::{begin, calls, database};

fn read_committed() -> TransactionOptions {
    TransactionOptions::default().isolation(Isolation::ReadCommitted)
}

/// Waits until a number of transactions wait for locks.
fn await_waits(db: &Database, count: usize) {
    while db.lock_waits().len() < count {
        thread::yield_now();
    }
}

#[test]
fn lists_of_transactions_locks_and_waits_show_tags() {
    let db = database();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let (holder, waiter) = (db.begin(read_committed().tag(7)), db.begin(read_committed()));
    let other = begin(&db, Isolation::ReadCommitted);
    holder.table(&table).put(b"a", b"").unwrap();
    other.table(&table).put(b"b", b"").unwrap();
    let tags = || db.transactions().iter().map(|one| (Some(one.id), one.tag)).collect::<Vec<_>>();
    assert_eq!(tags(), [(holder.id(), 7), (other.id(), 0)]);
    waiter.set_tag(9).unwrap();
    assert_eq!(tags().len(), 2, "it has neither changed nor locked anything");
    waiter.table(&table).put(b"w", b"").unwrap();
    let named = |blockers: &Blockers| (blockers.ids().to_vec(), blockers.tags().to_vec());
    thread::scope(|scope| {
        // The waiter makes the lock of the holder explicit, and enters the holder into the lock table.
        let waits = scope.spawn(|| waiter.table(&table).put(b"a", b""));
        await_waits(&db, 1);
        let of_locks = || {
            let locks = db.locks();
            let tag_of = |id| {
                if id == holder.id() {
                    7
                } else if id == waiter.id() {
                    9
                } else {
                    0
                }
            };
            assert!(locks.iter().all(|held| held.tag == tag_of(Some(held.trx))), "{locks:?}");
            locks.len()
        };
        assert!(of_locks() >= 4);
        assert_eq!(tags(), [(holder.id(), 7), (other.id(), 0), (waiter.id(), 9)]);
        let waiting = &db.lock_waits()[0];
        assert_eq!((Some(waiting.trx), waiting.tag), (waiter.id(), 9));
        assert_eq!(named(&waiting.blockers), (vec![holder.id().unwrap()], vec![7]));
        let busy = waiter.set_tag(10);
        assert!(matches!(busy, Err(Error::Transaction(TransactionError::Busy))), "{busy:?}");
        holder.set_tag(8).unwrap();
        assert_eq!(db.lock_waits()[0].blockers.tags(), [8]);
        assert!(db.locks().iter().any(|held| held.tag == 8) && tags()[0].1 == 8);
        holder.rollback().unwrap();
        waits.join().unwrap().unwrap();
        // A deadlock with the other one, which has done less.
        waiter.table(&table).put(b"c", b"").unwrap();
        let waits = scope.spawn(|| waiter.table(&table).put(b"b", b""));
        await_waits(&db, 1);
        match other.table(&table).put(b"a", b"") {
            Err(Error::Lock(LockError::Deadlock(others))) => {
                assert_eq!(named(&others), (vec![waiter.id().unwrap()], vec![9]));
            }
            done => panic!("{done:?}"),
        }
        let cycle = db.last_deadlock().unwrap().cycle;
        assert_eq!(cycle.iter().map(|member| member.tag).collect::<Vec<_>>(), [0, 9]);
        waits.join().unwrap().unwrap();
    });
    db.set_lock_wait_timeout(Duration::ZERO);
    match table.put(b"a", b"") {
        Err(Error::Lock(LockError::Busy(blockers))) => assert_eq!(blockers.tags(), [9]),
        done => panic!("{done:?}"),
    }
    let over = other.set_tag(1);
    assert!(matches!(over, Err(Error::Transaction(TransactionError::RolledBack(_)))), "{over:?}");
    waiter.prepare(b"xid").unwrap();
    assert!(waiter.set_tag(1).is_err());
    assert_eq!(tags(), [(waiter.id(), 9)], "a prepared transaction keeps its tag");
    waiter.commit().unwrap();
}

#[test]
fn the_transaction_with_the_lowest_priority_is_the_deadlock_victim() {
    const LOWEST: i64 = i64::MIN;
    let cases = [
        (0, 0, false),
        (-1, 0, true),
        (0, 1, true),
        (1, 0, false),
        (LOWEST, i64::MAX, true),
        (i64::MAX, LOWEST, false),
        // The lowest one is that of a statement which waits in turns.
        (LOWEST, LOWEST + 1, false),
    ];
    for (of_heavy, of_light, heavy_is_victim) in cases {
        let db = database();
        let table = db.create_table("t", TableOptions::default()).unwrap();
        let heavy = db.begin(read_committed().deadlock_priority(of_heavy));
        let light = db.begin(read_committed().deadlock_priority(of_light));
        for key in 0..10u8 {
            heavy.table(&table).put(&[key], b"").unwrap();
        }
        light.table(&table).put(&[20], b"").unwrap();
        let is_deadlock = |done: Result<()>| match done {
            Ok(()) => false,
            Err(Error::Lock(LockError::Deadlock(_))) => true,
            other => panic!("{other:?}"),
        };
        thread::scope(|scope| {
            let waits = scope.spawn(|| heavy.table(&table).put(&[20], b""));
            await_waits(&db, 1);
            // It has changed less, and it closes the cycle.
            let closes = light.table(&table).put(&[0], b"");
            let victims = (is_deadlock(waits.join().unwrap()), is_deadlock(closes));
            assert_eq!(victims, (heavy_is_victim, !heavy_is_victim), "{of_heavy} and {of_light}");
        });
        let (victim, survivor) = if heavy_is_victim { (heavy, light) } else { (light, heavy) };
        assert!(victim.commit().is_err());
        survivor.commit().unwrap();
        assert_eq!(table.rows().unwrap().count(), if heavy_is_victim { 2 } else { 11 });
    }
}

#[test]
fn a_transaction_reports_whether_it_holds_locks() {
    let db = database();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    table.put(b"a", b"").unwrap();
    let session = db.session();
    let temporary = session.create_temporary_table("t", TableOptions::default()).unwrap();
    for &level in Isolation::ALL {
        let trx = begin(&db, level);
        assert!(!trx.holds_locks().unwrap());
        trx.savepoint("here").unwrap();
        trx.table(&table).get(b"a").unwrap();
        assert_eq!(trx.holds_locks().unwrap(), level == Isolation::Serializable);
        trx.table(&table).put(b"b", b"").unwrap();
        assert!(trx.holds_locks().unwrap());
        trx.rollback_to("here").unwrap();
        assert!(trx.holds_locks().unwrap(), "the row stays locked");
        trx.rollback().unwrap();
        // Without the row the table is locked.
        for exists in [true, false] {
            let trx = begin(&db, level);
            let key: &[u8] = if exists { b"a" } else { b"none" };
            trx.table(&table).get_for_update(key).unwrap();
            assert!(trx.holds_locks().unwrap());
        }
        let trx = begin(&db, level);
        trx.begin_statement().unwrap();
        trx.table(&temporary).put(b"a", b"").unwrap();
        trx.end_statement(windfall::StatementEnd::Undo).unwrap();
        assert!(trx.holds_locks().unwrap(), "it has changed something");
    }
    let trx = begin(&db, Isolation::ReadCommitted);
    let mut from = calls::From(Some(|| {
        let busy = trx.holds_locks();
        assert!(matches!(busy, Err(Error::Transaction(TransactionError::Busy))), "{busy:?}");
    }));
    trx.table(&table).put_stream(b"c", calls::LONG, &mut from).unwrap();
    trx.prepare(b"xid").unwrap();
    assert!(trx.holds_locks().unwrap());
    trx.rollback().unwrap();
    // The victim of a deadlock holds nothing.
    let (one, other) = (begin(&db, Isolation::ReadCommitted), begin(&db, Isolation::ReadCommitted));
    one.table(&table).put(b"a", b"").unwrap();
    other.table(&table).put(b"b", b"").unwrap();
    other.table(&table).put(b"c", b"").unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| other.table(&table).put(b"a", b""));
        await_waits(&db, 1);
        assert!(one.table(&table).put(b"b", b"").is_err());
        waits.join().unwrap().unwrap();
    });
    assert!(!one.holds_locks().unwrap() && other.holds_locks().unwrap());
}

#[test]
fn a_list_of_locks_names_the_objects() {
    let db = database();
    let indexed = |metadata: usize| {
        let by_first = IndexOptions::on_value(0..1).unique();
        TableOptions::default().index("i", by_first).metadata(vec![1; metadata])
    };
    let tables =
        ["t", "u"].map(|name| db.create_table(name, indexed(if name == "t" { 9 } else { 9_000 })).unwrap());
    let trx = begin(&db, Isolation::RepeatableRead);
    for table in &tables {
        trx.table(table).put(b"row", b"x").unwrap();
        assert_eq!(trx.table(table).index("i").unwrap().range_for_update::<&[u8]>(..).unwrap().count(), 1);
    }
    let locks = db.locks().into_iter().map(|held| match held.lock {
        Lock::Table(space, _) | Lock::Range(space, _) => space,
        Lock::Row(row, _) => row.space,
        other @ Lock::Insert(_) => panic!("{other:?}"),
    });
    let spaces: std::collections::BTreeSet<_> = locks.collect();
    let spaces: Vec<_> = spaces.into_iter().collect();
    let owners = db.owners_of(&spaces);
    let of = |table: &str, index: &str| {
        let owner = |index: &str| Owner::Index { table: table.into(), index: index.into() };
        if index.is_empty() { Owner::Table(table.into()) } else { owner(index) }
    };
    let all = [of("t", ""), of("t", "i"), of("u", ""), of("u", "i")];
    assert!(all.iter().all(|owner| owners.contains(&Some(owner.clone()))), "{owners:?}");
    assert!(owners.iter().all(Option::is_some), "{owners:?}");
    trx.rollback().unwrap();
    let place = |owner: &Owner| owners.iter().position(|found| found.as_ref() == Some(owner)).unwrap();
    let (rows, index) = (spaces[place(&of("t", ""))], spaces[place(&of("t", "i"))]);
    db.rename_table("t", "v").unwrap();
    assert_eq!(db.owner_of(index), Some(of("v", "i")));
    db.drop_index("v", "i").unwrap();
    assert_eq!((db.owner_of(rows), db.owner_of(index)), (Some(of("v", "")), None));
    db.truncate_table("v").unwrap();
    assert_eq!(db.owners_of(&[rows, index, rows]), [None, None, None]);
}

/// Their trees have no page yet.
#[test]
fn the_locks_of_an_empty_table_have_their_owners() {
    let db = database();
    let options = TableOptions::default().index("i", IndexOptions::on_value(0..1));
    let table = db.create_table("t", options).unwrap();
    let trx = begin(&db, Isolation::Serializable);
    assert_eq!(trx.table(&table).get(b"missing").unwrap(), None);
    assert_eq!(trx.table(&table).index("i").unwrap().range_for_update::<&[u8]>(..).unwrap().count(), 0);
    let owner = |held: &windfall::HeldLock| match &held.lock {
        Lock::Table(space, _) | Lock::Range(space, _) => db.owner_of(*space),
        Lock::Row(row, _) => db.owner_of(row.space),
        other @ Lock::Insert(_) => panic!("{other:?}"),
    };
    let owners: Vec<_> = db.locks().iter().map(owner).collect();
    assert!(owners.len() > 2 && owners.iter().all(Option::is_some), "{owners:?}");
}
