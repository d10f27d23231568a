//! The engine as an implementation of the trait: its sessions, on the simulated disk and real threads.

use core::ops::Bound;
use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use windfall::{
    Database, Error, IndexOptions, Isolation, Options, Result, Table, TableOptions, Transaction,
    TransactionOptions, TxTable,
    env::{Next, RealEnv, Step},
    error::{LockError, SchemaError, TransactionError},
    ids::TrxId,
};
use windfall_base::failpoint::Eager;
use windfall_sim::SimulatedDisk;

use super::{
    changed_env,
    client::{Answer, Call, Change, Client, Level, Lock, Refusal, Row, Rows, Value},
    time_limit::HANG,
};

/// Workers never pause, so purge reaches everything that it must not remove at once.
#[derive(Debug)]
struct WithoutPauses;

impl changed_env::Change for WithoutPauses {
    fn step(&self, _name: &'static str, mut step: Step) -> Step {
        Box::new(move || match step() {
            Next::Idle(pause) => Next::Idle(pause.min(Duration::from_micros(500))),
            next => next,
        })
    }
}

/// The bytes of a value that the indexes cover: the row's key, the count of its numbers, and the last number.
const HEAD: usize = 24;

/// Creates a database with one empty table. Its indexes have the rows in the order of their keys.
pub(crate) fn database() -> Database {
    let options = Options::default()
        .page_size(4096)
        .buffer_pool_size(256 * 4096)
        .log_size(4 << 20)
        .log_buffer_size(256 << 10)
        .lock_wait_timeout(HANG);
    let env = Arc::new(changed_env::Changed { env: Arc::new(RealEnv::default()), change: WithoutPauses });
    let db = Database::open_on(Arc::new(SimulatedDisk::new(1)), env, &options, &|_| {}).unwrap();
    // Every write moves the row's index entries.
    let indexes = TableOptions::default()
        .index("by_item", IndexOptions::on_value(0..HEAD as u32))
        .index("by_item_once", IndexOptions::on_value(0..HEAD as u32).unique());
    db.create_table("rows", indexes).unwrap();
    db
}

fn isolation(level: Level) -> Isolation {
    match level {
        Level::ReadUncommitted => Isolation::ReadUncommitted,
        Level::ReadCommitted => Isolation::ReadCommitted,
        Level::RepeatableRead => Isolation::RepeatableRead,
        Level::Snapshot => Isolation::Snapshot,
        Level::Serializable => Isolation::Serializable,
    }
}

fn head(key: u64, value: &Value) -> [u64; HEAD / 8] {
    [key, value.len() as u64, value[value.len() - 1]]
}

/// Returns the head, the numbers, and padding that moves some values to overflow pages and fills undo slices.
fn encode(key: u64, value: &Value) -> Vec<u8> {
    let numbers = head(key, value).into_iter().chain(value.iter().copied());
    let mut bytes: Vec<u8> = numbers.flat_map(u64::to_be_bytes).collect();
    let length = if value.len().is_multiple_of(3) { 3000 } else { 700 };
    bytes.resize(bytes.len().max(length), 0);
    bytes
}

fn numbers(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(8).map(|number| u64::from_be_bytes(number.try_into().unwrap()))
}

fn decode(bytes: &[u8]) -> Value {
    let count = numbers(bytes).nth(1).unwrap();
    numbers(bytes).skip(HEAD / 8).take(count as usize).collect()
}

/// The way in which a session finds its rows.
#[derive(Clone, Copy, Debug)]
enum By {
    Key,
    Index(&'static str),
}

fn row_of(key: &[u8], value: &[u8]) -> Row {
    (u64::from_be_bytes(key.try_into().unwrap()), decode(value))
}

/// Returns the range of these rows in the indexes, for any numbers.
fn heads(rows: Rows) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let last = [&rows.last.to_be_bytes()[..], &[0xff; HEAD]].concat();
    (Bound::Included(rows.first.to_be_bytes().to_vec()), Bound::Included(last))
}

/// A session that blocks where the engine blocks.
pub(crate) struct Session {
    db: Database,
    table: Table,
    open: Option<Transaction>,
    level: Level,
    /// The way in which the session finds its rows, in rotation.
    ways: &'static [By],
    reads: usize,
    /// Whether each change first freezes its leaf.
    eager: bool,
}

impl Session {
    pub(crate) fn new(db: &Database) -> Self {
        let (table, level) = (db.table("rows").unwrap(), Level::ReadCommitted);
        Self { db: db.clone(), table, open: None, level, ways: &[By::Key], reads: 0, eager: false }
    }

    /// Creates a session that finds rows by its indexes, too.
    pub(crate) fn of_all_ways(db: &Database, eager: bool) -> Self {
        let ways = &[By::Key, By::Index("by_item"), By::Key, By::Index("by_item_once")];
        Self { ways, eager, ..Self::new(db) }
    }

    /// Returns how to find rows this time. A reader with neither a read view nor gap locks misses a row that an index
    /// update moves to a position that its scan has passed, as in every database.
    fn next_way(&mut self, lock: Lock) -> By {
        self.reads += 1;
        match self.level {
            Level::ReadUncommitted => By::Key,
            Level::ReadCommitted if lock != Lock::Plain => By::Key,
            _ => self.ways[self.reads % self.ways.len()],
        }
    }

    fn read(&mut self, table: &TxTable<'_>, rows: Rows, lock: Lock) -> Result<Vec<Row>> {
        let by = self.next_way(lock);
        let all = Self::find(table, rows, lock, by)?;
        if lock == Lock::Plain && matches!(self.level, Level::RepeatableRead | Level::Snapshot) {
            let keys = table.index("by_item")?.keys(heads(rows))?;
            let keys: Vec<Vec<u64>> = keys
                .map(|found| found.map(|found| numbers(&found.index_key).collect()))
                .collect::<Result<_>>()?;
            let heads: Vec<_> = all.iter().map(|(key, value)| head(*key, value)).collect();
            assert_eq!(keys, heads, "the index alone says something else than {all:?}");
        }
        Ok(all.into_iter().filter(|(_, value)| rows.holds(value)).collect())
    }

    fn find(table: &TxTable<'_>, rows: Rows, lock: Lock, by: By) -> Result<Vec<Row>> {
        if let By::Index(name) = by {
            let (index, heads) = (table.index(name)?, heads(rows));
            let found = match lock {
                Lock::Plain => index.range(heads),
                Lock::Shared => index.range_for_share(heads),
                Lock::Exclusive => index.range_for_update(heads),
            };
            return found?.map(|row| row.map(|row| row_of(&row.key, &row.value))).collect();
        }
        if rows.first == rows.last {
            let key = rows.first.to_be_bytes();
            let value = match lock {
                Lock::Plain => table.get(&key),
                Lock::Shared => table.get_for_share(&key),
                Lock::Exclusive => table.get_for_update(&key),
            };
            return Ok(value?.map(|value| row_of(&key, &value)).into_iter().collect());
        }
        let range = rows.first.to_be_bytes()..=rows.last.to_be_bytes();
        let found = match lock {
            Lock::Plain => table.range(range),
            Lock::Shared => table.range_for_share(range),
            Lock::Exclusive => table.range_for_update(range),
        };
        found?.map(|row| row.map(|(key, value)| row_of(&key, &value))).collect()
    }

    fn run(&mut self, table: &TxTable<'_>, call: &Call) -> Result<Answer> {
        let put = |key: u64, value: &Value| table.put(&key.to_be_bytes(), &encode(key, value));
        match *call {
            Call::Read(rows, lock) => return self.read(table, rows, lock).map(Answer::Rows),
            Call::Put(key, number) => put(key, &vec![number])?,
            Call::Append(key, number) => {
                let row = key.to_be_bytes();
                loop {
                    let Some(value) = table.get_for_update(&row)? else {
                        match table.insert(&row, &encode(key, &vec![number])) {
                            // Without gap locks another transaction may have inserted the row first.
                            Err(Error::Schema(SchemaError::DuplicateKey { .. })) => continue,
                            done => break done?,
                        }
                    };
                    let mut value = decode(&value);
                    value.push(number);
                    break put(key, &value)?;
                }
            }
            Call::Delete(key, _) => {
                if !table.delete(&key.to_be_bytes())? {
                    return Ok(Answer::Rows(Vec::new()));
                }
            }
            Call::Change(rows, change) => {
                for (key, mut value) in self.read(table, rows, Lock::Exclusive)? {
                    match change {
                        Change::Set(number) => value[0] = number,
                        Change::Add(number) => value[0] += number,
                        Change::Delete => {
                            table.delete(&key.to_be_bytes())?;
                            continue;
                        }
                    }
                    put(key, &value)?;
                }
            }
            Call::Begin(_) | Call::Commit | Call::Rollback => unreachable!("they are of the session"),
        }
        Ok(Answer::Done)
    }
}

impl Client for Session {
    fn call(&mut self, call: &Call) -> Answer {
        Eager::set(self.eager);
        if let Call::Begin(level) = call {
            let trx = self.db.begin(TransactionOptions::default().isolation(isolation(*level)));
            (self.open, self.level) = (Some(trx), *level);
            return Answer::Done;
        }
        let trx = self.open.take().expect("a transaction was begun");
        let done = match call {
            Call::Commit => trx.commit().map(|_| Answer::Done),
            Call::Rollback => trx.rollback().map(|()| Answer::Done),
            call => {
                let table = self.table.clone();
                let done = self.run(&trx.table(&table), call);
                if done.is_ok() {
                    self.open = Some(trx);
                }
                done
            }
        };
        match done {
            Ok(answer) => answer,
            Err(Error::Lock(LockError::Deadlock(_))) => Answer::Refused(Refusal::Deadlock),
            Err(Error::Transaction(TransactionError::Changed(_))) => Answer::Refused(Refusal::Changed),
            Err(error) => panic!("{call:?}: {error}"),
        }
    }

    fn answer(&mut self) -> Answer {
        unreachable!("it has waited")
    }
}

/// A session on a thread of its own, which returns [`Answer::Waits`] when a call waits for a lock.
pub(crate) struct Watched {
    db: Database,
    calls: Sender<Call>,
    answers: Receiver<Answer>,
    /// The waiting transaction of this session.
    waits: Option<TrxId>,
    /// The waiting transactions of all sessions, as far as they have been reported.
    waiting: Arc<Mutex<BTreeSet<TrxId>>>,
}

impl Watched {
    pub(crate) fn new(db: &Database, waiting: &Arc<Mutex<BTreeSet<TrxId>>>) -> Self {
        let (calls, to_do) = channel();
        let (done, answers) = channel();
        let mut session = Session::new(db);
        thread::spawn(move || {
            for call in to_do {
                let _ = done.send(session.call(&call));
            }
        });
        Self { db: db.clone(), calls, answers, waits: None, waiting: waiting.clone() }
    }
}

impl Client for Watched {
    fn call(&mut self, call: &Call) -> Answer {
        self.calls.send(*call).unwrap();
        let start = Instant::now();
        loop {
            match self.answers.recv_timeout(Duration::from_millis(1)) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Disconnected) => panic!("{call:?}: the session has panicked"),
                Err(RecvTimeoutError::Timeout) => {}
            }
            // No other call has been made since the other sessions were reported as waiting.
            let mut known = self.waiting.lock().unwrap();
            let mut waits = self.db.lock_waits().into_iter().map(|wait| wait.trx);
            self.waits = waits.find(|trx| !known.contains(trx));
            if let Some(trx) = self.waits {
                known.insert(trx);
                return Answer::Waits;
            }
            assert!(start.elapsed() < HANG, "{call:?}: no answer, and no wait");
        }
    }

    fn answer(&mut self) -> Answer {
        // A transaction leaves the list when its lock is granted. Then it answers, or waits for another lock.
        let trx = self.waits.expect("it waits");
        let start = Instant::now();
        loop {
            let waits = self.db.lock_waits().iter().any(|wait| wait.trx == trx);
            match self.answers.recv_timeout(Duration::from_millis(1)) {
                Ok(answer) => {
                    self.waits = None;
                    self.waiting.lock().unwrap().remove(&trx);
                    return answer;
                }
                Err(_) if waits => return Answer::Waits,
                Err(_) => assert!(start.elapsed() < HANG, "{trx:?} was served, and does not answer"),
            }
        }
    }
}
