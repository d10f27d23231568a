//! Runs a scenario in many orders.
//!
//! **Purpose.** The same orders each time, as many as are asked for; and one of them alone, to replay a failure.
//!
//! **Invariants.** A scenario is the same in each run but for the order of its threads: it draws no chance of its own,
//! and reads no clock. The first runs are repeated to see that this holds.
//!
//! **May touch.** The scheduler; two variables of the environment.

use std::{env, fs};

use shuttle::{
    Config, Runner,
    scheduler::{
        PctScheduler, RandomScheduler, ReplayScheduler, Scheduler, UncontrolledNondeterminismCheckScheduler,
    },
    thread::JoinHandle,
};

/// How many times as many runs as usual.
const FACTOR: &str = "WINDFALL_MODEL_FACTOR";
/// A schedule to run and no other, or the name of a file with it.
const REPLAY: &str = "WINDFALL_MODEL_REPLAY";
/// Any number: what was found once is found again.
const SEED: u64 = 0x0f1e_2d3c;
/// How many runs are repeated to see that they can be.
const REPEATED: usize = 5;
/// The stack of a thread of a scenario, in bytes: what a test build needs for a way down to the disk.
const STACK: usize = 256 << 10;

/// Starts a thread of a scenario.
pub fn spawn<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    shuttle::thread::spawn(run)
}

/// Says how to replay, once the failure itself has been told.
struct Advice;

impl Drop for Advice {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or_default();
            eprintln!(
                "\nput the failing schedule above into a file and replay it:\n    {REPLAY}=FILE cargo test -p \
                 windfall --features model --lib -- --exact {name}\n"
            );
        }
    }
}

fn run(scheduler: impl Scheduler + 'static, scenario: &(impl Fn() + Clone + Send + Sync + 'static)) {
    let mut config = Config::new();
    config.stack_size = STACK;
    config.silence_warnings = true;
    config.ungraceful_shutdown_config.immediately_return_on_panic = true;
    let scenario = scenario.clone();
    Runner::new(scheduler, config).run(move || {
        super::begin();
        scenario();
    });
}

/// Runs the scenario in about so many orders: half of them drawn at random at every step, half with few changes of
/// threads at places drawn at random (PCT: Burckhardt, Kothari, Musuvathi, Nagarakatte 2010), which finds what takes
/// long stretches undisturbed.
pub fn explore(runs: usize, scenario: impl Fn() + Clone + Send + Sync + 'static) {
    let _advice = Advice;
    if let Ok(schedule) = env::var(REPLAY) {
        let schedule = fs::read_to_string(&schedule).unwrap_or(schedule);
        return run(ReplayScheduler::new_from_encoded(&schedule), &scenario);
    }
    let factor: usize = env::var(FACTOR).ok().and_then(|factor| factor.parse().ok()).unwrap_or(1);
    let runs = runs * factor;
    let random = RandomScheduler::new_from_seed(SEED, REPEATED);
    run(UncontrolledNondeterminismCheckScheduler::new(random), &scenario);
    run(RandomScheduler::new_from_seed(SEED, runs / 2), &scenario);
    for depth in 1..=4 {
        run(PctScheduler::new_from_seed(SEED, depth, runs / 8), &scenario);
    }
}
