//! X3: many small tables, dropped by several threads.
//!
//! **Purpose.** Bug 56332: 10,000 tables of its definition are created and dropped, on `MySQL` 5.0.77 and 5.0.91,
//! which scans twice; then 40,000 by 4 and by 8 connections at once, on more than one file system.
//!
//! **Invariants.** The pool holds one page of the dictionary and nothing else (test:
//! `x2_to_x5_count_the_steps_of_the_policies`), because the tables are empty.
//!
//! **Method.** A row of the report's table has 44 bytes.

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use windfall::{FlushLog, error::Result};

use super::{Scale, ServerWork, Setting, drop_by_threads, ns, start_and_run};
use crate::{
    results::{X3, X3Run},
    server::{Server, Start},
    system::{PolicyName, System},
};

const POOL: u64 = 32_768;
const LOG: u64 = 256 << 20;

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    system: System,
    pub(super) tmpfs: Option<PathBuf>,
    tables: u32,
    threads: u32,
}

pub(super) fn empty() -> X3 {
    X3 { runs: Vec::new() }
}

/// Returns the number of tables for this many threads: the report has four times as many for several threads.
fn tables(scale: Scale, threads: u32) -> u32 {
    let one = scale.pick(20, 1_000, 10_000);
    if threads == 1 { one } else { scale.pick(2, 2, 4) * one }
}

pub(super) fn jobs(setting: &Setting) -> Vec<super::Job> {
    let systems = [
        PolicyName::LruScanOnce,
        PolicyName::LruScan,
        PolicyName::FlushList,
        PolicyName::StaleVersion,
        PolicyName::Detach,
    ];
    let places = [None].into_iter().chain(setting.tmpfs.clone().map(Some));
    let job = |tmpfs: &Option<PathBuf>, policy, threads| {
        let tables = tables(setting.scale, threads);
        super::Job::X3(Job { system: System::of(policy), tmpfs: tmpfs.clone(), tables, threads })
    };
    let of = |tmpfs: Option<PathBuf>| {
        systems.map(|policy| [1, 4, 8].map(|threads| job(&tmpfs, policy, threads))).into_iter().flatten()
    };
    places.flat_map(of).collect()
}

impl Job {
    fn on(&self) -> &'static str {
        if self.tmpfs.is_some() { "tmpfs" } else { "disk" }
    }

    pub fn in_words(&self) -> String {
        format!("{}, {} tables, {} threads, {}", self.system, self.tables, self.threads, self.on())
    }

    pub fn run(&self, folder: &Path) -> Result<X3Run> {
        start_and_run(
            &Start { system: self.system, folder, pages: POOL, log: LOG, flush: FlushLog::Sync },
            self,
        )
    }
}

impl ServerWork for &Job {
    type Output = X3Run;

    fn run_on<S: Server>(self, server: &S) -> Result<X3Run> {
        let start = Instant::now();
        let tables =
            (0..self.tables).map(|n| server.create(&format!("ts_{n}"), false)).collect::<Result<Vec<_>>>()?;
        let create_ns = ns(start.elapsed());
        let left = Mutex::new(tables);
        let start = Instant::now();
        let (times, all) = drop_by_threads(self.threads, || {
            let next = left.lock().pop();
            next.map(|table| server.drop_table(&table)).transpose()
        })?;
        let drop_ns = ns(start.elapsed());
        Ok(X3Run {
            system: self.system,
            on: self.on().into(),
            tables: self.tables,
            threads: self.threads,
            create_ns,
            drop_ns,
            latency: (&times).into(),
            steps: all.steps,
        })
    }
}
