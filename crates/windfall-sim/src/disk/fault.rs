//! Fault injection: failures that a test plans for a simulated disk.
//!
//! **Purpose.** Disks fail in more ways than by crashing.
//!
//! **Invariants.** A planned fault happens only to operations that it fits, and only once unless it is lasting (test:
//! `faults_happen_once_where_they_fit`).

use windfall_base::disk::FileName;

/// A failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The operation fails and has no effect. A sync that fails this way may have lost the changes that it covered.
    Fails,
    /// As [`Fault::Fails`], but only for operations that change something, and not for syncs.
    WriteFails,
    /// A rename, a removal or a truncation reports a failure, and has happened all the same.
    LateFailure,
    /// A read fails; plain reads too, although they are not counted as operations.
    ReadFails,
    /// An operation that may take space finds none, and has no effect.
    Full,
    /// A sync fails. Some of the changes that it covered are lost. Readers still see them, and later syncs succeed
    /// without them.
    SyncFails,
    /// As [`Fault::SyncFails`], but the disk was full: some file systems allocate space only at the sync.
    SyncFull,
    /// The write of a page to a data file fails after its beginning has arrived.
    TornPage,
    /// A write is acknowledged and never happens.
    LostWrite,
    /// A write is acknowledged but never durable: readers see it, syncs succeed, and after a crash it is lost.
    ForgottenWrite,
    /// A write is acknowledged and happens at another place, where it may lengthen a file.
    MisdirectedWrite {
        /// The file that is written instead; `None` means the write's own file. If no file has this name the write is
        /// lost.
        file: Option<FileName>,
        /// The offset of the write, in bytes.
        offset: u64,
    },
}

/// The kind of an operation, which decides the faults that fit it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
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

/// A planned fault.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// The first operation to which it may happen.
    pub from: u64,
    /// The only file to which it may happen; `None` means any file.
    pub on: Option<FileName>,
    /// Fitting operations that are skipped first.
    pub spared: u64,
    /// Whether the fault persists once it has happened.
    pub lasting: bool,
    /// The fault.
    pub fault: Fault,
}

impl Plan {
    /// Returns whether the fault happens to this operation, and counts the fitting operations that are skipped.
    pub(super) fn strikes(&mut self, now: u64, kind: OperationKind, file: FileName) -> bool {
        let fits = self.from <= now && self.on.is_none_or(|on| on == file) && self.fault.fits(kind, file);
        if fits && self.spared > 0 {
            self.spared -= 1;
            return false;
        }
        fits
    }
}

impl Fault {
    /// Returns whether the fault can happen to an operation of this kind on this file.
    pub fn fits(self, kind: OperationKind, file: FileName) -> bool {
        match self {
            Self::Fails => kind != OperationKind::PlainRead,
            Self::WriteFails => {
                !matches!(kind, OperationKind::PlainRead | OperationKind::Read | OperationKind::Sync)
            }
            Self::LateFailure => kind == OperationKind::Other,
            Self::ReadFails => matches!(kind, OperationKind::PlainRead | OperationKind::Read),
            Self::Full => matches!(kind, OperationKind::Write | OperationKind::Grow),
            Self::SyncFails | Self::SyncFull => kind == OperationKind::Sync,
            Self::TornPage => kind == OperationKind::Write && matches!(file, FileName::Data(_)),
            Self::LostWrite | Self::ForgottenWrite | Self::MisdirectedWrite { .. } => {
                kind == OperationKind::Write
            }
        }
    }

    /// Returns whether the fault is silent: the disk reports no error.
    pub fn is_damage(self) -> bool {
        matches!(self, Self::LostWrite | Self::ForgottenWrite | Self::MisdirectedWrite { .. })
    }
}
