//! The effect on other clients of the drop of a table that has much of a factor.
//!
//! **Purpose.** A reader and a writer of another table call at times fixed in advance. For each, the longest time
//! without a finished call is measured in windows that begin with a drop, and in windows without one.
//!
//! **Method.** Both windows belong to one run of the same load, and their order alternates between runs. The load does
//! not run while a table is created. The second window begins when all background work of the first one's drop is done.
//! In a window without a drop other threads use the same processor time as the statement, the background work during it
//! and the background work after it in a window, in the same order, each without a system call. The reason: if clients
//! keep all processors busy, any work costs them a time slice of the scheduler, which is not the effect to measure
//! here. The work after the statement begins at a random moment of the half window after it: background workers are
//! woken by timers, and a thread that is woken by another one stays on its processor. That time is measured when
//! nothing else runs, and is in the result.
//!
//! The log is synced half a window before each window, because a commit waits for a sync in the kernel, for
//! milliseconds: the periodic sync, a second after the last one, is then in no window. Directly after the statement it
//! is synced again, in both windows: the deletion of a file begins when the drop is durable, and is in the window with
//! the drop. So is the sync of what a drop has logged.
//!
//! Waits on the dropping thread are those of the reader and the writer: a statement on many tables changes their
//! records at once, and the worker that maintains the system tree may wait for that.

use std::{
    hint::black_box,
    sync::{
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use windfall_measure::{Pace, Random, Scale, Spin, Timeline, Usage, flat::Others};

use super::{
    database::{OTHERS, Side},
    factor::Kind,
    victim::{Victim, run as statement},
};
use crate::{
    engine,
    failure::{Failure, Result},
};

/// The mean interval between two calls of a client.
const READS: Duration = Duration::from_micros(20);
const WRITES: Duration = Duration::from_micros(50);
/// Time lines grow without a copy up to this length, because the deletion of a large file is between the windows.
const LOAD: Duration = Duration::from_secs(3);
/// The stream of random numbers of the background work; the clients have the streams 0 and 1.
const BACKGROUND: u64 = 2;
/// Maximum number of drops without a load, which measure the cost of a drop.
const ALONE_MOST: u32 = 3;
/// The number of windows before each such drop in which nothing runs.
const IDLE: u32 = 5;

/// The processor time that a window takes.
#[derive(Clone, Copy)]
struct Taken {
    /// Of the dropping thread during the statement.
    statement: Duration,
    /// Of other threads during the statement.
    other_threads: Duration,
    /// Of all threads from then until the end of the window. The deletion of a large file begins in it, and continues
    /// after it, slowly.
    after: Duration,
}

impl Taken {
    fn total(self) -> Duration {
        self.statement + self.other_threads + self.after
    }

    /// Returns the one with the median total.
    fn middle(mut all: Vec<Self>) -> Self {
        all.sort_by_key(|taken| taken.total());
        all[all.len() / 2]
    }

    /// Returns the difference of each part, or zero.
    fn minus(self, other: Self) -> Self {
        Self {
            statement: self.statement.saturating_sub(other.statement),
            other_threads: self.other_threads.saturating_sub(other.other_threads),
            after: self.after.saturating_sub(other.after),
        }
    }
}

/// Drops the tables of all rounds under a load.
pub(super) fn run(side: &mut Side, scale: Scale, seed: u64) -> Result<Others> {
    let window = Duration::from_millis(scale.pick(10, 50, 50));
    let rounds = side.factor.rounds(scale).concurrent;

    let mut drops = Vec::new();
    for _ in 0..rounds.min(ALONE_MOST) {
        let mut victim = Victim::make(side, Kind::Drop)?;
        drops.push(taken(side, &mut victim, window)?);
        victim.remove(side, Some(Kind::Drop))?;
    }
    let mut taken = Taken::middle(drops);
    if taken.statement.is_zero() {
        return Err(Failure::message("no processor time of a drop could be measured"));
    }
    let mut others = Others { drop_ns: taken.total().as_nanos() as u64, ..Others::default() };
    // One thread does the work of all, and must be done when the window ends.
    taken.after = taken.after.min((window / 2).saturating_sub(taken.statement + taken.other_threads));
    let spin = Spin::measured();
    for n in 0..rounds {
        let mut victim = Victim::make(side, Kind::Drop)?;
        windows(side, &mut victim, taken, spin, window, seed + u64::from(n), &mut others)?;
        victim.remove(side, Some(Kind::Drop))?;
    }
    Ok(others)
}

/// Measures the processor time of a drop while nothing else runs: that of a window that begins with it, minus that of a
/// window without one.
fn taken(side: &Side, victim: &mut Victim, window: Duration) -> Result<Taken> {
    let used_in_window = |run: &mut dyn FnMut() -> Result<()>| {
        let (start, all, own) = (Instant::now(), Usage::of_this_process(), Usage::of_this_thread());
        run()?;
        let statement = Usage::of_this_thread().since(own).time();
        let until_then = Usage::of_this_process().since(all).time();
        side.db.flush_log()?;
        thread::sleep(window.saturating_sub(start.elapsed()));
        let in_all = Usage::of_this_process().since(all).time();
        Ok::<_, Failure>(Taken {
            statement,
            other_threads: until_then.saturating_sub(statement),
            after: in_all.saturating_sub(until_then),
        })
    };
    side.wait_until_idle()?;
    side.db.flush_log()?;
    let idle = (0..IDLE).map(|_| used_in_window(&mut || Ok(()))).collect::<Result<_>>()?;
    let dropped = used_in_window(&mut || {
        victim.release();
        Ok(statement(side, Kind::Drop, &victim.names()).map(drop)?)
    })?;
    Ok(dropped.minus(Taken::middle(idle)))
}

/// Executes a run of the load with two windows: at the start of one the table is dropped, and at the start of the other
/// the same processor time is used.
fn windows(
    side: &Side,
    victim: &mut Victim,
    taken: Taken,
    spin: Spin,
    window: Duration,
    seed: u64,
    others: &mut Others,
) -> Result<()> {
    // The time before each window is as long as a window.
    let mut begins = [window, window * 3];
    let (over, running) = (AtomicBool::new(false), [AtomicBool::new(false), AtomicBool::new(false)]);
    let with = (seed % 2) as usize;
    // Groups logged before the load must not be synced during it.
    side.db.flush_log()?;
    let start = Instant::now();
    let client = |client_number: u64, interval: Duration| {
        let (mut random, mut pace) = (Random::new(seed, client_number), Pace::new(start, interval));
        let mut line = Timeline::growing(LOAD);
        loop {
            // The last call ends after the last window.
            let is_last = over.load(Relaxed);
            let due = pace.next_due(&mut random);
            pace.wait_until(due);
            let key = random.below(OTHERS).to_be_bytes();
            if client_number == 0 {
                black_box(side.others.get(&key)?);
            } else {
                side.others.put(&key, &[seed as u8; 100])?;
            }
            line.finished(pace.now());
            running[client_number as usize].store(true, Relaxed);
            if is_last {
                return Ok((line, engine::waits_on_drops_of_this_thread()));
            }
        }
    };
    let (lines, dropped) = thread::scope(|scope| {
        let clients = [
            scope.spawn(|| -> Result<_> { client(0, READS) }),
            scope.spawn(|| -> Result<_> { client(1, WRITES) }),
        ];
        // The replacement of the background work begins with that of the statement, and continues after its end.
        let (step, steps) = mpsc::channel();
        let pause = window.mul_f64(Random::new(seed, BACKGROUND).unit() / 2.0);
        scope.spawn(move || {
            for (pause, part) in [(Duration::ZERO, taken.other_threads), (pause, taken.after)] {
                if steps.recv().is_ok() {
                    thread::sleep(pause);
                    spin.work(part);
                }
            }
        });
        // The first call of each ends before the first window.
        let ready = || {
            let mut all = clients.iter().zip(&running);
            all.all(|(client, running)| running.load(Relaxed) || client.is_finished())
        };
        while !ready() {
            thread::sleep(Duration::from_millis(1));
        }
        let mut run = || -> Result<()> {
            for n in [0, 1] {
                thread::sleep((start + begins[n]).saturating_duration_since(Instant::now() + window / 2));
                side.db.flush_log()?;
                // However long that took, the load is in the same state when a window begins.
                begins[n] = begins[n].max(start.elapsed() + window / 2);
                thread::sleep((start + begins[n]).saturating_duration_since(Instant::now()));
                begins[n] = start.elapsed();
                if n == with {
                    victim.release();
                    statement(side, Kind::Drop, &victim.names())?;
                } else {
                    // Both messages are received unless that thread has panicked, and then the scope panics.
                    let _ = step.send(());
                    spin.work(taken.statement);
                    let _ = step.send(());
                }
                side.db.flush_log()?;
                thread::sleep((start + begins[n] + window).saturating_duration_since(Instant::now()));
                if n == 0 {
                    side.wait_until_freed()?;
                    begins[1] = begins[1].max(start.elapsed() + window);
                }
            }
            Ok(())
        };
        let dropped = run();
        over.store(true, Relaxed);
        drop(step);
        let panicked = |_| Err(Failure::message("a client has panicked"));
        (clients.map(|client| client.join().unwrap_or_else(panicked)), dropped)
    });
    dropped?;
    for (line, gaps) in lines.into_iter().zip([&mut others.readers, &mut others.writers]) {
        let (line, waits) = line?;
        if let Some(waits) = waits {
            *others.waits_on_drops.get_or_insert(0) += waits;
        }
        let gap = |begin: Duration| {
            let (from, to) = (begin.as_nanos() as u64, (begin + window).as_nanos() as u64);
            // Calls finished before the window and after it.
            debug_assert!(line.count_within(0, from) > 0 && line.count_within(to, u64::MAX) > 0);
            line.longest_gap_within(from, to).length_ns as f64
        };
        gaps.with.push(gap(begins[with]));
        gaps.without.push(gap(begins[1 - with]));
    }
    Ok(())
}
