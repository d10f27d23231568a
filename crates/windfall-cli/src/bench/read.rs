//! `bench read`: point reads of a table that is completely in the pool.
//!
//! **Purpose.** Uniformly random keys through the public API, every value summed; compared with LMDB and redb on the
//! same rows in the same run; one thread and two; with the hash index and without. The claims are about the default
//! engine, which has no hash index.
//!
//! **Invariants.** Every engine has the same rows, and the sums of the values that they read agree (test: `read`).
//!
//! **Method.** The engines alternate, and the median of the turns counts.

use std::time::Duration;

use windfall_measure::{Random, median};

use super::{
    fixture::{self, MB},
    harness::{Bench, Bound, rate},
    rows::{Read, fill, ours, row, sum},
};
use crate::{
    args::Commit,
    engine::{Database, Setup, Table},
    failure::{Failure, Result},
};

/// Measures random reads per second.
fn reads(read: &mut Read<'_>, rows: u64, time: Duration, seed: u64) -> Result<f64> {
    let mut random = Random::new(seed, 5);
    let mut total = 0_u64;
    let rate = rate(time, || {
        let found = read(random.below(rows).to_be_bytes())?;
        total =
            total.wrapping_add(found.ok_or_else(|| Failure::message("a row that was loaded is missing"))?);
        Ok(())
    })?;
    std::hint::black_box(total);
    Ok(rate)
}

/// Creates and fills a Windfall database, with default settings or with the hash index.
fn load(bench: &Bench, rows: u64, hash: bool) -> Result<(Database, Table)> {
    bench.say(&format!("loading, {} hash index", fixture::with(hash)));
    let pool = rows * 320 + 128 * MB;
    let setup =
        Setup { hash: hash.then_some(true), ..Setup::with_pool(pool).commit(Commit::Lazy).log(1024 * MB) };
    let db = setup.open(&bench.database(&format!("windfall-{hash}")))?;
    let table = fill(&db, rows)?;
    Ok((db, table))
}

/// Runs the benchmark.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let rows = bench.size(10_000_000, 20_000);
    let (off_db, off) = load(bench, rows, false)?;
    let (on_db, on) = load(bench, rows, true)?;
    #[cfg(feature = "peers")]
    let (lmdb, redb) = {
        bench.say("loading LMDB and redb");
        (
            super::peers::Lmdb::load(&bench.database("lmdb"), rows)?,
            super::peers::Redb::load(&bench.database("redb"), rows, rows * 320 + 128 * MB)?,
        )
    };
    let mut engines: Vec<(&str, Read<'_>)> =
        vec![("windfall by default", ours(&off)), ("windfall with hash index", ours(&on))];
    #[cfg(feature = "peers")]
    engines.extend([("lmdb", lmdb.reads()?), ("redb", redb.reads()?)]);
    agree(&mut engines, rows)?;

    let (turns, time) = bench.size((9, Duration::from_secs(2)), (3, Duration::from_millis(50)));
    let mut rates = vec![Vec::new(); engines.len()];
    let mut two = Vec::new();
    for turn in 0..turns {
        bench.say(&format!("turn {} of {turns}", turn + 1));
        for ((_, read), rates) in engines.iter_mut().zip(&mut rates) {
            rates.push(reads(read, rows, time, turn)?);
        }
        let both = fixture::threads(2, |n| reads(&mut ours(&off), rows, time, turn + 100 * n as u64))?;
        two.push(both.iter().sum::<f64>());
    }
    let medians: Vec<(&str, f64)> =
        engines.iter().zip(&rates).map(|((name, _), r)| (*name, median(r))).collect();
    for (name, rate) in &medians {
        bench.fact(format!("{name}: reads per second"), *rate);
    }
    bench.fact("windfall, two threads: reads per second", median(&two));
    let (plain, hashed) = (medians[0].1, medians[1].1);
    bench.fact("windfall with hash index over by default", hashed / plain);
    bench.claim("two-threads-over-one", median(&two) / plain, Bound::AtLeast(1.6));
    #[cfg(feature = "peers")]
    for ((name, rate), bound) in medians[2..].iter().zip([1.0, 2.0]) {
        bench.claim(format!("over-{name}"), plain / rate, Bound::AtLeast(bound));
    }
    #[cfg(not(feature = "peers"))]
    for name in ["over-lmdb", "over-redb"] {
        bench.missing(
            name,
            "built without the feature `peers`: cargo build --release -p windfall-cli --features peers",
        );
    }
    drop(engines);
    drop((off, on));
    fixture::close(off_db)?;
    fixture::close(on_db)
}

/// Checks that every engine returns the same values.
fn agree(engines: &mut [(&str, Read<'_>)], rows: u64) -> Result<()> {
    let mut random = Random::new(9, 9);
    for _ in 0..1_000 {
        let id = random.below(rows);
        let (key, value) = row(id);
        for (name, read) in &mut *engines {
            if read(key)? != Some(sum(&value)) {
                return Err(Failure::message(format!("{name} gives another value for row {id}")));
            }
        }
    }
    Ok(())
}
