//! Latch, event and gate in many orders of their threads. Each scenario documents the mistakes that it was shown to
//! catch; the bugs passed to it are planted whenever it runs.

use core::time::Duration;

use super::{
    Arc, Event, Gate, Interrupt, InterruptibleWait, Wake,
    atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
    latch::Latch,
    model::{explore, spawn},
};

/// A timed wait that only a notification ends.
const LONG: Duration = Duration::from_hours(1);

/// Two words under a latch that are always equal, with a word between them so that the model does not take them for one
/// walk over neighbouring words.
#[derive(Default)]
struct Pair {
    latch: Latch,
    words: [AtomicU64; 3],
}

impl Pair {
    fn read(&self) -> (u64, u64) {
        (self.words[0].load(Relaxed), self.words[2].load(Relaxed))
    }

    /// Adds one to both words, to the values that were read before.
    fn change(&self, (a, b): (u64, u64)) {
        assert_eq!(a, b, "half a change is seen");
        self.words[0].store(a + 1, Relaxed);
        self.words[2].store(b + 1, Relaxed);
        self.latch.release_changed();
    }
}

/// Catches: a release that keeps the version; an exclusive latch taken next to a shared one; a shared one next to an
/// exclusive one; an upgrade that does not compare the version; a release or the last sharer that wakes no waiter; a
/// waiter that parks without checking again.
#[test]
fn a_latch_shows_no_half_change_and_loses_no_wakeup() {
    let bugs = ["VersionKept", "LatchDespiteSharers", "UpgradeOfAnyVersion", "LastSharerWakesNone"];
    explore(12_000, &bugs, || {
        let pair = Arc::new(Pair::default());
        let run = |role: fn(&Pair)| {
            let pair = pair.clone();
            spawn(move || role(&pair))
        };
        let threads = [
            run(|pair| {
                pair.latch.exclusive();
                pair.change(pair.read());
            }),
            run(|pair| {
                let version = pair.latch.version_while(|| true).unwrap();
                let mut seen = pair.read();
                if !pair.latch.try_exclusive_at(version) {
                    pair.latch.exclusive();
                    seen = pair.read();
                }
                pair.change(seen);
            }),
            run(|pair| {
                assert!(pair.latch.share_while(|| true));
                let (a, b) = pair.read();
                assert_eq!(a, b, "a sharer is disturbed");
                pair.latch.unshare();
            }),
            run(|pair| {
                for _ in 0..2 {
                    let version = pair.latch.version_while(|| true).unwrap();
                    let (a, b) = pair.read();
                    assert!(!pair.latch.is(version) || a == b, "half a change is valid");
                }
            }),
        ];
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(pair.read(), (2, 2), "a change is lost");
    });
}

/// Catches: a waiter that does not check again after it has announced itself, or announces itself after its check; a
/// notifier that bypasses the mutex.
#[test]
fn an_event_loses_no_notification() {
    explore(12_000, &["NotifierPassesTheMutex"], || {
        let shared = Arc::new((Event::new(), AtomicU64::new(0)));
        let waiters = [1, 2, 2].map(|wanted| {
            let shared = shared.clone();
            spawn(move || shared.0.wait(|| shared.1.load(SeqCst) >= wanted))
        });
        let notifiers = [0; 2].map(|_| {
            let shared = shared.clone();
            spawn(move || {
                shared.1.fetch_add(1, SeqCst);
                shared.0.notify();
            })
        });
        for thread in waiters.into_iter().chain(notifiers) {
            thread.join().unwrap();
        }
    });
}

/// Catches: a timed wait that discards an earlier notification when it begins; a notification that does not set
/// `notified`.
#[test]
fn a_timed_wait_misses_no_work() {
    explore(12_000, &["TimedWaitClearsNotification"], || {
        let shared = Arc::new((Event::new(), AtomicU64::new(0)));
        let given = [1, 10].map(|work| {
            let shared = shared.clone();
            spawn(move || {
                shared.1.fetch_add(work, SeqCst);
                shared.0.notify();
            })
        });
        let mut done = 0;
        while done < 11 {
            done += shared.1.swap(0, SeqCst);
            if done < 11 {
                shared.0.timed_wait(LONG);
            }
        }
        for thread in given {
            thread.join().unwrap();
        }
    });
}

/// Catches: a passer that checks before it counts itself, or that stays counted while it waits; a closer that sums
/// before it closes; a leaving thread that does not notify; a gate that opens again after it was closed permanently.
#[test]
fn no_thread_is_inside_a_closed_gate() {
    explore(8_000, &["GateLooksBeforeItCounts", "LeaverWakesNone"], || {
        let shared = Arc::new((Gate::new(), AtomicBool::new(false)));
        let passers = [0, 1].map(|stripe| {
            let shared = shared.clone();
            spawn(move || {
                for _ in 0..3 {
                    let Some(_inside) = shared.0.enter(stripe) else { return };
                    assert!(!shared.1.load(SeqCst), "inside while the gate is closed");
                    // Some time passes between the two checks, as if for work.
                    assert!(!shared.1.load(SeqCst), "closed while a thread is inside");
                }
            })
        });
        let closed = shared.0.close();
        shared.1.store(true, SeqCst);
        shared.1.store(false, SeqCst);
        drop(closed);
        let closed = shared.0.close();
        shared.0.close_permanently();
        drop(closed);
        shared.1.store(true, SeqCst);
        assert!(shared.0.enter(0).is_none(), "a permanently closed gate is open again");
        for thread in passers {
            thread.join().unwrap();
        }
    });
}

/// Two threads pass a gate repeatedly, and work inside unless they find a mark. Two others set the mark, wait until all
/// have left that were inside, and then find no thread at work; one of them before the other one is done, or after.
///
/// Catches: a second wait that turns the generation during the first.
#[test]
fn those_who_were_inside_have_left() {
    explore(8_000, &["GenerationTurnedTwice"], || {
        let shared = Arc::new((Gate::new(), AtomicU64::new(0), AtomicU64::new(0)));
        let passers = [0, 1].map(|stripe| {
            let shared = shared.clone();
            spawn(move || {
                let (gate, marks, at_work) = &*shared;
                for _ in 0..3 {
                    let _inside = gate.enter(stripe).expect("it opens again");
                    if marks.load(SeqCst) == 0 {
                        at_work.fetch_add(1, SeqCst);
                        at_work.fetch_sub(1, SeqCst);
                    }
                }
            })
        });
        let wait = |(gate, marks, at_work): &(Gate, AtomicU64, AtomicU64)| {
            for _ in 0..2 {
                marks.fetch_add(1, SeqCst);
                assert!(gate.await_passers(|event, ready| event.wait(ready)), "the wait does not give up");
                assert_eq!(at_work.load(SeqCst), 0, "a thread is at work that was inside before");
                marks.fetch_sub(1, SeqCst);
            }
        };
        let other = {
            let shared = shared.clone();
            spawn(move || wait(&shared))
        };
        wait(&shared);
        other.join().unwrap();
        drop(shared.0.close());
        for thread in passers {
            thread.join().unwrap();
        }
    });
}

/// Two threads pass several gates, one from inside the other, while another thread closes two of them as one.
///
/// Catches: a closing gate that blocks a thread inside another gate; gates that are closed one after the other and not
/// checked again; a waiter that is not notified, or does not see, that a closed gate is closing again.
#[test]
fn a_thread_inside_a_gate_passes_one_that_is_closing() {
    explore(8_000, &["ClosingGateHoldsAll", "GatesClosedOneByOne"], || {
        let shared = Arc::new(([0; 3].map(|_| Gate::new()), AtomicBool::new(false)));
        // The last gate is closed by no thread.
        let ways: [&[usize]; 2] = [&[2, 0, 1], &[1, 0]];
        let passers = ways.map(|way| {
            let shared = shared.clone();
            spawn(move || {
                let (gates, alone) = &*shared;
                for _ in 0..2 {
                    // Left in the reverse order of passing, as the calls return.
                    let mut inside = Vec::new();
                    for gate in way {
                        inside.extend(gates[*gate].enter(way[0]).map(|inside| (*gate, inside)));
                        let closed = alone.load(SeqCst) && inside.iter().any(|(gate, _)| *gate < 2);
                        assert!(!closed, "inside while the gates are closed");
                    }
                    while inside.pop().is_some() {}
                }
            })
        });
        let (gates, alone) = &*shared;
        let both = Gate::close_all(gates[..2].iter(), |_, event, ready| event.wait(ready));
        alone.store(true, SeqCst);
        alone.store(false, SeqCst);
        drop(both);
        gates[..2].iter().for_each(Gate::close_permanently);
        alone.store(true, SeqCst);
        for thread in passers {
            thread.join().unwrap();
        }
    });
}

/// A gate that an interrupt can wake the waiters of.
#[derive(Debug, Default)]
struct Wakeable(Gate);

impl Wake for Wakeable {
    fn wake(&self) {
        self.0.wake();
    }
}

/// Waits at a gate until the condition holds or an interrupt comes.
fn interruptibly(gate: &Arc<Wakeable>) -> impl FnMut(&Event, &mut dyn FnMut() -> bool) {
    |event, ready| {
        let waiting = InterruptibleWait::begin(gate);
        event.wait(|| ready() || waiting.is_interrupted());
    }
}

/// A thread is inside one of two gates while another thread closes both and gives up by an interrupt. Of two threads
/// that pass, an interrupt may end the wait of one.
///
/// Catches: an interrupt that does not wake the threads at a gate; a closer that gives up and leaves a gate closing, or
/// wakes no thread that waits there.
#[test]
fn an_interrupt_ends_the_waits_at_a_gate() {
    explore(8_000, &["InterruptedAndNotWoken", "GivesUpAndLeavesClosing", "GivesUpAndWakesNone"], || {
        let gates = [0; 2].map(|_| Arc::new(Wakeable::default()));
        let inside = gates[1].0.enter(0).expect("it is open");
        let (closes, passes) = (Arc::new(Interrupt::default()), Arc::new(Interrupt::default()));
        let closer = {
            let (gates, closes) = (gates.clone(), closes.clone());
            spawn(move || {
                let _entered = closes.enter();
                let all = gates.iter().map(|gate| &gate.0);
                Gate::close_all(all, |place, event, ready| interruptibly(&gates[place])(event, ready))
                    .is_none()
            })
        };
        let passers = [0, 1].map(|n| {
            let (gate, passes) = (gates[n].clone(), passes.clone());
            spawn(move || {
                // Nothing interrupts the other one: it passes once the closer has given up.
                let _entered = (n == 0).then(|| passes.enter());
                let passed = gate.0.enter_by(1, interruptibly(&gate)).is_some();
                assert!(passed || n == 0, "a thread gives up that nothing interrupts");
            })
        });
        for interrupt in [&passes, &closes] {
            interrupt.interrupt();
        }
        assert!(closer.join().unwrap(), "a gate is closed, and a thread is inside");
        for passer in passers {
            passer.join().unwrap();
        }
        drop(inside);
        for gate in &gates {
            drop(gate.0.close());
        }
    });
}

/// Two threads go through two gates, in both orders, while two closers close one gate each. An example is the gates of
/// tables of two independent databases.
///
/// Catches: a count of passed gates that is kept separately for the gates of each closer. Then each thread waits at the
/// gate that the other thread is inside of, and neither closer finishes.
#[test]
fn gates_of_independent_closers_cause_no_deadlock() {
    explore(8_000, &["ClosingGateHoldsAll"], || {
        let gates = Arc::new([0; 2].map(|_| Gate::new()));
        let passers = [[0, 1], [1, 0]].map(|[outer, inner]| {
            let gates = gates.clone();
            spawn(move || {
                let _outer = gates[outer].enter(outer).expect("it opens again");
                let _inner = gates[inner].enter(outer).expect("it opens again");
            })
        });
        let closers = [0, 1].map(|gate| {
            let gates = gates.clone();
            spawn(move || {
                drop(gates[gate].close());
            })
        });
        for thread in passers.into_iter().chain(closers) {
            thread.join().unwrap();
        }
    });
}
