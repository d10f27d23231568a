//! Indexes that are found by their numbers.

use windfall::{
    Error, Index, IndexNumber, IndexOptions, Isolation, Result, SuppliedChange, SuppliedEntry, Table,
    TableChanges, TableOptions, error::SchemaError,
};

use super::{begin, database};

fn indexed() -> TableOptions {
    TableOptions::default().index("first", IndexOptions::on_value(0..1))
}

fn outdated<T: core::fmt::Debug>(found: Result<T>) {
    let error = found.unwrap_err();
    assert!(matches!(error, Error::Schema(SchemaError::IndexNumberOutdated(_))), "{error}");
}

#[test]
fn an_index_is_found_by_its_number_until_it_is_dropped() {
    let db = database();
    let options = indexed().index("second", IndexOptions::on_value(1..2));
    let table = db.create_table("t", options).unwrap();
    table.put(b"a", b"x1").unwrap();
    let [first, second] = ["first", "second"].map(|name| table.index_number(name).unwrap());
    let find = |number, key: &[u8]| table.index_at(number).unwrap().get(key).unwrap().count();
    assert_eq!((find(first, b"x"), find(second, b"1"), find(second, b"x")), (1, 1, 0));
    let trx = begin(&db, Isolation::RepeatableRead);
    let within = trx.table(&table).index_at(second).unwrap();
    assert_eq!(within.range_for_update::<&[u8]>(..).unwrap().count(), 1);
    drop(within);
    trx.commit().unwrap();
    let missing = table.index_number("third").unwrap_err();
    assert!(matches!(missing, Error::Schema(SchemaError::NoIndex { .. })), "{missing}");

    let other = db.create_table("other", indexed()).unwrap();
    outdated(other.index_at(first));
    // A table of the same id and version in another database.
    let elsewhere = database();
    outdated(elsewhere.create_table("t", indexed()).unwrap().index_at(second));
    db.drop_index("t", "first").unwrap();
    outdated(table.index_at(first));
    assert_eq!(find(second, b"1"), 1);
    assert_eq!(table.index_number("second").unwrap(), second);
    db.truncate_table("t").unwrap();
    outdated(table.index_at(second));
}

/// Makes one change of the row with entries in these indexes, from and to these bytes.
fn supply(table: &Table, indexes: &[IndexNumber], old: u8, new: u8) -> Result<()> {
    let [before, after] = [[old], [new]];
    let entry = |n| Some(SuppliedEntry::new(n));
    let change = |index: &IndexNumber| SuppliedChange::new(*index, entry(&before[..]), entry(&after[..]));
    table.update_with(b"row", &[new], &indexes.iter().map(change).collect::<Vec<_>>())
}

fn entries_of(index: &Index) -> Vec<Vec<u8>> {
    index.keys::<&[u8]>(..).unwrap().map(|key| key.unwrap().index_key).collect()
}

#[test]
fn a_number_stands_for_the_same_index_whatever_others_come_and_go() {
    let db = database();
    let names = ["a", "b", "c", "d"];
    let options = names.iter().fold(TableOptions::default(), |options, name| {
        options.index(name, IndexOptions::supplied(1).unique())
    });
    let table = db.create_table("t", options).unwrap();
    let new = |key| SuppliedChange::new("a", None, Some(SuppliedEntry::new(key)));
    let all = |key| names.map(|name| SuppliedChange { index: name.into(), ..new(key) });
    table.insert_with(b"row", &[0], &all(&[0])).unwrap();
    let numbers = names.map(|name| table.index_number(name).unwrap());
    let [a, b, c, d] = numbers;
    for (old, order) in [[a, b, c, d], [d, c, b, a], [b, d, a, c]].iter().enumerate() {
        supply(&table, order, old as u8, old as u8 + 1).unwrap();
    }
    assert!(names.iter().all(|name| entries_of(&table.index(name).unwrap()) == [[3]]));

    // An alteration that drops one, adds one of the same name, and renames another one to the name of a third.
    let changes = TableChanges::default()
        .drop_index("b")
        .rename_index("a", "former a")
        .add_index("b", IndexOptions::supplied(1).unique());
    db.alter_table_with("t", changes, |_, _, value, entry| {
        entry.key.extend_from_slice(value);
        Ok(true)
    })
    .unwrap();
    outdated(supply(&table, &[a, b], 3, 4));
    outdated(table.index_at(b));
    assert!(
        entries_of(&table.index("b").unwrap()) == [[3]],
        "a number of a dropped index was taken for another one"
    );
    let new_b = table.index_number("b").unwrap();
    assert_ne!(new_b, b);
    supply(&table, &[d, new_b, a, c], 3, 4).unwrap();
    for name in ["former a", "b", "c", "d"] {
        assert_eq!(entries_of(&table.index(name).unwrap()), [[4]], "{name}");
    }

    let in_order = [a, c, d, new_b];
    let taken = in_order.map(|index| SuppliedChange { index: index.into(), ..new(&[4]) });
    for (n, number) in in_order.into_iter().enumerate() {
        let mut entries = taken;
        (0..n).for_each(|free| entries[free].new = Some(SuppliedEntry::new(b"free")));
        let error = table.insert_with(b"other", b"", &entries).unwrap_err();
        let Error::Schema(SchemaError::DuplicateKey { index, row, .. }) = error else { panic!("{error}") };
        assert_eq!((index, &*row), (Some(number), &b"row"[..]));
    }
    let error = table.insert_with(b"row", b"", &taken).unwrap_err();
    assert!(matches!(error, Error::Schema(SchemaError::DuplicateKey { index: None, .. })), "{error}");
    let twice = supply(&table, &[a, a], 4, 5).unwrap_err();
    assert!(twice.to_string().contains("former a"), "{twice}");

    let other =
        db.create_table("other", TableOptions::default().index("a", IndexOptions::supplied(1))).unwrap();
    outdated(supply(&table, &[a, other.index_number("a").unwrap()], 4, 5));
    assert_eq!(table.get(b"row").unwrap().unwrap(), [4]);
}

/// The rows of a load name the indexes by the numbers that these have until the load is finished.
#[test]
fn a_load_takes_the_numbers_of_the_table() {
    let db = database();
    let options = || {
        TableOptions::default().index("a", IndexOptions::supplied(1)).index("b", IndexOptions::supplied(1))
    };
    let [table, other] = ["t", "other"].map(|name| db.create_table(name, options()).unwrap());
    let mut temporary = db.create_temporary_table("t", options()).unwrap();
    let numbers = |table: &Table| ["a", "b"].map(|name| table.index_number(name).unwrap());
    let change = |index: IndexNumber, key| SuppliedChange::new(index, None, Some(SuppliedEntry::new(key)));
    let others = numbers(&other);
    let [a, b] = numbers(&table);
    let mut load = db.load_table("t").unwrap();
    load.push(b"row", b"", &[change(b, b"2"), change(a, b"1")]).unwrap();
    outdated(load.push(b"wrong", b"", &[change(a, b"1"), change(others[1], b"2")]));
    load.finish().unwrap();
    outdated(table.index_at(a));
    let [c, d] = numbers(&temporary);
    let mut load = temporary.load().unwrap();
    load.push(b"row", b"", &[change(d, b"2"), change(c, b"1")]).unwrap();
    outdated(load.push(b"wrong", b"", &[change(a, b"1"), change(d, b"2")]));
    load.finish(&mut temporary).unwrap();
    outdated(temporary.index_at(c));
    for table in [&table, &temporary] {
        assert_eq!(["a", "b"].map(|name| entries_of(&table.index(name).unwrap())), [[b"1"], [b"2"]]);
    }
}
