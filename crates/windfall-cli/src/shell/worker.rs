//! The thread of a session.
//!
//! **Purpose.** Executes the work of one session, one statement after the other, in its transaction if one is open.
//!
//! **Invariants.** Every statement is answered, also one that panics (test: `a_statement_that_panics_is_answered`). A
//! transaction that was ended by an error is removed, and the answer says so (test:
//! `a_deadlock_ends_one_transaction_and_says_so`). An answer with rows takes no more memory than [`MAX_ANSWER_BYTES`]
//! allows (test: `an_answer_has_a_longest_length`).

use std::{
    ops::Bound,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, TryLockError},
};

use serde_json::json;
use windfall::{
    Access, Isolation, LockWaitPolicy, Range, Transaction, TransactionOptions, TxTable,
    error::{Error, TransactionError},
    ids::TrxId,
};
use windfall_measure::units;

use super::{
    answer::Answer,
    statement::{Begin, RowLock, Scan, Work, level},
};
use crate::{
    columns::{self, Columns},
    commands::schema::{self, Listing, once_each, printable},
    engine::{self, Database, Table},
    failure::{Failure, Result},
    output,
};

/// The maximum bytes of keys and values in an answer.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// The transaction of a session, if one is open: the thread works in it, and other threads may read its state.
#[derive(Clone, Debug, Default)]
pub(super) struct SessionTransaction(Arc<RwLock<Option<Transaction>>>);

/// The visible state of a session's transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Open {
    /// The id of the transaction, once it has one.
    pub id: Option<TrxId>,
    /// The isolation level of the transaction.
    pub isolation: Isolation,
}

impl SessionTransaction {
    /// Returns the state of the open transaction; none while it is being ended.
    pub(super) fn state(&self) -> Option<Open> {
        let inner = match self.0.try_read() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(inner)) => inner.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        inner.as_ref().map(|trx| Open { id: trx.id(), isolation: trx.isolation() })
    }

    /// Removes and returns the transaction, after the statement that executes in it.
    pub(super) fn take(&self) -> Option<Transaction> {
        self.0.write().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn put(&self, trx: Transaction) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(trx);
    }

    fn read(&self) -> RwLockReadGuard<'_, Option<Transaction>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Executes a statement. A panic is a failure.
fn caught(answer: impl FnOnce() -> Result<Answer>) -> Result<Answer> {
    catch_unwind(AssertUnwindSafe(answer)).unwrap_or_else(|_| {
        Err(Failure::message("the statement has panicked, which is a bug: please report it"))
    })
}

/// The worker of a session.
#[derive(Debug)]
pub(super) struct Worker {
    db: Database,
    transaction: SessionTransaction,
}

impl Worker {
    /// Returns a worker that works in this transaction.
    pub(super) fn new(db: Database, transaction: SessionTransaction) -> Self {
        Self { db, transaction }
    }

    /// Executes a statement.
    ///
    /// # Errors
    /// Errors of the library, with a note if the transaction is over.
    pub(super) fn run(&self, work: Work) -> Result<Answer, String> {
        let done = caught(|| self.answer(work));
        let over = self.drop_if_ended();
        done.map_err(
            |failure| if over { format!("{failure}; the transaction is over") } else { failure.to_string() },
        )
    }

    /// Removes a transaction that was ended by an error. Returns whether there was one.
    fn drop_if_ended(&self) -> bool {
        // An empty statement has no effect, but it fails if the transaction is over.
        let asked = self.transaction.read().as_ref().map(|trx| trx.atomically(|| Ok(())));
        let over = matches!(asked, Some(Err(Error::Transaction(TransactionError::RolledBack(_)))));
        if over {
            drop(self.transaction.take());
        }
        over
    }

    fn answer(&self, work: Work) -> Result<Answer> {
        let db = &self.db;
        Ok(match work {
            Work::Begin(begin) => self.begin(&begin)?,
            Work::Commit => {
                ended(self.taken()?.commit())?;
                Answer::message("committed", json!({ "committed": true }))
            }
            Work::Rollback => {
                ended(self.taken()?.rollback())?;
                Answer::message("rolled back", json!({ "rolled_back": true }))
            }
            Work::Savepoint(name) => {
                self.with(|trx| trx.savepoint(&name))?;
                Answer::message(format!("savepoint {name}"), json!({ "savepoint": name }))
            }
            Work::RollbackTo(name) => {
                self.with(|trx| trx.rollback_to(&name))?;
                Answer::message(format!("rolled back to {name}"), json!({ "rolled_back_to": name }))
            }
            Work::Release(name) => {
                self.with(|trx| trx.release(&name))?;
                Answer::message(format!("released {name}"), json!({ "released": name }))
            }
            Work::Prepare(xid) => {
                self.with(|trx| trx.prepare(&xid))?;
                // Without its handle it can be ended by its name.
                drop(self.transaction.take());
                about("prepared as", "prepared", &xid)
            }
            Work::CommitPrepared(xid) => {
                db.commit_prepared(&xid)?;
                about("committed", "committed_prepared", &xid)
            }
            Work::RollbackPrepared(xid) => {
                db.rollback_prepared(&xid)?;
                about("rolled back", "rolled_back_prepared", &xid)
            }
            Work::Get { table, key, lock } => self.get(&table, key, lock)?,
            Work::Write { table, key, fields, replace } => self.write(&table, &key, &fields, replace)?,
            Work::Delete { table, key } => {
                let deleted = self.table(&table, None, |table, in_trx, _| {
                    Ok(in_trx.map_or_else(|| table.delete(&key), |in_trx| in_trx.delete(&key))?)
                })?;
                Answer::message(if deleted { "deleted" } else { "no row" }, json!({ "deleted": deleted }))
            }
            Work::Scan(scan) => self.scan(scan)?,
            Work::Create { table, columns } => self.create(&table, &columns)?,
            Work::Drop(tables) => {
                let names = once_each(&tables)?;
                self.outside("drop")?;
                db.drop_tables(&names)?;
                Answer::message(format!("dropped {}", names.join(", ")), json!({ "dropped": names }))
            }
            Work::Truncate(table) => {
                self.outside("truncate")?;
                db.truncate_table(&table)?;
                Answer::message(format!("truncated {table}"), json!({ "truncated": table }))
            }
            Work::Rename { from, to } => {
                printable("table name", &to)?;
                self.outside("rename")?;
                db.rename_table(&from, &to)?;
                Answer::message(format!("renamed {from} to {to}"), json!({ "renamed": from, "to": to }))
            }
            Work::Tables => {
                let listing = Listing::of(db)?;
                Answer::message(listing.text(), listing.json())
            }
        })
    }

    fn begin(&self, begin: &Begin) -> Result<Answer> {
        if self.transaction.read().is_some() {
            return Err(Failure::message(
                "a transaction is open: `commit` it or `rollback` first, or use another session",
            ));
        }
        let isolation = begin.isolation.unwrap_or_default();
        let mut options = TransactionOptions::default().isolation(isolation);
        if begin.read_only {
            options = options.read_only();
        }
        if begin.snapshot {
            options = options.consistent_snapshot();
        }
        if let Some(wait) = begin.wait {
            options = options.lock_wait(wait);
        }
        self.transaction.put(self.db.begin(options));
        let level = level(isolation);
        Ok(Answer::message(format!("begun, {level}"), json!({ "begun": level })))
    }

    /// Removes and returns the transaction, to end it.
    fn taken(&self) -> Result<Transaction> {
        self.transaction.take().ok_or_else(none_open)
    }

    /// Calls `run` with the transaction.
    fn with<T>(&self, run: impl FnOnce(&Transaction) -> windfall::Result<T>) -> Result<T> {
        Ok(run(self.transaction.read().as_ref().ok_or_else(none_open)?)?)
    }

    /// Rejects a statement that cannot be part of a transaction.
    fn outside(&self, word: &str) -> Result<()> {
        if self.transaction.read().is_some() {
            return Err(Failure::message(format!(
                "`{word}` is no part of a transaction: `commit` or `rollback` first, or use another session"
            )));
        }
        Ok(())
    }

    /// Calls `run` with a table, and the same in the transaction if one is open.
    fn table<T>(
        &self,
        name: &str,
        lock: Option<RowLock>,
        run: impl FnOnce(&Table, Option<TxTable<'_>>, Option<Columns>) -> Result<T>,
    ) -> Result<T> {
        let open = self.transaction.read();
        if lock.is_some() && open.is_none() {
            return Err(Failure::message("a lock lasts as long as a transaction: `begin` one first"));
        }
        let table = self.db.table(name)?;
        let columns = Columns::from_metadata(&table.metadata()?);
        let then = lock.map_or(LockWaitPolicy::Wait, |lock| lock.wait_policy);
        run(&table, open.as_ref().map(|trx| trx.table(&table).lock_wait_policy(then)), columns)
    }

    fn get(&self, table: &str, key: Vec<u8>, lock: Option<RowLock>) -> Result<Answer> {
        self.table(table, lock, |table, in_trx, columns| {
            let value = match (in_trx, lock) {
                (None, _) => table.get(&key),
                (Some(table), None) => table.get(&key),
                (Some(table), Some(RowLock { for_update: false, .. })) => table.get_for_share(&key),
                (Some(table), Some(_)) => table.get_for_update(&key),
            }?;
            Ok(Answer::Rows { columns, rows: value.map(|value| (key, value)).into_iter().collect() })
        })
    }

    fn write(&self, table: &str, key: &[u8], fields: &[Vec<u8>], replace: bool) -> Result<Answer> {
        self.table(table, None, |table, in_trx, columns| {
            let value = value(table.name(), columns.as_ref(), fields)?;
            match in_trx {
                Some(table) => store(&table, key, &value, replace),
                None => store(table, key, &value, replace),
            }?;
            let word = if replace { "put" } else { "inserted" };
            Ok(Answer::message(word, json!({ word: true })))
        })
    }

    fn scan(&self, scan: Scan) -> Result<Answer> {
        self.table(&scan.table, scan.lock, |table, in_trx, columns| {
            let nothing = matches!((&scan.from, &scan.to), (Some(from), Some(to)) if from >= to);
            let bounds = (
                scan.from.map_or(Bound::Unbounded, Bound::Included),
                scan.to.map_or(Bound::Unbounded, Bound::Excluded),
            );
            if nothing {
                return Ok(Answer::Rows { columns, rows: Vec::new() });
            }
            let mut range = match (in_trx, scan.lock) {
                (None, _) => table.range(bounds),
                (Some(table), None) => table.range(bounds),
                (Some(table), Some(RowLock { for_update: false, .. })) => table.range_for_share(bounds),
                (Some(table), Some(_)) => table.range_for_update(bounds),
            }?;
            let step = if scan.reverse { Range::next_back } else { Range::next };
            let (mut rows, mut length) = (Vec::new(), 0);
            while scan.limit.is_none_or(|limit| rows.len() < limit)
                && let Some(row) = step(&mut range)
            {
                let (key, value) = row?;
                length += key.len() + value.len();
                if length > MAX_ANSWER_BYTES {
                    return Err(Failure::message(format!(
                        "the rows have more than {}: give a limit, or use `windfall scan`, which prints any number",
                        units::bytes(MAX_ANSWER_BYTES as f64)
                    )));
                }
                rows.push((key, value));
            }
            Ok(Answer::Rows { columns, rows })
        })
    }

    fn create(&self, table: &str, columns: &[String]) -> Result<Answer> {
        printable("table name", table)?;
        let columns = schema::columns(columns.iter().map(String::as_str), None)?;
        self.outside("create")?;
        self.db.create_table(table, engine::with_metadata(columns.to_metadata()?))?;
        Ok(Answer::message(
            format!("created {table} (key: {})", columns.key),
            json!({ "created": table, "key": columns.key, "columns": columns.others }),
        ))
    }
}

/// Puts a row, or inserts it.
fn store(table: &Table<impl Access>, key: &[u8], value: &[u8], replace: bool) -> windfall::Result<()> {
    if replace { table.put(key, value) } else { table.insert(key, value) }
}

/// Encodes the value of a row with these fields.
fn value(table: &str, columns: Option<&Columns>, fields: &[Vec<u8>]) -> Result<Vec<u8>> {
    let given = units::things(fields.len() as u64, "field");
    match (columns, fields) {
        (None, [value]) => Ok(value.clone()),
        (None, _) => Err(Failure::message(format!(
            "{table} has no columns, for it was not made by `windfall`: give the key and one value, not {given}"
        ))),
        (Some(columns), _) => {
            if fields.len() != columns.others.len() {
                let (key, others) = (output::quoted(columns.key.as_bytes()), output::listed(&columns.others));
                let then =
                    if others.is_empty() { "and nothing else".into() } else { format!("then {others}") };
                return Err(Failure::message(format!(
                    "{table} takes the key {key}, {then}: after the key there are {given}"
                )));
            }
            let fields: Vec<&[u8]> = fields.iter().map(Vec::as_slice).collect();
            columns::encode(&fields)
                .ok_or_else(|| Failure::message("the row is too long: it has at most 4 GiB"))
        }
    }
}

/// Converts the result of ending a transaction, which is over also if that fails.
fn ended<T>(done: windfall::Result<T>) -> Result<T> {
    done.map_err(|error| Failure::message(format!("{error}; the transaction is over")))
}

fn none_open() -> Failure {
    Failure::message("no transaction is open: `begin` one first")
}

/// Returns the answer about a prepared transaction.
fn about(text: &str, name: &str, xid: &[u8]) -> Answer {
    Answer::message(format!("{text} {}", output::text(xid)), json!({ name: output::value(xid) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_that_panics_is_answered() {
        let answer = caught(|| unreachable!("a statement with a bug"));
        assert!(answer.is_err_and(|failure| failure.to_string().contains("has panicked")));
    }
}
