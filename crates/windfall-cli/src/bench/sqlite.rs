//! `SQLite`, to compare transactions with.
//!
//! **Purpose.** Sysbench's read/write transactions in SQL, in write-ahead mode with every commit synced: the mode in
//! which `SQLite` lets readers and one writer work concurrently.
//!
//! **Method.** It has the same rows, all of them cached by each connection. A transaction that writes begins as a
//! writer, as its documentation recommends: one that becomes a writer later fails if another one has written since.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, params};
use windfall_measure::{Random, sbtest};

use super::transactions::Worker;
use crate::{
    failure::{Failure, Result},
    oltp::RANGE,
};

fn failed(error: rusqlite::Error) -> Failure {
    Failure::message(format!("sqlite: {error}"))
}

/// A database of `SQLite`.
pub(super) struct Sqlite {
    file: PathBuf,
    rows: u32,
}

impl Sqlite {
    /// Creates and fills a database.
    pub(super) fn load(folder: &Path, rows: u32, seed: u64) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let this = Self { file: folder.join("sbtest.sqlite"), rows };
        let mut connection = this.connect()?.0;
        let sql = "CREATE TABLE sbtest1 (id INTEGER PRIMARY KEY, k INTEGER, c TEXT, pad TEXT);
             CREATE INDEX k_1 ON sbtest1 (k);";
        connection.execute_batch(sql).map_err(failed)?;
        let write = connection.transaction().map_err(failed)?;
        let mut random = Random::new(seed, 0);
        for id in 1..=rows {
            insert(&write, id, &sbtest::value(rows, &mut random)).map_err(failed)?;
        }
        write.commit().map_err(failed)?;
        connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").map_err(failed)?;
        Ok(this)
    }

    /// Opens a connection, one per thread.
    pub(super) fn connect(&self) -> Result<Connected> {
        let connection = Connection::open(&self.file).map_err(failed)?;
        connection.busy_timeout(Duration::from_mins(1)).map_err(failed)?;
        let cache = u64::from(self.rows) / 2 + 65_536;
        let pragmas = format!(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -{cache}; PRAGMA mmap_size = 1073741824"
        );
        connection.execute_batch(&pragmas).map_err(failed)?;
        connection.set_prepared_statement_cache_capacity(32);
        Ok(Connected(connection, self.rows))
    }
}

/// A connection, and the number of rows.
pub(super) struct Connected(Connection, u32);

fn insert(connection: &Connection, id: u32, row: &[u8]) -> rusqlite::Result<()> {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let mut insert = connection.prepare_cached("INSERT INTO sbtest1 VALUES (?, ?, ?, ?)")?;
    insert.execute(params![id, sbtest::k(row), text(&row[sbtest::C]), text(&row[sbtest::C.end..])])?;
    Ok(())
}

const RANGES: [&str; 4] = [
    "SELECT c FROM sbtest1 WHERE id BETWEEN ? AND ?",
    "SELECT SUM(k) FROM sbtest1 WHERE id BETWEEN ? AND ?",
    "SELECT c FROM sbtest1 WHERE id BETWEEN ? AND ? ORDER BY c",
    "SELECT DISTINCT c FROM sbtest1 WHERE id BETWEEN ? AND ? ORDER BY c",
];

impl Connected {
    fn attempt(&self, random: &mut Random) -> rusqlite::Result<()> {
        let Self(connection, rows) = self;
        let mut id = || random.below(u64::from(*rows)) as u32 + 1;
        let run = |sql: &str, params: &[&dyn rusqlite::ToSql]| -> rusqlite::Result<usize> {
            let mut statement = connection.prepare_cached(sql)?;
            let mut found = statement.query(params)?;
            let mut count = 0;
            while let Some(row) = found.next()? {
                std::hint::black_box(row.get_ref(0)?);
                count += 1;
            }
            Ok(count)
        };
        run("BEGIN IMMEDIATE", &[])?;
        for _ in 0..10 {
            run("SELECT c FROM sbtest1 WHERE id = ?", &[&id()])?;
        }
        for sql in RANGES {
            let first = id();
            run(sql, &[&first, &(first + RANGE - 1)])?;
        }
        run("UPDATE sbtest1 SET k = k + 1 WHERE id = ?", &[&id()])?;
        let (changed, replaced) = (id(), id());
        let mut c = [0; sbtest::C.end - sbtest::C.start];
        sbtest::fill(&mut c, random);
        run("UPDATE sbtest1 SET c = ? WHERE id = ?", &[&String::from_utf8_lossy(&c), &changed])?;
        run("DELETE FROM sbtest1 WHERE id = ?", &[&replaced])?;
        insert(connection, replaced, &sbtest::value(*rows, random))?;
        run("COMMIT", &[])?;
        Ok(())
    }
}

impl Worker for Connected {
    fn transaction(&mut self, random: &mut Random) -> Result<bool> {
        match self.attempt(random) {
            Ok(()) => Ok(true),
            // Other writers held the lock for the whole busy timeout.
            Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy) => {
                if !self.0.is_autocommit() {
                    self.0.execute_batch("ROLLBACK").map_err(failed)?;
                }
                Ok(false)
            }
            Err(error) => Err(failed(error)),
        }
    }
}
