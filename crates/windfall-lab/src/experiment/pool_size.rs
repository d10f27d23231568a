//! X5: tables are created and dropped next to one that fills the pool, by the size of the pool.
//!
//! **Purpose.** The experiment of the article on `MySQL` 8.0.23: pools of 32, 64, 128, 256 and 450 GB are filled by
//! one big table, then 100 empty tables are created and dropped concurrently. Its baseline is the previous generation,
//! `extent-ahi`; `lru-scan` is added for comparison.
//!
//! **Method.** The pages of the fill are bookkeeping only, at every scale. With the hash index on, the rows of each
//! table are looked up until its pages are hashed: a table that was never read has nothing to be unhashed.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::{path::Path, time::Instant};

use serde::{Deserialize, Serialize};
use windfall::{FlushLog, error::Result};
use windfall_measure::{Latency, median};

use super::{Scale, ServerWork, Setting, drop_by_threads, ns, pages_of_gb, start_and_run};
use crate::{
    results::{X5, X5Run},
    server::{Dropped, Server, Start, Table, rows},
    system::{PolicyName, System},
};

/// One filled page in this many is dirty: the article's load is mostly clean.
const LRU_TO_FLUSH: u64 = 10;
const SPARE_PAGES: u64 = 20_000;
const LOG: u64 = 256 << 20;
const THREADS: u32 = 4;
/// The number of rounds where 100 tables take only milliseconds. The result is the median, because the time of a single
/// round depends on the disk.
const ROUNDS: u32 = 40;
/// Rows of a table that is looked up: more than fit in a page, so that the tree has leaves below its root.
const ROWS: u32 = 120;
/// Look-ups of each row.
const LOOKS: u32 = 10;

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    system: System,
    pool_gb: f64,
    tables: u32,
    rounds: u32,
    seed: u64,
}

pub(super) fn empty() -> X5 {
    X5 { threads: THREADS, runs: Vec::new() }
}

/// Returns whether a drop scans the pool.
fn walks(system: System) -> bool {
    match system.policy {
        PolicyName::Detach => false,
        PolicyName::StaleVersion => system.hash_index,
        _ => true,
    }
}

/// Returns 100 tables, or fewer where each drop scans the pool: the larger the pool, the fewer.
fn tables(scale: Scale, system: System, pool_gb: f64) -> u32 {
    if scale == Scale::Full || !walks(system) { 100 } else { (128.0 / pool_gb).clamp(1.0, 4.0) as u32 }
}

pub(super) fn jobs(setting: &Setting) -> Vec<super::Job> {
    let published = [32.0, 64.0, 128.0, 256.0, 450.0];
    let sizes = setting.scale.pick([0.1, 0.2, 0.4, 0.8, 1.6], published, published);
    // Systems that the article does not compare have fewer points, except at full scale.
    let ends = if setting.scale == Scale::Full { sizes.to_vec() } else { vec![sizes[0], sizes[2], sizes[4]] };
    let systems = [
        (System::of(PolicyName::LruScan), &ends[..]),
        (System::of(PolicyName::ExtentAhi), &sizes[..]),
        (System::of(PolicyName::StaleVersion), &sizes[..]),
        (System::of(PolicyName::StaleVersion).hashed(), &ends[..]),
        (System::of(PolicyName::Detach), &sizes[..]),
        (System::of(PolicyName::Detach).hashed(), &ends[..]),
    ];
    let scale = setting.scale;
    let job = |system, pool_gb| {
        let tables = tables(scale, system, pool_gb);
        let rounds = if walks(system) { 1 } else { scale.pick(2, ROUNDS, ROUNDS) };
        super::Job::X5(Job { system, pool_gb, tables, rounds, seed: setting.seed })
    };
    systems.into_iter().flat_map(|(system, sizes)| sizes.iter().map(move |&size| job(system, size))).collect()
}

impl Job {
    pub fn in_words(&self) -> String {
        format!("{}, a pool of {} GB", self.system, self.pool_gb)
    }

    pub fn run(&self, folder: &Path) -> Result<X5Run> {
        start_and_run(
            &Start {
                system: self.system,
                folder,
                pages: pages_of_gb(self.pool_gb) + SPARE_PAGES,
                log: LOG,
                flush: FlushLog::Sync,
            },
            self,
        )
    }
}

/// Inserts rows into a table, and looks them up until their pages are hashed.
fn use_table<S: Server>(table: &Table<S::Store>) -> Result<()> {
    let key = |n: u32| n.to_be_bytes();
    for n in 0..ROWS {
        rows::put(&table.rows, &key(n), &[n as u8; 200])?;
    }
    for n in (0..ROWS * LOOKS).map(|n| n % ROWS) {
        rows::get(&table.rows, &key(n))?;
    }
    Ok(())
}

impl ServerWork for &Job {
    type Output = X5Run;

    fn run_on<S: Server>(self, server: &S) -> Result<X5Run> {
        let pages = pages_of_gb(self.pool_gb);
        server.fill(pages, pages / LRU_TO_FLUSH, self.seed)?;
        let [lru_entries, flush_entries] = server.entries();
        let (mut times, mut all, mut rounds) = (Latency::default(), Dropped::default(), Vec::new());
        for round in 0..self.rounds {
            let numbers = AtomicU32::new(0);
            let start = Instant::now();
            let (more, dropped) = drop_by_threads(THREADS, || {
                let number = numbers.fetch_add(1, Relaxed);
                if number >= self.tables {
                    return Ok(None);
                }
                let table = server.create(&format!("t{round}_{number}"), false)?;
                if self.system.hash_index {
                    use_table::<S>(&table)?;
                }
                server.drop_table(&table).map(Some)
            })?;
            rounds.push(ns(start.elapsed()) as f64);
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
            rounds: self.rounds,
            total_ns: median(&rounds) as u64,
            drop_latency: (&times).into(),
            steps: all.steps,
        })
    }
}
