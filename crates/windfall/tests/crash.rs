//! Crash enumeration of the whole engine: scripted histories of DDL and rows on the simulated disk, cut at its operations,
//! recovery cut again. A model decides what must be there; when commits are lazy, what may be there.

#![allow(clippy::unwrap_used, reason = "a test panics")]

mod history;

use std::collections::BTreeMap;

use history::{Live, Model, Rows, Step, index, observe, open, script, verify};
use windfall::{
    Database, FlushLog, TableOptions,
    disk::{
        Disk, FileName,
        simulated::{SimulatedDisk, Survive},
    },
    env::SimulatedEnv,
    ids::SpaceId,
};

/// Runs the script, the `whole` of it or up to a crash. Gives what may be there afterwards: what was acknowledged as
/// durable first, then what each step since has made of it, and at last what the step under way would have.
fn run(disk: &SimulatedDisk, seed: u64, script: &[Step], mode: FlushLog, whole: bool) -> Vec<Model> {
    let mut model = Model::default();
    let mut may = vec![model.clone()];
    let Ok(mut live) = open(disk, seed) else { return may };
    live.db.set_flush_log_at_trx_commit(mode);
    for step in script {
        match model.after(step) {
            None => {
                let refused = live.apply(step);
                assert!(refused.is_err(), "{step:?} should have been refused");
                if disk.is_crashed() {
                    return may;
                }
            }
            Some(after) => {
                let done = live.apply(step);
                if done.is_ok() && (mode == FlushLog::Sync || matches!(step, Step::Checkpoint)) {
                    may.clear();
                }
                may.push(after.clone());
                if let Err(error) = done {
                    assert!(disk.is_crashed(), "{step:?}: {error}");
                    return may;
                }
                model = after;
            }
        }
    }
    if whole {
        let seen = observe(&live.db).unwrap();
        assert!(seen == model, "without any crash: {seen:?} is not {model:?}");
        assert_eq!(live.db.check().unwrap().findings, Vec::<String>::new(), "without any crash");
    }
    may
}

/// Cuts a history at every so many operations of the disk. Gives the number of crash points.
fn enumerate(seed: u64, steps: usize, every: u64, mode: FlushLog) -> u64 {
    let script = script(seed, steps);
    let disk = SimulatedDisk::new(seed);
    run(&disk, seed, &script, mode, true);
    let total = disk.operations();
    let mut points = 0;
    for operation in (1 + seed % every..=total).step_by(every as usize) {
        let disk = SimulatedDisk::new(seed);
        disk.crash_at(operation);
        let may = run(&disk, seed, &script, mode, false);
        let survive = [Survive::Nothing, Survive::Everything, Survive::Random(operation)]
            [(operation / every % 3) as usize];
        let what = format!(
            "seed {seed}, {steps} steps, {mode:?}, crash at operation {operation} of {total}, {survive:?}"
        );
        let mut survivor = disk.restart(survive);
        if operation.is_multiple_of(2) {
            // Recovery is cut, too.
            survivor.crash_at(1 + operation % 61);
            drop(open(&survivor, seed));
            survivor = survivor.restart(survive);
        }
        verify(&survivor, seed, &may, &what);
        points += 1;
    }
    points
}

#[test]
fn a_short_history_is_cut_at_every_operation() {
    let points: u64 = (1..3).map(|seed| enumerate(seed, 60, 1, FlushLog::Sync)).sum();
    assert!(points > 200, "{points} crash points are too few to mean anything");
}

#[test]
fn longer_histories_are_cut_here_and_there() {
    let points: u64 = (10..16).map(|seed| enumerate(seed, 500, 13, FlushLog::Sync)).sum();
    assert!(points > 250, "{points} crash points are too few to mean anything");
}

/// What was not durable may be lost, but only from its end on: what is there is what was there at one time.
#[test]
fn lazy_commits_are_lost_from_the_end_on() {
    let modes = [FlushLog::Lazy, FlushLog::Write];
    let points: u64 = (20..26).map(|seed| enumerate(seed, 400, 3, modes[seed as usize % 2])).sum();
    assert!(points > 250, "{points} crash points are too few to mean anything");
}

/// A killed process leaves what it wrote and did not sync: the next one must not take it for durable.
#[test]
fn a_process_is_killed_and_then_the_power_is_lost() {
    let mut points = 0;
    for (seed, steps) in [(1, 60), (2, 60), (31, 120)] {
        let script = script(seed, steps);
        let disk = SimulatedDisk::new(seed);
        run(&disk, seed, &script, FlushLog::Sync, true);
        for operation in 1..=disk.operations() {
            let disk = SimulatedDisk::new(seed);
            disk.crash_at(operation);
            let may = run(&disk, seed, &script, FlushLog::Sync, false);
            let next = disk.next_process();
            let what =
                format!("seed {seed}, {steps} steps, killed at operation {operation}, opened, power lost");
            // Where the database was still being made there is none.
            let Ok(Live { db, env, .. }) = open(&next, seed) else { continue };
            db.checkpoint().unwrap_or_else(|error| panic!("{what}: {error}"));
            env.settle(50);
            db.checkpoint().unwrap_or_else(|error| panic!("{what}: {error}"));
            verify(&next.restart(Survive::Nothing), seed, &may, &what);
            points += 1;
        }
    }
    assert!(points > 300, "{points} points are too few to mean anything");
}

/// As above, with every kill amid the writing of pages that the log's floor then passes.
#[test]
fn pages_that_a_killed_process_has_written_are_made_durable() {
    let rows = |db: &Database| -> Vec<Option<Vec<u8>>> {
        let table = db.table("t").unwrap();
        (0..40u32).map(|n| table.get(&n.to_be_bytes()).unwrap()).collect()
    };
    let run = |crash: Option<u64>| {
        let disk = SimulatedDisk::new(5);
        let Live { db, env, .. } = open(&disk, 5).unwrap();
        let table = db.create_table("t", TableOptions::default()).unwrap();
        for value in [1, 2] {
            for n in 0..40u32 {
                table.put(&n.to_be_bytes(), &[value; 50]).unwrap();
            }
            if value == 1 {
                db.checkpoint().unwrap();
                env.settle(200);
                db.checkpoint().unwrap();
            }
        }
        let before = disk.operations();
        if let Some(n) = crash {
            disk.crash_at(before + n);
        }
        let _ = db.checkpoint();
        let operations = disk.operations() - before;
        (disk, operations)
    };
    let (_, operations) = run(None);
    for n in 1..=operations {
        let next = run(Some(n)).0.next_process();
        let Live { db, env, .. } = open(&next, 6).unwrap();
        for _ in 0..2 {
            db.checkpoint().unwrap();
            env.settle(100);
        }
        let Live { db, env: _env, .. } = open(&next.restart(Survive::Nothing), 7).unwrap();
        assert!(
            rows(&db).iter().all(|row| *row == Some(vec![2; 50])),
            "killed at operation {n} of {operations}"
        );
    }
}

/// A database with one table: rows that are in its file, changes of them that only the log knows, all durable.
fn with_table(disk: &SimulatedDisk) -> (Database, SimulatedEnv, Model) {
    let Live { db, env, .. } = open(disk, 7).unwrap();
    let table = db.create_table("t", TableOptions::default().index("i", index())).unwrap();
    let mut rows = Rows::new();
    for round in 0..2u8 {
        for n in 0..80u32 {
            let (key, value) = (format!("key {n:04}").into_bytes(), vec![round; 40 + n as usize % 50]);
            table.put(&key, &value).unwrap();
            rows.insert(key, value);
        }
        if round == 0 {
            // Until the records of the files are written, too.
            env.settle(200);
            db.checkpoint().unwrap();
        }
    }
    (db, env, Model(BTreeMap::from([("t".into(), (true, rows))])))
}

#[test]
fn a_drop_that_fails_has_touched_nothing() {
    let disk = SimulatedDisk::new(7);
    let (db, env, model) = with_table(&disk);
    // Too many tables for one group of the log: refused before anything is changed.
    db.set_flush_log_at_trx_commit(FlushLog::Lazy);
    let names: Vec<String> = (0..1500).map(|n| format!("n{n}")).collect();
    for name in &names {
        db.create_table(name, TableOptions::default()).unwrap();
    }
    let all: Vec<&str> = names.iter().map(String::as_str).chain(["t"]).collect();
    assert!(db.drop_tables(&all).is_err());
    env.settle(300);
    for some in all[..1500].chunks(500) {
        db.drop_tables(some).unwrap();
    }
    db.checkpoint().unwrap();
    env.settle(300);
    assert!(observe(&db).unwrap() == model);
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
    verify(&disk.restart(Survive::Nothing), 7, &[model], "after the drop that failed");
}

#[test]
fn a_drop_that_is_not_durable_leaves_its_table_whole() {
    // The drop is logged and not synced; frames are used again, pages are written, files are deleted, as far as they may.
    let drop_lazily = |disk: &SimulatedDisk| {
        let (db, env, before) = with_table(disk);
        let other = db.create_table("other", TableOptions::default()).unwrap();
        for n in 0..20u32 {
            other.put(&n.to_be_bytes(), &[1; 300]).unwrap();
        }
        let before = Model(before.0.into_iter().chain(observe(&db).unwrap().0).collect());
        db.set_flush_log_at_trx_commit(FlushLog::Lazy);
        let syncs = db.metrics().log_syncs;
        db.drop_table("t").unwrap();
        // The deleter looks twice a second, the log is synced once.
        env.settle(140);
        let after = before.after(&Step::Drop(vec!["t".into()])).unwrap();
        (db, env, syncs, before, after)
    };
    let disk = SimulatedDisk::new(7);
    let (db, env, syncs, before, after) = drop_lazily(&disk);
    assert_eq!(db.metrics().log_syncs, syncs, "the drop is durable: this test means nothing");
    for survive in [Survive::Nothing, Survive::Everything] {
        verify(
            &disk.restart(survive),
            7,
            std::slice::from_ref(&before),
            "the drop was neither written nor synced",
        );
    }
    drop((db, env));
    // The checkpoint makes the drop durable, or not any more.
    for operation in 1.. {
        let disk = SimulatedDisk::new(7);
        let (db, _env, ..) = drop_lazily(&disk);
        disk.crash_at(disk.operations() + operation);
        let done = db.checkpoint();
        let crashed = disk.is_crashed();
        let may = if done.is_ok() { vec![after.clone()] } else { vec![before.clone(), after.clone()] };
        for survive in [Survive::Nothing, Survive::Random(operation)] {
            let what = format!("{survive:?}, {operation} operations after the drop");
            verify(&disk.restart(survive), 7, &may, &what);
        }
        if !crashed {
            break;
        }
    }
}

/// What a crash leaves of a drop is no leak, and a file that nothing tells of is one.
#[test]
fn a_check_tells_what_a_crash_has_left_from_what_has_leaked() {
    let disk = SimulatedDisk::new(3);
    let Live { db, env: _env, .. } = open(&disk, 3).unwrap();
    for name in ["dropped", "kept"] {
        let table = db.create_table(name, TableOptions::default()).unwrap();
        table.put(b"key", &[1; 500]).unwrap();
    }
    db.checkpoint().unwrap();
    db.drop_table("dropped").unwrap();
    let disk = disk.restart(Survive::Nothing);
    let Live { db, env: _env, .. } = open(&disk, 3).unwrap();
    let report = db.check().unwrap();
    assert_eq!(report.findings, Vec::<String>::new());
    assert_eq!(report.pending.len(), 1, "{report:?}");
    db.close().unwrap();
    let Live { db, env, .. } = open(&disk, 3).unwrap();
    env.settle(300);
    assert_eq!(db.check().unwrap().pending, Vec::<String>::new());
    db.close().unwrap();
    let stray = FileName::Data(SpaceId(0xf_ffff));
    disk.create(stray).unwrap();
    let Live { db, env: _env, .. } = open(&disk, 3).unwrap();
    let report = db.check().unwrap();
    assert!(report.findings.len() == 1 && report.findings[0].contains("fffff.tree"), "{report:?}");
}
