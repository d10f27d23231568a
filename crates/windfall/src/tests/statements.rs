//! Tests of DDL statements concurrent with row calls, on a simulated disk. A test acts at points within a statement.

mod concurrent;
mod extracted;
mod several;

use core::time::Duration;
use std::{collections::BTreeMap, sync::mpsc, thread};

use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

use crate::{
    Database, IndexOptions, MadeEntry, Options, Result, Table, TableChanges, TableOptions,
    buffer::Durability,
    catalog::{KeyPart, KeySpec},
    env::Env,
    error::{Error, SchemaError, UsageError},
    row,
    sync::{
        Arc, Mutex, Rank,
        work::{self, Work},
    },
    tree::store::HashIndex as _,
};

fn options() -> Options {
    Options::default()
        .page_size(4096)
        .buffer_pool_size(256 * 4096)
        .log_size(4 << 20)
        .log_buffer_size(256 << 10)
        .extractor("digits", extracted::digits)
}

fn open(disk: &SimulatedDisk, seed: u64) -> Result<(Database, SimulatedEnv)> {
    let env = SimulatedEnv::new(seed);
    let db = Database::open_on(Arc::new(disk.clone()), Arc::new(env.clone()), &options(), &|_| {})?;
    Ok((db, env))
}

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// Changes rows; some of the changes fail and roll back. Keys of the unique index move between rows.
struct Changes {
    chance: SimulatedEnv,
    rows: Rows,
    /// The rows as they are if the call in progress succeeds.
    next: Rows,
}

/// Returns a value that begins with the index key.
fn value(index_key: u64, chance: &SimulatedEnv) -> Vec<u8> {
    let mut value = format!("{index_key:05}").into_bytes();
    let long = if chance.random().is_multiple_of(16) { 6000 } else { chance.random() % 60 };
    value.resize(5 + long as usize, b'.');
    value
}

fn row(n: u64) -> Vec<u8> {
    format!("row {n:03}").into_bytes()
}

impl Changes {
    fn free_key(&self) -> u64 {
        loop {
            let key = self.chance.random() % 400;
            let taken = format!("{key:05}");
            if !self.rows.values().any(|value| value.starts_with(taken.as_bytes())) {
                return key;
            }
        }
    }

    /// Makes one call. Returns the error of a call that should not have failed.
    fn change(&mut self, db: &Database, table: &Table) -> Result<()> {
        let key = row(self.chance.random() % 200);
        self.next = self.rows.clone();
        let fails = self.chance.random().is_multiple_of(6);
        if fails {
            db.engine().transactions.fail_at(1 + self.chance.random() % 3);
        }
        let done = match self.chance.random() % 5 {
            0 | 1 => {
                self.next.remove(&key);
                table.delete(&key).map(drop)
            }
            2 if self.rows.contains_key(&key) => {
                // The same index key with another value.
                let mut value = self.rows[&key].clone();
                value.push(b'x');
                self.next.insert(key.clone(), value.clone());
                table.update(&key, &value)
            }
            _ => {
                let value = value(self.free_key(), &self.chance);
                self.next.insert(key.clone(), value.clone());
                table.put(&key, &value)
            }
        };
        db.engine().transactions.fail_at(0);
        match done {
            Ok(()) => self.rows = self.next.clone(),
            Err(Error::Usage(UsageError::Other(_))) if fails => self.next = self.rows.clone(),
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

fn filled(db: &Database, seed: u64, rows: u64, options: TableOptions) -> Result<Changes> {
    let chance = SimulatedEnv::new(seed ^ 0x5eed);
    let table = db.create_table("t", options)?;
    let mut changes = Changes { chance, rows: Rows::new(), next: Rows::new() };
    for n in 0..rows {
        let value = value(n, &changes.chance);
        table.put(&row(n), &value)?;
        changes.rows.insert(row(n), value);
    }
    Ok(changes)
}

fn rows_of(table: &Table) -> Result<Rows> {
    table.rows()?.collect()
}

fn rows_by_index(table: &Table) -> Result<Rows> {
    rows_by(table, "i")
}

fn rows_by(table: &Table, index: &str) -> Result<Rows> {
    let found = table.index(index)?.range::<&[u8]>(..)?;
    found.map(|row| row.map(|row| (row.key, row.value))).collect()
}

/// Checks index `i` ([`check_index_of`]).
fn check_index(table: &Table, supplied: bool, what: &str) {
    check_index_of(table, "i", supplied, what);
}

/// Reads the rows by an index, and compares them with all rows and the payloads of the entries with what was made of
/// the rows. `supplied` says whether a function has made the entries.
fn check_index_of(table: &Table, name: &str, supplied: bool, what: &str) {
    let mut rows = rows_of(table).unwrap();
    if supplied {
        rows.retain(|_, value| !is_left_out(value));
    }
    assert!(rows_by(table, name).unwrap() == rows, "{what}: rows and index {name} disagree");
    let index = table.index(name).unwrap();
    let mut entries = index.range::<&[u8]>(..).unwrap();
    while let Some(entry) = entries.next_ref().unwrap() {
        let mut made = MadeEntry::default();
        if supplied {
            make(entry.key, entry.value, &mut made).unwrap();
        }
        assert_eq!(entry.payload, made.payload, "{what}: payload of {:?}", entry.key);
    }
}

fn index(unique: bool) -> IndexOptions {
    let index = IndexOptions::on_value(0..5);
    if unique { index.unique() } else { index }
}

/// Returns whether a row is not in an index whose entries [`make`] makes.
fn is_left_out(value: &[u8]) -> bool {
    value[4] == b'7'
}

/// Makes an entry with the key of [`index`]; most have a payload that changes with the length of the value.
#[expect(clippy::unnecessary_wraps, reason = "the type of such functions")]
fn make(_: &[u8], value: &[u8], entry: &mut MadeEntry) -> Result<bool> {
    entry.key.extend_from_slice(&value[..5]);
    if !value.len().is_multiple_of(3) {
        entry.payload.resize(value.len() % 50, value[4]);
    }
    Ok(!is_left_out(value))
}

/// Adds the index. If its entries are `supplied`, a function makes them.
fn create_index(db: &Database, unique: bool, supplied: bool) -> Result<()> {
    if !supplied {
        return db.create_index("t", "i", index(unique));
    }
    let options = IndexOptions::supplied(5);
    db.create_index_with("t", "i", if unique { options.unique() } else { options }, make)
}

fn is_supplied(seed: u64) -> bool {
    seed.is_multiple_of(3)
}

/// Builds an index while rows change at each point where a test can act.
fn build_during_changes(disk: &SimulatedDisk, seed: u64, rows: u64) -> (Arc<Mutex<Changes>>, Result<()>) {
    // The bytes that the changes at one point note: entries or, for a function, whole rows.
    let one_step = if is_supplied(seed) { 30_000 } else { 2_000 };
    let build = |db: &Database| create_index(db, seed.is_multiple_of(2), is_supplied(seed));
    run_during_changes(disk, seed, rows, TableOptions::default(), one_step, build)
}

/// Runs a statement that builds indexes on a table with these options while rows change at each point where a test can
/// act. `one_step` is more than the bytes that the changes at one point note.
fn run_during_changes(
    disk: &SimulatedDisk,
    seed: u64,
    rows: u64,
    options: TableOptions,
    one_step: usize,
    build: impl FnOnce(&Database) -> Result<()>,
) -> (Arc<Mutex<Changes>>, Result<()>) {
    let none = Changes { chance: SimulatedEnv::new(1), rows: Rows::new(), next: Rows::new() };
    let changes = Arc::new(Mutex::new(Rank::Session, none));
    let Ok((db, _)) = open(disk, seed) else {
        return (changes, Err(Error::Closed));
    };
    let done = (|| {
        *changes.lock() = filled(&db, seed, rows, options)?;
        // All entries in memory at once; runs that are merged; notes that are applied in several rounds; both.
        let all = usize::MAX;
        let (entries, notes) = [(all, all), (700, all), (all, 900), (700, 900)][seed as usize / 2 % 4];
        db.engine().catalog.pause.set_bounds(entries, notes);
        let (acting, handle, table) = (changes.clone(), db.clone(), db.table("t")?);
        let (mut failed, mut commits) = (false, false);
        db.engine().catalog.pause.set(move || {
            // Calls on the table would wait.
            commits = commits || table.inner.gate().is_closed();
            if commits {
                return;
            }
            let has = |name| handle.engine().catalog.table(name).is_ok();
            assert!(has("t") && !has("u"), "the old meanings");
            let changes = &mut *acting.lock();
            let noted = table
                .inner
                .with_schema(|schema| schema.row_log.as_ref().map_or(0, |row_log| row_log.noted_bytes()));
            assert!(noted < notes.saturating_add(one_step), "a change of a row would wait: {noted}");
            for _ in 0..changes.chance.random() % 3 {
                // After a crash nothing works, and the statement must find that out itself. Whether the change that met
                // the crash is there afterwards is open, so none may follow it.
                if failed {
                    return;
                }
                failed |= changes.change(&handle, &table).is_err();
            }
        });
        build(&db)
    })();
    db.engine().catalog.pause.clear();
    (changes, done)
}

#[test]
fn rows_change_while_an_index_is_built() -> Result<()> {
    for seed in 1..60 {
        let disk = SimulatedDisk::new(seed);
        let (changes, done) = build_during_changes(&disk, seed, 150);
        done.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let changes = changes.lock();
        let (db, _) = open(&disk, seed)?;
        let table = db.table("t")?;
        assert_eq!(rows_of(&table)?, changes.rows, "seed {seed}");
        check_index(&table, is_supplied(seed), &format!("seed {seed}"));
        assert_eq!(db.check()?.findings, Vec::<String>::new(), "seed {seed}");
    }
    Ok(())
}

#[test]
fn a_crash_during_an_index_build_leaves_all_or_nothing() {
    let (mut whole, mut absent) = (0, 0);
    for seed in [1, 2, 5, 6, 3, 15] {
        let disk = SimulatedDisk::new(seed);
        build_during_changes(&disk, seed, 24).1.unwrap();
        let total = disk.operations();
        for operation in 1..=total {
            let disk = SimulatedDisk::new(seed);
            disk.crash_at(operation);
            let (changes, done) = build_during_changes(&disk, seed, 24);
            let survive =
                [Survive::Nothing, Survive::Everything, Survive::Random(operation)][operation as usize % 3];
            let what = format!("seed {seed}, crash at operation {operation} of {total}, {survive:?}");
            let Ok((db, _)) = open(&disk.restart(survive), seed) else {
                assert!(changes.lock().rows.is_empty(), "{what}: it does not open");
                continue;
            };
            assert_eq!(db.check().unwrap().findings, Vec::<String>::new(), "{what}");
            let Ok(table) = db.table("t") else {
                assert!(changes.lock().rows.is_empty(), "{what}: the table is absent");
                continue;
            };
            let changes = changes.lock();
            if changes.rows.len() < 20 {
                continue;
            }
            let seen = rows_of(&table).unwrap();
            assert!(seen == changes.rows || seen == changes.next, "{what}: other rows than were written");
            if table.index("i").is_ok() {
                check_index(&table, is_supplied(seed), &what);
                whole += 1;
            } else {
                assert!(done.is_err(), "{what}: the index is absent");
                absent += 1;
            }
        }
    }
    assert!(whole > 3 && absent > 30, "{whole} times there, {absent} times absent");
}

#[test]
fn two_rows_of_one_key_are_refused_only_if_they_have_it_at_one_time() -> Result<()> {
    let (db, _) = open(&SimulatedDisk::new(1), 1)?;
    let table = db.create_table("t", TableOptions::default())?;
    let key = |n: u8| [b'k', n];
    for n in 0..100 {
        table.insert(&key(n), format!("{n:05}").as_bytes())?;
    }
    // The key of a row that the build has passed moves to a row that it has not passed, so that it finds the key twice.
    let moves = |db: &Database, back: bool| {
        let (table, mut passed) = (db.table("t").unwrap(), 0);
        db.engine().catalog.pause.set(move || {
            passed += 1;
            if passed == 50 {
                table.delete(&key(10)).unwrap();
                table.update(&key(90), b"00010").unwrap();
            }
            if back && passed == 95 {
                table.insert(&key(10), b"00010").unwrap();
            }
        });
    };
    moves(&db, false);
    db.create_index("t", "i", index(true))?;
    assert_eq!(rows_by_index(&table)?.len(), 99);
    let unique = table.insert(&key(10), b"00010").unwrap_err();
    assert!(matches!(unique, Error::Schema(SchemaError::DuplicateKey { .. })), "{unique}");
    db.drop_index("t", "i")?;

    table.update(&key(90), b"00090")?;
    table.insert(&key(10), b"00010")?;
    moves(&db, true);
    let error = db.create_index("t", "i", index(true)).unwrap_err();
    assert!(matches!(error, Error::Schema(SchemaError::DuplicateKey { .. })), "{error}");
    db.engine().catalog.pause.clear();
    assert_eq!(rows_of(&table)?.len(), 100);
    assert!(table.index("i").is_err());
    assert_eq!(db.check()?.findings, Vec::<String>::new());

    // A key that is too long is refused, too.
    table.insert(b"long", &[7; 3000])?;
    let error = db.create_index("t", "i", IndexOptions::on_value(0..3000)).unwrap_err();
    assert!(matches!(error, Error::Usage(UsageError::KeyTooLong { .. })), "{error}");
    let (handle, mut passed) = (table.clone(), 0);
    db.engine().catalog.pause.set(move || {
        passed += 1;
        match passed {
            5 => handle.insert(b"z too long as well", &[7; 3000]).unwrap(),
            6 => assert!(handle.delete(b"z too long as well").unwrap()),
            20 => assert!(handle.delete(b"long").unwrap()),
            _ => {}
        }
    });
    db.create_index("t", "i", IndexOptions::on_value(0..3000))?;
    db.engine().catalog.pause.clear();
    assert_eq!(rows_by_index(&table)?, rows_of(&table)?);
    Ok(())
}

#[test]
fn a_large_index_is_written_once_from_its_first_page_to_its_last() -> Result<()> {
    let (db, env) = open(&SimulatedDisk::new(1), 1)?;
    let table = db.create_table("t", TableOptions::default())?;
    for n in 0..3000u64 {
        // In the order of the rows, the index keys are scattered.
        table.insert(&n.to_be_bytes(), format!("{:05}", n * 7919 % 99_991).as_bytes())?;
    }
    let pages = |db: &Database| -> Result<u64> {
        let report = db.check()?;
        assert_eq!(report.findings, Vec::<String>::new());
        Ok(report.trees.iter().find(|tree| tree.index.is_some()).unwrap().pages)
    };
    db.create_index("t", "i", index(true))?;
    let (at_once, logged) = (pages(&db)?, db.metrics().log_bytes);
    db.drop_index("t", "i")?;
    let before = db.metrics().log_bytes;
    db.engine().catalog.pause.set_bounds(5000, usize::MAX);
    db.create_index("t", "i", index(true))?;
    let in_runs = db.metrics().log_bytes - before;
    assert_eq!(pages(&db)?, at_once);
    assert!(in_runs < logged / 3 && in_runs < at_once * 2 * 4096, "{in_runs} of {logged} bytes");
    assert_eq!(rows_by_index(&table)?, rows_of(&table)?);
    // The runs are dropped, and so are those of a failed statement.
    db.drop_index("t", "i")?;
    table.insert(b"twice", b"00000")?;
    db.create_index("t", "i", index(true)).unwrap_err();
    env.run_workers(2000);
    assert_eq!(db.metrics().drops_pending, 0);
    let spaces = db.engine().pool.spaces();
    assert!(spaces.iter().all(|space| space.durability() == Durability::Logged));
    Ok(())
}

/// A table from before ambiguous definitions were refused keeps working.
#[test]
fn a_table_with_an_ambiguous_index_from_before_can_be_used() -> Result<()> {
    let disk = SimulatedDisk::new(1);
    let (db, _) = open(&disk, 1)?;
    let fields = |numbers: &[u32]| {
        let part = |number: &u32| KeyPart::Field { number: *number };
        KeySpec { parts: numbers.iter().map(part).collect() }
    };
    let table =
        db.create_table("t", TableOptions::default().index("both", IndexOptions::on_field(0).unique()))?;
    let mut record = table.inner.with_schema(|schema| schema.record.clone());
    record.indexes[0].key = fields(&[0, 1]);
    db.engine().catalog.replace_record("t", &record)?;
    drop((table, db));

    let (db, _) = open(&disk, 1)?;
    let table = db.table("t")?;
    table.insert(b"1", &row::encode(&["a", "bc"]))?;
    let twice = table.insert(b"2", &row::encode(&["ab", "c"])).unwrap_err();
    assert!(matches!(twice, Error::Schema(SchemaError::DuplicateKey { .. })), "{twice}");
    table.put(b"2", &row::encode(&["ab", "d"]))?;
    let found = |key: &[u8]| -> Result<usize> { Ok(table.index("both")?.get(key)?.count()) };
    assert_eq!((found(b"abc")?, found(b"abd")?, found(b"ab")?), (1, 1, 0));
    // Another index can be added, and the table truncated; the old index can be dropped, but not created again.
    db.create_index("t", "first", IndexOptions::on_field(0))?;
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    db.truncate_table("t")?;
    assert_eq!(found(b"abc")?, 0);
    table.insert(b"1", &row::encode(&["a", "bc"]))?;
    drop((table, db));
    let (db, _) = open(&disk, 1)?;
    assert_eq!(db.table("t")?.index("both")?.get(b"abc")?.count(), 1);
    db.drop_index("t", "both")?;
    let again = db.create_index("t", "both", IndexOptions::on_field(0).and_field(1)).unwrap_err();
    assert!(matches!(again, Error::Schema(SchemaError::AmbiguousKey { .. })), "{again}");
    db.create_index("t", "both", IndexOptions::on_field(1))
}

fn hashed(table: &Table) -> Vec<bool> {
    table.inner.with_schema(|schema| schema.trees().map(|tree| tree.hash().is_on()).collect())
}

#[test]
fn a_read_by_a_hint_looks_at_one_page() -> Result<()> {
    let (db, _) = open(&SimulatedDisk::new(1), 1)?;
    let table = db.create_table("t", TableOptions::default())?;
    for n in 0..5000u32 {
        table.insert(&n.to_be_bytes(), &[7; 100])?;
    }
    let frames = || {
        let before = work::so_far();
        (0..500u32).for_each(|n| assert!(table.get(&n.to_be_bytes()).unwrap().is_some()));
        (work::so_far() - before).of(Work::Frame)
    };
    assert!(frames() >= 1000, "a tree of one page needs no hint");
    table.set_hash_index(true);
    let with_hints = (0..40).map(|_| frames()).min();
    // Two keys may compete for one slot of the hash index.
    assert!(with_hints < Some(750), "{with_hints:?} pages for 500 reads");
    Ok(())
}

#[test]
fn the_setting_of_hash_indexes_reaches_every_tree() -> Result<()> {
    let (db, _) = open(&SimulatedDisk::new(1), 1)?;
    let table = db.create_table("t", TableOptions::default().index("a", index(false)))?;
    let other = db.create_table("other", TableOptions::default())?;
    table.set_hash_index(true);
    assert_eq!((hashed(&table), hashed(&other)), (vec![true, true], vec![false]));
    // Later trees of a table have the setting of the table.
    db.truncate_table("t")?;
    assert_eq!(hashed(&table), [true, true]);
    db.create_index("t", "b", index(true))?;
    assert_eq!(hashed(&table), [true, true, true]);
    table.set_hash_index(false);
    db.truncate_table("t")?;
    assert_eq!(hashed(&table), [false, false, false]);

    // The setting may change at any time during a statement.
    let pause = &db.engine().catalog.pause;
    let handle = db.clone();
    pause.set(move || handle.set_hash_index(true));
    let made = db.create_table("made", TableOptions::default())?;
    assert_eq!(hashed(&made), [true]);
    made.set_hash_index(false);
    db.truncate_table("made")?;
    assert_eq!((hashed(&made), hashed(&other)), (vec![true], vec![true]));
    let handle = made.clone();
    pause.set(move || handle.set_hash_index(false));
    db.truncate_table("made")?;
    assert_eq!(hashed(&made), [false]);
    made.set_hash_index(true);
    db.create_index("made", "i", index(false))?;
    assert_eq!(hashed(&made), [false, false]);
    pause.clear();
    Ok(())
}

/// After the panic memory and log disagree: no call succeeds any more, no call waits for the thread that panicked, and
/// the next opening recovers what the log contains.
#[test]
fn a_panic_during_a_statement_stops_the_database_and_no_call_waits() -> Result<()> {
    type Statement = fn(&Database) -> Result<()>;
    let statements: [(&str, Statement); 3] = [
        ("create", |db| db.create_table("new", TableOptions::default()).map(drop)),
        ("truncate", |db| db.truncate_table("t").map(drop)),
        ("create index", |db| db.create_index("t", "i", index(false))),
    ];
    for (what, statement) in statements {
        let disk = SimulatedDisk::new(1);
        let (db, _) = open(&disk, 1)?;
        let table = db.create_table("t", TableOptions::default())?;
        table.insert(b"k", b"00001")?;
        db.engine().catalog.pause.set(|| panic!("a defect"));
        std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| statement(&db))).unwrap_err();
        db.engine().catalog.pause.clear();
        for refused in [table.insert(b"l", b"00002").err(), statement(&db).err()] {
            let refused = refused.unwrap_or_else(|| panic!("{what}: the database keeps running"));
            assert!(refused.to_string().contains("a statement was left unfinished"), "{what}: {refused}");
        }
        drop((table, db));
        let (db, _) = open(&disk.restart(Survive::Everything), 1)?;
        let rows = rows_of(&db.table("t")?)?.len();
        assert_eq!(
            (rows, db.table("new").is_ok()),
            (usize::from(what != "truncate"), what == "create"),
            "{what}"
        );
        assert!(db.table("t")?.index("i").is_err(), "{what}");
        assert_eq!(db.check()?.findings, Vec::<String>::new(), "{what}");
    }
    Ok(())
}

/// Before it writes the header for a number a group may wait for room in the log. In a simulation, a lookup that waits
/// for ever is an error.
#[test]
fn a_group_hides_its_names_only_while_it_commits() -> Result<()> {
    let (db, _) = open(&SimulatedDisk::new(1), 1)?;
    db.create_table("t", TableOptions::default())?;
    let (other, announced) = (db.clone(), Arc::new(Mutex::new(Rank::Leaf, Vec::new())));
    let noted = announced.clone();
    db.engine().catalog.pause.set(move || {
        let catalog = &other.engine().catalog;
        let names = catalog.announced_names();
        if noted.lock().is_empty() {
            assert!(catalog.table("t").is_ok() && catalog.table("u").is_err(), "the old meanings");
        }
        noted.lock().push(names);
    });
    db.alter_table("t", TableChanges::default().numbers(5000).name("u"))?;
    db.engine().catalog.pause.clear();
    // The rename is announced for the change of the records alone, and not for the waits before.
    assert_eq!(*announced.lock(), [0, 2, 2]);
    assert_eq!((db.engine().catalog.announced_names(), db.table("u")?.next_number()?), (0, 5000));
    Ok(())
}

/// While a rename publishes its names, another statement may close the gate of the table.
#[test]
fn a_table_that_is_closed_has_not_ended() -> Result<()> {
    let (db, env) = open(&SimulatedDisk::new(1), 1)?;
    let table = db.create_table("t", TableOptions::default())?;
    // Leaked, so that the gate can stay closed while the function is called.
    let inner: &'static Arc<crate::catalog::Table> = Box::leak(Box::new(table.inner.clone()));
    let mut closed = None;
    db.engine().catalog.pause.set(move || {
        closed.get_or_insert_with(|| inner.gate().close());
    });
    db.rename_table("t", "u")?;
    db.engine().catalog.pause.clear();
    assert_eq!(db.engine().catalog.retired_count(), 0);
    table.insert(b"k", b"v")?;
    env.run_workers(50);
    assert_eq!(db.table("u")?.get(b"k")?.as_deref(), Some(&b"v"[..]));
    Ok(())
}

#[test]
fn only_statements_that_drop_trees_are_drops() -> Result<()> {
    type Statement = fn(&Database) -> Result<()>;
    let statements: [(&str, bool, Statement); 11] = [
        ("rename", false, |db| db.rename_table("t", "u")),
        ("swap", false, |db| db.swap_tables("u", "v")),
        ("name", false, |db| db.alter_table("v", TableChanges::default().name("t")).map(drop)),
        ("index name", false, |db| {
            db.alter_table("t", TableChanges::default().rename_index("a", "b")).map(drop)
        }),
        ("number", false, |db| db.alter_table("t", TableChanges::default().numbers(7)).map(drop)),
        ("long metadata", false, |db| {
            db.alter_table("t", TableChanges::default().metadata(vec![1; 9000])).map(drop)
        }),
        ("short metadata", true, |db| {
            db.alter_table("t", TableChanges::default().metadata(vec![1; 9])).map(drop)
        }),
        ("drop of an index", true, |db| db.drop_index("t", "b").map(drop)),
        ("truncation", true, |db| db.truncate_table("t").map(drop)),
        ("creation in a group", false, |db| {
            let mut group = db.ddl();
            group.create_table("w", TableOptions::default());
            group.commit().map(drop)
        }),
        ("drop in a group", true, |db| {
            let mut group = db.ddl();
            group.drop_table("t").rename_table("w", "t");
            group.commit().map(drop)
        }),
    ];
    let (db, _) = open(&SimulatedDisk::new(1), 1)?;
    db.create_table("t", TableOptions::default().index("a", index(false)))?;
    db.create_table("v", TableOptions::default())?;
    for (what, is_drop, statement) in statements {
        let found = Arc::new(Mutex::new(Rank::Leaf, Vec::new()));
        let noted = found.clone();
        db.engine().catalog.pause.set(move || noted.lock().push(work::is_dropping()));
        statement(&db)?;
        db.engine().catalog.pause.clear();
        assert!(found.lock().len() > 1 && !work::is_dropping(), "{what}");
        assert_eq!(found.lock().last(), Some(&is_drop), "{what}");
    }
    Ok(())
}

/// The test acts when the statement has listed its tables and not locked them yet.
#[test]
fn a_rename_within_a_prefix_evades_no_drop() -> Result<()> {
    type Statement = fn(&Database, &str) -> Result<crate::DropReport>;
    let statements =
        [Database::drop_tables_with_prefix as Statement, Database::truncate_tables_with_prefix as Statement];
    for (which, statement) in statements.into_iter().enumerate() {
        let (db, _) = open(&SimulatedDisk::new(1), 1)?;
        for name in ["p a", "p b", "p c", "p d", "p e", "q"] {
            db.create_table(name, TableOptions::default())?.insert(b"was", name.as_bytes())?;
        }
        let mut passed = 0;
        let other = db.clone();
        db.engine().catalog.pause.set(move || {
            passed += 1;
            match passed {
                1 => {
                    // One gets another name with the prefix, one loses it, one is dropped, and two swap.
                    other.rename_table("p a", "p f").unwrap();
                    other.rename_table("p b", "o").unwrap();
                    other.drop_table("p c").unwrap();
                    other.swap_tables("p d", "p e").unwrap();
                }
                2 => other.swap_tables("p f", "q").unwrap(),
                _ => {}
            }
        });
        statement(&db, "p ")?;
        db.engine().catalog.pause.clear();
        let kept = |name: &str| db.table(name)?.get(b"was");
        assert_eq!((kept("o")?.as_deref(), kept("q")?.as_deref()), (Some(&b"p b"[..]), Some(&b"p a"[..])));
        let left: Vec<_> = db.tables()?.into_iter().map(|info| info.name).collect();
        if which == 0 {
            assert_eq!(left, ["o", "q"]);
        } else {
            assert_eq!(left, ["o", "p d", "p e", "p f", "q"]);
            for name in &left[1..4] {
                assert_eq!(kept(name)?, None, "{name}");
            }
        }
        // No name is left locked.
        for name in ["p a", "p b", "p c"] {
            db.create_table(name, TableOptions::default())?;
        }
        assert_eq!(db.check()?.findings, Vec::<String>::new());
    }
    Ok(())
}

/// A check has exclusive access to the table: a call made meanwhile waits until it is done.
#[test]
fn exclusive_access_to_a_table_blocks_its_calls() {
    let (db, _env) = open(&SimulatedDisk::new(1), 1).unwrap();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        let table = &table;
        let alone = db.engine().catalog.alone("t", |_| {
            scope.spawn(move || {
                sender.send("it begins").unwrap();
                table.put(b"key", b"value").unwrap();
                sender.send("it is done").unwrap();
            });
            assert_eq!(receiver.recv(), Ok("it begins"));
            receiver.recv_timeout(Duration::from_millis(500))
        });
        assert_eq!(alone, Ok(Some(Err(mpsc::RecvTimeoutError::Timeout))), "a row is changed under a check");
        assert_eq!(receiver.recv(), Ok("it is done"));
    });
    assert_eq!(table.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
}

#[test]
fn retired_tables_are_freed_in_the_background_once_unreferenced() {
    let (db, _) = open(&SimulatedDisk::new(1), 1).unwrap();
    let catalog = &db.engine().catalog;
    let settle = || {
        while catalog.free_step() {}
        catalog.retired_count()
    };
    let options = || TableOptions::default().index("i", IndexOptions::on_value(0..8));
    let made = |name: &str| {
        let table = db.create_table(name, options()).unwrap();
        table.insert(b"k", b"a value").unwrap();
        table
    };
    drop((made("dropped"), made("truncated"), made("less an index")));
    db.drop_table("dropped").unwrap();
    db.truncate_table("truncated").unwrap();
    db.drop_index("less an index", "i").unwrap();
    assert_eq!(settle(), 0, "nothing has them");

    // Each kind of handle keeps its table or tree alive, and is not the last owner.
    let table = made("by a table");
    let index = made("by an index").index("i").unwrap();
    let cursor = made("by a cursor").cursor().unwrap();
    let stale = made("by a dropped index").index("i").unwrap();
    db.drop_tables(&["by a table", "by an index", "by a cursor"]).unwrap();
    db.truncate_table("by a dropped index").unwrap();
    assert_eq!(settle(), 4);
    drop(table);
    assert_eq!(settle(), 3);
    drop(index);
    drop(stale);
    assert_eq!(settle(), 1);
    drop(cursor);
    assert_eq!(settle(), 0);

    // Several statements on one table, without a step of the background between them.
    let two = || options().index("j", IndexOptions::on_value(0..4));
    let drop_index = |index: &str| assert_eq!(db.drop_index("t", index).unwrap().trees, 1);
    let truncate = || assert!(db.truncate_table("t").unwrap().trees > 0);
    for round in 0..3 {
        drop(db.create_table("t", two()).unwrap().insert(b"k", b"a value"));
        match round {
            0 => ["i", "j"].into_iter().for_each(drop_index),
            1 => {
                drop_index("j");
                truncate();
            }
            _ => (0..2).for_each(|_| truncate()),
        }
        db.drop_table("t").unwrap();
        assert_eq!(settle(), 0, "they keep each other");
    }

    // A temporary table is retired once, although its session ends after it was dropped.
    let session = db.session();
    let temporary = session.create_temporary_table("t", options()).unwrap();
    session.drop_temporary_table("t").unwrap();
    db.engine().catalog.drop_temporary(&temporary.inner);
    assert_eq!(settle(), 1);
    drop((temporary, session));
    assert_eq!(settle(), 0);

    // The numbers of a table refer to its tree.
    made("with numbers").next_number().unwrap();
    db.drop_table("with numbers").unwrap();
    let session = db.session();
    session.create_temporary_table("t", options()).unwrap().next_number().unwrap();
    session.drop_temporary_table("t").unwrap();
    assert_eq!(settle(), 0, "its numbers keep a table that was dropped");
}

#[test]
fn a_table_that_never_had_a_page_is_freed_by_its_drop_if_nothing_has_it() {
    let (db, _) = open(&SimulatedDisk::new(1), 1).unwrap();
    let catalog = &db.engine().catalog;
    let retired_by = |statement: &dyn Fn()| {
        let before = catalog.retired_count();
        statement();
        catalog.retired_count() - before
    };
    let drop_table = || _ = db.drop_table("t").unwrap();
    let truncate = || _ = db.truncate_table("t").unwrap();
    let create = || db.create_table("t", TableOptions::default()).unwrap();
    drop(create());
    assert_eq!((retired_by(&truncate), retired_by(&drop_table)), (0, 0), "nothing has it");
    let table = create();
    assert_eq!(retired_by(&drop_table), 1, "a handle has the table");
    drop(table);
    let cursor = create().cursor().unwrap();
    assert_eq!(
        (retired_by(&truncate), retired_by(&drop_table)),
        (1, 1),
        "a cursor has the old tree and the table"
    );
    drop(cursor);
    create().insert(b"k", b"v").unwrap();
    assert_eq!((retired_by(&truncate), retired_by(&drop_table)), (1, 0), "the old tree has a page");
    let indexed = TableOptions::default().index("i", IndexOptions::on_value(0..8));
    drop(db.create_table("t", indexed).unwrap());
    assert_eq!(retired_by(&drop_table), 1, "it has several trees");
    while catalog.free_step() {}
    assert_eq!(catalog.retired_count(), 0);
}
