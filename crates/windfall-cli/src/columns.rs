//! The columns of a table: their names in its metadata, their bytes in its values.
//!
//! **Purpose.** The format that `load` writes and `get` and `scan` read: key and value by the names of the header.
//!
//! **Invariants.** Names and values are rows of [`windfall::row`], so that a program can index and read the columns
//! (tests: `rows_come_back_as_they_went`, `columns_live_in_the_metadata`). Bytes that do not match that format exactly
//! are shown as raw bytes (test: `a_row_becomes_an_object`).

use serde_json::{Map, Value};
use windfall::row;

use crate::{
    failure::{Failure, Result},
    output,
};

/// The first bytes of the metadata of a table that has rows as its values.
const MARK: &[u8] = b"rows\x01";

/// The maximum number of columns besides the key: the maximum number of fields in a row.
const MAX_COLUMNS: usize = u16::MAX as usize;

/// The maximum bytes of a row.
const MAX_ROW_BYTES: usize = u32::MAX as usize;

/// Returns the fields of a row, or `None` if the bytes are not a row.
pub(crate) fn fields(value: &[u8]) -> Option<Vec<&[u8]>> {
    let fields: Vec<&[u8]> = (0..row::count(value)).map(|n| row::field(value, n)).collect::<Option<_>>()?;
    // Every byte of a row belongs to its header or to a field.
    let length = 2 + 4 * fields.len() + fields.iter().map(|f| f.len()).sum::<usize>();
    (length == value.len()).then_some(fields)
}

/// Encodes several fields as one value; `None` if they exceed the limits of a row.
pub(crate) fn encode(fields: &[&[u8]]) -> Option<Vec<u8>> {
    let fits = fields.len() <= MAX_COLUMNS && fields.iter().map(|f| f.len()).sum::<usize>() <= MAX_ROW_BYTES;
    fits.then(|| row::encode(fields))
}

/// Returns the row as one JSON object, its columns by name; raw bytes if the value is not a row.
pub(crate) fn object(columns: Option<&Columns>, key: &[u8], value: &[u8]) -> Value {
    let mut object = Map::new();
    let row = columns.zip(fields(value)).filter(|(c, row)| c.others.len() == row.len());
    if let Some((columns, row)) = row {
        object.insert(columns.key.clone(), output::value(key));
        for (name, field) in columns.others.iter().zip(row) {
            object.insert(name.clone(), output::value(field));
        }
    } else {
        object.insert("key".into(), output::value(key));
        object.insert("value".into(), output::value(value));
    }
    object.into()
}

/// The names of a table's columns, and the key column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Columns {
    /// The key column.
    pub key: String,
    /// The columns of the value, in their order.
    pub others: Vec<String>,
}

impl Columns {
    /// Reads the columns from the metadata of a table; `None` if its values are not rows.
    pub(crate) fn from_metadata(metadata: &[u8]) -> Option<Self> {
        let fields = fields(metadata.strip_prefix(MARK)?)?;
        let mut names = fields.into_iter().map(|f| String::from_utf8_lossy(f).into_owned());
        Some(Self { key: names.next()?, others: names.collect() })
    }

    /// Encodes the columns as metadata.
    ///
    /// # Errors
    /// There are too many columns.
    pub(crate) fn to_metadata(&self) -> Result<Vec<u8>> {
        let names: Vec<&[u8]> = self.names().map(str::as_bytes).collect();
        let names = encode(&names).ok_or_else(|| {
            Failure::message(format!("{} columns are too many: at most {MAX_COLUMNS}", names.len()))
        })?;
        Ok([MARK, &names].concat())
    }

    /// Returns every name, the key's first.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.key).chain(&self.others).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_come_back_as_they_went() {
        for row in [vec![], vec![&b""[..]], vec![&b"a"[..], b"", b"\0\xff", b"last"]] {
            assert_eq!(fields(&encode(&row).unwrap()), Some(row));
        }
    }

    #[test]
    fn malformed_rows_are_refused() {
        let row = encode(&[b"one", b"two"]).unwrap();
        for cut in 0..row.len() {
            assert_eq!(fields(&row[..cut]), None, "cut at {cut}");
        }
        assert_eq!(fields(&[&row[..], b"more"].concat()), None);
        assert_eq!(fields(&[0xff; 16]), None);
        assert_eq!(encode(&vec![&b""[..]; MAX_COLUMNS + 1]), None);
    }

    #[test]
    fn columns_live_in_the_metadata() {
        let columns = Columns { key: "id".into(), others: vec!["name".into(), "city".into()] };
        assert_eq!(Columns::from_metadata(&columns.to_metadata().unwrap()), Some(columns));
        assert_eq!(Columns::from_metadata(b""), None);
        assert_eq!(Columns::from_metadata(b"something else"), None);
    }

    #[test]
    fn a_row_becomes_an_object() {
        let columns = Columns { key: "id".into(), others: vec!["name".into()] };
        let value = encode(&[b"Ann"]).unwrap();
        assert_eq!(object(Some(&columns), b"7", &value), json!({ "id": "7", "name": "Ann" }));
        assert_eq!(object(None, b"7", b"\xff"), json!({ "key": "7", "value": { "hex": "ff" } }));
        assert_eq!(object(Some(&columns), b"7", b"?"), json!({ "key": "7", "value": "?" }));
    }
}
