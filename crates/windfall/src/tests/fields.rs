//! Tests of rows that are stored field by field, on a simulated disk.

use std::collections::BTreeMap;

use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

use super::load::{assert_rest, open, rows_of};
use crate::{
    Access, Cursor, Database, FieldChange, IndexOptions, Isolation, Result, Table, TableOptions,
    TransactionOptions, Values,
    env::Env as _,
    error::{Error, UsageError},
    row::{self, FieldSet},
    sync::work::{self, Work},
};

/// The fields of the rows, by their keys.
type Rows = BTreeMap<Vec<u8>, Vec<Vec<u8>>>;

fn create(db: &Database) -> Result<Table> {
    let options = TableOptions::default()
        .index("first", IndexOptions::on_value(0..0).and_field(0))
        .index("third", IndexOptions::on_value(0..0).and_field(2));
    db.create_table("t", options)
}

/// Returns a field. With pages of 4 KiB one of 1,024 bytes needs a chain.
fn random_field(chance: &SimulatedEnv) -> Vec<u8> {
    let length = [0, 3, 40, 300, 700, 1_200, 5_000, 30_000][(chance.random() % 8) as usize];
    vec![b'a' + (chance.random() % 26) as u8; length]
}

fn random_fields(chance: &SimulatedEnv) -> Vec<Vec<u8>> {
    let short = |n: u64| vec![b'a' + (chance.random() % 26) as u8; n as usize];
    let mut fields: Vec<_> = (0..chance.random() % 5).map(|_| random_field(chance)).collect();
    // Index keys must not be too long.
    for n in [0, 2] {
        if fields.len() > n {
            fields[n] = short(n as u64 + 2);
        }
    }
    fields
}

fn slices(fields: &[Vec<u8>]) -> Vec<&[u8]> {
    fields.iter().map(Vec::as_slice).collect()
}

/// Changes a random row, in the table and in the model.
fn change(table: &Table<impl Access>, rows: &mut Rows, chance: &SimulatedEnv) -> Result<()> {
    let key = vec![b'a' + (chance.random() % 14) as u8];
    let Some(old) = rows.get(&key).cloned() else {
        let new = random_fields(chance);
        if chance.random().is_multiple_of(4) {
            table.insert(&key, &row::encode(&new))?;
        } else {
            table.insert_fields(&key, &slices(&new), &[])?;
        }
        rows.insert(key, new);
        return Ok(());
    };
    match chance.random() % 12 {
        10 | 11 => {
            let new_key = vec![b'a' + (chance.random() % 14) as u8];
            let is_taken = new_key != key && rows.contains_key(&new_key);
            let mut new = old;
            let mut fields = vec![FieldChange::Keep; new.len()];
            let first = random_fields(chance).into_iter().next();
            if let (Some(field), Some(first)) = (new.first_mut(), first) {
                *field = first;
            }
            if let (Some(field), Some(change)) = (new.first(), fields.first_mut()) {
                *change = FieldChange::Set(field);
            }
            let done = table.change_key_fields(&key, &new_key, &fields, &[]);
            if is_taken {
                let is_duplicate =
                    matches!(done, Err(Error::Schema(crate::error::SchemaError::DuplicateKey { .. })));
                return if is_duplicate { Ok(()) } else { done };
            }
            done?;
            rows.remove(&key);
            rows.insert(new_key, new);
        }
        0 | 1 => {
            assert!(table.delete(&key)?, "row {key:?} of {:?}", old.iter().map(Vec::len).collect::<Vec<_>>());
            rows.remove(&key);
        }
        2 => {
            let new = random_fields(chance);
            table.put(&key, &row::encode(&new))?;
            rows.insert(key, new);
        }
        _ => {
            let mut new = random_fields(chance);
            let keeps: Vec<bool> =
                (0..new.len()).map(|n| n < old.len() && !chance.random().is_multiple_of(3)).collect();
            (0..new.len()).filter(|n| keeps[*n]).for_each(|n| new[n].clone_from(&old[n]));
            let fields: Vec<_> = new
                .iter()
                .zip(keeps)
                .map(|(field, keeps)| if keeps { FieldChange::Keep } else { FieldChange::Set(field) })
                .collect();
            table.update_fields(&key, &fields, &[])?;
            rows.insert(key, new);
        }
    }
    Ok(())
}

fn encoded(rows: &Rows) -> BTreeMap<Vec<u8>, Vec<u8>> {
    rows.iter().map(|(key, fields)| (key.clone(), row::encode(fields))).collect()
}

fn all_of(cursor: &mut Cursor) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut all = Vec::new();
    while cursor.next()? {
        let (key, value) = cursor.row().unwrap();
        all.push((key.to_vec(), value.to_vec()));
    }
    Ok(all)
}

/// Asserts that the table has these rows, in every way of reading.
fn assert_rows(table: &Table, rows: &Rows, chance: &SimulatedEnv, what: &str) -> Result<()> {
    let expected = encoded(rows);
    assert!(rows_of(table) == expected, "{what}: other rows");
    for (place, index) in [(0, "first"), (2, "third")] {
        let mut by_key: Vec<_> = rows
            .iter()
            .map(|(key, fields)| (fields.get(place).cloned().unwrap_or_default(), key.clone()))
            .collect();
        by_key.sort_unstable();
        let found: Vec<_> = table.index(index)?.range::<&[u8]>(..)?.collect::<Result<_>>()?;
        let found = found.into_iter().map(|row| (row.index_key, row.key, row.value));
        let by_key = by_key.into_iter().map(|(index_key, key)| {
            let value = expected[&key].clone();
            (index_key, key, value)
        });
        assert!(found.eq(by_key), "{what}: other rows by {index}");
    }
    let keys: Vec<_> = (b'a'..b'a' + 14).map(|key| [key]).collect();
    let mut many = Values::default();
    table.get_many(&keys, &mut many)?;
    let selected = (0..5).filter(|_| chance.random().is_multiple_of(2)).fold(FieldSet::NONE, FieldSet::with);
    let reads_some = table.select_fields(selected);
    let mut sampled = 0;
    reads_some.sample_leaves(1000, |leaf, _| {
        sampled += leaf.len();
        true
    })?;
    assert_eq!(sampled, rows.len(), "{what}");
    let some: BTreeMap<_, _> = all_of(&mut reads_some.cursor()?)?.into_iter().collect();
    for (n, key) in keys.iter().enumerate() {
        let value = expected.get(&key[..]);
        assert!(many.get(n) == value.map(Vec::as_slice), "{what}: row {key:?}");
        let mut out = Vec::new();
        let length = table.read_stream(key, &mut out)?;
        assert!(length.map(|_| &out) == value && length.is_none_or(|n| n == out.len() as u64), "{what}");
        let read = reads_some.get(key)?;
        assert!(read.as_ref() == some.get(&key[..]), "{what}: another row by a cursor");
        let Some(fields) = rows.get(&key[..]) else { continue };
        let read = read.unwrap();
        assert_eq!(row::count(&read), fields.len(), "{what}");
        for (n, field) in fields.iter().enumerate() {
            let found = row::field(&read, n).unwrap();
            let may_be_absent = !selected.contains(n);
            assert!(found == field || may_be_absent && found.is_empty(), "{what}: field {n} of {key:?}");
        }
        out.clear();
        reads_some.read_stream(key, &mut out)?;
        assert!(out == read, "{what}: another row by a stream");
    }
    Ok(())
}

#[test]
fn rows_of_fields_match_the_model() {
    for seed in 0..6 {
        compare_with_model(seed).unwrap();
    }
}

fn compare_with_model(seed: u64) -> Result<()> {
    let (disk, chance) = (SimulatedDisk::new(seed), SimulatedEnv::new(seed));
    let (db, env) = open(&disk, 256)?;
    let table = create(&db)?;
    let mut rows = Rows::new();
    let mut views = Vec::new();
    for n in 0..100 {
        let what = format!("seed {seed}, step {n}");
        if chance.random().is_multiple_of(2) {
            change(&table, &mut rows, &chance)?;
            assert!(rows_of(&table) == encoded(&rows), "{what}: other rows");
        } else {
            let trx = db.begin(TransactionOptions::default());
            let in_trx = trx.table(&table);
            let mut changed = rows.clone();
            for _ in 0..=chance.random() % 4 {
                change(&in_trx, &mut changed, &chance)?;
                let before = changed.clone();
                let savepoint = trx.set_savepoint()?;
                change(&in_trx, &mut changed, &chance)?;
                if chance.random().is_multiple_of(2) {
                    trx.rollback_to_savepoint(&savepoint)?;
                    changed = before;
                }
                assert!(in_trx.rows()?.collect::<Result<BTreeMap<_, _>>>()? == encoded(&changed), "{what}");
            }
            for (key, fields) in &changed {
                assert!(in_trx.get_for_update(key)? == Some(row::encode(fields)), "{what}: locked row");
            }
            if chance.random().is_multiple_of(4) {
                trx.rollback()?;
            } else {
                trx.commit()?;
                rows = changed;
            }
        }
        if n % 10 == 0 {
            env.run_workers(60);
            assert_rows(&table, &rows, &chance, &what)?;
            let options = TransactionOptions::default().isolation(Isolation::RepeatableRead);
            views.push((db.begin(options.consistent_snapshot()), rows.clone()));
            if views.len() > 3 {
                drop(views.remove(0));
            }
        }
        if let Some((view, rows)) = views.first() {
            let found = view.table(&table).rows()?.collect::<Result<BTreeMap<_, _>>>()?;
            assert!(found == encoded(rows), "{what}: in a view");
        }
    }
    drop(views);
    assert_rest(&db, &env, &disk, "changed");
    let trx = db.begin(TransactionOptions::default());
    let mut lost = rows.clone();
    for _ in 0..6 {
        change(&trx.table(&table), &mut lost, &chance)?;
    }
    db.flush_log()?;
    core::mem::forget(trx);
    drop((table, db));
    let disk = disk.restart(Survive::Random(seed));
    let (db, env) = open(&disk, 256)?;
    env.run_workers(200);
    let table = db.table("t")?;
    assert_rows(&table, &rows, &chance, "after a crash")?;
    assert_rest(&db, &env, &disk, "after a crash");
    for key in rows.keys() {
        assert!(table.delete(key)?);
    }
    env.run_workers(400);
    assert_rest(&db, &env, &disk, "emptied");
    assert_eq!(table.pages()?, 2, "seed {seed}: the map and the root");
    Ok(())
}

/// The changes of a crash test, one at a time. Returns the number of those that were acknowledged.
fn change_for_a_while(db: &Database, states: &mut Vec<Rows>) -> Result<()> {
    let table = create(db)?;
    let (mut rows, chance) = (Rows::new(), SimulatedEnv::new(7));
    states.push(rows.clone());
    for _ in 0..24 {
        change(&table, &mut rows, &chance)?;
        states.push(rows.clone());
    }
    Ok(())
}

#[test]
fn a_crash_at_any_point_loses_no_field_and_no_page() -> Result<()> {
    let (disk, mut states) = (SimulatedDisk::new(1), Vec::new());
    let (db, env) = open(&disk, 64)?;
    change_for_a_while(&db, &mut states)?;
    env.run_workers(30);
    db.close()?;
    let (mut earlier, mut later) = (0, 0);
    for operation in 1..=disk.operations() {
        let (disk, mut done) = (SimulatedDisk::new(1), Vec::new());
        disk.crash_at(operation);
        let Ok((db, env)) = open(&disk, 64) else { continue };
        let _ = change_for_a_while(&db, &mut done);
        env.run_workers(30);
        drop(db);
        let survive = [Survive::Nothing, Survive::Everything, Survive::Random(operation)];
        let survive = survive[operation as usize % 3];
        let what = format!("crash at operation {operation}, {survive:?}");
        let disk = disk.restart(survive);
        let (db, env) = open(&disk, 64)?;
        env.run_workers(60);
        if let Ok(table) = db.table("t") {
            let found = rows_of(&table);
            // The change that was not acknowledged may have been made.
            let next = states.get(done.len());
            let is_next = next.is_some_and(|rows| found == encoded(rows));
            assert!(is_next || done.last().is_some_and(|rows| found == encoded(rows)), "{what}");
            *if is_next { &mut later } else { &mut earlier } += 1;
        } else {
            assert!(done.is_empty(), "{what}: the table is lost");
        }
        assert_rest(&db, &env, &disk, &what);
    }
    assert!(earlier > 20 && later > 10, "{earlier} times without the last change, {later} times with it");
    Ok(())
}

#[test]
fn a_kept_field_is_neither_read_nor_written() -> Result<()> {
    let disk = SimulatedDisk::new(1);
    let (db, env) = open(&disk, 1024)?;
    let table = db.create_table("t", TableOptions::default().index("new", IndexOptions::supplied(4)))?;
    let entry = [crate::SuppliedChange::new("new", None, Some(crate::SuppliedEntry::new(b"abcd")))];
    let long = vec![7; 1 << 20];
    table.insert_fields(b"row", &[b"0", &long, b"short"], &entry)?;
    let pages = table.pages()?;
    assert!(pages > 250, "{pages} pages");
    let costs = |run: &dyn Fn() -> Result<()>| -> Result<(u64, u64)> {
        let (frames, log) = (work::so_far(), db.log_end());
        run()?;
        Ok(((work::so_far() - frames).of(Work::Frame), db.log_end().0 - log.0))
    };
    let keep = [FieldChange::Set(b"1"), FieldChange::Keep, FieldChange::Keep];
    let (frames, log) = costs(&|| table.update_fields(b"row", &keep, &[]))?;
    assert!(frames < 20 && log < 1000, "an update reads {frames} pages and writes {log} bytes of log");
    let write = [FieldChange::Keep, FieldChange::Set(&long), FieldChange::Keep];
    let (frames, log) = costs(&|| table.update_fields(b"row", &write, &[]))?;
    assert!(frames > 250 && log > 1 << 20, "a long field is written with {frames} pages, {log} bytes of log");
    env.run_workers(200);
    assert_eq!(table.pages()?, pages, "the chain before is not freed");
    let (some, mut value) = (table.select_fields(FieldSet::NONE.with(0).with(2)), Vec::new());
    let (frames, _) = costs(&|| some.get(b"row").map(drop))?;
    assert!(frames < 5, "a read of short fields reads {frames} pages");
    let (frames, _) = costs(&|| all_of(&mut some.cursor()?).map(drop))?;
    assert!(frames < 8, "a scan of short fields reads {frames} pages");
    let (frames, _) = costs(&|| some.index("new")?.range::<&[u8]>(..)?.try_for_each(|row| row.map(drop)))?;
    assert!(frames < 12, "a scan of an index reads {frames} pages");
    let (frames, _) = costs(&|| table.get(b"row").map(drop))?;
    assert!(frames > 250, "the whole row is read with {frames} pages");
    assert!(some.get_into(b"row", &mut value)? && value == row::encode(&[&b"1"[..], b"", b"short"]));
    Ok(())
}

/// Purge and rollback of either key free the chains of that key alone.
#[test]
fn a_row_with_another_key_has_chains_of_its_own() -> Result<()> {
    let disk = SimulatedDisk::new(1);
    let (db, env) = open(&disk, 1024)?;
    let table = db.create_table("t", TableOptions::default())?;
    let [long, other] = [vec![7; 200_000], vec![8; 3_000]];
    table.insert_fields(b"old", &[b"0", &long, &other], &[])?;
    let rows = |name: &[u8]| [(name.to_vec(), row::encode(&[&b"1"[..], &long, &other]))].into();
    let fields = [FieldChange::Set(b"1"), FieldChange::Keep, FieldChange::Keep];
    let pages = table.pages()?;
    let options = TransactionOptions::default().isolation(Isolation::RepeatableRead);
    let view = db.begin(options.consistent_snapshot());
    table.change_key_fields(b"old", b"new", &fields, &[])?;
    assert!(rows_of(&table) == rows(b"new"));
    env.run_workers(100);
    assert!(view.table(&table).get(b"old")?.unwrap() == row::encode(&[&b"0"[..], &long, &other]));
    assert_eq!(view.table(&table).get(b"new")?, None);
    drop(view);
    env.run_workers(200);
    assert!(rows_of(&table) == rows(b"new"), "purge of the old key");
    assert_eq!(table.pages()?, pages, "the chains of the old key are not freed");
    assert_rest(&db, &env, &disk, "purged");

    for goes_back in [false, true] {
        let trx = db.begin(TransactionOptions::default());
        let within = trx.table(&table);
        within.change_key_fields(b"new", b"third", &fields, &[])?;
        if goes_back {
            within.change_key_fields(b"third", b"new", &fields, &[])?;
            assert!(within.get(b"new")?.unwrap() == row::encode(&[&b"1"[..], &long, &other]));
        }
        trx.rollback()?;
        env.run_workers(200);
        assert!(rows_of(&table) == rows(b"new"), "rolled back");
        assert_eq!(table.pages()?, pages, "chains of a key change that was rolled back");
    }
    assert_rest(&db, &env, &disk, "rolled back");
    // A row that was written as one value, and one whose key stays.
    table.put(b"whole", &row::encode(&[&b"1"[..], &long]))?;
    table.change_key_fields(b"whole", b"parts", &[FieldChange::Keep, FieldChange::Keep], &[])?;
    assert!(table.get(b"parts")?.unwrap() == row::encode(&[&b"1"[..], &long]));
    table.change_key_fields(b"parts", b"parts", &[FieldChange::Set(b"2"), FieldChange::Keep], &[])?;
    assert!(table.get(b"parts")?.unwrap() == row::encode(&[&b"2"[..], &long]));
    let missing = table.change_key_fields(b"parts", b"x", &[FieldChange::Keep; 3], &[]).unwrap_err();
    assert_eq!(missing.to_string(), "the row of table t has 2 fields and no field 2 to keep: pass its bytes");
    let missing = table.change_key_fields(b"none", b"x", &[FieldChange::Keep], &[]).unwrap_err();
    assert!(matches!(missing, Error::Schema(crate::error::SchemaError::NoRow(_))));
    assert!(table.get(b"parts")?.unwrap() == row::encode(&[&b"2"[..], &long]));
    env.run_workers(200);
    assert_rest(&db, &env, &disk, "changed");
    Ok(())
}

#[test]
fn the_first_bytes_of_a_long_value_are_read_alone() -> Result<()> {
    let disk = SimulatedDisk::new(1);
    let (db, _env) = open(&disk, 1024)?;
    let table = db.create_table("t", TableOptions::default().index("i", IndexOptions::on_value(0..1)))?;
    let long: Vec<u8> = (0..1 << 20).map(|n: u32| (n % 251) as u8).collect();
    table.insert(b"long", &long)?;
    table.insert(b"short", &long[..100])?;
    let fields = [&b"0"[..], &long, b"short"];
    table.insert_fields(b"row", &fields, &[])?;
    let (encoded, frames) = (row::encode(&fields), || work::so_far().of(Work::Frame));
    let trx = db.begin(TransactionOptions::default().isolation(Isolation::RepeatableRead));
    assert!(trx.table(&table).contains(b"long")?);
    table.update(b"long", b"changed since")?;
    for bytes in [0, 1, 100, 4_000, 10_000, 1 << 20, 2 << 20] {
        let first = |value: &[u8]| value[..value.len().min(bytes as usize)].to_vec();
        let start = table.select_fields(FieldSet::ALL.cut_at(bytes));
        let (mut value, mut values) = (Vec::new(), Values::default());
        let within = trx.table(&start);
        for (key, whole) in [(&b"long"[..], &long), (b"row", &encoded)] {
            let before = frames();
            assert!(within.get_into(key, &mut value)?);
            let touched = frames() - before;
            assert!(touched <= 12 + u64::from(bytes) / 3_500, "{bytes} bytes with {touched} frames");
            assert!(value == first(whole), "the first {bytes} bytes of {key:?}");
        }
        assert_eq!(within.get(b"short")?.as_deref(), Some(&long[..100]), "a short value is whole");
        let before = frames();
        let mut cursor = within.cursor()?;
        assert!(cursor.next()? && cursor.value() == Some(&first(&long)[..]));
        assert!(cursor.next()? && cursor.value() == Some(&first(&encoded)[..]));
        within.get_many(&[&b"long"[..], b"row"], &mut values)?;
        assert!(values.iter().eq([Some(&first(&long)[..]), Some(&first(&encoded)[..])]));
        assert!(frames() - before <= 50 + u64::from(bytes) / 800, "a scan with {} frames", frames() - before);
        assert!(within.get_for_share(b"row")? == Some(first(&encoded)), "a locking read");
        for (key, whole) in [(&b"long"[..], &long), (b"row", &encoded)] {
            let mut streamed = Vec::new();
            let before = frames();
            within.read_stream(key, &mut streamed)?;
            assert!(streamed == first(whole), "the first {bytes} bytes of the stream of {key:?}");
            let touched = frames() - before;
            assert!(
                touched <= 12 + u64::from(bytes) / 3_500,
                "a stream of {bytes} bytes with {touched} frames"
            );
        }
    }
    Ok(())
}

#[test]
fn rows_of_fields_are_loaded() -> Result<()> {
    for sorted in [true, false] {
        let (disk, chance) = (SimulatedDisk::new(1), SimulatedEnv::new(3));
        let (db, env) = open(&disk, 256)?;
        let table = create(&db)?;
        let mut rows: Rows = (b'a'..b'a' + 14).map(|key| (vec![key], random_fields(&chance))).collect();
        let mut load = if sorted { db.load_table("t")? } else { db.load_table_unsorted("t")? };
        let too_many = vec![&b"x"[..]; 47];
        let refused = load.push_fields(b"0", &too_many, &[]).unwrap_err();
        assert!(matches!(refused, Error::Usage(UsageError::TooManyFields { fields: 47, limit: 46, .. })));
        let mut given: Vec<_> = rows.iter().collect();
        if !sorted {
            given.reverse();
        }
        for (key, fields) in given {
            load.push_fields(key, &slices(fields), &[])?;
        }
        load.finish()?;
        assert_rows(&table, &rows, &chance, "loaded")?;
        assert_rest(&db, &env, &disk, "loaded");
        for _ in 0..40 {
            change(&table, &mut rows, &chance)?;
        }
        env.run_workers(200);
        assert_rows(&table, &rows, &chance, "changed")?;
        assert_rest(&db, &env, &disk, "changed");
    }
    Ok(())
}

#[test]
fn fields_that_are_missing_or_too_many_are_refused() -> Result<()> {
    let disk = SimulatedDisk::new(1);
    let (db, env) = open(&disk, 256)?;
    let table = db.create_table("t", TableOptions::default())?;
    let long = vec![1; 3000];
    table.insert_fields(b"row", &[b"a", &long], &[])?;
    let refused = |done: Result<()>| done.unwrap_err().to_string();
    let keep = FieldChange::Keep;
    assert_eq!(
        refused(table.update_fields(b"row", &[keep, keep, keep], &[])),
        "the row of table t has 2 fields and no field 2 to keep: pass its bytes"
    );
    assert_eq!(
        refused(table.insert_fields(b"other", &[&b"x"[..]; 47], &[])),
        "the row has 47 fields, and table t takes at most 46 one by one: join short ones"
    );
    assert!(matches!(
        table.update_fields(b"none", &[keep], &[]).unwrap_err(),
        Error::Schema(crate::error::SchemaError::NoRow(_))
    ));
    // One that was written as a whole has the fields that it encodes, or none.
    table.insert(b"plain", b"")?;
    assert!(refused(table.update_fields(b"plain", &[keep], &[])).contains("has 0 fields"));
    let with_more = [row::encode(&[b"short"]), b"more".to_vec()].concat();
    table.put(b"plain", &with_more)?;
    assert!(refused(table.update_fields(b"plain", &[keep], &[])).contains("has 0 fields"));
    assert_eq!(table.get(b"plain")?, Some(with_more));
    table.put(b"plain", &row::encode(&[&long[..], b"short", &long]))?;
    table.update_fields(b"plain", &[keep, FieldChange::Set(b"changed"), keep], &[])?;
    assert!(table.get(b"plain")?.unwrap() == row::encode(&[&long[..], b"changed", &long]));
    assert!(table.get(b"row")?.unwrap() == row::encode(&[&b"a"[..], &long]));
    // The most fields, each of them long.
    let most = vec![&long[..]; 46];
    table.insert_fields(b"most", &most, &[])?;
    assert!(table.get(b"most")?.unwrap() == row::encode(&most));
    table.insert_fields(b"no field", &[], &[])?;
    assert_eq!(table.get(b"no field")?.unwrap(), row::encode::<&[u8]>(&[]));
    assert_rest(&db, &env, &disk, "changed");
    Ok(())
}
