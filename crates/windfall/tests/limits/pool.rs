//! The smallest pool, and eight threads that use it for everything at once.

use std::{
    collections::BTreeMap,
    io,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    thread,
    time::Duration,
};

use rand::{Rng, SeedableRng, rngs::StdRng};
use windfall::{
    Database, Error, FlushLog, IndexOptions, Options, Result, Table, TableOptions,
    error::{SchemaError, UsageError},
};

use crate::{Case, assert_sound, in_a_process_of_its_own, seed, sized, time_limit::wait_until};

pub(crate) const SMALL_POOL: &str = "pool::sixty_four_pages_are_enough_for_eight_threads";

const PAGE: usize = 4096;
const THREADS: u64 = 8;
const KEYS: u16 = 300;

fn open(case: &Case) -> Database {
    let options = Options::default()
        .page_size(PAGE)
        .buffer_pool_size(64 * PAGE as u64)
        .log_size(4 << 20)
        .log_buffer_size(64 << 10)
        .flush_log_at_trx_commit(FlushLog::Write);
    Database::open(&case.folder, options).unwrap()
}

/// A source that ends with an error: the row is rolled back, with all that was written of it.
struct Broken(u64);

impl io::Read for Broken {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.0.min(out.len() as u64);
        self.0 -= n;
        if n == 0 { Err(io::Error::other("the source is broken")) } else { Ok(n as usize) }
    }
}

#[derive(Default)]
struct Progress {
    stop: AtomicBool,
    calls: AtomicU64,
    rollbacks: AtomicU64,
    /// Calls for which the pool had no frame.
    refused: AtomicU64,
}

/// A thread with a table of its own, and the expected rows of that table.
struct Worker<'a> {
    db: &'a Database,
    progress: &'a Progress,
    chance: StdRng,
    thread: u64,
    turn: u64,
    rows: BTreeMap<Vec<u8>, Vec<u8>>,
}

fn definition() -> TableOptions {
    TableOptions::default().index("i", IndexOptions::on_value(0..12).unique())
}

impl Worker<'_> {
    fn name(&self) -> String {
        format!("own{}", self.thread)
    }

    fn value(&mut self, key: u16) -> Vec<u8> {
        self.turn += 1;
        // Some values need chains that are longer than the pool.
        let length = match self.chance.random_range(0..200) {
            0 => 90 * PAGE,
            1..8 => self.chance.random_range(2 * PAGE..12 * PAGE),
            _ => self.chance.random_range(0..PAGE / 3),
        };
        let mut value = vec![self.turn as u8; 12 + length];
        value[..2].copy_from_slice(&key.to_be_bytes());
        value[2..10].copy_from_slice(&self.turn.to_be_bytes());
        value
    }

    /// Returns the result of a call that succeeded. The pool may be too small for all threads at the same time. Then
    /// the call returns an error, and nothing has changed.
    fn done<T>(&self, result: Result<T>) -> Option<T> {
        self.progress.calls.fetch_add(1, SeqCst);
        match result {
            Ok(done) => Some(done),
            Err(Error::Usage(UsageError::PoolTooSmall { .. })) => {
                self.progress.refused.fetch_add(1, SeqCst);
                None
            }
            Err(error) => panic!("thread {}: {error}", self.thread),
        }
    }

    fn table(&self) -> Table {
        self.db.table(&self.name()).unwrap()
    }

    fn step(&mut self) {
        let key = self.chance.random_range(0..KEYS);
        let bytes = key.to_be_bytes().to_vec();
        let table = self.table();
        match self.chance.random_range(0..100) {
            0 => self.scan(),
            1 => {
                if self.done(self.db.truncate_table(&self.name())).is_some() {
                    self.rows.clear();
                }
            }
            2 => {
                // A failure may occur between the drop and the creation.
                if self.done(self.db.drop_table(&self.name())).is_some() {
                    self.rows.clear();
                    while self.done(self.db.create_table(&self.name(), definition())).is_none() {}
                }
            }
            3 => drop(
                self.done(self.db.check_live())
                    .map(|report| assert_eq!(report.findings, Vec::<String>::new())),
            ),
            4..9 => self.rollback(&table, &bytes),
            9..14 => {
                let mut out = Vec::new();
                if let Some(found) = self.done(table.read_stream(&bytes, &mut out)) {
                    assert_eq!(found.map(|_| &out), self.rows.get(&bytes));
                }
            }
            14..30 => {
                if let Some(found) = self.done(table.get(&bytes)) {
                    assert_eq!(found.as_ref(), self.rows.get(&bytes));
                }
            }
            30..45 => {
                if let Some(was_there) = self.done(table.delete(&bytes)) {
                    assert_eq!(was_there, self.rows.remove(&bytes).is_some());
                }
            }
            45..60 => {
                // A table of all threads: the last write wins.
                let shared = self.db.table("shared").unwrap();
                let value = self.value(key);
                self.done(shared.put(&bytes, &value[..12]));
            }
            _ => {
                let value = self.value(key);
                if self.done(table.put(&bytes, &value)).is_some() {
                    self.rows.insert(bytes, value);
                }
            }
        }
    }

    /// Makes a call that fails late.
    fn rollback(&mut self, table: &Table, key: &[u8]) {
        let length = self.chance.random_range(1..40) * PAGE as u64;
        let failed = if self.chance.random() {
            table.put_stream(key, length + 1, &mut Broken(length))
        } else {
            let Some((taken, value)) = self.rows.first_key_value().filter(|(taken, _)| *taken != key) else {
                return;
            };
            let value = [&value[..12], &vec![1; length as usize]].concat();
            table.put(key, &value).inspect(|()| panic!("{taken:?} has this index key"))
        };
        match failed {
            Err(Error::Schema(SchemaError::DuplicateKey { .. })) => {}
            Err(Error::Usage(UsageError::Source { what, .. })) if what.contains("the source is broken") => {}
            other => {
                self.done(other);
                return;
            }
        }
        self.progress.rollbacks.fetch_add(1, SeqCst);
    }

    fn scan(&self) {
        let table = self.table();
        let found: Result<BTreeMap<_, _>> = table.rows().unwrap().collect();
        if let Some(found) = self.done(found) {
            assert!(
                found == self.rows,
                "thread {}: {} rows, {} expected",
                self.thread,
                found.len(),
                self.rows.len()
            );
        }
        let entries: Result<Vec<_>> = table.index("i").unwrap().range::<&[u8]>(..).unwrap().rev().collect();
        if let Some(entries) = self.done(entries) {
            assert_eq!(entries.len(), self.rows.len(), "thread {}", self.thread);
        }
    }

    fn run(mut self) -> (String, BTreeMap<Vec<u8>, Vec<u8>>) {
        while !self.progress.stop.load(SeqCst) {
            self.step();
        }
        (self.name(), self.rows)
    }
}

#[test]
fn sixty_four_pages_are_enough_for_eight_threads() {
    in_a_process_of_its_own(SMALL_POOL, |case| {
        let db = open(case);
        db.create_table("shared", TableOptions::default()).unwrap();
        let progress = Progress::default();
        let rows: Vec<_> = case.part("eight threads", || {
            thread::scope(|scope| {
                let workers: Vec<_> = (0..THREADS)
                    .map(|thread| {
                        let chance = StdRng::seed_from_u64(seed() << 8 | thread);
                        let mut worker = Worker {
                            db: &db,
                            progress: &progress,
                            chance,
                            thread,
                            turn: 0,
                            rows: BTreeMap::new(),
                        };
                        worker.turn = thread << 56;
                        db.create_table(&worker.name(), definition()).unwrap();
                        scope.spawn(|| worker.run())
                    })
                    .collect();
                thread::sleep(Duration::from_secs(sized(6, 60)));
                wait_until("work that means something", || {
                    progress.calls.load(SeqCst) > 200 && progress.rollbacks.load(SeqCst) > 10
                });
                progress.stop.store(true, SeqCst);
                workers.into_iter().map(|worker| worker.join().unwrap()).collect()
            })
        });
        let [calls, rollbacks, refused] =
            [&progress.calls, &progress.rollbacks, &progress.refused].map(|count| count.load(SeqCst));
        println!("    {calls} calls, {rollbacks} taken back, {refused} without a frame");
        // Eight threads with two or three latches each must not cause refusals.
        assert!(refused * 100 <= calls, "{refused} of {calls} calls found no frame");
        let same = |db: &Database, what: &str| {
            for (name, rows) in &rows {
                let found: BTreeMap<_, _> =
                    db.table(name).unwrap().rows().unwrap().map(Result::unwrap).collect();
                assert!(found == *rows, "{name}, {what}: {} rows, {} expected", found.len(), rows.len());
            }
            assert_sound(db, what);
        };
        case.part("looked at", || same(&db, "at the end"));
        db.close().unwrap();
        let db = open(case);
        case.part("looked at again", || same(&db, "opened again"));
        db.close().unwrap();
    });
}
