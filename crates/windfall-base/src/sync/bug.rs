//! Planted bugs, which the tests must detect (mutation suite).
//!
//! **Purpose.** A test that cannot fail proves nothing. A build with the feature `canary` has one of these bugs when
//! the environment names it (`WINDFALL_CANARY=LogNotSynced`): `tests/canary.rs` runs the other tests, and the fuzz
//! targets, with each bug in turn, and at least one must fail. A test build with the feature `model` has the choice,
//! too: a scenario names the bugs that it must find, and must fail with each of them (`sync::model`).
//!
//! **Invariants.** Outside such builds [`planted`] is a constant `false`, so its calls are compiled away; and the
//! feature cannot be built without the assertions of a debug build, so no product has it. Each bug is a plausible
//! mistake: a missing step, two steps in the wrong order, a missing check. A bug is present only when it was requested.

#[cfg(all(feature = "canary", not(debug_assertions)))]
compile_error!("the feature `canary` is for tests: a release has no bugs on purpose");

macro_rules! bugs {
    ($(#[doc = $what:literal] $bug:ident,)*) => {
        /// A bug that can be planted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug {
            $(#[doc = $what] $bug,)*
        }

        impl Bug {
            /// All bugs.
            pub const ALL: &[Self] = &[$(Self::$bug,)*];

            /// Returns what is wrong with it.
            #[cfg(feature = "canary")]
            pub const fn what(self) -> &'static str {
                match self {
                    $(Self::$bug => $what,)*
                }
            }
        }
    };
}

// Grouped by the file that plants the bug.
bugs! {
    // sync/latch.rs
    /// A release after a change keeps the version.
    VersionKept,
    /// An exclusive latch is taken while other threads share it.
    LatchDespiteSharers,
    /// An upgrade does not compare the version.
    UpgradeOfAnyVersion,
    /// The last sharer wakes no waiter.
    LastSharerWakesNone,
    // sync/event.rs
    /// A notifier does not take the event's mutex.
    NotifierPassesTheMutex,
    /// A nap discards an earlier notification when it begins.
    NapForgetsTheRing,
    // sync/gate.rs
    /// A passer checks whether the gate is open before it counts itself.
    GateLooksBeforeItCounts,
    /// A thread that leaves a gate does not notify the closer.
    LeaverWakesNone,
    /// A closing gate blocks threads that are inside another gate.
    ClosingGateHoldsAll,
    /// Gates that are closed together are only checked one after the other.
    GatesClosedOneByOne,
    // page/op.rs
    /// A change of a page is written even beyond the end of the page.
    WriteBeyondThePage,
    // page/node_check.rs
    /// The check of a node accepts keys outside its fence keys.
    KeyOutsideTheFences,
    // log/control.rs
    /// The control file is written over its valid copy.
    ControlOverwritten,
    /// The log goes on as if the control file were durable, but it is not.
    ControlNotSynced,
    /// The control record that was found is synced but not rewritten.
    ControlNotWrittenAgain,
    // log/mod.rs
    /// A commit that must be durable is only written.
    CommitNotAwaited,
    /// A commit that must at least be written waits for nothing.
    CommitNotWritten,
    // log/ring.rs
    /// A log group becomes visible before it is complete.
    GroupSeenEarly,
    // log/reader.rs
    /// A frame of the log is accepted whatever its checksum.
    TornTailTaken,
    // log/record.rs
    /// Memory is allocated for as many transactions as a record claims to have.
    CountBelieved,
    // log/writer.rs
    /// The log counts as durable without a sync.
    LogNotSynced,
    /// The log is reported as durable before its sync.
    DurableBeforeTheSync,
    /// Bytes written during a sync count as durable when it ends.
    WrittenMeanwhileIsDurable,
    /// A leader of a log sync stops leading and notifies no waiter.
    LeaderWakesNone,
    /// The ring's space is released before it is cleared.
    SpaceGivenBeforeItIsClear,
    /// A failed sync is reported to one caller, and the database goes on.
    FailureIsForgotten,
    // log/group.rs
    /// The low-water mark of appending reads the slots before the end of the log.
    SlotsBeforeTheEnd,
    // log/segments.rs
    /// The header of a segment that is taken over is synced but not rewritten.
    HeaderNotWrittenAgain,
    // log/space.rs
    /// A log reservation reads the end of the log before it is counted.
    ReservationReadsEndFirst,
    /// Log space for rollback is reserved, but its segments do not exist.
    ReservationUncovered,
    // buffer/mod.rs
    /// A read without a latch does not compare the tag.
    LookWithoutTag,
    /// An exclusive latch does not compare the tag.
    LatchWithoutTag,
    /// A waiter at a latch does not check whether the frame still holds its page.
    WaitForWhateverCame,
    /// A thread that reads a page in does not check again whether its tablespace was dropped.
    LateInstall,
    /// The existence of a tablespace's header is not checked under the header's latch.
    HeaderMadeTwice,
    /// A page is accepted whatever its checksum.
    ChecksumIgnored,
    // buffer/replace.rs
    /// An evicted frame keeps its version.
    EvictionKeepsVersion,
    /// A frame beyond a pool size that was just reduced is used.
    FrameBeyondTheSize,
    // buffer/resize.rs
    /// A frame is retired without another check of the pool size.
    RetiredForGood,
    // buffer/free.rs
    /// The head of the free list does not count its changes (ABA problem).
    HeadWithoutCount,
    // buffer/page_table.rs
    /// A chunk of the page table is unlinked while a thread inserts into it.
    ChunkGoesUnderAnEntry,
    // buffer/space.rs
    /// After the drop of a tablespace that the pool does not know, the pool can still register it.
    DropLeavesItUnknown,
    // buffer/reclaim.rs
    /// A dropped frame is taken without a check of its tag under the latch.
    DrainWithoutTag,
    /// A dropped frame that was latched is not tried again.
    LatecomerForgotten,
    // buffer/flush.rs
    /// The flusher copies a frame without a check that it still holds the page.
    CopyWithoutTag,
    /// A page leaves the dirty set when it is copied.
    CleanWhenCopied,
    /// Pages are written before the log is durable up to them.
    PagesBeforeTheLog,
    /// A copy that was made after the database had stopped is written.
    HalfAChangeWritten,
    /// A failed write marks the frame dirty without a check that it still holds the page.
    FailedWriteWithoutTag,
    /// A page that could not be written counts as written.
    FailedWriteForgotten,
    /// A torn page that is latched is not among the copies of the next doublewrite batch.
    TornCopyForgotten,
    /// While many pages are torn, pages are written without a test write to their places.
    PlaceNotTried,
    // buffer/flush/files.rs
    /// A file is created without a check whether its tablespace was dropped.
    FileAfterTheDeleter,
    /// Data files are not synced before the low-water mark passes their changes.
    DataNotSynced,
    /// A failed sync of a dropped tablespace is forgotten before its drop is durable.
    FailedSyncOfDropped,
    /// A new file's name is not synced.
    FolderNotSynced,
    // buffer/doublewrite.rs
    /// The doublewrite copies are not synced before the pages are written in place.
    CopiesNotSynced,
    /// Recovery relies on doublewrite copies that it has not made durable.
    CopiesFoundNotSynced,
    // buffer/low_water_mark.rs
    /// The low-water mark does not count changes that are logged and not registered.
    LowWaterMarkIgnoresUnregistered,
    /// The low-water mark does not count a dirty page.
    DirtyPageForgotten,
    // tablespace/mod.rs
    /// A freed page stays marked as used.
    PageNotFreed,
    /// A thread that finds a map page through the previous one keeps that latched while it goes on.
    PreviousMapKept,
    // tablespace/deletion.rs
    /// A file is deleted before the drop of its tablespace is durable.
    FileGoesBeforeTheDrop,
    // tree/hash.rs
    /// The table of a hash index is freed by the thread that releases it.
    HashTableFreedAtOnce,
    // tree/mod.rs
    /// A hint of the hash index is used without validation.
    HintBelieved,
    // tree/structure.rs
    /// A split is logged in two groups.
    SplitInTwoGroups,
    // txn/undo/chains.rs
    /// Only the first overflow page of a long value is freed.
    ChainLeaked,
    // txn/mvcc/ids.rs
    /// Tablespace ids are used again after a restart.
    SpaceReused,
    /// Transaction ids are used again after a restart.
    TransactionReused,
    // txn/mvcc/active.rs
    /// A read view sees the youngest transaction that is still active.
    ViewTooNew,
    /// Purge ignores the read views that are still open.
    PurgeIgnoresViews,
    // txn/mvcc/view.rs
    /// After a read no check is made whether the read view was ended meanwhile.
    EndedViewBelieved,
    // txn/undo/purge_state.rs
    /// A check does not learn of the versions that open transactions need.
    LeftoversUnseen,
    // txn/undo/readers.rs
    /// Purge of temporary tables frees long values that are being read.
    TemporaryReadersUnseen,
    // txn/undo/versions.rs
    /// An older version has the bytes of another one, as if its undo page had been reused.
    UndoUsedAgain,
    // txn/locks/key_latch.rs
    /// A call does not wait for the row that another call changes.
    RowNotLocked,
    // txn/row/locking_read.rs
    /// A locking read takes no gap locks.
    GapNotLocked,
    // txn/locks/mod.rs
    /// The number of locks is published after the lock table was released.
    LocksPublishedLate,
    /// The release of a lock grants it to the next waiter, but does not wake that waiter.
    ServedAndNotWoken,
    // txn/locks/table.rs
    /// A transaction that has ended is given an explicit lock for a row that it had written.
    EndedWriterLocks,
    // txn/trx/manager.rs
    /// A checkpoint does not record which transactions are prepared.
    PreparedNotNoted,
    // txn/trx/background.rs
    /// After a crash the tables of prepared transactions are not locked.
    PreparedUnlocked,
    /// Transactions that were unfinished at a crash are not rolled back.
    RollbackForgotten,
    // txn/trx/rollbacks.rs
    /// The creation of an index ignores the rollbacks that are still to be done.
    HandedOverUnseen,
    /// A check takes a partial change of a row for a complete one.
    CutOffUnseen,
    // txn/undo/followers.rs
    /// The creation of an index does not learn of the rows that are rolled back.
    RollbackNotNoted,
    // txn/undo/stream.rs
    /// Undo space is reserved for where a record begins, and not for where it ends.
    UndoNotReserved,
    // txn/trx/running.rs
    /// A prepared transaction rolls back, but the log still says that it is prepared.
    PreparedDuringRollback,
    // txn/undo/rollback.rs
    /// A rollback leaves the entries of secondary trees.
    EntriesNotRolledBack,
    // catalog/record.rs
    /// A table's record is accepted with more bytes than it needs.
    RestOfRecordIgnored,
    // catalog/building.rs
    /// A change that puts a row's index key out of reach is not recorded if the entry stays the same.
    KeyOutOfReachNotNoted,
    // catalog/load.rs
    /// A failed load leaves its trees.
    LoadLeftBehind,
    // catalog/auto_increment.rs
    /// The ceiling of the auto-increment values of a table is kept in memory only.
    AutoIncrementForgotten,
    /// Auto-increment values below a ceiling are assigned before the ceiling is logged.
    CeilingNotLoggedYet,
    /// The next auto-increment value at the end is read before the last one is assigned.
    AutoIncrementEndsLate,
    // catalog/names.rs
    /// A listing of tables misses those that are renamed meanwhile.
    MoveUnlisted,
    // catalog/ddl.rs
    /// A thread that needs exclusive access to a table leaves the table's gate open.
    GateLeftOpen,
    /// A tablespace is given up before its drop is in the log.
    DropBeforeLog,
    /// A drop leaves the secondary trees.
    IndexNotDropped,
    // checkpoint.rs
    /// The low-water mark passes the end of a transaction that the checkpoint calls unfinished.
    EndNotNoted,
    /// The control file names a low-water mark before the log after it is durable.
    LowWaterMarkBeforeTheLog,
    /// The log is truncated before the control file names the low-water mark.
    LogCutBeforeTheControlFile,
    /// The control file does not record that there is a system tree.
    SystemTreeForgotten,
    // recovery/mod.rs
    /// Prepared transactions count as unfinished after a crash.
    PreparedForgotten,
    /// The writes of a killed process are not synced.
    KilledWritesNotSynced,
    /// A page that replay finds up to date is not written once more.
    FoundDoneNotDirty,
    /// Torn pages are not repaired from their doublewrite copies.
    TornPageKept,
    /// A change that a page contains already is applied to it again.
    ReplayedTwice,
    // engine/files.rs
    /// A file counts as recorded before its record is logged.
    RecordedBeforeItIsLogged,
    // engine/open.rs
    /// Pending deletions are forgotten at a restart.
    DeletionForgotten,
}

/// The environment variable that names a bug to plant.
#[cfg(any(feature = "canary", feature = "model"))]
pub const VARIABLE: &str = "WINDFALL_CANARY";

/// Returns the bug that is planted in this process.
#[cfg(any(feature = "canary", feature = "model"))]
pub fn chosen() -> Option<Bug> {
    static CHOSEN: super::OnceLock<Option<Bug>> = super::OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let name = std::env::var(VARIABLE).ok()?;
        let bug = Bug::ALL.iter().find(|bug| format!("{bug:?}") == name);
        Some(*bug.unwrap_or_else(|| panic!("there is no bug called {name}")))
    })
}

/// Returns whether this bug is planted. In a build of the models it is planted only within a scenario, so that the
/// initial state of the scenario is sound.
#[cfg(any(feature = "canary", feature = "model"))]
pub fn planted(bug: Bug) -> bool {
    #[cfg(feature = "model")]
    if !super::model::is_scenario() {
        return false;
    }
    chosen() == Some(bug)
}

/// Returns `false`: no bug is planted in this build.
#[cfg(not(any(feature = "canary", feature = "model")))]
#[inline]
pub const fn planted(_bug: Bug) -> bool {
    false
}

/// The product has no planted bug, which the compiler proves here.
#[cfg(not(any(feature = "canary", feature = "model")))]
const _: () = {
    let mut n = 0;
    while n < Bug::ALL.len() {
        assert!(!planted(Bug::ALL[n]));
        n += 1;
    }
};
