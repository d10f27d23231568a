//! The clients: each executes transactions of sysbench's read/write mix in sequence.
//!
//! **Purpose.** Each client works independently, and records every call, including the commit.
//!
//! **Invariants.** A call is inside a drop window if any part of it is (test:
//! `a_call_is_in_a_window_if_a_part_of_it_is`).
//!
//! **Method.** Conflicts of two clients on a row are normal: one waits for the other. In a deadlock one of them is the
//! victim and rolls back, which is counted.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use windfall_measure::{Latency, Random, Timeline};

use crate::{
    failure::Result,
    oltp::{KINDS, Mix, Observer},
};

/// The length of a window after a drop.
pub(crate) const WINDOW: Duration = Duration::from_millis(100);

/// The state that the threads of a run share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The start of the run.
    pub start: Instant,
    /// The time at which the last drop window opened, in nanoseconds since the start of the run.
    pub window: AtomicU64,
    /// Set when all threads must stop.
    pub stop: AtomicBool,
}

impl Shared {
    /// Returns the state of a run that begins now.
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), window: AtomicU64::new(u64::MAX), stop: AtomicBool::new(false) }
    }

    /// Returns the time since the start of the run in nanoseconds.
    pub(crate) fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

/// The records of a client.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// Times at which calls finished.
    pub timeline: Timeline,
    /// Latencies of calls inside drop windows, by kind.
    pub inside: [Latency; KINDS.len()],
    /// Latencies of the other calls, by kind.
    pub outside: [Latency; KINDS.len()],
    /// Transactions that were rolled back after a deadlock or a lock timeout.
    pub rolled_back: u64,
}

impl Record {
    /// Returns an empty record.
    pub(crate) fn new(length: Duration) -> Self {
        Self {
            timeline: Timeline::new(length),
            inside: Default::default(),
            outside: Default::default(),
            rolled_back: 0,
        }
    }

    /// Adds the record of another client.
    pub(crate) fn add(&mut self, other: &Self) {
        self.timeline.add(&other.timeline);
        for (mine, theirs) in self.inside.iter_mut().zip(&other.inside) {
            mine.add(theirs);
        }
        for (mine, theirs) in self.outside.iter_mut().zip(&other.outside) {
            mine.add(theirs);
        }
        self.rolled_back += other.rolled_back;
    }
}

/// A client of the demo.
pub(crate) struct Client<'a> {
    mix: Mix<'a>,
    random: Random,
    recorder: Recorder<'a>,
}

struct Recorder<'a> {
    shared: &'a Shared,
    record: Record,
}

impl<'a> Client<'a> {
    /// Returns a client with an empty record.
    pub(crate) fn new(mix: Mix<'a>, random: Random, shared: &'a Shared, length: Duration) -> Self {
        Self { mix, random, recorder: Recorder { shared, record: Record::new(length) } }
    }

    /// Executes transactions until [`Shared::stop`] is set.
    pub(crate) fn run(mut self) -> Result<Record> {
        while !self.recorder.shared.stop.load(Relaxed) {
            let committed = self.mix.transaction(&mut self.random, &mut self.recorder)?;
            self.recorder.record.rolled_back += u64::from(!committed);
        }
        Ok(self.recorder.record)
    }
}

impl Observer for Recorder<'_> {
    #[inline]
    fn call<T>(
        &mut self,
        kind: usize,
        call: impl FnOnce() -> windfall::error::Result<T>,
    ) -> windfall::error::Result<T> {
        let start = self.shared.now();
        let done = call()?;
        let end = self.shared.now();
        let window = self.shared.window.load(Relaxed);
        let inside = end >= window && start < window.saturating_add(WINDOW.as_nanos() as u64);
        let times = if inside { &mut self.record.inside } else { &mut self.record.outside };
        times[kind].record(end - start);
        self.record.timeline.finished(end);
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_in_a_window_if_a_part_of_it_is() {
        let shared = Shared { start: Instant::now() - Duration::from_secs(10), ..Shared::new() };
        let mut recorder = Recorder { shared: &shared, record: Record::new(Duration::from_mins(1)) };
        let counts = |recorder: &Recorder<'_>| {
            [&recorder.record.inside, &recorder.record.outside].map(|times| times[0].count())
        };
        recorder.call(0, || Ok(())).unwrap();
        assert_eq!(counts(&recorder), [0, 1], "no window is open yet");
        recorder
            .call(0, || {
                shared.window.store(shared.now(), Relaxed);
                Ok(())
            })
            .unwrap();
        assert_eq!(counts(&recorder), [1, 1], "the window opens during the call");
        shared.window.store(shared.now() - WINDOW.as_nanos() as u64 - 1, Relaxed);
        recorder.call(0, || Ok(())).unwrap();
        assert_eq!(counts(&recorder), [1, 2], "the window is over");
        shared.window.store(shared.now(), Relaxed);
        recorder
            .call(0, || {
                std::thread::sleep(WINDOW);
                Ok(())
            })
            .unwrap();
        assert_eq!(counts(&recorder), [2, 2], "the call ends after the window");
    }
}
