//! The model itself: the orders of threads that it runs, and the failures that it reports.

use core::time::Duration;
use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex as MachineMutex,
        atomic::{AtomicBool as MachineBool, AtomicUsize as MachineUsize},
    },
};

use super::{
    super::{Event, Mutex, Rank, latch::Latch},
    atomic::{AtomicU64, Ordering::SeqCst},
    explore, spawn,
};
use crate::env::{Env, ModelEnv, Next, WorkerClass};

/// A place for what all runs of a scenario have seen, which is no part of the scenario.
type Seen<T> = Arc<MachineMutex<BTreeSet<T>>>;

#[test]
fn a_race_has_every_outcome() {
    let seen: Seen<u64> = Arc::default();
    let outcomes = seen.clone();
    explore(200, &[], move || {
        let number = Arc::new(AtomicU64::new(0));
        let threads = [1, 2].map(|added| {
            let number = number.clone();
            spawn(move || number.store(number.load(SeqCst) + added, SeqCst))
        });
        for thread in threads {
            thread.join().unwrap();
        }
        outcomes.lock().unwrap().insert(number.load(SeqCst));
    });
    assert_eq!(*seen.lock().unwrap(), BTreeSet::from([1, 2, 3]));
}

/// One access to an atomic.
type Access = fn(&AtomicU64);

#[test]
fn another_thread_may_run_before_each_access() {
    let accesses: [(&str, Access); 7] = [
        ("load", |number| {
            number.load(SeqCst);
        }),
        ("store", |number| number.store(1, SeqCst)),
        ("swap", |number| {
            number.swap(1, SeqCst);
        }),
        ("compare_exchange", |number| {
            let _ = number.compare_exchange(0, 1, SeqCst, SeqCst);
        }),
        ("compare_exchange_weak", |number| {
            let _ = number.compare_exchange_weak(0, 1, SeqCst, SeqCst);
        }),
        ("fetch_add", |number| {
            number.fetch_add(1, SeqCst);
        }),
        ("fetch_and", |number| {
            number.fetch_and(1, SeqCst);
        }),
    ];
    for (name, access) in accesses {
        let has_met = Arc::new(MachineBool::new(false));
        let meets = has_met.clone();
        explore(50, &[], move || {
            let is_within = Arc::new(MachineBool::new(false));
            let (within, meets) = (is_within.clone(), meets.clone());
            let threads = [
                spawn(move || {
                    is_within.store(true, SeqCst);
                    access(&AtomicU64::new(0));
                    is_within.store(false, SeqCst);
                }),
                spawn(move || {
                    meets.fetch_or(within.load(SeqCst), SeqCst);
                }),
            ];
            for thread in threads {
                thread.join().unwrap();
            }
        });
        assert!(has_met.load(SeqCst), "{name} is no step of its own");
    }
}

#[test]
fn an_update_is_repeated_when_another_comes_between() {
    let most = Arc::new(MachineUsize::new(0));
    let of_all_runs = most.clone();
    explore(200, &[], move || {
        let shared = Arc::new((AtomicU64::new(0), MachineUsize::new(0)));
        let threads = [(); 2].map(|()| {
            let shared = shared.clone();
            spawn(move || {
                let add_one = |number| {
                    shared.1.fetch_add(1, SeqCst);
                    Some(number + 1)
                };
                shared.0.fetch_update(SeqCst, SeqCst, add_one).unwrap();
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(shared.0.load(SeqCst), 2, "an update is lost");
        of_all_runs.fetch_max(shared.1.load(SeqCst), SeqCst);
    });
    assert_eq!(most.load(SeqCst), 3, "an update is one step");
}

#[test]
fn a_thread_waits_for_a_lock_without_the_machine() {
    let seen: Seen<Vec<u64>> = Arc::default();
    let orders = seen.clone();
    explore(200, &[], move || {
        let order = Arc::new(Mutex::new(Rank::Leaf, Vec::new()));
        let threads = [1, 2].map(|thread| {
            let order = order.clone();
            spawn(move || {
                let mut order = order.lock();
                // The other thread may run here, and then finds the mutex taken.
                let place = AtomicU64::new(thread).load(SeqCst);
                order.push(place);
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
        orders.lock().unwrap().insert(order.lock().clone());
    });
    assert_eq!(*seen.lock().unwrap(), BTreeSet::from([vec![1, 2], vec![2, 1]]));
}

#[test]
fn a_short_wait_ends_by_itself() {
    explore(50, &[], || {
        let waits = [(); 2].map(|()| spawn(|| Event::new().wait_for(Duration::from_mins(1), || false)));
        assert!(waits.into_iter().all(|wait| !wait.join().unwrap()));
    });
}

#[test]
#[should_panic(expected = "deadlock! blocked tasks")]
fn a_wait_that_nothing_ends_is_reported() {
    explore(1, &[], || assert!(Event::new().wait_for(Duration::from_hours(1), || false)));
}

/// The thread of a scenario that waits for the machine would wait for itself: all are one thread there.
#[test]
fn threads_outside_a_scenario_wait_as_those_of_the_machine() {
    const ROUNDS: u64 = 200;
    let shared = Arc::new((Event::new(), Mutex::new(Rank::Leaf, 0), Latch::default(), AtomicU64::new(0)));
    let threads = [(); 3].map(|()| {
        let shared = shared.clone();
        std::thread::spawn(move || {
            let (event, mutex, latch, turn) = &*shared;
            for n in 1..=ROUNDS {
                event.wait(|| turn.load(SeqCst) >= n);
                *mutex.lock() += 1;
                latch.exclusive();
                std::thread::yield_now();
                latch.release_changed();
            }
        })
    });
    let (event, mutex, latch, turn) = &*shared;
    for _ in 0..ROUNDS {
        let held = mutex.lock();
        assert!(latch.share_while(|| true));
        turn.fetch_add(1, SeqCst);
        event.notify();
        std::thread::yield_now();
        drop(held);
        latch.unshare();
    }
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(*mutex.lock(), 3 * ROUNDS);
}

#[test]
fn the_clock_counts_its_reads() {
    let clocks = [ModelEnv::default(), ModelEnv::default()];
    for expected in (0..3).map(Duration::from_millis) {
        assert_eq!(clocks.each_ref().map(ModelEnv::now), [expected; 2]);
    }
}

#[test]
#[should_panic(expected = "a scenario runs the steps of cleaner itself")]
fn a_worker_is_refused() {
    let step = Box::new(|| Next::Done);
    let _ = ModelEnv::default().spawn("cleaner", WorkerClass::Service, Arc::new(Event::new()), step);
}

#[test]
#[should_panic(expected = "possible nondeterminism")]
fn a_scenario_that_is_not_repeatable_is_refused() {
    let runs = Arc::new(MachineUsize::new(0));
    explore(1, &[], move || {
        if runs.fetch_add(1, SeqCst).is_multiple_of(2) {
            AtomicU64::new(0).store(1, SeqCst);
        }
    });
}
