//! Rows that get another key.

use windfall::{
    Access, Error, FieldChange, IndexOptions, Isolation, Result, SuppliedChange, SuppliedEntry, Table,
    TableOptions,
    error::{LockError, SchemaError},
};
use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

use super::{LEVELS, begin, database, pairs, rows, simulated};

/// A table with two unique indexes, one of the value and one of supplied entries, and a plain one.
fn indexed() -> TableOptions {
    TableOptions::default()
        .index("first", IndexOptions::on_value(0..1))
        .index("second", IndexOptions::on_value(1..2).unique())
        .index("made", IndexOptions::supplied(1).unique())
}

fn insert(table: &Table<impl Access>, key: &str, value: &str) -> Result<()> {
    let new = Some(SuppliedEntry::new(&value.as_bytes()[1..]));
    table.insert_with(key.as_bytes(), value.as_bytes(), &[SuppliedChange::new("made", None, new)])
}

/// Changes the key and the value of a row; the second byte of the value is its key in both unique indexes.
fn change(table: &Table<impl Access>, from: (&str, &str), to: (&str, &str)) -> Result<()> {
    let [old, new] = [from.1, to.1].map(|value| Some(SuppliedEntry::new(&value.as_bytes()[1..])));
    let entries = [SuppliedChange::new("made", old, new)];
    table.change_key_with(from.0.as_bytes(), to.0.as_bytes(), to.1.as_bytes(), &entries)
}

fn made(table: &Table) -> Vec<(Vec<u8>, Vec<u8>)> {
    let keys = table.index("made").unwrap().keys::<&[u8]>(..).unwrap();
    keys.map(|found| found.map(|found| (found.index_key, found.key)).unwrap()).collect()
}

fn is_duplicate(done: Result<()>, of: &str) -> bool {
    matches!(done, Err(Error::Schema(SchemaError::DuplicateKey { row, .. })) if *row == *of.as_bytes())
}

#[test]
fn a_row_gets_another_key_and_keeps_its_unique_index_keys() {
    let db = database();
    let table = db.create_table("t", indexed()).unwrap();
    insert(&table, "a", "x1").unwrap();
    insert(&table, "b", "y2").unwrap();
    change(&table, ("a", "x1"), ("c", "z1")).unwrap();
    assert_eq!(rows(&table), pairs([("b", "y2"), ("c", "z1")]));
    assert_eq!(made(&table), pairs([("1", "c"), ("2", "b")]));
    assert!(is_duplicate(change(&table, ("c", "z1"), ("b", "z1")), "b"), "the row's key");
    assert!(is_duplicate(change(&table, ("c", "z1"), ("d", "z2")), "b"), "a unique index key");
    let missing = change(&table, ("a", "x1"), ("e", "x5")).unwrap_err();
    assert!(matches!(missing, Error::Schema(SchemaError::NoRow(_))), "{missing}");
    assert_eq!(rows(&table), pairs([("b", "y2"), ("c", "z1")]));
    assert_eq!(made(&table), pairs([("1", "c"), ("2", "b")]));
    change(&table, ("c", "z1"), ("c", "w3")).unwrap();
    assert_eq!(
        (rows(&table), made(&table)),
        (pairs([("b", "y2"), ("c", "w3")]), pairs([("2", "b"), ("3", "c")]))
    );

    for (n, level) in LEVELS.into_iter().enumerate() {
        let (from, to) = if n % 2 == 0 { ("c", "d") } else { ("d", "c") };
        let before = rows(&table);
        let (view, trx) = (begin(&db, Isolation::RepeatableRead), begin(&db, level));
        assert_eq!(rows(&view.table(&table)), before);
        let within = trx.table(&table);
        change(&within, (from, "w3"), (to, "v3")).unwrap();
        assert_eq!(rows(&within), pairs([("b", "y2"), (to, "v3")]));
        trx.savepoint("here").unwrap();
        assert!(is_duplicate(change(&within, (to, "v3"), ("b", "v3")), "b"));
        assert_eq!(rows(&within), pairs([("b", "y2"), (to, "v3")]), "a half is left at {level:?}");
        change(&within, (to, "v3"), ("e", "u9")).unwrap();
        trx.rollback_to("here").unwrap();
        assert_eq!(rows(&within), pairs([("b", "y2"), (to, "v3")]));
        assert_eq!(rows(&view.table(&table)), before, "an old view");
        change(&within, (to, "v3"), (to, "w3")).unwrap();
        trx.commit().unwrap();
        assert_eq!(rows(&view.table(&table)), before, "an old view");
        assert_eq!(made(&table), pairs([("2", "b"), ("3", to)]));
    }
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}

#[test]
fn a_change_of_a_key_crashes_at_every_operation() {
    let mut outcomes = [0, 0];
    for at in 1.. {
        let (disk, env) = (SimulatedDisk::new(at), SimulatedEnv::new(at));
        let db = simulated(&disk, &env);
        let table = db.create_table("t", indexed()).unwrap();
        insert(&table, "a", "x1").unwrap();
        db.checkpoint().unwrap();
        disk.crash_at(disk.operations() + at);
        let done = change(&table, ("a", "x1"), ("c", "z1")).and_then(|()| {
            db.checkpoint()?;
            env.run_workers(50);
            Ok(())
        });
        let acknowledged = done.is_ok();
        disk.crash();
        let crashed = disk.restart(if at % 2 == 0 { Survive::Everything } else { Survive::Nothing });
        drop((table, db));
        let db = simulated(&crashed, &env);
        let table = db.table("t").unwrap();
        let is_changed = rows(&table) == pairs([("c", "z1")]);
        assert!(is_changed || rows(&table) == pairs([("a", "x1")]), "crash {at}: {:?}", rows(&table));
        assert_eq!(made(&table), pairs([("1", if is_changed { "c" } else { "a" })]), "crash {at}");
        assert!(is_changed || !acknowledged, "crash {at}: an acknowledged change is lost");
        assert_eq!(db.check().unwrap().findings, Vec::<String>::new(), "crash {at}");
        outcomes[usize::from(is_changed)] += 1;
        if acknowledged {
            break;
        }
    }
    assert!(outcomes.iter().all(|count| *count > 0), "no crash before, or none after: {outcomes:?}");
}

#[test]
fn an_interrupt_ends_the_copy_of_a_long_field() {
    let db = database();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let long = vec![7; 1 << 20];
    table.insert_fields(b"old", &[b"0", &long], &[]).unwrap();
    let trx = begin(&db, Isolation::RepeatableRead);
    let (within, handle) = (trx.table(&table), trx.interrupt_handle());
    let keep = [FieldChange::Keep; 2];
    handle.interrupt();
    let ended = within.change_key_fields(b"old", b"new", &keep, &[]).unwrap_err();
    assert!(matches!(ended, Error::Lock(LockError::Interrupted)), "{ended}");
    handle.clear();
    assert_eq!((within.contains(b"old").unwrap(), within.contains(b"new").unwrap()), (true, false));
    within.change_key_fields(b"old", b"new", &keep, &[]).unwrap();
    trx.commit().unwrap();
    assert!(table.get(b"new").unwrap().unwrap() == windfall::row::encode(&[&b"0"[..], &long]));
    assert_eq!(table.row_count().unwrap(), 1);
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}

/// Outside of transactions, as any change of a temporary table.
#[test]
fn a_key_change_of_a_temporary_row_leaves_no_old_versions() {
    let db = database();
    let table = db.create_temporary_table("t", TableOptions::default()).unwrap();
    table.put(&0u32.to_be_bytes(), &[7; 500]).unwrap();
    for n in 0..1_000u32 {
        table.change_key_with(&n.to_be_bytes(), &(n + 1).to_be_bytes(), &[7; 500], &[]).unwrap();
    }
    let infos = db.temporary_tables().unwrap();
    assert!(infos[0].rows == 1 && infos[0].resident_pages < 20, "{infos:?}");
}

/// The workers do not run: the call itself purges what it has left.
#[test]
fn a_refused_key_change_of_a_temporary_row_leaves_no_old_versions() {
    let db = simulated(&SimulatedDisk::new(1), &SimulatedEnv::new(1));
    let table = db.create_temporary_table("t", TableOptions::default()).unwrap();
    table.put(b"a", &[7; 500]).unwrap();
    table.put(b"b", &[8; 500]).unwrap();
    let free = |calls: usize| {
        for _ in 0..calls {
            assert!(is_duplicate(table.change_key_with(b"a", b"b", &[9; 500], &[]), "b"));
        }
        let metrics = db.metrics();
        metrics.pool_free + metrics.pool_dropped
    };
    // Undo is freed slice by slice.
    let before = free(2_000);
    let after = free(10_000);
    assert!(before <= after + 32, "{before} frames were free, and now {after}");
    assert_eq!((table.get(b"a").unwrap(), table.row_count().unwrap()), (Some(vec![7; 500]), 2));
}
