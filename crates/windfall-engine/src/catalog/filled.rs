//! Trees that a statement fills before its record names them ([`Filled`]).
//!
//! **Purpose.** Loads of tables, long metadata, and headers of trees without pages are written before the statement
//! commits. If it fails, they are dropped.
//!
//! The log of that drop is reserved before the first page: a statement often fails because the disk is full, and then
//! the log that is kept for drops may be used up as well. A load keeps this reservation until its end
//! ([`FilledAside`]). That of the trees of an alteration that is open is admitted when they are dropped; if it is
//! refused, they stay listed as filled until the next opening drops them.
//!
//! **Invariants.** While a tree is filled, its tablespace is listed as that of a statement in progress (test:
//! `no_statement_makes_a_file_look_unowned`), until its table can be found (test:
//! `no_group_makes_a_file_look_unowned`). A statement that fails leaves none of its trees (tests:
//! `a_refused_load_leaves_nothing`, `a_refused_statement_leaves_no_metadata`), also when no log can be reserved any
//! more (test: `trees_are_dropped_although_the_log_is_used_up`). After a crash no record
//! names them, so they are dropped by the next opening (tests: `a_crash_during_a_load_leaves_all_or_nothing`,
//! `an_alteration_crashes_at_every_operation`).

use super::{
    state::{Catalog, SpacesBeingFilled, new_space},
    table::TableSchema,
};
use crate::{
    buffer::Space,
    error::Result,
    ids::SpaceId,
    log::{LOG_OVERHEAD_BYTES, LogReservation, Record},
    mtr::Mtr,
    store::Tree,
    sync::Arc,
};

/// Trees that no record names yet. They are dropped with this, unless they are named by then.
#[must_use = "the trees are dropped unless they are named"]
pub(super) struct Filled<'a> {
    pub(super) catalog: &'a Catalog,
    trees: Vec<Arc<Tree>>,
    making: Vec<SpacesBeingFilled<'a>>,
    /// The log of their drop; none for trees that were set aside.
    room: Option<LogReservation<'a>>,
}

/// Filled trees between two calls, with the log of their drop. They are dropped with this.
#[derive(Debug)]
#[must_use = "the trees are dropped unless they are taken back"]
pub(super) struct FilledAside {
    catalog: Arc<Catalog>,
    trees: Vec<Arc<Tree>>,
    reserved: u64,
}

impl FilledAside {
    /// Takes the trees back.
    pub(super) fn again(&mut self) -> Filled<'_> {
        let mut filled = Filled::again(&self.catalog, core::mem::take(&mut self.trees));
        let reserved = core::mem::take(&mut self.reserved);
        filled.room = (reserved > 0).then(|| self.catalog.pool.context().log.attach_bytes(reserved));
        filled
    }
}

impl Drop for FilledAside {
    fn drop(&mut self) {
        drop(self.again());
    }
}

impl<'a> Filled<'a> {
    pub(super) fn new(catalog: &'a Catalog) -> Self {
        Self { catalog, trees: Vec::new(), making: Vec::new(), room: None }
    }

    /// Returns a new tree in this tablespace, which was never used.
    pub(super) fn tree(&mut self, space: SpaceId) -> Result<Arc<Tree>> {
        let tree = self.catalog.tree(new_space(space));
        self.begin(&tree)?;
        Ok(tree)
    }

    /// Begins to fill a tree that has no page yet.
    fn begin(&mut self, tree: &Arc<Tree>) -> Result<()> {
        let id = tree.space().id();
        let bytes = size_of_val(&id) as u64;
        match &mut self.room {
            None => {
                let log = &self.catalog.pool.context().log;
                self.room = Some(log.reserve(LOG_OVERHEAD_BYTES + bytes)?);
            }
            Some(room) => room.extend(bytes)?,
        }
        self.making.push(self.catalog.make([id]));
        self.trees.push(tree.clone());
        Ok(())
    }

    /// Returns a new tree in this tablespace, which was never used, with a root and a header.
    pub(super) fn tree_with_header(&mut self, space: SpaceId) -> Result<Arc<Tree>> {
        let tree = self.tree(space)?;
        self.catalog.ensure_header(&tree)?;
        Ok(tree)
    }

    /// Adds the trees of a new table that are not yet here.
    pub(super) fn add(&mut self, schema: &TableSchema) -> Result<()> {
        for tree in schema.trees() {
            if self.space(tree.space().id()).is_none() {
                self.begin(tree)?;
            }
        }
        Ok(())
    }

    /// Returns the tablespace of a tree, if the statement has filled it.
    pub(super) fn space(&self, id: SpaceId) -> Option<Arc<Space>> {
        self.spaces().find(|space| space.id() == id).cloned()
    }

    /// Returns the tablespaces of all trees.
    pub(super) fn spaces(&self) -> impl Iterator<Item = &Arc<Space>> {
        self.trees.iter().map(|tree| tree.space())
    }

    /// Returns its trees, which stay listed as those of a statement in progress until [`Filled::again`] has them.
    pub(super) fn set_aside(mut self) -> Vec<Arc<Tree>> {
        self.making.drain(..).for_each(core::mem::forget);
        core::mem::take(&mut self.trees)
    }

    /// As [`Filled::set_aside`], with the log of their drop.
    pub(super) fn aside(mut self, catalog: &Arc<Catalog>) -> FilledAside {
        debug_assert!(
            core::ptr::eq(self.catalog, &raw const **catalog),
            "trees are those of another catalog"
        );
        let reserved = self.room.take().map_or(0, |room| room.detach_bytes(u64::MAX));
        FilledAside { catalog: catalog.clone(), trees: self.set_aside(), reserved }
    }

    /// Takes back trees that were set aside.
    pub(super) fn again(catalog: &'a Catalog, trees: Vec<Arc<Tree>>) -> Self {
        let making = trees.iter().map(|tree| catalog.made([tree.space().id()])).collect();
        Self { catalog, trees, making, room: None }
    }

    /// Keeps all trees: records name them, and so do the tables of published names. Until then they were listed as
    /// those of a statement in progress.
    pub(super) fn named(mut self) {
        self.trees.clear();
    }

    /// Drops all trees. Its log is reserved; that of trees that were set aside is taken from what is kept for drops.
    fn discard(&self) -> Result<()> {
        let spaces: Vec<SpaceId> = self.spaces().map(|space| space.id()).collect();
        let log = &self.catalog.pool.context().log;
        let admit = || log.admit_freeing(LOG_OVERHEAD_BYTES + size_of_val(&*spaces) as u64);
        let admitted = if self.room.is_none() { Some(admit()?) } else { None };
        let room = self.room.as_ref().or(admitted.as_ref()).expect("log is reserved or admitted");
        let mut mtr = Mtr::begin(&self.catalog.pool)?;
        mtr.record(&Record::Drop { spaces: spaces.into() });
        debug_assert!(
            mtr.logged() as u64 <= room.bytes(),
            "a drop logs more than was reserved before the trees were filled"
        );
        let end = mtr.commit()?;
        self.trees.iter().for_each(|tree| self.catalog.detach(tree, end));
        Ok(())
    }
}

impl Drop for Filled<'_> {
    fn drop(&mut self) {
        if !self.trees.is_empty()
            && let Err(error) = self.discard()
        {
            tracing::warn!(
                target: "windfall::ddl",
                %error, "what a statement has filled is dropped at the next opening",
            );
            // They are there until then.
            self.making.drain(..).for_each(core::mem::forget);
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

#[cfg(test)]
mod tests {
    use windfall_sim::{SimulatedDisk, SimulatedEnv};

    use crate::{
        catalog::{DdlOptions, LoadLimits, LoadedValue},
        engine::test_engine::{create_table, open},
        options::Options,
        sync::Arc,
    };

    #[test]
    fn trees_are_dropped_although_the_log_is_used_up() {
        let disk = SimulatedDisk::new(1);
        let options = Options::default().page_size(4096).buffer_pool_size(128 * 4096).log_size(4 << 20);
        let engine = open(&disk, Arc::new(SimulatedEnv::new(1)), &options);
        create_table(&engine, "t");
        let options = DdlOptions { flush: engine.flush_mode(), until: None };
        let mut load = engine.catalog.begin_load("t", LoadLimits::default()).unwrap();
        for n in 0..300_u32 {
            load.push(n.to_be_bytes().into(), LoadedValue::Whole(vec![7; 200]), None).unwrap();
        }
        engine.pool.flush_all().unwrap();
        let trees: Vec<_> =
            engine.catalog.making().into_iter().map(|id| engine.pool.space(id).unwrap()).collect();
        assert!(!trees.is_empty(), "the load has written nothing");
        disk.set_capacity(Some(disk.used()));
        let mut used = Vec::new();
        for bytes in [10_000, 100, 1] {
            used.extend(std::iter::from_fn(|| engine.log.admit_freeing(bytes).ok()));
        }
        assert!(engine.catalog.drop_tables(&["t"], options).is_err(), "there is room for a drop");
        drop(load);
        assert!(trees.iter().all(|space| space.is_dropped()), "a tree of the load is left");
        assert!(engine.catalog.making().is_empty());
    }
}
