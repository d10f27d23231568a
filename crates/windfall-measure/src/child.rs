//! Child processes.
//!
//! **Purpose.** A child process is killed when its handle is dropped, and its output is read until the end.
//!
//! **Invariants.** Both output streams are read concurrently: a child that writes into a full pipe would otherwise
//! block forever (test: `a_child_that_says_much_on_both_streams_is_heard`).

use std::{
    io::{self, Read},
    process::Child,
    thread,
};

/// A child process that is killed and waited for when this handle is dropped.
#[derive(Debug)]
pub struct KillOnDrop(pub Child);

impl KillOnDrop {
    /// Reads the standard output and the standard error until the child closes them. A stream that is not a pipe is
    /// empty.
    ///
    /// # Errors
    /// I/O errors of the pipes.
    pub fn read_output(&mut self) -> io::Result<(String, String)> {
        let (answer, said, ()) = self.read_output_while(|| Ok(()))?;
        Ok((answer, said))
    }

    /// Does the same as [`Self::read_output`] while `run` is executed in the calling thread.
    ///
    /// # Errors
    /// I/O errors of the pipes and the error of `run`.
    pub fn read_output_while<T>(
        &mut self,
        run: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<(String, String, T)> {
        let (output, errors) = (self.0.stdout.take(), self.0.stderr.take());
        thread::scope(|scope| {
            let streams = [scope.spawn(|| all_of(output)), scope.spawn(|| all_of(errors))];
            let done = run();
            if done.is_err() {
                // Killing the child ends its streams.
                let _ = self.0.kill();
            }
            let lost = |_| Err(io::Error::other("the output of a child is lost"));
            let [answer, said] = streams.map(|stream| stream.join().unwrap_or_else(lost));
            Ok((answer?, said?, done?))
        })
    }
}

fn all_of(stream: Option<impl Read>) -> io::Result<String> {
    stream.map_or_else(|| Ok(String::new()), io::read_to_string)
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // The child may have ended already; both calls then fail or do nothing.
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
        // More than the capacity of a pipe, first on one stream, then on the other.
        let much = "head -c 300000 /dev/zero | tr '\\0'";
        let script = format!("{much} e >&2; {much} o; {much} e >&2");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = KillOnDrop(command.spawn().unwrap());
        let (answer, said) = child.read_output().unwrap();
        assert_eq!((answer.len(), said.len()), (300_000, 600_000));
        assert!(answer.bytes().all(|b| b == b'o') && said.bytes().all(|b| b == b'e'));
        assert!(child.0.wait().unwrap().success());
    }
}
