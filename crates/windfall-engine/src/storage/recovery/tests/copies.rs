//! Openings while a half of the doublewrite file cannot be read.
//!
//! **Purpose.** A crash leaves such a half if it interrupts the write of a batch to it. The copies in the other half
//! may be outdated then, and the unreadable part may become readable again.
//!
//! **Invariants.** The unreadable places of the files are chosen here, among those that a crash may leave so.

use super::*;

/// The maximum number of pages of a batch.
const BATCH: usize = 128;

/// Returns the offsets of the halves of the doublewrite file.
pub(super) fn halves(disk: &SimulatedDisk) -> [u64; 2] {
    [0, disk.len(FileName::Doublewrite).unwrap().unwrap() / 2]
}

/// Raises the low-water mark as far as dirty pages allow.
pub(super) fn raise_low_water_mark(base: &Base) {
    base.pool.files_to_record(99).into_iter().for_each(|space| base.pool.file_recorded(space));
    base.checkpointer.checkpoint(false).unwrap();
}

/// Returns a tablespace with this many pages, which are on disk together with the header and the map.
pub(super) fn filled(base: &Base, id: u64, pages: usize) -> (Arc<Space>, Vec<PageNo>) {
    let space = base.pool.attach(SpaceId(id), Durability::Logged);
    let allocate = |_| {
        let mut mtr = Mtr::begin(&base.pool).unwrap();
        let slot = tablespace::allocate(&mut mtr, &space, PageType::Leaf, 0, PageNo::ROOT).unwrap();
        let page = mtr.id(slot).page;
        base.commit(mtr).unwrap();
        page
    };
    let pages = (0..pages).map(allocate).collect();
    base.pool.flush_all().unwrap();
    (space, pages)
}

pub(super) fn change(base: &Base, space: &Arc<Space>, pages: &[PageNo], value: u64) {
    for page in pages {
        let mut mtr = Mtr::begin(&base.pool).unwrap();
        Run::write(&mut mtr, space, page.0, value).unwrap();
        base.commit(mtr).unwrap();
    }
}

pub(super) fn write(base: &Base, space: &Arc<Space>, pages: &[PageNo]) {
    let written = base.pool.flush(pages.iter().map(|page| (space.clone(), *page))).unwrap();
    assert_eq!(written, pages.len());
}

/// Returns a temporary tablespace (its changes are not logged) with a page in the pool, dirty.
fn temporary(base: &Base, id: u64) -> Arc<Space> {
    let space = base.pool.attach(SpaceId(id), Durability::Temporary);
    let mut mtr = Mtr::begin(&base.pool).unwrap();
    tablespace::allocate(&mut mtr, &space, PageType::Leaf, 0, PageNo::ROOT).unwrap();
    mtr.commit().unwrap();
    space
}

/// Opens the database with the smallest pool while a half of the doublewrite file cannot be read from `within` on, for
/// either half.
pub(super) fn each_half(disk: &SimulatedDisk, within: u64, check: impl Fn(&Base, &str)) {
    for half in halves(disk) {
        let (disk, what) = (disk.next_process(), format!("the half at {half} cannot be read"));
        disk.make_unreadable(FileName::Doublewrite, half + within);
        let base = Base::open_with(&disk, 1, FRAMES).unwrap_or_else(|error| panic!("{what}: {error}"));
        check(&base, &what);
    }
}

pub(super) fn values_are(base: &Base, space: u64, pages: &[PageNo], value: u64, what: &str) {
    let space = known(base, SpaceId(space));
    for page in pages {
        let shared = base.pool.share(&space, *page, crate::page::Access::Point);
        let found = shared.map(|shared| shared.page().u64(AT));
        assert!(matches!(found, Ok(found) if found == value), "{what}: {page:?}: {found:?}");
    }
}

#[test]
fn the_copies_of_a_batch_leave_room_for_the_pages_that_replay_changes() {
    let disk = SimulatedDisk::new(3);
    let base = Base::open_with(&disk, 1, 1024).unwrap();
    let (cold, batch) = filled(&base, 60, BATCH);
    let (hot, others) = filled(&base, 61, 2 * FRAMES);
    change(&base, &cold, &batch, 7);
    write(&base, &cold, &batch);
    raise_low_water_mark(&base);
    change(&base, &hot, &others, 8);
    each_half(&disk.restart(Survive::Nothing), 0, |base, what| {
        values_are(base, 60, &batch, 7, what);
        values_are(base, 61, &others, 8, what);
    });
}

#[test]
fn the_copies_of_both_halves_leave_room_for_a_batch() {
    let disk = SimulatedDisk::new(3);
    let base = Base::open_with(&disk, 1, 1024).unwrap();
    let spaces = [60, 61].map(|id| filled(&base, id, BATCH));
    for (space, pages) in &spaces {
        change(&base, space, pages, 7);
        write(&base, space, pages);
    }
    let [(_, one), (_, other)] = &spaces;
    // If one copy of a half cannot be read, the others are used.
    each_half(&disk.restart(Survive::Nothing), 5 * 4096, |base, what| {
        values_are(base, 60, one, 7, what);
        values_are(base, 61, other, 7, what);
    });
}

#[test]
fn a_page_of_a_temporary_table_that_cannot_be_read_is_not_missed() {
    let disk = SimulatedDisk::new(3);
    let (base, [one, _]) = two_pages(&disk).unwrap();
    let temporary = temporary(&base, 50);
    set(&base, &one, 7).unwrap();
    assert_eq!(base.pool.flush([one, temporary.clone()].map(|space| (space, PageNo(1)))).unwrap(), 2);
    drop(base);
    let disk = disk.restart(Survive::Everything);
    // Its file is never synced: a crash at any later time may leave it so, even one that interrupts the next batch.
    disk.make_unreadable(FileName::Data(temporary.id()), PAGE_SIZE as u64);
    each_half(&disk, 0, |base, what| {
        pages_are(base, [7, 0]).unwrap_or_else(|found| panic!("{what}: {found}"));
    });
}

/// Returns a page with a place that refuses writes and cannot be read, and with a copy in both halves.
pub(super) fn torn_for_long(disk: &SimulatedDisk) -> (Base, [Arc<Space>; 2]) {
    let (base, [one, other]) = two_pages(disk).unwrap();
    set(&base, &one, 7).unwrap();
    let file = FileName::Data(one.id());
    disk.fail_at(0, Fault::TornPage);
    assert!(base.pool.flush([(one.clone(), PageNo(1))]).is_err());
    disk.fail_always_on(file, Fault::WriteFails);
    set(&base, &other, 8).unwrap();
    base.pool.flush([(other.clone(), PageNo(1))]).unwrap();
    disk.clear_faults();
    disk.make_unreadable(file, PAGE_SIZE as u64);
    (base, [one, other])
}

#[test]
fn a_torn_page_is_restored_although_the_next_batch_was_cut_off() {
    let disk = SimulatedDisk::new(3);
    drop(torn_for_long(&disk));
    each_half(&disk.restart(Survive::Everything), 0, |base, what| {
        pages_are(base, [7, 8]).unwrap_or_else(|found| panic!("{what}: {found}"));
    });
}

#[test]
fn a_torn_page_of_a_dropped_tablespace_is_not_missed() {
    let disk = SimulatedDisk::new(3);
    let (base, [one, _]) = torn_for_long(&disk);
    let mut mtr = Mtr::begin(&base.pool).unwrap();
    mtr.record(&Record::Drop { spaces: vec![one.id()].into() });
    base.commit(mtr).unwrap();
    drop(base);
    each_half(&disk.restart(Survive::Nothing), 0, |base, what| {
        values_are(base, 41, &[PageNo(1)], 8, what);
    });
}

/// The writes of recovery to a page's place may be interrupted, too.
#[test]
fn an_opening_that_is_cut_off_leaves_every_page() {
    for mark_passes in [false, true] {
        let disk = SimulatedDisk::new(3);
        let (base, spaces) = two_pages(&disk).unwrap();
        for (space, value) in spaces.iter().zip([7, 8]) {
            set(&base, space, value).unwrap();
            base.pool.flush([(space.clone(), PageNo(1))]).unwrap();
        }
        if mark_passes {
            raise_low_water_mark(&base);
        }
        drop(base);
        let disk = disk.restart(Survive::Nothing);
        for half in halves(&disk) {
            for operation in 1.. {
                let mut has_crashed = false;
                for seed in 0..20 {
                    let disk = disk.next_process();
                    disk.make_unreadable(FileName::Doublewrite, half);
                    disk.crash_at(disk.operations() + operation);
                    has_crashed |= Base::open(&disk, 1).and_then(|base| base.pool.flush_all()).is_err();
                    let found = Base::open(&disk.restart(Survive::Random(seed)), 1);
                    let result = found.map(|base| pages_are(&base, [7, 8]));
                    assert!(matches!(result, Ok(Ok(()))), "operation {operation}, seed {seed}: {result:?}");
                }
                if !has_crashed {
                    break;
                }
            }
        }
    }
}

/// The unreadable half may contain the only copy of a page that replay finds torn.
#[test]
fn a_half_that_cannot_be_read_is_overwritten_last() {
    let disk = SimulatedDisk::new(3);
    let [one, _] = two_written(&disk);
    let disk = disk.restart(Survive::Nothing);
    for half in halves(&disk) {
        let disk = disk.next_process();
        disk.make_unreadable(FileName::Doublewrite, half);
        let base = Base::open(&disk, 1).unwrap();
        let space = base.pool.space(one.id()).unwrap();
        let is_readable = [9, 10].map(|value| {
            set(&base, &space, value).unwrap();
            base.pool.flush([(space.clone(), PageNo(1))]).unwrap();
            disk.read(FileName::Doublewrite, half, &mut [0; 4096]).is_ok()
        });
        assert_eq!(is_readable, [false, true]);
    }
}
