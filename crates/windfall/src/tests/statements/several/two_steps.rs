//! An alteration in two steps: its indexes are built, and published later.

mod waits;

use super::{
    super::{Rows, check_index, check_index_of, index, open, row, rows_by, rows_of},
    added, alter_while_rows_change, crash_at_every_operation, filled, has_three, make_of, options,
};
use core::time::Duration;

use crate::{
    Database, FieldChange, IndexOptions, InterruptHandle, MadeEntry, Result, Table, TableAlteration,
    TableChanges, TableOptions, TransactionOptions,
    catalog::RowLog,
    error::{Error, LockError, SchemaError, UsageError},
    sync::{
        Arc,
        work::{self, Work},
    },
};
use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

/// Bytes of notes in memory that go to a run.
const RUN: usize = 2_000;
/// The trees of a database with the table of these tests alone.
const TREES: usize = 4;

/// Returns the log in which changes of a table are noted.
pub(super) fn row_log_of(table: &Table) -> Option<Arc<RowLog>> {
    table.inner.with_schema(|schema| schema.row_log.clone())
}

fn build(db: &Database, changes: TableChanges) -> Result<TableAlteration> {
    db.build_indexes_with("t", changes, make_of)
}

/// As [`super::alter`], in two steps.
fn alter(db: &Database, seed: u64) -> Result<()> {
    let pause = &db.engine().catalog.pause;
    pause.set_runs(RUN, 1000);
    let changes = added(seed.is_multiple_of(2), has_three(seed)).drop_index("old").metadata(vec![1]);
    let mut built = build(db, changes.rename_index("kept", "renamed").name("u"))?;
    for _ in 0..seed % 4 {
        (0..20).for_each(|_| pause.act());
        built.catch_up_with(make_of)?;
        assert!(built.noted() < 300, "{} notes are left", built.noted());
    }
    (0..20).for_each(|_| pause.act());
    if seed % 2 == 1 {
        // The second step fails, and is repeated.
        let reader = db.begin(TransactionOptions::default());
        reader.table(&db.table("t")?).get_for_share(b"none")?;
        let patient = core::mem::replace(&mut built.db, db.with_ddl_timeout(Duration::ZERO));
        assert!(
            built.finish_with(TableChanges::default(), make_of).is_err(),
            "it has not waited for a reader"
        );
        built.db = patient;
        reader.commit()?;
        (0..5).for_each(|_| pause.act());
    }
    let more = TableChanges::default().numbers(77).metadata(vec![7; 9000]);
    assert_eq!(built.finish_with(more, make_of)?.trees, 1);
    Ok(())
}

#[test]
fn an_alteration_in_two_steps_is_made_while_rows_change() -> Result<()> {
    alter_while_rows_change(alter)
}

#[test]
fn an_alteration_in_two_steps_crashes_at_every_operation() {
    crash_at_every_operation(&[2, 3], alter);
}

/// Writes rows that have no entries for the new indexes, and takes some back: with a statement, to a savepoint, with
/// the whole transaction.
fn write_unaware(db: &Database, table: &Table, round: u64) -> Result<()> {
    let value = |n: u64| format!("{:05}", (n * 7919 + round * 31) % 99_991).into_bytes();
    for n in 0..60 {
        table.put(&row(n), &value(n))?;
    }
    for is_committed in [true, false] {
        let trx = db.begin(TransactionOptions::default());
        let in_trx = trx.table(table);
        (60..90).try_for_each(|n| in_trx.put(&row(n + 30 * u64::from(is_committed)), &value(n)))?;
        trx.savepoint("s")?;
        (0..20).try_for_each(|n| in_trx.delete(&row(n)).map(drop))?;
        trx.rollback_to("s")?;
        (20..30).try_for_each(|n| in_trx.put(&row(n), &value(n + 200)))?;
        if is_committed { trx.commit().map(drop) } else { trx.rollback() }?;
    }
    table.delete(&row(round % 60)).map(drop)
}

/// In a simulation a wait that nothing ends is an error.
#[test]
fn writers_between_the_steps_of_an_alteration_do_not_wait() -> Result<()> {
    let disk = SimulatedDisk::new(1);
    let (db, env) = open(&disk, 1)?;
    let table = filled(&db, 60)?;
    db.engine().catalog.pause.set_runs(RUN, 1000);
    // An open transaction does not hold up the first step.
    let open_trx = db.begin(TransactionOptions::default());
    open_trx.table(&table).insert(b"open", b"99999")?;
    let mut built = build(&db, added(false, true).metadata(b"first".to_vec()))?;
    for round in 0..3 {
        write_unaware(&db, &table, round)?;
        assert!(row_log_of(&table).unwrap().runs() > 5, "the notes are in memory");
        let found = db.table("t")?;
        assert!(found.metadata()?.is_empty() && found.index("s").is_err() && found.index("i").is_err());
        assert_eq!(db.tables()?[0].indexes, ["old", "kept"]);
        db.create_table("other", TableOptions::default())?;
        db.drop_table("other")?;
        let report = db.check()?;
        assert_eq!((report.findings, report.trees.len()), (vec![], TREES));
        if round > 0 {
            built.catch_up_with(make_of)?;
            assert_eq!((row_log_of(&table).unwrap().runs(), built.noted()), (0, 0));
            // Each change since is noted again.
            write_unaware(&db, &table, round + 10)?;
        }
        env.run_workers(50);
    }
    let noted = built.noted();
    assert!(noted > 100, "{noted} notes");
    open_trx.commit()?;
    built.finish_with(TableChanges::default().metadata(b"second".to_vec()), make_of)?;
    check_index(&table, false, "i");
    check_index_of(&table, "s", true, "s");
    check_index_of(&table, "k", false, "k");
    assert!(table.get(b"open")?.is_some() && rows_by(&table, "i")?.len() > 60);
    assert_eq!((table.metadata()?, db.check()?.findings), (b"second".to_vec(), vec![]));
    assert!(row_log_of(&table).is_none() && table.put(b"x", b"00000").is_err(), "entries are demanded");
    Ok(())
}

/// Checks that nothing of an alteration is left, and that its indexes can be added.
fn is_unchanged(db: &Database, env: &SimulatedEnv, trees: usize, what: &str) -> Result<()> {
    env.run_workers(500);
    let report = db.check()?;
    assert_eq!((report.findings, report.trees.len()), (vec![], trees), "{what}");
    if let Ok(table) = db.table("t") {
        assert!(row_log_of(&table).is_none(), "{what}: changes are still noted");
        assert!(table.index("i").is_err(), "{what}");
    }
    Ok(())
}

#[test]
fn an_alteration_that_is_dropped_has_changed_nothing() -> Result<()> {
    for seed in 1..4 {
        let disk = SimulatedDisk::new(seed);
        let (db, env) = open(&disk, seed)?;
        let table = filled(&db, 60)?;
        db.engine().catalog.pause.set_runs(RUN, 1000);
        let built = build(&db, added(true, true).drop_index("old").name("u").metadata(vec![1; 9000]))?;
        write_unaware(&db, &table, 1)?;
        let is_last = seed == 3;
        if seed == 2 {
            // A group that is refused drops it.
            let mut group = db.ddl();
            group.finish(built, TableChanges::default().drop_index("none"));
            let error = group.commit_with(|_, index, row, value, entry| make_of(index, row, value, entry));
            assert!(matches!(error, Err(Error::Schema(SchemaError::NoIndex { .. }))), "{error:?}");
            assert!(row_log_of(&table).is_some());
            drop(group);
        } else if is_last {
            // The handle is the last one of the database.
            drop((table, db));
            drop(built);
            let (db, env) = open(&disk, seed)?;
            is_unchanged(&db, &env, TREES, "closed")?;
            continue;
        } else {
            drop(built);
        }
        is_unchanged(&db, &env, TREES, "dropped")?;
        assert_eq!(db.tables()?[0].indexes, ["old", "kept"]);
        write_unaware(&db, &table, 2)?;
        db.alter_table_with("t", added(false, true), make_of)?;
        check_index(&table, false, "added since");
        assert_eq!(db.check()?.findings, Vec::<String>::new());
    }
    Ok(())
}

#[test]
fn an_alteration_of_a_table_that_was_changed_is_refused() -> Result<()> {
    type Statement = fn(&Database) -> Result<()>;
    // Whether catching up notices it, too.
    let statements: [(&str, bool, Statement); 7] = [
        ("truncate", true, |db| db.truncate_table("t").map(drop)),
        ("drop", true, |db| db.drop_table("t").map(drop)),
        ("rename", false, |db| db.rename_table("t", "v")),
        ("swap", false, |db| {
            db.create_table("v", options())?;
            db.swap_tables("t", "v")
        }),
        ("metadata", true, |db| db.alter_table("t", TableChanges::default().metadata(vec![3])).map(drop)),
        ("index", true, |db| db.drop_index("t", "old").map(drop)),
        ("again", true, |db| {
            db.drop_table("t")?;
            db.create_table("t", options()).map(drop)
        }),
    ];
    for (what, is_noticed, statement) in statements {
        let (db, env) = open(&SimulatedDisk::new(1), 1)?;
        let table = filled(&db, 60)?;
        let mut built = build(&db, added(false, true))?;
        write_unaware(&db, &table, 1)?;
        // One build at a time.
        let error = db.create_index("t", "other", index(false)).unwrap_err();
        assert!(matches!(error, Error::Usage(UsageError::AlterationOpen(_))), "{what}: {error}");
        let error = build(&db, added(false, true)).unwrap_err();
        assert!(matches!(error, Error::Usage(UsageError::AlterationOpen(_))), "{what}: {error}");
        statement(&db)?;
        let trees = db.check()?.trees.len();
        let caught_up = built.catch_up_with(make_of);
        let changed = |error: &Error| matches!(error, Error::Schema(SchemaError::DefinitionChanged(_)));
        assert_eq!(caught_up.as_ref().is_err_and(changed), is_noticed, "{what}: {caught_up:?}");
        let error = built.finish_with(TableChanges::default(), make_of).unwrap_err();
        let is_absent = matches!(error, Error::Schema(SchemaError::NoTable(_)));
        assert!(changed(&error) || is_absent, "{what}: {error}");
        if what == "rename" {
            db.rename_table("v", "t")?;
            // The next statement that changes the table replaces the ended log.
            db.alter_table("t", TableChanges::default().numbers(9))?;
        }
        drop(built);
        is_unchanged(&db, &env, trees, what)?;
    }
    // Statements of the same group.
    let (db, env) = open(&SimulatedDisk::new(1), 1)?;
    filled(&db, 60)?;
    let commit = |mut group: crate::DdlGroup| {
        group.commit_with(|_, index, row, value, entry| make_of(index, row, value, entry))
    };
    for (place, what) in ["truncate", "drop", "drop index", "before"].into_iter().enumerate() {
        let built = build(&db, added(false, true))?;
        let mut group = db.ddl();
        if place == 3 {
            group.truncate_table("t");
        }
        group.finish(built, TableChanges::default());
        match place {
            0 => drop(group.truncate_table("t")),
            1 => drop(group.drop_table("t")),
            2 => drop(group.drop_index("t", "k")),
            _ => {}
        }
        let error = commit(group).unwrap_err();
        assert!(matches!(error, Error::Schema(SchemaError::DefinitionChanged(_))), "{what}: {error}");
        is_unchanged(&db, &env, TREES, what)?;
    }
    // A rename before, and another change, go together with it.
    let built = build(&db, added(false, true))?;
    let mut group = db.ddl();
    group.drop_index("t", "old").finish(built, TableChanges::default().name("u"));
    group.rename_table("u", "v");
    commit(group)?;
    assert_eq!(db.tables()?[0].indexes, ["kept", "s", "i", "k"]);
    check_index(&db.table("v")?, false, "v");

    // Calls that make no sense.
    let error = db.build_indexes("v", TableChanges::default().drop_index("s")).unwrap_err();
    assert!(matches!(error, Error::Usage(UsageError::NothingToBuild(_))), "{error}");
    let error = db.build_indexes("v", TableChanges::default().add_index("k", index(false))).unwrap_err();
    assert!(matches!(error, Error::Schema(SchemaError::IndexExists { .. })), "{error}");
    let error = db.build_indexes("none", TableChanges::default().add_index("k", index(false))).unwrap_err();
    assert!(matches!(error, Error::Schema(SchemaError::NoTable(_))), "{error}");
    let supplied = || TableChanges::default().add_index("x", IndexOptions::supplied(5));
    let error = db.build_indexes("v", supplied()).unwrap_err();
    assert!(matches!(error, Error::Usage(UsageError::EntriesUnknown { .. })), "{error}");
    let mut built = db.build_indexes_with("v", supplied(), make_any)?;
    let error = built.catch_up().unwrap_err();
    assert!(matches!(error, Error::Usage(UsageError::EntriesUnknown { .. })), "{error}");
    let error = built.finish(TableChanges::default()).unwrap_err();
    assert!(matches!(error, Error::Usage(UsageError::EntriesUnknown { .. })), "{error}");
    drop(built);
    let built = db.build_indexes_with("v", supplied(), make_any)?;
    let mut group = db.ddl();
    group.finish(built, TableChanges::default().add_index("y", index(false)));
    let error = group.commit_with(|_, index, row, value, entry| make_any(index, row, value, entry));
    assert!(matches!(error, Err(Error::Usage(UsageError::IndexInGroup { .. }))), "{error:?}");
    drop(group);
    let built = db.build_indexes_with("v", supplied(), make_any)?;
    let mut group = db.ddl();
    group.finish(built, TableChanges::default());
    let error = group.commit_in(&db.begin(TransactionOptions::default()));
    assert!(matches!(error, Err(Error::Usage(UsageError::IndexInGroup { .. }))), "{error:?}");
    drop(group);
    let (other, _) = open(&SimulatedDisk::new(2), 2)?;
    let mut group = other.ddl();
    group.finish(db.build_indexes_with("v", supplied(), make_any)?, TableChanges::default());
    let error = group.commit();
    assert!(matches!(error, Err(Error::Usage(UsageError::AlterationOfOther(_)))), "{error:?}");
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}

fn make_any(_: &str, row: &[u8], value: &[u8], entry: &mut MadeEntry) -> Result<bool> {
    make_of("s", row, value, entry)
}

#[test]
fn an_alteration_fails_and_its_writers_do_not() -> Result<()> {
    for is_finished in [false, true] {
        let (db, env) = open(&SimulatedDisk::new(1), 1)?;
        let table = filled(&db, 60)?;
        db.engine().catalog.pause.set_runs(RUN, 3);
        let mut built = build(&db, added(false, true))?;
        // What was applied makes room.
        for round in 0..4 {
            (0..10).try_for_each(|n| table.put(&row(n), format!("{:05}", n + 100 * round).as_bytes()))?;
            built.catch_up_with(make_of)?;
        }
        (0..3).try_for_each(|round| write_unaware(&db, &table, round))?;
        assert_eq!(built.noted(), 0, "a log that has failed keeps notes");
        let check_failed = |failed: &Error| {
            let is_right = matches!(failed, Error::Usage(UsageError::TooManyNotes { limit, .. })
                if *limit == 3 * RUN);
            assert!(is_right && failed.to_string().contains("of table t"), "{failed}");
        };
        if !is_finished {
            check_failed(&built.catch_up_with(make_of).unwrap_err());
        }
        check_failed(&built.finish_with(TableChanges::default(), make_of).unwrap_err());
        drop(built);
        is_unchanged(&db, &env, TREES, "too many notes")?;
    }
    // Two rows have one key: in a row that is committed, and in one that is not.
    let (db, _) = open(&SimulatedDisk::new(1), 1)?;
    let table = filled(&db, 60)?;
    let mut built = build(&db, added(true, false))?;
    let trx = db.begin(TransactionOptions::default());
    trx.table(&table).insert(b"twice", b"00000")?;
    built.catch_up_with(make_of)?;
    trx.rollback()?;
    built.catch_up_with(make_of)?;
    table.insert(b"twice", b"00000")?;
    for _ in 0..2 {
        let error = built.catch_up_with(make_of).unwrap_err();
        assert!(matches!(error, Error::Schema(SchemaError::DuplicateKey { .. })), "{error}");
    }
    let error = built.finish_with(TableChanges::default(), make_of).unwrap_err();
    assert!(matches!(error, Error::Schema(SchemaError::DuplicateKey { .. })), "{error}");
    // Without the row it can be finished.
    table.delete(b"twice")?;
    built.finish_with(TableChanges::default(), make_of)?;
    check_index(&table, false, "i");
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}

/// The disk has room for some of the notes, or for some of the new entries. What could not be written does not harm the
/// writers, and leaves no file.
#[test]
fn an_alteration_on_a_full_disk_fails_and_its_writers_do_not() -> Result<()> {
    const ROWS: u64 = 60;
    const INDEXES: u32 = 12;
    let (mut lost, mut late, mut made) = (0, 0, 0);
    for more in (0u64..).step_by(150 << 10) {
        let disk = SimulatedDisk::new(1);
        let (db, env) = open(&disk, 1)?;
        let table = db.create_table("t", TableOptions::default())?;
        let value = |n: u64| [format!("{:05}", n * 7919 % 99_991).into_bytes(), vec![b'.'; 395]].concat();
        (0..ROWS).try_for_each(|n| table.insert(&row(n), &value(n)))?;
        db.engine().catalog.pause.set_runs(100_000, 1000);
        let name = |n: u32| format!("i{n}");
        let wide = |changes: TableChanges, n| changes.add_index(&name(n), IndexOptions::on_value(0..380 + n));
        let changes = (0..INDEXES).fold(TableChanges::default().metadata(vec![1]), wide);
        let mut built = db.build_indexes("t", changes)?;
        // What the writers need besides is there: pages of undo, and a file of the log that was begun just now.
        let other = db.create_table("other", TableOptions::default())?;
        (0..ROWS * 4).try_for_each(|n| other.put(&row(n % ROWS), &value(n)))?;
        for n in 0.. {
            let used = disk.used();
            other.put(&row(0), &value(n))?;
            if disk.used() > used + (400 << 10) {
                break;
            }
        }
        env.run_workers(500);
        disk.set_capacity(Some(disk.used() + more));
        let what = format!("room for {more} bytes");
        for round in 1..4 {
            for n in 0..ROWS {
                let put = table.put(&row(n), &value(n + ROWS * round));
                put.unwrap_or_else(|error| panic!("{what}: row {n} of round {round}: {error}"));
            }
        }
        let is_full = |error: &Error| matches!(error, Error::Disk(error) if error.is_no_space());
        if let Err(error) = built.catch_up() {
            assert!(is_full(&error), "{what}: {error}");
            // The step may have used up the log, without which no change is made on a full disk.
            let written = (0..9).try_for_each(|n| table.put(&row(n), &value(n + 90)));
            let of_log = error.to_string().contains("/log/");
            assert!(written.is_ok() || of_log, "{what}: {written:?} after {error}");
            assert!(written.as_ref().err().is_none_or(is_full), "{what}: {written:?}");
            let is_lost = row_log_of(&table).expect("the alteration is open").has_ended();
            disk.set_capacity(None);
            if is_lost {
                lost += 1;
                assert!(is_full(&built.catch_up().unwrap_err()), "{what}");
                assert!(is_full(&built.finish(TableChanges::default()).unwrap_err()), "{what}");
                drop(built);
                env.run_workers(500);
                let report = db.check()?;
                assert_eq!((report.findings, report.trees.len()), (vec![], 3), "{what}");
                continue;
            }
            late += 1;
            built.catch_up()?;
        } else {
            made += 1;
        }
        disk.set_capacity(None);
        built.finish(TableChanges::default())?;
        (0..INDEXES).for_each(|n| check_index_of(&table, &name(n), false, &what));
        assert_eq!(db.check()?.findings, Vec::<String>::new(), "{what}");
        if made == 1 {
            break;
        }
    }
    assert!(lost > 2 && made == 1, "{lost} lost, {late} caught up later, {made} made");
    Ok(())
}

/// Returns the frames that a change of a short field accesses, and those of its rollback.
fn frames_of_changes(db: &Database, table: &Table) -> Result<[u64; 2]> {
    let change = [FieldChange::Set(b"00001"), FieldChange::Keep];
    let before = work::so_far();
    table.update_fields(b"row", &change, &[])?;
    let changed = work::so_far();
    let trx = db.begin(TransactionOptions::default());
    trx.table(table).update_fields(b"row", &change, &[])?;
    let rolled_back = work::so_far();
    trx.rollback()?;
    Ok([changed - before, work::so_far() - rolled_back].map(|counts| counts.of(Work::Frame)))
}

/// The alteration has failed, or was dropped while the log could not be taken out of the schema.
#[test]
fn a_log_that_has_ended_costs_a_writer_nothing() -> Result<()> {
    for fails in [true, false] {
        let (db, _) = open(&SimulatedDisk::new(1), 1)?;
        let table = db.create_table("t", TableOptions::default())?;
        table.insert_fields(b"row", &[b"00000", &vec![b'.'; 40_000]], &[])?;
        let without = frames_of_changes(&db, &table)?;
        db.engine().catalog.pause.set_runs(RUN, if fails { 1 } else { 1000 });
        let index = TableChanges::default().add_index("s", IndexOptions::supplied(5));
        let make_of_row = |_: &str, row: &[u8], _: &[u8], entry: &mut MadeEntry| {
            entry.key.extend_from_slice(row);
            entry.key.push(0);
            Ok(true)
        };
        let mut built = db.build_indexes_with("t", index, make_of_row)?;
        let noting = frames_of_changes(&db, &table)?;
        assert!(noting.iter().zip(without).all(|(noting, without)| *noting > without + 9), "{noting:?}");
        if fails {
            (0..100).try_for_each(|n| table.insert(&row(n), b"00000"))?;
            assert!(built.catch_up_with(make_of_row).is_err());
        } else {
            // The name is that of no table when the alteration is dropped.
            db.rename_table("t", "v")?;
            drop(built);
        }
        let row_log = row_log_of(&table).expect("no statement has replaced it");
        assert!(row_log.has_ended() && row_log.noted() == 0);
        let ended = frames_of_changes(&db, &table)?;
        assert!(
            ended.iter().zip(without).all(|(ended, without)| *ended < without + 4),
            "{ended:?}, {without:?}"
        );
        assert_eq!(row_log.noted(), 0);
    }
    Ok(())
}

#[test]
fn an_interrupt_ends_each_step_of_an_alteration() -> Result<()> {
    let (db, env) = open(&SimulatedDisk::new(1), 1)?;
    let table = filled(&db, 60)?;
    let pause = &db.engine().catalog.pause;
    pause.set_runs(RUN, 1000);
    let handle = InterruptHandle::new();
    let session = db.with_interrupt(&handle);
    let interrupt_at = |at: usize| {
        let (setter, mut passed) = (handle.clone(), 0);
        pause.set(move || {
            passed += 1;
            if passed == at {
                setter.interrupt();
            }
        });
    };
    let is_interrupted = |error: &Error| matches!(error, Error::Lock(LockError::Interrupted));
    for at in [10, 70] {
        interrupt_at(at);
        let error = build(&session, added(true, true)).unwrap_err();
        assert!(is_interrupted(&error), "the build, at {at}: {error}");
        handle.clear();
        pause.clear();
        is_unchanged(&db, &env, TREES, "a build")?;
    }
    // The entries are as they should be although catching up was interrupted.
    let mut built = build(&session, added(true, true))?;
    write_unaware(&db, &table, 1)?;
    let reader = db.begin(TransactionOptions::default());
    for round in 1..3 {
        interrupt_at(1);
        let noted = built.noted();
        let error = built.catch_up_with(make_of).unwrap_err();
        assert!(is_interrupted(&error) && noted > 0, "catching up, round {round}: {error}");
        handle.clear();
        pause.clear();
        write_unaware(&db, &table, round)?;
    }
    handle.interrupt();
    write_unaware(&db, &table, 3)?;
    assert!(built.catch_up_with(make_of).is_err_and(|error| is_interrupted(&error)));
    handle.clear();
    built.catch_up_with(make_of)?;
    // The second step: it waits for a transaction.
    table.put(b"read", b"99998")?;
    assert!(reader.table(&table).get_for_share(b"read")?.is_some());
    interrupt_at(3);
    let error = built.finish_with(TableChanges::default().row_ids(5), make_of).unwrap_err();
    assert!(is_interrupted(&error), "{error}");
    handle.clear();
    pause.clear();
    drop(built);
    is_unchanged(&db, &env, TREES, "the second step")?;
    // Indexes alone do not wait for a reader.
    let mut built = build(&session, added(false, true))?;
    write_unaware(&db, &table, 4)?;
    built.finish_with(TableChanges::default(), make_of)?;
    reader.commit()?;
    check_index(&table, false, "i");
    check_index_of(&table, "s", true, "s");
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}

/// An alteration, and a group of two: a lock timeout, an interrupt at each point, and a statement that is refused have
/// changed nothing, keep no writer waiting, and what is repeated has the changes of meanwhile.
#[test]
fn a_second_step_that_has_failed_is_repeated() -> Result<()> {
    for is_group in [false, true] {
        let (db, _) = open(&SimulatedDisk::new(1), 1)?;
        let table = filled(&db, 60)?;
        let other = db.create_table("other", TableOptions::default())?;
        let pause = &db.engine().catalog.pause;
        // Notes in runs, and in memory, where they exceed the limit of the last round.
        pause.set_runs(if is_group { RUN } else { 1 << 20 }, 1000);
        if !is_group {
            pause.set_most(4_000);
        }
        let handle = InterruptHandle::new();
        let hurried = db.with_ddl_timeout(Duration::ZERO).with_interrupt(&handle);
        let built = build(&hurried, added(false, true).metadata(vec![5]))?;
        let (mut group, mut alone) = (hurried.ddl(), None);
        if is_group {
            let more =
                hurried.build_indexes("other", TableChanges::default().add_index("i", index(false)))?;
            group.finish(more, TableChanges::default()).finish(built, TableChanges::default());
        } else {
            alone = Some(built);
        }
        let mut finish = || match &mut alone {
            Some(built) => built.finish_with(TableChanges::default(), make_of),
            None => group.commit_with(|_, index, row, value, entry| make_of(index, row, value, entry)),
        };
        let write = |round: u64| -> Result<()> {
            write_unaware(&db, &table, round)?;
            (0..40).try_for_each(|n| other.put(&row(n), format!("{:05}", n * 7 + round).as_bytes()))?;
            assert!(table.index("i").is_err() && other.index("i").is_err() && table.metadata()?.is_empty());
            assert_eq!(db.check()?.findings, Vec::<String>::new());
            Ok(())
        };
        write(1)?;
        let holder = db.begin(TransactionOptions::default());
        holder.table(&table).insert(b"held", b"77777")?;
        let error = finish().unwrap_err();
        assert!(matches!(error, Error::Lock(LockError::Busy(_))), "{error}");
        write(2)?;
        holder.commit()?;
        let mut interrupted = 0;
        for at in 1.. {
            let (setter, mut passed) = (handle.clone(), 0);
            pause.set(move || {
                passed += 1;
                if passed == at {
                    setter.interrupt();
                }
            });
            let done = finish();
            pause.clear();
            handle.clear();
            match done {
                Ok(_) => break,
                Err(Error::Lock(LockError::Interrupted)) => interrupted += 1,
                Err(error) => panic!("interrupted at {at}: {error}"),
            }
            write(at + 2)?;
        }
        assert!(interrupted > 2, "{interrupted} interrupts");
        check_index(&table, false, "i");
        check_index_of(&table, "s", true, "s");
        check_index_of(&table, "k", false, "k");
        assert!(table.get(b"held")?.is_some() && table.metadata()? == [5]);
        if is_group {
            check_index(&other, false, "of the other table");
            assert!(group.is_empty() && group.commit()?.lsn.is_none());
        }
        if let Some(mut built) = alone {
            assert_eq!((built.noted(), built.table_name()), (0, "t"));
            let finished = |error: &Error| matches!(error, Error::Usage(UsageError::AlterationFinished(_)));
            assert!(finished(&built.catch_up_with(make_of).unwrap_err()));
            assert!(finished(&built.finish_with(TableChanges::default(), make_of).unwrap_err()));
            group.finish(built, TableChanges::default());
            assert!(finished(&group.commit().unwrap_err()));
        }
        assert_eq!(db.check()?.findings, Vec::<String>::new());
    }
    Ok(())
}

/// Three tables get their indexes, new metadata and, one of them, a new name; a fourth one is dropped.
fn alter_three(db: &Database) -> Result<[Rows; 3]> {
    let names = ["a", "b", "c"];
    db.create_table("d", TableOptions::default())?;
    let tables: Vec<Table> = names
        .into_iter()
        .map(|name| db.create_table(name, TableOptions::default()))
        .collect::<Result<_>>()?;
    let rows = |of: usize, n: u64| (row(n), format!("{:05}", n * 100 + of as u64).into_bytes());
    for (of, table) in tables.iter().enumerate() {
        (0..15).map(|n| rows(of, n)).try_for_each(|(row, value)| table.insert(&row, &value))?;
    }
    db.engine().catalog.pause.set_runs(RUN / 4, 1000);
    let built = names.map(|name| db.build_indexes_with(name, added(true, false), make_any_of));
    let mut group = db.ddl();
    for (built, name) in built.into_iter().zip(names) {
        let mut built = built?;
        for (of, table) in tables.iter().enumerate() {
            table.put(&rows(of, 3).0, &rows(of, 30).1)?;
            let moved = rows(of, 31 + u64::from(name.as_bytes()[0]));
            table.put(&moved.0, &moved.1)?;
        }
        if name == "b" {
            built.catch_up_with(make_any_of)?;
        }
        let changes = TableChanges::default().metadata(vec![name.as_bytes()[0]; 3000]);
        group.finish(built, if name == "a" { changes.name("z") } else { changes });
    }
    for (of, table) in tables.iter().enumerate() {
        table.delete(&rows(of, 7).0)?;
    }
    group.drop_table("d");
    let written = [0, 1, 2].map(|of: usize| rows_of(&tables[of]));
    let mut seen = Vec::new();
    group.commit_with(|table, index, row, value, entry| {
        seen.push(table.to_string());
        make_any_of(index, row, value, entry)
    })?;
    assert!(names.iter().all(|name| seen.iter().any(|seen| seen == name)), "{seen:?}");
    let [a, b, c] = written;
    Ok([a?, b?, c?])
}

fn make_any_of(index: &str, row: &[u8], value: &[u8], entry: &mut MadeEntry) -> Result<bool> {
    make_of(index, row, value, entry)
}

#[test]
fn alterations_of_several_tables_are_finished_in_one_group() {
    let disk = SimulatedDisk::new(1);
    let before = {
        let (db, _) = open(&disk, 1).unwrap();
        alter_three(&db).unwrap()
    };
    let total = disk.operations();
    let (mut whole, mut absent) = (0, 0);
    for operation in 1..=total + 1 {
        let disk = SimulatedDisk::new(1);
        disk.crash_at(operation);
        let done = open(&disk, 1).and_then(|(db, _)| alter_three(&db));
        let survive =
            [Survive::Nothing, Survive::Everything, Survive::Random(operation)][operation as usize % 3];
        let what = format!("crash at operation {operation} of {total}, {survive:?}");
        let Ok((db, _)) = open(&disk.restart(survive), 1) else {
            assert!(done.is_err(), "{what}: it does not open");
            continue;
        };
        assert_eq!(db.check().unwrap().findings, Vec::<String>::new(), "{what}");
        if db.table("z").is_ok() {
            whole += 1;
            assert!(db.table("d").is_err() && db.table("a").is_err(), "{what}");
            for ((name, rows), letter) in ["z", "b", "c"].into_iter().zip(&before).zip(*b"abc") {
                let table = db.table(name).unwrap();
                assert_eq!(&rows_of(&table).unwrap(), rows, "{what}");
                assert_eq!(table.metadata().unwrap(), vec![letter; 3000], "{what}: {name}");
                check_index(&table, false, &what);
                check_index_of(&table, "s", true, &what);
            }
        } else {
            absent += 1;
            assert!(done.is_err(), "{what}: the group has not happened");
            for info in db.tables().unwrap() {
                assert!(info.indexes.is_empty(), "{what}: {info:?}");
                assert!(db.table(&info.name).unwrap().metadata().unwrap().is_empty(), "{what}: {info:?}");
            }
        }
    }
    assert!(whole > 0 && absent > 30, "{whole} times altered, {absent} times not");
}

/// Threads of their own write, in transactions and without, while the alteration goes through its steps.
#[test]
fn an_alteration_is_moved_between_threads() {
    let (db, _) = open(&SimulatedDisk::new(1), 1).unwrap();
    let table = filled(&db, 60).unwrap();
    let built = build(&db, added(false, false)).unwrap();
    let table_name = Arc::<str>::from(built.table_name());
    let built = std::thread::spawn(move || {
        let mut built = built;
        built.catch_up_with(make_of).map(|()| built)
    });
    let mut built = built.join().unwrap().unwrap();
    assert_eq!(&*table_name, "t");
    built.finish_with(TableChanges::default(), make_of).unwrap();
    check_index(&table, false, "i");
}
