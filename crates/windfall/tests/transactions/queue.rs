//! A queue in an index: rows that have left a range do not affect a locking read of it.

use std::time::Duration;

use windfall::{
    Database, Error, Isolation, Lock, LockWaitPolicy, Result, Table, Transaction,
    error::{LockError, TransactionError},
    ids::TrxId,
};
use windfall_base::sync::work::{Work, so_far};

use super::{begin, database, rows, table};

/// The levels at which reads of other transactions do not block a queue.
const LEVELS: [Isolation; 4] =
    [Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Serializable, Isolation::Snapshot];

/// Returns the value of a job: its state, and a byte that makes it unique in the other index of the table.
fn job(state: u8, n: u8) -> [u8; 2] {
    [state, n]
}

const NEW: u8 = b'n';
const DONE: u8 = b'o';

/// Returns the first job that is to do, and locks it.
fn first(table: &Table, trx: &Transaction) -> Result<Option<Vec<u8>>> {
    let mut range = trx.table(table).index("first")?.range_for_update([NEW]..=[NEW])?;
    range.next().transpose().map(|row| row.map(|row| row.key))
}

fn all(table: &Table, trx: &Transaction) -> Result<Vec<Vec<u8>>> {
    let range = trx.table(table).index("first")?.range_for_update([NEW]..=[NEW])?;
    range.map(|row| row.map(|row| row.key)).collect()
}

/// Creates a queue with this number of jobs, in a database with a lock timeout of zero.
fn queue(db: &Database, jobs: u8) -> Table {
    let table = table(db);
    for n in 0..jobs {
        table.put(&[n], &job(NEW, n)).unwrap();
    }
    db.set_lock_wait_timeout(Duration::ZERO);
    table
}

/// Returns the number of a transaction's row locks in the lock table.
fn locked(db: &Database, id: TrxId) -> usize {
    let is_row = |lock: &Lock| matches!(lock, Lock::Row(..));
    db.locks().iter().filter(|held| held.trx == id && is_row(&held.lock)).count()
}

#[test]
fn a_take_reads_and_locks_one_row_however_many_jobs_are_done() {
    for level in LEVELS {
        let db = database();
        let table = queue(&db, 250);
        // This read view stops purge.
        let dump = begin(&db, Isolation::RepeatableRead);
        assert!(dump.table(&table).get(&[0]).unwrap().is_some());
        let mut frames = Vec::new();
        for n in 0..200 {
            let trx = begin(&db, level);
            let before = so_far().of(Work::Frame);
            assert_eq!(first(&table, &trx).unwrap(), Some(vec![n]), "{level:?}");
            frames.push(so_far().of(Work::Frame) - before);
            assert_eq!(locked(&db, trx.id().unwrap()), 1, "{level:?}, behind {n} jobs");
            trx.table(&table).update(&[n], &job(DONE, n)).unwrap();
            trx.commit().unwrap();
        }
        // The rest are pages of the index: a batch is read from one of them at a time.
        assert!(
            frames[199] < frames[0] + 20,
            "{level:?}: {} frames, and {} at first",
            frames[199],
            frames[0]
        );
        dump.commit().unwrap();
        rows(&table);
    }
}

#[test]
fn a_read_does_not_wait_for_locks_on_rows_that_left_its_range() {
    for level in LEVELS {
        for by_old_transaction in [false, true] {
            let db = database();
            let table = queue(&db, 40);
            let dump = begin(&db, Isolation::RepeatableRead);
            assert!(dump.table(&table).get(&[0]).unwrap().is_some());
            // A transaction that has begun before all others. If it has changed a row, a read must check for each entry
            // whether its writer has ended; otherwise one comparison is enough.
            let old = begin(&db, Isolation::RepeatableRead);
            if by_old_transaction {
                old.table(&table).put(b"old", &job(b'x', 200)).unwrap();
            }
            for n in 0..30 {
                table.update(&[n], &job(DONE, n)).unwrap();
            }
            let other = begin(&db, Isolation::RepeatableRead);
            for n in 0..30 {
                other.table(&table).update(&[n], &job(b'p', n)).unwrap();
            }
            let trx = begin(&db, level);
            assert_eq!(
                all(&table, &trx).unwrap(),
                (30..40).map(|n| vec![n]).collect::<Vec<_>>(),
                "{level:?}"
            );
            assert_eq!(locked(&db, trx.id().unwrap()), 10, "{level:?}");
            // Nor does the read prevent others from changing these rows.
            other.table(&table).update(&[0], &job(b'q', 0)).unwrap();
            other.commit().unwrap();
            table.update(&[1], &job(b'q', 1)).unwrap();
            trx.commit().unwrap();
            drop(old);
            rows(&table);
        }
    }
}

/// A read waits for a delete mark that may be rolled back, and finds the row after the rollback.
#[test]
fn a_row_that_is_about_to_leave_is_waited_for() {
    for level in LEVELS {
        let db = database();
        let table = queue(&db, 3);
        let other = begin(&db, Isolation::RepeatableRead);
        other.table(&table).update(&[0], &job(DONE, 0)).unwrap();
        other.table(&table).delete(&[1]).unwrap();
        let trx = begin(&db, level);
        let refused = first(&table, &trx).unwrap_err();
        assert!(matches!(refused, Error::Lock(LockError::Busy(_))), "{level:?}: {refused}");
        let skipping = trx.table(&table).lock_wait_policy(LockWaitPolicy::SkipLocked);
        let skipped = skipping.index("first").unwrap().range_for_update([NEW]..=[NEW]).unwrap();
        assert_eq!(skipped.map(|row| row.unwrap().key).collect::<Vec<_>>(), [[2]], "{level:?}");
        other.rollback().unwrap();
        assert_eq!(all(&table, &trx).unwrap(), [[0], [1], [2]], "{level:?}");
        trx.commit().unwrap();
    }
}

/// A skipped row comes back after the read, or, where ranges are locked, only after the end of the transaction.
#[test]
fn a_row_cannot_reenter_a_locked_range_in_which_it_was_skipped() {
    for level in LEVELS {
        let db = database();
        let table = queue(&db, 3);
        let dump = begin(&db, Isolation::RepeatableRead);
        assert!(dump.table(&table).get(&[0]).unwrap().is_some());
        table.update(&[0], &job(DONE, 0)).unwrap();
        table.delete(&[1]).unwrap();
        let trx = begin(&db, level);
        assert_eq!(all(&table, &trx).unwrap(), [[2]]);
        let comes = [table.update(&[0], &job(NEW, 0)), table.insert(&[1], &job(NEW, 1))];
        for come in comes {
            match come {
                Ok(()) => assert_eq!(level, Isolation::ReadCommitted),
                Err(Error::Lock(LockError::Busy(_))) => assert_ne!(level, Isolation::ReadCommitted),
                Err(error) => panic!("{level:?}: {error}"),
            }
        }
        let again = all(&table, &trx).unwrap();
        assert_eq!(again.len(), if level == Isolation::ReadCommitted { 3 } else { 1 }, "{level:?}");
        trx.commit().unwrap();
        rows(&table);
    }
}

/// A read sees its transaction's own changes, also after a rollback to a savepoint, or when a row has come back into
/// the range.
#[test]
fn a_read_sees_rows_that_its_own_transaction_moved() {
    for level in LEVELS {
        let db = database();
        let table = queue(&db, 3);
        let trx = begin(&db, level);
        let within = trx.table(&table);
        assert_eq!(all(&table, &trx).unwrap().len(), 3);
        trx.savepoint("all").unwrap();
        within.update(&[0], &job(DONE, 0)).unwrap();
        within.delete(&[1]).unwrap();
        assert_eq!(all(&table, &trx).unwrap(), [[2]], "{level:?}");
        within.update(&[0], &job(NEW, 0)).unwrap();
        assert_eq!(all(&table, &trx).unwrap(), [[0], [2]], "{level:?}");
        within.update(&[0], &job(DONE, 0)).unwrap();
        let mut range = within.index("first").unwrap().range_for_update([NEW]..=[NEW]).unwrap();
        trx.rollback_to("all").unwrap();
        assert_eq!(range.next().unwrap().unwrap().key, [0], "{level:?}");
        assert_eq!(all(&table, &trx).unwrap().len(), 3, "{level:?}");
        trx.commit().unwrap();
    }
}

/// A strict snapshot ignores a row that was not in the range when its read view was taken, and has not been since. A
/// row that has entered or left the range since is refused, as it is when it is read by its key.
#[test]
fn a_strict_snapshot_is_refused_only_by_rows_of_its_range() {
    type Change = fn(&Table);
    let before: Change = |table| table.update(&[0], &job(DONE, 0)).unwrap();
    let nothing: Change = |_| {};
    let cases: [(&str, Change, Change, bool); 6] = [
        ("left before, and changed since", before, |table| table.update(&[0], &job(b'p', 0)).unwrap(), false),
        ("left before, and deleted since", before, |table| assert!(table.delete(&[0]).unwrap()), false),
        (
            "came and left since",
            nothing,
            |table| {
                table.insert(&[0, 0], &job(NEW, 100)).unwrap();
                table.update(&[0, 0], &job(DONE, 100)).unwrap();
            },
            true,
        ),
        ("left since", nothing, |table| table.update(&[0], &job(DONE, 0)).unwrap(), true),
        ("deleted since", nothing, |table| assert!(table.delete(&[0]).unwrap()), true),
        ("came since", before, |table| table.update(&[0], &job(NEW, 0)).unwrap(), true),
    ];
    for (what, before, since, is_refused) in cases {
        let db = database();
        let table = queue(&db, 3);
        let dump = begin(&db, Isolation::RepeatableRead);
        assert!(dump.table(&table).get(&[0]).unwrap().is_some());
        before(&table);
        let strict = begin(&db, Isolation::Snapshot);
        assert!(strict.table(&table).get(&[2]).unwrap().is_some());
        since(&table);
        // A call that was refused is refused again.
        for _ in 0..2 {
            match all(&table, &strict) {
                Ok(found) => {
                    assert!(!is_refused, "{what}: {found:?}");
                    assert_eq!(found.last(), Some(&vec![2]), "{what}");
                }
                Err(Error::Transaction(TransactionError::Changed(_))) => assert!(is_refused, "{what}"),
                Err(error) => panic!("{what}: {error}"),
            }
        }
    }
}

/// A range that has read ahead finds the entry of a job that has been done since: the job is neither returned nor
/// locked.
#[test]
fn rows_that_have_left_the_range_since_it_read_ahead_are_not_locked() {
    let levels = [Isolation::ReadUncommitted, Isolation::ReadCommitted];
    for level in levels.into_iter().chain([Isolation::RepeatableRead, Isolation::Serializable]) {
        let db = database();
        let table = queue(&db, 3);
        let trx = begin(&db, level);
        let within = trx.table(&table);
        let mut range = within.index("first").unwrap().range_for_update([NEW]..=[NEW]).unwrap();
        assert_eq!(range.next().unwrap().unwrap().key, [0]);
        table.put(&[1], &job(DONE, 1)).unwrap();
        assert_eq!(range.next().unwrap().unwrap().key, [2], "{level:?}");
        table.put(&[1], &job(DONE, 11)).unwrap();
        let refused = table.put(&[2], &job(DONE, 2));
        assert!(matches!(refused, Err(Error::Lock(_))), "{level:?}: a row that was returned is locked");
        trx.commit().unwrap();
    }
}

/// A job that has been done since the range read ahead may be locked by another transaction: the range neither waits
/// for that lock nor fails. The lock timeout is zero, so that a wait is a failure.
#[test]
fn a_locked_row_that_has_left_the_range_is_not_waited_for() {
    let policies = [LockWaitPolicy::Wait, LockWaitPolicy::NoWait, LockWaitPolicy::SkipLocked];
    for policy in policies {
        for level in [Isolation::ReadUncommitted, Isolation::ReadCommitted, Isolation::RepeatableRead] {
            let db = database();
            let table = queue(&db, 3);
            let trx = begin(&db, level);
            let within = trx.table(&table).lock_wait_policy(policy);
            let mut range = within.index("first").unwrap().range_for_update([NEW]..=[NEW]).unwrap();
            assert_eq!(range.next().unwrap().unwrap().key, [0]);
            table.put(&[1], &job(DONE, 1)).unwrap();
            let other = begin(&db, Isolation::ReadCommitted);
            assert!(other.table(&table).get_for_update(&[1]).unwrap().is_some());
            assert_eq!(range.next().unwrap().unwrap().key, [2], "{level:?}, {policy:?}");
            assert!(range.next().is_none(), "{level:?}, {policy:?}");
            assert_eq!(locked(&db, other.id().unwrap()), 1, "{level:?}, {policy:?}");
        }
    }
}

/// Only the beginning of a long value decides whether a row has an index key. Of a row that another transaction has
/// locked, the rest is not read.
#[test]
fn the_long_value_of_a_locked_row_is_not_read() {
    let db = database();
    let table = queue(&db, 1);
    let mut long = vec![0; 2 << 20];
    long[..2].copy_from_slice(&job(NEW, 0));
    table.put(&[0], &long).unwrap();
    let (owner, other) = (begin(&db, Isolation::ReadCommitted), begin(&db, Isolation::ReadCommitted));
    owner.table(&table).get_for_update(&[0]).unwrap();
    let frames = |table: &windfall::TxTable| {
        let before = so_far().of(Work::Frame);
        let jobs = table.index("first").unwrap().range_for_update([NEW]..=[NEW]).unwrap();
        let found = jobs.map(|row| row.unwrap().value.len()).collect::<Vec<_>>();
        (found, so_far().of(Work::Frame) - before)
    };
    let (skipped, few) = frames(&other.table(&table).lock_wait_policy(LockWaitPolicy::SkipLocked));
    let (read, many) = frames(&owner.table(&table));
    assert_eq!((skipped, read), (vec![], vec![long.len()]));
    assert!(few * 4 < many, "{few} frames of a row that is skipped, and {many} of one that is read");
}
