//! Progress of long work ([`Progress`]).
//!
//! **Purpose.** Work that takes long says how far it is: recovery and checks to a callback that they are called with,
//! and what a session does to the callback of its [`Interrupt`], which also ends the work ([`ReportedWork`]).
//!
//! **Invariants.** The callback of an interrupt is called when a phase begins, and again after [`LongWork::STEPS`]
//! steps (test: `work_is_reported_when_it_begins_and_from_time_to_time`). Work ends when the callback says so (test:
//! `a_callback_ends_the_work`), and when it panics (test: `a_callback_that_panics_ends_the_work`). What the callback
//! calls counts as called from within a call, and waits for none (test:
//! `work_is_reported_when_it_begins_and_from_time_to_time`).

use core::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{CountedInside, Interrupt, Interrupted, LongWork};

/// The progress of long work: of recovery, of a check, or of a statement that builds indexes or loads rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// The current phase.
    pub phase: Phase,
    /// The amount done, in the unit of the phase.
    pub done: u64,
    /// The total amount, as far as it is known, in the unit of the phase; 0 if it is not known.
    pub total: u64,
}

/// The phases of long work. Those of recovery, [`Phase::Scan`] to [`Phase::Replay`], come in this order; those of a
/// statement may alternate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Phase {
    /// Finding the end of the log and the drops, in bytes of the log.
    Scan,
    /// Making durable what was written before the crash, in files.
    SyncFiles,
    /// Applying changes to pages, in bytes of the log.
    Replay,
    /// Reading the rows of a table for new indexes, or taking rows that are loaded, in rows.
    Rows,
    /// Writing what was sorted to new trees, in rows and index entries.
    Entries,
    /// Applying the changes that others have made during an index build, in index entries.
    Changes,
    /// Waiting for transactions that have changed the table of a new index.
    Transactions,
    /// Checking pages: in the trees, and then again in their files.
    Pages,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, unit) = match self.phase {
            Phase::Scan => ("reading the log", "bytes"),
            Phase::SyncFiles => ("syncing the data files", "files"),
            Phase::Replay => ("applying the log", "bytes"),
            Phase::Rows => ("reading rows", "rows"),
            Phase::Entries => ("writing new trees", "entries"),
            Phase::Changes => ("applying changes of others", "entries"),
            Phase::Transactions => return write!(f, "waiting for transactions"),
            Phase::Pages => ("checking pages", "pages"),
        };
        match (self.done * 100).checked_div(self.total) {
            Some(percent) => write!(f, "{what}: {percent} %"),
            None if unit == "bytes" => write!(f, "{what}: {} MB", self.done >> 20),
            None => write!(f, "{what}: {} {unit}", self.done),
        }
    }
}

impl Progress {
    /// Returns the progress of a phase.
    #[doc(hidden)]
    pub fn new(phase: Phase, done: u64, total: u64) -> Self {
        Self { phase, done, total }
    }
}

/// Long work whose progress the callback of the thread's interrupt gets.
#[derive(Debug)]
pub struct ReportedWork {
    progress: Progress,
    steps_since: u64,
}

impl ReportedWork {
    /// Begins a phase of this many steps, 0 if that is not known, and reports it.
    ///
    /// # Errors
    /// [`Interrupted`]: the work must end.
    pub fn begin(phase: Phase, total: u64) -> Result<Self, Interrupted> {
        let work = Self::unreported(phase, total);
        report(work.progress)?;
        Ok(work)
    }

    /// Begins a phase that is reported with its first steps.
    pub fn unreported(phase: Phase, total: u64) -> Self {
        Self { progress: Progress::new(phase, 0, total), steps_since: 0 }
    }

    /// Counts some steps.
    ///
    /// # Errors
    /// [`Interrupted`]: the work must end.
    #[inline]
    pub fn advance(&mut self, steps: u64) -> Result<(), Interrupted> {
        self.progress.done += steps;
        self.steps_since += steps;
        if self.steps_since < u64::from(LongWork::STEPS) {
            return Ok(());
        }
        self.steps_since = 0;
        if self.progress.total > 0 {
            // It was an estimate.
            self.progress.total = self.progress.total.max(self.progress.done);
        }
        report(self.progress)
    }
}

/// Passes the progress to the callback of the thread's interrupt, if there is one.
#[cold]
fn report(progress: Progress) -> Result<(), Interrupted> {
    LongWork::check()?;
    let Some(interrupt) = Interrupt::current() else { return Ok(()) };
    let Some(callback) = interrupt.callback() else { return Ok(()) };
    // The caller may be a statement, for which the callback must not wait.
    let _counted = CountedInside::new();
    let goes_on = catch_unwind(AssertUnwindSafe(|| callback(progress))).unwrap_or_else(|_| {
        tracing::error!(
            target: "windfall::engine",
            "a callback for the progress of long work has panicked: the work ends",
        );
        false
    });
    if goes_on { LongWork::check() } else { Err(Interrupted) }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;
    use crate::sync::{Arc, Mutex, Rank, is_inside};

    const STEPS: u64 = LongWork::STEPS as u64;

    fn run(total: u64, steps: u64) -> Result<(), Interrupted> {
        let mut work = ReportedWork::begin(Phase::Rows, total)?;
        (0..steps).try_for_each(|_| work.advance(1))
    }

    #[test]
    fn work_is_reported_when_it_begins_and_from_time_to_time() {
        let seen = Arc::new(Mutex::new(Rank::Leaf, Vec::new()));
        let noted = seen.clone();
        let interrupt = Arc::new(Interrupt::reporting(move |progress| {
            assert!(is_inside(), "the callback might wait for the statement that calls it");
            noted.lock().push((progress.done, progress.total));
            true
        }));
        // Of another thread, or of none.
        run(10, 3 * STEPS).unwrap();
        assert_eq!(*seen.lock(), []);
        let _entered = interrupt.enter();
        run(STEPS + 7, 3 * STEPS).unwrap();
        run(0, STEPS).unwrap();
        let expected = [
            (0, STEPS + 7),
            (STEPS, STEPS + 7),
            (2 * STEPS, 2 * STEPS),
            (3 * STEPS, 3 * STEPS),
            (0, 0),
            (STEPS, 0),
        ];
        assert_eq!(*seen.lock(), expected);
        interrupt.interrupt();
        assert_eq!(run(1, 1), Err(Interrupted));
        assert_eq!(seen.lock().len(), expected.len());
        let shown = |phase, done, total| Progress::new(phase, done, total).to_string();
        assert_eq!(shown(Phase::Rows, 5, 20), "reading rows: 25 %");
        assert_eq!(shown(Phase::Pages, 5, 0), "checking pages: 5 pages");
        assert_eq!(shown(Phase::Scan, 5 << 20, 0), "reading the log: 5 MB");
    }

    #[test]
    fn a_callback_ends_the_work() {
        let interrupt = Arc::new(Interrupt::reporting(|progress| progress.done < 2 * STEPS));
        let _entered = interrupt.enter();
        assert_eq!(run(0, 2 * STEPS - 1), Ok(()));
        assert_eq!(run(0, 2 * STEPS), Err(Interrupted));
        assert!(!interrupt.is_set());
    }

    #[test]
    fn a_callback_that_panics_ends_the_work() {
        let interrupt = Arc::new(Interrupt::reporting(|_| panic!("a defect")));
        let _entered = interrupt.enter();
        assert_eq!(run(0, 1), Err(Interrupted));
        assert!(!is_inside());
    }
}
