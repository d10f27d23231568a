//! Which thread holds which lock, and for how long.
//!
//! **Purpose.** A lock that is held or waited for too long is reported with the thread and the rank of the lock.
//! Otherwise the only symptom would be a test that never ends.
//!
//! **Invariants.** Debug builds record each acquisition of a lock, a latch or a gate, and its release; other builds
//! record nothing, and pay nothing. The only waits here are for the list of one thread and for the list of threads,
//! each locked for a moment. Each acquisition has its own number, so that many short acquisitions do not look like a
//! long one. One look adds only a limited time, because the whole process may have been suspended between two looks.
//!
//! The locks in this module are those of the standard library, not the engine's own.

use core::marker::PhantomData;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use noted::HoldRecord;

use super::Rank;

/// The object that a thread holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeldObject {
    /// A lock or a latch of this rank.
    Lock(Rank),
    /// The inside of a table's gate.
    Gate,
}

/// Records that this thread holds something, as long as this lives. It stays with the thread that made it.
#[derive(Debug)]
pub(super) struct HoldNote {
    _record: HoldRecord,
    _thread: PhantomData<*const ()>,
}

impl HoldNote {
    /// Records what the thread has just acquired, or waits for.
    #[inline]
    pub(super) fn new(what: HeldObject) -> Self {
        Self { _record: HoldRecord::new(what), _thread: PhantomData }
    }
}

/// Other builds: nothing is recorded.
#[cfg(not(debug_assertions))]
mod noted {
    use std::sync::Arc;

    use super::HeldObject;

    #[derive(Debug)]
    pub(super) struct Holder {
        pub name: String,
    }

    #[derive(Debug)]
    pub(super) struct HoldRecord;

    impl HoldRecord {
        #[inline]
        pub(super) fn new(_: HeldObject) -> Self {
            Self
        }
    }

    pub(super) fn all() -> Vec<(Arc<Holder>, u64, HeldObject)> {
        Vec::new()
    }
}

#[cfg(debug_assertions)]
mod noted {
    use std::{
        sync::{
            Arc, Mutex, PoisonError, Weak,
            atomic::{AtomicU64, Ordering::Relaxed},
        },
        thread,
    };

    use super::HeldObject;

    /// The list of what one thread holds.
    #[derive(Debug)]
    pub(super) struct Holder {
        pub name: String,
        /// Each with its acquisition number.
        held: Mutex<Vec<(u64, HeldObject)>>,
    }

    static NEXT: AtomicU64 = AtomicU64::new(0);
    static HOLDERS: Mutex<Vec<Weak<Holder>>> = Mutex::new(Vec::new());

    std::thread_local! {
        static MINE: Arc<Holder> = register();
    }

    fn register() -> Arc<Holder> {
        let thread = thread::current();
        let name = thread.name().map_or_else(|| format!("{:?}", thread.id()), str::to_owned);
        let holder = Arc::new(Holder { name, held: Mutex::default() });
        let mut holders = HOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
        if holders.len() == holders.capacity() {
            holders.retain(|holder| holder.strong_count() > 0);
        }
        holders.push(Arc::downgrade(&holder));
        holder
    }

    /// Returns everything that is held: the thread, the number of the acquisition, and the object.
    pub(super) fn all() -> Vec<(Arc<Holder>, u64, HeldObject)> {
        let holders = HOLDERS.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let held = |holder: Arc<Holder>| {
            let held = holder.held().clone();
            held.into_iter().map(move |(number, what)| (holder.clone(), number, what))
        };
        holders.iter().filter_map(Weak::upgrade).flat_map(held).collect()
    }

    impl Holder {
        fn held(&self) -> std::sync::MutexGuard<'_, Vec<(u64, HeldObject)>> {
            self.held.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// One object that the thread holds. `None` if the thread is ending: then it has no list any more.
    #[derive(Debug)]
    pub(super) struct HoldRecord(Option<u64>);

    impl HoldRecord {
        pub(super) fn new(what: HeldObject) -> Self {
            let note = |mine: &Arc<Holder>| {
                let number = NEXT.fetch_add(1, Relaxed);
                mine.held().push((number, what));
                number
            };
            Self(MINE.try_with(note).ok())
        }
    }

    impl Drop for HoldRecord {
        fn drop(&mut self) {
            let Some(number) = self.0 else { return };
            let _ = MINE.try_with(|mine| {
                let mut all = mine.held();
                if let Some(at) = all.iter().rposition(|(held, _)| *held == number) {
                    all.remove(at);
                }
            });
        }
    }
}

/// Finds what is held for long, by looking from time to time. In other than debug builds it finds nothing.
#[derive(Debug, Default)]
pub struct Watchdog {
    /// How long each acquisition has been seen, by its number.
    seen: BTreeMap<u64, Duration>,
    last_look: Option<Instant>,
}

/// The minimum number of looks before something counts as held for long.
const LOOKS: u32 = 5;

impl Watchdog {
    /// Looks at what is held. Returns what every look has found for at least this long, each with its thread.
    pub fn look(&mut self, long: Duration) -> Vec<String> {
        let (now, held) = (Instant::now(), noted::all());
        let passed = self.last_look.replace(now).map_or(Duration::ZERO, |last| now - last).min(long / LOOKS);
        let seen = held.iter().map(|(_, number, _)| {
            (*number, self.seen.get(number).map_or(Duration::ZERO, |seen| *seen + passed))
        });
        self.seen = seen.collect();
        held.iter()
            .filter(|(_, number, _)| self.seen[number] >= long)
            .map(|(holder, number, what)| {
                format!("thread {} has held {what:?} for {:?}", holder.name, self.seen[number])
            })
            .collect()
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::{
        super::{Gate, Mutex},
        *,
    };

    const LONG: Duration = Duration::from_millis(20);

    #[test]
    fn a_thread_that_holds_something_for_long_is_named() {
        let (mutex, gate, mut watchdog) = (Mutex::new(Rank::Leaf, ()), Gate::new(), Watchdog::default());
        let me = std::thread::current().name().unwrap().to_owned();
        // Other tests hold locks for moments.
        let mut mine = || {
            let all = watchdog.look(LONG).into_iter();
            all.filter(|reports| reports.contains(&me)).collect::<Vec<_>>()
        };
        let inside = gate.enter(0);
        // Short acquisitions do not count.
        for _ in 0..2 * LOOKS {
            let held = mutex.lock();
            assert!(mine().iter().all(|reports| reports.contains("Gate")), "{:?}", mine());
            drop(held);
            std::thread::sleep(LONG / LOOKS);
        }
        let reports = mine();
        assert!(reports.len() == 1 && reports[0].contains("has held Gate for"), "{reports:?}");
        drop(inside);
        let held = mutex.lock();
        // Rare looks do not make an acquisition long.
        for _ in 0..2 {
            assert!(mine().is_empty());
            std::thread::sleep(LONG);
        }
        for _ in 0..LOOKS {
            mine();
            std::thread::sleep(LONG / LOOKS);
        }
        let reports = mine();
        assert!(reports.len() == 1 && reports[0].contains("Lock(Leaf)"), "{reports:?}");
        drop(held);
        assert!(mine().is_empty());
    }
}
