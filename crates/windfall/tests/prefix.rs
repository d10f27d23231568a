//! Statements on all tables whose names begin with a prefix.

mod common;
mod time_limit;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use common::{key, new_database, small_options};
use windfall::{
    Database, DropReport, Error, FlushLog, IndexOptions, Result, TableOptions, TransactionOptions, Work,
    error::{LockError, SchemaError, UsageError},
    work_so_far,
};
use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

fn names(db: &Database, prefix: &str) -> Result<Vec<String>> {
    let names = db.table_names_with_prefix(prefix)?;
    let infos = db.tables_with_prefix(prefix)?;
    assert_eq!(infos.into_iter().map(|info| info.name).collect::<Vec<_>>(), names);
    Ok(names)
}

fn indexed() -> TableOptions {
    TableOptions::default().index("i", IndexOptions::on_value(0..4))
}

fn fill(db: &Database, name: &str, options: TableOptions, rows: u32) -> Result<()> {
    let table = db.create_table(name, options)?;
    (0..rows).try_for_each(|n| table.insert(&key(n), &[n as u8; 100]))
}

#[test]
fn statements_by_prefix_affect_no_other_table() -> Result<()> {
    let (folder, db) = new_database(small_options())?;
    let session = db.session();
    for name in ["p", "p.", "p.a", "p.b", "p/", "o", "P.a", "p-", "ü", "ý"] {
        fill(&db, name, indexed(), 3)?;
    }
    session.create_temporary_table("p.t", TableOptions::default())?.insert(b"k", b"v")?;
    assert_eq!(names(&db, "p.")?, ["p.", "p.a", "p.b"]);
    assert_eq!(names(&db, "p")?, ["p", "p-", "p.", "p.a", "p.b", "p/"]);
    assert_eq!(names(&db, "ü")?, ["ü"]);
    assert_eq!(db.tables_with_prefix("")?, db.tables()?);
    let found = db.tables_with_prefix("p.a")?;
    assert_eq!((found.len(), &found[0].indexes[..]), (1, &["i".to_owned()][..]));
    for none in ["q", "p.c", "p.a.", "\0", "p\0", &"p".repeat(5000)] {
        assert_eq!(names(&db, none)?, [""; 0]);
        for report in [db.drop_tables_with_prefix(none)?, db.truncate_tables_with_prefix(none)?] {
            assert_eq!((report.trees, report.lsn), (0, None));
        }
    }

    let kept = db.table("p.b")?;
    let report = db.truncate_tables_with_prefix("p.")?;
    assert!(report.trees == 6 && report.lsn.is_some(), "{report:?}");
    let rows = |name: &str| db.table(name)?.rows().map(Iterator::count);
    for name in db.tables()?.into_iter().map(|info| info.name) {
        assert_eq!(rows(&name)?, if name.starts_with("p.") { 0 } else { 3 }, "{name}");
    }
    kept.insert(b"k", b"after")?;
    assert_eq!(kept.index("i")?.get(b"afte")?.count(), 1);

    let report = db.drop_tables_with_prefix("p.")?;
    assert!(report.trees == 6 && report.lsn.is_some(), "{report:?}");
    assert!(matches!(kept.get(b"k"), Err(Error::TableDropped(_))));
    assert_eq!(session.temporary_table("p.t")?.get(b"k")?.as_deref(), Some(&b"v"[..]));
    let rest = ["P.a", "o", "p", "p-", "p/", "ü", "ý"];
    assert_eq!(names(&db, "")?, rest);
    drop((session, kept));
    db.close()?;

    let db = Database::open(folder.path(), small_options())?;
    assert_eq!(names(&db, "")?, rest);
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    assert_eq!(db.drop_tables_with_prefix("")?.trees, 2 * rest.len());
    assert_eq!(db.tables()?, []);
    Ok(())
}

/// A crash at every operation of the disk, from the statement on.
#[test]
fn a_crash_leaves_all_tables_of_a_prefix_or_none() -> Result<()> {
    const TABLES: u32 = 60;
    type Statement = fn(&Database, &str) -> Result<DropReport>;
    let statements =
        [Database::drop_tables_with_prefix as Statement, Database::truncate_tables_with_prefix as Statement];
    let open = |disk: &SimulatedDisk, seed| {
        let env = SimulatedEnv::new(seed);
        let db = Database::open_on(Arc::new(disk.clone()), Arc::new(env.clone()), &small_options(), &|_| {});
        db.map(|db| (db, env))
    };
    for (which, statement) in statements.into_iter().enumerate() {
        let disk = SimulatedDisk::new(1);
        let (db, env) = open(&disk, 1)?;
        for n in 0..TABLES {
            // Their records are in several leaves.
            let options = if n % 3 == 0 { indexed() } else { TableOptions::default() };
            fill(&db, &format!("p {n:->90}"), options.metadata(vec![1; 40]), n % 4)?;
            fill(&db, &format!("q {n:->90}"), TableOptions::default(), n % 2)?;
            if n == TABLES / 2 {
                db.checkpoint()?;
            }
        }
        let before = disk.operations();
        disk.record_crash_points(before + 1..=u64::MAX);
        statement(&db, "p ")?;
        let done = disk.operations();
        env.run_workers(200);
        db.checkpoint()?;
        drop(db);
        let (mut old, mut new) = (0, 0);
        for (operation, crashed) in disk.take_crash_points() {
            for survive in [Survive::Nothing, Survive::Everything, Survive::Random(operation)] {
                let (db, env) = open(&crashed.restart(survive), operation)?;
                let (mut tables, mut rows) = (0, 0);
                for info in db.tables_with_prefix("p ")? {
                    let table = db.table(&info.name)?;
                    tables += 1;
                    rows += table.rows()?.count();
                    if let [index] = &info.indexes[..] {
                        assert_eq!(table.index(index)?.range::<&[u8]>(..)?.count(), table.rows()?.count());
                    }
                }
                let all: usize = (0..TABLES as usize).map(|n| n % 4).sum();
                let after = if which == 0 { (0, 0) } else { (TABLES, 0) };
                let is_old = (tables, rows) == (TABLES, all);
                assert!(is_old || (tables, rows) == after, "{which} at {operation}: {tables}, {rows}");
                assert!(!is_old || operation <= done, "{which} at {operation}: it was durable");
                old += u32::from(is_old);
                new += u32::from(!is_old);
                let others = db.tables_with_prefix("q ")?;
                assert_eq!(others.len(), TABLES as usize);
                let rows = others.iter().map(|info| Ok(db.table(&info.name)?.rows()?.count()));
                assert_eq!(rows.sum::<Result<usize>>()?, TABLES as usize / 2);
                env.run_workers(50);
                assert_eq!(db.check()?.findings, Vec::<String>::new(), "{which} at {operation}");
            }
        }
        assert!(old > 1 && new > 50, "{which}: {old} crashes were before it, {new} after it");
    }
    Ok(())
}

#[test]
fn a_drop_by_prefix_waits_as_any_drop() -> Result<()> {
    let (_folder, db) = new_database(small_options())?;
    for name in ["p.a", "p.b", "q"] {
        fill(&db, name, TableOptions::default(), 2)?;
    }
    let (at_once, table) = (db.with_ddl_timeout(Duration::ZERO), db.table("p.b")?);
    let trx = db.begin(TransactionOptions::default());
    trx.table(&table).put(b"key", b"value")?;
    for refused in [at_once.drop_tables_with_prefix("p."), at_once.truncate_tables_with_prefix("p.")] {
        assert!(matches!(refused, Err(Error::Lock(LockError::Busy(_)))), "{refused:?}");
        assert_eq!(names(&db, "p.")?, ["p.a", "p.b"]);
        assert_eq!(db.table("p.a")?.rows()?.count(), 2);
    }
    // A table without the prefix delays it as little as none.
    at_once.drop_tables_with_prefix("q")?;
    thread::scope(|scope| {
        let dropping = scope.spawn(|| db.drop_tables_with_prefix("p."));
        while db.lock_waits().is_empty() {
            thread::yield_now();
        }
        // Meanwhile the tables are there.
        assert_eq!(db.table("p.a").unwrap().rows().unwrap().count(), 2);
        trx.commit().unwrap();
        assert_eq!(dropping.join().unwrap().unwrap().trees, 2);
    });
    assert_eq!(db.tables()?, []);
    Ok(())
}

#[test]
fn tables_of_a_prefix_come_and_go_while_they_are_listed() -> Result<()> {
    let (_folder, db) = new_database(small_options().flush_log_at_trx_commit(FlushLog::Lazy))?;
    let is_gone = |error: &Error| matches!(error, Error::Schema(SchemaError::NoTable(_)));
    for round in 0..4 {
        // The walk along the keys passes these.
        for n in 0..100 {
            fill(&db, &format!("p.k{n}"), TableOptions::default().metadata(vec![0; 200]), 0)?;
        }
        fill(&db, "p.moving", TableOptions::default().index("m", IndexOptions::on_value(0..1)), 1)?;
        fill(&db, "p.swapped", TableOptions::default(), 1)?;
        fill(&db, "other", TableOptions::default(), 1)?;
        let (is_done, is_dropped) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| -> Result<()> {
            scope.spawn(|| {
                let mut at = "p.moving";
                while !is_done.load(SeqCst) {
                    for to in ["p.a", "p.z"] {
                        match db.rename_table(at, to) {
                            Ok(()) => at = to,
                            Err(error) => {
                                return assert!(is_dropped.load(SeqCst) && is_gone(&error), "{error}");
                            }
                        }
                    }
                }
            });
            scope.spawn(|| {
                while !is_done.load(SeqCst) {
                    if let Err(error) = db.swap_tables("p.swapped", "other") {
                        return assert!(is_dropped.load(SeqCst) && is_gone(&error), "{error}");
                    }
                }
            });
            scope.spawn(|| {
                for n in 0.. {
                    if is_done.load(SeqCst) {
                        return;
                    }
                    let name = format!("p.n{}", n % 50);
                    db.create_table(&name, TableOptions::default()).unwrap();
                    if let Err(error) = db.drop_table(&name) {
                        assert!(is_dropped.load(SeqCst) && is_gone(&error), "{error}");
                    }
                }
            });
            let listings: Result<()> = (0..100).try_for_each(|_| {
                let all = db.tables_with_prefix("p.")?;
                let moving = all.iter().filter(|info| info.indexes == ["m"]).count();
                let fixed = all.iter().filter(|info| info.name.starts_with("p.k")).count();
                let swapped = all.iter().filter(|info| info.name == "p.swapped").count();
                assert_eq!((moving, fixed, swapped), (1, 100, 1), "round {round}: {all:?}");
                Ok(())
            });
            is_dropped.store(true, SeqCst);
            let dropped = db.drop_tables_with_prefix("p.");
            is_done.store(true, SeqCst);
            listings?;
            assert!(dropped?.trees >= 103);
            Ok(())
        })?;
        // What is left was created after the statement had found the others.
        for name in names(&db, "p.")? {
            assert!(name.starts_with("p.n"), "{name} was not dropped");
            db.drop_table(&name)?;
        }
        db.drop_table("other")?;
        assert_eq!(db.tables()?, []);
    }
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}

#[test]
fn only_the_records_of_the_prefix_are_read() -> Result<()> {
    let (_folder, db) = new_database(small_options().flush_log_at_trx_commit(FlushLog::Lazy))?;
    let read = |prefix: &str| -> Result<u64> {
        let before = work_so_far().of(Work::SystemTreeFrame);
        db.table_names_with_prefix(prefix)?;
        Ok(work_so_far().of(Work::SystemTreeFrame) - before)
    };
    for n in 0..1500 {
        db.create_table(&format!("a table {n:04}"), TableOptions::default())?;
    }
    let (few, all) = (read("a table 070")?, read("a")?);
    assert!(few <= 8 && all > 10, "{few} frames for ten tables, {all} for all");
    Ok(())
}

/// A group of thousands of tables is one group of the log, and one that is too large changes nothing.
#[test]
fn a_prefix_of_many_tables_is_one_group_of_the_log() -> Result<()> {
    const TABLES: u32 = 3000;
    let lazy = small_options().buffer_pool_size(1000 * 4096).flush_log_at_trx_commit(FlushLog::Lazy);
    let (folder, db) = new_database(lazy.clone())?;
    let long = "with a rather long name".repeat(2);
    for n in 0..TABLES {
        db.create_table(&format!("{long}{n:06}"), TableOptions::default())?;
    }
    for refused in [db.drop_tables_with_prefix("with"), db.truncate_tables_with_prefix("with")] {
        let Err(Error::Usage(UsageError::StatementTooLong { tables, .. })) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(tables, TABLES as usize);
        assert_eq!(names(&db, "with")?.len(), TABLES as usize);
    }
    db.table(&format!("{long}000007"))?.insert(b"key", b"value")?;
    assert_eq!(db.drop_tables_with_prefix(&format!("{long}0001"))?.trees, 100);
    db.close()?;

    let db = Database::open(folder.path(), lazy.log_buffer_size(2 << 20))?;
    let table = db.table(&format!("{long}000007"))?;
    let logged = || db.metrics().log_groups;
    let before = logged();
    assert_eq!(db.truncate_tables_with_prefix("with")?.trees, TABLES as usize - 100);
    let truncated = logged();
    assert_eq!((table.get(b"key")?, names(&db, "with")?.len()), (None, TABLES as usize - 100));
    let before_drop = logged();
    assert_eq!(db.drop_tables_with_prefix("with")?.trees, TABLES as usize - 100);
    // Ceilings of ids, splits of full leaves, and background work are groups of their own.
    let groups = [truncated - before, logged() - before_drop];
    assert!(groups.into_iter().all(|groups| groups < u64::from(TABLES) / 10), "{groups:?}");
    assert_eq!(db.tables()?, []);
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}
