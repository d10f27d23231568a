//! The record of a file under many interleavings, while checkpoints are made.

use windfall_sim::Survive;

use super::*;
use crate::{
    buffer::{
        Durability,
        interleavings::{EMPTY, Prepared, make_header},
    },
    checkpoint::{Checkpointer, tests::NoTransactions},
    disk::Disk,
    health::Health,
    ids::Lsn,
    log::ControlFile,
    recovery::scan,
    sync::model::{explore, spawn},
    tree::hash::HashBudget,
};

/// Wherever the machine stops, the log from the low-water mark on states that a file was created, or contains its
/// record.
///
/// Catches: a file that counts as recorded before its record is logged.
#[test]
fn the_low_water_mark_passes_no_file_without_a_record() {
    let prepared = Prepared::new();
    explore(1500, &["RecordedBeforeItIsLogged"], move || {
        let base = prepared.open(crate::buffer::MIN_FRAMES as u32);
        let pool = base.pool.clone();
        let control = ControlFile::open(Arc::new(base.disk.clone()), Health::new()).unwrap();
        let checkpointer = Checkpointer::new(pool.clone(), control);
        checkpointer.end_recovery(Arc::new(NoTransactions));
        pool.attach(SpaceId::SYSTEM, Durability::Logged);
        let system = Arc::new(SystemTree::new(pool.clone(), Arc::new(HashBudget::new(0))));
        let mut mtr = Mtr::begin(&pool).unwrap();
        system.change(&mut mtr, &mut [Change::put(b"x".to_vec(), vec![])]).unwrap();
        mtr.commit().unwrap();
        make_header(&pool, &pool.attach(EMPTY, Durability::Logged)).unwrap();
        // Only the created file holds the low-water mark back.
        pool.flush_all().unwrap();
        let others = pool.files_to_record(16).into_iter().filter(|space| *space != EMPTY);
        others.for_each(|space| pool.file_recorded(space));
        pool.context().log.sync_to(Lsn::MAX).unwrap();
        let deleter = Arc::new(Deleter::new(pool.clone()));
        let mut records = FileRecords::new(pool, system, deleter);
        let worker = spawn(move || records.step().unwrap());
        let checkpoints = spawn(move || {
            for _ in 0..2 {
                checkpointer.checkpoint(false).unwrap();
            }
        });
        let look = || {
            let disk: Arc<dyn Disk> = Arc::new(base.disk.survivor(Survive::Nothing));
            let control = ControlFile::open(disk.clone(), Health::new()).unwrap();
            let found = scan(&disk, control.control(), &|_| {}).unwrap();
            // The only change of the system tree above the low-water mark is the record.
            let is_known = found.made.contains_key(&EMPTY) || found.changed.contains(&SpaceId::SYSTEM);
            assert!(
                is_known,
                "the low-water mark {:?} passes a file without a record",
                control.control().low_water_mark
            );
        };
        look();
        look();
        worker.join().unwrap();
        checkpoints.join().unwrap();
        look();
    });
}
