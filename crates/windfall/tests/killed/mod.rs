//! A process that is killed amid its work, again and again on one database: a test of this program, which is run only
//! to be killed. It says over a pipe, line by line, what it is about to do and what is done.

#![allow(clippy::unwrap_used, reason = "a test panics")]

use std::{
    env::var,
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Command, Stdio, exit},
    thread,
    time::{Duration, Instant},
};

use rand::{Rng, SeedableRng, rngs::StdRng};
use windfall::{Database, FlushLog, Options, Result};

use crate::{guard::Guard, soak};

const FOLDER: &str = "WINDFALL_KILLED_FOLDER";
const ROUND: &str = "WINDFALL_KILLED_ROUND";
const SEED: &str = "WINDFALL_KILLED_SEED";
/// Rounds of a database that a soak makes.
const SOAK_ROUNDS: u64 = 50;

/// What a thread of the process does, for ever.
pub type Work<'a> = Box<dyn FnOnce() + Send + 'a>;

/// What the process that is to be killed works on.
pub struct Killed {
    pub db: Database,
    pub round: u64,
    pub seed: u64,
}

impl Killed {
    /// Opens the database, if this is such a process.
    pub fn open() -> Result<Option<Self>> {
        let (Ok(folder), Ok(round), Ok(seed)) = (var(FOLDER), var(ROUND), var(SEED)) else {
            return Ok(None);
        };
        let (round, seed) = (round.parse().unwrap(), seed.parse().unwrap());
        Ok(Some(Self { db: open(Path::new(&folder), round)?, round, seed }))
    }
}

fn open(folder: &Path, round: u64) -> Result<Database> {
    // A process that dies takes nothing along that was written.
    let mode = if round.is_multiple_of(2) { FlushLog::Write } else { FlushLog::Sync };
    let options = Options::default()
        .page_size(4096)
        .buffer_pool_size(300 * 4096)
        .log_size(2 << 20)
        .log_buffer_size(256 << 10)
        .flush_log_at_trx_commit(mode);
    Database::open(folder, options)
}

/// A net of kills.
pub struct Kills {
    /// The program, as cargo knows it.
    pub program: &'static str,
    /// Its test that makes the rounds.
    pub test: &'static str,
    /// Its test that is killed.
    pub child: &'static str,
}

/// What looks at a database after a kill, with all that its process has said.
pub trait Judge: Default {
    fn judge(&mut self, db: &Database, said: &[String]) -> Result<()>;

    /// After so many rounds: whether enough was done, and what.
    fn sum_up(&self, rounds: u64);
}

impl Kills {
    /// As many rounds as usual, or as `KILL_ROUNDS` says; `KILL_SEED` repeats the choices.
    pub fn rounds<J: Judge>(&self, usual: u64) {
        let number = |name: &str| var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let seed = number("KILL_SEED").unwrap_or_else(rand::random);
        let rounds = number("KILL_ROUNDS").unwrap_or(usual);
        assert_eq!(self.run::<J>(seed, rounds, None), rounds);
    }

    /// Ever new databases, and kills.
    pub fn soak<J: Judge>(&self, net: &str) {
        soak::soak(net, |seed, end| self.run::<J>(seed, SOAK_ROUNDS, Some(end)));
    }

    /// Kills a process again and again on one database, so many times or until the time is over. Gives how many kills
    /// there were.
    fn run<J: Judge>(&self, seed: u64, rounds: u64, until: Option<Instant>) -> u64 {
        let Self { program, test, child } = self;
        let (guard, mut done) = (Guard::new(), 0);
        // This draws the same again; when a process dies is for the machine to say.
        let again = format!(
            "KILL_SEED={seed} KILL_ROUNDS={rounds} cargo test -p windfall --test {program} -- --exact --nocapture {test}"
        );
        println!("if a round fails, the same again: {again}");
        let folder = tempfile::tempdir().expect("a folder");
        let (mut chance, mut judge) = (StdRng::seed_from_u64(seed), J::default());
        for round in (0..rounds).take_while(|_| until.is_none_or(|end| Instant::now() < end)) {
            // Some are killed while they open the database.
            let life =
                if round % 4 == 3 { chance.random_range(1..60) } else { chance.random_range(150..700) };
            let again = format!("{again} # round {round}, killed after {life} ms");
            let variables = [
                (FOLDER, folder.path().to_str().expect("a name in letters").to_owned()),
                (ROUND, round.to_string()),
                (SEED, chance.random::<u64>().to_string()),
            ];
            guard.run(&again, || {
                let said = run_and_kill(child, &variables, Duration::from_millis(life));
                // The next process finds what this look leaves; every third is closed by a call, the others with their
                // last handle.
                let db = open(folder.path(), round).unwrap();
                judge.judge(&db, &said).unwrap();
                assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
                if round.is_multiple_of(3) {
                    db.close().unwrap();
                }
            });
            done += 1;
        }
        judge.sum_up(done);
        done
    }
}

/// Runs a test of this program as a process with these variables for so long, and kills it. Gives what it has said.
///
/// # Panics
/// If it has ended by itself; it is told what it complained of.
fn run_and_kill(test: &str, variables: &[(&str, String)], life: Duration) -> Vec<String> {
    let mut child = Command::new(std::env::current_exe().expect("the name of the test"))
        .args(["--exact", test, "--ignored", "--nocapture"])
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("another process");
    let (output, mut errors) = (child.stdout.take().expect("a pipe"), child.stderr.take().expect("a pipe"));
    let listener = thread::spawn(move || {
        // The last line may be cut.
        let lines = BufReader::new(output).split(b'\n').map_while(Result::<_, std::io::Error>::ok);
        lines.map(|line| String::from_utf8_lossy(&line).into_owned()).collect::<Vec<_>>()
    });
    thread::sleep(life);
    let ended = child.try_wait().expect("a process");
    child.kill().expect("a process to kill");
    child.wait().expect("a process");
    let mut complaint = String::new();
    let _ = errors.read_to_string(&mut complaint);
    assert!(
        ended.is_none() && !complaint.contains("panicked at"),
        "the process ended by itself, or was about to: {complaint}"
    );
    listener.join().expect("a listener")
}

/// What the process says.
pub fn say(line: &str) {
    // Past the test's capture, and whole: other threads speak, too.
    let _ = std::io::stdout().lock().write_all(format!("{line}\n").as_bytes());
}

/// Does all of this on threads until the process is killed. If one of them comes to an end, by a panic, so does it.
pub fn work_until_killed<'a>(work: impl IntoIterator<Item = Work<'a>>) -> ! {
    thread::scope(|scope| {
        let threads: Vec<_> = work.into_iter().map(|work| scope.spawn(work)).collect();
        while !threads.iter().any(thread::ScopedJoinHandle::is_finished) {
            thread::sleep(Duration::from_millis(5));
        }
        exit(101);
    })
}
