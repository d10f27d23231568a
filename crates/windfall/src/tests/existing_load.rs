//! Tests of rows that are loaded into an empty table, on a simulated disk.

use std::collections::BTreeMap;

use proptest::{collection::btree_map, prelude::*};
use windfall_sim::{SimulatedDisk, Survive};

use super::load::{Row, assert_rest, at_each_crash, open, rows_by, rows_of, shuffled, value};
use crate::{
    Access, Database, IndexOptions, LoadOptions, Result, SuppliedChange, SuppliedEntry, Table, TableChanges,
    TableLoad, TableOptions, TransactionOptions,
    error::{DiskError, Error, LockError, Owner, SchemaError, UsageError},
};

/// A table with an index of the value, and one whose entries the caller supplies: unique, with payloads.
fn create(db: &Database) -> Result<Table> {
    let options = TableOptions::default()
        .metadata(vec![5; 3000])
        .index("some", IndexOptions::on_value(0..3))
        .index("made", IndexOptions::supplied(5).unique());
    db.create_table("t", options)
}

/// The place of the second of these indexes.
const MADE: usize = 1;

/// Calls `run` with the entries of a row, of which the value has such a number. Some rows have none, and some keys may
/// repeat.
fn with_entries<T>(value: &[u8], run: impl FnOnce(&[SuppliedChange<'_>]) -> T) -> T {
    let number = u32::from_be_bytes(value[3..7].try_into().unwrap());
    let key = if number % 7 == 1 { vec![0] } else { [&[1], &number.to_be_bytes()[..]].concat() };
    let payload = vec![number as u8; number as usize % 30];
    let entry = SuppliedEntry::new(&key).payload(&payload);
    let entry = if key == [0] { entry.may_repeat() } else { entry };
    run(&[SuppliedChange::new("made", None, (number % 7 != 2).then_some(entry))])
}

fn push(load: &mut TableLoad, (key, value): &Row) -> Result<()> {
    with_entries(value, |entries| load.push(key, value, entries))
}

fn push_all(load: &mut TableLoad, rows: &[Row]) -> Result<()> {
    rows.iter().try_for_each(|row| push(load, row))
}

fn insert(table: &Table<impl Access>, (key, value): &Row) -> Result<()> {
    with_entries(value, |entries| table.insert_with(key, value, entries))
}

fn begin(db: &Database, sorted: bool) -> Result<TableLoad> {
    if sorted { db.load_table("t") } else { db.load_table_unsorted("t") }
}

fn load(db: &Database, sorted: bool, rows: &[Row]) -> Result<()> {
    let mut load = begin(db, sorted)?;
    push_all(&mut load, rows)?;
    load.finish()
}

/// Returns the entries of an index: their keys, keys of rows and payloads.
fn entries(table: &Table, index: &str) -> Vec<(Vec<u8>, Vec<u8>, Vec<u8>)> {
    let keys = table.index(index).unwrap().keys::<&[u8]>(..).unwrap();
    keys.map(|entry| entry.map(|entry| (entry.index_key, entry.key, entry.payload)).unwrap()).collect()
}

fn rows(count: u32, length: usize) -> Vec<Row> {
    (0..count).map(|n| (n.to_be_bytes().to_vec(), value(n, length))).collect()
}

fn row_sizes() -> impl Strategy<Value = usize> {
    prop_oneof![8 => 0..200usize, 1 => 900..1100usize, 1 => 4000..20_000usize]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn loaded_rows_are_as_rows_that_were_inserted(
        sizes in btree_map(prop::collection::vec(any::<u8>(), 0..40), row_sizes(), 0..120),
        sorted in any::<bool>(),
        bound in 300..20_000usize,
        seed in any::<u64>(),
    ) {
        let disk = SimulatedDisk::new(1);
        let (db, env) = open(&disk, 128).unwrap();
        db.engine().catalog.pause.set_bounds(bound, usize::MAX);
        let row = |(n, (key, size)): (u32, (Vec<u8>, usize))| (key, value(n, size));
        let model: BTreeMap<_, _> = (0..).zip(sizes).map(row).collect();
        let all: Vec<Row> = model.clone().into_iter().collect();
        let table = create(&db).unwrap();
        load(&db, sorted, &if sorted { all.clone() } else { shuffled(all.clone(), seed) }).unwrap();
        let other = db.create_table("other", TableOptions::default()
            .index("some", IndexOptions::on_value(0..3))
            .index("made", IndexOptions::supplied(5).unique())).unwrap();
        all.iter().try_for_each(|row| insert(&other, row)).unwrap();
        prop_assert_eq!(rows_of(&table), model.clone());
        prop_assert_eq!(rows_by(&table, "some"), model);
        for index in ["some", "made"] {
            prop_assert_eq!(entries(&table, index), entries(&other, index));
        }
        prop_assert_eq!(table.row_count().unwrap(), other.row_count().unwrap());
        prop_assert_eq!(table.metadata().unwrap(), vec![5; 3000]);
        // The rows can be changed like others.
        for row in &all {
            let twice = insert(&table, row);
            let is_refused = matches!(twice, Err(Error::Schema(SchemaError::DuplicateKey { .. })));
            prop_assert!(is_refused, "{:?}", twice);
            let old = |entries: &[SuppliedChange<'_>]| {
                let entry = SuppliedChange { old: entries[0].new, new: None, ..entries[0] };
                table.delete_with(&row.0, &[entry])
            };
            prop_assert!(with_entries(&row.1, old).unwrap());
        }
        env.run_workers(200);
        prop_assert_eq!(entries(&table, "made").len() + entries(&table, "some").len(), 0);
        assert_rest(&db, &env, &disk, "after all");
        // Empty again, it can be loaded again.
        load(&db, false, &all).unwrap();
        prop_assert_eq!(rows_of(&table).len(), all.len());
        assert_rest(&db, &env, &disk, "loaded again");
    }
}

/// A row that is refused is left out, and the load goes on.
#[test]
fn a_row_that_is_refused_is_left_out() {
    let disk = SimulatedDisk::new(1);
    let (db, env) = open(&disk, 64).unwrap();
    let table = create(&db).unwrap();
    let all = rows(100, 30);
    for sorted in [true, false] {
        let mut load = begin(&db, sorted).unwrap();
        push_all(&mut load, &all[..50]).unwrap();
        let mut refused = |key: &[u8], value: &[u8], entries: &[SuppliedChange<'_>], messages: &[&str]| {
            let error = load.push(key, value, entries).unwrap_err().to_string();
            assert!(messages.iter().all(|part| error.contains(part)), "{messages:?} are not in: {error}");
        };
        let (key, value) = &all[99];
        let entry = SuppliedEntry::new(b"\x01long");
        let change = |index, old, new| SuppliedChange::new(index, old, new);
        let made = |new| change("made", None, new);
        refused(key, value, &[], &["index made of table t", "insert_with"]);
        refused(key, value, &[made(Some(entry)), made(None)], &["index made of table t", "twice"]);
        refused(key, value, &[made(None), change("some", None, None)], &["index some of table t"]);
        refused(key, value, &[made(None), change("none", None, None)], &["no index none"]);
        refused(key, value, &[change("made", Some(entry), None)], &["index made of table t"]);
        let long = vec![7; 5000];
        refused(&long, value, &[made(None)], &["table t", "5000"]);
        refused(key, value, &[made(Some(SuppliedEntry::new(&long)))], &["index made of table t", "5000"]);
        refused(key, value, &[made(Some(entry.payload(&long)))], &["index made of table t", "5000"]);
        if sorted {
            refused(&all[3].0, &all[3].1, &[made(None)], &["table t: row 51", "x03"]);
            refused(&all[49].0, &all[49].1, &[made(None)], &["table t", "row 51", "\\x001"]);
        }
        push_all(&mut load, &all[50..]).unwrap();
        load.finish().unwrap();
        assert_eq!(rows_of(&table), all.iter().cloned().collect());
        assert_rest(&db, &env, &disk, "what was not refused");
        db.truncate_table("t").unwrap();
    }
}

#[test]
fn a_load_may_take_more_memory_than_it_does_by_default() {
    const ROWS: u32 = 70_000;
    let (db, _) = open(&SimulatedDisk::new(1), 64).unwrap();
    db.create_table("t", TableOptions::default()).unwrap();
    let options = LoadOptions::default().unsorted().memory(128 << 20);
    let mut load = db.load_table_with("t", options).unwrap();
    let before = db.engine().pool.spaces().len();
    for n in (0..ROWS).rev() {
        load.push(&n.to_be_bytes(), &[7; 1000], &[]).unwrap();
    }
    assert_eq!(db.engine().pool.spaces().len(), before, "rows that fit in memory are written to a file");
}

#[test]
fn a_load_that_fails_leaves_the_table_as_it_was() {
    let disk = SimulatedDisk::new(1);
    let (db, env) = open(&disk, 64).unwrap();
    let table = create(&db).unwrap();
    db.engine().catalog.pause.set_bounds(3000, usize::MAX);
    let all = rows(120, 60);
    let fails = |what: &str, rows: &[Row], act: &dyn Fn(), is_it: &dyn Fn(&Error) -> bool| {
        let mut load = begin(&db, false).unwrap();
        push_all(&mut load, rows).unwrap();
        act();
        let error = load.finish().unwrap_err();
        assert!(is_it(&error), "{what}: {error:?}");
        assert!(error.to_string().contains("table t"), "{what}: {error}");
        assert_rest(&db, &env, &disk, what);
    };
    let with = |n: usize, row: Row| {
        let mut rows = all.clone();
        rows[n] = row;
        rows
    };
    // Errors of the rows.
    fails("a key twice", &with(7, all[90].clone()), &|| {}, &|error| {
        matches!(error, Error::Schema(SchemaError::DuplicateInputKey { index: None, key, row_key, .. })
            if **key == *all[90].0 && key == row_key)
    });
    let unique = with(8, (all[8].0.clone(), all[90].1.clone()));
    fails("a key of a unique index twice", &unique, &|| {}, &|error| {
        let Error::Schema(SchemaError::DuplicateInputKey { owner, index, key, row_key, .. }) = error else {
            return false;
        };
        assert!(all[8..9].iter().chain(&all[90..91]).any(|(row, _)| **row == **row_key), "{error}");
        assert!(key.len() == 5 && all[90].1[3..7] == key[1..], "{error}");
        matches!(owner, Owner::Index { index, .. } if **index == *"made") && *index == Some(MADE)
    });
    assert_eq!(table.row_count().unwrap(), 0);
    // What others do meanwhile.
    let row = &all[0];
    let not_empty = |error: &Error| matches!(error, Error::Schema(SchemaError::NotEmpty(_)));
    fails("a row of others", &all, &|| insert(&table, row).unwrap(), &not_empty);
    let error = begin(&db, true).unwrap_err();
    assert!(not_empty(&error) && error.to_string().contains("truncate"), "{error}");
    assert_eq!(rows_of(&table), [row.clone()].into());
    db.truncate_table("t").unwrap();
    let changed = |error: &Error| matches!(error, Error::Schema(SchemaError::DefinitionChanged(_)));
    let no_table = |error: &Error| matches!(error, Error::Schema(SchemaError::NoTable(_)));
    fails("a truncation", &all, &|| db.truncate_table("t").map(drop).unwrap(), &changed);
    fails(
        "another index",
        &all,
        &|| db.create_index("t", "more", IndexOptions::on_value(0..1)).unwrap(),
        &changed,
    );
    fails(
        "other metadata",
        &all,
        &|| {
            db.alter_table("t", TableChanges::default().metadata(vec![5])).map(drop).unwrap();
        },
        &changed,
    );
    fails("a rename", &all, &|| db.rename_table("t", "u").unwrap(), &no_table);
    db.rename_table("u", "t").unwrap();
    let replace = || {
        db.drop_table("t").unwrap();
        create(&db).unwrap();
    };
    fails("another table", &all, &replace, &changed);
    fails("another table, and no rows", &[], &replace, &changed);
    // A load that is dropped.
    let table = db.table("t").unwrap();
    let mut dropped = begin(&db, true).unwrap();
    push_all(&mut dropped, &all).unwrap();
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
    drop(dropped);
    assert_rest(&db, &env, &disk, "dropped");
    assert!(rows_of(&table).is_empty());
    // None of these blocks this one.
    load(&db, true, &all).unwrap();
    assert_eq!(rows_of(&table).len(), 120);
    assert_rest(&db, &env, &disk, "what did not fail");
}

#[test]
fn a_load_waits_for_transactions_that_have_changed_the_table() {
    let (db, env) = open(&SimulatedDisk::new(1), 64).unwrap();
    let table = create(&db).unwrap();
    let all = rows(30, 30);
    // Rows that are not committed, nor rolled back.
    let trx = db.begin(TransactionOptions::default());
    insert(&trx.table(&table), &all[0]).unwrap();
    assert!(matches!(begin(&db, true).unwrap_err(), Error::Schema(SchemaError::NotEmpty(_))));
    trx.rollback().unwrap();
    let patient = db.with_ddl_timeout(core::time::Duration::ZERO);
    let begun = || {
        let mut load = begin(&patient, true).unwrap();
        push_all(&mut load, &all).unwrap();
        load
    };
    let load = begun();
    let trx = db.begin(TransactionOptions::default());
    insert(&trx.table(&table), &all[0]).unwrap();
    let refused = load.finish().unwrap_err();
    assert!(matches!(refused, Error::Lock(LockError::Busy(_))), "{refused}");
    trx.commit().unwrap();
    assert_eq!(rows_of(&table).len(), 1);
    db.truncate_table("t").unwrap();
    // A transaction with a view from before the load finds the table truncated, and later ones find the rows.
    let before = db.begin(TransactionOptions::default().consistent_snapshot());
    begun().finish().unwrap();
    assert!(before.table(&table).get(&all[0].0).is_err());
    assert_eq!(db.begin(TransactionOptions::default()).table(&table).rows().unwrap().count(), 30);
    drop(before);
    env.run_workers(100);
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}

#[test]
fn numbers_continue_after_a_load() {
    let disk = SimulatedDisk::new(1);
    let (db, _) = open(&disk, 64).unwrap();
    let table = create(&db).unwrap();
    // Without numbers nothing is written of them.
    load(&db, true, &rows(10, 10)).unwrap();
    assert_eq!((table.peek_number().unwrap(), table.peek_row_id().unwrap()), (1, 1));
    db.truncate_table("t").unwrap();
    table.set_numbers(40).unwrap();
    table.reserve_row_ids(7).unwrap();
    load(&db, true, &rows(10, 10)).unwrap();
    assert_eq!((table.next_number().unwrap(), table.next_row_id().unwrap()), (40, 8));
    db.close().unwrap();
    drop(table);
    let (db, _) = open(&disk, 64).unwrap();
    let table = db.table("t").unwrap();
    assert_eq!((table.next_number().unwrap(), table.next_row_id().unwrap()), (41, 9));
    // A load without rows changes nothing.
    db.truncate_table("t").unwrap();
    table.set_numbers(5).unwrap();
    let trees = db.check().unwrap().trees.len();
    load(&db, false, &[]).unwrap();
    assert_eq!((table.next_number().unwrap(), db.check().unwrap().trees.len()), (5, trees));
}

fn load_for_a_while(db: &Database, sorted: bool) -> Result<()> {
    db.engine().catalog.pause.set_bounds(4000, usize::MAX);
    let table = create(db)?;
    table.reserve_numbers(3)?;
    let mut all = rows(60, 300);
    all[30].1 = value(30, 30_000);
    load(db, sorted, &if sorted { all } else { shuffled(all, 3) })
}

#[test]
fn a_crash_during_a_load_of_a_table_leaves_all_or_nothing() {
    let (mut whole, mut empty) = (0, 0);
    at_each_crash(load_for_a_while, |db, expected, acknowledged, what| {
        let Ok(table) = db.table("t") else {
            assert!(!acknowledged, "{what}: the table is absent");
            return;
        };
        let found = rows_of(&table);
        assert!(found.is_empty() || found == *expected, "{what}: other rows");
        assert!(rows_by(&table, "some") == found, "{what}: other rows by the index");
        assert_eq!(entries(&table, "made").is_empty(), found.is_empty(), "{what}");
        assert_eq!(table.row_count().unwrap(), found.len() as u64, "{what}");
        assert!(!found.is_empty() || !acknowledged, "{what}: the rows are lost");
        assert!(found.is_empty() || table.peek_number().unwrap() >= 4, "{what}: numbers");
        if found.is_empty() { empty += 1 } else { whole += 1 }
    });
    assert!(whole > 20 && empty > 30, "{whole} times whole, {empty} times empty");
}

#[test]
fn a_disk_that_becomes_full_during_a_load_of_a_table_leaves_it_empty() {
    let mut failures = 0;
    for sorted in [true, false] {
        for moment in 0.. {
            let disk = SimulatedDisk::new(1);
            let (db, env) = open(&disk, 64).unwrap();
            let table = create(&db).unwrap();
            disk.full_from(Some(disk.operations() + moment));
            let done = (0..4).try_for_each(|_| {
                db.engine().catalog.pause.set_bounds(4000, usize::MAX);
                load(&db, sorted, &rows(60, 300))?;
                db.truncate_table("t").map(drop)
            });
            let what = format!("sorted {sorted}, full from operation {moment} on");
            let Err(error) = done else { break };
            assert!(matches!(error, Error::Disk(DiskError::Full { .. })), "{what}: {error}");
            failures += 1;
            disk.full_from(None);
            env.run_workers(300);
            if rows_of(&table).is_empty() {
                load(&db, sorted, &rows(60, 300)).unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            assert_eq!(rows_of(&table).len(), 60, "{what}");
            env.run_workers(300);
            assert_rest(&db, &env, &disk, &what);
        }
    }
    assert!(failures > 10, "{failures} failures");
}

/// Rows whose deletion is still to be rolled back are rows, although the transaction has no lock any more.
#[test]
fn a_load_waits_for_rollbacks_in_the_background() {
    for is_found_by_recovery in [true, false] {
        let mut disk = SimulatedDisk::new(1);
        let (mut db, mut env) = open(&disk, 64).unwrap();
        let mut table = db.create_table("t", TableOptions::default()).unwrap();
        (0..20u8).try_for_each(|n| table.insert(&[n], b"committed")).unwrap();
        let trx = db.begin(TransactionOptions::default());
        (0..20u8).for_each(|n| assert!(trx.table(&table).delete(&[n]).unwrap()));
        if is_found_by_recovery {
            // Makes the log durable.
            db.create_table("other", TableOptions::default()).unwrap();
            core::mem::forget((trx, db));
            disk = disk.restart(Survive::Everything);
            (db, env) = open(&disk, 64).unwrap();
            table = db.table("t").unwrap();
        } else {
            db.engine().transactions.fail_at(1);
            assert!(trx.rollback().is_err());
            db.engine().transactions.fail_at(0);
        }
        let patient = db.with_ddl_timeout(core::time::Duration::ZERO);
        let mut load = patient.load_table("t").unwrap();
        load.push(&[100], b"loaded", &[]).unwrap();
        let refused = load.finish().unwrap_err();
        assert!(matches!(refused, Error::Lock(LockError::Busy(_))), "{refused}");
        let mut load = db.load_table("t").unwrap();
        load.push(&[100], b"loaded", &[]).unwrap();
        env.run_workers(500);
        assert!(matches!(load.finish(), Err(Error::Schema(SchemaError::NotEmpty(_)))));
        assert_eq!(rows_of(&table).len(), 20);
        assert_rest(&db, &env, &disk, "after the rollback");
    }
}

/// Entries with the longest payload are collected in runs like others, and a row with the same key twice is named
/// wherever the two are found.
#[test]
fn runs_of_entries_are_as_entries_in_memory() {
    let (db, _) = open(&SimulatedDisk::new(1), 64).unwrap();
    let table = create(&db).unwrap();
    let plain = db.create_table("plain", TableOptions::default()).unwrap();
    db.engine().catalog.pause.set_bounds(3000, usize::MAX);
    let payload = vec![7; 1022];
    let mut load = begin(&db, true).unwrap();
    for n in 0..40u32 {
        let key = n.to_be_bytes();
        let entry = SuppliedEntry::new(&key).payload(&payload);
        load.push(&key, &value(n, 5), &[SuppliedChange::new("made", None, Some(entry))]).unwrap();
        plain.insert(&key, &value(n, 5)).unwrap();
    }
    load.finish().unwrap();
    db.create_index_with("plain", "made", IndexOptions::supplied(5), |key, _, entry| {
        entry.key.extend_from_slice(key);
        entry.payload.extend_from_slice(&payload);
        Ok(true)
    })
    .unwrap();
    assert_eq!(entries(&table, "made"), entries(&plain, "made"));
    assert!(entries(&table, "made").iter().all(|entry| entry.2 == payload));
    let options = || TableOptions::default().index("some", IndexOptions::on_value(0..3));
    let twice = || (0..60u32).map(|n| Ok(((n / 2).to_be_bytes().to_vec(), value(5, 60))));
    let error = db.create_table_from_unsorted("twice", options(), twice()).unwrap_err();
    assert!(matches!(error, Error::Schema(SchemaError::DuplicateInputKey { .. })), "{error}");
    // Rows of one key, of which only the second one says that it may repeat.
    db.truncate_table("t").unwrap();
    let mut load = begin(&db, true).unwrap();
    for n in 0..3u32 {
        let entry = SuppliedEntry::new(b"a");
        let entry = if n == 1 { entry.may_repeat() } else { entry };
        let entry = SuppliedChange::new("made", None, Some(entry));
        load.push(&n.to_be_bytes(), &value(n, 5), &[entry]).unwrap();
    }
    let error = load.finish().unwrap_err();
    let is_right = matches!(&error, Error::Schema(SchemaError::DuplicateInputKey { index: Some(MADE), key, row_key, .. })
        if **key == *b"a" && **row_key == 0u32.to_be_bytes());
    assert!(is_right, "{error}");
}

/// A server may push the rows of one load from several threads, one after the other.
#[test]
fn a_load_goes_on_in_another_thread() {
    let (db, _) = open(&SimulatedDisk::new(1), 64).unwrap();
    let (table, all) = (create(&db).unwrap(), rows(20, 30));
    let mut load = begin(&db, true).unwrap();
    push_all(&mut load, &all[..10]).unwrap();
    std::thread::scope(|scope| {
        let rest = scope.spawn(|| {
            push_all(&mut load, &all[10..])?;
            load.finish()
        });
        rest.join().unwrap().unwrap();
    });
    assert_eq!(rows_of(&table), all.into_iter().collect());
}

/// A row that could not be written is missing: the load cannot be finished.
#[test]
fn a_load_that_lacks_a_row_cannot_be_finished() {
    let disk = SimulatedDisk::new(1);
    let (db, _) = open(&disk, 64).unwrap();
    let table = create(&db).unwrap();
    let all = rows(2000, 300);
    let mut load = begin(&db, true).unwrap();
    disk.full_from(Some(disk.operations()));
    let failed = all.iter().find_map(|row| push(&mut load, row).err()).expect("the disk is full");
    assert!(matches!(failed, Error::Disk(DiskError::Full { .. })), "{failed}");
    let mut first = begin(&db, true).unwrap();
    let long = (all[0].0.clone(), value(3, 3 << 20));
    push(&mut first, &long).expect_err("the disk is full");
    disk.full_from(None);
    let incomplete = |done: Result<()>| matches!(done, Err(Error::Usage(UsageError::Incomplete)));
    assert!(incomplete(first.finish()));
    assert!(incomplete(push(&mut load, &all[1999])));
    assert!(incomplete(load.finish()));
    assert!(rows_of(&table).is_empty());
}
