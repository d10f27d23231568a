//! The offline check.
//!
//! **Purpose.** `check`: every page checksum, every tree, the allocation maps, missing and leaked files.
//!
//! **Invariants.** Exit code 0 means that nothing was found, 1 that something was; damage that keeps the database from
//! being opened is damage too.
//!
//! **May touch.** `engine`, `output`.

use std::{path::Path, process::ExitCode};

use serde_json::json;
use windfall::error::Error;

use super::with_database;
use crate::{
    args::Commit,
    engine,
    failure::{Failure, Result},
    output,
};

/// Checks a database.
pub fn check(db: &Path, json: bool) -> Result<ExitCode> {
    let report = match with_database(db, false, Commit::Sync, engine::check) {
        Ok(report) => report,
        Err(Failure::Engine(Error::Corrupt(damage))) => {
            engine::Checked { findings: vec![damage.to_string()], ..engine::Checked::default() }
        }
        Err(failure) => return Err(failure),
    };
    let sound = report.findings.is_empty();
    if json {
        output::print_json(
            &json!({ "sound": sound, "checked": report.counted, "findings": report.findings }),
        )?;
    } else {
        for finding in &report.findings {
            println!("{finding}");
        }
        let counted: Vec<String> =
            report.counted.iter().map(|(what, n)| format!("{} {what}", output::count(*n))).collect();
        match report.findings.len() {
            0 => println!("sound: {}", counted.join(", ")),
            1 => println!("1 finding"),
            n => println!("{n} findings"),
        }
    }
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
