//! The demo: Windfall's main use case, on this machine.
//!
//! **Purpose.** Loads a table of realistic size, lets clients work on it, drops other tables meanwhile, and shows the
//! effect on the clients, compared with the same run without drops.
//!
//! **Method.** Both runs begin with the same database, the same pool and the same dirty pages; the one without drops
//! comes first. Every number that is shown was measured in this run.

pub(crate) mod clients;
mod folder;
pub(crate) mod phase;
mod progress;
pub(crate) mod summary;
mod victims;

use std::{
    fs,
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use windfall_measure::{Machine, units};

use crate::{
    args::{Commit, DemoArgs},
    engine::{self, Database, Setup, Table},
    failure::{Failure, Result},
    oltp, output, report,
};
use folder::Folder;
use phase::{Phase, Plan, Victim};
use progress::Progress;
use summary::Summary;

/// The size of the redo log of the demo: large enough that it never forces a checkpoint.
const LOG: u64 = 2 << 30;
/// The time at the end of a run in which no window opens.
const TAIL: Duration = Duration::from_millis(250);

/// For this many seconds of a run the pages of the big table, changed just before, are still dirty.
const STILL_DIRTY: f64 = 8.0;

/// Runs the demo.
pub(crate) fn run(options: &DemoArgs, json: bool) -> Result<ExitCode> {
    let folder = Folder::make(&options.out, options.keep)?;
    let machine = Machine::of(folder.path());
    let sizes = Sizes::choose(options, &machine)?;
    let progress = Progress::new();
    let setup = Setup::with_pool(sizes.pool).log(LOG).commit(Commit::Lazy);
    let db = setup.open(&folder.database())?;
    let page_size = db.metrics().page_size;
    let measured = measure(&db, options, &sizes, &progress);
    let closed = db.close();
    progress.finish();
    folder.end()?;
    let (baseline, drops, prepared) = measured?;
    closed?;

    let summary = Summary { options: options.clone(), sizes, page_size, machine, prepared, baseline, drops };
    let value = summary.json();
    let page = options.out.join("report.html");
    let written = |path: &std::path::Path, text: String| {
        fs::write(path, text)
            .map_err(|e| Failure::message(format!("{} cannot be written: {e}", path.display())))
    };
    written(&page, report::page(&summary))?;
    written(&options.out.join("report.json"), serde_json::to_string_pretty(&value)? + "\n")?;
    if json {
        output::print_json(&value)?;
    } else {
        output::print(&format!("{}\nThe graphs are in {}\n", summary.text(), page.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The sizes of a demo.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct Sizes {
    /// The buffer pool in bytes.
    pub pool: u64,
    /// The big table in bytes of rows.
    pub big: u64,
    /// Number of rows of the big table.
    pub big_rows: u64,
    /// The length of each of the two runs in seconds.
    pub run_seconds: f64,
    /// Times at which windows open, in seconds of a run.
    pub marks: Vec<f64>,
    /// The index of the big table's window.
    pub big_at: usize,
}

impl Sizes {
    fn choose(options: &DemoArgs, machine: &Machine) -> Result<Self> {
        let pool = options.pool.unwrap_or_else(|| (3 << 30).min(machine.memory / 2).max(64 << 20));
        let big = options.big_table.unwrap_or_else(|| (1 << 30).min(pool / 3));
        if big > pool / 2 {
            return Err(Failure::message(format!(
                "a big table of {} is not fully cached in a pool of {}: give a --big-table of at most half the --pool",
                units::bytes(big as f64),
                units::bytes(pool as f64)
            )));
        }
        if !(0.2..=3600.0).contains(&options.drop_every) {
            return Err(Failure::message("--drop-every: give from 0.2 to 3600 seconds"));
        }
        let run_seconds = options.seconds as f64 / 2.0;
        let last = run_seconds - TAIL.as_secs_f64();
        let marks: Vec<f64> =
            (1..=u32::MAX).map(|n| f64::from(n) * options.drop_every).take_while(|&at| at < last).collect();
        if marks.is_empty() {
            return Err(Failure::message(format!(
                "in runs of {run_seconds} s there is no drop every {} s: give more --seconds or a smaller --drop-every",
                options.drop_every
            )));
        }
        // The page cleaner writes pages that have been dirty for more than some 15 seconds.
        let soon = marks.iter().filter(|&&at| at <= STILL_DIRTY).count().saturating_sub(1);
        let big_at = soon.min(marks.len() / 2);
        Ok(Self { pool, big, big_rows: (big / victims::BIG_ROW).max(1), run_seconds, marks, big_at })
    }
}

/// The durations of the preparations.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct Prepared {
    /// Seconds for loading both tables.
    pub load_seconds: f64,
    /// Seconds for creating the small tables.
    pub small_seconds: f64,
}

/// Prepares the tables, and measures without drops and with drops.
fn measure(
    db: &Database,
    options: &DemoArgs,
    sizes: &Sizes,
    progress: &Progress,
) -> Result<(Phase, Phase, Prepared)> {
    let start = Instant::now();
    let (table, big) = load(db, options, sizes, progress)?;
    let load_seconds = start.elapsed().as_secs_f64();

    let start = Instant::now();
    let victims: Vec<Victim> = (0..sizes.marks.len())
        .map(|n| {
            let big = n == sizes.big_at;
            Victim { name: if big { victims::BIG.into() } else { victims::small_name(n) }, big }
        })
        .collect();
    progress.phase("making the tables to drop", victims.len() as u64);
    for (n, victim) in victims.iter().enumerate() {
        if !victim.big {
            victims::make_small(db, n, options.small_rows, options.seed)?;
        }
        progress.at(n as u64 + 1);
    }
    let small_seconds = start.elapsed().as_secs_f64();

    let marks: Vec<Duration> = sizes.marks.iter().map(|&s| Duration::from_secs_f64(s)).collect();
    let length = Duration::from_secs_f64(sizes.run_seconds);
    let page_size = db.metrics().page_size;
    let one = |name: &str, victims: &[Victim], seed: u64| {
        progress.phase(&format!("{name}: getting ready"), 0);
        engine::set_commit(db, Commit::Lazy);
        victims::dirty_big(&big, sizes.big_rows, page_size)?;
        engine::set_commit(db, options.flush_log_at_trx_commit);
        let plan = Plan {
            db,
            table: &table,
            rows: options.rows,
            threads: options.threads,
            length: (length / 10).min(Duration::from_secs(2)),
            seed: seed ^ 0x5eed,
            marks: &[],
            victims: &[],
        };
        phase::run(&plan, &|_| {})?;
        progress.phase(name, length.as_millis() as u64);
        phase::run(&Plan { length, seed, marks: &marks, victims, ..plan }, &|now| {
            progress.at(now.as_millis() as u64);
        })
    };
    let baseline = one("without drops", &[], options.seed)?;
    let drops = one("with drops", &victims, options.seed)?;
    Ok((baseline, drops, Prepared { load_seconds, small_seconds }))
}

/// Loads the clients' table and the big one, each with its own thread.
fn load(db: &Database, options: &DemoArgs, sizes: &Sizes, progress: &Progress) -> Result<(Table, Table)> {
    let rows = u64::from(options.rows) + sizes.big_rows;
    progress.phase("loading", rows);
    let done = AtomicU64::new(0);
    thread::scope(|scope| {
        let big = scope.spawn(|| victims::load_big(db, sizes.big_rows, options.seed, &done));
        let table = scope.spawn(|| oltp::load(db, options.rows, options.seed, &done));
        while !(big.is_finished() && table.is_finished()) {
            progress.at(done.load(Relaxed));
            thread::sleep(Duration::from_millis(50));
        }
        let panicked = |_| Failure::message("a loading thread panicked");
        let table = table.join().map_err(panicked).flatten()?;
        let big = big.join().map_err(panicked).flatten()?;
        Ok((table, big))
    })
}
