//! Temporary files that are removed however their process ends.
//!
//! **Purpose.** A benchmark or a demo creates databases of gigabytes. A process that is interrupted or killed cannot
//! clean up, so another process waits for its end and does it.
//!
//! **Invariants.** The waiting process is in its own process group; otherwise Ctrl-C on the terminal would end it, too
//! (test: `a_benchmark_that_is_killed_leaves_no_files`). It detects the end of the first process by its standard input,
//! which no other process holds open (test: `a_benchmark_that_is_killed_leaves_no_files`).
//!
//! **Method.** The waiting process inherits a file lock of the first process and keeps it until it is done. Only one of
//! the two removes anything, because files with the same names may belong to another process afterwards. If the first
//! process was killed, the waiting one removes for two seconds what a child of it may still create; without a lock, the
//! names contain the number of the process.

use std::{
    env,
    fs::{self, File},
    io::{self, ErrorKind, Read as _, Write as _},
    os::unix::process::CommandExt as _,
    path::{PathBuf, absolute},
    process::{Child, Command, ExitCode, Stdio},
    thread,
    time::Duration,
};

use crate::args::SweepArgs;

/// Maximum number of attempts: a child of the dead process may still be creating files.
const TRIES: u32 = 100;
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// The number of checks, one after each pause, that what was removed has not come back: such a child may create its
/// folder after the removal.
const CHECKS: u32 = 20;
/// The message of a first process that ends by itself.
const ENDED: &[u8] = b"end";
/// The same, and the folders that may be empty are kept.
const KEEP_FOLDERS: &[u8] = b"stay";

/// Files and folders that are removed at the end.
#[derive(Debug)]
pub(crate) struct Sweeper {
    what: SweepArgs,
    waiting: Option<Child>,
    ended: bool,
}

impl Sweeper {
    /// Starts the waiting process, which removes `all` with their content, and then those folders of `if_empty` that
    /// are empty. It holds `lock` until then.
    pub(crate) fn watch(all: Vec<PathBuf>, if_empty: Vec<PathBuf>, lock: Option<&File>) -> Self {
        let what = SweepArgs { all, if_empty };
        // If it cannot be started, the only difference is that files of a killed process remain. A unit test is another
        // program, which has no `sweep` command.
        let waiting = if cfg!(test) { None } else { start(&what, lock).ok() };
        Self { what, waiting, ended: false }
    }

    /// Removes the files and folders with all their content, and returns whether that succeeded. The folders of
    /// `if_empty` stay, because results are written there.
    pub(crate) fn end(mut self) -> io::Result<()> {
        self.what.if_empty.clear();
        self.sweep(KEEP_FOLDERS)
    }

    fn sweep(&mut self, message: &[u8]) -> io::Result<()> {
        self.ended = true;
        let Some(mut waiting) = self.waiting.take() else { return remove(&self.what) };
        if !matches!(waiting.try_wait(), Ok(None)) {
            // It was killed, and has removed nothing.
            return remove(&self.what);
        }
        if let Some(mut stdin) = waiting.stdin.take() {
            stdin.write_all(message)?;
        }
        if waiting.wait()?.success() { Ok(()) } else { Err(io::Error::other("not all of it can be removed")) }
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        if !self.ended {
            // Files that cannot be removed stay: no result depends on it.
            let _ = self.sweep(ENDED);
        }
    }
}

fn start(what: &SweepArgs, lock: Option<&File>) -> io::Result<Child> {
    let mut command = Command::new(env::current_exe()?);
    command.arg("sweep");
    for folder in &what.if_empty {
        command.arg("--if-empty").arg(absolute(folder)?);
    }
    command.arg("--");
    for path in &what.all {
        command.arg(absolute(path)?);
    }
    command.process_group(0).current_dir("/");
    // A lock belongs to the open file: a process that inherits the file holds the lock.
    let inherited = lock.map(File::try_clone).transpose()?;
    command.stdin(Stdio::piped()).stdout(inherited.map_or_else(Stdio::null, Stdio::from));
    command.stderr(Stdio::null()).spawn()
}

/// Runs the waiting process.
pub(crate) fn wait(what: &SweepArgs) -> ExitCode {
    // Reading ends when the first process closes its end. A process that ends normally may have sent a message.
    let mut message = Vec::new();
    let _ = io::stdin().read_to_end(&mut message);
    let has_ended = !message.is_empty();
    let if_empty = if message == KEEP_FOLDERS { Vec::new() } else { what.if_empty.clone() };
    let mut what = SweepArgs { all: what.all.clone(), if_empty };
    let mut absent = 0;
    for _ in 0..TRIES {
        if remove(&what).is_ok() {
            absent += 1;
            // By now they may be another process's.
            what.if_empty.clear();
            if has_ended || absent > CHECKS {
                return ExitCode::SUCCESS;
            }
        } else {
            absent = 0;
        }
        thread::sleep(PAUSE);
    }
    ExitCode::from(1)
}

fn remove(what: &SweepArgs) -> io::Result<()> {
    for path in &what.all {
        let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        match removed {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    for folder in &what.if_empty {
        // It stays if another process has created something there.
        let _ = fs::remove_dir(folder);
    }
    Ok(())
}
