//! A process that is killed at work, again and again on one database: a test of this program, which runs only to be
//! killed. It reports over a pipe, line by line, what it begins and what is done.
//!
//! In every other round, processes that only open the database are killed, too, before the state after the first kill
//! is checked. Each is killed in the middle of the work that the previous one had left unfinished.

#![allow(clippy::unwrap_used, reason = "a test panics")]

use std::{
    env::var,
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Command, Stdio, exit},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use rand::{Rng, SeedableRng, rngs::StdRng};
use windfall::{Database, FlushLog, Options, Result};

use crate::{guard::Guard, soak};

const FOLDER: &str = "WINDFALL_KILLED_FOLDER";
const ROUND: &str = "WINDFALL_KILLED_ROUND";
const SEED: &str = "WINDFALL_KILLED_SEED";
const IDLE: &str = "WINDFALL_KILLED_IDLE";
/// The first line of a process, and its line when the database is open.
const OPENING: &str = "opening";
const OPEN: &str = "open";
/// The longest times, in microseconds, after which processes that only open the database are killed: on an idle
/// machine, and on a busy one.
const MOST_OF_OPENING: [u64; 2] = [3_000, 200_000];
/// Rounds per database in a soak.
const SOAK_ROUNDS: u64 = 50;

/// The endless work of a thread of the process.
pub(crate) type Work<'a> = Box<dyn FnOnce() + Send + 'a>;

/// The environment of a process that will be killed.
pub(crate) struct KillableProcess {
    pub db: Database,
    pub round: u64,
    pub seed: u64,
}

impl KillableProcess {
    /// Opens the database if this process is such a child, otherwise returns `None`.
    pub(crate) fn open() -> Result<Option<Self>> {
        let (Ok(folder), Ok(round), Ok(seed)) = (var(FOLDER), var(ROUND), var(SEED)) else {
            return Ok(None);
        };
        let (round, seed) = (round.parse().unwrap(), seed.parse().unwrap());
        say(OPENING);
        let db = open(Path::new(&folder), round)?;
        say(OPEN);
        while var(IDLE).is_ok() {
            thread::park();
        }
        Ok(Some(Self { db, round, seed }))
    }
}

fn open(folder: &Path, round: u64) -> Result<Database> {
    // Written data survives the death of a process without a sync.
    let mode = if round.is_multiple_of(2) { FlushLog::Write } else { FlushLog::Sync };
    let options = Options::default()
        .page_size(4096)
        .buffer_pool_size(300 * 4096)
        .log_size(2 << 20)
        .log_buffer_size(256 << 10)
        .flush_log_at_trx_commit(mode);
    Database::open(folder, options)
}

/// A test suite of kills.
pub(crate) struct Kills {
    /// The name of the program for cargo.
    pub program: &'static str,
    /// The name of its test that runs the rounds.
    pub test: &'static str,
    /// The name of its test that is killed.
    pub child: &'static str,
}

/// Checks a database after a kill, with all lines that its process has printed.
pub(crate) trait Judge: Default {
    fn judge(&mut self, db: &Database, said: &[String]) -> Result<()>;

    /// Asserts after this number of rounds that enough was done, and prints it.
    fn sum_up(&self, rounds: u64);
}

impl Kills {
    /// Runs the usual number of rounds, or `KILL_ROUNDS`. `KILL_SEED` repeats the random choices.
    pub(crate) fn rounds<J: Judge>(&self, usual: u64) {
        let number = |name: &str| var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let seed = number("KILL_SEED").unwrap_or_else(rand::random);
        let rounds = number("KILL_ROUNDS").unwrap_or(usual);
        assert_eq!(self.run::<J>(seed, rounds, None), rounds);
    }

    /// Runs new databases and kills until the time is over.
    pub(crate) fn soak<J: Judge>(&self, net: &str) {
        soak::soak(net, |seed, end| self.run::<J>(seed, SOAK_ROUNDS, Some(end)));
    }

    /// Kills a process again and again on one database, for this number of rounds or until the time is over. Returns
    /// the number of kills.
    fn run<J: Judge>(&self, seed: u64, rounds: u64, until: Option<Instant>) -> u64 {
        let Self { program, test, child } = self;
        let (guard, mut done) = (Guard::new(), 0);
        // The command draws the same choices again; when a process dies depends on the machine.
        let again = format!(
            "KILL_SEED={seed} KILL_ROUNDS={rounds} cargo test -p windfall --test {program} -- --exact --nocapture {test}"
        );
        println!("if a round fails, the same again: {again}");
        let folder = tempfile::tempdir().expect("a folder");
        let (mut chance, mut judge) = (StdRng::seed_from_u64(seed), J::default());
        // The number of kills of processes that only open, and of those before the database was open.
        let (mut openings, mut while_opening) = (0, 0);
        for round in (0..rounds).take_while(|_| until.is_none_or(|end| Instant::now() < end)) {
            let life = Duration::from_millis(chance.random_range(1..700));
            let again = format!("{again} # round {round}, killed after {life:?}");
            let mut variables = vec![
                (FOLDER, folder.path().to_str().expect("a name in letters").to_owned()),
                (ROUND, round.to_string()),
                (SEED, chance.random::<u64>().to_string()),
            ];
            guard.run(&again, || {
                let said = run_and_kill(child, &variables, life);
                variables.push((IDLE, String::new()));
                for _ in 0..chance.random_range(0..4) * (round % 2) {
                    let most = MOST_OF_OPENING[chance.random_range(0..2)];
                    let life = Duration::from_micros(chance.random_range(0..most));
                    let said = run_and_kill(child, &variables, life);
                    openings += 1;
                    while_opening += u64::from(!said.iter().any(|line| line == OPEN));
                }
                // The next process finds a closed database.
                let db = open(folder.path(), round).unwrap();
                judge.judge(&db, &said).unwrap();
                assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
            });
            done += 1;
        }
        println!(
            "{openings} more were killed that only opened the database, {while_opening} of them before it was open"
        );
        assert!(
            openings < 10 || while_opening * 10 >= openings,
            "hardly one was killed while it opened the database"
        );
        judge.sum_up(done);
        done
    }
}

/// Runs a test of this program as a process with these variables, and kills it when this time has passed since it began
/// to open the database. Returns its lines.
///
/// # Panics
/// If the process ended by itself; the message contains its error output.
fn run_and_kill(test: &str, variables: &[(&str, String)], life: Duration) -> Vec<String> {
    let mut child = Command::new(std::env::current_exe().expect("the name of the test"))
        .args(["--exact", test, "--ignored", "--nocapture"])
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("another process");
    let (output, mut errors) = (child.stdout.take().expect("a pipe"), child.stderr.take().expect("a pipe"));
    let (begun, has_begun) = mpsc::channel();
    let listener = thread::spawn(move || {
        // The last line may be incomplete.
        let lines = BufReader::new(output).split(b'\n').map_while(Result::<_, std::io::Error>::ok);
        let lines = lines.map(|line| String::from_utf8_lossy(&line).into_owned());
        let tell = |line: &String| {
            // The output of the test harness may come first on the line.
            if line.ends_with(OPENING) {
                let _ = begun.send(());
            }
        };
        lines.inspect(tell).collect::<Vec<_>>()
    });
    // A process that ends before it begins is reported below.
    let _ = has_begun.recv();
    thread::sleep(life);
    let ended = child.try_wait().expect("a process");
    child.kill().expect("a process to kill");
    child.wait().expect("a process");
    let mut complaint = String::new();
    let _ = errors.read_to_string(&mut complaint);
    assert!(
        ended.is_none() && !complaint.contains("panicked at") && !complaint.contains("Error: "),
        "the process ended by itself, or was about to: {complaint}"
    );
    listener.join().expect("a listener")
}

/// Prints a line of the process.
pub(crate) fn say(line: &str) {
    // Written directly to stdout, past the test's capture, and in one piece, because other threads write, too.
    let _ = std::io::stdout().lock().write_all(format!("{line}\n").as_bytes());
}

/// Runs all of this on threads until the process is killed. If one of them ends, by a panic, the process ends, too.
pub(crate) fn work_until_killed<'a>(work: impl IntoIterator<Item = Work<'a>>) -> ! {
    thread::scope(|scope| {
        let threads: Vec<_> = work.into_iter().map(|work| scope.spawn(work)).collect();
        while !threads.iter().any(thread::ScopedJoinHandle::is_finished) {
            thread::sleep(Duration::from_millis(5));
        }
        exit(101);
    })
}
