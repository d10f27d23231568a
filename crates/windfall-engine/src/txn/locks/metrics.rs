//! Metrics of the lock table.
//!
//! **Purpose.** Counters of lock conflicts and of the time that transactions wait.
//!
//! **Invariants.** All except `held` and `waiting` only grow (test: `behaves_as_its_rules`). No more waits have ended
//! than have begun (checked by `locks/waiting.rs::end_wait`), and none was longer than all together (checked by
//! `locks/metrics.rs::waited`).

use core::time::Duration;

/// The number of classes of the wait histogram: the last one contains all longer waits.
pub const WAIT_CLASSES: usize = 32;

/// The metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockMetrics {
    /// Locks that are held: a table in each of its modes, a row, a range.
    pub held: u64,
    /// Transactions that wait.
    pub waiting: u64,
    /// Waits that were begun.
    pub waits: u64,
    /// The total time of all waits that have ended.
    pub wait_time: Duration,
    /// The longest of them.
    pub longest_wait: Duration,
    /// The number of waits by length: class 0 is less than a microsecond; class `n` is less than 2 to the power `n`
    /// microseconds, and not in a lower class.
    pub wait_classes: [u64; WAIT_CLASSES],
    /// Waits that have timed out.
    pub timeouts: u64,
    /// Deadlocks that were broken.
    pub deadlocks: u64,
}

impl LockMetrics {
    /// Counts a wait that has ended.
    pub(super) fn waited(&mut self, time: Duration) {
        self.wait_time += time;
        self.longest_wait = self.longest_wait.max(time);
        debug_assert!(self.longest_wait <= self.wait_time, "one wait was longer than all waits together");
        let micros = time.as_micros();
        let class = (u128::BITS - micros.leading_zeros()) as usize;
        self.wait_classes[class.min(WAIT_CLASSES - 1)] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_counted_by_its_power_of_two() {
        let mut metrics = LockMetrics::default();
        for micros in [0, 1, 2, 3, 4, 1000, u64::MAX / 2] {
            metrics.waited(Duration::from_micros(micros));
        }
        let counted = |class: usize| metrics.wait_classes[class];
        assert_eq!([0, 1, 2, 3, 10, 31].map(counted), [1, 1, 2, 1, 1, 1]);
        assert_eq!(metrics.wait_classes.iter().sum::<u64>(), 7);
        assert_eq!(metrics.longest_wait, Duration::from_micros(u64::MAX / 2));
    }
}
