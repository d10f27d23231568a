//! Reading rows.
//!
//! **Purpose.** A row's value, whole or as a stream, by its key.
//!
//! **Invariants.** A value belongs to one version. If a chain is gone, the entry has usually changed since it was read,
//! so it is read again; a missing chain is damage only if the entry is unchanged. A reader with a read view keeps all
//! versions that it sees from purge, with their chains, or learns that the view was ended; a reader of a stream has
//! such a view until its end.

use super::{
    Transactions,
    active::{Active, ReadView},
    row::INDEXED,
    version::Visibility,
};
use crate::{
    error::{CorruptError, Error, Owner, Result, TransactionError},
    ids::TrxId,
    page::EntryHeader,
    store::Tree,
    sync::Arc,
    tree::{OverflowRef, overflow::OverflowReader},
};

fn chain_of(tree: &Tree, stored: &[u8]) -> Result<OverflowRef> {
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
    long_value(tree, key, header, out, None)
}

/// Replaces the stored value of an entry at which a cursor stands, in `out`, by the row's value. Returns `false` if the
/// row is gone meanwhile.
///
/// # Errors
/// As [`get`].
pub fn resolve(tree: &Tree, key: &[u8], header: EntryHeader, out: &mut Vec<u8>) -> Result<bool> {
    if header.is_overflow() { long_value(tree, key, header, out, None) } else { Ok(true) }
}

/// As [`resolve`], but reads only the [`INDEXED`] first bytes of a long value: those that index keys are made of.
///
/// # Errors
/// As [`get`].
pub fn resolve_indexed(tree: &Tree, key: &[u8], header: EntryHeader, out: &mut Vec<u8>) -> Result<bool> {
    if header.is_overflow() { long_value(tree, key, header, out, Some(INDEXED)) } else { Ok(true) }
}

/// Replaces the stored value of an entry by the first bytes of the row's value, regardless of the entry's present
/// state.
///
/// # Errors
/// As [`get`]; a chain that is gone.
pub fn indexed_of(tree: &Tree, header: EntryHeader, out: &mut Vec<u8>) -> Result<()> {
    if header.is_overflow() { follow(tree, out, Some(INDEXED)) } else { Ok(()) }
}

/// As [`get`], but reads only the first bytes of a long value, for index keys. Returns the entry's header, whether it
/// is delete-marked or not.
///
/// # Errors
/// As [`get`].
pub fn get_indexed(tree: &Tree, key: &[u8], out: &mut Vec<u8>) -> Result<Option<EntryHeader>> {
    let Some(header) = tree.get_into(key, out)? else { return Ok(None) };
    if !header.is_deleted() && header.is_overflow() {
        long_value(tree, key, header, out, Some(INDEXED))?;
    }
    Ok(Some(header))
}

fn long_value(
    tree: &Tree,
    key: &[u8],
    mut header: EntryHeader,
    out: &mut Vec<u8>,
    window: Option<usize>,
) -> Result<bool> {
    loop {
        let Err(error) = follow(tree, out, window) else { return Ok(true) };
        let Some(now) = tree.get_into(key, out)?.filter(|now| !now.is_deleted()) else { return Ok(false) };
        if now == header {
            return Err(error);
        }
        if !now.is_overflow() {
            return Ok(true);
        }
        header = now;
    }
}

/// Replaces a stored reference by the value that it leads to, or by the first `window` bytes of that.
fn follow(tree: &Tree, out: &mut Vec<u8>, window: Option<usize>) -> Result<()> {
    let mut reader = tree.read_overflow(chain_of(tree, out)?);
    out.clear();
    let Some(window) = window else { return reader.read_to_end(out) };
    out.resize(window, 0);
    let mut at = 0;
    while at < window {
        match reader.read(&mut out[at..])? {
            0 => break,
            n => at += n,
        }
    }
    out.truncate(at);
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
                let n = out.len().min(value.len() - *at);
                out[..n].copy_from_slice(&value[*at..*at + n]);
                *at += n;
                Ok(n)
            }
            Self::Chain(reader) => reader.read(out),
        }
    }
}

impl Transactions {
    /// Creates a read view of what is committed now.
    pub fn view(&self) -> ReadView {
        Active::view(&self.active, &self.ids, self.now())
    }

    /// Reads the last committed value of a row, or the value that this transaction has written, and replaces the
    /// content of `out`. Returns `false` if there is no such row. Without `whole`, a value in overflow pages is not
    /// read.
    ///
    /// # Errors
    /// Damage, I/O, a dropped table.
    pub fn get_committed(
        &self,
        tree: &Tree,
        key: &[u8],
        own: TrxId,
        whole: bool,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        // Before the entry is read: the versions of all transactions that have ended by now are final.
        let oldest = self.active.oldest();
        let Some(header) = tree.get_into(key, out)? else { return Ok(false) };
        if header.trx < oldest || header.trx == own {
            if header.is_deleted() || !header.is_overflow() || !whole {
                return Ok(!header.is_deleted());
            }
            if follow(tree, out, None).is_ok() {
                return Ok(true);
            }
        }
        loop {
            match self.get_in(tree, key, Visibility::View(&self.view(), own), whole, out) {
                // The view was created for this read only, so the read can be repeated.
                Err(Error::Transaction(TransactionError::ViewEnded)) => {}
                done => return done,
            }
        }
    }

    /// The same, in the visible version.
    ///
    /// # Errors
    /// As [`Transactions::get_committed`].
    pub fn get_in(
        &self,
        tree: &Tree,
        key: &[u8],
        visibility: Visibility<'_>,
        whole: bool,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        if let (Visibility::Newest, true) = (visibility, whole) {
            return get(tree, key, out);
        }
        let found = tree.get_into(key, out).and_then(|header| {
            header.map_or(Ok(false), |header| self.value_in(tree, key, header, visibility, whole, out))
        });
        visibility.held(found)
    }

    /// The same, for an entry that was read: `out` has its stored value, which is replaced by the row's value. The
    /// caller must check whether the view is still valid.
    ///
    /// # Errors
    /// As [`Transactions::get_committed`].
    pub fn value_in(
        &self,
        tree: &Tree,
        key: &[u8],
        header: EntryHeader,
        visibility: Visibility<'_>,
        whole: bool,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        let Some(header) = self.row_version(tree.space().id(), key, header, out, visibility)? else {
            return Ok(false);
        };
        if header.is_overflow() && whole {
            follow(tree, out, None)?;
        }
        Ok(true)
    }

    /// Opens the visible version of a row's value for reading piece by piece, as long as the view is valid. Returns
    /// `None` if there is no such row.
    ///
    /// # Errors
    /// Damage, I/O, a dropped table.
    pub fn open_value(
        &self,
        tree: &Arc<Tree>,
        key: &[u8],
        visibility: Visibility<'_>,
    ) -> Result<Option<RowReader>> {
        visibility.held(self.find_value(tree, key, visibility))
    }

    fn find_value(
        &self,
        tree: &Arc<Tree>,
        key: &[u8],
        visibility: Visibility<'_>,
    ) -> Result<Option<RowReader>> {
        let mut value = Vec::new();
        let Some(header) = tree.get_into(key, &mut value)? else { return Ok(None) };
        let Some(header) = self.row_version(tree.space().id(), key, header, &mut value, visibility)? else {
            return Ok(None);
        };
        Ok(Some(if header.is_overflow() {
            RowReader::Chain(OverflowReader::new(tree.clone(), chain_of(tree, &value)?))
        } else {
            RowReader::Inline { value, at: 0 }
        }))
    }
}
