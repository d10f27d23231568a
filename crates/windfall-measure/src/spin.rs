//! Work that takes a known processor time, and no system call.
//!
//! **Purpose.** Stands for the work of others where they do none.
//!
//! **Invariants.** From its begin to its end it stays in user space, as a long statement does: a call that reads the
//! thread's time has the scheduler look whether its slice is over, which otherwise lasts until the next tick. Others
//! would wait less beside it than beside the work that it stands for.
//!
//! **May touch.** `usage`.

use std::{hint::black_box, time::Duration};

use crate::Usage;

/// Rounds between two looks at the clock while the speed is measured: some milliseconds.
const BLOCK: u64 = 4 << 20;
/// How often the speed is measured: the fastest counts, as others can only slow it down.
const TIMES: usize = 5;

/// Work whose speed is known.
#[derive(Clone, Copy, Debug)]
pub struct Spin {
    rounds_per_ns: f64,
}

impl Spin {
    /// Measures how fast a processor does it.
    pub fn measured() -> Self {
        let speed = |_| {
            let before = Usage::of_this_thread();
            rounds(BLOCK);
            BLOCK as f64 / Usage::of_this_thread().since(before).time_ns.max(1) as f64
        };
        Self { rounds_per_ns: (0..TIMES).map(speed).fold(0.0, f64::max) }
    }

    /// Works for so much processor time, by the speed that was measured.
    pub fn work(self, time: Duration) {
        rounds((time.as_nanos() as f64 * self.rounds_per_ns) as u64);
    }
}

fn rounds(count: u64) {
    let mut value = 1_u64;
    for round in 0..count {
        value = black_box(value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_what_is_asked_for() {
        let spin = Spin::measured();
        let took = |milliseconds| {
            let before = Usage::of_this_thread();
            spin.work(Duration::from_millis(milliseconds));
            Usage::of_this_thread().since(before).time()
        };
        // It is never much faster than it was at its fastest.
        assert!(took(20) > Duration::from_millis(10));
        assert!(took(0) < took(20));
    }
}
