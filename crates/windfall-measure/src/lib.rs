//! Instruments that all programs that measure Windfall share.
//!
//! **Purpose.** Latencies, the time line of finished operations with its longest gap, random numbers, the machine; the
//! rows of sysbench; the instructions and system calls of a child process; calls of a shared object; formatted numbers,
//! tables, drawings and pages.
//!
//! **Invariants.** Recording into an instrument takes exclusive access to it (by type): so each thread has its own
//! instruments, which adds no contention, and they are merged when the threads have ended. Nothing here depends on the
//! engine (by type).
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::float_cmp))]
#![allow(
    clippy::cast_sign_loss,
    reason = "what is cast here are times, rates and places in drawings, and not negative"
)]

mod child;
mod compare;
pub mod flat;
mod grid;
mod latency;
pub mod library;
mod machine;
mod pace;
pub mod page;
mod random;
pub mod sbtest;
mod scale;
mod spin;
pub mod stepped;
pub mod svg;
mod timeline;
pub mod units;
mod usage;

pub use child::KillOnDrop;
pub use compare::p_value;
pub use grid::Grid;
pub use latency::{Latency, PERCENTILES};
pub use machine::{Machine, resident_bytes, resident_of_mapping};
pub use pace::Pace;
pub use random::Random;
pub use scale::Scale;
pub use spin::Spin;
pub use timeline::{GRAPH_INTERVAL, Gap, Timeline};
pub use usage::Usage;

/// Returns the median of some numbers; 0 if there are none.
pub fn median(numbers: &[f64]) -> f64 {
    quantile(numbers, 0.5)
}

/// Returns the quantile of some numbers at a share from 0 to 1; 0 if there are none.
pub fn quantile(numbers: &[f64], share: f64) -> f64 {
    debug_assert!((0.0..=1.0).contains(&share), "{share} is not a share");
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (share * sorted.len() as f64).ceil().max(1.0) as usize - 1;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_members() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 0.99), 4.0);
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 0.0), 1.0);
    }
}
