//! Locks of reads by key that are released again.

use std::{thread, time::Duration};

use windfall::{
    Batch, Database, FlushLog, IndexBatch, Isolation, LockWaitPolicy, OneRow, RowMode, SemiConsistentRead,
    Table, TableOptions, Transaction, TransactionOptions, TxTable, Values,
};

use super::{LEVELS, await_lock_wait, begin, database, locked_rows, table};

/// The reads whose locks can be released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Share,
    Update,
    SemiConsistent,
    ShareByIndex,
    UpdateByIndex,
    ManyForShare,
    ManyForUpdate,
}

const WAYS: [Way; 7] = [
    Way::Share,
    Way::Update,
    Way::SemiConsistent,
    Way::ShareByIndex,
    Way::UpdateByIndex,
    Way::ManyForShare,
    Way::ManyForUpdate,
];

impl Way {
    fn is_shared(self) -> bool {
        matches!(self, Self::Share | Self::ShareByIndex | Self::ManyForShare)
    }
}

/// What such a read has read.
#[derive(Default)]
struct Read {
    one: OneRow,
    values: Values,
}

impl Read {
    /// Reads row `n`, whose value is `n` twice. Returns whether there is one.
    fn read(&mut self, way: Way, within: &TxTable<'_>, n: u8) -> bool {
        let Self { one, values } = self;
        let value = match way {
            Way::Share => within.get_one_for_share(&[n], one).unwrap(),
            Way::Update => within.get_one_for_update(&[n], one).unwrap(),
            Way::SemiConsistent => {
                let (read, value) = within.get_one_for_update_semi_consistent(&[n], one).unwrap();
                (read == SemiConsistentRead::Locked).then_some(value)
            }
            Way::ShareByIndex | Way::UpdateByIndex => {
                let index = within.index("second").unwrap();
                let row = match way {
                    Way::ShareByIndex => index.get_one_for_share(&[n], one).unwrap(),
                    _ => index.get_one_for_update(&[n], one).unwrap(),
                };
                row.map(|row| row.value)
            }
            Way::ManyForShare => {
                within.get_many_for_share(&[[n]], values).unwrap();
                values.get(0)
            }
            Way::ManyForUpdate => {
                within.get_many_for_update(&[[n]], values).unwrap();
                values.get(0)
            }
        };
        assert!(value.is_none_or(|value| value == [n, n]));
        value.is_some()
    }

    fn unlock(&mut self, way: Way, within: &TxTable<'_>) -> bool {
        match way {
            Way::ShareByIndex | Way::UpdateByIndex => {
                within.index("second").unwrap().unlock_row(&mut self.one).unwrap()
            }
            Way::ManyForShare | Way::ManyForUpdate => within.unlock_row_of(&mut self.values, 0).unwrap(),
            _ => within.unlock_row(&mut self.one).unwrap(),
        }
    }
}

fn filled(db: &Database) -> Table {
    let table = table(db);
    (0..10u8).for_each(|n| table.insert(&[n], &[n, n]).unwrap());
    table
}

fn filled_as(db: &Database, name: &str) -> Table {
    let table = db.create_table(name, TableOptions::default()).unwrap();
    (0..10u8).for_each(|n| table.insert(&[n], &[n, n]).unwrap());
    table
}

/// Returns whether another transaction may lock the row in this mode.
fn is_free(db: &Database, table: &Table, n: u8, mode: RowMode) -> bool {
    let other = begin(db, Isolation::ReadCommitted);
    other.set_lock_wait_timeout(Some(Duration::ZERO));
    match mode {
        RowMode::Shared => other.table(table).get_for_share(&[n]).is_ok(),
        RowMode::Exclusive => other.table(table).get_for_update(&[n]).is_ok(),
    }
}

#[test]
fn a_row_that_a_read_by_key_does_not_want_is_unlocked() {
    let db = database();
    let table = filled(&db);
    for (way, level) in WAYS.into_iter().flat_map(|way| LEVELS.map(|level| (way, level))) {
        let trx = begin(&db, level);
        let (within, mut read) = (trx.table(&table), Read::default());
        assert!(!read.unlock(way, &within), "nothing was read");
        assert!(read.read(way, &within, 1));
        assert!(!is_free(&db, &table, 1, RowMode::Exclusive));
        let is_released = level <= Isolation::ReadCommitted;
        assert_eq!(read.unlock(way, &within), is_released, "{way:?}, {level:?}");
        assert_eq!(is_free(&db, &table, 1, RowMode::Exclusive), is_released, "{way:?}, {level:?}");
        assert!(!read.unlock(way, &within), "{way:?}: a row is unlocked twice");
        assert!(!read.read(way, &within, 77) && !read.unlock(way, &within), "{way:?}: there is no row");
    }
    for way in WAYS {
        let trx = begin(&db, Isolation::ReadCommitted);
        let (within, mut read) = (trx.table(&table), Read::default());
        // It was locked before, in a mode that suffices.
        within.get_for_update(&[1]).unwrap();
        assert!(read.read(way, &within, 1) && !read.unlock(way, &within), "{way:?}");
        assert!(!is_free(&db, &table, 1, RowMode::Shared), "{way:?}");
        // It was locked before, in shared mode, and falls back to it.
        within.get_for_share(&[2]).unwrap();
        assert!(read.read(way, &within, 2));
        assert_eq!(is_free(&db, &table, 2, RowMode::Shared), way.is_shared());
        assert_eq!(read.unlock(way, &within), !way.is_shared(), "{way:?}");
        let free = [RowMode::Shared, RowMode::Exclusive].map(|mode| is_free(&db, &table, 2, mode));
        assert_eq!(free, [true, false], "{way:?}");
        // The transaction has changed it, before the read or afterwards.
        within.put(&[3], &[3, 3, 3]).unwrap();
        within.put(&[3], &[3, 3]).unwrap();
        assert!(read.read(way, &within, 3) && !read.unlock(way, &within), "{way:?}");
        assert!(read.read(way, &within, 4));
        within.put(&[4], &[4, 4, 4]).unwrap();
        assert!(!read.unlock(way, &within), "{way:?}");
        assert!([3, 4].iter().all(|n| !is_free(&db, &table, *n, RowMode::Shared)), "{way:?}");
        // It had changed it, and rolled that back after the read.
        let savepoint = trx.set_savepoint().unwrap();
        within.put(&[6], &[6, 6, 6]).unwrap();
        within.put(&[6], &[6, 6]).unwrap();
        assert!(read.read(way, &within, 6));
        trx.rollback_to_savepoint(&savepoint).unwrap();
        assert!(!read.unlock(way, &within) && !is_free(&db, &table, 6, RowMode::Shared), "{way:?}");
        // A read of another transaction releases nothing.
        assert!(read.read(way, &within, 5));
        trx.rollback().unwrap();
        let next = begin(&db, Isolation::ReadCommitted);
        next.table(&table).get_for_update(&[5]).unwrap();
        assert!(!read.unlock(way, &next.table(&table)), "{way:?}");
        assert!(!is_free(&db, &table, 5, RowMode::Shared), "{way:?}");
    }
}

/// A lock that was waited for was granted before the attempt that has read the row, and was taken by this read.
#[test]
fn a_row_that_was_waited_for_is_unlocked() {
    for way in WAYS.into_iter().filter(|way| *way != Way::SemiConsistent) {
        let db = database();
        let table = filled(&db);
        let holder = begin(&db, Isolation::ReadCommitted);
        holder.table(&table).get_for_update(&[1]).unwrap();
        let trx = begin(&db, Isolation::ReadCommitted);
        thread::scope(|scope| {
            let call = scope.spawn(|| {
                let (within, mut read) = (trx.table(&table), Read::default());
                assert!(read.read(way, &within, 1) && read.unlock(way, &within), "{way:?}");
                assert!(is_free(&db, &table, 1, RowMode::Exclusive), "{way:?}");
            });
            await_lock_wait(&db, &call);
            holder.commit().unwrap();
            call.join().unwrap();
        });
    }
}

#[test]
fn a_row_is_unlocked_once_it_is_given_up_for_each_of_its_keys() {
    let db = database();
    let table = filled(&db);
    let trx = begin(&db, Isolation::ReadCommitted);
    let (within, mut values) = (trx.table(&table), Values::default());
    within.get_for_update(&[3]).unwrap();
    assert_eq!(within.get_many_for_update(&[[2], [1], [2], [77], [3], [3]], &mut values).unwrap(), 5);
    assert_eq!(locked_rows(&db, &trx), [1, 2, 3]);
    let mut unlock = |place| within.unlock_row_of(&mut values, place).unwrap();
    assert!(!unlock(0) && !unlock(0) && !unlock(3) && !unlock(4) && !unlock(5) && !unlock(6));
    assert_eq!(locked_rows(&db, &trx), [1, 2, 3]);
    assert!(unlock(2) && unlock(1) && !unlock(1));
    assert_eq!((locked_rows(&db, &trx), values.get(2)), (vec![3], Some(&[2, 2][..])));
}

/// What was read without a lock is not unlocked: another transaction has it.
#[test]
fn a_row_that_was_not_locked_is_not_unlocked() {
    let db = database();
    let table = filled(&db);
    let (holder, trx) = (begin(&db, Isolation::ReadCommitted), begin(&db, Isolation::ReadCommitted));
    holder.table(&table).get_for_update(&[1]).unwrap();
    let (within, mut one) = (trx.table(&table), OneRow::default());
    let read = within.get_one_for_update_semi_consistent(&[1], &mut one).unwrap();
    assert_eq!(read, (SemiConsistentRead::Committed, &[1, 1][..]));
    assert!(!within.unlock_row(&mut one).unwrap());
    assert_eq!(within.get_one_for_update(&[2], &mut one).unwrap(), Some(&[2, 2][..]));
    let skipping = within.lock_wait_policy(LockWaitPolicy::SkipLocked);
    assert_eq!(skipping.get_one_for_update(&[1], &mut one).unwrap(), None);
    assert!(!within.unlock_row(&mut one).unwrap(), "the lock of the read before is kept");
    // A plain read takes none either, nor does it keep that of the read before.
    assert!(within.get_one_for_update(&[3], &mut one).unwrap().is_some());
    assert!(within.index("second").unwrap().get_one(&[4], &mut one).unwrap().is_some());
    assert!(!within.unlock_row(&mut one).unwrap());
    assert_eq!((locked_rows(&db, &trx), locked_rows(&db, &holder)), (vec![2, 3], vec![1]));
}

/// Batches are memory that outlives a transaction. What they have noted unlocks nothing of the next one.
#[test]
fn a_batch_of_the_former_transaction_unlocks_nothing() {
    let db = database();
    let table = filled(&db);
    let another = filled_as(&db, "another");
    for level in LEVELS {
        let mut trx = begin(&db, Isolation::ReadCommitted);
        let (mut rows, mut entries) = (Batch::default(), IndexBatch::default());
        let index =
            |trx: &Transaction| trx.table(&table).index("second").unwrap().cursor_for_update().unwrap();
        let cursor = |trx: &Transaction, table| trx.table(table).cursor_for_update().unwrap();
        assert_eq!(index(&trx).next_batch_of(&mut entries, 3).unwrap(), 3);
        let mut upper = cursor(&trx, &table);
        upper.set_range([5]..);
        assert_eq!(upper.next_batch_of(&mut rows, 3).unwrap(), 3);
        // Nor do they unlock a row of another table with this key.
        trx.table(&another).get_for_update(&[5]).unwrap();
        assert!(!cursor(&trx, &another).unlock_row_of(&mut rows, 0).unwrap());
        trx.commit_and_keep(FlushLog::Lazy).unwrap();
        trx.restart(TransactionOptions::default().isolation(level)).unwrap();
        for n in [1, 6] {
            trx.table(&table).get_for_update(&[n]).unwrap();
        }
        assert!(!index(&trx).unlock_row_of(&mut entries, 1).unwrap(), "{level:?}");
        assert!(!cursor(&trx, &table).unlock_row_of(&mut rows, 1).unwrap(), "{level:?}");
        assert!([1, 6].iter().all(|n| !is_free(&db, &table, *n, RowMode::Shared)), "{level:?}");
    }
}

/// A cursor of entries alone locks the rows, and returns no values.
#[test]
fn a_cursor_of_entries_alone_locks_their_rows() {
    for level in LEVELS {
        let db = database();
        let table = filled(&db);
        let trx = begin(&db, level);
        let index = trx.table(&table).index("second").unwrap();
        for (first, mode) in [(2, RowMode::Shared), (5, RowMode::Exclusive)] {
            let mut cursor = match mode {
                RowMode::Shared => index.key_cursor_for_share().unwrap(),
                RowMode::Exclusive => index.key_cursor_for_update().unwrap(),
            };
            cursor.set_range([first]..[first + 2]);
            for n in [first, first + 1] {
                assert!(cursor.next().unwrap());
                let row = cursor.row().unwrap();
                assert_eq!((row.index_key, row.key, row.value), (&[n][..], &[n][..], &[][..]), "{level:?}");
                assert_eq!(is_free(&db, &table, n, RowMode::Shared), mode == RowMode::Shared);
                assert!(!is_free(&db, &table, n, RowMode::Exclusive));
            }
            assert!(!cursor.next().unwrap());
            if level <= Isolation::ReadCommitted {
                assert!(cursor.prev().unwrap() && !cursor.unlock_row().unwrap(), "it was locked before");
            }
        }
        assert_eq!(locked_rows(&db, &trx), [2, 3, 5, 6], "{level:?}");
        let waits = trx.table(&table).index("second").unwrap().key_cursor_for_update();
        let mut waits = waits.unwrap();
        waits.semi_consistent(true);
        let holder = begin(&db, Isolation::ReadCommitted);
        holder.table(&table).get_for_update(&[8]).unwrap();
        waits.set_range([8]..=[8]);
        if level <= Isolation::ReadCommitted {
            assert!(waits.next().unwrap() && waits.was_semi_consistent());
            assert_eq!(waits.row().map(|row| (row.key, row.value)), Some((&[8][..], &[][..])));
        }
    }
}

/// What refuses to release a lock does not forget it.
#[test]
fn a_lock_that_was_not_released_is_released_later() {
    let db = database();
    let (table, other) = (filled(&db), filled_as(&db, "other"));
    let trx = begin(&db, Isolation::ReadCommitted);
    let (within, mut one) = (trx.table(&table), OneRow::default());
    within.get_one_for_update(&[1], &mut one).unwrap();
    trx.table(&other).get_for_update(&[1]).unwrap();
    assert!(!trx.table(&other).unlock_row(&mut one).unwrap());
    assert!(within.unlock_row(&mut one).unwrap() && !within.unlock_row(&mut one).unwrap());
    assert!(is_free(&db, &table, 1, RowMode::Exclusive));
    assert!(!is_free(&db, &other, 1, RowMode::Shared));
}
