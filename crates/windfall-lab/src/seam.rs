//! A table whose point reads `windfall bench seam` examines: the tree over the engine's pool, without the layers above.
//!
//! **Purpose.** The tree is written against the traits of [`windfall_btree::tree::store`], so that classic pools can be
//! used below it. The product must pay nothing for that. The benchmark counts what the compiled read does.
//!
//! **Invariants.** All pages of the table are in the pool (checked by `windfall-lab/src/seam.rs::load`).

use std::{path, sync::Arc};

use windfall::{FlushLog, error::Result};
use windfall_btree::page::EntryHeader;
use windfall_engine::lab::BufferPool;

use crate::{
    server::{PAGE_SIZE, Server as _, Start, Table, product::Product, rows},
    system::{PolicyName, System},
};

/// The fill factor of the loaded tree's nodes, in percent.
const FILL: usize = 93;

/// A table that is entirely in the pool.
#[derive(Debug)]
pub struct Cached {
    _server: Product,
    table: Arc<Table<BufferPool>>,
}

impl Cached {
    /// Creates a table with rows of these keys and values, in an empty folder.
    ///
    /// # Errors
    /// Errors of the engine.
    pub fn load(
        folder: &path::Path,
        hash_index: bool,
        rows: impl ExactSizeIterator<Item = ([u8; 8], [u8; 100])>,
    ) -> Result<Self> {
        let system = System { hash_index, ..System::of(PolicyName::Detach) };
        let pages = (rows.len() * 200 / PAGE_SIZE + 1024) as u64;
        let start = Start { system, folder, pages, log: 256 << 20, flush: FlushLog::Write };
        let server = Product::start(&start)?;
        let table = server.create("cached", false)?;
        let mut loader = table.rows.bulk_load(FILL)?;
        for (n, (key, value)) in rows.enumerate() {
            if n.is_multiple_of(10_000) {
                server.log().wait_for_room(0)?;
            }
            loader.push(&key, rows::HEADER, &value)?;
        }
        let end = loader.finish()?;
        server.commit(end)?;
        let [in_pool, _] = server.entries();
        let used = server.used_bytes(&[Arc::clone(&table)])?;
        assert!(in_pool * PAGE_SIZE as u64 >= used, "{used} bytes of pages do not fit into the pool");
        Ok(Self { _server: server, table })
    }

    /// Reads a key with the tree.
    ///
    /// # Errors
    /// Errors of the tree.
    #[inline(never)]
    pub fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<Option<EntryHeader>> {
        self.table.rows.get_into(key, value)
    }
}
