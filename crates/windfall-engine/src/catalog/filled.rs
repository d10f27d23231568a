//! Trees that a statement fills before its record names them ([`Filled`]).
//!
//! **Purpose.** Loads of tables, long metadata, and headers of trees without pages are written before the statement
//! commits. If it fails, they are dropped.
//!
//! **Invariants.** While a tree is filled, its tablespace is listed as that of a statement in progress (test:
//! `no_statement_makes_a_file_look_unowned`), until its table can be found (test:
//! `no_group_makes_a_file_look_unowned`). A statement that fails leaves none of its trees (tests:
//! `a_refused_load_leaves_nothing`, `a_refused_statement_leaves_no_metadata`). After a crash no record names them, so
//! they are dropped by the next opening (tests: `a_crash_during_a_load_leaves_all_or_nothing`,
//! `an_alteration_crashes_at_every_operation`).

use super::{
    state::{Catalog, SpacesBeingFilled, new_space},
    table::TableSchema,
};
use crate::{buffer::Space, error::Result, ids::SpaceId, log::LOG_OVERHEAD_BYTES, store::Tree, sync::Arc};

/// Trees that no record names yet. They are dropped with this, unless they are named by then.
#[must_use = "the trees are dropped unless they are named"]
pub(super) struct Filled<'a> {
    pub(super) catalog: &'a Catalog,
    trees: Vec<Arc<Tree>>,
    making: Vec<SpacesBeingFilled<'a>>,
}

impl<'a> Filled<'a> {
    pub(super) fn new(catalog: &'a Catalog) -> Self {
        Self { catalog, trees: Vec::new(), making: Vec::new() }
    }

    /// Returns a new tree in this tablespace, which was never used.
    pub(super) fn tree(&mut self, space: SpaceId) -> Arc<Tree> {
        self.making.push(self.catalog.make([space]));
        let tree = self.catalog.tree(new_space(space));
        self.trees.push(tree.clone());
        tree
    }

    /// Returns a new tree in this tablespace, which was never used, with a root and a header.
    pub(super) fn tree_with_header(&mut self, space: SpaceId) -> Result<Arc<Tree>> {
        let tree = self.tree(space);
        self.catalog.ensure_header(&tree)?;
        Ok(tree)
    }

    /// Adds the trees of a new table that are not yet here.
    pub(super) fn add(&mut self, schema: &TableSchema) {
        for tree in schema.trees() {
            let id = tree.space().id();
            if self.space(id).is_none() {
                self.making.push(self.catalog.make([id]));
                self.trees.push(tree.clone());
            }
        }
    }

    /// Returns the tablespace of a tree, if the statement has filled it.
    pub(super) fn space(&self, id: SpaceId) -> Option<Arc<Space>> {
        self.spaces().find(|space| space.id() == id).cloned()
    }

    /// Returns the tablespaces of all trees.
    pub(super) fn spaces(&self) -> impl Iterator<Item = &Arc<Space>> {
        self.trees.iter().map(|tree| tree.space())
    }

    /// Keeps all trees: records name them, and so do the tables of published names. Until then they were listed as
    /// those of a statement in progress.
    pub(super) fn named(mut self) {
        self.trees.clear();
    }
}

impl Drop for Filled<'_> {
    fn drop(&mut self) {
        if !self.trees.is_empty()
            && let Err(error) = self.catalog.discard(&self.trees.iter().collect::<Vec<_>>())
        {
            tracing::warn!(
                target: "windfall::ddl",
                %error, "what a statement has filled is dropped at the next opening",
            );
        }
        self.making.clear();
    }
}

impl Catalog {
    /// Creates the header of a tree that has no page yet.
    pub(super) fn ensure_header(&self, tree: &Tree) -> Result<()> {
        let _room = self.pool.context().log.admit(LOG_OVERHEAD_BYTES)?;
        tree.ensure_root()
    }
}
