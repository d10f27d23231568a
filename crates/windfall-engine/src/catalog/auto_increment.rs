//! The auto-increment values of a table (`AUTO_INCREMENT`).
//!
//! **Purpose.** Allocates rising numbers, each once, by one compare-and-exchange of an atomic. A *ceiling* makes them
//! unique across restarts: no number at or above it was allocated. The ceiling is in the header of the clustered tree's
//! tablespace ([`tablespace::ceiling()`]), so that a drop has no extra work, and a truncation removes it with the old
//! tablespace.
//!
//! **Invariants.** The ceiling is logged before the first number below it is allocated (test:
//! `a_number_comes_once_and_below_the_ceiling`). A row with that number is logged later, so a log that contains the row
//! contains the ceiling, wherever a crash truncates it (test: `first_runs_crash_at_every_operation`), and no call waits
//! for a sync (test: `a_table_without_numbers_writes_no_log_for_them`). The ceiling rises by as much as was allocated
//! so far, within bounds, and a crash loses the numbers between (test:
//! `a_close_leaves_no_gap_and_a_crash_a_small_one`). When the database is closed, the ceiling is lowered to the next
//! number, and no more numbers are allocated (test: `threads_get_numbers_of_their_own_and_a_close_is_an_end`). A table
//! of which no number was ever requested has no ceiling, and its numbers begin with 1; the numbers of a temporary table
//! are in memory only (test: `a_table_without_numbers_writes_no_log_for_them`).
//!
//! The next number rises inside the table's gate (checked by `catalog/table.rs::auto_increment`). It is reset only
//! while the gate is closed (checked by `catalog/table.rs::restart_auto_increment`), or when the database is closed,
//! after which no number is allocated (test: `threads_get_numbers_of_their_own_and_a_close_is_an_end`).

#[cfg(all(test, feature = "model"))]
mod interleavings;

use core::ops::Range;

use super::ddl::Catalog;
use crate::{
    buffer::Durability,
    error::{Error, Owner, Result, UsageError},
    log::LOG_OVERHEAD_BYTES,
    mtr::Mtr,
    store::Tree,
    sync::{
        Arc, Mutex, Rank,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    tablespace,
};

/// The ceiling rises by as much as was allocated so far, but by at least this.
const MIN_CEILING_STEP: u64 = 8;
/// The maximum of that rise: one log group per this many rows is little compared with the log records of the rows.
const MAX_CEILING_STEP: u64 = 128;

/// The state of the allocation.
#[derive(Debug)]
enum AutoIncrementState {
    /// No number was requested since the table was opened or truncated.
    Unused,
    /// Numbers of this tree are allocated.
    Of(Arc<Tree>),
    /// The database is being closed.
    Ended,
}

/// The auto-increment values of a table.
#[derive(Debug)]
pub struct AutoIncrement {
    /// The next number; zero while it is not known.
    next: AtomicU64,
    /// Numbers below this may be allocated.
    ceiling: AtomicU64,
    counting: Mutex<AutoIncrementState>,
}

impl Default for AutoIncrement {
    fn default() -> Self {
        Self {
            next: AtomicU64::new(0),
            ceiling: AtomicU64::new(0),
            counting: Mutex::new(Rank::Transactions, AutoIncrementState::Unused),
        }
    }
}

impl AutoIncrement {
    /// Allocates `count` consecutive numbers. `tree` is the clustered one.
    ///
    /// # Errors
    /// [`UsageError::AutoIncrementExhausted`]; the table was dropped, or the database is closed; damage, I/O.
    pub fn allocate(&self, tree: &Arc<Tree>, count: u64) -> Result<Range<u64>> {
        self.advance(tree, count, |next| next.checked_add(count))
    }

    /// Raises the next number above `at_least`.
    ///
    /// # Errors
    /// As [`AutoIncrement::allocate`], except for numbers that are used up.
    pub fn raise(&self, tree: &Arc<Tree>, at_least: u64) -> Result<()> {
        if self.next.load(SeqCst) > at_least {
            return Ok(());
        }
        self.advance(tree, 0, |next| Some(next.max(at_least.saturating_add(1)))).map(drop)
    }

    /// Returns the next number; `u64::MAX` if the numbers are used up.
    ///
    /// # Errors
    /// As [`AutoIncrement::raise`].
    pub fn peek(&self, tree: &Arc<Tree>) -> Result<u64> {
        loop {
            match self.next.load(SeqCst) {
                0 => self.initialize(&mut self.counting.lock(), tree)?,
                next => return Ok(next),
            }
        }
    }

    /// Advances the next number `n` to `to(n)`. Returns the numbers between.
    fn advance(&self, tree: &Arc<Tree>, count: u64, to: impl Fn(u64) -> Option<u64>) -> Result<Range<u64>> {
        loop {
            let below = self.ceiling.load(SeqCst);
            let within = |next| to(next).filter(|end| next > 0 && *end <= below);
            if let Ok(next) = self.next.fetch_update(SeqCst, SeqCst, within) {
                let end = to(next).unwrap_or(next);
                debug_assert!(next <= end, "the next number falls from {next} to {end}");
                return Ok(next..end);
            }
            self.lift(tree, |next| {
                let used_up = UsageError::AutoIncrementExhausted { owner: Owner::Unknown, count, next };
                to(next).ok_or_else(|| used_up.into())
            })?;
        }
    }

    /// Raises the ceiling to at least `to(n)`, where `n` is the next number.
    fn lift(&self, tree: &Arc<Tree>, to: impl Fn(u64) -> Result<u64>) -> Result<()> {
        let is_logged = tree.space().durability() == Durability::Logged;
        // The reservation comes first: a thread that holds the mutex must not wait for room in the log.
        let log = &tree.store().context().log;
        let _room = is_logged.then(|| log.admit(LOG_OVERHEAD_BYTES)).transpose()?;
        let mut counting = self.counting.lock();
        self.initialize(&mut counting, tree)?;
        let (next, below) = (self.next.load(SeqCst), self.ceiling.load(SeqCst));
        debug_assert!(next <= below, "numbers up to {next} were allocated above the ceiling {below}");
        let end = to(next)?;
        debug_assert!(next <= end, "the next number falls from {next} to {end}");
        if end > below {
            let ceiling = end.saturating_add(end.clamp(MIN_CEILING_STEP, MAX_CEILING_STEP));
            write(tree, ceiling)?;
            self.ceiling.store(ceiling, SeqCst);
        }
        Ok(())
    }

    /// Initializes the next number and the ceiling, unless that was done before.
    fn initialize(&self, counting: &mut AutoIncrementState, tree: &Arc<Tree>) -> Result<()> {
        match counting {
            AutoIncrementState::Of(_) => return Ok(()),
            AutoIncrementState::Ended => return Err(Error::Closed),
            AutoIncrementState::Unused => {}
        }
        let (next, ceiling) = match tree.space().durability() {
            Durability::Logged => {
                let ceiling = tablespace::ceiling(tree.store(), tree.space())?.max(1);
                (ceiling, ceiling)
            }
            Durability::Temporary => (1, u64::MAX),
        };
        #[cfg(not(feature = "model"))]
        debug_assert!(self.next.load(SeqCst) == 0, "numbers were allocated before the first one was known");
        self.ceiling.store(ceiling, SeqCst);
        self.next.store(next, SeqCst);
        *counting = AutoIncrementState::Of(tree.clone());
        Ok(())
    }

    /// Resets the numbers after a truncation, when the table has a new, empty tree, or after a drop, and releases the
    /// tree. The gate must be closed.
    pub(super) fn restart(&self) {
        // In the common case no number was requested.
        if self.next.load(SeqCst) == 0 {
            return;
        }
        let mut counting = self.counting.lock();
        if matches!(*counting, AutoIncrementState::Of(_)) {
            #[cfg(not(feature = "model"))]
            debug_assert!(
                self.next.load(SeqCst) <= self.ceiling.load(SeqCst),
                "numbers were allocated above the ceiling"
            );
            self.next.store(0, SeqCst);
            self.ceiling.store(0, SeqCst);
            *counting = AutoIncrementState::Unused;
        }
    }

    /// Stops the allocation, and writes the next number as the ceiling.
    pub(super) fn close(&self) -> Result<()> {
        let mut counting = self.counting.lock();
        let AutoIncrementState::Of(tree) = core::mem::replace(&mut *counting, AutoIncrementState::Ended)
        else {
            return Ok(());
        };
        // A call that finds no next number reads the ceiling, and gets an error.
        let next = self.next.swap(0, SeqCst);
        let ceiling = self.ceiling.load(SeqCst);
        debug_assert!(next <= ceiling, "numbers up to {next} were allocated above the ceiling {ceiling}");
        if next == ceiling || tree.space().is_dropped() {
            return Ok(());
        }
        let _room = tree.store().context().log.admit_freeing(LOG_OVERHEAD_BYTES)?;
        write(&tree, next)
    }
}

/// Logs a ceiling. The first ceiling of an empty table creates its root page.
fn write(tree: &Tree, ceiling: u64) -> Result<()> {
    tree.ensure_root()?;
    let mut mtr = Mtr::begin(tree.store())?;
    tablespace::set_ceiling(&mut mtr, tree.space(), ceiling)?;
    mtr.commit().map(drop)
}

impl Catalog {
    /// Lowers the ceilings of all tables to their next numbers, so that the next opening continues there. From now on
    /// no number is allocated.
    pub(crate) fn close_auto_increment(&self) {
        for (name, table) in self.tables() {
            if let Err(error) = table.close_auto_increment() {
                tracing::warn!(%error, table = &*name, "after the next opening some numbers will be left out");
            }
        }
    }
}
