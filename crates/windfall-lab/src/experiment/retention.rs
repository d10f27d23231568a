//! X6: the oldest partition of a time series is dropped, while the newest is being filled.
//!
//! **Purpose.** Continuous retention: rows are inserted at full speed, and once a second a new partition begins and
//! the oldest one is dropped. A run without drops keeps all partitions.
//!
//! **Method.** Rows go to the newest partition, in the order of time. The pool is full of other tables' pages, as
//! bookkeeping. The measured part of a statement begins with the drop: the new partition is created before.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::{collections::VecDeque, path::Path, sync::Arc, time::Duration};

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use windfall::{FlushLog, error::Result};

use super::{Scale, ServerWork, Setting, pages_of_gb, start_and_run};
use crate::{
    results::{X6, X6Run},
    server::{Server, Start, rows},
    system::{PolicyName, System},
    workload::load::{self, Plan, RunResult},
};

const THREADS: u32 = 4;
const KEPT: u32 = 8;
/// Bytes of a row's value.
const VALUE: usize = 150;
/// Rows between two commits.
const BATCH: u32 = 10;
/// Commits and drops are written, and synced once a second.
const FLUSH: FlushLog = FlushLog::Write;
const LRU_TO_FLUSH: u64 = 5;
const LOG: u64 = 4 << 30;

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    system: System,
    drops: bool,
    seconds: f64,
    every_s: f64,
    fill_gb: f64,
    rows_before: u32,
    seed: u64,
}

pub(super) fn empty(_: &Setting) -> X6 {
    X6 { threads: THREADS, kept: KEPT, runs: Vec::new() }
}

pub(super) fn jobs(setting: &Setting) -> Vec<super::Job> {
    let systems = [
        PolicyName::LruScan,
        PolicyName::FlushList,
        PolicyName::ExtentAhi,
        PolicyName::StaleVersion,
        PolicyName::Detach,
    ];
    let seconds = setting.scale.pick(2.0, 5.0, 120.0);
    let every_s = if setting.scale == Scale::Quick { 0.3 } else { 1.0 };
    let fill_gb = setting.scale.pick(0.1, 16.0, 64.0);
    let rows_before = setting.scale.pick(1_000, 30_000, 300_000);
    let job = |policy, drops| {
        let (system, seed) = (System::of(policy), setting.seed);
        super::Job::X6(Job { system, drops, seconds, every_s, fill_gb, rows_before, seed })
    };
    systems.into_iter().flat_map(|policy| [job(policy, false), job(policy, true)]).collect()
}

impl Job {
    pub fn in_words(&self) -> String {
        format!("{}, {}", self.system, if self.drops { "drops" } else { "no drops" })
    }

    pub fn run(&self, folder: &Path) -> Result<X6Run> {
        start_and_run(
            &Start {
                system: self.system,
                folder,
                pages: pages_of_gb(self.fill_gb) + pages_of_gb(2.0),
                log: LOG,
                flush: FLUSH,
            },
            self,
        )
    }
}

impl ServerWork for &Job {
    type Output = X6Run;

    fn run_on<S: Server>(self, server: &S) -> Result<X6Run> {
        let pages = pages_of_gb(self.fill_gb);
        server.fill(pages, pages / LRU_TO_FLUSH, self.seed)?;
        let partition = |n: usize| server.create(&format!("p{n}"), false);
        let first = (0..KEPT as usize).map(partition).collect::<Result<VecDeque<_>>>()?;
        let (time, inserted) = (AtomicU64::new(0), AtomicU64::new(0));
        // Every dropped partition has rows, including the first one.
        for partition in &first {
            let mut end = None;
            for _ in 0..self.rows_before {
                let key = time.fetch_add(1, Relaxed).to_be_bytes();
                end = rows::put(&partition.rows, &key, &[b't'; VALUE])?;
            }
            server.commit(end)?;
        }
        let newest = RwLock::new(Arc::clone(&first[first.len() - 1]));
        let mut all = first;
        let client = |_: &mut _, recorder: &mut load::Recorder<'_>| {
            server.log().wait_for_room(0)?;
            // Held while rows are inserted, so that their partition is not dropped meanwhile.
            let newest = newest.read();
            let mut end = None;
            for _ in 0..BATCH {
                let key = time.fetch_add(1, Relaxed).to_be_bytes();
                end = recorder.query(|| rows::put(&newest.rows, &key, &[b't'; VALUE]))?;
            }
            inserted.fetch_add(u64::from(BATCH), Relaxed);
            server.commit(end)
        };
        let every = Duration::from_secs_f64(self.every_s);
        let plan = Plan::every(THREADS, Duration::from_secs_f64(self.seconds), every, self.seed);
        let mut used_bytes = vec![server.used_bytes(all.make_contiguous())?];
        let RunResult { with: load, .. } = load::run(server, &plan, &client, &mut |n, begins| {
            let next = partition(KEPT as usize + n)?;
            *newest.write() = Arc::clone(&next);
            all.push_back(next);
            used_bytes.push(server.used_bytes(all.make_contiguous())?);
            begins();
            let dropped = match all.front().filter(|_| self.drops) {
                Some(oldest) => Some(server.drop_table(oldest)?),
                None => None,
            };
            if dropped.is_some() {
                all.pop_front();
            }
            Ok(dropped)
        })?;
        let rows = inserted.load(Relaxed);
        Ok(X6Run { system: self.system, drops: self.drops, load, rows, used_bytes })
    }
}
