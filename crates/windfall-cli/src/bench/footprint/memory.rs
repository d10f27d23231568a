//! The memory of the engine's bookkeeping.
//!
//! **Purpose.** The resident memory besides the pages of a full pool: descriptors, page tables, dirty sets, free lists,
//! and everything else that the engine keeps in memory, its buffers and its tables. Hash indexes have their own budget.
//!
//! **Method.** The pool is full when it is measured, half of it with one table and half with many, and its pages have
//! been dirty. One claim is about the engine's own sum for its pool. The other is about the resident memory of the
//! whole process as the system reports it, minus that before the database was opened and minus the frames: it misses
//! nothing. Buffers of fixed size, above all the log's of 16 MiB, count fully; with a smaller pool their share is
//! larger. The hash indexes are built afterwards.

use windfall_measure::{Random, resident_bytes, resident_of_mapping};

use super::super::{
    fixture::{self, MB},
    harness::{Bench, Bound},
};
use crate::{
    args::Commit,
    engine::Setup,
    failure::{Failure, Result},
};

/// Measures the memory besides the pages of a full pool.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let pool = bench.size(8192 * MB, 64 * MB);
    let setup = Setup { hash: Some(false), ..Setup::with_pool(pool).commit(Commit::Lazy).log(1024 * MB) };
    let before = resident_bytes();
    let db = setup.open(&bench.database("memory"))?;
    // The part that does not depend on the pool's size.
    let fixed = beside(pool, before)?;
    bench.say("filling the pool");
    let size = pool - pool / 16;
    let (table, rows) = fixture::big(&db, "big", size / 2)?;
    let tables = bench.size(1_000, 20);
    for n in 0..tables {
        fixture::big(&db, &format!("part_{n}"), size / 2 / tables)?;
    }
    let beside = beside(pool, before)?;
    let metrics = db.metrics();
    let used = (metrics.pool_frames - metrics.pool_free) * metrics.page_size;
    bench.fact("pool, bytes", pool);
    bench.fact("pages in the pool, bytes", used);
    bench.fact("resident in addition to the frames, bytes", beside);
    bench.fact("resident in addition to the frames when the pool was empty, bytes", fixed);
    bench.fact("bookkeeping of the pool, counted, bytes", metrics.pool_bookkeeping_bytes);
    let share = |bytes: u64| bytes as f64 / pool as f64;
    bench.claim("bookkeeping-over-pool", share(metrics.pool_bookkeeping_bytes), Bound::AtMost(0.01));
    bench.claim("resident-beside-frames-over-pool", share(beside), Bound::AtMost(0.01));

    bench.say("reading, so that the hash indexes are built");
    db.set_hash_index(true);
    let mut random = Random::new(bench.options.seed, 0);
    for _ in 0..bench.size(4_000_000, 20_000) {
        std::hint::black_box(table.get(&random.below(rows).to_be_bytes())?);
    }
    let metrics = db.metrics();
    bench.fact("hash indexes, bytes", metrics.hash_index_bytes);
    let hash = metrics.hash_index_bytes as f64 / metrics.hash_index_limit.max(1) as f64;
    bench.claim("hash-indexes-over-budget", hash, Bound::AtMost(1.0));
    fixture::close(db)
}

/// Returns the resident bytes besides the frames of a pool, minus those from before.
fn beside(pool: u64, before: u64) -> Result<u64> {
    let frames = resident_of_mapping(pool)
        .ok_or_else(|| Failure::message("the system does not say what is resident of the pool"))?;
    Ok(resident_bytes().saturating_sub(before).saturating_sub(frames))
}
