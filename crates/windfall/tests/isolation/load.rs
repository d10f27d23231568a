//! The calls of clients in a history: transactions of a few calls on few keys, drawn from a seed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
};

use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};

use super::{
    client::{Answer, Call, Client, Key, Level, Lock, Rows},
    history::{History, Recorder},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Lists,
    Registers,
}

/// The number of keys in use at a time. The window of keys moves on, so that no list becomes long.
const KEYS: u64 = 8;
/// The number of writes after which the window moves on by one key.
const WRITES_PER_KEY: u64 = 20;
/// The most rows in a range.
const RANGE: u64 = 4;

/// The state that all clients of a history share.
#[derive(Clone)]
pub(crate) struct Load {
    pub shape: Shape,
    /// The levels of transactions. One that is listed more often is more likely.
    pub levels: Vec<Level>,
    /// The next number to write: each is written once.
    pub next: Arc<AtomicU64>,
    /// Whether clients pick rows, too.
    pub picks: bool,
}

impl Load {
    pub(crate) fn new(shape: Shape, levels: &[Level]) -> Self {
        Self { shape, levels: levels.to_vec(), next: Arc::new(AtomicU64::new(1)), picks: false }
    }

    /// Lets clients pick rows, too.
    pub(crate) fn with_picks(self) -> Self {
        Self { picks: true, ..self }
    }
}

/// One client's part of the load.
pub(crate) struct Part {
    load: Load,
    chance: StdRng,
    /// The remaining calls before its transaction ends.
    left: u32,
    last: Key,
    /// The level of its transaction.
    level: Level,
}

impl Part {
    pub(crate) fn new(load: &Load, seed: u64) -> Self {
        Self {
            load: load.clone(),
            chance: StdRng::seed_from_u64(seed),
            left: 0,
            last: 0,
            level: Level::ReadCommitted,
        }
    }

    /// Returns the next call. `is_open` is whether the client has an open transaction.
    pub(crate) fn next(&mut self, is_open: bool) -> Call {
        if !is_open {
            self.left = self.chance.random_range(1..=6);
            self.level = *self.load.levels.choose(&mut self.chance).expect("a load has a level");
            return Call::Begin(self.level);
        }
        if self.left == 0 {
            return if self.chance.random_ratio(1, 10) { Call::Rollback } else { Call::Commit };
        }
        self.left -= 1;
        let base = self.load.next.load(SeqCst) / WRITES_PER_KEY;
        // The row that was just read is often the row that is written.
        if !self.chance.random_ratio(1, 3) || self.last < base {
            self.last = base + self.chance.random_range(0..KEYS);
        }
        let key = self.last;
        let range = Rows::between(key, key + self.chance.random_range(1..RANGE));
        match self.chance.random_range(0..20) {
            0..6 => Call::Read(Rows::key(key), Lock::Plain),
            6..9 => Call::Read(range, Lock::Plain),
            10..13
                if self.load.picks
                    && self.level <= Level::ReadCommitted
                    && self.chance.random_ratio(1, 2) =>
            {
                Call::Pick(range)
            }
            9 => Call::Read(Rows::key(key), Lock::Shared),
            10 => Call::Read(Rows::key(key), Lock::Exclusive),
            11 => Call::Read(range, Lock::Shared),
            12 => Call::Read(range, Lock::Exclusive),
            _ => {
                let item = self.load.next.fetch_add(1, SeqCst);
                match self.load.shape {
                    Shape::Lists => Call::Append(key, item),
                    Shape::Registers if self.chance.random_ratio(1, 4) => Call::Delete(key, item),
                    Shape::Registers => Call::Put(key, item),
                }
            }
        }
    }
}

/// Lets clients work in a random order, on one thread, until `transactions` have begun. Then one client reads all rows.
pub(crate) fn run<C: Client>(clients: Vec<C>, load: &Load, transactions: usize, seed: u64) -> History {
    let mut chance = StdRng::seed_from_u64(seed);
    let mut clients = parts(clients, load, &mut chance);
    let mut begun = 0;
    while begun < transactions || clients.iter().any(|(client, _)| client.is_open()) {
        let n = chance.random_range(0..clients.len());
        let (client, part) = &mut clients[n];
        if client.is_open() || begun < transactions {
            begun += usize::from(!client.is_open());
            continue_session(client, part);
        }
    }
    finish(clients)
}

/// Runs the load with each client on a thread of its own and with `transactions` per client.
pub(crate) fn run_on_threads<C: Client + Send>(
    clients: Vec<C>,
    load: &Load,
    transactions: usize,
    seed: u64,
) -> History {
    let mut clients = parts(clients, load, &mut StdRng::seed_from_u64(seed));
    thread::scope(|scope| {
        for (client, part) in &mut clients {
            scope.spawn(move || {
                let mut begun = 0;
                while begun < transactions || client.is_open() {
                    begun += usize::from(!client.is_open());
                    continue_session(client, part);
                    // The transaction that it waits for must make progress.
                    thread::yield_now();
                }
            });
        }
    });
    finish(clients)
}

fn parts<C: Client>(clients: Vec<C>, load: &Load, chance: &mut StdRng) -> Vec<(Recorder<C>, Part)> {
    let clock = Arc::new(AtomicU64::new(1));
    let part = |(n, client)| (Recorder::new(client, n, clock.clone()), Part::new(load, chance.random()));
    (0..).zip(clients).map(part).collect()
}

fn continue_session<C: Client>(client: &mut Recorder<C>, part: &mut Part) {
    if client.is_waiting() {
        client.answer();
    } else {
        client.call(&part.next(client.is_open()));
    }
}

/// The first client reads all rows, and the history is collected from all clients.
fn finish<C: Client>(mut clients: Vec<(Recorder<C>, Part)>) -> History {
    let all = Rows::between(0, Key::MAX);
    for call in [Call::Begin(Level::ReadCommitted), Call::Read(all, Lock::Plain), Call::Commit] {
        let answer = clients[0].0.call(&call);
        assert!(matches!(answer, Answer::Done | Answer::Rows(_) | Answer::Unknown), "the others are done");
    }
    History::of(clients.into_iter().map(|(client, _)| client))
}
