//! A gate: admits many threads at once, until a closer closes it and waits for the threads inside to leave.
//!
//! **Purpose.** A gate works like a drain lock: row calls on a table pass its gate, and DDL on that table closes it and
//! drains it. Passing costs one atomic addition on one stripe of a striped counter, so the threads of a hot table do
//! not all contend for one cache line.
//!
//! A closed gate opens when its [`Closed`] is dropped, also by a panic: no thread waits for a closer that has ended. A
//! gate has one [`Closed`] at a time, so its holder is alone inside. After [`Gate::close_permanently`] it stays closed.
//!
//! **Invariants.** A thread that passes first adds to a stripe, then checks whether the gate is closed; a closer first
//! marks the gate closed, then sums the stripes; all these accesses are sequentially consistent, so at least one of the
//! two sees the other (test: `no_thread_is_inside_a_closed_gate`). A gate that is closed permanently never opens again
//! (checked by `sync/gate.rs::store`).
//!
//! A gate is first *closing*: it blocks threads that are inside no gate, and admits threads that are inside any gate
//! (test: `a_thread_inside_a_gate_passes_one_that_is_closing`). It is *closed*, and blocks every thread, only once no
//! thread is inside it or any other gate of the same closer (test:
//! `a_thread_inside_passes_gates_that_are_closing_and_none_that_is_closed`). So a thread that waits at a closed gate
//! waits for work that waits for no thread inside a gate (test: `gates_of_independent_closers_cause_no_deadlock`).
//! Whether a thread is inside a gate includes gates of other databases (test:
//! `gates_of_independent_closers_cause_no_deadlock`). A call within a call waits for nothing that another call may
//! hold, in whichever databases the two are (test: `a_call_inside_another_call_waits_for_workers_only`). A thread in a
//! callback counts as inside ([`CountedInside`]), so this holds for its calls, too (tests:
//! `a_thread_that_counts_as_inside_passes_a_gate_that_is_closing`,
//! `a_callback_waits_for_no_lock_and_runs_no_statement`).
//!
//! A thread can also wait until all have left that were inside when it began, while others pass
//! ([`Gate::await_passers`]) (test: `those_who_were_inside_have_left`). These do not notify it (test:
//! `a_leaver_that_no_thread_waits_for_notifies_none`). One thread waits in this way at a time (checked
//! by `sync/gate.rs::turn_generation`).
//!
//! A thread that gives up its wait at a gate, as its caller decides, is not inside (test:
//! `a_passer_that_gives_up_is_not_inside`). A closer that gives up opens each of its gates, as it found them, and wakes
//! the threads that wait there (test: `a_closer_that_gives_up_opens_every_gate`). The gates that it has closed have
//! changed nothing meanwhile: a closer gets its proofs together, once all gates are closed (by type).
//!
//! **Generations.** Passers count themselves in one of two generations. A thread that waits for those inside first
//! waits until the generation is empty that passers do not use any more, then makes them use that one, and waits for
//! the other. So each of the two has been empty since it began. A passer that reads the generation before it is turned,
//! and counts itself after that, has passed after the wait began.
//!
//! **Reasons.** A thread may pass a gate while it is inside another, or the same: a row call may ask its caller for
//! more of a value, and the caller may then call again. A closer may be waiting for that thread to leave. A gate has no
//! record of what else its passer holds, and threads may enter two databases in both orders. One thread waits in the
//! second database for a lock, or for a gate that is being closed, while the blocker waits for this thread in the
//! first. Neither database can detect that cycle, because each has only half of it.

mod value;

use core::{cell::Cell, marker::PhantomData};

use smallvec::SmallVec;

use super::{
    Event, HeldObject, HoldNote,
    drop_mark::{self, DropMark},
    machine::{
        self,
        atomic::{
            AtomicU8, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
        thread_local,
    },
};

pub use value::{Entered, Gated};

const OPEN: u8 = 0;
const CLOSING: u8 = 1;
const CLOSED: u8 = 2;
const CLOSED_PERMANENTLY: u8 = 3;
/// The bits of the state that say which of these it is.
const DOOR: u8 = 3;
/// The bit of the generation in which passers count themselves.
const GENERATION: u8 = 4;
/// The bit that is set while a thread waits for those inside, and the gate may be open.
const AWAITED: u8 = 8;
const STRIPES: usize = 4;

thread_local! {
    /// The number of gates that this thread is inside of, over all databases.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// The address of the gate at which calls of this thread are refused; 0 for none.
    static REFUSING: Cell<usize> = const { Cell::new(0) };
}

/// Returns whether this thread is inside a gate.
pub fn is_inside() -> bool {
    DEPTH.get() > 0
}

/// Returns whether this thread has passed a gate while it was inside one.
pub fn is_nested() -> bool {
    DEPTH.get() > 1
}

/// While it exists, this thread counts as inside a gate: what it calls waits for no other call, as within a call.
#[derive(Debug)]
#[must_use = "the thread counts as inside while it exists"]
pub struct CountedInside(PhantomData<*const ()>);

impl CountedInside {
    /// Begins to count this thread.
    pub fn new() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        Self(PhantomData)
    }
}

impl Default for CountedInside {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for CountedInside {
    fn drop(&mut self) {
        debug_assert!(is_inside(), "a thread that counts as inside is not counted");
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// The number of passes through one stripe that have not left, by generation. Stripes that are a cache line apart never
/// share one (no false sharing), wherever the gate itself begins. Aligning the gate would make every table larger and
/// its allocation slower.
#[derive(Debug, Default)]
#[repr(C)]
struct Stripe {
    counts: [AtomicU64; 2],
    apart: [u64; 6],
}

/// The gate.
#[derive(Debug, Default)]
pub struct Gate {
    state: AtomicU8,
    /// Whether the last closer closed it from inside a drop; written before the state becomes closing.
    by_drop: DropMark,
    inside: [Stripe; STRIPES],
    changed: Event,
}

/// Proof that the thread is inside the gate; dropping it leaves the gate. It stays with the thread that passed.
#[derive(Debug)]
pub struct Inside<'a> {
    gate: &'a Gate,
    count: &'a AtomicU64,
    generation: usize,
    _note: HoldNote,
}

/// Proof that a gate is closed and no thread is inside. Dropping it opens the gate, unless the gate was closed
/// permanently meanwhile.
#[derive(Debug)]
#[must_use = "the gate opens when this is dropped"]
pub struct Closed<'g> {
    gate: &'g Gate,
}

/// While it exists, a call of this thread at the gate that it has closed is refused.
#[derive(Debug)]
#[must_use = "calls are refused while it exists"]
pub struct RefusesOwnCalls<'c>(PhantomData<(&'c (), *const ())>);

impl Closed<'_> {
    /// Refuses calls of this thread, which runs a callback of the application: they would wait for themselves.
    pub fn refuse_own_calls(&self) -> RefusesOwnCalls<'_> {
        let before = REFUSING.replace(core::ptr::from_ref(self.gate).addr());
        debug_assert!(before == 0, "a thread runs a callback in two gates that it has closed");
        RefusesOwnCalls(PhantomData)
    }
}

impl Drop for RefusesOwnCalls<'_> {
    fn drop(&mut self) {
        REFUSING.set(0);
    }
}

impl Gate {
    /// Returns an open gate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Passes the gate without a wait: not while it is closed, and while it is closing only if this thread is inside a
    /// gate. Any `stripe` works; concurrent callers should pass different ones.
    pub fn try_enter(&self, stripe: usize) -> Option<Inside<'_>> {
        let stripe = stripe % STRIPES;
        let nested = is_inside();
        let generation = generation_of(self.state.load(Relaxed));
        let count = &self.inside[stripe].counts[generation];
        count.fetch_add(1, SeqCst);
        DEPTH.set(DEPTH.get() + 1);
        let inside = Inside { gate: self, count, generation, _note: HoldNote::new(HeldObject::Gate) };
        match self.door() {
            OPEN => Some(inside),
            CLOSING if nested => Some(inside),
            _ => None,
        }
    }

    /// Passes the gate, and waits while [`Gate::try_enter`] does not. Returns `None` when it was closed permanently.
    pub fn enter(&self, stripe: usize) -> Option<Inside<'_>> {
        self.enter_by(stripe, |event, ready| event.wait(ready))
    }

    /// As [`Gate::enter`]. `wait` waits until the condition holds that it is given, which a notification of the event
    /// may have changed, or gives up; then this returns `None`, too.
    pub fn enter_by(
        &self,
        stripe: usize,
        wait: impl FnMut(&Event, &mut dyn FnMut() -> bool),
    ) -> Option<Inside<'_>> {
        let (inside, waited_on_drop) = self.pass(stripe, wait)?;
        if waited_on_drop {
            drop_mark::waited_on_drop();
        }
        Some(inside)
    }

    /// As [`Gate::enter_by`]; also returns whether it waited for a drop that left the gate open.
    fn pass(
        &self,
        stripe: usize,
        mut wait: impl FnMut(&Event, &mut dyn FnMut() -> bool),
    ) -> Option<(Inside<'_>, bool)> {
        let mut waited_on_drop = false;
        loop {
            if let Some(inside) = self.try_enter(stripe) {
                return Some((inside, waited_on_drop));
            }
            if self.is_closed_permanently() || self.refuses_this_thread() {
                return None;
            }
            waited_on_drop |= self.by_drop.is_set();
            let mut admits = false;
            wait(&self.changed, &mut || {
                admits = match self.door() {
                    CLOSING => is_inside(),
                    door => door != CLOSED,
                };
                admits
            });
            if !admits {
                return None;
            }
        }
    }

    /// Returns whether this thread has the gate closed while it runs a callback ([`Closed::refuse_own_calls`]).
    pub fn refuses_this_thread(&self) -> bool {
        REFUSING.get() == core::ptr::from_ref(self).addr()
    }

    /// Passes the gate on this thread's own stripe. See [`Gate::enter`].
    pub fn enter_here(&self) -> Option<Inside<'_>> {
        self.enter(machine::thread_number())
    }

    /// Wakes the threads that wait at the gate, or for those inside, to check whether they give up.
    pub fn wake(&self) {
        self.changed.notify();
    }

    /// Returns whether it is closed permanently.
    pub fn is_closed_permanently(&self) -> bool {
        self.door() == CLOSED_PERMANENTLY
    }

    /// Closes the gate and waits until no thread is inside. The caller must be inside no gate.
    ///
    /// # Panics
    /// When another closer has it closed: a closer must hold the metadata lock of the table.
    pub fn close(&self) -> Closed<'_> {
        let closed = Self::close_all(core::iter::once(self), |_, event, ready| event.wait(ready));
        closed.expect("the wait does not give up").pop().expect("one was closed")
    }

    /// Closes several gates as one and waits until no thread is inside any of them. See [`Gate::close`]. `wait` waits
    /// for those inside the gate with this place among them, as that of [`Gate::enter_by`] does. If it gives up, the
    /// gates open again, and this returns `None`.
    pub fn close_all<'g>(
        gates: impl Iterator<Item = &'g Self>,
        mut wait: impl FnMut(usize, &Event, &mut dyn FnMut() -> bool),
    ) -> Option<SmallVec<[Closed<'g>; 1]>> {
        debug_assert!(!is_inside(), "a thread inside a gate closes one, and would wait for itself");
        let closed: SmallVec<[Closed<'g>; 1]> = gates.map(Self::begin_to_close).collect();
        let gates = || closed.iter().map(|closed| closed.gate);
        loop {
            let mut drained =
                gates().enumerate().map(|(place, gate)| gate.drain(|event, ready| wait(place, event, ready)));
            if !drained.all(core::convert::identity) {
                return None;
            }
            // No notification: no thread waits for a gate to become closed.
            gates().for_each(|gate| gate.store(CLOSED));
            // A thread inside one of them may have passed another one after that was found empty.
            if gates().all(Self::is_empty) {
                return Some(closed);
            }
            gates().for_each(|gate| gate.mark(CLOSING));
        }
    }

    /// Closes the gate permanently and waits until no thread is inside. The caller must be inside no gate, and may have
    /// closed this one; another thread may be closing it permanently, too.
    #[inline]
    pub fn close_permanently(&self) {
        self.mark(CLOSED_PERMANENTLY);
        let drained = self.drain(|event, ready| event.wait(ready));
        debug_assert!(drained, "a wait that does not give up has ended, and threads are inside");
    }

    /// Waits until no thread is inside. Returns whether `wait` did not give up.
    #[inline]
    fn drain(&self, wait: impl FnOnce(&Event, &mut dyn FnMut() -> bool)) -> bool {
        // Usually there is none.
        let mut is_empty = self.is_empty();
        if !is_empty {
            wait(&self.changed, &mut || {
                is_empty = self.is_empty();
                is_empty
            });
        }
        is_empty
    }

    /// Returns whether it is closed, also if a guard will open it again.
    pub fn is_closed(&self) -> bool {
        matches!(self.door(), CLOSED | CLOSED_PERMANENTLY)
    }

    /// Returns whether it is open, closing or closed.
    fn door(&self) -> u8 {
        self.state.load(SeqCst) & DOOR
    }

    fn begin_to_close(&self) -> Closed<'_> {
        self.by_drop.set_by_this_thread();
        // No notification: no thread waits for an open gate to close.
        let if_open = |old| (old & DOOR == OPEN).then_some(old | CLOSING);
        let was_open = self.state.fetch_update(SeqCst, SeqCst, if_open);
        assert!(was_open.is_ok(), "a gate has one closer at a time");
        Closed { gate: self }
    }

    fn store(&self, door: u8) {
        let unless_permanent = |old| (old & DOOR != CLOSED_PERMANENTLY).then_some(old & !DOOR | door);
        let before = self.state.fetch_update(SeqCst, SeqCst, unless_permanent).map(|old| old & DOOR);
        debug_assert!(
            door == CLOSED_PERMANENTLY || before != Ok(OPEN),
            "a gate was open while a thread had it closed"
        );
        debug_assert!(before != Ok(CLOSED_PERMANENTLY), "a gate that is closed permanently has changed");
    }

    fn mark(&self, door: u8) {
        self.store(door);
        self.changed.notify_ordered();
    }

    /// Returns how many passes of a generation have not left.
    fn count(&self, generation: usize) -> u64 {
        self.inside.iter().map(|stripe| stripe.counts[generation].load(SeqCst)).sum()
    }

    fn is_empty(&self) -> bool {
        self.count(0) + self.count(1) == 0
    }

    /// Waits until all threads have left that were inside when this was called; others pass meanwhile. The caller must
    /// be inside no gate. `wait` waits until the condition holds that it is given, which a notification of the event
    /// may have changed, or gives up; then this returns `false`.
    pub fn await_passers(&self, mut wait: impl FnMut(&Event, &mut dyn FnMut() -> bool)) -> bool {
        debug_assert!(
            !is_inside(),
            "a thread inside a gate waits for those inside, and would wait for itself"
        );
        let mut awaited = None;
        wait(&self.changed, &mut || {
            awaited = awaited.take().or_else(|| Awaited::begin(self));
            awaited.is_some()
        });
        awaited.is_some_and(|_awaited| {
            let generation = generation_of(self.state.load(SeqCst));
            let mut await_empty = |generation| {
                let mut is_empty = false;
                wait(&self.changed, &mut || {
                    is_empty = self.count(generation) == 0;
                    is_empty
                });
                is_empty
            };
            await_empty(1 - generation) && {
                self.turn_generation();
                await_empty(generation)
            }
        })
    }

    /// Makes passers count themselves in the other generation.
    fn turn_generation(&self) {
        let before = self.state.fetch_xor(GENERATION, SeqCst);
        debug_assert!(
            before & AWAITED != 0,
            "the generation of a gate changes, and no thread waits for the other one"
        );
    }
}

/// Returns the generation of a state.
fn generation_of(state: u8) -> usize {
    usize::from(state & GENERATION != 0)
}

/// A thread waits for those inside, as the only one.
struct Awaited<'g>(&'g Gate);

impl<'g> Awaited<'g> {
    /// Begins a wait, unless another one is in progress.
    fn begin(gate: &'g Gate) -> Option<Self> {
        let before = gate.state.fetch_or(AWAITED, SeqCst);
        (before & AWAITED == 0).then(|| Self(gate))
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.0.state.fetch_and(!AWAITED, SeqCst);
        self.0.changed.notify_ordered();
    }
}

impl Closed<'_> {
    /// Returns whether this gate is the closed one.
    pub fn is_of(&self, gate: &Gate) -> bool {
        core::ptr::eq(self.gate, gate)
    }
}

impl Inside<'_> {
    /// Returns whether the thread is inside this gate.
    fn is_of(&self, gate: &Gate) -> bool {
        core::ptr::eq(self.gate, gate)
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        // The gate may have been closed permanently, or still have been closing when a panic occurred.
        self.gate.store(OPEN);
        self.gate.changed.notify_ordered();
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        debug_assert!(is_inside(), "a thread leaves a gate and is inside none");
        DEPTH.set(DEPTH.get() - 1);
        let before = self.count.fetch_sub(1, SeqCst);
        debug_assert!(before > 0, "a gate is left that was not entered");
        let state = self.gate.state.load(SeqCst);
        // A wait for those inside is for the generation that passers do not use.
        let is_awaited = state & AWAITED != 0 && generation_of(state) != self.generation;
        if state & DOOR != OPEN || is_awaited {
            self.gate.changed.notify_ordered();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, atomic::AtomicBool},
        thread,
    };

    use super::*;

    #[test]
    fn no_thread_is_inside_a_closed_gate() {
        let gate = Arc::new(Gate::new());
        let alone = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..4)
            .map(|n| {
                let (gate, alone) = (gate.clone(), alone.clone());
                thread::spawn(move || {
                    let mut passed = 0;
                    while let Some(_inside) = gate.enter(n) {
                        assert!(!alone.load(SeqCst), "inside while the gate is closed");
                        passed += 1;
                    }
                    passed
                })
            })
            .collect();
        for _ in 0..200 {
            let closed = gate.close();
            alone.store(true, SeqCst);
            thread::yield_now();
            alone.store(false, SeqCst);
            drop(closed);
        }
        let closed = gate.close();
        gate.close_permanently();
        drop(closed);
        assert!(gate.enter(0).is_none());
        for thread in threads {
            thread.join().unwrap();
        }
    }

    #[test]
    fn a_thread_that_counts_as_inside_passes_a_gate_that_is_closing() {
        let gate = Gate::new();
        let closing = gate.begin_to_close();
        {
            let _counted = CountedInside::new();
            assert!(is_inside() && !is_nested());
            let inside = gate.enter(0);
            assert!(inside.is_some() && is_nested());
        }
        assert!(!is_inside());
        drop(closing);
    }

    #[test]
    fn a_passer_that_gives_up_is_not_inside() {
        let gate = Gate::new();
        let closed = gate.close();
        let mut waits = 0;
        let passed = gate.enter_by(0, |_, ready| {
            waits += 1;
            assert!(!is_inside() && !ready());
        });
        assert!(passed.is_none() && waits == 1 && !is_inside() && gate.is_empty());
        assert!(!gate.is_closed_permanently());
        drop(closed);
        assert!(gate.enter_by(0, |_, _| panic!("it waits at an open gate")).is_some());
    }

    #[test]
    fn a_closer_that_gives_up_opens_every_gate() {
        let gates: [Gate; 3] = Default::default();
        let (entered, leaves) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let _inside = gates[1].enter(0).unwrap();
                entered.store(true, SeqCst);
                while !leaves.load(SeqCst) {
                    thread::yield_now();
                }
            });
            while !entered.load(SeqCst) {
                thread::yield_now();
            }
            let mut waits = Vec::new();
            let mut passers = Vec::new();
            let closed = Gate::close_all(gates.iter(), |place, _, ready| {
                waits.push(place);
                assert!(!ready() && gates.iter().all(|gate| gate.door() == CLOSING));
                passers.extend(gates.iter().map(|gate| scope.spawn(|| gate.enter(1).is_some())));
                while !gates.iter().all(|gate| gate.changed.has_waiters()) {
                    thread::yield_now();
                }
            });
            assert!(closed.is_none() && waits == [1]);
            assert!(passers.into_iter().all(|passer| passer.join().unwrap()), "those who waited have passed");
            assert!(gates.iter().all(|gate| gate.door() == OPEN));
            leaves.store(true, SeqCst);
            inside.join().unwrap();
        });
        // They can be closed again.
        let closed = Gate::close_all(gates.iter(), |_, _, _| panic!("no thread is inside"));
        assert_eq!(closed.map(|closed| closed.len()), Some(3));
    }

    #[test]
    fn those_who_were_inside_have_left() {
        let gate = Arc::new(Gate::new());
        let gives_up = |_: &Event, ready: &mut dyn FnMut() -> bool| {
            ready();
        };
        // The thread inside has counted itself in the generation that passers use, or in the other one after a wait
        // that gave up.
        for gave_up in [true, false, false, true, true] {
            let (entered, leaves) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
            let thread = {
                let (gate, entered, leaves) = (gate.clone(), entered.clone(), leaves.clone());
                thread::spawn(move || {
                    let _inside = gate.enter(3);
                    entered.store(true, SeqCst);
                    while !leaves.load(SeqCst) {
                        thread::yield_now();
                    }
                })
            };
            while !entered.load(SeqCst) {
                thread::yield_now();
            }
            if gave_up {
                assert!(!gate.await_passers(gives_up), "a thread is still inside");
            }
            let last = if gave_up { 2 } else { 3 };
            // Others pass meanwhile, and are not waited for.
            let mut waits = 0;
            let have_left = gate.await_passers(|event, ready| {
                waits += 1;
                let _passed = gate.enter(2);
                leaves.store(waits >= last, SeqCst);
                event.wait(ready);
            });
            assert!(have_left && waits == 3, "{waits}");
            thread.join().unwrap();
            assert!(gate.await_passers(gives_up), "no thread is inside");
            drop(gate.close());
        }
    }

    #[test]
    fn a_leaver_that_no_thread_waits_for_notifies_none() {
        let gate = Gate::new();
        drop(gate.enter(0));
        let awaited = Awaited::begin(&gate);
        drop(gate.enter(0));
        assert!(!gate.changed.is_notified(), "the wait is for those of the other generation");
        let inside = gate.enter(0);
        gate.turn_generation();
        drop(gate.enter(0));
        assert!(!gate.changed.is_notified(), "the wait is for those before the turn");
        drop(inside);
        assert!(gate.changed.is_notified());
        drop(awaited);
        let gate = Gate::new();
        let inside = gate.enter(0);
        let closing = gate.begin_to_close();
        drop(inside);
        assert!(gate.changed.is_notified());
        drop(closing);
    }

    #[test]
    #[cfg(feature = "drop-waits")]
    fn a_wait_for_a_drop_is_distinguished_from_one_for_another_statement() {
        let waited = |by_drop: bool, is_permanent: bool| {
            let gate = Gate::new();
            let hold = || {
                let closed = gate.close();
                thread::scope(|scope| {
                    let caller = scope.spawn(|| {
                        gate.pass(0, |event, ready| event.wait(ready)).map(|(_inside, on_drop)| on_drop)
                    });
                    while !gate.changed.has_waiters() {
                        thread::yield_now();
                    }
                    if is_permanent {
                        gate.close_permanently();
                    }
                    drop(closed);
                    caller.join().unwrap()
                })
            };
            if by_drop { super::super::work::in_drop(hold).0 } else { hold() }
        };
        assert_eq!([waited(true, false), waited(false, false)], [Some(true), Some(false)]);
        // The caller has not waited for another query, but lost its table.
        assert_eq!(waited(true, true), None);
    }

    #[test]
    fn a_thread_inside_passes_gates_that_are_closing_and_none_that_is_closed() {
        let gates: Arc<[Gate; 3]> = Arc::default();
        let closed = Arc::new(AtomicBool::new(false));
        let over = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..3)
            .map(|n| {
                let (gates, closed, over) = (gates.clone(), closed.clone(), over.clone());
                thread::spawn(move || {
                    while !over.load(SeqCst) {
                        let outer = gates[n].enter(n).unwrap();
                        // The third gate is never closed; a thread inside one of the others meets no closed gate.
                        assert!(n == 2 || !closed.load(SeqCst), "inside while the gates are closed");
                        for m in [1, 0, 2] {
                            let inner = gates[m].enter(n).unwrap();
                            assert!(m == 2 || !closed.load(SeqCst), "inside while the gates are closed");
                            assert!(is_nested());
                            drop(inner);
                        }
                        drop(outer);
                        assert!(!is_inside());
                    }
                })
            })
            .collect();
        for _ in 0..500 {
            let both = Gate::close_all(gates[..2].iter(), |_, event, ready| event.wait(ready));
            closed.store(true, SeqCst);
            thread::yield_now();
            closed.store(false, SeqCst);
            drop(both);
        }
        over.store(true, SeqCst);
        for thread in threads {
            thread.join().unwrap();
        }
    }
}
