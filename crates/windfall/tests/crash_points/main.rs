//! Crash enumeration of the whole engine: histories of DDL and rows on the simulated disk, with a crash at every disk
//! operation and several ways to survive each. Recovery crashes, too, and so does the next recovery. A model decides
//! what must be there, and with lazy commits what may be there. Afterwards all background work must finish, every check
//! must pass, and the files must hold exactly that state.
//!
//! A failure is reported with a command that runs the one case again (`one_case_again`).

#![allow(clippy::unwrap_used, reason = "a test panics")]

mod case;
#[path = "../guard/mod.rs"]
mod guard;
#[path = "../history/mod.rs"]
mod history;
#[path = "../soak/mod.rs"]
mod soak;
mod suite;

use std::{collections::BTreeMap, env::var, panic::catch_unwind};

use case::{Case, History, Script, VARIABLE};
use guard::{AGAIN, mix};
use history::{Model, Step, files, mixed_script, open, verify};
use suite::{Suite, left};
use windfall::{
    Database, FlushLog, IndexOptions, TableOptions,
    disk::{Disk, FileName, Folder},
};
use windfall_sim::{SimulatedDisk, Survive};

const MODES: [FlushLog; 3] = [FlushLog::Sync, FlushLog::Write, FlushLog::Lazy];

/// The number of random choices of what survives a crash, besides nothing and everything.
const ORDERS: u64 = 3;

/// Crashes these histories at every operation, in five ways.
fn enumerate(seeds: core::ops::Range<u64>, steps: usize, mode: FlushLog, before: u32, at_least: u64) {
    let mut suite = Suite::new(verify);
    for seed in seeds {
        suite.crash_everywhere(History { seed, steps, mode, before, script: Script::Mixed }, 1, ORDERS);
    }
    assert_enough(&suite, at_least);
}

fn assert_enough(suite: &Suite, at_least: u64) {
    let Suite { operations, of_recoveries, groups, cases, .. } = suite;
    let points = suite.crash_points();
    println!(
        "{points} crash points: {operations} operations of histories, {of_recoveries} of recoveries, {groups} ends of groups; \
         {cases} disks looked at"
    );
    assert!(points >= at_least, "{points} crash points are fewer than {at_least}");
}

#[test]
fn first_runs_crash_at_every_operation() {
    enumerate(101..103, 390, FlushLog::Sync, 0, 4000);
}

/// Of the histories with steps of all kinds, which are those of every third seed, each kind must be carried out.
#[test]
fn steps_of_every_kind_are_carried_out() {
    let mut done: BTreeMap<String, u32> = BTreeMap::new();
    for (seed, steps) in [(101, 390), (200, 380), (302, 300), (401, 120)] {
        let mut live = open(&SimulatedDisk::new(seed), seed).unwrap();
        for step in mixed_script(seed, steps).iter().filter(|step| live.apply(step).is_ok()) {
            let text = format!("{step:?}");
            let kind = text.split('(').next().unwrap_or_default();
            *done.entry(kind.to_owned()).or_default() += 1;
        }
    }
    println!("{done:?}");
    for (kind, least) in [
        ("LoadInto", 3),
        ("DropPrefix", 3),
        ("TruncatePrefix", 3),
        ("Alter", 5),
        ("Fields", 30),
        ("ChangeKey", 5),
    ] {
        assert!(
            done.get(kind).is_some_and(|count| *count >= least),
            "{kind} is not {least} times in {done:?}"
        );
    }
}

#[test]
fn later_runs_crash_at_every_operation() {
    enumerate(200..202, 380, FlushLog::Sync, 2, 4000);
}

#[test]
fn runs_with_high_trees_crash_at_every_other_operation() {
    let history = History { seed: 600, steps: 390, mode: FlushLog::Sync, before: 1, script: Script::High };
    // The trees must become high, and low again.
    let mut heights: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let mut live = open(&SimulatedDisk::new(1), 1).unwrap();
    for step in history.script(1) {
        // Some steps must be refused.
        let _ = live.apply(&step);
        for tree in live.db.check().unwrap().trees.into_iter().filter(|tree| tree.index.is_none()) {
            heights.entry(tree.table).or_default().push(tree.height);
        }
    }
    for heights in heights.values_mut() {
        heights.dedup();
    }
    let falls =
        |heights: &Vec<u32>| heights.iter().skip_while(|height| **height < 3).any(|height| *height == 1);
    assert!(heights.values().any(falls), "{heights:?}");
    let mut suite = Suite::new(verify);
    suite.crash_everywhere(history, 2, ORDERS);
    assert_enough(&suite, 2400);
}

#[test]
fn groups_crash_at_every_operation() {
    let mut suite = Suite::new(verify);
    for (seed, mode) in [(700, FlushLog::Sync), (701, FlushLog::Lazy)] {
        let history = History { seed, steps: 150, mode, before: 1, script: Script::Groups };
        // Most groups must be possible, and have several statements.
        let mut live = open(&SimulatedDisk::new(1), 1).unwrap();
        let groups = history.script(1);
        let groups = groups.iter().filter(|step| live.apply(step).is_ok() && matches!(step, Step::Group(_)));
        assert!(groups.count() > 30, "few of the groups are carried out");
        suite.crash_everywhere(history, 1, ORDERS);
    }
    assert_enough(&suite, 2500);
}

#[test]
fn runs_with_lazy_commits_crash_at_every_operation() {
    enumerate(302..303, 300, FlushLog::Lazy, 1, 800);
    enumerate(301..302, 300, FlushLog::Write, 1, 1200);
}

#[test]
fn recoveries_crash_at_every_operation() {
    let mut suite = Suite::new(verify);
    for seed in 400..406 {
        let (mode, before) = (MODES[seed as usize % 3], seed as u32 % 2);
        suite.crash_recoveries(History { seed, steps: 120, mode, before, script: Script::Mixed }, 61);
    }
    assert_enough(&suite, 1200);
}

#[test]
fn runs_crash_between_the_groups_of_a_write() {
    let mut suite = Suite::new(verify);
    for seed in 500..511 {
        let mode = [FlushLog::Sync, FlushLog::Sync, FlushLog::Lazy][seed as usize % 3];
        suite.crash_between_groups(History {
            seed,
            steps: 300,
            mode,
            before: seed as u32 % 2,
            script: if seed >= 509 { Script::High } else { Script::Mixed },
        });
    }
    assert_enough(&suite, 2000);
}

/// A crash may interrupt a row change after some of its entries are written. Until it is rolled back, that is no
/// damage.
#[test]
fn a_check_at_once_after_an_opening_finds_nothing() {
    type Check = fn(&Database) -> windfall::Result<windfall::CheckReport>;
    let disk = SimulatedDisk::new(1);
    let live = open(&disk, 1).unwrap();
    let indexes = (0..4).fold(TableOptions::default(), |options, n| {
        options.index(&format!("i{n}"), IndexOptions::on_value(n..n + 1))
    });
    let table = live.db.create_table("t", indexes).unwrap();
    (0..9u8).for_each(|n| table.put(&[n], &[n; 4]).unwrap());
    live.db.checkpoint().unwrap();
    let before = files::group_ends(&disk.survivor(Survive::Everything)).len();
    table.put(&[1], &[100; 4]).unwrap();
    table.put(b"new", &[101; 4]).unwrap();
    assert!(table.delete(&[2]).unwrap());
    let left = disk.survivor(Survive::Everything);
    let ends = files::group_ends(&left);
    let mut unfinished = 0;
    for (seed, end) in (2..).zip(&ends[before..]) {
        for check in [Database::check_live as Check, Database::check] {
            let crashed = left.survivor(Survive::Everything);
            files::end_log(&crashed, *end);
            let live = open(&crashed, seed).unwrap();
            unfinished += live.db.metrics().rollbacks_pending;
            let report = check(&live.db).unwrap();
            assert_eq!(report.findings, Vec::<String>::new(), "crash at {end}");
            // The check has waited until the rows could be compared with the entries.
            assert_eq!(report.uncompared, Vec::<String>::new(), "crash at {end}");
            let entries: Vec<u64> =
                report.trees.iter().filter(|tree| tree.table == "t").map(|tree| tree.entries).collect();
            assert!(entries.len() == 5 && entries.iter().all(|n| *n == entries[0]), "{entries:?}");
        }
    }
    assert!(unfinished > 10, "{unfinished} were cut off in the middle of a change");
}

/// Runs the case in the variable `WINDFALL_CRASH`, as a failure prints it.
#[test]
#[ignore = "needs a case"]
fn one_case_again() {
    let case: Case = var(VARIABLE).expect("a case in WINDFALL_CRASH").parse().unwrap();
    Suite::new(verify).again(&case);
    println!("nothing is wrong with {case}");
}

/// Runs new histories until the time is over.
#[test]
#[ignore = "runs for a given time"]
fn soak() {
    soak::soak("crash points", |seed, end| {
        let luck = |n| mix(&[seed, n]);
        let history = History {
            seed,
            steps: 50 + luck(1) as usize % 350,
            mode: MODES[[0, 0, 1, 2][luck(2) as usize % 4]],
            before: luck(3) as u32 % 4,
            script: [Script::High, Script::Groups, Script::Mixed, Script::Mixed][luck(5) as usize % 4],
        };
        let mut suite = Suite::new(verify);
        suite.until = Some(end);
        match luck(4) % 8 {
            0 => suite.crash_recoveries(history, 31),
            1 => suite.crash_between_groups(history),
            // Many histories with few crash points find other bugs than few histories with a crash at every operation.
            n => suite.crash_everywhere(history, 1 + n * 3, ORDERS),
        }
        suite.crash_points()
    });
}

/// Returns the bytes of all files: disks that are equal here are equal to every reader.
fn bytes_of(disk: &SimulatedDisk) -> Vec<(FileName, Vec<u8>)> {
    let folders = [Folder::Root, Folder::Log, Folder::Data];
    let files = folders.iter().flat_map(|folder| disk.list(*folder).unwrap());
    files
        .map(|file| {
            let mut bytes = vec![0; disk.len(file).unwrap().unwrap() as usize];
            for (at, block) in (0..).step_by(4096).zip(bytes.chunks_mut(4096)) {
                // A crash may have left a block that cannot be read.
                if disk.read(file, at, block).is_err() {
                    block.fill(b'?');
                }
            }
            (file, bytes)
        })
        .collect()
}

#[test]
fn a_failure_names_the_command_that_runs_its_case_again() {
    fn judge(disk: &SimulatedDisk, _: u64, _: &[Model], _: &str) {
        // Fails on purpose, at the first of these disks that holds this many bytes.
        assert!(disk.used() < 400_000, "bytes: {:x}", digest(disk));
    }
    fn digest(disk: &SimulatedDisk) -> u32 {
        bytes_of(disk).iter().fold(0, |sum, (file, bytes)| {
            crc32c::crc32c_append(crc32c::crc32c_append(sum, file.to_string().as_bytes()), bytes)
        })
    }
    let text = |run: &mut dyn FnMut()| {
        let panic = catch_unwind(core::panic::AssertUnwindSafe(run)).expect_err("it is wrong on purpose");
        panic.downcast_ref::<String>().expect("a text").clone()
    };
    for seed in 1..7 {
        let (script, steps) = if seed > 3 { (Script::High, 340) } else { (Script::Mixed, 200) };
        let history =
            History { seed, steps, mode: MODES[seed as usize % 3], before: seed as u32 % 2, script };
        let message = text(&mut || {
            let mut suite = Suite::new(judge);
            if seed % 3 == 0 {
                suite.crash_between_groups(history);
            } else {
                suite.crash_everywhere(history, 1, 2);
            }
        });
        let (_, command) = message.split_once(AGAIN).expect("a command");
        let case = Case::of_command(command).unwrap();
        assert_eq!(case.history, history);
        assert_eq!(case.command(), command.trim());
        assert_eq!(case.group.is_some(), seed % 3 == 0);
        // The disk is the same to the last byte, and so is the message.
        assert_eq!(text(&mut || Suite::new(judge).again(&case)), message);
        let mut same = 0;
        history.run(case.crashes[0].0..=case.crashes[0].0, &mut |_, crashed, _| {
            same += usize::from(message.contains(&format!("bytes: {:x}\n", digest(&left(crashed, &case)))));
        });
        assert_eq!(same, 1);
    }
}

#[test]
fn a_case_is_read_as_it_is_written() {
    let history = History { seed: 7, steps: 40, mode: FlushLog::Write, before: 3, script: Script::High };
    let ways = [Survive::Nothing, Survive::Everything, Survive::Random(u64::MAX)];
    let case = Case { history, crashes: (1..).zip(ways).collect(), group: Some(4096) };
    assert_eq!(case.to_string().parse(), Ok(case.clone()));
    assert_eq!(Case::of_command(&case.command()), Ok(case));
    for wrong in ["seed", "seed=x", "crash=5", "crash=5:x", "mode=Never", "trees=low", "colour=red"] {
        assert!(wrong.parse::<Case>().is_err(), "{wrong}");
    }
}
