//! Who holds what, and for how long.
//!
//! **Purpose.** What hangs, or lets others hang, is told with the thread and the lock, not by a test that never ends.
//!
//! **Invariants.** Debug builds note each acquisition of a lock, a latch or a gate, and when it is given back; others
//! know nothing, and pay nothing. Nobody waits for anything here but for the list of one thread, which is a moment's.
//! An acquisition is told apart from the next one of the same lock: what comes and goes is not held for long.
//!
//! **May touch.** Nothing: the machine's own locks, for these are none of the engine's.

use core::marker::PhantomData;
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use noted::{Holder, Noted};

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
        sync::{Arc, Mutex, PoisonError, Weak},
        thread,
    };

    use super::What;

    /// What one thread holds.
    #[derive(Debug)]
    pub struct Holder {
        pub name: String,
        list: Mutex<List>,
    }

    #[derive(Debug, Default)]
    struct List {
        next: u64,
        held: Vec<(u64, What)>,
    }

    static HOLDERS: Mutex<Vec<Weak<Holder>>> = Mutex::new(Vec::new());

    std::thread_local! {
        static MINE: Arc<Holder> = register();
    }

    fn register() -> Arc<Holder> {
        let thread = thread::current();
        let name = thread.name().map_or_else(|| format!("{:?}", thread.id()), str::to_owned);
        let holder = Arc::new(Holder { name, list: Mutex::default() });
        let mut holders = HOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
        if holders.len() == holders.capacity() {
            holders.retain(|holder| holder.strong_count() > 0);
        }
        holders.push(Arc::downgrade(&holder));
        holder
    }

    /// Everything that is held: whose, the number of the acquisition there, and what.
    pub fn all() -> Vec<(Arc<Holder>, u64, What)> {
        let holders = HOLDERS.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let held = |holder: Arc<Holder>| {
            let held = holder.list().held.clone();
            held.into_iter().map(move |(number, what)| (holder.clone(), number, what))
        };
        holders.iter().filter_map(Weak::upgrade).flat_map(held).collect()
    }

    impl Holder {
        fn list(&self) -> std::sync::MutexGuard<'_, List> {
            self.list.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// One thing that the thread holds. While the thread ends there is no list.
    #[derive(Debug)]
    pub struct Noted(Option<u64>);

    impl Noted {
        pub fn new(what: What) -> Self {
            let note = |mine: &Arc<Holder>| {
                let mut list = mine.list();
                list.next += 1;
                let number = list.next;
                list.held.push((number, what));
                number
            };
            Self(MINE.try_with(note).ok())
        }
    }

    impl Drop for Noted {
        fn drop(&mut self) {
            let Some(number) = self.0 else { return };
            let _ = MINE.try_with(|mine| {
                let mut list = mine.list();
                if let Some(at) = list.held.iter().rposition(|(held, _)| *held == number) {
                    list.held.remove(at);
                }
            });
        }
    }
}

/// Notices what is held for long, by looking now and then. Debug builds know; others never hold anything.
#[derive(Debug, Default)]
pub struct Watchdog {
    /// When each acquisition was seen first: by the address of its thread's list, and its number there.
    seen: BTreeMap<(usize, u64), Instant>,
}

impl Watchdog {
    /// Looks around. Gives what was there at a look so long ago and ever since, each with who holds it.
    pub fn look(&mut self, long: Duration) -> Vec<String> {
        let (now, held) = (Instant::now(), noted::all());
        let key = |holder: &Arc<Holder>, number: &u64| (Arc::as_ptr(holder).addr(), *number);
        let there = held.iter().map(|(holder, number, _)| key(holder, number));
        self.seen = there.map(|key| (key, *self.seen.get(&key).unwrap_or(&now))).collect();
        let since = |holder, number| now.duration_since(self.seen[&key(holder, number)]);
        held.iter()
            .filter(|(holder, number, _)| since(holder, number) >= long)
            .map(|(holder, number, what)| {
                format!("thread {} has held {what:?} for {:?}", holder.name, since(holder, number))
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
        assert!(mine().is_empty());
        // What comes and goes is not held.
        for _ in 0..4 {
            let held = mutex.lock();
            assert!(mine().iter().all(|told| told.contains("Gate")), "{:?}", mine());
            drop(held);
            std::thread::sleep(LONG / 2);
        }
        let told = mine();
        assert!(told.len() == 1 && told[0].contains("has held Gate for"), "{told:?}");
        drop(inside);
        let held = mutex.lock();
        assert!(mine().is_empty());
        std::thread::sleep(LONG);
        let told = mine();
        assert!(told.len() == 1 && told[0].contains("Lock(Leaf)"), "{told:?}");
        drop(held);
        assert!(mine().is_empty());
    }
}
