//! Interleavings of the deleter with drops, new tablespaces and the flusher, and of a count of pages with changes.

use super::*;
use crate::{
    buffer::{
        Durability,
        interleavings::{EMPTY, PAGE_SIZE, PAGES, Prepared, SPACES, make_header},
    },
    disk::{Disk, FileName},
    ids::{Lsn, PageNo, SpaceId},
    sync::model::{explore, spawn},
};

/// The tablespace that replaces the dropped ones.
const NEW: SpaceId = SpaceId(103);

/// Two tablespaces are dropped without a wait until that is durable. One has a file and a page that is being written,
/// the file of the other is about to be created. A new tablespace replaces them.
///
/// Catches: a file that is deleted before its drop is durable; one that is created, or created again by a late write,
/// after the deleter has looked for it; a deleter that deletes other files than it was given, or stops before its work
/// is done.
#[test]
fn a_file_is_deleted_after_its_drop_and_not_created_again() {
    let prepared = Prepared::new();
    explore(3000, &["FileGoesBeforeTheDrop", "FileAfterTheDeleter"], move || {
        let base = prepared.open(16);
        let deleter = Arc::new(Deleter::new(base.pool.clone()));
        let log = base.pool.context().log.clone();
        let empty = base.pool.attach(EMPTY, Durability::Logged);
        make_header(&base.pool, &empty).unwrap();
        base.change(0, PAGES[0]).unwrap();
        let dropper = {
            let base = base.clone();
            spawn(move || {
                let (_, dropped) = base.pool.context().log.begin_group().append(&[1; 8]).unwrap();
                base.pool.detach(&base.spaces[0], Some(dropped));
                base.pool.detach(&empty, Some(dropped));
                let new = base.pool.attach(NEW, Durability::Logged);
                make_header(&base.pool, &new).unwrap();
                dropped
            })
        };
        let cleaner = {
            let base = base.clone();
            spawn(move || base.pool.clean_step(Lsn::MAX).unwrap())
        };
        let steps = {
            let (pool, deleter) = (base.pool.clone(), deleter.clone());
            move || {
                while pool.reclaim_step(&mut |space| deleter.push(&space)) {}
                deleter.step();
            }
        };
        let worker = {
            let steps = steps.clone();
            spawn(move || (0..3).for_each(|_| steps()))
        };
        let is_there = |space| base.disk.len(FileName::Data(space)).unwrap();
        let looks = [0; 3].map(|_| (is_there(SPACES[0]), log.durable()));
        let dropped = dropper.join().unwrap();
        cleaner.join().unwrap();
        worker.join().unwrap();
        for (file, durable) in looks {
            assert!(file.is_some() || durable >= dropped, "a crash undoes the drop, and the file is deleted");
        }
        base.pool.flush_all().unwrap();
        log.sync_to(Lsn::MAX).unwrap();
        (0..5).for_each(|_| steps());
        assert_eq!(deleter.deletions().pending_files, 0, "the deleter has not ended");
        assert_eq!([SPACES[0], EMPTY].map(is_there), [None; 2], "the file of a dropped tablespace is left");
        assert!(is_there(SPACES[1]).is_some(), "the file of a live tablespace is missing");
        assert_eq!(is_there(NEW), Some(PAGE_SIZE as u64), "the new file is not what was written");
    });
}

/// Two threads count the pages of a tablespace, and a third one allocates a page and frees another one.
///
/// Catches: a group that is counted twice; a change that is counted twice, or not at all.
#[test]
fn pages_are_counted_while_others_change() {
    let prepared = Prepared::new();
    explore(2000, &["UncountedGroupChanges"], move || {
        let base = prepared.open(16);
        let (pool, space) = (base.pool.clone(), base.pool.attach(NEW, Durability::Logged));
        let allocate = |pool: &BufferPool, space: &Arc<Space>| {
            let mut mtr = Mtr::begin(pool).unwrap();
            let slot = allocate(&mut mtr, space, PageType::Leaf, 0, PageNo(1)).unwrap();
            let page = mtr.id(slot).page;
            mtr.commit().unwrap();
            page
        };
        let first = allocate(&pool, &space);
        space.page_count().forget();
        let changer = {
            let (pool, space) = (pool.clone(), space.clone());
            spawn(move || {
                allocate(&pool, &space);
                let mut mtr = Mtr::begin(&pool).unwrap();
                let slot = mtr.latch(&space, first).unwrap();
                let freeing = prepare_free(&mut mtr, &space, slot).unwrap();
                free(&mut mtr, &space, freeing);
                mtr.commit().unwrap();
            })
        };
        let counter = {
            let (pool, space) = (pool.clone(), space.clone());
            spawn(move || count_pages(&pool, &space).unwrap())
        };
        let counted = [count_pages(&pool, &space).unwrap(), counter.join().unwrap()];
        assert!(counted.iter().all(|pages| [2, 3].contains(pages)), "{counted:?}");
        changer.join().unwrap();
        assert_eq!(count_pages(&pool, &space).unwrap(), 2);
    });
}
