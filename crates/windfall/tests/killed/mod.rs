//! A process that is killed amid its work: a test of this program, which is run only to be killed. It says over a pipe,
//! line by line, what it is about to do and what is done.

#![allow(clippy::unwrap_used, reason = "a test panics")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Command, Stdio, exit},
    thread,
    time::Duration,
};

/// What a thread of the process does, for ever.
pub type Work<'a> = Box<dyn FnOnce() + Send + 'a>;

/// Runs a test of this program as a process with these variables for so long, and kills it. Gives what it has said.
///
/// # Panics
/// If it has ended by itself; it is told what it complained of.
pub fn run_and_kill(test: &str, variables: &[(&str, String)], life: Duration) -> Vec<String> {
    let mut child = Command::new(std::env::current_exe().expect("the name of the test"))
        .args(["--exact", test, "--ignored", "--nocapture"])
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("another process");
    let (output, mut errors) = (child.stdout.take().expect("a pipe"), child.stderr.take().expect("a pipe"));
    let listener = thread::spawn(move || {
        // The last line may be cut.
        let lines = BufReader::new(output).split(b'\n').map_while(Result::<_, std::io::Error>::ok);
        lines.map(|line| String::from_utf8_lossy(&line).into_owned()).collect::<Vec<_>>()
    });
    thread::sleep(life);
    let ended = child.try_wait().expect("a process");
    child.kill().expect("a process to kill");
    child.wait().expect("a process");
    let mut complaint = String::new();
    let _ = errors.read_to_string(&mut complaint);
    assert!(
        ended.is_none() && !complaint.contains("panicked at"),
        "the process ended by itself, or was about to: {complaint}"
    );
    listener.join().expect("a listener")
}

/// What the process says.
pub fn say(line: &str) {
    // Past the test's capture, and whole: other threads speak, too.
    let _ = std::io::stdout().lock().write_all(format!("{line}\n").as_bytes());
}

/// Does all of this on threads until the process is killed. If one of them comes to an end, by a panic, so does it.
pub fn work_until_killed<'a>(work: impl IntoIterator<Item = Work<'a>>) -> ! {
    thread::scope(|scope| {
        let threads: Vec<_> = work.into_iter().map(|work| scope.spawn(work)).collect();
        while !threads.iter().any(thread::ScopedJoinHandle::is_finished) {
            thread::sleep(Duration::from_millis(5));
        }
        exit(101);
    })
}
