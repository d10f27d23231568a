//! The calls of `bench calls` as the handler of a SQL server makes them.
//!
//! **Purpose.** Changes with entries that the caller supplies, named by the numbers of their indexes, each a statement
//! of a transaction; rows and entries in batches; ranges of a cursor; locking reads whose rows are lent.
//!
//! **Invariants.** As those of `cases`: each row is found, and changed (test: `calls`).
//!
//! **Method.** A transaction has a hundred statements, and each call gets its handle of the table from the transaction,
//! because a handler keeps the table and the transaction alone.

use std::hint::black_box;

use windfall::{
    BATCH_ROWS, Batch, IndexBatch, OneRow, Seek, StatementEnd, SuppliedChange, SuppliedEntry, Transaction,
    TransactionOptions,
};

use super::cases::{self, Caller, Calls, IN_TRANSACTION, PLAIN, VALUE, lost};
use crate::failure::Result;

/// Makes calls in transactions of a hundred each, with their begin and commit.
pub(super) fn in_transactions<'a>(
    caller: &'a Caller,
    mut call: impl FnMut(&Transaction) -> Result<()> + 'a,
) -> Calls<'a> {
    Box::new(move |calls| {
        let mut left = calls;
        while left > 0 {
            let some = left.min(IN_TRANSACTION);
            let trx = caller.db.begin(TransactionOptions::default());
            (0..some).try_for_each(|_| call(&trx))?;
            trx.commit()?;
            left -= some;
        }
        Ok(())
    })
}

/// As [`in_transactions`], each call in a statement of its own.
fn in_statements<'a>(caller: &'a Caller, mut call: impl FnMut(&Transaction) -> Result<()> + 'a) -> Calls<'a> {
    in_transactions(caller, move |trx| {
        trx.begin_statement()?;
        call(trx)?;
        trx.end_statement(StatementEnd::Keep)?;
        Ok(())
    })
}

/// Reads rows in batches; `take` reads at most this number of them, and returns how many it has read.
fn in_batches<'a>(mut take: impl FnMut(usize) -> Result<usize> + 'a) -> Calls<'a> {
    Box::new(move |rows| {
        let mut left = rows as usize;
        while left > 0 {
            left -= take(left.min(BATCH_ROWS))?;
        }
        Ok(())
    })
}

/// Begins again at the end of a scan. The seek reads the first row.
fn or_first(taken: usize, seek: impl FnOnce() -> windfall::Result<bool>) -> Result<usize> {
    if taken > 0 {
        Ok(taken)
    } else if seek()? {
        Ok(1)
    } else {
        Err(lost())
    }
}

pub(super) fn rows(caller: &Caller) -> Result<Calls<'_>> {
    let (mut cursor, mut batch) = (caller.table.cursor()?, Batch::default());
    Ok(in_batches(move |most| {
        let taken = cursor.next_batch_of(&mut batch, most)?;
        black_box(batch.iter().last());
        or_first(taken, || cursor.seek(Seek::First))
    }))
}

pub(super) fn entries(caller: &Caller) -> Result<Calls<'_>> {
    let (mut cursor, mut batch) = (caller.table.index("column_0")?.key_cursor()?, IndexBatch::default());
    Ok(in_batches(move |most| {
        let taken = cursor.next_batch_of(&mut batch, most)?;
        black_box(batch.iter().last());
        or_first(taken, || cursor.seek(Seek::First))
    }))
}

pub(super) fn range_again(caller: &Caller) -> Result<Calls<'_>> {
    let (mut cursor, mut key) = (caller.table.cursor()?, caller.ascending());
    Ok(cases::repeated(move || {
        cursor.set_range(key()..);
        if !cursor.next()? {
            return Err(lost());
        }
        black_box(cursor.row());
        Ok(())
    }))
}

pub(super) fn lent_locking_reads(caller: &Caller) -> Calls<'_> {
    let (mut key, mut one) = (caller.ascending(), OneRow::default());
    in_transactions(caller, move |trx| {
        black_box(trx.table(&caller.table).get_one_for_update(&key(), &mut one)?.ok_or_else(lost)?);
        Ok(())
    })
}

/// Updates rows in turn: a plain column, or the index key.
pub(super) fn updates(caller: &Caller, changes_key: bool) -> Result<Calls<'_>> {
    let number = caller.table.index_number("column_0")?;
    let (mut key, mut value, mut done) = (caller.ascending(), [7; VALUE], 0_u64);
    Ok(in_statements(caller, move |trx| {
        let key = key();
        let first = cases::write_value(u32::from_be_bytes(key), &mut value);
        // The changes of the row until now.
        let before = (done / u64::from(caller.rows)) as u32;
        done += 1;
        let table = trx.table(&caller.table);
        if changes_key {
            let [old, new] = [before, before + 1].map(|n| first.wrapping_add(n).to_be_bytes());
            value[..4].copy_from_slice(&new);
            let [old, new] = [&old, &new].map(|key| Some(SuppliedEntry::new(key)));
            table.update_with(&key, &value, &[SuppliedChange::new(number, old, new)])?;
        } else {
            value[PLAIN..PLAIN + 8].copy_from_slice(&done.to_be_bytes());
            table.update_with(&key, &value, &[])?;
        }
        Ok(())
    }))
}

pub(super) fn inserts(caller: &Caller) -> Result<Calls<'_>> {
    let number = caller.table.index_number("column_0")?;
    let (mut next, mut value) = (caller.rows, [7; VALUE]);
    Ok(in_statements(caller, move |trx| {
        let entry = cases::write_value(next, &mut value).to_be_bytes();
        let new = Some(SuppliedEntry::new(&entry));
        let entries = [SuppliedChange::new(number, None, new)];
        trx.table(&caller.table).insert_with(&next.to_be_bytes(), &value, &entries)?;
        next += 1;
        Ok(())
    }))
}
