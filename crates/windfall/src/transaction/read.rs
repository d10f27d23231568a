//! Reading rows.
//!
//! **Purpose.** A row's value, whole or as a stream, by its key.
//!
//! **Invariants.** A value is that of one version. A chain that is gone means that the entry has changed since it was
//! looked at, so the entry is looked at again; only a chain that is gone from under an entry that is still the same is
//! damage. Who reads by a view keeps all that it sees from purge, the chains with it, or learns that the view was
//! ended; a reader of a stream has such a view until its end.
//!
//! **May touch.** `tree`, `buffer` and what is below, the rest of this floor.

use super::{
    Transactions,
    active::{Active, ReadView},
    row::INDEXED,
    version::Sight,
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

/// Reads a row's value into `out`, whose old content is lost. `false` when there is no such row.
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

/// The value of an entry that a cursor is at, in place of what was stored: `out` holds that, and then the row's value.
/// `false` when the row has gone meanwhile.
///
/// # Errors
/// As [`get`].
pub fn resolve(tree: &Tree, key: &[u8], header: EntryHeader, out: &mut Vec<u8>) -> Result<bool> {
    if header.is_overflow() { long_value(tree, key, header, out, None) } else { Ok(true) }
}

/// As [`resolve`], but of a long value no more than the [`INDEXED`] first bytes: what index keys are made of.
///
/// # Errors
/// As [`get`].
pub fn resolve_indexed(tree: &Tree, key: &[u8], header: EntryHeader, out: &mut Vec<u8>) -> Result<bool> {
    if header.is_overflow() { long_value(tree, key, header, out, Some(INDEXED)) } else { Ok(true) }
}

/// The first bytes of the value of an entry, in place of what was stored, whatever the entry is by now.
///
/// # Errors
/// As [`get`]; a chain that is gone.
pub fn indexed_of(tree: &Tree, header: EntryHeader, out: &mut Vec<u8>) -> Result<()> {
    if header.is_overflow() { follow(tree, out, Some(INDEXED)) } else { Ok(()) }
}

/// As [`get`], but of a long value no more than the first bytes, for index keys; gives the entry's header, be it marked
/// as deleted or not.
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

/// Reads the value that a stored reference leads to, or as much of it, in place of the reference.
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

/// A row's value, piece by piece.
#[derive(Debug)]
pub enum RowReader {
    /// From memory, from there on.
    Inline {
        /// The value.
        value: Vec<u8>,
        /// What of it was given.
        at: usize,
    },
    /// From its pages.
    Chain(OverflowReader<Arc<Tree>>),
}

impl RowReader {
    /// Bytes still to come.
    pub fn left(&self) -> u64 {
        match self {
            Self::Inline { value, at } => (value.len() - at) as u64,
            Self::Chain(reader) => reader.left(),
        }
    }

    /// Reads some bytes: 0 only at the end, or when `out` is empty.
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
    /// A view of what is committed now.
    pub fn view(&self) -> ReadView {
        Active::view(&self.active, &self.ids, self.now())
    }

    /// Reads the value of a row as it was committed last, or as this transaction has left it, in place of what `out`
    /// held. `false` when there is no such row. Without `whole`, a value that lies in pages of its own is not read.
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
        // Before the entry is read: whoever has ended by now has left nothing that may still go.
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
            match self.get_in(tree, key, Sight::View(&self.view(), own), whole, out) {
                // This view was promised to nobody.
                Err(Error::Transaction(TransactionError::ViewEnded)) => {}
                done => return done,
            }
        }
    }

    /// The same, in the version that is seen.
    ///
    /// # Errors
    /// As [`Transactions::get_committed`].
    pub fn get_in(
        &self,
        tree: &Tree,
        key: &[u8],
        sight: Sight<'_>,
        whole: bool,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        if let (Sight::Newest, true) = (sight, whole) {
            return get(tree, key, out);
        }
        let found = tree.get_into(key, out).and_then(|header| {
            header.map_or(Ok(false), |header| self.value_in(tree, key, header, sight, whole, out))
        });
        sight.held(found)
    }

    /// The same, of an entry that was found: `out` holds its value as it is stored, and then the value of the row.
    /// Whether the view is still there is for the caller to ask.
    ///
    /// # Errors
    /// As [`Transactions::get_committed`].
    pub fn value_in(
        &self,
        tree: &Tree,
        key: &[u8],
        header: EntryHeader,
        sight: Sight<'_>,
        whole: bool,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        let Some(header) = self.row_version(tree.space().id(), key, header, out, sight)? else {
            return Ok(false);
        };
        if header.is_overflow() && whole {
            follow(tree, out, None)?;
        }
        Ok(true)
    }

    /// Opens a row's value for reading piece by piece, in the version that is seen: as long as the view is there.
    /// `None` when there is no such row.
    ///
    /// # Errors
    /// Damage, I/O, a dropped table.
    pub fn open_value(&self, tree: &Arc<Tree>, key: &[u8], sight: Sight<'_>) -> Result<Option<RowReader>> {
        sight.held(self.find_value(tree, key, sight))
    }

    fn find_value(&self, tree: &Arc<Tree>, key: &[u8], sight: Sight<'_>) -> Result<Option<RowReader>> {
        let mut value = Vec::new();
        let Some(header) = tree.get_into(key, &mut value)? else { return Ok(None) };
        let Some(header) = self.row_version(tree.space().id(), key, header, &mut value, sight)? else {
            return Ok(None);
        };
        Ok(Some(if header.is_overflow() {
            RowReader::Chain(OverflowReader::new(tree.clone(), chain_of(tree, &value)?))
        } else {
            RowReader::Inline { value, at: 0 }
        }))
    }
}
