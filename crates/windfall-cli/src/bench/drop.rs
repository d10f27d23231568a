//! `bench drop`: the work of a drop.
//!
//! **Purpose.** The counted work of a drop, its system calls and its instructions, with different contents of the pool;
//! then the other parts: `drop_latency`, `drop_factors`.
//!
//! **Invariants.** The engine itself counts its work, `strace` counts system calls, and single-stepping counts
//! instructions; the latter two trace a child process that marks the start and the end of each drop (test:
//! `calls_are_taken_from_the_thread_that_marks`).

use std::{
    env,
    ffi::OsString,
    fs,
    path::Path,
    process::{Command, Stdio},
};

use windfall_measure::{
    median,
    stepped::{self, Count},
};

use super::{
    drop_factors, drop_latency,
    fixture::{self, GB, MB},
    harness::{Bench, Bound},
};
use crate::{
    args::{BenchArgs, Commit},
    engine::{self, DropWork, Setup},
    factors::{self, FactorKind},
    failure::{Failure, Result},
};

/// Rows of a small table.
const SMALL: u64 = 1_000;
/// Number of drops that a child executes.
const DROPS: [u32; 2] = [40, 5];
/// Names of missing files that a child looks up, so that its system calls mark the start and the end of a drop.
const BEGIN: &str = "windfall-drop-begins";
const END: &str = "windfall-drop-ends";

/// Runs the benchmark.
pub(super) fn run(bench: &mut Bench) {
    bench.part("counted-work", counted);
    bench.part("system-calls-but-log", system_calls);
    bench.part("instructions-flat", instructions);
    drop_latency::run(bench);
    bench.part_in_pieces(FactorKind::PART, &FactorKind::ALL.map(FactorKind::id), drop_factors::run);
}

/// Counts the work with the pool empty, partly full and full; of small tables and of the one that fills it; dirty and
/// clean; with the hash index and without.
fn counted(bench: &mut Bench) -> Result<()> {
    let fills = bench.size([0, GB, 8 * GB], [0, 4 * MB, 16 * MB]);
    let (mut most, mut height) = (DropWork::default(), 0);
    for hash in [false, true] {
        let path = bench.database(&format!("counted-{hash}"));
        let pool = fills[2] + fills[2] / 4 + 64 * MB;
        let db = Setup {
            hash: Some(hash),
            ..Setup::with_pool(pool).commit(Commit::Write).log(4 * fills[1].max(64 * MB))
        }
        .open(&path)?;
        let ballast = fixture::table(&db, "ballast")?;
        let mut filled = 0;
        for fill in fills {
            bench.say(&format!("counting, {} MB in the pool, {} hash index", fill / MB, fixture::with(hash)));
            fixture::rows(&ballast, filled / fixture::ROW, fill / fixture::ROW)?;
            filled = fill;
            for clean in [false, true] {
                for n in 0..10 {
                    let name = format!("small_{n}");
                    fixture::used(&db, &name, SMALL)?;
                    if clean {
                        db.checkpoint()?;
                    }
                    most.raise_to(&engine::drop_counted(&db, &[&name])?);
                }
                // The largest table is dropped itself: dirty without hash indexes, and clean with them.
                if fill == fills[2] && clean == hash {
                    let pool = db.metrics();
                    most.raise_to(&engine::drop_counted(&db, &["ballast"])?);
                    let hashed = format!("{} hash index", fixture::with(hash));
                    bench.fact(
                        format!("clean pages in the pool at the largest drop, {hashed}"),
                        pool.pool_clean,
                    );
                    bench.fact(
                        format!("dirty pages in the pool at the largest drop, {hashed}"),
                        pool.pool_dirty,
                    );
                    break;
                }
            }
        }
        height = height.max(db.metrics().system_tree_height);
        fixture::close(db)?;
        fs::remove_dir_all(&path)?;
    }
    bench.fact("counted-drops", most.drops);
    for (name, count) in most.fields() {
        bench.fact(format!("most of one drop: {name}"), count);
    }
    bench.claim("frames-outside-system-tree", most.frames as f64, Bound::AtMost(0.0));
    bench.claim("latches-outside-system-tree", most.latches as f64, Bound::AtMost(0.0));
    bench.claim("list-entries", most.list_entries as f64, Bound::AtMost(0.0));
    bench.claim("system-tree-pages", most.system_tree_frames as f64, Bound::AtMost((height + 2) as f64));
    bench.claim("file-system-calls-but-log", most.calls_except_log() as f64, Bound::AtMost(0.0));
    Ok(())
}

/// Runs a child process: `calls`, `instructions:BYTES OF THE POOL`, or a part of a factor.
pub(super) fn child(part: &str, options: &BenchArgs) -> Result<()> {
    let dir = options.dir.as_deref().ok_or_else(|| Failure::message("a child needs --dir"))?;
    if factors::is_part(part) {
        return factors::child(part, dir, options.seed, options.plant_cost);
    }
    let pool = part.strip_prefix("instructions:").and_then(|n| n.parse().ok());
    let drops = DROPS[usize::from(options.quick)];
    let db = Setup::with_pool(pool.unwrap_or(64 * MB)).commit(Commit::Write).open(dir)?;
    for n in 0..drops {
        fixture::used(&db, &format!("small_{n}"), 10)?;
    }
    if pool.is_some() {
        // An empty pair of marks measures the cost of the marks themselves.
        stepped::mark(Count::Instructions);
        stepped::mark(Count::Instructions);
    }
    for n in 0..drops {
        let name = format!("small_{n}");
        if pool.is_some() {
            stepped::mark(Count::Instructions);
            let dropped = db.drop_table(&name);
            stepped::mark(Count::Instructions);
            dropped?;
        } else {
            // A lookup of a missing file is a distinctive system call.
            let _ = fs::symlink_metadata(BEGIN);
            let dropped = db.drop_table(&name);
            let _ = fs::symlink_metadata(END);
            dropped?;
        }
    }
    fixture::close(db)
}

/// Returns the arguments of a child that executes a part.
fn child_arguments(bench: &Bench, part: &str, dir: &Path) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = ["bench", "drop", "--child", part, "--dir"].map(Into::into).into();
    arguments.push(dir.into());
    if bench.options.quick {
        arguments.push("--quick".into());
    }
    arguments
}

/// Returns an error unless every drop of a child was seen.
fn all_seen(how: &str, bench: &Bench, seen: usize) -> Result<()> {
    let drops = DROPS[usize::from(bench.options.quick)];
    if seen == drops as usize {
        return Ok(());
    }
    Err(Failure::message(format!("{how} has seen {seen} drops instead of {drops}")))
}

/// Counts the system calls of drops by `strace`.
fn system_calls(bench: &mut Bench) -> Result<()> {
    bench.say("system calls of a drop, by strace");
    let (trace, dir) = (bench.database("strace.txt"), bench.database("strace"));
    let output = trace.display().to_string();
    let mut command = Command::new("strace");
    command
        .args(["-f", "-qq", "-o", &output])
        .arg(env::current_exe()?)
        .args(child_arguments(bench, "calls", &dir));
    let done = match command.stdout(Stdio::null()).stderr(Stdio::piped()).output() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            bench.missing("system-calls-but-log", "strace is not installed: apt-get install strace");
            return Ok(());
        }
        done => done?,
    };
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        let last = said.lines().last().unwrap_or_default();
        return Err(Failure::message(format!("the benchmark failed under strace ({}): {last}", done.status)));
    }
    let calls = calls_between(&fs::read_to_string(&trace)?);
    all_seen("strace", bench, calls.len())?;
    let most = calls.iter().map(|c| c.iter().filter(|c| !is_log_write(c)).count()).max().unwrap_or(0);
    let mut kinds: Vec<&str> = calls.iter().flatten().map(|c| c.split('(').next().unwrap_or(c)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    bench.fact("system calls within drops, by strace", kinds.join(", "));
    bench.claim("system-calls-but-log", most as f64, Bound::AtMost(0.0));
    Ok(())
}

/// Returns whether a system call writes or syncs an open file; a drop has no open file except the log.
fn is_log_write(call: &str) -> bool {
    ["write(", "pwrite64(", "writev(", "pwritev(", "pwritev2(", "fdatasync("]
        .iter()
        .any(|c| call.starts_with(c))
}

/// Returns the system calls of the marking thread between its marks.
fn calls_between(trace: &str) -> Vec<Vec<String>> {
    let mut drops: Vec<Vec<String>> = Vec::new();
    let mut inside: Option<&str> = None;
    for line in trace.lines() {
        let Some((thread, call)) = line.split_once(' ') else { continue };
        let call = call.trim_start();
        if call.contains(BEGIN) {
            inside = Some(thread);
            drops.push(Vec::new());
        } else if call.contains(END) {
            inside = None;
        } else if inside == Some(thread) && !call.starts_with("<...") {
            drops.last_mut().expect("pushed when the drop began").push(call.to_owned());
        }
    }
    drops
}

/// Counts the instructions of a drop with pools of very different sizes, whose memory is reserved and not touched.
fn instructions(bench: &mut Bench) -> Result<()> {
    let pools = bench.size(&[64 * MB, 8 * GB, 450 * GB][..], &[16 * MB, 64 * MB]);
    let mut counts = Vec::new();
    for &pool in pools {
        bench.say(&format!("instructions of a drop, step by step, pool of {} MB", pool / MB));
        let dir = bench.database("stepped");
        let mut command = Command::new(env::current_exe()?);
        command.args(child_arguments(bench, &format!("instructions:{pool}"), &dir));
        let drops: Vec<f64> =
            stepped::run(&mut command)?.instructions.into_iter().map(|n| n as f64).collect();
        all_seen("stepping", bench, drops.len())?;
        // The median, because a drop takes another path when a background worker holds something that it needs.
        let middle = median(&drops);
        bench.fact(format!("instructions of a drop, pool of {} MB reserved, median", pool / MB), middle);
        counts.push(middle);
        fs::remove_dir_all(&dir)?;
    }
    let (least, most) =
        (counts.iter().copied().fold(f64::MAX, f64::min), counts.iter().copied().fold(0.0, f64::max));
    bench.claim("instructions-flat", most / least, Bound::AtMost(1.05));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_taken_from_the_thread_that_marks() {
        let trace = format!(
            "7 statx(\"{BEGIN}\") = -1\n8 read(3) = 1\n7 pwrite64(4, ..) = 9\n7 <... futex resumed>\n7 openat(..) = 5\n\
             7 statx(\"{END}\") = -1\n7 close(5) = 0\n"
        );
        assert_eq!(calls_between(&trace), [["pwrite64(4, ..) = 9", "openat(..) = 5"]]);
        assert!(is_log_write("pwrite64(4, ..) = 9") && !is_log_write("openat(..) = 5"));
    }
}
