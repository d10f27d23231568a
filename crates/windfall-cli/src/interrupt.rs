//! Signals that end a command cleanly.
//!
//! **Purpose.** Ctrl-C and SIGTERM become a flag that can be checked between two steps, and they end a wait for input.
//!
//! **Invariants.** Before [`Interrupt::watch`] a signal terminates the process as usual (test:
//! `signals_end_the_process_before_the_watch_and_the_second_time`). After it the first signal is only recorded, and the
//! second one terminates the process at once, in case the clean shutdown takes too long (test:
//! `signals_end_the_process_before_the_watch_and_the_second_time`).

use std::{
    io::{self, PipeReader, PipeWriter, pipe},
    os::fd::AsFd,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::retry_on_intr,
};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag, low_level,
};

/// The number that shells add to the signal number in an exit code.
const BY_SIGNAL: u8 = 128;

/// The number of the received signal; there is one set of handlers per process.
static SIGNAL: AtomicUsize = AtomicUsize::new(0);
/// Whether a signal has been received.
static RECEIVED: AtomicBool = AtomicBool::new(false);

/// A signal that has been received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signal(u8);

impl Signal {
    /// Returns the received signal, if any.
    pub(crate) fn received() -> Option<Self> {
        let number = SIGNAL.load(SeqCst);
        (number != 0).then_some(Self(number as u8))
    }

    /// Returns its name.
    pub(crate) fn name(self) -> &'static str {
        low_level::signal_name(self.0.into()).unwrap_or("a signal")
    }

    /// Returns the exit code of a process that was ended by it.
    pub(crate) fn code(self) -> u8 {
        BY_SIGNAL + self.0
    }
}

/// A wait that signals can interrupt.
#[derive(Debug)]
pub(crate) struct Interrupt {
    woken: PipeReader,
    wake: PipeWriter,
}

impl Interrupt {
    /// Returns an instance that does not watch yet.
    ///
    /// # Errors
    /// The system cannot create a pipe.
    pub(crate) fn new() -> io::Result<Self> {
        let (woken, wake) = pipe()?;
        Ok(Self { woken, wake })
    }

    /// Records signals from now on.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn watch(&self) -> io::Result<()> {
        for signal in [SIGINT, SIGTERM] {
            let number = signal as u8;
            // The handlers run in this order: at the first signal the first handler finds the flag unset.
            flag::register_conditional_shutdown(signal, Signal(number).code().into(), &RECEIVED)?;
            flag::register_usize(signal, &SIGNAL, number.into())?;
            flag::register(signal, &RECEIVED)?;
            low_level::pipe::register(signal, self.wake.try_clone()?)?;
        }
        Ok(())
    }

    /// Waits until a signal is received.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn wait(&self) -> io::Result<()> {
        retry_on_intr(|| poll(&mut [PollFd::new(&self.woken, PollFlags::IN)], None))?;
        Ok(())
    }

    /// Waits until there is something to read, or a signal is received.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn wait_for(&self, input: impl AsFd) -> io::Result<()> {
        let mut ends = [PollFd::new(&input, PollFlags::IN), PollFd::new(&self.woken, PollFlags::IN)];
        retry_on_intr(|| poll(&mut ends, None))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        os::unix::process::ExitStatusExt as _,
        process::{Command, ExitStatus, Stdio, exit},
    };

    use super::*;

    /// The variable by which this test calls itself, with whether the process watches signals.
    const WATCHES: &str = "WINDFALL_WATCHES_SIGNALS";

    #[test]
    fn signals_end_the_process_before_the_watch_and_the_second_time() {
        if let Some(watches) = env::var_os(WATCHES) {
            let interrupt = Interrupt::new().unwrap();
            if watches == "yes" {
                interrupt.watch().unwrap();
            }
            // A shell lets its background processes ignore SIGINT, but not SIGTERM.
            low_level::raise(SIGTERM).unwrap();
            interrupt.wait().unwrap();
            assert_eq!(Signal::received(), Some(Signal(SIGTERM as u8)));
            low_level::raise(SIGINT).unwrap();
            exit(0);
        }
        let ended = |watches: &str| -> ExitStatus {
            let name = "interrupt::tests::signals_end_the_process_before_the_watch_and_the_second_time";
            let mut child = Command::new(env::current_exe().unwrap());
            child.args([name, "--exact"]).env(WATCHES, watches);
            child.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap()
        };
        assert_eq!(ended("no").signal(), Some(SIGTERM));
        assert_eq!(ended("yes").code(), Some(i32::from(BY_SIGNAL) + SIGINT), "the first one was recorded");
    }
}
