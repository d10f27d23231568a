//! Tests of the simulated disk: of its rules, and of protocols that rely on them correctly or wrongly.

use std::collections::BTreeSet;

use proptest::prelude::*;
use windfall_base::{
    disk::{Action, IoBuffer, Request},
    ids::SpaceId,
};

use super::*;

const LOG: FileName = FileName::Log(1);
const DATA: FileName = FileName::Data(SpaceId(20));

fn content(disk: &SimulatedDisk, file: FileName) -> Option<Vec<u8>> {
    let length = disk.len(file).unwrap()?;
    let mut bytes = vec![0; length as usize];
    for (n, block) in bytes.chunks_mut(4096).enumerate() {
        match disk.read(file, 4096 * n as u64, block) {
            Ok(read) => assert_eq!(read, block.len()),
            // A block may be unreadable after a crash.
            Err(error) => {
                assert!(error.is_read_error() && file == DATA, "{error}");
                block.fill(b'?');
            }
        }
    }
    Some(bytes)
}

fn with_log(bytes: &[u8]) -> SimulatedDisk {
    let disk = SimulatedDisk::new(1);
    disk.create(LOG).unwrap();
    disk.write(LOG, 0, bytes).unwrap();
    disk.sync(LOG).unwrap();
    disk.sync_folder(Folder::Log).unwrap();
    disk
}

fn write(token: u64, file: FileName, byte: u8) -> Request {
    let mut buffer = IoBuffer::new(4096);
    buffer.bytes_mut().fill(byte);
    Request { token, file, offset: token * 4096, action: Action::Write, buffer }
}

#[test]
fn unsynced_writes_are_visible_but_not_durable() {
    let disk = with_log(b"old");
    disk.write(LOG, 0, b"new!").unwrap();
    assert_eq!(content(&disk, LOG).unwrap(), b"new!");
    let nothing = disk.restart(Survive::Nothing);
    assert!(matches!(disk.write(LOG, 0, b"x"), Err(DiskError::Released)), "the old machine is off");
    assert_eq!(content(&nothing, LOG).unwrap(), b"old");
    assert_eq!(content(&disk.restart(Survive::Everything), LOG).unwrap(), b"new!");
    let seen: BTreeSet<_> =
        (0..100).map(|seed| content(&disk.restart(Survive::Random(seed)), LOG).unwrap()).collect();
    let all = [&b"new!"[..], b"old", b"old\0"].map(Vec::from);
    assert_eq!(seen, BTreeSet::from(all), "written, not written, or only its length");
}

#[test]
fn a_synced_file_whose_name_is_not_synced_may_be_lost() {
    let disk = SimulatedDisk::new(1);
    disk.create(LOG).unwrap();
    disk.write(LOG, 0, b"kept").unwrap();
    disk.sync(LOG).unwrap();
    disk.create(FileName::Log(2)).unwrap();
    disk.write(FileName::Log(2), 0, b"lost").unwrap();
    assert_eq!(disk.restart(Survive::Nothing).list(Folder::Log).unwrap(), []);
    let mut seen = BTreeSet::new();
    for seed in 0..300 {
        let left = disk.restart(Survive::Random(seed));
        seen.insert((content(&left, LOG), content(&left, FileName::Log(2))));
    }
    assert!(seen.contains(&(None, None)));
    assert!(seen.contains(&(None, Some(Vec::new()))), "a name without content");
    assert!(seen.contains(&(Some(b"kept".into()), Some(vec![0; 4]))), "a length without bytes");
    assert!(seen.iter().all(|(log, _)| log.as_ref().is_none_or(|bytes| bytes == b"kept")));
}

#[test]
fn a_removed_file_may_come_back_until_its_folder_is_synced() {
    let disk = with_log(b"here");
    disk.remove(LOG).unwrap();
    assert_eq!(disk.len(LOG).unwrap(), None);
    let back = disk.restart(Survive::Nothing);
    assert_eq!(content(&back, LOG).unwrap(), b"here");
    back.remove(LOG).unwrap();
    back.sync_folder(Folder::Log).unwrap();
    assert!(back.state.lock().inodes.is_empty(), "nothing leads to it any more");
    assert_eq!(back.restart(Survive::Nothing).len(LOG).unwrap(), None);
}

#[test]
fn large_writes_tear_at_sectors_and_blocks() {
    let disk = with_log(&[1; 16_384]);
    disk.write(LOG, 0, &[2; 16_384]).unwrap();
    let (mut sectors, mut blocks) = (0, 0);
    for seed in 0..200 {
        let bytes = content(&disk.restart(Survive::Random(seed)), LOG).unwrap();
        assert!(bytes.chunks(512).all(|s| s.iter().all(|b| *b == s[0])), "a sector is whole");
        let mixed = |of: &[u8]| of.contains(&1) && of.contains(&2);
        sectors += usize::from(bytes.chunks(4096).any(mixed));
        blocks += usize::from(mixed(&bytes) && !bytes.chunks(4096).any(mixed));
    }
    assert!(sectors > 10 && blocks > 10, "{sectors} tears within blocks, {blocks} between them");
}

/// Replaces the log's content by renaming a new file over it.
fn replace(disk: &SimulatedDisk, careful: bool) -> Result<(), DiskError> {
    let new = FileName::Log(2);
    disk.create(new)?;
    disk.write(new, 0, &[2; 6000])?;
    if careful {
        disk.sync(new)?;
    }
    disk.rename(new, LOG)?;
    disk.sync_folder(Folder::Log)
}

/// Returns the contents found after crashes at every operation of a replacement, and whether it had been acknowledged.
fn outcomes(careful: bool) -> BTreeSet<(bool, Option<Vec<u8>>)> {
    let mut seen = BTreeSet::new();
    let whole = with_log(&[1; 6000]);
    let before = whole.operations();
    replace(&whole, careful).unwrap();
    for at in before + 1..=whole.operations() + 1 {
        for seed in 0..60 {
            let disk = with_log(&[1; 6000]);
            disk.crash_at(at);
            let result = replace(&disk, careful);
            assert_eq!(result.is_ok(), at > whole.operations());
            assert_eq!(disk.is_crashed(), result.is_err());
            let how = [Survive::Nothing, Survive::Everything, Survive::Random(seed)][seed.min(2) as usize];
            seen.insert((result.is_ok(), content(&disk.restart(how), LOG)));
        }
    }
    seen
}

#[test]
fn a_careful_replacement_is_atomic_and_a_careless_one_is_caught() {
    let (old, new) = (Some(vec![1; 6000]), Some(vec![2; 6000]));
    assert_eq!(
        outcomes(true),
        BTreeSet::from([(false, old.clone()), (false, new.clone()), (true, new.clone())])
    );
    let careless = outcomes(false);
    assert!(
        careless.iter().any(|(done, content)| *done && *content != new),
        "an acknowledged replacement was lost"
    );
    assert!(careless.iter().all(|(done, content)| !*done || *content != old), "the name itself was synced");
}

#[test]
fn a_sync_that_is_cut_off_guarantees_nothing() {
    for folder in [false, true] {
        let disk = SimulatedDisk::new(1);
        disk.create(LOG).unwrap();
        disk.write(LOG, 0, b"x").unwrap();
        if !folder {
            disk.sync_folder(Folder::Log).unwrap();
        }
        disk.crash_at(disk.operations() + 1);
        let result = if folder { disk.sync_folder(Folder::Log) } else { disk.sync(LOG) };
        assert!(matches!(result, Err(DiskError::Released)));
        let found = |survive| content(&disk.restart(survive), LOG);
        assert_eq!(found(Survive::Nothing), if folder { None } else { Some(Vec::new()) });
        assert_eq!(found(Survive::Everything), Some(b"x".into()));
    }
}

#[test]
fn a_sync_that_is_held_has_not_happened_and_happens_in_the_end() {
    let disk = with_log(b"old");
    disk.write(LOG, 0, b"new").unwrap();
    disk.create(DATA).unwrap();
    disk.hold_log_syncs(true);
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| disk.sync(LOG));
        while disk.held_log_syncs() == 0 {
            std::thread::yield_now();
        }
        disk.sync(DATA).unwrap();
        assert_eq!(content(&disk.survivor(Survive::Nothing), LOG).unwrap(), b"old");
        assert!(!sync.is_finished());
        disk.hold_log_syncs(false);
        sync.join().unwrap().unwrap();
    });
    assert_eq!(disk.held_log_syncs(), 0);
    assert_eq!(content(&disk.restart(Survive::Nothing), LOG).unwrap(), b"new");
}

#[test]
fn a_sync_does_not_cover_requests_that_have_not_completed() {
    let mut lost = 0;
    for seed in 0..50 {
        let disk = SimulatedDisk::new(seed);
        disk.create(DATA).unwrap();
        disk.sync_folder(Folder::Data).unwrap();
        let mut queue = disk.queue();
        queue.submit((0..4).map(|n| write(n, DATA, 7)).collect());
        disk.sync(DATA).unwrap();
        lost += u32::from(content(&disk.restart(Survive::Nothing), DATA).unwrap() != [7; 16_384]);
    }
    assert!(lost > 25, "only {lost} of 50 times");
}

#[test]
fn a_queue_that_is_dropped_runs_its_requests() {
    for seed in 0..10 {
        let disk = SimulatedDisk::new(seed);
        disk.create(DATA).unwrap();
        let mut queue = disk.queue();
        queue.submit((0..8).map(|n| write(n, DATA, 7)).collect());
        drop(queue.complete(false));
        drop(queue);
        assert!(content(&disk, DATA).unwrap() == vec![7; 8 * 4096], "seed {seed}");
    }
}

#[test]
fn a_seed_decides_the_order_of_completions() {
    let order = |seed| {
        let disk = SimulatedDisk::new(seed);
        disk.create(DATA).unwrap();
        let mut queue = disk.queue();
        queue.submit((0..20).map(|n| write(n, DATA, 7)).collect());
        let mut tokens = Vec::new();
        while queue.pending() > 0 {
            tokens.extend(queue.complete(true).iter().map(|done| done.token));
        }
        tokens
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
    assert_ne!(order(1), (0..20).collect::<Vec<_>>());
}

#[test]
fn a_crash_during_a_batch_fails_the_rest_of_it() {
    let disk = SimulatedDisk::new(5);
    disk.create(DATA).unwrap();
    disk.crash_at(disk.operations() + 3);
    let mut queue = disk.queue();
    queue.submit((0..8).map(|n| write(n, DATA, 7)).collect());
    let mut results = Vec::new();
    while queue.pending() > 0 {
        results.extend(queue.complete(true).into_iter().map(|done| done.result));
    }
    assert_eq!(results.iter().filter(|r| r.is_ok()).count(), 2);
    assert!(results.iter().all(|r| matches!(r, Ok(()) | Err(DiskError::Released))));
    assert!(matches!(disk.len(DATA), Err(DiskError::Released)));
}

#[test]
fn a_full_disk_refuses_until_there_is_room() {
    let disk = with_log(&[1; 8192]);
    disk.set_capacity(Some(16_384));
    disk.create(DATA).unwrap();
    disk.preallocate(DATA, 0, 8192).unwrap();
    assert_eq!(disk.used(), 16_384);
    assert!(matches!(disk.write(LOG, 8192, &[1]), Err(DiskError::Full { .. })));
    assert!(matches!(disk.preallocate(LOG, 8000, 200), Err(DiskError::Full { .. })));
    assert_eq!(disk.len(LOG).unwrap(), Some(8192), "nothing was done");
    disk.write(DATA, 0, &[3; 8192]).unwrap();
    disk.write(LOG, 0, &[2; 8192]).unwrap();
    disk.truncate(DATA, 4096).unwrap();
    disk.write(LOG, 8192, &[1]).unwrap();
    assert!(disk.write(LOG, 12_288, &[1]).is_err());
    disk.remove(DATA).unwrap();
    disk.write(LOG, 12_288, &[1]).unwrap();
    disk.set_capacity(None);
    disk.write(LOG, 1 << 20, &[1]).unwrap();
}

#[test]
fn faults_happen_once_where_they_fit() {
    let disk = with_log(&[1; 4096]);
    disk.fail_at(disk.operations() + 1, Fault::Fails);
    assert!(matches!(disk.write(LOG, 0, &[2]), Err(DiskError::Io { .. })));
    disk.fail_at(0, Fault::Full);
    disk.truncate(LOG, 4096).unwrap();
    assert!(matches!(disk.write(LOG, 0, &[2]), Err(DiskError::Full { .. })));
    assert_eq!(content(&disk, LOG).unwrap(), [1; 4096]);
    disk.fail_at(0, Fault::LostWrite);
    disk.write(LOG, 0, &[2]).unwrap();
    disk.sync(LOG).unwrap();
    assert_eq!(content(&disk, LOG).unwrap(), [1; 4096]);
    disk.fail_at(0, Fault::LateFailure);
    disk.write(LOG, 0, &[2]).unwrap();
    assert!(matches!(disk.remove(LOG), Err(DiskError::Io { .. })));
    assert_eq!(disk.len(LOG).unwrap(), None, "it is removed all the same");
}

#[test]
fn a_write_may_land_elsewhere_or_nowhere() {
    let disk = with_log(&[1; 4096]);
    disk.fail_at(0, Fault::MisdirectedWrite { file: None, offset: 512 });
    disk.write(LOG, 0, &[2]).unwrap();
    let mut out = [0; 2];
    disk.read(LOG, 511, &mut out).unwrap();
    assert_eq!(out, [1, 2]);
    disk.create(DATA).unwrap();
    disk.fail_at(0, Fault::MisdirectedWrite { file: Some(DATA), offset: 4096 });
    disk.write(LOG, 0, &[3; 512]).unwrap();
    disk.read(LOG, 0, &mut out).unwrap();
    assert_eq!(out, [1, 1]);
    assert_eq!(content(&disk, DATA).unwrap(), [[0; 4096].as_slice(), &[3; 512]].concat());
    disk.fail_at(0, Fault::MisdirectedWrite { file: Some(FileName::Doublewrite), offset: 0 });
    disk.write(LOG, 0, &[4]).unwrap();
    disk.read(LOG, 0, &mut out).unwrap();
    assert_eq!((out, disk.len(FileName::Doublewrite).unwrap()), ([1, 1], None));
}

#[test]
fn a_forgotten_write_is_visible_until_the_crash_despite_syncs() {
    let disk = with_log(&[1; 8192]);
    disk.fail_at(0, Fault::ForgottenWrite);
    disk.write(LOG, 0, &[2; 8192]).unwrap();
    disk.write(LOG, 4096, &[3; 4096]).unwrap();
    disk.sync(LOG).unwrap();
    let seen = [[2; 4096], [3; 4096]].concat();
    assert_eq!(content(&disk, LOG).unwrap(), seen);
    assert_eq!(content(&disk.next_process(), LOG).unwrap(), seen, "the machine keeps running");
    for survive in [Survive::Nothing, Survive::Everything, Survive::Random(7)] {
        assert_eq!(content(&disk.restart(survive), LOG).unwrap(), [[1; 4096], [3; 4096]].concat());
    }
}

#[test]
fn an_older_write_may_lie_over_a_younger_one() {
    let disk = with_log(&[1; 1024]);
    disk.write(LOG, 0, &[2; 1024]).unwrap();
    disk.write(LOG, 0, &[3; 512]).unwrap();
    let seen: BTreeSet<(u8, u8)> = (0..200)
        .map(|seed| content(&disk.restart(Survive::Random(seed)), LOG).unwrap())
        .map(|bytes| (bytes[0], bytes[512]))
        .collect();
    assert!(seen.is_superset(&BTreeSet::from([(1, 1), (2, 2), (3, 1), (3, 2)])), "{seen:?}");
}

/// Runs every kind of operation, some of them twice.
fn all_operations(disk: &SimulatedDisk) -> Result<(), DiskError> {
    disk.create(DATA)?;
    disk.preallocate(DATA, 0, 16_384)?;
    disk.sync_folder(Folder::Data)?;
    let mut queue = disk.queue();
    queue.submit((0..4).map(|n| write(n, DATA, 7)).collect());
    while queue.pending() > 0 {
        queue.complete(true).into_iter().try_for_each(|done| done.result)?;
    }
    disk.write(LOG, 0, &[8; 9000])?;
    disk.sync(DATA)?;
    disk.rename(LOG, FileName::Log(2))?;
    disk.truncate(DATA, 4096)?;
    disk.write(FileName::Log(2), 512, &[9; 512])?;
    disk.sync(FileName::Log(2))?;
    disk.sync_folder(Folder::Log)?;
    disk.remove(DATA)
}

#[test]
fn one_run_gives_the_disk_of_every_crash() {
    let all = |disk: &SimulatedDisk| [LOG, FileName::Log(2), DATA].map(|file| content(disk, file));
    let whole = with_log(&[1; 6000]);
    let before = whole.operations();
    whole.record_crash_points(before + 1..=u64::MAX);
    all_operations(&whole).unwrap();
    let crash_points = whole.take_crash_points();
    assert_eq!(
        crash_points.iter().map(|(at, _)| *at).collect::<Vec<_>>(),
        (before + 1..=whole.operations()).collect::<Vec<_>>()
    );
    for (at, crash_point) in crash_points {
        let crashed = with_log(&[1; 6000]);
        crashed.crash_at(at);
        assert!(matches!(all_operations(&crashed), Err(DiskError::Released)));
        assert!(crash_point.is_crashed());
        for survive in [Survive::Nothing, Survive::Everything].into_iter().chain((0..20).map(Survive::Random))
        {
            assert_eq!(
                all(&crash_point.restart(survive)),
                all(&crashed.restart(survive)),
                "{at}, {survive:?}"
            );
        }
    }
    assert!(whole.take_crash_points().is_empty(), "they are handed out once");
}

#[test]
fn flips_come_anywhere_and_by_the_seed() {
    let disk = with_log(&[6; 8192]);
    disk.create(DATA).unwrap();
    disk.write(DATA, 40_960, &[6; 4096]).unwrap();
    disk.sync(DATA).unwrap();
    disk.sync_folder(Folder::Data).unwrap();
    let mut files = BTreeSet::new();
    for seed in 0..50 {
        let damaged = || {
            let left = disk.restart(Survive::Random(seed));
            (left.flip(|_| true), left)
        };
        let (place, left) = damaged();
        let (file, offset) = place.unwrap();
        assert_eq!(damaged().0, place);
        let bytes = content(&left, file).unwrap();
        assert_eq!((bytes[offset as usize] ^ 6).count_ones(), 1);
        assert_eq!(bytes.iter().filter(|byte| ![0, 6].contains(*byte)).count(), 1);
        files.insert(file);
    }
    assert_eq!(files, BTreeSet::from([LOG, DATA]));
    assert_eq!(disk.restart(Survive::Everything).flip(|file| file == DATA).unwrap().0, DATA);
    assert_eq!(SimulatedDisk::new(1).flip(|_| true), None);
}

#[test]
fn a_page_may_be_torn_by_a_write_that_fails() {
    let disk = with_log(&[1; 8192]);
    disk.create(DATA).unwrap();
    disk.fail_at(0, Fault::TornPage);
    disk.write(LOG, 0, &[2; 4096]).unwrap();
    assert!(matches!(disk.write(DATA, 0, &[2; 4096]), Err(DiskError::Io { .. })));
    let torn = content(&disk, DATA).unwrap();
    assert!((512..4096).contains(&torn.len()) && torn.iter().all(|byte| *byte == 2), "{} bytes", torn.len());
    disk.write(DATA, 0, &[3; 4096]).unwrap();
    assert_eq!(content(&disk, DATA).unwrap(), [3; 4096]);
}

#[test]
fn a_failed_sync_is_not_made_good_by_the_next() {
    let mut lost = 0;
    for seed in 0..40 {
        let disk = SimulatedDisk::new(seed);
        disk.create(LOG).unwrap();
        disk.sync_folder(Folder::Log).unwrap();
        disk.fail_at(0, Fault::SyncFails);
        disk.write(LOG, 0, &[1; 100]).unwrap();
        disk.write(LOG, 4096, &[2; 100]).unwrap();
        assert!(matches!(disk.sync(LOG), Err(DiskError::Io { action: IoOp::Sync, .. })));
        disk.sync(LOG).unwrap();
        assert_eq!(content(&disk, LOG).unwrap()[..100], [1; 100], "readers still see it");
        let left = content(&disk.restart(Survive::Nothing), LOG).unwrap();
        assert_eq!(left.len(), 4196);
        assert_eq!(
            content(&disk.restart(Survive::Everything), LOG).unwrap(),
            left,
            "a forgotten write is lost"
        );
        lost += usize::from(left[0] == 0) + usize::from(left[4096] == 0);
    }
    assert!((20..60).contains(&lost), "{lost} of 80 writes were lost");
}

#[test]
fn a_failed_sync_of_a_folder_may_lose_names() {
    let survived = (0..40).filter(|seed| {
        let disk = SimulatedDisk::new(*seed);
        disk.create(LOG).unwrap();
        disk.fail_at(0, Fault::SyncFails);
        disk.sync_folder(Folder::Log).unwrap_err();
        disk.sync_folder(Folder::Log).unwrap();
        let [nothing, everything] = [Survive::Nothing, Survive::Everything]
            .map(|survive| disk.restart(survive).len(LOG).unwrap().is_some());
        assert_eq!(nothing, everything, "a forgotten write is lost");
        nothing
    });
    assert!((5..35).contains(&survived.count()));
}

#[test]
fn damage_stays_and_unreadable_blocks_heal_when_written() {
    let disk = with_log(&[1; 8192]);
    assert!(disk.corrupt(LOG, 5000, 0x80));
    assert!(!disk.corrupt(LOG, 9000, 0x80) && !disk.corrupt(DATA, 0, 1));
    let disk = disk.restart(Survive::Nothing);
    let mut out = [0; 3];
    disk.read(LOG, 4999, &mut out).unwrap();
    assert_eq!(out, [1, 0x81, 1]);
    disk.make_unreadable(LOG, 5000);
    assert!(matches!(disk.read(LOG, 4094, &mut out), Err(DiskError::Io { action: IoOp::Read, .. })));
    disk.read(LOG, 4093, &mut out).unwrap();
    disk.write(LOG, 4096, &[3; 4096]).unwrap();
    disk.read(LOG, 4094, &mut out).unwrap();
    assert_eq!(out, [1, 1, 3]);
}

#[test]
fn a_block_whose_write_was_cut_off_may_be_unreadable() {
    // Not in the log, and not in the control file.
    let disk = with_log(&[1; 16_384]);
    disk.create(FileName::Control).unwrap();
    disk.write(FileName::Control, 0, &[1; 16_384]).unwrap();
    disk.sync(FileName::Control).unwrap();
    disk.sync_folder(Folder::Root).unwrap();
    disk.create(DATA).unwrap();
    disk.write(DATA, 0, &[1; 16_384]).unwrap();
    disk.sync(DATA).unwrap();
    disk.sync_folder(Folder::Data).unwrap();
    disk.write(DATA, 4096, &[2; 8192]).unwrap();
    disk.write(LOG, 4096, &[2; 8192]).unwrap();
    disk.write(FileName::Control, 4096, &[2; 8192]).unwrap();
    let mut unreadable = 0;
    for seed in 0..200 {
        let left = disk.restart(Survive::Random(seed));
        let reads = |file| [0, 4096, 8192, 12_288].map(|at| left.read(file, at, &mut [0; 4096]).is_ok());
        let [first, .., last] = reads(DATA);
        assert!(reads(LOG) == [true; 4] && reads(FileName::Control) == [true; 4]);
        assert!(first && last, "what was not written then can be read");
        let bad = reads(DATA).iter().filter(|is_read| !**is_read).count();
        unreadable += bad;
        assert!(bad <= 1);
        left.write(DATA, 4096, &[3; 8192]).unwrap();
        assert_eq!(reads(DATA), [true; 4]);
    }
    assert!((5..100).contains(&unreadable), "{unreadable}");
}

#[derive(Clone, Debug)]
enum Step {
    Write { at: usize, sectors: usize },
    Truncate { sectors: usize },
    Reserve { sectors: usize },
    Recreate,
    Sync,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0usize..40, 1usize..20).prop_map(|(at, sectors)| Step::Write { at, sectors }),
        1 => (0usize..60).prop_map(|sectors| Step::Truncate { sectors }),
        1 => (1usize..60).prop_map(|sectors| Step::Reserve { sectors }),
        1 => Just(Step::Recreate),
        2 => Just(Step::Sync),
    ];
    prop::collection::vec(step, 1..40)
}

/// The values that each sector may hold after a crash, and the bounds of the file's length, in sectors.
struct Model {
    now: Vec<u8>,
    possible: Vec<BTreeSet<u8>>,
    lengths: (usize, usize),
}

impl Model {
    fn new() -> Self {
        Self { now: Vec::new(), possible: vec![BTreeSet::from([0]); 64], lengths: (0, 0) }
    }

    fn see(&mut self) {
        for (n, ways) in self.possible.iter_mut().enumerate() {
            ways.insert(self.now.get(n).copied().unwrap_or(0));
        }
        self.lengths.0 = self.lengths.0.min(self.now.len());
        self.lengths.1 = self.lengths.1.max(self.now.len());
    }

    fn sync(&mut self) {
        self.possible.iter_mut().for_each(BTreeSet::clear);
        self.lengths = (self.now.len(), self.now.len());
        self.see();
    }

    fn check(&self, bytes: &[u8]) -> Result<(), TestCaseError> {
        prop_assert!((self.lengths.0 * 512..=self.lengths.1 * 512).contains(&bytes.len()));
        for (n, sector) in bytes.chunks(512).enumerate() {
            prop_assert!(sector.iter().all(|b| *b == sector[0]), "sector {} is torn", n);
            let ways = &self.possible[n];
            prop_assert!(ways.contains(&sector[0]), "sector {n} holds {}, of {ways:?}", sector[0]);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn synced_bytes_survive_a_crash_and_no_other_bytes_appear(steps in steps(), seed in any::<u64>()) {
        let mut disk = with_log(&[]);
        let mut model = Model::new();
        for (n, step) in steps.iter().enumerate() {
            let stamp = n as u8 + 1;
            match *step {
                Step::Write { at, sectors } => {
                    disk.write(LOG, at as u64 * 512, &vec![stamp; sectors * 512]).unwrap();
                    let end = (at + sectors).max(model.now.len());
                    model.now.resize(end, 0);
                    model.now[at..at + sectors].fill(stamp);
                }
                Step::Truncate { sectors } => {
                    disk.truncate(LOG, sectors as u64 * 512).unwrap();
                    model.now.resize(sectors, 0);
                }
                Step::Reserve { sectors } => {
                    disk.preallocate(LOG, 0, sectors as u64 * 512).unwrap();
                    model.now.resize(sectors.max(model.now.len()), 0);
                }
                Step::Recreate => {
                    disk.create(LOG).unwrap();
                    model.now.clear();
                }
                Step::Sync => {
                    disk.sync(LOG).unwrap();
                    model.sync();
                }
            }
            model.see();
            let expected: Vec<u8> = model.now.iter().flat_map(|b| [*b; 512]).collect();
            prop_assert_eq!(content(&disk, LOG).unwrap(), expected, "readers see the latest");
        }
        model.check(&content(&disk.restart(Survive::Nothing), LOG).unwrap())?;
        let everything: Vec<u8> = model.now.iter().flat_map(|b| [*b; 512]).collect();
        prop_assert_eq!(content(&disk.restart(Survive::Everything), LOG).unwrap(), everything);
        for round in 0..5 {
            let left = disk.restart(Survive::Random(seed ^ round));
            let bytes = content(&left, LOG).unwrap();
            let again = disk.restart(Survive::Random(seed ^ round));
            prop_assert_eq!(&content(&again, LOG).unwrap(), &bytes, "a seed is replayed");
            model.check(&bytes)?;
            // Everything that survived one crash is durable: it survives the next.
            prop_assert_eq!(&content(&left.restart(Survive::Nothing), LOG).unwrap(), &bytes);
        }
        disk = disk.restart(Survive::Random(seed));
        disk.sync(LOG).unwrap();
    }
}
