//! Helpers for tests on a real disk.

#![allow(dead_code, reason = "a file of tests needs a part of it")]

use tempfile::TempDir;
use windfall::{Database, IndexOptions, Options, Result, TableOptions};

/// Returns a new database, and its folder, which exists as long as the first value lives.
pub(crate) fn new_database(options: Options) -> Result<(TempDir, Database)> {
    let folder = tempfile::tempdir().expect("a folder");
    let db = Database::open(folder.path(), options)?;
    Ok((folder, db))
}

/// Returns the options of a database with a small pool and a small log, for statements that meet their limits.
pub(crate) fn small_options() -> Options {
    Options::default()
        .page_size(4096)
        .buffer_pool_size(300 * 4096)
        .log_size(4 << 20)
        .log_buffer_size(256 << 10)
}

/// Returns the key of a row: keys sort by number.
pub(crate) fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

/// Returns the definition of a table whose record has 31 bytes and `size` more: metadata, which may take half of the
/// record, and names of indexes, which may have `limit` bytes.
pub(crate) fn with_record(size: usize, page_size: usize, limit: usize) -> TableOptions {
    /// The bytes of an index in a record, besides its name.
    const INDEX: usize = 25;
    let metadata = size.min(page_size / 8);
    let (mut options, mut left) = (TableOptions::default().metadata(vec![7; metadata]), size - metadata);
    while left > INDEX {
        let length = (left - INDEX).min(limit);
        options = options.index(&format!("{left:0>length$}")[..length], IndexOptions::on_value(0..1));
        left -= INDEX + length;
    }
    options
}
