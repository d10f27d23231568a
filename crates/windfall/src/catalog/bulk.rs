//! Loading a tree in bulk, beside the work of others.
//!
//! **Purpose.** What new trees have in common, be it those of an index or of a whole table: the log is asked for room
//! before each step, long values become chains, and keys are told in few words.
//!
//! **Invariants.** Nothing is held between two calls: others go on, and so does whoever makes room in the log. A tree
//! into which nothing is put gets no page. A failure leaves a tree that nobody reads, whose tablespace is to be
//! dropped.
//!
//! **May touch.** `tree`, `store`, `mtr`, `log`.

use crate::{
    buffer::BufferPool,
    error::{Error, Owner, Result, SchemaError},
    log::{OVERHEAD, Promise},
    mtr::Mtr,
    page::EntryHeader,
    store::Tree,
    tree::{BulkLoader, OverflowRef},
};

/// How many bytes of entries are sorted in memory at a time.
pub(super) const PIECE: usize = 64 << 20;
/// How full bulk load makes the pages, in percent: room for what comes later.
const FILL: usize = 90;
/// Bytes of a long value for which the log is asked at once.
const CHUNK: usize = 64 << 10;
/// The stamps of chains that a table is loaded with, where those of undo have a position: no stream of undo comes so
/// far.
const LOADED: u64 = 1 << 55;
/// How many bytes of a key are told.
const SHOWN: usize = 32;

/// A key in a message, shortened.
pub(super) fn shown(key: &[u8]) -> String {
    let start = key[..key.len().min(SHOWN)].escape_ascii();
    if key.len() > SHOWN { format!("\"{start}\"... ({} bytes)", key.len()) } else { format!("\"{start}\"") }
}

/// The error for a key that comes twice; `row` is the number of the second row with it, if that is known.
pub(super) fn comes_twice(key: &[u8], row: Option<u64>) -> Error {
    SchemaError::KeyTwice { owner: Owner::Unknown, key: shown(key).into(), row }.into()
}

/// Waits for room in the log for so many bytes of keys and values.
pub(super) fn admit(pool: &BufferPool, bytes: usize) -> Result<Promise<'_>> {
    pool.ground().log.admit(bytes as u64 + OVERHEAD)
}

/// A tree that is being loaded.
#[derive(Debug)]
pub(super) struct Load<'t> {
    tree: &'t Tree,
    /// None before the first entry.
    loader: Option<BulkLoader<'t, BufferPool>>,
}

impl<'t> Load<'t> {
    /// Begins to load a tree, which is empty.
    pub fn new(tree: &'t Tree) -> Self {
        Self { tree, loader: None }
    }

    /// Appends an entry, whose key is above all before.
    ///
    /// # Errors
    /// Keys and values that are too long; a full disk, I/O.
    pub fn push(&mut self, key: &[u8], header: EntryHeader, value: &[u8]) -> Result<()> {
        let _room = admit(self.tree.store(), key.len() + value.len())?;
        let loader = match self.loader.take() {
            Some(loader) => loader,
            None => self.tree.bulk_load(FILL)?,
        };
        self.loader.insert(loader).push(key, header, value)
    }

    /// Writes what is left.
    ///
    /// # Errors
    /// A full disk, I/O.
    pub fn finish(self) -> Result<()> {
        self.loader.map_or(Ok(()), |loader| loader.finish().map(drop))
    }
}

/// Writes the chain of a long value into a tree that nobody reads yet. It is the chain of this number among them.
///
/// # Errors
/// A value that is too long; a full disk, I/O.
pub(super) fn write_chain(tree: &Tree, number: u64, value: &[u8]) -> Result<OverflowRef> {
    let pool = tree.store();
    let mut writer = {
        let _room = admit(pool, 0)?;
        let mut mtr = Mtr::begin(pool)?;
        let writer = tree.begin_overflow(&mut mtr, LOADED | number)?;
        mtr.commit()?;
        writer
    };
    for chunk in value.chunks(CHUNK) {
        // Each page is promised on its own.
        pool.ground().log.wait_for_room(2 * chunk.len() as u64 + OVERHEAD)?;
        writer.write(chunk)?;
    }
    Ok(writer.finish()?.0)
}
