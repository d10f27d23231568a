//! The tables that are dropped.
//!
//! **Purpose.** One big table, and small ones as in bug report 56332.
//!
//! **Invariants.** The seed determines the rows (test: `the_seed_determines_the_rows`).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use windfall_measure::Random;

use crate::{
    engine::{self, Database, Table},
    failure::Result,
};

/// The name of the big table.
pub(super) const BIG: &str = "big";
/// The bytes of a row of the big table.
pub(super) const BIG_ROW: u64 = 1_000;

/// Creates the big table and loads rows of 1,000 bytes, counting them.
pub(super) fn load_big(db: &Database, rows: u64, seed: u64, done: &AtomicU64) -> Result<Table> {
    let table = db.create_table(BIG, engine::with_metadata(Vec::new()))?;
    let mut random = Random::new(seed, 1);
    let mut value = vec![0; BIG_ROW as usize];
    for id in 0..rows {
        random.fill(&mut value);
        table.insert(&id.to_be_bytes(), &value)?;
        done.fetch_add(1, Relaxed);
    }
    Ok(table)
}

/// Changes a row of (about) every page of the big table, so that all of its pages are dirty.
pub(super) fn dirty_big(table: &Table, rows: u64, page_size: u64) -> Result<()> {
    let per_page = (page_size / (BIG_ROW + 64)).max(2) as usize - 1;
    let value = vec![b'.'; BIG_ROW as usize];
    for id in (0..rows).step_by(per_page) {
        table.update(&id.to_be_bytes(), &value)?;
    }
    Ok(())
}

/// Returns the name of a small table.
pub(super) fn small_name(n: usize) -> String {
    format!("ts_{n}")
}

/// Creates a small table as in bug report 56332 (primary key `metric_id, agent_id, begin_time, agent_run_id`), fills it
/// and reads every row once.
pub(super) fn make_small(db: &Database, n: usize, rows: u32, seed: u64) -> Result<()> {
    let table = db.create_table(&small_name(n), engine::with_metadata(Vec::new()))?;
    let mut random = Random::new(seed, 1_000 + n as u64);
    let key = |row: u32| -> [u8; 16] {
        let mut key = [0; 16];
        for (at, part) in [row % 50, row / 50, 1_283_000_000 + row, 7].into_iter().enumerate() {
            key[4 * at..][..4].copy_from_slice(&part.to_be_bytes());
        }
        key
    };
    for row in 0..rows {
        // end_time, call_count, total_call_time, sum_of_squares, min_call_time, max_call_time, total_exclusive_time
        let mut value = [0; 28];
        random.fill(&mut value);
        table.insert(&key(row), &value)?;
    }
    for row in 0..rows {
        std::hint::black_box(table.get(&key(row))?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Setup;

    #[test]
    fn the_seed_determines_the_rows() {
        let rows = |seed| {
            let folder = tempfile::tempdir().unwrap();
            let db = Setup::with_pool(64 << 20).open(folder.path()).unwrap();
            let big = load_big(&db, 30, seed, &AtomicU64::new(0)).unwrap();
            make_small(&db, 0, 30, seed).unwrap();
            let small = db.table(&small_name(0)).unwrap();
            [big, small].map(|table| table.rows().unwrap().map(Result::unwrap).collect::<Vec<_>>())
        };
        let [big, small] = rows(7);
        assert_eq!((big.len(), small.len()), (30, 30));
        assert_eq!(rows(7), [big.clone(), small.clone()]);
        let others = rows(8);
        assert!(others[0] != big && others[1] != small);
    }
}
