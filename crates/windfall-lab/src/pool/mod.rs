//! The classic buffer pool, as the servers had it.
//!
//! **Purpose.** Keeps the pages of Windfall's own [`Tree`](windfall::tree::Tree): implements the traits of
//! [`windfall::tree::store`] with one page hash over all tablespaces, an LRU list, a flush list, a free list and a
//! global hash index, in one or more instances, under the mutexes of a version ([`Era`]). Frames, pages, files,
//! eviction and flushing are real; the redo log and the disk below are Windfall's.
//!
//! **Invariants.** A page that is pinned stays in its frame: every look at a page pins it, as `buf_page_get` did. A
//! page is changed under its exclusive latch only. A dirty page is in the flush list of its instance, and is written
//! only after the log up to its LSN is durable. A page of a dropped tablespace, of a version that was truncated, or
//! with the mark of a lazy drop is *dead*: it is never given to a reader and never written, and its frame is as good as
//! free.
//!
//! Locks are taken in this order:
//! 1. Latches of pages, as the tree has them in order; behind them the lock under which a tablespace gives a page out,
//!    and behind that the latch of this page, which nobody has who waits for another one.
//! 2. A commit: the place of its group in the log.
//! 3. The lock of who writes pages.
//! 4. The mutexes of one instance, in the order of [`Lock`](era::Lock).
//! 5. One of these, under which nothing else is taken: a latch of the page hash, the latch of the hash index, the lock
//!    of the tablespaces that there are, that of a tablespace's map of pages.
//!
//! Who has a lock of 2 to 5 waits for no latch of a page: it is tried, and the page left alone if somebody has it.
//!
//! **May touch.** [`watch`](crate::watch), of `windfall` what lies below its own buffer pool, with the arena of frames
//! and their latches, and `windfall-measure` for random numbers.
//!
//! What it lacks: a doublewrite file and recovery. It survives no crash, and no experiment asks it to.

mod access;
mod cleaner;
pub mod descriptor;
pub mod era;
mod fill;
pub mod hash_index;
pub mod instance;
pub mod lists;
mod mtr;
pub mod page_hash;
mod replace;
pub mod space;
#[cfg(test)]
mod tests;

use core::sync::atomic::AtomicU64;
use std::sync::Arc;

pub use access::{Reading, Shared};
use cleaner::Flusher;
use descriptor::{DELETED, Descriptor};
pub use era::Era;
use hash_index::HashIndex;
use instance::Instance;
pub use mtr::Mini;
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
pub use space::{Handle, Space};
use windfall::{
    buffer::arena::{Arena, FrameNo},
    disk::Disk,
    env::Env,
    error::Result,
    health::Health,
    ids::{Lsn, PageId, PageNo, SpaceId},
    log::{Control, ControlFile, Log, LogOptions},
    page::{Access, Page},
    sync::Event,
    tree::store::{HashIndex as Hints, PageStore},
};

use crate::watch::Report;

/// What the pool stands on.
#[derive(Clone, Debug)]
pub struct Ground {
    /// The files.
    pub disk: Arc<dyn Disk>,
    /// The redo log.
    pub log: Arc<Log>,
    /// Whether all is well.
    pub health: Health,
}

impl Ground {
    /// A new log of this size, in bytes, on a disk without files.
    ///
    /// # Errors
    /// Those of [`Log::open`].
    pub fn new(disk: Arc<dyn Disk>, env: Arc<dyn Env>, page_size: usize, log_size: u64) -> Result<Self> {
        let health = Health::new();
        let segment_size = LogOptions::SEGMENT_SIZE.min(log_size / 2);
        let control = Control {
            page_size: page_size as u32,
            uuid: *b"windfall-the-lab",
            segment_size,
            ..Control::default()
        };
        let mut control = ControlFile::create(disk.clone(), health.clone(), control)?;
        let options = LogOptions { size: log_size, ..LogOptions::default() };
        let log = Log::open(disk.clone(), env, health.clone(), options, &mut control, Lsn::ZERO)?;
        Ok(Self { disk, log: Arc::new(log), health })
    }
}

/// How a pool is made.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct PoolOptions {
    /// The version whose locks it has.
    pub era: Era,
    /// How many instances share the frames.
    pub instances: usize,
    /// Frames of all instances.
    pub frames: usize,
    /// Bytes of a page.
    pub page_size: usize,
    /// Whether the hash index is on.
    pub hash_index: bool,
    /// Of an instance's pages at most so many per cent stay dirty: `innodb_max_dirty_pages_pct`.
    pub dirty_percent: u32,
}

/// What the pool has done.
#[derive(Debug, Default)]
pub struct Counters {
    /// Pages read from their files.
    pub reads: AtomicU64,
    /// Pages that were evicted.
    pub evictions: AtomicU64,
}

/// The pool.
#[derive(Debug)]
pub struct ClassicPool {
    ground: Ground,
    options: PoolOptions,
    arena: Arena,
    frames: Box<[Descriptor]>,
    instances: Box<[Instance]>,
    hash: HashIndex,
    /// The tablespaces that there are.
    spaces: RwLock<FxHashMap<SpaceId, Arc<Space>>>,
    flusher: Mutex<Flusher>,
    frame_freed: Event,
    cleaner_wake: Arc<Event>,
    /// What it has done.
    pub counters: Counters,
}

impl ClassicPool {
    /// An empty pool.
    ///
    /// # Errors
    /// When the address space is not to be had.
    pub fn new(ground: Ground, options: PoolOptions) -> Result<Self> {
        let arena = Arena::new(options.frames, options.page_size)?;
        let share = |n: usize| (options.frames * n / options.instances) as u32;
        let instances = (0..options.instances).map(|n| Instance::new(options.era, share(n)..share(n + 1)));
        Ok(Self {
            flusher: Mutex::new(Flusher::new(&*ground.disk)),
            ground,
            options,
            arena,
            frames: (0..options.frames).map(|_| Descriptor::default()).collect(),
            instances: instances.collect(),
            hash: HashIndex::new(options.hash_index),
            spaces: RwLock::default(),
            frame_freed: Event::new(),
            cleaner_wake: Arc::new(Event::new()),
            counters: Counters::default(),
        })
    }

    /// What it stands on.
    pub fn ground(&self) -> &Ground {
        &self.ground
    }

    /// How it was made.
    pub fn options(&self) -> &PoolOptions {
        &self.options
    }

    /// The descriptors of all frames.
    pub fn frames(&self) -> &[Descriptor] {
        &self.frames
    }

    /// The instances.
    pub fn instances(&self) -> &[Instance] {
        &self.instances
    }

    /// The hash index.
    pub fn hash_index(&self) -> &HashIndex {
        &self.hash
    }

    /// Switches the hash index.
    pub fn set_hash_index(&self, on: bool) {
        self.hash.switch(on, &self.frames);
    }

    /// The instance that a page belongs to, by its extent, as `buf_pool_get` has it.
    #[inline]
    pub fn instance_of(&self, id: PageId) -> &Instance {
        if let [instance] = &*self.instances {
            return instance;
        }
        self.numbered_instance_of(id).1
    }

    fn numbered_instance_of(&self, id: PageId) -> (usize, &Instance) {
        let extent = u64::from(id.page.0 / space::EXTENT);
        let fold = (id.space.0 << 20).wrapping_add(id.space.0).wrapping_add(extent);
        let number = (fold % self.instances.len() as u64) as usize;
        (number, &self.instances[number])
    }

    /// A frame's page.
    pub fn page(&self, frame: u32) -> Page<'_> {
        self.arena.page(FrameNo(frame))
    }

    /// Makes a tablespace known.
    pub fn attach(&self, space: &Arc<Space>) {
        self.spaces.write().insert(space.id, space.clone());
    }

    /// The other way round: all its pages that are still here are dead.
    pub fn detach(&self, space: &Space) {
        self.spaces.write().remove(&space.id);
    }

    fn space(&self, id: SpaceId) -> Option<Arc<Space>> {
        self.spaces.read().get(&id).cloned()
    }

    /// Whether the page in a frame is of nobody any more.
    pub fn is_dead(&self, frame: u32) -> bool {
        let descriptor = &self.frames[frame as usize];
        if descriptor.is(DELETED) {
            return true;
        }
        let spaces = self.spaces.read();
        let space = spaces.get(&descriptor.space());
        space.is_none_or(|space| space.is_dropped() || space.version() != descriptor.version())
    }

    fn offset(&self, page: PageNo) -> u64 {
        u64::from(page.0) * self.options.page_size as u64
    }

    /// Pages in the pool, dirty ones, free frames.
    pub fn occupancy(&self) -> [u64; 3] {
        let sum = |of: fn(&Instance) -> u32| self.instances.iter().map(|i| u64::from(of(i))).sum();
        [sum(|i| i.lru.len()), sum(|i| i.flush.len()), sum(|i| i.free.len())]
    }

    /// What the locks have seen: a report for each lock of each instance, and that of the hash index.
    pub fn lock_reports(&self) -> Vec<Report> {
        let instances = self.instances.iter().flat_map(Instance::reports);
        instances.chain([self.hash.report()]).collect()
    }

    /// Forgets what they have seen.
    pub fn reset_locks(&self) {
        self.instances.iter().for_each(Instance::reset);
        self.hash.reset();
    }

    /// Tells those who wait for a frame to look again.
    fn tell_freed(&self) {
        self.frame_freed.notify();
    }
}

/// A tree's way to the global hash index.
#[derive(Debug)]
pub struct TreeHash {
    pool: Arc<ClassicPool>,
    handle: Handle,
}

impl TreeHash {
    /// For this tree.
    pub fn new(pool: Arc<ClassicPool>, handle: Handle) -> Self {
        Self { pool, handle }
    }
}

impl Hints for TreeHash {
    #[inline]
    fn is_on(&self) -> bool {
        self.pool.hash.is_on()
    }

    fn hint(&self, hash: u64) -> Option<(PageNo, usize)> {
        // Where in the leaf the key is, is found out there.
        self.pool.hash.search(self.handle.tree, hash).map(|page| (page, 0))
    }

    fn note(&self, _hash: u64, leaf: PageNo, _slot: usize) {
        self.pool.could_be_hashed(&self.handle, leaf);
    }
}

impl PageStore for ClassicPool {
    type Space = Handle;
    type Hash = TreeHash;
    type Reading<'a> = Reading<'a>;
    type Shared<'a> = Shared<'a>;
    type MiniTransaction<'a> = Mini<'a>;

    fn page_size(&self) -> usize {
        self.options.page_size
    }

    fn space_id(&self, handle: &Handle) -> SpaceId {
        handle.tree
    }

    fn is_empty(&self, handle: &Handle) -> Result<bool> {
        handle.check_live()?;
        Ok(handle.is_empty())
    }

    fn read<'a>(&'a self, handle: &'a Handle, page: PageNo, access: Access) -> Result<Reading<'a>> {
        self.look_at(handle, page, access)
    }

    fn share<'a>(&'a self, handle: &'a Handle, page: PageNo, access: Access) -> Result<Shared<'a>> {
        self.latch_shared(handle, page, access)
    }

    fn begin(&self) -> Result<Mini<'_>> {
        Mini::begin(self)
    }
}
