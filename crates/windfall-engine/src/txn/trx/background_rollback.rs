//! The worker that rolls back transactions in the background.
//!
//! **Purpose.** Transactions that recovery has found unfinished are rolled back while the database is open for work; so
//! are transactions that a call could not roll back at once.
//!
//! **Invariants.**
//! - Until it is fully rolled back a transaction is active: its rows are locked, and readers see the versions before
//!   its changes (test: `the_database_is_open_while_unfinished_transactions_are_rolled_back`).
//! - The records of an unfinished transaction are found by reading its stream from its first record (test:
//!   `every_crash_point_of_short_histories`) to the end that the stream had when the database was opened. One such
//!   *search* serves all transactions of a stream, and none of them is rolled back before the search is complete (test:
//!   `a_search_that_cannot_go_on_holds_up_no_other_rollback`).
//! - Prepared transactions are searched for before the database is open, and have locks on their tables from then on
//!   (test: `after_a_crash_its_rows_and_tables_are_locked_until_its_end`).
//! - All other transactions here have no locks except the implicit ones on the rows that they have changed (test:
//!   `a_full_disk_leaves_it_prepared_or_lets_it_go`). A drop or a truncation does not wait for them, because a dropped
//!   table needs no rollback (test: `a_drop_and_a_truncation_wait_for_nothing_that_was_unfinished`). A statement that
//!   must find no unfinished change in a table locks the table and then waits for them ([`await_rollbacks`]) (tests:
//!   `an_index_build_waits_only_for_unfinished_transactions_on_its_table`,
//!   `a_load_waits_for_rollbacks_in_the_background`). A call that is not part of a transaction is
//!   not kept out by that lock, so the statement checks with the table's gate closed whether a transaction was handed
//!   over meanwhile ([`are_clear_of`](super::rollback_queue::Rollbacks::are_clear_of)) (test:
//!   `a_rollback_that_is_handed_over_is_waited_for`).
//! - A row change that was interrupted, and has some of its entries and not others, belongs to a transaction that is
//!   here (test: `a_check_waits_for_a_rollback_as_long_as_a_call_for_a_lock`), or to one that has failed to roll back
//!   completely, which is noted
//!   ([`may_have_partial_change`](super::rollback_queue::Rollbacks::may_have_partial_change)) (test:
//!   `versions_cut_off_by_a_failed_rollback_are_not_reported_as_damage`).
//! - A rollback that cannot continue, because the disk is full or a page cannot be read, is retried from time to time,
//!   and the others continue meanwhile (test: `a_page_that_cannot_be_read_holds_up_one_rollback_and_nothing_else`).
//!   Closing the database leaves the remaining rollbacks to the next opening (test:
//!   `closing_leaves_the_rest_to_the_next_opening`).

use core::time::Duration;
use std::collections::BTreeMap;

use super::{
    manager::Transactions,
    rollback_queue::{Found, NextTask, PendingRollback, Search},
    running::{RollbackStep, Trx},
    state::{RollbackFrom, Suspended},
};
use crate::{
    error::{Blockers, LockError, Result},
    ids::{SpaceId, TrxId},
    sync::{Arc, InterruptibleWait},
    txn::{
        locks::{LockRequest, LockTimeout, TableMode},
        undo::{position::byte_of, rollback::LOG_BYTES_OF_END},
    },
};

/// The time until a failed step is retried.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The pause of a transaction that has met a quiesced table, or a follower without room.
const REST_PAUSE: Duration = Duration::from_millis(20);
/// The interval at which a wait for a rollback calls other work.
const CALL_INTERVAL: Duration = Duration::from_millis(50);
/// Records that a step undoes.
const RECORDS_PER_STEP: usize = 64;
/// Records that a step of a search examines.
const RECORDS_PER_SEARCH_STEP: usize = 1024;

/// Schedules the search for the records of unfinished transactions that recovery has found, and their rollback, in the
/// steps that follow. Prepared transactions are searched for at once, and then wait for their coordinator.
///
/// # Errors
/// Damage, I/O.
pub(crate) fn schedule_unfinished(transactions: &Transactions) -> Result<()> {
    let mut searches: BTreeMap<u8, Search> = BTreeMap::new();
    for (trx, first) in transactions.active().first_records() {
        let Some(stream) = transactions.streams().of(first) else {
            let what = format!(
                "undo position {} of the unfinished transaction {} is in no undo stream",
                first.0, trx.0
            );
            return Err(transactions.undo_context().system.damaged(&what));
        };
        let at = byte_of(first);
        let search = searches.entry(stream.number()).or_insert_with(|| Search {
            stream: stream.number(),
            at,
            end: stream.end(),
            found: BTreeMap::new(),
            due: Duration::ZERO,
            failed: false,
        });
        search.at = search.at.min(at);
        search.found.insert(trx, Found { name: transactions.active().prepared(trx), ..Found::default() });
    }
    for mut search in searches.into_values() {
        if search.found.values().any(|found| found.name.is_some()) {
            // No other work may come between such a transaction and the locks on its tables.
            while !search_step(transactions, &mut search)? {}
            for (trx, mut found) in search.found.extract_if(.., |_, found| found.name.is_some()) {
                if let Some(name) = found.name.take() {
                    resume_prepared(transactions, trx, &name, &found)?;
                }
            }
        }
        debug_assert!(
            search.found.values().all(|found| found.name.is_none()),
            "a prepared transaction would be rolled back in the background"
        );
        if !search.found.is_empty() {
            transactions.rollbacks().state.lock().searches.push_back(search);
        }
    }
    Ok(())
}

fn resume_prepared(transactions: &Transactions, id: TrxId, name: &Arc<[u8]>, found: &Found) -> Result<()> {
    let lock_owner = transactions
        .active()
        .lock_owner(id, transactions.lock_manager())
        .expect("it is active until it ends");
    for space in &found.touched {
        let wanted = LockRequest::Table(*space, TableMode::IntentionExclusive);
        transactions.lock_manager().acquire(&lock_owner, wanted, LockTimeout::NoWait)?;
    }
    let touched = found.touched.iter().copied();
    let mut state = Suspended::found(transactions.active(), id, found.last, touched, true);
    // A full disk does not keep the database closed: the commit then has to find the space.
    match transactions.log().admit_rollback(LOG_BYTES_OF_END) {
        Ok(reservation) => state.reserved_bytes = reservation.detach_bytes(LOG_BYTES_OF_END),
        Err(error) => {
            tracing::warn!(
                target: "windfall::undo",
                %error, "no log could be reserved for the commit of prepared transaction {id}",
            );
        }
    }
    transactions.prepared().insert_recovered(name, id, state)
}

/// Runs one step of the worker. Returns whether more work can be done at once.
pub(crate) fn rollback_step(transactions: &Transactions) -> bool {
    let now = transactions.now();
    match transactions.rollbacks().next(now) {
        None => return false,
        Some(NextTask::Search(search)) => search_on(transactions, search, now + RETRY_PAUSE),
        Some(NextTask::Transaction(trx, from)) => continue_rollback(transactions, trx, from, now),
    }
    transactions.rollbacks().is_any_due(transactions.now())
}

/// Continues the search at the front; if it fails, it is retried at `again`.
fn search_on(transactions: &Transactions, mut search: Search, again: Duration) {
    let searched = search_step(transactions, &mut search);
    if searched.as_ref().is_ok_and(|is_over| *is_over) {
        let found = search.found.into_iter().map(|(id, Found { last, touched, .. })| {
            PendingRollback::new(Suspended::found(transactions.active(), id, last, touched, false))
        });
        let found: Vec<_> = found.collect();
        let mut state = transactions.rollbacks().state.lock();
        debug_assert!(
            state.searches.front().is_some_and(|front| front.stream == search.stream),
            "the search that the worker continues is the first one"
        );
        state.searches.pop_front();
        state.waiting.extend(found);
        drop(state);
        return transactions.rollbacks().moved.notify();
    }
    search.failed = searched.is_err();
    if let Err(error) = searched {
        tracing::warn!(
            target: "windfall::undo",
            %error, "the records of unfinished transactions cannot be found yet",
        );
        search.due = again;
    }
    let failed = search.failed;
    let mut state = transactions.rollbacks().state.lock();
    debug_assert!(
        state.searches.front().is_some_and(|front| front.stream == search.stream),
        "the progress of a search is noted for another one"
    );
    state.searches[0] = search;
    drop(state);
    if failed {
        transactions.rollbacks().moved.notify();
    }
}

/// Examines the next records. Returns whether the search is complete.
fn search_step(transactions: &Transactions, search: &mut Search) -> Result<bool> {
    let stream = transactions.streams().get(search.stream.into());
    for _ in 0..RECORDS_PER_SEARCH_STEP {
        let next = stream.next_record(search.at)?.filter(|(at, _)| *at < search.end);
        let Some((at, stored)) = next else { return Ok(true) };
        if let Some(found) = search.found.get_mut(&stream.trx_of(at, &stored)?) {
            found.last = Some(stream.undo_pos(at));
            found.touched.insert(stream.decode(at, &stored)?.body.table());
        }
        search.at = stored.next;
    }
    Ok(false)
}

/// Continues the rollback of the transaction at the front.
fn continue_rollback(transactions: &Transactions, trx: Suspended, mut from: RollbackFrom, now: Duration) {
    let (left, done) = Trx::resume(transactions, trx).continue_rollback(&mut from, RECORDS_PER_STEP);
    let mut state = transactions.rollbacks().state.lock();
    // Others were only added after it.
    let waiting = state.waiting.front_mut().expect("it is the first one");
    let id = waiting.id;
    debug_assert!(waiting.trx.is_none(), "a transaction is with the worker, or it waits");
    debug_assert!(
        left.as_ref().is_none_or(|trx| trx.id() == Some(id)),
        "the transaction that the worker rolls back is the first one"
    );
    if left.is_none() {
        state.waiting.pop_front();
        drop(state);
        transactions.rollbacks().moved.notify();
        return tracing::info!(target: "windfall::undo", trx = id.0, "a transaction is rolled back");
    }
    (waiting.trx, waiting.from, waiting.failed) = (left, from, done.is_err());
    match done {
        Ok(RollbackStep::Advanced) => {}
        Ok(RollbackStep::Blocked) => waiting.due = now + REST_PAUSE,
        Err(error) => {
            waiting.due = now + RETRY_PAUSE;
            drop(state);
            tracing::warn!(
                target: "windfall::undo",
                trx = id.0, %error, "a transaction cannot be rolled back yet",
            );
            transactions.rollbacks().moved.notify();
        }
    }
}

/// Waits until no background rollback has changes left in a table, or those that have cannot continue.
///
/// # Errors
/// [`LockError::Interrupted`].
pub fn await_progressing_rollbacks(
    transactions: &Transactions,
    space: SpaceId,
    at_most: Duration,
) -> Result<(), LockError> {
    let env = &transactions.pool().context().env;
    let began = transactions.now();
    let is_over = || !transactions.rollbacks().makes_progress(space);
    let waiting = InterruptibleWait::polled();
    loop {
        let left = at_most.saturating_sub(transactions.now().saturating_sub(began));
        if is_over() || left.is_zero() {
            return Ok(());
        }
        if waiting.is_interrupted() {
            return Err(LockError::Interrupted);
        }
        env.wait_unhindered(&transactions.rollbacks().moved, left.min(CALL_INTERVAL), &mut || is_over());
    }
}

/// Waits until no background rollback has changes left in a table, and calls `between` from time to time: again at once
/// if it returns `true`, because it has more to do.
///
/// # Errors
/// [`LockError`]; errors of `between`.
pub(crate) fn await_rollbacks(
    transactions: &Transactions,
    space: SpaceId,
    at_most: Duration,
    between: &mut dyn FnMut() -> Result<bool>,
) -> Result<()> {
    let env = &transactions.pool().context().env;
    let began = transactions.now();
    let is_clear = || transactions.rollbacks().are_clear_of(space);
    let mut has_more = false;
    loop {
        let left = at_most.saturating_sub(transactions.now().saturating_sub(began));
        if is_clear() || left.is_zero() {
            break;
        }
        let step = if has_more { Duration::ZERO } else { CALL_INTERVAL };
        env.wait_unhindered(&transactions.rollbacks().moved, left.min(step), &mut || is_clear());
        has_more = between()?;
    }
    let blockers = transactions.rollbacks().blockers(space);
    if blockers.is_empty() {
        return Ok(());
    }
    let active = transactions.active();
    let blockers = Blockers::new(blockers.into_iter().map(|trx| (trx, active.tag(trx))));
    Err(match LockTimeout::of(at_most) {
        LockTimeout::NoWait => LockError::Busy(blockers),
        _ => LockError::TimedOut { blockers, waited: transactions.now().saturating_sub(began) },
    }
    .into())
}
