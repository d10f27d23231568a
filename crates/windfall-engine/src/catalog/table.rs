//! A table in memory: its gate and its schema ([`TableSchema`]).
//!
//! **Purpose.** The object that table handles refer to. Row calls pass the gate and work on the schema that they find
//! inside. DDL closes the gate, waits until no call is inside, and replaces the schema.
//!
//! **Invariants.** The schema changes only while the gate is closed and empty (checked by
//! `catalog/table.rs::change_schema`), so a row call works on one schema from its beginning to its end (test:
//! `those_inside_see_one_value_to_the_end`). A dropped table's gate is closed permanently (test:
//! `a_cursor_ends_with_its_table`).

use smallvec::SmallVec;

use super::{
    auto_increment::Counter,
    record::{IndexRecord, TableRecord},
    row_log::RowLog,
};
use crate::{
    error::{Error, Owner, Result, UsageError},
    ids::{IndexNumber, SpaceId},
    store::Tree,
    sync::{
        Arc, Closed, Entered, Gate, Gated,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst, fence},
        is_nested,
    },
    tablespace::CounterKind,
    tree::store::HashIndex as _,
    txn::{EntryForm, Extractors, IndexKeys, Secondary, locks::WholeTable},
};

/// The secondary trees of a table, for a change of a row: a list for the stack.
pub type Secondaries<'a> = SmallVec<[Secondary<'a>; 64]>;

/// The table schema at one time: its record and its trees.
#[derive(Clone, Debug)]
pub struct TableSchema {
    /// The record of the table.
    pub record: TableRecord,
    /// The clustered tree, which contains the rows.
    pub clustered: Arc<Tree>,
    /// The secondary trees, in the order of the record.
    pub secondaries: Vec<Arc<Tree>>,
    /// The tree with the metadata, if that is long.
    pub metadata: Option<Arc<Tree>>,
    /// Secondary trees that are being filled: calls that change rows note the changes there.
    pub row_log: Option<Arc<RowLog>>,
}

impl TableSchema {
    /// Returns all trees in the order of the record: the clustered one first, that of the metadata last.
    pub fn trees(&self) -> impl Iterator<Item = &Arc<Tree>> {
        core::iter::once(&self.clustered).chain(&self.secondaries).chain(&self.metadata)
    }

    /// Returns the number of its trees.
    pub(super) fn tree_count(&self) -> usize {
        1 + self.secondaries.len() + usize::from(self.metadata.is_some())
    }

    /// Returns whether its trees are those of its record, in order.
    fn is_of_its_record(&self) -> bool {
        self.secondaries.len() == self.record.indexes.len()
            && self.trees().map(|tree| tree.space().id()).eq(self.record.spaces())
    }

    /// Puts its secondary trees into an empty list, for a change of a row. Up to 64 take no memory of their own.
    pub fn secondaries_to_change<'a>(&'a self, extractors: &'a Extractors, out: &mut Secondaries<'a>) {
        debug_assert!(out.is_empty(), "the list has the trees of another table");
        let indexes = self.secondaries.iter().zip(&self.record.indexes).enumerate();
        out.extend(indexes.map(|(place, (tree, index))| Secondary {
            tree,
            unique: index.unique,
            place,
            replaces: None,
            name: &index.name,
            form: index.form,
            extraction: index.extractor.as_ref().map(|extractor| extractors.of(extractor)),
        }));
    }

    /// Returns the number of one of its indexes.
    pub fn index_number(&self, place: usize) -> IndexNumber {
        let tree = &self.secondaries[place];
        IndexNumber::new(tree.store().instance, tree.space().id(), place)
    }

    /// Returns the place of the index with this number, if it has it.
    pub fn place_of(&self, number: IndexNumber) -> Option<usize> {
        number.find(0, self.secondaries.len(), |place| self.index_number(place))
    }

    /// Returns the index keys of a row with a value that begins with these bytes, as
    /// [`KeysOf`](crate::txn::row::KeysOf) says.
    ///
    /// # Errors
    /// [`UsageError::IndexedPartTooFar`].
    pub fn keys_of(&self, value: &[u8]) -> Result<IndexKeys> {
        let mut keys = IndexKeys::default();
        for index in &self.record.indexes {
            match index.form {
                EntryForm::Terminated => keys.push(index.key.parts_of_whole(value)?),
                EntryForm::Supplied { .. } | EntryForm::Composite => keys.push_none(),
            }
        }
        Ok(keys)
    }

    /// Returns the log in which a change of a row must be noted. One that has ended, and that no statement has replaced
    /// yet, costs a change no more than this.
    #[inline]
    pub fn noting(&self) -> Option<&RowLog> {
        self.row_log.as_deref().filter(|row_log| !row_log.has_ended())
    }

    /// Returns what each of its tablespaces belongs to, given the name of the table.
    pub fn owners(&self, name: &Arc<str>) -> impl Iterator<Item = (SpaceId, Owner)> {
        let of_index = |index: &IndexRecord| {
            (index.space, Owner::Index { table: name.clone(), index: index.name.clone() })
        };
        let metadata = self.record.metadata.space().map(|space| (space, Owner::Metadata(name.clone())));
        core::iter::once((self.record.clustered, Owner::Table(name.clone())))
            .chain(self.record.indexes.iter().map(of_index))
            .chain(metadata)
    }

    /// Returns all tablespaces, including those of trees being filled.
    pub fn spaces(&self) -> impl Iterator<Item = SpaceId> {
        let row_log = self.row_log.iter().flat_map(|row_log| row_log.trees());
        self.trees().chain(row_log).map(|tree| tree.space().id())
    }
}

/// A table.
#[derive(Debug)]
pub struct Table {
    schema: Gated<TableSchema>,
    /// Whether its trees should have a hash index.
    hashed: AtomicBool,
    /// Set when it has ended, until it is taken over to be freed.
    ended: AtomicBool,
    announced_locks: AtomicU32,
    counters: [Counter; CounterKind::ALL.len()],
}

/// A row call in progress: the table schema, which does not change until the call ends.
pub type Call<'a> = Entered<'a, TableSchema>;

impl WholeTable for Table {
    fn gate(&self) -> &Gate {
        self.schema.gate()
    }

    #[inline]
    fn announced_locks(&self) -> &AtomicU32 {
        &self.announced_locks
    }
}

impl Table {
    /// Makes a table with this schema.
    pub fn new(schema: TableSchema, hashed: bool) -> Arc<Self> {
        assert!(schema.is_of_its_record(), "the trees of a table are those of its record");
        if hashed {
            schema.trees().for_each(|tree| tree.hash().switch(true));
        }
        Arc::new(Self {
            schema: Gated::new(schema),
            hashed: AtomicBool::new(hashed),
            ended: AtomicBool::new(false),
            announced_locks: AtomicU32::new(0),
            counters: CounterKind::ALL.map(Counter::new),
        })
    }

    /// Turns the hash indexes of its present and future trees on or off.
    pub fn set_hash_index(&self, on: bool) {
        self.hashed.store(on, SeqCst);
        self.apply_hash_index();
    }

    /// Returns whether its present and future trees should have a hash index.
    pub(super) fn is_hashed(&self) -> bool {
        self.hashed.load(SeqCst)
    }

    /// Applies the setting to the trees. A thread that changes the setting or the trees must call this afterwards; it
    /// reads both.
    fn apply_hash_index(&self) {
        loop {
            fence(SeqCst);
            let on = self.hashed.load(SeqCst);
            let trees: SmallVec<[Arc<Tree>; 4]> =
                self.with_schema(|schema| schema.trees().cloned().collect());
            for tree in trees.iter().filter(|tree| tree.hash().is_on() != on) {
                tree.hash().switch(on);
            }
            if self.hashed.load(SeqCst) == on {
                return;
            }
        }
    }

    /// Begins a row call. Waits while DDL has closed the gate.
    ///
    /// # Errors
    /// [`Error::TableDropped`]; this thread is altering the table, and runs a function of the application.
    #[inline]
    pub fn enter(&self) -> Result<Call<'_>> {
        self.schema.enter().ok_or_else(|| self.refused())
    }

    #[cold]
    fn refused(&self) -> Error {
        if self.gate().refuses_this_thread() {
            UsageError::CallInAlteration.into()
        } else {
            Error::TableDropped(Owner::Unknown)
        }
    }

    /// Begins a row call that will change rows. Waits while DDL has closed the gate, and while there are too many notes
    /// for the builder of a new secondary tree.
    ///
    /// # Errors
    /// [`Error::TableDropped`]; [`LockError::Interrupted`](crate::error::LockError::Interrupted).
    #[inline]
    pub fn enter_to_change(&self) -> Result<Call<'_>> {
        loop {
            let call = self.enter()?;
            // Within another call this must not wait: that call holds a key latch for which the builder may have to
            // wait.
            let full = call.row_log.as_ref().filter(|row_log| row_log.is_full() && !is_nested());
            let Some(row_log) = full.cloned() else { return Ok(call) };
            drop(call);
            row_log.wait_for_room_interruptibly()?;
        }
    }

    /// Reads the current schema; it may be replaced a moment later.
    #[inline]
    pub fn with_schema<R>(&self, read: impl FnOnce(&TableSchema) -> R) -> R {
        self.schema.with(read)
    }

    /// Returns the tablespace of its rows, which identifies the table in table locks.
    #[inline]
    pub fn space(&self) -> SpaceId {
        self.with_schema(|schema| schema.clustered.space().id())
    }

    /// Returns the current schema, for the only owner of the table.
    pub(super) fn own_schema(&mut self) -> &TableSchema {
        self.schema.get_mut()
    }

    /// Returns a copy of the current schema.
    pub fn schema(&self) -> TableSchema {
        self.with_schema(TableSchema::clone)
    }

    /// Returns one of its counters, for a call inside the gate.
    pub fn counter(&self, call: &Call<'_>, kind: CounterKind) -> &Counter {
        debug_assert!(
            call.clustered.space().id() == self.space(),
            "a number of a table is allocated inside the gate of another one"
        );
        &self.counters[kind as usize]
    }

    /// Returns the next number of each counter.
    pub(super) fn next_numbers(&self, closed: &Closed<'_>) -> Result<[u64; CounterKind::ALL.len()]> {
        let clustered = &self.closed_schema(closed).clustered;
        let mut next = [0; CounterKind::ALL.len()];
        for (counter, next) in self.counters.iter().zip(&mut next) {
            *next = counter.peek(clustered)?;
        }
        Ok(next)
    }

    /// Resets its counters. The gate must be closed.
    pub(super) fn restart_counters(&self) {
        debug_assert!(self.gate().is_closed(), "the numbers of a table are reset while calls may be inside");
        self.counters.iter().for_each(Counter::restart);
    }

    /// Ends the table, whose gate is closed: from now on it is closed permanently.
    pub(super) fn end(&self) {
        debug_assert!(self.gate().is_closed(), "a table ends while calls may be inside");
        self.gate().close_permanently();
        self.restart_counters();
        self.ended.store(true, SeqCst);
    }

    /// Returns whether it has ended and nothing has taken it over yet: once only. Its gate does not tell: another
    /// statement may have closed it, or ended the table, as soon as one name of it is published.
    pub(super) fn take_ended(&self) -> bool {
        self.ended.load(SeqCst) && self.ended.swap(false, SeqCst)
    }

    /// Makes one of its counters read its ceiling again, which a statement sets. The gate must be closed.
    pub(super) fn restart_counter(&self, kind: CounterKind, next: u64) {
        debug_assert!(self.gate().is_closed(), "the numbers of a table are reset while calls may be inside");
        self.counters[kind as usize].restart_at(next);
    }

    /// Ends the allocation of numbers, when the database is closed.
    pub(super) fn close_counters(&self) -> Result<()> {
        self.counters.iter().map(Counter::close).fold(Ok(()), Result::and)
    }

    /// Returns the gate, for DDL.
    pub fn gate(&self) -> &Gate {
        self.schema.gate()
    }

    /// Returns the schema, for the caller that has closed the gate.
    pub(super) fn closed_schema<'a>(&'a self, closed: &'a Closed<'_>) -> &'a TableSchema {
        self.schema.get(closed)
    }

    /// Replaces the schema. Returns the old one, which may own trees that are no longer named.
    pub(super) fn change_schema(&self, closed: &mut Closed<'_>, schema: TableSchema) -> TableSchema {
        assert!(closed.is_of(self.gate()), "a table's gate is closed while its schema is replaced");
        assert!(schema.is_of_its_record(), "the trees of a new schema are those of its record");
        debug_assert!(
            schema
                .row_log
                .iter()
                .flat_map(|row_log| row_log.trees())
                .all(|filled| { schema.trees().all(|tree| tree.space().id() != filled.space().id()) }),
            "a tree that is still being filled is read as an index"
        );
        let (id, version, now) = (schema.record.id, schema.record.version, schema.record.clustered);
        let before = self.schema.replace(closed, schema);
        debug_assert!(before.record.id == id, "a table gets the schema of another one");
        debug_assert!(before.record.version <= version, "a table gets an earlier definition back");
        if before.record.clustered != now {
            self.restart_counters();
        }
        self.apply_hash_index();
        before
    }
}
