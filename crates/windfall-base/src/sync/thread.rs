//! Threads that are not workers of an environment: they run blocking system calls for other threads.
//!
//! **Purpose.** The one place besides `env` where threads are started, and the place where threads are numbered.
//!
//! **Invariants.** The drop of its handle joins a thread (test: `a_dropped_thread_has_ended`).

pub use std::thread::panicking;
use std::{io, thread};

pub use super::machine::thread_number as number;

/// A running thread. Dropping it waits for its end: the caller must have asked the thread to end.
#[derive(Debug)]
pub struct Thread(Option<thread::JoinHandle<()>>);

impl Thread {
    /// Starts a thread; its name is visible in debuggers and in `top`.
    ///
    /// # Errors
    /// When the system starts no more threads.
    pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        thread::Builder::new().name(format!("windfall-{name}")).spawn(run).map(|handle| Self(Some(handle)))
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // A thread that drops its own handle cannot wait for itself; it is about to end anyway.
        if let Some(handle) = self.0.take().filter(|h| h.thread().id() != thread::current().id()) {
            let _ = handle.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    };

    use super::*;

    #[test]
    fn a_dropped_thread_has_ended() {
        let ran = Arc::new(AtomicBool::new(false));
        let has_run = ran.clone();
        drop(Thread::spawn("test", move || has_run.store(true, SeqCst)).unwrap());
        assert!(ran.load(SeqCst));
    }
}
