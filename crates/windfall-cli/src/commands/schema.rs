//! Schema commands: create, list, truncate, drop tables.
//!
//! **Purpose.** `create`, `tables`, `truncate`, `drop`, and their counterparts in the shell.
//!
//! **Invariants.** Several tables named in one `drop` are dropped in one atomic step: all of them or none (test:
//! `a_group_is_dropped_wholly_or_not_at_all`).

use std::{collections::HashSet, path::Path, process::ExitCode};

use serde_json::{Value, json};
use windfall::TableInfo;
use windfall_measure::units;

use super::with_database;
use crate::{
    args::{Commit, CreateArgs},
    columns::Columns,
    engine::{self, Database},
    failure::{Failure, Result},
    output::{self, Grid},
};

/// Checks that a name can be printed on a line and typed.
pub(crate) fn printable(what: &str, name: &str) -> Result<()> {
    if name.contains(char::is_control) {
        let name = output::quoted(name.as_bytes());
        return Err(Failure::message(format!(
            "the {what} \"{name}\" has a tab or another control character in it"
        )));
    }
    Ok(())
}

/// Returns the columns of a table, with the key's name removed from the list: the first, unless another is named.
/// Blanks around a name are ignored.
pub(crate) fn columns<'a>(names: impl IntoIterator<Item = &'a str>, key: Option<&str>) -> Result<Columns> {
    let names: Vec<String> = names.into_iter().map(|name| name.trim().to_owned()).collect();
    let mut seen = HashSet::new();
    for name in &names {
        if name.is_empty() {
            return Err(Failure::message("a column has no name: give every column one"));
        }
        if !seen.insert(name) {
            let name = output::quoted(name.as_bytes());
            return Err(Failure::message(format!("two columns are named {name}: rename one of them")));
        }
        printable("column name", name)?;
    }
    let at = match key {
        None => 0,
        Some(key) => names.iter().position(|n| n == key.trim()).ok_or_else(|| {
            Failure::message(format!(
                "there is no column {} to be the key: the columns are {}",
                output::quoted(key.as_bytes()),
                output::listed(&names)
            ))
        })?,
    };
    let mut others = names;
    if others.is_empty() {
        return Err(Failure::message("there are no columns: give at least the key's"));
    }
    Ok(Columns { key: others.remove(at), others })
}

/// Creates a table.
pub(crate) fn create(db: &Path, json: bool, options: &CreateArgs) -> Result<ExitCode> {
    printable("table name", &options.table)?;
    let columns = columns(options.columns.iter().map(String::as_str), options.key.as_deref())?;
    with_database(db, true, Commit::Sync, |db| {
        db.create_table(&options.table, engine::with_metadata(columns.to_metadata()?))?;
        Ok(())
    })?;
    if json {
        output::print_json(
            &json!({ "created": options.table, "key": columns.key, "columns": columns.others }),
        )?;
    } else {
        output::print(&format!("created {} (key: {})\n", options.table, columns.key))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists the tables.
pub(crate) fn tables(db: &Path, json: bool) -> Result<ExitCode> {
    let listing = with_database(db, false, Commit::Sync, Listing::of)?;
    if json {
        output::print_json(&listing.json())?;
    } else {
        output::print(&listing.text())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The tables, with their columns.
pub(crate) struct Listing(Vec<(TableInfo, Option<Columns>)>);

impl Listing {
    /// Reads the tables of a database.
    ///
    /// # Errors
    /// A file cannot be examined, or a table is dropped meanwhile.
    pub(crate) fn of(db: &Database) -> Result<Self> {
        let mut lines = Vec::new();
        for info in db.tables()? {
            let columns = Columns::from_metadata(&db.table(&info.name)?.metadata()?);
            lines.push((info, columns));
        }
        Ok(Self(lines))
    }

    /// Returns the JSON output.
    pub(crate) fn json(&self) -> Value {
        let object = |(info, columns): &(TableInfo, Option<Columns>)| {
            json!({
                "name": info.name,
                "indexes": info.indexes,
                "resident_pages": info.resident_pages,
                "dirty_pages": info.dirty_pages,
                "file_bytes": info.file_bytes,
                "key": columns.as_ref().map(|c| &c.key),
                "columns": columns.as_ref().map(|c| &c.others),
            })
        };
        json!({ "tables": self.0.iter().map(object).collect::<Vec<_>>() })
    }

    /// Returns the text output.
    pub(crate) fn text(&self) -> String {
        if self.0.is_empty() {
            return "no tables\n".into();
        }
        let mut grid = Grid::new(["table", ">file", "indexes", "key", "columns"]);
        for (info, columns) in &self.0 {
            let (key, others) =
                columns.as_ref().map_or_else(Default::default, |c| (c.key.clone(), c.others.join(", ")));
            let dash =
                |text: &str| if text.is_empty() { "-".to_owned() } else { output::text(text.as_bytes()) };
            let file = units::bytes(info.file_bytes as f64);
            grid.line([dash(&info.name), file, dash(&info.indexes.join(", ")), dash(&key), dash(&others)]);
        }
        grid.text()
    }
}

/// Truncates a table.
pub(crate) fn truncate(db: &Path, json: bool, table: &str) -> Result<ExitCode> {
    with_database(db, false, Commit::Sync, |db| Ok(db.truncate_table(table)?))?;
    if json {
        output::print_json(&json!({ "truncated": table }))?;
    } else {
        output::print(&format!("truncated {table}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the names; a duplicate is an error.
pub(crate) fn once_each(tables: &[String]) -> Result<Vec<&str>> {
    let names: Vec<&str> = tables.iter().map(String::as_str).collect();
    if let Some(twice) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
        return Err(Failure::message(format!("{} is named twice: name each table once", twice.1)));
    }
    Ok(names)
}

/// Drops tables, all or none.
pub(crate) fn drop(db: &Path, json: bool, tables: &[String]) -> Result<ExitCode> {
    let names = once_each(tables)?;
    let work = with_database(db, false, Commit::Sync, |db| engine::drop_counted(db, &names))?;
    if json {
        output::print_json(&json!({ "dropped": names, "work": work }))?;
    } else {
        output::print(&format!("dropped {}\n", names.join(", ")))?;
    }
    Ok(ExitCode::SUCCESS)
}
