//! The assembled engine: the components of an open database.
//!
//! **Purpose.** Assembles the layers in the order of their dependencies, starts the background workers, and shuts all
//! of it down again. Opening takes the same steps after a crash and after a clean shutdown; a crash only leaves more to
//! replay.
//!
//! **Invariants.** No call is served before every page is up to date with the end of the log (test:
//! `first_runs_crash_at_every_operation`) and every unfinished transaction is active again (checked by
//! `engine/open.rs::open_transactions`), to be rolled back in the background (test:
//! `the_database_is_open_while_unfinished_transactions_are_rolled_back`). Tablespaces that no record names are dropped
//! at that point (test: `a_crash_during_a_load_leaves_all_or_nothing`).

mod files;
mod open;
#[cfg(test)]
pub(crate) mod test_engine;

use core::time::Duration;

pub use open::Orphans;

use crate::{
    buffer::BufferPool,
    catalog::Catalog,
    checkpoint::Checkpointer,
    disk::Disk,
    env::{Env, Next, Worker, WorkerClass},
    error::{Error, Result},
    ids::Lsn,
    log::{DurableCallback, FlushLog, Log, is_in_callback},
    options::check_undo_limit,
    sync::{
        Arc, Event, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU8, Ordering::SeqCst},
        is_inside,
    },
    system::SystemTree,
    tablespace::Deleter,
    tree::hash::HashBudget,
    txn::{Transactions, commit_order::CommitOrder, trx::background_rollback},
};

/// The interval at which the reclaimer looks for dropped tablespaces; a thread that needs a frame does not wait for
/// it.
const RECLAIM_PAUSE: Duration = Duration::from_millis(20);
/// After more than this many failures in a row, threads that wait for the low-water mark, which waits for these
/// records, get the error.
const RECORD_FAILURES: u32 = 100;
/// The interval at which the rollback worker runs without a wakeup: a blocked rollback is tried again.
const ROLLBACK_PAUSE: Duration = Duration::from_millis(200);
/// The interval at which purge runs without a wakeup.
const PURGE_PAUSE: Duration = Duration::from_millis(200);

/// An open database.
#[derive(Debug)]
pub struct Engine {
    /// The database's files.
    pub disk: Arc<dyn Disk>,
    /// The environment: time, waiting, and threads.
    pub env: Arc<dyn Env>,
    /// The redo log.
    pub log: Arc<Log>,
    /// The buffer pool.
    pub pool: Arc<BufferPool>,
    /// The system tree: the records about files, tables and undo.
    pub system: Arc<SystemTree>,
    /// The transactions.
    pub transactions: Arc<Transactions>,
    /// The order of commits that a log of the application follows.
    pub commit_order: CommitOrder,
    /// The tables.
    pub catalog: Arc<Catalog>,
    /// Takes checkpoints.
    pub checkpointer: Arc<Checkpointer>,
    /// Deletes files of dropped tablespaces.
    pub deleter: Arc<Deleter>,
    /// The memory budget of the hash indexes.
    pub hash_budget: Arc<HashBudget>,
    /// Data files that no record named at opening.
    pub orphans: Orphans,
    flush_log: AtomicU8,
    closed: AtomicBool,
    /// The outcome of closing, and the event that is notified then.
    outcome: OnceLock<Result<()>>,
    ended: Event,
    /// Stopped first: the workers that change something.
    stopped_first: Mutex<Vec<Worker>>,
    /// Stopped last: the workers for which the others may wait.
    stopped_last: Mutex<Vec<Worker>>,
    /// Calls the callbacks for durable positions of the log; started with the first of them.
    notifier: Mutex<Option<Worker>>,
}

impl Engine {
    /// Returns when commits become durable.
    #[inline]
    pub fn flush_mode(&self) -> FlushLog {
        FlushLog::try_from(self.flush_log.load(SeqCst)).unwrap_or_default()
    }

    /// Changes when commits become durable, from the next one on.
    pub fn set_flush_log(&self, mode: FlushLog) {
        self.flush_log.store(mode as u8, SeqCst);
    }

    /// Changes the limit of undo on disk, in bytes; `None` removes it.
    ///
    /// # Errors
    /// The limit is less than 1 MiB.
    pub fn set_undo_limit(&self, bytes: Option<u64>) -> Result<()> {
        check_undo_limit(bytes)?;
        self.transactions.undo_limit().set(bytes);
        Ok(())
    }

    /// Waits until the log is durable up to this position, as the mode demands. Does nothing if nothing was logged.
    ///
    /// # Errors
    /// When the log cannot be written; the database has stopped then.
    #[inline]
    pub fn await_log(&self, end: Option<Lsn>, mode: FlushLog) -> Result<()> {
        self.log.await_flush(end, mode)
    }

    /// Registers a callback for the time at which the log is durable up to a position ([`Log::when_durable`]).
    ///
    /// # Errors
    /// The database is closed or has stopped; the system starts no more threads. The callback is then not called.
    pub fn when_durable(&self, lsn: Lsn, callback: DurableCallback) -> Result<()> {
        self.start_notifier()?;
        self.log.when_durable(lsn, callback)
    }

    /// Starts the worker that calls the callbacks, unless it has been started. A concurrent call waits for the outcome,
    /// and tries it, too, if that is an error.
    fn start_notifier(&self) -> Result<()> {
        let mut notifier = self.notifier.lock();
        // Under the mutex: a close that has begun by now may look for the worker no more, and a later one finds it.
        self.check_open()?;
        if notifier.is_none() {
            let (log, health) = (self.log.clone(), &self.pool.context().health);
            let step = health.watch("notifications", Box::new(move || log.notify_step()));
            let wake = self.log.notify_wake();
            *notifier = Some(self.env.spawn("notifications", WorkerClass::Client, wake, step)?);
        }
        Ok(())
    }

    fn stop_notifier(&self) {
        // The end of the worker is not waited for under the mutex: a callback may take it.
        let notifier = self.notifier.lock().take();
        drop(notifier);
    }

    /// Returns the lock timeout of a call.
    #[inline]
    pub fn lock_wait(&self) -> Duration {
        self.transactions.lock_wait()
    }

    /// Refuses work on a closed database.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Poisoned`].
    #[inline]
    pub fn check_open(&self) -> Result<()> {
        if self.closed.load(SeqCst) {
            return Err(Error::Closed);
        }
        self.pool.context().health.check()
    }

    fn spawn_background_workers(&self) -> Result<()> {
        let mut workers = Vec::new();
        let health = &self.pool.context().health;
        let mut spawn = |name, class, wake, step| {
            workers.push(self.env.spawn(name, class, wake, health.watch(name, step))?);
            Ok::<_, Error>(())
        };
        let (pool, deleter) = (self.pool.clone(), self.deleter.clone());
        let (catalog, budget) = (self.catalog.clone(), self.hash_budget.clone());
        let reclaim = move || {
            let frames = pool.reclaim_step(&mut |space| deleter.push(&space));
            let tables = catalog.free_step();
            let hash_indexes = budget.free_step();
            if frames || tables || hash_indexes { Next::Again } else { Next::Idle(RECLAIM_PAUSE) }
        };
        spawn("reclaimer", WorkerClass::Service, Arc::new(Event::new()), Box::new(reclaim))?;
        let deleter = self.deleter.clone();
        let wake = deleter.wake.clone();
        spawn("deleter", WorkerClass::Service, wake, Box::new(move || deleter.step()))?;
        let mut files = files::FileRecords::new(self.pool.clone(), self.system.clone(), self.deleter.clone());
        let (log, mut failures) = (self.log.clone(), 0);
        let record = move || match files.step() {
            Ok(next) => {
                if failures > 0 {
                    failures = 0;
                    log.set_unrecorded(None);
                }
                next
            }
            Err(error) => {
                tracing::warn!(
                    target: "windfall::storage",
                    %error, "the records of data files could not be written yet",
                );
                failures += 1;
                if failures > RECORD_FAILURES {
                    log.set_unrecorded(Some(error));
                }
                Next::Idle(files::RECORD_PAUSE)
            }
        };
        spawn("records", WorkerClass::Recorder, Arc::new(Event::new()), Box::new(record))?;
        let transactions = self.transactions.clone();
        let wake = transactions.purge().wake();
        let purge = move || match transactions
            .streams()
            .create_next_slices()
            .and_then(|()| transactions.purge().step())
        {
            Ok(true) => Next::Again,
            Ok(false) => Next::Idle(PURGE_PAUSE),
            Err(error) => {
                tracing::warn!(target: "windfall::undo", %error, "purge could not continue");
                Next::Idle(PURGE_PAUSE)
            }
        };
        spawn("purge", WorkerClass::Client, wake, Box::new(purge))?;
        let transactions = self.transactions.clone();
        let wake = transactions.rollbacks().wake();
        let at_end = health.clone();
        let rollback = move || {
            // The holder of a lock may never end its transaction now. The thread that stops the database may hold any
            // latch, so it does not wake lock waiters itself.
            if at_end.is_poisoned() {
                transactions.end_lock_waits();
                return Next::Idle(ROLLBACK_PAUSE);
            }
            if background_rollback::rollback_step(&transactions) {
                Next::Again
            } else {
                Next::Idle(ROLLBACK_PAUSE)
            }
        };
        spawn("rollback", WorkerClass::Client, wake, Box::new(rollback))?;
        *self.stopped_first.lock() = workers;
        Ok(())
    }

    /// Writes everything, marks the database as shut down cleanly and stops the workers. Later and concurrent calls
    /// wait for the same outcome.
    ///
    /// # Errors
    /// An error of a page write or of the log; changes that reached no data file are in the log. A second call from
    /// within a row call or a callback, which the first one may be waiting for.
    pub fn close(&self) -> Result<()> {
        if self.closed.swap(true, SeqCst) {
            let ended = || self.outcome.get().is_some();
            if !ended() && (is_inside() || is_in_callback()) {
                return Err(Error::Closed);
            }
            self.env.wait(&self.ended, &mut || ended());
            return self.outcome.get().cloned().unwrap_or(Err(Error::Closed));
        }
        let outcome = CloseOutcome(self);
        let result = self.stop();
        if result.is_ok() {
            tracing::info!(target: "windfall::engine", "the database is closed");
        }
        let is_first = self.outcome.set(result.clone()).is_ok();
        debug_assert!(is_first, "closing has one outcome");
        drop(outcome);
        result
    }

    fn stop(&self) -> Result<()> {
        // Threads that wait for purge, or for a lock, would never be woken.
        self.transactions.undo_limit().set(None);
        self.transactions.end_lock_waits();
        let mut workers = core::mem::take(&mut *self.stopped_first.lock());
        // The last one first: purge waits for room in the log, which may depend on the worker for file records.
        while let Some(worker) = workers.pop() {
            drop(worker);
        }
        let result = self.shut();
        let workers = core::mem::take(&mut *self.stopped_last.lock());
        drop(workers);
        self.stop_notifier();
        self.log.end_notifications();
        // Calls still in progress end here: another process may open the database now.
        self.pool.context().health.close();
        self.pool.quiesce();
        self.log.quiesce();
        self.disk.release();
        result
    }

    fn shut(&self) -> Result<()> {
        self.pool.context().health.check()?;
        self.catalog.close_counters();
        self.catalog.write_row_counts();
        let flushed = self.pool.flush_all();
        // The log must have every change that has reached no data file, also those that no commit has waited for.
        self.log.finish()?;
        flushed?;
        self.checkpointer.checkpoint(true)?;
        self.log.tidy();
        Ok(())
    }
}

/// Wakes the threads that wait for the outcome of closing, even if closing panics.
struct CloseOutcome<'a>(&'a Engine);

impl Drop for CloseOutcome<'_> {
    fn drop(&mut self) {
        self.0.outcome.get_or_init(|| Err(Error::Closed));
        self.0.ended.notify();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::warn!(
                target: "windfall::engine",
                %error, "the database was not shut down cleanly: the next opening recovers it",
            );
        }
    }
}
