//! The counters of a table: its auto-increment values (`AUTO_INCREMENT`), and the ids of rows without a key.
//!
//! **Purpose.** Each allocates rising numbers, each once, by one compare-and-exchange of an atomic. A *ceiling* makes
//! them unique across restarts: no number at or above it was allocated. The ceilings are in the header of the clustered
//! tree's tablespace ([`tablespace::ceiling()`]), so that a drop has no extra work, and a truncation removes them with
//! the old tablespace.
//!
//! **Invariants.** The ceiling is logged before a number below it is returned (test:
//! `a_number_comes_once_and_below_the_ceiling`). A row with that number is logged later, so a log that contains the row
//! contains the ceiling, wherever a crash truncates it (test: `first_runs_crash_at_every_operation`), and no call waits
//! for a sync (test: `a_table_without_numbers_writes_no_log_for_them`), except one that sets the next number. The
//! ceiling rises by as much as was allocated so far, within bounds, and a crash loses the numbers between (test:
//! `a_close_leaves_no_gap_and_a_crash_a_small_one`). When the database is closed, the ceiling is lowered to the next
//! number, and no more numbers are allocated (test: `threads_get_numbers_of_their_own_and_a_close_is_an_end`). A table
//! of which no number was ever requested has no ceiling, and its numbers begin with 1; the numbers of a temporary table
//! are in memory only (test: `a_table_without_numbers_writes_no_log_for_them`).
//!
//! The next number changes inside the table's gate (checked by `catalog/table.rs::counter`). It is reset only while
//! the gate is closed (checked by `catalog/table.rs::restart_counters`), or when the database is closed, after which
//! no number is allocated (test: `threads_get_numbers_of_their_own_and_a_close_is_an_end`).
//!
//! **Setting the next number.** Any value can be set, also a lower one. It becomes the ceiling as well, so that it is
//! the next number after a crash, too (test: `a_number_that_was_set_survives_a_crash`). While the ceiling is logged,
//! the next number is unknown, and calls wait. A call may have read the ceiling before it was lowered, and then find
//! the number that was set: the number that it had read may even be the same. So a call that has allocated a number
//! reads the ceiling again, and raises it above that number first if it is lower (test:
//! `a_number_that_was_set_is_below_the_ceiling_before_it_is_returned`). Numbers that were allocated before a lower one
//! was set may be allocated again.
//!
//! **Returning numbers.** The unused end of a range can be returned while its end is the next number, that is, while
//! nothing was allocated after it. Numbers that callers have chosen themselves ([`Counter::raise`]) may be in that
//! range: a raise below the next number changes nothing that a return would see. So the counter keeps the highest of
//! them as a *floor*, and takes back no number below. A return makes the next number unknown while it reads the floor,
//! and a raise sets the floor before it reads the next number: either the raise waits for the return, or the return
//! sees the floor (test: `no_number_is_returned_below_one_that_was_chosen`).

#[cfg(all(test, feature = "model"))]
mod interleavings;

use core::ops::Range;

use super::state::Catalog;
use crate::{
    buffer::Durability,
    error::{Error, Owner, Result, UsageError},
    ids::Lsn,
    log::LOG_OVERHEAD_BYTES,
    mtr::Mtr,
    store::Tree,
    sync::{
        Arc, Mutex, Rank,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    tablespace::{self, CounterKind},
};

/// The ceiling rises by as much as was allocated so far, but by at least this.
const MIN_CEILING_STEP: u64 = 8;
/// The maximum of that rise: one log group per this many rows is little compared with the log records of the rows.
const MAX_CEILING_STEP: u64 = 128;

/// The state of the allocation.
#[derive(Debug)]
enum CounterState {
    /// No number was requested since the table was opened or truncated.
    Unused,
    /// Numbers of this tree are allocated.
    Of(Arc<Tree>),
    /// The database is being closed.
    Ended,
}

/// A counter of a table.
#[derive(Debug)]
pub struct Counter {
    kind: CounterKind,
    /// The next number; zero while it is not known.
    next: AtomicU64,
    /// Numbers below this may be allocated.
    ceiling: AtomicU64,
    /// No number below this is taken back.
    floor: AtomicU64,
    counting: Mutex<CounterState>,
}

impl Counter {
    /// Returns a counter of a table of which no number was requested yet.
    pub(super) fn new(kind: CounterKind) -> Self {
        Self {
            kind,
            next: AtomicU64::new(0),
            ceiling: AtomicU64::new(0),
            floor: AtomicU64::new(0),
            counting: Mutex::new(Rank::Transactions, CounterState::Unused),
        }
    }

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
    /// As [`Counter::allocate`], except for numbers that are used up.
    pub fn raise(&self, tree: &Arc<Tree>, at_least: u64) -> Result<()> {
        let floor = at_least.saturating_add(1);
        // Before the next number is read.
        if self.floor.load(SeqCst) < floor {
            self.floor.fetch_max(floor, SeqCst);
        }
        if self.next.load(SeqCst) > at_least {
            return Ok(());
        }
        self.advance(tree, 0, |next| Some(next.max(floor))).map(drop)
    }

    /// Returns the next number; `u64::MAX` if the numbers are used up.
    ///
    /// # Errors
    /// As [`Counter::raise`].
    pub fn peek(&self, tree: &Arc<Tree>) -> Result<u64> {
        loop {
            match self.next.load(SeqCst) {
                0 => self.initialize(&mut self.counting.lock(), tree)?,
                next => return Ok(next),
            }
        }
    }

    /// Sets the next number; zero counts as one. Returns the end of its group in the log.
    ///
    /// # Errors
    /// As [`Counter::raise`]; the next number has not changed then.
    pub fn set(&self, tree: &Arc<Tree>, next: u64) -> Result<Option<Lsn>> {
        let next = next.max(1);
        let is_logged = tree.space().durability() == Durability::Logged;
        let log = &tree.store().context().log;
        let _room = is_logged.then(|| log.admit(LOG_OVERHEAD_BYTES)).transpose()?;
        let mut counting = self.counting.lock();
        self.initialize(&mut counting, tree)?;
        // No number is allocated until the ceiling is logged.
        let before = self.next.swap(0, SeqCst);
        let mut end = None;
        if is_logged {
            end = write(tree, self.kind, next).inspect_err(|_| self.next.store(before, SeqCst))?;
            self.ceiling.store(next, SeqCst);
        }
        self.floor.store(next, SeqCst);
        self.next.store(next, SeqCst);
        Ok(end)
    }

    /// Takes back the unused end of a range that was allocated, if nothing was allocated after it. Returns whether it
    /// did.
    pub fn take_back(&self, unused: &Range<u64>) -> bool {
        if unused.is_empty() {
            return true;
        }
        if unused.start == 0 || self.next.load(SeqCst) != unused.end {
            return false;
        }
        let _counting = self.counting.lock();
        // Calls wait for the mutex until the next number is known again.
        if self.next.compare_exchange(unused.end, 0, SeqCst, SeqCst).is_err() {
            return false;
        }
        let is_free = self.floor.load(SeqCst) <= unused.start;
        self.next.store(if is_free { unused.start } else { unused.end }, SeqCst);
        is_free
    }

    /// Advances the next number `n` to `to(n)`. Returns the numbers between.
    fn advance(&self, tree: &Arc<Tree>, count: u64, to: impl Fn(u64) -> Option<u64>) -> Result<Range<u64>> {
        loop {
            let below = self.ceiling.load(SeqCst);
            let within = |next| to(next).filter(|end| next > 0 && *end <= below);
            if let Ok(next) = self.next.fetch_update(SeqCst, SeqCst, within) {
                let end = to(next).unwrap_or(next);
                debug_assert!(next <= end, "the next number falls from {next} to {end}");
                if end > self.ceiling.load(SeqCst) {
                    // The next number was set since the ceiling was read.
                    self.lift(tree, Ok)?;
                }
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
        let end = to(next)?;
        debug_assert!(next <= end, "the next number falls from {next} to {end}");
        if end > below {
            let ceiling = end.saturating_add(end.clamp(MIN_CEILING_STEP, MAX_CEILING_STEP));
            write(tree, self.kind, ceiling)?;
            self.ceiling.store(ceiling, SeqCst);
        }
        Ok(())
    }

    /// Initializes the next number and the ceiling, unless that was done before.
    fn initialize(&self, counting: &mut CounterState, tree: &Arc<Tree>) -> Result<()> {
        match counting {
            CounterState::Of(_) => return Ok(()),
            CounterState::Ended => return Err(Error::Closed),
            CounterState::Unused => {}
        }
        let (next, ceiling) = match tree.space().durability() {
            Durability::Logged => {
                let ceiling = tablespace::ceiling(tree.store(), tree.space(), self.kind)?.max(1);
                (ceiling, ceiling)
            }
            Durability::Temporary => (1, u64::MAX),
        };
        #[cfg(not(feature = "model"))]
        debug_assert!(self.next.load(SeqCst) == 0, "numbers were allocated before the first one was known");
        self.ceiling.store(ceiling, SeqCst);
        self.next.store(next, SeqCst);
        *counting = CounterState::Of(tree.clone());
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
        if matches!(*counting, CounterState::Of(_)) {
            self.next.store(0, SeqCst);
            self.ceiling.store(0, SeqCst);
            self.floor.store(0, SeqCst);
            *counting = CounterState::Unused;
        }
    }

    /// Resets the numbers before a statement sets the next one. If the statement fails, only some numbers are skipped:
    /// none is taken back that was chosen, or that the statement has set. The gate must be closed.
    pub(super) fn restart_at(&self, next: u64) {
        let floor = self.floor.load(SeqCst).max(next);
        self.restart();
        self.floor.fetch_max(floor, SeqCst);
    }

    /// Stops the allocation, and writes the next number as the ceiling.
    pub(super) fn close(&self) -> Result<()> {
        let mut counting = self.counting.lock();
        let CounterState::Of(tree) = core::mem::replace(&mut *counting, CounterState::Ended) else {
            return Ok(());
        };
        // A call that finds no next number reads the ceiling, and gets an error.
        let next = self.next.swap(0, SeqCst);
        let ceiling = self.ceiling.load(SeqCst);
        if next == ceiling || tree.space().is_dropped() {
            return Ok(());
        }
        let _room = tree.store().context().log.admit_freeing(LOG_OVERHEAD_BYTES)?;
        write(&tree, self.kind, next).map(drop)
    }
}

/// Logs a ceiling, and returns the end of its group. The first ceiling of an empty table creates its root page.
fn write(tree: &Tree, kind: CounterKind, ceiling: u64) -> Result<Option<Lsn>> {
    tree.ensure_root()?;
    let mut mtr = Mtr::begin(tree.store())?;
    tablespace::set_ceiling(&mut mtr, tree.space(), kind, ceiling)?;
    mtr.commit()
}

impl Catalog {
    /// Lowers the ceilings of all tables to their next numbers, so that the next opening continues there. From now on
    /// no number is allocated.
    pub(crate) fn close_counters(&self) {
        for (name, table) in self.tables() {
            if let Err(error) = table.close_counters() {
                tracing::warn!(
                    target: "windfall::ddl",
                    %error, table = &*name, "after the next opening some numbers will be left out",
                );
            }
        }
    }
}
