//! The progress of the demo.
//!
//! **Purpose.** One bar with the name of the phase; on a stream that is not a terminal, one line per phase.
//!
//! **Invariants.** Nothing is written to standard output (test: `the_numbers_of_a_demo_hang_together`).

use std::{
    io::{self, IsTerminal as _},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};

/// A bar with the name of a phase.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
    terminal: bool,
}

impl Progress {
    /// Returns a bar before the first phase.
    pub(super) fn new() -> Self {
        let terminal = io::stderr().is_terminal();
        Self { bar: if terminal { ProgressBar::new(0) } else { ProgressBar::hidden() }, terminal }
    }

    /// Begins a phase of `steps` steps; 0 if their number is unknown.
    pub(super) fn phase(&self, name: &str, steps: u64) {
        let template =
            if steps == 0 { "{spinner} {msg}" } else { "{spinner} {msg:28} {wide_bar} {percent:>3} %" };
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style);
        }
        self.bar.set_length(steps);
        self.bar.set_position(0);
        self.bar.set_message(name.to_owned());
        if self.terminal {
            self.bar.enable_steady_tick(Duration::from_millis(100));
        } else {
            eprintln!("{name}");
        }
    }

    /// Reports that `step` steps are done.
    pub(super) fn at(&self, step: u64) {
        self.bar.set_position(step);
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
