//! Sysbench's `oltp_read_write` on a server of the lab.
//!
//! **Purpose.** A transaction is 10 point reads, 4 ranges of 100 rows, an update of the indexed column and one of
//! another column, a delete and an insert of the same row, and the commit.
//!
//! **Invariants.** Rows and index agree, because a client holds a lock on a row while it changes the row (test:
//! `rows_and_index_agree_after_concurrent_transactions`).
//!
//! **Method.** There is no rollback, and a lock is held for at most two queries: a delete, and the insert of the same
//! row.

use std::{hint::black_box, sync::Arc};

use parking_lot::Mutex;
use windfall::{error::Result, ids::Lsn};
use windfall_btree::tree::{Seek, Tree, store::PageStore};
use windfall_measure::{Random, sbtest};

use super::load::Recorder;
use crate::server::{Server, Table, rows};

/// Rows of a range.
const RANGE: u32 = 100;
/// Locks that the rows share.
const LOCKS: usize = 1 << 12;
/// The fill factor of a loaded tree's nodes, in per cent: as `InnoDB` leaves them.
const FILL: usize = 93;
/// Rows between two checks whether the log has room.
const ROWS_PER_COMMIT: u32 = 10_000;

/// The table, with ids 1 to `rows`.
#[derive(Debug)]
pub struct Oltp<S: Server> {
    /// The table.
    pub table: Arc<Table<S::Store>>,
    rows: u32,
    locks: Box<[Mutex<()>]>,
}

/// Returns the key of a row in the index.
fn index_key(k: u32, id: u32) -> [u8; 8] {
    (u64::from(k) << 32 | u64::from(id)).to_be_bytes()
}

impl<S: Server> Oltp<S> {
    /// Creates the table with its index on `k`, and loads it.
    ///
    /// # Errors
    /// Errors of the server.
    pub fn load(server: &S, name: &str, rows: u32, seed: u64) -> Result<Self> {
        let table = server.create(name, true)?;
        let mut random = Random::new(seed, 0);
        let mut index = Vec::with_capacity(rows as usize);
        let mut loader = table.rows.bulk_load(FILL)?;
        for id in 1..=rows {
            if id.is_multiple_of(ROWS_PER_COMMIT) {
                server.log().wait_for_room(0)?;
            }
            let value = sbtest::value(rows, &mut random);
            index.push(index_key(sbtest::k(&value), id));
            loader.push(&sbtest::key(id), rows::HEADER, &value)?;
        }
        let mut end = loader.finish()?;
        if let Some(tree) = &table.index {
            index.sort_unstable();
            let mut loader = tree.bulk_load(FILL)?;
            for key in index {
                loader.push(&key, rows::HEADER, b"")?;
            }
            end = loader.finish()?;
        }
        server.commit(end)?;
        Ok(Self { table, rows, locks: (0..LOCKS).map(|_| Mutex::new(())).collect() })
    }

    /// Reads every row and every entry of the index once, so that all of it is in the pool.
    ///
    /// # Errors
    /// Errors of the server.
    pub fn warm(&self) -> Result<()> {
        for tree in self.table.trees() {
            let mut cursor = tree.cursor();
            while cursor.next()? {}
        }
        Ok(())
    }

    /// Runs one transaction.
    ///
    /// # Errors
    /// Errors of the server.
    pub fn transaction(&self, server: &S, random: &mut Random, recorder: &mut Recorder<'_>) -> Result<()> {
        let tree = &*self.table.rows;
        let mut value = Vec::new();
        for _ in 0..10 {
            let key = sbtest::key(self.id(random));
            recorder.query(|| tree.get_into(&key, &mut value))?;
        }
        for _ in 0..4 {
            let first = self.id(random);
            recorder.query(|| sum_range(tree, first))?;
        }
        server.log().wait_for_room(0)?;
        let id = self.id(random);
        recorder.query(|| {
            self.change(id, |row| {
                let k = sbtest::k(row).wrapping_add(1);
                sbtest::set_k(row, k);
            })
        })?;
        let id = self.id(random);
        let mut c = [0; sbtest::C.end - sbtest::C.start];
        sbtest::fill(&mut c, random);
        recorder.query(|| self.change(id, |row| row[sbtest::C].copy_from_slice(&c)))?;
        let id = self.id(random);
        let row = sbtest::value(self.rows, random);
        let locked = self.lock(id).lock();
        recorder.query(|| self.delete(id))?;
        let end = recorder.query(|| self.insert(id, &row))?;
        drop(locked);
        recorder.query(|| server.commit(end))
    }

    fn id(&self, random: &mut Random) -> u32 {
        random.below(u64::from(self.rows)) as u32 + 1
    }

    fn lock(&self, id: u32) -> &Mutex<()> {
        &self.locks[id as usize % LOCKS]
    }

    /// Changes a row, and its entry in the index if `k` has changed.
    fn change(&self, id: u32, how: impl FnOnce(&mut [u8])) -> Result<Option<Lsn>> {
        let _locked = self.lock(id).lock();
        let key = sbtest::key(id);
        let Some(mut row) = rows::get(&self.table.rows, &key)? else { return Ok(None) };
        let before = sbtest::k(&row);
        how(&mut row);
        let end = rows::put(&self.table.rows, &key, &row)?;
        let Some(index) = self.table.index.as_ref().filter(|_| sbtest::k(&row) != before) else {
            return Ok(end);
        };
        rows::remove(index, &index_key(before, id))?;
        rows::put(index, &index_key(sbtest::k(&row), id), b"")
    }

    fn delete(&self, id: u32) -> Result<Option<Lsn>> {
        let key = sbtest::key(id);
        let Some(row) = rows::get(&self.table.rows, &key)? else { return Ok(None) };
        if let Some(index) = &self.table.index {
            rows::remove(index, &index_key(sbtest::k(&row), id))?;
        }
        rows::remove(&self.table.rows, &key)
    }

    fn insert(&self, id: u32, row: &[u8]) -> Result<Option<Lsn>> {
        let end = rows::put(&self.table.rows, &sbtest::key(id), row)?;
        let Some(index) = &self.table.index else { return Ok(end) };
        rows::put(index, &index_key(sbtest::k(row), id), b"")
    }
}

/// Sums column `k` over a range.
fn sum_range<P: PageStore>(tree: &Tree<P>, first: u32) -> Result<u64> {
    let mut cursor = tree.cursor();
    let mut there = cursor.seek(Seek::AtLeast(&sbtest::key(first)))?;
    let mut sum = 0;
    for _ in 0..RANGE {
        if !there {
            break;
        }
        sum += u64::from(sbtest::k(cursor.value()));
        there = cursor.next()?;
    }
    Ok(black_box(sum))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tempfile::TempDir;
    use windfall::FlushLog;

    use super::*;
    use crate::{
        server::{Start, classic::Classic},
        system::{PolicyName, System},
        workload::load::{self, Plan},
    };

    #[test]
    fn rows_and_index_agree_after_concurrent_transactions() {
        let folder = TempDir::new().unwrap();
        let (system, flush) = (System::of(PolicyName::FlushList), FlushLog::Write);
        let start = Start { system, folder: folder.path(), pages: 256, log: 64 << 20, flush };
        let server = Classic::start(&start).unwrap();
        // So few rows that clients often change the same one.
        let oltp = Oltp::load(&server, "t", 20, 1).unwrap();
        let client =
            |random: &mut Random, recorder: &mut Recorder<'_>| oltp.transaction(&server, random, recorder);
        let plan = Plan::every(4, Duration::from_secs(1), Duration::from_millis(400), 1);
        let result = load::run(&server, &plan, &client, &mut |_, begins| {
            begins();
            Ok(None)
        });
        assert!(result.unwrap().with.queries > 100);
        let mut entries = Vec::new();
        let mut cursor = oltp.table.rows.cursor();
        while cursor.next().unwrap() {
            let id = u32::from_be_bytes(cursor.key().try_into().unwrap());
            entries.push(index_key(sbtest::k(cursor.value()), id).to_vec());
        }
        entries.sort_unstable();
        assert_eq!(entries.len(), 20);
        let mut cursor = oltp.table.index.as_ref().unwrap().cursor();
        let mut indexed = Vec::new();
        while cursor.next().unwrap() {
            indexed.push(cursor.key().to_vec());
        }
        assert_eq!(indexed, entries);
    }
}
