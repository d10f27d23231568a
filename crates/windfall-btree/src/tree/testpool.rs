//! A pool guarded by one mutex: the smallest implementation of the traits of [`store`](super::store).
//!
//! **Purpose.** Shows that the tree needs nothing but those traits, and lets its tests run without disk, log and
//! recovery. It can keep every logged operation, and rebuild all pages from them.
//!
//! **Invariants.** One mutex guards everything but the words of pages, and what a page has next to them (by type). A
//! version is odd while its page is latched exclusively (test: `readers_and_cursors_during_splits_and_merges`).

use std::collections::HashMap;

use super::{
    PageSet,
    hash::TreeHash,
    store::{Access, Latched, MiniTransaction, PageStore, Reading, Shared},
};
use crate::{
    error::{Error, Result, UsageError},
    ids::{Lsn, PageId, PageNo, SpaceId},
    page::{Node, Page, PageOp, PageType, blank},
    sync::{
        Arc, Event, Mutex, Rank,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
            fence,
        },
        work::{self, Work},
    },
};

/// A page in memory.
#[derive(Debug)]
struct Frame {
    words: Box<[AtomicU64]>,
    version: AtomicU64,
    shared: AtomicU64,
    unverified: AtomicBool,
}

/// One logged change.
#[derive(Clone, Debug)]
pub struct Logged {
    /// The page.
    pub id: PageId,
    /// The operation, encoded.
    pub op: Vec<u8>,
}

#[derive(Debug, Default)]
struct State {
    pages: HashMap<PageId, Arc<Frame>>,
    allocated: HashMap<SpaceId, Vec<bool>>,
    log: Vec<Vec<Logged>>,
    lsn: u64,
    /// Whether a page was damaged: then links and fences may lead anywhere.
    is_damaged: bool,
}

/// The pool.
#[derive(Debug)]
pub struct TestPool {
    page_size: usize,
    keeps_log: bool,
    state: Mutex<State>,
    released: Event,
}

/// An optimistic read of a page of the pool.
#[derive(Clone, Debug)]
pub struct TestReading {
    frame: Arc<Frame>,
    id: PageId,
    version: u64,
}

impl Reading for TestReading {
    fn page(&self) -> Page<'_> {
        Page::new(&self.frame.words)
    }

    fn is_valid(&self) -> bool {
        fence(Acquire);
        self.frame.version.load(Relaxed) == self.version
    }

    fn is_unverified(&self) -> bool {
        self.frame.unverified.load(Relaxed)
    }

    fn mark_verified(&self) {
        self.frame.unverified.store(false, Relaxed);
    }
}

/// A shared latch on a page of the pool.
#[derive(Debug)]
pub struct TestShared<'a> {
    frame: Arc<Frame>,
    pool: &'a TestPool,
}

impl Shared for TestShared<'_> {
    fn page(&self) -> Page<'_> {
        Page::new(&self.frame.words)
    }
}

impl Drop for TestShared<'_> {
    fn drop(&mut self) {
        let state = self.pool.state.lock();
        self.frame.shared.fetch_sub(1, Relaxed);
        drop(state);
        self.pool.released.notify();
    }
}

impl TestPool {
    /// Creates a pool of pages of this size.
    pub fn new(page_size: usize, keeps_log: bool) -> Self {
        let state = Mutex::new(Rank::Leaf, State::default());
        Self { page_size, keeps_log, state, released: Event::new() }
    }

    fn frame(&self) -> Arc<Frame> {
        let words = blank(self.page_size);
        Arc::new(Frame {
            words,
            version: AtomicU64::new(0),
            shared: AtomicU64::new(0),
            unverified: AtomicBool::new(false),
        })
    }

    /// Waits until `take` returns a value from the state.
    fn wait<T>(&self, mut take: impl FnMut(&mut State) -> Option<T>) -> T {
        let mut taken = None;
        self.released.wait(|| {
            taken = take(&mut self.state.lock());
            taken.is_some()
        });
        taken.expect("the event waits until something was taken")
    }

    fn find(state: &State, id: PageId) -> Result<Arc<Frame>> {
        state.pages.get(&id).cloned().ok_or_else(|| Error::from(UsageError::Other(format!("no {id}").into())))
    }

    /// Returns the pages that a tablespace has allocated, except the allocation map itself.
    pub fn allocated(&self, space: SpaceId) -> PageSet {
        let state = self.state.lock();
        let bits = state.allocated.get(&space).map_or(&[][..], |bits| bits);
        (0..).zip(bits).filter(|(n, used)| *n > 0 && **used).map(|(n, _)| PageNo(n)).collect()
    }

    /// Returns the groups that were logged so far.
    pub fn log(&self) -> Vec<Vec<Logged>> {
        self.log_since(0)
    }

    /// Returns the groups that were logged after the first `groups`.
    pub fn log_since(&self, groups: usize) -> Vec<Vec<Logged>> {
        self.state.lock().log[groups..].to_vec()
    }

    /// Changes a page without a latch or a log record.
    pub fn damage(&self, id: PageId, change: impl FnOnce(Page<'_>)) {
        let mut state = self.state.lock();
        state.is_damaged = true;
        if let Some(frame) = state.pages.get(&id) {
            change(Page::new(&frame.words));
            frame.version.fetch_add(2, Relaxed);
            frame.unverified.store(true, Relaxed);
        }
    }

    /// Creates a pool with the pages that recovery builds from the first groups of the log, by decoding and applying
    /// them.
    ///
    /// # Errors
    /// The operation that failed.
    pub fn after(&self, groups: usize) -> Result<Self, String> {
        let mut rebuilt = State::default();
        let state = self.state.lock();
        for Logged { id, op } in state.log.iter().take(groups).flatten() {
            let frame = rebuilt.pages.entry(*id).or_insert_with(|| self.frame());
            let (op, rest) = PageOp::decode(op)?;
            if !rest.is_empty() {
                return Err(format!("{id}: bytes are left after {op:?}"));
            }
            op.apply(Page::new(&frame.words), *id).map_err(|what| format!("{id}: {what}: {op:?}"))?;
        }
        for (id, frame) in &rebuilt.pages {
            let used = Page::new(&frame.words).page_type() != PageType::Free as u8;
            let bits = rebuilt.allocated.entry(id.space).or_insert_with(|| vec![true]);
            bits.resize(bits.len().max(id.page.0 as usize + 1), false);
            bits[id.page.0 as usize] = used;
        }
        let state = Mutex::new(Rank::Leaf, rebuilt);
        Ok(Self { page_size: self.page_size, keeps_log: false, state, released: Event::new() })
    }

    /// Creates a pool with the same pages, and without a log.
    #[cfg(feature = "fuzz")]
    #[must_use]
    pub fn copy(&self) -> Self {
        let state = self.state.lock();
        let copies = state.pages.iter().map(|(id, frame)| {
            let copy = self.frame();
            Page::new(&copy.words).copy_from(Page::new(&frame.words));
            (*id, copy)
        });
        let copied =
            State { pages: copies.collect(), allocated: state.allocated.clone(), ..State::default() };
        let state = Mutex::new(Rank::Leaf, copied);
        Self { page_size: self.page_size, keeps_log: false, state, released: Event::new() }
    }

    /// Rebuilds every page from the log and compares it with the pool's.
    ///
    /// # Errors
    /// The first page that differs, or the operation that failed.
    pub fn replay(&self) -> Result<(), String> {
        let rebuilt = core::mem::take(&mut *self.after(usize::MAX)?.state.lock()).pages;
        let state = self.state.lock();
        for (id, frame) in &state.pages {
            let page = Page::new(&frame.words);
            let Some(other) = rebuilt.get(id) else { return Err(format!("{id} was never logged")) };
            // The LSN is set by the commit, not by an operation.
            Page::new(&other.words).set_lsn(page.lsn());
            let differs = |(a, b): (&AtomicU64, &AtomicU64)| a.load(Relaxed) != b.load(Relaxed);
            if let Some(at) = frame.words.iter().zip(&other.words).position(differs) {
                return Err(format!("{id} differs from its replay at byte {}", at * 8));
            }
        }
        Ok(())
    }
}

impl PageStore for TestPool {
    type Space = SpaceId;
    type Hash = TreeHash;
    type Reading<'a> = TestReading;
    type Shared<'a> = TestShared<'a>;
    type MiniTransaction<'a> = TestMini<'a>;

    fn page_size(&self) -> usize {
        self.page_size
    }

    fn space_id(&self, space: &SpaceId) -> SpaceId {
        *space
    }

    fn is_empty(&self, space: &SpaceId) -> Result<bool> {
        Ok(!self.state.lock().allocated.contains_key(space))
    }

    fn read<'a>(&'a self, space: &'a SpaceId, page: PageNo, _: Access) -> Result<TestReading> {
        work::count(Work::Frame);
        let id = PageId { space: *space, page };
        self.wait(|state| {
            let frame = match Self::find(state, id) {
                Ok(frame) => frame,
                Err(error) => return Some(Err(error)),
            };
            let version = frame.version.load(Acquire);
            (version % 2 == 0).then_some(Ok(TestReading { frame, id, version }))
        })
    }

    fn share<'a>(&'a self, space: &'a SpaceId, page: PageNo, access: Access) -> Result<TestShared<'a>> {
        loop {
            let reading = self.read(space, page, access)?;
            let state = self.state.lock();
            if reading.is_valid() {
                reading.frame.shared.fetch_add(1, Relaxed);
                drop(state);
                return Ok(TestShared { frame: reading.frame, pool: self });
            }
        }
    }

    fn begin(&self) -> Result<TestMini<'_>> {
        Ok(TestMini {
            pool: self,
            pages: Vec::new(),
            log: Vec::new(),
            changed: false,
            allocated: false,
            frees: false,
        })
    }
}

#[derive(Debug)]
struct Held {
    frame: Arc<Frame>,
    id: PageId,
    changed: bool,
}

/// A pool's mini-transaction.
#[derive(Debug)]
pub struct TestMini<'a> {
    pool: &'a TestPool,
    pages: Vec<Option<Held>>,
    log: Vec<Logged>,
    changed: bool,
    /// Whether it has allocated a page: a pool with allocation maps would then hold one latched.
    allocated: bool,
    /// Whether it has prepared to free a page, for which it would hold an allocation map, too.
    frees: bool,
}

/// Returns whether a node's keys are below those of another one.
fn is_left_of(node: Node<'_>, other: Node<'_>) -> bool {
    let lower = other.lower_fence();
    node.upper_fence().is_some_and(|upper| {
        upper.as_deref().is_same(lower.as_deref()) || upper.as_deref().can_be_below(lower.as_deref())
    })
}

/// Latches a frame exclusively if it is not latched.
fn try_latch(frame: &Frame) -> bool {
    let version = frame.version.load(Acquire);
    let free = version.is_multiple_of(2) && frame.shared.load(Relaxed) == 0;
    if free {
        frame.version.store(version + 1, Relaxed);
        fence(Release);
    }
    free
}

impl TestMini<'_> {
    fn hold(&mut self, frame: Arc<Frame>, id: PageId) -> Latched {
        self.pages.push(Some(Held { frame, id, changed: false }));
        Latched(self.pages.len() - 1)
    }

    /// Holds a page for which the thread may have waited, and checks that the pages held before come before it.
    fn hold_in_order(&mut self, frame: Arc<Frame>, id: PageId) -> Latched {
        if !self.pool.state.lock().is_damaged {
            assert!(!self.allocated && !self.frees, "{id} is latched after the allocation map");
            let new = Node::new(Page::new(&frame.words));
            for held in self.pages.iter().flatten() {
                let node = Node::new(Page::new(&held.frame.words));
                let are_nodes = [node, new].iter().all(|node| node.is_leaf() || node.is_inner());
                let is_before =
                    node.level() > new.level() || node.level() == new.level() && is_left_of(node, new);
                assert!(!are_nodes || is_before, "{id} is latched after {}", held.id);
            }
        }
        self.hold(frame, id)
    }

    fn held(&self, page: Latched) -> &Held {
        self.pages[page.0].as_ref().expect("the page is latched")
    }

    /// Releases the latches. `lsn` becomes the last change of the changed pages, if they were logged.
    fn release(&mut self, lsn: Option<Lsn>) {
        for held in self.pages.drain(..).flatten() {
            if held.changed {
                if let Some(lsn) = lsn {
                    Page::new(&held.frame.words).set_lsn(lsn);
                }
                held.frame.version.fetch_add(1, Release);
            } else {
                held.frame.version.fetch_sub(1, Release);
            }
        }
        self.pool.released.notify();
    }
}

impl<'a> MiniTransaction<'a, TestPool> for TestMini<'a> {
    type Freeing = Latched;

    fn reserve(&mut self, _: &SpaceId, _: u64) -> Result<()> {
        Ok(())
    }

    fn latch(&mut self, space: &SpaceId, page: PageNo) -> Result<Latched> {
        let id = PageId { space: *space, page };
        if let Some(n) = self.pages.iter().position(|held| held.as_ref().is_some_and(|held| held.id == id)) {
            return Ok(Latched(n));
        }
        let frame = self.pool.wait(|state| match TestPool::find(state, id) {
            Ok(frame) => try_latch(&frame).then_some(Ok(frame)),
            Err(error) => Some(Err(error)),
        })?;
        Ok(self.hold_in_order(frame, id))
    }

    fn upgrade(&mut self, _: &SpaceId, reading: &TestReading) -> Result<Option<Latched>> {
        let latched = self.pool.wait(|_| {
            if reading.is_valid() { try_latch(&reading.frame).then_some(true) } else { Some(false) }
        });
        Ok(latched.then(|| self.hold_in_order(reading.frame.clone(), reading.id)))
    }

    fn unlatch(&mut self, page: Latched) {
        let held = self.pages[page.0].take().expect("the page is latched");
        assert!(!held.changed, "{} was changed and must stay latched", held.id);
        held.frame.version.fetch_sub(1, Release);
        self.pool.released.notify();
    }

    fn page(&self, page: Latched) -> Page<'_> {
        Page::new(&self.held(page).frame.words)
    }

    fn page_no(&self, page: Latched) -> PageNo {
        self.held(page).id.page
    }

    fn apply(&mut self, page: Latched, op: &PageOp<'_>) {
        let held = self.pages[page.0].as_mut().expect("the page is latched");
        let is_latched = !held.frame.version.load(Relaxed).is_multiple_of(2);
        assert!(is_latched, "{} is changed without an exclusive latch", held.id);
        if let Err(what) = op.apply(Page::new(&held.frame.words), held.id) {
            panic!("{}: {what}: {op:?}", held.id);
        }
        held.changed = true;
        self.changed = true;
        if self.pool.keeps_log {
            let mut bytes = Vec::new();
            op.encode(&mut bytes);
            self.log.push(Logged { id: held.id, op: bytes });
        }
    }

    fn allocate(&mut self, space: &SpaceId, kind: PageType, level: u8, near: PageNo) -> Result<Latched> {
        let (frame, page) = self.pool.wait(|state| {
            let bits = state.allocated.entry(*space).or_insert_with(|| vec![true]);
            let near = (near.0 as usize).min(bits.len());
            let free = (near..bits.len()).find(|n| !bits[*n]);
            let n = free.or_else(|| bits.iter().position(|used| !used)).unwrap_or(bits.len());
            let id = PageId { space: *space, page: PageNo(n as u32) };
            let frame = state.pages.entry(id).or_insert_with(|| self.pool.frame()).clone();
            // A page that is being freed stays latched until the commit.
            try_latch(&frame).then(|| {
                bits.resize(bits.len().max(n + 1), false);
                bits[n] = true;
                (frame, id.page)
            })
        });
        self.allocated = true;
        let latched = self.hold(frame, PageId { space: *space, page });
        self.apply(latched, &PageOp::Format { kind, level });
        Ok(latched)
    }

    fn prepare_free(&mut self, _: &SpaceId, page: Latched) -> Result<Latched> {
        assert!(!self.changed || self.allocated, "what can fail comes before the first change");
        self.frees = true;
        Ok(page)
    }

    fn free(&mut self, space: &SpaceId, page: Latched) {
        let no = self.page_no(page);
        self.pool.wait(|state| {
            if let Some(bits) = state.allocated.get_mut(space) {
                assert!(core::mem::take(&mut bits[no.0 as usize]), "{no} was freed twice");
            }
            Some(())
        });
        self.apply(page, &PageOp::Format { kind: PageType::Free, level: 0 });
    }

    fn commit(mut self) -> Result<Option<Lsn>> {
        let lsn = self.pool.wait(|state| {
            state.lsn += u64::from(self.changed);
            if !self.log.is_empty() {
                state.log.push(core::mem::take(&mut self.log));
            }
            Some(Lsn(state.lsn))
        });
        self.release(Some(lsn));
        Ok(self.changed.then_some(lsn))
    }
}

impl Drop for TestMini<'_> {
    fn drop(&mut self) {
        // Changes that were not committed were not logged either: a replay detects them.
        self.release(None);
    }
}
