//! The errors of the engine: one enum per family of operations, all convertible to [`Error`].
//!
//! **Purpose.** Every error names the object (file, table, page, LSN) and, where there is one, the remedy. The lower
//! layers refer to tablespaces, not to tables; the upper layers add the [`Owner`] to an error on its way up, which
//! costs nothing unless a call fails.
//!
//! **Invariants.** Errors can be cloned, because a failure that poisons the database is returned to every caller (by
//! type).

mod lock;
mod transaction;
mod usage;

use core::fmt;
use std::{io, path::PathBuf};

pub use lock::{Blockers, LockError};
pub use transaction::TransactionError;
pub use usage::UsageError;

use crate::{
    ids::{IndexNumber, Lsn, PageId, PageNo, SpaceId},
    keys::shown,
    sync::{Arc, Interrupted},
};

/// The result of an engine call.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Any failure of the engine.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused or failed an operation on a file.
    #[error(transparent)]
    Disk(DiskError),
    /// The bytes that were read are not the bytes that were written.
    #[error(transparent)]
    Corrupt(#[from] CorruptError),
    /// The call cannot be served with these arguments.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// A table, index or row that does not exist, or exists already.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// A transactional lock was not granted.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// An operation that the transaction cannot carry out.
    #[error(transparent)]
    Transaction(#[from] TransactionError),
    /// The table or index of this handle was dropped, or truncated since an iterator on it began.
    #[error("{0} was dropped or truncated: open the table again to see what has its name now")]
    TableDropped(Owner),
    /// An earlier failure left the state on disk unknown; nothing further is written or acknowledged.
    #[error("the database stopped after an earlier failure ({0}): close it and open it again to recover")]
    Poisoned(Arc<str>),
    /// The database is being closed.
    #[error("the database is closed")]
    Closed,
}

#[doc(hidden)]
impl From<Interrupted> for Error {
    fn from(interrupted: Interrupted) -> Self {
        Self::Lock(interrupted.into())
    }
}

impl From<DiskError> for Error {
    fn from(error: DiskError) -> Self {
        match error {
            DiskError::Released => Self::Closed,
            error => Self::Disk(error),
        }
    }
}

/// The object of an error, by the names that users gave it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Owner {
    /// Not known yet.
    #[default]
    Unknown,
    /// A table.
    Table(Arc<str>),
    /// An index of a table.
    Index {
        /// The table.
        table: Arc<str>,
        /// The index.
        index: Arc<str>,
    },
    /// The metadata of a table, where they have a tree of their own.
    Metadata(Arc<str>),
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("the table"),
            Self::Table(table) => write!(f, "table {table}"),
            Self::Index { table, index } => write!(f, "index {index} of table {table}"),
            Self::Metadata(table) => write!(f, "the metadata of table {table}"),
        }
    }
}

impl Owner {
    /// Returns the names of the table and the index; the table's name is empty if it is unknown.
    #[doc(hidden)]
    pub fn names(&self) -> (&str, Option<&str>) {
        match self {
            Self::Unknown => ("", None),
            Self::Table(table) | Self::Metadata(table) => (table, None),
            Self::Index { table, index } => (table, Some(index)),
        }
    }

    /// Returns the beginning of a message about this owner: nothing if it is unknown.
    fn prefix(&self) -> String {
        match self {
            Self::Unknown => String::new(),
            known => format!("{known}: "),
        }
    }

    /// Returns the name, for a message, of the key that is too long in a tree of this owner.
    fn key(&self) -> &'static str {
        match self {
            Self::Unknown | Self::Table(_) | Self::Metadata(_) => "the key",
            Self::Index { .. } => "the index key",
        }
    }

    /// Returns the description of a tablespace of this owner.
    #[doc(hidden)]
    pub fn tree(&self, space: SpaceId) -> String {
        match self {
            Self::Unknown if space == SpaceId::SYSTEM => "the system tree".to_owned(),
            Self::Unknown => format!("tablespace {space}"),
            known => format!("{known}, tablespace {space}"),
        }
    }
}

impl Error {
    /// Adds the owner to the error, unless it is known: `owner` is called with the tablespace, if the error has one. An
    /// error that is only text gets the owner as a prefix, so this must be called once, where the error leaves the
    /// engine.
    #[cold]
    #[doc(hidden)]
    #[must_use]
    pub fn of(mut self, owner: impl FnOnce(Option<SpaceId>) -> Owner) -> Self {
        let (known, space) = match &mut self {
            Self::TableDropped(known)
            | Self::Usage(
                UsageError::KeyTooLong { owner: known, .. }
                | UsageError::ValueTooLong { owner: known, .. }
                | UsageError::AutoIncrementExhausted { owner: known, .. }
                | UsageError::IndexedPartTooFar { owner: known, .. }
                | UsageError::ChangeTooLong { owner: known, .. }
                | UsageError::NotAscending { owner: known, .. }
                | UsageError::TooManyDeferred(known)
                | UsageError::TooManyNotes { owner: known, .. }
                | UsageError::TablespaceFull { owner: known, .. }
                | UsageError::OutOfMemory { owner: known, .. }
                | UsageError::Source { owner: known, .. }
                | UsageError::Output { owner: known, .. }
                | UsageError::WaitInCall { owner: known, .. },
            )
            | Self::Schema(SchemaError::DuplicateInputKey { owner: known, .. }) => (known, None),
            Self::Corrupt(CorruptError::Structure { owner: known, space, .. }) => (known, Some(*space)),
            Self::Usage(UsageError::Other(what)) => {
                *what = format!("{}: {what}", owner(None)).into();
                return self;
            }
            _ => return self,
        };
        if *known == Owner::Unknown {
            *known = owner(space);
        }
        self
    }

    /// Returns whether the error reports written data that could not be read again, or could not be decoded: such a
    /// failure concerns only the table in which the data lies.
    #[doc(hidden)]
    pub fn is_read_failure(&self) -> bool {
        match self {
            Self::Corrupt(_) | Self::Disk(DiskError::Missing { .. }) => true,
            Self::Disk(error) => error.is_read_error(),
            _ => false,
        }
    }
}

/// An operation on a file or a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IoOp {
    /// Opens a file or a folder.
    Open,
    /// Creates a file.
    Create,
    /// Reads the attributes of a file.
    Inspect,
    /// Lists the files of a folder.
    List,
    /// Locks a folder for this process.
    Lock,
    /// Reads bytes.
    Read,
    /// Writes bytes.
    Write,
    /// Makes the content of a file durable.
    Sync,
    /// Makes the names in a folder durable; the error contains the path of a file of the folder.
    SyncFolder,
    /// Allocates space for bytes that are still to be written.
    Preallocate,
    /// Shortens a file.
    Truncate,
    /// Renames a file.
    Rename,
    /// Deletes a file.
    Remove,
}

impl fmt::Display for IoOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Create => "create",
            Self::Inspect => "look at",
            Self::List => "list",
            Self::Lock => "lock",
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::SyncFolder => "sync the folder of",
            Self::Preallocate => "preallocate",
            Self::Truncate => "truncate",
            Self::Rename => "rename",
            Self::Remove => "remove",
        })
    }
}

/// A failure of the file system.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// A system call failed.
    #[error("{action} {path}: {source}")]
    Io {
        /// The attempted operation.
        action: IoOp,
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: Arc<io::Error>,
    },
    /// No space is left on the device.
    #[error("{action} {path}: the file system is full: free some space and try again")]
    Full {
        /// The attempted operation.
        action: IoOp,
        /// The file.
        path: PathBuf,
    },
    /// The folder is in use by another process.
    #[error("{path} is in use by another process: close it there first")]
    Locked {
        /// The database folder.
        path: PathBuf,
    },
    /// A file that must exist is missing.
    #[error("{path} is missing: restore it from a backup")]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The folder was released, and another process may have opened it since: no operation will succeed.
    #[error("the database is closed")]
    Released,
    /// A thread that carries out requests has panicked: the outcome of the request is unknown.
    #[error("an I/O thread has panicked: {what}")]
    Panicked {
        /// The panic's message.
        what: Arc<str>,
    },
}

impl DiskError {
    /// Returns whether a sync failed, for any reason: the data that it should have made durable may be lost.
    #[doc(hidden)]
    pub fn is_sync_failure(&self) -> bool {
        let (Self::Io { action, .. } | Self::Full { action, .. }) = self else { return false };
        matches!(action, IoOp::Sync | IoOp::SyncFolder)
    }

    /// Returns whether space was lacking: on the device, or below a limit on the size of files.
    pub fn is_no_space(&self) -> bool {
        match self {
            Self::Full { .. } => true,
            Self::Io { source, .. } => source.kind() == io::ErrorKind::FileTooLarge,
            _ => false,
        }
    }

    /// Returns whether existing data could not be read.
    #[doc(hidden)]
    pub fn is_read_error(&self) -> bool {
        matches!(self, Self::Io { action: IoOp::Read, .. })
    }

    /// Adds the number of the page that could not be read.
    #[doc(hidden)]
    #[must_use]
    pub fn of_page(self, page: PageNo) -> Self {
        match self {
            Self::Io { action: IoOp::Read, path, source } => {
                let source = io::Error::new(source.kind(), format!("page {page}: {source}"));
                Self::Io { action: IoOp::Read, path, source: Arc::new(source) }
            }
            other => other,
        }
    }
}

/// Damage found in a file.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CorruptError {
    /// A page with a wrong checksum or identity.
    #[error("{file}: {page} (last changed at LSN {lsn}) is damaged: {what}; restore it from a backup")]
    Page {
        /// The data file.
        file: PathBuf,
        /// The requested page.
        page: PageId,
        /// The LSN in the header as found; it may be wrong.
        lsn: Lsn,
        /// A description of the damage.
        what: Arc<str>,
    },
    /// The log is damaged before its end.
    #[error("{file}: the log is damaged at LSN {lsn}, before its end: {what}; restore from a backup")]
    Log {
        /// The segment file.
        file: PathBuf,
        /// The LSN of the damage.
        lsn: Lsn,
        /// A description of the damage.
        what: Arc<str>,
    },
    /// A file that does not belong to the engine, or has another version.
    #[error("{file}: {what}")]
    File {
        /// The file.
        file: PathBuf,
        /// A description of the error, and the remedy.
        what: Arc<str>,
    },
    /// A structure that contradicts itself.
    #[error("{}: {what}; restore it from a backup", owner.tree(*space))]
    Structure {
        /// The owner of the tree.
        owner: Owner,
        /// The tablespace.
        space: SpaceId,
        /// A description of the damage.
        what: Arc<str>,
    },
}

/// The holder of a row that a call cannot wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RowHolder {
    /// Another call, for as long as it changes the row.
    Call,
    /// Another transaction, until it ends.
    Transaction,
}

impl fmt::Display for RowHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Call => "another call changes this row",
            Self::Transaction => "another transaction has locked this row",
        })
    }
}

/// A name or a row that does not fit what exists.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// No table of that name.
    #[error("there is no table {0}")]
    NoTable(Arc<str>),
    /// The name is taken.
    #[error("a table {0} exists already")]
    TableExists(Arc<str>),
    /// No index of that name.
    #[error("table {table} has no index {index}")]
    NoIndex {
        /// The table.
        table: Arc<str>,
        /// The index.
        index: Arc<str>,
    },
    /// The index name is taken.
    #[error("table {table} has an index {index} already")]
    IndexExists {
        /// The table.
        table: Arc<str>,
        /// The index.
        index: Arc<str>,
    },
    /// A name that cannot be used.
    #[error("the name {name:?} cannot be used: {what}")]
    BadName {
        /// The name.
        name: Arc<str>,
        /// Why not.
        what: &'static str,
    },
    /// A name that is longer than the key of its record may be.
    #[error(
        "the name {name:?} cannot be used: it has {length} bytes, and with pages of {page_size} bytes a name has at most \
         {limit}: choose a shorter one"
    )]
    NameTooLong {
        /// The beginning of the name.
        name: Arc<str>,
        /// The length of the name in bytes.
        length: usize,
        /// The limit in bytes.
        limit: usize,
        /// The page size of the database in bytes.
        page_size: usize,
    },
    /// The key of a new index has a part that another part may not follow.
    #[error(
        "index {index} cannot be created: part {part} ({what}) of its key has no fixed length in rows that have a part {next} \
         ({next_what}), so rows that differ could have one key: only bytes of the value may stand before another part, and only \
         such as lie before it in the value: put part {part} last, or index one field that has all of it"
    )]
    AmbiguousKey {
        /// The index.
        index: Arc<str>,
        /// The part that has no fixed length, counted from 1.
        part: usize,
        /// The kind of that part.
        what: Arc<str>,
        /// The first part after it that makes it ambiguous.
        next: usize,
        /// The kind of that next part.
        next_what: Arc<str>,
    },
    /// A row with that key exists, or, in a unique index, another row with that index key.
    #[error("duplicate key in {owner}: the row with key {} has it already", shown(row))]
    DuplicateKey {
        /// The table, or the index.
        owner: Owner,
        /// The number of the index; `None` for the key of the row, and for an index that is being built or loaded.
        index: Option<IndexNumber>,
        /// The key of the row that has it.
        row: Arc<[u8]>,
    },
    /// Two of the rows with which a table was to be created or loaded have the same key, or the same key in a unique
    /// index.
    #[error(
        "the key {} occurs twice among the rows for {owner}{}{}: leave one of them out",
        shown(key),
        row.map_or(String::new(), |row| format!(", the second time as row {row}")),
        index.map_or(String::new(), |_| format!(", also in the row with key {}", shown(row_key)))
    )]
    DuplicateInputKey {
        /// The table that was to be created or loaded, or its index.
        owner: Owner,
        /// The place of the index among those of the table, counted from 0; `None` if it is the key of a row.
        index: Option<usize>,
        /// The key in the index, or that of the row.
        key: Arc<[u8]>,
        /// The key of a row that has it: the one with the smaller key.
        row_key: Arc<[u8]>,
        /// The number of the second of these rows, counted from 1, unless they were sorted.
        row: Option<u64>,
    },
    /// No row has that key.
    #[error("there is no row with that key in table {0}")]
    NoRow(Arc<str>),
    /// A load of a table that is not empty.
    #[error(
        "table {0} has rows: only an empty table can be loaded, insert these rows or truncate the table first"
    )]
    NotEmpty(Arc<str>),
    /// A load or an alteration of a table that was truncated, or whose definition has changed, or whose name has
    /// another table since the load or the alteration began.
    #[error(
        "table {0} was truncated, changed or replaced since the load or the alteration began: begin it again"
    )]
    DefinitionChanged(Arc<str>),
    /// A number of an index that the table does not have: it was dropped, or is from before the table was truncated or
    /// loaded, or is of another table.
    #[error(
        "the number of an index of table {0} is of another table, or of a dropped index, or of before the table was \
         truncated or loaded: ask for the number again"
    )]
    IndexNumberOutdated(Arc<str>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_without_an_owner_gets_its_owner_once() {
        let space = SpaceId(7);
        let of = |space| CorruptError::Structure { owner: Owner::Unknown, space, what: "torn".into() };
        let error = Error::from(of(space));
        assert!(error.to_string().starts_with("tablespace 7: torn; restore"), "{error}");
        assert!(of(SpaceId::SYSTEM).to_string().starts_with("the system tree: torn"));
        let named = error.of(|of| {
            assert_eq!(of, Some(space));
            Owner::Table("t".into())
        });
        assert!(named.to_string().starts_with("table t, tablespace 7: torn"), "{named}");
        let again = named.of(|_| Owner::Table("other".into()));
        assert!(again.to_string().starts_with("table t,"), "{again}");
        let words = Error::from(UsageError::Other("too much".into())).of(|_| Owner::Table("t".into()));
        assert_eq!(words.to_string(), "table t: too much");
        let many = || Error::from(UsageError::TooManyDeferred(Owner::Unknown));
        assert!(many().to_string().starts_with("rows that"), "{}", many());
        let named = many().of(|_| Owner::Table("t".into())).of(|_| Owner::Table("other".into()));
        assert!(named.to_string().starts_with("table t: rows that"), "{named}");
        assert!(matches!(Error::Closed.of(|_| Owner::Table("t".into())), Error::Closed));
        let unsaid = Error::TableDropped(Owner::Unknown).to_string();
        assert!(unsaid.starts_with("the table was dropped"), "{unsaid}");
    }
}
