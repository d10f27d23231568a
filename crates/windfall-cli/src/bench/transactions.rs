//! `bench transactions`: the cost of transactions of many calls.
//!
//! **Purpose.** Reads inside and outside a transaction; a transaction that does nothing; the number of commits per log
//! sync; sysbench's read/write transactions by one to eight threads, compared with `SQLite`; the effect of an old read
//! view on other clients (`views`), and that of the truncation of its undo log (`undo`).
//!
//! **Method.** All rows are in the pool. Compared variants alternate, and the median of the turns counts. Commits are
//! synced where durability is a part of the measurement, in both engines.

use std::{
    hint::black_box,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use windfall::{Access, TransactionOptions};
use windfall_measure::{Random, median};

use super::{
    fixture::{self, MB},
    harness::{Bench, Bound, rate},
    sharing::{SingleThread, THREADS},
    undo, views,
};
use crate::{
    args::Commit,
    engine::{self, Database, Setup, Table},
    failure::Result,
    oltp::{self, Mix, Unobserved},
};

/// Runs the benchmark.
pub(super) fn run(bench: &mut Bench) {
    bench.part("reads", reads);
    bench.part("commits", commits);
    bench.part("mix", mix);
    bench.part("views", views::run);
    if bench.options.long {
        bench.part("aged-view", views::run_aged);
    }
    bench.part("undo", undo::run);
}

/// Measures point reads outside of transactions and in one, and transactions that do nothing.
fn reads(bench: &mut Bench) -> Result<()> {
    let rows = bench.size(1_000_000, 10_000);
    bench.say("loading small rows");
    let db = Setup::with_pool(512 * MB).commit(Commit::Lazy).log(512 * MB).open(&bench.database("reads"))?;
    let table = fixture::small(&db, "rows", rows)?;
    let (turns, time) = bench.size((9, Duration::from_secs(1)), (3, Duration::from_millis(30)));
    let [mut outside, mut inside, mut empty] = [const { Vec::new() }; 3];
    for turn in 0..turns {
        bench.say(&format!("reads, turn {} of {turns}", turn + 1));
        outside.push(read(&table, rows, time, turn)?);
        let trx = db.begin(TransactionOptions::default());
        inside.push(read(&trx.table(&table), rows, time, turn)?);
        trx.commit()?;
        empty.push(rate(time, || {
            db.begin(TransactionOptions::default().read_only()).commit()?;
            Ok(())
        })?);
    }
    let [outside, inside, empty] = [outside, inside, empty].map(|rates| median(&rates));
    bench.fact("reads per second, each a call of its own", outside);
    bench.fact("reads per second in a transaction", inside);
    bench.fact("empty read-only transactions per second", empty);
    bench.claim("read-in-transaction-over-single-call", outside / inside, Bound::AtMost(1.3));
    bench.claim("empty-transaction-over-single-read", outside / empty, Bound::AtMost(0.5));
    drop(table);
    fixture::close(db)
}

/// Returns how many rows per second are read, one by one in random order.
fn read(table: &Table<impl Access>, rows: u64, time: Duration, seed: u64) -> Result<f64> {
    let (mut random, mut value) = (Random::new(seed, 3), Vec::new());
    rate(time, || {
        black_box(table.get_into(&random.below(rows).to_be_bytes(), &mut value)?);
        Ok(())
    })
}

/// Measures the log syncs per commit, with threads that do nothing else.
fn commits(bench: &mut Bench) -> Result<()> {
    let setup = Setup::with_pool(256 * MB).commit(Commit::Lazy).log(512 * MB);
    let db = setup.open(&bench.database("commits"))?;
    let table = fixture::small(&db, "rows", 10_000)?;
    bench.say("group commit");
    let put = |thread: usize, id: u64| -> Result<()> {
        let trx = db.begin(TransactionOptions::default());
        trx.table(&table).put(&[thread as u64, id].map(u64::to_be_bytes).concat(), &fixture::SMALL)?;
        trx.commit()?;
        Ok(())
    };
    let (each, count) = bench.size((2_000_u64, 200), (50, 10));
    let single_thread = SingleThread::measure(&db, count, |n| put(THREADS, n as u64))?;
    let before = db.metrics().log_syncs;
    let start = Instant::now();
    fixture::threads(THREADS, |thread| (0..each).try_for_each(|id| put(thread, id)))?;
    let (syncs, commits) = (db.metrics().log_syncs - before, each * THREADS as u64);
    bench.fact("commits by 8 threads", commits);
    bench.fact("syncs of the log for them", syncs);
    bench.fact("commits per second", commits as f64 / start.elapsed().as_secs_f64());
    single_thread.compare(bench, "syncs-per-commit-of-8-threads", "commit", syncs, commits);
    drop(table);
    fixture::close(db)
}

/// A worker that executes transactions of the mix.
pub(super) trait Worker {
    /// Executes one transaction. Returns whether it committed.
    fn transaction(&mut self, random: &mut Random) -> Result<bool>;
}

impl Worker for Mix<'_> {
    fn transaction(&mut self, random: &mut Random) -> Result<bool> {
        Mix::transaction(self, random, &mut Unobserved)
    }
}

/// Returns the committed transactions per second of `threads` threads, each with its own worker.
pub(super) fn throughput<W: Worker>(
    threads: usize,
    time: Duration,
    seed: u64,
    worker: impl Fn() -> Result<W> + Sync,
) -> Result<f64> {
    let (committed, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let start = Instant::now();
    fixture::threads(threads, |n| {
        let (mut worker, mut random) = (worker()?, Random::new(seed, 50 + n as u64));
        while !stop.load(Relaxed) {
            let done = worker.transaction(&mut random);
            if done.is_err() || start.elapsed() > time {
                stop.store(true, Relaxed);
            }
            committed.fetch_add(u64::from(done?), Relaxed);
        }
        Ok(())
    })?;
    Ok(committed.into_inner() as f64 / start.elapsed().as_secs_f64())
}

/// Creates and fills the table of sysbench.
pub(super) fn load(bench: &Bench, name: &str, rows: u32, more: u64) -> Result<(Database, Table)> {
    bench.say(&format!("loading the table of sysbench for {name}"));
    let setup = Setup::with_pool(u64::from(rows) * 1024 + more).commit(Commit::Lazy).log(1024 * MB);
    let db = setup.open(&bench.database(name))?;
    let table = oltp::load(&db, rows, bench.options.seed, &AtomicU64::new(0))?;
    db.checkpoint()?;
    Ok((db, table))
}

/// Measures the mix by one to eight threads, and by eight in `SQLite`.
fn mix(bench: &mut Bench) -> Result<()> {
    let rows = bench.size(500_000, 2_000);
    let (db, table) = load(bench, "mix", rows, 256 * MB)?;
    engine::set_commit(&db, Commit::Sync);
    #[cfg(feature = "peers")]
    let sqlite = {
        bench.say("loading SQLite");
        super::sqlite::Sqlite::load(&bench.database("sqlite"), rows, bench.options.seed)?
    };
    let counts = [1, 2, 4, THREADS];
    let (turns, time) = bench.size((5, Duration::from_secs(4)), (2, Duration::from_millis(100)));
    let mut rates = counts.map(|_| Vec::new());
    #[cfg(feature = "peers")]
    let mut theirs = Vec::new();
    for turn in 0..turns {
        bench.say(&format!("read/write transactions, turn {} of {turns}", turn + 1));
        for (threads, rates) in counts.iter().zip(&mut rates) {
            rates.push(throughput(*threads, time, turn, || Ok(Mix { db: &db, table: &table, rows }))?);
        }
        #[cfg(feature = "peers")]
        theirs.push(throughput(THREADS, time, turn, || sqlite.connect())?);
    }
    let rates = rates.map(|rates| median(&rates));
    for (threads, rate) in counts.iter().zip(&rates) {
        bench.fact(format!("read/write transactions per second, threads: {threads}"), *rate);
    }
    let best = rates.iter().copied().fold(0.0, f64::max);
    let most = rates[counts.len() - 1];
    bench.claim("8-threads-over-best-of-1-to-8", most / best, Bound::AtLeast(0.9));
    #[cfg(feature = "peers")]
    {
        bench.fact("SQLite, threads: 8", median(&theirs));
        bench.claim("8-threads-over-sqlite", most / median(&theirs), Bound::AtLeast(5.0));
    }
    #[cfg(not(feature = "peers"))]
    bench.missing(
        "8-threads-over-sqlite",
        "built without the feature `peers`: cargo build --release -p windfall-cli --features peers",
    );
    drop(table);
    fixture::close(db)
}
