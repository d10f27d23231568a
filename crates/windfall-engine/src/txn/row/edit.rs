//! The intended change of a row.
//!
//! **Purpose.** Keeps the bytes that a blocked call has read of its source or written of a long value, until the
//! call continues.
//!
//! **Invariants.** A chain that an edit keeps is of bytes that the caller has passed, so it has the right content
//! whatever the row is when the call continues (test: `a_blocked_call_keeps_the_chains_of_its_own_fields`). The bytes
//! of a source are read once, in order: first those that index keys are made of, then the rest when the overflow chain
//! is written (test: `values_are_put_from_sources`).

use std::io::Read;

use super::entry::SuppliedChange;
use crate::{
    error::{Owner, Result, UsageError},
    ids::SpaceId,
    tree::OverflowRef,
    txn::mvcc::value::INDEXED_BYTES,
};

/// The precondition of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The row must not exist.
    Insert,
    /// The row may exist or not.
    Put,
    /// The row must exist.
    Update,
}

/// A field of the new value of a row ([`Table::update_fields`]).
///
/// [`Table::update_fields`]: https://docs.rs/windfall/latest/windfall/struct.Table.html#method.update_fields
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldChange<'v> {
    /// The field of this number stays as it is. It is neither read nor written if it is long.
    Keep,
    /// The field gets these bytes.
    Set(&'v [u8]),
}

/// A new value.
pub enum Value<'v> {
    /// In memory.
    Bytes(&'v [u8]),
    /// To be read.
    Source {
        /// The length of the value in bytes.
        length: u64,
        /// The source of its bytes.
        source: &'v mut dyn Read,
    },
    /// Fields, which are stored one by one.
    Fields(&'v [FieldChange<'v>]),
}

impl core::fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Value of {} bytes", self.length())
    }
}

impl Value<'_> {
    /// Returns its length in bytes; of fields, that of those which the caller passes.
    pub fn length(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Source { length, .. } => *length,
            Self::Fields(fields) => fields
                .iter()
                .map(|field| match field {
                    FieldChange::Keep => 0,
                    FieldChange::Set(bytes) => bytes.len() as u64,
                })
                .sum(),
        }
    }
}

/// The intended change of a row. A call that must wait keeps it and continues with it: the bytes that were read from a
/// source are not read again, and a long value that was written stays written.
#[derive(Debug)]
pub struct Edit<'v> {
    /// The new value; `None` deletes the row.
    pub(super) value: Option<(Value<'v>, Mode)>,
    /// The first bytes of a value from a source.
    pub(super) head: Option<Vec<u8>>,
    /// The written overflow chains, and their tablespace: of a long value one, of fields those of long ones, each with
    /// the number of its field.
    pub(super) chains: Option<(SpaceId, Vec<(usize, OverflowRef)>)>,
    /// The row's entries in indexes of which the caller supplies them.
    pub(super) entries: Option<&'v [SuppliedChange<'v>]>,
    /// The key of the row whose fields are kept, if it is another one: the transaction has deleted it.
    pub(super) kept_from: Option<&'v [u8]>,
}

/// Fills `out` from a source.
pub(super) fn fill(source: &mut dyn Read, out: &mut [u8]) -> Result<()> {
    source
        .read_exact(out)
        .map_err(|error| UsageError::Source { owner: Owner::Unknown, what: error.to_string().into() }.into())
}

impl<'v> Edit<'v> {
    /// Creates a write.
    pub fn write(value: Value<'v>, mode: Mode) -> Self {
        Self { value: Some((value, mode)), ..Self::delete() }
    }

    /// Creates a deletion.
    pub fn delete() -> Self {
        Self { value: None, head: None, chains: None, entries: None, kept_from: None }
    }

    /// Adds the row's entries in indexes of which the caller supplies them.
    #[must_use]
    pub fn with_entries(self, entries: &'v [SuppliedChange<'v>]) -> Self {
        Self { entries: Some(entries), ..self }
    }

    /// Keeps the fields of the row with this key, which the transaction has deleted.
    #[must_use]
    pub fn keeping_fields_of(self, key: &'v [u8]) -> Self {
        Self { kept_from: Some(key), ..self }
    }

    pub(super) fn mode(&self) -> Option<Mode> {
        self.value.as_ref().map(|(_, mode)| *mode)
    }

    pub(super) fn length(&self) -> u64 {
        self.value.as_ref().map_or(0, |(value, _)| value.length())
    }

    /// Reads the first bytes of a source.
    pub(super) fn begin(&mut self) -> Result<()> {
        if let (Some((Value::Source { length, source }, _)), None) = (&mut self.value, &self.head) {
            debug_assert!(self.chains.is_none(), "a source is read again after its rest was written");
            let mut head = vec![0; usize::try_from(*length).unwrap_or(INDEXED_BYTES).min(INDEXED_BYTES)];
            fill(*source, &mut head)?;
            self.head = Some(head);
        }
        Ok(())
    }

    /// Returns the fields of the new value, if it is stored as fields.
    pub(super) fn fields(&self) -> Option<&'v [FieldChange<'v>]> {
        match self.value {
            Some((Value::Fields(fields), _)) => Some(fields),
            _ => None,
        }
    }

    /// Returns the first bytes of the new value, or all of them if they are in memory; `None` if it is stored as
    /// fields.
    pub(super) fn known(&self) -> Option<&[u8]> {
        match &self.value {
            Some((Value::Bytes(bytes), _)) => Some(bytes),
            Some((Value::Source { .. }, _)) => {
                debug_assert!(self.head.is_some(), "a source is used before its first bytes were read");
                self.head.as_deref()
            }
            Some((Value::Fields(_), _)) | None => None,
        }
    }

    /// Returns the bytes that index keys are made of.
    pub(super) fn indexed(&self) -> Option<&[u8]> {
        self.known().map(|bytes| &bytes[..bytes.len().min(INDEXED_BYTES)])
    }
}
