//! Reads of single rows.
//!
//! **Purpose.** Plain and locking reads of a row by its key, and streams of long values.
//!
//! **Invariants.** A stream returns one version of the row, whatever happens to the row meanwhile (test:
//! `a_sink_blocks_no_call_and_gets_the_value_that_was_there`).

use std::io;

use super::Table;
#[cfg(doc)]
use crate::error::{Error, TransactionError};
use crate::{
    cursor::intention,
    error::{Result, UsageError},
    ids::TrxId,
    row::FieldSet,
    scope::{Inner, RowCall, RowLock, Scope},
    sync::Arc,
    tx_table::Access,
    txn::{
        ReadView, Stop, Visibility,
        locks::{PlainRead, RowMode},
        row::{self, LockingRead},
        undo::TemporaryRead,
    },
};

impl<A: Access> Table<A> {
    /// Returns the value of a row.
    ///
    /// # Errors
    /// The table was dropped; damage, I/O.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.then_some(value))
    }

    /// Reads the value of a row into `value`, replacing its content; this saves an allocation per row. Returns whether
    /// there is a row.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub fn get_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.read(key, Some(self.fields), value)
    }

    /// Returns whether there is a row with this key.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub fn contains(&self, key: &[u8]) -> Result<bool> {
        self.read(key, None, &mut Vec::new())
    }

    /// Writes the value of a row to `out`, piece by piece. Returns its length in bytes; `None` if there is no such row.
    ///
    /// The whole value is the one that the row has when the call begins, whatever happens to the row meanwhile. At
    /// [`Isolation::ReadUncommitted`], too, it is a committed one or this transaction's own. Between two pieces the
    /// table can be changed, dropped and truncated, also by `out` itself, but `out` can make no call in the transaction
    /// of this call ([`TransactionError::Busy`]).
    ///
    /// # Errors
    /// As [`Table::get`]; `out` fails; [`Error::TableDropped`] if the table is dropped or truncated meanwhile, or
    /// [`TransactionError::ViewEnded`]. A part of the value may then have been written.
    ///
    /// [`Isolation::ReadUncommitted`]: crate::Isolation::ReadUncommitted
    pub fn read_stream(&self, key: &[u8], out: &mut dyn io::Write) -> Result<Option<u64>> {
        self.engine.check_open()?;
        match self.scope()? {
            None => self.stream_out(key, Arc::new(self.engine.transactions.versions().view()), None, out),
            // The whole read is one call of the transaction, so `out` can make none in it: a rollback to a savepoint
            // could remove the very version that is being read, if the transaction has written it.
            Some(scope) => {
                let mut call = scope.begin_call()?;
                let written = self.stream_out_in_transaction(scope, &mut call.inner, key, out);
                call.finish(written)
            }
        }
    }

    fn stream_out_in_transaction(
        &self,
        scope: &Scope,
        inner: &mut Inner,
        key: &[u8],
        out: &mut dyn io::Write,
    ) -> Result<Option<u64>> {
        if scope.plain_read_lock().is_some() && self.undo.is_none() {
            self.get_locked(scope, inner, key, RowMode::Shared.into(), None, &mut Vec::new())?;
        }
        let view = scope.view_of_read(inner);
        self.stream_out(key, view, inner.own(), out)
    }

    fn stream_out(
        &self,
        key: &[u8],
        view: Arc<ReadView>,
        own: Option<TrxId>,
        out: &mut dyn io::Write,
    ) -> Result<Option<u64>> {
        let undo = self.undo.as_ref();
        let _kept = undo.map(|undo| TemporaryRead::new(self.engine.transactions.active(), undo.stream()));
        let opened = {
            let call = self.enter()?;
            let visibility =
                if self.undo.is_some() { Visibility::Newest } else { Visibility::View(&view, own) };
            visibility.check_known(call.clustered.space().created_at(), || self.owner())?;
            let opened =
                self.engine.transactions.versions().open_value(&call.clustered, key, visibility, self.fields);
            opened.map_err(|error| self.with_owner(error))?
        };
        let Some(mut reader) = opened else { return Ok(None) };
        let length = reader.left();
        let mut piece = vec![0; 64 << 10];
        while reader.left() > 0 {
            self.engine.check_open()?;
            let n = {
                // The view keeps the version from purge. If its tablespace was dropped, the call returns that the table
                // was dropped.
                let _call = self.enter()?;
                let read = reader.read(&mut piece);
                let held = if undo.is_some() { read } else { view.held(read) };
                held.map_err(|error| self.with_owner(error))?
            };
            assert!(n > 0, "a value with bytes left returns none of them");
            // No gate and no latch is held while `out` runs.
            let owner = || self.owner();
            let failed =
                |error: io::Error| UsageError::Output { owner: owner(), what: error.to_string().into() };
            out.write_all(&piece[..n]).map_err(failed)?;
        }
        Ok(Some(length))
    }

    /// Reads and locks a row in a transaction. Returns `false` also for a row that is skipped.
    pub(crate) fn get_locked(
        &self,
        scope: &Scope,
        inner: &mut Inner,
        key: &[u8],
        lock: RowLock,
        fields: Option<FieldSet>,
        value: &mut Vec<u8>,
    ) -> Result<bool> {
        let call = scope.row_call(inner, self.kind(), lock.lock_timeout(scope));
        call.run(|call| self.try_get_locked(call, key, lock, fields, value))
    }

    /// Attempts a locking read. Returns `None` if the table was truncated before it was locked.
    pub(crate) fn try_get_locked(
        &self,
        call: &mut RowCall<'_>,
        key: &[u8],
        lock: RowLock,
        fields: Option<FieldSet>,
        value: &mut Vec<u8>,
    ) -> Result<Option<bool>, Stop> {
        let space = self.lock_table(call, intention(lock.mode))?;
        let trx = call.attempt()?;
        let entered = self.inner.enter()?;
        if entered.clustered.space().id() != space {
            return Ok(None);
        }
        let owner = || self.owner();
        let read = LockingRead { mode: lock.mode, fields, entry: None };
        let read = row::read_locked(trx, &entered.clustered, key, read, value, owner);
        lock.skip_locked(read).map(Some)
    }

    /// Reads a row; without a set of fields, no value in overflow pages is read. Returns whether there is one.
    fn read(&self, key: &[u8], fields: Option<FieldSet>, value: &mut Vec<u8>) -> Result<bool> {
        self.engine.check_open()?;
        let transactions = &self.engine.transactions;
        let found = match self.scope()? {
            Some(scope) => {
                let mut call = scope.begin_call()?;
                let found = self.read_in_transaction(scope, &mut call.inner, key, fields, value);
                call.finish(found)
            }
            None => self.inner.enter().and_then(|call| match self.undo {
                // A temporary table has one user at a time, which reads its own changes.
                Some(_) => {
                    transactions.versions().get_in(&call.clustered, key, Visibility::Newest, fields, value)
                }
                None => transactions.versions().get_committed(&call.clustered, key, None, fields, value),
            }),
        };
        found.map_err(|error| self.with_owner(error))
    }

    fn read_in_transaction(
        &self,
        scope: &Scope,
        inner: &mut Inner,
        key: &[u8],
        fields: Option<FieldSet>,
        value: &mut Vec<u8>,
    ) -> Result<bool> {
        let transactions = &self.engine.transactions;
        let own = inner.own();
        let visibility = match scope.isolation().plain_read() {
            _ if self.undo.is_some() => Visibility::Newest,
            PlainRead::Newest => Visibility::Newest,
            PlainRead::Committed if !scope.keeps_view(inner) => {
                let call = self.inner.enter()?;
                return transactions.versions().get_committed(&call.clustered, key, own, fields, value);
            }
            PlainRead::Committed | PlainRead::Snapshot => Visibility::View(scope.view(inner), own),
            PlainRead::Locking => {
                return self.get_locked(scope, inner, key, RowMode::Shared.into(), fields, value);
            }
        };
        let call = self.inner.enter()?;
        visibility.check_known(call.clustered.space().created_at(), || self.owner())?;
        transactions.versions().get_in(&call.clustered, key, visibility, fields, value)
    }
}
