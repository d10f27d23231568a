//! Scripted histories of DDL and rows, the model that says what must be there, and the look at what is.

#![allow(clippy::unwrap_used, reason = "a test panics")]

use std::{collections::BTreeMap, fmt, sync::Arc};

use windfall::{
    Database, IndexOptions, Options, Result, TableOptions,
    disk::{Disk, FileName, simulated::SimulatedDisk},
    env::{Env, SimulatedEnv},
};

pub fn options() -> Options {
    Options::default()
        .page_size(4096)
        .buffer_pool_size(96 * 4096)
        .log_size(1 << 20)
        .log_buffer_size(256 << 10)
}

pub fn open(disk: &SimulatedDisk, seed: u64) -> Result<(Database, SimulatedEnv)> {
    let env = SimulatedEnv::new(seed);
    let db = Database::open_on(Arc::new(disk.clone()), Arc::new(env.clone()), &options(), &|_| {})?;
    Ok((db, env))
}

pub type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// What should be there: tables by name, their rows, and whether they have an index.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Model(pub BTreeMap<String, (bool, Rows)>);

#[derive(Clone, Debug)]
pub enum Step {
    Create(String, bool),
    Drop(Vec<String>),
    Truncate(String),
    Rename(String, String),
    Swap(String, String),
    CreateIndex(String),
    DropIndex(String),
    Put(String, Vec<u8>, Vec<u8>),
    Delete(String, Vec<u8>),
    Checkpoint,
    Settle,
}

pub fn script(seed: u64, steps: usize) -> Vec<Step> {
    let chance = SimulatedEnv::new(seed ^ 0x5eed);
    let mut draw = |n: u64| chance.random() % n;
    let name = |draw: &mut dyn FnMut(u64) -> u64| format!("t{}", draw(4));
    let mut script = vec![Step::Create("t0".into(), true), Step::Create("t1".into(), false)];
    for _ in 0..steps {
        let table = name(&mut draw);
        let key = format!("key {:03}", draw(60)).into_bytes();
        let step = match draw(40) {
            0 | 1 => Step::Create(table, draw(2) == 0),
            2 => Step::Drop(vec![table]),
            3 => Step::Drop(vec![table, name(&mut draw)]),
            4 => Step::Truncate(table),
            5 => Step::Rename(table, name(&mut draw)),
            6 => Step::Swap(table, name(&mut draw)),
            7 => Step::CreateIndex(table),
            8 => Step::DropIndex(table),
            9 => Step::Checkpoint,
            10..13 => Step::Settle,
            13..20 => Step::Delete(table, key),
            _ => {
                // Now and then a value that needs an overflow chain.
                let length = if draw(12) == 0 { 3000 + draw(9000) } else { draw(300) };
                let value = (0..length).map(|n| (n ^ draw(3)) as u8).collect();
                Step::Put(table, key, value)
            }
        };
        script.push(step);
    }
    script
}

/// Values by their length and their first bytes: there are many.
impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, (indexed, rows)) in &self.0 {
            write!(f, "{name}{}:", if *indexed { " indexed" } else { "" })?;
            for (key, value) in rows {
                let key = String::from_utf8_lossy(key);
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
    /// The model after a step; `None` when the step must be refused.
    pub fn after(&self, step: &Step) -> Option<Self> {
        let mut next = self.clone();
        let tables = &mut next.0;
        match step {
            Step::Create(t, indexed) => {
                if tables.insert(t.clone(), (*indexed, Rows::new())).is_some() {
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
            Step::Checkpoint | Step::Settle => {}
        }
        Some(next)
    }
}

pub fn index() -> IndexOptions {
    IndexOptions::on_value(0..8)
}

pub fn apply(db: &Database, env: &SimulatedEnv, step: &Step) -> Result<()> {
    match step {
        Step::Create(t, indexed) => {
            let options = TableOptions::default();
            let options = if *indexed { options.index("i", index()) } else { options };
            db.create_table(t, options).map(drop)
        }
        Step::Drop(names) => db.drop_tables(&names.iter().map(String::as_str).collect::<Vec<_>>()).map(drop),
        Step::Truncate(t) => db.truncate_table(t).map(drop),
        Step::Rename(a, b) => db.rename_table(a, b),
        Step::Swap(a, b) => db.swap_tables(a, b),
        Step::CreateIndex(t) => db.create_index(t, "i", index()),
        Step::DropIndex(t) => db.drop_index(t, "i").map(drop),
        Step::Put(t, key, value) => db.table(t)?.put(key, value),
        Step::Delete(t, key) => db.table(t)?.delete(key).map(drop),
        Step::Checkpoint => db.checkpoint(),
        Step::Settle => {
            env.settle(20);
            Ok(())
        }
    }
}

/// What is there.
pub fn observe(db: &Database) -> Result<Model> {
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
        model.0.insert(info.name, (indexed, rows));
    }
    Ok(model)
}

pub fn verify(disk: &SimulatedDisk, seed: u64, may: &[Model], what: &str) {
    if disk.len(FileName::Control).unwrap().is_none() {
        assert!(may[0].0.is_empty(), "{what}: the database is gone");
        return;
    }
    let (db, env) = open(disk, seed).unwrap_or_else(|error| panic!("{what}: {error}"));
    let seen = observe(&db).unwrap_or_else(|error| panic!("{what}: {error}"));
    // From the newest on: mostly it is that.
    if !may.iter().rev().any(|model| seen == *model) {
        let (first, last) = (may.first(), may.last());
        panic!("{what}:\nseen  {seen:?}\nis none of {} states from {first:?}\nto    {last:?}", may.len());
    }
    env.settle(100);
    let report = db.check().unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(report.findings, Vec::<String>::new(), "{what}");
    let table = db.create_table("afterwards", TableOptions::default()).unwrap();
    table.put(b"the database", b"works").unwrap();
}
