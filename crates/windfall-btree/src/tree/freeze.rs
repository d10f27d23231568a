//! Freezing: version headers that no thread needs any more make room in a full leaf.
//!
//! **Purpose.** The header of a version tells readers whether they see it, and rollback and purge whether it is theirs.
//! Once every reader sees the version, the header only takes space: up to 14 bytes of an entry that may have 8. Before
//! a leaf is split, such headers are removed ([`PageOp::LeafFreeze`]); if that makes enough room, the leaf is not
//! split. The trees of tables freeze, and no others: `Catalog::tree` gives them a [`Horizon`].
//!
//! **Invariants.** Without a [`Horizon`], which states the versions that are old enough, a tree freezes nothing (test:
//! `a_tree_without_a_horizon_is_not_frozen`). The versions of transactions below [`Horizon::frozen_below`] are frozen,
//! and of these only live ones, because the header of a delete-marked entry is needed up to its removal (test:
//! `a_freeze_removes_the_headers_of_old_live_records_and_no_others`).
//!
//! A horizon is read before the mini-transaction begins, since an old one is as good as a new one: horizons only rise;
//! and a rollback that fails stops the database before its transaction ceases to be active, and a stopped database
//! begins no mini-transaction (test: `nothing_is_frozen_after_a_rollback_has_failed`).
//!
//! The operation has the horizon: a replay freezes the same records, whatever has ended by then (test:
//! `behaves_as_a_map_4k`). A transaction below the horizon had ended before that was read, and so its end is before the
//! operation in the log: no transaction that recovery rolls back has a frozen version (test:
//! `every_crash_point_of_short_histories`).
//!
//! Slots, keys, values and the order of entries stay, and so do positions of cursors and hints of the hash index (test:
//! `a_tree_is_the_same_map_when_its_leaves_are_frozen`). A reader of the leaf notices the change of the page, as any
//! other (test: `readers_and_cursors_during_splits_and_merges`).
//!
//! A freeze frees a share of the leaf ([`LEAST_SHARE`]) or does not happen (test:
//! `a_leaf_is_split_if_a_freeze_frees_little`). So a leaf is not rewritten for every entry, and making room ends.

use core::fmt::Debug;

use super::{
    Tree,
    descent::Target,
    store::{Access, MiniTransaction, PageStore},
};
use crate::{
    error::Result,
    ids::TrxId,
    page::{PageOp, freezable_bytes},
    sync::Arc,
};

/// A full leaf is frozen if that frees at least this part of a page.
const LEAST_SHARE: usize = 32;

/// What the users of a tree know of the versions in it.
pub trait Horizon: Send + Sync + Debug {
    /// Returns a transaction id. Each transaction below it has ended, and every reader sees its versions: now, and from
    /// now on. At most [`TrxId::MAX`]; 0 if nothing is known.
    fn frozen_below(&self) -> TrxId;
}

impl<S: PageStore> Tree<S> {
    /// Gives the handle a horizon, so that leaves are frozen before they are split. No caller may then hold a latch, or
    /// a lock that ranks after those that the horizon takes, when it makes room.
    #[must_use]
    pub fn with_horizon(self, horizon: Arc<dyn Horizon>) -> Self {
        debug_assert!(!self.log_reserved, "log that was reserved for splits is used to freeze");
        Self { horizon: Some(horizon), ..self }
    }

    /// Freezes the leaf of a key, which is full, if that frees enough.
    pub(super) fn freeze_full_leaf(&self, key: &[u8]) -> Result<()> {
        self.freeze(key, self.store.page_size() / LEAST_SHARE)
    }

    /// Freezes the leaf of a key if that frees at least this many bytes. Must be called outside any mini-transaction
    /// that holds pages of this tree.
    pub(super) fn freeze(&self, key: &[u8], least: usize) -> Result<()> {
        let Some(horizon) = &self.horizon else { return Ok(()) };
        let below = horizon.frozen_below();
        loop {
            let Some(path) = self.reach(Target::Key(key), 0, Access::Point)? else { return Ok(()) };
            let mut mtr = self.begin_long()?;
            let Some(leaf) = mtr.upgrade(&self.space, &path.node)? else { continue };
            let bytes = freezable_bytes(mtr.page(leaf), below)
                .map_err(|what| self.damaged(mtr.page_no(leaf), what))?;
            if bytes >= least {
                mtr.apply(leaf, &PageOp::LeafFreeze { below });
                debug_assert_eq!(
                    freezable_bytes(mtr.page(leaf), below),
                    Ok(0),
                    "a leaf that was just frozen has more to freeze"
                );
                mtr.commit()?;
            }
            return Ok(());
        }
    }
}
