//! The fields of a new value.
//!
//! **Purpose.** Determines how a row is stored of which the caller passes the fields one by one: as one value if that
//! fits into the entry, and otherwise as a list of fields, the longest of them in overflow chains.
//!
//! **Invariants.** A field that is kept and is in a chain stays in that chain, which is neither read nor written (test:
//! `a_kept_field_is_neither_read_nor_written`), except for the first bytes of a value that an index needs. The row
//! reads as the encoded row of its fields, however they are stored (test: `rows_of_fields_match_the_model`). A blocked
//! call keeps only chains of fields that the caller has passed: a kept one may be another when the call continues
//! (test: `a_blocked_call_keeps_the_chains_of_its_own_fields`).
//!
//! A chain belongs to the versions of one entry: purge frees the chains of a version, unless the next version of the
//! same entry has them, and looks at no other row (test: `a_row_with_another_key_has_chains_of_its_own`). So a field
//! that is kept from a row with another key is copied to a chain of its own. The same transaction has deleted that row
//! (test: `fields_are_kept_only_from_a_row_that_the_transaction_has_deleted`). So the chains of the deleted entry stay
//! until the transaction ends, and a blocked call keeps its copies (test:
//! `a_blocked_key_change_keeps_the_copies_of_its_fields`).

use std::borrow::Cow;

use super::{
    conflict::Stop,
    edit::{Edit, FieldChange},
    long_value::{copy_chain, write_chain},
    target::RowTarget,
};
use crate::{
    error::{Result, SchemaError, UsageError},
    page::EntryHeader,
    row::{self, FieldSet},
    tree::{
        OverflowRef, StoredField,
        fields::{encode_fields, fields_for_chains, fields_limit},
        overflow::VALUE_BYTES_MAX,
    },
    txn::{
        mvcc::value::{self, INDEXED_BYTES},
        trx::{Savepoint, Trx},
    },
};

/// Returns the stored value of an entry; if that is the reference to one chain and fields of it are to be kept, the
/// value, which was not written field by field.
///
/// # Errors
/// Damage, I/O.
pub(super) fn read_to_keep<'s>(
    target: &RowTarget<'_>,
    changes: &[FieldChange<'_>],
    header: EntryHeader,
    stored: &'s [u8],
) -> Result<Cow<'s, [u8]>> {
    let mut value = Cow::Borrowed(stored);
    if header.is_overflow() && changes.contains(&FieldChange::Keep) {
        value::follow(target.clustered, header, FieldSet::ALL, value.to_mut())?;
    }
    Ok(value)
}

/// Reads the stored value of a row that the transaction has deleted. Returns the header of its entry.
///
/// # Errors
/// The last version of the entry is not of this transaction; damage, I/O.
pub(super) fn read_deleted(
    trx: &Trx<'_>,
    target: &RowTarget<'_>,
    key: &[u8],
    stored: &mut Vec<u8>,
) -> Result<EntryHeader> {
    let header = target.clustered.get_into(key, stored)?;
    // Otherwise another call of the transaction has undone the deletion, and others may change the row.
    let header = header.filter(|header| Some(header.trx) == trx.id() && header.is_deleted());
    header.ok_or_else(|| SchemaError::NoRow(target.name.into()).into())
}

/// The fields of the new value of a row, and of the value before.
#[derive(Debug)]
pub(super) struct NewFields<'f> {
    changes: &'f [FieldChange<'f>],
    fields: Vec<StoredField<'f>>,
    /// Whether kept fields are those of another row, so that their chains are copied.
    copies: bool,
}

impl<'f> NewFields<'f> {
    /// Determines the fields. `before` is the value before, if there is a row: as its entry stores it if the header has
    /// the flag of fields, and otherwise as [`read_to_keep`] returns it. With `copies` it is that of another row.
    ///
    /// # Errors
    /// Too many fields; a kept field that the value before does not have; a value that is too long; damage.
    pub(super) fn new(
        target: &RowTarget<'_>,
        changes: &'f [FieldChange<'f>],
        before: Option<(EntryHeader, &'f [u8])>,
        copies: bool,
    ) -> Result<Self> {
        let (tree, owner) = (target.clustered, || target.owner());
        let (count, limit) = (changes.len(), fields_limit(tree.inline_limit()));
        if count > limit {
            return Err(UsageError::TooManyFields { owner: owner(), fields: count, limit }.into());
        }
        let old: Vec<StoredField<'f>> = match before {
            Some((header, stored)) if header.has_fields() => value::stored_fields(tree, stored)?.collect(),
            Some((_, value)) => {
                let fields = (0..row::count(value)).map_while(|n| row::field(value, n));
                let is_row =
                    row::encoded_bytes(fields.clone().map(|field| field.len() as u64)) == value.len() as u64;
                fields.filter(|_| is_row).map(StoredField::Inline).collect()
            }
            None => Vec::new(),
        };
        let no_field = |field| UsageError::NoSuchField { owner: owner(), field, fields: old.len() };
        let fields = changes.iter().enumerate().map(|(n, change)| match change {
            FieldChange::Set(bytes) => Ok(StoredField::Inline(bytes)),
            FieldChange::Keep => old.get(n).copied().ok_or_else(|| no_field(n)),
        });
        let fields = fields.collect::<Result<Vec<_>, _>>()?;
        let new = Self { changes, fields, copies };
        let (length, limit) = (new.encoded_bytes(), VALUE_BYTES_MAX);
        if length > limit {
            return Err(UsageError::ValueTooLong { owner: owner(), length, limit }.into());
        }
        Ok(new)
    }

    /// Returns the length of the encoded row.
    fn encoded_bytes(&self) -> u64 {
        row::encoded_bytes(self.fields.iter().map(StoredField::length))
    }

    /// Returns the first bytes of the encoded row, which index keys are made of.
    ///
    /// # Errors
    /// Damage, I/O.
    pub(super) fn indexed(&self, target: &RowTarget<'_>) -> Result<Vec<u8>> {
        value::start_of_fields(target.clustered, &self.fields, INDEXED_BYTES)
    }

    /// Writes the fields to chains that do not fit into the entry, except those that the call has written before it was
    /// blocked, and copies the chains of another row. Returns the stored value with the flags of the entry. After
    /// `kept` only chains are written that a blocked call does not keep.
    ///
    /// # Errors
    /// Errors of the log; a full disk, I/O.
    pub(super) fn store<'e: 't, 't>(
        mut self,
        trx: &mut Trx<'e>,
        target: &RowTarget<'t>,
        edit: &mut Edit<'_>,
        kept: &mut Savepoint,
    ) -> Result<(Vec<u8>, u16), Stop> {
        let (tree, space) = (target.clustered, target.clustered.space().id());
        let (_, written) = edit.chains.take().filter(|(of, _)| *of == space).unwrap_or((space, Vec::new()));
        for (n, chain) in &written {
            debug_assert!(chain.length == self.fields[*n].length(), "a field has the chain of another one");
            self.fields[*n] = StoredField::Chain(*chain);
        }
        let (_, written) = edit.chains.insert((space, written));
        let others = (0..self.fields.len()).filter(|n| self.copies && written.iter().all(|(of, _)| of != n));
        for n in others.collect::<Vec<_>>() {
            if let StoredField::Chain(chain) = self.fields[n] {
                let copy = copy_chain(trx, target, chain)?;
                self.fields[n] = StoredField::Chain(copy);
                written.push((n, copy));
            }
        }
        let is_in_entry = self.fields.iter().all(|field| matches!(field, StoredField::Inline(_)));
        if is_in_entry && self.encoded_bytes() <= tree.inline_limit() as u64 {
            let fields = self.fields.iter().map(|field| match field {
                StoredField::Inline(bytes) => *bytes,
                StoredField::Chain(_) => &[],
            });
            return Ok((row::encode(&fields.collect::<Vec<_>>()), 0));
        }
        let chosen = fields_for_chains(&self.fields, tree.inline_limit());
        let (passed, others): (Vec<usize>, Vec<usize>) =
            chosen.into_iter().partition(|n| self.copies || self.changes[*n] != FieldChange::Keep);
        for n in passed {
            let chain = self.write(trx, target, n)?;
            written.push((n, chain));
        }
        *kept = trx.savepoint();
        for n in others {
            self.write(trx, target, n)?;
        }
        Ok((encode_fields(&self.fields), EntryHeader::FIELDS))
    }

    /// Writes a field to a chain.
    fn write<'e: 't, 't>(
        &mut self,
        trx: &mut Trx<'e>,
        target: &RowTarget<'t>,
        n: usize,
    ) -> Result<OverflowRef> {
        let StoredField::Inline(bytes) = self.fields[n] else {
            panic!("field {n} has a chain already");
        };
        let chain = write_chain(trx, target, bytes)?;
        self.fields[n] = StoredField::Chain(chain);
        Ok(chain)
    }
}
