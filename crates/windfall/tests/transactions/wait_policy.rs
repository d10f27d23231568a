//! Locking reads that do not wait for the owner of a row's lock.

use std::{collections::BTreeSet, sync::Mutex, thread, time::Duration};

use windfall::{Error, Isolation, LockWaitPolicy, Table, TableOptions, TransactionOptions, error::LockError};

use super::{begin, database, table};

fn is_busy<T: core::fmt::Debug>(done: windfall::Result<T>) {
    assert!(matches!(done, Err(Error::Lock(LockError::Busy(_)))), "{done:?}");
}

fn keys(rows: windfall::Range) -> Vec<u8> {
    rows.map(|row| row.unwrap().0[0]).collect()
}

#[test]
fn locked_rows_are_skipped_or_refused_without_a_wait() {
    for level in [Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Serializable] {
        let db = database();
        let table = table(&db);
        for n in 1..=6u8 {
            table.put(&[n], &[b'x', n]).unwrap();
        }
        let (writer, reader, me) = (begin(&db, level), begin(&db, level), begin(&db, level));
        // One row is changed, one is deleted, one is locked for update, one is locked for share, and one is new.
        writer.table(&table).put(&[2], &[b'y', 12]).unwrap();
        writer.table(&table).delete(&[3]).unwrap();
        reader.table(&table).get_for_update(&[4]).unwrap();
        reader.table(&table).get_for_share(&[5]).unwrap();
        writer.table(&table).insert(&[7], &[b'x', 7]).unwrap();
        let mine = me.table(&table);
        mine.put(&[6], &[b'x', 16]).unwrap();

        let nowait = mine.lock_wait_policy(LockWaitPolicy::NoWait);
        for key in [2, 3, 4, 7] {
            is_busy(nowait.get_for_share(&[key]));
            is_busy(nowait.get_for_update(&[key]));
        }
        is_busy(nowait.get_for_update(&[5]));
        assert_eq!(nowait.get_for_share(&[5]).unwrap(), Some(vec![b'x', 5]));
        let mut rows = nowait.range_for_share::<&[u8]>(..).unwrap();
        assert_eq!(rows.next().unwrap().unwrap().0, [1]);
        is_busy(rows.next().unwrap());

        let skipping = mine.lock_wait_policy(LockWaitPolicy::SkipLocked);
        for key in [2, 3, 4, 7] {
            assert_eq!(skipping.get_for_share(&[key]).unwrap(), None);
        }
        assert_eq!(skipping.get_for_update(&[5]).unwrap(), None);
        assert_eq!(skipping.get_for_update(&[6]).unwrap(), Some(vec![b'x', 16]), "its own");
        assert_eq!(keys(skipping.range_for_share::<&[u8]>(..).unwrap()), [1, 5, 6]);
        assert_eq!(keys(skipping.range_for_update::<&[u8]>(..).unwrap()), [1, 6]);
        let mut both = skipping.range_for_update(&[1][..]..).unwrap();
        assert_eq!(
            (both.next_back().unwrap().unwrap().0, both.next().unwrap().unwrap().0),
            (vec![6], vec![1])
        );
        assert!(both.next_back().is_none() && both.next().is_none());
        let mut cursor = skipping.cursor_for_update().unwrap();
        assert!(cursor.next().unwrap() && cursor.next().unwrap());
        assert_eq!(cursor.key(), Some(&[6][..]));
        let by_index = skipping.index("first").unwrap().range_for_update::<&[u8]>(..).unwrap();
        assert_eq!(by_index.map(|row| row.unwrap().key[0]).collect::<Vec<_>>(), [1, 6]);

        // No call has waited, and no skipped row is locked.
        assert_eq!(db.metrics().lock_waits, 0);
        me.commit().unwrap();
        writer.commit().unwrap();
        reader.commit().unwrap();
        let late = begin(&db, level);
        let within = late.table(&table).lock_wait_policy(LockWaitPolicy::SkipLocked);
        assert_eq!(keys(within.range_for_update::<&[u8]>(..).unwrap()), [1, 2, 4, 5, 6, 7]);
    }
}

/// A lock on the whole table is no reason to skip its rows.
#[test]
fn skipping_locked_rows_does_not_skip_a_locked_table() {
    let db = database();
    let table = table(&db);
    table.put(b"a", b"x1").unwrap();
    let (before, me) = (begin(&db, Isolation::RepeatableRead), {
        let options = TransactionOptions::default().lock_wait(Duration::ZERO);
        db.begin(options)
    });
    before.table(&table).put(b"b", b"x2").unwrap();
    thread::scope(|scope| {
        let drop = scope.spawn(|| db.truncate_table("t"));
        while db.lock_waits().is_empty() {
            thread::yield_now();
        }
        let skipping = me.table(&table).lock_wait_policy(LockWaitPolicy::SkipLocked);
        is_busy(skipping.get_for_update(b"a"));
        is_busy(skipping.range_for_update::<&[u8]>(..).unwrap().next().unwrap());
        before.commit().unwrap();
        drop.join().unwrap().unwrap();
    });
}

#[test]
fn in_a_temporary_table_there_is_nothing_to_pass_over() {
    let db = database();
    let session = db.session();
    let own = session.create_temporary_table("own", TableOptions::default()).unwrap();
    own.put(b"a", b"1").unwrap();
    let trx = begin(&db, Isolation::RepeatableRead);
    let within = trx.table(&own).lock_wait_policy(LockWaitPolicy::SkipLocked);
    assert_eq!(within.get_for_update(b"a").unwrap(), Some(b"1".to_vec()));
    assert_eq!(within.range_for_update::<&[u8]>(..).unwrap().count(), 1);
}

/// Takes rows out of a queue from the front until there are none, and returns their keys.
fn take(db: &windfall::Database, queue: &Table) -> Vec<u8> {
    let mut taken = Vec::new();
    loop {
        let trx = begin(db, Isolation::ReadCommitted);
        let within = trx.table(queue).lock_wait_policy(LockWaitPolicy::SkipLocked);
        let next = within.range_for_update::<&[u8]>(..).unwrap().next();
        let Some(row) = next else { return taken };
        let key = row.unwrap().0;
        thread::yield_now();
        assert!(within.delete(&key).unwrap());
        trx.commit().unwrap();
        taken.push(key[0]);
    }
}

#[test]
fn consumers_of_one_queue_do_not_wait_for_each_other() {
    let db = database();
    let queue = db.create_table("queue", TableOptions::default()).unwrap();
    for n in 0..200u8 {
        queue.put(&[n], b"job").unwrap();
    }
    let all = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| all.lock().unwrap().extend(take(&db, &queue)));
        }
    });
    // A thread that finds the last row locked ends before that row is deleted.
    let all = all.into_inner().unwrap();
    assert_eq!((all.len(), all.iter().collect::<BTreeSet<_>>().len()), (200, 200), "each of them once");
    assert_eq!((queue.rows().unwrap().count(), db.metrics().lock_waits), (0, 0));
}
