//! Transactions concurrent with an index build, on one thread: they act at the points within the statement where a test
//! can act.

mod bounds;

use core::time::Duration;

use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

use super::{check_index, create_index, is_left_out, make, open, row, rows_of};
use crate::{
    Access, Database, IndexOptions, Isolation, MadeEntry, Result, Table, Transaction, TransactionOptions,
    env::Env as _,
    error::{Error, LockError, SchemaError, TransactionError, UsageError},
    sync::{Arc, Mutex, Rank},
};

/// The timeout of a statement, long enough for all transactions that it waits for to end.
pub(super) const PATIENT: Duration = Duration::from_secs(100_000);

pub(super) fn begin(db: &Database) -> Transaction {
    db.begin(TransactionOptions::default().isolation(Isolation::ReadCommitted))
}

/// Returns a value that begins with the index key; long values are in overflow pages.
fn value(index_key: u64, long: bool) -> Vec<u8> {
    let mut value = format!("{index_key:05}").into_bytes();
    value.resize(if long { 6000 } else { 20 }, b'.');
    value
}

/// Creates a table; each `long`th row is a long one.
fn filled(db: &Database, rows: u64, long: u64) -> Result<Table> {
    let table = db.create_table("t", crate::TableOptions::default())?;
    for n in 0..rows {
        table.insert(&row(n), &value(n, n % long == long - 1))?;
    }
    Ok(table)
}

fn check(db: &Database, env: &SimulatedEnv, table: &Table, supplied: bool, what: &str) {
    env.run_workers(500);
    check_index(table, supplied, what);
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new(), "{what}");
}

/// Calls `act` at each point of an index build before its commit, during which calls on the table would wait. It gets
/// the number of the point from 1.
pub(super) fn at_places(db: &Database, mut act: impl FnMut(usize) + Send + 'static) {
    let (table, mut place, mut commits) = (db.table("t").unwrap(), 0, false);
    db.engine().catalog.pause.set(move || {
        commits = commits || table.inner.gate().is_closed();
        if !commits {
            place += 1;
            act(place);
        }
    });
}

/// For each kind of end, one transaction that has changed the table before the statement, and one that changes it
/// during the statement. They end during the statement, or when it waits only for them. The changed rows are spread
/// over the whole table: the statement has passed some of them.
#[test]
fn transactions_of_every_kind_go_on_while_an_index_is_built() {
    type End = fn(&Database, Transaction);
    let ends: [(&str, End); 8] = [
        ("commit", |_, trx| trx.commit().map(drop).unwrap()),
        ("rollback", |_, trx| trx.rollback().unwrap()),
        ("a handle that is dropped", |_, trx| drop(trx)),
        ("to a savepoint", |_, trx| {
            trx.rollback_to("half").unwrap();
            trx.commit().unwrap();
        }),
        ("to a savepoint, and all of it", |_, trx| {
            trx.rollback_to("half").unwrap();
            trx.rollback().unwrap();
        }),
        ("a statement that fails", |db, trx| {
            let within = trx.table(&db.table("t").unwrap());
            let failed = trx.atomically(|| {
                for n in 0..60 {
                    within.put(&row(n), &value(600 + n, n % 5 == 0))?;
                }
                Err::<(), _>(Error::Usage(UsageError::Other("it fails".into())))
            });
            assert!(failed.is_err());
            trx.commit().unwrap();
        }),
        ("prepared and committed", |db, trx| {
            trx.prepare(b"x").unwrap();
            drop(trx);
            db.commit_prepared(b"x").unwrap();
        }),
        ("prepared and rolled back", |db, trx| {
            trx.prepare(b"x").unwrap();
            drop(trx);
            db.rollback_prepared(b"x").unwrap();
        }),
    ];
    for (kind, end) in ends {
        for (begins, ends_at) in [(0, 30), (0, 70), (15, 30), (15, 75)] {
            let all = (usize::MAX, usize::MAX);
            for (bounds, supplied) in [(all, false), (all, true), ((700, 900), false), ((700, 900), true)] {
                let what = format!("{kind}, from {begins} to {ends_at}, {bounds:?}, supplied: {supplied}");
                let (db, env) = open(&SimulatedDisk::new(1), 1).unwrap();
                let table = filled(&db, 60, 7).unwrap();
                db.engine().catalog.pause.set_bounds(bounds.0, bounds.1);
                let change = |db: &Database| {
                    let trx = begin(db);
                    let within = trx.table(&db.table("t").unwrap());
                    for n in (0..60).step_by(3) {
                        within.update(&row(n), &value(200 + n, n % 2 == 0)).unwrap();
                    }
                    trx.savepoint("half").unwrap();
                    for n in (0..60).step_by(4) {
                        within.put(&row(n), &value(400 + n, n % 8 == 0)).unwrap();
                        within.delete(&row(n + 1)).unwrap();
                        within.insert(&row(100 + n), &value(500 + n, n % 3 == 0)).unwrap();
                    }
                    trx
                };
                let mut open = (begins == 0).then(|| change(&db));
                let handle = db.clone();
                at_places(&db, move |place| {
                    if place == begins {
                        open = Some(change(&handle));
                    }
                    if place >= ends_at
                        && let Some(trx) = open.take()
                    {
                        end(&handle, trx);
                    }
                });
                let built = create_index(&db.with_ddl_timeout(PATIENT), true, supplied);
                built.unwrap_or_else(|error| panic!("{what}: {error}"));
                db.engine().catalog.pause.clear();
                check(&db, &env, &table, supplied, &what);
            }
        }
    }
}

/// Two rows with one key are refused if both are committed, and not before.
#[test]
fn only_committed_duplicates_fail_an_index_build() {
    type Act = fn(&Database, &Transaction);
    let takes: Act = |db, trx| trx.table(&db.table("t").unwrap()).update(&row(50), &value(3, false)).unwrap();
    let leaves: Act = |db, trx| {
        let table = db.table("t").unwrap();
        trx.table(&table).delete(&row(3)).unwrap();
        table.update(&row(50), &value(3, false)).unwrap();
    };
    let unfit: Act =
        |db, trx| trx.table(&db.table("t").unwrap()).update(&row(50), &[b'x'; 3000][..]).unwrap();
    let cases = [
        ("takes a key and commits", takes, true, true),
        ("takes a key and goes back", takes, false, false),
        ("leaves a key and commits", leaves, true, false),
        ("leaves a key and goes back", leaves, false, true),
        ("is too long and commits", unfit, true, true),
        ("is too long and goes back", unfit, false, false),
    ];
    for (what, act, commits, is_refused) in cases {
        for (acts_at, supplied) in [0, 20, 60].into_iter().flat_map(|at| [(at, false), (at, true)]) {
            let (db, env) = open(&SimulatedDisk::new(1), 1).unwrap();
            let table = filled(&db, 55, 1000).unwrap();
            let trx = begin(&db);
            if acts_at == 0 {
                act(&db, &trx);
            } else {
                // The transaction uses the table before the statement waits for it.
                trx.table(&table).put(b"other", &value(900, false)).unwrap();
            }
            let (handle, mut trx) = (db.clone(), Some(trx));
            at_places(&db, move |place| {
                if place == acts_at
                    && let Some(trx) = &trx
                {
                    act(&handle, trx);
                }
                if place >= 80
                    && let Some(trx) = trx.take()
                {
                    if commits { trx.commit().map(drop) } else { trx.rollback() }.unwrap();
                }
            });
            let patient = db.with_ddl_timeout(PATIENT);
            let built = if !what.starts_with("is too long") {
                create_index(&patient, true, supplied)
            } else if supplied {
                let longer = |key: &[u8], value: &[u8], entry: &mut MadeEntry| {
                    let is_in = make(key, value, entry)?;
                    if !value.ends_with(b".") {
                        entry.key.extend_from_slice(value);
                    }
                    Ok(is_in)
                };
                patient.create_index_with("t", "i", IndexOptions::supplied(5), longer)
            } else {
                patient.create_index("t", "i", IndexOptions::on_value(0..3000))
            };
            db.engine().catalog.pause.clear();
            match built {
                Ok(()) => {
                    assert!(!is_refused, "{what}, at {acts_at}");
                    check(&db, &env, &table, supplied, what);
                }
                Err(
                    Error::Schema(SchemaError::DuplicateKey { .. })
                    | Error::Usage(UsageError::KeyTooLong { .. }),
                ) => {
                    assert!(is_refused, "{what}, at {acts_at}");
                    assert!(table.index("i").is_err(), "{what}, at {acts_at}");
                }
                Err(error) => panic!("{what}, at {acts_at}: {error}"),
            }
        }
    }
}

/// Transactions in random order. Only they commit changes, so it is known whether two rows have ever had one key.
struct Crowd {
    db: Database,
    chance: SimulatedEnv,
    open: Vec<Transaction>,
    prepared: Vec<Vec<u8>>,
    steps: u64,
    unique: bool,
    /// Whether two committed rows have ever had one index key.
    had_duplicates: bool,
}

/// Steps in which transactions may begin.
const STEPS: u64 = 250;

impl Crowd {
    fn below(&self, end: u64) -> u64 {
        self.chance.random() % end
    }

    fn step(&mut self) -> Result<()> {
        self.steps += 1;
        let table = self.db.table("t")?;
        if self.open.len() + self.prepared.len() < 4 && self.steps < STEPS {
            self.open.push(begin(&self.db));
        }
        if !self.prepared.is_empty() && self.below(4) == 0 {
            let name = self.prepared.swap_remove(0);
            let commits = self.below(2) == 0;
            if commits {
                self.db.commit_prepared(&name).map(drop)
            } else {
                self.db.rollback_prepared(&name)
            }?;
        }
        if self.open.is_empty() {
            return self.look(&table);
        }
        let at = self.below(self.open.len() as u64) as usize;
        let key = row(self.below(60));
        let space = if self.unique { 2000 } else { 50 };
        let value = value(self.below(space), self.below(9) == 0);
        let trx = &self.open[at];
        let within = trx.table(&table);
        let wide = if self.steps < STEPS { 16 } else { 30 };
        let done = match self.below(wide) {
            0..=5 => within.put(&key, &value),
            6..=8 => within.delete(&key).map(drop),
            9 => trx.savepoint("s"),
            10 => trx.rollback_to("s"),
            11 => trx.atomically(|| {
                within.put(&key, &value)?;
                within.delete(&row(7))?;
                Err(UsageError::Other("it fails".into()).into())
            }),
            12 => table.put(&key, &value),
            13 => {
                let name = self.steps.to_be_bytes().to_vec();
                let trx = self.open.swap_remove(at);
                trx.prepare(&name)?;
                self.prepared.push(name);
                Ok(())
            }
            ends => {
                let trx = self.open.swap_remove(at);
                match ends % 4 {
                    0 | 1 => trx.commit().map(drop),
                    2 => trx.rollback(),
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
                | Error::Usage(UsageError::Other(_)),
            ) => {}
            Err(error) => return Err(error),
        }
        self.look(&table)
    }

    fn look(&mut self, table: &Table) -> Result<()> {
        let rows = rows_of(table)?;
        let mut keys: Vec<&[u8]> = rows.values().map(|value| &value[..5]).collect();
        keys.sort_unstable();
        self.had_duplicates |= keys.windows(2).any(|pair| pair[0] == pair[1]);
        Ok(())
    }
}

fn is_supplied(seed: u64) -> bool {
    seed % 4 >= 2
}

/// Builds an index while many transactions run. Returns the result of the statement, if it could be run.
fn build_with_transactions(disk: &SimulatedDisk, seed: u64, rows: u64, crashes: bool) -> Result<Result<()>> {
    let build = |db: &Database| create_index(db, seed.is_multiple_of(2), is_supplied(seed));
    run_with_transactions(disk, seed, rows, crashes, is_supplied(seed), build)
}

/// Runs a statement that builds indexes while many transactions run. Index `i` is unique if the seed is even;
/// `supplied` says whether its entries are. Returns the result of the statement, if it could be run.
pub(super) fn run_with_transactions(
    disk: &SimulatedDisk,
    seed: u64,
    rows: u64,
    crashes: bool,
    supplied: bool,
    build: impl FnOnce(&Database) -> Result<()>,
) -> Result<Result<()>> {
    let (db, env) = open(disk, seed)?;
    let table = filled(&db, rows, 7)?;
    db.set_lock_wait_timeout(Duration::ZERO);
    let unique = seed.is_multiple_of(2);
    let (entries, notes) =
        [(usize::MAX, usize::MAX), (700, usize::MAX), (usize::MAX, 900)][seed as usize % 3];
    db.engine().catalog.pause.set_bounds(entries, notes);
    let crowd = Crowd {
        db: db.clone(),
        chance: SimulatedEnv::new(seed ^ 0xc0de),
        open: Vec::new(),
        prepared: Vec::new(),
        steps: 0,
        unique,
        had_duplicates: false,
    };
    let shared = Arc::new(Mutex::new(Rank::Session, Some(crowd)));
    // Some transactions have changed the table before the statement.
    let step = |shared: &Mutex<Option<Crowd>>| {
        let crowd = shared.lock().take();
        let Some(mut crowd) = crowd else { return Ok(()) };
        let done = crowd.step();
        *shared.lock() = Some(crowd);
        done
    };
    for _ in 0..10 {
        step(&shared)?;
    }
    let (acting, mut failed) = (shared.clone(), false);
    // After a crash nothing works, and the statement must find that out itself.
    at_places(&db, move |_| failed = failed || step(&acting).is_err());
    let built = build(&db.with_ddl_timeout(PATIENT));
    db.engine().catalog.pause.clear();
    // The transactions that are left, if the index was refused before they ended.
    let crowd = shared.lock().take();
    if let Some(mut crowd) = crowd {
        let had_duplicates = crowd.had_duplicates;
        crowd.open.clear();
        for name in crowd.prepared.drain(..) {
            db.rollback_prepared(&name)?;
        }
        match &built {
            Ok(()) if crashes => {}
            Ok(()) => {
                check(&db, &env, &table, supplied, &format!("seed {seed}"));
                let mut rows = rows_of(&table)?;
                rows.retain(|_, value| !supplied || !is_left_out(value));
                let keys: Vec<_> = rows.into_values().map(|value| value[..5].to_vec()).collect();
                let different: std::collections::BTreeSet<_> = keys.iter().collect();
                assert!(!unique || different.len() == keys.len(), "seed {seed}: two rows have one key");
            }
            Err(Error::Schema(SchemaError::DuplicateKey { .. })) => {
                assert!(
                    unique && had_duplicates,
                    "seed {seed}: refused, and no two committed rows had one key"
                );
            }
            Err(_) => {}
        }
    }
    Ok(built)
}

#[test]
fn any_transactions_run_during_an_index_build() {
    let (mut made, mut refused) = (0, 0);
    for seed in 1..50 {
        match build_with_transactions(&SimulatedDisk::new(seed), seed, 50, false).unwrap() {
            Ok(()) => made += 1,
            Err(Error::Schema(SchemaError::DuplicateKey { .. })) => refused += 1,
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    assert!(made > 25 && refused > 2, "{made} made, {refused} refused");
}

#[test]
fn a_crash_during_a_concurrent_index_build_leaves_all_or_nothing() {
    let (mut whole, mut absent) = (0, 0);
    for seed in [1, 5, 2, 3, 7] {
        let disk = SimulatedDisk::new(seed);
        build_with_transactions(&disk, seed, 30, false).unwrap().unwrap();
        let total = disk.operations();
        for operation in (1..=total).step_by(7) {
            let disk = SimulatedDisk::new(seed);
            disk.crash_at(operation);
            let built = build_with_transactions(&disk, seed, 30, true);
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
            assert_eq!(db.check().unwrap().findings, Vec::<String>::new(), "{what}");
            let Ok(table) = db.table("t") else { continue };
            if table.index("i").is_ok() {
                check_index(&table, is_supplied(seed), &what);
                whole += 1;
            } else {
                assert!(!matches!(built, Ok(Ok(()))), "{what}: the index is absent");
                absent += 1;
            }
        }
    }
    assert!(whole > 0 && absent > 10, "{whole} times there, {absent} times absent");
}

/// A row with an index key after the bytes that an index reads is refused whenever it appears, even if the bytes of the
/// key that the index reads stay the same.
#[test]
fn a_row_whose_index_key_is_out_of_reach_is_refused_whenever_it_comes() {
    type Act = fn(&Table, &mut Option<Transaction>);
    fn write(table: &Table<impl Access>, is_long: bool) {
        let value = if is_long { vec![b'x'; 70_005] } else { value(3, false) };
        table.update(&row(3), &value).unwrap();
    }
    let update: Act = |table, _| table.update(&row(3), &vec![b'x'; 70_005]).unwrap();
    let commit: Act = |_, trx| trx.take().unwrap().commit().map(drop).unwrap();
    let back: Act = |_, trx| trx.take().unwrap().rollback().unwrap();
    // Whether the row's index key is out of reach at first, what a transaction makes of it before the statement, and
    // what happens during the statement.
    let cases: [(&str, bool, Option<bool>, Act, bool); 6] = [
        ("a call", false, None, update, true),
        ("a transaction that commits", false, Some(true), commit, true),
        ("a transaction that goes back", false, Some(true), back, false),
        ("a transaction that goes back to it", true, Some(false), back, true),
        ("a transaction that cures it", true, Some(false), commit, false),
        ("nothing", false, None, |_, _| {}, false),
    ];
    for (what, at_first, changed, act, is_refused) in cases {
        for acts_at in [1, 20, 50, 70, 90] {
            let what = format!("{what}, at {acts_at}");
            let (db, env) = open(&SimulatedDisk::new(1), 1).unwrap();
            let table = filled(&db, 40, 1000).unwrap();
            write(&table, at_first);
            // The statement waits for this transaction.
            let trx = begin(&db);
            match changed {
                Some(is_long) => write(&trx.table(&table), is_long),
                None => trx.table(&table).put(b"other", b"value").unwrap(),
            }
            let (handle, mut trx) = (table.clone(), Some(trx));
            at_places(&db, move |place| {
                if place == acts_at {
                    act(&handle, &mut trx);
                } else if place > 100 {
                    drop(trx.take());
                }
            });
            let options = IndexOptions::on_value(70_000..70_010);
            let built = db.with_ddl_timeout(PATIENT).create_index("t", "i", options);
            db.engine().catalog.pause.clear();
            match built {
                Ok(()) => {
                    assert!(!is_refused, "{what}");
                    check(&db, &env, &table, false, &what);
                    assert!(table.delete(&row(3)).unwrap(), "{what}");
                }
                Err(Error::Usage(UsageError::IndexedPartTooFar { .. })) => {
                    assert!(is_refused, "{what}");
                    assert!(table.index("i").is_err(), "{what}");
                }
                Err(error) => panic!("{what}: {error}"),
            }
        }
    }
}
