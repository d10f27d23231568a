//! Several indexes that one statement adds in one scan of the table, with other changes of the table.

mod long_fields;
mod two_steps;

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{
    check_index, check_index_of, concurrent::run_with_transactions, index, make, open, row, rows_by, rows_of,
    run_during_changes,
};
use crate::{
    Database, IndexOptions, InterruptHandle, MadeEntry, Result, Table, TableChanges, TableOptions,
    TransactionOptions,
    buffer::Durability,
    error::{Error, LockError, SchemaError, UsageError},
    sync::{Arc, Mutex, Rank},
};
use windfall_sim::{SimulatedDisk, Survive};

/// More than the bytes that the changes at one point note.
const ONE_STEP: usize = 40_000;

/// A table with an index that the statement drops, and one that it renames.
fn options() -> TableOptions {
    TableOptions::default()
        .index("old", IndexOptions::on_value(0..2))
        .index("kept", IndexOptions::on_value(1..5))
}

/// Adds two indexes, or three.
fn added(unique: bool, three: bool) -> TableChanges {
    let changes =
        TableChanges::default().add_index("s", IndexOptions::supplied(5)).add_index("i", index(unique));
    if three { changes.add_index("k", IndexOptions::on_value(0..3)) } else { changes }
}

fn make_of(index: &str, row: &[u8], value: &[u8], entry: &mut MadeEntry) -> Result<bool> {
    assert_eq!(index, "s", "a function makes the entries of an index that makes them itself");
    make(row, value, entry)
}

fn has_three(seed: u64) -> bool {
    seed % 4 < 3
}

/// Adds the indexes, and changes the table in every other way as well.
fn alter(db: &Database, seed: u64) -> Result<()> {
    let changes =
        added(seed.is_multiple_of(2), has_three(seed)).drop_index("old").rename_index("kept", "renamed");
    let changes = changes.numbers(77).metadata(vec![7; 9000]).name("u");
    assert_eq!(db.alter_table_with("t", changes, make_of)?.trees, 1);
    Ok(())
}

/// Checks that all of the statement has happened, or nothing. Returns the table, and whether it has happened.
fn altered(db: &Database, seed: u64, what: &str) -> Option<(Table, bool)> {
    let info = db.tables().unwrap().pop()?;
    let table = db.table(&info.name).unwrap();
    if info.name == "t" {
        assert_eq!(info.indexes, ["old", "kept"], "{what}");
        assert_eq!((table.peek_number().unwrap(), table.metadata().unwrap()), (1, vec![]), "{what}");
        return Some((table, false));
    }
    assert_eq!(info.indexes, ["renamed", "s", "i", "k"][..3 + usize::from(has_three(seed))], "{what}");
    assert_eq!((table.peek_number().unwrap(), table.metadata().unwrap()), (77, vec![7; 9000]), "{what}");
    check_index(&table, false, what);
    check_index_of(&table, "s", true, what);
    for index in &info.indexes[..1] {
        check_index_of(&table, index, false, what);
    }
    if has_three(seed) {
        check_index_of(&table, "k", false, what);
    }
    Some((table, true))
}

/// An alteration of the table, as the seed says.
type Alter = fn(&Database, u64) -> Result<()>;

/// Makes the alteration while rows change.
fn alter_while_rows_change(alter: Alter) -> Result<()> {
    for seed in 1..50 {
        let disk = SimulatedDisk::new(seed);
        let (changes, done) = run_during_changes(&disk, seed, 120, options(), ONE_STEP, |db| alter(db, seed));
        let what = format!("seed {seed}");
        done.unwrap_or_else(|error| panic!("{what}: {error}"));
        let (db, _) = open(&disk, seed)?;
        let (table, is_altered) = altered(&db, seed, &what).unwrap();
        assert!(is_altered, "{what}");
        assert_eq!(rows_of(&table)?, changes.lock().rows, "{what}");
        assert_eq!(db.check()?.findings, Vec::<String>::new(), "{what}");
    }
    Ok(())
}

/// Makes the alteration while rows change, and crashes at every operation: all of it has happened, or nothing.
fn crash_at_every_operation(seeds: &[u64], alter: Alter) {
    let (mut whole, mut absent) = (0, 0);
    for &seed in seeds {
        let run = |disk: &SimulatedDisk| {
            run_during_changes(disk, seed, 24, options(), ONE_STEP, |db| alter(db, seed))
        };
        let disk = SimulatedDisk::new(seed);
        run(&disk).1.unwrap();
        let total = disk.operations();
        for operation in 1..=total {
            let disk = SimulatedDisk::new(seed);
            disk.crash_at(operation);
            let (changes, done) = run(&disk);
            let survive =
                [Survive::Nothing, Survive::Everything, Survive::Random(operation)][operation as usize % 3];
            let what = format!("seed {seed}, crash at operation {operation} of {total}, {survive:?}");
            let changes = changes.lock();
            let Ok((db, _)) = open(&disk.restart(survive), seed) else {
                assert!(changes.rows.is_empty(), "{what}: it does not open");
                continue;
            };
            // Nor is there a file that no record names.
            assert_eq!(db.check().unwrap().findings, Vec::<String>::new(), "{what}");
            let Some((table, is_altered)) = altered(&db, seed, &what) else {
                assert!(changes.rows.is_empty(), "{what}: the table is absent");
                continue;
            };
            if changes.rows.len() < 20 {
                continue;
            }
            let seen = rows_of(&table).unwrap();
            assert!(seen == changes.rows || seen == changes.next, "{what}: other rows than were written");
            assert!(is_altered || done.is_err(), "{what}: the statement has not happened");
            whole += u32::from(is_altered);
            absent += u32::from(!is_altered);
        }
    }
    assert!(whole > 3 && absent > 30, "{whole} times altered, {absent} times not");
}

#[test]
fn rows_change_while_several_indexes_are_built() -> Result<()> {
    alter_while_rows_change(alter)
}

#[test]
fn a_crash_while_several_indexes_are_built_leaves_all_or_nothing() {
    crash_at_every_operation(&[1, 2, 3, 7], alter);
}

#[test]
fn several_indexes_are_built_while_any_transactions_run() {
    let (mut made, mut refused) = (0, 0);
    for seed in 1..50 {
        let build = |db: &Database| {
            let changes = added(seed % 2 == 0, has_three(seed));
            // With another change, the table is locked exclusively at the end.
            let changes = if seed % 5 < 2 { changes.row_ids(9) } else { changes };
            db.alter_table_with("t", changes, make_of)?;
            let table = db.table("t")?;
            check_index_of(&table, "s", true, &format!("seed {seed}"));
            Ok(())
        };
        match run_with_transactions(&SimulatedDisk::new(seed), seed, 50, false, false, build).unwrap() {
            Ok(()) => made += 1,
            Err(Error::Schema(SchemaError::DuplicateKey { .. })) => refused += 1,
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    assert!(made > 25 && refused > 2, "{made} made, {refused} refused");
}

fn filled(db: &Database, rows: u64) -> Result<Table> {
    let table = db.create_table("t", options())?;
    for n in 0..rows {
        table.insert(&row(n), format!("{:05}", n * 7919 % 99_991).as_bytes())?;
    }
    Ok(table)
}

#[test]
fn the_memory_of_several_sorts_is_bounded_as_one() -> Result<()> {
    const ROWS: u64 = 900;
    // The runs that exist when all rows were read.
    let runs = |indexes: u32| -> Result<usize> {
        let (db, _) = open(&SimulatedDisk::new(1), 1)?;
        filled(&db, ROWS)?;
        db.engine().catalog.pause.set_bounds(6_000, usize::MAX);
        let (handle, seen) = (db.clone(), Arc::new(Mutex::new(Rank::Leaf, 0)));
        let (noted, mut place) = (seen.clone(), 0);
        db.engine().catalog.pause.set(move || {
            place += 1;
            if place == ROWS {
                let spaces = handle.engine().pool.spaces();
                let is_run =
                    |space: &&Arc<_>| crate::buffer::Space::durability(space) == Durability::Temporary;
                *noted.lock() = spaces.iter().filter(is_run).count();
            }
        });
        let add =
            |changes: TableChanges, n| changes.add_index(&format!("i{n}"), IndexOptions::on_value(0..5));
        db.alter_table("t", (0..indexes).fold(TableChanges::default(), add))?;
        db.engine().catalog.pause.clear();
        assert_eq!(db.check()?.findings, Vec::<String>::new());
        Ok(*seen.lock())
    };
    // Each time that the memory is full all sorts write a run. With three of them it is full three times as often.
    let (one, three) = (runs(1)?, runs(3)?);
    assert!(one > 5 && three >= 9 * one, "{one} runs, and {three} of three sorts");
    Ok(())
}

#[test]
fn the_memory_of_the_sorts_of_a_temporary_table_is_bounded_as_one() -> Result<()> {
    // Each run has a tablespace.
    let spaces = |indexes: u32| -> Result<u64> {
        let (db, _) = open(&SimulatedDisk::new(1), 1)?;
        let mut table = db.create_temporary_table("t", TableOptions::default())?;
        (0..900).try_for_each(|n| table.insert(&row(n), format!("{n:05}").as_bytes()))?;
        db.engine().catalog.pause.set_bounds(6_000, usize::MAX);
        let next = || db.engine().transactions.ids().space().map(|space| space.0);
        let before = next()?;
        let add =
            |changes: TableChanges, n| changes.add_index(&format!("i{n}"), IndexOptions::on_value(0..5));
        assert!(table.alter((0..indexes).fold(TableChanges::default(), add))?.lsn.is_none());
        assert_eq!(table.index("i0")?.range::<&[u8]>(..)?.count(), 900);
        Ok(next()? - before)
    };
    let (one, three) = (spaces(1)?, spaces(3)?);
    assert!(one > 5 && three > 6 * one, "{one} tablespaces, and {three} of three sorts");
    Ok(())
}

/// The statement fails for a reason in the second index, or of its other changes, or is ended.
#[test]
fn an_alteration_whose_indexes_cannot_be_built_has_changed_nothing() -> Result<()> {
    let (db, env) = open(&SimulatedDisk::new(1), 1)?;
    let table = filled(&db, 60)?;
    table.insert(b"twice", b"00000")?;
    let trees = db.check()?.trees.len();
    let is_unchanged = |what: &str| -> Result<()> {
        altered(&db, 0, what).filter(|(_, is_altered)| !is_altered).expect(what);
        env.run_workers(500);
        let report = db.check()?;
        assert_eq!((report.findings, report.trees.len()), (vec![], trees), "{what}");
        Ok(())
    };
    let all = || added(false, true).drop_index("old").numbers(5).metadata(vec![1; 9000]).name("u");

    let error = db.alter_table_with("t", all().add_index("x", index(true)), make_of).unwrap_err();
    let names_it = error.to_string().contains("index x");
    assert!(matches!(error, Error::Schema(SchemaError::DuplicateKey { .. })) && names_it, "{error}");
    is_unchanged("a duplicate")?;

    let error = db.alter_table("t", all()).unwrap_err();
    assert!(matches!(error, Error::Usage(UsageError::EntriesUnknown { .. })), "{error}");
    let own = || TableChanges::default().add_index("x", index(false));
    let error = db.alter_table_with("t", own(), make_of).unwrap_err();
    assert!(matches!(error, Error::Usage(UsageError::EntryNotSupplied { .. })), "{error}");
    let error = db.alter_table("t", own().add_index("kept", index(false))).unwrap_err();
    assert!(matches!(error, Error::Schema(SchemaError::IndexExists { .. })), "{error}");
    let error = db.alter_table("t", own().add_index("", index(false))).unwrap_err();
    assert!(matches!(error, Error::Schema(SchemaError::BadName { .. })), "{error}");
    let error = db.alter_table("t", own().drop_index("x")).unwrap_err();
    assert!(matches!(error, Error::Schema(SchemaError::NoIndex { .. })), "{error}");
    is_unchanged("a definition")?;

    let fails = |_: &str, _: &[u8], _: &[u8], _: &mut MadeEntry| Err(UsageError::Other("no".into()).into());
    let error = db.alter_table_with("t", all(), fails).unwrap_err();
    assert!(error.to_string().contains("index s"), "{error}");
    let panics = |_: &str, _: &[u8], _: &[u8], _: &mut MadeEntry| panic!("a defect of the caller");
    let panic = catch_unwind(AssertUnwindSafe(|| db.alter_table_with("t", all(), panics))).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"a defect of the caller"));
    is_unchanged("a function")?;

    // While the rows are read, while entries are loaded, while notes are applied, and when the statement waits.
    let reader = db.begin(TransactionOptions::default());
    assert!(reader.table(&table).get_for_share(b"twice")?.is_some());
    for place in [10, 70, 130, 200, 260] {
        let handle = InterruptHandle::new();
        let (setter, mut passed) = (handle.clone(), 0);
        db.engine().catalog.pause.set(move || {
            passed += 1;
            if passed == place {
                setter.interrupt();
            }
        });
        let error = db.with_interrupt(&handle).alter_table_with("t", all(), make_of).unwrap_err();
        db.engine().catalog.pause.clear();
        assert!(matches!(error, Error::Lock(LockError::Interrupted)), "at {place}: {error}");
        is_unchanged("an interrupt")?;
    }
    // An alteration waits for readers with locks, and a statement that only adds indexes does not.
    let hurried = db.with_ddl_timeout(core::time::Duration::ZERO);
    let error = hurried.alter_table_with("t", all(), make_of).unwrap_err();
    assert!(matches!(error, Error::Lock(LockError::Busy(_))), "{error}");
    is_unchanged("a reader")?;
    hurried.alter_table_with("t", added(false, true), make_of)?;
    reader.rollback()?;
    assert!(rows_by(&table, "i")?.len() == 61 && rows_by(&table, "k")?.len() == 61);
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}

#[test]
fn several_indexes_on_a_full_disk_are_all_there_or_none() -> Result<()> {
    let (mut built, mut failed) = (0, 0);
    for three in [false, true] {
        for more in (0u64..).step_by(200 << 10) {
            let disk = SimulatedDisk::new(1);
            let (db, env) = open(&disk, 1)?;
            let table = db.create_table("t", options())?;
            let value = |n: u64| [format!("{:05}", n * 7919 % 99_991).into_bytes(), vec![b'.'; 395]].concat();
            (0..800).try_for_each(|n| table.insert(&row(n), &value(n)))?;
            disk.set_capacity(Some(disk.used() + more));
            let wide = |n: u32| IndexOptions::on_value(0..399 + n);
            let changes = TableChanges::default().add_index("s", wide(0)).add_index("i", wide(1).unique());
            let changes = if three { changes.add_index("k", wide(2)) } else { changes };
            let done = db.alter_table("t", changes.drop_index("old").numbers(77).name("u"));
            let what = format!("{more}, {done:?}");
            disk.set_capacity(None);
            env.run_workers(500);
            let info = db.tables()?.pop().expect("the table");
            let expected: &[_] = match (&done, three) {
                (Ok(_), true) => &["kept", "s", "i", "k"],
                (Ok(_), false) => &["kept", "s", "i"],
                (Err(_), _) => &["old", "kept"],
            };
            assert_eq!(info.indexes, expected, "{what}");
            assert_eq!(info.name, if done.is_ok() { "u" } else { "t" }, "{what}");
            assert_eq!(db.check()?.findings, Vec::<String>::new(), "{what}");
            if done.is_ok() {
                built += 1;
                break;
            }
            failed += 1;
        }
    }
    assert!(built == 2 && failed > 4, "{built} built, {failed} failed");
    Ok(())
}

/// A table that the group creates or truncates has no rows from which an index is to be filled.
#[test]
fn a_group_adds_indexes_to_empty_tables_alone() -> Result<()> {
    let (db, _) = open(&SimulatedDisk::new(1), 1)?;
    let table = filled(&db, 60)?;
    let add = || added(true, true);
    let mut group = db.ddl();
    group.create_table("new", TableOptions::default()).alter_table("t", add());
    let error = group.commit().unwrap_err();
    assert!(matches!(&error, Error::Usage(UsageError::IndexInGroup { .. })), "{error}");
    assert!(error.to_string().contains("index s of table t"), "{error}");
    let trx = db.begin(TransactionOptions::default());
    let mut group = db.ddl();
    group.alter_table("t", add());
    let error = group.commit_in(&trx).unwrap_err();
    assert!(matches!(error, Error::Usage(UsageError::IndexInGroup { .. })), "{error}");
    assert!(db.table("new").is_err());

    let mut group = db.ddl();
    group.alter_table("t", add()).truncate_table("t");
    group.create_table("new", TableOptions::default()).alter_table("new", add().name("newer"));
    group.commit_in(&trx)?;
    trx.rollback()?;
    // One statement alone may be a group.
    let mut group = db.ddl();
    group.alter_table("t", TableChanges::default().add_index("x", index(false)).drop_index("s"));
    group.commit()?;
    table.insert(b"row", b"00001")?;
    assert_eq!((rows_by(&table, "i")?.len(), rows_by(&table, "x")?.len()), (1, 1));
    assert_eq!(db.tables()?.iter().map(|info| info.indexes.len()).collect::<Vec<_>>(), [3, 5]);
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}
