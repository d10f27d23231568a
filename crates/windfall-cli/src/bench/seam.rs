//! `bench seam`: what the seam between tree and pool costs a point read.
//!
//! **Purpose.** The tree is written against traits, so that the classic pools of the lab can stand below it. The
//! product is to pay nothing for that: cached point reads by the tree as it is are held against the same read with the
//! buffer pool written in ([`windfall_lab::seam`]), with the hash index and without.
//!
//! **Invariants.** Both read random keys of the same tree, in one process for the times, where they take turns of some
//! milliseconds; for the instructions the same keys in processes of their own, which are made and warmed in the same
//! way. Both find the same. An instruction is counted by single steps, so its bound is narrow: one or two hundredths
//! are what the compiler orders otherwise in two functions of the same content. Times of turns vary by some per cent on
//! a busy machine, their medians by less: that bound is 5 %.
//!
//! **May touch.** `windfall-lab`, `windfall-measure`, child processes.

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

/// Reads whose instructions are counted, and reads before, so that all is in the hash index that can be.
const COUNTED: [usize; 2] = [200, 2];
/// Reads of a turn.
const TURN: usize = 5_000;

/// The two ways to read.
const WAYS: [(&str, seam::Way); 2] = [("generic", seam::generic), ("direct", seam::direct)];

/// Measures.
pub fn run(bench: &mut Bench) {
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

/// Reads so many random rows, by one way.
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

/// Rows of the table whose reads are counted.
fn rows_counted(quick: bool) -> u32 {
    if quick { 20_000 } else { 200_000 }
}

/// The instructions of reads by both ways.
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

/// What a child process does: `generic:plain` and so on.
pub fn child(part: &str, options: &BenchArgs) -> Result<()> {
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
    // What the marks themselves take.
    stepped::mark(Count::Instructions);
    stepped::mark(Count::Instructions);
    stepped::mark(Count::Instructions);
    let done = read(&both, way, rows, counted, &mut random);
    stepped::mark(Count::Instructions);
    done.map(drop)
}

/// The time of reads by both ways, in turns.
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
        // Who begins changes. Each has keys of its own: the second one would find the first one's in the caches.
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
