//! Measurements of each day in a table of its own, and a retention of a week: the oldest day is dropped while other
//! threads write and read, which costs the same whatever the day contains.
//!
//! Run it with `cargo run --release -p windfall --example partitions`.

use std::{
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    thread,
};

use windfall::{Database, Error, FlushLog, Options, Result, TableOptions};

const DAYS: u64 = 12;
const KEPT_DAYS: u64 = 7;
const ROWS_PER_DAY: u64 = 3_000;

fn name(day: u64) -> String {
    format!("measurements/day-{day:03}")
}

/// Runs the example in a database in this folder.
///
/// # Errors
/// The errors of the database.
pub(crate) fn run(folder: &Path) -> Result<()> {
    let db = Database::open(folder, Options::default().buffer_pool_size(64 << 20))?;
    // Measurements may be lost by a crash of the machine in the last second, but not by one of the process.
    db.set_flush_log_at_trx_commit(FlushLog::Write);
    let (newest, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut rows = 0_u64;
            while !is_over.load(SeqCst) {
                match db.table(&name(newest.load(SeqCst))).and_then(|table| table.rows()) {
                    Ok(day) => {
                        for row in day {
                            match row {
                                Ok(_) => rows += 1,
                                // The day was dropped meanwhile.
                                Err(Error::TableDropped(_)) => break,
                                Err(error) => return Err(error),
                            }
                        }
                    }
                    // It does not exist yet, or no longer.
                    Err(Error::TableDropped(_) | Error::Schema(_)) => thread::yield_now(),
                    Err(error) => return Err(error),
                }
            }
            Ok(rows)
        });
        let written = (|| -> Result<()> {
            for day in 0..DAYS {
                let table = db.create_table(&name(day), TableOptions::default())?;
                newest.store(day, SeqCst);
                for number in 0..ROWS_PER_DAY {
                    table.insert(&number.to_be_bytes(), format!("measurement {number}").as_bytes())?;
                }
                if let Some(oldest) = day.checked_sub(KEPT_DAYS) {
                    let report = db.drop_table(&name(oldest))?;
                    println!("day {oldest} dropped, with {} tree", report.trees);
                }
            }
            Ok(())
        })();
        is_over.store(true, SeqCst);
        let rows = reader.join().expect("the reader")?;
        println!("{rows} rows read meanwhile");
        written
    })?;
    assert_eq!(db.tables()?.len() as u64, KEPT_DAYS);
    db.close()
}

#[cfg(not(test))]
fn main() -> Result<()> {
    let folder = std::env::temp_dir().join("windfall-example-partitions");
    let _ = std::fs::remove_dir_all(&folder);
    run(&folder)
}
