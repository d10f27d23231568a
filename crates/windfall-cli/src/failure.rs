//! The failures of commands.
//!
//! **Purpose.** The error type of this crate, which prints as one line.
//!
//! **Invariants.** The line names the cause and, if there is one, the remedy (test:
//! `a_folder_without_a_database_is_not_made_one_by_reading`).

use std::{fmt, io};

use crate::interrupt::Signal;

/// The result of a command.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// The reason why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An error of the engine.
    Engine(windfall::error::Error),
    /// The output could not be written.
    Answer(io::Error),
    /// Another system call failed.
    System(io::Error),
    /// A signal ended the command cleanly; the text says what remains.
    Stopped(Signal, String),
    /// Any other failure, in words.
    Message(String),
}

impl Failure {
    /// Returns a failure in words.
    pub(crate) fn message(what: impl Into<String>) -> Self {
        Self::Message(what.into())
    }

    /// Returns the exit code.
    pub(crate) fn code(&self) -> u8 {
        if let Self::Stopped(signal, _) = self { signal.code() } else { 2 }
    }

    /// Returns whether the reader of the output has closed the pipe.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Answer(e) if e.kind() == io::ErrorKind::BrokenPipe)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = match self {
            Self::Engine(e) => e.to_string(),
            Self::Answer(e) => format!("the answer cannot be written: {e}"),
            Self::System(e) => e.to_string(),
            Self::Stopped(signal, left) => format!("stopped by {}; {left}", signal.name()),
            Self::Message(what) => what.clone(),
        };
        // One failure is one line, whatever is quoted in it.
        f.write_str(&line.replace(['\n', '\r'], " "))
    }
}

impl From<windfall::error::Error> for Failure {
    fn from(error: windfall::error::Error) -> Self {
        Self::Engine(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::Answer(error.into())
    }
}
