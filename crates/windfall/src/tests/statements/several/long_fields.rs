//! Indexes that are built of chosen fields of any length, wherever they are in a value.

use core::cell::Cell;

use super::{
    super::{
        concurrent::{PATIENT, at_places, begin},
        open, row, rows_of,
    },
    two_steps::row_log_of,
};
use crate::{
    Database, FieldChange, IndexOptions, IndexRef, InterruptHandle, MadeEntry, Options, Result,
    SuppliedChange, Table, TableChanges, TableOptions, Transaction, TransactionOptions,
    env::Env as _,
    error::{Error, LockError, SchemaError, TransactionError, UsageError},
    row::{self as fields, FieldSet},
    sync::{
        Arc, Mutex, Rank,
        work::{self, Work},
    },
};
use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

/// The field of which one of the indexes is made. A longer one is before it.
const DOCUMENT: usize = 2;
/// The bytes of a value of which another one is made.
const CUT: u32 = 90_000;
/// The number of bytes of a value that an index gets without a choice of fields.
const FIRST: usize = 64 << 10;

/// Adds an index of a field, one of more bytes than usual, and two others.
fn added() -> TableChanges {
    let supplied = || IndexOptions::supplied(16);
    TableChanges::default()
        .add_index("document", supplied().reading(FieldSet::NONE.with(DOCUMENT)))
        .add_index("start", supplied().reading(FieldSet::ALL.cut_at(CUT)))
        .add_index("first", supplied())
        .add_index("title", IndexOptions::on_value(0..9))
}

/// Returns a key of 16 bytes that tells the length of some bytes, the first of them and the last.
fn stamp(bytes: &[u8]) -> Vec<u8> {
    let mut key = format!("{:08}", bytes.len()).into_bytes();
    key.extend(bytes.iter().chain(b"____").take(4));
    key.extend(bytes.iter().rev().chain(b"____").take(4));
    key
}

/// Returns the key of a row in an index, unless the row is not in it.
fn key_in(index: &str, value: &[u8]) -> Option<Vec<u8>> {
    match index {
        "document" => fields::field(value, DOCUMENT).filter(|field| !field.is_empty()).map(stamp),
        "start" => Some(stamp(&value[..value.len().min(CUT as usize)])),
        _ => Some(stamp(&value[..value.len().min(FIRST)])),
    }
}

#[expect(clippy::unnecessary_wraps, reason = "the type of such functions")]
fn make(index: &str, _: &[u8], value: &[u8], entry: &mut MadeEntry) -> Result<bool> {
    let key = key_in(index, value);
    let is_in_index = key.is_some();
    entry.key.extend(key.unwrap_or_default());
    entry.payload.clone_from(&entry.key);
    Ok(is_in_index)
}

/// Compares the indexes with the rows.
fn check(db: &Database, table: &Table, what: &str) -> Result<()> {
    let rows = rows_of(table)?;
    for name in ["document", "start", "first"] {
        let made = rows.iter().filter_map(|(row, value)| Some((key_in(name, value)?, row.clone())));
        let mut made: Vec<_> = made.collect();
        made.sort_unstable();
        let index = table.index(name)?;
        let mut entries = index.range::<&[u8]>(..)?;
        let mut found = Vec::new();
        while let Some(entry) = entries.next_ref()? {
            found.push((entry.payload.to_vec(), entry.key.to_vec()));
        }
        assert!(found == made, "{what}: index {name} has {} entries of {} rows", found.len(), made.len());
    }
    assert_eq!(table.index("title")?.range::<&[u8]>(..)?.count(), rows.len(), "{what}");
    assert_eq!(db.check()?.findings, Vec::<String>::new(), "{what}");
    Ok(())
}

/// Transactions in random order.
struct Writers {
    db: Database,
    chance: SimulatedEnv,
    open: Vec<Transaction>,
    prepared: Vec<Vec<u8>>,
    steps: u64,
    /// The number of steps in which transactions may begin.
    begins: u64,
}

impl Writers {
    fn below(&self, end: u64) -> u64 {
        self.chance.random() % end
    }

    /// Returns a field: most are in the entry, others have pages of their own.
    fn field(&self, lengths: [usize; 4]) -> Vec<u8> {
        let length = lengths[self.below(4) as usize] + self.below(20) as usize;
        let mut field = vec![b'a' + self.below(26) as u8; length];
        field.iter_mut().rev().take(1).for_each(|last| *last = b'A' + self.below(26) as u8);
        field
    }

    fn fields(&self) -> [Vec<u8>; 4] {
        [
            self.field([0, 10, 3_000, 70_000]),
            self.field([0, 1, 5, 9]),
            if self.below(9) == 0 { Vec::new() } else { self.field([1, 200, 6_000, 30_000]) },
            self.field([0, 10, 20, 2_500]),
        ]
    }

    fn step(&mut self) -> Result<()> {
        self.steps += 1;
        let table = self.db.table("t")?;
        if self.open.len() + self.prepared.len() < 3 && self.steps < self.begins {
            self.open.push(begin(&self.db));
        }
        if !self.prepared.is_empty() && self.below(4) == 0 {
            let name = self.prepared.swap_remove(0);
            if self.below(2) == 0 {
                self.db.commit_prepared(&name)?;
            } else {
                self.db.rollback_prepared(&name)?;
            }
        }
        if self.open.is_empty() {
            return Ok(());
        }
        let at = self.below(self.open.len() as u64) as usize;
        let (key, new) = (row(self.below(12)), self.fields());
        let new: Vec<&[u8]> = new.iter().map(|field| &**field).collect();
        let trx = &self.open[at];
        let within = trx.table(&table);
        let change = |n: usize| if self.below(2) == 0 { FieldChange::Keep } else { FieldChange::Set(new[n]) };
        let done = match self.below(if self.steps < self.begins { 20 } else { 36 }) {
            0..=2 => within.put_fields(&key, &new),
            3..=8 => within.update_fields(&key, &[0, 1, 2, 3].map(change), &[]),
            9 => within.put(&key, &fields::encode(&new)),
            10 => {
                let value = fields::encode(&new);
                within.put_stream(&key, value.len() as u64, &mut &value[..])
            }
            11..=12 => within.delete(&key).map(drop),
            13 => trx.savepoint("s"),
            14 => trx.rollback_to("s"),
            15 => trx.atomically(|| {
                within.put_fields(&key, &new)?;
                Err(UsageError::Other("it fails".into()).into())
            }),
            16 => table.put_fields(&key, &new),
            17 => {
                let name = self.steps.to_be_bytes().to_vec();
                let trx = self.open.swap_remove(at);
                trx.prepare(&name)?;
                self.prepared.push(name);
                Ok(())
            }
            ends => {
                let trx = self.open.swap_remove(at);
                match ends % 3 {
                    0 => trx.commit().map(drop),
                    1 => trx.rollback(),
                    _ => {
                        drop(trx);
                        Ok(())
                    }
                }
            }
        };
        match done {
            Ok(())
            | Err(
                Error::Lock(LockError::Busy(_))
                | Error::Transaction(TransactionError::NoSavepoint(_))
                | Error::Schema(SchemaError::NoRow(_))
                | Error::Usage(UsageError::Other(_) | UsageError::NoSuchField { .. }),
            ) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Alters the table while transactions run: in one step or in two. Returns what became of the statement, if it could be
/// run.
fn alter_with_transactions(disk: &SimulatedDisk, seed: u64, crashes: bool) -> Result<Result<()>> {
    let (db, env) = open(disk, seed)?;
    let table = db.create_table("t", TableOptions::default())?;
    db.set_lock_wait_timeout(core::time::Duration::ZERO);
    let mut writers = Writers {
        db: db.clone(),
        chance: SimulatedEnv::new(seed ^ 0xf1e1d),
        open: Vec::new(),
        prepared: Vec::new(),
        steps: 0,
        begins: if crashes { 25 } else { 120 },
    };
    for n in 0..12 {
        let new = writers.fields();
        if n % 3 == 0 {
            table.put(&row(n), &fields::encode(&new))
        } else {
            table.put_fields(&row(n), &new.each_ref().map(|field| &**field))
        }?;
    }
    for _ in 0..5 {
        writers.step()?;
    }
    let pause = &db.engine().catalog.pause;
    let (all, some) = (usize::MAX, 100_000);
    let (entries, notes) = [(all, all), (700, all), (all, some), (700, some)][seed as usize % 4];
    pause.set_bounds(entries, notes);
    pause.set_runs(200_000, 1000);
    let shared = Arc::new(Mutex::new(Rank::Session, Some(writers)));
    let (acting, mut failed) = (shared.clone(), false);
    // After a crash nothing works, and the statement must find that out itself.
    at_places(&db, move |_| {
        if let Some(mut writers) = Some(()).filter(|()| !failed).and_then(|()| acting.lock().take()) {
            let done = writers.step();
            assert!(crashes || done.is_ok(), "seed {seed}: {done:?}");
            failed = done.is_err();
            *acting.lock() = Some(writers);
        }
    });
    let patient = db.with_ddl_timeout(PATIENT);
    let built = (|| -> Result<()> {
        if seed.is_multiple_of(3) {
            return patient.alter_table_with("t", added(), make).map(drop);
        }
        let mut built = patient.build_indexes_with("t", added(), make)?;
        for _ in 0..seed % 3 {
            (0..10).for_each(|_| pause.act());
            built.catch_up_with(make)?;
        }
        (0..10).for_each(|_| pause.act());
        built.finish_with(TableChanges::default(), make).map(drop)
    })();
    pause.clear();
    let writers = shared.lock().take();
    let mut writers = writers.expect("no step is in progress");
    writers.open.clear();
    for name in writers.prepared.drain(..) {
        db.rollback_prepared(&name)?;
    }
    if !crashes {
        env.run_workers(500);
        check(&db, &table, &format!("seed {seed}"))?;
    }
    Ok(built)
}

#[test]
fn an_index_is_built_of_long_fields_while_transactions_run() {
    for seed in 1..40 {
        let built = alter_with_transactions(&SimulatedDisk::new(seed), seed, false);
        built.unwrap().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

#[test]
fn a_crash_while_an_index_is_built_of_long_fields_leaves_all_or_nothing() {
    let (mut whole, mut absent) = (0, 0);
    for seed in [1, 2, 3] {
        let disk = SimulatedDisk::new(seed);
        alter_with_transactions(&disk, seed, true).unwrap().unwrap();
        let total = disk.operations();
        for operation in (1..=total).step_by(5) {
            let disk = SimulatedDisk::new(seed);
            disk.crash_at(operation);
            let built = alter_with_transactions(&disk, seed, true);
            let survive =
                [Survive::Nothing, Survive::Everything, Survive::Random(operation)][operation as usize % 3];
            let what = format!("seed {seed}, crash at operation {operation} of {total}, {survive:?}");
            let Ok((db, env)) = open(&disk.restart(survive), seed) else {
                assert!(built.is_err(), "{what}: it does not open");
                continue;
            };
            env.run_workers(500);
            for prepared in db.prepared() {
                db.rollback_prepared(&prepared.xid).unwrap();
            }
            env.run_workers(500);
            let Ok(table) = db.table("t") else { continue };
            if table.index("document").is_ok() {
                check(&db, &table, &what).unwrap();
                whole += 1;
            } else {
                assert!(!matches!(built, Ok(Ok(()))), "{what}: the indexes are absent");
                assert_eq!(db.check().unwrap().findings, Vec::<String>::new(), "{what}");
                absent += 1;
            }
        }
    }
    assert!(whole > 0 && absent > 10, "{whole} times there, {absent} times absent");
}

/// Nor is it noted, by a change or by its rollback, whichever other fields change.
#[test]
fn a_chosen_field_that_is_kept_is_not_read() -> Result<()> {
    const KEEP: FieldChange<'_> = FieldChange::Keep;
    let (db, _) = open(&SimulatedDisk::new(1), 1)?;
    let table = db.create_table("t", TableOptions::default())?;
    let long = vec![b'l'; 600_000];
    table.insert_fields(b"row", &[b"text", b"title", &long], &[])?;
    let options = IndexOptions::supplied(16).reading(FieldSet::NONE.with(DOCUMENT));
    let build = || TableChanges::default().add_index("document", options.clone());
    let mut built = db.build_indexes_with("t", build(), make)?;
    let log = row_log_of(&table).expect("a log");
    let frames = |change: &[FieldChange<'_>]| -> Result<u64> {
        let before = work::so_far();
        table.update_fields(b"row", change, &[])?;
        let trx = db.begin(TransactionOptions::default());
        trx.table(&table).update_fields(b"row", &[change[0], FieldChange::Set(b"x"), KEEP], &[])?;
        trx.rollback()?;
        Ok((work::so_far() - before).of(Work::Frame))
    };
    let text = vec![b't'; 20_000];
    for change in [FieldChange::Set(b"short"), FieldChange::Set(&text), KEEP] {
        let frames = frames(&[change, FieldChange::Set(b"other"), KEEP])?;
        // Neither is any other field. The document has 150 pages for each of six values.
        assert!(frames < 100, "{frames} frames");
        assert_eq!(log.noted(), 0);
    }
    // The document is the same, in another chain.
    table.update_fields(b"row", &[KEEP, KEEP, FieldChange::Set(&long)], &[])?;
    assert_eq!(log.noted(), 0);
    // Here it changes, and is noted before and after. A deletion notes what it was.
    table.update_fields(b"row", &[KEEP, KEEP, FieldChange::Set(&long[1..])], &[])?;
    assert_eq!(log.noted(), 2);
    table.update_fields(b"row", &[KEEP, KEEP, FieldChange::Set(b"short")], &[])?;
    assert_eq!(log.noted(), 3);
    table.delete(b"row")?;
    assert_eq!(log.noted(), 3);
    built.catch_up_with(make)?;
    assert_eq!(log.noted(), 0);
    table.insert_fields(b"row", &[b"text", b"title", &long], &[])?;
    built.finish_with(TableChanges::default(), make)?;
    let index = table.index("document")?;
    let mut entries = index.range::<&[u8]>(..)?;
    assert_eq!(entries.next_ref()?.map(|entry| entry.payload.to_vec()), Some(stamp(&long)));
    assert!(entries.next_ref()?.is_none());
    Ok(())
}

/// The function gets the chosen fields whole, and others with pages of their own empty, in a table and in a temporary
/// one. Of a row that was not written field by field it gets all.
#[test]
fn a_function_gets_the_chosen_fields_as_a_reader_of_them() -> Result<()> {
    let (db, _) = open(&SimulatedDisk::new(1), 1)?;
    let (long, document) = (vec![b'l'; 90_000], vec![b'd'; 120_000]);
    let whole = fields::encode(&[&long[..], b"title", &document]);
    let fill = |table: &Table| -> Result<()> {
        table.insert_fields(b"fields", &[&long, b"title", &document], &[])?;
        table.insert(b"short", b"a short value")?;
        table.insert(b"whole", &whole)
    };
    let sets = [
        FieldSet::NONE.with(DOCUMENT),
        FieldSet::NONE.with(DOCUMENT).cut_at(100_000),
        FieldSet::NONE,
        FieldSet::ALL,
        FieldSet::ALL.cut_at(10),
    ];
    let changes = |set| TableChanges::default().add_index("x", IndexOptions::supplied(16).reading(set));
    for set in sets {
        let calls = Cell::new(0);
        let check = |table: &Table, key: &[u8], value: &[u8], entry: &mut MadeEntry| {
            let expected = table.select_fields(set).get(key)?;
            assert!(expected.as_deref() == Some(value), "{key:?}, {set:?}: {} bytes", value.len());
            calls.set(calls.get() + 1);
            entry.key = stamp(value);
            Ok(true)
        };
        let table = db.create_table("t", TableOptions::default())?;
        fill(&table)?;
        db.alter_table_with("t", changes(set), |_, key, value, entry| check(&table, key, value, entry))?;
        assert_eq!((calls.get(), table.index("x")?.range::<&[u8]>(..)?.count()), (3, 3));
        let reference = db.create_table("reference", TableOptions::default())?;
        fill(&reference)?;
        let mut temporary = db.create_temporary_table("temporary", TableOptions::default())?;
        fill(&temporary)?;
        temporary.alter_with(changes(set), |_, key, value, entry| check(&reference, key, value, entry))?;
        assert_eq!((calls.get(), temporary.index("x")?.range::<&[u8]>(..)?.count()), (6, 3));
        db.drop_table("t")?;
        db.drop_table("reference")?;
    }
    // A table without rows has nothing to read.
    let options = TableOptions::default().index("x", IndexOptions::supplied(16).reading(FieldSet::ALL));
    let table = db.create_table("empty", options)?;
    let entry = SuppliedChange { index: IndexRef::Name("x"), old: None, new: None };
    table.insert_with(b"row", b"value", &[entry])?;
    for options in
        [IndexOptions::on_value(0..5), IndexOptions::on_field(0), IndexOptions::extracted("digits")]
    {
        let error = db.create_index("empty", "y", options.reading(FieldSet::ALL)).unwrap_err();
        assert!(
            matches!(error, Error::Usage(UsageError::Option { name: "IndexOptions::reading", .. })),
            "{error}"
        );
    }
    Ok(())
}

/// The notes of long fields count by their length.
#[test]
fn values_of_several_mib_are_noted_up_to_the_limit() -> Result<()> {
    const MIB: usize = 1 << 20;
    // A note has the encoded row with the field, the key with its length, and what each note takes.
    let one = fields::encode(&[&b""[..], b"", &vec![0; 3 * MIB]]).len() + 5 + 2 + 64;
    for (run, fits) in [(one, true), (one - 1, false)] {
        let options = Options::default()
            .page_size(16 << 10)
            .buffer_pool_size(16 << 20)
            .log_size(64 << 20)
            .log_buffer_size(1 << 20);
        let (disk, env) = (SimulatedDisk::new(1), Arc::new(SimulatedEnv::new(1)));
        let db = Database::open_on(Arc::new(disk), env, &options, &|_| {})?;
        let table = db.create_table("t", TableOptions::default())?;
        let (text, mut document) = (vec![b't'; MIB], vec![b'd'; 3 * MIB]);
        let mut insert = |n: u64| {
            document[3 * MIB - 1] = b'0' + n as u8;
            table.insert_fields(format!("row {n}").as_bytes(), &[&text, b"", &document], &[])
        };
        insert(0)?;
        // Room for three notes, or for a little less.
        db.engine().catalog.pause.set_runs(run, 3);
        let options = IndexOptions::supplied(16).reading(FieldSet::NONE.with(DOCUMENT));
        let changes = || TableChanges::default().add_index("document", options.clone());
        let mut built = db.build_indexes_with("t", changes(), make)?;
        for n in 1..3 {
            insert(n)?;
            assert_eq!(built.noted(), n);
        }
        if fits {
            insert(3)?;
            assert_eq!(built.noted(), 3);
            built.catch_up_with(make)?;
            assert_eq!(built.noted(), 0);
            (4..7).try_for_each(&mut insert)?;
            built.finish_with(TableChanges::default(), make)?;
            let index = table.index("document")?;
            let mut entries = index.range::<&[u8]>(..)?;
            for n in 0..7u8 {
                let payload = entries.next_ref()?.map(|entry| entry.payload.to_vec());
                assert!(payload.is_some_and(|payload| payload[12] == b'0' + n), "row {n}");
            }
        } else {
            insert(3)?;
            let error = built.catch_up_with(make).unwrap_err();
            assert!(matches!(error, Error::Usage(UsageError::TooManyNotes { .. })), "{error}");
            drop(built);
            insert(4)?;
            db.alter_table_with("t", changes(), make)?;
            assert_eq!(table.index("document")?.range::<&[u8]>(..)?.count(), 5);
        }
        assert_eq!(db.check()?.findings, Vec::<String>::new());
    }
    Ok(())
}

/// What a change or a rollback would note is not read if it is beyond the limit: the alteration fails, and they do not.
#[test]
fn values_beyond_the_limit_of_notes_are_not_read() -> Result<()> {
    const KEEP: FieldChange<'_> = FieldChange::Keep;
    let (db, env) = open(&SimulatedDisk::new(1), 1)?;
    let table = db.create_table("t", TableOptions::default())?;
    let long = vec![b'l'; 600_000];
    let options = IndexOptions::supplied(16).reading(FieldSet::NONE.with(DOCUMENT));
    db.engine().catalog.pause.set_runs(100_000, 1);
    for step in 0..3 {
        table.put_fields(b"row", &[b"text", b"title", &long])?;
        let trx = db.begin(TransactionOptions::default());
        if step == 2 {
            trx.table(&table).update_fields(b"row", &[KEEP, KEEP, FieldChange::Set(&long[1..])], &[])?;
        }
        let changes = TableChanges::default().add_index("document", options.clone());
        let mut built = db.build_indexes_with("t", changes, make)?;
        let log = row_log_of(&table).expect("a log");
        let before = work::so_far();
        match step {
            0 => table.update_fields(b"row", &[KEEP, KEEP, FieldChange::Set(b"short")], &[])?,
            1 => drop(table.delete(b"row")?),
            _ => trx.rollback()?,
        }
        let frames = (work::so_far() - before).of(Work::Frame);
        assert!(frames < 100, "{frames} frames in step {step}");
        assert_eq!((log.has_ended(), log.noted()), (true, 0), "step {step}");
        let error = built.catch_up_with(make).unwrap_err();
        assert!(matches!(error, Error::Usage(UsageError::TooManyNotes { .. })), "{error}");
        env.run_workers(100);
        let document = table.select_fields(FieldSet::NONE.with(DOCUMENT)).get(b"row")?;
        let document = document.as_deref().and_then(|value| fields::field(value, DOCUMENT));
        assert!(document == [Some(&b"short"[..]), None, Some(&long)][step], "step {step}");
    }
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}

/// A change that is interrupted while it reads what it is to note has changed nothing.
#[test]
fn an_interrupt_ends_a_change_that_reads_what_it_notes() -> Result<()> {
    const KEEP: FieldChange<'_> = FieldChange::Keep;
    let (db, env) = open(&SimulatedDisk::new(1), 1)?;
    let table = db.create_table("t", TableOptions::default())?;
    let (long, other) = (vec![b'l'; 200_000], vec![b'o'; 150_000]);
    table.insert_fields(b"row", &[b"text", b"title", &long], &[])?;
    let options = IndexOptions::supplied(16).reading(FieldSet::NONE.with(DOCUMENT));
    let changes = TableChanges::default().add_index("document", options);
    let mut built = db.build_indexes_with("t", changes, make)?;
    let log = row_log_of(&table).expect("a log");
    let handle = InterruptHandle::new();
    let session = db.with_interrupt(&handle);
    let own = session.table("t")?;
    let set = [KEEP, KEEP, FieldChange::Set(&other)];
    let trx = session.begin(TransactionOptions::default());
    let is_interrupted = |done: Result<()>| matches!(done, Err(Error::Lock(LockError::Interrupted)));
    handle.interrupt();
    assert!(is_interrupted(trx.table(&own).update_fields(b"row", &set, &[])));
    // Nothing is read for these. A rollback reads, and is not interrupted.
    trx.table(&own).update_fields(b"row", &[FieldChange::Set(b"new"), KEEP, KEEP], &[])?;
    assert_eq!((log.noted(), log.has_ended()), (0, false));
    handle.clear();
    trx.table(&own).update_fields(b"row", &set, &[])?;
    handle.interrupt();
    trx.rollback()?;
    handle.clear();
    let whole = fields::encode(&[&b"text"[..], b"title", &long]);
    assert!(table.get(b"row")? == Some(whole));
    env.run_workers(500);
    built.finish_with(TableChanges::default(), make)?;
    let index = table.index("document")?;
    let mut entries = index.range::<&[u8]>(..)?;
    assert_eq!(entries.next_ref()?.map(|entry| entry.payload.to_vec()), Some(stamp(&long)));
    assert!(entries.next_ref()?.is_none());
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}

/// So the turn in the table's queue does not last longer because notes are long.
#[test]
fn long_notes_are_applied_few_at_a_time_during_a_wait() -> Result<()> {
    const LONG: usize = 300_000;
    let (db, _) = open(&SimulatedDisk::new(1), 1)?;
    let table = db.create_table("t", TableOptions::default())?;
    let options = IndexOptions::supplied(16).reading(FieldSet::NONE.with(DOCUMENT));
    let changes = TableChanges::default().add_index("document", options);
    let mut built = db.build_indexes_with("t", changes, make)?;
    let trx = db.begin(TransactionOptions::default());
    trx.table(&table).insert_fields(b"first", &[b"", b"", b"document"], &[])?;
    let (acting, mut trx, mut passed) = (table.clone(), Some(trx), 0);
    let noted = Arc::new(Mutex::new(Rank::Session, Vec::new()));
    let seen = noted.clone();
    let pause = &db.engine().catalog.pause;
    // The wait has begun by then.
    pause.set(move || {
        passed += 1;
        if passed == 30 {
            let insert = |n| acting.insert_fields(&row(n), &[b"", b"", &vec![b'a' + n as u8; LONG]], &[]);
            (0..8).try_for_each(insert).unwrap();
        }
        if (30..34).contains(&passed) {
            seen.lock().push(row_log_of(&acting).map_or(0, |log| log.noted()));
        } else if let Some(trx) = trx.take_if(|_| passed == 40) {
            trx.commit().unwrap();
        }
    });
    built.finish_with(TableChanges::default(), make)?;
    pause.clear();
    assert_eq!(*noted.lock(), [8, 4, 0, 0]);
    assert_eq!(table.index("document")?.range::<&[u8]>(..)?.count(), 9);
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}
