//! Transactions of many calls, through the public interface.

#![allow(clippy::unwrap_used, reason = "a test panics")]

mod background;
mod batches;
mod calls;
mod change_key;
#[path = "../changed_env/mod.rs"]
mod changed_env;
mod commit_order;
mod conditions;
mod crowds;
mod ddl_in_transactions;
mod duplicates;
mod durability;
mod ends;
mod find_modes;
mod get_many;
#[path = "../guard/mod.rs"]
mod guard;
mod index_numbers;
mod index_only;
mod interrupts;
mod lock_owners;
mod locked_ranges;
mod long_work;
mod made_entries;
mod observed_waits;
mod old_views;
mod one_row;
mod open_statements;
mod own_changes;
mod prepared;
mod progress;
mod queue;
mod reads;
mod restarts;
mod semi_consistent;
mod statements;
mod supplied;
mod table_locks;
mod temporary;
#[path = "../time_limit/mod.rs"]
mod time_limit;
mod undo_limit;
mod unlock;
mod views;
mod wait_policy;
mod waits;

use std::{
    sync::Arc,
    thread::{self, ScopedJoinHandle},
    time::Duration,
};

use windfall::{
    Access, Database, IndexOptions, Isolation, Lock, Options, Table, TableOptions, Transaction,
    TransactionOptions, env::RealEnv,
};
use windfall_sim::{SimulatedDisk, SimulatedEnv};

fn options() -> Options {
    Options::default()
        .page_size(4096)
        .buffer_pool_size(512 * 4096)
        .log_size(8 << 20)
        .log_buffer_size(256 << 10)
        .lock_wait_timeout(Duration::from_secs(20))
}

/// Creates a database for real threads.
fn database() -> Database {
    let env = Arc::new(RealEnv::default());
    let options = options().lock_wait_timeout(time_limit::HANG);
    Database::open_on(Arc::new(SimulatedDisk::new(1)), env, &options, &|_| {}).unwrap()
}

/// Opens a database on one thread. Its workers run only when the test lets them.
fn simulated(disk: &SimulatedDisk, env: &SimulatedEnv) -> Database {
    Database::open_on(Arc::new(disk.clone()), Arc::new(env.clone()), &options(), &|_| {}).unwrap()
}

/// Creates a table with an index on the first byte of its values, and a unique one on the second.
fn table(db: &Database) -> Table {
    let options = TableOptions::default()
        .index("first", IndexOptions::on_value(0..1))
        .index("second", IndexOptions::on_value(1..2).unique());
    db.create_table("t", options).unwrap()
}

fn begin(db: &Database, isolation: Isolation) -> Transaction {
    db.begin(TransactionOptions::default().isolation(isolation))
}

/// All isolation levels.
const LEVELS: [Isolation; 5] = [
    Isolation::ReadUncommitted,
    Isolation::ReadCommitted,
    Isolation::RepeatableRead,
    Isolation::Snapshot,
    Isolation::Serializable,
];

/// Returns the keys, of one byte, of the rows that a transaction has locked.
fn locked_rows(db: &Database, trx: &Transaction) -> Vec<u8> {
    let of = db.locks().into_iter().filter(|held| Some(held.trx) == trx.id());
    let rows = of.filter_map(|held| match held.lock {
        Lock::Row(row, _) => Some(row.key[0]),
        _ => None,
    });
    rows.collect()
}

/// Waits until a call of another thread waits for a lock.
fn await_lock_wait<T>(db: &Database, call: &ScopedJoinHandle<'_, T>) {
    while db.lock_waits().is_empty() {
        assert!(!call.is_finished(), "it did not wait");
        thread::yield_now();
    }
}

/// Returns the rows by key, and asserts that the index has the same ones.
fn rows(table: &Table<impl Access>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let rows: Vec<_> = table.rows().unwrap().map(Result::unwrap).collect();
    let index = table.index("first").unwrap();
    let mut by_index: Vec<_> =
        index.range::<&[u8]>(..).unwrap().map(|row| row.map(|row| (row.key, row.value)).unwrap()).collect();
    let keys: Vec<_> =
        by_index.iter().map(|(key, value)| (value[..value.len().min(1)].to_vec(), key.clone())).collect();
    let covered: Vec<_> = index.keys::<&[u8]>(..).unwrap().map(Result::unwrap).collect();
    let covered: Vec<_> = covered.into_iter().map(|found| (found.index_key, found.key)).collect();
    assert_eq!(covered, keys, "the index alone and the rows that it leads to disagree");
    by_index.sort();
    assert_eq!(by_index, rows, "rows and index disagree");
    rows
}

fn pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<(Vec<u8>, Vec<u8>)> {
    pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect()
}
