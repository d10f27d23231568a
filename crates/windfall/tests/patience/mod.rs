//! How long a test waits for what comes by itself: so long that only a hang lasts longer, on however busy a machine.

#![allow(dead_code, reason = "a file of tests needs a part of it")]

use std::{
    thread,
    time::{Duration, Instant},
};

/// What takes longer than this never ends.
pub const HANG: Duration = Duration::from_mins(10);

/// Waits for what comes by itself.
pub fn wait_until(what: &str, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < HANG, "{what}: that does not come");
        thread::sleep(Duration::from_millis(10));
    }
}
