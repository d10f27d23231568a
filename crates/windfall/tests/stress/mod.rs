//! The time for which threads run endless work.

use std::time::Duration;

/// Returns the time in the variable `CONCURRENT_SECONDS`, or `default` seconds.
pub(crate) fn seconds(default: u64) -> Duration {
    let asked = std::env::var("CONCURRENT_SECONDS").ok().and_then(|s| s.parse().ok());
    Duration::from_secs(asked.unwrap_or(default))
}
