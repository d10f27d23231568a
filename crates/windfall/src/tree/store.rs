//! The seam: what a tree needs of whatever keeps its pages.
//!
//! **Purpose.** The tree is an algorithm over pages. The product's buffer pool and mini-transactions implement these
//! traits, and so may any other pool; the tree never knows which.
//!
//! **Invariants.** An optimistic reader believes nothing before [`Reading::is_valid`]. A writer changes a page only
//! through [`MiniTransaction::apply`], under the exclusive latch that [`MiniTransaction::latch`] or
//! [`MiniTransaction::upgrade`] took and that is held until commit, so that what was changed and what was logged are
//! the same thing. Latches are taken parent before child, left before right, tree before allocation map. A
//! mini-transaction that has applied something must be committed: it has no way back. So whatever can fail comes before
//! the first [`MiniTransaction::apply`].
//!
//! **May touch.** `ids`, `error`, `page`.

use core::fmt::Debug;

pub use crate::page::Access;
use crate::{
    error::Result,
    ids::{Lsn, PageNo, SpaceId},
    page::{Page, PageOp, PageType},
};

/// A page as an optimistic reader sees it.
pub trait Reading: Clone {
    /// The page. Its content may change under the reader's eyes until [`Reading::is_valid`] has said that it did not.
    fn page(&self) -> Page<'_>;

    /// Whether everything read so far was one unchanged version of the very page that was asked for.
    fn is_valid(&self) -> bool;

    /// Whether the page has come from the disk and nobody has held it against what leads to it since.
    fn is_unproven(&self) -> bool;

    /// The page is what its parent says.
    fn proven(&self);
}

/// A page under a shared latch: it does not change.
pub trait Shared {
    /// The page.
    fn page(&self) -> Page<'_>;
}

/// Where keys were last seen: lets point reads skip the inner nodes. A hint proves nothing: the tree believes what it
/// finds in the leaf that is named, if that answers for the key.
pub trait HashIndex: Send + Sync + Debug {
    /// Whether it is on. While it is not, nothing else is asked or told.
    fn is_on(&self) -> bool;

    /// The leaf that a key with this hash was last seen in, and its slot there.
    fn hint(&self, hash: u64) -> Option<(PageNo, usize)>;

    /// Notes the leaf and the slot of a key that was found by a descent, or in another slot than was hinted.
    fn note(&self, hash: u64, leaf: PageNo, slot: usize);
}

/// Keeps the pages of tablespaces.
pub trait PageStore: Send + Sync + Sized + 'static {
    /// A tablespace, as the store knows it. Cheap to clone.
    type Space: Clone + Send + Sync + Debug;
    /// What a tree is given to note its keys in.
    type Hash: HashIndex;
    /// An optimistic look at a page.
    type Reading<'a>: Reading
    where
        Self: 'a;
    /// A shared latch on a page.
    type Shared<'a>: Shared
    where
        Self: 'a;
    /// A group of changes that reaches the log whole or not at all.
    type MiniTransaction<'a>: MiniTransaction<'a, Self>
    where
        Self: 'a;

    /// The page size in bytes.
    fn page_size(&self) -> usize;

    /// The incarnation of a tablespace.
    fn space_id(&self, space: &Self::Space) -> SpaceId;

    /// Whether the tablespace has any page yet. A new one has none; the first allocation makes its header.
    ///
    /// # Errors
    /// `TableDropped` when the tablespace was dropped.
    fn is_empty(&self, space: &Self::Space) -> Result<bool>;

    /// Looks at a page without a latch, reading it from disk if need be. Waits while someone holds it exclusively.
    ///
    /// # Errors
    /// `TableDropped` when the tablespace was dropped; damage; I/O.
    fn read<'a>(&'a self, space: &'a Self::Space, page: PageNo, access: Access) -> Result<Self::Reading<'a>>;

    /// Latches a page shared.
    ///
    /// # Errors
    /// As [`PageStore::read`].
    fn share<'a>(&'a self, space: &'a Self::Space, page: PageNo, access: Access) -> Result<Self::Shared<'a>>;

    /// Begins a mini-transaction.
    ///
    /// # Errors
    /// When the database is poisoned or closed.
    fn begin(&self) -> Result<Self::MiniTransaction<'_>>;
}

/// A page in a mini-transaction: latched exclusively until the commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latched(pub usize);

/// A group of changes that reaches the log whole or not at all.
pub trait MiniTransaction<'a, S: PageStore> {
    /// A latched page that is ready to be freed.
    type Freeing;

    /// Makes sure that the log takes a long change, of so many bytes at most. Short ones are the caller's to care for.
    ///
    /// # Errors
    /// When it does not.
    fn reserve(&mut self, space: &S::Space, bytes: u64) -> Result<()>;

    /// Latches a page exclusively, waiting for it. A page that this mini-transaction has latched already is given
    /// again.
    ///
    /// # Errors
    /// As [`PageStore::read`].
    fn latch(&mut self, space: &S::Space, page: PageNo) -> Result<Latched>;

    /// Latches the page that was read, if it is still what was read; `None` when it changed meanwhile.
    ///
    /// # Errors
    /// As [`PageStore::read`].
    fn upgrade(&mut self, space: &S::Space, reading: &S::Reading<'_>) -> Result<Option<Latched>>;

    /// Lets go of a page that was latched but not changed, before the commit.
    fn unlatch(&mut self, page: Latched);

    /// A latched page.
    fn page(&self, page: Latched) -> Page<'_>;

    /// The number of a latched page.
    fn page_no(&self, page: Latched) -> PageNo;

    /// Changes a latched page and records the change.
    fn apply(&mut self, page: Latched, op: &PageOp<'_>);

    /// Allocates a page, latched, formatted with this type and level. Takes the lowest free page at or after `near`,
    /// else the lowest free one.
    ///
    /// # Errors
    /// When the tablespace is full or dropped.
    fn allocate(&mut self, space: &S::Space, kind: PageType, level: u8, near: PageNo) -> Result<Latched>;

    /// Makes ready to free a latched page, without changing anything: what can fail of that fails here, so this goes
    /// before the first change. Of several pages the lowest first.
    ///
    /// # Errors
    /// As [`PageStore::read`].
    fn prepare_free(&mut self, space: &S::Space, page: Latched) -> Result<Self::Freeing>;

    /// Frees a page: it is formatted as free, so that nobody takes it for what it was. Its latch is kept until the
    /// commit.
    fn free(&mut self, space: &S::Space, freeing: Self::Freeing);

    /// Makes the changes one group of the log, marks the pages dirty, lets go of all latches. Gives the LSN behind the
    /// group, which is durable once the log is durable up to it; [`Lsn::ZERO`] when nothing was changed.
    ///
    /// # Errors
    /// When the log takes no more; the database is poisoned then.
    fn commit(self) -> Result<Lsn>;
}
