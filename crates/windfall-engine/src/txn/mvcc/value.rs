//! The values of entries.
//!
//! **Purpose.** Reads the value of an entry, which is in the entry or in overflow pages: as a whole, its first bytes,
//! or piece by piece.
//!
//! **Invariants.** A value is read completely, and belongs to one version (test:
//! `a_reader_never_takes_another_value_for_its_own`). If a chain was freed, the entry has usually changed since the
//! read, so it is read again; a missing chain is damage only if the entry is unchanged (test:
//! `a_row_that_was_inserted_twice_is_read_again`). A reader with a read view keeps all versions that it sees from
//! purge, with their chains (test: `a_pin_keeps_versions_and_a_reader_its_value`), or gets an error because the view
//! was ended (test: `a_view_is_ended_within_a_long_value`); a reader of a stream has such a view until its end (test:
//! `a_sink_blocks_no_call_and_gets_the_value_that_was_there`).

use crate::{
    error::{CorruptError, Owner, Result},
    page::EntryHeader,
    store::Tree,
    sync::Arc,
    tree::{OverflowRef, overflow::OverflowReader},
};

/// The number of first bytes of a value that index keys are made of.
pub(crate) const INDEXED_BYTES: usize = 64 << 10;

pub(in crate::txn) fn overflow_ref(tree: &Tree, stored: &[u8]) -> Result<OverflowRef> {
    OverflowRef::from_bytes(stored).ok_or_else(|| {
        let what = "a reference to an overflow chain makes no sense".into();
        CorruptError::Structure { owner: Owner::Unknown, space: tree.space().id(), what }.into()
    })
}

/// Reads a row's value into `out`, and replaces its content. Returns `false` if there is no such row.
///
/// # Errors
/// Damage, I/O, a dropped table.
pub fn get(tree: &Tree, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
    let Some(header) = tree.get_into(key, out)? else { return Ok(false) };
    if header.is_deleted() || !header.is_overflow() {
        return Ok(!header.is_deleted());
    }
    long_value(tree, key, out, None)
}

/// Replaces the stored value of an entry at which a cursor stands, in `out`, by the row's value. Returns `false` if the
/// row was removed meanwhile.
///
/// # Errors
/// As [`get`].
pub fn resolve(tree: &Tree, key: &[u8], header: EntryHeader, out: &mut Vec<u8>) -> Result<bool> {
    if header.is_overflow() { long_value(tree, key, out, None) } else { Ok(true) }
}

/// As [`resolve`], but reads only the [`INDEXED_BYTES`] first bytes of a long value: those that index keys are made of.
///
/// # Errors
/// As [`get`].
pub fn resolve_indexed(tree: &Tree, key: &[u8], header: EntryHeader, out: &mut Vec<u8>) -> Result<bool> {
    if header.is_overflow() { long_value(tree, key, out, Some(INDEXED_BYTES)) } else { Ok(true) }
}

/// Replaces the stored value of an entry by the first bytes of the row's value, regardless of the entry's present
/// state.
///
/// # Errors
/// As [`get`]; a chain that was freed.
pub(crate) fn indexed_of(tree: &Tree, header: EntryHeader, out: &mut Vec<u8>) -> Result<()> {
    if header.is_overflow() { follow(tree, out, Some(INDEXED_BYTES)) } else { Ok(()) }
}

/// As [`get`], but reads only the first bytes of a long value, for index keys. Returns the entry's header, whether it
/// is delete-marked or not.
///
/// # Errors
/// As [`get`].
pub(crate) fn get_indexed(tree: &Tree, key: &[u8], out: &mut Vec<u8>) -> Result<Option<EntryHeader>> {
    let Some(header) = tree.get_into(key, out)? else { return Ok(None) };
    if !header.is_deleted() && header.is_overflow() {
        long_value(tree, key, out, Some(INDEXED_BYTES))?;
    }
    Ok(Some(header))
}

/// Replaces the reference in `out` by the value, or by that of the entry's present version if the chain was freed. A
/// chain that the entry still refers to was not freed: an error is damage then. Headers do not tell: an entry that was
/// removed and inserted again by one transaction has the header of before.
fn long_value(tree: &Tree, key: &[u8], out: &mut Vec<u8>, window: Option<usize>) -> Result<bool> {
    loop {
        let reference = overflow_ref(tree, out)?;
        let Err(error) = follow(tree, out, window) else { return Ok(true) };
        let Some(now) = tree.get_into(key, out)?.filter(|now| !now.is_deleted()) else { return Ok(false) };
        if !now.is_overflow() {
            return Ok(true);
        }
        if overflow_ref(tree, out)? == reference {
            return Err(error);
        }
    }
}

/// Replaces a stored reference by the value that it leads to, or by the first `window` bytes of that.
///
/// # Errors
/// Damage, I/O; a chain that was freed.
pub(in crate::txn) fn follow(tree: &Tree, out: &mut Vec<u8>, window: Option<usize>) -> Result<()> {
    let mut reader = tree.read_overflow(overflow_ref(tree, out)?);
    out.clear();
    let Some(window) = window else {
        reader.read_to_end(out)?;
        debug_assert!(reader.left() == 0, "{} bytes of a value were not read", reader.left());
        return Ok(());
    };
    out.resize(window, 0);
    let mut at = 0;
    while at < window {
        match reader.read(&mut out[at..])? {
            0 => break,
            n => at += n,
        }
    }
    out.truncate(at);
    debug_assert!(out.len() == window || reader.left() == 0, "the first bytes of a value are not all read");
    Ok(())
}

/// A row's value, read piece by piece.
#[derive(Debug)]
pub enum RowReader {
    /// From memory.
    Inline {
        /// The value.
        value: Vec<u8>,
        /// The number of bytes already read.
        at: usize,
    },
    /// From its overflow pages.
    Chain(OverflowReader<Arc<Tree>>),
}

impl RowReader {
    /// Returns the number of bytes left.
    pub fn left(&self) -> u64 {
        match self {
            Self::Inline { value, at } => (value.len() - at) as u64,
            Self::Chain(reader) => reader.left(),
        }
    }

    /// Reads some bytes. Returns 0 only at the end, or if `out` is empty.
    ///
    /// # Errors
    /// Damage, I/O, a dropped table.
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        match self {
            Self::Inline { value, at } => {
                debug_assert!(*at <= value.len(), "more of a value was read than it has");
                let n = out.len().min(value.len() - *at);
                out[..n].copy_from_slice(&value[*at..*at + n]);
                *at += n;
                Ok(n)
            }
            Self::Chain(reader) => reader.read(out),
        }
    }
}
