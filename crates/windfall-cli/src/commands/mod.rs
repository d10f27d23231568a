//! The commands.
//!
//! **Purpose.** Dispatches the command line to the function that executes it, and opens and closes the database of a
//! command.
//!
//! **Invariants.** Only `create` and `load` create a database; every other command rejects a folder without one (test:
//! `a_folder_without_a_database_is_not_made_one_by_reading`).

mod check;
mod input;
pub(crate) mod lines;
mod load;
mod read;
pub(crate) mod schema;

use std::{fs, path::Path, process::ExitCode};

use windfall::error::{Error, UsageError};

use crate::{
    args::{Args, Command, Commit},
    bench, demo,
    engine::{Database, Setup},
    failure::{Failure, Result},
    shell, sweep,
};

/// The buffer pool of a command that works on tables.
const POOL: u64 = 256 << 20;

/// Executes a command.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let (db, json) = (args.db.as_path(), args.json);
    match args.command {
        Command::Demo(options) => demo::run(&options, json),
        Command::Bench(options) => bench::run(&options, json),
        #[cfg(feature = "lab")]
        Command::Lab(options) => crate::lab::run(&options, json),
        Command::Create(options) => schema::create(db, json, &options),
        Command::Load(options) => load::load(db, json, &options),
        Command::Get(options) => read::get(db, json, &options),
        Command::Scan(options) => read::scan(db, json, &options),
        Command::Drop { tables } => schema::drop(db, json, &tables),
        Command::Truncate { table } => schema::truncate(db, json, &table),
        Command::Tables => schema::tables(db, json),
        Command::Shell(options) => {
            with_database(db, false, Commit::Sync, |db| shell::run(db, json, options.keep_going))
        }
        Command::Check { table } => check::check(db, table.as_deref(), json),
        Command::Sweep(what) => Ok(sweep::wait(&what)),
    }
}

/// Runs `work` with a database and closes it. The first failure is returned.
fn with_database<T>(
    path: &Path,
    create: bool,
    commit: Commit,
    work: impl FnOnce(&Database) -> Result<T>,
) -> Result<T> {
    let said = |what: String| Err(Failure::message(what));
    let shown = path.display();
    let none = format!(
        "there is no database in {shown}: give its folder with --db, or make one with `windfall create`"
    );
    if path.is_file() {
        return said(format!("{shown} is a file: --db takes the folder of a database"));
    }
    if create && let Err(e) = fs::create_dir_all(path) {
        return said(format!("{shown} cannot be created: {e}; give another folder with --db"));
    }
    let db = match (Setup { create, ..Setup::with_pool(POOL).commit(commit) }).open(path) {
        Err(Failure::Engine(Error::Usage(UsageError::NoDatabase { .. }))) => return said(none),
        db => db?,
    };
    let result = work(&db);
    let closed = db.close();
    let value = result?;
    closed?;
    Ok(value)
}
