//! The fuzz targets of the command: files to load, the command line, and statements.
//!
//! **Purpose.** Lists them for `crates/windfall-fuzz`, as `windfall::fuzz` does for the library; only with the feature
//! `fuzz`.

use windfall::fuzz::Target;

use crate::{args, commands::lines, shell};

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "csv", run: lines::fuzz::csv, seeds: lines::fuzz::csv_seeds },
    Target { name: "arguments", run: args::fuzz::arguments, seeds: args::fuzz::arguments_seeds },
    Target { name: "shell", run: shell::fuzz::statements, seeds: shell::fuzz::statements_seeds },
];
