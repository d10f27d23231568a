//! Scripted histories of DDL and row changes, the model of the expected state, and the comparison with the actual
//! state.

#![allow(clippy::unwrap_used, reason = "a test panics")]

pub(crate) mod files;

use core::ops::Range;
use std::{collections::BTreeMap, fmt, io, sync::Arc};

use windfall::{
    Database, DdlGroup, Error, IndexOptions, Options, Result, Session, Table, TableChanges, TableOptions,
    TransactionOptions,
    disk::{Disk, FileName},
    env::Env,
    error::UsageError,
    row,
};
use windfall_base::failpoint::Eager;
use windfall_sim::{SimulatedDisk, SimulatedEnv};

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
    let db = Database::open_on(Arc::new(disk.clone()), Arc::new(env.clone()), options, &|_| {})?;
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

/// The expected state: tables by name, their rows, and whether they have an index.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Model(pub BTreeMap<String, (bool, Rows)>);

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Create(String, bool),
    /// A table is created from this number of rows, which must be sorted first if it has no index.
    Load(String, bool, u8),
    Drop(Vec<String>),
    Truncate(String),
    Rename(String, String),
    Swap(String, String),
    /// Creations, drops, truncations, renames, swaps and drops of indexes as one statement.
    Group(Vec<Step>),
    CreateIndex(String),
    DropIndex(String),
    Put(String, Vec<u8>, Vec<u8>),
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
                Some(value) => trx.table(table).put(key, value)?,
                None => drop(trx.table(table).delete(key)?),
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

pub(crate) fn script(seed: u64, steps: usize) -> Vec<Step> {
    let chance = SimulatedEnv::new(seed ^ 0x5eed);
    let mut draw = |n: u64| chance.random() % n;
    let name = |draw: &mut dyn FnMut(u64) -> u64| format!("t{}", draw(4));
    let mut script = vec![Step::Create("t0".into(), true), Step::Create("t1".into(), false)];
    while script.len() < steps + 2 {
        let table = name(&mut draw);
        let key = format!("key {:03}", draw(60)).into_bytes();
        // The index has few keys. After the key comes the number of the step, so that every value is unique.
        let value = |script: &[Step], length: u64, stamp: u64| -> Vec<u8> {
            let step = (script.len() as u32).to_le_bytes();
            let filler = (0..length).map(|n| ((n / 3) ^ stamp) as u8);
            [(stamp % 6) as u8; 8].into_iter().chain(step).chain(filler).collect()
        };
        let step = match draw(44) {
            0 => Step::Create(table, draw(2) == 0),
            1 => Step::Load(table, draw(2) == 0, script.len() as u8),
            2 => Step::Drop(vec![table]),
            3 => Step::Drop(vec![table, name(&mut draw)]),
            4 => Step::Truncate(table),
            5 => Step::Rename(table, name(&mut draw)),
            6 => Step::Swap(table, name(&mut draw)),
            7 => Step::CreateIndex(table),
            8 => Step::DropIndex(table),
            9 => Step::Checkpoint,
            10..13 => Step::Settle,
            13..19 => Step::Delete(table, key),
            19 => Step::Scan(table),
            20 | 21 => {
                let length = if draw(3) == 0 { 30_000 } else { draw(600) };
                Step::Temporary(format!("temporary {}", draw(2)), key, value(&script, length, draw(200)))
            }
            22 => Step::EndTemporary((draw(2) == 0).then(|| format!("temporary {}", draw(2)))),
            23 => {
                // Adjacent rows, so that leaves split, or deletions of the same rows, so that leaves merge.
                let (first, rows, length) = (draw(60), 5 + draw(20), 200 + draw(700));
                for n in first..first + rows {
                    let key = format!("row {n:03}").into_bytes();
                    script.push(if length < 450 {
                        Step::Delete(table.clone(), key)
                    } else {
                        Step::Put(table.clone(), key, value(&script, length, n))
                    });
                }
                continue;
            }
            drawn => {
                // Some values need an overflow chain.
                let length = if draw(12) == 0 { 3000 + draw(9000) } else { draw(300) };
                let mut value = value(&script, length, draw(200));
                if length > 3000 && length.is_multiple_of(2) {
                    // Of a row that is written field by field the long field needs the chain.
                    value = row::encode(&[&value[..20], &value[20..]]);
                }
                match drawn {
                    ..40 => Step::Put(table, key, value),
                    40 | 41 => {
                        let mut calls = vec![(table, key, Some(value))];
                        for _ in 0..=draw(6) {
                            let (table, key) = (name(&mut draw), format!("key {:03}", draw(60)).into_bytes());
                            let length = if draw(9) == 0 { 5000 } else { draw(300) };
                            let filler = (0..length).map(|n| (n / 3) as u8);
                            let stamp =
                                [script.len() as u32, calls.len() as u32].map(u32::to_le_bytes).concat();
                            let value = [draw(6) as u8; 8].into_iter().chain(stamp).chain(filler).collect();
                            calls.push((table, key, (draw(4) > 0).then_some(value)));
                        }
                        let start = draw(calls.len() as u64) as usize;
                        let undone = start..start + draw((calls.len() - start) as u64 + 1) as usize;
                        let prepares = (draw(3) == 0).then(|| draw(2) == 0);
                        Step::Transaction(Box::new(Many { calls, undone, prepares, commits: draw(4) > 0 }))
                    }
                    _ => Step::Number(table, value),
                }
            }
        };
        script.push(step);
    }
    script.truncate(steps + 2);
    script
}

/// Returns a history of trees that become high and low again: keys so long that a node has few of them, phases of
/// inserts and of deletions, and calls within calls.
#[allow(dead_code, reason = "only some tests need it")]
pub(crate) fn script_of_high_trees(seed: u64, steps: usize) -> Vec<Step> {
    const ROWS: u64 = 99;
    let chance = SimulatedEnv::new(seed ^ 0x41e5);
    let draw = |n: u64| chance.random() % n;
    let mut script = vec![Step::Create("t0".into(), true), Step::Create("t1".into(), false)];
    while script.len() < steps + 2 {
        let n = script.len() as u64;
        // Neighbours share a prefix, so that separators are long. The keys of inner nodes share none.
        let key = |n: u64| {
            let group = SimulatedEnv::new(n / 12).random() as u32;
            format!("{group:08x}{:.>680}", n % 12).into_bytes()
        };
        let value = |length: u64, stamp: u64| -> Vec<u8> {
            [stamp as u8 % 6; 8]
                .into_iter()
                .chain((n as u32).to_le_bytes())
                .chain((0..length).map(|_| stamp as u8))
                .collect()
        };
        let table = format!("t{}", draw(5) / 4);
        let is_ebb = n % 340 >= 120;
        script.push(match draw(40) {
            0 => Step::Checkpoint,
            1..4 => Step::Settle,
            4 => Step::CreateIndex(table),
            5 if !is_ebb => Step::DropIndex(table),
            6..9 if !is_ebb => {
                let (first, second) = (draw(60), draw(59));
                let within =
                    (format!("t{}", draw(2)), key((first + 1 + second) % 60), value(draw(5000), draw(200)));
                let (value, fails) = (value(5000 + draw(8000), draw(200)), draw(4) == 0);
                Step::Nested(Box::new(Nested { table, key: key(first), value, within, fails }))
            }
            // In key order, in alternating tables, so that few rows are left.
            _ if is_ebb => Step::Delete(format!("t{}", n % 2), key(n % ROWS)),
            _ => {
                // Some rows are adjacent.
                let (first, rows) = (draw(ROWS), if draw(3) == 0 { 12 } else { 1 });
                let put = |n| Step::Put(table.clone(), key(n % ROWS), value(draw(300), draw(200)));
                script.extend((first..first + rows).map(put));
                continue;
            }
        });
    }
    script.truncate(steps + 2);
    script
}

/// Returns a history of groups of statements on a few tables, which get rows in between.
#[allow(dead_code, reason = "only some tests need it")]
pub(crate) fn script_of_groups(seed: u64, steps: usize) -> Vec<Step> {
    let chance = SimulatedEnv::new(seed ^ 0x6409);
    let draw = |n: u64| chance.random() % n;
    let name = || format!("t{}", draw(5));
    let mut script = vec![Step::Create("t0".into(), true), Step::Create("t1".into(), false)];
    while script.len() < steps + 2 {
        let stamp = (script.len() as u32).to_le_bytes();
        let statement = |_| match draw(12) {
            0..3 => Step::Create(name(), draw(2) == 0),
            3 => Step::Drop(vec![name()]),
            4 => Step::Truncate(name()),
            5 => Step::DropIndex(name()),
            6..9 => Step::Rename(name(), name()),
            _ => Step::Swap(name(), name()),
        };
        script.push(match draw(9) {
            // Of a few random statements most are refused, so they are drawn until they are not, with some patience.
            0..3 => {
                let model =
                    script.iter().fold(Model::default(), |model, step| model.after(step).unwrap_or(model));
                let group = || Step::Group((0..2 + draw(4)).map(statement).collect());
                let drawn: Vec<Step> = (0..40).map(|_| group()).collect();
                let fits = drawn.iter().find(|group| model.after(group).is_some());
                fits.or(drawn.last()).unwrap().clone()
            }
            3 => Step::Checkpoint,
            4 => Step::Settle,
            5 => Step::CreateIndex(name()),
            6 => Step::Number(name(), [&[1; 8][..], &stamp].concat()),
            _ => {
                let value = [&[draw(6) as u8; 8][..], &stamp, &vec![7; draw(400) as usize]].concat();
                Step::Put(name(), format!("key {:03}", draw(60)).into_bytes(), value)
            }
        });
    }
    script
}

/// Prints values by their length and their first bytes, because there are many.
impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, (indexed, rows)) in &self.0 {
            write!(f, "{name}{}:", if *indexed { " indexed" } else { "" })?;
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
            Step::Create(t, indexed) => {
                if tables.insert(t.clone(), (*indexed, Rows::new())).is_some() {
                    return None;
                }
            }
            Step::Load(t, indexed, count) => {
                let rows = loaded_rows(*count).collect();
                if tables.insert(t.clone(), (*indexed, rows)).is_some() {
                    return None;
                }
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
            Step::CreateIndex(t) => {
                if core::mem::replace(&mut tables.get_mut(t)?.0, true) {
                    return None;
                }
            }
            Step::DropIndex(t) => {
                if !core::mem::replace(&mut tables.get_mut(t)?.0, false) {
                    return None;
                }
            }
            Step::Put(t, key, value) => drop(tables.get_mut(t)?.1.insert(key.clone(), value.clone())),
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

fn definition(indexed: bool) -> TableOptions {
    let options = TableOptions::default();
    if indexed { options.index("i", index()) } else { options }
}

/// Puts a row: field by field, if its value is that of such a row.
fn put(table: &Table, key: &[u8], value: &[u8]) -> Result<()> {
    let fields: Option<Vec<_>> = (0..row::count(value).min(3)).map(|n| row::field(value, n)).collect();
    match fields {
        Some(fields) if row::encode(&fields) == value => table.put_fields(key, &fields),
        _ => table.put(key, value),
    }
}

/// Returns metadata that tell whether they are whole.
fn metadata(length: usize) -> Vec<u8> {
    vec![(length % 251) as u8; length]
}

impl Step {
    /// Adds a step to a group of statements.
    fn add_to(&self, group: &mut DdlGroup) {
        match self {
            Self::Create(t, indexed) => {
                let metadata = metadata(if *indexed { 6000 } else { 40 });
                group.create_table(t, definition(*indexed).metadata(metadata))
            }
            Self::Drop(names) => names.iter().fold(group, |group, t| group.drop_table(t)),
            Self::Truncate(t) => group.truncate_table(t),
            Self::Rename(a, b) => group.rename_table(a, b),
            Self::Swap(a, b) => group.swap_tables(a, b),
            Self::DropIndex(t) => {
                group.alter_table(t, TableChanges::default().drop_index("i").metadata(metadata(700)))
            }
            _ => unreachable!("{self:?} is no statement of a group"),
        };
    }
}

impl Live {
    pub(crate) fn apply(&mut self, step: &Step) -> Result<()> {
        let Self { db, env, .. } = self;
        match step {
            Step::Create(t, indexed) => db.create_table(t, definition(*indexed)).map(drop),
            Step::Load(t, true, count) => {
                let options = TableOptions::default().index("i", index());
                db.create_table_from(t, options, loaded_rows(*count).map(Ok)).map(drop)
            }
            Step::Load(t, false, count) => {
                // Each half in descending order.
                let rows: Vec<_> = loaded_rows(*count).collect();
                let (front, back) = rows.split_at(rows.len() / 2);
                let rows = front.iter().rev().chain(back.iter().rev()).cloned().map(Ok);
                db.create_table_from_unsorted(t, TableOptions::default(), rows).map(drop)
            }
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
            Step::CreateIndex(t) => db.create_index(t, "i", index()),
            Step::DropIndex(t) => db.drop_index(t, "i").map(drop),
            Step::Put(t, key, value) => put(&db.table(t)?, key, value),
            Step::Delete(t, key) => db.table(t)?.delete(key).map(drop),
            Step::Number(t, value) => {
                let table = db.table(t)?;
                table.next_row_id()?;
                // Of three values two are returned.
                let values = table.reserve_numbers(3)?;
                assert!(table.return_numbers(values.start + 1..values.end)?, "{values:?} are not the last");
                table.insert(&numbered(values.start), value)
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
            let (metrics, report) = (self.db.metrics(), self.db.check()?);
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
        let indexed = !info.indexes.is_empty();
        if indexed {
            let by_index = table.index("i")?.range::<&[u8]>(..)?;
            let by_index: Rows = by_index.map(|row| row.map(|r| (r.key, r.value))).collect::<Result<_>>()?;
            assert_eq!(by_index, rows, "the index of {} disagrees", info.name);
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
        model.0.insert(info.name, (indexed, rows));
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
    expected
        .0
        .insert("afterwards".into(), (false, BTreeMap::from([(b"the database".into(), b"works".into())])));
    let found = files::read(disk).unwrap_or_else(|error| panic!("{what}: in the files: {error}"));
    assert!(found == expected, "{what}: in the files is\n{found:?}\nin place of\n{expected:?}");
}
