//! Folders that go away, however their process ends.
//!
//! **Purpose.** A benchmark or a demo makes databases of gigabytes. A process that is interrupted or killed cannot clear
//! up, so another one waits for its end and does.
//!
//! **Invariants.** The waiting process is in a process group of its own, or Ctrl-C on the terminal would end it, too. It
//! learns of the end by its standard input, which nobody else holds open.
//!
//! **May touch.** Child processes, the file system.

use std::{
    env, fs,
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
    /// Watches a folder that is removed with all that is in it, and others that are removed if they are empty then.
    pub fn watch(tree: PathBuf, if_empty: Vec<PathBuf>) -> Self {
        let what = SweepArgs { tree, if_empty };
        // Without the process all is the same, but that a killed one leaves something behind. A unit test is another
        // program, which does not know what it is asked.
        let waiting = if cfg!(test) { None } else { start(&what).ok() };
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

fn start(what: &SweepArgs) -> io::Result<Child> {
    let mut command = Command::new(env::current_exe()?);
    command.arg("sweep").arg(absolute(&what.tree)?);
    for folder in &what.if_empty {
        command.arg("--if-empty").arg(absolute(folder)?);
    }
    command.process_group(0).current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
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
    match fs::remove_dir_all(&what.tree) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    for folder in &what.if_empty {
        // It stays if somebody else has put something there.
        let _ = fs::remove_dir(folder);
    }
    Ok(())
}
