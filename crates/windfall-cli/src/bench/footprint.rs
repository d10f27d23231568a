//! `bench footprint`: the memory that the bookkeeping takes.
//!
//! **Purpose.** Descriptors, page tables, dirty sets and hash indexes beside the pool that they describe.
//!
//! **Invariants.** The pool is full when it is measured, of many tables and with dirty pages.
//!
//! **May touch.** `engine`, `measure`.

use super::{
    fixture::{self, MB},
    harness::{Bench, Bound},
};
use crate::{
    args::Commit,
    engine::Setup,
    failure::Result,
    measure::{Random, resident_bytes},
};

/// Measures.
pub fn run(bench: &mut Bench) -> Result<()> {
    let pool = bench.size(8192 * MB, 64 * MB);
    let setup = Setup { hash: Some(true), ..Setup::with_pool(pool).commit(Commit::Lazy).log(1024 * MB) };
    let before = resident_bytes();
    let db = setup.open(&bench.database("footprint"))?;
    bench.say("filling the pool");
    let size = pool - pool / 16;
    let (table, rows) = fixture::big(&db, "big", size)?;
    for n in 0..bench.size(1_000, 20) {
        fixture::used(&db, &format!("small_{n}"), 100)?;
    }
    bench.say("reading, so that the hash indexes are built");
    let mut random = Random::new(bench.options.seed, 0);
    for _ in 0..bench.size(4_000_000, 20_000) {
        std::hint::black_box(table.get(&random.below(rows).to_be_bytes())?);
    }
    let metrics = db.metrics();
    let used = (metrics.pool_frames - metrics.pool_free) * metrics.page_size;
    bench.fact("pool, bytes", pool);
    bench.fact("pages in the pool, bytes", used);
    bench
        .fact("process, bytes above its pages", resident_bytes().saturating_sub(before).saturating_sub(used));
    bench.fact("hash indexes, bytes", metrics.hash_index_bytes);
    bench.claim(
        "bookkeeping-over-pool",
        metrics.pool_bookkeeping_bytes as f64 / pool as f64,
        Bound::AtMost(0.01),
    );
    let hash = metrics.hash_index_bytes as f64 / metrics.hash_index_limit.max(1) as f64;
    bench.claim("hash-indexes-over-budget", hash, Bound::AtMost(1.0));
    fixture::close(db)
}
