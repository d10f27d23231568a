//! Which transactions recovery finds unfinished, and how many it keeps meanwhile.
//!
//! **Purpose.** The order of the log is not that of the events: a checkpoint takes its list before it logs it.
//!
//! **Invariants.** The logs are written directly, one group per record.

use super::*;
use crate::recovery::Scan;

/// The ceiling of transaction ids as of the checkpoint.
const CEILING: u64 = 100_000;

/// Returns what recovery finds in a log with these records: before the checkpoint, in its record, and after it. The
/// low-water mark stays at the beginning.
pub(super) fn scanned(before: &[Record<'_>], noted: &[Record<'_>], behind: &[Record<'_>]) -> Scan {
    try_scan(before, noted, behind).unwrap()
}

fn try_scan(before: &[Record<'_>], noted: &[Record<'_>], behind: &[Record<'_>]) -> Result<Scan> {
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
    let control = Control { checkpoint, durable, trx_ceiling: CEILING, ..control.control().clone() };
    scan(&shared, &control, &|_| {})
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

fn raised(ceiling: u64) -> Record<'static> {
    Record::Ceilings { space: SpaceId(100), trx: TrxId(ceiling) }
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
fn a_list_of_transactions_may_be_outdated_when_it_is_logged() {
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

#[test]
fn a_transaction_with_an_id_that_was_not_assigned_is_damage() {
    for name in ["TrxBegin", "TrxPrepare", "TrxEnd", "TrxTable"] {
        let names = |trx: u64| match name {
            "TrxBegin" => begin(trx),
            "TrxPrepare" => prepare(trx, b"x"),
            "TrxEnd" => end(trx),
            _ => table(&[3, trx]),
        };
        let refused = |before: &[Record<'_>], noted: &[Record<'_>], ceiling: u64, trx: u64| {
            let error = try_scan(before, noted, &[]).unwrap_err();
            assert!(matches!(error, Error::Corrupt(CorruptError::Log { .. })), "{error}");
            let what = format!(
                "its record {name} names transaction {trx}, and all ids assigned before are from 1 to {}",
                ceiling - 1
            );
            assert!(error.to_string().contains(&what), "{error}");
        };
        let none = [table(&[])];
        for trx in [0, CEILING, TrxId::MAX.0] {
            refused(&[names(trx)], &none, CEILING, trx);
            refused(&[], &[names(trx)], CEILING, trx);
        }
        // A ceiling counts from its record on.
        assert!(try_scan(&[names(CEILING - 1)], &[names(CEILING - 1)], &[]).is_ok());
        assert!(try_scan(&[raised(CEILING + 10), names(CEILING + 9)], &none, &[]).is_ok());
        refused(&[raised(CEILING + 10), names(CEILING + 10)], &none, CEILING + 10, CEILING + 10);
        refused(&[names(CEILING), raised(CEILING + 10)], &none, CEILING, CEILING);
    }
}

#[test]
fn an_unfinished_transaction_without_an_undo_record_is_damage() {
    let begun = Record::TrxBegin { trx: TrxId(9), first: UndoPos(0) };
    let noted = Record::TrxTable { active: vec![(TrxId(8), UndoPos(80)), (TrxId(9), UndoPos(0))] };
    for (before, noted) in [(vec![begun], vec![table(&[])]), (vec![], vec![noted])] {
        let error = try_scan(&before, &noted, &[]).unwrap_err().to_string();
        assert!(error.contains("names transaction 9 without its first undo record"), "{error}");
    }
}
