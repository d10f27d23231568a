//! The metadata of tables: bytes that the application stores with a table.
//!
//! **Purpose.** Short metadata is in the table's record. Longer metadata has a tree of its own, with one entry, which
//! belongs to the table as its other trees do: a drop gives it up in the same way, whatever its length, and a change of
//! the metadata puts another tree in its place.
//!
//! **Invariants.** The tree is written when the definition was accepted (test: `a_refused_statement_writes_nothing`)
//! and before the record names it, and never changes afterwards (test: `metadata_are_read_while_they_are_changed`).
//! Metadata in a record take at most half of the room for the record, so that indexes always have the other half (test:
//! `metadata_of_any_length_leaves_room_for_indexes`).

use super::{
    bulk::{Load, load_chain},
    filled::Filled,
    record::Metadata,
    state::Catalog,
    table::{Table, TableSchema},
};
use crate::{
    error::{CorruptError, Owner, Result, UsageError},
    ids::SpaceId,
    page::EntryHeader,
    row::FieldSet,
    sync::Arc,
    txn::mvcc::value,
};

/// The maximum length of the metadata of a table, in bytes.
pub const METADATA_LIMIT: usize = 1 << 20;
/// The key of the only entry of a tree of metadata.
const KEY: &[u8] = b"m";

impl Catalog {
    /// Refuses metadata that are too long for any table.
    pub(super) fn check_metadata(metadata: &[u8]) -> Result<()> {
        let (length, limit) = (metadata.len(), METADATA_LIMIT);
        if length <= limit { Ok(()) } else { Err(UsageError::MetadataTooLong { length, limit }.into()) }
    }

    /// Returns metadata for a record. Long metadata gets the id of a new tree, which is still to be written
    /// ([`Filled::write_metadata`]).
    ///
    /// # Errors
    /// [`UsageError::MetadataTooLong`]; errors of the log.
    pub(super) fn new_metadata(&self, metadata: &[u8]) -> Result<Metadata> {
        Self::check_metadata(metadata)?;
        if metadata.len() <= self.system.tree().inline_limit() / 2 {
            return Ok(Metadata::Inline(metadata.to_vec()));
        }
        Ok(Metadata::Long(self.transactions.ids().space()?))
    }
}

impl Filled<'_> {
    /// Writes long metadata to its tree, which a new record is going to name.
    ///
    /// # Errors
    /// Errors of the log.
    pub(super) fn write_metadata(&mut self, space: SpaceId, metadata: &[u8]) -> Result<()> {
        let tree = self.tree(space)?;
        let mut load = Load::new(&tree);
        if metadata.len() <= tree.inline_limit() {
            load.push(KEY, EntryHeader::default(), metadata)?;
        } else {
            let chain = load_chain(&tree, 0, metadata)?;
            let header = EntryHeader { flags: EntryHeader::OVERFLOW, ..EntryHeader::default() };
            load.push(KEY, header, &chain.to_bytes())?;
        }
        load.finish()
    }
}

impl TableSchema {
    /// Returns the metadata, if it is in the record.
    fn short_metadata(&self) -> Option<&[u8]> {
        match &self.record.metadata {
            Metadata::Inline(bytes) => Some(bytes),
            Metadata::Long(_) => None,
        }
    }

    fn long_metadata(&self) -> Result<Vec<u8>> {
        let tree = self.metadata.as_ref().expect("long metadata has a tree");
        let mut metadata = Vec::new();
        if value::get(tree, KEY, FieldSet::ALL, &mut metadata)? {
            return Ok(metadata);
        }
        let (owner, space) = (Owner::Unknown, tree.space().id());
        Err(CorruptError::Structure { owner, space, what: "the metadata is missing".into() }.into())
    }
}

impl Table {
    /// Returns the bytes that the application has stored with the table. Long ones are read inside the gate, so that no
    /// statement replaces them meanwhile.
    ///
    /// # Errors
    /// For long metadata: a dropped table; damage, I/O.
    pub fn metadata(self: &Arc<Self>) -> Result<Vec<u8>> {
        if let Some(short) = self.with_schema(|schema| schema.short_metadata().map(<[u8]>::to_vec)) {
            return Ok(short);
        }
        let schema = self.enter()?;
        schema.short_metadata().map_or_else(|| schema.long_metadata(), |short| Ok(short.to_vec()))
    }
}
