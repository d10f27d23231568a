//! Groups of DDL statements: what they see of each other, what other threads see of them, and what a crash leaves.

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
use time_limit::wait_until;
use windfall::{
    Database, DdlGroup, Error, FlushLog, IndexOptions, Result, TableOptions, TransactionOptions,
    error::{LockError, SchemaError, UsageError},
};
use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

fn indexed() -> TableOptions {
    TableOptions::default().index("i", IndexOptions::on_value(0..4))
}

/// Returns the tables, and the value that each has below one key.
fn state(db: &Database) -> Result<Vec<(String, Option<Vec<u8>>)>> {
    let of = |name: String| Ok((name.clone(), db.table(&name)?.get(&key(0))?));
    db.tables()?.into_iter().map(|info| of(info.name)).collect()
}

/// Creates tables that have their own name as the value of their row.
fn create(db: &Database, names: &[&str]) -> Result<()> {
    names.iter().try_for_each(|name| db.create_table(name, indexed())?.insert(&key(0), name.as_bytes()))
}

/// Tables, and the values that they have below one key.
type Tables<'a> = &'a [(&'a str, Option<&'a str>)];

fn expected(tables: Tables<'_>) -> Vec<(String, Option<Vec<u8>>)> {
    tables.iter().map(|(name, row)| (String::from(*name), row.map(|row| row.as_bytes().to_vec()))).collect()
}

#[test]
fn statements_of_a_group_see_earlier_ones() -> Result<()> {
    type Fill = fn(&mut DdlGroup) -> &mut DdlGroup;
    let cases: [(&str, Fill, usize, Tables<'_>); 11] = [
        (
            "a chain of renames",
            |group| group.rename_table("a", "d").rename_table("b", "a").rename_table("c", "b"),
            0,
            &[("a", Some("b")), ("b", Some("c")), ("d", Some("a"))],
        ),
        (
            "a swap by three renames",
            |group| group.rename_table("a", "x").rename_table("b", "a").rename_table("x", "b"),
            0,
            &[("a", Some("b")), ("b", Some("a")), ("c", Some("c"))],
        ),
        (
            "a rename there and back",
            |group| group.rename_table("a", "x").rename_table("x", "a"),
            0,
            &[("a", Some("a")), ("b", Some("b")), ("c", Some("c"))],
        ),
        (
            "swaps in a circle",
            |group| group.swap_tables("a", "b").swap_tables("b", "c").swap_tables("a", "a"),
            0,
            &[("a", Some("b")), ("b", Some("c")), ("c", Some("a"))],
        ),
        (
            "a table that never exists",
            |group| group.create_table("x", indexed()).drop_table("x").drop_table_if_exists("x"),
            0,
            &[("a", Some("a")), ("b", Some("b")), ("c", Some("c"))],
        ),
        (
            "a table that is created again",
            |group| group.drop_table("a").create_table("a", TableOptions::default()),
            2,
            &[("a", None), ("b", Some("b")), ("c", Some("c"))],
        ),
        (
            "a table in the place of a dropped one",
            |group| group.drop_table("b").rename_table("a", "b").create_table("a", indexed()),
            2,
            &[("a", None), ("b", Some("a")), ("c", Some("c"))],
        ),
        (
            "a truncation and a rename of one table",
            |group| group.truncate_table("a").rename_table("a", "x").truncate_table("x"),
            2,
            &[("b", Some("b")), ("c", Some("c")), ("x", None)],
        ),
        (
            "changes of a table that is dropped",
            |group| group.rename_table("a", "x").drop_index("x", "i").truncate_table("x").drop_table("x"),
            2,
            &[("b", Some("b")), ("c", Some("c"))],
        ),
        (
            "an index and another table",
            |group| group.drop_index("c", "i").drop_table("a").create_table("x", indexed()),
            3,
            &[("b", Some("b")), ("c", Some("c")), ("x", None)],
        ),
        ("nothing", |group| group, 0, &[("a", Some("a")), ("b", Some("b")), ("c", Some("c"))]),
    ];
    for (what, fill, trees, after) in cases {
        let (folder, db) = new_database(small_options())?;
        create(&db, &["a", "b", "c"])?;
        let handle = db.table("a")?;
        let mut group = db.ddl();
        fill(&mut group);
        let (groups, is_empty) = (db.metrics().log_groups, group.is_empty());
        let before = state(&db)?;
        let report = group.commit()?;
        assert_eq!(report.trees, trees, "{what}");
        let changes = state(&db)? != before;
        assert!(
            !(is_empty && changes) && report.lsn.is_some() == (changes || trees > 0),
            "{what}: {report:?}"
        );
        // Ids may need a new ceiling in the log, and background work has groups of its own.
        assert!(db.metrics().log_groups - groups <= 6, "{what}");
        assert_eq!(state(&db)?, expected(after), "{what}");
        // A handle stays that of its table, whatever the table's name is.
        let is_kept = after.iter().any(|(_, row)| *row == Some("a"));
        if is_kept {
            assert_eq!(handle.get(&key(0))?.as_deref(), Some(&b"a"[..]), "{what}");
        }
        for (name, _) in after {
            let table = db.table(name)?;
            table.put(b"more", b"value")?;
            if db.tables()?.iter().any(|info| info.name == *name && !info.indexes.is_empty()) {
                assert_eq!(table.index("i")?.get(b"valu")?.count(), 1, "{what}: {name}");
            }
        }
        assert_eq!(db.check()?.findings, Vec::<String>::new(), "{what}");
        drop(handle);
        db.close()?;
        let db = Database::open(folder.path(), small_options())?;
        assert_eq!(state(&db)?, expected(after), "{what}, opened again");
        assert_eq!(db.check()?.findings, Vec::<String>::new(), "{what}, opened again");
    }
    Ok(())
}

/// The errors tell a server that replays its DDL log which statements were done already.
#[test]
fn a_group_that_is_refused_has_changed_nothing() -> Result<()> {
    let (_folder, db) = new_database(small_options())?;
    create(&db, &["a", "b"])?;
    let before = state(&db)?;
    let mut dropped = db.ddl();
    dropped.drop_table("a").create_table("x", indexed());
    assert_eq!((dropped.len(), dropped.is_empty()), (2, false));
    drop(dropped);
    assert_eq!(state(&db)?, before);
    let refused = |fill: &dyn Fn(&mut DdlGroup) -> &mut DdlGroup| -> Result<SchemaError> {
        let mut group = db.ddl();
        group.drop_table("a").create_table("x", indexed()).truncate_table("b");
        fill(&mut group);
        let Err(Error::Schema(error)) = group.commit() else { panic!("it should have been refused") };
        assert_eq!(state(&db)?, before, "{error}");
        Ok(error)
    };
    let missing = |error: SchemaError, name: &str| {
        assert!(matches!(&error, SchemaError::NoTable(t) if **t == *name), "{error}");
    };
    let taken = |error: SchemaError, name: &str| {
        assert!(matches!(&error, SchemaError::TableExists(t) if **t == *name), "{error}");
    };
    missing(refused(&|group| group.drop_table("a"))?, "a");
    missing(refused(&|group| group.truncate_table("a"))?, "a");
    missing(refused(&|group| group.swap_tables("b", "a"))?, "a");
    missing(refused(&|group| group.drop_index("none", "i"))?, "none");
    // A rename that was done before: its source is missing, whether its target exists or not.
    missing(refused(&|group| group.rename_table("a", "b"))?, "a");
    missing(refused(&|group| group.rename_table("a", "c"))?, "a");
    taken(refused(&|group| group.rename_table("b", "x"))?, "x");
    taken(refused(&|group| group.rename_table("b", "b"))?, "b");
    taken(refused(&|group| group.create_table("b", indexed()))?, "b");
    let error = refused(&|group| group.drop_index("b", "none"))?;
    assert!(matches!(error, SchemaError::NoIndex { .. }), "{error}");
    let error = refused(&|group| group.rename_table("b", ""))?;
    assert!(matches!(error, SchemaError::BadName { .. }), "{error}");
    let error =
        refused(&|group| group.create_table("y", indexed().index("i", IndexOptions::on_value(0..1))))?;
    assert!(matches!(error, SchemaError::IndexExists { .. }), "{error}");

    // Neither do the statements alone change the meaning of their errors.
    for (error, name) in [
        (db.drop_table("c").map(drop), "c"),
        (db.rename_table("c", "a"), "c"),
        (db.rename_table("c", "d"), "c"),
    ] {
        let Err(Error::Schema(error)) = error else { panic!("{error:?}") };
        missing(error, name);
    }
    // A group that is too large for the log buffer.
    let mut group = db.ddl();
    group.drop_table("a");
    for n in 0..1000 {
        group.create_table(&format!("{n}"), TableOptions::default().metadata(vec![0; 300]));
    }
    assert!(matches!(group.commit(), Err(Error::Usage(UsageError::StatementTooLong { .. }))));
    assert_eq!(state(&db)?, before);
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}

#[test]
fn a_group_waits_for_transactions_and_takes_no_table_before() -> Result<()> {
    let (_folder, db) = new_database(small_options())?;
    create(&db, &["a", "b", "c"])?;
    let before = state(&db)?;
    // A dropped table, a renamed one, and a truncated one.
    for locked in ["a", "b", "c"] {
        let trx = db.begin(TransactionOptions::default());
        trx.table(&db.table(locked)?).put(b"other key", b"value")?;
        let at_once = db.with_ddl_timeout(Duration::ZERO);
        let group = |db: &Database| {
            let mut group = db.ddl();
            group.drop_table("a").rename_table("b", "a").truncate_table("c");
            group.commit()
        };
        assert!(matches!(group(&at_once), Err(Error::Lock(LockError::Busy(_)))), "{locked}");
        assert_eq!(state(&db)?, before);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| group(&db.with_ddl_timeout(Duration::from_mins(1))));
            while db.lock_waits().is_empty() {
                thread::yield_now();
            }
            // Meanwhile everything is there, and can be read.
            assert_eq!(state(&db).unwrap(), before);
            trx.commit().unwrap();
            assert_eq!(waiting.join().unwrap().unwrap().trees, 4);
        });
        assert_eq!(state(&db)?, expected(&[("a", Some("b")), ("c", None)]), "{locked}");
        db.drop_tables(&["a", "c"])?;
        create(&db, &["a", "b", "c"])?;
    }
    Ok(())
}

/// Threads look up names and read through handles while groups exchange tables, drop and truncate them. One value is
/// valid in each generation, and a thread that has seen a generation sees no earlier one.
#[test]
fn a_group_is_visible_as_one_step() -> Result<()> {
    const ROUNDS: u64 = 150;
    let (_folder, db) = new_database(small_options().flush_log_at_trx_commit(FlushLog::Lazy))?;
    let generation = |table: &windfall::Table| -> Result<u64> {
        Ok(table
            .get(&key(0))?
            .map_or(u64::MAX, |value| u64::from_be_bytes(value.try_into().expect("8 bytes"))))
    };
    for name in ["a", "b", "kept"] {
        db.create_table(name, TableOptions::default())?.put(&key(0), &0u64.to_be_bytes())?;
    }
    let kept = db.table("kept")?;
    let (is_done, db, kept) = (AtomicBool::new(false), &db, &kept);
    thread::scope(|scope| -> Result<()> {
        let readers: Vec<_> = (0..2)
            .map(|reader| {
                let is_done = &is_done;
                scope.spawn(move || -> Result<u64> {
                    let mut seen = 0;
                    while !is_done.load(SeqCst) {
                        // The order in which a reader looks must not matter.
                        let names = if reader == 0 { ["a", "b"] } else { ["b", "a"] };
                        for name in names {
                            let found = db.table(name).and_then(|table| generation(&table));
                            match found {
                                Ok(found) => {
                                    assert!(
                                        found >= seen,
                                        "{name} is of {found}, and {seen} was seen before"
                                    );
                                    seen = found;
                                }
                                // Between the lookup and the read, the next group has dropped it.
                                Err(Error::TableDropped(_)) => {}
                                Err(error) => return Err(error),
                            }
                        }
                        // The group truncates it: it is empty, or filled since.
                        let found = generation(kept)?;
                        assert!(found >= seen, "the table that is kept is of {found}, after {seen}");
                    }
                    Ok(seen)
                })
            })
            .collect();
        for round in 1..=ROUNDS {
            for name in ["new a", "new b"] {
                db.create_table(name, TableOptions::default())?.put(&key(0), &round.to_be_bytes())?;
            }
            let mut group = db.ddl();
            group.drop_table("a").drop_table("b").truncate_table("kept");
            group.rename_table("new a", "a").rename_table("new b", "b");
            assert_eq!(group.commit()?.trees, 3);
            kept.put(&key(0), &round.to_be_bytes())?;
        }
        is_done.store(true, SeqCst);
        for reader in readers {
            reader.join().expect("a reader")?;
        }
        Ok(())
    })?;
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}

/// Groups of many threads over few names, in any order: none waits for another one in a circle.
#[test]
fn groups_of_many_threads_end() -> Result<()> {
    const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
    let (_folder, db) = new_database(small_options().flush_log_at_trx_commit(FlushLog::Lazy))?;
    create(&db, &NAMES)?;
    let work = |db: &Database, thread: usize| {
        for round in 0..100 {
            let name = |n: usize| NAMES[(thread * 3 + round * 7 + n * n) % NAMES.len()];
            let mut group = db.ddl();
            match round % 3 {
                0 => group.swap_tables(name(0), name(1)).swap_tables(name(2), name(3)),
                1 => group.truncate_table(name(1)).swap_tables(name(0), name(2)),
                _ => group.drop_table(name(0)).create_table(name(0), indexed()),
            };
            group.commit().expect("all names have tables");
            let done = db.table(name(1)).and_then(|table| table.put(&key(0), b"x"));
            assert!(matches!(done, Ok(()) | Err(Error::TableDropped(_))), "{done:?}");
        }
    };
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let db = db.clone();
            thread::spawn(move || work(&db, thread))
        })
        .collect();
    wait_until("groups end", || threads.iter().all(thread::JoinHandle::is_finished));
    for thread in threads {
        thread.join().expect("a thread");
    }
    assert_eq!(db.tables()?.len(), NAMES.len());
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}

#[test]
fn a_group_is_one_commit() -> Result<()> {
    let disk = SimulatedDisk::new(1);
    let env = Arc::new(SimulatedEnv::new(1));
    let db = Database::open_on(Arc::new(disk), env, &small_options(), &|_| {})?;
    create(&db, &["a", "b", "c", "d"])?;
    let before = (db.metrics().log_syncs, db.metrics().log_groups);
    let mut group = db.ddl();
    group.drop_table("a").truncate_table("b").rename_table("c", "a").create_table("c", indexed());
    group.drop_index("d", "i");
    assert_eq!(group.commit()?.trees, 5);
    let syncs = db.metrics().log_syncs - before.0;
    assert_eq!(syncs, 1, "one commit is one sync");
    assert!(db.metrics().log_groups - before.1 <= 2, "the group, and at most a new ceiling of ids");
    Ok(())
}

/// A rename publishes one of its names after the other, and another statement may use the table in between. The rename
/// must not take the table for one that has ended.
#[test]
fn a_rename_frees_no_table() -> Result<()> {
    let (_folder, db) = new_database(small_options().flush_log_at_trx_commit(FlushLog::Write))?;
    create(&db, &["b"])?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let truncate = |name: &'static str| {
            while !stop.load(SeqCst) {
                match db.truncate_table(name) {
                    Ok(_) | Err(Error::Schema(SchemaError::NoTable(_))) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        };
        let others = ["a", "b", "a"].map(|name| scope.spawn(move || truncate(name)));
        let renamed = (0..1500).try_for_each(|_| db.rename_table("b", "a").and(db.rename_table("a", "b")));
        stop.store(true, SeqCst);
        others.map(|other| other.join().expect("no panic")).into_iter().collect::<Result<()>>()?;
        renamed
    })?;
    db.table("b")?.put(&key(7), b"it can be used")?;
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}

/// Every kind of statement, by a handle with a durability of its own.
#[test]
fn the_durability_of_statements_is_that_of_their_handle() -> Result<()> {
    type Statement = fn(&Database) -> Result<()>;
    let statements: [(&str, Statement); 9] = [
        ("create", |db| db.create_table("c", indexed()).map(drop)),
        ("drop", |db| db.drop_table("a").map(drop)),
        ("truncate", |db| db.truncate_table("a").map(drop)),
        ("rename", |db| db.rename_table("a", "c")),
        ("index", |db| db.create_index("a", "j", IndexOptions::on_value(0..1))),
        ("group", |db| {
            let mut group = db.ddl();
            group.drop_table("a").rename_table("b", "a");
            group.commit().map(drop)
        }),
        ("in a transaction", |db| {
            let trx = db.begin(TransactionOptions::default());
            db.ddl().drop_table("a").commit_in(&trx)?;
            trx.rollback()
        }),
        ("alteration", |db| {
            let new = windfall::TableChanges::default().add_index("j", IndexOptions::on_value(0..1));
            db.build_indexes("a", new)?.finish(windfall::TableChanges::default()).map(drop)
        }),
        ("load", |db| {
            let mut load = db.load_table("empty")?;
            load.push(&key(0), b"loaded", &[])?;
            load.finish()
        }),
    ];
    for (what, statement) in statements {
        for (mode, of_handle) in [(FlushLog::Sync, FlushLog::Lazy), (FlushLog::Lazy, FlushLog::Sync)] {
            let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
            let open = |disk: SimulatedDisk, env: &SimulatedEnv| {
                let options = small_options().flush_log_at_trx_commit(mode);
                Database::open_on(Arc::new(disk), Arc::new(env.clone()), &options, &|_| {})
            };
            let db = open(disk.clone(), &env)?;
            create(&db, &["a", "b"])?;
            db.create_table("empty", TableOptions::default())?;
            db.flush_log()?;
            let before = (state(&db)?, indexes(&db)?);
            let handle = db.with_ddl_timeout(Duration::from_secs(1)).with_ddl_flush(of_handle);
            statement(&handle.with_ddl_timeout(Duration::from_secs(2)))?;
            let after = (state(&db)?, indexes(&db)?);
            assert_ne!(before, after, "{what} changes nothing");
            let left = open(disk.survivor(Survive::Nothing), &SimulatedEnv::new(2))?;
            let expected = if of_handle == FlushLog::Sync { &after } else { &before };
            assert_eq!((state(&left)?, indexes(&left)?), *expected, "{what} with {of_handle:?}");
            db.flush_log()?;
            let left = open(disk.survivor(Survive::Nothing), &SimulatedEnv::new(2))?;
            assert_eq!((state(&left)?, indexes(&left)?), after, "{what} with {of_handle:?}, flushed");
        }
    }
    Ok(())
}

/// Returns the indexes of each table.
fn indexes(db: &Database) -> Result<Vec<Vec<String>>> {
    Ok(db.tables()?.into_iter().map(|info| info.indexes).collect())
}
