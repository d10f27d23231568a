//! Tests of tables that are created with their rows, on a simulated disk.

use std::collections::{BTreeMap, BTreeSet};

use proptest::{collection::btree_map, prelude::*};
use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

use crate::{
    Database, IndexOptions, Options, Result, Table, TableOptions, TransactionOptions,
    buffer::Durability,
    disk::{Disk, Folder},
    env::Env as _,
    error::{DiskError, Error, Owner, SchemaError, UsageError},
    sync::Arc,
};

const PAGE: u64 = 4096;

pub(super) fn open(disk: &SimulatedDisk, frames: u64) -> Result<(Database, SimulatedEnv)> {
    let options = Options::default()
        .page_size(PAGE as usize)
        .buffer_pool_size(frames * PAGE)
        .log_size(1 << 20)
        .log_buffer_size(256 << 10);
    let env = SimulatedEnv::new(1);
    let db = Database::open_on(Arc::new(disk.clone()), Arc::new(env.clone()), &options, &|_| {})?;
    Ok((db, env))
}

pub(super) type Row = (Vec<u8>, Vec<u8>);

pub(super) fn rows_of(table: &Table) -> BTreeMap<Vec<u8>, Vec<u8>> {
    table.rows().unwrap().collect::<Result<_>>().unwrap()
}

pub(super) fn rows_by(table: &Table, index: &str) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let found = table.index(index).unwrap().range::<&[u8]>(..).unwrap();
    found.map(|row| row.map(|row| (row.key, row.value))).collect::<Result<_>>().unwrap()
}

/// Returns a value with first bytes that other rows have as well, followed by bytes that only this row has.
pub(super) fn value(number: u32, length: usize) -> Vec<u8> {
    let mut value = vec![b'a' + (number % 5) as u8; 3];
    value.extend(number.to_be_bytes());
    value.resize(7 + length, number as u8);
    value
}

fn indexed() -> TableOptions {
    TableOptions::default()
        .index("some", IndexOptions::on_value(0..3))
        .index("one", IndexOptions::on_value(3..7).unique())
}

fn load(db: &Database, options: TableOptions, sorted: bool, rows: Vec<Row>) -> Result<Table> {
    let rows = rows.into_iter().map(Ok);
    if sorted {
        db.create_table_from("t", options, rows)
    } else {
        db.create_table_from_unsorted("t", options, rows)
    }
}

/// Returns the rows in another order, which the seed decides.
pub(super) fn shuffled(mut rows: Vec<Row>, seed: u64) -> Vec<Row> {
    let chance = SimulatedEnv::new(seed);
    for n in 1..rows.len() {
        rows.swap(n, (chance.random() % (n as u64 + 1)) as usize);
    }
    rows
}

/// Asserts that a check finds nothing, and that only the expected tables and the engine's own files are left.
pub(super) fn assert_rest(db: &Database, env: &SimulatedEnv, disk: &SimulatedDisk, what: &str) {
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new(), "{what}");
    for _ in 0..40 {
        env.run_workers(60);
        if (db.metrics().drops_pending, db.metrics().files_pending) == (0, 0) {
            break;
        }
    }
    let mut named: BTreeSet<_> = db.engine().transactions.streams().spaces().into_iter().collect();
    named.insert(crate::ids::SpaceId::SYSTEM);
    for (_, table) in db.engine().catalog.tables() {
        named.extend(table.schema().record.spaces());
    }
    let spaces = db.engine().pool.spaces();
    assert!(spaces.iter().all(|space| named.contains(&space.id())), "{what}: a tablespace is left");
    for file in disk.list(Folder::Data).unwrap() {
        let crate::disk::FileName::Data(space) = file else { continue };
        assert!(named.contains(&space), "{what}: {file} is left");
    }
    assert!(db.engine().catalog.making().is_empty());
}

fn row_sizes() -> impl Strategy<Value = usize> {
    prop_oneof![8 => 0..200usize, 1 => 900..1100usize, 1 => 4000..20_000usize]
}

fn is_duplicate(done: Result<()>) -> bool {
    matches!(done, Err(Error::Schema(SchemaError::DuplicateKey { .. })))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_loaded_table_is_as_one_whose_rows_were_inserted(
        sizes in btree_map(prop::collection::vec(any::<u8>(), 0..40), row_sizes(), 0..120),
        sorted in any::<bool>(),
        bound in 300..20_000usize,
        seed in any::<u64>(),
    ) {
        let disk = SimulatedDisk::new(1);
        let (db, env) = open(&disk, 128).unwrap();
        db.engine().catalog.pause.set_bounds(bound, usize::MAX);
        let row = |(n, (key, size)): (u32, (Vec<u8>, usize))| (key, value(n, size));
        let mut model: BTreeMap<_, _> = (0..).zip(sizes).map(row).collect();
        let rows: Vec<Row> = model.clone().into_iter().collect();
        let rows = if sorted { rows } else { shuffled(rows, seed) };
        let table = load(&db, indexed(), sorted, rows).unwrap();
        prop_assert_eq!(rows_of(&table), model.clone());
        prop_assert_eq!(rows_by(&table, "some"), model.clone());
        assert_rest(&db, &env, &disk, "loaded");

        // The rows of the table change as usual, and purge removes their old versions.
        let chance = SimulatedEnv::new(seed ^ 1);
        for (n, key) in (1000..).zip(model.keys().cloned().collect::<Vec<_>>()) {
            match chance.random() % 4 {
                0 => {
                    prop_assert!(table.delete(&key).unwrap());
                    model.remove(&key);
                }
                1 => {
                    let value = value(n, (chance.random() % 6000) as usize);
                    table.update(&key, &value).unwrap();
                    model.insert(key, value);
                }
                2 => {
                    db.engine().transactions.fail_at(3);
                    let failed = table.update(&key, &value(n, 5000)).is_err();
                    db.engine().transactions.fail_at(0);
                    prop_assert!(failed, "a step of a long change was to fail");
                }
                _ => {}
            }
        }
        let taken = model.iter().next().map(|(_, value)| value.clone());
        let twice = taken.map(|value| table.insert(&[7; 41], &value));
        prop_assert!(twice.is_none_or(is_duplicate));
        env.run_workers(400);
        prop_assert_eq!(rows_by(&table, "one"), model.clone());
        assert_rest(&db, &env, &disk, "changed");
        drop(table);
        db.close().unwrap();
        let (db, env) = open(&disk, 64).unwrap();
        prop_assert_eq!(rows_of(&db.table("t").unwrap()), model.clone());
        prop_assert_eq!(rows_by(&db.table("t").unwrap(), "some"), model);
        assert_rest(&db, &env, &disk, "opened again");
    }
}

/// Returns rows with ascending keys.
fn rows(count: u32, length: usize) -> Vec<Row> {
    (0..count).map(|n| (n.to_be_bytes().to_vec(), value(n, length))).collect()
}

#[test]
fn a_refused_load_leaves_nothing() {
    type Refused = fn(&Error) -> bool;
    type Case<'a> = (&'a str, bool, Vec<Row>, Refused, &'a [&'a str]);
    let disk = SimulatedDisk::new(1);
    let (db, env) = open(&disk, 64).unwrap();
    db.engine().catalog.pause.set_bounds(3000, usize::MAX);
    let with = |at: usize, row: Row| {
        let mut rows = rows(300, 200);
        rows[at] = row;
        rows
    };
    let too_long = |error: &Error| matches!(error, Error::Usage(UsageError::KeyTooLong { .. }));
    let twice = |error: &Error| matches!(error, Error::Schema(SchemaError::DuplicateInputKey { .. }));
    let key = |n: u32| n.to_be_bytes().to_vec();
    let long = |n| (key(n), value(n, 30_000));
    let cases: [Case<'_>; 8] = [
        (
            "out of order",
            true,
            with(200, (key(3), value(200, 9))),
            |error| matches!(error, Error::Usage(UsageError::NotAscending { .. })),
            &["table t: row 201 ", r#""\x00\x00\x00\x03", and"#, r#""\x00\x00\x00\xc7": give"#],
        ),
        (
            "twice side by side",
            true,
            with(200, (key(199), vec![1; 90])),
            twice,
            &["row 201", "xc7", "table t"],
        ),
        ("twice far away", false, with(290, (key(2), vec![1; 90])), twice, &["x02", "table t"]),
        ("twice in one piece", false, with(1, (key(0), vec![1; 90])), twice, &["x00", "table t"]),
        ("a long key", true, with(299, (vec![b'z'; 5000], vec![])), too_long, &["5000", "table t"]),
        (
            "a long key, to be sorted",
            false,
            with(0, (vec![b'z'; 5000], vec![])),
            too_long,
            &["5000", "table t"],
        ),
        (
            "a long index key",
            true,
            // Each zero byte counts as two.
            with(299, (key(299), vec![0; 407])),
            too_long,
            &["index wide of table t", "800"],
        ),
        (
            "a key of a unique index twice",
            false,
            with(150, (key(150), value(20, 500))),
            |error| {
                let Error::Schema(SchemaError::DuplicateInputKey { owner, index, row_key, .. }) = error
                else {
                    return false;
                };
                matches!(owner, Owner::Index { index, .. } if **index == *"one")
                    && index.is_some()
                    && **row_key == 20u32.to_be_bytes()
            },
            &["index one of table t", "the row with key", "x14"],
        ),
    ];
    for (what, sorted, mut rows, refused, messages) in cases {
        // An overflow chain must be removed as well.
        rows[100] = long(100);
        let options = indexed().index("wide", IndexOptions::on_value(7..407));
        let error = load(&db, options, sorted, rows).unwrap_err();
        assert!(refused(&error), "{what}: {error:?}");
        for part in messages {
            assert!(error.to_string().contains(part), "{what}: {part} is not in: {error}");
        }
        assert!(matches!(db.table("t"), Err(Error::Schema(SchemaError::NoTable(_)))), "{what}");
        assert_rest(&db, &env, &disk, what);
    }

    // An error of the source is reported unchanged.
    let lost = || Error::from(UsageError::Other("the source is lost".into()));
    let source = rows(200, 300).into_iter().map(Ok).chain([Err(lost())]);
    let error = db.create_table_from("t", indexed(), source).unwrap_err();
    assert!(error.to_string().ends_with("the source is lost"), "{error}");
    assert_rest(&db, &env, &disk, "a source that fails");
    let panics = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
        let source = rows(300, 200).into_iter().inspect(|row| assert!(row.0 < key(250), "a defect")).map(Ok);
        db.create_table_from_unsorted("t", indexed(), source)
    }));
    assert!(panics.is_err());
    assert_rest(&db, &env, &disk, "a source that panics");

    // These calls request no row.
    db.create_table("taken", TableOptions::default()).unwrap();
    let none = || core::iter::from_fn(|| -> Option<Result<Row>> { panic!("a row was requested") });
    let error = db.create_table_from("taken", indexed(), none()).unwrap_err();
    assert!(matches!(error, Error::Schema(SchemaError::TableExists(_))), "{error}");
    let error = db.create_table_from("", indexed(), none()).unwrap_err();
    assert!(matches!(error, Error::Schema(SchemaError::BadName { .. })), "{error}");
    let error =
        db.create_table_from("t", indexed().index("one", IndexOptions::on_value(0..1)), none()).unwrap_err();
    assert!(matches!(error, Error::Schema(SchemaError::IndexExists { .. })), "{error}");

    // None of the refused calls blocks this one.
    let table = load(&db, indexed(), true, rows(300, 200)).unwrap();
    assert_eq!(rows_of(&table), rows(300, 200).into_iter().collect());
    assert_rest(&db, &env, &disk, "what was not refused");
}

#[test]
fn a_table_larger_than_the_pool_and_the_log_is_written_once() {
    let disk = SimulatedDisk::new(1);
    let (db, env) = open(&disk, 64).unwrap();
    let all = rows(8000, 300);
    let bytes: usize = all.iter().map(|(key, value)| key.len() + value.len()).sum();
    let bound = 60_000;
    db.engine().catalog.pause.set_bounds(bound, usize::MAX);
    let runs = || {
        let spaces = db.engine().pool.spaces();
        spaces
            .iter()
            .filter(|space| space.durability() == Durability::Temporary && !space.is_dropped())
            .count()
    };
    for sorted in [true, false] {
        let (logged, mut most) = (db.metrics().log_bytes, 0);
        let source = if sorted { all.clone() } else { shuffled(all.clone(), 9) };
        let source = source.into_iter().map(|row| {
            most = most.max(runs());
            Ok(row)
        });
        let table = if sorted {
            db.create_table_from("t", indexed(), source)
        } else {
            db.create_table_from_unsorted("t", indexed(), source)
        };
        let (table, logged) = (table.unwrap(), db.metrics().log_bytes - logged);
        // The runs contain everything that is not in memory: the sorted rows, and the entries of both indexes.
        let kept = if sorted { 0 } else { bytes };
        assert!(most > kept / bound && most < 2000, "{most} runs");
        assert!((logged as usize) < bytes * 3 / 2, "{logged} bytes of log for {bytes} of rows");
        assert_eq!((runs(), db.metrics().active_transactions), (0, 0));
        assert!(rows_of(&table).into_iter().eq(all.iter().cloned()));
        assert_eq!(rows_by(&table, "one").len(), all.len());
        assert_rest(&db, &env, &disk, "loaded");
        db.drop_table("t").unwrap();
    }
    let empty = load(&db, indexed(), false, Vec::new()).unwrap();
    assert_eq!(rows_of(&empty).len(), 0);
    let trees = db.check().unwrap().trees;
    assert!(trees.iter().filter(|tree| tree.table == "t").all(|tree| tree.pages == 0), "{trees:?}");
}

#[test]
fn a_table_is_not_visible_before_it_is_complete() {
    let disk = SimulatedDisk::new(1);
    let (db, env) = open(&disk, 64).unwrap();
    db.engine().catalog.pause.set_bounds(5000, usize::MAX);
    db.create_table("other", TableOptions::default()).unwrap();
    let source = rows(1000, 300).into_iter().enumerate().map(|(n, row)| {
        if n % 250 == 249 {
            assert!(matches!(db.table("t"), Err(Error::Schema(SchemaError::NoTable(_)))));
            assert!(db.tables().unwrap().iter().all(|table| table.name != "t"));
            db.table("other").unwrap().put(&row.0, &row.1)?;
            db.create_table("while it is loaded", TableOptions::default())?;
            db.drop_table("while it is loaded")?;
            // The checkpoint creates files of the load, and the check does not take them for orphans.
            db.checkpoint()?;
            assert_eq!(db.check()?.findings, Vec::<String>::new(), "row {n}");
            assert_eq!(db.check_live()?.findings, Vec::<String>::new(), "row {n}");
        }
        Ok(row)
    });
    let table = db.create_table_from_unsorted("t", indexed(), source).unwrap();
    assert_eq!(rows_of(&table).len(), 1000);
    assert_eq!(table.next_number().unwrap(), 1);
    assert_rest(&db, &env, &disk, "loaded");
}

/// Loads rows from a source, sorted or not, that contains a long value.
fn load_for_a_while(db: &Database, sorted: bool) -> Result<Table> {
    db.engine().catalog.pause.set_bounds(4000, usize::MAX);
    let mut all = rows(60, 300);
    all[30].1 = value(30, 30_000);
    load(db, indexed(), sorted, if sorted { all } else { shuffled(all, 3) })
}

/// Loads a table, with rows in order or not, once for each operation at which the disk can crash. After each crash and
/// each survival `check` gets the database, the rows of a load without a crash, and whether the load was acknowledged.
pub(super) fn at_each_crash<T>(
    load: impl Fn(&Database, bool) -> Result<T>,
    mut check: impl FnMut(&Database, &BTreeMap<Vec<u8>, Vec<u8>>, bool, &str),
) {
    for sorted in [true, false] {
        let disk = SimulatedDisk::new(1);
        let (db, _) = open(&disk, 64).unwrap();
        load(&db, sorted).unwrap();
        let expected = rows_of(&db.table("t").unwrap());
        db.close().unwrap();
        for operation in 1..=disk.operations() {
            let disk = SimulatedDisk::new(1);
            disk.crash_at(operation);
            let Ok((db, env)) = open(&disk, 64) else { continue };
            let done = load(&db, sorted);
            env.run_workers(20);
            let acknowledged = done.is_ok();
            drop((done, db));
            for survive in [Survive::Nothing, Survive::Everything, Survive::Random(operation)] {
                let what = format!("sorted {sorted}, crash at operation {operation}, {survive:?}");
                let disk = disk.restart(survive);
                let (db, env) = open(&disk, 64).unwrap_or_else(|error| panic!("{what}: {error}"));
                check(&db, &expected, acknowledged, &what);
                assert_rest(&db, &env, &disk, &what);
            }
        }
    }
}

#[test]
fn a_crash_during_a_load_leaves_all_or_nothing() {
    let (mut whole, mut absent) = (0, 0);
    at_each_crash(load_for_a_while, |db, expected, acknowledged, what| {
        if let Ok(table) = db.table("t") {
            assert!(rows_of(&table) == *expected, "{what}: other rows");
            assert!(rows_by(&table, "some") == *expected, "{what}: other rows by the index");
            whole += 1;
        } else {
            assert!(!acknowledged, "{what}: the table is absent");
            absent += 1;
        }
    });
    assert!(whole > 20 && absent > 60, "{whole} times there, {absent} times absent");
}

#[test]
fn a_disk_that_becomes_full_during_a_load_leaves_nothing_of_it() {
    let mut failures = 0;
    for sorted in [true, false] {
        for moment in (0..).step_by(3) {
            let disk = SimulatedDisk::new(1);
            let (db, env) = open(&disk, 64).unwrap();
            disk.full_from(Some(disk.operations() + moment));
            let done = (0..4).try_for_each(|n| {
                if n > 0 {
                    db.rename_table("t", &format!("t{n}"))?;
                }
                load_for_a_while(&db, sorted).map(drop)
            });
            let what = format!("sorted {sorted}, full from operation {moment} on");
            let Err(error) = done else { break };
            assert!(matches!(error, Error::Disk(DiskError::Full { .. })), "{what}: {error}");
            assert!(db.table("t").is_err(), "{what}: it is there");
            failures += 1;
            disk.full_from(None);
            env.run_workers(300);
            let table = load_for_a_while(&db, sorted).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(rows_of(&table).len(), 60, "{what}");
            env.run_workers(300);
            assert_rest(&db, &env, &disk, &what);
        }
    }
    assert!(failures > 10, "{failures} failures");
}

/// Returns of each tree of the table the leaves, and how full they are: bytes taken and bytes there.
fn leaves(db: &Database) -> Vec<(u64, u64, u64)> {
    let trees = db.check().unwrap().trees.into_iter();
    trees
        .filter(|tree| tree.table == "t")
        .map(|tree| (tree.leaves, tree.leaf_bytes, tree.leaf_capacity))
        .collect()
}

/// An entry that was loaded has no header, and its first change makes it longer: leaves split. When the change is
/// rolled back, by the transaction or after a crash, those that are less than a third full are merged. Of a pair that
/// is too full for that, one leaf is more than half full.
#[test]
fn a_rolled_back_change_of_loaded_rows_leaves_few_pages() {
    for (deletes, crashes) in [(true, false), (true, true), (false, false), (false, true)] {
        let what = format!("deletes {deletes}, crashes {crashes}");
        let disk = SimulatedDisk::new(1);
        let options = Options::default()
            .page_size(PAGE as usize)
            .buffer_pool_size(1024 * PAGE)
            .log_size(64 << 20)
            .log_buffer_size(256 << 10);
        let open = |disk: &SimulatedDisk| {
            let env = SimulatedEnv::new(1);
            let db = Database::open_on(Arc::new(disk.clone()), Arc::new(env.clone()), &options, &|_| {});
            (db.unwrap(), env)
        };
        let (db, env) = open(&disk);
        let table = load(&db, indexed(), true, rows(3000, 5)).unwrap();
        let (before, loaded) = (rows_of(&table), leaves(&db));
        let trx = db.begin(TransactionOptions::default());
        let within = trx.table(&table);
        for (n, key) in (10_001..).zip(before.keys()) {
            if deletes {
                assert!(within.delete(key).unwrap(), "{what}");
            } else {
                // So much longer that the leaves of the rows, too, are less than a third full after the rollback.
                within.put(key, &value(n, 40)).unwrap();
            }
        }
        drop(within);
        let changed = leaves(&db);
        let have_split = changed.iter().zip(&loaded).all(|((changed, ..), (loaded, ..))| changed > loaded);
        assert!(have_split, "{what}: {changed:?}, {loaded:?} before");
        let (disk, db, env) = if crashes {
            db.checkpoint().unwrap();
            let disk = disk.survivor(Survive::Everything);
            let (db, env) = open(&disk);
            while db.metrics().rollbacks_pending > 0 {
                env.run_workers(60);
            }
            (disk, db, env)
        } else {
            trx.rollback().unwrap();
            (disk, db, env)
        };
        assert_eq!(rows_of(&db.table("t").unwrap()), before, "{what}");
        assert_eq!(rows_by(&db.table("t").unwrap(), "some"), before, "{what}");
        let left = leaves(&db);
        let are_merged = left.iter().all(|(_, taken, there)| taken * 3 >= *there);
        assert!(are_merged, "{what}: {left:?}, {changed:?} before the rollback");
        assert_rest(&db, &env, &disk, &what);
    }
}
