//! The buffer pool: pages in memory.
//!
//! **Purpose.** Finds a page by way of its tablespace's own page table, reads it from disk when it is not there, lets
//! readers look without a latch, and gives frames back when a tablespace is dropped, without looking at any of them.
//!
//! **Invariants.** A frame is type-stable memory; what it holds is told by its tag, read under the version that is
//! validated. A page is changed under the exclusive latch only. A dirty page is written only after the log up to its
//! LSN is durable. A frame comes from the free list, then from dropped tablespaces, and only then from a live tree. The
//! foreground never writes a page: when every victim is dirty it waits for the cleaner.
//!
//! **May touch.** `log`, `disk`, `health`, `env`, `sync`, `page`, `ids`, `error`.
//!
//! The way of a read: [`BufferPool::read`] asks the tablespace's [`page_table`], notes the frame's version, checks its
//! tag; on a miss `load` takes a frame ([`replace`]), latches and tags it, enters it into the page table and reads the
//! page while others wait at the latch. The way of a drop: [`BufferPool::detach`], which is one store and one push.

pub mod arena;
mod directory;
mod dirty;
mod doublewrite;
mod floor;
mod flush;
pub mod frame;
mod free;
#[cfg(feature = "fuzz")]
pub mod fuzz;
#[cfg(all(test, feature = "model"))]
pub(crate) mod interleavings;
mod page_table;
mod read_ahead;
mod reclaim;
mod replace;
mod resize;
mod space;
#[cfg(test)]
pub(crate) mod test_pool;

use arena::{Arena, FrameNo};
pub use doublewrite::{Copies, CopyFound, Doublewrite, words};
use frame::{DIRTY, UNPROVEN};
pub use read_ahead::PAGES as READ_AHEAD;
pub use replace::on_kept_frames;
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
        Arc, Bug, Event, Held, Mutex, Rank,
        atomic::{
            AtomicBool, AtomicU32, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
        latch::Version,
        planted,
        work::{self, Work},
    },
};

/// The smallest pool: eight threads that split pages at the same time fit in.
pub const SMALLEST: usize = 64;

/// What the pool stands on.
#[derive(Clone, Debug)]
pub struct Ground {
    /// The files.
    pub disk: Arc<dyn Disk>,
    /// The redo log.
    pub log: Arc<Log>,
    /// Time and waiting.
    pub env: Arc<dyn Env>,
    /// Whether all is well.
    pub health: Health,
}

/// The pool.
#[derive(Debug)]
pub struct BufferPool {
    ground: Ground,
    arena: Arena,
    page_size: usize,
    /// How many frames are in use: those below this number.
    limit: AtomicU32,
    /// How many frames were ever used: the others' memory is untouched.
    used: AtomicU32,
    /// Whether frames beyond the size are still in use.
    shrinking: AtomicBool,
    shrink_round: Mutex<resize::Round>,
    free: free::FreeList,
    hand: AtomicU64,
    directory: directory::Directory,
    reclaimer: reclaim::Reclaimer,
    floor: floor::Floor,
    /// Notified, and counted, whenever a frame comes free.
    frame_freed: Event,
    frames_freed: AtomicU64,
    frame_waiters: AtomicU64,
    rounds: replace::Rounds,
    /// Why nothing of the last batch was written, until a page is.
    flush_error: Mutex<Option<Error>>,
    /// Failures in a row to write a batch as a whole.
    failures: AtomicU64,
    /// Wakes the page cleaner.
    pub cleaner_wake: Arc<Event>,
    flusher: Mutex<flush::Flusher>,
    /// Held while it is decided whether a tablespace gets a file, or loses it.
    files: Mutex<flush::files::Files>,
    /// Recovery goes through the log page by page, and not in its order.
    recovering: AtomicBool,
    /// Counters for the metrics.
    pub counters: Counters,
}

/// What the pool has done, for metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Pages read from disk.
    pub reads: AtomicU64,
    /// Those of them that were read ahead of their use.
    pub reads_ahead: AtomicU64,
    /// Pages written to data files.
    pub writes: AtomicU64,
    /// Those of them that no background worker wrote.
    pub foreground_writes: AtomicU64,
    /// Live pages evicted.
    pub evictions: AtomicU64,
    /// Frames taken from dropped tablespaces.
    pub reclaimed: AtomicU64,
    /// How often the foreground waited for a frame.
    pub frame_waits: AtomicU64,
    /// Data files created.
    pub files_created: AtomicU64,
    /// Frames that are dirty now.
    pub dirty: AtomicU64,
}

/// A look at a page without a latch.
#[derive(Clone, Debug)]
pub struct Reading<'a> {
    pool: &'a BufferPool,
    frame: FrameNo,
    version: Version,
}

impl Reading<'_> {
    /// The page. Nothing read from it holds before [`Reading::is_valid`].
    #[inline]
    pub fn page(&self) -> Page<'_> {
        self.pool.arena.page(self.frame)
    }

    /// Whether it was the page asked for, unchanged, until now.
    ///
    /// Always a part of its caller: a look whose address is taken lies on the stack, where it is read back in other
    /// pieces than it was written in, and that waits for every load before it. Reads by the hash index took 8 % more
    /// before.
    #[expect(clippy::inline_always, reason = "measured, as said above")]
    #[inline(always)]
    pub fn is_valid(&self) -> bool {
        self.pool.arena.frame(self.frame).latch.is(self.version)
    }

    /// Whether nobody has held the page against what leads to it since it came from the disk. A hint, as it is not part
    /// of the version.
    #[inline]
    pub fn is_unproven(&self) -> bool {
        self.pool.arena.frame(self.frame).is(UNPROVEN)
    }

    /// Notes that it was held against that.
    pub fn proven(&self) {
        self.pool.arena.frame(self.frame).clear(UNPROVEN);
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
    /// The page.
    pub fn page(&self) -> Page<'_> {
        self.pool.arena.page(self.frame)
    }
}

impl Drop for SharedPage<'_> {
    fn drop(&mut self) {
        self.pool.arena.frame(self.frame).latch.unshare();
    }
}

/// A page under an exclusive latch. Dropping it releases the latch; say [`ExclusivePage::changed`] when it changed.
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

    /// Ends the guard while the latch stays taken: it is the caller's to release now.
    fn hand_over(mut self) -> FrameNo {
        self.handed_over = true;
        self.frame
    }

    /// The page.
    pub fn page(&self) -> Page<'_> {
        self.pool.arena.page(self.frame)
    }

    /// Whose page it is.
    pub fn id(&self) -> PageId {
        self.pool.arena.frame(self.frame).tag()
    }

    /// The page is about to change: its version will grow at the release.
    pub fn changed(&mut self) {
        self.changed = true;
    }

    /// Whether it was said to change.
    pub fn is_changed(&self) -> bool {
        self.changed
    }

    /// Enters the page into its tablespace's dirty set, unless it is there. `since` is the start of the group that
    /// changed it.
    pub fn mark_dirty(&mut self, space: &Arc<Space>, since: Lsn) {
        self.changed = true;
        let frame = self.pool.arena.frame(self.frame);
        // Nobody else sets it under this latch, and nobody clears it.
        if !frame.is(DIRTY) {
            frame.set(DIRTY);
            frame.set_oldest(since);
            self.pool.counters.dirty.fetch_add(1, Relaxed);
            self.pool.floor.page_dirtied(space, frame.tag().page, since);
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
    let catalog = space == SpaceId::CATALOG;
    work::count(if catalog { Work::CatalogFrame } else { Work::Frame });
    if latch {
        work::count(if catalog { Work::CatalogLatch } else { Work::Latch });
    }
}

impl BufferPool {
    /// Refuses a size that cannot be.
    ///
    /// # Errors
    /// [`UsageError::Option`].
    pub fn check_frames(frames: usize, most: usize, page_size: usize) -> Result<()> {
        if frames < SMALLEST {
            let what =
                format!("{frames} pages are too few: give it at least {SMALLEST} pages of {page_size} bytes");
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

    /// A pool of `frames` frames that may grow to `most`. The caller has had [`BufferPool::check_frames`] look at them.
    ///
    /// # Errors
    /// When the address space is not to be had.
    pub fn new(ground: Ground, page_size: usize, frames: usize, most: usize) -> Result<Self> {
        let most = most.max(frames);
        debug_assert!(Self::check_frames(frames, most, page_size).is_ok(), "a pool that cannot be");
        let arena = Arena::new(most, page_size)?;
        let flusher = flush::Flusher::new(&*ground.disk);
        Ok(Self {
            ground,
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
            floor: floor::Floor::default(),
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

    /// What the pool stands on.
    pub fn ground(&self) -> &Ground {
        &self.ground
    }

    /// The page size in bytes.
    pub fn page_size(&self) -> usize {
        self.page_size
    }

    /// Makes a tablespace known to the pool at once, so that it is found by its number before it has a page.
    pub fn attach(&self, id: SpaceId, durability: Durability) -> Arc<Space> {
        let space = Arc::new(Space::new(id, durability));
        self.directory.slot_of(&space).expect("nobody could drop it yet");
        space
    }

    /// The tablespace of this number, if the pool knows it.
    pub fn space(&self, id: SpaceId) -> Option<Arc<Space>> {
        self.directory.get(id)
    }

    /// All tablespaces that the pool knows, dropped ones included while their frames are not all back.
    pub fn spaces(&self) -> Vec<Arc<Space>> {
        self.directory.all()
    }

    /// Drops a tablespace: one store, one push. `lsn` is the end of the group that logged the drop. Nothing in the pool
    /// is looked at; the frames are used again from now on, and the file goes once the log is durable up to `lsn`. What
    /// never had a page has neither. Says whether this call dropped it.
    pub fn detach(&self, space: &Arc<Space>, lsn: Lsn) -> bool {
        let dropped = space.mark_dropped(lsn);
        if dropped && space.is_known_for_good() {
            self.reclaimer.push(space.clone());
        }
        dropped
    }

    /// Says whether recovery changes the pages: then the log's floor stays where it is.
    pub fn set_recovering(&self, recovering: bool) {
        self.recovering.store(recovering, Release);
    }

    /// Looks at a page without a latch.
    ///
    /// # Errors
    /// [`Error::TableDropped`], damage, I/O.
    #[inline]
    pub fn read(&self, space: &Arc<Space>, page: PageNo, hint: Access) -> Result<Reading<'_>> {
        let id = PageId { space: space.id(), page };
        count_access(id.space, false);
        loop {
            let frame = self.find(space, page, hint)?;
            let descriptor = self.arena.frame(frame);
            let Some(version) = descriptor.latch.version_while(|| descriptor.still_holds(id)) else {
                continue;
            };
            if descriptor.tag() == id || planted(Bug::LookWithoutTag) {
                if hint == Access::Point {
                    descriptor.touch();
                }
                return Ok(Reading { pool: self, frame, version });
            }
        }
    }

    /// Latches a page shared.
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

    /// Latches the frame in which a page was found; `None` when the page has left it.
    fn latch(&self, frame: FrameNo, id: PageId) -> Option<ExclusivePage<'_>> {
        let descriptor = self.arena.frame(frame);
        let held = Held::take(Rank::Page);
        if !descriptor.latch.exclusive_while(|| descriptor.still_holds(id)) {
            return None;
        }
        let latched = ExclusivePage::new(self, frame, held);
        (descriptor.tag() == id || planted(Bug::LatchWithoutTag)).then_some(latched)
    }

    /// Latches the page that was read, if it is unchanged since.
    pub fn upgrade(&self, reading: &Reading<'_>) -> Option<ExclusivePage<'_>> {
        let descriptor = self.arena.frame(reading.frame);
        count_access(descriptor.tag().space, true);
        let latched = descriptor.latch.try_exclusive_at(reading.version);
        latched.then(|| ExclusivePage::new(self, reading.frame, Held::tried(Rank::Page)))
    }

    /// Latches a page that is going to be formatted: what it held does not matter, so it is not read.
    ///
    /// # Errors
    /// As [`BufferPool::read`].
    pub fn fresh(&self, space: &Arc<Space>, page: PageNo) -> Result<ExclusivePage<'_>> {
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

    /// Latches the header page of a tablespace without pages, to be formatted; `None` when it has pages by now.
    ///
    /// # Errors
    /// As [`BufferPool::read`].
    pub fn first(&self, space: &Arc<Space>) -> Result<Option<ExclusivePage<'_>>> {
        let latched = self.fresh(space, PageNo::HEADER)?;
        // Who makes the header notes it under this latch.
        if !space.has_pages() || planted(Bug::HeaderMadeTwice) {
            return Ok(Some(latched));
        }
        // It was made, and may even have been written and evicted: then this frame is not what is in the file.
        if latched.page().is_zero() {
            self.abandon(space, PageNo::HEADER, latched.hand_over());
        }
        Ok(None)
    }

    /// Enters a page as if it had been read, and touches none of its bytes: the bookkeeping of a pool of hundreds of
    /// gigabytes can be had on a machine with less memory. Nobody may ask for such a page.
    ///
    /// # Errors
    /// As [`BufferPool::read`].
    #[cfg(feature = "lab")]
    pub fn pretend(&self, space: &Arc<Space>, page: PageNo) -> Result<()> {
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

    /// Brings a page in, unless someone else is doing so.
    #[cold]
    fn load(&self, space: &Arc<Space>, page: PageNo, hint: Access) -> Result<()> {
        let Some(mut latched) = self.install(space, page, hint)? else { return Ok(()) };
        latched.changed();
        match self.read_in(space, page, latched.page()) {
            Ok(()) => {
                self.arena.frame(latched.frame).set(UNPROVEN);
                Ok(())
            }
            Err(error) => {
                self.abandon(space, page, latched.hand_over());
                Err(error)
            }
        }
    }

    /// Enters a page into the page table with a frame that is latched exclusively and holds nothing yet. `None` when
    /// someone else entered it first.
    fn install(&self, space: &Arc<Space>, page: PageNo, hint: Access) -> Result<Option<ExclusivePage<'_>>> {
        self.enter(space, page, hint, || self.allocate().map(Some))
    }

    /// The same with a frame that comes from elsewhere. `None` also when there is none.
    fn enter(
        &self,
        space: &Arc<Space>,
        page: PageNo,
        hint: Access,
        frame: impl FnOnce() -> Result<Option<FrameNo>>,
    ) -> Result<Option<ExclusivePage<'_>>> {
        self.ground.health.check()?;
        let slot = self.directory.slot_of(space)?;
        let Some(frame) = frame()? else { return Ok(None) };
        let descriptor = self.arena.frame(frame);
        // A reader with a stale frame number may hold the latch for a moment; nobody else can.
        descriptor.latch.exclusive();
        descriptor.set_tag(PageId { space: space.id(), page }, slot);
        descriptor.arrive(u8::from(hint == Access::Point));
        let empty_chunks = &self.reclaimer.empty_chunks;
        if space.pages.insert(page, frame, empty_chunks, &crossbeam_epoch::pin()).is_err() {
            self.free_latched(frame);
            return Ok(None);
        }
        space.page_came();
        // The drop marks before it drains, we enter before we look: one of us takes the page out.
        if space.is_dropped() && !planted(Bug::LateInstall) {
            self.abandon(space, page, frame);
            return Err(Error::TableDropped(Owner::Unknown));
        }
        Ok(Some(ExclusivePage::new(self, frame, Held::tried(Rank::Page))))
    }

    /// Takes a page out again that is latched exclusively.
    fn abandon(&self, space: &Space, page: PageNo, frame: FrameNo) {
        space.pages.remove(page, frame, &self.reclaimer.empty_chunks, &crossbeam_epoch::pin());
        space.page_went();
        self.free_latched(frame);
    }

    /// Frees an exclusively latched frame whose page is in no page table.
    fn free_latched(&self, frame: FrameNo) {
        let descriptor = self.arena.frame(frame);
        if descriptor.clear_tag() {
            self.counters.dirty.fetch_sub(1, Relaxed);
        }
        descriptor.latch.release_changed();
        self.give(frame);
    }

    /// Gives a frame that holds nothing to whoever needs one.
    fn give(&self, frame: FrameNo) {
        if frame.0 >= self.limit.load(Acquire) {
            self.retire(frame);
        } else {
            self.free.push(&self.arena, frame);
        }
        self.tell_freed();
    }

    /// Lets those who wait for the log or for a frame look again when the database has stopped.
    pub fn tell_when_stopped(self: &Arc<Self>) {
        // The health is known to both.
        let pool = Arc::downgrade(self);
        self.ground.health.when_stopped(move || {
            if let Some(pool) = pool.upgrade() {
                pool.ground.log.tell_stopped();
                pool.tell_freed();
            }
        });
    }

    /// Lets those who wait for a frame look again.
    pub(crate) fn tell_freed(&self) {
        self.frames_freed.fetch_add(1, Release);
        self.frame_freed.notify();
    }

    fn read_in(&self, space: &Space, page: PageNo, into: Page<'_>) -> Result<()> {
        let id = PageId { space: space.id(), page };
        if space.file() == FileState::None {
            into.fill_zero(0, into.len());
        } else {
            let read = self.ground.disk.read_page(FileName::Data(id.space), self.offset(page), into.words());
            read.map_err(|error| error.of_page(page))?;
            self.counters.reads.fetch_add(1, Relaxed);
        }
        self.verify(id, into)
    }

    /// Checks a page as it came from the disk: its checksum, that it is the one that was asked for, that its header
    /// fits its type, and that the log knows its last change. The flusher checks the same of what it writes.
    ///
    /// # Errors
    /// [`CorruptError::Page`].
    pub fn verify(&self, id: PageId, page: Page<'_>) -> Result<()> {
        let log_end = self.ground.log.end();
        let logged = || if page.lsn() > log_end { Err("its last change is not in the log") } else { Ok(()) };
        let sound = page.verify(id).and_then(|()| page::outline(page)).and_then(|()| logged());
        let what = match sound {
            Ok(()) => return Ok(()),
            Err(_) if planted(Bug::ChecksumIgnored) => return Ok(()),
            Err(_) if page.is_zero() => "it was never written, or a part of the file is lost",
            Err(what) => what,
        };
        let file = self.ground.disk.path(FileName::Data(id.space));
        Err(CorruptError::Page { file, page: id, lsn: page.lsn(), what: what.into() }.into())
    }

    /// Where a page lies in its file.
    pub fn offset(&self, page: PageNo) -> u64 {
        u64::from(page.0) * self.page_size as u64
    }

    /// The oldest change of a page that only the log knows, or a little below it.
    pub fn oldest_dirty(&self) -> Lsn {
        let registered = self.registered();
        self.floor.oldest(self.ground.log.durable(), registered)
    }

    /// Below this every change of a page is in a dirty set.
    fn registered(&self) -> Lsn {
        let log = &self.ground.log;
        if self.recovering.load(Acquire) { log.floor() } else { log.append_floor() }
    }

    /// How full the pool is, and with what. Looks at the queue of dropped tablespaces, not at frames.
    pub fn occupancy(&self) -> Occupancy {
        let frames = self.limit.load(Relaxed) as usize;
        // While the pool shrinks the list holds frames beyond its size, too.
        let free = self.free_frames().min(frames);
        let (dropped_pending, dropped, dropped_dirty) = self.reclaimer.pending_frames();
        let dirty = (self.counters.dirty.load(Relaxed) as usize).saturating_sub(dropped_dirty);
        let dirty = dirty.min(frames.saturating_sub(free + dropped));
        Occupancy { frames, free, dirty, dropped, dropped_pending }
    }

    /// What the pool's own bookkeeping takes for each frame, in bytes: its descriptor, its entry in a page table, and
    /// its place in a dirty set if every page is dirty.
    pub fn bookkeeping_per_frame(&self) -> usize {
        size_of::<frame::Frame>() + size_of::<AtomicU32>() + size_of::<(Lsn, PageNo)>()
    }
}

/// How full the pool is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Frames of the pool.
    pub frames: usize,
    /// Frames that hold nothing.
    pub free: usize,
    /// Frames with a page of a live tablespace that has changes to be written.
    pub dirty: usize,
    /// Frames that still hold pages of dropped tablespaces: the next to be used.
    pub dropped: usize,
    /// Dropped tablespaces that still have frames to give back.
    pub dropped_pending: usize,
}
