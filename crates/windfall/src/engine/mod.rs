//! The assembled engine: what an open database consists of.
//!
//! **Purpose.** Puts the floors together in the order in which they can stand, starts the background workers, and
//! takes all of it down again.
//!
//! **Invariants.** Opening is the same after a crash and after a clean shutdown; a crash only leaves more to replay.
//! Nothing is served before every page is at the end of the log and every unfinished transaction is active again, to be
//! rolled back in the background. What no record names is dropped then.
//!
//! **May touch.** All floors below.

mod files;
mod open;

use core::time::Duration;

pub use open::Leftovers;

use crate::{
    buffer::BufferPool,
    catalog::Catalog,
    checkpoint::Checkpointer,
    disk::Disk,
    env::{Env, Kind, Next, Worker},
    error::{Error, Result},
    ids::Lsn,
    log::{FlushLog, Log},
    sync::{
        Arc, Event, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU8, Ordering::SeqCst},
        is_inside,
    },
    system::SystemTree,
    tablespace::Deleter,
    transaction::Transactions,
    tree::hash::HashBudget,
};

/// How often the reclaimer looks for dropped tablespaces; who needs a frame does not wait for it.
const RECLAIM_PAUSE: Duration = Duration::from_millis(20);
/// How often the keeper of file records looks: the log's floor waits for it.
const RECORD_PAUSE: Duration = Duration::from_millis(10);
/// After so many failures in a row nobody waits any more for what these records hold up.
const RECORD_FAILURES: u32 = 100;
/// How often rollbacks look when nobody wakes them: what could not go on is tried again.
const ROLLBACK_PAUSE: Duration = Duration::from_millis(200);
/// How often purge looks when nobody wakes it.
const PURGE_PAUSE: Duration = Duration::from_millis(200);

/// An open database.
#[derive(Debug)]
pub struct Engine {
    /// The files.
    pub disk: Arc<dyn Disk>,
    /// Time and waiting.
    pub env: Arc<dyn Env>,
    /// The redo log.
    pub log: Arc<Log>,
    /// The pages.
    pub pool: Arc<BufferPool>,
    /// What the database knows of itself.
    pub system: Arc<SystemTree>,
    /// Transactions.
    pub transactions: Arc<Transactions>,
    /// Tables.
    pub catalog: Arc<Catalog>,
    /// Checkpoints.
    pub checkpointer: Arc<Checkpointer>,
    /// Files on their way out.
    pub deleter: Arc<Deleter>,
    /// The memory of the hash indexes.
    pub hash_budget: Arc<HashBudget>,
    /// What opening has found without a name.
    pub leftovers: Leftovers,
    flush_log: AtomicU8,
    closed: AtomicBool,
    /// How closing ended, and who is told then.
    outcome: OnceLock<Result<()>>,
    ended: Event,
    /// Stopped first: the workers that change something.
    changers: Mutex<Vec<Worker>>,
    /// Stopped last: those that the others may wait for.
    servers: Mutex<Vec<Worker>>,
}

impl Engine {
    /// When commits are durable.
    pub fn flush_log(&self) -> FlushLog {
        FlushLog::try_from(self.flush_log.load(SeqCst)).unwrap_or_default()
    }

    /// Changes when commits are durable, from the next one on.
    pub fn set_flush_log(&self, mode: FlushLog) {
        self.flush_log.store(mode as u8, SeqCst);
    }

    /// Waits until the log is as durable as asked for up to this position; for nothing at [`Lsn::ZERO`], where nothing
    /// was logged.
    ///
    /// # Errors
    /// When the log cannot be written; the database has stopped then.
    pub fn await_log(&self, end: Lsn, mode: FlushLog) -> Result<()> {
        if end > Lsn::ZERO { self.log.commit(end, mode) } else { Ok(()) }
    }

    /// How long a call waits for a lock.
    pub fn lock_wait(&self) -> Duration {
        self.transactions.lock_wait()
    }

    /// Refuses work on a closed database.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Poisoned`].
    pub fn check_open(&self) -> Result<()> {
        if self.closed.load(SeqCst) {
            return Err(Error::Closed);
        }
        self.pool.ground().health.check()
    }

    fn spawn_changers(&self) -> Result<()> {
        let mut changers = Vec::new();
        let health = &self.pool.ground().health;
        let mut spawn = |name, kind, wake, step| {
            changers.push(self.env.spawn(name, kind, wake, health.watch(name, step))?);
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
        spawn("reclaimer", Kind::Service, Arc::new(Event::new()), Box::new(reclaim))?;
        let deleter = self.deleter.clone();
        let wake = deleter.wake.clone();
        spawn("deleter", Kind::Service, wake, Box::new(move || deleter.step()))?;
        let mut files = files::FileRecords::new(self.pool.clone(), self.system.clone(), self.deleter.clone());
        let (log, mut failures) = (self.log.clone(), 0);
        let record = move || match files.step() {
            Ok(more) => {
                if failures > 0 {
                    failures = 0;
                    log.set_unrecorded(None);
                }
                if more { Next::Again } else { Next::Idle(RECORD_PAUSE) }
            }
            Err(error) => {
                tracing::warn!(%error, "the records of data files could not be written yet");
                failures += 1;
                if failures > RECORD_FAILURES {
                    log.set_unrecorded(Some(error));
                }
                Next::Idle(RECORD_PAUSE)
            }
        };
        spawn("records", Kind::Recorder, Arc::new(Event::new()), Box::new(record))?;
        let transactions = self.transactions.clone();
        let wake = transactions.purge_wake();
        let purge = move || match transactions.streams().make_ahead().and_then(|()| transactions.purge_step())
        {
            Ok(true) => Next::Again,
            Ok(false) => Next::Idle(PURGE_PAUSE),
            Err(error) => {
                tracing::warn!(%error, "purge could not go on");
                Next::Idle(PURGE_PAUSE)
            }
        };
        spawn("purge", Kind::Tenant, wake, Box::new(purge))?;
        let transactions = self.transactions.clone();
        let wake = transactions.rollbacks().wake();
        let at_end = health.clone();
        let roll_back = move || {
            // Who holds a lock may never end his transaction now. Whoever stops the database holds anything, and tells
            // nobody who waits for a lock himself.
            if at_end.is_poisoned() {
                transactions.end_lock_waits();
                return Next::Idle(ROLLBACK_PAUSE);
            }
            if transactions.rollback_step() { Next::Again } else { Next::Idle(ROLLBACK_PAUSE) }
        };
        spawn("rollback", Kind::Tenant, wake, Box::new(roll_back))?;
        *self.changers.lock() = changers;
        Ok(())
    }

    /// Writes everything, marks the database as shut down cleanly and stops the workers. Whoever calls it later, or
    /// meanwhile, waits for the same outcome.
    ///
    /// # Errors
    /// What could not be written; the log has it then. A second call from within a row call, which the first one may be
    /// waiting for.
    pub fn close(&self) -> Result<()> {
        if self.closed.swap(true, SeqCst) {
            let ended = || self.outcome.get().is_some();
            if !ended() && is_inside() {
                return Err(Error::Closed);
            }
            self.env.wait(&self.ended, &mut || ended());
            return self.outcome.get().cloned().unwrap_or(Err(Error::Closed));
        }
        let told = Told(self);
        let result = self.stop();
        let _ = self.outcome.set(result.clone());
        drop(told);
        result
    }

    fn stop(&self) -> Result<()> {
        // Who waits for purge, or for a lock, would wait in vain.
        self.transactions.set_undo_limit(None);
        self.transactions.end_lock_waits();
        let mut changers = core::mem::take(&mut *self.changers.lock());
        // The last first: purge waits for room in the log, which may take the keeper of file records to make.
        while let Some(changer) = changers.pop() {
            drop(changer);
        }
        let result = self.shut();
        let servers = core::mem::take(&mut *self.servers.lock());
        drop(servers);
        // Calls that are still under way end here: another process may open the database now.
        self.pool.ground().health.close();
        self.pool.quiesce();
        self.log.quiesce();
        self.disk.release();
        result
    }

    fn shut(&self) -> Result<()> {
        self.pool.ground().health.check()?;
        self.catalog.settle_numbers();
        self.pool.flush_all()?;
        self.log.finish()?;
        self.checkpointer.checkpoint(true)?;
        self.log.tidy();
        Ok(())
    }
}

/// Tells those who wait for the outcome of closing, also of one that panics.
struct Told<'a>(&'a Engine);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.0.outcome.get_or_init(|| Err(Error::Closed));
        self.0.ended.notify();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::warn!(%error, "the database was not shut down cleanly: the next opening recovers it");
        }
    }
}
