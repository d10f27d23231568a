//! Finding pages while they are read in and evicted.

use core::time::Duration;

use super::*;
use crate::{
    buffer::page_table::{EmptyChunks, PageTable},
    sync::{
        atomic::AtomicU64,
        model::{explore, spawn},
    },
};

/// Cleans while these threads run: a thread that finds every frame latched waits for the cleaner. Audits the pool
/// afterwards.
fn clean_concurrently(base: &Base, running: &AtomicU64, threads: [shuttle::thread::JoinHandle<()>; 2]) {
    while running.load(Relaxed) > 0 {
        base.pool.clean_step(Lsn::ZERO).unwrap();
        base.pool.cleaner_wake.timed_wait(Duration::from_millis(1));
    }
    for thread in threads {
        thread.join().unwrap();
    }
    base.audit();
}

/// Two threads use six pages in three frames, while the cleaner frees frames: latches and optimistic reads get the
/// requested page.
///
/// Catches: an optimistic read, or a shared or exclusive latch, that does not compare the tag; a frame that is reused
/// with its old version; an evicted frame that is left in the page table.
#[test]
fn no_thread_takes_a_page_for_another() {
    let prepared = Prepared::new();
    explore(8000, &["ReadWithoutTag", "LatchWithoutTag"], move || {
        let base = prepared.open(3);
        let running = Arc::new(AtomicU64::new(2));
        let threads = [0, 1].map(|n| {
            let (base, running) = (base.clone(), running.clone());
            spawn(move || {
                let [first, second, far] = PAGES;
                base.read_page(n, first).unwrap();
                let id = PageId { space: SPACES[0], page: second };
                let shared = base.pool.share(&base.spaces[0], second, Access::Point).unwrap();
                assert!(is_page(shared.page(), id), "another page is latched for {id}");
                drop(shared);
                base.read_page(1 - n, far).unwrap();
                let id = PageId { space: SPACES[n], page: first };
                let latched = base.pool.exclusive(&base.spaces[n], first).unwrap();
                assert!(
                    is_page(latched.page(), id) && latched.id() == id,
                    "another page is latched for {id}"
                );
                drop(latched);
                running.fetch_sub(1, Relaxed);
            })
        });
        clean_concurrently(&base, &running, threads);
    });
}

/// Pages are latched in the order of a tree and of its maps, frames in none. A thread holds a page, and has found the
/// frame of another page just before that page was evicted. It must not wait there for a thread that holds the frame's
/// new page and waits for the page that the first thread holds.
///
/// Catches: a thread that waits for a latch and does not check whether the frame still holds the page.
fn wait_during_an_eviction(prepared: &Prepared, wait: fn(&Base)) {
    let base = prepared.open(3);
    // All frames are taken, and the first to be reused is the frame of the page that will be requested last.
    for (space, page) in [(0, PAGES[1]), (0, PAGES[0]), (0, PAGES[2])] {
        base.read_page(space, page).unwrap();
    }
    let other = base.clone();
    let threads = [
        spawn(move || {
            let _map = base.pool.exclusive(&base.spaces[0], PAGES[0]).unwrap();
            wait(&base);
        }),
        spawn(move || {
            let _page = other.pool.exclusive(&other.spaces[1], PAGES[0]).unwrap();
            drop(other.pool.exclusive(&other.spaces[0], PAGES[0]).unwrap());
        }),
    ];
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn an_exclusive_latch_waits_for_no_page_that_came_into_the_frame() {
    let prepared = Prepared::new();
    explore(1500, &["WaitForWhateverCame"], move || {
        wait_during_an_eviction(&prepared, |base| {
            drop(base.pool.exclusive(&base.spaces[0], PAGES[1]).unwrap());
        });
    });
}

#[test]
fn a_page_to_be_formatted_waits_for_no_page_that_came_into_the_frame() {
    let prepared = Prepared::new();
    explore(1500, &["WaitForWhateverCame"], move || {
        wait_during_an_eviction(&prepared, |base| {
            drop(base.pool.latch_for_format(&base.spaces[0], PAGES[1]).unwrap());
        });
    });
}

#[test]
fn a_shared_latch_waits_for_no_page_that_came_into_the_frame() {
    let prepared = Prepared::new();
    explore(1500, &["WaitForWhateverCame"], move || {
        wait_during_an_eviction(&prepared, |base| {
            drop(base.pool.share(&base.spaces[0], PAGES[1], Access::Point).unwrap());
        });
    });
}

#[test]
fn a_look_waits_for_no_page_that_came_into_the_frame() {
    let prepared = Prepared::new();
    explore(1500, &["WaitForWhateverCame"], move || {
        wait_during_an_eviction(&prepared, |base| base.read_page(0, PAGES[1]).unwrap());
    });
}

/// One thread reads pages optimistically and upgrades to latches, while another one needs the frames, and the cleaner
/// frees some.
///
/// Catches: a frame that is evicted without a new version; an upgrade that does not compare the version.
#[test]
fn an_upgrade_latches_the_page_that_was_read_or_fails() {
    let prepared = Prepared::new();
    explore(3000, &["EvictionKeepsVersion", "UpgradeOfAnyVersion"], move || {
        let base = prepared.open(2);
        let running = Arc::new(AtomicU64::new(2));
        let run = |role: fn(&Base)| {
            let (base, running) = (base.clone(), running.clone());
            spawn(move || {
                role(&base);
                running.fetch_sub(1, Relaxed);
            })
        };
        let threads = [
            run(|base| PAGES.into_iter().for_each(|page| base.read_page(1, page).unwrap())),
            run(|base| {
                for page in [PAGES[0], PAGES[1], PAGES[0]] {
                    let id = PageId { space: SPACES[0], page };
                    let reading = base.pool.read(&base.spaces[0], page, Access::Point).unwrap();
                    if let Some(latched) = base.pool.upgrade(&reading) {
                        let right = latched.id() == id && is_page(latched.page(), id);
                        assert!(right, "another page is latched for {id}");
                    }
                }
            }),
        ];
        clean_concurrently(&base, &running, threads);
    });
}

/// Entries of one chunk are added and removed, and the chunk is removed with its last entry.
///
/// Catches: an entry that is counted only after it is set, or a chunk that is given up while an entry is announced; a
/// removal that does not compare the entry.
#[test]
fn a_chunk_is_removed_only_with_its_last_entry() {
    explore(8000, &["ChunkGoesUnderAnEntry"], || {
        let (table, chunks) = (Arc::new(PageTable::default()), Arc::new(EmptyChunks::default()));
        let threads = [0, 1, 2].map(|n| {
            let (table, chunks) = (table.clone(), chunks.clone());
            spawn(move || {
                let page = PageNo(1000 + n);
                for round in 0..2 {
                    let frame = FrameNo(10 * n + round);
                    table.insert(page, frame, &chunks, &crossbeam_epoch::pin()).unwrap();
                    assert_eq!(table.get(page), Some(frame), "an entry is lost");
                    let remove = |frame| table.remove(page, frame, &chunks, &crossbeam_epoch::pin());
                    assert!(!remove(FrameNo(99)), "the entry of another frame is removed");
                    assert!(remove(frame), "the entry is missing");
                }
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(table.get(PageNo(1000)), None);
    });
}

/// Two threads make the header of an empty tablespace, while the cleaner writes and evicts it.
///
/// Catches: a header that is made twice; one that was made, written and evicted, and for which an empty frame is left.
#[test]
fn a_header_is_made_once() {
    let prepared = Prepared::new();
    explore(3000, &["HeaderMadeTwice"], move || {
        let base = prepared.open(2);
        let space = base.pool.attach(EMPTY, Durability::Logged);
        let running = Arc::new(AtomicU64::new(2));
        let threads = [0, 1].map(|_| {
            let (base, space, running) = (base.clone(), space.clone(), running.clone());
            spawn(move || {
                let made = make_header(&base.pool, &space).unwrap();
                let header = base.pool.share(&space, PageNo::HEADER, Access::Point).unwrap();
                assert_eq!(header.page().page_type(), PageType::Map as u8, "the header is lost");
                running.fetch_sub(1, Relaxed);
                made
            })
        });
        while running.load(Relaxed) > 0 {
            base.pool.clean_step(Lsn::MAX).unwrap();
            base.pool.cleaner_wake.timed_wait(Duration::from_millis(1));
        }
        let made = threads.map(|thread| thread.join().unwrap());
        assert!(made[0] != made[1], "{made:?}");
    });
}
