//! Many tables: a process with a low limit of open files, and a hundred thousand tables.

use std::path::Path;

use rustix::process::Resource;
use windfall::{Database, FlushLog, IndexOptions, TableOptions};

use crate::{
    Case, assert_sound, die, in_a_process_of_its_own, in_full, in_processes_on, is_a_stage, limit, memory,
    sized, small, tell_less, time_limit::wait_until,
};

pub(crate) const MANY_FILES: &str = "files::few_open_files_are_enough_for_ten_thousand_tables";
pub(crate) const MANY_TABLES: &str = "files::a_hundred_thousand_tables_come_and_go";

const MANY: u32 = 10_000;

fn name(n: u32) -> String {
    format!("t{n}")
}

fn drop_all(db: &Database, names: impl Iterator<Item = u32>, together: usize) {
    let mut names: Vec<String> = names.map(name).collect();
    // Neighbours in the system tree, so that a group latches few pages there.
    names.sort();
    for names in names.chunks(together) {
        db.drop_tables(&names.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    }
}

#[test]
fn few_open_files_are_enough_for_many_tables() {
    const TABLES: u32 = 1_000;
    in_a_process_of_its_own("files::few_open_files_are_enough_for_many_tables", |case| {
        for most in [48, 100] {
            limit(Resource::Nofile, most);
            let db = Database::open(&case.folder, small()).unwrap();
            for n in 0..TABLES {
                let table = db.create_table(&name(n), TableOptions::default()).unwrap();
                for row in 0..20u32 {
                    table.insert(&row.to_be_bytes(), &[7; 400]).unwrap();
                }
            }
            db.checkpoint().unwrap();
            db.close().unwrap();
            let db = Database::open(&case.folder, small()).unwrap();
            for n in 0..TABLES {
                assert_eq!(db.table(&name(n)).unwrap().rows().unwrap().count(), 20);
            }
            drop_all(&db, 0..TABLES, 100);
            db.close().unwrap();
        }
    });
}

/// Returns the number of data files.
fn data_files(case: &Case) -> usize {
    std::fs::read_dir(case.folder.join("data")).unwrap().count()
}

fn is_dropped(n: u32) -> bool {
    n % 5 == 1
}

fn is_truncated(n: u32) -> bool {
    n % 5 == 2
}

/// The path at which a file system in memory may be mounted.
const MEMORY: &str = "/dev/shm";

/// Returns a file system in memory with space for many files, which are created and synced quickly there.
pub(crate) fn in_memory() -> Option<&'static Path> {
    let folder = Path::new(MEMORY);
    let stat = rustix::fs::statvfs(folder).ok()?;
    (stat.f_bavail * stat.f_bsize > 1 << 30 && tempfile::tempdir_in(folder).is_ok()).then_some(folder)
}

/// Returns the number of tables: all, unless creating files is slow and the full size was not requested. The path
/// decides, because it was chosen once, and the free space there shrinks while it is used.
fn tables(above: &Path) -> u32 {
    if above.starts_with(MEMORY) { MANY } else { sized(2_000, MANY) }
}

fn value(n: u32, row: u32) -> Vec<u8> {
    [n.to_be_bytes(), row.to_be_bytes()].concat()
}

fn open_with_few_files(case: &Case) -> Database {
    limit(Resource::Nofile, 64);
    Database::open(&case.folder, small().page_size(4096).log_size(32 << 20)).unwrap()
}

/// Checks that each table has its rows, that dropped tables are absent, and that truncated tables have only new rows.
fn look(db: &Database, tables: u32, rows: u32) {
    for n in 0..tables {
        let Ok(table) = db.table(&name(n)) else {
            assert!(is_dropped(n), "table {n} is gone");
            continue;
        };
        assert!(!is_dropped(n), "table {n} is there");
        let rows = if is_truncated(n) { 3..rows } else { 0..rows };
        let wanted: Vec<_> = rows.map(|row| (row.to_be_bytes().to_vec(), value(n, row))).collect();
        let found: Vec<_> = table.rows().unwrap().map(Result::unwrap).collect();
        assert_eq!(found, wanted, "table {n}");
    }
}

/// More tables than a process may have open files, all with rows on disk, some dropped, some truncated.
#[test]
fn few_open_files_are_enough_for_ten_thousand_tables() {
    let fill = |case: &Case| {
        let (db, tables) = (open_with_few_files(case), tables(&case.folder));
        case.part("made", || {
            for n in 0..tables {
                // Some tables have two files.
                let index = TableOptions::default().index("i", IndexOptions::on_value(0..8).unique());
                let options = if n % 50 == 0 { index } else { TableOptions::default() };
                let table = db.create_table(&name(n), options).unwrap();
                (0..3u32).for_each(|row| table.insert(&row.to_be_bytes(), &value(n, row)).unwrap());
            }
            db.checkpoint().unwrap();
        });
        assert!(data_files(case) > tables as usize, "{} files", data_files(case));
        case.part("dropped and emptied", || {
            drop_all(&db, (0..tables).filter(|n| is_dropped(*n)), 500);
            for n in (0..tables).filter(|n| is_truncated(*n)) {
                db.truncate_table(&name(n)).unwrap();
            }
            db.set_flush_log_at_trx_commit(FlushLog::Sync);
            db.create_table("last", TableOptions::default()).unwrap();
        });
        assert!(data_files(case) > tables as usize, "nothing is left to be deleted");
        die();
    };
    let reopened = |case: &Case| {
        let tables = tables(&case.folder);
        let db = case.part("opened after a kill", || open_with_few_files(case));
        case.part("looked at and changed", || {
            look(&db, tables, 3);
            for n in (0..tables).filter(|n| !is_dropped(*n)) {
                db.table(&name(n)).unwrap().insert(&3u32.to_be_bytes(), &value(n, 3)).unwrap();
            }
            db.close().unwrap();
        });
        let db = open_with_few_files(case);
        case.part("looked at again", || {
            look(&db, tables, 4);
            assert_sound(&db, "all of them");
        });
        case.part("gone", || {
            drop_all(&db, (0..tables).filter(|n| !is_dropped(*n)), 500);
            assert_eq!(db.tables().unwrap().len(), 1);
            if in_full() {
                wait_until("the deletion of all files", || db.metrics().files_pending == 0);
                assert!(data_files(case) < 20, "{} files are left", data_files(case));
            }
            db.close().unwrap();
        });
    };
    let on_disk = std::env::temp_dir();
    let above = in_memory().unwrap_or(&on_disk);
    let tables = tables(above);
    if tables < MANY && !is_a_stage() {
        tell_less(&format!("{MEMORY} has less than a GiB to spare: {tables} tables in place of {MANY}"));
    }
    in_processes_on(above, MANY_FILES, &[&fill, &reopened]);
}

/// The most memory for a table that is not in use, in bytes.
const A_TABLE: u64 = 2 << 10;

#[test]
fn a_hundred_thousand_tables_come_and_go() {
    in_a_process_of_its_own(MANY_TABLES, |case| {
        let tables: u32 = sized(100_000, 300_000);
        let options = small().buffer_pool_max_size(8 << 20).log_size(32 << 20).open_files(32);
        let open = || Database::open(&case.folder, options.clone()).unwrap();
        let used = |n: &u32| n.is_multiple_of(97);
        let db = open();
        // The pool and one-time allocations are touched before the measurement.
        let warm = db.create_table("warm", TableOptions::default()).unwrap();
        (0..20_000u32).for_each(|n| warm.insert(&n.to_be_bytes(), &[1; 500]).unwrap());
        let before = memory("VmRSS");
        case.part("made", || {
            for n in 0..tables {
                db.create_table(&name(n), TableOptions::default()).unwrap();
            }
        });
        let each = memory("VmRSS").saturating_sub(before) / u64::from(tables);
        println!("    {each} bytes of memory each");
        assert!(each < A_TABLE, "a table takes {each} bytes of memory");
        assert!(db.metrics().files_created < 10, "a table without rows has a file");
        for n in (0..tables).filter(used) {
            db.table(&name(n)).unwrap().insert(b"k", &n.to_be_bytes()).unwrap();
        }
        case.part("closed", || db.close().unwrap());
        let before = memory("VmRSS");
        let db = case.part("opened", open);
        let each = memory("VmRSS").saturating_sub(before).saturating_sub(8 << 20) / u64::from(tables);
        assert!(each < A_TABLE, "a table takes {each} bytes of memory after opening");
        assert_eq!(db.metrics().tables, u64::from(tables) + 1);
        let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        case.part("looked at", || {
            for n in 0..tables {
                let found = db.table(&name(n)).unwrap().get(b"k").unwrap();
                assert_eq!(found, used(&n).then(|| n.to_be_bytes().to_vec()), "table {n}");
            }
            assert_sound(&db, "all of them");
        });
        // Twice the limit of data files, the files of the log, and some others.
        assert!(descriptors() < 2 * 32 + 40, "{} descriptors are open", descriptors());
        case.part("dropped", || {
            drop_all(&db, 0..tables, 1000);
            assert_eq!(db.metrics().tables, 1);
            wait_until("the deletion of all files", || db.metrics().files_pending == 0);
        });
        assert_sound(&db, "nothing");
        db.close().unwrap();
        let db = open();
        assert_eq!(db.tables().unwrap().len(), 1);
        assert_eq!(db.table("warm").unwrap().rows().unwrap().count(), 20_000);
        db.close().unwrap();
    });
}
