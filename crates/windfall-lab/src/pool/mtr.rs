//! Mini-transactions on the classic pool.
//!
//! **Purpose.** Latches pages and logs their changes as one group: implements [`MiniTransaction`].
//!
//! **Invariants.** The latches of changed pages are held until the commit (checked by `pool/mtr.rs::unlatch`). At the
//! commit the changes are logged first; then the pages are added to their flush lists with the start of the group as
//! LSN, which the log's low-water mark does not pass before that (checked by `pool/mtr.rs::mark_dirty`). The keys of a
//! hashed page and their entries in the hash index change together, under the page's latch: an entry without its key
//! would stay when the page is freed (checked by `pool/lists.rs::push`).

use smallvec::SmallVec;
use windfall::{
    error::Result,
    ids::{Lsn, PageNo},
};
use windfall_btree::{
    page::{Node, Page, PageOp, PageType},
    tree::store::{Latched, MiniTransaction},
};
use windfall_engine::lab::GroupWriter;

use super::{ClassicPool, Handle, Reading, access::Pin, descriptor::DIRTY, era::Part};
use crate::watch::Purpose;

#[derive(Debug)]
struct MtrPage<'a> {
    pin: Pin<'a>,
    handle: Handle,
    page: PageNo,
    changed: bool,
}

/// A mini-transaction.
#[derive(Debug)]
pub struct Mtr<'a> {
    pool: &'a ClassicPool,
    pages: SmallVec<[Option<MtrPage<'a>>; 4]>,
    group: GroupWriter,
    applied: bool,
    /// Pages that become free at the end.
    freed: Vec<(Handle, PageNo)>,
}

impl<'a> Mtr<'a> {
    pub(super) fn begin(pool: &'a ClassicPool) -> Result<Self> {
        pool.context.health.check()?;
        let group = GroupWriter::default();
        Ok(Self { pool, pages: SmallVec::new(), group, applied: false, freed: Vec::new() })
    }

    fn keep(&mut self, handle: &Handle, page: PageNo, pin: Pin<'a>) -> Latched {
        self.pages.push(Some(MtrPage { pin, handle: handle.clone(), page, changed: false }));
        Latched(self.pages.len() - 1)
    }

    fn mtr_page(&self, page: Latched) -> &MtrPage<'a> {
        self.pages[page.0].as_ref().expect("the page is latched")
    }

    /// Releases all latches, and then frees pages.
    fn release(&mut self) {
        for mtr_page in self.pages.drain(..).flatten() {
            if mtr_page.changed {
                mtr_page.pin.latch().release_changed();
            } else {
                mtr_page.pin.latch().release_unchanged();
            }
        }
        for (handle, page) in self.freed.drain(..) {
            handle.free_page(page);
        }
    }
}

/// Keeps the hash index consistent with a change of a page: before it, and after it.
struct Rehash<'a> {
    pool: &'a ClassicPool,
    frame: u32,
    page: Page<'a>,
}

impl Rehash<'_> {
    fn key(&self, slot: u16) -> Vec<u8> {
        let mut key = Vec::new();
        Node::new(self.page).key_into(usize::from(slot), &mut key);
        key
    }

    fn before(&self, op: &PageOp<'_>) {
        let (pool, frames) = (self.pool, &self.pool.frames);
        match op {
            PageOp::NodeRemove { slot } => pool.hash.remove(frames, self.frame, self.page, &self.key(*slot)),
            PageOp::Format { .. } | PageOp::NodeKeep { .. } | PageOp::NodeBuild { .. } => {
                pool.hash.drop_page(frames, self.frame, self.page, Purpose::Hash);
            }
            PageOp::Write { .. }
            | PageOp::UndoWrite { .. }
            | PageOp::LeafInsert { .. }
            | PageOp::LeafReplace { .. }
            | PageOp::LeafHeader { .. }
            | PageOp::LeafFreeze { .. }
            | PageOp::InnerInsert { .. } => {}
        }
    }

    fn after(&self, op: &PageOp<'_>) {
        if let PageOp::LeafInsert { slot, .. } = op {
            self.pool.hash.insert(&self.pool.frames, self.frame, self.page, &self.key(*slot));
        }
    }
}

impl<'a> MiniTransaction<'a, ClassicPool> for Mtr<'a> {
    type Freeing = Latched;

    fn reserve(&mut self, _: &Handle, _: u64) -> Result<()> {
        // The lab's log is on a disk with enough space.
        Ok(())
    }

    fn latch(&mut self, handle: &Handle, page: PageNo) -> Result<Latched> {
        let id = handle.in_file(page);
        let is_it = |mtr_page: &Option<MtrPage<'_>>| {
            mtr_page.as_ref().is_some_and(|mtr_page| mtr_page.handle.in_file(mtr_page.page) == id)
        };
        if let Some(at) = self.pages.iter().position(is_it) {
            return Ok(Latched(at));
        }
        let pin = self.pool.latch_exclusive(handle, page)?;
        Ok(self.keep(handle, page, pin))
    }

    fn upgrade(&mut self, handle: &Handle, reading: &Reading<'_>) -> Result<Option<Latched>> {
        let frame = reading.pin.frame;
        if !self.pool.latch(frame).try_exclusive_at(reading.version) {
            return Ok(None);
        }
        self.pool.frames[frame as usize].pin();
        let pin = Pin { pool: self.pool, frame };
        let page = pin.page().id().page;
        Ok(Some(self.keep(handle, page, pin)))
    }

    fn unlatch(&mut self, page: Latched) {
        let mtr_page = self.pages[page.0].take().expect("the page is latched");
        assert!(!mtr_page.changed, "a changed page is latched to the commit");
        mtr_page.pin.latch().release_unchanged();
    }

    fn page(&self, page: Latched) -> Page<'_> {
        self.mtr_page(page).pin.page()
    }

    fn page_no(&self, page: Latched) -> PageNo {
        self.mtr_page(page).page
    }

    fn apply(&mut self, page: Latched, op: &PageOp<'_>) {
        let mtr_page = self.pages[page.0].as_mut().expect("the page is latched");
        let (frame, content) = (mtr_page.pin.frame, mtr_page.pin.page());
        debug_assert!(!mtr_page.pin.latch().try_share(), "a page is changed without its exclusive latch");
        let hashed = self.pool.is_hashed(frame);
        let rehash = Rehash { pool: self.pool, frame, page: content };
        if hashed {
            rehash.before(op);
        }
        mtr_page.changed = true;
        self.applied = true;
        let id = mtr_page.handle.in_tree(mtr_page.page);
        if let Err(what) = op.apply(content, id) {
            let what = format!("{id}: {what}: {op:?}");
            self.pool.context.health.poison(&what);
            panic!("{what}");
        }
        if hashed {
            rehash.after(op);
        }
        if !mtr_page.handle.space.temporary {
            self.group.page(id, op);
        }
    }

    fn allocate(&mut self, handle: &Handle, kind: PageType, level: u8, near: PageNo) -> Result<Latched> {
        let (page, pin) = handle.allocate(near, |page| self.pool.latch_fresh(handle, page))?;
        let latched = self.keep(handle, page, pin);
        self.apply(latched, &PageOp::Format { kind, level });
        Ok(latched)
    }

    fn prepare_free(&mut self, _: &Handle, page: Latched) -> Result<Latched> {
        Ok(page)
    }

    fn free(&mut self, handle: &Handle, page: Latched) {
        self.apply(page, &PageOp::Format { kind: PageType::Free, level: 0 });
        self.freed.push((handle.clone(), self.page_no(page)));
    }

    fn commit(mut self) -> Result<Option<Lsn>> {
        if !self.applied {
            return Ok(None);
        }
        let log = &self.pool.context.log;
        let appending = log.begin_group();
        let logged = !self.group.is_empty();
        let (start, end) = if logged {
            let (start, end) = appending.append(self.group.bytes())?;
            (start, Some(end))
        } else {
            (log.end(), None)
        };
        for mtr_page in self.pages.iter().flatten().filter(|mtr_page| mtr_page.changed) {
            if !mtr_page.handle.space.temporary {
                mtr_page.pin.page().set_lsn(end.expect("a change of a logged page is in the group"));
            }
            self.pool.mark_dirty(mtr_page.pin.frame, start);
        }
        drop(appending);
        self.applied = false;
        self.release();
        Ok(end)
    }
}

impl ClassicPool {
    fn is_hashed(&self, frame: u32) -> bool {
        self.frames[frame as usize].hashed.load(core::sync::atomic::Ordering::Relaxed) > 0
    }

    /// Adds a page to the flush list, unless it is there. The page is latched exclusively.
    fn mark_dirty(&self, frame: u32, since: Lsn) {
        let descriptor = &self.frames[frame as usize];
        if descriptor.is(DIRTY) {
            return;
        }
        let log = &self.context.log;
        debug_assert!(since >= log.low_water_mark(), "the low-water mark of the log has passed a change");
        let instance = self.instance_of(descriptor.tag());
        let _held = instance.lock(&[Part::Flush], Purpose::Dirty);
        descriptor.set_oldest(since);
        descriptor.set(DIRTY);
        instance.flush.insert(&self.frames, frame);
    }
}

impl Drop for Mtr<'_> {
    fn drop(&mut self) {
        let lives = |mtr_page: &MtrPage<'_>| mtr_page.changed && mtr_page.handle.is_live();
        if self.applied && self.pages.iter().flatten().any(lives) {
            self.pool.context.health.poison("a change of several pages was left unfinished");
        }
        self.release();
    }
}
