//! Openings with a doublewrite file that may show more than is durable.
//!
//! **Purpose.** A process was killed before it had synced a batch, or its sync has failed, which no later sync repairs.
//! The content that recovery relies on is nevertheless durable.
//!
//! **Invariants.** The machine crashes after the opening has begun: at each of its operations, or of the next batch.

use super::{
    copies::{change, filled, halves, raise_low_water_mark, values_are, write},
    unwritable::{crash_points_of_a_batch, open_failing, torn_pages},
    *,
};
use crate::error::IoOp;

/// Opens the database, and verifies that the pages of tablespace 40 hold this value and that no unfinished new file is
/// left.
fn opens(disk: &SimulatedDisk, pages: &[PageNo], value: u64, what: &str) -> Base {
    let base = Base::open(disk, 1).unwrap_or_else(|error| panic!("{what}: {error}"));
    values_are(&base, 40, pages, value, what);
    assert_eq!(disk.len(FileName::NewDoublewrite).unwrap(), None, "{what}");
    base
}

/// Returns a database with torn pages in a file that refuses writes. They hold 8 now, which is not in the doublewrite
/// file yet.
fn changed() -> (SimulatedDisk, Base, Vec<PageNo>) {
    let (disk, pages, _) = torn_pages(&SimulatedDisk::new(3));
    let base = open_failing(&disk, Fault::WriteFails, FRAMES).unwrap();
    change(&base, &known(&base, SpaceId(40)), &pages, 8);
    (disk, base, pages)
}

/// Returns that database, killed in the next batch when the doublewrite file showed what was not durable.
fn killed_before_the_sync() -> (Vec<SimulatedDisk>, Vec<PageNo>) {
    let (disk, base, pages) = changed();
    let shown = |disk: &SimulatedDisk| {
        let mut bytes = vec![0; 2 * halves(disk)[1] as usize];
        disk.read(FileName::Doublewrite, 0, &mut bytes).unwrap();
        bytes
    };
    let crash_points =
        crash_points_of_a_batch(&disk, &base).into_iter().map(|(_, crash_point)| crash_point.next_process());
    let killed: Vec<_> = crash_points
        .filter(|crash_point| shown(crash_point) != shown(&crash_point.survivor(Survive::Nothing)))
        .collect();
    assert!(!killed.is_empty(), "no process was killed between write and sync");
    (killed, pages)
}

/// The next process opens it, with the file that refuses writes, and the machine crashes in a batch.
fn crash_in_the_next_batch(disk: &SimulatedDisk, pages: &[PageNo], chances: u64, what: &str) {
    let disk = disk.next_process();
    let base =
        open_failing(&disk, Fault::WriteFails, FRAMES).unwrap_or_else(|error| panic!("{what}: {error}"));
    for (operation, crash_point) in crash_points_of_a_batch(&disk, &base) {
        for seed in 0..chances {
            let what = format!("{what}, cut off at {operation}, {seed}");
            opens(&crash_point.survivor(Survive::Random(seed)), pages, 8, &what);
        }
    }
}

/// The next process overwrites the copies of the previous batch.
#[test]
fn copies_that_a_killed_process_did_not_sync_are_durable_before_the_next_batch() {
    let (disk, base, pages) = changed();
    for (operation, killed) in crash_points_of_a_batch(&disk, &base) {
        crash_in_the_next_batch(&killed, &pages, 20, &format!("killed at {operation}"));
    }
}

#[test]
fn copies_whose_sync_has_failed_are_durable_before_the_next_batch() {
    // The loss by a failed sync is random, and differs after each batch.
    for batches in 0..6 {
        let (disk, base, pages) = changed();
        for _ in 0..batches {
            let _ = base.pool.flush([]);
        }
        disk.fail_on(FileName::Doublewrite, Fault::SyncFails);
        assert!(base.pool.flush([]).is_err());
        crash_in_the_next_batch(&disk, &pages, 20, &format!("{batches} batches"));
    }
}

/// Any sync of an opening fails, and the next opening still makes durable what it relies on.
#[test]
fn copies_are_durable_whichever_sync_of_an_opening_has_failed() {
    let (all_killed, pages) = killed_before_the_sync();
    for killed in all_killed {
        let mut failed = Vec::new();
        for n in 1.. {
            let disk = killed.next_process();
            disk.fail_nth(n, Fault::SyncFails, false);
            let Err(error) = open_failing(&disk, Fault::WriteFails, FRAMES) else { break };
            crash_in_the_next_batch(&disk, &pages, 20, &format!("after {error}"));
            failed.push(error.to_string());
        }
        assert!(failed.iter().any(|error| error.contains("windfall.doublewrite.new")), "{failed:?}");
    }
}

/// Returns pages of tablespace 40 that hold 7, whole in their places; no batch left in the doublewrite file contains
/// them. An opening finds them up to date and must rewrite them.
fn found_done(seed: u64) -> (SimulatedDisk, Base, Vec<PageNo>) {
    let disk = SimulatedDisk::new(3);
    let base = Base::open(&disk, 1).unwrap();
    let (space, pages) = filled(&base, 40, 4);
    let (other, others) = filled(&base, 41, 1);
    raise_low_water_mark(&base);
    change(&base, &space, &pages, 7);
    write(&base, &space, &pages);
    for value in 0..2 {
        change(&base, &other, &others, value);
        write(&base, &other, &others);
    }
    drop(base);
    let disk = disk.restart(Survive::Random(seed));
    let base = Base::open(&disk, 1).unwrap();
    (disk, base, pages)
}

/// Returns a process with such pages, killed at each operation of a flush of all dirty pages.
fn killed_in_a_flush() -> (Vec<(u64, SimulatedDisk)>, Vec<PageNo>) {
    let (disk, base, pages) = found_done(0);
    disk.record_crash_points(disk.operations() + 1..=u64::MAX);
    base.pool.flush_all().unwrap();
    (disk.take_crash_points(), pages)
}

fn make_earlier_half_unreadable(disk: &SimulatedDisk) {
    let later = Doublewrite::copies(disk, PAGE_SIZE).unwrap().later().unwrap();
    disk.make_unreadable(FileName::Doublewrite, halves(disk)[1 - later]);
}

/// The next process opens it, and the machine crashes during that: it may tear pages that are rewritten. Then there is
/// room on the disk again.
fn crash_in_the_opening(disk: &SimulatedDisk, pages: &[PageNo], chances: u64, what: &str) {
    disk.record_crash_points(1..=u64::MAX);
    drop(opens(disk, pages, 7, what));
    for (operation, crash_point) in disk.take_crash_points() {
        for survive in core::iter::once(Survive::Nothing).chain((0..chances).map(Survive::Random)) {
            let what = format!("{what}, cut off at {operation}, {survive}");
            let left = crash_point.survivor(survive);
            left.set_capacity(None);
            opens(&left, pages, 7, &what);
        }
    }
}

#[test]
fn pages_with_copies_that_a_killed_process_did_not_sync_are_written_again() {
    let (all_killed, pages) = killed_in_a_flush();
    for (operation, killed) in all_killed {
        // If a part of a half cannot be read, the file is synced instead of replaced.
        for is_read in [true, false] {
            let next = killed.next_process();
            if !is_read {
                make_earlier_half_unreadable(&next);
            }
            let what = format!("killed at {operation}, the earlier half can be read: {is_read}");
            crash_in_the_opening(&next, &pages, 10, &what);
        }
    }
}

#[test]
fn pages_with_copies_whose_sync_has_failed_are_written_again() {
    for seed in 0..6 {
        let (disk, base, pages) = found_done(seed);
        disk.fail_on(FileName::Doublewrite, Fault::SyncFails);
        assert!(base.pool.flush_all().is_err());
        crash_in_the_opening(&disk.next_process(), &pages, 40, &format!("seed {seed}"));
    }
}

/// Returns the disk of an opening that was killed when a new file had replaced the doublewrite file, and its name was
/// not durable yet.
fn killed_after_the_rename(disk: &SimulatedDisk, pages: &[PageNo]) -> SimulatedDisk {
    disk.record_crash_points(1..=u64::MAX);
    drop(opens(disk, pages, 7, "to be killed"));
    let killed: Vec<_> =
        disk.take_crash_points().into_iter().map(|(_, crash_point)| crash_point.next_process()).collect();
    let has_new = |disk: &SimulatedDisk| disk.len(FileName::NewDoublewrite).unwrap().is_some();
    let renamed = killed.windows(2).position(|two| has_new(&two[0]) && !has_new(&two[1]));
    killed[renamed.expect("there was a new file") + 1].clone()
}

/// An opening is killed after the rename, and the next opening cannot make another new file.
#[test]
fn the_name_of_a_new_file_is_durable_before_pages_are_written_again() {
    let (all_killed, pages) = killed_in_a_flush();
    for (operation, killed) in all_killed {
        let renamed = killed_after_the_rename(&killed.next_process(), &pages);
        for is_full in [true, false] {
            let next = renamed.next_process();
            if is_full {
                next.set_capacity(Some(next.used()));
            } else {
                make_earlier_half_unreadable(&next);
            }
            let what = format!("killed at {operation} and after a rename, the disk is full: {is_full}");
            crash_in_the_opening(&next, &pages, 40, &what);
        }
    }
}

/// A full disk does not prevent opening, whenever it reports so: a drop may make room.
#[test]
fn a_disk_without_room_for_a_new_file_keeps_no_database_closed() {
    let (all_killed, pages) = killed_before_the_sync();
    for killed in &all_killed {
        // Without a fault there is room for a name.
        for fault in [Some(Fault::Full), Some(Fault::SyncFull), None] {
            let disk = killed.next_process();
            match fault {
                Some(fault) => disk.fail_on(FileName::NewDoublewrite, fault),
                None => disk.set_capacity(Some(disk.used())),
            }
            drop(opens(&disk, &pages, 8, &format!("full: {fault:?}")));
            assert_eq!(disk.failed().map(|(_, file)| file), Some(FileName::NewDoublewrite));
        }
        let disk = killed.next_process();
        disk.set_capacity(Some(disk.used()));
        crash_in_the_next_batch(&disk, &pages, 20, "full");
    }
}

/// The remains of an unfinished new file are never read, and the next new file replaces them.
#[test]
fn a_new_file_that_cannot_be_removed_keeps_no_database_closed() {
    let (disk, base, pages) = found_done(0);
    base.pool.flush_all().unwrap();
    drop(base);
    disk.create(FileName::NewDoublewrite).unwrap();
    let left = disk.restart(Survive::Everything);
    left.fail_on(FileName::NewDoublewrite, Fault::WriteFails);
    drop(opens(&left, &pages, 7, "it was not removed"));
    assert_eq!(left.failed(), Some((IoOp::Remove, FileName::NewDoublewrite)));
}

#[test]
fn an_opening_that_relies_on_no_copy_makes_no_new_file() {
    let disk = SimulatedDisk::new(3);
    let base = Base::open(&disk, 1).unwrap();
    let (space, pages) = filled(&base, 40, 4);
    change(&base, &space, &pages, 7);
    base.pool.flush_all().unwrap();
    let crashed = disk.survivor(Survive::Nothing);
    raise_low_water_mark(&base);
    drop(base);
    for (disk, is_made) in [(crashed, true), (disk.restart(Survive::Nothing), false)] {
        disk.fail_always_on(FileName::NewDoublewrite, Fault::Fails);
        let error = Base::open(&disk, 1).err().map(|error| error.to_string());
        assert_eq!(error.is_some_and(|error| error.contains("windfall.doublewrite.new")), is_made);
        disk.clear_faults();
        // The remains of one are removed, whether another one is needed or not.
        disk.create(FileName::NewDoublewrite).unwrap();
        opens(&disk, &pages, 7, "without the fault");
    }
}

/// That half may have the only copy of a page. The copy would be missing in a new file, where it could never become
/// readable again.
#[test]
fn a_half_that_cannot_be_read_stays_where_it_is() {
    let (disk, pages, _) = torn_pages(&SimulatedDisk::new(3));
    for half in halves(&disk) {
        let disk = disk.survivor(Survive::Everything);
        disk.make_unreadable(FileName::Doublewrite, half);
        drop(Base::open(&disk, 1));
        let disk = disk.next_process();
        disk.make_readable(FileName::Doublewrite, half);
        opens(&disk, &pages, 7, &format!("the half at {half}"));
    }
}
