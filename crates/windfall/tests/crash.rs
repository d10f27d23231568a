//! Crashes of the whole engine that `tests/crash_points` does not cover: a process that continues after the crash of
//! the disk, kills that are followed by a loss of power, and drops that are not durable. A model decides what must be
//! there.

#![allow(clippy::unwrap_used, reason = "a test panics")]

mod guard;
mod history;

use std::collections::BTreeMap;

use guard::whole;
use history::{Live, Model, Rows, Step, index, indexes, mixed_script, observe, open, verify};
use windfall::{
    Database, FlushLog, TableOptions,
    disk::{Disk, FileName},
    ids::SpaceId,
};
use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

/// Runs the script up to its end, or to the first step that fails because the disk has crashed. Returns the states that
/// may be there afterwards: what was acknowledged, even after the crash of the disk, and what the failed step would
/// have made of it.
fn run(disk: &SimulatedDisk, seed: u64, script: &[Step]) -> Vec<Model> {
    let mut model = Model::default();
    let Ok(mut live) = open(disk, seed) else { return vec![model] };
    for step in script {
        let after = model.after(step);
        match (after, live.apply(step)) {
            (None, done) => assert!(done.is_err(), "{step:?} should have been refused"),
            (Some(after), Ok(())) => model = after,
            (Some(after), Err(error)) => {
                assert!(disk.is_crashed(), "{step:?}: {error}");
                return vec![model, after];
            }
        }
    }
    vec![model]
}

/// A killed process leaves writes that it did not sync: the next process must not take them for durable.
#[test]
fn a_process_is_killed_and_then_the_power_is_lost() {
    let _again = whole("crash", "a_process_is_killed_and_then_the_power_is_lost");
    let mut points = 0;
    for (seed, steps) in [(1, 60), (2, 60), (31, 120)] {
        let script = mixed_script(seed, steps);
        let disk = SimulatedDisk::new(seed);
        run(&disk, seed, &script);
        for operation in 1..=disk.operations() {
            let disk = SimulatedDisk::new(seed);
            disk.crash_at(operation);
            let may = run(&disk, seed, &script);
            let next = disk.next_process();
            let what =
                format!("seed {seed}, {steps} steps, killed at operation {operation}, opened, power lost");
            let Live { db, env, .. } = match open(&next, seed) {
                Ok(live) => live,
                Err(error) => {
                    // If the crash interrupted its creation, there is no database.
                    let is_made = next.len(FileName::Control).unwrap().is_some();
                    assert!(!is_made || may.iter().all(|model| model.0.is_empty()), "{what}: {error}");
                    continue;
                }
            };
            db.checkpoint().unwrap_or_else(|error| panic!("{what}: {error}"));
            env.run_workers(50);
            db.checkpoint().unwrap_or_else(|error| panic!("{what}: {error}"));
            verify(&next.restart(Survive::Nothing), seed, &may, &what);
            points += 1;
        }
    }
    assert!(points > 300, "{points} points are too few to mean anything");
}

/// As above, with every kill during the writing of pages that the log's low-water mark then passes.
#[test]
fn pages_that_a_killed_process_has_written_are_made_durable() {
    let _again = whole("crash", "pages_that_a_killed_process_has_written_are_made_durable");
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
                env.run_workers(200);
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
    assert!(operations > 10, "{operations} operations are too few to mean anything");
    for n in 1..=operations {
        let next = run(Some(n)).0.next_process();
        let Live { db, env, .. } = open(&next, 6).unwrap();
        for _ in 0..2 {
            db.checkpoint().unwrap();
            env.run_workers(100);
        }
        let Live { db, env: _env, .. } = open(&next.restart(Survive::Nothing), 7).unwrap();
        assert!(
            rows(&db).iter().all(|row| *row == Some(vec![2; 50])),
            "killed at operation {n} of {operations}"
        );
    }
}

/// Creates a database with one table: some rows are in its file, later changes of them only in the log, and all are
/// durable.
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
            // Long enough that the file records are written, too.
            env.run_workers(200);
            db.checkpoint().unwrap();
        }
    }
    (db, env, Model(BTreeMap::from([("t".into(), (indexes("i"), rows))])))
}

#[test]
fn a_drop_that_fails_has_touched_nothing() {
    let _again = whole("crash", "a_drop_that_fails_has_touched_nothing");
    let disk = SimulatedDisk::new(7);
    let (db, env, model) = with_table(&disk);
    // There are too many tables for one group of the log: the drop is refused before anything is changed.
    db.set_flush_log_at_trx_commit(FlushLog::Lazy);
    let names: Vec<String> = (0..3000).map(|n| format!("n{n:04}")).collect();
    for name in &names {
        db.create_table(name, TableOptions::default()).unwrap();
    }
    let all: Vec<&str> = names.iter().map(String::as_str).chain(["t"]).collect();
    assert!(db.drop_tables(&all).is_err());
    env.run_workers(300);
    for some in all[..3000].chunks(1000) {
        db.drop_tables(some).unwrap();
    }
    db.checkpoint().unwrap();
    env.run_workers(300);
    assert!(observe(&db).unwrap() == model);
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
    verify(&disk.restart(Survive::Nothing), 7, &[model], "after the drop that failed");
}

#[test]
fn a_drop_that_is_not_durable_leaves_its_table_whole() {
    let _again = whole("crash", "a_drop_that_is_not_durable_leaves_its_table_whole");
    // The drop is logged and not synced. Frames are used again, pages are written, and files are deleted, as far as
    // that is allowed.
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
        // The deleter looks for files twice per second; the log is synced once per second.
        env.run_workers(140);
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
    // The checkpoint makes the drop durable, unless the crash is earlier.
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

/// The remains of a drop after a crash are not a leak, but a file without any record is one.
#[test]
fn a_check_distinguishes_orphans_of_a_crash_from_leaks() {
    let _again = whole("crash", "a_check_distinguishes_orphans_of_a_crash_from_leaks");
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
    env.run_workers(300);
    assert_eq!(db.check().unwrap().pending, Vec::<String>::new());
    db.close().unwrap();
    let stray = FileName::Data(SpaceId(0xf_ffff));
    disk.create(stray).unwrap();
    let Live { db, env: _env, .. } = open(&disk, 3).unwrap();
    let report = db.check().unwrap();
    assert!(report.findings.len() == 1 && report.findings[0].contains("fffff.tree"), "{report:?}");
}
