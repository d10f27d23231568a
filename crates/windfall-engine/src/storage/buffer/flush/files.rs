//! The data files that pages are written to.
//!
//! **Purpose.** Before a batch is written, missing files of its tablespaces are created, and large files grow. After it
//! the files are synced, and new files are recorded in the log.
//!
//! **Invariants.** A tablespace's file is created at the first flush (test:
//! `a_table_that_no_checkpoint_saw_makes_no_file`). It is [`FileState::Durable`] when its name and content are durable
//! and its log record is appended (test: `first_runs_crash_at_every_operation`). One lock guards the decisions whether
//! a tablespace gets a file, and whether a dropped one has a file to delete, so no file is created after
//! [`BufferPool::file_of_dropped`] (test: `no_file_is_created_after_the_deleter_has_asked`).

use std::collections::{BTreeMap, BTreeSet};

use super::{
    super::{BufferPool, Durability, FileState, Space},
    SPACES_PER_ROUND, Spaces,
};
use crate::{
    disk::{FileName, Folder, IoBuffer},
    error::{DiskError, Result},
    ids::{Lsn, PageId, SpaceId},
    log::{GroupWriter, Record},
    sync::atomic::Ordering::Relaxed,
};

/// Files up to this many bytes grow as they are written; larger ones are preallocated in steps.
const PREALLOCATE_FROM_BYTES: u64 = 1 << 20;

/// The state of files under the lock.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// Files with a log record of their creation, and its LSN, until the system tree has a record, too.
    made: BTreeMap<SpaceId, Lsn>,
    /// The entries of `made` in LSN order: the first one limits the log's low-water mark.
    by_lsn: BTreeSet<(Lsn, SpaceId)>,
}

impl Files {
    fn note(&mut self, space: SpaceId, lsn: Lsn) {
        self.forget(space);
        self.made.insert(space, lsn);
        self.by_lsn.insert((lsn, space));
        assert!(self.made.len() == self.by_lsn.len(), "the two lists of files without a record differ");
    }

    fn forget(&mut self, space: SpaceId) {
        if let Some(lsn) = self.made.remove(&space) {
            let was_listed = self.by_lsn.remove(&(lsn, space));
            assert!(was_listed, "the file of tablespace {space} did not limit the low-water mark");
        }
    }

    fn low_water_mark(&self) -> Option<Lsn> {
        self.by_lsn.first().map(|(lsn, _)| *lsn)
    }
}

impl BufferPool {
    /// Creates the files of tablespaces that have none. Returns those that cannot be created, with the error.
    pub(super) fn create_files(&self, spaces: &Spaces<'_>) -> BTreeMap<SpaceId, DiskError> {
        let mut unmade = BTreeMap::new();
        if spaces.values().all(|space| space.file() != FileState::None) {
            return unmade;
        }
        let _deciding = self.files.lock();
        for (id, space) in spaces {
            if space.file() == FileState::None && !space.is_dropped() {
                match self.context.disk.create(FileName::Data(*id)) {
                    Ok(()) => {
                        self.counters.files_created.fetch_add(1, Relaxed);
                        space.set_file(FileState::Created);
                    }
                    Err(error) => drop(unmade.insert(*id, error)),
                }
            }
        }
        debug_assert!(
            spaces.iter().all(|(id, space)| {
                unmade.contains_key(id) || space.file() != FileState::None || space.is_dropped()
            }),
            "a live tablespace has no file, and no error says why"
        );
        unmade
    }

    /// Grows large files in steps, so that their blocks are contiguous and their length seldom changes. A failure is
    /// ignored: the write itself reports one.
    pub(super) fn preallocate(&self, spaces: &Spaces<'_>, pages: &[(PageId, IoBuffer)]) {
        for (id, space) in spaces {
            let file = FileName::Data(*id);
            let last = pages.iter().filter(|(page, _)| page.space == *id).map(|(page, _)| page.page).max();
            let Some(end) = last.map(|page| self.offset(page) + self.page_size as u64) else { continue };
            if end <= PREALLOCATE_FROM_BYTES || end <= space.allocated() {
                continue;
            }
            let length = self.context.disk.len(file).ok().flatten().unwrap_or(0);
            let mut allocated = length;
            if length < end {
                let step = (end / 8)
                    .clamp(PREALLOCATE_FROM_BYTES, 64 * PREALLOCATE_FROM_BYTES)
                    .next_multiple_of(self.page_size as u64);
                if self.context.disk.preallocate(file, length, end + step - length).is_ok() {
                    allocated = end + step;
                }
            }
            space.set_allocated(allocated);
        }
    }

    /// Makes the pages that were written durable, and logs which files were made.
    pub(super) fn sync_files(&self, spaces: &Spaces<'_>) -> Result<()> {
        let disk = &*self.context.disk;
        let poison = |error: DiskError| self.context.health.poison(&error.to_string());
        let mut new = Vec::new();
        for (id, space) in spaces {
            if space.durability() != Durability::Logged {
                continue;
            }
            match disk.sync(FileName::Data(*id)) {
                Ok(()) => {}
                // As for a page that could not be written: the drop must be durable, and then the file is not needed.
                Err(_) if space.is_dropped() => {
                    if let Some(lsn) = space.drop_lsn() {
                        self.context.log.sync_to(lsn)?;
                    }
                    continue;
                }
                Err(error) => return Err(poison(error)),
            }
            if space.file() == FileState::Created {
                new.push(*space);
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        disk.sync_folder(Folder::Data).map_err(poison)?;
        let mut group = GroupWriter::default();
        for space in &new {
            group.push(&Record::FileMade { space: space.id() });
        }
        // If there is no log space for the record, the batch has failed and is written again.
        let _room = self.context.log.admit_freeing(group.log_bytes())?;
        let mut files = self.files.lock();
        let appending = self.context.log.begin_group();
        let (start, _) = appending.append(group.bytes())?;
        #[cfg(not(feature = "model"))]
        debug_assert!(
            self.context.log.low_water_mark() <= start,
            "the log is cut off above the record of a file that the system tree does not have"
        );
        for space in new {
            files.note(space.id(), start);
            space.set_file(FileState::Durable);
        }
        drop(appending);
        Ok(())
    }

    /// Makes files durable that were created and have no log record yet, and logs it: recovery may have found all their
    /// pages up to date, so no flush may follow.
    ///
    /// # Errors
    /// A failing sync poisons the database.
    pub(crate) fn sync_created_files(&self) -> Result<()> {
        let created: Vec<_> =
            self.spaces().into_iter().filter(|space| space.file() == FileState::Created).collect();
        for some in created.chunks(SPACES_PER_ROUND) {
            self.sync_files(&some.iter().map(|space| (space.id(), space)).collect())?;
        }
        Ok(())
    }

    /// Returns the LSN of the oldest log record of a file that has no record in the system tree yet, if there is one.
    pub(crate) fn files_low_water_mark(&self) -> Option<Lsn> {
        self.files.lock().low_water_mark()
    }

    /// Returns at most `most` of the files that were made and have no record in the system tree yet.
    pub(crate) fn files_to_record(&self, most: usize) -> Vec<SpaceId> {
        self.files.lock().made.keys().take(most).copied().collect()
    }

    /// Records that a file's record is written, or not needed any more.
    pub(crate) fn file_recorded(&self, space: SpaceId) {
        self.files.lock().forget(space);
    }

    /// Adds a file of which recovery has found a log record, and no file record in the system tree.
    pub(crate) fn file_was_made(&self, space: SpaceId, lsn: Lsn) {
        self.files.lock().note(space, lsn);
    }

    /// Returns the state of the file of a dropped tablespace. After this call none will be created.
    pub(crate) fn file_of_dropped(&self, space: &Space) -> FileState {
        assert!(space.is_dropped(), "the file of tablespace {}, which is live, may be deleted", space.id());
        let _deciding = self.files.lock();
        space.file()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_low_water_mark_of_files_is_the_oldest_that_is_not_recorded() {
        let mut files = Files::default();
        assert_eq!(files.low_water_mark(), None);
        for (space, lsn) in [(7, 300), (3, 200), (9, 100), (3, 250)] {
            files.note(SpaceId(space), Lsn(lsn));
        }
        assert_eq!(files.low_water_mark(), Some(Lsn(100)));
        files.forget(SpaceId(9));
        files.forget(SpaceId(9));
        assert_eq!(files.low_water_mark(), Some(Lsn(250)));
        files.forget(SpaceId(3));
        files.forget(SpaceId(7));
        assert_eq!((files.low_water_mark(), files.by_lsn.len()), (None, 0));
    }
}
