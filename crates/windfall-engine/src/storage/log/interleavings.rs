//! The log under many interleavings: appending, the ring, group commit, failures, reservations, the low-water mark of
//! appending. Each scenario names the bugs that it is known to catch; the planted bugs passed to it are tried in every
//! run.

use super::{
    tests::{Group, OpenLog, ROOM, new_database, open_in, open_with, read},
    *,
};
use crate::{
    env::ModelEnv,
    sync::{
        atomic::AtomicBool,
        model::{explore, spawn},
    },
};

fn open() -> OpenLog {
    open_in(new_database(), Arc::new(ModelEnv::default()))
}

/// Appends like a mini-transaction that has nothing to register.
fn append(log: &Log, payload: &[u8]) -> Group {
    let (start, end) = log.begin_group().append(payload).unwrap();
    (start, end, payload.to_vec())
}

/// Three concurrent commits, two slots: every acknowledged commit is on the disk at that moment.
///
/// Catches: a frame that is published before it is copied, or without a notification; a leader that reports its
/// progress before the sync, or before the write; one that steps down without a notification; a follower that waits
/// for progress and not for the leader's end; a slot that is freed without a notification.
#[test]
fn an_acknowledged_commit_is_written_and_no_thread_waits_for_ever() {
    explore(4800, &["DurableBeforeTheSync", "LeaderWakesNone", "GroupSeenEarly"], || {
        let life = open();
        let commits = [(1, 40, FlushLog::Sync), (2, 5, FlushLog::Write), (3, 900, FlushLog::Sync)];
        let threads = commits.map(|(n, len, mode)| {
            let (log, disk) = (life.log.clone(), life.disk.clone());
            spawn(move || {
                let group = append(&log, &vec![n; len]);
                log.await_flush(group.1, mode).unwrap();
                // Crashes of the machine lose what is not synced, one of the process loses what is not written.
                // A sector that is not synced survives three crashes in five.
                let crashes = if mode == FlushLog::Sync { 1..9 } else { 0..1 };
                for crash in crashes {
                    let found = read(&disk.crash(crash), None).unwrap().1;
                    assert!(found.contains(&group), "acknowledged and lost: {:?} of {found:?}", group.0);
                }
                group
            })
        });
        let mut groups = threads.map(|thread| thread.join().unwrap()).to_vec();
        groups.sort();
        life.log.write_to(Lsn::MAX).unwrap();
        assert_eq!(read(&life.disk.crash(0), None).unwrap().1, groups);
    });
}

/// One thread commits durably, another one writes meanwhile and then makes its group durable. The sync that was running
/// when it wrote is not enough for that.
///
/// Catches: a sync that declares durable what was written after it had begun; a segment that counts as synced although
/// it was written to meanwhile.
#[test]
fn writes_during_a_sync_become_durable_with_the_next_sync() {
    explore(1500, &["WrittenMeanwhileIsDurable"], || {
        let life = open();
        let (log, disk) = (life.log.clone(), life.disk.clone());
        let first = spawn(move || {
            let (_, end, _) = append(&log, &[1; 40]);
            log.await_flush(end, FlushLog::Sync).unwrap();
        });
        let group = append(&life.log, &[2; 40]);
        life.log.await_flush(group.1, FlushLog::Write).unwrap();
        life.log.await_flush(group.1, FlushLog::Sync).unwrap();
        for crash in 1..4 {
            let found = read(&disk.crash(crash), None).unwrap().1;
            assert!(found.contains(&group), "acknowledged and lost: {:?} of {found:?}", group.0);
        }
        first.join().unwrap();
    });
}

/// Three concurrent commits on a disk of which one sync fails and keeps nothing, although a later one would succeed.
/// No acknowledged commit is lost; once one is refused, all are; and no thread waits for ever.
///
/// Catches: a failed sync that is reported to the leader only; a follower that is acknowledged by the leader's end; a
/// leader that continues after a failure because it did not check again; a failure that is reported before the database
/// has stopped.
#[test]
fn a_failing_sync_is_reported_to_every_commit_and_acknowledges_none() {
    explore(2000, &["FailureIsForgotten", "LeaderWakesNone", "DurableBeforeTheSync"], || {
        let life = open();
        let refused = Arc::new(AtomicBool::new(false));
        let threads = [1, 2, 3].map(|n| {
            let (log, disk, refused) = (life.log.clone(), life.disk.clone(), refused.clone());
            spawn(move || {
                for round in 0..2 {
                    let before = refused.load(SeqCst);
                    let appending = log.begin_group();
                    let appended = appending.append(&[n | round << 4; 40]);
                    drop(appending);
                    let done = appended.and_then(|(_, end)| log.await_flush(end, FlushLog::Sync));
                    if done.is_err() {
                        refused.store(true, SeqCst);
                        assert!(log.health.is_poisoned(), "a commit was refused, and the database continues");
                        continue;
                    }
                    assert!(!before, "a commit was refused, and the next one succeeds");
                    let found = read(&disk.crash(u64::from(n)), None).unwrap().1;
                    let is_there = found.iter().any(|(_, _, payload)| payload[..] == [n | round << 4; 40]);
                    assert!(is_there, "acknowledged and lost");
                }
            })
        });
        life.disk.lose_one_sync();
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

/// Two callers append what they reserved at the end of a segment, and then the disk is full: both have what they need.
///
/// Catches: a reservation that reads the end of the log before it is counted: if another thread appends and releases
/// an older reservation in between, its bytes are counted nowhere.
#[test]
fn a_reservation_is_kept_on_a_full_disk() {
    /// Bytes of a group, and the reservation for it.
    const GROUP: usize = 900;
    const PROMISE: u64 = 1000;
    explore(1500, &["ReservationReadsEndFirst"], || {
        let life = open();
        // The existing segment has room for one of the two.
        let left = || ROOM - life.log.end().0 % ROOM;
        while left() > 2 * PROMISE {
            let room = left() - 3 * PROMISE / 2;
            append(&life.log, &vec![7; (room as usize).min(life.log.max_group())]);
        }
        life.log.sync_to(Lsn::MAX).unwrap();
        let given = Arc::new(AtomicU64::new(0));
        let threads = [1, 2].map(|n| {
            let (log, disk, given) = (life.log.clone(), life.disk.clone(), given.clone());
            spawn(move || {
                let reservation = log.admit_freeing(PROMISE).unwrap();
                if given.fetch_add(1, SeqCst) == 1 {
                    disk.set_full(true);
                }
                append(&log, &[n; GROUP]);
                drop(reservation);
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
        life.log.sync_to(Lsn::MAX).expect("the reserved space is there");
    });
}

/// A thread cuts the log while another one reserves more than the new segment has, and begins to append it. Then the
/// disk is full: what was reserved is there. Nothing that is appended meanwhile is lost.
///
/// Catches: a cut that looks for reservations before it withdraws the prepared segments.
#[test]
fn a_reservation_during_a_cut_is_kept_on_a_full_disk() {
    // More together than a segment that a cut makes.
    const GROUPS: usize = 10;
    const GROUP: usize = 14_000;
    explore(1500, &["CutMissesReservations"], || {
        let options = LogOptions { size: 2 << 20, segment: 512 << 10, buffer: 64 << 10 };
        let life = open_with(new_database(), Arc::new(ModelEnv::default()), options);
        while life.log.end() < Lsn(200 << 10) {
            append(&life.log, &[7; GROUP]);
        }
        life.log.sync_to(Lsn::MAX).unwrap();
        let log = life.log.clone();
        let cutter = spawn(move || drop(log.cut()));
        let reservation = life.log.admit_freeing((GROUPS * (GROUP + 100)) as u64).unwrap();
        let mut groups = vec![append(&life.log, &[1; GROUP])];
        cutter.join().unwrap();
        life.disk.set_full(true);
        groups.extend((2..=GROUPS).map(|n| append(&life.log, &vec![n as u8; GROUP])));
        drop(reservation);
        life.log.sync_to(Lsn::MAX).expect("the reserved space is there");
        let found = read(&life.disk.crash(5), None).unwrap().1;
        assert!(found.ends_with(&groups), "{:?} instead of {:?}", starts(&found), starts(&groups));
    });
}

/// Six groups of which four fit the ring: a thread that finds it full writes, while others still copy.
///
/// Catches: space that becomes available before it is cleared; an appender that does not wait for room; a leader that
/// writes beyond the first incomplete frame.
#[test]
fn a_full_ring_loses_and_mixes_nothing() {
    explore(600, &["SpaceGivenBeforeItIsClear"], || {
        let life = open();
        let longest = life.log.max_group();
        let threads = [1, 2, 3].map(|n| {
            let log = life.log.clone();
            spawn(move || [append(&log, &vec![n; longest]), append(&log, &vec![n | 64; longest - 300])])
        });
        let mut groups: Vec<Group> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        groups.sort();
        life.log.sync_to(Lsn::MAX).unwrap();
        let found = read(&life.disk.crash(7), None).unwrap().1;
        assert!(found == groups, "{:?} instead of {:?}", starts(&found), starts(&groups));
    });
}

fn starts(groups: &[Group]) -> Vec<Lsn> {
    groups.iter().map(|group| group.0).collect()
}

/// Every appender registers its pages before the low-water mark passes them.
///
/// Catches: a slot that is taken after the space is reserved; a low-water mark that reads the slots first and then the
/// end.
#[test]
fn the_low_water_mark_of_appending_waits_for_the_appenders() {
    explore(6000, &["SlotsBeforeTheEnd"], || {
        let life = open();
        let registered = Arc::new(Mutex::new(Rank::Leaf, Vec::new()));
        let threads = [1, 2, 3].map(|n| {
            let (log, registered) = (life.log.clone(), registered.clone());
            spawn(move || {
                let appending = log.begin_group();
                let (start, _) = appending.append(&[n; 8]).unwrap();
                registered.lock().push(start);
                drop(appending);
                start
            })
        });
        let looks = [0; 2].map(|_| (life.log.append_low_water_mark(), registered.lock().clone()));
        let starts = threads.map(|thread| thread.join().unwrap());
        for (low_water_mark, known) in looks {
            let missed: Vec<_> =
                starts.iter().filter(|s| **s < low_water_mark && !known.contains(s)).collect();
            assert!(missed.is_empty(), "{missed:?} are below {low_water_mark:?} and registered nowhere");
        }
    });
}

/// A callback is registered while the log is synced up to its position, and the worker sleeps until it is woken.
///
/// Catches: a registration that does not look at the durable position, or does so before it is visible; a sync that
/// looks for callbacks before its position is durable.
#[test]
fn a_callback_is_not_missed_by_a_concurrent_sync() {
    explore(800, &["CallbackIgnoresDurable", "SyncWakesNoCallback"], || {
        let life = open();
        let (_, end, _) = append(&life.log, &[1; 40]);
        let called = Arc::new(AtomicBool::new(false));
        let worker = {
            let log = life.log.clone();
            spawn(move || {
                let is_due = || log.notifications.is_due(log.durable());
                log.env.wait(&log.notify_wake(), &mut || is_due());
                log.notify_step();
            })
        };
        let syncer = {
            let log = life.log.clone();
            spawn(move || log.sync_to(end).unwrap())
        };
        let (log, of_call) = (life.log.clone(), called.clone());
        let callback = move |outcome: Result<()>| {
            assert!(outcome.is_ok() && log.durable() >= end, "it is called before its position is durable");
            of_call.store(true, SeqCst);
        };
        life.log.when_durable(end, Box::new(callback)).unwrap();
        syncer.join().unwrap();
        worker.join().unwrap();
        assert!(called.load(SeqCst));
    });
}
