//! The public interface of the library, on a real disk.

mod common;
mod time_limit;

use std::{sync::Arc, time::Duration};

use common::{key, new_database};
use time_limit::wait_until;
use windfall::{Database, Error, IndexOptions, Options, Result, TableOptions, error::SchemaError};
use windfall_sim::{SimulatedDisk, SimulatedEnv};

fn options() -> Options {
    Options::default().buffer_pool_size(8 << 20).log_size(16 << 20)
}

#[test]
fn rows_come_and_go_and_survive() -> Result<()> {
    let (folder, db) = new_database(options())?;
    let table =
        db.create_table("t", TableOptions::default().index("by_start", IndexOptions::on_value(0..4)))?;
    for n in 0..2000u32 {
        table.insert(&key(n), format!("{:04} is the value of row {n}", n % 100).as_bytes())?;
    }
    assert!(matches!(table.insert(&key(7), b""), Err(Error::Schema(SchemaError::DuplicateKey { .. }))));
    assert!(table.delete(&key(3))? && !table.delete(&key(3))?);
    table.update(&key(4), b"0099 changed")?;
    table.put(&key(5), &vec![b'x'; 100_000])?;
    assert_eq!(table.get(&key(5))?.map(|v| v.len()), Some(100_000));
    assert!(table.insert(&vec![0; 4000], b"").unwrap_err().to_string().contains("3072"));
    db.close()?;

    let db = Database::open(folder.path(), options())?;
    let table = db.table("t")?;
    assert_eq!(table.get(&key(3))?, None);
    assert_eq!(table.get(&key(4))?.as_deref(), Some(&b"0099 changed"[..]));
    assert_eq!(table.rows()?.count(), 1999);
    assert_eq!(table.rows()?.rev().count(), 1999);
    let keys: Vec<_> = table.range(key(10)..key(13))?.map(|row| row.map(|r| r.0)).collect::<Result<_>>()?;
    assert_eq!(keys, [key(10), key(11), key(12)]);
    let found: Vec<_> =
        table.index("by_start")?.get(b"0099")?.map(|row| row.map(|r| r.key)).collect::<Result<_>>()?;
    assert_eq!(found.len(), 21);
    assert_eq!(found[0], key(4));
    let report = db.check()?;
    assert_eq!(report.findings, Vec::<String>::new());
    Ok(())
}

#[test]
fn ddl_statements_have_their_effects() -> Result<()> {
    let (_folder, db) = new_database(options())?;
    for name in ["a", "b", "c"] {
        db.create_table(name, TableOptions::default())?.insert(b"name", name.as_bytes())?;
    }
    let name = |table: &str| db.table(table)?.get(b"name");
    db.rename_table("a", "d")?;
    db.swap_tables("d", "b")?;
    assert_eq!((name("d")?, name("b")?), (Some(b"b".to_vec()), Some(b"a".to_vec())));
    assert!(matches!(db.table("a"), Err(Error::Schema(SchemaError::NoTable(_)))));
    let old = db.table("b")?;
    let mut rows = old.rows()?;
    let report = db.truncate_table("b")?;
    assert_eq!(report.trees, 1);
    assert!(matches!(rows.next(), Some(Err(Error::TableDropped(_)))));
    assert_eq!(old.get(b"name")?, None);
    old.insert(b"name", b"new")?;
    // If one of the tables does not exist, none is dropped.
    assert!(db.drop_tables(&["b", "nothing"]).is_err());
    assert_eq!(old.get(b"name")?, Some(b"new".to_vec()));
    db.drop_tables(&["b", "c"])?;
    assert!(matches!(old.get(b"name"), Err(Error::TableDropped(_))));
    assert!(matches!(old.insert(b"x", b"y"), Err(Error::TableDropped(_))));
    db.create_table("b", TableOptions::default())?;
    assert_eq!(db.table("b")?.get(b"name")?, None);
    assert_eq!(db.tables()?.into_iter().map(|t| t.name).collect::<Vec<_>>(), ["b", "d"]);
    Ok(())
}

#[test]
fn indexes_come_and_go() -> Result<()> {
    let (_folder, db) = new_database(options())?;
    let table = db.create_table("t", TableOptions::default())?;
    for n in 0..500u32 {
        table.insert(&key(n), &key(n / 2))?;
    }
    let error = db.create_index("t", "unique", IndexOptions::on_value(0..4).unique()).unwrap_err();
    assert!(matches!(error, Error::Schema(SchemaError::DuplicateKey { .. })), "{error}");
    db.create_index("t", "half", IndexOptions::on_value(0..4))?;
    table.insert(&key(1000), &key(7))?;
    let keys: Vec<_> =
        table.index("half")?.get(&key(7))?.map(|row| row.map(|r| r.key)).collect::<Result<_>>()?;
    assert_eq!(keys, [key(14), key(15), key(1000)]);
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    // The indexed part of a long value may be in its overflow pages.
    let long: Vec<u8> = (0..20_000u32).map(|n| (n / 100) as u8).collect();
    table.insert(&key(2000), &long)?;
    db.create_index("t", "far", IndexOptions::on_value(15_000..15_004))?;
    table.insert(&key(2001), &long)?;
    assert_eq!(table.index("far")?.get(&[150; 4])?.count(), 2);
    db.drop_index("t", "half")?;
    assert!(table.index("half").is_err());
    table.insert(&key(1001), &key(7))?;
    Ok(())
}

#[test]
fn temporary_tables_end_with_their_session() -> Result<()> {
    let (_folder, db) = new_database(options())?;
    let session = db.session();
    let table = session.create_temporary_table("t", TableOptions::default())?;
    for n in 0..3000u32 {
        table.put(&key(n % 500), &[7; 3000])?;
    }
    assert!(db.table("t").is_err());
    assert_eq!(table.rows()?.count(), 500);
    let scratch = session.scratch()?;
    scratch.insert(b"a", b"b")?;
    let kept = scratch.clone();
    drop(scratch);
    assert!(matches!(kept.get(b"a"), Err(Error::TableDropped(_))));
    drop(session);
    assert!(matches!(table.get(&key(1)), Err(Error::TableDropped(_))));
    Ok(())
}

#[test]
fn many_threads_on_one_table() -> Result<()> {
    let (_folder, db) = new_database(options())?;
    let table = db.create_table("t", TableOptions::default().index("i", IndexOptions::on_value(0..4)))?;
    std::thread::scope(|scope| {
        for t in 0..4u32 {
            let table = table.clone();
            scope.spawn(move || {
                for n in 0..500u32 {
                    let k = key(n * 4 + t);
                    table.insert(&k, &key(n)).unwrap();
                    if n % 3 == 0 {
                        table.update(&k, &key(n + 1)).unwrap();
                    }
                    if n % 5 == 0 {
                        assert!(table.delete(&k).unwrap());
                    }
                }
            });
        }
    });
    assert_eq!(table.rows()?.count(), 1600);
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}

/// The doublewrite file is only needed if a page is torn.
#[test]
fn a_doublewrite_file_that_is_lost_is_created_again() -> Result<()> {
    let (folder, db) = new_database(options())?;
    let table = db.create_table("t", TableOptions::default())?;
    (0..100).try_for_each(|n| table.insert(&key(n), &[1; 100]))?;
    drop(table);
    db.close()?;
    std::fs::remove_file(folder.path().join("windfall.doublewrite")).expect("a file less");
    for n in 100..102 {
        let db = Database::open(folder.path(), options())?;
        db.table("t")?.insert(&key(n), &[1; 100])?;
        db.checkpoint()?;
        assert_eq!(db.check()?.findings, Vec::<String>::new());
        db.close()?;
    }
    Ok(())
}

#[test]
fn a_lost_file_is_reported_as_lost_and_nothing_is_deleted() -> Result<()> {
    let (folder, db) = new_database(options())?;
    let table = db.create_table("t", TableOptions::default())?;
    for n in 0..100u32 {
        table.insert(&key(n), b"value")?;
    }
    drop(table);
    db.close()?;
    let files = || {
        let mut files: Vec<_> =
            std::fs::read_dir(folder.path().join("data")).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        files
    };
    let all = files();
    assert!(all.len() > 1, "the system tablespace and the table have files: {all:?}");
    for lost in &all {
        let aside = folder.path().join("aside");
        std::fs::rename(lost, &aside).unwrap();
        let error = Database::open(folder.path(), options()).unwrap_err().to_string();
        assert!(error.contains(lost.file_name().unwrap().to_str().unwrap()), "{error}");
        std::fs::rename(&aside, lost).unwrap();
        assert_eq!(files(), all);
    }
    assert_eq!(Database::open(folder.path(), options())?.table("t")?.rows()?.count(), 100);
    Ok(())
}

#[test]
fn the_first_rows_of_a_table_may_come_at_the_same_time() -> Result<()> {
    const THREADS: u32 = 4;
    let (_folder, db) = new_database(options())?;
    db.set_flush_log_at_trx_commit(windfall::FlushLog::Lazy);
    for round in 0..300 {
        let table = db.create_table(&format!("t{round}"), TableOptions::default())?;
        let start = std::sync::Barrier::new(THREADS as usize);
        std::thread::scope(|scope| {
            for n in 0..THREADS {
                let (table, start) = (&table, &start);
                scope.spawn(move || {
                    start.wait();
                    table.insert(&key(n), b"a row").unwrap();
                    assert!(table.contains(&key(n)).unwrap(), "row {n} of round {round} is lost");
                });
            }
        });
        assert_eq!(table.rows()?.count(), THREADS as usize, "round {round}");
    }
    Ok(())
}

#[test]
fn many_new_files_at_once_do_not_hold_up_the_log() -> Result<()> {
    let (_folder, db) =
        new_database(Options::default().page_size(4096).buffer_pool_size(8 << 20).log_size(4 << 20))?;
    db.set_flush_log_at_trx_commit(windfall::FlushLog::Lazy);
    for n in 0..100 {
        db.create_table(&format!("t{n}"), TableOptions::default())?.insert(b"key", b"value")?;
    }
    db.checkpoint()?;
    let table = db.table("t0")?;
    for n in 0..1000u32 {
        table.insert(&key(n), &[1; 100])?;
    }
    wait_until("a log that nothing holds up", || {
        db.checkpoint().expect("a checkpoint");
        db.metrics().log_age < 20_000
    });
    Ok(())
}

#[test]
fn closing_ends_running_calls() -> Result<()> {
    for _ in 0..10 {
        let (folder, db) = new_database(options())?;
        db.set_flush_log_at_trx_commit(windfall::FlushLog::Write);
        let table = db.create_table("t", TableOptions::default())?;
        let written = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2u32)
                .map(|t| {
                    let table = &table;
                    scope.spawn(move || {
                        (0..).find_map(|n| {
                            table.insert(&key(n * 2 + t), &[7; 500]).err().map(|error| (n, error))
                        })
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_millis(20));
            db.close().unwrap();
            writers.into_iter().map(|writer| writer.join().unwrap().unwrap()).collect::<Vec<_>>()
        });
        // The old handle still exists.
        let db = Database::open(folder.path(), options())?;
        for (t, (written, error)) in (0u32..).zip(written) {
            assert!(matches!(error, Error::Closed), "{error}");
            for n in 0..written {
                assert!(db.table("t")?.contains(&key(n * 2 + t))?, "row {n} of {written} is lost");
            }
        }
    }
    Ok(())
}

#[test]
fn a_check_does_not_report_versions_that_a_reader_keeps() -> Result<()> {
    /// Blocks after the first piece until the test lets it continue, or a timeout.
    struct Slow(std::sync::mpsc::Sender<()>, std::sync::mpsc::Receiver<()>);
    impl std::io::Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if self.0.send(()).is_ok() {
                let _ = self.1.recv_timeout(Duration::from_millis(700));
            }
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let (_folder, db) = new_database(options())?;
    // The check visits the reader's own table last, when the reader has ended.
    let read = db.create_table("z", TableOptions::default())?;
    let changed = db.create_table("a", TableOptions::default())?;
    for table in [&read, &changed] {
        table.put(b"long", &vec![1; 300_000])?;
    }
    let ((begun, has_begun), (_go_on, goes_on)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
    std::thread::scope(|scope| {
        scope.spawn(|| read.read_stream(b"long", &mut Slow(begun, goes_on)));
        has_begun.recv().expect("the reader has begun");
        changed.put(b"long", &vec![2; 300_000])?;
        assert_eq!(db.check()?.findings, Vec::<String>::new());
        Ok(())
    })
}

#[test]
fn metrics_report_the_system_tree_and_pending_deletions() -> Result<()> {
    let env = SimulatedEnv::new(1);
    let db = Database::open_on(Arc::new(SimulatedDisk::new(1)), Arc::new(env.clone()), &options(), &|_| {})?;
    assert!(db.metrics().system_tree_height <= 1);
    for n in 0..400 {
        db.create_table(&format!("table {n} of a catalog that grows"), TableOptions::default())?;
    }
    assert!(db.metrics().system_tree_height >= 2, "{}", db.metrics().system_tree_height);
    let table = db.create_table("t", TableOptions::default())?;
    for n in 0..40 {
        table.put(&key(n), &vec![7; 200_000])?;
    }
    db.checkpoint()?;
    db.set_flush_log_at_trx_commit(windfall::FlushLog::Lazy);
    db.drop_table("t")?;
    // Until the drop is durable, which takes up to a second, the file is counted as pending.
    let mut most = 0;
    for _ in 0..10_000 {
        env.run_workers(1);
        most = most.max(db.metrics().files_pending_bytes);
    }
    assert!(most >= 8_000_000, "{most} bytes were seen waiting");
    assert_eq!((db.metrics().files_pending, db.metrics().files_pending_bytes), (0, 0));
    assert!(db.metrics().to_prometheus().contains("windfall_system_tree_height"));
    Ok(())
}

/// A second call that closes a database returns only when the first has closed it: the folder can be opened again then.
#[test]
fn a_second_close_waits_for_the_end_of_the_first() -> Result<()> {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    let folder = tempfile::tempdir().unwrap();
    for round in 0..5u32 {
        let db = Database::open(folder.path(), options().flush_log_at_trx_commit(windfall::FlushLog::Lazy))?;
        let name = format!("t{round}");
        let table = db.create_table(&name, TableOptions::default())?;
        for n in 0..5_000u32 {
            table.insert(&key(n), &[7; 500])?;
        }
        let first = AtomicBool::new(true);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let (db, first, name, folder) = (db.clone(), &first, &name, folder.path());
                scope.spawn(move || {
                    db.close().unwrap();
                    if first.swap(false, SeqCst) {
                        let db = Database::open(folder, options()).unwrap();
                        assert_eq!(db.table(name).unwrap().rows().unwrap().count(), 5_000);
                    }
                });
            }
        });
        assert!(matches!(table.get(b"k"), Err(Error::Closed)));
        db.close()?;
    }
    Ok(())
}
