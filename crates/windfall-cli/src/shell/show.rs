//! The display of locks and transactions.
//!
//! **Purpose.** `transactions`, `views`, `locks`, `waits`, `deadlock`, `prepared` and `status`, as the library reports
//! them, with the sessions' names.
//!
//! **Invariants.** Nothing here waits for a lock: the output is available even if every session is blocked (test:
//! `a_waiting_session_continues_after_the_commit_of_another`).

use std::time::Duration;

use serde_json::{Value, json};
use windfall::{Deadlock, Lock, TransactionInfo, TransactionState, ViewInfo, error::Blockers, ids::TrxId};
use windfall_measure::units;

use super::answer::Answer;
use crate::{
    engine::Database,
    output::{self, Grid},
};

/// A function that returns the name of a transaction's session, if it belongs to one.
pub(super) type Names<'a> = &'a dyn Fn(TrxId) -> Option<String>;

/// Returns all granted locks.
pub(super) fn locks(db: &Database, names: Names<'_>) -> Answer {
    let mut grid = Grid::new([">transaction", "session", "lock"]);
    let mut list = Vec::new();
    for held in db.locks() {
        let name = names(held.trx);
        grid.line([held.trx.to_string(), dash(name.as_deref()), held.lock.to_string()]);
        list.push(json!({ "transaction": held.trx.0, "session": name, "lock": held.lock.to_string() }));
    }
    Answer::list("locks", "no locks", &grid, list)
}

/// Returns all lock waits.
pub(super) fn waits(db: &Database, names: Names<'_>) -> Answer {
    let mut grid = Grid::new([">transaction", "session", "waits for", "lock"]);
    let mut list = Vec::new();
    for waiting in db.lock_waits() {
        let name = names(waiting.trx);
        grid.line([
            waiting.trx.to_string(),
            dash(name.as_deref()),
            waiting.blockers.to_string(),
            waiting.lock.to_string(),
        ]);
        list.push(json!({
            "transaction": waiting.trx.0,
            "session": name,
            "waits_for": ids(&waiting.blockers),
            "lock": waiting.lock.to_string(),
        }));
    }
    Answer::list("waits", "no transaction waits", &grid, list)
}

/// Returns the most recent deadlock.
pub(super) fn deadlock(db: &Database) -> Answer {
    let Some(Deadlock { cycle, .. }) = db.last_deadlock() else {
        return Answer::message("there was no deadlock", json!({ "deadlock": null }));
    };
    let mut lines = Vec::new();
    let mut list = Vec::new();
    for (at, blocked) in cycle.iter().enumerate() {
        let next = cycle[(at + 1) % cycle.len()].trx;
        let held = blocked
            .held
            .as_ref()
            .map_or_else(|| "was ahead of it in the lock queue".into(), |l| format!("held {l}"));
        lines.push(format!(
            "transaction {} waited for transaction {next}: {}\n  it {held}; its weight in rows and locks: {}",
            blocked.trx,
            blocked.wanted,
            units::count(blocked.weight),
        ));
        list.push(json!({
            "transaction": blocked.trx.0,
            "waited_for": next.0,
            "wanted": blocked.wanted.to_string(),
            "held": blocked.held.as_ref().map(Lock::to_string),
            "rows_and_locks": blocked.weight,
        }));
    }
    let victim = cycle.first().map(|blocked| blocked.trx);
    lines.extend(victim.map(|trx| format!("transaction {trx} was rolled back")));
    Answer::message(lines.join("\n"), json!({ "deadlock": list, "gave_way": victim.map(|trx| trx.0) }))
}

/// Returns the prepared transactions.
pub(super) fn prepared(db: &Database) -> Answer {
    let mut grid = Grid::new(["name", ">transaction"]);
    let mut list = Vec::new();
    for prepared in db.prepared() {
        grid.line([output::text(&prepared.xid), prepared.id.to_string()]);
        list.push(json!({ "name": output::value(&prepared.xid), "transaction": prepared.id.0 }));
    }
    Answer::list("prepared", "no prepared transactions", &grid, list)
}

/// Returns the transactions that have changed or locked something.
pub(super) fn transactions(db: &Database, names: Names<'_>) -> Answer {
    let mut grid = Grid::new([">transaction", "session", ">age", "state", "changes"]);
    let mut list = Vec::new();
    for TransactionInfo { id, age, has_changes, state, .. } in db.transactions() {
        let (state, xid) = match state {
            TransactionState::Prepared(xid) => ("prepared", Some(xid)),
            TransactionState::RollingBack => ("rolling back", None),
            _ => ("open", None),
        };
        let shown = xid.as_ref().map_or_else(|| state.into(), |xid| format!("{state} {}", output::text(xid)));
        let name = names(id);
        let changes = if has_changes { "yes" } else { "no" };
        grid.line([id.to_string(), dash(name.as_deref()), lasted(age), shown, changes.into()]);
        list.push(json!({
            "transaction": id.0,
            "session": name,
            "age_s": age.as_secs_f64(),
            "state": state,
            "name": xid.map(|xid| output::value(&xid)),
            "changes": has_changes,
        }));
    }
    Answer::list("transactions", "no transaction has changed or locked anything", &grid, list)
}

/// Returns the read views.
pub(super) fn views(db: &Database) -> Answer {
    let mut grid = Grid::new([">age", ">transactions since"]);
    let mut list = Vec::new();
    for ViewInfo { age, ids_since } in db.views() {
        grid.line([lasted(age), units::count(ids_since)]);
        list.push(json!({ "age_s": age.as_secs_f64(), "transactions_since": ids_since }));
    }
    Answer::list("views", "no transaction reads from a snapshot", &grid, list)
}

fn lasted(age: Duration) -> String {
    units::time(age.as_nanos() as f64)
}

/// Returns the database's metrics of transactions and locks.
pub(super) fn status(db: &Database) -> Answer {
    let metrics = db.metrics();
    let micros = |n: u64| units::time(n as f64 * 1e3);
    let lines = [
        ("active_transactions", metrics.active_transactions, units::count as fn(u64) -> String),
        ("rollbacks_pending", metrics.rollbacks_pending, units::count),
        ("locks_held", metrics.locks_held, units::count),
        ("lock_waiting", metrics.lock_waiting, units::count),
        ("lock_waits", metrics.lock_waits, units::count),
        ("lock_wait_time", metrics.lock_wait_time, micros),
        ("lock_longest_wait", metrics.lock_longest_wait, micros),
        ("lock_timeouts", metrics.lock_timeouts, units::count),
        ("deadlocks", metrics.deadlocks, units::count),
        ("undo_slices", metrics.undo_slices, units::count),
        ("undo_waits", metrics.undo_waits, units::count),
        ("views_ended", metrics.views_ended, units::count),
    ];
    let mut grid = Grid::new(["metric", ">value"]);
    for (name, value, shown) in lines {
        grid.line([name.to_owned(), shown(value)]);
    }
    let object = lines.iter().map(|(name, value, _)| ((*name).to_owned(), Value::from(*value)));
    Answer::message(grid.text(), json!({ "status": Value::Object(object.collect()) }))
}

/// Returns the numbers of the transactions that block a wait.
pub(super) fn ids(blockers: &Blockers) -> Vec<u64> {
    blockers.ids().iter().map(|trx| trx.0).collect()
}

/// Returns the name, or the dash of an empty cell in a grid.
pub(super) fn dash(name: Option<&str>) -> String {
    name.unwrap_or("-").to_owned()
}
