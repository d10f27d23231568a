//! A drop during all work that may be in progress on the tablespace's pages.

use windfall_sim::Fault;

use super::*;
use crate::{
    disk::{Disk, FileName},
    sync::{
        atomic::AtomicU64,
        model::{explore, spawn},
    },
};

/// Ignores the one error that a drop may cause in other threads.
fn dropped(error: Error) -> Result<()> {
    if matches!(error, Error::TableDropped(_)) { Ok(()) } else { Err(error) }
}

impl Base {
    /// Runs a background step.
    fn reclaim(&self, handed_over: &AtomicU64) -> bool {
        self.pool.reclaim_step(&mut |space| {
            assert_eq!(space.id(), SPACES[0]);
            handed_over.fetch_add(1, Relaxed);
        })
    }
}

/// One thread drops the first tablespace. Meanwhile one reads in pages of it, singly and in a batch, one needs frames
/// for the other tablespace, and one writes dirty pages.
fn drop_under_load(base: Base) {
    let [first, second, far] = PAGES;
    base.change(0, first).unwrap();
    base.change(1, first).unwrap();
    // Nothing else in the scenario waits for the log.
    base.pool.context().log.sync_to(Lsn::MAX).unwrap();
    let handed_over = Arc::new(AtomicU64::new(0));
    let run = |role: fn(&Base, &AtomicU64)| {
        let (base, handed_over) = (base.clone(), handed_over.clone());
        spawn(move || role(&base, &handed_over))
    };
    let threads = [
        run(|base, _| assert!(base.pool.detach(&base.spaces[0], Some(Lsn(8))))),
        run(|base, _| {
            let [space, other] = &base.spaces;
            let ahead = [(space.clone(), PAGES[2]), (other.clone(), PAGES[2])];
            base.pool.read_ahead(&mut *base.disk.queue(), &ahead).or_else(dropped).unwrap();
            for page in [PAGES[1], PAGES[0]] {
                base.read_page(0, page).or_else(dropped).unwrap();
            }
        }),
        run(|base, handed_over| {
            base.reclaim(handed_over);
            base.change(1, PAGES[1]).unwrap();
            base.reclaim(handed_over);
        }),
        run(|base, _| drop(base.pool.clean_step(Lsn::MAX))),
    ];
    for thread in threads {
        thread.join().unwrap();
    }
    base.read_page(1, second).unwrap();
    base.read_page(1, far).unwrap();
    while base.reclaim(&handed_over) {}
    assert_eq!(handed_over.load(Relaxed), 1, "the dropped tablespace is handed over once");
    assert!(base.pool.space(SPACES[0]).is_none() && base.pool.reclaimer.pending() == 0);
    // Pages with a failed write are written now; dropped pages do not hold down the low-water mark. The fault may not
    // have occurred yet.
    let _ = base.pool.flush_all();
    base.pool.flush([]).unwrap();
    base.pool.flush_all().unwrap();
    assert_eq!(base.pool.oldest_dirty(), None);
    base.audit();
}

/// Catches: an install that does not check the drop mark again; a tablespace that is queued before it is marked; a
/// drain that does not compare the tag, or forgets frames that were latched; a frame that is evicted and removed from
/// the page table only after its release; resident pages that are counted too late; a written frame that keeps
/// `WRITING`.
#[test]
fn a_drop_reclaims_every_frame_despite_concurrent_work() {
    let prepared = Prepared::new();
    // Enough frames that a batch has room for two pages.
    explore(6000, &["LateInstall", "LatecomerForgotten"], move || drop_under_load(prepared.open(16)));
}

/// A drop during concurrent work, and the batch in progress cannot be written, because the disk is full.
///
/// Catches: a failed write that marks a frame dirty again which holds another page by now.
#[test]
fn a_drop_during_a_failing_batch_is_complete() {
    let prepared = Prepared::new();
    explore(5000, &["FailedWriteWithoutTag"], move || {
        let base = prepared.open(6);
        base.disk.fail_on(FileName::Doublewrite, Fault::Full);
        drop_under_load(base);
    });
}

/// A drop during concurrent work, and a page of the batch in progress is torn in its data file.
///
/// Catches: the bugs of the scenario above, where all of the batch is written except one page.
#[test]
fn a_drop_during_a_batch_with_a_torn_page_is_complete() {
    let prepared = Prepared::new();
    explore(5000, &["LatecomerForgotten"], move || {
        let base = prepared.open(6);
        base.disk.fail_on(FileName::Data(SPACES[1]), Fault::TornPage);
        drop_under_load(base);
    });
}

/// The frames of a dropped tablespace are taken by a thread that needs them and by the drain at the same time.
///
/// Catches: a drain that checks the tag before it has the latch, and not again.
#[test]
fn a_drain_takes_no_frame_that_was_reused() {
    let prepared = Prepared::new();
    explore(12_000, &["DrainWithoutTag"], move || {
        let base = prepared.open(1);
        // A page of a scan: the clock takes it at once.
        base.pool.read(&base.spaces[0], PAGES[0], Access::Scan).unwrap();
        let user = {
            let base = base.clone();
            spawn(move || base.read_page(1, PAGES[0]).unwrap())
        };
        base.pool.detach(&base.spaces[0], Some(Lsn(8)));
        base.reclaim(&AtomicU64::new(0));
        user.join().unwrap();
        while base.reclaim(&AtomicU64::new(0)) {}
        base.audit();
    });
}

/// A page that the flusher has chosen is dropped, and its frame gets another dirty page.
///
/// Catches: a copy that does not compare the tag.
#[test]
fn the_flusher_takes_no_page_for_another() {
    let prepared = Prepared::new();
    explore(4000, &["CopyWithoutTag"], move || {
        let base = prepared.open(16);
        base.change(0, PAGES[0]).unwrap();
        let cleaner = {
            let base = base.clone();
            spawn(move || drop(base.pool.clean_step(Lsn::MAX)))
        };
        base.pool.detach(&base.spaces[0], Some(Lsn(8)));
        let handed_over = AtomicU64::new(0);
        while base.reclaim(&handed_over) {}
        base.change(1, PAGES[1]).unwrap();
        cleaner.join().unwrap();
        base.pool.flush_all().unwrap();
        assert_eq!(base.pool.oldest_dirty(), None, "a change is not written");
        while base.reclaim(&handed_over) {}
        base.audit();
    });
}

/// A tablespace that is not in the pool's directory yet gets its first page while it is dropped.
///
/// Catches: a check whether it is in the directory that precedes the mark, or after which it can still be entered.
#[test]
fn a_tablespace_dropped_at_its_first_page_is_handed_back_or_never_known() {
    let prepared = Prepared::new();
    explore(3000, &["DropLeavesItUnknown"], move || {
        let base = prepared.open(16);
        let free = base.pool.occupancy().free;
        let space = Arc::new(Space::new(EMPTY, Durability::Logged));
        let user = {
            let (base, space) = (base.clone(), space.clone());
            spawn(move || make_header(&base.pool, &space).map(drop).or_else(dropped).unwrap())
        };
        base.pool.detach(&space, Some(Lsn(8)));
        while base.pool.reclaim_step(&mut |_| panic!("it has no file")) {}
        user.join().unwrap();
        while base.pool.reclaim_step(&mut |_| panic!("it has no file")) {}
        assert!(base.pool.space(EMPTY).is_none(), "it stays in the directory for ever");
        assert_eq!(base.pool.occupancy().free, free, "a frame is lost");
    });
}

/// The first page of a tablespace is being written, and its file is still to be created, when the tablespace is
/// dropped.
///
/// Catches: a file that is created without a check of the mark, or not under the lock under which the deleter looks for
/// it.
#[test]
fn no_file_is_created_after_the_deleter_has_asked() {
    let prepared = Prepared::new();
    explore(3000, &["FileAfterTheDeleter"], move || {
        let base = prepared.open(16);
        let space = base.pool.attach(EMPTY, Durability::Logged);
        make_header(&base.pool, &space).unwrap();
        let cleaner = {
            let base = base.clone();
            spawn(move || base.pool.clean_step(Lsn::MAX).unwrap())
        };
        base.pool.detach(&space, Some(Lsn(8)));
        let mut to_delete = 0;
        while base.pool.reclaim_step(&mut |_| to_delete += 1) {}
        cleaner.join().unwrap();
        while base.pool.reclaim_step(&mut |_| to_delete += 1) {}
        let is_there = base.disk.len(FileName::Data(EMPTY)).unwrap().is_some();
        assert_eq!(is_there, to_delete == 1, "the deleter gets {to_delete} files");
    });
}

/// The pages of a tablespace are being written when it is dropped, and the sync of its file fails.
///
/// Catches: pages with a failed sync that are given up before the drop is durable: a crash undoes the drop, and the
/// pages are lost.
#[test]
fn pages_with_a_failed_sync_are_kept_until_the_drop_is_durable() {
    let prepared = Prepared::new();
    explore(3000, &["FailedSyncOfDropped"], move || {
        let base = prepared.open(16);
        base.change(0, PAGES[0]).unwrap();
        base.pool.context().log.sync_to(Lsn::MAX).unwrap();
        base.disk.fail_on(FileName::Data(SPACES[0]), Fault::SyncFails);
        let cleaner = {
            let base = base.clone();
            spawn(move || {
                let written = base.pool.clean_step(Lsn::MAX);
                written.is_ok().then(|| (base.disk.failures(), base.pool.context().log.durable()))
            })
        };
        // The log is stopped if the sync has failed before the drop.
        let dropped = base.pool.context().log.begin_group().append(&[1; 8]).ok().map(|(_, dropped)| dropped);
        if let Some(dropped) = dropped {
            base.pool.detach(&base.spaces[0], Some(dropped));
        }
        if let Some((failures, durable)) = cleaner.join().unwrap()
            && failures > 0
        {
            assert!(
                dropped.is_some_and(|dropped| durable >= dropped),
                "a page is neither written nor missed"
            );
        }
    });
}
