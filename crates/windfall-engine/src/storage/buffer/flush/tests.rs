//! Batches that fail, in part or as a whole, and the decisions about files.

use windfall_sim::{Fault, SimulatedDisk, Survive};

use super::{
    super::{
        doublewrite::SMALLEST_ROOM,
        test_pool::{PAGE_SIZE, new_pool, new_pool_with_room},
    },
    *,
};
use crate::{
    buffer::Durability,
    disk::{FileName, Folder},
    error::IoOp,
    mtr::Mtr,
    page::{PageOp, PageType},
    tablespace,
};

#[test]
fn no_file_is_created_for_a_dropped_tablespace() {
    let (disk, pool) = new_pool(64);
    let [dropped, live] = [100, 101].map(|id| pool.attach(SpaceId(id), Durability::Logged));
    pool.detach(&dropped, None);
    pool.create_files(&[&dropped, &live].map(|space| (space.id(), space)).into());
    let exists = |space: &Space| disk.len(FileName::Data(space.id())).unwrap().is_some();
    assert_eq!((exists(&dropped), exists(&live)), (false, true));
}

/// Makes at least `pages` dirty pages of a tablespace, perhaps a few more: its header and its map are pages, too.
fn dirty_pages(pool: &BufferPool, space: &Arc<Space>, pages: usize) {
    while space.dirty.lock().waiting() < pages {
        let mut mtr = Mtr::begin(pool).unwrap();
        tablespace::allocate(&mut mtr, space, PageType::Leaf, 0, PageNo::ROOT).unwrap();
        mtr.commit().unwrap();
    }
}

/// Changes the last bytes of the root, so that not only the beginning of the page is new.
fn change_whole_root(pool: &BufferPool, space: &Arc<Space>) {
    let mut mtr = Mtr::begin(pool).unwrap();
    let slot = mtr.latch(space, PageNo::ROOT).unwrap();
    mtr.apply(slot, &PageOp::Write { at: PAGE_SIZE as u32 - 8, bytes: &[7; 8] });
    mtr.commit().unwrap();
}

/// The rooms of the doublewrite file with which a file fails. The disk is full, so a smaller one cannot grow.
const ROOMS: [usize; 3] = [BATCH_PAGES, 16, SMALLEST_ROOM];

/// Returns two tablespaces with files, in a pool where everything is clean.
fn bad_and_good(room: usize) -> (SimulatedDisk, Arc<BufferPool>, [Arc<Space>; 2]) {
    let (disk, pool) = new_pool_with_room(2048, room);
    disk.fail_always_on(FileName::NewDoublewrite, Fault::Full);
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

/// Returns how many rounds of the cleaner write all pages of the second tablespace. A caller waits for a frame
/// meanwhile.
fn rounds_to_write(pool: &BufferPool, spaces: &[Arc<Space>; 2]) -> usize {
    pool.frame_waiters.fetch_add(1, Relaxed);
    for round in 1..=300 {
        let before = waiting(spaces)[1];
        let _ = pool.clean_step(Lsn::MAX);
        let left = waiting(spaces)[1];
        assert!(
            left == before || pool.is_waited_for(),
            "the cleaner pauses, although there are pages that can be written"
        );
        if left == 0 {
            pool.frame_waiters.fetch_sub(1, Relaxed);
            return round;
        }
    }
    panic!("pages that could be written wait: {:?} are left", waiting(spaces));
}

/// A file that rejects writes is reported. Once it accepts them again, all its pages are written, and none is torn.
fn all_is_written_once_writes_succeed(disk: &SimulatedDisk, pool: &BufferPool) {
    assert!(pool.flush_all().is_err());
    disk.clear_faults();
    pool.flush_all().unwrap();
    assert!(pool.spaces().iter().all(|space| space.dirty.lock().waiting() == 0));
    assert_eq!((pool.oldest_dirty(), pool.flusher.lock().torn.len()), (None, 0));
}

#[test]
fn a_file_that_takes_no_writes_holds_up_no_other() {
    for room in ROOMS {
        for (pages, others) in
            [(50, 3), (127, 3), (128, 3), (200, 3), (300, 3), (300, 300_usize.min(20 * room))]
        {
            let (disk, pool, spaces) = bad_and_good(room);
            disk.fail_always_on(FileName::Data(spaces[0].id()), Fault::WriteFails);
            dirty_pages(&pool, &spaces[0], pages);
            dirty_pages(&pool, &spaces[1], others);
            let rounds = rounds_to_write(&pool, &spaces);
            let most = 3 + others / (room / 4).max(1);
            assert!(rounds <= most, "{pages} pages that cannot be written, room {room}: {rounds} rounds");
            all_is_written_once_writes_succeed(&disk, &pool);
        }
    }
}

#[test]
fn a_file_that_cannot_be_made_holds_up_no_other() {
    for (room, pages) in ROOMS.into_iter().flat_map(|room| [(room, 50), (room, 300)]) {
        let (disk, pool, [_, good]) = bad_and_good(room);
        let spaces = [pool.attach(SpaceId(102), Durability::Logged), good];
        disk.fail_always_on(FileName::Data(spaces[0].id()), Fault::WriteFails);
        dirty_pages(&pool, &spaces[0], pages);
        dirty_pages(&pool, &spaces[1], 3);
        let rounds = rounds_to_write(&pool, &spaces);
        assert!(rounds <= 3 + 3 / room, "{pages} pages without a file, room {room}: {rounds} rounds");
        all_is_written_once_writes_succeed(&disk, &pool);
    }
}

/// Checks that the doublewrite file has the right copy of every torn page. Returns the number of torn pages.
fn torn_pages_have_copies(disk: &SimulatedDisk, pool: &BufferPool) -> usize {
    let copies = Doublewrite::copies(disk, PAGE_SIZE).unwrap().pages;
    let flusher = pool.flusher.lock();
    for torn in &flusher.torn {
        let found = copies.get(&torn.id()).unwrap_or_else(|| panic!("{} has no copy", torn.id()));
        assert!(found.bytes[..] == torn.copy.bytes()[..PAGE_SIZE], "{} has another copy", torn.id());
    }
    flusher.torn.len()
}

/// Makes all operations on these files that match the faults fail from now on.
fn fail(disk: &SimulatedDisk, spaces: &[Arc<Space>], faults: &[Fault]) {
    for (space, fault) in spaces.iter().flat_map(|space| faults.iter().map(move |fault| (space, *fault))) {
        disk.fail_always_on(FileName::Data(space.id()), fault);
    }
}

/// Returns one good tablespace without dirty pages, and bad ones with two dirty pages each: more of them than a batch
/// has pages. The files of all bad ones fail at the same time.
fn many_bad_and_good(
    room: usize,
    faults: &[Fault],
) -> (SimulatedDisk, Arc<BufferPool>, Arc<Space>, Vec<Arc<Space>>) {
    let (disk, pool, [good, _]) = bad_and_good(room);
    let bad: Vec<_> = (200..400).map(|id| pool.attach(SpaceId(id), Durability::Logged)).collect();
    for space in &bad {
        dirty_pages(&pool, space, 3);
    }
    pool.flush_all().unwrap();
    fail(&disk, &bad, faults);
    for space in &bad {
        change_whole_root(&pool, space);
        dirty_pages(&pool, space, 2);
    }
    (disk, pool, good, bad)
}

#[test]
fn many_files_that_take_no_writes_hold_up_no_other() {
    for room in [BATCH_PAGES, 16] {
        many_files_that_take_no_writes(room);
    }
}

fn many_files_that_take_no_writes(room: usize) {
    let neither = [Fault::WriteFails, Fault::ReadFails];
    let (many, slower) = (trial_writes_from(room)..=room * 3 / 4, BATCH_PAGES / room);
    for (faults, are_torn) in [(&neither[..1], 0..=0), (&neither, many.clone()), (&[Fault::TornPage], many)] {
        let (disk, pool, good, bad) = many_bad_and_good(room, faults);
        let oldest = pool.oldest_dirty();
        // With older changes that cannot be written, and then when the failures are known.
        for most in [20, 5, 5] {
            dirty_pages(&pool, &good, 100);
            let rounds = rounds_to_write(&pool, &[bad[0].clone(), good.clone()]);
            assert!(rounds <= most * slower, "{faults:?}, room {room}: {rounds} rounds");
            let torn = torn_pages_have_copies(&disk, &pool);
            assert!(are_torn.contains(&torn), "{faults:?}, room {room}: {torn} pages are torn");
            assert_eq!(pool.oldest_dirty(), oldest, "the log is needed for what is not written");
        }
        // A file that accepts writes again is detected soon, whichever it is.
        disk.clear_faults();
        disk.fail_always_on(FileName::NewDoublewrite, Fault::Full);
        fail(&disk, &bad[..150], faults);
        fail(&disk, &bad[151..], faults);
        let rounds = rounds_to_write(&pool, &[bad[0].clone(), bad[150].clone()]);
        assert!(rounds <= 300, "{faults:?}, room {room}: {rounds} rounds until a file is written again");
        torn_pages_have_copies(&disk, &pool);
        all_is_written_once_writes_succeed(&disk, &pool);
    }
}

/// A page with an interrupted trial write may not be readable after the crash.
#[test]
fn a_crash_during_trial_writes_leaves_every_page_whole_somewhere() {
    let (disk, pool, good, bad) = many_bad_and_good(BATCH_PAGES, &[Fault::TornPage]);
    (0..200).for_each(|_| drop(pool.clean_step(Lsn::MAX)));
    assert!(pool.flusher.lock().torn.len() >= trial_writes_from(BATCH_PAGES));
    dirty_pages(&pool, &good, 50);
    let first = disk.operations() + 1;
    disk.record_crash_points(first..=u64::MAX);
    rounds_to_write(&pool, &[bad[0].clone(), good]);
    let (mut torn, mut unreadable) = (0, 0);
    for (operation, crash_point) in disk.take_crash_points().into_iter().step_by(7) {
        let left = crash_point.restart(Survive::Random(operation));
        let copies = Doublewrite::copies(&left, PAGE_SIZE).unwrap().pages;
        for file in left.list(Folder::Data).unwrap() {
            let FileName::Data(space) = file else { continue };
            for page in 0..left.len(file).unwrap().unwrap().div_ceil(PAGE_SIZE as u64) as u32 {
                let (id, words) = (PageId { space, page: PageNo(page) }, page::blank(PAGE_SIZE));
                let found = Page::new(&words);
                let read = left.read_page(file, u64::from(page) * PAGE_SIZE as u64, found.words());
                if read.is_err() || !found.is_zero() && found.verify(id).is_err() {
                    assert!(copies.contains_key(&id), "crash at {operation}: {id} is whole nowhere");
                    torn += 1;
                    unreadable += usize::from(read.is_err());
                }
            }
        }
    }
    assert!(torn > 1000 && unreadable > 10, "{torn} pages have been torn, {unreadable} of them unreadable");
}

/// Each page of such a file that was tried counts as torn: it cannot be read from the file.
#[test]
fn a_file_that_can_be_neither_written_nor_read_fills_no_batch() {
    for (room, pages) in ROOMS.into_iter().flat_map(|room| [50, 127, 300].map(|pages| (room, pages))) {
        let (disk, pool, spaces) = bad_and_good(room);
        for fault in [Fault::WriteFails, Fault::ReadFails] {
            disk.fail_always_on(FileName::Data(spaces[0].id()), fault);
        }
        dirty_pages(&pool, &spaces[0], pages);
        for _ in 0..300 {
            let _ = pool.clean_step(Lsn::MAX);
        }
        let torn = pool.flusher.lock().torn.len();
        assert!(torn <= (room * 3).div_ceil(4), "{torn} of {pages} pages are in every batch, room {room}");
        let others = 300_usize.min(20 * room);
        dirty_pages(&pool, &spaces[1], others);
        let rounds = rounds_to_write(&pool, &spaces);
        // With room for one page the failing file has it in every other batch.
        let most = 3 + if room / 4 > 1 { others / (room / 4 - 1) } else { 2 * others };
        assert!(rounds <= most, "with {torn} of {pages} pages torn, room {room}: {rounds} rounds");
        all_is_written_once_writes_succeed(&disk, &pool);
    }
}

/// The torn pages were copied already.
#[test]
fn a_batch_without_a_doublewrite_file_leaves_no_page_that_is_being_written() {
    let (disk, pool) = new_pool_with_room(2048, SMALLEST_ROOM);
    let [space, other] = [100, 101].map(|id| pool.attach(SpaceId(id), Durability::Logged));
    dirty_pages(&pool, &space, 3);
    pool.flush_all().unwrap();
    change_whole_root(&pool, &space);
    disk.fail_at(0, Fault::TornPage);
    assert!(pool.flush([(space.clone(), PageNo::ROOT)]).is_err());
    assert_eq!(pool.flusher.lock().torn.len(), 1);
    dirty_pages(&pool, &other, 20);
    // The file with the copies becomes larger, and the sync of its name fails.
    let frame = pool.arena.frame(space.pages.get(PageNo::ROOT).unwrap());
    disk.fail_always_on(FileName::Control, Fault::SyncFails);
    assert!(pool.flush(pool.old_pages(Lsn::MAX)).is_err());
    assert_eq!(disk.failed(), Some((IoOp::SyncFolder, FileName::Control)));
    assert!(frame.is(DIRTY) && !frame.is(WRITING), "it can never be written again");
}

/// A copy that stayed among the torn pages would be outdated, and would replace the page if the data file cannot be
/// read.
#[test]
fn a_page_that_was_written_has_no_copy_among_the_torn_ones() {
    let (disk, pool, [space, _]) = bad_and_good(BATCH_PAGES);
    change_whole_root(&pool, &space);
    disk.fail_at(0, Fault::TornPage);
    assert!(pool.flush([(space.clone(), PageNo::ROOT)]).is_err());
    // The torn page is latched while another page shows that the file accepts writes.
    let latch = &pool.arena.frame(space.pages.get(PageNo::ROOT).unwrap()).latch;
    assert!(latch.try_exclusive());
    pool.exclusive(&space, PageNo::HEADER).unwrap().mark_dirty(&space, pool.context.log.durable());
    while space.is_failing() {
        pool.flush([]).unwrap();
    }
    // The latch is free again when the batch has handled the torn pages.
    let wanted = core::iter::once_with(|| {
        latch.release_unchanged();
        (space.clone(), PageNo::ROOT)
    });
    assert_eq!(pool.flusher.lock().torn.len(), 1);
    pool.flush(wanted).unwrap();
    pool.flush_all().unwrap();
    assert_eq!((pool.oldest_dirty(), pool.flusher.lock().torn.len()), (None, 0));
}

/// Torn pages take all the room of the doublewrite file: a batch can do nothing but try to write them.
#[test]
fn with_no_room_left_no_other_page_is_written() {
    for room in [16, SMALLEST_ROOM] {
        let (disk, pool, spaces) = bad_and_good(room);
        let [bad, good] = &spaces;
        fail(&disk, &spaces[..1], &[Fault::WriteFails, Fault::ReadFails]);
        dirty_pages(&pool, bad, room + 3);
        // Batches tear some of the pages; that the others are torn, too, is only noted.
        (0..20).for_each(|_| drop(pool.clean_step(Lsn::MAX)));
        let mut flusher = pool.flusher.lock();
        assert!((1..room).contains(&flusher.torn.len()), "{} pages are torn", flusher.torn.len());
        let dirty = bad.dirty.lock().oldest_waiting(Lsn::MAX, room + 3);
        for (_, page) in dirty {
            let frame = bad.pages.get(page).unwrap();
            if flusher.torn.len() < room && flusher.torn.iter().all(|torn| torn.page != page) {
                let mut copy = IoBuffer::new(PAGE_SIZE);
                pool.arena.page(frame).read(0, copy.bytes_mut());
                let crc = crc32c::crc32c(&copy.bytes()[4..PAGE_SIZE]);
                copy.bytes_mut()[..4].copy_from_slice(&crc.to_le_bytes());
                flusher.torn.push(Torn { space: bad.clone(), page, copy });
            }
        }
        assert_eq!(flusher.torn.len(), room);
        drop(flusher);
        dirty_pages(&pool, good, 3);
        let (before, oldest) = (waiting(&spaces), pool.oldest_dirty());
        let written = pool.counters.writes.load(Relaxed);
        for _ in 0..5 {
            let wanted = pool.old_pages(Lsn::MAX);
            assert!(wanted.iter().any(|(space, _)| Arc::ptr_eq(space, good)));
            assert!(pool.flush(wanted).is_err(), "room {room}: something was written");
            assert_eq!((waiting(&spaces), pool.oldest_dirty()), (before, oldest), "room {room}");
            assert_eq!(pool.counters.writes.load(Relaxed), written, "room {room}");
            assert_eq!(torn_pages_have_copies(&disk, &pool), room);
        }
        all_is_written_once_writes_succeed(&disk, &pool);
    }
}

#[test]
fn a_latched_page_is_neither_copied_nor_marked_dirty_again() {
    let (_, pool, [space, _]) = bad_and_good(BATCH_PAGES);
    change_whole_root(&pool, &space);
    let frame = pool.arena.frame(space.pages.get(PageNo::ROOT).unwrap());
    let copy_out = || pool.copy_out(space.clone(), PageNo::ROOT, &mut Vec::new());
    assert!(frame.latch.try_exclusive());
    assert!(copy_out().is_none(), "a page is copied while another thread may be changing it");
    assert!(frame.is(DIRTY) && !frame.is(WRITING));
    frame.latch.release_unchanged();
    let (copy, _) = copy_out().unwrap();
    assert!(frame.is(WRITING) && !frame.is(DIRTY));
    assert!(frame.latch.try_exclusive());
    assert!(!pool.dirty_again(&copy), "a page is marked dirty while another thread may be changing it");
    assert!(frame.is(WRITING) && !frame.is(DIRTY));
    frame.latch.release_unchanged();
    assert!(pool.dirty_again(&copy));
    assert!(frame.is(DIRTY) && !frame.is(WRITING));
}
