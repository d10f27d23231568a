//! The benchmarks of the project's claims.
//!
//! **Purpose.** `windfall bench NAME`: measures, compares with the bounds that the project has set itself, and reports
//! which hold.
//!
//! **Invariants.** The output of a quick run says that its sizes and times are too small to prove anything (test:
//! `people_get_a_table`).
//!
//! **Method.** Bounds are constants in the code where they are compared; results are not in the code. Rates depend on
//! the machine and are reported as facts; a claim is a count or a ratio within one run.

mod big_file;
mod calls;
mod create_drop;
mod drop;
mod drop_factors;
mod drop_latency;
mod fixture;
mod footprint;
mod foreground;
mod harness;
mod larger_than_memory;
mod memory_back;
#[cfg(feature = "peers")]
mod peers;
mod read;
mod recovery;
mod rows;
#[cfg(feature = "lab")]
mod seam;
mod sharing;
#[cfg(feature = "peers")]
mod sqlite;
mod transactions;
mod undo;
mod views;

use std::process::ExitCode;

use crate::{
    args::{Args, BenchArgs, BenchName, Command},
    engine,
    failure::{Failure, Result},
};
use harness::Bench;

/// Runs a benchmark, or the part of one that a child process executes.
pub(crate) fn run(options: &BenchArgs, json: bool) -> Result<ExitCode> {
    if let Some(part) = &options.child {
        match options.name {
            BenchName::Drop => drop::child(part, options)?,
            BenchName::Calls => calls::child(part, options)?,
            #[cfg(feature = "lab")]
            BenchName::Seam => seam::child(part, options)?,
            _ => recovery::child(part, options)?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut bench = Bench::begin(options)?;
    bench.check_only(parts)?;
    if matches!(options.name, BenchName::Drop | BenchName::Foreground) && !cfg!(feature = "drop-waits") {
        bench.say(&format!("a claim will not be made: {}", engine::NO_DROP_WAITS));
    }
    parts(&mut bench);
    bench.end(json)
}

/// Runs the part of `bench calls` that the arguments of a child process name, with the code of the caller.
pub(crate) fn measure_calls(args: Args) -> Result<()> {
    let Command::Bench(options) = args.command else {
        return Err(Failure::message("these arguments are not those of a benchmark"));
    };
    let part = options.child.as_deref().ok_or_else(|| Failure::message("there is no --child"))?;
    calls::child_here(part, &options)
}

/// Measures the parts of a benchmark.
fn parts(bench: &mut Bench) {
    match bench.options.name {
        BenchName::Drop => drop::run(bench),
        BenchName::CreateDrop => create_drop::run(bench),
        BenchName::Foreground => foreground::run(bench),
        BenchName::BigFile => bench.part("big-file", big_file::run),
        BenchName::MemoryBack => bench.part("memory-back", memory_back::run),
        BenchName::Read => bench.part("read", read::run),
        BenchName::LargerThanMemory => bench.part("larger-than-memory", larger_than_memory::run),
        BenchName::Recovery => bench.part("recovery", recovery::run),
        BenchName::Footprint => footprint::run(bench),
        BenchName::Transactions => transactions::run(bench),
        BenchName::Calls => calls::run(bench),
        #[cfg(feature = "lab")]
        BenchName::Seam => seam::run(bench),
    }
}
