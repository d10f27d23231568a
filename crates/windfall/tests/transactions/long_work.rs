//! Interrupts of calls that work for long without a wait: where they end, and what goes on.

use std::iter;

use windfall::{
    Condition, Database, Error, IndexBatch, IndexCursor, IndexOptions, InterruptHandle, Isolation, Result,
    Seek, Table, TableOptions, Transaction, TransactionOptions, TxTable, Values, error::LockError,
};

use super::{begin, calls, database};

/// More entries than an interrupt needs to end a call, several times over.
const MANY: u32 = 5000;

fn is_interrupted<T>(done: &Result<T>) -> bool {
    matches!(done, Err(Error::Lock(LockError::Interrupted)))
}

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

/// Creates a table with an index on the first bytes of its values.
fn create(db: &Database, name: &str) -> Table {
    db.create_table(name, TableOptions::default().index("i", IndexOptions::on_value(0..4))).unwrap()
}

fn insert(db: &Database, table: &Table, numbers: impl Iterator<Item = u32>) {
    let trx = begin(db, Isolation::ReadCommitted);
    let within = trx.table(table);
    numbers.for_each(|n| within.insert(&key(n), &key(n)).unwrap());
    trx.commit().unwrap();
}

/// Creates a table of which only the first and the last row are left, and a view that needs the others.
fn deleted(db: &Database) -> (Table, Transaction) {
    let table = create(db, "t");
    insert(db, &table, 0..MANY);
    let view = db.begin(TransactionOptions::default().read_only().consistent_snapshot());
    let trx = begin(db, Isolation::ReadCommitted);
    let within = trx.table(&table);
    (1..MANY - 1).for_each(|n| assert!(within.delete(&key(n)).is_ok()));
    trx.commit().unwrap();
    (table, view)
}

type Call = fn(&TxTable<'_>) -> Result<bool>;

fn index_step(cursor: Result<IndexCursor>, up: bool) -> Result<bool> {
    let mut cursor = cursor?;
    assert!(cursor.seek(if up { Seek::First } else { Seek::Last })?);
    if up { cursor.next() } else { cursor.prev() }
}

/// Calls that pass over all rows but the first and the last, if these are deleted or invisible.
const PASSING: [(&str, Call); 10] = [
    ("a step up", |t| {
        let mut cursor = t.cursor()?;
        assert!(cursor.seek(Seek::First)?);
        cursor.next()
    }),
    ("a step down", |t| {
        let mut cursor = t.cursor()?;
        assert!(cursor.seek(Seek::Last)?);
        cursor.prev()
    }),
    ("a seek up", |t| t.cursor()?.seek(Seek::Above(&key(0)))),
    ("a seek down", |t| t.cursor()?.seek(Seek::Below(&key(MANY - 1)))),
    ("a range", |t| Ok(t.range(key(1)..)?.next_ref()?.is_some())),
    ("a range from its end", |t| Ok(t.range(..key(MANY - 1))?.next_back_ref()?.is_some())),
    ("an index", |t| index_step(t.index("i")?.cursor(), true)),
    ("an index, down", |t| index_step(t.index("i")?.cursor(), false)),
    ("entries of an index", |t| index_step(t.index("i")?.key_cursor(), true)),
    ("a range of an index", |t| Ok(t.index("i")?.range(key(1)..)?.next_ref()?.is_some())),
];

/// Locking ones.
const LOCKING: [(&str, Call); 6] = [
    ("a locked step up", |t| {
        let mut cursor = t.cursor_for_update()?;
        assert!(cursor.seek(Seek::First)?);
        cursor.next()
    }),
    ("a locked step down", |t| {
        let mut cursor = t.cursor_for_share()?;
        assert!(cursor.seek(Seek::Last)?);
        cursor.prev()
    }),
    ("a locked range", |t| Ok(t.range_for_update(key(1)..)?.next_ref()?.is_some())),
    ("a locked range from its end", |t| Ok(t.range_for_share(..key(MANY - 1))?.next_back_ref()?.is_some())),
    ("a locked index", |t| index_step(t.index("i")?.cursor_for_update(), true)),
    ("a locked index, down", |t| index_step(t.index("i")?.cursor_for_share(), false)),
];

/// Makes calls with an interrupt that is set and with one that is withdrawn. The transaction continues.
fn are_ended(trx: &Transaction, table: &Table, calls: &[(&str, Call)]) {
    let (handle, within) = (trx.interrupt_handle(), trx.table(table));
    for (name, call) in calls {
        handle.interrupt();
        let done = call(&within);
        assert!(is_interrupted(&done), "{name}: {done:?}");
        assert_eq!(within.get(&key(0)).unwrap().as_deref(), Some(&key(0)[..]), "{name}: short calls go on");
        handle.clear();
        assert!(call(&within).unwrap(), "{name}");
    }
}

#[test]
fn an_interrupt_ends_a_move_over_many_entries() {
    let db = database();
    let (table, view) = deleted(&db);
    for isolation in [Isolation::ReadUncommitted, Isolation::ReadCommitted, Isolation::RepeatableRead] {
        let trx = begin(&db, isolation);
        are_ended(&trx, &table, &PASSING);
        are_ended(&trx, &table, &LOCKING);
        trx.table(&table).put(&key(0), &key(0)).unwrap();
        trx.commit().unwrap();
    }
    // A call outside of transactions is none of the handle's.
    let handle = view.interrupt_handle();
    handle.interrupt();
    let mut cursor = table.cursor().unwrap();
    assert!(cursor.seek(Seek::First).unwrap() && cursor.next().unwrap());
    drop(view);
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}

#[test]
fn an_interrupt_ends_a_move_over_entries_that_its_view_does_not_see() {
    let db = database();
    let table = create(&db, "t");
    insert(&db, &table, [0, MANY - 1].into_iter());
    let view = db.begin(TransactionOptions::default().read_only().consistent_snapshot());
    insert(&db, &table, 1..MANY - 1);
    are_ended(&view, &table, &PASSING);
}

/// The handle is set by the condition itself, in the middle of the move.
#[test]
fn an_interrupt_ends_a_move_over_entries_that_are_not_wanted() {
    type Open = fn(&TxTable<'_>) -> Result<IndexCursor>;
    let cursors: [(&str, Open); 3] = [
        ("rows", |t| t.index("i")?.cursor()),
        ("entries", |t| t.index("i")?.key_cursor()),
        ("locked rows", |t| t.index("i")?.cursor_for_update()),
    ];
    let db = database();
    let table = create(&db, "t");
    insert(&db, &table, 0..MANY);
    let trx = begin(&db, Isolation::ReadCommitted);
    let (handle, within) = (trx.interrupt_handle(), trx.table(&table));
    for (name, open) in cursors {
        for (up, in_batch) in [(true, false), (false, false), (true, true), (false, true)] {
            for withdraws in [false, true] {
                let (mut cursor, mut evaluated) = (open(&within).unwrap(), 0);
                let mut batch = IndexBatch::default();
                // A batch has one row, and searches the others for a second one.
                let wanted = in_batch.then(|| key(if up { 0 } else { MANY - 1 }));
                let condition = |entry: windfall::IndexEntry<'_>| {
                    evaluated += 1;
                    if evaluated == 100 {
                        handle.interrupt();
                        if withdraws {
                            handle.clear();
                        }
                    }
                    let holds = wanted.as_ref().is_some_and(|wanted| entry.index_key == wanted);
                    if holds { Condition::Holds } else { Condition::Fails }
                };
                let done = match (up, in_batch) {
                    (true, false) => cursor.seek_where(Seek::First, condition),
                    (false, false) => cursor.seek_where(Seek::Last, condition),
                    (true, true) => cursor.next_batch_where(&mut batch, 2, condition).map(|rows| rows != 1),
                    (false, true) => cursor.prev_batch_where(&mut batch, 2, condition).map(|rows| rows != 1),
                };
                assert_eq!(batch.len(), usize::from(in_batch && withdraws), "{name}");
                if withdraws {
                    // The row that a locking cursor takes is evaluated before it is locked and again afterwards.
                    let again = u32::from(in_batch && name == "locked rows");
                    assert!(!done.unwrap() && evaluated == MANY + again, "{name}: {evaluated} entries");
                } else {
                    assert!(is_interrupted(&done), "{name}: {done:?}");
                    assert!((100..2000).contains(&evaluated), "{name}: {evaluated} entries");
                    handle.clear();
                    assert!(cursor.row().is_none() && cursor.next().unwrap(), "{name}: it is like a new one");
                    assert_eq!(cursor.row().unwrap().index_key, key(0), "{name}");
                }
            }
        }
    }
}

#[test]
fn an_interrupt_ends_a_read_of_many_keys_and_one_of_many_versions() {
    let db = database();
    let table = create(&db, "t");
    insert(&db, &table, 0..2000);
    let view = db.begin(TransactionOptions::default().consistent_snapshot());
    let writer = begin(&db, Isolation::ReadCommitted);
    (0..2000u32).for_each(|n| writer.table(&table).put(&key(0), &[key(0), key(n)].concat()).unwrap());
    writer.commit().unwrap();
    let (handle, within) = (view.interrupt_handle(), view.table(&table));
    let keys: Vec<_> = (0..2000).map(key).collect();
    let mut values = Values::default();
    for is_locking in [false, true] {
        let mut read = || {
            if is_locking {
                within.get_many_for_share(&keys[1..], &mut values)
            } else {
                within.get_many(&keys[1..], &mut values)
            }
        };
        handle.interrupt();
        let done = read();
        assert!(is_interrupted(&done), "{done:?}");
        handle.clear();
        assert_eq!(read().unwrap(), 1999);
        handle.interrupt();
        assert_eq!(within.get_many(&keys[1..9], &mut values).unwrap(), 8, "few go on");
    }
    let done = within.get(&key(0));
    assert!(is_interrupted(&done), "{done:?}");
    handle.clear();
    assert_eq!(within.get(&key(0)).unwrap().as_deref(), Some(&key(0)[..]));
}

/// An auto-commit call from within the source of a value is a part of the call that asks the source.
#[test]
fn an_interrupt_ends_the_work_of_a_source_outside_of_transactions() {
    let db = database();
    let (table, _view) = deleted(&db);
    let other = create(&db, "other");
    let trx = begin(&db, Isolation::ReadCommitted);
    let handle = trx.interrupt_handle();
    for is_set in [true, false] {
        if is_set {
            handle.interrupt();
        } else {
            handle.clear();
        }
        let mut from = calls::From(Some(|| {
            let mut cursor = table.cursor().unwrap();
            assert!(cursor.seek(Seek::First).unwrap());
            assert_eq!(is_interrupted(&cursor.next()), is_set);
        }));
        trx.table(&other).put_stream(b"long", calls::LONG, &mut from).unwrap();
    }
    trx.commit().unwrap();
}

#[test]
fn an_interrupt_ends_a_load() {
    let db = database();
    let handle = InterruptHandle::new();
    let session = db.with_interrupt(&handle);
    let options = TableOptions::default().index("i", IndexOptions::on_value(0..4));
    // The row before which the handle is set, or at the end: what follows is sorted and written.
    for (at, sorted, withdraws) in [
        (10, true, false),
        (10, false, false),
        (MANY, true, false),
        (MANY, false, false),
        (10, true, true),
        (MANY, false, true),
    ] {
        let mut asked = 0;
        let rows = iter::from_fn(|| {
            if asked == at {
                handle.interrupt();
                if withdraws {
                    handle.clear();
                }
            }
            asked += 1;
            (asked <= MANY).then(|| Ok((key(asked).to_vec(), key(asked).to_vec())))
        });
        let done = if sorted {
            session.create_table_from("t", options.clone(), rows)
        } else {
            session.create_table_from_unsorted("t", options.clone(), rows)
        };
        if withdraws {
            assert_eq!(done.unwrap().rows().unwrap().count(), MANY as usize);
            db.drop_table("t").unwrap();
        } else {
            assert!(is_interrupted(&done), "{at} {sorted}: {done:?}");
            assert_eq!(asked, at + 1, "it ends before the next row");
            assert!(db.table("t").is_err() && db.tables().unwrap().is_empty());
        }
        handle.clear();
        let report = db.check().unwrap();
        assert_eq!((report.findings, report.trees.len()), (Vec::<String>::new(), 1));
    }
}

#[test]
fn an_interrupt_ends_a_check() {
    let db = database();
    let table = create(&db, "t");
    insert(&db, &table, 0..100);
    let handle = InterruptHandle::new();
    let session = db.with_interrupt(&handle);
    handle.interrupt();
    for done in [session.check(), session.check_live()] {
        assert!(is_interrupted(&done), "{done:?}");
    }
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
    let by_callback = session.table("t").unwrap().check(|_| !handle.is_set()).unwrap();
    assert!(by_callback.cancelled);
    handle.clear();
    for done in [session.check(), session.check_live()] {
        assert_eq!(done.unwrap().findings, Vec::<String>::new());
    }
    assert!(!session.table("t").unwrap().check(|_| !handle.is_set()).unwrap().cancelled);
}
