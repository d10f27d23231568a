//! The outcome of a call.

use windfall::{
    Error,
    error::{LockError, Owner, RowHolder, SchemaError, TransactionError, UsageError},
};

use super::value::{Key, Value, key_of};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// Whether a row was deleted, or exists.
    Is(bool),
    Value(Option<Value>),
    /// The row that a cursor has reached; the value is `None` if the cursor does not read it.
    Row {
        key: Key,
        index_key: Option<u8>,
        value: Option<Value>,
    },
    /// After the last row, or before the first.
    End,
    Refused(Refusal),
}

/// Why a call was refused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Refusal {
    /// Another transaction holds a lock.
    Busy,
    /// Another transaction holds a lock, and the call was made within the source of a value.
    BusyWithin,
    /// Another call holds the latch of the row's key, or of a unique key ([`Refusal::Turn`] is a latch conflict).
    Turn,
    Changed,
    TableChanged,
    Dropped,
    /// With the row that has the key.
    DuplicateRow(Option<Key>),
    /// With the row that has the index key.
    DuplicateIndexKey(Option<Key>),
    NoRow,
    ReadOnly,
    Prepared,
    StatementInProgress,
    NoStatement,
    NoSavepoint,
    NameTaken,
    NotPrepared,
    InUse,
    NoTable,
    TableExists,
    NoIndex,
    IndexExists,
    /// The call was rolled back on purpose.
    OnPurpose,
    /// None of these: always a failure.
    Other(String),
}

/// The error of a statement that fails on purpose.
pub(crate) const ON_PURPOSE: &str = "on purpose";

impl From<&Error> for Refusal {
    fn from(error: &Error) -> Self {
        match error {
            Error::Lock(LockError::Busy(_)) => Self::Busy,
            Error::Transaction(TransactionError::Changed(_)) => Self::Changed,
            Error::Transaction(TransactionError::TableChanged(_)) => Self::TableChanged,
            Error::Transaction(TransactionError::ReadOnly) => Self::ReadOnly,
            Error::Transaction(TransactionError::Prepared) => Self::Prepared,
            Error::Transaction(TransactionError::StatementInProgress) => Self::StatementInProgress,
            Error::Transaction(TransactionError::NoStatement) => Self::NoStatement,
            Error::Transaction(TransactionError::NoSavepoint(_)) => Self::NoSavepoint,
            Error::Transaction(TransactionError::NameTaken { .. }) => Self::NameTaken,
            Error::Transaction(TransactionError::NotPrepared { .. }) => Self::NotPrepared,
            Error::Transaction(TransactionError::InUse { .. }) => Self::InUse,
            Error::TableDropped(_) => Self::Dropped,
            Error::Schema(SchemaError::DuplicateKey { owner: Owner::Table(_), row, .. }) => {
                Self::DuplicateRow(key_of(row))
            }
            Error::Schema(SchemaError::DuplicateKey { owner: Owner::Index { .. }, row, .. }) => {
                Self::DuplicateIndexKey(key_of(row))
            }
            Error::Schema(SchemaError::NoRow(_)) => Self::NoRow,
            Error::Schema(SchemaError::NoTable(_)) => Self::NoTable,
            Error::Schema(SchemaError::TableExists(_)) => Self::TableExists,
            Error::Schema(SchemaError::NoIndex { .. }) => Self::NoIndex,
            Error::Schema(SchemaError::IndexExists { .. }) => Self::IndexExists,
            Error::Usage(UsageError::Other(what)) if **what == *ON_PURPOSE => Self::OnPurpose,
            Error::Usage(UsageError::WaitInCall { holder: RowHolder::Call, .. }) => Self::Turn,
            Error::Usage(UsageError::WaitInCall { holder: RowHolder::Transaction, .. }) => Self::BusyWithin,
            other => Self::Other(other.to_string()),
        }
    }
}

impl Outcome {
    /// Returns the outcome of a result.
    pub(crate) fn of<T>(result: Result<T, Error>, done: impl FnOnce(T) -> Self) -> Self {
        match result {
            Ok(value) => done(value),
            Err(error) => Self::Refused(Refusal::from(&error)),
        }
    }

    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Self::Refused(_))
    }
}

impl From<Refusal> for Outcome {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}
