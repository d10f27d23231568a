//! The life cycle of segments, and segments that cannot be made or removed.
//!
//! **Purpose.** No file is trusted after a sync of it has failed. The log grows and is cut, and a cut that fails or is
//! interrupted loses neither a part of the log nor the space for work that makes room.
//!
//! **Invariants.** The histories are the same in every run.

use windfall_sim::{Fault, SimulatedDisk, Survive};

use super::{
    super::{
        segments::{Segment, Segments},
        space::EMERGENCY_RESERVE_BYTES,
    },
    crash::recover_with,
    *,
};
use crate::{error::IoOp, sync::atomic::Ordering::Relaxed};

struct Prepared {
    disk: SimulatedDisk,
    health: Health,
    log: Log,
}

/// Returns a log that is about to prepare a segment: out of an old file, or a new one.
fn about_to_prepare(out_of_an_old_one: bool) -> Prepared {
    about_to_prepare_on(SimulatedDisk::new(1), out_of_an_old_one)
}

fn about_to_prepare_on(disk: SimulatedDisk, out_of_an_old_one: bool) -> Prepared {
    let health = Health::new();
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let control = Control { uuid: UUID, page_size: 16384, ..Control::default() };
    let mut control = ControlFile::create(shared.clone(), health.clone(), control).unwrap();
    let env = Arc::new(SimulatedEnv::new(1));
    let log = Log::open(shared, env, health.clone(), OPTIONS, &mut control, Lsn::ZERO).unwrap();
    while log.step() == Next::Again {}
    for _ in 0..if out_of_an_old_one { 15 } else { 8 } {
        let (_, end) = log.begin_group().append(&[1; 9000]).unwrap();
        log.sync_to(end).unwrap();
    }
    if out_of_an_old_one {
        while log.step() == Next::Again {}
        let low_water_mark = log.durable();
        control
            .update(|control| (control.low_water_mark, control.durable) = (low_water_mark, low_water_mark))
            .unwrap();
        log.raise_low_water_mark(low_water_mark);
        for _ in 0..6 {
            let (_, end) = log.begin_group().append(&[1; 9000]).unwrap();
            log.sync_to(end).unwrap();
        }
    }
    Prepared { disk, health, log }
}

fn files(disk: &SimulatedDisk) -> Vec<FileName> {
    disk.list(Folder::Log).unwrap()
}

/// Returns every combination of an old or a new file with a way its sync fails.
fn both() -> impl Iterator<Item = (bool, Fault)> {
    let faults = [Fault::SyncFails, Fault::SyncFull];
    [false, true].into_iter().flat_map(move |old| faults.map(|fault| (old, fault)))
}

#[test]
fn a_segment_whose_sync_has_failed_is_thrown_away() {
    for (old, fault) in both() {
        let Prepared { disk, health, log } = about_to_prepare(old);
        let before = files(&disk);
        disk.fail_nth(1, fault, false);
        assert!(matches!(log.step(), Next::Idle(_)));
        let refused = log.admit(100).unwrap_err();
        assert!(matches!(refused, Error::Disk(_)), "{refused}");
        assert!(!health.is_poisoned());
        // The old file was renamed, the new one was removed.
        assert_eq!(files(&disk).len(), before.len() - usize::from(old), "{:?}", files(&disk));
        assert!(files(&disk).iter().all(|file| before.contains(file)));
        assert_eq!(log.step(), Next::Again);
        drop(log.admit(100).unwrap());
        let last = *files(&disk).last().unwrap();
        assert!(!before.contains(&last));
        let mut block = [0; 4096];
        let survivor = disk.restart(Survive::Nothing);
        assert_eq!(survivor.read(last, 0, &mut block).unwrap(), 4096);
        assert!(block.starts_with(b"WINDLOG1"), "its header is not durable");
    }
}

#[test]
fn a_segment_that_can_neither_be_trusted_nor_removed_stops_the_database() {
    for (old, fault) in both() {
        let Prepared { disk, health, log } = about_to_prepare(old);
        disk.fail_nth(1, fault, false);
        // The writes before the sync succeed.
        disk.fail_nth(if old { 2 } else { 4 }, Fault::WriteFails, false);
        let _ = log.step();
        assert_eq!(disk.failures(), 2);
        assert!(health.is_poisoned());
    }
}

#[test]
fn a_failing_sync_of_the_folder_stops_the_database() {
    for (old, fault) in both() {
        let Prepared { disk, health, log } = about_to_prepare(old);
        disk.fail_nth(2, fault, false);
        let _ = log.step();
        assert_eq!(disk.failures(), 1);
        assert!(health.is_poisoned());
        assert!(matches!(log.admit(100), Err(Error::Poisoned(_))));
    }
}

#[test]
fn a_file_that_could_not_be_written_is_used_again_later() {
    let Prepared { disk, log, .. } = about_to_prepare(true);
    let before = files(&disk).len();
    // The header cannot be written, and the file cannot be removed.
    disk.fail_nth(1, Fault::WriteFails, true);
    assert!(matches!(log.step(), Next::Idle(_)));
    disk.clear_faults();
    assert_eq!(files(&disk).len(), before);
    assert_eq!(log.step(), Next::Again);
    assert_eq!(files(&disk).len(), before, "it was renamed");
}

/// The file could not be removed when its sync had failed: the next process reads a header that may not be on the
/// disk.
#[test]
fn a_segment_that_is_taken_over_is_durable_before_it_is_used() {
    for seed in 0..16 {
        let Prepared { disk, health, log } = about_to_prepare_on(SimulatedDisk::new(seed), false);
        let before = files(&disk);
        disk.fail_nth(1, Fault::SyncFails, false);
        disk.fail_nth(4, Fault::WriteFails, false);
        let _ = log.step();
        assert!(health.is_poisoned());

        let next = disk.next_process();
        let stayed = *files(&next).last().unwrap();
        assert!(!before.contains(&stayed), "there is nothing to take over");
        let shared: Arc<dyn Disk> = Arc::new(next.clone());
        let mut control = ControlFile::open(shared.clone(), Health::new()).unwrap();
        let end = {
            let mut reader = LogReader::new(shared.clone(), control.control(), Lsn::ZERO).unwrap();
            while reader.next_group().unwrap().is_some() {}
            reader.end()
        };
        let env = Arc::new(SimulatedEnv::new(seed));
        let log = Log::open(shared, env, Health::new(), OPTIONS, &mut control, end).unwrap();
        assert!(files(&next).contains(&stayed), "it was not taken over");
        let FileName::Log(start) = stayed else { unreachable!() };
        let mut last = end;
        while last.0 <= start {
            (_, last) = log.begin_group().append(&[2; 9000]).unwrap();
            log.sync_to(last).unwrap();
        }

        let survivor: Arc<dyn Disk> = Arc::new(next.restart(Survive::Nothing));
        let control = ControlFile::open(survivor.clone(), Health::new()).unwrap();
        let mut reader = LogReader::new(survivor, control.control(), Lsn::ZERO).unwrap();
        while reader.next_group().unwrap_or_else(|error| panic!("seed {seed}: {error}")).is_some() {}
        assert_eq!(reader.end(), last, "seed {seed}: durable log is lost");
    }
}

#[test]
fn a_segment_that_could_not_be_removed_is_removed_later() {
    let disk = SimulatedDisk::new(1);
    let (zero, start) = (Lsn::ZERO, |number| Lsn(number * ROOM));
    let segments =
        Segments::open(Arc::new(disk.clone()), Health::new(), UUID, SEGMENT, zero, zero, zero).unwrap();
    while segments.prepare(start(10)).unwrap() {}
    segments.retire(start(8));
    assert!(segments.remove_one().unwrap());
    disk.fail_nth(1, Fault::WriteFails, false);
    segments.remove_one().unwrap_err();
    while segments.remove_one().unwrap() {}
    assert_eq!(files(&disk), [1, 7, 8, 9].map(|n| file(start(n))), "two are kept, and two are needed");
    // A file that could not be removed can be recycled like any other.
    assert!(segments.prepare(start(11)).unwrap());
    assert_eq!(files(&disk), [7, 8, 9, 10].map(|n| file(start(n))));
}

/// The largest segments are four times as large as the first one.
const GROWING: LogOptions = LogOptions { size: 4 << 20, segment: 512 << 10, buffer: 64 << 10 };

struct Growing {
    disk: SimulatedDisk,
    control: ControlFile,
    log: Log,
}

fn growing(disk: SimulatedDisk, options: LogOptions) -> Growing {
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let control = Control { uuid: UUID, page_size: 16384, ..Control::default() };
    let mut control = ControlFile::create(shared.clone(), Health::new(), control).unwrap();
    let env = Arc::new(SimulatedEnv::new(1));
    let log = Log::open(shared, env, Health::new(), options, &mut control, Lsn::ZERO).unwrap();
    Growing { disk, control, log }
}

impl Growing {
    fn append(&self, bytes: u64) {
        let before = self.log.end();
        while self.log.end().0 < before.0 + bytes {
            self.log.begin_group().append(&[1; 9000]).unwrap();
            while self.log.step() == Next::Again {}
        }
        self.log.sync_to(Lsn::MAX).unwrap();
    }

    fn checkpoint(&mut self) {
        let end = self.log.durable();
        self.control.update(|control| (control.low_water_mark, control.durable) = (end, end)).unwrap();
        self.log.raise_low_water_mark(end);
        while self.log.step() == Next::Again {}
    }

    /// Returns the sizes of the segment files in KiB, in the order of their names.
    fn sizes(&self) -> Vec<u64> {
        files(&self.disk).iter().map(|file| self.disk.len(*file).unwrap().unwrap() >> 10).collect()
    }
}

#[test]
fn segments_grow_with_the_log_and_the_largest_are_recycled() {
    let mut life = growing(SimulatedDisk::new(1), GROWING);
    while life.log.step() == Next::Again {}
    assert_eq!(life.sizes(), [128]);
    life.append(100 << 10);
    assert_eq!(life.sizes(), [128, 256], "one is ahead as soon as half of the current one is used");
    life.append(1800 << 10);
    assert_eq!(life.sizes(), [128, 256, 512, 512, 512, 512]);
    life.checkpoint();
    assert_eq!(life.sizes(), [512, 512, 512], "in use, and two to be recycled");
    let before = files(&life.disk);
    life.append(600 << 10);
    assert_eq!(life.sizes(), [512, 512, 512]);
    assert_ne!(files(&life.disk), before, "none was recycled");
    // A reservation gets a segment of its size.
    let small = growing(SimulatedDisk::new(1), LogOptions { segment: 2 << 20, ..GROWING });
    drop(small.log.reserve(900 << 10).unwrap());
    assert_eq!(small.sizes(), [1024]);
}

/// A crash has left the file that was to be the first segment.
#[test]
fn a_first_segment_that_was_not_finished_is_made_again() {
    for length in [0, 4096, 128 << 10] {
        let disk = SimulatedDisk::new(1);
        disk.create(FileName::Log(0)).unwrap();
        disk.preallocate(FileName::Log(0), 0, length).unwrap();
        let life = growing(disk, GROWING);
        life.append(10 << 10);
        assert_eq!((files(&life.disk), life.sizes()), (vec![FileName::Log(0)], vec![128]));
    }
}

#[test]
fn an_idle_log_is_cut_down() {
    let mut life = growing(SimulatedDisk::new(1), GROWING);
    life.append(2000 << 10);
    assert!(life.log.is_oversized());
    let end = life.log.end();
    // Bytes that are reserved must stay covered.
    let large = life.log.reserve(100 << 10).unwrap();
    assert!(!life.log.cut().unwrap());
    drop(large);
    let small = life.log.reserve(10 << 10).unwrap();
    assert!(life.log.cut().unwrap());
    drop(small);
    life.checkpoint();
    assert_eq!(life.sizes(), [256, 128], "one is kept, of the size that the next one will have");
    assert_eq!(files(&life.disk).last(), Some(&FileName::Log(end.0)));
    assert!(!life.log.is_oversized() && life.log.cut().unwrap());
    life.append(300 << 10);
    assert_eq!(life.sizes(), [128, 256, 512], "it grows again");
    // What is not durable is not cut off.
    life.log.begin_group().append(&[2; 100]).unwrap();
    assert!(!life.log.cut().unwrap());
    assert_eq!(life.sizes(), [128, 256, 512]);
}

/// The largest segments are no larger than the one that a cut makes.
#[test]
fn an_idle_log_of_small_segments_is_cut_down() {
    let mut life = growing(SimulatedDisk::new(1), OPTIONS);
    life.append(10 << 10);
    drop(life.log.reserve(2 << 20).unwrap());
    assert!(life.log.is_oversized() && life.sizes().iter().all(|size| *size == 64));
    assert!(life.log.cut().unwrap());
    life.checkpoint();
    assert_eq!(life.sizes(), [64, 128], "one is kept, of the size that the next one will have");
    life.append(300 << 10);
    assert_eq!(end_after_restart(&life.disk, Survive::Nothing, "cut"), life.log.durable());
}

/// Returns the end of the log that a restart finds. It is found again, with a few groups more, by the next one.
fn end_after_restart(disk: &SimulatedDisk, survive: Survive, what: &str) -> Lsn {
    let left = Arc::new(disk.survivor(survive));
    let (_, _, end, log) = recover_with(&left, GROWING).unwrap_or_else(|error| panic!("{what}: {error}"));
    for _ in 0..60 {
        log.begin_group().append(&[3; 9000]).unwrap();
    }
    log.sync_to(Lsn::MAX).unwrap();
    let expected = log.durable();
    let (_, _, found, _) = recover_with(&Arc::new(left.restart(Survive::Nothing)), GROWING)
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(found, expected, "{what}");
    end
}

/// Returns a log with two segments ahead, of which the current one has little room.
fn two_ahead() -> Growing {
    let life = growing(SimulatedDisk::new(1), GROWING);
    life.append(330 << 10);
    drop(life.log.reserve(800 << 10).unwrap());
    assert_eq!(life.sizes(), [128, 256, 512, 512]);
    life
}

#[test]
fn a_cut_that_fails_leaves_the_log_as_it_was() {
    let operations = {
        let life = two_ahead();
        let before = life.disk.operations();
        assert!(life.log.cut().unwrap());
        life.disk.operations() - before
    };
    // On a full disk, and at each of the operations of a cut.
    for operation in 0..=operations {
        let life = two_ahead();
        match operation {
            0 => life.disk.set_capacity(Some(life.disk.used())),
            n => life.disk.fail_nth(n, Fault::Fails, false),
        }
        life.log.cut().unwrap_err();
        assert_eq!(life.disk.failures(), 1, "{operation}");
        life.disk.set_capacity(None);
        life.disk.clear_faults();
        if life.log.health.is_poisoned() {
            assert_eq!(life.disk.failed().map(|(action, _)| action), Some(IoOp::SyncFolder), "{operation}");
        } else {
            // The last one may be given up before the removal of the other one fails.
            let ahead = if operation == operations - 1 { &[512][..] } else { &[512, 512] };
            assert_eq!(life.sizes(), [&[128, 256][..], ahead].concat(), "{operation}");
            life.append(500 << 10);
            life.log.finish().unwrap();
        }
        let chances = (0..8).map(Survive::Random);
        for survive in [Survive::Nothing, Survive::Everything].into_iter().chain(chances) {
            let what = format!("operation {operation}, {survive}");
            assert_eq!(end_after_restart(&life.disk, survive, &what), life.log.durable(), "{what}");
        }
    }
}

/// The prepared segment that has the bytes for work that makes room is replaced by the new one, and a crash comes in
/// between.
#[test]
fn a_crash_during_a_cut_leaves_space_for_work_that_makes_room() {
    let (first, last) = {
        let life = two_ahead();
        let before = life.disk.operations();
        assert!(life.log.cut().unwrap());
        (before + 1, life.disk.operations())
    };
    let life = two_ahead();
    life.disk.record_crash_points(first..=last);
    assert!(life.log.cut().unwrap());
    for (operation, crash_point) in life.disk.take_crash_points() {
        for survive in (0..100).map(Survive::Random).chain([Survive::Nothing, Survive::Everything]) {
            let left = Arc::new(crash_point.restart(survive));
            left.set_capacity(Some(left.used()));
            let (_, _, _, log) = recover_with(&left, GROWING).unwrap();
            let room = log.admit_freeing(EMERGENCY_RESERVE_BYTES);
            drop(room.unwrap_or_else(|error| panic!("operation {operation}, {survive}: {error}")));
        }
    }
}

/// A segment could be neither made nor removed, and then the log is cut: a later segment reaches beyond that file.
#[test]
fn a_file_that_stayed_at_the_end_of_the_chain_is_removed_before_a_cut() {
    for is_removable in [true, false] {
        let life = growing(SimulatedDisk::new(1), GROWING);
        life.append(500 << 10);
        assert_eq!(life.sizes(), [128, 256, 512]);
        let stays = FileName::Log((128 + 256 + 512 - 3 * 4) << 10);
        while life.log.end().0 < 650 << 10 {
            life.log.begin_group().append(&[1; 9000]).unwrap();
        }
        life.log.sync_to(Lsn::MAX).unwrap();
        // The file is created, its space cannot be reserved, and it cannot be removed.
        life.disk.fail_nth(2, Fault::Full, false);
        life.disk.fail_nth(2, Fault::WriteFails, false);
        assert!(matches!(life.log.step(), Next::Idle(_)));
        assert_eq!((life.disk.failures(), life.disk.failed()), (2, Some((IoOp::Remove, stays))));
        assert!(files(&life.disk).contains(&stays) && !life.log.health.is_poisoned());
        if is_removable {
            assert!(life.log.cut().unwrap());
            assert!(!files(&life.disk).contains(&stays), "the next segments reach beyond it");
        } else {
            life.disk.fail_on(stays, Fault::WriteFails);
            life.log.cut().unwrap_err();
            assert!(files(&life.disk).contains(&stays));
        }
        life.append(400 << 10);
        life.log.finish().unwrap();
        for survive in [Survive::Nothing, Survive::Everything] {
            let what = format!("it can be removed: {is_removable}, {survive}");
            assert_eq!(end_after_restart(&life.disk, survive, &what), life.log.durable(), "{what}");
        }
    }
}

/// The log ends exactly where a prepared segment begins.
#[test]
fn a_log_that_ends_between_segments_is_cut_soon() {
    let mut life = growing(SimulatedDisk::new(1), GROWING);
    life.append(330 << 10);
    let boundary = Lsn((128 + 256 - 2 * 4) << 10);
    let left = || (boundary.0 - life.log.end().0) as usize;
    while left() > 9000 {
        life.log.begin_group().append(&[1; 4000]).unwrap();
    }
    let longest = (1..left()).rfind(|bytes| span(*bytes) <= left()).unwrap();
    life.log.begin_group().append(&vec![1; longest]).unwrap();
    life.log.sync_to(Lsn::MAX).unwrap();
    assert_eq!(life.log.end(), boundary);
    assert!(!life.log.cut().unwrap());
    assert!(life.log.cut().unwrap(), "the end has not moved");
    life.checkpoint();
    assert_eq!(life.sizes().last(), Some(&128));
    life.append(100 << 10);
    assert_eq!(end_after_restart(&life.disk, Survive::Nothing, "cut"), life.log.durable());
}

/// Returns a log with its end near `end`, in a segment of 512 KiB without one ahead, whose largest segments have 64 KiB
/// since it was opened again.
fn larger_before(end: u64) -> Growing {
    let life = growing(SimulatedDisk::new(1), GROWING);
    life.append(500 << 10);
    while life.log.end().0 < end {
        life.log.begin_group().append(&[1; 4000]).unwrap();
    }
    life.log.finish().unwrap();
    assert_eq!(life.sizes(), [128, 256, 512]);
    let disk = life.disk.restart(Survive::Nothing);
    let (control, _, _, log) = recover_with(&Arc::new(disk.clone()), OPTIONS).unwrap();
    Growing { disk, control, log }
}

#[test]
fn a_log_with_larger_segments_than_the_largest_of_today_is_cut_and_prepares_little() {
    let mut life = larger_before(700 << 10);
    life.checkpoint();
    assert_eq!(life.sizes(), [512], "none is ahead: the current one has room for more than one of today");
    assert!(life.log.cut().unwrap());
    life.checkpoint();
    assert_eq!(life.sizes(), [128]);
    life.append(300 << 10);
    assert_eq!(end_after_restart(&life.disk, Survive::Nothing, "cut"), life.log.durable());
}

/// One prepared segment was removed, and another one stays: the space that is reserved is neither in the old chain nor
/// in the new one.
#[test]
fn a_cut_that_fails_and_loses_reserved_space_stops_the_database() {
    let life = larger_before(870 << 10);
    let room = life.log.reserve(50 << 10).unwrap();
    assert_eq!(life.sizes(), [128, 256, 512, 64, 64]);
    life.disk.fail_on(FileName::Log((128 + 256 + 512 - 3 * 4) << 10), Fault::WriteFails);
    life.log.cut().unwrap_err();
    assert!(life.log.health.is_poisoned());
    drop(room);
    assert_eq!(end_after_restart(&life.disk, Survive::Everything, "stopped"), life.log.durable());
}

#[test]
fn a_recycled_file_has_its_header_before_its_name() {
    let Prepared { disk, log, .. } = about_to_prepare(true);
    let before = files(&disk);
    disk.record_crash_points(1..=u64::MAX);
    assert_eq!(log.step(), Next::Again);
    let renamed: Vec<FileName> = files(&disk).into_iter().filter(|file| !before.contains(file)).collect();
    let [FileName::Log(start)] = renamed[..] else { panic!("{renamed:?} were made") };
    let mut found = 0;
    for (operation, crash_point) in disk.take_crash_points() {
        for survive in (0..20).map(Survive::Random).chain([Survive::Nothing, Survive::Everything]) {
            let left = crash_point.restart(survive);
            if files(&left).contains(&renamed[0]) {
                let segment = Segment::read(&left, &UUID, Lsn(start)).unwrap();
                assert!(segment.is_ok(), "operation {operation}, {survive}: {segment:?}");
                found += 1;
            }
        }
    }
    assert!(found > 0, "no crash has left the new name");
}

#[test]
fn the_worker_writes_a_half_of_the_buffer_that_is_full() {
    let life = growing(SimulatedDisk::new(1), GROWING);
    while life.log.step() == Next::Again {}
    let half = life.log.ring.capacity() / 2;
    let begin = life.log.end();
    life.log.wake().timed_wait(Duration::ZERO);
    assert!(!life.log.wake().is_notified());
    while life.log.end().0 / half == begin.0 / half {
        assert_eq!(life.log.written(), begin, "the log is written before half of the buffer is full");
        life.log.begin_group().append(&[1; 9000]).unwrap();
    }
    let syncs = life.log.metrics().fsyncs;
    assert!(life.log.wake().is_notified(), "the worker is not woken");
    while life.log.step() == Next::Again {}
    assert_eq!(life.log.written(), life.log.end());
    assert_eq!(life.log.metrics().fsyncs, syncs, "a write ahead waits for no sync");
}

#[test]
fn a_step_of_the_worker_makes_or_removes_one_file_or_syncs() {
    let mut life = growing(SimulatedDisk::new(1), GROWING);
    let mut most = [0; 3];
    let mut steps = |life: &Growing| {
        loop {
            let (before, syncs) = (files(&life.disk), life.log.metrics().fsyncs);
            let next = life.log.step();
            let after = files(&life.disk);
            let is_not_in = |others: &[FileName], file: &&FileName| !others.contains(file);
            let made = after.iter().filter(|file| is_not_in(&before, file)).count() as u64;
            let removed = before.iter().filter(|file| is_not_in(&after, file)).count() as u64;
            let syncs = life.log.metrics().fsyncs - syncs;
            // A file that is recycled gets another name.
            assert!(made <= 1 && removed <= 1 && syncs <= 1, "{made} made, {removed} removed, {syncs} syncs");
            assert!(made + removed == 0 || syncs == 0, "{made} made, {removed} removed, {syncs} syncs");
            most = [most[0].max(made), most[1].max(removed), most[2].max(syncs)];
            if next != Next::Again {
                return;
            }
        }
    };
    steps(&life);
    for round in 0..3 {
        for _ in 0..150 {
            life.log.begin_group().append(&[1; 9000]).unwrap();
        }
        life.log.sync_to(Lsn::MAX).unwrap();
        let end = life.log.durable();
        life.control.update(|control| (control.low_water_mark, control.durable) = (end, end)).unwrap();
        life.log.raise_low_water_mark(end);
        steps(&life);
        // The log is older than the interval at which it is synced.
        life.log.begin_group().append(&[2; 90]).unwrap();
        life.log.last_sync_at.store(u64::MAX / 2, Relaxed);
        steps(&life);
        assert_eq!(life.log.durable(), life.log.end(), "round {round}");
    }
    assert_eq!(most, [1, 1, 1], "a kind of step did not occur");
}

#[test]
fn a_reservation_counts_in_full_until_it_is_dropped() {
    let life = growing(SimulatedDisk::new(1), GROWING);
    let room = life.log.reserve(20_000).unwrap();
    for n in 1..=2 {
        life.log.begin_group().append(&[1; 9000]).unwrap();
        assert_eq!(life.log.reserved_bytes(), 20_000, "after {n} groups");
    }
    drop(room);
    assert_eq!(life.log.reserved_bytes(), 0);
}
