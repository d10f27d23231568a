//! A limit for the size of undo: the error names the transaction or read view that keeps the undo, and no other call is
//! blocked.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use rand::{Rng, SeedableRng, rngs::StdRng};
use windfall::{
    Access, Database, Error, IndexOptions, Isolation, Result, Table, TableOptions, TransactionOptions,
    UndoLimitAction,
    env::{Env, RealEnv},
    error::{LockError, TransactionError},
};
use windfall_sim::{SimulatedDisk, SimulatedEnv};

use super::{begin, options, time_limit::wait_until};

const LIMIT: u64 = 1 << 20;
/// An undo slice has 64 pages.
const SLICE: u64 = 64 * 4096;
const ROWS: u16 = 50;

fn open(disk: &SimulatedDisk, env: &SimulatedEnv) -> Database {
    let options = options().undo_limit(LIMIT);
    Database::open_on(Arc::new(disk.clone()), Arc::new(env.clone()), &options, &|_| {}).unwrap()
}

/// Opens a database in which old read views do not stop changes.
fn open_to_end_views(seed: u64) -> (SimulatedEnv, Database) {
    let env = SimulatedEnv::new(seed);
    let db = open(&SimulatedDisk::new(seed), &env);
    db.set_undo_limit_action(UndoLimitAction::EndOldestView);
    (env, db)
}

fn rows(db: &Database) -> Table {
    let table = db.create_table("t", TableOptions::default()).unwrap();
    for key in 0..ROWS {
        table.put(&key.to_be_bytes(), &[0; 1000]).unwrap();
    }
    table
}

/// Puts rows until one is refused, and returns the content of the error.
fn put_until_refused(table: &Table<impl Access>) -> (u64, u64, String) {
    for n in 0..20_000_u64 {
        match table.put(&((n % u64::from(ROWS)) as u16).to_be_bytes(), &[n as u8; 1000]) {
            Ok(()) => {}
            Err(Error::Transaction(TransactionError::UndoFull { bytes, limit, oldest })) => {
                return (bytes, limit, oldest.to_string());
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("nothing was refused")
}

#[test]
fn an_old_view_stops_changes_at_the_limit_until_it_ends() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = open(&disk, &env);
    let table = rows(&db);
    let view = db.begin(TransactionOptions::default().read_only().consistent_snapshot());
    let (bytes, limit, oldest) = put_until_refused(&table);
    // Purge cannot make progress, so no call waits for long, and a call with a lock timeout of zero does not wait.
    let now = env.now();
    put_until_refused(&table);
    assert!(env.now() < now + Duration::from_secs(4), "{:?} behind {now:?}", env.now());
    let trx = db.begin(TransactionOptions::default().lock_wait(Duration::ZERO));
    let now = env.now();
    assert!(trx.table(&table).put(b"row", b"1").is_err() && env.now() < now + Duration::from_millis(1));
    trx.commit().unwrap();
    assert!(limit == LIMIT && bytes > LIMIT && bytes <= LIMIT + SLICE, "{bytes} of {limit}");
    assert!(oldest.contains("a view"), "{oldest}");
    let metrics = db.metrics();
    assert!(metrics.undo_bytes <= LIMIT + 3 * SLICE && metrics.undo_waits == 3, "{metrics:?}");
    // Reads, table creation and writes to temporary tables continue. A deletion is a change.
    assert_eq!(view.table(&table).get(&0_u16.to_be_bytes()).unwrap().unwrap(), [0; 1000]);
    assert!(matches!(table.delete(&[0, 0]), Err(Error::Transaction(TransactionError::UndoFull { .. }))));
    let other = db.create_table("other", TableOptions::default()).unwrap();
    assert!(other.put(b"row", b"1").is_err());
    let session = db.session();
    let temporary = session.create_temporary_table("mine", TableOptions::default()).unwrap();
    temporary.put(b"row", b"1").unwrap();
    // A higher limit permits changes, and so does the end of the read view.
    db.set_undo_limit(Some(2 * LIMIT)).unwrap();
    other.put(b"row", b"1").unwrap();
    db.set_undo_limit(Some(LIMIT)).unwrap();
    assert!(other.put(b"row", b"2").is_err());
    view.rollback().unwrap();
    other.put(b"row", b"2").unwrap();
    env.run_workers(200);
    assert!(db.metrics().undo_bytes <= 3 * SLICE, "{}", db.metrics().undo_bytes);
    // The limit also applies in the next process.
    drop((session, temporary, other, table));
    db.close().unwrap();
    let db = open(&disk, &env);
    let _view = db.begin(TransactionOptions::default().read_only().consistent_snapshot());
    put_until_refused(&db.table("t").unwrap());
}

fn is_ended<T: core::fmt::Debug>(done: Result<T>) -> bool {
    match done {
        Err(Error::Transaction(TransactionError::ViewEnded)) => true,
        other => panic!("{other:?}"),
    }
}

/// Changes rows until this number of read views has been ended.
fn put_until_ended(db: &Database, table: &Table, views: u64) {
    for n in 0..20_000_u64 {
        if db.metrics().views_ended == views {
            return;
        }
        table.put(&((n % u64::from(ROWS)) as u16).to_be_bytes(), &[n as u8; 1000]).unwrap();
    }
    panic!("{} of {views} views were ended", db.metrics().views_ended);
}

#[test]
fn the_oldest_view_is_ended() {
    let (env, db) = open_to_end_views(6);
    let options = TableOptions::default().index("i", IndexOptions::on_value(0..1));
    let table = db.create_table("t", options).unwrap();
    let key = |n: u16| n.to_be_bytes();
    for n in 0..ROWS {
        table.put(&key(n), &[0; 1000]).unwrap();
    }
    for gone in [&b"gone"[..], b"left"] {
        table.put(gone, b"1").unwrap();
    }
    // All of them see the first rows: a transaction, one with a strict snapshot, and two cursors outside of
    // transactions.
    let old = db.begin(TransactionOptions::default().consistent_snapshot());
    let strict = db.begin(TransactionOptions::default().isolation(Isolation::Snapshot).consistent_snapshot());
    let (mut cursor, mut rows) = (table.cursor().unwrap(), table.rows().unwrap());
    assert!(cursor.next().unwrap() && rows.next().unwrap().is_ok());
    let within = old.table(&table);
    let mut entries = within.index("i").unwrap().range::<&[u8]>(..).unwrap();
    assert!(entries.next().unwrap().is_ok());
    for gone in [&b"gone"[..], b"left"] {
        assert!(table.delete(gone).unwrap());
    }
    assert_eq!(within.get(b"gone").unwrap().unwrap(), b"1");
    put_until_ended(&db, &table, 4);
    let young = db.begin(TransactionOptions::default().consistent_snapshot());
    let newest = table.get(&key(1)).unwrap();
    env.run_workers(500);
    // A read never silently misses what purge has removed, neither a version nor a row.
    assert!(
        is_ended(within.get(&key(1))) && is_ended(within.get(b"gone")) && is_ended(within.contains(b"none"))
    );
    assert!(is_ended(within.read_stream(&key(1), &mut Vec::new())));
    assert!(is_ended(within.rows().unwrap().next().unwrap()) && is_ended(entries.next().unwrap()));
    assert!(is_ended(within.index("i").unwrap().get(&[0]).unwrap().next().unwrap()));
    assert!(is_ended(cursor.next()) && is_ended(rows.next().unwrap()) && rows.next().is_none());
    assert_eq!(cursor.row(), None);
    // Outside of a transaction the next read has a new read view.
    assert!(cursor.next().unwrap() && cursor.key() == Some(&key(0)));
    // Without its read view, a strict snapshot cannot determine what has changed since. Other levels lock and change
    // the current rows.
    let strictly = strict.table(&table);
    assert!(is_ended(strictly.insert(b"left", b"2")) && is_ended(strictly.get_for_update(b"none")));
    assert!(is_ended(strictly.get(b"left")) && is_ended(strictly.update(b"gone", b"2")));
    assert!(is_ended(strictly.range_for_update(&b"left"[..]..).unwrap().next().unwrap()));
    assert!(is_ended(strictly.index("i").unwrap().range_for_share(&b"1"[..]..).unwrap().next().unwrap()));
    strict.commit().unwrap();
    assert_eq!(within.get_for_update(&key(1)).unwrap(), newest);
    within.insert(b"left", b"3").unwrap();
    old.commit().unwrap();
    assert_eq!((table.get(b"left").unwrap().unwrap(), table.get(b"gone").unwrap()), (b"3".to_vec(), None));
    // A younger read view still sees the same rows, until it is the oldest and is ended.
    assert_eq!(young.table(&table).get(&key(1)).unwrap(), newest);
    assert_eq!(db.views().len(), 2);
    put_until_ended(&db, &table, 6);
    assert!(is_ended(young.table(&table).get(&key(1))));
    let metrics = db.metrics();
    assert!(metrics.undo_bytes <= LIMIT + 3 * SLICE, "{metrics:?}");
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}

/// Rows that the scan has returned before the end of its read view do not make up for a row that it can no longer see.
#[test]
fn a_strict_scan_ends_with_its_view() {
    let (env, db) = open_to_end_views(10);
    let (table, other) = (rows(&db), db.create_table("other", TableOptions::default()).unwrap());
    for key in [b"a", b"b"] {
        other.put(key, b"1").unwrap();
    }
    let strict = db.begin(TransactionOptions::default().isolation(Isolation::Snapshot).consistent_snapshot());
    other.delete(b"b").unwrap();
    let mut scan = strict.table(&other).range_for_update::<&[u8]>(..).unwrap();
    assert_eq!(scan.next().unwrap().unwrap(), (b"a".to_vec(), b"1".to_vec()));
    put_until_ended(&db, &table, 1);
    env.run_workers(500);
    assert!(is_ended(scan.next().unwrap()));
}

#[test]
fn views_that_hold_nothing_up_stay_however_old_they_are() {
    let (env, db) = open_to_end_views(11);
    let table = rows(&db);
    let snapshot = || db.begin(TransactionOptions::default().consistent_snapshot());
    let old = [(); 20].map(|()| snapshot());
    table.put(&[0, 0], b"1").unwrap();
    for n in 0..700_u16 {
        table.put(&(n % ROWS).to_be_bytes(), &[2; 1000]).unwrap();
    }
    let young = snapshot();
    let seen = young.table(&table).get(&[0, 0]).unwrap();
    env.run_workers(200);
    // The read views that stop purge are ended at once. The one that sees everything up to the purge position stays.
    put_until_ended(&db, &table, 20);
    assert!(old.iter().all(|trx| is_ended(trx.table(&table).get(&[0, 0]))));
    assert_eq!(young.table(&table).get(&[0, 0]).unwrap(), seen);
}

#[test]
fn a_view_is_ended_within_a_long_value() {
    struct Slow<'a>(&'a Database, &'a Table, usize);

    impl io::Write for Slow<'_> {
        fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
            put_until_ended(self.0, self.1, 1);
            self.2 += piece.len();
            Ok(piece.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let (_, db) = open_to_end_views(7);
    let (table, other) = (rows(&db), db.create_table("other", TableOptions::default()).unwrap());
    other.put(b"long", &vec![7; 300_000]).unwrap();
    let mut out = Slow(&db, &table, 0);
    assert!(is_ended(other.read_stream(b"long", &mut out)) && out.2 < 300_000);
    assert_eq!(other.read_stream(b"long", &mut Vec::new()).unwrap(), Some(300_000));
}

/// Threads move amounts, and delete and reinsert rows, concurrently with readers. Read views of the readers are ended
/// in the middle of their reads.
#[test]
fn a_concurrent_reader_sees_one_snapshot_or_gets_an_error() {
    let options = options().undo_limit(LIMIT).undo_limit_action(UndoLimitAction::EndOldestView);
    let env = Arc::new(RealEnv::default());
    let db = Database::open_on(Arc::new(SimulatedDisk::new(9)), env, &options, &|_| {}).unwrap();
    let options = TableOptions::default().index("i", IndexOptions::on_value(0..8));
    let table = db.create_table("t", options).unwrap();
    let row = |amount: u64| [&amount.to_be_bytes()[..], &[0; 400]].concat();
    let amount = |value: &[u8]| u64::from_be_bytes(*value.first_chunk().unwrap());
    for key in 0..ROWS {
        table.put(&key.to_be_bytes(), &row(100)).unwrap();
    }
    let all = 100 * u64::from(ROWS);
    let (stop, looks) = (AtomicBool::new(false), AtomicU64::new(0));
    let move_some = |chance: &mut StdRng| -> Result<()> {
        let trx = begin(&db, Isolation::ReadCommitted);
        let table = trx.table(&table);
        let (mut sum, mut locked) = (0, Vec::new());
        for _ in 0..3 {
            let key = chance.random_range(0..ROWS).to_be_bytes();
            if let Some(value) = table.get_for_update(&key)? {
                sum += amount(&value);
                table.delete(&key)?;
                locked.push(key);
            }
        }
        // The amount is put back in other parts, sometimes into fewer rows.
        while let Some(key) = locked.pop() {
            let part = if locked.is_empty() { sum } else { chance.random_range(0..=sum) };
            if part > 0 {
                table.insert(&key, &row(part))?;
            }
            sum -= part;
        }
        trx.commit().map(drop)
    };
    let write = |seed: u64| {
        let mut chance = StdRng::seed_from_u64(seed);
        while !stop.load(Relaxed) {
            match move_some(&mut chance) {
                Ok(()) | Err(Error::Lock(LockError::Deadlock(_))) => {}
                Err(other) => panic!("{other}"),
            }
        }
    };
    let read = || {
        while !stop.load(Relaxed) {
            let trx = begin(&db, Isolation::RepeatableRead);
            let table = trx.table(&table);
            let index = table.index("i").unwrap();
            while !stop.load(Relaxed) {
                let rows = table.rows().and_then(|rows| {
                    rows.map(|row| row.map(|(_, value)| amount(&value))).collect::<Result<Vec<_>>>()
                });
                let entries = index.range::<&[u8]>(..).and_then(|rows| {
                    rows.map(|row| row.map(|row| amount(&row.value))).collect::<Result<Vec<_>>>()
                });
                match (rows, entries) {
                    (Ok(rows), Ok(entries)) => {
                        assert_eq!([rows.iter().sum::<u64>(), entries.iter().sum()], [all; 2]);
                        looks.fetch_add(1, Relaxed);
                    }
                    (rows, entries) => {
                        assert!(rows.is_ok() || is_ended(rows));
                        assert!(is_ended(entries));
                        break;
                    }
                }
            }
        }
    };
    thread::scope(|scope| {
        for seed in 0..2 {
            scope.spawn(move || write(seed));
            scope.spawn(read);
        }
        wait_until("views that are ended", || db.metrics().views_ended >= 10 && looks.load(Relaxed) > 20);
        stop.store(true, Relaxed);
    });
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}

#[test]
fn no_view_is_ended_where_none_is_in_the_way() {
    let (_, db) = open_to_end_views(8);
    let table = rows(&db);
    let view = db.begin(TransactionOptions::default().read_only().consistent_snapshot());
    let trx = begin(&db, Isolation::RepeatableRead);
    put_until_refused(&trx.table(&table));
    assert_eq!(db.metrics().views_ended, 0);
    assert_eq!(view.table(&table).get(&1_u16.to_be_bytes()).unwrap().unwrap(), [0; 1000]);
}

#[test]
fn a_transaction_that_fills_the_undo_gets_an_error_and_ends_either_way() {
    for commits in [true, false] {
        let (disk, env) = (SimulatedDisk::new(2), SimulatedEnv::new(2));
        let db = open(&disk, &env);
        let table = rows(&db);
        let trx = begin(&db, Isolation::RepeatableRead);
        let (_, _, oldest) = put_until_refused(&trx.table(&table));
        assert!(oldest.contains(&format!("transaction {}", db.transactions()[0].id)), "{oldest}");
        // It still has its changes.
        let seen = trx.table(&table).get(&1_u16.to_be_bytes()).unwrap().unwrap();
        assert_ne!(seen, [0; 1000]);
        if commits {
            trx.commit().unwrap();
        } else {
            trx.rollback().unwrap();
        }
        let expected = if commits { seen } else { vec![0; 1000] };
        assert_eq!(table.get(&1_u16.to_be_bytes()).unwrap().unwrap(), expected);
        table.put(&1_u16.to_be_bytes(), b"another").unwrap();
        assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
    }
}

#[test]
fn writers_that_outrun_purge_wait_for_it() -> Result<()> {
    let options = options().undo_limit(LIMIT);
    let disk = SimulatedDisk::new(3);
    let db = Database::open_on(Arc::new(disk), Arc::new(RealEnv::default()), &options, &|_| {})?;
    let table = rows(&db);
    let view = db.begin(TransactionOptions::default().read_only().consistent_snapshot());
    let done: Result<()> = thread::scope(|scope| {
        let writers: Vec<_> = (0..4_u16)
            .map(|writer| {
                let table = &table;
                scope.spawn(move || {
                    for n in 0..4000 {
                        table.put(&(n % ROWS).to_be_bytes(), &[writer as u8; 1000])?;
                    }
                    Ok(())
                })
            })
            .collect();
        while db.metrics().undo_waits == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        view.commit()?;
        writers.into_iter().try_for_each(|writer| writer.join().unwrap())
    });
    done?;
    // Besides the limit: one slice that each thread has begun, and two for each undo stream, of which there are no more
    // than threads.
    let undo = db.metrics().undo_bytes;
    assert!(undo <= LIMIT + 3 * 5 * SLICE, "{undo}");
    Ok(())
}

#[test]
fn a_wait_for_undo_is_interrupted_from_another_thread() {
    let options = options().undo_limit(LIMIT);
    let env = Arc::new(RealEnv::default());
    let db = Database::open_on(Arc::new(SimulatedDisk::new(5)), env, &options, &|_| {}).unwrap();
    let table = rows(&db);
    let _view = db.begin(TransactionOptions::default().read_only().consistent_snapshot());
    put_until_refused(&table);
    let before = db.metrics().undo_waits;
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let trx = begin(&db, Isolation::RepeatableRead);
            trx.table(&table).put(b"row", b"1")
        });
        while db.metrics().undo_waits == before || db.transactions().is_empty() {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(db.interrupt(db.transactions()[0].id));
        let result = waits.join().unwrap();
        assert!(matches!(result, Err(Error::Lock(LockError::Interrupted))), "{result:?}");
    });
}

#[test]
fn a_limit_below_which_no_call_could_work_is_refused() {
    let (disk, env) = (SimulatedDisk::new(4), SimulatedEnv::new(4));
    let options = options().undo_limit(1000);
    let result = Database::open_on(Arc::new(disk.clone()), Arc::new(env.clone()), &options, &|_| {});
    assert!(result.unwrap_err().to_string().contains("undo_limit"));
    let db = open(&disk, &env);
    assert!(db.set_undo_limit(Some(0)).unwrap_err().to_string().contains("undo_limit"));
    db.set_undo_limit(None).unwrap();
}
