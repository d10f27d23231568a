//! Loads that end before their time: what they leave behind, and what they say of it.

use std::{
    fs,
    io::Write as _,
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::io::ioctl_fionread;

use crate::{Place, Told};

/// A load that reads from a pipe, step by step.
struct Load(Child);

impl Load {
    /// Begins one, which has made its table and read these rows.
    fn begin(place: &Place, arguments: &[&str], rows: &str) -> Self {
        let mut load =
            Self(place.command(&[&["load", "t"], arguments].concat()).stdin(Stdio::piped()).spawn().unwrap());
        load.send("id,name\n");
        load.send(rows);
        load
    }

    /// Sends something, and waits until it is taken.
    fn send(&mut self, text: &str) {
        let pipe = self.0.stdin.as_mut().unwrap();
        pipe.write_all(text.as_bytes()).unwrap();
        let start = Instant::now();
        while ioctl_fionread(&*pipe).unwrap() > 0 {
            assert!(start.elapsed() < Duration::from_mins(1), "nobody reads");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the input, and waits for the end of the load.
    fn end(mut self) -> Told {
        drop(self.0.stdin.take());
        crate::told(&self.0.wait_with_output().unwrap())
    }
}

#[test]
fn a_load_whose_checkpoint_fails_is_a_failed_load() {
    let place = Place::new();
    let (data, aside) = (place.path().join("db/data"), place.path().join("aside"));
    let fail = |rows: &str| {
        let load = Load::begin(&place, &[], rows);
        fs::rename(&data, &aside).unwrap();
        let told = load.end();
        fs::create_dir_all(&data).unwrap();
        fs::remove_dir(&data).unwrap();
        fs::rename(&aside, &data).unwrap();
        told
    };
    // The table is the load's: it goes with it.
    fail("1,one\n2,two\n").refused(&["db/data", "nothing was loaded"]);
    place.call(&["get", "t", "1"]).refused(&["no table t"]);
    place.feed(&["load", "t"], "id,name\n1,one\n").served();
    // The table was there before: what is said to stay is there.
    place.call(&["drop", "t"]).served();
    place.call(&["create", "t", "--columns", "id,name"]).served();
    let name = "x".repeat(300);
    let rows: String = (10_000..30_000).map(|id| format!("{id},{name}\n")).collect();
    fail(&rows).refused(&["db/data", "the 20,000 rows before it are loaded"]);
    assert!(place.call(&["scan", "t"]).served().out == format!("id,name\n{rows}"), "some are missing");
    place.call(&["check"]).served();
}
