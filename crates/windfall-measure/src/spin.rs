//! Work that takes a known processor time and no system call.
//!
//! **Purpose.** Takes the place of the work of other threads in control measurements, which are made without that work.
//!
//! **Method.** The work stays in user space from start to end, as a long statement does. A call that reads the thread's
//! time would make the scheduler check its time slice, which otherwise lasts until the next tick; other threads would
//! then wait less than with the work that this replaces.

use std::{hint::black_box, time::Duration};

use crate::Usage;

/// Iterations between two readings of the clock while the speed is measured: some milliseconds.
const BLOCK: u64 = 4 << 20;
/// Number of speed measurements; the fastest counts, because other threads can only slow it down.
const TIMES: usize = 5;

/// Work of a known speed.
#[derive(Clone, Copy, Debug)]
pub struct Spin {
    iterations_per_ns: f64,
}

impl Spin {
    /// Measures the speed on this processor.
    pub fn measured() -> Self {
        let speed = |_| {
            let before = Usage::of_this_thread();
            iterate(BLOCK);
            BLOCK as f64 / Usage::of_this_thread().since(before).time_ns.max(1) as f64
        };
        Self { iterations_per_ns: (0..TIMES).map(speed).fold(0.0, f64::max) }
    }

    /// Works for this processor time, by the measured speed.
    pub fn work(self, time: Duration) {
        iterate((time.as_nanos() as f64 * self.iterations_per_ns) as u64);
    }
}

fn iterate(count: u64) {
    let mut value = 1_u64;
    for round in 0..count {
        value = black_box(value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spin_takes_the_requested_time() {
        let spin = Spin::measured();
        let took = |milliseconds| {
            let before = Usage::of_this_thread();
            spin.work(Duration::from_millis(milliseconds));
            Usage::of_this_thread().since(before).time()
        };
        // It is never much faster than the fastest measurement.
        assert!(took(20) > Duration::from_millis(10));
        assert!(took(0) < took(20));
    }
}
