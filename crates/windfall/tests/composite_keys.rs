//! Keys of several parts, end to end: as keys of rows, of supplied entries, and as bounds.
//!
//! **Purpose.** The bytes of a composite key and their order are tested next to the codec; here tables and indexes are
//! read by any number of first parts.
//!
//! **Invariants.** A bound of the first parts includes or excludes all keys that begin with them (test:
//! `entries_are_found_by_their_first_parts`).

use core::ops::Bound::{Excluded, Unbounded};

use windfall::{
    CompositeKey, CompositePart, Database, IndexOptions, Options, Result, SuppliedChange, SuppliedEntry,
    TableOptions,
};

fn database(folder: &tempfile::TempDir) -> Result<Database> {
    Database::open(folder.path(), Options::default().buffer_pool_size(16 << 20))
}

#[test]
fn rows_are_found_by_the_first_parts_of_their_keys() {
    let folder = tempfile::tempdir().unwrap();
    let db = database(&folder).unwrap();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let rows = [("a", "bc", -7), ("a", "bc", 0), ("a", "bd", 300), ("a\0", "b", 5), ("ab", "c", 1)];
    for parts in rows.iter().rev() {
        table.insert(&CompositeKey::of(*parts), b"").unwrap();
    }
    let found = |range: core::ops::Range<Vec<u8>>| table.range(range).unwrap().count();
    assert_eq!(table.rows().unwrap().map(|row| row.unwrap().0).collect::<Vec<_>>(), {
        rows.map(|parts| CompositeKey::of(parts).into_bytes())
    });
    assert_eq!(found(CompositeKey::of(("a",)).within()), 3);
    assert_eq!(found(CompositeKey::of(("a", "bc")).within()), 2);
    assert_eq!(found(CompositeKey::of(("a", "bc", 0)).within()), 1);
    assert_eq!(found(CompositeKey::new().within_prefix("a")), 5);
    assert_eq!(found(CompositeKey::of(("a",)).within_prefix("b")), 3);
    let above = table.range(CompositeKey::of(("a",)).above()..).unwrap();
    assert_eq!(above.count(), 2);
    db.close().unwrap();
}

#[test]
fn entries_are_found_by_their_first_parts() {
    let folder = tempfile::tempdir().unwrap();
    let db = database(&folder).unwrap();
    let options = TableOptions::default().index("i", IndexOptions::supplied(0));
    let table = db.create_table("t", options).unwrap();
    let index = table.index("i").unwrap();
    // By a town, and for each town the highest number first.
    let parts = [("Basel", Some(9)), ("Basel", Some(2)), ("Basel", None), ("Bern", Some(4))];
    let key =
        |(town, number): (&str, Option<i64>)| index.key((town, CompositePart::from(number).descending()));
    for (n, parts) in parts.into_iter().enumerate().rev() {
        let key = key(parts);
        let change = SuppliedChange::new("i", None, Some(SuppliedEntry::new(&key)));
        table.insert_with(&[n as u8], b"", &[change]).unwrap();
    }
    let rows = |range: windfall::IndexRange| range.map(|row| row.unwrap().key[0]).collect::<Vec<_>>();
    assert_eq!(rows(index.range::<&[u8]>(..).unwrap()), [0, 1, 2, 3]);
    assert_eq!(rows(index.get(&index.key(("Basel",))).unwrap()), [0, 1, 2]);
    assert_eq!(rows(index.get(&key(("Basel", Some(2)))).unwrap()), [1]);
    let (basel, bern) = (index.key(("Basel",)), index.key(("Bern",)));
    assert_eq!(rows(index.range(basel.clone()..bern.clone()).unwrap()), [0, 1, 2]);
    assert_eq!(rows(index.range(basel.clone()..=bern).unwrap()), [0, 1, 2, 3]);
    assert_eq!(rows(index.range((Excluded(basel.clone()), Unbounded)).unwrap()), [3]);
    // From 2 on: NULL is last.
    assert_eq!(rows(index.range(key(("Basel", Some(2)))..=basel).unwrap()), [1, 2]);
    db.close().unwrap();
}
