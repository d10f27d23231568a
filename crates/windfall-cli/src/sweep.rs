//! Files that go away, however their process ends.
//!
//! **Purpose.** A benchmark or a demo makes databases of gigabytes. A process that is interrupted or killed cannot clear
//! up, so another one waits for its end and does.
//!
//! **Invariants.** The waiting process is in a process group of its own, or Ctrl-C on the terminal would end it, too. It
//! learns of the end by its standard input, which nobody else holds open. A file lock that the one had, the other keeps
//! until it is done.
//!
//! **May touch.** Child processes, the file system.

use std::{
    env,
    fs::{self, File},
    io::{self, ErrorKind, Read as _},
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

/// Something that is removed at the end.
#[derive(Debug)]
pub struct Sweeper {
    what: SweepArgs,
    waiting: Option<Child>,
}

impl Sweeper {
    /// Watches files and folders that are removed with all that is in them, and folders that are removed if they are
    /// empty then, while a lock on a file is held.
    pub fn watch(all: Vec<PathBuf>, if_empty: Vec<PathBuf>, lock: Option<&File>) -> Self {
        let what = SweepArgs { all, if_empty };
        // Without the process all is the same, but that a killed one leaves something behind. A unit test is another
        // program, which does not know what it is asked.
        let waiting = if cfg!(test) { None } else { start(&what, lock).ok() };
        Self { what, waiting }
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        // What cannot be removed stays: no result depends on it.
        let _ = remove(&self.what);
        if let Some(mut waiting) = self.waiting.take() {
            drop(waiting.stdin.take());
            let _ = waiting.wait();
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
    // Nothing is ever written: reading ends when the one who holds the other end does.
    let _ = io::stdin().read_to_end(&mut Vec::new());
    for _ in 0..TRIES {
        if remove(what).is_ok() {
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
