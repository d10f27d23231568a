//! One small history for each anomaly, as clients would tell it, and one beside it that is right.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicU64},
};

use super::{
    checker::{Kind, check},
    client::{Answer, Call, Client, Level},
    history::{History, Recorder},
    script::{Line, parse},
};

/// A client that is answered what the script says.
struct Parrot(Answer);

impl Client for Parrot {
    fn call(&mut self, _: &Call) -> Answer {
        self.0.clone()
    }

    fn answer(&mut self) -> Answer {
        self.0.clone()
    }
}

/// The history that a script tells.
fn told(script: &str, level: Level) -> History {
    let clock = Arc::new(AtomicU64::new(1));
    let mut sessions: BTreeMap<usize, Recorder<Parrot>> = BTreeMap::new();
    for Line { session, call, answer, .. } in parse(script, level) {
        let new = || Recorder::new(Parrot(Answer::Done), session, clock.clone());
        let recorder = sessions.entry(session).or_insert_with(new);
        recorder.client().0 = answer.unwrap_or(Answer::Done);
        match call {
            Some(call) => recorder.call(&call),
            None => recorder.answer(),
        };
    }
    History::of(sessions.into_values())
}

fn kinds(script: &str, level: Level) -> Vec<Kind> {
    let report = check(&told(script, level));
    let mut kinds: Vec<Kind> = report.anomalies.iter().map(|anomaly| anomaly.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

/// What is wrong with a history at each level, from READ UNCOMMITTED on.
type Wrong = [&'static [Kind]; 5];

const NO: &[Kind] = &[];

fn cases() -> Vec<(&'static str, Wrong)> {
    use Kind::{
        AbortedRead, CircularFlow, Duplicate, Garbage, IncompatibleOrder, IntermediateRead, LongFork,
        LostAppend, LostUpdate, OtherKey, OwnWrite, Phantom, ReadSkew, Unrepeatable, Vanished, WriteCycle,
        WriteSkew,
    };
    vec![
        // Nobody wrote it.
        ("T1 begin\n T1 read 1 -> 1=99\n T1 commit", [&[Garbage]; 5]),
        // Nobody asked for it.
        ("T1 begin\n T1 put 2=5\n T1 read 1 -> 2=5\n T1 commit", [&[Garbage]; 5]),
        // A register is one value.
        ("T1 begin\n T1 put 1=5\n T1 put 1=6\n T1 commit\n T2 begin\n T2 read 1 -> 1=5,6\n T2 commit", [&[Garbage]; 5]),
        ("T1 begin\n T1 put 1=5\n T1 put 2=6\n T1 commit\n T2 begin\n T2 read 1 -> 1=6\n T2 commit", [&[OtherKey]; 5]),
        ("T1 begin\n T1 append 1=5\n T1 commit\n T2 begin\n T2 read 1 -> 1=5,5\n T2 commit", [&[Duplicate]; 5]),
        // Its own element is missing, or there before it is written.
        ("T1 begin\n T1 append 1=5\n T1 read 1 -> nothing\n T1 commit", [&[OwnWrite]; 5]),
        ("T1 begin\n T1 put 1=5\n T1 put 1=6\n T1 read 1 -> 1=5\n T1 commit", [&[OwnWrite]; 5]),
        ("T1 begin\n T1 read 1 -> 1=5\n T1 put 1=5\n T1 commit", [&[OwnWrite]; 5]),
        ("T1 begin\n T1 append 1=5\n T1 append 1=6\n T1 read 1 -> 1=5,6\n T1 rollback", [NO; 5]),
        // What lies below its own elements is held.
        (
            "T1 begin\n T1 append 1=5\n T1 read 1 -> 1=5\n T2 begin\n T2 append 1=6\n T1 read 1 -> 1=6,5\n T1 commit
             T2 commit",
            [
                &[Unrepeatable],
                &[WriteCycle, Unrepeatable],
                &[WriteCycle, Unrepeatable],
                &[Unrepeatable, LostUpdate],
                &[Unrepeatable],
            ],
        ),
        // Two lists of which neither begins with the other.
        (
            "T1 begin\n T2 begin\n T3 begin\n T4 begin\n T1 append 1=5\n T1 commit\n T2 append 1=6\n T2 commit
             T3 read 1 -> 1=5,6\n T3 commit\n T4 read 1 -> 1=6\n T4 commit",
            [NO, &[IncompatibleOrder], &[IncompatibleOrder], &[IncompatibleOrder], &[IncompatibleOrder]],
        ),
        // An append is missing afterwards; and one that may have come later is not.
        ("T1 begin\n T1 append 1=5\n T1 commit\n T2 begin RC\n T2 read 1 -> nothing\n T2 commit", [&[LostAppend]; 5]),
        ("T2 begin RR\n T1 begin\n T1 append 1=5\n T1 commit\n T2 read 1 -> nothing\n T2 commit", [NO; 5]),
        // Each writes over the other.
        (
            "T1 begin\n T2 begin\n T1 append 1=11\n T2 append 1=21\n T2 append 2=22\n T1 append 2=12\n T1 commit
             T2 commit\n T3 begin RC\n T3 read all -> 1=11,21 2=22,12\n T3 commit",
            [&[WriteCycle]; 5],
        ),
        // It is seen, and taken back.
        (
            "T1 begin\n T1 put 1=5\n T2 begin\n T2 read 1 -> 1=5\n T1 rollback\n T2 commit",
            [NO, &[AbortedRead], &[AbortedRead], &[AbortedRead], &[AbortedRead]],
        ),
        (
            "T1 begin\n T1 append 1=5\n T2 begin\n T2 read 1 -> 1=5\n T1 rollback\n T2 rollback",
            [NO, &[AbortedRead], &[AbortedRead], &[AbortedRead], &[AbortedRead]],
        ),
        // What nobody knows of is committed if it is seen, and may be missing.
        ("T1 begin\n T1 put 1=5\n T1 commit -> unknown\n T2 begin\n T2 read 1 -> 1=5\n T2 commit", [NO; 5]),
        ("T1 begin\n T1 append 1=5\n T1 commit -> unknown\n T2 begin\n T2 read 1 -> nothing\n T2 commit", [NO; 5]),
        ("T1 begin\n T1 put 1=5\n T2 begin\n T2 read 1 -> 1=5\n T2 commit", [NO; 5]),
        // It may also come later.
        (
            "T1 begin\n T1 append 1=5\n T1 commit -> unknown\n T2 begin\n T2 read 1 -> nothing\n T2 commit\n T3 begin
             T3 read 1 -> 1=5\n T3 commit",
            [NO; 5],
        ),
        // One that has been seen has happened for all that begin later.
        (
            "T1 begin\n T1 append 1=5\n T1 commit -> unknown\n T2 begin RC\n T2 read 1 -> 1=5\n T2 read 1 -> nothing
             T2 commit",
            [&[ReadSkew]; 5],
        ),
        // It is seen before it is all written. And by the clock before it is committed.
        (
            "T1 begin\n T1 put 1=5\n T2 begin\n T2 read 1 -> 1=5\n T1 put 1=6\n T1 commit\n T2 commit",
            [
                NO,
                &[IntermediateRead, CircularFlow],
                &[IntermediateRead, CircularFlow],
                &[IntermediateRead, CircularFlow],
                &[IntermediateRead],
            ],
        ),
        // A row is gone without a deletion; one that is under way, or was taken back, is none.
        (
            "T1 begin\n T1 put 1=5\n T1 commit\n T2 begin\n T2 remove 1=6\n T3 begin\n T3 read 1 -> nothing\n T2 commit
             T3 commit",
            [NO, &[Vanished], &[Vanished], &[Vanished], NO],
        ),
        (
            "T1 begin\n T1 put 1=5\n T1 commit\n T2 begin\n T2 remove 1=6\n T2 rollback\n T3 begin\n T3 lock 1 -> nothing
             T3 commit",
            [&[Vanished]; 5],
        ),
        (
            "T1 begin\n T1 put 1=5\n T1 commit\n T2 begin\n T2 remove 1=6\n T2 commit -> unknown\n T3 begin
             T3 read 1 -> nothing\n T3 commit",
            [NO; 5],
        ),
        // It is there again; and what was deleted is a version that somebody has read.
        (
            "T1 begin\n T1 put 1=5\n T1 commit\n T2 begin\n T2 remove 1=6\n T2 commit\n T3 begin\n T3 read 1 -> 1=5
             T3 commit",
            [NO, &[ReadSkew], &[ReadSkew], &[ReadSkew], &[ReadSkew]],
        ),
        (
            "T1 begin\n T1 put 1=5\n T1 put 2=6\n T1 commit\n T2 begin\n T3 begin\n T2 read 1 -> 1=5\n T3 read 2 -> 2=6
             T2 remove 2=7\n T3 remove 1=8\n T2 commit\n T3 commit",
            [NO, NO, NO, NO, &[WriteSkew]],
        ),
        // Its own deletions; one that finds nothing is a locking read.
        ("T1 begin\n T1 put 1=5\n T1 remove 1=6\n T1 read 1 -> nothing\n T1 remove 1=7 -> nothing\n T1 commit", [NO; 5]),
        ("T1 begin\n T1 put 1=5\n T1 remove 1=6\n T1 read 1 -> 1=5\n T1 commit", [&[OwnWrite]; 5]),
        (
            "T1 begin\n T2 begin\n T1 remove 1=5 -> nothing\n T2 put 1=6\n T2 commit\n T1 lock 1 -> 1=6\n T1 commit",
            [NO, NO, &[Unrepeatable, ReadSkew], &[Unrepeatable, ReadSkew], &[Unrepeatable, ReadSkew]],
        ),
        // What a deletion is called is no value.
        ("T1 begin\n T1 put 1=5\n T1 remove 1=6\n T1 commit\n T2 begin\n T2 read 1 -> 1=6\n T2 commit", [&[Garbage]; 5]),
        // Who finds no row after a deletion has seen the deletion: that of the two which the clock leaves.
        (
            "T1 begin\n T1 put 1=4\n T1 commit\n T2 begin\n T3 begin\n T2 remove 1=5\n T2 put 2=6\n T2 commit
             T3 read 1..2 -> nothing\n T3 commit",
            [NO, &[ReadSkew], &[ReadSkew], &[ReadSkew], &[ReadSkew]],
        ),
        // Of two deletions the first is covered by a row, so the second was seen; and not all of its transaction.
        (
            "T1 begin\n T1 put 1=4\n T1 commit\n T1 begin\n T1 remove 1=5\n T1 commit\n T1 begin\n T1 put 1=6\n T1 commit
             T2 begin\n T2 remove 1=7\n T2 put 2=8\n T2 commit -> waits\n T3 begin\n T3 read 1..2 -> nothing\n T2 goes on
             T3 commit",
            [NO, &[ReadSkew], &[ReadSkew], &[ReadSkew], &[ReadSkew]],
        ),
        // Where it may have been either of two, it says nothing.
        (
            "T1 begin\n T1 put 1=4\n T1 commit\n T1 begin\n T1 remove 1=5\n T1 commit\n T2 begin\n T2 put 1=6\n T2 commit -> waits
             T3 begin\n T3 remove 1=7\n T3 put 2=8\n T3 commit -> waits\n T4 begin\n T4 read 1..2 -> nothing\n T2 goes on
             T3 goes on\n T4 commit",
            [NO; 5],
        ),
        // A version is old although nobody knows which of the two was first.
        (
            "T1 begin\n T2 begin\n T1 put 1=5\n T1 commit -> waits\n T2 put 1=6\n T2 commit -> waits\n T1 goes on
             T2 goes on\n T3 begin\n T3 put 1=7\n T3 commit\n T4 begin\n T4 read 1 -> 1=5\n T4 commit",
            [NO, &[ReadSkew], &[ReadSkew], &[ReadSkew], &[ReadSkew]],
        ),
        (
            "T1 begin\n T2 begin\n T1 put 1=5\n T1 commit -> waits\n T2 put 1=6\n T2 commit -> waits\n T1 goes on
             T2 goes on\n T3 begin\n T3 put 1=7\n T3 commit\n T4 begin\n T4 read 1 -> 1=6\n T4 commit",
            [NO, &[ReadSkew], &[ReadSkew], &[ReadSkew], &[ReadSkew]],
        ),
        // Each sees the other.
        (
            "T1 begin\n T2 begin\n T1 put 1=5\n T2 put 2=6\n T1 read 2 -> 2=6\n T2 read 1 -> 1=5\n T1 commit\n T2 commit",
            [NO, &[CircularFlow], &[CircularFlow], &[CircularFlow], &[CircularFlow]],
        ),
        // A plain read is not repeated.
        (
            "T1 begin\n T2 begin\n T1 read 1 -> nothing\n T2 put 1=5\n T2 commit\n T1 read 1 -> 1=5\n T1 commit",
            [NO, NO, &[Unrepeatable, ReadSkew], &[Unrepeatable, ReadSkew], &[Unrepeatable, ReadSkew]],
        ),
        // The snapshot stays below locking reads, but where it is strict.
        (
            "T1 begin\n T2 begin\n T1 read 1 -> nothing\n T2 put 1=5\n T2 commit\n T1 share 1 -> 1=5\n T1 commit",
            [NO, NO, NO, &[Unrepeatable, ReadSkew], &[Unrepeatable, ReadSkew]],
        ),
        // What is locked cannot change.
        (
            "T0 begin\n T0 put 1=4\n T0 commit\n T1 begin\n T2 begin\n T1 share 1 -> 1=4\n T2 put 1=5\n T2 commit
             T1 share 1 -> 1=5\n T1 commit",
            [&[Unrepeatable, ReadSkew]; 5],
        ),
        // Each replaces what the other has.
        (
            "T0 begin\n T0 put 1=4\n T0 commit\n T1 begin\n T2 begin\n T1 read 1 -> 1=4\n T2 read 1 -> 1=4
             T1 put 1=5\n T2 put 1=6\n T1 commit\n T2 commit",
            [NO, NO, NO, &[LostUpdate], &[LostUpdate]],
        ),
        (
            "T0 begin\n T0 append 1=4\n T0 commit\n T1 begin\n T2 begin\n T1 lock 1 -> 1=4\n T2 lock 1 -> 1=4
             T1 append 1=5\n T2 append 1=6\n T1 commit\n T2 commit\n T3 begin RC\n T3 read 1 -> 1=4,5,6\n T3 commit",
            [&[LostUpdate]; 5],
        ),
        // Without a read of what it replaces, a strict snapshot is older than it.
        (
            "T1 begin\n T2 begin\n T2 read 2 -> nothing\n T1 put 1=5\n T1 commit\n T2 put 1=6\n T2 commit",
            [NO, NO, NO, &[LostUpdate], NO],
        ),
        // Half of a commit, in one read; less than before; and in two reads.
        (
            "T1 begin\n T2 begin\n T1 put 1=5\n T1 put 2=6\n T1 commit\n T2 read 1..2 -> 1=5\n T2 commit",
            [NO, &[ReadSkew], &[ReadSkew], &[ReadSkew], &[ReadSkew]],
        ),
        (
            "T2 begin\n T1 begin\n T1 put 1=5\n T2 read 1 -> waits\n T1 commit\n T2 goes on -> 1=5\n T2 read 1 -> nothing
             T2 commit",
            [
                NO,
                &[ReadSkew],
                &[Unrepeatable, ReadSkew],
                &[Unrepeatable, ReadSkew],
                &[Unrepeatable, ReadSkew],
            ],
        ),
        (
            "T2 begin\n T2 read 1 -> nothing\n T1 begin\n T1 put 1=5\n T1 put 2=6\n T1 commit\n T2 read 2 -> 2=6\n T2 commit",
            [NO, NO, &[ReadSkew], &[ReadSkew], &[ReadSkew]],
        ),
        // It is old; and it may be, as it was under way.
        (
            "T0 begin\n T0 put 1=4\n T0 commit\n T1 begin\n T1 put 1=5\n T1 commit\n T2 begin\n T2 read 1 -> 1=4\n T2 commit",
            [NO, &[ReadSkew], &[ReadSkew], &[ReadSkew], &[ReadSkew]],
        ),
        (
            "T0 begin\n T0 put 1=4\n T0 commit\n T1 begin\n T1 put 1=5\n T2 begin\n T2 read 1 -> waits\n T1 commit
             T2 goes on -> 1=4\n T2 commit",
            [NO; 5],
        ),
        // A later read has its own moment where the level says so.
        (
            "T0 begin\n T0 put 1=4\n T0 commit\n T2 begin\n T1 begin\n T1 put 1=5\n T1 commit\n T2 read 1 -> 1=4\n T2 commit",
            [NO, &[ReadSkew], NO, NO, NO],
        ),
        // Two see one each of two that do not see each other.
        (
            "T1 begin\n T2 begin\n T3 begin\n T4 begin\n T1 put 1=5\n T2 put 2=6\n T3 read 1..2 -> waits
             T4 read 1..2 -> waits\n T1 commit\n T2 commit\n T3 goes on -> 1=5\n T4 goes on -> 2=6\n T3 commit
             T4 commit",
            [NO, &[LongFork], &[LongFork], &[LongFork], &[LongFork]],
        ),
        // Each has missed what the other wrote.
        (
            "T1 begin\n T2 begin\n T1 read 2 -> nothing\n T2 read 1 -> nothing\n T1 put 1=5\n T2 put 2=6\n T1 commit
             T2 commit",
            [NO, NO, NO, NO, &[WriteSkew]],
        ),
        (
            "T1 begin\n T2 begin\n T1 read 1..9 -> nothing\n T2 read 1..9 -> nothing\n T1 put 1=5\n T2 put 2=6\n T1 commit
             T2 commit",
            [NO, NO, NO, NO, &[Phantom]],
        ),
        (
            "T1 begin\n T2 begin\n T1 lock 1..9 -> nothing\n T2 lock 1..9 -> nothing\n T1 put 1=5\n T2 put 2=6
             T1 commit\n T2 commit",
            [NO, NO, &[Phantom], &[Phantom], &[Phantom]],
        ),
    ]
}

#[test]
fn each_anomaly_is_found_at_the_levels_that_forbid_it() {
    let mut wrong = Vec::new();
    for (script, levels) in cases() {
        for (level, expected) in Level::ALL.into_iter().zip(levels) {
            let found = kinds(script, level);
            if found != expected {
                let report = check(&told(script, level));
                wrong.push(format!("{level}: {found:?} and not {expected:?} in\n{script}\n{report}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A cycle is told with what makes it, and without the clock where it needs none.
#[test]
fn a_cycle_is_told_in_words() {
    let words = |script: &str, level: Level| check(&told(script, level)).to_string();
    let script = "T1 begin\n T1 put 1=5\n T2 begin\n T2 read 1 -> waits\n T1 commit\n T2 goes on -> 1=5\n T2 read 1 -> nothing
                  T2 commit";
    let expected = "G-single, read skew: a cycle\n  \
        T0's commit was before T1's call 1: T0 wrote 5 to key 1, T1 read that (wr)\n  \
        T1's call 1 was before T1's call 2: it is the same transaction\n  \
        T1's call 2 was before T0's commit: T1 read no row at key 1, T0 wrote 5 after that (rw)\n  \
        T0: session 1, READ COMMITTED, committed, from 1 to 9: put 5 to key 1\n  \
        T1: session 2, READ COMMITTED, committed, from 5 to 14: read key 1: 1 is [5]; read key 1: nothing\n";
    assert_eq!(words(script, Level::ReadCommitted), expected);
    let script = "T1 begin\n T1 put 1=5\n T1 commit\n T2 begin\n T2 read 1..3 -> nothing\n T2 commit";
    let expected = "G-single, read skew: a cycle, by the clock\n  \
        T0 was before T1: the one had ended when the other began\n  \
        T1 was before T0: T1 found no row 1 where it looked for several, T0 wrote 5 there (rw)\n  \
        T0: session 1, SERIALIZABLE, committed, from 1 to 6: put 5 to key 1\n  \
        T1: session 2, SERIALIZABLE, committed, from 7 to 12: read keys 1..=3: nothing\n";
    assert_eq!(words(script, Level::Serializable), expected);
}
