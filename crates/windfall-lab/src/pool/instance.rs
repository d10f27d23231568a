//! An instance of the pool: a share of the frames, with lists and locks of its own.
//!
//! **Purpose.** `innodb_buffer_pool_instances`: what belongs to one instance is never waited for in another. Which lock
//! guards what is [`Era`]'s to say; here they are taken.
//!
//! **Invariants.** Locks are taken in the order of [`Lock`], instance by instance. Under a latch of the page hash
//! nothing else is taken.
//!
//! **May touch.** `era`, `lists`, `page_hash`, `descriptor`, `watch`, `windfall`'s ids.

use core::ops::Range;

use windfall::ids::PageId;

use super::{
    descriptor::Descriptor,
    era::{Era, Lock, Part},
    lists::{Flush, Free, Lru},
    page_hash::PageHash,
};
use crate::watch::{Guard, Mutex, Purpose, ReadGuard, Report, RwLock, WriteGuard};

/// The mutexes, in their order.
const MUTEXES: [Lock; 4] = [Lock::Pool, Lock::LruList, Lock::FreeList, Lock::FlushList];

/// An instance.
#[derive(Debug)]
pub struct Instance {
    era: Era,
    mutexes: [Mutex<()>; MUTEXES.len()],
    latches: Box<[RwLock<()>]>,
    /// Its frames.
    pub frames: Range<u32>,
    /// Which of them holds a page.
    pub pages: PageHash,
    /// Those that hold pages, by last use.
    pub lru: Lru,
    /// Those that hold nothing.
    pub free: Free,
    /// Those whose pages were changed.
    pub flush: Flush,
}

/// Locks of an instance that are held.
#[derive(Debug)]
pub struct Holding<'a> {
    instance: &'a Instance,
    purpose: Purpose,
    guards: [Option<Guard<'a, ()>>; MUTEXES.len()],
}

impl<'a> Holding<'a> {
    /// Takes the lock of another part, too, unless it is held.
    pub fn also(&mut self, part: Part) {
        let Some(lock) = mutex_of(self.instance.era, part) else { return };
        let at = lock as usize;
        if self.guards[at].is_none() {
            debug_assert!(self.guards[at..].iter().all(Option::is_none), "{lock:?} is taken too late");
            self.guards[at] = Some(self.instance.mutexes[at].lock(self.purpose));
        }
    }

    /// Gives the lock of a part back, unless it is the mutex of the instance, which guards others, too.
    pub fn without(&mut self, part: Part) {
        if let Some(lock) = mutex_of(self.instance.era, part).filter(|lock| *lock != Lock::Pool) {
            self.guards[lock as usize] = None;
        }
    }

    /// Latches the page hash where a page belongs, if it is not guarded by a mutex, which is held then.
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

/// The mutex of a part; none if it is latched page by page.
fn mutex_of(era: Era, part: Part) -> Option<Lock> {
    Some(era.lock_of(part)).filter(|lock| *lock != Lock::PageHash)
}

/// The page hash, held to look up a page.
#[expect(dead_code, reason = "guards are held, not read")]
enum Looking<'a> {
    /// By the mutex of the instance.
    Mutex(Guard<'a, ()>),
    /// By a latch, shared.
    Latch(ReadGuard<'a, ()>),
}

impl Instance {
    /// An instance with these frames.
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

    /// Takes the locks of these parts.
    pub fn hold(&self, parts: &[Part], purpose: Purpose) -> Holding<'_> {
        let mut holding = Holding { instance: self, purpose, guards: [const { None }; MUTEXES.len()] };
        for (at, lock) in MUTEXES.into_iter().enumerate() {
            if parts.iter().any(|&part| self.era.lock_of(part) == lock) {
                holding.guards[at] = Some(self.mutexes[at].lock(purpose));
            }
        }
        holding
    }

    fn latch_of(&self, id: PageId) -> &RwLock<()> {
        &self.latches[self.pages.bucket(id) & (self.latches.len() - 1)]
    }

    /// Holds the page hash where a page belongs, to look it up.
    #[inline]
    fn look(&self, id: PageId, purpose: Purpose) -> Looking<'_> {
        match self.era.lock_of(Part::Pages) {
            Lock::PageHash => Looking::Latch(self.latch_of(id).read(purpose)),
            lock => Looking::Mutex(self.mutexes[lock as usize].lock(purpose)),
        }
    }

    /// Finds the frame of a page and pins it.
    #[inline]
    pub fn pin(&self, frames: &[Descriptor], id: PageId, purpose: Purpose) -> Option<u32> {
        let _looking = self.look(id, purpose);
        let frame = self.pages.find(frames, id)?;
        frames[frame as usize].pin();
        Some(frame)
    }

    /// What its locks have seen.
    pub fn reports(&self) -> Vec<Report> {
        let mutexes = self.mutexes.iter().map(Mutex::report);
        mutexes.chain(self.latches.iter().map(RwLock::report)).collect()
    }

    /// Forgets what they have seen.
    pub fn reset(&self) {
        self.mutexes.iter().for_each(Mutex::reset);
        self.latches.iter().for_each(RwLock::reset);
    }
}
