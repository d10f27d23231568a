//! Reads of rows by their index entries.
//!
//! **Purpose.** Determines whether a read sees an entry of a secondary index, and reads the version of its row that it
//! sees. An entry records only the transaction that changed it last, and its key need not be computable from the row.
//! So the undo records of the row's versions decide, which name the entries that each change has touched.
//!
//! **Invariants.** A view sees an entry if the visible version of the row has it (test:
//! `an_entry_is_seen_by_the_views_that_see_its_row_with_it`):
//!
//! - If versions of the row that the view does not see have touched the entry, the oldest of these records has the
//!   state of the entry before them (test: `an_entry_is_seen_by_the_views_that_see_its_row_with_it`). The records of
//!   versions that were read do not change when these are rolled back meanwhile (test:
//!   `a_snapshot_is_stable_while_rows_and_indexes_change`).
//! - If none has, and the view sees the last change of the entry, that decides (test:
//!   `an_entry_is_seen_by_the_views_that_see_its_row_with_it`).
//! - If the visible version is of the reader's own transaction, the present state of the entry decides: no other
//!   transaction can have changed it since (test: `an_own_change_that_keeps_the_index_key_is_found_by_it`).
//! - Otherwise a transaction has changed the entry after the row was read, or was rolled back before: both are read
//!   again (test: `a_snapshot_is_stable_while_rows_and_indexes_change`).
//!
//! A read of the newest version of a row does not find it by an entry that the version does not have, although the call
//! that made it may still be about to delete-mark that (test:
//! `the_newest_version_of_a_row_is_found_by_its_own_entries_alone`). The payload that such a read returns is the one
//! that the entry has at that moment, of this version or of another one: no view holds the two together (test:
//! `the_newest_version_of_a_row_is_found_by_its_own_entries_alone`).

use super::{
    record::{EntryChange, Touch},
    versions::Versions,
};
use crate::{
    buffer::Durability,
    error::{CorruptError, Error, Owner, Result, TransactionError},
    ids::TrxId,
    page::EntryHeader,
    row::FieldSet,
    store::Tree,
    txn::mvcc::{ReadView, Visibility, value},
};

/// The number of times that a row and its entry are read again before they are taken for damaged: each time another
/// transaction must have changed the entry in between.
const ATTEMPTS: u32 = 10_000;

/// An index entry that was read.
#[derive(Clone, Copy, Debug)]
pub struct FoundEntry<'a> {
    /// The secondary tree.
    pub index: &'a Tree,
    /// The entry's key.
    pub entry: &'a [u8],
    /// Its header.
    pub header: EntryHeader,
    /// Its value.
    pub value: &'a [u8],
    /// The key of its row.
    pub row: &'a [u8],
}

impl FoundEntry<'_> {
    /// Returns the change of the entry among those of a row change.
    fn change_in<'t>(&self, touches: &'t [Touch]) -> Option<&'t EntryChange> {
        let space = self.index.space().id();
        touches
            .iter()
            .find(|touch| touch.space == space && touch.key == self.entry)
            .map(|touch| &touch.change)
    }

    /// Reads the header and the value of the entry again.
    fn read_again(&self, value: &mut Vec<u8>) -> Result<Option<EntryHeader>> {
        self.index.get_into(self.entry, value)
    }
}

/// The state of an entry before the changes of its row that a view does not see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    /// None of them has touched it.
    Untouched,
    Absent,
    Live,
}

/// The buffers of a read, which are filled again.
#[derive(Debug)]
pub struct EntryAndRow<'b> {
    /// The fields of the row that are read, if it is stored as fields.
    pub fields: FieldSet,
    /// The value of the entry.
    pub entry: &'b mut Vec<u8>,
    /// The value of the row.
    pub row: &'b mut Vec<u8>,
}

fn is_live(header: Option<EntryHeader>) -> bool {
    header.is_some_and(|header| !header.is_deleted())
}

impl Versions {
    /// Reads the row of an index entry and the entry's value in the visible version, and replaces the content of `out`.
    /// Returns `false` if there is no such row, or if it does not have this entry.
    ///
    /// # Errors
    /// As [`Versions::get_committed`].
    pub fn get_by_entry(
        &self,
        clustered: &Tree,
        found: FoundEntry<'_>,
        visibility: Visibility<'_>,
        mut out: EntryAndRow<'_>,
    ) -> Result<bool> {
        match visibility {
            Visibility::View(view, own) => {
                view.held(self.find_by_entry(clustered, found, view, own, &mut out))
            }
            Visibility::Newest if clustered.space().durability() == Durability::Temporary => {
                // No other call changes the row.
                let is_there = value::get(clustered, found.row, out.fields, out.row)?;
                Ok(is_there && is_live(found.read_again(out.entry)?))
            }
            Visibility::Newest => loop {
                let view = self.view();
                match view.held(self.find_newest_by_entry(clustered, found, &view, &mut out)) {
                    // The view was created for this read only, so the read can be repeated.
                    Err(Error::Transaction(TransactionError::ViewEnded)) => {}
                    done => return done,
                }
            },
        }
    }

    fn find_by_entry(
        &self,
        clustered: &Tree,
        found: FoundEntry<'_>,
        view: &ReadView,
        own: Option<TrxId>,
        out: &mut EntryAndRow<'_>,
    ) -> Result<bool> {
        let visibility = Visibility::View(view, own);
        for _ in 0..ATTEMPTS {
            let Some(header) = clustered.get_into(found.row, out.row)? else { return Ok(false) };
            let mut before = Before::Untouched;
            let note = |touches: &[Touch]| match found.change_in(touches) {
                None => {}
                Some(EntryChange::Marked(was) | EntryChange::Replaced(was)) => {
                    before = Before::Live;
                    out.entry.clone_from(&was.value);
                }
                Some(EntryChange::Inserted | EntryChange::Revived(_)) => before = Before::Absent,
            };
            let space = clustered.space().id();
            let Some(header) = self.row_version_with(space, found.row, header, out.row, visibility, note)?
            else {
                return Ok(false);
            };
            let is_own = Some(header.trx) == own;
            let is_there = match before {
                Before::Live => true,
                Before::Absent => false,
                Before::Untouched if !is_own && visibility.sees(found.header.trx) => {
                    out.entry.clear();
                    out.entry.extend_from_slice(found.value);
                    !found.header.is_deleted()
                }
                Before::Untouched => {
                    let now = found.read_again(out.entry)?;
                    if !is_own && now.is_some_and(|now| !visibility.sees(now.trx)) {
                        continue;
                    }
                    is_live(now)
                }
            };
            if is_there {
                value::follow(clustered, header, out.fields, out.row)?;
            }
            return Ok(is_there);
        }
        let what = format!(
            "an entry of transaction {} is in no version of its row that this transaction has made",
            found.header.trx
        );
        let space = found.index.space().id();
        Err(CorruptError::Structure { owner: Owner::Unknown, space, what: what.into() }.into())
    }

    /// Reads the newest version of a row, if it has the entry. The view was created for this read: it keeps the undo of
    /// all transactions that had not ended.
    fn find_newest_by_entry(
        &self,
        clustered: &Tree,
        found: FoundEntry<'_>,
        view: &ReadView,
        out: &mut EntryAndRow<'_>,
    ) -> Result<bool> {
        let header = clustered.get_into(found.row, out.row)?;
        let Some(header) = header.filter(|header| !header.is_deleted()) else { return Ok(false) };
        if !view.sees(header.trx) && header.has_undo() {
            // The call that made this version may still be about to mark the entry.
            let touches = self.touches_of(clustered.space().id(), header)?;
            if let Some(EntryChange::Marked(_)) = found.change_in(&touches) {
                return Ok(false);
            }
        }
        let is_there = is_live(found.read_again(out.entry)?);
        Ok(is_there && value::resolve(clustered, found.row, header, out.fields, out.row)?)
    }
}
