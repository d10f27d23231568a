//! `bench footprint`: the memory and the disk that the engine takes.
//!
//! **Purpose.** The memory of the engine's bookkeeping; the bytes that entries take in leaves and in files; the disk of
//! a database that is empty, and of one whose large table was dropped.
//!
//! **Method.** Sizes are counts, and depend on nothing but the database and the random seed, except those that are the
//! memory of the process as the system reports it.

mod disk;
mod entries;
mod memory;

use super::harness::Bench;

/// Runs the benchmark.
pub(super) fn run(bench: &mut Bench) {
    bench.part("memory", memory::run);
    bench.part("entries", entries::run_entries);
    bench.part("rows", entries::run_rows);
    bench.part("disk", disk::run);
}
