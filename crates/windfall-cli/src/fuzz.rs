//! The fuzz targets of the command: files to load, the command line, and statements.
//!
//! **Purpose.** Lists them for `crates/windfall-fuzz`, as `windfall::fuzz` does for the library.
//!
//! **Invariants.** Only builds with the feature `fuzz` have it.
//!
//! **May touch.** The readers.

use windfall::fuzz::Target;

use crate::{args, commands::lines, shell};

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "csv", run: lines::fuzz::csv, seeds: lines::fuzz::csv_seeds },
    Target { name: "arguments", run: args::fuzz::arguments, seeds: args::fuzz::arguments_seeds },
    Target { name: "shell", run: shell::fuzz::statements, seeds: shell::fuzz::statements_seeds },
];
