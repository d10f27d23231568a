//! Drops and truncations concurrent with readers, writers, eviction and the cleaner.
//!
//! **Purpose.** Checks that a reader never gets a row of another incarnation of a table than the one that it accessed,
//! and that the pool is consistent afterwards, with every policy.
//!
//! **Method.** Each client has its own keys, and a model of their values in the table that stays and in the incarnation
//! on which it worked last. The pool is smaller than either table.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use parking_lot::Mutex;
use windfall::{
    disk::{Disk as _, FileName},
    env::RealEnv,
    error::{Error, Result},
};
use windfall_btree::tree::Tree;
use windfall_sim::SimulatedDisk;

use super::{DropPolicy, of};
use crate::{
    pool::{ClassicPool, PoolOptions, Space},
    server::rows,
    system::PolicyName,
    testing::{SetOnDrop, check_pool, new_space, pool, random, tree, wait_until},
    watch::{self, Role},
};

const CLIENTS: u64 = 3;
/// Keys of a client in each table.
const KEYS: u64 = 400;
/// The number of drops or truncations.
const DROPS: u64 = 10;
/// Iterations of the clients before each of them.
const ITERATIONS_BEFORE: u64 = 500;

type Model = BTreeMap<[u8; 16], Vec<u8>>;

/// A table between its creation and its drop or truncation.
struct Incarnation {
    number: u64,
    space: Arc<Space>,
    tree: Tree<ClassicPool>,
}

/// The state that all threads share.
struct Shared<'a> {
    policy: &'a dyn DropPolicy,
    disk: SimulatedDisk,
    pool: Arc<ClassicPool>,
    stays: Incarnation,
    goes: Mutex<Arc<Incarnation>>,
    /// The number of times that a client found an incarnation dropped.
    refused: AtomicU64,
    /// Iterations of the clients: one operation on the table that stays, then several on the other.
    iterations: AtomicU64,
    over: AtomicBool,
}

fn key(client: u64, n: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&client.to_be_bytes());
    key[8..].copy_from_slice(&n.to_be_bytes());
    key
}

/// Returns a value that contains its incarnation and its key.
fn value(number: u64, key: &[u8; 16], state: &mut u64) -> Vec<u8> {
    let mut value = number.to_be_bytes().to_vec();
    value.extend(key);
    value.resize(24 + (random(state) % 900) as usize, random(state) as u8);
    value
}

/// Performs a random operation on a row of an incarnation. `model` has the values of this client's keys.
fn work(on: &Incarnation, client: u64, model: &mut Model, state: &mut u64) -> Result<()> {
    let own = key(client, random(state) % KEYS);
    match random(state) % 8 {
        0..3 => {
            let value = value(on.number, &own, state);
            rows::put(&on.tree, &own, &value)?;
            model.insert(own, value);
        }
        3 => {
            rows::remove(&on.tree, &own)?;
            model.remove(&own);
        }
        4..7 => assert_eq!(rows::get(&on.tree, &own)?.as_ref(), model.get(&own), "of {}", on.number),
        _ => {
            let other = key(random(state) % CLIENTS, random(state) % KEYS);
            if let Some(value) = rows::get(&on.tree, &other)? {
                assert_eq!(value[..8], on.number.to_be_bytes(), "a row of another incarnation");
                assert_eq!(value[8..24], other);
            }
        }
    }
    Ok(())
}

impl Shared<'_> {
    /// Works until the end of the test. Returns the model of the table that stays, and the number and the model of the
    /// last incarnation of the other.
    fn client(&self, client: u64) -> (Model, u64, Model) {
        let mut state = client;
        let [mut staying, mut going] = [Model::new(), Model::new()];
        let mut number = 0;
        while !self.over.load(Relaxed) {
            work(&self.stays, client, &mut staying, &mut state).unwrap();
            self.iterations.fetch_add(1, Relaxed);
            let on = self.goes.lock().clone();
            if on.number != number {
                (number, going) = (on.number, Model::new());
            }
            // Several operations in a row, so that pages are hashed.
            for _ in 0..4 {
                match work(&on, client, &mut going, &mut state) {
                    Ok(()) => {}
                    Err(Error::TableDropped(_)) => {
                        assert!(!on.tree.space().is_live());
                        self.refused.fetch_add(1, Relaxed);
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
        (staying, number, going)
    }

    /// Drops the table and creates it again, or truncates it in place.
    fn renew(&self, in_place: bool) {
        let (old, refused) = (self.goes.lock().clone(), self.refused.load(Relaxed));
        let number = old.number + 1;
        let space = if in_place {
            let trees = old.space.renew();
            self.policy.remove_tablespace(&self.pool, &old.space, &trees);
            self.await_io(&old.space);
            self.disk.truncate(FileName::Data(old.space.id), 0).unwrap();
            old.space.clone()
        } else {
            old.space.mark_dropped();
            self.policy.remove_tablespace(&self.pool, &old.space, &old.space.trees());
            self.await_io(&old.space);
            self.pool.detach(&old.space);
            self.disk.remove(FileName::Data(old.space.id)).unwrap();
            new_space(&self.pool, 1_000 + number)
        };
        wait_until("a client finds it dropped", || self.refused.load(Relaxed) > refused);
        let tree = tree(&self.pool, &space, 100_000 + number);
        *self.goes.lock() = Arc::new(Incarnation { number, space, tree });
    }

    /// Waits until the clients have done more iterations.
    fn await_clients(&self) {
        let before = self.iterations.load(Relaxed);
        wait_until("the clients work", || self.iterations.load(Relaxed) >= before + ITERATIONS_BEFORE);
    }

    fn await_io(&self, space: &Space) {
        wait_until("nothing is read or written", || {
            self.pool.context().health.check().unwrap();
            space.is_quiet()
        });
    }
}

/// Asserts that exactly the rows of the models are in the tree.
fn check<'a>(on: &Incarnation, models: impl Iterator<Item = &'a Model>) {
    let all: Model = models.flatten().map(|(key, value)| (*key, value.clone())).collect();
    for n in 0..KEYS {
        for key in (0..CLIENTS).map(|client| key(client, n)) {
            assert_eq!(rows::get(&on.tree, &key).unwrap().as_ref(), all.get(&key));
        }
    }
    assert_eq!(on.tree.check().unwrap().entries, all.len() as u64);
}

fn drop_concurrently(name: PolicyName, policy: &dyn DropPolicy, hash_index: bool) {
    let options = PoolOptions {
        era: policy.era(),
        instances: 1 + usize::from(hash_index),
        frames: 128,
        page_size: 4096,
        hash_index,
        dirty_percent: 50,
    };
    let (disk, pool) = pool(options);
    let table = |id, number| {
        let space = new_space(&pool, id);
        let tree = tree(&pool, &space, 100 * id);
        Incarnation { number, space, tree }
    };
    let (stays, goes) = (table(20, 0), Mutex::new(Arc::new(table(21, 1))));
    let (refused, iterations, over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let shared = Shared { policy, disk, stays, goes, refused, iterations, over, pool: pool.clone() };
    let workers = pool.spawn(&RealEnv::default()).unwrap();
    let known: Vec<_> = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|n| {
                scope.spawn({
                    let shared = &shared;
                    move || shared.client(n)
                })
            })
            .collect();
        let over = SetOnDrop(&shared.over);
        watch::set_role(Role::Dropper);
        for n in 0..DROPS {
            shared.await_clients();
            shared.renew(policy.truncates_in_place() && n % 2 == 0);
        }
        shared.await_clients();
        wait_until("pages are evicted, and some are hashed", || {
            let is_hashed = pool.hash_index().built() > 0 || !hash_index;
            is_hashed && pool.counters.evictions.load(Relaxed) > 100
        });
        drop(over);
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    drop(workers);
    pool.context().health.check().unwrap();
    check(&shared.stays, known.iter().map(|(staying, ..)| staying));
    let last = shared.goes.lock().clone();
    assert_eq!(last.number, 1 + DROPS);
    let of_last = known.iter().filter(|(_, number, _)| *number == last.number);
    check(&last, of_last.map(|(.., going)| going));
    assert_eq!(pool.hash_index().built() > 0, hash_index, "{name}");
    pool.flush_all().unwrap();
    check_pool(&pool);
}

#[test]
fn tables_are_dropped_during_reads_writes_and_cleaning() {
    for name in PolicyName::ALL {
        for hash_index in [false, true] {
            if let Some(policy) = of(name) {
                drop_concurrently(name, &*policy, hash_index);
            }
        }
    }
}
