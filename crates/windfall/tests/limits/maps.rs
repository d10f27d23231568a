//! A tree with several allocation maps, and threads that allocate and free pages everywhere in it at once.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read},
    path::Path,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
    time::Duration,
};

use rand::{Rng, SeedableRng, rngs::StdRng};
use windfall::{Database, FlushLog, Options, Table, TableOptions};

use crate::{Case, assert_sound, files::in_memory, in_processes_on, seed, sized, time_limit::wait_until};

pub(crate) const SEVERAL: &str = "maps::threads_in_a_tree_of_several_maps";

const PAGE: u64 = 4096;
/// The number of pages that a map covers.
const SPAN: u64 = (PAGE - 128) * 8;
/// The length of a value that only fills space.
const FILLER: u64 = 8 << 20;
const THREADS: u64 = 4;
/// The number of copies in which the threads run.
const ROUNDS: u64 = 6;
/// The least number of calls per thread.
const LEAST: u64 = 200;

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn open(folder: &Path) -> Database {
    let options = Options::default()
        .page_size(PAGE as usize)
        .buffer_pool_size(16 << 20)
        .log_size(64 << 20)
        .log_buffer_size(4 << 20)
        .flush_log_at_trx_commit(FlushLog::Lazy);
    Database::open(folder, options).unwrap()
}

/// Returns a number of fillers such that the last map has little free space.
fn fillers() -> u64 {
    sized(3, 5) * SPAN * PAGE / FILLER + 1
}

/// Returns the key of a row. There are rows between any two fillers, and so leaves in all parts of the file.
fn row(filler: u64, n: u64) -> Vec<u8> {
    [filler.to_be_bytes(), n.to_be_bytes()].concat()
}

/// Returns the initial rows of a filler, which belong to the first thread.
fn first_rows(filler: u64) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    (0..40).map(move |n| (row(filler, n * THREADS), vec![1; 300]))
}

/// Copies a closed database.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn length_of_file(folder: &Path) -> u64 {
    let files = fs::read_dir(folder.join("data")).unwrap();
    files.map(|file| file.unwrap().metadata().unwrap().len()).max().unwrap()
}

fn rows_of(table: &Table) -> Rows {
    let rows = table.rows().unwrap().map(Result::unwrap);
    rows.filter(|(key, _)| key.len() > 8).collect()
}

/// Runs a thread in a round, with rows of its own, everywhere between the fillers.
fn work(table: &Table, (thread, round): (u64, u64), stop: &AtomicBool) -> Rows {
    let mut chance = StdRng::seed_from_u64(seed() << 16 | round << 8 | thread);
    let mut rows = if thread == 0 { (0..fillers()).flat_map(first_rows).collect() } else { Rows::new() };
    for call in 0.. {
        if call >= LEAST && stop.load(SeqCst) {
            break;
        }
        let key = row(chance.random_range(0..fillers()), chance.random_range(0..200) * THREADS + thread);
        if chance.random_ratio(1, 4) {
            assert_eq!(table.delete(&key).unwrap(), rows.remove(&key).is_some(), "{key:?}");
            continue;
        }
        // Splits of leaves and overflow chains allocate pages.
        let length = if chance.random_ratio(1, 30) {
            chance.random_range(2..40) * PAGE
        } else {
            chance.random_range(100..1000)
        };
        let value = vec![chance.random(); length as usize];
        table.put(&key, &value).unwrap();
        rows.insert(key, value);
    }
    rows
}

/// After a restart the state of the maps is unknown. All maps but the first are full, and the free pages are below. The
/// first allocations decide, and which these are depends on the threads: so they run in several copies.
#[test]
fn threads_in_a_tree_of_several_maps() {
    let fill = |case: &Case| {
        let folder = case.folder.join("filled");
        let db = open(&folder);
        let table = db.create_table("t", TableOptions::default()).unwrap();
        case.part("filled", || {
            for filler in 0..fillers() {
                let bytes = &mut io::repeat(filler as u8).take(FILLER);
                table.put_stream(&filler.to_be_bytes(), FILLER, bytes).unwrap();
                first_rows(filler).for_each(|(key, value)| table.insert(&key, &value).unwrap());
            }
        });
        case.part("room made", || {
            for filler in 1..3u64 {
                assert!(table.delete(&filler.to_be_bytes()).unwrap());
            }
            wait_until("the fillers are purged", || db.metrics().history_bytes == 0);
            db.close().unwrap();
        });
        let maps = length_of_file(&folder) / (SPAN * PAGE);
        assert!(maps >= sized(3, 5), "only {maps} maps are full");
    };
    let reopened = |case: &Case| {
        let folder = case.folder.join("copy");
        for round in 0..ROUNDS {
            copy(&case.folder.join("filled"), &folder);
            reopen(case, &folder, round);
            fs::remove_dir_all(&folder).unwrap();
        }
    };
    in_processes_on(in_memory().unwrap_or(&std::env::temp_dir()), SEVERAL, &[&fill, &reopened]);
}

fn reopen(case: &Case, folder: &Path, round: u64) {
    let before = length_of_file(folder);
    let db = open(folder);
    let (table, stop) = (db.table("t").unwrap(), AtomicBool::new(false));
    let rows: Rows = case.part("threads", || {
        thread::scope(|scope| {
            let (table, stop) = (&table, &stop);
            let workers: Vec<_> =
                (0..THREADS).map(|thread| scope.spawn(move || work(table, (thread, round), stop))).collect();
            thread::sleep(Duration::from_millis(sized(2_000, 60_000) / ROUNDS));
            stop.store(true, SeqCst);
            workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
        })
    });
    case.part("looked at", || {
        assert!(rows_of(&table) == rows, "{} rows expected", rows.len());
        assert_sound(&db, "at the end");
        db.close().unwrap();
    });
    let db = open(folder);
    let table = db.table("t").unwrap();
    assert!(rows_of(&table) == rows, "opened again: {} rows expected", rows.len());
    let after = length_of_file(folder);
    println!("    {} rows, a file of {} MiB, {} before", rows.len(), after >> 20, before >> 20);
    db.close().unwrap();
}
