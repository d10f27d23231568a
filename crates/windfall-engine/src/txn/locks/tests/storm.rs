//! Many threads that lock at random: locks exclude each other, every wait ends, and nothing is left.

use std::{
    sync::{Barrier, atomic::AtomicI64},
    thread,
};

use super::*;

const THREADS: u64 = 32;
const ROUNDS: u64 = 120;
const KEYS: u64 = 6;

/// A pseudo-random generator with a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// The holders of each row: the number of sharers, or -1 for an exclusive holder.
type Inside = [AtomicI64; KEYS as usize];

fn leave(inside: &Inside, held: &[Option<RowMode>]) {
    for (cell, mode) in inside.iter().zip(held) {
        match mode {
            Some(RowMode::Shared) => drop(cell.fetch_sub(1, SeqCst)),
            Some(RowMode::Exclusive) => cell.store(0, SeqCst),
            None => {}
        }
    }
}

/// Runs one transaction. Returns the number of deadlocks reported to it.
fn transaction(
    locks: &LockManager,
    me: &Arc<LockOwner>,
    others: &Mutex<Vec<Arc<LockOwner>>>,
    inside: &Inside,
    draw: &mut Draw,
) -> u64 {
    let mut held = [None; KEYS as usize];
    let mut deadlocks = 0;
    for _ in 0..draw.below(8) {
        // Other threads run while this one has locks.
        thread::yield_now();
        let n = draw.below(KEYS);
        let key = name(SPACE, &n.to_string());
        let lock_timeout = match draw.below(4) {
            0 => LockTimeout::NoWait,
            1 => LockTimeout::AtMost(Duration::from_micros(draw.below(500))),
            _ => LockTimeout::Forever,
        };
        let mode = if draw.below(2) == 0 { RowMode::Shared } else { RowMode::Exclusive };
        let outcome = match draw.below(12) {
            0 => {
                locks.lock_range(me, SPACE, Bound::Included(&key.key), Bound::Included(&key.key));
                Ok(())
            }
            1 => locks.acquire(me, LockRequest::Insert(key), lock_timeout),
            2 => locks.acquire(
                me,
                LockRequest::Table(OTHER, TableMode::ALL[draw.below(4) as usize]),
                lock_timeout,
            ),
            3 => {
                let other = others.lock()[draw.below(THREADS) as usize].clone();
                locks.interrupt(&other);
                me.add_weight(draw.below(3));
                Ok(())
            }
            _ => locks.acquire(me, LockRequest::Row(key, mode), lock_timeout).inspect(|()| {
                let (cell, held) = (&inside[n as usize], &mut held[n as usize]);
                match (*held, mode) {
                    (None, RowMode::Shared) => {
                        assert!(cell.fetch_add(1, SeqCst) >= 0, "shared with exclusive");
                    }
                    (None, RowMode::Exclusive) => {
                        assert_eq!(cell.swap(-1, SeqCst), 0, "exclusive with others");
                    }
                    (Some(RowMode::Shared), RowMode::Exclusive) => {
                        assert_eq!(cell.swap(-1, SeqCst), 1, "an upgrade with others");
                    }
                    _ => return,
                }
                *held = Some(mode);
            }),
        };
        if let Err(LockError::Deadlock(_)) = outcome {
            deadlocks += 1;
            break;
        }
    }
    leave(inside, &held);
    locks.end(me);
    deadlocks
}

#[test]
fn a_storm_leaves_no_locks() {
    let locks = real();
    let inside = Inside::default();
    let first = (0..THREADS).map(|n| locks.lock_owner(TrxId(n + 1)));
    let others = Mutex::new(Rank::Session, first.collect::<Vec<_>>());
    let start = Barrier::new(THREADS as usize);
    let deadlocks: u64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|n| {
                let (locks, inside, others, start) = (&locks, &inside, &others, &start);
                scope.spawn(move || {
                    start.wait();
                    let mut draw = Draw(n + 1);
                    let mut round = |round| {
                        let me = locks.lock_owner(TrxId(round * THREADS + n + 1));
                        others.lock()[n as usize] = me.clone();
                        transaction(locks, &me, others, inside, &mut draw)
                    };
                    (0..ROUNDS).map(&mut round).sum::<u64>()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let metrics = locks.metrics();
    assert_eq!((metrics.held, metrics.waiting, metrics.deadlocks), (0, 0, deadlocks));
    assert_eq!(metrics.wait_classes.iter().sum::<u64>(), metrics.waits);
    assert!(metrics.waits > THREADS && deadlocks > 0, "it was no storm: {metrics:?}");
    assert!(locks.is_empty());
    assert!(locks.may_insert(None, SPACE, b"1") && locks.may_write(None, SPACE, b"1"));
}

/// A chain of a thousand transactions, each waiting for the one before, and many that queue for the first; no cost is
/// quadratic in their number.
#[test]
fn a_long_chain_of_waits_is_searched_once() {
    const MANY: u64 = 1000;
    let desk = TestLocks::new();
    let lock_owners: Vec<_> = (0..2 * MANY).map(|n| desk.locks.lock_owner(TrxId(n + 1))).collect();
    let row = |n: u64| exclusive(&format!("{n:04}"));
    for n in 0..MANY {
        assert!(desk.ask(&lock_owners[n as usize], row(n)));
    }
    for n in MANY..2 * MANY {
        let own = LockRequest::Row(
            RowName { space: OTHER, key: (*n.to_string().as_bytes()).into() },
            RowMode::Shared,
        );
        assert!(desk.ask(&lock_owners[n as usize], own) && !desk.ask(&lock_owners[n as usize], row(0)));
    }
    for n in 1..MANY {
        assert!(!desk.ask(&lock_owners[n as usize], row(n - 1)));
    }
    lock_owners[0].add_weight(1);
    assert!(!desk.ask(&lock_owners[0], row(MANY - 1)), "the cycle is closed");
    let deadlock = desk.locks.last_deadlock().unwrap();
    assert_eq!((deadlock.cycle.len() as u64, desk.locks.metrics().deadlocks), (MANY, 1));
    let victim = deadlock.victim().unwrap().0 - 1;
    assert_eq!(victim, MANY - 1, "the youngest of equals");
    let served_in_turn = [MANY - 1, 0].into_iter().chain(MANY..2 * MANY).chain(1..MANY - 1);
    let lock_owners: Vec<_> = served_in_turn.map(|n| lock_owners[n as usize].clone()).collect();
    desk.close(&lock_owners);
}
