//! Bugs on purpose, to see whether the nets hold.
//!
//! **Purpose.** A test that cannot fail proves nothing. A build with the feature `canary` has one of these bugs when
//! the environment names it (`WINDFALL_CANARY=LogNotSynced`): `tests/canary.rs` runs the other tests, and the fuzz
//! targets, with each in turn, and one has to fail. A test build with the feature `model` has the choice, too: a
//! scenario names the bugs that it is for, and has to fail with each of them (`sync::model`).
//!
//! **Invariants.** Outside such builds [`planted`] is a constant `false`, so a place that asks is compiled away; and
//! the feature cannot be built without the assertions of a debug build, so no product has it. A bug is what somebody
//! might write: a step left out, two steps the other way round, a look forgotten. None is there unless it was asked
//! for.
//!
//! **May touch.** In those builds a variable of the environment.

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
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$bug,)*];

            /// What is wrong with it.
            #[cfg(feature = "canary")]
            pub const fn what(self) -> &'static str {
                match self {
                    $(Self::$bug => $what,)*
                }
            }
        }
    };
}

// By the file that has the place.
bugs! {
    // sync/latch.rs
    /// A release after a change keeps the version.
    VersionKept,
    /// An exclusive latch is taken beside sharers.
    LatchBesideSharers,
    /// An upgrade does not compare the version.
    UpgradeOfAnyVersion,
    /// The last sharer wakes nobody.
    LastSharerWakesNobody,
    // sync/event.rs
    /// A notifier passes by the event's mutex.
    NotifierPassesTheMutex,
    /// A nap forgets the notification before it.
    NapForgetsTheRing,
    // sync/gate.rs
    /// A passer looks whether the gate is open, and counts itself then.
    GateLooksBeforeItCounts,
    /// Who leaves a gate tells nobody.
    LeaverTellsNobody,
    /// A closing gate holds up those who are inside another one.
    ClosingGateHoldsAll,
    /// Gates that are closed together are looked at one after the other only.
    GatesClosedOneByOne,
    // page/op.rs
    /// A change of a page is written wherever it says.
    WriteBeyondThePage,
    // page/node_check.rs
    /// A node is sound with keys outside its fences.
    KeyOutsideTheFences,
    // log/control.rs
    /// The control file is written in the place of the one that counts.
    ControlOverwritten,
    /// The log goes on as if the control file were durable, and it is not.
    ControlNotSynced,
    /// The control record that was found is synced and not written again.
    ControlNotWrittenAgain,
    // log/mod.rs
    /// A commit that is to be durable is only written.
    CommitNotAwaited,
    /// A commit that is to be written at least waits for nothing.
    CommitNotWritten,
    // log/ring.rs
    /// A group is seen before it is whole.
    GroupSeenEarly,
    // log/reader.rs
    /// A frame of the log counts whatever its checksum.
    TornTailTaken,
    // log/record.rs
    /// Room is made for as many transactions as a record says to have.
    CountBelieved,
    // log/writer.rs
    /// The log counts as durable without a sync.
    LogNotSynced,
    /// The log is called durable before its sync.
    DurableBeforeTheSync,
    /// What is written while a sync runs counts as durable when it ends.
    WrittenMeanwhileIsDurable,
    /// A leader steps down and tells nobody.
    LeaderTellsNobody,
    /// The ring's space is handed out before it is clear.
    SpaceGivenBeforeItIsClear,
    /// A failing sync is one caller's error, and the database goes on.
    FailureIsForgotten,
    // log/group.rs
    /// The floor of appending looks at the slots first, and at the end of the log then.
    SlotsBeforeTheEnd,
    // log/segments.rs
    /// The header of a segment that is taken over is synced and not written again.
    HeaderNotWrittenAgain,
    // log/space.rs
    /// A promise looks at the end of the log before it is counted.
    PromiseLooksFirst,
    /// Log for the way back is promised, and not there.
    PromiseUncovered,
    // buffer/mod.rs
    /// A look without a latch does not compare the tag.
    LookWithoutTag,
    /// An exclusive latch does not compare the tag.
    LatchWithoutTag,
    /// Who waits at a latch does not look whether the frame still has his page.
    WaitForWhateverCame,
    /// Who brings a page in does not look again whether its tablespace was dropped.
    LateInstall,
    /// Whether a tablespace has a header is not asked under the header's latch.
    HeaderMadeTwice,
    /// A page counts whatever its checksum.
    ChecksumIgnored,
    // buffer/replace.rs
    /// An evicted frame keeps its version.
    EvictionKeepsVersion,
    /// A frame beyond a size that was just made smaller is used.
    FrameBeyondTheSize,
    // buffer/resize.rs
    /// A frame is retired without another look at the size.
    RetiredForGood,
    // buffer/free.rs
    /// The head of the free list does not count its changes.
    HeadWithoutCount,
    // buffer/page_table.rs
    /// A chunk is unlinked while somebody enters it.
    ChunkGoesUnderAnEntry,
    // buffer/space.rs
    /// A drop that finds a tablespace unknown leaves the pool the time to learn of it.
    DropLeavesItUnknown,
    // buffer/reclaim.rs
    /// A dropped frame is taken without a look at its tag under the latch.
    DrainWithoutTag,
    /// A dropped frame that somebody has latched is not tried again.
    LatecomerForgotten,
    // buffer/flush.rs
    /// The flusher copies whatever the frame holds by now.
    CopyWithoutTag,
    /// A page leaves the dirty set when it is copied.
    CleanWhenCopied,
    /// Pages are written before the log is durable up to them.
    PagesBeforeTheLog,
    /// A copy that was taken after the database had stopped is written.
    HalfAChangeWritten,
    /// A write that failed makes dirty whatever the frame holds by now.
    FailedWriteWithoutTag,
    /// A page that could not be written counts as written.
    FailedWriteForgotten,
    /// A torn page that is latched is not among the copies of the next batch.
    TornCopyForgotten,
    /// Pages are written without a trial of their places while many pages are torn.
    PlaceNotTried,
    // buffer/flush/files.rs
    /// A file is made without a look whether its tablespace was dropped.
    FileBehindTheDeleter,
    /// Data files are not synced before the floor passes their changes.
    DataNotSynced,
    /// What could not be synced of a dropped tablespace is forgotten before its drop is durable.
    FailedSyncOfDropped,
    /// A new file's name is not synced.
    FolderNotSynced,
    // buffer/doublewrite.rs
    /// The copies of pages are not synced before the pages are written in their places.
    CopiesNotSynced,
    /// Recovery relies on copies that it has not made durable.
    CopiesFoundNotSynced,
    // buffer/floor.rs
    /// The floor does not count what is logged and not registered.
    FloorForgetsTheUnregistered,
    /// The floor does not know of a dirty page.
    DirtyPageForgotten,
    // tablespace/mod.rs
    /// A page that is given back stays marked as used.
    PageNotFreed,
    /// Who learns of a map page by the one before keeps that latched, and goes on before it.
    PreviousMapKept,
    // tablespace/deletion.rs
    /// A file is deleted before the drop of its tablespace is durable.
    FileGoesBeforeTheDrop,
    // tree/hash.rs
    /// The table of a hash index is freed by the thread that lets go of it.
    HashTableFreedAtOnce,
    // tree/mod.rs
    /// A hint of the hash index is believed.
    HintBelieved,
    // tree/structure.rs
    /// A split is logged in two groups.
    SplitInTwoGroups,
    // transaction/chains.rs
    /// A long value is freed with its first page alone.
    ChainLeaked,
    // transaction/ids.rs
    /// Tablespace numbers are used again after a restart.
    SpaceReused,
    /// Transaction numbers are used again after a restart.
    TransactionReused,
    // transaction/active.rs
    /// A view sees the youngest transaction that is under way.
    ViewTooNew,
    /// Nobody asks behind a look whether its view was ended meanwhile.
    EndedViewBelieved,
    /// Purge asks nobody who may still look.
    PurgeIgnoresViews,
    // transaction/purge.rs
    /// A check is not told of the versions that open transactions need.
    LeftBehindUnseen,
    // transaction/temporary.rs
    /// Purge of temporary tables frees long values that are being read.
    TemporaryReadersUnseen,
    // transaction/version.rs
    /// An older version has the bytes of another one, as if its page of undo had been used again.
    UndoUsedAgain,
    // transaction/lock.rs
    /// A call does not wait for the row that another one changes.
    RowNotLocked,
    // transaction/locking.rs
    /// A locking read does not lock the gaps.
    GapNotLocked,
    // transaction/locks/mod.rs
    /// How many locks there are is published when the lock table was left.
    LocksPublishedLate,
    /// Who gives a lock back serves the next one and does not wake it.
    ServedAndNotWoken,
    // transaction/locks/table.rs
    /// A transaction that has ended is given a lock for what it had written.
    EndedWriterLocks,
    // transaction/mod.rs
    /// A checkpoint does not note which transactions are prepared.
    PreparedNotNoted,
    // transaction/rollbacks.rs
    /// After a crash the tables of prepared transactions are not locked.
    PreparedUnlocked,
    /// Who makes an index does not ask what is still to be taken back.
    HandedOverUnseen,
    // transaction/followers.rs
    /// Who adds an index is not told of the rows that are taken back.
    RollbackNotNoted,
    /// What was unfinished at a crash is not rolled back.
    RollbackForgotten,
    /// A check takes the change of a row that was cut off for a whole one.
    CutOffUnseen,
    // transaction/stream.rs
    /// Undo space is reserved for where a record begins, and not for where it ends.
    UndoNotReserved,
    // transaction/trx.rs
    /// A prepared transaction is rolled back, and the log says for longer that it is prepared.
    PreparedWhileTakenBack,
    /// A rollback leaves the entries of secondary trees.
    EntriesNotTakenBack,
    // catalog/record.rs
    /// A table's record may have more bytes than it needs.
    RestOfRecordIgnored,
    // catalog/building.rs
    /// A change that puts a row's index key out of reach is not noted where the entry stays the same.
    KeyOutOfReachNotNoted,
    // catalog/load.rs
    /// A load that fails leaves its trees.
    LoadLeftBehind,
    // catalog/numbers.rs
    /// Below what a table's numbers were handed out is known in memory only.
    NumbersForgotten,
    /// Numbers below a ceiling are handed out before it is logged.
    CeilingNotLoggedYet,
    /// Which number is next at the end is looked up before the last one is handed out.
    NumbersEndLate,
    // catalog/names.rs
    /// A listing of tables misses those that get other names meanwhile.
    MoveUnlisted,
    // catalog/ddl.rs
    /// Who is to be alone with a table leaves its gate open.
    GateLeftOpen,
    /// A tablespace is given up before its drop is in the log.
    DropBeforeLog,
    /// A drop leaves the secondary trees.
    IndexNotDropped,
    // checkpoint.rs
    /// The floor passes the end of a transaction that the checkpoint calls unfinished.
    EndNotNoted,
    /// The control file names a floor before the log behind it is durable.
    FloorBeforeTheLog,
    /// The log is cut before the control file names the floor.
    LogCutBeforeTheControlFile,
    /// The control file does not note that there is a system tree.
    SystemTreeForgotten,
    // recovery/mod.rs
    /// What was prepared counts as unfinished after a crash.
    PreparedForgotten,
    /// What a killed process has written is not synced.
    KilledWritesNotSynced,
    /// A page that replay finds done is not written once more.
    FoundDoneNotDirty,
    /// Torn pages are not put right from their copies.
    TornPageKept,
    /// What a page has already is applied to it again.
    ReplayedTwice,
    // engine/files.rs
    /// A file counts as recorded before its record is logged.
    RecordedBeforeItIsLogged,
    // engine/open.rs
    /// What was to be deleted is forgotten at a restart.
    DeletionForgotten,
}

/// The variable that names a bug to plant.
#[cfg(any(feature = "canary", feature = "model"))]
pub const VARIABLE: &str = "WINDFALL_CANARY";

/// The bug that this process has.
#[cfg(any(feature = "canary", feature = "model"))]
pub fn chosen() -> Option<Bug> {
    static CHOSEN: super::OnceLock<Option<Bug>> = super::OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let name = std::env::var(VARIABLE).ok()?;
        let bug = Bug::ALL.iter().find(|bug| format!("{bug:?}") == name);
        Some(*bug.unwrap_or_else(|| panic!("there is no bug called {name}")))
    })
}

/// Whether this bug is planted: in a build of the models only within a scenario, so what it begins with is sound.
#[cfg(any(feature = "canary", feature = "model"))]
pub fn planted(bug: Bug) -> bool {
    #[cfg(feature = "model")]
    if !super::model::is_scenario() {
        return false;
    }
    chosen() == Some(bug)
}

/// No bug is planted.
#[cfg(not(any(feature = "canary", feature = "model")))]
#[inline]
pub const fn planted(_bug: Bug) -> bool {
    false
}

/// The product has none, and nobody has to run it to see that.
#[cfg(not(any(feature = "canary", feature = "model")))]
const _: () = {
    let mut n = 0;
    while n < Bug::ALL.len() {
        assert!(!planted(Bug::ALL[n]));
        n += 1;
    }
};
