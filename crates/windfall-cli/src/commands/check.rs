//! The offline check.
//!
//! **Purpose.** `check`: every page checksum, every tree, the allocation maps, missing and leaked files.
//!
//! **Invariants.** Exit code 0 means that nothing was found, 1 that something was (tests:
//! `damage_is_found_and_is_no_refusal`, `a_sound_database_is_called_sound`); damage that prevents the database from
//! being opened is a finding too (test: `a_control_file_that_is_lost_is_damage`). Files that a crash left to be
//! deleted, foreign files, and tables that could not be compared with their indexes yet are reported, but are not
//! findings (test: `leaked_missing_and_foreign_files_are_reported`).

use std::{path::Path, process::ExitCode};

use serde_json::{Map, Value, json};
use windfall::error::{DiskError, Error};
use windfall_measure::units;

use super::with_database;
use crate::{
    args::Commit,
    engine,
    failure::{Failure, Result},
    output,
};

/// Checks a database, or one table of it.
pub(super) fn check(db: &Path, table: Option<&str>, json: bool) -> Result<ExitCode> {
    let report = match with_database(db, false, Commit::Sync, |db| engine::check(db, table)) {
        Ok(report) => report,
        Err(Failure::Engine(damage @ (Error::Corrupt(_) | Error::Disk(DiskError::Missing { .. })))) => {
            engine::Checked { findings: vec![damage.to_string()], ..engine::Checked::default() }
        }
        Err(failure) => return Err(failure),
    };
    let sound = report.findings.is_empty();
    if json {
        let counted: Map<_, _> =
            report.counted.iter().map(|(what, n)| ((*what).to_owned(), Value::from(*n))).collect();
        output::print_json(&json!({
            "sound": sound,
            "checked": counted,
            "findings": report.findings,
            "uncompared": report.uncompared,
            "pending": report.pending,
            "foreign": report.foreign,
        }))?;
    } else {
        let counted: Vec<String> =
            report.counted.iter().map(|(what, n)| format!("{} {what}", units::count(*n))).collect();
        let verdict = if sound {
            format!("sound: {}", counted.join(", "))
        } else {
            units::things(report.findings.len() as u64, "finding")
        };
        let mut lines = report.findings;
        lines.extend(report.uncompared.iter().map(|table| {
            format!(
                "table {table}: rows and index entries were not compared, because a change that a crash has cut off \
                 could not be rolled back yet"
            )
        }));
        lines.extend(report.pending.iter().map(|file| format!("{file}: left by a crash, and being deleted")));
        lines.extend(
            report.foreign.iter().map(|file| format!("{file}: not a file of the database, left alone")),
        );
        lines.push(verdict);
        output::print(&(lines.join("\n") + "\n"))?;
    }
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
