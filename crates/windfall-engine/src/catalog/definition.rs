//! Definitions of new tables and indexes ([`TableDefinition`], [`IndexDefinition`]), and the records made of them.
//!
//! **Purpose.** Refuses what no table can have before a statement changes anything.
//!
//! **Invariants.** A new record names each of its trees and indexes once (checked by `catalog/record.rs::encode`), and
//! fits in the system tree (test:
//! `an_index_that_the_tables_record_has_no_room_for_is_refused_before_it_is_built`).

use super::{
    key::KeySpec,
    record::{IndexRecord, Metadata, TableRecord},
    state::Catalog,
};
use crate::{
    error::{Owner, Result, SchemaError, UsageError},
    row::FieldSet,
    sync::Arc,
    txn::{
        EntryForm,
        mvcc::value::{INDEXED, INDEXED_BYTES},
    },
};

/// The definition of a new table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableDefinition {
    /// Application bytes to store with the table.
    pub metadata: Vec<u8>,
    /// The secondary trees of the table.
    pub indexes: Vec<IndexDefinition>,
}

/// The definition of a new secondary tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexDefinition {
    /// The name of the index.
    pub name: String,
    /// Whether no two rows may have the same key.
    pub unique: bool,
    /// The parts of the index key.
    pub key: KeySpec,
    /// How its entries come apart.
    pub form: EntryForm,
    /// Whether its supplied entries have no payloads.
    pub without_payload: bool,
    /// The name of the extractor that makes its entries.
    pub extractor: Option<Arc<str>>,
    /// The fields of which its entries are made when it is filled, if they are not made of the first bytes of a value.
    pub reading: Option<FieldSet>,
}

impl IndexDefinition {
    /// Returns the fields of which its entries are made when it is filled.
    pub(super) fn filled_from(&self) -> FieldSet {
        self.reading.unwrap_or(INDEXED)
    }
}

impl Catalog {
    /// Refuses an index definition that is invalid for any table, or that names an extractor that is not registered.
    pub(super) fn check_index(&self, table: &str, index: &IndexDefinition) -> Result<()> {
        self.check_name(&index.name)?;
        index.key.check_for(index.form, &index.name)?;
        let is_supplied = matches!(index.form, EntryForm::Supplied { .. });
        if index.reading.is_some() && !is_supplied {
            let what = format!(
                "the entries of index {} are made of the first {} KiB of a value whenever a row changes: leave it out",
                index.name,
                INDEXED_BYTES >> 10
            );
            return Err(UsageError::Option { name: "IndexOptions::reading", what: what.into() }.into());
        }
        if index.without_payload && !is_supplied {
            let what =
                format!("the caller does not supply the entries of index {}: leave it out", index.name);
            return Err(
                UsageError::Option { name: "IndexOptions::without_payload", what: what.into() }.into()
            );
        }
        debug_assert!(
            index.extractor.is_some() == (index.form == EntryForm::Composite),
            "an extractor makes the entries of an index that has others, or none does"
        );
        if let Some(extractor) = &index.extractor {
            self.check_name(extractor)?;
            let owner = || Owner::Index { table: table.into(), index: index.name.as_str().into() };
            self.extractors.of(extractor).extractor(owner)?;
        }
        Ok(())
    }

    /// Makes the record of a new table. Long metadata is still to be written.
    pub(super) fn new_record(&self, definition: &TableDefinition) -> Result<TableRecord> {
        self.new_record_with(definition, self.new_metadata(&definition.metadata)?)
    }

    /// As [`Catalog::new_record`], with this form of the metadata.
    pub(super) fn new_record_with(
        &self,
        definition: &TableDefinition,
        metadata: Metadata,
    ) -> Result<TableRecord> {
        let mut indexes = Vec::with_capacity(definition.indexes.len());
        for (n, index) in definition.indexes.iter().enumerate() {
            self.check_index("the new table", index)?;
            if definition.indexes[..n].iter().any(|other| other.name == index.name) {
                let (table, index) = ("the new table".into(), index.name.as_str().into());
                return Err(SchemaError::IndexExists { table, index }.into());
            }
            indexes.push(self.new_index(index)?);
        }
        let clustered = self.transactions.ids().space()?;
        Ok(TableRecord { id: clustered.0, version: 1, clustered, metadata, indexes })
    }

    /// Refuses a definition if its record, which has this length, does not fit in the system tree.
    pub(super) fn check_length(&self, table: &str, length: usize) -> Result<()> {
        let limit = self.system.tree().inline_limit();
        if length <= limit {
            return Ok(());
        }
        Err(UsageError::DefinitionTooLong { table: table.into(), length, limit }.into())
    }

    pub(super) fn new_index(&self, index: &IndexDefinition) -> Result<IndexRecord> {
        Ok(IndexRecord {
            name: index.name.as_str().into(),
            space: self.transactions.ids().space()?,
            unique: index.unique,
            form: index.form,
            extractor: index.extractor.clone(),
            key: index.key.clone(),
        })
    }
}
