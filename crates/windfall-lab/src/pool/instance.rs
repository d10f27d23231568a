//! An instance of the pool: a share of the frames, with its own lists and locks.
//!
//! **Purpose.** `innodb_buffer_pool_instances`: an access to one instance never waits for the locks of another. [`Era`]
//! defines which lock guards which part; this module acquires the locks.
//!
//! **Invariants.** Locks are taken in the order of [`Lock`], instance by instance (checked by
//! `pool/instance.rs::acquire`). Under a latch of the page hash no other of these locks is taken (checked by
//! `watch/mod.rs::take`).

use core::ops::Range;

use windfall::ids::PageId;

use super::{
    descriptor::Descriptor,
    era::{Era, Lock, Part},
    lists::{Flush, Free, Lru},
    page_hash::PageHash,
};
use crate::watch::{Guard, Mutex, Purpose, ReadGuard, Report, RwLock, WriteGuard};

/// The mutexes, in lock order.
const MUTEXES: [Lock; 4] = [Lock::Pool, Lock::LruList, Lock::FreeList, Lock::FlushList];

/// An instance.
#[derive(Debug)]
pub struct Instance {
    era: Era,
    mutexes: [Mutex<()>; MUTEXES.len()],
    latches: Box<[RwLock<()>]>,
    /// The frames of the instance.
    pub frames: Range<u32>,
    /// The page hash: the frame that holds a page.
    pub pages: PageHash,
    /// The LRU list: frames with pages, by last use.
    pub lru: Lru,
    /// The free list: empty frames.
    pub free: Free,
    /// The flush list: frames with dirty pages.
    pub flush: Flush,
}

/// The held locks of an instance.
#[derive(Debug)]
pub struct HeldLocks<'a> {
    instance: &'a Instance,
    purpose: Purpose,
    guards: [Option<Guard<'a, ()>>; MUTEXES.len()],
}

impl<'a> HeldLocks<'a> {
    /// Acquires the lock of another part as well, unless it is held.
    pub fn acquire(&mut self, part: Part) {
        let Some(lock) = mutex_of(self.instance.era, part) else { return };
        let at = lock as usize;
        if self.guards[at].is_none() {
            debug_assert!(self.guards[at..].iter().all(Option::is_none), "{lock:?} is taken too late");
            self.guards[at] = Some(self.instance.mutexes[at].lock(self.purpose));
        }
    }

    /// Releases the lock of a part, unless that is the mutex of the instance, which also guards other parts.
    pub fn release(&mut self, part: Part) {
        if let Some(lock) = mutex_of(self.instance.era, part).filter(|lock| *lock != Lock::Pool) {
            self.guards[lock as usize] = None;
        }
    }

    /// Latches a page's part of the page hash exclusively, unless a mutex guards the page hash: the caller must then
    /// hold it.
    pub fn latch_page(&self, id: PageId) -> Option<WriteGuard<'a, ()>> {
        match self.instance.era.lock_of(Part::Pages) {
            Lock::PageHash => Some(self.instance.latch_of(id).write(self.purpose)),
            lock => {
                debug_assert!(self.guards[lock as usize].is_some(), "the page hash is not held");
                None
            }
        }
    }
}

/// Returns the mutex of a part; `None` if latches guard it.
fn mutex_of(era: Era, part: Part) -> Option<Lock> {
    Some(era.lock_of(part)).filter(|lock| *lock != Lock::PageHash)
}

/// The lock of the page hash, held for a look-up.
#[expect(dead_code, reason = "guards are held, not read")]
enum LookupGuard<'a> {
    /// The mutex of the instance.
    Mutex(Guard<'a, ()>),
    /// A latch of the page hash, shared.
    Latch(ReadGuard<'a, ()>),
}

impl Instance {
    /// Creates an instance with these frames.
    pub fn new(era: Era, frames: Range<u32>) -> Self {
        let name = |lock| match lock {
            Lock::Pool => "buffer pool",
            Lock::LruList => "LRU list",
            Lock::FreeList => "free list",
            Lock::FlushList => "flush list",
            Lock::PageHash => "page hash",
        };
        let latches = (0..era.page_hash_latches()).map(|_| RwLock::new(name(Lock::PageHash), ()));
        Self {
            era,
            mutexes: MUTEXES.map(|lock| Mutex::new(name(lock), ())),
            latches: latches.collect(),
            pages: PageHash::new(frames.len()),
            lru: Lru::default(),
            free: Free::new(frames.clone()),
            flush: Flush::default(),
            frames,
        }
    }

    /// Acquires the locks of these parts.
    pub fn lock(&self, parts: &[Part], purpose: Purpose) -> HeldLocks<'_> {
        let mut held = HeldLocks { instance: self, purpose, guards: [const { None }; MUTEXES.len()] };
        for (at, lock) in MUTEXES.into_iter().enumerate() {
            if parts.iter().any(|&part| self.era.lock_of(part) == lock) {
                held.guards[at] = Some(self.mutexes[at].lock(purpose));
            }
        }
        held
    }

    fn latch_of(&self, id: PageId) -> &RwLock<()> {
        &self.latches[self.pages.bucket(id) & (self.latches.len() - 1)]
    }

    /// Acquires the lock of a page's part of the page hash for a look-up.
    #[inline]
    fn lock_for_lookup(&self, id: PageId, purpose: Purpose) -> LookupGuard<'_> {
        match self.era.lock_of(Part::Pages) {
            Lock::PageHash => LookupGuard::Latch(self.latch_of(id).read(purpose)),
            lock => LookupGuard::Mutex(self.mutexes[lock as usize].lock(purpose)),
        }
    }

    /// Finds the frame of a page and pins it.
    #[inline]
    pub fn pin(&self, frames: &[Descriptor], id: PageId, purpose: Purpose) -> Option<u32> {
        let _locked = self.lock_for_lookup(id, purpose);
        let frame = self.pages.find(frames, id)?;
        frames[frame as usize].pin();
        Some(frame)
    }

    /// Returns the recorded holds and waits of its locks.
    pub fn reports(&self) -> Vec<Report> {
        let mutexes = self.mutexes.iter().map(Mutex::report);
        mutexes.chain(self.latches.iter().map(RwLock::report)).collect()
    }

    /// Discards the recorded holds and waits.
    pub fn reset(&self) {
        self.mutexes.iter().for_each(Mutex::reset);
        self.latches.iter().for_each(RwLock::reset);
    }
}
