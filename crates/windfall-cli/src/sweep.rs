//! Files that go away, however their process ends.
//!
//! **Purpose.** A benchmark or a demo makes databases of gigabytes. A process that is interrupted or killed cannot
//! clear up, so another one waits for its end and does.
//!
//! **Invariants.** The waiting process is in a process group of its own, or Ctrl-C on the terminal would end it, too.
//! It learns of the end by its standard input, which nobody else holds open. A file lock that the one had, the other
//! keeps until it is done. Only one of the two removes anything, and once: what has the same names afterwards may be
//! somebody else's.
//!
//! **May touch.** Child processes, the file system.

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

/// How often it is tried: a process that the dead one has left behind may still be making files.
const TRIES: u32 = 100;
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(100);
/// Tells the other process to leave the folders that may be empty.
const STAY: &[u8] = b"stay";

/// Something that is removed at the end.
#[derive(Debug)]
pub struct Sweeper {
    what: SweepArgs,
    waiting: Option<Child>,
    ended: bool,
}

impl Sweeper {
    /// Watches files and folders that are removed with all that is in them, and folders that are removed if they are
    /// empty then, while a lock on a file is held.
    pub fn watch(all: Vec<PathBuf>, if_empty: Vec<PathBuf>, lock: Option<&File>) -> Self {
        let what = SweepArgs { all, if_empty };
        // Without the process all is the same, but that a killed one leaves something behind. A unit test is another
        // program, which does not know what it is asked.
        let waiting = if cfg!(test) { None } else { start(&what, lock).ok() };
        Self { what, waiting, ended: false }
    }

    /// Removes what goes with all that is in it, and says whether that worked. The other folders stay: something is to
    /// come there.
    pub fn end(mut self) -> io::Result<()> {
        self.what.if_empty.clear();
        self.sweep(STAY)
    }

    fn sweep(&mut self, last_words: &[u8]) -> io::Result<()> {
        self.ended = true;
        let Some(mut waiting) = self.waiting.take() else { return remove(&self.what) };
        if !matches!(waiting.try_wait(), Ok(None)) {
            // It was killed, and has removed nothing.
            return remove(&self.what);
        }
        if let Some(mut stdin) = waiting.stdin.take() {
            stdin.write_all(last_words)?;
        }
        if waiting.wait()?.success() { Ok(()) } else { Err(io::Error::other("not all of it can be removed")) }
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        if !self.ended {
            // What cannot be removed stays: no result depends on it.
            let _ = self.sweep(&[]);
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
    // A lock belongs to the open file: whoever has inherited it holds the lock.
    let inherited = lock.map(File::try_clone).transpose()?;
    command.stdin(Stdio::piped()).stdout(inherited.map_or_else(Stdio::null, Stdio::from));
    command.stderr(Stdio::null()).spawn()
}

/// What the other process does.
pub fn wait(what: &SweepArgs) -> ExitCode {
    // Reading ends when the one who holds the other end does. Who ends in good order may have said something.
    let mut last_words = Vec::new();
    let _ = io::stdin().read_to_end(&mut last_words);
    let if_empty = if last_words == STAY { Vec::new() } else { what.if_empty.clone() };
    let what = SweepArgs { all: what.all.clone(), if_empty };
    for _ in 0..TRIES {
        if remove(&what).is_ok() {
            return ExitCode::SUCCESS;
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
        // It stays if somebody else has put something there.
        let _ = fs::remove_dir(folder);
    }
    Ok(())
}
