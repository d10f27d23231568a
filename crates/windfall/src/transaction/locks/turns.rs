//! A wait for a table that is in the way of others only in turns.
//!
//! **Purpose.** A statement that has worked for long beside others, and needs the table to itself at the end, waits
//! for the transactions that have it. If it stood in the queue until then, all that come later would wait for the
//! longest of these. So it stands there for a short turn, and yields then.
//!
//! **Invariants.** It is one wait, which is listed, interrupted and timed like any other. In a turn who comes later
//! waits behind it; a turn is short at first, then longer, up to a bound. Between two turns others pass it, until
//! those have ended whom it has waited for in the turn before; so it costs others nothing to wait for one transaction
//! that goes on for hours. It is served whenever the table is free. If its turn closes a circle it gives way, as the
//! lightest, and begins anew.
//!
//! **May touch.** `ids`, `error`, `env`, `sync`.

use core::time::Duration;

use super::{Locks, Wanted, locker::Locker, mode::TableMode};
use crate::{
    error::{Error, LockError, Result},
    ids::SpaceId,
    sync::{Arc, Held, Rank},
};

/// How long the first turn lasts.
const FIRST: Duration = Duration::from_millis(100);
/// How often it looks after something else, and how long a turn lasts at least: where others wait for nothing, and so
/// there is always one of them, it would never be served otherwise.
const STEP: Duration = Duration::from_millis(50);

/// A wait that is ended whatever becomes of `between`, be it a panic: others would wait behind it for ever.
struct WaitUnderWay<'a> {
    locks: &'a Locks,
    me: &'a Arc<Locker>,
    began: Duration,
}

impl WaitUnderWay<'_> {
    /// It is settled, or its time is over. Says which.
    fn end(self) -> Result<(), LockError> {
        let ended = self.end_now();
        core::mem::forget(self);
        ended
    }

    fn end_now(&self) -> Result<(), LockError> {
        let now = self.locks.env.now();
        self.locks.step(|table| table.end_wait(self.me, self.began, now))
    }
}

impl Drop for WaitUnderWay<'_> {
    fn drop(&mut self) {
        self.locks.step(|table| table.stop(self.me.id(), LockError::Interrupted));
        // What was served meanwhile is given back with the rest.
        let _ = self.end_now();
    }
}

impl Locks {
    /// Takes a lock on a table. It is in the way of others in turns only, none of which lasts longer than `longest`, or
    /// 50 ms if that is more. Meanwhile it calls `between`, time and again: again at once if that says that it has
    /// more to do.
    ///
    /// # Errors
    /// As [`Locks::acquire`], but for a deadlock; that of `between`.
    pub fn acquire_in_turns(
        &self,
        me: &Arc<Locker>,
        space: SpaceId,
        mode: TableMode,
        at_most: Duration,
        longest: Duration,
        between: &mut dyn FnMut() -> Result<bool>,
    ) -> Result<()> {
        let wanted = Wanted::Table(space, mode);
        let taken = self.step(|table| table.take(me, &wanted));
        if taken.is_ok() || at_most.is_zero() {
            return Ok(taken?);
        }
        drop(Held::take(Rank::Row));
        let began = self.env.now();
        let mut turn = FIRST;
        loop {
            if self.step(|table| table.take_or_join(me, wanted.clone(), began))? {
                return Ok(());
            }
            let waiting = WaitUnderWay { locks: self, me, began };
            self.take_turns(me, began.saturating_add(at_most), &mut turn, longest, between)?;
            match waiting.end() {
                Err(LockError::Deadlock(_)) => drop(between()?),
                done => return done.map_err(Error::from),
            }
        }
    }

    /// Waits in turns until it is known how that ends, or the time is over.
    fn take_turns(
        &self,
        me: &Locker,
        until: Duration,
        turn: &mut Duration,
        longest: Duration,
        between: &mut dyn FnMut() -> Result<bool>,
    ) -> Result<()> {
        let mut has_more = false;
        let mut wait = |at_most: Duration| {
            let left = until.saturating_sub(self.env.now());
            let step = if has_more { Duration::ZERO } else { STEP };
            self.env.wait_unhindered(me.event(), at_most.min(left).min(step), &mut || me.is_settled());
            between().map(|more| {
                has_more = more;
                me.is_settled() || self.env.now() >= until
            })
        };
        loop {
            let end = self.env.now().saturating_add((*turn).min(longest.max(STEP)));
            while self.env.now() < end {
                if wait(end.saturating_sub(self.env.now()))? {
                    return Ok(());
                }
            }
            *turn = turn.saturating_mul(2);
            let before = self.step(|table| table.set_yielding(me.id(), true));
            loop {
                if wait(STEP)? {
                    return Ok(());
                }
                let now = self.table.lock().in_the_way(me.id());
                if !now.ids().iter().any(|trx| before.ids().contains(trx)) {
                    break;
                }
            }
            self.step(|table| table.set_yielding(me.id(), false));
        }
    }
}
