//! The lines of a file that is loaded.
//!
//! **Purpose.** A file or standard input as records of CSV, with a bar that shows how far it is read.
//!
//! **Invariants.** A quote that is never closed swallows no lines unnoticed. No line takes memory without a bound. A wait
//! for input ends at a signal.
//!
//! **May touch.** `interrupt`, the file system, the terminal.

use std::{
    fs::File,
    io::{self, IsTerminal as _, Read},
    os::fd::AsFd as _,
    path::Path,
};

use csv::ByteRecord;
use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    failure::{Failure, Result},
    interrupt::{Interrupt, Signal},
    output,
};

/// What is put behind the input, as a line of its own: a quote that is never closed swallows it, and is known by that. No
/// text contains it, and no delimiter is in it.
const END: &[u8] = b"\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8";

/// The longest header, in bytes.
const LONGEST_HEADER: u64 = 1 << 20;

/// Whether a line is only what was put behind the input.
pub fn is_end(line: &ByteRecord) -> bool {
    *line == [END][..]
}

/// Whether the end of the input lies within a quote of this line.
pub fn is_cut(line: &ByteRecord) -> bool {
    !is_end(line) && line.iter().next_back().is_some_and(|field| field.trim_ascii_end().ends_with(END))
}

/// The bytes.
#[derive(Debug)]
struct Input {
    file: File,
    interrupt: Interrupt,
    bar: ProgressBar,
    /// How many bytes were read for the line under way: not more than it has, until it ends.
    read: u64,
    /// How many that may be.
    limit: u64,
    /// What comes behind the file, once that has ended.
    behind: Option<io::Cursor<Vec<u8>>>,
}

impl Read for Input {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if let Some(behind) = &mut self.behind {
            return behind.read(out);
        }
        if self.read > self.limit {
            return Err(io::Error::other("the line is too long"));
        }
        self.interrupt.wait_for(&self.file)?;
        if Signal::come().is_some() {
            return Err(io::Error::other("stopped by a signal"));
        }
        let read = self.file.read(out)?;
        self.read += read as u64;
        self.bar.inc(read as u64);
        if read > 0 {
            return Ok(read);
        }
        self.behind.insert(io::Cursor::new([b"\n", END, b"\n"].concat())).read(out)
    }
}

/// The lines.
#[derive(Debug)]
pub struct Lines {
    reader: csv::Reader<Input>,
    name: String,
    /// The longest line but the header.
    longest: u64,
}

impl Lines {
    /// Opens a file or standard input.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn open(file: Option<&Path>, delimiter: u8, longest: u64) -> Result<Self> {
        let interrupt = Interrupt::new()?;
        let (file, length, name) = match file.filter(|f| *f != Path::new("-")) {
            // Not the standard library's handle, which has a buffer of its own: waiting would not know of it.
            None => {
                (File::from(io::stdin().as_fd().try_clone_to_owned()?), None, "standard input".to_owned())
            }
            Some(path) => {
                let name = path.display().to_string();
                let failed = |e| Failure::said(format!("{name} cannot be read: {e}"));
                let file = File::open(path).map_err(failed)?;
                let about = file.metadata().map_err(failed)?;
                if about.is_dir() {
                    return Err(Failure::said(format!("{name} is a folder: give a CSV or TSV file")));
                }
                (file, about.is_file().then_some(about.len()), name)
            }
        };
        let bar = match length {
            _ if !io::stderr().is_terminal() => ProgressBar::hidden(),
            None => ProgressBar::new_spinner().with_style(style("{spinner} {bytes} {bytes_per_sec}")),
            Some(n) => ProgressBar::new(n)
                .with_style(style("{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left")),
        };
        let input = Input { file, interrupt, bar, read: 0, limit: LONGEST_HEADER, behind: None };
        let reader = csv::ReaderBuilder::new().delimiter(delimiter).flexible(true).from_reader(input);
        Ok(Self { reader, name, longest })
    }

    /// What the input is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// From here on a signal is a failure to read the next line, and no longer the end of the process.
    ///
    /// # Errors
    /// Those of the system.
    pub fn watch_signals(&self) -> Result<()> {
        Ok(self.reader.get_ref().interrupt.watch()?)
    }

    /// The first line.
    ///
    /// # Errors
    /// It cannot be read, or is too long.
    pub fn header(&mut self) -> Result<ByteRecord> {
        let header = self.reader.byte_headers().cloned();
        let header = header.map_err(|e| self.unreadable(&e, None))?;
        self.check_length(&header)?;
        self.reader.get_mut().limit = self.longest;
        Ok(header)
    }

    /// Reads the next line. Says whether there was one.
    ///
    /// # Errors
    /// It cannot be read or is too long, or a signal has come.
    pub fn next(&mut self, line: &mut ByteRecord) -> Result<bool> {
        loop {
            if let Some(signal) = Signal::come() {
                return Err(Failure::Stopped(signal, String::new()));
            }
            self.reader.get_mut().read = 0;
            let read = self.reader.read_byte_record(line);
            let read = read.map_err(|e| self.unreadable(&e, line.position()))?;
            if !(read && is_end(line)) {
                self.check_length(line)?;
                return Ok(read);
            }
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.reader.get_ref().bar.finish_and_clear();
    }

    /// Refuses a line that was read ahead, and not for itself.
    fn check_length(&self, line: &ByteRecord) -> Result<()> {
        let end = self.reader.position().byte();
        let length = line.position().map_or(0, |start| end - start.byte());
        if length > self.reader.get_ref().limit { Err(self.too_long(line.position())) } else { Ok(()) }
    }

    fn too_long(&self, start: Option<&csv::Position>) -> Failure {
        let (name, limit) = (&self.name, self.reader.get_ref().limit);
        let size = output::bytes(limit as f64);
        match start.map_or(1, csv::Position::line) {
            1 => Failure::said(format!(
                "{name}, line 1 (the header): it is longer than {size}: give a CSV or TSV file that begins with the names \
                 of the columns"
            )),
            number => Failure::said(format!(
                "{name}, line {number}: it is longer than {size}: look for a quote in it that is never closed, or allow \
                 longer lines with --max-line"
            )),
        }
    }

    fn unreadable(&self, error: &csv::Error, start: Option<&csv::Position>) -> Failure {
        let input = self.reader.get_ref();
        match Signal::come() {
            Some(signal) => Failure::Stopped(signal, String::new()),
            None if input.read > input.limit => self.too_long(start),
            None => Failure::said(format!("{}: {error}", self.name)),
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
