//! Child processes.
//!
//! **Purpose.** A child does not outlive who waits for it, and is heard to the end.
//!
//! **Invariants.** Both of its streams are read at once: a child whose full pipe nobody reads would never end.
//!
//! **May touch.** Processes, threads.

use std::{
    io::{self, Read},
    process::Child,
    thread,
};

/// A child process that is killed when nobody waits for it any more.
#[derive(Debug)]
pub struct Killed(pub Child);

impl Killed {
    /// What it says on its output and on its errors until it closes them, as far as they are pipes.
    ///
    /// # Errors
    /// Those of the pipes.
    pub fn hear(&mut self) -> io::Result<(String, String)> {
        let (answer, said, ()) = self.hear_while(|| Ok(()))?;
        Ok((answer, said))
    }

    /// The same while something is done in this thread.
    ///
    /// # Errors
    /// Those of the pipes and of what is done.
    pub fn hear_while<T>(&mut self, run: impl FnOnce() -> io::Result<T>) -> io::Result<(String, String, T)> {
        let (output, errors) = (self.0.stdout.take(), self.0.stderr.take());
        thread::scope(|scope| {
            let streams = [scope.spawn(|| all_of(output)), scope.spawn(|| all_of(errors))];
            let done = run();
            if done.is_err() {
                // Its streams end with it.
                let _ = self.0.kill();
            }
            let lost = |_| Err(io::Error::other("what a child has said is lost"));
            let [answer, said] = streams.map(|stream| stream.join().unwrap_or_else(lost));
            Ok((answer?, said?, done?))
        })
    }
}

fn all_of(stream: Option<impl Read>) -> io::Result<String> {
    stream.map_or_else(|| Ok(String::new()), io::read_to_string)
}

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_child_that_says_much_on_both_streams_is_heard() {
        // More than a pipe holds, first on the one, then on the other.
        let much = "head -c 300000 /dev/zero | tr '\\0'";
        let script = format!("{much} e >&2; {much} o; {much} e >&2");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Killed(command.spawn().unwrap());
        let (answer, said) = child.hear().unwrap();
        assert_eq!((answer.len(), said.len()), (300_000, 600_000));
        assert!(answer.bytes().all(|b| b == b'o') && said.bytes().all(|b| b == b'e'));
        assert!(child.0.wait().unwrap().success());
    }
}
