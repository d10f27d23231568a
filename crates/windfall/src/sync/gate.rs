//! A gate: many pass at once, until someone closes it and waits for those inside to leave.
//!
//! **Purpose.** Row calls on a table pass its gate; DDL on that table closes it. Passing costs one atomic addition on
//! a stripe that other threads do not share, so a hot table bounces no cache line.
//!
//! **Invariants.** Who passes first adds to a stripe, then looks whether the gate is closed; who closes first marks it
//! closed, then sums the stripes; all sequentially consistent, so one of the two sees the other. A gate that is closed
//! for good never opens again.
//!
//! **May touch.** [`Event`].

use core::sync::atomic::{
    AtomicU8, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};

use super::Event;

const OPEN: u8 = 0;
const CLOSED: u8 = 1;
const CLOSED_FOR_GOOD: u8 = 2;
const STRIPES: usize = 4;
/// The stripe of the next thread that asks for one.
static NEXT_STRIPE: AtomicUsize = AtomicUsize::new(0);

/// How many are inside by one stripe. Counters that lie a cache line apart never share one, wherever the gate itself
/// begins; to align it would make every table larger and its allocation slower.
#[derive(Debug, Default)]
#[repr(C)]
struct Stripe {
    count: AtomicU64,
    apart: [u64; 7],
}

/// The gate.
#[derive(Debug, Default)]
pub struct Gate {
    state: AtomicU8,
    inside: [Stripe; STRIPES],
    changed: Event,
}

/// Proof of being inside; leaving is dropping it.
#[derive(Debug)]
pub struct Inside<'a> {
    gate: &'a Gate,
    stripe: usize,
}

impl Gate {
    /// An open gate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Passes the gate, waiting while it is closed. `None` when it was closed for good. Any `stripe` will do; callers
    /// that run at the same time should bring different ones.
    pub fn enter(&self, stripe: usize) -> Option<Inside<'_>> {
        let stripe = stripe % STRIPES;
        loop {
            self.inside[stripe].count.fetch_add(1, SeqCst);
            let inside = Inside { gate: self, stripe };
            match self.state.load(SeqCst) {
                OPEN => return Some(inside),
                CLOSED_FOR_GOOD => return None,
                _ => {
                    drop(inside);
                    self.changed.wait(|| self.state.load(SeqCst) != CLOSED);
                }
            }
        }
    }

    /// Passes the gate on a stripe of this thread's own. See [`Gate::enter`].
    pub fn enter_here(&self) -> Option<Inside<'_>> {
        thread_local! {
            static STRIPE: usize = NEXT_STRIPE.fetch_add(1, Relaxed);
        }
        self.enter(STRIPE.with(|stripe| *stripe))
    }

    /// Whether someone has closed the gate: long work inside looks at it now and then, and leaves.
    pub fn is_closing(&self) -> bool {
        self.state.load(SeqCst) != OPEN
    }

    /// Closes the gate and waits until nobody is inside. One closer at a time: the caller has claimed
    /// the table.
    pub fn close(&self) {
        self.shut(CLOSED);
    }

    /// Closes the gate for good and waits until nobody is inside.
    pub fn close_for_good(&self) {
        self.shut(CLOSED_FOR_GOOD);
    }

    fn shut(&self, state: u8) {
        if self.state.load(SeqCst) != CLOSED_FOR_GOOD {
            self.state.store(state, SeqCst);
        }
        self.changed.notify();
        self.changed.wait(|| self.inside.iter().map(|s| s.count.load(SeqCst)).sum::<u64>() == 0);
    }

    /// Opens a closed gate. One that is closed for good stays closed.
    pub fn open(&self) {
        let _ = self.state.compare_exchange(CLOSED, OPEN, SeqCst, SeqCst);
        self.changed.notify();
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.gate.inside[self.stripe].count.fetch_sub(1, SeqCst);
        if self.gate.is_closing() {
            self.gate.changed.notify();
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
    fn nobody_is_inside_a_closed_gate() {
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
            gate.close();
            alone.store(true, SeqCst);
            thread::yield_now();
            alone.store(false, SeqCst);
            gate.open();
        }
        gate.close_for_good();
        gate.open();
        assert!(gate.enter(0).is_none());
        for thread in threads {
            thread.join().unwrap();
        }
    }
}
