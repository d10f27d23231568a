//! Reads of index entries only, without their rows.

use windfall::{Access, Index, IndexItem, IndexKey, IndexOptions, Isolation, Seek, Table, TableOptions};
use windfall_base::sync::work::{Work, so_far};

use super::{begin, database, rows, table};

fn found(index_key: &str, key: &str) -> IndexKey {
    IndexKey { index_key: index_key.into(), key: key.into(), payload: Vec::new() }
}

fn keys(table: &Table<impl Access>) -> Vec<IndexKey> {
    table.index("first").unwrap().keys::<&[u8]>(..).unwrap().map(Result::unwrap).collect()
}

/// Returns the number of frames that this thread has accessed during a call.
fn frames<T>(run: impl FnOnce() -> T) -> (T, u64) {
    let before = so_far().of(Work::Frame);
    let done = run();
    (done, so_far().of(Work::Frame) - before)
}

#[test]
fn the_keys_of_rows_are_found_without_them() {
    let db = database();
    let options = TableOptions::default().index("by_end", IndexOptions::on_value(0..2));
    let table = db.create_table("t", options).unwrap();
    for n in 0..2000u16 {
        let value = [&(n / 4).to_be_bytes()[..], &[7; 500]].concat();
        table.put(&n.to_be_bytes(), &value).unwrap();
    }
    for level in [Isolation::ReadUncommitted, Isolation::ReadCommitted, Isolation::RepeatableRead] {
        let trx = begin(&db, level);
        assert_keys_suffice(&table.index("by_end").unwrap(), &format!("alone, beside {level:?}"));
        assert_keys_suffice(&trx.table(&table).index("by_end").unwrap(), &format!("{level:?}"));
    }
}

/// Asserts that a range of 300 keys is read without the rows, and is that of the rows.
fn assert_keys_suffice(index: &Index<impl Access>, what: &str) {
    let bounds = 100u16.to_be_bytes()..=399u16.to_be_bytes();
    let (keys, of_keys) =
        frames(|| index.keys(bounds.clone()).unwrap().map(Result::unwrap).collect::<Vec<_>>());
    let (rows, of_rows) =
        frames(|| index.range(bounds.clone()).unwrap().map(Result::unwrap).collect::<Vec<_>>());
    assert!(of_keys < 60 && of_rows > 1200, "{of_keys} and {of_rows} frames: {what}");
    let of_row = |row: &windfall::IndexRow| (row.index_key.clone(), row.key.clone());
    let of_key = |key: &IndexKey| (key.index_key.clone(), key.key.clone());
    assert_eq!(keys.iter().map(of_key).collect::<Vec<_>>(), rows.iter().map(of_row).collect::<Vec<_>>());
    let mut back: Vec<_> = index.keys(bounds).unwrap().rev().map(Result::unwrap).collect();
    back.reverse();
    assert_eq!(back, keys);
}

/// The transaction changes a row after another change that its read view does not see. The entry from before that
/// change no longer belongs to the row.
#[test]
fn an_entry_is_of_the_row_that_its_transaction_sees() {
    let db = database();
    let table = table(&db);
    table.put(b"a", b"m1").unwrap();
    table.put(b"b", b"n2").unwrap();
    let trx = begin(&db, Isolation::RepeatableRead);
    let within = trx.table(&table);
    assert_eq!(keys(&within), [found("m", "a"), found("n", "b")]);
    table.put(b"a", b"o3").unwrap();
    table.delete(b"b").unwrap();
    assert_eq!(keys(&within), [found("m", "a"), found("n", "b")]);
    within.put(b"a", b"p4").unwrap();
    within.put(b"b", b"l5").unwrap();
    assert_eq!(keys(&within), [found("l", "b"), found("p", "a")]);
    assert_eq!(rows(&within).len(), 2);
    assert_eq!(keys(&table), [found("o", "a")]);
    let mut cursor = within.index("first").unwrap().key_cursor().unwrap();
    assert!(cursor.seek(Seek::AtLeast(b"m")).unwrap());
    assert_eq!(cursor.row().map(IndexKey::of), Some(found("p", "a")));
    assert!(cursor.prev().unwrap());
    assert_eq!(cursor.row().map(IndexKey::of), Some(found("l", "b")));
    assert!(!cursor.prev().unwrap());
    trx.rollback().unwrap();
    assert_eq!(keys(&table), [found("o", "a")]);
}

/// The transaction's own change keeps the entry, which still carries a writer that the read view does not see.
#[test]
fn an_own_change_that_keeps_the_index_key_is_found_by_it() {
    let db = database();
    let table = table(&db);
    table.put(b"a", b"m1").unwrap();
    let trx = begin(&db, Isolation::RepeatableRead);
    let within = trx.table(&table);
    assert_eq!(keys(&within), [found("m", "a")]);
    table.put(b"a", b"o1").unwrap();
    table.put(b"b", b"n2").unwrap();
    within.put(b"a", b"o1 changed").unwrap();
    within.put(b"b", b"n2 changed").unwrap();
    assert_eq!(keys(&within), [found("n", "b"), found("o", "a")]);
    let by_index = within.index("first").unwrap().range::<&[u8]>(..).unwrap();
    let values: Vec<_> = by_index.map(|row| row.unwrap().value).collect();
    assert_eq!(values, [b"n2 changed".to_vec(), b"o1 changed".to_vec()]);
    assert_eq!(rows(&within).len(), 2);
    trx.rollback().unwrap();
    assert_eq!(keys(&table), [found("n", "b"), found("o", "a")]);
}

/// At a level with locking reads, a read of only the keys locks the rows, too.
#[test]
fn the_keys_of_a_serializable_transaction_stay() {
    let db = database();
    let table = table(&db);
    table.put(b"a", b"m1").unwrap();
    let trx = begin(&db, Isolation::Serializable);
    assert_eq!(keys(&trx.table(&table)), [found("m", "a")]);
    let options = windfall::TransactionOptions::default().lock_wait(core::time::Duration::ZERO);
    let other = db.begin(options);
    other.table(&table).put(b"a", b"o2").unwrap_err();
    other.table(&table).put(b"b", b"o2").unwrap_err();
}
