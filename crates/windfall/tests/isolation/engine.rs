//! The engine behind the trait: its sessions, on the simulated disk and real threads.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use windfall::{
    Database, Error, Isolation, Options, Result, Table, TableOptions, Transaction, TransactionOptions,
    disk::simulated::SimulatedDisk,
    env::{Next, RealEnv, Step},
    error::{LockError, SchemaError, TransactionError},
};

use super::{
    changed_env,
    client::{Answer, Call, Change, Client, Level, Lock, Refusal, Row, Rows, Value},
};

/// Workers have no rest: what purge must leave alone it meets at once.
#[derive(Debug)]
struct Restless;

impl changed_env::Change for Restless {
    fn step(&self, _name: &'static str, mut step: Step) -> Step {
        Box::new(move || match step() {
            Next::Idle(pause) => Next::Idle(pause.min(Duration::from_micros(500))),
            next => next,
        })
    }
}

/// A database with one empty table.
pub fn database() -> Database {
    let options = Options::default()
        .page_size(4096)
        .buffer_pool_size(256 * 4096)
        .log_size(4 << 20)
        .log_buffer_size(256 << 10)
        .lock_wait_timeout(Duration::from_secs(30));
    let env = Arc::new(changed_env::Changed { env: Arc::new(RealEnv::default()), change: Restless });
    let db = Database::open_on(Arc::new(SimulatedDisk::new(1)), env, &options, &|_| {}).unwrap();
    db.create_table("rows", TableOptions::default()).unwrap();
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

/// How many numbers there are, these, and what makes some values lie in pages of their own, and fills undo slices.
fn encode(value: &Value) -> Vec<u8> {
    let numbers = [value.len() as u64].into_iter().chain(value.iter().copied());
    let mut bytes: Vec<u8> = numbers.flat_map(u64::to_be_bytes).collect();
    let length = if value.len().is_multiple_of(3) { 3000 } else { 700 };
    bytes.resize(bytes.len().max(length), 0);
    bytes
}

fn decode(bytes: &[u8]) -> Value {
    let mut numbers = bytes.chunks_exact(8).map(|number| u64::from_be_bytes(number.try_into().unwrap()));
    let count = numbers.next().unwrap();
    numbers.take(count as usize).collect()
}

/// A session that waits where the engine does.
pub struct Session {
    db: Database,
    table: Table,
    open: Option<(Transaction, Table)>,
}

impl Session {
    pub fn new(db: &Database) -> Self {
        Self { db: db.clone(), table: db.table("rows").unwrap(), open: None }
    }

    fn read(table: &Table, rows: Rows, lock: Lock) -> Result<Vec<Row>> {
        if rows.first == rows.last {
            let key = rows.first.to_be_bytes();
            let value = match lock {
                Lock::Plain => table.get(&key),
                Lock::Shared => table.get_for_share(&key),
                Lock::Exclusive => table.get_for_update(&key),
            };
            let value = value?.map(|value| (rows.first, decode(&value)));
            return Ok(value.into_iter().filter(|(_, value)| rows.holds(value)).collect());
        }
        let range = rows.first.to_be_bytes()..=rows.last.to_be_bytes();
        let found = match lock {
            Lock::Plain => table.range(range),
            Lock::Shared => table.range_for_share(range),
            Lock::Exclusive => table.range_for_update(range),
        };
        let rows_of = found?
            .map(|row| row.map(|(key, value)| (u64::from_be_bytes(key.try_into().unwrap()), decode(&value))));
        let all: Vec<Row> = rows_of.collect::<Result<_>>()?;
        Ok(all.into_iter().filter(|(_, value)| rows.holds(value)).collect())
    }

    fn run(table: &Table, call: &Call) -> Result<Answer> {
        match *call {
            Call::Read(rows, lock) => return Self::read(table, rows, lock).map(Answer::Rows),
            Call::Put(key, number) => table.put(&key.to_be_bytes(), &encode(&vec![number]))?,
            Call::Append(key, number) => {
                let key = key.to_be_bytes();
                loop {
                    let Some(value) = table.get_for_update(&key)? else {
                        match table.insert(&key, &encode(&vec![number])) {
                            // Where no gap is locked somebody else may have been quicker.
                            Err(Error::Schema(SchemaError::DuplicateKey(_))) => continue,
                            done => break done?,
                        }
                    };
                    let mut value = decode(&value);
                    value.push(number);
                    break table.put(&key, &encode(&value))?;
                }
            }
            Call::Delete(key, _) => {
                if !table.delete(&key.to_be_bytes())? {
                    return Ok(Answer::Rows(Vec::new()));
                }
            }
            Call::Change(rows, change) => {
                for (key, mut value) in Self::read(table, rows, Lock::Exclusive)? {
                    let key = key.to_be_bytes();
                    match change {
                        Change::Set(number) => value[0] = number,
                        Change::Add(number) => value[0] += number,
                        Change::Delete => {
                            table.delete(&key)?;
                            continue;
                        }
                    }
                    table.put(&key, &encode(&value))?;
                }
            }
            Call::Begin(_) | Call::Commit | Call::Rollback => unreachable!("they are of the session"),
        }
        Ok(Answer::Done)
    }
}

impl Client for Session {
    fn call(&mut self, call: &Call) -> Answer {
        if let Call::Begin(level) = call {
            let trx = self.db.begin(TransactionOptions::default().isolation(isolation(*level)));
            let table = self.table.within(&trx);
            self.open = Some((trx, table));
            return Answer::Done;
        }
        let (trx, table) = self.open.take().expect("a transaction was begun");
        let done = match call {
            Call::Commit => trx.commit().map(|()| Answer::Done),
            Call::Rollback => trx.rollback().map(|()| Answer::Done),
            call => {
                let done = Self::run(&table, call);
                if done.is_ok() {
                    self.open = Some((trx, table));
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

/// A session on a thread of its own, which says so when a call waits.
pub struct Watched {
    db: Database,
    calls: Sender<Call>,
    answers: Receiver<Answer>,
    /// How many sessions wait, as far as was told.
    waiting: Arc<AtomicUsize>,
}

impl Watched {
    pub fn new(db: &Database, waiting: &Arc<AtomicUsize>) -> Self {
        let (calls, to_do) = channel();
        let (done, answers) = channel();
        let mut session = Session::new(db);
        thread::spawn(move || {
            for call in to_do {
                let _ = done.send(session.call(&call));
            }
        });
        Self { db: db.clone(), calls, answers, waiting: waiting.clone() }
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
            let told = self.waiting.load(SeqCst);
            if self.db.lock_waits().len() > told || start.elapsed() > Duration::from_secs(20) {
                self.waiting.fetch_add(1, SeqCst);
                return Answer::Waits;
            }
        }
    }

    fn answer(&mut self) -> Answer {
        // Who is served goes on at once, and answers; who is not stays in the list. Others may have been served, too.
        let start = Instant::now();
        loop {
            if let Ok(answer) = self.answers.recv_timeout(Duration::from_millis(1)) {
                self.waiting.fetch_sub(1, SeqCst);
                return answer;
            }
            let all_wait = self.db.lock_waits().len() == self.waiting.load(SeqCst);
            if all_wait || start.elapsed() > Duration::from_secs(1) {
                return Answer::Waits;
            }
        }
    }
}
