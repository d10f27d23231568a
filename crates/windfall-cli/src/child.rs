//! Child processes of this program.
//!
//! **Purpose.** A child does not outlive who waits for it.
//!
//! **Invariants.** None.
//!
//! **May touch.** Processes.

use std::process::Child;

/// A child process that is killed when nobody waits for it any more.
#[derive(Debug)]
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
