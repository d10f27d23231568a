//! Tests of rows and entries with keys as long as they may be, on a simulated disk.

use std::collections::BTreeMap;

use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

use super::load::{assert_rest, open, rows_of, shuffled};
use crate::{
    Access, Database, IndexOptions, OneRow, Result, Seek, SuppliedChange, SuppliedEntry, Table, TableOptions,
    TransactionOptions, env::Env as _,
};

/// The longest key of a row, and the longest index key.
const LONGEST: usize = 768;
/// The longest payload with pages of this size.
const PAYLOAD: usize = 1022;

/// The rows: their values by their keys.
type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// Returns one of few long keys. Many begin with the same 700 bytes, others differ in the first.
fn long(chance: &SimulatedEnv) -> Vec<u8> {
    let below = |n: u64| (chance.random() % n) as usize;
    let shared = [1, 300, 700, 740][below(4)];
    let mut key = vec![b'a' + below(3) as u8; shared];
    key.extend(format!("{:03}", below(150)).bytes());
    key.resize(LONGEST, b'x' + below(2) as u8);
    key
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
    run(&[SuppliedChange { index: "made", old, new }])
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
