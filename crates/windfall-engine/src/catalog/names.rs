//! The names of tables, in memory, and the metadata locks on them ([`MetadataLock`]).
//!
//! **Purpose.** Finds a table by its name, and lets one DDL statement at a time change the meaning of a name.
//!
//! **Invariants.** A statement takes the metadata locks on all names that it uses, in order (checked by
//! `catalog/names.rs::take`), before it changes anything (checked by `catalog/names.rs::lock_names`). A lookup of a
//! locked name waits for the outcome, unless the statement itself still waits for another name (test:
//! `a_statement_that_waits_for_one_table_hides_no_other`), or shows its names while it works (test:
//! `calls_go_on_while_an_index_is_built`). No mutex is held while the statement works: a metadata lock is a mark, and a
//! shard's mutex is held only while its map is read or changed (by type). An interrupt ends the wait of a lookup, and
//! that for a metadata lock (tests: `an_interrupt_ends_the_wait_at_a_gate`,
//! `an_interrupt_ends_the_wait_for_a_name`).
//!
//! A listing goes from shard to shard, and could miss a table that is renamed from a shard not yet read to a shard
//! already read: while it is in progress, renames are kept, with numbers (checked by `catalog/names.rs::correct`). At
//! its end, under the mutex of [`Renames`], under which renames are published, it looks up every name that was given to
//! a table since it began, so a table that always has a name is listed (test:
//! `a_listing_contains_every_table_that_always_has_a_name`), and each table and each name only once (test:
//! `a_name_is_listed_once`). Renames from before the oldest listing are not kept (test:
//! `listings_that_overlap_keep_few_moves`).
//!
//! **Length of a name.** A table's name is a part of the key of its record, so its maximum length depends on the page
//! size. The names of indexes have the same limit. The record of a name that is as long as it may be can be created,
//! changed together with any other, and removed (tests: `a_name_may_be_as_long_as_the_page_size_allows`,
//! `tables_with_the_longest_names_and_records_are_swapped`).
//!
//! **Listings by prefix.** They find the names in the keys of the records ([`Names::with_prefix`]), which a rename
//! changes before it publishes the names. Between the two, the records do not tell the names that lookups find, and a
//! walk along the keys can pass over both names of one rename. So a rename states its names before it changes records,
//! and they are looked up as those that were published (test:
//! `a_listing_by_prefix_contains_a_table_that_is_being_renamed`). A record without a name in memory is that of a table
//! that is being created (test: `tables_of_a_prefix_come_and_go_while_they_are_listed`).

use core::{cell::Cell, hash::BuildHasher, time::Duration};
use std::collections::{BTreeMap, VecDeque};

use rustc_hash::{FxBuildHasher, FxHashMap};
use smallvec::SmallVec;

use super::table::Table;
use crate::{
    env::Env,
    error::{Blockers, LockError, Result, SchemaError},
    page::node::key_part_limit,
    sync::{Arc, Event, InterruptibleWait, Mutex, Rank, is_inside},
};

const SHARDS: usize = 64;

/// The longest name of a table or an index where the page size allows it, in bytes.
const NAME_MAX: usize = 1024;
/// Bytes of a refused name that its error quotes.
const QUOTED: usize = 60;

/// Returns the maximum length of a name in bytes: the key of a table's record is one byte longer.
pub(super) fn name_limit(page_size: usize) -> usize {
    NAME_MAX.min(key_part_limit(page_size) - 1)
}

/// Refuses a name that no table or index can have.
pub(super) fn check_name(name: &str, page_size: usize) -> Result<()> {
    let bad = |what| Err(SchemaError::BadName { name: name.into(), what }.into());
    let limit = name_limit(page_size);
    match name {
        "" => bad("it is empty"),
        _ if name.len() > limit => {
            let begin = &name[..name.floor_char_boundary(QUOTED)];
            let (name, length) = (format!("{begin}...").into(), name.len());
            Err(SchemaError::NameTooLong { name, length, limit, page_size }.into())
        }
        _ if name.contains('\0') => bad("it contains a zero byte"),
        _ => Ok(()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// No statement holds the metadata lock on the name.
    Free,
    /// A statement holds the metadata lock, and lookups of the name wait.
    Exclusive,
    /// A statement holds the metadata lock, and lookups of the name find its old meaning.
    Shared,
}

/// The meaning of a name, or its meaning before the metadata lock.
#[derive(Debug)]
struct NameEntry {
    table: Option<Arc<Table>>,
    mark: Mark,
}

/// Listings in progress, and the renames that they might miss.
#[derive(Debug, Default)]
struct Renames {
    /// The number of listings in progress, by the number of the first move after each of them began.
    listings: BTreeMap<u64, usize>,
    /// The number of the first move that is kept.
    first: u64,
    /// Tables that were renamed since the oldest listing began, in this order.
    moved: VecDeque<Move>,
    /// Names that statements in progress give to other tables: the records may have changed, the names have not.
    unpublished: Vec<Arc<str>>,
}

/// A table, and its new name.
type Move = (Arc<str>, Arc<Table>);

impl Renames {
    /// Returns the number of the next move.
    fn next(&self) -> u64 {
        self.first + self.moved.len() as u64
    }

    /// Ends a listing. Returns the renames that no listing needs any more.
    fn end(&mut self, from: u64) -> Vec<Move> {
        let others = self.listings.get_mut(&from).expect("the listing is in progress");
        *others -= 1;
        if *others == 0 {
            self.listings.remove(&from);
        }
        let oldest = self.listings.keys().next().copied().unwrap_or(self.next());
        debug_assert!(oldest >= self.first, "renames are kept again that were given up");
        let removed = self.moved.drain(..(oldest - self.first) as usize).collect();
        self.first = oldest;
        debug_assert!(
            !self.listings.is_empty() || self.moved.is_empty(),
            "renames are kept that no listing may miss"
        );
        removed
    }
}

type Shard = Mutex<FxHashMap<Arc<str>, NameEntry>>;

/// The names of all tables.
#[derive(Debug)]
pub(super) struct Names {
    env: Arc<dyn Env>,
    shards: Box<[Shard]>,
    renames: Mutex<Renames>,
    decided: Arc<Event>,
}

/// A listing in progress.
struct Listing<'a> {
    names: &'a Names,
    /// The number of the first move that it may miss.
    from: u64,
}

impl<'a> Listing<'a> {
    fn begin(names: &'a Names) -> Self {
        let mut renames = names.renames.lock();
        let from = renames.next();
        *renames.listings.entry(from).or_default() += 1;
        Self { names, from }
    }

    /// Corrects the result of the listing by the renames since it began.
    fn correct(&self, found: Vec<Move>) -> Vec<Move> {
        // While this is held, no table is renamed.
        let renames = self.names.renames.lock();
        debug_assert!(self.from >= renames.first, "a rename that a listing may miss is not kept");
        let moved = renames.moved.range((self.from - renames.first) as usize..);
        // The last name of each table is that of its last move. Since then the table may have been dropped, and another
        // one created.
        let last: FxHashMap<*const Table, &Arc<str>> =
            moved.map(|(name, table)| (Arc::as_ptr(table), name)).collect();
        if last.is_empty() && renames.unpublished.is_empty() {
            return found;
        }
        let mut corrected: FxHashMap<Arc<str>, Option<Arc<Table>>> = FxHashMap::default();
        for name in last.values().copied().chain(&renames.unpublished) {
            corrected.entry(name.clone()).or_insert_with(|| self.names.now(name));
        }
        let is_right =
            |(name, table): &Move| !last.contains_key(&Arc::as_ptr(table)) && !corrected.contains_key(name);
        let (mut all, wrong): (Vec<_>, Vec<_>) = found.into_iter().partition(is_right);
        drop(renames);
        // Handles are dropped without the mutex.
        drop(wrong);
        all.extend(corrected.into_iter().filter_map(|(name, table)| Some((name, table?))));
        all
    }
}

impl Drop for Listing<'_> {
    fn drop(&mut self) {
        let removed = self.names.renames.lock().end(self.from);
        // Handles are dropped without the mutex.
        drop(removed);
    }
}

/// A metadata lock on names, held by a DDL statement. When it is dropped, the last meanings that were set
/// ([`MetadataLock::set_all`]) are published.
#[derive(Debug)]
pub(super) struct MetadataLock<'a> {
    names: &'a Names,
    held: SmallVec<[Held<'a>; 1]>,
    /// Whether a rename was announced.
    renames: Cell<bool>,
}

/// A locked name, and its new meaning.
type Held<'a> = (&'a str, Option<Arc<Table>>);

impl Names {
    /// Makes an empty map of names.
    pub(super) fn new(env: Arc<dyn Env>) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::new(Rank::Names, FxHashMap::default())).collect();
        let renames = Mutex::new(Rank::Renames, Renames::default());
        Self { env, shards, renames, decided: Arc::default() }
    }

    fn shard(&self, name: &str) -> &Shard {
        // The lower bits choose the place in the shard's map.
        let hash = FxBuildHasher.hash_one(name) >> 32;
        &self.shards[hash as usize % SHARDS]
    }

    /// Returns the table of this name. Waits while a statement has locked the name. A thread inside a gate, for which
    /// the statement may be waiting, gets the old meaning.
    ///
    /// # Errors
    /// [`LockError::Interrupted`].
    pub(super) fn get(&self, name: &str) -> Result<Option<Arc<Table>>, LockError> {
        let mut found = None;
        let mut look = || {
            let shard = self.shard(name).lock();
            let entry = shard.get(name);
            found = entry.and_then(|entry| entry.table.clone());
            entry.is_none_or(|entry| entry.mark != Mark::Exclusive) || is_inside()
        };
        if !look() {
            let waiting = InterruptibleWait::begin(&self.decided);
            let mut is_decided = false;
            self.env.wait(&self.decided, &mut || {
                is_decided = look();
                is_decided || waiting.is_interrupted()
            });
            if !is_decided {
                return Err(LockError::Interrupted);
            }
        }
        Ok(found)
    }

    /// Returns the current meaning of the name; the old one while a statement holds the metadata lock on it.
    fn now(&self, name: &str) -> Option<Arc<Table>> {
        self.shard(name).lock().get(name).and_then(|entry| entry.table.clone())
    }

    /// Takes the metadata locks on these names. Waits until no other statement has any of them, up to `until`, if that
    /// is given. A name that is given twice is locked once.
    ///
    /// # Errors
    /// [`LockError`].
    pub(super) fn lock_names<'a>(
        &'a self,
        names: &[&'a str],
        until: Option<Duration>,
    ) -> Result<MetadataLock<'a>, LockError> {
        let mut sorted = SmallVec::<[&str; 4]>::new();
        let in_order = if names.len() > 1 {
            sorted.extend_from_slice(names);
            sorted.sort_unstable();
            sorted.dedup();
            &sorted
        } else {
            names
        };
        let held = SmallVec::with_capacity(in_order.len());
        let mut metadata_lock = MetadataLock { names: self, held, renames: Cell::new(false) };
        let mut waited = false;
        for &name in in_order {
            if !metadata_lock.take(name) {
                // The wait may be as long as an index build: the names that are already locked stay visible meanwhile.
                metadata_lock.downgrade();
                waited = true;
                metadata_lock.wait_and_take(name, until)?;
            }
        }
        if waited {
            metadata_lock.upgrade();
        }
        debug_assert!(
            names.iter().all(|name| metadata_lock.find(name).is_ok()),
            "a statement begins without one of its metadata locks"
        );
        Ok(metadata_lock)
    }

    /// Takes the metadata lock on a name, unless another statement has it. Lookups go on.
    pub(super) fn try_lock<'a>(&'a self, name: &'a str) -> Option<MetadataLock<'a>> {
        let mut metadata_lock =
            MetadataLock { names: self, held: SmallVec::new(), renames: Cell::new(false) };
        metadata_lock.take(name).then(|| {
            metadata_lock.downgrade();
            metadata_lock
        })
    }

    /// Adds a table with a record that was found when the database was opened. Returns whether it is the only one of
    /// that name.
    pub(super) fn enter(&self, name: &str, table: Arc<Table>) -> bool {
        let entry = NameEntry { table: Some(table), mark: Mark::Free };
        self.shard(name).lock().insert(name.into(), entry).is_none()
    }

    /// Returns the number of names, locked ones included.
    pub(super) fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Returns the number of names that renames in progress have announced.
    #[cfg(feature = "testing")]
    pub(super) fn announced(&self) -> usize {
        self.renames.lock().unpublished.len()
    }

    /// Returns all tables, each once, in order of name. A locked name has its old meaning. A table that is renamed
    /// meanwhile is listed under one of its names; one that is created or dropped meanwhile may be listed.
    pub(super) fn all(&self) -> Vec<(Arc<str>, Arc<Table>)> {
        self.all_seen(|| {})
    }

    /// As [`Names::all`], and calls `between` after each shard.
    fn all_seen(&self, mut between: impl FnMut()) -> Vec<(Arc<str>, Arc<Table>)> {
        let listing = Listing::begin(self);
        let mut all = Vec::new();
        for shard in &self.shards {
            for (name, entry) in &*shard.lock() {
                all.extend(entry.table.as_ref().map(|table| (name.clone(), table.clone())));
            }
            between();
        }
        in_order(listing.correct(all))
    }

    /// Returns the tables with names that begin with `prefix`, as [`Names::all`] returns all. `walk` passes on the
    /// names in the keys of the records with that prefix.
    ///
    /// # Errors
    /// The error of `walk`.
    pub(super) fn with_prefix(
        &self,
        prefix: &str,
        walk: impl FnOnce(&mut dyn FnMut(&str)) -> Result<()>,
    ) -> Result<Vec<Move>> {
        let listing = Listing::begin(self);
        let mut found = Vec::new();
        walk(&mut |name| {
            debug_assert!(name.starts_with(prefix), "a walk along the keys with a prefix leaves them");
            let shard = self.shard(name).lock();
            let entry = shard.get_key_value(name);
            found.extend(entry.and_then(|(name, entry)| Some((name.clone(), entry.table.clone()?))));
        })?;
        let mut found = in_order(listing.correct(found));
        found.retain(|(name, _)| name.starts_with(prefix));
        Ok(found)
    }
}

fn in_order(mut tables: Vec<Move>) -> Vec<Move> {
    tables.sort_by(|a, b| a.0.cmp(&b.0));
    debug_assert!(tables.windows(2).all(|pair| pair[0].0 < pair[1].0), "a name is listed twice");
    tables
}

impl<'a> MetadataLock<'a> {
    /// Locks one more name, if no other statement has it. Returns whether it did.
    fn take(&mut self, name: &'a str) -> bool {
        assert!(self.held.last().is_none_or(|(last, _)| *last < name), "names are locked in order");
        let mut shard = self.names.shard(name).lock();
        if let Some(entry) = shard.get_mut(name) {
            if entry.mark != Mark::Free {
                return false;
            }
            entry.mark = Mark::Exclusive;
            self.held.push((name, entry.table.clone()));
        } else {
            shard.insert(name.into(), NameEntry { table: None, mark: Mark::Exclusive });
            self.held.push((name, None));
        }
        true
    }

    /// Waits until no other statement has the name, and locks it.
    fn wait_and_take(&mut self, name: &'a str, until: Option<Duration>) -> Result<(), LockError> {
        let names = self.names;
        let began = names.env.now();
        let at_most = until.map_or(Duration::MAX, |until| until.saturating_sub(began));
        let waiting = InterruptibleWait::begin(&names.decided);
        let mut taken = false;
        let mut is_over = || {
            taken = self.take(name);
            taken || waiting.is_interrupted()
        };
        match until {
            Some(_) => names.env.wait_for(&names.decided, at_most, &mut is_over),
            None => names.env.wait(&names.decided, &mut is_over),
        }
        let blockers = Blockers::new([]);
        match taken {
            true => Ok(()),
            false if waiting.is_interrupted() => Err(LockError::Interrupted),
            false if at_most.is_zero() => Err(LockError::Busy(blockers)),
            false => Err(LockError::TimedOut { blockers, waited: names.env.now().saturating_sub(began) }),
        }
    }

    fn mark(&self, mark: Mark) {
        for (name, _) in &self.held {
            let mut shard = self.names.shard(name).lock();
            let entry = shard.get_mut(*name).expect("the name is locked");
            debug_assert!(entry.mark != Mark::Free, "a statement's name is free to others");
            entry.mark = mark;
        }
    }

    /// Returns the place of a locked name in the list.
    fn find(&self, name: &str) -> Result<usize, usize> {
        self.held.binary_search_by(|(held, _)| (*held).cmp(name))
    }

    /// Returns the place of a name, which is locked, among the locked names.
    pub(super) fn place(&self, name: &str) -> usize {
        self.find(name).expect("the name is locked")
    }

    /// Returns the table of a locked name.
    pub(super) fn table(&self, name: &str) -> Option<&Arc<Table>> {
        self.held[self.place(name)].1.as_ref()
    }

    /// Returns the locked name that means this table.
    pub(super) fn name_of(&self, table: &Arc<Table>) -> &str {
        let mut tables = self.tables();
        let found = tables.find(|(_, at)| at.is_some_and(|at| Arc::ptr_eq(at, table)));
        found.expect("the table of a statement has a locked name").0
    }

    /// Returns whether the name is locked and means this table.
    pub(super) fn has(&self, name: &str, table: &Arc<Table>) -> bool {
        self.find(name)
            .is_ok_and(|place| self.held[place].1.as_ref().is_some_and(|at| Arc::ptr_eq(at, table)))
    }

    /// Unlocks the names that mean no table.
    pub(super) fn unlock_unused(&mut self) {
        let all = core::mem::take(&mut self.held);
        let (used, unused) = all.into_iter().partition(|(_, table)| table.is_some());
        self.held = used;
        let held = unused;
        // Publishes that they mean nothing.
        drop(MetadataLock { names: self.names, held, renames: Cell::new(false) });
    }

    /// Announces a rename, before it changes records: tables of these names will be given others of them. Listings look
    /// the names up from now on, so this comes after all waits.
    pub(super) fn begin_rename(&self) {
        self.renames.set(true);
        let names = self.held.iter().map(|(name, _)| Arc::from(*name));
        self.names.renames.lock().unpublished.extend(names);
    }

    /// Downgrades the lock: lookups find the names with their old meanings. Other statements still wait.
    pub(super) fn downgrade(&self) {
        self.mark(Mark::Shared);
        self.names.decided.notify_ordered();
    }

    /// Upgrades the lock to exclusive: lookups of the names wait for the outcome from now on.
    pub(super) fn upgrade(&self) {
        self.mark(Mark::Exclusive);
    }

    /// Returns the locked names in order, each once, and their tables.
    pub(super) fn tables(&self) -> impl Iterator<Item = (&str, Option<&Arc<Table>>)> + Clone {
        self.held.iter().map(|(name, table)| (*name, table.as_ref()))
    }

    /// Sets all locked names to mean nothing.
    pub(super) fn set_all_unused(&mut self) {
        self.held.iter_mut().for_each(|(_, table)| *table = None);
    }

    /// Sets the meanings of all locked names, in their order.
    pub(super) fn set_all(&mut self, tables: impl Iterator<Item = Option<Arc<Table>>>) {
        self.held.iter_mut().zip(tables).for_each(|(held, table)| held.1 = table);
    }

    /// Publishes the meanings of the names, and releases the lock. Passes on the tables that the names meant before.
    pub(super) fn publish_names(mut self, before: impl FnMut(Arc<Table>)) {
        self.publish(before);
    }
}

impl MetadataLock<'_> {
    /// Publishes the meanings of the names, and unlocks them. Passes on the tables that the names meant before.
    fn publish(&mut self, mut before: impl FnMut(Arc<Table>)) {
        debug_assert!(
            !self.renames.get() || {
                let mut named: Vec<_> =
                    self.held.iter().filter_map(|(_, table)| table.as_ref()).map(Arc::as_ptr).collect();
                named.sort_unstable();
                named.windows(2).all(|pair| pair[0] != pair[1])
            },
            "a table that is renamed gets two names"
        );
        // All names are published together, for a listing.
        let mut renames = self.renames.get().then(|| self.names.renames.lock());
        if let Some(renames) = renames.as_mut() {
            renames.unpublished.retain(|name| self.find(name).is_err());
        }
        if let Some(renames) = renames.as_mut().filter(|renames| !renames.listings.is_empty()) {
            let named = self.held.iter().filter_map(|(name, table)| Some(((*name).into(), table.clone()?)));
            renames.moved.extend(named);
        }
        for (name, table) in self.held.drain(..) {
            let mut shard = self.names.shard(name).lock();
            let entry = if table.is_some() {
                let entry = shard.get_mut(name).expect("the name is locked");
                Some(core::mem::replace(entry, NameEntry { table, mark: Mark::Free }))
            } else {
                shard.remove(name)
            };
            // The caller may free the table, which must not happen under the mutex.
            drop(shard);
            debug_assert!(
                entry.as_ref().is_some_and(|entry| entry.mark != Mark::Free),
                "a statement gives {name} a meaning and has not locked it"
            );
            entry.and_then(|entry| entry.table).map(&mut before);
        }
        drop(renames);
        self.names.decided.notify_ordered();
    }
}

impl Drop for MetadataLock<'_> {
    fn drop(&mut self) {
        if !self.held.is_empty() {
            self.publish(drop);
        }
    }
}

#[cfg(test)]
mod tests {
    use windfall_sim::SimulatedEnv;

    use super::{
        super::{
            record::{Metadata, TableRecord},
            table::TableSchema,
        },
        *,
    };
    use crate::{engine::test_engine::lone_tree, store::Tree};

    const TABLES: usize = 20;

    type Visit<'a> = &'a mut dyn FnMut(&str);

    impl MetadataLock<'_> {
        /// Sets the meaning of the name.
        fn set(&mut self, name: &str, table: Option<Arc<Table>>) {
            let place = self.place(name);
            self.held[place].1 = table;
        }
    }

    fn rename(names: &Names, from: &str, to: &str) {
        let mut metadata_lock = names.lock_names(&[from, to], None).unwrap();
        let table = metadata_lock.table(from).unwrap().clone();
        metadata_lock.begin_rename();
        metadata_lock.set(from, None);
        metadata_lock.set(to, Some(table));
    }

    fn swap(names: &Names, a: &str, b: &str) {
        let mut metadata_lock = names.lock_names(&[a, b], None).unwrap();
        let [table_a, table_b] = [a, b].map(|name| metadata_lock.table(name).unwrap().clone());
        metadata_lock.begin_rename();
        metadata_lock.set(a, Some(table_b));
        metadata_lock.set(b, Some(table_a));
    }

    #[test]
    fn a_listing_contains_every_table_that_always_has_a_name() {
        let (tree, _engine) = lone_tree();
        let names = Names::new(Arc::new(SimulatedEnv::new(1)));
        let kinds =
            ["home", "away"].map(|kind| (0..TABLES).map(|n| format!("{kind}{n}")).collect::<Vec<_>>());
        let tables: Vec<Arc<Table>> = (0..TABLES).map(|_| table_of(&tree)).collect();
        for (name, table) in kinds[0].iter().zip(&tables) {
            names.enter(name, table.clone());
        }
        // Each shard is empty and full in turn when a listing reaches it.
        for period in 1..5 {
            let mut round = 0;
            let all = names.all_seen(|| {
                round += 1;
                if round % period == 0 {
                    let [from, to] = if round / period % 2 == 1 { [0, 1] } else { [1, 0] };
                    kinds[from].iter().zip(&kinds[to]).for_each(|(from, to)| rename(&names, from, to));
                    (1..TABLES).for_each(|n| swap(&names, &kinds[to][n - 1], &kinds[to][n]));
                }
            });
            assert_eq!(all.len(), TABLES, "period {period}");
            for table in &tables {
                let names: Vec<_> = all.iter().filter(|(_, listed)| Arc::ptr_eq(listed, table)).collect();
                assert_eq!(names.len(), 1, "period {period}: {names:?}");
            }
            assert!(names.renames.lock().moved.is_empty(), "nothing is kept behind a listing");
            let away = names.get(&kinds[1][0]).unwrap().is_some();
            if away {
                kinds[1].iter().zip(&kinds[0]).for_each(|(from, to)| rename(&names, from, to));
            }
        }
    }

    fn table_of(tree: &Arc<Tree>) -> Arc<Table> {
        let clustered = tree.space().id();
        let record =
            TableRecord { id: 1, version: 1, clustered, metadata: Metadata::default(), indexes: Vec::new() };
        let schema = TableSchema {
            record,
            clustered: tree.clone(),
            secondaries: Vec::new(),
            metadata: None,
            row_log: None,
        };
        Table::new(schema, false)
    }

    fn drop_table(names: &Names, name: &str) {
        let mut metadata_lock = names.lock_names(&[name], None).unwrap();
        metadata_lock.set_all_unused();
        metadata_lock.publish_names(drop);
    }

    #[test]
    fn a_listing_takes_no_moves_from_before_it() {
        let (tree, _engine) = lone_tree();
        // Each of the two names is visited before and after the renames.
        for between in 0..SHARDS {
            let names = Names::new(Arc::new(SimulatedEnv::new(1)));
            names.enter("a", table_of(&tree));
            let (mut round, mut later) = (0, None);
            let all = names.all_seen(|| {
                if round == between {
                    rename(&names, "a", "b");
                    drop_table(&names, "b");
                    names.enter("b", table_of(&tree));
                    later = Some(names.all());
                }
                round += 1;
            });
            let b = names.get("b").unwrap().unwrap();
            for (which, all) in [("that one", all), ("the later one", later.unwrap())] {
                assert_eq!(all.iter().filter(|(name, _)| **name == *"b").count(), 1, "{which}: {all:?}");
                let listed = all.iter().find(|(name, _)| **name == *"b").map(|(_, table)| table);
                assert!(Arc::ptr_eq(listed.unwrap(), &b), "{which}: a table that was dropped is listed");
            }
        }
    }

    #[test]
    fn a_name_is_listed_once() {
        let (tree, _engine) = lone_tree();
        for between in 0..SHARDS {
            let names = Names::new(Arc::new(SimulatedEnv::new(1)));
            for name in ["a", "b"] {
                names.enter(name, table_of(&tree));
            }
            let a = names.get("a").unwrap().unwrap();
            let mut round = 0;
            let all = names.all_seen(|| {
                if round == between {
                    drop_table(&names, "b");
                    rename(&names, "a", "b");
                }
                round += 1;
            });
            assert_eq!(all.len(), 1, "{all:?}");
            assert!(*all[0].0 == *"b" && Arc::ptr_eq(&all[0].1, &a), "{all:?}");
        }
    }

    #[test]
    fn a_listing_by_prefix_contains_a_table_that_is_being_renamed() {
        let (tree, _engine) = lone_tree();
        let names = Names::new(Arc::new(SimulatedEnv::new(1)));
        names.enter("p b", table_of(&tree));
        names.enter("other", table_of(&tree));
        let listed = |walk: &dyn Fn(Visit<'_>)| -> Vec<String> {
            let walk = |visit: Visit<'_>| {
                walk(visit);
                Ok(())
            };
            let all = names.with_prefix("p ", walk).unwrap();
            all.into_iter().map(|(name, _)| name.to_string()).collect()
        };
        assert_eq!(listed(&|visit| visit("p b")), ["p b"]);
        let mut metadata_lock = names.lock_names(&["p a", "p b"], None).unwrap();
        let table = metadata_lock.table("p b").unwrap().clone();
        metadata_lock.begin_rename();
        // The walk has passed the place of one name before the record moved there, and is at that of the other since.
        assert_eq!(listed(&|_| {}), ["p b"]);
        assert_eq!(listed(&|visit| visit("p a")), ["p b"]);
        metadata_lock.set("p b", None);
        metadata_lock.set("p a", Some(table));
        let metadata_lock = Cell::new(Some(metadata_lock));
        assert_eq!(listed(&|_| drop(metadata_lock.take())), ["p a"]);
        assert_eq!(listed(&|visit| visit("p a")), ["p a"]);
        assert_eq!(listed(&|_| rename(&names, "p a", "q")), Vec::<String>::new());
        assert!(names.renames.lock().unpublished.is_empty());
        // A statement that fails renames nothing.
        let metadata_lock = names.lock_names(&["q", "p c"], None).unwrap();
        metadata_lock.begin_rename();
        drop(metadata_lock);
        assert_eq!(listed(&|_| {}), Vec::<String>::new());
        assert!(names.renames.lock().unpublished.is_empty() && names.get("q").unwrap().is_some());
    }

    #[test]
    fn names_without_a_table_are_unlocked() {
        let (tree, _engine) = lone_tree();
        let names = Names::new(Arc::new(SimulatedEnv::new(1)));
        names.enter("b", table_of(&tree));
        let mut metadata_lock = names.lock_names(&["c", "b", "a"], None).unwrap();
        metadata_lock.unlock_unused();
        assert_eq!(metadata_lock.tables().map(|(name, _)| name).collect::<Vec<_>>(), ["b"]);
        assert!(
            metadata_lock.has("b", &names.now("b").unwrap()) && !metadata_lock.has("b", &table_of(&tree))
        );
        // In a simulation a wait for a lock that is never released is an error.
        drop(names.lock_names(&["a", "c"], None).unwrap());
        drop(metadata_lock);
        assert_eq!(names.count(), 1);
    }

    #[test]
    fn listings_that_overlap_keep_few_moves() {
        let (tree, _engine) = lone_tree();
        let names = Names::new(Arc::new(SimulatedEnv::new(1)));
        names.enter("b", table_of(&tree));
        let mut listing = Listing::begin(&names);
        for n in 0..10_000 {
            let (from, to) = if n % 2 == 0 { ("b", "c") } else { ("c", "b") };
            rename(&names, from, to);
            let next = Listing::begin(&names);
            drop(core::mem::replace(&mut listing, next));
            let kept = names.renames.lock().moved.len();
            assert!(kept <= 1, "{kept} renames are kept after {n}");
        }
        drop(listing);
        assert!(names.renames.lock().moved.is_empty());
    }
}
