//! The lines of a CSV or TSV file, as rows.
//!
//! **Purpose.** Parses a file with a header: the columns, then a key and a value for each line.
//!
//! **Invariants.** Any bytes are accepted (test: `bytes_that_are_no_text_survive`). A line is either a row with exactly
//! the fields of the header and a key, or bad and reported with its number (test: `a_bad_line_is_named_by_its_number`).
//! An unclosed quote is detected, however many lines it spans (test: `a_quote_that_is_never_closed_swallows_no_lines`).
//! The memory for a line is bounded (test: `lines_without_an_end`).

use std::io::{self, Read};

use windfall_measure::units;

use super::schema;
use crate::{
    columns::{self, Columns},
    failure::{Failure, Result},
    output,
};

/// A sentinel line that is appended to the input: a field with an unclosed quote extends over it, and is detected by
/// that. It contains no delimiter. A file may contain such a line itself, but that line ends within the input.
const END: &[u8] = b"\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8";

/// The line break before and after the sentinel.
const END_OF_LINE: &[u8] = b"\n";

/// The longest header, in bytes.
const LONGEST_HEADER: u64 = 1 << 20;

/// The input, limited to the allowed length of a line.
#[derive(Debug)]
struct Bounded<R> {
    input: R,
    /// Bytes read for the current line: at most its length, until it ends.
    read: u64,
    /// The limit of `read`.
    limit: u64,
    /// Bytes read for all lines.
    total: u64,
    /// The bytes of the last read.
    last: Vec<u8>,
}

impl<R> Bounded<R> {
    /// Returns the byte before a position that the reader has reached: it is in the last read, or is the line break
    /// that was appended to the input. `None` further on.
    fn byte_before(&self, position: u64) -> Option<u8> {
        match (self.total + 1).checked_sub(position)? {
            0 => END_OF_LINE.first().copied(),
            back => self.last.iter().rev().nth(back as usize - 1).copied(),
        }
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.read > self.limit {
            return Err(io::Error::other("the line is too long"));
        }
        let read = self.input.read(out)?;
        self.read += read as u64;
        self.total += read as u64;
        if let Some(bytes @ [_, ..]) = out.get(..read) {
            bytes.clone_into(&mut self.last);
        }
        Ok(read)
    }
}

/// The records of a file, in sequence.
struct Records<R> {
    reader: csv::Reader<io::Chain<Bounded<R>, io::Cursor<Vec<u8>>>>,
    name: String,
    /// The last record.
    line: csv::ByteRecord,
    /// The number of its first line.
    number: u64,
    /// The record ended with the first half of `\r\n`: the reader counts the other half as part of the next record.
    half_ended: bool,
    is_header: bool,
}

/// A file after its header.
pub(crate) struct Lines<R> {
    records: Records<R>,
    columns: Columns,
    key_at: usize,
}

/// A line after the header.
#[derive(Debug, PartialEq)]
pub(crate) enum Line<'a> {
    /// A row.
    Row {
        /// The key of the row.
        key: &'a [u8],
        /// The other columns, encoded by [`columns::encode`].
        value: Vec<u8>,
    },
    /// A bad line, with the reason.
    Bad(String),
}

impl<R: Read> Lines<R> {
    /// Reads the header. `name` names the input in messages; `key` is the key column, if not the first; a later line
    /// has at most `longest` bytes.
    ///
    /// # Errors
    /// The reason why the header is invalid.
    pub(crate) fn of(input: R, name: &str, delimiter: u8, key: Option<&str>, longest: u64) -> Result<Self> {
        let mut records = Records::of(input, name, delimiter);
        records.read()?;
        // Without a header, the first line is the missing one.
        let number = if records.is_end() { 1 } else { records.number };
        let (columns, key_at) = columns_of(&records.line, records.is_beyond_input(), key)
            .map_err(|e| Failure::message(format!("{name}, line {number} (the header): {e}")))?;
        records.is_header = false;
        records.reader.get_mut().get_mut().0.limit = longest;
        Ok(Self { records, columns, key_at })
    }

    /// Returns the input.
    pub(crate) fn input(&self) -> &R {
        &self.records.input().input
    }

    /// Returns the columns of the header.
    pub(crate) fn columns(&self) -> &Columns {
        &self.columns
    }

    /// Returns the next line and its number.
    ///
    /// # Errors
    /// The input cannot be read, or the line is too long: reading cannot continue after it.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, Line<'_>)>> {
        while self.records.read()? {
            if !self.records.is_end() {
                return Ok(Some((self.records.number, self.row())));
            }
        }
        Ok(None)
    }

    fn row(&self) -> Line<'_> {
        let line = &self.records.line;
        // A record beyond the input is the sentinel, or is within a quote.
        if self.records.is_beyond_input() {
            return Line::Bad("a quote is opened in it and never closed".to_owned());
        }
        let expected = self.columns.others.len() + 1;
        if line.len() != expected {
            let has = units::things(line.len() as u64, "field");
            return Line::Bad(format!("it has {has}, the header has {expected}"));
        }
        let key = &line[self.key_at];
        if key.is_empty() {
            return Line::Bad(format!("its key ({}) is empty", output::quoted(self.columns.key.as_bytes())));
        }
        let others: Vec<&[u8]> =
            line.iter().enumerate().filter(|(at, _)| *at != self.key_at).map(|(_, field)| field).collect();
        match columns::encode(&others) {
            Some(value) => Line::Row { key, value },
            None => Line::Bad("it is longer than a row can be (4 GiB)".to_owned()),
        }
    }
}

/// Returns the columns of a header, and the position of the key. A header that extends beyond the input is missing, or
/// has an unclosed quote.
fn columns_of(
    header: &csv::ByteRecord,
    is_beyond_input: bool,
    key: Option<&str>,
) -> Result<(Columns, usize)> {
    if is_beyond_input && *header != [END][..] {
        return Err(Failure::message("a quote is opened in it and never closed"));
    }
    let mut names = Vec::new();
    for field in header.iter().filter(|_| !is_beyond_input) {
        let text = str::from_utf8(field).map_err(|_| {
            Failure::message(
                "it is not text in UTF-8: give a CSV or TSV file, in that encoding and not compressed",
            )
        })?;
        names.push(text.trim_start_matches('\u{feff}'));
    }
    let columns = schema::columns(names.iter().copied(), key)?;
    let key_at = names.iter().position(|n| n.trim() == columns.key).unwrap_or(0);
    Ok((columns, key_at))
}

impl<R: Read> Records<R> {
    fn of(input: R, name: &str, delimiter: u8) -> Self {
        let end = [END_OF_LINE, END, END_OF_LINE].concat();
        let input = Bounded { input, read: 0, limit: LONGEST_HEADER, total: 0, last: Vec::new() };
        let reader = csv::ReaderBuilder::new()
            .delimiter(delimiter)
            .flexible(true)
            .has_headers(false)
            .from_reader(input.chain(io::Cursor::new(end)));
        let (name, line) = (name.to_owned(), csv::ByteRecord::new());
        Self { reader, name, line, number: 1, half_ended: false, is_header: true }
    }

    fn input(&self) -> &Bounded<R> {
        self.reader.get_ref().get_ref().0
    }

    /// Returns whether the last record extends beyond the input and the line break appended to it.
    fn is_beyond_input(&self) -> bool {
        self.reader.position().byte() > self.input().total + 1
    }

    /// Returns whether the last record is exactly the sentinel.
    fn is_end(&self) -> bool {
        self.is_beyond_input() && self.line == [END][..]
    }

    /// Reads the next record; returns false at the end. It fails if the record is too long: empty lines before it count
    /// as a part of it.
    fn read(&mut self) -> Result<bool> {
        self.reader.get_mut().get_mut().0.read = 0;
        self.number = self.reader.position().line() + u64::from(self.half_ended);
        let start = self.reader.position().byte();
        let read = self.reader.read_byte_record(&mut self.line);
        let length = if read.is_ok() {
            self.count_lines();
            // Bytes that were read ahead do not belong to this record.
            if self.is_end() { 0 } else { self.reader.position().byte() - start }
        } else {
            self.input().read
        };
        if length > self.input().limit {
            return Err(self.too_long());
        }
        read.map_err(|e| Failure::message(format!("{}: {e}", self.name)))
    }

    /// Computes the number of the first line: the current line minus the line breaks in the record, and minus its own
    /// if that was consumed.
    fn count_lines(&mut self) {
        let here = self.reader.position();
        let last = self.input().byte_before(here.byte());
        let within = self.line.as_slice().split(|byte| *byte == b'\n').count() as u64 - 1;
        self.half_ended = last == Some(b'\r');
        self.number = here.line() - within - u64::from(last == Some(b'\n'));
    }

    fn too_long(&self) -> Failure {
        let Self { name, number, is_header, .. } = self;
        let size = units::bytes(self.input().limit as f64);
        Failure::message(if *is_header {
            format!(
                "{name}, line {number} (the header): it is longer than {size}: give a CSV or TSV file that begins with the \
                 names of the columns"
            )
        } else {
            format!(
                "{name}, line {number}: it is longer than {size}: look for a quote in it that is never closed, or allow \
                 longer lines with --max-line"
            )
        })
    }
}

/// Fuzz target: arbitrary bytes as a file.
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz {
    use super::{Line, Lines};
    use crate::columns;

    const DELIMITERS: &[u8] = b",\t; ";

    /// The content of a file: the names of its columns, its good rows, and whether it has bad ones.
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

    /// Writes what was read as a file again, and checks that this file has exactly these rows.
    pub(crate) fn csv(data: &[u8]) {
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

    /// Returns files as seeds, good and bad.
    pub(crate) fn csv_seeds() -> Vec<Vec<u8>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the numbers of the lines, bad ones in brackets; then the error that stops the reader.
    fn numbers(text: &str, longest: u64) -> String {
        let mut lines = match Lines::of(text.as_bytes(), "it", b',', None, longest) {
            Ok(lines) => lines,
            Err(error) => return error.to_string(),
        };
        let mut seen = Vec::new();
        loop {
            match lines.next() {
                Ok(None) => return seen.join(" "),
                Ok(Some((number, Line::Row { .. }))) => seen.push(number.to_string()),
                Ok(Some((number, Line::Bad(_)))) => seen.push(format!("[{number}]")),
                Err(error) => return format!("{} {error}", seen.join(" ")),
            }
        }
    }

    #[test]
    fn lines_have_the_numbers_that_an_editor_shows() {
        for end in ["\n", "\r\n"] {
            let numbers = |text: &str| numbers(&text.replace('\n', end), 1_000);
            assert_eq!(numbers("id,name\n1,a\n2\n3,c\n"), "2 [3] 4");
            assert_eq!(numbers("id,name\n1,a\n\n\n2\n\n3,c"), "2 [5] 7", "empty lines count");
            assert_eq!(numbers("\n\nid,name\n1,a\n"), "4", "before the header, too");
            assert_eq!(
                numbers("id,name\n1,\"a\nb\n\nc\"\n2,\"\"\"\n\"\n3\n"),
                "2 6 [8]",
                "so do those in quotes"
            );
            assert_eq!(numbers("id,name\n1,a\n2,\"b\n3,c\n"), "2 [3]", "a quote is never closed");
            assert_eq!(numbers("\u{feff}\"id\",name\n1\n"), "[2]");
            assert!(numbers("\n\n").starts_with("it, line 1 (the header): there are no columns"));
            assert!(numbers("\nid,id\n").starts_with("it, line 2 (the header): "));
            // Enough lines that the reader needs several reads, with line breaks at all positions.
            let many: Vec<String> = (1..5_000).map(|n| format!("{n},{}\n", "x".repeat(n % 7))).collect();
            let expected: Vec<String> = (2..5_001).map(|n| n.to_string()).collect();
            assert_eq!(numbers(&format!("id,name\n{}", many.concat())), expected.join(" "));
        }
        assert_eq!(
            numbers("id,name\r\n1,a\n2\r\n3\n\r\n4,d", 1_000),
            "2 [3] [4] 6",
            "one file has both ends"
        );
    }

    #[test]
    fn a_line_that_is_too_long_is_reported_with_its_number() {
        for end in ["\n", "\r\n"] {
            let long = format!("id,name\n1,a\n2,{}\n", "x".repeat(2_000)).replace('\n', end);
            let seen = numbers(&long, 1_000);
            assert!(
                seen.starts_with("2 it, line 3: it is longer than 1000 B") && seen.contains("--max-line"),
                "{seen}"
            );
            let seen = numbers(&long.replacen(&format!("1,a{end}"), "", 1), 1_000);
            assert!(seen.starts_with(" it, line 2: it is longer"), "{seen}");
            let header = format!("{}\n1,a\n", "x".repeat(LONGEST_HEADER as usize + 1)).replace('\n', end);
            let seen = numbers(&header, 1_000);
            assert!(seen.starts_with("it, line 1 (the header): it is longer"), "{seen}");
        }
    }
}
