//! Loading files into tables.
//!
//! **Purpose.** `load`: a CSV or TSV file with a header becomes rows, the key column their key.
//!
//! **Invariants.** A bad line stops the load and is reported by number, or is skipped and counted if that was requested
//! (test: `a_bad_line_is_named_by_its_number`). A bad header always stops it, as does a line above the length limit
//! (test: `lines_without_an_end`). The rows of a finished load are durable, because it ends with a checkpoint (test:
//! `a_load_whose_checkpoint_fails_is_a_failed_load`). If a load fails, its last checkpoint included, or is stopped by a
//! signal, a table that it created is dropped (tests: `a_load_whose_checkpoint_fails_is_a_failed_load`,
//! `an_interrupted_load_is_a_failed_load`). In an existing table the rows loaded so far stay, and the message has their
//! number (test: `a_load_is_interrupted_between_two_rows`).

use std::{path::Path, process::ExitCode};

use serde_json::json;
use windfall::error::{Error, SchemaError, UsageError};
use windfall_measure::units;

use super::{
    input::Input,
    lines::{Line, Lines},
    schema, with_database,
};
use crate::{
    args::{Commit, LoadArgs},
    columns::Columns,
    engine::{self, Database, Table},
    failure::{Failure, Result},
    interrupt::Signal,
    output,
};

/// Number of skipped lines that are shown.
const SHOWN: usize = 5;

/// The result of a load.
#[derive(Debug, Default)]
struct Loaded {
    rows: u64,
    skipped: u64,
    shown: Vec<String>,
}

/// Loads a file.
pub(super) fn load(db: &Path, json: bool, options: &LoadArgs) -> Result<ExitCode> {
    let tsv =
        options.file.as_deref().and_then(Path::extension).is_some_and(|e| e.eq_ignore_ascii_case("tsv"));
    let delimiter = options.delimiter.unwrap_or(if tsv { b'\t' } else { b',' });
    schema::printable("table name", &options.table)?;
    let (input, name) = Input::open(options.file.as_deref())?;
    let mut lines = Lines::of(input, &name, delimiter, options.key.as_deref(), options.max_line)?;
    let columns = lines.columns().clone();

    // Commits are synced together, by the checkpoint at the end: no row is reported as loaded before.
    let loaded = with_database(db, true, Commit::Lazy, |db| {
        lines.input().watch_signals()?;
        let (table, made) = table_for(db, &options.table, &columns, &name)?;
        let mut loaded = Loaded::default();
        let ended = rows(&mut lines, (&table, &name), options, &mut loaded);
        lines.input().finish();
        match ended.and_then(|()| Ok(db.checkpoint()?)) {
            Ok(()) => Ok(loaded),
            Err(why) => Err(abort(db, &options.table, made, loaded.rows, why)),
        }
    })?;
    report(json, &options.table, &columns, &loaded)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the table of that name with these columns, and whether it was created here.
fn table_for(db: &Database, name: &str, columns: &Columns, file: &str) -> Result<(Table, bool)> {
    match db.table(name) {
        Err(Error::Schema(SchemaError::NoTable(_))) => {
            Ok((db.create_table(name, engine::with_metadata(columns.to_metadata()?))?, true))
        }
        Err(other) => Err(other.into()),
        Ok(table) => match Columns::from_metadata(&table.metadata()?) {
            Some(has) if has == *columns => Ok((table, false)),
            Some(has) => Err(Failure::message(format!(
                "{name} has {}, and {file} has {}: give a file with the same header (--key and --delimiter say how to \
                 read it), or load into another table",
                described(&has),
                described(columns)
            ))),
            None => Err(Failure::message(format!(
                "{name} has no column names, so it was not made by `windfall`: load into another table"
            ))),
        },
    }
}

fn described(columns: &Columns) -> String {
    let (key, others) = (output::quoted(columns.key.as_bytes()), output::listed(&columns.others));
    match columns.others.len() {
        0 => format!("the key {key} and no other column"),
        1 => format!("the key {key} and the column {others}"),
        _ => format!("the key {key} and the columns {others}"),
    }
}

/// The reason why a load stopped.
enum Failed {
    /// A bad line.
    Line(String),
    Other(Failure),
}

impl<E: Into<Failure>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self::Other(error.into())
    }
}

/// Ends a failed load. Returns the failure, and which rows remain.
fn abort(db: &Database, table: &str, made: bool, rows: u64, why: Failed) -> Failure {
    // Makes the result durable before it is reported.
    engine::set_commit(db, Commit::Sync);
    let left = if made {
        match db.drop_table(table) {
            Ok(_) => "nothing was loaded".to_owned(),
            Err(e) => format!("{table}, which it made, cannot be dropped: {e}"),
        }
    } else {
        // Rows that cannot be written to the data files are in the log, unless the log has failed, too.
        let most = if matches!(db.checkpoint(), Err(Error::Poisoned(_))) { "at most " } else { "" };
        match rows {
            0 => "nothing was loaded".to_owned(),
            1 => format!("{most}the row before it is loaded"),
            n => format!("{most}the {} before it are loaded", units::things(n, "row")),
        }
    };
    match why {
        Failed::Line(why) => Failure::message(format!("{why}; {left} (--skip-bad leaves bad lines out)")),
        Failed::Other(Failure::Stopped(signal, _)) => Failure::Stopped(signal, left),
        Failed::Other(why) => Failure::message(format!("{why}; {left}")),
    }
}

/// Loads the lines after the header.
fn rows(
    lines: &mut Lines<Input>,
    (table, name): (&Table, &str),
    options: &LoadArgs,
    loaded: &mut Loaded,
) -> Result<(), Failed> {
    loop {
        let next = lines.next();
        // A signal that has interrupted a wait for input has also made the read fail.
        if let Some(signal) = Signal::received() {
            return Err(Failure::Stopped(signal, String::new()).into());
        }
        let Some((number, line)) = next? else { return Ok(()) };
        let why = match line {
            Line::Row { key, value } => match one(table, key, &value, options.replace)? {
                None => {
                    loaded.rows += 1;
                    continue;
                }
                Some(why) => why,
            },
            Line::Bad(why) => why,
        };
        let why = format!("{name}, line {number}: {why}");
        if !options.skip_bad {
            return Err(Failed::Line(why));
        }
        loaded.skipped += 1;
        if loaded.shown.len() < SHOWN {
            loaded.shown.push(why);
        }
    }
}

/// Loads one row, or returns what is wrong with it.
fn one(table: &Table, key: &[u8], value: &[u8], replace: bool) -> Result<Option<String>> {
    match if replace { table.put(key, value) } else { table.insert(key, value) } {
        Ok(()) => Ok(None),
        Err(Error::Schema(SchemaError::DuplicateKey { .. })) => {
            Ok(Some(format!("the key {} is there already (--replace replaces rows)", output::quoted(key))))
        }
        Err(Error::Usage(e @ (UsageError::KeyTooLong { .. } | UsageError::ValueTooLong { .. }))) => {
            Ok(Some(e.to_string()))
        }
        Err(other) => Err(other.into()),
    }
}

fn report(json: bool, table: &str, columns: &Columns, loaded: &Loaded) -> Result<()> {
    for line in &loaded.shown {
        eprintln!("left out: {line}");
    }
    let more = loaded.skipped - loaded.shown.len() as u64;
    if more > 0 {
        eprintln!("left out: {} more", units::count(more));
    }
    if json {
        return output::print_json(&json!({
            "table": table, "key": columns.key, "columns": columns.others,
            "rows": loaded.rows, "skipped": loaded.skipped,
        }));
    }
    let mut text =
        format!("loaded {} into {table} (key: {})", units::things(loaded.rows, "row"), columns.key);
    if loaded.skipped > 0 {
        text = format!("{text}, left out {}", units::things(loaded.skipped, "bad line"));
    }
    output::print(&(text + "\n"))
}
