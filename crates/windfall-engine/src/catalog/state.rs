//! The catalog of an open database ([`Catalog`]).
//!
//! **Purpose.** Finds tables by name, makes tables of their records when the database is opened, and knows which
//! tablespaces unfinished statements are filling.
//!
//! **Invariants.** A record that is damaged, and one whose name another record has, refuse the opening (test:
//! `no_input_that_is_known_and_no_mutant_of_one_breaks_a_target`). A tablespace that a statement is filling is listed
//! until a record names it or it is dropped (test: `no_statement_makes_a_file_look_unowned`).

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use super::{
    ddl_options::DdlOptions,
    names::{MetadataLock, Names, check_name, name_limit},
    pause::Pause,
    record::TableRecord,
    retired::Retired,
    table::{Table, TableSchema},
};
use crate::{
    buffer::{BufferPool, Durability, Space},
    error::{LockError, Result, SchemaError, UsageError},
    ids::SpaceId,
    store::Tree,
    sync::{
        Arc, Mutex, Rank,
        atomic::{AtomicBool, Ordering::SeqCst},
        is_inside,
    },
    system::{KEY_ON_STACK, Key, SystemTree, TABLE},
    tree::hash::{HashBudget, TreeHash},
    txn::{Extractors, Transactions},
};

/// Tablespaces that a statement is filling; they are removed from the catalog's list when this is dropped.
#[derive(Debug)]
pub(super) struct SpacesBeingFilled<'a> {
    catalog: &'a Catalog,
    spaces: SmallVec<[SpaceId; 1]>,
}

impl Drop for SpacesBeingFilled<'_> {
    fn drop(&mut self) {
        let mut making = self.catalog.making.lock();
        for space in &self.spaces {
            let was_listed = making.remove(space);
            debug_assert!(was_listed, "tablespace {space} is being filled and was not listed");
        }
    }
}

/// The catalog of an open database.
#[derive(Debug)]
pub struct Catalog {
    pub(super) pool: Arc<BufferPool>,
    pub(super) system: Arc<SystemTree>,
    pub(super) transactions: Arc<Transactions>,
    pub(super) names: Names,
    /// Tables and trees that are to be freed in the background.
    pub(super) retired: Retired,
    pub(super) budget: Arc<HashBudget>,
    /// Whether new trees get a hash index.
    pub(super) hashed: AtomicBool,
    /// The extractors that the application has registered.
    pub(super) extractors: Extractors,
    /// Tablespaces that statements are filling.
    pub(super) making: Mutex<BTreeSet<SpaceId>>,
    /// Temporary tables with a name, by their ids.
    pub(super) temporary: Mutex<BTreeMap<u64, NamedTable>>,
    /// Points within statements at which a test acts.
    pub pause: Pause,
}

/// A table and its name.
pub(super) type NamedTable = (Arc<str>, Arc<Table>);

pub(super) fn no_table(name: &str) -> SchemaError {
    SchemaError::NoTable(name.into())
}

/// Returns a tablespace that is attached to the pool only with its first page.
pub(super) fn new_space(id: SpaceId) -> Arc<Space> {
    Arc::new(Space::new(id, Durability::Logged))
}

pub(super) fn record_key(name: &str) -> Key {
    let mut short = [TABLE; KEY_ON_STACK];
    match short.get_mut(1..=name.len()) {
        Some(rest) => {
            rest.copy_from_slice(name.as_bytes());
            Key::from_buf_and_len(short, 1 + name.len())
        }
        None => Key::from_vec([&[TABLE], name.as_bytes()].concat()),
    }
}

impl Catalog {
    /// Opens the catalog: reads all table records from the system tree. `attach` attaches a tablespace to the pool,
    /// with the recorded state of its file.
    ///
    /// # Errors
    /// Damage, I/O.
    pub fn open(
        pool: Arc<BufferPool>,
        system: Arc<SystemTree>,
        transactions: Arc<Transactions>,
        budget: Arc<HashBudget>,
        (hashed, extractors): (bool, Extractors),
        attach: &mut dyn FnMut(SpaceId) -> Result<Arc<Space>>,
    ) -> Result<Self> {
        let names = Names::new(pool.context().env.clone());
        let catalog = Self {
            pool,
            system,
            transactions,
            names,
            retired: Retired::default(),
            budget,
            hashed: AtomicBool::new(hashed),
            extractors,
            making: Mutex::new(Rank::Leaf, BTreeSet::new()),
            temporary: Mutex::new(Rank::Leaf, BTreeMap::new()),
            pause: Pause::default(),
        };
        let mut failure = None;
        catalog.system.scan(&[TABLE], &mut |key, value| {
            let entered = catalog.enter(&key[1..], value, attach);
            failure = entered.err();
            failure.is_none()
        })?;
        failure.map_or(Ok(catalog), Err)
    }

    fn enter(
        &self,
        name: &[u8],
        value: &[u8],
        attach: &mut dyn FnMut(SpaceId) -> Result<Arc<Space>>,
    ) -> Result<()> {
        let name = core::str::from_utf8(name).ok();
        let (Some(name), Some(record)) = (name, TableRecord::decode(value)) else {
            return Err(self.system.damaged("a table's record is damaged"));
        };
        let schema = self.schema(record, attach)?;
        if self.names.enter(name, self.new_table(schema)) {
            return Ok(());
        }
        Err(self.system.damaged(&format!("two records have the name {name}")))
    }

    pub(super) fn schema(
        &self,
        record: TableRecord,
        attach: &mut dyn FnMut(SpaceId) -> Result<Arc<Space>>,
    ) -> Result<TableSchema> {
        let clustered = self.tree(attach(record.clustered)?);
        let secondaries =
            record.indexes.iter().map(|index| Ok(self.tree(attach(index.space)?))).collect::<Result<_>>()?;
        let metadata = record.metadata.space().map(|space| attach(space).map(|space| self.tree(space)));
        let metadata = metadata.transpose()?;
        Ok(TableSchema { record, clustered, secondaries, metadata, row_log: None })
    }

    /// Returns the tree of a table in this tablespace.
    pub(super) fn tree(&self, space: Arc<Space>) -> Arc<Tree> {
        let tree = Tree::new(self.pool.clone(), space, TreeHash::new(self.budget.clone()));
        Arc::new(tree.with_horizon(self.transactions.active().clone()))
    }

    /// Turns the hash indexes of all present and future tables on or off. A session's temporary tables stay as they
    /// are.
    pub fn set_hash_index(&self, on: bool) {
        self.hashed.store(on, SeqCst);
        for (_, table) in self.tables() {
            table.set_hash_index(on);
        }
    }

    /// A background step: frees some of the tables and trees that statements have retired. Returns whether there may be
    /// more.
    pub fn free_step(&self) -> bool {
        self.retired.free_step()
    }

    /// Returns the extractors that the application has registered.
    pub fn extractors(&self) -> &Extractors {
        &self.extractors
    }

    /// Returns the number of tables.
    pub fn count(&self) -> usize {
        self.names.count()
    }

    /// Returns the maximum length of the name of a table or an index, in bytes.
    pub fn name_limit(&self) -> usize {
        name_limit(self.pool.page_size())
    }

    /// Returns the length of the longest key of a table, in bytes.
    pub fn key_limit(&self) -> usize {
        self.system.tree().key_part_limit()
    }

    pub(super) fn check_name(&self, name: &str) -> Result<()> {
        check_name(name, self.pool.page_size())
    }

    /// Returns the table of this name.
    ///
    /// # Errors
    /// [`SchemaError::NoTable`]; [`LockError::Interrupted`].
    pub fn table(&self, name: &str) -> Result<Arc<Table>> {
        self.names.get(name)?.ok_or_else(|| no_table(name).into())
    }

    /// Returns all names and tables, in order of name.
    pub fn tables(&self) -> Vec<(Arc<str>, Arc<Table>)> {
        self.names.all()
    }

    /// Refuses a statement from within a row call, because the statement might wait for that call.
    ///
    /// # Errors
    /// [`UsageError::StatementInCall`].
    pub fn check_outside() -> Result<()> {
        if !is_inside() {
            return Ok(());
        }
        Err(UsageError::StatementInCall.into())
    }

    pub(super) fn lock_names<'a>(
        &'a self,
        names: &[&'a str],
        options: DdlOptions,
    ) -> Result<MetadataLock<'a>> {
        Self::check_outside()?;
        Ok(self.names.lock_names(names, options.until)?)
    }

    /// Runs something on a table while no statement and no row call uses the table. Returns `None` if there is no table
    /// of this name.
    ///
    /// # Errors
    /// [`LockError::Interrupted`].
    pub fn alone<T>(&self, name: &str, run: impl FnOnce(&Table) -> T) -> Result<Option<T>, LockError> {
        let metadata_lock = self.names.lock_names(&[name], None)?;
        let Some(table) = metadata_lock.table(name) else { return Ok(None) };
        let _closed = table.close()?;
        Ok(Some(run(table)))
    }

    /// Runs something on a table while no statement and no row call uses it, whatever its name is now; `hint` may be
    /// it. Returns `None` if the table has no name any more.
    ///
    /// # Errors
    /// [`LockError::Interrupted`].
    pub fn alone_with<T>(
        &self,
        table: &Arc<Table>,
        hint: &str,
        run: impl FnOnce(&Arc<str>) -> T,
    ) -> Result<Option<T>, LockError> {
        let mut name: Arc<str> = hint.into();
        loop {
            let metadata_lock = self.names.lock_names(&[&name], None)?;
            if metadata_lock.has(&name, table) {
                let _closed = table.close()?;
                return Ok(Some(run(&name)));
            }
            drop(metadata_lock);
            let mut tables = self.tables().into_iter();
            let Some((found, _)) = tables.find(|(_, other)| Arc::ptr_eq(other, table)) else {
                return Ok(None);
            };
            name = found;
        }
    }

    /// Records that a statement is filling these tablespaces, which no record names, until the returned value is
    /// dropped. By then they are named or dropped.
    pub(super) fn make(&self, spaces: impl IntoIterator<Item = SpaceId>) -> SpacesBeingFilled<'_> {
        let spaces: SmallVec<[SpaceId; 1]> = spaces.into_iter().collect();
        let mut making = self.making.lock();
        for space in &spaces {
            let is_new = making.insert(*space);
            debug_assert!(is_new, "two statements fill one tablespace");
        }
        drop(making);
        SpacesBeingFilled { catalog: self, spaces }
    }

    /// As [`Catalog::make`], of tablespaces that are recorded already.
    pub(super) fn made(&self, spaces: impl IntoIterator<Item = SpaceId>) -> SpacesBeingFilled<'_> {
        let spaces: SmallVec<[SpaceId; 1]> = spaces.into_iter().collect();
        debug_assert!(
            spaces.iter().all(|space| self.making.lock().contains(space)),
            "a tablespace that was set aside is not listed"
        );
        SpacesBeingFilled { catalog: self, spaces }
    }

    /// Returns the tablespaces that statements are filling.
    pub fn making(&self) -> BTreeSet<SpaceId> {
        self.making.lock().clone()
    }
}
