//! Mistakes of users and faults of disks: each is refused or reported with the object and the remedy, nothing panics,
//! and no acknowledged write is lost.

use std::{
    fs,
    io::{Read, Seek, SeekFrom, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use windfall::{
    Database, Error, IndexOptions, Options, Result, TableOptions,
    disk::{Disk, FileName},
    error::{CorruptError, DiskError, Owner, SchemaError, UsageError},
    row,
};
use windfall_sim::{Fault, SimulatedDisk, SimulatedEnv, Survive};

const PAGE: u64 = 4096;

fn options() -> Options {
    Options::default()
        .page_size(PAGE as usize)
        .buffer_pool_size(300 * PAGE)
        .log_size(1 << 20)
        .log_buffer_size(256 << 10)
}

/// Returns the error of a call that must fail, and asserts that its text contains each of these words.
#[track_caller]
fn refused_with<T>(result: Result<T>, words: &[&str]) -> Error {
    let Err(error) = result else { panic!("it was accepted: {words:?}") };
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text:?} does not say {words:?}");
    error
}

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

/// Creates a closed database with two tables of many pages.
fn made() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("db");
    let db = Database::open(&path, options()).expect("a database");
    for name in ["good", "bad"] {
        let table = db.create_table(name, TableOptions::default()).expect("a table");
        for n in 0..600 {
            table.insert(&key(n), &[n as u8; 500]).expect("a row");
        }
    }
    db.close().expect("a clean end");
    (folder, path)
}

/// Returns the data file of a table: the report of a check names its tablespace.
fn file_of(path: &Path, table: &str) -> PathBuf {
    let db = Database::open(path, options()).expect("the database");
    let report = db.check().expect("a check");
    assert_eq!(report.findings, Vec::<String>::new());
    let space = report.trees.iter().find(|tree| tree.table == table).expect("the table").space;
    db.close().expect("a clean end");
    path.join(format!("data/{:016x}.tree", space.0))
}

fn flip(file: &Path, at: u64) {
    let mut file = fs::File::options().read(true).write(true).open(file).expect("the file");
    let mut byte = [0];
    file.seek(SeekFrom::Start(at)).expect("a place");
    file.read_exact(&mut byte).expect("a byte");
    file.seek(SeekFrom::Start(at)).expect("a place");
    file.write_all(&[byte[0] ^ 0x10]).expect("another byte");
}

#[test]
fn a_database_that_is_not_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("nothing/here");
    let shown = missing.display().to_string();
    let error = refused_with(
        Database::open(&missing, options().create_if_missing(false)),
        &["no database", &shown, "create_if_missing"],
    );
    assert!(
        matches!(&error, Error::Usage(UsageError::NoDatabase { folder }) if *folder == missing),
        "{error:?}"
    );
    let disk = Arc::new(SimulatedDisk::new(1));
    let simulated = Database::open_on(
        disk.clone(),
        Arc::new(SimulatedEnv::new(1)),
        &options().create_if_missing(false),
        &|_| {},
    );
    assert!(matches!(simulated, Err(Error::Usage(UsageError::NoDatabase { .. }))));
    assert_eq!(disk.len(FileName::Control).expect("an answer"), None);
    assert!(!missing.exists() && !folder.path().join("nothing").exists());
    // A folder with other content stays as it is.
    fs::write(folder.path().join("letter.txt"), "Dear").expect("a file");
    refused_with(Database::open(folder.path(), options().create_if_missing(false)), &["no database"]);
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    // A file where the folder should be.
    refused_with(Database::open(folder.path().join("letter.txt"), options()), &["letter.txt"]);
    // A database without its control file is not created again.
    let (_folder, path) = made();
    fs::remove_file(path.join("windfall.control")).expect("a file less");
    for create in [true, false] {
        let opened = Database::open(&path, options().create_if_missing(create));
        refused_with(opened, &["windfall.control", "missing", "data", "restore"]);
    }
    // Neither is a new database with all its data still only in the log.
    let young = folder.path().join("young");
    let db = Database::open(&young, options()).expect("a database");
    db.create_table("t", TableOptions::default()).expect("a table").insert(b"k", b"v").expect("a row");
    core::mem::forget(db);
    let copy = folder.path().join("copy");
    fs::create_dir_all(copy.join("log")).expect("a folder");
    for segment in fs::read_dir(young.join("log")).expect("the log") {
        let segment = segment.expect("a segment");
        fs::copy(segment.path(), copy.join("log").join(segment.file_name())).expect("a copy");
    }
    for create in [true, false] {
        let opened = Database::open(&copy, options().create_if_missing(create));
        refused_with(opened, &["windfall.control", "missing", "log", "restore"]);
    }
    assert!(fs::read_dir(copy.join("log")).expect("the log").count() > 0, "it is all still there");
}

#[test]
fn a_control_file_that_is_none() {
    let (_folder, path) = made();
    let control = path.join("windfall.control");
    let good = fs::read(&control).expect("the file");
    let opened = |bytes: &[u8], words: &[&str]| {
        fs::write(&control, bytes).expect("another file");
        refused_with(Database::open(&path, options()), &[&["windfall.control"], words].concat());
    };
    opened(&[], &["not the control file", "check the path"]);
    opened(&good[..100], &["damaged", "restore"]);
    opened(b"#!/bin/sh\necho this is something else entirely\n", &["not the control file"]);
    let mut flipped = good.clone();
    flipped[70] ^= 1;
    flipped[4096 + 70] ^= 1;
    opened(&flipped, &["both copies", "damaged", "restore"]);
    // Another version, with a valid checksum.
    for version in [1u32, 2, 99] {
        let mut other = good.clone();
        for slot in other.chunks_exact_mut(4096) {
            slot[8..12].copy_from_slice(&version.to_le_bytes());
            let crc = crc32c::crc32c(&slot[..4092]);
            slot[4092..].copy_from_slice(&crc.to_le_bytes());
        }
        opened(&other, &[&format!("version {version};"), "reads version 3", "open it with"]);
    }
    // The older copy may be damaged: a torn write leaves that. Without the newer copy the database does not open,
    // because the log may be truncated already.
    let mut opened = 0;
    for at in [70, 4096 + 70] {
        let mut flipped = good.clone();
        flipped[at] ^= 1;
        fs::write(&control, &flipped).expect("another file");
        match Database::open(&path, options()) {
            Ok(db) => {
                opened += 1;
                assert_eq!(db.table("good").expect("a table").rows().expect("rows").count(), 600);
                assert_eq!(db.check().expect("a check").findings, Vec::<String>::new());
            }
            Err(error) => drop(refused_with::<()>(Err(error), &["windfall.control", "LSN", "restore"])),
        }
    }
    assert!(opened > 0);
}

#[test]
fn a_log_with_a_damaged_middle() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("db");
    let db = Database::open(&path, options().log_size(16 << 20)).expect("a database");
    let table = db.create_table("t", TableOptions::default()).expect("a table");
    for n in 0..200 {
        table.insert(&key(n), &[n as u8; 200]).expect("a row");
    }
    // The files as a killed process leaves them.
    let copy = folder.path().join("copy");
    for name in ["", "log", "data"] {
        fs::create_dir_all(copy.join(name)).expect("a folder");
        for entry in fs::read_dir(path.join(name)).expect("a folder").flatten().filter(|e| e.path().is_file())
        {
            fs::copy(entry.path(), copy.join(name).join(entry.file_name())).expect("a copy");
        }
    }
    drop((db, table));
    let log = copy.join("log/0000000000000000.log");
    let good = fs::read(&log).expect("the log");
    let used = good.iter().rposition(|byte| *byte != 0).expect("something") as u64;
    for at in [used / 3, used / 2] {
        flip(&log, at);
        let error = refused_with(
            Database::open(&copy, options().log_size(16 << 20)),
            &["log", "LSN", "damaged", "restore"],
        );
        assert!(matches!(error, Error::Corrupt(CorruptError::Log { .. })), "{error:?}");
        fs::write(&log, &good).expect("the log");
    }
    // The refused opens have made nothing worse.
    let db = Database::open(&copy, options().log_size(16 << 20)).expect("the database");
    assert_eq!(db.table("t").expect("a table").rows().expect("rows").count(), 200);
    drop(db);
    // A segment is missing.
    let (_folder, path) = made();
    for entry in fs::read_dir(path.join("log")).expect("the log").flatten() {
        fs::remove_file(entry.path()).expect("a file less");
    }
    refused_with(Database::open(&path, options()), &["log/"]);
}

#[test]
fn a_damaged_page_is_one_tables_trouble() {
    let (_folder, path) = made();
    let file = file_of(&path, "bad");
    // The doublewrite file may hold whole copies of the pages that were written last, and a torn page would be repaired
    // from them.
    let doublewrite = path.join("windfall.doublewrite");
    let length = fs::metadata(&doublewrite).expect("the file").len();
    fs::write(&doublewrite, vec![0; length as usize]).expect("no copies");
    for page in 1..40 {
        flip(&file, page * PAGE + 1000);
    }
    let name = file.file_name().expect("a name").to_string_lossy().into_owned();
    let db = Database::open(&path, options()).expect("the database");
    let (good, bad) = (db.table("good").expect("a table"), db.table("bad").expect("a table"));
    let words = [&name[..], "page 1 ", "damaged", "checksum"];
    let error = refused_with(bad.get(&key(300)), &words);
    assert!(matches!(error, Error::Corrupt(CorruptError::Page { .. })), "{error:?}");
    refused_with(bad.put(&key(300), b"new"), &words);
    refused_with(bad.delete(&key(300)), &words);
    refused_with(bad.rows().expect("a range").collect::<Result<Vec<_>>>(), &words);
    refused_with(bad.rows().expect("a range").rev().collect::<Result<Vec<_>>>(), &words);
    for n in 0..600 {
        assert_eq!(good.get(&key(n)).expect("a row"), Some(vec![n as u8; 500]));
        good.put(&key(n), b"as good as ever").expect("a row");
    }
    db.checkpoint().expect("a checkpoint");
    let findings = db.check().expect("a check continues").findings;
    assert!(findings.iter().any(|finding| finding.contains(&name)), "{findings:?}");
    assert!(
        findings.iter().all(|finding| finding.contains(&name) || finding.contains("bad")),
        "{findings:?}"
    );
    // The remedy: truncate the table, which replaces its tree.
    db.truncate_table("bad").expect("a truncation");
    bad.insert(&key(1), b"from the backup").expect("a row");
    db.close().expect("a clean end");
    let db = Database::open(&path, options()).expect("the database");
    assert_eq!(db.check().expect("a check").findings, Vec::<String>::new());
}

/// The checksum is right, but the fences of the leaf share a byte more than is cut off its keys.
#[test]
fn a_leaf_with_the_wrong_prefix_is_neither_read_nor_changed() {
    let (_folder, path) = made();
    let file = file_of(&path, "bad");
    let mut bytes = fs::read(&file).expect("the file");
    let u16_at = |page: &[u8], at: usize| usize::from(u16::from_le_bytes([page[at], page[at + 1]]));
    let fits = |page: &&mut [u8]| page[4] == 2 && u16_at(page, 34) < u16_at(page, 36) && u16_at(page, 38) > 0;
    let page = bytes.chunks_exact_mut(PAGE as usize).find(fits).expect("a leaf");
    // The upper fence is stored after the lower one, without the prefix.
    page[40 + u16_at(page, 36)] = page[40 + u16_at(page, 34)];
    let sum = crc32c::crc32c(&page[4..]).to_le_bytes();
    page[..4].copy_from_slice(&sum);
    let inside = [&page[40..40 + u16_at(page, 36)], b"+"].concat();
    let name = format!("page {} ", u32::from_le_bytes([page[24], page[25], page[26], page[27]]));
    fs::write(&file, bytes).expect("other bytes");
    let db = Database::open(&path, options()).expect("the database");
    let bad = db.table("bad").expect("a table");
    let words = [&name[..], "damaged", "its prefix is not that of its fences"];
    refused_with(bad.insert(&inside, b"new"), &words);
    refused_with(bad.rows().expect("a range").collect::<Result<Vec<_>>>(), &words);
}

/// Creates two tables on a simulated disk, `good` and `bad`, and closes the database: 600 rows each and some long
/// values.
fn two_tables(seed: u64) -> SimulatedDisk {
    let disk = SimulatedDisk::new(seed);
    let (db, _env) = simulated(&disk, seed);
    for name in ["good", "bad"] {
        let options = TableOptions::default().index("i", IndexOptions::on_value(0..300));
        let table = db.create_table(name, options).expect("a table");
        for n in 0..600u32 {
            table.insert(&key(n), &[n as u8; 500]).expect("a row");
        }
        for n in 600..604 {
            table.insert(&key(n), &vec![n as u8; 50_000]).expect("a long row");
        }
    }
    db.close().expect("a clean end");
    disk
}

fn simulated(disk: &SimulatedDisk, seed: u64) -> (Database, SimulatedEnv) {
    let env = SimulatedEnv::new(seed);
    let options = options().buffer_pool_size(600 * PAGE).log_size(4 << 20);
    let db = Database::open_on(Arc::new(disk.clone()), Arc::new(env.clone()), &options, &|_| {});
    (db.expect("the database"), env)
}

/// Returns the data file of a table's rows on a simulated disk.
fn data_of(disk: &SimulatedDisk, table: &str) -> FileName {
    let (db, _env) = simulated(disk, 0);
    let report = db.check().expect("a check");
    assert_eq!(report.findings, Vec::<String>::new());
    let tree = report.trees.iter().find(|tree| tree.table == table && tree.index.is_none());
    let space = tree.expect("the table").space;
    db.close().expect("a clean end");
    // A torn page would be repaired from this file.
    let length = disk.len(FileName::Doublewrite).expect("a disk").expect("the file");
    disk.write(FileName::Doublewrite, 0, &vec![0; length as usize]).expect("no copies");
    FileName::Data(space)
}

/// The allocation map of one table is damaged or unreadable, and everything that frees pages of the table runs: rows
/// are deleted until leaves merge, long values are deleted, and inserts of long values fail. No other table is
/// affected.
#[test]
fn a_map_page_that_cannot_be_read_is_one_tables_trouble() {
    for seed in 0..8 {
        let disk = two_tables(seed);
        let file = data_of(&disk, "bad");
        let lasting = seed % 2 == 0;
        let harm = |disk: &SimulatedDisk| {
            if lasting {
                assert!(disk.corrupt(file, 1000, 0x10));
            } else {
                disk.make_unreadable(file, 0);
            }
        };
        harm(&disk);
        let mut disk = disk;
        for reopened in 0..3 {
            let what = format!("seed {seed}, opened again {reopened} times");
            eprintln!("{what}");
            let (db, env) = simulated(&disk, seed);
            let (good, bad) = (db.table("good").expect(&what), db.table("bad").expect(&what));
            // A call that needs a new page gets an error with the reason; other calls succeed.
            let long = bad.put(&key(700), &vec![7; 30_000]);
            let word = if lasting { "checksum" } else { "read" };
            refused_with(long, &[&file.to_string(), word]);
            for n in 200 * reopened..200 * (reopened + 1) {
                assert!(bad.delete(&key(n)).expect(&what), "{what}: row {n}");
                good.put(&key(n), &[n as u8; 700]).expect(&what);
                if n % 16 == 0 {
                    env.run_workers(20);
                }
            }
            bad.delete(&key(600 + reopened)).expect(&what);
            bad.put(&key(603), &[reopened as u8; 100]).expect(&what);
            good.delete(&key(600 + reopened)).expect(&what);
            env.run_workers(300);
            for n in 0..200 * (reopened + 1) {
                assert_eq!(good.get(&key(n)).expect(&what), Some(vec![n as u8; 700]), "{what}");
                assert_eq!(bad.get(&key(n)).expect(&what), None, "{what}");
            }
            // The deleted rows of the good table are purged all the same.
            let report = db.check().expect(&what);
            let left = report.trees.iter().filter(|tree| tree.table == "good").map(|tree| tree.deleted);
            assert_eq!(left.collect::<Vec<_>>(), [0, 0], "{what}");
            let findings = report.findings;
            assert!(
                findings.iter().all(|finding| finding.contains("bad") || finding.contains(&file.to_string())),
                "{what}: {findings:?}"
            );
            assert!(!findings.is_empty(), "{what}");
            if reopened == 1 {
                drop((good, bad, db, env));
                disk = disk.restart(Survive::Nothing);
            } else {
                db.close().expect(&what);
            }
        }
        let (db, env) = simulated(&disk, seed);
        if lasting {
            // The remedy: truncate the table, which replaces its tree.
            db.truncate_table("bad").expect("a truncation");
        } else {
            disk.make_readable(file, 0);
        }
        env.run_workers(500);
        assert_eq!(db.check().expect("a check").findings, Vec::<String>::new(), "seed {seed}");
        db.table("bad").expect("a table").put(&key(700), &vec![7; 30_000]).expect("a long row");
        assert_eq!(db.check().expect("a check").findings, Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn a_missing_file_is_reported_with_its_name() {
    let (_folder, path) = made();
    let file = file_of(&path, "bad");
    fs::remove_file(&file).expect("a file less");
    let name = file.file_name().expect("a name").to_string_lossy().into_owned();
    let error = refused_with(Database::open(&path, options()), &[&name, "missing", "restore"]);
    assert!(matches!(error, Error::Disk(DiskError::Missing { .. })), "{error:?}");
}

#[test]
fn a_folder_without_rights() {
    let (_folder, path) = made();
    let set = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("other rights");
    set(0o555);
    if fs::write(path.join("probe"), "").is_ok() {
        println!("SKIPPED: rights do not bind this user");
        return set(0o755);
    }
    let lock = path.join("windfall.lock");
    fs::set_permissions(&lock, fs::Permissions::from_mode(0o000)).expect("other rights");
    refused_with(Database::open(&path, options()), &["windfall.lock", "denied"]);
    set(0o755);
    fs::set_permissions(&lock, fs::Permissions::from_mode(0o644)).expect("other rights");
    Database::open(&path, options()).expect("the database");
}

/// A writer that counts the bytes it receives and asserts that each is 9.
struct Count<'a>(&'a mut u64);
impl Write for Count<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        assert!(bytes.iter().all(|byte| *byte == 9));
        *self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// All parts of an index key but the last must have a fixed length, in every call that can create the index.
#[test]
fn an_index_in_which_rows_that_differ_have_one_key_is_refused() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let db = Database::open(folder.path(), options())?;
    let table = db.create_table("t", TableOptions::default())?;
    // Without a separator between the fields, both rows would have the key "abc".
    table.insert(b"1", &row::encode(&["a", "bc"]))?;
    table.insert(b"2", &row::encode(&["ab", "c"]))?;
    let two_fields = || IndexOptions::on_field(0).and_field(1).unique();
    let said = ["index by_both", "part 1 (field 0)", "part 2 (field 1)", "put part 1 last"];
    let error = refused_with(db.create_index("t", "by_both", two_fields()), &said);
    assert!(matches!(error, Error::Schema(SchemaError::AmbiguousKey { part: 1, next: 2, .. })));
    let definition = || {
        let fine = IndexOptions::on_value(0..2).and_value(6..8).and_value(8..900);
        TableOptions::default().index("fine", fine).index("by_both", two_fields())
    };
    refused_with(db.create_table("new", definition()), &said);
    refused_with(db.create_table_from("new", definition(), Vec::new()), &said);
    refused_with(db.create_table_from_unsorted("new", definition(), Vec::new()), &said);
    refused_with(db.session().create_temporary_table("new", definition()), &said);
    for (options, part) in [
        (IndexOptions::on_value(4..8).and_value(0..4), "part 1 (bytes 4..8 of the value)"),
        (IndexOptions::on_value(0..8).and_value(4..12), "part 1 (bytes 0..8 of the value)"),
        (IndexOptions::on_value(0..4).and_field(2).and_value(4..5), "part 2 (field 2)"),
    ] {
        refused_with(db.create_index("t", "i", options), &["index i", part]);
    }
    assert_eq!(db.tables()?.len(), 1);
    db.create_index("t", "i", IndexOptions::on_value(0..2).and_value(2..4).and_field(1).unique())?;
    assert_eq!(table.index("i")?.range::<&[u8]>(..)?.count(), 2);
    Ok(())
}

#[test]
fn names_keys_and_values_that_cannot_be() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let db = Database::open(folder.path(), options())?;
    let table = db.create_table("t", TableOptions::default())?;
    for name in ["", "with\0zero", &"x".repeat(768)] {
        refused_with(db.create_table(name, TableOptions::default()), &["cannot be used"]);
        refused_with(db.rename_table("t", name), &["cannot be used"]);
        refused_with(db.create_index("t", name, IndexOptions::on_value(0..1)), &["cannot be used"]);
        let options = TableOptions::default().index(name, IndexOptions::on_value(0..1));
        refused_with(db.create_table("other", options), &["cannot be used"]);
    }
    let longest = "ü".repeat(383);
    db.create_table(&longest, TableOptions::default())?;
    db.create_table("../../etc/passwd", TableOptions::default())?.insert(b"a", b"b")?;
    db.checkpoint()?;
    refused_with(db.create_table("t", TableOptions::default()), &["table t exists"]);
    refused_with(db.rename_table("t", &longest), &["exists"]);
    for name in ["none", ""] {
        refused_with(db.table(name), &["no table"]);
        refused_with(db.drop_table(name), &["no table"]);
        refused_with(db.truncate_table(name), &["no table"]);
        refused_with(db.rename_table(name, "new"), &["no table"]);
        refused_with(db.swap_tables("t", name), &["no table"]);
    }
    refused_with(db.drop_index("t", "none"), &["t has no index none"]);
    refused_with(table.index("none"), &["t has no index none"]);
    // Dropping an empty group does nothing.
    assert_eq!(db.drop_tables(&[])?.trees, 0);

    let limit = table.key_limit();
    table.put(&vec![7; limit], b"longest")?;
    for result in [
        table.put(&vec![7; limit + 1], b""),
        table.insert(&vec![7; 1 << 20], b""),
        table.get(&vec![7; limit + 1]).map(drop),
        table.delete(&vec![7; limit + 1]).map(drop),
    ] {
        // Reading or deleting a key that is too long to exist may succeed or fail; an error must be `KeyTooLong`.
        if let Err(error) = result {
            assert!(matches!(error, Error::Usage(UsageError::KeyTooLong { .. })), "{error:?}");
            assert!(error.to_string().contains(&limit.to_string()));
        }
    }
    refused_with(table.put(&vec![7; limit + 1], b""), &["key has", "table t takes", &limit.to_string()]);
    let endless = std::io::repeat(1);
    refused_with(
        table.insert_stream(b"k", (4 << 30) + 1, &mut endless.take(u64::MAX)),
        &["value has", "table t takes", "4294967296"],
    );
    refused_with(table.insert_stream(b"k", 1000, &mut &[1u8; 10][..]), &["table t: ", "source"]);
    refused_with(table.insert_stream(b"k", 100_000, &mut &vec![1u8; 70_000][..]), &["source"]);
    assert_eq!(table.get(b"k")?, None);
    // A value that is longer than the whole log, and longer than the pool.
    table.insert_stream(b"long", 8 << 20, &mut std::io::repeat(9).take(8 << 20))?;
    let mut length = 0;
    assert_eq!(table.read_stream(b"long", &mut Count(&mut length))?, Some(8 << 20));
    assert_eq!(length, 8 << 20);
    refused_with(table.update(b"none", b""), &["no row"]);
    refused_with(table.insert(b"long", b""), &["duplicate key", "table t"]);
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}

#[test]
fn options_that_cannot_be() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("db");
    for (options, words) in [
        (options().page_size(5000), &["page_size", "5000", "16384"][..]),
        (options().buffer_pool_size(10 * PAGE), &["buffer_pool_size", "10 pages", "64"]),
        (options().buffer_pool_size(0), &["buffer_pool_size", "64"]),
        (options().buffer_pool_size(u64::MAX), &["option buffer_pool_size", "2^32"]),
        (options().buffer_pool_max_size(u64::MAX), &["option buffer_pool_max_size", "2^32"]),
        (options().buffer_pool_max_size(PAGE), &["buffer_pool_max_size", "buffer_pool_size"]),
        (options().log_size(1000), &["log_size", "1000", "1 MiB"]),
        (options().log_buffer_size(100_000), &["log_buffer_size", "power of two"]),
        (options().log_buffer_size(1 << 10), &["log_buffer_size", "64 KiB"]),
        (options().open_files(3), &["open_files", "3", "16"]),
        (options().io_threads(0), &["io_threads", "1 to 256"]),
    ] {
        refused_with(Database::open(&path, options), words);
        assert!(!path.join("windfall.control").exists(), "{words:?}: a database was made nevertheless");
    }
    let db = Database::open(&path, options()).expect("a database");
    refused_with(db.set_buffer_pool_size(3 * PAGE), &["buffer_pool_size", "64"]);
    refused_with(db.set_buffer_pool_size(u64::MAX), &["buffer_pool_size"]);
    // Two opens at a time, in one process and by another path.
    let error = refused_with(Database::open(&path, options()), &["in use", "close it"]);
    assert!(matches!(error, Error::Disk(DiskError::Locked { .. })));
    refused_with(Database::open(path.join("../db"), options()), &["in use"]);
    db.close().expect("a clean end");
    refused_with(Database::open(&path, options().page_size(8192)), &["page_size", "4096"]);
    Database::open(&path, options()).expect("the database");
}

#[test]
fn nothing_works_after_the_end() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let db = Database::open(folder.path(), options())?;
    let table = db.create_table("t", TableOptions::default().index("i", IndexOptions::on_value(0..1)))?;
    for n in 0..100 {
        table.insert(&key(n), &[n as u8])?;
    }
    let (session, other) = (db.session(), db.clone());
    let temporary = session.create_temporary_table("x", TableOptions::default())?;
    let (mut rows, index) = (table.rows()?, table.index("i")?);
    assert!(rows.next().is_some());
    let mut entries = index.range::<&[u8]>(..)?;
    db.close()?;
    let closed = |result: Result<()>| assert!(matches!(result, Err(Error::Closed)), "{result:?}");
    closed(table.get(b"k").map(drop));
    closed(table.contains(b"k").map(drop));
    closed(table.put(b"k", b""));
    closed(table.delete(b"k").map(drop));
    closed(table.rows().map(drop));
    closed(table.index("i").map(drop));
    closed(index.range::<&[u8]>(..).map(drop));
    closed(rows.next().expect("an error").map(drop));
    closed(entries.next().expect("an error").map(drop));
    closed(temporary.put(b"k", b""));
    closed(session.scratch().map(drop));
    closed(session.create_temporary_table("y", TableOptions::default()).map(drop));
    closed(other.table("t").map(drop));
    closed(other.create_table("u", TableOptions::default()).map(drop));
    closed(other.drop_table("t").map(drop));
    closed(other.truncate_table("t").map(drop));
    closed(other.swap_tables("t", "u"));
    closed(other.check().map(drop));
    closed(other.checkpoint());
    closed(other.tables().map(drop));
    other.metrics();
    // The folder can be opened again although handles of the closed database exist, and they do not harm the new
    // database.
    let again = Database::open(folder.path(), options())?;
    again.table("t")?.put(b"k", b"v")?;
    drop((rows, entries, index, temporary, session, table));
    other.close()?;
    assert_eq!(again.table("t")?.rows()?.count(), 101);
    assert_eq!(again.check()?.findings, Vec::<String>::new());
    Ok(())
}

#[test]
fn a_full_disk_loses_nothing_and_the_database_keeps_working() {
    for seed in 0..6u64 {
        let disk = SimulatedDisk::new(seed);
        let open = |disk: &SimulatedDisk| {
            let env = SimulatedEnv::new(seed);
            let db = Database::open_on(Arc::new(disk.clone()), Arc::new(env.clone()), &options(), &|_| {});
            db.map(|db| (db, env))
        };
        let (db, env) = open(&disk).expect("a database");
        let ballast = db.create_table("ballast", TableOptions::default()).expect("a table");
        for n in 0..600 {
            ballast.put(&key(n), &[n as u8; 900]).expect("a row");
        }
        db.checkpoint().expect("a checkpoint");
        let table = db.create_table("t", TableOptions::default()).expect("a table");
        disk.set_capacity(Some(disk.used() + (seed + 1) * 100_000));
        let mut written = 0;
        let full = loop {
            match table.put(&key(written), &[written as u8; 700]) {
                Ok(()) => written += 1,
                Err(error) => break error,
            }
            assert!(written < 100_000, "the disk never fills");
            if written % 64 == 0 {
                env.run_workers(2);
            }
        };
        let what = format!("seed {seed}, full after {written} rows ({full})");
        assert!(matches!(full, Error::Disk(DiskError::Full { .. })), "{what}: {full:?}");
        refused_with::<()>(Err(full), &["full", "free some space"]);
        // Reads succeed, and a drop frees space.
        for n in 0..written {
            assert_eq!(table.get(&key(n)).expect(&what), Some(vec![n as u8; 700]), "{what}");
        }
        if seed % 2 == 0 {
            // Space becomes free elsewhere.
            disk.set_capacity(None);
        } else {
            // This must also work when the background workers have met the full disk by now.
            env.run_workers(50);
            db.drop_table("ballast").expect(&what);
        }
        env.run_workers(500);
        for n in written..written + 500 {
            table.put(&key(n), &[n as u8; 700]).unwrap_or_else(|error| panic!("{what}, then {n}: {error}"));
            // The drop has freed space for these rows, and for a log that checkpoints keep short.
            if n % 8 == 0 {
                env.run_workers(10);
            }
        }
        if seed % 2 == 0 {
            db.drop_table("ballast").expect(&what);
        }
        disk.set_capacity(None);
        env.run_workers(50);
        assert_eq!(db.check().expect(&what).findings, Vec::<String>::new(), "{what}");
        drop((db, table, ballast, env));
        let (db, _env) = open(&disk.restart(Survive::Nothing)).expect(&what);
        let table = db.table("t").expect(&what);
        for n in 0..written + 500 {
            assert_eq!(table.get(&key(n)).expect(&what), Some(vec![n as u8; 700]), "{what}");
        }
        assert!(matches!(db.table("ballast"), Err(Error::Schema(SchemaError::NoTable(_)))), "{what}");
    }
}

#[test]
fn a_disk_that_takes_no_pages_is_reported_before_the_log_is_full_and_loses_nothing() {
    let disk = SimulatedDisk::new(9);
    let open = |disk: &SimulatedDisk| {
        let env = SimulatedEnv::new(9);
        let db = Database::open_on(Arc::new(disk.clone()), Arc::new(env.clone()), &options(), &|_| {});
        db.map(|db| (db, env)).expect("a database")
    };
    let (db, _env) = open(&disk);
    let table = db.create_table("t", TableOptions::default()).expect("a table");
    db.create_table("other", TableOptions::default()).expect("a table").put(b"k", b"v").expect("a row");
    // The log can always be written, the data files never.
    disk.fail_nth(1, Fault::TornPage, true);
    let mut written = 0;
    let failure = loop {
        // Few pages and many log records: no call waits for a free frame.
        match table.put(&key(written % 100), &[written as u8; 700]) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 1_000_000, "the log never fills");
    };
    refused_with::<()>(Err(failure), &["write", ".tree"]);
    for n in written - 100..written {
        assert_eq!(table.get(&key(n % 100)).expect("reads continue"), Some(vec![n as u8; 700]));
    }
    // A call that frees space is not refused for lack of space.
    db.drop_table("other").expect("a drop");
    let disk = disk.restart(Survive::Nothing);
    let (db, env) = open(&disk);
    let table = db.table("t").expect("the table");
    for n in written - 100..written {
        assert_eq!(table.get(&key(n % 100)).expect("a row"), Some(vec![n as u8; 700]));
    }
    for n in 0..3_000 {
        table.put(&key(n % 100), &[n as u8; 700]).expect("work continues");
        if n % 64 == 0 {
            env.run_workers(2);
        }
    }
}

#[test]
fn an_index_that_the_tables_record_has_no_room_for_is_refused_before_it_is_built() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let db = Database::open(folder.path(), options())?;
    let table = db.create_table("wide", TableOptions::default())?;
    for n in 0..300 {
        table.insert(&key(n), &[n as u8; 100])?;
    }
    let name = |n: u32| format!("{n:0200}");
    let mut n = 0;
    let (before, refused) = loop {
        let before = db.metrics().log_groups;
        match db.create_index("wide", &name(n), IndexOptions::on_value(0..8)) {
            Ok(()) => n += 1,
            Err(error) => break (before, error),
        }
    };
    assert!(n > 0 && matches!(refused, Error::Usage(_)), "{n}: {refused:?}");
    refused_with::<()>(Err(refused), &["table wide", "bytes", "shorter names"]);
    // Background work writes next to no log; building a tree would write hundreds of groups, or at least some.
    assert!(db.metrics().log_groups - before < 3, "it was built and then thrown away");
    // Metadata are part of the record as long as they take at most half of it.
    let options = TableOptions::default().metadata(vec![1; 500]);
    let options = (0..3).fold(options, |all, n| all.index(&name(n), IndexOptions::on_value(0..8)));
    refused_with(db.create_table("metadata", options), &["table metadata", "less metadata"]);
    db.close()
}

#[test]
fn errors_name_the_table_or_the_index_that_they_are_about() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let db = Database::open(folder.path(), options())?;
    let definition = TableOptions::default().index("i", IndexOptions::on_value(0..900).unique());
    let table = db.create_table("t", definition)?;
    table.insert(b"a", b"first")?;
    refused_with(table.insert(b"a", b"other"), &["in table t"]);
    refused_with(table.update(b"b", b"other"), &["in table t"]);
    refused_with(table.insert(b"b", b"first"), &["in index i of table t"]);
    // The key of a row and an index key may have that length each.
    let words = ["the index key has 900 bytes", "index i of table t takes at most 768: make it shorter"];
    refused_with(table.put(b"c", &[1; 900]), &words);
    refused_with(
        table.put(&[1; 769], b""),
        &["the key has 769 bytes, and table t takes at most 768: make it shorter"],
    );
    table.put(&[1; 768], &[1; 768])?;
    // A zero byte counts as two.
    refused_with(table.put(b"c", &[&[0][..], &[1; 767]].concat()), &["the index key has 769 bytes"]);
    assert_eq!((table.key_limit(), db.key_limit()), (768, 768));
    let plain = db.create_table("plain", TableOptions::default())?;
    plain.put(&[1; 768], &[1; 900])?;
    let refused = db.create_index("plain", "late", IndexOptions::on_value(0..900));
    refused_with(refused, &["index key", "index late of table plain takes at most 768"]);

    let (mut cursor, mut rows, index) = (table.cursor()?, table.rows()?, table.index("i")?);
    let mut by_index = index.cursor()?;
    db.drop_index("t", "i")?;
    for error in [index.get(b"x")?.next().map(|row| row.map(drop)), Some(by_index.next().map(drop))] {
        let error = refused_with(error.expect("it does not end"), &["index i of table t was dropped"]);
        assert!(matches!(error, Error::TableDropped(Owner::Index { .. })), "{error:?}");
    }
    db.drop_table("t")?;
    let mut out = Vec::new();
    for error in [
        table.get(b"a").map(drop),
        table.contains(b"a").map(drop),
        table.read_stream(b"a", &mut out).map(drop),
        table.put(b"a", b""),
        table.delete(b"a").map(drop),
        table.cursor().map(drop),
        table.index("i").map(drop),
        cursor.next().map(drop),
        rows.next().expect("it does not end").map(drop),
    ] {
        let error = refused_with(error, &["table t was dropped", "open the table again"]);
        assert!(matches!(error, Error::TableDropped(Owner::Table(_))), "{error:?}");
    }
    Ok(())
}
