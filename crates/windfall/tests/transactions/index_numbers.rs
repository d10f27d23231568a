//! Indexes that are found by their numbers.

use windfall::{Error, Index, IndexOptions, Isolation, Result, TableOptions, error::SchemaError};

use super::{begin, database};

fn indexed() -> TableOptions {
    TableOptions::default().index("first", IndexOptions::on_value(0..1))
}

#[test]
fn an_index_is_found_by_its_number_until_the_table_is_altered() {
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
    let outdated = |found: Result<Index>| {
        let error = found.unwrap_err();
        assert!(matches!(error, Error::Schema(SchemaError::IndexNumberOutdated(_))), "{error}");
    };
    outdated(other.index_at(first));
    // A table of the same id and version in another database.
    let elsewhere = database();
    outdated(elsewhere.create_table("t", indexed()).unwrap().index_at(second));
    db.drop_index("t", "first").unwrap();
    outdated(table.index_at(second));
    let again = table.index_number("second").unwrap();
    assert_eq!(find(again, b"1"), 1);
    db.truncate_table("t").unwrap();
    outdated(table.index_at(again));
}
