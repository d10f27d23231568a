//! A queue of jobs in a table with an index, and workers that never wait for each other: locking reads with
//! `LockWaitPolicy::SkipLocked` (`SKIP LOCKED` of SQL).
//!
//! Run it with `cargo run --release -p windfall --example queue`.

use std::{path::Path, thread};

use windfall::{
    Database, IndexOptions, Isolation, LockWaitPolicy, Options, Result, Table, TableOptions,
    TransactionOptions,
};

const NEW: &[u8] = b"new ";
const DONE: &[u8] = b"done";
const JOBS: u32 = 200;
const WORKERS: usize = 3;

/// Takes the first job that no other worker has taken, and completes it. Returns whether there was one.
fn work(db: &Database, jobs: &Table) -> Result<bool> {
    let trx = db.begin(TransactionOptions::default().isolation(Isolation::ReadCommitted));
    let mine = trx.table(jobs).lock_wait_policy(LockWaitPolicy::SkipLocked);
    let job = mine.index("by_state")?.range_for_update(NEW..=NEW)?.next().transpose()?;
    let Some(job) = job else { return Ok(false) };
    // The work itself belongs here. If the process ends now, the job is new again after the next opening.
    mine.update(&job.key, &[DONE, &job.key].concat())?;
    trx.commit()?;
    Ok(true)
}

/// Runs the example in a database in this folder.
///
/// # Errors
/// The errors of the database.
pub(crate) fn run(folder: &Path) -> Result<()> {
    let db = Database::open(folder, Options::default().buffer_pool_size(64 << 20))?;
    // The state is the first four bytes of the value.
    let options = TableOptions::default().index("by_state", IndexOptions::on_value(0..4));
    let jobs = db.create_table("jobs", options)?;
    for number in 0..JOBS {
        let key = number.to_be_bytes();
        jobs.insert(&key, &[NEW, &key].concat())?;
    }
    let done: Vec<u32> = thread::scope(|scope| {
        let run = || {
            let mut done = 0;
            while work(&db, &jobs)? {
                done += 1;
            }
            Ok(done)
        };
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(run)).collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker")).collect::<Result<_>>()
    })?;
    println!("jobs done by each worker: {done:?}");
    assert_eq!(jobs.index("by_state")?.range(DONE..=DONE)?.count(), JOBS as usize);
    assert_eq!(done.iter().sum::<u32>(), JOBS, "each job is done once");
    db.close()
}

#[cfg(not(test))]
fn main() -> Result<()> {
    let folder = std::env::temp_dir().join("windfall-example-queue");
    let _ = std::fs::remove_dir_all(&folder);
    run(&folder)
}
