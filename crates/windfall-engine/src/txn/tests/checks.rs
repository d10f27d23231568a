//! The checks of every page before it is written and after it was read, in every build.

use windfall_sim::{SimulatedDisk, SimulatedEnv};

use super::{Base, PAGE_SIZE, Setup};
use crate::{
    disk::{Disk, FileName},
    error::Error,
    ids::{Lsn, PageId, PageNo, SpaceId},
    page::{Page, PageType, blank},
    sync::atomic::AtomicU64,
};

/// A defect of a page, and the error that it causes; in the first case the page belongs elsewhere.
type Wrong = (fn(Page<'_>), &'static str);

const IN_MEMORY: [Wrong; 5] = [
    (|page| page.set_u32(24, 9), "it says to be another one"),
    (|page| page.set_u64(8, 9), "it says to be another one"),
    (|page| page.set_u8(4, 99), "it is of no known type"),
    (|page| page.set_u8(5, 1), "its level does not fit its type"),
    (|page| page.set_lsn(Lsn(1 << 40)), "its last change is not in the log"),
];

/// Opens a base with a leaf that is written, and returns a copy of the leaf as it is on disk.
fn base(disk: &SimulatedDisk) -> (Base, PageId, Box<[AtomicU64]>) {
    let base = Base::open(Setup::simulated(disk, &SimulatedEnv::new(1))).unwrap();
    base.put(b"key", b"a value that is long enough", super::Mode::Put).unwrap();
    base.pool.flush_all().unwrap();
    let id = PageId { space: base.clustered.space().id(), page: PageNo::ROOT };
    let words = on_disk(disk, id);
    assert_eq!(Page::new(&words).page_type(), PageType::Leaf as u8);
    (base, id, words)
}

fn on_disk(disk: &SimulatedDisk, id: PageId) -> Box<[AtomicU64]> {
    let words = blank(PAGE_SIZE);
    let offset = u64::from(id.page.0) * PAGE_SIZE as u64;
    disk.read_page(FileName::Data(id.space), offset, &words).unwrap();
    words
}

#[test]
fn a_page_corrupted_in_memory_is_not_written() {
    for (spoil, what) in IN_MEMORY {
        let disk = SimulatedDisk::new(1);
        let (base, id, before) = base(&disk);
        let space = base.clustered.space().clone();
        let mut latched = base.pool.exclusive(&space, id.page).unwrap();
        let since = latched.page().lsn();
        spoil(latched.page());
        latched.mark_dirty(&space, since);
        drop(latched);
        let error = base.pool.flush_all().unwrap_err();
        assert!(matches!(error, Error::Poisoned(_)) && error.to_string().contains(what), "{error}");
        assert!(base.pool.context().health.is_poisoned());
        let after = on_disk(&disk, id);
        let same = Page::new(&before).words().iter().zip(&after);
        assert!(
            same.into_iter().all(|(a, b)| format!("{a:?}") == format!("{b:?}")),
            "{what}: it is written all the same"
        );
    }
}

#[test]
fn a_page_corrupted_on_disk_is_not_read() {
    let disk = SimulatedDisk::new(1);
    let (base, id, words) = base(&disk);
    let page = Page::new(&words);
    base.pool.verify(id, page).unwrap();
    let other = [(id.space, PageNo(2)), (SpaceId(9), id.page)].map(|(space, page)| PageId { space, page });
    for id in other {
        let error = base.pool.verify(id, page).unwrap_err();
        assert!(error.to_string().contains("another page's content"), "{error}");
    }
    page.set_u8(200, page.u8(200) ^ 1);
    let nothing = blank(PAGE_SIZE);
    let error = base.pool.verify(id, Page::new(&nothing)).unwrap_err();
    assert!(error.to_string().contains("it was never written"), "{error}");
    let error = base.pool.verify(id, page).unwrap_err();
    assert!(error.to_string().contains("its checksum is wrong"), "{error}");
    // These defects come with a valid checksum.
    let header: (fn(Page<'_>), _) =
        (|page| (32..48).for_each(|at| page.set_u8(at, 255)), "the node's header contradicts itself");
    for (spoil, what) in IN_MEMORY[2..].iter().chain([&header]) {
        let words = on_disk(&disk, id);
        let page = Page::new(&words);
        spoil(page);
        page.seal();
        let error = base.pool.verify(id, page).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    }
}
