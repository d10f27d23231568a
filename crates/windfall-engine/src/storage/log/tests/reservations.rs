//! Tests of reservations: on a full disk they are refused, and what was reserved can be appended.

use std::thread;

use super::{SEGMENT, new_database, open, open_in};
use crate::{
    env::{Next, RealEnv},
    ids::Lsn,
    log::FlushLog,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};

#[test]
fn a_full_disk_refuses_new_operations_and_loses_nothing() {
    let life = open(new_database());
    assert_eq!(life.log.step(), Next::Again);
    life.append(&[1; 100]);
    life.log.sync_to(Lsn::MAX).unwrap();
    life.disk.set_full(true);
    assert!(matches!(life.log.step(), Next::Idle(_)));
    assert!(life.log.admit(100).unwrap_err().to_string().contains("full"));
    // Work in progress continues in the prepared segment.
    let (_, end, _) = life.append(&[2; 100]);
    life.log.await_flush(end, FlushLog::Sync).unwrap();
    life.disk.set_full(false);
    assert_eq!(life.log.step(), Next::Again);
    drop(life.log.admit(100).unwrap());
}

#[test]
fn reserved_bytes_can_be_appended_on_a_full_disk() {
    let life = open(new_database());
    let (log, large) = (&life.log, 3 * SEGMENT);
    let mut reservation = log.reserve(large).unwrap();
    reservation.extend(large).unwrap();
    life.disk.set_full(true);
    // The prepared space is reserved already, except the part kept for work that makes room.
    assert!(log.reserve(SEGMENT).unwrap_err().to_string().contains("full"));
    assert!(reservation.extend(SEGMENT).is_err());
    let room = log.admit_freeing(1000).unwrap();
    let mut appended = 0;
    while appended + 9000 <= 2 * large {
        let (start, end, _) = life.append(&[7; 8000]);
        log.await_flush(end, FlushLog::Sync).unwrap();
        appended += end.0 - start.0;
    }
    drop(reservation);
    life.append(&[8; 900]);
    drop(room);
    log.finish().unwrap();
    assert!(log.reserve(SEGMENT).is_err());
    life.disk.set_full(false);
    drop(log.reserve(SEGMENT).unwrap());
    assert_eq!(log.reserved_bytes.load(SeqCst), 0);
}

#[test]
fn reservations_leave_log_for_work_that_makes_room() {
    let life = open(new_database());
    while life.log.step() == Next::Again {}
    life.disk.set_full(true);
    let reservations: Vec<_> = std::iter::from_fn(|| life.log.reserve(500).ok()).collect();
    assert!(!reservations.is_empty());
    let drops: Vec<_> = (0..60).map(|_| life.log.admit_freeing(1000).unwrap()).collect();
    for _ in &drops {
        life.append(&[1; 900]);
    }
    life.log.sync_to(Lsn::MAX).unwrap();
}

#[test]
fn a_request_that_is_refused_takes_nothing_of_what_is_kept() {
    let life = open_in(new_database(), Arc::new(RealEnv::default()));
    while life.log.step() == Next::Again {}
    life.disk.set_full(true);
    let (log, turns, granted, ended) =
        (&life.log, AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let refused = thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ended.load(SeqCst) {
                    let are_refused =
                        log.reserve(4 * SEGMENT).is_err() && matches!(log.try_reserve(4 * SEGMENT), Ok(None));
                    granted.fetch_add(u64::from(!are_refused), SeqCst);
                    turns.fetch_add(1, SeqCst);
                }
            });
        }
        let mut refused = 0;
        while turns.load(SeqCst) < 5000 {
            refused += u64::from(log.admit_freeing(1000).is_err());
        }
        ended.store(true, SeqCst);
        refused
    });
    assert_eq!(
        (refused, granted.load(SeqCst)),
        (0, 0),
        "work that makes room was refused, or other work was not"
    );
}

#[test]
fn every_one_of_many_reservations_is_kept() {
    for round in 0..20 {
        let life = open_in(new_database(), Arc::new(RealEnv::default()));
        let refused: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..6u64)
                .map(|n| {
                    let (log, disk) = (&life.log, &life.disk);
                    scope.spawn(move || {
                        let mut refused = 0;
                        for turn in 0..40 {
                            if n == 0 && turn == 5 + round {
                                disk.set_full(true);
                            }
                            let bytes = 1000 * (1 + (n + turn) % 9);
                            let Ok(_reservation) = log.reserve(2 * bytes) else {
                                refused += 1;
                                continue;
                            };
                            for _ in 0..2 {
                                let payload = vec![n as u8; bytes as usize - 100];
                                let (_, end) = log.begin_group().append(&payload).unwrap();
                                log.await_flush(end, FlushLog::Sync).unwrap();
                            }
                        }
                        refused
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert!(refused > 0 && !life.health.is_poisoned(), "round {round}: {refused} were refused");
        assert_eq!(life.log.reserved_bytes.load(SeqCst), 0);
    }
}
