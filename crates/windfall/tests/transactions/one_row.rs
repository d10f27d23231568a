//! Reads of one row by its index key, without a cursor.

use std::{
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
    time::Duration,
};

use rand::{Rng, SeedableRng, rngs::SmallRng};
use windfall::{
    Access, Database, Error, Index, IndexOptions, Isolation, Lock, LockWaitPolicy, OneRow, RowMode, Seek,
    SuppliedChange, SuppliedEntry, Table, TableOptions, Transaction, error::LockError,
};
use windfall_base::sync::work::{Work, so_far};

use super::{LEVELS, await_lock_wait, begin, database, table};

/// Asserts that each key of the index leads to the first row of its range, and so does its entry alone.
fn assert_first(index: &Index<impl Access>, one: &mut OneRow, what: &str) {
    for key in 0..12u8 {
        let row = index.get(&[key]).unwrap().next().map(Result::unwrap);
        let found = index.get_one(&[key], one).unwrap().map(windfall::IndexItem::of);
        assert_eq!(found, row, "{key}: {what}");
        let alone = index.keys([key]..=[key]).unwrap().next().map(Result::unwrap);
        let found = index.get_one_key(&[key], one).unwrap();
        assert!(found.is_none_or(|found| found.value.is_empty()));
        assert_eq!(found.map(windfall::IndexItem::of), alone, "{key}: {what}, alone");
    }
}

/// Writes a row with random entries: in a unique index of values, in another one, and in one of supplied entries.
fn change(table: &Table<impl Access>, random: &mut SmallRng) {
    let (n, key, end) = (random.random_range(0..20), random.random_range(0..12), random.random_range(0..12));
    let value = [vec![key, end], vec![end; [1, 100, 6_000][random.random_range(0..3)]]].concat();
    let old = table.get(&[n]).unwrap();
    let old_key = old.as_ref().map(|old| [old[1]]);
    let old = old_key.as_ref().map(|key| SuppliedEntry::new(key));
    let new_key = [end];
    let new = Some(SuppliedEntry::new(&new_key).payload(&value[..1]));
    let done = match (random.random_range(0..4), old) {
        (0, _) => table.delete_with(&[n], &[SuppliedChange::new("supplied", old, None)]).map(drop),
        (_, None) => table.insert_with(&[n], &value, &[SuppliedChange::new("supplied", old, new)]),
        (_, Some(_)) => table.update_with(&[n], &value, &[SuppliedChange::new("supplied", old, new)]),
    };
    assert!(matches!(done, Ok(()) | Err(Error::Schema(_))), "{done:?}");
}

fn indexed(db: &Database, name: &str) -> (Table, TableOptions) {
    let options = TableOptions::default()
        .index("unique", IndexOptions::on_value(0..1).unique())
        .index("other", IndexOptions::on_value(1..2))
        .index("supplied", IndexOptions::supplied(1));
    (db.create_table(name, options.clone()).unwrap(), options)
}

#[test]
fn one_row_is_the_first_of_its_range() {
    let (db, mut random, mut one) = (database(), SmallRng::seed_from_u64(7), OneRow::default());
    let (table, options) = indexed(&db, "t");
    let session = db.session();
    let temporary = session.create_temporary_table("temporary", options).unwrap();
    for round in 0..12 {
        for level in LEVELS {
            (0..10).for_each(|_| change(&table, &mut random));
            let before = begin(&db, level);
            before.table(&table).get(b"x").unwrap();
            (0..5).for_each(|_| change(&table, &mut random));
            // One transaction has changed rows and not ended, and the other reads; at the last level it would wait.
            let writer = begin(&db, Isolation::ReadCommitted);
            let is_alone = level == Isolation::Serializable;
            (0..3).filter(|_| !is_alone).for_each(|_| change(&writer.table(&table), &mut random));
            for name in ["unique", "other", "supplied"] {
                let what = format!("round {round}, {level:?}, {name}");
                assert_first(&table.index(name).unwrap(), &mut one, &what);
                assert_first(&before.table(&table).index(name).unwrap(), &mut one, &what);
                assert_first(&writer.table(&table).index(name).unwrap(), &mut one, &what);
                let session = temporary.index(name).unwrap();
                assert_first(&session, &mut one, &format!("{what}, temporary"));
            }
            change(&temporary, &mut random);
            if round % 2 == 0 { writer.rollback().unwrap() } else { writer.commit().map(drop).unwrap() }
        }
    }
}

/// The indexes of a row may have entries of one key that no other one may have, and others that repeat.
#[test]
fn of_rows_with_a_key_that_may_repeat_the_first_is_read() {
    let (db, mut one) = (database(), OneRow::default());
    let options = TableOptions::default().index("i", IndexOptions::supplied(1).unique());
    let table = db.create_table("t", options).unwrap();
    for n in [3u8, 1, 2] {
        let new = Some(SuppliedEntry::new(&[0]).may_repeat());
        table.insert_with(&[n], b"null", &[SuppliedChange::new("i", None, new)]).unwrap();
    }
    let trx = begin(&db, Isolation::RepeatableRead);
    let index = trx.table(&table).index("i").unwrap();
    assert_eq!(index.get_one_for_update(&[0], &mut one).unwrap().unwrap().key, [1]);
    let rows = locked(&db, &trx).into_iter().filter(|lock| matches!(lock, Lock::Row(..)));
    assert_eq!(rows.count(), 1);
}

/// Returns the locks of a transaction.
fn locked(db: &Database, trx: &Transaction) -> Vec<Lock> {
    let of = db.locks().into_iter().filter(|lock| Some(lock.trx) == trx.id());
    of.map(|held| held.lock).collect()
}

/// Ends the readers, also if the writer has failed.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// The moves keep the number of rows with the key at one at each moment, and purge removes the entries that they leave.
#[test]
fn one_row_is_found_while_its_key_moves_between_rows() {
    let db = database();
    let table = table(&db);
    table.put(b"a", b"xk").unwrap();
    table.put(b"b", b"x-").unwrap();
    let is_done = &AtomicBool::new(false);
    let (db, table) = (&db, &table);
    thread::scope(|scope| {
        let reads = |level: Option<Isolation>, mode: Option<RowMode>| {
            let mut one = OneRow::default();
            let mut reads = 0;
            while !is_done.load(SeqCst) || reads == 0 {
                reads += 1;
                let found = match level {
                    None => table.index("second").unwrap().get_one(b"k", &mut one).map(|row| row.is_some()),
                    Some(level) => {
                        let trx = begin(db, level);
                        let index = trx.table(table).index("second").unwrap();
                        let row = match mode {
                            None => index.get_one(b"k", &mut one),
                            Some(RowMode::Shared) => index.get_one_for_share(b"k", &mut one),
                            Some(RowMode::Exclusive) => index.get_one_for_update(b"k", &mut one),
                        };
                        row.map(|row| row.is_some_and(|row| row.value == b"xk"))
                    }
                };
                match found {
                    Ok(found) => assert!(found, "{level:?}, {mode:?}"),
                    Err(error) => {
                        assert!(matches!(error, Error::Lock(LockError::Deadlock(_))), "{error}");
                    }
                }
            }
        };
        scope.spawn(move || reads(None, None));
        scope.spawn(move || reads(Some(Isolation::RepeatableRead), None));
        scope.spawn(move || reads(Some(Isolation::ReadCommitted), Some(RowMode::Shared)));
        scope.spawn(move || reads(Some(Isolation::RepeatableRead), Some(RowMode::Exclusive)));
        let mut at = [b"a", b"b"];
        let mut moves = 0;
        let _done = Done(is_done);
        while moves < 200 {
            let trx = begin(db, Isolation::ReadCommitted);
            let within = trx.table(table);
            let moved = within.delete(at[0]).and_then(|_| {
                within.put(at[1], b"xk")?;
                within.insert(at[0], b"x-")
            });
            match moved.and_then(|()| trx.commit().map(drop)) {
                Ok(()) => {
                    at.swap(0, 1);
                    moves += 1;
                }
                Err(error) => assert!(matches!(error, Error::Lock(LockError::Deadlock(_))), "{error}"),
            }
        }
    });
}

#[test]
fn a_row_found_by_its_unique_key_is_locked_and_no_gap() {
    let (db, mut one) = (database(), OneRow::default());
    let table = table(&db);
    for n in 1..=9u8 {
        table.put(&[n], &[b'x', 10 * n]).unwrap();
    }
    // Entries of the key that purge may not have removed yet.
    table.put(&[5], &[b'x', 55]).unwrap();
    table.put(&[4], &[b'x', 50]).unwrap();
    for level in LEVELS {
        for mode in [RowMode::Shared, RowMode::Exclusive] {
            let trx = begin(&db, level);
            let index = trx.table(&table).index("second").unwrap();
            let found = match mode {
                RowMode::Shared => index.get_one_for_share(&[50], &mut one),
                RowMode::Exclusive => index.get_one_for_update(&[50], &mut one),
            };
            let found = found.unwrap().map(|row| (row.key.to_vec(), row.value.to_vec()));
            assert_eq!(found, Some((vec![4], vec![b'x', 50])));
            let mut locks = locked(&db, &trx);
            let ranges = locks.extract_if(.., |lock| matches!(lock, Lock::Range(..))).count();
            assert_eq!(ranges, usize::from(level == Isolation::Serializable), "{level:?}: {locks:?}");
            assert_eq!(locks.len(), 2, "{level:?}: {locks:?}");
            assert!(matches!(&locks[0], Lock::Table(..)), "{locks:?}");
            assert!(
                matches!(&locks[1], Lock::Row(row, held) if *row.key == [4] && *held == mode),
                "{locks:?}"
            );
            // Another row does not get the key, and its neighbours are free.
            db.set_lock_wait_timeout(Duration::ZERO);
            table.put(&[20], &[b'x', 51]).unwrap();
            assert!(table.put(&[21], &[b'x', 50]).is_err());
            assert!(matches!(table.put(&[4], b"xy"), Err(Error::Lock(_))));
            table.delete(&[20]).unwrap();
        }
    }
}

#[test]
fn a_missing_unique_key_stays_missing() {
    for level in LEVELS {
        let (db, mut one) = (database(), OneRow::default());
        let table = table(&db);
        for n in [10u8, 30] {
            table.put(&[n], &[b'x', n]).unwrap();
        }
        table.put(&[20], &[b'x', 20]).unwrap();
        table.delete(&[20]).unwrap();
        let trx = begin(&db, level);
        let index = trx.table(&table).index("second").unwrap();
        assert_eq!(index.get_one_for_share(&[20], &mut one).unwrap(), None);
        assert_eq!(trx.table(&table).index("second").unwrap().get_one(&[20], &mut one).unwrap(), None);
        db.set_lock_wait_timeout(Duration::ZERO);
        table.put(&[15], &[b'x', 15]).unwrap();
        table.put(&[25], &[b'x', 25]).unwrap();
        let is_kept = matches!(table.put(&[1], &[b'x', 20]), Err(Error::Lock(_)));
        assert_eq!(is_kept, level >= Isolation::RepeatableRead, "{level:?}");
    }
}

#[test]
fn a_read_by_a_key_that_another_transaction_moves_waits_for_it() {
    for commits in [true, false] {
        let (db, level) = (database(), Isolation::ReadCommitted);
        let table = table(&db);
        table.put(b"1", b"xk").unwrap();
        table.put(b"2", b"x-").unwrap();
        let writer = begin(&db, level);
        writer.table(&table).put(b"1", b"xo").unwrap();
        writer.table(&table).put(b"2", b"xk").unwrap();
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let (trx, mut one) = (begin(&db, level), OneRow::default());
                let index = trx.table(&table).index("second").unwrap();
                index.get_one_for_update(b"k", &mut one).unwrap().map(|row| row.key.to_vec())
            });
            await_lock_wait(&db, &reader);
            let me = begin(&db, level);
            let skipping = me.table(&table).lock_wait_policy(LockWaitPolicy::SkipLocked);
            let mut one = OneRow::default();
            assert_eq!(skipping.index("second").unwrap().get_one_for_update(b"k", &mut one).unwrap(), None);
            let nowait = me.table(&table).lock_wait_policy(LockWaitPolicy::NoWait);
            let busy = nowait.index("second").unwrap().get_one_for_update(b"k", &mut one).map(drop);
            assert!(matches!(busy, Err(Error::Lock(LockError::Busy(_)))), "{busy:?}");
            if commits {
                writer.commit().map(drop).unwrap();
            } else {
                writer.rollback().unwrap();
            }
            let expected = if commits { b"2" } else { b"1" };
            assert_eq!(reader.join().unwrap(), Some(expected.to_vec()));
        });
    }
}

/// A look-up touches one frame for each level of the trees, and a seek of a cursor no fewer.
#[test]
fn a_read_of_one_row_touches_a_frame_of_each_level() {
    let (db, mut one) = (database(), OneRow::default());
    let options = TableOptions::default().index("i", IndexOptions::on_value(0..4).unique());
    let table = db.create_table("t", options).unwrap();
    for n in 0..3_000u32 {
        table.put(&(!n).to_be_bytes(), &[&n.to_be_bytes()[..], &[7; 100]].concat()).unwrap();
    }
    let index = table.index("i").unwrap();
    let levels = (u64::from(index.height().unwrap()), u64::from(table.height().unwrap()));
    assert!(levels.0 >= 2 && levels.1 >= 2);
    let frames = |run: &mut dyn FnMut()| {
        let before = so_far().of(Work::Frame);
        run();
        so_far().of(Work::Frame) - before
    };
    table.set_hash_index(false);
    let mut key = 0u32;
    for _ in 0..300 {
        key = (key + 7_919) % 3_000;
        let alone = frames(&mut || {
            assert!(index.get_one_key(&key.to_be_bytes(), &mut one).unwrap().is_some());
        });
        let whole = frames(&mut || {
            let row = index.get_one(&key.to_be_bytes(), &mut one).unwrap().unwrap();
            assert_eq!(row.key, (!key).to_be_bytes());
        });
        let by_cursor = frames(&mut || {
            let mut cursor = index.cursor().unwrap();
            assert!(cursor.seek(Seek::AtLeast(&key.to_be_bytes())).unwrap());
        });
        assert_eq!((alone, whole), (levels.0, levels.0 + levels.1), "key {key}");
        assert!(by_cursor >= whole, "{by_cursor} frames");
    }
}

#[test]
fn a_serializable_read_of_one_row_is_repeatable() {
    let db = database();
    let table =
        db.create_table("t", TableOptions::default().index("i", IndexOptions::on_value(0..1))).unwrap();
    table.insert(b"5", b"k").unwrap();
    db.set_lock_wait_timeout(Duration::ZERO);
    let mut one = OneRow::default();
    for isolation in LEVELS {
        let trx = begin(&db, isolation);
        let within = trx.table(&table);
        let index = within.index("i").unwrap();
        let mut read = || index.get_one(b"k", &mut one).unwrap().map(|row| row.key.to_vec());
        let first = read();
        let inserted = table.insert(b"1", b"k");
        assert_eq!(inserted.is_err(), isolation == Isolation::Serializable, "{isolation:?}: {inserted:?}");
        let is_repeatable = !matches!(isolation, Isolation::ReadUncommitted | Isolation::ReadCommitted);
        assert_eq!(read() == first, is_repeatable, "{isolation:?}");
        trx.rollback().unwrap();
        table.delete(b"1").unwrap();
    }
}

#[test]
fn a_locking_read_of_one_row_knows_that_its_index_is_newer_than_its_view() {
    let db = database();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    table.insert(b"1", b"k").unwrap();
    let trx = begin(&db, Isolation::Snapshot);
    assert!(trx.table(&table).get(b"1").unwrap().is_some());
    table.put(b"1", b"o").unwrap();
    db.create_index("t", "i", IndexOptions::on_value(0..1).unique()).unwrap();
    let within = trx.table(&table);
    let (index, mut one) = (within.index("i").unwrap(), OneRow::default());
    let plain = index.get_one(b"k", &mut one).map(drop).unwrap_err().to_string();
    let locking = index.get_one_for_update(b"k", &mut one).map(drop).unwrap_err().to_string();
    assert_eq!(plain, locking);
}
