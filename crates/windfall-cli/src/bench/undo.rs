//! The effect of undo truncation on other clients, in `bench transactions`.
//!
//! **Purpose.** A read view keeps 4 GB of undo. When it ends, purge frees one undo slice after another, each as a drop
//! frees a table. Clients make calls meanwhile as in `foreground`: the windows in which undo is freed are compared with
//! those before and after, in which none is.
//!
//! **Method.** The clients, the windows and the rank test are those of `foreground`. The table that is changed is not
//! the clients' table, and no key changes.

use std::time::{Duration, Instant};

use windfall::{Transaction, TransactionOptions};
use windfall_measure::{median, p_value};

use super::{
    fixture::{self, GB, MB},
    foreground::{Load, SIGNIFICANCE_LEVEL, Setting, Windows},
    harness::{Bench, Bound},
};
use crate::{
    args::Commit,
    engine::{self, Setup},
    failure::Result,
};

/// Number of rows that are changed.
const CHANGED: u64 = 20_000;

/// The timeout of the truncation.
const TIMEOUT: Duration = Duration::from_mins(5);

/// Runs this part.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let (rows, undo) = (bench.size(1_000_000, 20_000), bench.size(4 * GB, 16 * MB));
    let db = Setup::with_pool(2048 * MB).commit(Commit::Lazy).log(2048 * MB).open(&bench.database("undo"))?;
    bench.say("loading");
    let (table, changed) = (fixture::small(&db, "rows", rows)?, fixture::table(&db, "changed")?);
    fixture::rows(&changed, 0, CHANGED)?;
    engine::set_commit(&db, Commit::Write);
    let (threads, planted_hold) = (bench.machine().cores.max(2), Duration::ZERO);
    let setting = Setting { db: &db, table: &table, load: Load::Calls, rows, threads, planted_hold };
    let interval = setting.interval(bench)?;
    let (turns, windows) = bench.size((3, 20), (1, 4));
    let (mut still, mut going, mut freed) = (Windows::default(), Windows::default(), Vec::new());
    for turn in 0..turns {
        bench.say(&format!("{} MB of undo, turn {} of {turns}", undo / MB, turn + 1));
        let usual = db.metrics().undo_bytes;
        let view = db.begin(TransactionOptions::default().read_only());
        view.table(&changed).get(&0_u64.to_be_bytes())?;
        engine::set_commit(&db, Commit::Lazy);
        let mut value = vec![0; fixture::VALUE];
        for n in 0_u64.. {
            value[..8].copy_from_slice(&n.to_le_bytes());
            changed.update(&(n % CHANGED).to_be_bytes(), &value)?;
            if n.is_multiple_of(1_000) && db.metrics().undo_bytes >= undo {
                break;
            }
        }
        engine::set_commit(&db, Commit::Write);
        db.checkpoint()?;
        let nothing = |_, _: &dyn Fn()| Ok(());
        still.extend(setting.turn(interval, windows, 3 * turn, nothing)?);
        let (begin, mut view) = (Instant::now(), Some(view));
        let is_there = || db.metrics().undo_bytes > usual + undo / 16 && begin.elapsed() < TIMEOUT;
        while view.is_some() || is_there() {
            // The first window begins with the end of the view.
            going.extend(setting.turn(interval, 4, 3 * turn + 1, |_, _| {
                view.take().map(Transaction::commit).transpose()?;
                Ok(())
            })?);
        }
        freed.push(begin.elapsed().as_secs_f64());
        still.extend(setting.turn(interval, windows, 3 * turn + 2, nothing)?);
    }
    for (name, of) in [("no undo freed", &still), ("undo freed", &going)] {
        bench.fact(format!("{name}: windows"), of.p99.len());
        of.report(bench, name);
    }
    bench.fact("undo to be freed, bytes", undo);
    bench.fact("seconds until it is freed, upper bound", median(&freed));
    for (name, still, going) in [("p99", &still.p99, &going.p99), ("gap", &still.gap, &going.gap)] {
        bench.claim(
            format!("undo-truncation-chance-of-equal-{name}"),
            p_value(still, going),
            Bound::AtLeast(SIGNIFICANCE_LEVEL),
        );
    }
    drop((table, changed));
    fixture::close(db)
}
