//! The engine's page store, on which the B+tree works.
//!
//! **Purpose.** Implements the traits of [`tree::store`](crate::tree::store) with the buffer pool, mini-transactions
//! and tablespaces. All layers above use the names of this file, so the tree's type parameter does not occur there.
//!
//! **Invariants.** None of its own: each call forwards to one call of a lower layer (by type).

use crate::{
    buffer::{BufferPool, OptimisticRead, SharedPage, Space},
    error::Result,
    failpoint::Eager,
    ids::{Lsn, PageNo, SpaceId},
    mtr::{Mtr, Slot},
    page::{Access, Page, PageOp, PageType},
    sync::Arc,
    tablespace,
    tree::{
        hash::TreeHash,
        store::{self, Latched, PageStore},
    },
};

/// The tree over the buffer pool.
pub type Tree = crate::tree::Tree<BufferPool>;

impl store::Reading for OptimisticRead<'_> {
    #[inline]
    fn page(&self) -> Page<'_> {
        OptimisticRead::page(self)
    }

    #[expect(clippy::inline_always, reason = "as the call below")]
    #[inline(always)]
    fn is_valid(&self) -> bool {
        OptimisticRead::is_valid(self)
    }

    #[inline]
    fn is_unverified(&self) -> bool {
        OptimisticRead::is_unverified(self)
    }

    fn mark_verified(&self) {
        OptimisticRead::mark_verified(self);
    }
}

impl store::Shared for SharedPage<'_> {
    fn page(&self) -> Page<'_> {
        SharedPage::page(self)
    }
}

impl PageStore for BufferPool {
    type Space = Arc<Space>;
    type Hash = TreeHash;
    type Reading<'a> = OptimisticRead<'a>;
    type Shared<'a> = SharedPage<'a>;
    type MiniTransaction<'a> = Mtr<'a>;

    fn page_size(&self) -> usize {
        BufferPool::page_size(self)
    }

    #[inline]
    fn freezes_at_once() -> bool {
        Eager::is_on()
    }

    fn space_id(&self, space: &Arc<Space>) -> SpaceId {
        space.id()
    }

    fn is_empty(&self, space: &Arc<Space>) -> Result<bool> {
        space.check_live()?;
        Ok(!space.has_pages())
    }

    #[inline]
    fn read<'a>(&'a self, space: &'a Arc<Space>, page: PageNo, access: Access) -> Result<OptimisticRead<'a>> {
        BufferPool::read(self, space, page, access)
    }

    fn share<'a>(&'a self, space: &'a Arc<Space>, page: PageNo, access: Access) -> Result<SharedPage<'a>> {
        BufferPool::share(self, space, page, access)
    }

    fn begin(&self) -> Result<Mtr<'_>> {
        Mtr::begin(self)
    }
}

impl<'a> store::MiniTransaction<'a, BufferPool> for Mtr<'a> {
    type Freeing = tablespace::Freeing;

    fn reserve(&mut self, space: &Arc<Space>, bytes: u64) -> Result<()> {
        Mtr::reserve(self, space, bytes)
    }

    fn latch(&mut self, space: &Arc<Space>, page: PageNo) -> Result<Latched> {
        Mtr::latch(self, space, page).map(|slot| Latched(slot.0))
    }

    fn upgrade(&mut self, space: &Arc<Space>, reading: &OptimisticRead<'_>) -> Result<Option<Latched>> {
        Ok(Mtr::upgrade(self, space, reading).map(|slot| Latched(slot.0)))
    }

    fn unlatch(&mut self, page: Latched) {
        Mtr::unlatch(self, Slot(page.0));
    }

    fn page(&self, page: Latched) -> Page<'_> {
        Mtr::page(self, Slot(page.0))
    }

    fn page_no(&self, page: Latched) -> PageNo {
        Mtr::id(self, Slot(page.0)).page
    }

    fn apply(&mut self, page: Latched, op: &PageOp<'_>) {
        Mtr::apply(self, Slot(page.0), op);
    }

    fn allocate(&mut self, space: &Arc<Space>, kind: PageType, level: u8, near: PageNo) -> Result<Latched> {
        tablespace::allocate(self, space, kind, level, near).map(|slot| Latched(slot.0))
    }

    fn prepare_free(&mut self, space: &Arc<Space>, page: Latched) -> Result<tablespace::Freeing> {
        tablespace::prepare_free(self, space, Slot(page.0))
    }

    fn free(&mut self, space: &Arc<Space>, freeing: tablespace::Freeing) {
        tablespace::free(self, space, freeing);
    }

    fn commit(self) -> Result<Option<Lsn>> {
        Mtr::commit(self)
    }
}
