//! X1: tables are dropped under a load of reads and writes.
//!
//! **Purpose.** The experiment of June 2012: 30 tables of 1,000 rows are created beforehand. 8 threads of sysbench's
//! read/write mix work on one table of 20 million rows, all in memory, with 315,000 pages in the pool of which some
//! 100,000 are dirty. Every 30 s a table is dropped, for 15 minutes. The requests of the article's readers are
//! implemented, too: a baseline without drops for each system, other ratios of the LRU list to the flush list, and
//! several instances.
//!
//! **Method.** The baseline is measured in the same process: phases with drops and without alternate, so that both have
//! the same tables, the same pages in the pool, and the same disk. The clients' pages are real; those that fill the
//! pool up to the published number are bookkeeping. The log is large enough that it never forces pages to be written.
//!
//! Windfall has more turns than the others: the claim that its drops cannot be distinguished from its baseline is about
//! windows, and few windows would not refute it.

use std::{path::Path, time::Duration};

use serde::{Deserialize, Serialize};
use windfall::{FlushLog, error::Result};

use super::{Scale, ServerWork, Setting, start_and_run};
use crate::{
    results::{X1, X1Run},
    server::{Server, Start, rows},
    system::{PolicyName, System},
    workload::{
        load::{self, Plan, RunResult},
        oltp::Oltp,
    },
};

const THREADS: u32 = 8;
const VICTIM_ROWS: u32 = 1_000;
/// Rows per page of the clients' table, approximately.
const ROWS_PER_PAGE: u64 = 70;
/// Pages in addition to those wanted: for the dropped tables, and free ones.
const SPARE_PAGES: u64 = 20_000;
/// Commits and drops are written, and synced once a second: the comparison is about memory.
const FLUSH: FlushLog = FlushLog::Write;

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    system: System,
    lru_to_flush: u32,
    turns: u32,
    rows: u32,
    pages: u64,
    seconds: f64,
    drop_every_s: f64,
    log: u64,
    seed: u64,
}

/// Rows of the clients' table.
fn rows_of(scale: Scale) -> u32 {
    scale.pick(5_000, 300_000, 20_000_000)
}

/// Pages in the pool.
fn pages_of(scale: Scale) -> u64 {
    scale.pick(5_000, 315_000, 315_000)
}

fn real_pages(rows: u32) -> u64 {
    u64::from(rows) / ROWS_PER_PAGE
}

fn drop_every(scale: Scale) -> f64 {
    scale.pick(0.3, 0.3, 30.0)
}

pub(super) fn empty(setting: &Setting) -> X1 {
    let (rows, pages) = (rows_of(setting.scale), pages_of(setting.scale));
    X1 {
        threads: THREADS,
        rows: rows.into(),
        pages,
        bookkeeping_pages: pages.saturating_sub(real_pages(rows)),
        drop_every_s: drop_every(setting.scale),
        victim_rows: VICTIM_ROWS.into(),
        runs: Vec::new(),
    }
}

pub(super) fn jobs(setting: &Setting) -> Vec<super::Job> {
    let scale = setting.scale;
    let job = |system, lru_to_flush, turns, seconds| {
        super::Job::X1(Job {
            system,
            lru_to_flush,
            turns,
            rows: rows_of(scale),
            pages: pages_of(scale),
            seconds,
            drop_every_s: drop_every(scale),
            log: scale.pick(1, 4, 64) << 30,
            seed: setting.seed,
        })
    };
    let systems = [
        PolicyName::LruScan,
        PolicyName::LazyMark,
        PolicyName::FlushList,
        PolicyName::FlushListAhi,
        PolicyName::ExtentAhi,
        PolicyName::StaleVersion,
        PolicyName::Detach,
    ];
    let turns = |policy| if policy == PolicyName::Detach { scale.pick(2, 5, 2) } else { scale.pick(1, 2, 1) };
    let seconds = scale.pick(0.8, 2.0, 900.0);
    let mut jobs = systems.map(|policy| job(System::of(policy), 3, turns(policy), seconds)).to_vec();
    // The other settings, for the systems that were compared when readers requested them.
    let seconds = scale.pick(0.8, 1.2, 300.0);
    for policy in [PolicyName::LruScan, PolicyName::LazyMark, PolicyName::FlushList] {
        jobs.extend([5, 10].map(|ratio| job(System::of(policy), ratio, 1, seconds)));
        let with = |instances| System { instances, ..System::of(policy) };
        jobs.extend([4, 8, 10].map(|instances| job(with(instances), 3, 1, seconds)));
    }
    jobs
}

impl Job {
    pub fn in_words(&self) -> String {
        format!("{}, {}:1", self.system, self.lru_to_flush)
    }

    pub fn run(&self, folder: &Path) -> Result<X1Run> {
        start_and_run(
            &Start {
                system: self.system,
                folder,
                pages: self.pages + SPARE_PAGES,
                log: self.log,
                flush: FLUSH,
            },
            self,
        )
    }
}

impl ServerWork for &Job {
    type Output = X1Run;

    fn run_on<S: Server>(self, server: &S) -> Result<X1Run> {
        let oltp = Oltp::load(server, "sbtest_20m", self.rows, self.seed)?;
        server.flush()?;
        oltp.warm()?;
        let pause = Duration::from_secs_f64(self.drop_every_s);
        let plan = Plan::every(THREADS, Duration::from_secs_f64(self.seconds), pause, self.seed);
        let plan = plan.in_turns(self.turns);
        let mut victims = Vec::new();
        for n in 0..plan.statements() {
            let table = server.create(&format!("victim_{n}"), false)?;
            let mut end = None;
            for row in 0..VICTIM_ROWS {
                end = rows::put(&table.rows, &row.to_be_bytes(), &[b'v'; 60])?;
            }
            server.commit(end)?;
            victims.push(table);
        }
        let [resident, dirty] = server.entries();
        let wanted = self.pages / u64::from(self.lru_to_flush);
        server.fill(self.pages.saturating_sub(resident), wanted.saturating_sub(dirty), self.seed)?;

        let client =
            |random: &mut _, recorder: &mut load::Recorder<'_>| oltp.transaction(server, random, recorder);
        let RunResult { without, with, .. } = load::run(server, &plan, &client, &mut |n, begins| {
            begins();
            server.drop_table(&victims[n]).map(Some)
        })?;
        Ok(X1Run { system: self.system, lru_to_flush: self.lru_to_flush, without, with })
    }
}
