//! Why a command could not be served.
//!
//! **Purpose.** One type that every failure of this crate becomes, and that prints as one line.
//!
//! **Invariants.** The line names the thing and, where there is one, the cure.
//!
//! **May touch.** `interrupt`.

use std::{fmt, io};

use crate::interrupt::Signal;

/// The result of a command.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// Why a command could not be served.
#[derive(Debug)]
pub enum Failure {
    /// The engine refused or failed.
    Engine(windfall::error::Error),
    /// The answer could not be written.
    Answer(io::Error),
    /// Another call to the system failed.
    System(io::Error),
    /// A signal has ended it in good order, and this is what stays.
    Stopped(Signal, String),
    /// Anything else, said in words.
    Said(String),
}

impl Failure {
    /// A failure in words.
    pub fn said(what: impl Into<String>) -> Self {
        Self::Said(what.into())
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        if let Self::Stopped(signal, _) = self { signal.code() } else { 2 }
    }

    /// Whether the reader of our output has gone.
    pub fn is_broken_pipe(&self) -> bool {
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
            Self::Said(what) => what.clone(),
        };
        // One failure, one line, whatever was quoted in it.
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
