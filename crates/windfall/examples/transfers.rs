//! Transfers between accounts, from several threads: transactions, locking reads, and the retry after a deadlock.
//!
//! Run it with `cargo run --release -p windfall --example transfers`.

use std::{path::Path, thread};

use windfall::{Database, Error, Options, Result, Table, TableOptions, TransactionOptions, error::LockError};

const ACCOUNTS: u64 = 10;
const BALANCE: u64 = 1_000;
const THREADS: u64 = 4;
const TRANSFERS: u64 = 250;

/// Returns the balance in a row's value.
fn balance(value: Option<Vec<u8>>) -> u64 {
    let bytes = value.and_then(|value| value.try_into().ok()).expect("every account has a balance");
    u64::from_be_bytes(bytes)
}

/// Moves money between two accounts, as one transaction.
fn transfer(db: &Database, accounts: &Table, from: u64, to: u64, amount: u64) -> Result<()> {
    let trx = db.begin(TransactionOptions::default());
    let accounts = trx.table(accounts);
    let [from, to] = [from.to_be_bytes(), to.to_be_bytes()];
    // The locking reads keep both rows as they are until the commit.
    let left = balance(accounts.get_for_update(&from)?);
    let right = balance(accounts.get_for_update(&to)?);
    if left >= amount {
        accounts.update(&from, &(left - amount).to_be_bytes())?;
        accounts.update(&to, &(right + amount).to_be_bytes())?;
    }
    // If a call above fails, `trx` is dropped, which rolls it back.
    trx.commit().map(drop)
}

/// Runs the example in a database in this folder.
///
/// # Errors
/// The errors of the database.
pub(crate) fn run(folder: &Path) -> Result<()> {
    let db = Database::open(folder, Options::default().buffer_pool_size(64 << 20))?;
    let accounts = db.create_table("accounts", TableOptions::default())?;
    for account in 0..ACCOUNTS {
        accounts.insert(&account.to_be_bytes(), &BALANCE.to_be_bytes())?;
    }
    let deadlocks: u64 = thread::scope(|scope| {
        let run = |thread: u64| {
            let (db, accounts) = (&db, &accounts);
            move || {
                let mut deadlocks = 0;
                for n in 0..TRANSFERS {
                    let from = (thread * 31 + n * 7) % ACCOUNTS;
                    let to = (from + 1 + n % (ACCOUNTS - 1)) % ACCOUNTS;
                    loop {
                        match transfer(db, accounts, from, to, n % 50) {
                            Ok(()) => break,
                            // Two transfers in opposite directions wait for each other; one of them is rolled back.
                            Err(Error::Lock(LockError::Deadlock(_))) => deadlocks += 1,
                            Err(error) => return Err(error),
                        }
                    }
                }
                Ok(deadlocks)
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(run(thread))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread of transfers")).sum::<Result<u64>>()
    })?;
    let mut sum = 0;
    for row in accounts.rows()? {
        let (_, value) = row?;
        sum += balance(Some(value));
    }
    println!("{} transfers, {deadlocks} deadlocks, {sum} in all accounts", THREADS * TRANSFERS);
    assert_eq!(sum, ACCOUNTS * BALANCE, "no transfer creates or destroys money");
    db.close()
}

#[cfg(not(test))]
fn main() -> Result<()> {
    let folder = std::env::temp_dir().join("windfall-example-transfers");
    let _ = std::fs::remove_dir_all(&folder);
    run(&folder)
}
