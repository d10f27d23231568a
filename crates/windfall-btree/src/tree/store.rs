//! The interface between a tree and the store of its pages.
//!
//! **Purpose.** The tree is an algorithm over pages. The engine's buffer pool and mini-transactions implement these
//! traits; any other pool can, too.
//!
//! **Invariants.** An optimistic reader trusts nothing before [`Reading::is_valid`] (test:
//! `readers_and_cursors_during_splits_and_merges`). A writer changes a page only through [`MiniTransaction::apply`],
//! under the exclusive latch that [`MiniTransaction::latch`], [`MiniTransaction::upgrade`] or
//! [`MiniTransaction::allocate`] took (test: `behaves_as_a_map_4k`). The latch is held until commit, so that the change
//! and its log record are always the same (checked by `storage/mtr.rs::unlatch`). Latches are taken parent before
//! child, left before right, tree before allocation map (checked by `tree/testpool.rs::hold_in_order`). A
//! mini-transaction that has applied a change must be committed: it cannot be rolled back (test:
//! `half_a_change_gets_nowhere`). Everything that can fail must therefore come before the first
//! [`MiniTransaction::apply`] (checked by `tree/testpool.rs::prepare_free`).

use core::fmt::Debug;

pub use crate::page::Access;
use crate::{
    error::Result,
    ids::{Lsn, PageNo, SpaceId},
    page::{Page, PageOp, PageType},
};

/// An optimistic read of a page.
pub trait Reading: Clone {
    /// Returns the page. Its content may change during the read; [`Reading::is_valid`] then returns false.
    fn page(&self) -> Page<'_>;

    /// Returns whether everything read so far was one unchanged version of the requested page.
    fn is_valid(&self) -> bool;

    /// Returns whether the page was read in from disk and has not been verified against its parent since.
    fn is_unverified(&self) -> bool;

    /// Marks the page as verified: it matches its parent.
    fn mark_verified(&self);
}

/// A page under a shared latch, which prevents changes.
pub trait Shared {
    /// Returns the page.
    fn page(&self) -> Page<'_>;
}

/// The adaptive hash index: the place where each key was last seen, so that point reads skip the inner nodes. A hint
/// proves nothing: the tree trusts only the content of the leaf, if that answers for the key.
pub trait HashIndex: Send + Sync + Debug {
    /// Returns whether the index is on. While it is off, no other method is called.
    fn is_on(&self) -> bool;

    /// Returns the leaf and the slot in which a key with this hash was last seen.
    fn hint(&self, hash: u64) -> Option<(PageNo, usize)>;

    /// Records the leaf and the slot of a key that was found by a descent, or in another slot than the hint's.
    fn note(&self, hash: u64, leaf: PageNo, slot: usize);
}

/// A store of the pages of tablespaces.
pub trait PageStore: Send + Sync + Sized + 'static {
    /// A tablespace, as the store represents it. Cheap to clone.
    type Space: Clone + Send + Sync + Debug;
    /// The hash index of a tree.
    type Hash: HashIndex;
    /// An optimistic read of a page.
    type Reading<'a>: Reading
    where
        Self: 'a;
    /// A shared latch on a page.
    type Shared<'a>: Shared
    where
        Self: 'a;
    /// A group of changes that reaches the log completely or not at all.
    type MiniTransaction<'a>: MiniTransaction<'a, Self>
    where
        Self: 'a;

    /// Returns the page size in bytes.
    fn page_size(&self) -> usize;

    /// Returns whether the leaf of each change is frozen first, and not only before a split: for tests.
    #[inline]
    fn freezes_at_once() -> bool {
        false
    }

    /// Returns the incarnation of a tablespace.
    fn space_id(&self, space: &Self::Space) -> SpaceId;

    /// Returns whether the tablespace has no page yet. A new one has none; the first allocation creates its header.
    ///
    /// # Errors
    /// `TableDropped` if the tablespace was dropped.
    fn is_empty(&self, space: &Self::Space) -> Result<bool>;

    /// Reads a page without a latch, from disk if needed. Waits while another thread holds it exclusively. The tree
    /// relies on [`check_header`](crate::page::check_header), which a page from disk has passed.
    ///
    /// # Errors
    /// `TableDropped` if the tablespace was dropped; damage; I/O.
    fn read<'a>(&'a self, space: &'a Self::Space, page: PageNo, access: Access) -> Result<Self::Reading<'a>>;

    /// Latches a page shared.
    ///
    /// # Errors
    /// As [`PageStore::read`].
    fn share<'a>(&'a self, space: &'a Self::Space, page: PageNo, access: Access) -> Result<Self::Shared<'a>>;

    /// Begins a mini-transaction.
    ///
    /// # Errors
    /// If the database is poisoned or closed.
    fn begin(&self) -> Result<Self::MiniTransaction<'_>>;
}

/// A page in a mini-transaction: latched exclusively until the commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latched(pub usize);

/// A group of changes that reaches the log completely or not at all.
pub trait MiniTransaction<'a, S: PageStore> {
    /// A latched page that is ready to be freed.
    type Freeing;

    /// Reserves log space for a long change, of at most this many bytes. For short ones the caller must have reserved
    /// it.
    ///
    /// # Errors
    /// If the log has no room.
    fn reserve(&mut self, space: &S::Space, bytes: u64) -> Result<()>;

    /// Latches a page exclusively, waiting for it. If this mini-transaction has already latched the page, returns it
    /// again.
    ///
    /// # Errors
    /// As [`PageStore::read`].
    fn latch(&mut self, space: &S::Space, page: PageNo) -> Result<Latched>;

    /// Latches the page that was read, if it is unchanged since; `None` if it has changed.
    ///
    /// # Errors
    /// As [`PageStore::read`].
    fn upgrade(&mut self, space: &S::Space, reading: &S::Reading<'_>) -> Result<Option<Latched>>;

    /// Releases, before the commit, a page that was latched but not changed.
    fn unlatch(&mut self, page: Latched);

    /// Returns a latched page.
    fn page(&self, page: Latched) -> Page<'_>;

    /// Returns the number of a latched page.
    fn page_no(&self, page: Latched) -> PageNo;

    /// Applies a change to a latched page and records it.
    fn apply(&mut self, page: Latched, op: &PageOp<'_>);

    /// Allocates a page, latched, formatted with this type and level. Takes the lowest free page at or after `near`,
    /// else the lowest free one.
    ///
    /// # Errors
    /// If the tablespace is full or dropped.
    fn allocate(&mut self, space: &S::Space, kind: PageType, level: u8, near: PageNo) -> Result<Latched>;

    /// Prepares to free a latched page, without changing anything. Everything that can fail in freeing fails here, so
    /// this must be called before the first change. Several pages must be prepared in ascending order.
    ///
    /// # Errors
    /// As [`PageStore::read`].
    fn prepare_free(&mut self, space: &S::Space, page: Latched) -> Result<Self::Freeing>;

    /// Frees a page: it is formatted as free, so that no reader takes it for its former content. Its latch is held
    /// until the commit.
    fn free(&mut self, space: &S::Space, freeing: Self::Freeing);

    /// Writes the changes to the log as one group, marks the pages dirty, and releases all latches. Returns the LSN
    /// after the group, which is durable once the log is durable up to it; `None` if nothing was logged.
    ///
    /// # Errors
    /// If the log accepts no more groups; the database is then poisoned.
    fn commit(self) -> Result<Option<Lsn>>;
}
