//! The tree on the classic pool, in every version, compared with a model.
//!
//! **Purpose.** Checks that the pool keeps pages: a pool much smaller than the tree evicts and writes all the time,
//! with and without the hash index, with one thread and with several.
//!
//! **Invariants.** The tree returns what the model returns (test: `a_tree_larger_than_the_pool_matches_the_model`).

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use windfall::{
    disk::FileName,
    env::RealEnv,
    ids::{PageNo, SpaceId},
};
use windfall_btree::{
    page::PageType,
    tree::store::{MiniTransaction as _, PageStore as _},
};
use windfall_sim::Fault;

use super::{Era, PoolOptions};
use crate::testing::{check_pool, get, new_space, pool, put, random, remove, tree};

const ERAS: [Era; 5] = [Era::Mysql51, Era::Mysql55, Era::Xtradb, Era::Mysql56, Era::Mysql80];

#[test]
fn a_tree_larger_than_the_pool_matches_the_model() {
    for (n, era) in ERAS.into_iter().enumerate() {
        let options = PoolOptions {
            era,
            instances: 1 + n % 3,
            frames: 96,
            page_size: 4096,
            hash_index: n % 2 == 0,
            dirty_percent: 90,
        };
        let (_disk, pool) = pool(options);
        let space = new_space(&pool, 20);
        let tree = tree(&pool, &space, 100);
        let (mut model, mut state) = (BTreeMap::new(), n as u64);
        for round in 0..20_000_u32 {
            let key = (random(&mut state) % 5_000).to_be_bytes();
            match random(&mut state) % 10 {
                0..4 => {
                    let value = vec![round as u8; (random(&mut state) % 200) as usize];
                    put(&tree, &key, &value);
                    model.insert(key, value);
                }
                4 => {
                    remove(&tree, &key);
                    model.remove(&key);
                }
                _ => assert_eq!(get(&tree, &key).as_ref(), model.get(&key), "{era:?}"),
            }
            if round % 100 == 0 {
                pool.clean().unwrap();
            }
            if round % 1_000 == 0 {
                check_pool(&pool);
            }
        }
        assert_eq!(tree.check().unwrap().entries, model.len() as u64, "{era:?}");
        let counters = &pool.counters;
        assert!(counters.evictions.load(Relaxed) > 1_000 && counters.reads.load(Relaxed) > 1_000);
        assert_eq!(pool.hash_index().built() > 0, options.hash_index, "{era:?}");
        pool.flush_all().unwrap();
        check_pool(&pool);
        assert_eq!(pool.occupancy()[1], 0);
    }
}

#[test]
fn threads_share_a_small_pool() {
    for (n, era) in ERAS.into_iter().enumerate() {
        let options = PoolOptions {
            era,
            instances: 1 + n % 2,
            frames: 160,
            page_size: 4096,
            hash_index: n % 2 == 1,
            dirty_percent: 50,
        };
        let (_disk, pool) = pool(options);
        let space = new_space(&pool, 20);
        let tree = tree(&pool, &space, 100);
        let workers = pool.spawn(&RealEnv::default()).unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let writers: Vec<_> = (0..3_u64)
                .map(|who| {
                    let tree = &tree;
                    scope.spawn(move || {
                        let mut state = who;
                        let mut model = BTreeMap::new();
                        for round in 0..4_000_u64 {
                            let key = [who, random(&mut state) % 1_500].map(u64::to_be_bytes).concat();
                            if random(&mut state).is_multiple_of(4) {
                                remove(tree, &key);
                                model.remove(&key);
                            } else {
                                let value = round.to_be_bytes().repeat((random(&mut state) % 20) as usize);
                                put(tree, &key, &value);
                                model.insert(key, value);
                            }
                        }
                        model
                    })
                })
                .collect();
            let readers: Vec<_> = (0..2_u64)
                .map(|who| {
                    let (tree, stop) = (&tree, &stop);
                    scope.spawn(move || {
                        let mut state = who + 77;
                        while !stop.load(Relaxed) {
                            let key = [random(&mut state) % 3, random(&mut state) % 1_500]
                                .map(u64::to_be_bytes)
                                .concat();
                            if let Some(value) = get(tree, &key) {
                                let (first, _) = value.as_chunks::<8>();
                                assert!(first.windows(2).all(|w| w[0] == w[1]), "a torn value");
                            }
                        }
                    })
                })
                .collect();
            let models: Vec<_> = writers.into_iter().map(thread::ScopedJoinHandle::join).collect();
            stop.store(true, Relaxed);
            let models: Vec<_> = models.into_iter().map(Result::unwrap).collect();
            for reader in readers {
                reader.join().unwrap();
            }
            for (key, value) in models.iter().flatten() {
                assert_eq!(get(&tree, key).as_ref(), Some(value), "{era:?}");
            }
            let rows: usize = models.iter().map(BTreeMap::len).sum();
            assert_eq!(tree.check().unwrap().entries, rows as u64);
        });
        drop(workers);
        check_pool(&pool);
    }
}

const SMALL: PoolOptions = PoolOptions {
    era: Era::Mysql80,
    instances: 1,
    frames: 64,
    page_size: 4096,
    hash_index: false,
    dirty_percent: 90,
};

/// A page that a mini-transaction frees must not be given to another one before the commit, which releases its latch.
#[test]
fn a_freed_page_is_in_use_until_the_commit() {
    let (_disk, pool) = pool(SMALL);
    let space = new_space(&pool, 20);
    let handle = space.tree(SpaceId(100)).unwrap();
    let in_use =
        |page: PageNo| space.extents().iter().flatten().any(|used| *used == handle.in_file(page).page);
    let mut mtr = pool.begin().unwrap();
    let latched = mtr.allocate(&handle, PageType::Leaf, 0, PageNo(0)).unwrap();
    let page = mtr.page_no(latched);
    mtr.commit().unwrap();
    assert!(in_use(page));
    let mut mtr = pool.begin().unwrap();
    let latched = mtr.latch(&handle, page).unwrap();
    mtr.free(&handle, latched);
    assert!(in_use(page), "it is latched");
    mtr.commit().unwrap();
    assert!(!in_use(page));
}

#[test]
fn a_page_whose_sync_fails_stays_dirty() {
    let (disk, pool) = pool(SMALL);
    let space = new_space(&pool, 20);
    let tree = tree(&pool, &space, 100);
    put(&tree, b"key", b"value");
    let [_, dirty, _] = pool.occupancy();
    disk.fail_on(FileName::Data(space.id), Fault::SyncFails);
    assert!(pool.flush_all().is_err());
    assert_eq!((pool.occupancy()[1], dirty > 0), (dirty, true), "it was not synced");
    pool.flush_all().unwrap();
    assert_eq!(pool.occupancy()[1], 0);
    check_pool(&pool);
}
