//! One small history for each anomaly, as clients record it, and a correct one next to it.

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

/// A client that returns the answers of the script.
struct ScriptedClient(Answer);

impl Client for ScriptedClient {
    fn call(&mut self, _: &Call) -> Answer {
        self.0.clone()
    }

    fn answer(&mut self) -> Answer {
        self.0.clone()
    }
}

/// Returns the history that a script describes.
fn history_of(script: &str, level: Level) -> History {
    let clock = Arc::new(AtomicU64::new(1));
    let mut sessions: BTreeMap<usize, Recorder<ScriptedClient>> = BTreeMap::new();
    for Line { session, call, answer, .. } in parse(script, level) {
        let new = || Recorder::new(ScriptedClient(Answer::Done), session, clock.clone());
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
    let report = check(&history_of(script, level));
    let mut kinds: Vec<Kind> = report.anomalies.iter().map(|anomaly| anomaly.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

/// The anomalies of a history at each level, from READ UNCOMMITTED on.
type Wrong = [&'static [Kind]; 5];

const NO: &[Kind] = &[];

fn cases() -> Vec<(&'static str, Wrong)> {
    use Kind::{
        AbortedRead, CircularFlow, Duplicate, Garbage, IncompatibleOrder, IntermediateRead, LongFork,
        LostAppend, LostUpdate, OtherKey, OwnWrite, Phantom, ReadSkew, Unrepeatable, Vanished, WriteCycle,
        WriteSkew,
    };
    vec![
        // No transaction wrote the value.
        ("T1 begin\n T1 read 1 -> 1=99\n T1 commit", [&[Garbage]; 5]),
        // The read returns a row that it did not request.
        ("T1 begin\n T1 put 2=5\n T1 read 1 -> 2=5\n T1 commit", [&[Garbage]; 5]),
        // A register has one value.
        ("T1 begin\n T1 put 1=5\n T1 put 1=6\n T1 commit\n T2 begin\n T2 read 1 -> 1=5,6\n T2 commit", [&[Garbage]; 5]),
        ("T1 begin\n T1 put 1=5\n T1 put 2=6\n T1 commit\n T2 begin\n T2 read 1 -> 1=6\n T2 commit", [&[OtherKey]; 5]),
        ("T1 begin\n T1 append 1=5\n T1 commit\n T2 begin\n T2 read 1 -> 1=5,5\n T2 commit", [&[Duplicate]; 5]),
        // The transaction's own element is missing, or is read before it is written.
        ("T1 begin\n T1 append 1=5\n T1 read 1 -> nothing\n T1 commit", [&[OwnWrite]; 5]),
        ("T1 begin\n T1 put 1=5\n T1 put 1=6\n T1 read 1 -> 1=5\n T1 commit", [&[OwnWrite]; 5]),
        ("T1 begin\n T1 read 1 -> 1=5\n T1 put 1=5\n T1 commit", [&[OwnWrite]; 5]),
        ("T1 begin\n T1 append 1=5\n T1 append 1=6\n T1 read 1 -> 1=5,6\n T1 rollback", [NO; 5]),
        // The elements before its own must not change.
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
        // Two lists, neither of which is a prefix of the other.
        (
            "T1 begin\n T2 begin\n T3 begin\n T4 begin\n T1 append 1=5\n T1 commit\n T2 append 1=6\n T2 commit
             T3 read 1 -> 1=5,6\n T3 commit\n T4 read 1 -> 1=6\n T4 commit",
            [NO, &[IncompatibleOrder], &[IncompatibleOrder], &[IncompatibleOrder], &[IncompatibleOrder]],
        ),
        // A committed append is missing in a later read. In the second history the snapshot may be older than the
        // append.
        ("T1 begin\n T1 append 1=5\n T1 commit\n T2 begin RC\n T2 read 1 -> nothing\n T2 commit", [&[LostAppend]; 5]),
        ("T2 begin RR\n T1 begin\n T1 append 1=5\n T1 commit\n T2 read 1 -> nothing\n T2 commit", [NO; 5]),
        // Each overwrites the other.
        (
            "T1 begin\n T2 begin\n T1 append 1=11\n T2 append 1=21\n T2 append 2=22\n T1 append 2=12\n T1 commit
             T2 commit\n T3 begin RC\n T3 read all -> 1=11,21 2=22,12\n T3 commit",
            [&[WriteCycle]; 5],
        ),
        // A write is read, and then rolled back.
        (
            "T1 begin\n T1 put 1=5\n T2 begin\n T2 read 1 -> 1=5\n T1 rollback\n T2 commit",
            [NO, &[AbortedRead], &[AbortedRead], &[AbortedRead], &[AbortedRead]],
        ),
        (
            "T1 begin\n T1 append 1=5\n T2 begin\n T2 read 1 -> 1=5\n T1 rollback\n T2 rollback",
            [NO, &[AbortedRead], &[AbortedRead], &[AbortedRead], &[AbortedRead]],
        ),
        // A transaction of unknown outcome counts as committed if its write is read, and its write may be missing.
        ("T1 begin\n T1 put 1=5\n T1 commit -> unknown\n T2 begin\n T2 read 1 -> 1=5\n T2 commit", [NO; 5]),
        ("T1 begin\n T1 append 1=5\n T1 commit -> unknown\n T2 begin\n T2 read 1 -> nothing\n T2 commit", [NO; 5]),
        ("T1 begin\n T1 put 1=5\n T2 begin\n T2 read 1 -> 1=5\n T2 commit", [NO; 5]),
        // It may also commit later.
        (
            "T1 begin\n T1 append 1=5\n T1 commit -> unknown\n T2 begin\n T2 read 1 -> nothing\n T2 commit\n T3 begin
             T3 read 1 -> 1=5\n T3 commit",
            [NO; 5],
        ),
        // Once it has been read, it has happened for all reads that begin later.
        (
            "T1 begin\n T1 append 1=5\n T1 commit -> unknown\n T2 begin RC\n T2 read 1 -> 1=5\n T2 read 1 -> nothing
             T2 commit",
            [&[ReadSkew]; 5],
        ),
        // The write is read before its transaction has written the last version, and by the clock before it is
        // committed.
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
        // A row is missing without a deletion. A deletion that is in progress or was rolled back does not count.
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
        // A deleted row is there again. In the second history deletions replace versions that were read.
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
        // The transaction's own deletions. A deletion that finds no row is a locking read.
        ("T1 begin\n T1 put 1=5\n T1 remove 1=6\n T1 read 1 -> nothing\n T1 remove 1=7 -> nothing\n T1 commit", [NO; 5]),
        ("T1 begin\n T1 put 1=5\n T1 remove 1=6\n T1 read 1 -> 1=5\n T1 commit", [&[OwnWrite]; 5]),
        (
            "T1 begin\n T2 begin\n T1 remove 1=5 -> nothing\n T2 put 1=6\n T2 commit\n T1 lock 1 -> 1=6\n T1 commit",
            [NO, NO, &[Unrepeatable, ReadSkew], &[Unrepeatable, ReadSkew], &[Unrepeatable, ReadSkew]],
        ),
        // The number of a deletion is not a value.
        ("T1 begin\n T1 put 1=5\n T1 remove 1=6\n T1 commit\n T2 begin\n T2 read 1 -> 1=6\n T2 commit", [&[Garbage]; 5]),
        // A read that finds no row has seen the time before the first write or the deletion. The clock leaves only the
        // deletion.
        (
            "T1 begin\n T1 put 1=4\n T1 commit\n T2 begin\n T3 begin\n T2 remove 1=5\n T2 put 2=6\n T2 commit
             T3 read 1..2 -> nothing\n T3 commit",
            [NO, &[ReadSkew], &[ReadSkew], &[ReadSkew], &[ReadSkew]],
        ),
        // A later row excludes the first of two deletions, so the second was read, but not all of its transaction.
        (
            "T1 begin\n T1 put 1=4\n T1 commit\n T1 begin\n T1 remove 1=5\n T1 commit\n T1 begin\n T1 put 1=6\n T1 commit
             T2 begin\n T2 remove 1=7\n T2 put 2=8\n T2 commit -> waits\n T3 begin\n T3 read 1..2 -> nothing\n T2 continues
             T3 commit",
            [NO, &[ReadSkew], &[ReadSkew], &[ReadSkew], &[ReadSkew]],
        ),
        // If either of two deletions may have been read, the read is no evidence.
        (
            "T1 begin\n T1 put 1=4\n T1 commit\n T1 begin\n T1 remove 1=5\n T1 commit\n T2 begin\n T2 put 1=6\n T2 commit -> waits
             T3 begin\n T3 remove 1=7\n T3 put 2=8\n T3 commit -> waits\n T4 begin\n T4 read 1..2 -> nothing\n T2 continues
             T3 continues\n T4 commit",
            [NO; 5],
        ),
        // A version is stale although the order of the two is unknown.
        (
            "T1 begin\n T2 begin\n T1 put 1=5\n T1 commit -> waits\n T2 put 1=6\n T2 commit -> waits\n T1 continues
             T2 continues\n T3 begin\n T3 put 1=7\n T3 commit\n T4 begin\n T4 read 1 -> 1=5\n T4 commit",
            [NO, &[ReadSkew], &[ReadSkew], &[ReadSkew], &[ReadSkew]],
        ),
        (
            "T1 begin\n T2 begin\n T1 put 1=5\n T1 commit -> waits\n T2 put 1=6\n T2 commit -> waits\n T1 continues
             T2 continues\n T3 begin\n T3 put 1=7\n T3 commit\n T4 begin\n T4 read 1 -> 1=6\n T4 commit",
            [NO, &[ReadSkew], &[ReadSkew], &[ReadSkew], &[ReadSkew]],
        ),
        // Each reads the other's write.
        (
            "T1 begin\n T2 begin\n T1 put 1=5\n T2 put 2=6\n T1 read 2 -> 2=6\n T2 read 1 -> 1=5\n T1 commit\n T2 commit",
            [NO, &[CircularFlow], &[CircularFlow], &[CircularFlow], &[CircularFlow]],
        ),
        // A plain read is not repeatable.
        (
            "T1 begin\n T2 begin\n T1 read 1 -> nothing\n T2 put 1=5\n T2 commit\n T1 read 1 -> 1=5\n T1 commit",
            [NO, NO, &[Unrepeatable, ReadSkew], &[Unrepeatable, ReadSkew], &[Unrepeatable, ReadSkew]],
        ),
        // A locking read may see newer rows than the snapshot, except where the snapshot is strict.
        (
            "T1 begin\n T2 begin\n T1 read 1 -> nothing\n T2 put 1=5\n T2 commit\n T1 share 1 -> 1=5\n T1 commit",
            [NO, NO, NO, &[Unrepeatable, ReadSkew], &[Unrepeatable, ReadSkew]],
        ),
        // A locked row cannot change.
        (
            "T0 begin\n T0 put 1=4\n T0 commit\n T1 begin\n T2 begin\n T1 share 1 -> 1=4\n T2 put 1=5\n T2 commit
             T1 share 1 -> 1=5\n T1 commit",
            [&[Unrepeatable, ReadSkew]; 5],
        ),
        // Both replace the version that both have read.
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
        // No read of the replaced row: a strict snapshot is older than the version that is replaced.
        (
            "T1 begin\n T2 begin\n T2 read 2 -> nothing\n T1 put 1=5\n T1 commit\n T2 put 1=6\n T2 commit",
            [NO, NO, NO, &[LostUpdate], NO],
        ),
        // Half of a commit in one read, less than an earlier read, and half of a commit in two reads.
        (
            "T1 begin\n T2 begin\n T1 put 1=5\n T1 put 2=6\n T1 commit\n T2 read 1..2 -> 1=5\n T2 commit",
            [NO, &[ReadSkew], &[ReadSkew], &[ReadSkew], &[ReadSkew]],
        ),
        (
            "T2 begin\n T1 begin\n T1 put 1=5\n T2 read 1 -> waits\n T1 commit\n T2 continues -> 1=5\n T2 read 1 -> nothing
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
        // The version is stale. In the second history it may be, because the write was still in progress.
        (
            "T0 begin\n T0 put 1=4\n T0 commit\n T1 begin\n T1 put 1=5\n T1 commit\n T2 begin\n T2 read 1 -> 1=4\n T2 commit",
            [NO, &[ReadSkew], &[ReadSkew], &[ReadSkew], &[ReadSkew]],
        ),
        (
            "T0 begin\n T0 put 1=4\n T0 commit\n T1 begin\n T1 put 1=5\n T2 begin\n T2 read 1 -> waits\n T1 commit
             T2 continues -> 1=4\n T2 commit",
            [NO; 5],
        ),
        // At READ COMMITTED each read has a snapshot of its own time.
        (
            "T0 begin\n T0 put 1=4\n T0 commit\n T2 begin\n T1 begin\n T1 put 1=5\n T1 commit\n T2 read 1 -> 1=4\n T2 commit",
            [NO, &[ReadSkew], NO, NO, NO],
        ),
        // Two readers each see one of two commits, and each misses the one that the other sees.
        (
            "T1 begin\n T2 begin\n T3 begin\n T4 begin\n T1 put 1=5\n T2 put 2=6\n T3 read 1..2 -> waits
             T4 read 1..2 -> waits\n T1 commit\n T2 commit\n T3 continues -> 1=5\n T4 continues -> 2=6\n T3 commit
             T4 commit",
            [NO, &[LongFork], &[LongFork], &[LongFork], &[LongFork]],
        ),
        // Each has missed the other's write.
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
                let report = check(&history_of(script, level));
                wrong.push(format!("{level}: {found:?} and not {expected:?} in\n{script}\n{report}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A cycle is reported with its edges, and without the clock where it needs none.
#[test]
fn a_cycle_is_reported_in_words() {
    let words = |script: &str, level: Level| check(&history_of(script, level)).to_string();
    let script = "T1 begin\n T1 put 1=5\n T2 begin\n T2 read 1 -> waits\n T1 commit\n T2 continues -> 1=5\n T2 read 1 -> nothing
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
