//! Several changes of a table as one statement, and metadata of any length.

mod common;

use std::{
    collections::BTreeSet,
    fs::DirEntry,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use common::{key, new_database, small_options};
use windfall::{
    Database, Error, FlushLog, IndexOptions, Options, Result, TableChanges, TableOptions, TransactionOptions,
    Work,
    disk::{Disk, Folder},
    error::{LockError, SchemaError, UsageError},
};
use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

const MIB: usize = 1 << 20;

fn definition() -> TableOptions {
    (0..3).fold(TableOptions::default(), |options, n| {
        options.index(&format!("i{n}"), IndexOptions::on_value(n..n + 4))
    })
}

/// Returns metadata of this length, which depend on a number.
fn metadata(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|n| (n / 3 + seed) as u8).collect()
}

/// The state of a table that an alteration changes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    name: String,
    indexes: Vec<String>,
    metadata: Vec<u8>,
    numbers: [u64; 2],
    rows: usize,
}

/// Returns the state of the only table.
fn state(db: &Database) -> Result<State> {
    let [info] = &db.tables()?[..] else { panic!("{:?}", db.tables()) };
    let table = db.table(&info.name)?;
    for index in &info.indexes {
        assert_eq!(table.index(index)?.range::<&[u8]>(..)?.count(), table.rows()?.count(), "{index}");
    }
    Ok(State {
        name: info.name.clone(),
        indexes: info.indexes.clone(),
        metadata: table.metadata()?,
        numbers: [table.peek_number()?, table.peek_row_id()?],
        rows: table.rows()?.count(),
    })
}

fn changes(long: bool) -> TableChanges {
    TableChanges::default()
        .drop_index("i1")
        .rename_index("i0", "i2")
        .rename_index("i2", "i1")
        .metadata(metadata(if long { 50_000 } else { 40 }, 7))
        .numbers(5000)
        .row_ids(0)
        .name("u")
}

fn changed(long: bool) -> State {
    State {
        name: "u".into(),
        indexes: vec!["i2".into(), "i1".into()],
        metadata: metadata(if long { 50_000 } else { 40 }, 7),
        numbers: [5000, 1],
        rows: 30,
    }
}

fn create(db: &Database, length: usize) -> Result<()> {
    let table = db.create_table("t", definition().metadata(metadata(length, 1)))?;
    (0..30).try_for_each(|n| table.insert(&key(n), &[n as u8; 20]))?;
    (0..10).try_for_each(|_| table.next_number().and(table.next_row_id()).map(drop))
}

/// Returns the positions at which the files of the log begin, which are their names.
fn log_files(folder: &Path) -> BTreeSet<u64> {
    let begin = |file: std::io::Result<DirEntry>| {
        let name = file.expect("a file of the log").file_name();
        let digits = name.to_str().and_then(|name| name.strip_suffix(".log"));
        digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).expect("a name of a file of the log")
    };
    folder.join("log").read_dir().expect("the folder of the log").map(begin).collect()
}

#[test]
fn all_changes_of_a_table_are_one_step() -> Result<()> {
    for long in [true, false] {
        let (folder, db) = new_database(small_options())?;
        create(&db, if long { 0 } else { 20_000 })?;
        let handle = db.table("t")?;
        let index = handle.index("i0")?;
        db.flush_log()?;
        let (from, before) = (db.log_end().0, log_files(folder.path()));
        let report = db.alter_table("t", changes(long))?;
        // An index, and the tree of the metadata.
        assert_eq!(report.trees, if long { 1 } else { 2 }, "{report:?}");
        // The records are durable after one sync. The log may need a new file, which is synced when it is prepared, and
        // each file that the records reach is synced.
        let after = log_files(folder.path());
        let reached = from..report.lsn.expect("it is logged").0;
        let files =
            after.difference(&before).count() + after.iter().filter(|at| reached.contains(at)).count();
        assert!(report.work.of(Work::LogSync) <= 1 + files as u64, "{files} files of the log, {report:?}");
        assert_eq!(state(&db)?, changed(long));
        // Handles of the table and of an index that is renamed stay valid.
        assert_eq!((handle.next_number()?, handle.next_row_id()?), (5000, 1));
        assert_eq!(index.range::<&[u8]>(..)?.count(), 30);
        assert_eq!(handle.metadata()?, changed(long).metadata);
        // The indexes are those that had the names.
        handle.insert(&key(99), b"abcdefgh")?;
        assert_eq!(db.table("u")?.index("i2")?.get(b"abcd")?.count(), 1);
        assert_eq!(db.table("u")?.index("i1")?.get(b"cdef")?.count(), 1);
        assert!(handle.delete(&key(99))?);
        assert_eq!(db.check()?.findings, Vec::<String>::new());
        drop((handle, index));
        db.close()?;
        let db = Database::open(folder.path(), small_options())?;
        let expected = changed(long);
        assert_eq!(state(&db)?, State { numbers: [5001, 2], ..expected });
        assert_eq!(db.check()?.findings, Vec::<String>::new());

        // The numbers of a truncated table, and of a new one, are set in the same group, or begin again.
        let mut group = db.ddl();
        group.truncate_table("u").alter_table("u", TableChanges::default().numbers(77));
        group.create_table("new", definition()).alter_table("new", TableChanges::default().row_ids(88));
        group.commit()?;
        let (u, new) = (db.table("u")?, db.table("new")?);
        assert_eq!([u.peek_number()?, u.peek_row_id()?], [77, 1]);
        assert_eq!([new.peek_number()?, new.peek_row_id()?], [1, 88]);
        let mut group = db.ddl();
        group.alter_table("u", TableChanges::default().numbers(99)).truncate_table("u").drop_table("new");
        group.commit()?;
        assert_eq!([u.next_number()?, u.rows()?.count() as u64], [1, 0]);
    }
    Ok(())
}

#[test]
fn an_alteration_that_is_refused_has_changed_nothing() -> Result<()> {
    let (_folder, db) = new_database(small_options())?;
    create(&db, 3000)?;
    let before = state(&db)?;
    let spaces = || db.check().map(|report| report.trees.len());
    let trees = spaces()?;
    let refused = |changes: TableChanges| -> Result<Error> {
        let all = changes.metadata(metadata(30_000, 3)).numbers(9).row_ids(9);
        let refused = db.alter_table("t", all).expect_err("it should have been refused");
        assert_eq!(State { numbers: before.numbers, ..state(&db)? }, before, "{refused}");
        assert!(db.table("t")?.peek_number()? > 10, "{refused}");
        Ok(refused)
    };
    let none = TableChanges::default;
    let error = refused(none().drop_index("none"))?;
    assert!(matches!(&error, Error::Schema(SchemaError::NoIndex { .. })), "{error}");
    let error = refused(none().drop_index("i1").rename_index("i1", "x"))?;
    assert!(matches!(&error, Error::Schema(SchemaError::NoIndex { .. })), "{error}");
    let error = refused(none().rename_index("i1", "i2"))?;
    assert!(matches!(&error, Error::Schema(SchemaError::IndexExists { .. })), "{error}");
    let error = refused(none().rename_index("i1", ""))?;
    assert!(matches!(&error, Error::Schema(SchemaError::BadName { .. })), "{error}");
    let error = refused(none().name("t"))?;
    assert!(matches!(&error, Error::Schema(SchemaError::TableExists(_))), "{error}");
    let error = refused(none().name("a\0"))?;
    assert!(matches!(&error, Error::Schema(SchemaError::BadName { .. })), "{error}");
    let error = db.alter_table("none", none().numbers(1)).unwrap_err();
    assert!(matches!(&error, Error::Schema(SchemaError::NoTable(_))), "{error}");
    for refused in [
        db.alter_table("t", none().metadata(vec![0; MIB + 1])).map(drop),
        db.create_table("v", TableOptions::default().metadata(vec![0; MIB + 1])).map(drop),
        db.session()
            .create_temporary_table("v", TableOptions::default().metadata(vec![0; MIB + 1]))
            .map(drop),
    ] {
        let error = refused.expect_err("too long");
        assert!(matches!(&error, Error::Usage(UsageError::MetadataTooLong { .. })), "{error}");
        assert!(error.to_string().contains("1048577 bytes, and may have at most 1048576"), "{error}");
    }
    // No change is none.
    assert_eq!(db.alter_table("t", none())?.lsn, None);
    assert_eq!((state(&db)?.metadata, spaces()?), (before.metadata, trees));
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}

/// Trees that a statement has filled for nothing, because it was refused, or gave its tables other metadata.
#[test]
fn a_refused_statement_leaves_no_metadata() -> Result<()> {
    let disk = SimulatedDisk::new(1);
    let env = SimulatedEnv::new(1);
    let db = Database::open_on(Arc::new(disk.clone()), Arc::new(env.clone()), &small_options(), &|_| {})?;
    let long = || TableOptions::default().metadata(metadata(40_000, 1));
    let rest = || -> Result<()> {
        db.checkpoint()?;
        env.run_workers(300);
        let (metrics, report) = (db.metrics(), db.check()?);
        assert_eq!((metrics.files_pending, metrics.drops_pending), (0, 0));
        assert_eq!(report.findings, Vec::<String>::new());
        Ok(())
    };
    db.create_table("t", long())?;
    rest()?;
    let files = || disk.list(Folder::Data).expect("the files").len();
    let before = (files(), db.check()?.trees.len());
    assert!(db.create_table("t", long()).is_err());
    assert!(db.alter_table("t", TableChanges::default().metadata(metadata(40_000, 2)).name("t")).is_err());
    let mut group = db.ddl();
    group.create_table("a", long()).create_table("t", long());
    assert!(group.commit().is_err());
    let rows = core::iter::once(Ok((vec![1], vec![2]))).chain([Ok((vec![0], vec![]))]);
    assert!(db.create_table_from("b", long(), rows).is_err());
    // This one fails when its metadata are written.
    let trx = db.begin(TransactionOptions::default());
    assert_eq!(trx.table(&db.table("t")?).get_for_update(&[1])?, None);
    let hurried = db.with_ddl_timeout(Duration::ZERO);
    let refused = hurried.alter_table("t", TableChanges::default().metadata(metadata(40_000, 2)));
    assert!(matches!(refused, Err(Error::Lock(LockError::Busy(_)))), "{refused:?}");
    trx.rollback()?;
    // Nothing of these remains, either.
    let mut group = db.ddl();
    group.create_table("a", long()).drop_table("a");
    for n in 0..3 {
        group.alter_table("t", TableChanges::default().metadata(metadata(40_000, n)));
    }
    assert_eq!(group.commit()?.trees, 1);
    assert!(db.table("t")?.metadata()? == metadata(40_000, 2));
    rest()?;
    assert_eq!((files(), db.check()?.trees.len()), before);
    Ok(())
}

#[test]
fn a_refused_statement_writes_nothing() -> Result<()> {
    const LENGTH: usize = 500_000;
    type Statement = fn(&Database) -> Result<()>;
    let statements: [Statement; 6] = [
        |db| {
            let on = || IndexOptions::on_value(0..4);
            let options =
                TableOptions::default().metadata(metadata(LENGTH, 1)).index("i", on()).index("i", on());
            db.create_table("u", options).map(drop)
        },
        |db| db.create_table("t", TableOptions::default().metadata(metadata(LENGTH, 1))).map(drop),
        |db| {
            let names = (0..40).map(|n| format!("{n}{}", "x".repeat(200)));
            let options = TableOptions::default().metadata(metadata(LENGTH, 1));
            let index =
                |options: TableOptions, name: String| options.index(&name, IndexOptions::on_value(0..4));
            db.create_table("u", names.fold(options, index)).map(drop)
        },
        |db| {
            let changes = TableChanges::default().metadata(metadata(LENGTH, 1)).rename_index("i0", "i1");
            db.alter_table("t", changes).map(drop)
        },
        |db| db.alter_table("t", TableChanges::default().metadata(metadata(LENGTH, 1)).name("v")).map(drop),
        |db| {
            let mut group = db.ddl();
            group.create_table("u", TableOptions::default().metadata(metadata(LENGTH, 1)));
            group.drop_table("no such table");
            group.commit().map(drop)
        },
    ];
    let (_folder, db) = new_database(small_options())?;
    create(&db, 0)?;
    db.create_table("v", TableOptions::default())?;
    for (n, statement) in statements.into_iter().enumerate() {
        let before = db.log_end().0;
        let refused = statement(&db);
        assert!(refused.is_err(), "statement {n}");
        let logged = db.log_end().0 - before;
        assert!(logged < 10_000, "statement {n}, {refused:?}: {logged} bytes");
    }
    // What a group creates and drops is not written, either.
    let before = db.log_end().0;
    let mut group = db.ddl();
    group.create_table("u", TableOptions::default().metadata(metadata(LENGTH, 1))).drop_table("u");
    group.commit()?;
    assert!(db.log_end().0 - before < 10_000);
    Ok(())
}

#[test]
fn metadata_of_any_length_leaves_room_for_indexes() -> Result<()> {
    for page_size in [4096, 16384, 65536] {
        let options = small_options().page_size(page_size).buffer_pool_size(100 * page_size as u64);
        let options = options.log_buffer_size(4 << 20).flush_log_at_trx_commit(FlushLog::Lazy);
        let (folder, db) = new_database(options.log_size(64 << 20))?;
        let half = page_size / 8;
        let lengths = [0, 1, half, half + 1, 2 * half, 2 * half + 1, page_size, 3 * page_size, 65_537, MIB];
        for (n, length) in lengths.into_iter().enumerate() {
            let table =
                db.create_table(&format!("t{n}"), TableOptions::default().metadata(metadata(length, n)))?;
            assert!(table.metadata()? == metadata(length, n), "{page_size}: {length}");
            // The metadata take nothing of the half of the record for indexes.
            let name = "n".repeat(db.name_limit().min(half - 100));
            db.create_index(&format!("t{n}"), &name, IndexOptions::on_value(0..4))?;
            table.insert(b"key", b"a value")?;
        }
        let trees = db.check()?.trees;
        let long = lengths.iter().filter(|length| **length > half).count();
        assert_eq!(trees.iter().filter(|tree| tree.is_metadata).count(), long);
        // Each has the metadata of the next one afterwards, also after a truncation and a swap.
        for n in 0..lengths.len() {
            let next = (n + 1) % lengths.len();
            let name = format!("t{n}");
            db.alter_table(&name, TableChanges::default().metadata(metadata(lengths[next], next)))?;
            db.truncate_table(&name)?;
        }
        db.swap_tables("t0", "t9")?;
        db.rename_table("t3", "x")?;
        let expected = |n: usize| {
            let n = [9, 1, 2, 3, 4, 5, 6, 7, 8, 0][n];
            let next = (n + 1) % lengths.len();
            metadata(lengths[next], next)
        };
        let name = |n| if n == 3 { "x".to_owned() } else { format!("t{n}") };
        db.close()?;
        let db = Database::open(folder.path(), Options::default().buffer_pool_size(100 * page_size as u64))?;
        for n in 0..lengths.len() {
            assert!(db.table(&name(n))?.metadata()? == expected(n), "{page_size}: table {n}");
        }
        assert_eq!(db.check()?.findings, Vec::<String>::new());
        let handle = db.table("t1")?;
        let all: Vec<String> = (0..lengths.len()).map(name).collect();
        let report = db.drop_tables(&all.iter().map(String::as_str).collect::<Vec<_>>())?;
        assert_eq!(report.trees, 2 * lengths.len() + long);
        // Short metadata are in memory.
        assert_eq!(handle.metadata().is_ok(), expected(1).len() <= half);
        let session = db.session();
        let temporary =
            session.create_temporary_table("t", TableOptions::default().metadata(metadata(MIB, 1)))?;
        assert!(temporary.metadata()? == metadata(MIB, 1));
        drop((temporary, session, handle));
        assert_eq!(db.check()?.findings, Vec::<String>::new());
        db.close()?;
    }
    Ok(())
}

/// A reader gets the metadata of before or after, and never a part of them.
#[test]
fn metadata_are_read_while_they_are_changed() -> Result<()> {
    const LENGTHS: [usize; 4] = [10, 30_000, 3000, 200_000];
    let (_folder, db) = new_database(small_options().flush_log_at_trx_commit(FlushLog::Lazy))?;
    let table = db.create_table("t", TableOptions::default().metadata(metadata(LENGTHS[0], 0)))?;
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| -> Result<()> {
        let reader = scope.spawn(|| -> Result<u32> {
            let mut reads = 0;
            while !is_done.load(SeqCst) || reads == 0 {
                let found = table.metadata()?;
                let n = LENGTHS.iter().position(|length| *length == found.len());
                assert!(
                    n.is_some_and(|n| found == metadata(LENGTHS[n], n)),
                    "{} bytes of nothing",
                    found.len()
                );
                reads += 1;
            }
            Ok(reads)
        });
        let altered = (1..100).try_for_each(|round: usize| {
            let n = round % LENGTHS.len();
            db.alter_table("t", TableChanges::default().metadata(metadata(LENGTHS[n], n))).map(drop)
        });
        is_done.store(true, SeqCst);
        reader.join().expect("a reader")?;
        altered
    })
}

#[test]
fn an_alteration_crashes_at_every_operation() -> Result<()> {
    let open = |disk: &SimulatedDisk, seed| {
        let env = SimulatedEnv::new(seed);
        let db = Database::open_on(Arc::new(disk.clone()), Arc::new(env.clone()), &small_options(), &|_| {});
        db.map(|db| (db, env))
    };
    for long in [true, false] {
        let disk = SimulatedDisk::new(1);
        let (db, env) = open(&disk, 1)?;
        create(&db, if long { 10 } else { 9000 })?;
        db.checkpoint()?;
        let before = state(&db)?;
        let from = disk.operations() + 1;
        disk.record_crash_points(from..=u64::MAX);
        db.alter_table("t", changes(long))?;
        let done = disk.operations();
        env.run_workers(200);
        db.checkpoint()?;
        drop(db);
        let (mut old, mut new) = (0, 0);
        for (operation, crashed) in disk.take_crash_points() {
            for survive in [Survive::Nothing, Survive::Everything, Survive::Random(operation)] {
                let (db, env) = open(&crashed.restart(survive), operation)?;
                let seen = state(&db)?;
                // A crash may skip numbers that were not set.
                let numbers = if seen.numbers[0] < 5000 { before.numbers } else { seen.numbers };
                let seen = State { numbers, ..seen };
                let is_old = seen == before;
                assert!(is_old || seen == changed(long), "{long} at {operation}, {survive:?}: {seen:?}");
                assert!(!is_old || operation <= done, "{long} at {operation}: it was durable");
                old += u32::from(is_old);
                new += u32::from(!is_old);
                env.run_workers(300);
                let report = db.check()?;
                assert_eq!(report.findings, Vec::<String>::new(), "{long} at {operation}");
                let trees = report.trees.iter().filter(|tree| !tree.table.is_empty()).count();
                assert_eq!(trees, if is_old { 4 + usize::from(!long) } else { 3 + usize::from(long) });
            }
        }
        assert!(old > 1 && new > 20, "{long}: {old} crashes were before it, {new} after it");
    }
    Ok(())
}
