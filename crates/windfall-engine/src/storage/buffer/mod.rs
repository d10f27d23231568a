//! The buffer pool: pages in memory.
//!
//! **Purpose.** Finds a page through its tablespace's own page table, and reads it from disk when it is not there.
//! Readers can read a page without a latch. When a tablespace is dropped, its frames are freed without a visit to any
//! of them.
//!
//! **Invariants.** A frame is type-stable memory ([`arena`]), and its tag names the page that it holds; a reader checks
//! the tag under the version that it validates (test: `no_thread_takes_a_page_for_another`). A mini-transaction has
//! each page that it changes under the exclusive latch (by type). A dirty page is written only after the log is durable
//! up to its LSN (test: `a_low_water_mark_passes_nothing_that_only_the_log_knows`). A frame comes from the free list,
//! then from dropped tablespaces, and only then from a live tree (test:
//! `frames_come_from_the_free_list_then_from_drops_and_then_from_live_trees`). The foreground never writes a page: when
//! every victim is dirty it waits for the cleaner (test: `the_foreground_waits_for_the_cleaner_and_writes_no_page`).
//!
//! **Steps.** A read: [`BufferPool::read`] looks up the tablespace's [`page_table`], notes the frame's version and
//! checks its tag. On a miss, `load` takes a frame ([`replace`]), latches and tags it, enters it into the page table
//! and reads the page while other threads wait at the latch. A drop: [`BufferPool::detach`], which is two
//! compare-and-swaps and one push.

pub(crate) mod arena;
mod directory;
mod dirty;
mod doublewrite;
mod flush;
pub mod frame;
mod free;
#[cfg(feature = "fuzz")]
pub mod fuzz;
#[cfg(all(test, feature = "model"))]
pub(crate) mod interleavings;
#[cfg(any(test, feature = "testing"))]
mod invariants;
mod low_water_mark;
mod page_count;
mod page_table;
mod read_ahead;
mod reclaim;
mod replace;
mod resize;
mod row_count;
mod space;
#[cfg(test)]
pub(crate) mod test_pool;

use arena::{Arena, FrameNo};
#[cfg(test)]
pub(crate) use doublewrite::BATCH_PAGES;
pub(crate) use doublewrite::SMALLEST_ROOM;
pub use doublewrite::{Copies, CopyFound, Doublewrite, words};
use frame::{DIRTY, RETIRED, UNVERIFIED, WRITING};
pub(crate) use page_count::Known;
pub use read_ahead::READ_AHEAD_PAGES;
pub use replace::with_reserved_frames;
pub use space::{Durability, FileState, Space};

use crate::{
    disk::{Disk, FileName},
    env::Env,
    error::{CorruptError, Error, Owner, Result, UsageError},
    health::Health,
    ids::{Lsn, PageId, PageNo, SpaceId},
    log::Log,
    page::{self, Access, Page},
    sync::{
        Arc, Event, Held, Mutex, Rank,
        atomic::{
            AtomicBool, AtomicU32, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
        latch::Version,
        work::{self, Work},
    },
};

/// The smallest pool, in frames: enough for eight threads that split pages at the same time.
pub const MIN_FRAMES: usize = 64;

/// The services of lower layers that the pool uses.
#[derive(Clone, Debug)]
pub struct StorageContext {
    /// The files.
    pub disk: Arc<dyn Disk>,
    /// The redo log.
    pub log: Arc<Log>,
    /// Clock and waiting.
    pub env: Arc<dyn Env>,
    /// The health of the database: whether it is poisoned.
    pub health: Health,
}

/// The number of pools in this process.
static INSTANCES: AtomicU64 = AtomicU64::new(0);

/// The buffer pool.
#[derive(Debug)]
pub struct BufferPool {
    /// The number of the pool in this process, and so of the opened database.
    pub instance: u64,
    context: StorageContext,
    arena: Arena,
    page_size: usize,
    /// The size of the pool: the frames below this number are in use.
    limit: AtomicU32,
    /// The number of frames that were ever used: the memory of the others is untouched.
    used: AtomicU32,
    /// Whether frames beyond the size are still in use.
    shrinking: AtomicBool,
    shrink_round: Mutex<resize::Round>,
    free: free::FreeList,
    hand: AtomicU64,
    directory: directory::Directory,
    reclaimer: reclaim::Reclaimer,
    low_water_mark: low_water_mark::LowWaterMark,
    /// Notified, and counted, whenever a frame comes free.
    frame_freed: Event,
    frames_freed: AtomicU64,
    frame_waiters: AtomicU64,
    rounds: replace::Rounds,
    /// The error of the last batch if nothing of it was written, until a page is.
    flush_error: Mutex<Option<Error>>,
    /// Failures in a row to write a batch, weighted.
    failures: AtomicU64,
    /// Wakes the page cleaner.
    pub cleaner_wake: Arc<Event>,
    flusher: Mutex<flush::Flusher>,
    /// Held during the decision whether a tablespace gets a file or loses it.
    files: Mutex<flush::files::Files>,
    /// Whether recovery is replaying the log, which it does page by page and not in LSN order.
    recovering: AtomicBool,
    /// Counters for the metrics.
    pub counters: Counters,
}

/// Counters of the pool, for metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Pages read from disk.
    pub reads: AtomicU64,
    /// The pages among `reads` that were read ahead of their use.
    pub reads_ahead: AtomicU64,
    /// Pages written to data files.
    pub writes: AtomicU64,
    /// The pages among `writes` that no background worker wrote.
    pub foreground_writes: AtomicU64,
    /// Live pages evicted.
    pub evictions: AtomicU64,
    /// Frames taken from dropped tablespaces.
    pub reclaimed: AtomicU64,
    /// The number of waits of the foreground for a frame.
    pub frame_waits: AtomicU64,
    /// Data files created.
    pub files_created: AtomicU64,
    /// Frames that are dirty now.
    pub dirty: AtomicU64,
}

/// An optimistic read of a page, without a latch.
#[derive(Clone, Debug)]
pub struct OptimisticRead<'a> {
    pool: &'a BufferPool,
    frame: FrameNo,
    version: Version,
}

impl OptimisticRead<'_> {
    /// Returns the page. Nothing read from it may be relied on before [`OptimisticRead::is_valid`].
    #[inline]
    pub fn page(&self) -> Page<'_> {
        self.pool.arena.page(self.frame)
    }

    /// Returns whether the frame still holds the requested page, unchanged since the read began.
    ///
    /// Always inlined: if its address is taken, an `OptimisticRead` is kept on the stack, where it is read back in
    /// other pieces than it was written in. That defeats store forwarding, and the read waits for every load before it.
    /// Without the inlining, reads through the hash index took 8 % longer.
    #[expect(clippy::inline_always, reason = "measured, as said above")]
    #[inline(always)]
    pub fn is_valid(&self) -> bool {
        self.pool.arena.frame(self.frame).latch.is(self.version)
    }

    /// Returns whether the page has not been verified against the page that points to it since it was read from disk. A
    /// hint, because it is not part of the version.
    #[inline]
    pub fn is_unverified(&self) -> bool {
        self.pool.arena.frame(self.frame).is(UNVERIFIED)
    }

    /// Records that the page was verified against the page that points to it.
    pub fn mark_verified(&self) {
        self.pool.arena.frame(self.frame).clear(UNVERIFIED);
    }
}

/// A page under a shared latch.
#[derive(Debug)]
pub struct SharedPage<'a> {
    pool: &'a BufferPool,
    frame: FrameNo,
    _held: Held,
}

impl SharedPage<'_> {
    /// Returns the page.
    pub fn page(&self) -> Page<'_> {
        self.pool.arena.page(self.frame)
    }
}

impl Drop for SharedPage<'_> {
    fn drop(&mut self) {
        self.pool.arena.frame(self.frame).latch.unshare();
    }
}

/// A page under an exclusive latch. Dropping it releases the latch. A caller that changes the page must call
/// [`ExclusivePage::changed`].
#[derive(Debug)]
pub struct ExclusivePage<'a> {
    pool: &'a BufferPool,
    frame: FrameNo,
    changed: bool,
    handed_over: bool,
    _held: Held,
}

impl<'a> ExclusivePage<'a> {
    fn new(pool: &'a BufferPool, frame: FrameNo, held: Held) -> Self {
        Self { pool, frame, changed: false, handed_over: false, _held: held }
    }

    /// Ends the guard without releasing the latch: the caller must release it.
    fn hand_over(mut self) -> FrameNo {
        self.handed_over = true;
        self.frame
    }

    /// Returns the page.
    pub fn page(&self) -> Page<'_> {
        self.pool.arena.page(self.frame)
    }

    /// Returns the page's id.
    pub fn id(&self) -> PageId {
        self.pool.arena.frame(self.frame).tag()
    }

    /// Records that the page is about to change: its version will grow at the release.
    pub fn changed(&mut self) {
        self.changed = true;
    }

    /// Returns whether a change was recorded.
    pub fn is_changed(&self) -> bool {
        self.changed
    }

    /// Enters the page into its tablespace's dirty set, unless it is there. `since` is the start of the group that
    /// changed it.
    pub fn mark_dirty(&mut self, space: &Arc<Space>, since: Lsn) {
        self.changed = true;
        let frame = self.pool.arena.frame(self.frame);
        // Under this latch no other thread sets or clears the bit.
        if frame.is(DIRTY) {
            #[cfg(not(feature = "model"))]
            debug_assert!(frame.oldest() <= since, "a page changed before the change that made it dirty");
        } else {
            #[cfg(not(feature = "model"))]
            debug_assert!(
                frame.latch.version().is_none(),
                "a page becomes dirty without its exclusive latch"
            );
            let before = frame.set(DIRTY);
            debug_assert!(before & DIRTY == 0, "two threads mark a page dirty under one exclusive latch");
            debug_assert!(before & RETIRED == 0, "a page changed in a frame that is not in use");
            frame.set_oldest(since);
            self.pool.counters.dirty.fetch_add(1, Relaxed);
            let tag = frame.tag();
            debug_assert!(tag.space == space.id(), "{tag} is marked dirty in tablespace {}", space.id());
            self.pool.low_water_mark.page_dirtied(space, tag.page, since);
        }
    }
}

impl Drop for ExclusivePage<'_> {
    fn drop(&mut self) {
        let latch = &self.pool.arena.frame(self.frame).latch;
        match (self.handed_over, self.changed) {
            (true, _) => {}
            (false, true) => latch.release_changed(),
            (false, false) => latch.release_unchanged(),
        }
    }
}

fn count_access(space: SpaceId, latch: bool) {
    let is_system = space == SpaceId::SYSTEM;
    work::count(if is_system { Work::SystemTreeFrame } else { Work::Frame });
    if latch {
        work::count(if is_system { Work::SystemTreeLatch } else { Work::Latch });
    }
}

impl BufferPool {
    /// Returns an error for an impossible size.
    ///
    /// # Errors
    /// [`UsageError::Option`].
    pub(crate) fn check_frames(frames: usize, most: usize, page_size: usize) -> Result<()> {
        if frames < MIN_FRAMES {
            let what = format!(
                "{frames} pages are too few: give it at least {MIN_FRAMES} pages of {page_size} bytes"
            );
            return Err(UsageError::Option { name: "buffer_pool_size", what: what.into() }.into());
        }
        for (name, pages) in [("buffer_pool_size", frames), ("buffer_pool_max_size", most)] {
            if u32::try_from(pages).is_err() {
                let what = format!(
                    "{pages} pages of {page_size} bytes are more than the 2^32 that can be addressed"
                );
                return Err(UsageError::Option { name, what: what.into() }.into());
            }
        }
        Ok(())
    }

    /// Creates a pool of `frames` frames that may grow to `most`. The sizes must have passed
    /// [`BufferPool::check_frames`].
    ///
    /// # Errors
    /// When the address space cannot be reserved.
    pub fn new(context: StorageContext, page_size: usize, frames: usize, most: usize) -> Result<Self> {
        let most = most.max(frames);
        debug_assert!(Self::check_frames(frames, most, page_size).is_ok(), "impossible sizes");
        let arena = Arena::new(most, page_size)?;
        let flusher = flush::Flusher::new(&*context.disk);
        Ok(Self {
            instance: INSTANCES.fetch_add(1, Relaxed),
            context,
            arena,
            page_size,
            limit: AtomicU32::new(frames as u32),
            used: AtomicU32::new(0),
            shrinking: AtomicBool::new(false),
            shrink_round: Mutex::new(Rank::Leaf, resize::Round::default()),
            free: free::FreeList::default(),
            hand: AtomicU64::new(0),
            directory: directory::Directory::default(),
            reclaimer: reclaim::Reclaimer::default(),
            low_water_mark: low_water_mark::LowWaterMark::default(),
            frame_freed: Event::new(),
            frames_freed: AtomicU64::new(0),
            frame_waiters: AtomicU64::new(0),
            rounds: replace::Rounds::default(),
            flush_error: Mutex::new(Rank::Leaf, None),
            failures: AtomicU64::new(0),
            cleaner_wake: Arc::new(Event::new()),
            flusher: Mutex::new(Rank::Cleaner, flusher),
            files: Mutex::new(Rank::File, flush::files::Files::default()),
            recovering: AtomicBool::new(false),
            counters: Counters::default(),
        })
    }

    /// Returns the context of the pool.
    pub fn context(&self) -> &StorageContext {
        &self.context
    }

    /// Returns the page size in bytes.
    pub fn page_size(&self) -> usize {
        self.page_size
    }

    /// Enters a tablespace into the pool's directory at once, so that it is found by its id before it has a page.
    pub fn attach(&self, id: SpaceId, durability: Durability) -> Arc<Space> {
        let space = Arc::new(Space::new(id, durability));
        self.directory.slot_of(&space).expect("no thread can have dropped it yet");
        space
    }

    /// Returns the tablespace with this id, if it is in the pool's directory.
    pub fn space(&self, id: SpaceId) -> Option<Arc<Space>> {
        self.directory.get(id)
    }

    /// Returns all tablespaces in the pool's directory, including dropped ones until all their frames are freed.
    pub fn spaces(&self) -> Vec<Arc<Space>> {
        self.directory.all()
    }

    /// Drops a tablespace: two compare-and-swaps and one push. `lsn` is the end of the group that logged the drop, if
    /// it was logged. Nothing in the pool is visited. The frames are reused from now on, and the file is deleted once
    /// the log is durable up to `lsn`. A tablespace that never had a page has neither frames nor a file. Returns
    /// whether this call dropped it.
    pub fn detach(&self, space: &Arc<Space>, lsn: Option<Lsn>) -> bool {
        let dropped = space.mark_dropped(lsn);
        if dropped && space.close_directory_entry() {
            self.reclaimer.push(space.clone());
        }
        dropped
    }

    /// Sets whether recovery is changing the pages: then the log's low-water mark stays where it is.
    pub(crate) fn set_recovering(&self, recovering: bool) {
        self.recovering.store(recovering, Release);
    }

    /// Begins an optimistic read of a page, without a latch.
    ///
    /// # Errors
    /// [`Error::TableDropped`], damage, I/O.
    #[inline]
    pub fn read(&self, space: &Arc<Space>, page: PageNo, hint: Access) -> Result<OptimisticRead<'_>> {
        let id = PageId { space: space.id(), page };
        count_access(id.space, false);
        loop {
            let frame = self.find(space, page, hint)?;
            let descriptor = self.arena.frame(frame);
            let Some(version) = descriptor.latch.version_while(|| descriptor.still_holds(id)) else {
                continue;
            };
            if descriptor.tag() == id {
                if hint == Access::Point {
                    descriptor.touch();
                }
                return Ok(OptimisticRead { pool: self, frame, version });
            }
        }
    }

    /// Latches a page in shared mode.
    ///
    /// # Errors
    /// As [`BufferPool::read`].
    pub fn share(&self, space: &Arc<Space>, page: PageNo, hint: Access) -> Result<SharedPage<'_>> {
        let id = PageId { space: space.id(), page };
        count_access(id.space, true);
        loop {
            let frame = self.find(space, page, hint)?;
            let descriptor = self.arena.frame(frame);
            let held = Held::take(Rank::Page);
            if !descriptor.latch.share_while(|| descriptor.still_holds(id)) {
                continue;
            }
            let shared = SharedPage { pool: self, frame, _held: held };
            if descriptor.tag() == id {
                if hint == Access::Point {
                    descriptor.touch();
                }
                return Ok(shared);
            }
        }
    }

    /// Latches a page exclusively.
    ///
    /// # Errors
    /// As [`BufferPool::read`].
    pub fn exclusive(&self, space: &Arc<Space>, page: PageNo) -> Result<ExclusivePage<'_>> {
        let id = PageId { space: space.id(), page };
        count_access(id.space, true);
        loop {
            let frame = self.find(space, page, Access::Point)?;
            if let Some(latched) = self.latch(frame, id) {
                self.arena.frame(frame).touch();
                return Ok(latched);
            }
        }
    }

    /// Latches the frame in which a page was found. Returns `None` when the frame no longer holds the page.
    fn latch(&self, frame: FrameNo, id: PageId) -> Option<ExclusivePage<'_>> {
        let descriptor = self.arena.frame(frame);
        let held = Held::take(Rank::Page);
        if !descriptor.latch.exclusive_while(|| descriptor.still_holds(id)) {
            return None;
        }
        let latched = ExclusivePage::new(self, frame, held);
        (descriptor.tag() == id).then_some(latched)
    }

    /// Latches the page of an optimistic read exclusively, if it is unchanged since.
    pub fn upgrade(&self, reading: &OptimisticRead<'_>) -> Option<ExclusivePage<'_>> {
        let descriptor = self.arena.frame(reading.frame);
        count_access(descriptor.tag().space, true);
        let latched = descriptor.latch.try_exclusive_at(reading.version);
        latched.then(|| ExclusivePage::new(self, reading.frame, Held::tried(Rank::Page)))
    }

    /// Latches a page that will be formatted: its old content does not matter, so it is not read from disk.
    ///
    /// # Errors
    /// As [`BufferPool::read`].
    pub(crate) fn latch_for_format(&self, space: &Arc<Space>, page: PageNo) -> Result<ExclusivePage<'_>> {
        let id = PageId { space: space.id(), page };
        count_access(id.space, true);
        loop {
            space.check_live()?;
            let resident = space.pages.get(page);
            if let Some(frame) = resident {
                if let Some(latched) = self.latch(frame, id) {
                    return Ok(latched);
                }
            } else if let Some(mut latched) = self.install(space, page, Access::Point)? {
                latched.changed();
                latched.page().fill_zero(0, self.page_size);
                return Ok(latched);
            }
        }
    }

    /// Latches the header page of a tablespace without pages, to be formatted. Returns `None` when the tablespace has
    /// pages by now.
    ///
    /// # Errors
    /// As [`BufferPool::read`].
    pub fn first(&self, space: &Arc<Space>) -> Result<Option<ExclusivePage<'_>>> {
        let latched = self.latch_for_format(space, PageNo::HEADER)?;
        // The thread that creates the header records that under this latch.
        if !space.has_pages() {
            return Ok(Some(latched));
        }
        // The header was created, and may even have been written and evicted: then this frame does not have the content
        // of the file.
        if latched.page().is_zero() {
            self.abandon(space, PageNo::HEADER, latched.hand_over());
        }
        Ok(None)
    }

    /// Enters a page as if it had been read, and touches none of its bytes: so the bookkeeping of a pool of hundreds of
    /// gigabytes can be measured on a machine with less memory. No thread may request such a page.
    ///
    /// # Errors
    /// As [`BufferPool::read`].
    #[cfg(feature = "lab")]
    pub(crate) fn pretend(&self, space: &Arc<Space>, page: PageNo) -> Result<()> {
        self.install(space, page, Access::Point).map(drop)
    }

    #[inline]
    fn find(&self, space: &Arc<Space>, page: PageNo, hint: Access) -> Result<FrameNo> {
        loop {
            space.check_live()?;
            if let Some(frame) = space.pages.get(page) {
                return Ok(frame);
            }
            self.load(space, page, hint)?;
        }
    }

    /// Reads a page in, unless another thread is doing so.
    #[cold]
    fn load(&self, space: &Arc<Space>, page: PageNo, hint: Access) -> Result<()> {
        let Some(mut latched) = self.install(space, page, hint)? else { return Ok(()) };
        latched.changed();
        match self.read_in(space, page, latched.page()) {
            Ok(()) => {
                self.arena.frame(latched.frame).set(UNVERIFIED);
                Ok(())
            }
            Err(error) => {
                self.abandon(space, page, latched.hand_over());
                Err(error)
            }
        }
    }

    /// Enters a page into the page table with a frame that is latched exclusively and holds nothing yet. Returns `None`
    /// when another thread entered the page first.
    fn install(&self, space: &Arc<Space>, page: PageNo, hint: Access) -> Result<Option<ExclusivePage<'_>>> {
        self.enter(space, page, hint, || self.allocate().map(Some))
    }

    /// As [`BufferPool::install`], with a frame from the given source. Also returns `None` when the source has none.
    fn enter(
        &self,
        space: &Arc<Space>,
        page: PageNo,
        hint: Access,
        frame: impl FnOnce() -> Result<Option<FrameNo>>,
    ) -> Result<Option<ExclusivePage<'_>>> {
        self.context.health.check()?;
        let slot = self.directory.slot_of(space)?;
        let Some(frame) = frame()? else { return Ok(None) };
        let descriptor = self.arena.frame(frame);
        // A reader with a stale frame number may hold the latch for a moment; no other thread can.
        descriptor.latch.exclusive();
        debug_assert!(descriptor.tag().space == SpaceId::NONE, "{frame:?} is taken and holds a page");
        debug_assert!(!descriptor.is(DIRTY | WRITING | RETIRED), "{frame:?} is taken and in use, or retired");
        descriptor.set_tag(PageId { space: space.id(), page }, slot);
        descriptor.arrive(u8::from(hint == Access::Point));
        let empty_chunks = &self.reclaimer.empty_chunks;
        if space.pages.insert(page, frame, empty_chunks, &crossbeam_epoch::pin()).is_err() {
            self.free_latched(frame);
            return Ok(None);
        }
        space.page_entered();
        // The drop marks before it drains, and this thread enters the page before it checks the mark. So one of the two
        // removes the page.
        if space.is_dropped() {
            self.abandon(space, page, frame);
            return Err(Error::TableDropped(Owner::Unknown));
        }
        Ok(Some(ExclusivePage::new(self, frame, Held::tried(Rank::Page))))
    }

    /// Removes an exclusively latched page from the pool.
    fn abandon(&self, space: &Space, page: PageNo, frame: FrameNo) {
        debug_assert!(
            self.arena.frame(frame).tag() == PageId { space: space.id(), page },
            "{frame:?} is abandoned and holds another page"
        );
        #[cfg(not(feature = "model"))]
        debug_assert!(
            !self.arena.frame(frame).is(DIRTY | WRITING),
            "{frame:?} is abandoned with a change that is not in its file"
        );
        let removed = space.pages.remove(page, frame, &self.reclaimer.empty_chunks, &crossbeam_epoch::pin());
        debug_assert!(
            removed || cfg!(feature = "model") || space.is_dropped(),
            "{frame:?} is abandoned, and the page table of its live tablespace does not name it"
        );
        space.page_removed();
        self.free_latched(frame);
    }

    /// Frees an exclusively latched frame that is in no page table.
    fn free_latched(&self, frame: FrameNo) {
        let descriptor = self.arena.frame(frame);
        if descriptor.clear_tag() {
            let counted = self.counters.dirty.fetch_sub(1, Relaxed);
            debug_assert!(counted > 0, "{frame:?} was dirty and was not counted");
        }
        descriptor.latch.release_changed();
        self.free_empty(frame);
    }

    /// Frees a frame that holds no page.
    fn free_empty(&self, frame: FrameNo) {
        #[cfg(not(feature = "model"))]
        debug_assert!(frame.0 < self.used.load(Acquire), "{frame:?} is freed and was never used");
        if frame.0 >= self.limit.load(Acquire) {
            self.retire(frame);
        } else {
            self.free.push(&self.arena, frame);
        }
        self.notify_freed();
    }

    /// Wakes the threads that wait for the log or for a frame when the database has stopped.
    pub(crate) fn notify_when_stopped(self: &Arc<Self>) {
        // A weak reference, because the pool has a reference to the health: a strong one would make a cycle.
        let pool = Arc::downgrade(self);
        self.context.health.when_stopped(move || {
            if let Some(pool) = pool.upgrade() {
                pool.context.log.wake_all_waiters();
                pool.notify_freed();
            }
        });
    }

    /// Wakes the threads that wait for a frame.
    pub(crate) fn notify_freed(&self) {
        self.frames_freed.fetch_add(1, Release);
        self.frame_freed.notify();
    }

    fn read_in(&self, space: &Space, page: PageNo, into: Page<'_>) -> Result<()> {
        let id = PageId { space: space.id(), page };
        if space.file() == FileState::None {
            into.fill_zero(0, into.len());
        } else {
            let read = self.context.disk.read_page(FileName::Data(id.space), self.offset(page), into.words());
            read.map_err(|error| error.of_page(page))?;
            self.counters.reads.fetch_add(1, Relaxed);
        }
        self.verify(id, into).inspect_err(|error| {
            tracing::error!(target: "windfall::storage", page = %id, %error, "a damaged page was read");
        })
    }

    /// Checks a page that was read from disk: its checksum, its id, that its header matches its type, and that its last
    /// change is in the log. The flusher checks the same of the pages that it writes.
    ///
    /// # Errors
    /// [`CorruptError::Page`].
    pub fn verify(&self, id: PageId, page: Page<'_>) -> Result<()> {
        let log_end = self.context.log.end();
        let logged = || if page.lsn() > log_end { Err("its last change is not in the log") } else { Ok(()) };
        let sound = page.verify(id).and_then(|()| page::check_header(page)).and_then(|()| logged());
        let what = match sound {
            Ok(()) => return Ok(()),
            Err(_) if page.is_zero() => "it was never written, or a part of the file is lost",
            Err(what) => what,
        };
        let file = self.context.disk.path(FileName::Data(id.space));
        Err(CorruptError::Page { file, page: id, lsn: page.lsn(), what: what.into() }.into())
    }

    /// Returns the offset of a page in its file.
    pub fn offset(&self, page: PageNo) -> u64 {
        u64::from(page.0) * self.page_size as u64
    }

    /// Returns the LSN of the oldest page change that is only in the log, or an LSN a little below it; `None` if there
    /// is none.
    pub(crate) fn oldest_dirty(&self) -> Option<Lsn> {
        let registered = self.registered();
        self.low_water_mark.oldest(self.context.log.durable(), registered)
    }

    /// Returns the LSN below which every change of a page is in a dirty set.
    fn registered(&self) -> Lsn {
        let log = &self.context.log;
        if self.recovering.load(Acquire) { log.low_water_mark() } else { log.append_low_water_mark() }
    }

    /// Returns how full the pool is, and with what. Examines the queue of dropped tablespaces, not the frames.
    pub fn occupancy(&self) -> Occupancy {
        let frames = self.limit.load(Relaxed) as usize;
        // While the pool shrinks the list contains frames beyond its size, too.
        let free = self.free_frames().min(frames);
        let (dropped_pending, dropped, dropped_dirty) = self.reclaimer.pending_frames();
        let dirty = (self.counters.dirty.load(Relaxed) as usize).saturating_sub(dropped_dirty);
        let dirty = dirty.min(frames.saturating_sub(free + dropped));
        Occupancy { frames, free, dirty, dropped, dropped_pending }
    }

    /// Returns the pool's bookkeeping per frame in bytes: the descriptor, the entry in a page table, and the entry in a
    /// dirty set if every page is dirty.
    pub fn bookkeeping_per_frame(&self) -> usize {
        size_of::<frame::Frame>() + size_of::<AtomicU32>() + size_of::<(Lsn, PageNo)>()
    }
}

/// The occupancy of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Frames of the pool.
    pub frames: usize,
    /// Frames that hold nothing.
    pub free: usize,
    /// Frames with a page of a live tablespace that has changes to be written.
    pub dirty: usize,
    /// Frames that still hold pages of dropped tablespaces: they are reused next.
    pub dropped: usize,
    /// Dropped tablespaces that the reclaimer has not handed over.
    pub dropped_pending: usize,
}
