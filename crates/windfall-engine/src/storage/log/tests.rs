//! Tests of the log as a whole.
//!
//! **Purpose.** What was synced is read back, what is read back is a prefix of what was appended, and damage is
//! distinguished from the end, over crashes, restarts and recycled segments.
//!
//! **Method.** All randomness comes from a seed.

mod control;
mod crash;
mod notifications;
mod reservations;
mod segments;

use std::{thread, time::Instant};

use proptest::prelude::*;
use windfall_sim::SimulatedEnv;

use super::{frame::span, test_disk::TestDisk, *};
use crate::{
    disk::Folder,
    env::{Next, RealEnv, WorkerClass},
    error::LockError,
    sync::{Interrupt, as_another_thread},
};

const SEGMENT: u64 = 64 << 10;
/// The bytes of the stream in a segment.
pub(super) const ROOM: u64 = SEGMENT - 4096;
const OPTIONS: LogOptions = LogOptions { size: 4 * SEGMENT, segment: SEGMENT, buffer: 64 << 10 };
const UUID: [u8; 16] = [9; 16];

pub(super) fn new_database() -> Arc<TestDisk> {
    let disk = TestDisk::new();
    let control = Control { uuid: UUID, page_size: 16384, ..Control::default() };
    ControlFile::create(disk.clone(), Health::new(), control).unwrap();
    disk
}

/// Returns the name of the segment that contains a position, if all segments have the largest size.
fn file(at: Lsn) -> FileName {
    FileName::Log(at.0 / ROOM * ROOM)
}

pub(super) type Group = (Lsn, Lsn, Vec<u8>);

pub(super) fn read(disk: &Arc<TestDisk>, from: Option<Lsn>) -> Result<(ControlFile, Vec<Group>, Lsn)> {
    let file = ControlFile::open(disk.clone(), Health::new())?;
    let from = from.unwrap_or(file.control().low_water_mark);
    let mut reader = LogReader::new(disk.clone(), file.control(), from)?;
    let mut groups = Vec::new();
    while let Some((start, end, payload)) = reader.next_group()? {
        groups.push((start, end, payload.to_vec()));
    }
    Ok((file, groups, reader.end()))
}

pub(super) struct OpenLog {
    pub(super) disk: Arc<TestDisk>,
    control: ControlFile,
    pub(super) log: Arc<Log>,
    health: Health,
}

pub(super) fn open_in(disk: Arc<TestDisk>, env: Arc<dyn Env>) -> OpenLog {
    open_with(disk, env, OPTIONS)
}

pub(super) fn open_with(disk: Arc<TestDisk>, env: Arc<dyn Env>, options: LogOptions) -> OpenLog {
    let (mut control, _, end) = read(&disk, None).unwrap();
    let health = Health::new();
    let log = Log::open(disk.clone(), env, health.clone(), options, &mut control, end).map(Arc::new).unwrap();
    let stopped = Arc::downgrade(&log);
    health.when_stopped(move || {
        if let Some(log) = stopped.upgrade() {
            log.wake_all_waiters();
        }
    });
    OpenLog { disk, control, log, health }
}

fn open(disk: Arc<TestDisk>) -> OpenLog {
    open_in(disk, Arc::new(SimulatedEnv::new(1)))
}

impl OpenLog {
    fn append(&self, payload: &[u8]) -> Group {
        let (start, end) = self.log.begin_group().append(payload).unwrap();
        (start, end, payload.to_vec())
    }

    /// Appends until the log reaches this pressure, in percent.
    fn fill(&self, pressure: u64) {
        while self.log.pressure() < pressure {
            self.append(&[1; 5000]);
        }
    }

    fn checkpoint(&mut self, low_water_mark: Lsn) {
        let durable = self.log.durable();
        self.control
            .update(|control| (control.low_water_mark, control.durable) = (low_water_mark, durable))
            .unwrap();
        self.log.raise_low_water_mark(low_water_mark);
    }

    /// Runs a call that waits, and concurrently a worker that does `work`.
    fn during<T>(&self, env: &SimulatedEnv, work: impl Fn() + Send + 'static, run: impl Fn(&Log) -> T) -> T {
        let wake = Arc::new(Event::new());
        self.log.set_checkpointer(wake.clone());
        let step = move || {
            work();
            Next::Idle(Duration::from_secs(1))
        };
        let _worker = env.spawn("concurrent", WorkerClass::Service, wake, Box::new(step)).unwrap();
        run(&self.log)
    }

    /// Calls `run` while a worker makes a checkpoint: the low-water mark rises to the end.
    fn during_a_checkpoint(&mut self, env: &SimulatedEnv, run: impl Fn(&Log)) {
        self.log.sync_to(Lsn::MAX).unwrap();
        let (log, low_water_mark) = (self.log.clone(), self.log.durable());
        self.control.update(|control| control.durable = low_water_mark).unwrap();
        self.control.update(|control| control.low_water_mark = low_water_mark).unwrap();
        self.during(env, move || log.raise_low_water_mark(low_water_mark), run);
    }
}

#[derive(Clone, Debug)]
enum Op {
    Append(u16),
    Sync,
    Write,
    Checkpoint,
    Step,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => prop_oneof![0..200u16, 0..9000u16].prop_map(Op::Append),
        1 => Just(Op::Sync),
        1 => Just(Op::Write),
        1 => Just(Op::Checkpoint),
        1 => Just(Op::Step),
    ];
    prop::collection::vec(op, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) })]

    #[test]
    fn exactly_the_synced_groups_are_recovered(lives in prop::collection::vec((ops(), any::<u64>()), 1..7)) {
        let mut disk = new_database();
        let mut model: Vec<Group> = Vec::new();
        for (ops, crash) in lives {
            let mut life = open(disk);
            for (n, op) in ops.iter().enumerate() {
                match op {
                    Op::Append(len) => model.push(life.append(&vec![n as u8; usize::from(*len) + 1])),
                    Op::Sync => life.log.sync_to(Lsn::MAX).unwrap(),
                    Op::Write => life.log.write_to(Lsn::MAX).unwrap(),
                    Op::Step => drop(life.log.step()),
                    Op::Checkpoint => {
                        let durable = life.log.durable();
                        let low_water_mark = model.iter().filter(|g| g.1 <= durable).map(|g| g.1).next_back();
                        life.checkpoint(low_water_mark.unwrap_or(durable));
                    }
                }
            }
            let (synced, low_water_mark) = (life.log.durable(), life.log.low_water_mark());
            // One crash in four is of the process alone: then what was written survives.
            disk = life.disk.crash(if crash % 4 == 0 { 0 } else { crash });
            let (_, found, end) = read(&disk, None).unwrap();
            model.retain(|group| group.0 >= low_water_mark);
            prop_assert!(found.len() <= model.len());
            prop_assert_eq!(&found[..], &model[..found.len()]);
            prop_assert!(model.iter().filter(|group| group.1 <= synced).count() <= found.len());
            prop_assert!(end >= synced);
            model.truncate(found.len());
        }
    }

    #[test]
    fn damage_below_the_durable_end_is_reported(
        sizes in prop::collection::vec(1usize..6000, 20..40), at in any::<prop::sample::Index>(), mask in 1u8..,
        clean: bool,
    ) {
        let mut life = open(new_database());
        let mut groups = Vec::new();
        for (n, size) in sizes.iter().enumerate() {
            groups.push(life.append(&vec![n as u8; *size]));
            if n % 3 == 0 {
                life.log.sync_to(Lsn::MAX).unwrap();
            }
        }
        life.log.sync_to(Lsn::MAX).unwrap();
        // With a checkpoint the control file proves it, without one the later frames do.
        if clean {
            let end = life.log.finish().unwrap();
            life.control.update(|control| (control.durable, control.clean) = (end, true)).unwrap();
        } else {
            groups.push(life.append(b"states what is durable"));
            life.log.write_to(Lsn::MAX).unwrap();
        }
        let disk = life.disk.crash(0);
        prop_assert_eq!(&read(&disk, None).unwrap().1, &groups);
        let durable = life.log.durable();
        let lsn = Lsn(at.index(durable.0 as usize) as u64);
        disk.flip(file(lsn), 4096 + (lsn.0 % ROOM) as usize, mask);
        let Err(Error::Corrupt(CorruptError::Log { file: named, lsn: found, .. })) = read(&disk, None) else {
            panic!("a flipped byte at {lsn} of {durable} was not noticed");
        };
        // The last frame of a cleanly closed log is a marker, which is no group.
        let start = groups.iter().rfind(|g| g.0 <= lsn).filter(|g| lsn < g.1).map_or(found, |g| g.0);
        prop_assert_eq!(found, start);
        prop_assert_eq!(named, disk.path(file(start)));
        // So is a damaged header of a segment that is in use.
        let disk = life.disk.crash(0);
        let number = at.index(((durable.0 - 1) / ROOM) as usize + 1) as u64;
        disk.flip(FileName::Log(number * ROOM), at.index(4096), mask);
        let damaged = matches!(read(&disk, None), Err(Error::Corrupt(CorruptError::Log { .. })));
        prop_assert!(damaged, "a damaged header of segment {} was not noticed", number);
    }
}

#[test]
fn a_remnant_that_fits_exactly_is_not_taken_for_new() {
    let life = open(new_database());
    life.append(b"kept");
    life.log.sync_to(Lsn::MAX).unwrap();
    let torn = life.append(b"torn");
    let remnant = life.append(b"remnant");
    life.log.write_to(Lsn::MAX).unwrap();
    let disk = life.disk.crash(0);
    disk.flip(FileName::Log(0), 4096 + torn.0.0 as usize + 24, 1);
    // The frame after the torn one is complete, but proves nothing: it was made before the torn one was durable.
    let (_, groups, end) = read(&disk, None).unwrap();
    assert_eq!((groups.len(), end), (1, torn.0));

    // The new frame ends exactly where the remnant begins. Three continuations follow.
    let life = open(disk);
    let new = life.append(b"new");
    assert_eq!(new.1, remnant.0);
    life.log.sync_to(Lsn::MAX).unwrap();
    let (_, groups, end) = read(&life.disk.crash(0), None).unwrap();
    assert_eq!((groups.last(), end), (Some(&new), new.1));
    // A checkpoint there and a clean end: recovery begins at the remnant.
    let mut life = open(life.disk.crash(0));
    life.checkpoint(new.1);
    let (_, groups, end) = read(&life.disk.crash(0), None).unwrap();
    assert_eq!((groups.len(), end), (0, new.1));
    let life = open(life.disk.crash(0));
    let newer = life.append(b"newer");
    life.log.sync_to(Lsn::MAX).unwrap();
    assert_eq!(read(&life.disk.crash(0), None).unwrap().1, [newer]);
}

#[test]
fn segments_are_used_again_and_the_log_stays_small() {
    let mut life = open(new_database());
    let mut last = Vec::new();
    for round in 0..40u8 {
        last = (0..10).map(|n| life.append(&vec![round ^ n; 3000])).collect();
        life.log.sync_to(Lsn::MAX).unwrap();
        life.checkpoint(last[0].0);
        while life.log.step() == Next::Again {}
        // In use: at most two; one ahead; those kept for recycling.
        let files = life.disk.list(Folder::Log).unwrap();
        assert!(files.len() <= 5, "{files:?}");
    }
    assert!(life.disk.crash(7).list(Folder::Log).unwrap().iter().all(|f| *f > FileName::Log(10 * ROOM)));
    assert_eq!(read(&life.disk.crash(7), None).unwrap().1, last);
    // Nothing is left below the low-water mark: that is an error, not an empty log.
    assert!(matches!(read(&life.disk, Some(Lsn::ZERO)), Err(Error::Corrupt(_))));
}

#[test]
fn threads_commit_together() {
    let life = open_in(new_database(), Arc::new(RealEnv::default()));
    let before = life.disk.syncs();
    let threads: Vec<_> = (0..8u8)
        .map(|thread| {
            let log = life.log.clone();
            thread::spawn(move || {
                let mut mine = Vec::new();
                for n in 0..400u16 {
                    let payload =
                        [vec![thread; usize::from(n) * 7 % 900 + 1], n.to_le_bytes().to_vec()].concat();
                    let group = log.begin_group();
                    let (start, end) = group.append(&payload).unwrap();
                    assert!(log.append_low_water_mark() <= start, "not registered yet");
                    drop(group);
                    let mode = [FlushLog::Sync, FlushLog::Write, FlushLog::Lazy][usize::from(n % 3)];
                    log.await_flush(end, mode).unwrap();
                    assert!(mode != FlushLog::Sync || log.durable() >= end);
                    assert!(mode == FlushLog::Lazy || log.written() >= end);
                    mine.push((start, end, payload));
                }
                mine
            })
        })
        .collect();
    let mut all: Vec<Group> = threads.into_iter().flat_map(|t| t.join().unwrap()).collect();
    assert_eq!(life.log.append_low_water_mark(), life.log.end());
    life.log.sync_to(Lsn::MAX).unwrap();
    all.sort();
    let metrics = life.log.metrics();
    assert_eq!(metrics.groups, 3200);
    let segments = life.log.end().0 / ROOM + 1;
    let syncs = life.disk.syncs() - before - segments;
    assert!(syncs <= 8 * 134 + segments, "{syncs} syncs");
    let bytes: usize = all.iter().map(|g| span(g.2.len())).sum();
    assert_eq!((life.log.end().0, metrics.bytes), (bytes as u64, bytes as u64));
    assert_eq!(read(&life.disk.crash(3), None).unwrap().1, all);
}

#[test]
fn threads_share_a_buffer_that_is_too_small() {
    let life = open_in(new_database(), Arc::new(RealEnv::default()));
    let threads: Vec<_> = (0..6u8)
        .map(|thread| {
            let log = life.log.clone();
            thread::spawn(move || {
                let append = |n: usize| {
                    let payload = vec![thread + 1; (n * 977 + usize::from(thread) * 5000) % 16000 + 1];
                    let (start, end) = log.begin_group().append(&payload).unwrap();
                    (start, end, payload)
                };
                (0..150).map(append).collect::<Vec<Group>>()
            })
        })
        .collect();
    let mut all: Vec<Group> = threads.into_iter().flat_map(|t| t.join().unwrap()).collect();
    all.sort();
    life.log.finish().unwrap();
    assert!(life.log.metrics().buffer_full > 50);
    assert_eq!(read(&life.disk.crash(11), None).unwrap().1, all);
}

#[test]
fn a_segment_counts_only_once_it_is_durable() {
    for seed in 1..200u64 {
        let mut life = open(new_database());
        for n in 0..20 {
            life.append(&[n; 9000]);
        }
        life.log.sync_to(Lsn::MAX).unwrap();
        // Half of the histories recycle segments, the others make new ones.
        if seed % 2 == 0 {
            life.checkpoint(life.log.durable());
            while life.log.step() == Next::Again {}
        }
        let low_water_mark = life.log.low_water_mark();
        // Small frames: some survive complete wherever the crash leaves holes.
        for n in 0..900u16 {
            life.append(&[n as u8; 200]);
        }
        if seed % 4 < 2 {
            life.log.sync_to(Lsn::MAX).unwrap();
        } else {
            life.log.write_to(Lsn::MAX).unwrap();
        }
        let (_, groups, end) = read(&life.disk.crash(seed), None).unwrap();
        assert!(end >= life.log.durable(), "seed {seed}");
        assert!(groups.first().is_none_or(|group| group.0 == low_water_mark));
    }
}

#[test]
fn a_damaged_header_before_frames_is_an_error() {
    // Nothing was ever synced, so no frame states anything; but no frame is written before its header is durable.
    let life = open(new_database());
    for n in 0..12 {
        life.append(&[n; 9000]);
    }
    life.log.write_to(Lsn::MAX).unwrap();
    let disk = life.disk.crash(0);
    disk.flip(FileName::Log(ROOM), 100, 1);
    let Err(Error::Corrupt(CorruptError::Log { what, .. })) = read(&disk, None) else {
        panic!("the damaged header was not noticed");
    };
    assert!(what.contains("log/000000000000f000.log: the header of the segment is damaged"), "{what}");
    // Without frames it looks like a crash while the segment was created.
    let life = open(new_database());
    life.append(b"one");
    life.log.write_to(Lsn::MAX).unwrap();
    while life.log.step() == Next::Again {}
    let disk = life.disk.crash(0);
    disk.flip(FileName::Log(ROOM), 100, 1);
    let life = open(disk);
    for n in 0..12 {
        life.append(&[n; 9000]);
    }
    life.log.sync_to(Lsn::MAX).unwrap();
    assert_eq!(read(&life.disk.crash(2), None).unwrap().1.len(), 13);
}

#[test]
fn a_sync_serves_all_that_was_appended_before_it() {
    let life = open(new_database());
    let ends: Vec<Lsn> = (0..100).map(|n| life.append(&[n; 20]).1).collect();
    for end in ends {
        life.log.await_flush(end, FlushLog::Sync).unwrap();
    }
    assert_eq!(life.log.metrics().fsyncs, 1);
}

#[test]
fn a_sync_is_felt_before_it_ends() {
    let disk = new_database();
    let life = open_in(disk.clone(), Arc::new(RealEnv::default()));
    // The segment already exists.
    life.log.sync_to(life.append(&[1; 100]).1).unwrap();
    let end = life.append(&[1; 100]).1;
    life.log.take_longest_sync();
    assert_eq!(life.log.take_longest_sync(), Duration::ZERO);
    disk.set_slow_sync(true);
    thread::scope(|scope| {
        let sync = scope.spawn(|| life.log.sync_to(end));
        let felt = [(); 3].map(|()| {
            // The sync may not have begun yet.
            loop {
                thread::sleep(Duration::from_millis(1));
                let felt = life.log.take_longest_sync();
                if felt > Duration::ZERO {
                    break felt;
                }
            }
        });
        disk.set_slow_sync(false);
        sync.join().unwrap().unwrap();
        assert!(felt[0] < felt[1] && felt[1] < felt[2], "{felt:?}");
        assert!(life.log.take_longest_sync() >= felt[2]);
    });
    assert_eq!(life.log.take_longest_sync(), Duration::ZERO);
}

#[test]
fn a_commit_that_only_writes_does_not_wait_for_a_sync() {
    let disk = new_database();
    let life = open_in(disk.clone(), Arc::new(RealEnv::default()));
    life.log.sync_to(life.append(&[1; 100]).1).unwrap();
    let first = life.append(&[2; 100]).1;
    disk.set_slow_sync(true);
    thread::scope(|scope| {
        let sync = scope.spawn(|| life.log.sync_to(first));
        while life.log.written() < first {
            thread::yield_now();
        }
        thread::sleep(Duration::from_millis(5));
        let groups: Vec<Group> = (0..20).map(|n| life.append(&[n; 300])).collect();
        let (log, ends) = (&life.log, groups.iter().map(|group| group.1).collect::<Vec<_>>());
        let commits = scope
            .spawn(move || ends.iter().try_for_each(|&end| log.await_flush(end, FlushLog::Write).map(drop)));
        let patience = Instant::now() + Duration::from_mins(10);
        while !commits.is_finished() && Instant::now() < patience {
            thread::sleep(Duration::from_millis(1));
        }
        let (committed, synced) = (commits.is_finished(), sync.is_finished());
        let durable = life.log.durable();
        // Before any assertion: the scope waits for both threads.
        disk.set_slow_sync(false);
        assert!(committed && !synced && durable < first, "{committed}, {synced}, {durable:?}");
        commits.join().unwrap().unwrap();
        sync.join().unwrap().unwrap();
        // Bytes written meanwhile are left to the next sync, not counted as covered by the first.
        let (end, before) = (groups[19].1, disk.syncs());
        assert!(life.log.durable() < end);
        life.log.sync_to(end).unwrap();
        assert_eq!((life.log.durable(), disk.syncs()), (end, before + 1));
        let found = read(&disk.crash(5), None).unwrap().1;
        assert!(groups.iter().all(|group| found.contains(group)));
    });
}

#[test]
fn the_low_water_mark_of_appending_waits_for_registration() {
    let life = open(new_database());
    life.append(b"before");
    let early = life.log.begin_group();
    let at = life.log.end();
    as_another_thread(|| life.append(b"another"));
    assert_eq!(life.log.append_low_water_mark(), at);
    let (start, _) = early.append(b"early").unwrap();
    assert!(start > at);
    assert_eq!(life.log.append_low_water_mark(), at);
    drop(early);
    assert_eq!(life.log.append_low_water_mark(), life.log.end());
}

#[test]
fn a_group_that_is_too_long_is_refused() {
    let life = open(new_database());
    let limit = life.log.max_group();
    let end = life.log.end();
    assert!(
        life.log.begin_group().append(&vec![0; limit + 1]).unwrap_err().to_string().contains("log_buffer")
    );
    assert_eq!(life.log.end(), end);
    let groups: Vec<Group> = (0..9).map(|n| life.append(&vec![n; limit])).collect();
    assert!(life.log.metrics().buffer_full > 0);
    life.log.sync_to(Lsn::MAX).unwrap();
    assert_eq!(read(&life.disk.crash(5), None).unwrap().1, groups);
}

#[test]
fn a_failing_sync_stops_the_database() {
    // The failing sync is that of a segment that must be prepared, or the commit's own.
    for has_segment in [false, true] {
        let life = open(new_database());
        if has_segment {
            life.append(b"acknowledged");
            life.log.sync_to(Lsn::MAX).unwrap();
        }
        let durable = life.log.durable();
        assert_eq!(durable > Lsn::ZERO, has_segment);
        let (_, end, _) = life.append(b"never acknowledged");
        life.disk.fail_sync();
        assert!(matches!(life.log.await_flush(end, FlushLog::Sync), Err(Error::Poisoned(_))));
        assert!(life.health.is_poisoned());
        assert!(life.log.await_flush(end, FlushLog::Sync).is_err());
        assert!(life.log.begin_group().append(b"more").is_err());
        assert!(life.log.admit(1).is_err());
        assert_eq!(life.log.durable(), durable);
    }
}

#[test]
fn operations_wait_for_the_low_water_mark_and_appending_does_not() {
    let env = SimulatedEnv::new(5);
    let mut life = open_in(new_database(), Arc::new(env.clone()));
    assert_eq!(life.log.pressure(), 0);
    life.fill(120);
    life.during_a_checkpoint(&env, |log| drop(log.admit(1000).unwrap()));
    let metrics = life.log.metrics();
    assert!(metrics.waits == 1 && metrics.longest_wait > Duration::ZERO && metrics.age == 0);
}

#[test]
fn a_large_operation_waits_for_half_of_the_log() {
    let env = SimulatedEnv::new(6);
    let mut life = open_in(new_database(), Arc::new(env.clone()));
    life.log.wait_for_room(100 * OPTIONS.size).unwrap();
    life.fill(45);
    life.log.wait_for_room(100 * OPTIONS.size).unwrap();
    assert_eq!(life.log.metrics().waits, 0, "there is room for the half");
    life.fill(55);
    life.during_a_checkpoint(&env, |log| log.wait_for_room(100 * OPTIONS.size).unwrap());
    assert_eq!(life.log.metrics().waits, 1);
}

#[test]
fn a_wait_for_the_low_water_mark_gets_the_reason_for_it() {
    type Blocker = fn(&OpenLog);
    let obstacles: [(&str, Blocker); 4] = [
        ("pages", |life| life.log.set_unflushed(Some(UsageError::Other("pages".into()).into()))),
        ("records", |life| life.log.set_unrecorded(Some(UsageError::Other("records".into()).into()))),
        ("full", |life| {
            life.disk.set_full(true);
            let _ = life.log.step();
        }),
        ("poisoned", |life| drop(life.health.poison("poisoned"))),
    ];
    for (what, obstacle) in obstacles {
        let env = SimulatedEnv::new(7);
        let life = Arc::new(open_in(new_database(), Arc::new(env.clone())));
        life.fill(120);
        let theirs = life.clone();
        let result = life.during(&env, move || obstacle(&theirs), |log| log.wait_for_room(1000));
        let result = result.unwrap_err().to_string();
        assert!(result.contains(what), "{what}: {result}");
    }
}

#[test]
fn an_interrupt_ends_the_wait_for_the_low_water_mark_of_a_call_alone() {
    let interrupt = Arc::new(Interrupt::default());
    let _entered = interrupt.enter();
    for is_call in [true, false] {
        let env = SimulatedEnv::new(8);
        let mut life = open_in(new_database(), Arc::new(env.clone()));
        life.fill(120);
        interrupt.clear();
        if is_call {
            let theirs = interrupt.clone();
            let done =
                life.during(&env, move || theirs.interrupt(), |log| log.wait_for_room_interruptibly(1000));
            assert!(matches!(done, Err(Error::Lock(LockError::Interrupted))), "{done:?}");
        } else {
            interrupt.interrupt();
            life.during_a_checkpoint(&env, |log| log.wait_for_room(1000).unwrap());
        }
        assert_eq!(life.log.metrics().waits, 1);
    }
}

#[test]
fn the_checkpointer_is_woken_once_half_of_the_log_is_in_use() {
    let life = open(new_database());
    let wake = Arc::new(Event::new());
    life.log.set_checkpointer(wake.clone());
    let append = || {
        life.append(&[1; 5000]);
        life.log.write_to(life.log.end()).unwrap();
    };
    while life.log.pressure() < 48 {
        append();
    }
    assert!(life.log.pressure() < 50 && !wake.is_notified(), "it is woken too early");
    while life.log.pressure() < 50 {
        append();
    }
    assert!(wake.is_notified(), "no room is made before operations have to wait for it");
}

#[test]
fn lazy_commits_are_synced_every_second() {
    let env = SimulatedEnv::new(5);
    let life = open_in(new_database(), Arc::new(env.clone()));
    let _worker = env.spawn("log", WorkerClass::Service, life.log.wake(), {
        let log = life.log.clone();
        Box::new(move || log.step())
    });
    let (_, end, _) = life.append(b"lazy");
    life.log.await_flush(end, FlushLog::Lazy).unwrap();
    let pass = |millis| {
        env.advance(Duration::from_millis(millis));
        while env.step(None) {}
    };
    pass(500);
    assert_eq!(life.log.written(), Lsn::ZERO);
    pass(600);
    assert_eq!(life.log.durable(), end);
    // A marker follows, and once it is durable too the log is idle.
    pass(1100);
    pass(1100);
    let (rest, writes) = (life.log.end(), life.log.metrics().writes);
    assert_eq!((life.log.durable(), rest.0), (rest, end.0 + 24));
    pass(5000);
    assert_eq!((life.log.end(), life.log.metrics().writes), (rest, writes));
    // The last commit is protected against silent damage now.
    let disk = life.disk.crash(0);
    disk.flip(FileName::Log(0), 4096 + 30, 4);
    assert!(matches!(read(&disk, None), Err(Error::Corrupt(CorruptError::Log { lsn: Lsn(0), .. }))));
}

#[test]
fn options_are_checked() {
    let disk = new_database();
    let (mut control, _, end) = read(&disk, None).unwrap();
    for options in [
        LogOptions { size: SEGMENT, ..OPTIONS },
        LogOptions { buffer: 100_000, ..OPTIONS },
        LogOptions { buffer: 1024, ..OPTIONS },
    ] {
        let env = Arc::new(SimulatedEnv::new(1));
        let refused = Log::open(disk.clone(), env, Health::new(), options, &mut control, end);
        assert!(matches!(refused, Err(Error::Usage(UsageError::Option { .. }))));
    }
    let modes = [0, 1, 2].map(|n| FlushLog::try_from(n).unwrap());
    assert_eq!(modes, [FlushLog::Lazy, FlushLog::Sync, FlushLog::Write]);
    assert!(FlushLog::try_from(3).unwrap_err().to_string().contains("3 is none of 0, 1, 2"));
}

#[test]
fn the_log_after_a_known_end_is_not_read() {
    use windfall_sim::SimulatedDisk;

    use crate::sync::work::{self, Work};
    let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::new(1));
    let control = Control { uuid: UUID, page_size: 16384, ..Control::default() };
    let mut control = ControlFile::create(disk.clone(), Health::new(), control).unwrap();
    let env = Arc::new(SimulatedEnv::new(1));
    let log = Log::open(disk.clone(), env, Health::new(), OPTIONS, &mut control, Lsn::ZERO).unwrap();
    let append = |payload: &[u8]| log.begin_group().append(payload).unwrap().0;
    let starts = [append(b"one"), append(b"two")];
    let end = log.finish().unwrap();
    // A segment is prepared ahead, and more is appended while the reader runs.
    assert!((0..3).any(|_| log.step() == Next::Again));
    append(b"three");
    log.write_to(log.end()).unwrap();
    let before = work::so_far();
    let mut reader = LogReader::new(disk, control.control(), Lsn::ZERO).unwrap().up_to(end);
    for start in starts {
        assert_eq!(reader.next_group().unwrap().unwrap().0, start);
    }
    assert!(reader.next_group().unwrap().is_none());
    assert_eq!(reader.end(), end);
    let reads = (work::so_far() - before).of(Work::Read);
    assert_eq!(reads, 2, "of a header and of what is there");
}
