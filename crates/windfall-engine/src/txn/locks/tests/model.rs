//! Tests against a model that states each rule directly and has no queues.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const LOCK_OWNERS: u64 = 5;
const KEYS: u8 = 3;
/// The ordering groups of the lock owners.
const GROUPS: [u64; LOCK_OWNERS as usize] = [0, 0, 7, 7, 8];

/// Returns whether range locks of the one do not block inserts of the other.
fn are_grouped(one: u64, other: u64) -> bool {
    GROUPS[one as usize] != 0 && GROUPS[one as usize] == GROUPS[other as usize]
}

/// Sees waits, and does nothing.
struct Idle;

impl LockWaitObserver for Idle {
    fn wait_begins(&self, _: &ObservedWait) {}
    fn blockers_changed(&self, _: &ObservedWait) {}
    fn wait_ended(&self, _: &ObservedWait, _: WaitOutcome) {}
}

/// A lockable object: the table, or a row.
type Thing = Option<u8>;

#[derive(Clone, Debug)]
enum Op {
    Ask(u64, Thing, TableMode),
    Insert(u64, u8),
    Range(u64, u8, u8),
    Explicit(u64, u8),
    Release(u64, u8),
    Ease(u64, u8),
    Expire(u64),
    Interrupt(u64),
    Forget(u64),
    Weigh(u64, u64),
    /// Ends a lock owner; the priority is that of the next one.
    End(u64, i64),
}

fn op() -> impl Strategy<Value = Op> {
    let (trx, key) = (0..LOCK_OWNERS, 0..KEYS);
    let row = prop::sample::select(vec![TableMode::Shared, TableMode::Exclusive]);
    prop_oneof![
        8 => (trx.clone(), key.clone(), row).prop_map(|(trx, key, mode)| Op::Ask(trx, Some(key), mode)),
        4 => (trx.clone(), prop::sample::select(TableMode::ALL.to_vec())).prop_map(|(trx, mode)| Op::Ask(trx, None, mode)),
        3 => (trx.clone(), key.clone()).prop_map(|(trx, key)| Op::Insert(trx, key)),
        3 => (trx.clone(), key.clone(), key.clone()).prop_map(|(trx, from, to)| Op::Range(trx, from, to)),
        3 => (trx.clone(), key.clone()).prop_map(|(trx, key)| Op::Explicit(trx, key)),
        2 => (trx.clone(), key.clone()).prop_map(|(trx, key)| Op::Release(trx, key)),
        2 => (trx.clone(), key).prop_map(|(trx, key)| Op::Ease(trx, key)),
        1 => trx.clone().prop_map(Op::Expire),
        1 => trx.clone().prop_map(Op::Interrupt),
        1 => trx.clone().prop_map(Op::Forget),
        1 => (trx.clone(), 0..3u64).prop_map(|(trx, rows)| Op::Weigh(trx, rows)),
        2 => (trx, -1..2_i64).prop_map(|(trx, priority)| Op::End(trx, priority)),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Want {
    Lock(Thing, TableMode),
    Insert(u8),
}

/// A waiter: its request, and whether it held the object when it began to wait.
#[derive(Clone, Copy, Debug)]
struct Waits {
    trx: u64,
    want: Want,
    is_upgrade: bool,
}

#[derive(Debug, Default)]
struct Model {
    held: BTreeSet<(u64, Thing, TableMode)>,
    ranges: BTreeSet<(u64, u8)>,
    /// In order of arrival.
    waits: Vec<Waits>,
    weights: [u64; LOCK_OWNERS as usize],
    /// The priorities among the members of a deadlock.
    priorities: [i64; LOCK_OWNERS as usize],
    interrupted: BTreeSet<u64>,
    /// Outcomes of waits that were not compared yet.
    outcomes: Vec<(u64, &'static str)>,
}

fn covers(held: TableMode, mode: TableMode) -> bool {
    use TableMode::{Exclusive, IntentionShared};
    held == mode || held == Exclusive || mode == IntentionShared
}

impl Model {
    fn holds(&self, trx: u64, thing: Thing) -> bool {
        self.held.iter().any(|(other, held, _)| (*other, *held) == (trx, thing))
    }

    /// Returns the transactions that block this request.
    fn blockers(&self, who: &Waits) -> BTreeSet<u64> {
        let others = match who.want {
            Want::Insert(key) => {
                let blocks = |(trx, held): &&(u64, u8)| *held == key && !are_grouped(*trx, who.trx);
                self.ranges.iter().filter(blocks).map(|(trx, _)| *trx).collect()
            }
            Want::Lock(thing, mode) => {
                let holders = self.held.iter().filter(|(_, held, m)| *held == thing && m.conflicts(mode));
                let mut all: Vec<u64> = holders.map(|(trx, ..)| *trx).collect();
                let came = self.waits.iter().position(|other| other.trx == who.trx);
                let is_before = |at: usize, other: &Waits| {
                    !who.is_upgrade && (other.is_upgrade || came.is_none_or(|came| at < came))
                };
                for (at, other) in self.waits.iter().enumerate() {
                    if let Want::Lock(its, wanted) = other.want
                        && its == thing
                        && wanted.conflicts(mode)
                        && is_before(at, other)
                    {
                        all.push(other.trx);
                    }
                }
                all
            }
        };
        others.into_iter().filter(|trx| *trx != who.trx).collect()
    }

    fn grant(&mut self, trx: u64, want: Want) {
        let Want::Lock(thing, mode) = want else { return };
        if !self.held.iter().any(|(other, held, has)| (*other, *held) == (trx, thing) && covers(*has, mode)) {
            self.held.retain(|(other, held, has)| (*other, *held) != (trx, thing) || !covers(mode, *has));
            self.held.insert((trx, thing, mode));
        }
    }

    /// Grants all requests that nothing blocks.
    fn settle(&mut self) {
        while let Some(at) = self.waits.iter().position(|who| self.blockers(who).is_empty()) {
            let who = self.waits.remove(at);
            self.grant(who.trx, who.want);
            self.outcomes.push((who.trx, "served"));
        }
    }

    fn stop(&mut self, trx: u64, why: &'static str) -> bool {
        let Some(at) = self.waits.iter().position(|who| who.trx == trx) else { return false };
        self.waits.remove(at);
        self.outcomes.push((trx, why));
        self.settle();
        true
    }

    fn weight(&self, trx: u64) -> u64 {
        // The keys of the ranges are one letter each, and adjacent ones do not touch.
        let ranges = self.ranges.iter().filter(|(other, _)| *other == trx).count();
        let held = self.held.iter().filter(|(other, ..)| *other == trx).count();
        self.weights[trx as usize] + (held + ranges) as u64
    }

    /// Returns the transactions that a transaction waits for, directly or indirectly.
    fn reach(&self, trx: u64) -> BTreeSet<u64> {
        let mut reached = BTreeSet::new();
        let mut open = vec![trx];
        while let Some(next) = open.pop() {
            if let Some(who) = self.waits.iter().find(|who| who.trx == next) {
                open.extend(self.blockers(who).into_iter().filter(|other| reached.insert(*other)));
            }
        }
        reached
    }

    fn has_cycle(&self) -> bool {
        self.waits.iter().any(|who| self.reach(who.trx).contains(&who.trx))
    }

    fn end(&mut self, trx: u64) {
        self.held.retain(|(other, ..)| *other != trx);
        self.ranges.retain(|(other, _)| *other != trx);
        self.weights[trx as usize] = 0;
        self.interrupted.remove(&trx);
        self.settle();
    }
}

/// The lock table, the model, and the current lock owner of each transaction of the model.
struct Pair {
    desk: TestLocks,
    model: Model,
    lock_owners: Vec<Arc<LockOwner>>,
    next: u64,
    /// The metrics at the last comparison.
    before: LockMetrics,
    /// For each waiter, those that the observer was given last; `None` without an observer.
    named: Option<BTreeMap<u64, BTreeSet<TrxId>>>,
}

fn key(key: u8) -> RowName {
    RowName { space: SPACE, key: [key].into() }
}

fn wanted(want: Want) -> LockRequest {
    match want {
        Want::Lock(None, mode) => LockRequest::Table(SPACE, mode),
        Want::Lock(Some(n), TableMode::Exclusive) => LockRequest::Row(key(n), RowMode::Exclusive),
        Want::Lock(Some(n), _) => LockRequest::Row(key(n), RowMode::Shared),
        Want::Insert(n) => LockRequest::Insert(key(n)),
    }
}

impl Pair {
    fn new(is_observed: bool) -> Self {
        let desk = if is_observed { TestLocks::observed(Arc::new(Idle)) } else { TestLocks::new() };
        let model = Model { priorities: [0, 0, 1, -1, -1], ..Model::default() };
        let lock_owner = |trx: u64| {
            let options = Self::options(trx, model.priorities[trx as usize]);
            desk.locks.lock_owner_with(TrxId(trx + 1), options)
        };
        let lock_owners = (0..LOCK_OWNERS).map(lock_owner).collect();
        let before = desk.locks.metrics();
        Self { desk, model, lock_owners, next: LOCK_OWNERS, before, named: is_observed.then(BTreeMap::new) }
    }

    fn options(trx: u64, deadlock_priority: i64) -> OwnerOptions {
        OwnerOptions { deadlock_priority, ordering_group: GROUPS[trx as usize], ..OwnerOptions::default() }
    }

    /// Tells the observer what a waiter must report, and checks that each transaction in its way was named.
    fn check_named(&mut self, trx: u64) {
        let Some(named) = &mut self.named else { return };
        let me = &self.lock_owners[trx as usize];
        let who = self.model.waits.iter().find(|who| who.trx == trx).expect("it waits");
        let is_new = !named.contains_key(&trx);
        if is_new || me.is_outdated() {
            let report = self.desk.locks.take_report(me).expect("it waits");
            named.insert(trx, report.blockers.iter().map(|party| party.trx).collect());
            let all: BTreeSet<u64> = self.model.blockers(who);
            let all = all.iter().map(|other| self.lock_owners[*other as usize].id()).collect();
            assert_eq!(named[&trx], all, "{who:?}");
        }
        for other in self.model.blockers(who) {
            assert!(named[&trx].contains(&self.lock_owners[other as usize].id()), "{other} before {who:?}");
        }
    }

    fn waits(&self, trx: u64) -> bool {
        self.model.waits.iter().any(|who| who.trx == trx)
    }

    /// Returns whether the lock table has chosen this one as a deadlock victim.
    fn gave_way(&self, trx: u64) -> bool {
        let me = self.lock_owners[trx as usize].id();
        let waits = self.desk.locks.waits.lock();
        let refusal = waits.all.get(&me).and_then(|wait| wait.refusal.as_ref());
        self.waits(trx) && matches!(refusal, Some(LockError::Deadlock(_)))
    }

    fn number(&self, trx: TrxId) -> u64 {
        self.lock_owners.iter().position(|lock_owner| lock_owner.id() == trx).unwrap() as u64
    }

    /// Checks that the last reported cycle is one of the model, and that its victim has the lowest priority; among
    /// equals it is the lightest, and then the root.
    fn check_cycle(&self, root: u64) {
        let cycle = self.desk.locks.last_deadlock().unwrap().cycle;
        let cycle: Vec<(u64, (i64, u64))> = cycle
            .iter()
            .map(|member| (self.number(member.trx), (member.deadlock_priority, member.weight)))
            .collect();
        for (n, (trx, order)) in cycle.iter().enumerate() {
            let who = self.model.waits.iter().find(|who| who.trx == *trx).expect("it waits");
            let (next, _) = cycle[(n + 1) % cycle.len()];
            assert!(self.model.blockers(who).contains(&next), "{trx} does not wait for {next}");
            assert_eq!(*order, (self.model.priorities[*trx as usize], self.model.weight(*trx)));
            assert!(cycle[0].1 < *order || cycle[0].1 == *order && (cycle[0].0 == root || *trx != root));
        }
        assert!(cycle.iter().any(|(trx, _)| *trx == root));
    }

    /// Checks that, for each cycle of the model, a transaction on a cycle through the root was chosen as victim.
    fn follow_deadlocks(&mut self, root: u64, before: u64) {
        let victims: Vec<u64> = (0..LOCK_OWNERS).filter(|trx| self.gave_way(*trx)).collect();
        assert_eq!(victims.len() as u64, self.desk.locks.metrics().deadlocks - before);
        if victims.len() == 1 {
            self.check_cycle(root);
        }
        let reach = |from: u64, to: u64| self.model.reach(from).contains(&to);
        // The end of a wait closes no cycle, so all of them existed at first.
        assert!(victims.iter().all(|victim| reach(root, *victim) && reach(*victim, root)), "{victims:?}");
        // Each victim waited when it was chosen, and the end of its wait may grant another request: so no request is
        // granted before all victims have stopped waiting.
        self.model.waits.retain(|who| !victims.contains(&who.trx));
        self.model.outcomes.extend(victims.iter().map(|victim| (*victim, "deadlock")));
        self.model.settle();
        assert!(!self.model.has_cycle(), "a cycle is left");
    }

    fn run(&mut self, op: &Op) {
        let locks = self.desk.locks.clone();
        match *op {
            Op::Ask(trx, thing, mode) => self.ask(trx, Want::Lock(thing, mode)),
            Op::Insert(trx, key) => self.ask(trx, Want::Insert(key)),
            Op::Range(trx, from, to) if !self.waits(trx) => {
                for n in from..=to {
                    let bound = Bound::Included(&[n][..]);
                    locks.lock_range(&self.lock_owners[trx as usize], SPACE, bound, bound);
                    self.model.ranges.insert((trx, n));
                }
            }
            Op::Explicit(trx, n) => {
                let deadlocks = locks.metrics().deadlocks;
                assert!(locks.make_explicit(&self.lock_owners[trx as usize], key(n)));
                let want = Want::Lock(Some(n), TableMode::Exclusive);
                self.model.grant(trx, want);
                if let Some(who) = self.model.waits.iter_mut().find(|who| who.trx == trx)
                    && matches!(who.want, Want::Lock(thing, _) if thing == Some(n))
                {
                    who.is_upgrade = true;
                }
                self.model.settle();
                self.follow_deadlocks(trx, deadlocks);
            }
            Op::Release(trx, n) if !self.waits(trx) => {
                locks.release_row(&self.lock_owners[trx as usize], &key(n));
                self.model.held.retain(|(other, thing, _)| (*other, *thing) != (trx, Some(n)));
                self.model.settle();
            }
            Op::Ease(trx, n) if !self.waits(trx) => {
                locks.downgrade_row(&self.lock_owners[trx as usize], &key(n), Some(RowMode::Shared));
                if self.model.held.remove(&(trx, Some(n), TableMode::Exclusive)) {
                    self.model.held.insert((trx, Some(n), TableMode::Shared));
                }
                self.model.settle();
            }
            Op::Expire(trx) if self.waits(trx) => {
                let me = &self.lock_owners[trx as usize];
                let error = locks.end_wait(me, MILLISECOND, MILLISECOND, false).unwrap_err();
                assert!(matches!(error, LockError::TimedOut { .. }));
                self.model.stop(trx, "expired");
                self.model.outcomes.retain(|outcome| *outcome != (trx, "expired"));
            }
            Op::Interrupt(trx) => {
                locks.interrupt(&self.lock_owners[trx as usize]);
                if !self.model.stop(trx, "interrupted") {
                    self.model.interrupted.insert(trx);
                }
            }
            Op::Forget(trx) => {
                self.lock_owners[trx as usize].forget_interrupts(locks.interrupts());
                self.model.interrupted.remove(&trx);
            }
            Op::Weigh(trx, rows) => {
                self.lock_owners[trx as usize].add_weight(rows);
                self.model.weights[trx as usize] += rows;
            }
            Op::End(trx, priority) if !self.waits(trx) => self.end(trx, priority),
            _ => {}
        }
    }

    fn ask(&mut self, trx: u64, want: Want) {
        if self.waits(trx) {
            return;
        }
        let is_upgrade = matches!(want, Want::Lock(thing, _) if self.model.holds(trx, thing));
        let who = Waits { trx, want, is_upgrade };
        let me = self.lock_owners[trx as usize].clone();
        let now = self.desk.env.now();
        let blockers = self.model.blockers(&who);
        if let Err(LockError::Busy(others)) = self.desk.try_now(&me, wanted(want)) {
            let others: BTreeSet<TrxId> = others.ids().iter().copied().collect();
            let expected = blockers.iter().map(|trx| self.lock_owners[*trx as usize].id()).collect();
            assert_eq!(others, expected, "{who:?} has other blockers");
        }
        let deadlocks = self.desk.locks.metrics().deadlocks;
        let found = self.desk.locks.grant_or_enqueue(&me, wanted(want), now);
        if blockers.is_empty() {
            assert_eq!(found, Ok(true), "{who:?}");
            self.model.grant(trx, want);
        } else if self.model.interrupted.remove(&trx) {
            assert_eq!(found, Err(LockError::Interrupted));
        } else {
            assert_eq!(found, Ok(false), "{who:?}");
            self.model.waits.push(who);
            self.follow_deadlocks(trx, deadlocks);
        }
    }

    /// Ends a lock owner. The next one has this priority.
    fn end(&mut self, trx: u64, priority: i64) {
        self.desk.locks.end(&self.lock_owners[trx as usize]);
        assert!(!self.desk.locks.make_explicit(&self.lock_owners[trx as usize], key(0)));
        self.model.end(trx);
        // The lock owner of the next transaction under this number of the model.
        let (id, options) = (TrxId(self.next * LOCK_OWNERS + trx), Self::options(trx, priority));
        self.lock_owners[trx as usize] = self.desk.locks.lock_owner_with(id, options);
        self.model.priorities[trx as usize] = priority;
        self.next += 1;
    }

    fn compare(&mut self) {
        for (trx, expected) in core::mem::take(&mut self.model.outcomes) {
            let outcome = match self.desk.outcome(&self.lock_owners[trx as usize]) {
                None => "waits",
                Some(Ok(())) => "served",
                Some(Err(LockError::Deadlock(_))) => "deadlock",
                Some(Err(LockError::Interrupted)) => "interrupted",
                Some(Err(_)) => "expired",
            };
            assert_eq!(outcome, expected, "lock owner {trx}");
        }
        let lock_owner = |trx: TrxId| self.number(trx);
        let held = self.desk.locks.listing().into_iter().filter_map(|held| match held.lock {
            Lock::Table(_, mode) => Some((lock_owner(held.trx), None, mode)),
            Lock::Row(row, mode) => Some((lock_owner(held.trx), Some(row.key[0]), mode.into())),
            _ => None,
        });
        assert_eq!(held.collect::<BTreeSet<_>>(), self.model.held);
        for waiting in self.desk.locks.waits() {
            let trx = lock_owner(waiting.trx);
            let who = self.model.waits.iter().find(|who| who.trx == trx).expect("it has ended");
            let behind: BTreeSet<u64> = waiting.blockers.ids().iter().map(|trx| lock_owner(*trx)).collect();
            assert_eq!(behind, self.model.blockers(who));
        }
        if let Some(named) = &mut self.named {
            named.retain(|trx, _| self.model.waits.iter().any(|who| who.trx == *trx));
        }
        for trx in (0..LOCK_OWNERS).filter(|trx| self.waits(*trx)).collect::<Vec<_>>() {
            self.check_named(trx);
        }
        let metrics = self.desk.locks.metrics();
        assert!(has_grown(&self.before, &metrics), "{metrics:?} after {:?}", self.before);
        self.before = metrics;
        assert_eq!(self.desk.locks.metrics().waiting, self.model.waits.len() as u64);
        let total: u64 =
            (0..LOCK_OWNERS).map(|trx| self.model.weight(trx) - self.model.weights[trx as usize]).sum();
        assert_eq!(self.desk.locks.metrics().held, total);
        for (trx, n) in (0..LOCK_OWNERS).flat_map(|trx| (0..KEYS).map(move |n| (trx, n))) {
            let (inserter, me) = (self.lock_owners[trx as usize].inserter(), &self.lock_owners[trx as usize]);
            let me = Some(me.id());
            let is_rival = |other: u64| other != trx && !are_grouped(other, trx);
            let may_insert = !self.model.ranges.iter().any(|(other, key)| is_rival(*other) && *key == n);
            assert_eq!(self.desk.locks.may_insert(inserter, SPACE, &[n]), may_insert);
            let may_write =
                !self.model.held.iter().any(|(other, thing, _)| *other != trx && *thing == Some(n));
            assert_eq!(self.desk.locks.may_write(me, SPACE, &[n]), may_write);
        }
    }
}

/// Returns whether no metric is smaller than before, except those of the present state.
fn has_grown(before: &LockMetrics, now: &LockMetrics) -> bool {
    let LockMetrics {
        held: _,
        waiting: _,
        waits,
        wait_time,
        longest_wait,
        wait_classes,
        timeouts,
        deadlocks,
    } = now;
    *waits >= before.waits
        && *wait_time >= before.wait_time
        && *longest_wait >= before.longest_wait
        && wait_classes.iter().zip(&before.wait_classes).all(|(now, before)| now >= before)
        && *timeouts >= before.timeouts
        && *deadlocks >= before.deadlocks
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn behaves_as_its_rules(ops in prop::collection::vec(op(), 0..60), is_observed: bool) {
        let mut pair = Pair::new(is_observed);
        for op in &ops {
            pair.run(op);
            pair.compare();
        }
        for _ in 0..LOCK_OWNERS {
            for trx in 0..LOCK_OWNERS {
                if !pair.waits(trx) {
                    pair.end(trx, 0);
                    pair.compare();
                }
            }
        }
        prop_assert!(pair.model.waits.is_empty(), "a request waits for nothing: {:?}", pair.model.waits);
    }
}
