//! Tests of rows and entries with keys as long as they may be, on a simulated disk.

use std::collections::BTreeMap;

use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

use super::load::{assert_rest, open, rows_of, shuffled};
use crate::{
    Access, Database, IndexOptions, OneRow, Options, Result, Seek, SuppliedChange, SuppliedEntry, Table,
    TableOptions, TransactionOptions, env::Env as _, sync::Arc,
};

/// The longest key of a row, and the longest index key.
const LONGEST: usize = 768;
/// The longest payload with pages of this size.
const PAYLOAD: usize = 1022;

/// The rows: their values by their keys.
type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// Returns one of few keys of this length. Many have most of their bytes in common, others differ in the first.
fn long_of(length: usize, chance: &SimulatedEnv) -> Vec<u8> {
    let below = |n: u64| (chance.random() % n) as usize;
    let shared = [1, length * 2 / 5, length * 9 / 10, length - 28][below(4)];
    let mut key = vec![b'a' + below(3) as u8; shared];
    key.extend(format!("{:03}", below(150)).bytes());
    key.resize(length, b'x' + below(2) as u8);
    key
}

fn long(chance: &SimulatedEnv) -> Vec<u8> {
    long_of(LONGEST, chance)
}

fn value(chance: &SimulatedEnv) -> Vec<u8> {
    [long(chance), vec![7; (chance.random() % 300) as usize]].concat()
}

/// The entry that the caller supplies for a row, as it is stored, and its payload: of the value backwards.
fn made_of(value: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let key = value[..LONGEST].iter().rev().copied().collect();
    (key, value.iter().copied().cycle().take(PAYLOAD - value.len() % 5 * 250).collect())
}

fn with_entries<T>(
    old: Option<&[u8]>,
    new: Option<&[u8]>,
    run: impl FnOnce(&[SuppliedChange<'_>]) -> T,
) -> T {
    let (old, new) = (old.map(made_of), new.map(made_of));
    let [old, new] =
        [&old, &new].map(|made| made.as_ref().map(|(key, payload)| SuppliedEntry::new(key).payload(payload)));
    run(&[SuppliedChange::new("made", old, new)])
}

fn create(db: &Database) -> Result<Table> {
    let options = TableOptions::default()
        .index("value", IndexOptions::on_value(0..LONGEST as u32))
        .index("made", IndexOptions::supplied(LONGEST as u16));
    db.create_table("t", options)
}

/// Changes a random row, in the table and in the model.
fn change(table: &Table<impl Access>, rows: &mut Rows, chance: &SimulatedEnv) -> Result<()> {
    let key = match chance.random() % 3 {
        0 => rows.keys().nth(chance.random() as usize % rows.len().max(1)).cloned().unwrap_or_default(),
        _ => long(chance),
    };
    let old = rows.get(&key).cloned();
    if old.is_some() && chance.random().is_multiple_of(3) {
        assert!(with_entries(old.as_deref(), None, |entries| table.delete_with(&key, entries))?);
        rows.remove(&key);
        return Ok(());
    }
    let new = value(chance);
    with_entries(old.as_deref(), Some(&new), |entries| match old {
        Some(_) => table.update_with(&key, &new, entries),
        None => table.insert_with(&key, &new, entries),
    })?;
    rows.insert(key, new);
    Ok(())
}

/// Asserts that the table has these rows, and finds them by all of their keys.
fn assert_rows(table: &Table, rows: &Rows, what: &str) -> Result<()> {
    assert!(rows_of(table) == *rows, "{what}: other rows");
    let mut sampled = 0;
    table.sample_leaves(10_000, |leaf, _| {
        sampled += leaf.len();
        true
    })?;
    assert_eq!(sampled, rows.len(), "{what}: a sample of all leaves");
    for name in ["value", "made"] {
        let index = table.index(name)?;
        let index_key =
            |value: &[u8]| if name == "made" { made_of(value) } else { (value[..LONGEST].to_vec(), vec![]) };
        let expected: BTreeMap<_, _> = rows
            .iter()
            .map(|(key, value)| {
                let (index_key, payload) = index_key(value);
                ((index_key, key.clone()), payload)
            })
            .collect();
        let found: Vec<_> = index.keys::<&[u8]>(..)?.collect::<Result<_>>()?;
        let found = found.into_iter().map(|entry| ((entry.index_key, entry.key), entry.payload));
        assert!(expected.clone().into_iter().eq(found), "{what}: other entries of {name}");
        let mut cursor = index.key_cursor()?;
        for ((index_key, key), payload) in expected.iter().rev() {
            assert!(cursor.prev()?, "{what}: the entries of {name} end too early");
            let entry = cursor.row().unwrap();
            assert!(
                (entry.index_key, entry.key, entry.payload) == (&index_key[..], &key[..], &payload[..]),
                "{what}"
            );
        }
        assert!(!cursor.prev()?, "{what}: {name} has more entries");
        for ((index_key, _), _) in expected.iter().step_by(7) {
            let alike = expected
                .range((index_key.clone(), vec![])..)
                .take_while(|((other, _), _)| other == index_key);
            let keys: Vec<_> = alike.map(|((_, key), _)| key.clone()).collect();
            let found: Vec<_> =
                index.get(index_key)?.map(|row| row.map(|row| row.key)).collect::<Result<_>>()?;
            assert!(keys == found, "{what}: other rows of one key of {name}");
            assert!(cursor.seek(Seek::AtLeast(&index_key[..LONGEST / 2]))?, "{what}: no entry begins so");
            let mut one = OneRow::default();
            for length in [1, 300, LONGEST] {
                let first = expected.keys().find(|(other, _)| other.starts_with(&index_key[..length]));
                let is_whole = length == LONGEST || name == "made";
                let found = index.get_one(&index_key[..length], &mut one)?.map(|row| row.key.to_vec());
                assert!(
                    !is_whole || found.as_ref() == first.map(|(_, key)| key),
                    "{what}: another row of {name}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn rows_and_entries_with_the_longest_keys_behave_as_a_map() -> Result<()> {
    for seed in 0..4 {
        let (disk, chance) = (SimulatedDisk::new(seed), SimulatedEnv::new(seed));
        let (db, env) = open(&disk, 256)?;
        let table = create(&db)?;
        assert_eq!(table.key_limit(), LONGEST);
        let mut rows = Rows::new();
        for n in 0..150 {
            let trx = db.begin(TransactionOptions::default());
            let mut changed = rows.clone();
            for _ in 0..=chance.random() % 6 {
                change(&trx.table(&table), &mut changed, &chance)?;
            }
            if chance.random().is_multiple_of(4) {
                trx.rollback()?;
            } else {
                trx.commit()?;
                rows = changed;
            }
            if n % 10 == 0 {
                env.run_workers(60);
            }
        }
        assert!(rows.len() > 60, "{} rows", rows.len());
        assert_rows(&table, &rows, "changed")?;
        assert_rest(&db, &env, &disk, "changed");
        // A crash with a transaction in progress.
        let trx = db.begin(TransactionOptions::default());
        for _ in 0..20 {
            change(&trx.table(&table), &mut rows.clone(), &chance).ok();
        }
        db.flush_log()?;
        core::mem::forget(trx);
        drop((table, db));
        let disk = disk.restart(Survive::Random(seed));
        let (db, env) = open(&disk, 256)?;
        env.run_workers(200);
        let table = db.table("t")?;
        assert_rows(&table, &rows, "after a crash")?;
        // All of them go, and the trees become small again.
        for (key, value) in core::mem::take(&mut rows) {
            assert!(with_entries(Some(&value), None, |entries| table.delete_with(&key, entries))?);
        }
        env.run_workers(400);
        assert_rows(&table, &rows, "emptied")?;
        assert_rest(&db, &env, &disk, "emptied");
        assert_eq!(table.index("made")?.pages()?, 2, "a map and the root");
    }
    Ok(())
}

#[test]
fn indexes_with_the_longest_keys_are_built_and_loaded() -> Result<()> {
    let chance = SimulatedEnv::new(5);
    let rows: Rows = (0..400).map(|_| (long(&chance), value(&chance))).collect();
    assert!(rows.len() > 200, "{} rows", rows.len());
    for sorted in [true, false] {
        let disk = SimulatedDisk::new(1);
        let (db, env) = open(&disk, 256)?;
        db.engine().catalog.pause.set_bounds(30_000, usize::MAX);
        let table = create(&db)?;
        let mut load = if sorted { db.load_table("t")? } else { db.load_table_unsorted("t")? };
        let given: Vec<_> = rows.clone().into_iter().collect();
        for (key, value) in if sorted { given } else { shuffled(given, 3) } {
            with_entries(None, Some(&value), |entries| load.push(&key, &value, entries))?;
        }
        load.finish()?;
        assert_rows(&table, &rows, "loaded")?;
        // The same indexes once more, built of the rows.
        db.drop_index("t", "value")?;
        db.drop_index("t", "made")?;
        db.create_index("t", "value", IndexOptions::on_value(0..LONGEST as u32))?;
        db.create_index_with("t", "made", IndexOptions::supplied(LONGEST as u16), |_, value, entry| {
            (entry.key, entry.payload) = made_of(value);
            Ok(true)
        })?;
        assert_rows(&table, &rows, "built")?;
        assert_rest(&db, &env, &disk, "built");
    }
    Ok(())
}

const LARGE_PAGE: usize = 64 << 10;
/// The longest key with pages of this size.
const LONGEST_OF_LARGE: usize = 12_288;
const SIX: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// Opens a database with pages of 64 KiB and the smallest log, which has room for two changes of such rows.
fn open_large(disk: &SimulatedDisk) -> Result<(Database, SimulatedEnv)> {
    let options = Options::default()
        .page_size(LARGE_PAGE)
        .buffer_pool_size(200 * LARGE_PAGE as u64)
        .log_size(1 << 20)
        .log_buffer_size(2 << 20);
    let env = SimulatedEnv::new(1);
    let db = Database::open_on(Arc::new(disk.clone()), Arc::new(env.clone()), &options, &|_| {})?;
    Ok((db, env))
}

/// An index key and its payload.
type Made = (Vec<u8>, Vec<u8>);

/// Returns the entries of a row in the six indexes, all of the longest.
fn six_of(value: &[u8]) -> [Made; 6] {
    core::array::from_fn(|n| {
        let mut key: Vec<u8> = value.iter().copied().cycle().skip(100 * n).take(LONGEST_OF_LARGE).collect();
        if n % 2 == 1 {
            key.reverse();
        }
        (key, vec![n as u8; PAYLOAD - value.len() % 5 * 250])
    })
}

/// Changes a row and its entries in the six indexes.
fn change_large(
    table: &Table<impl Access>,
    key: &[u8],
    (old, new): (Option<&[u8]>, Option<&[u8]>),
) -> Result<()> {
    let (before, after) = (old.map(six_of), new.map(six_of));
    let entries: Vec<_> = (0..6)
        .map(|n| {
            let [old, new] = [&before, &after]
                .map(|made| made.as_ref().map(|made| SuppliedEntry::new(&made[n].0).payload(&made[n].1)));
            SuppliedChange::new(SIX[n], old, new)
        })
        .collect();
    match (old, new) {
        (Some(_), Some(new)) => table.update_with(key, new, &entries)?,
        (None, Some(new)) => table.insert_with(key, new, &entries)?,
        (_, None) => assert!(table.delete_with(key, &entries)?),
    }
    Ok(())
}

/// Changes a random row, in the table and in the model.
fn change_some_large(table: &Table<impl Access>, rows: &mut Rows, chance: &SimulatedEnv) -> Result<()> {
    let known = rows.keys().nth(chance.random() as usize % rows.len().max(1)).cloned();
    let key = known.filter(|_| chance.random().is_multiple_of(2));
    let key = key.unwrap_or_else(|| long_of(LONGEST_OF_LARGE, chance));
    let old = rows.get(&key).cloned();
    if old.is_some() && chance.random().is_multiple_of(3) {
        change_large(table, &key, (old.as_deref(), None))?;
        rows.remove(&key);
        return Ok(());
    }
    let mut new = [long_of(LONGEST_OF_LARGE, chance), long_of(LONGEST_OF_LARGE, chance)].concat();
    new.truncate(LONGEST_OF_LARGE + (chance.random() % 12_000) as usize);
    change_large(table, &key, (old.as_deref(), Some(&new)))?;
    rows.insert(key, new);
    Ok(())
}

/// A change of a row names 14 keys of 12 KiB in its undo record, and splits most of the leaves. So it logs half a
/// megabyte, and nearly every one waits until pages are written. The work for it does not grow.
#[test]
fn the_longest_keys_of_large_pages_go_through_the_smallest_log() -> Result<()> {
    let (disk, chance) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let (db, env) = open_large(&disk)?;
    let indexes = SIX.iter().fold(TableOptions::default(), |options, name| {
        options.index(name, IndexOptions::supplied(LONGEST_OF_LARGE as u16))
    });
    let table = db.create_table("t", indexes)?;
    assert_eq!(table.key_limit(), LONGEST_OF_LARGE);
    let (mut rows, mut changes, mut most) = (Rows::new(), 0, (0, 0, 0));
    for n in 0..16 {
        let trx = db.begin(TransactionOptions::default());
        let mut changed = rows.clone();
        for _ in 0..chance.random() % 12 {
            let work = || (db.engine().log.end().0, db.metrics().log_waits, disk.operations());
            let before = work();
            change_some_large(&trx.table(&table), &mut changed, &chance)?;
            let after = work();
            most.0 = most.0.max(after.0 - before.0);
            most.1 = most.1.max(after.1 - before.1);
            most.2 = most.2.max(after.2 - before.2);
            changes += 1;
        }
        if n % 4 == 3 {
            trx.rollback()?;
        } else {
            trx.commit()?;
            rows = changed;
        }
    }
    let (log, waits, operations) = most;
    assert!(changes > 60 && rows.len() > 20, "{changes} changes, {} rows", rows.len());
    assert!(log > 512 << 10 && log < 2 << 20, "a change has logged {log} bytes");
    assert!(waits > 0 && waits <= 8, "a change has waited {waits} times for room in the log");
    assert!(operations < 600, "a change has caused {operations} operations on the disk");
    assert!(rows_of(&table) == rows, "changed: other rows");
    assert_rest(&db, &env, &disk, "changed");

    // A crash with a transaction in progress.
    let trx = db.begin(TransactionOptions::default());
    for _ in 0..10 {
        change_some_large(&trx.table(&table), &mut rows.clone(), &chance).ok();
    }
    db.flush_log()?;
    core::mem::forget(trx);
    drop((table, db));
    let disk = disk.restart(Survive::Random(1));
    let (db, env) = open_large(&disk)?;
    env.run_workers(200);
    let table = db.table("t")?;
    assert!(rows_of(&table) == rows, "after a crash: other rows");
    for (key, value) in core::mem::take(&mut rows) {
        change_large(&table, &key, (Some(&value), None))?;
    }
    env.run_workers(400);
    assert!(rows_of(&table).is_empty());
    assert_rest(&db, &env, &disk, "emptied");
    Ok(())
}
