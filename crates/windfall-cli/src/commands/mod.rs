//! The commands.
//!
//! **Purpose.** From the command line to the function that serves it.
//!
//! **Invariants.** Only a command that makes tables makes a database; every other refuses a folder without one. A
//! command that has opened a database closes it, also when it fails.
//!
//! **May touch.** Every module of the crate.

mod check;
mod load;
mod read;
mod schema;

use std::{path::Path, process::ExitCode};

use crate::{
    args::{Args, Command, Commit},
    bench, demo,
    engine::{Database, Setup},
    failure::{Failure, Result},
    sweep,
};

/// The buffer pool of a command that works on tables.
const POOL: u64 = 256 << 20;

/// Serves a command.
pub fn run(args: Args) -> Result<ExitCode> {
    let (db, json) = (args.db.as_path(), args.json);
    match args.command {
        Command::Demo(options) => demo::run(&options, json),
        Command::Bench(options) => bench::run(&options, json),
        Command::Create(options) => schema::create(db, json, &options),
        Command::Load(options) => load::load(db, json, &options),
        Command::Get(options) => read::get(db, json, &options),
        Command::Scan(options) => read::scan(db, json, &options),
        Command::Drop { tables } => schema::drop(db, json, &tables),
        Command::Truncate { table } => schema::truncate(db, json, &table),
        Command::Tables => schema::tables(db, json),
        Command::Check => check::check(db, json),
        Command::Sweep(what) => Ok(sweep::wait(&what)),
    }
}

/// Works with a database and closes it. The first failure is the one that is told.
fn with_database<T>(
    path: &Path,
    create: bool,
    commit: Commit,
    work: impl FnOnce(&Database) -> Result<T>,
) -> Result<T> {
    if !create && !path.exists() {
        let path = path.display();
        return Err(Failure::said(format!(
            "there is no database in {path}: give its folder with --db, or make one with `windfall create`"
        )));
    }
    let db = Setup { create, ..Setup::with_pool(POOL).commit(commit) }.open(path)?;
    let result = work(&db);
    let closed = db.close();
    let value = result?;
    closed?;
    Ok(value)
}
