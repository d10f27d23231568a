//! The changes of other transactions that a transaction sees.

use std::time::Duration;

use windfall::{
    Database, Error, Isolation, Seek, StatementEnd, Table, TableOptions, Transaction, TransactionOptions,
    error::{LockError, TransactionError},
};
use windfall_sim::{SimulatedDisk, SimulatedEnv};

use super::{
    begin,
    calls::{From, LONG},
    database, pairs, rows, simulated, table,
    waits::scripted,
};

#[test]
fn a_snapshot_is_stable_while_rows_and_indexes_change() {
    for level in [Isolation::RepeatableRead, Isolation::Snapshot] {
        let db = database();
        let table = table(&db);
        let long = |fill: u8| [&[b'l', fill][..], &vec![fill; 30_000]].concat();
        table.put(b"a", b"x1").unwrap();
        table.put(b"b", b"x2").unwrap();
        table.put(b"long", &long(3)).unwrap();
        let trx = begin(&db, level);
        let within = trx.table(&table);
        let before = rows(&within);
        for round in 0..6u8 {
            // The unique key moves from row to row, and rows are deleted and inserted.
            table.delete(b"a").unwrap();
            table.put(b"b", &[b'a' + round, b'1']).unwrap();
            table.put(b"a", &[b'b' + round, b'2']).unwrap();
            table.put(b"b", &[b'y', 10 + round]).unwrap();
            table.put(b"a", b"z1").unwrap();
            table.put(&[b'n', round], &[b'n', 100 + round]).unwrap();
            table.put(b"long", &long(20 + round)).unwrap();
            if round == 3 {
                table.delete(b"long").unwrap();
            }
            assert_eq!(rows(&within), before, "{level:?}, round {round}");
            assert_eq!(within.get(b"long").unwrap(), Some(long(3)));
            let mut streamed = Vec::new();
            within.read_stream(b"long", &mut streamed).unwrap();
            assert!(streamed == long(3));
            assert!(!within.contains(&[b'n', round]).unwrap() && within.contains(b"a").unwrap());
            let second = within.index("second").unwrap();
            let found = second.get(b"1").unwrap().map(|row| row.unwrap().key).collect::<Vec<_>>();
            assert_eq!(found, [b"a".to_vec()]);
            let mut cursor = within.cursor().unwrap();
            assert!(cursor.seek(Seek::Last).unwrap() && cursor.key() == Some(b"long"));
            assert!(cursor.prev().unwrap() && cursor.row() == Some((b"b", b"x2")));
        }
        trx.commit().unwrap();
        assert_ne!(rows(&table), before);
        assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
    }
}

#[test]
fn a_view_begins_with_the_first_read_or_with_the_transaction() {
    let db = database();
    let table = table(&db);
    let options = TransactionOptions::default();
    let (late, early) = (db.begin(options), db.begin(options.consistent_snapshot()));
    table.put(b"a", b"x1").unwrap();
    assert_eq!(rows(&late.table(&table)), pairs([("a", "x1")]));
    assert_eq!(rows(&early.table(&table)), []);
    table.put(b"b", b"x2").unwrap();
    assert_eq!(rows(&late.table(&table)), pairs([("a", "x1")]));
}

#[test]
fn a_table_whose_definition_has_changed_is_an_error() {
    let db = database();
    let table = table(&db);
    table.put(b"a", b"x1").unwrap();
    db.create_table("gone", TableOptions::default()).unwrap().put(b"g", b"1").unwrap();
    let trx = begin(&db, Isolation::RepeatableRead);
    let within = trx.table(&table);
    assert_eq!(rows(&within), pairs([("a", "x1")]));
    let mut cursor = within.cursor().unwrap();
    assert!(cursor.next().unwrap());
    db.truncate_table("t").unwrap();
    table.put(b"a", b"y1").unwrap();
    let is_changed = |error: Error| {
        let text = error.to_string();
        assert!(matches!(error, Error::Transaction(TransactionError::TableChanged(_))), "{text}");
        assert!(text.contains("table definition changed") && text.contains("table "), "{text}");
    };
    is_changed(within.get(b"a").unwrap_err());
    is_changed(within.contains(b"b").unwrap_err());
    is_changed(within.rows().unwrap().next().unwrap().unwrap_err());
    is_changed(within.read_stream(b"a", &mut Vec::new()).unwrap_err());
    assert!(matches!(cursor.next(), Err(Error::TableDropped(_))), "it was over what is gone");
    // A table of the same name, which is new.
    db.drop_table("gone").unwrap();
    let again = db.create_table("gone", TableOptions::default()).unwrap();
    is_changed(trx.table(&again).get(b"g").unwrap_err());
    // Locking reads and writes use the current rows.
    assert_eq!(within.get_for_update(b"a").unwrap(), Some(b"y1".to_vec()));
    trx.commit().unwrap();
    let trx = begin(&db, Isolation::RepeatableRead);
    assert_eq!(rows(&trx.table(&table)), pairs([("a", "y1")]));
    let index = windfall::IndexOptions::on_value(0..2);
    db.create_index("t", "late", index).unwrap();
    let late = trx.table(&table).index("late").unwrap();
    is_changed(late.range::<&[u8]>(..).unwrap().next().unwrap().unwrap_err());
}

#[test]
fn a_strict_snapshot_changes_and_locks_no_table_that_it_does_not_know() {
    let db = database();
    let table = table(&db);
    table.put(b"a", b"x1").unwrap();
    let (strict, late) = (begin(&db, Isolation::Snapshot), begin(&db, Isolation::Snapshot));
    let within = strict.table(&table);
    assert_eq!(rows(&within), pairs([("a", "x1")]));
    db.truncate_table("t").unwrap();
    let is_changed = |error: Error| {
        assert!(matches!(error, Error::Transaction(TransactionError::TableChanged(_))), "{error}");
    };
    // It has seen a row with this key, and would not see the one that it inserts.
    // And it does not see it when it tries again.
    (0..2).for_each(|_| is_changed(within.insert(b"a", b"z1").unwrap_err()));
    is_changed(within.put(b"b", b"z2").unwrap_err());
    is_changed(within.delete(b"a").unwrap_err());
    is_changed(within.get_for_share(b"a").unwrap_err());
    is_changed(within.get_for_update(b"a").unwrap_err());
    is_changed(within.range_for_update::<&[u8]>(..).unwrap().next().unwrap().unwrap_err());
    let second = within.index("second").unwrap();
    is_changed(second.range_for_share::<&[u8]>(..).unwrap().next().unwrap().unwrap_err());
    let new = db.create_table("new", TableOptions::default()).unwrap();
    is_changed(strict.table(&new).put(b"n", b"1").unwrap_err());
    strict.commit().unwrap();
    assert_eq!((rows(&table), new.get(b"n").unwrap()), (Vec::new(), None));
    // A transaction with a later snapshot can use both tables.
    late.table(&table).put(b"a", b"y1").unwrap();
    late.table(&new).put(b"n", b"1").unwrap();
    assert_eq!(rows(&late.table(&table)), pairs([("a", "y1")]));
    late.commit().unwrap();
    // A session's own tables are not affected.
    let session = db.session();
    let strict = db.begin(TransactionOptions::default().isolation(Isolation::Snapshot).consistent_snapshot());
    let own = session.create_temporary_table("own", TableOptions::default()).unwrap();
    strict.table(&own).put(b"o", b"1").unwrap();
    assert_eq!(strict.table(&own).get_for_update(b"o").unwrap(), Some(b"1".to_vec()));
    strict.commit().unwrap();
}

#[test]
fn versions_that_no_view_sees_are_purged() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = simulated(&disk, &env);
    let table = table(&db);
    for n in 0..200u8 {
        table.put(&[n], &[n % 7, n]).unwrap();
    }
    let (reader, writer) = (begin(&db, Isolation::RepeatableRead), begin(&db, Isolation::RepeatableRead));
    let before = rows(&reader.table(&table));
    let within = writer.table(&table);
    for n in 0..200u8 {
        table.delete(&[n]).unwrap();
        // The row comes back in a transaction that is rolled back.
        within.put(&[n], &[n % 5, n]).unwrap();
        if n % 50 == 0 {
            env.run_workers(20);
        }
    }
    writer.rollback().unwrap();
    env.run_workers(300);
    let marked = || db.check().unwrap().trees.iter().map(|tree| tree.deleted).sum::<u64>();
    assert_eq!(rows(&reader.table(&table)), before);
    assert!(marked() >= 200, "{} are kept for the view", marked());
    drop(reader);
    env.run_workers(300);
    assert_eq!((rows(&table), marked()), (Vec::new(), 0));
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}

#[test]
fn a_range_is_of_one_moment_from_both_ends() {
    let db = database();
    let table = table(&db);
    for n in 0..100u8 {
        table.put(&[n], &[0, n]).unwrap();
    }
    let mut range = table.rows().unwrap();
    assert_eq!(range.next().unwrap().unwrap().0, [0]);
    for n in 0..100u8 {
        table.delete(&[n]).unwrap();
        table.put(&[n, 1], &[1, n]).unwrap();
    }
    let mut left = 99;
    while let Some(row) = range.next_back() {
        let (key, value) = row.unwrap();
        assert_eq!((&key[..], &value[..]), (&[left][..], &[0, left][..]));
        left -= 1;
        if let Some(row) = range.next() {
            assert_eq!(row.unwrap().0, [99 - left]);
        }
        if left < 60 {
            break;
        }
    }
}

#[test]
fn a_locking_cursor_reads_the_newest_version_of_each_row() {
    for level in [Isolation::ReadCommitted, Isolation::RepeatableRead] {
        let db = database();
        let table = table(&db);
        table.put(b"a", b"x1").unwrap();
        let trx = begin(&db, level);
        let within = trx.table(&table);
        let mut plain = within.rows().unwrap();
        assert_eq!(plain.next().unwrap().unwrap().1, b"x1");
        table.put(b"a", b"y2").unwrap();
        table.put(b"b", b"z3").unwrap();
        assert!(plain.next().is_none());
        for mut cursor in [within.cursor_for_share().unwrap(), within.cursor_for_update().unwrap()] {
            assert!(cursor.next().unwrap() && cursor.row() == Some((b"a", b"y2")), "{level:?}");
            assert!(cursor.next().unwrap() && cursor.row() == Some((b"b", b"z3")), "{level:?}");
        }
    }
}

#[test]
fn a_locking_cursor_moves_to_both_ends() {
    for &level in Isolation::ALL {
        let db = database();
        let table = table(&db);
        for key in ["a", "b", "c"] {
            table.put(key.as_bytes(), format!("{key}{key}").as_bytes()).unwrap();
        }
        let trx = begin(&db, level);
        let within = trx.table(&table);
        let index = within.index("first").unwrap();
        let mut by_index = index.cursor().unwrap();
        for mut cursor in [
            within.cursor().unwrap(),
            within.cursor_for_share().unwrap(),
            within.cursor_for_update().unwrap(),
        ] {
            for _ in 0..2 {
                assert!(cursor.seek(Seek::Last).unwrap() && by_index.seek(Seek::Last).unwrap());
                assert!(!cursor.next().unwrap() && !cursor.next().unwrap() && cursor.row().is_none());
                assert!(!by_index.next().unwrap() && !by_index.next().unwrap());
                assert!(cursor.prev().unwrap() && by_index.prev().unwrap());
                assert_eq!(cursor.key(), Some(&b"c"[..]), "{level:?}");
                assert_eq!(by_index.row().unwrap().key, b"c");
                assert!(!cursor.seek(Seek::Above(b"c")).unwrap() && cursor.prev().unwrap());
                assert_eq!(cursor.key(), Some(&b"c"[..]), "{level:?}");
                assert!(!cursor.seek(Seek::Below(b"a")).unwrap() && !cursor.prev().unwrap());
                assert!(cursor.next().unwrap() && cursor.key() == Some(b"a"));
                assert!(cursor.next().unwrap() && cursor.next().unwrap() && !cursor.next().unwrap());
            }
        }
        trx.commit().unwrap();
    }
}

#[test]
fn a_statement_at_read_committed_reads_one_snapshot() {
    let db = database();
    let table = table(&db);
    let other = db.create_table("other", TableOptions::default()).unwrap();
    let long = |fill: u8| [&[b'l', fill][..], &vec![fill; 30_000]].concat();
    table.put(b"a", b"x1").unwrap();
    table.put(b"long", &long(3)).unwrap();
    other.put(b"k", b"0").unwrap();
    let trx = begin(&db, Isolation::ReadCommitted);
    let (within, in_other) = (trx.table(&table), trx.table(&other));
    let mut from_before = within.cursor().unwrap();
    assert!(from_before.seek(Seek::First).unwrap());
    for round in 0..4u8 {
        trx.begin_statement().unwrap();
        // Before the first read of the statement.
        table.put(b"a", &[b'a' + round, b'1']).unwrap();
        other.put(b"k", &[round]).unwrap();
        // The first read of every second statement is made in one within it.
        if round % 2 == 0 {
            assert_eq!(in_other.get(b"k").unwrap(), Some(vec![round]));
        } else {
            trx.begin_statement().unwrap();
            assert_eq!(in_other.get(b"k").unwrap(), Some(vec![round]));
            trx.end_statement(StatementEnd::Keep).unwrap();
        }
        let before = rows(&within);
        assert_eq!(before[0].1, [b'a' + round, b'1']);
        let (mut cursor, mut range) = (within.cursor().unwrap(), within.rows().unwrap());
        assert!(cursor.seek(Seek::First).unwrap() && range.next().is_some());
        other.put(b"k", b"new").unwrap();
        table.put(b"a", b"y8").unwrap();
        table.put(&[b'n', round], &[b'n', 100 + round]).unwrap();
        table.put(b"long", &long(20 + round)).unwrap();
        // What the transaction itself changes is seen, and of a statement that is undone it is not.
        trx.begin_statement().unwrap();
        within.put(b"own", b"w7").unwrap();
        assert_eq!(rows(&within).len(), before.len() + 1);
        trx.end_statement(StatementEnd::Undo).unwrap();
        trx.atomically(|| in_other.get(b"k").map(|value| assert_eq!(value, Some(vec![round])))).unwrap();
        assert_eq!(rows(&within), before, "round {round}");
        assert_eq!(in_other.get(b"k").unwrap(), Some(vec![round]));
        let mut streamed = Vec::new();
        within.read_stream(b"long", &mut streamed).unwrap();
        assert_eq!((before[1].1 == streamed, within.contains(&[b'n', round]).unwrap()), (true, false));
        assert!(cursor.seek(Seek::First).unwrap() && cursor.value() == Some(&before[0].1[..]));
        assert!(from_before.seek(Seek::First).unwrap() && from_before.value() == Some(&before[0].1[..]));
        trx.end_statement(StatementEnd::Keep).unwrap();
        // After it, each read returns what is committed; the range goes on where it was.
        assert_eq!(within.get(b"a").unwrap().as_deref(), Some(&b"y8"[..]));
        assert_eq!(range.count() + 1, before.len());
        assert!(cursor.seek(Seek::First).unwrap() && cursor.value() == Some(b"y8"));
        other.put(b"k", b"newer").unwrap();
        assert_eq!(in_other.get(b"k").unwrap().as_deref(), Some(&b"newer"[..]));
    }
    trx.commit().unwrap();
}

/// Every way in which a statement can end.
#[test]
fn the_view_of_a_statement_ends_with_it() {
    type End = fn(&Database, Transaction, &Table);
    let ends: [(&str, End); 8] = [
        ("kept", |db, trx, _| {
            trx.end_statement(StatementEnd::Keep).unwrap();
            assert!(db.views().is_empty());
            trx.commit().unwrap();
        }),
        ("undone", |db, trx, _| {
            trx.end_statement(StatementEnd::Undo).unwrap();
            assert!(db.views().is_empty());
        }),
        ("one within it", |db, trx, _| {
            trx.begin_statement().unwrap();
            trx.end_statement(StatementEnd::Undo).unwrap();
            assert!(!db.views().is_empty(), "the outer one still needs it");
            trx.end_statement(StatementEnd::Keep).unwrap();
            assert!(db.views().is_empty());
        }),
        ("a closure within it", |db, trx, table| {
            trx.atomically(|| trx.table(table).insert(b"a", b"")).unwrap_err();
            assert!(!db.views().is_empty());
            trx.end_statement(StatementEnd::Keep).unwrap();
            assert!(db.views().is_empty());
        }),
        ("dropped", |_, trx, _| drop(trx)),
        ("a commit that is refused", |_, trx, _| drop(trx.commit().unwrap_err())),
        ("a rollback that is refused", |_, trx, _| drop(trx.rollback().unwrap_err())),
        ("a panic of a call", |db, trx, table| {
            let mut from = From(Some(|| panic!("on purpose")));
            let put = || trx.table(table).put_stream(b"b", LONG, &mut from);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(put)).unwrap_err();
            assert!(db.views().is_empty());
        }),
    ];
    for (name, end) in ends {
        let db = database();
        let table = db.create_table("t", TableOptions::default()).unwrap();
        table.put(b"a", b"1").unwrap();
        let trx = begin(&db, Isolation::ReadCommitted);
        trx.begin_statement().unwrap();
        assert!(db.views().is_empty(), "{name}: it is taken by the first read");
        trx.table(&table).get(b"a").unwrap();
        trx.table(&table).get(b"a").unwrap();
        assert_eq!(db.views().len(), 1, "{name}");
        end(&db, trx, &table);
        assert!(db.views().is_empty(), "{name}: {:?}", db.views());
    }
}

#[test]
fn a_deadlock_ends_the_view_of_the_statement() {
    let (db, script, _) = scripted();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    for key in [b"a", b"b"] {
        table.put(key, b"1").unwrap();
    }
    let options = TransactionOptions::default().isolation(Isolation::ReadCommitted);
    let (victim, other) = (db.begin(options.deadlock_priority(-1)), db.begin(options));
    victim.begin_statement().unwrap();
    assert!(victim.table(&table).contains(b"a").unwrap());
    victim.table(&table).put(b"a", b"2").unwrap();
    other.table(&table).put(b"b", b"2").unwrap();
    let in_other = table.clone();
    script.then(Duration::from_secs(1), move || drop(other.table(&in_other).put(b"a", b"3")));
    let refused = victim.table(&table).put(b"b", b"3");
    assert!(matches!(refused, Err(Error::Lock(LockError::Deadlock(_)))), "{refused:?}");
    assert!(db.views().is_empty(), "{:?}", db.views());
}

/// A view of a statement that holds up purge is ended as any other, and the next statement has another one.
#[test]
fn the_view_of_a_statement_keeps_what_it_reads_from_purge() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = simulated(&disk, &env);
    let table = db.create_table("t", TableOptions::default()).unwrap();
    table.put(b"a", b"1").unwrap();
    let trx = begin(&db, Isolation::ReadCommitted);
    let within = trx.table(&table);
    trx.begin_statement().unwrap();
    assert!(within.contains(b"b").is_ok_and(|there| !there));
    table.put(b"a", b"2").unwrap();
    table.delete(b"a").unwrap();
    env.run_workers(400);
    assert_eq!(within.get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
    assert!(db.metrics().history_bytes > 0);
    trx.end_statement(StatementEnd::Keep).unwrap();
    env.run_workers(400);
    assert_eq!((within.get(b"a").unwrap(), db.metrics().history_bytes), (None, 0));
    trx.commit().unwrap();
}
