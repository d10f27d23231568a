//! Cursors that lock their whole range at once.

use std::{
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
    time::Duration,
};

use windfall::{
    Batch, Condition, Database, Error, IndexBatch, IndexOptions, Isolation, Seek, Table, TableOptions,
    Transaction, error::LockError,
};
use windfall_base::sync::work::{Work, so_far};

use super::{await_lock_wait, begin, database};

/// Creates a table with the rows "a", "b", "d" and "f", with an index of the same keys.
fn letters(db: &Database) -> Table {
    let table =
        db.create_table("t", TableOptions::default().index("i", IndexOptions::on_value(0..1))).unwrap();
    for key in ["a", "b", "d", "f"] {
        table.insert(key.as_bytes(), key.as_bytes()).unwrap();
    }
    table
}

/// Returns the keys that others may insert or change.
fn free(db: &Database, table: &Table) -> String {
    let other = begin(db, Isolation::RepeatableRead);
    other.set_lock_wait_timeout(Some(Duration::ZERO));
    let within = other.table(table);
    let is_free = |key: &&str| within.put(key.as_bytes(), key.as_bytes()).is_ok();
    let free = ["a", "b", "c", "d", "e", "f", "g"].into_iter().filter(is_free).collect();
    other.rollback().unwrap();
    free
}

/// Rows "b" and "d" are in the range, "a" and "f" are not.
#[test]
fn a_range_is_locked_at_once_on_request() {
    let db = database();
    let table = letters(&db);
    for (up, steps) in [(true, ["adfg", "afg", "afg"]), (false, ["abfg", "afg", "afg"])] {
        for by_index in [false, true] {
            let trx = begin(&db, Isolation::RepeatableRead);
            let within = trx.table(&table);
            let index = within.index("i").unwrap();
            let (mut rows, mut entries) =
                (within.cursor_for_update().unwrap(), index.cursor_for_update().unwrap());
            if by_index {
                entries.set_range("b".."f");
                entries.lock_range().unwrap();
            } else {
                rows.set_range("b".."f");
                rows.lock_range().unwrap();
            }
            // Nothing is inserted, and no row is locked.
            assert_eq!(free(&db, &table), "abdfg", "{by_index}");
            for (n, free_then) in steps.into_iter().enumerate() {
                let found = match (by_index, up) {
                    (false, true) => rows.next(),
                    (false, false) => rows.prev(),
                    (true, true) => entries.next(),
                    (true, false) => entries.prev(),
                };
                let found = (found.unwrap(), free(&db, &table));
                assert_eq!(found, (n < 2, free_then.into()), "{by_index}, upwards {up}, step {n}");
            }
            // Another range is not locked, until the cursor moves.
            rows.set_range("g"..);
            entries.set_range("g"..);
            assert_eq!(free(&db, &table), "afg");
            assert!(!if by_index { entries.next() } else { rows.next() }.unwrap());
            assert_eq!(free(&db, &table), "af", "{by_index}");
        }
    }
}

/// A cursor that has moved is at no row afterwards, and begins again.
#[test]
fn a_range_that_is_locked_later_is_read_again() {
    let db = database();
    let table = letters(&db);
    let trx = begin(&db, Isolation::RepeatableRead);
    let mut cursor = trx.table(&table).cursor_for_share().unwrap();
    assert!(cursor.seek(Seek::First).unwrap());
    table.insert(b"c", b"c").unwrap();
    cursor.lock_range().unwrap();
    assert_eq!(cursor.row(), None);
    let mut keys = String::new();
    while cursor.next().unwrap() {
        keys.push(cursor.key().unwrap()[0].into());
    }
    assert_eq!(keys, "abcdf");
    assert_eq!(free(&db, &table), "");
}

#[test]
fn a_range_is_locked_by_readers_that_lock_gaps_alone() {
    let db = database();
    let table = letters(&db);
    for (level, locking, free_then) in [
        (Isolation::ReadCommitted, true, "abcdefg"),
        (Isolation::RepeatableRead, false, "abcdefg"),
        (Isolation::RepeatableRead, true, "abdf"),
        (Isolation::Snapshot, true, "abdf"),
        (Isolation::Serializable, false, "abdf"),
    ] {
        let trx = begin(&db, level);
        let within = trx.table(&table);
        let mut cursor = if locking { within.cursor_for_update() } else { within.cursor() }.unwrap();
        cursor.lock_range().unwrap();
        assert_eq!(free(&db, &table), free_then, "{level:?}, {locking}");
        assert!(cursor.next().unwrap());
    }
    let mut outside = table.index("i").unwrap().cursor().unwrap();
    outside.lock_range().unwrap();
    assert!(outside.next().unwrap());
}

/// The lock on a whole table is all that a range is waited for.
#[test]
fn the_lock_on_a_range_waits_for_a_lock_on_the_table() {
    let db = database();
    let table = letters(&db);
    let holder = begin(&db, Isolation::RepeatableRead);
    holder.table(&table).get_for_update(b"b").unwrap();
    let trx = begin(&db, Isolation::RepeatableRead);
    trx.set_lock_wait_timeout(Some(Duration::ZERO));
    trx.table(&table).cursor_for_update().unwrap().lock_range().unwrap();
    trx.commit().unwrap();

    holder.table(&table).lock_exclusive().unwrap();
    let trx = begin(&db, Isolation::RepeatableRead);
    trx.set_lock_wait_timeout(Some(Duration::ZERO));
    let mut cursor = trx.table(&table).cursor_for_update().unwrap();
    let busy = cursor.lock_range().unwrap_err();
    assert!(matches!(busy, Error::Lock(LockError::Busy(_))), "{busy}");
    trx.set_lock_wait_timeout(None);
    thread::scope(|scope| {
        let handle = trx.interrupt_handle();
        let call = scope.spawn(|| {
            let locked = cursor.lock_range();
            (locked, cursor)
        });
        await_lock_wait(&db, &call);
        handle.interrupt();
        let (interrupted, mut cursor) = call.join().unwrap();
        assert!(matches!(interrupted, Err(Error::Lock(LockError::Interrupted))), "{interrupted:?}");
        handle.clear();
        let call = scope.spawn(move || cursor.lock_range().and_then(|()| cursor.next()));
        await_lock_wait(&db, &call);
        holder.commit().unwrap();
        assert!(call.join().unwrap().unwrap());
    });
}

/// Returns the keys of all rows, which are locked in one of the ways of reading them: by batches and by steps of ranges
/// that are locked at once, or row by row.
fn scan(trx: &Transaction, table: &Table, way: usize) -> windfall::Result<Vec<Vec<u8>>> {
    let (within, mut keys) = (trx.table(table), Vec::new());
    if way == 0 {
        let (mut cursor, mut batch) = (within.cursor_for_share()?, Batch::default());
        cursor.lock_range()?;
        while cursor.next_batch(&mut batch)? > 0 {
            keys.extend(batch.iter().map(|(key, _)| key.to_vec()));
        }
        return Ok(keys);
    }
    let index = within.index("i")?;
    if way == 3 {
        let mut cursor = index.key_cursor_for_share()?;
        while cursor.next()? {
            keys.push(cursor.row().expect("a step has found a row").key.to_vec());
        }
        return Ok(keys);
    }
    let mut cursor = if way == 1 { index.key_cursor_for_share() } else { index.cursor_for_share() }?;
    cursor.lock_range()?;
    if way == 1 {
        let mut batch = IndexBatch::default();
        while cursor.next_batch_where(&mut batch, 7, |_| Condition::Holds)? > 0 {
            keys.extend(batch.iter().map(|row| row.key.to_vec()));
        }
    } else {
        while cursor.prev()? {
            keys.insert(0, cursor.row().expect("a step has found a row").key.to_vec());
        }
    }
    Ok(keys)
}

/// Another thread inserts rows all the time, before and between the others.
#[test]
fn no_row_appears_between_two_scans_that_lock() {
    const ROUNDS: usize = 300;
    let db = database();
    let table =
        db.create_table("t", TableOptions::default().index("i", IndexOptions::on_value(0..4))).unwrap();
    let has_ended = AtomicBool::new(false);
    let phantom = thread::scope(|scope| {
        scope.spawn(|| {
            let mixed = (0..u32::MAX).map(|n| n.wrapping_mul(2_654_435_761) % 200);
            for n in mixed.take_while(|_| !has_ended.load(SeqCst)) {
                let key = n.to_be_bytes();
                if !table.delete(&key).unwrap() {
                    table.insert(&key, &key).unwrap();
                }
            }
        });
        let phantom = (0..ROUNDS).find_map(|round| {
            let trx = begin(&db, Isolation::RepeatableRead);
            let found =
                scan(&trx, &table, round % 4).and_then(|one| Ok((one, scan(&trx, &table, round % 3)?)));
            let is_same = found.as_ref().is_ok_and(|(one, other)| one == other);
            (!is_same).then_some((round, found))
        });
        has_ended.store(true, SeqCst);
        phantom
    });
    assert!(phantom.is_none(), "{phantom:?}");
}

/// The entries of a range that is locked at once are read ahead.
#[test]
fn a_range_that_is_locked_at_once_costs_less() {
    let db = database();
    let table =
        db.create_table("t", TableOptions::default().index("i", IndexOptions::on_value(0..2))).unwrap();
    for n in 0..1000u16 {
        table.put(&n.to_be_bytes(), &[&n.to_be_bytes()[..], &[7; 100]].concat()).unwrap();
    }
    let frames = |is_locked: bool| {
        let trx = begin(&db, Isolation::RepeatableRead);
        let index = trx.table(&table).index("i").unwrap();
        let mut cursor = index.cursor_for_update().unwrap();
        if is_locked {
            cursor.lock_range().unwrap();
        }
        let before = so_far().of(Work::Frame);
        let mut rows = 0;
        while cursor.next_where(|_| Condition::Holds).unwrap() {
            rows += 1;
        }
        assert_eq!(rows, 1000);
        so_far().of(Work::Frame) - before
    };
    let [row_by_row, at_once] = [false, true].map(frames);
    assert!(at_once * 4 < row_by_row * 3, "{row_by_row} frames, and {at_once} of a locked range");
}

/// The changes of the rows that a cursor has found do not make it read again.
#[test]
fn a_locked_range_is_read_ahead_while_its_rows_change() {
    let db = database();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    (0..1000u16).for_each(|n| table.put(&n.to_be_bytes(), &[7; 100]).unwrap());
    for level in [Isolation::ReadCommitted, Isolation::RepeatableRead] {
        let trx = begin(&db, level);
        let within = trx.table(&table);
        let mut cursor = within.cursor_for_update().unwrap();
        cursor.lock_range().unwrap();
        let mut frames = |changes: &dyn Fn(&[u8], &windfall::TxTable<'_>)| {
            let mut frames = 0;
            let mut there = cursor.seek(Seek::First).unwrap();
            while there {
                changes(cursor.key().unwrap(), &within);
                let before = so_far().of(Work::Frame);
                there = cursor.next().unwrap();
                frames += so_far().of(Work::Frame) - before;
            }
            frames
        };
        let alone = frames(&|_, _| ());
        let updating = frames(&|key, table| table.update(key, &[8; 100]).unwrap());
        let inserting = frames(&|key, table| {
            if key.len() == 2 {
                table.put(&[key, &[0]].concat(), b"new").unwrap();
            }
        });
        assert!(updating <= alone + alone / 10, "{level:?}: {alone} frames, {updating} while rows change");
        assert!(inserting > updating, "{level:?}: {inserting} frames, {updating}");
    }
}
