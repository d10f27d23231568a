//! The lines of a CSV or TSV file, as rows.
//!
//! **Purpose.** What stands in a file with a header: the columns, then a key and a value for each line.
//!
//! **Invariants.** Any bytes are a file. A line is a row with just the fields that the header names, and a key, or it is
//! bad and named by its number. A quote that is never closed is found, however much it has swallowed.
//!
//! **May touch.** `schema`, `output`, `columns`.

use std::io::{self, Read};

use super::schema;
use crate::{
    columns::{self, Columns},
    failure::{Failure, Result},
    output,
};

/// What is put behind the input, as a line of its own: a quote that is never closed swallows it, and is known by that. No
/// text contains it, and no delimiter is in it.
const END: &[u8] = b"\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8";

/// A file whose header was read.
pub struct Lines<R> {
    reader: csv::Reader<io::Chain<R, io::Cursor<Vec<u8>>>>,
    name: String,
    columns: Columns,
    key_at: usize,
    line: csv::ByteRecord,
}

/// A line below the header.
#[derive(Debug, PartialEq)]
pub enum Line<'a> {
    /// A row.
    Row {
        /// Its key.
        key: &'a [u8],
        /// The other columns, as [`columns::encode`] puts them.
        value: Vec<u8>,
    },
    /// What is wrong with it.
    Bad(String),
}

impl<R: Read> Lines<R> {
    /// Reads the header. `name` is what messages call the input; `key` is the column that is the key, if not the first.
    ///
    /// # Errors
    /// What is wrong with the header.
    pub fn of(input: R, name: &str, delimiter: u8, key: Option<&str>) -> Result<Self> {
        let end = [b"\n", END, b"\n"].concat();
        let mut reader = csv::ReaderBuilder::new()
            .delimiter(delimiter)
            .flexible(true)
            .from_reader(input.chain(io::Cursor::new(end)));
        let header = reader.byte_headers().map_err(|e| unreadable(name, &e))?;
        let (columns, key_at) = columns_of(header, key)
            .map_err(|e| Failure::said(format!("{name}, line 1 (the header): {e}")))?;
        Ok(Self { reader, name: name.to_owned(), columns, key_at, line: csv::ByteRecord::new() })
    }

    /// The columns that the header names.
    pub fn columns(&self) -> &Columns {
        &self.columns
    }

    /// The next line, and where it stands, in words.
    ///
    /// # Errors
    /// The input cannot be read.
    pub fn next(&mut self) -> Result<Option<(String, Line<'_>)>> {
        while self.reader.read_byte_record(&mut self.line).map_err(|e| unreadable(&self.name, &e))? {
            if self.line != [END][..] {
                let number = self.line.position().map_or(0, csv::Position::line);
                return Ok(Some((format!("{}, line {number}", self.name), self.row())));
            }
        }
        Ok(None)
    }

    fn row(&self) -> Line<'_> {
        if is_cut(&self.line) {
            return Line::Bad("a quote is opened in it and never closed".to_owned());
        }
        let expected = self.columns.others.len() + 1;
        if self.line.len() != expected {
            let has = output::things(self.line.len() as u64, "field");
            return Line::Bad(format!("it has {has}, the header has {expected}"));
        }
        let key = &self.line[self.key_at];
        if key.is_empty() {
            return Line::Bad(format!("its key ({}) is empty", self.columns.key));
        }
        let others: Vec<&[u8]> = self
            .line
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != self.key_at)
            .map(|(_, field)| field)
            .collect();
        match columns::encode(&others) {
            Some(value) => Line::Row { key, value },
            None => Line::Bad("it is longer than a row can be (4 GiB)".to_owned()),
        }
    }
}

/// The columns that a header names, and which of its fields is the key.
fn columns_of(header: &csv::ByteRecord, key: Option<&str>) -> Result<(Columns, usize)> {
    if is_cut(header) {
        return Err(Failure::said("a quote is opened in it and never closed"));
    }
    let mut names = Vec::new();
    for field in header.iter().filter(|_| *header != [END][..]) {
        let text = str::from_utf8(field).map_err(|_| {
            Failure::said(
                "it is not text in UTF-8: give a CSV or TSV file, in that encoding and not compressed",
            )
        })?;
        names.push(text.trim_start_matches('\u{feff}'));
    }
    let columns = schema::columns(names.iter().copied(), key)?;
    let key_at = names.iter().position(|n| n.trim() == columns.key).unwrap_or(0);
    Ok((columns, key_at))
}

/// Whether the end of the input lies within a quote of this line.
fn is_cut(line: &csv::ByteRecord) -> bool {
    *line != [END][..] && line.iter().next_back().is_some_and(|field| field.trim_ascii_end().ends_with(END))
}

fn unreadable(name: &str, error: &csv::Error) -> Failure {
    Failure::said(format!("{name}: {error}"))
}

/// Any bytes as a file.
#[cfg(feature = "fuzz")]
pub mod fuzz {
    use super::{Line, Lines};
    use crate::columns;

    const DELIMITERS: &[u8] = b",\t; ";

    /// What is in a file: the names of its columns, its good rows, and whether it has bad ones.
    type Content = (Vec<String>, Vec<Vec<Vec<u8>>>, bool);

    fn rows_of(text: &[u8], delimiter: u8, key: Option<&str>) -> Option<Content> {
        let mut lines = Lines::of(text, "it", delimiter, key).ok()?;
        let columns = lines.columns().clone();
        let (mut rows, mut bad) = (Vec::new(), false);
        while let Ok(Some((_, line))) = lines.next() {
            let Line::Row { key, value } = line else {
                bad = true;
                continue;
            };
            let Some(others) = columns::fields(&value) else { panic!("a value is not the row that it was") };
            assert!(!key.is_empty() && others.len() == columns.others.len());
            rows.push(std::iter::once(key).chain(others).map(<[u8]>::to_vec).collect());
        }
        Some((columns.names().map(str::to_owned).collect(), rows, bad))
    }

    /// What was read is a file again, and that file has just these rows.
    pub fn csv(data: &[u8]) {
        let Some(([delimiter, key], text)) = data.split_first_chunk() else { return };
        let delimiter = DELIMITERS[usize::from(*delimiter) % DELIMITERS.len()];
        let key = [None, Some("name"), Some("b")][usize::from(*key) % 3];
        let Some((names, rows, _)) = rows_of(text, delimiter, key) else { return };
        let mut writer = csv::WriterBuilder::new().delimiter(delimiter).from_writer(Vec::new());
        let mut written = writer.write_record(&names);
        for row in &rows {
            written = written.and_then(|()| writer.write_record(row));
        }
        assert!(written.is_ok(), "memory takes everything");
        let again = writer.into_inner().unwrap_or_default();
        assert_eq!(rows_of(&again, delimiter, None), Some((names, rows, false)));
    }

    /// Files, good and bad.
    pub fn csv_seeds() -> Vec<Vec<u8>> {
        let files: [(u8, u8, &str); 10] = [
            (0, 0, "id,name,town\n1,Ada,London\n2,Edgar,Oxford\n"),
            (0, 1, "id,name\r\n1,\"Ada, Countess\"\r\n2,\"say \"\"hi\"\"\"\r\n"),
            (1, 0, "a\tb\n1\t\n\t2\n"),
            (2, 2, "a;b;c\n1;2\n1;2;3;4\n1;2;3\n\n"),
            (0, 0, "\u{feff}a , b\n1,\"open\n2,3\n"),
            (0, 0, "\"a\nb\",c\n1,2\n"),
            (0, 0, "a\n\"\"\n x \n"),
            (0, 0, "a,a\n1,2\n"),
            (3, 0, "a b\n1 2\n"),
            (0, 0, ""),
        ];
        files.map(|(delimiter, key, text)| [&[delimiter, key], text.as_bytes()].concat()).into()
    }
}
