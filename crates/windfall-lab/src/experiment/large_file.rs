//! X8: a table with a large file is dropped while other threads commit durably.
//!
//! **Purpose.** A cost that no pool can avoid: freeing the blocks of a large file competes with every sync on the same
//! file system. The classic servers delete the file at once, Windfall step by step in the background.
//!
//! **Method.** The file is on the disk and hardly in any cache; the committing threads wait for the disk each time.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use windfall::{
    FlushLog,
    error::{Result, UsageError},
};

use super::{ServerWork, Setting, ns, start_and_run};
use crate::{
    results::{X8, X8Run},
    server::{PAGE_SIZE, Server, Start, Table, rows},
    system::{PolicyName, System},
    workload::load::{self, Plan, RunResult},
};

const THREADS: u32 = 8;
/// Pages of the pool, far fewer than those of the file.
const POOL: u64 = 8_192;
const LOG: u64 = 1 << 30;
/// Bytes of a row's value in the table with the large file.
const BIG_VALUE: usize = 3_900;
const FILL: usize = 100;
/// The time that is shown after the drop, if the file is deleted earlier.
const BEHIND: Duration = Duration::from_secs(1);
/// The minimum time over which a rate is computed: a timeline has a resolution of a quarter of a millisecond.
const SHORTEST: Duration = Duration::from_millis(10);
/// The maximum wait for the deletion of the file.
const TIME_LIMIT: Duration = Duration::from_mins(2);

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    system: System,
    file_bytes: u64,
    /// The time before the drop.
    seconds: f64,
    seed: u64,
}

fn file_bytes(setting: &Setting) -> u64 {
    setting.scale.pick(64 << 20, 2 << 30, 8 << 30)
}

pub(super) fn empty(setting: &Setting) -> X8 {
    X8 { threads: THREADS, file_bytes: file_bytes(setting), runs: Vec::new() }
}

pub(super) fn jobs(setting: &Setting) -> Vec<super::Job> {
    let systems = [PolicyName::LruScan, PolicyName::StaleVersion, PolicyName::Detach];
    let seconds = setting.scale.pick(0.7, 2.5, 10.0);
    let job = |policy| {
        let (system, seed) = (System::of(policy), setting.seed);
        super::Job::X8(Job { system, file_bytes: file_bytes(setting), seconds, seed })
    };
    systems.map(job).into()
}

impl Job {
    pub fn in_words(&self) -> String {
        format!("{}, a file of {} MB", self.system, self.file_bytes >> 20)
    }

    pub fn run(&self, folder: &Path) -> Result<X8Run> {
        start_and_run(
            &Start { system: self.system, folder, pages: POOL, log: LOG, flush: FlushLog::Sync },
            self,
        )
    }

    fn load_file<S: Server>(&self, server: &S, table: &Table<S::Store>) -> Result<()> {
        let value = [b'f'; BIG_VALUE];
        let mut loader = table.rows.bulk_load(FILL)?;
        // Four rows fill a page.
        for n in 0..self.file_bytes / PAGE_SIZE as u64 * 4 {
            if n.is_multiple_of(256) {
                server.log().wait_for_room(0)?;
            }
            loader.push(&n.to_be_bytes(), rows::HEADER, &value)?;
        }
        let end = loader.finish()?;
        server.commit(end)?;
        server.flush()
    }
}

impl ServerWork for &Job {
    type Output = X8Run;

    fn run_on<S: Server>(self, server: &S) -> Result<X8Run> {
        let (small, big) = (server.create("commits", false)?, server.create("big", false)?);
        self.load_file(server, &big)?;
        let number = AtomicU64::new(0);
        let client = |_: &mut _, recorder: &mut load::Recorder<'_>| {
            server.log().wait_for_room(0)?;
            let key = number.fetch_add(1, Relaxed).to_be_bytes();
            recorder.query(|| {
                let end = rows::put(&small.rows, &key, b"a row that is committed")?;
                server.commit(end)
            })
        };
        let before = Duration::from_secs_f64(self.seconds);
        let plan = Plan { marks: vec![before], ..Plan::every(THREADS, before + BEHIND, before, self.seed) };
        let mut gone_after = Duration::ZERO;
        let RunResult { with: load, last, .. } = load::run(server, &plan, &client, &mut |_, begins| {
            begins();
            let start = Instant::now();
            let dropped = server.drop_table(&big)?;
            while server.is_deleting() {
                if start.elapsed() > TIME_LIMIT {
                    return Err(UsageError::Other("the dropped table's file is not deleted".into()).into());
                }
                thread::sleep(Duration::from_millis(2));
            }
            gone_after = start.elapsed();
            Ok(Some(dropped))
        })?;
        let dropped_at = load.windows[0].at_ns;
        let rate = |from, to| last.count_within(from, to) as f64 / (to - from) as f64 * 1e9;
        Ok(X8Run {
            system: self.system,
            gone_after_ns: ns(gone_after),
            rate_before: rate(0, dropped_at),
            rate_during: rate(dropped_at, dropped_at + ns(gone_after.max(SHORTEST))),
            load,
        })
    }
}
