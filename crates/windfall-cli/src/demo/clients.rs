//! The clients: one transaction of sysbench's read/write mix after the other.
//!
//! **Purpose.** Each client works on its own, and records every call, the commit among them.
//!
//! **Invariants.** A call is inside a drop window if any part of it is. Two clients that meet at a row are normal: one
//! waits for the other, and of those that wait for each other in a circle one gives way, which is counted.
//!
//! **May touch.** `engine`, `oltp`, `windfall-measure`.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use windfall_measure::{Latency, Random, Timeline};

use crate::{
    failure::Result,
    oltp::{KINDS, Mix, Observer},
};

/// How long after a drop its window ends.
pub const WINDOW: Duration = Duration::from_millis(100);

/// What the threads of a run share.
#[derive(Debug)]
pub struct Shared {
    /// When the run began.
    pub start: Instant,
    /// When the last drop window opened, in nanoseconds of the run.
    pub window: AtomicU64,
    /// Set when everyone is to stop.
    pub stop: AtomicBool,
}

impl Shared {
    /// A run that begins now.
    pub fn new() -> Self {
        Self { start: Instant::now(), window: AtomicU64::new(u64::MAX), stop: AtomicBool::new(false) }
    }

    /// The time of the run in nanoseconds.
    pub fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

/// What a client has recorded.
#[derive(Clone, Debug)]
pub struct Record {
    /// When calls finished.
    pub timeline: Timeline,
    /// Times of calls inside drop windows, by kind.
    pub inside: [Latency; KINDS.len()],
    /// Times of the other calls, by kind.
    pub outside: [Latency; KINDS.len()],
    /// Transactions that gave way to others and were rolled back.
    pub gave_way: u64,
}

impl Record {
    /// Nothing recorded.
    pub fn new(length: Duration) -> Self {
        Self {
            timeline: Timeline::new(length),
            inside: Default::default(),
            outside: Default::default(),
            gave_way: 0,
        }
    }

    /// Adds what another client has recorded.
    pub fn add(&mut self, other: &Self) {
        self.timeline.add(&other.timeline);
        for (mine, theirs) in self.inside.iter_mut().zip(&other.inside) {
            mine.add(theirs);
        }
        for (mine, theirs) in self.outside.iter_mut().zip(&other.outside) {
            mine.add(theirs);
        }
        self.gave_way += other.gave_way;
    }
}

/// One client.
pub struct Client<'a> {
    mix: Mix<'a>,
    random: Random,
    recorder: Recorder<'a>,
}

struct Recorder<'a> {
    shared: &'a Shared,
    record: Record,
}

impl<'a> Client<'a> {
    /// A client that has recorded nothing.
    pub fn new(mix: Mix<'a>, random: Random, shared: &'a Shared, length: Duration) -> Self {
        Self { mix, random, recorder: Recorder { shared, record: Record::new(length) } }
    }

    /// Works until told to stop.
    pub fn run(mut self) -> Result<Record> {
        while !self.recorder.shared.stop.load(Relaxed) {
            let committed = self.mix.transaction(&mut self.random, &mut self.recorder)?;
            self.recorder.record.gave_way += u64::from(!committed);
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
