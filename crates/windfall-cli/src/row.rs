//! Rows of several columns in the value of a table, and the names of the columns in its metadata.
//!
//! **Purpose.** What `load` writes and `get` and `scan` read: a list of byte strings as one byte string.
//!
//! **Invariants.** A row says itself how many fields it has and where each ends: the number of fields as `u32`, the
//! end of each field as `u32` counted from the end of this list, then the bytes of the fields; all little-endian. What
//! does not follow this form is not a row, and decoding says so rather than guessing.
//!
//! **May touch.** Nothing.

/// The first bytes of the metadata of a table whose values are rows.
const MARK: &[u8] = b"rows\x01";

/// Encodes fields as one row.
pub fn encode<'a>(fields: impl IntoIterator<Item = &'a [u8]> + Clone) -> Vec<u8> {
    let count = fields.clone().into_iter().count();
    let mut row = Vec::with_capacity(4 + 4 * count + 16 * count);
    row.extend_from_slice(&(count as u32).to_le_bytes());
    let mut end = 0_u32;
    for field in fields.clone() {
        end += field.len() as u32;
        row.extend_from_slice(&end.to_le_bytes());
    }
    for field in fields {
        row.extend_from_slice(field);
    }
    row
}

/// The fields of a row, or `None` if the bytes are none.
pub fn decode(row: &[u8]) -> Option<Vec<&[u8]>> {
    let (count, rest) = row.split_first_chunk::<4>()?;
    let count = u32::from_le_bytes(*count) as usize;
    let (ends, bytes) = rest.split_at_checked(count.checked_mul(4)?)?;
    let mut fields = Vec::with_capacity(count);
    let mut start = 0;
    for end in ends.as_chunks::<4>().0 {
        let end = u32::from_le_bytes(*end) as usize;
        fields.push(bytes.get(start..end)?);
        start = end;
    }
    (start == bytes.len()).then_some(fields)
}

/// The names of a table's columns, and which of them is the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    /// The column whose bytes are the key.
    pub key: String,
    /// The columns of the value, in their order.
    pub others: Vec<String>,
}

impl Columns {
    /// Reads them from the metadata of a table; `None` if its values are not rows.
    pub fn from_metadata(metadata: &[u8]) -> Option<Self> {
        let fields = decode(metadata.strip_prefix(MARK)?)?;
        let mut names = fields.into_iter().map(|f| String::from_utf8_lossy(f).into_owned());
        Some(Self { key: names.next()?, others: names.collect() })
    }

    /// The metadata that keeps them.
    pub fn to_metadata(&self) -> Vec<u8> {
        let names: Vec<&[u8]> = self.names().map(str::as_bytes).collect();
        [MARK, &encode(names)].concat()
    }

    /// Every name, the key's first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.key).chain(&self.others).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_as_they_went() {
        for fields in [vec![], vec![&b""[..]], vec![&b"a"[..], b"", b"\0\xff", b"last"]] {
            assert_eq!(decode(&encode(fields.clone())), Some(fields));
        }
    }

    #[test]
    fn what_is_no_row_is_refused() {
        let row = encode([&b"one"[..], b"two"]);
        for cut in 0..row.len() {
            assert_eq!(decode(&row[..cut]), None, "cut at {cut}");
        }
        assert_eq!(decode(&[&row[..], b"more"].concat()), None);
        assert_eq!(decode(&[0xff; 16]), None);
        let mut backwards = row;
        backwards[4] = 200;
        assert_eq!(decode(&backwards), None);
    }

    #[test]
    fn columns_live_in_the_metadata() {
        let columns = Columns { key: "id".into(), others: vec!["name".into(), "city".into()] };
        assert_eq!(Columns::from_metadata(&columns.to_metadata()), Some(columns));
        assert_eq!(Columns::from_metadata(b""), None);
        assert_eq!(Columns::from_metadata(b"something else"), None);
    }
}
