//! The time limit of a test's waits for an event: so long that only a hang lasts longer, even on a busy machine.

#![allow(dead_code, reason = "a file of tests needs a part of it")]

use std::{
    thread,
    time::{Duration, Instant},
};

/// An event that takes longer than this never happens.
pub(crate) const HANG: Duration = Duration::from_mins(10);

/// Waits until an event has happened.
pub(crate) fn wait_until(what: &str, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < HANG, "{what}: this does not happen");
        thread::sleep(Duration::from_millis(10));
    }
}
