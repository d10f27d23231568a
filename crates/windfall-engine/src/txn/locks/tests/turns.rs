//! A wait for a table in turns: the actions of others run in the callback `between`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::error::Error;

const TABLE: LockRequest = LockRequest::Table(SPACE, TableMode::IntentionExclusive);
/// The timeout of the wait.
const AT_MOST: Duration = Duration::from_secs(1000);

impl TestLocks {
    /// Waits for the table in turns, and calls `between` at each interval.
    fn in_turns(
        &self,
        me: &Arc<LockOwner>,
        longest: Duration,
        mut between: impl FnMut(),
    ) -> Result<(), Error> {
        self.locks.acquire_yielding(me, (SPACE, TableMode::Shared), AT_MOST, longest, &mut || {
            between();
            Ok(false)
        })
    }
}

/// At any time another transaction has the table, each for two intervals.
#[test]
fn a_wait_in_turns_is_granted_despite_overlapping_holders() {
    for longest in [Duration::ZERO, MILLISECOND, Duration::from_secs(1)] {
        let desk = TestLocks::new();
        let [me] = &desk.lock_owners();
        let (mut next, mut refused) = (2, 0);
        let mut come = || {
            let lock_owner = desk.locks.lock_owner(TrxId(next));
            next += 1;
            let taken = desk.try_now(&lock_owner, TABLE).is_ok();
            refused += usize::from(!taken);
            taken.then_some(lock_owner)
        };
        let mut there = [come(), come()];
        let served = desk.in_turns(me, longest, || {
            if let Some(ended) = there[0].take() {
                desk.locks.end(&ended);
            }
            there.rotate_left(1);
            there[1] = come();
        });
        served.unwrap_or_else(|error| panic!("{longest:?}: {error}"));
        assert!(there.iter().all(Option::is_none), "{longest:?}: it has the table together with others");
        assert!(desk.env.now() < AT_MOST / 10, "{longest:?}: it was served after {:?}", desk.env.now());
        assert!(refused > 0, "{longest:?}: others passed it, and it was served");
        desk.close(core::slice::from_ref(me));
    }
}

/// The transaction that it waits for waits for a later one: it is the victim, and starts again.
#[test]
fn a_wait_in_turns_that_is_a_deadlock_victim_starts_again() {
    let desk = TestLocks::new();
    let all @ [me, old, new] = &desk.lock_owners();
    let row = LockRequest::Row(name(OTHER, "k"), RowMode::Exclusive);
    assert!(desk.ask(old, TABLE) && desk.ask(new, row.clone()));
    let mut looks = 0;
    let served = desk.in_turns(me, Duration::from_secs(10), || {
        looks += 1;
        match looks {
            1 => {
                assert!(!desk.ask(new, TABLE), "it passes one that has a turn");
                assert!(!desk.ask(old, row.clone()));
                assert_eq!(desk.locks.last_deadlock().and_then(|cycle| cycle.victim()), Some(me.id()));
                assert!(desk.was_served(new), "it stood behind it alone");
            }
            5 => {
                assert_eq!(desk.locks.metrics().waiting, 2, "it waits again");
                desk.locks.end(new);
                assert!(desk.was_served(old));
            }
            8 => desk.locks.end(old),
            _ => {}
        }
    });
    served.unwrap();
    assert_eq!((looks >= 8, desk.locks.metrics().deadlocks), (true, 1));
    assert_eq!(desk.locks.metrics().waiting, 0);
    desk.close(all);
}

/// Its owner has the lowest priority of all, and so is the victim whatever the others have chosen.
#[test]
fn a_wait_in_turns_is_the_victim_of_every_deadlock() {
    let desk = TestLocks::new();
    let me = &desk.locks.lock_owner_with(TrxId(1), OwnerOptions::VICTIM);
    let [_, old, new] = &desk.lock_owners_with([0, 0, OwnerOptions::MIN_PRIORITY]);
    let row = LockRequest::Row(name(OTHER, "k"), RowMode::Exclusive);
    assert!(desk.ask(old, TABLE) && desk.ask(new, row.clone()));
    let mut looks = 0;
    let served = desk.in_turns(me, Duration::from_secs(10), || {
        looks += 1;
        if looks == 1 {
            assert!(!desk.ask(new, TABLE) && !desk.ask(old, row.clone()));
            assert_eq!(desk.locks.last_deadlock().and_then(|cycle| cycle.victim()), Some(me.id()));
            assert!(desk.was_served(new));
            desk.locks.end(new);
            assert!(desk.was_served(old));
            desk.locks.end(old);
        }
    });
    served.unwrap();
    assert_eq!(desk.locks.metrics().deadlocks, 1);
    desk.close(core::slice::from_ref(me));
}

/// While there is more to do it calls `between` again at once.
#[test]
fn a_wait_in_turns_sleeps_only_while_there_is_nothing_to_do() {
    let desk = TestLocks::new();
    let all @ [me, old] = &desk.lock_owners();
    assert!(desk.ask(old, TABLE));
    let (mut looks, mut slept) = (0, Duration::ZERO);
    let done = desk.locks.acquire_yielding(me, (SPACE, TableMode::Shared), AT_MOST, AT_MOST, &mut || {
        looks += 1;
        match looks {
            1 => slept = desk.env.now(),
            100 => desk.locks.end(old),
            _ => {}
        }
        Ok(looks < 100)
    });
    done.unwrap();
    assert_eq!((looks, desk.env.now()), (100, slept));
    desk.close(all);
}

/// A panic in `between` ends the wait: its lock owner can be ended, and no request waits for it.
#[test]
fn a_panic_during_a_wait_in_turns_ends_it() {
    let desk = TestLocks::new();
    let all @ [me, old, new] = &desk.lock_owners();
    assert!(desk.ask(old, TABLE));
    let caught = catch_unwind(AssertUnwindSafe(|| {
        desk.in_turns(me, AT_MOST, || {
            assert!(!desk.ask(new, TABLE), "it passes one that has a turn");
            panic!("a defect");
        })
    }));
    assert!(caught.is_err());
    assert!(desk.was_served(new), "it waits for a request that was removed");
    assert_eq!(desk.locks.metrics().waiting, 0);
    desk.close(all);
}
