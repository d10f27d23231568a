//! Opening after the process has died, on a real disk: what must be redone, what must not come back, and what
//! continues. A copy of the folder that is taken while the database is open is what a killed process leaves.

mod time_limit;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use time_limit::wait_until;
use windfall::{Database, Error, FlushLog, IndexOptions, Options, Phase, Result, TableOptions};

fn options() -> Options {
    Options::default()
        .page_size(4096)
        .buffer_pool_size(16 << 20)
        .log_size(128 << 20)
        .flush_log_at_trx_commit(FlushLog::Write)
}

/// Returns the folder as a process leaves it that dies now. No file may change during the copy.
fn killed(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    copy_folder(folder, copy.path());
    copy
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy_folder(&path, &target);
        } else {
            // The deleter may remove a file first; such a file is not needed.
            match fs::copy(&path, &target) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                copied => assert!(copied.is_ok(), "{copied:?}"),
            }
        }
    }
}

fn data_files(folder: &Path) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(folder.join("data")).expect("a folder");
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

fn names(folder: &Path) -> BTreeSet<String> {
    let names = data_files(folder).into_iter();
    names.map(|path| path.file_name().expect("a name").to_string_lossy().into_owned()).collect()
}

fn is_sound(db: &Database) -> Result<()> {
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}

#[test]
fn recovery_redoes_much_and_reports_progress() -> Result<()> {
    // Their log is longer than the piece of 32 MiB after which each phase reports.
    const ROWS: u32 = 50_000;
    let folder = tempfile::tempdir().expect("a folder");
    let db = Database::open(folder.path(), options().buffer_pool_size(64 << 20))?;
    let table = db.create_table("t", TableOptions::default().index("i", IndexOptions::on_value(0..4)))?;
    for n in 0..ROWS {
        let value = [&(n % 977).to_be_bytes()[..], &[n as u8; 300]].concat();
        table.insert(&n.wrapping_mul(2_654_435_761).to_be_bytes(), &value)?;
    }
    db.create_table("dropped", TableOptions::default())?.insert(b"key", &vec![1; 500_000])?;
    db.drop_table("dropped")?;
    assert!(db.metrics().log_age > 32 << 20, "{:?}", db.metrics());
    let copy = killed(folder.path());
    drop((db, table));

    // The pool is smaller than the pages that are redone.
    let reports = std::cell::RefCell::new(Vec::new());
    let start = Instant::now();
    let db = Database::open_with(copy.path(), &options(), &|progress| reports.borrow_mut().push(progress))?;
    println!("opened in {:?}", start.elapsed());
    let reports = reports.into_inner();
    let phases: Vec<Phase> = reports.chunk_by(|a, b| a.phase == b.phase).map(|same| same[0].phase).collect();
    assert!(phases.starts_with(&[Phase::Scan, Phase::SyncFiles, Phase::Replay]), "{phases:?}");
    let end =
        reports.iter().rfind(|reports| reports.phase == Phase::Replay).expect("recovery tells how it goes");
    assert_eq!(end.to_string(), "applying the log: 100 %");
    assert!(end.done == end.total && end.total > 32 << 20, "{reports:?}");
    assert_eq!(db.tables()?.len(), 1);
    let table = db.table("t")?;
    for n in (0..ROWS).step_by(7) {
        let read = table.get(&n.wrapping_mul(2_654_435_761).to_be_bytes())?;
        assert_eq!(read.map(|value| value[4]), Some(n as u8));
    }
    assert_eq!(table.rows()?.count(), ROWS as usize);
    is_sound(&db)
}

#[test]
fn temporary_tables_leave_nothing() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let db = Database::open(folder.path(), options().buffer_pool_size(1 << 20))?;
    db.create_table("t", TableOptions::default())?.insert(b"key", b"value")?;
    db.checkpoint()?;
    let before = names(folder.path());
    let session = db.session();
    let temporary = session.create_temporary_table("temporary", TableOptions::default())?;
    let scratch = session.scratch()?;
    for n in 0..3000u32 {
        temporary.put(&n.to_be_bytes(), &[1; 900])?;
        scratch.put(&n.to_be_bytes(), &[2; 900])?;
    }
    // They are larger than the pool, so they have files, and these are valid.
    assert!(names(folder.path()).len() > before.len());
    assert_eq!(temporary.rows()?.count(), 3000);
    is_sound(&db)?;
    let copy = killed(folder.path());

    // Remaining handles keep nothing alive, and a scratch tree ends with its session at the latest.
    drop(session);
    assert!(matches!(scratch.get(b"key"), Err(Error::TableDropped(_))));
    assert!(matches!(temporary.put(b"key", b""), Err(Error::TableDropped(_))));
    wait_until("the end of temporary files", || {
        let metrics = db.metrics();
        metrics.files_pending + metrics.drops_pending == 0
    });
    assert!(names(folder.path()).is_subset(&before), "{:?}", names(folder.path()));
    is_sound(&db)?;

    let db = Database::open(copy.path(), options())?;
    assert_eq!(db.tables()?.iter().map(|table| &table.name[..]).collect::<Vec<_>>(), ["t"]);
    assert_eq!(db.table("t")?.get(b"key")?.as_deref(), Some(&b"value"[..]));
    wait_until("the end of what was left", || db.metrics().files_pending == 0);
    assert!(names(copy.path()).is_subset(&before), "{:?} of {before:?}", names(copy.path()));
    is_sound(&db)
}

#[test]
fn an_incarnation_is_never_used_twice() -> Result<()> {
    let mut folder = tempfile::tempdir().expect("a folder");
    // The tablespaces of the permanent tables.
    let mut seen = BTreeSet::new();
    for round in 0..8u8 {
        let db = Database::open(folder.path(), options())?;
        let name = format!("t{round}");
        for n in 0..3 {
            // With and without a checkpoint, dropped and kept, truncated and not.
            let name = if n == 0 { name.clone() } else { format!("x{n}") };
            let table = db.create_table(&name, TableOptions::default())?;
            table.insert(b"key", &[round])?;
            if round % 2 == 0 {
                db.checkpoint()?;
            }
            if n == 1 {
                db.truncate_table(&name)?;
                table.insert(b"key", &[round])?;
            }
            if n > 0 {
                db.drop_table(&name)?;
            }
        }
        if round % 3 != 2 {
            db.checkpoint()?;
        }
        let report = db.check()?;
        assert_eq!(report.findings, Vec::<String>::new());
        for tree in report.trees.iter().filter(|tree| tree.table == name) {
            assert!(seen.insert(tree.space), "tablespace {} is used a second time: {seen:?}", tree.space);
        }
        let used = report.trees.iter().map(|tree| tree.space).max().expect("a tree");
        assert!(seen.iter().all(|space| *space <= used));
        let copy = killed(folder.path());
        drop(db);
        folder = copy;
    }
    let db = Database::open(folder.path(), options())?;
    for round in 0..8u8 {
        assert_eq!(db.table(&format!("t{round}"))?.get(b"key")?, Some(vec![round]));
    }
    assert_eq!(db.tables()?.len(), 8);
    is_sound(&db)
}

#[test]
fn the_deletion_of_a_large_file_resumes_after_a_restart() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let db = Database::open(folder.path(), options().flush_log_at_trx_commit(FlushLog::Lazy))?;
    let table = db.create_table("large", TableOptions::default())?;
    let before = names(folder.path());
    for n in 0..40u32 {
        table.insert(&n.to_be_bytes(), &vec![n as u8; 1 << 20])?;
    }
    db.create_table("kept", TableOptions::default())?.insert(b"key", b"value")?;
    db.checkpoint()?;
    let file = names(folder.path()).into_iter().filter(|name| !before.contains(name)).max_by_key(|name| {
        fs::metadata(folder.path().join("data").join(name)).map_or(0, |metadata| metadata.len())
    });
    let file = PathBuf::from("data").join(file.expect("a file"));
    let length = fs::metadata(folder.path().join(&file)).expect("the file").len();
    assert!(length > 40 << 20);
    db.set_flush_log_at_trx_commit(FlushLog::Sync);
    // The state after a process that dies between the commit of the drop and the end of the deletion: the log from
    // afterwards, and the file or its first half from before.
    let copy = tempfile::tempdir().expect("a folder");
    fs::create_dir_all(copy.path().join("data")).expect("a folder");
    fs::copy(folder.path().join(&file), copy.path().join(&file)).expect("a copy");
    db.drop_table("large")?;
    wait_until("the deletion", || db.metrics().files_deleted >= 1);
    assert!(!folder.path().join(&file).exists());
    assert!(db.metrics().files_deleted_bytes >= length);
    for name in ["log", "windfall.control", "windfall.doublewrite"] {
        let (from, to) = (folder.path().join(name), copy.path().join(name));
        if from.is_dir() {
            copy_folder(&from, &to);
        } else {
            fs::copy(&from, &to).expect("a copy");
        }
    }
    for path in data_files(folder.path()) {
        fs::copy(&path, copy.path().join("data").join(path.file_name().expect("a name"))).expect("a copy");
    }
    drop((db, table));

    for part in [length, length / 2 / 4096 * 4096, 4096 * 3] {
        let again = killed(copy.path());
        let left = fs::File::options().write(true).open(again.path().join(&file)).expect("the file");
        left.set_len(part).expect("a shorter file");
        let db = Database::open(again.path(), options())?;
        is_sound(&db)?;
        assert_eq!(db.table("kept")?.get(b"key")?.as_deref(), Some(&b"value"[..]));
        assert!(db.table("large").is_err());
        // An undo slice that purge had not finished may also be deleted.
        wait_until("the deletions", || {
            let metrics = db.metrics();
            metrics.files_pending + metrics.drops_pending == 0
        });
        assert!(!again.path().join(&file).exists(), "{part} bytes of the file stay");
        is_sound(&db)?;
        // And the pending deletion is no longer recorded.
        db.close()?;
        let db = Database::open(again.path(), options())?;
        assert_eq!(db.metrics().files_pending, 0);
        is_sound(&db)?;
    }
    Ok(())
}
