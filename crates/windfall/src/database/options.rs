//! Options of new tables and indexes.
//!
//! **Purpose.** What the definition of a table and of its indexes consists of, as a program states it.
//!
//! **Invariants.** An index has entries of one kind (by type): made of the value, supplied or extracted. The definition
//! is checked when the table or the index is created (test: `a_field_that_no_index_can_see_is_refused`).

use crate::{
    catalog::{IndexDefinition, KeyPart, KeySpec, TableDefinition},
    row::FieldSet,
    sync::Arc,
    txn::EntryForm,
};

/// Options of a new table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableOptions {
    pub(crate) definition: TableDefinition,
}

impl TableOptions {
    /// Adds a secondary index.
    #[must_use]
    pub fn index(mut self, name: &str, options: IndexOptions) -> Self {
        self.definition.indexes.push(options.definition(name));
        self
    }

    /// Keeps these bytes of the application with the table ([`Table::metadata`]): at most 1 MiB. Up to an eighth of a
    /// page, 2 KiB by default, they are in the table's record. Longer ones have a tree, and once written a file, of
    /// their own.
    ///
    /// [`Table::metadata`]: crate::Table::metadata
    #[must_use]
    pub fn metadata(mut self, metadata: Vec<u8>) -> Self {
        self.definition.metadata = metadata;
        self
    }
}

/// Options of a new secondary index.
///
/// The index key is the concatenation of its parts, without separators. Keys of two rows must be equal only if all
/// parts are equal, and must sort by the first part, then by the second, and so on. So a part may precede another one
/// only if it has its full length in every row in which the other one is not empty:
///
/// - a range of bytes of the value may be followed by a later range of the value, with a gap or without;
/// - a range within the first 7 bytes of the value may be followed by field 0, within the first 11 by field 1, and so
///   on, 4 bytes more for each further field;
/// - a field has no fixed length, so it must be the last part.
///
/// Any other definition is refused when the index is created, alone or with its table, with
/// [`SchemaError::AmbiguousKey`](crate::error::SchemaError::AmbiguousKey). Such an index of an earlier version keeps
/// working: its table opens, and its rows can be read and changed; but different rows may have the same key in it. Drop
/// it, and create another one instead.
///
/// If the value ends within a part, the part consists of the bytes before that end; a part after the end, and a missing
/// field, are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexOptions {
    unique: bool,
    parts: Vec<KeyPart>,
    form: EntryForm,
    without_payload: bool,
    extractor: Option<Arc<str>>,
    reading: Option<FieldSet>,
}

impl IndexOptions {
    /// Creates an index on this range of bytes of the row's value; bytes past the end of the value are left out.
    pub fn on_value(bytes: core::ops::Range<u32>) -> Self {
        Self::default().and_value(bytes)
    }

    /// Creates an index on this field, counted from 0, of a value that [`row::encode`](crate::row::encode) has made.
    pub fn on_field(number: u32) -> Self {
        Self::default().and_field(number)
    }

    /// Appends this range of bytes of the value to the key. It must come after the ranges that the key already has.
    #[must_use]
    pub fn and_value(mut self, bytes: core::ops::Range<u32>) -> Self {
        self.parts
            .push(KeyPart::Value { offset: bytes.start, length: bytes.end.saturating_sub(bytes.start) });
        self
    }

    /// Appends this field of the value to the key. It must be the last part.
    #[must_use]
    pub fn and_field(mut self, number: u32) -> Self {
        self.parts.push(KeyPart::Field { number });
        self
    }

    /// Creates an index of which the caller supplies the entries, with each change of a row ([`Table::insert_with`]):
    /// for keys that the engine cannot make of the value, such as those of a collation, and for rows that are not in
    /// the index. An entry whose key has the usual length and no payload takes no bytes for its length; others take
    /// three or four. The keys must be self-delimiting ([`SuppliedEntry::key`]).
    ///
    /// Such an index is named when its table is created, or added later with a function that makes the entries of the
    /// rows that exist ([`Database::create_index_with`]). Rows of the table are changed with [`Table::insert_with`],
    /// [`Table::update_with`] and [`Table::delete_with`] alone.
    ///
    /// [`SuppliedEntry::key`]: crate::SuppliedEntry::key
    /// [`Table::update_with`]: crate::Table::update_with
    /// [`Table::delete_with`]: crate::Table::delete_with
    /// [`Table::insert_with`]: crate::Table::insert_with
    /// [`Database::create_index_with`]: crate::Database::create_index_with
    pub fn supplied(usual_length: u16) -> Self {
        Self { form: EntryForm::Supplied { usual: usual_length, payloads: true }, ..Self::default() }
    }

    /// Creates an index with the entries that an extractor makes of each row: of a computed key, of only some of the
    /// rows, or several of one row. The extractor must have been registered under this name with
    /// [`Options::extractor`]. Each change of a row then changes its entries; a read of the index finds a row once for
    /// each of its entries in the range.
    ///
    /// When the database is opened without the extractor, the table can be read, also by this index, and is not
    /// changed: each change of a row fails with [`UsageError::ExtractorMissing`].
    ///
    /// The name stands for what the extractor does. One that is to make other entries of the same rows gets another
    /// name, and the index is created again with it. A change that finds other entries in the index than the extractor
    /// makes of the row is refused ([`UsageError::ExtractorDiffers`]), and [`Database::check`] compares the entries of
    /// all rows. `SQLite` and `PostgreSQL` require the same of a function in an index, and do not find it out.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-extracted-{}", std::process::id()));
    /// use windfall::{Database, IndexOptions, Options, TableOptions};
    ///
    /// // A value is a list of tags.
    /// let options = Options::default().buffer_pool_size(16 << 20).extractor("tags", |_key, value, entries| {
    ///     value.split(|byte| *byte == b' ').filter(|tag| !tag.is_empty()).for_each(|tag| entries.add((tag,)));
    ///     Ok(())
    /// });
    /// let db = Database::open(&folder, options)?;
    /// let by_tag = TableOptions::default().index("tag", IndexOptions::extracted("tags"));
    /// let pages = db.create_table("pages", by_tag)?;
    /// pages.insert(b"1", b"rust database")?;
    /// pages.insert(b"2", b"database")?;
    /// pages.insert(b"3", b"")?;
    /// let index = pages.index("tag")?;
    /// let tagged = |tag: &str| index.get(&index.key((tag.as_bytes(),))).map(Iterator::count);
    /// assert_eq!((tagged("database")?, tagged("rust")?, tagged("dat")?), (2, 1, 0));
    /// pages.put(b"1", b"rust")?;
    /// assert_eq!(tagged("database")?, 1);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # windfall::Result::Ok(())
    /// # }
    /// ```
    ///
    /// [`UsageError::ExtractorMissing`]: crate::error::UsageError::ExtractorMissing
    /// [`UsageError::ExtractorDiffers`]: crate::error::UsageError::ExtractorDiffers
    /// [`Options::extractor`]: crate::Options::extractor
    /// [`Database::check`]: crate::Database::check
    pub fn extracted(extractor: &str) -> Self {
        let (form, extractor) = (EntryForm::Composite, Some(extractor.into()));
        Self { form, extractor, ..Self::default() }
    }

    /// Chooses the fields of which the entries of an index with supplied entries are made when it is added to a table
    /// with rows: the function that makes them ([`Database::create_index_with`], [`Database::alter_table_with`],
    /// [`Database::build_indexes_with`] and the other calls with one) gets a row's value as [`Table::select_fields`]
    /// reads it, instead of its first 64 KiB. So it gets the chosen fields whole, however long they are and wherever
    /// they are in the value, up to [`FieldSet::cut_at`]. Another field that has pages of its own is not read and is
    /// empty; one that has not may be there or not, so the entry must not depend on it. A row that was not written
    /// field by field is read whole.
    ///
    /// The chosen fields of one row are in memory at a time. A change meanwhile is noted with what they were and what
    /// they become: such notes are as long as the fields, and count towards the same limits as all others, beyond which
    /// changes wait, or an alteration in two steps fails with [`UsageError::TooManyNotes`]. An interrupt ends a change
    /// that reads them. A chosen field that has pages of its own and is kept
    /// ([`FieldChange::Keep`](crate::FieldChange::Keep)) is not read for a change of other fields, and not noted unless
    /// another chosen field changes. A row without such pages is noted whole, whatever changes in it. The choice is not
    /// stored, and has no meaning for an index of a new table.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-reading-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{IndexOptions, TableOptions, row::{self, FieldSet}};
    ///
    /// let documents = db.create_table("documents", TableOptions::default())?;
    /// documents.insert_fields(b"1", &[&[7; 500_000], b"a title behind a long text"], &[])?;
    /// let options = IndexOptions::supplied(0).reading(FieldSet::NONE.with(1));
    /// db.create_index_with("documents", "title", options, |_key, value, entry| {
    ///     entry.key.extend_from_slice(row::field(value, 1).unwrap_or_default());
    ///     Ok(true)
    /// })?;
    /// let title = documents.index("title")?;
    /// assert_eq!(title.range::<&[u8]>(..)?.count(), 1);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # windfall::Result::Ok(())
    /// # }
    /// ```
    ///
    /// An index of which the engine or an extractor makes the entries is refused with it, when it is created: a change
    /// of a row makes them of the first 64 KiB of the value.
    ///
    /// [`Database::create_index_with`]: crate::Database::create_index_with
    /// [`Database::alter_table_with`]: crate::Database::alter_table_with
    /// [`Database::build_indexes_with`]: crate::Database::build_indexes_with
    /// [`Table::select_fields`]: crate::Table::select_fields
    /// [`UsageError::TooManyNotes`]: crate::error::UsageError::TooManyNotes
    #[must_use]
    pub fn reading(mut self, fields: FieldSet) -> Self {
        self.reading = Some(fields);
        self
    }

    /// Makes the index unique: no two rows may have the same key. Supplied entries may be exempt
    /// ([`SuppliedEntry::may_repeat`](crate::SuppliedEntry::may_repeat)).
    #[must_use]
    pub fn unique(mut self) -> Self {
        self.unique = true;
        self
    }

    /// Makes an index of supplied entries one without payloads: an entry with a payload is refused
    /// ([`UsageError::PayloadNotStored`]). The keys of an entry never change, so a condition on entries
    /// ([`IndexCursor::seek_where`]) is then evaluated before the row is locked at all isolation levels. A payload may
    /// change until the row is locked: at levels that lock gaps, conditions in other indexes of supplied entries are
    /// evaluated on rows that are locked already.
    ///
    /// An index of which the caller does not supply the entries is refused with this option.
    ///
    /// [`UsageError::PayloadNotStored`]: crate::error::UsageError::PayloadNotStored
    /// [`IndexCursor::seek_where`]: crate::IndexCursor::seek_where
    #[must_use]
    pub fn without_payload(mut self) -> Self {
        self.without_payload = true;
        if let EntryForm::Supplied { payloads, .. } = &mut self.form {
            *payloads = false;
        }
        self
    }

    pub(crate) fn definition(self, name: &str) -> IndexDefinition {
        let Self { unique, parts, form, without_payload, extractor, reading } = self;
        let (name, key) = (name.to_owned(), KeySpec { parts });
        IndexDefinition { name, unique, key, form, without_payload, extractor, reading }
    }
}
