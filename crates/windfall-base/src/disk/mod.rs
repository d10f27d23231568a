//! Files: the data files of tablespaces, the log's segments, the control and doublewrite files.
//!
//! **Purpose.** One trait between the engine and the file system, so that the same engine runs on a real disk and on a
//! simulated disk with fault injection: crashes, torn writes and lost writes.
//!
//! **Invariants.** Files are named by their role ([`FileName`]), never by path: the name of a data file is its
//! incarnation (by type). Nothing is durable before its `sync` (test: `unsynced_writes_are_visible_but_not_durable`); a
//! new, renamed or removed name is not durable before `sync_folder` (test:
//! `a_synced_file_whose_name_is_not_synced_may_be_lost`). A file object outlives every request on it, so a descriptor
//! is never reused while an I/O on it is in progress (test: `requests_outlive_the_disk_object`).

mod buffer;
mod handles;
mod queue;
mod real;
mod syscalls;

use core::fmt;
use std::path::PathBuf;

pub use buffer::{BLOCK_BYTES, IoBuffer};
pub use real::{RealDisk, RealDiskOptions};
pub use syscalls::{check_blocks, failed};

use crate::{
    error::{DiskError, Result},
    ids::SpaceId,
    sync::{
        atomic::AtomicU64,
        work::{self, Work},
    },
};

/// The role of a file, which is also its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileName {
    /// `windfall.control`: where recovery begins.
    Control,
    /// `windfall.control.new`: becomes the control file of a database that is being created.
    NewControl,
    /// `windfall.doublewrite`: copies of pages that are being written to the data files.
    Doublewrite,
    /// `windfall.doublewrite.new`: replaces the doublewrite file after recovery has found copies there on which it
    /// relies.
    NewDoublewrite,
    /// `log/<16 hex digits>.log`: a segment of the redo log, by its number.
    Log(u64),
    /// `data/<16 hex digits>.tree`: a tablespace, by its incarnation.
    Data(SpaceId),
}

/// A folder of the database: one call makes all its entries durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Folder {
    /// The database folder itself.
    Root,
    /// `log/`.
    Log,
    /// `data/`.
    Data,
}

impl FileName {
    /// Returns the folder of the file.
    pub fn folder(self) -> Folder {
        match self {
            Self::Control | Self::NewControl | Self::Doublewrite | Self::NewDoublewrite => Folder::Root,
            Self::Log(_) => Folder::Log,
            Self::Data(_) => Folder::Data,
        }
    }

    /// Returns whether the file is read and written in whole blocks, bypassing the page cache if the file system can.
    pub fn is_direct(self) -> bool {
        matches!(self, Self::Doublewrite | Self::NewDoublewrite | Self::Data(_))
    }

    /// Returns the file of this folder with this name; `None` for a file that the engine did not create.
    pub fn parse(folder: Folder, name: &str) -> Option<Self> {
        let number = |suffix| {
            let digits = name.strip_suffix(suffix)?;
            u64::from_str_radix(digits, 16).ok()
        };
        let file = match folder {
            Folder::Root if name == "windfall.control" => Self::Control,
            Folder::Root if name == "windfall.control.new" => Self::NewControl,
            Folder::Root if name == "windfall.doublewrite" => Self::Doublewrite,
            Folder::Root if name == "windfall.doublewrite.new" => Self::NewDoublewrite,
            Folder::Root => return None,
            Folder::Log => Self::Log(number(".log")?),
            Folder::Data => Self::Data(SpaceId(number(".tree")?)),
        };
        // A number has several spellings (upper case, a sign), but a file of the engine has only one.
        (file.to_string().rsplit('/').next() == Some(name)).then_some(file)
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Control => f.write_str("windfall.control"),
            Self::NewControl => f.write_str("windfall.control.new"),
            Self::Doublewrite => f.write_str("windfall.doublewrite"),
            Self::NewDoublewrite => f.write_str("windfall.doublewrite.new"),
            Self::Log(number) => write!(f, "log/{number:016x}.log"),
            Self::Data(space) => write!(f, "data/{:016x}.tree", space.0),
        }
    }
}

/// One file of each kind.
#[cfg(any(test, feature = "fuzz"))]
const EVERY_KIND: [FileName; 6] = [
    FileName::Control,
    FileName::NewControl,
    FileName::Doublewrite,
    FileName::NewDoublewrite,
    FileName::Log(7),
    FileName::Data(SpaceId(u64::MAX)),
];

/// Fuzzing: any name in any folder.
#[cfg(feature = "fuzz")]
pub mod fuzz {
    use super::{EVERY_KIND, FileName, Folder};

    const FOLDERS: [Folder; 3] = [Folder::Root, Folder::Log, Folder::Data];

    /// Checks that an accepted name equals the name that the engine gives the file.
    pub fn file_name(data: &[u8]) {
        let Ok(name) = str::from_utf8(data) else { return };
        for folder in FOLDERS {
            let Some(file) = FileName::parse(folder, name) else { continue };
            assert_eq!(file.folder(), folder);
            assert_eq!(file.to_string().rsplit('/').next(), Some(name));
        }
    }

    /// Returns the names of all kinds of files.
    pub fn file_name_seeds() -> Vec<Vec<u8>> {
        let name = |file: FileName| file.to_string().rsplit('/').next().unwrap_or_default().into();
        EVERY_KIND.map(name).into()
    }
}

/// One request of a batch.
#[derive(Debug)]
pub struct Request {
    /// Returned with the completion; the disk does not interpret it.
    pub token: u64,
    /// The file.
    pub file: FileName,
    /// The offset in the file, in bytes; a multiple of 4 KiB.
    pub offset: u64,
    /// Whether the buffer is read or written.
    pub action: Action,
    /// The bytes to write, or room for the bytes to read: the whole buffer is transferred.
    pub buffer: IoBuffer,
}

impl Request {
    /// Counts the request as work of the thread that submits it. Every disk calls this first.
    pub fn count(&self) {
        debug_assert!(self.offset.is_multiple_of(BLOCK_BYTES as u64), "a request at offset {}", self.offset);
        work::count(match self.action {
            Action::Read => Work::Read,
            Action::Write => Work::Write,
        });
    }
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Fills the buffer from the file; bytes past the end of the file read as zero.
    Read,
    /// Writes the buffer to the file, extending it where needed.
    Write,
}

/// The result of a request.
#[derive(Debug)]
pub struct Completion {
    /// The request's token.
    pub token: u64,
    /// The request's buffer; after a read it holds the bytes that were read.
    pub buffer: IoBuffer,
    /// Whether the request succeeded.
    pub result: Result<(), DiskError>,
}

/// Batches of requests in progress, and their completions.
///
/// A request holds its file from `submit` on: removing or renaming the file in the meantime does not change its
/// outcome. A request is not ordered against other requests or against `sync` until its completion has been received.
pub trait Queue: Send {
    /// Starts a batch on data files or the doublewrite file. It waits only when very many files have requests in
    /// progress.
    fn submit(&mut self, batch: Vec<Request>);

    /// Returns the completions since the last call. With `wait` set and requests in progress, waits for at least one.
    fn complete(&mut self, wait: bool) -> Vec<Completion>;

    /// Returns the number of requests in progress: submitted, their completions not yet received.
    fn pending(&self) -> usize;
}

/// A database folder and its files.
///
/// Every method may fail with [`DiskError`], naming the file. A data file need not be opened: the disk keeps a bounded
/// cache of handles, and opens on demand. Reading or writing a file that does not exist is [`DiskError::Missing`].
pub trait Disk: Send + Sync + fmt::Debug {
    /// Releases the folder to other processes: the database is closed, and nothing is written any more.
    fn release(&self) {}

    /// Returns the path of a file, for messages.
    fn path(&self, file: FileName) -> PathBuf;

    /// Returns how much of the file system of the data files is free, in percent; `None` if this is unknown.
    fn free_percent(&self) -> Option<u64> {
        None
    }

    /// Creates an empty file; an existing file of that name is truncated to length zero. Its name is durable after
    /// [`Disk::sync_folder`].
    ///
    /// # Errors
    /// [`DiskError::Full`], [`DiskError::Io`].
    fn create(&self, file: FileName) -> Result<(), DiskError>;

    /// Returns the length of a file in bytes, `None` if there is no such file.
    ///
    /// # Errors
    /// [`DiskError::Io`]; a missing file is not an error.
    fn len(&self, file: FileName) -> Result<Option<u64>, DiskError>;

    /// Returns the files of a folder, in order of name. Files that the engine did not create are left out.
    ///
    /// # Errors
    /// [`DiskError::Io`].
    fn list(&self, folder: Folder) -> Result<Vec<FileName>, DiskError>;

    /// Returns the files in the database's folders that the engine did not create. They are never touched.
    ///
    /// # Errors
    /// [`DiskError::Io`].
    fn foreign(&self) -> Result<Vec<PathBuf>, DiskError> {
        Ok(Vec::new())
    }

    /// Reads bytes from any offset. Returns the number of bytes read, which is smaller than requested only at the end
    /// of the file. The log and the control file are read through the page cache; [`Disk::read_page`] is the fast way
    /// for data files.
    ///
    /// # Errors
    /// [`DiskError::Missing`], [`DiskError::Io`].
    fn read(&self, file: FileName, offset: u64, out: &mut [u8]) -> Result<usize, DiskError>;

    /// Writes bytes to the log or the control file, extending it where needed. Data files and the doublewrite file are
    /// written through a [`Queue`]; here they take whole blocks only.
    ///
    /// # Errors
    /// [`DiskError::Missing`], [`DiskError::Full`], [`DiskError::Io`]. Some of the bytes may have been written.
    fn write(&self, file: FileName, offset: u64, bytes: &[u8]) -> Result<(), DiskError>;

    /// Reads one page of a data file straight into the words of a frame; bytes past the end of the file read as zero.
    /// The frame's memory is aligned to its size. Must be called with the frame's exclusive latch held.
    ///
    /// # Errors
    /// [`DiskError::Missing`], [`DiskError::Io`]. The page's content is then undefined.
    fn read_page(&self, file: FileName, offset: u64, into: &[AtomicU64]) -> Result<(), DiskError>;

    /// Returns a queue for batches of requests. Each worker has its own; completions arrive at the queue to which the
    /// requests were submitted, in any order.
    fn queue(&self) -> Box<dyn Queue>;

    /// Makes the content and length of a file durable.
    ///
    /// # Errors
    /// [`DiskError::Missing`], [`DiskError::Io`]. It is then unknown what is durable, and a later success says nothing
    /// about the data of this call: the database must stop.
    fn sync(&self, file: FileName) -> Result<(), DiskError>;

    /// Makes the names in a folder durable: files created, renamed and removed.
    ///
    /// # Errors
    /// [`DiskError::Io`], with the same meaning as in [`Disk::sync`].
    fn sync_folder(&self, folder: Folder) -> Result<(), DiskError>;

    /// Reserves space for the range, so that writing there cannot fail for lack of space, and extends a shorter file to
    /// the end of the range. Bytes that were never written read as zero.
    ///
    /// # Errors
    /// [`DiskError::Missing`], [`DiskError::Full`], [`DiskError::Io`].
    fn preallocate(&self, file: FileName, offset: u64, length: u64) -> Result<(), DiskError>;

    /// Truncates the file to this length, or extends it with zeros.
    ///
    /// # Errors
    /// [`DiskError::Missing`], [`DiskError::Io`].
    fn truncate(&self, file: FileName, length: u64) -> Result<(), DiskError>;

    /// Renames a file within its folder, replacing a file that has the new name.
    ///
    /// # Errors
    /// [`DiskError::Missing`], [`DiskError::Io`].
    fn rename(&self, from: FileName, to: FileName) -> Result<(), DiskError>;

    /// Removes a file's name. Open handles are closed when their last request ends.
    ///
    /// # Errors
    /// [`DiskError::Missing`], [`DiskError::Io`].
    fn remove(&self, file: FileName) -> Result<(), DiskError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_back_and_a_foreign_one_is_not_ours() {
        for file in EVERY_KIND {
            let name = file.to_string();
            assert_eq!(FileName::parse(file.folder(), name.rsplit('/').next().unwrap()), Some(file));
        }
        for name in
            ["7.log", "000000000000000A.log", "+00000000000000a.log", "000000000000000a.tree", ".log", ""]
        {
            assert_eq!(FileName::parse(Folder::Log, name), None, "{name}");
        }
        assert_eq!(FileName::parse(Folder::Root, "windfall.lock"), None);
    }
}
