//! Options for opening a database.
//!
//! **Purpose.** The options, their defaults, and the check of their values.
//!
//! **Invariants.** A value out of range is an error that names the option, before a database is created (test:
//! `options_that_cannot_be`). Options derived from a budget are in range, whatever the budget is (test:
//! `options_for_any_memory_are_accepted`).

use core::time::Duration;

use crate::{
    error::{Result, UsageError},
    log::{FlushLog, LogOptions},
    page,
    sync::Arc,
    txn::{
        ExtractedEntries, Extractors, LOCK_WAIT, UndoLimitAction,
        locks::{LockWaitObserver, SharedObserver},
    },
};

/// Pages for which the log buffer must have room. The longest group (the records of one mini-transaction) is a quarter
/// of the buffer, and a structure change of a tree may write two pages and the positions of their entries.
const PAGES_IN_LOG_BUFFER: usize = 16;

/// The memory that [`Options::small`] is made for, in bytes; smaller budgets count as this one.
const SMALL_MEMORY: u64 = 8 << 20;

/// Options of a database. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub(crate) create_if_missing: bool,
    pub(crate) buffer_pool_size: u64,
    pub(crate) buffer_pool_max_size: Option<u64>,
    pub(crate) page_size: Option<usize>,
    pub(crate) log_size: u64,
    pub(crate) log_buffer_size: usize,
    pub(crate) flush_log_at_trx_commit: FlushLog,
    pub(crate) lock_wait_timeout: Duration,
    pub(crate) lock_wait_observer: Option<SharedObserver>,
    pub(crate) extractors: Extractors,
    pub(crate) undo_limit: Option<u64>,
    pub(crate) undo_limit_action: UndoLimitAction,
    pub(crate) hash_index: bool,
    pub(crate) hash_index_memory: Option<u64>,
    pub(crate) open_files: usize,
    pub(crate) io_threads: usize,
    pub(crate) direct_io: bool,
}

/// Refuses a limit on undo that is too small to work with.
pub(crate) fn check_undo_limit(limit: Option<u64>) -> Result<()> {
    match limit {
        Some(bytes) if bytes < 1 << 20 => {
            let what = format!("{bytes} bytes are too few: give it at least 1 MiB, or no limit").into();
            Err(UsageError::Option { name: "undo_limit", what }.into())
        }
        _ => Ok(()),
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            create_if_missing: true,
            buffer_pool_size: 128 << 20,
            buffer_pool_max_size: None,
            page_size: None,
            log_size: 1 << 30,
            log_buffer_size: 16 << 20,
            flush_log_at_trx_commit: FlushLog::Sync,
            lock_wait_timeout: LOCK_WAIT,
            lock_wait_observer: None,
            extractors: Extractors::default(),
            undo_limit: None,
            undo_limit_action: UndoLimitAction::default(),
            hash_index: false,
            hash_index_memory: None,
            open_files: 400,
            io_threads: 8,
            direct_io: true,
        }
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $kind:ty => $value:expr;)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(mut self, $name: $kind) -> Self {
            self.$name = $value;
            self
        }
    )*};
}

impl Options {
    setters! {
        /// Whether a database is created if there is none. Default: yes.
        create_if_missing: bool => create_if_missing;
        /// The buffer pool's size in bytes. Default: 128 MiB.
        buffer_pool_size: u64 => buffer_pool_size;
        /// The size in bytes up to which the pool may grow while the database is open; it costs address space only.
        /// Default: four times the size of the pool.
        buffer_pool_max_size: u64 => Some(buffer_pool_max_size);
        /// The page size of a new database in bytes: 4, 8, 16, 32 or 64 KiB. Default: 16 KiB. An existing database
        /// keeps its own; asking for another one is an error.
        page_size: usize => Some(page_size);
        /// The redo log's size in bytes, which bounds how much a recovery must replay; at least 1 MiB. Default: 1 GiB.
        log_size: u64 => log_size;
        /// The size of the log buffer in memory, in bytes: a power of two from 64 KiB to 1 GiB, and at least sixteen
        /// pages. A group (the log records of one mini-transaction) takes at most a quarter of it. Default: 16 MiB.
        log_buffer_size: usize => log_buffer_size;
        /// When commits become durable. Default: at once, before the commit returns.
        flush_log_at_trx_commit: FlushLog => flush_log_at_trx_commit;
        /// The time that a call waits for locks of other transactions, and a DDL statement for transactions that have
        /// locked or changed its table; with zero they do not wait at all. Default: 50 seconds.
        lock_wait_timeout: Duration => lock_wait_timeout;
        /// An observer that is called around each wait for a lock, for a program that must not let some transactions
        /// wait for others. Default: none.
        lock_wait_observer: Arc<dyn LockWaitObserver> => Some(lock_wait_observer.into());
        /// The disk space that undo may take, in bytes; at least 1 MiB. Beyond it, changes wait for purge; if purge is
        /// blocked, they are refused with [`TransactionError::UndoFull`](crate::error::TransactionError::UndoFull).
        ///
        /// While a check of a table blocks purge, changes wait for the end of the check, whatever else blocks purge,
        /// and are refused after the lock timeout. The exception is a view that is ended instead
        /// ([`Options::undo_limit_action`]). Not counted are undo of temporary tables, and two slices of 64 pages each
        /// per thread, for the largest number of threads that have written at the same time. Default: no limit.
        undo_limit: u64 => Some(undo_limit);
        /// The action on changes beyond `undo_limit` while a read view blocks purge. Default: they are refused.
        undo_limit_action: UndoLimitAction => undo_limit_action;
        /// Whether trees get an adaptive hash index. Default: no; it can be switched at run time.
        hash_index: bool => hash_index;
        /// Memory that all hash indexes together may take, in bytes. Default: a hundredth of the buffer pool.
        hash_index_memory: u64 => Some(hash_index_memory);
        /// The number of data files that are kept open, from 16 to 1048576; up to twice as many are open while they are
        /// read and written. The process's limit of open files bounds it further. Default: 400.
        open_files: usize => open_files;
        /// The number of threads that read and write pages in the background, from 1 to 256. Default: 8.
        io_threads: usize => io_threads;
        /// Whether data files bypass the system's page cache (direct I/O) if the file system supports it. Default: yes.
        direct_io: bool => direct_io;
    }

    /// Returns options for a small database, with some MiB of memory and of disk: those for a memory of 8 MiB, and a
    /// log of 8 MiB.
    #[must_use]
    pub fn small() -> Self {
        Self::for_memory(SMALL_MEMORY).log_size(SMALL_MEMORY)
    }

    /// Returns options for a budget of memory in bytes, at least 8 MiB:
    ///
    /// | option | value |
    /// | --- | --- |
    /// | [`buffer_pool_size`](Self::buffer_pool_size), and the size it may grow to | three quarters of the budget |
    /// | [`log_buffer_size`](Self::log_buffer_size) | a thirty-second, a power of two, from 1 to 16 MiB |
    /// | [`hash_index_memory`](Self::hash_index_memory) | a hundredth of the pool |
    /// | [`log_size`](Self::log_size), on disk | four times the budget, from 64 MiB to 16 GiB |
    /// | [`open_files`](Self::open_files) | one for each 256 KiB, from 64 to 400 |
    /// | [`io_threads`](Self::io_threads) | one for each 8 MiB, from 2 to 8 |
    ///
    /// The rest is for transactions, locks, the catalog, and stacks of threads. Memory is allocated as it is used, so
    /// the process takes less as long as the data is small. While a database is opened after a crash, and while an
    /// index is built, tens of MiB more may be needed, but no more than the data or the log has.
    #[must_use]
    pub fn for_memory(bytes: u64) -> Self {
        let bytes = bytes.clamp(SMALL_MEMORY, 1 << 44);
        let pool = bytes / 4 * 3;
        let log_buffer = (bytes / 32).clamp(1 << 20, 16 << 20);
        Self {
            buffer_pool_size: pool,
            buffer_pool_max_size: Some(pool),
            log_size: (bytes * 4).clamp(64 << 20, 16 << 30),
            log_buffer_size: 1 << log_buffer.ilog2(),
            open_files: (bytes >> 18).clamp(64, 400) as usize,
            io_threads: (bytes >> 23).clamp(2, 8) as usize,
            ..Self::default()
        }
    }

    /// Registers an extractor: a function that makes the entries of rows in the indexes that name it
    /// ([`IndexOptions::extracted`]). It gets a row's key and its value, of a long value the first 64 KiB, and adds the
    /// row's entries; a row for which it adds none is not in the index. An error or a panic of it fails the call, which
    /// has then changed nothing. The last one of several with the same name counts.
    ///
    /// It must make the same entries of the same key and value each time, in this and any later opening: it depends on
    /// no clock, setting or other data. Threads call it side by side, with the row locked for the call. What it calls
    /// in the database counts as called from within a call, and is refused if it would wait for one. The entries of
    /// one row in one index may take four pages together.
    ///
    /// [`IndexOptions::extracted`]: ../windfall/struct.IndexOptions.html#method.extracted
    #[must_use]
    pub fn extractor(
        mut self,
        name: &str,
        extract: impl Fn(&[u8], &[u8], &mut ExtractedEntries) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.extractors.insert(name, Arc::new(extract));
        self
    }

    /// Refuses values that are out of range or contradict each other.
    pub(crate) fn check(&self) -> Result<()> {
        let refuse = |name, what: String| Err(UsageError::Option { name, what: what.into() }.into());
        if let Some(size) = self.page_size
            && !page::SIZES.contains(&size)
        {
            return refuse("page_size", format!("{size} is none of {:?}", page::SIZES));
        }
        if self.buffer_pool_max_size.is_some_and(|most| most < self.buffer_pool_size) {
            return refuse("buffer_pool_max_size", "it is less than buffer_pool_size".into());
        }
        if self.log_size < 1 << 20 {
            return refuse(
                "log_size",
                format!("{} bytes are too few: give it at least 1 MiB", self.log_size),
            );
        }
        check_undo_limit(self.undo_limit)?;
        if !self.log_buffer_size.is_power_of_two() || !(64 << 10..=1 << 30).contains(&self.log_buffer_size) {
            return refuse("log_buffer_size", "a power of two from 64 KiB to 1 GiB is needed".into());
        }
        if !(16..=1 << 20).contains(&self.open_files) {
            return refuse("open_files", format!("{}: choose 16 to {}", self.open_files, 1 << 20));
        }
        if !(1..=256).contains(&self.io_threads) {
            return refuse("io_threads", format!("{}: choose 1 to 256", self.io_threads));
        }
        Ok(())
    }

    /// Refuses a log buffer that has no room for the log records of one structure change of a tree with pages of this
    /// size.
    pub(crate) fn check_log_buffer(&self, page_size: usize) -> Result<()> {
        let least = PAGES_IN_LOG_BUFFER * page_size;
        if self.log_buffer_size >= least {
            return Ok(());
        }
        let (given, least, page) = (self.log_buffer_size >> 10, least >> 10, page_size >> 10);
        let what = format!("{given} KiB are too few for pages of {page} KiB: give it at least {least} KiB");
        Err(UsageError::Option { name: "log_buffer_size", what: what.into() }.into())
    }

    /// Returns the size up to which the pool may grow. The default is capped at what can be addressed, so that it never
    /// causes a refusal.
    pub(crate) fn pool_max(&self, page_size: usize) -> u64 {
        let addressed = u64::from(u32::MAX) * page_size as u64;
        let unasked = || self.buffer_pool_size.saturating_mul(4).min(addressed).max(self.buffer_pool_size);
        self.buffer_pool_max_size.unwrap_or_else(unasked)
    }

    /// Returns the memory that all hash indexes may take, in bytes.
    pub(crate) fn hash_memory(&self) -> u64 {
        self.hash_index_memory.unwrap_or(self.buffer_pool_size / 100)
    }

    /// Returns the sizes of the log.
    pub(crate) fn log(&self) -> LogOptions {
        LogOptions { size: self.log_size, segment: self.segment_size(), buffer: self.log_buffer_size }
    }

    /// Returns the size of the largest log segments: a sixteenth of the log, from 64 KiB to 64 MiB.
    fn segment_size(&self) -> u64 {
        (self.log_size / 16).next_power_of_two().clamp(64 << 10, 64 << 20)
    }
}

/// Fuzz target: options of arbitrary sizes.
#[cfg(feature = "fuzz")]
pub mod fuzz {
    use super::Options;
    use crate::{fuzz_input::Input, log::FlushLog, page};

    /// Returns numbers of which half are near a power of two.
    fn number(input: &mut Input<'_>) -> u64 {
        let (power, more) = (input.u8(), input.u64());
        if power < 128 { more } else { (1u64 << (power % 64)).wrapping_add(more % 5).wrapping_sub(2) }
    }

    /// Checks that accepted options keep the bounds on which the layers below rely.
    pub fn options(data: &[u8]) {
        let mut input = Input(data);
        let flags = input.u8();
        let mut options = Options::default()
            .buffer_pool_size(number(&mut input))
            .log_size(number(&mut input))
            .log_buffer_size(number(&mut input) as usize)
            .open_files(number(&mut input) as usize)
            .io_threads(number(&mut input) as usize);
        if flags & 1 == 1 {
            options = options.page_size(number(&mut input) as usize);
        }
        if flags & 2 == 2 {
            options = options.buffer_pool_max_size(number(&mut input));
        }
        if flags & 4 == 4 {
            options = options.hash_index_memory(number(&mut input));
        }
        assert_eq!(FlushLog::try_from(flags).is_ok(), flags < 3);
        let segment = options.segment_size();
        assert!(segment.is_power_of_two() && (64 << 10..=64 << 20).contains(&segment));
        let _ = options.hash_memory();
        if options.check().is_err() {
            return;
        }
        let log = options.log();
        assert!(log.size >= 2 * segment && log.buffer.is_power_of_two());
        assert!(options.page_size.is_none_or(|size| page::SIZES.contains(&size)));
        assert!(options.pool_max(4096) >= options.buffer_pool_size && options.io_threads <= 256);
    }

    /// Returns accepted options, at their bounds.
    pub fn options_seeds() -> Vec<Vec<u8>> {
        let number = |power: u8, more: u64| [&[128 + power][..], &more.to_le_bytes()].concat();
        let sizes = |flags: u8, log: u8, buffer: u8| {
            [
                vec![flags],
                number(27, 2),
                number(log, 2),
                number(buffer, 2),
                number(5, 3),
                number(8, 2),
                number(14, 2),
            ]
            .concat()
        };
        vec![
            sizes(0, 30, 24),
            sizes(1, 20, 16),
            [sizes(7, 62, 30), number(33, 1), number(20, 0)].concat(),
            sizes(3, 63, 31),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_options_are_refused_by_name() {
        let bad = [
            (Options::default().page_size(5000), "page_size"),
            (Options::default().buffer_pool_max_size(1), "buffer_pool_max_size"),
            (Options::default().log_size(1000), "log_size"),
            (Options::default().open_files(1), "open_files"),
            (Options::default().open_files(usize::MAX), "open_files"),
            (Options::default().io_threads(0), "io_threads"),
        ];
        for (options, name) in bad {
            assert!(options.check().unwrap_err().to_string().contains(name));
        }
        assert!(Options::default().check().is_ok());
        let buffer = Options::default().log_buffer_size(64 << 10);
        assert!(buffer.check().is_ok() && buffer.check_log_buffer(4096).is_ok());
        let error = buffer.check_log_buffer(16 << 10).unwrap_err().to_string();
        assert!(error.contains("at least 256 KiB"), "{error}");
        let smallest = Options::default().log_size(1 << 20);
        assert!(smallest.segment_size() * 2 <= smallest.log_size);
    }

    #[test]
    fn options_for_any_memory_are_accepted() {
        let powers = (0..64).flat_map(|n| [(1u64 << n) - 1, 1 << n, (1 << n) + 1]);
        for bytes in powers.chain([3 << 20, 100 << 20, u64::MAX]) {
            let options = Options::for_memory(bytes);
            options.check().unwrap();
            options.check_log_buffer(64 << 10).unwrap();
            let memory = options.buffer_pool_size + options.log_buffer_size as u64 + options.hash_memory();
            assert!(memory <= bytes.max(SMALL_MEMORY), "{memory} of {bytes}");
            assert_eq!(options.pool_max(16 << 10), options.buffer_pool_size);
        }
        let small = Options::small();
        small.check().unwrap();
        assert_eq!((small.buffer_pool_size, small.log_size), (6 << 20, 8 << 20));
        assert_eq!(Options::for_memory(1 << 30).log_buffer_size, 16 << 20);
    }
}
