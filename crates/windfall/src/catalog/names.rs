//! The names of tables, in memory.
//!
//! **Purpose.** Finds a table by its name, and lets one DDL statement at a time decide over a name.
//!
//! **Invariants.** A statement claims all names that it touches, in order, before it changes anything, and whoever asks
//! for a claimed name waits for the outcome, unless the statement itself still waits for another name, or lets its
//! names be found while it works. No lock is held while the statement works: a claim is a mark. A shard's lock is held
//! for the time of a look into a map.
//!
//! **May touch.** `table`, `env`, `error`, `sync`.

use core::{hash::BuildHasher, time::Duration};

use rustc_hash::{FxBuildHasher, FxHashMap};
use smallvec::SmallVec;

use super::table::Table;
use crate::{
    env::Env,
    error::{InTheWay, LockError},
    sync::{Arc, Event, Mutex, Rank, is_inside},
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
    held: SmallVec<[Held<'a>; 1]>,
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

    /// Claims names, once nobody else is deciding over any of them. It waits until the moment that is said, if one is.
    /// A name that is given twice is claimed once.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn claim<'a>(&'a self, names: &[&'a str], until: Option<Duration>) -> Result<Claim<'a>, LockError> {
        let mut sorted: SmallVec<[&str; 1]> = names.into();
        sorted.sort_unstable();
        sorted.dedup();
        let mut claim = Claim { names: self, held: SmallVec::with_capacity(sorted.len()) };
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

    /// All names and tables, in order of name. A name that a statement is deciding over is what it was before.
    pub fn all(&self) -> Vec<(Arc<str>, Arc<Table>)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            for (name, entry) in &*shard.lock() {
                all.extend(entry.table.as_ref().map(|table| (name.clone(), table.clone())));
            }
        }
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
        self.names.decided.notify_ordered();
    }
}
