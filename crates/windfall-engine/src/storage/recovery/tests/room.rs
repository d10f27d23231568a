//! Openings with a doublewrite file that has little room, or none.
//!
//! **Purpose.** The file has room for two pages in a new database, and none if its creation was interrupted. Pages are
//! written all the same, and pages that cannot be written keep no database closed if the file can become larger.
//!
//! **Invariants.** The file has the room that a test gives it, and not that of [`Base::open`].

use super::{
    copies::{change, filled, values_are, write},
    unwritable::{FAILING, open_failing, restarted_with_torn},
    *,
};
use crate::buffer::SMALLEST_ROOM;

/// A crash of the opening that creates the file again may leave its name without its length. On a full disk it does not
/// grow.
#[test]
fn a_doublewrite_file_without_room_is_made_again() {
    for length in [0, 4096, 12_288] {
        let disk = SimulatedDisk::new(1);
        let (_, pages) = filled(&Base::open(&disk, 1).unwrap(), 40, 3);
        let disk = disk.restart(Survive::Nothing);
        disk.create(FileName::Doublewrite).unwrap();
        disk.preallocate(FileName::Doublewrite, 0, length).unwrap();
        disk.fail_always_on(FileName::NewDoublewrite, Fault::Full);
        let base = Base::open(&disk, 1).unwrap();
        let space = known(&base, SpaceId(40));
        change(&base, &space, &pages, 7);
        base.pool.flush_all().unwrap();
        assert_eq!(space.dirty_pages(), 0, "with {length} bytes no page is written");
        while base.pool.clean_step(Lsn::MAX).unwrap() {}
        values_are(&Base::open(&disk.restart(Survive::Nothing), 1).unwrap(), 40, &pages, 7, "written");
    }
}

/// Returns two pages that hold 7, torn in their places, with copies in a file that has room for no more; and pages of
/// another file.
fn torn_with_little_room() -> (SimulatedDisk, Vec<PageNo>, Vec<PageNo>) {
    let disk = SimulatedDisk::new(3);
    drop(Base::open(&disk, 1).unwrap());
    Doublewrite::create(&disk, PAGE_SIZE, SMALLEST_ROOM).unwrap();
    let disk = disk.restart(Survive::Nothing);
    disk.fail_always_on(FileName::NewDoublewrite, Fault::Full);
    let base = Base::open(&disk, 1).unwrap();
    let (_, others) = filled(&base, 41, 20);
    let (space, pages) = filled(&base, 40, SMALLEST_ROOM);
    change(&base, &space, &pages, 7);
    write(&base, &space, &pages);
    drop(base);
    (restarted_with_torn(&disk, &pages), pages, others)
}

#[test]
fn torn_pages_that_cannot_be_written_get_the_room_that_they_need() {
    let (disk, pages, others) = torn_with_little_room();
    let before = disk.len(FileName::Doublewrite).unwrap();
    let full = disk.survivor(Survive::Everything);
    let base = open_failing(&disk, Fault::WriteFails, FRAMES).unwrap();
    values_are(&base, 40, &pages, 7, "in memory");
    assert!(disk.len(FileName::Doublewrite).unwrap() > before, "they have all its room");
    // They leave room for other pages, and stay whole in the file.
    let other = known(&base, SpaceId(41));
    change(&base, &other, &others, 8);
    for page in &others {
        write(&base, &other, &[*page]);
    }
    let crashed = Base::open(&disk.survivor(Survive::Nothing), 1).unwrap();
    values_are(&crashed, 40, &pages, 7, "after a crash");
    values_are(&crashed, 41, &others, 8, "after a crash");
    // Without space for a larger file it is an error that loses nothing.
    full.fail_always_on(FileName::NewDoublewrite, Fault::Full);
    let error = open_failing(&full, Fault::WriteFails, FRAMES).err().unwrap();
    assert!(error.to_string().contains(&full.path(FAILING).display().to_string()), "{error}");
    full.clear_faults();
    values_are(&Base::open(&full, 1).unwrap(), 40, &pages, 7, "at last");
}
