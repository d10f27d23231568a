//! `bench memory-back`: the reuse of the memory of a dropped table.
//!
//! **Purpose.** With a dropped table in a full pool, loading another table evicts no live page, and a miss that gets a
//! dropped frame takes no longer than one that gets a frame of the free list.
//!
//! **Method.** Both loads read one row of each page of a large table from disk.

use std::time::Instant;

use windfall_measure::Latency;

use super::{
    fixture::{self, MB},
    harness::{Bench, Bound},
};
use crate::{
    args::Commit,
    engine::{Setup, Table},
    failure::Result,
};

/// Runs the benchmark.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let size = bench.size(4096 * MB, 16 * MB);
    let path = bench.database("memory-back");
    bench.say("making three tables");
    let db = Setup::with_pool(size).commit(Commit::Lazy).log(1024 * MB).open(&path)?;
    // A little more is dropped than is loaded: the inner pages and maps of the other tables need frames, too.
    let dropped = fixture::big(&db, "first", size + size / 16)?.1;
    let mut rows = 0;
    for name in ["second", "live"] {
        rows = fixture::big(&db, name, size)?.1;
    }
    db.checkpoint()?;
    fixture::close(db)?;

    // The pool holds two tables; the third one must get its frames elsewhere.
    let db = Setup::with_pool(2 * size + size / 8).commit(Commit::Write).open(&path)?;
    let per_page = db.metrics().page_size / fixture::ROW;
    bench.say("reading into free frames");
    let from_free = read(&db.table("first")?, dropped, per_page)?;
    bench.say("filling the pool");
    read(&db.table("live")?, rows, per_page)?;
    let filler = fixture::table(&db, "filler")?;
    // The pool is full when the first page is evicted.
    let evictions = db.metrics().pool_evictions;
    let mut id = 0;
    while db.metrics().pool_evictions == evictions && id < rows {
        fixture::rows(&filler, id, id + 100)?;
        id += 100;
    }
    db.checkpoint()?;
    bench.say("reading the first table again, so that all of it is in the pool");
    read(&db.table("first")?, dropped, per_page)?;
    let before = db.metrics();
    bench.fact("free frames before the drop, share", before.pool_free as f64 / before.pool_frames as f64);
    db.drop_table("first")?;
    bench.say("reading into dropped frames");
    let from_dropped = read(&db.table("second")?, rows, per_page)?;
    let after = db.metrics();
    for (name, times) in [("free list", &from_free), ("dropped frames", &from_dropped)] {
        bench.fact(format!("{name}: reads"), times.count());
        bench.fact(format!("{name}: p50 µs"), times.percentile(50.0) as f64 / 1e3);
        bench.fact(format!("{name}: p99.9 µs"), times.percentile(99.9) as f64 / 1e3);
    }
    bench.fact("frames taken from the dropped table", after.pool_reclaimed - before.pool_reclaimed);
    bench.fact("waits for a frame", after.pool_frame_waits - before.pool_frame_waits);
    bench.claim(
        "live-pages-evicted",
        (after.pool_evictions - before.pool_evictions) as f64,
        Bound::AtMost(0.0),
    );
    let ratio = from_dropped.percentile(99.9) as f64 / from_free.percentile(99.9) as f64;
    bench.claim("miss-p99.9-over-free-list", ratio, Bound::AtMost(1.2));
    fixture::close(db)
}

/// Reads a row of every page.
fn read(table: &Table, rows: u64, per_page: u64) -> Result<Latency> {
    let mut times = Latency::default();
    for id in (0..rows).step_by(per_page.max(1) as usize) {
        let start = Instant::now();
        std::hint::black_box(table.get(&id.to_be_bytes())?);
        times.record(start.elapsed().as_nanos() as u64);
    }
    Ok(times)
}
