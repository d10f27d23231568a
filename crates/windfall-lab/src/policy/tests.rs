//! The steps of each policy, counted for known contents of the pool, and the state of the pages afterwards.
//!
//! **Purpose.** Checks that a policy does exactly what the head of its file says.
//!
//! **Method.** Expected values are counted by a scan of all descriptors, not by the lists and counters that the
//! policies use.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use windfall::{
    disk::{Disk as _, FileName},
    error::Error,
    ids::{PageNo, SpaceId},
};
use windfall_btree::{
    page::Access,
    tree::{Tree, store::PageStore as _},
};
use windfall_sim::SimulatedDisk;

use super::{
    DropPolicy, Steps,
    extent_ahi::{ExtentAhi, sweep},
    flush_list::FlushList,
    flush_list_ahi::FlushListAhi,
    lazy_mark::LazyMark,
    lru_scan::LruScan,
    of,
    stale_version::StaleVersion,
    steps::BATCH,
};
use crate::{
    pool::{
        ClassicPool, Era, PoolOptions, Space,
        descriptor::{DELETED, DIRTY},
    },
    system::PolicyName,
    testing::{check_pool, get, new_space, pool, put, tree, wait_until},
    watch::Purpose,
};

/// Every policy of a classic pool.
fn all() -> impl Iterator<Item = (PolicyName, Box<dyn DropPolicy>)> {
    PolicyName::ALL.into_iter().filter_map(|name| Some((name, of(name)?)))
}

/// A pool with a table that stays and one that is dropped.
struct Fixture {
    disk: SimulatedDisk,
    pool: Arc<ClassicPool>,
    stays: Tree<ClassicPool>,
    space: Arc<Space>,
    goes: Tree<ClassicPool>,
}

/// The pages of a tablespace in the pool, counted by a scan of all descriptors.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    resident: u64,
    dirty: u64,
    hashed: u64,
    hash_entries: u64,
    marked: u64,
}

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

impl Fixture {
    /// Creates the pool; the table to be dropped has about this many leaves.
    fn new(policy: &dyn DropPolicy, hash_index: bool, instances: usize, leaves: u32) -> Self {
        let options = PoolOptions {
            era: policy.era(),
            instances,
            frames: 6_000,
            page_size: 4096,
            hash_index,
            dirty_percent: 90,
        };
        let (disk, pool) = pool(options);
        let stays = tree(&pool, &new_space(&pool, 20), 100);
        (0..3_000).for_each(|n| put(&stays, &key(n), &[1; 1000]));
        let space = new_space(&pool, 30);
        let goes = tree(&pool, &space, 101);
        (0..leaves * 3).for_each(|n| put(&goes, &key(n), &[2; 1000]));
        pool.flush_all().unwrap();
        Self { disk, pool, stays, space, goes }
    }

    /// Changes a row in each of the first leaves of both tables.
    fn dirty(&self, leaves: u32) {
        for n in 0..leaves {
            put(&self.stays, &key(n % 1_000 * 3), &[3; 1000]);
            put(&self.goes, &key(n * 3), &[4; 1000]);
        }
    }

    /// Looks up rows of the first leaves of both tables until they are hashed.
    fn hash(&self, leaves: u32) {
        for n in (0..leaves * 3).flat_map(|n| [n; 20]) {
            get(&self.stays, &key(n));
            get(&self.goes, &key(n));
        }
    }

    fn seen(&self) -> Seen {
        let mut seen = Seen::default();
        for descriptor in self.pool.frames().iter().filter(|d| d.space() == self.space.id) {
            seen.resident += 1;
            seen.dirty += u64::from(descriptor.is(DIRTY));
            let entries = descriptor.hashed.load(Relaxed);
            seen.hashed += u64::from(entries > 0);
            seen.hash_entries += u64::from(entries);
            seen.marked += u64::from(descriptor.is(DELETED));
        }
        seen
    }

    fn lists(&self) -> [u64; 2] {
        let [resident, dirty, _] = self.pool.occupancy();
        [resident, dirty]
    }

    /// Drops the tablespace as a server does.
    fn drop_by(&self, policy: &dyn DropPolicy) -> (Steps, Duration) {
        self.pool.reset_locks();
        self.space.mark_dropped();
        let start = Instant::now();
        let steps = policy.remove_tablespace(&self.pool, &self.space, &self.space.trees());
        let took = start.elapsed();
        self.pool.detach(&self.space);
        self.disk.remove(FileName::Data(self.space.id)).unwrap();
        (steps, took)
    }

    /// Returns how often a lock was held for the drop, the longest hold and the total, over all instances.
    fn held(&self, lock: &str) -> (u64, Duration, Duration) {
        let mut sum = (0, Duration::ZERO, Duration::ZERO);
        for report in self.pool.lock_reports().iter().filter(|report| report.name == lock) {
            sum.0 += report.count(Purpose::Drop);
            sum.1 = sum.1.max(report.longest(Purpose::Drop));
            let drops = report.holds.iter().filter(|held| held.purpose == Purpose::Drop);
            sum.2 += Duration::from_nanos(drops.map(|held| held.times.total_ns).sum());
        }
        sum
    }
}

#[test]
fn lru_scan_walks_the_whole_list_under_the_pool_mutex() {
    for (scans, instances) in [(1, 1), (2, 1), (2, 4)] {
        for hash_index in [false, true] {
            let policy = LruScan { scans, era: Era::Mysql55 };
            let fixture = Fixture::new(&policy, hash_index, instances, 200);
            fixture.dirty(70);
            fixture.hash(30);
            let (before, [pages, dirty]) = (fixture.seen(), fixture.lists());
            assert!(before.dirty >= 70 && (before.hashed >= 30) == hash_index, "{before:?}");
            let (steps, took) = fixture.drop_by(&policy);
            let expected = Steps {
                lru_walked: u64::from(scans) * pages,
                freed: before.resident,
                unhashed: before.hashed,
                hash_entries: before.hash_entries,
                ..Steps::default()
            };
            assert_eq!(steps, expected);
            assert_eq!(fixture.seen(), Seen::default());
            assert_eq!(fixture.lists(), [pages - before.resident, dirty - before.dirty]);
            let (count, longest, together) = fixture.held("buffer pool");
            assert_eq!(count, instances as u64, "each instance's mutex is held once");
            assert!(longest <= together && together <= took, "{together:?} of {took:?}");
            check_pool(&fixture.pool);
        }
    }
}

#[test]
fn lazy_mark_flags_and_frees_nothing() {
    for hash_index in [false, true] {
        let policy = LazyMark::default();
        let fixture = Fixture::new(&policy, hash_index, 2, 200);
        fixture.dirty(70);
        fixture.hash(30);
        let (before, lists) = (fixture.seen(), fixture.lists());
        let (steps, _) = fixture.drop_by(&policy);
        let expected = Steps {
            lru_walked: lists[0],
            flagged: before.resident,
            frames_scanned: if hash_index { 6_000 } else { 0 },
            looked_up: before.hashed,
            released: before.hashed,
            unhashed: before.hashed,
            hash_entries: before.hash_entries,
            ..Steps::default()
        };
        assert_eq!(steps, expected);
        let after = fixture.seen();
        assert_eq!((after.resident, after.marked), (before.resident, before.resident));
        assert_eq!((fixture.lists(), after.hash_entries), (lists, 0));
        assert_eq!((fixture.held("buffer pool").0, fixture.held("LRU list").0), (0, 2));
        // Shared between any two hashed pages, and taken exclusively for each.
        assert_eq!(fixture.held("hash index").0, if hash_index { 2 * before.hashed + 1 } else { 0 });
        // The cleaner finds the dirty ones.
        fixture.pool.flush_all().unwrap();
        assert_eq!(fixture.seen().resident, before.resident - before.dirty);
        check_pool(&fixture.pool);
    }
}

#[test]
fn lazy_mark_is_switched_while_the_server_runs() {
    let policy = LazyMark::default();
    policy.switch(false);
    let fixture = Fixture::new(&policy, false, 1, 50);
    fixture.dirty(20);
    let dirty = fixture.seen().dirty;
    let (steps, _) = fixture.drop_by(&policy);
    assert_eq!((steps.lru_walked, steps.flagged, steps.unflushed), (0, 0, dirty));
}

#[test]
fn flush_list_pauses_after_each_batch() {
    let fixture = Fixture::new(&FlushList, true, 1, 2_600);
    fixture.dirty(2_600);
    fixture.hash(30);
    let (before, lists) = (fixture.seen(), fixture.lists());
    assert!(before.dirty >= 2_600 && before.dirty < 3 * BATCH as u64, "{before:?}");
    let (steps, took) = fixture.drop_by(&FlushList);
    let expected = Steps {
        flush_walked: lists[1],
        unflushed: before.dirty,
        released: before.dirty / BATCH as u64,
        ..Steps::default()
    };
    assert_eq!(steps, expected);
    let after = fixture.seen();
    assert_eq!((after.resident, after.dirty), (before.resident, 0));
    assert_eq!(after.hash_entries, before.hash_entries, "nothing looks for them");
    for lock in ["buffer pool", "flush list"] {
        let (count, longest, _) = fixture.held(lock);
        assert_eq!(count, steps.released + 1, "{lock}");
        assert!(longest < took, "{lock}: {longest:?} of {took:?}");
    }
    check_pool(&fixture.pool);
}

#[test]
fn flush_list_ahi_walks_the_lru_list_first() {
    for (hash_index, leaves) in [(false, 0), (true, 0), (true, 30)] {
        let fixture = Fixture::new(&FlushListAhi, hash_index, 2, 200);
        fixture.dirty(70);
        fixture.hash(leaves);
        let (before, lists) = (fixture.seen(), fixture.lists());
        let (steps, _) = fixture.drop_by(&FlushListAhi);
        let expected = Steps {
            lru_walked: lists[0],
            flush_walked: lists[1],
            looked_up: before.hashed,
            unhashed: before.hashed,
            hash_entries: before.hash_entries,
            unflushed: before.dirty,
            ..Steps::default()
        };
        assert_eq!((steps, before.hashed > 0), (expected, leaves > 0));
        assert_eq!(fixture.seen(), Seen { resident: before.resident, ..Seen::default() });
        assert_eq!(fixture.held("buffer pool").0, 4, "for either walk of either instance");
    }
}

#[test]
fn flush_list_ahi_restarts_its_walk_after_each_batch() {
    let fixture = Fixture::new(&FlushListAhi, true, 1, 1_500);
    fixture.hash(1_500);
    let (before, [pages, _]) = (fixture.seen(), fixture.lists());
    assert!(before.hashed > BATCH as u64 && before.hashed < 2 * BATCH as u64, "{before:?}");
    let (steps, _) = fixture.drop_by(&FlushListAhi);
    assert_eq!((steps.released, steps.unhashed, steps.looked_up), (1, before.hashed, before.hashed));
    assert!(steps.lru_walked > pages && steps.lru_walked < 2 * pages, "{} of {pages}", steps.lru_walked);
}

#[test]
fn extent_ahi_asks_for_each_page_and_walks_both_lists() {
    for hash_index in [false, true] {
        let fixture = Fixture::new(&ExtentAhi, hash_index, 2, 200);
        fixture.dirty(70);
        fixture.hash(30);
        let (before, lists) = (fixture.seen(), fixture.lists());
        let in_use: usize = fixture.space.extents().iter().map(Vec::len).sum();
        let (steps, took) = fixture.drop_by(&ExtentAhi);
        let expected = Steps {
            lru_walked: lists[0],
            flush_walked: lists[1],
            looked_up: if hash_index { in_use as u64 } else { 0 },
            unhashed: before.hashed,
            hash_entries: before.hash_entries,
            unflushed: before.dirty,
            freed: before.resident,
            ..Steps::default()
        };
        assert_eq!(steps, expected);
        assert_eq!(fixture.seen(), Seen::default());
        let (count, longest, together) = fixture.held("LRU list");
        assert_eq!(count, 4, "for either walk of either instance");
        assert!(longest <= together && together <= took, "{together:?} of {took:?}");
        assert_eq!((fixture.held("flush list").0, fixture.held("buffer pool").0), (2, 0));
        // Each freed page is removed from the page hash; with the hash index each page in use is looked up.
        assert_eq!(fixture.held("page hash").0, expected.looked_up + before.resident);
        assert_eq!(fixture.held("free list").0, before.resident, "for a moment each");
        assert!(fixture.held("free list").1 < longest);
        check_pool(&fixture.pool);
    }
}

/// A change in progress at the time of the drop makes a page dirty after the scan of the flush list.
#[test]
fn extent_ahi_frees_pages_that_became_dirty_meanwhile() {
    let fixture = Fixture::new(&ExtentAhi, false, 2, 200);
    fixture.dirty(70);
    let (before, [pages, dirty]) = (fixture.seen(), fixture.lists());
    fixture.space.mark_dropped();
    let mut steps = Steps::default();
    for instance in fixture.pool.instances() {
        assert!(sweep(&fixture.pool, instance, &fixture.space, &mut steps));
    }
    assert!(before.dirty >= 70, "{before:?}");
    assert_eq!(steps, Steps { lru_walked: pages, freed: before.resident, ..Steps::default() });
    assert_eq!(fixture.lists(), [pages - before.resident, dirty - before.dirty]);
    check_pool(&fixture.pool);
}

#[test]
fn stale_version_scans_for_hashed_pages_only() {
    for (hash_index, leaves) in [(false, 0), (true, 0), (true, 30)] {
        let fixture = Fixture::new(&StaleVersion, hash_index, 2, 200);
        fixture.dirty(70);
        fixture.hash(leaves);
        let (before, lists) = (fixture.seen(), fixture.lists());
        let (steps, _) = fixture.drop_by(&StaleVersion);
        let expected = Steps {
            lru_walked: if leaves > 0 { lists[0] } else { 0 },
            looked_up: before.hashed,
            unhashed: before.hashed,
            hash_entries: before.hash_entries,
            ..Steps::default()
        };
        assert_eq!((steps, before.hashed > 0), (expected, leaves > 0));
        assert_eq!(fixture.held("buffer pool").0 + fixture.held("flush list").0, 0);
        assert_eq!(fixture.held("LRU list").0, if leaves > 0 { 2 } else { 0 });
        assert_eq!((fixture.seen().resident, fixture.lists()), (before.resident, lists));
    }
}

/// Pages of a dropped table that remain in the pool are reused as free, and never returned or written: the file is
/// gone, and a write to it would fail.
#[test]
fn no_dropped_page_is_served_or_written() {
    for (name, policy) in all() {
        for hash_index in [false, true] {
            let fixture = Fixture::new(&*policy, hash_index, 2, 1_500);
            fixture.dirty(300);
            fixture.hash(200);
            fixture.drop_by(&*policy);
            let asked = fixture.goes.get_into(&key(1), &mut Vec::new());
            assert!(matches!(asked, Err(Error::TableDropped(_))), "{name}: {asked:?}");
            let asked = fixture.pool.read(fixture.goes.space(), PageNo::ROOT, Access::Point);
            assert!(matches!(asked, Err(Error::TableDropped(_))), "{name}");
            // The next table, with pages of the same numbers, fills the pool more than once.
            let next = tree(&fixture.pool, &new_space(&fixture.pool, 31), 102);
            for n in 0..24_000 {
                put(&next, &key(n), &[5; 1000]);
                if n % 500 == 0 {
                    fixture.pool.clean().unwrap();
                }
            }
            fixture.pool.flush_all().unwrap();
            (0..24_000)
                .step_by(7)
                .for_each(|n| assert_eq!(get(&next, &key(n)), Some(vec![5; 1000]), "{name}"));
            (0..3_000).step_by(7).for_each(|n| assert!(get(&fixture.stays, &key(n)).is_some(), "{name}"));
            assert_eq!(fixture.seen(), Seen::default(), "{name}");
            check_pool(&fixture.pool);
        }
    }
}

#[test]
fn a_truncated_tablespace_has_none_of_its_old_pages() {
    for hash_index in [false, true] {
        let fixture = Fixture::new(&StaleVersion, hash_index, 1, 300);
        fixture.dirty(100);
        fixture.hash(50);
        let hashed = fixture.seen().hash_entries;
        let trees = fixture.space.renew();
        let steps = StaleVersion.remove_tablespace(&fixture.pool, &fixture.space, &trees);
        assert_eq!((steps.hash_entries, hashed > 0), (hashed, hash_index));
        let before = fixture.seen();
        assert!(before.resident >= 300, "{before:?}");
        assert!(matches!(fixture.goes.get_into(&key(1), &mut Vec::new()), Err(Error::TableDropped(_))));
        let new_tree = tree(&fixture.pool, &fixture.space, 102);
        (0..300).step_by(2).for_each(|n| put(&new_tree, &key(n), &[6; 1000]));
        for n in 0..900 {
            let expected = (n < 300 && n % 2 == 0).then(|| vec![6; 1000]);
            assert_eq!(get(&new_tree, &key(n)), expected);
        }
        fixture.pool.flush_all().unwrap();
        assert_eq!(new_tree.check().unwrap().entries, 150);
        check_pool(&fixture.pool);
    }
}

#[test]
fn a_page_in_use_is_waited_for() {
    let policy = LruScan { scans: 2, era: Era::Mysql51 };
    let fixture = Fixture::new(&policy, false, 1, 20);
    let reading = fixture.pool.read(fixture.goes.space(), PageNo::ROOT, Access::Point).unwrap();
    fixture.pool.reset_locks();
    fixture.space.mark_dropped();
    thread::scope(|scope| {
        let dropping =
            scope.spawn(|| policy.remove_tablespace(&fixture.pool, &fixture.space, &fixture.space.trees()));
        // Each sweep takes the mutex of the pool once.
        wait_until("the pool is swept again", || fixture.held("buffer pool").0 > 1 || dropping.is_finished());
        let has_waited = !dropping.is_finished();
        drop(reading);
        assert!(has_waited, "the page was in use");
        let steps = dropping.join().unwrap();
        assert!(steps.repeated > 0, "{steps:?}");
    });
    assert_eq!(fixture.seen(), Seen::default());
}

#[test]
fn one_drop_takes_all_trees_of_a_tablespace() {
    for (name, policy) in all() {
        let fixture = Fixture::new(&*policy, true, 1, 20);
        let other = tree(&fixture.pool, &fixture.space, 200);
        (0..300).for_each(|n| put(&other, &key(n), &[7; 1000]));
        (0..300).flat_map(|n| [n; 20]).for_each(|n| assert!(get(&other, &key(n)).is_some()));
        let before = fixture.seen();
        assert!(before.resident > 120 && before.hashed >= 100, "{before:?}");
        let (steps, _) = fixture.drop_by(&*policy);
        for tree in [&fixture.goes, &other] {
            assert!(matches!(tree.get_into(&key(1), &mut Vec::new()), Err(Error::TableDropped(_))));
        }
        let left_to_eviction = name == PolicyName::FlushList;
        assert_eq!(steps.hash_entries, if left_to_eviction { 0 } else { before.hash_entries });
        assert!(!fixture.pool.hash_index().has_entries_of(SpaceId(200)) || left_to_eviction, "{name}");
    }
}
