//! Key latches: calls that change the same row take turns.
//!
//! **Purpose.** Two calls that change one row, or compete for one key of a unique index, run one after the other. A key
//! latch is held from before the first read of the row until the call has ended. Locks that a transaction holds until
//! its end are in the lock table.
//!
//! **Invariants.** A latch is named by tablespace and hash of the key (by type), so two keys may share one, which costs
//! only time. Waiters are served in order of arrival (test: `waiters_are_served_in_order_of_arrival`). An interrupt
//! ends a wait, because the holder may be a call that waits for the source of its value; the waiter then keeps no place
//! in the queue, and the others keep theirs (test: `a_waiter_that_is_interrupted_leaves_the_queue`). A call latches its
//! row first and then, in one sorted acquisition, the keys of unique indexes (checked by
//! `locks/key_latch.rs::latch_more`). Rows and index keys are in different tablespaces, so there is no deadlock
//! (checked by `locks/key_latch.rs::latch_more`). No thread waits for a key latch while it holds a mutex or latch of
//! another kind: the rank is asserted (checked by `sync/lock.rs::take`).
//!
//! *Nested calls.* A call that is made from within another call, by the source of a value, is refused if a call holds
//! the latch or is queued for it (test: `a_call_inside_another_call_waits_for_workers_only`). So it never waits for
//! another call, which may be waiting for a latch of the outer one. It does wait for a *worker*, which is purge or the
//! builder of a new secondary tree (test: `a_call_inside_another_call_waits_for_workers_only`), and that wait ends:
//! - A worker waits for no key latch while it holds one: purge only tries ([`KeyLatches::try_latch`]) (test:
//!   `a_record_of_a_locked_row_is_deferred_for_a_check`), and a worker that needs the latches of two rows releases the
//!   one before it waits for the other ([`KeyLatches::latch_all`]) (test:
//!   `a_worker_holds_no_latch_while_it_waits_for_one`).
//! - While it holds such a latch a worker does a bounded amount of work (test:
//!   `a_step_frees_a_bounded_number_of_pages`), and waits at most for page latches and frames, because it has reserved
//!   log before, and waits for no gate, no metadata lock and no statement (test:
//!   `a_call_from_within_another_one_waits_for_purge`). No source is read under a page latch, so the holder of a page
//!   latch makes progress (test: `a_call_from_within_another_one_waits_for_purge`).
//! - Only workers are queued before the call, to which the same applies, and calls that arrive later are queued after
//!   it (tests: `waiters_are_served_in_order_of_arrival`, `a_call_inside_another_call_waits_for_workers_only`).

use std::hash::{BuildHasher, RandomState};

use smallvec::SmallVec;

use crate::{
    env::Env,
    error::{Error, LockError, Owner, Result, RowHolder, UsageError},
    ids::SpaceId,
    sync::{Arc, Event, Held, InterruptibleWait, Mutex, Rank, Wake, is_nested},
};

const SHARDS: usize = 64;

/// The name of a key latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LatchName {
    space: SpaceId,
    hash: u64,
}

/// The kind of thread that requests or holds a latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Call,
    /// A worker, which waits for no key latch while it holds this one.
    Worker,
}

/// The FIFO queue of a latch: the holder and the waiters.
#[derive(Debug, Default)]
struct LatchQueue {
    serving: u64,
    next: u64,
    /// The number of calls in the queue, including the one that is served.
    calls: u64,
}

impl LatchQueue {
    /// Appends a thread to the queue. Returns the ticket number with which it is served.
    fn enqueue(&mut self, by: By) -> u64 {
        self.calls += u64::from(by == By::Call);
        self.next += 1;
        self.next - 1
    }

    /// Removes the thread that was served. Returns whether the queue is empty.
    fn dequeue(&mut self, by: By) -> bool {
        debug_assert!(self.serving < self.next, "a thread leaves a queue in which none is served");
        debug_assert!(
            (u64::from(by == By::Call)..=self.next - self.serving).contains(&self.calls),
            "the queue counts other calls than it has"
        );
        self.calls -= u64::from(by == By::Call);
        self.serving += 1;
        self.serving == self.next
    }
}

/// The latches of a shard that are held, without an order.
#[derive(Debug, Default)]
struct Queues {
    held: Vec<(LatchName, LatchQueue)>,
    /// The tickets of threads that have left their queue before they were served.
    left: Vec<(LatchName, u64)>,
}

impl Queues {
    fn place(&self, name: LatchName) -> Option<usize> {
        self.held.iter().rposition(|(other, _)| *other == name)
    }

    fn get(&self, name: LatchName) -> Option<&LatchQueue> {
        self.place(name).map(|at| &self.held[at].1)
    }

    /// Appends a thread to the queue of a latch. Returns the ticket number with which it is served.
    fn enqueue(&mut self, name: LatchName, by: By) -> u64 {
        let at = self.place(name).unwrap_or_else(|| {
            self.held.push((name, LatchQueue::default()));
            self.held.len() - 1
        });
        self.held[at].1.enqueue(by)
    }

    /// Removes the thread that was served from the queue of a latch.
    fn dequeue(&mut self, name: LatchName, by: By) {
        let at = self.place(name);
        debug_assert!(at.is_some(), "a key latch is released that is not held");
        if let Some(at) = at
            && (self.held[at].1.dequeue(by) || self.pass_over_left(at))
        {
            self.held.swap_remove(at);
        }
    }

    /// Removes a thread from the queue of a latch before it is served. Returns `false` if it is served now.
    fn leave(&mut self, name: LatchName, ticket: u64, by: By) -> bool {
        let at = self.place(name).expect("a thread waits in the queue");
        let queue = &mut self.held[at].1;
        if queue.serving == ticket {
            return false;
        }
        debug_assert!(
            (queue.serving..queue.next).contains(&ticket),
            "a thread leaves a queue in which it is not"
        );
        queue.calls -= u64::from(by == By::Call);
        self.left.push((name, ticket));
        true
    }

    /// Passes over the threads that have left a queue and would be served next. Returns whether the queue is empty.
    fn pass_over_left(&mut self, at: usize) -> bool {
        let (name, queue) = &mut self.held[at];
        while let Some(left) = self.left.iter().position(|left| *left == (*name, queue.serving)) {
            self.left.swap_remove(left);
            queue.serving += 1;
        }
        let is_empty = queue.serving == queue.next;
        debug_assert!(
            !is_empty || self.left.iter().all(|(left, _)| left != name),
            "a queue is empty, and a thread that has left it is not passed over"
        );
        is_empty
    }
}

#[derive(Debug)]
struct Shard {
    /// Few: those that calls hold or wait for at this moment.
    queues: Mutex<Queues>,
    moved: Event,
}

/// Wakes the threads that wait in a shard.
#[derive(Debug)]
struct WakeShard {
    shards: Arc<[Shard]>,
    at: usize,
}

impl Wake for WakeShard {
    fn wake(&self) {
        self.shards[self.at].moved.notify();
    }
}

/// The latches that are held or waited for.
#[derive(Debug)]
pub(crate) struct KeyLatches {
    shards: Arc<[Shard]>,
    hasher: RandomState,
    env: Arc<dyn Env>,
}

/// Held latches, which are released on drop.
#[derive(Debug)]
pub(crate) struct KeyLatchGuard<'a> {
    latches: &'a KeyLatches,
    by: By,
    held: SmallVec<[LatchName; 2]>,
}

fn busy() -> Error {
    UsageError::WaitInCall { owner: Owner::Unknown, holder: RowHolder::Call }.into()
}

impl KeyLatches {
    /// Returns a table without latches.
    pub(crate) fn new(env: Arc<dyn Env>) -> Self {
        let shard = |_| Shard { queues: Mutex::new(Rank::Leaf, Queues::default()), moved: Event::new() };
        Self { shards: (0..SHARDS).map(shard).collect(), hasher: RandomState::new(), env }
    }

    /// Returns the name of the latch of a key.
    pub(crate) fn name(&self, space: SpaceId, key: &[u8]) -> LatchName {
        LatchName { space, hash: self.hasher.hash_one(key) }
    }

    fn shard_number(name: LatchName) -> usize {
        (name.hash ^ name.space.0) as usize % SHARDS
    }

    fn shard(&self, name: LatchName) -> &Shard {
        &self.shards[Self::shard_number(name)]
    }

    /// Acquires the latch of a call's row. A nested call waits for no other call.
    ///
    /// # Errors
    /// [`UsageError::WaitInCall`] if it would have to wait and must not; [`LockError::Interrupted`].
    pub(crate) fn latch_in_call(&self, name: LatchName) -> Result<KeyLatchGuard<'_>> {
        let mut guard = KeyLatchGuard { latches: self, by: By::Call, held: SmallVec::new() };
        guard.acquire_in_call(name)?;
        Ok(guard)
    }

    /// Acquires the latches of several rows for a worker, which holds none of them while it waits for another.
    ///
    /// # Errors
    /// [`LockError::Interrupted`], if the worker runs on the thread of a statement.
    pub(crate) fn latch_all(&self, mut names: Vec<LatchName>) -> Result<KeyLatchGuard<'_>, LockError> {
        names.sort_unstable();
        names.dedup();
        let mut awaited = names.first().copied();
        loop {
            let mut guard =
                KeyLatchGuard { latches: self, by: By::Worker, held: SmallVec::with_capacity(names.len()) };
            if let Some(name) = awaited {
                guard.acquire(name, true)?;
            }
            let others = names.iter().filter(|name| Some(**name) != awaited);
            awaited = others.copied().find(|name| !guard.try_acquire(*name));
            if awaited.is_none() {
                debug_assert!(guard.held.len() == names.len(), "a worker has all latches that it requested");
                return Ok(guard);
            }
        }
    }

    /// Acquires a latch for a worker, if it is free.
    pub(crate) fn try_latch(&self, name: LatchName) -> Option<KeyLatchGuard<'_>> {
        let mut guard = KeyLatchGuard { latches: self, by: By::Worker, held: SmallVec::new() };
        guard.try_acquire(name).then_some(guard)
    }
}

impl KeyLatchGuard<'_> {
    /// Acquires more latches for a call, in other tablespaces than the latches that it holds.
    ///
    /// # Errors
    /// As [`KeyLatches::latch_in_call`].
    pub(crate) fn latch_more(&mut self, mut names: Vec<LatchName>) -> Result<()> {
        names.sort_unstable();
        names.dedup();
        debug_assert!(self.by == By::Call, "a worker acquires no latch while it holds one");
        debug_assert!(names.iter().all(|name| !self.held.contains(name)), "a call takes a latch once");
        debug_assert!(
            names.iter().all(|name| self.held.iter().all(|held| held.space != name.space)),
            "a call takes more latches in a tablespace in which it holds one"
        );
        names.into_iter().try_for_each(|name| self.acquire_in_call(name))
    }

    fn try_acquire(&mut self, name: LatchName) -> bool {
        let mut queues = self.latches.shard(name).queues.lock();
        let is_free = queues.get(name).is_none();
        if is_free {
            queues.enqueue(name, self.by);
            self.held.push(name);
        }
        is_free
    }

    fn acquire_in_call(&mut self, name: LatchName) -> Result<()> {
        if self.acquire(name, !is_nested())? { Ok(()) } else { Err(busy()) }
    }

    /// Queues for a latch and waits to be served, unless it would have to wait for a call and must not. Returns whether
    /// the latch was acquired.
    fn acquire(&mut self, name: LatchName, waits_for_calls: bool) -> Result<bool, LockError> {
        drop(Held::take(Rank::Row));
        let shard = self.latches.shard(name);
        let ticket = {
            let mut queues = shard.queues.lock();
            if !waits_for_calls && queues.get(name).is_some_and(|queue| queue.calls > 0) {
                return Ok(false);
            }
            queues.enqueue(name, self.by)
        };
        if ticket > 0 {
            self.await_turn(name, ticket)?;
        }
        self.held.push(name);
        Ok(true)
    }

    /// Waits until a thread in the queue is served.
    #[cold]
    fn await_turn(&self, name: LatchName, ticket: u64) -> Result<(), LockError> {
        let (latches, shard) = (self.latches, self.latches.shard(name));
        let is_served = || shard.queues.lock().get(name).is_some_and(|queue| queue.serving == ticket);
        if is_served() {
            return Ok(());
        }
        let at = KeyLatches::shard_number(name);
        let waiting =
            InterruptibleWait::begin_by(|| Arc::new(WakeShard { shards: latches.shards.clone(), at }));
        latches.env.wait(&shard.moved, &mut || is_served() || waiting.is_interrupted());
        // It may have been served since.
        if waiting.is_interrupted() && shard.queues.lock().leave(name, ticket, self.by) {
            return Err(LockError::Interrupted);
        }
        debug_assert!(is_served(), "a thread that was not served has a latch");
        Ok(())
    }
}

impl Drop for KeyLatchGuard<'_> {
    fn drop(&mut self) {
        for name in self.held.drain(..).rev() {
            let shard = self.latches.shard(name);
            let mut queues = shard.queues.lock();
            queues.dequeue(name, self.by);
            drop(queues);
            shard.moved.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::{
        env::RealEnv,
        sync::{
            Gate, Interrupt,
            atomic::{
                AtomicBool, AtomicU64,
                Ordering::{Relaxed, SeqCst},
            },
        },
    };

    #[test]
    fn calls_that_change_one_row_take_turns() {
        let latches = Arc::new(KeyLatches::new(Arc::new(RealEnv::default())));
        let sum = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..4u64)
            .map(|n| {
                let (latches, sum) = (latches.clone(), sum.clone());
                thread::spawn(move || {
                    for round in 0..2000u64 {
                        let key = [(round + n) as u8 % 3];
                        let mut guard = latches.latch_in_call(latches.name(SpaceId(20), &key)).unwrap();
                        let more = [1u8, 2, 3].map(|k| latches.name(SpaceId(21), &[k]));
                        guard.latch_more(more.to_vec()).unwrap();
                        let before = sum.load(Relaxed);
                        sum.store(before + 1, Relaxed);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(sum.load(Relaxed), 8000);
        assert!(latches.shards.iter().all(Shard::is_empty));
    }

    fn latches() -> KeyLatches {
        KeyLatches::new(Arc::new(RealEnv::default()))
    }

    /// Runs a closure as the source of a value does: inside two gates.
    fn nested<T>(run: impl FnOnce() -> T) -> T {
        let gates = [Gate::new(), Gate::new()];
        let _inside = gates.each_ref().map(Gate::enter_here);
        run()
    }

    #[test]
    fn a_call_inside_another_call_waits_for_workers_only() {
        let latches = latches();
        let names = [1u8, 2].map(|key| latches.name(SpaceId(20), &[key]));
        // A worker holds the latch: it is released soon.
        let worker = latches.try_latch(names[0]).unwrap();
        let waited = AtomicBool::new(false);
        thread::scope(|scope| {
            let call = scope.spawn(|| {
                let guard = nested(|| latches.latch_in_call(names[0]));
                (guard.map(drop), waited.load(SeqCst))
            });
            // The call is queued after the worker, or will be; and a nested call must not queue after a call.
            while !latches.has_calls(names[0]) {
                assert!(!call.is_finished(), "it did not wait");
                thread::yield_now();
            }
            assert!(nested(|| latches.latch_in_call(names[0])).is_err());
            waited.store(true, SeqCst);
            drop(worker);
            let (done, waited) = call.join().unwrap();
            assert!(done.is_ok() && waited, "{done:?}");
        });
        // A call holds the latch: it may be waiting for this thread.
        let call = latches.latch_in_call(names[0]).unwrap();
        assert!(nested(|| latches.latch_in_call(names[0])).is_err());
        nested(|| {
            let mut row = latches.latch_in_call(latches.name(SpaceId(19), &[1])).unwrap();
            assert!(row.latch_more(vec![names[0]]).is_err());
        });
        drop(call);
        assert!(latches.shards.iter().all(Shard::is_empty));
    }

    #[test]
    fn a_worker_holds_no_latch_while_it_waits_for_one() {
        let latches = latches();
        let names = [1u8, 2].map(|key| latches.name(SpaceId(20), &[key]));
        for (held, other) in [(names[0], names[1]), (names[1], names[0])] {
            let call = latches.latch_in_call(held).unwrap();
            thread::scope(|scope| {
                let worker = scope.spawn(|| latches.latch_all(names.to_vec()).map(drop).unwrap());
                while !latches.is_awaited(held) {
                    assert!(!worker.is_finished(), "it did not wait");
                    thread::yield_now();
                }
                // The call's own source makes a nested call.
                let inner = nested(|| latches.latch_in_call(other).map(drop));
                assert!(inner.is_ok(), "{inner:?}");
                drop(call);
                worker.join().unwrap();
            });
        }
        assert!(latches.shards.iter().all(Shard::is_empty));
    }

    #[test]
    fn waiters_are_served_in_order_of_arrival() {
        let latches = latches();
        let name = latches.name(SpaceId(20), &[1]);
        let served = Mutex::new(Rank::Leaf, Vec::new());
        let call = latches.latch_in_call(name).unwrap();
        thread::scope(|scope| {
            for n in 1..=4 {
                let (latches, served) = (&latches, &served);
                scope.spawn(move || {
                    let guard = if n == 3 {
                        Ok(latches.latch_all(vec![name]).unwrap())
                    } else {
                        latches.latch_in_call(name)
                    };
                    served.lock().push(n);
                    guard.map(drop)
                });
                while latches.waiting(name) < n {
                    thread::yield_now();
                }
            }
            drop(call);
        });
        assert_eq!(*served.lock(), [1, 2, 3, 4]);
    }

    /// One of four waiters is interrupted, whichever it is: the others are served in order of arrival.
    #[test]
    fn a_waiter_that_is_interrupted_leaves_the_queue() {
        let latches = latches();
        let name = latches.name(SpaceId(20), &[1]);
        for left in [vec![1], vec![3], vec![4], vec![1, 2], vec![2, 4], vec![1, 2, 3, 4]] {
            let served = Mutex::new(Rank::Leaf, Vec::new());
            let interrupts: Vec<Arc<Interrupt>> = (1..=4).map(|_| Arc::default()).collect();
            let call = latches.latch_in_call(name).unwrap();
            thread::scope(|scope| {
                let mut waiters = Vec::new();
                for n in 1..=4 {
                    let (latches, served, interrupt) = (&latches, &served, &interrupts[n - 1]);
                    waiters.push(scope.spawn(move || {
                        let _entered = interrupt.enter();
                        let guard = if n == 3 {
                            latches.latch_all(vec![name]).map_err(Error::from)
                        } else {
                            latches.latch_in_call(name)
                        }?;
                        served.lock().push(n);
                        drop(guard);
                        Ok(())
                    }));
                    while latches.waiting(name) < n as u64 {
                        thread::yield_now();
                    }
                }
                let mut waiters: Vec<_> = waiters.into_iter().map(Some).collect();
                for n in &left {
                    // The holder still has the latch.
                    interrupts[n - 1].interrupt();
                    let done: Result<()> = waiters[n - 1].take().unwrap().join().unwrap();
                    assert!(matches!(done, Err(Error::Lock(LockError::Interrupted))), "{done:?}");
                }
                let calls = 1 + [1, 2, 4].iter().filter(|n| !left.contains(n)).count() as u64;
                assert_eq!(latches.shard(name).queues.lock().get(name).unwrap().calls, calls);
                drop(call);
                waiters.into_iter().flatten().for_each(|waiter| waiter.join().unwrap().unwrap());
            });
            let others: Vec<usize> = (1..=4).filter(|n| !left.contains(n)).collect();
            assert_eq!(*served.lock(), others, "{left:?} have left");
            assert!(latches.shards.iter().all(Shard::is_empty));
        }
    }

    impl Shard {
        fn is_empty(&self) -> bool {
            let queues = self.queues.lock();
            queues.held.is_empty() && queues.left.is_empty()
        }
    }

    impl KeyLatches {
        /// Returns the number of threads that are queued behind the holder of a latch.
        fn waiting(&self, name: LatchName) -> u64 {
            self.shard(name).queues.lock().get(name).map_or(0, |queue| queue.next - queue.serving - 1)
        }

        fn has_calls(&self, name: LatchName) -> bool {
            self.shard(name).queues.lock().get(name).is_some_and(|queue| queue.calls > 0)
        }

        fn is_awaited(&self, name: LatchName) -> bool {
            self.waiting(name) > 0
        }
    }

    #[test]
    fn a_held_latch_is_not_taken_again() {
        let latches = KeyLatches::new(Arc::new(RealEnv::default()));
        let name = latches.name(SpaceId(20), b"key");
        let first = latches.latch_in_call(name).unwrap();
        assert!(latches.try_latch(name).is_none());
        drop(first);
        assert!(latches.try_latch(name).is_some());
    }
}
