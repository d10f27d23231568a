//! Crash enumeration of row histories: after each crash the table matches the model, with the last operation whole or
//! absent. In every second history each change first freezes its leaf, and in every second pair of histories the calls
//! supply the entries of the indexes, with payloads.

use std::{sync::mpsc, thread};

use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

use super::{
    super::{Trx, undo::purge::PAGES_PER_STEP},
    Base, Mode, Rows, Setup, change, keys_of,
};
use crate::{disk::Disk, env::Env, error::Result, failpoint::Eager};

#[derive(Clone, Debug)]
enum Step {
    Put(u8, Vec<u8>),
    Delete(u8),
    /// Several changes as one transaction, with a pause after each, in which the log may be written and a checkpoint
    /// may be made; then commit or rollback.
    Many(Vec<(u8, Option<Vec<u8>>)>, bool),
    /// Two interleaved transactions, each with its own undo stream and its own rows: the even keys and the odd keys.
    /// Then both end, one after the other.
    Beside(Vec<(u8, Option<Vec<u8>>)>, [bool; 2]),
    Checkpoint,
    Settle,
    /// One step of purge.
    Purge,
}

fn script(seed: u64, steps: usize, most: usize) -> Vec<Step> {
    let chance = SimulatedEnv::new(seed);
    let draw = |n: u64| chance.random() % n;
    let value = || {
        let length = match draw(8) {
            0 => 1025 + draw(most as u64),
            1 => draw(1024),
            _ => draw(60),
        };
        let mut value = vec![draw(40) as u8, draw(4) as u8, draw(3) as u8];
        value.resize(length as usize, draw(256) as u8);
        value
    };
    let key = || draw(10) as u8;
    let changes = |most| (0..=draw(most)).map(|_| (key(), (draw(4) > 0).then(&value))).collect();
    (0..steps)
        .map(|_| match draw(20) {
            0..8 => Step::Put(key(), value()),
            8..11 => Step::Delete(key()),
            11..13 => Step::Beside(changes(7), [draw(2) == 0, draw(3) == 0]),
            13..16 => Step::Many(changes(4), draw(2) == 0),
            16 => Step::Checkpoint,
            _ => Step::Settle,
        })
        .collect()
}

struct Run {
    base: Base,
    env: SimulatedEnv,
    /// The acknowledged rows, and the rows that are also allowed.
    rows: Rows,
    next: Rows,
}

fn fits(rows: &Rows, key: u8, value: &[u8]) -> bool {
    let unique = keys_of(value)[0].clone();
    unique.is_none() || rows.iter().all(|(other, old)| *other == [key] || keys_of(old)[0] != unique)
}

impl Run {
    fn step(&mut self, step: &Step) -> Result<()> {
        let base = &self.base;
        self.env.yield_point();
        self.next = self.rows.clone();
        match step {
            Step::Put(key, value) => {
                if fits(&self.rows, *key, value) {
                    self.next.insert(vec![*key], value.clone());
                    base.put(&[*key], value, Mode::Put)?;
                }
            }
            Step::Delete(key) => {
                self.next.remove(&vec![*key]);
                base.delete(&[*key])?;
            }
            Step::Many(changes, commit) => self.many(changes, *commit)?,
            Step::Beside(changes, commit) => self.beside(changes, *commit)?,
            Step::Checkpoint => drop(base.checkpointer.checkpoint(false)?),
            Step::Settle => self.env.run_workers(6),
            Step::Purge => drop(base.transactions.purge().step()?),
        }
        self.base.sync()?;
        self.rows = self.next.clone();
        Ok(())
    }

    fn many(&mut self, changes: &[(u8, Option<Vec<u8>>)], commit: bool) -> Result<()> {
        let base = &self.base;
        let secondaries = base.secondaries();
        let target = base.target(&secondaries);
        let mut rows = self.rows.clone();
        let mut trx = Trx::new(&base.transactions);
        for (key, value) in changes {
            if value.as_ref().is_some_and(|value| !fits(&rows, *key, value)) {
                continue;
            }
            change(&mut trx, &target, &[*key], value.as_deref())?;
            apply(&mut rows, *key, value.as_deref());
            self.pause()?;
        }
        if commit {
            self.next = rows;
            trx.commit()?;
        } else {
            trx.rollback()?;
        }
        Ok(())
    }

    fn beside(&mut self, changes: &[(u8, Option<Vec<u8>>)], commit: [bool; 2]) -> Result<()> {
        let base = &self.base;
        let secondaries = base.secondaries();
        let target = base.target(&secondaries);
        let mut both = [Trx::new(&base.transactions), Trx::new(&base.transactions)];
        on_streams_of_their_own(base, &mut both)?;
        // All changes, the changes of each transaction, and the unique keys that each has taken or released: the other
        // transaction would wait for those.
        let mut rows = self.rows.clone();
        let mut done = [Vec::new(), Vec::new()];
        let mut keys = [Vec::new(), Vec::new()];
        for (key, value) in changes {
            let who = usize::from(key % 2);
            let unique = |value: &[u8]| keys_of(value)[0].clone();
            let wanted = value.as_deref().and_then(unique);
            if value.as_ref().is_some_and(|value| !fits(&rows, *key, value))
                || wanted.as_ref().is_some_and(|wanted| keys[1 - who].contains(wanted))
            {
                continue;
            }
            change(&mut both[who], &target, &[*key], value.as_deref())?;
            keys[who].extend(wanted.into_iter().chain(rows.get(&vec![*key]).and_then(|value| unique(value))));
            apply(&mut rows, *key, value.as_deref());
            done[who].push((*key, value.as_deref()));
            self.pause()?;
        }
        for ((mut trx, done), commit) in both.into_iter().zip(done).zip(commit) {
            if commit {
                for (key, value) in done {
                    apply(&mut self.next, key, value);
                }
                trx.commit()?;
            } else {
                trx.rollback()?;
            }
            base.sync()?;
            self.rows = self.next.clone();
        }
        Ok(())
    }

    /// A pause between two calls of a transaction: its records become durable, and from time to time the log is
    /// truncated past the start of the transaction.
    fn pause(&self) -> Result<()> {
        self.base.sync()?;
        self.env.run_workers(3);
        match self.env.random() % 6 {
            0 => drop(self.base.checkpointer.checkpoint(false)?),
            // Now only the checkpoint's own record names the transaction.
            1 => drop(self.base.checkpointer.checkpoint_all(false)?),
            _ => {}
        }
        self.env.yield_point();
        Ok(())
    }
}

fn apply(rows: &mut Rows, key: u8, value: Option<&[u8]>) {
    match value {
        Some(value) => drop(rows.insert(vec![key], value.to_vec())),
        None => drop(rows.remove(&vec![key])),
    }
}

/// Makes the second transaction choose its stream while a thread is appending to that of the first.
fn on_streams_of_their_own(base: &Base, [one, two]: &mut [Trx<'_>; 2]) -> Result<()> {
    let streams = base.transactions.streams();
    let first = one.tail(None)?;
    let stream = streams.all().find(|stream| first.is_of(stream)).expect("it is one of them");
    drop(first);
    let (held, is_held) = mpsc::channel();
    let (chosen, is_chosen) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let _tail = stream.lock();
            held.send(()).unwrap();
            let _ = is_chosen.recv();
        });
        is_held.recv().unwrap();
        let is_same = two.tail(None).map(|second| second.is_of(stream));
        drop(chosen);
        assert!(!is_same?, "both write to one stream");
        Ok(())
    })
}

/// Opens the database of a history with this seed; with `roomy`, it has room for very long values.
fn open(disk: &SimulatedDisk, env: &SimulatedEnv, seed: u64, roomy: bool) -> Result<Base> {
    let setup = Setup { supplied: seed % 4 >= 2, ..Setup::simulated(disk, env) };
    Eager::set(seed.is_multiple_of(2));
    Base::open(if roomy { Setup { frames: 2048, log_size: 8 << 20, ..setup } } else { setup })
}

/// Runs the script. Returns the disk, the acknowledged rows, and the rows that are also allowed.
fn run(seed: u64, script: &[Step], roomy: bool, crash_at: Option<u64>) -> (SimulatedDisk, Rows, Rows) {
    let disk = SimulatedDisk::new(seed);
    if let Some(operation) = crash_at {
        disk.crash_at(operation);
    }
    let env = SimulatedEnv::new(seed);
    let Ok(base) = open(&disk, &env, seed, roomy) else {
        return (disk, Rows::new(), Rows::new());
    };
    let mut run = Run { base, env, rows: Rows::new(), next: Rows::new() };
    for (n, step) in script.iter().enumerate() {
        if let Err(error) = run.step(step) {
            assert!(disk.is_crashed(), "step {n} {step:?}: {error}");
            return (disk, run.rows.clone(), run.next.clone());
        }
    }
    run.base.compare(&run.rows).unwrap_or_else(|what| panic!("without any crash: {what}"));
    run.base.compare_purged(&run.rows).unwrap_or_else(|what| panic!("without any crash: {what}"));
    (disk, run.rows.clone(), run.next.clone())
}

fn check(disk: &SimulatedDisk, seed: u64, roomy: bool, rows: &Rows, next: &Rows, what: &str) {
    if disk.len(crate::disk::FileName::Control).is_ok_and(|length| length.is_none()) {
        return assert!(rows.is_empty());
    }
    let env = SimulatedEnv::new(seed);
    let base = match open(disk, &env, seed, roomy) {
        Ok(base) => base,
        Err(error) if rows.is_empty() && next.is_empty() => {
            return assert!(error.to_string().contains("control"), "{what}: {error}");
        }
        Err(error) => panic!("{what}: {error}"),
    };
    let found = match (base.compare(next), base.compare(rows)) {
        (Ok(()), _) => next,
        (_, Ok(())) => rows,
        (Err(with), Err(without)) => {
            panic!("{what}: neither with the last step ({with}) nor without ({without})")
        }
    };
    base.compare_purged(found).unwrap_or_else(|wrong| panic!("{what}, purged: {wrong}"));
    // The database accepts further changes.
    let mut after = found.clone();
    for key in 0..3 {
        after.insert(vec![key], vec![0, key]);
        base.put(&[key], &[0, key], Mode::Put).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    base.compare_purged(&after).unwrap_or_else(|wrong| panic!("{what}, worked on: {wrong}"));
}

fn enumerate(seed: u64, steps: usize, every: u64, most: usize) -> u64 {
    enumerate_script(seed, &script(seed, steps, most), false, every)
}

fn enumerate_script(seed: u64, script: &[Step], roomy: bool, every: u64) -> u64 {
    let (disk, ..) = run(seed, script, roomy, None);
    let total = disk.operations();
    let mut points = 0;
    for operation in (1 + seed % every..=total).step_by(every as usize) {
        let (disk, rows, next) = run(seed, script, roomy, Some(operation));
        for survive in [Survive::Nothing, Survive::Everything, Survive::Random(seed ^ operation)] {
            let what = format!("seed {seed}, crash at operation {operation} of {total}, {survive:?}");
            let survivor = disk.restart(survive);
            // Recovery also crashes, including rollback and purge.
            survivor.crash_at(1 + operation % 47);
            let env = SimulatedEnv::new(seed);
            if let Ok(base) = open(&survivor, &env, seed, roomy) {
                env.run_workers(10);
                let _ = base.checkpointer.checkpoint(false);
            }
            check(&survivor.restart(survive), seed, roomy, &rows, &next, &what);
            points += 1;
        }
    }
    points
}

#[test]
fn every_crash_point_of_short_histories() {
    let points: u64 = (1..4).map(|seed| enumerate(seed, 12, 1, 3000)).sum();
    assert!(points > 300, "{points} crash points are too few to mean anything");
}

#[test]
fn some_crash_points_of_longer_histories() {
    let points: u64 = (10..14).map(|seed| enumerate(seed, 200, 61, 20_000)).sum();
    assert!(points > 60, "{points} crash points are too few to mean anything");
}

/// Chains that take several purge steps each, of a value that was replaced, of one that was deleted and of one that was
/// rolled back, with a crash in every step.
#[test]
fn crash_points_during_the_freeing_of_long_chains() {
    let long = |fill: u8| {
        let mut value = vec![0, 0, fill];
        value.resize(PAGES_PER_STEP * 5 / 4 * super::PAGE_SIZE, fill);
        value
    };
    let purge = || [Step::Purge, Step::Purge, Step::Purge];
    let mut script = vec![Step::Put(1, long(1)), Step::Put(1, long(2))];
    script.extend(purge());
    script.push(Step::Many(vec![(1, Some(long(3))), (2, Some(long(4)))], false));
    script.extend(purge());
    script.push(Step::Delete(1));
    script.push(Step::Purge);
    // The key is put again while its old chain is being freed.
    script.push(Step::Put(1, vec![1, 1, 1]));
    script.extend(purge());
    script.push(Step::Purge);
    let points: u64 = (1..3).map(|seed| enumerate_script(seed, &script, true, 7)).sum();
    assert!(points > 100, "{points} crash points are too few to mean anything");
}

#[test]
#[should_panic(expected = "the low-water mark")]
fn a_simulation_finds_a_violated_invariant_at_its_next_yield_point() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let base = Base::open(Setup::simulated(&disk, &env)).unwrap();
    env.yield_point();
    base.pool.context().log.misplace_low_water_mark();
    env.yield_point();
}
