//! Waits: how long they last, and what ends them.

use std::thread;

use super::*;
use crate::{
    env::{Next, WorkerClass},
    sync::Event,
};

/// Waits until this many requests wait.
fn until_waiting(locks: &LockManager, number: u64) {
    while locks.metrics().waiting != number {
        thread::yield_now();
    }
}

#[test]
fn a_wait_ends_with_its_time_in_a_simulation() {
    let desk = TestLocks::new();
    let all @ [a, b, c] = &desk.lock_owners();
    assert!(desk.ask(a, shared("k")));
    let began = desk.env.now();
    let time = Duration::from_secs(50);
    let Err(LockError::TimedOut { blockers, waited }) =
        desk.locks.acquire(b, exclusive("k"), LockTimeout::AtMost(time))
    else {
        panic!("it is free")
    };
    assert_eq!((blockers.ids(), waited), (&ids(&[1])[..], time));
    assert_eq!(desk.env.now(), began + time);
    assert!(desk.ask(c, shared("k")), "a request that has timed out blocks no other");
    let metrics = desk.locks.metrics();
    assert_eq!((metrics.timeouts, metrics.waits, metrics.waiting), (1, 1, 0));
    assert_eq!((metrics.wait_time, metrics.longest_wait), (time, time));
    assert_eq!(
        metrics.wait_classes[26], 1,
        "50 seconds are between 2 to the 25 and 2 to the 26 microseconds"
    );
    desk.close(all);
}

#[test]
fn a_wait_ends_with_its_time_on_a_real_clock() {
    let locks = real();
    let (a, b) = (locks.lock_owner(TrxId(1)), locks.lock_owner(TrxId(2)));
    locks.acquire(&a, exclusive("k"), LockTimeout::NoWait).unwrap();
    let time = Duration::from_millis(20);
    let error = locks.acquire(&b, exclusive("k"), LockTimeout::AtMost(time)).unwrap_err();
    let LockError::TimedOut { blockers, waited } = error else { panic!("{error}") };
    assert!(blockers.ids() == [TrxId(1)] && waited >= time);
    locks.end(&a);
    locks.acquire(&b, exclusive("k"), LockTimeout::AtMost(Duration::ZERO)).unwrap();
    locks.end(&b);
}

#[test]
fn a_request_after_one_that_has_timed_out_is_granted() {
    let desk = TestLocks::new();
    let all @ [a, b, c] = &desk.lock_owners();
    assert!(desk.ask(a, shared("k")) && !desk.ask(b, exclusive("k")) && !desk.ask(c, shared("k")));
    let now = desk.env.now();
    let error = desk.locks.end_wait(b, now, now, false).unwrap_err();
    assert!(matches!(error, LockError::TimedOut { .. }));
    assert!(desk.was_served(c));
    desk.close(all);
}

#[test]
fn a_background_step_may_end_a_wait_in_a_simulation() {
    let desk = TestLocks::new();
    let all @ [a, b] = &desk.lock_owners();
    assert!(desk.ask(a, exclusive("k")));
    let (locks, holder) = (desk.locks.clone(), a.clone());
    let step = move || {
        locks.end(&holder);
        Next::Done
    };
    let _worker =
        desk.env.spawn("test", WorkerClass::Service, Arc::new(Event::new()), Box::new(step)).unwrap();
    desk.locks.acquire(b, exclusive("k"), LockTimeout::Forever).unwrap();
    desk.close(all);
}

#[test]
#[should_panic(expected = "a wait that no background step can end")]
fn a_wait_without_end_is_found_in_a_simulation() {
    let desk = TestLocks::new();
    let [a, b] = &desk.lock_owners();
    assert!(desk.ask(a, exclusive("k")));
    let _ = desk.locks.acquire(b, exclusive("k"), LockTimeout::Forever);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "Row taken while Page is held")]
fn no_thread_waits_for_a_lock_under_a_latch() {
    let desk = TestLocks::new();
    let [a, b] = &desk.lock_owners();
    assert!(desk.ask(a, exclusive("k")));
    let _latch = Held::take(Rank::Page);
    assert!(desk.try_now(b, exclusive("k")).is_err() && !desk.locks.may_write(None, SPACE, b"k"));
    let _ = desk.locks.acquire(b, exclusive("k"), LockTimeout::AtMost(MILLISECOND));
}

#[test]
fn an_interrupt_ends_the_wait_or_the_next_one() {
    let locks = real();
    let (a, b) = (locks.lock_owner(TrxId(1)), locks.lock_owner(TrxId(2)));
    locks.acquire(&a, exclusive("k"), LockTimeout::NoWait).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| locks.acquire(&b, exclusive("k"), LockTimeout::Forever));
        until_waiting(&locks, 1);
        locks.interrupt(&b);
        assert_eq!(waiter.join().unwrap(), Err(LockError::Interrupted));
    });
    locks.interrupt(&b);
    locks.acquire(&b, exclusive("l"), LockTimeout::Forever).expect("that needs no wait");
    assert!(matches!(locks.acquire(&b, shared("k"), LockTimeout::NoWait), Err(LockError::Busy(_))));
    assert_eq!(locks.acquire(&b, shared("k"), LockTimeout::Forever), Err(LockError::Interrupted));
    let again = locks.acquire(&b, shared("k"), LockTimeout::AtMost(MILLISECOND));
    assert!(matches!(again, Err(LockError::TimedOut { .. })), "an interrupt ends one wait: {again:?}");
    locks.end(&a);
    locks.end(&b);
    assert!(locks.is_empty());
}

#[test]
fn every_end_of_a_wait_wakes_the_waiting_thread() {
    let locks = real();
    let [a, b, c, d] = core::array::from_fn(|n| locks.lock_owner(TrxId(n as u64 + 1)));
    locks.acquire(&a, exclusive("k"), LockTimeout::NoWait).unwrap();
    locks.lock_range(&a, OTHER, Bound::Unbounded, Bound::Unbounded);
    thread::scope(|scope| {
        let served = scope.spawn(|| locks.acquire(&b, shared("k"), LockTimeout::Forever));
        let interrupted = scope.spawn(|| {
            locks.acquire(
                &c,
                LockRequest::Insert(name(OTHER, "k")),
                LockTimeout::AtMost(Duration::from_mins(5)),
            )
        });
        let victim = scope.spawn(|| {
            locks.acquire(&d, exclusive("d"), LockTimeout::NoWait).unwrap();
            let outcome = locks.acquire(&d, exclusive("k"), LockTimeout::Forever);
            locks.end(&d);
            outcome
        });
        until_waiting(&locks, 3);
        assert!(locks.interrupt(&c));
        assert_eq!(interrupted.join().unwrap(), Err(LockError::Interrupted));
        a.add_weight(100);
        locks.acquire(&a, exclusive("d"), LockTimeout::Forever).expect("the other one gives way");
        assert!(matches!(victim.join().unwrap(), Err(LockError::Deadlock(_))));
        assert_eq!(locks.metrics().waiting, 1);
        locks.end(&a);
        assert_eq!(served.join().unwrap(), Ok(()));
    });
    locks.end(&b);
    locks.end(&c);
    assert!(locks.is_empty());
}
