//! A wait for a table lock that blocks others only at intervals.
//!
//! **Purpose.** A statement that has run for long alongside others, and needs the table exclusively at the end, waits
//! for the transactions that use it. If it stayed in the queue all the time, all later requests would wait for the
//! longest of these transactions. So it blocks later requests for a short interval (a *turn*), and then yields.
//!
//! A statement that finishes alterations of several tables cannot wait in turns, because it holds locks on tables while
//! it waits for others. It waits in the queue, where later requests wait for it until its timeout, and works meanwhile
//! ([`LockManager::acquire_meanwhile`]). If it is the victim of a deadlock, it releases its locks and waits again
//! (test: `a_group_of_alterations_that_is_a_deadlock_victim_waits_again`).
//!
//! **Invariants.** It is one wait, which is listed, interrupted and timed out like any other (tests:
//! `an_index_that_waits_can_be_interrupted`, `a_statement_waits_as_long_as_it_is_asked_to`). Its owner has no other
//! lock if it waits in turns (checked by `locks/turns.rs::acquire_yielding`). During a turn later requests wait for it
//! (test: `a_wait_in_turns_that_is_a_deadlock_victim_starts_again`). The first turn is short; later ones are longer
//! (checked by `locks/turns.rs::take_turns`), up to a bound. Between two turns later requests overtake it, until the
//! transactions that it has waited for in the last turn have ended (test:
//! `an_index_that_waits_for_a_transaction_holds_up_no_other`). So waiting for a transaction that runs for hours does
//! not block others (test: `a_yielding_request_blocks_no_other`). The lock is granted whenever the table is free (test:
//! `a_wait_in_turns_is_granted_despite_overlapping_holders`). If a turn closes a cycle, the statement is the victim,
//! because no transaction has a priority as low as the owner of such a wait, and starts again (test:
//! `a_wait_in_turns_is_the_victim_of_every_deadlock`). In either wait the other work is called at intervals of at most
//! [`TURN_STEP`] (test: `a_group_that_waits_for_its_tables_catches_up`).

use core::time::Duration;

use super::{LockManager, LockRequest, mode::TableMode, owner::LockOwner, wait::EnqueuedWait};
use crate::{
    error::{Error, LockError, Result},
    ids::SpaceId,
    sync::{Arc, InterruptibleWait},
};

/// The length of the first turn.
const FIRST_TURN: Duration = Duration::from_millis(100);
/// The interval at which other work is called, and the minimum length of a turn. If transactions always overlap because
/// nothing makes them wait, a shorter turn might never succeed.
const TURN_STEP: Duration = Duration::from_millis(50);

impl LockManager {
    /// Acquires a table lock in this mode for an owner that has no other lock. The wait blocks others in turns only,
    /// each no longer than `longest`, or 50 ms if that is more. Meanwhile it calls `between` repeatedly: again at once
    /// if it returns `true`, because it has more to do.
    ///
    /// # Errors
    /// As [`LockManager::acquire`], except for a deadlock; errors of `between`.
    pub(crate) fn acquire_yielding(
        &self,
        me: &Arc<LockOwner>,
        (space, mode): (SpaceId, TableMode),
        at_most: Duration,
        longest: Duration,
        between: &mut dyn FnMut() -> Result<bool>,
    ) -> Result<()> {
        debug_assert!(
            self.held_by(me) == 0,
            "statement {} has locks and waits in turns: it may not be the lightest of a deadlock",
            me.id()
        );
        let wanted = LockRequest::Table(space, mode);
        if self.grant_at_once(me, &wanted, !at_most.is_zero())? {
            return Ok(());
        }
        let (began, waiting_thread) = (self.env.now(), InterruptibleWait::begin(me));
        let mut turn = FIRST_TURN;
        loop {
            if waiting_thread.is_interrupted() {
                return Err(LockError::Interrupted.into());
            }
            let Some(wait) = self.enqueue(me, wanted.clone(), began)? else { return Ok(()) };
            let until = began.saturating_add(at_most);
            let between = &mut *between;
            let mut steps = Steps { wait, waiting_thread: &waiting_thread, until, between, has_more: false };
            self.take_turns(&mut steps, &mut turn, longest)?;
            match steps.wait.end(false) {
                Err(LockError::Deadlock(_)) => drop(between()?),
                done => {
                    debug_assert!(
                        done.is_err() || self.held_by(me) == 1,
                        "a wait in turns was granted, and its owner does not hold the one lock"
                    );
                    return done.map_err(Error::from);
                }
            }
        }
    }

    /// As [`LockManager::acquire`], for an owner that may have other locks. Meanwhile it calls `between` repeatedly, as
    /// [`LockManager::acquire_yielding`] does.
    ///
    /// # Errors
    /// As [`LockManager::acquire`]; errors of `between`.
    pub(crate) fn acquire_meanwhile(
        &self,
        me: &Arc<LockOwner>,
        wanted: LockRequest,
        at_most: Duration,
        between: &mut dyn FnMut() -> Result<bool>,
    ) -> Result<()> {
        if self.grant_at_once(me, &wanted, !at_most.is_zero())? {
            return Ok(());
        }
        let (began, waiting_thread) = (self.env.now(), InterruptibleWait::begin(me));
        if waiting_thread.is_interrupted() {
            return Err(LockError::Interrupted.into());
        }
        let Some(wait) = self.enqueue(me, wanted, began)? else { return Ok(()) };
        let until = began.saturating_add(at_most);
        let mut steps = Steps { wait, waiting_thread: &waiting_thread, until, between, has_more: false };
        while !steps.next(Duration::MAX)? {}
        Ok(steps.wait.end(false)?)
    }

    /// Waits in turns until the wait is resolved, or its time is over.
    fn take_turns(&self, steps: &mut Steps<'_, '_>, turn: &mut Duration, longest: Duration) -> Result<()> {
        let me = steps.wait.me;
        loop {
            let end = self.env.now().saturating_add((*turn).min(longest.max(TURN_STEP)));
            while self.env.now() < end {
                if steps.next(end.saturating_sub(self.env.now()))? {
                    return Ok(());
                }
            }
            *turn = turn.saturating_mul(2);
            debug_assert!(*turn > FIRST_TURN, "a turn is not longer than the first one");
            let before = self.wait_step(|step| step.set_yielding(me, true));
            loop {
                if steps.next(TURN_STEP)? {
                    return Ok(());
                }
                let now = self.blockers_of(me);
                if !now.ids().iter().any(|trx| before.ids().contains(trx)) {
                    break;
                }
            }
            self.wait_step(|step| step.set_yielding(me, false));
        }
    }
}

/// A wait that is enqueued, and the work between its steps.
struct Steps<'a, 'b> {
    wait: EnqueuedWait<'a>,
    waiting_thread: &'b InterruptibleWait,
    until: Duration,
    between: &'b mut dyn FnMut() -> Result<bool>,
    has_more: bool,
}

impl Steps<'_, '_> {
    /// Waits for one step, no longer than `at_most`, and works. Returns whether the wait is resolved, or its time is
    /// over.
    fn next(&mut self, at_most: Duration) -> Result<bool> {
        let (me, env, waiting_thread) = (self.wait.me, &self.wait.locks.env, self.waiting_thread);
        let left = self.until.saturating_sub(env.now());
        let step = if self.has_more { Duration::ZERO } else { TURN_STEP };
        let mut is_over = || me.is_resolved() || me.is_outdated() || waiting_thread.is_interrupted();
        env.wait_unhindered(me.event(), at_most.min(left).min(step), &mut is_over);
        if waiting_thread.is_interrupted() {
            return Err(LockError::Interrupted.into());
        }
        self.wait.report_change();
        self.has_more = (self.between)()?;
        Ok(me.is_resolved() || env.now() >= self.until)
    }
}
