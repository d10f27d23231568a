//! X7: a table is dropped whose pages are all in the hash index.
//!
//! **Purpose.** The stall that is still reported (bugs 107308, 113312): a table that was read a lot is dropped while
//! other threads read another one, through the same hash index.
//!
//! **Invariants.** Each row of the dropped table has an entry in the hash index before the drop, on the classic servers
//! (test: `x1_x6_x7_and_x8_show_a_load_and_its_statements`).
//!
//! **Method.** All rows of both tables are looked up before the run, so that every leaf is hashed.

use std::{path::Path, time::Duration};

use serde::{Deserialize, Serialize};
use windfall::{FlushLog, error::Result};
use windfall_measure::Random;

use super::{Scale, ServerWork, Setting, start_and_run};
use crate::{
    results::{X7, X7Run},
    server::{Server, Start, Table, rows},
    system::{PolicyName, System},
    workload::load::{self, Plan, RunResult},
};

const THREADS: u32 = 4;
/// Bytes of a row's value.
const VALUE: usize = 180;
/// Rows of the table that stays.
const STAYS: u32 = 50_000;
/// Maximum number of rows per leaf.
const ROWS_PER_LEAF: u32 = 90;
/// The number of times that the rows of the last leaf are looked up again.
const LOOKS: u32 = 20;
/// The fill factor of a loaded tree's nodes, in percent.
const FILL: usize = 93;
const LOG: u64 = 2 << 30;

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    system: System,
    rows: u32,
    seconds: f64,
    seed: u64,
}

/// Rows of the dropped table.
pub(super) fn rows_of(scale: Scale) -> u32 {
    scale.pick(20_000, 1_000_000, 20_000_000)
}

pub(super) fn empty() -> X7 {
    X7 { threads: THREADS, runs: Vec::new() }
}

pub(super) fn jobs(setting: &Setting) -> Vec<super::Job> {
    let systems = [
        PolicyName::LruScan,
        PolicyName::LazyMark,
        PolicyName::FlushListAhi,
        PolicyName::ExtentAhi,
        PolicyName::StaleVersion,
        PolicyName::Detach,
    ];
    let rows = rows_of(setting.scale);
    let seconds = setting.scale.pick(1.0, 2.5, 10.0);
    let job = |policy| {
        super::Job::X7(Job { system: System::of(policy).hashed(), rows, seconds, seed: setting.seed })
    };
    systems.map(job).into()
}

impl Job {
    pub fn in_words(&self) -> String {
        format!("{}, {} rows", self.system, self.rows)
    }

    pub fn run(&self, folder: &Path) -> Result<X7Run> {
        let pages = u64::from(self.rows + STAYS) / 60 + 10_000;
        start_and_run(&Start { system: self.system, folder, pages, log: LOG, flush: FlushLog::Sync }, self)
    }
}

fn load_table<S: Server>(server: &S, table: &Table<S::Store>, count: u32) -> Result<()> {
    let mut loader = table.rows.bulk_load(FILL)?;
    for n in 0..count {
        if n.is_multiple_of(10_000) {
            server.log().wait_for_room(0)?;
        }
        loader.push(&n.to_be_bytes(), rows::HEADER, &[b'h'; VALUE])?;
    }
    let end = loader.finish()?;
    server.commit(end)
}

/// Looks up every row: each page has enough of them to be hashed. The last page may be nearly empty, so its rows are
/// looked up again.
fn look_up_all<S: Server>(table: &Table<S::Store>, count: u32) -> Result<()> {
    let last = count.saturating_sub(ROWS_PER_LEAF)..count;
    let mut value = Vec::new();
    for n in (0..count).chain((0..LOOKS).flat_map(|_| last.clone())) {
        table.rows.get_into(&n.to_be_bytes(), &mut value)?;
    }
    Ok(())
}

impl ServerWork for &Job {
    type Output = X7Run;

    fn run_on<S: Server>(self, server: &S) -> Result<X7Run> {
        let (stays, goes) = (server.create("stays", false)?, server.create("goes", false)?);
        for (table, count) in [(&stays, STAYS), (&goes, self.rows)] {
            load_table(server, table, count)?;
            look_up_all::<S>(table, count)?;
        }
        server.flush()?;
        let entries = server.hashed(&goes);
        let pages = goes.rows.check()?.leaves;
        let client = |random: &mut Random, recorder: &mut load::Recorder<'_>| {
            let mut value = Vec::new();
            let key = (random.below(STAYS.into()) as u32).to_be_bytes();
            recorder.query(|| stays.rows.get_into(&key, &mut value)).map(drop)
        };
        let length = Duration::from_secs_f64(self.seconds);
        let plan = Plan { marks: vec![length / 2], ..Plan::every(THREADS, length, length, self.seed) };
        let RunResult { with: load, .. } = load::run(server, &plan, &client, &mut |_, begins| {
            begins();
            server.drop_table(&goes).map(Some)
        })?;
        Ok(X7Run { system: self.system, pages, entries, load })
    }
}
