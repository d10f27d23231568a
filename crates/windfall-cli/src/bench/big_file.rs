//! `bench big-file`: the effect of the deletion of a big file on other clients.
//!
//! **Purpose.** Big tables that no cache can hold are dropped while clients commit durably on the same file system. The
//! clients' performance until the last block is free is compared with that without a deletion.
//!
//! **Method.** The tables grow by alternating inserts, so that their files are interleaved on disk. The longest gap
//! (time without a finished commit) is compared with that of an equal time after the deletion. The speed of a deletion
//! without load is compared with the fastest one under load. The speed with little free space is not measured here,
//! because a file system would have to be filled; a test in `tablespace/deletion.rs` covers it:
//! `a_quiet_log_and_a_full_disk_mean_haste`.

use std::{
    fs,
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use windfall_measure::{Random, Timeline};

use super::{
    fixture::{self, MB},
    harness::{Bench, Bound},
};
use crate::{
    args::Commit,
    engine::{self, Database, Setup, Table},
    failure::{Failure, Result},
};

/// Number of clients that commit; one more reads.
const WRITERS: usize = 8;
/// Number of rows that are read.
const READ: u64 = 100_000;
/// The next row that a client inserts, across all runs, so that it is always a new one.
static NEXT: AtomicU64 = AtomicU64::new(READ);
/// The timeout for a deletion, after which the benchmark fails.
const TIMEOUT: Duration = Duration::from_hours(1);

/// Runs the benchmark.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let sizes = bench.size([4096 * MB, 8192 * MB, 4096 * MB], [8 * MB, 16 * MB, 8 * MB]);
    let path = bench.database("big-file");
    // A pool that holds the clients' table and little of the big ones.
    let setup = Setup::with_pool(bench.size(512 * MB, 32 * MB)).log(512 * MB);
    grow(bench, &setup, &path, &sizes)?;
    extents(bench, &path)?;

    let db = setup.clone().commit(Commit::Lazy).open(&path)?;
    let table = fixture::small(&db, "clients", READ)?;
    engine::set_commit(&db, Commit::Sync);
    let mut loaded = 0.0_f64;
    for (n, (size, open)) in sizes.iter().zip([true, false]).enumerate() {
        let name = format!("big_{n}");
        if open {
            std::hint::black_box(db.table(&name)?.get(&0_u64.to_be_bytes())?);
        }
        let handle = if open { "open" } else { "closed" };
        bench.say(&format!("dropping {} MB under load, file handle {handle}", size / MB));
        let measured = under_load(&db, &table, &name, bench.seconds(10.0, 0.5))?;
        let id = format!("{}-mb-{handle}", size / MB);
        let seconds = measured.deletion.as_secs_f64();
        bench.fact(format!("{id}: commits per second before"), measured.commits[0]);
        bench.fact(format!("{id}: commits per second during the deletion"), measured.commits[1]);
        bench.fact(format!("{id}: longest gap during, ms"), measured.gap[1] / 1e6);
        bench.fact(format!("{id}: longest gap in an equal time after, ms"), measured.gap[2] / 1e6);
        bench.fact(format!("{id}: the drop itself, ms"), measured.drop_call.as_secs_f64() * 1e3);
        bench.fact(format!("{id}: deletion, s"), seconds);
        // In a short run on a busy disk no commit may have ended before.
        let before = measured.commits[0].max(1.0);
        bench.claim(format!("{id}-commits"), measured.commits[1] / before, Bound::AtLeast(0.9));
        bench.claim(format!("{id}-reads"), measured.reads[1] / measured.reads[0], Bound::AtLeast(0.9));
        bench.claim(format!("{id}-gap"), measured.gap[1] / measured.gap[2].max(1.0), Bound::AtMost(2.0));
        let rate = *size as f64 / 1e6 / seconds;
        bench.claim(format!("{id}-megabytes-per-second"), rate, Bound::AtLeast(32.0));
        loaded = loaded.max(rate);
    }
    bench.say("dropping without other clients");
    let (start, deleted) = (Instant::now(), db.metrics().files_deleted);
    db.drop_table("big_2")?;
    wait_deleted(&db, deleted)?;
    let idle = sizes[2] as f64 / 1e6 / start.elapsed().as_secs_f64();
    bench.claim("idle-megabytes-per-second", idle, Bound::AtLeast(32.0));
    bench.claim("idle-over-loaded", idle / loaded, Bound::AtLeast(1.0));
    fixture::close(db)
}

/// Creates the big tables, a piece of each in turn, and writes them to disk.
fn grow(bench: &Bench, setup: &Setup, path: &Path, sizes: &[u64]) -> Result<()> {
    let db = setup.clone().commit(Commit::Lazy).open(path)?;
    let tables: Vec<Table> =
        (0..sizes.len()).map(|n| fixture::table(&db, &format!("big_{n}"))).collect::<Result<_>>()?;
    let pieces = bench.size(64, 4);
    for piece in 0..pieces {
        bench.say(&format!("growing the big tables, {} of {pieces}", piece + 1));
        for (table, size) in tables.iter().zip(sizes) {
            let rows = size / fixture::ROW;
            fixture::rows(table, rows * piece / pieces, rows * (piece + 1) / pieces)?;
        }
    }
    db.checkpoint()?;
    drop(tables);
    fixture::close(db)
}

/// Records the number of extents of the largest file, if the system can report it.
fn extents(bench: &mut Bench, path: &Path) -> Result<()> {
    let mut largest = None;
    let mut folders = vec![path.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let about = entry.metadata()?;
            if about.is_dir() {
                folders.push(entry.path());
            } else {
                largest = largest.max(Some((about.len(), entry.path())));
            }
        }
    }
    let Some((length, file)) = largest else { return Ok(()) };
    bench.fact("largest file, MB", length / MB);
    let said = Command::new("filefrag").arg(file).output().ok().filter(|o| o.status.success());
    // The output ends with ": 7 extents found".
    let count = said.and_then(|o| {
        let text = String::from_utf8_lossy(&o.stdout).into_owned();
        text.rsplit(": ").next()?.split(' ').next()?.parse::<u64>().ok()
    });
    let unknown = || "unknown: filefrag (e2fsprogs) is not installed, or failed".into();
    bench.fact("largest file, extents", count.map_or_else(unknown, Value::from));
    Ok(())
}

/// Waits until the file of a dropped table is deleted: until more than `before` files have been deleted.
fn wait_deleted(db: &Database, before: u64) -> Result<()> {
    let start = Instant::now();
    while db.metrics().files_deleted <= before {
        if start.elapsed() > TIMEOUT {
            return Err(Failure::message("the files of the dropped table are not deleted after an hour"));
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Measurements before the drop, from then until the last block was free, and in an equal time afterwards.
struct Measured {
    commits: [f64; 3],
    reads: [f64; 3],
    gap: [f64; 3],
    drop_call: Duration,
    deletion: Duration,
}

fn under_load(db: &Database, table: &Table, victim: &str, before: Duration) -> Result<Measured> {
    let stop = AtomicBool::new(false);
    let start = Instant::now();
    // A time line of an hour would take much memory, so it ends at this length.
    let most = before * 2 + Duration::from_mins(10);
    thread::scope(|scope| {
        let clients = scope.spawn(|| {
            fixture::threads(WRITERS + 1, |n| {
                let result = client(table, n, &start, most, &stop);
                if result.is_err() {
                    stop.store(true, Relaxed);
                }
                result
            })
        });
        thread::sleep(before);
        let timed = || -> Result<_> {
            let deleted = db.metrics().files_deleted;
            let from = start.elapsed();
            db.drop_table(victim)?;
            let call = start.elapsed() - from;
            wait_deleted(db, deleted)?;
            Ok((from, call, start.elapsed()))
        };
        let times = timed();
        if let Ok((from, _, to)) = times {
            thread::sleep((to - from).max(Duration::from_millis(50)));
        }
        stop.store(true, Relaxed);
        let end = start.elapsed();
        let lines = clients.join().map_err(|_| Failure::message("a client panicked"))??;
        let (from, drop_call, to) = times?;
        let mut writes = Timeline::new(most);
        lines[..WRITERS].iter().for_each(|l| writes.add(l));
        let ns = |d: Duration| d.as_nanos() as u64;
        let spans = [(0, ns(from)), (ns(from), ns(to)), (ns(to), ns(end))];
        let rate =
            |line: &Timeline, (a, b): (u64, u64)| line.count_within(a, b) as f64 / ((b - a) as f64 / 1e9);
        Ok(Measured {
            commits: spans.map(|s| rate(&writes, s)),
            reads: spans.map(|s| rate(&lines[WRITERS], s)),
            gap: spans.map(|(a, b)| writes.longest_gap_within(a, b).length_ns as f64),
            drop_call,
            deletion: to - from,
        })
    })
}

/// Runs a client that inserts with a durable commit each; the last client reads.
fn client(table: &Table, n: usize, start: &Instant, most: Duration, stop: &AtomicBool) -> Result<Timeline> {
    let mut line = Timeline::new(most);
    let mut random = Random::new(n as u64, 0);
    while !stop.load(Relaxed) {
        if n < WRITERS {
            table.put(&NEXT.fetch_add(1, Relaxed).to_be_bytes(), &fixture::SMALL)?;
        } else {
            std::hint::black_box(table.get(&random.below(READ).to_be_bytes())?);
        }
        line.finished(start.elapsed().as_nanos() as u64);
    }
    Ok(line)
}
