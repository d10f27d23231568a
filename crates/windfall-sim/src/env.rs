//! A simulated environment with one thread, driven by a seed.
//!
//! **Purpose.** Crash enumeration and randomised tests run the whole engine, background workers included. The seed
//! decides the order of the steps, and a replay repeats it.
//!
//! **Invariants.** Nothing here blocks: a wait runs worker steps until its condition holds, and panics if no step can
//! make it hold and the wait has no time limit (test: `a_wait_for_nothing_is_found`). It runs only workers for which
//! the waiting thread may wait (test: `a_wait_runs_no_worker_of_a_later_class`). Time advances only by steps, by waits
//! with a time limit in which no worker has a step, and by [`SimulatedEnv::advance`] (test:
//! `time_passes_with_steps_and_when_there_is_none`).

use core::time::Duration;
use std::collections::BTreeMap;

use windfall_base::{
    env::{Check, Env, Next, Step, Worker, WorkerClass},
    error::Result,
    sync::{Arc, Event, Mutex, Rank, as_another_thread, work::in_background},
};

/// The simulated environment. Clones share its state.
#[derive(Clone)]
pub struct SimulatedEnv {
    world: Arc<Mutex<State>>,
}

struct State {
    now: Duration,
    seed: u64,
    next_id: u64,
    /// A step is removed from its entry while it runs, so that a wait inside the step does not run it again.
    workers: BTreeMap<u64, Simulated>,
    /// Removed from here while they run.
    checks: Vec<Check>,
}

struct Simulated {
    class: WorkerClass,
    step: Option<Step>,
    due: Duration,
}

impl core::fmt::Debug for SimulatedEnv {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("SimulatedEnv")
    }
}

impl State {
    /// `SplitMix64` (Steele, Lea, Flood 2014).
    fn draw(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.seed;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

impl SimulatedEnv {
    /// Creates an environment that draws all random numbers from `seed`.
    pub fn new(seed: u64) -> Self {
        let world =
            State { now: Duration::ZERO, seed, next_id: 0, workers: BTreeMap::new(), checks: Vec::new() };
        Self { world: Arc::new(Mutex::new(Rank::Leaf, world)) }
    }

    /// Advances the clock.
    pub fn advance(&self, time: Duration) {
        self.world.lock().now += time;
    }

    /// Runs one step of one worker: of one that is due, or, for a caller that waits, of any up to this class. Returns
    /// whether there was such a worker.
    pub fn step(&self, waiting: Option<WorkerClass>) -> bool {
        let (id, mut step) = {
            let mut world = self.world.lock();
            let now = world.now;
            let able = |w: &Simulated| waiting.map_or(w.due <= now, |most| w.class <= most);
            let count = world.workers.values().filter(|w| w.step.is_some() && able(w)).count();
            if count == 0 {
                return false;
            }
            let chosen = (world.draw() % count as u64) as usize;
            let mut able = world.workers.iter_mut().filter(|(_, w)| w.step.is_some() && able(w));
            let (id, worker) = able.nth(chosen).expect("one of those that were counted");
            (*id, worker.step.take().expect("chosen among those with a step"))
        };
        let next = as_another_thread(|| in_background(&mut step));
        let mut world = self.world.lock();
        world.now += Duration::from_micros(10);
        let pause = match next {
            Next::Done => None,
            Next::Again => Some(Duration::ZERO),
            Next::Idle(time) => Some(time),
        };
        let due = pause.map(|pause| world.now + pause);
        match (world.workers.get_mut(&id), due) {
            (Some(worker), Some(due)) => {
                worker.step = Some(step);
                worker.due = due;
            }
            // The worker has ended, or was stopped while the step ran.
            _ => drop(world.workers.remove(&id)),
        }
        true
    }

    /// Makes `most` attempts to run a step of a worker that is due. Lets 20 ms pass whenever none is due.
    pub fn run_workers(&self, most: usize) {
        for _ in 0..most {
            if !self.step(None) {
                self.advance(Duration::from_millis(20));
            }
        }
    }

    /// Runs the registered checks. They take only locks that are free, as another thread would see them.
    fn run_checks(&self) {
        let mut checks = core::mem::take(&mut self.world.lock().checks);
        as_another_thread(|| in_background(|| checks.retain_mut(|check| check())));
        let mut world = self.world.lock();
        checks.append(&mut world.checks);
        world.checks = checks;
    }

    /// Runs steps of workers up to this class until `ready` holds or the time is over. If no worker has a step, the
    /// time passes at once.
    fn run_workers_for(&self, most: WorkerClass, at_most: Duration, ready: &mut dyn FnMut() -> bool) {
        let end = self.now() + at_most;
        while !ready() && self.now() < end {
            if !self.step(Some(most)) {
                self.advance(at_most);
            }
        }
    }

    /// Runs steps of workers up to this class until `ready` holds.
    fn run_workers_until(&self, most: WorkerClass, ready: &mut dyn FnMut() -> bool) {
        for _ in 0..100_000 {
            if ready() {
                return;
            }
            if !self.step(Some(most)) {
                break;
            }
        }
        assert!(ready(), "simulation: a wait that no background step can end");
    }
}

impl Env for SimulatedEnv {
    fn now(&self) -> Duration {
        self.world.lock().now
    }

    fn random(&self) -> u64 {
        self.world.lock().draw()
    }

    fn spawn(
        &self,
        _name: &'static str,
        class: WorkerClass,
        _wake: Arc<Event>,
        step: Step,
    ) -> Result<Worker> {
        let mut world = self.world.lock();
        let (id, now) = (world.next_id, world.now);
        world.next_id += 1;
        world.workers.insert(id, Simulated { class, step: Some(step), due: now });
        let env = self.clone();
        Ok(Worker::new(move || {
            let worker = env.world.lock().workers.remove(&id);
            drop(worker);
        }))
    }

    fn wait(&self, _event: &Event, ready: &mut dyn FnMut() -> bool) {
        self.run_workers_until(WorkerClass::Service, ready);
    }

    fn wait_unlatched(&self, _event: &Event, ready: &mut dyn FnMut() -> bool) {
        self.run_workers_until(WorkerClass::Recorder, ready);
    }

    fn wait_for(&self, _event: &Event, at_most: Duration, ready: &mut dyn FnMut() -> bool) {
        self.run_workers_for(WorkerClass::Service, at_most, ready);
    }

    fn wait_unhindered(&self, _event: &Event, at_most: Duration, ready: &mut dyn FnMut() -> bool) {
        self.run_workers_for(WorkerClass::Client, at_most, ready);
    }

    fn yield_point(&self) {
        while self.random().is_multiple_of(4) && self.step(None) {}
        self.run_checks();
    }

    fn at_yield_points(&self, check: Check) {
        self.world.lock().checks.push(check);
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use super::*;

    fn run(seed: u64) -> Vec<u64> {
        let env = SimulatedEnv::new(seed);
        let order = Arc::new(Mutex::new(Rank::Leaf, Vec::new()));
        let total = Arc::new(AtomicU64::new(0));
        let _workers: Vec<Worker> = (0..3u64)
            .map(|n| {
                let (order, total) = (order.clone(), total.clone());
                let step = move || {
                    order.lock().push(n);
                    total.fetch_add(1, SeqCst);
                    Next::Again
                };
                env.spawn("test", WorkerClass::Service, Arc::new(Event::new()), Box::new(step)).unwrap()
            })
            .collect();
        env.wait(&Event::new(), &mut || total.load(SeqCst) >= 20);
        order.lock().clone()
    }

    #[test]
    fn a_seed_decides_the_order() {
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }

    #[test]
    #[should_panic(expected = "no background step can end")]
    fn a_wait_for_nothing_is_found() {
        SimulatedEnv::new(1).wait(&Event::new(), &mut || false);
    }

    /// Starts a worker of this class whose first step sets a flag. Returns the flag.
    fn worker(env: &SimulatedEnv, class: WorkerClass) -> (Worker, Arc<AtomicU64>) {
        let has_run = Arc::new(AtomicU64::new(0));
        let flag = has_run.clone();
        let step = move || {
            flag.store(1, SeqCst);
            Next::Done
        };
        (env.spawn("test", class, Arc::new(Event::new()), Box::new(step)).unwrap(), has_run)
    }

    #[test]
    fn a_wait_runs_no_worker_of_a_later_class() {
        type Wait = fn(&SimulatedEnv, &mut dyn FnMut() -> bool);
        let waits: [(Wait, WorkerClass); 3] = [
            (|env, ready| env.wait(&Event::new(), ready), WorkerClass::Service),
            (|env, ready| env.wait_unlatched(&Event::new(), ready), WorkerClass::Recorder),
            (
                |env, ready| env.wait_unhindered(&Event::new(), Duration::from_secs(1), ready),
                WorkerClass::Client,
            ),
        ];
        let classes = [WorkerClass::Service, WorkerClass::Recorder, WorkerClass::Client];
        for ((wait, most), class) in waits.into_iter().flat_map(|wait| classes.map(|class| (wait, class))) {
            let env = SimulatedEnv::new(1);
            let (_worker, has_run) = worker(&env, class);
            let ends = || wait(&env, &mut || has_run.load(SeqCst) == 1);
            let is_ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(ends)).is_ok();
            assert_eq!(is_ended, class <= most, "a wait for workers up to {most:?} runs one of {class:?}");
        }
    }

    #[test]
    fn time_passes_with_steps_and_when_there_is_none() {
        let env = SimulatedEnv::new(1);
        let (_worker, _) = worker(&env, WorkerClass::Service);
        env.random();
        env.wait(&Event::new(), &mut || true);
        assert_eq!((env.now(), env.now()), (Duration::ZERO, Duration::ZERO));
        assert!(env.step(None));
        let step = env.now();
        assert!(step > Duration::ZERO);
        assert!(!env.step(None));
        env.advance(Duration::from_secs(1));
        assert_eq!(env.now(), step + Duration::from_secs(1));
        env.sleep(Duration::from_secs(2));
        assert_eq!(env.now(), step + Duration::from_secs(3));
    }

    #[test]
    fn a_check_runs_at_every_yield_point_until_it_says_no() {
        let (env, runs) = (SimulatedEnv::new(1), Arc::new(AtomicU64::new(0)));
        let count = runs.clone();
        env.at_yield_points(Box::new(move || count.fetch_add(1, SeqCst) < 2));
        for expected in [1, 2, 3, 3] {
            env.yield_point();
            assert_eq!(runs.load(SeqCst), expected);
        }
    }
}
