//! The experiments: the jobs and their systems, one file each.
//!
//! **Purpose.** An experiment is a list of [`Job`]s by [`Scale`]. Each job runs in its own process, and [`gather`]
//! combines the outcomes. X1 to X5 repeat published experiments (see each file for its source), X6 to X8 are our own.
//! X9 is not one of these: it is for Windfall alone, and the command measures it.
//!
//! **Invariants.** [`Job::run`] takes a job and an empty folder, and nothing else (by type). A job that is passed to
//! another process as text is the same job there (test: `x2_to_x5_count_the_steps_of_the_policies`). So the same job on
//! the same machine is the same run, apart from times.
//!
//! **Method.** A process runs one job and ends.

mod create_drop_loop;
mod drop_under_load;
mod hash_index;
mod large_file;
mod many_tables;
mod pool_fill;
mod pool_size;
mod retention;
#[cfg(test)]
mod tests;

use std::{
    path::{Path, PathBuf},
    thread,
};

use serde::{Deserialize, Serialize};
use windfall::error::{Result, UsageError};
use windfall_measure::Latency;
pub use windfall_measure::Scale;

use crate::{
    results::{Results, X1Run, X2Run, X3Run, X4Run, X5Run, X6Run, X7Run, X8Run},
    server::{Dropped, Server, Start, classic::Classic, product::Product},
    system::PolicyName,
    watch::{self, Role},
};

/// An experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experiment {
    /// Stalls under load.
    X1,
    /// Drops by pool fill.
    X2,
    /// Many small tables.
    X3,
    /// The loop of creates and drops.
    X4,
    /// Drops by pool size.
    X5,
    /// Retention.
    X6,
    /// The drop of a fully hashed table.
    X7,
    /// The drop of a table with a large file.
    X8,
}

impl Experiment {
    /// All experiments.
    pub const ALL: [Self; 8] =
        [Self::X1, Self::X2, Self::X3, Self::X4, Self::X5, Self::X6, Self::X7, Self::X8];

    /// Returns the name.
    pub fn text(self) -> &'static str {
        match self {
            Self::X1 => "x1",
            Self::X2 => "x2",
            Self::X3 => "x3",
            Self::X4 => "x4",
            Self::X5 => "x5",
            Self::X6 => "x6",
            Self::X7 => "x7",
            Self::X8 => "x8",
        }
    }

    /// Returns the jobs of the experiment.
    pub fn jobs(self, setting: &Setting) -> Vec<Job> {
        match self {
            Self::X1 => drop_under_load::jobs(setting),
            Self::X2 => pool_fill::jobs(setting),
            Self::X3 => many_tables::jobs(setting),
            Self::X4 => create_drop_loop::jobs(setting),
            Self::X5 => pool_size::jobs(setting),
            Self::X6 => retention::jobs(setting),
            Self::X7 => hash_index::jobs(setting),
            Self::X8 => large_file::jobs(setting),
        }
    }
}

/// The settings that all jobs of a run depend on.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The scale of the experiments.
    pub scale: Scale,
    /// The seed of the random numbers.
    pub seed: u64,
    /// A folder in memory, if the system has one.
    pub tmpfs: Option<PathBuf>,
}

/// The run of one process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "experiment", rename_all = "kebab-case")]
pub enum Job {
    /// A job of X1.
    X1(drop_under_load::Job),
    /// A job of X2.
    X2(pool_fill::Job),
    /// A job of X3.
    X3(many_tables::Job),
    /// A job of X4.
    X4(create_drop_loop::Job),
    /// A job of X5.
    X5(pool_size::Job),
    /// A job of X6.
    X6(retention::Job),
    /// A job of X7.
    X7(hash_index::Job),
    /// A job of X8.
    X8(large_file::Job),
}

/// The answer of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "experiment", rename_all = "kebab-case")]
pub enum Outcome {
    /// An outcome of X1.
    X1(Box<X1Run>),
    /// An outcome of X2.
    X2(X2Run),
    /// An outcome of X3.
    X3(X3Run),
    /// An outcome of X4.
    X4(X4Run),
    /// An outcome of X5.
    X5(X5Run),
    /// An outcome of X6.
    X6(X6Run),
    /// An outcome of X7.
    X7(X7Run),
    /// An outcome of X8.
    X8(X8Run),
}

impl Job {
    /// Returns a short description.
    pub fn in_words(&self) -> String {
        match self {
            Self::X1(job) => job.in_words(),
            Self::X2(job) => job.in_words(),
            Self::X3(job) => job.in_words(),
            Self::X4(job) => job.in_words(),
            Self::X5(job) => job.in_words(),
            Self::X6(job) => job.in_words(),
            Self::X7(job) => job.in_words(),
            Self::X8(job) => job.in_words(),
        }
    }

    /// Returns the folder in memory for the files of the job, if the job needs one.
    pub fn tmpfs(&self) -> Option<&Path> {
        match self {
            Self::X3(job) => job.tmpfs.as_deref(),
            Self::X4(job) => job.tmpfs.as_deref(),
            _ => None,
        }
    }

    /// Runs the job in an empty folder.
    ///
    /// # Errors
    /// Errors of the server.
    pub fn run(&self, folder: &Path) -> Result<Outcome> {
        Ok(match self {
            Self::X1(job) => Outcome::X1(Box::new(job.run(folder)?)),
            Self::X2(job) => Outcome::X2(job.run(folder)?),
            Self::X3(job) => Outcome::X3(job.run(folder)?),
            Self::X4(job) => Outcome::X4(job.run(folder)?),
            Self::X5(job) => Outcome::X5(job.run(folder)?),
            Self::X6(job) => Outcome::X6(job.run(folder)?),
            Self::X7(job) => Outcome::X7(job.run(folder)?),
            Self::X8(job) => Outcome::X8(job.run(folder)?),
        })
    }
}

/// Adds outcomes to the results of a run, in their order.
pub fn gather(results: &mut Results, setting: &Setting, outcomes: Vec<Outcome>) {
    for outcome in outcomes {
        match outcome {
            Outcome::X1(run) => {
                results.x1.get_or_insert_with(|| drop_under_load::empty(setting)).runs.push(*run);
            }
            Outcome::X2(run) => results.x2.get_or_insert_with(|| pool_fill::empty(setting)).runs.push(run),
            Outcome::X3(run) => results.x3.get_or_insert_with(many_tables::empty).runs.push(run),
            Outcome::X4(run) => {
                results.x4.get_or_insert_with(|| create_drop_loop::empty(setting)).runs.push(run);
            }
            Outcome::X5(run) => results.x5.get_or_insert_with(pool_size::empty).runs.push(run),
            Outcome::X6(run) => results.x6.get_or_insert_with(|| retention::empty(setting)).runs.push(run),
            Outcome::X7(run) => results.x7.get_or_insert_with(hash_index::empty).runs.push(run),
            Outcome::X8(run) => results.x8.get_or_insert_with(|| large_file::empty(setting)).runs.push(run),
        }
    }
}

/// Work on a server of any type.
trait ServerWork {
    type Output;

    fn run_on<S: Server>(self, server: &S) -> Result<Self::Output>;
}

/// Starts the server of a system and runs the work on it.
fn start_and_run<T: ServerWork>(start: &Start<'_>, work: T) -> Result<T::Output> {
    if start.system.policy == PolicyName::Detach {
        work.run_on(&Product::start(start)?)
    } else {
        work.run_on(&Classic::start(start)?)
    }
}

/// Drops by several threads at once, each until `next` returns nothing. Returns the latency of the drops and the sum
/// of their work.
fn drop_by_threads(
    threads: u32,
    next: impl Fn() -> Result<Option<Dropped>> + Sync,
) -> Result<(Latency, Dropped)> {
    let work = || {
        watch::set_role(Role::Dropper);
        let (mut times, mut all) = (Latency::default(), Dropped::default());
        while let Some(dropped) = next()? {
            times.record(ns(dropped.took));
            all += dropped;
        }
        Ok((times, all))
    };
    let done: Vec<Result<_>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let panicked = |_| Err(UsageError::Other("a dropping thread has panicked".into()).into());
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    });
    let (mut times, mut all) = (Latency::default(), Dropped::default());
    for one in done {
        let (more, dropped) = one?;
        times.add(&more);
        all += dropped;
    }
    Ok((times, all))
}

/// Returns the pages of this many gigabytes, of 2^30 bytes each, as in the articles.
fn pages_of_gb(gb: f64) -> u64 {
    (gb * (1_u64 << 30) as f64 / crate::server::PAGE_SIZE as f64) as u64
}

fn ns(time: core::time::Duration) -> u64 {
    time.as_nanos() as u64
}
