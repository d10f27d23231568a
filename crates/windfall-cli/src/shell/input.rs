//! The input of the shell.
//!
//! **Purpose.** Reads lines on its own thread, each when it is requested: from a terminal by a line editor with a
//! history, otherwise directly.
//!
//! **Invariants.** Output during the editing of a line appears above it (test:
//! `an_answer_comes_above_the_line_that_is_being_edited`). The terminal settings are restored at the end, also when a
//! signal ends the shell in the middle of a line (test: `a_signal_within_a_line_leaves_the_terminal_as_it_was`).

use std::{
    env, fs,
    io::{self, BufRead as _, IsTerminal as _, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::mpsc::{self, Receiver, Sender},
    thread,
};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::{Config, Editor, ExternalPrinter as _, error::ReadlineError, history::DefaultHistory};
use windfall_measure::units;

use super::Event;
use crate::{
    failure::{Failure, Result},
    output,
};

/// The longest line that is not from a terminal.
const MAX_LINE_BYTES: usize = 16 << 20;

/// Maximum number of lines in the history.
const HISTORY: usize = 1_000;

/// The outcome of a request for a line.
#[derive(Debug)]
pub(crate) enum Given {
    /// The line was read.
    Line(String),
    /// The line is not valid text.
    Bad(String),
    /// The line was discarded before it was complete.
    Cleared,
    /// The end of the input.
    End,
    /// The line could not be read.
    Failed(String),
}

/// The source of statements.
#[derive(Debug)]
pub(super) struct Input {
    /// Requests a line, with this prompt.
    ask: Sender<String>,
    /// Whether a line was requested and has not arrived yet.
    asked: bool,
    terminal: Option<Terminal>,
}

#[derive(Debug)]
struct Terminal {
    /// Prints above the line that is being edited, if the editor supports that.
    above: Option<Sender<String>>,
    /// The original settings.
    before: Option<Termios>,
}

impl Input {
    /// Opens standard input, with an editor if both it and standard output are terminals. Sends lines to `events`.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub(super) fn open(events: Sender<Event>) -> Result<Self> {
        let (ask, asked) = mpsc::channel();
        if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
            spawn(move || lines(asked, &events))?;
            return Ok(Self { ask, asked: false, terminal: None });
        }
        let before = tcgetattr(io::stdin()).ok();
        let (history, trouble) = match history() {
            Ok(path) => (Some(path), None),
            Err(why) => (None, Some(why)),
        };
        if let Some(why) = trouble {
            eprintln!("the history is not kept: {why}");
        }
        let config =
            Config::builder().max_history_size(HISTORY).map_err(of_editor)?.bracketed_paste(false).build();
        let mut editor = Editor::with_config(config).map_err(of_editor)?;
        if let Some(path) = &history {
            // The file may not exist yet; that it can be written was checked.
            let _ = editor.load_history(path);
        }
        let above = match editor.create_external_printer() {
            Err(_) => None,
            Ok(mut printer) => {
                let (above, texts) = mpsc::channel::<String>();
                // On its own thread: a text that arrives when the editor has just ended waits there for the next line.
                spawn(move || texts.into_iter().for_each(|text| drop(printer.print(text))))?;
                Some(above)
            }
        };
        spawn(move || edited(editor, history.as_deref(), asked, &events))?;
        Ok(Self { ask, asked: false, terminal: Some(Terminal { above, before }) })
    }

    /// Returns whether the input is a terminal.
    pub(super) fn is_terminal(&self) -> bool {
        self.terminal.is_some()
    }

    /// Requests a line.
    pub(super) fn ask(&mut self, prompt: String) {
        self.asked = self.ask.send(prompt).is_ok();
    }

    /// Notes that the line has arrived.
    pub(super) fn given(&mut self) {
        self.asked = false;
    }

    /// Prints something, above the line that is being edited.
    ///
    /// # Errors
    /// The text cannot be written.
    pub(super) fn print(&self, text: String) -> Result<()> {
        match &self.terminal {
            Some(Terminal { above: Some(above), .. }) if self.asked => {
                // The thread exists as long as the shell.
                let _ = above.send(text);
                Ok(())
            }
            _ => output::print(&text),
        }
    }

    /// Restores the terminal settings, if a line is being edited.
    pub(super) fn leave(&mut self) {
        if let Some(Terminal { before: Some(before), .. }) = &self.terminal
            && self.asked
        {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
            let _ = output::print("\n");
        }
        self.asked = false;
    }
}

fn spawn(run: impl FnOnce() + Send + 'static) -> Result<()> {
    let spawned = thread::Builder::new().name("input".into()).spawn(run);
    spawned
        .map(drop)
        .map_err(|error| Failure::message(format!("the system starts no thread for the input: {error}")))
}

fn of_editor(error: ReadlineError) -> Failure {
    Failure::message(format!("the terminal cannot be used: {error}"))
}

/// Reads lines directly.
fn lines(asked: Receiver<String>, events: &Sender<Event>) {
    let mut input = io::stdin().lock();
    for _ in asked {
        let mut line = Vec::new();
        let given = match input.by_ref().take(MAX_LINE_BYTES as u64).read_until(b'\n', &mut line) {
            Err(error) => Given::Failed(format!("standard input cannot be read: {error}")),
            Ok(0) => Given::End,
            Ok(MAX_LINE_BYTES) if !line.ends_with(b"\n") => {
                Given::Failed(format!("the line is longer than {}", units::bytes(MAX_LINE_BYTES as f64)))
            }
            Ok(_) => match String::from_utf8(line) {
                Ok(line) => Given::Line(line),
                Err(error) => Given::Bad(format!(
                    "the line is not text in UTF-8: {}; write other bytes as \\xHH in quotes",
                    output::quoted(error.as_bytes().trim_ascii_end())
                )),
            },
        };
        if events.send(Event::Given(given)).is_err() {
            return;
        }
    }
}

/// Reads lines with the editor.
fn edited(
    mut editor: Editor<(), DefaultHistory>,
    history: Option<&Path>,
    asked: Receiver<String>,
    events: &Sender<Event>,
) {
    let mut keeps = history;
    for prompt in asked {
        let given = match editor.readline(&prompt) {
            Ok(line) => {
                if editor.add_history_entry(&line).unwrap_or(false)
                    && let Some(path) = keeps
                    && let Err(error) = editor.append_history(path)
                {
                    eprintln!("the history is not kept any more: {}: {error}", path.display());
                    keeps = None;
                }
                Given::Line(line)
            }
            Err(ReadlineError::Interrupted) => Given::Cleared,
            Err(ReadlineError::Eof) => Given::End,
            Err(error) => Given::Failed(format!("the terminal cannot be read: {error}")),
        };
        if events.send(Event::Given(given)).is_err() {
            return;
        }
    }
}

/// Returns the file of the history, which can be written.
fn history() -> Result<PathBuf, String> {
    // A path that is not absolute is ignored, as the XDG specification of these folders demands.
    let folder = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")));
    let state = state.ok_or("neither XDG_STATE_HOME nor HOME names a folder")?;
    let folder = state.join("windfall");
    let path = folder.join("history");
    fs::create_dir_all(&folder)
        .and_then(|()| fs::OpenOptions::new().create(true).append(true).mode(0o600).open(&path))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}
