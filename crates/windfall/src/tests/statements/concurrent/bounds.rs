//! Bounds of an index build: its memory, the time for which it blocks other calls, and its behaviour at the bounds.

use core::time::Duration;
use std::{collections::BTreeSet, sync::mpsc, thread};

use windfall_sim::{Fault, SimulatedDisk, SimulatedEnv, Survive};

use super::{PATIENT, at_places, begin, check, filled, value};
use crate::{
    Database, FieldChange, IndexOptions, InterruptHandle, MadeEntry, Table, TableChanges, Transaction,
    disk::FileName,
    env::RealEnv,
    error::{DiskError, Error, LockError, SchemaError, TransactionError, UsageError},
    row::FieldSet,
    sync::{
        Arc, LongWork, Mutex, Rank,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        work::{self, Work},
    },
    tests::statements::{index, open, options, row, rows_by_index, rows_of},
    txn::Follower,
};

/// Builds an index on table `t`, and calls `act` at each point of the build.
fn build(db: &Database, unique: bool, act: impl FnMut(usize) + Send + 'static) -> crate::Result<()> {
    at_places(db, act);
    let built = db.with_ddl_timeout(PATIENT).create_index("t", "i", index(unique));
    db.engine().catalog.pause.clear();
    built
}

/// Gives rows another index key each.
fn change(db: &Database, trx: &Transaction, rows: impl Iterator<Item = u64>) {
    let table = trx.table(&db.table("t").unwrap());
    rows.for_each(|n| table.update(&row(n), &value(500 + n, n % 7 == 0)).unwrap());
}

fn is_full(table: &Table) -> bool {
    table
        .inner
        .with_schema(|schema| schema.row_log.as_ref().is_some_and(|row_log| Follower::is_full(&**row_log)))
}

/// Changes and rollbacks that are faster than the index build wait for room, and continue when there is some.
#[test]
fn changes_that_are_faster_than_the_index_build_wait_for_room() {
    type Act = fn(&Database, Transaction);
    // The number of rows that a transaction has changed before the statement, and the action during the statement.
    let acts: [(&str, u64, Act); 6] = [
        ("a rollback", 60, |_, trx| trx.rollback().unwrap()),
        ("a handle that is dropped", 60, |_, trx| drop(trx)),
        ("to a savepoint", 60, |_, trx| {
            trx.rollback_to("begin").unwrap();
            trx.commit().unwrap();
        }),
        ("a prepared one", 60, |db, trx| {
            trx.prepare(b"x").unwrap();
            drop(trx);
            db.rollback_prepared(b"x").unwrap();
        }),
        ("changes of a transaction", 0, |db, trx| {
            change(db, &trx, 0..60);
            trx.commit().unwrap();
        }),
        ("calls", 0, |db, _| {
            let table = db.table("t").unwrap();
            (0..60).for_each(|n| table.update(&row(n), &value(300 + n, false)).unwrap());
        }),
    ];
    for (what, rows, act) in acts {
        let disk = Arc::new(SimulatedDisk::new(1));
        let env = Arc::new(RealEnv::default());
        let db = Database::open_on(disk, env, &options(), &|_| {}).unwrap();
        let table = filled(&db, 60, 7).unwrap();
        let most = 500;
        db.engine().catalog.pause.set_most(most);
        let trx = begin(&db);
        trx.savepoint("begin").unwrap();
        change(&db, &trx, 0..rows);
        let ((begin, begun), is_over) = (mpsc::channel(), Arc::new(AtomicBool::new(false)));
        thread::scope(|scope| {
            let acting = scope.spawn({
                let (db, is_over) = (&db, is_over.clone());
                move || {
                    begun.recv().unwrap();
                    act(db, trx);
                    is_over.store(true, SeqCst);
                }
            });
            let handle = table.clone();
            let built = build(&db, true, move |place| {
                if place != 10 {
                    return;
                }
                let row_log = handle.inner.with_schema(|schema| schema.row_log.clone()).unwrap();
                begin.send(()).unwrap();
                while !row_log.is_room_awaited() {
                    assert!(!is_over.load(SeqCst), "{what}: it does not wait");
                    thread::yield_now();
                }
                let bytes = row_log.noted_bytes();
                assert!((most..most + 300).contains(&bytes), "{what}: {bytes} bytes are noted");
            });
            built.unwrap_or_else(|error| panic!("{what}: {error}"));
            acting.join().unwrap();
        });
        assert!(rows_by_index(&table).unwrap() == rows_of(&table).unwrap(), "{what}");
        assert_eq!(db.check().unwrap().findings, Vec::<String>::new(), "{what}");
    }
}

/// The handle is set when the rows were read, at an entry that is loaded, put or merged, and with notes that are
/// applied.
#[test]
fn an_interrupt_ends_an_index_build_after_its_last_row() {
    const ROWS: u64 = 3000;
    // The bounds of entries and of notes, and the place at which the handle is set, after so many rows.
    for (what, entries, notes, after) in [
        ("a load", usize::MAX, usize::MAX, 100),
        ("a merge of runs", 20_000, usize::MAX, 100),
        ("entries that are put", usize::MAX, 0, 100),
        ("notes", usize::MAX, usize::MAX, ROWS + 1),
    ] {
        let disk = SimulatedDisk::new(1);
        let (db, _env) = open(&disk, 1).unwrap();
        let table = filled(&db, ROWS, u64::MAX).unwrap();
        db.engine().catalog.pause.set_bounds(entries, notes);
        let handle = InterruptHandle::new();
        let (setter, ends) = (handle.clone(), Arc::new(AtomicU64::new(0)));
        let last = ends.clone();
        at_places(&db, move |place| {
            last.store(place as u64, SeqCst);
            if place as u64 == ROWS + after {
                setter.interrupt();
            }
        });
        let built = db.with_interrupt(&handle).create_index("t", "i", index(true));
        db.engine().catalog.pause.clear();
        assert!(matches!(built, Err(Error::Lock(LockError::Interrupted))), "{what}: {built:?}");
        let ended = ends.load(SeqCst) - ROWS - after;
        assert!(ended < u64::from(LongWork::STEPS), "{what}: it ends {ended} entries later");
        handle.clear();
        assert!(table.index("i").is_err());
        db.with_interrupt(&handle).create_index("t", "i", index(true)).unwrap();
        assert!(rows_by_index(&table).unwrap() == rows_of(&table).unwrap(), "{what}");
        assert_eq!(db.check().unwrap().findings, Vec::<String>::new(), "{what}");
    }
}

/// A change waits for the builder of the index, and the builder goes from row to row: both are interrupted.
#[test]
fn an_interrupt_ends_an_index_build_and_the_waits_for_it() {
    let disk = SimulatedDisk::new(1);
    let (db, _env) = open(&disk, 1).unwrap();
    let table = filled(&db, 60, 7).unwrap();
    let (of_builder, of_writer) = (InterruptHandle::new(), InterruptHandle::new());
    of_writer.interrupt();
    let (act_db, ends) = (db.with_interrupt(&of_writer), of_builder.clone());
    db.engine().catalog.pause.set_most(0);
    at_places(&db, move |place| {
        if place == 10 {
            let trx = begin(&act_db);
            let waits = trx.table(&act_db.table("t").unwrap()).update(&row(0), &value(999, false));
            assert!(matches!(waits, Err(Error::Lock(LockError::Interrupted))), "{waits:?}");
            ends.interrupt();
        }
        assert!(place <= 10, "the build goes on");
    });
    let built = db.with_interrupt(&of_builder).create_index("t", "i", index(true));
    db.engine().catalog.pause.clear();
    assert!(matches!(built, Err(Error::Lock(LockError::Interrupted))), "{built:?}");
    assert!(table.index("i").is_err());
    of_builder.clear();
    db.with_interrupt(&of_builder).create_index("t", "i", index(true)).unwrap();
    assert!(rows_by_index(&table).unwrap() == rows_of(&table).unwrap());
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}

/// A background rollback waits for room as well; a background rollback of another table does not.
#[test]
fn the_background_waits_for_room_in_its_own_table_alone() {
    let disk = SimulatedDisk::new(1);
    let (db, env) = open(&disk, 1).unwrap();
    let table = filled(&db, 60, 7).unwrap();
    let other = db.create_table("u", crate::TableOptions::default()).unwrap();
    (0..60).for_each(|n| other.insert(&row(n), &value(n, false)).unwrap());
    let big = big(&db);
    db.engine().catalog.pause.set_most(600);
    let (here, there) = (begin(&db), begin(&db));
    change(&db, &here, 0..60);
    (0..60).for_each(|n| there.table(&other).update(&row(n), &value(900, false)).unwrap());
    let (mut both, seen) = (Some((here, there)), Arc::new(AtomicBool::new(false)));
    let (handle, world, files, was_seen) = (db.clone(), env.clone(), disk.clone(), seen.clone());
    let built = build(&db, true, move |place| {
        if place != 20 {
            return;
        }
        let (here, there) = both.take().unwrap();
        evict(&handle, &big, &mut || {});
        for (trx, table) in [(here, "t"), (there, "u")] {
            let space = handle.table(table).unwrap().inner.space();
            files.fail_on(FileName::Data(space), Fault::ReadFails);
            let done = trx.rollback();
            assert!(
                matches!(done, Err(Error::Transaction(TransactionError::RollingBack { .. }))),
                "{done:?}"
            );
        }
        let table = handle.table("t").unwrap();
        let row_log = table.inner.with_schema(|schema| schema.row_log.clone()).unwrap();
        (0..12u8).for_each(|n| Follower::note(&*row_log, &[n], None, Some(&[n; 9])));
        assert!(is_full(&table) && handle.metrics().rollbacks_pending == 2);
        world.run_workers(2_000);
        assert_eq!(handle.metrics().rollbacks_pending, 1, "the other one has nothing to do with the index");
        let bytes = row_log.noted_bytes();
        assert!(bytes < 1_000, "{bytes} bytes are noted");
        was_seen.store(true, SeqCst);
    });
    built.unwrap();
    assert!(seen.load(SeqCst) && db.metrics().rollbacks_pending == 0);
    check(&db, &env, &table, false, "handed over");
    let rows: BTreeSet<_> = rows_of(&other).unwrap().into_values().collect();
    assert_eq!(rows, (0..60).map(|n| value(n, false)).collect());
}

/// Creates a table that does not fit in the pool.
fn big(db: &Database) -> Table {
    let big = db.create_table("big", crate::TableOptions::default()).unwrap();
    (0..300u64).for_each(|n| big.insert(&row(n), &[1; 1800]).unwrap());
    (300..600u64).for_each(|n| big.insert(&row(n), &[1; 1800]).unwrap());
    big
}

/// Evicts the pages of all other tables from the pool, except those that `keep` reads.
fn evict(db: &Database, big: &Table, keep: &mut dyn FnMut()) {
    db.checkpoint().unwrap();
    for _ in 0..2 {
        for (n, read) in big.rows().unwrap().enumerate() {
            read.unwrap();
            if n % 4 == 0 {
                keep();
            }
        }
    }
}

/// A rollback is handed to the background during an index build: the statement waits for it, at whatever point it was.
#[test]
fn a_rollback_that_is_handed_over_is_waited_for() {
    // Rows are being collected; entries are being loaded; the statement is waiting for the transaction.
    for at in [10, 90, 150] {
        for most in [usize::MAX, 900] {
            let what = format!("at {at}, {most} bytes");
            let disk = SimulatedDisk::new(1);
            let (db, env) = open(&disk, 1).unwrap();
            let table = filled(&db, 60, 7).unwrap();
            let big = big(&db);
            db.engine().catalog.pause.set_most(most);
            let trx = begin(&db);
            change(&db, &trx, 0..60);
            let (mut trx, handle, files) = (Some(trx), db.clone(), disk.clone());
            let space = table.inner.space();
            let built = build(&db, true, move |place| {
                if place < at {
                    return;
                }
                let Some(trx) = trx.take() else { return };
                evict(&handle, &big, &mut || {});
                files.fail_on(FileName::Data(space), Fault::ReadFails);
                let done = trx.rollback();
                assert!(
                    matches!(done, Err(Error::Transaction(TransactionError::RollingBack { .. }))),
                    "{done:?}"
                );
                assert_eq!(handle.metrics().rollbacks_pending, 1);
            });
            built.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(db.metrics().rollbacks_pending, 0, "{what}");
            let rows: BTreeSet<_> = rows_of(&table).unwrap().into_values().collect();
            assert_eq!(rows, (0..60).map(|n| value(n, n % 7 == 6)).collect(), "{what}");
            check(&db, &env, &table, false, &what);
        }
    }
}

/// A value that was rolled back cannot be read, so it is unknown which entry it had. The build fails, and can be
/// repeated.
#[test]
fn an_index_build_fails_when_a_value_that_was_rolled_back_cannot_be_read() {
    for to_a_savepoint in [false, true] {
        let disk = SimulatedDisk::new(1);
        let (db, env) = open(&disk, 1).unwrap();
        let table = filled(&db, 60, 1000).unwrap();
        let big = big(&db);
        let trx = begin(&db);
        trx.savepoint("begin").unwrap();
        trx.table(&table).update(&row(3), &value(500, true)).unwrap();
        let (mut trx, handle, files, rows) = (Some(trx), db.clone(), disk.clone(), table.clone());
        let built = build(&db, true, move |place| {
            if place != 30 {
                return;
            }
            let trx = trx.take().unwrap();
            // The row stays in the pool, and its long value is evicted.
            let read = || assert_eq!(rows.get(&row(3)).unwrap(), Some(value(3, false)));
            evict(&handle, &big, &mut { read });
            files.fail_on(FileName::Data(rows.inner.space()), Fault::ReadFails);
            let failures = files.failures();
            if to_a_savepoint {
                trx.rollback_to("begin").unwrap();
                trx.commit().unwrap();
            } else {
                trx.rollback().unwrap();
            }
            assert_eq!(files.failures(), failures + 1);
        });
        assert!(matches!(built, Err(Error::Disk(DiskError::Io { .. }))), "{built:?}");
        assert!(table.index("i").is_err());
        let rows: BTreeSet<_> = rows_of(&table).unwrap().into_values().collect();
        assert_eq!(rows, (0..60).map(|n| value(n, false)).collect());
        build(&db, true, |_| {}).unwrap();
        check(&db, &env, &table, false, "made again");
    }
}

/// A field of which an index is built cannot be read where a row changes: the build fails, and the change does not.
#[test]
fn a_chosen_field_that_cannot_be_read_ends_the_build_alone() {
    let make = |_: &str, row: &[u8], _: &[u8], entry: &mut MadeEntry| {
        entry.key.extend_from_slice(row);
        Ok(true)
    };
    let disk = SimulatedDisk::new(1);
    let (db, _) = open(&disk, 1).unwrap();
    let table = db.create_table("t", crate::TableOptions::default()).unwrap();
    let long = vec![b'l'; 70_000];
    table.insert_fields(b"row", &[&long, &long], &[]).unwrap();
    let big = big(&db);
    let options = IndexOptions::supplied(3).reading(FieldSet::NONE.with(1));
    let changes = || TableChanges::default().add_index("x", options.clone());
    let mut built = db.build_indexes_with("t", changes(), make).unwrap();
    // The first bytes of the value stay in the pool.
    let first = table.select_fields(FieldSet::ALL.cut_at(64 << 10));
    evict(&db, &big, &mut || assert!(first.get(b"row").unwrap().is_some()));
    disk.fail_on(FileName::Data(table.inner.space()), Fault::ReadFails);
    let failures = disk.failures();
    table.update_fields(b"row", &[FieldChange::Keep, FieldChange::Set(b"short")], &[]).unwrap();
    assert_eq!(disk.failures(), failures + 1);
    for _ in 0..2 {
        let failed = built.catch_up_with(make).unwrap_err();
        assert!(matches!(failed, Error::Disk(DiskError::Io { .. })), "{failed}");
    }
    drop(built);
    db.alter_table_with("t", changes(), make).unwrap();
    assert_eq!(table.index("x").unwrap().range::<&[u8]>(..).unwrap().count(), 1);
}

/// Begins a transaction that gives many rows one key of a unique index before the index is built.
fn with_one_key(rows: u64) -> (Database, SimulatedEnv, Table, Transaction) {
    let (db, env) = open(&SimulatedDisk::new(1), 1).unwrap();
    let table = filled(&db, rows, 1000).unwrap();
    let trx = begin(&db);
    for n in 0..rows {
        trx.table(&table).update(&row(n), &value(3, false)).unwrap();
    }
    (db, env, table, trx)
}

#[test]
fn deferred_entries_are_bounded() {
    let (db, env, table, trx) = with_one_key(60);
    let pause = &db.engine().catalog.pause;
    pause.set_most(3_000);
    let refused = build(&db, true, |place| assert!(place < 300, "it waits with more than that")).unwrap_err();
    assert!(matches!(refused, Error::Usage(UsageError::TooManyDeferred(_))), "{refused}");
    for said in ["not committed", "too many to wait for", "end these transactions"] {
        assert!(refused.to_string().contains(said), "{refused}");
    }
    assert!(table.index("i").is_err());
    // The deferred entries may be as many as fit.
    pause.set_most(20_000);
    let mut trx = Some(trx);
    let built = build(&db, true, move |place| {
        if place >= 100
            && let Some(trx) = trx.take()
        {
            trx.rollback().unwrap();
        }
    });
    built.unwrap();
    check(&db, &env, &table, false, "as many as fit");
}

/// Deferred entries of transactions that have ended make room for the deferred entries of others.
#[test]
fn deferred_entries_make_room_when_their_transactions_end() {
    for (commits, stays_so) in [(false, false), (true, false), (false, true)] {
        let rows = 60u64;
        let (db, env) = open(&SimulatedDisk::new(1), 1).unwrap();
        let table = filled(&db, rows, 1000).unwrap();
        db.engine().catalog.pause.set_most(3_000);
        // One transaction stays open, so that the statement waits, and its entry is the first of all.
        let mut stays = Some(begin(&db));
        stays.as_ref().unwrap().table(&table).update(&row(50), &value(0, false)).unwrap();
        let (handle, rows_of_trx, mut trx) = (db.clone(), table.clone(), None);
        let mut keys: Vec<u64> = (0..rows).collect();
        let waits_from = 2 * rows as usize + 20;
        let built = build(&db, true, move |place| {
            let Some(n) = place.checked_sub(waits_from) else { return };
            // A row takes the key of another row. By the end, the other row has lost the key, or the change was rolled
            // back.
            let (one, other) = (2 * (n / 2 % 10) + 2, 2 * (n / 20 % 10) + 3);
            let update = |trx: &Transaction, n: usize, key| {
                trx.table(&rows_of_trx).update(&row(n as u64), &value(key, false)).unwrap();
            };
            if n >= 200 {
                let end = |trx: Transaction| if stays_so { trx.commit().map(drop) } else { trx.rollback() };
                stays.take().map_or(Ok(()), end).unwrap();
            } else if n % 2 == 0 {
                update(trx.insert(begin(&handle)), one, keys[other]);
            } else if commits {
                let trx = trx.take().unwrap();
                (keys[one], keys[other]) = (keys[other], 1000 + n as u64);
                update(&trx, other, keys[other]);
                trx.commit().unwrap();
            } else {
                trx.take().unwrap().rollback().unwrap();
            }
        });
        match built {
            Ok(()) if !stays_so => check(&db, &env, &table, false, "they have ended"),
            // An entry that was applied again and deferred again was not forgotten.
            Err(Error::Schema(SchemaError::DuplicateKey { .. })) if stays_so => {}
            built => panic!("commits: {commits}, the first one: {stays_so}: {built:?}"),
        }
    }
}

/// An entry that is deferred repeatedly counts once.
#[test]
fn an_entry_that_is_deferred_again_is_counted_once() {
    let (db, env) = open(&SimulatedDisk::new(1), 1).unwrap();
    let table = filled(&db, 60, 1000).unwrap();
    db.engine().catalog.pause.set_most(2_000);
    let trx = begin(&db);
    trx.table(&table).update(&row(50), &value(3, false)).unwrap();
    let (mut trx, handle) = (Some(trx), table.clone());
    let built = build(&db, true, move |place| {
        if (100..500).contains(&place) {
            let index_key = if place % 2 == 0 { 900 } else { 3 };
            handle.update(&row(3), &value(index_key, false)).unwrap();
        }
        if place == 500 {
            trx.take().unwrap().rollback().unwrap();
        }
    });
    built.unwrap();
    check(&db, &env, &table, false, "deferred repeatedly");
}

/// If many rows have the same key in an open transaction, or had it, each of them is checked against few others.
#[test]
fn an_index_build_with_many_equal_keys_has_linear_cost() {
    for notes in [usize::MAX, 900] {
        for ends_during_build in [false, true] {
            let frames = |rows: u64| {
                let (db, env, table, trx) = with_one_key(rows);
                db.engine().catalog.pause.set_bounds(usize::MAX, notes);
                let ends_at = if ends_during_build { rows as usize - 1 } else { 4 * rows as usize };
                let mut trx = Some(trx);
                let before = work::so_far();
                let built = build(&db, true, move |place| {
                    if place >= ends_at
                        && let Some(trx) = trx.take()
                    {
                        trx.rollback().unwrap();
                    }
                });
                let frames = (work::so_far() - before).of(Work::Frame);
                built.unwrap();
                check(&db, &env, &table, false, "one key");
                frames
            };
            let (few, many) = (frames(50), frames(300));
            assert!(
                many < 12 * few,
                "{notes}, {ends_during_build}: {few} frames for 50 rows, and {many} for 300"
            );
        }
    }
}

/// Deferred entries are applied before the gate is closed, because calls on the table wait for those that are left.
#[test]
fn deferred_entries_are_applied_while_calls_continue() {
    let rows = 300;
    let (db, env, table, trx) = with_one_key(rows);
    let (mut trx, last) = (Some(trx), Arc::new(AtomicU64::new(0)));
    let frames = || work::so_far().of(Work::Frame);
    let at_last = last.clone();
    let built = build(&db, true, move |place| {
        if place > 2 * rows as usize + 30
            && let Some(trx) = trx.take()
        {
            trx.rollback().unwrap();
        }
        at_last.store(frames(), SeqCst);
    });
    let closed = frames() - last.load(SeqCst);
    built.unwrap();
    assert!(closed < rows, "{closed} frames behind the last place with an open gate");
    check(&db, &env, &table, false, "deferred");
}

/// A turn in the table's queue is short, however much was noted.
#[test]
fn concurrent_changes_do_not_prolong_a_turn_of_an_index_build() {
    let rows = 800u64;
    // All entries are collected and loaded, and the statement waits for the transaction.
    let waits_from = 2 * rows + 30;
    let (db, env) = open(&SimulatedDisk::new(1), 1).unwrap();
    let table = filled(&db, rows, 10_000).unwrap();
    let trx = begin(&db);
    trx.table(&table).put(b"other", &value(90_000, false)).unwrap();
    let (mut trx, handle) = (Some(trx), table.clone());
    let between = Arc::new(Mutex::new(Rank::Leaf, Vec::new()));
    let (noted, mut before) = (between.clone(), None);
    let frames = || work::so_far().of(Work::Frame);
    let built = build(&db, true, move |place| {
        let place = (place as u64).saturating_sub(waits_from);
        if let Some(before) = before {
            noted.lock().push(frames() - before);
        }
        if place == 1 {
            (0..rows).for_each(|n| handle.update(&row(n), &value(1000 + n, false)).unwrap());
        }
        if place == 20 {
            trx.take().unwrap().commit().unwrap();
        }
        before = (place > 0 && trx.is_some()).then(frames);
    });
    built.unwrap();
    let between = between.lock().clone();
    let (all, most) = (between.iter().sum::<u64>(), between.iter().max().copied().unwrap());
    assert!(all > 2 * rows && most < all / 4, "{between:?} frames between two looks at the queue");
    check(&db, &env, &table, false, "many notes");
}

/// Builds an index on a table. Before each round of applying, makes as many changes as `come` returns for it, as long
/// as they need not wait for room. Returns the number of rounds before the statement had the table's lock, and the
/// number of changes before its last round.
fn rounds(come: impl Fn(usize) -> usize + Send + 'static) -> (usize, usize) {
    let rows = 20;
    let (db, env) = open(&SimulatedDisk::new(1), 1).unwrap();
    let table = filled(&db, rows, 1000).unwrap();
    db.engine().catalog.pause.set_most(1 << 20);
    let (handle, transactions, space) =
        (table.clone(), db.engine().transactions.clone(), table.inner.space());
    let seen = Arc::new(Mutex::new(Rank::Leaf, (0, 0)));
    let (last_seen, mut noted) = (seen.clone(), 0u64);
    let built = build(&db, true, move |place| {
        // All entries are collected and loaded.
        let round = place.saturating_sub(2 * rows as usize);
        if round == 0 {
            return;
        }
        let row_log = handle.inner.with_schema(|schema| schema.row_log.clone()).unwrap();
        let mut left = come(round);
        while left > 0 && !Follower::is_full(&*row_log) {
            noted += 1;
            row_log.note(&noted.to_be_bytes(), None, Some(&value(noted, false)));
            left -= 1;
        }
        let (is_open, count) =
            (!transactions.lock_manager().is_any_table_locked([space].into_iter()), row_log.noted());
        let mut seen = last_seen.lock();
        *seen = (if is_open { round } else { seen.0 }, count);
    });
    built.unwrap();
    check(&db, &env, &table, false, "rounds");
    *seen.lock()
}

/// Further rounds would find as many notes, so the rest is left for the time in which the table is locked. Then the
/// notes become few before the gate is closed, because the limit of notes is lowered.
#[test]
fn changes_that_come_faster_than_they_are_applied_are_not_followed_for_long() {
    // A single round with more may be chance, however often that happens; a second one in a row with no fewer is not.
    let noisy = |round| [900, 950, 800, 850, 800, 300].get(round - 1).copied().unwrap_or(1000);
    for (what, come, expected) in [
        ("they become more", (|round| 300 + 100 * round) as fn(usize) -> usize, 3),
        ("they stay as many", |_| 300, 3),
        ("they stop to become fewer", noisy, 5),
    ] {
        let (rounds, last) = rounds(come);
        assert_eq!(rounds, expected, "{what}");
        assert!((100..256).contains(&last), "{what}: {last} come before the gate is closed");
    }
}

#[test]
fn changes_that_become_fewer_are_followed_until_they_are_few() {
    // The last round is with the table locked.
    assert_eq!(rounds(|round| 2000 - 100 * round), (18, 100), "each time");
    // Every second round has more than the one before.
    let noisy = |round| if round % 2 == 1 { 2000 } else { 2150 } - 100 * round;
    assert_eq!(rounds(noisy), (19, 150), "most of the time");
    assert_eq!(rounds(|round| 257 - round), (1, 255), "they are few at once");
}

/// If the timeout of a statement expires between two of its waits, the next wait fails, and reports the whole time that
/// was waited. A statement with a zero timeout fails with its own error.
#[test]
fn a_statement_whose_time_is_over_between_two_waits_has_timed_out() {
    for at_most in [PATIENT, Duration::ZERO] {
        let rows = 60;
        let disk = SimulatedDisk::new(1);
        let (db, env) = open(&disk, 1).unwrap();
        let table = filled(&db, rows, 7).unwrap();
        let big = big(&db);
        let (mut goes, mut stays) = (None, None);
        let (handle, world, files, space) = (db.clone(), env.clone(), disk.clone(), table.inner.space());
        let stayed = Arc::new(AtomicU64::new(0));
        let of_stayed = stayed.clone();
        at_places(&db, move |place| {
            if place == 5 {
                goes = Some(begin(&handle));
                change(&handle, goes.as_ref().unwrap(), 0..20);
                let trx = stays.insert(begin(&handle));
                change(&handle, trx, 30..31);
                of_stayed.store(trx.id().unwrap().0, SeqCst);
            }
            if place == 20 && !at_most.is_zero() {
                evict(&handle, &big, &mut || {});
                files.fail_on(FileName::Data(space), Fault::ReadFails);
                let done = goes.take().unwrap().rollback();
                assert!(
                    matches!(done, Err(Error::Transaction(TransactionError::RollingBack { .. }))),
                    "{done:?}"
                );
            }
            // The first wait is for the background rollback. Here the rollback ends, and the timeout expires.
            if place == 2 * rows as usize + 2 {
                world.run_workers(2_000);
                assert_eq!(handle.metrics().rollbacks_pending, 0);
                world.advance(at_most);
            }
        });
        let built = db.with_ddl_timeout(at_most).create_index("t", "i", index(true));
        let blockers = match built {
            Err(Error::Lock(LockError::TimedOut { blockers, waited })) if at_most >= PATIENT => {
                assert!(waited >= at_most, "{waited:?}");
                blockers
            }
            Err(Error::Lock(LockError::Busy(blockers))) if at_most.is_zero() => blockers,
            built => panic!("{at_most:?}: {built:?}"),
        };
        let ids: Vec<u64> = blockers.ids().iter().map(|trx| trx.0).collect();
        assert!(ids.contains(&stayed.load(SeqCst)), "{ids:?} are in the way");
        db.engine().catalog.pause.clear();
        assert!(table.index("i").is_err());
        build(&db, true, |_| {}).unwrap();
        check(&db, &env, &table, false, "made again");
    }
}

/// The reason for which an index was refused is reported even if its tree cannot be dropped then; the next opening
/// drops it.
#[test]
fn an_index_is_refused_for_the_first_reason() {
    let rows = 60;
    let disk = SimulatedDisk::new(1);
    let (db, env) = open(&disk, 1).unwrap();
    let table = filled(&db, rows, 7).unwrap();
    let big = big(&db);
    // The rollback waits for room, so it is not done when the statement begins to wait for it.
    db.engine().catalog.pause.set_most(900);
    let trx = begin(&db);
    change(&db, &trx, 0..rows);
    let (handle, world, files, space) = (db.clone(), env.clone(), disk.clone(), table.inner.space());
    let (mut trx, rows_of_trx) = (Some(trx), table.clone());
    let built = build(&db, true, move |place| {
        if place == 20 {
            evict(&handle, &big, &mut || {});
            files.fail_on(FileName::Data(space), Fault::ReadFails);
            drop(trx.take().unwrap().rollback().unwrap_err());
        }
        // The timeout expires, and at the same moment the database stops.
        if place == 2 * rows as usize + 2 {
            assert_eq!(handle.metrics().rollbacks_pending, 1);
            // There is nothing to apply then, so applying does not find out that the database has stopped.
            let row_log = rows_of_trx.inner.with_schema(|schema| schema.row_log.clone()).unwrap();
            assert!(row_log.lose_notes() > 0);
            drop(handle.engine().pool.context().health.poison("the log cannot be written"));
            world.advance(PATIENT);
        }
    });
    assert!(matches!(built, Err(Error::Lock(LockError::TimedOut { .. }))), "{built:?}");
    assert!(db.engine().pool.context().health.check().is_err());
    drop((table, db));
    let (db, env) = open(&disk.restart(Survive::Everything), 1).unwrap();
    let table = db.table("t").unwrap();
    assert!(table.index("i").is_err());
    build(&db, true, |_| {}).unwrap();
    check(&db, &env, &table, false, "made again");
}
