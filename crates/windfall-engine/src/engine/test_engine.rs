//! An open engine for the unit tests of this crate.

use std::collections::BTreeSet;

use windfall_sim::{SimulatedDisk, SimulatedEnv};

use super::Engine;
use crate::{
    catalog::{DdlOptions, Table, TableDefinition},
    env::Env,
    ids::PageNo,
    mtr::Mtr,
    options::Options,
    page::{PageOp, PageType},
    store::Tree,
    sync::Arc,
    tablespace::pages_in_use,
};

/// Opens the database on this disk, or creates one.
pub(crate) fn open(disk: &SimulatedDisk, env: Arc<dyn Env>, options: &Options) -> Engine {
    Engine::open(Arc::new(disk.clone()), env, options, &|_| {}).unwrap()
}

/// Creates a table without indexes.
pub(crate) fn create_table(engine: &Engine, name: &str) -> Arc<Table> {
    let options = DdlOptions { flush: engine.flush_mode(), until: None };
    engine.catalog.create_table(name, &TableDefinition::default(), options).unwrap()
}

/// Creates a table with a page, so that it gets a file.
pub(crate) fn create_table_with_page(engine: &Engine, name: &str) {
    let table = create_table(engine, name);
    let tree = table.with_schema(|schema| schema.clustered.clone());
    let mut mtr = Mtr::begin(&engine.pool).unwrap();
    let slot = mtr.latch_first(tree.space()).unwrap().expect("no page yet");
    mtr.apply(slot, &PageOp::Format { kind: PageType::Map, level: 0 });
    tree.space().set_has_pages();
    mtr.commit().unwrap();
}

/// Returns a tree, and its engine, which must be kept open.
pub(crate) fn lone_tree() -> (Arc<Tree>, Engine) {
    let options = Options::default().page_size(4096).buffer_pool_size(256 * 4096).log_size(4 << 20);
    let engine = open(&SimulatedDisk::new(1), Arc::new(SimulatedEnv::new(1)), &options);
    let tree = create_table(&engine, "t").with_schema(|schema| schema.clustered.clone());
    (tree, engine)
}

/// Panics unless the system tree is sound and has every page that its tablespace has in use, except the allocation
/// map.
pub(crate) fn check_system_tree(engine: &Engine) {
    let tree = engine.system.tree();
    let used: BTreeSet<PageNo> = pages_in_use(&engine.pool, tree.space()).unwrap().into_iter().collect();
    let found: BTreeSet<PageNo> = tree.check().unwrap().pages.iter().collect();
    assert_eq!(used.symmetric_difference(&found).collect::<Vec<_>>(), [&PageNo(0)]);
}
