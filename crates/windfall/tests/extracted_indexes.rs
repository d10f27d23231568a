//! Indexes of which an extractor makes the entries: computed, sparse, multi-valued.
//!
//! **Purpose.** Every way of changing a table keeps the entries of its rows, whatever the extractor makes of them; what
//! goes wrong in an extractor is an error of the call, and changes nothing.
//!
//! **Invariants.** The index has the entries of the rows, and no others: each test compares it with the model, by
//! reading it and by a check (checked by `tests/extracted_indexes.rs::assert_is`).

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering::SeqCst},
    },
    time::Duration,
};

use common::{new_database, small_options};
use windfall::{
    CompositeKey, CompositePart, Database, Error, ExtractedEntries, FieldChange, IndexBatch, IndexOptions,
    Isolation, Lock, Options, Result, Table, TableOptions, TransactionOptions,
    error::{SchemaError, UsageError},
};
use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// A value is tags, each a byte; `!` panics and `?` fails.
fn extract(row: &[u8], value: &[u8], entries: &mut ExtractedEntries) -> Result<()> {
    assert!(!value.contains(&b'!'), "an exclamation mark");
    if value.contains(&b'?') {
        return Err(UsageError::Other("a question mark".into()).into());
    }
    for tag in value {
        entries.add_with((&[*tag], i64::from(value.len() as u8)), row);
    }
    Ok(())
}

/// Makes an entry for the first tag alone, unless that is in lower case.
#[expect(clippy::unnecessary_wraps, reason = "an extractor may fail")]
fn extract_first(_: &[u8], value: &[u8], entries: &mut ExtractedEntries) -> Result<()> {
    match value.first() {
        Some(tag) if tag.is_ascii_lowercase() => {}
        Some(tag) => entries.add((CompositePart::descending_of(*tag),)),
        None => entries.add((CompositePart::NULL,)),
    }
    Ok(())
}

fn options() -> Options {
    small_options().extractor("tags", extract).extractor("first", extract_first)
}

/// Rows with several entries in a batch of a locking cursor, and the lock that the first of them has.
#[test]
fn a_row_stays_locked_until_it_is_unlocked_for_each_entry() -> Result<()> {
    let (_folder, db) = new_database(options())?;
    let table = db.create_table("t", indexed())?;
    table.put(b"1", b"acb")?;
    table.put(b"2", b"b")?;
    let locked = || {
        let rows = db.locks().into_iter().filter_map(|held| match held.lock {
            Lock::Row(row, _) => Some(row.key.to_vec()),
            _ => None,
        });
        rows.collect::<BTreeSet<_>>()
    };
    let rows = |keys: &[&[u8]]| keys.iter().map(|key| key.to_vec()).collect::<BTreeSet<_>>();
    for (places, was_locked) in
        [([0, 2, 3], false), ([3, 2, 0], false), ([2, 0, 3], false), ([0, 2, 3], true)]
    {
        let trx = db.begin(TransactionOptions::default().isolation(Isolation::ReadCommitted));
        let own = trx.table(&table);
        if was_locked {
            own.get_for_update(b"1")?;
        }
        let (mut cursor, mut batch) = (own.index("tags")?.cursor_for_update()?, IndexBatch::default());
        cursor.next_batch(&mut batch)?;
        let found: Vec<_> = batch.iter().map(|entry| entry.key.to_vec()).collect();
        assert_eq!(found, [b"1", b"2", b"1", b"1"].map(|key| key.to_vec()));
        for (n, place) in places.into_iter().enumerate() {
            assert_eq!(locked(), rows(&[b"1", b"2"]), "{places:?}");
            let unlocks = n == 2 && !was_locked;
            assert_eq!(cursor.unlock_row_of(&mut batch, place)?, unlocks, "{places:?}");
            assert!(!cursor.unlock_row_of(&mut batch, place)?, "{places:?}: it was unlocked for this entry");
        }
        let left: &[&[u8]] = if was_locked { &[b"1", b"2"] } else { &[b"2"] };
        assert_eq!(locked(), rows(left), "{places:?}");
        assert!(cursor.unlock_row_of(&mut batch, 1)? && !cursor.unlock_row_of(&mut batch, 4)?);
        assert_eq!(locked(), rows(&left[..left.len() - 1]), "{places:?}");
    }
    Ok(())
}

fn indexed() -> TableOptions {
    let first = IndexOptions::extracted("first").unique();
    TableOptions::default().index("tags", IndexOptions::extracted("tags")).index("first", first)
}

fn open(disk: &SimulatedDisk, seed: u64, options: &Options) -> Result<(Database, SimulatedEnv)> {
    let env = SimulatedEnv::new(seed);
    let db = Database::open_on(Arc::new(disk.clone()), Arc::new(env.clone()), options, &|_| {});
    db.map(|db| (db, env))
}

/// Asserts that the table has these rows, and its indexes their entries.
fn assert_is(db: &Database, table: &Table, rows: &Rows) -> Result<()> {
    let found: Rows = table.rows()?.collect::<Result<_>>()?;
    assert_eq!(found, *rows);
    let mut expected = BTreeSet::new();
    for (row, value) in rows {
        for tag in value {
            let key = CompositeKey::of((&[*tag], i64::from(value.len() as u8)));
            expected.insert((key.into_bytes(), row.clone(), value.clone(), row.clone()));
        }
    }
    let found = table.index("tags")?.range::<&[u8]>(..)?;
    let found: Vec<_> = found
        .map(|row| row.map(|row| (row.index_key, row.key, row.value, row.payload)))
        .collect::<Result<_>>()?;
    assert_eq!(found, Vec::from_iter(expected));
    let first = rows.values().filter(|value| value.first().is_none_or(|tag| !tag.is_ascii_lowercase()));
    assert_eq!(table.index("first")?.keys::<&[u8]>(..)?.count(), first.count());
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}

fn model(rows: &[(&str, &str)]) -> Rows {
    rows.iter().map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
}

#[test]
fn every_change_keeps_the_entries_that_the_extractor_makes() {
    change_and_compare().unwrap();
}

fn change_and_compare() -> Result<()> {
    let disk = SimulatedDisk::new(1);
    let (db, _) = open(&disk, 1, &options())?;
    let table = db.create_table("t", indexed())?;
    table.insert(b"1", b"Xab")?;
    table.insert(b"2", b"Ya")?;
    table.insert(b"3", b"")?;
    table.insert(b"4", b"")?; // NULL may repeat.
    table.put(b"5", b"aaaa")?;
    assert_is(&db, &table, &model(&[("1", "Xab"), ("2", "Ya"), ("3", ""), ("4", ""), ("5", "aaaa")]))?;
    table.update(b"1", b"Xbc")?;
    table.put(b"2", b"b")?;
    table.put(b"3", b"Yc")?;
    assert!(table.delete(b"4")?);
    table.put_stream(b"5", 3, &mut &b"Zzz"[..])?;
    let rows = model(&[("1", "Xbc"), ("2", "b"), ("3", "Yc"), ("5", "Zzz")]);
    assert_is(&db, &table, &rows)?;
    let refused = table.insert(b"6", b"Xnew").expect_err("a duplicate key");
    assert!(
        matches!(&refused, Error::Schema(SchemaError::DuplicateKey { row, .. }) if **row == *b"1"),
        "{refused}"
    );
    assert!(table.update_with(b"1", b"Xnew", &[windfall::SuppliedChange::new("tags", None, None)]).is_err());
    assert_is(&db, &table, &rows)?;
    let by_b = table.index("tags")?;
    let keys =
        |tag: &[u8; 1]| by_b.get(&by_b.key((tag,)))?.map(|row| Ok(row?.key)).collect::<Result<Vec<_>>>();
    assert_eq!(
        (keys(b"b")?, keys(b"z")?, keys(b"a")?),
        (vec![b"2".to_vec(), b"1".to_vec()], vec![b"5".to_vec()], vec![])
    );
    db.close()?;
    let (db, _) = open(&disk, 2, &options())?;
    assert_is(&db, &db.table("t")?, &rows)?;
    db.close()
}

/// The key of the one entry stays, and its payload follows the row.
#[test]
fn a_payload_follows_its_row() -> Result<()> {
    let options = small_options().extractor("covering", |_, value, entries| {
        entries.add_with((&value[..1],), &value[1..]);
        Ok(())
    });
    let (_folder, db) = new_database(options)?;
    let by_first = TableOptions::default().index("i", IndexOptions::extracted("covering"));
    let table = db.create_table("t", by_first)?;
    table.insert(b"1", b"a one")?;
    let reader = db.begin(TransactionOptions::default());
    let payload = |index: &windfall::Index<_>| -> Result<Vec<Vec<u8>>> {
        index.keys::<&[u8]>(..)?.map(|entry| entry.map(|entry| entry.payload)).collect()
    };
    let old = reader.table(&table).index("i")?;
    let in_view = |index: &windfall::TxIndex| -> Result<Vec<Vec<u8>>> {
        index.keys::<&[u8]>(..)?.map(|entry| entry.map(|entry| entry.payload)).collect()
    };
    assert_eq!(in_view(&old)?, [b" one"]);
    table.put(b"1", b"a other")?;
    assert_eq!(
        (payload(&table.index("i")?)?, in_view(&old)?),
        (vec![b" other".to_vec()], vec![b" one".to_vec()])
    );
    let trx = db.begin(TransactionOptions::default());
    trx.table(&table).put(b"1", b"a")?;
    trx.rollback()?;
    assert_eq!(payload(&table.index("i")?)?, [b" other"]);
    drop(reader);
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    db.close()
}

#[test]
fn transactions_see_and_undo_the_entries_of_their_rows() -> Result<()> {
    for isolation in [
        Isolation::ReadUncommitted,
        Isolation::ReadCommitted,
        Isolation::RepeatableRead,
        Isolation::Snapshot,
        Isolation::Serializable,
    ] {
        let (_folder, db) = new_database(options())?;
        let table = db.create_table("t", indexed())?;
        table.insert(b"1", b"Xab")?;
        table.insert(b"2", b"Yb")?;
        let before = model(&[("1", "Xab"), ("2", "Yb")]);
        let reader = db.begin(TransactionOptions::default().isolation(Isolation::RepeatableRead));
        let old = reader.table(&table);
        assert_eq!(old.rows()?.count(), 2);
        let trx = db.begin(TransactionOptions::default().isolation(isolation));
        let own = trx.table(&table);
        let tags = |table: &windfall::TxTable| -> Result<Vec<(u8, u8)>> {
            let found = table.index("tags")?.range::<&[u8]>(..)?;
            found.map(|row| row.map(|row| (row.index_key[1], row.key[0]))).collect()
        };
        own.update(b"1", b"Xbcd")?;
        trx.savepoint("s")?;
        own.put(b"1", b"a")?;
        own.delete(b"2")?;
        own.insert(b"3", b"Xy")?; // The key that row 1 has left.
        assert_eq!(tags(&own)?, [(b'X', b'3'), (b'a', b'1'), (b'y', b'3')]);
        trx.rollback_to("s")?;
        assert_eq!(
            tags(&own)?,
            [(b'X', b'1'), (b'Y', b'2'), (b'b', b'2'), (b'b', b'1'), (b'c', b'1'), (b'd', b'1')]
        );
        assert_eq!(tags(&old)?, [(b'X', b'1'), (b'Y', b'2'), (b'a', b'1'), (b'b', b'2'), (b'b', b'1')]);
        trx.rollback()?;
        assert_eq!(tags(&old)?.len(), 5);
        drop(reader);
        assert_is(&db, &table, &before)?;
        let trx = db.begin(TransactionOptions::default().isolation(isolation));
        trx.table(&table).put(b"2", b"xyz")?;
        trx.commit()?;
        assert_is(&db, &table, &model(&[("1", "Xab"), ("2", "xyz")]))?;
        db.close()?;
    }
    Ok(())
}

#[test]
fn an_extractor_that_fails_or_panics_fails_the_call() -> Result<()> {
    let (_folder, db) = new_database(options())?;
    let table = db.create_table("t", indexed())?;
    table.insert(b"1", b"Xa")?;
    let rows = model(&[("1", "Xa")]);
    let trx = db.begin(TransactionOptions::default());
    for refused in [table.insert(b"2", b"?"), trx.table(&table).put(b"2", b"a?")] {
        assert!(refused.unwrap_err().to_string().contains("a question mark"));
    }
    for refused in [table.put(b"2", b"!"), table.update(b"1", b"b!"), trx.table(&table).insert(b"3", b"!")] {
        let refused = refused.unwrap_err();
        assert!(matches!(refused, Error::Usage(UsageError::ExtractorPanicked { .. })), "{refused}");
        for said in ["\"tags\"", "index tags", "table t", "an exclamation mark"] {
            assert!(refused.to_string().contains(said), "{refused}");
        }
    }
    // The transaction goes on.
    trx.table(&table).insert(b"4", b"Zc")?;
    trx.commit()?;
    let rows: Rows = rows.into_iter().chain(model(&[("4", "Zc")])).collect();
    assert_is(&db, &table, &rows)?;
    let plain = db.create_table("u", TableOptions::default())?;
    plain.insert(b"1", b"!")?;
    for loaded in ["!", "?"] {
        let loaded = [Ok((b"1".to_vec(), loaded.as_bytes().to_vec()))];
        assert!(db.create_table_from("v", indexed(), loaded).is_err());
        assert!(db.create_index("u", "tags", IndexOptions::extracted("tags")).is_err());
        plain.put(b"1", b"?")?;
    }
    assert!(db.table("v").is_err() && plain.index("tags").is_err());
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    db.close()
}

#[test]
fn without_its_extractor_a_table_can_be_read_and_not_changed() -> Result<()> {
    let disk = SimulatedDisk::new(1);
    let (db, _) = open(&disk, 1, &options())?;
    let table = db.create_table("t", indexed())?;
    table.insert(b"1", b"Xa")?;
    db.close()?;
    let (db, _) = open(&disk, 2, &small_options().extractor("first", extract_first))?;
    let table = db.table("t")?;
    assert_eq!(table.get(b"1")?.as_deref(), Some(&b"Xa"[..]));
    assert_eq!(table.index("tags")?.range::<&[u8]>(..)?.count(), 2);
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    let trx = db.begin(TransactionOptions::default());
    let refusals = [
        table.insert(b"2", b"Y"),
        table.put(b"1", b"Xa"),
        table.delete(b"1").map(drop),
        trx.table(&table).update(b"1", b"Xb"),
        table.put_fields(b"1", &[b"X", b"b"]),
        table.update_fields(b"1", &[FieldChange::Set(b"X")], &[]),
        table.put_stream(b"1", 2, &mut &b"Xb"[..]),
        table.change_key_with(b"1", b"3", b"Xa", &[]),
        db.create_table("u", indexed()).map(drop),
        db.create_index("t", "more", IndexOptions::extracted("tags")),
    ];
    for refused in refusals {
        let refused = refused.unwrap_err();
        assert!(matches!(refused, Error::Usage(UsageError::ExtractorMissing { .. })), "{refused}");
        for said in ["\"tags\"", "Options::extractor", "drop the index"] {
            assert!(refused.to_string().contains(said), "{refused}");
        }
    }
    assert!(table.insert(b"2", b"Y").unwrap_err().to_string().contains("index tags of table t"));
    drop(trx);
    db.truncate_table("t")?;
    let load = db.load_table("t")?.push(b"1", b"x", &[]);
    assert!(matches!(load, Err(Error::Usage(UsageError::ExtractorMissing { .. }))));
    db.drop_index("t", "tags")?;
    table.insert(b"2", b"Y")?;
    db.close()
}

#[test]
fn tables_are_loaded_and_indexes_built_with_the_entries_of_the_extractor() -> Result<()> {
    let (_folder, db) = new_database(options())?;
    let rows: Rows =
        (0..300u32).map(|n| (n.to_be_bytes().to_vec(), format!("a{}{n}", n % 7).into_bytes())).collect();
    let loaded = rows.iter().map(|(key, value)| Ok((key.clone(), value.clone())));
    let table = db.create_table_from("t", indexed(), loaded)?;
    assert_is(&db, &table, &rows)?;
    db.create_table("u", indexed())?;
    let mut load = db.load_table_unsorted("u")?;
    for (key, value) in rows.iter().rev() {
        load.push(key, value, &[])?;
    }
    load.finish()?;
    assert_is(&db, &db.table("u")?, &rows)?;
    let plain = db.create_table("v", TableOptions::default())?;
    rows.iter().try_for_each(|(key, value)| plain.insert(key, value))?;
    db.create_index("v", "tags", IndexOptions::extracted("tags"))?;
    db.create_index("v", "first", IndexOptions::extracted("first").unique())?;
    assert_is(&db, &plain, &rows)?;
    // Two rows with one key of a unique index.
    plain.insert(b"x", b"Q1")?;
    let double = db.create_table("w", TableOptions::default())?;
    double.insert(b"1", b"Q")?;
    double.insert(b"2", b"Q")?;
    let refused = db.create_index("w", "first", IndexOptions::extracted("first").unique()).unwrap_err();
    assert!(matches!(refused, Error::Schema(SchemaError::DuplicateKey { .. })), "{refused}");
    db.close()
}

#[test]
fn a_temporary_table_has_extracted_entries() -> Result<()> {
    let (_folder, db) = new_database(options())?;
    let session = db.session();
    let table = session.create_temporary_table("t", indexed())?;
    table.insert(b"1", b"Xab")?;
    table.put(b"1", b"bc")?;
    assert_eq!(table.index("tags")?.range::<&[u8]>(..)?.count(), 2);
    drop(session);
    db.close()
}

/// A value is longer than a page, and than what the extractor gets of it.
#[test]
fn an_extractor_gets_the_first_bytes_of_a_long_value() -> Result<()> {
    let lengths = Arc::new(std::sync::Mutex::new(BTreeSet::new()));
    let seen = lengths.clone();
    let options = small_options().extractor("length", move |_, value, entries| {
        seen.lock().expect("no thread has panicked").insert(value.len());
        entries.add((value.len() as u64, &value[..1]));
        Ok(())
    });
    let (_folder, db) = new_database(options)?;
    let by_length = TableOptions::default().index("length", IndexOptions::extracted("length"));
    let table = db.create_table("t", by_length)?;
    table.insert(b"1", &vec![7; 30_000])?;
    table.insert(b"2", &vec![8; 100_000])?;
    table.update(b"2", &vec![9; 70_000])?;
    table.delete(b"1")?;
    assert_eq!(*lengths.lock().expect("no thread has panicked"), BTreeSet::from([30_000, 64 << 10]));
    let keys = table.index("length")?.keys::<&[u8]>(..)?.collect::<Result<Vec<_>>>()?;
    assert_eq!(keys.len(), 1);
    let parts: Vec<_> = CompositeKey::parts(&keys[0].index_key).collect::<Result<_>>()?;
    assert_eq!(parts, [(64 << 10).into(), (&[9u8]).into()]);
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    db.close()
}

#[test]
fn a_check_finds_entries_that_an_extractor_no_longer_makes() -> Result<()> {
    let added = Arc::new(AtomicU8::new(0));
    let adds = added.clone();
    let options = small_options().extractor("moving", move |_, value, entries| {
        for tag in value {
            entries.add((tag + adds.load(SeqCst),));
        }
        Ok(())
    });
    let (_folder, db) = new_database(options)?;
    let by_tag = TableOptions::default().index("tags", IndexOptions::extracted("moving"));
    let table = db.create_table("t", by_tag)?;
    table.insert(b"1", b"ac")?;
    table.insert(b"2", b"e")?;
    added.store(1, SeqCst);
    for refused in [table.put(b"1", b"x"), table.delete(b"1").map(drop)] {
        let refused = refused.unwrap_err();
        assert!(matches!(refused, Error::Usage(UsageError::ExtractorDiffers { .. })), "{refused}");
        assert!(refused.to_string().contains("create it again"), "{refused}");
    }
    let findings = db.check()?.findings;
    assert!(findings[0].contains("makes 3 of the rows, of which 3 are not there"), "{findings:?}");
    // As many, but others; then one too many.
    table.insert(b"3", b"g")?;
    added.store(0, SeqCst);
    assert!(db.check()?.findings[0].contains("4 entries, but the extractor \"moving\" makes 4"));
    db.drop_index("t", "tags")?;
    db.create_index("t", "tags", IndexOptions::extracted("moving"))?;
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    table.delete(b"1")?;
    assert_eq!(table.index("tags")?.range::<&[u8]>(..)?.count(), 2);
    db.close()
}

#[test]
fn an_extractor_cannot_wait_in_the_database() -> Result<()> {
    let handle: Arc<std::sync::Mutex<Option<Database>>> = Arc::default();
    let shared = handle.clone();
    let options = small_options().extractor("calls", move |_, _, entries| {
        entries.add((1,));
        let db = shared.lock().expect("no thread has panicked").clone();
        db.map_or(Ok(()), |db| db.drop_table("t").map(drop))
    });
    let (_folder, db) = new_database(options)?;
    let table = db.create_table("t", TableOptions::default().index("i", IndexOptions::extracted("calls")))?;
    *handle.lock().expect("no thread has panicked") = Some(db.clone());
    assert!(table.insert(b"1", b"").is_err());
    *handle.lock().expect("no thread has panicked") = None;
    table.insert(b"1", b"")?;
    assert_eq!(table.index("i")?.keys::<&[u8]>(..)?.count(), 1);
    drop(table);
    db.close()
}

/// The machine crashes at each operation of the disk: the index has the entries of the rows that are there.
#[test]
fn a_crash_at_any_point_leaves_the_entries_of_the_rows() -> Result<()> {
    let disk = SimulatedDisk::new(1);
    let (db, env) = open(&disk, 1, &options())?;
    let table = db.create_table("t", indexed())?;
    disk.record_crash_points(disk.operations() + 1..=u64::MAX);
    table.insert(b"1", b"Xab")?;
    table.put(b"1", b"bcd")?;
    let trx = db.begin(TransactionOptions::default());
    trx.table(&table).insert(b"2", b"Yab")?;
    env.run_workers(50);
    db.checkpoint()?;
    trx.table(&table).put(b"1", b"Zde")?;
    trx.commit()?;
    let trx = db.begin(TransactionOptions::default());
    trx.table(&table).delete(b"2")?;
    trx.table(&table).put(b"1", b"Q")?;
    db.checkpoint()?;
    trx.rollback()?;
    db.create_index("t", "more", IndexOptions::extracted("tags"))?;
    table.delete(b"1")?;
    env.run_workers(200);
    db.checkpoint()?;
    drop((table, db));
    let (mut states, mut with_more) = (BTreeSet::new(), 0);
    for (operation, crashed) in disk.take_crash_points() {
        for survive in [Survive::Nothing, Survive::Everything, Survive::Random(operation)] {
            let disk = crashed.restart(survive);
            if operation % 2 == 0 {
                // Recovery, rollback and purge need no extractor.
                let (db, env) = open(&disk, operation, &small_options())?;
                env.run_workers(100);
                db.close()?;
            }
            let (db, env) = open(&disk, operation, &options())?;
            env.run_workers(100);
            let table = db.table("t")?;
            let rows: Rows = table.rows()?.collect::<Result<_>>()?;
            assert_is(&db, &table, &rows)?;
            if let Ok(more) = table.index("more") {
                assert_eq!(more.keys::<&[u8]>(..)?.count(), rows.values().map(Vec::len).sum::<usize>());
                with_more += 1;
            }
            states.insert(rows);
        }
    }
    assert!(states.len() == 5 && with_more > 5, "{with_more} times with the second index: {states:?}");
    Ok(())
}

/// A history of transactions at all levels, step by step: what a read view sees of the index are the entries of the
/// rows that it sees.
#[test]
fn any_view_sees_the_entries_of_the_rows_that_it_sees() -> Result<()> {
    const LEVELS: [Isolation; 5] = [
        Isolation::ReadUncommitted,
        Isolation::ReadCommitted,
        Isolation::RepeatableRead,
        Isolation::Snapshot,
        Isolation::Serializable,
    ];
    let mut compared = 0;
    for seed in 0..60u64 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = |below: u64| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (random >> 33) % below
        };
        let (disk, options) = (SimulatedDisk::new(seed), options().lock_wait_timeout(Duration::ZERO));
        let (db, env) = open(&disk, seed, &options)?;
        let table = db.create_table("t", indexed())?;
        let mut open_transactions: Vec<Option<windfall::Transaction>> = (0..4).map(|_| None).collect();
        let mut committed = Rows::new();
        let mut pending: Vec<Rows> = vec![Rows::new(); 4];
        let mut touched: Vec<BTreeSet<Vec<u8>>> = vec![BTreeSet::new(); 4];
        for _ in 0..120 {
            let n = next(4) as usize;
            let level = LEVELS[next(5) as usize];
            let Some(trx) = &open_transactions[n] else {
                let options = TransactionOptions::default().isolation(level);
                open_transactions[n] = Some(db.begin(options));
                continue;
            };
            let own = trx.table(&table);
            let key = vec![b'0' + next(6) as u8];
            let value: Vec<u8> = (0..next(4)).map(|_| b"Xabcd"[next(5) as usize]).collect();
            let changed = match next(12) {
                0..3 => own.put(&key, &value).is_ok(),
                3 => own.update(&key, &value).is_ok(),
                4 => own.insert(&key, &value).is_ok(),
                5 | 6 => {
                    if own.delete(&key).is_ok_and(|found| found) {
                        pending[n].remove(&key);
                        touched[n].insert(key);
                    }
                    continue;
                }
                7 => {
                    trx.begin_statement()?;
                    let (rows, entries) = (rows_of(&own), entries_of(&own));
                    trx.end_statement(windfall::StatementEnd::Keep)?;
                    if let (Ok(rows), Ok(entries)) = (rows, entries) {
                        assert_eq!(entries, expected_of(&rows), "seed {seed}: {rows:?}");
                        compared += 1;
                    }
                    continue;
                }
                8 => {
                    trx.begin_statement()?;
                    let _: [Result<()>; 2] = [own.put(&key, &value), own.put(b"1", &value)];
                    trx.end_statement(windfall::StatementEnd::Undo)?;
                    continue;
                }
                9 => {
                    let trx = open_transactions[n].take().expect("it is open");
                    if next(3) == 0 {
                        trx.rollback()?;
                    } else {
                        trx.commit()?;
                        for key in core::mem::take(&mut touched[n]) {
                            match pending[n].remove(&key) {
                                Some(value) => committed.insert(key, value),
                                None => committed.remove(&key),
                            };
                        }
                    }
                    (pending[n], touched[n]) = Default::default();
                    continue;
                }
                10 => {
                    env.run_workers(20);
                    continue;
                }
                _ => {
                    let rows: Rows = table.rows()?.collect::<Result<_>>()?;
                    assert_eq!(rows, committed, "seed {seed}");
                    let found = table.index("tags")?.range::<&[u8]>(..)?;
                    let found: Result<Vec<_>> =
                        found.map(|row| row.map(|row| (row.index_key, row.key))).collect();
                    assert_eq!(found?, expected_of(&rows), "seed {seed}");
                    continue;
                }
            };
            if changed {
                pending[n].insert(key.clone(), value);
                touched[n].insert(key);
            }
        }
        drop(open_transactions);
        env.run_workers(200);
        assert_is(&db, &table, &committed)?;
    }
    assert!(compared > 200, "{compared}");
    Ok(())
}

/// The index key and the row's key of each entry.
type Entries = Vec<(Vec<u8>, Vec<u8>)>;

fn rows_of(table: &windfall::TxTable) -> Result<Rows> {
    table.rows()?.collect()
}

fn entries_of(table: &windfall::TxTable) -> Result<Entries> {
    table
        .index("tags")?
        .keys::<&[u8]>(..)?
        .map(|entry| entry.map(|entry| (entry.index_key, entry.key)))
        .collect()
}

fn expected_of(rows: &Rows) -> Entries {
    let entries = rows.iter().flat_map(|(row, value)| {
        let key = |tag: &u8| CompositeKey::of((&[*tag], i64::from(value.len() as u8))).into_bytes();
        value.iter().map(key).map(|key| (key, row.clone())).collect::<Vec<_>>()
    });
    Vec::from_iter(entries.collect::<BTreeSet<_>>())
}
