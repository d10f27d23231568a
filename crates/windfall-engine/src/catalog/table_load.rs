//! Bulk load of the trees of a table ([`TableLoader`]), and of a new table with its rows.
//!
//! **Purpose.** Rows in the order of their keys are written to the clustered tree as they arrive, from its first page
//! to its last; other rows are sorted first, in pieces. Entries of secondary trees are collected on the way, sorted in
//! pieces, and loaded after the last row. The trees have no readers yet, so there is no undo. A table that exists is
//! loaded by [`existing_load`](super::existing_load).
//!
//! **Invariants.** A new table cannot be found before its record is committed, when all of it exists (test:
//! `a_table_is_not_visible_before_it_is_complete`). After a failure (test: `a_refused_load_leaves_nothing`) or a crash,
//! no record names its tablespaces (test: `a_crash_during_a_load_leaves_all_or_nothing`). Entries carry no transaction
//! id: every reader sees them (checked by `catalog/bulk.rs::push`). Rows and entries in memory together take no more
//! than a piece and the current row (tests: `a_table_larger_than_the_pool_and_the_log_is_written_once`,
//! `many_loads_at_once_stay_within_their_memory`).
//!
//! The metadata lock on the name of a new table is held from the beginning (test:
//! `a_statement_waits_for_another_one_as_long_as_it_is_asked_to`). The source of its rows is never called with a mutex
//! (test: `a_table_is_not_visible_before_it_is_complete`) or a latch held (test:
//! `a_table_larger_than_the_pool_and_the_log_is_written_once`).

use std::borrow::Cow;

use super::{
    bulk::{Load, SORT_BUFFER_BYTES, duplicate_key, load_chain},
    ddl_options::DdlOptions,
    definition::TableDefinition,
    entry_maker::EntryMaker,
    filled::Filled,
    key,
    runs::{EntryTail, Payload, Runs},
    state::{Catalog, new_space},
    table::{Secondaries, Table, TableSchema},
};
use crate::{
    buffer::BufferPool,
    error::{Owner, Result, SchemaError, UsageError},
    ids::IndexNumber,
    keys::shown,
    log::LOG_OVERHEAD_BYTES,
    page::EntryHeader,
    row,
    store::Tree,
    sync::{Arc, LongWork, Phase, ReportedWork},
    tablespace,
    tree::{
        OverflowRef, Parts, StoredField,
        fields::{encode_fields, fields_for_chains, fields_limit},
        overflow::VALUE_BYTES_MAX,
    },
    txn::{
        RowTarget, SuppliedChange,
        mvcc::value::{INDEXED, INDEXED_BYTES, start_of_fields},
        row::{Entry, check_length, entries_of_new_row},
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

/// How rows arrive, and the memory of their load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadLimits {
    /// The order of the rows.
    pub order: Order,
    /// Rows and entries that are sorted in memory at a time, in bytes. Less than [`LoadLimits::LEAST_MEMORY`] counts as
    /// that.
    pub memory: usize,
}

impl LoadLimits {
    /// The least memory of a load, in bytes: each piece that is sorted in memory takes a file.
    pub const LEAST_MEMORY: usize = 64 << 10;

    fn pieces(self) -> usize {
        self.memory.max(Self::LEAST_MEMORY)
    }
}

impl Default for LoadLimits {
    fn default() -> Self {
        Self { order: Order::Ascending, memory: SORT_BUFFER_BYTES }
    }
}

/// The value of a new row.
#[derive(Debug)]
pub enum LoadedValue<'v> {
    /// In one piece.
    Whole(Vec<u8>),
    /// Fields, which are stored one by one.
    Fields(&'v [&'v [u8]]),
}

impl LoadedValue<'_> {
    /// Returns its length in bytes.
    fn length(&self) -> u64 {
        match self {
            Self::Whole(value) => value.len() as u64,
            Self::Fields(fields) => row::encoded_bytes(fields.iter().map(|field| field.len() as u64)),
        }
    }

    /// Returns its first bytes, of which index keys are made.
    fn indexed(&self, tree: &Tree) -> Result<Cow<'_, [u8]>> {
        Ok(match self {
            Self::Whole(value) => Cow::Borrowed(&value[..value.len().min(INDEXED_BYTES)]),
            Self::Fields(fields) => Cow::Owned(start_of_fields(tree, &inline(fields), INDEXED_BYTES)?),
        })
    }
}

/// Returns fields as they would be in the entry.
fn inline<'f>(fields: &[&'f [u8]]) -> Vec<StoredField<'f>> {
    fields.iter().map(|field| StoredField::Inline(field)).collect()
}

/// The content of a row's entry: its value, the reference to its overflow chain, or its fields.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Stored {
    bytes: Vec<u8>,
    flags: u16,
}

impl Payload for Stored {
    fn bytes(&self) -> usize {
        self.bytes.capacity()
    }

    fn entry(&self) -> (EntryHeader, &[u8]) {
        (EntryHeader { flags: self.flags, ..EntryHeader::default() }, &self.bytes)
    }

    fn of(header: EntryHeader, value: &[u8]) -> Self {
        Self { bytes: value.to_vec(), flags: header.flags }
    }
}

impl Catalog {
    /// Creates a table with these rows. Meanwhile its name cannot be found, and statements on the name wait, so the
    /// rows must not come from such a statement.
    ///
    /// # Errors
    /// [`SchemaError`] for the names, and for two rows with one key, also in a unique tree; rows that are not in
    /// `order`; keys and values that are too long; errors of `rows` and of the log. Nothing of the table is then left.
    pub fn create_loaded_table(
        self: &Arc<Self>,
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
        filled.add(&schema)?;
        let limits = LoadLimits { order, ..LoadLimits::default() };
        let mut loader = TableLoader::new(self, name, schema.clone(), limits);
        for row in rows {
            LongWork::check()?;
            let (key, value) = row?;
            loader.push(key, LoadedValue::Whole(value), None)?;
        }
        loader.finish()?;
        let table = self.publish_table(metadata_lock, name, schema, encoded, options)?;
        filled.named();
        Ok(table)
    }
}

/// Fills the trees of a table, which are new.
#[derive(Debug)]
pub(super) struct TableLoader {
    catalog: Arc<Catalog>,
    name: Arc<str>,
    schema: TableSchema,
    /// The numbers of the table's indexes, which stand for those that are loaded; empty for a new table.
    replaced: Vec<IndexNumber>,
    limits: LoadLimits,
    clustered: Clustered,
    /// The rows, if they come in any order.
    unsorted: Runs<Stored>,
    /// The entries of each secondary tree.
    entries: Vec<Runs<EntryTail>>,
    /// The number of rows so far.
    rows: u64,
    /// The number of long values and fields so far.
    chains: u64,
    parts: Parts,
    work: ReportedWork,
}

/// The clustered tree, and the last key in it.
#[derive(Debug)]
struct Clustered {
    load: Load,
    last: Option<Vec<u8>>,
    rows: i64,
}

impl Clustered {
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

impl TableLoader {
    /// Begins to fill the trees of this schema.
    pub(super) fn new(catalog: &Arc<Catalog>, name: &str, schema: TableSchema, limits: LoadLimits) -> Self {
        let runs = || Runs::new(catalog.pool.clone());
        Self {
            catalog: catalog.clone(),
            name: name.into(),
            replaced: Vec::new(),
            limits,
            clustered: Clustered { load: Load::new(&schema.clustered), last: None, rows: 0 },
            unsorted: Runs::new(catalog.pool.clone()),
            entries: schema.secondaries.iter().map(|_| runs()).collect(),
            rows: 0,
            chains: 0,
            parts: Parts::default(),
            work: ReportedWork::unreported(Phase::Rows, 0),
            schema,
        }
    }

    /// Gives the table the name that messages have from now on.
    pub(super) fn renamed(self, name: &Arc<str>) -> Self {
        Self { name: name.clone(), ..self }
    }

    /// Names the indexes by the numbers of those that they replace.
    pub(super) fn replacing(mut self, schema: &TableSchema) -> Self {
        self.replaced = (0..schema.secondaries.len()).map(|place| schema.index_number(place)).collect();
        self
    }

    /// Returns the number of rows so far.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// Adds a row, with the entries that the caller supplies.
    ///
    /// # Errors
    /// A key that is not greater than the last, with rows in order; entries that are missing or wrong; keys, payloads
    /// and values that are too long: the row is not added. Any other error, such as a full disk: the load is
    /// incomplete, and every further call fails with [`UsageError::Incomplete`].
    pub(super) fn push(
        &mut self,
        key: Vec<u8>,
        value: LoadedValue<'_>,
        supplied: Option<&[SuppliedChange<'_>]>,
    ) -> Result<()> {
        self.try_push(key, value, supplied).map_err(|error| error.of(|_| Owner::Table(self.name.clone())))
    }

    fn try_push(
        &mut self,
        key: Vec<u8>,
        value: LoadedValue<'_>,
        supplied: Option<&[SuppliedChange<'_>]>,
    ) -> Result<()> {
        self.parts.check()?;
        self.work.advance(1)?;
        let row = self.rows + 1;
        if self.limits.order == Order::Ascending {
            self.clustered.check(&key, Some(row))?;
        }
        self.collect_entries(&key, &value, supplied)?;
        self.parts.begin()?;
        let stored = self.store(value)?;
        match self.limits.order {
            Order::Ascending => self.clustered.push(key, &stored)?,
            Order::Any => self.unsorted.push(key, stored),
        }
        self.spill()?;
        self.rows = row;
        self.parts.end();
        Ok(())
    }

    /// Collects the entries of a row.
    fn collect_entries(
        &mut self,
        key: &[u8],
        value: &LoadedValue<'_>,
        supplied: Option<&[SuppliedChange<'_>]>,
    ) -> Result<()> {
        let Self { catalog, name, schema, replaced, entries, .. } = self;
        let tree = &schema.clustered;
        check_length(tree, key.len(), Owner::default)?;
        let (length, limit) = (value.length(), VALUE_BYTES_MAX);
        if length > limit {
            return Err(UsageError::ValueTooLong { owner: Owner::Unknown, length, limit }.into());
        }
        if let LoadedValue::Fields(fields) = value {
            let (fields, limit) = (fields.len(), fields_limit(tree.inline_limit()));
            if fields > limit {
                return Err(UsageError::TooManyFields { owner: Owner::Unknown, fields, limit }.into());
            }
        }
        if entries.is_empty() && supplied.is_none_or(<[_]>::is_empty) {
            return Ok(());
        }
        let mut secondaries = Secondaries::new();
        schema.secondaries_to_change(&catalog.extractors, &mut secondaries);
        for (secondary, number) in secondaries.iter_mut().zip(&*replaced) {
            secondary.replaces = Some(*number);
        }
        let target = RowTarget {
            name,
            clustered: tree,
            secondaries: &secondaries,
            keys_of: &|value| schema.keys_of(value),
            temporary: None,
            watch: None,
            reads: None,
        };
        let start = if target.needs_bytes() { value.indexed(tree)? } else { Cow::default() };
        entries_of_new_row(&target, key, &start, supplied, |n, entry| {
            debug_assert!(entry.key.ends_with(key), "an entry is not that of its row");
            maker(name, schema, n).collect(entry, &mut entries[n]);
        })
    }

    /// Turns a row's value into the content of its entry. A long one, or long fields of it, are written.
    fn store(&mut self, value: LoadedValue<'_>) -> Result<Stored> {
        let limit = self.schema.clustered.inline_limit();
        let is_short = value.length() <= limit as u64;
        match value {
            LoadedValue::Whole(bytes) if is_short => Ok(Stored { bytes, flags: 0 }),
            LoadedValue::Whole(bytes) => {
                let chain = self.store_chain(&bytes)?;
                Ok(Stored { bytes: chain.to_bytes().to_vec(), flags: EntryHeader::OVERFLOW })
            }
            LoadedValue::Fields(fields) if is_short => Ok(Stored { bytes: row::encode(fields), flags: 0 }),
            LoadedValue::Fields(fields) => {
                let mut stored = inline(fields);
                for n in fields_for_chains(&stored, limit) {
                    stored[n] = StoredField::Chain(self.store_chain(fields[n])?);
                }
                Ok(Stored { bytes: encode_fields(&stored), flags: EntryHeader::FIELDS })
            }
        }
    }

    fn store_chain(&mut self, bytes: &[u8]) -> Result<OverflowRef> {
        let chain = load_chain(&self.schema.clustered, self.chains, bytes)?;
        debug_assert!(chain.length == bytes.len() as u64, "a chain has another length than its value");
        self.chains += 1;
        Ok(chain)
    }

    /// Writes the rows and entries in memory to runs, if they exceed the memory bound.
    fn spill(&mut self) -> Result<()> {
        let bytes = self.unsorted.bytes() + self.entries.iter().map(Runs::bytes).sum::<usize>();
        if bytes < self.catalog.pause.entries_at_most(self.limits.pieces()) {
            return Ok(());
        }
        let ids = self.catalog.transactions.ids();
        // First, because the entries of a key that occurs twice occur twice as well.
        if self.unsorted.bytes() > 0 {
            self.unsorted.spill(ids.space()?)?;
        }
        for n in 0..self.entries.len() {
            maker(&self.name, &self.schema, n).spill(&mut self.entries[n], ids)?;
        }
        Ok(())
    }

    /// Loads what was collected, and ends the trees.
    ///
    /// # Errors
    /// Two rows have one key, also in a unique tree; [`UsageError::Incomplete`]; errors of the log.
    pub(super) fn finish(self) -> Result<()> {
        let Self { catalog, name, schema, mut clustered, mut unsorted, entries, parts, .. } = self;
        let total = unsorted.count() + entries.iter().map(Runs::count).sum::<u64>();
        let mut work = ReportedWork::begin(Phase::Entries, total)?;
        let finish_clustered = || {
            parts.check()?;
            unsorted.drain(|key, stored| {
                work.advance(1)?;
                clustered.check(&key, None)?;
                clustered.push(key, &stored)
            })?;
            clustered.load.finish()?;
            write_rows(&catalog.pool, &schema.clustered, clustered.rows)
        };
        finish_clustered().map_err(|error| error.of(|_| Owner::Table(name.clone())))?;
        assert!(entries.len() == schema.secondaries.len(), "entries are collected for each secondary tree");
        for (n, entries) in entries.into_iter().enumerate() {
            let maker = maker(&name, &schema, n);
            let filled = fill_secondary((n, &maker), &schema.secondaries[n], entries, &mut work);
            filled.map_err(|error| error.of(|_| maker.owner()))?;
        }
        Ok(())
    }
}

/// Returns what collects the entries of an index of this table.
fn maker<'s>(table: &'s str, schema: &'s TableSchema, n: usize) -> EntryMaker<'s, 's> {
    EntryMaker::new(table, &schema.record.indexes[n], (&schema.secondaries[n], INDEXED), None, None)
}

/// Writes the number of rows to the header of a clustered tree.
fn write_rows(pool: &BufferPool, clustered: &Tree, rows: i64) -> Result<()> {
    if rows == 0 {
        return Ok(());
    }
    let _room = pool.context().log.admit(LOG_OVERHEAD_BYTES)?;
    let space = clustered.space();
    space.row_count().add(rows);
    tablespace::write_rows(pool, space)
}

/// Loads the entries of the index with number `n` into its tree.
///
/// # Errors
/// [`SchemaError::DuplicateInputKey`]; errors of the log.
pub(super) fn fill_secondary(
    (n, maker): (usize, &EntryMaker<'_, '_>),
    tree: &Arc<Tree>,
    mut entries: Runs<EntryTail>,
    work: &mut ReportedWork,
) -> Result<()> {
    let mut load = Load::new(tree);
    let mut last: Option<Entry> = None;
    entries.drain(|key, tail| {
        work.advance(1)?;
        let entry = maker.collected(key, &tail)?;
        let is_same = last.as_ref().is_some_and(|last| entry.key.starts_with(last.index_part()));
        if let Some(last) = last.as_ref().filter(|_| is_same && entry.is_unique) {
            let twice = SchemaError::DuplicateInputKey {
                owner: maker.owner(),
                index: Some(n),
                key: last.index_part().into(),
                row_key: last.key[last.index_bytes..].into(),
                row: None,
            };
            return Err(twice.into());
        }
        let loaded = load.push(&entry.key, EntryHeader::default(), &entry.value);
        loaded.map_err(|error| maker.of_equal_entries(error))?;
        if !is_same {
            last = Some(entry).filter(|entry| entry.is_unique);
        }
        Ok(())
    })?;
    load.finish()
}
