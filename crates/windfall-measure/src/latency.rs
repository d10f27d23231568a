//! Latency histogram.
//!
//! **Purpose.** A histogram of times with the percentiles that every table and graph shows.
//!
//! **Invariants.** A time is kept with two significant digits up to 18 minutes; the maximum is exact (test:
//! `percentiles_are_near_and_the_maximum_is_exact`).

use hdrhistogram::Histogram;
use serde_json::{Map, Value};

/// The percentiles that are shown, with their names; 100 is the maximum.
pub const PERCENTILES: [(&str, f64); 6] =
    [("p50", 50.0), ("p95", 95.0), ("p99", 99.0), ("p99.9", 99.9), ("p99.99", 99.99), ("max", 100.0)];

/// The longest time that the histogram distinguishes from longer ones.
const LONGEST_NS: u64 = 1 << 40;

/// A histogram of operation times.
#[derive(Clone, Debug)]
pub struct Latency {
    times: Histogram<u64>,
    longest: u64,
}

impl Default for Latency {
    fn default() -> Self {
        let times = Histogram::new_with_bounds(1, LONGEST_NS, 2).expect("the bounds are constants that fit");
        Self { times, longest: 0 }
    }
}

impl Latency {
    /// Records a time in nanoseconds.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.times.saturating_record(ns.max(1));
        self.longest = self.longest.max(ns);
    }

    /// Merges another histogram.
    pub fn add(&mut self, other: &Self) {
        self.times.add(&other.times).expect("all histograms have the same bounds");
        self.longest = self.longest.max(other.longest);
    }

    /// Returns the number of recorded times.
    pub fn count(&self) -> u64 {
        self.times.len()
    }

    /// Returns the time in nanoseconds that `percent` per cent of the times do not exceed.
    pub fn percentile(&self, percent: f64) -> u64 {
        debug_assert!((0.0..=100.0).contains(&percent), "{percent} is not a percentage");
        if percent >= 100.0 {
            self.longest
        } else {
            self.times.value_at_percentile(percent).min(self.longest)
        }
    }

    /// Returns the longest time in nanoseconds.
    pub fn max(&self) -> u64 {
        self.longest
    }

    /// Returns the percentiles in microseconds, and the count.
    pub fn json(&self) -> Value {
        let mut object = Map::new();
        object.insert("count".into(), self.count().into());
        for (name, percent) in PERCENTILES {
            object.insert(format!("{name}_us"), (self.percentile(percent) as f64 / 1e3).into());
        }
        object.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_near_and_the_maximum_is_exact() {
        let mut some = Latency::default();
        (1..=1_000).for_each(|n| some.record(n * 1_000));
        let mut more = Latency::default();
        more.record(1_234_567_891);
        some.add(&more);
        assert_eq!((some.count(), some.max()), (1_001, 1_234_567_891));
        assert!((495_000..=506_000).contains(&some.percentile(50.0)), "{}", some.percentile(50.0));
        assert_eq!(some.percentile(100.0), 1_234_567_891);
        assert_eq!(Latency::default().percentile(99.0), 0);
    }
}
