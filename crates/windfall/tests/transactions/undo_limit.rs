//! A limit on what undo takes: who is in its way is named, and nobody else is held up.

use std::{sync::Arc, thread, time::Duration};

use windfall::{
    Database, Error, Isolation, Result, Table, TableOptions, TransactionOptions,
    disk::simulated::SimulatedDisk,
    env::{Env, RealEnv, SimulatedEnv},
    error::{LockError, TransactionError},
};

use super::{begin, options};

const LIMIT: u64 = 1 << 20;
/// Of 64 pages.
const SLICE: u64 = 64 * 4096;
const ROWS: u16 = 50;

fn open(disk: &SimulatedDisk, env: &SimulatedEnv) -> Database {
    let options = options().undo_limit(LIMIT);
    Database::open_on(Arc::new(disk.clone()), Arc::new(env.clone()), &options, &|_| {}).unwrap()
}

fn rows(db: &Database) -> Table {
    let table = db.create_table("t", TableOptions::default()).unwrap();
    for key in 0..ROWS {
        table.put(&key.to_be_bytes(), &[0; 1000]).unwrap();
    }
    table
}

/// Puts rows until that is refused, and gives why.
fn put_until_refused(table: &Table) -> (u64, u64, String) {
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
    // Purge is held up, so nobody waits for long; who does not want to wait at all does not.
    let now = env.now();
    put_until_refused(&table);
    assert!(env.now() < now + Duration::from_secs(4), "{:?} behind {now:?}", env.now());
    let trx = db.begin(TransactionOptions::default().lock_wait(Duration::ZERO));
    let now = env.now();
    assert!(table.within(&trx).put(b"row", b"1").is_err() && env.now() < now + Duration::from_millis(1));
    trx.commit().unwrap();
    assert!(limit == LIMIT && bytes > LIMIT && bytes <= LIMIT + SLICE, "{bytes} of {limit}");
    assert!(oldest.contains("a view"), "{oldest}");
    let metrics = db.metrics();
    assert!(metrics.undo_bytes <= LIMIT + 3 * SLICE && metrics.undo_waits == 3, "{metrics:?}");
    // Who reads, makes tables or writes to temporary ones goes on; a deletion is a change.
    assert_eq!(table.within(&view).get(&0_u16.to_be_bytes()).unwrap().unwrap(), [0; 1000]);
    assert!(matches!(table.delete(&[0, 0]), Err(Error::Transaction(TransactionError::UndoFull { .. }))));
    let other = db.create_table("other", TableOptions::default()).unwrap();
    assert!(other.put(b"row", b"1").is_err());
    let session = db.session();
    let temporary = session.create_temporary_table("mine", TableOptions::default()).unwrap();
    temporary.put(b"row", b"1").unwrap();
    // More is allowed, or the view ends.
    db.set_undo_limit(Some(2 * LIMIT)).unwrap();
    other.put(b"row", b"1").unwrap();
    db.set_undo_limit(Some(LIMIT)).unwrap();
    assert!(other.put(b"row", b"2").is_err());
    view.rollback().unwrap();
    other.put(b"row", b"2").unwrap();
    env.settle(200);
    assert!(db.metrics().undo_bytes <= 3 * SLICE, "{}", db.metrics().undo_bytes);
    // It holds for the next process, too.
    drop((session, temporary, other, table));
    db.close().unwrap();
    let db = open(&disk, &env);
    let _view = db.begin(TransactionOptions::default().read_only().consistent_snapshot());
    put_until_refused(&db.table("t").unwrap());
}

#[test]
fn a_transaction_that_fills_it_is_told_and_ends_either_way() {
    for commits in [true, false] {
        let (disk, env) = (SimulatedDisk::new(2), SimulatedEnv::new(2));
        let db = open(&disk, &env);
        let table = rows(&db);
        let trx = begin(&db, Isolation::RepeatableRead);
        let (_, _, oldest) = put_until_refused(&table.within(&trx));
        assert!(oldest.contains(&format!("transaction {}", db.transactions()[0].id)), "{oldest}");
        // What it has done it still has.
        let seen = table.within(&trx).get(&1_u16.to_be_bytes()).unwrap().unwrap();
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
    // Beside the limit: a slice that each has begun, and two for each stream, of which there are no more than threads.
    let undo = db.metrics().undo_bytes;
    assert!(undo <= LIMIT + 3 * 5 * SLICE, "{undo}");
    Ok(())
}

#[test]
fn who_waits_for_undo_is_interrupted_from_another_thread() {
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
            table.within(&trx).put(b"row", b"1")
        });
        while db.metrics().undo_waits == before || db.transactions().is_empty() {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(db.interrupt(db.transactions()[0].id.0));
        let told = waits.join().unwrap();
        assert!(matches!(told, Err(Error::Lock(LockError::Interrupted))), "{told:?}");
    });
}

#[test]
fn a_limit_below_which_nobody_could_work_is_refused() {
    let (disk, env) = (SimulatedDisk::new(4), SimulatedEnv::new(4));
    let options = options().undo_limit(1000);
    let told = Database::open_on(Arc::new(disk.clone()), Arc::new(env.clone()), &options, &|_| {});
    assert!(told.unwrap_err().to_string().contains("undo_limit"));
    let db = open(&disk, &env);
    assert!(db.set_undo_limit(Some(0)).unwrap_err().to_string().contains("undo_limit"));
    db.set_undo_limit(None).unwrap();
}
