//! The input of a load.
//!
//! **Purpose.** A file or standard input, with a progress bar.
//!
//! **Invariants.** A wait for input ends at a signal (test: `an_interrupted_load_is_a_failed_load`).

use std::{
    fs::File,
    io::{self, IsTerminal as _, Read},
    os::fd::AsFd as _,
    path::Path,
};

use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    failure::{Failure, Result},
    interrupt::{Interrupt, Signal},
};

/// An input with its progress bar.
#[derive(Debug)]
pub(super) struct Input {
    file: File,
    interrupt: Interrupt,
    bar: ProgressBar,
}

impl Input {
    /// Opens a file or standard input, and returns its name for messages.
    ///
    /// # Errors
    /// The input cannot be read.
    pub(super) fn open(file: Option<&Path>) -> Result<(Self, String)> {
        let (file, length, name) = match file.filter(|f| *f != Path::new("-")) {
            // Not the standard library's handle: its own buffer would be invisible to the wait for input.
            None => {
                (File::from(io::stdin().as_fd().try_clone_to_owned()?), None, "standard input".to_owned())
            }
            Some(path) => {
                let name = path.display().to_string();
                let failed = |e| Failure::message(format!("{name} cannot be read: {e}"));
                let file = File::open(path).map_err(failed)?;
                let about = file.metadata().map_err(failed)?;
                if about.is_dir() {
                    return Err(Failure::message(format!("{name} is a folder: give a CSV or TSV file")));
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
        Ok((Self { file, interrupt: Interrupt::new()?, bar }, name))
    }

    /// From now on a signal is a read error, and no longer ends the process.
    ///
    /// # Errors
    /// Errors of the system.
    pub(super) fn watch_signals(&self) -> Result<()> {
        Ok(self.interrupt.watch()?)
    }

    /// Removes the progress bar.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Read for Input {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.interrupt.wait_for(&self.file)?;
        if Signal::received().is_some() {
            return Err(io::Error::other("stopped by a signal"));
        }
        let read = self.file.read(out)?;
        self.bar.inc(read as u64);
        Ok(read)
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
