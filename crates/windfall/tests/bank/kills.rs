//! The process is killed under load, again and again on the same database: four clients on threads of their own, and an
//! auditor beside them.

use std::{
    env::var,
    path::Path,
    time::{Duration, Instant},
};

use rand::{Rng, SeedableRng, rngs::StdRng};
use windfall::{Database, FlushLog, Options, Result};

use crate::{
    books::{Books, audit},
    killed::{Work, run_and_kill, say, work_until_killed},
    observer::Observer,
    soak,
    transfer::{Known, Order, Transfer},
};

const FOLDER: &str = "WINDFALL_BANK_FOLDER";
const ROUND: &str = "WINDFALL_BANK_ROUND";
const CHILD_SEED: &str = "WINDFALL_BANK_CHILD_SEED";
const CLIENTS: u64 = 4;
/// What the auditor says.
const AUDITED: &str = "audited";

fn options(round: u64) -> Options {
    // A process that dies takes nothing along that was written.
    let mode = if round.is_multiple_of(2) { FlushLog::Write } else { FlushLog::Sync };
    Options::default()
        .page_size(4096)
        .buffer_pool_size(300 * 4096)
        .log_size(2 << 20)
        .log_buffer_size(256 << 10)
        .flush_log_at_trx_commit(mode)
}

/// The process that is killed.
#[test]
#[ignore = "run, and killed, by the other tests"]
fn child() -> Result<()> {
    let (Ok(folder), Ok(round), Ok(seed)) = (var(FOLDER), var(ROUND), var(CHILD_SEED)) else { return Ok(()) };
    let (round, seed): (u64, u64) = (round.parse().unwrap(), seed.parse().unwrap());
    let db = Database::open(folder, options(round))?;
    Books::found(&db)?;
    let db = &db;
    let client = |client: u64| -> Work<'_> {
        Box::new(move || {
            let mut chance = StdRng::seed_from_u64(seed ^ client << 32);
            let books = Books::of(db).unwrap();
            for n in 0.. {
                let number = round << 40 | client << 32 | n;
                let mut tell = |known| say(&format!("{number} {known}"));
                let order = Order::draw(&mut chance, number);
                let mut transfer = Transfer::begin(db, &books, order, &mut tell);
                while !transfer.is_over() {
                    transfer.step(db, &mut tell).unwrap_or_else(|error| panic!("{number:x}: {error}"));
                }
            }
        })
    };
    let auditor: Work<'_> = Box::new(|| {
        loop {
            audit(db).unwrap_or_else(|error| panic!("audit: {error}"));
            say(AUDITED);
        }
    });
    work_until_killed((0..CLIENTS).map(client).chain([auditor]))
}

/// What the process has said is known.
fn hear(observer: &mut Observer, said: &[String]) {
    let of_line = |line: &str| -> Option<(u64, Known)> {
        let (number, known) = line.split_once(' ')?;
        Some((number.parse().ok()?, known.parse().ok()?))
    };
    for (number, known) in said.iter().filter_map(|line| of_line(line)) {
        observer.note(number, known);
    }
}

/// Kills a process again and again on one database, so many times or until the time is over. Gives how many kills there
/// were.
fn kills(seed: u64, rounds: u64, until: Option<Instant>) -> u64 {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("a name in letters");
    let (mut chance, mut observer, mut done) = (StdRng::seed_from_u64(seed), Observer::default(), 0);
    let (mut unfinished, mut audits) = (0, 0);
    for round in (0..rounds).take_while(|_| until.is_none_or(|end| Instant::now() < end)) {
        // Some are killed while they open the database.
        let life = if round % 4 == 3 { chance.random_range(1..60) } else { chance.random_range(150..700) };
        let variables = [
            (FOLDER, path.to_owned()),
            (ROUND, round.to_string()),
            (CHILD_SEED, chance.random::<u64>().to_string()),
        ];
        let said = run_and_kill("kills::child", &variables, Duration::from_millis(life));
        audits += said.iter().filter(|line| *line == AUDITED).count();
        hear(&mut observer, &said);
        unfinished += observer.unfinished();
        look(folder.path(), round, &mut observer);
        done += 1;
    }
    println!(
        "{done} kills, {} transfers, {unfinished} of them under way, {audits} audits beside them",
        observer.0.len()
    );
    // One or two may have been killed amid their beginning.
    assert!(done < 10 || observer.0.len() as u64 >= done * 20 && audits as u64 >= done, "little was done");
    done
}

/// Looks at what is there after a kill.
fn look(folder: &Path, round: u64, observer: &mut Observer) {
    let db = Database::open(folder, options(round)).unwrap_or_else(|error| panic!("round {round}: {error}"));
    if Books::of(&db).is_ok() {
        observer.settle(&db).unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
    let report = db.check().expect("a check");
    assert_eq!(report.findings, Vec::<String>::new(), "round {round}");
    // Every third is closed by a call, the others with their last handle.
    if round.is_multiple_of(3) {
        db.close().expect("a clean end");
    }
}

/// What draws the same again; when a process dies is for the machine to say.
fn again(seed: u64, rounds: u64) -> String {
    format!(
        "if a round fails, the same again: KILL_SEED={seed} KILL_ROUNDS={rounds} cargo test -p windfall --test bank -- \
         --exact --nocapture kills::books_agree_after_kills"
    )
}

#[test]
fn books_agree_after_kills() {
    let number = |name: &str| var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("KILL_SEED").unwrap_or_else(rand::random);
    let rounds = number("KILL_ROUNDS").unwrap_or(20);
    println!("{}", again(seed, rounds));
    assert_eq!(kills(seed, rounds, None), rounds);
}

/// Ever new databases, and kills.
#[test]
#[ignore = "takes as long as it is told to"]
fn soak() {
    soak::soak("kills of a bank", |seed, end| {
        println!("{}", again(seed, 50));
        kills(seed, 50, Some(end))
    });
}
