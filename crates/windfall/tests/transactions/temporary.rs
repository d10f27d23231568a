//! Temporary tables in transactions.

use windfall::{Error, IndexOptions, Isolation, TableOptions, TransactionOptions, error::TransactionError};

use super::{begin, database, pairs, rows, table};

pub fn indexed() -> TableOptions {
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
    table.within(&trx).get(b"a").unwrap();
    // Behind its snapshot.
    temporary.put(b"a", b"x1").unwrap();
    temporary.put(b"b", b"x2").unwrap();
    temporary.put(b"long", &vec![2; 20_000]).unwrap();
    table.put(b"a", b"x1").unwrap();
    let (within, beside) = (temporary.within(&trx), table.within(&trx));
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
        let within = temporary.within(&trx);
        within.put(b"a", b"x1").unwrap();
        assert_eq!(within.get_for_update(b"a").unwrap(), Some(b"x1".to_vec()));
        assert_eq!(within.range_for_share::<&[u8]>(..).unwrap().count(), 1);
        assert!(table.within(&trx).put(b"a", b"x1").is_err());
        if commits { trx.commit() } else { trx.rollback() }.unwrap();
        assert_eq!(temporary.contains(b"a").unwrap(), commits);
    }
}
