//! Batches that fail, in part or as a whole, and what is decided about files.

use super::{
    super::test_pool::{PAGE_SIZE, new_pool},
    *,
};
use crate::{
    disk::simulated::{Fault, SimulatedDisk},
    mtr::Mtr,
    page::{PageOp, PageType},
    tablespace,
};

#[test]
fn what_was_dropped_gets_no_file() {
    let (disk, pool) = new_pool(64);
    let [dropped, live] = [100, 101].map(|id| pool.attach(SpaceId(id), Durability::Logged));
    pool.detach(&dropped, Lsn::ZERO);
    pool.make_files(&[&dropped, &live].map(|space| (space.id(), space)).into());
    let exists = |space: &Space| disk.len(FileName::Data(space.id())).unwrap().is_some();
    assert_eq!((exists(&dropped), exists(&live)), (false, true));
}

/// So many dirty pages of a tablespace, or a few more: its header and its map are pages, too.
fn dirty_pages(pool: &BufferPool, space: &Arc<Space>, pages: usize) {
    while space.dirty.lock().waiting() < pages {
        let mut mtr = Mtr::begin(pool).unwrap();
        tablespace::allocate(&mut mtr, space, PageType::Leaf, 0, PageNo::ROOT).unwrap();
        mtr.commit().unwrap();
    }
}

/// Two tablespaces with files, in a pool where everything is clean.
fn bad_and_good() -> (SimulatedDisk, Arc<BufferPool>, [Arc<Space>; 2]) {
    let (disk, pool) = new_pool(1024);
    let spaces = [100, 101].map(|id| pool.attach(SpaceId(id), Durability::Logged));
    for space in &spaces {
        dirty_pages(&pool, space, 3);
    }
    pool.flush_all().unwrap();
    (disk, pool, spaces)
}

fn waiting(spaces: &[Arc<Space>; 2]) -> [usize; 2] {
    spaces.each_ref().map(|space| space.dirty.lock().waiting())
}

/// How many rounds of the cleaner write all pages of the second tablespace. A caller waits for a frame meanwhile.
fn rounds_to_write(pool: &BufferPool, spaces: &[Arc<Space>; 2]) -> usize {
    pool.frame_waiters.fetch_add(1, Relaxed);
    for round in 1..=50 {
        let before = waiting(spaces)[1];
        let _ = pool.clean_step(Lsn::MAX);
        let left = waiting(spaces)[1];
        assert!(
            left == before || pool.is_waited_for(),
            "the cleaner takes its time, and pages can be written"
        );
        if left == 0 {
            pool.frame_waiters.fetch_sub(1, Relaxed);
            return round;
        }
    }
    panic!("pages that could be written wait: {:?} are left", waiting(spaces));
}

#[test]
fn a_file_that_takes_no_writes_holds_up_no_other() {
    for (pages, others) in [(50, 3), (127, 3), (128, 3), (200, 3), (300, 3), (300, 300)] {
        let (disk, pool, spaces) = bad_and_good();
        disk.fail_always_on(FileName::Data(spaces[0].id()), Fault::WriteFails);
        dirty_pages(&pool, &spaces[0], pages);
        dirty_pages(&pool, &spaces[1], others);
        let rounds = rounds_to_write(&pool, &spaces);
        assert!(rounds <= 3 + others / 32, "{pages} pages that cannot be written: {rounds} rounds");
        // The file is ill, and that is told; once it is well all its pages are written.
        assert!(pool.flush_all().is_err());
        disk.mend();
        pool.flush_all().unwrap();
        assert_eq!((waiting(&spaces), pool.oldest_dirty()), ([0, 0], Lsn::MAX));
    }
}

#[test]
fn a_file_that_cannot_be_made_holds_up_no_other() {
    for pages in [50, 300] {
        let (disk, pool, [_, good]) = bad_and_good();
        let spaces = [pool.attach(SpaceId(102), Durability::Logged), good];
        disk.fail_always_on(FileName::Data(spaces[0].id()), Fault::WriteFails);
        dirty_pages(&pool, &spaces[0], pages);
        dirty_pages(&pool, &spaces[1], 3);
        let rounds = rounds_to_write(&pool, &spaces);
        assert!(rounds <= 3, "{pages} pages without a file: {rounds} rounds");
        assert!(pool.flush_all().is_err());
        disk.mend();
        pool.flush_all().unwrap();
        assert_eq!((waiting(&spaces), pool.oldest_dirty()), ([0, 0], Lsn::MAX));
    }
}

/// Many files fail at the same time, each with a few pages: more of them than a batch has.
#[test]
fn many_files_that_take_no_writes_hold_up_no_other() {
    let (disk, pool, [good, _]) = bad_and_good();
    let bad: Vec<_> = (200..300).map(|id| pool.attach(SpaceId(id), Durability::Logged)).collect();
    for space in &bad {
        dirty_pages(&pool, space, 3);
    }
    pool.flush_all().unwrap();
    for space in &bad {
        disk.fail_always_on(FileName::Data(space.id()), Fault::WriteFails);
        let before = pool.ground.log.end();
        while space.dirty.lock().waiting() < 2 {
            dirty_pages(&pool, space, 2);
        }
        assert!(pool.ground.log.end() > before);
    }
    dirty_pages(&pool, &good, 3);
    let spaces = [bad[0].clone(), good];
    let rounds = rounds_to_write(&pool, &spaces);
    assert!(rounds <= 10, "{rounds} rounds");
    disk.mend();
    pool.flush_all().unwrap();
    assert_eq!(pool.oldest_dirty(), Lsn::MAX);
}

/// Each page of such a file that was tried is taken for torn: its place cannot be read.
#[test]
fn a_file_that_can_be_neither_written_nor_read_fills_no_batch() {
    for pages in [50, 127, 300] {
        let (disk, pool, spaces) = bad_and_good();
        for fault in [Fault::WriteFails, Fault::ReadFails] {
            disk.fail_always_on(FileName::Data(spaces[0].id()), fault);
        }
        dirty_pages(&pool, &spaces[0], pages);
        for _ in 0..300 {
            let _ = pool.clean_step(Lsn::MAX);
        }
        let torn = pool.flusher.lock().torn.len();
        assert!(torn <= PAGES * 3 / 4, "{torn} of {pages} pages are in every batch");
        dirty_pages(&pool, &spaces[1], 300);
        let rounds = rounds_to_write(&pool, &spaces);
        assert!(rounds <= 3 + 300 / 32, "beside {torn} of {pages} pages: {rounds} rounds");
        assert!(pool.flush_all().is_err());
        disk.mend();
        pool.flush_all().unwrap();
        assert_eq!((waiting(&spaces), pool.oldest_dirty()), ([0, 0], Lsn::MAX));
    }
}

/// A copy that stayed there would be outdated, and be put in the page's place where that cannot be read.
#[test]
fn a_page_that_was_written_has_no_copy_among_the_torn_ones() {
    let (disk, pool, [space, _]) = bad_and_good();
    // At its end, too: no part of it is the whole page.
    let mut mtr = Mtr::begin(&pool).unwrap();
    let slot = mtr.latch(&space, PageNo::ROOT).unwrap();
    mtr.apply(slot, &PageOp::Write { at: PAGE_SIZE as u32 - 8, bytes: &[7; 8] });
    mtr.commit().unwrap();
    disk.fail_at(0, Fault::TornPage);
    assert!(pool.flush([(space.clone(), PageNo::ROOT)]).is_err());
    // It is latched while another page shows that the file takes writes.
    let latch = &pool.arena.frame(space.pages.get(PageNo::ROOT).unwrap()).latch;
    assert!(latch.try_exclusive());
    pool.exclusive(&space, PageNo::HEADER).unwrap().mark_dirty(&space, pool.ground.log.durable());
    while space.is_failing() {
        pool.flush([]).unwrap();
    }
    // The latch is free again when the batch has looked at the torn pages.
    let wanted = core::iter::once_with(|| {
        latch.release_unchanged();
        (space.clone(), PageNo::ROOT)
    });
    assert_eq!(pool.flusher.lock().torn.len(), 1);
    pool.flush(wanted).unwrap();
    pool.flush_all().unwrap();
    assert_eq!((pool.oldest_dirty(), pool.flusher.lock().torn.len()), (Lsn::MAX, 0));
}
