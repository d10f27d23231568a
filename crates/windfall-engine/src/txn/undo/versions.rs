//! Reads of visible versions.
//!
//! **Purpose.** Rows change in place. A reader that must not see the current version follows the undo record that made
//! it to the previous version, until it reaches a visible one, or none at all.
//!
//! **Invariants.** A record is followed only for a version that the reader's read view does not see, and the view keeps
//! all such records from purge (test: `a_pin_keeps_versions_and_a_reader_its_value`). So they exist, undone or not,
//! unless the view is ended meanwhile; the result of the read is discarded then (test:
//! `a_concurrent_reader_sees_one_snapshot_or_gets_an_error`). A version that was rolled back after the reader copied it
//! leads to the same previous version as before (test: `a_snapshot_is_stable_while_rows_and_indexes_change`). The
//! clustered entry and each secondary entry that a call changes carry the position of one record, which has the
//! previous state of each of them (checked by `row/clustered.rs::attempt`). An entry that a call inserts carries none:
//! a reader that does not see its transaction knows that it did not exist (test:
//! `a_snapshot_is_stable_while_rows_and_indexes_change`). An entry without a transaction was loaded, or is frozen:
//! every reader sees it (test: `a_view_keeps_the_headers_that_it_needs`).
//!
//! A temporary table has one reader, which sees the current versions (test:
//! `a_strict_snapshot_does_not_concern_temporary_tables`).

use super::{
    directory::Streams,
    position::byte_of,
    record::{Body, RowChange, Touch, UndoRecord},
};
use crate::{
    error::{CorruptError, Error, Owner, Result, TransactionError},
    ids::{SpaceId, TrxId},
    page::EntryHeader,
    row::FieldSet,
    store::Tree,
    sync::{Arc, LongWork},
    txn::mvcc::{
        Active, ReadView, Visibility,
        value::{self, RowReader, follow},
    },
};

/// Finds the versions that reads see.
#[derive(Debug)]
pub struct Versions {
    active: Arc<Active>,
    streams: Arc<Streams>,
}

impl Versions {
    /// Returns the reads of versions of these transactions, with their undo streams.
    pub(in crate::txn) fn new(active: Arc<Active>, streams: Arc<Streams>) -> Self {
        Self { active, streams }
    }

    /// Creates a read view of what is committed now.
    pub fn view(&self) -> ReadView {
        ReadView::new(&self.active)
    }

    /// Reads the last committed value of a row, or the value that transaction `own` has written, and replaces the
    /// content of `out`. Returns `false` if there is no such row. Of a row that is stored as fields those of the set
    /// are read. Without a set, `out` is left with what the entry stores, and no overflow page is read.
    ///
    /// # Errors
    /// Damage, I/O, a dropped table.
    pub fn get_committed(
        &self,
        tree: &Tree,
        key: &[u8],
        own: Option<TrxId>,
        fields: Option<FieldSet>,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        // Before the entry is read: the versions of all transactions that have ended by now are final.
        let oldest = self.active.oldest();
        let Some(header) = tree.get_into(key, out)? else { return Ok(false) };
        if header.trx < oldest || Some(header.trx) == own {
            if header.is_deleted() || header.is_plain() {
                return Ok(!header.is_deleted());
            }
            if fields.is_none_or(|fields| follow(tree, header, fields, out).is_ok()) {
                return Ok(true);
            }
        }
        loop {
            match self.get_in(tree, key, Visibility::View(&self.view(), own), fields, out) {
                // The view was created for this read only, so the read can be repeated.
                Err(Error::Transaction(TransactionError::ViewEnded)) => {}
                done => return done,
            }
        }
    }

    /// Reads a row in the visible version.
    ///
    /// # Errors
    /// As [`Versions::get_committed`].
    pub fn get_in(
        &self,
        tree: &Tree,
        key: &[u8],
        visibility: Visibility<'_>,
        fields: Option<FieldSet>,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        if let (Visibility::Newest, Some(fields)) = (visibility, fields) {
            return value::get(tree, key, fields, out);
        }
        let found = tree.get_into(key, out).and_then(|header| {
            header.map_or(Ok(false), |header| self.value_in(tree, key, header, visibility, fields, out))
        });
        visibility.held(found)
    }

    /// Reads the visible version of an entry that was read: `out` has its stored value, which is replaced by the row's
    /// value. The caller must check whether the view is still valid.
    ///
    /// # Errors
    /// As [`Versions::get_committed`].
    pub fn value_in(
        &self,
        tree: &Tree,
        key: &[u8],
        header: EntryHeader,
        visibility: Visibility<'_>,
        fields: Option<FieldSet>,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        let Some(header) = self.row_version(tree.space().id(), key, header, out, visibility)? else {
            return Ok(false);
        };
        if let Some(fields) = fields {
            follow(tree, header, fields, out)?;
        }
        Ok(true)
    }

    /// Opens the visible version of a row's value for reading piece by piece, as long as the view is valid. Returns
    /// `None` if there is no such row.
    ///
    /// # Errors
    /// Damage, I/O, a dropped table.
    pub fn open_value(
        &self,
        tree: &Arc<Tree>,
        key: &[u8],
        visibility: Visibility<'_>,
        fields: FieldSet,
    ) -> Result<Option<RowReader>> {
        visibility.held(self.find_value(tree, key, visibility, fields))
    }

    fn find_value(
        &self,
        tree: &Arc<Tree>,
        key: &[u8],
        visibility: Visibility<'_>,
        fields: FieldSet,
    ) -> Result<Option<RowReader>> {
        let mut value = Vec::new();
        let Some(header) = tree.get_into(key, &mut value)? else { return Ok(None) };
        let Some(header) = self.row_version(tree.space().id(), key, header, &mut value, visibility)? else {
            return Ok(None);
        };
        RowReader::new(tree, header, value, fields).map(Some)
    }

    /// Finds the visible version of a row, starting from the version that was read. `value` has the stored value of
    /// that version, and is replaced by that of the visible one. Returns `None` if the row does not exist in it: it was
    /// not inserted yet, or is marked as deleted.
    ///
    /// # Errors
    /// Damage, I/O.
    pub(crate) fn row_version(
        &self,
        space: SpaceId,
        key: &[u8],
        header: EntryHeader,
        value: &mut Vec<u8>,
        visibility: Visibility<'_>,
    ) -> Result<Option<EntryHeader>> {
        self.row_version_with(space, key, header, value, visibility, |_| ())
    }

    /// As [`Versions::row_version`], and passes to `note` the index entries that each change after that version has
    /// touched, the newest change first.
    pub(super) fn row_version_with(
        &self,
        space: SpaceId,
        key: &[u8],
        mut header: EntryHeader,
        value: &mut Vec<u8>,
        visibility: Visibility<'_>,
        mut note: impl FnMut(&[Touch]),
    ) -> Result<Option<EntryHeader>> {
        let mut work = LongWork::default();
        while !visibility.sees(header.trx) {
            work.step()?;
            if !header.has_undo() {
                return Ok(None);
            }
            let record = self.maker_of(space, header)?;
            let Body::Row { space: of, key: row, change, touches } = record.body else {
                return Err(lost(space, header));
            };
            if of != space || row != key {
                return Err(lost(space, header));
            }
            note(&touches);
            match change {
                // An inserted entry names no record.
                RowChange::Insert => return Err(lost(space, header)),
                RowChange::Update { header: before, value: stored, .. } => {
                    *value = stored;
                    header = before;
                }
                RowChange::Delete { header: before } => header = before,
            }
        }
        Ok(Some(header).filter(|header| !header.is_deleted()))
    }

    /// Returns the index entries that were touched when a version was made.
    ///
    /// # Errors
    /// Damage, I/O.
    pub(super) fn touches_of(&self, space: SpaceId, header: EntryHeader) -> Result<Vec<Touch>> {
        match self.maker_of(space, header)?.body {
            Body::Row { touches, .. } => Ok(touches),
            Body::Overflow { .. } => Err(lost(space, header)),
        }
    }

    /// Returns the record that made a version.
    fn maker_of(&self, space: SpaceId, header: EntryHeader) -> Result<UndoRecord> {
        let at = byte_of(header.undo);
        let stream = self.streams.of(header.undo).ok_or_else(|| lost(space, header))?;
        let stored = stream.record(at)?.ok_or_else(|| lost(space, header))?;
        let record = stream.decode(at, &stored)?;
        if record.trx != header.trx {
            return Err(lost(space, header));
        }
        Ok(record)
    }
}

#[cold]
fn lost(space: SpaceId, header: EntryHeader) -> Error {
    let what = format!(
        "the undo record at position {} that made a version of transaction {} is not that of its entry",
        header.undo.0, header.trx.0
    );
    CorruptError::Structure { owner: Owner::Unknown, space, what: what.into() }.into()
}
