//! What tests on a real disk begin with.

use tempfile::TempDir;
use windfall::{Database, Options, Result};

/// A new database, and the folder that it lies in as long as this lives.
pub fn new_database(options: Options) -> Result<(TempDir, Database)> {
    let folder = tempfile::tempdir().expect("a folder");
    let db = Database::open(folder.path(), options)?;
    Ok((folder, db))
}

/// The key of a row: keys are in the order of their numbers.
pub fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}
