//! The allocation map compared with a plain set of numbers.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::{
    BITS_AT, CounterKind, MAGIC_AT, allocate, ceiling, count_group, count_pages, first_free, free, is_used,
    pages_a_map, pages_in_use, prepare_free, set_bit, set_ceiling,
};
use crate::{
    buffer::{
        BufferPool, Durability, Known, Space,
        test_pool::{PAGE_SIZE, new_pool},
    },
    disk::{Disk, FileName},
    error::Result,
    ids::{PageNo, SpaceId},
    mtr::Mtr,
    page::{Access, Page, PageOp, PageType},
    sync::{Arc, atomic::AtomicU64},
};

/// The number of pages in the group of a map page.
const SPAN: u32 = ((PAGE_SIZE - 128) * 8) as u32;

proptest! {
    #[test]
    fn the_first_free_page_is_the_lowest_one(
        mut free in prop::collection::btree_set(0..SPAN, 0..6),
        near in prop::collection::vec(0..200_u32, 0..4),
        from in prop_oneof![0..200_u32, 0..SPAN],
    ) {
        free.extend(near);
        let words: Vec<AtomicU64> = (0..PAGE_SIZE / 8).map(|_| AtomicU64::new(u64::MAX)).collect();
        let map = Page::new(&words);
        for bit in &free {
            let at = BITS_AT + *bit as usize / 8;
            map.write(at, &[map.u8(at) & !(1 << (bit % 8))]);
        }
        // The last page of a group is never allocated.
        prop_assert_eq!(first_free(map, from), free.range(from..).next().copied().filter(|bit| *bit < SPAN - 1));
        for bit in (0..200).chain(free.iter().copied()).chain([SPAN - 1]) {
            prop_assert_eq!(is_used(map, bit), !free.contains(&bit));
        }
    }
}

struct Base {
    pool: Arc<BufferPool>,
    space: Arc<Space>,
}

impl Base {
    fn new() -> Self {
        let (_, pool) = new_pool(1024);
        let space = pool.attach(SpaceId(20), Durability::Logged);
        assert_eq!(pages_a_map(PAGE_SIZE), SPAN);
        Self { pool, space }
    }

    fn allocate(&self, near: u32) -> u32 {
        let mut mtr = Mtr::begin(&self.pool).unwrap();
        let slot = allocate(&mut mtr, &self.space, PageType::Leaf, 0, PageNo(near)).unwrap();
        let page = mtr.id(slot).page.0;
        assert_eq!(mtr.page(slot).page_type(), PageType::Leaf as u8);
        mtr.commit().unwrap();
        page
    }

    fn free(&self, page: u32) -> Result<()> {
        let mut mtr = Mtr::begin(&self.pool)?;
        let slot = mtr.latch(&self.space, PageNo(page))?;
        let freeing = prepare_free(&mut mtr, &self.space, slot)?;
        free(&mut mtr, &self.space, freeing);
        mtr.commit()?;
        Ok(())
    }

    fn used(&self) -> Vec<u32> {
        pages_in_use(&self.pool, &self.space).unwrap().into_iter().map(|page| page.0).collect()
    }

    /// Marks all pages of a group as used, except these.
    fn fill(&self, group: u32, but: &[u32]) {
        let mut mtr = Mtr::begin(&self.pool).unwrap();
        let map = mtr.latch(&self.space, PageNo(group * SPAN)).unwrap();
        let mut bytes = vec![0xff; PAGE_SIZE - BITS_AT];
        // The bit that shows that there is a next group stays as it is.
        let says_next = if is_used(mtr.page(map), SPAN - 1) { None } else { Some(&(SPAN - 1)) };
        for bit in but.iter().chain(says_next) {
            bytes[*bit as usize / 8] &= !(1 << (bit % 8));
        }
        mtr.apply(map, &PageOp::Write { at: BITS_AT as u32, bytes: &bytes });
        self.space.page_count().forget();
        mtr.commit().unwrap();
    }
}

#[test]
fn pages_are_allocated_one_after_the_other() {
    let base = Base::new();
    // More than one word of bits, and more than two.
    let given: Vec<u32> = (0..200).map(|_| base.allocate(0)).collect();
    assert_eq!(given, (1..=200).collect::<Vec<_>>());
    assert_eq!(base.used(), (0..=200).collect::<Vec<_>>());
    for page in [150, 3, 70] {
        base.free(page).unwrap();
    }
    assert!(!base.used().iter().any(|page| [3, 70, 150].contains(page)));
    assert_eq!([100, 0, 0, 0].map(|near| base.allocate(near)), [150, 3, 70, 201]);
    // Near its neighbour, or the lowest one.
    assert_eq!([500, 500, 0].map(|near| base.allocate(near)), [500, 501, 202]);
}

#[test]
fn a_large_file_grows_in_steps() {
    let (disk, pool) = new_pool(1024);
    let base = Base { space: pool.attach(SpaceId(20), Durability::Logged), pool };
    let mut lengths = BTreeSet::new();
    for n in 1..=100 {
        let last = (0..20).fold(0, |_, _| base.allocate(0));
        base.pool.flush_all().unwrap();
        let used = u64::from(last + 1) * PAGE_SIZE as u64;
        let length = disk.len(FileName::Data(base.space.id())).unwrap().unwrap();
        let spare = length - used;
        // A small file is only as long as necessary; a large one is a little longer.
        assert!(if used < 1 << 20 { spare == 0 } else { spare <= used / 8 + (2 << 20) }, "{used}: {spare}");
        lengths.insert(length);
        assert!(n < 20 || lengths.len() < 20, "its length changes with each flush");
    }
}

#[test]
fn a_page_not_in_use_cannot_be_freed() {
    let base = Base::new();
    let page = base.allocate(0);
    base.free(page).unwrap();
    let error = base.free(page).unwrap_err().to_string();
    assert!(error.contains("page 1 is freed and was not in use"), "{error}");
    let other = base.pool.attach(SpaceId(21), Durability::Logged);
    base.pool.detach(&base.space, Some(crate::ids::Lsn(1)));
    let mut mtr = Mtr::begin(&base.pool).unwrap();
    assert!(allocate(&mut mtr, &base.space, PageType::Leaf, 0, PageNo::ROOT).is_err());
    assert!(pages_in_use(&base.pool, &other).unwrap().is_empty());
}

#[test]
fn a_freed_page_is_formatted_as_free() {
    let base = Base::new();
    let page = PageNo(base.allocate(0));
    let kind = || base.pool.share(&base.space, page, Access::Point).unwrap().page().page_type();
    assert_eq!(kind(), PageType::Leaf as u8);
    base.free(page.0).unwrap();
    assert_eq!(kind(), PageType::Free as u8);
}

#[test]
fn a_map_page_that_is_marked_as_free_is_not_allocated() {
    let base = Base::new();
    base.allocate(1);
    let mut mtr = Mtr::begin(&base.pool).unwrap();
    let map = mtr.latch(&base.space, PageNo::HEADER).unwrap();
    set_bit(&mut mtr, &base.space, map, 0, false);
    mtr.commit().unwrap();
    let mut mtr = Mtr::begin(&base.pool).unwrap();
    let error = allocate(&mut mtr, &base.space, PageType::Leaf, 0, PageNo::HEADER).unwrap_err();
    assert!(error.to_string().contains("its own page as free"), "{error}");
}

#[test]
fn a_page_that_is_no_allocation_map_is_not_used_as_one() {
    let damages: [PageOp<'_>; 2] = [
        PageOp::Format { kind: PageType::Leaf, level: 0 },
        PageOp::Write { at: MAGIC_AT as u32, bytes: b"what else" },
    ];
    for damage in damages {
        let base = Base::new();
        base.allocate(0);
        let mut mtr = Mtr::begin(&base.pool).unwrap();
        set_ceiling(&mut mtr, &base.space, CounterKind::RowId, 7).unwrap();
        mtr.commit().unwrap();
        let ceilings = || CounterKind::ALL.map(|kind| ceiling(&base.pool, &base.space, kind));
        assert_eq!(ceilings().map(Result::unwrap), [0, 7]);
        let mut mtr = Mtr::begin(&base.pool).unwrap();
        let header = mtr.latch(&base.space, PageNo::HEADER).unwrap();
        mtr.apply(header, &damage);
        mtr.commit().unwrap();
        let mut mtr = Mtr::begin(&base.pool).unwrap();
        let refused = set_ceiling(&mut mtr, &base.space, CounterKind::RowId, 8).unwrap_err();
        drop(mtr);
        let errors = [
            refused,
            ceiling(&base.pool, &base.space, CounterKind::RowId).unwrap_err(),
            pages_in_use(&base.pool, &base.space).unwrap_err(),
        ];
        for error in errors {
            assert!(error.to_string().contains("is not an allocation map"), "{error}");
        }
    }
}

#[test]
fn a_full_group_is_followed_by_the_next() {
    let base = Base::new();
    assert_eq!(base.allocate(0), 1);
    base.fill(0, &[7, SPAN - 2]);
    assert_eq!([0, 0].map(|near| base.allocate(near)), [7, SPAN - 2]);
    // The last page of a group is unused, and page SPAN is a map.
    assert_eq!([0, 0].map(|near| base.allocate(near)), [SPAN + 1, SPAN + 2]);
    assert_eq!(base.used().last_chunk(), Some(&[SPAN - 2, SPAN, SPAN + 1, SPAN + 2]));
    // An allocation that finds the second group full makes a third. After pages were freed in the first, it is used
    // again.
    base.fill(1, &[]);
    assert_eq!(base.allocate(SPAN + 9), 2 * SPAN + 1);
    assert_eq!(base.allocate(2 * SPAN + 40), 2 * SPAN + 40);
    base.free(SPAN - 2).unwrap();
    base.free(SPAN + 2).unwrap();
    assert_eq!([0, 0, 0].map(|near| base.allocate(near)), [SPAN - 2, SPAN + 2, 2 * SPAN + 2]);
    let used: BTreeSet<u32> = base.used().into_iter().collect();
    assert!(!used.contains(&(SPAN - 1)) && !used.contains(&(2 * SPAN - 1)));
    assert_eq!(
        used.range(2 * SPAN..).collect::<Vec<_>>(),
        [2 * SPAN, 2 * SPAN + 1, 2 * SPAN + 2, 2 * SPAN + 40].iter().collect::<Vec<_>>()
    );
}

#[test]
fn a_group_begins_near_its_neighbour() {
    for (near, first) in
        [(SPAN + 30, SPAN + 30), (SPAN, SPAN + 1), (2 * SPAN - 2, 2 * SPAN - 2), (2 * SPAN - 1, SPAN + 1)]
    {
        let base = Base::new();
        assert_eq!(base.allocate(0), 1);
        assert_eq!(base.allocate(near), first, "near {near}");
        assert_eq!(base.used(), [0, 1, SPAN, first]);
    }
}

#[test]
fn the_size_of_a_tablespace_is_determined_once() {
    let base = Base::new();
    base.allocate(0);
    base.allocate(SPAN + 30);
    assert_eq!(base.space.map_groups(), 2);
    base.space.forget();
    assert_eq!(base.space.map_groups(), 0);
    assert_eq!(base.allocate(SPAN + 30), SPAN + 31);
    assert_eq!(base.space.map_groups(), 2);
    // From a thread with an older count.
    base.space.raise_map_groups(1);
    assert_eq!(base.space.map_groups(), 2);
}

#[test]
fn a_page_freed_in_an_earlier_group_is_allocated_again() {
    let base = Base::new();
    assert_eq!(base.allocate(0), 1);
    base.fill(0, &[7]);
    // After the last page of a group the search begins in the next one.
    assert_eq!([0, 0].map(|near| base.allocate(near)), [7, SPAN + 1]);
    base.fill(1, &[9]);
    assert_eq!([SPAN, SPAN].map(|near| base.allocate(near)), [SPAN + 9, 2 * SPAN + 1]);
    base.fill(2, &[]);
    base.free(7).unwrap();
    assert_eq!(base.allocate(2 * SPAN + 5), 7);
    assert_eq!(base.allocate(2 * SPAN + 5), 3 * SPAN + 1);
}

/// The map before shows that the group exists, and its own map shows that it is full. A free page is far below both.
#[test]
fn maps_are_latched_in_rising_order_after_a_restart() {
    let base = Base::new();
    assert_eq!(base.allocate(0), 1);
    for group in 0..2 {
        base.fill(group, &[]);
        assert_eq!(base.allocate(group * SPAN), (group + 1) * SPAN + 1);
    }
    base.fill(2, &[]);
    base.fill(0, &[7]);
    base.space.forget();
    let mut mtr = Mtr::begin(&base.pool).unwrap();
    mtr.latch(&base.space, PageNo(1)).unwrap();
    let slot = allocate(&mut mtr, &base.space, PageType::Leaf, 0, PageNo(2 * SPAN + 5)).unwrap();
    assert_eq!(mtr.id(slot).page, PageNo(7));
    let latched: Vec<u32> = mtr.latched(base.space.id()).map(|page| page.0).collect();
    assert_eq!(latched, [1, 0, 7], "a map that is full stays latched");
    mtr.commit().unwrap();
}

#[test]
fn pages_are_counted_once_and_then_follow_the_maps() {
    let base = Base::new();
    let count = || count_pages(&base.pool, &base.space).unwrap();
    let used = || base.used().len() as u64;
    assert_eq!(count(), 0);
    assert_eq!(base.allocate(0), 1);
    assert_eq!(base.space.page_count().known(), Known::Pages(2), "a new tablespace is not counted");
    for group in 0..2 {
        base.fill(group, &[]);
        assert_eq!(count(), used());
        assert_eq!(base.allocate(group * SPAN), (group + 1) * SPAN + 1);
        assert_eq!(count(), used(), "with the page and a new map");
    }
    base.fill(0, &[7, 8]);
    base.fill(1, &[7, 8]);
    for counted in 0..=3 {
        base.space.forget();
        for group in 0..counted {
            count_group(&base.pool, &base.space, group).unwrap();
            // As a thread does that was slower.
            count_group(&base.pool, &base.space, group).unwrap();
        }
        let expected = if counted < 3 { Known::Before(counted) } else { Known::Pages(used()) };
        assert_eq!(base.space.page_count().known(), expected);
        let pages = [0, SPAN, 2 * SPAN].map(|near| base.allocate(near));
        assert_eq!(pages[..2], [7, SPAN + 7]);
        assert_eq!(count(), used(), "{counted} groups were counted before the pages were allocated");
        base.space.forget();
        (0..counted).for_each(|group| count_group(&base.pool, &base.space, group).unwrap());
        for page in pages {
            base.free(page).unwrap();
        }
        assert_eq!(count(), used(), "{counted} groups were counted before the pages were freed");
    }
}

/// One mini-transaction frees and allocates: it does not get pages that are free below a map that it has latched.
#[test]
fn nothing_is_allocated_below_a_map_that_stays_latched() {
    let base = Base::new();
    assert_eq!(base.allocate(0), 1);
    assert_eq!(base.allocate(SPAN + 30), SPAN + 30);
    base.space.forget();
    let mut mtr = Mtr::begin(&base.pool).unwrap();
    let page = mtr.latch(&base.space, PageNo(SPAN + 30)).unwrap();
    let freeing = prepare_free(&mut mtr, &base.space, page).unwrap();
    let slot = allocate(&mut mtr, &base.space, PageType::Leaf, 0, PageNo::ROOT).unwrap();
    assert_eq!(mtr.id(slot).page.0, SPAN + 1);
    free(&mut mtr, &base.space, freeing);
    mtr.commit().unwrap();
    assert_eq!(base.used(), [0, 1, SPAN, SPAN + 1]);
}
