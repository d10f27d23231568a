//! Allocation of pages within a tablespace.
//!
//! **Purpose.** Allocates and frees pages of a tablespace, within the mini-transaction that needs them.
//!
//! **Invariants.** A tablespace without pages has no header: the first allocation creates page 0, and returns page 1
//! (test: `pages_are_allocated_one_after_the_other`). A bit is set while its page is in use; map pages have their own
//! bits set (test: `a_full_group_is_followed_by_the_next`).
//!
//! The latches on map pages are taken in ascending order (checked by `tablespace/mod.rs::latch_made`), as the last of a
//! mini-transaction. A thread that holds one requests only later ones and the page just allocated (checked by
//! `storage/mtr.rs::check_order`). The latch on a full map page is released before the search continues at the
//! beginning (test: `maps_are_latched_in_rising_order_after_a_restart`). Several pages are freed in ascending order for
//! the same reason (checked by `tablespace/mod.rs::latch_made`). A map page is latched, and read in if necessary,
//! before the mini-transaction changes anything, so a damaged map page is an error of this tablespace and leaves no
//! half-finished change (test: `a_map_page_that_cannot_be_read_is_one_tables_trouble`). A freed page is formatted as
//! free, so that a stale pointer to it is detected (test: `a_freed_page_is_formatted_as_free`).
//!
//! # Allocation map, byte by byte
//!
//! A map page has one bit for each page of its group. The group begins with the map page itself: page 0, and every page
//! number that is a multiple of the number of bits.
//!
//! | offset | size | field |
//! | --- | --- | --- |
//! | 0 | 32 | page header, type 1 |
//! | 32 | 8 | `"WFSPACE1"` (page 0 only) |
//! | 40 | 4 | page size (page 0 only) |
//! | 44 | 4 | zero |
//! | 48 | 8 | ceiling of the table's auto-increment values, 0 while there is none ([`ceiling()`]; page 0 only) |
//! | 56 | 8 | ceiling of the table's row ids, 0 while there is none ([`ceiling()`]; page 0 only) |
//! | 56 | 8 | zero |
//! | 64 | 8 | number of rows of the table, signed, without the pending changes ([`rows()`]; page 0 only) |
//! | 72 | 56 | zero |
//! | 128 | page size - 128 | one bit per page, lowest bit first, set while the page is in use |
//!
//! The last bit of a map page is set if the next group exists; the page of this bit is never used.

mod ceiling;
mod deletion;
#[cfg(all(test, feature = "model"))]
mod interleavings;
mod rows;
#[cfg(test)]
mod tests;

pub use ceiling::{CounterKind, ceiling, set_ceiling, set_ceilings};
pub use deletion::{Deleter, Deletions};
pub use rows::{rows, write_rows, write_rows_if_due};

use crate::{
    buffer::{BufferPool, Known, Space},
    error::{CorruptError, Owner, Result, UsageError},
    ids::{PageId, PageNo},
    mtr::{Mtr, Slot},
    page::{Access, Page, PageOp, PageType},
    sync::Arc,
};

const MAGIC: u64 = u64::from_le_bytes(*b"WFSPACE1");
const MAGIC_AT: usize = 32;
const PAGE_SIZE_AT: usize = 40;
const BITS_AT: usize = 128;

/// Returns the number of pages in the group of a map page of this size.
pub fn pages_a_map(page_size: usize) -> u32 {
    ((page_size - BITS_AT) * 8) as u32
}

fn is_used(map: Page<'_>, bit: u32) -> bool {
    map.u8(BITS_AT + bit as usize / 8) & 1 << (bit % 8) != 0
}

/// Returns the first free page of the group at or after `from`. The last page of a group is never allocated.
fn first_free(map: Page<'_>, from: u32) -> Option<u32> {
    let bits = pages_a_map(map.len()) - 1;
    let mut at = from;
    while at < bits {
        let word = map.u64(BITS_AT + at as usize / 64 * 8) >> (at % 64);
        // Free bits of this word, from `at` on.
        let free = !word & (u64::MAX >> (at % 64));
        if free != 0 {
            let found = at + free.trailing_zeros();
            debug_assert!(found >= from, "page {found} of the group lies before {from}");
            return (found < bits).then_some(found);
        }
        at = (at / 64 + 1) * 64;
    }
    None
}

/// The fuzz target of map pages with any content.
#[cfg(feature = "fuzz")]
pub mod fuzz {
    use super::{first_free, is_used, pages_a_map};
    use crate::page::{
        Page, PageType,
        fuzz::{page_seeds, words},
    };

    /// Checks that the page returned is the first free one, and never the last one of the group or beyond it.
    pub fn map(data: &[u8]) {
        let words = words(data);
        let map = Page::new(&words);
        let last = pages_a_map(map.len()) - 1;
        for from in [0, 1, 63, 64, u32::from(map.u16(0)) % (last + 2), last - 1, last, last + 1] {
            let expected = (from..last).find(|bit| !is_used(map, *bit));
            assert_eq!(first_free(map, from), expected, "from {from}");
        }
    }

    /// Returns maps: empty, full, and with pages in use.
    pub fn map_seeds() -> Vec<Vec<u8>> {
        let mut seeds = page_seeds();
        seeds.retain(|page| page[4] == PageType::Map as u8);
        let with = |used: core::ops::Range<usize>| {
            let mut page = seeds[0].clone();
            page[used].fill(0xff);
            page
        };
        vec![with(128..128), with(128..4096), with(128..300), with(300..4095)]
    }
}

fn set_bit(mtr: &mut Mtr<'_>, space: &Space, map: Slot, bit: u32, used: bool) {
    debug_assert!(bit < pages_a_map(mtr.pool().page_size()), "a map has no bit {bit}");
    let at = BITS_AT + bit as usize / 8;
    let byte = mtr.page(map).u8(at);
    let mask = 1 << (bit % 8);
    debug_assert!((byte & mask != 0) != used, "bit {bit} is {used} already");
    let byte = if used { byte | mask } else { byte & !mask };
    mtr.apply(map, &PageOp::Write { at: at as u32, bytes: &[byte] });
    let span = pages_a_map(mtr.pool().page_size());
    // The last bit is that of no page.
    if bit < span - 1 {
        space.page_count().change(mtr.id(map).page.0 / span, used);
    }
}

/// The map page of a group, latched.
#[derive(Clone, Copy)]
enum Map {
    Made(Slot),
    /// The map page must be formatted, and its existence must be recorded in the one before it.
    New(Slot, Option<Slot>),
}

/// Formats a map page, with its own bit set.
fn make_map(mtr: &mut Mtr<'_>, space: &Space, map: Slot, before: Option<Slot>) {
    debug_assert!(
        before.is_none_or(|before| mtr.id(before).page < mtr.id(map).page),
        "a new map does not follow the last one"
    );
    if let Some(before) = before {
        let last = pages_a_map(mtr.pool().page_size()) - 1;
        set_bit(mtr, space, before, last, true);
    }
    mtr.apply(map, &PageOp::Format { kind: PageType::Map, level: 0 });
    if before.is_none() {
        let page_size = mtr.page(map).len() as u32;
        mtr.apply(map, &PageOp::Write { at: MAGIC_AT as u32, bytes: &MAGIC.to_le_bytes() });
        mtr.apply(map, &PageOp::Write { at: PAGE_SIZE_AT as u32, bytes: &page_size.to_le_bytes() });
        space.page_count().begin_empty();
    }
    set_bit(mtr, space, map, 0, true);
}

/// Returns the last group with a latched map page.
fn last_latched(mtr: &Mtr<'_>, space: &Space) -> Option<u32> {
    let span = pages_a_map(mtr.pool().page_size());
    mtr.latched(space.id()).filter(|page| page.0.is_multiple_of(span)).map(|page| page.0 / span).max()
}

/// Latches the map page of a group that exists, unless it is latched already. Returns whether this call latched it.
fn latch_made(mtr: &mut Mtr<'_>, space: &Arc<Space>, group: u32) -> Result<(Slot, bool)> {
    let page = PageNo(group * pages_a_map(mtr.pool().page_size()));
    if let Some(map) = mtr.find(PageId { space: space.id(), page }) {
        return Ok((map, false));
    }
    debug_assert!(
        last_latched(mtr, space).is_none_or(|last| last < group),
        "map pages are latched in rising order"
    );
    Ok((mtr.latch(space, page)?, true))
}

/// Latches the map page of a group, which is new if the tablespace has not grown that far. The group before it must
/// exist. Of the map pages latched here only this one stays latched and, if this one is new, the one before. Changes
/// nothing.
fn latch_map(mtr: &mut Mtr<'_>, space: &Arc<Space>, group: u32) -> Result<Map> {
    let span = pages_a_map(mtr.pool().page_size());
    let page = PageNo(group * span);
    let Some(before) = group.checked_sub(1) else {
        if !space.has_pages()
            && let Some(map) = mtr.latch_first(space)?
        {
            return Ok(Map::New(map, None));
        }
        return Ok(Map::Made(latch_made(mtr, space, group)?.0));
    };
    if group >= space.map_groups() && last_latched(mtr, space) != Some(group) {
        let (previous, is_first) = latch_made(mtr, space, before)?;
        if !is_used(mtr.page(previous), span - 1) {
            return Ok(Map::New(mtr.latch_fresh(space, page)?, Some(previous)));
        }
        space.raise_map_groups(group + 1);
        if is_first {
            mtr.unlatch(previous);
        }
    }
    Ok(Map::Made(latch_made(mtr, space, group)?.0))
}

/// Allocates a page, latched and formatted: the lowest free one at or after `near` in its group, otherwise the lowest
/// one.
///
/// # Errors
/// When the tablespace is dropped or has no page number left, or a map is damaged.
pub fn allocate(
    mtr: &mut Mtr<'_>,
    space: &Arc<Space>,
    kind: PageType,
    level: u8,
    near: PageNo,
) -> Result<Slot> {
    space.check_live()?;
    let span = pages_a_map(mtr.pool().page_size());
    let hint = space.free_hint();
    let near_group = near.0 / span;
    // A map page that was latched before the search stays latched.
    let kept = last_latched(mtr, space);
    for group in core::iter::once(near_group).chain(0..u32::MAX / span) {
        // After the group of `near`: from the hint on. And never below a map page that stays latched.
        let is_below = kept.is_some_and(|kept| group < kept);
        if is_below || group != near_group && group < hint / span {
            continue;
        }
        let first = group * span;
        let found = latch_map(mtr, space, group)?;
        let from = if group == near_group { near.0 - first } else { 0 };
        let (map, bit) = match found {
            Map::Made(map) => {
                let page = mtr.page(map);
                if !is_used(page, 0) {
                    let what = format!("the allocation map in page {first} has its own page as free").into();
                    let owner = Owner::Unknown;
                    return Err(CorruptError::Structure { owner, space: space.id(), what }.into());
                }
                (map, first_free(page, from).or_else(|| first_free(page, 0)))
            }
            // All pages are free except the map itself.
            Map::New(map, _) => (map, Some(if (1..span - 1).contains(&from) { from } else { 1 })),
        };
        let Some(bit) = bit else {
            if kept != Some(group) {
                mtr.unlatch(map);
            }
            continue;
        };
        debug_assert!(bit < span - 1, "the last page of a group is never allocated");
        debug_assert!(bit > 0, "the page of the map itself is allocated");
        // Before anything is changed, because there may be no frame available.
        let slot = mtr.latch_fresh(space, PageNo(first + bit))?;
        if let Map::New(map, before) = found {
            make_map(mtr, space, map, before);
            space.raise_map_groups(group + 1);
        }
        set_bit(mtr, space, map, bit, true);
        if hint / span == group {
            let next = first_free(mtr.page(map), 0).unwrap_or(span);
            space.raise_free_hint(hint, first + next);
        }
        mtr.apply(slot, &PageOp::Format { kind, level });
        // A thread that reads the first page because of this flag waits for its latch.
        if !space.has_pages() {
            space.set_has_pages();
        }
        return Ok(slot);
    }
    Err(UsageError::TablespaceFull { owner: Owner::Unknown, space: space.id() }.into())
}

/// A latched page that will be freed, and its latched map page.
#[derive(Debug)]
#[must_use]
pub struct Freeing {
    page: Slot,
    map: Slot,
}

/// Prepares to free a latched page; several pages in one mini-transaction must be prepared in ascending order.
/// Everything that can fail happens here, and nothing is changed: it must precede the first change of the
/// mini-transaction. The page stays latched until the commit.
///
/// # Errors
/// When the tablespace is dropped, the map cannot be read, or the page is not in use.
pub fn prepare_free(mtr: &mut Mtr<'_>, space: &Arc<Space>, page: Slot) -> Result<Freeing> {
    debug_assert!(mtr.id(page).space == space.id(), "a page of another tablespace is to be freed");
    let no = mtr.id(page).page;
    let bit = no.0 % pages_a_map(mtr.pool().page_size());
    let (map, _) = latch_made(mtr, space, no.0 / pages_a_map(mtr.pool().page_size()))?;
    if !is_used(mtr.page(map), bit) {
        let what = format!("page {no} is freed and was not in use").into();
        return Err(CorruptError::Structure { owner: Owner::Unknown, space: space.id(), what }.into());
    }
    Ok(Freeing { page, map })
}

/// Frees a page that was prepared for it.
pub fn free(mtr: &mut Mtr<'_>, space: &Space, freeing: Freeing) {
    let Freeing { page, map } = freeing;
    debug_assert!(mtr.id(page).space == space.id(), "a page of another tablespace is freed");
    debug_assert!(mtr.id(map).space == space.id(), "a page is freed in the map of another tablespace");
    let no = mtr.id(page).page;
    debug_assert!(
        no.0.wrapping_sub(mtr.id(map).page.0) < pages_a_map(mtr.pool().page_size()),
        "{no:?} is freed in the map of another group"
    );
    debug_assert!(page != map, "{no:?} is an allocation map, and is freed");
    set_bit(mtr, space, map, no.0 % pages_a_map(mtr.pool().page_size()), false);
    mtr.apply(page, &PageOp::Format { kind: PageType::Free, level: 0 });
    space.lower_free_hint(no.0);
}

/// The content of an allocation map page.
#[derive(Debug)]
pub struct Group {
    /// One bit for each page of the group, from its map page on, beginning with the lowest bit of the first word.
    pub used: Vec<u64>,
    /// Whether another group follows.
    pub has_next: bool,
}

/// Returns the content of a group's map page. For a tablespace without pages, no page is in use.
///
/// # Errors
/// Damage, I/O.
pub fn group(pool: &BufferPool, space: &Arc<Space>, group: u32) -> Result<Group> {
    if !space.has_pages() {
        return Ok(Group { used: Vec::new(), has_next: false });
    }
    let span = pages_a_map(pool.page_size());
    let first = PageNo(group * span);
    let map = pool.share(space, first, Access::Scan)?;
    let page = map.page();
    ceiling::check_header(PageId { space: space.id(), page: first }, page)?;
    let mut used: Vec<u64> = (BITS_AT..page.len()).step_by(8).map(|at| page.u64(at)).collect();
    let has_next = is_used(page, span - 1);
    if let Some(last) = used.last_mut() {
        *last &= !(1 << 63);
    }
    Ok(Group { used, has_next })
}

/// Returns the number of pages in use, including map pages. The first call after an opening reads the map pages, one
/// per 2 GiB of 16 KiB pages; later ones take no latch.
///
/// # Errors
/// Damage, I/O.
pub fn count_pages(pool: &BufferPool, space: &Arc<Space>) -> Result<u64> {
    while space.has_pages() {
        match space.page_count().known() {
            Known::Pages(pages) => return Ok(pages),
            Known::Before(group) => count_group(pool, space, group)?,
        }
    }
    Ok(0)
}

/// Returns the number of pages in use, if it was counted since the opening.
pub fn counted_pages(space: &Space) -> Option<u64> {
    match space.page_count().known() {
        Known::Pages(pages) => Some(pages),
        Known::Before(_) => None,
    }
}

/// Makes the number of pages in use wrong by one.
#[cfg(any(test, feature = "testing"))]
pub fn miscount_pages(space: &Space) {
    space.page_count().change(0, true);
}

/// Counts the pages of a group that exists, unless another thread has.
fn count_group(pool: &BufferPool, space: &Arc<Space>, group: u32) -> Result<()> {
    let span = pages_a_map(pool.page_size());
    let first = PageNo(group * span);
    let map = pool.share(space, first, Access::Scan)?;
    let page = map.page();
    ceiling::check_header(PageId { space: space.id(), page: first }, page)?;
    let bits: u32 = (BITS_AT..page.len()).step_by(8).map(|at| page.u64(at).count_ones()).sum();
    let has_next = is_used(page, span - 1);
    space.page_count().add_group(group, u64::from(bits) - u64::from(has_next), !has_next);
    Ok(())
}

/// Returns the pages in use, including map pages, in order. For tests and comparisons: reads every map page.
///
/// # Errors
/// Damage, I/O.
#[cfg(any(test, feature = "testing", feature = "lab"))]
pub fn pages_in_use(pool: &BufferPool, space: &Arc<Space>) -> Result<Vec<PageNo>> {
    let mut pages = Vec::new();
    for number in 0.. {
        let group = group(pool, space, number)?;
        let first = number * pages_a_map(pool.page_size()) / 64;
        pages.extend((first..).zip(group.used).flat_map(|(at, bits)| crate::ids::pages_of(at, bits)));
        if !group.has_next {
            break;
        }
    }
    Ok(pages)
}
