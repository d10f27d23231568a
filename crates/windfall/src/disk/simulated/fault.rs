//! Failures that a test plans for a simulated disk.
//!
//! **Purpose.** Disks fail in more ways than by crashing.
//!
//! **Invariants.** A planned fault happens once, at the first operation from its number on that it fits.
//!
//! **May touch.** Nothing.

use super::FileName;

/// A failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The operation fails and does nothing; a sync that fails so may have lost what it was to make durable.
    Eio,
    /// An operation that may take space finds none, and does nothing.
    Full,
    /// A sync fails. Some of what it was to make durable is lost, readers still see it, and later syncs succeed
    /// without it.
    SyncFails,
    /// The write of a page to a data file fails, and its beginning has arrived.
    TornPage,
    /// A write is acknowledged and never happens.
    LostWrite,
    /// A write is acknowledged and happens elsewhere in the file.
    MisdirectedWrite {
        /// Where it happens, in bytes.
        offset: u64,
    },
}

/// What an operation is, as far as faults are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A write of bytes.
    Write,
    /// A sync of a file or a folder.
    Sync,
    /// Another operation that may take space: create, preallocate.
    Grow,
    /// Anything else.
    Other,
}

impl Fault {
    /// Whether it can happen to such an operation on this file.
    pub fn fits(self, kind: Kind, file: FileName) -> bool {
        match self {
            Self::Eio => true,
            Self::Full => matches!(kind, Kind::Write | Kind::Grow),
            Self::SyncFails => kind == Kind::Sync,
            Self::TornPage => kind == Kind::Write && matches!(file, FileName::Data(_)),
            Self::LostWrite | Self::MisdirectedWrite { .. } => kind == Kind::Write,
        }
    }
}
