//! The nets hold: each bug of `src/canary.rs`, planted on purpose, makes a test fail.
//!
//! The tests run as they do in `make test`, in processes of their own, until one of them has failed. `WINDFALL_BUGS` chooses
//! some of the bugs by name.

#![allow(clippy::unwrap_used, reason = "a test panics")]

use std::{
    process::{Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use windfall::canary::Bug;

/// A net, and what of it is run.
#[derive(Clone, Copy, Debug)]
enum Net {
    /// A file of tests, and which of them.
    Tests(&'static str, &'static str),
    /// Tests beside the code.
    Units(&'static str),
    /// Models, in many orders of their threads.
    Models(&'static str),
}

use Net::{Models, Tests, Units};

/// Which net is for which bug.
fn net(bug: Bug) -> Net {
    match bug {
        Bug::LogNotSynced
        | Bug::CommitNotAwaited
        | Bug::DirtyPageForgotten
        | Bug::SplitInTwoGroups
        | Bug::ReplayedTwice
        | Bug::RollbackForgotten
        | Bug::EntriesNotTakenBack
        | Bug::IndexNotDropped
        | Bug::DropBeforeLog
        | Bug::SpaceReused
        | Bug::TransactionReused
        | Bug::PageNotFreed => Tests("cuts", "first_lives"),
        Bug::PageBeforeLog
        | Bug::DataNotSynced
        | Bug::FolderNotSynced
        | Bug::CopiesNotSynced
        | Bug::TornPageKept
        | Bug::LogCutEarly
        | Bug::ControlOverwritten
        | Bug::TornTailTaken
        | Bug::DroppedPageWritten
        | Bug::DeletionForgotten => Tests("cuts", "cut_at_every_operation"),
        Bug::ChecksumIgnored => Tests("damage", "bits_flip"),
        Bug::PromiseUncovered => Tests("full_disk", ""),
        Bug::HintBelieved => Units("tree::tests"),
        Bug::GroupForgotten | Bug::TagUnchecked => Models("buffer::interleavings"),
        Bug::GroupSeenEarly => Models("log::interleavings"),
        Bug::GateNotAwaited | Bug::WakeupLost => Models("sync::interleavings"),
    }
}

/// Longer than the slowest net takes on a busy machine: who waits for ever has failed, too.
const PATIENCE: Duration = Duration::from_mins(5);

fn cargo(net: Net) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--quiet", "-p", "windfall"]);
    match net {
        Tests(target, filter) => cargo.args(["--features", "canary", "--test", target, "--", filter]),
        Units(filter) => cargo.args(["--features", "canary", "--lib", "--", filter]),
        Models(filter) => cargo.args(["--features", "canary,model", "--lib", "--", filter]),
    };
    cargo
}

/// Runs a net with a bug. Gives what it said when it failed.
fn caught(bug: Bug) -> Option<String> {
    let mut run = cargo(net(bug))
        .env("WINDFALL_CANARY", bug.name())
        .env("RUST_BACKTRACE", "0")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut out, mut err) = (run.stdout.take().unwrap(), run.stderr.take().unwrap());
    let listen = thread::spawn(move || std::io::read_to_string(&mut out).unwrap());
    let errors = thread::spawn(move || std::io::read_to_string(&mut err).unwrap());
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = run.try_wait().unwrap() {
            break status;
        }
        if begin.elapsed() > PATIENCE {
            run.kill().unwrap();
            return Some("it did not end".into());
        }
        thread::sleep(Duration::from_millis(50));
    };
    let said = listen.join().unwrap() + &errors.join().unwrap();
    assert!(!said.contains("could not compile"), "{said}");
    let (passed, failed) = (said.contains("test result: ok. 0 passed"), said.contains("panicked at"));
    assert!(!passed, "{:?} is no test", net(bug));
    let line = said.lines().skip_while(|line| !line.contains("panicked at")).nth(1).unwrap_or_default();
    (!status.success() && (failed || said.contains("signal"))).then(|| line.chars().take(110).collect())
}

#[test]
fn every_planted_bug_is_caught() {
    let chosen = std::env::var("WINDFALL_BUGS").ok();
    let is_chosen =
        |bug: &&Bug| chosen.as_ref().is_none_or(|names| names.split(' ').any(|name| name == bug.name()));
    let bugs: Vec<Bug> = Bug::ALL.iter().filter(is_chosen).copied().collect();
    assert!(!bugs.is_empty(), "WINDFALL_BUGS names no bug");
    // Built once, before any of them is in a hurry.
    for net in [
        Tests("cuts", "no test"),
        Tests("damage", "no test"),
        Tests("full_disk", "no test"),
        Units("no test"),
        Models("no test"),
    ] {
        assert!(cargo(net).status().unwrap().success(), "{net:?} does not build");
    }
    let next = AtomicUsize::new(0);
    let missed: Vec<&str> = thread::scope(|scope| {
        let work = || {
            let mut missed = Vec::new();
            while let Some(&bug) = bugs.get(next.fetch_add(1, SeqCst)) {
                let begin = Instant::now();
                let how = caught(bug);
                let seconds = begin.elapsed().as_secs();
                println!(
                    "{:24} {seconds:4} s  {:?}: {}",
                    bug.name(),
                    net(bug),
                    how.as_deref().unwrap_or("MISSED")
                );
                if how.is_none() {
                    missed.push(bug.name());
                }
            }
            missed
        };
        let workers: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
