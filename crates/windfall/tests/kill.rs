//! The process is killed under load, again and again on the same database. It reports over a pipe each call before it
//! begins, and again after it has returned. All completed calls must be there when the database is opened, and a call
//! in progress must be there completely or not at all.
//!
//! For more rounds than usual: `KILL_ROUNDS=200 cargo test --test kill`; `KILL_SEED` repeats the random choices.

#![allow(clippy::unwrap_used, clippy::needless_range_loop, reason = "a test panics, and counts its threads")]

mod guard;
mod killable_process;
mod soak;

use std::collections::BTreeMap;

use killable_process::{Judge, KillableProcess, Kills, Work, say, work_until_killed};
use rand::{Rng, SeedableRng, rngs::StdRng};
use windfall::{Database, IndexOptions, Result, TableOptions};

const THREADS: usize = 4;
const KEYS: u32 = 150;

/// A thread's tables: versions by key.
type Tables = BTreeMap<String, BTreeMap<u32, u64>>;

/// The calls of a thread, one line each.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Create(String),
    Drop(Vec<String>),
    Truncate(String),
    Rename(String, String),
    Swap(String, String),
    Put(String, u32, u64),
    Delete(String, u32),
}

impl Step {
    fn line(&self) -> String {
        match self {
            Self::Create(t) => format!("create {t}"),
            Self::Drop(names) => format!("drop {}", names.join(" ")),
            Self::Truncate(t) => format!("truncate {t}"),
            Self::Rename(a, b) => format!("rename {a} {b}"),
            Self::Swap(a, b) => format!("swap {a} {b}"),
            Self::Put(t, key, version) => format!("put {t} {key} {version}"),
            Self::Delete(t, key) => format!("delete {t} {key}"),
        }
    }

    fn parse(line: &str) -> Self {
        let words: Vec<&str> = line.split(' ').collect();
        let name = |n: usize| words[n].to_owned();
        match words[0] {
            "create" => Self::Create(name(1)),
            "drop" => Self::Drop(words[1..].iter().map(|&name| name.to_owned()).collect()),
            "truncate" => Self::Truncate(name(1)),
            "rename" => Self::Rename(name(1), name(2)),
            "swap" => Self::Swap(name(1), name(2)),
            "put" => Self::Put(name(1), words[2].parse().unwrap(), words[3].parse().unwrap()),
            "delete" => Self::Delete(name(1), words[2].parse().unwrap()),
            other => panic!("{other}"),
        }
    }

    fn apply(&self, tables: &mut Tables) {
        match self {
            Self::Create(t) => drop(tables.insert(t.clone(), BTreeMap::new())),
            Self::Drop(names) => names.iter().for_each(|name| drop(tables.remove(name))),
            Self::Truncate(t) => tables.get_mut(t).expect("a table").clear(),
            Self::Rename(a, b) => {
                let table = tables.remove(a).expect("a table");
                tables.insert(b.clone(), table);
            }
            Self::Swap(a, b) => {
                let (one, two) = (tables[a].clone(), tables[b].clone());
                tables.extend([(a.clone(), two), (b.clone(), one)]);
            }
            Self::Put(t, key, version) => drop(tables.get_mut(t).expect("a table").insert(*key, *version)),
            Self::Delete(t, key) => drop(tables.get_mut(t).expect("a table").remove(key)),
        }
    }

    fn run(&self, db: &Database) -> Result<()> {
        match self {
            Self::Create(t) => {
                let options = TableOptions::default();
                // Half of the tables have an index.
                let version = IndexOptions::on_value(0..8);
                let indexed = t.ends_with(['0', '2', '4']);
                db.create_table(t, if indexed { options.index("version", version) } else { options })
                    .map(drop)
            }
            Self::Drop(names) => {
                db.drop_tables(&names.iter().map(String::as_str).collect::<Vec<_>>()).map(drop)
            }
            Self::Truncate(t) => db.truncate_table(t).map(drop),
            Self::Rename(a, b) => db.rename_table(a, b),
            Self::Swap(a, b) => db.swap_tables(a, b),
            Self::Put(t, key, version) => db.table(t)?.put(&key.to_be_bytes(), &value(*key, *version)),
            Self::Delete(t, key) => db.table(t)?.delete(&key.to_be_bytes()).map(drop),
        }
    }

    fn draw(chance: &mut StdRng, thread: usize, tables: &Tables, version: u64) -> Self {
        let name = |chance: &mut StdRng| format!("w{thread}.{}", chance.random_range(0..5));
        let (a, b) = (name(chance), name(chance));
        if !tables.contains_key(&a) {
            return Self::Create(a);
        }
        let key = chance.random_range(0..KEYS);
        match chance.random_range(0..60) {
            0 => Self::Drop(vec![a]),
            1 if tables.contains_key(&b) && a != b => Self::Drop(vec![a, b]),
            2 => Self::Truncate(a),
            3 if !tables.contains_key(&b) => Self::Rename(a, b),
            4 if tables.contains_key(&b) && a != b => Self::Swap(a, b),
            5..20 => Self::Delete(a, key),
            _ => Self::Put(a, key, version),
        }
    }
}

/// Returns the value of a key. Some values need overflow pages.
fn value(key: u32, version: u64) -> Vec<u8> {
    let mixed = (version ^ u64::from(key) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let length = if mixed >> 60 == 0 { 4000 + (mixed >> 20) % 9000 } else { (mixed >> 20) % 600 };
    let mut value = version.to_be_bytes().to_vec();
    value.extend((0..length).map(|n| (mixed >> (n % 8 * 8)) as u8 ^ n as u8));
    value
}

/// Returns a thread's tables as they are in the database.
fn observe(db: &Database, thread: usize) -> Result<Tables> {
    let mut tables = Tables::new();
    for info in db.tables()?.into_iter().filter(|info| info.name.starts_with(&format!("w{thread}."))) {
        let table = db.table(&info.name)?;
        let mut rows = BTreeMap::new();
        for row in table.rows()? {
            let (key, read) = row?;
            let key = u32::from_be_bytes(key.try_into().expect("four bytes"));
            let version = u64::from_be_bytes(read[..8].try_into().expect("eight bytes"));
            assert!(read == value(key, version), "key {key} of {} has a wrong value", info.name);
            rows.insert(key, version);
        }
        if !info.indexes.is_empty() {
            let entries = table.index("version")?.range::<&[u8]>(..)?;
            assert_eq!(entries.map(|row| row.map(drop)).collect::<Result<Vec<_>>>()?.len(), rows.len());
        }
        tables.insert(info.name, rows);
    }
    Ok(tables)
}

/// The process that is killed.
#[test]
#[ignore = "run, and killed, by the other tests"]
fn child() -> Result<()> {
    let Some(KillableProcess { db, round, seed }) = KillableProcess::open()? else { return Ok(()) };
    let db = &db;
    work_until_killed((0..THREADS).map(|thread| -> Work<'_> {
        Box::new(move || {
            let mut chance = StdRng::seed_from_u64(seed ^ (thread as u64) << 32);
            let mut tables = observe(db, thread).expect("the tables");
            for n in 0.. {
                let version = round << 32 | n;
                let step = Step::draw(&mut chance, thread, &tables, version);
                say(&format!("begin {thread} {}", step.line()));
                step.run(db).unwrap_or_else(|error| panic!("{step:?}: {error}"));
                say(&format!("done {thread}"));
                step.apply(&mut tables);
            }
        })
    }))
}

/// The evidence from the output of the killed processes.
#[derive(Default)]
struct Listener {
    /// The expected tables of each thread so far.
    tables: [Tables; THREADS],
    steps: u64,
}

fn differences(seen: &Tables, wanted: &Tables) -> String {
    let mut found = Vec::new();
    for name in seen.keys().chain(wanted.keys()).collect::<std::collections::BTreeSet<_>>() {
        match (seen.get(name), wanted.get(name)) {
            (Some(_), None) => found.push(format!("{name} came back")),
            (None, Some(_)) => found.push(format!("{name} is lost")),
            (Some(seen), Some(wanted)) => {
                for key in (0..KEYS).filter(|key| seen.get(key) != wanted.get(key)) {
                    found.push(format!("{name} {key}: {:x?} for {:x?}", seen.get(&key), wanted.get(&key)));
                }
            }
            (None, None) => {}
        }
    }
    found.join("; ")
}

impl Judge for Listener {
    fn judge(&mut self, db: &Database, said: &[String]) -> Result<()> {
        let mut in_progress = [const { None }; THREADS];
        for line in said {
            if let Some(thread) = line.strip_prefix("done ").and_then(|n| n.parse::<usize>().ok()) {
                in_progress[thread]
                    .take()
                    .map(|step: Step| step.apply(&mut self.tables[thread]))
                    .expect("a step");
                self.steps += 1;
            } else if let Some((thread, step)) =
                line.strip_prefix("begin ").and_then(|rest| rest.split_once(' '))
            {
                in_progress[thread.parse::<usize>().unwrap()] = Some(Step::parse(step));
            }
        }
        for (thread, step) in in_progress.iter().enumerate() {
            let (seen, before) = (observe(db, thread)?, &self.tables[thread]);
            let mut after = before.clone();
            if let Some(step) = step {
                step.apply(&mut after);
            }
            assert!(
                seen == *before || seen == after,
                "thread {thread}, in progress {step:?}:\nof what was done: {}\nof what would be next: {}",
                differences(&seen, before),
                differences(&seen, &after)
            );
            self.tables[thread] = seen;
        }
        Ok(())
    }

    fn sum_up(&self, rounds: u64) {
        println!("{rounds} kills, {} steps acknowledged", self.steps);
        // A few processes may have been killed before they had done anything.
        assert!(rounds < 10 || self.steps >= rounds * 20, "{} steps in {rounds} rounds", self.steps);
    }
}

const KILLS: Kills = Kills { program: "kill", test: "acknowledged_changes_survive_kills", child: "child" };

#[test]
fn acknowledged_changes_survive_kills() {
    KILLS.rounds::<Listener>(50);
}

#[test]
#[ignore = "runs for a given time"]
fn soak() {
    KILLS.soak::<Listener>("kills");
}
