//! Arrival times of calls.
//!
//! **Purpose.** An open-loop load: call times are drawn in advance, as if the clients were independent, and a slow call
//! does not delay the next one. So a stall shows in the latency of every call that it delays (no coordinated omission).
//!
//! **Invariants.** The intervals between two calls are exponentially distributed (test:
//! `intervals_are_exponentially_distributed`).

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::Random;

/// The schedule of a client.
#[derive(Debug)]
pub struct Pace {
    start: Instant,
    interval_ns: f64,
    intended_ns: f64,
}

impl Pace {
    /// Returns the schedule of a run that began at `start`, with a mean of `interval` between two calls.
    pub fn new(start: Instant, interval: Duration) -> Self {
        Self { start, interval_ns: interval.as_nanos() as f64, intended_ns: 0.0 }
    }

    /// Returns the scheduled start of the next call, in nanoseconds since the start of the run.
    pub fn next_due(&mut self, random: &mut Random) -> u64 {
        self.intended_ns -= self.interval_ns * (1.0 - random.unit()).ln();
        self.intended_ns as u64
    }

    /// Returns the nanoseconds since the start of the run.
    #[inline]
    pub fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Sleeps for most of the time and yields for the rest, because a sleep ends some 50 µs late.
    pub fn wait_until(&self, due: u64) {
        loop {
            let left = due.saturating_sub(self.now());
            match left {
                0 => return,
                n if n > 200_000 => thread::sleep(Duration::from_nanos(n - 100_000)),
                _ => thread::yield_now(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_come_as_often_as_they_are_to() {
        let (mut pace, mut random) =
            (Pace::new(Instant::now(), Duration::from_micros(50)), Random::new(1, 2));
        let due: Vec<u64> = (0..10_000).map(|_| pace.next_due(&mut random)).collect();
        assert!(due.is_sorted());
        let mean = due[due.len() - 1] as f64 / due.len() as f64;
        assert!((47_500.0..52_500.0).contains(&mean), "{mean}");
        pace.wait_until(1_000);
        assert!(pace.now() >= 1_000);
    }

    #[test]
    fn intervals_are_exponentially_distributed() {
        const MEAN: u64 = 50_000;
        const COUNT: u64 = 20_000;
        let mut pace = Pace::new(Instant::now(), Duration::from_nanos(MEAN));
        let mut random = Random::new(1, 2);
        let due: Vec<u64> = (0..=COUNT).map(|_| pace.next_due(&mut random)).collect();
        // The share of intervals longer than so many means.
        for means in [0.1, 0.5, 1.0, 2.0, 3.0_f64] {
            let longer = due.windows(2).filter(|pair| (pair[1] - pair[0]) as f64 > means * MEAN as f64);
            let (share, expected) = (longer.count() as f64 / COUNT as f64, (-means).exp());
            assert!((share - expected).abs() < 0.02, "{share} are longer than {means} means, not {expected}");
        }
    }
}
