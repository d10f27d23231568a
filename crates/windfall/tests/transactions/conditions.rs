//! Conditions on index entries that are evaluated before rows are read or locked.

use std::{thread, time::Duration};

use windfall::{
    Access, Condition, Database, IndexBatch, IndexOptions, Isolation, Seek, SuppliedChange, SuppliedEntry,
    Table, TableOptions, Transaction,
};
use windfall_base::sync::work::{Work, so_far};

use super::{await_lock_wait, begin, database, locked_rows};

/// Creates a table with an index of supplied entries: row `n` has key `n` and payload 0.
fn payloads(db: &Database) -> Table {
    let table = db.create_table("t", TableOptions::default().index("i", IndexOptions::supplied(1))).unwrap();
    for n in 0..20u8 {
        let key = [n];
        let new = Some(SuppliedEntry::new(&key).payload(&[0]));
        table.insert_with(&key, &key, &[SuppliedChange::new("i", None, new)]).unwrap();
    }
    table
}

fn set_payload(table: &Table<impl Access>, n: u8, payload: u8) {
    let (key, payload) = ([n], [payload]);
    let old = Some(SuppliedEntry::new(&key));
    let new = Some(SuppliedEntry::new(&key).payload(&payload));
    table.update_with(&key, &key, &[SuppliedChange::new("i", old, new)]).unwrap();
}

/// Returns the keys of the rows with a payload of zero, upwards and downwards, of rows and of entries alone.
fn zeros(table: &Table<impl Access>) -> [Vec<u8>; 4] {
    let index = table.index("i").unwrap();
    let is_zero = |entry: windfall::IndexEntry<'_>| {
        if entry.payload == [0] { Condition::Holds } else { Condition::Fails }
    };
    let mut all = Vec::new();
    for mut cursor in [index.cursor().unwrap(), index.key_cursor().unwrap()] {
        for up in [true, false] {
            let mut found = Vec::new();
            let step = |cursor: &mut windfall::IndexCursor| {
                if up { cursor.next_where(is_zero) } else { cursor.prev_where(is_zero) }
            };
            let to = if up { Seek::First } else { Seek::Last };
            let mut there = cursor.seek_where(to, is_zero).unwrap();
            while there {
                let row = cursor.row().unwrap();
                assert_eq!((row.payload, row.index_key), (&[0][..], row.key));
                found.push(row.key[0]);
                there = step(&mut cursor).unwrap();
            }
            if !up {
                found.reverse();
            }
            all.push(found);
        }
    }
    all.try_into().unwrap()
}

#[test]
fn a_condition_is_evaluated_on_the_version_that_is_returned() {
    let db = database();
    let table = payloads(&db);
    let trx = begin(&db, Isolation::RepeatableRead);
    let all: Vec<u8> = (0..20).collect();
    assert_eq!(zeros(&trx.table(&table)), [(); 4].map(|()| all.clone()));
    let other = begin(&db, Isolation::RepeatableRead);
    for n in 0..10 {
        set_payload(&table, n, 1);
        set_payload(&other.table(&table), n + 10, 1);
    }
    set_payload(&other.table(&table), 15, 0);
    // The snapshot has the payloads of before, and new readers those that are committed.
    assert_eq!(zeros(&trx.table(&table)), [(); 4].map(|()| all.clone()));
    assert_eq!(zeros(&table), [(); 4].map(|()| all[10..].to_vec()));
    assert_eq!(zeros(&other.table(&table)), [(); 4].map(|()| vec![15]));
    other.commit().unwrap();
    assert_eq!(zeros(&trx.table(&table)), [(); 4].map(|()| all.clone()));
    assert_eq!(zeros(&table), [(); 4].map(|()| vec![15]));
}

#[test]
fn rows_that_a_condition_excludes_are_not_read() {
    let db = database();
    let options = TableOptions::default().index("i", IndexOptions::on_value(0..2));
    let table = db.create_table("t", options).unwrap();
    for n in 0..1000u16 {
        table.put(&n.to_be_bytes(), &[&n.to_be_bytes()[..], &[7; 500]].concat()).unwrap();
    }
    let mut cursor = table.index("i").unwrap().cursor().unwrap();
    let before = so_far().of(Work::Frame);
    let found = cursor.seek_where(Seek::First, |entry| match entry.index_key {
        [3, 0x80] => Condition::Holds,
        _ => Condition::Fails,
    });
    assert!(found.unwrap());
    assert_eq!(cursor.row().map(|row| (row.key, row.value.len())), Some((&[3, 0x80][..], 502)));
    let frames = so_far().of(Work::Frame) - before;
    assert!(frames < 60, "{frames} frames to pass over 896 rows");
    // The move ends behind the range, and the next one goes on from there.
    let mut evaluated = 0;
    let ends = cursor.next_where(|entry| {
        evaluated += 1;
        if entry.index_key[1] < 0x82 { Condition::Fails } else { Condition::Ends }
    });
    assert_eq!((ends.unwrap(), evaluated, cursor.row()), (false, 2, None));
    assert!(cursor.next().unwrap());
    assert_eq!(cursor.row().map(|row| row.key), Some(&[3, 0x83][..]));
}

/// The entries of the next rows were read ahead when the transaction changes them.
#[test]
fn a_condition_is_evaluated_on_own_changes() {
    let is = |payload: &'static [u8]| {
        move |entry: windfall::IndexEntry<'_>| {
            if entry.payload == payload { Condition::Holds } else { Condition::Fails }
        }
    };
    for level in [Isolation::ReadUncommitted, Isolation::ReadCommitted, Isolation::RepeatableRead] {
        let db = database();
        let table = payloads(&db);
        let trx = begin(&db, level);
        let within = trx.table(&table);
        let index = within.index("i").unwrap();
        for mut cursor in [index.cursor().unwrap(), index.cursor_for_update().unwrap()] {
            assert!(cursor.seek_where(Seek::First, is(&[0])).unwrap());
            set_payload(&within, 1, 1);
            assert!(cursor.next_where(is(&[0])).unwrap());
            let row = cursor.row().unwrap();
            assert_eq!((row.key, row.payload), (&[2][..], &[0][..]), "{level:?}");
            // A change that is rolled back leaves the payload of before.
            trx.savepoint("s").unwrap();
            set_payload(&within, 4, 2);
            assert!(cursor.seek_where(Seek::AtLeast(&[3]), is(&[0])).unwrap());
            trx.rollback_to("s").unwrap();
            assert!(cursor.next_where(is(&[0])).unwrap());
            assert_eq!(cursor.row().map(|row| row.key), Some(&[4][..]), "{level:?}");
            set_payload(&within, 1, 0);
        }
    }
}

/// A payload that another transaction has removed and not committed is not taken for an empty one, and at levels that
/// lock gaps, a second read finds the payloads of the first one.
#[test]
fn a_payload_that_is_missing_is_a_payload_like_others() {
    let remove = |table: &Table<windfall::InTransaction<'_>>| {
        let (old, new) = (Some(SuppliedEntry::new(&[1])), Some(SuppliedEntry::new(&[1])));
        table.update_with(&[1], &[1], &[SuppliedChange::new("i", old, new)]).unwrap();
    };
    let zeros = |entry: windfall::IndexEntry<'_>| {
        if entry.payload == [0] { Condition::Holds } else { Condition::Fails }
    };
    let db = database();
    let table = payloads(&db);
    let (writer, trx) = (begin(&db, Isolation::ReadCommitted), begin(&db, Isolation::ReadCommitted));
    remove(&writer.table(&table));
    trx.set_lock_wait_timeout(Some(Duration::ZERO));
    let index = trx.table(&table).index("i").unwrap();
    let mut cursor = index.cursor_for_update().unwrap();
    cursor.seek_where(Seek::AtLeast(&[1]), zeros).unwrap_err();
    writer.rollback().unwrap();
    assert!(cursor.seek_where(Seek::AtLeast(&[1]), zeros).unwrap());
    assert_eq!(cursor.row().map(|row| row.key), Some(&[1][..]));
    trx.rollback().unwrap();

    let writer = begin(&db, Isolation::ReadCommitted);
    remove(&writer.table(&table));
    writer.commit().unwrap();
    let trx = begin(&db, Isolation::RepeatableRead);
    let index = trx.table(&table).index("i").unwrap();
    let mut cursor = index.cursor_for_update().unwrap();
    assert!(cursor.seek_where(Seek::AtLeast(&[1]), zeros).unwrap());
    assert_eq!(cursor.row().map(|row| row.key), Some(&[2][..]));
    assert!(!is_free(&db, &table, 1), "its payload may change, and a second read would find it");
}

fn is_free(db: &Database, table: &Table, key: u8) -> bool {
    let other = begin(db, Isolation::ReadCommitted);
    other.set_lock_wait_timeout(Some(Duration::ZERO));
    other.table(table).get_for_update(&[key]).is_ok()
}

/// Moves a locking cursor to the first row with an even key from 1 on, or with a payload of one.
fn lock_even(trx: &Transaction, table: &Table) -> Option<u8> {
    let index = trx.table(table).index("i").unwrap();
    let mut cursor = index.cursor_for_update().unwrap();
    cursor.set_range([1u8]..);
    let found = cursor.next_where(|entry| {
        let holds = entry.index_key[0].is_multiple_of(2) || entry.payload == [1];
        if holds { Condition::Holds } else { Condition::Fails }
    });
    found.unwrap().then(|| cursor.row().unwrap().key[0])
}

#[test]
fn rows_that_a_condition_excludes_are_not_locked() {
    let db = database();
    let table = payloads(&db);
    let plain =
        db.create_table("plain", TableOptions::default().index("i", IndexOptions::on_value(0..1))).unwrap();
    (0..20u8).for_each(|n| plain.insert(&[n], &[n]).unwrap());
    let without = IndexOptions::supplied(1).without_payload();
    let bare = db.create_table("bare", TableOptions::default().index("i", without)).unwrap();
    for n in 0..20u8 {
        let key = [n];
        let new = Some(SuppliedEntry::new(&key));
        bare.insert_with(&key, &key, &[SuppliedChange::new("i", None, new)]).unwrap();
    }
    for (table, level, is_excluded_free) in [
        (&plain, Isolation::ReadCommitted, true),
        (&plain, Isolation::RepeatableRead, true),
        (&bare, Isolation::ReadCommitted, true),
        (&bare, Isolation::RepeatableRead, true),
        (&bare, Isolation::Serializable, true),
        (&table, Isolation::ReadCommitted, true),
        // The payload may change as long as the row is not locked, so it is locked first.
        (&table, Isolation::RepeatableRead, false),
    ] {
        let trx = begin(&db, level);
        assert_eq!(lock_even(&trx, table), Some(2));
        assert_eq!([1, 2, 3].map(|n| is_free(&db, table, n)), [is_excluded_free, false, true], "{level:?}");
    }
    // Nor are they in a batch.
    let trx = begin(&db, Isolation::RepeatableRead);
    let mut cursor = trx.table(&bare).index("i").unwrap().cursor_for_update().unwrap();
    cursor.set_range([1u8]..[9]);
    cursor.lock_range().unwrap();
    let mut batch = IndexBatch::default();
    let even = |entry: windfall::IndexEntry<'_>| {
        if entry.key[0].is_multiple_of(2) { Condition::Holds } else { Condition::Fails }
    };
    assert_eq!(cursor.next_batch_where(&mut batch, 64, even).unwrap(), 4);
    assert_eq!(locked_rows(&db, &trx), [2, 4, 6, 8]);
}

/// The payload of row 1 is being changed by another transaction: only when that has ended is it known whether the
/// condition holds.
#[test]
fn a_condition_on_an_unfinished_change_is_evaluated_after_the_wait() {
    for (payload, found, is_free_then) in [(1, 1, false), (0, 2, true)] {
        let db = database();
        let table = payloads(&db);
        set_payload(&table, 1, 1 - payload);
        let writer = begin(&db, Isolation::ReadCommitted);
        set_payload(&writer.table(&table), 1, payload);
        thread::scope(|scope| {
            let trx = begin(&db, Isolation::ReadCommitted);
            let call = scope.spawn(|| (lock_even(&trx, &table), trx));
            await_lock_wait(&db, &call);
            writer.commit().unwrap();
            let (locked, trx) = call.join().unwrap();
            assert_eq!((locked, is_free(&db, &table, 1)), (Some(found), is_free_then));
            drop(trx);
        });
    }
}
