//! The process is killed under load, again and again on the same database, with four clients and an auditor on threads
//! of their own.

use rand::{SeedableRng, rngs::StdRng};
use windfall::{Database, Result};

use crate::{
    books::{Books, audit},
    killable_process::{Judge, KillableProcess, Kills, Work, say, work_until_killed},
    observer::Observer,
    transfer::{Known, Order, Transfer},
};

const CLIENTS: u64 = 4;
/// The line that the auditor prints.
const AUDITED: &str = "audited";

/// The process that the other tests kill.
#[test]
#[ignore = "run, and killed, by the other tests"]
fn child() -> Result<()> {
    let Some(KillableProcess { db, round, seed }) = KillableProcess::open()? else { return Ok(()) };
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

/// The evidence from the output of the killed processes.
#[derive(Default)]
struct Listener {
    observer: Observer,
    /// Transfers that were in progress at a kill.
    unfinished: usize,
    audits: u64,
}

impl Judge for Listener {
    fn judge(&mut self, db: &Database, said: &[String]) -> Result<()> {
        let of_line = |line: &str| -> Option<(u64, Known)> {
            let (number, known) = line.split_once(' ')?;
            Some((number.parse().ok()?, known.parse().ok()?))
        };
        for line in said {
            self.audits += u64::from(line == AUDITED);
            if let Some((number, known)) = of_line(line) {
                self.observer.note(number, known);
            }
        }
        self.unfinished += self.observer.unfinished();
        // The process may have been killed before the bank was created, and so before any transfer.
        if self.observer.0.is_empty() && Books::of(db).is_err() {
            Ok(())
        } else {
            self.observer.resolve_outcomes(db)
        }
    }

    fn sum_up(&self, rounds: u64) {
        let (transfers, audits) = (self.observer.0.len() as u64, self.audits);
        println!(
            "{rounds} kills, {transfers} transfers, {} of them in progress, {audits} concurrent audits",
            self.unfinished
        );
        // One or two processes may have been killed while they were starting.
        assert!(rounds < 10 || transfers >= rounds * 20 && audits >= rounds, "little was done");
    }
}

const KILLS: Kills = Kills { program: "bank", test: "kills::books_agree_after_kills", child: "kills::child" };

#[test]
fn books_agree_after_kills() {
    KILLS.rounds::<Listener>(20);
}

#[test]
#[ignore = "runs for a given time"]
fn soak() {
    KILLS.soak::<Listener>("kills of a bank");
}
