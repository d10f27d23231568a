//! Bugs on purpose, to see whether the nets hold.
//!
//! **Purpose.** A test that never fails proves nothing. A build with the feature `canary` has one of these bugs when the
//! environment names it (`WINDFALL_CANARY=log-not-synced`); `tests/canary.rs` runs the other tests with each of them in
//! turn, and one has to fail. Without the feature there is neither the choice nor a branch.
//!
//! **Invariants.** A planted bug is what somebody might write: a step left out, two steps the other way round, a check
//! forgotten. None of them is there unless it was asked for.
//!
//! **May touch.** Nothing.

macro_rules! bugs {
    ($($(#[$doc:meta])* $bug:ident = $name:literal,)*) => {
        /// A bug that can be planted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug {
            $($(#[$doc])* $bug,)*
        }

        impl Bug {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$bug,)*];

            /// What the environment calls it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$bug => $name,)*
                }
            }
        }
    };
}

bugs! {
    /// The log counts as durable without a sync.
    LogNotSynced = "log-not-synced",
    /// A commit that is to be durable is only written.
    CommitNotAwaited = "commit-not-awaited",
    /// Pages are written before the log of their changes is durable.
    PageBeforeLog = "page-before-log",
    /// Data files are not synced before the floor passes their changes.
    DataNotSynced = "data-not-synced",
    /// A new file's name is not synced.
    FolderNotSynced = "folder-not-synced",
    /// The copies of pages are not synced before the pages are written in their places.
    CopiesNotSynced = "copies-not-synced",
    /// Torn pages are not put right from their copies.
    TornPageKept = "torn-page-kept",
    /// The log's floor does not know of a dirty page.
    DirtyPageForgotten = "dirty-page-forgotten",
    /// The log's floor does not know of who is appending.
    GroupForgotten = "group-forgotten",
    /// The log is cut before the control file names its new floor.
    LogCutEarly = "log-cut-early",
    /// The control file is written in the place of the one that counts.
    ControlOverwritten = "control-overwritten",
    /// A frame of the log counts whatever its checksum.
    TornTailTaken = "torn-tail-taken",
    /// A page counts whatever its checksum.
    ChecksumIgnored = "checksum-ignored",
    /// What a page has already is applied to it again.
    ReplayedTwice = "replayed-twice",
    /// A split is logged in two groups.
    SplitInTwoGroups = "split-in-two-groups",
    /// Finished groups are seen before they are whole.
    GroupSeenEarly = "group-seen-early",
    /// What was unfinished at a crash is not rolled back.
    RollbackForgotten = "rollback-forgotten",
    /// A rollback leaves the entries of secondary trees.
    EntriesNotTakenBack = "entries-not-taken-back",
    /// Log for the way back is promised, and not there.
    PromiseUncovered = "promise-uncovered",
    /// Tablespace numbers are used again after a restart.
    SpaceReused = "space-reused",
    /// Transaction numbers are used again after a restart.
    TransactionReused = "transaction-reused",
    /// A tablespace is given up before its drop is in the log.
    DropBeforeLog = "drop-before-log",
    /// A drop leaves the secondary trees.
    IndexNotDropped = "index-not-dropped",
    /// A page of a dropped tablespace is written.
    DroppedPageWritten = "dropped-page-written",
    /// What was to be deleted is forgotten at a restart.
    DeletionForgotten = "deletion-forgotten",
    /// A statement does not wait for row calls to end.
    GateNotAwaited = "gate-not-awaited",
    /// Who has found a frame does not look whether it still holds the page.
    TagUnchecked = "tag-unchecked",
    /// A hint of the hash index is believed.
    HintBelieved = "hint-believed",
    /// A page that is given back stays marked as used.
    PageNotFreed = "page-not-freed",
    /// A waiter does not look again when it has announced itself.
    WakeupLost = "wakeup-lost",
}

/// Whether this bug is planted.
#[cfg(feature = "canary")]
pub fn is_planted(bug: Bug) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<Bug>> = std::sync::OnceLock::new();
    let choose = || {
        let name = std::env::var("WINDFALL_CANARY").ok()?;
        let chosen = Bug::ALL.iter().find(|bug| bug.name() == name);
        Some(*chosen.unwrap_or_else(|| panic!("there is no bug called {name}")))
    };
    *CHOSEN.get_or_init(choose) == Some(bug)
}

/// No bug is planted.
#[cfg(not(feature = "canary"))]
#[inline]
pub const fn is_planted(_: Bug) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bug_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<_> = Bug::ALL.iter().map(|bug| bug.name()).collect();
        assert!(names.len() == Bug::ALL.len() && names.len() >= 20);
        assert!(std::env::var("WINDFALL_CANARY").is_ok() || !Bug::ALL.iter().any(|bug| is_planted(*bug)));
    }
}
