//! Who holds what, and for how long.
//!
//! **Purpose.** What hangs, or lets others hang, is told with the thread and the lock, not by a test that never ends.
//!
//! **Invariants.** Debug builds note each acquisition of a lock, a latch or a gate, and when it is given back; others
//! know nothing, and pay nothing. Nobody waits for anything here but for the list of one thread, which is a moment's.
//! Each acquisition has a number of its own: what comes and goes is not held for long. Nor is what is held while
//! nobody looks, for then the process may have stood still as a whole.
//!
//! **May touch.** Nothing: the machine's own locks, for these are none of the engine's.

use core::marker::PhantomData;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use noted::Noted;

use super::Rank;

/// What can be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A lock or a latch of this rank.
    Lock(Rank),
    /// The inside of a table's gate.
    Gate,
}

/// That this thread holds something, as long as this lives. It stays with the thread that made it.
#[derive(Debug)]
pub struct Note {
    _noted: Noted,
    _thread: PhantomData<*const ()>,
}

impl Note {
    /// Notes what the thread has just got, or waits for.
    #[inline]
    pub fn new(what: What) -> Self {
        Self { _noted: Noted::new(what), _thread: PhantomData }
    }
}

/// Who holds nothing that is noted.
#[cfg(not(debug_assertions))]
mod noted {
    use std::sync::Arc;

    use super::What;

    #[derive(Debug)]
    pub struct Holder {
        pub name: String,
    }

    #[derive(Debug)]
    pub struct Noted;

    impl Noted {
        #[inline]
        pub fn new(_: What) -> Self {
            Self
        }
    }

    pub fn all() -> Vec<(Arc<Holder>, u64, What)> {
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

    use super::What;

    /// What one thread holds.
    #[derive(Debug)]
    pub struct Holder {
        pub name: String,
        /// Each with its number.
        held: Mutex<Vec<(u64, What)>>,
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

    /// Everything that is held: whose, the number of the acquisition, and what.
    pub fn all() -> Vec<(Arc<Holder>, u64, What)> {
        let holders = HOLDERS.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let held = |holder: Arc<Holder>| {
            let held = holder.held().clone();
            held.into_iter().map(move |(number, what)| (holder.clone(), number, what))
        };
        holders.iter().filter_map(Weak::upgrade).flat_map(held).collect()
    }

    impl Holder {
        fn held(&self) -> std::sync::MutexGuard<'_, Vec<(u64, What)>> {
            self.held.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// One thing that the thread holds. While the thread ends there is no list.
    #[derive(Debug)]
    pub struct Noted(Option<u64>);

    impl Noted {
        pub fn new(what: What) -> Self {
            let note = |mine: &Arc<Holder>| {
                let number = NEXT.fetch_add(1, Relaxed);
                mine.held().push((number, what));
                number
            };
            Self(MINE.try_with(note).ok())
        }
    }

    impl Drop for Noted {
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

/// Notices what is held for long, by looking now and then. Debug builds know; others never hold anything.
#[derive(Debug, Default)]
pub struct Watchdog {
    /// For how long each acquisition was seen, by its number.
    seen: BTreeMap<u64, Duration>,
    last_look: Option<Instant>,
}

/// So many looks at least are needed to say that something was held for long.
const LOOKS: u32 = 5;

impl Watchdog {
    /// Looks around. Gives what was there at each look for so long, each with who holds it.
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
    fn who_holds_something_for_long_is_named() {
        let (mutex, gate, mut watchdog) = (Mutex::new(Rank::Leaf, ()), Gate::new(), Watchdog::default());
        let me = std::thread::current().name().unwrap().to_owned();
        // Other tests hold things for moments.
        let mut mine = || {
            let all = watchdog.look(LONG).into_iter();
            all.filter(|told| told.contains(&me)).collect::<Vec<_>>()
        };
        let inside = gate.enter(0);
        // What comes and goes is not held.
        for _ in 0..2 * LOOKS {
            let held = mutex.lock();
            assert!(mine().iter().all(|told| told.contains("Gate")), "{:?}", mine());
            drop(held);
            std::thread::sleep(LONG / LOOKS);
        }
        let told = mine();
        assert!(told.len() == 1 && told[0].contains("has held Gate for"), "{told:?}");
        drop(inside);
        let held = mutex.lock();
        // Nor is it for being looked at rarely.
        for _ in 0..2 {
            assert!(mine().is_empty());
            std::thread::sleep(LONG);
        }
        for _ in 0..LOOKS {
            mine();
            std::thread::sleep(LONG / LOOKS);
        }
        let told = mine();
        assert!(told.len() == 1 && told[0].contains("Lock(Leaf)"), "{told:?}");
        drop(held);
        assert!(mine().is_empty());
    }
}
