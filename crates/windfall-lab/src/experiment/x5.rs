//! X5: tables are made and dropped beside one that fills the pool, by the size of the pool.
//!
//! **Purpose.** The experiment of the article on `MySQL` 8.0.23: pools of 32, 64, 128, 256 and 450 GB are filled by one
//! big table, then 100 empty tables are made and dropped concurrently. Its baseline is the generation before,
//! `extent-ahi`; `lru-scan` stands beside it.
//!
//! **Invariants.** The pages of the fill are bookkeeping alone, at every scale. With the hash index on, each table has
//! a row that is looked up until its page is hashed: a table that nobody read has nothing to be unhashed.
//!
//! **May touch.** What `experiment` may touch.

use std::{path::Path, sync::Mutex, thread, time::Instant};

use serde::{Deserialize, Serialize};
use windfall::{
    error::{Result, UsageError},
    log::FlushLog,
};
use windfall_measure::Latency;

use super::{Scale, Scene, Setting, ns, on, pages_of_gb};
use crate::{
    results::{X5, X5Run},
    server::{Dropped, Server, Table, rows},
    system::{PolicyName, System},
    watch::{self, Role},
};

/// Of the filled pages one in so many is dirty: the article's load is clean for the most part.
const LRU_TO_FLUSH: u64 = 10;
const BESIDE: u64 = 20_000;
const LOG: u64 = 256 << 20;
const THREADS: u32 = 4;
/// Rows of a table that is looked up: more than a page's, so that the tree has leaves below its root.
const ROWS: u32 = 120;
/// Look-ups of each row.
const LOOKS: u32 = 10;

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    system: System,
    pool_gb: f64,
    tables: u32,
    seed: u64,
}

pub fn empty() -> X5 {
    X5 { threads: THREADS, runs: Vec::new() }
}

/// 100 tables, or fewer where each one walks the pool.
fn tables(scale: Scale, system: System) -> u32 {
    let walks = match system.policy {
        PolicyName::Detach => false,
        PolicyName::StaleVersion => system.hash_index,
        _ => true,
    };
    if walks { scale.pick(3, 4, 100) } else { 100 }
}

pub fn jobs(setting: &Setting) -> Vec<super::Job> {
    let plain = |policy| System::of(policy);
    let systems = [
        plain(PolicyName::LruScan),
        plain(PolicyName::ExtentAhi),
        plain(PolicyName::StaleVersion),
        plain(PolicyName::StaleVersion).hashed(),
        plain(PolicyName::Detach),
        plain(PolicyName::Detach).hashed(),
    ];
    let sizes = setting.scale.pick(
        [0.1, 0.2, 0.4, 0.8, 1.6],
        [32.0, 64.0, 128.0, 256.0, 450.0],
        [32.0, 64.0, 128.0, 256.0, 450.0],
    );
    let job = |system, pool_gb| {
        let tables = tables(setting.scale, system);
        super::Job::X5(Job { system, pool_gb, tables, seed: setting.seed })
    };
    systems.into_iter().flat_map(|system| sizes.map(|size| job(system, size))).collect()
}

impl Job {
    pub fn in_words(&self) -> String {
        format!("{}, a pool of {} GB", self.system, self.pool_gb)
    }

    pub fn play(&self, folder: &Path) -> Result<X5Run> {
        on(self.system, folder, pages_of_gb(self.pool_gb) + BESIDE, LOG, self)
    }
}

/// Gives a table rows, and looks them up until their page is hashed.
fn use_table<S: Server>(server: &S, table: &Table<S::Store>) -> Result<()> {
    let key = |n: u32| n.to_be_bytes();
    let mut end = windfall::ids::Lsn::ZERO;
    for n in 0..ROWS {
        end = rows::put(&table.rows, &key(n), &[n as u8; 200])?;
    }
    server.commit(end, FlushLog::Write)?;
    for n in (0..ROWS * LOOKS).map(|n| n % ROWS) {
        rows::get(&table.rows, &key(n))?;
    }
    Ok(())
}

impl Scene for &Job {
    type Shown = X5Run;

    fn play<S: Server>(self, server: &S) -> Result<X5Run> {
        let pages = pages_of_gb(self.pool_gb);
        server.fill(pages, pages / LRU_TO_FLUSH, self.seed)?;
        let [lru_entries, flush_entries] = server.entries();
        let numbers = &Mutex::new(0..self.tables);
        let start = Instant::now();
        let done: Vec<Result<(Latency, Dropped)>> = thread::scope(|scope| {
            let make_and_drop = || {
                watch::play(Role::Dropper);
                let (mut times, mut all) = (Latency::default(), Dropped::default());
                loop {
                    let next = numbers.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
                    let Some(n) = next else { return Ok((times, all)) };
                    let table = server.create(&format!("t{n}"), false)?;
                    if self.system.hash_index {
                        use_table(server, &table)?;
                    }
                    let dropped = server.drop_table(&table)?;
                    times.record(ns(dropped.took));
                    all += dropped;
                }
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(make_and_drop)).collect();
            let panicked =
                |_| Err(UsageError::Other("a thread of the experiment has panicked".into()).into());
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
        });
        let total_ns = ns(start.elapsed());
        let (mut times, mut all) = (Latency::default(), Dropped::default());
        for one in done {
            let (more, dropped) = one?;
            times.add(&more);
            all += dropped;
        }
        Ok(X5Run {
            system: self.system,
            pool_gb: self.pool_gb,
            pages,
            lru_entries,
            flush_entries,
            tables: self.tables,
            total_ns,
            drop_latency: (&times).into(),
            steps: all.steps,
        })
    }
}
