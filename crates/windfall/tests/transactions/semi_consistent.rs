//! Locking reads that return the last committed version of a row that others have locked.

use std::{thread, time::Duration};

use windfall::{
    Batch, Cursor, Database, Error, IndexCursor, Isolation, LockWaitPolicy, OneRow, Seek, SemiConsistentRead,
    Table, TableOptions, Transaction, error::LockError,
};

use super::{await_lock_wait, begin, database, locked_rows, table};

const LEVELS: [Isolation; 2] = [Isolation::ReadUncommitted, Isolation::ReadCommitted];

/// Creates the rows 1 to 6. One transaction changes row 2, deletes 3, moves 5 within the indexes and inserts 7; another
/// one has locked row 4.
fn contended(db: &Database) -> (Table, Transaction, Transaction) {
    let table = table(db);
    for n in 1..=6u8 {
        table.put(&[n], &[10 * n, n]).unwrap();
    }
    let (writer, reader) = (begin(db, Isolation::ReadCommitted), begin(db, Isolation::ReadCommitted));
    let within = writer.table(&table);
    within.put(&[2], &[20, 102]).unwrap();
    within.delete(&[3]).unwrap();
    within.put(&[5], &[15, 5]).unwrap();
    within.insert(&[7], &[70, 7]).unwrap();
    reader.table(&table).get_for_share(&[4]).unwrap();
    (table, writer, reader)
}

/// The rows that the other transactions have not locked are locked, and the others are as they are committed.
const COMMITTED: [(u8, u8, bool); 6] =
    [(1, 1, false), (2, 2, true), (3, 3, true), (4, 4, true), (5, 5, true), (6, 6, false)];

fn rows(cursor: &mut Cursor, up: bool) -> Vec<(u8, u8, bool)> {
    let mut rows = Vec::new();
    while if up { cursor.next() } else { cursor.prev() }.unwrap() {
        let (key, value) = cursor.row().unwrap();
        rows.push((key[0], value[1], cursor.was_semi_consistent()));
    }
    if !up {
        rows.reverse();
    }
    rows
}

fn rows_by_index(cursor: &mut IndexCursor, up: bool) -> Vec<(u8, u8, bool)> {
    let mut rows = Vec::new();
    while if up { cursor.next() } else { cursor.prev() }.unwrap() {
        let row = cursor.row().unwrap();
        assert_eq!(row.index_key, &row.value[..1]);
        rows.push((row.key[0], row.value[1], cursor.was_semi_consistent()));
    }
    if !up {
        rows.reverse();
    }
    rows
}

#[test]
fn rows_that_others_have_locked_are_read_as_committed() {
    for (level, up) in LEVELS.into_iter().flat_map(|level| [(level, true), (level, false)]) {
        let db = database();
        let (table, _writer, _reader) = contended(&db);
        let me = begin(&db, level);
        let mut cursor = me.table(&table).cursor_for_update().unwrap();
        cursor.semi_consistent(true);
        assert_eq!(rows(&mut cursor, up), COMMITTED, "{level:?}");
        assert_eq!(locked_rows(&db, &me), [1, 6]);
        me.commit().unwrap();
        let me = begin(&db, level);
        let mut cursor = me.table(&table).index("first").unwrap().cursor_for_update().unwrap();
        cursor.semi_consistent(true);
        assert_eq!(rows_by_index(&mut cursor, up), COMMITTED, "{level:?}");
        assert_eq!(locked_rows(&db, &me), [1, 6]);
        // Its own changes are not those of others.
        me.table(&table).put(&[6], &[60, 66]).unwrap();
        assert!(cursor.seek(Seek::AtLeast(&[60])).unwrap());
        assert_eq!((cursor.row().unwrap().value, cursor.was_semi_consistent()), (&[60, 66][..], false));
        assert_eq!(db.metrics().lock_waits, 0);
    }
}

#[test]
fn single_rows_that_others_have_locked_are_read_as_committed() {
    use SemiConsistentRead::{Committed, Locked, Missing};
    for level in LEVELS {
        let db = database();
        let (table, _writer, _reader) = contended(&db);
        let (me, mut value) = (begin(&db, level), Vec::new());
        let within = me.table(&table);
        for (n, expected) in
            [(1, Locked), (2, Committed), (3, Committed), (4, Committed), (7, Missing), (8, Missing)]
        {
            assert_eq!(within.get_for_update_semi_consistent(&[n], &mut value).unwrap(), expected, "{n}");
            assert!(expected == Missing || value == [10 * n, n], "{n}: {value:?}");
        }
        assert_eq!((locked_rows(&db, &me), db.metrics().lock_waits), (vec![1], 0));
        let skipping = within.lock_wait_policy(LockWaitPolicy::SkipLocked);
        assert_eq!(skipping.get_for_update_semi_consistent(&[2], &mut value).unwrap(), Missing);
    }
}

#[test]
fn locked_rows_are_waited_for_at_other_levels_and_modes() {
    let is_refused = |done: windfall::Result<bool>| matches!(done, Err(Error::Lock(_)));
    for level in
        [Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Snapshot, Isolation::Serializable]
    {
        let db = database();
        db.set_lock_wait_timeout(Duration::ZERO);
        let table = table(&db);
        table.put(b"1", b"x1").unwrap();
        let (other, me) = (begin(&db, level), begin(&db, level));
        other.table(&table).get_for_update(b"1").unwrap();
        let within = me.table(&table);
        let mut cursor = within.cursor_for_share().unwrap();
        cursor.semi_consistent(true);
        assert!(is_refused(cursor.next()), "{level:?}");
        if level == Isolation::ReadCommitted {
            continue;
        }
        let mut cursor = within.cursor_for_update().unwrap();
        cursor.semi_consistent(true);
        assert!(is_refused(cursor.next()) && !cursor.was_semi_consistent(), "{level:?}");
        let mut cursor = within.index("first").unwrap().cursor_for_update().unwrap();
        cursor.semi_consistent(true);
        assert!(is_refused(cursor.next()) && !cursor.was_semi_consistent(), "{level:?}");
        let read = within.get_for_update_semi_consistent(b"1", &mut Vec::new());
        assert!(is_refused(read.map(|_| true)), "{level:?}");
    }
}

#[test]
fn a_row_that_is_wanted_is_waited_for() {
    for by_index in [false, true] {
        let db = database();
        let (table, writer, reader) = contended(&db);
        reader.commit().unwrap();
        let me = begin(&db, Isolation::ReadCommitted);
        let within = me.table(&table);
        thread::scope(|scope| {
            let call = scope.spawn(|| {
                if by_index {
                    let mut cursor = within.index("first").unwrap().cursor_for_update().unwrap();
                    cursor.semi_consistent(true);
                    assert!(cursor.seek(Seek::AtLeast(&[20])).unwrap() && cursor.was_semi_consistent());
                    assert!(cursor.lock_row().unwrap() && !cursor.was_semi_consistent());
                    assert_eq!(cursor.row().unwrap().value, [20, 102]);
                    // The next row is deleted now, and the one with key 50 has another index key.
                    assert!(cursor.next().unwrap());
                    assert_eq!((cursor.row().unwrap().key, cursor.was_semi_consistent()), (&[4][..], false));
                } else {
                    let mut cursor = within.cursor_for_update().unwrap();
                    cursor.semi_consistent(true);
                    assert!(cursor.seek(Seek::AtLeast(&[3])).unwrap() && cursor.was_semi_consistent());
                    assert!(!cursor.lock_row().unwrap(), "it was deleted");
                    assert_eq!((cursor.row(), cursor.was_semi_consistent()), (None, false));
                    assert!(!cursor.lock_row().unwrap());
                    assert!(cursor.next().unwrap() && cursor.lock_row().unwrap());
                    assert_eq!(cursor.row(), Some((&[4][..], &[40, 4][..])));
                }
            });
            await_lock_wait(&db, &call);
            writer.commit().unwrap();
            call.join().unwrap();
        });
        assert_eq!(locked_rows(&db, &me), if by_index { vec![2, 4] } else { vec![4] });
    }
}

#[test]
fn a_wait_for_a_wanted_row_may_fail() {
    let db = database();
    let (table, _writer, _reader) = contended(&db);
    let me = begin(&db, Isolation::ReadCommitted);
    let nowait = me.table(&table).lock_wait_policy(LockWaitPolicy::NoWait);
    let mut cursor = nowait.cursor_for_update().unwrap();
    cursor.semi_consistent(true);
    assert!(cursor.seek(Seek::AtLeast(&[2])).unwrap() && cursor.was_semi_consistent());
    assert!(!cursor.unlock_row().unwrap());
    assert!(matches!(cursor.lock_row(), Err(Error::Lock(LockError::Busy(_)))));
    assert_eq!((cursor.row(), cursor.was_semi_consistent()), (None, false));
    // A batch ends with a row that is not locked.
    let (mut batch, mut ends) = (Batch::default(), Vec::new());
    while cursor.next_batch(&mut batch).unwrap() > 0 {
        ends.push((batch.len(), cursor.key().unwrap()[0], cursor.was_semi_consistent()));
    }
    assert_eq!(ends, [(2, 2, true), (1, 3, true), (1, 4, true), (1, 5, true), (1, 6, false)]);
}

/// Each thread adds one to the rows of its group, and reads all of them.
#[test]
fn no_increment_is_lost_by_semi_consistent_reads() {
    const ROUNDS: u8 = 30;
    let db = &database();
    let table = &db.create_table("t", TableOptions::default()).unwrap();
    for n in 0..8u8 {
        table.put(&[n], &[n % 2, 0]).unwrap();
    }
    thread::scope(|scope| {
        for group in [0, 0, 1, 1] {
            scope.spawn(move || {
                let mut round = 0;
                while round < ROUNDS {
                    let trx = begin(db, Isolation::ReadCommitted);
                    match add(&trx, table, group).and_then(|()| trx.commit().map(drop)) {
                        Ok(()) => round += 1,
                        Err(error) => {
                            assert!(matches!(error, Error::Lock(LockError::Deadlock(_))), "{error}");
                        }
                    }
                }
            });
        }
    });
    for n in 0..8u8 {
        assert_eq!(table.get(&[n]).unwrap(), Some(vec![n % 2, 2 * ROUNDS]));
    }
}

fn add(trx: &Transaction, table: &Table, group: u8) -> windfall::Result<()> {
    let within = trx.table(table);
    let mut cursor = within.cursor_for_update()?;
    cursor.semi_consistent(true);
    while cursor.next()? {
        if cursor.value().is_some_and(|value| value[0] == group) {
            if cursor.was_semi_consistent() {
                assert!(cursor.lock_row()?);
            }
            let (key, value) = cursor.row().unwrap();
            within.put(key, &[group, value[1] + 1])?;
        } else {
            cursor.unlock_row()?;
        }
    }
    Ok(())
}

/// Compares the read of one row by its index key with a cursor in the range of the key.
#[test]
fn a_semi_consistent_read_by_an_index_key_is_that_of_a_cursor() {
    let db = database();
    let (table, _writer, _reader) = contended(&db);
    table.put(&[8], &[20, 8]).unwrap();
    let mut one = OneRow::default();
    for level in LEVELS {
        let mut committed = 0;
        for key in (0..90).step_by(5) {
            let me = begin(&db, level);
            let index = me.table(&table).index("first").unwrap();
            let mut cursor = index.cursor_for_update().unwrap();
            cursor.semi_consistent(true);
            cursor.set_range([key]..=[key]);
            let is_there = cursor.next().unwrap();
            let expected = match (is_there, cursor.was_semi_consistent()) {
                (false, _) => SemiConsistentRead::Missing,
                (true, true) => SemiConsistentRead::Committed,
                (true, false) => SemiConsistentRead::Locked,
            };
            let by_cursor = locked_rows(&db, &me);
            let me = {
                me.rollback().unwrap();
                begin(&db, level)
            };
            let index = me.table(&table).index("first").unwrap();
            let (read, row) = index.get_one_for_update_semi_consistent(&[key], &mut one).unwrap();
            assert_eq!((read, row), (expected, cursor.row()), "{level:?}, {key}");
            assert_eq!(locked_rows(&db, &me), by_cursor, "{level:?}, {key}");
            committed += u32::from(read == SemiConsistentRead::Committed);
            // Only a lock is released.
            let is_locked = read == SemiConsistentRead::Locked;
            assert_eq!(index.unlock_row(&mut one).unwrap(), is_locked, "{level:?}, {key}");
        }
        assert_eq!(committed, 4, "{level:?}");
    }
    assert_eq!(db.metrics().lock_waits, 0);
    // Other levels wait, and so does the read that locks.
    for (level, semi_consistent) in [
        (Isolation::RepeatableRead, true),
        (Isolation::Serializable, true),
        (Isolation::ReadCommitted, false),
    ] {
        let me = begin(&db, level);
        me.set_lock_wait_timeout(Some(Duration::ZERO));
        let index = me.table(&table).index("first").unwrap();
        let busy = if semi_consistent {
            index.get_one_for_update_semi_consistent(&[20], &mut one).map(drop)
        } else {
            index.get_one_for_update(&[20], &mut one).map(drop)
        };
        assert!(matches!(busy, Err(Error::Lock(LockError::Busy(_)))), "{level:?}: {busy:?}");
    }
}
