//! The command `windfall`.
//!
//! **Purpose.** Tables from the command line, the demo and the benchmarks, over the public API of the library alone.
//!
//! **Invariants.** The output of a command goes to standard output; errors go to standard error, as one line that names
//! the cause and the remedy (test: `a_folder_without_a_database_is_not_made_one_by_reading`). Exit code 0: done; 1:
//! damage found, a claim that does not hold, or a failed statement of a shell (tests:
//! `damage_is_found_and_is_no_refusal`, `bounds_count_unless_the_run_is_quick`,
//! `a_script_stops_at_the_first_failure_unless_it_is_to_go_on`); 2: the call, or a part of a benchmark, could not be
//! executed (tests: `command_lines_that_make_no_sense`, `a_failed_part_does_not_affect_other_parts`); 128 plus the
//! number of a signal: ended by that signal (test: `a_signal_ends_it_in_good_order`).
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

/// Runs the command.
pub fn main() -> ExitCode {
    match commands::run(args::Args::parse()) {
        Ok(code) => code,
        // The reader of the output may close the pipe: `windfall scan t | head`.
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("windfall: {failure}");
            ExitCode::from(failure.code())
        }
    }
}

/// Measures the calls that the arguments of this process name, as a child of `windfall bench calls` does, with the code
/// that this function is linked to. Returns whether that has succeeded; if not, the reason is on standard error.
pub fn measure_calls() -> bool {
    let done = bench::measure_calls(args::Args::parse());
    if let Err(failure) = &done {
        eprintln!("windfall: {failure}");
    }
    done.is_ok()
}
