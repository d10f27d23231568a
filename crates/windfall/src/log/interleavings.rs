//! The log in many orders: appending, the ring, group commit, the floor of what is being appended. What each scenario was
//! seen to catch stands with it.

use super::{
    tests::{Group, Life, new_database, open_in, read},
    *,
};
use crate::{
    env::ModelEnv,
    sync::model::{explore, spawn},
};

fn open() -> Life {
    open_in(new_database(), Arc::new(ModelEnv::default()))
}

/// Appends as a mini-transaction does that has nothing to register.
fn append(log: &Log, payload: &[u8]) -> Group {
    let (start, end) = log.begin_group().append(payload).unwrap();
    (start, end, payload.to_vec())
}

/// Three commits at once, two slots: whatever was acknowledged is on the disk at that moment.
///
/// Catches: a frame that is published before it is copied, or of which nobody is told; a leader that says how far it has
/// come before the sync, or before the write; one that steps down and tells nobody; a follower who waits for progress and
/// not for the leader's end; a slot that is given back and nobody told.
#[test]
fn what_is_acknowledged_is_written_and_nobody_waits_for_ever() {
    explore(1200, || {
        let life = open();
        let commits = [(1, 40, FlushLog::Sync), (2, 5, FlushLog::Write), (3, 900, FlushLog::Sync)];
        let threads = commits.map(|(n, len, mode)| {
            let (log, disk) = (life.log.clone(), life.disk.clone());
            spawn(move || {
                let group = append(&log, &vec![n; len]);
                log.commit(group.1, mode).unwrap();
                // Crashes of the machine take what is not synced, one of the process takes what is not written.
                let crashes = if mode == FlushLog::Sync { 1..4 } else { 0..1 };
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

/// Six groups of which four fit the ring: who finds it full writes, while others still copy.
///
/// Catches: space that is handed out before it is cleared; an appender who does not wait for room; a leader who writes
/// beyond the first frame that is not whole.
#[test]
fn a_full_ring_loses_and_mixes_nothing() {
    explore(600, || {
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

/// Whoever appends registers before the floor passes.
///
/// Catches: a slot that is taken after the space is reserved; a floor that looks at the slots first and then at the end.
#[test]
fn the_floor_of_appending_waits_for_those_who_append() {
    explore(6000, || {
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
        let looks = [0; 2].map(|_| (life.log.append_floor(), registered.lock().clone()));
        let starts = threads.map(|thread| thread.join().unwrap());
        for (floor, known) in looks {
            let missed: Vec<_> = starts.iter().filter(|s| **s < floor && !known.contains(s)).collect();
            assert!(missed.is_empty(), "{missed:?} are below {floor:?} and registered nowhere");
        }
    });
}
