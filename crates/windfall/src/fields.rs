//! Rows whose fields are stored one by one.
//!
//! **Purpose.** The long fields of a row have pages of their own, so that a change of another field does not write them
//! again, and a read of other fields does not read them.
//!
//! **Invariants.** A row reads as [`row::encode`] of its fields, however it was written and is stored (test:
//! `rows_of_fields_match_the_model`). A long field that is kept, or that is not selected, costs no page
//! (test: `a_kept_field_is_neither_read_nor_written`), except for the first bytes of a value that an index is made of.

use smallvec::SmallVec;

use crate::{
    error::Result,
    row::FieldSet,
    table::{NewRow, Table},
    tx_table::Access,
    txn::{Edit, FieldChange, Mode, SuppliedChange, Value},
};
#[cfg(doc)]
use crate::{row, table::Table as _};

fn all_set<'f>(fields: &[&'f [u8]]) -> SmallVec<[FieldChange<'f>; 8]> {
    fields.iter().map(|field| FieldChange::Set(field)).collect()
}

impl<A: Access> Table<A> {
    /// Inserts a row with these fields, as [`Table::insert_with`] does with [`row::encode`] of them: the row reads as
    /// that value, and [`row::field`] returns its fields. If the value is longer than a quarter of a page, the longest
    /// fields get pages of their own, each a chain, until the rest is short enough. There may be 64 fields (46 with
    /// pages of 4 KiB).
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-fields-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{FieldChange, TableOptions, row::{self, FieldSet}};
    ///
    /// let articles = db.create_table("articles", TableOptions::default())?;
    /// let text = vec![b'.'; 1 << 20];
    /// articles.insert_fields(b"1", &[b"0 readers", &text], &[])?;
    /// // Neither writes nor reads the text.
    /// articles.update_fields(b"1", &[FieldChange::Set(b"1 reader"), FieldChange::Keep], &[])?;
    /// let without_text = articles.select_fields(FieldSet::first(1));
    /// assert_eq!(row::field(&without_text.get(b"1")?.unwrap(), 0), Some(&b"1 reader"[..]));
    /// assert_eq!(row::field(&articles.get(b"1")?.unwrap(), 1), Some(&text[..]));
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Table::insert_with`]; too many fields
    /// ([`UsageError::TooManyFields`](crate::error::UsageError::TooManyFields)).
    pub fn insert_fields(&self, key: &[u8], fields: &[&[u8]], entries: &[SuppliedChange<'_>]) -> Result<()> {
        let fields = all_set(fields);
        let edit = Edit::write(Value::Fields(&fields), Mode::Insert);
        // Entries that are missing are found without them, too.
        let edit = if entries.is_empty() { edit } else { edit.with_entries(entries) };
        self.change(key, edit).map(drop)
    }

    /// Inserts a row with these fields, or gives them to the row with this key, as [`Table::put`] does.
    ///
    /// # Errors
    /// As [`Table::put`]; too many fields
    /// ([`UsageError::TooManyFields`](crate::error::UsageError::TooManyFields)).
    pub fn put_fields(&self, key: &[u8], fields: &[&[u8]]) -> Result<()> {
        self.change(key, Edit::write(Value::Fields(&all_set(fields)), Mode::Put)).map(drop)
    }

    /// Gives a row these fields, and replaces its entries in the named indexes as [`Table::update_with`] does. A field
    /// that is kept is that of the row when it is changed, which a transaction has usually locked before. If it is
    /// long, it is neither read nor written; only an index that makes its entries of the value, or that is being built,
    /// reads the first 64 KiB of that.
    ///
    /// A row that was written as one value must be [`row::encode`] of fields if some of them are kept. It is then read
    /// whole, and stored field by field.
    ///
    /// # Errors
    /// As [`Table::update_with`]; too many fields
    /// ([`UsageError::TooManyFields`](crate::error::UsageError::TooManyFields)); a field is kept that the row does not
    /// have ([`UsageError::NoSuchField`](crate::error::UsageError::NoSuchField)). The table is then unchanged.
    pub fn update_fields(
        &self,
        key: &[u8],
        fields: &[FieldChange<'_>],
        entries: &[SuppliedChange<'_>],
    ) -> Result<()> {
        let edit = Edit::write(Value::Fields(fields), Mode::Update);
        self.change(key, edit.with_entries(entries)).map(drop)
    }

    /// Gives a row another key, and these fields, as [`Table::change_key_with`] does: a field that is kept is that of
    /// the row with the old key. If it is long it is copied, page by page: read views, a rollback and purge find the
    /// row with the old key, and its pages, as they were. A row that was not written field by field is read whole, if a
    /// field is kept. With two equal keys it is [`Table::update_fields`].
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-key-fields-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{FieldChange, TableOptions, row};
    ///
    /// let articles = db.create_table("articles", TableOptions::default())?;
    /// let text = vec![b'.'; 1 << 20];
    /// articles.insert_fields(b"draft", &[b"0 readers", &text], &[])?;
    /// articles.change_key_fields(b"draft", b"1", &[FieldChange::Set(b"1 reader"), FieldChange::Keep], &[])?;
    /// assert_eq!(articles.get(b"draft")?, None);
    /// assert_eq!(row::field(&articles.get(b"1")?.unwrap(), 1), Some(&text[..]));
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Table::change_key_with`] and [`Table::update_fields`]. The table is then unchanged.
    pub fn change_key_fields(
        &self,
        old_key: &[u8],
        new_key: &[u8],
        fields: &[FieldChange<'_>],
        entries: &[SuppliedChange<'_>],
    ) -> Result<()> {
        if old_key == new_key {
            return self.update_fields(new_key, fields, entries);
        }
        self.change_key([old_key, new_key], NewRow::Fields(fields), entries)
    }

    /// Returns a handle of the same table whose reads need only these fields: those of single rows, of many, and of
    /// cursors and indexes that are made with it. Another field that has pages of its own is not read, and is empty in
    /// the value; one that has not may be there or not. A row that was not written field by field is read whole. So
    /// such a value is not to be written back (nor is one of which [`FieldSet::cut_at`] has left out bytes): change the
    /// fields ([`Table::update_fields`]). In a transaction ([`Transaction::table`](crate::Transaction::table)) the
    /// handle reads the same fields.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-select-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{TableOptions, row::{self, FieldSet}};
    ///
    /// let images = db.create_table("images", TableOptions::default())?;
    /// images.insert_fields(b"1", &[b"sunset", &[7; 50_000], &[8; 500_000]], &[])?;
    /// let thumbnails = images.select_fields(FieldSet::first(2));
    /// let mut cursor = thumbnails.cursor()?;
    /// assert!(cursor.next()?);
    /// let value = cursor.value().unwrap_or_default();
    /// assert_eq!(row::field(value, 1).map(<[u8]>::len), Some(50_000));
    /// assert_eq!(row::field(value, 2), Some(&b""[..]));
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn select_fields(&self, fields: FieldSet) -> Self {
        let mut table = self.clone();
        table.fields = fields;
        table
    }
}
