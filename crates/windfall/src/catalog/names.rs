//! The names of tables, in memory.
//!
//! **Purpose.** Finds a table by its name, and lets one DDL statement at a time decide over a name.
//!
//! **Invariants.** A statement claims all names that it touches, in order, before it changes anything, and whoever asks
//! for a claimed name waits for the outcome, unless the statement itself still waits for another name, or lets its
//! names be found while it works. No lock is held while the statement works: a claim is a mark. A shard's lock is held
//! for the time of a look into a map.
//!
//! A listing goes from shard to shard, and a table that gets another name meanwhile might be in none when it comes
//! by. So a claim that gives tables other names publishes them under the lock of [`Moves`], and while a listing is
//! under way these moves are kept, by number. At its end a listing looks up, under that lock, what the names mean that
//! tables were given since it began: what has a name all the time is listed, each table and each name once. Moves from
//! before the oldest listing began are not kept.
//!
//! **May touch.** `table`, `env`, `error`, `sync`.

use core::{hash::BuildHasher, time::Duration};
use std::collections::{BTreeMap, VecDeque};

use rustc_hash::{FxBuildHasher, FxHashMap};
use smallvec::SmallVec;

use super::table::Table;
use crate::{
    env::Env,
    error::{InTheWay, LockError},
    sync::{Arc, Bug, Event, Mutex, Rank, is_inside, planted},
};

const SHARDS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// Nobody is deciding over the name.
    Free,
    /// A statement is deciding over the name, and who asks for it waits.
    Claimed,
    /// A statement is, and the name goes on to mean what it does.
    Kept,
}

/// What a name means, or meant before somebody claimed it.
#[derive(Debug)]
struct Entry {
    table: Option<Arc<Table>>,
    mark: Mark,
}

/// Listings, and what they might miss.
#[derive(Debug, Default)]
struct Moves {
    /// Listings that are under way, by the number of the first move after each began: how many.
    listings: BTreeMap<u64, usize>,
    /// The number of the first move that is kept.
    first: u64,
    /// Tables that were given other names since the oldest of the listings began, in this order.
    moved: VecDeque<Move>,
}

/// A table, and the name that it was given.
type Move = (Arc<str>, Arc<Table>);

impl Moves {
    /// The number of the next move.
    fn next(&self) -> u64 {
        self.first + self.moved.len() as u64
    }

    /// Ends a listing. What it returns is kept for no listing any more.
    fn end(&mut self, from: u64) -> Vec<Move> {
        let others = self.listings.get_mut(&from).expect("the listing is under way");
        *others -= 1;
        if *others == 0 {
            self.listings.remove(&from);
        }
        let oldest = self.listings.keys().next().copied().unwrap_or(self.next());
        let cut = self.moved.drain(..(oldest - self.first) as usize).collect();
        self.first = oldest;
        cut
    }
}

type Shard = Mutex<FxHashMap<Arc<str>, Entry>>;

/// The names.
#[derive(Debug)]
pub struct Names {
    env: Arc<dyn Env>,
    shards: Box<[Shard]>,
    moves: Mutex<Moves>,
    decided: Event,
}

/// A listing that is under way.
struct Listing<'a> {
    names: &'a Names,
    /// The number of the first move that it may miss.
    from: u64,
}

impl<'a> Listing<'a> {
    fn begin(names: &'a Names) -> Self {
        let mut moves = names.moves.lock();
        let from = moves.next();
        *moves.listings.entry(from).or_default() += 1;
        Self { names, from }
    }

    /// Corrects what the listing has found by the moves since it began.
    fn correct(&self, found: Vec<Move>) -> Vec<Move> {
        // No table gets another name meanwhile.
        let moves = self.names.moves.lock();
        let moved = moves.moved.range((self.from - moves.first) as usize..);
        // The last name of each is that of the last move. Then the table may have been dropped, and another one made.
        let last: FxHashMap<*const Table, &Arc<str>> =
            moved.map(|(name, table)| (Arc::as_ptr(table), name)).collect();
        if last.is_empty() {
            return found;
        }
        let mut corrected: FxHashMap<Arc<str>, Option<Arc<Table>>> = FxHashMap::default();
        for name in last.values() {
            corrected.entry((*name).clone()).or_insert_with(|| self.names.now(name));
        }
        let is_right =
            |(name, table): &Move| !last.contains_key(&Arc::as_ptr(table)) && !corrected.contains_key(name);
        let (mut all, wrong): (Vec<_>, Vec<_>) = found.into_iter().partition(is_right);
        drop(moves);
        // Handles are let go of without the lock.
        drop(wrong);
        all.extend(corrected.into_iter().filter_map(|(name, table)| Some((name, table?))));
        all
    }
}

impl Drop for Listing<'_> {
    fn drop(&mut self) {
        let cut = self.names.moves.lock().end(self.from);
        // Handles are let go of without the lock.
        drop(cut);
    }
}

/// Names that a statement decides over. When it is dropped, what [`Claim::set`] said last is published.
#[derive(Debug)]
pub struct Claim<'a> {
    names: &'a Names,
    held: SmallVec<[Held<'a>; 1]>,
    /// Tables get other names.
    moves: bool,
}

/// A claimed name, and what it is to mean.
type Held<'a> = (&'a str, Option<Arc<Table>>);

impl Names {
    /// No names.
    pub fn new(env: Arc<dyn Env>) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::new(Rank::Names, FxHashMap::default())).collect();
        let moves = Mutex::new(Rank::Moves, Moves::default());
        Self { env, shards, moves, decided: Event::new() }
    }

    fn shard(&self, name: &str) -> &Shard {
        // The lower bits choose the place within the shard.
        let hash = FxBuildHasher.hash_one(name) >> 32;
        &self.shards[hash as usize % SHARDS]
    }

    /// The table of this name, once nobody is deciding over it. A thread inside a gate, for which a statement may be
    /// waiting, gets what the name meant before.
    pub fn get(&self, name: &str) -> Option<Arc<Table>> {
        let mut found = None;
        let mut look = || {
            let shard = self.shard(name).lock();
            let entry = shard.get(name);
            found = entry.and_then(|entry| entry.table.clone());
            entry.is_none_or(|entry| entry.mark != Mark::Claimed) || is_inside()
        };
        if !look() {
            self.env.wait(&self.decided, &mut look);
        }
        found
    }

    /// What the name means now; if a statement is deciding over it, what it meant before.
    fn now(&self, name: &str) -> Option<Arc<Table>> {
        self.shard(name).lock().get(name).and_then(|entry| entry.table.clone())
    }

    /// Claims names, once nobody else is deciding over any of them. It waits until the moment that is said, if one is.
    /// A name that is given twice is claimed once.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn claim<'a>(&'a self, names: &[&'a str], until: Option<Duration>) -> Result<Claim<'a>, LockError> {
        let mut sorted: SmallVec<[&str; 1]> = names.into();
        sorted.sort_unstable();
        sorted.dedup();
        let held = SmallVec::with_capacity(sorted.len());
        let mut claim = Claim { names: self, held, moves: false };
        let mut waited = false;
        for name in sorted {
            if !claim.take(name) {
                // That may last as long as the building of an index: what is claimed already can be found meanwhile.
                claim.keep();
                waited = true;
                claim.wait_and_take(name, until)?;
            }
        }
        if waited {
            claim.hide();
        }
        Ok(claim)
    }

    /// Enters a table whose record was found when the database was opened.
    pub fn enter(&self, name: &str, table: Arc<Table>) {
        self.shard(name).lock().insert(name.into(), Entry { table: Some(table), mark: Mark::Free });
    }

    /// How many names there are, claimed ones included.
    pub fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// All tables, each once, in order of name. A name that a statement is deciding over is what it was before. Of a
    /// table that gets another name meanwhile it is one of the two; one that is made or dropped meanwhile is listed or
    /// not.
    pub fn all(&self) -> Vec<(Arc<str>, Arc<Table>)> {
        self.all_seen(|| {})
    }

    /// The same; between two shards it does this.
    fn all_seen(&self, mut between: impl FnMut()) -> Vec<(Arc<str>, Arc<Table>)> {
        let listing = Listing::begin(self);
        let mut all = Vec::new();
        for shard in &self.shards {
            for (name, entry) in &*shard.lock() {
                all.extend(entry.table.as_ref().map(|table| (name.clone(), table.clone())));
            }
            between();
        }
        let mut all = listing.correct(all);
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }
}

impl<'a> Claim<'a> {
    /// Claims one more name, if nobody else has.
    fn take(&mut self, name: &'a str) -> bool {
        let mut shard = self.names.shard(name).lock();
        if let Some(entry) = shard.get_mut(name) {
            if entry.mark != Mark::Free {
                return false;
            }
            entry.mark = Mark::Claimed;
            self.held.push((name, entry.table.clone()));
        } else {
            shard.insert(name.into(), Entry { table: None, mark: Mark::Claimed });
            self.held.push((name, None));
        }
        true
    }

    /// Claims a name that somebody else has, when he is done.
    fn wait_and_take(&mut self, name: &'a str, until: Option<Duration>) -> Result<(), LockError> {
        let names = self.names;
        let Some(until) = until else {
            names.env.wait(&names.decided, &mut || self.take(name));
            return Ok(());
        };
        let began = names.env.now();
        let at_most = until.saturating_sub(began);
        let mut taken = false;
        names.env.wait_for(&names.decided, at_most, &mut || {
            taken = self.take(name);
            taken
        });
        let in_the_way = InTheWay::new([]);
        match taken {
            true => Ok(()),
            false if at_most.is_zero() => Err(LockError::Busy(in_the_way)),
            false => Err(LockError::TimedOut { in_the_way, waited: names.env.now().saturating_sub(began) }),
        }
    }

    fn mark(&self, mark: Mark) {
        for (name, _) in &self.held {
            self.names.shard(name).lock().get_mut(*name).expect("the name is claimed").mark = mark;
        }
    }

    fn place(&self, name: &str) -> usize {
        self.held.binary_search_by(|(held, _)| (*held).cmp(name)).expect("the name was claimed")
    }

    /// The table of a claimed name.
    pub fn table(&self, name: &str) -> Option<&Arc<Table>> {
        self.held[self.place(name)].1.as_ref()
    }

    /// Lets the names be found meanwhile: they go on to mean what they do. Other statements wait all the same.
    pub fn keep(&self) {
        self.mark(Mark::Kept);
        self.names.decided.notify_ordered();
    }

    /// Whoever asks for the names waits for the outcome from now on.
    pub fn hide(&self) {
        self.mark(Mark::Claimed);
    }

    /// The claimed names in order, each once, and their tables.
    pub fn tables(&self) -> impl Iterator<Item = (&str, Option<&Arc<Table>>)> + Clone {
        self.held.iter().map(|(name, table)| (*name, table.as_ref()))
    }

    /// None of the claimed names means anything from now on.
    pub fn set_all_gone(&mut self) {
        self.held.iter_mut().for_each(|(_, table)| *table = None);
    }

    /// Says that a table which another name means is meant by this name from now on.
    pub fn set_moved(&mut self, name: &str, table: Arc<Table>) {
        self.moves = true;
        self.set(name, Some(table));
    }

    /// Says what the name means from now on.
    pub fn set(&mut self, name: &str, table: Option<Arc<Table>>) {
        let place = self.place(name);
        self.held[place].1 = table;
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        // All of them together, for a listing.
        let mut moves = self.moves.then(|| self.names.moves.lock());
        if let Some(moves) =
            moves.as_mut().filter(|moves| !moves.listings.is_empty() && !planted(Bug::MoveUnlisted))
        {
            let named = self.held.iter().filter_map(|(name, table)| Some(((*name).into(), table.clone()?)));
            moves.moved.extend(named);
        }
        for (name, table) in self.held.drain(..) {
            let mut shard = self.names.shard(name).lock();
            let before = if table.is_some() {
                let entry = shard.get_mut(name).expect("the name is claimed");
                core::mem::replace(entry, Entry { table, mark: Mark::Free }).table
            } else {
                shard.remove(name).and_then(|entry| entry.table)
            };
            // Nobody else may hold that table: its memory is not freed under the lock.
            drop(shard);
            drop(before);
        }
        drop(moves);
        self.names.decided.notify_ordered();
    }
}

#[cfg(test)]
mod tests {
    use windfall_sim::SimulatedEnv;

    use super::{
        super::{record::TableRecord, table::Shape, tests::lone_tree},
        *,
    };
    use crate::store::Tree;

    const TABLES: usize = 20;

    fn rename(names: &Names, from: &str, to: &str) {
        let mut claim = names.claim(&[from, to], None).unwrap();
        let table = claim.table(from).unwrap().clone();
        claim.set(from, None);
        claim.set_moved(to, table);
    }

    fn swap(names: &Names, a: &str, b: &str) {
        let mut claim = names.claim(&[a, b], None).unwrap();
        let [table_a, table_b] = [a, b].map(|name| claim.table(name).unwrap().clone());
        claim.set_moved(a, table_b);
        claim.set_moved(b, table_a);
    }

    #[test]
    fn what_has_a_name_all_the_time_is_listed() {
        let (tree, _db) = lone_tree();
        let names = Names::new(Arc::new(SimulatedEnv::new(1)));
        let kinds =
            ["home", "away"].map(|kind| (0..TABLES).map(|n| format!("{kind}{n}")).collect::<Vec<_>>());
        let tables: Vec<Arc<Table>> = (0..TABLES).map(|_| table_of(&tree)).collect();
        for (name, table) in kinds[0].iter().zip(&tables) {
            names.enter(name, table.clone());
        }
        // So that each shard is empty and full by turns when a listing comes by.
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
            assert!(names.moves.lock().moved.is_empty(), "nothing is kept behind a listing");
            let away = names.get(&kinds[1][0]).is_some();
            if away {
                kinds[1].iter().zip(&kinds[0]).for_each(|(from, to)| rename(&names, from, to));
            }
        }
    }

    fn table_of(tree: &Arc<Tree>) -> Arc<Table> {
        let clustered = tree.space().id();
        let record = TableRecord { id: 1, version: 1, clustered, metadata: Vec::new(), indexes: Vec::new() };
        let shape = Shape { record, clustered: tree.clone(), secondaries: Vec::new(), building: None };
        Arc::new(Table::new(shape, false))
    }

    fn drop_table(names: &Names, name: &str) {
        names.claim(&[name], None).unwrap().set_all_gone();
    }

    #[test]
    fn a_listing_takes_no_moves_from_before_it() {
        let (tree, _db) = lone_tree();
        // So that each of the two names is passed before and after the moves.
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
            let b = names.get("b").unwrap();
            for (which, all) in [("that one", all), ("the later one", later.unwrap())] {
                assert_eq!(all.iter().filter(|(name, _)| **name == *"b").count(), 1, "{which}: {all:?}");
                let listed = all.iter().find(|(name, _)| **name == *"b").map(|(_, table)| table);
                assert!(Arc::ptr_eq(listed.unwrap(), &b), "{which}: a table that was dropped is listed");
            }
        }
    }

    #[test]
    fn a_name_is_listed_once() {
        let (tree, _db) = lone_tree();
        for between in 0..SHARDS {
            let names = Names::new(Arc::new(SimulatedEnv::new(1)));
            for name in ["a", "b"] {
                names.enter(name, table_of(&tree));
            }
            let a = names.get("a").unwrap();
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
    fn listings_that_overlap_keep_few_moves() {
        let (tree, _db) = lone_tree();
        let names = Names::new(Arc::new(SimulatedEnv::new(1)));
        names.enter("b", table_of(&tree));
        let mut listing = Listing::begin(&names);
        for n in 0..10_000 {
            let (from, to) = if n % 2 == 0 { ("b", "c") } else { ("c", "b") };
            rename(&names, from, to);
            let next = Listing::begin(&names);
            drop(core::mem::replace(&mut listing, next));
            let kept = names.moves.lock().moved.len();
            assert!(kept <= 1, "{kept} moves are kept after {n}");
        }
        drop(listing);
        assert!(names.moves.lock().moved.is_empty());
    }
}
