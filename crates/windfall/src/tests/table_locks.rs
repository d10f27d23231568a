//! Announcements of locks on whole tables.

use core::time::Duration;

use windfall_sim::{SimulatedDisk, SimulatedEnv};

use crate::{
    Database, DdlGroup, Isolation, Options, Table, TableOptions, Transaction, TransactionOptions, TxTable,
    error::Result, sync::Arc, txn::locks::WholeTable as _,
};

const LOCKS: [fn(&TxTable<'_>) -> Result<()>; 2] = [|t| t.lock_shared(), |t| t.lock_exclusive()];

fn database() -> (Database, Table) {
    let options = Options::default().page_size(4096).buffer_pool_size(256 * 4096);
    let (disk, env) = (Arc::new(SimulatedDisk::new(1)), Arc::new(SimulatedEnv::new(1)));
    let db = Database::open_on(disk, env, &options, &|_| {}).unwrap();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    (db, table)
}

fn begin(db: &Database) -> Transaction {
    db.begin(TransactionOptions::default().isolation(Isolation::RepeatableRead).lock_wait(Duration::ZERO))
}

fn commit_in(db: &Database, trx: &Transaction, fill: fn(&mut DdlGroup)) {
    let mut group = db.ddl();
    fill(&mut group);
    group.commit_in(trx).unwrap();
}

#[test]
fn a_lock_is_announced_as_long_as_it_is_held() {
    type End = fn(&Database, Transaction);
    let ends: [(&str, End); 6] = [
        ("commit", |_, trx| trx.commit().map(drop).unwrap()),
        ("rollback", |_, trx| trx.rollback().unwrap()),
        ("a dropped handle", |_, trx| drop(trx)),
        ("a prepared one", |db, trx| {
            trx.prepare(b"x").unwrap();
            drop(trx);
            db.rollback_prepared(b"x").unwrap();
        }),
        ("a truncation", |db, trx| {
            commit_in(db, &trx, |group| {
                group.truncate_table("t");
            });
        }),
        ("a drop", |db, trx| {
            commit_in(db, &trx, |group| {
                group.drop_table("t");
            });
        }),
    ];
    for lock in LOCKS {
        for (name, end) in ends {
            let (db, table) = database();
            let trx = begin(&db);
            trx.table(&table).put(b"a", b"1").unwrap();
            trx.savepoint("s").unwrap();
            assert!(!table.inner.is_lock_announced(), "{name}");
            for _ in 0..2 {
                lock(&trx.table(&table)).unwrap();
                trx.table(&table).lock_shared().unwrap();
                trx.rollback_to("s").unwrap();
                assert!(table.inner.is_lock_announced(), "{name}");
            }
            end(&db, trx);
            assert!(!table.inner.is_lock_announced(), "{name}");
        }
    }
}

#[test]
fn a_lock_that_is_not_granted_is_not_announced_any_more() {
    for lock in LOCKS {
        let (db, table) = database();
        let (holder, trx) = (begin(&db), begin(&db));
        holder.table(&table).put(b"a", b"1").unwrap();
        lock(&trx.table(&table)).unwrap_err();
        assert!(!table.inner.is_lock_announced());
        drop(holder);
        let sharer = begin(&db);
        sharer.table(&table).lock_shared().unwrap();
        trx.table(&table).lock_shared().unwrap();
        trx.table(&table).lock_exclusive().unwrap_err();
        drop(sharer);
        // It has the shared lock still.
        assert!(table.inner.is_lock_announced());
        drop(trx);
        assert!(!table.inner.is_lock_announced());
    }
}
