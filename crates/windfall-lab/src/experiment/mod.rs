//! The experiments: what is run on which system, one file each.
//!
//! **Purpose.** An experiment is a list of [`Job`]s by [`Scale`], each of which is played by a process of its own, and
//! [`gather`] puts what they answer together. The published ones are X1 to X5 (see each file for its source), X6 to X8
//! are our own. X9 is none of these: it is of Windfall alone, and the command measures it.
//!
//! **Invariants.** A job says all that its run depends on: the same job on the same machine is the same run, but for
//! time. A process plays one job and ends.
//!
//! **May touch.** `server`, `workload`, `results`, `system`, `watch`, `windfall-measure`, and of `windfall` the ids,
//! the log and the errors.

#[cfg(test)]
mod tests;
mod x1;
mod x2;
mod x3;
mod x4;
mod x5;
mod x6;
mod x7;
mod x8;

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
    /// Drops by how full the pool is.
    X2,
    /// Many small tables.
    X3,
    /// The loop.
    X4,
    /// Drops by how large the pool is.
    X5,
    /// Retention.
    X6,
    /// The storm of the hash index.
    X7,
    /// The file.
    X8,
}

impl Experiment {
    /// All of them.
    pub const ALL: [Self; 8] =
        [Self::X1, Self::X2, Self::X3, Self::X4, Self::X5, Self::X6, Self::X7, Self::X8];

    /// Its name.
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

    /// What is to be run for it.
    pub fn jobs(self, setting: &Setting) -> Vec<Job> {
        match self {
            Self::X1 => x1::jobs(setting),
            Self::X2 => x2::jobs(setting),
            Self::X3 => x3::jobs(setting),
            Self::X4 => x4::jobs(setting),
            Self::X5 => x5::jobs(setting),
            Self::X6 => x6::jobs(setting),
            Self::X7 => x7::jobs(setting),
            Self::X8 => x8::jobs(setting),
        }
    }
}

/// What all jobs of a run depend on.
#[derive(Clone, Debug)]
pub struct Setting {
    /// How large everything is.
    pub scale: Scale,
    /// Where the random numbers begin.
    pub seed: u64,
    /// A folder in memory, if there is one.
    pub tmpfs: Option<PathBuf>,
}

/// The run of one process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "experiment", rename_all = "kebab-case")]
pub enum Job {
    /// Of X1.
    X1(x1::Job),
    /// Of X2.
    X2(x2::Job),
    /// Of X3.
    X3(x3::Job),
    /// Of X4.
    X4(x4::Job),
    /// Of X5.
    X5(x5::Job),
    /// Of X6.
    X6(x6::Job),
    /// Of X7.
    X7(x7::Job),
    /// Of X8.
    X8(x8::Job),
}

/// What a process answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "experiment", rename_all = "kebab-case")]
pub enum Outcome {
    /// Of X1.
    X1(Box<X1Run>),
    /// Of X2.
    X2(X2Run),
    /// Of X3.
    X3(X3Run),
    /// Of X4.
    X4(X4Run),
    /// Of X5.
    X5(X5Run),
    /// Of X6.
    X6(X6Run),
    /// Of X7.
    X7(X7Run),
    /// Of X8.
    X8(X8Run),
}

impl Job {
    /// What it is, in a few words.
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

    /// The folder in memory that its files are to be in, if so.
    pub fn tmpfs(&self) -> Option<&Path> {
        match self {
            Self::X3(job) => job.tmpfs.as_deref(),
            Self::X4(job) => job.tmpfs.as_deref(),
            _ => None,
        }
    }

    /// Plays it, in an empty folder.
    ///
    /// # Errors
    /// Those of the server.
    pub fn play(&self, folder: &Path) -> Result<Outcome> {
        Ok(match self {
            Self::X1(job) => Outcome::X1(Box::new(job.play(folder)?)),
            Self::X2(job) => Outcome::X2(job.play(folder)?),
            Self::X3(job) => Outcome::X3(job.play(folder)?),
            Self::X4(job) => Outcome::X4(job.play(folder)?),
            Self::X5(job) => Outcome::X5(job.play(folder)?),
            Self::X6(job) => Outcome::X6(job.play(folder)?),
            Self::X7(job) => Outcome::X7(job.play(folder)?),
            Self::X8(job) => Outcome::X8(job.play(folder)?),
        })
    }
}

/// Puts outcomes into the results of a run, in the order in which they come.
pub fn gather(results: &mut Results, setting: &Setting, outcomes: Vec<Outcome>) {
    for outcome in outcomes {
        match outcome {
            Outcome::X1(run) => results.x1.get_or_insert_with(|| x1::empty(setting)).runs.push(*run),
            Outcome::X2(run) => results.x2.get_or_insert_with(|| x2::empty(setting)).runs.push(run),
            Outcome::X3(run) => results.x3.get_or_insert_with(x3::empty).runs.push(run),
            Outcome::X4(run) => results.x4.get_or_insert_with(|| x4::empty(setting)).runs.push(run),
            Outcome::X5(run) => results.x5.get_or_insert_with(x5::empty).runs.push(run),
            Outcome::X6(run) => results.x6.get_or_insert_with(|| x6::empty(setting)).runs.push(run),
            Outcome::X7(run) => results.x7.get_or_insert_with(x7::empty).runs.push(run),
            Outcome::X8(run) => results.x8.get_or_insert_with(|| x8::empty(setting)).runs.push(run),
        }
    }
}

/// What is done on a server, whichever it is.
trait Scene {
    type Shown;

    fn play<S: Server>(self, server: &S) -> Result<Self::Shown>;
}

/// Starts the server of a system and plays on it.
fn on<T: Scene>(start: &Start<'_>, scene: T) -> Result<T::Shown> {
    if start.system.policy == PolicyName::Detach {
        scene.play(&Product::start(start)?)
    } else {
        scene.play(&Classic::start(start)?)
    }
}

/// Drops by several threads at once, each until there is nothing `next`: how long each took, and what they did
/// together.
fn drop_by_threads(
    threads: u32,
    next: impl Fn() -> Result<Option<Dropped>> + Sync,
) -> Result<(Latency, Dropped)> {
    let work = || {
        watch::play(Role::Dropper);
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

/// Pages of so many gigabytes: of 2^30 bytes each, as the articles count.
fn pages_of_gb(gb: f64) -> u64 {
    (gb * (1_u64 << 30) as f64 / crate::server::PAGE_SIZE as f64) as u64
}

fn ns(time: core::time::Duration) -> u64 {
    time.as_nanos() as u64
}
