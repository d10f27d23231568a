//! Events that may come with every call ([`Seldom`]).
//!
//! **Purpose.** What refuses one call refuses the next ones as well: an operator should see the first event, and one
//! from time to time, and not one for each call.
//!
//! **Invariants.** One event is due at first, and one again after [`Seldom::INTERVAL`] (test:
//! `an_event_is_due_at_first_and_after_each_interval`).

use core::time::Duration;

use super::machine::atomic::{AtomicU64, Ordering::Relaxed};

/// Says when an event is due.
#[derive(Debug, Default)]
pub struct Seldom {
    /// The time of the last event in seconds, and one more; 0 before the first.
    last: AtomicU64,
}

impl Seldom {
    /// The time between two events.
    pub const INTERVAL: Duration = Duration::from_secs(10);

    /// Returns whether an event is due now: it then counts as emitted.
    #[cold]
    pub fn is_due(&self, now: Duration) -> bool {
        let (now, last) = (now.as_secs() + 1, self.last.load(Relaxed));
        let is_due = last == 0 || now.abs_diff(last) >= Self::INTERVAL.as_secs();
        if is_due {
            self.last.store(now, Relaxed);
        }
        is_due
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_due_at_first_and_after_each_interval() {
        let seldom = Seldom::default();
        let due = |at: u64| seldom.is_due(Duration::from_secs(at));
        assert_eq!([0, 1, 9, 10, 11, 19, 20].map(due), [true, false, false, true, false, false, true]);
    }
}
