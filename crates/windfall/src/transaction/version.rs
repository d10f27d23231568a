//! Older versions of entries.
//!
//! **Purpose.** Rows change in place. Who must not see the version that is there follows the undo record that made it
//! back to the one before, until there is one to be seen, or none at all.
//!
//! **Invariants.** A record is followed only for a version that the reader's view does not see, and the view keeps all
//! such records from purge: so they are there, taken back or not, unless the view is ended meanwhile; what was found
//! does not count then. A version that was rolled back after the reader
//! copied it leads to the same one before as ever. The clustered entry and each secondary entry of a row carry the
//! position of one record, which names what each of them was before.
//!
//! A temporary table has one reader, and he sees what is there.
//!
//! **May touch.** `ids`, `error`, `page`, `sync`, the rest of this floor.

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

/// Which versions a read takes.
#[derive(Clone, Copy, Debug)]
pub enum Sight<'v> {
    /// Those that are there, whoever made them and whether they stay.
    Newest,
    /// Those that a view sees, and those of this transaction.
    View(&'v ReadView, TrxId),
}

impl Sight<'_> {
    /// Whether it takes the versions of a transaction.
    pub fn sees(&self, trx: TrxId) -> bool {
        match self {
            Self::Newest => true,
            Self::View(view, own) => view.sees(trx) || trx == *own && trx != TrxId::NONE,
        }
    }

    /// Refuses what was made, or emptied, by a transaction that it does not see.
    ///
    /// # Errors
    /// [`TransactionError::TableChanged`].
    pub fn check_known(&self, born: TrxId, owner: impl FnOnce() -> Owner) -> Result<()> {
        if self.sees(born) { Ok(()) } else { Err(TransactionError::TableChanged(owner()).into()) }
    }

    /// What a look has come to, if its view was there up to the end of that: [`ReadView::held`].
    pub(super) fn held<T>(&self, looked: Result<T>) -> Result<T> {
        match self {
            Self::Newest => looked,
            Self::View(view, _) => view.held(looked),
        }
    }
}

impl Transactions {
    /// The version of a row that is seen, in place of the one that was found: `value` holds that one's, as it is
    /// stored, and then the other's. `None` when the row was not there yet; one that is marked as deleted was not,
    /// either.
    ///
    /// # Errors
    /// Damage, I/O.
    pub fn row_version(
        &self,
        space: SpaceId,
        key: &[u8],
        mut header: EntryHeader,
        value: &mut Vec<u8>,
        sight: Sight<'_>,
    ) -> Result<Option<EntryHeader>> {
        while !sight.sees(header.trx) {
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

    /// The record that made a version.
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

/// The header and the value before an update.
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
