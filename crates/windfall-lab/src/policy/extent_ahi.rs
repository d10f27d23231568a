//! `extent-ahi`: hash entries are found by the pages of the table, pages by the lists of the pool.
//!
//! **Purpose.** `MySQL` 8.0 to 8.0.22: the versions that the article on 8.0.23 compares with.
//!
//! **Invariants.** A drop takes the steps below and no others, as their counts show (test:
//! `extent_ahi_asks_for_each_page_and_walks_both_lists`).
//!
//! **Steps.**
//! 1. With the hash index on: for each extent of the table, each of its pages is looked up in the page hash. If it is
//!    in the pool and hashed it is latched, and its entries are removed.
//! 2. For each instance: what [`flush_list`](super::flush_list) does, under the mutexes of the LRU list and of the
//!    flush list.
//! 3. For each instance, because a whole tablespace is dropped: takes the mutex of the LRU list, scans the list, frees
//!    the pages of the tablespace, releases the mutex. If a page was in use, waits 20 ms and scans again. The mutexes
//!    of the flush list and of the free list are held per page.
//!
//! This is done after the change of the dictionary, and not under its mutex. 5.6.13 and 5.7 have the same steps, but
//! there both scans hold the buffer pool mutex, and the whole drop holds the mutex of the dictionary: the lab does not
//! have those versions.
//!
//! **Cost.** A look-up needs only the latch of the page hash; a thread that reads a page in, makes one young or needs a
//! frame waits for the scans. The cost is proportional to the number of pages in the pool, for tables of any size, as
//! the article says.
//!
//! **Source.** The changelog of 5.6.13 (bug 69316), and "A 250x improvement to tablespace truncation in `MySQL` Server
//! 8.0.23".

use windfall::ids::{PageId, SpaceId};

use super::{DropPolicy, Steps};
use crate::{
    pool::{ClassicPool, Era, Space, era::Part, instance::Instance},
    watch::Purpose,
};

/// The policy.
#[derive(Debug)]
pub struct ExtentAhi;

impl DropPolicy for ExtentAhi {
    fn era(&self) -> Era {
        Era::Mysql80
    }

    fn holds_dictionary(&self) -> bool {
        false
    }

    fn remove_tablespace(&self, pool: &ClassicPool, space: &Space, _: &[SpaceId]) -> Steps {
        let mut steps = Steps::default();
        if pool.hash_index().is_on() {
            for page in space.extents().into_iter().flatten() {
                steps.remove_hash_entries_of(pool, PageId { space: space.id, page });
            }
        }
        for instance in pool.instances() {
            steps.remove_dirty(pool, instance, space.id);
            while !sweep(pool, instance, space, &mut steps) {
                steps.wait_for_users();
            }
        }
        steps
    }
}

/// Scans an instance's LRU list. Returns whether no page was in use.
pub(super) fn sweep(pool: &ClassicPool, instance: &Instance, space: &Space, steps: &mut Steps) -> bool {
    let mut held = instance.lock(&[Part::Lru], Purpose::Drop);
    steps.free_pages(pool, instance, &mut held, space.id)
}
