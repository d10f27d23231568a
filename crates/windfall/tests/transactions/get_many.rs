//! Reads of many rows in one call, and locks on single rows that are released again.

use std::{thread, time::Duration};

use windfall::{
    Database, Error, IndexOptions, Isolation, LockWaitPolicy, Table, TableOptions, TransactionOptions,
    Values,
    error::{LockError, TransactionError},
};

use super::{begin, database};

fn filled(db: &Database) -> Table {
    let table = db.create_table("t", TableOptions::default().index("first", IndexOptions::on_value(0..1)));
    let table = table.unwrap();
    for n in 0..100u8 {
        // Some values need overflow pages.
        table.insert(&[n], &vec![n; if n % 7 == 0 { 5000 } else { 1 + usize::from(n) }]).unwrap();
    }
    table
}

/// The first keys in their order are read, whatever the order in which they are passed.
#[test]
fn a_read_of_many_rows_ends_at_its_limit() {
    let db = database();
    let table = filled(&db);
    // Rows of 5,000 bytes, short ones, and none.
    let keys: Vec<[u8; 1]> = [200u8, 28, 1, 14, 2, 7, 21, 100].map(|n| [n]).to_vec();
    let length = |n: u8| if n.is_multiple_of(7) { 5000 } else { 1 + usize::from(n) };
    for (limit, expected) in
        [(0, 1), (4, 2), (5, 2), (6, 3), (5_006, 4), (5_100, 4), (20_005, 6), (20_006, 8)]
    {
        let mut values = Values::with_byte_limit(limit);
        for locks in [false, true, false] {
            let trx = begin(&db, Isolation::RepeatableRead);
            let within = trx.table(&table);
            let rows = if locks {
                within.get_many_for_update(&keys, &mut values).unwrap()
            } else {
                table.get_many(&keys, &mut values).unwrap()
            };
            assert_eq!((values.keys_read(), values.len()), (expected, keys.len()), "limit {limit}");
            let mut sorted = keys.clone();
            sorted.sort_unstable();
            let is_read = |key: &[u8; 1]| sorted[..expected].contains(key);
            assert_eq!(rows, sorted[..expected].iter().filter(|key| key[0] < 100).count());
            for (place, key) in keys.iter().enumerate() {
                assert_eq!(values.is_read(place), is_read(key), "limit {limit}, key {key:?}");
                let there = is_read(key) && key[0] < 100;
                assert_eq!(values.get(place).map(<[u8]>::len), there.then(|| length(key[0])));
                // What was not read is not locked.
                let other = begin(&db, Isolation::ReadCommitted);
                other.set_lock_wait_timeout(Some(Duration::ZERO));
                let is_locked = other.table(&table).get_for_update(key).is_err();
                assert_eq!(is_locked, locks && there, "limit {limit}, key {key:?}");
            }
            assert!(!values.is_read(keys.len()));
        }
    }
    let mut all = Values::default();
    assert_eq!(table.get_many(&keys, &mut all).unwrap(), 6);
    assert_eq!(all.keys_read(), 8);
    assert!((0..8).all(|place| all.is_read(place)));
    // Equal keys are read in the order of their places; so many that no sort keeps that by chance.
    let keys: Vec<[u8; 1]> = (0..200).map(|n| [n % 4 + 1]).collect();
    for expected in [1, 2, 30, 49, 51, 90] {
        // A key has 50 places, and its row one byte more than its number.
        let limit = (0..expected).map(|n| n / 50 + 2).sum::<usize>();
        let mut values = Values::with_byte_limit(limit);
        assert_eq!(table.get_many(&keys, &mut values).unwrap(), expected);
        let mut sorted: Vec<usize> = (0..keys.len()).collect();
        sorted.sort_by_key(|place| keys[*place]);
        let read = (0..keys.len()).filter(|place| values.is_read(*place)).collect::<Vec<_>>();
        sorted.truncate(expected);
        sorted.sort_unstable();
        assert_eq!(read, sorted, "limit {limit}");
    }
}

#[test]
fn many_rows_are_read_by_their_keys_at_one_moment() {
    let db = database();
    let table = filled(&db);
    let session = db.session();
    let temporary = session.create_temporary_table("t", TableOptions::default()).unwrap();
    table
        .rows()
        .unwrap()
        .map(Result::unwrap)
        .for_each(|(key, value)| temporary.insert(&key, &value).unwrap());
    let keys: Vec<Vec<u8>> = [9u8, 200, 0, 9, 7, 99, 100, 50]
        .into_iter()
        .map(|key| vec![key])
        .chain([vec![], vec![1, 1]])
        .collect();
    let mut values = Values::default();
    let mut check = |read: &mut dyn FnMut(&mut Values) -> windfall::Result<usize>, changed: &[u8]| {
        assert_eq!(read(&mut values).unwrap(), 6);
        assert_eq!((values.len(), values.is_empty(), values.iter().flatten().count()), (10, false, 6));
        for (place, key) in keys.iter().enumerate() {
            let there = key.len() == 1 && key[0] < 100;
            let length =
                if there && key[0] % 7 == 0 { 5000 } else { key.first().map_or(0, |n| 1 + usize::from(*n)) };
            let expected = there.then(|| if key[0] == 50 { changed.to_vec() } else { vec![key[0]; length] });
            assert_eq!(values.get(place), expected.as_deref(), "{key:?}");
        }
        assert_eq!(values.get(keys.len()), None);
    };
    let before = vec![50; 51];
    check(&mut |values| table.get_many(&keys, values), &before);
    check(&mut |values| temporary.get_many(&keys, values), &before);
    let trx = begin(&db, Isolation::RepeatableRead);
    check(&mut |values| trx.table(&table).get_many(&keys, values), &before);
    table.update(&[50], b"changed").unwrap();
    // The snapshot of the transaction, and locking reads of the newest version.
    check(&mut |values| trx.table(&table).get_many(&keys, values), &before);
    check(&mut |values| trx.table(&table).get_many_for_share(&keys, values), b"changed");
    for level in [Isolation::ReadUncommitted, Isolation::ReadCommitted, Isolation::Serializable] {
        let trx = begin(&db, level);
        check(&mut |values| trx.table(&table).get_many(&keys, values), b"changed");
        check(&mut |values| trx.table(&temporary).get_many(&keys, values), &before);
    }
    trx.table(&table).update(&[50], b"own").unwrap();
    check(&mut |values| trx.table(&table).get_many(&keys, values), b"own");
    check(&mut |values| trx.table(&table).get_many_for_update(&keys, values), b"own");
    check(&mut |values| table.get_many(&keys, values), b"changed");
    trx.rollback().unwrap();

    // All or nothing.
    let (one, other) = (begin(&db, Isolation::ReadCommitted), begin(&db, Isolation::ReadCommitted));
    one.table(&table).get_for_update(&[99]).unwrap();
    other.set_lock_wait_timeout(Some(Duration::ZERO));
    let refused = other.table(&table).get_many_for_share(&keys, &mut values);
    assert!(
        matches!(refused, Err(Error::Lock(LockError::Busy(_) | LockError::TimedOut { .. }))),
        "{refused:?}"
    );
    assert!(values.is_empty() && values.get(0).is_none());
    let reader = db.begin(TransactionOptions::default().read_only());
    let refused = reader.table(&table).get_many_for_update(&keys, &mut values);
    assert!(matches!(refused, Err(Error::Transaction(TransactionError::ReadOnly))), "{refused:?}");
    assert_eq!(table.get_many::<&[u8]>(&[], &mut values).unwrap(), 0);
    drop((one, other, reader));
    db.drop_table("t").unwrap();
    assert!(matches!(table.get_many(&keys, &mut values), Err(Error::TableDropped(_))));
}

/// A writer changes two rows in each transaction: no read may find only one of the two changed.
#[test]
fn no_read_of_many_rows_sees_half_of_a_transaction() {
    let db = database();
    let table = filled(&db);
    let set = |n: u32| {
        let trx = begin(&db, Isolation::ReadCommitted);
        for key in [[3u8], [90]] {
            trx.table(&table).put(&key, &n.to_be_bytes()).unwrap();
        }
        trx.commit().unwrap();
    };
    set(0);
    thread::scope(|scope| {
        let writer = scope.spawn(|| (1..500).for_each(set));
        let mut values = Values::default();
        let mut last = None;
        while !writer.is_finished() {
            let trx = begin(&db, Isolation::ReadCommitted);
            trx.table(&table).get_many(&[[3u8], [90]], &mut values).unwrap();
            assert_eq!(values.get(0), values.get(1));
            table.get_many(&[[90u8], [3]], &mut values).unwrap();
            assert_eq!(values.get(0), values.get(1));
            let now = values.get(0).map(<[u8]>::to_vec);
            assert!(last <= now, "a later read sees an older state");
            last = now;
        }
    });
}

/// Each names the same rows in another order.
#[test]
fn reads_of_many_rows_do_not_deadlock_with_each_other() {
    let db = database();
    let table = filled(&db);
    let keys: Vec<_> = (0..40u8).map(|n| [n]).collect();
    thread::scope(|scope| {
        for first in 0..4 {
            let (db, table, mut keys) = (&db, &table, keys.clone());
            scope.spawn(move || {
                let mut values = Values::default();
                for round in 0..50 {
                    keys.rotate_left(first * 7 + round % 3);
                    keys.reverse();
                    let trx = begin(db, Isolation::RepeatableRead);
                    let found = trx.table(table).get_many_for_update(&keys, &mut values);
                    assert_eq!(found.unwrap(), keys.len(), "they wait for each other, and never in a circle");
                }
            });
        }
    });
    assert_eq!(db.last_deadlock(), None);
}

#[test]
fn a_row_that_a_cursor_does_not_want_is_unlocked() {
    let db = database();
    let table = filled(&db);
    for (level, is_unlocked) in [(Isolation::ReadCommitted, true), (Isolation::RepeatableRead, false)] {
        for by_index in [false, true] {
            let trx = begin(&db, level);
            let within = trx.table(&table);
            let index = within.index("first").unwrap();
            let (mut rows, mut entries) =
                (within.cursor_for_update().unwrap(), index.cursor_for_update().unwrap());
            let mut step = || {
                let found = if by_index { entries.next() } else { rows.next() };
                assert!(found.unwrap());
            };
            let is_free = |key: u8| {
                let other = begin(&db, Isolation::ReadCommitted);
                other.set_lock_wait_timeout(Some(Duration::ZERO));
                other.table(&table).get_for_update(&[key]).is_ok()
            };
            step();
            assert!(!is_free(0));
            let mut unlock = || if by_index { entries.unlock_row() } else { rows.unlock_row() }.unwrap();
            assert_eq!(
                (unlock(), is_free(0)),
                (is_unlocked, is_unlocked),
                "{level:?}, by the index: {by_index}"
            );
            assert!(!unlock(), "a row is unlocked twice");
            trx.rollback().unwrap();
        }
    }

    // What the transaction has locked before stays locked in that mode, and what it has changed stays locked.
    let trx = begin(&db, Isolation::ReadCommitted);
    let within = trx.table(&table);
    within.get_for_share(&[0]).unwrap();
    within.get_for_update(&[1]).unwrap();
    let mut cursor = within.cursor_for_update().unwrap();
    assert!(cursor.next().unwrap() && cursor.unlock_row().unwrap());
    let other = begin(&db, Isolation::ReadCommitted);
    other.set_lock_wait_timeout(Some(Duration::ZERO));
    let is_locked = |key: u8| other.table(&table).get_for_update(&[key]).is_err();
    assert!(other.table(&table).get_for_share(&[0]).is_ok() && is_locked(0));
    assert!(cursor.next().unwrap() && !cursor.unlock_row().unwrap() && is_locked(1));
    assert!(cursor.next().unwrap());
    within.update(&[2], b"own").unwrap();
    assert!(!cursor.unlock_row().unwrap() && is_locked(2));
    assert!(!cursor.unlock_row().unwrap());
    // What was skipped, and has no position, is not unlocked at the next one.
    within.get_for_update(&[98]).unwrap();
    other.table(&table).get_for_update(&[99]).unwrap();
    let skipping = within.lock_wait_policy(LockWaitPolicy::SkipLocked);
    for by_index in [false, true] {
        let index = skipping.index("first").unwrap();
        let (mut rows, mut entries) =
            (skipping.cursor_for_update().unwrap(), index.cursor_for_update().unwrap());
        rows.set_range([99u8]..[100]);
        entries.set_range([99u8]..[100]);
        let found = if by_index { entries.next() } else { rows.next() };
        let unlocked = if by_index { entries.unlock_row() } else { rows.unlock_row() };
        assert_eq!((found.unwrap(), unlocked.unwrap()), (false, false), "by the index: {by_index}");
    }
    assert!(is_locked(98));
    // A cursor that is at no row, or that locks nothing, has nothing to unlock.
    cursor.set_range([200u8]..);
    assert!(!cursor.next().unwrap() && !cursor.unlock_row().unwrap());
    let mut plain = within.cursor().unwrap();
    assert!(plain.next().unwrap() && !plain.unlock_row().unwrap());
}
