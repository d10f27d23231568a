//! Reading rows of tables.
//!
//! **Purpose.** `get` and `scan`.
//!
//! **Invariants.** The text output of a scan is CSV with a header, which `load` can read (test:
//! `rows_of_a_file_can_be_read_back`).
//!
//! **Method.** Rows are printed as they are read: a scan of any length needs the memory of one row.

use std::{io::Write as _, ops::Bound, path::Path, process::ExitCode};

use super::with_database;
use crate::{
    args::{Commit, GetArgs, ScanArgs},
    columns::{self, Columns, object},
    engine::Table,
    failure::{Failure, Result},
    output::{self, Grid},
};

/// Prints one row.
pub(super) fn get(db: &Path, json: bool, options: &GetArgs) -> Result<ExitCode> {
    let (columns, value) = with_database(db, false, Commit::Sync, |db| {
        let table = db.table(&options.table)?;
        Ok((Columns::from_metadata(&table.metadata()?), table.get(options.key.as_bytes())?))
    })?;
    let key = options.key.as_bytes();
    let Some(value) = value else {
        let (key, table) = (&options.key, &options.table);
        return Err(Failure::message(format!(
            "{table} has no row with key {key}: `windfall scan {table}` lists what it has"
        )));
    };
    if json {
        output::print_json(&object(columns.as_ref(), key, &value))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut grid = Grid::new(["column", "value"]);
    match columns.as_ref().zip(columns::fields(&value)) {
        Some((columns, fields)) => {
            grid.line([columns.key.clone(), output::text(key)]);
            for (name, field) in columns.others.iter().zip(fields) {
                grid.line([name.clone(), output::text(field)]);
            }
        }
        None => grid.line(["value".to_owned(), output::text(&value)]),
    }
    output::print(&grid.text())?;
    Ok(ExitCode::SUCCESS)
}

/// Prints rows in key order.
pub(super) fn scan(db: &Path, json: bool, options: &ScanArgs) -> Result<ExitCode> {
    with_database(db, false, Commit::Sync, |db| {
        let table = db.table(&options.table)?;
        let columns = Columns::from_metadata(&table.metadata()?);
        if json {
            scan_json(&table, columns.as_ref(), options)
        } else {
            scan_csv(&table, columns.as_ref(), options)
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Calls `each` with every requested row, in order.
fn visit(table: &Table, options: &ScanArgs, mut each: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
    let key = |text: &Option<String>| text.as_ref().map(|t| t.as_bytes().to_vec());
    let from = key(&options.from).map_or(Bound::Unbounded, Bound::Included);
    let to = key(&options.to).map_or(Bound::Unbounded, Bound::Excluded);
    if options.from.is_some() && options.to.is_some() && options.from >= options.to {
        return Ok(());
    }
    let mut rows = table.range((from, to))?;
    for _ in 0..options.limit.unwrap_or(usize::MAX) {
        let Some(row) = (if options.reverse { rows.next_back() } else { rows.next() }) else { break };
        let (key, value) = row?;
        each(&key, &value)?;
    }
    Ok(())
}

/// Prints one JSON array with a row per line.
fn scan_json(table: &Table, columns: Option<&Columns>, options: &ScanArgs) -> Result<()> {
    let mut out = output::out();
    let mut between = "[\n";
    visit(table, options, |key, value| {
        out.write_all(between.as_bytes()).map_err(Failure::Answer)?;
        between = ",\n";
        Ok(serde_json::to_writer(&mut out, &object(columns, key, value))?)
    })?;
    let end = if between == "[\n" { "[]" } else { "\n]" };
    writeln!(out, "{end}").and_then(|()| out.flush()).map_err(Failure::Answer)
}

/// Prints CSV with a header.
fn scan_csv(table: &Table, columns: Option<&Columns>, options: &ScanArgs) -> Result<()> {
    let mut out = csv::WriterBuilder::new().flexible(true).from_writer(output::out());
    let failed = |e: csv::Error| match e.into_kind() {
        csv::ErrorKind::Io(e) => Failure::Answer(e),
        other => Failure::message(format!("{other:?}")),
    };
    let names: Vec<&str> = columns.map_or_else(|| vec!["key", "value"], |c| c.names().collect());
    out.write_record(&names).map_err(failed)?;
    visit(table, options, |key, value| {
        let fields = columns.and_then(|_| columns::fields(value)).unwrap_or_else(|| vec![value]);
        out.write_record(std::iter::once(key).chain(fields)).map_err(failed)
    })?;
    out.flush().map_err(Failure::Answer)
}
