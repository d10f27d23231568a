//! Interleavings of the buffer pool, over the simulated disk. Each scenario lists the bugs that it was seen to catch,
//! and the bugs passed to it are planted whenever it runs. The layers above use the helpers of this file.

mod drops;
mod frames;
mod low_water_mark;
mod pages;
mod stops;

use windfall_sim::{SimulatedDisk, Survive};

use super::{
    BATCH_PAGES, BufferPool, Doublewrite, Durability, FileState, Space, StorageContext,
    arena::FrameNo,
    frame::{DIRTY, WRITING},
};
use crate::{
    env::ModelEnv,
    error::{Error, Result},
    health::Health,
    ids::{Lsn, PageId, PageNo, SpaceId},
    log::{Control, ControlFile, Log, LogOptions},
    mtr::Mtr,
    page::{Access, Page, PageOp, PageType},
    sync::{Arc, atomic::Ordering::Relaxed},
};

pub(crate) const PAGE_SIZE: usize = 4096;
/// The tablespaces of the scenarios, and the pages that each of them has.
pub(crate) const SPACES: [SpaceId; 2] = [SpaceId(100), SpaceId(101)];
pub(crate) const PAGES: [PageNo; 3] = [PageNo(1), PageNo(2), PageNo(100)];
/// A tablespace without pages and file, for scenarios that need one.
pub(crate) const EMPTY: SpaceId = SpaceId(102);
/// The places at both ends of a page at which its id is stamped.
const STAMPS: [u32; 2] = [64, PAGE_SIZE as u32 - 8];

fn stamp(id: PageId) -> [u8; 8] {
    (id.space.0 << 32 | u64::from(id.page.0)).to_le_bytes()
}

/// Returns whether a page is whole and the requested one.
fn is_page(page: Page<'_>, id: PageId) -> bool {
    STAMPS.iter().all(|at| page.u64(*at as usize).to_le_bytes() == stamp(id))
}

/// A disk with the pages in their files, the start of every run.
#[derive(Clone)]
pub(crate) struct Prepared {
    disk: SimulatedDisk,
    end: Lsn,
}

/// A pool of few frames over such a disk.
#[derive(Clone)]
pub(crate) struct Base {
    pub(crate) disk: SimulatedDisk,
    pub(crate) pool: Arc<BufferPool>,
    pub(crate) spaces: [Arc<Space>; 2],
}

fn base(disk: SimulatedDisk, mut control: ControlFile, end: Lsn, frames: u32) -> Base {
    let (shared, env) = (Arc::new(disk.clone()), Arc::new(ModelEnv::default()));
    let options = LogOptions { size: 256 << 10, segment: 64 << 10, buffer: 64 << 10 };
    let health = Health::new();
    let log = Log::open(shared.clone(), env.clone(), health.clone(), options, &mut control, end).unwrap();
    let context = StorageContext { disk: shared, log: Arc::new(log), env, health };
    let pool =
        BufferPool::new(context, PAGE_SIZE, super::MIN_FRAMES, super::MIN_FRAMES + 4).map(Arc::new).unwrap();
    pool.limit.store(frames, Relaxed);
    pool.notify_when_stopped();
    let spaces = SPACES.map(|id| pool.attach(id, Durability::Logged));
    Base { disk, pool, spaces }
}

impl Prepared {
    pub(crate) fn new() -> Self {
        let disk = SimulatedDisk::new(1);
        Doublewrite::create(&disk, PAGE_SIZE, BATCH_PAGES).unwrap();
        let control = Control { page_size: PAGE_SIZE as u32, uuid: [7; 16], ..Control::default() };
        let control = ControlFile::create(Arc::new(disk.clone()), Health::new(), control).unwrap();
        let base = base(disk.clone(), control, Lsn::ZERO, super::MIN_FRAMES as u32);
        for space in &base.spaces {
            let mut mtr = Mtr::begin(&base.pool).unwrap();
            for page in PAGES {
                let slot = mtr.latch_fresh(space, page).unwrap();
                mtr.apply(slot, &PageOp::Format { kind: PageType::Overflow, level: 0 });
                let bytes = stamp(PageId { space: space.id(), page });
                for at in STAMPS {
                    mtr.apply(slot, &PageOp::Write { at, bytes: &bytes });
                }
            }
            mtr.commit().unwrap();
        }
        base.pool.flush_all().unwrap();
        let log = &base.pool.context().log;
        log.sync_to(Lsn::MAX).unwrap();
        Self { disk, end: log.end() }
    }

    pub(crate) fn open(&self, frames: u32) -> Base {
        let disk = self.disk.restart(Survive::Everything);
        let control = ControlFile::open(Arc::new(disk.clone()), Health::new()).unwrap();
        let base = base(disk, control, self.end, frames);
        base.spaces.iter().for_each(|space| space.set_file(FileState::Durable));
        base
    }
}

/// Makes the header page, unless it exists. Returns whether this call made it.
pub(crate) fn make_header(pool: &BufferPool, space: &Arc<Space>) -> Result<bool> {
    let mut mtr = Mtr::begin(pool)?;
    let Some(slot) = mtr.latch_first(space)? else { return Ok(false) };
    mtr.apply(slot, &PageOp::Format { kind: PageType::Map, level: 0 });
    space.set_has_pages();
    mtr.commit()?;
    Ok(true)
}

impl Base {
    /// Reads a page optimistically until a read is valid.
    pub(crate) fn read_page(&self, space: usize, page: PageNo) -> Result<()> {
        let space = &self.spaces[space];
        let id = PageId { space: space.id(), page };
        loop {
            let reading = self.pool.read(space, page, Access::Point)?;
            let right = is_page(reading.page(), id);
            if reading.is_valid() {
                assert!(right, "another page is taken for {id}");
                return Ok(());
            }
        }
    }

    /// Changes unused bytes of a page in a mini-transaction. Returns the LSN at the end of its group.
    pub(crate) fn change(&self, space: usize, page: PageNo) -> Result<Lsn> {
        let mut mtr = Mtr::begin(&self.pool)?;
        let slot = mtr.latch(&self.spaces[space], page)?;
        assert!(is_page(mtr.page(slot), mtr.id(slot)), "another page is latched for {}", mtr.id(slot));
        mtr.apply(slot, &PageOp::Write { at: 128, bytes: &[9; 8] });
        Ok(mtr.commit()?.expect("it is logged"))
    }

    /// After all pages were written: checks that every frame is held by one page of one live tablespace or is in the
    /// free list once, and that the counts are right.
    fn audit(&self) {
        let pool = &self.pool;
        let used = pool.used.load(Relaxed);
        let mut free: Vec<u32> =
            core::iter::from_fn(|| pool.free.pop(&pool.arena)).map(|frame| frame.0).collect();
        free.sort_unstable();
        let (mut held, mut dirty) = ([0; 2], 0);
        for no in (0..used).map(FrameNo) {
            let frame = pool.arena.frame(no);
            assert!(frame.latch.try_exclusive(), "{no:?} is left latched");
            let tag = frame.tag();
            assert!(!frame.is(WRITING), "{no:?} is left on its way to the disk");
            dirty += u64::from(frame.is(DIRTY));
            let places = free.iter().filter(|f| **f == no.0).count();
            if tag.space == SpaceId::NONE {
                assert_eq!(places, 1, "{no:?} holds nothing and is not in the free list once");
                continue;
            }
            assert_eq!(places, 0, "{no:?} holds {tag} and is in the free list");
            let space = SPACES.iter().position(|id| *id == tag.space).unwrap();
            assert!(!self.spaces[space].is_dropped(), "{no:?} still holds {tag}, which was dropped");
            assert_eq!(self.spaces[space].pages.get(tag.page), Some(no), "{tag} is not found in {no:?}");
            held[space] += 1;
        }
        assert_eq!(self.spaces.each_ref().map(|space| space.resident()), held, "residents are miscounted");
        assert_eq!(
            (pool.counters.dirty.load(Relaxed), dirty),
            (0, 0),
            "something is left dirty, or counted as such"
        );
    }
}
