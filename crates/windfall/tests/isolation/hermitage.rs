//! The cases of Martin Kleppmann's Hermitage (<https://github.com/ept/hermitage>), followed by some of our own. Each
//! has the outcome at each level in `InnoDB`, and under strict snapshots, which `InnoDB` does not have in this form.
//! Initially there are the rows 1=10 and 2=20.
//!
//! `InnoDB` does more than Adya's levels demand. SERIALIZABLE locks its reads, so it waits or gets a deadlock error
//! where other levels see an anomaly. REPEATABLE READ reads a snapshot, and writes to the newest version. The deadlock
//! victim is the transaction that has done least, and among equals the one that waited last.

use std::sync::{Arc, Mutex};

use super::{
    client::{Answer, Call, Level},
    engine,
    reference::{Database, Session},
    script::{Line, parse, run},
};

const START: &str = "
    T0 begin RC
    T0 put 1=10
    T0 put 2=20
    T0 commit
";

const CASES: &[(&str, &str)] = &[
    (
        "G0: write cycle",
        "
        T1 begin
        T2 begin
        T1 put 1=11
        T2 put 1=12 -> waits
        T1 put 2=21
        T1 commit
        T2 continues
        T3 begin
        RU: T3 read all -> 1=12 2=21
        RC RR SI: T3 read all -> 1=11 2=21
        SER: T3 read all -> waits
        T2 put 2=22
        T2 commit
        SER: T3 continues -> 1=12 2=22
        T3 commit
        T3 begin
        T3 read all -> 1=12 2=22
        T3 commit
        ",
    ),
    (
        "G1a: aborted read",
        "
        T1 begin
        T2 begin
        T1 put 1=101
        RU: T2 read all -> 1=101 2=20
        RC RR SI: T2 read all -> 1=10 2=20
        SER: T2 read all -> waits
        T1 rollback
        SER: T2 continues -> 1=10 2=20
        T2 read all -> 1=10 2=20
        T2 commit
        ",
    ),
    (
        "G1b: intermediate read",
        "
        T1 begin
        T2 begin
        T1 put 1=101
        RU: T2 read all -> 1=101 2=20
        RC RR SI: T2 read all -> 1=10 2=20
        SER: T2 read all -> waits
        T1 put 1=11
        T1 commit
        SER: T2 continues -> 1=11 2=20
        RU RC SER: T2 read all -> 1=11 2=20
        RR SI: T2 read all -> 1=10 2=20
        T2 commit
        ",
    ),
    (
        "G1c: circular information flow",
        "
        T1 begin
        T2 begin
        T1 put 1=11
        T2 put 2=22
        RU: T1 read 2 -> 2=22
        RU: T2 read 1 -> 1=11
        RC RR SI: T1 read 2 -> 2=20
        RC RR SI: T2 read 1 -> 1=10
        SER: T1 read 2 -> waits
        SER: T2 read 1 -> deadlock
        SER: T1 continues -> 2=20
        T1 commit
        RU RC RR SI: T2 commit
        ",
    ),
    (
        "OTV: an observed transaction vanishes",
        "
        T1 begin
        T2 begin
        T3 begin
        T1 put 1=11
        T1 put 2=19
        T2 put 1=12 -> waits
        T1 commit
        T2 continues
        RU: T3 read all -> 1=12 2=19
        RC RR SI: T3 read all -> 1=11 2=19
        SER: T3 read all -> waits
        T2 put 2=18
        RU: T3 read all -> 1=12 2=18
        RC RR SI: T3 read all -> 1=11 2=19
        T2 commit
        SER: T3 continues -> 1=12 2=18
        RU RC SER: T3 read all -> 1=12 2=18
        RR SI: T3 read all -> 1=11 2=19
        T3 commit
        ",
    ),
    (
        "PMP: many predecessors of a predicate",
        "
        T1 begin
        T2 begin
        T1 read =30 -> nothing
        RU RC RR SI: T2 put 3=30
        SER: T2 put 3=30 -> waits
        RU RC RR SI: T2 commit
        RU RC: T1 read %3 -> 3=30
        RR SI SER: T1 read %3 -> nothing
        T1 commit
        SER: T2 continues
        SER: T2 commit
        ",
    ),
    (
        "PMP: with a predicate that writes",
        "
        T1 begin
        T2 begin
        T1 change all +10
        RU: T2 read =20 -> 1=20
        RC RR SI: T2 read =20 -> 2=20
        SER: T2 read =20 -> waits
        RU RC RR SI: T2 delete =20 -> waits
        T1 commit
        SI: T2 continues -> changed
        RU RC RR: T2 continues
        SER: T2 continues -> 1=20
        SER: T2 delete =20
        RU RC SER: T2 read all -> 2=30
        RR: T2 read =20 -> 2=20
        RU RC RR SER: T2 commit
        T3 begin
        RU RC RR SER: T3 read all -> 2=30
        SI: T3 read all -> 1=20 2=30
        T3 commit
        ",
    ),
    (
        "P4: lost update",
        "
        T1 begin
        T2 begin
        T1 read 1 -> 1=10
        T2 read 1 -> 1=10
        RU RC RR SI: T1 put 1=11
        SER: T1 put 1=11 -> waits
        RU RC RR SI: T2 put 1=12 -> waits
        SER: T2 put 1=12 -> deadlock
        SER: T1 continues
        T1 commit
        RU RC RR: T2 continues
        RU RC RR: T2 commit
        SI: T2 continues -> changed
        T3 begin
        RU RC RR: T3 read 1 -> 1=12
        SI SER: T3 read 1 -> 1=11
        T3 commit
        ",
    ),
    (
        "G-single: read skew",
        "
        T1 begin
        T2 begin
        T1 read 1 -> 1=10
        T2 read 1 -> 1=10
        T2 read 2 -> 2=20
        RU RC RR SI: T2 put 1=12
        SER: T2 put 1=12 -> waits
        RU RC RR SI: T2 put 2=18
        RU RC RR SI: T2 commit
        RU RC: T1 read 2 -> 2=18
        RR SI SER: T1 read 2 -> 2=20
        T1 commit
        SER: T2 continues
        SER: T2 put 2=18
        SER: T2 commit
        ",
    ),
    (
        "G-single: with predicates",
        "
        T1 begin
        T2 begin
        T1 read %5 -> 1=10 2=20
        RU RC RR SI: T2 change =10 12
        SER: T2 change =10 12 -> waits
        RU RC RR SI: T2 commit
        RU RC: T1 read %3 -> 1=12
        RR SI SER: T1 read %3 -> nothing
        T1 commit
        SER: T2 continues
        SER: T2 commit
        ",
    ),
    (
        "G-single: with a predicate that writes",
        "
        T1 begin
        T2 begin
        T1 read 1 -> 1=10
        T2 read all -> 1=10 2=20
        RU RC RR SI: T2 put 1=12
        SER: T2 put 1=12 -> waits
        RU RC RR SI: T2 put 2=18
        RU RC RR SI: T2 commit
        RU RC RR: T1 delete =20
        SI: T1 delete =20 -> changed
        SER: T1 delete =20 -> deadlock
        RU RC: T1 read 2 -> 2=18
        RR: T1 read 2 -> 2=20
        RU RC RR: T1 commit
        SER: T2 continues
        SER: T2 put 2=18
        SER: T2 commit
        T3 begin
        T3 read all -> 1=12 2=18
        T3 commit
        ",
    ),
    (
        "G2-item: write skew",
        "
        T1 begin
        T2 begin
        T1 read 1..2 -> 1=10 2=20
        T2 read 1..2 -> 1=10 2=20
        RU RC RR SI: T1 put 1=11
        SER: T1 put 1=11 -> waits
        RU RC RR SI: T2 put 2=21
        SER: T2 put 2=21 -> deadlock
        SER: T1 continues
        T1 commit
        RU RC RR SI: T2 commit
        T3 begin
        RU RC RR SI: T3 read all -> 1=11 2=21
        SER: T3 read all -> 1=11 2=20
        T3 commit
        ",
    ),
    (
        "G2: a cycle of rows that were missing",
        "
        T1 begin
        T2 begin
        T1 read %3 -> nothing
        T2 read %3 -> nothing
        RU RC RR SI: T1 put 3=30
        SER: T1 put 3=30 -> waits
        RU RC RR SI: T2 put 4=42
        SER: T2 put 4=42 -> deadlock
        SER: T1 continues
        T1 commit
        RU RC RR SI: T2 commit
        T3 begin
        RU RC RR SI: T3 read %3 -> 3=30 4=42
        SER: T3 read %3 -> 3=30
        T3 commit
        ",
    ),
    (
        "G2: Fekete's, with two that miss and one that only reads",
        "
        T1 begin
        T1 read all -> 1=10 2=20
        T2 begin
        RU RC RR SI: T2 change 2 +5
        SER: T2 change 2 +5 -> waits
        RU RC RR SI: T2 commit
        T3 begin
        RU RC RR SI: T3 read all -> 1=10 2=25
        SER: T3 read all -> waits
        RU RC RR SI: T3 commit
        RU RC RR SI: T1 put 1=9
        SER: T1 put 1=9 -> waits
        SER: T2 continues -> deadlock
        SER: T3 continues -> 1=10 2=20
        SER: T3 commit
        SER: T1 continues
        T1 commit
        T3 begin
        RU RC RR SI: T3 read all -> 1=9 2=25
        SER: T3 read all -> 1=9 2=20
        T3 commit
        ",
    ),
    (
        "no update is lost where the read locks",
        "
        T1 begin
        T2 begin
        T1 lock 1 -> 1=10
        T2 lock 1 -> waits
        T1 put 1=11
        T1 commit
        T2 continues -> 1=11
        T2 put 1=12
        T2 commit
        ",
    ),
    (
        "a locking read sees the newest, and the snapshot stays",
        "
        T1 begin
        T2 begin
        RU RC RR SI: T1 read 1 -> 1=10
        T2 put 1=11
        T2 commit
        RU RC RR SER: T1 share 1 -> 1=11
        SI: T1 share 1 -> changed
        RU RC SER: T1 read 1 -> 1=11
        RR: T1 read 1 -> 1=10
        RR: T1 put 1=12
        RR: T1 read all -> 1=12 2=20
        RU RC RR SER: T1 commit
        ",
    ),
    (
        "no row appears where a locking read has found none",
        "
        T1 begin
        T2 begin
        T1 lock 3..9 -> nothing
        RU RC: T2 put 5=50
        RR SI SER: T2 put 5=50 -> waits
        RU RC: T2 commit
        RU RC: T1 lock 3..9 -> 5=50
        RR SI SER: T1 lock 3..9 -> nothing
        T1 commit
        RR SI SER: T2 continues
        RR SI SER: T2 commit
        ",
    ),
    (
        "gap locks block only inserts, so two holders of one block each other",
        "
        T1 begin
        T2 begin
        T1 lock 5 -> nothing
        T2 lock 5 -> nothing
        RU RC: T1 put 5=50
        RU RC: T2 put 5=51 -> waits
        RU RC: T1 commit
        RU RC: T2 continues
        RU RC: T2 commit
        RR SI SER: T1 put 5=50 -> waits
        RR SI SER: T2 put 5=51 -> deadlock
        RR SI SER: T1 continues
        RR SI SER: T1 commit
        ",
    ),
    (
        "a request for a row with a waiter queues behind it",
        "
        T1 begin
        T2 begin
        T3 begin
        T1 share 1 -> 1=10
        T2 put 1=11 -> waits
        T3 share 1 -> waits
        T1 commit
        T2 continues
        T2 commit
        T3 continues -> 1=11
        T3 commit
        ",
    ),
];

fn lines(script: &str, level: Level) -> Vec<Line> {
    [START, script].map(|part| parse(part, level)).concat()
}

fn on_the_reference(lines: &[Line]) -> Result<(), String> {
    let database = Arc::new(Mutex::new(Database::new(0, None, false)));
    run(lines, || Session::new(database.clone()))
}

#[test]
fn hermitage_comes_out_as_it_does_in_innodb() {
    for (name, script) in CASES {
        for level in Level::ALL {
            assert_eq!(on_the_reference(&lines(script, level)), Ok(()), "{name}, {level}");
        }
    }
}

fn on_the_engine(lines: &[Line]) -> Result<(), String> {
    let (db, waiting) = (engine::database(), Arc::default());
    run(lines, || engine::Watched::new(&db, &waiting))
}

#[test]
fn hermitage_comes_out_as_it_should_in_the_engine() {
    for (name, script) in CASES {
        for level in Level::ALL {
            assert_eq!(on_the_engine(&lines(script, level)), Ok(()), "{name}, {level}");
        }
    }
}

/// A database at one level does not pass the cases of another level.
#[test]
fn the_cases_tell_the_levels_apart() {
    for expected in Level::ALL {
        for real in Level::ALL.into_iter().filter(|real| *real != expected) {
            let passes = |script: &str| {
                let mut lines = lines(script, expected);
                for line in &mut lines {
                    if line.call == Some(Call::Begin(expected)) {
                        line.call = Some(Call::Begin(real));
                    }
                }
                on_the_reference(&lines).is_ok()
            };
            assert!(!CASES.iter().all(|(_, script)| passes(script)), "{real} passes for {expected}");
        }
    }
}

#[test]
fn a_different_result_is_reported_with_its_line() {
    for (name, script) in CASES {
        for level in Level::ALL {
            let lines = lines(script, level);
            for (n, line) in lines.iter().enumerate() {
                let check_changed = |change: &dyn Fn(&mut Vec<Line>)| {
                    let mut lines = lines.clone();
                    change(&mut lines);
                    on_the_reference(&lines).expect_err(&format!("{name}, {level}: {:?}", line.text))
                };
                let other = Answer::Rows(vec![(77, vec![7])]);
                let text = check_changed(&|lines| lines[n].answer = Some(other.clone()));
                assert!(text.contains(&line.text), "{text}");
                if matches!(line.answer, Some(Answer::Waits | Answer::Refused(_))) {
                    let text = check_changed(&|lines| lines[n].answer = None);
                    assert!(text.contains(&line.text), "{text}");
                }
                // Without this line, the call continues although the script expects a wait, or waits forever.
                if line.call.is_none() {
                    check_changed(&|lines| drop(lines.remove(n)));
                }
            }
        }
    }
}
