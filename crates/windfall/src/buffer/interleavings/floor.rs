//! The floor of the log, while pages change and are written.

use super::*;
use crate::{
    disk::{Disk, FileName},
    sync::{
        Mutex, Rank,
        model::{explore, spawn},
    },
};

/// Where a page's LSN stands.
const LSN: u64 = 16;

/// Two threads change pages, one writes them, and a checkpoint asks for the floor. The machine stops right there: every
/// change whose group begins below the floor has to be in the data file, and nothing there may be ahead of the log.
///
/// Catches: pages that are registered behind the end of their group; a floor that looks at the dirty sets before the
/// groups under way, or believes a set more than what is registered; a page that leaves the dirty set when it is copied,
/// or written and not synced; a change under way with a copy that is not noted again; pages written before the log.
#[test]
fn a_floor_passes_nothing_that_only_the_log_knows() {
    let prepared = Prepared::new();
    explore(1500, move || {
        let base = prepared.open(16);
        let pool = base.pool.clone();
        let log = pool.ground().log.clone();
        // A first change, to know how long a group is.
        let before = log.end();
        let end = base.change(0, PAGES[0]).unwrap();
        let length = end.0 - before.0;
        let changes = Arc::new(Mutex::new(Rank::Leaf, vec![(0, PAGES[0], end)]));
        let threads = [[(0, 0), (1, 1)], [(1, 1), (0, 1)]].map(|mine| {
            let (base, changes) = (base.clone(), changes.clone());
            spawn(move || {
                for (space, page) in mine {
                    // After the crash nothing more changes.
                    let Ok(end) = base.change(space, PAGES[page]) else { return };
                    changes.lock().push((space, PAGES[page], end));
                }
            })
        });
        let cleaner = {
            let pool = pool.clone();
            spawn(move || {
                for _ in 0..2 {
                    // After the crash it fails.
                    let _ = pool.clean_step(Lsn::MAX);
                }
            })
        };
        let appending = log.append_floor();
        let floor = appending.min(pool.oldest_dirty()).min(pool.files_floor());
        let survivor = base.disk.restart(Survive::Nothing);
        for thread in threads {
            thread.join().unwrap();
        }
        cleaner.join().unwrap();
        let durable = log.durable();
        let changes = changes.lock().clone();
        for (space, page, end) in changes {
            let mut lsn = [0; 8];
            let at = u64::from(page.0) * PAGE_SIZE as u64 + LSN;
            survivor.read(FileName::Data(SPACES[space]), at, &mut lsn).unwrap();
            let written = Lsn(u64::from_le_bytes(lsn));
            assert!(written <= durable, "a page was written up to {written:?} and the log up to {durable:?}");
            let passed = end.0 - length < floor.0;
            assert!(!passed || written >= end, "{floor:?} passes a change of {page:?} that ends at {end:?}");
        }
    });
}
