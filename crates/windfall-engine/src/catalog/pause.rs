//! Points within DDL statements at which a test can act.
//!
//! **Purpose.** Statements pass [`Pause`], where a test runs its function, and take their memory bounds from it. A test
//! can also replace a stored record, and count what waits to be freed.
//!
//! **Invariants.** As in [`failpoint`](crate::failpoint): without the feature `testing` a point has no size and does
//! nothing (by type).

use super::index_build::Bounds;
#[cfg(feature = "testing")]
use super::{Catalog, TableRecord, state::record_key, statement::Effort};
use crate::failpoint::{SyncPoint, TestValue};
#[cfg(feature = "testing")]
use crate::{error::Result, log::FlushLog, system::Change};

/// The action of a test at points within a statement, and the memory bounds of the statement.
#[derive(Debug, Default)]
pub struct Pause {
    point: SyncPoint,
    bounds: TestValue<Bounds>,
}

impl Pause {
    /// Passes a point within a statement.
    #[inline]
    pub(super) fn pass(&self) {
        self.point.pass();
    }

    /// Returns the memory bounds of an index build.
    #[inline]
    pub(super) fn bounds(&self) -> Bounds {
        self.bounds.get().unwrap_or(Bounds::FULL)
    }

    /// Returns the bytes of entries that a load sorts in memory at a time: these, unless a test allows fewer.
    #[inline]
    pub(super) fn entries_at_most(&self, bytes: usize) -> usize {
        self.bounds.get().map_or(bytes, |bounds| bytes.min(bounds.entries))
    }
}

#[cfg(feature = "testing")]
impl Pause {
    /// Calls a function at each point.
    pub fn set(&self, run: impl FnMut() + Send + 'static) {
        self.point.set(run);
    }

    /// Calls the function, between two calls of a test.
    pub fn act(&self) {
        self.pass();
    }

    /// Removes the function.
    pub fn clear(&self) {
        self.point.clear();
    }

    /// Sets the entries in memory, and the bytes of notes, of an index build.
    pub fn set_bounds(&self, entries: usize, notes: usize) {
        self.bounds.set(Bounds { entries, notes, ..Bounds::FULL });
    }

    /// Sets the bytes of notes in memory at which they are written to a run between the steps of an alteration, and the
    /// number of these runs.
    pub fn set_runs(&self, run: usize, runs: usize) {
        self.bounds.set(Bounds { run, runs, ..self.bounds() });
    }

    /// Sets the bytes of notes at which changes of rows begin to wait.
    pub fn set_most(&self, most: usize) {
        self.bounds.set(Bounds { most, ..self.bounds() });
    }
}

#[cfg(feature = "testing")]
impl Catalog {
    /// Replaces the stored record of a table. It takes effect at the next opening.
    ///
    /// # Errors
    /// As for any statement.
    pub fn replace_record(&self, name: &str, record: &TableRecord) -> Result<()> {
        let changes = &mut [Change::put(record_key(name), record.encode())];
        self.change_with_numbers(changes, &[], &[], Effort::NeedsRoom, FlushLog::Sync)?.1.finished();
        Ok(())
    }

    /// Returns the number of names that renames in progress have announced.
    pub fn announced_names(&self) -> usize {
        self.names.announced()
    }

    /// Returns the number of tables and trees that are to be freed in the background.
    pub fn retired_count(&self) -> usize {
        self.retired.count()
    }
}
