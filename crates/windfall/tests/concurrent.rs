//! Threads read, write and scan while others drop, truncate, rename, swap, resize and checkpoint. They use a real disk,
//! with a pool and a log so small that pages are read in and evicted all the time. Every value contains its table, key
//! and version, so every read shows whether the value is at the right place.

#![allow(clippy::unwrap_used, reason = "a test panics")]

mod guard;
mod stress;
mod time_limit;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex,
        atomic::{
            AtomicBool, AtomicI64, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use guard::Guard;
use rand::{Rng, SeedableRng, rngs::StdRng};
use stress::seconds;
use time_limit::{HANG, wait_until};
use windfall::{Database, Error, FlushLog, IndexOptions, Options, Table, TableOptions, error::SchemaError};

const PAGE: u64 = 4096;
const FRAMES: u64 = 256;
const KEYS: u32 = 1200;
const WRITERS: u32 = 3;
const NAMES: u32 = 4;
const STATEMENT_THREADS: u32 = 2;

fn options() -> Options {
    Options::default()
        .page_size(PAGE as usize)
        .buffer_pool_size(FRAMES * PAGE)
        .log_size(2 << 20)
        .log_buffer_size(256 << 10)
        .flush_log_at_trx_commit(FlushLog::Write)
}

fn seed() -> u64 {
    let asked = std::env::var("CONCURRENT_SEED").ok().and_then(|s| s.parse().ok());
    let seed = asked.unwrap_or_else(rand::random);
    println!("CONCURRENT_SEED={seed}");
    seed
}

/// The test's record of a table. The table's number is its metadata. Counters of begun statements are
/// raised before the statement begins, the others after it has ended.
#[derive(Debug, Default)]
struct Known {
    number: u64,
    truncations_begun: AtomicU64,
    truncations_done: AtomicU64,
    drop_begun: AtomicBool,
    dropped: AtomicBool,
}

#[derive(Debug)]
struct World {
    db: Database,
    seed: u64,
    tables: Mutex<HashMap<u64, Arc<Known>>>,
    next_table: AtomicU64,
    /// The version of the newest value that any thread may have written.
    clock: AtomicU64,
    stop: AtomicBool,
    reads: AtomicU64,
    writes: AtomicU64,
    statements: AtomicU64,
}

/// Returns the value of a key: its table, key and version, and bytes that follow from these. Some values are so long
/// that they need overflow pages.
fn value(table: u64, key: u32, version: u64) -> Vec<u8> {
    let mixed = (table ^ version.rotate_left(17) ^ u64::from(key)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let length = if mixed >> 60 == 0 { 5000 + (mixed >> 20) % 9000 } else { 20 + (mixed >> 20) % 500 };
    let mut value = Vec::with_capacity(20 + length as usize);
    value.extend(table.to_be_bytes());
    value.extend(key.to_be_bytes());
    value.extend(version.to_be_bytes());
    value.extend((0..length).map(|n| (mixed >> (n % 8 * 8)) as u8 ^ n as u8));
    value
}

/// The drops and truncations of a table at one moment. Two moments show whether a drop or truncation may explain a read
/// between them.
#[derive(Clone, Copy, Debug)]
struct Moment {
    begun: u64,
    done: u64,
    dropped: bool,
}

impl Known {
    fn now(&self) -> Moment {
        // In this order: a truncation between the two loads counts as begun and not as done.
        let done = self.truncations_done.load(SeqCst);
        let dropped = self.dropped.load(SeqCst);
        Moment { begun: self.truncations_begun.load(SeqCst), done, dropped }
    }

    /// Returns whether a truncation may have happened between an operation that began at `from` and now.
    fn may_be_emptied_since(&self, from: Moment) -> bool {
        self.truncations_begun.load(SeqCst) > from.done
    }

    fn must_be_drop(&self, error: &Error, what: &str) {
        assert!(matches!(error, Error::TableDropped(_)), "{what} of table {}: {error}", self.number);
        assert!(self.drop_begun.load(SeqCst), "{what}: table {} is reported as dropped", self.number);
    }
}

impl World {
    fn new(db: Database, seed: u64) -> Self {
        Self {
            db,
            seed,
            tables: Mutex::default(),
            next_table: AtomicU64::new(1),
            clock: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            statements: AtomicU64::new(0),
        }
    }

    fn chance(&self, thread: u64) -> StdRng {
        StdRng::seed_from_u64(self.seed.wrapping_mul(1000) + thread)
    }

    fn is_running(&self) -> bool {
        !self.stop.load(Relaxed)
    }

    /// Returns the table with a randomly drawn name, if it exists.
    fn some_table(&self, chance: &mut StdRng) -> Option<(Arc<Known>, Table)> {
        let name = format!("{}.{}", chance.random_range(0..STATEMENT_THREADS), chance.random_range(0..NAMES));
        let table = match self.db.table(&name) {
            Ok(table) => table,
            Err(Error::Schema(SchemaError::NoTable(_))) => return None,
            Err(error) => panic!("looking for {name}: {error}"),
        };
        let number = u64::from_be_bytes(table.metadata().expect("metadata").try_into().expect("eight bytes"));
        let known = self.tables.lock().unwrap().get(&number).cloned();
        Some((known.unwrap_or_else(|| panic!("no thread created table {number}")), table))
    }

    /// Returns the version of a value that was read. Panics if the value was not written for this table and key.
    fn version(&self, known: &Known, key: u32, read: &[u8]) -> u64 {
        let word = |at: usize| u64::from_be_bytes(read[at..at + 8].try_into().expect("eight bytes"));
        assert!(read.len() > 20, "table {}, key {key}: {} bytes", known.number, read.len());
        let version = word(12);
        let right = value(known.number, key, version);
        assert!(
            read == right,
            "table {}, key {key}: the value is of table {}, key {}, version {version}, {} bytes",
            known.number,
            word(0),
            word(4) as u32,
            read.len()
        );
        assert!(version <= self.clock.load(SeqCst), "version {version} was never written");
        version
    }

    /// Writes the keys that only this thread writes, and checks what it reads there.
    fn writer(&self, number: u32) {
        let mut chance = self.chance(u64::from(number));
        // The last acknowledged change of each key: the version, or `None` for a deletion, and the moments before and
        // after it.
        let mut last: BTreeMap<(u64, u32), (Option<u64>, Moment, Moment)> = BTreeMap::new();
        let mut at = None;
        while self.is_running() {
            if at.is_none() || chance.random_ratio(1, 60) {
                at = self.some_table(&mut chance);
                let tables = self.tables.lock().unwrap();
                last.retain(|(table, _), _| {
                    tables.get(table).is_some_and(|known| !known.dropped.load(SeqCst))
                });
            }
            let Some((known, table)) = &at else { continue };
            let key = chance.random_range(0..KEYS / WRITERS) * WRITERS + number;
            let name = key.to_be_bytes();
            let before = known.now();
            let ended = |what: &str, error: &Error| known.must_be_drop(error, what);
            let place = (known.number, key);
            let was = match chance.random_range(0..10) {
                0..5 => {
                    let version = self.clock.fetch_add(1, SeqCst) + 1;
                    match table.put(&name, &value(known.number, key, version)) {
                        Ok(()) if before.dropped => {
                            panic!("table {} takes a row after its drop", known.number)
                        }
                        Ok(()) => drop(last.insert(place, (Some(version), before, known.now()))),
                        Err(error) => ended("put", &error),
                    }
                    self.writes.fetch_add(1, Relaxed);
                    continue;
                }
                5..7 => match table.delete(&name) {
                    Ok(there) => {
                        assert!(!before.dropped, "table {} works after its drop", known.number);
                        let was = last.insert(place, (None, before, known.now()));
                        let Some((version, from, until)) = was else { continue };
                        if there {
                            assert!(
                                version.is_some() && known.now().begun >= before.done,
                                "{place:?} deleted twice"
                            );
                            assert!(
                                before.done <= until.begun,
                                "{place:?} was truncated, and deleted after it"
                            );
                        } else if version.is_some() {
                            assert!(
                                known.may_be_emptied_since(from),
                                "{place:?} was lost before its deletion"
                            );
                        }
                        continue;
                    }
                    Err(error) => Err(error),
                },
                _ => table.get(&name),
            };
            assert!(was.is_err() || !before.dropped, "table {} works after its drop", known.number);
            match (was, last.get(&place)) {
                (Err(error), _) => ended("read or delete", &error),
                (Ok(Some(read)), wrote) => {
                    let read = self.version(known, key, &read);
                    let Some((version, _, until)) = wrote else { panic!("{place:?}: {read} is unknown") };
                    assert_eq!(Some(read), *version, "{place:?}");
                    assert!(before.done <= until.begun, "{place:?}: version {read} was truncated");
                }
                (Ok(None), Some((Some(version), from, _))) => {
                    assert!(known.may_be_emptied_since(*from), "{place:?}: version {version} is lost");
                }
                (Ok(None), _) => {}
            }
            self.reads.fetch_add(1, Relaxed);
        }
    }

    /// Scans tables in key order, in both directions, and through their index.
    fn scanner(&self, number: u64) {
        let mut chance = self.chance(number);
        while self.is_running() {
            let Some((known, table)) = self.some_table(&mut chance) else { continue };
            let from = known.now();
            let backward = chance.random_ratio(1, 3);
            let seen = if chance.random_ratio(1, 4) {
                self.scan_index(&known, &table)
            } else {
                self.scan(&known, &table, chance.random_range(0..KEYS), backward)
            };
            match seen {
                Ok(rows) => drop(self.reads.fetch_add(rows, Relaxed)),
                Err(Error::TableDropped(_)) => assert!(
                    known.drop_begun.load(SeqCst) || known.may_be_emptied_since(from),
                    "table {} is reported as dropped and is not",
                    known.number
                ),
                Err(error) => panic!("a scan of table {}: {error}", known.number),
            }
        }
    }

    fn scan(&self, known: &Known, table: &Table, from: u32, backward: bool) -> Result<u64, Error> {
        let mut rows = table.range(from.to_be_bytes()..)?;
        let (mut last, mut count) = (None, 0);
        while let Some(row) = if backward { rows.next_back() } else { rows.next() } {
            let (key, read) = row?;
            let key = u32::from_be_bytes(key.try_into().expect("four bytes"));
            let in_order = last.is_none_or(|last| if backward { key < last } else { key > last });
            assert!(in_order && key >= from, "{key} after {last:?} in a scan from {from}, {backward}");
            self.version(known, key, &read);
            last = Some(key);
            count += 1;
        }
        Ok(count)
    }

    fn scan_index(&self, known: &Known, table: &Table) -> Result<u64, Error> {
        let index = match table.index("version") {
            Ok(index) => index,
            Err(Error::Schema(SchemaError::NoIndex { .. })) => return Ok(0),
            Err(error) => return Err(error),
        };
        let mut count = 0;
        for row in index.range::<&[u8]>(..)? {
            // The index may be dropped alone.
            let row = match row {
                Err(Error::TableDropped(_)) => break,
                row => row?,
            };
            let key = u32::from_be_bytes(row.key.try_into().expect("four bytes"));
            let version = self.version(known, key, &row.value);
            assert_eq!(row.index_key, version.to_be_bytes());
            count += 1;
        }
        Ok(count)
    }

    /// Creates, drops and changes tables under names that only this thread uses.
    fn statements(&self, number: u32) {
        let mut chance = self.chance(100 + u64::from(number));
        let mut mine: BTreeMap<String, (Arc<Known>, Table, bool)> = BTreeMap::new();
        let names: Vec<String> = (0..NAMES).map(|n| format!("{number}.{n}")).collect();
        while self.is_running() {
            let name = &names[chance.random_range(0..names.len())];
            let other = &names[chance.random_range(0..names.len())];
            let Some((known, table, indexed)) = mine.get(name).cloned() else {
                let known = Known { number: self.next_table.fetch_add(1, SeqCst), ..Known::default() };
                let (known, indexed) = (Arc::new(known), chance.random_ratio(1, 2));
                self.tables.lock().unwrap().insert(known.number, known.clone());
                let mut options = TableOptions::default().metadata(known.number.to_be_bytes().into());
                if indexed {
                    options = options.index("version", IndexOptions::on_value(12..20).unique());
                }
                let table = self.db.create_table(name, options).expect("a table");
                mine.insert(name.clone(), (known, table, indexed));
                continue;
            };
            match chance.random_range(0..12) {
                0..2 => self.drop_group(&mut mine, &[name]),
                2 if name != other && mine.contains_key(other) => self.drop_group(&mut mine, &[name, other]),
                3..6 => {
                    known.truncations_begun.fetch_add(1, SeqCst);
                    self.db.truncate_table(name).expect("a truncation");
                    known.truncations_done.fetch_add(1, SeqCst);
                }
                6 if name != other && mine.contains_key(other) => {
                    self.db.swap_tables(name, other).expect("a swap");
                    let (a, b) = (mine.remove(name).expect("a"), mine.remove(other).expect("b"));
                    mine.extend([(name.clone(), b), (other.clone(), a)]);
                }
                7 if !mine.contains_key(other) => {
                    self.db.rename_table(name, other).expect("another name");
                    mine.remove(name);
                    mine.insert(other.clone(), (known, table, indexed));
                }
                8 if indexed => {
                    self.db.drop_index(name, "version").expect("a drop of an index");
                    mine.insert(name.clone(), (known, table, false));
                }
                8 => {
                    let index = IndexOptions::on_value(12..20).unique();
                    self.db.create_index(name, "version", index).expect("an index");
                    mine.insert(name.clone(), (known, table, true));
                }
                _ => std::thread::sleep(Duration::from_millis(chance.random_range(0..60))),
            }
            self.statements.fetch_add(1, Relaxed);
        }
    }

    fn drop_group(&self, mine: &mut BTreeMap<String, (Arc<Known>, Table, bool)>, names: &[&str]) {
        let gone: Vec<_> = names.iter().map(|name| mine.remove(*name).expect("a table")).collect();
        for (known, ..) in &gone {
            known.drop_begun.store(true, SeqCst);
        }
        self.db.drop_tables(names).expect("a drop");
        for (known, table, indexed) in gone {
            known.dropped.store(true, SeqCst);
            let dropped = |what: &str, error: Option<Error>| {
                assert!(
                    matches!(error, Some(Error::TableDropped(_))),
                    "{what} on a dropped table: {error:?}"
                );
            };
            dropped("get", table.get(b"key").err());
            dropped("contains", table.contains(b"key").err());
            dropped("put", table.put(b"key", &[0; 20]).err());
            dropped("insert", table.insert(b"key", &[0; 20]).err());
            dropped("update", table.update(b"key", &[0; 20]).err());
            dropped("delete", table.delete(b"key").err());
            dropped("range", table.rows().err());
            dropped("stream", table.read_stream(b"key", &mut Vec::new()).err());
            dropped("insert_stream", table.insert_stream(b"key", 20, &mut &[0; 20][..]).err());
            dropped("index", table.index(if indexed { "version" } else { "none" }).err());
        }
    }

    /// Runs everything else that may happen concurrently.
    fn housekeeper(&self) {
        let mut chance = self.chance(200);
        let mut size = FRAMES;
        while self.is_running() {
            match chance.random_range(0..8) {
                0..2 => {
                    size = chance.random_range(FRAMES / 2..FRAMES * 3);
                    self.db.set_buffer_pool_size(size * PAGE).expect("another size");
                }
                2 => self.db.checkpoint().expect("a checkpoint"),
                3 => self.db.set_hash_index(chance.random()),
                4 => {
                    let report = self.db.check().expect("a check");
                    assert_eq!(report.findings, Vec::<String>::new(), "during the work");
                }
                5 => {
                    let metrics = self.db.metrics();
                    assert_eq!(metrics.pool_frames, size);
                    self.db.tables().expect("the tables");
                }
                6 => {
                    let session = self.db.session();
                    let table =
                        session.create_temporary_table("t", TableOptions::default()).expect("a table");
                    for key in 0..200u32 {
                        table.put(&(key % 60).to_be_bytes(), &[7; 900]).expect("a put");
                    }
                    assert_eq!(table.rows().expect("rows").count(), 60);
                }
                _ => std::thread::sleep(Duration::from_millis(chance.random_range(0..50))),
            }
        }
    }
}

fn run(world: &Arc<World>, time: Duration) {
    let start = Instant::now();
    let mut threads = Vec::new();
    let mut spawn = |work: Box<dyn FnOnce(&World) + Send>| {
        let world = world.clone();
        threads.push(std::thread::spawn(move || {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&world)));
            world.stop.store(true, SeqCst);
            result.is_ok()
        }));
    };
    (0..WRITERS).for_each(|n| spawn(Box::new(move |world| world.writer(n))));
    (50..52).for_each(|n| spawn(Box::new(move |world| world.scanner(n))));
    (0..STATEMENT_THREADS).for_each(|n| spawn(Box::new(move |world| world.statements(n))));
    spawn(Box::new(World::housekeeper));
    while start.elapsed() < time && world.is_running() {
        std::thread::sleep(Duration::from_millis(20));
    }
    world.stop.store(true, SeqCst);
    wait_until("the end of all threads", || threads.iter().all(JoinHandle::is_finished));
    assert!(threads.into_iter().all(|thread| thread.join().is_ok_and(|fine| fine)), "a thread has panicked");
}

/// Waits until dropped tables are removed, then returns the number of frames that hold a page.
fn frames_in_use(db: &Database) -> u64 {
    wait_until("the end of what was dropped", || {
        let metrics = db.metrics();
        metrics.drops_pending + metrics.files_pending + metrics.active_transactions == 0
    });
    let metrics = db.metrics();
    metrics.pool_frames - metrics.pool_free
}

#[test]
fn everything_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = Database::open(folder.path(), options()).expect("a database");
    let world = Arc::new(World::new(db.clone(), seed()));
    run(&world, seconds(15));
    println!(
        "{} writes, {} reads, {} statements, {:?}",
        world.writes.load(SeqCst),
        world.reads.load(SeqCst),
        world.statements.load(SeqCst),
        db.metrics()
    );
    db.set_buffer_pool_size(FRAMES * PAGE).expect("the first size");
    assert_eq!(db.check().expect("a check").findings, Vec::<String>::new());

    let names: Vec<String> = db.tables().expect("the tables").into_iter().map(|table| table.name).collect();
    db.drop_tables(&names.iter().map(String::as_str).collect::<Vec<_>>()).expect("a drop of all");
    frames_in_use(&db);
    // Undo is freed when purge has processed it. The system tree and the last slice of each undo stream remain.
    wait_until("the end of what undo and tables had", || frames_in_use(&db) < FRAMES / 3);
    let files = std::fs::read_dir(folder.path().join("data")).expect("the folder").count();
    assert!(files < 40, "{files} data files and no table");
    assert_eq!(db.check().expect("a check").findings, Vec::<String>::new());
    // No frame is leaked: one table fills all the others.
    let table = db.create_table("all", TableOptions::default()).expect("a table");
    for n in 0..FRAMES as u32 * 5 {
        table.put(&n.to_be_bytes(), &[1; 1000]).expect("a put");
    }
    assert_eq!(table.rows().expect("rows").count(), FRAMES as usize * 5);
    let resident: u64 = db.tables().expect("the tables").iter().map(|table| table.resident_pages).sum();
    println!("{resident} of {FRAMES} frames hold the table");
    assert!(resident > FRAMES / 2, "{resident} frames for a table larger than the pool");
    drop((world, table));
    db.close().expect("a clean end");
    let db = Database::open(folder.path(), options()).expect("a database");
    assert_eq!(db.check().expect("a check").findings, Vec::<String>::new());
    assert_eq!(db.table("all").expect("the table").rows().expect("rows").count(), FRAMES as usize * 5);
}

/// A source that returns a value's bytes with long pauses, so that other threads run in the middle of the call.
struct Slow(std::io::Cursor<Vec<u8>>);

impl std::io::Read for Slow {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        std::thread::sleep(Duration::from_micros(200));
        self.0.read(out)
    }
}

/// All writers use the same few rows, and even fewer index keys, each of which is unique. The result of an insert or a
/// deletion is exact in any order of threads, so the sum of the results of a row is its final state.
#[test]
fn rows_that_all_threads_change() {
    const WANTED: u8 = 6;
    const INDEX_KEYS: u8 = 5;
    let folder = tempfile::tempdir().expect("a folder");
    let db = Database::open(folder.path(), options()).expect("a database");
    let unique = TableOptions::default().index("holder", IndexOptions::on_value(0..1).unique());
    let table = db.create_table("t", unique).expect("a table");
    let (seed, stop, done) = (seed(), AtomicBool::new(false), AtomicU64::new(0));
    let balance: [AtomicI64; WANTED as usize] = Default::default();
    let refused = |error: &Error| {
        matches!(error, Error::Schema(SchemaError::DuplicateKey { .. } | SchemaError::NoRow { .. }))
    };
    let writer = |thread: u64| {
        let mut chance = StdRng::seed_from_u64(seed.wrapping_mul(1000) + thread);
        while !stop.load(Relaxed) {
            let key = chance.random_range(0..WANTED);
            let mut value = vec![key; chance.random_range(2..400)];
            value[0] = chance.random_range(0..INDEX_KEYS);
            let change = match chance.random_range(0..8) {
                0..2 => table.insert(&[key], &value).map(|()| 1),
                2 => {
                    value.resize(9000, key);
                    let length = value.len() as u64;
                    table.insert_stream(&[key], length, &mut Slow(std::io::Cursor::new(value))).map(|()| 1)
                }
                3..5 => table.update(&[key], &value).map(|()| 0),
                5..7 => table.delete(&[key]).map(|there| -i64::from(there)),
                _ => table.get(&[key]).map(|read| {
                    let is_its = |read: &[u8]| read[1..].iter().all(|byte| *byte == key);
                    assert!(read.is_none_or(|read| is_its(&read)), "row {key} has the value of another one");
                    0
                }),
            };
            match change {
                Ok(change) => {
                    balance[usize::from(key)].fetch_add(change, SeqCst);
                    done.fetch_add(1, SeqCst);
                }
                Err(error) => assert!(refused(&error), "row {key}: {error}"),
            }
        }
    };
    let time = seconds(4);
    let again = format!(
        "CONCURRENT_SEED={seed} cargo test -p windfall --test concurrent rows_that_all_threads_change"
    );
    Guard::with_limit(time + HANG).run(&again, || {
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4).map(|thread| scope.spawn(move || writer(thread))).collect();
            let start = Instant::now();
            let is_enough = || start.elapsed() > time && done.load(SeqCst) > 200;
            while !is_enough() && writers.iter().all(|writer| !writer.is_finished()) {
                std::thread::sleep(Duration::from_millis(20));
            }
            stop.store(true, SeqCst);
            for writer in writers {
                writer.join().expect("a writer");
            }
        });
    });
    println!("{} calls", done.load(SeqCst));
    let rows: BTreeMap<Vec<u8>, Vec<u8>> =
        table.rows().expect("rows").map(|row| row.expect("a row")).collect();
    let sums: Vec<i64> = balance.iter().map(|sum| sum.load(SeqCst)).collect();
    let there: Vec<i64> = (0..WANTED).map(|key| i64::from(rows.contains_key(&vec![key]))).collect();
    assert_eq!(sums, there, "inserts without deletions, by row, and whether it is there");
    let held: Vec<_> =
        table.index("holder").expect("the index").range::<&[u8]>(..).expect("entries").collect();
    let held: BTreeMap<_, _> =
        held.into_iter().map(|row| row.expect("a row")).map(|row| (row.key, row.value)).collect();
    assert!(held == rows, "the index has {} rows, the table {}", held.len(), rows.len());
    assert_eq!(db.check().expect("a check").findings, Vec::<String>::new());
    db.close().expect("a clean end");
}

/// The database is closed during concurrent calls: each call is done and durable, or refused, and none hangs.
#[test]
fn closing_during_concurrent_calls() {
    for round in 0..6u64 {
        let folder = tempfile::tempdir().expect("a folder");
        let db = Database::open(folder.path(), options()).expect("a database");
        let table = db.create_table("t", TableOptions::default()).expect("a table");
        let writers: Vec<_> = (0..4u32)
            .map(|writer| {
                let table = table.clone();
                std::thread::spawn(move || {
                    for n in 0u32.. {
                        match table.put(&(n * 4 + writer).to_be_bytes(), &value(1, n, round)) {
                            Ok(()) => {}
                            Err(Error::Closed) => return n,
                            Err(error) => panic!("a put while the database is closed: {error}"),
                        }
                    }
                    0
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(50 + 40 * round));
        db.close().expect("a clean end");
        wait_until("the end of calls after the database was closed", || {
            writers.iter().all(JoinHandle::is_finished)
        });
        let written: Vec<u32> = writers.into_iter().map(|writer| writer.join().expect("a writer")).collect();
        assert!(matches!(table.get(b"key"), Err(Error::Closed)));
        let db = Database::open(folder.path(), options()).expect("the database again");
        let table = db.table("t").expect("the table");
        for (writer, written) in written.into_iter().enumerate() {
            for n in 0..written {
                let read = table.get(&(n * 4 + writer as u32).to_be_bytes()).expect("a read");
                assert!(read == Some(value(1, n, round)), "row {n} of writer {writer} is lost");
            }
        }
        assert_eq!(db.check().expect("a check").findings, Vec::<String>::new());
    }
}
