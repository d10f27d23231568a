//! How DDL statements wait, what ends their waits, and when they are durable.
//!
//! **Purpose.** A handle of a database has its own timeout, interrupt and durability for the statements that are made
//! with it.
//!
//! **Invariants.** Every DDL statement is run by [`Database::statement`] (test:
//! `an_interrupt_ends_the_waits_of_every_statement`), or in the name of a transaction by [`Database::statement_in`]
//! (test: `a_statement_in_the_name_of_a_transaction_is_interrupted`).

use core::time::Duration;

use super::Database;
use crate::{
    catalog::{Catalog, DdlOptions},
    engine::Engine,
    error::Result,
    interrupt::InterruptHandle,
    log::FlushLog,
    scope::Scope,
    sync::{Arc, Interruptible},
    txn::locks::LockOwner,
};

/// What a handle sets for its DDL statements.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StatementOptions {
    /// How long they wait, if [`Database::with_ddl_timeout`] has set it.
    pub(crate) wait: Option<Duration>,
    /// When they are durable, if [`Database::with_ddl_flush`] has set it.
    pub(crate) flush: Option<FlushLog>,
}

impl StatementOptions {
    /// Returns the options of a statement that begins now.
    pub(crate) fn begin(self, engine: &Engine) -> DdlOptions {
        DdlOptions {
            flush: self.flush.unwrap_or_else(|| engine.flush_mode()),
            until: self.wait.map(|at_most| engine.env.now().saturating_add(at_most)),
        }
    }
}

impl Database {
    /// Returns a handle of the same database with DDL statements that wait at most this long for transactions and other
    /// DDL statements that use their tables. With zero they are refused at once. (`WAIT n` and `NOWAIT` of `MariaDB`'s
    /// DDL.) For row calls in progress a statement waits at least 0.1 s, as nearly all of them are shorter. By default
    /// a statement waits for transactions up to [`Options::lock_wait_timeout`], and for another statement and for calls
    /// without a limit.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-wait-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use std::time::Duration;
    /// use windfall::{TableOptions, TransactionOptions, error::{Error, LockError}};
    ///
    /// let towns = db.create_table("towns", TableOptions::default())?;
    /// let trx = db.begin(TransactionOptions::default());
    /// trx.table(&towns).insert(b"Basel", b"177595")?;
    /// let refused = db.with_ddl_timeout(Duration::ZERO).drop_table("towns").unwrap_err();
    /// assert!(matches!(refused, Error::Lock(LockError::Busy(_))));
    /// trx.commit()?;
    /// db.drop_table("towns")?;
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`Options::lock_wait_timeout`]: crate::Options::lock_wait_timeout
    #[must_use]
    pub fn with_ddl_timeout(&self, at_most: Duration) -> Self {
        let options = StatementOptions { wait: Some(at_most), ..self.statement_options };
        Self { statement_options: options, ..self.clone() }
    }

    /// Returns a handle of the same database with DDL statements that are durable as this mode says, whatever
    /// `flush_log_at_trx_commit` is. With [`FlushLog::Lazy`] many statements, such as one for each partition of a
    /// table, cost one sync: that of [`Database::flush_log`] after the last, or of the next commit that is synced. A
    /// crash before it undoes the last of them, each as a whole. With [`FlushLog::Sync`] a statement is durable when it
    /// returns, also where commits are not.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-flush-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{FlushLog, TableOptions};
    ///
    /// let lazily = db.with_ddl_flush(FlushLog::Lazy);
    /// for n in 0..10 {
    ///     lazily.create_table(&format!("orders#p{n}"), TableOptions::default())?;
    /// }
    /// db.flush_log()?; // all of them
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_ddl_flush(&self, mode: FlushLog) -> Self {
        let options = StatementOptions { flush: Some(mode), ..self.statement_options };
        Self { statement_options: options, ..self.clone() }
    }

    /// Returns a handle of the same database whose DDL statements and checks, and the transactions that it begins, are
    /// interrupted by this handle: one for each session of a server, for instance. So are the loads and alterations of
    /// the temporary tables that it creates.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-interrupt-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// use windfall::{InterruptHandle, TableOptions, TransactionOptions, error::{Error, LockError}};
    ///
    /// let towns = db.create_table("towns", TableOptions::default())?;
    /// let trx = db.begin(TransactionOptions::default());
    /// trx.table(&towns).insert(b"Basel", b"177595")?;
    /// let kill = InterruptHandle::new();
    /// let session = db.with_interrupt(&kill);
    /// kill.interrupt(); // from any thread, while the statement waits, too
    /// let refused = session.drop_table("towns").unwrap_err();
    /// assert!(matches!(refused, Error::Lock(LockError::Interrupted)));
    /// kill.clear();
    /// trx.commit()?;
    /// session.drop_table("towns")?;
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_interrupt(&self, interrupt: &InterruptHandle) -> Self {
        Self { interrupt: Some(interrupt.clone()), ..self.clone() }
    }

    /// Makes the calls of this thread those that the interrupt of this handle ends, if it has one, until the guard is
    /// dropped.
    pub(crate) fn interruptible(&self) -> Option<Interruptible> {
        self.interrupt.as_ref().map(InterruptHandle::enter)
    }

    /// Runs a DDL statement, with the options of one that begins now.
    pub(crate) fn statement<T>(&self, run: impl FnOnce(&Catalog, DdlOptions) -> Result<T>) -> Result<T> {
        let _interruptible = self.interruptible();
        run(&self.engine.catalog, self.statement_options.begin(&self.engine))
    }

    /// Runs a DDL statement in the name of a transaction, which gets the lock owner of that.
    pub(crate) fn statement_in<T>(
        &self,
        scope: &Scope,
        run: impl FnOnce(&Catalog, &Arc<LockOwner>, DdlOptions) -> Result<T>,
    ) -> Result<T> {
        // If the transaction has an interrupt of its own, that applies.
        let _interruptible = self.interruptible();
        scope.run_statement(self.statement_options, run)
    }
}
