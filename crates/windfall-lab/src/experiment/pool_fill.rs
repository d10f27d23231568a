//! X2: tables are created, then dropped, with different fills of the pool.
//!
//! **Purpose.** The experiment of April 2011: 1,000 tables, with 21, 52 and 104 GB of a pool of 144 GB filled; `MySQL`
//! 5.1.56, Percona Server 5.1.56 with lazy drop, `MySQL` 5.6.2. Scaled by the number of tables.
//!
//! **Method.** The pages of the fill are bookkeeping only, at every scale.

use std::{path::Path, time::Instant};

use serde::{Deserialize, Serialize};
use windfall::{FlushLog, error::Result};

use super::{Scale, ServerWork, Setting, ns, pages_of_gb, start_and_run};
use crate::{
    results::{X2, X2Run},
    server::{Server, Start},
    system::{PolicyName, System},
};

/// One filled page in this many is dirty.
const LRU_TO_FLUSH: u64 = 10;
/// Pages in addition to the fill.
const SPARE_PAGES: u64 = 20_000;
const LOG: u64 = 256 << 20;

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    system: System,
    fill_gb: f64,
    tables: u32,
    seed: u64,
}

fn tables(scale: Scale) -> u32 {
    scale.pick(3, 4, 1_000)
}

pub(super) fn empty(setting: &Setting) -> X2 {
    X2 { tables: tables(setting.scale), runs: Vec::new() }
}

pub(super) fn jobs(setting: &Setting) -> Vec<super::Job> {
    let systems = [PolicyName::LruScan, PolicyName::LazyMark, PolicyName::FlushListAhi, PolicyName::Detach];
    let fills = setting.scale.pick([0.2, 0.5, 1.0], [21.0, 52.0, 104.0], [21.0, 52.0, 104.0]);
    let job = |system, fill_gb| {
        super::Job::X2(Job { system, fill_gb, tables: tables(setting.scale), seed: setting.seed })
    };
    systems.into_iter().flat_map(|policy| fills.map(|fill| job(System::of(policy), fill))).collect()
}

impl Job {
    pub fn in_words(&self) -> String {
        format!("{}, {} GB filled", self.system, self.fill_gb)
    }

    pub fn run(&self, folder: &Path) -> Result<X2Run> {
        start_and_run(
            &Start {
                system: self.system,
                folder,
                pages: pages_of_gb(self.fill_gb) + SPARE_PAGES,
                log: LOG,
                flush: FlushLog::Sync,
            },
            self,
        )
    }
}

impl ServerWork for &Job {
    type Output = X2Run;

    fn run_on<S: Server>(self, server: &S) -> Result<X2Run> {
        let pages = pages_of_gb(self.fill_gb);
        server.fill(pages, pages / LRU_TO_FLUSH, self.seed)?;
        let start = Instant::now();
        let tables =
            (0..self.tables).map(|n| server.create(&format!("t{n}"), false)).collect::<Result<Vec<_>>>()?;
        let create_ns = ns(start.elapsed());
        let (mut ended_ns, mut all) = (Vec::new(), crate::server::Dropped::default());
        let start = Instant::now();
        for table in &tables {
            all += server.drop_table(table)?;
            ended_ns.push(ns(start.elapsed()));
        }
        let drop_ns = ns(start.elapsed());
        Ok(X2Run {
            system: self.system,
            fill_gb: self.fill_gb,
            pages,
            create_ns,
            drop_ns,
            ended_ns,
            steps: all.steps,
        })
    }
}
