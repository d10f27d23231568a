//! Indexes that a function of the caller fills: entries that it makes of rows that exist.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    thread,
};

use windfall::{
    Database, Error, IndexKey, IndexOptions, MadeEntry, Result, SuppliedChange, SuppliedEntry, Table,
    TableOptions,
    error::{SchemaError, UsageError},
};

use super::database;

/// Makes an entry of a value: in lower case, with a terminator, and the value as payload. Empty ones are left out.
#[expect(clippy::unnecessary_wraps, reason = "the type of such functions")]
fn lower_case(_: &[u8], value: &[u8], entry: &mut MadeEntry) -> Result<bool> {
    assert_eq!(*entry, MadeEntry::default(), "the entry of another row");
    entry.key.extend(value.iter().map(u8::to_ascii_lowercase).chain([0]));
    entry.payload.extend_from_slice(value);
    Ok(!value.is_empty())
}

fn towns(db: &Database) -> Table {
    let table = db.create_table("towns", TableOptions::default()).unwrap();
    for (n, name) in ["Genf", "BASEL", "", "Chur", "arau"].into_iter().enumerate() {
        table.insert(&[n as u8], name.as_bytes()).unwrap();
    }
    table
}

/// Returns the keys of rows and the payloads, in the order of the index.
fn entries(table: &Table, index: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let keys = table.index(index).unwrap().keys::<&[u8]>(..).unwrap();
    keys.map(|entry| entry.map(|IndexKey { key, payload, .. }| (key, payload)).unwrap()).collect()
}

#[test]
fn a_function_makes_the_entries_of_the_rows_that_exist() {
    let db = database();
    let table = towns(&db);
    db.create_index_with("towns", "name", IndexOptions::supplied(4).unique(), lower_case).unwrap();
    let expected = [(4, "arau"), (1, "BASEL"), (3, "Chur"), (0, "Genf")];
    let expected = expected.map(|(key, payload): (u8, &str)| (vec![key], payload.as_bytes().to_vec()));
    assert_eq!(entries(&table, "name"), expected);
    // It is an index as any other one now.
    let entry = |key| [SuppliedChange::new("name", None, Some(SuppliedEntry::new(key)))];
    let missing = table.insert(&[9], b"Zug").unwrap_err();
    assert!(matches!(missing, Error::Usage(UsageError::EntryMissing { .. })), "{missing}");
    let twice = table.insert_with(&[9], b"Chur", &entry(b"chur\0")).unwrap_err();
    assert!(
        matches!(&twice, Error::Schema(SchemaError::DuplicateKey { row, .. }) if **row == [3]),
        "{twice}"
    );
    table.insert_with(&[9], b"Zug", &entry(b"zug\0")).unwrap();
    let old = SuppliedChange::new("name", Some(SuppliedEntry::new(b"basel\0")), None);
    assert!(table.delete_with(&[1], &[old]).unwrap());
    assert_eq!(entries(&table, "name").len(), 4);
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}

#[test]
fn an_index_that_a_function_cannot_fill_is_refused() {
    let db = database();
    let table = towns(&db);
    let refused = |options: IndexOptions, make: fn(&[u8], &[u8], &mut MadeEntry) -> Result<bool>| {
        let error = db.create_index_with("towns", "i", options, make).unwrap_err();
        assert!(matches!(error, Error::Schema(_) | Error::Usage(_)), "{error:?}");
        assert!(table.index("i").is_err(), "{error}");
        assert_eq!(
            db.check().unwrap().trees.iter().filter(|tree| tree.index.is_some()).count(),
            0,
            "{error}"
        );
        error.to_string()
    };
    let supplied = || IndexOptions::supplied(4);
    let error = refused(IndexOptions::on_value(0..1), lower_case);
    assert!(error.contains("index i of table towns") && error.contains("pass no entry"), "{error}");
    let error = refused(supplied(), |_, value, _| {
        if value.is_empty() {
            Err(UsageError::Other("a town without a name".into()).into())
        } else {
            Ok(false)
        }
    });
    assert!(error.contains("a town without a name"), "{error}");
    let error = refused(supplied().unique(), |_, value, entry| {
        entry.key.push(u8::try_from(value.len()).unwrap());
        Ok(true)
    });
    assert!(error.contains("index i of table towns"), "{error}");
    // A unique index that takes some values for NULL.
    let nulls = |_: &[u8], value: &[u8], entry: &mut MadeEntry| {
        entry.key.push(u8::try_from(value.len()).unwrap());
        entry.may_repeat = value.len() == 4;
        Ok(true)
    };
    db.create_index_with("towns", "nulls", supplied().unique(), nulls).unwrap();
    assert_eq!(entries(&table, "nulls").len(), 5);
    db.drop_index("towns", "nulls").unwrap();
    let error = refused(supplied(), |_, _, entry| {
        entry.key.resize(5000, 7);
        Ok(true)
    });
    assert!(error.contains("index i of table towns") && error.contains("5000"), "{error}");
    let error = refused(supplied(), |_, _, entry| {
        entry.payload.resize(5000, 7);
        Ok(true)
    });
    assert!(error.contains("index i of table towns") && error.contains("5000"), "{error}");
}

/// Two rows whose entries have the same bytes, of key and row key together, are refused however they are found.
#[test]
fn keys_that_are_not_self_delimiting_are_refused() {
    let db = database();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    table.insert(b"b", b"a").unwrap();
    table.insert(b"ab", b"").unwrap();
    let error = db
        .create_index_with("t", "i", IndexOptions::supplied(1), |_, value, entry| {
            entry.key.extend_from_slice(value);
            Ok(true)
        })
        .unwrap_err();
    assert!(matches!(error, Error::Usage(UsageError::EntryOfOtherRow { .. })), "{error}");
    assert!(error.to_string().contains("index i of table t"), "{error}");
}

#[test]
fn a_function_that_panics_fails_an_index_build() {
    let db = database();
    let table = towns(&db);
    for panics_at in [1, 4] {
        let mut calls = 0;
        let panics = |key: &[u8], value: &[u8], entry: &mut MadeEntry| {
            calls += 1;
            assert!(calls < panics_at, "it panics on purpose");
            lower_case(key, value, entry)
        };
        let build = || db.create_index_with("towns", "i", IndexOptions::supplied(4), panics);
        let payload = catch_unwind(AssertUnwindSafe(build)).unwrap_err();
        assert!(payload.downcast_ref::<&str>().is_some_and(|text| text.contains("on purpose")));
        // The table is as before, and can be used.
        assert!(table.index("i").is_err());
        table.insert(&[10 + panics_at], b"Bern").unwrap();
    }
    db.create_index_with("towns", "i", IndexOptions::supplied(4), lower_case).unwrap();
    assert_eq!(entries(&table, "i").len(), 6);
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}

/// The function may hold up the row's writers: what would wait for them is refused.
#[test]
fn a_function_that_calls_the_database_waits_for_nothing() {
    let db = database();
    let table = towns(&db);
    let mut refused = Vec::new();
    db.create_index_with("towns", "i", IndexOptions::supplied(4), |key, value, entry| {
        assert!(table.get(key).unwrap().is_some());
        refused.extend(db.drop_table("towns").err());
        lower_case(key, value, entry)
    })
    .unwrap();
    assert!(!refused.is_empty());
    let in_call = |error: &Error| matches!(error, Error::Usage(UsageError::StatementInCall));
    assert!(refused.iter().all(in_call), "{refused:?}");
}

/// Threads supply the entries of one index while another one is built.
#[test]
fn writers_supply_entries_of_other_indexes_during_the_build() {
    let db = database();
    let options = TableOptions::default().index("length", IndexOptions::supplied(2));
    let table = db.create_table("t", options).unwrap();
    let write = |n: u32, by: &[u8]| {
        let value = [by, &n.to_be_bytes()].concat();
        let length = (value.len() as u16).to_be_bytes();
        let entry = SuppliedEntry::new(&length);
        table.insert_with(&n.to_be_bytes(), &value, &[SuppliedChange::new("length", None, Some(entry))])
    };
    (0..2000).for_each(|n| write(n, b"first").unwrap());
    let (built, next) = (AtomicBool::new(false), AtomicU32::new(2000));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                // The new index is complete as soon as a writer is asked for its entry.
                while !built.load(SeqCst) {
                    match write(next.fetch_add(1, SeqCst), b"later") {
                        Ok(()) => {}
                        Err(Error::Usage(UsageError::EntryMissing { .. })) => return,
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        let mut calls = 0;
        db.create_index_with("t", "value", IndexOptions::supplied(9), |_, value, entry| {
            calls += 1;
            // Some rows are written after the build has begun.
            while calls == 100 && next.load(SeqCst) < 2100 {
                thread::yield_now();
            }
            entry.key.extend_from_slice(value);
            Ok(true)
        })
        .unwrap();
        built.store(true, SeqCst);
    });
    let mut rows = table.rows().unwrap().collect::<Result<Vec<_>>>().unwrap();
    assert!(rows.len() >= 2098, "{} rows", rows.len());
    rows.sort_by(|one, other| one.1.cmp(&other.1));
    let expected: Vec<Vec<u8>> = rows.into_iter().map(|(key, _)| key).collect();
    let found: Vec<Vec<u8>> = entries(&table, "value").into_iter().map(|(key, _)| key).collect();
    assert_eq!(found, expected);
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}
