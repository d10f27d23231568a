//! Indexes of which the caller supplies the entries.

use core::ops::Bound::{Excluded, Included, Unbounded};

use windfall::{
    Access, Database, Error, IndexCursor, IndexKey, IndexOptions, Isolation, Seek, SuppliedChange,
    SuppliedEntry, Table, TableOptions,
    error::{LockError, SchemaError, UsageError},
};
use windfall_sim::{SimulatedDisk, SimulatedEnv};

use super::{begin, database, simulated};

/// Creates a table of people: a unique index of their numbers, which may be NULL, and one of their names regardless of
/// case, in which those without a name are not. The key of every second one also depends on something that is not in
/// the row.
fn people(db: &Database) -> Table {
    let options = TableOptions::default()
        .index("name", IndexOptions::supplied(0))
        .index("number", IndexOptions::supplied(3).unique())
        .index("first", IndexOptions::on_value(0..1));
    db.create_table("people", options).unwrap()
}

/// A person as the entries have it: the name and the number.
#[derive(Clone, Copy, Debug, Default)]
struct Person<'a> {
    name: &'a str,
    number: Option<u16>,
}

fn person(name: &str, number: u16) -> Person<'_> {
    Person { name, number: Some(number) }
}

fn name_key(name: &str) -> Vec<u8> {
    [name.to_lowercase().as_bytes(), b"\0"].concat()
}

fn number_key(number: Option<u16>) -> Vec<u8> {
    number.map_or_else(|| vec![0], |number| [&[1], &number.to_be_bytes()[..]].concat())
}

/// Runs a call with the entries of a person before and after it; `None` if there is no row.
fn with<T>(
    old: Option<Person<'_>>,
    new: Option<Person<'_>>,
    run: impl FnOnce(&[SuppliedChange<'_>]) -> T,
) -> T {
    let sides = [old, new];
    let names = sides.map(|side| side.map(|person| name_key(person.name)));
    let numbers = sides.map(|side| side.map(|person| number_key(person.number)));
    let name = |n: usize| {
        let (person, key) = (sides[n]?, names[n].as_ref()?);
        (!person.name.is_empty()).then(|| SuppliedEntry::new(key).payload(person.name.as_bytes()))
    };
    let number = |n: usize| {
        let (person, key) = (sides[n]?, numbers[n].as_ref()?);
        let entry = SuppliedEntry::new(key);
        Some(if person.number.is_none() { entry.may_repeat() } else { entry })
    };
    run(&[SuppliedChange::new("name", name(0), name(1)), SuppliedChange::new("number", number(0), number(1))])
}

fn insert(table: &Table<impl Access>, id: u8, new: Person<'_>) -> windfall::Result<()> {
    with(None, Some(new), |entries| table.insert_with(&[id], new.name.as_bytes(), entries))
}

fn update(table: &Table<impl Access>, id: u8, old: Person<'_>, new: Person<'_>) -> windfall::Result<()> {
    with(Some(old), Some(new), |entries| table.update_with(&[id], new.name.as_bytes(), entries))
}

fn delete(table: &Table<impl Access>, id: u8, old: Person<'_>) -> windfall::Result<bool> {
    with(Some(old), None, |entries| table.delete_with(&[id], entries))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Returns the names and the keys of the rows in the order of the names, by the entries alone, and asserts that the
/// rows say the same.
fn names(table: &Table<impl Access>) -> Vec<(String, u8)> {
    let index = table.index("name").unwrap();
    let alone: Vec<_> = index.keys::<&[u8]>(..).unwrap().map(Result::unwrap).collect();
    let rows: Vec<_> = index.range::<&[u8]>(..).unwrap().map(Result::unwrap).collect();
    let of_entry = |found: &IndexKey| (text(&found.payload), found.key[0]);
    let found: Vec<_> = alone.iter().map(of_entry).collect();
    let of_row: Vec<_> = rows.iter().map(|row| (text(&row.value), row.key[0])).collect();
    assert_eq!(of_row, found, "the rows and the payloads of their entries differ");
    for (row, entry) in rows.iter().zip(&alone) {
        assert_eq!((&row.index_key, &row.payload), (&entry.index_key, &entry.payload));
        assert_eq!(entry.index_key, name_key(&text(&entry.payload)));
    }
    let mut back: Vec<_> = index.keys::<&[u8]>(..).unwrap().rev().map(Result::unwrap).collect();
    back.reverse();
    assert_eq!(back, alone);
    found
}

fn named(expected: &[(&str, u8)]) -> Vec<(String, u8)> {
    expected.iter().map(|(name, id)| ((*name).to_owned(), *id)).collect()
}

fn assert_sound(db: &Database) {
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}

#[test]
fn supplied_entries_follow_their_rows() {
    let db = database();
    let table = people(&db);
    insert(&table, 1, person("zoe", 7)).unwrap();
    insert(&table, 2, person("Adam", 5)).unwrap();
    insert(&table, 3, person("bob", 6)).unwrap();
    // A row that is not in the index, and two of which the unique key may repeat.
    insert(&table, 4, person("", 4)).unwrap();
    insert(&table, 5, Person { name: "Carl", number: None }).unwrap();
    insert(&table, 6, Person { name: "carl", number: None }).unwrap();
    assert_eq!(names(&table), named(&[("Adam", 2), ("bob", 3), ("Carl", 5), ("carl", 6), ("zoe", 1)]));
    // Only the payload changes.
    update(&table, 3, person("bob", 6), person("BOB", 6)).unwrap();
    update(&table, 2, person("Adam", 5), person("eve", 5)).unwrap();
    assert_eq!(names(&table), named(&[("BOB", 3), ("Carl", 5), ("carl", 6), ("eve", 2), ("zoe", 1)]));
    // An entry that is not named stays as it is.
    let [old, new] = [7, 70].map(|number| number_key(Some(number)));
    let [old, new] = [&old, &new].map(|key| Some(SuppliedEntry::new(key)));
    table.update_with(&[1], b"zoe", &[SuppliedChange::new("number", old, new)]).unwrap();
    assert!(delete(&table, 5, Person { name: "Carl", number: None }).unwrap());
    assert!(!delete(&table, 5, Person { name: "Carl", number: None }).unwrap());
    assert_eq!(names(&table), named(&[("BOB", 3), ("carl", 6), ("eve", 2), ("zoe", 1)]));
    let by_number: Vec<_> =
        table.index("number").unwrap().range::<&[u8]>(..).unwrap().map(Result::unwrap).collect();
    let by_number: Vec<_> = by_number.into_iter().map(|row| (row.index_key, row.key[0])).collect();
    let expected = [(None, 6), (Some(4), 4), (Some(5), 2), (Some(6), 3), (Some(70), 1)];
    assert_eq!(by_number, expected.map(|(number, id)| (number_key(number), id)));
    // The index of the values is made by the engine as before.
    assert_eq!(table.index("first").unwrap().get(b"e").unwrap().count(), 1);
    assert_eq!(table.row_count().unwrap(), 5);
    assert_sound(&db);
    db.truncate_table("people").unwrap();
    insert(&table, 9, person("Ida", 70)).unwrap();
    assert_eq!(names(&table), named(&[("Ida", 9)]));
}

#[test]
fn a_unique_supplied_key_is_refused_twice() {
    let db = database();
    let table = people(&db);
    insert(&table, 1, person("zoe", 7)).unwrap();
    let is_duplicate = |done: windfall::Result<()>| {
        let error = done.unwrap_err();
        assert!(matches!(error, Error::Schema(SchemaError::DuplicateKey { .. })), "{error}");
        assert!(error.to_string().contains("number"), "{error}");
    };
    is_duplicate(insert(&table, 2, person("adam", 7)));
    insert(&table, 2, person("adam", 8)).unwrap();
    is_duplicate(update(&table, 2, person("adam", 8), person("adam", 7)));
    assert_eq!(names(&table), named(&[("adam", 2), ("zoe", 1)]));
    // The key of a transaction that has not ended is waited for.
    let trx = begin(&db, Isolation::RepeatableRead);
    update(&trx.table(&table), 1, person("zoe", 7), person("zoe", 9)).unwrap();
    let other = begin(&db, Isolation::RepeatableRead);
    other.set_lock_wait_timeout(Some(core::time::Duration::ZERO));
    for number in [7, 9] {
        let refused = insert(&other.table(&table), 3, person("bob", number)).unwrap_err();
        assert!(matches!(refused, Error::Lock(LockError::Busy(_))), "{refused}");
    }
    trx.commit().unwrap();
    insert(&other.table(&table), 3, person("bob", 7)).unwrap();
    other.commit().unwrap();
    assert_sound(&db);
}

#[test]
fn a_snapshot_keeps_supplied_entries_and_their_payloads() {
    let db = database();
    let table = people(&db);
    insert(&table, 1, person("Zoe", 1)).unwrap();
    insert(&table, 2, person("Adam", 2)).unwrap();
    let trx = begin(&db, Isolation::RepeatableRead);
    let within = trx.table(&table);
    let before = named(&[("Adam", 2), ("Zoe", 1)]);
    assert_eq!(names(&within), before);
    update(&table, 1, person("Zoe", 1), person("ZOE", 1)).unwrap();
    update(&table, 1, person("ZOE", 1), person("bob", 1)).unwrap();
    update(&table, 1, person("bob", 1), person("zoE", 3)).unwrap();
    delete(&table, 2, person("Adam", 2)).unwrap();
    insert(&table, 2, person("aDAM", 4)).unwrap();
    insert(&table, 3, person("Carl", 5)).unwrap();
    assert_eq!(names(&table), named(&[("aDAM", 2), ("Carl", 3), ("zoE", 1)]));
    assert_eq!(names(&within), before);
    // Its own change is that of the newest version.
    update(&within, 1, person("zoE", 3), person("zoEY", 3)).unwrap();
    assert_eq!(names(&within), named(&[("Adam", 2), ("zoEY", 1)]));
    trx.savepoint("before").unwrap();
    update(&within, 1, person("zoEY", 3), person("ZOEY", 3)).unwrap();
    trx.rollback_to("before").unwrap();
    assert_eq!(names(&within), named(&[("Adam", 2), ("zoEY", 1)]));
    trx.rollback().unwrap();
    assert_eq!(names(&table), named(&[("aDAM", 2), ("Carl", 3), ("zoE", 1)]));
    assert_sound(&db);
}

/// Bounds of supplied entries are any first bytes of them, into the key of the row as well, in both directions.
#[test]
fn supplied_entries_are_found_by_their_first_bytes() {
    let db = database();
    let table = db.create_table("t", TableOptions::default().index("i", IndexOptions::supplied(2))).unwrap();
    let keys: [(&[u8], &[u8]); 9] = [
        (b"\0\0", b"z"),
        (b"ab", b""),
        (b"ab", b"\0"),
        (b"ab", b"m1"),
        (b"ab", b"m2"),
        (b"ac", b"a"),
        (b"b\xff", b"\xff"),
        (b"\xff\0", b"b"),
        (b"\xff\xff", b"\xff\xff"),
    ];
    let entries = keys.map(|(key, row)| [key, row].concat());
    for (key, row) in keys {
        let new = Some(SuppliedEntry::new(key));
        table.insert_with(row, b"", &[SuppliedChange::new("i", None, new)]).unwrap();
    }
    let index = table.index("i").unwrap();
    let first: [&[u8]; 17] = [
        b"",
        b"\0",
        b"\0\0\0",
        b"a",
        b"ab",
        b"ab\0",
        b"abl",
        b"abm",
        b"abm1",
        b"abm1\0",
        b"b",
        b"b\xff",
        b"b\xff\xff",
        b"c",
        b"\xff",
        b"\xff\xff\xff",
        b"\xff\xff\xff\xff",
    ];
    for lower in first {
        for upper in first {
            for bounds in [
                (Included(lower), Included(upper)),
                (Excluded(lower), Excluded(upper)),
                (Excluded(lower), Unbounded),
                (Unbounded, Included(upper)),
            ] {
                let is_above = |entry: &[u8]| match bounds.0 {
                    Included(lower) => entry >= lower,
                    Excluded(lower) => entry > lower && !entry.starts_with(lower),
                    Unbounded => true,
                };
                let is_below = |entry: &[u8]| match bounds.1 {
                    Included(upper) => entry < upper || entry.starts_with(upper),
                    Excluded(upper) => entry < upper,
                    Unbounded => true,
                };
                let expected: Vec<_> =
                    entries.iter().filter(|entry| is_above(entry) && is_below(entry)).cloned().collect();
                let whole = |key: IndexKey| [key.index_key, key.key].concat();
                let found: Vec<_> =
                    index.keys::<&[u8]>(bounds).unwrap().map(|key| whole(key.unwrap())).collect();
                assert_eq!(found, expected, "{bounds:?}");
                let locking = begin(&db, Isolation::Serializable);
                let within = locking.table(&table).index("i").unwrap();
                let back = within.keys::<&[u8]>(bounds).unwrap().rev().map(|key| whole(key.unwrap()));
                assert_eq!(
                    back.collect::<Vec<_>>(),
                    expected.into_iter().rev().collect::<Vec<_>>(),
                    "{bounds:?}"
                );
            }
        }
        seeks(index.key_cursor().unwrap(), &entries, lower);
    }
    let trx = begin(&db, Isolation::RepeatableRead);
    let within = trx.table(&table).index("i").unwrap();
    for bytes in first {
        seeks(within.key_cursor_for_share().unwrap(), &entries, bytes);
    }
}

/// Asserts that a cursor finds the right entry from these first bytes, and goes on from there, either way.
fn seeks(mut cursor: IndexCursor, entries: &[Vec<u8>], first: &[u8]) {
    let at_least = entries.iter().position(|entry| &entry[..] >= first);
    let above = entries.iter().position(|entry| &entry[..] > first && !entry.starts_with(first));
    let at = |cursor: &IndexCursor| cursor.row().map(|entry| [entry.index_key, entry.key].concat());
    for (seek, place) in [
        (Seek::AtLeast(first), at_least),
        (Seek::Above(first), above),
        (Seek::Below(first), at_least.unwrap_or(entries.len()).checked_sub(1)),
        (Seek::AtMost(first), above.unwrap_or(entries.len()).checked_sub(1)),
    ] {
        let expected = |place: Option<usize>| place.and_then(|place| entries.get(place)).cloned();
        let seek_there = |cursor: &mut IndexCursor| {
            assert_eq!(cursor.seek(seek).unwrap(), place.is_some(), "{seek:?}");
            assert_eq!(at(cursor), expected(place), "{seek:?}");
        };
        // Behind the end that the seek has passed, the way back leads to the entry there.
        let is_upwards = matches!(seek, Seek::AtLeast(_) | Seek::Above(_));
        let (before, after) = match place {
            Some(place) => (place.checked_sub(1), Some(place + 1)),
            None if is_upwards => (entries.len().checked_sub(1), None),
            None => (None, Some(0)),
        };
        seek_there(&mut cursor);
        assert_eq!(
            (cursor.next().unwrap(), at(&cursor)),
            (expected(after).is_some(), expected(after)),
            "{seek:?}"
        );
        seek_there(&mut cursor);
        assert_eq!((cursor.prev().unwrap(), at(&cursor)), (before.is_some(), expected(before)), "{seek:?}");
    }
}

#[test]
fn wrong_entries_are_refused_and_change_nothing() {
    let db = database();
    let table = people(&db);
    insert(&table, 1, person("Zoe", 1)).unwrap();
    let before = names(&table);
    let refused = |done: windfall::Result<()>, what: &[&str]| {
        let error = done.unwrap_err();
        assert!(matches!(error, Error::Usage(_) | Error::Schema(SchemaError::NoIndex { .. })), "{error:?}");
        let text = error.to_string();
        assert!(what.iter().all(|what| text.contains(what)), "{text}");
        assert_eq!(names(&table), before);
    };
    let missing = ["index name of table people", "from the caller", "insert_with"];
    refused(table.insert(&[2], b"Adam"), &missing);
    refused(table.put(&[1], b"Adam"), &missing);
    refused(table.update(&[1], b"Adam"), &missing);
    refused(table.delete(&[1]).map(drop), &missing);
    refused(table.insert_with(&[2], b"Adam", &[]), &missing);
    refused(table.delete_with(&[1], &[]).map(drop), &missing);
    // The old entry of another row, or of none; a new one that is there already.
    let wrong = ["index n", "of table people", "do not fit the row", "read it with a lock"];
    refused(update(&table, 1, person("Zora", 1), person("Adam", 1)), &wrong);
    refused(update(&table, 1, person("Zoe", 2), person("Zoe", 3)), &wrong);
    refused(update(&table, 1, person("", 1), person("Zoe", 1)), &wrong);
    refused(delete(&table, 1, person("Zoe", 2)).map(drop), &wrong);
    let (old, new) = (Some(person("Zoe", 1)), Some(person("Adam", 2)));
    refused(with(old, new, |entries| table.insert_with(&[2], b"Adam", entries)), &wrong);
    refused(with(old, new, |entries| table.delete_with(&[1], entries)).map(drop), &wrong);
    let entry = |index| SuppliedChange::new(index, None, Some(SuppliedEntry::new(b"key")));
    let named = |entries: &[SuppliedChange<'_>]| table.insert_with(&[2], b"Adam", entries);
    refused(named(&[entry("name"), entry("number"), entry("nonsense")]), &["people", "nonsense"]);
    refused(named(&[entry("name"), entry("number"), entry("first")]), &["index first", "pass no entry"]);
    refused(named(&[entry("name"), entry("number"), entry("name")]), &["index name", "twice"]);
    let long = vec![7; 70_000];
    let of = |new| [SuppliedChange::new("name", None, Some(new)), entry("number")];
    refused(named(&of(SuppliedEntry::new(b"key").payload(&long[..1023]))), &["1023 bytes", "at most 1022"]);
    for length in [769, 5_000, 70_000] {
        refused(named(&of(SuppliedEntry::new(&long[..length]))), &["index name", "at most 768"]);
    }
    let fits = SuppliedEntry::new(&long[..767]).payload(&long[..1022]);
    named(&of(fits)).unwrap();
    let table = db.create_table("plain", TableOptions::default()).unwrap();
    let none = table.insert_with(b"key", b"value", &[entry("name")]).unwrap_err();
    assert!(matches!(none, Error::Schema(SchemaError::NoIndex { .. })), "{none}");
    table.insert_with(b"key", b"value", &[]).unwrap();
    // Statements that cannot know the entries of rows that exist.
    let supplied = || TableOptions::default().index("i", IndexOptions::supplied(1));
    let unknown = |done: windfall::Result<()>| {
        let error = done.unwrap_err();
        assert!(matches!(error, Error::Usage(UsageError::EntriesUnknown { .. })), "{error}");
        assert!(error.to_string().contains("index i of table"), "{error}");
    };
    unknown(db.create_index("plain", "i", IndexOptions::supplied(1)));
    let parts = TableOptions::default().index("i", IndexOptions::supplied(1).and_value(0..1));
    let error = db.create_table("parts", parts).unwrap_err().to_string();
    assert!(error.contains("index i") && error.contains("leave out the parts"), "{error}");
    let rows = || [Ok((b"key".to_vec(), b"value".to_vec()))];
    unknown(db.create_table_from("loaded", supplied(), rows()).map(drop));
    unknown(db.create_table_from_unsorted("loaded", supplied(), rows()).map(drop));
    assert_eq!(db.tables().unwrap().len(), 2);
}

fn change(
    table: &Table,
    key: &[u8],
    old: Option<SuppliedEntry<'_>>,
    new: SuppliedEntry<'_>,
) -> windfall::Result<()> {
    let entries = [SuppliedChange::new("i", old, Some(new))];
    if old.is_none() { table.insert_with(key, b"", &entries) } else { table.update_with(key, b"", &entries) }
}

/// The old entry is the caller's word. What it says of payload and uniqueness is not relied on.
#[test]
fn the_stored_entry_counts_and_not_the_old_one_that_was_passed() {
    let db = database();
    let options = TableOptions::default().index("i", IndexOptions::supplied(2).unique());
    let table = db.create_table("t", options).unwrap();
    let (k1, k9) = (SuppliedEntry::new(b"k1"), SuppliedEntry::new(b"k9"));
    change(&table, b"a", None, k1.payload(b"old")).unwrap();
    let payload = || table.index("i").unwrap().keys::<&[u8]>(..).unwrap().next().unwrap().unwrap().payload;
    change(&table, b"a", Some(k1.payload(b"other")), k1.payload(b"other")).unwrap();
    assert_eq!(payload(), b"other");
    change(&table, b"a", Some(k1), k1).unwrap();
    assert_eq!(payload(), b"");
    let wrong = change(&table, b"a", Some(k9), k9).unwrap_err();
    assert!(matches!(wrong, Error::Usage(UsageError::WrongEntry { .. })), "{wrong}");
    // Two rows of one key become unique, one after the other.
    change(&table, b"a", Some(k1), k1.may_repeat()).unwrap();
    change(&table, b"b", None, k1.may_repeat()).unwrap();
    for old in [k1.may_repeat(), k1] {
        let refused = change(&table, b"b", Some(old), k1).unwrap_err();
        assert!(matches!(refused, Error::Schema(SchemaError::DuplicateKey { .. })), "{refused}");
    }
    assert_sound(&db);
}

#[test]
fn keys_that_are_not_self_delimiting_harm_no_other_row() {
    let db = database();
    let table = db.create_table("t", TableOptions::default().index("i", IndexOptions::supplied(2))).unwrap();
    change(&table, b"bc", None, SuppliedEntry::new(b"a")).unwrap();
    let refused = || {
        let error = change(&table, b"c", None, SuppliedEntry::new(b"ab")).unwrap_err();
        assert!(matches!(error, Error::Usage(UsageError::EntryOfOtherRow { .. })), "{error}");
        assert!(error.to_string().contains("self-delimiting"), "{error}");
    };
    refused();
    let trx = begin(&db, Isolation::RepeatableRead);
    let old = [SuppliedChange::new("i", Some(SuppliedEntry::new(b"a")), None)];
    assert!(trx.table(&table).delete_with(b"bc", &old).unwrap());
    refused();
    trx.rollback().unwrap();
    assert_eq!(table.index("i").unwrap().get(b"a").unwrap().count(), 1);
    assert_sound(&db);
}

/// A cursor past the end of an index has locked no entry before it.
#[test]
fn a_locking_cursor_past_the_last_entry_locks_no_row() {
    let db = database();
    let table = db.create_table("t", TableOptions::default().index("i", IndexOptions::supplied(1))).unwrap();
    change(&table, b"row", None, SuppliedEntry::new(b"k")).unwrap();
    let holder = begin(&db, Isolation::RepeatableRead);
    holder.table(&table).get_for_update(b"row").unwrap().unwrap();
    let trx = begin(&db, Isolation::Serializable);
    trx.set_lock_wait_timeout(Some(core::time::Duration::ZERO));
    let within = trx.table(&table).index("i").unwrap();
    for seek in [Seek::Above(b"\xff"), Seek::Above(b"z"), Seek::AtLeast(b"\xff\xff")] {
        assert!(!within.cursor().unwrap().seek(seek).unwrap(), "{seek:?}");
    }
    within.cursor().unwrap().seek(Seek::AtMost(b"\xff")).unwrap_err();
}

#[test]
fn supplied_entries_survive_a_crash() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    {
        let db = simulated(&disk, &env);
        let table = people(&db);
        insert(&table, 1, person("Zoe", 1)).unwrap();
        insert(&table, 2, person("Adam", 2)).unwrap();
        update(&table, 1, person("Zoe", 1), person("ZOE", 3)).unwrap();
        let trx = begin(&db, Isolation::RepeatableRead);
        update(&trx.table(&table), 1, person("ZOE", 3), person("zoe", 3)).unwrap();
        update(&trx.table(&table), 2, person("Adam", 2), person("Bob", 4)).unwrap();
        // The unfinished changes are durable, too.
        insert(&table, 3, person("Carl", 5)).unwrap();
        disk.crash_at(disk.operations() + 1);
        core::mem::forget(trx);
    }
    let survivor = disk.restart(windfall_sim::Survive::Everything);
    let db = simulated(&survivor, &SimulatedEnv::new(2));
    let table = db.table("people").unwrap();
    assert_eq!(names(&table), named(&[("Adam", 2), ("Carl", 3), ("ZOE", 1)]));
    update(&table, 2, person("Adam", 2), person("Bob", 4)).unwrap();
    assert_sound(&db);
}

/// In an index without payloads, wherever entries come from: changes, loads, the function of a build.
#[test]
fn payloads_are_refused_in_an_index_without() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let bare = || IndexOptions::supplied(1).without_payload();
    let refused = |done: windfall::Result<()>| {
        let error = done.unwrap_err();
        assert!(matches!(error, Error::Usage(UsageError::PayloadNotStored { .. })), "{error}");
        assert!(error.to_string().contains("index i of table"), "{error}");
    };
    let (k, with_payload) = (SuppliedEntry::new(b"k"), SuppliedEntry::new(b"k").payload(b"p"));
    let changes = |table: &Table| {
        refused(change(table, b"new", None, with_payload));
        refused(change(table, b"a", Some(k), with_payload));
        assert_eq!(table.index("i").unwrap().keys::<&[u8]>(..).unwrap().count(), 2);
    };
    {
        let db = simulated(&disk, &env);
        let table = db.create_table("t", TableOptions::default().index("i", bare())).unwrap();
        change(&table, b"a", None, k).unwrap();
        change(&table, b"b", None, SuppliedEntry::new(b"longer")).unwrap();
        changes(&table);
        db.create_table("empty", TableOptions::default().index("i", bare())).unwrap();
        let mut load = db.load_table("empty").unwrap();
        refused(load.push(b"a", b"", &[SuppliedChange::new("i", None, Some(with_payload))]));
        drop(load);
        let plain = db.create_table("plain", TableOptions::default()).unwrap();
        plain.insert(b"a", b"").unwrap();
        let make = |payload: &'static [u8]| {
            db.create_index_with("plain", "i", bare(), |_row, _value, made: &mut windfall::MadeEntry| {
                made.key.extend_from_slice(b"k");
                made.payload.extend_from_slice(payload);
                Ok(true)
            })
        };
        refused(make(b"p"));
        make(b"").unwrap();
        assert_eq!(plain.index("i").unwrap().get(b"k").unwrap().count(), 1);
        assert_sound(&db);
        // Entries that the caller does not supply.
        for options in [IndexOptions::on_value(0..1), IndexOptions::extracted("tags")] {
            let options = TableOptions::default().index("i", options.without_payload());
            let error = db.create_table("other", options).unwrap_err().to_string();
            assert!(error.contains("without_payload") && error.contains("index i"), "{error}");
        }
        db.rename_table("t", "renamed").unwrap();
        disk.crash_at(disk.operations() + 1);
    }
    let survivor = disk.restart(windfall_sim::Survive::Everything);
    let db = simulated(&survivor, &SimulatedEnv::new(2));
    changes(&db.table("renamed").unwrap());
    assert_sound(&db);
}
