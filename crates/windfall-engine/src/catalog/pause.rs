//! Points within DDL statements at which a test can act.
//!
//! **Purpose.** A test passes a function that each statement calls at such points, and memory bounds for the
//! statements. It can also replace a stored record, and count what waits to be freed.
//!
//! **Invariants.** Only builds with the feature `testing` have this module. The function is not called within itself.

use super::{Catalog, TableRecord, ddl::record_key, index_build::Bounds};
use crate::{
    error::Result,
    log::FlushLog,
    sync::{Mutex, Rank},
    system::Change,
};

type Act = Box<dyn FnMut() + Send>;

/// What a test does at points within a statement, and the memory bounds of the statement.
pub struct Pause(Mutex<(Option<Act>, Option<Bounds>)>);

impl Default for Pause {
    fn default() -> Self {
        Self(Mutex::new(Rank::Leaf, (None, None)))
    }
}

impl core::fmt::Debug for Pause {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Pause")
    }
}

impl Pause {
    /// Calls a function at each point.
    pub fn set(&self, run: impl FnMut() + Send + 'static) {
        self.0.lock().0 = Some(Box::new(run));
    }

    /// Removes the function.
    pub fn clear(&self) {
        let act = self.0.lock().0.take();
        drop(act);
    }

    /// Sets the entries in memory, and the bytes of notes, of an index build.
    pub fn set_bounds(&self, entries: usize, notes: usize) {
        self.0.lock().1 = Some(Bounds { entries, notes, ..Bounds::FULL });
    }

    /// Sets the bytes of notes at which changes of rows begin to wait.
    pub fn set_most(&self, most: usize) {
        self.0.lock().1.get_or_insert(Bounds::FULL).most = most;
    }

    pub(super) fn bounds(&self) -> Option<Bounds> {
        self.0.lock().1
    }

    pub(super) fn pass(&self) {
        let run = self.0.lock().0.take();
        if let Some(mut run) = run {
            run();
            self.0.lock().0.get_or_insert(run);
        }
    }
}

impl Catalog {
    /// Replaces the stored record of a table. It takes effect at the next opening.
    ///
    /// # Errors
    /// As for any statement.
    pub fn replace_record(&self, name: &str, record: &TableRecord) -> Result<()> {
        let changes = &mut [Change::put(record_key(name), record.encode())];
        self.change(changes, &[], FlushLog::Sync)?.1.finished();
        Ok(())
    }

    /// Returns the number of tables and trees that are to be freed in the background.
    pub fn retired_count(&self) -> usize {
        self.retired.count()
    }
}
