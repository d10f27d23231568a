//! Helpers for tests on a real disk.

use tempfile::TempDir;
use windfall::{Database, Options, Result};

/// Returns a new database, and its folder, which exists as long as the first value lives.
pub(crate) fn new_database(options: Options) -> Result<(TempDir, Database)> {
    let folder = tempfile::tempdir().expect("a folder");
    let db = Database::open(folder.path(), options)?;
    Ok((folder, db))
}

/// Returns the key of a row: keys sort by number.
pub(crate) fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}
