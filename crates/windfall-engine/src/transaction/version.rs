//! Older versions of entries.
//!
//! **Purpose.** Rows change in place. A reader that must not see the current version follows the undo record that made
//! it to the previous version, until it reaches a visible one, or none at all.
//!
//! **Invariants.** A record is followed only for a version that the reader's read view does not see, and the view keeps
//! all such records from purge. So they exist, undone or not, unless the view is ended meanwhile; the result of the
//! read is discarded then. A version that was rolled back after the reader copied it leads to the same previous version
//! as before. The clustered entry and each secondary entry of a row carry the position of one record, which has the
//! previous state of each of them.
//!
//! A temporary table has one reader, which sees the current versions.

use super::{
    Transactions,
    active::ReadView,
    stream::Stream,
    undo_record::{Body, RowChange, UndoRecord},
};
use crate::{
    error::{CorruptError, Owner, Result, TransactionError},
    ids::{SpaceId, TrxId},
    page::EntryHeader,
    sync::{Bug, planted},
};

/// The versions that a read sees.
#[derive(Clone, Copy, Debug)]
pub enum Visibility<'v> {
    /// The current versions, regardless of the transaction that made them and of its end.
    Newest,
    /// The versions that a read view sees, and those of this transaction.
    View(&'v ReadView, TrxId),
}

impl Visibility<'_> {
    /// Returns whether the versions of a transaction are visible.
    pub fn sees(&self, trx: TrxId) -> bool {
        match self {
            Self::Newest => true,
            Self::View(view, own) => view.sees(trx) || trx == *own && trx != TrxId::NONE,
        }
    }

    /// Refuses a tree that was created, or truncated, by a transaction that is not visible.
    ///
    /// # Errors
    /// [`TransactionError::TableChanged`].
    pub fn check_known(&self, created_at: TrxId, owner: impl FnOnce() -> Owner) -> Result<()> {
        if self.sees(created_at) { Ok(()) } else { Err(TransactionError::TableChanged(owner()).into()) }
    }

    /// Returns the result of a read, if its view was valid up to the end of the read: [`ReadView::held`].
    pub(super) fn held<T>(&self, looked: Result<T>) -> Result<T> {
        match self {
            Self::Newest => looked,
            Self::View(view, _) => view.held(looked),
        }
    }
}

impl Transactions {
    /// Finds the visible version of a row, starting from the version that was read. `value` has the stored value of
    /// that version, and is replaced by that of the visible one. Returns `None` if the row does not exist in it: it was
    /// not inserted yet, or is marked as deleted.
    ///
    /// # Errors
    /// Damage, I/O.
    pub fn row_version(
        &self,
        space: SpaceId,
        key: &[u8],
        mut header: EntryHeader,
        value: &mut Vec<u8>,
        visibility: Visibility<'_>,
    ) -> Result<Option<EntryHeader>> {
        while !visibility.sees(header.trx) {
            let record = self.maker_of(space, header)?;
            let Body::Row { space: of, key: row, change, .. } = record.body else {
                return Err(lost(space, header));
            };
            if of != space || row != key {
                return Err(lost(space, header));
            }
            match change {
                RowChange::Insert => return Ok(None),
                RowChange::Update { header: before, value: stored } => {
                    *value = stored;
                    header = before;
                }
                RowChange::Delete { header: before } => header = before,
            }
        }
        Ok(Some(header).filter(|header| !header.is_deleted()))
    }

    /// Returns the record that made a version.
    fn maker_of(&self, space: SpaceId, header: EntryHeader) -> Result<UndoRecord> {
        let at = Stream::byte_of(header.undo);
        let stream = self.streams.of(header.undo).ok_or_else(|| lost(space, header))?;
        let stored = stream.record(at)?.ok_or_else(|| lost(space, header))?;
        let mut record = stream.decode(at, &stored)?;
        if record.trx != header.trx {
            return Err(lost(space, header));
        }
        if planted(Bug::UndoUsedAgain)
            && let Some((next, stored)) = stream.next_record(stored.next)?
            && let Some((before, value)) = update_of(&mut record.body)
            && let Some((other, written_over_it)) = update_of(&mut stream.decode(next, &stored)?.body)
            && !before.is_overflow()
            && !other.is_overflow()
        {
            core::mem::swap(value, written_over_it);
        }
        Ok(record)
    }
}

/// Returns the header and the value before an update.
fn update_of(body: &mut Body) -> Option<(EntryHeader, &mut Vec<u8>)> {
    match body {
        Body::Row { change: RowChange::Update { header, value }, .. } => Some((*header, value)),
        _ => None,
    }
}

#[cold]
fn lost(space: SpaceId, header: EntryHeader) -> crate::error::Error {
    let what = format!(
        "the undo record at position {} that made a version of transaction {} is not that of its entry",
        header.undo.0, header.trx.0
    );
    CorruptError::Structure { owner: Owner::Unknown, space, what: what.into() }.into()
}
