//! The command `windfall`.
//!
//! **Purpose.** Tables from the shell, the demo and the benchmarks, over the public API of the library alone.
//!
//! **Invariants.** What a command answers goes to standard output; what went wrong goes to standard error, as one line
//! that names the thing and the cure. Exit code 0: done; 1: damage found, a claim that does not hold, or a
//! statement of a shell that has failed; 2: the call, or
//! a part of a benchmark, could not be served; 128 and the number of a signal: that has ended it.
//!
//! **May touch.** The libraries `windfall` and `windfall-measure`, the file system, the terminal.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::float_cmp))]
#![allow(
    clippy::cast_sign_loss,
    clippy::unchecked_time_subtraction,
    reason = "what is cast and subtracted here are times, rates and places in drawings, and not negative"
)]

mod args;
mod bench;
mod columns;
mod commands;
mod demo;
mod engine;
mod factors;
mod failure;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod interrupt;
#[cfg(feature = "lab")]
mod lab;
mod oltp;
mod output;
mod report;
mod shell;
mod sweep;

use std::process::ExitCode;

use clap::Parser as _;

/// What the binary does.
pub fn main() -> ExitCode {
    match commands::run(args::Args::parse()) {
        Ok(code) => code,
        // Whoever reads our output may stop reading: `windfall scan t | head`.
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("windfall: {failure}");
            ExitCode::from(failure.code())
        }
    }
}
