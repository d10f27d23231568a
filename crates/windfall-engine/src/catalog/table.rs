//! A table in memory: its gate and its schema ([`TableSchema`]).
//!
//! **Purpose.** The object that table handles refer to. Row calls pass the gate and work on the schema that they find
//! inside. DDL closes the gate, waits until no call is inside, and replaces the schema.
//!
//! **Invariants.** The schema changes only while the gate is closed and empty (checked by
//! `catalog/table.rs::change_schema`), so a row call works on one schema from its beginning to its end (test:
//! `those_inside_see_one_value_to_the_end`). A dropped table's gate is closed permanently (test:
//! `a_cursor_ends_with_its_table`).
//!
//! An interrupt ends the wait of a call at the gate, and the wait of a statement for the calls inside, which a time
//! limit of the statement ends, too (tests: `an_interrupt_ends_the_wait_at_a_gate`,
//! `a_statement_that_gives_up_leaves_its_tables_open`). The statement has then changed nothing: it waits before it
//! changes a record (checked by `catalog/statement.rs::close_gates`).

use core::time::Duration;

use smallvec::SmallVec;

use super::{
    auto_increment::Counter,
    record::{IndexRecord, TableRecord},
    row_log::RowLog,
};
use crate::{
    env::Env,
    error::{Blockers, Error, LockError, Owner, Result, UsageError},
    ids::{IndexNumber, SpaceId},
    store::Tree,
    sync::{
        Arc, Closed, Entered, Event, Gate, Gated, InterruptibleWait, Wake,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst, fence},
        is_nested,
    },
    tablespace::CounterKind,
    tree::store::HashIndex as _,
    txn::{
        EntryForm, Extractors, IndexKeys, Secondary,
        locks::{LEAST_FOR_PASSERS, WholeTable},
    },
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

impl Wake for Table {
    fn wake(&self) {
        self.gate().wake();
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
    /// [`Error::TableDropped`]; [`LockError::Interrupted`]; this thread is altering the table, and runs a function of
    /// the application.
    #[inline]
    pub fn enter(self: &Arc<Self>) -> Result<Call<'_>> {
        self.try_enter().map_or_else(|| self.wait_and_enter(), Ok)
    }

    /// Begins a row call, unless it would have to wait or the table was dropped.
    #[inline]
    pub fn try_enter(&self) -> Option<Call<'_>> {
        self.schema.try_enter()
    }

    #[cold]
    fn wait_and_enter(self: &Arc<Self>) -> Result<Call<'_>> {
        let wait = |event: &Event, ready: &mut dyn FnMut() -> bool| {
            let waiting = InterruptibleWait::begin(self);
            event.wait(|| ready() || waiting.is_interrupted());
        };
        self.schema.enter_by(wait).ok_or_else(|| {
            if self.gate().refuses_this_thread() {
                UsageError::CallInAlteration.into()
            } else if self.gate().is_closed_permanently() {
                Error::TableDropped(Owner::Unknown)
            } else {
                LockError::Interrupted.into()
            }
        })
    }

    /// Closes the gate without a time limit. See [`Table::close_all`].
    ///
    /// # Errors
    /// [`LockError::Interrupted`].
    pub(super) fn close(self: &Arc<Self>) -> Result<Closed<'_>, LockError> {
        let mut closed = Self::close_all(core::iter::once(self), None)?;
        Ok(closed.pop().expect("one was closed"))
    }

    /// Closes the gates of tables for a statement, and waits until the calls inside them have ended. With a time limit
    /// it waits at least [`LEAST_FOR_PASSERS`]. If it fails, the gates are open.
    ///
    /// # Errors
    /// [`LockError::Interrupted`]; the time limit, and then the error names no transaction.
    pub(super) fn close_all<'t>(
        tables: impl Iterator<Item = &'t Arc<Self>> + Clone,
        until: Option<(Duration, &dyn Env)>,
    ) -> Result<SmallVec<[Closed<'t>; 1]>, LockError> {
        let mut given_up = None;
        let mut began = None;
        let wait = |place: usize, event: &Event, ready: &mut dyn FnMut() -> bool| {
            let table = tables.clone().nth(place).expect("a gate that is closed is that of a table");
            let waiting = InterruptibleWait::begin(table);
            let mut is_over = || ready() || waiting.is_interrupted();
            let Some((until, env)) = until else {
                event.wait(&mut is_over);
                given_up = Some(LockError::Interrupted);
                return;
            };
            let now = env.now();
            let began = *began.get_or_insert(now);
            let at_most = until.max(began.saturating_add(LEAST_FOR_PASSERS)).saturating_sub(now);
            env.wait_for(event, at_most, &mut is_over);
            let waited = env.now().saturating_sub(began);
            given_up = Some(match () {
                () if waiting.is_interrupted() => LockError::Interrupted,
                () if until <= began => LockError::Busy(Blockers::calls()),
                () => LockError::TimedOut { blockers: Blockers::calls(), waited },
            });
        };
        let closed = Gate::close_all(tables.clone().map(|table| table.gate()), wait);
        closed.ok_or_else(|| given_up.expect("a wait for calls has been given up"))
    }

    /// Begins a row call that will change rows. Waits while DDL has closed the gate, and while there are too many notes
    /// for the builder of a new secondary tree.
    ///
    /// # Errors
    /// As [`Table::enter`].
    #[inline]
    pub fn enter_to_change(self: &Arc<Self>) -> Result<Call<'_>> {
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
