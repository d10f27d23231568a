//! The command through its real binary: its answers, its errors, and its exit codes.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails where it should")]

mod bench;
mod data;
mod demo;
#[cfg(feature = "lab")]
mod lab;
mod load;
mod refusals;
mod shell;
mod terminal;

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Output, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

/// The result of a call.
struct Printed {
    code: i32,
    out: String,
    err: String,
}

impl Printed {
    /// Asserts that it succeeded.
    #[track_caller]
    fn served(self) -> Self {
        assert_eq!(self.code, 0, "out: {}\nerr: {}", self.out, self.err);
        self
    }

    /// Asserts that it failed with one line that contains these words.
    #[track_caller]
    fn refused(self, words: &[&str]) -> Self {
        assert_eq!(self.code, 2, "out: {}\nerr: {}", self.out, self.err);
        assert_eq!(self.err.lines().count(), 1, "one line: {}", self.err);
        assert!(self.err.starts_with("windfall: "), "{}", self.err);
        for word in words {
            assert!(self.err.contains(word), "{word:?} is not in: {}", self.err);
        }
        assert_eq!(self.out, "", "a refusal answers nothing");
        self
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {}", self.out))
    }
}

/// A folder with or without a database.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file.
    fn file(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.path().join(name), text).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_windfall"));
        command.current_dir(self.path()).args(["--db", "db"]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Calls the command in this folder.
    fn call(&self, arguments: &[&str]) -> Printed {
        printed(&self.command(arguments).output().unwrap())
    }

    /// Calls the command with this standard input.
    fn feed(&self, arguments: &[&str], input: &str) -> Printed {
        let mut child = self.command(arguments).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        printed(&child.wait_with_output().unwrap())
    }
}

/// Leaves out the progress of an opening, which is printed if that takes long.
fn printed(output: &Output) -> Printed {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let err = text(&output.stderr);
    let err = err.split_inclusive('\n').filter(|line| !line.starts_with("recovering, ")).collect();
    Printed { code: output.status.code().unwrap(), out: text(&output.stdout), err }
}
