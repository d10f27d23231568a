//! The records that say which data files were made.
//!
//! **Purpose.** The log says it first, and only until it is cut. So a record in the system tree says it, too, before the log's
//! floor passes; and it goes when the file has gone.
//!
//! **Invariants.** A live tablespace whose file was made has a record, or the log says so at or above the floor. A record whose
//! tablespace nobody names is of no consequence. The same worker tidies the system tree.
//!
//! **May touch.** `system`, `buffer`, `tablespace`, `mtr`.

use crate::{
    buffer::BufferPool,
    error::Result,
    ids::SpaceId,
    mtr::Mtr,
    sync::Arc,
    system::{Change, FILE, SystemTree},
    tablespace::Deleter,
};

/// How many records one group changes.
const BATCH: usize = 64;
/// The length of a record: its key.
const KEY: usize = 1 + size_of::<SpaceId>();

/// Keeps the records.
#[derive(Debug)]
pub struct FileRecords {
    pool: Arc<BufferPool>,
    system: Arc<SystemTree>,
    deleter: Arc<Deleter>,
    /// Tablespaces whose file is gone and whose record may still be there.
    gone: Vec<SpaceId>,
}

/// From this pressure on the log is left to others, in percent.
const CROWDED: u64 = 90;

/// The key of a tablespace's file record.
pub fn file_key(space: SpaceId) -> Vec<u8> {
    [&[FILE][..], &space.0.to_be_bytes()].concat()
}

/// The tablespace of a file record's key.
pub fn space_of_key(key: &[u8]) -> Option<SpaceId> {
    let (&[FILE], rest) = key.split_first_chunk()? else { return None };
    Some(SpaceId(u64::from_be_bytes(rest.try_into().ok()?)))
}

impl FileRecords {
    /// A keeper of records.
    pub fn new(pool: Arc<BufferPool>, system: Arc<SystemTree>, deleter: Arc<Deleter>) -> Self {
        Self { pool, system, deleter, gone: Vec::new() }
    }

    /// Writes or removes some records. Says whether there is more to do.
    ///
    /// # Errors
    /// What the log or the system tree says.
    pub fn step(&mut self) -> Result<bool> {
        self.gone.extend(self.deleter.take_gone());
        // With small pages one leaf has no room for so many.
        let most = BATCH.min(self.system.most_puts(KEY));
        let made = self.pool.files_to_record(most);
        // These nobody waits for.
        let most = if self.pool.ground().log.pressure() < CROWDED { BATCH } else { 0 };
        let gone: Vec<SpaceId> = self.gone.iter().rev().take(most).copied().collect();
        let is_live = |space: &SpaceId| self.pool.space(*space).is_some_and(|space| !space.is_dropped());
        let mut changes: Vec<Change> = made
            .iter()
            .filter(|space| is_live(space))
            .map(|space| Change::put(file_key(*space), vec![]))
            .collect();
        changes.extend(gone.iter().map(|space| Change::remove(file_key(*space))));
        if !changes.is_empty() {
            // The floor waits for these records: whoever waits for the floor here would wait for itself.
            self.pool.ground().log.admit_now(65_536)?;
            let mut mtr = Mtr::begin(&self.pool)?;
            self.system.change(&mut mtr, &mut changes)?;
            mtr.commit()?;
        }
        for space in &made {
            self.pool.file_recorded(*space);
        }
        self.gone.truncate(self.gone.len() - gone.len());
        let untidy = self.system.tidy_step()?;
        Ok(untidy || made.len() == most || gone.len() == BATCH)
    }
}
