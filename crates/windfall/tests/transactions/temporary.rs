//! Temporary tables in transactions, and next to read views of other transactions.

use std::{cell::Cell, io::Write, sync::Arc};

use windfall::{
    Access, Database, Error, FlushLog, IndexOptions, InterruptHandle, Isolation, MadeEntry, SuppliedChange,
    SuppliedEntry, Table, TableChanges, TableOptions, TemporaryLoad, TemporaryTable, TransactionOptions,
    env::RealEnv,
    error::{LockError, SchemaError, TransactionError, UsageError},
};
use windfall_base::sync::work::{self, Work};
use windfall_sim::{SimulatedDisk, SimulatedEnv};

use super::{begin, database, options, pairs, rows, simulated, table, time_limit};

/// Returns the number of frames in use.
fn in_use(db: &Database) -> u64 {
    let metrics = db.metrics();
    metrics.pool_frames - metrics.pool_free - metrics.pool_dropped
}

/// A transaction that changes many rows of temporary tables leaves their old versions to the worker.
#[test]
fn a_commit_does_the_same_work_whatever_was_changed_in_temporary_tables() {
    let env = Arc::new(RealEnv::default());
    let options = options().buffer_pool_size(32 << 20);
    let db = Database::open_on(Arc::new(SimulatedDisk::new(1)), env, &options, &|_| {}).unwrap();
    let session = db.session();
    let temporary = session.create_temporary_table("t", TableOptions::default()).unwrap();
    let (mut trx, most) = (begin(&db, Isolation::RepeatableRead), Cell::new(0));
    let mut work_of = |changes: u32| {
        let within = trx.table(&temporary);
        (0..changes).for_each(|n| within.put(&n.to_be_bytes(), b"a value").unwrap());
        (0..changes).for_each(|n| assert!(within.delete(&n.to_be_bytes()).unwrap()));
        most.set(in_use(&db));
        let before = work::so_far();
        trx.commit_and_keep(FlushLog::Lazy).unwrap();
        let done = work::so_far();
        trx.restart(TransactionOptions::default()).unwrap();
        let kinds = [Work::Frame, Work::Latch, Work::ListEntry, Work::Lock, Work::Read, Work::FileCall];
        kinds.map(|kind| done.of(kind) - before.of(kind))
    };
    work_of(10);
    let few = work_of(10);
    let many = work_of(20_000);
    // The worker may have met the transaction before its end.
    assert!(many.iter().zip(few).all(|(many, few)| *many <= few + 8), "{many:?}, and {few:?} of few changes");
    time_limit::wait_until("the worker purges", || in_use(&db) < most.get() / 2);
}

/// Tables, sessions and the database go in the middle of the worker's steps.
#[test]
fn temporary_tables_go_while_the_worker_purges_them() {
    let db = database();
    let permanent = table(&db);
    let frames = in_use(&db);
    let mut trx = begin(&db, Isolation::ReadCommitted);
    for round in 0..40u8 {
        let session = db.session();
        let of_session = session.create_temporary_table("t", indexed()).unwrap();
        let mut alone = db.create_temporary_table("alone", indexed()).unwrap();
        for temporary in [&of_session, &*alone] {
            let within = trx.table(temporary);
            (0..200).for_each(|n| within.put(&[n], &long(round)).unwrap());
            (0..200).for_each(|n| within.put(&[n], &[n]).unwrap());
            (0..200).step_by(2).for_each(|n| assert!(within.delete(&[n]).unwrap()));
        }
        trx.commit_and_keep(FlushLog::Lazy).unwrap();
        trx.restart(TransactionOptions::default()).unwrap();
        match round % 4 {
            0 => drop(session.drop_temporary_table("t").unwrap()),
            1 => drop(alone.truncate().unwrap()),
            2 => drop(session),
            _ => {
                assert_eq!(rows(&of_session).len(), 100);
                alone.put(b"another", b"x1").unwrap();
            }
        }
    }
    permanent.put(b"a", b"x1").unwrap();
    assert_eq!(rows(&trx.table(&permanent)), pairs([("a", "x1")]));
    // Nothing is left of the tables and of their undo.
    time_limit::wait_until("their frames are free", || in_use(&db) < frames + 50);
    drop(trx);
    let session = db.session();
    let last = session.create_temporary_table("t", indexed()).unwrap();
    let trx = begin(&db, Isolation::ReadCommitted);
    (0..200).for_each(|n| trx.table(&last).put(&[n], &long(n)).unwrap());
    trx.rollback().unwrap();
    db.close().unwrap();
}

/// The workers of this database run only when the test lets them.
#[test]
fn changes_of_temporary_tables_help_a_worker_that_falls_behind() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = simulated(&disk, &env);
    let session = db.session();
    let temporary = session.create_temporary_table("t", TableOptions::default()).unwrap();
    let mut trx = begin(&db, Isolation::ReadCommitted);
    let mut most = 0;
    for round in 0..300u16 {
        (0..100).for_each(|n| trx.table(&temporary).put(&[n], &[round as u8; 400]).unwrap());
        trx.commit_and_keep(FlushLog::Lazy).unwrap();
        trx.restart(TransactionOptions::default()).unwrap();
        most = most.max(in_use(&db));
    }
    // All of the undo takes some 3,000 pages.
    assert!(most <= 450, "{most} frames");
    assert_eq!(db.metrics().pool_writes, 0);
}

/// Prepared transactions end by their names, and leave as much.
#[test]
fn what_prepared_transactions_leave_in_temporary_tables_is_purged() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = simulated(&disk, &env);
    let permanent = table(&db);
    let session = db.session();
    let temporary = session.create_temporary_table("t", TableOptions::default()).unwrap();
    let mut trx = begin(&db, Isolation::ReadCommitted);
    let mut most = 0;
    for round in 0..300u16 {
        (0..100).for_each(|n| trx.table(&temporary).put(&[n], &[round as u8; 400]).unwrap());
        trx.table(&permanent).put(b"a", &round.to_be_bytes()).unwrap();
        trx.prepare(b"xid").unwrap();
        trx.restart(TransactionOptions::default()).unwrap();
        let ended =
            if round % 2 == 0 { db.commit_prepared(b"xid").map(drop) } else { db.rollback_prepared(b"xid") };
        ended.unwrap();
        most = most.max(in_use(&db));
    }
    assert!(most <= 450, "{most} frames");
}

pub(crate) fn indexed() -> TableOptions {
    TableOptions::default().index("first", IndexOptions::on_value(0..1))
}

#[test]
fn a_strict_snapshot_does_not_concern_temporary_tables() {
    let db = database();
    let table = table(&db);
    let session = db.session();
    let temporary = session.create_temporary_table("t", indexed()).unwrap();
    temporary.put(b"long", &vec![1; 20_000]).unwrap();
    let trx = begin(&db, Isolation::Snapshot);
    trx.table(&table).get(b"a").unwrap();
    // After its snapshot.
    temporary.put(b"a", b"x1").unwrap();
    temporary.put(b"b", b"x2").unwrap();
    temporary.put(b"long", &vec![2; 20_000]).unwrap();
    table.put(b"a", b"x1").unwrap();
    let (within, beside) = (trx.table(&temporary), trx.table(&table));
    assert_eq!(within.get(b"a").unwrap(), Some(b"x1".to_vec()));
    assert_eq!(within.get_for_update(b"a").unwrap(), Some(b"x1".to_vec()));
    within.update(b"a", b"y1").unwrap();
    assert!(within.delete(b"b").unwrap());
    within.put(b"long", b"z").unwrap();
    let changed = beside.put(b"a", b"y1");
    assert!(matches!(changed, Err(Error::Transaction(TransactionError::Changed(_)))), "{changed:?}");
    trx.commit().unwrap();
    assert_eq!(rows(&temporary), pairs([("a", "y1"), ("long", "z")]));
}

#[test]
fn a_transaction_that_only_reads_may_change_temporary_tables() {
    let db = database();
    let table = table(&db);
    let session = db.session();
    let temporary = session.create_temporary_table("t", indexed()).unwrap();
    for commits in [false, true] {
        let trx = db.begin(TransactionOptions::default().read_only());
        let within = trx.table(&temporary);
        within.put(b"a", b"x1").unwrap();
        assert_eq!(within.get_for_update(b"a").unwrap(), Some(b"x1".to_vec()));
        assert_eq!(within.range_for_share::<&[u8]>(..).unwrap().count(), 1);
        assert!(trx.table(&table).put(b"a", b"x1").is_err());
        if commits { trx.commit().map(drop) } else { trx.rollback() }.unwrap();
        assert_eq!(temporary.contains(b"a").unwrap(), commits);
    }
}

/// Returns a value that needs an overflow page.
fn long(fill: u8) -> Vec<u8> {
    vec![fill; 3000]
}

/// No frames are needed for undo and replaced values, so the pool has pages to spare, and none is written.
#[test]
fn a_read_view_does_not_keep_old_versions_of_temporary_tables() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = simulated(&disk, &env);
    let table = table(&db);
    table.put(b"a", b"x1").unwrap();
    let session = db.session();
    let temporary = session.create_temporary_table("t", TableOptions::default()).unwrap();
    (0..4).for_each(|n| temporary.put(&[n], &long(n)).unwrap());
    let idle = begin(&db, Isolation::RepeatableRead);
    idle.table(&table).get(b"a").unwrap();
    let mut most = 0;
    for round in 0..450u16 {
        (0..4).for_each(|n| temporary.put(&[n], &long(round as u8)).unwrap());
        if round % 2 == 0 {
            let trx = begin(&db, Isolation::ReadCommitted);
            (0..4).for_each(|n| trx.table(&temporary).put(&[n], &long(n)).unwrap());
            if round % 4 == 0 { trx.commit().map(drop) } else { trx.rollback() }.unwrap();
        }
        most = most.max(in_use(&db));
    }
    // The rows, and the pages of one or two undo slices. All of the undo would fill the pool three times.
    assert!(most <= 200, "{most} frames");
    assert_eq!(db.metrics().pool_writes, 0);
    // The read view still exists.
    assert_eq!(db.views().len(), 1);
    table.put(b"a", b"y1").unwrap();
    assert_eq!(idle.table(&table).get(b"a").unwrap(), Some(b"x1".to_vec()));
}

/// The undo that the session itself needs is kept: for a rollback of its transaction, in part or as a whole.
#[test]
fn a_transaction_rolls_back_its_changes_to_a_temporary_table() {
    fn read(table: &Table<impl Access>) -> Vec<Option<Vec<u8>>> {
        (0..4).map(|n| table.get(&[n]).unwrap()).collect()
    }
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = simulated(&disk, &env);
    let session = db.session();
    let temporary = session.create_temporary_table("t", indexed()).unwrap();
    (0..4).for_each(|n| temporary.put(&[n], &long(n)).unwrap());
    let before = read(&temporary);
    let trx = begin(&db, Isolation::RepeatableRead);
    let within = trx.table(&temporary);
    within.put(&[0], &long(10)).unwrap();
    assert!(within.delete(&[1]).unwrap());
    let in_between = read(&within);
    trx.savepoint("here").unwrap();
    within.put(&[0], &long(20)).unwrap();
    within.put(&[1], &long(21)).unwrap();
    let failed: windfall::Result<()> = trx.atomically(|| {
        within.put(&[2], &long(22))?;
        // Calls outside of the transaction purge in the meantime.
        temporary.put(b"other", &long(1))?;
        within.insert(&[3], b"twice")
    });
    failed.unwrap_err();
    assert_eq!(read(&within)[2..], before[2..]);
    trx.rollback_to("here").unwrap();
    temporary.put(b"other", &long(2)).unwrap();
    assert_eq!(read(&within), in_between);
    trx.rollback().unwrap();
    assert_eq!(read(&temporary), before);
}

/// A sink that replaces the value that it is receiving, and deletes it, at each piece.
struct Replaces<'a> {
    table: &'a Table,
    got: Vec<u8>,
}

impl Write for Replaces<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.table.put(b"row", &vec![2; 300_000]).unwrap();
        assert!(self.table.delete(b"row").unwrap());
        self.got.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_value_of_a_temporary_table_that_is_read_is_that_of_the_beginning() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = simulated(&disk, &env);
    let session = db.session();
    let temporary = session.create_temporary_table("t", TableOptions::default()).unwrap();
    for isolation in Isolation::ALL.iter().map(Some).chain([None]) {
        temporary.put(b"row", &vec![1; 300_000]).unwrap();
        let trx = isolation.map(|isolation| begin(&db, *isolation));
        let mut out = Replaces { table: &temporary, got: Vec::new() };
        let length = match &trx {
            Some(trx) => trx.table(&temporary).read_stream(b"row", &mut out),
            None => temporary.read_stream(b"row", &mut out),
        };
        assert_eq!(length.unwrap(), Some(300_000));
        assert_eq!(out.got, vec![1; 300_000], "{isolation:?}");
        assert!(!temporary.contains(b"row").unwrap());
    }
}

#[test]
fn a_temporary_table_without_a_session_is_renamed_truncated_and_dropped() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = simulated(&disk, &env);
    let mut owner = db.create_temporary_table("t", indexed()).unwrap();
    let other = db.create_temporary_table("t", indexed()).unwrap();
    let handle = Table::clone(&owner);
    std::thread::scope(|scope| {
        scope.spawn(|| owner.put(b"a", b"x1").unwrap());
        scope.spawn(|| handle.put(b"b", b"x2").unwrap());
    });
    assert_eq!(rows(&owner), pairs([("a", "x1"), ("b", "x2")]));
    assert!(rows(&other).is_empty() && db.tables().unwrap().is_empty());

    owner.rename("u");
    assert_eq!((owner.name(), handle.name()), ("u", "t"));
    assert!(owner.insert(b"a", b"").unwrap_err().to_string().contains("table u"));
    let number = owner.index_number("first").unwrap();
    owner.set_numbers(77).unwrap();
    let trx = begin(&db, Isolation::RepeatableRead);
    trx.table(&owner).put(b"a", b"y1").unwrap();
    assert!(trx.table(&handle).delete(b"b").unwrap());
    let report = owner.truncate().unwrap();
    assert_eq!((report.trees, report.lsn), (2, None));
    handle.put(b"c", b"z3").unwrap();
    trx.table(&handle).put(b"d", b"z4").unwrap();
    trx.rollback().unwrap();
    assert_eq!(rows(&owner), pairs([("c", "z3")]));
    let by_first = |first: &[u8]| owner.index("first").unwrap().get(first).unwrap().count();
    assert_eq!((by_first(b"z"), by_first(b"x"), owner.peek_number().unwrap()), (1, 0, 1));
    assert!(matches!(
        handle.index_at(number).unwrap_err(),
        Error::Schema(SchemaError::IndexNumberOutdated(_))
    ));
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());

    drop(std::thread::spawn(move || drop(owner)).join());
    assert!(matches!(handle.get(b"c"), Err(Error::TableDropped(_))));
    other.put(b"a", b"x1").unwrap();
    drop(other);
    env.run_workers(100);
    let metrics = db.metrics();
    assert_eq!((metrics.pool_writes, metrics.drops_pending, metrics.files_created), (0, 0, 0));
}

#[test]
fn calls_on_a_temporary_table_go_on_while_it_is_truncated() {
    let db = database();
    let mut owner = db.create_temporary_table("t", indexed()).unwrap();
    let (handle, ended) = (Table::clone(&owner), std::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0u32.. {
                handle.put(&n.to_be_bytes(), b"x").unwrap();
                // The truncation is before both entries, or after both.
                let entries = handle.index("first").unwrap().keys::<&[u8]>(..).map(Iterator::count);
                assert!(entries.is_ok() || matches!(entries, Err(Error::TableDropped(_))), "{entries:?}");
                if ended.load(std::sync::atomic::Ordering::SeqCst) {
                    break;
                }
            }
        });
        for _ in 0..200 {
            assert_eq!(owner.truncate().unwrap().trees, 2);
        }
        ended.store(true, std::sync::atomic::Ordering::SeqCst);
    });
    let found: Vec<_> = owner.rows().unwrap().map(|row| row.unwrap().0).collect();
    let entries = owner.index("first").unwrap();
    let entries: Vec<_> = entries.keys::<&[u8]>(..).unwrap().map(|entry| entry.unwrap().key).collect();
    assert_eq!(found, entries);
}

fn supplied(unique: bool) -> IndexOptions {
    let index = IndexOptions::supplied(1);
    if unique { index.unique() } else { index }
}

/// Makes the entry of a row of its last byte.
fn last_byte(value: &[u8], entry: &mut MadeEntry) -> bool {
    entry.key.extend(value.last());
    !value.is_empty()
}

#[test]
fn a_temporary_table_is_altered_as_a_whole_or_not_at_all() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = simulated(&disk, &env);
    let mut owner = db.create_temporary_table("t", indexed()).unwrap();
    let handle = Table::clone(&owner);
    for (key, value) in [("a", "x1"), ("b", "y2"), ("c", "x2")] {
        owner.put(key.as_bytes(), value.as_bytes()).unwrap();
    }
    let keys = |table: &Table, index: &str| -> Vec<(Vec<u8>, Vec<u8>)> {
        let keys = table.index(index).unwrap().keys::<&[u8]>(..).unwrap();
        keys.map(|found| found.map(|found| (found.index_key, found.key)).unwrap()).collect()
    };
    let number = owner.index_number("first").unwrap();
    let changes = || {
        TableChanges::default()
            .rename_index("first", "former")
            .add_index("whole", IndexOptions::on_value(0..2))
            .metadata(vec![7; 100_000])
            .numbers(50)
            .name("u")
    };
    let trx = begin(&db, Isolation::RepeatableRead);
    trx.table(&owner).put(b"d", b"z3").unwrap();
    let refused = owner.alter(changes()).unwrap_err();
    assert!(matches!(refused, Error::Usage(UsageError::TemporaryInUse(_))), "{refused}");
    trx.rollback().unwrap();
    for (unique, what) in
        [(supplied(true), "duplicate"), (IndexOptions::on_value(0..1).unique(), "duplicate")]
    {
        let refused = owner
            .alter_with(changes().add_index("last", unique), |_, _, value, entry| Ok(last_byte(value, entry)))
            .unwrap_err();
        assert!(refused.to_string().contains(what), "{refused}");
    }
    let refused = owner.alter(changes().add_index("last", supplied(false))).unwrap_err();
    assert!(matches!(refused, Error::Usage(UsageError::EntriesUnknown { .. })), "{refused}");
    let refused = owner.alter(changes().drop_index("none")).unwrap_err();
    assert!(matches!(refused, Error::Schema(SchemaError::NoIndex { .. })), "{refused}");
    assert_eq!((owner.name(), owner.metadata().unwrap(), owner.peek_number().unwrap()), ("t", vec![], 1));
    assert_eq!(rows(&owner), pairs([("a", "x1"), ("b", "y2"), ("c", "x2")]));
    assert!(handle.index("whole").is_err());

    let report = owner
        .alter_with(changes().add_index("last", supplied(false)), |_, _, value, entry| {
            Ok(last_byte(value, entry))
        })
        .unwrap();
    assert_eq!((report.trees, report.lsn, owner.name()), (0, None, "u"));
    assert_eq!((handle.metadata().unwrap(), handle.next_number().unwrap()), (vec![7; 100_000], 50));
    assert_eq!(keys(&handle, "whole"), pairs([("x1", "a"), ("x2", "c"), ("y2", "b")]));
    assert_eq!(keys(&handle, "last"), pairs([("1", "a"), ("2", "b"), ("2", "c")]));
    assert_eq!(handle.index_at(number).unwrap().get(b"x").unwrap().count(), 2);
    let entry = |key| Some(SuppliedEntry::new(key));
    let trx = begin(&db, Isolation::RepeatableRead);
    let change = [SuppliedChange::new("last", entry(b"1"), entry(b"9"))];
    trx.table(&handle).update_with(b"a", b"q9", &change).unwrap();
    assert_eq!(keys(&handle, "last"), pairs([("2", "b"), ("2", "c"), ("9", "a")]));
    // An index is dropped in the middle of a transaction that has changed its entries.
    assert_eq!(owner.alter(TableChanges::default().drop_index("whole")).unwrap().trees, 1);
    trx.rollback().unwrap();
    assert_eq!(keys(&handle, "last"), pairs([("1", "a"), ("2", "b"), ("2", "c")]));
    assert_eq!(keys(&handle, "former"), pairs([("x", "a"), ("x", "c"), ("y", "b")]));
    let infos = db.temporary_tables().unwrap();
    assert_eq!((infos.len(), &*infos[0].name, infos[0].rows), (1, "u", 3));
    assert!(infos[0].resident_pages >= 3 && db.metrics().temporary_tables == 1);
    drop(owner);
    assert!(db.temporary_tables().unwrap().is_empty() && db.metrics().temporary_tables == 0);
    env.run_workers(100);
    assert_eq!((db.metrics().drops_pending, db.metrics().pool_writes), (0, 0));
}

/// As a server does it that copies: a new table is created and loaded, gets the name, and the old one is dropped.
#[test]
fn a_temporary_table_is_replaced_by_a_loaded_copy_in_the_middle_of_a_transaction() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = simulated(&disk, &env);
    for sorted in [true, false] {
        let old = db.create_temporary_table("t", indexed()).unwrap();
        let trx = begin(&db, Isolation::RepeatableRead);
        let kept = db.create_temporary_table("kept", TableOptions::default()).unwrap();
        trx.table(&kept).put(b"k", b"v").unwrap();
        (0..200u8).for_each(|n| trx.table(&old).put(&[n], &long(n)).unwrap());
        let mut new = db.create_temporary_table("#new", indexed().index("made", supplied(false))).unwrap();
        new.set_numbers(9).unwrap();
        let mut load = if sorted { new.load().unwrap() } else { new.load_unsorted().unwrap() };
        let copied: Vec<_> = trx.table(&old).rows().unwrap().map(Result::unwrap).collect();
        let push = |load: &mut TemporaryLoad, (key, value): &(Vec<u8>, Vec<u8>)| {
            load.push(key, value, &[SuppliedChange::new("made", None, Some(SuppliedEntry::new(&key[..1])))])
        };
        let order: Vec<_> = if sorted { copied.iter().collect() } else { copied.iter().rev().collect() };
        order.iter().try_for_each(|row| push(&mut load, row)).unwrap();
        load.finish(&mut new).unwrap();
        new.rename("t");
        drop(old);
        assert_eq!(rows(&new), copied);
        assert_eq!((new.row_count().unwrap(), new.next_number().unwrap()), (200, 9));
        assert_eq!(new.index("made").unwrap().keys::<&[u8]>(..).unwrap().count(), 200);
        trx.table(&new).put(&[1], b"changed").unwrap_err();
        let change = [SuppliedChange::new("made", Some(SuppliedEntry::new(&[1])), None)];
        assert!(trx.table(&new).delete_with(&[1], &change).unwrap());
        let refused = new.load().map(drop).unwrap_err();
        assert!(matches!(refused, Error::Schema(SchemaError::NotEmpty(_))), "{refused}");
        trx.rollback().unwrap();
        assert_eq!(rows(&new), copied);
        assert!(rows_of(&kept).is_empty());
        // A load that is dropped, or that fails, leaves nothing.
        new.truncate().unwrap();
        for twice in [false, true] {
            let mut load = new.load_unsorted().unwrap();
            (0..50).chain(twice.then_some(7)).for_each(|n| push(&mut load, &copied[n]).unwrap());
            if let Some(done) = twice.then_some(load).map(|load| load.finish(&mut new)) {
                let refused = done.unwrap_err();
                assert!(matches!(refused, Error::Schema(SchemaError::DuplicateInputKey { .. })), "{refused}");
            }
            assert!(rows(&new).is_empty());
        }
    }
    env.run_workers(100);
    let metrics = db.metrics();
    assert_eq!((metrics.drops_pending, metrics.files_created, metrics.temporary_tables), (0, 0, 0));
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}

#[test]
fn a_load_of_a_temporary_table_owns_what_it_needs() {
    type Statement = fn(&mut TemporaryTable) -> windfall::Result<()>;
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = simulated(&disk, &env);
    let create = |name: &str| db.create_temporary_table(name, TableOptions::default()).unwrap();
    let mut table = create("t");
    let mut load = table.load().unwrap();
    assert_eq!(rows_of(&table), []);
    table.rename("u");
    std::thread::scope(|scope| {
        scope.spawn(|| load.push(b"a", b"x1", &[]).unwrap());
    });
    load.push(b"b", b"y2", &[]).unwrap();
    load.finish(&mut table).unwrap();
    assert_eq!(rows_of(&table), pairs([("a", "x1"), ("b", "y2")]));

    let is_changed = |done: windfall::Result<()>| {
        let refused = done.unwrap_err();
        assert!(matches!(refused, Error::Schema(SchemaError::DefinitionChanged(_))), "{refused}");
    };
    let statements: [Statement; 3] = [
        |table| table.truncate().map(drop),
        |table| table.alter(TableChanges::default().metadata(b"new".to_vec())).map(drop),
        |table| table.load()?.finish(table),
    ];
    for statement in statements {
        table.truncate().unwrap();
        let mut load = table.load().unwrap();
        load.push(b"a", b"x1", &[]).unwrap();
        statement(&mut table).unwrap();
        is_changed(load.finish(&mut table));
        assert_eq!(rows_of(&table), []);
    }
    let mut load = table.load().unwrap();
    load.push(b"a", b"x1", &[]).unwrap();
    table.put(b"b", b"y2").unwrap();
    let refused = load.finish(&mut table).unwrap_err();
    assert!(matches!(refused, Error::Schema(SchemaError::NotEmpty(_))), "{refused}");
    assert_eq!(rows_of(&table), pairs([("b", "y2")]));
    // A load may outlive its table.
    let (mut other, mut gone) = (create("other"), create("gone"));
    let mut load = gone.load().unwrap();
    drop(gone);
    load.push(b"a", b"x1", &[]).unwrap();
    other.rename("another");
    let refused = load.finish(&mut other).unwrap_err();
    assert!(
        matches!(&refused, Error::Usage(UsageError::LoadOfOtherTable(name)) if **name == *"another"),
        "{refused}"
    );
    assert_eq!(rows_of(&other), []);
    // An error has the name of the table at the end, and a load that is in vain does no work.
    let mut load = other.load_unsorted().unwrap();
    (0..2).for_each(|_| load.push(b"a", b"x1", &[]).unwrap());
    other.rename("renamed");
    let twice = load.finish(&mut other).unwrap_err();
    assert!(
        matches!(&twice, Error::Schema(SchemaError::DuplicateInputKey { .. }))
            && twice.to_string().contains("renamed"),
        "{twice}"
    );
    let mut load = other.load_unsorted().unwrap();
    (0..2).for_each(|_| load.push(b"a", b"x1", &[]).unwrap());
    other.truncate().unwrap();
    is_changed(load.finish(&mut other));
    // The database of the load has closed.
    let closed = database();
    let mut load = closed.create_temporary_table("t", TableOptions::default()).unwrap().load().unwrap();
    load.push(b"a", b"x1", &[]).unwrap();
    closed.close().unwrap();
    let refused = load.finish(&mut other).unwrap_err();
    assert!(matches!(refused, Error::Closed), "{refused}");
    let kept = other.load().unwrap();
    drop((table, other));
    env.run_workers(100);
    drop(kept);
    env.run_workers(100);
    assert_eq!((db.metrics().drops_pending, db.metrics().files_created), (0, 0));
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}

/// The handle of the database that has created the table.
#[test]
fn an_interrupt_ends_the_long_work_on_a_temporary_table() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let handle = InterruptHandle::new();
    let db = simulated(&disk, &env).with_interrupt(&handle);
    let mut table = db.create_temporary_table("t", TableOptions::default()).unwrap();
    let is_interrupted = |done: windfall::Result<()>| {
        assert!(matches!(done, Err(Error::Lock(LockError::Interrupted))), "{done:?}");
    };
    let push_all =
        |load: &mut TemporaryLoad| (0..3_000u32).try_for_each(|n| load.push(&n.to_be_bytes(), b"value", &[]));
    let mut load = table.load().unwrap();
    handle.interrupt();
    is_interrupted(push_all(&mut load));
    handle.clear();
    drop(load);
    // Rows in any order are merged at the end.
    let mut load = table.load_unsorted().unwrap();
    push_all(&mut load).unwrap();
    handle.interrupt();
    is_interrupted(load.finish(&mut table));
    handle.clear();
    assert_eq!(table.row_count().unwrap(), 0);
    let mut load = table.load().unwrap();
    push_all(&mut load).unwrap();
    load.finish(&mut table).unwrap();
    handle.interrupt();
    let new = || TableChanges::default().add_index("i", IndexOptions::on_value(0..1));
    is_interrupted(table.alter(new()).map(drop));
    assert!(table.index("i").is_err());
    handle.clear();
    table.alter(new()).unwrap();
    assert_eq!(table.index("i").unwrap().keys::<&[u8]>(..).unwrap().count(), 3_000);
}

fn rows_of(table: &Table) -> Vec<(Vec<u8>, Vec<u8>)> {
    table.rows().unwrap().map(Result::unwrap).collect()
}

/// The function that makes the entries would wait for the alteration that it is part of.
#[test]
fn a_function_that_makes_entries_does_not_call_the_altered_table() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = simulated(&disk, &env);
    let mut owner = db.create_temporary_table("t", indexed()).unwrap();
    owner.put(b"a", b"x1").unwrap();
    let handle = Table::clone(&owner);
    let other = db.create_temporary_table("other", indexed()).unwrap();
    let calls: [&dyn Fn() -> windfall::Result<bool>; 3] =
        [&|| handle.get(b"a").map(|row| row.is_some()), &|| handle.put(b"b", b"y2").map(|()| true), &|| {
            db.temporary_tables().map(|all| !all.is_empty())
        }];
    for call in calls {
        let changes = TableChanges::default().add_index("made", supplied(false));
        let refused = owner.alter_with(changes, |_, _, _, _| call()).unwrap_err();
        assert!(matches!(refused, Error::Usage(UsageError::CallInAlteration)), "{refused}");
        assert_eq!(rows(&owner), pairs([("a", "x1")]));
    }
    let changes = TableChanges::default().add_index("made", supplied(false));
    let of_other = |_: &str, key: &[u8], _: &[u8], entry: &mut MadeEntry| {
        entry.key.extend(key);
        other.get(b"a").map(|row| row.is_none())
    };
    owner.alter_with(changes, of_other).unwrap();
    assert_eq!(owner.index("made").unwrap().keys::<&[u8]>(..).unwrap().count(), 1);
}
