//! The lines of a CSV or TSV file, as rows.
//!
//! **Purpose.** What stands in a file with a header: the columns, then a key and a value for each line.
//!
//! **Invariants.** Any bytes are a file. A line is a row with just the fields that the header names, and a key, or it
//! is bad and named by its number. A quote that is never closed is found, however much it has swallowed. No line takes
//! memory without a bound.
//!
//! **May touch.** `schema`, `output`, `columns`.

use std::io::{self, Read};

use super::schema;
use crate::{
    columns::{self, Columns},
    failure::{Failure, Result},
    output,
};

/// What is put behind the input, as a line of its own: a quote that is never closed swallows it, and is known by that.
/// No delimiter is in it. Any file may have such a line; but none of its own lines reaches as far.
const END: &[u8] = b"\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8";

/// The longest header, in bytes.
const LONGEST_HEADER: u64 = 1 << 20;

/// The input, as much of it as a line may have.
#[derive(Debug)]
struct Bounded<R> {
    input: R,
    /// How many bytes were read for the line under way: not more than it has, until it ends.
    read: u64,
    /// How many that may be.
    limit: u64,
    /// How many were read for all lines.
    total: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.read > self.limit {
            return Err(io::Error::other("the line is too long"));
        }
        let read = self.input.read(out)?;
        self.read += read as u64;
        self.total += read as u64;
        Ok(read)
    }
}

type Reader<R> = csv::Reader<io::Chain<Bounded<R>, io::Cursor<Vec<u8>>>>;

/// A file whose header was read.
pub struct Lines<R> {
    reader: Reader<R>,
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
    /// Reads the header. `name` is what messages call the input; `key` is the column that is the key, if not the first;
    /// no other line is longer than `longest` bytes.
    ///
    /// # Errors
    /// What is wrong with the header.
    pub fn of(input: R, name: &str, delimiter: u8, key: Option<&str>, longest: u64) -> Result<Self> {
        let end = [b"\n", END, b"\n"].concat();
        let mut reader =
            csv::ReaderBuilder::new().delimiter(delimiter).flexible(true).has_headers(false).from_reader(
                Bounded { input, read: 0, limit: LONGEST_HEADER, total: 0 }.chain(io::Cursor::new(end)),
            );
        let mut line = csv::ByteRecord::new();
        read(&mut reader, &mut line, name)?;
        let (columns, key_at) = columns_of(&line, is_behind(&reader), key)
            .map_err(|e| Failure::said(format!("{name}, line 1 (the header): {e}")))?;
        reader.get_mut().get_mut().0.limit = longest;
        Ok(Self { reader, name: name.to_owned(), columns, key_at, line })
    }

    /// The input.
    pub fn input(&self) -> &R {
        &self.reader.get_ref().get_ref().0.input
    }

    /// The columns that the header names.
    pub fn columns(&self) -> &Columns {
        &self.columns
    }

    /// The next line, and its number.
    ///
    /// # Errors
    /// The input cannot be read, or the line is too long: there is no way on behind it.
    pub fn next(&mut self) -> Result<Option<(u64, Line<'_>)>> {
        while read(&mut self.reader, &mut self.line, &self.name)? {
            if !is_end(&self.reader, &self.line) {
                let number = self.line.position().map_or(0, csv::Position::line);
                return Ok(Some((number, self.row())));
            }
        }
        Ok(None)
    }

    fn row(&self) -> Line<'_> {
        // What lies behind the input is the end, or lies within a quote.
        if is_behind(&self.reader) {
            return Line::Bad("a quote is opened in it and never closed".to_owned());
        }
        let expected = self.columns.others.len() + 1;
        if self.line.len() != expected {
            let has = output::things(self.line.len() as u64, "field");
            return Line::Bad(format!("it has {has}, the header has {expected}"));
        }
        let key = &self.line[self.key_at];
        if key.is_empty() {
            return Line::Bad(format!("its key ({}) is empty", output::quoted(self.columns.key.as_bytes())));
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

/// The columns that a header names, and which of its fields is the key. A header that reaches behind the input is none,
/// or has a quote that is never closed.
fn columns_of(header: &csv::ByteRecord, is_behind: bool, key: Option<&str>) -> Result<(Columns, usize)> {
    if is_behind && *header != [END][..] {
        return Err(Failure::said("a quote is opened in it and never closed"));
    }
    let mut names = Vec::new();
    for field in header.iter().filter(|_| !is_behind) {
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

/// Whether the line that was read last reaches behind the input, and the end of line that was put there.
fn is_behind<R: Read>(reader: &Reader<R>) -> bool {
    reader.position().byte() > reader.get_ref().get_ref().0.total + 1
}

/// Whether the line that was read last is only what was put behind the input.
fn is_end<R: Read>(reader: &Reader<R>, line: &csv::ByteRecord) -> bool {
    is_behind(reader) && *line == [END][..]
}

/// Reads a line, if there is one and it is not too long.
fn read<R: Read>(reader: &mut Reader<R>, line: &mut csv::ByteRecord, name: &str) -> Result<bool> {
    reader.get_mut().get_mut().0.read = 0;
    let read = reader.read_byte_record(line);
    let bounded = &reader.get_ref().get_ref().0;
    let (under_way, limit) = (bounded.read, bounded.limit);
    let length = match (&read, line.position()) {
        (Err(_), _) => under_way,
        // What was read ahead was not read for this line.
        (Ok(true), Some(start)) if !is_end(reader, line) => reader.position().byte() - start.byte(),
        _ => 0,
    };
    if length > limit {
        return Err(too_long(name, line.position().map_or(1, csv::Position::line), limit));
    }
    read.map_err(|e| Failure::said(format!("{name}: {e}")))
}

fn too_long(name: &str, number: u64, limit: u64) -> Failure {
    let size = output::bytes(limit as f64);
    Failure::said(match number {
        1 => format!(
            "{name}, line 1 (the header): it is longer than {size}: give a CSV or TSV file that begins with the names of \
             the columns"
        ),
        _ => format!(
            "{name}, line {number}: it is longer than {size}: look for a quote in it that is never closed, or allow \
             longer lines with --max-line"
        ),
    })
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
        let mut lines = Lines::of(text, "it", delimiter, key, u64::MAX).ok()?;
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
