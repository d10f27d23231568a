//! X4: a table is created and dropped, again and again.
//!
//! **Purpose.** Bug 69316: 100,000 times `create table t1(a int primary key)` and drop, with a pool of 512 MB, on a
//! disk and on a ramdisk; and with a pool of 60 GB that is filled first.
//!
//! **Method.** The pages of the fill are bookkeeping only, at every scale.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use windfall::{FlushLog, error::Result};

use super::{Scale, ServerWork, Setting, ns, pages_of_gb, start_and_run};
use crate::{
    results::{X4, X4Run},
    server::{Dropped, Server, Start},
    system::{PolicyName, System},
};

const EMPTY_POOL: u64 = 32_768;
const LOG: u64 = 256 << 20;
/// One filled page in this many is dirty.
const LRU_TO_FLUSH: u64 = 10;
const SPARE_PAGES: u64 = 20_000;

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    system: System,
    pub(super) tmpfs: Option<PathBuf>,
    fill_gb: f64,
    loops: u32,
    seed: u64,
}

fn loops(scale: Scale) -> u32 {
    scale.pick(10, 1_000, 100_000)
}

/// Returns the loops with a filled pool, which makes each loop long.
fn loops_filled(scale: Scale) -> u32 {
    scale.pick(3, 10, 1_000)
}

pub(super) fn empty(setting: &Setting) -> X4 {
    X4 { loops: loops(setting.scale), runs: Vec::new() }
}

pub(super) fn jobs(setting: &Setting) -> Vec<super::Job> {
    let systems = [
        PolicyName::LruScan,
        PolicyName::FlushList,
        PolicyName::FlushListAhi,
        PolicyName::StaleVersion,
        PolicyName::Detach,
    ];
    let job = |policy, tmpfs: Option<PathBuf>, fill_gb, loops| {
        super::Job::X4(Job { system: System::of(policy), tmpfs, fill_gb, loops, seed: setting.seed })
    };
    let mut jobs = Vec::new();
    for policy in systems {
        for tmpfs in [None].into_iter().chain(setting.tmpfs.clone().map(Some)) {
            jobs.push(job(policy, tmpfs, 0.0, loops(setting.scale)));
        }
        let fill = setting.scale.pick(0.5, 60.0, 60.0);
        jobs.push(job(policy, None, fill, loops_filled(setting.scale)));
    }
    jobs
}

impl Job {
    fn on(&self) -> &'static str {
        if self.tmpfs.is_some() { "tmpfs" } else { "disk" }
    }

    pub fn in_words(&self) -> String {
        let pool =
            if self.fill_gb > 0.0 { format!("{} GB filled", self.fill_gb) } else { "empty pool".into() };
        format!("{}, {pool}, {}", self.system, self.on())
    }

    pub fn run(&self, folder: &Path) -> Result<X4Run> {
        start_and_run(
            &Start {
                system: self.system,
                folder,
                pages: pages_of_gb(self.fill_gb) + EMPTY_POOL.max(SPARE_PAGES),
                log: LOG,
                flush: FlushLog::Sync,
            },
            self,
        )
    }
}

impl ServerWork for &Job {
    type Output = X4Run;

    fn run_on<S: Server>(self, server: &S) -> Result<X4Run> {
        let pages = pages_of_gb(self.fill_gb);
        if pages > 0 {
            server.fill(pages, pages / LRU_TO_FLUSH, self.seed)?;
        }
        let mut all = Dropped { took: Duration::ZERO, ..Dropped::default() };
        let start = Instant::now();
        for _ in 0..self.loops {
            let table = server.create("t1", false)?;
            all += server.drop_table(&table)?;
        }
        Ok(X4Run {
            system: self.system,
            on: self.on().into(),
            fill_gb: self.fill_gb,
            loops: self.loops,
            total_ns: ns(start.elapsed()),
            drop_ns: ns(all.took),
            steps: all.steps,
        })
    }
}
