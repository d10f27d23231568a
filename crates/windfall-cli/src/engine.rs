//! The adapter between this crate and the library.
//!
//! **Purpose.** The only module that translates the library's options and counted work into the types that the
//! commands, the demo and the benchmarks share. Nothing is estimated here: every number comes unchanged from the
//! library.

use std::{cell::Cell, path::Path, time::Instant};

use serde::{Deserialize, Serialize};
use windfall::{CheckReport, FlushLog, Options, Work, WorkCounts, work_so_far};
pub(crate) use windfall::{Database, IndexOptions, Table, TableOptions};

use crate::{args::Commit, failure::Result};

/// The options of a database.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// Whether to create it if there is none.
    pub create: bool,
    /// The buffer pool in bytes.
    pub pool: u64,
    /// The redo log in bytes.
    pub log: Option<u64>,
    /// When a commit is durable.
    pub commit: Commit,
    /// The adaptive hash index; the library's default if not given.
    pub hash: Option<bool>,
    /// Whether data files bypass the kernel's page cache; the library's default if not given.
    pub direct: Option<bool>,
    /// The page size of a new database; the library's default if not given.
    pub page_size: Option<usize>,
    /// The maximum memory of all hash indexes in bytes; the library's default if not given.
    pub hash_memory: Option<u64>,
    /// The maximum number of open data files; the library's default if not given.
    pub open_files: Option<usize>,
}

impl Setup {
    /// Returns the options of a database with this pool, which is created if it is missing.
    pub(crate) fn with_pool(pool: u64) -> Self {
        Self {
            create: true,
            pool,
            log: None,
            commit: Commit::Sync,
            hash: None,
            direct: None,
            page_size: None,
            hash_memory: None,
            open_files: None,
        }
    }

    /// Sets the durability of commits.
    pub(crate) fn commit(self, commit: Commit) -> Self {
        Self { commit, ..self }
    }

    /// Sets the size of the log.
    pub(crate) fn log(self, bytes: u64) -> Self {
        Self { log: Some(bytes), ..self }
    }

    /// Opens the database. Reports a longer recovery on standard error, once a second.
    pub(crate) fn open(&self, path: &Path) -> Result<Database> {
        let mut options = Options::default()
            .create_if_missing(self.create)
            .buffer_pool_size(self.pool)
            .buffer_pool_max_size(self.pool)
            .flush_log_at_trx_commit(flush_log(self.commit));
        if let Some(bytes) = self.log {
            options = options.log_size(bytes);
        }
        if let Some(bytes) = self.page_size {
            options = options.page_size(bytes);
        }
        if let Some(hash) = self.hash {
            options = options.hash_index(hash);
        }
        if let Some(bytes) = self.hash_memory {
            options = options.hash_index_memory(bytes);
        }
        if let Some(files) = self.open_files {
            options = options.open_files(files);
        }
        if let Some(direct) = self.direct {
            options = options.direct_io(direct);
        }
        let (start, said) = (Instant::now(), Cell::new(0));
        let report = |progress| {
            let seconds = start.elapsed().as_secs();
            if said.replace(seconds) < seconds {
                eprintln!("recovering, {progress}");
            }
        };
        Ok(Database::open_with(path, &options, &report)?)
    }
}

fn flush_log(commit: Commit) -> FlushLog {
    match commit {
        Commit::Lazy => FlushLog::Lazy,
        Commit::Sync => FlushLog::Sync,
        Commit::Write => FlushLog::Write,
    }
}

/// Changes the durability of commits, from the next one on.
pub(crate) fn set_commit(db: &Database, commit: Commit) {
    db.set_flush_log_at_trx_commit(flush_log(commit));
}

/// Returns the options of a table with these bytes as its metadata.
pub(crate) fn with_metadata(metadata: Vec<u8>) -> TableOptions {
    TableOptions::default().metadata(metadata)
}

/// Returns the number of data file writes by this thread itself; in a client's thread, each writes out a dirty page to
/// free its frame.
pub(crate) fn data_writes_of_this_thread() -> u64 {
    work_so_far().of(Work::Write)
}

/// The reason why a number of waits for dropping threads is missing, and the remedy.
pub(crate) const NO_DROP_WAITS: &str = "this build does not count waits for dropping threads: build `windfall-cli` with \
                                        `--features drop-waits`, as `make bench` does";

/// Returns the number of waits for something that a dropping thread held, if this build counts them.
#[cfg(feature = "drop-waits")]
#[expect(clippy::unnecessary_wraps, reason = "other builds do not count them")]
pub(crate) fn waits_on_drops(db: &Database) -> Option<u64> {
    Some(db.metrics().drop_waits)
}

/// Returns the number of these waits of this thread, if this build counts them.
#[cfg(feature = "drop-waits")]
#[expect(clippy::unnecessary_wraps, reason = "other builds do not count them")]
pub(crate) fn waits_on_drops_of_this_thread() -> Option<u64> {
    Some(work_so_far().of(Work::WaitOnDrop))
}

/// Returns `None`: this build does not count these waits.
#[cfg(not(feature = "drop-waits"))]
pub(crate) fn waits_on_drops(_: &Database) -> Option<u64> {
    None
}

/// Returns `None`: this build does not count these waits.
#[cfg(not(feature = "drop-waits"))]
pub(crate) fn waits_on_drops_of_this_thread() -> Option<u64> {
    None
}

/// The counted work of drops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DropWork {
    /// Number of drops.
    pub drops: u64,
    /// Frames of the system tree that were examined.
    pub system_tree_frames: u64,
    /// Latches on pages of the system tree.
    pub system_tree_latches: u64,
    /// Other frames that were examined.
    pub frames: u64,
    /// Latches on other pages.
    pub latches: u64,
    /// Entries of lists, sets and page tables that were visited.
    pub list_entries: u64,
    /// Mutexes and read-write locks acquired.
    pub locks: u64,
    /// Writes of the log.
    pub log_writes: u64,
    /// Syncs of the log.
    pub log_syncs: u64,
    /// Reads of data files.
    pub reads: u64,
    /// Writes of data files.
    pub writes: u64,
    /// Syncs of files other than the log.
    pub syncs: u64,
    /// Other calls to the file system.
    pub file_calls: u64,
    /// Calls that map, unmap or advise memory.
    pub map_calls: u64,
    /// Number of times that the thread went to sleep.
    pub waits: u64,
    /// Number of times that it woke other threads.
    pub wakes: u64,
    /// Allocations.
    pub allocations: u64,
    /// Bytes allocated.
    pub allocated_bytes: u64,
    /// Deallocations.
    pub frees: u64,
    /// Bytes freed.
    pub freed_bytes: u64,
}

impl DropWork {
    /// Returns the work of one drop.
    pub(crate) fn of(counts: WorkCounts) -> Self {
        Self {
            drops: 1,
            system_tree_frames: counts.of(Work::SystemTreeFrame),
            system_tree_latches: counts.of(Work::SystemTreeLatch),
            frames: counts.of(Work::Frame),
            latches: counts.of(Work::Latch),
            list_entries: counts.of(Work::ListEntry),
            locks: counts.of(Work::Lock),
            log_writes: counts.of(Work::LogWrite),
            log_syncs: counts.of(Work::LogSync),
            reads: counts.of(Work::Read),
            writes: counts.of(Work::Write),
            syncs: counts.of(Work::Sync),
            file_calls: counts.of(Work::FileCall),
            map_calls: counts.of(Work::MapCall),
            waits: counts.of(Work::Wait),
            wakes: counts.of(Work::Wake),
            allocations: counts.of(Work::Allocation),
            allocated_bytes: counts.of(Work::AllocatedBytes),
            frees: counts.of(Work::Free),
            freed_bytes: counts.of(Work::FreedBytes),
        }
    }

    /// Adds the work of other drops.
    pub(crate) fn add(&mut self, other: &Self) {
        self.drops += other.drops;
        for (mine, theirs) in self.fields_mut().into_iter().zip(other.fields()) {
            *mine.1 += theirs.1;
        }
    }

    /// Takes the larger count of each kind.
    pub(crate) fn raise_to(&mut self, other: &Self) {
        self.drops += other.drops;
        for (mine, theirs) in self.fields_mut().into_iter().zip(other.fields()) {
            *mine.1 = (*mine.1).max(theirs.1);
        }
    }

    /// Returns each kind of work with its count.
    pub(crate) fn fields(&self) -> [(&'static str, u64); 19] {
        let mut copy = *self;
        copy.fields_mut().map(|(name, count)| (name, *count))
    }

    fn fields_mut(&mut self) -> [(&'static str, &mut u64); 19] {
        [
            ("frames outside the system tree", &mut self.frames),
            ("latches outside the system tree", &mut self.latches),
            ("list entries walked", &mut self.list_entries),
            ("system tree frames", &mut self.system_tree_frames),
            ("system tree latches", &mut self.system_tree_latches),
            ("locks", &mut self.locks),
            ("log writes", &mut self.log_writes),
            ("log syncs", &mut self.log_syncs),
            ("data file reads", &mut self.reads),
            ("data file writes", &mut self.writes),
            ("other syncs", &mut self.syncs),
            ("other file-system calls", &mut self.file_calls),
            ("calls for memory mappings", &mut self.map_calls),
            ("waits", &mut self.waits),
            ("wake-ups of others", &mut self.wakes),
            ("allocations", &mut self.allocations),
            ("bytes allocated", &mut self.allocated_bytes),
            ("frees", &mut self.frees),
            ("bytes freed", &mut self.freed_bytes),
        ]
    }

    /// Returns the frames, latches and list entries outside the system tree, which a drop must not touch.
    pub(crate) fn outside_system_tree(&self) -> u64 {
        self.frames + self.latches + self.list_entries
    }

    /// Returns the sum of all counts except those of memory.
    pub(crate) fn all_except_memory(&self) -> u64 {
        self.outside_system_tree()
            + self.calls_except_log()
            + (self.system_tree_frames + self.system_tree_latches + self.locks)
            + (self.log_writes + self.log_syncs)
            + (self.waits + self.wakes)
    }

    /// Returns the calls for files and for memory mappings, other than writing and syncing the log.
    pub(crate) fn calls_except_log(&self) -> u64 {
        self.reads + self.writes + self.syncs + self.file_calls + self.map_calls
    }
}

/// Drops tables in one atomic step, and returns the counted work of this thread.
pub(crate) fn drop_counted(db: &Database, tables: &[&str]) -> Result<DropWork> {
    Ok(DropWork::of(db.drop_tables(tables)?.work))
}

/// The result of an offline check.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checked {
    /// The kinds of things that were checked, with their counts.
    pub counted: Vec<(&'static str, u64)>,
    /// The findings, one line each.
    pub findings: Vec<String>,
    /// Tables in which rows and index entries were not compared.
    pub uncompared: Vec<String>,
    /// Files that a crash has left and that are being deleted.
    pub pending: Vec<String>,
    /// Files that do not belong to the database.
    pub foreign: Vec<String>,
}

/// Checks everything, or one table.
pub(crate) fn check(db: &Database, table: Option<&str>) -> Result<Checked> {
    let report = match table {
        Some(table) => db.table(table)?.check(|_| true)?,
        None => db.check()?,
    };
    let entries = report.trees.iter().map(|tree| tree.entries).sum();
    let counted = vec![("pages", report.pages), ("trees", report.trees.len() as u64), ("entries", entries)];
    let CheckReport { findings, uncompared, pending, foreign, .. } = report;
    Ok(Checked { counted, findings, uncompared, pending, foreign })
}
