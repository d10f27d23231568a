//! The engine on a simulated disk, with one thread: executes steps, and returns their outcomes. No call waits for a
//! lock.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use windfall::{
    Access, Database, Error, IndexOptions, Isolation, LockWaitPolicy, Options, Result, Session, StatementEnd,
    Table, TableOptions, Transaction, TransactionOptions, TxTable, env::Env, error::UsageError,
};
use windfall_base::{failpoint::Eager, sync::as_another_thread};
use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

use crate::changed_env::{Change, Changed};
use crate::outcome::{ON_PURPOSE, Outcome, Refusal};
use crate::over::{self, Held, index_name};
use crate::steps::{CURSORS, Ddl, End, Locking, Move, Over, Read, SLOTS, Shape, Which, WriteMode};
use crate::value::{Key, Value, duplicate_lock, key_bytes};

/// A call as the world executes it, with the index of its table.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Write { table: usize, key: Key, value: Value, mode: WriteMode },
    Get { table: usize, key: Key, read: Read },
    Lock { table: usize, key: Key, locking: Locking },
}

type Action = Box<dyn FnOnce() + Send>;

/// An action that runs at the next yield point of a call.
#[derive(Clone, Default)]
struct Meanwhile(Arc<Mutex<Option<Action>>>);

impl core::fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Meanwhile")
    }
}

impl Change for Meanwhile {
    fn yield_point(&self, env: &dyn Env) {
        let action = self.0.lock().unwrap().take();
        if let Some(action) = action {
            as_another_thread(action);
        }
        env.yield_point();
    }
}

pub(crate) struct World {
    seed: u64,
    disk: SimulatedDisk,
    env: SimulatedEnv,
    meanwhile: Meanwhile,
    pub db: Database,
    session: Session,
    slots: [Option<Transaction>; SLOTS as usize],
    cursors: BTreeMap<u8, Held>,
    /// In the order of their creation; `None` if there is no handle any more.
    tables: Vec<Option<Table>>,
    /// The number of earlier processes.
    lives: u64,
}

impl Call {
    /// Returns the index of its table.
    pub(crate) fn table(self) -> usize {
        match self {
            Self::Write { table, .. } | Self::Get { table, .. } | Self::Lock { table, .. } => table,
        }
    }
}

fn options() -> Options {
    Options::default()
        .page_size(4096)
        .buffer_pool_size(256 * 4096)
        .log_size(4 << 20)
        .log_buffer_size(256 << 10)
        .lock_wait_timeout(Duration::ZERO)
}

fn open(disk: &SimulatedDisk, env: &SimulatedEnv, meanwhile: &Meanwhile) -> Result<Database> {
    let env = Arc::new(Changed { env: Arc::new(env.clone()), change: meanwhile.clone() });
    let db = Database::open_on(Arc::new(disk.clone()), env, &options(), &|_| {})?;
    // Statements do not wait, either.
    Ok(db.with_ddl_timeout(Duration::ZERO))
}

fn index_options(which: Which) -> IndexOptions {
    match which {
        Which::First => IndexOptions::on_value(0..1),
        Which::Unique => IndexOptions::on_value(1..2).unique(),
    }
}

fn table_options(first: bool, unique: bool) -> TableOptions {
    let wanted = [(first, Which::First), (unique, Which::Unique)];
    let wanted = wanted.into_iter().filter(|(wanted, _)| *wanted);
    wanted.fold(TableOptions::default(), |options, (_, which)| {
        options.index(index_name(which), index_options(which))
    })
}

pub(crate) fn table_name(name: u8) -> String {
    format!("t{name}")
}

fn of_bytes(bytes: Option<Vec<u8>>) -> Outcome {
    match bytes.map(|bytes| Value::of(&bytes).ok_or(bytes)) {
        None => Outcome::Value(None),
        Some(Ok(value)) => Outcome::Value(Some(value)),
        Some(Err(bytes)) => Refusal::Other(format!("a value that was never written: {bytes:?}")).into(),
    }
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        // In every second history each change first freezes its leaf.
        Eager::set(seed.is_multiple_of(2));
        let (disk, env, meanwhile) =
            (SimulatedDisk::new(seed), SimulatedEnv::new(seed), Meanwhile::default());
        let db = open(&disk, &env, &meanwhile).unwrap();
        let session = db.session();
        Self {
            seed,
            disk,
            env,
            meanwhile,
            db,
            session,
            slots: Default::default(),
            cursors: BTreeMap::new(),
            tables: Vec::new(),
            lives: 0,
        }
    }

    fn table(&self, table: usize) -> &Table {
        self.tables[table].as_ref().expect("there is a handle")
    }

    fn table_in(&self, slot: u8, table: usize) -> TxTable<'_> {
        self.trx(slot).table(self.table(table))
    }

    fn table_to_write(&self, slot: u8, table: usize, value: Value) -> TxTable<'_> {
        self.table_in(slot, table).duplicate_lock(duplicate_lock(value))
    }

    fn trx(&self, slot: u8) -> &Transaction {
        self.slots[slot as usize].as_ref().expect("there is a transaction")
    }

    pub(crate) fn begin(&mut self, slot: u8, level: Isolation, read_only: bool, snapshot: bool) {
        let mut options = TransactionOptions::default().isolation(level).lock_wait(Duration::ZERO);
        if read_only {
            options = options.read_only();
        }
        if snapshot {
            options = options.consistent_snapshot();
        }
        self.slots[slot as usize] = Some(self.db.begin(options));
    }

    pub(crate) fn end(&mut self, slot: u8, how: End) -> Outcome {
        let trx = self.slots[slot as usize].take().expect("there is a transaction");
        let done = match how {
            End::Commit => trx.commit().map(drop),
            End::RollBack => trx.rollback(),
            End::Drop => {
                drop(trx);
                Ok(())
            }
        };
        Outcome::of(done, |()| Outcome::Done)
    }

    pub(crate) fn begin_statement(&self, slot: u8) -> Outcome {
        Outcome::of(self.trx(slot).begin_statement(), |()| Outcome::Done)
    }

    pub(crate) fn end_statement(&self, slot: u8, undo: bool) -> Outcome {
        let end = if undo { StatementEnd::Undo } else { StatementEnd::Keep };
        Outcome::of(self.trx(slot).end_statement(end), |()| Outcome::Done)
    }

    pub(crate) fn holds_locks(&self, slot: u8) -> bool {
        self.trx(slot).holds_locks().expect("no call of it is in progress")
    }

    pub(crate) fn savepoint(&self, slot: u8, name: u8) -> Outcome {
        Outcome::of(self.trx(slot).savepoint(&name.to_string()), |()| Outcome::Done)
    }

    pub(crate) fn rollback_to(&self, slot: u8, name: u8) -> Outcome {
        Outcome::of(self.trx(slot).rollback_to(&name.to_string()), |()| Outcome::Done)
    }

    pub(crate) fn release(&self, slot: u8, name: u8) -> Outcome {
        Outcome::of(self.trx(slot).release(&name.to_string()), |()| Outcome::Done)
    }

    pub(crate) fn prepare(&self, slot: u8, name: u8) -> Outcome {
        Outcome::of(self.trx(slot).prepare(&[name]), |()| Outcome::Done)
    }

    pub(crate) fn end_prepared(&self, name: u8, commits: bool) -> Outcome {
        let done = if commits {
            self.db.commit_prepared(&[name]).map(drop)
        } else {
            self.db.rollback_prepared(&[name])
        };
        Outcome::of(done, |()| Outcome::Done)
    }

    pub(crate) fn prepared(&self) -> Vec<u8> {
        self.db.prepared().into_iter().map(|prepared| prepared.xid[0]).collect()
    }

    pub(crate) fn call(&self, by: Option<u8>, call: Call) -> Outcome {
        self.make(by, call).0
    }

    /// Executes a call. Returns its outcome, and the error if there is one.
    fn make(&self, by: Option<u8>, call: Call) -> (Outcome, Option<Error>) {
        split_error(match (call, by) {
            (Call::Write { table, key, value, mode }, Some(slot)) => {
                write(&self.table_to_write(slot, table, value), key, value, mode)
            }
            (Call::Write { table, key, value, mode }, None) => write(self.table(table), key, value, mode),
            (Call::Get { table, key, read }, Some(slot)) => get(&self.table_in(slot, table), key, read),
            (Call::Get { table, key, read }, None) => get(self.table(table), key, read),
            (Call::Lock { table, key, locking }, slot) => {
                let slot = slot.expect("a locking read is in a transaction");
                lock(&self.table_in(slot, table), key, locking)
            }
        })
    }

    /// Executes several calls as a statement. Returns the outcome of each, up to the first that is refused, and that of
    /// the statement.
    pub(crate) fn statement(&self, slot: u8, calls: &[Call], fails: bool) -> (Vec<Outcome>, Outcome) {
        let mut outcomes = Vec::new();
        let done = self.trx(slot).atomically(|| {
            for call in calls {
                let (outcome, error) = self.make(Some(slot), *call);
                outcomes.push(outcome);
                if let Some(error) = error {
                    return Err(error);
                }
            }
            if fails { Err(UsageError::Other(ON_PURPOSE.into()).into()) } else { Ok(()) }
        });
        (outcomes, Outcome::of(done, |()| Outcome::Done))
    }

    /// Writes a value from a source that makes a call. Returns the outcome of that call, if it was made, and that of
    /// the write.
    pub(crate) fn nested(
        &self,
        by: Option<u8>,
        (table, key, value): (usize, Key, Value),
        late: bool,
        inner: (Option<u8>, Call),
    ) -> (Option<Outcome>, Outcome) {
        let mut inner_outcome = None;
        let bytes = value.bytes();
        let done = {
            let call = || inner_outcome = Some(self.call(inner.0, inner.1));
            let mut source = Source { bytes: &bytes, at: 0, late, call: Some(call) };
            let (key, length) = (key_bytes(key), bytes.len() as u64);
            match by {
                Some(slot) => self.table_to_write(slot, table, value).put_stream(&key, length, &mut source),
                None => self.table(table).put_stream(&key, length, &mut source),
            }
        };
        (inner_outcome, Outcome::of(done, |()| Outcome::Done))
    }

    /// Executes a call, while the transaction in slot `ending` ends at the call's next yield point. Also returns the
    /// outcome of that end, if it has happened.
    pub(crate) fn race(
        &mut self,
        slot: u8,
        call: Call,
        ending: u8,
        commits: bool,
    ) -> (Outcome, Option<Outcome>) {
        let trx = Arc::new(Mutex::new(self.slots[ending as usize].take()));
        let ended = Arc::new(Mutex::new(None));
        let action = {
            let (trx, ended) = (trx.clone(), ended.clone());
            move || {
                let trx = trx.lock().unwrap().take().expect("it ends once");
                let done = if commits { trx.commit().map(drop) } else { trx.rollback() };
                *ended.lock().unwrap() = Some(Outcome::of(done, |()| Outcome::Done));
            }
        };
        *self.meanwhile.0.lock().unwrap() = Some(Box::new(action));
        let outcome = self.call(Some(slot), call);
        *self.meanwhile.0.lock().unwrap() = None;
        self.slots[ending as usize] = trx.lock().unwrap().take();
        let ended = ended.lock().unwrap().take();
        (outcome, ended)
    }

    pub(crate) fn open(
        &mut self,
        place: u8,
        by: Option<u8>,
        table: usize,
        (over, shape): (Over, Shape),
        locking: Option<Locking>,
    ) -> Outcome {
        assert!(place < CURSORS);
        let opened = match (by, locking) {
            (Some(slot), Some(locking)) => {
                over::open_locking(&self.table_in(slot, table), over, shape, locking)
            }
            (Some(slot), None) => over::open(&self.table_in(slot, table), over, shape),
            (None, _) => over::open(self.table(table), over, shape),
        };
        Outcome::of(opened, |held| {
            self.cursors.insert(place, held);
            Outcome::Done
        })
    }

    pub(crate) fn close(&mut self, place: u8) {
        self.cursors.remove(&place);
    }

    /// Moves a cursor and returns the outcome.
    pub(crate) fn step(&mut self, place: u8, over: Over, to: Move) -> Outcome {
        self.cursors.get_mut(&place).expect("there is a cursor").step(over, to)
    }

    pub(crate) fn ddl(&mut self, ddl: &Ddl) -> Outcome {
        let (db, name) = (self.db.clone(), table_name);
        let done: Result<Option<Table>> = match *ddl {
            Ddl::Create { name: n, first, unique } => {
                db.create_table(&name(n), table_options(first, unique)).map(Some)
            }
            Ddl::CreateTemporary { first, unique } => {
                self.session.create_temporary_table("temporary", table_options(first, unique)).map(Some)
            }
            Ddl::DropTemporary => self.session.drop_temporary_table("temporary").map(|_| None),
            Ddl::Drop { name: n } => db.drop_table(&name(n)).map(|_| None),
            Ddl::DropTwo { one, other } => db.drop_tables(&[&name(one), &name(other)]).map(|_| None),
            Ddl::Truncate { name: n } => db.truncate_table(&name(n)).map(|_| None),
            Ddl::Rename { from, to } => db.rename_table(&name(from), &name(to)).map(|()| None),
            Ddl::Swap { one, other } => db.swap_tables(&name(one), &name(other)).map(|()| None),
            Ddl::CreateIndex { name: n, which } => {
                db.create_index(&name(n), index_name(which), index_options(which)).map(|()| None)
            }
            Ddl::DropIndex { name: n, which } => db.drop_index(&name(n), index_name(which)).map(|_| None),
        };
        Outcome::of(done, |made| {
            self.tables.extend(made.map(Some));
            Outcome::Done
        })
    }

    pub(crate) fn run_workers(&self, steps: usize) {
        self.env.run_workers(steps);
    }

    pub(crate) fn checkpoint(&self) -> Outcome {
        Outcome::of(self.db.checkpoint(), |()| Outcome::Done)
    }

    /// Returns the findings of a check.
    pub(crate) fn check(&self, live: bool) -> Vec<String> {
        let report = if live { self.db.check_live() } else { self.db.check() };
        report.map_or_else(|error| vec![error.to_string()], |report| report.findings)
    }

    pub(crate) fn rolls_back(&self) -> bool {
        self.db.metrics().rollbacks_pending > 0
    }

    /// Starts the next process, after a crash or a clean end. `names` maps the names of the tables to their indexes.
    pub(crate) fn restart(&mut self, crash: Option<u8>, names: &BTreeMap<u8, usize>) {
        self.lives += 1;
        self.cursors.clear();
        if let Some(chance) = crash {
            let disk = self.disk.restart(match chance {
                0 => Survive::Nothing,
                1 => Survive::Everything,
                seed => Survive::Random(seed.into()),
            });
            self.release_all();
            self.disk = disk;
        } else {
            self.release_all();
            self.db.clone().close().unwrap();
        }
        self.env = SimulatedEnv::new(self.seed + self.lives);
        self.db = open(&self.disk, &self.env, &self.meanwhile).unwrap();
        self.session = self.db.session();
        for (name, table) in names {
            self.tables[*table] = Some(self.db.table(&table_name(*name)).unwrap());
        }
    }

    /// Drops all handles except that of the database.
    fn release_all(&mut self) {
        self.slots = Default::default();
        self.tables.iter_mut().for_each(|table| *table = None);
    }
}

fn write(table: &Table<impl Access>, key: Key, value: Value, mode: WriteMode) -> Result<Outcome> {
    let (key, bytes) = (key_bytes(key), value.bytes());
    match mode {
        WriteMode::Insert => table.insert(&key, &bytes).map(|()| Outcome::Done),
        WriteMode::Put => table.put(&key, &bytes).map(|()| Outcome::Done),
        WriteMode::Update => table.update(&key, &bytes).map(|()| Outcome::Done),
        WriteMode::Delete => table.delete(&key).map(Outcome::Is),
    }
}

fn get(table: &Table<impl Access>, key: Key, read: Read) -> Result<Outcome> {
    let key = key_bytes(key);
    match read {
        Read::Get => table.get(&key).map(of_bytes),
        Read::Contains => table.contains(&key).map(Outcome::Is),
        Read::Stream => {
            let mut bytes = Vec::new();
            let length = table.read_stream(&key, &mut bytes);
            length.map(|length| of_bytes(length.map(|_| bytes)))
        }
    }
}

fn lock(table: &TxTable<'_>, key: Key, locking: Locking) -> Result<Outcome> {
    let (table, key) = (
        table.lock_wait_policy(if locking.skips { LockWaitPolicy::SkipLocked } else { LockWaitPolicy::Wait }),
        key_bytes(key),
    );
    let value = if locking.exclusive { table.get_for_update(&key) } else { table.get_for_share(&key) };
    value.map(of_bytes)
}

fn split_error(result: Result<Outcome>) -> (Outcome, Option<Error>) {
    match result {
        Ok(outcome) => (outcome, None),
        Err(error) => (Refusal::from(&error).into(), Some(error)),
    }
}

/// The source of a value, which makes a call at its first bytes, or after the first 64 KiB. The engine reads these
/// before it has planned the change, and the rest during it.
struct Source<'a, F> {
    bytes: &'a [u8],
    at: usize,
    late: bool,
    call: Option<F>,
}

/// The bytes of a value that are read before anything else.
pub(crate) const HEAD: usize = 64 << 10;

impl<F: FnOnce()> io::Read for Source<'_, F> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if (!self.late || self.at >= HEAD)
            && let Some(call) = self.call.take()
        {
            call();
        }
        let read = io::Read::read(&mut &self.bytes[self.at..], out)?;
        self.at += read;
        Ok(read)
    }
}
