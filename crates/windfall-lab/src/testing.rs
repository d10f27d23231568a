//! Helpers for the tests of the lab: a pool over a simulated disk, and trees in it.
//!
//! **Purpose.** One way to create, fill and check a pool.
//!
//! **Method.** Nothing runs in the background unless a test starts it.

use std::{
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use windfall::{
    disk::{Disk, FileName},
    env::RealEnv,
    ids::SpaceId,
};
use windfall_btree::tree::Tree;
use windfall_sim::SimulatedDisk;

use crate::{
    pool::{ClassicPool, Context, PoolOptions, Space, TreeHash, descriptor::DIRTY, era::Part},
    server::rows,
    watch::{Mutex, Purpose},
};

/// Waits for an event for at most ten minutes, a limit that only a hang reaches. It then ends the process: after a
/// panic the test would wait for its other threads, which are the ones that hang.
pub(crate) fn wait_until(what: &str, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        if start.elapsed() > Duration::from_mins(10) {
            eprintln!("{what}: not within ten minutes");
            process::abort();
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Sets a flag when it is dropped, also by a panic: threads that work until it is set end with their test.
pub(crate) struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

pub(crate) fn pool(options: PoolOptions) -> (SimulatedDisk, Arc<ClassicPool>) {
    let disk = SimulatedDisk::new(1);
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let context = Context::new(shared, Arc::new(RealEnv::default()), options.page_size, 64 << 20).unwrap();
    (disk, Arc::new(ClassicPool::new(context, options).unwrap()))
}

pub(crate) fn tree(pool: &Arc<ClassicPool>, space: &Arc<Space>, id: u64) -> Tree<ClassicPool> {
    let handle = space.tree(SpaceId(id)).unwrap();
    Tree::new(pool.clone(), handle.clone(), TreeHash::new(pool.clone(), handle))
}

pub(crate) fn new_space(pool: &Arc<ClassicPool>, id: u64) -> Arc<Space> {
    let space = Space::new(SpaceId(id), false);
    pool.attach(&space);
    pool.context().disk.create(FileName::Data(space.id)).unwrap();
    space
}

pub(crate) fn put(tree: &Tree<ClassicPool>, key: &[u8], value: &[u8]) {
    rows::put(tree, key, value).unwrap();
}

pub(crate) fn remove(tree: &Tree<ClassicPool>, key: &[u8]) {
    rows::remove(tree, key).unwrap();
}

pub(crate) fn get(tree: &Tree<ClassicPool>, key: &[u8]) -> Option<Vec<u8>> {
    rows::get(tree, key).unwrap()
}

/// Acquires a lock of a pool, as the callers of its lists do.
pub(crate) fn lock_of_pool() -> impl Drop {
    let mutex: &'static Mutex<()> = Box::leak(Box::new(Mutex::new("pool", ())));
    mutex.lock(Purpose::Load)
}

/// Asserts that the hash index counts its entries correctly, and that each list holds the frames that belong to it: the
/// LRU list those that the page hash finds.
pub(crate) fn check_pool(pool: &ClassicPool) {
    let hashed: u32 = pool.frames().iter().map(|d| d.hashed.load(Relaxed)).sum();
    assert_eq!(hashed as usize, pool.hash_index().len());
    for instance in pool.instances() {
        let locked = instance.lock(&[Part::Lru], Purpose::Lookup);
        let found = |&f: &u32| instance.pages.find(pool.frames(), pool.frames()[f as usize].tag()) == Some(f);
        assert_eq!(instance.lru.from_oldest(pool.frames()).find(|f| !found(f)), None);
        let tagged = instance.frames.clone().filter(|&f| pool.frames()[f as usize].space() != SpaceId::NONE);
        assert_eq!(tagged.filter(found).count(), instance.lru.len() as usize);
        drop(locked);
        let held = instance.lru.from_oldest(pool.frames()).count();
        assert_eq!(held, instance.lru.len() as usize);
        assert_eq!(held + instance.free.len() as usize, instance.frames.len());
        let dirty: Vec<_> = instance.flush.from_oldest(pool.frames()).collect();
        assert!(dirty.is_sorted_by_key(|&f| pool.frames()[f as usize].oldest()));
        let marked = instance.frames.clone().filter(|&f| pool.frames()[f as usize].is(DIRTY));
        assert_eq!(dirty.len(), marked.count());
        let pinned = instance.frames.clone().find(|&f| pool.frames()[f as usize].is_pinned());
        assert_eq!(pinned, None);
    }
}

pub(crate) fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
    *state >> 33
}
