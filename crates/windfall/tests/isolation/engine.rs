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
    Batch, Database, Error, IndexBatch, IndexEntry, IndexOptions, Isolation, OneRow, Options, Result,
    StatementEnd, SuppliedChange, SuppliedEntry, Table, TableOptions, Transaction, TransactionOptions,
    TxTable, Values,
    env::{Next, RealEnv, Step},
    error::{LockError, SchemaError, TransactionError},
    ids::TrxId,
};
use windfall_base::failpoint::Eager;
use windfall_sim::SimulatedDisk;

use super::{
    changed_env,
    client::{Answer, Call, Change, Client, Level, Lock, Refusal, Row, Rows, Value, is_wanted},
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
    // Every write moves the row's index entries.
    database_with(
        TableOptions::default()
            .index("by_item", IndexOptions::on_value(0..HEAD as u32))
            .index("by_item_once", IndexOptions::on_value(0..HEAD as u32).unique()),
    )
}

/// Creates such a database with indexes of supplied entries: every write moves the entry in the first index, and
/// replaces the payload of that in the second one.
pub(crate) fn database_of_supplied_entries() -> Database {
    database_with(
        TableOptions::default()
            .index("by_item", IndexOptions::supplied(HEAD as u16))
            .index("by_item_once", IndexOptions::supplied(8).unique()),
    )
}

fn database_with(indexes: TableOptions) -> Database {
    let options = Options::default()
        .page_size(4096)
        .buffer_pool_size(256 * 4096)
        .log_size(4 << 20)
        .log_buffer_size(256 << 10)
        .lock_wait_timeout(HANG);
    let env = Arc::new(changed_env::Changed { env: Arc::new(RealEnv::default()), change: WithoutPauses });
    let db = Database::open_on(Arc::new(SimulatedDisk::new(1)), env, &options, &|_| {}).unwrap();
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
    /// By a cursor on a range, some rows at a time.
    Cursor,
    /// In the same way, by the entries of an index.
    IndexCursor(&'static str),
    /// All keys of the range in one call.
    Many,
    /// A single row by its unique index key, which is its key.
    One,
}

/// The most rows that a cursor returns at a time: less than a range has.
const BATCH: usize = 2;

/// Returns the keys of a range, if they are few.
fn keys_of(rows: Rows) -> Option<Vec<[u8; 8]>> {
    (rows.last - rows.first < 16).then(|| (rows.first..=rows.last).map(u64::to_be_bytes).collect())
}

/// The supplied entries of a row: of the first index, and of the second one.
struct Entries {
    key: [u8; 8],
    head: Vec<u8>,
}

impl Entries {
    fn of(key: u64, value: &Value) -> Self {
        Self {
            key: key.to_be_bytes(),
            head: head(key, value).into_iter().flat_map(u64::to_be_bytes).collect(),
        }
    }

    /// Returns the changes of a row's entries.
    fn changes<'e>(old: Option<&'e Self>, new: Option<&'e Self>) -> [SuppliedChange<'e>; 2] {
        let moving = |entries: &'e Self| SuppliedEntry::new(&entries.head).payload(&entries.head[8..]);
        let fixed = |entries: &'e Self| SuppliedEntry::new(&entries.key).payload(&entries.head);
        [
            SuppliedChange::new("by_item", old.map(moving), new.map(moving)),
            SuppliedChange::new("by_item_once", old.map(fixed), new.map(fixed)),
        ]
    }
}

fn row_of(key: &[u8], value: &[u8]) -> Row {
    (u64::from_be_bytes(key.try_into().unwrap()), decode(value))
}

/// Returns the row of an entry, whose payload, if it has one, must end with the end of the row's head.
fn row_of_entry(entry: IndexEntry<'_>) -> Row {
    let head = &entry.value[..HEAD];
    assert!(head.ends_with(entry.payload), "the payload {:?} is not that of {head:?}", entry.payload);
    row_of(entry.key, entry.value)
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
    /// Whether the entries of the indexes are supplied.
    supplies: bool,
    /// Whether the call in progress is a statement.
    in_statement: bool,
}

impl Session {
    pub(crate) fn new(db: &Database) -> Self {
        let (table, level) = (db.table("rows").unwrap(), Level::ReadCommitted);
        Self {
            db: db.clone(),
            table,
            open: None,
            level,
            ways: &[By::Key],
            reads: 0,
            eager: false,
            supplies: false,
            in_statement: false,
        }
    }

    /// Creates a session that finds rows in all ways. `supplies` is whether it supplies the entries of the indexes.
    pub(crate) fn of_all_ways(db: &Database, eager: bool, supplies: bool) -> Self {
        let ways = &[
            By::Key,
            By::Index("by_item"),
            By::Cursor,
            By::Many,
            By::IndexCursor("by_item"),
            By::Key,
            By::Index("by_item_once"),
            By::One,
            By::IndexCursor("by_item_once"),
        ];
        Self { ways, eager, supplies, ..Self::new(db) }
    }

    /// Returns how to find rows this time. A reader with neither a read view nor gap locks misses a row that an index
    /// update moves to a position that its scan has passed, as in every database.
    fn next_way(&mut self, rows: Rows, lock: Lock) -> By {
        self.reads += 1;
        let may_miss = match self.level {
            Level::ReadUncommitted => true,
            Level::ReadCommitted => lock != Lock::Plain,
            _ => false,
        };
        // The batches of a cursor are of different moments, unless they are of one statement.
        let may_tear = self.level == Level::ReadCommitted && lock == Lock::Plain && !self.in_statement;
        match self.ways[self.reads % self.ways.len()] {
            By::Cursor if may_tear => By::Key,
            By::IndexCursor(name) if may_tear => By::Index(name),
            By::Index(_) if may_miss => By::Key,
            By::IndexCursor(_) if may_miss => By::Cursor,
            By::Many if keys_of(rows).is_none() => By::Key,
            // A dirty read finds an entry and its row at different moments.
            By::One if self.level == Level::ReadUncommitted && lock == Lock::Plain => By::Key,
            // An index key of the value contains what the row is read for.
            By::One if !self.supplies || rows.first != rows.last => By::Key,
            by => by,
        }
    }

    fn read(&mut self, table: &TxTable<'_>, rows: Rows, lock: Lock) -> Result<Vec<Row>> {
        let by = self.next_way(rows, lock);
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
        match by {
            By::Key => Self::find_by_key(table, rows, lock),
            By::Index(name) => {
                let (index, heads) = (table.index(name)?, heads(rows));
                let found = match lock {
                    Lock::Plain => index.range(heads),
                    Lock::Shared => index.range_for_share(heads),
                    Lock::Exclusive => index.range_for_update(heads),
                };
                found?.map(|row| row.map(|row| row_of(&row.key, &row.value))).collect()
            }
            By::Cursor => {
                let mut cursor = match lock {
                    Lock::Plain => table.cursor(),
                    Lock::Shared => table.cursor_for_share(),
                    Lock::Exclusive => table.cursor_for_update(),
                }?;
                cursor.set_range(rows.first.to_be_bytes()..=rows.last.to_be_bytes());
                let (mut batch, mut found) = (Batch::default(), Vec::new());
                while cursor.next_batch_of(&mut batch, BATCH)? > 0 {
                    found.extend(batch.iter().map(|(key, value)| row_of(key, value)));
                }
                Ok(found)
            }
            By::IndexCursor(name) => {
                let index = table.index(name)?;
                let mut cursor = match lock {
                    Lock::Plain => index.cursor(),
                    Lock::Shared => index.cursor_for_share(),
                    Lock::Exclusive => index.cursor_for_update(),
                }?;
                cursor.set_range(heads(rows));
                let (mut batch, mut found) = (IndexBatch::default(), Vec::new());
                while cursor.next_batch_of(&mut batch, BATCH)? > 0 {
                    found.extend(batch.iter().map(row_of_entry));
                }
                Ok(found)
            }
            By::Many => {
                let (keys, mut values) = (keys_of(rows).expect("they are few"), Values::default());
                match lock {
                    Lock::Plain => table.get_many(&keys, &mut values),
                    Lock::Shared => table.get_many_for_share(&keys, &mut values),
                    Lock::Exclusive => table.get_many_for_update(&keys, &mut values),
                }?;
                let found = keys.iter().zip(values.iter());
                Ok(found.filter_map(|(key, value)| Some(row_of(key, value?))).collect())
            }
            By::One => {
                let (index, key) = (table.index("by_item_once")?, rows.first.to_be_bytes());
                let mut one = OneRow::default();
                let found = match lock {
                    Lock::Plain => index.get_one(&key, &mut one),
                    Lock::Shared => index.get_one_for_share(&key, &mut one),
                    Lock::Exclusive => index.get_one_for_update(&key, &mut one),
                };
                Ok(found?.map(row_of_entry).into_iter().collect())
            }
        }
    }

    /// Locks rows, and unlocks those that are not wanted. Each call does that in another way.
    fn pick(&mut self, table: &TxTable<'_>, rows: Rows) -> Result<Vec<(Row, bool)>> {
        self.reads += 1;
        let mut picked = Vec::new();
        match self.reads % 3 {
            0 => {
                let mut cursor = table.cursor_for_update()?;
                cursor.semi_consistent(true);
                cursor.set_range(rows.first.to_be_bytes()..=rows.last.to_be_bytes());
                while cursor.next()? {
                    let mut row = cursor.row().map(|(key, value)| row_of(key, value)).expect("it has a row");
                    let mut is_locked = !cursor.was_semi_consistent();
                    if !is_locked && is_wanted(&row.1) {
                        // Its newest version is not known yet.
                        if !cursor.lock_row()? {
                            continue;
                        }
                        row = cursor.row().map(|(key, value)| row_of(key, value)).expect("it has a row");
                        is_locked = true;
                    }
                    if is_locked && !is_wanted(&row.1) {
                        is_locked = !cursor.unlock_row()?;
                    }
                    picked.push((row, is_locked));
                }
            }
            1 => {
                let (mut cursor, mut batch) = (table.cursor_for_update()?, Batch::default());
                cursor.set_range(rows.first.to_be_bytes()..=rows.last.to_be_bytes());
                while cursor.next_batch_of(&mut batch, BATCH)? > 0 {
                    let found: Vec<Row> = batch.iter().map(|(key, value)| row_of(key, value)).collect();
                    for (place, row) in found.into_iter().enumerate() {
                        let unlocks = !is_wanted(&row.1) && cursor.unlock_row_of(&mut batch, place)?;
                        picked.push((row, !unlocks));
                    }
                }
            }
            _ => {
                let (keys, mut values) = (keys_of(rows).expect("they are few"), Values::default());
                table.get_many_for_update(&keys, &mut values)?;
                for (place, key) in keys.iter().enumerate() {
                    let Some(row) = values.get(place).map(|value| row_of(key, value)) else { continue };
                    let unlocks = !is_wanted(&row.1) && table.unlock_row_of(&mut values, place)?;
                    picked.push((row, !unlocks));
                }
            }
        }
        Ok(picked)
    }

    fn find_by_key(table: &TxTable<'_>, rows: Rows, lock: Lock) -> Result<Vec<Row>> {
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

    /// Inserts a row, with its entries if they are supplied.
    fn insert(table: &TxTable<'_>, key: u64, value: &Value, supplies: bool) -> Result<()> {
        let (row, bytes) = (key.to_be_bytes(), encode(key, value));
        if !supplies {
            return table.insert(&row, &bytes);
        }
        table.insert_with(&row, &bytes, &Entries::changes(None, Some(&Entries::of(key, value))))
    }

    /// Puts a row. If its entries are supplied, it is locked before, because the old ones must be known.
    fn put(table: &TxTable<'_>, key: u64, value: &Value, supplies: bool) -> Result<()> {
        let (row, bytes) = (key.to_be_bytes(), encode(key, value));
        if !supplies {
            return table.put(&row, &bytes);
        }
        loop {
            let Some(old) = table.get_for_update(&row)? else {
                match Self::insert(table, key, value, supplies) {
                    // Without gap locks another transaction may have inserted the row first.
                    Err(Error::Schema(SchemaError::DuplicateKey { .. })) => continue,
                    done => return done,
                }
            };
            let (old, new) = (Entries::of(key, &decode(&old)), Entries::of(key, value));
            return table.update_with(&row, &bytes, &Entries::changes(Some(&old), Some(&new)));
        }
    }

    /// Deletes a row. Returns whether there was one.
    fn delete(table: &TxTable<'_>, key: u64, supplies: bool) -> Result<bool> {
        let row = key.to_be_bytes();
        if !supplies {
            return table.delete(&row);
        }
        let Some(old) = table.get_for_update(&row)? else { return Ok(false) };
        table.delete_with(&row, &Entries::changes(Some(&Entries::of(key, &decode(&old))), None))
    }

    /// Runs a call as a statement, or, in some cases, without one.
    fn run_as_statement(&mut self, trx: &Transaction, call: &Call) -> Result<Answer> {
        let table = self.table.clone();
        self.in_statement = self.ways.len() > 1 && self.reads.is_multiple_of(2);
        if self.in_statement {
            trx.begin_statement()?;
        }
        let done = self.run(&trx.table(&table), call)?;
        if self.in_statement {
            trx.end_statement(StatementEnd::Keep)?;
        }
        Ok(done)
    }

    fn run(&mut self, table: &TxTable<'_>, call: &Call) -> Result<Answer> {
        let supplies = self.supplies;
        let put = |key: u64, value: &Value| Self::put(table, key, value, supplies);
        match *call {
            Call::Read(rows, lock) => return self.read(table, rows, lock).map(Answer::Rows),
            Call::Pick(rows) => return self.pick(table, rows).map(Answer::Picked),
            Call::Put(key, number) => put(key, &vec![number])?,
            Call::Append(key, number) => {
                let row = key.to_be_bytes();
                loop {
                    let Some(value) = table.get_for_update(&row)? else {
                        match Self::insert(table, key, &vec![number], supplies) {
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
                if !Self::delete(table, key, supplies)? {
                    return Ok(Answer::Rows(Vec::new()));
                }
            }
            Call::Change(rows, change) => {
                for (key, mut value) in self.read(table, rows, Lock::Exclusive)? {
                    match change {
                        Change::Set(number) => value[0] = number,
                        Change::Add(number) => value[0] += number,
                        Change::Delete => {
                            Self::delete(table, key, supplies)?;
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
                let done = self.run_as_statement(&trx, call);
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
