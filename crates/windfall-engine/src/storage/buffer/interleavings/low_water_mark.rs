//! The log's low-water mark, while pages change and are written.

use super::*;
use crate::{
    disk::{Disk, FileName},
    sync::{
        Mutex, Rank,
        model::{explore, spawn},
    },
};

/// The offset of the LSN in a page.
const LSN: u64 = 16;
/// The number of times that the checkpoint reads the low-water mark.
const LOOKS: usize = 4;

/// Two threads change pages, one writes them, and a checkpoint reads the low-water mark again and again. At every such
/// crash point, each change with a group that begins below the mark must be in the data file, and nothing there may be
/// ahead of the log.
///
/// Catches: pages that are registered after the end of their group; a page that leaves the dirty set when it is copied,
/// or when it is written but not synced; a page that changes while its copy is written and is not registered again; a
/// tablespace that was clean in between and is not listed again; pages written before the log.
#[test]
fn a_low_water_mark_passes_nothing_that_only_the_log_knows() {
    let prepared = Prepared::new();
    explore(3000, &["CleanWhenCopied", "PagesBeforeTheLog"], move || {
        let base = prepared.open(16);
        let pool = base.pool.clone();
        let log = pool.context().log.clone();
        // A first change, to measure the length of a group.
        let before = log.end();
        let end = base.change(0, PAGES[0]).unwrap();
        let length = end.0 - before.0;
        pool.flush_all().unwrap();
        let changes = Arc::new(Mutex::new(Rank::Leaf, vec![(0, 0, end)]));
        let threads = [[(0, 0), (1, 1)], [(0, 1), (1, 1)]].map(|mine| {
            let (base, changes) = (base.clone(), changes.clone());
            spawn(move || {
                for (space, page) in mine {
                    let end = base.change(space, PAGES[page]).unwrap();
                    changes.lock().push((space, page, end));
                }
            })
        });
        let cleaner = {
            let pool = pool.clone();
            spawn(move || {
                for _ in 0..2 {
                    pool.clean_step(Lsn::MAX).unwrap();
                }
            })
        };
        let looks = [0; LOOKS].map(|_| {
            let appending = log.append_low_water_mark();
            let others = [pool.oldest_dirty(), pool.files_low_water_mark()];
            let low_water_mark = others.into_iter().flatten().fold(appending, Ord::min);
            let survivor = base.disk.survivor(Survive::Nothing);
            let lsn = |space: usize, page: usize| {
                let mut lsn = [0; 8];
                let at = u64::from(PAGES[page].0) * PAGE_SIZE as u64 + LSN;
                survivor.read(FileName::Data(SPACES[space]), at, &mut lsn).unwrap();
                Lsn(u64::from_le_bytes(lsn))
            };
            (low_water_mark, [[lsn(0, 0), lsn(0, 1)], [lsn(1, 0), lsn(1, 1)]], log.durable())
        });
        for thread in threads {
            thread.join().unwrap();
        }
        cleaner.join().unwrap();
        let changes = changes.lock();
        for (low_water_mark, written, durable) in looks {
            for (space, page, end) in changes.iter().copied() {
                let written = written[space][page];
                assert!(
                    written <= durable,
                    "a page was written up to {written:?} and the log up to {durable:?}"
                );
                let passed = end.0 - length < low_water_mark.0;
                assert!(
                    !passed || written >= end,
                    "{low_water_mark:?} passes a change of page {page} that ends at {end:?}"
                );
            }
        }
    });
}

/// Two groups each register a page in one tablespace, in any order, and nothing is ever written: no reading of the
/// low-water mark may pass the older one.
///
/// Catches: a tablespace that is ordered by its oldest registered page while an older one is still to be registered.
#[test]
fn a_low_water_mark_waits_for_the_older_of_two_groups() {
    let prepared = Prepared::new();
    explore(6000, &["LowWaterMarkIgnoresUnregistered"], move || {
        let base = prepared.open(16);
        let pool = base.pool.clone();
        let log = pool.context().log.clone();
        let threads = [PAGES[0], PAGES[1]].map(|page| {
            let (pool, space) = (pool.clone(), base.spaces[0].clone());
            spawn(move || {
                let appending = pool.context().log.begin_group();
                let (start, _) = appending.append(&[1; 8]).unwrap();
                pool.low_water_mark.page_dirtied(&space, page, start);
                start
            })
        });
        let looks = [0; LOOKS].map(|_| {
            let appending = log.append_low_water_mark();
            pool.oldest_dirty().map_or(appending, |oldest| oldest.min(appending))
        });
        let starts = threads.map(|thread| thread.join().unwrap());
        let oldest = *starts.iter().min().unwrap();
        assert!(looks.iter().all(|low_water_mark| *low_water_mark <= oldest), "{looks:?} pass {oldest:?}");
        assert_eq!(pool.oldest_dirty(), Some(oldest));
    });
}
