//! Which transactions recovery finds unfinished, and how many it keeps meanwhile.
//!
//! **Purpose.** The order of the log is not that of the events: a checkpoint takes its list before it logs it.
//!
//! **Invariants.** The logs are written directly, one group per record.

use super::*;
use crate::{
    ids::{TrxId, UndoPos},
    recovery::Scan,
};

/// Returns what recovery finds in a log with these records: before the checkpoint, in its record, and after it. The
/// low-water mark stays at the beginning.
pub(super) fn scanned(before: &[Record<'_>], noted: &[Record<'_>], behind: &[Record<'_>]) -> Scan {
    let disk = SimulatedDisk::new(1);
    let base = Base::open(&disk, 1).unwrap();
    let log = base.pool.context().log.clone();
    let append = |records: &[Record<'_>]| {
        let mut group = GroupWriter::default();
        for record in records {
            group.push(record);
        }
        log.begin_group().append(group.bytes()).unwrap()
    };
    for record in before {
        append(core::slice::from_ref(record));
    }
    let (checkpoint, durable) = append(noted);
    for record in behind {
        append(core::slice::from_ref(record));
    }
    log.sync_to(Lsn::MAX).unwrap();
    drop((base, log));
    let shared: Arc<dyn Disk> = Arc::new(disk.next_process());
    let control = ControlFile::open(shared.clone(), Health::new()).unwrap();
    let control = Control { checkpoint, durable, ..control.control().clone() };
    scan(&shared, &control, &|_| {}).unwrap()
}

fn begin(trx: u64) -> Record<'static> {
    Record::TrxBegin { trx: TrxId(trx), first: UndoPos(trx * 10) }
}

fn end(trx: u64) -> Record<'static> {
    Record::TrxEnd { trx: TrxId(trx), stream: 0 }
}

fn prepare(trx: u64, xid: &'static [u8]) -> Record<'static> {
    Record::TrxPrepare { trx: TrxId(trx), xid: xid.into() }
}

fn table(active: &[u64]) -> Record<'static> {
    Record::TrxTable { active: active.iter().map(|trx| (TrxId(*trx), UndoPos(trx * 10))).collect() }
}

#[test]
fn transactions_that_have_ended_are_not_kept() {
    let calls = |from: u64| (from..from + 5000).flat_map(|trx| [begin(trx), prepare(trx, b"x"), end(trx)]);
    let before: Vec<_> = [begin(7)].into_iter().chain(calls(1000)).collect();
    let behind: Vec<_> = calls(10_000).chain([begin(8)]).collect();
    let found = scanned(&before, &[table(&[5, 7])], &behind);
    assert_eq!(found.unfinished.keys().map(|trx| trx.0).collect::<Vec<_>>(), [5, 7, 8]);
    assert_eq!((found.most_unfinished, found.prepared.len()), (3, 0));
}

#[test]
fn what_a_checkpoint_has_noted_may_be_outdated_when_it_is_logged() {
    // The list is older than its record: 3 has ended meanwhile, 4 is no longer prepared, 6 has begun. An older table
    // names transactions that ended below the low-water mark.
    let before = [
        table(&[1]),
        begin(3),
        begin(4),
        prepare(4, b"four"),
        begin(5),
        prepare(5, b"five"),
        end(3),
        prepare(4, b""),
        begin(6),
    ];
    let noted = [table(&[2, 3, 4, 5]), prepare(2, b"two"), prepare(4, b"four"), prepare(5, b"five")];
    let found = scanned(&before, &noted, &[end(5), table(&[1, 5])]);
    let unfinished: Vec<_> = found.unfinished.iter().map(|(trx, first)| (trx.0, first.0)).collect();
    assert_eq!(unfinished, [(2, 20), (4, 40), (6, 60)]);
    let prepared: Vec<_> = found.prepared.iter().map(|(trx, name)| (trx.0, &name[..])).collect();
    assert_eq!(prepared, [(2, &b"two"[..])]);
}
