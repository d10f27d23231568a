//! The classic buffer pool, as the servers had it.
//!
//! **Purpose.** Keeps the pages of Windfall's own [`Tree`](windfall_btree::tree::Tree). Implements the traits of
//! [`windfall_btree::tree::store`] with one page hash over all tablespaces, an LRU list, a flush list, a free list and
//! a global hash index, in one or more instances, under the mutexes of a version ([`Era`]). Frames, pages, files,
//! eviction and flushing are real; the redo log and the disk are Windfall's.
//!
//! **Invariants.** A pinned page stays in its frame (checked by `pool/replace.rs::remove_hash_entries`), and every page
//! access pins the page (by type), as `buf_page_get` did. A page is changed only under its exclusive latch (checked by
//! `pool/mtr.rs::apply`). A dirty page is in the flush list of its instance (test:
//! `a_tree_larger_than_the_pool_matches_the_model`), and is written only after the log up to its LSN is durable
//! (checked by `pool/cleaner.rs::write_out`). A *dead* page, whose tablespace was dropped, which belongs to a truncated
//! version, or which has the mark of a lazy drop, is never returned to a reader and never written, and its frame counts
//! as free (test: `no_dropped_page_is_served_or_written`). A thread that holds an instrumented lock of 4 or 5 below
//! never waits for a page latch (checked by `watch/mod.rs::assert_not_held`): it tries the latch, and skips the page if
//! the latch is taken. Under a latch of 5 no such lock is taken (checked by `watch/mod.rs::take`).
//!
//! **Lock order.**
//! 1. Page latches, in the order that the tree defines. After them the allocation lock of a tree, and after that the
//!    latch of the allocated page. If a dead page of an older version is in its place, the thread waits until that page
//!    has no users. The users take locks of their own version's trees alone, and their next access is refused.
//! 2. At a commit, the position of its group in the log.
//! 3. The lock of the thread that writes pages.
//! 4. The mutexes of one instance, in the order of [`Lock`](era::Lock).
//! 5. One of the following, under which nothing else is taken: a latch of the page hash, the latch of the hash index,
//!    the lock of the table of tablespaces, the lock of a tablespace's map of pages.
//!
//! **Limits.** There is no doublewrite file and no recovery. The pool survives no crash, and no experiment needs that.

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
pub use mtr::Mtr;
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
pub use space::{Handle, Space};
use windfall::{
    Event,
    disk::Disk,
    env::Env,
    error::Result,
    ids::{PageId, PageNo, SpaceId},
};
use windfall_btree::{
    page::{Access, Page},
    tree::store::{HashIndex as Hints, PageStore},
};
use windfall_engine::lab::{self, Frames, Health, Log};

use crate::watch::Report;

/// The environment of the pool: disk, log and health.
#[derive(Clone, Debug)]
pub struct Context {
    /// The files.
    pub disk: Arc<dyn Disk>,
    /// The redo log.
    pub log: Arc<Log>,
    /// Whether the engine has failed.
    pub health: Health,
}

impl Context {
    /// Creates a new log of this size, in bytes, on a disk without files.
    ///
    /// # Errors
    /// Errors of [`lab::create_log`].
    pub fn new(disk: Arc<dyn Disk>, env: Arc<dyn Env>, page_size: usize, log_size: u64) -> Result<Self> {
        let health = Health::new();
        let log = lab::create_log(&disk, env, &health, page_size, log_size)?;
        Ok(Self { disk, log: Arc::new(log), health })
    }
}

/// The configuration of a pool.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct PoolOptions {
    /// The version that determines the locks.
    pub era: Era,
    /// The number of instances that share the frames.
    pub instances: usize,
    /// Frames of all instances together.
    pub frames: usize,
    /// Bytes per page.
    pub page_size: usize,
    /// Whether the hash index is on.
    pub hash_index: bool,
    /// The maximum percentage of an instance's pages that stay dirty: `innodb_max_dirty_pages_pct`.
    pub dirty_percent: u32,
}

/// Counters of the pool's work.
#[derive(Debug, Default)]
pub struct Counters {
    /// Pages read from their files.
    pub reads: AtomicU64,
    /// Pages evicted.
    pub evictions: AtomicU64,
}

/// The pool.
#[derive(Debug)]
pub struct ClassicPool {
    context: Context,
    options: PoolOptions,
    memory: Frames,
    frames: Box<[Descriptor]>,
    instances: Box<[Instance]>,
    hash: HashIndex,
    /// The attached tablespaces.
    spaces: RwLock<FxHashMap<SpaceId, Arc<Space>>>,
    flusher: Mutex<Flusher>,
    frame_freed: Event,
    cleaner_wake: Arc<Event>,
    /// Counters of the pool's work.
    pub counters: Counters,
}

impl ClassicPool {
    /// Creates an empty pool.
    ///
    /// # Errors
    /// The address space cannot be reserved.
    pub fn new(context: Context, options: PoolOptions) -> Result<Self> {
        let memory = Frames::new(options.frames, options.page_size)?;
        let share = |n: usize| (options.frames * n / options.instances) as u32;
        let instances = (0..options.instances).map(|n| Instance::new(options.era, share(n)..share(n + 1)));
        Ok(Self {
            flusher: Mutex::new(Flusher::new(&*context.disk)),
            context,
            options,
            memory,
            frames: (0..options.frames).map(|_| Descriptor::default()).collect(),
            instances: instances.collect(),
            hash: HashIndex::new(options.hash_index),
            spaces: RwLock::default(),
            frame_freed: Event::new(),
            cleaner_wake: Arc::new(Event::new()),
            counters: Counters::default(),
        })
    }

    /// Returns the environment of the pool.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the configuration of the pool.
    pub fn options(&self) -> &PoolOptions {
        &self.options
    }

    /// Returns the descriptors of all frames.
    pub fn frames(&self) -> &[Descriptor] {
        &self.frames
    }

    /// Returns the instances.
    pub fn instances(&self) -> &[Instance] {
        &self.instances
    }

    /// Returns the hash index.
    pub fn hash_index(&self) -> &HashIndex {
        &self.hash
    }

    /// Switches the hash index on or off.
    pub fn set_hash_index(&self, on: bool) {
        self.hash.switch(on, &self.frames);
    }

    /// Returns the instance of a page, by its extent, as `buf_pool_get` does.
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

    /// Returns the page of a frame.
    pub fn page(&self, frame: u32) -> Page<'_> {
        self.memory.page(frame)
    }

    /// Adds a tablespace.
    pub fn attach(&self, space: &Arc<Space>) {
        self.spaces.write().insert(space.id, space.clone());
    }

    /// Removes a tablespace: all its pages that are still in the pool become dead.
    pub fn detach(&self, space: &Space) {
        self.spaces.write().remove(&space.id);
    }

    fn space(&self, id: SpaceId) -> Option<Arc<Space>> {
        self.spaces.read().get(&id).cloned()
    }

    /// Returns whether the page in a frame is dead.
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

    /// Returns the numbers of pages in the pool, of dirty pages and of free frames.
    pub fn occupancy(&self) -> [u64; 3] {
        let sum = |of: fn(&Instance) -> u32| self.instances.iter().map(|i| u64::from(of(i))).sum();
        [sum(|i| i.lru.len()), sum(|i| i.flush.len()), sum(|i| i.free.len())]
    }

    /// Returns the recorded holds and waits: one report per lock of each instance, and that of the hash index.
    pub fn lock_reports(&self) -> Vec<Report> {
        let instances = self.instances.iter().flat_map(Instance::reports);
        instances.chain([self.hash.report()]).collect()
    }

    /// Discards the recorded holds and waits.
    pub fn reset_locks(&self) {
        self.instances.iter().for_each(Instance::reset);
        self.hash.reset();
    }

    /// Wakes the threads that wait for a frame.
    fn notify_freed(&self) {
        self.frame_freed.notify();
    }
}

/// A tree's access to the global hash index.
#[derive(Debug)]
pub struct TreeHash {
    pool: Arc<ClassicPool>,
    handle: Handle,
}

impl TreeHash {
    /// Creates the access for this tree.
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
        // The caller finds the position of the key in the leaf itself.
        self.pool.hash.search(self.handle.tree, hash).map(|page| (page, 0))
    }

    fn note(&self, _hash: u64, leaf: PageNo, _slot: usize) {
        self.pool.hash_if_due(&self.handle, leaf);
    }
}

impl PageStore for ClassicPool {
    type Space = Handle;
    type Hash = TreeHash;
    type Reading<'a> = Reading<'a>;
    type Shared<'a> = Shared<'a>;
    type MiniTransaction<'a> = Mtr<'a>;

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

    fn begin(&self) -> Result<Mtr<'_>> {
        Mtr::begin(self)
    }
}
