//! Scripted histories of DDL and row changes, the model of the expected state, and the comparison with the actual
//! state.

#![allow(clippy::unwrap_used, reason = "a test panics")]

mod entries;
pub(crate) mod files;
mod script;

use core::ops::Range;
use std::{collections::BTreeMap, fmt, io, sync::Arc};

use windfall::{
    Database, DdlGroup, Error, IndexOptions, Options, Result, Session, Table, TableChanges, TableOptions,
    TransactionOptions,
    disk::{Disk, FileName},
    env::Env,
    error::UsageError,
};
use windfall_base::failpoint::Eager;
use windfall_sim::{SimulatedDisk, SimulatedEnv};

use entries::Form;
pub(crate) use entries::{Indexes, indexes};
#[allow(unused_imports, reason = "only some tests need each of them")]
pub(crate) use script::{mixed_script, script, script_of_groups, script_of_high_trees};

pub(crate) fn options() -> Options {
    Options::default()
        .page_size(4096)
        .buffer_pool_size(96 * 4096)
        .log_size(1 << 20)
        .log_buffer_size(256 << 10)
}

#[allow(dead_code, reason = "only some tests need it")]
pub(crate) fn open(disk: &SimulatedDisk, seed: u64) -> Result<Live> {
    open_with(disk, seed, &options())
}

pub(crate) fn open_with(disk: &SimulatedDisk, seed: u64, options: &Options) -> Result<Live> {
    // In every second process each change first freezes its leaf.
    Eager::set(seed.is_multiple_of(2));
    let env = SimulatedEnv::new(seed);
    let options = entries::with_extractor(options);
    let db = Database::open_on(Arc::new(disk.clone()), Arc::new(env.clone()), &options, &|_| {})?;
    for prepared in db.prepared() {
        end_prepared(&db, &prepared.xid)?;
    }
    Ok(Live { db, env, session: None, temporary: BTreeMap::new() })
}

/// Ends a prepared transaction as its name (xid) demands, so that the result is that of the step.
fn end_prepared(db: &Database, xid: &[u8]) -> Result<()> {
    if xid[0] == 1 { db.commit_prepared(xid).map(drop) } else { db.rollback_prepared(xid) }
}

/// An open database, and state that ends with its process.
pub(crate) struct Live {
    pub db: Database,
    pub env: SimulatedEnv,
    session: Option<Session>,
    /// The temporary tables of the session, and their expected rows.
    temporary: BTreeMap<String, Rows>,
}

/// The prefix of row keys that contain an auto-increment value.
const NUMBERED: &[u8] = b"{number}";

pub(crate) type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// The expected state: tables by name, their indexes and rows.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Model(pub BTreeMap<String, (Indexes, Rows)>);

/// The letters of indexes. Each is the name of one.
pub(crate) type Letters = &'static str;

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Create(String, Letters),
    /// A table is created from this number of rows, which must be sorted first if it has no index.
    Load(String, Letters, u8),
    /// This number of rows is loaded into a table that exists and is empty.
    LoadInto(String, u8),
    Drop(Vec<String>),
    Truncate(String),
    /// All tables with this prefix are dropped.
    DropPrefix(String),
    /// All tables with this prefix are truncated.
    TruncatePrefix(String),
    Rename(String, String),
    Swap(String, String),
    /// Creations, drops, truncations, renames, swaps and drops of indexes as one statement.
    Group(Vec<Step>),
    CreateIndex(String, Letters),
    DropIndex(String),
    /// Several changes of a table as one statement.
    Alter(String, Alteration),
    Put(String, Vec<u8>, Vec<u8>),
    /// The fields of a row of two fields are set, and those without a value are kept.
    Fields(String, Vec<u8>, [Option<Vec<u8>>; 2]),
    /// A row gets another key and value.
    ChangeKey(String, Vec<u8>, Vec<u8>, Vec<u8>),
    Delete(String, Vec<u8>),
    /// A row is inserted with the table's next auto-increment value as its key, after a row id was requested for it.
    Number(String, Vec<u8>),
    /// A row is put, and while its value is read another row of any table is put. Then two transactions are unfinished
    /// in one undo stream.
    Nested(Box<Nested>),
    /// Several changes in several tables in one transaction, with background work in the middle.
    Transaction(Box<Many>),
    /// A row is put into a temporary table, which is created if it does not exist.
    Temporary(String, Vec<u8>, Vec<u8>),
    /// The temporary tables are read. Then this one is dropped, or all of them with their session.
    EndTemporary(Option<String>),
    Scan(String),
    Checkpoint,
    Settle,
}

/// Changes of a table, which take effect in this order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Alteration {
    drop: Option<Letters>,
    /// From one name to another.
    rename: Option<(Letters, Letters)>,
    add: Option<Letters>,
    /// The length of the metadata.
    metadata: Option<usize>,
    /// Whether auto-increment values are passed over.
    numbers: bool,
    name: Option<String>,
}

impl Alteration {
    /// Returns the indexes after it, or `None` if it must be refused.
    fn after(&self, mut indexes: Indexes) -> Option<Indexes> {
        if let Some(name) = self.drop {
            indexes.remove(name).then_some(())?;
        }
        if let Some((from, to)) = self.rename {
            (indexes.remove(from) && indexes.insert(to.into())).then_some(())?;
        }
        if let Some(name) = self.add {
            indexes.insert(name.into()).then_some(())?;
        }
        Some(indexes)
    }

    /// Returns the statement. `next` is an auto-increment value that was not used yet.
    fn changes(&self, next: u64) -> TableChanges {
        let mut changes = TableChanges::default();
        if let Some(name) = self.drop {
            changes = changes.drop_index(name);
        }
        if let Some((from, to)) = self.rename {
            changes = changes.rename_index(from, to);
        }
        if let Some(name) = self.add {
            changes = changes.add_index(name, entries::options_of(name));
        }
        if let Some(length) = self.metadata {
            changes = changes.metadata(metadata(length));
        }
        if self.numbers {
            changes = changes.numbers(next);
        }
        match &self.name {
            Some(name) => changes.name(name),
            None => changes,
        }
    }
}

/// A call within a call.
#[derive(Clone, Debug)]
pub(crate) struct Nested {
    table: String,
    key: Vec<u8>,
    value: Vec<u8>,
    within: (String, Vec<u8>, Vec<u8>),
    /// Whether the value ends too early: then the row is rolled back, and the other one stays.
    fails: bool,
}

/// The calls of a transaction.
#[derive(Clone)]
pub(crate) struct Many {
    /// Puts and deletions.
    calls: Vec<(String, Vec<u8>, Option<Vec<u8>>)>,
    /// The calls that a rollback to a savepoint undoes.
    undone: Range<usize>,
    /// `Some` if it is prepared before its end: whether its handle is dropped then.
    prepares: Option<bool>,
    commits: bool,
}

/// Omits the values, which are long.
impl fmt::Debug for Many {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (table, key, value) in &self.calls {
            let length = value.as_ref().map(Vec::len);
            write!(f, "{table} {}={length:?} ", String::from_utf8_lossy(key))?;
        }
        write!(f, "without {:?}, prepares: {:?}, commits: {}", self.undone, self.prepares, self.commits)
    }
}

impl Many {
    /// Returns a transaction that puts rows into one table.
    #[allow(dead_code, reason = "only some tests need it")]
    pub(crate) fn puts(table: &str, rows: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) -> Self {
        let calls = rows.into_iter().map(|(key, value)| (table.to_owned(), key, Some(value))).collect();
        Self { calls, undone: 0..0, prepares: None, commits: true }
    }

    /// Returns its tables, once per call.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &String> {
        self.calls.iter().map(|(table, ..)| table)
    }

    fn apply(&self, db: &Database, env: &SimulatedEnv) -> Result<()> {
        let trx = db.begin(TransactionOptions::default());
        let tables: Vec<Table> = self.tables().map(|name| db.table(name)).collect::<Result<_>>()?;
        for (n, (table, (_, key, value))) in tables.iter().zip(&self.calls).enumerate() {
            if n == self.undone.start {
                trx.savepoint("here")?;
            }
            match value {
                Some(value) => entries::put(&trx.table(table), key, value)?,
                None => drop(entries::delete(&trx.table(table), key)?),
            }
            if n % 2 == 1 {
                env.run_workers(2);
            }
            if n + 1 == self.undone.end && !self.undone.is_empty() {
                trx.rollback_to("here")?;
            }
        }
        if let Some(goes) = self.prepares {
            let xid = [&[u8::from(self.commits)][..], &env.random().to_le_bytes()].concat();
            trx.prepare(&xid)?;
            env.run_workers(3);
            let done = if goes {
                drop((trx, tables));
                end_prepared(db, &xid)
            } else if self.commits {
                trx.commit().map(drop)
            } else {
                trx.rollback()
            };
            // A transaction that could not be ended is still prepared. The step has failed, so nothing of it may appear
            // later.
            return done.inspect_err(|_| drop(db.rollback_prepared(&xid)));
        }
        if self.commits { trx.commit().map(drop) } else { trx.rollback() }
    }
}

/// A source that returns a row's value, and performs another action in the middle.
struct Source<'a> {
    bytes: &'a [u8],
    /// The number of bytes that are left when the action is due.
    turn: usize,
    act: Option<Box<dyn FnOnce() -> Result<()> + 'a>>,
}

impl io::Read for Source<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.bytes.len() <= self.turn
            && let Some(act) = self.act.take()
        {
            act().map_err(io::Error::other)?;
        }
        let most = out.len().min(self.bytes.len().saturating_sub(self.turn).max(1));
        self.bytes.read(&mut out[..most])
    }
}

/// Prints values by their length and their first bytes, because there are many.
impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, (indexes, rows)) in &self.0 {
            write!(f, "{name} by {indexes:?}:")?;
            for (key, value) in rows {
                // The filler of a long key carries no information.
                let key = String::from_utf8_lossy(key).replace("..", "");
                write!(
                    f,
                    " {}={}{:x?}",
                    key.trim_start_matches("key "),
                    value.len(),
                    &value[..value.len().min(3)]
                )?;
            }
            f.write_str("; ")?;
        }
        Ok(())
    }
}

impl Model {
    /// Returns the state between the calls of a step that has more than one.
    #[allow(dead_code, reason = "only some tests need it")]
    pub(crate) fn in_progress(&self, step: &Step) -> Option<Self> {
        let Step::Nested(nested) = step else { return None };
        let (table, key, value) = nested.within.clone();
        self.after(&Step::Put(table, key, value))
    }

    /// Returns the model after a step, or `None` if the step must be refused.
    pub(crate) fn after(&self, step: &Step) -> Option<Self> {
        let mut next = self.clone();
        let tables = &mut next.0;
        match step {
            Step::Create(t, letters) => {
                if tables.insert(t.clone(), (indexes(letters), Rows::new())).is_some() {
                    return None;
                }
            }
            Step::Load(t, letters, count) => {
                let rows = loaded_rows(*count).collect();
                if tables.insert(t.clone(), (indexes(letters), rows)).is_some() {
                    return None;
                }
            }
            Step::LoadInto(t, count) => {
                let rows = &mut tables.get_mut(t)?.1;
                if !rows.is_empty() {
                    return None;
                }
                *rows = loaded_rows(*count).collect();
            }
            Step::Drop(names) => {
                if !names.iter().all(|t| tables.contains_key(t)) {
                    return None;
                }
                for t in names {
                    tables.remove(t);
                }
            }
            Step::Truncate(t) => tables.get_mut(t)?.1.clear(),
            Step::DropPrefix(prefix) => tables.retain(|name, _| !name.starts_with(prefix.as_str())),
            Step::TruncatePrefix(prefix) => {
                let with_prefix = tables.iter_mut().filter(|(name, _)| name.starts_with(prefix.as_str()));
                with_prefix.for_each(|(_, (_, rows))| rows.clear());
            }
            Step::Rename(a, b) => {
                if tables.contains_key(b) {
                    return None;
                }
                let table = tables.remove(a)?;
                tables.insert(b.clone(), table);
            }
            Step::Swap(a, b) => {
                let (one, two) = (tables.get(a)?.clone(), tables.get(b)?.clone());
                tables.insert(a.clone(), two);
                tables.insert(b.clone(), one);
            }
            Step::Group(steps) => return steps.iter().try_fold(next, |model, step| model.after(step)),
            Step::CreateIndex(t, name) => {
                if !tables.get_mut(t)?.0.insert((*name).into()) {
                    return None;
                }
            }
            Step::DropIndex(t) => {
                if !tables.get_mut(t)?.0.remove("i") {
                    return None;
                }
            }
            Step::Alter(t, alteration) => {
                if alteration.name.as_ref().is_some_and(|name| tables.contains_key(name)) {
                    return None;
                }
                let (indexes, rows) = tables.remove(t)?;
                let name = alteration.name.as_ref().unwrap_or(t);
                tables.insert(name.clone(), (alteration.after(indexes)?, rows));
            }
            Step::Put(t, key, value) => drop(tables.get_mut(t)?.1.insert(key.clone(), value.clone())),
            Step::Fields(t, key, set) => {
                let rows = &mut tables.get_mut(t)?.1;
                let value = entries::after_change(rows.get(key).map(Vec::as_slice), set);
                rows.insert(key.clone(), value);
            }
            Step::ChangeKey(t, old, new, value) => {
                let rows = &mut tables.get_mut(t)?.1;
                rows.remove(old)?;
                if rows.insert(new.clone(), value.clone()).is_some() {
                    return None;
                }
            }
            Step::Delete(t, key) => drop(tables.get_mut(t)?.1.remove(key)),
            Step::Number(t, value) => {
                let rows = &mut tables.get_mut(t)?.1;
                let last = rows.last_key_value().and_then(|(key, _)| number_of(key)).unwrap_or(0);
                rows.insert(numbered(last + 1), value.clone());
            }
            Step::Transaction(many) => {
                if !many.tables().all(|table| tables.contains_key(table)) {
                    return None;
                }
                for (n, (table, key, value)) in many.calls.iter().enumerate() {
                    let rows = &mut tables.get_mut(table)?.1;
                    match value {
                        _ if !many.commits || many.undone.contains(&n) => {}
                        Some(value) => drop(rows.insert(key.clone(), value.clone())),
                        None => drop(rows.remove(key)),
                    }
                }
            }
            Step::Nested(nested) => {
                let Nested { table, key, value, within, fails } = &**nested;
                let (other, other_key, other_value) = within;
                tables.get(table)?;
                tables.get_mut(other)?.1.insert(other_key.clone(), other_value.clone());
                if !fails {
                    tables.get_mut(table)?.1.insert(key.clone(), value.clone());
                }
            }
            Step::Scan(t) => drop(tables.get(t)?),
            Step::Temporary(..) | Step::EndTemporary(_) | Step::Checkpoint | Step::Settle => {}
        }
        Some(next)
    }
}

/// Returns the rows that a table is created from, one of them long.
fn loaded_rows(count: u8) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    (0..count).map(move |n| {
        let length = if n == count / 3 { 9000 } else { 40 + usize::from(count) };
        let value = [n % 6; 8].into_iter().chain(core::iter::repeat_n(n ^ count, length)).collect();
        (format!("key {n:03}").into_bytes(), value)
    })
}

/// Returns the key of a row with an auto-increment value. It sorts after all other keys.
fn numbered(number: u64) -> Vec<u8> {
    [NUMBERED, &number.to_be_bytes()].concat()
}

fn number_of(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.strip_prefix(NUMBERED)?.try_into().ok()?))
}

/// Returns the number of rows with auto-increment values, of which each has requested a row id.
pub(crate) fn numbered_rows(rows: &Rows) -> u64 {
    rows.keys().filter(|key| number_of(key).is_some()).count() as u64
}

/// Renumbers the rows with auto-increment values without gaps, because a crash may skip values. Also returns the last
/// value.
pub(crate) fn without_gaps(rows: Rows) -> (Rows, u64) {
    let (mut last, mut count) = (0, 0);
    let in_order = |(key, value): (Vec<u8>, Vec<u8>)| match number_of(&key) {
        Some(number) => {
            (last, count) = (number, count + 1);
            (numbered(count), value)
        }
        None => (key, value),
    };
    let rows = rows.into_iter().map(in_order).collect();
    (rows, last)
}

pub(crate) fn index() -> IndexOptions {
    IndexOptions::on_value(0..8)
}

/// Returns metadata that tell whether they are whole.
fn metadata(length: usize) -> Vec<u8> {
    vec![(length % 251) as u8; length]
}

impl Step {
    /// Adds a step to a group of statements.
    fn add_to(&self, group: &mut DdlGroup) {
        match self {
            Self::Create(t, letters) => {
                let metadata = metadata(if letters.is_empty() { 40 } else { 6000 });
                group.create_table(t, entries::definition(letters).metadata(metadata))
            }
            Self::Drop(names) => names.iter().fold(group, |group, t| group.drop_table(t)),
            Self::Truncate(t) => group.truncate_table(t),
            Self::Rename(a, b) => group.rename_table(a, b),
            Self::Swap(a, b) => group.swap_tables(a, b),
            Self::DropIndex(t) => {
                group.alter_table(t, TableChanges::default().drop_index("i").metadata(metadata(700)))
            }
            Self::Alter(t, alteration) => {
                assert!(!alteration.numbers, "a group does not know the next value");
                group.alter_table(t, alteration.changes(0))
            }
            _ => unreachable!("{self:?} is no statement of a group"),
        };
    }
}

impl Live {
    pub(crate) fn apply(&mut self, step: &Step) -> Result<()> {
        let Self { db, env, .. } = self;
        match step {
            Step::Create(t, letters) => db.create_table(t, entries::definition(letters)).map(drop),
            Step::Load(t, letters, count) if !letters.is_empty() => {
                let rows = loaded_rows(*count).map(Ok);
                db.create_table_from(t, entries::definition(letters), rows).map(drop)
            }
            Step::Load(t, _, count) => {
                // Each half in descending order.
                let rows: Vec<_> = loaded_rows(*count).collect();
                let (front, back) = rows.split_at(rows.len() / 2);
                let rows = front.iter().rev().chain(back.iter().rev()).cloned().map(Ok);
                db.create_table_from_unsorted(t, TableOptions::default(), rows).map(drop)
            }
            Step::LoadInto(t, count) => {
                // Rows that a crash has left are rolled back in the background.
                env.run_workers(40);
                let (table, mut load) = (db.table(t)?, db.load_table(t)?);
                for (key, value) in loaded_rows(*count) {
                    entries::push(&mut load, &table, &key, &value)?;
                }
                load.finish()
            }
            Step::DropPrefix(prefix) => db.drop_tables_with_prefix(prefix).map(drop),
            Step::TruncatePrefix(prefix) => db.truncate_tables_with_prefix(prefix).map(drop),
            Step::Drop(names) => {
                db.drop_tables(&names.iter().map(String::as_str).collect::<Vec<_>>()).map(drop)
            }
            Step::Truncate(t) => db.truncate_table(t).map(drop),
            Step::Rename(a, b) => db.rename_table(a, b),
            Step::Swap(a, b) => db.swap_tables(a, b),
            Step::Group(steps) => {
                let mut group = db.ddl();
                for step in steps {
                    step.add_to(&mut group);
                }
                group.commit().map(drop)
            }
            Step::CreateIndex(t, name) => match Form::of(name) {
                Form::Supplied => db.create_index_with(t, name, entries::options_of(name), entries::supplied),
                _ => db.create_index(t, name, entries::options_of(name)),
            },
            Step::DropIndex(t) => db.drop_index(t, "i").map(drop),
            Step::Alter(t, alteration) => {
                let changes = alteration.changes(db.table(t)?.peek_number()? + 5);
                if alteration.add.map(Form::of) != Some(Form::Supplied) {
                    return db.alter_table(t, changes).map(drop);
                }
                let make =
                    |_: &str, key: &[u8], value: &[u8], made: &mut _| entries::supplied(key, value, made);
                db.alter_table_with(t, changes, make).map(drop)
            }
            Step::Put(t, key, value) => entries::put(&db.table(t)?, key, value),
            Step::Fields(t, key, set) => entries::change_fields(&db.table(t)?, key, set),
            Step::ChangeKey(t, old, new, value) => entries::change_key(&db.table(t)?, old, new, value),
            Step::Delete(t, key) => entries::delete(&db.table(t)?, key).map(drop),
            Step::Number(t, value) => {
                let table = db.table(t)?;
                table.next_row_id()?;
                // Of three values two are returned.
                let values = table.reserve_numbers(3)?;
                assert!(table.return_numbers(values.start + 1..values.end)?, "{values:?} are not the last");
                entries::insert(&table, &numbered(values.start), value)
            }
            Step::Nested(nested) => {
                let Nested { table, key, value, within, fails } = &**nested;
                let (other, other_key, other_value) = within;
                let act = || db.table(other)?.put(other_key, other_value);
                let length = value.len() as u64 + u64::from(*fails);
                let mut source = Source { bytes: value, turn: value.len() / 2, act: Some(Box::new(act)) };
                match db.table(table)?.put_stream(key, length, &mut source) {
                    Err(Error::Usage(UsageError::Source { .. })) if *fails && source.bytes.is_empty() => {
                        Ok(())
                    }
                    done => done,
                }
            }
            Step::Transaction(many) => many.apply(db, env),
            Step::Scan(t) => db.table(t)?.rows()?.try_for_each(|row| row.map(drop)),
            Step::Temporary(..) | Step::EndTemporary(_) => {
                // A failed step may be done in part.
                self.temporarily(step).inspect_err(|_| self.end_session())
            }
            Step::Checkpoint => db.checkpoint(),
            Step::Settle => {
                env.run_workers(20);
                Ok(())
            }
        }
    }

    fn temporarily(&mut self, step: &Step) -> Result<()> {
        let session = self.session.get_or_insert_with(|| self.db.session());
        match step {
            Step::Temporary(t, key, value) => {
                let table = match self.temporary.get(t) {
                    Some(_) => session.temporary_table(t)?,
                    None => session.create_temporary_table(t, TableOptions::default().index("i", index()))?,
                };
                let rows = self.temporary.entry(t.clone()).or_default();
                table.put(key, value)?;
                rows.insert(key.clone(), value.clone());
            }
            Step::EndTemporary(which) => {
                for (t, rows) in &self.temporary {
                    let table = session.temporary_table(t)?;
                    assert_eq!(&table.rows()?.collect::<Result<Rows>>()?, rows, "{t}");
                    assert_eq!(table.index("i")?.range::<&[u8]>(..)?.count(), rows.len(), "{t}");
                }
                match which {
                    Some(t) if self.temporary.remove(t).is_some() => {
                        session.drop_temporary_table(t)?;
                    }
                    Some(_) => {}
                    None => self.end_session(),
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn end_session(&mut self) {
        self.session = None;
        self.temporary.clear();
    }

    /// Waits until no background work is left, and returns the findings of a check.
    pub(crate) fn come_to_rest(&self) -> Result<Vec<String>> {
        let mut left = String::new();
        for _ in 0..30 {
            self.env.run_workers(60);
            // A check may wait, and work in the background goes on meanwhile.
            let report = self.db.check()?;
            let metrics = self.db.metrics();
            if !report.findings.is_empty() {
                return Ok(report.findings);
            }
            let deleted: u64 = report.trees.iter().map(|tree| tree.deleted).sum();
            let files = (metrics.files_pending, metrics.drops_pending, report.pending.len());
            if (deleted, metrics.active_transactions, files) == (0, 0, (0, 0, 0)) {
                return Ok(Vec::new());
            }
            left = format!("{deleted} marked entries, files {files:?}, {metrics:?}");
        }
        Ok(vec![format!("it does not come to rest: {left}")])
    }

    /// Closes the database cleanly.
    pub(crate) fn close(mut self) -> Result<()> {
        self.end_session();
        self.db.close()
    }
}

/// Returns the actual state.
pub(crate) fn observe(db: &Database) -> Result<Model> {
    let mut model = Model::default();
    for info in db.tables()? {
        let table = db.table(&info.name)?;
        let rows = table.rows()?.collect::<Result<Rows>>()?;
        for index in &info.indexes {
            entries::assert_entries(&table, index, &rows)?;
        }
        let found = table.metadata()?;
        assert!(found.is_empty() || found == metadata(found.len()), "{}: other metadata", info.name);
        let counted = table.row_count()?;
        let is_quiet = db.metrics().rollbacks_pending == 0 && db.metrics().active_transactions == 0;
        assert!(!is_quiet || counted == rows.len() as u64, "{counted} instead of {} rows", rows.len());
        let count = numbered_rows(&rows);
        let next = table.peek_row_id()?;
        assert!(next > count, "{} has {count} rows with an id, and would give {next} again", info.name);
        let (rows, last) = without_gaps(rows);
        let next = table.peek_number()?;
        assert!(next > last, "{} has a row {last}, and would give {next} again", info.name);
        model.0.insert(info.name, (info.indexes.into_iter().collect(), rows));
    }
    Ok(model)
}

/// Opens what a crash has left. The state must be one of these models, every check must pass, and the database must
/// work. Then it is closed, and an independent reader checks its files.
#[allow(dead_code, reason = "only some tests need it")]
pub(crate) fn verify(disk: &SimulatedDisk, seed: u64, may: &[Model], what: &str) {
    verify_with(disk, seed, &options(), may, what);
}

/// As [`verify`], for a database with other options.
pub(crate) fn verify_with(disk: &SimulatedDisk, seed: u64, options: &Options, may: &[Model], what: &str) {
    if disk.len(FileName::Control).unwrap().is_none() {
        assert!(may[0].0.is_empty(), "{what}: the database is gone");
        return;
    }
    // In some cases, chosen by the number of blocks, the part of the log that no recovery may need is destroyed first.
    if (disk.used() / 4096).is_multiple_of(2) {
        files::forget_below_the_low_water_mark(disk);
    }
    let live = open_with(disk, seed, options).unwrap_or_else(|error| panic!("{what}: {error}"));
    // In others it is checked at once, while rollbacks are still pending.
    if (disk.used() / 16384).is_multiple_of(2) {
        let report = live.db.check_live().unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(report.findings, Vec::<String>::new(), "{what}: at once");
    }
    let seen = observe(&live.db).unwrap_or_else(|error| panic!("{what}: {error}"));
    // From the newest on, because it is usually that one.
    if !may.iter().rev().any(|model| seen == *model) {
        let (first, last) = (may.first(), may.last());
        panic!("{what}:\nseen  {seen:?}\nis none of {} states from {first:?}\nto    {last:?}", may.len());
    }
    let table = live.db.create_table("afterwards", TableOptions::default()).unwrap();
    table.put(b"the database", b"works").unwrap();
    let mut expected = seen;
    // In others one of the tables is dropped, and nothing of it may be left.
    if (disk.used() / 8192).is_multiple_of(2)
        && let Some((table, _)) = expected.0.pop_last()
    {
        live.db.drop_table(&table).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    let findings = live.come_to_rest().unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(findings, Vec::<String>::new(), "{what}");
    live.close().unwrap_or_else(|error| panic!("{what}: {error}"));
    expected.0.insert(
        "afterwards".into(),
        (Indexes::new(), BTreeMap::from([(b"the database".into(), b"works".into())])),
    );
    let found = files::read(disk).unwrap_or_else(|error| panic!("{what}: in the files: {error}"));
    assert!(found == expected, "{what}: in the files is\n{found:?}\nin place of\n{expected:?}");
}
