//! Which thread holds which lock, and for how long.
//!
//! **Purpose.** A lock that is held or waited for too long is reported with the thread and the rank of the lock.
//! Otherwise the only symptom would be a test that never ends.
//!
//! **Invariants.** Debug builds record each acquisition of a lock, a latch or a gate, and its release (test:
//! `a_thread_that_holds_something_for_long_is_named`); other builds record nothing, and pay nothing. A thread records
//! in slots of its own, without a lock (test: `a_record_waits_for_no_lock`). Each acquisition of a thread has its own
//! number, so many short ones do not look like a long one (test: `a_thread_that_holds_something_for_long_is_named`). A
//! poll adds only a limited time, because the whole process may have been suspended between two polls (test:
//! `a_thread_that_holds_something_for_long_is_named`). The list of threads is under a lock of the standard library, not
//! one of the engine's own, which would be recorded here, too (by type).

use core::marker::PhantomData;
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use noted::{HoldRecord, Holder};

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
    /// Records the lock that the thread has just acquired, or waits for.
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
        pub thread: u64,
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
        cell::Cell,
        sync::{
            Arc, Mutex, PoisonError, Weak,
            atomic::{
                AtomicU64,
                Ordering::{Acquire, Relaxed, Release},
            },
        },
        thread,
    };

    use super::{super::Rank, HeldObject};

    /// The number of objects of one thread that are recorded at a time. Further ones are not: of a thread that holds so
    /// many, the first ones are reported anyway.
    const SLOTS: usize = 64;
    /// A slot without an object.
    const FREE: u64 = 0;
    /// The bits of a slot that identify the object; the bits above are the number of the acquisition.
    const OBJECT_BITS: u32 = 8;

    /// What one thread holds.
    #[derive(Debug)]
    pub(super) struct Holder {
        /// No two threads have the same, not even one after the other.
        pub thread: u64,
        pub name: String,
        /// Only the thread itself writes them, so a record costs it no more than a store.
        slots: [AtomicU64; SLOTS],
    }

    /// The thread's own part.
    struct Mine {
        holder: Arc<Holder>,
        /// A bit for each slot that is in use.
        used: Cell<u64>,
        acquisitions: Cell<u64>,
    }

    static THREADS: AtomicU64 = AtomicU64::new(0);
    pub(super) static HOLDERS: Mutex<Vec<Weak<Holder>>> = Mutex::new(Vec::new());

    std::thread_local! {
        static MINE: Mine = register();
    }

    fn register() -> Mine {
        let thread = thread::current();
        let name = thread.name().map_or_else(|| format!("{:?}", thread.id()), str::to_owned);
        let slots = [const { AtomicU64::new(FREE) }; SLOTS];
        let holder = Arc::new(Holder { thread: THREADS.fetch_add(1, Relaxed), name, slots });
        let mut holders = HOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
        if holders.len() == holders.capacity() {
            holders.retain(|holder| holder.strong_count() > 0);
        }
        holders.push(Arc::downgrade(&holder));
        Mine { holder, used: Cell::new(0), acquisitions: Cell::new(0) }
    }

    /// Returns everything that is held: the thread, the number of the acquisition in this thread, and the object.
    pub(super) fn all() -> Vec<(Arc<Holder>, u64, HeldObject)> {
        let holders = HOLDERS.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut all = Vec::new();
        for holder in holders.iter().filter_map(Weak::upgrade) {
            let slots = holder.slots.iter().map(|slot| slot.load(Acquire)).filter(|slot| *slot != FREE);
            all.extend(slots.map(|slot| (holder.clone(), slot >> OBJECT_BITS, object_of(slot))));
        }
        all
    }

    fn slot_of(acquisition: u64, object: HeldObject) -> u64 {
        let object = match object {
            HeldObject::Gate => 0,
            HeldObject::Lock(rank) => rank as u64 + 1,
        };
        debug_assert!(object >> OBJECT_BITS == 0);
        acquisition << OBJECT_BITS | object
    }

    fn object_of(slot: u64) -> HeldObject {
        let object = slot & ((1 << OBJECT_BITS) - 1);
        if object == 0 { HeldObject::Gate } else { HeldObject::Lock(Rank::ALL[object as usize - 1]) }
    }

    /// One object that the thread holds, by its slot. `None` if all slots are in use, or if the thread is ending: then
    /// it has no slots any more.
    #[derive(Debug)]
    pub(super) struct HoldRecord(Option<u32>);

    impl HoldRecord {
        pub(super) fn new(what: HeldObject) -> Self {
            let note = |mine: &Mine| {
                let slot = mine.used.get().trailing_ones();
                let place = mine.holder.slots.get(slot as usize)?;
                // The first acquisition has the number 1, so no slot in use has the value of a free one.
                mine.acquisitions.set(mine.acquisitions.get() + 1);
                mine.used.set(mine.used.get() | 1 << slot);
                place.store(slot_of(mine.acquisitions.get(), what), Release);
                Some(slot)
            };
            Self(MINE.try_with(note).ok().flatten())
        }
    }

    impl Drop for HoldRecord {
        fn drop(&mut self) {
            let Some(slot) = self.0 else { return };
            let _ = MINE.try_with(|mine| {
                let is_held = mine.used.get() >> slot & 1 == 1;
                assert!(is_held || thread::panicking(), "a thread releases what it does not hold");
                mine.used.set(mine.used.get() & !(1 << slot));
                mine.holder.slots[slot as usize].store(FREE, Release);
            });
        }
    }
}

/// Finds locks, latches and gates that are held for long, by polling. In other than debug builds it finds nothing.
#[derive(Debug, Default)]
pub struct Watchdog {
    /// The time for which each acquisition has been seen, by its thread and its number there.
    seen: BTreeMap<(u64, u64), Duration>,
    last_poll: Option<Instant>,
}

/// The minimum number of polls before something counts as held for long.
const POLLS_MIN: u32 = 5;

impl Watchdog {
    /// Returns the locks that every poll has found held for at least this long, latches and gates included, each with
    /// its thread.
    pub fn poll(&mut self, long: Duration) -> Vec<String> {
        let (now, held) = (Instant::now(), noted::all());
        let passed =
            self.last_poll.replace(now).map_or(Duration::ZERO, |last| now - last).min(long / POLLS_MIN);
        let key = |holder: &Arc<Holder>, number: &u64| (holder.thread, *number);
        let seen = held.iter().map(|(holder, number, _)| {
            let key = key(holder, number);
            (key, self.seen.get(&key).map_or(Duration::ZERO, |seen| *seen + passed))
        });
        self.seen = seen.collect();
        let seen = held.iter().map(|(holder, number, what)| (holder, what, self.seen[&key(holder, number)]));
        seen.filter(|(_, _, seen)| *seen >= long)
            .map(|(holder, what, seen)| format!("thread {} has held {what:?} for {seen:?}", holder.name))
            .collect()
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use std::sync::mpsc;

    use super::{
        super::{Gate, Mutex},
        *,
    };

    #[test]
    fn a_record_waits_for_no_lock() {
        let ((begin, may_begin), (recorded, is_recorded)) = (mpsc::channel(), mpsc::channel());
        let thread = std::thread::spawn(move || {
            // The first record adds the thread to the list.
            for () in may_begin {
                drop(HoldNote::new(HeldObject::Gate));
                recorded.send(()).unwrap();
            }
        });
        begin.send(()).unwrap();
        is_recorded.recv().unwrap();
        let list = noted::HOLDERS.lock().unwrap();
        begin.send(()).unwrap();
        let is_recorded = is_recorded.recv_timeout(Duration::from_mins(10));
        assert_eq!(is_recorded, Ok(()), "a record waits for the list of threads");
        drop((list, begin));
        thread.join().unwrap();
    }

    const LONG: Duration = Duration::from_millis(20);

    #[test]
    fn a_thread_that_holds_something_for_long_is_named() {
        let (mutex, gate, mut watchdog) = (Mutex::new(Rank::Leaf, ()), Gate::new(), Watchdog::default());
        let me = std::thread::current().name().unwrap().to_owned();
        // Other tests hold locks for moments.
        let mut mine = || {
            let all = watchdog.poll(LONG).into_iter();
            all.filter(|reports| reports.contains(&me)).collect::<Vec<_>>()
        };
        let inside = gate.enter(0);
        // Short acquisitions do not count.
        for _ in 0..2 * POLLS_MIN {
            let held = mutex.lock();
            assert!(mine().iter().all(|reports| reports.contains("Gate")), "{:?}", mine());
            drop(held);
            std::thread::sleep(LONG / POLLS_MIN);
        }
        let reports = mine();
        assert!(reports.len() == 1 && reports[0].contains("has held Gate for"), "{reports:?}");
        drop(inside);
        let held = mutex.lock();
        // Rare polls do not make an acquisition long.
        for _ in 0..2 {
            assert!(mine().is_empty());
            std::thread::sleep(LONG);
        }
        for _ in 0..POLLS_MIN {
            mine();
            std::thread::sleep(LONG / POLLS_MIN);
        }
        let reports = mine();
        assert!(reports.len() == 1 && reports[0].contains("Lock(Leaf)"), "{reports:?}");
        drop(held);
        assert!(mine().is_empty());
    }
}
