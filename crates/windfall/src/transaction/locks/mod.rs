//! The locks that transactions hold until they end.
//!
//! **Purpose.** Who changes a row leaves his id in its entry, and that is his lock as long as he is active: it costs
//! nothing and nobody has to know. The lock table is for the others: for those who lock what they only read, for
//! statements that lock a table, and for everybody who has to wait. It queues them fairly, ends a wait by time, by a
//! call from outside, or because it closes a circle, and says who waits for whom.
//!
//! **Invariants.**
//! - A lock is held until its transaction ends, but for a row that is released before ([`Locks::release_row`]), or kept
//!   in a weaker mode ([`Locks::ease_row`]).
//! - Who waits holds no latch and no lock of a rank, and waits for one thing. Nobody waits while holding the mutex of
//!   the table; its rank is that of a leaf, so what does not wait may be called under a latch.
//! - Nobody waits in a circle: the wait of the lightest transaction on it is ended as soon as it is closed.
//! - *What writers see.* A writer looks under the exclusive latch of the leaf ([`Locks::may_write`],
//!   [`Locks::may_insert`]); a locker takes its lock first and then reads the leaf. So either the writer finds the lock
//!   or the locker finds the entry, or the latch taken:
//!   - A step that enters locks publishes how many there are before it gives the mutex back, and a sequentially
//!     consistent fence follows. The writer has another one between the taking of the latch and its look at the number.
//!     One of these fences is the first. If it is the writer's, the locker, which looks at the latch behind its own
//!     fence, sees it taken or given back, and waits for what was written; that goes for a look that validates a
//!     version as well. If it is the locker's, the writer sees a number that is not zero.
//!   - A writer that sees such a number takes the mutex. It has it before the locker, which then sees the
//!     latch taken, for the mutex orders them; or behind it, and finds the lock.
//!
//! A row is locked for a reader so: read the entry; if its writer is active, [`Locks::make_explicit`] for it, and
//! [`Locks::acquire`] the row, which waits for it; read again. If it is not, `acquire` first, and read again whether it
//! still is not: who finds a writer then was late, gives the row back ([`Locks::release_row`]) and begins anew.
//!
//! **May touch.** `ids`, `keys`, `error`, `env`, `sync`.

mod deadlock;
mod locker;
mod metrics;
mod mode;
mod queue;
mod ranges;
mod request;
mod space;
mod table;
mod turns;

#[cfg(all(test, feature = "model"))]
mod interleavings;
#[cfg(test)]
mod tests;

use core::ops::Bound;

pub use deadlock::{Blocked, Deadlock};
pub use locker::Locker;
pub use metrics::{LockMetrics, WAIT_CLASSES};
pub use mode::{RowMode, TableMode};
pub use request::{HeldLock, Lock, Patience, RowName, Waiting, Waits, Wanted};

use crate::{
    env::Env,
    error::LockError,
    ids::{SpaceId, TrxId},
    keys::KeyRange,
    sync::{
        Arc, Bug, Held, Mutex, Rank,
        atomic::{
            AtomicU64,
            Ordering::{Relaxed, SeqCst},
            fence,
        },
        planted,
    },
};
use space::Counts;
use table::Table;

/// So many rows are given back in one step: whoever has locked a million of them holds up nobody meanwhile.
const ROWS_IN_A_STEP: usize = 256;

/// How much there is of something, for those who only ask whether there is any.
#[derive(Debug, Default)]
struct Published(AtomicU64);

impl Published {
    /// Says how much there is now; for one at a time.
    fn set(&self, number: u64) {
        if self.0.load(Relaxed) != number {
            self.0.store(number, SeqCst);
        }
    }

    /// Whether there is none. What the caller did before comes before the look.
    fn is_none(&self) -> bool {
        fence(SeqCst);
        self.0.load(Relaxed) == 0
    }
}

/// The lock table of a database.
#[derive(Debug)]
pub struct Locks {
    table: Mutex<Table>,
    /// Rows that are locked.
    rows: Published,
    /// Transactions with ranges, in each tablespace.
    ranges: Published,
    /// Tables that are locked.
    tables: Published,
    /// How many interrupts there were: each has a number.
    interrupts: AtomicU64,
    env: Arc<dyn Env>,
}

impl Locks {
    /// A table without locks.
    pub fn new(env: Arc<dyn Env>) -> Self {
        let table = Mutex::new(Rank::Leaf, Table::default());
        let (rows, ranges, tables, interrupts) = Default::default();
        Self { table, rows, ranges, tables, interrupts, env }
    }

    /// What a transaction locks by, which is made once. Whoever has made one calls [`Locks::end`].
    pub fn locker(&self, id: TrxId) -> Arc<Locker> {
        Arc::new(Locker::new(id))
    }

    /// Runs a step, publishes what there is then, and wakes those whose wait it has ended.
    fn step<T>(&self, step: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = self.table.lock();
        let result = step(&mut table);
        let counts = table.counts();
        let is_late = planted(Bug::LocksPublishedLate);
        if !is_late {
            self.publish(counts);
        }
        let woken = table.parties.take_woken();
        drop(table);
        if is_late {
            self.publish(counts);
        }
        fence(SeqCst);
        if !planted(Bug::ServedAndNotWoken) {
            for locker in woken {
                locker.event().notify();
            }
        }
        result
    }

    fn publish(&self, counts: Counts) {
        self.rows.set(counts.rows);
        self.ranges.set(counts.ranges);
        self.tables.set(counts.tables);
    }

    /// Takes a lock, or waits for it as long as `patience` says. What is held already, or something stronger, is not
    /// taken again; who holds a lock and wants it in a stronger mode waits for the other holders only. With
    /// [`Patience::NoWait`] it may be called under a latch.
    ///
    /// # Errors
    /// - [`LockError::Busy`]: it would have to wait, and is not to.
    /// - [`LockError::TimedOut`]: so it is for the time that was given.
    /// - [`LockError::Deadlock`]: the wait was part of a circle. The transaction is to be rolled back.
    /// - [`LockError::Interrupted`]: [`Locks::interrupt`] was called, during the wait or before it; or [`Locks::stop`].
    pub fn acquire(&self, me: &Arc<Locker>, wanted: Wanted, patience: Patience) -> Result<(), LockError> {
        let taken = self.step(|table| table.take(me, &wanted));
        if taken.is_ok() || patience == Patience::NoWait {
            return taken;
        }
        drop(Held::take(Rank::Row));
        let began = self.env.now();
        if self.step(|table| table.take_or_join(me, wanted, began))? {
            return Ok(());
        }
        let mut is_settled = || me.is_settled();
        match patience {
            Patience::AtMost(time) => self.env.wait_unhindered(me.event(), time, &mut is_settled),
            Patience::NoWait | Patience::Forever => self.env.wait(me.event(), &mut is_settled),
        }
        let now = self.env.now();
        self.step(|table| table.end_wait(me, began, now))
    }

    /// Makes the lock explicit that a transaction has on a row because it has written it, so that others can queue for
    /// the row. `false`: the transaction ends, or has ended, and the row is to be looked at again. It waits for nothing
    /// and may be called under the latch under which the entry was read.
    pub fn make_explicit(&self, holder: &Arc<Locker>, row: RowName) -> bool {
        self.step(|table| table.make_explicit(holder, &row))
    }

    /// Locks a range of keys against inserts by others. It waits for nobody, and agrees with every other range and with
    /// locks on rows. Ranges of one transaction that overlap or touch become one. Whoever reads the leaf afterwards
    /// finds what was inserted before.
    pub fn lock_range(&self, me: &Arc<Locker>, space: SpaceId, lower: Bound<&[u8]>, upper: Bound<&[u8]>) {
        let range = KeyRange::new(lower, upper);
        if !range.is_empty() {
            self.step(|table| table.lock_range(me, space, range));
        }
    }

    /// Whether no range of anybody else holds this key out. To be called under the exclusive latch of the leaf into
    /// which the key is to go; it waits for nothing. While there are no ranges in the database it is a fence and a
    /// load.
    pub fn may_insert(&self, me: Option<TrxId>, space: SpaceId, key: &[u8]) -> bool {
        self.ranges.is_none() || !self.table.lock().is_held_out(me, space, key)
    }

    /// Whether nobody else holds an explicit lock on this row. To be called under the exclusive latch of the leaf, as
    /// [`Locks::may_insert`] is, and as cheap while no row is locked.
    pub fn may_write(&self, me: Option<TrxId>, space: SpaceId, key: &[u8]) -> bool {
        self.rows.is_none() || !self.table.lock().is_held(me, space, key)
    }

    /// Whether nobody else holds an explicit lock on this row that keeps others from sharing it.
    pub fn may_share(&self, me: Option<TrxId>, space: SpaceId, key: &[u8]) -> bool {
        self.rows.is_none() || self.table.lock().may_share(me, space, key)
    }

    /// Whether anybody has a lock on this table, in whichever mode, or waits for one. While nobody has one on any table
    /// it is a fence and a load.
    pub fn is_table_locked(&self, space: SpaceId) -> bool {
        !self.tables.is_none() && self.table.lock().is_table_locked(space)
    }

    /// How a transaction holds a row, if it does.
    pub fn held_mode(&self, me: &Locker, row: &RowName) -> Option<RowMode> {
        self.table.lock().held_mode(me, row)
    }

    /// Gives the lock on one row back, in whichever mode it is held, before the transaction ends.
    pub fn release_row(&self, me: &Arc<Locker>, row: &RowName) {
        self.ease_row(me, row, None);
    }

    /// Keeps the lock on one row in this mode at most, before the transaction ends; none gives it back.
    pub fn ease_row(&self, me: &Locker, row: &RowName, to: Option<RowMode>) {
        self.step(|table| table.ease_row(me, row, to));
    }

    /// The transaction has ended: all that it holds is given back, a bounded number of rows at a time, and who is next
    /// is served. From the first moment on its lock on what it has written is not made explicit any more.
    pub fn end(&self, me: &Arc<Locker>) {
        while !self.step(|table| table.give_back(me, ROWS_IN_A_STEP)) {}
    }

    /// Ends the wait of a transaction with [`LockError::Interrupted`]; or its next one, if it does not wait and does
    /// not [forget](Locker::forget_interrupts) that before. `false` when it does not lock by this locker any more.
    pub fn interrupt(&self, locker: &Locker) -> bool {
        let number = self.interrupts.fetch_add(1, SeqCst) + 1;
        self.step(|table| table.interrupt(locker, number))
    }

    /// How many interrupts there were: the number of the last one.
    pub fn interrupts(&self) -> u64 {
        self.interrupts.load(SeqCst)
    }

    /// Ends the wait of whoever waits under this number with [`LockError::Interrupted`]. `false` when nobody does.
    pub fn interrupt_wait(&self, trx: TrxId) -> bool {
        self.step(|table| table.interrupt_wait(trx))
    }

    /// The database has stopped, or is being closed: every wait ends with [`LockError::Interrupted`], and so does who
    /// would have to wait from now on. It takes the mutex of the lock table.
    pub fn stop(&self) {
        self.step(Table::stop_all);
    }

    /// Whether nobody waits any more.
    pub fn is_stopped(&self) -> bool {
        self.table.lock().is_stopped()
    }

    /// Every lock that is held, by tablespace; in each the table, the rows by key, and the ranges by transaction.
    pub fn listing(&self) -> Vec<HeldLock> {
        self.table.lock().listing()
    }

    /// Everybody who waits, by transaction.
    pub fn waits(&self) -> Vec<Waiting> {
        self.table.lock().waits()
    }

    /// The circle that was broken last.
    pub fn last_deadlock(&self) -> Option<Deadlock> {
        self.table.lock().last_deadlock.clone()
    }

    /// The numbers.
    pub fn metrics(&self) -> LockMetrics {
        self.table.lock().metrics()
    }
}
