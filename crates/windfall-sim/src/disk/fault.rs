//! Failures that a test plans for a simulated disk.
//!
//! **Purpose.** Disks fail in more ways than by crashing.
//!
//! **Invariants.** A planned fault happens only to operations that it fits, and once, unless it is to last.
//!
//! **May touch.** Nothing.

use windfall_base::disk::FileName;

/// A failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The operation fails and does nothing; a sync that fails so may have lost what it was to make durable.
    Eio,
    /// As [`Fault::Eio`], but only what is to change something and is no sync.
    WriteFails,
    /// A read fails, a plain one too, which is no counted operation.
    ReadFails,
    /// An operation that may take space finds none, and does nothing.
    Full,
    /// A sync fails. Some of what it was to make durable is lost, readers still see it, and later syncs succeed
    /// without it.
    SyncFails,
    /// As [`Fault::SyncFails`], but what was missing was space: some file systems look for it only then.
    SyncFull,
    /// The write of a page to a data file fails, and its beginning has arrived.
    TornPage,
    /// A write is acknowledged and never happens.
    LostWrite,
    /// A write is acknowledged and forgotten: readers see it, syncs succeed, and after the crash it is gone.
    ForgottenWrite,
    /// A write is acknowledged and happens elsewhere, where it may lengthen a file.
    MisdirectedWrite {
        /// In which file, if not in its own; if there is none of this name the write is lost.
        file: Option<FileName>,
        /// Where it happens, in bytes.
        offset: u64,
    },
}

/// What an operation is, as far as faults are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A plain read, which is not counted.
    PlainRead,
    /// A read of a batch.
    Read,
    /// A write of bytes.
    Write,
    /// A sync of a file or a folder.
    Sync,
    /// Another operation that may take space: create, preallocate.
    Grow,
    /// Anything else.
    Other,
}

/// A fault that is to come.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// From which operation on.
    pub from: u64,
    /// In which file, if not in any.
    pub on: Option<FileName>,
    /// How many operations that it fits are spared first.
    pub spared: u64,
    /// Whether it stays once it has happened.
    pub lasting: bool,
    /// What it is.
    pub fault: Fault,
}

impl Plan {
    /// Whether it happens to this operation; counts those that are spared.
    pub fn strikes(&mut self, now: u64, kind: Kind, file: FileName) -> bool {
        let fits = self.from <= now && self.on.is_none_or(|on| on == file) && self.fault.fits(kind, file);
        if fits && self.spared > 0 {
            self.spared -= 1;
            return false;
        }
        fits
    }
}

impl Fault {
    /// Whether it can happen to such an operation on this file.
    pub fn fits(self, kind: Kind, file: FileName) -> bool {
        match self {
            Self::Eio => kind != Kind::PlainRead,
            Self::WriteFails => !matches!(kind, Kind::PlainRead | Kind::Read | Kind::Sync),
            Self::ReadFails => matches!(kind, Kind::PlainRead | Kind::Read),
            Self::Full => matches!(kind, Kind::Write | Kind::Grow),
            Self::SyncFails | Self::SyncFull => kind == Kind::Sync,
            Self::TornPage => kind == Kind::Write && matches!(file, FileName::Data(_)),
            Self::LostWrite | Self::ForgottenWrite | Self::MisdirectedWrite { .. } => kind == Kind::Write,
        }
    }

    /// Whether the disk does not say that something went wrong.
    pub fn is_damage(self) -> bool {
        matches!(self, Self::LostWrite | Self::ForgottenWrite | Self::MisdirectedWrite { .. })
    }
}
