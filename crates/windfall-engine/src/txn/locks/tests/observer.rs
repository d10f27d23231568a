//! The observer of waits. Others act in its callbacks, which run before the waiter sleeps.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Mutex,
};

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Begins,
    Changed,
    Ended(WaitOutcome),
}

type Action = Box<dyn FnOnce() + Send>;

/// Notes the calls with the ids of the blockers, and runs an action in each.
#[derive(Default)]
struct Recorder {
    calls: Mutex<Vec<(Call, Vec<u64>)>>,
    waits: Mutex<Vec<ObservedWait>>,
    actions: Mutex<Vec<Action>>,
}

impl Recorder {
    fn note(&self, call: Call, wait: &ObservedWait) {
        let ids = wait.blockers.iter().map(|party| party.trx.0).collect();
        self.calls.lock().unwrap().push((call, ids));
        self.waits.lock().unwrap().push(wait.clone());
        let action = self.actions.lock().unwrap().pop();
        if let Some(action) = action {
            action();
        }
    }

    /// Runs these actions, one in each call.
    fn then(&self, actions: impl IntoIterator<Item = Action>) {
        let mut actions: Vec<Action> = actions.into_iter().collect();
        actions.reverse();
        *self.actions.lock().unwrap() = actions;
    }

    fn calls(&self) -> Vec<(Call, Vec<u64>)> {
        core::mem::take(&mut self.calls.lock().unwrap())
    }
}

impl LockWaitObserver for Recorder {
    fn wait_begins(&self, wait: &ObservedWait) {
        self.note(Call::Begins, wait);
    }

    fn blockers_changed(&self, wait: &ObservedWait) {
        self.note(Call::Changed, wait);
    }

    fn wait_ended(&self, wait: &ObservedWait, outcome: WaitOutcome) {
        self.note(Call::Ended(outcome), wait);
    }
}

fn observed() -> (TestLocks, Arc<Recorder>) {
    let recorder = Arc::new(Recorder::default());
    (TestLocks::observed(recorder.clone()), recorder)
}

fn table(mode: TableMode) -> LockRequest {
    LockRequest::Table(SPACE, mode)
}

const LONG: LockTimeout = LockTimeout::AtMost(Duration::from_secs(50));

#[test]
fn each_announced_wait_ends_once() {
    type Act = fn(&LockManager, &Arc<LockOwner>, &Arc<LockOwner>);
    let cases: [(WaitOutcome, Act); 5] = [
        (WaitOutcome::TimedOut, |_, _, _| ()),
        (WaitOutcome::Granted, |locks, holder, _| locks.end(holder)),
        (WaitOutcome::Interrupted, |locks, _, me| assert!(locks.interrupt(me))),
        (WaitOutcome::Interrupted, |locks, _, _| locks.stop()),
        (WaitOutcome::Deadlock, |locks, holder, _| {
            holder.add_weight(10);
            let asked = locks.grant_or_enqueue(holder, exclusive("mine"), MILLISECOND);
            assert_eq!(asked, Ok(false));
        }),
    ];
    for (expected, act) in cases {
        let (desk, recorder) = observed();
        let all @ [holder, me] = &desk.lock_owners();
        assert!(desk.ask(holder, exclusive("k")) && desk.ask(me, exclusive("mine")));
        let (locks, of_holder, of_me) = (desk.locks.clone(), holder.clone(), me.clone());
        recorder.then([Box::new(move || act(&locks, &of_holder, &of_me)) as Action]);
        let outcome = desk.locks.acquire(me, exclusive("k"), LONG);
        assert_eq!(WaitOutcome::of(&outcome), expected);
        let calls = recorder.calls();
        assert_eq!(calls, [(Call::Begins, vec![1]), (Call::Ended(expected), vec![1])], "{expected:?}");
        assert!(desk.locks.waits().iter().all(|waiting| waiting.trx != me.id()));
        desk.locks.end(me);
        desk.outcome(holder);
        desk.close(all);
    }
}

/// A request that is granted, or refused, without a wait is not announced.
#[test]
fn what_does_not_wait_is_not_announced() {
    let (desk, recorder) = observed();
    let all @ [holder, me] = &desk.lock_owners();
    assert!(desk.ask(holder, exclusive("k")) && desk.ask(me, exclusive("mine")));
    assert!(desk.try_now(me, shared("k")).is_err());
    desk.locks.acquire(me, shared("free"), LONG).unwrap();
    desk.locks.interrupt(me);
    assert_eq!(desk.locks.acquire(me, shared("k"), LONG), Err(LockError::Interrupted));
    // It closes a cycle, of which it is the victim, so it does not wait.
    holder.add_weight(10);
    assert!(!desk.ask(holder, exclusive("mine")));
    assert!(matches!(desk.locks.acquire(me, shared("k"), LONG), Err(LockError::Deadlock(_))));
    assert_eq!(recorder.calls(), []);
    desk.locks.end(me);
    assert!(desk.was_served(holder));
    desk.close(all);
}

#[test]
fn all_transactions_in_the_way_are_named() {
    let (desk, recorder) = observed();
    let owner = |n: u64| {
        desk.locks.lock_owner_with(TrxId(n), OwnerOptions { tag: 10 * n, ..OwnerOptions::default() })
    };
    let all: Vec<_> = (1..=31).map(owner).collect();
    for holder in &all[..20] {
        assert!(desk.ask(holder, shared("k")));
    }
    for waiter in &all[20..30] {
        assert!(!desk.ask(waiter, exclusive("k")));
    }
    assert!(desk.locks.acquire(&all[30], shared("k"), LONG).is_err());
    let waits = core::mem::take(&mut *recorder.waits.lock().unwrap());
    let party = |n: u64| LockParty { trx: TrxId(n), tag: 10 * n };
    let expected: Vec<_> = (21..=30).map(party).collect();
    assert_eq!((waits[0].waiter, &waits[0].blockers), (party(31), &expected), "holders share it");
    assert_eq!(waits[0].lock, Lock::Row(name(SPACE, "k"), RowMode::Shared));
    for waiter in &all[20..30] {
        desk.locks.interrupt(waiter);
        assert!(!desk.was_served(waiter));
    }
    // An upgrade that waits is a holder, too, and named once.
    assert!(!desk.ask(&all[0], exclusive("k")));
    assert!(desk.locks.acquire(&all[30], exclusive("k"), LONG).is_err());
    let expected: Vec<_> = (1..=20).map(party).collect();
    assert_eq!(recorder.waits.lock().unwrap()[0].blockers, expected);
    desk.locks.interrupt(&all[0]);
    assert!(!desk.was_served(&all[0]));
    desk.close(&all);
}

/// Each way to come into the way of a wait that has begun.
#[test]
fn a_transaction_that_comes_into_the_way_is_reported() {
    use TableMode::{Exclusive, IntentionExclusive, IntentionShared, Shared};
    type Step = fn(&TestLocks, &[Arc<LockOwner>; 3]);
    let cases: [(&str, Step, LockRequest, Step); 5] = [
        (
            "a holder gets a further mode",
            |desk, [one, two, _]| {
                assert!(desk.ask(one, table(Shared)) && desk.ask(two, table(IntentionShared)));
            },
            table(IntentionExclusive),
            |desk, [_, two, _]| assert!(desk.ask(two, table(Shared))),
        ),
        (
            "an upgrade is queued before it",
            |desk, [one, two, _]| {
                assert!(desk.ask(one, table(IntentionExclusive)) && desk.ask(two, table(IntentionShared)));
            },
            table(Shared),
            |desk, [_, two, _]| assert!(!desk.ask(two, table(Exclusive))),
        ),
        (
            "an upgrade is granted before another one",
            |desk, [one, two, me]| {
                assert!(desk.ask(one, table(Shared)) && desk.ask(one, table(IntentionExclusive)));
                assert!(desk.ask(two, table(IntentionShared)) && desk.ask(me, table(IntentionShared)));
                assert!(!desk.ask(two, table(IntentionExclusive)));
            },
            table(Shared),
            |desk, [one, two, _]| {
                desk.locks.end(one);
                assert!(desk.was_served(two));
            },
        ),
        (
            "a writer's lock is made explicit",
            |desk, [one, _, _]| assert!(desk.ask(one, shared("k"))),
            exclusive("k"),
            |desk, [_, two, _]| assert!(desk.locks.make_explicit(two, name(SPACE, "k"))),
        ),
        (
            "a range is locked",
            |desk, [one, _, _]| desk.locks.lock_range(one, SPACE, Bound::Unbounded, Bound::Unbounded),
            insert("k"),
            |desk, [_, two, _]| {
                desk.locks.lock_range(two, SPACE, Bound::Included(b"a"), Bound::Included(b"b"));
                desk.locks.lock_range(two, SPACE, Bound::Included(b"j"), Bound::Included(b"l"));
            },
        ),
    ];
    for (name, before, wanted, meanwhile) in cases {
        let (desk, recorder) = observed();
        let desk = Arc::new(desk);
        let all: [_; 3] = desk.lock_owners();
        before(&desk, &all);
        let (its_desk, owners) = (desk.clone(), all.clone());
        recorder.then([Box::new(move || meanwhile(&its_desk, &owners)) as Action]);
        let done = desk.locks.acquire(&all[2], wanted, LONG);
        assert!(matches!(done, Err(LockError::TimedOut { .. })), "{name}: {done:?}");
        let calls = recorder.calls();
        let [(Call::Begins, first), (Call::Changed, second), (Call::Ended(_), third)] = &calls[..] else {
            panic!("{name}: {calls:?}")
        };
        assert!(!first.contains(&2) && second.contains(&2) && second == third, "{name}: {calls:?}");
        if desk.locks.interrupt_wait(all[1].id()) {
            assert!(!desk.was_served(&all[1]));
        }
        desk.close(&all);
    }
}

/// A transaction that leaves the way, and one that is in it already, are not reported again.
#[test]
fn other_changes_of_the_queue_are_not_reported() {
    let (desk, recorder) = observed();
    let desk = Arc::new(desk);
    let all @ [one, two, three, me] = &desk.lock_owners();
    assert!(desk.ask(one, shared("k")) && desk.ask(two, shared("k")));
    assert!(!desk.ask(three, exclusive("k")));
    let (its_desk, owners) = (desk.clone(), all.clone());
    let meanwhile = move || {
        let [one, two, three, _] = &owners;
        its_desk.locks.end(one);
        assert!(its_desk.ask(two, shared("k")), "it holds it");
        its_desk.locks.end(two);
        assert!(its_desk.was_served(three));
    };
    recorder.then([Box::new(meanwhile) as Action]);
    assert!(desk.locks.acquire(me, exclusive("k"), LONG).is_err());
    let calls = recorder.calls();
    assert_eq!(
        calls.iter().map(|(call, _)| *call).collect::<Vec<_>>(),
        [Call::Begins, Call::Ended(WaitOutcome::TimedOut)]
    );
    assert_eq!(calls[0].1, [1, 2, 3]);
    desk.close(all);
}

/// Requests that overtake a wait which yields come into its way.
#[test]
fn a_wait_in_turns_is_observed() {
    let (desk, recorder) = observed();
    let all @ [old, new, me] = &desk.lock_owners();
    let intention = || table(TableMode::IntentionExclusive);
    assert!(desk.ask(old, intention()));
    let mut looks = 0;
    let done = desk.locks.acquire_yielding(
        me,
        (SPACE, TableMode::Shared),
        Duration::from_secs(1000),
        Duration::from_secs(1),
        &mut || {
            looks += 1;
            match looks {
                4 => assert!(desk.ask(new, intention()), "it overtakes it while it yields"),
                8 => {
                    desk.locks.end(old);
                    desk.locks.end(new);
                }
                _ => {}
            }
            Ok(false)
        },
    );
    done.unwrap();
    let calls = recorder.calls();
    assert_eq!(
        calls,
        [
            (Call::Begins, vec![1]),
            (Call::Changed, vec![1, 2]),
            (Call::Ended(WaitOutcome::Granted), vec![1, 2]),
        ]
    );
    desk.close(all);
}

#[test]
fn a_panic_of_an_observer_ends_the_wait() {
    for panics_in in 0..3 {
        let (desk, recorder) = observed();
        let desk = Arc::new(desk);
        let all @ [one, two, me] = &desk.lock_owners();
        assert!(desk.ask(one, shared("k")));
        let (its_desk, owners) = (desk.clone(), all.clone());
        let meanwhile = move || assert!(its_desk.locks.make_explicit(&owners[1], name(SPACE, "k")));
        let mut actions: Vec<Action> = vec![Box::new(meanwhile), Box::new(|| ()), Box::new(|| ())];
        let act = core::mem::replace(&mut actions[panics_in], Box::new(|| ()));
        actions[panics_in] = Box::new(move || {
            act();
            panic!("a defect");
        });
        recorder.then(actions);
        let caught = catch_unwind(AssertUnwindSafe(|| desk.locks.acquire(me, exclusive("k"), LONG)));
        assert!(caught.is_err());
        let calls = recorder.calls();
        let ended = calls.iter().filter(|(call, _)| matches!(call, Call::Ended(_))).count();
        assert_eq!((calls.len(), ended), ((panics_in + 2).min(3), 1), "{calls:?}");
        assert_eq!(desk.locks.metrics().waiting, 0);
        assert!(!crate::sync::is_inside(), "the thread still counts as inside a gate");
        desk.locks.check_invariants();
        desk.locks.end(one);
        desk.locks.end(two);
        assert!(desk.ask(me, exclusive("k")));
        desk.close(all);
    }
}

#[test]
fn the_time_of_a_callback_counts() {
    let (desk, recorder) = observed();
    let all @ [holder, me] = &desk.lock_owners();
    assert!(desk.ask(holder, exclusive("k")));
    for (callback, waited) in [(30, 50), (70, 70)] {
        let clock = desk.env.clone();
        recorder.then([Box::new(move || clock.advance(Duration::from_secs(callback))) as Action]);
        match desk.locks.acquire(me, exclusive("k"), LONG) {
            Err(LockError::TimedOut { waited: time, .. }) => assert_eq!(time, Duration::from_secs(waited)),
            done => panic!("{done:?}"),
        }
    }
    desk.close(all);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "Session taken while Names is held")]
fn an_observer_is_called_under_no_lock() {
    let (desk, _) = observed();
    let [holder, me] = &desk.lock_owners();
    assert!(desk.ask(holder, exclusive("k")));
    let _names = Held::take(Rank::Names);
    let _ = desk.locks.acquire(me, exclusive("k"), LONG);
}

/// Range locks of transactions in one ordering group do not block each other's inserts, in queues, checks and cycles.
#[test]
fn ranges_of_an_ordering_group_do_not_block_it() {
    let desk = TestLocks::new();
    let owner = |n: u64, ordering_group| {
        desk.locks.lock_owner_with(TrxId(n), OwnerOptions { ordering_group, ..OwnerOptions::default() })
    };
    let all @ [one, other, rival, free, last] =
        &[owner(1, 7), owner(2, 7), owner(3, 8), owner(4, 0), owner(5, 0)];
    desk.locks.lock_range(one, SPACE, Bound::Unbounded, Bound::Unbounded);
    let may = |me: &LockOwner| desk.locks.may_insert(me.inserter(), SPACE, b"k");
    assert!(may(one) && may(other) && !may(rival) && !may(free));
    assert!(desk.ask(other, insert("k")) && !desk.ask(rival, insert("k")));
    desk.locks.lock_range(free, OTHER, Bound::Unbounded, Bound::Unbounded);
    assert!(!desk.ask(other, LockRequest::Insert(name(OTHER, "k"))));
    assert!(!desk.ask(last, LockRequest::Insert(name(OTHER, "k"))), "no group is no group");
    // Locks of rows block within the group.
    assert!(desk.ask(one, exclusive("r")));
    assert!(matches!(desk.try_now(free, exclusive("r")), Err(LockError::Busy(_))));
    desk.locks.end(free);
    assert!(desk.was_served(other) && desk.was_served(last));
    assert!(matches!(desk.try_now(other, shared("r")), Err(LockError::Busy(_))));
    desk.locks.end(one);
    assert!(desk.was_served(rival));
    desk.close(all);
}
