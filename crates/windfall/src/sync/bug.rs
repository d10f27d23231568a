//! Bugs that a model check plants, to see that it finds them.
//!
//! **Purpose.** A scenario that cannot fail proves nothing. So each names the bugs that it is for, and a test build with the
//! feature `model` runs it once more with each of them planted: then it has to fail. See `sync::model`.
//!
//! **Invariants.** Outside such a build [`planted`](super::planted) is a constant `false`, so a place that asks is compiled
//! away. A bug is what somebody might write: a look left out, two steps in the other order. It changes one place.
//!
//! **May touch.** Nothing.

/// The bugs, by the file that has the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
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
    // log/writer.rs
    /// The log is called durable before its sync.
    DurableBeforeTheSync,
    /// A leader steps down and tells nobody.
    LeaderTellsNobody,
    /// The ring's space is handed out before it is clear.
    SpaceGivenBeforeItIsClear,
    /// A failing sync is one caller's error, and the database goes on.
    FailureIsForgotten,
    // log/group.rs, as the scenario repeats it
    /// The floor of appending looks at the slots first, and at the end of the log then.
    #[cfg(all(test, feature = "model"))]
    SlotsBeforeTheEnd,
    // log/space.rs
    /// A promise looks at the end of the log before it is counted.
    PromiseLooksFirst,
    // buffer/mod.rs
    /// A look without a latch does not compare the tag.
    LookWithoutTag,
    /// An exclusive latch does not compare the tag.
    LatchWithoutTag,
    /// Who brings a page in does not look again whether its tablespace was dropped.
    LateInstall,
    /// Whether a tablespace has a header is not asked under the header's latch.
    HeaderMadeTwice,
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
    /// A file is made without a look whether its tablespace was dropped.
    FileBehindTheDeleter,
    // buffer/floor.rs
    /// The floor does not count what is logged and not registered.
    FloorForgetsTheUnregistered,
    // checkpoint.rs
    /// The control file names a floor before the log behind it is durable.
    FloorBeforeTheLog,
    // tablespace/deletion.rs
    /// A file is deleted before the drop of its tablespace is durable.
    FileGoesBeforeTheDrop,
}
