//! The names of tables, in memory.
//!
//! **Purpose.** Finds a table by its name, and lets one DDL statement at a time decide over a name.
//!
//! **Invariants.** A statement claims all names that it touches, in order, before it changes anything, and whoever asks
//! for a claimed name waits for the outcome. No lock is held while the statement works: a claim is a mark. A shard's
//! lock is held for the time of a look into a map.
//!
//! **May touch.** `table`, `env`, `sync`.

use core::hash::BuildHasher;

use rustc_hash::{FxBuildHasher, FxHashMap};
use smallvec::SmallVec;

use super::table::Table;
use crate::{
    env::Env,
    sync::{Arc, Event, Mutex, Rank, is_inside},
};

const SHARDS: usize = 64;

#[derive(Debug)]
enum Entry {
    Table(Arc<Table>),
    /// A statement is deciding over the name, which meant this before.
    Claimed(Option<Arc<Table>>),
    /// A statement has claimed the name, which goes on to mean this.
    Kept(Arc<Table>),
}

type Shard = Mutex<FxHashMap<Arc<str>, Entry>>;

/// The names.
#[derive(Debug)]
pub struct Names {
    env: Arc<dyn Env>,
    shards: Box<[Shard]>,
    decided: Event,
}

/// Names that a statement decides over. When it is dropped, what [`Claim::set`] said last is published.
#[derive(Debug)]
pub struct Claim<'a> {
    names: &'a Names,
    held: SmallVec<[Held<'a>; 2]>,
}

/// A claimed name, and what it is to mean.
type Held<'a> = (&'a str, Option<Arc<Table>>);

impl Names {
    /// No names.
    pub fn new(env: Arc<dyn Env>) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::new(Rank::Names, FxHashMap::default())).collect();
        Self { env, shards, decided: Event::new() }
    }

    fn shard(&self, name: &str) -> &Shard {
        // The lower bits choose the place within the shard.
        let hash = FxBuildHasher.hash_one(name) >> 32;
        &self.shards[hash as usize % SHARDS]
    }

    /// The table of this name, once nobody is deciding over it. A thread inside a gate, for which a statement may be waiting,
    /// gets what the name meant before.
    pub fn get(&self, name: &str) -> Option<Arc<Table>> {
        let mut found = None;
        let mut look = || match self.shard(name).lock().get(name) {
            Some(Entry::Claimed(before)) => {
                found.clone_from(before);
                is_inside()
            }
            Some(Entry::Table(table) | Entry::Kept(table)) => {
                found = Some(table.clone());
                true
            }
            None => {
                found = None;
                true
            }
        };
        if !look() {
            self.env.wait(&self.decided, &mut look);
        }
        found
    }

    /// Claims names, once nobody else is deciding over any of them. A name that is given twice is claimed once.
    pub fn claim<'a>(&'a self, names: &[&'a str]) -> Claim<'a> {
        let mut sorted: SmallVec<[&str; 2]> = names.into();
        sorted.sort_unstable();
        sorted.dedup();
        let mut claim = Claim { names: self, held: SmallVec::with_capacity(sorted.len()) };
        for name in sorted {
            let held = &mut claim.held;
            let mut take = || {
                let mut shard = self.shard(name).lock();
                if let Some(entry) = shard.get_mut(name) {
                    let Entry::Table(table) = entry else { return false };
                    let table = table.clone();
                    *entry = Entry::Claimed(Some(table.clone()));
                    held.push((name, Some(table)));
                } else {
                    shard.insert(name.into(), Entry::Claimed(None));
                    held.push((name, None));
                }
                true
            };
            if !take() {
                self.env.wait(&self.decided, &mut take);
            }
        }
        claim
    }

    /// Enters a table whose record was found when the database was opened.
    pub fn enter(&self, name: &str, table: Arc<Table>) {
        self.shard(name).lock().insert(name.into(), Entry::Table(table));
    }

    /// How many names there are, claimed ones included.
    pub fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// All names and tables, in order of name. A name that a statement is deciding over is what it was before.
    pub fn all(&self) -> Vec<(Arc<str>, Arc<Table>)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            for (name, entry) in &*shard.lock() {
                if let Entry::Table(table) | Entry::Kept(table) | Entry::Claimed(Some(table)) = entry {
                    all.push((name.clone(), table.clone()));
                }
            }
        }
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }
}

impl Claim<'_> {
    fn place(&self, name: &str) -> usize {
        self.held.binary_search_by(|(held, _)| (*held).cmp(name)).expect("the name was claimed")
    }

    /// The table of a claimed name.
    pub fn table(&self, name: &str) -> Option<Arc<Table>> {
        self.held[self.place(name)].1.clone()
    }

    /// Lets the names be found meanwhile: they go on to mean what they do. Other statements wait all the same.
    pub fn keep(&self) {
        for (name, table) in &self.held {
            if let Some(table) = table {
                let mut shard = self.names.shard(name).lock();
                *shard.get_mut(*name).expect("the name is claimed") = Entry::Kept(table.clone());
            }
        }
        self.names.decided.notify();
    }

    /// The claimed names in order, each once, and their tables.
    pub fn tables(&self) -> impl Iterator<Item = (&str, Option<Arc<Table>>)> {
        self.held.iter().map(|(name, table)| (*name, table.clone()))
    }

    /// None of the claimed names means anything from now on.
    pub fn set_all_gone(&mut self) {
        self.held.iter_mut().for_each(|(_, table)| *table = None);
    }

    /// Says what the name means from now on.
    pub fn set(&mut self, name: &str, table: Option<Arc<Table>>) {
        let place = self.place(name);
        self.held[place].1 = table;
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        for (name, table) in self.held.drain(..) {
            let mut shard = self.names.shard(name).lock();
            match table {
                Some(table) => *shard.get_mut(name).expect("the name is claimed") = Entry::Table(table),
                None => drop(shard.remove(name)),
            }
        }
        self.names.decided.notify();
    }
}
