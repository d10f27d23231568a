//! Bulk load of a new table with its rows.
//!
//! **Purpose.** Rows in the order of their keys are written to the clustered tree as they arrive, from its first page
//! to its last; other rows are sorted first, in pieces. Entries of secondary trees are collected on the way, sorted in
//! pieces, and loaded after the last row.
//!
//! **Invariants.** The table cannot be found before its record is committed, when all of it exists (test:
//! `a_table_is_not_visible_before_it_is_complete`), so the load writes no undo. After a failure (test:
//! `a_refused_load_leaves_nothing`) or a crash, no record names its tablespaces (test:
//! `a_crash_during_a_load_leaves_all_or_nothing`). Entries carry no transaction id: every reader sees them (checked by
//! `catalog/bulk.rs::push`). Rows and entries in memory together take no more than a piece and the current row (test:
//! `a_table_larger_than_the_pool_and_the_log_is_written_once`).
//!
//! The metadata lock on the name is held from the beginning (test:
//! `a_statement_waits_for_another_one_as_long_as_it_is_asked_to`). The source of the rows is never called with a mutex
//! (test: `a_table_is_not_visible_before_it_is_complete`) or a latch held (test:
//! `a_table_larger_than_the_pool_and_the_log_is_written_once`).

use super::{
    bulk::{Load, duplicate_key, load_chain},
    ddl_options::DdlOptions,
    definition::TableDefinition,
    filled::Filled,
    key,
    record::IndexRecord,
    runs::{EntryTail, Payload, Runs},
    state::{Catalog, new_space},
    table::{Table, TableSchema},
};
use crate::{
    error::{Owner, Result, SchemaError, UsageError},
    keys::shown,
    log::LOG_OVERHEAD_BYTES,
    page::EntryHeader,
    sync::Arc,
    tablespace,
    txn::{
        mvcc::value::INDEXED_BYTES,
        row::{
            check_length,
            secondary::{entry_key, index_key_of},
        },
    },
};

/// Rows, as pairs of key and value.
pub type Rows<'a> = dyn Iterator<Item = Result<(Vec<u8>, Vec<u8>)>> + 'a;

/// The order in which rows arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The rows are in the order of their keys.
    Ascending,
    /// The order is arbitrary.
    Any,
}

/// The content of a row's entry: its value, or the reference to an overflow chain.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Stored {
    bytes: Vec<u8>,
    is_long: bool,
}

impl Payload for Stored {
    fn bytes(&self) -> usize {
        self.bytes.capacity()
    }

    fn entry(&self) -> (EntryHeader, &[u8]) {
        let flags = if self.is_long { EntryHeader::OVERFLOW } else { 0 };
        (EntryHeader { flags, ..EntryHeader::default() }, &self.bytes)
    }

    fn of(header: EntryHeader, value: &[u8]) -> Self {
        Self { bytes: value.to_vec(), is_long: header.is_overflow() }
    }
}

impl Catalog {
    /// Creates a table with these rows. Meanwhile its name cannot be found, and statements on the name wait, so the
    /// rows must not come from such a statement.
    ///
    /// # Errors
    /// [`SchemaError`] for the names, and for two rows with one key, also in a unique tree; rows that are not in
    /// `order`; keys and values that are too long; errors of `rows` and of the log. Nothing of the table is then left.
    pub fn load_table(
        &self,
        name: &str,
        definition: &TableDefinition,
        rows: &mut Rows<'_>,
        order: Order,
        options: DdlOptions,
    ) -> Result<Arc<Table>> {
        for index in &definition.indexes {
            key::check_makes_entries(name, &index.name, index.form, false)?;
        }
        let mut filled = Filled::new(self);
        let (metadata_lock, record, encoded) = self.lock_new_name(name, definition, &mut filled, options)?;
        metadata_lock.downgrade();
        let space = &mut |id| Ok(filled.space(id).unwrap_or_else(|| new_space(id)));
        let schema = self.schema(record, space)?;
        filled.add(&schema);
        TableLoader::new(self, name, &schema).fill(rows, order)?;
        let table = self.publish_table(metadata_lock, name, schema, encoded, options)?;
        filled.named();
        Ok(table)
    }
}

/// Fills the trees of a new table.
struct TableLoader<'a> {
    catalog: &'a Catalog,
    name: &'a str,
    schema: &'a TableSchema,
    /// The entries of each secondary tree.
    entries: Vec<Runs<EntryTail>>,
    /// The number of long values so far.
    chains: u64,
}

/// The clustered tree, and the last key in it.
struct Clustered<'t> {
    load: Load<'t>,
    last: Option<Vec<u8>>,
    rows: i64,
}

impl Clustered<'_> {
    /// Refuses a key that is not greater than the last. `row` is its number, if that is known.
    fn check(&self, key: &[u8], row: Option<u64>) -> Result<()> {
        match &self.last {
            Some(last) if last == key => Err(duplicate_key(key, row)),
            Some(last) if **last > *key => {
                let (row, key, previous) = (row.unwrap_or(0), shown(key).into(), shown(last).into());
                Err(UsageError::NotAscending { owner: Owner::Unknown, row, key, previous }.into())
            }
            _ => Ok(()),
        }
    }

    fn push(&mut self, key: Vec<u8>, stored: &Stored) -> Result<()> {
        debug_assert!(
            self.last.as_ref().is_none_or(|last| *last < key),
            "rows are loaded in the order of keys"
        );
        let (header, value) = stored.entry();
        self.load.push(&key, header, value)?;
        self.last = Some(key);
        self.rows += 1;
        Ok(())
    }
}

impl<'a> TableLoader<'a> {
    fn new(catalog: &'a Catalog, name: &'a str, schema: &'a TableSchema) -> Self {
        let entries = schema.secondaries.iter().map(|_| Runs::new(catalog.pool.clone())).collect();
        Self { catalog, name, schema, entries, chains: 0 }
    }

    fn owner_of(&self, index: &IndexRecord) -> Owner {
        Owner::Index { table: self.name.into(), index: index.name.clone() }
    }

    fn fill(mut self, rows: &mut Rows<'_>, order: Order) -> Result<()> {
        let filled = self.fill_clustered(rows, order);
        filled.map_err(|error| error.of(|_| Owner::Table(self.name.into())))?;
        let entries = core::mem::take(&mut self.entries);
        assert!(
            entries.len() == self.schema.secondaries.len(),
            "entries are collected for each secondary tree"
        );
        for (n, entries) in entries.into_iter().enumerate() {
            let index = &self.schema.record.indexes[n];
            let filled = self.fill_secondary(n, entries);
            filled.map_err(|error| error.of(|_| self.owner_of(index)))?;
        }
        Ok(())
    }

    fn fill_clustered(&mut self, rows: &mut Rows<'_>, order: Order) -> Result<()> {
        let mut clustered = Clustered { load: Load::new(&self.schema.clustered), last: None, rows: 0 };
        let mut unsorted: Runs<Stored> = Runs::new(self.catalog.pool.clone());
        for (row, next) in (1..).zip(rows) {
            let (key, value) = next?;
            if order == Order::Ascending {
                clustered.check(&key, Some(row))?;
            }
            let stored = self.take(&key, value)?;
            match order {
                Order::Ascending => clustered.push(key, &stored)?,
                Order::Any => unsorted.push(key, stored),
            }
            self.spill(&mut unsorted)?;
        }
        unsorted.drain(|key, stored| {
            clustered.check(&key, None)?;
            clustered.push(key, &stored)
        })?;
        clustered.load.finish()?;
        self.write_rows(clustered.rows)
    }

    /// Writes the number of rows to the header of the clustered tree.
    fn write_rows(&self, rows: i64) -> Result<()> {
        if rows == 0 {
            return Ok(());
        }
        let pool = &self.catalog.pool;
        let _room = pool.context().log.admit(LOG_OVERHEAD_BYTES)?;
        let space = self.schema.clustered.space();
        space.row_count().add(rows);
        tablespace::write_rows(pool, space)
    }

    /// Turns a row's value into the content of its entry, and collects its entries of secondary trees.
    fn take(&mut self, key: &[u8], value: Vec<u8>) -> Result<Stored> {
        let tree = &self.schema.clustered;
        check_length(tree, key, Owner::default)?;
        let start = &value[..value.len().min(INDEXED_BYTES)];
        for (n, index) in self.schema.record.indexes.iter().enumerate() {
            let entry = entry_key(&index.key.whole_key_of(start)?, key);
            check_length(&self.schema.secondaries[n], &entry, || self.owner_of(index))?;
            debug_assert!(
                index_key_of(&entry).len() + key.len() == entry.len(),
                "an entry is not that of its row"
            );
            self.entries[n].push(entry, EntryTail::new(&[], false));
        }
        if value.len() <= tree.inline_limit() {
            return Ok(Stored { bytes: value, is_long: false });
        }
        let chain = load_chain(tree, self.chains, &value)?;
        debug_assert!(chain.length == value.len() as u64, "a chain has another length than its value");
        self.chains += 1;
        Ok(Stored { bytes: chain.to_bytes().to_vec(), is_long: true })
    }

    /// Writes the rows and entries in memory to runs, if they exceed the memory bound.
    fn spill(&mut self, rows: &mut Runs<Stored>) -> Result<()> {
        let bytes = rows.bytes() + self.entries.iter().map(Runs::bytes).sum::<usize>();
        if bytes < self.catalog.pause.bounds().entries {
            return Ok(());
        }
        let ids = self.catalog.transactions.ids();
        for entries in self.entries.iter_mut().filter(|entries| entries.bytes() > 0) {
            entries.spill(ids.space()?)?;
        }
        if rows.bytes() > 0 {
            rows.spill(ids.space()?)?;
        }
        Ok(())
    }

    fn fill_secondary(&self, n: usize, mut entries: Runs<EntryTail>) -> Result<()> {
        let index = &self.schema.record.indexes[n];
        let mut load = Load::new(&self.schema.secondaries[n]);
        let mut last: Option<Vec<u8>> = None;
        entries.drain(|entry, _| {
            if index.unique
                && let Some(last) = &last
                && entry.starts_with(index_key_of(last))
            {
                let row = last[index_key_of(last).len()..].into();
                return Err(SchemaError::DuplicateKey { owner: self.owner_of(index), row }.into());
            }
            debug_assert!(last.as_ref().is_none_or(|last| *last <= entry), "entries are loaded in order");
            load.push(&entry, EntryHeader::default(), &[])?;
            last = Some(entry);
            Ok(())
        })?;
        load.finish()
    }
}
