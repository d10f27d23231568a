//! `bench seam`: the cost of the interface between tree and pool in a point read.
//!
//! **Purpose.** The tree is generic over traits, so that the classic pools of the lab can be used under it. The product
//! must pay nothing for that: cached point reads by the generic tree are compared with the same read written directly
//! against the buffer pool ([`windfall_lab::seam`]), with the hash index and without.
//!
//! **Invariants.** Both variants read random keys of the same tree and find the same. Times are measured in one
//! process, in alternating turns of some milliseconds; instructions with the same keys in separate processes, which are
//! created and warmed in the same way. Instructions are counted by single-stepping, so their bound is narrow: one or
//! two hundredths come from a different instruction order in two functions of the same content. Times of turns vary by
//! some per cent on a busy machine, their medians by less: that bound is 5 %.

use std::{
    env,
    hint::black_box,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use windfall_lab::seam::{self, Both, Cached};
use windfall_measure::{
    Random, median,
    stepped::{self, Count},
};

use super::{
    fixture,
    harness::{Bench, Bound},
};
use crate::{
    args::BenchArgs,
    failure::{Failure, Result},
};

/// Number of reads with counted instructions, normal and quick.
const COUNTED: [usize; 2] = [200, 2];
/// Reads per turn.
const TURN: usize = 5_000;

/// The two variants of a read.
const WAYS: [(&str, seam::Way); 2] = [("generic", seam::generic), ("direct", seam::direct)];

/// Runs the benchmark.
pub(super) fn run(bench: &mut Bench) {
    for hash in [false, true] {
        let with = if hash { "hashed" } else { "plain" };
        bench.part(&format!("{with}-instructions"), |bench| instructions(bench, hash, with));
        bench.part(&format!("{with}-time"), |bench| times(bench, hash, with));
    }
}

fn load(folder: &Path, hash: bool, rows: u32) -> Result<Cached> {
    let row = |n: u32| (u64::from(n).to_be_bytes(), [n as u8; 100]);
    Cached::load(folder, hash, (0..rows).map(row)).map_err(Failure::Engine)
}

/// Reads `count` random rows with one variant.
fn read(both: &Both<'_>, way: seam::Way, rows: u32, count: usize, random: &mut Random) -> Result<u64> {
    let (mut value, mut sum) = (Vec::new(), 0_u64);
    for _ in 0..count {
        let key = random.below(u64::from(rows)).to_be_bytes();
        let found = way(both, &key, &mut value).map_err(Failure::Engine)?;
        found.ok_or_else(|| Failure::said("a row that was loaded is missing"))?;
        sum = sum.wrapping_add(u64::from(value[0]));
    }
    Ok(sum)
}

/// Returns the number of rows of the table for counted reads.
fn rows_counted(quick: bool) -> u32 {
    if quick { 20_000 } else { 200_000 }
}

/// Compares the instructions of reads by both variants.
fn instructions(bench: &mut Bench, hash: bool, with: &str) -> Result<()> {
    let mut each = Vec::new();
    for (way, _) in WAYS {
        bench.say(&format!(
            "instructions of {} reads, step by step, {} hash index",
            way,
            fixture::with(hash)
        ));
        let part = format!("{way}:{with}");
        let mut command = Command::new(env::current_exe()?);
        command
            .args(["bench", "seam", "--child", &part, "--dir"])
            .arg(bench.database(&part.replace(':', "-")));
        if bench.options.quick {
            command.arg("--quick");
        }
        let [count] = stepped::run(&mut command)?.instructions[..] else {
            return Err(Failure::said("the reads were not seen"));
        };
        let read = count as f64 / COUNTED[usize::from(bench.options.quick)] as f64;
        bench.fact(format!("{with}: instructions of a {way} read"), read);
        each.push(read);
    }
    bench.claim(format!("{with}-instructions"), each[0] / each[1], Bound::AtMost(1.02));
    Ok(())
}

/// Runs a child process: `generic:plain` and so on.
pub(super) fn child(part: &str, options: &BenchArgs) -> Result<()> {
    let dir = options.dir.as_deref().ok_or_else(|| Failure::said("a child needs --dir"))?;
    let unknown = || Failure::said(format!("there is no part {part}"));
    let (way, with) = part.split_once(':').ok_or_else(unknown)?;
    let (_, way) = WAYS.into_iter().find(|(name, _)| *name == way).ok_or_else(unknown)?;
    let rows = rows_counted(options.quick);
    std::fs::create_dir_all(dir)?;
    let cached = load(dir, with == "hashed", rows)?;
    let both = cached.both();
    let mut random = Random::new(options.seed, 7);
    let (warm, counted) = (rows as usize * 3, COUNTED[usize::from(options.quick)]);
    let way = black_box(way);
    read(&both, way, rows, warm, &mut random)?;
    // An empty pair of marks measures the cost of the marks themselves.
    stepped::mark(Count::Instructions);
    stepped::mark(Count::Instructions);
    stepped::mark(Count::Instructions);
    let done = read(&both, way, rows, counted, &mut random);
    stepped::mark(Count::Instructions);
    done.map(drop)
}

/// Compares the times of reads by both variants, in turns.
fn times(bench: &mut Bench, hash: bool, with: &str) -> Result<()> {
    let rows = bench.size(1_000_000, 20_000);
    let turns = bench.size(400, 20);
    bench.say(&format!("times of {turns} turns, {} hash index", fixture::with(hash)));
    let folder = bench.database(&format!("times-{with}"));
    std::fs::create_dir_all(&folder)?;
    let cached = load(&folder, hash, rows)?;
    let both = cached.both();
    let same = |way| read(&both, way, rows, rows as usize * 2, &mut Random::new(1, 8));
    if same(seam::generic)? != same(seam::direct)? {
        return Err(Failure::said("the two ways have read different values"));
    }
    let mut took = [Vec::new(), Vec::new()];
    for turn in 0..turns {
        // The first variant alternates. Each has its own keys: the second one would find the first one's in the caches.
        let order = if turn % 2 == 0 { [0, 1] } else { [1, 0] };
        for at in order {
            let mut random = Random::new(turn, 9 + at as u64);
            let start = Instant::now();
            black_box(read(&both, black_box(WAYS[at].1), rows, TURN, &mut random)?);
            took[at].push(per_read(start.elapsed()));
        }
    }
    let [generic, direct] = took.map(|took| median(&took));
    bench.fact(format!("{with}: ns of a generic read, median"), generic);
    bench.fact(format!("{with}: ns of a direct read, median"), direct);
    bench.claim(format!("{with}-time"), generic / direct, Bound::AtMost(1.05));
    Ok(())
}

fn per_read(took: Duration) -> f64 {
    took.as_nanos() as f64 / TURN as f64
}
