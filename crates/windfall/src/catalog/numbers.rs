//! The numbers of a table: `AUTO_INCREMENT`.
//!
//! **Purpose.** Hands out rising numbers, each once, by one exchange of an atomic. Across restarts a *ceiling* keeps
//! them apart: no number at or above it was handed out. It stands in the header of the clustered tree's tablespace
//! ([`tablespace::ceiling()`]), where a drop has nothing to look for, and which a truncation leaves behind.
//!
//! **Invariants.** The ceiling is logged before the first number below it is handed out. Whoever writes a row with that
//! number logs it later, so a log that has the row has the ceiling, wherever a crash cuts it: nobody waits for a sync.
//! The ceiling rises by as much as was handed out so far, within bounds, and a crash loses what is between; when the
//! database is closed it comes down to the next number, and nobody gets one any more. A table that nobody asks for a
//! number has no ceiling, and its numbers begin with 1. The numbers of a temporary table are in memory alone.
//!
//! The next number moves within the table's gate or, to begin anew, while that is closed; it rises but for that.
//!
//! **May touch.** `store`, `tablespace`, `mtr`, `log`.

#[cfg(all(test, feature = "model"))]
mod interleavings;

use core::ops::Range;

use super::ddl::Catalog;
use crate::{
    buffer::Durability,
    error::{Error, Owner, Result, UsageError},
    log::OVERHEAD,
    mtr::Mtr,
    store::Tree,
    sync::{
        Arc, Bug, Mutex, Rank,
        atomic::{AtomicU64, Ordering::SeqCst},
        planted,
    },
    tablespace,
};

/// The ceiling rises at once by as much as was handed out so far, but by no less than this.
const LEAST: u64 = 8;
/// And by no more: a group of the log for so many rows is little beside those of the rows.
const MOST: u64 = 128;

/// Whose numbers are counted.
#[derive(Debug)]
enum Counting {
    /// Nobody has asked for one since the table was opened, or truncated.
    Nobodys,
    /// Those of this tree.
    Of(Arc<Tree>),
    /// The database is being closed.
    Ended,
}

/// The numbers of a table.
#[derive(Debug)]
pub struct Numbers {
    /// The next one; zero while it is not known.
    next: AtomicU64,
    /// Numbers below this may be handed out.
    ceiling: AtomicU64,
    counting: Mutex<Counting>,
}

impl Default for Numbers {
    fn default() -> Self {
        Self {
            next: AtomicU64::new(0),
            ceiling: AtomicU64::new(0),
            counting: Mutex::new(Rank::Transactions, Counting::Nobodys),
        }
    }
}

impl Numbers {
    /// Takes so many numbers side by side. `tree` is the clustered one.
    ///
    /// # Errors
    /// [`UsageError::NumbersUsedUp`]; a dropped table, a database that is closed; damage, I/O.
    pub fn take(&self, tree: &Arc<Tree>, count: u64) -> Result<Range<u64>> {
        self.advance(tree, count, |next| next.checked_add(count))
    }

    /// Sees to it that the next number is above this one.
    ///
    /// # Errors
    /// As [`Numbers::take`], but for numbers that are used up.
    pub fn raise(&self, tree: &Arc<Tree>, at_least: u64) -> Result<()> {
        if self.next.load(SeqCst) > at_least {
            return Ok(());
        }
        self.advance(tree, 0, |next| Some(next.max(at_least.saturating_add(1)))).map(drop)
    }

    /// The next number; `u64::MAX` when they are used up.
    ///
    /// # Errors
    /// As [`Numbers::raise`].
    pub fn peek(&self, tree: &Arc<Tree>) -> Result<u64> {
        loop {
            match self.next.load(SeqCst) {
                0 => self.know(&mut self.counting.lock(), tree)?,
                next => return Ok(next),
            }
        }
    }

    /// Moves the next number on, to where `to` says from where it is. Gives what lies between.
    fn advance(&self, tree: &Arc<Tree>, count: u64, to: impl Fn(u64) -> Option<u64>) -> Result<Range<u64>> {
        loop {
            let below = self.ceiling.load(SeqCst);
            let within = |next| to(next).filter(|end| next > 0 && *end <= below);
            if let Ok(next) = self.next.fetch_update(SeqCst, SeqCst, within) {
                return Ok(next..to(next).unwrap_or(next));
            }
            self.lift(tree, |next| {
                let used_up = UsageError::NumbersUsedUp { owner: Owner::Unknown, count, next };
                to(next).ok_or_else(|| used_up.into())
            })?;
        }
    }

    /// Sees to it that the ceiling is where `to` says from the next number, or above.
    fn lift(&self, tree: &Arc<Tree>, to: impl Fn(u64) -> Result<u64>) -> Result<()> {
        let is_logged = tree.space().durability() == Durability::Logged;
        // Whoever has the turn waits for no room.
        let log = &tree.store().ground().log;
        let _room = is_logged.then(|| log.admit(OVERHEAD)).transpose()?;
        let mut counting = self.counting.lock();
        self.know(&mut counting, tree)?;
        let end = to(self.next.load(SeqCst))?;
        if end > self.ceiling.load(SeqCst) {
            let ceiling = end.saturating_add(end.clamp(LEAST, MOST));
            if planted(Bug::CeilingNotLoggedYet) {
                self.ceiling.store(ceiling, SeqCst);
            }
            if !planted(Bug::NumbersForgotten) {
                write(tree, ceiling)?;
            }
            self.ceiling.store(ceiling, SeqCst);
        }
        Ok(())
    }

    /// Finds out where the numbers begin, unless that is known.
    fn know(&self, counting: &mut Counting, tree: &Arc<Tree>) -> Result<()> {
        match counting {
            Counting::Of(_) => return Ok(()),
            Counting::Ended => return Err(Error::Closed),
            Counting::Nobodys => {}
        }
        let (next, ceiling) = match tree.space().durability() {
            Durability::Logged => {
                let ceiling = tablespace::ceiling(tree.store(), tree.space())?.max(1);
                (ceiling, ceiling)
            }
            Durability::Temporary => (1, u64::MAX),
        };
        self.ceiling.store(ceiling, SeqCst);
        self.next.store(next, SeqCst);
        *counting = Counting::Of(tree.clone());
        Ok(())
    }

    /// The table has another tree, which is empty. Its gate is closed.
    pub(super) fn restart(&self) {
        // Mostly nobody has asked for a number.
        if self.next.load(SeqCst) == 0 {
            return;
        }
        let mut counting = self.counting.lock();
        if matches!(*counting, Counting::Of(_)) {
            self.next.store(0, SeqCst);
            self.ceiling.store(0, SeqCst);
            *counting = Counting::Nobodys;
        }
    }

    /// Hands out no number from now on, and writes which would be the next.
    fn settle(&self) -> Result<()> {
        let mut counting = self.counting.lock();
        let Counting::Of(tree) = core::mem::replace(&mut *counting, Counting::Ended) else { return Ok(()) };
        // Who finds no number asks for the ceiling, and is told.
        let early = planted(Bug::NumbersEndLate).then(|| self.next.load(SeqCst));
        let last = self.next.swap(0, SeqCst);
        let next = early.unwrap_or(last);
        if next == self.ceiling.load(SeqCst) || tree.space().is_dropped() {
            return Ok(());
        }
        let _room = tree.store().ground().log.admit_drop(OVERHEAD)?;
        write(&tree, next)
    }
}

/// Logs a ceiling. The first one of an empty table makes its root.
fn write(tree: &Tree, ceiling: u64) -> Result<()> {
    tree.ensure_root()?;
    let mut mtr = Mtr::begin(tree.store())?;
    tablespace::set_ceiling(&mut mtr, tree.space(), ceiling)?;
    mtr.commit().map(drop)
}

impl Catalog {
    /// Lets the numbers of all tables go on after the next opening where they are now. Nobody gets one any more.
    pub fn settle_numbers(&self) {
        for (name, table) in self.tables() {
            if let Err(error) = table.numbers().settle() {
                tracing::warn!(%error, table = &*name, "after the next opening some numbers will be left out");
            }
        }
    }
}
