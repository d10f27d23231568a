//! Bulk load of a tree, while other calls run.
//!
//! **Purpose.** What bulk loads of an index and of a whole table share: a log reservation before each step, overflow
//! chains of long values, and shortened keys in messages.
//!
//! **Invariants.** No latch is held between two calls: other threads continue, including the one that makes room in the
//! log (test: `a_table_larger_than_the_pool_and_the_log_is_written_once`). A tree without entries gets no page (test:
//! `a_table_larger_than_the_pool_and_the_log_is_written_once`). A failed load leaves a tree without readers; its
//! tablespace must be dropped (test: `a_refused_load_leaves_nothing`).

use crate::{
    buffer::BufferPool,
    error::{Error, Owner, Result, SchemaError},
    log::{LOG_OVERHEAD_BYTES, LogReservation},
    mtr::Mtr,
    page::EntryHeader,
    store::Tree,
    sync::Arc,
    tree::{BulkLoader, ORDERED_FILL_PERCENT, OverflowRef, Parts},
};

/// Bytes of entries that are sorted in memory at a time.
pub(super) const SORT_BUFFER_BYTES: usize = 64 << 20;
/// Bytes of a long value per log reservation.
const RESERVATION_BYTES: usize = 64 << 10;
/// The base of the stamps of overflow chains that a load makes. Chains of changes carry an undo position instead, and
/// no undo stream becomes that long.
const LOADED: u64 = 1 << 55;

/// Returns the error for the key of a row that occurs twice; `row` is the number of the second row with it, if it is
/// known.
pub(super) fn duplicate_key(key: &[u8], row: Option<u64>) -> Error {
    let (key, row_key) = (key.into(), key.into());
    SchemaError::DuplicateInputKey { owner: Owner::Unknown, index: None, key, row_key, row }.into()
}

/// Waits for a log reservation for this many bytes of keys and values.
pub(super) fn admit(pool: &BufferPool, bytes: usize) -> Result<LogReservation<'_>> {
    pool.context().log.admit(bytes as u64 + LOG_OVERHEAD_BYTES)
}

/// A tree that is being loaded.
#[derive(Debug)]
pub(super) struct Load {
    tree: Arc<Tree>,
    /// `None` before the first entry.
    loader: Option<BulkLoader<Arc<Tree>>>,
    entries: Parts,
}

impl Load {
    /// Begins to load a tree, which must be empty.
    pub(super) fn new(tree: &Arc<Tree>) -> Self {
        Self { tree: tree.clone(), loader: None, entries: Parts::default() }
    }

    /// Appends an entry. Its key must be greater than all before.
    ///
    /// # Errors
    /// A key or value that is too long; a full disk, I/O. After any of them the tree lacks an entry, and every further
    /// call fails with [`Incomplete`](crate::error::UsageError::Incomplete).
    pub(super) fn push(&mut self, key: &[u8], header: EntryHeader, value: &[u8]) -> Result<()> {
        self.entries.begin()?;
        let _room = admit(self.tree.store(), key.len() + value.len())?;
        let loader = match self.loader.take() {
            Some(loader) => loader,
            None => BulkLoader::new(self.tree.clone(), ORDERED_FILL_PERCENT)?,
        };
        debug_assert!(
            header.trx.0 == 0,
            "transaction {} is in a bulk load, in which every reader sees all entries",
            header.trx
        );
        self.loader.insert(loader).push(key, header, value)?;
        self.entries.end();
        Ok(())
    }

    /// Writes the last pages.
    ///
    /// # Errors
    /// [`Incomplete`](crate::error::UsageError::Incomplete) if an entry could not be appended; a full disk, I/O.
    pub(super) fn finish(self) -> Result<()> {
        self.entries.check()?;
        self.loader.map_or(Ok(()), |loader| loader.finish().map(drop))
    }
}

/// Writes the overflow chain of a long value into a tree without readers. `number` must be unique among the chains of
/// the load.
///
/// # Errors
/// A value that is too long; a full disk, I/O.
pub(super) fn load_chain(tree: &Tree, number: u64, value: &[u8]) -> Result<OverflowRef> {
    debug_assert!(number < LOADED, "the number of a chain reaches into the base of stamps");
    let pool = tree.store();
    let mut writer = {
        let _room = admit(pool, 0)?;
        let mut mtr = Mtr::begin(pool)?;
        let writer = tree.begin_overflow(&mut mtr, LOADED | number)?;
        mtr.commit()?;
        writer
    };
    for chunk in value.chunks(RESERVATION_BYTES) {
        // The writer makes a log reservation for each page.
        pool.context().log.wait_for_room(2 * chunk.len() as u64 + LOG_OVERHEAD_BYTES)?;
        writer.write(chunk)?;
    }
    Ok(writer.finish()?.0)
}

#[cfg(test)]
mod tests {
    use windfall_sim::{Fault, SimulatedDisk, SimulatedEnv};

    use super::*;
    use crate::{
        disk::FileName,
        engine::test_engine::{create_table, open},
        error::UsageError,
        options::Options,
    };

    #[test]
    fn a_load_that_lacks_an_entry_is_not_finished() {
        let disk = SimulatedDisk::new(1);
        let options = Options::default().page_size(4096).buffer_pool_size(128 * 4096).log_size(64 << 20);
        let engine = open(&disk, Arc::new(SimulatedEnv::new(1)), &options);
        let tree = create_table(&engine, "t").with_schema(|schema| schema.clustered.clone());
        let refused = |done: Result<()>| matches!(done, Err(Error::Usage(UsageError::Incomplete)));
        let mut load = Load::new(&tree);
        load.push(b"a", EntryHeader::default(), b"").unwrap();
        assert!(load.push(&[b'b'; 4096], EntryHeader::default(), b"").is_err());
        assert!(refused(load.push(b"c", EntryHeader::default(), b"")));
        assert!(refused(load.finish()), "it lacks an entry");
        let mut load = Load::new(&tree);
        load.push(b"a", EntryHeader::default(), b"").unwrap();
        load.finish().unwrap();
        // The tree is not empty any more: the load does not even begin.
        let mut load = Load::new(&tree);
        assert!(load.push(b"b", EntryHeader::default(), b"").is_err());
        assert!(refused(load.finish()), "it has no entry at all");
    }

    #[test]
    fn neither_a_load_nor_a_value_is_finished_after_a_failed_write() {
        let disk = SimulatedDisk::new(1);
        let options = Options::default().page_size(4096).buffer_pool_size(128 * 4096).log_size(64 << 20);
        let engine = open(&disk, Arc::new(SimulatedEnv::new(1)), &options);
        let [tree, other] =
            ["t", "u"].map(|name| create_table(&engine, name).with_schema(|schema| schema.clustered.clone()));
        let mut mtr = Mtr::begin(&engine.pool).unwrap();
        let mut writer = tree.begin_overflow(&mut mtr, 77).unwrap();
        mtr.commit().unwrap();
        let mut loader = other.bulk_load(ORDERED_FILL_PERCENT).unwrap();
        let mut push = |n: u32| loader.push(&n.to_be_bytes(), EntryHeader::default(), &[7; 1000]);
        // No page can be written any more.
        disk.fail_always_on(FileName::Doublewrite, Fault::WriteFails);
        let failed = (0..1000).find_map(|_| writer.write(&[7; 10_000]).err()).unwrap();
        assert!(failed.to_string().contains("doublewrite"), "{failed}");
        let failed = (0..10_000).find_map(|n| push(n).err()).unwrap();
        assert!(failed.to_string().contains("doublewrite"), "{failed}");
        disk.clear_faults();
        assert!(matches!(writer.write(&[7]), Err(Error::Usage(UsageError::Incomplete))));
        assert!(matches!(push(10_000), Err(Error::Usage(UsageError::Incomplete))));
        let refused = |error: Option<Error>| matches!(error, Some(Error::Usage(UsageError::Incomplete)));
        assert!(refused(writer.finish().err()), "the reference of a cut value");
        assert!(refused(loader.finish().err()), "a tree without some of its entries");
        assert_eq!(other.height().unwrap(), 1);
    }
}
