//! Signals that end a command in good order.
//!
//! **Purpose.** Ctrl-C and SIGTERM become something to ask for between two steps, and they end a wait for input.
//!
//! **Invariants.** Before [`Interrupt::watch`] a signal ends the process as ever. After it the first one is only noted,
//! and the second one ends the process at once, should the good order take too long.
//!
//! **May touch.** Signal handlers, pipes.

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

/// What shells add to the number of the signal that has ended a process.
const BY_SIGNAL: u8 = 128;

/// The signal that has come; a process has only these handlers.
static CAME: AtomicUsize = AtomicUsize::new(0);
/// Whether one has come.
static HAS_COME: AtomicBool = AtomicBool::new(false);

/// A signal that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal(u8);

impl Signal {
    /// The one that has come.
    pub fn come() -> Option<Self> {
        let number = CAME.load(SeqCst);
        (number != 0).then_some(Self(number as u8))
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        low_level::signal_name(self.0.into()).unwrap_or("a signal")
    }

    /// The exit code of a process that it has ended.
    pub fn code(self) -> u8 {
        BY_SIGNAL + self.0
    }
}

/// What waits for a signal.
#[derive(Debug)]
pub struct Interrupt {
    woken: PipeReader,
    wake: PipeWriter,
}

impl Interrupt {
    /// One that does not watch yet.
    ///
    /// # Errors
    /// The system has no pipe.
    pub fn new() -> io::Result<Self> {
        let (woken, wake) = pipe()?;
        Ok(Self { woken, wake })
    }

    /// From here on signals are noted.
    ///
    /// # Errors
    /// Those of the system.
    pub fn watch(&self) -> io::Result<()> {
        for signal in [SIGINT, SIGTERM] {
            let number = signal as u8;
            // They run in this order: at the first signal the first one finds nothing.
            flag::register_conditional_shutdown(signal, Signal(number).code().into(), &HAS_COME)?;
            flag::register_usize(signal, &CAME, number.into())?;
            flag::register(signal, &HAS_COME)?;
            low_level::pipe::register(signal, self.wake.try_clone()?)?;
        }
        Ok(())
    }

    /// Waits until a signal has come.
    ///
    /// # Errors
    /// Those of the system.
    pub fn wait(&self) -> io::Result<()> {
        retry_on_intr(|| poll(&mut [PollFd::new(&self.woken, PollFlags::IN)], None))?;
        Ok(())
    }

    /// Waits until there is something to read, or a signal has come.
    ///
    /// # Errors
    /// Those of the system.
    pub fn wait_for(&self, input: impl AsFd) -> io::Result<()> {
        let mut ends = [PollFd::new(&input, PollFlags::IN), PollFd::new(&self.woken, PollFlags::IN)];
        retry_on_intr(|| poll(&mut ends, None))?;
        Ok(())
    }
}
