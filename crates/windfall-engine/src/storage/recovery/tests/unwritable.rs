//! Openings with a data file that can be read and refuses writes.
//!
//! **Purpose.** Pages of it that recovery cannot rewrite are kept in memory and in the doublewrite file until the file
//! accepts writes.
//!
//! **Invariants.** The file refuses writes from the opening on, or from before a crash on; both kinds of failed write,
//! with and without a torn place, are tried.

use super::{
    copies::{change, each_half, filled, halves, raise_low_water_mark, torn_for_long, values_are, write},
    *,
};

/// The file of the first of two tablespaces: the one that fails.
pub(super) const FAILING: FileName = FileName::Data(SpaceId(40));

/// A failed write without and with a torn place.
const FAULTS: [Fault; 2] = [Fault::WriteFails, Fault::TornPage];

/// The batches of the doublewrite file with copies of the failing file's page (the first, the last, or both), and
/// whether its place is equal to the copy or torn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Earlier,
    Later,
    TornEarlier,
    TornInBoth,
}

const ALL_LEFT: [Left; 4] = [Left::Earlier, Left::Later, Left::TornEarlier, Left::TornInBoth];

/// Returns two pages that hold 7 and 8, as a crash has left them.
fn left(how: Left) -> SimulatedDisk {
    let disk = SimulatedDisk::new(3);
    let (base, [one, other]) = two_pages(&disk).unwrap();
    let flush = |space: &Arc<Space>| base.pool.flush([(space.clone(), PageNo(1))]);
    if how == Left::Later {
        set(&base, &other, 8).unwrap();
        flush(&other).unwrap();
    }
    set(&base, &one, 7).unwrap();
    match how {
        Left::Earlier | Left::Later => assert_eq!(flush(&one).unwrap(), 1),
        Left::TornEarlier | Left::TornInBoth => {
            disk.fail_at(0, Fault::TornPage);
            assert!(flush(&one).is_err());
            disk.fail_always_on(FAILING, Fault::WriteFails);
        }
    }
    if how != Left::Later {
        set(&base, &other, 8).unwrap();
    }
    if !matches!(how, Left::Later | Left::TornEarlier) {
        flush(&other).unwrap();
    }
    disk.restart(Survive::Everything)
}

/// Opens the database while the file refuses writes.
pub(super) fn open_failing(disk: &SimulatedDisk, fault: Fault, frames: usize) -> Result<Base> {
    disk.fail_always_on(FAILING, fault);
    Base::open_with(disk, 1, frames)
}

/// Asserts that the error of an opening names the file.
fn assert_named(error: &Error, disk: &SimulatedDisk, what: &str) {
    assert!(error.to_string().contains(&disk.path(FAILING).display().to_string()), "{what}: {error}");
}

/// Asserts that the database does not open while the file refuses writes, and that the error names that file.
fn assert_refused(disk: &SimulatedDisk, fault: Fault, what: &str) {
    let error = open_failing(disk, fault, FRAMES).err().unwrap_or_else(|| panic!("{what}: it is opened"));
    assert_named(&error, disk, what);
}

/// Changes and writes the other page, so that repeated calls overwrite both halves of the doublewrite file.
fn write_other(base: &Base, value: u64) -> Result<()> {
    let other = known(base, SpaceId(41));
    set(base, &other, value)?;
    base.pool.flush([(other.clone(), PageNo(1))])?;
    Ok(())
}

/// Returns the disk at each operation of a batch that contains the torn pages.
pub(super) fn crash_points_of_a_batch(disk: &SimulatedDisk, base: &Base) -> Vec<(u64, SimulatedDisk)> {
    disk.record_crash_points(disk.operations() + 1..=u64::MAX);
    let _ = base.pool.flush([]);
    disk.take_crash_points()
}

/// Returns whether both halves of the doublewrite file can be read.
fn can_be_read(disk: &SimulatedDisk) -> bool {
    let length = halves(disk)[1] as usize;
    halves(disk).iter().all(|half| disk.read(FileName::Doublewrite, *half, &mut vec![0; length]).is_ok())
}

fn assert_pages(base: &Base, values: [u64; 2], what: &str) {
    pages_are(base, values).unwrap_or_else(|found| panic!("{what}: {found}"));
}

#[test]
fn a_file_that_takes_no_writes_keeps_no_database_closed() {
    for (how, fault) in ALL_LEFT.into_iter().flat_map(|how| FAULTS.map(|fault| (how, fault))) {
        let (disk, what) = (left(how), format!("{how:?}, {fault:?}"));
        let base = open_failing(&disk, fault, FRAMES).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_pages(&base, [7, 8], &what);
        let needed = base.pool.oldest_dirty().unwrap();
        for value in 9..13 {
            write_other(&base, value).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        set(&base, &known(&base, SpaceId(40)), 20).unwrap();
        raise_low_water_mark(&base);
        assert!(
            base.pool.context().log.low_water_mark() <= needed,
            "{what}: the low-water mark has passed what is not written"
        );
        // After a crash, too, repeatedly, and whether the file accepts writes by then or not.
        let mut next = disk.survivor(Survive::Nothing);
        assert_pages(&Base::open(&next.survivor(Survive::Everything), 1).unwrap(), [20, 12], &what);
        for value in [12, 30, 31, 32] {
            let base = open_failing(&next, fault, FRAMES).unwrap_or_else(|error| panic!("{what}: {error}"));
            write_other(&base, value).unwrap();
            assert_pages(&base, [20, value], &what);
            next = next.survivor(Survive::Everything);
        }
        assert_pages(&Base::open(&next, 1).unwrap(), [20, 32], &what);
        // Once the file accepts writes, the page is durable in its place.
        disk.clear_faults();
        base.pool.flush_all().unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(base.pool.oldest_dirty(), None, "{what}");
        drop(base);
        let disk = disk.restart(Survive::Nothing);
        disk.remove(FileName::Doublewrite).unwrap();
        assert_pages(&Base::open(&disk, 1).unwrap(), [20, 12], &what);
    }
}

/// An opening with such a file, and the work after it, is interrupted at each operation; so is the next one. Nothing
/// is lost, and it opens, unless a half of the doublewrite file cannot be read.
#[test]
fn a_crash_at_any_time_loses_nothing() {
    let (mut opened, mut refused) = (0, 0);
    for (how, fault) in ALL_LEFT.into_iter().flat_map(|how| FAULTS.map(|fault| (how, fault))) {
        let disk = left(how);
        disk.record_crash_points(1..=u64::MAX);
        let base = open_failing(&disk, fault, FRAMES).unwrap();
        // The acknowledged values, and the operation up to which they hold.
        let mut acknowledged = vec![(disk.operations(), [7, 8])];
        for value in 9..12 {
            set(&base, &known(&base, SpaceId(40)), value).unwrap();
            acknowledged.push((disk.operations(), [value, value - 1]));
            write_other(&base, value).unwrap();
            acknowledged.push((disk.operations(), [value; 2]));
        }
        drop(base);
        for (operation, crash_point) in disk.take_crash_points() {
            let state = acknowledged.partition_point(|(until, _)| *until < operation);
            let may_be =
                [state.saturating_sub(1), state].map(|n| acknowledged.get(n).map(|(_, values)| *values));
            let chance = (0..6).map(|n| Survive::Random(operation + 1000 * n));
            for survive in [Survive::Nothing, Survive::Everything].into_iter().chain(chance) {
                let what = format!("{how:?}, {fault:?}, crash at {operation}, {survive:?}");
                let left = crash_point.restart(survive);
                left.crash_at(1 + operation % 23);
                let later = open_failing(&left, fault, FRAMES).and_then(|base| write_other(&base, 99));
                let left = left.restart(survive);
                let is_readable = can_be_read(&left);
                let check = |base: &Base, when: &str| {
                    let before = may_be.into_iter().flatten().filter(|_| later.is_err());
                    let behind = may_be.into_iter().flatten().map(|[one, _]| [one, 99]);
                    let found: Vec<_> = before.chain(behind).map(|values| pages_are(base, values)).collect();
                    assert!(found.iter().any(Result::is_ok), "{what}, {when}: {found:?}");
                };
                check(
                    &Base::open(&left.survivor(Survive::Everything), 1)
                        .unwrap_or_else(|error| panic!("{what}: {error}")),
                    "sound",
                );
                match open_failing(&left, fault, FRAMES) {
                    Ok(base) => {
                        check(&base, "failing");
                        opened += 1;
                    }
                    Err(error) => {
                        assert_named(&error, &left, &what);
                        assert!(!is_readable, "{what}: {error}");
                        refused += 1;
                        left.clear_faults();
                        check(
                            &Base::open(&left, 1).unwrap_or_else(|error| panic!("{what}: {error}")),
                            "at last",
                        );
                    }
                }
            }
        }
    }
    assert!(opened > 10 * refused && refused > 0, "{opened} were opened, {refused} were not");
}

/// Returns pages of the failing file that hold 7, are torn in their places and have copies in the later half of the
/// doublewrite file; the earlier half has a batch of a second file, and the page of that is returned, too. The log has
/// the changes of the pages, and of another one that is durable in its place, but not the changes that initialised
/// them.
pub(super) fn torn_pages(disk: &SimulatedDisk) -> (SimulatedDisk, Vec<PageNo>, Vec<PageNo>) {
    let base = Base::open(disk, 1).unwrap();
    let (failing, mut pages) = filled(&base, 40, 9);
    raise_low_water_mark(&base);
    let durable = pages.split_off(8);
    change(&base, &failing, &durable, 7);
    write(&base, &failing, &durable);
    let (_, others) = filled(&base, 41, 1);
    change(&base, &failing, &pages, 7);
    write(&base, &failing, &pages);
    drop(base);
    (restarted_with_torn(disk, &pages), pages, others)
}

/// Returns the disk after a crash that has torn these pages of the failing file.
pub(super) fn restarted_with_torn(disk: &SimulatedDisk, pages: &[PageNo]) -> SimulatedDisk {
    let disk = disk.restart(Survive::Nothing);
    for page in pages {
        assert!(disk.corrupt(FAILING, u64::from(page.0 + 1) * PAGE_SIZE as u64 - 8, 1));
    }
    disk
}

#[test]
fn all_pages_that_are_torn_are_in_every_batch() {
    let (disk, pages, others) = torn_pages(&SimulatedDisk::new(3));
    let base = open_failing(&disk, Fault::WriteFails, FRAMES).unwrap();
    let good = known(&base, SpaceId(41));
    for value in 1..5 {
        change(&base, &good, &others, value);
        base.pool.flush(others.iter().map(|page| (good.clone(), *page))).unwrap();
        let crashed = Base::open(&disk.survivor(Survive::Everything), 1).unwrap();
        values_are(&crashed, 40, &pages, 7, "torn");
        values_are(&crashed, 41, &others, value, "sound");
    }
}

#[test]
fn unwritable_pages_beyond_the_pool_are_an_error_with_the_file() {
    // A quarter of a small pool, and half of a batch.
    for (pages, frames, opens) in
        [(16, FRAMES, true), (17, FRAMES, false), (64, 1024, true), (65, 1024, false)]
    {
        let what = format!("{pages} pages with {frames} frames");
        let disk = SimulatedDisk::new(3);
        let base = Base::open_with(&disk, 1, 1024).unwrap();
        let (failing, batch) = filled(&base, 40, pages);
        let (good, others) = filled(&base, 41, 2 * FRAMES);
        change(&base, &failing, &batch, 7);
        write(&base, &failing, &batch);
        change(&base, &good, &others, 8);
        drop(base);
        let disk = disk.restart(Survive::Nothing);
        let check = |base: &Base| {
            values_are(base, 40, &batch, 7, &what);
            values_are(base, 41, &others, 8, &what);
        };
        match open_failing(&disk, Fault::TornPage, frames) {
            Ok(base) => {
                assert!(opens, "{what}: opened");
                check(&base);
                // They leave room for other pages.
                let good = known(&base, SpaceId(41));
                change(&base, &good, &others, 8);
                (0..300).for_each(|_| drop(base.pool.clean_step(Lsn::MAX)));
                assert_eq!(good.dirty_pages(), 0, "{what}");
            }
            Err(error) => {
                assert!(!opens, "{what}: {error}");
                assert_named(&error, &disk, &what);
            }
        }
        disk.clear_faults();
        check(&Base::open_with(&disk, 1, frames).unwrap());
    }
}

/// If each half has the only copy of a torn page, every order of overwriting the halves could lose something.
#[test]
fn copies_in_either_half_alone_are_an_error_that_loses_nothing() {
    let disk = SimulatedDisk::new(3);
    let base = Base::open_with(&disk, 1, 1024).unwrap();
    let (space, pages) = filled(&base, 40, 2);
    change(&base, &space, &pages, 7);
    for page in &pages {
        write(&base, &space, &[*page]);
    }
    drop(base);
    let disk = disk.restart(Survive::Nothing);
    // Whole in its place, the first page needs no copy: the second batch was later.
    values_are(
        &open_failing(&disk.survivor(Survive::Everything), Fault::TornPage, FRAMES).unwrap(),
        40,
        &pages,
        7,
        "whole",
    );
    assert!(disk.corrupt(FAILING, u64::from(pages[0].0) * PAGE_SIZE as u64 + PAGE_SIZE as u64 - 8, 1));
    for _ in 0..3 {
        assert_refused(&disk, Fault::TornPage, "copies in either half alone");
    }
    disk.clear_faults();
    values_are(&Base::open(&disk, 1).unwrap(), 40, &pages, 7, "at last");
}

#[test]
fn with_a_half_that_cannot_be_read_it_is_an_error_that_loses_nothing() {
    let disk = SimulatedDisk::new(3);
    drop(torn_for_long(&disk));
    let left = disk.restart(Survive::Everything);
    for half in halves(&left) {
        let disk = left.survivor(Survive::Everything);
        disk.make_unreadable(FileName::Doublewrite, half);
        assert_refused(&disk, Fault::WriteFails, &format!("the half at {half} cannot be read"));
    }
    each_half(&left, 0, |base, what| assert_pages(base, [7, 8], what));
}

#[test]
fn a_page_whose_tablespace_is_dropped_is_kept_until_the_drop_is_durable() {
    for fault in FAULTS {
        let disk = left(Left::TornInBoth);
        let base = open_failing(&disk, fault, FRAMES).unwrap();
        let one = known(&base, SpaceId(40));
        drop_space(&base, &one);
        let undone = disk.survivor(Survive::Nothing);
        assert_pages(&Base::open(&undone, 1).unwrap(), [7, 8], "the drop is not durable");
        for value in 9..12 {
            write_other(&base, value).unwrap();
        }
        raise_low_water_mark(&base);
        base.pool.flush_all().unwrap();
        assert_eq!(base.pool.oldest_dirty(), None, "something is kept of it");
        drop(base);
        let base = open_failing(&disk.restart(Survive::Nothing), fault, FRAMES).unwrap();
        values_are(&base, 41, &[PageNo(1)], 11, "after the drop");
    }
}

/// The log lacks the changes since such a copy, so a later crash could lose them if the place stayed torn.
#[test]
fn a_page_that_is_torn_below_the_low_water_mark_is_an_error_that_loses_nothing() {
    let disk = left(Left::Later);
    let base = Base::open(&disk, 1).unwrap();
    write_other(&base, 8).unwrap();
    base.pool.flush_all().unwrap();
    raise_low_water_mark(&base);
    drop(base);
    let disk = disk.restart(Survive::Nothing);
    assert_pages(
        &open_failing(&disk.survivor(Survive::Everything), Fault::WriteFails, FRAMES).unwrap(),
        [7, 8],
        "",
    );
    assert!(disk.corrupt(FAILING, 2 * PAGE_SIZE as u64 - 8, 1));
    assert_refused(&disk, Fault::WriteFails, "torn below the low-water mark");
    disk.clear_faults();
    assert_pages(&Base::open(&disk, 1).unwrap(), [7, 8], "at last");
}

/// The file of the dropped tablespace may exist for a while after the drop, and fails as before.
#[test]
fn a_page_of_a_tablespace_that_was_dropped_below_the_low_water_mark_is_not_missed() {
    for (fault, batches) in FAULTS.into_iter().flat_map(|fault| (0..3).map(move |batches| (fault, batches))) {
        let what = format!("{fault:?}, {batches} batches");
        let disk = left(Left::TornInBoth);
        let base = open_failing(&disk, fault, FRAMES).unwrap();
        let one = known(&base, SpaceId(40));
        drop_space(&base, &one);
        for value in 9..9 + batches {
            write_other(&base, value).unwrap();
        }
        base.pool.flush_all().unwrap();
        let end = base.pool.context().log.end();
        raise_low_water_mark(&base);
        assert!(base.pool.context().log.low_water_mark() >= end, "{what}");
        drop(base);
        let mut disk = disk.restart(Survive::Nothing);
        for value in 20..23 {
            disk.fail_always_on(FAILING, fault);
            let base = Base::open_unless(&disk, 1, FRAMES, Some(SpaceId(40)))
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            write_other(&base, value).unwrap();
            values_are(&base, 41, &[PageNo(1)], value, &what);
            drop(base);
            disk = disk.restart(Survive::Nothing);
        }
    }
}

/// A crash may leave any of a batch's copies whole or not. The previous batch has copies of the torn pages, too, and
/// the log has every later change.
#[test]
fn a_batch_that_is_cut_off_leaves_an_order_for_all_pages_that_are_torn() {
    let (disk, pages, _) = torn_pages(&SimulatedDisk::new(3));
    let base = open_failing(&disk, Fault::WriteFails, FRAMES).unwrap();
    change(&base, &known(&base, SpaceId(40)), &pages, 8);
    let mut opened = 0;
    for (operation, crash_point) in crash_points_of_a_batch(&disk, &base) {
        for seed in 0..50 {
            let what = format!("cut off at {operation}, {seed}");
            let left = crash_point.survivor(Survive::Random(seed));
            if can_be_read(&left) {
                let base = open_failing(&left, Fault::WriteFails, FRAMES)
                    .unwrap_or_else(|error| panic!("{what}: {error}"));
                values_are(&base, 40, &pages, 8, &what);
                opened += 1;
            }
        }
    }
    assert!(opened > 50, "{opened} were opened");
}

/// Batch numbers continue across openings, so the later of two batches can be determined, whichever openings have
/// written them.
#[test]
fn batch_numbers_continue_after_an_opening() {
    let mut disk = left(Left::Later);
    for value in 20..24 {
        let base = Base::open(&disk, 1).unwrap();
        write_other(&base, value).unwrap();
        let copies = Doublewrite::copies(&disk, PAGE_SIZE).unwrap();
        let mut of_other = copies.pages.iter().filter(|(id, _)| (id.space.0, id.page.0) == (41, 1));
        let found = of_other.next().unwrap().1;
        let of_later = copies.later().and_then(|later| found.lsns[later]);
        assert_eq!(of_later, Some(found.lsn), "{value}");
        drop(base);
        disk = disk.restart(Survive::Everything);
    }
}
