//! Duplicate keys in a transaction: the error names the row that is in the way, and that row is locked.

use std::{sync::Arc, time::Duration};

use windfall::{
    Database, Error, Isolation, Lock, Result, RowMode, Table, Transaction, TransactionOptions, TxTable,
    error::{LockError, SchemaError},
};

use super::{begin, database, pairs, rows, table, waits::scripted};

type Call = fn(&TxTable<'_>) -> Result<()>;

/// Changes that conflict with row `a`: by its key, or by its key in the unique index.
const CALLS: [(&str, Call); 5] = [
    ("insert of its key", |t| t.insert(b"a", b"z9")),
    ("insert of its key from a source", |t| t.insert_stream(b"a", 2, &mut &b"z9"[..])),
    ("insert of its index key", |t| t.insert(b"b", b"z1")),
    ("put of its index key", |t| t.put(b"c", b"z1")),
    ("update to its index key", |t| t.update(b"d", b"z1")),
];

fn row_of(done: Result<()>) -> Arc<[u8]> {
    match done {
        Err(Error::Schema(SchemaError::DuplicateKey { row, .. })) => row,
        other => panic!("{other:?} is no duplicate"),
    }
}

fn at_once(db: &Database) -> Transaction {
    let options = TransactionOptions::default().isolation(Isolation::ReadCommitted);
    db.begin(options.lock_wait(Duration::ZERO))
}

fn is_locked(db: &Database, table: &Table, mode: RowMode) -> bool {
    let other = at_once(db);
    let read = match mode {
        RowMode::Shared => other.table(table).get_for_share(b"a"),
        RowMode::Exclusive => other.table(table).get_for_update(b"a"),
    };
    matches!(read, Err(Error::Lock(LockError::Busy(_))))
}

/// Returns the keys of the rows that are locked in the clustered tree of a table with a row `a`.
fn locked_rows(db: &Database) -> Vec<Vec<u8>> {
    let locks = db.locks().into_iter();
    let keys = locks
        .filter_map(|held| if let Lock::Row(row, _) = held.lock { Some(row.key.to_vec()) } else { None });
    keys.filter(|key| key.len() == 1).collect()
}

#[test]
fn a_row_that_is_in_the_way_is_named_and_stays_locked() {
    for (name, call) in CALLS {
        for level in Isolation::ALL {
            for mode in [RowMode::Shared, RowMode::Exclusive] {
                let db = database();
                let table = table(&db);
                table.insert(b"a", b"x1").unwrap();
                table.insert(b"d", b"x4").unwrap();
                let trx = begin(&db, *level);
                let what = format!("{name}, {level:?}, {mode}");
                let in_trx = trx.table(&table);
                let in_trx = if mode == RowMode::Shared { in_trx } else { in_trx.duplicate_lock(mode) };
                assert_eq!(*row_of(call(&in_trx)), *b"a", "{what}");
                assert!(is_locked(&db, &table, RowMode::Exclusive), "{what}");
                assert_eq!(is_locked(&db, &table, RowMode::Shared), mode == RowMode::Exclusive, "{what}");
                in_trx.put(b"a", b"y1").unwrap();
                trx.commit().unwrap();
                assert!(!is_locked(&db, &table, RowMode::Exclusive), "{what}");
                assert_eq!(rows(&table), pairs([("a", "y1"), ("d", "x4")]), "{what}");
            }
        }
    }
}

#[test]
fn a_call_outside_of_transactions_leaves_no_lock_on_the_row_that_is_in_the_way() {
    let db = database();
    let table = table(&db);
    table.insert(b"a", b"x1").unwrap();
    assert_eq!(*row_of(table.insert(b"a", b"z9")), *b"a");
    let error = table.insert(b"b", b"z1").unwrap_err();
    assert!(error.to_string().contains(r#"index second of table t: the row with key "a""#), "{error}");
    assert_eq!(*row_of(Err(error)), *b"a");
    assert!(db.locks().is_empty(), "{:?}", db.locks());
}

/// A row that is only locked for update may still lose its index key.
#[test]
fn a_row_that_turns_out_not_to_be_in_the_way_is_not_locked() {
    let changes: [(&str, Call); 3] = [
        ("another index key", |t| t.put(b"a", b"x2")),
        ("a deletion", |t| t.delete(b"a").map(drop)),
        ("another value, and then another index key", |t| {
            t.put(b"a", b"y1")?;
            t.put(b"a", b"y2")
        }),
    ];
    for (name, change) in changes {
        for mode in [RowMode::Shared, RowMode::Exclusive] {
            let (db, script, _) = scripted();
            let table = table(&db);
            table.insert(b"a", b"x1").unwrap();
            let first = begin(&db, Isolation::ReadCommitted);
            first.table(&table).get_for_update(b"a").unwrap();
            let in_first = table.clone();
            script.then(Duration::from_secs(1), move || {
                change(&first.table(&in_first)).unwrap();
                first.commit().unwrap();
            });
            let waits = begin(&db, Isolation::RepeatableRead);
            waits.table(&table).duplicate_lock(mode).insert(b"b", b"z1").unwrap();
            assert_eq!(db.metrics().lock_waits, 1, "{name}");
            assert!(!locked_rows(&db).contains(&b"a".to_vec()), "{name}: {:?}", db.locks());
            waits.commit().unwrap();
        }
    }
}

/// The row is changed without its keys by a transaction that has not ended: its writer comes first.
#[test]
fn a_row_that_is_being_changed_is_locked_after_its_writer_has_ended() {
    for (name, call) in CALLS {
        for (mode, commits) in
            [(RowMode::Shared, true), (RowMode::Exclusive, true), (RowMode::Exclusive, false)]
        {
            let (db, script, _) = scripted();
            let table = table(&db);
            table.insert(b"a", b"x1").unwrap();
            table.insert(b"d", b"x4").unwrap();
            let first = begin(&db, Isolation::ReadCommitted);
            first.table(&table).put(b"a", b"y1").unwrap();
            script.then(Duration::from_secs(1), move || {
                if commits { first.commit().map(drop) } else { first.rollback() }.unwrap();
            });
            let waits = begin(&db, Isolation::ReadCommitted);
            assert_eq!(*row_of(call(&waits.table(&table).duplicate_lock(mode))), *b"a", "{name}");
            assert_eq!(db.metrics().lock_waits, 1, "{name}");
            assert!(is_locked(&db, &table, RowMode::Exclusive), "{name}, {mode}");
            assert_eq!(is_locked(&db, &table, RowMode::Shared), mode == RowMode::Exclusive, "{name}, {mode}");
        }
    }
}

/// Two that find the same row and then change it: with shared locks they would wait for each other.
#[test]
fn two_that_replace_a_row_do_not_deadlock_with_exclusive_locks() {
    for (name, call) in CALLS {
        for (mode, deadlocks) in [(RowMode::Exclusive, 0), (RowMode::Shared, 1)] {
            let (db, script, _) = scripted();
            let table = table(&db);
            table.insert(b"a", b"x1").unwrap();
            table.insert(b"d", b"x4").unwrap();
            let (one, other) = (begin(&db, Isolation::ReadCommitted), begin(&db, Isolation::ReadCommitted));
            let replace = |trx: &Transaction, table: &Table, value: &[u8]| {
                row_of(call(&trx.table(table).duplicate_lock(mode)));
                trx.table(table).put(b"a", value)
            };
            row_of(call(&one.table(&table).duplicate_lock(mode)));
            let in_one = table.clone();
            script.then(Duration::from_secs(1), move || {
                // With shared locks the other transaction waits for this one here, and this one is refused.
                let done = one.table(&in_one).put(b"a", b"y1");
                drop(done.and_then(|()| one.commit()));
            });
            replace(&other, &table, b"z1").unwrap();
            other.commit().unwrap();
            assert_eq!(db.metrics().deadlocks, deadlocks, "{name}, {mode}");
            assert_eq!(table.get(b"a").unwrap().as_deref(), Some(&b"z1"[..]), "{name}, {mode}");
        }
    }
}

#[test]
fn the_lock_on_a_row_that_is_in_the_way_outlasts_the_statement() {
    let db = database();
    let table = table(&db);
    table.insert(b"a", b"x1").unwrap();
    let trx = begin(&db, Isolation::ReadCommitted);
    trx.begin_statement().unwrap();
    row_of(trx.table(&table).insert(b"b", b"z1"));
    trx.end_statement(windfall::StatementEnd::Undo).unwrap();
    assert!(is_locked(&db, &table, RowMode::Exclusive));
    assert!(trx.holds_locks().unwrap());
    trx.rollback().unwrap();
    assert!(!is_locked(&db, &table, RowMode::Exclusive));
}
