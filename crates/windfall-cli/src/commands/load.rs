//! Files into tables.
//!
//! **Purpose.** `load`: a CSV or TSV file with a header becomes rows, the key column their key.
//!
//! **Invariants.** A bad line stops the load and is named by its number, or is left out and counted if that was asked
//! for; a bad header always stops it. A load that fails leaves no table behind that it made; in a table that was there
//! before, the rows before the bad line stay, and the message says how many. What a finished load has loaded is
//! durable.
//!
//! **May touch.** `lines`, `engine`, `output`, `columns`.

use std::{
    fs::File,
    io::{self, IsTerminal as _, Read},
    path::Path,
    process::ExitCode,
};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use windfall::error::{Error, SchemaError, UsageError};

use super::{
    lines::{Line, Lines},
    schema, with_database,
};
use crate::{
    args::{Commit, LoadArgs},
    columns::Columns,
    engine::{self, Database, Table},
    failure::{Failure, Result},
    output,
};

/// How many of the lines that were left out are shown.
const SHOWN: usize = 5;

/// What a load has done.
#[derive(Debug, Default)]
struct Loaded {
    rows: u64,
    skipped: u64,
    shown: Vec<String>,
}

/// Loads a file.
pub fn load(db: &Path, json: bool, options: &LoadArgs) -> Result<ExitCode> {
    let (input, bar, name) = open_input(options.file.as_deref())?;
    let tsv =
        options.file.as_deref().and_then(Path::extension).is_some_and(|e| e.eq_ignore_ascii_case("tsv"));
    let delimiter = options.delimiter.unwrap_or(if tsv { b'\t' } else { b',' });
    schema::printable("table name", &options.table)?;
    let mut lines = Lines::of(bar.wrap_read(input), &name, delimiter, options.key.as_deref())?;
    let columns = lines.columns().clone();

    // Commits are synced together, by the checkpoint at the end: until then nobody was told that a row is loaded.
    let loaded = with_database(db, true, Commit::Lazy, |db| {
        let (table, made) = table_for(db, &options.table, &columns, &name)?;
        let result = rows(&mut lines, &table, options);
        bar.finish_and_clear();
        if result.is_err() && made {
            db.drop_table(&options.table)?;
        }
        let result = result.map_err(|e| match e {
            Failed::Line(why, rows) if made || rows == 0 => {
                Failure::said(format!("{why}; nothing was loaded (--skip-bad leaves bad lines out)"))
            }
            Failed::Line(why, 1) => {
                Failure::said(format!("{why}; the row before it is loaded (--skip-bad leaves bad lines out)"))
            }
            Failed::Line(why, rows) => Failure::said(format!(
                "{why}; the {} before it are loaded (--skip-bad leaves bad lines out)",
                output::things(rows, "row")
            )),
            Failed::Other(failure) => failure,
        });
        db.checkpoint()?;
        result
    })?;
    report(json, &options.table, &columns, &loaded)?;
    Ok(ExitCode::SUCCESS)
}

/// Opens the file or standard input, with a bar that shows how far it is read.
fn open_input(file: Option<&Path>) -> Result<(Box<dyn Read>, ProgressBar, String)> {
    let (input, length, name): (Box<dyn Read>, _, _) = match file.filter(|f| *f != Path::new("-")) {
        None => (Box::new(io::stdin()), None, "standard input".to_owned()),
        Some(path) => {
            let name = path.display().to_string();
            let failed = |e| Failure::said(format!("{name} cannot be read: {e}"));
            let file = File::open(path).map_err(failed)?;
            let about = file.metadata().map_err(failed)?;
            if about.is_dir() {
                return Err(Failure::said(format!("{name} is a folder: give a CSV or TSV file")));
            }
            (Box::new(file), about.is_file().then_some(about.len()), name)
        }
    };
    let bar = match length {
        _ if !io::stderr().is_terminal() => ProgressBar::hidden(),
        None => ProgressBar::new_spinner().with_style(style("{spinner} {bytes} {bytes_per_sec}")),
        Some(n) => ProgressBar::new(n)
            .with_style(style("{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left")),
    };
    Ok((input, bar, name))
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// The table of that name with these columns, and whether it was made here.
fn table_for(db: &Database, name: &str, columns: &Columns, file: &str) -> Result<(Table, bool)> {
    match db.table(name) {
        Err(Error::Schema(SchemaError::NoTable(_))) => {
            Ok((db.create_table(name, engine::with_metadata(columns.to_metadata()?))?, true))
        }
        Err(other) => Err(other.into()),
        Ok(table) => match Columns::from_metadata(&table.metadata()) {
            Some(has) if has == *columns => Ok((table, false)),
            Some(has) => Err(Failure::said(format!(
                "{name} has {}, and {file} has {}: give a file with the same header (--key and --delimiter say how to \
                 read it), or load into another table",
                described(&has),
                described(columns)
            ))),
            None => Err(Failure::said(format!(
                "{name} has no column names, so it was not made by `windfall`: load into another table"
            ))),
        },
    }
}

fn described(columns: &Columns) -> String {
    match columns.others.as_slice() {
        [] => format!("the key {} and no other column", columns.key),
        [one] => format!("the key {} and the column {one}", columns.key),
        more => format!("the key {} and the columns {}", columns.key, more.join(", ")),
    }
}

/// Why a load stopped.
enum Failed {
    /// A bad line, and how many rows were loaded before it.
    Line(String, u64),
    Other(Failure),
}

/// Loads the lines below the header.
fn rows(lines: &mut Lines<impl Read>, table: &Table, options: &LoadArgs) -> Result<Loaded, Failed> {
    let mut loaded = Loaded::default();
    while let Some((place, line)) = lines.next().map_err(Failed::Other)? {
        let why = match line {
            Line::Row { key, value } => {
                match one(table, key, &value, options.replace).map_err(Failed::Other)? {
                    None => {
                        loaded.rows += 1;
                        continue;
                    }
                    Some(why) => why,
                }
            }
            Line::Bad(why) => why,
        };
        let why = format!("{place}: {why}");
        if !options.skip_bad {
            return Err(Failed::Line(why, loaded.rows));
        }
        loaded.skipped += 1;
        if loaded.shown.len() < SHOWN {
            loaded.shown.push(why);
        }
    }
    Ok(loaded)
}

/// Loads one row, or says what is wrong with it.
fn one(table: &Table, key: &[u8], value: &[u8], replace: bool) -> Result<Option<String>> {
    match if replace { table.put(key, value) } else { table.insert(key, value) } {
        Ok(()) => Ok(None),
        Err(Error::Schema(SchemaError::DuplicateKey(_))) => {
            Ok(Some(format!("the key {} is there already (--replace replaces rows)", output::text(key))))
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
        eprintln!("left out: {} more", output::count(more));
    }
    if json {
        return output::print_json(&json!({
            "table": table, "key": columns.key, "columns": columns.others,
            "rows": loaded.rows, "skipped": loaded.skipped,
        }));
    }
    let mut text =
        format!("loaded {} into {table} (key: {})", output::things(loaded.rows, "row"), columns.key);
    if loaded.skipped > 0 {
        text = format!("{text}, left out {}", output::things(loaded.skipped, "bad line"));
    }
    output::print(&(text + "\n"))
}
