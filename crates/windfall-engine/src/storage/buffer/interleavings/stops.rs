//! The database stops in the middle of a change.

use super::*;
use crate::{
    disk::{Disk, FileName},
    sync::model::{explore, spawn},
};

/// The offset and the bytes that the unfinished change writes.
const AT: u32 = 256;
const HALF: [u8; 8] = *b"half of ";

/// A thread leaves a change of several pages when it has changed one, as a panic would. Meanwhile the page's older
/// change is being written, and another thread tries to change the page, too. Half a change reaches no file and no
/// group.
///
/// Catches: a page that is copied, or changed further, after its latch was released, by a thread that had checked the
/// health of the database before the release; a latch that is released before the database has stopped.
#[test]
fn half_a_change_gets_nowhere() {
    let prepared = Prepared::new();
    explore(4000, &["HalfAChangeWritten"], move || {
        let base = prepared.open(16);
        let page = PAGES[0];
        base.change(0, page).unwrap();
        let (log, end) = (base.pool.context().log.clone(), base.pool.context().log.end());
        log.sync_to(Lsn::MAX).unwrap();
        let run = |role: fn(&Base)| {
            let base = base.clone();
            spawn(move || role(&base))
        };
        let threads = [
            run(|base| {
                let Ok(mut mtr) = Mtr::begin(&base.pool) else { return };
                let slot = mtr.latch(&base.spaces[0], PAGES[0]).unwrap();
                mtr.apply(slot, &PageOp::Write { at: AT, bytes: &HALF });
            }),
            run(|base| drop(base.pool.clean_step(Lsn::MAX))),
            run(|base| drop(base.change(0, PAGES[1]).and_then(|_| base.change(0, PAGES[0])))),
        ];
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(
            base.pool.context().health.is_poisoned(),
            "a change is left unfinished, and the database continues"
        );
        let file = FileName::Data(SPACES[0]);
        let offset = u64::from(page.0) * PAGE_SIZE as u64;
        let mut written = [0; 8];
        base.disk.read(file, offset + u64::from(AT), &mut written).unwrap();
        assert_ne!(written, HALF, "half a change is in the file");
        // The thread that latched the page next was refused, so the log has only the earlier and the concurrent
        // changes.
        let first = end.0 - prepared.end.0;
        assert!(log.end().0 <= end.0 + 2 * first, "a change on top of half a one is logged");
    });
}
