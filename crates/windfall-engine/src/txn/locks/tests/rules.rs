//! Each rule by itself.

use std::thread;

use super::*;

#[test]
fn a_lock_does_not_conflict_with_locks_of_its_owner() {
    let desk = TestLocks::new();
    let all @ [a, b, c] = &desk.lock_owners();
    assert!(desk.ask(a, shared("k")) && desk.ask(b, shared("k")));
    assert!(desk.ask(a, shared("k")), "what is held is not waited for");
    let Err(LockError::Busy(holders)) = desk.try_now(c, exclusive("k")) else { panic!("it is free") };
    assert_eq!(holders.ids(), ids(&[1, 2]));
    assert!(desk.ask(c, exclusive("l")), "another key, another lock");
    let elsewhere = LockRequest::Row(name(OTHER, "k"), RowMode::Exclusive);
    assert!(desk.ask(c, elsewhere), "another tablespace, another lock");
    assert_eq!(desk.locks.metrics().held, 4);
    desk.close(all);
}

#[test]
fn tables_are_locked_in_four_modes() {
    let desk = TestLocks::new();
    let all @ [a, b] = &desk.lock_owners();
    for one in TableMode::ALL {
        for other in TableMode::ALL {
            let [a, b] = desk.lock_owners();
            assert!(desk.ask(&a, LockRequest::Table(SPACE, one)));
            let taken = desk.try_now(&b, LockRequest::Table(SPACE, other)).is_ok();
            assert_eq!(taken, !one.conflicts(other), "{one} and {other}");
            desk.close(&[a, b]);
        }
    }
    assert!(desk.ask(a, LockRequest::Table(SPACE, TableMode::IntentionExclusive)));
    assert!(desk.ask(a, LockRequest::Table(SPACE, TableMode::Shared)), "no other transaction has it");
    for mode in TableMode::ALL {
        let is_free = mode == TableMode::IntentionShared;
        assert_eq!(desk.try_now(b, LockRequest::Table(SPACE, mode)).is_ok(), is_free, "{mode}");
    }
    assert!(
        desk.ask(a, exclusive("k")) && desk.try_now(b, exclusive("l")).is_ok(),
        "rows are locked by themselves"
    );
    desk.close(all);
}

#[test]
fn waiting_requests_are_granted_in_the_order_of_arrival() {
    let desk = TestLocks::new();
    let all @ [a, b, c, d, e] = &desk.lock_owners();
    assert!(desk.ask(a, exclusive("k")));
    assert!(!desk.ask(b, shared("k")) && !desk.ask(c, shared("k")) && !desk.ask(d, exclusive("k")));
    assert!(!desk.ask(e, shared("k")));
    assert!([b, c, d, e].iter().all(|lock_owner| desk.outcome(lock_owner).is_none()));
    desk.locks.end(a);
    assert!(desk.was_served(b) && desk.was_served(c) && desk.outcome(d).is_none());
    desk.locks.end(b);
    assert!(desk.outcome(d).is_none());
    desk.locks.end(c);
    assert!(desk.was_served(d) && desk.outcome(e).is_none());
    desk.locks.end(d);
    assert!(desk.was_served(e));
    desk.close(all);
}

#[test]
fn an_upgrade_is_granted_before_requests_without_a_lock() {
    let desk = TestLocks::new();
    let all @ [a, b, c] = &desk.lock_owners();
    assert!(desk.ask(a, shared("k")) && desk.ask(b, shared("k")));
    assert!(!desk.ask(c, exclusive("k")) && !desk.ask(a, exclusive("k")));
    desk.locks.end(b);
    assert!(desk.was_served(a) && desk.outcome(c).is_none());
    assert!(
        !desk.locks.may_write(Some(TrxId(3)), SPACE, b"k")
            && desk.locks.may_write(Some(TrxId(1)), SPACE, b"k")
    );
    desk.locks.end(a);
    assert!(desk.was_served(c));
    desk.close(all);
}

#[test]
fn two_upgrades_of_one_row_are_a_deadlock() {
    let desk = TestLocks::new();
    let all @ [a, b] = &desk.lock_owners();
    assert!(desk.ask(a, shared("k")) && desk.ask(b, shared("k")));
    assert!(!desk.ask(a, exclusive("k")) && !desk.ask(b, exclusive("k")));
    let Some(Err(LockError::Deadlock(others))) = desk.outcome(b) else { panic!("no deadlock") };
    assert_eq!(others.ids(), ids(&[1]), "among equals, the one that has closed the cycle");
    assert!(desk.outcome(a).is_none(), "it waits until the other one has ended");
    desk.locks.end(b);
    assert!(desk.was_served(a));
    assert_eq!(desk.locks.metrics().deadlocks, 1);
    desk.close(all);
}

#[test]
fn the_lightest_transaction_of_a_deadlock_is_the_victim() {
    let desk = TestLocks::new();
    let all @ [a, b, c] = &desk.lock_owners();
    a.add_weight(5);
    c.add_weight(7);
    for (lock_owner, key) in [(a, "a"), (b, "b"), (c, "c")] {
        assert!(desk.ask(lock_owner, exclusive(key)));
    }
    assert!(desk.ask(b, LockRequest::Table(SPACE, TableMode::IntentionExclusive)));
    assert!(!desk.ask(a, exclusive("b")) && !desk.ask(b, shared("c")));
    assert!(desk.locks.last_deadlock().is_none());
    assert!(!desk.ask(c, exclusive("a")));
    let Some(Err(LockError::Deadlock(others))) = desk.outcome(b) else { panic!("another one gave way") };
    assert_eq!(others.ids(), ids(&[3, 1]));
    assert!(desk.outcome(a).is_none() && desk.outcome(c).is_none());
    let deadlock = desk.locks.last_deadlock().unwrap();
    assert_eq!(deadlock.victim(), Some(TrxId(2)));
    let weights: Vec<(u64, u64)> = deadlock.cycle.iter().map(|b| (b.trx.0, b.weight)).collect();
    assert_eq!(weights, [(2, 2), (3, 8), (1, 6)]);
    let summary = "a cycle of 3 transactions, of which the first was rolled back:\n  \
                transaction 2 (weight 2) waited for row \"c\" of tablespace 20, shared, after transaction 3, \
                which held row \"c\" of tablespace 20, exclusive\n  \
                transaction 3 (weight 8) waited for row \"a\" of tablespace 20, exclusive, after transaction 1, \
                which held row \"a\" of tablespace 20, exclusive\n  \
                transaction 1 (weight 6) waited for row \"b\" of tablespace 20, exclusive, after transaction 2, \
                which held row \"b\" of tablespace 20, exclusive";
    assert_eq!(deadlock.to_string(), summary);
    desk.locks.end(b);
    assert!(desk.was_served(a));
    desk.locks.end(a);
    assert!(desk.was_served(c));
    desk.close(all);
}

/// For each order of priorities: three owners of different weights wait in a cycle.
#[test]
fn of_the_lowest_priority_the_lightest_is_the_victim() {
    let weights = [5, 1, 3];
    for priorities in [[0, 0, 0], [-1, 0, 0], [0, 0, -1], [1, 2, 2], [-7, 3, -7], [i64::MIN, i64::MAX, 0]] {
        for root in 0..3 {
            let desk = TestLocks::new();
            let all = desk.lock_owners_with(priorities);
            let keys = ["a", "b", "c"];
            for ((lock_owner, key), weight) in all.iter().zip(keys).zip(weights) {
                lock_owner.add_weight(weight);
                assert!(desk.ask(lock_owner, exclusive(key)));
            }
            for n in [1, 2, 0].map(|n| (root + n) % 3) {
                assert!(!desk.ask(&all[n], exclusive(keys[(n + 1) % 3])));
            }
            let lowest = *priorities.iter().min().unwrap();
            let victim = (0..3).filter(|n| priorities[*n] == lowest).min_by_key(|n| weights[*n]).unwrap();
            for (n, lock_owner) in all.iter().enumerate() {
                let outcome = desk.outcome(lock_owner);
                let is_victim = matches!(outcome, Some(Err(LockError::Deadlock(_))));
                assert_eq!(is_victim, n == victim, "{priorities:?}, closed by {root}: {n}, {outcome:?}");
            }
            let deadlock = desk.locks.last_deadlock().unwrap();
            assert_eq!(deadlock.victim(), Some(all[victim].id()));
            let listed =
                |member: &DeadlockMember| priorities[member.trx.0 as usize - 1] == member.deadlock_priority;
            assert!(deadlock.cycle.iter().all(listed), "{deadlock:?}");
            let is_named = deadlock.to_string().contains(&format!("priority {lowest})"));
            assert_eq!(is_named, lowest != 0, "{deadlock}");
            // The others proceed, one after the other.
            let [first, last] = [&all[(victim + 2) % 3], &all[(victim + 1) % 3]];
            desk.locks.end(&all[victim]);
            assert!(desk.was_served(first) && desk.outcome(last).is_none());
            desk.locks.end(first);
            assert!(desk.was_served(last));
            desk.close(&all);
        }
    }
}

/// Closes two cycles by one request of `a`, whose members `others` are the victims.
fn close_two_cycles(desk: &TestLocks, a: &Arc<LockOwner>, others: [&Arc<LockOwner>; 2]) {
    assert!(desk.ask(a, exclusive("a")));
    assert!(others.iter().all(|other| desk.ask(other, shared("k"))));
    assert!(others.iter().all(|other| !desk.ask(other, shared("a"))));
    assert!(!desk.ask(a, exclusive("k")), "two wait for it, and it waits for both");
    for lock_owner in others {
        assert!(matches!(desk.outcome(lock_owner), Some(Err(LockError::Deadlock(_)))));
    }
}

/// Several owners that are part of no other cycle may be victims of one request.
#[test]
fn a_request_with_a_high_priority_ends_the_waits_of_all_in_its_way() {
    let desk = TestLocks::new();
    let all @ [a, b, c] = &desk.lock_owners_with([1, 0, -1]);
    b.add_weight(100);
    close_two_cycles(&desk, a, [b, c]);
    desk.locks.end(b);
    desk.locks.end(c);
    assert!(desk.was_served(a));
    desk.close(all);
}

#[test]
fn a_deadlock_may_involve_the_order_of_a_queue() {
    let desk = TestLocks::new();
    let all @ [a, b, c] = &desk.lock_owners();
    assert!(desk.ask(a, shared("k")) && desk.ask(c, exclusive("l")));
    assert!(!desk.ask(b, exclusive("k")), "it waits for the first");
    assert!(!desk.ask(c, shared("k")), "it waits for the second, to be fair");
    assert!(!desk.ask(a, shared("l")), "and the first for the third");
    assert!(matches!(desk.outcome(b), Some(Err(LockError::Deadlock(_)))), "it has nothing to lose");
    assert!(desk.was_served(c), "no request is before it any more");
    let summary = desk.locks.last_deadlock().unwrap().to_string();
    assert!(summary.contains("after transaction 2, which was before it in the queue"), "{summary}");
    desk.locks.end(c);
    assert!(desk.was_served(a));
    desk.close(all);
}

#[test]
fn every_deadlock_that_a_wait_closes_is_broken() {
    let desk = TestLocks::new();
    let all @ [a, b, c] = &desk.lock_owners();
    a.add_weight(10);
    close_two_cycles(&desk, a, [b, c]);
    assert_eq!(desk.locks.metrics().deadlocks, 2);
    desk.locks.end(b);
    assert!(desk.outcome(a).is_none());
    desk.locks.end(c);
    assert!(desk.was_served(a));
    desk.close(all);
}

#[test]
fn the_lock_of_a_writer_is_made_explicit_until_it_ends() {
    let desk = TestLocks::new();
    let all @ [a, b] = &desk.lock_owners();
    assert!(desk.locks.may_write(None, SPACE, b"k"));
    assert!(desk.locks.make_explicit(a, name(SPACE, "k")) && desk.locks.make_explicit(a, name(SPACE, "k")));
    assert_eq!(desk.locks.metrics().held, 1);
    assert!(desk.ask(a, exclusive("k")) && !desk.ask(b, exclusive("k")));
    desk.locks.end(a);
    assert!(desk.was_served(b));
    assert!(!desk.locks.make_explicit(a, name(SPACE, "k")), "it has ended: the row must be read again");
    desk.close(all);
}

#[test]
fn a_request_too_late_for_a_writer_is_released_or_waits() {
    let desk = TestLocks::new();
    let all @ [writer, late] = &desk.lock_owners();
    // It is granted the row although another transaction has written it already, and finds that out when it reads the
    // row.
    assert!(desk.ask(late, exclusive("k")));
    assert!(desk.locks.make_explicit(writer, name(SPACE, "k")));
    assert!(
        !desk.locks.may_write(Some(writer.id()), SPACE, b"k")
            && !desk.locks.may_write(Some(late.id()), SPACE, b"k")
    );
    assert!(!desk.ask(writer, exclusive("k")), "they are not granted the row together");
    desk.locks.release_row(late, &name(SPACE, "k"));
    assert!(desk.was_served(writer) && desk.locks.may_write(Some(writer.id()), SPACE, b"k"));
    assert!(!desk.ask(late, exclusive("k")));
    desk.locks.end(writer);
    assert!(desk.was_served(late));
    desk.close(all);
}

#[test]
fn a_lock_that_is_made_explicit_may_cause_a_deadlock() {
    let desk = TestLocks::new();
    let all @ [a, b, c] = &desk.lock_owners();
    assert!(desk.ask(b, exclusive("b")) && desk.ask(c, shared("k")));
    assert!(!desk.ask(b, exclusive("k")), "it waits for the third");
    assert!(!desk.ask(a, exclusive("b")), "and the first for it");
    // The third has read the row after the first had written it.
    assert!(desk.locks.make_explicit(a, name(SPACE, "k")));
    let gave_way =
        [a, b].map(|lock_owner| matches!(desk.outcome(lock_owner), Some(Err(LockError::Deadlock(_)))));
    assert_eq!(gave_way, [true, false], "of equals, the one from which the cycle was found");
    desk.locks.end(c);
    assert!(desk.outcome(b).is_none(), "the writer of the row has not ended");
    desk.locks.end(a);
    assert!(desk.was_served(b));
    desk.close(all);
}

#[test]
fn a_writer_queued_for_its_own_row_is_served_first() {
    let desk = TestLocks::new();
    let all @ [late, other, writer] = &desk.lock_owners();
    assert!(
        desk.ask(late, exclusive("k"))
            && !desk.ask(other, exclusive("k"))
            && !desk.ask(writer, exclusive("k"))
    );
    assert!(desk.locks.make_explicit(writer, name(SPACE, "k")));
    assert!(desk.locks.last_deadlock().is_none());
    desk.locks.release_row(late, &name(SPACE, "k"));
    assert!(desk.was_served(writer) && desk.outcome(other).is_none());
    desk.locks.end(writer);
    assert!(desk.was_served(other));
    desk.close(all);
}

#[test]
fn a_range_lock_blocks_inserts_of_other_owners() {
    let desk = TestLocks::new();
    let all @ [a, b, c] = &desk.lock_owners();
    let range = |me, from: &str, to: &str| {
        desk.locks.lock_range(me, SPACE, Bound::Included(from.as_bytes()), Bound::Excluded(to.as_bytes()));
    };
    let may = |me: &Arc<LockOwner>, key: &str| desk.locks.may_insert(Some(me.id()), SPACE, key.as_bytes());
    assert!(desk.locks.may_insert(None, SPACE, b"d"));
    range(a, "b", "f");
    range(b, "e", "h");
    assert!(may(a, "d") && !may(b, "d") && !may(c, "e") && may(c, "h") && may(c, "a"));
    assert!(!desk.locks.may_insert(None, SPACE, b"d") && desk.locks.may_insert(None, OTHER, b"d"));
    assert!(desk.ask(c, exclusive("d")), "a range is no lock on rows");
    assert!(!desk.ask(c, insert("e")), "two keep it out");
    desk.locks.end(a);
    assert!(desk.outcome(c).is_none());
    range(b, "x", "y");
    desk.locks.end(b);
    assert!(desk.was_served(c) && desk.locks.listing().len() == 1, "it has left no lock");
    assert!(may(c, "e"));
    desk.close(all);
}

#[test]
fn inserts_wait_for_ranges_and_not_for_each_other() {
    let desk = TestLocks::new();
    let all @ [a, b, c] = &desk.lock_owners();
    desk.locks.lock_range(a, SPACE, Bound::Unbounded, Bound::Included(b"m"));
    assert!(!desk.ask(b, insert("k")) && desk.ask(c, insert("n")) && !desk.ask(c, insert("k")));
    assert_eq!(desk.locks.waits()[1].blockers.ids(), ids(&[1]));
    // A range that is added while others wait blocks them, too.
    desk.locks.lock_range(a, SPACE, Bound::Excluded(b"m"), Bound::Unbounded);
    assert_eq!(desk.locks.metrics().held, 1, "they touch, and are one");
    desk.locks.end(a);
    assert!(desk.was_served(b) && desk.was_served(c));
    desk.close(all);
}

#[test]
fn two_inserts_into_two_locked_ranges_are_a_deadlock() {
    let desk = TestLocks::new();
    let all @ [a, b] = &desk.lock_owners();
    for lock_owner in [a, b] {
        desk.locks.lock_range(lock_owner, SPACE, Bound::Included(b"b"), Bound::Included(b"d"));
    }
    b.add_weight(1);
    assert!(!desk.ask(a, insert("c")) && !desk.ask(b, insert("c")));
    assert!(matches!(desk.outcome(a), Some(Err(LockError::Deadlock(_)))) && desk.outcome(b).is_none());
    let summary = desk.locks.last_deadlock().unwrap().to_string();
    assert!(summary.contains("waited for key \"c\" of tablespace 20, to insert it"), "{summary}");
    assert!(summary.contains("held keys from \"b\" to before \"d\\x00\" of tablespace 20"), "{summary}");
    desk.locks.end(a);
    assert!(desk.was_served(b));
    desk.close(all);
}

/// Such a call probably waits until its timeout: it may have been meant to be part of that transaction.
#[test]
fn a_call_outside_of_transactions_learns_of_a_holder_of_its_own_thread() {
    let desk = TestLocks::new();
    let all @ [own, other, me] = &desk.lock_owners();
    own.begin_call(desk.locks.begin_call());
    thread::scope(|scope| {
        scope.spawn(|| other.begin_call(desk.locks.begin_call())).join().unwrap();
    });
    assert!(desk.ask(own, shared("a")) && desk.ask(other, shared("a")) && desk.ask(other, shared("b")));
    desk.locks.lock_range(own, SPACE, Bound::Included(b"m"), Bound::Unbounded);
    let named = |wanted| match desk.try_now(me, wanted) {
        Err(LockError::Busy(blockers)) => blockers.own(),
        taken => panic!("{taken:?}"),
    };
    assert_eq!(named(exclusive("a")), Some(own.id()), "it holds the row together with another one");
    assert_eq!(named(insert("z")), Some(own.id()), "it holds the range");
    assert_eq!(named(exclusive("b")), None, "the holder made its last call on another thread");
    assert!(!desk.ask(own, exclusive("b")));
    assert_eq!(named(exclusive("b")), None, "it only waits for the row");
    assert!(desk.locks.interrupt_wait(own.id()) && desk.outcome(own).is_some());
    // A wait that has timed out says the same.
    assert!(!desk.ask(me, exclusive("a")));
    let now = desk.env.now();
    match desk.locks.end_wait(me, now, now, false) {
        Err(LockError::TimedOut { blockers, .. }) => assert_eq!(blockers.own(), Some(own.id())),
        outcome => panic!("{outcome:?}"),
    }
    own.forget_thread();
    assert_eq!(named(exclusive("a")), None, "its transaction accepts no more calls");
    own.begin_call(desk.locks.begin_call());
    me.begin_call(desk.locks.begin_call());
    assert_eq!(named(exclusive("a")), None, "a call of a transaction is part of that one");
    desk.close(all);
}

#[test]
fn a_row_may_be_given_back_before_the_end() {
    let desk = TestLocks::new();
    let all @ [a, b] = &desk.lock_owners();
    assert!(desk.ask(a, exclusive("k")) && desk.ask(a, exclusive("l")) && !desk.ask(b, exclusive("k")));
    desk.locks.release_row(b, &name(SPACE, "k"));
    assert!(desk.outcome(b).is_none(), "a release without the lock has no effect");
    assert!(desk.locks.holds_any(a) && !desk.locks.holds_any(b), "a waiter holds nothing");
    desk.locks.release_row(a, &name(SPACE, "k"));
    assert!(desk.was_served(b) && desk.try_now(b, shared("l")).is_err());
    assert!(desk.locks.holds_any(a) && desk.locks.holds_any(b));
    desk.locks.release_row(b, &name(SPACE, "k"));
    assert!(!desk.locks.holds_any(b), "it has released its only lock");
    desk.close(all);
}

#[test]
fn held_and_requested_locks_are_listed() {
    let desk = TestLocks::new();
    let all @ [a, b, c] = &desk.lock_owners();
    assert!(
        desk.ask(a, LockRequest::Table(SPACE, TableMode::IntentionExclusive))
            && desk.ask(a, exclusive("k\n"))
    );
    assert!(desk.ask(b, shared("j")));
    desk.locks.lock_range(b, SPACE, Bound::Excluded(b"j"), Bound::Unbounded);
    desk.env.advance(MILLISECOND);
    assert!(!desk.ask(b, shared("k\n")));
    desk.env.advance(MILLISECOND);
    assert!(!desk.ask(c, exclusive("k\n")));
    let summary: Vec<String> =
        desk.locks.listing().iter().map(|held| format!("{}: {}", held.trx, held.lock)).collect();
    assert_eq!(
        summary,
        [
            "1: table of tablespace 20, intention exclusive",
            "2: row \"j\" of tablespace 20, shared",
            "1: row \"k\\n\" of tablespace 20, exclusive",
            "2: keys from \"j\\x00\" on of tablespace 20, against inserts",
        ]
    );
    let waits = desk.locks.waits();
    let summary = |waiting: &Waiting| (waiting.trx.0, waiting.started_at, waiting.blockers.ids().to_vec());
    let expected = [(2, MILLISECOND, ids(&[1])), (3, 2 * MILLISECOND, ids(&[1, 2]))];
    assert_eq!(waits.iter().map(summary).collect::<Vec<_>>(), expected);
    assert_eq!(waits[0].lock, Lock::Row(name(SPACE, "k\n"), RowMode::Shared));
    let metrics = desk.locks.metrics();
    assert_eq!((metrics.held, metrics.waiting, metrics.waits), (4, 2, 2));
    desk.locks.end(a);
    assert!(desk.was_served(b));
    desk.locks.end(b);
    assert!(desk.was_served(c));
    assert_eq!(desk.locks.metrics().waiting, 0);
    desk.close(all);
}

#[test]
fn an_end_gives_back_any_number_of_rows() {
    let desk = TestLocks::new();
    let all @ [a, b, c] = &desk.lock_owners();
    let rows = 1000;
    let row = |n: usize| exclusive(&format!("{n:04}"));
    for n in 0..rows {
        assert!(desk.ask(a, row(n)));
    }
    assert!(desk.ask(a, LockRequest::Table(OTHER, TableMode::Exclusive)));
    assert!(!desk.ask(b, row(0)) && !desk.ask(c, row(rows - 1)));
    let steps = || desk.locks.shards.steps().iter().sum::<u64>();
    let before = steps();
    desk.locks.end(a);
    assert_eq!(steps() - before, rows as u64 + 1, "a step for each row, and one for the table");
    assert!(desk.was_served(b) && desk.was_served(c));
    assert!(!desk.locks.make_explicit(a, name(SPACE, "new")), "it has ended");
    desk.close(all);
}
