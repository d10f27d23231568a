//! How long threads work at what has no end.

use std::time::Duration;

/// As long as the variable `CONCURRENT_SECONDS` says, or else so many seconds.
pub fn seconds(default: u64) -> Duration {
    let asked = std::env::var("CONCURRENT_SECONDS").ok().and_then(|s| s.parse().ok());
    Duration::from_secs(asked.unwrap_or(default))
}
