//! `lazy-mark`: Percona's Lazy Drop Table.
//!
//! **Purpose.** Percona Server 5.1.56, 5.5.10 and 5.5.24 with `innodb_lazy_drop_table = 1`, which can be switched
//! while the server runs. Off, it is [`flush_list`](super::flush_list), as in 5.5.30.
//!
//! **Invariants.** A drop takes the steps below and no others, as their counts show (test:
//! `lazy_mark_flags_and_frees_nothing`).
//!
//! **Steps.**
//! 1. For each instance: takes the mutex of the LRU list, which look-ups do not need, scans the list once, marks each
//!    page of the tablespace, and releases the mutex. Marked pages are freed when eviction or the cleaner finds them.
//! 2. Shares the latch of the hash index, which keeps writers of the index out, and examines every frame of the pool.
//!    For a hashed page of the tablespace: releases the latch, latches the page exclusively, removes its entries,
//!    releases the page latch, and shares the latch of the index again. Releases it at the end.
//!
//! **Source.** `buf_LRU_mark_space_was_deleted`, as described in the article of June 2012.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use windfall::ids::SpaceId;

use super::{DropPolicy, Steps, flush_list::FlushList};
use crate::{
    pool::{ClassicPool, Era, Space, descriptor::DELETED, era::Part},
    watch::Purpose,
};

/// The policy.
#[derive(Debug)]
pub struct LazyMark {
    on: AtomicBool,
}

impl Default for LazyMark {
    fn default() -> Self {
        Self { on: AtomicBool::new(true) }
    }
}

impl LazyMark {
    /// Sets `innodb_lazy_drop_table`, as `SET GLOBAL` does: it applies from the next drop on.
    pub fn switch(&self, on: bool) {
        self.on.store(on, Relaxed);
    }
}

impl DropPolicy for LazyMark {
    fn era(&self) -> Era {
        Era::Xtradb
    }

    fn remove_tablespace(&self, pool: &ClassicPool, space: &Space, trees: &[SpaceId]) -> Steps {
        if !self.on.load(Relaxed) {
            return FlushList.remove_tablespace(pool, space, trees);
        }
        let mut steps = Steps::default();
        for instance in pool.instances() {
            let _held = instance.lock(&[Part::Lru], Purpose::Drop);
            for frame in instance.lru.from_oldest(pool.frames()) {
                steps.lru_walked += 1;
                let descriptor = &pool.frames()[frame as usize];
                if descriptor.space() == space.id {
                    descriptor.set(DELETED);
                    steps.flagged += 1;
                }
            }
        }
        if pool.hash_index().is_on() {
            let mut shared = pool.hash_index().share(Purpose::Drop);
            for descriptor in pool.frames() {
                steps.frames_scanned += 1;
                if descriptor.space() == space.id && descriptor.hashed.load(Relaxed) > 0 {
                    drop(shared);
                    steps.released += 1;
                    steps.remove_hash_entries_of(pool, descriptor.tag());
                    shared = pool.hash_index().share(Purpose::Drop);
                }
            }
        }
        steps
    }
}
