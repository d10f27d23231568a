//! Callbacks of the application for positions of the log that become durable.
//!
//! **Purpose.** A replication or backup thread must know when a commit is durable, and must not wait for each one. It
//! registers a callback with the position ([`Log::when_durable`]), and the worker that runs [`Log::notify_step`] calls
//! it after the log has become durable up to there. `MariaDB` asks its engines for this (`commit_checkpoint_request`).
//!
//! **Invariants.** A callback is called at most once (by type), and not without an outcome: with success only after its
//! position has become durable, otherwise with the reason why it will not ([`Log::end_notifications`]) (tests:
//! `callbacks_are_called_once_in_the_order_of_their_positions`, `callbacks_of_a_stopped_database_get_its_error`,
//! `the_end_of_the_database_calls_every_callback_and_takes_no_more`). Of the callbacks that are due, the one with the
//! lowest position is called first (test: `callbacks_are_called_once_in_the_order_of_their_positions`), and the next
//! one only when it has returned, even if it closes the database (test: `a_callback_may_close_the_database`). No mutex
//! or latch is held while a callback runs, so it may use the database (test: `a_callback_may_use_the_database`). The
//! thread that makes the log durable calls none; it wakes the worker (test:
//! `callbacks_are_called_once_in_the_order_of_their_positions`).
//!
//! No callback is missed: a registration publishes its position in `first` before it reads the durable position, and
//! the leader of a sync publishes the durable position before it reads `first`, so one of the two sees the other and
//! wakes the worker (test: `a_callback_is_not_missed_by_a_concurrent_sync`).

use core::{cell::Cell, fmt, time::Duration};
use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
};

use super::Log;
use crate::{
    env::Next,
    error::{Error, Result},
    ids::Lsn,
    sync::{
        Arc, Event, Mutex, Rank,
        atomic::{AtomicU64, Ordering::SeqCst},
        thread, thread_local,
    },
};

thread_local! {
    /// The number of callbacks that this thread is in, over all databases: one may close another database, and so call
    /// those of that one.
    static CALLBACKS: Cell<usize> = const { Cell::new(0) };
}

/// The interval at which the worker runs without a wakeup, to see that the database has stopped.
const NOTIFY_PAUSE: Duration = Duration::from_secs(1);

/// Is called when the log is durable up to a position, or with the reason why it will not become so.
pub type DurableCallback = Box<dyn FnOnce(Result<()>) + Send>;

/// Returns whether this thread is in a callback, of any database.
pub(crate) fn is_in_callback() -> bool {
    CALLBACKS.get() > 0
}

/// The callbacks that wait.
pub(super) struct Notifications {
    waiting: Mutex<Waiting>,
    /// The lowest position of a callback that waits; the maximum if there is none. Changes under the mutex.
    first: AtomicU64,
    wake: Arc<Event>,
}

#[derive(Default)]
struct Waiting {
    /// By position, then in the order of registration.
    callbacks: BTreeMap<(Lsn, u64), DurableCallback>,
    registered: u64,
    /// No callback is accepted any more.
    has_ended: bool,
    /// The thread that is in a callback.
    caller: Option<usize>,
}

impl Default for Notifications {
    fn default() -> Self {
        let waiting = Mutex::new(Rank::Leaf, Waiting::default());
        Self { waiting, first: AtomicU64::new(u64::MAX), wake: Arc::new(Event::new()) }
    }
}

impl fmt::Debug for Notifications {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notifications").field("first", &self.first).finish_non_exhaustive()
    }
}

impl Notifications {
    fn register(&self, lsn: Lsn, callback: DurableCallback) -> Result<()> {
        let mut waiting = self.waiting.lock();
        if waiting.has_ended {
            return Err(Error::Closed);
        }
        waiting.registered += 1;
        let number = waiting.registered;
        waiting.callbacks.insert((lsn, number), callback);
        self.publish(&waiting);
        Ok(())
    }

    fn publish(&self, waiting: &Waiting) {
        let first = waiting.callbacks.first_key_value().map_or(u64::MAX, |((lsn, _), _)| lsn.0);
        self.first.store(first, SeqCst);
    }

    /// Returns whether a callback waits for this position or a lower one.
    pub(super) fn is_due(&self, durable: Lsn) -> bool {
        self.first.load(SeqCst) <= durable.0
    }

    /// Wakes the worker if a callback is due.
    pub(super) fn wake_if_due(&self, durable: Lsn) {
        if self.is_due(durable) {
            self.wake.notify();
        }
    }

    /// Takes the first callback, and begins to call it, if it is due: its position is durable, or it is not and none
    /// will become so.
    fn begin_call(&self, durable: Lsn, is_stopped: bool) -> Option<(Lsn, DurableCallback)> {
        let mut waiting = self.waiting.lock();
        let is_over = is_stopped || waiting.has_ended;
        let first = waiting.callbacks.first_entry()?;
        let (lsn, _) = *first.key();
        if lsn > durable && !is_over {
            return None;
        }
        let callback = first.remove();
        self.publish(&waiting);
        debug_assert!(waiting.caller.is_none(), "a callback is called while another one runs");
        waiting.caller = Some(thread::number());
        Some((lsn, callback))
    }

    /// Notes that a callback has returned. Returns whether no callback is accepted any more.
    fn end_call(&self) -> bool {
        let mut waiting = self.waiting.lock();
        waiting.caller = None;
        waiting.has_ended
    }

    /// Accepts no callback any more. Returns whether this thread is in a callback: its caller calls those that wait.
    fn end(&self) -> bool {
        let mut waiting = self.waiting.lock();
        waiting.has_ended = true;
        waiting.caller == Some(thread::number())
    }
}

impl Log {
    /// Registers a callback for the time at which the log is durable up to a position; if it is already, the worker
    /// calls it at once. It is called by a background worker, which runs no other callback meanwhile. This does not ask
    /// for a sync: the log becomes durable with the next commit that needs it, or within about a second.
    ///
    /// # Errors
    /// The database is being closed. The callback is then not called.
    pub fn when_durable(&self, lsn: Lsn, callback: DurableCallback) -> Result<()> {
        self.notifications.register(lsn, callback)?;
        self.notifications.wake_if_due(self.durable());
        Ok(())
    }

    /// Returns the event that wakes the worker which runs [`Log::notify_step`].
    pub fn notify_wake(&self) -> Arc<Event> {
        self.notifications.wake.clone()
    }

    /// Calls the first callback that is due, if any. If the database has stopped, each one is, and gets its error.
    pub fn notify_step(&self) -> Next {
        match self.call_next() {
            None => return Next::Idle(NOTIFY_PAUSE),
            Some(has_ended) if has_ended => self.call_all(),
            Some(_) => {}
        }
        Next::Again
    }

    /// Calls the callbacks that still wait, after the last sync of a database that is being closed: those whose
    /// positions are not durable get an error. No callback is accepted afterwards. If this thread is in a callback,
    /// the others are called when it has returned.
    pub fn end_notifications(&self) {
        if !self.notifications.end() {
            self.call_all();
        }
    }

    fn call_all(&self) {
        while self.call_next().is_some() {}
    }

    /// Calls the first callback that is due. Returns whether no callback is accepted any more; `None` if none was due.
    fn call_next(&self) -> Option<bool> {
        let is_stopped = self.health.is_poisoned();
        let durable = self.durable();
        let (lsn, callback) = self.notifications.begin_call(durable, is_stopped)?;
        let outcome = if lsn <= durable { Ok(()) } else { self.health.check().and(Err(Error::Closed)) };
        CALLBACKS.set(CALLBACKS.get() + 1);
        // A panic of the application's code is not one of the database.
        if catch_unwind(AssertUnwindSafe(|| callback(outcome))).is_err() {
            tracing::error!(
                target: "windfall::log",
                "a callback for a durable position of the log has panicked",
            );
        }
        CALLBACKS.set(CALLBACKS.get() - 1);
        Some(self.notifications.end_call())
    }
}
