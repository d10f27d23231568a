//! The upper bounds of the numbers that a table's counters have allocated, in the header of its tablespace.
//!
//! **Purpose.** A word of page 0 for each counter, called its ceiling: all numbers allocated since the counter was last
//! set are below it. It belongs to the tablespace as the tree does: a drop and a truncation discard it, a rename of the
//! table keeps it.
//!
//! **Invariants.** Zero means that no number was requested yet (checked by `tablespace/ceiling.rs::set_ceilings`). A
//! mini-transaction that writes the ceiling has latched no page of the tablespace before (checked by
//! `tablespace/ceiling.rs::set_ceilings`).

use smallvec::SmallVec;

use super::{MAGIC, MAGIC_AT};
use crate::{
    buffer::{BufferPool, Space},
    error::{CorruptError, Owner, Result},
    ids::{PageId, PageNo},
    mtr::{Mtr, Slot},
    page::{Access, Page, PageOp, PageType},
    sync::Arc,
};

/// A counter of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterKind {
    /// The auto-increment values of a column.
    AutoIncrement,
    /// The ids of rows without a key.
    RowId,
}

impl CounterKind {
    /// All counters, in the order of their discriminants.
    pub const ALL: [Self; 2] = [Self::AutoIncrement, Self::RowId];

    /// Returns the offset of the ceiling in page 0.
    fn ceiling_at(self) -> usize {
        match self {
            Self::AutoIncrement => 48,
            Self::RowId => 56,
        }
    }
}

/// Returns an error unless this is a map page and, if it is page 0, has the magic of a header.
pub(super) fn check_header(id: PageId, page: Page<'_>) -> Result<()> {
    if page.page_type() == PageType::Map as u8 && (id.page != PageNo::HEADER || page.u64(MAGIC_AT) == MAGIC) {
        return Ok(());
    }
    let what = format!("{id} is not an allocation map").into();
    Err(CorruptError::Structure { owner: Owner::Unknown, space: id.space, what }.into())
}

/// Returns the ceiling of a counter; zero when there is none.
///
/// # Errors
/// When the tablespace is dropped; damage, I/O.
pub fn ceiling(pool: &BufferPool, space: &Arc<Space>, kind: CounterKind) -> Result<u64> {
    read_header(pool, space, |header| header.u64(kind.ceiling_at()))
}

/// Reads from the header of a tablespace, under its latch; without a header, the default value.
///
/// # Errors
/// When the tablespace is dropped; damage, I/O.
pub(super) fn read_header<R: Default>(
    pool: &BufferPool,
    space: &Arc<Space>,
    read: impl FnOnce(Page<'_>) -> R,
) -> Result<R> {
    space.check_live()?;
    if !space.has_pages() {
        return Ok(R::default());
    }
    let header = pool.share(space, PageNo::HEADER, Access::Point)?;
    check_header(PageId { space: space.id(), page: PageNo::HEADER }, header.page())?;
    Ok(read(header.page()))
}

/// Latches the header of a tablespace that has pages.
///
/// # Errors
/// When the tablespace is dropped; damage, I/O.
pub(super) fn latch_header(mtr: &mut Mtr<'_>, space: &Arc<Space>) -> Result<Slot> {
    space.check_live()?;
    let header = mtr.latch(space, PageNo::HEADER)?;
    check_header(mtr.id(header), mtr.page(header))?;
    Ok(header)
}

/// Writes the ceiling of a counter of a tablespace that has pages, in a mini-transaction that has latched none of them.
///
/// # Errors
/// When the tablespace is dropped; more headers than a mini-transaction may latch; damage, I/O. Nothing was changed
/// then.
pub fn set_ceiling(mtr: &mut Mtr<'_>, space: &Arc<Space>, kind: CounterKind, ceiling: u64) -> Result<()> {
    set_ceilings(mtr, &[(space.clone(), kind, ceiling)])
}

/// As [`set_ceiling`], for several counters, of which those of one tablespace follow each other.
///
/// # Errors
/// As [`set_ceiling`], for any of the tablespaces.
pub fn set_ceilings(mtr: &mut Mtr<'_>, ceilings: &[(Arc<Space>, CounterKind, u64)]) -> Result<()> {
    let mut headers: SmallVec<[Slot; 1]> = SmallVec::new();
    for (n, (space, _, ceiling)) in ceilings.iter().enumerate() {
        assert!(*ceiling > 0, "the ceiling of tablespace {} is that of a table without numbers", space.id());
        let is_latched = n > 0 && ceilings[n - 1].0.id() == space.id();
        debug_assert!(
            is_latched || mtr.latched(space.id()).next().is_none(),
            "the latch on the header is not the only one"
        );
        let header = if is_latched {
            headers[n - 1]
        } else {
            mtr.check_may_latch()?;
            latch_header(mtr, space)?
        };
        headers.push(header);
    }
    for (header, (_, kind, ceiling)) in headers.into_iter().zip(ceilings) {
        mtr.apply(header, &PageOp::Write { at: kind.ceiling_at() as u32, bytes: &ceiling.to_le_bytes() });
    }
    Ok(())
}
