//! The records that state which data files were created.
//!
//! **Purpose.** The log states first that a file was created, but only until it is truncated. So a record in the system
//! tree states it, too, before the low-water mark passes the log record; the record is removed after the file.
//!
//! **Invariants.** A live tablespace with a created file has a record, or the log states it at or above the low-water
//! mark (test: `the_low_water_mark_passes_no_file_without_a_record`). The record of a tablespace that nothing else
//! names has no effect (test: `cleanup_at_open_does_not_wait_for_later_steps`). The same worker merges leaves of the
//! system tree (test: `a_pause_follows_each_merge_in_the_system_tree`).

#[cfg(all(test, feature = "model"))]
mod interleavings;

use core::time::Duration;

use crate::{
    buffer::BufferPool,
    env::Next,
    error::Result,
    ids::SpaceId,
    mtr::Mtr,
    sync::Arc,
    system::{Change, FILE, SystemTree},
    tablespace::Deleter,
    tree::PendingMerges,
};

/// The interval at which the worker runs when it has nothing to do: the log's low-water mark waits for it.
pub(super) const RECORD_PAUSE: Duration = Duration::from_millis(10);
/// The pause after a step that may have merged leaves of the system tree. A merge takes some ten microseconds, for
/// which a statement that changes the tree waits: few statements meet one, even after the drop of thousands of tables.
const MERGE_PAUSE: Duration = Duration::from_millis(1);
/// Records that one group changes at most.
pub(super) const RECORDS_PER_GROUP: usize = 64;
/// The maximum log bytes of such a group.
pub(super) const LOG_BYTES_PER_GROUP: u64 = 64 << 10;
/// At this log pressure and above, in percent, optional work is skipped.
const CROWDED_PERCENT: u64 = 90;
/// The length of a record: its key.
const KEY: usize = 1 + size_of::<SpaceId>();

/// Maintains the records of data files.
#[derive(Debug)]
pub(super) struct FileRecords {
    pool: Arc<BufferPool>,
    system: Arc<SystemTree>,
    deleter: Arc<Deleter>,
    /// Tablespaces with a deleted file; their record may still exist.
    deleted: Vec<SpaceId>,
    /// Pending merges in the system tree.
    merges: PendingMerges,
}

/// Returns the key of a tablespace's file record.
pub(super) fn file_key(space: SpaceId) -> Vec<u8> {
    [&[FILE][..], &space.0.to_be_bytes()].concat()
}

/// Returns the tablespace of a file record's key.
pub(super) fn space_of_key(key: &[u8]) -> Option<SpaceId> {
    let (&[FILE], rest) = key.split_first_chunk()? else { return None };
    Some(SpaceId(u64::from_be_bytes(rest.try_into().ok()?)))
}

impl FileRecords {
    /// Creates the state of the worker.
    pub(super) fn new(pool: Arc<BufferPool>, system: Arc<SystemTree>, deleter: Arc<Deleter>) -> Self {
        Self { pool, system, deleter, deleted: Vec::new(), merges: PendingMerges::default() }
    }

    /// Writes or removes some records. If none is left, considers leaves of the system tree for a merge.
    ///
    /// # Errors
    /// Errors of the log or the system tree.
    pub(super) fn step(&mut self) -> Result<Next> {
        self.deleted.extend(self.deleter.take_deleted());
        // With small pages one leaf has no room for a whole batch.
        let most_made = RECORDS_PER_GROUP.min(self.system.most_puts(KEY));
        let made = self.pool.files_to_record(most_made);
        debug_assert!(made.len() <= most_made, "a group has no more records than fit");
        // Nothing waits for the removals.
        let most_deleted =
            if self.pool.context().log.pressure() < CROWDED_PERCENT { RECORDS_PER_GROUP } else { 0 };
        let deleted: Vec<SpaceId> = self.deleted.iter().rev().take(most_deleted).copied().collect();
        let is_live = |space: &SpaceId| self.pool.space(*space).is_some_and(|space| !space.is_dropped());
        // In a model, a look at a tablespace would be a step of its schedule.
        #[cfg(not(feature = "model"))]
        debug_assert!(
            deleted.iter().all(|space| !is_live(space)),
            "the record of a file is removed, and its tablespace is in use"
        );
        let mut changes: Vec<Change> = made
            .iter()
            .filter(|space| is_live(space))
            .map(|space| Change::put(file_key(*space), vec![]))
            .collect();
        changes.extend(deleted.iter().map(|space| Change::remove(file_key(*space))));
        if !changes.is_empty() {
            // The low-water mark waits for these records: waiting for it here would be a self-deadlock.
            let _room = self.pool.context().log.admit_now(LOG_BYTES_PER_GROUP)?;
            let mut mtr = Mtr::begin(&self.pool)?;
            self.system.change(&mut mtr, &mut changes)?;
            debug_assert!(
                mtr.logged() as u64 <= LOG_BYTES_PER_GROUP,
                "records take more of the log than was reserved"
            );
            mtr.commit()?;
        }
        for space in &made {
            self.pool.file_recorded(*space);
        }
        self.deleted.truncate(self.deleted.len() - deleted.len());
        if made.len() == most_made || deleted.len() == RECORDS_PER_GROUP {
            return Ok(Next::Again);
        }
        // No thread waits for a merge, and a failure of one does not concern the records.
        let has_more = self.system.tidy_step(&mut self.merges).unwrap_or_else(|error| {
            tracing::warn!(
                target: "windfall::storage",
                %error, "a leaf of the system tree could not be merged",
            );
            false
        });
        Ok(Next::Idle(if has_more { MERGE_PAUSE } else { RECORD_PAUSE }))
    }
}

#[cfg(test)]
mod tests {
    use windfall_sim::{SimulatedDisk, SimulatedEnv};

    use super::*;
    use crate::{
        engine::{
            Engine,
            test_engine::{self, create_table_with_page},
        },
        options::Options,
    };

    fn open(frames: u64) -> Engine {
        let options = Options::default().page_size(4096).buffer_pool_size(frames * 4096).log_size(4 << 20);
        test_engine::open(&SimulatedDisk::new(1), Arc::new(SimulatedEnv::new(1)), &options)
    }

    fn records(engine: &Engine) -> FileRecords {
        FileRecords::new(engine.pool.clone(), engine.system.clone(), engine.deleter.clone())
    }

    fn has_more(records: &mut FileRecords) -> bool {
        !matches!(records.step().unwrap(), Next::Idle(RECORD_PAUSE))
    }

    #[test]
    fn a_pause_follows_each_merge_in_the_system_tree() {
        let engine = open(256);
        let (system, mut records) = (engine.system.clone(), records(&engine));
        while has_more(&mut records) {}
        let change = |change: Change| {
            let mut mtr = Mtr::begin(&engine.pool).unwrap();
            system.change(&mut mtr, &mut [change]).unwrap();
            mtr.commit().unwrap();
        };
        let key = |n: u8| [b'x', n].to_vec();
        (0..200).for_each(|n| change(Change::put(key(n), vec![7; 200])));
        (1..200).for_each(|n| change(Change::remove(key(n))));
        let pages = || system.tree().check().unwrap().pages.len();
        let (mut merges, mut before) = (0, pages());
        loop {
            let next = records.step().unwrap();
            if matches!(next, Next::Idle(RECORD_PAUSE)) {
                break;
            }
            assert!(matches!(next, Next::Idle(MERGE_PAUSE)), "a step is repeated without a pause");
            merges += usize::from(core::mem::replace(&mut before, pages()) > before);
        }
        assert!(merges > 5, "{merges} steps have merged leaves");
    }

    #[test]
    fn there_is_nothing_to_do_in_a_crowded_log() {
        let engine = open(256);
        let mut records = records(&engine);
        while has_more(&mut records) {}
        while engine.log.pressure() < CROWDED_PERCENT {
            let mut mtr = Mtr::begin(&engine.pool).unwrap();
            engine.system.change(&mut mtr, &mut [Change::put(b"x".to_vec(), vec![7; 900])]).unwrap();
            mtr.commit().unwrap();
        }
        assert!(!has_more(&mut records), "a worker that always has more to do never sleeps");
    }

    #[test]
    fn a_full_batch_says_that_there_is_more() {
        let engine = open(1024);
        let tables = 2 * RECORDS_PER_GROUP;
        for n in 0..tables {
            create_table_with_page(&engine, &format!("t{n}"));
        }
        engine.pool.flush_all().unwrap();
        let mut records = records(&engine);
        let most = RECORDS_PER_GROUP.min(engine.system.most_puts(KEY));
        assert!(most < RECORDS_PER_GROUP, "pages of this size have no room for a whole batch");
        for n in 0..tables / most {
            assert!(has_more(&mut records), "{n} steps are not enough");
        }
    }
}
