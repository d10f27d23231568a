//! Interleavings of checkpoints with page changes, page writes and the drop of a tablespace.

use std::collections::BTreeMap;

use windfall_sim::Survive;

use super::{tests::NoTransactions, *};
use crate::{
    buffer::{
        Durability, MIN_FRAMES,
        interleavings::{Base, PAGE_SIZE, PAGES, Prepared, SPACES},
    },
    disk::{Disk, FileName},
    health::Health,
    ids::{PageNo, TrxId},
    log::LogReader,
    mtr::Mtr,
    recovery::scan,
    sync::model::{explore, spawn},
    system::SystemTree,
    tree::hash::HashBudget,
    txn::{
        Ids, Transactions, Trx,
        undo::record::{Body, UndoRecord},
    },
};

/// The segment size of the prepared log.
const SEGMENT: u64 = 64 << 10;
/// The offset of the LSN in a page.
const LSN: u64 = 16;

/// Returns the LSN of a page on this disk.
fn lsn_on(disk: &dyn Disk, space: usize, page: PageNo) -> Lsn {
    let mut lsn = [0; 8];
    let at = u64::from(page.0) * PAGE_SIZE as u64 + LSN;
    disk.read(FileName::Data(SPACES[space]), at, &mut lsn).unwrap();
    Lsn(u64::from_le_bytes(lsn))
}

/// A tablespace is changed and dropped without a wait until the drop is durable. Another one changes, pages are
/// written, and checkpoints are made. At every crash point, each change below the low-water mark in the control file is
/// in the data files, or the drop of its tablespace is in the log.
///
/// Catches: a control file that is ahead of the log (the dirty set of the dropped tablespace is freed, and a crash
/// undoes the drop); a page that leaves the dirty set when it is copied.
#[test]
fn a_low_water_mark_on_disk_passes_nothing_that_a_crash_would_miss() {
    let prepared = Prepared::new();
    explore(3000, &["LowWaterMarkBeforeTheLog", "CleanWhenCopied"], move || {
        let base = prepared.open(16);
        let log = base.pool.context().log.clone();
        let control = ControlFile::open(Arc::new(base.disk.clone()), Health::new()).unwrap();
        let checkpointer = Checkpointer::new(base.pool.clone(), control);
        checkpointer.end_recovery(Arc::new(NoTransactions));
        let before = log.end();
        let first = base.change(1, PAGES[0]).unwrap();
        let length = first.0 - before.0;
        let run = |role: fn(&Base) -> (Lsn, Lsn)| {
            let base = base.clone();
            spawn(move || role(&base))
        };
        let dropper = run(|base| {
            let end = base.change(0, PAGES[0]).unwrap();
            let (_, dropped) = base.pool.context().log.begin_group().append(&[1; 8]).unwrap();
            base.pool.detach(&base.spaces[0], Some(dropped));
            while base.pool.reclaim_step(&mut |_| {}) {}
            (end, dropped)
        });
        let changer = run(|base| (base.change(1, PAGES[1]).unwrap(), Lsn::MAX));
        let cleaner = run(|base| {
            base.pool.clean_step(Lsn::MAX).unwrap();
            (Lsn::ZERO, Lsn::ZERO)
        });
        let worker = spawn(move || {
            for _ in 0..2 {
                checkpointer.checkpoint(false).unwrap();
            }
        });
        let looks = [0; 3].map(|_| {
            let survivor = base.disk.survivor(Survive::Nothing);
            let durable = log.durable();
            let written =
                [(0, PAGES[0]), (1, PAGES[0]), (1, PAGES[1])].map(|(n, page)| lsn_on(&survivor, n, page));
            let control = ControlFile::open(Arc::new(survivor), Health::new()).unwrap();
            (control.control().low_water_mark, durable, written)
        });
        let (in_dropped, dropped) = dropper.join().unwrap();
        let (in_other, never) = changer.join().unwrap();
        cleaner.join().unwrap();
        worker.join().unwrap();
        let changes = [(in_dropped, dropped), (first, never), (in_other, never)];
        for (low_water_mark, durable, written) in looks {
            for ((end, dropped), written) in changes.into_iter().zip(written) {
                let is_needed = end.0 - length < low_water_mark.0 && dropped > durable;
                assert!(
                    !is_needed || written >= end,
                    "{low_water_mark:?} passes a change that ends at {end:?}"
                );
            }
        }
    });
}

/// A transaction ends while a checkpoint is made. At every crash point afterwards, recovery does not find it
/// unfinished: recovery would roll back an acknowledged commit.
#[test]
fn a_transaction_that_ended_during_a_checkpoint_is_not_unfinished() {
    let prepared = Prepared::new();
    explore(1500, &["EndNotNoted"], move || {
        let base = prepared.open(MIN_FRAMES as u32);
        let (pool, disk) = (base.pool.clone(), Arc::new(base.disk.clone()));
        let control = ControlFile::open(disk.clone(), Health::new()).unwrap();
        let checkpointer = Checkpointer::new(pool.clone(), control);
        pool.attach(SpaceId::SYSTEM, Durability::Logged);
        let system = Arc::new(SystemTree::new(pool.clone(), Arc::new(HashBudget::new(0))));
        let ids = Arc::new(Ids::new(pool.clone(), SpaceId(1000), TrxId(1000)));
        let mut attach = |id| Ok(pool.attach(id, Durability::Logged));
        let transactions =
            Transactions::open(pool.clone(), system, ids, &BTreeMap::new(), &BTreeMap::new(), &mut attach);
        let transactions = Arc::new(transactions.unwrap());
        checkpointer.end_recovery(transactions.clone());
        let mut trx = Trx::new(&transactions);
        let mut tail = trx.tail(None).unwrap();
        let body = Body::Overflow { space: SpaceId(7), first: PageNo(3) };
        let mut record = tail.new_record();
        UndoRecord { trx: trx.id().unwrap(), previous: trx.previous(&tail), body }.encode(&mut record);
        trx.reserve(&mut tail, UndoRecord::OVERFLOW_LENGTH).unwrap();
        let mut mtr = Mtr::begin(&pool).unwrap();
        let place = tail.prepare(&mut mtr, UndoRecord::OVERFLOW_LENGTH).unwrap();
        trx.write_undo(&mut mtr, &mut tail, place, record, SpaceId(7), 0);
        mtr.commit().unwrap();
        drop(tail);
        // Only the transaction holds the low-water mark down.
        pool.flush_all().unwrap();
        pool.files_to_record(16).into_iter().for_each(|space| pool.file_recorded(space));
        let worker = spawn(move || checkpointer.checkpoint(false).unwrap());
        let id = trx.id().unwrap();
        let end = trx.commit().unwrap().unwrap();
        pool.context().log.sync_to(end).unwrap();
        let look = || {
            let disk: Arc<dyn Disk> = Arc::new(base.disk.survivor(Survive::Nothing));
            let control = ControlFile::open(disk.clone(), Health::new()).unwrap();
            let found = scan(&disk, control.control(), &|_| {}).unwrap();
            assert!(!found.unfinished.contains_key(&id), "{id:?} is found unfinished");
        };
        look();
        let low_water_mark = worker.join().unwrap();
        assert!(low_water_mark > Lsn::ZERO);
        look();
    });
}

/// A checkpoint is made while the log worker prepares segments, reusing old ones if the low-water mark permits. At
/// every crash point, the log is complete from the low-water mark in the control file on.
///
/// Catches: a log that is truncated before the control file records the low-water mark.
#[test]
fn no_segment_is_used_again_that_the_control_file_still_needs() {
    let prepared = Prepared::new();
    explore(4000, &["LogCutBeforeTheControlFile"], move || {
        let base = prepared.open(16);
        let log = base.pool.context().log.clone();
        let control = ControlFile::open(Arc::new(base.disk.clone()), Health::new()).unwrap();
        let checkpointer = Checkpointer::new(base.pool.clone(), control);
        checkpointer.end_recovery(Arc::new(NoTransactions));
        // Fills the first segment: it must be below the next low-water mark.
        while log.end().0 < SEGMENT {
            log.begin_group().append(&[1; 9000]).unwrap();
        }
        log.sync_to(Lsn::MAX).unwrap();
        let durable = log.durable();
        let look = move || {
            let disk: Arc<dyn Disk> = Arc::new(base.disk.survivor(Survive::Nothing));
            let control = ControlFile::open(disk.clone(), Health::new()).unwrap();
            // The content of the groups does not matter.
            let mut reader =
                LogReader::new(disk, control.control(), control.control().low_water_mark).unwrap();
            while reader.next_group().unwrap().is_some() {}
            assert!(reader.end() >= durable, "the log above the low-water mark is lost");
        };
        let worker = spawn(move || {
            for _ in 0..2 {
                let _ = log.step();
                look();
            }
        });
        let low_water_mark = checkpointer.checkpoint(false).unwrap();
        worker.join().unwrap();
        assert!(low_water_mark.0 > SEGMENT, "no segment is given up");
    });
}
