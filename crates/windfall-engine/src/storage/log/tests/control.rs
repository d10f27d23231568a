//! Tests of the control file.
//!
//! **Purpose.** A torn write loses nothing but itself, and every error about the file names the remedy.
//!
//! **Invariants.** Every torn write and every damage is made by the test.

use windfall_sim::{Fault, SimulatedDisk, Survive};

use super::*;
fn what(disk: &Arc<TestDisk>) -> String {
    ControlFile::open(disk.clone(), Health::new()).unwrap_err().to_string()
}

#[test]
fn a_write_torn_at_any_byte_leaves_the_old_or_the_new() {
    let disk = new_database();
    let mut file = ControlFile::open(disk.clone(), Health::new()).unwrap();
    for n in 1..4 {
        let old = file.control().clone();
        let mut before = vec![0; 8192];
        disk.read(FileName::Control, 0, &mut before).unwrap();
        file.update(|control| control.trx_ceiling = n * 1000).unwrap();
        let mut after = vec![0; 8192];
        disk.read(FileName::Control, 0, &mut after).unwrap();
        for cut in 0..8192 {
            let torn = disk.crash(0);
            torn.write(FileName::Control, 0, &[&after[..cut], &before[cut..]].concat()).unwrap();
            let found = ControlFile::open(torn, Health::new()).unwrap().control().clone();
            let found = Control { alone: false, ..found };
            assert!(found == old || found == *file.control(), "torn at byte {cut}");
        }
    }
}

#[test]
fn every_field_comes_back() {
    let disk = TestDisk::new();
    let fixed = Control { page_size: 1, uuid: [2; 16], ..Control::default() };
    let mut file = ControlFile::create(disk.clone(), Health::new(), fixed.clone()).unwrap();
    file.update(|control| {
        *control = Control {
            incarnation: 3,
            incarnation_start: Lsn(4),
            low_water_mark: Lsn(6),
            checkpoint: Lsn(7),
            durable: Lsn(8),
            space_ceiling: 9,
            trx_ceiling: 10,
            clean: true,
            system_made: true,
            alone: false,
            ..fixed
        }
    })
    .unwrap();
    let again = ControlFile::open(disk.crash(1), Health::new()).unwrap();
    assert_eq!(again.control(), file.control());
    assert!(again.control().clean && again.control().trx_ceiling == 10);
    // Such positions are impossible.
    assert!(LogReader::new(disk, again.control(), Lsn::ZERO).is_err());
}

#[test]
fn a_damaged_control_file_is_reported_with_the_reason() {
    let disk = new_database();
    disk.remove(FileName::Control).unwrap();
    assert!(what(&disk).contains("missing"));
    disk.create(FileName::Control).unwrap();
    assert!(what(&disk).contains("not the control file"));
    let disk = new_database();
    disk.flip(FileName::Control, 20, 1);
    assert!(ControlFile::open(disk.clone(), Health::new()).is_ok(), "the other copy is whole");
    disk.flip(FileName::Control, 4096 + 20, 1);
    assert!(what(&disk).contains("both copies"));
    let disk = new_database();
    let mut slot = [0; 4096];
    disk.read(FileName::Control, 0, &mut slot).unwrap();
    slot[8] = 77;
    frame::seal(&mut slot);
    disk.write(FileName::Control, 0, &slot).unwrap();
    assert!(what(&disk).contains("format version 77"));
}

#[test]
fn a_failing_write_poisons() {
    let disk = new_database();
    let health = Health::new();
    let mut file = ControlFile::open(disk.clone(), health.clone()).unwrap();
    disk.fail_sync();
    assert!(file.update(|control| control.clean = true).is_err());
    assert!(health.is_poisoned() && !file.control().clean);
}

/// Corrupts the newest slot.
fn rot(disk: &Arc<TestDisk>) {
    let mut slots = vec![0; 8192];
    disk.read(FileName::Control, 0, &mut slots).unwrap();
    let sequence = |slot: usize| slots[slot * 4096 + 32];
    let newest = usize::from(sequence(1) > sequence(0));
    let byte = slots[newest * 4096 + 50] ^ 4;
    disk.write(FileName::Control, newest as u64 * 4096 + 50, &[byte]).unwrap();
}

fn assert_names_control_file(disk: &Arc<TestDisk>) {
    let error = read(disk, None).map(drop).expect_err("something was lost").to_string();
    assert!(error.contains("windfall.control") && error.contains("backup"), "{error}");
}

#[test]
fn an_older_control_record_never_hides_the_log_of_a_later_incarnation() {
    for (clean, below_the_mark) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut life = open(new_database());
        life.append(b"of the first");
        life.log.sync_to(life.log.end()).unwrap();
        if below_the_mark {
            life.checkpoint(life.log.end());
        }
        if clean {
            let end = life.log.finish().unwrap();
            life.control.update(|control| (control.durable, control.clean) = (end, true)).unwrap();
        }
        let life = open(life.disk.crash(1));
        // Nothing was logged since the lost record, so nothing is lost.
        let early = life.disk.crash(1);
        rot(&early);
        assert_eq!(read(&early, None).unwrap().1.len(), usize::from(!below_the_mark));
        life.append(b"of the second");
        life.log.sync_to(life.log.end()).unwrap();
        let disk = life.disk.crash(2);
        rot(&disk);
        assert_names_control_file(&disk);
    }
}

/// The reader does not search above a clean end, but only as long as no later incarnation has written there.
#[test]
fn a_clean_end_hides_nothing_that_was_logged_after_it() {
    let mut life = open(new_database());
    life.append(b"of the first");
    let end = life.log.finish().unwrap();
    life.control.update(|control| (control.durable, control.clean) = (end, true)).unwrap();
    let life = open(life.disk.crash(1));
    let first = life.append(b"of the second").0;
    life.log.sync_to(life.log.end()).unwrap();
    life.append(b"what proves it");
    life.log.sync_to(life.log.end()).unwrap();
    let disk = life.disk.crash(2);
    assert_eq!(read(&disk, None).unwrap().1.len(), 3);
    disk.flip(file(first), 4096 + (first.0 % ROOM) as usize + 30, 1);
    let error = read(&disk, None).map(drop).unwrap_err().to_string();
    assert!(error.contains("although the log was durable"), "{error}");
}

#[test]
fn an_older_control_record_without_its_log_is_reported() {
    // Frames written before the sync that follows the older low-water mark state nothing beyond it: then the missing
    // segment, and those after it, are the evidence.
    for states_more in [true, false] {
        let mut life = open(new_database());
        life.log.sync_to(life.log.end()).unwrap();
        let older = if states_more { Lsn::ZERO } else { life.log.end() };
        life.checkpoint(older);
        let groups: Vec<_> = (0..60u8).map(|n| life.append(&[n; 4000])).collect();
        life.log.sync_to(life.log.end()).unwrap();
        let sole = life.disk.crash(1);
        rot(&sole);
        // The older low-water mark is lower, and the log is complete from there.
        assert_eq!(read(&sole, None).unwrap().1.len(), 60);
        life.checkpoint(groups[50].0);
        for _ in 0..20 {
            let _ = life.log.step();
        }
        rot(&life.disk);
        assert_names_control_file(&life.disk);
    }
}

#[test]
fn a_database_that_could_not_be_made_is_none() {
    for operation in 1..20 {
        let disk = SimulatedDisk::new(1);
        disk.fail_at(operation, Fault::Fails);
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let made = || {
            let control = Control { uuid: UUID, page_size: 16384, ..Control::default() };
            ControlFile::create(shared.clone(), Health::new(), control)
        };
        if made().is_ok() {
            assert!(operation > 5, "operation {operation} is one of those that make it");
            return;
        }
        assert_eq!(disk.len(FileName::Control).unwrap(), None, "operation {operation}");
        made().unwrap();
        ControlFile::open(shared.clone(), Health::new()).unwrap();
    }
    panic!("it never succeeds");
}

/// A sync fails, so what the next process reads may not be on the disk; and that process's first write is torn.
#[test]
fn the_record_that_was_found_survives_a_torn_write_of_the_next() {
    let mut torn = 0;
    for seed in 0..64 {
        let disk = SimulatedDisk::new(seed);
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let control = Control { uuid: UUID, page_size: 16384, ..Control::default() };
        let mut file = ControlFile::create(shared, Health::new(), control).unwrap();
        file.update(|control| control.trx_ceiling = 1000).unwrap();
        disk.fail_on(FileName::Control, Fault::SyncFails);
        assert!(file.update(|control| control.trx_ceiling = 2000).is_err());

        let next = disk.next_process();
        let mut file = ControlFile::open(Arc::new(next.clone()), Health::new()).unwrap();
        assert_eq!(file.control().trx_ceiling, 2000, "readers see it");
        next.crash_at(next.operations() + 1);
        assert!(file.update(|control| control.trx_ceiling = 3000).is_err());

        let last = next.restart(Survive::Random(seed));
        let file = ControlFile::open(Arc::new(last), Health::new());
        let file = file.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(file.control().trx_ceiling >= 2000, "seed {seed}: what was found is lost");
        torn += u32::from(file.control().alone);
    }
    assert!(torn > 5, "{torn} of the writes were torn");
}
