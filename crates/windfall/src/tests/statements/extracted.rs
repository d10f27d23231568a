//! An index of which an extractor makes several entries of a row, built while rows change.

use std::collections::BTreeSet;

use windfall_sim::{SimulatedDisk, Survive};

use super::{
    Rows, check_index_of, concurrent::run_with_transactions, make, open, row, rows_of, run_during_changes,
};
use crate::{
    CompositePart, Database, ExtractedEntries, IndexOptions, MadeEntry, Result, Table, TableChanges,
    TableOptions,
    error::{Error, SchemaError, UsageError},
};

/// More than the bytes that the changes at one point note.
const ONE_STEP: usize = 40_000;

/// Makes an entry of the key with which a value begins, one with NULL, and one for each of its digits; none of a value
/// with a certain digit, and an error or a panic of others.
pub(super) fn digits(row: &[u8], value: &[u8], entries: &mut ExtractedEntries) -> Result<()> {
    assert!(value[4] != b'!', "an exclamation mark");
    if value[4] == b'?' {
        return Err(UsageError::Other("a question mark".into()).into());
    }
    if value[4] != b'7' {
        entries.add_with(("key", &value[..5]), &value[5..value.len().min(50)]);
        entries.add(("none", CompositePart::NULL));
        for digit in &value[..5] {
            entries.add(("row", row, *digit));
        }
    }
    Ok(())
}

fn index(seed: u64) -> IndexOptions {
    let index = IndexOptions::extracted("digits");
    if seed.is_multiple_of(2) { index.unique() } else { index }
}

/// Compares the entries with what the extractor makes of the rows.
fn check(db: &Database, table: &Table, rows: &Rows, what: &str) {
    let expected = rows.iter().filter(|(_, value)| value[4] != b'7').map(|(_, value)| {
        let digits: BTreeSet<_> = value[..5].iter().collect();
        2 + digits.len()
    });
    let found: Vec<_> = table.index("e").unwrap().range::<&[u8]>(..).unwrap().map(Result::unwrap).collect();
    assert_eq!(found.len(), expected.sum::<usize>(), "{what}");
    assert!(found.iter().all(|entry| rows.get(&entry.key) == Some(&entry.value)), "{what}");
    // It compares each entry and its payload with what the extractor makes.
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new(), "{what}");
}

fn make_of(_: &str, row: &[u8], value: &[u8], entry: &mut MadeEntry) -> Result<bool> {
    make(row, value, entry)
}

/// Adds the index alone, or with others that note rows and entries.
fn add(db: &Database, seed: u64) -> Result<()> {
    if seed.is_multiple_of(3) {
        return db.create_index("t", "e", index(seed));
    }
    let all = TableChanges::default()
        .add_index("k", IndexOptions::on_value(0..3))
        .add_index("e", index(seed))
        .add_index("s", IndexOptions::supplied(5))
        .add_index("other", IndexOptions::extracted("digits"));
    db.alter_table_with("t", all, make_of).map(drop)
}

#[test]
fn entries_of_an_extractor_follow_their_rows_while_an_index_is_built() {
    // With few bytes of notes each change is applied at once, and several rows change at each entry that it has: that
    // is slow, and so done with some seeds.
    for seed in (1..40).filter(|seed| seed / 2 % 4 < 2 || [4, 7].contains(seed)) {
        let disk = SimulatedDisk::new(seed);
        let run = |db: &Database| add(db, seed);
        let (changes, done) = run_during_changes(&disk, seed, 24, TableOptions::default(), ONE_STEP, run);
        let what = format!("seed {seed}");
        done.unwrap_or_else(|error| panic!("{what}: {error}"));
        let (db, _) = open(&disk, seed).unwrap();
        let table = db.table("t").unwrap();
        check(&db, &table, &changes.lock().rows, &what);
        if !seed.is_multiple_of(3) {
            check_index_of(&table, "k", false, &what);
            check_index_of(&table, "s", true, &what);
        }
    }
}

#[test]
fn indexes_of_an_extractor_are_built_while_any_transactions_run() {
    let (mut made, mut refused) = (0, 0);
    for seed in 1..40 {
        let build = |db: &Database| {
            let unique = |index: IndexOptions| if seed % 2 == 0 { index.unique() } else { index };
            let both = TableChanges::default()
                .add_index("e", index(seed))
                .add_index("i", unique(IndexOptions::on_value(0..5)));
            db.alter_table("t", both)?;
            let table = db.table("t")?;
            check(db, &table, &rows_of(&table)?, &format!("seed {seed}"));
            Ok(())
        };
        match run_with_transactions(&SimulatedDisk::new(seed), seed, 30, false, false, build).unwrap() {
            Ok(()) => made += 1,
            Err(Error::Schema(SchemaError::DuplicateKey { .. })) => refused += 1,
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    assert!(made > 15 && refused > 1, "{made} made, {refused} refused");
}

#[test]
fn a_crash_while_an_index_of_an_extractor_is_built_leaves_all_entries_or_none() {
    let (mut whole, mut absent) = (0, 0);
    for seed in [1, 2, 3, 8] {
        let run = |disk: &SimulatedDisk| {
            run_during_changes(disk, seed, 12, TableOptions::default(), ONE_STEP, |db| add(db, seed))
        };
        let disk = SimulatedDisk::new(seed);
        run(&disk).1.unwrap();
        let total = disk.operations();
        for operation in (1..=total).step_by(3) {
            let disk = SimulatedDisk::new(seed);
            disk.crash_at(operation);
            let (changes, built) = run(&disk);
            let survive = [Survive::Nothing, Survive::Everything, Survive::Random(operation)]
                [operation as usize / 3 % 3];
            let what = format!("seed {seed}, crash at operation {operation} of {total}, {survive:?}");
            let Ok((db, _)) = open(&disk.restart(survive), seed) else {
                assert!(changes.lock().rows.is_empty(), "{what}: it does not open");
                continue;
            };
            let Ok(table) = db.table("t") else {
                assert!(changes.lock().rows.is_empty(), "{what}: the table is absent");
                continue;
            };
            if table.index("e").is_ok() {
                check(&db, &table, &rows_of(&table).unwrap(), &what);
                whole += 1;
            } else {
                assert!(built.is_err(), "{what}: the index is absent");
                assert_eq!(db.check().unwrap().findings, Vec::<String>::new(), "{what}");
                absent += 1;
            }
        }
    }
    assert!(whole > 0 && absent > 10, "{whole} times there, {absent} times absent");
}

/// The extractor fails, or panics, for a row that comes while the rows are read.
#[test]
fn an_extractor_that_fails_while_an_index_is_built_leaves_nothing() -> Result<()> {
    let (db, env) = open(&SimulatedDisk::new(1), 1)?;
    let table = db.create_table("t", TableOptions::default())?;
    (0..20).try_for_each(|n| table.insert(&row(n), format!("{n:05}").as_bytes()))?;
    let trees = db.check()?.trees.len();
    for (last, said) in [(b'?', "a question mark"), (b'!', "an exclamation mark")] {
        let (handle, mut passed) = (table.clone(), 0);
        db.engine().catalog.pause.set(move || {
            passed += 1;
            if passed == 10 {
                handle.put(&row(3), &[b'0', b'0', b'0', b'0', last]).unwrap();
            }
        });
        let all = TableChanges::default()
            .add_index("k", IndexOptions::on_value(0..3))
            .add_index("e", IndexOptions::extracted("digits"));
        let error = db.alter_table("t", all).unwrap_err();
        db.engine().catalog.pause.clear();
        assert!(error.to_string().contains(said), "{error}");
        if last == b'!' {
            assert!(matches!(error, Error::Usage(UsageError::ExtractorPanicked { .. })), "{error}");
            assert!(error.to_string().contains("index e"), "{error}");
        }
        assert!(table.index("k").is_err() && table.index("e").is_err());
        env.run_workers(500);
        let report = db.check()?;
        assert_eq!((report.findings, report.trees.len()), (vec![], trees), "{said}");
        table.put(&row(3), b"00003")?;
    }
    db.create_index("t", "e", IndexOptions::extracted("digits"))?;
    check(&db, &table, &rows_of(&table)?, "after the failures");
    Ok(())
}
