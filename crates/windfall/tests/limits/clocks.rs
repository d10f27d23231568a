//! Clocks that jump. The engine uses one clock, that of its environment, and no time of day. For any time it shows,
//! no thread waits forever, no worker spins, and nothing is lost.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use rand::{Rng, SeedableRng, rngs::StdRng};
use windfall::{
    Database, Error, FlushLog, IndexOptions, Options, Result, TableOptions,
    env::{Env, RealEnv, Step},
    error::SchemaError,
};
use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

use crate::{
    assert_sound,
    changed_env::{Change, Changed},
    guard::mix,
    in_a_process_of_its_own, seed, sized,
    time_limit::wait_until,
};

pub(crate) const THREADS: &str = "clocks::no_thread_waits_for_a_clock_that_jumps_and_none_loops_for_ever";
pub(crate) const SIMULATED: &str = "clocks::histories_under_a_clock_that_jumps";

const HOUR: Duration = Duration::from_hours(1);

/// The behaviour of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Jumps {
    Forwards,
    Backwards,
    /// The clock stands still.
    Never,
    Anywhere,
}

/// An environment with a clock that jumps.
#[derive(Debug)]
struct Jumpy {
    jumps: Jumps,
    looks: AtomicU64,
    /// The number of steps of each worker.
    steps: Arc<Mutex<BTreeMap<&'static str, u64>>>,
}

impl Change for Jumpy {
    fn now(&self, env: &dyn Env) -> Duration {
        let start = HOUR * 1_000_000;
        // Several readings of the clock are between two jumps.
        let jumps = (self.looks.fetch_add(1, SeqCst) / 7) as u32;
        match self.jumps {
            Jumps::Forwards => start + env.now() + HOUR * jumps,
            Jumps::Backwards => (start + env.now()).saturating_sub(HOUR * jumps),
            Jumps::Never => start,
            Jumps::Anywhere => HOUR * (mix(&[u64::from(jumps)]) % 1_000_000) as u32,
        }
    }

    fn step(&self, name: &'static str, mut step: Step) -> Step {
        let steps = self.steps.clone();
        Box::new(move || {
            *steps.lock().unwrap().entry(name).or_default() += 1;
            step()
        })
    }
}

/// Returns an environment with a clock that jumps.
fn jumpy(env: Arc<dyn Env>, jumps: Jumps) -> Arc<Changed<Jumpy>> {
    let change = Jumpy { jumps, looks: AtomicU64::new(0), steps: Arc::default() };
    Arc::new(Changed { env, change })
}

fn open(disk: &SimulatedDisk, env: Arc<dyn Env>) -> Database {
    let options = Options::default()
        .page_size(4096)
        .buffer_pool_size(200 * 4096)
        .log_size(1 << 20)
        .log_buffer_size(64 << 10);
    Database::open_on(Arc::new(disk.clone()), env, &options, &|_| {}).unwrap()
}

fn definition() -> TableOptions {
    TableOptions::default().index("i", IndexOptions::on_value(0..8))
}

/// Real threads: commits that wait for each other, DDL, deletions, and concurrent checks. None of them can measure how
/// long anything has taken.
#[test]
fn no_thread_waits_for_a_clock_that_jumps_and_none_loops_for_ever() {
    in_a_process_of_its_own(THREADS, |case| {
        for jumps in [Jumps::Forwards, Jumps::Backwards, Jumps::Never, Jumps::Anywhere] {
            let disk = SimulatedDisk::new(1);
            let env = jumpy(Arc::new(RealEnv::default()), jumps);
            let db = open(&disk, env.clone());
            case.part(&format!("{jumps:?}"), || work(&db, jumps));
            lazy_commits_become_durable(&db, &disk, jumps);
            workers_come_to_rest(&env.change, jumps);
            let text = db.metrics().to_prometheus();
            assert!(text.contains("windfall_log_longest_wait"), "{text}");
            db.close().unwrap();
        }
    });
}

/// Without work the workers fall asleep one after the other, until none of them makes many steps any more.
fn workers_come_to_rest(change: &Jumpy, jumps: Jumps) {
    let steps = || change.steps.lock().unwrap().clone();
    wait_until(&format!("{jumps:?}: workers that rest"), || {
        let (start, before) = (Instant::now(), steps());
        thread::sleep(Duration::from_secs(1));
        let after = steps();
        let most = 400.0 * start.elapsed().as_secs_f64();
        after.iter().all(|(worker, steps)| ((steps - before[worker]) as f64) < most)
    });
}

fn work(db: &Database, jumps: Jumps) {
    let (stop, calls, checks) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    for thread in 0..4u32 {
        db.create_table(&format!("t{thread}"), definition()).unwrap();
    }
    thread::scope(|scope| {
        for thread in 0..4u32 {
            let (db, stop, calls) = (&db, &stop, &calls);
            scope.spawn(move || {
                for n in 0u32.. {
                    if stop.load(SeqCst) {
                        break;
                    }
                    let name = format!("t{thread}");
                    if n % 2000 == 1999 {
                        db.truncate_table(&name).unwrap();
                    }
                    // More pages than a check examines in one piece.
                    let length = if n % 4 == 0 { 30_000 } else { 300 };
                    db.table(&name).unwrap().put(&(n % 200).to_be_bytes(), &vec![n as u8; length]).unwrap();
                    calls.fetch_add(1, SeqCst);
                }
            });
        }
        let (db, stop, checks) = (&db, &stop, &checks);
        scope.spawn(move || {
            while !stop.load(SeqCst) {
                assert_eq!(db.check_live().unwrap().findings, Vec::<String>::new());
                checks.fetch_add(1, SeqCst);
            }
        });
        // However long it takes, calls and checks must complete, again and again.
        thread::sleep(Duration::from_secs(2));
        for _ in 0..2 {
            let before = (calls.load(SeqCst), checks.load(SeqCst));
            wait_until(&format!("{jumps:?}: calls and checks"), || {
                calls.load(SeqCst) > before.0 + 20 && checks.load(SeqCst) > before.1
            });
        }
        stop.store(true, SeqCst);
    });
    db.drop_tables(&["t0", "t1"]).unwrap();
    let table = db.table("t2").unwrap();
    wait_until("the deletion of files", || {
        // No call waits for the drops of undo slices to become durable: with a clock that stands still, only commits
        // sync them.
        if jumps == Jumps::Never {
            table.put(b"a commit", b"").unwrap();
        }
        db.metrics().files_pending == 0
    });
    assert_sound(db, "after work");
}

/// Asserts that a lazy commit becomes durable by itself, if the clock moves at all.
fn lazy_commits_become_durable(db: &Database, disk: &SimulatedDisk, jumps: Jumps) {
    db.set_flush_log_at_trx_commit(FlushLog::Lazy);
    db.create_table("lazy", TableOptions::default()).unwrap().put(b"k", b"v").unwrap();
    if jumps == Jumps::Never {
        return;
    }
    wait_until(&format!("{jumps:?}: a lazy commit that is durable"), || {
        let left = disk.survivor(Survive::Nothing);
        let db = open(&left, Arc::new(SimulatedEnv::new(1)));
        db.table("lazy").is_ok_and(|table| table.get(b"k").unwrap().is_some())
    });
}

/// Histories of row changes and DDL on one thread, in which the clock may jump by an hour between steps. At the end the
/// power is lost.
#[test]
fn histories_under_a_clock_that_jumps() {
    in_a_process_of_its_own(SIMULATED, |case| {
        for history in 0..sized(24, 400) {
            for jumps in [Jumps::Forwards, Jumps::Backwards, Jumps::Never, Jumps::Anywhere] {
                case.guard.run(&crate::again(SIMULATED), || run_history(mix(&[seed(), history]), jumps));
            }
        }
    });
}

fn run_history(seed: u64, jumps: Jumps) {
    let what = format!("seed {seed}, {jumps:?}");
    let (disk, world) = (SimulatedDisk::new(seed), SimulatedEnv::new(seed));
    let db = open(&disk, jumpy(Arc::new(world.clone()), jumps));
    let mut chance = StdRng::seed_from_u64(seed);
    let mut model: BTreeMap<u8, BTreeMap<u16, Vec<u8>>> = BTreeMap::new();
    for _ in 0..250 {
        let number = chance.random_range(0..4u8);
        let name = format!("t{number}");
        match (model.get_mut(&number), chance.random_range(0..40)) {
            (None, _) => {
                db.create_table(&name, definition()).unwrap();
                model.insert(number, BTreeMap::new());
            }
            (Some(_), 0) => {
                db.drop_table(&name).unwrap();
                model.remove(&number);
            }
            (Some(rows), 1) => {
                db.truncate_table(&name).unwrap();
                rows.clear();
            }
            (Some(_), 2) => db.checkpoint().unwrap(),
            (Some(_), 3) => assert_eq!(db.check_live().unwrap().findings, Vec::<String>::new(), "{what}"),
            (Some(rows), _) => {
                let key = chance.random_range(0..60u16);
                let value = vec![chance.random(); chance.random_range(8..6000)];
                db.table(&name).unwrap().put(&key.to_be_bytes(), &value).unwrap();
                rows.insert(key, value);
            }
        }
        if chance.random_range(0..6) == 0 {
            world.advance(Duration::from_millis(chance.random_range(0..2000)));
            world.run_workers(20);
        }
    }
    world.run_workers(200);
    drop(db);
    let db = open(&disk.restart(Survive::Random(seed)), Arc::new(SimulatedEnv::new(seed)));
    for number in 0..4 {
        match (db.table(&format!("t{number}")), model.get(&number)) {
            (Ok(table), Some(rows)) => {
                let found = table.rows().unwrap().map(Result::unwrap);
                let wanted = rows.iter().map(|(key, value)| (key.to_be_bytes().to_vec(), value.clone()));
                assert!(found.eq(wanted), "{what}: table {number}");
            }
            (Err(Error::Schema(SchemaError::NoTable(_))), None) => {}
            (found, _) => panic!("{what}: table {number}: {found:?}"),
        }
    }
    assert_sound(&db, &what);
}
