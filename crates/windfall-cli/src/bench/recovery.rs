//! `bench recovery`: the time from a kill until the database is open again.
//!
//! **Purpose.** A process under full write load is killed; the database is opened again, and all acknowledged rows are
//! there.
//!
//! **Invariants.** Rows acknowledged before the kill must be found after it (test: `recovery`).
//!
//! **Method.** The child writes to its output the number of acknowledged inserts of each thread.

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Write as _},
    process::{Command, Stdio},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use windfall_measure::{KillOnDrop, Random};

use super::{
    fixture::{self, MB},
    harness::{Bench, Bound},
};
use crate::{
    args::{BenchArgs, Commit},
    engine::{self, Setup},
    failure::{Failure, Result},
};

/// The durability of the child's commits.
const SYNCED: &str = "synced";
const WRITTEN: &str = "written";
/// Number of threads that write.
const WRITERS: usize = 8;
/// Number of rows that are updated, in addition to the inserts.
const ROWS: u64 = 200_000;

fn setup(quick: bool) -> Setup {
    Setup::with_pool(if quick { 64 * MB } else { 8192 * MB })
}

/// Runs the benchmark with a sync per commit, and with only a write per commit: that load is much higher, and written
/// commits survive a kill, too.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    for name in [SYNCED, WRITTEN] {
        kill_and_open(bench, name)?;
    }
    Ok(())
}

fn kill_and_open(bench: &mut Bench, name: &str) -> Result<()> {
    let path = bench.database(name);
    let time = bench.seconds(60.0, 1.5);
    bench.say(&format!(
        "a process writes for {} s, each commit {name}, then it is killed",
        time.as_secs_f64()
    ));
    let mut command = Command::new(env::current_exe()?);
    command.args(["bench", "recovery", "--child", name, "--dir"]).arg(&path);
    if bench.options.quick {
        command.arg("--quick");
    }
    let mut child = KillOnDrop(command.stdout(Stdio::piped()).spawn()?);
    let said = child.0.stdout.take().ok_or_else(|| Failure::message("the child has no output"))?;
    let reader = thread::spawn(move || {
        let lines = BufReader::new(said).lines().map_while(std::io::Result::ok);
        lines.fold(vec![0; WRITERS], |last: Vec<u64>, line| {
            let counts: Vec<u64> = line.split(' ').filter_map(|n| n.parse().ok()).collect();
            if counts.len() == WRITERS { counts } else { last }
        })
    });
    thread::sleep(time);
    if let Some(status) = child.0.try_wait()? {
        return Err(Failure::message(format!("the writing process ended by itself: {status}")));
    }
    drop(child);
    let acknowledged = reader.join().map_err(|_| Failure::message("the reading thread panicked"))?;

    bench.say("opening");
    let start = Instant::now();
    let db = setup(bench.options.quick).open(&path)?;
    let table = db.table("rows")?;
    table.put(&u64::MAX.to_be_bytes(), b"open for work")?;
    let seconds = start.elapsed().as_secs_f64();
    let mut lost = 0_u64;
    for (thread, &count) in acknowledged.iter().enumerate() {
        let there = |n: u64| table.get(&inserted(thread, n)).map(|row| row.is_some());
        for n in count.saturating_sub(10_000)..count {
            lost += u64::from(!there(n)?);
        }
    }
    bench.fact(format!("{name}: inserts acknowledged before the kill"), acknowledged.iter().sum::<u64>());
    bench.claim(format!("{name}-acknowledged-rows-lost"), lost as f64, Bound::AtMost(0.0));
    bench.claim(format!("{name}-seconds-until-open"), seconds, Bound::AtMost(30.0));
    fixture::close(db)?;
    Ok(fs::remove_dir_all(&path)?)
}

/// Returns the key of the `n`th row that a thread inserts.
fn inserted(thread: usize, n: u64) -> [u8; 8] {
    (((thread as u64 + 1) << 40) + n).to_be_bytes()
}

/// Runs the process that is killed: every thread inserts and updates as fast as it can.
pub(super) fn child(part: &str, options: &BenchArgs) -> Result<()> {
    let dir = options.dir.as_deref().ok_or_else(|| Failure::message("a child needs --dir"))?;
    let db = setup(options.quick).commit(Commit::Lazy).open(dir)?;
    let rows = if options.quick { ROWS / 100 } else { ROWS };
    let table = fixture::small(&db, "rows", rows)?;
    db.checkpoint()?;
    engine::set_commit(&db, if part == SYNCED { Commit::Sync } else { Commit::Write });
    let done: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    let done = &done;
    thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                let counts: Vec<String> = done.iter().map(|n| n.load(Relaxed).to_string()).collect();
                let mut out = std::io::stdout();
                // The write fails if the parent has ended; this process then ends as well.
                if writeln!(out, "{}", counts.join(" ")).and_then(|()| out.flush()).is_err() {
                    std::process::exit(1);
                }
                thread::sleep(Duration::from_millis(20));
            }
        });
        fixture::threads(WRITERS, |thread| -> Result<()> {
            let mut random = Random::new(options.seed, thread as u64);
            let mut n = 0;
            loop {
                table.insert(&inserted(thread, n), &fixture::SMALL)?;
                n += 1;
                done[thread].store(n, Relaxed);
                for _ in 0..3 {
                    table.update(&random.below(rows).to_be_bytes(), &[random.bits() as u8; 100])?;
                }
            }
        })
        .map(|_: Vec<()>| ())
    })
}
