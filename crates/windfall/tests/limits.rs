//! Limits of the process: what runs out is an error of who asks for it, or no error at all, and nothing is lost.
//!
//! Each case runs in a process of its own, which sets the limit for itself.

#![allow(clippy::unwrap_used, reason = "a test panics")]

use std::{path::Path, process::Command};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use windfall::{Database, FlushLog, Options, TableOptions};

const CASE: &str = "WINDFALL_LIMITS_CASE";
const FOLDER: &str = "WINDFALL_LIMITS_FOLDER";

/// Runs a test of this file again, in another process, for what it does when [`CASE`] names it.
fn in_a_process_of_its_own(test: &str) {
    let folder = tempfile::tempdir().unwrap();
    let run = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(CASE, test)
        .env(FOLDER, folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{said}");
}

/// The folder of the case, in the process that is for this test.
fn folder(test: &str) -> Option<std::path::PathBuf> {
    let mine = std::env::var(CASE).is_ok_and(|case| case == test);
    mine.then(|| std::env::var_os(FOLDER).unwrap().into())
}

fn limit(resource: Resource, most: u64) {
    let maximum = getrlimit(resource).maximum;
    setrlimit(resource, Rlimit { current: Some(most), maximum }).unwrap();
}

fn open(folder: &Path) -> Database {
    let options = Options::default()
        .buffer_pool_size(8 << 20)
        .log_size(8 << 20)
        .flush_log_at_trx_commit(FlushLog::Lazy);
    Database::open(folder, options).unwrap()
}

#[test]
fn few_open_files_are_enough_for_many_tables() {
    const TABLES: u32 = 1_000;
    let test = "few_open_files_are_enough_for_many_tables";
    let Some(folder) = folder(test) else { return in_a_process_of_its_own(test) };
    for most in [48, 100] {
        limit(Resource::Nofile, most);
        let db = open(&folder);
        for n in 0..TABLES {
            let name = format!("t{n}");
            let table = db.create_table(&name, TableOptions::default()).unwrap();
            for row in 0..20u32 {
                table.insert(&row.to_be_bytes(), &[7; 400]).unwrap();
            }
        }
        db.checkpoint().unwrap();
        db.close().unwrap();
        let db = open(&folder);
        for n in 0..TABLES {
            assert_eq!(db.table(&format!("t{n}")).unwrap().rows().unwrap().count(), 20);
        }
        let names: Vec<String> = (0..TABLES).map(|n| format!("t{n}")).collect();
        for names in names.chunks(100) {
            db.drop_tables(&names.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
        }
        db.close().unwrap();
    }
}
