//! Names of tables and indexes that are as long as they may be, at every stage of a table's life.

mod common;

use std::sync::Arc;

use common::with_record;
use windfall::{Database, Error, IndexOptions, Options, Result, TableOptions, error::SchemaError};
use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

/// Page sizes, and the longest name of each in bytes.
const LIMITS: [(usize, usize); 3] = [(4096, 767), (8192, 1024), (16384, 1024)];

fn options(page_size: usize) -> Options {
    Options::default()
        .page_size(page_size)
        .buffer_pool_size(300 * page_size as u64)
        .log_size(4 << 20)
        .log_buffer_size(512 << 10)
}

fn open(disk: &SimulatedDisk, seed: u64, page_size: usize) -> Result<Database> {
    let (disk, env) = (Arc::new(disk.clone()), Arc::new(SimulatedEnv::new(seed)));
    Database::open_on(disk, env, &options(page_size), &|_| {})
}

/// Returns a name of this length that differs from others in its last byte.
fn name(length: usize, last: char) -> String {
    let mut name = "ü".repeat((length - 1) / 2);
    name.extend(core::iter::repeat_n('-', length - 1 - name.len()));
    name.push(last);
    assert_eq!(name.len(), length);
    name
}

#[track_caller]
fn is_refused<T>(result: Result<T>, limit: usize) {
    let Err(error) = result else { panic!("it was accepted") };
    let named = matches!(error, Error::Schema(SchemaError::NameTooLong { limit: said, .. }) if said == limit);
    let text = error.to_string();
    assert!(named && text.contains(&format!("at most {limit}")) && text.len() < 300, "{text}");
}

#[test]
fn a_name_may_be_as_long_as_the_page_size_allows() -> Result<()> {
    for (page_size, limit) in LIMITS {
        let mut disk = SimulatedDisk::new(1);
        let [a, b, c] = ['a', 'b', 'c'].map(|last| name(limit, last));
        let [first, second] = ['1', '2'].map(|last| name(limit, last));
        let index = || IndexOptions::on_value(0..1);
        for survive in [Survive::Nothing, Survive::Everything, Survive::Random(7)] {
            let db = open(&disk, 1, page_size)?;
            assert_eq!(db.name_limit(), limit);
            let table = db.create_table(&a, TableOptions::default().index(&first, index()))?;
            table.insert(b"key", b"value")?;
            for n in 1..3 {
                let long = name(limit + n, 'x');
                is_refused(db.create_table(&long, TableOptions::default()), limit);
                is_refused(db.create_table("t", TableOptions::default().index(&long, index())), limit);
                is_refused(db.rename_table(&a, &long), limit);
                is_refused(db.create_index(&a, &long, index()), limit);
            }
            db.create_table(&b, TableOptions::default())?.insert(b"key", b"other")?;
            db.rename_table(&a, &c)?;
            db.swap_tables(&b, &c)?;
            if page_size == 16384 {
                // In smaller pages the record has no room for both names.
                db.create_index(&b, &second, index())?;
                db.drop_index(&b, &first)?;
            }
            db.truncate_table(&c)?;
            db.table(&c)?.insert(b"key", b"after")?;
            disk.crash_at(disk.operations() + 1);
            drop((db, table));
            disk = disk.restart(survive);

            let db = open(&disk, 2, page_size)?;
            assert_eq!(db.tables()?.into_iter().map(|info| info.name).collect::<Vec<_>>(), [&*b, &*c]);
            let index = if page_size == 16384 { &second } else { &first };
            let found = db.table(&b)?.index(index)?.get(b"v")?.collect::<Result<Vec<_>>>()?;
            assert_eq!(found.len(), 1);
            assert_eq!(db.table(&c)?.get(b"key")?.as_deref(), Some(&b"after"[..]));
            db.drop_tables(&[&b, &c])?;
            assert_eq!(db.tables()?, []);
            assert_eq!(db.check()?.findings, Vec::<String>::new());
            db.close()?;
        }
    }
    Ok(())
}

/// The names are such that the fences of a leaf are as long as they are, and share nothing.
#[test]
fn tables_with_the_longest_names_and_records_are_swapped() -> Result<()> {
    for (page_size, limit) in LIMITS {
        let db = open(&SimulatedDisk::new(1), 1, page_size)?;
        let names: Vec<String> = "abcd"
            .chars()
            .flat_map(|first| ["a", "b"].map(|last| first.to_string().repeat(limit - 1) + last))
            .collect();
        // The largest record of all.
        let largest = page_size / 4 - 31;
        let made = |name: &str, size| db.create_table(name, with_record(size, page_size, limit)).is_ok();
        assert!(!made("too large", largest + 1));
        for (n, name) in names.iter().enumerate() {
            assert!(made(name, [largest, 0, largest / 2, largest, 3][n % 5]), "{n}");
        }
        let length = |name: &str| Ok::<_, Error>(db.table(name)?.metadata()?.len());
        for step in 0..names.len() {
            for (n, one) in names.iter().enumerate() {
                let other = &names[(n + 1 + step % 3) % names.len()];
                let before = (length(one)?, length(other)?);
                db.swap_tables(one, other)
                    .unwrap_or_else(|error| panic!("{step}, {n}, {page_size}: {before:?}: {error}"));
                assert_eq!((length(other)?, length(one)?), before);
            }
        }
        assert_eq!(db.check()?.findings, Vec::<String>::new());
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        db.drop_tables(&all)?;
        assert_eq!(db.check()?.findings, Vec::<String>::new());
    }
    Ok(())
}
