//! Loads that end early: what remains of them, and what they report.

use std::{
    fs,
    io::Write as _,
    process::{Child, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    io::ioctl_fionread,
    process::{Pid, Signal, kill_process},
};

use crate::{Folder, Printed};

/// A load that reads from a pipe, step by step.
struct Load(Child);

impl Load {
    /// Starts a load, which has created its table and read these rows.
    fn begin(folder: &Folder, arguments: &[&str], rows: &str) -> Self {
        let mut load = Self(
            folder.command(&[&["load", "t"], arguments].concat()).stdin(Stdio::piped()).spawn().unwrap(),
        );
        load.send("id,name\n");
        load.send(rows);
        load
    }

    /// Writes to the pipe, and waits until it is read.
    fn send(&mut self, text: &str) {
        let pipe = self.0.stdin.as_mut().unwrap();
        pipe.write_all(text.as_bytes()).unwrap();
        let start = Instant::now();
        while ioctl_fionread(&*pipe).unwrap() > 0 {
            assert!(start.elapsed() < Duration::from_mins(10), "the load does not read");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the input, and waits for the end of the load.
    fn end(mut self) -> Printed {
        drop(self.0.stdin.take());
        crate::printed(&self.0.wait_with_output().unwrap())
    }
}

#[test]
fn a_load_whose_checkpoint_fails_is_a_failed_load() {
    let folder = Folder::new();
    let (data, aside) = (folder.path().join("db/data"), folder.path().join("aside"));
    let fail = |rows: &str| {
        let load = Load::begin(&folder, &[], rows);
        fs::rename(&data, &aside).unwrap();
        let printed = load.end();
        fs::create_dir_all(&data).unwrap();
        fs::remove_dir(&data).unwrap();
        fs::rename(&aside, &data).unwrap();
        printed
    };
    // The load created the table, and drops it.
    fail("1,one\n2,two\n").refused(&["db/data", "nothing was loaded"]);
    folder.call(&["get", "t", "1"]).refused(&["no table t"]);
    folder.feed(&["load", "t"], "id,name\n1,one\n").served();
    // The table existed before: the rows that are reported as loaded are there.
    folder.call(&["drop", "t"]).served();
    folder.call(&["create", "t", "--columns", "id,name"]).served();
    let name = "x".repeat(300);
    let rows = (10_000..30_000).map(|id| format!("{id},{name}")).collect::<Vec<_>>().join("\n") + "\n";
    fail(&rows).refused(&["db/data", "the 20,000 rows before it are loaded"]);
    assert!(folder.call(&["scan", "t"]).served().out == format!("id,name\n{rows}"), "some are missing");
    folder.call(&["check"]).served();
}

#[test]
fn an_interrupted_load_is_a_failed_load() {
    let folder = Folder::new();
    let interrupt = |rows, signal| {
        let mut load = Load::begin(&folder, &[], rows);
        // A load that has read the beginning of a line has finished those before, and waits for the rest, which is
        // never sent.
        load.send("3,th");
        // The end of the input would complete the line, if the load saw it before the signal.
        let _open = load.0.stdin.take();
        kill_process(Pid::from_child(&load.0), signal).unwrap();
        crate::printed(&load.0.wait_with_output().unwrap())
    };
    // The load created the table, and drops it.
    let printed = interrupt("1,one\n2,two\n", Signal::INT);
    assert_eq!(
        (printed.code, printed.err.as_str()),
        (130, "windfall: stopped by SIGINT; nothing was loaded\n")
    );
    folder.call(&["get", "t", "1"]).refused(&["no table t"]);
    // The table existed before: the rows that are reported as loaded are there.
    folder.call(&["create", "t", "--columns", "id,name"]).served();
    let printed = interrupt("1,one\n2,two\n", Signal::TERM);
    assert_eq!(
        (printed.code, printed.err.as_str()),
        (143, "windfall: stopped by SIGTERM; the 2 rows before it are loaded\n")
    );
    assert_eq!(folder.call(&["scan", "t"]).served().out, "id,name\n1,one\n2,two\n");
    folder.call(&["check"]).served();
}

#[test]
fn a_load_is_interrupted_between_two_rows() {
    let folder = Folder::new();
    folder.call(&["create", "t", "--columns", "id,name"]).served();
    let mut load = Load::begin(&folder, &[], "1,one\n");
    let mut pipe = load.0.stdin.take().unwrap();
    // Endless rows: the load never waits for input.
    let (more, taken) = mpsc::channel();
    let writer = thread::spawn(move || {
        (2..1_u64 << 40).find(|n| {
            if *n == 100_000 {
                more.send(()).unwrap();
            }
            pipe.write_all(format!("{n},x\n").as_bytes()).is_err()
        })
    });
    // Many times the capacity of a pipe: the load is in the middle of its rows.
    taken.recv().unwrap();
    kill_process(Pid::from_child(&load.0), Signal::INT).unwrap();
    let printed = crate::printed(&load.0.wait_with_output().unwrap());
    assert!(writer.join().unwrap().is_some(), "it has read on");
    assert_eq!(printed.code, 130, "{}", printed.err);
    let stay = folder.call(&["scan", "t"]).served().out.lines().count() - 1;
    let digits: String = printed.err.chars().filter(char::is_ascii_digit).collect();
    assert_eq!(digits, stay.to_string(), "{}", printed.err);
}
