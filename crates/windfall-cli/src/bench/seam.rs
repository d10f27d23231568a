//! `bench seam`: the cost of the interface between tree and pool in a point read.
//!
//! **Purpose.** The tree is generic over traits, so that the classic pools of the lab can be used under it. The product
//! must pay nothing for that: the compiler generates the tree's code for the engine's pool, in which each call of the
//! pool is direct or inlined. That is a property of the compiled code, so the benchmark examines this code: it
//! single-steps cached point reads, with the hash index and without, and counts their indirect calls and their
//! instructions. As a control, the same child calls a trait object, which is an indirect call and must be counted.
//!
//! **Method.** The reads are of random keys that exist, after the table and the hash index were warmed. The counts do
//! not depend on the speed of the machine. Those of instructions depend on the compiler, so their bounds leave a tenth.
//! A call that is no longer inlined, or a choice between pools at run time, shows in the instructions alone.

use std::{env, hint::black_box, path::Path, process::Command};

use windfall_lab::seam::Cached;
use windfall_measure::{
    Random,
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

/// Number of reads that are counted, normal and quick.
const COUNTED: [usize; 2] = [200, 2];
/// Number of calls of a trait object, which must be counted as indirect calls.
const CONTROL: u64 = 100;
/// The maximum number of instructions of a read, without the hash index and with it.
const INSTRUCTIONS: [f64; 2] = [2600.0, 1800.0];

/// Something that is called through a trait object.
trait Called {
    fn called(&self) -> u64;
}

impl Called for u64 {
    #[inline(never)]
    fn called(&self) -> u64 {
        black_box(*self)
    }
}

/// Runs the benchmark.
pub(super) fn run(bench: &mut Bench) {
    for hash in [false, true] {
        let with = if hash { "hashed" } else { "plain" };
        bench.part(&format!("{with}-indirect-calls"), |bench| count(bench, hash, with));
    }
}

fn load(folder: &Path, hash: bool, rows: u32) -> Result<Cached> {
    let row = |n: u32| (u64::from(n).to_be_bytes(), [n as u8; 100]);
    Cached::load(folder, hash, (0..rows).map(row)).map_err(Failure::Engine)
}

/// Reads `count` random rows.
fn read(cached: &Cached, rows: u32, count: usize, random: &mut Random) -> Result<u64> {
    let (mut value, mut sum) = (Vec::new(), 0_u64);
    for _ in 0..count {
        let key = random.below(u64::from(rows)).to_be_bytes();
        let found = cached.get(&key, &mut value).map_err(Failure::Engine)?;
        found.ok_or_else(|| Failure::message("a row that was loaded is missing"))?;
        sum = sum.wrapping_add(u64::from(value[0]));
    }
    Ok(sum)
}

/// Counts the instructions and the indirect calls of reads.
fn count(bench: &mut Bench, hash: bool, with: &str) -> Result<()> {
    let counted = COUNTED[usize::from(bench.options.quick)];
    bench.say(&format!("{counted} reads, step by step, {} hash index", fixture::with(hash)));
    let mut command = Command::new(env::current_exe()?);
    command.args(["bench", "seam", "--child", with, "--dir"]).arg(bench.database(with));
    if bench.options.quick {
        command.arg("--quick");
    }
    let seen = stepped::run_counting_calls(&mut command)?;
    let ([instructions, _], [calls, control]) = (&seen.instructions[..], &seen.indirect_calls[..]) else {
        return Err(Failure::message("the reads were not seen, or indirect calls cannot be counted here"));
    };
    if *control != CONTROL {
        return Err(Failure::message(format!("{control} of {CONTROL} calls of a trait object were seen")));
    }
    bench.claim(format!("{with}-indirect-calls"), *calls as f64 / counted as f64, Bound::AtMost(0.0));
    let most = INSTRUCTIONS[usize::from(hash)];
    bench.claim(format!("{with}-instructions"), *instructions as f64 / counted as f64, Bound::AtMost(most));
    Ok(())
}

/// Runs a child process: `plain` or `hashed`.
pub(super) fn child(with: &str, options: &BenchArgs) -> Result<()> {
    let dir = options.dir.as_deref().ok_or_else(|| Failure::message("a child needs --dir"))?;
    let hash = match with {
        "plain" => false,
        "hashed" => true,
        _ => return Err(Failure::message(format!("there is no part {with}"))),
    };
    let rows: u32 = if options.quick { 20_000 } else { 200_000 };
    std::fs::create_dir_all(dir)?;
    let cached = load(dir, hash, rows)?;
    let mut random = Random::new(options.seed, 7);
    // After three reads of each row on average, the hash index has the hints of most of them.
    read(&cached, rows, rows as usize * 3, &mut random)?;
    // An empty pair of marks measures the cost of the marks themselves.
    stepped::mark(Count::Instructions);
    stepped::mark(Count::Instructions);
    stepped::mark(Count::Instructions);
    let done = read(&cached, rows, COUNTED[usize::from(options.quick)], &mut random);
    stepped::mark(Count::Instructions);
    let object: &dyn Called = black_box(&7_u64);
    stepped::mark(Count::Instructions);
    for _ in 0..CONTROL {
        black_box(object.called());
    }
    stepped::mark(Count::Instructions);
    done.map(drop)
}
